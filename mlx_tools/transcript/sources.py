"""Sources: search results of a tool, numbered for the model, and their citations.

A tool that searches returns `Sources`. They are numbered when the observation is recorded. The
numbers continue through a session, so ``[3]`` always means the same source. The record has the
sources by number, so a source cannot forge another one by text that looks like a numbered source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mlx_tools.messages import replace
from mlx_tools.transcript.records import CarriedRecord, ObservationRecord, Record

MAX_SOURCES: Final = 100
"""The limit of sources of one call; the others are left out."""

MAX_TITLE_CHARS: Final = 200
MAX_LOCATION_CHARS: Final = 2000

_QUOTE: Final = "> "
"""The beginning of each line of a source's text, so that no line can look like the next source."""

_CUT: Final = "…"
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_SOME: Final = r"\^?([0-9]{1,6}(?: {0,2}(?:[-\u2013,;&]|and) {0,2}\^?[0-9]{1,6}){0,50})"
_NUMBERS: Final = re.compile(
    rf"\[(?:sources?:? )?{_SOME}\\?\]"
    rf"|\((?:sources?|refs?):? \[?{_SOME}\]?\)"
    r"|\u3010([0-9]{1,6})(?:\u2020[^\u3011\n]{0,80})?\u3011",
    re.IGNORECASE,
)
"""Citations: ``[2]``, ``[1, 2]``, ``[1-3]``, ``[^2]``, ``[source 2]``, ``(source 2)``, and the form
that some models were trained on: ``【2†…】``."""

_CODE: Final = re.compile(r"`[^`\n]+`")
_SPAN: Final = re.compile(r"([0-9]+) *[-\u2013] *\^?([0-9]+)")


class Source(Struct, frozen=True):
    """One search result of a tool."""

    title: str
    location: str
    """The path or URL."""
    text: str = ""
    """The content."""


class Sources(Struct, frozen=True):
    """The result of a tool that searches, the best sources first."""

    items: tuple[Source, ...]
    note: str = ""
    """A text of the tool, which is shown after the sources, or alone if there are none."""

    def map_texts(self, clean: Callable[[str], str]) -> Sources:
        """Return the same sources, with ``clean`` applied to each text."""
        cleaned = (
            Source(clean(item.title), clean(item.location), clean(item.text)) for item in self.items
        )
        return Sources(tuple(cleaned), clean(self.note))


class NumberedSource(Struct, frozen=True):
    """A source with the number by which the model knows it."""

    n: int
    title: str
    location: str

    def to_json(self) -> dict[str, Any]:
        """Return the source as it is in records and in the output of ``--json``."""
        return {"n": self.n, "title": self.title, "location": self.location}


class RenderedSources(NamedTuple):
    """Sources as the model reads them."""

    text: str
    sources: tuple[NumberedSource, ...]
    """The sources that are shown."""
    cut_at: int | None = None
    """The position in the whole text of the first missing character, None if nothing is missing."""
    omitted: int = 0
    """The number of missing characters."""


def read_tool_sources(value: Any) -> Sources | None:
    """Return the sources in a tool's result, None if it has none.

    The result may be `Sources`, one source, or a list of sources.
    """
    if isinstance(value, Source):
        value = Sources((value,))
    elif isinstance(value, list | tuple) and value and all(isinstance(v, Source) for v in value):
        value = Sources(tuple(value))
    if not isinstance(value, Sources):
        return None
    return replace(value, items=tuple(value.items)[:MAX_SOURCES])


def render_sources(sources: Sources, first: int = 1, room: int | None = None) -> RenderedSources:
    """Render sources as text, numbered from ``first``, in at most ``room`` characters.

    Each source begins with a line of number, title and location. Its text follows, each line
    quoted. If there is too little room, the longest texts are cut first, and the last sources are
    left out.
    """
    numbered = [
        NumberedSource(
            n, _to_line(item.title, MAX_TITLE_CHARS), _to_line(item.location, MAX_LOCATION_CHARS)
        )
        for n, item in enumerate(sources.items, start=first)
    ]
    heads = [_make_head(source) for source in numbered]
    blocks = [
        "\n".join((head, *_quote_lines(item.text)))
        for head, item in zip(heads, sources.items, strict=True)
    ]
    whole = "\n".join(blocks)
    if room is None or len(whole) <= room:
        return RenderedSources(whole, tuple(numbered))
    shown = _count_fitting(heads, room)
    sizes = _share_room([len(block) for block in blocks[:shown]], room - (shown - 1))
    text = "\n".join(_cut(block, size) for block, size in zip(blocks, sizes, strict=False))
    cut_at = _find_first_cut(blocks, sizes)
    return RenderedSources(text, tuple(numbered[:shown]), cut_at, len(whole) - len(text))


def find_citations(
    content: str, citations: Iterable[Any], sources: Mapping[int, NumberedSource]
) -> tuple[NumberedSource, ...]:
    """Return the sources that an answer cites, sorted by number.

    An unknown number is not a citation. A span with an unknown number is not one, either. Code is
    not searched.

    Args:
        content: the answer, with citations such as ``[2]``.
        citations: the list of citations in the answer's message: numbers, titles or locations.
        sources: the sources that the model knows, by number.
    """
    if not sources:
        return ()
    numbers: set[int] = set()
    for line, is_code in _split_lines(content):
        if not is_code:
            for match in _NUMBERS.finditer(_CODE.sub(" ", line)):
                numbers |= _read_match(match, sources)
    for item in citations:
        numbers |= _read_item(item, sources)
    return tuple(sources[n] for n in sorted(numbers))


def expand_citations(content: str, sources: Iterable[NumberedSource]) -> str:
    """Replace the citations in an answer with names, for a reader without the numbers."""
    by_number = {source.n: source for source in sources}
    either = re.compile(f"{_CODE.pattern}|{_NUMBERS.pattern}", re.IGNORECASE)

    def write_names(match: re.Match[str]) -> str:
        numbers = _read_match(match, by_number) if any(match.groups()) else ()
        if not numbers:
            return match[0]
        return f"({'; '.join(_write_name(by_number[number]) for number in sorted(numbers))})"

    return "\n".join(
        line if is_code else either.sub(write_names, line)
        for line, is_code in _split_lines(content)
    )


def read_sources(rows: Iterable[Any]) -> Iterator[NumberedSource]:
    """Yield the sources of a record; skip rows that are not valid sources."""
    for row in rows:
        match row:
            case {"n": int(n), "title": str(title), "location": str(location)} if n > 0:
                yield NumberedSource(n, title, location)


def _to_line(text: str, limit: int) -> str:
    """Return the text as one line, without control characters, cut to ``limit``."""
    line = _CONTROL.sub("", " ".join(text[: 4 * limit].split()))
    return line if len(line) <= limit else line[: limit - 1] + _CUT


def _make_head(source: NumberedSource) -> str:
    parts = _list_names(source)
    if len(parts) < 2:
        return f"[{source.n}] {''.join(parts)}".rstrip()
    return f"[{source.n}] {source.title} ({source.location})"


def _write_name(source: NumberedSource) -> str:
    return ", ".join(_list_names(source))


def _list_names(source: NumberedSource) -> list[str]:
    """Return title and location; only one if they are the same or one is empty."""
    return [part for part in dict.fromkeys((source.title, source.location)) if part]


def _quote_lines(text: str) -> Iterator[str]:
    """Yield each line of the text, quoted. Several blank lines become one.

    All of Unicode's line breaks count, because a reader may take any of them for a line break.
    """
    blank = True
    for line in text.strip().splitlines():
        cleaned = _CONTROL.sub("", line).rstrip()
        if cleaned or not blank:
            yield (_QUOTE + cleaned).rstrip()
        blank = not cleaned


def _count_fitting(heads: Sequence[str], room: int) -> int:
    """Return the number of sources whose first lines fit into the room, at least 1."""
    used = 0
    for number, head in enumerate(heads):
        used += len(head) + len(_CUT) + 1
        if used > room + 1:
            return max(number, 1)
    return len(heads)


def _share_room(sizes: Sequence[int], room: int) -> list[int]:
    """Divide ``room`` among texts of these sizes.

    Short texts get all the room that they need. The long ones get equal parts of what remains.
    """
    shares = [0] * len(sizes)
    remaining = room
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    for done, number in enumerate(order):
        shares[number] = max(min(sizes[number], remaining // (len(order) - done)), 0)
        remaining -= shares[number]
    return shares


def _cut(block: str, size: int) -> str:
    return block if len(block) <= size else block[: max(size - len(_CUT), 0)] + _CUT[:size]


def _find_first_cut(blocks: Sequence[str], sizes: Sequence[int]) -> int:
    """Return the position in the whole text of the first missing character."""
    position = 0
    for block, size in zip(blocks, sizes, strict=False):
        if len(block) > size:
            return position + max(size - len(_CUT), 0)
        position += len(block) + 1
    return position


def _split_lines(content: str) -> Iterator[tuple[str, bool]]:
    """Yield each line of a Markdown text, and True if it is code in a fence."""
    fence = ""
    for line in content.split("\n"):
        mark = line.lstrip()[:3]
        if mark in ("```", "~~~") and fence in ("", mark):
            fence = "" if fence else mark
            yield line, True
        else:
            yield line, bool(fence)


def _read_match(match: re.Match[str], sources: Mapping[int, NumberedSource]) -> set[int]:
    """Return the known numbers in a citation.

    A span counts only if all of its numbers are known.
    """
    text = next(filter(None, match.groups()))
    numbers = {int(part) for part in re.findall("[0-9]+", _SPAN.sub(" ", text))}
    for begin, end in _SPAN.findall(text):
        low, high = sorted((int(begin), int(end)))
        span = range(low, min(high, low + len(sources)) + 1)
        numbers.update(span if sources.keys() >= {*span} else ())
    return numbers & sources.keys()


def _read_item(item: Any, sources: Mapping[int, NumberedSource]) -> set[int]:
    """Return the numbers of the sources that an item of a list of citations names.

    The set is empty if the source is unknown.
    """
    match item:
        case bool():
            return set()
        case int():
            return {item} & sources.keys()
        case str():
            name = item.strip()
            if number := re.fullmatch(r"\[?\^?([0-9]{1,6})\]?", name):
                return {int(number[1])} & sources.keys()
            return {s.n for s in sources.values() if name and name in (s.location, s.title)}
        case Mapping():
            keys = ("n", "number", "id", "location", "url", "path", "title")
            values = (item[key] for key in keys if isinstance(item.get(key), str | int))
            return next(
                (numbers for value in values if (numbers := _read_item(value, sources))), set()
            )
    return set()


def list_sources(record: Record) -> Mapping[int, NumberedSource]:
    """Return the sources that this record shows the model, by number."""
    observation = record.record if isinstance(record, CarriedRecord) else record
    if not isinstance(observation, ObservationRecord) or not observation.sources:
        return {}
    return {source.n: source for source in read_sources(observation.sources)}
