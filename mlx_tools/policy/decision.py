"""Decide whether a call may run: allow, ask or deny, by which rule, and why.

Pure: the same policy, tool, call and facts always give the same decision. A call that no rule
allows is denied, and deny rules come before all others.
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

_MUTATING_OR_NETWORK: Final[Effects] = MUTATING | {"network"}
"""Effects that no call has in a dry run."""

_NEEDS_APPROVAL: Final = "needs_approval"
_ASK_EFFECTS: Final = "ask_effects "
TEMPLATE: Final = "template "
"""Beginnings of the names of three rules: the tool asks, its effects ask, a template allows."""

IN_DOUBT: Final = "in_doubt"
"""The rule that asks about a call that was started before and whose end is unknown."""

_NEVER: Final = datetime(MAXYEAR, 12, 31, tzinfo=UTC)
_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Decision(Struct, frozen=True):
    """The policy's decision on a call."""

    decision: Literal["allow", "ask", "deny"]
    rule: str
    """The name of the rule that decided."""
    reason: str
    """The reason, in words."""
    code: ErrorCode | None = None
    """The error of a denied call, ``requires_confirmation`` for ask, None for allow."""


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of one call besides its name and its arguments."""

    consented: Effects | None = None
    """Effects that a person allowed for the rest of the session, None without consent."""
    secrets: tuple[str, ...] = ()
    """The kinds of secrets in the arguments, never the values."""
    placeholder: bool = False
    """True if the arguments hold a placeholder of a redacted secret."""
    private_read: bool = False
    """True if a private tool has answered in this session."""
    repeats_doubt: bool = False
    """True if the same call was started before and its end is unknown."""
    rate_denial: Decision | None = None
    """The denial by a rate limit that leaves no room for the call."""


_NO_FACTS: Final = Facts()


def decide(
    policy: Policy,
    spec: ToolSpec | None,
    name: str,
    arguments: Mapping[str, Any],
    *,
    runs: Literal["freely", "with_approval"],
    echoed: bool = False,
    disabled_reason: str | None = None,
    facts: Facts = _NO_FACTS,
) -> Decision:
    """Decide about one call whose arguments were validated.

    The rules apply in this order; the first that matches wins.

    1. The tool is disabled or unknown.
    2. The name is denied or not allowed, the effects exceed the grant, or local-only mode forbids
       the network.
    3. The call is suspect: a secret for the network, a placeholder in a call that can change
       things, network use after a private read, an echoed call that can change things, an exceeded
       rate.
    4. A dry run.
    5. A question, first about a call that repeats one in doubt.
    6. Allowed.

    All deny rules come before ask rules. A call can be let through although its effects usually
    ask. Its decision names the rule that allowed it and, in its reason, those effects.

    Args:
        policy: the rules, with all policies that narrow them.
        spec: the tool's specification, None if no tool has this name.
        name: the name as the model wrote it, perhaps an alias.
        arguments: the validated arguments.
        runs: ``with_approval`` if the call was not written cleanly (reading rule 9).
        echoed: the call is a copy of one in an earlier observation (reading rule 12).
        disabled_reason: the reason why the tool is switched off or cannot work, None if it can.
        facts: what else is known about the call.
    """
    if disabled_reason is not None:
        return Decision("deny", "disabled", f"{name} is disabled: {disabled_reason}", "disabled")
    if spec is None:
        return Decision("deny", "unknown", f"there is no tool {name}", "unknown_tool")
    effects = spec.get_effects(arguments)
    grants: list[str] = []
    for part in policy.parts:
        verdict = _check_part(part, spec, name, effects)
        if isinstance(verdict, Decision):
            return verdict
        grants.append(verdict)
    suspect = _find_suspicion(policy, name, effects, runs, echoed, facts)
    if suspect is not None and suspect.decision == "deny":
        return suspect
    question = suspect or _find_question(policy, spec, effects)
    if any(part.dry_run for part in policy.parts) and (question or effects & _MUTATING_OR_NETWORK):
        return Decision("deny", "dry_run", f"dry run: {name} was not called", "dry_run")
    if question is None:
        return _allow(policy, spec, grants[0], effects)
    if suspect is None and facts.consented is not None and effects <= facts.consented:
        bound = "" if spec.consent_argument is None else f" with this {spec.consent_argument}"
        reason = (
            f"{name}{bound} was allowed{_describe_purpose(effects)} for the rest of the session"
        )
        return Decision("allow", "session_consent", reason)
    return question


def can_be_allowed(policy: Policy, spec: ToolSpec) -> bool:
    """Return whether some call to this tool might be allowed, perhaps after approval.

    For listings and catalogs only: `decide` also sees the arguments.
    """
    return find_denial(policy, spec) is None


def find_denial(policy: Policy, spec: ToolSpec) -> Decision | None:
    """Return the reason why no call to this tool can be allowed, or None."""
    effects = frozenset[Any]() if callable(spec.effects) else spec.effects
    for part in policy.parts:
        verdict = _check_part(part, spec, spec.name, effects)
        if isinstance(verdict, Decision):
            return verdict
    return None


def always_asks(policy: Policy, spec: ToolSpec) -> bool:
    """Return whether every call to this tool needs approval.

    If the effects of a tool depend on its arguments, some calls may need none.
    """
    effects = frozenset[Any]() if callable(spec.effects) else spec.effects
    return _find_question(policy, spec, effects) is not None


def _check_part(policy: Policy, spec: ToolSpec, name: str, effects: Effects) -> Decision | str:
    """Return one policy's denial of a tool with these effects, or the grant's rule."""
    denied = first_match(policy.deny, spec)
    if denied is None and name != spec.name and name in policy.deny:
        denied = name
    if denied is not None:
        return _deny(f"deny {denied}", f"{name} is denied by the policy")
    allowed = first_match(policy.allow, spec)
    grant = f"allow {allowed}"
    if allowed is None:
        preset = PRESETS[policy.preset] if policy.preset is not None else None
        if preset is None or not preset.has_tool(spec):
            return _deny("default", f"{name} is not among the allowed tools")
        grant = f"preset {preset.name}"
        if beyond := effects - preset.effects:
            listed = " and ".join(sorted(beyond)) + (" is" if len(beyond) == 1 else " are")
            return _deny(grant, f"{name}: {listed} not granted by {grant}")
    if policy.local_only and "network" in effects:
        return _deny("local_only", f"{name} may use the network, which local-only forbids")
    return grant


def _find_suspicion(
    policy: Policy,
    name: str,
    effects: Effects,
    runs: Literal["freely", "with_approval"],
    echoed: bool,
    facts: Facts,
) -> Decision | None:
    """Return the denial or question about a suspicious call, or None.

    An approval does not change such a denial, and an earlier consent does not answer such a
    question. Permissions are not checked here.
    """
    network, mutates = "network" in effects, not MUTATING.isdisjoint(effects)
    after_read, read = "allow", f"{name} may use the network, and private data was read before"
    if facts.private_read and network:
        # The strictest policy of all that narrow this one decides.
        after_read = max((p.network_after_read for p in policy.parts), key=AFTER_READ.index)
    if facts.secrets and network:
        secrets_text = f"the arguments hold a secret ({', '.join(facts.secrets)})"
        return _deny("secret", f"{secrets_text}, and {name} may use the network")
    if facts.placeholder and mutates:
        return _deny(
            "placeholder",
            "the arguments hold a mark that stands for what was "
            f"taken out of an observation, and {name} can change things",
        )
    if after_read == "deny":
        return _deny("network_after_read", read)
    echo = f"this call to {name} stands in an earlier observation"
    if echoed and mutates:
        return Decision("deny", "echoed", echo, "echoed_call")
    if facts.rate_denial is not None:
        return facts.rate_denial
    # Questions come last: no question may be answered for a call that is denied anyway.
    if facts.repeats_doubt and mutates:
        return _ask(IN_DOUBT, f"{name} was started with these arguments, and may have done that")
    if echoed:
        return _ask("echoed", echo)
    if runs == "with_approval":
        return _ask("unclean", f"the call to {name} was not written cleanly")
    return _ask("network_after_read", read) if after_read == "ask" else None


def _find_question(policy: Policy, spec: ToolSpec, effects: Effects) -> Decision | None:
    """Return the question that every call with these effects raises, or None."""
    name = spec.name
    for part in policy.parts:
        if pattern := first_match(part.ask, spec):
            return _ask(f"ask {pattern}", f"the policy asks before {name} runs")
    if spec.needs_approval:
        return _ask(_NEEDS_APPROVAL, f"{name} always needs approval")
    for part in policy.parts:
        if asking := effects.intersection(part.ask_effects):
            rule = f"{_ASK_EFFECTS}{', '.join(sorted(asking))}"
            return _ask(rule, f"{name} may {_describe_effects(asking)}, which is asked about first")
    return None


def can_be_preapproved(rule: str) -> bool:
    """Return whether an approval in advance can answer a question.

    It can if the tool or the effects of the call raise the question. It cannot if something is
    suspicious in the call itself.

    Args:
        rule: the rule of the question.
    """
    return rule == _NEEDS_APPROVAL or rule.startswith(_ASK_EFFECTS)


def _allow(policy: Policy, spec: ToolSpec, grant: str, effects: Effects) -> Decision:
    """Return the decision on an allowed call.

    If its effects usually need an approval, the reason says why this call needs none.
    """
    name = spec.name
    asking = {*ASK_EFFECTS, *(effect for part in policy.parts for effect in part.ask_effects)}
    if not effects & asking:
        return Decision("allow", grant, f"{name} is allowed by {grant}")
    reason = (
        f"{name} is allowed{_describe_purpose(effects)} unasked, by {grant} and policy.ask_effects"
    )
    return Decision("allow", grant, reason)


def decide_by_template(template: ApprovalTemplate, spec: ToolSpec, effects: Effects) -> Decision:
    """Return the decision on a call that a template approves instead of a person."""
    reason = (
        f"{spec.name} is approved{_describe_purpose(effects)} until {template.expires_at}, "
        f"by template {template.id}"
    )
    return Decision("allow", f"{TEMPLATE}{template.id}", reason)


_DOES: Final[Mapping[str, str]] = {
    "read": "read",
    "write": "write",
    "execute": "run programs",
    "network": "use the network",
}


def _describe_effects(effects: Effects) -> str:
    """Return in words what a call with these effects does."""
    return " and ".join(words for effect, words in _DOES.items() if effect in effects)


def _describe_purpose(effects: Effects) -> str:
    return f" to {_describe_effects(effects)}" if effects else ""


def _deny(rule: str, reason: str) -> Decision:
    return Decision("deny", rule, reason, "not_allowed")


def _ask(rule: str, reason: str) -> Decision:
    return Decision("ask", rule, reason, "requires_confirmation")


# --- the facts of a call --------------------------------------------------------------------------


def find_exceeded_rate(
    policy: Policy, spec: ToolSpec, call_counts: RateCounts, timestamp: str
) -> Decision | None:
    """Return the denial by a rate limit that leaves no room for one more call.

    If several rates are exceeded, it names the one that lasts longest. None if there is room.

    Args:
        policy: the policy with the rates.
        spec: the tool that is called.
        call_counts: the allowed calls so far.
        timestamp: the time of the completion with the call (ISO 8601, empty if unknown).
    """
    denials: list[tuple[str, str, FullRate]] = []
    for part in policy.parts:
        for pattern, text in part.rate_limits.items():
            tool_times = (time for name, time in call_counts.values() if name == spec.name)
            if matches(pattern, spec) and (
                full_rate := Rate.parse(text).find_full(tool_times, timestamp)
            ):
                reason = f"{spec.name} was called {full_rate.used_calls} times, and may be {text}"
                denials.append((f"rate_limit {pattern} {text}", reason, full_rate))
        text = part.session_rate_limit or ""
        all_times = (time for _, time in call_counts.values())
        if text and (full_rate := Rate.parse(text).find_full(all_times, timestamp)):
            reason = f"{full_rate.used_calls} calls were made in this session, and may be {text}"
            denials.append((f"session_rate_limit {text}", reason, full_rate))
    if not denials:
        return None
    rule, reason, full_rate = max(denials, key=lambda denial: denial[2].available_at or _NEVER)
    return Decision("deny", rule, f"{reason}; {full_rate.describe_end()}", "rate_limited")


class SecretFinder(Protocol):
    """A search for secrets and for placeholders of redacted secrets. Pure."""

    def find_secrets(self, text: str, /) -> Sequence[SecretSpan]: ...
    def holds_placeholder(self, text: str, /) -> bool: ...


def collect_facts(
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    finder: SecretFinder | None = None,
    *,
    consented: Effects | None = None,
    private_read: bool = False,
    repeats_doubt: bool = False,
    rate_denial: Decision | None = None,
) -> Facts:
    """Return the facts of a call with these arguments.

    The arguments are searched only if the tool might do what a match forbids: use the network with
    a secret, or change something with a placeholder.

    Args:
        spec: the tool that is called.
        arguments: the validated arguments.
        finder: the search for secrets, `mlx_tools.policy.redact` if None.
        consented: effects that a person allowed for the rest of the session.
        private_read: a private tool has answered in this session.
        repeats_doubt: the same call was started before and its end is unknown.
        rate_denial: the denial by an exceeded rate limit.
    """
    possible = spec.possible_effects | spec.get_effects(arguments)
    secrets: set[str] = set()
    placeholder = False
    if possible & _MUTATING_OR_NETWORK:
        from mlx_tools.policy import redact  # its table takes a while to read

        secret_finder: SecretFinder = redact if finder is None else finder
        if "network" in possible:
            texts = (form for text in _iter_texts(arguments) for form in (text, *_undisguise(text)))
            secrets = {span.kind for text in texts for span in secret_finder.find_secrets(text)}
        if not MUTATING.isdisjoint(possible):
            placeholder = any(map(secret_finder.holds_placeholder, _iter_texts(arguments)))
    return Facts(
        consented=consented,
        secrets=tuple(sorted(secrets)),
        placeholder=placeholder,
        private_read=private_read,
        repeats_doubt=repeats_doubt,
        rate_denial=rate_denial,
    )


def _iter_texts(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield each text in the arguments, then all arguments as one line of JSON.

    Names of arguments are texts too. In the line of JSON a value is next to its name, because some
    secrets are only recognised by a name.
    """
    pending: list[Any] = [arguments]
    while pending:
        match pending.pop():
            case str() as text:
                yield text
            case Mapping() as mapping:
                pending += chain.from_iterable(mapping.items())
            case list() | tuple() as items:
                pending += items
    yield _compact(dict(arguments))


_GAP: Final = re.compile(r"(?:[\s+]|%(?:20|0[0-9ad]))+", re.IGNORECASE)
"""Blanks between words, also as a URL encodes them."""

_JOINED_PIECES: Final = (2, 3, 4)
"""Numbers of neighbouring pieces that are joined: a key is usually shown in two to four blocks."""

_MAX_SHORT_PIECE: Final = 8
"""Characters of a short piece. Short pieces are joined in any number: blocks of 4 or 8 are how
people and programs write keys."""

_MIN_SECRET_CHARS: Final = 16
"""Characters of the shortest joined text that is searched: a choice. Shorter ones are mostly two
everyday words, and keys are longer."""

_MAX_JOINED_CHARS: Final = 10_000
"""Characters of the longest text whose pieces are joined. URLs and search queries, the ways out,
are shorter, and joined pieces are up to ten times the text."""


def _undisguise(text: str) -> Iterator[str]:
    """Yield other forms of a text, in which a disguised secret is visible.

    The first has plain letters in place of wide ones, and no invisible characters. The second has
    the pieces between blanks joined.
    """
    plain = text
    if not text.isascii():
        # NFKC converts wide and mathematical letters to plain ones. Invisible characters have the
        # category Cf.
        normalized = unicodedata.normalize("NFKC", text)
        plain = "".join(char for char in normalized if unicodedata.category(char) != "Cf")
    if plain != text:
        yield plain
    pieces = (
        [piece for piece in _GAP.split(plain) if piece] if len(plain) <= _MAX_JOINED_CHARS else []
    )
    candidates = [
        "".join(pieces[start : start + size])
        for size in _JOINED_PIECES
        for start in range(len(pieces) - size + 1)
    ]
    for short, run in groupby(pieces, key=lambda piece: len(piece) <= _MAX_SHORT_PIECE):
        candidates += ["".join(run)] if short else []
    if long_enough := [
        candidate for candidate in candidates if len(candidate) >= _MIN_SECRET_CHARS
    ]:
        yield "\n\n".join(long_enough)


# --- seals: keyed digests, which show that a record was not changed -------------------------------
#
# The key is stored outside of the transcript. So a program that can only write transcripts cannot
# forge an approval, or give a session another policy.

_sorted: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def seal(
    secret: bytes,
    kind: Literal["approval", "call", "header", "pause", "template"],
    record: Mapping[str, Any],
) -> str:
    """Return the keyed digest of a record as 64 hexadecimal digits.

    The record's own ``seal`` is left out. The kind is part of the digest, so a seal is not valid
    for another kind of record. A denial cannot become an approval, and the approval of one call
    cannot become one for the session.

    Args:
        secret: the key, kept outside the transcript.
        kind: the kind of record.
        record: the record as JSON values.
    """
    plain = {key: value for key, value in record.items() if key != "seal"}
    return hmac.digest(secret, _sorted([kind, plain]).encode(), hashlib.sha256).hex()


def equal_digests(digest: str, second: str) -> bool:
    """Compare two digests in constant time."""
    first_bytes, second_bytes = (text.encode(errors="surrogatepass") for text in (digest, second))
    return hmac.compare_digest(first_bytes, second_bytes)
