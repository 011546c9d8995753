r"""Finds an exact text in a file and replaces it, or shows where it nearly is.

Texts are equal here if they differ only in line ends (``\n``, ``\r\n``) and in white space at the
end of lines. Indentation counts. The time is linear in the file, except in `find_nearest_lines`,
which compares a limited number of lines.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Final

from msgspec import Struct

from mlx_tools.toolbox import find_equal_lines
from mlx_tools.tools import ToolError

MAX_RESULT_CHARS: Final = 5_000_000
"""Characters of an edited text: a person must be able to see the whole change."""

MAX_MESSAGE_CHARS: Final = 4_000
"""Characters of an error that shows the file's own text to copy: some 60 lines."""

MAX_PLACES: Final = 200_000
"""Places that one call replaces. This number takes a second and 100 megabytes."""

_MAX_COUNTED: Final = 1_000
"""Places that an error counts: the exact number of so many helps nobody."""

_TRAILING: Final = " \t\f\v"
_MAX_NUMBERS: Final = 20  # line numbers that an error lists
_MAX_LINES: Final = 12  # lines that an error shows of the nearest place
_MAX_COPIED: Final = 3_000  # characters of the file's own text in an error
_MAX_CANDIDATES: Final = 200  # lines compared by difflib: more take over a tenth of a second
_MAX_RANKED: Final = 20_000  # lines that are ranked by common words: a tenth of a second
_MAX_COMPARED_CHARS: Final = 200  # of a line: difflib takes quadratic time
_WORD: Final = re.compile(r"\w+")


class Span(Struct, frozen=True):
    """One place of the text: offsets in the file's text, and its lines from 0."""

    start: int
    end: int
    first_line: int
    last_line: int


class _View(Struct, frozen=True):
    r"""The lines of a file's text, prepared to be compared and joined by ``\n``."""

    text: str
    starts: Sequence[int]

    def find_line(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1


class TextLines:
    r"""The lines of a file's text.

    A line ends at ``\n`` or ``\r\n``; in a text with neither, at ``\r``.
    """

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
        """Return the number of lines, as an editor counts them."""
        return len(self.contents) - (not self.contents[-1])

    @cached_property
    def line_end(self) -> str | None:
        """The line end of most lines, None if there is none."""
        if self.separator == "\r":
            return "\r"
        all_ends, windows = self.text.count("\n"), self.text.count("\r\n")
        if not all_ends:
            return None
        if 2 * windows == all_ends:
            return "\r\n" if self.text.find("\n") == self.text.find("\r\n") + 1 else "\n"
        return "\r\n" if 2 * windows > all_ends else "\n"

    def unify_ends(self, text: str) -> str:
        r"""Return another text with ``\n`` in place of this file's kind of line end."""
        text = text.replace("\r\n", "\n")
        return text.replace("\r", "\n") if self.separator == "\r" else text

    def find_end(self, line: int) -> int:
        """Return the offset where a line's content ends, white space included."""
        return self.starts[line] + len(self.contents[line])

    def make_exact_view(self) -> _View:
        return _make_view(self.contents)

    def make_stripped_view(self) -> _View:
        return _make_view([line.rstrip(_TRAILING) for line in self.contents])


def _make_view(lines: Sequence[str]) -> _View:
    starts = [0]
    for line in lines[:-1]:
        starts.append(starts[-1] + len(line) + 1)
    return _View("\n".join(lines), starts)


# --- finding -------------------------------------------------------------------------------------


def find_spans(lines: TextLines, old: str, max_count: int) -> list[Span]:
    """Return the places of ``old``, in order and without overlaps.

    If there are more than ``max_count``, some are missing. If a second place overlaps the only
    other one, both are returned, because the text occurs twice.
    """
    old = lines.unify_ends(old)
    exact = _Finder(lines, lines.make_exact_view(), old)
    finders = [exact]
    stripped = "\n".join(line.rstrip(_TRAILING) for line in old.split("\n"))
    if stripped and ("\n" in old or stripped != old):
        finders.append(_Finder(lines, lines.make_stripped_view(), stripped, old))
    places: dict[int, Span] = {}
    has_lines = "\n" in old  # then at most one of each kind begins on a line
    for finder in finders:
        for span in islice(finder.find_spans(), max_count + 1):
            places.setdefault(span.first_line if has_lines else span.start, span)
    if len(places) == 1:
        ((key, only),) = places.items()
        for finder in finders:
            for span in finder.find_spans(overlapping=True):
                if (span.first_line if has_lines else span.start) != key:
                    return [only, span]
    return sorted(places.values(), key=lambda span: span.start)


class _Finder:
    r"""Finds a text in one view of the lines.

    ``original`` is the text before white space was removed from the end of its lines. If it ends in
    white space, the text must end at the end of a line. If its first line is only white space, the
    text must begin at the start of a line. To check this, the ``\n`` there is part of the search.
    """

    def __init__(self, lines: TextLines, view: _View, old: str, original: str = "") -> None:
        self._lines, self._view, self._size = lines, view, len(old)
        first, _, rest = original.partition("\n")
        last = original.rpartition("\n")[2]
        self._whole_first = bool(rest and first and not first.strip(_TRAILING))
        self._to_line_end = last != last.rstrip(_TRAILING)
        before, after = "\n" * self._whole_first, "\n" * self._to_line_end
        self._sought, self._search_texts = before + old + after, before + view.text + after

    def find_spans(self, *, overlapping: bool = False) -> Iterator[Span]:
        """Yield the places in order; with ``overlapping`` only two, which may overlap."""
        offset = count = 0
        while (offset := self._search_texts.find(self._sought, offset)) >= 0:
            yield self._locate_span(offset)
            count += 1
            if overlapping and count == 2:
                return
            offset += 1 if overlapping else self._size

    def _locate_span(self, offset: int) -> Span:
        """Return the place in the file's text; ``offset`` is its start in the view."""
        view, lines = self._view, self._lines
        end = offset + self._size
        first, last = view.find_line(offset), view.find_line(end)
        if self._whole_first:
            start = lines.starts[first]
        elif view.text[offset : offset + 1] == "\n":
            start = lines.find_end(first)
        else:
            start = lines.starts[first] + offset - view.starts[first]
        stop = lines.starts[last] + end - view.starts[last]
        return Span(start, lines.find_end(last) if self._to_line_end else stop, first, last)


# --- replacing -----------------------------------------------------------------------------------


class EditResult(Struct, frozen=True):
    """A text after an edit, and the lines, from 1, where ``old`` was."""

    text: str
    lines: tuple[int, ...]


def edit_text(text: str, old: str, new: str, name: str, *, replace_all: bool = False) -> EditResult:
    """Replace ``old`` by ``new``: the only occurrence, or all with ``replace_all``.

    The new text gets the file's line ends. Lines that ``old`` and ``new`` have in common stay
    unchanged in the file.

    Raises:
        ToolError: ``old`` does not occur, or more than once, or nothing would change.
    """
    if not old:
        raise ToolError("old is empty: give the text to replace", code="invalid_arguments")
    lines = TextLines(text)
    max_count = MAX_PLACES if replace_all else _MAX_COUNTED
    spans = find_spans(lines, old, max_count)
    if not spans:
        message = _explain_missing(lines, old, name)
        raise ToolError(message, max_chars=MAX_MESSAGE_CHARS)
    count = f"{len(spans)}" if len(spans) <= max_count else f"more than {max_count}"
    if len(spans) > 1 and not replace_all:
        raise ToolError(
            f"old occurs {count} times in {name}, at lines {_list_numbers(spans)}; "
            "give more of the text around it, or all: true to replace each"
        )
    if len(spans) > max_count:
        raise ToolError(f"old occurs {count} times in {name}: give more of the text around it")
    if len(text) + sum(len(new) - (span.end - span.start) for span in spans) > MAX_RESULT_CHARS:
        raise ToolError(
            f"the edited file would be too large (at most {MAX_RESULT_CHARS} characters)",
            code="payload_too_large",
        )
    replacement = _Replacement(lines, old, new)
    parts: list[str] = []
    position, line_numbers = 0, []
    for span in spans:
        if span.start < position:  # it overlaps the one before
            continue
        parts += (text[position : span.start], replacement.get_text(span))
        position = span.end
        line_numbers.append(span.first_line + 1)
    result = "".join((*parts, text[position:]))
    if result == text:
        raise ToolError("old and new are the same: nothing would change")
    return EditResult(result, tuple(line_numbers))


class _Replacement:
    """The text that replaces ``old``.

    Lines that ``old`` and ``new`` have in common stay unchanged in the file, with their white space
    and line ends. A changed line keeps its line end.
    """

    def __init__(self, lines: TextLines, old: str, new: str) -> None:
        self._lines, self._new = lines, new
        old_lines = lines.unify_ends(old).split("\n")
        self._new_lines = lines.unify_ends(new).split("\n")
        self._last_old, self._last_new = len(old_lines) - 1, len(self._new_lines) - 1
        self._old_numbers: list[int | None] = [None] * len(self._new_lines)
        """For each new line, the number of the old line that it equals or replaces."""
        self._common = set[int]()
        """Numbers of the new lines that equal an old one."""
        i = j = 0
        equal, _ = find_equal_lines(old_lines, self._new_lines)
        for next_i, next_j, count in (*equal, (len(old_lines), len(self._new_lines), 0)):
            replaced = min(next_i - i, next_j - j)
            self._old_numbers[j : j + replaced] = range(i, i + replaced)
            i, j = next_i + count, next_j + count
            self._old_numbers[next_j:j] = range(next_i, i)
            self._common.update(range(next_j, j))
        # The file's text after the place continues its last line, so only the old last line can be
        # kept there with its white space.
        if self._old_numbers[-1] != self._last_old:
            self._common.discard(self._last_new)

    def get_text(self, span: Span) -> str:
        """Return the text for one place."""
        line_end = self._lines.line_end
        if line_end is None:  # a file of one line: the new text has its own line ends
            return self._new
        parts: list[str] = []
        for number, (line, old_number) in enumerate(
            zip(self._new_lines, self._old_numbers, strict=True)
        ):
            own_line, own_end = line, line_end
            if old_number is not None:
                own_line, own_end = self._read_line(span, old_number, line_end)
            parts.append(own_line if number in self._common else line)
            parts.append(own_end if number < self._last_new else "")
        return "".join(parts)

    def _read_line(self, span: Span, number: int, line_end: str) -> tuple[str, str]:
        """Return a line of ``old`` as it is in the file, and its line end."""
        lines, file_line = self._lines, span.first_line + number
        start = lines.starts[file_line] if number else span.start
        if number == self._last_old:
            return lines.text[start : span.end], line_end
        end = lines.find_end(file_line)
        return lines.text[start:end], lines.text[end : lines.starts[file_line + 1]]


def _list_numbers(spans: Sequence[Span]) -> str:
    """Return the line numbers of places, counted from 1, as a list for an error."""
    listed = ", ".join(str(span.first_line + 1) for span in spans[:_MAX_NUMBERS])
    return listed + (", …" if len(spans) > _MAX_NUMBERS else "")


# --- the nearest place ---------------------------------------------------------------------------


def _explain_missing(lines: TextLines, old: str, name: str) -> str:
    """Return the message that ``old`` does not occur, with the nearest place."""
    wanted_lines = lines.unify_ends(old).strip("\n").split("\n")
    ends_line = lines.unify_ends(old).endswith("\n")
    place = _find_other_blanks(lines, wanted_lines, ends_line=ends_line)
    if place is not None:
        first, last = place
        file_text = lines.text[lines.starts[first] : lines.find_end(last)]
        where = f"line {first + 1}" if first == last else f"lines {first + 1} to {last + 1}"
        cut = "" if len(file_text) <= _MAX_COPIED else "\n[…]"
        return (
            f"old does not occur in {name}: the white space differs at {where}. "
            f"The file's own text there, to copy:\n{file_text[:_MAX_COPIED]}{cut}"
        )
    nearest = find_nearest_lines(lines, wanted_lines)
    if not nearest:
        return f"old does not occur in {name}, nor anything like it; read the file first"
    shown = "\n".join(
        f"{number + 1}: {lines.contents[number][:_MAX_COMPARED_CHARS]}" for number in nearest
    )
    return f"old does not occur in {name}. The nearest lines, with their numbers:\n{shown}"


def _find_other_blanks(
    lines: TextLines, wanted_lines: Sequence[str], *, ends_line: bool
) -> tuple[int, int] | None:
    """Return the first and last line of a place that differs only in white space.

    A part of a word does not count: ``x + 3`` does not occur in ``x + 30``.
    """
    sought = "\n".join(" ".join(line.split()) for line in wanted_lines)
    if not sought.strip():
        return None
    view = _make_view([" ".join(line.split()) for line in lines.contents])
    offset = f"\n{view.text}\n".find(f"\n{sought}\n")
    if offset < 0:  # no complete lines, so a place within lines is searched
        before = r"(?<!\w)" if _WORD.match(sought[0]) else ""
        after = r"(?!\w)" if _WORD.match(sought[-1]) else ""
        after += r"(?=\n|\Z)" if ends_line else ""
        match = re.search(f"{before}{re.escape(sought)}{after}", view.text)
        offset = -1 if match is None else match.start()
    return None if offset < 0 else (view.find_line(offset), view.find_line(offset + len(sought)))


def find_nearest_lines(lines: TextLines, wanted_lines: Sequence[str]) -> Sequence[int]:
    """Return the numbers, from 0, of the lines most similar to the wanted ones.

    Empty if none is similar.
    """
    longest_lines = sorted(range(len(wanted_lines)), key=lambda i: -len(wanted_lines[i].strip()))[
        :3
    ]
    starts = {
        max(number - i, 0)
        for i in longest_lines
        if wanted_lines[i].strip()
        for number in _find_similar(lines.contents, wanted_lines[i])
    }
    compared = range(min(len(wanted_lines), _MAX_LINES))
    best, best_score = -1, 0.4  # lines with a lower score do not look similar to people
    for start in sorted(starts):
        indexes = [i for i in compared if start + i < len(lines)]
        score = sum(
            _measure_similarity(lines.contents[start + i], wanted_lines[i]) for i in indexes
        )
        if score / len(compared) > best_score:
            best, best_score = start, score / len(compared)
    return range(best, min(best + len(compared), len(lines))) if best >= 0 else ()


def _find_similar(contents: Sequence[str], line: str) -> list[int]:
    """Return the numbers of the few lines that are most similar to a line."""
    words, size = set(_WORD.findall(line)), len(line)
    numbers: Sequence[int] = range(len(contents))
    if len(contents) > _MAX_RANKED:
        longest = max(words, key=len, default="")
        containing = [number for number in numbers if longest in contents[number]]
        numbers = (containing or numbers)[:_MAX_RANKED]
    ranked = sorted(
        numbers,
        key=lambda n: (
            -len(words.intersection(_WORD.findall(contents[n][:_MAX_COMPARED_CHARS]))),
            abs(len(contents[n]) - size),
            n,
        ),
    )[:_MAX_CANDIDATES]
    scores = {number: _measure_similarity(contents[number], line) for number in ranked}
    return sorted(scores, key=lambda number: (-scores[number], number))[:3]


def _measure_similarity(line: str, second: str) -> float:
    """Return the similarity of two lines, from 0 to 1."""
    line, second = (text.strip()[:_MAX_COMPARED_CHARS] for text in (line, second))
    matcher = difflib.SequenceMatcher(None, line, second, autojunk=False)
    # `real_quick_ratio` is an upper bound and costs almost nothing. Lines below 0.3 do not look
    # similar to people.
    return matcher.ratio() if matcher.real_quick_ratio() > 0.3 else 0.0
