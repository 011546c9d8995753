"""Differences between a recorded run and today's."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, get_args

from msgspec import Struct, field, to_builtins

from mlx_tools.messages import ErrorInfo
from mlx_tools.store import to_json
from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    CorrectionRecord,
    DecisionRecord,
    ObservationRecord,
    Record,
    RepairRecord,
    ResumedRecord,
    StoppedRecord,
)

Room = Literal["prompt", "reading", "policy", "tools", "outcome"]
"""The source of a difference: the words and turns that the model reads, how its text is read, the
decisions on its calls, the tools themselves, and the outcome of a question."""

ROOMS: Final[tuple[Room, ...]] = get_args(Room)

_MAX_DIFFERENCES: Final = 6
"""Differences of one run that are shown; the others are counted."""

_WIDTH: Final = 96
_LINES: Final = 12
"""Lines of a diff that are shown; the others are counted."""


class Difference(Struct, frozen=True):
    """One thing that is not as it was recorded."""

    room: Room
    subject: str = field(name="what")
    """The part that differs: "the prompt", "the decision"."""
    location: str = field(name="where")
    """The place in the run: "turn 2, call c1"."""
    was: str
    """The recorded text, empty if there was none."""
    now: str
    """The text now, empty if there is none."""

    def lines(self) -> list[str]:
        """Return the diff: lines that begin with ``-`` (recorded), ``+`` (now) or a blank."""
        shown = list(_diff(self.was, self.now))
        if len(shown) > _LINES:
            shown[_LINES:] = [f"  ({len(shown) - _LINES} lines more)"]
        return shown

    def to_json(self) -> dict[str, Any]:
        """Return the difference as ``--json`` prints it."""
        fields: dict[str, Any] = to_builtins(self)
        return fields | {"diff": self.lines()}


def difference_lines(differences: Sequence[Difference]) -> Iterator[str]:
    """Yield differences as lines for a person, each with its diff.

    If there are many, the first few are shown, with the number of the others.
    """
    for difference in differences[:_MAX_DIFFERENCES]:
        where = f" ({difference.location})" if difference.location else ""
        yield f"{difference.room}: {difference.subject}{where}"
        yield from (f"  {line}" for line in difference.lines())
    if len(differences) > _MAX_DIFFERENCES:
        yield f"and {len(differences) - _MAX_DIFFERENCES} more"


class SharedDifference(Struct, frozen=True):
    """Equal differences of several transcripts.

    Attributes:
        equal: the differences, at least one.
        names: the transcripts they are in, each once.
    """

    equal: tuple[Difference, ...]
    names: tuple[str, ...]

    @property
    def first(self) -> Difference:
        """The difference that stands for all."""
        return self.equal[0]


def share_differences(pairs: Iterable[tuple[str, Difference]]) -> list[SharedDifference]:
    """Group equal differences of several transcripts.

    Args:
        pairs: names of transcripts, each with a difference of it.

    Returns:
        One item for each change, those of most transcripts first. Differences are equal if room,
        subject and changed text are; the place in the run and the unchanged text around may differ.
    """
    groups: dict[tuple[str, ...], list[tuple[str, Difference]]] = {}
    for name, difference in pairs:
        lines = _changed_lines(difference.was, difference.now)
        changes = (f"{sign}{line}" for sign, line in lines if sign != " ")
        key = (difference.room, difference.subject, *changes)
        groups.setdefault(key, []).append((name, difference))
    shared = [
        SharedDifference(
            tuple(difference for _, difference in group), tuple(dict.fromkeys(n for n, _ in group))
        )
        for group in groups.values()
    ]
    return sorted(shared, key=lambda row: -len(row.names))


def _diff(was: str, now: str) -> Iterator[str]:
    """Yield the lines that differ, cut to their differences, with a line around them."""
    for sign, line in _changed_lines(was, now):
        yield f"{sign} {_cut(line)}"


def _changed_lines(was: str, now: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a diff: a sign (``-``, ``+``, or a blank) and the text."""
    old, new = was.split("\n"), now.split("\n")
    matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
    for group in matcher.get_grouped_opcodes(1):
        for kind, a, b, c, d in group:
            if kind == "equal":
                yield from ((" ", line) for line in old[a:b])
                continue
            removed, added = old[a:b], new[c:d]
            if len(removed) == len(added):
                pairs = [_cut_around(x, y) for x, y in zip(removed, added, strict=True)]
                removed, added = [x for x, _ in pairs], [y for _, y in pairs]
            if was:
                yield from (("-", line) for line in removed)
            if now:
                yield from (("+", line) for line in added)


def _cut_around(was: str, now: str) -> tuple[str, str]:
    """Cut both lines to the part that differs, and a little on each side of it."""
    shorter = min(len(was), len(now))
    start = next((i for i in range(shorter) if was[i] != now[i]), shorter)
    if max(len(was), len(now)) <= _WIDTH:
        return was, now
    end = next((i for i in range(shorter - start) if was[-1 - i] != now[-1 - i]), shorter - start)
    first = max(0, start - _WIDTH // 4)

    def part(line: str) -> str:
        last = min(len(line), max(len(line) - end + _WIDTH // 4, first + _WIDTH // 2))
        return ("…" if first else "") + line[first:last] + ("…" if last < len(line) else "")

    return part(was), part(now)


def _cut(line: str) -> str:
    return line if len(line) <= 2 * _WIDTH else line[: 2 * _WIDTH - 1] + "…"


# --- records and values as texts that a diff can show ---------------------------------------------

NAMES: Final = {
    "tool_call": "the call",
    "repair": "the repair",
    "decision": "the decision",
    "tool_observation": "the refusal",
    "correction": "the correction",
    "final_answer": "the answer",
    "stopped": "the end",
}


def text(value: Any) -> str:
    """Return a field's value as text: a text as it is, None as "", else JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, ErrorInfo):
        return f"{value.code}: {value.message}"
    if isinstance(value, tuple):
        return "\n".join(map(text, value))
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def as_text(record: Record) -> str:
    """Return a record as text for a diff: its fields, a line each."""
    return "\n".join(f"{key}: {text(value)}" for key, value in to_json(record).items())


# --- finding them -------------------------------------------------------------------------------


class Comparison:
    """A collection of differences.

    ``words_changed`` is True if the words of observations and corrections have changed since the
    recording. ``question`` and ``turn`` are the place of the replay.
    """

    def __init__(self, *, words_changed: bool) -> None:
        self.differences: list[Difference] = []
        self.question = 0
        self.turn = 0
        self.words_changed = words_changed

    def texts(
        self, room: Room, subject: str, was: str, now: str, location: Record | str | None = None
    ) -> None:
        """Compare two texts; ``location`` is the record, or the place, of both."""
        if was != now:
            where = location if isinstance(location, str) else self._location(location)
            self.differences.append(Difference(room, subject, where, was, now))

    def field(self, room: Room, subject: str, key: str, now: Record, was: Record) -> None:
        """Compare one field of two records."""
        before, after = getattr(was, key), getattr(now, key)
        if before != after:
            self.texts(room, subject, text(before), text(after), was)

    def record(
        self, now: Record | None, was: Record | None, other_calls: Collection[str] = ()
    ) -> None:
        """Compare two records, either of which may be missing.

        ``other_calls`` are calls that are now read in another way.
        """
        of = was if was is not None else now
        if of is None or now == was:
            return
        room = self._room(now, was, of)
        if room == "policy" and getattr(of, "call", None) in other_calls:
            room = "reading"  # the decision on a call depends on how the call is read
        before, after = ("" if record is None else as_text(record) for record in (was, now))
        self.texts(room, NAMES.get(of.type, "what follows"), before, after, of)

    def records(self, now: Sequence[Record], was: Sequence[Record]) -> None:
        """Compare the records that follow from a completion, each with the matching one."""
        pairs = list(_pair(now, was))
        other_calls = {
            record.call
            for pair in pairs
            if pair[0] != pair[1]
            for record in pair
            if isinstance(record, CallRecord)
            or (
                isinstance(record, ObservationRecord)
                and record.error is not None
                and record.error.code in _BY_READING
            )
        }
        for one, other in pairs:
            self.record(one, other, other_calls)

    def _room(self, now: Record | None, was: Record | None, compared: Record) -> Room:
        """Return the room that a difference between two records comes from.

        If the words of observations and corrections have changed, and a message differs but its
        code does not, the difference comes from the words.
        """
        error, other = (getattr(record, "error", None) for record in (now, was))
        same = error is not None and other is not None and error.code == other.code
        if same and self.words_changed:
            return "prompt"
        match compared:
            case DecisionRecord() | StoppedRecord(reason="repeated_call"):
                return "policy"  # the latter by the rule that at first refuses such a call
            case StoppedRecord():
                return "outcome"
            case ObservationRecord(error=info) if info is not None and info.code not in _BY_READING:
                return "policy"
        return "reading"

    def _location(self, record: Record | None) -> str:
        parts = [f"question {self.question}"] if self.question > 1 else []
        turn = getattr(record, "turn", None) or self.turn
        parts += [f"turn {turn}"] if record is not None and turn else []
        parts += [f"call {call}"] if (call := getattr(record, "call", None)) else []
        return ", ".join(parts)


# --- what followed from a completion, beside what would follow from it today ----------------------

_FOLLOWING: Final = (
    *(CallRecord, RepairRecord, DecisionRecord, ObservationRecord),
    *(CorrectionRecord, AnswerRecord, StoppedRecord),
)
"""The records that can follow from a completion."""

_BY_READING: Final = frozenset(
    ("invalid_json", "truncated_output", "unknown_tool", "invalid_arguments", "echoed_call")
)
"""Codes of faults that reading finds; the others are policy's."""


def alike(first: Record, second: Record) -> bool:
    """Return whether two records are of one kind, about one call."""
    return type(first) is type(second) and getattr(first, "call", None) == getattr(
        second, "call", None
    )


def find_following(records: Sequence[Record], start: int, now: Sequence[Record]) -> list[int]:
    """Return the places of the records that followed from a completion.

    They are those from ``start`` on that would follow as ``now`` today. Records of a later process
    in between are skipped.
    """
    after = range(start, len(records))
    places = [place for place in after if not isinstance(records[place], ResumedRecord)]
    first = places[: len(now)]
    if now and len(first) == len(now) and all(map(alike, now, (records[p] for p in first))):
        return first
    found: list[int] = []
    calls: set[str] = set()
    done: set[tuple[type[Record], str]] = set()
    for place in places:
        record = records[place]
        by_limit = (
            record.reason != "repeated_call"
            if isinstance(record, StoppedRecord)
            else isinstance(record, CorrectionRecord) and record.error.code == "iteration_limit"
        )
        if by_limit or not isinstance(record, _FOLLOWING):
            break
        if isinstance(record, CallRecord):
            calls.add(record.call)
        elif isinstance(record, DecisionRecord | ObservationRecord):
            if record.call not in calls or (type(record), record.call) in done:
                break
            done.add((type(record), record.call))
        found.append(place)
    return found


def _pair(
    now: Sequence[Record], was: Sequence[Record]
) -> Iterator[tuple[Record | None, Record | None]]:
    """Yield today's records, each with the matching recorded one, or None."""
    keys = [[(type(r).type, getattr(r, "call", None)) for r in records] for records in (now, was)]
    if keys[0] == keys[1]:
        yield from zip(now, was, strict=True)
        return
    matcher = difflib.SequenceMatcher(a=keys[0], b=keys[1], autojunk=False)
    for _, a, b, c, d in matcher.get_opcodes():
        for step in range(max(b - a, d - c)):
            one = now[a + step] if a + step < b else None
            other = was[c + step] if c + step < d else None
            yield one, other
