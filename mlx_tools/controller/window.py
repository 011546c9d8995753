"""The model's context and what is in it: prompts are counted before they are sent, and made to fit.

Nothing is counted, and nothing refused, where the size of the context is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Final, Literal

import anyio

from mlx_tools.backends import Backend, TokenCounter
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.session import Session, fills
from mlx_tools.controller.step import Complete
from mlx_tools.controller.summaries import Summariser
from mlx_tools.errors import BackendBroken, BackendError
from mlx_tools.messages import total_usage
from mlx_tools.prompt import (
    READER,
    Cut,
    Prompt,
    Stand,
    cut_at_rest,
    cut_to_fit,
    cut_to_sum_up,
    retold,
    tried,
    turns_of,
    worded,
)
from mlx_tools.store.artifacts import ArtifactStore
from mlx_tools.transcript.records import CompactedRecord, ObservationRecord, StoppedRecord

LEAST_TOKENS: Final = 16
"""With less room than this the model is not asked: it could not write a message."""
_DOUBT: Final = 4
"""A server that reports so many times fewer tokens than we count tells of something else."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What is sent: ``due`` with as many tokens as there is room for, its prompt of ``used``
    tokens, None where nobody has counted them. ``news``: a person is to be told that it fills."""

    due: Complete
    used: int | None = None
    news: bool = False


class Window:
    """The context of a session's model.

    ``counter`` counts tokens. ``store`` keeps what leaves the prompt, None where nothing is kept.
    """

    def __init__(
        self,
        backend: Backend,
        session: Session,
        outputs: Outputs,
        store: ArtifactStore | None,
        counter: TokenCounter,
    ) -> None:
        self._session = session
        self._outputs = outputs
        self._store = store
        self._counter = counter
        self.summariser = Summariser(backend, session, self._fits)
        self._tried = False
        self._more = 1.0

    def begin(self) -> None:
        """A new run begins: a summary that could not be had is asked for again."""
        self._tried = False

    async def fit(self, due: Complete) -> Fitted | CompactedRecord | StoppedRecord:
        """What is to be sent, what must be written down first so that it fits, or the end of a run
        that no longer does. Raises `TranscriptError` where an artifact cannot be kept."""
        size = self._session.header.context
        if size is None or _is_small(due, size):
            return Fitted(due)
        render = partial(_rendered, prefix="" if due.thought else due.rules.prefix)
        used = await self.count(due.prompt)
        spare = self._around(due)
        if fills(size, used) and self._session.header.compact == "auto" and not self._tried:
            record = await self._by_summary(render, size, used)
            if record is not None:
                return record
            self._tried = True
        thought = due.thought.budget if due.thought is not None else 0
        wanted = max(LEAST_TOKENS, min(due.max_tokens + thought, size // 8))
        for room in dict.fromkeys((wanted, LEAST_TOKENS)):
            if size - used - spare >= room:
                break
            record = await self._by_reference(render, size, size - spare - room, used)
            if record is not None:
                return record
        room = size - used - spare
        if room < LEAST_TOKENS:
            return _full(size, used + spare)
        return Fitted(_cut(due, room), used, fills(size, used) and not self._session.filling)

    async def sum_up(self) -> CompactedRecord | None:
        """The model's summary of what was said, but for the last question where there are others;
        None where nothing was said. For a session that rests.

        Raises `BackendError` where the model cannot be asked, or says nothing.
        """
        cut = cut_at_rest(self._session.prompt)
        if cut is None:
            return None
        counted = self._session.header.context is not None
        before = self._tokens(_written(self._session.prompt)) if counted else None
        record = await self._summed_up(cut, "asked", _written, before)
        if record is None:
            raise BackendBroken("the model gave no summary", hint="ask again, or begin anew")
        return record

    # --- counting ---

    async def count(self, prompt: str) -> int:
        """The tokens of the session's next prompt."""
        return await anyio.to_thread.run_sync(self._used, prompt)

    def _used(self, prompt: str) -> int:
        """The tokens of a prompt: those that the server counted in what it goes on from, where it
        said so, and our own count of the rest, or of all of it."""
        session, last = self._session, self._session.completed
        asked = session.asked
        said = last.usage.prompt_tokens if last is not None and last.requests == 1 else None
        if asked and said is not None and _DOUBT * said >= (own := self._tokens(asked)):
            self._more *= max(1.0, said / max(own, 1))
            if prompt.startswith(asked):
                return said + self._tokens(prompt) - self._tokens(asked)
        return self._tokens(prompt)

    def _tokens(self, text: str) -> int:
        """Our own count, raised by as much as the server has counted more than we did."""
        return math.ceil(self._more * self._counter.count(text))

    def _around(self, due: Complete) -> int:
        """The tokens of what the host writes around a thought."""
        if due.thought is None:
            return 0
        return TokenCounter().count(due.thought.opening + due.thought.closing)

    def _fits(self, prompt: str, tokens: int) -> bool:
        """Whether a prompt of its own, and what is written then, fits into the context."""
        size = self._session.header.context
        return size is None or self._tokens(prompt) + tokens <= size

    # --- making room ---

    async def _by_summary(
        self, render: Callable[[Prompt], str], size: int, used: int
    ) -> CompactedRecord | None:
        """The record of the oldest turns summed up; None where there are none, or no summary could
        be had: the run goes on without it, as long as it fits."""
        prompt, stand = self._session.prompt, self._stand("x" * self.summariser.summed_chars)
        choose = partial(cut_to_sum_up, prompt, stand, render, self._tokens, size=size)
        cut = await anyio.to_thread.run_sync(choose)
        if cut is None:
            return None
        try:
            return await self._summed_up(cut, "filling", render, used)
        except BackendError:
            return None

    async def _summed_up(
        self,
        cut: Cut,
        reason: Literal["asked", "filling"],
        render: Callable[[Prompt], str],
        before: int | None,
    ) -> CompactedRecord | None:
        session, words = self._session, self._session.words
        began = monotonic()
        text = retold(session.prompt, cut.gone, words)
        summary, usages = await self.summariser.sum_up(text)
        if not summary:
            return None
        key = self._kept(text)
        content = words.summed_up(self._outputs.clean(summary))
        if key is not None:
            content += "\n" + words.turns_gone(READER, key)
        record = CompactedRecord(
            reason=reason,
            gone=cut.gone,
            turns=turns_of(session.prompt, cut.gone),
            content=content,
            artifacts=() if key is None else (key,),
            before=before,
            requests=len(usages),
            usage=total_usage(usages),
            duration_ms=round((monotonic() - began) * 1000),
        )
        return self._counted(record, render)

    async def _by_reference(
        self, render: Callable[[Prompt], str], size: int, limit: int, used: int
    ) -> CompactedRecord | None:
        """The record of what leaves for a reference, None where nothing can."""
        prompt, stand = self._session.prompt, self._stand()
        choose = partial(cut_to_fit, prompt, stand, render, self._tokens, size=size, limit=limit)
        cut = await anyio.to_thread.run_sync(choose)
        if cut is None:
            return None
        leaving = [r for r in prompt.records if isinstance(r, ObservationRecord)]
        kept = {
            r.call: self._kept(r.content or "", r.artifact) for r in leaving if r.call in cut.calls
        }
        if cut.gone:
            kept[""] = self._kept(retold(prompt, cut.gone, self._session.words))
        keys = {call: key for call, key in kept.items() if key is not None}
        content, observations = worded(cut, keys, self._session.words)
        record = CompactedRecord(
            reason="full",
            gone=cut.gone,
            turns=turns_of(prompt, cut.gone),
            content=content,
            observations=observations,
            artifacts=tuple(keys.values()),
            before=used,
        )
        return self._counted(record, render)

    def _stand(self, summary: str = "") -> Stand:
        """What would stand in place of what leaves."""
        return Stand(
            self._session.words, self._store is not None and self._outputs.can_read, summary
        )

    def _kept(self, text: str, artifact: str | None = None) -> str | None:
        """The id of the artifact that keeps a text (``artifact``, where it was kept before), None
        where the model could not read it."""
        if self._store is None or not self._outputs.can_read:
            return None
        return artifact or self._store.put(self._outputs.clean(text))

    def _counted(
        self, record: CompactedRecord, render: Callable[[Prompt], str]
    ) -> CompactedRecord | None:
        """The record with the tokens of the prompt that it leaves; None where these are no fewer
        than before, so that nothing would be won, and nobody asked for it."""
        if record.before is None:
            return record
        after = self._tokens(render(tried(self._session.prompt, record)))
        if record.reason != "asked" and after >= record.before:
            return None
        return replace(record, after=after)


def _is_small(due: Complete, size: int) -> bool:
    """Whether a prompt needs no counting: a token has a byte at least, and even so it neither fills
    the context nor leaves too little."""
    around = due.thought
    most = len(due.prompt.encode("utf-8", "surrogatepass"))
    most += 0 if around is None else len(around.opening + around.closing) + around.budget
    return not fills(size, most) and most + due.max_tokens <= size


def _rendered(prompt: Prompt, *, prefix: str) -> str:
    return prompt.render(prefix)


def _written(prompt: Prompt) -> str:
    return prompt.written


def _cut(due: Complete, room: int) -> Complete:
    """``due`` within ``room`` tokens, of which a thought takes at most half."""
    if due.thought is None:
        return replace(due, max_tokens=min(due.max_tokens, room))
    thought = replace(due.thought, budget=min(due.thought.budget, room // 2))
    return replace(due, thought=thought, max_tokens=min(due.max_tokens, room - thought.budget))


def _full(size: int, used: int) -> StoppedRecord:
    message = (
        f"the prompt takes {used} tokens, and the model's context holds {size}: ask less at once, "
        "or begin a new session"
    )
    return StoppedRecord(reason="context_full", message=message, used=used)
