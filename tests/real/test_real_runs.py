"""Whole runs on a real MLX server with a real model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from mlx_tools import (
    Answered,
    CompletionsBackend,
    Controller,
    Conversation,
    Limits,
    Outcome,
    Policy,
    RunSettings,
    builtin_tools,
)
from mlx_tools.backends import (
    DEFAULT_MODEL,
    find_chat_format,
    find_verdict,
    read_model_files,
)
from mlx_tools.backends.capabilities import probe_chat_format
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store.session_folder import TranscriptStore
from mlx_tools.store.transcript import load
from mlx_tools.transcript.records import CompletionRecord

pytestmark = [pytest.mark.real, pytest.mark.heavy]


def _controller(url: str, model: Path, folder: Path) -> Controller:
    found = find_chat_format(files=read_model_files(model))
    return Controller(
        CompletionsBackend(url),
        builtin_tools(),
        Policy(preset="readonly_basic"),
        limits=Limits(max_tokens=60),
        settings=RunSettings(
            chat_format=found.chat_format, strategy="free", verdict=find_verdict(DEFAULT_MODEL)
        ),
        store=TranscriptStore(folder),
    )


@pytest.mark.parametrize(
    ("question", "result"),
    [
        ("What is 17 * 23?", "391"),
        pytest.param("How much is 1024 minus 377?", "647", marks=pytest.mark.slow),
    ],
)
def test_the_model_decides_to_call_the_calculator_and_answers(
    question: str, result: str, real_server: str, real_model: Path, tmp_path: Path
) -> None:
    outcome = _controller(real_server, real_model, tmp_path).run_sync(question)
    assert isinstance(outcome, Answered)
    assert result in outcome.answer
    assert [(c.name, c.status, c.output) for c in outcome.calls] == [("calculator", "ok", result)]


def test_the_chat_format_of_a_server_that_does_not_name_its_model_is_found_out(
    real_server: str,
) -> None:
    """And no other format passes for it: it is the first that is tried."""
    others = [name for name in NAMED_FORMATS if name not in ("chatml", "plain")]

    async def main() -> None:
        backend = CompletionsBackend(real_server)
        assert await probe_chat_format(backend) == NAMED_FORMATS["chatml"]
        assert await probe_chat_format(backend, others) is None

    anyio.run(main)


@pytest.mark.slow
def test_each_turn_finds_the_turn_before_it_in_the_servers_cache(
    real_server: str, real_model: Path, tmp_path: Path
) -> None:
    questions = [
        "What is 31 * 12?",
        "Hello there!",
        "What is 999 - 111?",
        "Good night.",
        "What is 7 * 8?",
    ]

    async def ask(conversation: Conversation) -> list[Outcome]:
        return [await conversation.run(question) for question in questions]

    async def main() -> str:
        controller = _controller(real_server, real_model, tmp_path)
        async with await controller.conversation() as conversation:
            await ask(conversation)
            assert conversation.transcript is not None
            return conversation.transcript

    def reported() -> list[tuple[int, int]]:
        records = load(Path(anyio.run(main)))
        usages = [r.usage for r in records if isinstance(r, CompletionRecord)]
        assert len(usages) >= 5
        return [
            (usage.prompt_tokens, usage.cached_tokens)
            for usage in usages
            if usage.prompt_tokens is not None and usage.cached_tokens is not None
        ]

    # A busy server is not waited for: its turn's usage is unknown then.
    turns = next((found for found in (reported() for _ in range(4)) if len(found) >= 2), None)
    assert turns is not None, "the server reported nothing"
    for (earlier, _), (_, cached) in pairwise(turns):
        assert cached >= 0.97 * earlier
