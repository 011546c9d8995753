"""Whether a call may run: allow, ask or deny, by which rule, and why.

Pure: the same policy, tool and call always give the same decision. Everything that is not allowed
is denied, and what denies comes before what allows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import MAXYEAR, UTC, datetime
from typing import Any, Final, Literal, get_args

from mlx_tools.errors import ErrorCode, UsageError, require_instance, require_items
from mlx_tools.messages import MUTATING, Effect, Effects, ToolSpec
from mlx_tools.policy.facts import NOTHING_KNOWN, Exceeded, Facts
from mlx_tools.policy.patterns import (
    checked,
    checked_templates,
    first_match,
    first_template,
    matches,
)
from mlx_tools.policy.presets import PRESETS
from mlx_tools.policy.rates import Full, Rate, RateCounts, checked_rates, full

_LISTS: Final = ("allow", "deny", "ask")
_LIST_LIKE: Final = (*_LISTS, "ask_effects", "standing_approvals")
ASK_EFFECTS: Final[tuple[Effect, ...]] = ("write", "execute")
"""The effects that ask a person first where nobody said which."""

ASKABLE: Final[tuple[Effect, ...]] = (*ASK_EFFECTS, "network")
_POLICIES: Final = "give a tuple of policies"
_SWITCHES: Final = ("local_only", "dry_run", "redact", "redact_paths")

AfterRead = Literal["allow", "ask", "deny"]
"""What becomes of calls that may use the network once private data has been read, the stricter the
later."""

_AFTER_READ: Final[tuple[AfterRead, ...]] = get_args(AfterRead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may be called. The empty policy allows nothing.

    ``allow``, ``deny`` and ``ask`` list names, globs and plugins (`mlx_tools.policy.patterns`);
    ``ask`` adds an approval to calls that are allowed. ``ask_effects`` are the effects (write,
    execute, network) that ask a person before every call that has one of them for its arguments,
    whichever tool it is, and ``standing_approvals`` the calls that they and a tool's own
    ``needs_approval`` do not ask about (`mlx_tools.policy.patterns`); neither lets a call run that
    was not written cleanly. ``preset`` names a set of tools that is allowed besides ``allow``
    (`mlx_tools.policy.presets`). ``local_only`` denies every call that
    may use the network. ``dry_run`` lets no call run that can change things, may use the network or
    would have asked. ``rate_limits`` says by pattern how often each tool that it means may be
    called (``{"notes_*": "100/hour"}``), ``session_rate_limit`` how often all tools together;
    every rate that means a tool holds. ``network_after_read`` is what becomes of calls that may use
    the network once a private tool has answered. ``redact`` and ``redact_paths`` say whether
    secrets and paths are taken out of what tools return; they decide about no call.
    ``narrowing`` holds further policies, each of which must allow a call too.

    Raises UsageError where a list, a pattern, a rate, a switch or the preset's name is not one.
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

    def __post_init__(self) -> None:
        for name in _LISTS:
            object.__setattr__(self, name, checked(getattr(self, name), f"policy.{name}"))
        object.__setattr__(self, "ask_effects", checked_effects(self.ask_effects))
        approved = checked_templates(self.standing_approvals, "policy.standing_approvals")
        object.__setattr__(self, "standing_approvals", approved)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"policy.{name}: expected true or false")
        rates = checked_rates(self.rate_limits, "policy.rate_limits")
        object.__setattr__(self, "rate_limits", rates)
        if self.session_rate_limit is not None:
            Rate.parse(self.session_rate_limit, "policy.session_rate_limit")
        if self.network_after_read not in _AFTER_READ:
            raise UsageError(
                f"policy.network_after_read: {self.network_after_read!r:.60} is not allowed",
                hint=f"one of {', '.join(_AFTER_READ)}",
            )
        self._check_preset()
        narrowing = require_items("policy.narrowing", self.narrowing, _POLICIES)
        for part in narrowing:
            require_instance("policy.narrowing", part, Policy, _POLICIES)
        object.__setattr__(self, "narrowing", tuple(narrowing))

    def _check_preset(self) -> None:
        known = isinstance(self.preset, str) and self.preset in PRESETS
        if self.preset is not None and not known:
            raise UsageError(
                f"policy.preset: {self.preset!r} is not a preset",
                hint=f"one of {', '.join(PRESETS)}",
            )

    @property
    def parts(self) -> tuple[Policy, ...]:
        """This policy and all that narrow it; a call must satisfy each."""
        return (self, *self.narrowing)

    @property
    def redacts(self) -> bool:
        """Whether secrets are taken out of what tools return: where any part says so."""
        return any(part.redact for part in self.parts)

    @property
    def redacts_paths(self) -> bool:
        """Whether paths are, too."""
        return any(part.redact_paths for part in self.parts)

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
        parts = []
        for part in narrowing:
            if isinstance(part, Mapping) and part.get("narrowing"):
                raise UsageError("policy.narrowing: a policy in this list has none of its own")
            parts.append(cls.from_json(part))
        return cls(**{**value, "narrowing": tuple(parts)})

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


_LATER: Final[Mapping[str, Any]] = {
    "ask_effects": ASK_EFFECTS,
    "standing_approvals": (),
    "session_rate_limit": None,
    "network_after_read": "allow",
    "redact": True,
    "redact_paths": False,
}
"""Fields that JSON holds only where they are not at these defaults."""


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


@dataclass(frozen=True, slots=True)
class Decision:
    """What policy says of a call.

    ``rule`` names the rule that decided, ``reason`` says it in words. ``code`` is the error that a
    denied call ends in, ``requires_confirmation`` for one that asks, None for one that is allowed.
    """

    decision: Literal["allow", "ask", "deny"]
    rule: str
    reason: str
    code: ErrorCode | None = None


def decide(
    policy: Policy,
    spec: ToolSpec | None,
    name: str,
    arguments: Mapping[str, Any],
    *,
    runs: Literal["freely", "with_approval"],
    echoed: bool = False,
    disabled_reason: str | None = None,
    facts: Facts = NOTHING_KNOWN,
) -> Decision:
    """Decides about one call whose arguments were validated.

    ``spec`` is the tool's, None where no tool has the name. ``runs`` and ``echoed`` are what
    reading found (reading rules 9 and 12); ``disabled_reason`` says why the tool is switched off or
    cannot work here, None where it can; ``facts`` are what else is known of the call.

    In order: disabled, unknown; denied by name, not allowed, effects beyond what is granted,
    network in local-only mode; a secret for the network, a placeholder in a call that can change
    things, network after a private read, an echoed call that can change things, a rate that is used
    up, dry run; asked; allowed. All that denies comes before what asks. What lets a call through
    that would have been asked about is the rule of the decision, and its reason says which effects.
    """
    if disabled_reason is not None:
        return Decision("deny", "disabled", f"{name} is disabled: {disabled_reason}", "disabled")
    if spec is None:
        return Decision("deny", "unknown", f"there is no tool {name}", "unknown_tool")
    effects = spec.effects_of(arguments)
    grants: list[str] = []
    for part in policy.parts:
        verdict = _refused(part, spec, name, effects)
        if isinstance(verdict, Decision):
            return verdict
        grants.append(verdict)
    forbidden = _forbidden(policy, name, effects, echoed, facts)
    if forbidden is not None:
        return forbidden
    suspect = _suspect(policy, name, effects, runs, echoed, facts)
    asked = suspect or _asked(policy, spec, effects, arguments)
    if any(part.dry_run for part in policy.parts) and (asked or effects & _TOUCHING):
        reason = f"dry run: {name} was not called"
        return Decision("deny", "dry_run", reason, "dry_run")
    if asked is None:
        return _allowed(policy, spec, grants[0], effects, arguments)
    if suspect is None and facts.consented is not None and effects <= facts.consented:
        reason = f"{name} was allowed{_to(effects)} for the rest of the session"
        return Decision("allow", "session_consent", reason)
    return asked


def exceeded(policy: Policy, spec: ToolSpec, made: RateCounts, at: str) -> Exceeded | None:
    """The rate of this policy that leaves no room for one more call of the tool; of several the one
    that holds longest, None where there is room.

    ``made`` are the calls that were let through, ``at`` the time of the completion that the call
    stands in (ISO 8601, empty where it is not known).
    """
    own, every = made.times(spec.name), made.times()
    found: list[tuple[str, str, Full]] = []
    for part in policy.parts:
        for pattern, text in part.rate_limits.items():
            if matches(pattern, spec) and (over := full(Rate.parse(text), own, at)):
                told = f"{spec.name} was called {over.used} times, and may be {text}"
                found.append((f"rate_limit {pattern} {text}", told, over))
        text = part.session_rate_limit or ""
        if text and (over := full(Rate.parse(text), every, at)):
            told = f"{over.used} calls were made in this session, and may be {text}"
            found.append((f"session_rate_limit {text}", told, over))
    if not found:
        return None
    rule, told, over = max(found, key=lambda one: one[2].again or _NEVER)
    return Exceeded(rule, f"{told}; {over.when}")


_NEVER: Final = datetime(MAXYEAR, 12, 31, tzinfo=UTC)
_TOUCHING: Final[Effects] = MUTATING | {"network"}
"""What a dry run lets no call do."""


def permitted(policy: Policy, spec: ToolSpec) -> bool:
    """Whether any call to this tool might be allowed, be it after approval.

    For listings and catalogs. Only `decide`, which sees the arguments, lets a call run.
    """
    return denial(policy, spec) is None


def denial(policy: Policy, spec: ToolSpec) -> Decision | None:
    """Why no call to this tool can be allowed, None where one might be."""
    known = frozenset[Any]() if callable(spec.effects) else spec.effects
    verdicts = (_refused(part, spec, spec.name, known) for part in policy.parts)
    return next((verdict for verdict in verdicts if isinstance(verdict, Decision)), None)


def asks(policy: Policy, spec: ToolSpec) -> bool:
    """Whether every call to this tool needs approval, however cleanly it is written. One whose
    effects depend on its arguments may have calls that need none."""
    known = frozenset[Any]() if callable(spec.effects) else spec.effects
    return _asked(policy, spec, known, None) is not None


def _refused(policy: Policy, spec: ToolSpec, name: str, effects: Effects) -> Decision | str:
    """Why one policy denies a tool with these effects, or the rule that grants it."""
    denied = first_match(policy.deny, spec)
    if denied is None and name != spec.name and name in policy.deny:
        denied = name
    if denied is not None:
        return _not_allowed(f"deny {denied}", f"{name} is denied by the policy")
    allowed = first_match(policy.allow, spec)
    grant = f"allow {allowed}"
    if allowed is None:
        preset = PRESETS[policy.preset] if policy.preset is not None else None
        if preset is None or not preset.names(spec):
            return _not_allowed("default", f"{name} is not among the allowed tools")
        grant = f"preset {preset.name}"
        beyond = effects - preset.effects
        if beyond:
            return _not_allowed(grant, f"{name}: {_effects(beyond)} not granted by {grant}")
    if policy.local_only and "network" in effects:
        return _not_allowed("local_only", f"{name} may use the network, which local-only forbids")
    return grant


def _forbidden(
    policy: Policy, name: str, effects: Effects, echoed: bool, facts: Facts
) -> Decision | None:
    """Why a call of an allowed tool may not be made now, whoever would approve of it, or None."""
    network, mutates = "network" in effects, not MUTATING.isdisjoint(effects)
    if facts.secrets and network:
        kinds = ", ".join(facts.secrets)
        return _not_allowed(
            "secret", f"the arguments hold a secret ({kinds}), and {name} may use the network"
        )
    if facts.placeholder and mutates:
        return _not_allowed(
            "placeholder",
            "the arguments hold a mark that stands for what was "
            f"taken out of an observation, and {name} can change things",
        )
    if facts.private_read and network and _after_read(policy) == "deny":
        return _not_allowed("network_after_read", _read_before(name))
    if echoed and mutates:
        reason = f"this call to {name} stands in an earlier observation"
        return Decision("deny", "echoed", reason, "echoed_call")
    if facts.exceeded is not None:
        return Decision("deny", facts.exceeded.rule, facts.exceeded.reason, "rate_limited")
    return None


def _suspect(
    policy: Policy,
    name: str,
    effects: Effects,
    runs: Literal["freely", "with_approval"],
    echoed: bool,
    facts: Facts,
) -> Decision | None:
    """The question that this very call raises, which no standing consent answers, or None."""
    if echoed:
        return _ask("echoed", f"this call to {name} stands in an earlier observation")
    if runs == "with_approval":
        return _ask("unclean", f"the call to {name} was not written cleanly")
    if facts.private_read and "network" in effects and _after_read(policy) == "ask":
        return _ask("network_after_read", _read_before(name))
    return None


def _asked(
    policy: Policy, spec: ToolSpec, effects: Effects, arguments: Mapping[str, Any] | None
) -> Decision | None:
    """The question that every call of an allowed tool with these effects raises, or None.

    ``arguments`` None asks about no call in particular: a standing approval answers then only where
    it covers every call.
    """
    name = spec.name
    held = [
        part
        for part in policy.parts
        if first_template(part.standing_approvals, spec, arguments) is None
    ]
    if spec.needs_approval and held:
        return _ask("needs_approval", f"{name} always needs approval")
    for part in policy.parts:
        pattern = first_match(part.ask, spec)
        if pattern is not None:
            return _ask(f"ask {pattern}", f"the policy asks before {name} runs")
    for part in held:
        if asking := effects.intersection(part.ask_effects):
            rule = f"ask_effects {', '.join(sorted(asking))}"
            return _ask(rule, f"{name} may {_may(asking)}, which is asked about first")
    return None


def _allowed(
    policy: Policy, spec: ToolSpec, grant: str, effects: Effects, arguments: Mapping[str, Any]
) -> Decision:
    """What is said of a call that nothing asks about: where its effects, or the tool, would have
    asked, what lets it through."""
    name, asking = (
        spec.name,
        {*ASK_EFFECTS, *(e for part in policy.parts for e in part.ask_effects)},
    )
    if not spec.needs_approval and not effects & asking:
        return Decision("allow", grant, f"{name} is allowed by {grant}")
    template = first_template(policy.standing_approvals, spec, arguments)
    if template is not None:
        reason = f"{name} has a standing approval{_to(effects)}"
        return Decision("allow", f"standing_approval {template}", reason)
    reason = f"{name} is allowed{_to(effects)} unasked, by {grant} and policy.ask_effects"
    return Decision("allow", grant, reason)


_DOES: Final[Mapping[str, str]] = {
    "read": "read",
    "write": "write",
    "execute": "run programs",
    "network": "use the network",
}


def _may(effects: Effects) -> str:
    """What a call with these effects does, in words."""
    return " and ".join(words for effect, words in _DOES.items() if effect in effects)


def _to(effects: Effects) -> str:
    return f" to {_may(effects)}" if effects else ""


def _after_read(policy: Policy) -> AfterRead:
    """The strictest of what the policy's parts say."""
    return max((part.network_after_read for part in policy.parts), key=_AFTER_READ.index)


def _read_before(name: str) -> str:
    return f"{name} may use the network, and private data was read before"


def _effects(effects: Effects) -> str:
    return " and ".join(sorted(effects)) + (" is" if len(effects) == 1 else " are")


def _not_allowed(rule: str, reason: str) -> Decision:
    return Decision("deny", rule, reason, "not_allowed")


def _ask(rule: str, reason: str) -> Decision:
    return Decision("ask", rule, reason, "requires_confirmation")
