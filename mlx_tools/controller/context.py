"""The model's context and what is in it: prompts are counted before they are sent, and made to fit.

Nothing is counted, and nothing refused, where the size of the context is unknown. Long outputs, and
what was said, are summed up by the model, in prompts of their own: the text goes into a question,
its control tokens broken; nothing that comes back is read as a message. It is shown beside words
that say whose it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, Literal

import anyio
from msgspec import Struct

from mlx_tools.backends import ErrorMappingBackend, TokenCounter
from mlx_tools.controller.completer import CHARS_PER_TOKEN, request_for
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.session import Complete, Session, fills
from mlx_tools.errors import BackendBroken, BackendError
from mlx_tools.messages import Usage, replace, total_usage
from mlx_tools.prompt import (
    READER,
    Cut,
    Placeholders,
    Prompt,
    compact_prompt,
    conversation_text,
    count_turns,
    cut_at_rest,
    cut_to_fit,
    cut_to_sum_up,
    replacements,
    stems,
)
from mlx_tools.store import ArtifactStore
from mlx_tools.transcript import (
    CallRecord,
    CompactedRecord,
    ObservationRecord,
    StoppedRecord,
    SummaryRecord,
    UserRecord,
)

LEAST_TOKENS: Final = 16
"""With less room than this the model is not asked: it could not write a message."""
ROOM_TOKENS: Final = 512
"""If less room than this is left for a completion, room is made first: a call with a short text,
or an answer of two paragraphs, takes some 300 tokens."""
_DOUBT: Final = 4
"""A server that reports so many times fewer tokens than we count tells of something else."""

MAX_PARTS: Final = 8
"""How many parts of an output are read at most: each is a completion."""
MAX_PART_CHARS: Final = 6_000
"""Characters of a part: some 1,500 tokens, which every model can read beside the question."""
MIN_SUMMARY_CHARS: Final = 120
"""Less room than this for a part is not worth asking for."""
MAX_SUMMED_CHARS: Final = 1_600
"""What all that was said in a conversation is summed up in."""
_LEAST_CHARS: Final = 200
"""A part that is smaller than this is not asked about."""
MAX_SUMMARY_CHARS: Final = 400
"""What one or two sentences take; a small model that is left more room fills it."""
_AROUND_CHARS: Final = 40
"""What stands around the summary of a part: where it begins."""
_NOTICE_CHARS: Final = 300
"""What stands around all of them: that and how the middle was left out, and who wrote this."""
_CHARS_PER_TOKEN: Final = 4
_SENTENCE_END: Final = re.compile(r"(?<=[.!?]) ")


class Part(Struct, frozen=True):
    """A piece of an output, and where it begins, in characters."""

    offset: int
    text: str


class FittedStep(Struct, frozen=True):
    """The step that is sent: ``step`` with as many tokens as there is room for, its prompt of
    ``used`` tokens, None where nobody has counted them. ``filling``: a person is to be told that it
    fills."""

    step: Complete
    used: int | None = None
    filling: bool = False


Render = Callable[[Prompt], str]


@dataclass(repr=False, eq=False)
class ContextWindow:
    """The context of a session's model, and what the model sums up to keep it.

    ``counter`` counts tokens. ``store`` keeps what leaves the prompt, None where nothing is kept.
    """

    _backend: ErrorMappingBackend
    _session: Session
    _outputs: Outputs
    _store: ArtifactStore | None
    _counter: TokenCounter

    def __post_init__(self) -> None:
        self._own_summary = anyio.Lock()  # one summary at a time
        self._has_tried = False
        self._extra_tokens = 1.0

    def begin(self) -> None:
        """Begin a new run: a summary that could not be had is asked for again."""
        self._has_tried = False

    async def fit(self, step: Complete) -> FittedStep | CompactedRecord | StoppedRecord:
        """The step to be sent, what must be written down first so that it fits, or the end of a run
        that no longer does. Raises `TranscriptError` where an artifact cannot be kept."""
        size = self._session.header.context
        if size is None or _is_small(step, size):
            return FittedStep(step)
        prefix = "" if step.thought else step.rules.prefix

        def render(prompt: Prompt) -> str:
            return prompt.render(prefix)

        used = await self.count(step.prompt)
        thought = step.thought
        around = "" if thought is None else thought.opening + thought.closing
        spare = TokenCounter().count(around)  # of what the host writes around a thought
        if fills(size, used) and self._session.header.compact == "auto" and not self._has_tried:
            record = await self._by_summary(render, size, used)
            if record is not None:
                return record
            self._has_tried = True
        budget = 0 if thought is None else thought.budget
        wanted = max(LEAST_TOKENS, min(step.max_tokens + budget, ROOM_TOKENS, size // 8))
        room = size - used - spare
        if room < wanted:
            record = await self._by_reference(render, size, size - spare - wanted, used)
            if record is not None:
                return record
            message = (
                f"the prompt takes {used + spare} tokens, and the model's context holds {size}: "
                "ask less at once, or begin a new session"
            )
            return StoppedRecord(reason="context_full", message=message, used=used + spare)
        return FittedStep(
            _limit_tokens(step, room), used, fills(size, used) and not self._session.filling
        )

    async def sum_up(self) -> CompactedRecord | None:
        """The model's summary of what was said, but for the last question where there are others;
        None where nothing was said. For a session that rests.

        Raises `BackendError` where the model cannot be asked, or says nothing.
        """
        cut = cut_at_rest(self._session.prompt)
        if cut is None:
            return None
        counted = self._session.header.context is not None
        before = self._tokens(self._session.prompt.written) if counted else None
        record = await self._summed_up(cut, "asked", lambda prompt: prompt.written, before)
        if record is None:
            raise BackendBroken("the model gave no summary", hint="ask again, or begin anew")
        return record

    # --- counting ---

    async def count(self, prompt: str) -> int:
        """The tokens of the session's next prompt."""
        return await anyio.to_thread.run_sync(self._count_used, prompt)

    def _count_used(self, prompt: str) -> int:
        """The tokens of a prompt: those that the server counted in what it goes on from, where it
        said so, and our own count of the rest, or of all of it."""
        session, last = self._session, self._session.completed
        asked = session.asked
        said = last.usage.prompt_tokens if last is not None and last.requests == 1 else None
        if asked and said is not None and _DOUBT * said >= (own := self._tokens(asked)):
            self._extra_tokens *= max(1.0, said / max(own, 1))
            if prompt.startswith(asked):
                return said + self._tokens(prompt) - self._tokens(asked)
        return self._tokens(prompt)

    def _tokens(self, text: str) -> int:
        """Our own count, raised by as much as the server has counted more than we did."""
        return math.ceil(self._extra_tokens * self._counter.count(text))

    def _fits(self, prompt: str, tokens: int) -> bool:
        """Return whether a prompt of its own, and what is written then, fits into the context."""
        size = self._session.header.context
        return size is None or self._tokens(prompt) + tokens <= size

    # --- making room ---

    async def _by_summary(
        self, render: Render, size: int, used_tokens: int
    ) -> CompactedRecord | None:
        """The record of the oldest turns summed up; None where there are none, or no summary could
        be had: the run goes on without it, as long as it fits."""
        prompt, stand = self._session.prompt, self._stand("x" * self._summed_chars)
        choose = partial(cut_to_sum_up, prompt, stand, render, self._tokens, size=size)
        cut = await anyio.to_thread.run_sync(choose)
        if cut is None:
            return None
        try:
            return await self._summed_up(cut, "filling", render, used_tokens)
        except BackendError:
            return None

    async def _summed_up(
        self,
        cut: Cut,
        reason: Literal["asked", "filling"],
        render: Render,
        tokens_before: int | None,
    ) -> CompactedRecord | None:
        session, words = self._session, self._session.words
        began = monotonic()
        text = conversation_text(session.prompt, cut.removed, words)
        summary, usages = await self._summaries(text)
        if not summary:
            return None
        key = self._kept(text)
        content = words.text("compaction.summary", summary=self._outputs.clean(summary))
        if key is not None:
            content += "\n" + words.text("compaction.turns", name=READER, id=key)
        record = CompactedRecord(
            reason=reason,
            removed=cut.removed,
            turns=count_turns(session.prompt, cut.removed),
            content=content,
            artifacts=() if key is None else (key,),
            before=tokens_before,
            requests=len(usages),
            usage=total_usage(usages),
            duration_ms=round((monotonic() - began) * 1000),
        )
        return self._count_tokens(record, render)

    async def _by_reference(
        self, render: Render, size: int, limit: int, used_tokens: int
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
        if cut.removed:
            kept[""] = self._kept(conversation_text(prompt, cut.removed, self._session.words))
        keys = {call: key for call, key in kept.items() if key is not None}
        content, observations = replacements(cut, keys, self._session.words)
        record = CompactedRecord(
            reason="full",
            removed=cut.removed,
            turns=count_turns(prompt, cut.removed),
            content=content,
            observations=observations,
            artifacts=tuple(keys.values()),
            before=used_tokens,
        )
        return self._count_tokens(record, render)

    def _stand(self, summary: str = "") -> Placeholders:
        """The texts that would stand in place of what leaves."""
        return Placeholders(
            self._session.words, self._store is not None and self._outputs.can_read, summary
        )

    def _kept(self, text: str, artifact: str | None = None) -> str | None:
        """The id of the artifact that keeps a text (``artifact``, where it was kept before), None
        where the model could not read it."""
        if self._store is None or not self._outputs.can_read:
            return None
        return artifact or self._store.put(self._outputs.clean(text))

    def _count_tokens(self, record: CompactedRecord, render: Render) -> CompactedRecord | None:
        """The record with the tokens of the prompt that it leaves; None where these are no fewer
        than before, so that nothing would be won, and nobody asked for it."""
        if record.before is None:
            return record
        after = self._tokens(render(compact_prompt(self._session.prompt, record)))
        if record.reason != "asked" and after >= record.before:
            return None
        return replace(record, after=after)

    # --- summaries ---

    async def summarise(
        self, call: CallRecord, text: str, tell: Callable[[float], None] = lambda done: None
    ) -> SummaryRecord:
        """The model's summary of the middle of ``text``, an output that is too long to be shown.

        The record has no parts where there is no room for a summary. A backend that fails ends it:
        what there is by then is kept, and ``problem`` says why there is no more. ``tell`` is told
        how far it has come, from 0 to 1.
        """
        words, question = self._session.words, self._session.question
        cut = partial(parts_of, text, self._outputs.most_chars, question)
        parts, room = await anyio.to_thread.run_sync(cut)  # it may be megabytes
        said: list[dict[str, Any]] = []
        usages: list[Usage] = []
        problem = ""
        async with self._own_summary:
            for number, part in enumerate(parts):
                tell(number / len(parts))
                asked = {"question": question, "name": call.name, "text": part.text}
                prompt = self._prompt(words.text("summary.request", **asked))
                if not self._fits(prompt, _tokens(room)):
                    continue
                usages.append(Usage())
                try:
                    summary, usages[-1] = await self._ask_summary(prompt, room)
                except BackendError as error:
                    problem = error.message
                    break
                if summary:
                    said.append({"offset": part.offset, "summary": summary})
        return SummaryRecord(
            call=call.call,
            parts=tuple(said),
            problem=problem,
            requests=len(usages),
            usage=total_usage(usages),
        )

    @property
    def _summed_chars(self) -> int:
        """In how many characters a conversation is summed up: in an eighth of the context."""
        size = self._session.header.context
        return MAX_SUMMED_CHARS if size is None else min(MAX_SUMMED_CHARS, size * 3 // 8)

    async def _summaries(self, text: str) -> tuple[str, list[Usage]]:
        """The model's summary of ``text``, a conversation, and the usage of each request.

        The summary is empty where the context holds no part of it beside the question. Raises
        `BackendError`.
        """
        session, words = self._session, self._session.words
        size = session.header.context
        chars = MAX_PART_CHARS if size is None else max(MAX_PART_CHARS, 2 * size)
        while chars >= _LEAST_CHARS:
            parts = _select_parts(_cut(text, 0, len(text), chars), MAX_PARTS, session.question)
            room = self._summed_chars // max(len(parts), 1)
            prompts = [
                self._prompt(words.text("compaction.request", text=part.text)) for part in parts
            ]
            if all(self._fits(prompt, _tokens(room)) for prompt in prompts):
                break
            chars //= 2
        else:
            return "", []
        async with self._own_summary:
            said = [await self._ask_summary(prompt, room) for prompt in prompts]
        return " ".join(summary for summary, _ in said if summary), [usage for _, usage in said]

    async def _ask_summary(self, prompt: str, room: int) -> tuple[str, Usage]:
        """The model's answer, in at most ``room`` characters."""
        session = self._session
        request = request_for(session, prompt, _tokens(room))
        text, usage, most = "", Usage(), request.max_tokens * CHARS_PER_TOKEN
        async with aclosing(self._backend.complete(request)) as chunks:
            async for chunk in chunks:
                text += chunk.text
                usage = chunk.usage or usage
                if len(text) > most or is_said(text):
                    break
        return shorten_text(without_repeats(text), room), usage

    def _prompt(self, question: str) -> str:
        """A prompt of its own that asks for a summary."""
        session = self._session
        words = session.words
        prompt = Prompt(
            chat_format=session.chat_format,
            style="jsonl",  # of which nothing is written: it is a question alone
            system=words.text("summary.system"),
            neutraliser=session.neutraliser,
            words=words,
        )
        prompt.add(UserRecord(content=question.strip("\n")))
        return prompt.render()


def _is_small(step: Complete, size: int) -> bool:
    """Return whether a prompt needs no counting: a token has a byte at least, and even so it
    neither fills the context nor leaves too little."""
    around = step.thought
    most = len(step.prompt.encode("utf-8", "surrogatepass"))
    most += 0 if around is None else len(around.opening + around.closing) + around.budget
    return not fills(size, most) and most + step.max_tokens <= size


def _limit_tokens(step: Complete, room: int) -> Complete:
    """``step`` within ``room`` tokens, of which a thought takes at most half."""
    if step.thought is None:
        return replace(step, max_tokens=min(step.max_tokens, room))
    thought = replace(step.thought, budget=min(step.thought.budget, room // 2))
    return replace(step, thought=thought, max_tokens=min(step.max_tokens, room - thought.budget))


def parts_of(text: str, limit: int, question: str) -> tuple[Sequence[Part], int]:
    """The parts of ``text`` to be summarised, in order, and the room for the summary of each, in
    characters: all of them together take less than half of ``limit``.

    They are cut out of the middle, which is left out of what is shown, at ends of lines where there
    are some. Of too many, those are taken that share most words with the question.
    """
    room = limit // 2 - _NOTICE_CHARS
    most = min(MAX_PARTS, room // (MIN_SUMMARY_CHARS + _AROUND_CHARS))
    if most < 1:
        return (), 0
    begin, end = limit // 3, len(text) - limit // 6
    even = (end - begin) // most + 1
    parts = _cut(text, begin, end, min(max(limit, even), MAX_PART_CHARS))
    parts = _select_parts(parts, most, question)
    return parts, min(room // len(parts) - _AROUND_CHARS, MAX_SUMMARY_CHARS)


def _select_parts(parts: list[Part], max_parts: int, question: str) -> list[Part]:
    """Of too many parts those that share most words with the question, in order."""
    if len(parts) <= max_parts:
        return parts
    wanted = set(stems(question))
    ranked = sorted(parts, key=lambda part: -len(wanted.intersection(stems(part.text))))
    return sorted(ranked[:max_parts], key=lambda part: part.offset)


def _tokens(chars: int) -> int:
    """The tokens that a summary of so many characters is given."""
    return max(chars // _CHARS_PER_TOKEN, 16)


def _cut(text: str, begin: int, end: int, size: int) -> list[Part]:
    parts = []
    while begin < end:
        stop = min(begin + size, end)
        if stop < end:
            line = text.rfind("\n", begin + size // 2, stop)
            stop = line + 1 if line > 0 else stop
        parts.append(Part(begin, text[begin:stop]))
        begin = stop
    return parts


def is_said(text: str) -> bool:
    """Return whether what follows adds nothing: a paragraph is over, or a sentence came a second
    time."""
    sentences = _sentences(text)
    return "\n\n" in text.lstrip() or len({*sentences[:-1]}) < len(sentences) - 1


def without_repeats(text: str) -> str:
    """The first paragraph on one line, up to the first sentence that comes a second time."""
    told: dict[str, None] = {}
    for sentence in _sentences(text.lstrip().partition("\n\n")[0]):
        if sentence in told:
            break
        told[sentence] = None
    return " ".join(told)


def _sentences(text: str) -> list[str]:
    return _SENTENCE_END.split(" ".join(text.split()))


def shorten_text(text: str, room: int) -> str:
    """``text`` in at most ``room`` characters: whole sentences of it, or else whole words."""
    if len(text) <= room:
        return text
    head = text[: room - 1]
    sentence = max(head.rfind(f"{stop} ") for stop in ".!?")
    if sentence > room // 3:
        return head[: sentence + 1]
    return head[: max(head.rfind(" "), room // 2)].rstrip() + "…"
