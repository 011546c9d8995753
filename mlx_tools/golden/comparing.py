"""Finds what differs between a recorded run and today's, and says where."""

from __future__ import annotations

from collections.abc import Collection

from mlx_tools.golden.difference import Difference, Room
from mlx_tools.golden.texts import NAMES, shown, text
from mlx_tools.golden.turns import room_of
from mlx_tools.transcript.records import Record


class Comparing:
    """Collects differences. ``words_changed``: the words of observations and corrections are
    others than when it was recorded. ``question`` and ``turn`` are where the replay stands."""

    def __init__(self, *, words_changed: bool) -> None:
        self.found: list[Difference] = []
        self.question = 0
        self.turn = 0
        self.words_changed = words_changed

    def texts(
        self, room: Room, what: str, was: str, now: str, at: Record | str | None = None
    ) -> None:
        """Compares two texts; ``at`` is the record, or the place, that they are of."""
        if was != now:
            where = at if isinstance(at, str) else self._where(at)
            self.found.append(Difference(room, what, where, was, now))

    def field(self, room: Room, what: str, key: str, now: Record, was: Record) -> None:
        """Compares one field of two records."""
        before, after = getattr(was, key), getattr(now, key)
        if before != after:
            self.texts(room, what, text(before), text(after), was)

    def records(
        self, now: Record | None, was: Record | None, other_calls: Collection[str] = ()
    ) -> None:
        """Compares two records; None where there is none. ``other_calls`` are read otherwise."""
        of = was if was is not None else now
        if of is None or now == was:
            return
        room = room_of(now, was, words_changed=self.words_changed)
        if room == "policy" and getattr(of, "call", None) in other_calls:
            room = "reading"  # what is decided of a call follows from how it is read
        before, after = ("" if record is None else shown(record) for record in (was, now))
        self.texts(room, NAMES.get(of.type, "what follows"), before, after, of)

    def _where(self, record: Record | None) -> str:
        parts = [f"question {self.question}"] if self.question > 1 else []
        turn = getattr(record, "turn", None) or self.turn
        parts += [f"turn {turn}"] if record is not None and turn else []
        parts += [f"call {call}"] if (call := getattr(record, "call", None)) else []
        return ", ".join(parts)
