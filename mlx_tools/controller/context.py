"""The model's context: prompts are counted before they are sent, and made to fit.

If the size of the context is unknown, nothing is counted and nothing refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final, Literal

import anyio.to_thread
from msgspec import Struct

from mlx_tools.backends import TokenCounter
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.session import Complete, Session, fills
from mlx_tools.controller.summaries import Summariser
from mlx_tools.errors import BackendBroken, BackendError
from mlx_tools.messages import replace, total_usage
from mlx_tools.prompt import (
    READER,
    Cut,
    Placeholders,
    Prompt,
    compact_prompt,
    conversation_text,
    count_turns,
    cut_all_turns,
    cut_to_fit,
    cut_to_sum_up,
    replacements,
)
from mlx_tools.store import ArtifactStore
from mlx_tools.transcript import (
    CompactedRecord,
    CompletionRecord,
    ObservationRecord,
    StoppedRecord,
)

MIN_TOKENS: Final = 16
"""Tokens of room below which the model is not asked: it could not write a message."""
RESERVED_TOKENS: Final = 512
"""Tokens of room below which room is made first: a call with a short text, or an answer of two
paragraphs, takes some 300 tokens."""
_RESERVED_DIVISOR: Final = 8
"""The share of a small context, one part in so many, that is kept free for a completion. In 2,048
tokens `RESERVED_TOKENS` would be a quarter, and a prompt with tools would hardly ever fit."""
_MAX_COUNT_RATIO: Final = 4
"""A server that reports so many times fewer tokens than our count means something else: some report
only the tokens that were not in their cache."""


class PromptCounter:
    """Counts as the model's server does, as far as the server reports its counts."""

    def __init__(self, session: Session, counter: TokenCounter) -> None:
        self._session = session
        self._counter = counter
        self._extra_tokens = 1.0

    async def count(self, prompt: str) -> int:
        """Return the tokens of the session's next prompt."""
        return await anyio.to_thread.run_sync(self._count_used, prompt)

    def _count_used(self, prompt: str) -> int:
        """Return the tokens of a prompt.

        The part that the server has counted has the server's count. The rest, or all of it, has our
        own count.
        """
        session, last = self._session, self._session.completed
        asked = str(session.sent_prompt)
        said = last.usage.prompt_tokens if last is not None and last.requests == 1 else None
        if asked and said is not None and _MAX_COUNT_RATIO * said >= (own := self.tokens(asked)):
            self._extra_tokens *= max(1.0, said / max(own, 1))
            if prompt.startswith(asked):
                return said + self.tokens(prompt) - self.tokens(asked)
        return self.tokens(prompt)

    def tokens(self, text: str) -> int:
        """Return our own count, raised by as much as the server's counts exceed ours."""
        return math.ceil(self._extra_tokens * self._counter.count(text))

    def fits(self, prompt: str, tokens: int) -> bool:
        """Return whether a separate prompt, with its completion, fits the context."""
        size = self._session.header.context
        return size is None or self.tokens(prompt) + tokens <= size


class FittedStep(Struct, frozen=True):
    """The step that is sent, with as many tokens as there is room for.

    Its prompt has ``used_tokens``, None if nobody has counted them. ``filling`` is True if a person
    is to be told that the context fills.
    """

    step: Complete
    used_tokens: int | None = None
    filling: bool = False


Render = Callable[[Prompt], str]


class ContextWindow:
    """The context of a session's model: removes records so that the next prompt fits."""

    def __init__(
        self,
        session: Session,
        outputs: Outputs,
        store: ArtifactStore | None,
        counter: PromptCounter,
        summariser: Summariser,
    ) -> None:
        self._session = session
        self._outputs = outputs
        self._store = store  # stores what leaves the prompt; None: nothing is stored
        self._counter = counter
        self._summariser = summariser
        self._has_tried = False

    def begin(self) -> None:
        """Begin a new run: a summary that failed is asked for again."""
        self._has_tried = False

    async def fit(self, step: Complete) -> FittedStep | CompactedRecord | StoppedRecord:
        """Return the step to be sent, or the record that must come before it.

        That is a record of what leaves the prompt, or of the end of a run that does not fit any
        more. Raises `TranscriptError` if an artifact cannot be stored.
        """
        size = self._session.header.context
        if size is None or _is_small(step, size):
            return FittedStep(step)
        prefix = "" if step.thought else step.rules.prefix

        def render(prompt: Prompt) -> str:
            return prompt.render(prefix)

        # Counted by the server if it can: an estimate that is a tenth too low would send a prompt
        # that does not fit.
        used = await self._counter.count(step.prompt)
        thought = step.thought
        around = "" if thought is None else thought.opening + thought.closing
        spare = TokenCounter().count(around)  # of the text that the host writes around a thought
        # One attempt for each run: otherwise a model that gives no summary would be asked before
        # each completion.
        if fills(size, used) and self._session.header.compact == "auto" and not self._has_tried:
            record = await self._compact_by_summary(render, size, used)
            if record is not None:
                return record
            self._has_tried = True
        budget = 0 if thought is None else thought.budget
        # Room for an ordinary turn. All of max_tokens would empty a small context without need.
        wanted = max(
            MIN_TOKENS, min(step.max_tokens + budget, RESERVED_TOKENS, size // _RESERVED_DIVISOR)
        )
        room = size - used - spare
        if room < wanted:
            record = await self._compact_by_reference(render, size, size - spare - wanted, used)
            if record is not None:
                return record
            message = (
                f"the prompt takes {used + spare} tokens, and the model's context holds {size}"
            )
            return StoppedRecord(reason="context_full", message=message, used_tokens=used + spare)
        return FittedStep(
            _limit_tokens(step, room), used, fills(size, used) and not self._session.filling
        )

    async def count_sent(self, step: FittedStep, record: CompletionRecord) -> int | None:
        """Return the tokens of a prompt that was sent.

        They are counted now if that was not needed before. None if the size of the context is
        unknown.
        """
        if self._session.header.context is None or step.used_tokens is not None:
            return step.used_tokens
        said = record.usage.prompt_tokens if record.requests == 1 else None
        return await self._counter.count(step.step.prompt) if said is None else said

    async def sum_up(self) -> CompactedRecord | None:
        """Return the model's summary of the conversation before the last question.

        If there is only one question, it is summarised too; None if the prompt is empty. The
        session must be at rest.

        Raises:
            BackendError: the model cannot be asked, or returns no text.
        """
        cut = cut_all_turns(self._session.prompt)
        if cut is None:
            return None
        counted = self._session.header.context is not None
        before = self._counter.tokens(self._session.prompt.closed_text) if counted else None
        record = await self._summarise(cut, "asked", lambda prompt: prompt.closed_text, before)
        if record is None:
            raise BackendBroken("the model gave no summary", hint="ask again, or begin anew")
        return record

    # --- making room ---

    async def _compact_by_summary(
        self, render: Render, size: int, used_tokens: int
    ) -> CompactedRecord | None:
        """Sum up the oldest turns, and return the record of it.

        None if there are none, or the model gave no summary: the run goes on without one as long as
        it fits.
        """
        prompt, tokens = self._session.prompt, self._counter.tokens
        stand = self._make_placeholders("x" * self._summariser.max_conversation_chars)
        choose = partial(cut_to_sum_up, prompt, stand, render, tokens, size=size)
        cut = await anyio.to_thread.run_sync(choose)
        if cut is None:
            return None
        try:
            return await self._summarise(cut, "filling", render, used_tokens)
        except BackendError:
            return None

    async def _summarise(
        self,
        cut: Cut,
        reason: Literal["asked", "filling"],
        render: Render,
        tokens_before: int | None,
    ) -> CompactedRecord | None:
        session, words = self._session, self._session.words
        began = monotonic()
        text = conversation_text(session.prompt, cut.removed, words)
        summary, usages = await self._summariser.summarise_conversation(text)
        if not summary:
            return None
        # Stored before it leaves the prompt: the summary names the artifact that can be read.
        key = self._store_text(text)
        content = words.text("compaction.summary", summary=self._outputs.clean(summary))
        if key is not None:
            content += "\n" + words.text("compaction.turns", name=READER, id=key)
        record = CompactedRecord(
            reason=reason,
            removed=cut.removed,
            turns=count_turns(session.prompt, cut.removed),
            content=content,
            artifacts=() if key is None else (key,),
            tokens_before=tokens_before,
            requests=len(usages),
            usage=total_usage(usages),
            duration_ms=round((monotonic() - began) * 1000),
        )
        return self._count_tokens(record, render)

    async def _compact_by_reference(
        self, render: Render, size: int, limit: int, used_tokens: int
    ) -> CompactedRecord | None:
        """Replace the oldest parts by references; return the record, None if none can go."""
        prompt, stand = self._session.prompt, self._make_placeholders()
        choose = partial(
            cut_to_fit, prompt, stand, render, self._counter.tokens, size=size, limit=limit
        )
        cut = await anyio.to_thread.run_sync(choose)
        if cut is None:
            return None
        leaving = [r for r in prompt.records if isinstance(r, ObservationRecord)]
        kept = {
            r.call: self._store_text(r.content or "", r.artifact)
            for r in leaving
            if r.call in cut.calls
        }
        if cut.removed:
            kept[""] = self._store_text(conversation_text(prompt, cut.removed, self._session.words))
        keys = {call: key for call, key in kept.items() if key is not None}
        content, observations = replacements(cut, keys, self._session.words)
        record = CompactedRecord(
            reason="full",
            removed=cut.removed,
            turns=count_turns(prompt, cut.removed),
            content=content,
            observations=observations,
            artifacts=tuple(keys.values()),
            tokens_before=used_tokens,
        )
        return self._count_tokens(record, render)

    def _make_placeholders(self, summary: str = "") -> Placeholders:
        """Return the texts that would take the place of what leaves."""
        return Placeholders(
            self._session.words, self._store is not None and self._outputs.can_read, summary
        )

    def _store_text(self, text: str, artifact: str | None = None) -> str | None:
        """Return the id of the artifact that holds a text.

        It is None if the model could not read it. ``artifact`` is the id if the text was stored
        before.
        """
        if self._store is None or not self._outputs.can_read:
            return None
        return artifact or self._store.add(self._outputs.clean(text))

    def _count_tokens(self, record: CompactedRecord, render: Render) -> CompactedRecord | None:
        """Return the record with the tokens of the prompt that it leaves.

        None if nothing is won and nobody asked for it: the prompt has no fewer tokens than before.
        """
        # Nobody counts: a person asked for the compaction, so it is done without a check.
        if record.tokens_before is None:
            return record
        after = self._counter.tokens(render(compact_prompt(self._session.prompt, record)))
        if record.reason != "asked" and after >= record.tokens_before:
            return None
        return replace(record, tokens_after=after)


def _is_small(step: Complete, size: int) -> bool:
    """Return whether a prompt needs no counting.

    A token has at least one byte. If the prompt had as many tokens as bytes, it would still leave
    enough room.
    """
    around = step.thought
    most = len(step.prompt.encode("utf-8", "surrogatepass"))
    most += 0 if around is None else len(around.opening + around.closing) + around.budget
    return not fills(size, most) and most + step.max_tokens <= size


def _limit_tokens(step: Complete, room: int) -> Complete:
    """Limit the tokens of ``step`` to ``room``; a thought gets at most half of them."""
    # A thought has a budget of its own, which must not take what the answer needs.
    if step.thought is None:
        return replace(step, max_tokens=min(step.max_tokens, room))
    thought = replace(step.thought, budget=min(step.thought.budget, room // 2))
    return replace(step, thought=thought, max_tokens=min(step.max_tokens, room - thought.budget))
