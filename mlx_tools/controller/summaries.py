"""Summaries that the model writes: of a long output, of a conversation.

Each is asked for in a prompt of its own. The text is part of a question, with its control tokens
broken, and the reply is never read as a message. It is shown with words that say who wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
from msgspec import Struct

from mlx_tools.backends import ErrorMappingBackend
from mlx_tools.controller.completer import CHARS_PER_TOKEN, make_request
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.session import Session
from mlx_tools.errors import BackendError
from mlx_tools.messages import Usage, total_usage
from mlx_tools.prompt import Prompt, stems
from mlx_tools.transcript import CallRecord, SummaryRecord, UserRecord

MAX_PARTS: Final = 8
"""The most parts of an output that are read. Each is a completion of some seconds on a laptop, so a
summary takes less than a minute."""
MAX_PART_CHARS: Final = 6_000
"""Characters of a part: some 1,500 tokens, which every model can read beside the question."""
MIN_SUMMARY_CHARS: Final = 120
"""Characters of one short sentence: with less room a part is not summarised."""
MAX_SUMMED_CHARS: Final = 1_600
"""Characters of the summary of a conversation: some 400 tokens, a tenth of a context of 4,096."""
_MIN_CHARS: Final = 200
"""Characters of a part below which nothing is asked: its summary would be as long as the part."""
MAX_SUMMARY_CHARS: Final = 400
"""Tokens of one or two sentences; a small model fills more room if it gets more."""
_MARKER_CHARS: Final = 40
"""Characters around the summary of a part: they say where it begins."""
_NOTICE_CHARS: Final = 300
"""Characters around all of them, which say that the middle was left out, and who wrote this."""
_CHARS_PER_TOKEN: Final = 4
"""Characters of a token of English text on average, to turn room into a token limit."""
_MIN_TOKENS: Final = 16
"""Tokens that a summary is given at least: fewer do not hold a sentence."""
_MAX_SUMMARY_SHARE: Final = 3 / 8
"""Characters of a conversation's summary for each token of the context: at three characters a token
that is an eighth of it."""
_PART_CHARS_PER_TOKEN: Final = 2
"""Characters of a part for each token of the context, at four characters a token: a part takes half
of it, and leaves the rest for the question and the summary."""
_SENTENCE_END: Final = re.compile(r"(?<=[.!?]) ")


class Part(Struct, frozen=True):
    """A piece of an output, and where it begins, in characters."""

    offset: int
    text: str


class Summariser:
    """Asks a session's model for summaries."""

    def __init__(
        self,
        backend: ErrorMappingBackend,
        session: Session,
        outputs: Outputs,
        fits: Callable[[str, int], bool],
    ) -> None:
        self._backend = backend
        self._session = session
        self._outputs = outputs
        self._fits = fits  # whether a prompt and so many tokens fit the context
        # Calls run in parallel, and a local server has one model: one summary at a time.
        self._one_summary = anyio.Lock()

    async def summarise(
        self, call: CallRecord, text: str, tell: Callable[[float], None] = lambda done: None
    ) -> SummaryRecord:
        """Ask the model for a summary of the middle of an output that is too long.

        The record has no parts where there is no room for a summary. A backend that fails ends it:
        what there is by then is kept, and ``problem`` says why there is no more. ``tell`` is told
        how far it has come, from 0 to 1.
        """
        words, question = self._session.words, self._session.question
        cut = partial(split_text, text, self._outputs.max_chars, question)
        parts, room = await anyio.to_thread.run_sync(cut)  # it may be megabytes
        said: list[dict[str, Any]] = []
        usages: list[Usage] = []
        problem = ""
        async with self._one_summary:
            for number, part in enumerate(parts):
                tell(number / len(parts))
                asked = {"question": question, "name": call.name, "text": part.text}
                prompt = self._prompt(words.text("summary.request", **asked))
                if not self._fits(prompt, _tokens(room)):
                    continue
                usages.append(Usage())
                try:
                    summary, usages[-1] = await self._ask_summary(prompt, room)
                # The summaries so far are kept: the call itself has succeeded.
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
    def max_conversation_chars(self) -> int:
        """The most characters that a summary of a conversation may have."""
        size = self._session.header.context
        if size is None:
            return MAX_SUMMED_CHARS
        return min(MAX_SUMMED_CHARS, int(size * _MAX_SUMMARY_SHARE))

    async def summarise_conversation(self, text: str) -> tuple[str, list[Usage]]:
        """Ask the model for a summary of a conversation; return it, and the usages.

        The summary is empty where the context holds no part of it beside the question. Raises
        `BackendError`.
        """
        session, words = self._session, self._session.words
        size = session.header.context
        chars = (
            MAX_PART_CHARS if size is None else max(MAX_PART_CHARS, _PART_CHARS_PER_TOKEN * size)
        )
        while chars >= _MIN_CHARS:
            parts = _select_parts(_cut(text, 0, len(text), chars), MAX_PARTS, session.question)
            room = self.max_conversation_chars // max(len(parts), 1)
            prompts = [
                self._prompt(words.text("compaction.request", text=part.text)) for part in parts
            ]
            if all(self._fits(prompt, _tokens(room)) for prompt in prompts):
                break
            # Parts are halved until prompt and summary fit, because the characters of a token are
            # unknown.
            chars //= 2
        else:
            return "", []
        async with self._one_summary:
            said = [await self._ask_summary(prompt, room) for prompt in prompts]
        return " ".join(summary for summary, _ in said if summary), [usage for _, usage in said]

    async def _ask_summary(self, prompt: str, room: int) -> tuple[str, Usage]:
        """Return the model's answer, in at most ``room`` characters."""
        session = self._session
        request = make_request(session, prompt, _tokens(room))
        text, usage, most = "", Usage(), request.max_tokens * CHARS_PER_TOKEN
        async with aclosing(self._backend.complete(request)) as chunks:
            async for chunk in chunks:
                text += chunk.text
                usage = chunk.usage or usage
                # Small models go on after a summary with another one, so it ends with its first
                # paragraph.
                if len(text) > most or is_complete(text):
                    break
        return shorten_text(without_repeats(text), room), usage

    def _prompt(self, question: str) -> str:
        """Return a prompt of its own that asks for a summary."""
        session = self._session
        words = session.words
        prompt = Prompt(
            chat_format=session.chat_format,
            style="jsonl",  # no turn of the model is in it: it is a question alone
            system=words.text("summary.system"),
            neutraliser=session.neutraliser,
            words=words,
        )
        prompt.add(UserRecord(content=question.strip("\n")))
        return prompt.render()


def split_text(text: str, limit: int, question: str) -> tuple[Sequence[Part], int]:
    """Return the parts of ``text`` to be summarised, and the size of each summary.

    The parts are in order, and cover the middle of the text, which is not shown. They end at ends
    of lines if possible. If there are too many, those that share most words with the question are
    taken. All summaries together take less than half of ``limit``.
    """
    room = limit // 2 - _NOTICE_CHARS
    most = min(MAX_PARTS, room // (MIN_SUMMARY_CHARS + _MARKER_CHARS))
    if most < 1:
        return (), 0
    # The summaries take up to half of what is shown. Head and tail share the other half as they do
    # without a summary (`shorten`), two thirds and one third of it.
    begin, end = limit // 3, len(text) - limit // 6
    even = (end - begin) // most + 1
    parts = _cut(text, begin, end, min(max(limit, even), MAX_PART_CHARS))
    parts = _select_parts(parts, most, question)
    return parts, min(room // len(parts) - _MARKER_CHARS, MAX_SUMMARY_CHARS)


def _select_parts(parts: list[Part], max_parts: int, question: str) -> list[Part]:
    """Return the parts that share most words with the question, in order."""
    if len(parts) <= max_parts:
        return parts
    wanted = set(stems(question))
    ranked = sorted(parts, key=lambda part: -len(wanted.intersection(stems(part.text))))
    return sorted(ranked[:max_parts], key=lambda part: part.offset)


def _tokens(chars: int) -> int:
    """Return the number of tokens for a summary of so many characters."""
    return max(chars // _CHARS_PER_TOKEN, _MIN_TOKENS)


def _cut(text: str, begin: int, end: int, size: int) -> list[Part]:
    parts = []
    while begin < end:
        stop = min(begin + size, end)
        if stop < end:
            # At the end of a line, if there is one in the second half: a very short part wastes a
            # request.
            line = text.rfind("\n", begin + size // 2, stop)
            stop = line + 1 if line > 0 else stop
        parts.append(Part(begin, text[begin:stop]))
        begin = stop
    return parts


def is_complete(text: str) -> bool:
    """Return whether a summary is complete: more text adds nothing.

    A paragraph is complete, or a sentence came a second time.
    """
    sentences = _sentences(text)
    return "\n\n" in text.lstrip() or len({*sentences[:-1]}) < len(sentences) - 1


def without_repeats(text: str) -> str:
    """Return the first paragraph on one line, up to the first repeated sentence."""
    told: dict[str, None] = {}
    for sentence in _sentences(text.lstrip().partition("\n\n")[0]):
        if sentence in told:
            break
        told[sentence] = None
    return " ".join(told)


def _sentences(text: str) -> list[str]:
    return _SENTENCE_END.split(" ".join(text.split()))


def shorten_text(text: str, room: int) -> str:
    """Shorten a text to whole sentences of it, or else whole words."""
    if len(text) <= room:
        return text
    head = text[: room - 1]
    sentence = max(head.rfind(f"{stop} ") for stop in ".!?")
    # A cut at a sentence reads better, if it does not throw away most of the text; else at a word,
    # if there is one in the second half: a text without blanks is cut anywhere.
    if sentence > room // 3:
        return head[: sentence + 1]
    return head[: max(head.rfind(" "), room // 2)].rstrip() + "…"
