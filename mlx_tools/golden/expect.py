"""What a live check wants of a question's outcome, and what of it was not so.

An expectation is a JSON object; every key may be left out:

* ``status``: ``answered``, ``paused`` or ``stopped``; without it, as it was recorded.
* ``calls``: a list with an object a call, ``name`` and ``arguments`` each a matcher
  (`mlx_tools.golden.match`); without it, the recorded calls with their very arguments.
* ``any_order``: the calls may come in any order. ``more``: further calls may be among them.
* ``answer`` and ``reason``: matchers; without them, anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.golden.difference import Difference
from mlx_tools.golden.match import Matcher
from mlx_tools.transcript.outcome import outcome_of
from mlx_tools.transcript.records import Header, Record, UserRecord

_KEYS: Final = frozenset(("status", "calls", "any_order", "more", "answer", "reason"))
_STATUSES: Final = ("answered", "paused", "stopped")


class ExpectedCall:
    """A call that should be made. Raises `UsageError` for what is none."""

    def __init__(self, wanted: Any) -> None:
        if not isinstance(wanted, Mapping) or not set(wanted) <= {"name", "arguments"}:
            raise UsageError(
                f"this is no expected call: {json.dumps(wanted)[:200]}",
                hint='write {"name": matcher, "arguments": matcher}',
            )
        self.wanted = wanted
        self._name = Matcher(wanted.get("name", {"anything": True}))
        self._arguments = Matcher(wanted.get("arguments", {"anything": True}))

    def fits(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a call is the one that should be made."""
        return self._name.fits(name) and self._arguments.fits(arguments)


class Expectation:
    """What is wanted of one question. ``recorded`` is the outcome that it had when it was recorded
    (`mlx_tools.golden.expect`). Raises `UsageError` for what is no expectation."""

    def __init__(self, wanted: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
        if not isinstance(wanted, Mapping) or (unknown := sorted(set(wanted) - _KEYS)):
            raise UsageError(
                f"an expectation has no {unknown[0]!r}" if wanted else "this is no expectation",
                hint=f"it may have {', '.join(sorted(_KEYS))}",
            )
        self.status = wanted.get("status", recorded.get("status", "answered"))
        if self.status not in _STATUSES:
            raise UsageError(
                f"an expectation's status is no {self.status!r}", hint=", ".join(_STATUSES)
            )
        calls = wanted.get("calls")
        if calls is None:
            calls = [
                {"name": {"exact": call["name"]}, "arguments": {"exact": call["arguments"]}}
                for call in recorded.get("calls", ())
            ]
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise UsageError("an expectation's calls are a list")
        self.calls = [ExpectedCall(call) for call in calls]
        self._any_order = bool(wanted.get("any_order", False))
        self._more = bool(wanted.get("more", False))
        self._texts = {key: Matcher(wanted[key]) for key in ("answer", "reason") if key in wanted}

    def differences(self, outcome: Mapping[str, Any], where: str = "") -> list[Difference]:
        """What of an outcome is not as it should be."""
        found = []
        made = [(call["name"], call["arguments"]) for call in outcome.get("calls", ())]
        if not self._made(made):
            wanted = "\n".join(_line(call.wanted) for call in self.calls)
            calls = "\n".join(_line({"name": n, "arguments": a}) for n, a in made)
            found.append(Difference("outcome", "the calls", where, wanted, calls))
        status = outcome.get("status", "")
        if status != self.status:
            said = f"{status}: {reason}" if (reason := outcome.get("reason")) else str(status)
            found.append(Difference("outcome", "the status", where, self.status, said))
        for key, matcher in self._texts.items():
            value = outcome.get(key)
            if not matcher.fits(value):
                said = "" if value is None else str(value)
                found.append(Difference("outcome", f"the {key}", where, str(matcher), said))
        return found

    def _made(self, made: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
        """Whether the calls are those that should be made."""
        if len(made) < len(self.calls) or (len(made) > len(self.calls) and not self._more):
            return False
        if self._any_order:
            return _matched(self.calls, made)
        if self._more:
            rest = iter(made)
            return all(any(call.fits(*one) for one in rest) for call in self.calls)
        return all(call.fits(*one) for call, one in zip(self.calls, made, strict=True))


def expectations(
    expect: Sequence[Mapping[str, Any]], outcomes: Sequence[Mapping[str, Any]]
) -> list[Expectation]:
    """An expectation for each recorded question. Raises `UsageError`."""
    if len(expect) > len(outcomes):
        raise UsageError(f"there are {len(expect)} expectations for {len(outcomes)} questions")
    wanted = [*expect, *({} for _ in outcomes[len(expect) :])]
    return [Expectation(one, recorded) for one, recorded in zip(wanted, outcomes, strict=True)]


def _matched(calls: Sequence[ExpectedCall], made: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """Whether each expected call has a call of its own (a matching in a bipartite graph)."""
    fits = [[n for n, one in enumerate(made) if call.fits(*one)] for call in calls]
    taken: dict[int, int] = {}

    def place(call: int, seen: set[int]) -> bool:
        for one in fits[call]:
            if one not in seen:
                seen.add(one)
                if one not in taken or place(taken[one], seen):
                    taken[one] = call
                    return True
        return False

    return all(place(call, set()) for call in range(len(calls)))


def _line(call: Mapping[str, Any]) -> str:
    return json.dumps(call, ensure_ascii=False, sort_keys=True)


# --- what the questions came to -----------------------------------------------------------------

_KEPT: Final = ("status", "answer", "reason", "turns", "sources", "repairs", "strategy")
_OF_CALLS: Final = (
    *("id", "name", "arguments", "status", "repairs"),
    *("output_size_chars", "error_code", "error_preview"),
)
UNFINISHED: Final = "unfinished"
"""The status of a question that has not come to rest."""


def outcomes_of(header: Header, records: Sequence[Record]) -> tuple[Mapping[str, Any], ...]:
    """An object a question, in their order."""
    starts = [i for i, record in enumerate(records) if isinstance(record, UserRecord)]
    ends = [*starts[1:], len(records)]
    return tuple(
        _outcome(header, records[start:end]) for start, end in zip(starts, ends, strict=True)
    )


def _outcome(header: Header, run: Sequence[Record]) -> Mapping[str, Any]:
    try:
        whole = outcome_of((header, *run)).to_json()
    except TranscriptError:
        return {"status": UNFINISHED}
    calls = [{key: call[key] for key in _OF_CALLS} for call in whole["calls"]]
    waiting = [{key: call[key] for key in ("call_id", "name")} for call in whole["pending"]]
    own = {key: whole[key] for key in _KEPT if whole[key] not in (None, [], {})}
    own |= {"mends": whole["mends"]} if whole["mends"] else {}
    return own | {"calls": calls} | ({"pending": waiting} if waiting else {})
