"""Sources: results that a tool found, numbered for the model, and their citations.

A tool that finds things returns `Sources`. They are numbered when the observation is recorded, and
the numbers go on over a session, so that ``[3]`` means one thing in it. The record keeps the
sources by number: text of a source that looks like a numbered source changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mlx_tools.messages import replace
from mlx_tools.transcript.records import CarriedRecord, ObservationRecord, Record

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
    """One thing that a tool found."""

    title: str
    location: str
    """Its place: a path or a URL."""
    text: str = ""
    """Its content."""


class Sources(Struct, frozen=True):
    """The result of a tool that finds things, the best first."""

    items: tuple[Source, ...]
    note: str = ""
    """The tool's own words, after the sources, or in their place if there are none."""

    def map_texts(self, clean: Callable[[str], str]) -> Sources:
        """Return the same sources with every text passed through ``clean``."""
        found = (
            Source(clean(one.title), clean(one.location), clean(one.text)) for one in self.items
        )
        return Sources(tuple(found), clean(self.note))


class NumberedSource(Struct, frozen=True):
    """A source under the number by which the model was given it."""

    n: int
    title: str
    location: str

    def to_json(self) -> dict[str, Any]:
        """Return the source as records and ``--json`` have it."""
        return {"n": self.n, "title": self.title, "location": self.location}


class RenderedSources(NamedTuple):
    """Sources as the model reads them."""

    text: str
    sources: tuple[NumberedSource, ...]
    """The sources that are shown."""
    cut_at: int | None = None
    """The character of the whole text at which the first thing is missing, None if all fits."""
    omitted: int = 0
    """The number of characters that are missing in all."""


def read_tool_sources(value: Any) -> Sources | None:
    """Return the sources that a tool returned, alone or as a list, else None."""
    if isinstance(value, Source):
        value = Sources((value,))
    elif isinstance(value, list | tuple) and value and all(isinstance(v, Source) for v in value):
        value = Sources(tuple(value))
    if not isinstance(value, Sources):
        return None
    return replace(value, items=tuple(value.items)[:MAX_SOURCES])


def render_sources(sources: Sources, first: int = 1, room: int | None = None) -> RenderedSources:
    """Render sources as text, numbered from ``first``, in at most ``room`` characters.

    Each begins with a line of number, title and location; its text follows with every line quoted.
    If there is too little room, the longest are cut first and the last ones left out.
    """
    given = [
        NumberedSource(
            n, _line(one.title, MAX_TITLE_CHARS), _line(one.location, MAX_LOCATION_CHARS)
        )
        for n, one in enumerate(sources.items, start=first)
    ]
    heads = [_head(one) for one in given]
    blocks = [
        "\n".join((head, *_quoted(one.text)))
        for head, one in zip(heads, sources.items, strict=True)
    ]
    whole = "\n".join(blocks)
    if room is None or len(whole) <= room:
        return RenderedSources(whole, tuple(given))
    shown = _count_fitting(heads, room)
    sizes = _shares([len(block) for block in blocks[:shown]], room - (shown - 1))
    text = "\n".join(_cut(block, size) for block, size in zip(blocks, sizes, strict=False))
    cut_at = _first_cut(blocks, sizes)
    return RenderedSources(text, tuple(given[:shown]), cut_at, len(whole) - len(text))


def cited_sources(
    content: str, citations: Iterable[Any], sources: Mapping[int, NumberedSource]
) -> tuple[NumberedSource, ...]:
    """Return the sources that an answer cites, by number.

    A number that was not given is no citation, a span that holds one is none as a whole, and code
    cites nothing.

    Args:
        content: the answer, which cites as in ``[2]``.
        citations: the protocol's own list of citations: numbers, titles or locations.
        sources: the sources that the model was given.
    """
    if not sources:
        return ()
    numbers: set[int] = set()
    for line, is_code in _lines(content):
        if not is_code:
            for found in _NUMBERS.finditer(_CODE.sub(" ", line)):
                numbers |= _cited_in_match(found, sources)
    for one in citations:
        numbers |= _cited_numbers(one, sources)
    return tuple(sources[n] for n in sorted(numbers))


def expand_citations(content: str, sources: Iterable[NumberedSource]) -> str:
    """Replace citations in an answer by names, for a reader without the numbers."""
    known = {one.n: one for one in sources}
    either = re.compile(f"{_CODE.pattern}|{_NUMBERS.pattern}", re.IGNORECASE)

    def names(match: re.Match[str]) -> str:
        numbers = _cited_in_match(match, known) if any(match.groups()) else ()
        if not numbers:
            return match[0]
        return f"({'; '.join(_name(known[number]) for number in sorted(numbers))})"

    return "\n".join(
        line if is_code else either.sub(names, line) for line, is_code in _lines(content)
    )


def read_sources(rows: Iterable[Any]) -> Iterator[NumberedSource]:
    """Yield the sources that a record keeps; skip what is none."""
    for row in rows:
        match row:
            case {"n": int(n), "title": str(title), "location": str(location)} if n > 0:
                yield NumberedSource(n, title, location)


def _line(text: str, limit: int) -> str:
    """Return the text on one line, without control characters."""
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
    """Return title and location, once if they are the same."""
    return [part for part in dict.fromkeys((source.title, source.location)) if part]


def _quoted(text: str) -> Iterator[str]:
    """Yield every line of the text, quoted; several blank lines as one.

    A line ends wherever a reader may see an end.
    """
    blank = True
    for line in text.strip().splitlines():
        kept = _CONTROL.sub("", line).rstrip()
        if kept or not blank:
            yield (_QUOTE + kept).rstrip()
        blank = not kept


def _count_fitting(heads: Sequence[str], room: int) -> int:
    """Return the number of sources whose first line can be shown: at least one."""
    used = 0
    for number, head in enumerate(heads):
        used += len(head) + len(_CUT) + 1
        if used > room + 1:
            return max(number, 1)
    return len(heads)


def _shares(sizes: Sequence[int], room: int) -> list[int]:
    """Return the part of ``room`` for each size.

    A size gets all that it needs, or as much as the others that get too little.
    """
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
    """Return the place in the whole text at which the first thing is missing."""
    at = 0
    for block, size in zip(blocks, sizes, strict=False):
        if len(block) > size:
            return at + max(size - len(_CUT), 0)
        at += len(block) + 1
    return at


def _lines(content: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a text, and True for those that Markdown sets as code."""
    fence = ""
    for line in content.split("\n"):
        mark = line.lstrip()[:3]
        if mark in ("```", "~~~") and fence in ("", mark):
            fence = "" if fence else mark
            yield line, True
        else:
            yield line, bool(fence)


def _cited_in_match(match: re.Match[str], sources: Mapping[int, NumberedSource]) -> set[int]:
    """Return the given numbers between brackets.

    A span counts if all numbers in it were given.
    """
    text = next(filter(None, match.groups()))
    numbers = {int(part) for part in re.findall("[0-9]+", _SPAN.sub(" ", text))}
    for begin, end in _SPAN.findall(text):
        low, high = sorted((int(begin), int(end)))
        span = range(low, min(high, low + len(sources)) + 1)
        numbers.update(span if sources.keys() >= {*span} else ())
    return numbers & sources.keys()


def _cited_numbers(item: Any, sources: Mapping[int, NumberedSource]) -> set[int]:
    """Return the source that an item of an answer's own list names.

    The set is empty if the model was not given it.
    """
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


def list_sources(record: Record) -> Mapping[int, NumberedSource]:
    """Return the sources that the model was given with this record, by number."""
    observed = record.record if isinstance(record, CarriedRecord) else record
    if not isinstance(observed, ObservationRecord) or not observed.sources:
        return {}
    return {source.n: source for source in read_sources(observed.sources)}
