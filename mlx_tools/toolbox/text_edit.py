"""Finds an exact text in a file's text and replaces it; tells where it nearly stands.

Two texts are the same here if they differ only in line ends (``\\n``, ``\\r\\n``) and in white
space at the end of lines. Indentation counts. All of this takes time linear in the file, but for
`nearest_lines`, which compares a bounded number of lines.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from mlx_tools.tools import ToolError

MAX_RESULT_CHARS: Final = 5_000_000
"""Most characters of an edited text: as many as a person is shown the change of."""

MAX_MESSAGE_CHARS: Final = 4_000
"""Of an error that shows the file's own text to copy: some 60 lines."""

_TRAILING: Final = " \t\f\v"
_MOST_NUMBERS: Final = 20  # line numbers that an error lists
_MOST_LINES: Final = 12  # lines that an error shows of the nearest place
_MOST_COPIED: Final = 3_000  # characters of the file's own text in an error
_MOST_CANDIDATES: Final = 200  # lines compared by difflib: more take over a tenth of a second
_MOST_RANKED: Final = 20_000  # lines that are looked at for words: a tenth of a second
_MOST_COMPARED_CHARS: Final = 200  # of a line: difflib takes quadratic time
_WORD: Final = re.compile(r"\w+")


class Span(Struct, frozen=True):
    """One place where the text stands: offsets in the file's text, and its lines from 0."""

    start: int
    end: int
    first_line: int
    last_line: int


class _View(Struct, frozen=True):
    """The lines of a file's text as they are compared, joined by ``\\n``."""

    text: str
    starts: Sequence[int]

    def line_at(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1


class TextLines:
    """The lines of a file's text. A line ends at ``\\n`` or ``\\r\\n``; in a text that has neither,
    at ``\\r``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.separator = "\r" if "\r" in text and "\n" not in text else "\n"
        pieces = text.split(self.separator)
        self.starts = [0]
        for piece in pieces[:-1]:
            self.starts.append(self.starts[-1] + len(piece) + 1)
        if self.separator == "\n":
            pieces[:-1] = [piece.removesuffix("\r") for piece in pieces[:-1]]
        self.contents = pieces
        """The lines without their ends; the last is empty if the text ends with a line end."""

    def __len__(self) -> int:
        """The number of lines, as an editor counts them."""
        return len(self.contents) - (not self.contents[-1])

    @property
    def line_end(self) -> str | None:
        """The line end that most lines have, None if there is none."""
        if self.separator == "\r":
            return "\r"
        all_ends, windows = self.text.count("\n"), self.text.count("\r\n")
        if not all_ends:
            return None
        if 2 * windows == all_ends:
            return "\r\n" if self.text.find("\n") == self.text.find("\r\n") + 1 else "\n"
        return "\r\n" if 2 * windows > all_ends else "\n"

    def unified(self, text: str) -> str:
        """Another text with ``\\n`` for the line ends that count as such here."""
        text = text.replace("\r\n", "\n")
        return text.replace("\r", "\n") if self.separator == "\r" else text

    def end_of(self, line: int) -> int:
        """The offset where a line's content ends, white space included."""
        return self.starts[line] + len(self.contents[line])

    def exact_view(self) -> _View:
        return _view(self.contents)

    def stripped_view(self) -> _View:
        return _view([line.rstrip(_TRAILING) for line in self.contents])


def _view(lines: Sequence[str]) -> _View:
    starts = [0]
    for line in lines[:-1]:
        starts.append(starts[-1] + len(line) + 1)
    return _View("\n".join(lines), starts)


# --- finding -------------------------------------------------------------------------------------


def find_spans(lines: TextLines, old: str) -> list[Span]:
    """The places where ``old`` stands, in order, none overlapping another.

    If there is one that a further one overlaps, both are given: the text then stands twice.
    """
    old = lines.unified(old)
    exact = _Finder(lines, lines.exact_view(), old)
    finders = [exact]
    stripped = "\n".join(line.rstrip(_TRAILING) for line in old.split("\n"))
    if stripped and ("\n" in old or stripped != old):
        finders.append(_Finder(lines, lines.stripped_view(), stripped, old))
    places: dict[int, Span] = {}
    several = "\n" in old  # then at most one of each kind begins on a line
    for finder in finders:
        for span in finder.spans():
            places.setdefault(span.first_line if several else span.start, span)
    if len(places) == 1:
        ((key, only),) = places.items()
        for finder in finders:
            for span in finder.spans(overlapping=True):
                if (span.first_line if several else span.start) != key:
                    return [only, span]
    return sorted(places.values(), key=lambda span: span.start)


class _Finder:
    """Finds a text in one view of the lines. ``original`` is the text before white space at the end
    of its lines was taken away.

    If the original ends in white space the text must end where a line does, and if its first line
    is white space alone it must begin where a line does. Either is found with the ``\\n`` there.
    """

    def __init__(self, lines: TextLines, view: _View, old: str, original: str = "") -> None:
        self._lines, self._view, self._size = lines, view, len(old)
        first, _, rest = original.partition("\n")
        last = original.rpartition("\n")[2]
        self._whole_first = bool(rest and first and not first.strip(_TRAILING))
        self._to_line_end = last != last.rstrip(_TRAILING)
        before, after = "\n" * self._whole_first, "\n" * self._to_line_end
        self._sought, self._search_texts = before + old + after, before + view.text + after

    def spans(self, *, overlapping: bool = False) -> Iterator[Span]:
        """The places in order; with ``overlapping`` the first two, which may overlap."""
        at = found = 0
        while (at := self._search_texts.find(self._sought, at)) >= 0:
            yield self._span(at)
            found += 1
            if overlapping and found == 2:
                return
            at += 1 if overlapping else self._size

    def _span(self, offset: int) -> Span:
        """The place in the file's text; ``offset`` is where it begins in the view."""
        view, lines = self._view, self._lines
        end = offset + self._size
        first, last = view.line_at(offset), view.line_at(end)
        if self._whole_first:
            start = lines.starts[first]
        elif view.text[offset : offset + 1] == "\n":
            start = lines.end_of(first)
        else:
            start = lines.starts[first] + offset - view.starts[first]
        stop = lines.starts[last] + end - view.starts[last]
        return Span(start, lines.end_of(last) if self._to_line_end else stop, first, last)


# --- replacing -----------------------------------------------------------------------------------


class EditResult(Struct, frozen=True):
    """A text after an edit, and the lines, from 1, where ``old`` stood."""

    text: str
    lines: tuple[int, ...]


def edit_text(text: str, old: str, new: str, name: str, *, replace_all: bool = False) -> EditResult:
    """Replace ``old`` by ``new`` where it stands, which must be once, or anywhere with
    ``replace_all``.

    The new text gets the file's line ends. Lines at the beginning and the end of ``new`` that are
    those of ``old`` stay as they are in the file. Raises ToolError, for the model, if ``old`` does
    not stand there, or more than once, or nothing would change.
    """
    if not old:
        raise ToolError("old is empty: give the text to replace", code="invalid_arguments")
    lines = TextLines(text)
    spans = find_spans(lines, old)
    if not spans:
        message = _missing(lines, old, name)
        raise ToolError(message, max_chars=MAX_MESSAGE_CHARS)
    if len(spans) > 1 and not replace_all:
        raise ToolError(
            f"old occurs {len(spans)} times in {name}, at lines {_numbers(spans)}; "
            "give more of the text around it, or all: true to replace each"
        )
    if len(text) + len(spans) * len(new) > MAX_RESULT_CHARS:
        raise ToolError(
            f"the edited file would be too large (at most {MAX_RESULT_CHARS} characters)",
            code="payload_too_large",
        )
    parts: list[str] = []
    done, places = 0, []
    for span in spans:
        if span.start < done:  # it overlaps the one before
            continue
        start, end, inserted = _change(lines, span, old, new)
        parts += (text[done:start], inserted)
        done = end
        places.append(span.first_line + 1)
    result = "".join((*parts, text[done:]))
    if result == text:
        raise ToolError("old and new are the same: nothing would change")
    return EditResult(result, tuple(places))


def _change(lines: TextLines, span: Span, old: str, new: str) -> tuple[int, int, str]:
    """The part of the file's text to replace, and the replacement: without the whole lines that
    ``old`` and ``new`` begin and end with alike."""
    before, after = lines.unified(old).split("\n"), lines.unified(new).split("\n")
    most = min(len(before), len(after)) - 1  # at least one line of each remains
    head = next((i for i in range(most) if before[i] != after[i]), most)
    most -= head
    tail = next((i for i in range(most) if before[-1 - i] != after[-1 - i]), most)
    start = lines.starts[span.first_line + head] if head else span.start
    end = lines.end_of(span.last_line - tail) if tail else span.end
    line_end = lines.line_end
    inserted = "\n".join(after[head : len(after) - tail])
    if line_end is None:
        return start, end, new if not head and not tail else inserted
    return start, end, inserted.replace("\n", line_end)


def _numbers(spans: Sequence[Span]) -> str:
    """The lines of places, from 1; no more than an error can list."""
    listed = ", ".join(str(span.first_line + 1) for span in spans[:_MOST_NUMBERS])
    return listed + (", …" if len(spans) > _MOST_NUMBERS else "")


# --- what stands there instead -------------------------------------------------------------------


def _missing(lines: TextLines, old: str, name: str) -> str:
    """The message that ``old`` does not occur, with the place that is nearest to it."""
    wanted = lines.unified(old).strip("\n").split("\n")
    place = _with_other_blanks(lines, wanted)
    if place is not None:
        first, last = place
        own = lines.text[lines.starts[first] : lines.end_of(last)]
        where = f"line {first + 1}" if first == last else f"lines {first + 1} to {last + 1}"
        cut = "" if len(own) <= _MOST_COPIED else "\n[…]"
        return (
            f"old does not occur in {name}: the white space differs at {where}. "
            f"The file's own text there, to copy:\n{own[:_MOST_COPIED]}{cut}"
        )
    near = nearest_lines(lines, wanted)
    if not near:
        return f"old does not occur in {name}, nor anything like it; read the file first"
    shown = "\n".join(
        f"{number + 1}: {lines.contents[number][:_MOST_COMPARED_CHARS]}" for number in near
    )
    return f"old does not occur in {name}. The nearest lines, with their numbers:\n{shown}"


def _with_other_blanks(lines: TextLines, wanted_lines: Sequence[str]) -> tuple[int, int] | None:
    """The first and the last line of a place that differs from the text in white space alone."""
    sought = "\n".join(" ".join(line.split()) for line in wanted_lines)
    if not sought.strip():
        return None
    view = _view([" ".join(line.split()) for line in lines.contents])
    at = f"\n{view.text}\n".find(f"\n{sought}\n")
    at = view.text.find(sought) if at < 0 else at  # else a place within lines
    return None if at < 0 else (view.line_at(at), view.line_at(at + len(sought)))


def nearest_lines(lines: TextLines, wanted_lines: Sequence[str]) -> Sequence[int]:
    """The numbers, from 0, of the lines that are most like the wanted ones; none if none is."""
    long = sorted(range(len(wanted_lines)), key=lambda i: -len(wanted_lines[i].strip()))[:3]
    starts = {
        max(number - i, 0)
        for i in long
        if wanted_lines[i].strip()
        for number in _like(lines.contents, wanted_lines[i])
    }
    compared = range(min(len(wanted_lines), _MOST_LINES))
    best, best_score = -1, 0.4  # below it people see no likeness
    for start in sorted(starts):
        there = [i for i in compared if start + i < len(lines)]
        score = sum(_likeness(lines.contents[start + i], wanted_lines[i]) for i in there)
        if score / len(compared) > best_score:
            best, best_score = start, score / len(compared)
    return range(best, min(best + len(compared), len(lines))) if best >= 0 else ()


def _like(contents: Sequence[str], line: str) -> list[int]:
    """The numbers of a few lines that are like one: those that share words with it, by difflib."""
    words, size = set(_WORD.findall(line)), len(line)
    numbers: Sequence[int] = range(len(contents))
    if len(contents) > _MOST_RANKED:
        longest = max(words, key=len, default="")
        having = [number for number in numbers if longest in contents[number]]
        numbers = (having or numbers)[:_MOST_RANKED]
    ranked = sorted(
        numbers,
        key=lambda n: (
            -len(words.intersection(_WORD.findall(contents[n][:_MOST_COMPARED_CHARS]))),
            abs(len(contents[n]) - size),
            n,
        ),
    )[:_MOST_CANDIDATES]
    scores = {number: _likeness(contents[number], line) for number in ranked}
    return sorted(scores, key=lambda number: (-scores[number], number))[:3]


def _likeness(line: str, second: str) -> float:
    """How much two lines have in common, from 0 to 1."""
    line, second = (text.strip()[:_MOST_COMPARED_CHARS] for text in (line, second))
    matcher = difflib.SequenceMatcher(None, line, second, autojunk=False)
    return matcher.ratio() if matcher.real_quick_ratio() > 0.3 else 0.0
