"""Replace secrets, and paths if asked, by placeholders such as ``[redacted:jwt]``.

The same text gives the same result, whole or in pieces. A text is cut into *units*, stretches
without blanks and quotes. Each unit is judged once, by itself and by the text before it. The cuts
depend on the text alone, never on the pieces. So a streamed text and a whole one give the same
matches, and the work is linear in the text.

A unit longer than `WINDOW` is judged in windows that overlap. Key blocks (``-----BEGIN … PRIVATE
KEY-----``) run over many units: all is secret from their first line until their last, or until the
text is no key any more.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Final

from msgspec import Struct

from mlx_tools.errors import UsageError
from mlx_tools.policy.secret_kinds import (
    CONTEXT,
    CONTEXT_KINDS,
    KIND_NAMES,
    PATH,
    TOKEN_KINDS,
    SecretSpan,
    compile_kinds,
    find_in_context,
)

WINDOW: Final = 24_576
"""Characters of a unit that are judged at once, and so the most that is held back of a stream.
Three times `OVERLAP`: a window of twice as many would hold back more, a shorter one judge more text
twice."""
OVERLAP: Final = 8192
"""Characters that two windows share: a secret up to this length is seen whole. No kind needs as
many to be recognized: a JWT has up to 8,007 before its signature. A longer one is redacted from its
beginning to where the characters of such secrets end."""
MAX_KEY_OFFSET: Final = 1200
"""Characters after the first line of a key that are searched for the key: headers such as
``Proc-Type`` and ``DEK-Info`` come between."""
MAX_FIRST_LINE_CHARS: Final = 160
"""Characters of the longest first line of a key: `_BLOCK` matches none longer."""
DEPTH: Final = 3
"""Encodings within one another that are decoded: base64 within JSON within a URL. Each level costs
a search of its own."""

_MIN_UNIT_CHARS: Final = 6
"""Characters of the shortest unit that is judged. A choice: shorter passwords are words or numbers.
"""
_MIN_TOKEN_CHARS: Final = 16
"""Characters of the shortest unit that is searched for tokens; shorter ones are judged by name
only."""
_UNIT: Final = r"[!#-&(-;=?-_a-~À-ɏ]"
_NEXT = re.compile(rf"{_UNIT}{{{_MIN_UNIT_CHARS},{WINDOW + 1}}}|(?<=---- )BEGIN")
_RUN = re.compile(rf"{_UNIT}{{1,{WINDOW + 1}}}")
_SHORT_REST = re.compile(rf"{_UNIT}{{0,{_MIN_UNIT_CHARS - 1}}}\Z")
_LINE_LENGTH: Final = 60
"""Characters of a line of base64 that may go on in the next: PEM wraps at 64, MIME at 76."""
_LINE = re.compile(rf"[A-Za-z0-9+/]{{{_LINE_LENGTH}}}")
_BREAK = re.compile(r"\r?\n(?=[A-Za-z0-9+/])")
_MAY_BREAK = re.compile(r"\r?\n?\Z")
_TELLING = re.compile(r"[0-9!@#$%^&*?~+=]|[a-z][A-Z]")
_SWALLOWED = re.compile(r"[A-Za-z0-9+/=_.~%\\\r\n-]+")

_MARK = re.compile(r"-----BEGIN|Private-Lines:")
_BLOCK = re.compile(
    r"(?:-----)?BEGIN[ +A-Za-z0-9_.-]{0,100}?(?:PRIVATE[ +]KEY|Static[ +]key)[ +A-Z0-9]{0,10}-{0,5}"
    r"|Private-Lines: {0,2}[0-9]{1,4}"
)
_KEY = re.compile(r"[A-Za-z0-9+/=\\]{32}")
_END = (
    r"-{4,5} ?END[ +A-Za-z0-9_.-]{0,60}?(?:KEY|Static[ +]key)[ +A-Z0-9]{0,10}-{0,5}"
    r"|(?:PRIVATE[ +])?KEY(?:[ +]BLOCK)?-----|Private-MAC:\s{0,2}[0-9a-fA-F]{1,128}"
)
_KEY_END = re.compile(_END)
_KEY_RUN = re.compile(r"[A-Za-z0-9+/=\\]+")
_KEY_ON = re.compile(rf"(?P<end>{_END})|[A-Za-z0-9+/=\\]{{16,}}")
_KEY_TAIL = re.compile(
    r"(?:\\[nr]|\s){0,4}(?=[a-z]{0,15}[A-Z0-9+/=])[A-Za-z0-9+/]{1,15}={0,2}(?![\w.])"
)
_GROUP: Final = 8
r"""Characters of the longest group of an encoding: four of base64, six of ``\uXXXX``."""
_GAP: Final = 256
"""Characters between two runs of a key that are no key: line numbers, headers, indentation."""
_MARGIN: Final = 400
"""Characters that are searched for the next run of a key: `_GAP`, and a last line behind it."""

_RANK: Final = {
    name: rank
    for rank, name in enumerate(
        dict.fromkeys([kind.name for kind in TOKEN_KINDS] + list(CONTEXT_KINDS))
    )
}
"""The order in which overlapping kinds name a secret: kinds with a shape first."""


class Segment(Struct, frozen=True):
    """A stretch of the text."""

    text: str
    kind: str | None = None
    """The kind of secret, None for plain text."""
    joins_previous: bool = False
    """True if it continues the secret before it."""


class Scanner:
    """Splits a text that arrives in pieces into segments, secrets apart.

    Args:
        text_before: the text before it; names for its first value are read from there.
        depth: encodings within one another that are decoded.
    """

    def __init__(self, text_before: str = "", depth: int = DEPTH) -> None:
        self._buffer = text_before[-CONTEXT:]
        self._offset = len(self._buffer)
        self._depth = depth
        self._closed = False
        self._inside = False  # the text goes on within a unit, at the next window
        self._open = False  # a secret reached the end of its window
        self._block = False  # within a key
        self._hints: list[tuple[str, int]] | None = None  # those in the buffer
        self._segments: list[Segment] = []

    def feed(self, piece: str, *, closed: bool = False) -> list[Segment]:
        """Add a piece and return the segments that are certain by now.

        Args:
            piece: the next piece of the text.
            closed: no more follows, so all segments are certain.
        """
        self._buffer += piece
        self._closed = closed
        while self._offset < len(self._buffer) and self._step():
            pass
        start = max(0, self._offset - CONTEXT)
        self._buffer = self._buffer[start:]
        self._offset -= start
        self._hints = None
        segments, self._segments = self._segments, []
        return segments

    def _step(self) -> bool:
        """Emit the next stretch. Return False if more text is needed for that."""
        if self._block:
            return self._emit_key_part()
        if self._open:
            return self._emit_rest_of_secret()
        if not self._inside:
            match = _NEXT.search(self._buffer, self._offset)
            if match is None:
                rest = None if self._closed else _SHORT_REST.search(self._buffer, self._offset)
                self._emit(rest.start() if rest else len(self._buffer))
                return False
            end = match.end()
            # Most words of a text end here: short, and without a digit, sign or change of case.
            if end - match.start() < _MIN_TOKEN_CHARS and end < len(self._buffer):
                unit = match[0]
                if unit[-5:] != "BEGIN" and unit[:5] != "Priva" and not _TELLING.search(unit):
                    self._emit(end)
                    return True
            self._emit(match.start())
        return self._emit_unit()

    def _emit(self, end: int, kind: str | None = None, *, joins_previous: bool = False) -> None:
        """Emit the text up to ``end`` as one segment."""
        if end > self._offset:
            self._segments.append(Segment(self._buffer[self._offset : end], kind, joins_previous))
            self._offset = end

    # --- units ----------------------------------------------------------------------------------

    def _emit_unit(self) -> bool:
        start = self._offset
        end = self._find_unit_end(start)
        if end is None:
            return False
        has_more = end - start > WINDOW
        end = min(end, start + WINDOW)
        mark = _MARK.search(self._buffer, start, end)
        begins = mark is not None and mark.start() == start
        if begins or self._buffer[start:end] == "BEGIN":
            certain = self._find_key_start(start)
            if certain is None:
                return False
            if certain:
                self._block = True
                self._inside = False
                self._emit(certain, "private_key")
                return True
            mark = _MARK.search(self._buffer, start + 1, end)
        if mark is not None:
            has_more = False
            end = mark.start()
        self._emit_judged(start, end, has_more)
        return True

    def _find_unit_end(self, start: int) -> int | None:
        """Return the end of the unit, or any place beyond the window.

        None if not known yet. Base64 that is broken into lines is one unit.
        """
        buffer, end = self._buffer, start
        goes_on = self._inside or self._open  # so that it may begin with a line break
        while (run := _RUN.match(buffer, end)) or goes_on:
            goes_on = False
            end = run.end() if run else end
            if end - start > WINDOW:
                return end
            if end == len(buffer):
                return end if self._closed else None
            if end < _LINE_LENGTH or not _LINE.match(buffer, end - _LINE_LENGTH):
                return end
            if broken := _BREAK.match(buffer, end):
                end = broken.end()
            elif not self._closed and _MAY_BREAK.match(buffer, end):
                return None
            else:
                return end
        return end

    def _emit_judged(self, start: int, end: int, has_more: bool) -> None:
        before = self._buffer[max(0, start - CONTEXT) : start]
        after = self._buffer[end : end + 1]
        settled = end - OVERLAP if has_more else end
        self._inside = has_more
        if self._hints is None:
            self._hints = [hint for hint in compile_kinds()[0] if hint[0] in self._buffer]
        unit = self._buffer[start:end]
        for kind, first, last in find_unit_spans(before, unit, after, self._hints, self._depth):
            if start + first >= settled:
                break  # the next window sees all of it
            # An encoding's last group may be cut by the end of the window.
            self._open = has_more and start + last > end - _GROUP
            self._emit(start + first)
            self._emit(end if self._open else start + last, kind)
        self._emit(settled)

    def _emit_rest_of_secret(self) -> bool:
        """Emit the rest of a secret that reached the end of its window."""
        end = self._find_unit_end(self._offset)
        if end is None:
            return False
        run = _SWALLOWED.match(self._buffer, self._offset, min(end, self._offset + WINDOW))
        self._inside = False
        self._open = run is not None and run.end() == self._offset + WINDOW
        if run is not None:
            self._emit(run.end(), "", joins_previous=True)
        return True

    # --- keys -----------------------------------------------------------------------------------

    def _find_key_start(self, start: int) -> int | None:
        """Return the end of the certain part of a private key that begins here.

        0 if no key begins here, None if more text is needed to tell.
        """
        buffer = self._buffer
        is_certain = self._closed or len(buffer) - start >= MAX_KEY_OFFSET
        first = _BLOCK.match(buffer, start)
        if first is None:
            return 0 if is_certain or len(buffer) - start >= MAX_FIRST_LINE_CHARS else None
        within = min(len(buffer), first.end() + _GAP + 32)
        runs = _KEY.finditer(buffer, first.end(), within)
        # A key's 32 characters have more than eight different ones; a line of ``====`` or ``xxxx``
        # has fewer.
        if any(len(set(run[0])) >= 8 for run in runs):
            return first.end()
        if not is_certain:
            return None
        last = _KEY_END.search(buffer, first.end(), start + MAX_KEY_OFFSET)
        return last.start() if last and last.start() - first.end() >= 64 else 0

    def _emit_key_part(self) -> bool:
        """Emit the next stretch of a key.

        It is the last line of the key, or the end of the key if that line is missing.
        """
        buffer = self._buffer
        if run := _KEY_RUN.match(buffer, self._offset):
            self._emit(run.end(), "private_key", joins_previous=True)
            return True
        is_certain = self._closed or len(buffer) - self._offset >= _MARGIN
        match = _KEY_ON.search(buffer, self._offset, self._offset + _MARGIN)
        if match and match.start() - self._offset <= _GAP:
            if not match["end"]:
                self._emit(match.end(), "private_key", joins_previous=True)
                return True
            if is_certain or match.end() < len(buffer):
                self._emit(match.end(), "private_key", joins_previous=True)
                self._block = False
                return True
            return False
        if not is_certain:
            return False
        self._block = False
        if tail := _KEY_TAIL.match(buffer, self._offset):
            self._emit(tail.end(), "private_key", joins_previous=True)
        return True


def find_spans(text: str, text_before: str = "", depth: int = DEPTH) -> list[SecretSpan]:
    """Return every secret in the text, encoded ones too, in order, without overlaps."""
    matches: list[SecretSpan] = []
    start = 0
    for segment in Scanner(text_before, depth).feed(text, closed=True):
        end = start + len(segment.text)
        if segment.joins_previous and matches:
            matches[-1] = matches[-1]._replace(end=end)
        elif segment.kind is not None:
            matches.append(SecretSpan(segment.kind, start, end))
        start = end
    return matches


def find_unit_spans(
    text_before: str, unit: str, text_after: str, hinted: list[tuple[str, int]], depth: int
) -> list[SecretSpan]:
    """Return the secrets of one unit, merged if they overlap.

    Positions are those in the unit.

    Args:
        text_before: the text before the unit.
        unit: a stretch without blanks and quotes.
        text_after: the character after the unit.
        hinted: the hints that the text around contains; the unit can contain no others.
        depth: encodings within one another that are decoded.
    """
    matches: list[SecretSpan] = []
    begin = len(text_before)
    text = text_before + unit
    if len(unit) >= _MIN_TOKEN_CHARS:
        _, kinds = compile_kinds()
        for place in {place for hint, place in hinted if hint in unit}:
            name, pattern = kinds[place]
            matches += [
                SecretSpan(name, match.start() - begin, match.end() - begin)
                for match in pattern.finditer(text, begin)
            ]
    if _TELLING.search(unit):
        matches += [
            SecretSpan(kind, start - begin, end - begin)
            for kind, start, end in find_in_context(text, begin, text_after)
        ]
    if depth:
        for layer in decode_layers(unit):
            matches += [
                SecretSpan(kind, *layer.span(start, end))
                for kind, start, end in find_spans(
                    layer.text, text_before if layer.goes_on else "", depth - 1
                )
            ]
    return merge_spans(matches) if matches else matches


def merge_spans(spans: list[SecretSpan]) -> list[SecretSpan]:
    """Return the spans in order, with overlapping ones merged.

    The first known kind names a merged span.
    """
    merged: list[SecretSpan] = []
    for span in sorted(spans, key=lambda span: span.start):
        if merged and span.start < merged[-1].end:
            previous = merged.pop()
            name = min(previous.kind, span.kind, key=lambda name: _RANK[name])
            span = SecretSpan(name, previous.start, max(previous.end, span.end))
        merged.append(span)
    return merged


# --- what an encoded text says underneath: base64, hexadecimal, URL and JSON escapes --------------

MIN_BASE64_CHARS: Final = 20
"""Characters of the shortest base64 that is decoded: fewer hold less than 15 bytes, and no secret
of a known shape fits in that."""
_MIN_TEXT_BYTES: Final = 12
"""Bytes of the shortest text in decoded data: random bytes seldom hold as many printable ones in a
row."""

_URL = re.compile(r"%([0-9A-Fa-f]{2})")
_JSON = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([\"'\\/bfnrt]))")
_JSON_SIGNS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}(?:\r?\n[A-Za-z0-9+/_-]+)*")
_HEX = re.compile(r"[0-9A-Fa-f]{40,}")
_URL_SAFE: Final = str.maketrans("-_", "+/", "\r\n")
_TEXT = re.compile(rb"[\t\n\r -~]{%d,}" % _MIN_TEXT_BYTES)
_UTF16_TEXT = re.compile(rb"(?:[\t\n\r -~]\0){%d,}" % _MIN_TEXT_BYTES)


class DecodedText(Struct, frozen=True):
    """A decoded text with the positions of its characters in the encoded one."""

    text: str
    span: Callable[[int, int], tuple[int, int]]
    """Maps a stretch of the text to its stretch in the encoded text."""
    goes_on: bool = False
    """True if it is the whole unit, so the text before the unit is the text before it."""


def decode_layers(unit: str) -> Iterator[DecodedText]:
    """Yield every decoding of the unit, a stretch without blanks and quotes."""
    if "%" in unit:
        yield from _unescape(unit, _URL, lambda found: chr(int(found[1], 16)))
    if "\\" in unit:
        yield from _unescape(unit, _JSON, _decode_json_escape)
    if len(unit) >= MIN_BASE64_CHARS:
        for run in _BASE64.finditer(unit):
            if run.end() - run.start() >= MIN_BASE64_CHARS:
                yield from _decode_base64(run[0], run.start())
        for run in _HEX.finditer(unit):
            yield from _decode_hexadecimal(run[0], run.start())


def _decode_json_escape(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else _JSON_SIGNS.get(match[3], match[3])


def _unescape(
    unit: str, escape: re.Pattern[str], sign: Callable[[re.Match[str]], str]
) -> Iterator[DecodedText]:
    parts: list[str] = []
    starts: list[int] = []
    position = 0
    for match in escape.finditer(unit):
        parts += (unit[position : match.start()], sign(match))
        starts += range(position, match.start() + 1)
        position = match.end()
    if parts:
        starts += range(position, len(unit) + 1)
        text = "".join((*parts, unit[position:]))
        yield DecodedText(text, lambda start, end: (starts[start], starts[end]), goes_on=True)


def _decode_base64(run: str, begin: int) -> Iterator[DecodedText]:
    compact = run.translate(_URL_SAFE)
    places: Sequence[int] = range(len(run))
    if len(compact) != len(run):
        places = [index for index, sign in enumerate(run) if sign not in "\r\n"]
    # What stands right before the encoded text may be of the same alphabet, so that any of four
    # places can be the beginning of a group.
    for shift in range(4):
        text = compact[shift:]
        text = text[:-1] if len(text) % 4 == 1 else text
        data = binascii.a2b_base64(text + "=" * (-len(text) % 4))

        def to_run(start: int, end: int, shift: int = shift) -> tuple[int, int]:
            first = start * 4 // 3 + shift
            last = min(-(-end * 4 // 3) + shift, len(places))
            return begin + places[first], begin + places[last - 1] + 1

        yield from _find_texts(data, to_run)


def _decode_hexadecimal(run: str, begin: int) -> Iterator[DecodedText]:
    # The byte's first digit may be either: a digit may stand right before the encoded text.
    for shift in range(2):
        text = run[shift : len(run) - (len(run) - shift) % 2]

        def to_run(start: int, end: int, shift: int = shift) -> tuple[int, int]:
            return begin + shift + 2 * start, begin + shift + 2 * end

        yield from _find_texts(bytes.fromhex(text), to_run)


def _find_texts(
    data: bytes, to_outer: Callable[[int, int], tuple[int, int]]
) -> Iterator[DecodedText]:
    """Yield the stretches of the bytes that are text, of one or two bytes a character."""
    for match in _TEXT.finditer(data):
        yield _make_layer(match[0].decode("ascii"), match.start(), 1, to_outer)
    if b"\0" in data:
        for match in _UTF16_TEXT.finditer(data):
            yield _make_layer(match[0][::2].decode("ascii"), match.start(), 2, to_outer)


def _make_layer(
    text: str, begin: int, width: int, to_outer: Callable[[int, int], tuple[int, int]]
) -> DecodedText:
    return DecodedText(
        text, lambda start, end: to_outer(begin + width * start, begin + width * end)
    )


_PLACEHOLDER = re.compile(r"\[redacted:([a-z0-9_]{1,60})\]")


# --- what is shown --------------------------------------------------------------------------------


class RedactedText(Struct, frozen=True):
    """A text without its secrets."""

    text: str
    kinds: tuple[str, ...]
    """The kinds of the removed secrets: sorted, each once."""


def find_secrets(text: str) -> tuple[SecretSpan, ...]:
    """Return every secret in the text, encoded ones too, in order, without overlaps."""
    return tuple(find_spans(text))


def make_placeholder(kind: str) -> str:
    """Return the placeholder of a kind of secret."""
    return f"[redacted:{kind}]"


def holds_placeholder(text: str) -> bool:
    """Return whether the text contains a placeholder of this package.

    Such a text was read redacted, and must not be written back over its source.
    """
    return any(match[1] in KIND_NAMES for match in _PLACEHOLDER.finditer(text))


class Redactor:
    """Replaces secrets and paths in texts by placeholders.

    Args:
        secrets: replace secrets.
        paths: replace absolute paths.
        folders: absolute folders. Of a path below one only the folder is replaced, so the rest
            still says which file it is.

    Raises:
        UsageError: a folder is not absolute, or is the root.
    """

    def __init__(
        self, *, secrets: bool = True, paths: bool = False, folders: Iterable[str] = ()
    ) -> None:
        self._secrets = secrets
        spellings = {spelling for folder in folders for spelling in _list_spellings(folder)}
        longest_first = sorted(spellings, key=lambda text: (-len(text), text))
        known = "|".join(map(re.escape, longest_first))
        self._folders = re.compile(f"(?:{known}){_NAME_END}") if known else None
        self._paths = paths

    def redact(self, text: str) -> RedactedText:
        """Return the text with placeholders."""
        if not self._paths and _NEXT.search(text) is None:
            return RedactedText(text, ())
        stream = self.stream()
        return RedactedText(stream.feed(text, closed=True), stream.kinds)

    def _without_paths(self, text: str) -> str:
        if self._folders is not None:
            text = self._folders.sub(make_placeholder(PATH), text)
        return _path_pattern().sub(_hide_path, text)

    def stream(self) -> RedactedStream:
        """Return a redactor of one text that arrives in pieces."""
        return RedactedStream(self._secrets, self._without_paths if self._paths else None)


class RedactedStream:
    """Redacts a text that arrives in pieces.

    The results of `feed` and `close` together are what `Redactor.redact` makes of the whole text,
    however it was cut.

    The stream holds back what could still become part of a secret. This is the last word, at most
    8,192 characters of it, and up to 1,200 characters after a line that could begin a private key.
    With ``paths`` it is the last line.
    """

    def __init__(self, secrets: bool, without_paths: Callable[[str], str] | None) -> None:
        self._scanner = Scanner() if secrets else None
        self._without_paths = without_paths
        self._tail = ""
        self._kinds: set[str] = set()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the secrets removed so far: sorted, each once."""
        return tuple(sorted(self._kinds))

    def feed(self, piece: str, *, closed: bool = False) -> str:
        """Add a piece and return the text that can be shown now.

        Args:
            piece: the next piece of the text.
            closed: no more follows, so everything is returned.
        """
        if self._scanner is not None:
            parts: list[str] = []
            for part in self._scanner.feed(piece, closed=closed):
                if part.kind is None:
                    parts.append(part.text)
                elif not part.joins_previous:
                    self._kinds.add(part.kind)
                    parts.append(make_placeholder(part.kind))
            piece = "".join(parts)
        if self._without_paths is None:
            return piece
        text = self._tail + piece
        whole = len(text) if closed else text.rfind("\n") + 1
        shown, self._tail = self._without_paths(text[:whole]), text[whole:]
        if shown != text[:whole]:
            self._kinds.add(PATH)
        return shown

    def close(self) -> str:
        """Return the rest of the text after its last piece."""
        return self.feed("", closed=True)


# --- paths --------------------------------------------------------------------------------------

_NAME_END: Final = r"(?![A-Za-z0-9_-]|\.[A-Za-z0-9_])"
"""Forbids that a folder's name goes on and is another folder's."""

_NAME: Final = r"[\w.+@~/-]|\\[ /]|%[0-9A-Fa-f]{2}"
_UNSPACED: Final = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_TOPS: Final = (
    r"(?:Applications|Library|Users|Volumes|bin|dev|etc|home|lib|media|mnt|opt|private|proc|root"
    r"|run|sbin|srv|tmp|usr|var)/"
)
"""Folders at the root: they tell an absolute path from a relative one if no space stands before it.
"""

_PATH: Final = rf"""
    (?<=["'`]) (?:~|\\?/) [\w.@] (?:{_NAME}|[ ]){{0,1000}} (?=\\?["'`])  # quoted: with blanks
    | (?: (?<=file://) /
        | (?<=[a-z]:///) /(?=\w) | (?<=[{_UNSPACED}]) /(?={_TOPS})
        | (?:(?<=\s-[A-Za-z]) | (?<=^-[A-Za-z])) /  # an option's: -I/usr/include
        | (?<![\w.+@~/<>)\]}}*%\\-]) (?: \\?/ (?=[\w.~@]) | ~[\w.-]{{0,64}}/ | %2[Ff](?=\w) )
        | (?<![\w.+@~/<>)\]}}*%:\\-]) // (?=[\w.~@-]{{1,255}}/\w)
      ) (?:{_NAME})*
    | (?<![A-Za-z0-9]) [A-Za-z]: (?:\\{{1,2}}|/) (?=\w) (?:[\w.+@~/\\-]|%[0-9A-Fa-f]{{2}})*
    """
"""An absolute path, or one in a home directory.

A path below a variable, a pattern or a placeholder (``$HOME/x``, ``*/x``) is not matched, nor is
the rest of an address (``https://host/x``).
"""


@cache
def _path_pattern() -> re.Pattern[str]:
    """Return the pattern of paths.

    It is compiled at the first use, since it takes a while, and most runs show paths.
    """
    return re.compile(_PATH, re.VERBOSE | re.MULTILINE)


def _hide_path(match: re.Match[str]) -> str:
    """Return the placeholder of a path, and the full stop after it."""
    path = match[0].rstrip(".-+@")
    return make_placeholder(PATH) + match[0][len(path) :]


def _list_spellings(path: str) -> set[str]:
    """Return a folder as it is, in JSON and in URLs."""
    if not isinstance(path, str) or not path.startswith("/") or not path.strip("/"):
        raise UsageError(
            f"a folder to redact must be an absolute path, not {path!r}",
            hint="name a folder below the root, as in /home/ann",
        )
    path = "/" + path.strip("/")
    url = path.replace("%", "%25").replace(" ", "%20")
    return {path, path.replace("/", "\\/"), url, url.replace("/", "%2F"), url.replace("/", "%2f")}
