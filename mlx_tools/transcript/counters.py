"""Counters of questions, completions and calls, read from records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Self

from msgspec import Struct, convert, field, to_builtins

from mlx_tools.transcript.call_history import index_calls
from mlx_tools.transcript.records import (
    REQUESTING_RECORDS,
    AnswerRecord,
    CompletionRecord,
    CorrectionRecord,
    PauseRecord,
    Record,
    RepairRecord,
    StoppedRecord,
    UserRecord,
    count_mends,
    find_last_state,
)


class _Sums(Struct, frozen=True):
    """Numbers, and numbers by name, that can be summed."""

    def __add__(self, second: Self) -> Self:
        names = self.__struct_fields__
        sums = {name: _sum(getattr(self, name), getattr(second, name)) for name in names}
        return type(self)(**sums)

    def to_json(self) -> dict[str, Any]:
        """Return the counters as JSON values."""
        return to_builtins(self)  # type: ignore[no-any-return]


def _sum(first: Any, second: Any) -> Any:
    if not isinstance(first, Mapping):
        return first + second
    both = {key: first[key] + second[key] for key in first if key in second}
    return {**first, **second, **both}


class ToolCounters(_Sums, frozen=True, kw_only=True):
    """Counters of the calls of one tool."""

    picked: int = 0
    """The number of calls that were read."""
    ran: int = 0
    """The number that were started. Those of them without an end are the remainder."""
    ok: int = 0
    """The number that ended with an output, out of the cache too."""
    failures: int = field(name="failed", default=0)
    """The number that were started and ended with an error."""
    refusals: int = field(name="refused", default=0)
    """The number that ended with an error and never ran: invalid, denied, or the like."""
    repaired: int = 0
    """The number that were read only after a repair."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """The number of both kinds of errors, by code."""
    repairs: Mapping[str, int] = field(default_factory=dict)
    """The number of repairs, by name."""
    duration_ms: int = 0
    """The time of the calls that ran to an end."""


class Counters(_Sums, frozen=True, kw_only=True):
    """Counters of one run, or of many."""

    questions: int = 0
    """The number of questions."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """Their ends: ``answered``, ``paused``, ``unfinished`` or the reason of a stop."""
    completions: int = 0
    """The number of completions for them."""
    requests: int = 0
    """The number of requests to the model, for completions and summaries."""
    duration_ms: int = 0
    """The time that the requests took."""
    prompt_tokens: int = 0
    """The tokens that its server reported, here and below."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    corrections: Mapping[str, int] = field(default_factory=dict)
    """Corrections and other hints that the model was given, by code."""
    repairs: Mapping[str, int] = field(default_factory=dict)
    """Repairs of calls and answers, by name."""
    mends: int = 0
    """The places where a turn was mended."""
    tools: Mapping[str, ToolCounters] = field(default_factory=dict)
    """The counters of each tool, by name. A name that no tool has was made up by the model."""


class CounterSum:
    """A sum of many counters, which are added in place."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = to_builtins(Counters())

    def add(self, counters: Counters) -> None:
        """Add the counters of a session."""
        _add_counters(self._sums, counters)

    @property
    def value(self) -> Counters:
        """The sum so far."""
        return convert(self._sums, Counters)


def _add_counters(sums: dict[str, Any], counters: _Sums) -> None:
    """Add counters to sums, which have the names of the JSON form."""
    for field_name, name in _JSON_NAMES[type(counters)]:
        value = getattr(counters, field_name)
        if not value:  # most are
            continue
        if isinstance(value, int):
            sums[name] += value
            continue
        by_name = sums[name]
        for key, one in value.items():
            if isinstance(one, int):
                by_name[key] = by_name.get(key, 0) + one
            else:
                _add_counters(by_name.setdefault(key, to_builtins(ToolCounters())), one)


_JSON_NAMES: Final[Mapping[type[_Sums], tuple[tuple[str, str], ...]]] = {
    kind: tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    for kind in (Counters, ToolCounters)
}
"""The names of the fields, each with the name in the JSON form."""


def count(records: Sequence[Record]) -> Counters:
    """Return the counters of some records: of one run, or of a whole transcript."""
    tools: dict[str, ToolCounters] = {}
    for call in index_calls(records).values():
        end, error, name = call.end, call.error, call.record.name
        ran = call.was_started and not (end is not None and end.cached)
        one = ToolCounters(
            picked=1,
            ran=int(ran),
            ok=int(end is not None and error is None),
            failures=int(ran and error is not None),
            refusals=int(not ran and error is not None),
            repaired=int(bool(call.repairs)),
            errors={error.code: 1} if error is not None else {},
            repairs=dict(Counter(call.repairs)),
            duration_ms=(end.duration_ms or 0) if end is not None and ran else 0,
        )
        tools[name] = tools[name] + one if name in tools else one
    corrections: Counter[str] = Counter(
        r.error.code for r in records if isinstance(r, CorrectionRecord)
    )
    asked = [r for r in records if isinstance(r, REQUESTING_RECORDS)]
    ends = _ends(records)
    return Counters(
        questions=sum(ends.values()),
        ends=ends,
        completions=sum(isinstance(r, CompletionRecord) for r in records),
        requests=sum(r.requests for r in asked),
        duration_ms=sum(r.duration_ms or 0 for r in asked),
        prompt_tokens=sum(r.usage.prompt_tokens or 0 for r in asked),
        cached_tokens=sum(r.usage.cached_tokens or 0 for r in asked),
        completion_tokens=sum(r.usage.completion_tokens or 0 for r in asked),
        corrections=dict(corrections),
        repairs=dict(Counter(r.name for r in records if isinstance(r, RepairRecord))),
        mends=count_mends(records),
        tools=tools,
    )


def _ends(records: Sequence[Record]) -> dict[str, int]:
    """Return the number of questions by their end."""
    starts = [i for i, r in enumerate(records) if isinstance(r, UserRecord)]
    ends: Counter[str] = Counter()
    for start, end in pairwise((*starts, len(records))):
        match find_last_state(records[start:end]):
            case AnswerRecord():
                ends["answered"] += 1
            case PauseRecord():
                ends["paused"] += 1
            case StoppedRecord(reason=reason):
                ends[reason] += 1
            case _:
                ends["unfinished"] += 1
    return dict(ends)
