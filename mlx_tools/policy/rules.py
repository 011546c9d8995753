"""Whether a call may run: allow, ask or deny, by which rule, and why.

Pure: the same policy, tool and call always give the same decision. Everything that is not allowed
is denied, and what denies comes before what allows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from mlx_tools import given
from mlx_tools.errors import ErrorCode, UsageError
from mlx_tools.policy.patterns import checked, first_match
from mlx_tools.policy.presets import PRESETS
from mlx_tools.spec import MUTATING, Effects, ToolSpec

_LISTS: Final = ("allow", "deny", "ask")
_POLICIES: Final = "give a tuple of policies"
_SWITCHES: Final = ("local_only", "dry_run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may be called. The empty policy allows nothing.

    ``allow``, ``deny`` and ``ask`` list names, globs and plugins (`mlx_tools.policy.patterns`);
    ``ask`` adds an approval to calls that are allowed. ``preset`` names a set of tools that is
    allowed besides ``allow`` (`mlx_tools.policy.presets`). ``local_only`` denies every call that
    may use the network. ``dry_run`` lets no call run that can change things or would have asked.
    ``narrowing`` holds further policies, each of which must allow a call too.

    Raises UsageError where a list, a pattern, a switch or the preset's name is not one.
    """

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    ask: Sequence[str] = ()
    preset: str | None = None
    local_only: bool = False
    dry_run: bool = False
    narrowing: tuple[Policy, ...] = ()

    def __post_init__(self) -> None:
        for field in _LISTS:
            object.__setattr__(self, field, checked(getattr(self, field), f"policy.{field}"))
        for field in _SWITCHES:
            if not isinstance(getattr(self, field), bool):
                raise UsageError(f"policy.{field}: expected true or false")
        known = isinstance(self.preset, str) and self.preset in PRESETS
        if self.preset is not None and not known:
            raise UsageError(
                f"policy.preset: {self.preset!r} is not a preset",
                hint=f"one of {', '.join(PRESETS)}",
            )
        narrowing = given.items("policy.narrowing", self.narrowing, _POLICIES)
        for part in narrowing:
            given.instance("policy.narrowing", part, Policy, _POLICIES)
        object.__setattr__(self, "narrowing", tuple(narrowing))

    @property
    def parts(self) -> tuple[Policy, ...]:
        """This policy and all that narrow it; a call must satisfy each."""
        return (self, *self.narrowing)

    def narrowed_by(self, other: Policy) -> Policy:
        """The policy that allows what both allow: never more than either.

        A restriction that has nothing to say about which tools there are is written with
        ``allow=["*"]``, as in ``Policy(allow=["*"], local_only=True)``.
        """
        given.instance("a narrowing policy", other, Policy, "write Policy(allow=[…])")
        held = {replace(self, narrowing=()), *self.narrowing}
        more = (replace(other, narrowing=()), *other.narrowing)
        added = tuple(dict.fromkeys(part for part in more if part not in held))
        return replace(self, narrowing=self.narrowing + added) if added else self

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON values; `from_json` reads them back."""
        value: dict[str, Any] = {field: list(getattr(self, field)) for field in _LISTS}
        value |= {"preset": self.preset, "local_only": self.local_only, "dry_run": self.dry_run}
        if self.narrowing:
            value["narrowing"] = [part.to_json() for part in self.narrowing]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Policy:
        """The policy that `to_json` wrote. Raises UsageError for anything else: a policy that
        cannot be read whole grants nothing."""
        if not isinstance(value, Mapping):
            raise UsageError("policy: expected an object")
        unknown = set(value) - {*_LISTS, *_SWITCHES, "preset", "narrowing"}
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
        value |= {field: sorted(set(value[field])) for field in _LISTS}
        if self.preset is not None:
            preset = PRESETS[self.preset]
            value["preset"] = [preset.name, sorted(preset.tools), sorted(preset.effects)]
        parts = [part._canonical() for part in self.narrowing]
        value["narrowing"] = sorted(parts, key=lambda part: json.dumps(part, sort_keys=True))
        return value


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
) -> Decision:
    """Decides about one call whose arguments were validated.

    ``spec`` is the tool's, None where no tool has the name. ``runs`` and ``echoed`` are what
    reading found (reading rules 9 and 12); ``disabled_reason`` says why the tool is switched off or
    cannot work here, None where it can.

    In order: unknown, disabled, denied by name, not allowed, effects beyond what is granted,
    network in local-only mode, an echoed call that can change things, dry run, asked, allowed.
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
    mutates = not MUTATING.isdisjoint(effects)
    if echoed and mutates:
        reason = f"this call to {name} stands in an earlier observation"
        return Decision("deny", "echoed", reason, "echoed_call")
    asked = _asked(policy, spec, runs, echoed)
    if any(part.dry_run for part in policy.parts) and (mutates or asked):
        reason = f"dry run: {name} was not called"
        return Decision("deny", "dry_run", reason, "dry_run")
    if asked is not None:
        return asked
    return Decision("allow", grants[0], f"{name} is allowed by {grants[0]}")


def permitted(policy: Policy, spec: ToolSpec) -> bool:
    """Whether any call to this tool might be allowed, be it after approval.

    For listings and catalogs. Only `decide`, which sees the arguments, lets a call run.
    """
    known = frozenset[Any]() if callable(spec.effects) else spec.effects
    return all(isinstance(_refused(part, spec, spec.name, known), str) for part in policy.parts)


def asks(policy: Policy, spec: ToolSpec) -> bool:
    """Whether every call to this tool needs approval, however cleanly it is written."""
    return _asked(policy, spec, "freely", echoed=False) is not None


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
        if preset is None or spec.name not in preset.tools:
            return _not_allowed("default", f"{name} is not among the allowed tools")
        grant = f"preset {preset.name}"
        beyond = effects - preset.effects
        if beyond:
            return _not_allowed(grant, f"{name}: {_effects(beyond)} not granted by {grant}")
    if policy.local_only and "network" in effects:
        return _not_allowed("local_only", f"{name} may use the network, which local-only forbids")
    return grant


def _asked(
    policy: Policy, spec: ToolSpec, runs: Literal["freely", "with_approval"], echoed: bool
) -> Decision | None:
    """The question that an allowed call raises, or None."""
    name = spec.name
    if echoed:
        return _ask("echoed", f"this call to {name} stands in an earlier observation")
    if runs == "with_approval":
        return _ask("unclean", f"the call to {name} was not written cleanly")
    if spec.needs_approval:
        return _ask("needs_approval", f"{name} always needs approval")
    for part in policy.parts:
        pattern = first_match(part.ask, spec)
        if pattern is not None:
            return _ask(f"ask {pattern}", f"the policy asks before {name} runs")
    return None


def _effects(effects: Effects) -> str:
    return " and ".join(sorted(effects)) + (" is" if len(effects) == 1 else " are")


def _not_allowed(rule: str, reason: str) -> Decision:
    return Decision("deny", rule, reason, "not_allowed")


def _ask(rule: str, reason: str) -> Decision:
    return Decision("ask", rule, reason, "requires_confirmation")
