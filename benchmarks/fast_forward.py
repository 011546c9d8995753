"""Reading of forced tokens in one pass, timed: a model in this process, held to a grammar.

    python benchmarks/fast_forward.py [--model FOLDER] [--rounds 3] [--json]

The same questions with the same prompts, twice: with fast-forward, and with every token chosen by
itself under the grammar's mask. Told are forward passes, the time, whether the text is the same,
and whether each is a valid call. The prompt is read before, so what is timed is writing alone. Of
several rounds the quickest counts, so that a busy moment of the machine does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlx_tools.backends import (
    DEFAULT_MODEL,
    CompletionRequest,
    find_chat_format,
    model_path,
    read_model_files,
)
from mlx_tools.decoding.constraints import Grammar, build_grammar
from mlx_tools.messages import ToolSpec
from mlx_tools.plugins.local import LocalBackend
from mlx_tools.prompt import Frame, Neutraliser, Prompt, build_examples, build_system
from mlx_tools.protocol import ReadingRules, judge, read
from mlx_tools.store import load_words
from mlx_tools.transcript.records import UserRecord

MAX_TOKENS = 200


def tool(name: str, description: str, required: Sequence[str], **properties: Any) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return ToolSpec(name, description, schema)


TEXT = {"type": "string", "maxLength": 120}
TOOLS = {
    spec.name: spec
    for spec in (
        tool("get_weather_forecast", "The weather of the next days.", ["location", "days"],
             location=TEXT, days={"type": "integer", "minimum": 1, "maximum": 14},
             units={"enum": ["celsius", "fahrenheit"]}),
        tool("convert_currency", "Convert an amount of money.",
             ["amount", "from_currency", "to_currency"],
             amount={"type": "number", "minimum": 0},
             from_currency=TEXT | {"maxLength": 3}, to_currency=TEXT | {"maxLength": 3}),
        tool("book_restaurant_table", "Book a table.", ["restaurant", "party_size", "date"],
             restaurant=TEXT, party_size={"type": "integer", "minimum": 1, "maximum": 20},
             date=TEXT | {"format": "date"}, outdoor_seating={"type": "boolean"}),
        tool("search_flights", "Find flights.", ["passengers", "route"],
             route={"type": "object", "properties": {"origin": TEXT, "destination": TEXT},
                    "required": ["origin", "destination"]},
             passengers={"type": "integer", "minimum": 1, "maximum": 9},
             cabin_class={"enum": ["economy", "premium_economy", "business", "first"]}),
        tool("create_calendar_event", "Put an event into the calendar.",
             ["title", "participants", "duration_minutes"],
             title=TEXT | {"maxLength": 40},
             participants={"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3},
             duration_minutes={"type": "integer", "minimum": 5, "maximum": 480}),
    )
}  # fmt: skip

QUESTIONS = (
    "What will the weather be like in Lisbon over the next three days?",
    "How much is 250 euros in Japanese yen?",
    "Get us a table for four at Chez Nous on 2026-12-05, outside please.",
    "I need two business class tickets from Oslo to Cape Town.",
    "Schedule a 45 minute design review with Ana and Tomasz.",
    "Convert 99.95 US dollars to Swiss francs.",
    "Will it snow in Sapporo this week? Celsius please.",
    "Set up a 15 minute stand-up with the whole data team.",
)


@dataclass
class Row:
    """One question, one way."""

    passes: int
    tokens: int
    seconds: float
    text: str
    valid: bool


def prompts(folder: Path) -> list[str]:
    """The questions as a session would ask them."""
    words = load_words()
    files = read_model_files(folder, folder.name)
    chat_format = find_chat_format(files=files, model=folder.name).chat_format
    neutraliser = Neutraliser(chat_format.control_tokens)
    tools = list(TOOLS.values())
    system = build_system(Frame(words=words, tools=tools, neutraliser=neutraliser))
    rendered = []
    for question in QUESTIONS:
        prompt = Prompt(
            chat_format=chat_format,
            style="jsonl",
            system=system.text,
            examples=build_examples(words, tools, "jsonl", weak_model=True),
            neutraliser=neutraliser,
            words=words,
        )
        prompt.add(UserRecord(content=question))
        rendered.append(prompt.render())
    return rendered


async def completed(backend: LocalBackend, prompt: str, grammar: Grammar, most: int) -> Row:
    before, started = backend.forward_passes, time.perf_counter()
    request = CompletionRequest(prompt=prompt, grammar=grammar, max_tokens=most, timeout=600)
    text, tokens = "", 0
    async with aclosing(backend.complete(request)) as chunks:
        async for chunk in chunks:
            text += chunk.text
            tokens = (chunk.usage and chunk.usage.completion_tokens) or tokens
    seconds = time.perf_counter() - started
    reading = read(text, rules=ReadingRules(tool_choice="required"))
    calls = judge(reading, TOOLS)
    valid = reading.clean and bool(calls) and all(call.error is None for call in calls)
    return Row(backend.forward_passes - before, tokens, seconds, text, valid)


async def measure(folder: Path, rounds: int) -> dict[str, list[Row]]:
    """Each question's row, with fast-forward on and off."""
    grammar = build_grammar(TOOLS, tool_choice="required")
    asked = prompts(folder)
    found: dict[str, list[Row]] = {}
    for name, on in (("on", True), ("off", False)):
        async with LocalBackend(folder, fast_forward=on) as backend:
            rows = []
            for prompt in asked:
                await completed(backend, prompt, grammar, 1)  # the prompt is read
                each = [
                    await completed(backend, prompt, grammar, MAX_TOKENS) for _ in range(rounds)
                ]
                rows.append(min(each, key=lambda row: row.seconds))
            found[name] = rows
    return found


def total(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "passes": sum(row.passes for row in rows),
        "tokens": sum(row.tokens for row in rows),
        "seconds": round(sum(row.seconds for row in rows), 2),
        "valid": sum(row.valid for row in rows),
    }


def table(found: Mapping[str, list[Row]]) -> str:
    lines = [
        "| question | passes, on | passes, off | seconds, on | seconds, off | same text |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for question, on, off in zip(QUESTIONS, found["on"], found["off"], strict=True):
        same = "yes" if on.text == off.text else "no"
        lines.append(
            f"| {question} | {on.passes} | {off.passes} | {on.seconds:.2f} | {off.seconds:.2f} "
            f"| {same} |"
        )
    on, off = total(found["on"]), total(found["off"])
    same = sum(a.text == b.text for a, b in zip(found["on"], found["off"], strict=True))
    lines.append(
        f"| all | {on['passes']} | {off['passes']} | {on['seconds']:.2f} | {off['seconds']:.2f} "
        f"| {same} of {len(QUESTIONS)} |"
    )
    lines.append(f"\nValid calls: {on['valid']} and {off['valid']} of {len(QUESTIONS)}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a model's folder or name; the embedded one by default")
    parser.add_argument("--rounds", type=int, default=3, help="of which the quickest counts")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args()
    found = asyncio.run(measure(model_path(options.model or DEFAULT_MODEL), options.rounds))
    if options.json:
        rows = {name: [asdict(row) for row in each] for name, each in found.items()}
        totals = {name: total(each) for name, each in found.items()}
        print(json.dumps({"questions": QUESTIONS, "rows": rows, "total": totals}, indent=1))
    else:
        print(table(found))


if __name__ == "__main__":
    main()
