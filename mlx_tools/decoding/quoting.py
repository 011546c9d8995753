"""What a weak model answers once tools have: a quotation of what they said. Pure.

A small model copies badly: it reads *oats, lemons* and answers *oats, ciders*. What was observed
answers most questions by itself, so it is quoted: short outputs whole, of long ones the line that
matches the question best, of sources the sentence, with its number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from mlx_tools.due import Observed
from mlx_tools.lexical import Bm25, stems

WEAK_FROM: Final = 3.0
"""From which ``model.request_weight`` on a model counts as too weak for words of its own."""

WHOLE_CHARS: Final = 400
MAX_CHARS: Final = 1_200
"""An output that is no longer is quoted whole; and the most that is quoted of all of them."""

_HEAD: Final = re.compile(r"\[([0-9]+)\] .*\)")
_QUOTE: Final = re.compile(r"> ?(.*)")
_TITLE: Final = re.compile(r"#{1,6} ")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=\S)")
_NOTICE: Final = re.compile(r"\[(.*)\]", re.DOTALL)
_CUT: Final = re.compile(r"\[\.\.\. .* \.\.\.\]|\[[^\[\]]*:\]")
_FROM: Final = re.compile(r"^\[from [0-9]+\] ")
"""What the host writes where the middle was left out, and before the summary of each part of it."""


class _Unit(NamedTuple):
    """A line or a sentence; ``source`` is the number of the source that it stands in."""

    text: str
    source: int | None = None


def quoted(question: str, observed: Sequence[Observed]) -> str:
    """What the observations of a question say to it; empty where there is nothing to quote.

    Where no call has succeeded it is why the last one failed.
    """
    told = [one.text for one in observed if not one.failed]
    if told:
        parts = [_of_one(question, text) for text in told]
        said = "\n".join(dict.fromkeys(part for part in parts if part))
    else:
        said = observed[-1].text.strip() if observed else ""
    # half of a surrogate pair can stand in no message
    return said[:MAX_CHARS].encode("utf-8", "replace").decode("utf-8")


def _of_one(question: str, text: str) -> str:
    if sources := list(_sentences(text)):
        unit = sources[_best(question, sources) or 0]
        return f"{unit.text} [{unit.source}]"
    text = text.strip("\n")
    if notice := _NOTICE.fullmatch(text):
        text = notice[1]
    if len(text) <= WHOLE_CHARS:
        return text.strip()
    said = (_FROM.sub("", line.strip()) for line in text.splitlines())
    lines = [_Unit(line) for line in said if line]
    lines = [line for line in lines if not _CUT.fullmatch(line.text)]
    best = _best(question, lines)
    return _first(text) if best is None else lines[best].text[:WHOLE_CHARS]


def _sentences(text: str) -> Iterator[_Unit]:
    """The sentences of sources, as `mlx_tools.sources.lay_out` writes them; none of another text.
    What stands after them are words of the host's, and no source's."""
    number: int | None = None
    for line in text.splitlines():
        if head := _HEAD.fullmatch(line):
            number = int(head[1])
            continue
        said = _QUOTE.fullmatch(line)
        if number is not None and said is not None and not _TITLE.match(said[1]):
            parts = (part.strip() for part in _SENTENCE.split(said[1]))
            yield from (_Unit(part[:WHOLE_CHARS], number) for part in parts if part)


def _best(question: str, units: Sequence[_Unit]) -> int | None:
    """Which of the units matches the question best, the first of equal ones; None where none does
    at all."""
    asked = frozenset(stems(question))
    scores = Bm25([Counter(stems(unit.text)) for unit in units]).scores(asked)
    best = max(range(len(units)), key=lambda number: scores[number], default=None)
    return best if best is not None and scores[best] > 0 else None


def _first(text: str) -> str:
    """The first lines of a text, as far as they go into what is quoted whole."""
    cut = text[:WHOLE_CHARS]
    end = cut.rfind("\n")
    return (cut[:end] if end > 0 else cut).strip()
