"""Summaries of long outputs and conversations, by the model: asked for in prompts of their own.

What a tool returned, or was said, goes into the text of a question, its control tokens broken;
nothing that comes back is read as a message. It is shown beside words that say whose it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import anyio

from mlx_tools.backends import Backend, CompletionRequest, Guarded
from mlx_tools.controller.completer import CHARS_PER_TOKEN
from mlx_tools.controller.session import Session
from mlx_tools.errors import BackendError
from mlx_tools.messages import Usage, total_usage
from mlx_tools.prompt import Prompt
from mlx_tools.prompt.lexical import stems
from mlx_tools.transcript.records import CallRecord, SummaryRecord, UserRecord

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


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an output, and where it begins, in characters."""

    offset: int
    text: str


class Summariser:
    """Has the model of a session summarise outputs, one at a time.

    ``fits`` says whether a prompt, and so many tokens for what is written, fit into the context.
    """

    def __init__(
        self,
        backend: Backend,
        session: Session,
        fits: Callable[[str, int], bool] = lambda prompt, tokens: True,
    ) -> None:
        self._backend = Guarded(backend)
        self._session = session
        self._fits = fits
        self._one = anyio.Lock()

    async def summarise(
        self, call: CallRecord, text: str, tell: Callable[[float], None] = lambda done: None
    ) -> SummaryRecord:
        """What the model says of the middle of ``text``, an output that is too long to be shown.

        The record has no parts where there is no room for a summary. A backend that fails ends it:
        what there is by then is kept, and ``problem`` says why there is no more. ``tell`` is told
        how far it has come, from 0 to 1.
        """
        limit = self._session.limits.max_observation_chars
        cut = partial(parts_of, text, limit, self._session.question)
        parts, room = await anyio.to_thread.run_sync(cut)  # it may be megabytes
        said: list[dict[str, Any]] = []
        usages: list[Usage] = []
        problem = ""
        async with self._one:
            for number, part in enumerate(parts):
                tell(number / len(parts))
                prompt = self._prompt(self._asked(call.name, part.text))
                if not self._fits(prompt, _tokens(room)):
                    continue
                usages.append(Usage())
                try:
                    summary, usages[-1] = await self._said(prompt, room)
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
    def summed_chars(self) -> int:
        """In how many characters a conversation is summed up: in an eighth of the context."""
        size = self._session.header.context
        return MAX_SUMMED_CHARS if size is None else min(MAX_SUMMED_CHARS, size * 3 // 8)

    async def sum_up(self, text: str) -> tuple[str, list[Usage]]:
        """What the model says of ``text``, a conversation, and the usage of each request.

        The summary is empty where the context holds no part of it beside the question. Raises
        `BackendError`.
        """
        session, words = self._session, self._session.words
        size = session.header.context
        chars = MAX_PART_CHARS if size is None else max(MAX_PART_CHARS, 2 * size)
        while chars >= _LEAST_CHARS:
            parts = _chosen(_cut(text, 0, len(text), chars), MAX_PARTS, session.question)
            room = self.summed_chars // max(len(parts), 1)
            prompts = [self._prompt(words.summing_up(part.text)) for part in parts]
            if all(self._fits(prompt, _tokens(room)) for prompt in prompts):
                break
            chars //= 2
        else:
            return "", []
        async with self._one:
            said = [await self._said(prompt, room) for prompt in prompts]
        return " ".join(summary for summary, _ in said if summary), [usage for _, usage in said]

    async def _said(self, prompt: str, room: int) -> tuple[str, Usage]:
        """What the model says, in at most ``room`` characters."""
        session = self._session
        request = CompletionRequest(
            prompt=prompt,
            max_tokens=_tokens(room),
            temperature=session.header.sampling.get("temperature", 0.0),
            seed=session.header.sampling.get("seed"),
            timeout=session.limits.completion_timeout,
            idle_timeout=session.limits.idle_timeout,
        )
        text, usage, most = "", Usage(), request.max_tokens * CHARS_PER_TOKEN
        async with aclosing(cast(Any, self._backend.complete(request))) as chunks:
            async for chunk in chunks:
                text += chunk.text
                usage = chunk.usage or usage
                if len(text) > most or is_said(text):
                    break
        return shortened(once(text), room), usage

    def _asked(self, name: str, text: str) -> str:
        session = self._session
        return session.words.summary_request(session.question, name=name, text=text)

    def _prompt(self, asked: str) -> str:
        """A prompt of its own that asks for a summary."""
        session = self._session
        words = session.words
        prompt = Prompt(
            chat_format=session.chat_format,
            style="jsonl",  # of which nothing is written: it is a question alone
            system=words.summary_system,
            neutraliser=session.neutraliser,
            words=words,
        )
        prompt.add(UserRecord(content=asked.strip("\n")))
        return prompt.render()


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
    parts = _chosen(parts, most, question)
    return parts, min(room // len(parts) - _AROUND_CHARS, MAX_SUMMARY_CHARS)


def _chosen(parts: list[Part], most: int, question: str) -> list[Part]:
    """Of too many parts those that share most words with the question, in order."""
    if len(parts) <= most:
        return parts
    wanted = set(stems(question))
    ranked = sorted(parts, key=lambda part: -len(wanted.intersection(stems(part.text))))
    return sorted(ranked[:most], key=lambda part: part.offset)


def _tokens(chars: int) -> int:
    """How many tokens a summary of so many characters is given."""
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
    """Whether what follows adds nothing: a paragraph is over, or a sentence came a second time."""
    sentences = _sentences(text)
    return "\n\n" in text.lstrip() or len({*sentences[:-1]}) < len(sentences) - 1


def once(text: str) -> str:
    """The first paragraph on one line, up to the first sentence that comes a second time."""
    told: dict[str, None] = {}
    for sentence in _sentences(text.lstrip().partition("\n\n")[0]):
        if sentence in told:
            break
        told[sentence] = None
    return " ".join(told)


def _sentences(text: str) -> list[str]:
    return _SENTENCE_END.split(" ".join(text.split()))


def shortened(text: str, room: int) -> str:
    """``text`` in at most ``room`` characters: whole sentences of it, or else whole words."""
    if len(text) <= room:
        return text
    head = text[: room - 1]
    sentence = max(head.rfind(f"{stop} ") for stop in ".!?")
    if sentence > room // 3:
        return head[: sentence + 1]
    return head[: max(head.rfind(" "), room // 2)].rstrip() + "…"
