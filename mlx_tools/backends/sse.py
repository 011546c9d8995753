"""Server-sent events, from bytes as they come. Pure, and bounded in memory.

Follows the event-stream grammar of the HTML standard (section 9.2.6), with two differences that
guard against a peer that is no event stream: a line that is no field is an error and not skipped,
and a line or an event over the limit is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_EVENT: Final = 1 << 20
"""Bytes in a line, and in one event's data. The longest honest event is a few kilobytes."""

_FIELDS: Final = frozenset((b"data", b"event", b"id", b"retry"))


class NotEvents(ValueError):
    """What came is no event stream; says why."""


class EventReader:
    """Cuts a stream into the data of its events.

    Bytes may be split anywhere, also within a character or between ``\\r`` and ``\\n``.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first = True
        self.silent = True
        """Whether nothing at all has come yet."""

    def feed(self, piece: bytes) -> Iterator[str]:
        """Take the next bytes; give the data of each event they complete, one by one.

        Raises:
            NotEvents: a line is no field, too long, or not UTF-8; the events before it were given.
        """
        if not piece:
            return
        self.silent = False
        ends_in_cr = piece.endswith(b"\r")
        if self._after_cr and piece[:1] == b"\n":
            piece = piece[1:]
        self._after_cr = ends_in_cr
        for line in piece.splitlines(keepends=True):
            self._line += line
            if len(self._line) > MAX_EVENT:
                raise NotEvents(f"a line is longer than {MAX_EVENT} bytes")
            if line.endswith((b"\n", b"\r")):
                yield from self._end_line()

    def finish(self) -> Iterator[str]:
        """The stream has ended: give the event that its last line leaves open, if there is one.

        Raises:
            NotEvents: as for `feed`; half a character at the very end is such a case.
        """
        if self._line:
            yield from self._end_line()
        yield from self._end_event()

    def _end_line(self) -> Iterator[str]:
        line = bytes(self._line).rstrip(b"\r\n")
        self._line.clear()
        if self._first:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._first = False
        if not line:
            yield from self._end_event()
            return
        name, colon, value = line.partition(b":")
        if colon and not name:
            return  # a comment: a keep-alive
        if name not in _FIELDS:
            shown = line[:60].decode("utf-8", "backslashreplace")
            raise NotEvents(f"{shown!r} is no line of an event stream")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value) + 1  # an empty line takes room too
            if self._size > MAX_EVENT:
                raise NotEvents(f"an event is longer than {MAX_EVENT} bytes")

    def _end_event(self) -> Iterator[str]:
        if not self._data:
            return
        data = b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        try:
            yield data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NotEvents("an event is not UTF-8, or ends within a character") from error
