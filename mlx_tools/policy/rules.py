"""Policies, and the presets that they may name: what may be called.

`mlx_tools.policy.decision` holds calls to them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from mlx_tools.errors import ToolDefinitionError, UsageError, require_instance, require_items
from mlx_tools.messages import MUTATING, Effect, Effects, ToolSpec
from mlx_tools.policy.limits import Rate, checked_rates
from mlx_tools.policy.patterns import checked, checked_templates

READ_ONLY: Final = "readonly_"
"""A preset whose name starts so grants no effect that changes anything."""

BUILTIN: Final = "builtin"
"""The plugin of the built-in tools."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A named set of tools: what the name grants is these, and of their effects no more than these.

    They are frozen here so that no configuration can change what a name grants. The ceiling on
    effects holds for each call: a tool that reads or writes, as its arguments say, is admitted by a
    ``readonly_`` preset for its reads alone. A tool of a plugin is never meant, whatever its name:
    its words about itself are its own.

    No preset grants ``execute``. What a call executes is not held to the policy (it might change
    the configuration, or start a run under another policy), so such a tool can widen a policy, and
    is allowed by name or not at all.
    """

    name: str
    tools: tuple[str, ...]
    effects: Effects

    def __post_init__(self) -> None:
        if self.name.startswith(READ_ONLY) and not MUTATING.isdisjoint(self.effects):
            raise ToolDefinitionError(f"preset {self.name} grants effects that change things")
        if "execute" in self.effects:
            raise ToolDefinitionError(
                f"preset {self.name} grants execute, which can widen a policy"
            )

    def names(self, spec: ToolSpec) -> bool:
        """Return whether this tool is one that the preset means, whatever it may do."""
        return spec.name in self.tools and spec.plugin in ("", BUILTIN)


def _frozen(*presets: Preset) -> Mapping[str, Preset]:
    return MappingProxyType({preset.name: preset for preset in presets})


_READ: Effects = frozenset(("read",))
_FILES: Effects = frozenset(("read", "write"))

PRESETS: Final[Mapping[str, Preset]] = _frozen(
    Preset("readonly_basic", ("calculator", "clock", "file_access", "read_artifact"), _READ),
    Preset("readonly_files", ("file_access", "format_xml", "read_artifact"), _READ),
    Preset(
        "readonly_knowledge",
        ("query_knowledge_base", "list_corpora", "calculator", "clock", "read_artifact"),
        _READ,
    ),
    Preset(
        "workspace",
        ("calculator", "clock", "file_access", "create_file", "format_xml", "read_artifact"),
        _FILES,
    ),
    Preset("notes", ("clock", "notes_create", "notes_search", "read_artifact"), _FILES),
)

DEFAULT_PRESET: Final = "readonly_basic"
"""What holds where nobody said which tools may be called."""


def check_presets(
    specs: Mapping[str, ToolSpec], presets: Iterable[Preset] = tuple(PRESETS.values())
) -> None:
    """Hold the presets to the tools that are registered; a program starts with this.

    ``specs`` are all registered tools, disabled ones too. Raises ToolDefinitionError where a preset
    names a tool that is not registered or belongs to a plugin, or a tool that always has effects
    beyond the preset's, as when a tool in a ``readonly_`` preset has come to write. A tool whose
    effects depend on its arguments is held to the preset's effects at every call instead.
    """
    for preset in presets:
        for name in preset.tools:
            spec = specs.get(name)
            if spec is None:
                raise ToolDefinitionError(f"preset {preset.name}: no tool {name} is registered")
            if not preset.names(spec):
                raise ToolDefinitionError(
                    f"preset {preset.name}: {name} belongs to the plugin {spec.plugin}, "
                    "and a preset's tools are built in"
                )
            beyond = spec.possible_effects - preset.effects
            if beyond and not callable(spec.effects):
                raise ToolDefinitionError(
                    f"preset {preset.name}: {name} has the effects {', '.join(sorted(beyond))}, "
                    "which the preset does not grant"
                )


ASK_EFFECTS: Final[tuple[Effect, ...]] = ("write", "execute")
"""The effects that ask a person first where nobody said which."""

ASKABLE: Final[tuple[Effect, ...]] = (*ASK_EFFECTS, "network")

AfterRead = Literal["allow", "ask", "deny"]
"""What becomes of calls that may use the network once private data has been read, the stricter the
later."""

AFTER_READ: Final[tuple[AfterRead, ...]] = get_args(AfterRead)

_LISTS: Final = ("allow", "deny", "ask")
_LIST_LIKE: Final = (*_LISTS, "ask_effects", "standing_approvals")
_SWITCHES: Final = ("local_only", "dry_run", "redact", "redact_paths")
_LATER: Final[Mapping[str, Any]] = {
    "ask_effects": ASK_EFFECTS,
    "standing_approvals": (),
    "session_rate_limit": None,
    "network_after_read": "allow",
    "redact": True,
    "redact_paths": False,
}
"""Fields that JSON holds only where they are not at these defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of what may be called. The empty policy allows nothing.

    ``allow``, ``deny`` and ``ask`` list names, globs and plugins (`mlx_tools.policy.patterns`);
    ``ask`` adds an approval to calls that are allowed. ``ask_effects`` are the effects (write,
    execute, network) that ask a person before every call that has one of them for its arguments,
    whichever tool it is, and ``standing_approvals`` the calls that they and a tool's own
    ``needs_approval`` do not ask about (`mlx_tools.policy.patterns`); neither lets a call run that
    was not written cleanly. ``preset`` names a set of tools that is allowed besides ``allow``
    (`PRESETS`). ``local_only`` denies every call that
    may use the network. ``dry_run`` lets no call run that can change things, may use the network or
    would have asked. ``rate_limits`` says by pattern how often each tool that it means may be
    called (``{"notes_*": "100/hour"}``), ``session_rate_limit`` how often all tools together;
    every rate that means a tool holds. ``network_after_read`` is what becomes of calls that may use
    the network once a private tool has answered. ``redact`` and ``redact_paths`` say whether
    secrets and paths are taken out of what tools return; they decide about no call.
    ``narrowing`` holds further policies, each of which must allow a call too.

    ``parts`` are this policy and all that narrow it, ``redacts`` and ``redacts_paths`` what any of
    them says. Raises UsageError where a list, a pattern, a rate, a switch or the preset's name is
    not one.
    """

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    ask: Sequence[str] = ()
    ask_effects: Sequence[str] = ASK_EFFECTS
    standing_approvals: Sequence[str] = ()
    preset: str | None = None
    local_only: bool = False
    dry_run: bool = False
    rate_limits: Mapping[str, str] = field(default_factory=dict, hash=False)
    session_rate_limit: str | None = None
    network_after_read: AfterRead = "allow"
    redact: bool = True
    redact_paths: bool = False
    narrowing: tuple[Policy, ...] = ()
    parts: tuple[Policy, ...] = field(init=False, repr=False, compare=False)
    redacts: bool = field(init=False, repr=False, compare=False)
    redacts_paths: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        said: dict[str, Any] = {
            name: checked(getattr(self, name), f"policy.{name}") for name in _LISTS
        }
        if self.ask_effects != ASK_EFFECTS:
            said["ask_effects"] = checked_effects(self.ask_effects)
        if self.standing_approvals != ():
            approved = checked_templates(self.standing_approvals, "policy.standing_approvals")
            said["standing_approvals"] = approved
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"policy.{name}: expected true or false")
        said["rate_limits"] = checked_rates(self.rate_limits, "policy.rate_limits")
        if self.session_rate_limit is not None:
            Rate.parse(self.session_rate_limit, "policy.session_rate_limit")
        if self.network_after_read not in AFTER_READ:
            raise UsageError(
                f"policy.network_after_read: {self.network_after_read!r:.60} is not allowed",
                hint=f"one of {', '.join(AFTER_READ)}",
            )
        if self.preset not in (None, *PRESETS):
            raise UsageError(
                f"policy.preset: {self.preset!r} is not a preset",
                hint=f"one of {', '.join(PRESETS)}",
            )
        policies = "give a tuple of policies"
        narrowing = tuple(require_items("policy.narrowing", self.narrowing, policies))
        for part in narrowing:
            require_instance("policy.narrowing", part, Policy, policies)
        parts = (self, *narrowing)
        said |= {"narrowing": narrowing, "parts": parts}
        said["redacts"] = any(part.redact for part in parts)
        said["redacts_paths"] = any(part.redact_paths for part in parts)
        for name, value in said.items():
            object.__setattr__(self, name, value)

    def narrowed_by(self, other: Policy) -> Policy:
        """The policy that allows what both allow: never more than either.

        A restriction that takes away one thing, and has nothing to say about the rest, is made by
        `restriction`, as in ``restriction(local_only=True)``.
        """
        require_instance("a narrowing policy", other, Policy, "write Policy(allow=[…])")
        held = {replace(self, narrowing=()), *self.narrowing}
        more = (replace(other, narrowing=()), *other.narrowing)
        added = tuple(dict.fromkeys(part for part in more if part not in held))
        return replace(self, narrowing=self.narrowing + added) if added else self

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON values; `from_json` reads them back."""
        value: dict[str, Any] = {name: list(getattr(self, name)) for name in _LISTS}
        value |= {"preset": self.preset, "local_only": self.local_only, "dry_run": self.dry_run}
        if self.rate_limits:
            value["rate_limits"] = dict(self.rate_limits)
        for name, default in _LATER.items():
            if (had := getattr(self, name)) != default:
                value[name] = list(had) if name in _LIST_LIKE else had
        if self.narrowing:
            value["narrowing"] = [part.to_json() for part in self.narrowing]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Policy:
        """The policy that `to_json` wrote. Raises UsageError for anything else: a policy that
        cannot be read whole grants nothing."""
        if not isinstance(value, Mapping):
            raise UsageError("policy: expected an object")
        unknown = set(value) - {*_LISTS, *_SWITCHES, *_LATER, "preset", "rate_limits", "narrowing"}
        if unknown:
            raise UsageError(f"policy: unknown key {min(map(str, unknown))!r}")
        narrowing = value.get("narrowing", ())
        if isinstance(narrowing, str) or not isinstance(narrowing, Sequence):
            raise UsageError("policy.narrowing: expected a list of policies")
        if any(isinstance(part, Mapping) and part.get("narrowing") for part in narrowing):
            raise UsageError("policy.narrowing: a policy in this list has none of its own")
        return cls(**{**value, "narrowing": tuple(map(cls.from_json, narrowing))})

    def digest(self) -> str:
        """SHA-256 of the policy in canonical form, 64 hexadecimal digits.

        Changes with anything that may change a decision, the content of the preset included; not
        with the order or the repetition of names.
        """
        text = json.dumps(self._canonical(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def _canonical(self) -> dict[str, Any]:
        value = self.to_json()
        value |= {name: sorted(set(value[name])) for name in _LIST_LIKE if name in value}
        if self.preset is not None:
            preset = PRESETS[self.preset]
            value["preset"] = [preset.name, sorted(preset.tools), sorted(preset.effects)]
        parts = [part._canonical() for part in self.narrowing]
        value["narrowing"] = sorted(parts, key=lambda part: json.dumps(part, sort_keys=True))
        return value


def checked_effects(effects: Any) -> tuple[str, ...]:
    """The effects that ask, each once, in the order of `ASKABLE`. Raises UsageError for others."""
    if isinstance(effects, str) or not isinstance(effects, Collection):
        raise UsageError("policy.ask_effects: expected a list of effects")
    if wrong := [effect for effect in effects if effect not in ASKABLE]:
        raise UsageError(
            f"policy.ask_effects: {wrong[0]!r:.60} is not allowed", hint=f"of {', '.join(ASKABLE)}"
        )
    return tuple(effect for effect in ASKABLE if effect in effects)


def restriction(allow: Sequence[str] = ("*",), **rules: Any) -> Policy:
    """The policy that takes away what ``rules`` say and leaves all else as it is: what another one
    is narrowed by."""
    silent = {"redact": False, "ask_effects": (), "standing_approvals": ("*",)}
    return Policy(allow=allow, **{**silent, **rules})
