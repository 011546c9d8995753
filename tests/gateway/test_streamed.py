"""A turn that is streamed comes to what it comes to whole, wherever the server cuts it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.backends import Chunk
from mlx_tools.gateway.answer_sender import AnswerSender, StopTexts
from mlx_tools.gateway.request import ApiError, ClientMessage, TextAdded, TurnEvent, TurnRequest
from mlx_tools.messages import TOOL_NAME, ToolSpec
from mlx_tools.protocol import DEFAULT_REASONING_MARKERS
from mlx_tools.testing import ScriptedBackend, make_turn_runner
from tests.suites import dialect_vectors

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
MOST_CHARS = 2_000

Case = tuple[str, tuple[ToolSpec, ...]]


@cache
def golden() -> tuple[Case, ...]:
    """The texts of models in the golden transcripts, each once, with the tools that they had."""
    found: dict[str, Case] = {}
    for path in sorted(ROOT.glob("golden_transcripts/**/*.jsonl")):
        tools: tuple[ToolSpec, ...] = ()
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            record = json.loads(line)
            if record["type"] == "header":
                tools = tuple(_spec(tool) for tool in record.get("tools", ()))
            elif record["type"] == "completion" and tools and len(record["text"]) < MOST_CHARS:
                found.setdefault(record["text"], (record["text"], tools))
    return tuple(found.values())


@cache
def dialects() -> tuple[Case, ...]:
    """Calls in the forms of sixty families."""
    return tuple(
        (vector["text"], tuple(_spec(tool["function"]) for tool in vector["tools"]))
        for vector in dialect_vectors()
        if vector["tools"]
        and all(TOOL_NAME.fullmatch(t["function"]["name"]) for t in vector["tools"])
    )


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    parameters = {"type": "object", "properties": {}, **(tool.get("parameters") or {})}
    return ToolSpec(tool["name"], tool.get("description") or "", parameters, plugin="client")


def closes_a_thought_it_did_not_open(text: str) -> bool:
    """Return whether what was told as text turns out to be a thought."""
    return any(
        closer in text and opener not in text.partition(closer)[0]
        for opener, closer in DEFAULT_REASONING_MARKERS
    )


def is_same(text: str, streamed: tuple[Any, ...], whole: tuple[Any, ...]) -> bool:
    """Return whether a turn comes to the same, but for text that was told and stays."""
    if streamed == whole:
        return True
    told, end = streamed[1], whole[1]
    stays = told.startswith(end) or told.endswith(end)
    return (
        closes_a_thought_it_did_not_open(text)
        and stays
        and (streamed[0], *streamed[2:]) == (whole[0], *whole[2:])
    )


async def turn(
    text: str, tools: Sequence[ToolSpec], pieces: Sequence[str], strategy: str = "free"
) -> tuple[Any, ...]:
    """The end of a turn, and the text that its events join to."""
    told: list[TurnEvent] = []
    backend = _Pieces(pieces)
    request = TurnRequest(messages=(ClientMessage("user", "Go."),), tools=tuple(tools))
    number = iter(range(1000))
    try:
        speaker = make_turn_runner(backend, strategy=strategy)
        done = await speaker.run(request, told.append, lambda: str(next(number)))
    except ApiError as error:
        return error.status, error.code
    assert "".join(one.text for one in told if isinstance(one, TextAdded)) == done.text
    for call in done.calls:
        assert isinstance(json.loads(call.arguments), dict)
    return done.finish, done.text, done.calls, done.repairs


class _Pieces(ScriptedBackend):
    """The same text for every request, cut at the same places."""

    def __init__(self, pieces: Sequence[str]) -> None:
        super().__init__()
        self._pieces = pieces

    async def complete(self, request: Any) -> Any:
        for piece in self._pieces:
            yield Chunk(piece)
        yield Chunk("", "stop")


@pytest.mark.parametrize(
    ("source", "strategy"), [(golden, "free"), (golden, "auto"), (dialects, "free")]
)
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
async def test_character_by_character_it_is_the_same(source: Any, strategy: str, step: int) -> None:
    for text, tools in source()[1 % step :: step]:
        whole = await turn(text, tools, [text], strategy)
        assert is_same(text, await turn(text, tools, [*text], strategy), whole), text


@pytest.mark.slow
@pytest.mark.parametrize("source", [golden, dialects])
async def test_at_every_split_it_is_the_same(source: Any) -> None:
    for text, tools in source():
        whole = await turn(text, tools, [text])
        for at in range(1, len(text)):
            cut = await turn(text, tools, [text[:at], text[at:]])
            assert is_same(text, cut, whole), text[:at]


def test_of_stop_texts_that_overlap_the_one_that_is_whole_first_ends_the_text() -> None:
    """As it would be read letter by letter, however the text is split."""
    for texts, whole, said, stop, rest in (
        (("abcd", "bc"), "xabcd.", "xa", "bc", "d."),
        (("bc", "abcd"), "xabcd.", "xa", "bc", "d."),
        (("abc", "bc"), "xabc.", "x", "abc", "."),
        (("bc", "abc"), "xabc.", "x", "abc", "."),
        (("abcd", "xab"), "abxabcd", "ab", "xab", "cd"),
        (("aab", "ab"), "aaab", "a", "aab", ""),
        (("STOP", "ST"), "STOP", "", "ST", "OP"),
        (("STOP", "TO", ""), "a STOOL", "a S", "TO", "OL"),
        (("STOP",), "a STOOL", "a STOOL", "", ""),
        (("STOP", "never"), "a STO", "a STO", "", ""),  # no more comes
        (("STOP", "never"), "neve", "neve", "", ""),
    ):
        for size in range(1, len(whole) + 1):
            stops = StopTexts(texts)
            pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
            told = "".join(stops.feed(piece) for piece in pieces)
            told += stops.feed("", is_last=True)
            assert (told, stops.stop_text, stops.pending_text) == (said, stop, ""), (texts, size)
            if size == len(whole):
                assert stops.text_after == rest


@pytest.mark.parametrize(
    ("is_seen", "said", "whole", "text"),
    [
        (True, "Rome is", "Paris it is.", "Rome is\n\nParis it is."),
        (True, "First.\n\nRome is", "Rome is it.", "First.\n\nRome is it."),
        (True, "Rome is", "Rome is it.", "Rome is it."),
        (False, "Rome is", "Paris it is.", "Paris it is."),
    ],
)
def test_text_that_a_client_has_seen_stays_when_the_whole_is_another(
    is_seen: bool, said: str, whole: str, text: str
) -> None:
    emitted: list[str] = []
    answer = AnswerSender((), emitted.append, is_seen=is_seen)
    answer.say(said)
    answer.say_remainder(whole)
    assert answer.text == text
    assert not is_seen or "".join(emitted) == text
