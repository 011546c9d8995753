"""The decision whether a call may run: allow, ask or deny, by which rule, and why.

Pure: the same policy, tool, call and facts always give the same decision. Everything that is not
allowed is denied, and what denies comes before what allows.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import MAXYEAR, UTC, datetime
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from msgspec import Struct

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import MUTATING, Effects, ToolSpec
from mlx_tools.policy.approval_template import ApprovalTemplate
from mlx_tools.policy.rules import (
    AFTER_READ,
    ASK_EFFECTS,
    PRESETS,
    FullRate,
    Policy,
    Rate,
    RateCounts,
    first_match,
    matches,
)

if TYPE_CHECKING:
    from mlx_tools.policy.secret_kinds import SecretSpan

_TOUCHING: Final[Effects] = MUTATING | {"network"}
"""What a dry run lets no call do."""

_NEEDS_APPROVAL: Final = "needs_approval"
_ASK_EFFECTS: Final = "ask_effects "
TEMPLATE: Final = "template "
"""How the rules begin of decisions for a tool's own wish, for effects, and by a template."""

IN_DOUBT: Final = "in_doubt"
"""The rule that asks about a call which was started before with an unknown end."""

_NEVER: Final = datetime(MAXYEAR, 12, 31, tzinfo=UTC)
_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Decision(Struct, frozen=True):
    """The decision of policy on a call.

    ``rule`` names the rule that decided, ``reason`` says it in words. ``code`` is the error that a
    denied call ends in, ``requires_confirmation`` for one that asks, None for one that is allowed.
    """

    decision: Literal["allow", "ask", "deny"]
    rule: str
    reason: str
    code: ErrorCode | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of one call beside its name and its arguments.

    ``consented`` are the effects that a person allowed such calls for the rest of the session, None
    where nobody did. ``secrets`` are the kinds of secrets in the arguments, never the values;
    ``placeholder`` is whether they hold the mark that stands for one. ``private_read``: a private
    tool has answered in this session. ``repeats_doubt``: the same call was started before, and
    nobody knows how it ended. ``exceeded_rate`` is the denial by a rate that leaves no room for the
    call.
    """

    consented: Effects | None = None
    secrets: tuple[str, ...] = ()
    placeholder: bool = False
    private_read: bool = False
    repeats_doubt: bool = False
    exceeded: Decision | None = None


_NOTHING_KNOWN: Final = Facts()


def decide(
    policy: Policy,
    spec: ToolSpec | None,
    name: str,
    arguments: Mapping[str, Any],
    *,
    runs: Literal["freely", "with_approval"],
    echoed: bool = False,
    disabled_reason: str | None = None,
    facts: Facts = _NOTHING_KNOWN,
) -> Decision:
    """Decide about one call whose arguments were validated.

    ``spec`` is the tool's, None where no tool has the name. ``runs`` and ``echoed`` are what
    reading found (reading rules 9 and 12); ``disabled_reason`` says why the tool is switched off or
    cannot work here, None where it can; ``facts`` are what else is known of the call.

    In order: disabled, unknown; denied by name, not allowed, effects beyond what is granted,
    network in local-only mode; a secret for the network, a placeholder in a call that can change
    things, network after a private read, an echoed call that can change things, a rate that is used
    up, dry run; asked, first a call that repeats one in doubt; allowed. All that denies comes
    before what asks. What lets a call through that would have been asked about is the rule of the
    decision, and its reason says which effects.
    """
    if disabled_reason is not None:
        return Decision("deny", "disabled", f"{name} is disabled: {disabled_reason}", "disabled")
    if spec is None:
        return Decision("deny", "unknown", f"there is no tool {name}", "unknown_tool")
    effects = spec.effects_of(arguments)
    grants: list[str] = []
    for part in policy.parts:
        verdict = _find_denial(part, spec, name, effects)
        if isinstance(verdict, Decision):
            return verdict
        grants.append(verdict)
    suspect = _suspect(policy, name, effects, runs, echoed, facts)
    if suspect is not None and suspect.decision == "deny":
        return suspect
    asked = suspect or _permission_question(policy, spec, effects)
    if any(part.dry_run for part in policy.parts) and (asked or effects & _TOUCHING):
        return Decision("deny", "dry_run", f"dry run: {name} was not called", "dry_run")
    if asked is None:
        return _allowed(policy, spec, grants[0], effects)
    if suspect is None and facts.consented is not None and effects <= facts.consented:
        bound = "" if spec.consent_argument is None else f" with this {spec.consent_argument}"
        reason = f"{name}{bound} was allowed{_purpose(effects)} for the rest of the session"
        return Decision("allow", "session_consent", reason)
    return asked


def permitted(policy: Policy, spec: ToolSpec) -> bool:
    """Return whether any call to this tool might be allowed, be it after approval.

    For listings and catalogs. Only `decide`, which sees the arguments, lets a call run.
    """
    return denial(policy, spec) is None


def denial(policy: Policy, spec: ToolSpec) -> Decision | None:
    """Return why no call to this tool can be allowed, None where one might be."""
    known = frozenset[Any]() if callable(spec.effects) else spec.effects
    for part in policy.parts:
        verdict = _find_denial(part, spec, spec.name, known)
        if isinstance(verdict, Decision):
            return verdict
    return None


def asks(policy: Policy, spec: ToolSpec) -> bool:
    """Return whether every call to this tool needs approval, however cleanly it is written. One
    whose effects depend on its arguments may have calls that need none."""
    known = frozenset[Any]() if callable(spec.effects) else spec.effects
    return _permission_question(policy, spec, known) is not None


def _find_denial(policy: Policy, spec: ToolSpec, name: str, effects: Effects) -> Decision | str:
    """Return why one policy denies a tool with these effects, or the rule that grants it."""
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
        if beyond := effects - preset.effects:
            listed = " and ".join(sorted(beyond)) + (" is" if len(beyond) == 1 else " are")
            return _not_allowed(grant, f"{name}: {listed} not granted by {grant}")
    if policy.local_only and "network" in effects:
        return _not_allowed("local_only", f"{name} may use the network, which local-only forbids")
    return grant


def _suspect(
    policy: Policy,
    name: str,
    effects: Effects,
    runs: Literal["freely", "with_approval"],
    echoed: bool,
    facts: Facts,
) -> Decision | None:
    """Return what this very call of an allowed tool raises: a denial, whoever would approve of it,
    or a question, which no standing consent answers; None where nothing is wrong with it."""
    network, mutates = "network" in effects, not MUTATING.isdisjoint(effects)
    after_read, read = "allow", f"{name} may use the network, and private data was read before"
    if facts.private_read and network:
        after_read = max((p.network_after_read for p in policy.parts), key=AFTER_READ.index)
    if facts.secrets and network:
        held = f"the arguments hold a secret ({', '.join(facts.secrets)})"
        return _not_allowed("secret", f"{held}, and {name} may use the network")
    if facts.placeholder and mutates:
        return _not_allowed(
            "placeholder",
            "the arguments hold a mark that stands for what was "
            f"taken out of an observation, and {name} can change things",
        )
    if after_read == "deny":
        return _not_allowed("network_after_read", read)
    echo = f"this call to {name} stands in an earlier observation"
    if echoed and mutates:
        return Decision("deny", "echoed", echo, "echoed_call")
    if facts.exceeded is not None:
        return facts.exceeded
    if facts.repeats_doubt and mutates:
        return _ask(IN_DOUBT, f"{name} was started with these arguments, and may have done that")
    if echoed:
        return _ask("echoed", echo)
    if runs == "with_approval":
        return _ask("unclean", f"the call to {name} was not written cleanly")
    return _ask("network_after_read", read) if after_read == "ask" else None


def _permission_question(policy: Policy, spec: ToolSpec, effects: Effects) -> Decision | None:
    """The question that every call of an allowed tool with these effects raises, or None."""
    name = spec.name
    for part in policy.parts:
        if pattern := first_match(part.ask, spec):
            return _ask(f"ask {pattern}", f"the policy asks before {name} runs")
    if spec.needs_approval:
        return _ask(_NEEDS_APPROVAL, f"{name} always needs approval")
    for part in policy.parts:
        if asking := effects.intersection(part.ask_effects):
            rule = f"{_ASK_EFFECTS}{', '.join(sorted(asking))}"
            return _ask(rule, f"{name} may {_may(asking)}, which is asked about first")
    return None


def can_be_preapproved(rule: str) -> bool:
    """Return whether a question, by its rule, is one that a standing yes may answer: only what the
    call may do, or the tool's own wish, raises it, and nothing is wrong with the call itself."""
    return rule == _NEEDS_APPROVAL or rule.startswith(_ASK_EFFECTS)


def _allowed(policy: Policy, spec: ToolSpec, grant: str, effects: Effects) -> Decision:
    """Return what is said of a call that nothing asks about: where its effects would have asked,
    what lets it through."""
    name = spec.name
    asking = {*ASK_EFFECTS, *(effect for part in policy.parts for effect in part.ask_effects)}
    if not effects & asking:
        return Decision("allow", grant, f"{name} is allowed by {grant}")
    reason = f"{name} is allowed{_purpose(effects)} unasked, by {grant} and policy.ask_effects"
    return Decision("allow", grant, reason)


def decide_by_template(template: ApprovalTemplate, spec: ToolSpec, effects: Effects) -> Decision:
    """The decision on a call that would have been asked about, and that a template covers."""
    reason = (
        f"{spec.name} has a standing yes{_purpose(effects)} until {template.expires_at}: "
        f"template {template.id}"
    )
    return Decision("allow", f"{TEMPLATE}{template.id}", reason)


_DOES: Final[Mapping[str, str]] = {
    "read": "read",
    "write": "write",
    "execute": "run programs",
    "network": "use the network",
}


def _may(effects: Effects) -> str:
    """Return what a call with these effects does, in words."""
    return " and ".join(words for effect, words in _DOES.items() if effect in effects)


def _purpose(effects: Effects) -> str:
    return f" to {_may(effects)}" if effects else ""


def _not_allowed(rule: str, reason: str) -> Decision:
    return Decision("deny", rule, reason, "not_allowed")


def _ask(rule: str, reason: str) -> Decision:
    return Decision("ask", rule, reason, "requires_confirmation")


# --- the facts of a call --------------------------------------------------------------------------


def exceeded_rate(
    policy: Policy, spec: ToolSpec, call_counts: RateCounts, timestamp: str
) -> Decision | None:
    """The denial by the rate of this policy that leaves no room for one more call of the tool, of
    several by the one that holds longest; None where there is room.

    ``call_counts`` are the calls that were let through, ``timestamp`` the time of the completion
    that the call stands in (ISO 8601, empty where it is not known).
    """
    found: list[tuple[str, str, FullRate]] = []
    for part in policy.parts:
        for pattern, text in part.rate_limits.items():
            own = (time for name, time in call_counts.values() if name == spec.name)
            if matches(pattern, spec) and (over := Rate.parse(text).full(own, timestamp)):
                told = f"{spec.name} was called {over.used} times, and may be {text}"
                found.append((f"rate_limit {pattern} {text}", told, over))
        text = part.session_rate_limit or ""
        every = (time for _, time in call_counts.values())
        if text and (over := Rate.parse(text).full(every, timestamp)):
            told = f"{over.used} calls were made in this session, and may be {text}"
            found.append((f"session_rate_limit {text}", told, over))
    if not found:
        return None
    rule, told, over = max(found, key=lambda one: one[2].again or _NEVER)
    return Decision("deny", rule, f"{told}; {over.when}", "rate_limited")


class SecretFinder(Protocol):
    """A search of a text: for secrets of known kinds, and for what stands in the place of
    one that was taken out. Pure."""

    def find_secrets(self, text: str, /) -> Sequence[SecretSpan]: ...
    def holds_placeholder(self, text: str, /) -> bool: ...


def facts_of(
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    finder: SecretFinder | None = None,
    *,
    consented: Effects | None = None,
    private_read: bool = False,
    repeats_doubt: bool = False,
    rate_denial: Decision | None = None,
) -> Facts:
    """The facts of a call with these arguments, which ``finder`` looks through; without one,
    `mlx_tools.policy.redact`.

    They are looked through only for a tool that might do what a find forbids: use the network with
    a secret, change something with a placeholder.
    """
    possible = spec.possible_effects | spec.effects_of(arguments)
    secrets: set[str] = set()
    placeholder = False
    if possible & _TOUCHING:
        from mlx_tools.policy import redact  # its table takes a while to read

        look: SecretFinder = redact if finder is None else finder
        if "network" in possible:
            texts = (one for text in _texts(arguments) for one in (text, *_undisguised(text)))
            secrets = {one.kind for text in texts for one in look.find_secrets(text)}
        if not MUTATING.isdisjoint(possible):
            placeholder = any(map(look.holds_placeholder, _texts(arguments)))
    return Facts(
        consented=consented,
        secrets=tuple(sorted(secrets)),
        placeholder=placeholder,
        private_read=private_read,
        repeats_doubt=repeats_doubt,
        exceeded=rate_denial,
    )


def _texts(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Every text in the arguments, names too, as it is; then all as one line of JSON, in which a
    value stands beside its name."""
    left: list[Any] = [arguments]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case Mapping() as mapping:
                left += chain.from_iterable(mapping.items())
            case list() | tuple() as items:
                left += items
    yield _compact(dict(arguments))


_GAP: Final = re.compile(r"(?:[\s+]|%(?:20|0[0-9ad]))+", re.IGNORECASE)
"""What divides words, in a URL too."""

_JOINED: Final = (2, 3, 4)
"""Pieces that a secret may have been divided into."""

_SHORT_PIECE: Final = 8
"""Characters of pieces of which there may be any number."""

_SHORTEST: Final = 16
"""Characters of the shortest secret that is looked for so."""

_MOST_JOINED: Final = 10_000
"""Characters of a text that is looked at so; a URL and a query have less."""


def _undisguised(text: str) -> Iterator[str]:
    """Yield what a text says to whoever reads wide letters as plain ones, leaves out what cannot
    be seen, and puts together again what was divided by blanks; nothing where that is the text
    itself."""
    plain = text
    if not text.isascii():
        seen = unicodedata.normalize("NFKC", text)
        plain = "".join(char for char in seen if unicodedata.category(char) != "Cf")
    if plain != text:
        yield plain
    pieces = [piece for piece in _GAP.split(plain) if piece] if len(plain) <= _MOST_JOINED else []
    joined = [
        "".join(pieces[at : at + size]) for size in _JOINED for at in range(len(pieces) - size + 1)
    ]
    for short, run in groupby(pieces, key=lambda piece: len(piece) <= _SHORT_PIECE):
        joined += ["".join(run)] if short else []
    if found := [one for one in joined if len(one) >= _SHORTEST]:
        yield "\n\n".join(found)


# --- seals: keyed digests, which show that a record is as it was written --------------------------
#
# The key is kept outside the transcript, so nobody who can only write transcripts can forge an
# approval, or give a session another policy.

_sorted: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def seal(
    secret: bytes,
    kind: Literal["approval", "call", "header", "pause", "template"],
    record: Mapping[str, Any],
) -> str:
    """The keyed digest of a record, given as JSON: 64 hexadecimal digits; its own ``seal`` is left
    out.

    So a denial cannot be turned into an approval, nor an approval of one call into one for the
    session, and a session keeps the header that it was begun with.
    """
    plain = {key: value for key, value in record.items() if key != "seal"}
    return hmac.digest(secret, _sorted([kind, plain]).encode(), hashlib.sha256).hex()


def same(digest: str, second: str) -> bool:
    """Return whether two digests are the same, in a time that does not tell where they differ."""
    one, two = (text.encode(errors="surrogatepass") for text in (digest, second))
    return hmac.compare_digest(one, two)
