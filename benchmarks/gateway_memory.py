"""The memory of ``mlx-tools serve`` over many requests of all three interfaces.

``python benchmarks/gateway_memory.py`` starts a scripted model server and the gateway before it,
and sends 15,000 requests, 30 at once: OpenAI's chat, Open Responses and Anthropic's messages in
turns, streamed and whole, with and without a tool, each a conversation of its own with one turn
before it, so that all that the gateway remembers fills up. Every 1,000 requests it prints the
resident memory. It writes gateway_memory.json; it takes some minutes.

``--level MB`` fails if the memory has grown by more between 5,000 requests and the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from gateway_load import HERE, WEATHER, free_port, gateway, memory, process

RESULTS = HERE / "gateway_memory.json"
SETTLED = 5_000
"""Requests after which the memory should stay where it is."""

FUNCTION = WEATHER["function"]
FILL = "I looked at the notes and wrote down what I found in them. " * 4


def chat(number: int, turns: list[dict[str, str]], more: dict[str, Any]) -> tuple[str, Any]:
    tools = [WEATHER] if number % 2 else []
    return "/v1/chat/completions", {"messages": turns, "max_tokens": 2, "tools": tools, **more}


def responses(number: int, turns: list[dict[str, str]], more: dict[str, Any]) -> tuple[str, Any]:
    tools = [{"type": "function", **FUNCTION}] if number % 2 else []
    return "/v1/responses", {"input": turns, "max_output_tokens": 2, "tools": tools, **more}


def messages(number: int, turns: list[dict[str, str]], more: dict[str, Any]) -> tuple[str, Any]:
    tool = {"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}
    tools = [tool] if number % 2 else []
    return "/v1/messages", {"messages": turns, "max_tokens": 2, "tools": tools, **more}


INTERFACES = (chat, responses, messages)


async def ask(client: httpx.AsyncClient, url: str, number: int) -> None:
    """Send one request and read all of its answer."""
    turns = [
        {"role": "user", "content": f"What is in note {number}? {FILL}"},
        {"role": "assistant", "content": f"This is in note {number}. {FILL}"},
        {"role": "user", "content": f"And in note {number + 1}?"},
    ]
    stream = {"stream": True} if number // 6 % 2 else {}
    path, body = INTERFACES[number % 3](number // 3, turns, {"model": "default", **stream})
    reply = await client.post(f"{url}{path}", json=body)
    if reply.status_code != 200:
        raise SystemExit(f"{path}: {reply.status_code} {reply.text[:300]}")


async def measured(url: str, pid: int, requests: int, at_once: int) -> list[dict[str, int]]:
    """Return the resident memory after each thousandth of the requests."""
    rows: list[dict[str, int]] = []
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(limits=limits, timeout=300) as client:

        async def worker(numbers: Iterator[int]) -> None:
            for number in numbers:
                await ask(client, url, number)

        for begin in range(0, requests, 1_000):
            numbers = iter(range(begin, min(begin + 1_000, requests)))
            await asyncio.gather(*(worker(numbers) for _ in range(at_once)))
            rows.append({"requests": min(begin + 1_000, requests), "rss_kb": memory(pid)})
            print(f"{rows[-1]['requests']:>7,}: {rows[-1]['rss_kb'] / 1024:6.1f} MB", flush=True)
    return rows


def growth(rows: list[dict[str, int]]) -> float:
    """Return by how many MB the memory has grown since it should have settled."""
    settled = next((row for row in rows if row["requests"] >= SETTLED), rows[-1])
    return (rows[-1]["rss_kb"] - settled["rss_kb"]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=15_000)
    parser.add_argument("--at-once", type=int, default=30)
    parser.add_argument("--level", type=float, metavar="MB")
    given = parser.parse_args()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, str(HERE / "gateway_load.py"), "--upstream", str(port)]
    with (
        tempfile.TemporaryDirectory() as name,
        process(command, f"{url}/health", {}),
        gateway(url, Path(name)) as (ours, pid),
    ):
        rows = asyncio.run(measured(ours, pid, given.requests, given.at_once))
    grown = growth(rows)
    print(f"grown by {grown:.1f} MB since {SETTLED:,} requests")
    if given.requests >= 2 * SETTLED:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    if given.level is not None and grown > given.level:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
