"""A stock mlx-lm server: what kills it when asked by others, and that nothing of ours does."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from mlx_tools import Answered, Controller, Policy, tool
from mlx_tools.backends import CompletionsBackend, ServerBackend
from mlx_tools.controller import RunSettings
from mlx_tools.errors import BackendDead
from mlx_tools.transcript import Outcome
from tests.backends.asking import ask, collect, request
from tests.backends.test_server_process import wait_until_gone
from tests.backends.tiny import END, LLAMA, SLIDING, make_chain_model, make_tiny_model
from tests.conftest import ENVIRON
from tests.processes import is_alive
from tests.waiting import HANG

pytestmark = [pytest.mark.real, pytest.mark.slow]

PROMPT = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"


def raw(url: str, prompt: str, **options: Any) -> str:
    """The text, asked for as any client may: without a seed. Empty where no answer came."""
    try:
        body = {"prompt": prompt, "temperature": 0, **options}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=HANG)
        return str(answer.json()["choices"][0]["text"]) if answer.status_code == 200 else ""
    except (httpx.HTTPError, ValueError):
        return ""


@pytest.fixture(scope="module")
def tiny_model(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", real_model, LLAMA)


@pytest.fixture
def own(tiny_model: Path, tmp_path: Path) -> Iterator[ServerBackend]:
    """A server that may be killed."""
    server = ServerBackend(tiny_model, log_folder=tmp_path, environ=ENVIRON)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.aclose())


def client(server: ServerBackend) -> CompletionsBackend:
    return asyncio.run(server.get_client())


def status(server: ServerBackend) -> str:
    return asyncio.run(server.health(30)).status


NO_END = {"2": -100, "41": -100}
"""Forbids what ends a completion: the end token, and the digit 9."""

CACHED_WHOLE = "Either input_embeddings or prompt"
"""The line of the server's log for a prompt that its cache held whole."""


@pytest.mark.parametrize("tokens", [1, 8])
def test_what_kills_the_server_is_recognised_and_our_own_is_started_again(
    own: ServerBackend, tokens: int
) -> None:
    url, ours, before = own.url or "", client(own), own.pid
    text = raw(url, PROMPT, max_tokens=tokens, logit_bias=NO_END)
    raw(url, PROMPT + text, max_tokens=2)
    if status(own) == "ok":
        pytest.skip("this mlx-lm survives what killed 0.32.2: correct docs/backends.md")
    with pytest.raises(BackendDead, match=url):
        ask(ours)
    assert ask(own, max_tokens=2)[1].finish_reason is not None
    assert own.pid != before
    assert any("started again" in note for note in own.notes)


def test_a_completion_continued_with_its_own_text_is_answered(
    own: ServerBackend, tmp_path: Path
) -> None:
    backend = client(own)
    for tokens in (1, 2, 8):
        text = ""
        for _ in range(5):
            text += ask(backend, PROMPT + text, max_tokens=tokens)[0]
        ask(backend, PROMPT + text + END, max_tokens=tokens)
        ask(backend, PROMPT + text + "9", max_tokens=tokens)
    assert status(own) == "ok"
    (log,) = tmp_path.glob("*.log")
    assert CACHED_WHOLE in log.read_text()


def test_an_entry_that_cannot_be_shortened_is_pushed_out_of_the_cache(
    real_model: Path, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "sliding", real_model, SLIDING)
    server = ServerBackend(model, log_folder=tmp_path, environ=ENVIRON)
    prompt = "One two three four five six seven eight nine ten eleven twelve"
    try:
        for tokens in (1, 2, 8):
            text, _ = ask(server, prompt, max_tokens=tokens)
            ask(server, prompt + text, max_tokens=tokens)
        assert status(server) == "ok"
        assert server.notes == ()
        (log,) = tmp_path.glob("*.log")
        assert CACHED_WHOLE in log.read_text()
    finally:
        asyncio.run(server.aclose())


# --- random walks -----------------------------------------------------------------------------


class Walk:
    """Random requests, each built from what was asked and answered before."""

    def __init__(self, url: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.backends = [
            CompletionsBackend(url),
            CompletionsBackend(url.replace("127.0.0.1", "localhost")),
        ]
        self.known = ["1 2 3", PROMPT, "Ein süßer Igel 7", "<|im_start|>", "a  b \n\n c"]
        self.answered = 0

    def prompt(self) -> str:
        """A new prompt: one that is known, cut, joined or lengthened."""
        text = self.random.choice(self.known[-40:])
        change = self.random.randrange(8)
        if change == 0:
            text = text[: self.random.randint(1, len(text))]
        elif change == 4:
            text = text[:-1] or text
        elif change == 1:
            text += self.random.choice([END, END + "\n", "9", "9", "\n", " "])
        elif change == 2:
            text = text.rpartition(" ")[0] or text
        elif change == 3:
            text += self.random.choice([" 1", "x", "é", '{"type":"', "<|im_start|>user\n"])
        return text[-400:]

    async def step(self) -> None:
        """One request; closed early, now and then."""
        prompt, backend = self.prompt(), self.random.choice(self.backends)
        options = {
            "max_tokens": self.random.choice([1, 1, 2, 3, 5, 8]),
            "temperature": self.random.choice([0.0, 0.0, 1.5]),
            "seed": self.random.choice([None, None, 0, 7]),
        }
        stop_after = self.random.choice([None, None, None, 1, 2])
        text, seen = "", 0
        async with aclosing(backend.complete(request(prompt, timeout=300.0, **options))) as chunks:
            async for chunk in chunks:
                text, seen = text + chunk.text, seen + 1
                if seen == stop_after:
                    break
        self.answered += 1
        self.known += [prompt, prompt + text]

    async def run(self, rounds: int) -> None:
        """Rounds of one to three requests at once."""
        for _ in range(rounds):
            await asyncio.gather(*(self.step() for _ in range(self.random.choice([1, 1, 2, 3]))))


def test_no_walk_of_requests_kills_the_server_or_stays_unanswered(
    own: ServerBackend, tmp_path: Path
) -> None:
    for seed in (1, 2, 3):
        walk = Walk(own.url or "", seed)
        asyncio.run(walk.run(40))
        assert status(own) == "ok"
        assert walk.answered >= 40
    (log,) = tmp_path.glob("*.log")
    assert log.read_text().count(CACHED_WHOLE) > 5  # it did walk into what kills others


# --- the rest of a real server ----------------------------------------------------------------


def test_the_embedded_model_answers_and_its_cache_is_reported(real_server: str) -> None:
    backend = CompletionsBackend(real_server)
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    text, last = ask(backend, prompt, max_tokens=7, timeout=300, idle_timeout=300)
    assert "Paris" in text
    assert last.usage is not None
    assert last.usage.completion_tokens == 7
    assert not last.edited
    again = ask(backend, prompt, max_tokens=1, timeout=300, idle_timeout=300)[1].usage
    assert again is not None
    assert again.cached_tokens is not None
    assert again.prompt_tokens is not None
    assert again.cached_tokens >= again.prompt_tokens - 1


def test_a_stream_that_is_closed_stops_the_generation(real_server: str) -> None:
    async def closed(backend: CompletionsBackend) -> None:
        for _ in range(3):
            long = request(PROMPT, max_tokens=100_000)
            async with aclosing(backend.complete(long)) as chunks:
                await anext(chunks)
        # Had they gone on, this would wait for their 300,000 tokens, and time out.
        chunks = await collect(backend, "something else", max_tokens=1)
        assert chunks[-1].finish_reason is not None

    asyncio.run(closed(CompletionsBackend(real_server)))


PARENT = """
import asyncio, sys
from pathlib import Path
from mlx_tools.backends import CompletionRequest, ServerBackend

async def main():
    server = ServerBackend(sys.argv[1], log_folder=Path(sys.argv[2]))
    await server.start()
    print(server.pid, flush=True)
    async for _ in server.complete(CompletionRequest(prompt="word " * 6000)):
        pass

asyncio.run(main())
"""


def test_a_server_that_reads_a_long_prompt_is_gone_when_its_parent_is_killed(
    real_model: Path, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(real_model), str(tmp_path)],
        stdout=subprocess.PIPE,
        env=ENVIRON,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(120)
        assert wait_until_gone(pid)


# --- its own function calling: its template, its parser, its stream; and what it drops -----------


GOOD = '{"name": "weather", "arguments": {"city": "Paris"}}'
CALLS = {
    "<tools>": "<tool_call>",
    "</tool_call>": END,
    "<result>": "It is sunny.",
    "It is sunny.": END,
}


def run(folder: Path, log: Path) -> tuple[Outcome, list[str]]:
    asked: list[str] = []

    @tool(effects={"read"})
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return f"sunny in {city}"

    async def answered() -> Outcome:
        server = ServerBackend(folder, log_folder=log, environ=ENVIRON)
        try:
            controller = Controller(
                backend=server,
                tools=[weather],
                policy=Policy(allow=["weather"]),
                settings=RunSettings(route={"path": "native"}),
            )
            return await controller.run("Is it sunny in Paris?")
        finally:
            await server.aclose()

    return anyio.run(answered), asked


def test_calls_that_the_server_reads_run(real_model: Path, tmp_path: Path) -> None:
    chain = CALLS | {"<tool_call>": GOOD, GOOD: "</tool_call>"}
    outcome, asked = run(make_chain_model(tmp_path / "model", real_model, chain), tmp_path)
    assert isinstance(outcome, Answered), outcome
    assert (outcome.answer, asked) == ("It is sunny.", ["Paris"])
    assert outcome.calls[0].repairs == () and outcome.mends == 0
    assert outcome.usage.prompt_tokens


def test_calls_that_the_server_drops_are_asked_for_by_the_prompt(
    real_model: Path, tmp_path: Path
) -> None:
    broken, rest = '{"name": "weather", ', 'weather","arguments":{"city":"Paris"}}'
    chain = CALLS | {"<tool_call>": broken, broken: "</tool_call>", '":"': rest, rest: END}
    outcome, asked = run(make_chain_model(tmp_path / "model", real_model, chain), tmp_path)
    assert isinstance(outcome, Answered), outcome
    assert (outcome.answer, asked, outcome.mends) == ("It is sunny.", ["Paris"], 1)
