"""Redaction: secrets, and paths if asked, become placeholders such as ``[redacted:jwt]``.

The same text always gives the same result, whole or in pieces. A text is cut into *units*,
stretches without blanks and quotes, and each unit is judged once, by itself and by what stands
before it. Where the cuts are depends on the text alone, never on the pieces, so that a streamed
text and a whole one give the same findings, and the work is linear in the text. A unit that is
longer than `WINDOW` is judged in windows that overlap. Key blocks
(``-----BEGIN … PRIVATE KEY-----``) run over many units: from their first line on, all is secret
until their last, or until what follows is no key any more.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    in_context,
)

WINDOW: Final = 24_576
"""Characters of a unit that are judged at once, and so the most that is held back of one."""
OVERLAP: Final = 8192
"""Characters that two windows share: a secret up to this long is seen whole. No kind needs as many
to be known: a JWT has up to 8,007 before its signature. What is longer is redacted from its
beginning to where the characters of such secrets end."""
LOOK_AHEAD: Final = 1200
"""Characters after the first line of a key that are looked at to tell whether a key follows."""
LONGEST_FIRST_LINE: Final = 160
DEPTH: Final = 3
"""Encodings within one another that are undone."""

_SHORTEST: Final = 6
_SHORTEST_TOKEN: Final = 16
_UNIT: Final = r"[!#-&(-;=?-_a-~À-ɏ]"
_NEXT = re.compile(rf"{_UNIT}{{{_SHORTEST},{WINDOW + 1}}}|(?<=---- )BEGIN")
_RUN = re.compile(rf"{_UNIT}{{1,{WINDOW + 1}}}")
_REST = re.compile(rf"{_UNIT}{{0,{_SHORTEST - 1}}}\Z")
_LINE_LENGTH: Final = 60
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
_GAP: Final = 256
"""Characters between two runs of a key that are no key: line numbers, headers, indentation."""
_MARGIN: Final = 400

_RANK: Final = {
    name: rank
    for rank, name in enumerate(
        dict.fromkeys([kind.name for kind in TOKEN_KINDS] + list(CONTEXT_KINDS))
    )
}


class Segment(Struct, frozen=True):
    """A stretch of the text, in order: ``kind`` is None for what is no secret. One that is
    ``joined`` goes on with the secret before it."""

    text: str
    kind: str | None = None
    joined: bool = False


class Scanner:
    """Takes a text in pieces and gives it back in segments, secrets apart.

    ``before`` is what stands before the text: names for its first value are read from it.
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
        """The segments that are settled by now: all, where the text is ``closed``, as no more of it
        follows."""
        self._buffer += piece
        self._closed = closed
        while self._offset < len(self._buffer) and self._step():
            pass
        kept = max(0, self._offset - CONTEXT)
        self._buffer = self._buffer[kept:]
        self._offset -= kept
        self._hints = None
        out, self._segments = self._segments, []
        return out

    def _step(self) -> bool:
        """Settle the next stretch; False where that needs text that has not arrived."""
        if self._block:
            return self._key()
        if self._open:
            return self._swallow()
        if not self._inside:
            found = _NEXT.search(self._buffer, self._offset)
            if found is None:
                rest = None if self._closed else _REST.search(self._buffer, self._offset)
                self._emit(rest.start() if rest else len(self._buffer))
                return False
            end = found.end()
            if end - found.start() < _SHORTEST_TOKEN and end < len(self._buffer):
                unit = found[0]
                if unit[-5:] != "BEGIN" and unit[:5] != "Priva" and not _TELLING.search(unit):
                    self._emit(end)
                    return True
            self._emit(found.start())
        return self._unit()

    def _emit(self, end: int, kind: str | None = None, *, joins_previous: bool = False) -> None:
        """Give out what stands up to ``end``."""
        if end > self._offset:
            self._segments.append(Segment(self._buffer[self._offset : end], kind, joins_previous))
            self._offset = end

    # --- units ----------------------------------------------------------------------------------

    def _unit(self) -> bool:
        start = self._offset
        end = self._end_of_unit(start)
        if end is None:
            return False
        more = end - start > WINDOW
        end = min(end, start + WINDOW)
        mark = _MARK.search(self._buffer, start, end)
        begins = mark is not None and mark.start() == start
        if begins or self._buffer[start:end] == "BEGIN":
            certain = self._key_from(start)
            if certain is None:
                return False
            if certain:
                self._block = True
                self._inside = False
                self._emit(certain, "private_key")
                return True
            mark = _MARK.search(self._buffer, start + 1, end)
        if mark is not None:
            more = False
            end = mark.start()
        self._judged(start, end, more)
        return True

    def _end_of_unit(self, start: int) -> int | None:
        """Return where the unit ends, or any place beyond the window; None where that is not known
        yet.

        Base64 that is broken into lines is one unit.
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

    def _judged(self, start: int, end: int, has_more: bool) -> None:
        before = self._buffer[max(0, start - CONTEXT) : start]
        after = self._buffer[end : end + 1]
        settled = end - OVERLAP if has_more else end
        self._inside = has_more
        if self._hints is None:
            self._hints = [hint for hint in compile_kinds()[0] if hint[0] in self._buffer]
        unit = self._buffer[start:end]
        for kind, first, last in spans(before, unit, after, self._hints, self._depth):
            if start + first >= settled:
                break  # the next window sees all of it
            # An encoding's last group may be cut by the end of the window.
            self._open = has_more and start + last > end - _GROUP
            self._emit(start + first)
            self._emit(end if self._open else start + last, kind)
        self._emit(settled)

    def _swallow(self) -> bool:
        """Settle what goes on with a secret that reached the end of its window."""
        end = self._end_of_unit(self._offset)
        if end is None:
            return False
        run = _SWALLOWED.match(self._buffer, self._offset, min(end, self._offset + WINDOW))
        self._inside = False
        self._open = run is not None and run.end() == self._offset + WINDOW
        if run is not None:
            self._emit(run.end(), "", joins_previous=True)
        return True

    # --- keys -----------------------------------------------------------------------------------

    def _key_from(self, start: int) -> int | None:
        """Up to where a private key goes that begins here, as far as that is certain; 0 where
        none begins, None where more text is needed to tell."""
        buffer = self._buffer
        known = self._closed or len(buffer) - start >= LOOK_AHEAD
        first = _BLOCK.match(buffer, start)
        if first is None:
            return 0 if known or len(buffer) - start >= LONGEST_FIRST_LINE else None
        within = min(len(buffer), first.end() + _GAP + 32)
        runs = _KEY.finditer(buffer, first.end(), within)
        if any(len(set(run[0])) >= 8 for run in runs):
            return first.end()
        if not known:
            return None
        last = _KEY_END.search(buffer, first.end(), start + LOOK_AHEAD)
        return last.start() if last and last.start() - first.end() >= 64 else 0

    def _key(self) -> bool:
        """The next stretch of a key, its last line, or its end where that line is missing."""
        buffer = self._buffer
        if run := _KEY_RUN.match(buffer, self._offset):
            self._emit(run.end(), "private_key", joins_previous=True)
            return True
        known = self._closed or len(buffer) - self._offset >= _MARGIN
        found = _KEY_ON.search(buffer, self._offset, self._offset + _MARGIN)
        if found and found.start() - self._offset <= _GAP:
            if not found["end"]:
                self._emit(found.end(), "private_key", joins_previous=True)
                return True
            if known or found.end() < len(buffer):
                self._emit(found.end(), "private_key", joins_previous=True)
                self._block = False
                return True
            return False
        if not known:
            return False
        self._block = False
        if tail := _KEY_TAIL.match(buffer, self._offset):
            self._emit(tail.end(), "private_key", joins_previous=True)
        return True


def found_in(text: str, text_before: str = "", depth: int = DEPTH) -> list[SecretSpan]:
    """Every secret in the text, in order, none overlapping another; encoded ones too."""
    found: list[SecretSpan] = []
    at = 0
    for segment in Scanner(text_before, depth).feed(text, closed=True):
        end = at + len(segment.text)
        if segment.joined and found:
            found[-1] = found[-1]._replace(end=end)
        elif segment.kind is not None:
            found.append(SecretSpan(segment.kind, at, end))
        at = end
    return found


def spans(
    text_before: str, unit: str, text_after: str, hinted: list[tuple[str, int]], depth: int
) -> list[SecretSpan]:
    """The secrets of one unit, merged where they overlap; places are those within the unit.

    ``hinted`` are the hints that the text around holds, and so the only ones it can hold.
    """
    found: list[SecretSpan] = []
    begin = len(text_before)
    text = text_before + unit
    if len(unit) >= _SHORTEST_TOKEN:
        _, kinds = compile_kinds()
        for place in {place for hint, place in hinted if hint in unit}:
            name, pattern = kinds[place]
            found += [
                SecretSpan(name, match.start() - begin, match.end() - begin)
                for match in pattern.finditer(text, begin)
            ]
    if _TELLING.search(unit):
        found += [
            SecretSpan(kind, start - begin, end - begin)
            for kind, start, end in in_context(text, begin, text_after)
        ]
    if depth:
        for layer in layers(unit):
            found += [
                SecretSpan(kind, *layer.span(start, end))
                for kind, start, end in found_in(
                    layer.text, text_before if layer.goes_on else "", depth - 1
                )
            ]
    return merge_spans(found) if found else found


def merge_spans(spans: list[SecretSpan]) -> list[SecretSpan]:
    """The spans in order, those that overlap made one, by the name of the first known kind."""
    made: list[SecretSpan] = []
    for span in sorted(spans, key=lambda span: span.start):
        if made and span.start < made[-1].end:
            last = made.pop()
            name = min(last.kind, span.kind, key=lambda name: _RANK[name])
            span = SecretSpan(name, last.start, max(last.end, span.end))
        made.append(span)
    return made


# --- what an encoded text says underneath: base64, hexadecimal, URL and JSON escapes --------------

SHORTEST_BASE64: Final = 20
"""Characters: fewer hold less than 15 bytes, which no secret of a known shape fits in."""
_SHORTEST_TEXT: Final = 12

_URL = re.compile(r"%([0-9A-Fa-f]{2})")
_JSON = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([\"'\\/bfnrt]))")
_JSON_SIGNS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}(?:\r?\n[A-Za-z0-9+/_-]+)*")
_HEX = re.compile(r"[0-9A-Fa-f]{40,}")
_URL_SAFE: Final = str.maketrans("-_", "+/", "\r\n")
_TEXT = re.compile(rb"[\t\n\r -~]{%d,}" % _SHORTEST_TEXT)
_WIDE = re.compile(rb"(?:[\t\n\r -~]\0){%d,}" % _SHORTEST_TEXT)


class DecodedText(Struct, frozen=True):
    """``text``, and where its characters stand above: `span` maps a stretch of it. It
    ``goes_on`` where it is all of the unit, so that what stands before the unit stands before it.
    """

    text: str
    span: Callable[[int, int], tuple[int, int]]
    goes_on: bool = False


def layers(unit: str) -> Iterator[DecodedText]:
    """Every way in which the unit, a stretch without blanks and quotes, can be decoded."""
    if "%" in unit:
        yield from _unescaped(unit, _URL, lambda found: chr(int(found[1], 16)))
    if "\\" in unit:
        yield from _unescaped(unit, _JSON, _json_sign)
    if len(unit) >= SHORTEST_BASE64:
        for run in _BASE64.finditer(unit):
            if run.end() - run.start() >= SHORTEST_BASE64:
                yield from _base64(run[0], run.start())
        for run in _HEX.finditer(unit):
            yield from _hexadecimal(run[0], run.start())


def _json_sign(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else _JSON_SIGNS.get(match[3], match[3])


def _unescaped(
    unit: str, escape: re.Pattern[str], sign: Callable[[re.Match[str]], str]
) -> Iterator[DecodedText]:
    parts: list[str] = []
    starts: list[int] = []
    at = 0
    for found in escape.finditer(unit):
        parts += (unit[at : found.start()], sign(found))
        starts += range(at, found.start() + 1)
        at = found.end()
    if parts:
        starts += range(at, len(unit) + 1)
        text = "".join((*parts, unit[at:]))
        yield DecodedText(text, lambda start, end: (starts[start], starts[end]), goes_on=True)


def _base64(run: str, begin: int) -> Iterator[DecodedText]:
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

        def above(start: int, end: int, shift: int = shift) -> tuple[int, int]:
            first = start * 4 // 3 + shift
            last = min(-(-end * 4 // 3) + shift, len(places))
            return begin + places[first], begin + places[last - 1] + 1

        yield from _texts(data, above)


def _hexadecimal(run: str, begin: int) -> Iterator[DecodedText]:
    for shift in range(2):
        text = run[shift : len(run) - (len(run) - shift) % 2]

        def above(start: int, end: int, shift: int = shift) -> tuple[int, int]:
            return begin + shift + 2 * start, begin + shift + 2 * end

        yield from _texts(bytes.fromhex(text), above)


def _texts(data: bytes, to_outer: Callable[[int, int], tuple[int, int]]) -> Iterator[DecodedText]:
    """The stretches of the bytes that are text, in one byte or in two for each character."""
    for found in _TEXT.finditer(data):
        yield _layer(found[0].decode("ascii"), found.start(), 1, to_outer)
    if b"\0" in data:
        for found in _WIDE.finditer(data):
            yield _layer(found[0][::2].decode("ascii"), found.start(), 2, to_outer)


def _layer(
    text: str, begin: int, width: int, to_outer: Callable[[int, int], tuple[int, int]]
) -> DecodedText:
    return DecodedText(
        text, lambda start, end: to_outer(begin + width * start, begin + width * end)
    )


_PLACEHOLDER = re.compile(r"\[redacted:([a-z0-9_]{1,60})\]")


# --- what is shown --------------------------------------------------------------------------------


class RedactedText(Struct, frozen=True):
    """A text without its secrets, and the kinds of what was taken out: sorted, each once."""

    text: str
    kinds: tuple[str, ...]


def find_secrets(text: str) -> tuple[SecretSpan, ...]:
    """Every secret in the text, in order, none overlapping another; encoded ones too."""
    return tuple(found_in(text))


def placeholder(kind: str) -> str:
    """Return what stands for a secret of this kind."""
    return f"[redacted:{kind}]"


def holds_placeholder(text: str) -> bool:
    """Return whether the text holds a placeholder of ours: it was read redacted, and must not be
    written back over what it was read from."""
    return any(found[1] in KIND_NAMES for found in _PLACEHOLDER.finditer(text))


class Redactor:
    """Takes secrets out of texts, unless ``secrets`` is False, and with ``paths`` absolute paths.

    ``folders`` are absolute: of a path that leads below one the rest is left, so that it can still
    be told what it means. Raises UsageError for a folder that is not absolute, or is the root.
    """

    def __init__(
        self, *, secrets: bool = True, paths: bool = False, folders: Iterable[str] = ()
    ) -> None:
        self._secrets = secrets
        spellings = {spelling for folder in folders for spelling in _spellings(folder)}
        longest_first = sorted(spellings, key=lambda text: (-len(text), text))
        known = "|".join(map(re.escape, longest_first))
        self._folders = re.compile(f"(?:{known}){_AFTER}") if known else None
        self._paths = paths

    def text(self, text: str) -> RedactedText:
        """The text with placeholders."""
        if not self._paths and _NEXT.search(text) is None:
            return RedactedText(text, ())
        stream = self.stream()
        return RedactedText(stream.feed(text, closed=True), stream.kinds)

    def _without_paths(self, text: str) -> str:
        if self._folders is not None:
            text = self._folders.sub(placeholder(PATH), text)
        return _PATH.sub(_hidden, text)

    def stream(self) -> RedactedStream:
        """Takes one text in pieces."""
        return RedactedStream(self._secrets, self._without_paths if self._paths else None)


class RedactedStream:
    """A text that arrives in pieces: what `feed` and `close` return, put together, is what
    `Redactor.text` makes of the whole, wherever it was cut.

    Held back is what could still become part of a secret: the last word, at most 8,192 characters
    of it, and up to 1,200 characters behind a line that could begin a private key; where paths are
    taken out, the last line.
    """

    def __init__(self, secrets: bool, without_paths: Callable[[str], str] | None) -> None:
        self._scanner = Scanner() if secrets else None
        self._without_paths = without_paths
        self._tail = ""
        self._kinds: set[str] = set()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of what was taken out so far: sorted, each once."""
        return tuple(sorted(self._kinds))

    def feed(self, piece: str, *, closed: bool = False) -> str:
        """Return what may be shown now: all, where the text is ``closed``, as no more of it
        follows."""
        if self._scanner is not None:
            out: list[str] = []
            for part in self._scanner.feed(piece, closed=closed):
                if part.kind is None:
                    out.append(part.text)
                elif not part.joined:
                    self._kinds.add(part.kind)
                    out.append(placeholder(part.kind))
            piece = "".join(out)
        if self._without_paths is None:
            return piece
        text = self._tail + piece
        whole = len(text) if closed else text.rfind("\n") + 1
        shown, self._tail = self._without_paths(text[:whole]), text[whole:]
        if shown != text[:whole]:
            self._kinds.add(PATH)
        return shown

    def close(self) -> str:
        """The rest of what may be shown: the text has ended. Feed nothing after it."""
        return self.feed("", closed=True)


# --- paths --------------------------------------------------------------------------------------

_AFTER: Final = r"(?![A-Za-z0-9_-]|\.[A-Za-z0-9_])"
"""What may not follow: the name would go on, and be another folder's."""

_NAME: Final = r"[\w.+@~/-]|\\[ /]|%[0-9A-Fa-f]{2}"
_UNSPACED: Final = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_TOPS: Final = (
    r"(?:Applications|Library|Users|Volumes|bin|dev|etc|home|lib|media|mnt|opt|private|proc|root"
    r"|run|sbin|srv|tmp|usr|var)/"
)
"""Folders at the root: by these a path is told from a relative one where no space stands before."""

_PATH: Final = re.compile(
    rf"""
    (?<=["'`]) (?:~|\\?/) [\w.@] (?:{_NAME}|[ ]){{0,1000}} (?=\\?["'`])  # quoted: with blanks
    | (?: (?<=file://) /
        | (?<=[a-z]:///) /(?=\w) | (?<=[{_UNSPACED}]) /(?={_TOPS})
        | (?:(?<=\s-[A-Za-z]) | (?<=^-[A-Za-z])) /  # an option's: -I/usr/include
        | (?<![\w.+@~/<>)\]}}*%\\-]) (?: \\?/ (?=[\w.~@]) | ~[\w.-]{{0,64}}/ | %2[Ff](?=\w) )
        | (?<![\w.+@~/<>)\]}}*%:\\-]) // (?=[\w.~@-]{{1,255}}/\w)
      ) (?:{_NAME})*
    | (?<![A-Za-z0-9]) [A-Za-z]: (?:\\{{1,2}}|/) (?=\w) (?:[\w.+@~/\\-]|%[0-9A-Fa-f]{{2}})*
    """,
    re.VERBOSE | re.MULTILINE,
)
"""A path from the root, or from a home. What stands below a variable, a pattern or a placeholder
(``$HOME/x``, ``*/x``) is none, nor is the rest of an address (``https://host/x``)."""


def _hidden(match: re.Match[str]) -> str:
    """A placeholder, and the full stop of the sentence that the path stands at the end of."""
    path = match[0].rstrip(".-+@")
    return placeholder(PATH) + match[0][len(path) :]


def _spellings(path: str) -> set[str]:
    if not isinstance(path, str) or not path.startswith("/") or not path.strip("/"):
        raise UsageError(
            f"a folder to redact must be an absolute path, not {path!r}",
            hint="name a folder below the root, as in /home/ann",
        )
    path = "/" + path.strip("/")
    url = path.replace("%", "%25").replace(" ", "%20")
    return {path, path.replace("/", "\\/"), url, url.replace("/", "%2F"), url.replace("/", "%2f")}
