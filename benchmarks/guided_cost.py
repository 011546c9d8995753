"""The cost of guided turns on mlx-lm's server: a conversation of five questions, with real tools.

    python benchmarks/guided_cost.py [--strategy guided] [--model FOLDER] [--json]

The real controller, the real server, the embedded model. Told for each completion: how often the
server was asked, how many tokens of the prompts it had to read anew, how many tokens it wrote, how
long all of it took, and how long the server was at work. What is left is the client's own time, the
network's and that between two requests.

Streams that are closed early report no usage, so the server itself counts: see counted_server.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_tools import (
    Chunk,
    CompletionRequest,
    Controller,
    Limits,
    Policy,
    RunSettings,
    ServerBackend,
    TranscriptStore,
    tool,
)
from mlx_tools.backends import DEFAULT_MODEL, find_chat_format, model_path, read_model_files
from mlx_tools.store.transcript import load
from mlx_tools.transcript.records import CompletionRecord, Record, UserRecord

HERE = Path(__file__).resolve().parent

QUESTIONS = (
    "What is the weather in Lisbon over the next 3 days?",
    "How much are 250 euros in yen?",
    "Book a table for 4 people at Chez Nous on 2026-12-05.",
    "And what will the weather be in Oslo tomorrow?",
    "Convert 99.95 dollars to francs, please.",
)


@tool(effects={"read"})
def weather(city: str, days: int = 1) -> str:
    """The weather forecast for a city.

    Args:
        city: the city's name
        days: how many days ahead
    """
    return f"{city}: sunny, 21 degrees, for {days} days"


@tool(effects={"read"})
def convert(amount: float, source: str, target: str) -> str:
    """Converts an amount of money from one currency to another.

    Args:
        amount: how much
        source: the currency it is in
        target: the currency that is wanted
    """
    return f"{amount} {source} are {amount * 1.5:.2f} {target}"


@tool(effects={"read"})
def book_table(restaurant: str, people: int, date: str) -> str:
    """Books a table in a restaurant.

    Args:
        restaurant: its name
        people: how many will come
        date: the day, as year-month-day
    """
    return f"A table for {people} at {restaurant} on {date} is booked."


@dataclass
class Turn:
    """One completion: its record, and what the server counted of each of its requests."""

    question: int
    record: CompletionRecord
    scored: list[bool]
    served: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "strategy": self.record.strategy,
            "requests": len(self.served),
            "for_likelihoods": sum(self.scored),
            "pieces": self.record.pieces,
            "prompt_tokens": max((row["prompt"] or 0 for row in self.served), default=0),
            "uncached_tokens": [row["uncached"] or 0 for row in self.served],
            "generated_tokens": sum(row["generated"] or 0 for row in self.served),
            "seconds": (self.record.duration_ms or 0) / 1000,
            "server_seconds": round(sum(row["seconds"] for row in self.served), 3),
            "completion": self.record.prefix + self.record.text,
        }


class Listened:
    """A backend that notes of each request whether it is for likelihoods."""

    def __init__(self, backend: ServerBackend) -> None:
        self._backend = backend
        self.scored: list[bool] = []

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        self.scored.append(bool(request.top_logprobs))
        async with aclosing(self._backend.complete(request)) as chunks:
            async for chunk in chunks:
                yield chunk


async def counted(file: Path, expected: int) -> list[dict[str, Any]]:
    """The server's rows, once it has written all of them: a closed stream ends a moment later."""
    rows: list[str] = []
    for _ in range(200):
        rows = file.read_text().splitlines() if file.exists() else []
        if len(rows) >= expected:
            break
        await asyncio.sleep(0.05)
    if len(rows) != expected:
        raise SystemExit(f"{expected} requests were sent, and the server counted {len(rows)}")
    return [json.loads(row) for row in rows]


async def measure(model: Path, strategy: str, folder: Path) -> dict[str, Any]:
    """The conversation's completions with what each cost, and the time of all of it."""
    file = folder / "counts.jsonl"
    server = ServerBackend(
        model,
        program=[str(HERE / "counted_server.py")],
        environ={**os.environ, "COUNTS": str(file)},
        log_folder=folder,
    )
    async with server:
        before = len(await counted(file, 1))  # the one by which it is known to be ready
        backend = Listened(server)
        controller = Controller(
            backend,
            [weather, convert, book_table],
            Policy(allow=["*"]),
            limits=Limits(idle_timeout=600, completion_timeout=600, total_timeout=3600),
            settings=RunSettings(
                style="jsonl",
                strategy=strategy,
                chat_format=find_chat_format(files=read_model_files(model)).chat_format,
            ),
            store=TranscriptStore(folder),
        )
        began, cpu = time.perf_counter(), time.process_time()
        async with await controller.conversation() as conversation:
            for question in QUESTIONS:
                await conversation.run(question)
            transcript = Path(conversation.transcript or "")
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        rows = (await counted(file, before + len(backend.scored)))[before:]
    turns = list(split(load(transcript), backend.scored, rows))
    return {
        "turns": [turn.to_json() for turn in turns],
        "seconds": round(seconds, 3),
        "client_cpu_seconds": round(cpu, 3),
        "server_seconds": round(sum(row["seconds"] for row in rows), 3),
    }


def split(
    records: Sequence[Record], scored: Sequence[bool], rows: Sequence[dict[str, Any]]
) -> Iterator[Turn]:
    """The requests, each with the completion that asked it: they came one after the other."""
    question = at = 0
    for record in records:
        question += isinstance(record, UserRecord)
        if isinstance(record, CompletionRecord):
            end = at + (record.requests or 0)
            yield Turn(question, record, list(scored[at:end]), list(rows[at:end]))
            at = end
    if at != len(rows):
        raise SystemExit(f"{len(rows)} requests were sent, and the transcript knows of {at}")


def table(found: dict[str, Any]) -> str:
    lines = [
        "| question | requests | for likelihoods | prompt | read anew, first | read anew, others "
        "(median, most) | written | pieces | seconds | server at work |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for turn in found["turns"]:
        first, *others = turn["uncached_tokens"]
        rest = f"{statistics.median(others):g}, {max(others)}" if others else "–"
        lines.append(
            f"| {turn['question']} | {turn['requests']} | {turn['for_likelihoods']} "
            f"| {turn['prompt_tokens']} | {first} | {rest} | {turn['generated_tokens']} "
            f"| {turn['pieces']} | {turn['seconds']:.2f} | {turn['server_seconds']:.2f} |"
        )
    others = [n for turn in found["turns"] for n in turn["uncached_tokens"][1:]]
    requests = sum(turn["requests"] for turn in found["turns"])
    share = 1 - found["server_seconds"] / found["seconds"]
    lines += [
        "",
        f"{requests} requests in {len(found['turns'])} turns; after a turn's first request "
        f"{statistics.mean(others or [0]):.1f} tokens were read anew on average.",
        f"{found['seconds']:.1f} s in all, {found['server_seconds']:.1f} s of them the server at "
        f"work: {100 * share:.1f} % is not the model's. Client's processor time: "
        f"{found['client_cpu_seconds']:.2f} s.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a model's folder or name; the embedded one by default")
    parser.add_argument("--strategy", default="guided", choices=("guided", "free", "auto"))
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = model_path(options.model or DEFAULT_MODEL)
        found = asyncio.run(measure(model, options.strategy, Path(folder)))
    print(json.dumps(found, ensure_ascii=False, indent=1) if options.json else table(found))


if __name__ == "__main__":
    main()
