"""Summaries of long outputs, by the model itself: asked for in prompts of their own.

What a tool returned goes into the text of a question, its control tokens broken; nothing that comes
back is read as a message. It is shown within an observation, beside words that say whose it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import anyio

from mlx_tools.backends.base import Backend, CompletionRequest
from mlx_tools.backends.guard import Guarded
from mlx_tools.completer import CHARS_PER_TOKEN
from mlx_tools.errors import BackendError
from mlx_tools.lexical import stems
from mlx_tools.messages import Usage
from mlx_tools.outcome import total_usage
from mlx_tools.prompt import Prompt
from mlx_tools.records import CallRecord, SummaryRecord, UserRecord
from mlx_tools.session import Session

MAX_PARTS: Final = 8
"""How many parts of an output are read at most: each is a completion."""
MAX_PART_CHARS: Final = 6_000
"""Characters of a part: some 1,500 tokens, which every model can read beside the question."""
MIN_SUMMARY_CHARS: Final = 120
"""Less room than this for a part is not worth asking for."""
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
    """Has the model of a session summarise outputs, one at a time."""

    def __init__(self, backend: Backend, session: Session) -> None:
        self._backend = Guarded(backend)
        self._session = session
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
                usages.append(Usage())
                try:
                    summary, usages[-1] = await self._of_part(call.name, part, room)
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

    async def _of_part(self, name: str, part: Part, room: int) -> tuple[str, Usage]:
        """The summary of one part, in at most ``room`` characters."""
        session = self._session
        request = CompletionRequest(
            prompt=self._prompt(name, part.text),
            max_tokens=max(room // _CHARS_PER_TOKEN, 16),
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

    def _prompt(self, name: str, text: str) -> str:
        """A prompt of its own that asks for the summary of ``text``."""
        session = self._session
        words = session.words
        prompt = Prompt(
            chat_format=session.chat_format,
            style=session.header.style,
            system=words.summary.system,
            neutraliser=session.neutraliser,
            words=words,
        )
        asked = words.summary_request(session.question, name=name, text=text)
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
    if len(parts) > most:
        wanted = set(stems(question))
        ranked = sorted(parts, key=lambda part: -len(wanted.intersection(stems(part.text))))
        parts = sorted(ranked[:most], key=lambda part: part.offset)
    return parts, min(room // len(parts) - _AROUND_CHARS, MAX_SUMMARY_CHARS)


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
