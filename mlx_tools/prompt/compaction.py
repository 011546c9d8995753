"""Compaction of a long prompt: the oldest observations leave first, then turns.

Pure: a function that is passed in counts tokens, and a decision is a `CompactedRecord`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from msgspec import Struct

from mlx_tools.prompt.known_tools import READER
from mlx_tools.prompt.render import Prompt
from mlx_tools.prompt.words import PromptWords
from mlx_tools.transcript import (
    CompactedRecord,
    CompletionRecord,
    ObservationRecord,
    Record,
    UserRecord,
)

Render = Callable[[Prompt], str]
Count = Callable[[str], int]

_KEY: Final = "0f8b5c31d9e7462aa4c08e6b17f3d295"
"""An artifact's id of the usual length, before there is a real one."""
_GAIN: Final = 2
"""An observation is replaced by a reference if it is so many times as long as the reference."""


class Cut(Struct, frozen=True):
    """The observations of ``calls`` and the first ``removed`` records, which leave."""

    calls: tuple[str, ...] = ()
    removed: int = 0


class Placeholders(Struct, frozen=True):
    """The texts in place of what leaves, before anything is stored.

    ``readable`` is True if the model can read what left. ``summary`` is as long as a summary would
    be, empty if the turns are not summarised.
    """

    words: PromptWords
    readable: bool
    summary: str = ""

    def record(self, cut: Cut) -> CompactedRecord:
        """Return a record to try a cut with.

        It is about as long as the one that will be written.
        """
        keys = dict.fromkeys(("", *cut.calls), _KEY) if self.readable else {}
        content, observations = replacements(cut, keys, self.words)
        if self.summary:
            content = f"{self.words.text('compaction.summary', summary=self.summary)}\n{content}"
        return CompactedRecord(
            reason="full", removed=cut.removed, content=content, observations=observations
        )

    @property
    def observation_text(self) -> str:
        """The text in place of an observation."""
        key = _KEY if self.readable else ""
        return self.words.text("compaction.observation", name=READER, id=key)


def compact_prompt(prompt: Prompt, record: CompactedRecord) -> Prompt:
    """Return the prompt as it would be with the record."""
    other = prompt.copy()
    other.add(record)
    return other


def cut_to_fit(
    prompt: Prompt,
    placeholders: Placeholders,
    render: Render,
    count: Count,
    *,
    size: int,
    limit: int,
) -> Cut | None:
    """Return the cut by which the prompt takes at most ``limit`` tokens.

    Much leaves at once, down to half of the context or of what could leave, so that the next turns
    find the beginning of the prompt in the server's cache again. Observations that the model has
    not seen yet leave last, only as many as must, and only if the model can read them.

    Args:
        prompt: the prompt.
        placeholders: the texts in place of what leaves.
        render: renders a prompt.
        count: counts the tokens of a text.
        size: the tokens of the context.
        limit: the tokens that the prompt may take.

    Returns:
        None if no cut is enough.
    """
    steps = _steps(prompt, placeholders)
    late = _long(prompt, placeholders, unseen_only=True) if placeholders.readable else []
    early = len(steps) - 1
    steps += [
        Cut((*steps[-1].calls, *late[: number + 1]), steps[-1].removed)
        for number in range(len(late))
    ]

    @cache
    def cost(number: int) -> int:
        return count(render(compact_prompt(prompt, placeholders.record(steps[number]))))

    floor = cost(early)
    if floor <= limit:
        aim = min(limit, max(size // 2, (floor + limit) // 2))
        first, last = 1, early
    else:
        aim, first, last = limit, early + 1, len(steps) - 1
    number = bisect_left(range(first, last + 1), True, key=lambda n: cost(n) <= aim) + first
    return steps[number] if number <= last else None


def cut_to_sum_up(
    prompt: Prompt, placeholders: Placeholders, render: Render, count: Count, *, size: int
) -> Cut | None:
    """Return the oldest turns, to summarise so that the rest takes half the context.

    They are all that can leave if that is not enough; None if even these do not bring the prompt
    below four fifths.
    """
    places = _places(prompt.records)

    @cache
    def cost(place: int) -> int:
        return count(render(compact_prompt(prompt, placeholders.record(Cut(removed=place)))))

    if not places or 5 * cost(places[-1]) >= 4 * size:
        return None
    number = bisect_left(places, True, key=lambda place: cost(place) <= size // 2)
    return Cut(removed=places[min(number, len(places) - 1)])


def cut_all_turns(prompt: Prompt) -> Cut | None:
    """Return all turns before the last question, for a session at rest.

    If there is no other question, the last one leaves too; None if the prompt is empty.
    """
    records = prompt.records
    asked = [place for place, one in enumerate(records) if isinstance(one, UserRecord) and place]
    gone = asked[-1] if asked else len(records)
    return Cut(removed=gone) if gone else None


def replacements(
    cut: Cut, keys: Mapping[str, str], words: PromptWords
) -> tuple[str, Mapping[str, str]]:
    """Return the texts in place of the turns that leave, and of each observation.

    Args:
        cut: what leaves.
        keys: the artifacts that hold it, by call; those of the turns under an empty key. What has
            none is only mentioned.
        words: the words of ``prompts/``.

    Returns:
        The text for the turns, empty if none leave, and the texts of observations by call.
    """

    def text(key: str, call: str = "") -> str:
        return words.text(f"compaction.{key}", name=READER, id=keys.get(call, ""))

    content = text("turns") if cut.removed else ""
    return content, {call: text("observation", call) for call in cut.calls}


def may_leave(prompt: Prompt, removed: int, *, answering: bool) -> bool:
    """Return True if so many records may leave the prompt.

    They must be whole turns, without the turn that answers the question in progress.
    """
    ends = [] if answering else [len(prompt.records)]
    return removed in (0, *_places(prompt.records), *ends)


def conversation_text(prompt: Prompt, removed: int, words: PromptWords) -> str:
    """Return the first ``removed`` records of the prompt in words.

    Before them comes the text in place of those that left earlier.
    """
    lines = [prompt.removed_text] if prompt.removed_text else []
    lines += _render_records(prompt.records[:removed], words)
    return "\n\n".join(lines)


def count_turns(prompt: Prompt, removed: int) -> int:
    """Count the completions among the first ``removed`` records of the prompt."""
    return sum(isinstance(record, CompletionRecord) for record in prompt.records[:removed])


def _render_records(records: Sequence[Record], words: PromptWords) -> Iterator[str]:
    for record in records:
        match record:
            case UserRecord():
                yield words.text("compaction.user", text=record.content)
            case CompletionRecord() if record.retained_text.strip():
                yield words.text("compaction.model", text=record.retained_text.strip())
            case ObservationRecord():
                yield words.text("compaction.tool", text=record.shown_text, name=record.name)


def _steps(prompt: Prompt, placeholders: Placeholders) -> list[Cut]:
    """Return the cuts, step by step: each holds all of the one before.

    The first cuts nothing.
    """
    records, calls = prompt.records, _long(prompt, placeholders)
    seen = {one.call: n for n, one in enumerate(records) if isinstance(one, ObservationRecord)}
    steps = [Cut(tuple(calls[:number])) for number in range(len(calls) + 1)]
    steps += (
        Cut(tuple(call for call in calls if seen[call] >= place), place)
        for place in _places(records)
    )
    return steps


def _places(records: Sequence[Record]) -> list[int]:
    """Return the places where turns begin, except the first.

    What stands before a place can leave; the last turn stays. A question begins the turn that
    answers it.
    """
    return [
        place
        for place, one in enumerate(records)
        if (place and isinstance(one, UserRecord))
        or (isinstance(one, CompletionRecord) and not isinstance(records[place - 1], UserRecord))
    ]


def _long(prompt: Prompt, placeholders: Placeholders, *, unseen_only: bool = False) -> list[str]:
    """Return the calls whose observations are worth replacing, the oldest first.

    They are those of the last turn (``unseen_only``) or of the turns before it.
    """
    records = prompt.records
    last = [0, *_places(records)][-1]
    some = records[last:] if unseen_only else records[:last]
    observed = (one for one in some if isinstance(one, ObservationRecord) and one.error is None)
    least = _GAIN * len(placeholders.observation_text)
    return [one.call for one in observed if len(one.content or "") > least]
