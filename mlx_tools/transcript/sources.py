"""Sources: what a tool found, numbered for the model, and those that an answer cites.

A tool that finds things returns `Sources`. The numbers are given when its observation is recorded,
and go on counting over a session, so that ``[3]`` means one thing in it. The record keeps which
number is what: text of a source that looks like a numbered source changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mlx_tools.messages import replace

MAX_SOURCES: Final = 100
"""Sources that one call may return; further ones are left out."""

MAX_TITLE_CHARS: Final = 200
MAX_LOCATION_CHARS: Final = 2000

_QUOTE: Final = "> "
"""Begins each line of a source's text, so that none of them can look like the next source."""

_CUT: Final = "…"
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_SOME: Final = r"\^?([0-9]{1,6}(?: {0,2}(?:[-\u2013,;&]|and) {0,2}\^?[0-9]{1,6}){0,50})"
_NUMBERS: Final = re.compile(
    rf"\[(?:sources?:? )?{_SOME}\\?\]"
    rf"|\((?:sources?|refs?):? \[?{_SOME}\]?\)"
    r"|\u3010([0-9]{1,6})(?:\u2020[^\u3011\n]{0,80})?\u3011",
    re.IGNORECASE,
)
"""``[2]``, ``[1, 2]``, ``[1-3]``, ``[^2]``, ``[source 2]``, ``(source 2)``, and what some models
were taught: ``【2†…】``."""

_CODE: Final = re.compile(r"`[^`\n]+`")
_SPAN: Final = re.compile(r"([0-9]+) *[-\u2013] *\^?([0-9]+)")


class Source(Struct, frozen=True):
    """One thing that was found: its title, where it stands (a path or a URL), and what it says."""

    title: str
    location: str
    text: str = ""


class Sources(Struct, frozen=True):
    """The result of a tool that finds things, the best first.

    ``note`` is the tool's own words, said after them, or in their place where nothing was found.
    """

    found: tuple[Source, ...]
    note: str = ""

    def cleaned(self, clean: Callable[[str], str]) -> Sources:
        """The same with every text passed through ``clean``."""
        found = (
            Source(clean(one.title), clean(one.location), clean(one.text)) for one in self.found
        )
        return Sources(tuple(found), clean(self.note))


class NumberedSource(Struct, frozen=True):
    """A source under the number by which the model was given it."""

    n: int
    title: str
    location: str

    def to_json(self) -> dict[str, Any]:
        """As records and ``--json`` have it."""
        return {"n": self.n, "title": self.title, "location": self.location}


class RenderedSources(NamedTuple):
    """Sources as the model reads them.

    ``given`` are those that are shown. Where not all fitted, ``cut_at`` is the character of the
    whole text at which the first thing is missing, and ``omitted`` how many are missing in all.
    """

    text: str
    given: tuple[NumberedSource, ...]
    cut_at: int | None = None
    omitted: int = 0


def sources_of(value: Any) -> Sources | None:
    """The sources that a tool returned, alone or as a list of them; None for any other value."""
    if isinstance(value, Source):
        value = Sources((value,))
    elif isinstance(value, list | tuple) and value and all(isinstance(v, Source) for v in value):
        value = Sources(tuple(value))
    if not isinstance(value, Sources):
        return None
    return replace(value, found=tuple(value.found)[:MAX_SOURCES])


def render_sources(sources: Sources, first: int = 1, room: int | None = None) -> RenderedSources:
    """The sources as text, numbered from ``first`` on, in at most ``room`` characters.

    Each begins with a line of number, title and location; its text follows with every line quoted.
    Where there is too little room the longest are cut first, and the last ones left out.
    """
    given = [
        NumberedSource(
            n, _line(one.title, MAX_TITLE_CHARS), _line(one.location, MAX_LOCATION_CHARS)
        )
        for n, one in enumerate(sources.found, start=first)
    ]
    heads = [_head(one) for one in given]
    blocks = [
        "\n".join((head, *_quoted(one.text)))
        for head, one in zip(heads, sources.found, strict=True)
    ]
    whole = "\n".join(blocks)
    if room is None or len(whole) <= room:
        return RenderedSources(whole, tuple(given))
    shown = _that_fit(heads, room)
    sizes = _shares([len(block) for block in blocks[:shown]], room - (shown - 1))
    text = "\n".join(_cut(block, size) for block, size in zip(blocks, sizes, strict=False))
    cut_at = _first_cut(blocks, sizes)
    return RenderedSources(text, tuple(given[:shown]), cut_at, len(whole) - len(text))


def cited_sources(
    content: str, citations: Iterable[Any], sources: Mapping[int, NumberedSource]
) -> tuple[NumberedSource, ...]:
    """The given sources that an answer cites, by number: in its text as ``[2]``, or in
    ``citations``, the protocol's own list of them (numbers, or titles or locations).

    A number nobody gave is none, a span that holds one is none as a whole, and code cites nothing.
    """
    if not sources:
        return ()
    numbers: set[int] = set()
    for line, is_code in _lines(content):
        if not is_code:
            for found in _NUMBERS.finditer(_CODE.sub(" ", line)):
                numbers |= _meant_by(found, sources)
    for one in citations:
        numbers |= _cited_numbers(one, sources)
    return tuple(sources[n] for n in sorted(numbers))


def expand_citations(content: str, sources: Iterable[NumberedSource]) -> str:
    """An answer with its citations as names, for a reader who was not given the numbers."""
    known = {one.n: one for one in sources}
    either = re.compile(f"{_CODE.pattern}|{_NUMBERS.pattern}", re.IGNORECASE)

    def names(match: re.Match[str]) -> str:
        numbers = _meant_by(match, known) if any(match.groups()) else ()
        if not numbers:
            return match[0]
        return f"({'; '.join(_name(known[number]) for number in sorted(numbers))})"

    return "\n".join(
        line if is_code else either.sub(names, line) for line, is_code in _lines(content)
    )


def given_in(rows: Iterable[Any]) -> Iterator[NumberedSource]:
    """The sources that a record keeps; what is none is passed over."""
    for row in rows:
        match row:
            case {"n": int(n), "title": str(title), "location": str(location)} if n > 0:
                yield NumberedSource(n, title, location)


def _line(text: str, limit: int) -> str:
    """The text on one line, without control characters."""
    line = _CONTROL.sub("", " ".join(text[: 4 * limit].split()))
    return line if len(line) <= limit else line[: limit - 1] + _CUT


def _head(source: NumberedSource) -> str:
    known = _name_and_location(source)
    if len(known) < 2:
        return f"[{source.n}] {''.join(known)}".rstrip()
    return f"[{source.n}] {source.title} ({source.location})"


def _name(source: NumberedSource) -> str:
    return ", ".join(_name_and_location(source))


def _name_and_location(source: NumberedSource) -> list[str]:
    """Title and location, once where they are the same."""
    return [part for part in dict.fromkeys((source.title, source.location)) if part]


def _quoted(text: str) -> Iterator[str]:
    """Every line of the text, wherever a reader may see one end, quoted; blank ones but once."""
    blank = True
    for line in text.strip().splitlines():
        kept = _CONTROL.sub("", line).rstrip()
        if kept or not blank:
            yield (_QUOTE + kept).rstrip()
        blank = not kept


def _that_fit(heads: Sequence[str], room: int) -> int:
    """The number of sources that can be shown at least by their first line: one in any case."""
    used = 0
    for number, head in enumerate(heads):
        used += len(head) + len(_CUT) + 1
        if used > room + 1:
            return max(number, 1)
    return len(heads)


def _shares(sizes: Sequence[int], room: int) -> list[int]:
    """The part of ``room`` that each gets: all that it needs, or as much as the others that
    lack."""
    shares = [0] * len(sizes)
    left = room
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    for done, number in enumerate(order):
        shares[number] = max(min(sizes[number], left // (len(order) - done)), 0)
        left -= shares[number]
    return shares


def _cut(block: str, size: int) -> str:
    return block if len(block) <= size else block[: max(size - len(_CUT), 0)] + _CUT[:size]


def _first_cut(blocks: Sequence[str], sizes: Sequence[int]) -> int:
    """Where in the whole text the first thing is missing."""
    at = 0
    for block, size in zip(blocks, sizes, strict=False):
        if len(block) > size:
            return at + max(size - len(_CUT), 0)
        at += len(block) + 1
    return at


def _lines(content: str) -> Iterator[tuple[str, bool]]:
    """The lines of a text, and whether Markdown sets each as code."""
    fence = ""
    for line in content.split("\n"):
        mark = line.lstrip()[:3]
        if mark in ("```", "~~~") and fence in ("", mark):
            fence = "" if fence else mark
            yield line, True
        else:
            yield line, bool(fence)


def _meant_by(match: re.Match[str], sources: Mapping[int, NumberedSource]) -> set[int]:
    """The given numbers between brackets, and those within spans of nothing but given ones."""
    text = next(filter(None, match.groups()))
    numbers = {int(part) for part in re.findall("[0-9]+", _SPAN.sub(" ", text))}
    for begin, end in _SPAN.findall(text):
        low, high = sorted((int(begin), int(end)))
        span = range(low, min(high, low + len(sources)) + 1)
        numbers.update(span if sources.keys() >= {*span} else ())
    return numbers & sources.keys()


def _cited_numbers(item: Any, sources: Mapping[int, NumberedSource]) -> set[int]:
    """The source that an item of an answer's own list names; none where nobody gave it."""
    match item:
        case bool():
            return set()
        case int():
            return {item} & sources.keys()
        case str():
            named = item.strip()
            if number := re.fullmatch(r"\[?\^?([0-9]{1,6})\]?", named):
                return {int(number[1])} & sources.keys()
            return {s.n for s in sources.values() if named and named in (s.location, s.title)}
        case Mapping():
            keys = ("n", "number", "id", "location", "url", "path", "title")
            values = (item[key] for key in keys if isinstance(item.get(key), str | int))
            return next(
                (found for value in values if (found := _cited_numbers(value, sources))), set()
            )
    return set()
