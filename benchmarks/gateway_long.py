"""Processor time of a long conversation's next turn, through the gateway and its peers.

``python benchmarks/gateway_long.py`` sends a conversation of 200,000 characters that goes on turn
by turn, so that all but the last question is known. In turns it asks the gateway, with and without
a tool, LiteLLM's proxy (both before the same scripted model server), and a bare starlette, which
reads the body and answers at once. All are processes on loopback. It prints the median of each and
the median of the rounds' ratios to the bare starlette, and writes gateway_long.json. It takes 40
seconds, and a minute more to install LiteLLM; ``--no-litellm`` leaves it out. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from gateway_load import (
    HERE,
    WEATHER,
    free_port,
    gateway,
    litellm,
    peers,
    process,
    processor_seconds,
)

RESULTS = HERE / "gateway_long.json"
WORDS = "I looked at the notes and wrote down what I found in them. " * 8


def bare(port: int) -> None:
    """Serve a chat completion that reads the body and does nothing else."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def complete(request: Any) -> Any:
        body = await request.json()
        message = {"role": "assistant", "content": f"{len(body['messages'])} messages"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({"object": "chat.completion", "choices": [choice]})

    async def health(request: Any) -> Any:
        return JSONResponse({"status": "ok"})

    chat = Route("/v1/chat/completions", complete, methods=["POST"])
    uvicorn.run(Starlette(routes=[chat, Route("/health", health)]), port=port, log_level="warning")


@contextlib.contextmanager
def bare_starlette() -> Iterator[tuple[str, int]]:
    port = free_port()
    command = [sys.executable, __file__, "--bare", str(port)]
    with process(command, f"http://127.0.0.1:{port}/health", {}) as one:
        yield f"http://127.0.0.1:{port}", one.pid


class Conversation:
    """A client's conversation with one server."""

    def __init__(self, url: str, pid: int, characters: int, tools: bool) -> None:
        self.url, self.pid = url, pid
        self.messages: list[dict[str, Any]] = []
        for number in range(characters // (2 * len(WORDS))):
            self.messages.append({"role": "user", "content": f"{number}: {WORDS}"})
            self.messages.append({"role": "assistant", "content": WORDS})
        self.more = {"tools": [WEATHER]} if tools else {}

    def turn(self, client: httpx.Client) -> float:
        """Ask once more; return the seconds of processor time that the server takes for it."""
        self.messages.append({"role": "user", "content": "Go on."})
        body = {"model": "default", "messages": self.messages, "max_tokens": 1, **self.more}
        content = json.dumps(body).encode()
        headers = {"content-type": "application/json", "authorization": "Bearer none"}
        began = processor_seconds(self.pid)
        reply = client.post(f"{self.url}/v1/chat/completions", content=content, headers=headers)
        if reply.status_code != 200:
            raise SystemExit(f"{self.url}: {reply.status_code} {reply.text[:300]}")
        seconds = processor_seconds(self.pid) - began
        message = reply.json()["choices"][0]["message"]
        self.messages.append({"role": "assistant", "content": message["content"] or "-"})
        return seconds


def measured(characters: int, rounds: int, *, with_litellm: bool) -> dict[str, Any]:
    """Return the milliseconds and the ratios of each server."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    script = str(HERE / "gateway_load.py")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(
            process([sys.executable, script, "--upstream", str(port)], f"{url}/health", {})
        )
        ours = stack.enter_context(gateway(url, folder))
        conversations = {
            "bare starlette": Conversation(
                *stack.enter_context(bare_starlette()), characters, tools=False
            ),
            "gateway": Conversation(*ours, characters, tools=False),
            "gateway, with a tool": Conversation(*ours, characters, tools=True),
        }
        if with_litellm:
            theirs = stack.enter_context(litellm(url, folder))
            conversations["LiteLLM's proxy"] = Conversation(*theirs, characters, tools=False)
        client = stack.enter_context(httpx.Client(timeout=300))
        seconds: dict[str, list[float]] = {name: [] for name in conversations}
        for turn in range(rounds + 3):
            for name, conversation in conversations.items():
                spent = conversation.turn(client)
                if turn >= 3:  # the first ones load and compile
                    seconds[name].append(spent)
    least = seconds["bare starlette"]
    return {
        name: {
            "ms": round(1000 * statistics.median(times), 2),
            "ratio": round(statistics.median(a / b for a, b in zip(times, least, strict=True)), 2),
        }
        for name, times in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--characters", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--no-litellm", action="store_true")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        bare(given.bare)
        return
    if not given.no_litellm:
        peers()
    rows = measured(given.characters, given.rounds, with_litellm=not given.no_litellm)
    for name, row in rows.items():
        print(f"{name}: {row['ms']} ms, {row['ratio']} of a bare starlette")
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
