"""Measures how costs grow with what a person has: sessions, questions, transcripts, tools, texts.

``python benchmarks/growth.py`` measures, in processor time, which a busy machine falsifies least.
It writes benchmarks/growth.json, and from it the table and the plot of docs/scaling.md; ``--page``
writes these alone, ``--only NAME`` measures one thing again, ``--largest N`` stops at this size.

The slope of a cost is the exponent of its growth between the two largest sizes: 1 is linear.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
from request_growth import gateway
from texts import KINDS

from mlx_tools import Controller, Policy, Tool
from mlx_tools.controller import Session, SessionInputs
from mlx_tools.messages import ToolSpec
from mlx_tools.protocol import Reader
from mlx_tools.store import load, load_words
from mlx_tools.testing import ScriptedBackend, ScriptedServer, answer

HERE = Path(__file__).resolve().parent
FIGURES, PAGE = HERE / "growth.json", HERE.parent / "docs" / "scaling.md"
PLOT = HERE.parent / "docs" / "growth.svg"
BEGIN: Final = "<!-- growth: written by benchmarks/growth.py -->"
END: Final = "<!-- end of growth -->"

Costs = dict[str, dict[int, float]]
"""Seconds of processor time by size, by what is done."""

ROUNDS = 3
STEEP = 1.02
"""A slope that is measured again."""
JSON: Final = {"content-type": "application/json"}


def least(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the least processor time of some rounds: other programs only add to it."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


# --- sessions and transcripts, through the command line ------------------------------------------


def command(arguments: list[str], state: Path, home: Path) -> float:
    """Return the processor time of one run of the command line."""
    environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environment |= {
        "MLX_TOOLS_STATE_DIR": str(state),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
    }
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "mlx_tools", *arguments],
        env=environment,
        stdin=nothing,
        stdout=nothing,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{arguments} failed: {errors.decode()[-500:]}")
    return used.ru_utime + used.ru_stime


@contextmanager
def one_session(folder: Path) -> Iterator[tuple[str, Path, Path]]:
    """A server, a home, and the transcript that one question leaves."""
    with ScriptedServer(*[answer("It is so.")] * 10_000) as server:
        home = folder / "home"
        home.mkdir()
        command(["ask", "--url", server.url, "What is it?"], folder / "first", home)
        yield server.url, home, next((folder / "first" / "sessions").glob("*/transcript.jsonl"))


def sessions(largest: int) -> Costs:
    """Commands beside so many sessions, whose index is there."""
    costs: Costs = {}
    with tempfile.TemporaryDirectory() as made, one_session(Path(made)) as (url, home, first):
        text, begin = first.read_text(), datetime(2026, 1, 1, tzinfo=UTC)
        state, there = Path(made) / "state", 0
        for size in (10, 100, 1_000, 10_000, 100_000):
            if size > largest:
                break
            for number in range(there, size):
                at = begin + timedelta(seconds=60 * number)
                path = state / "sessions" / f"{at:%Y%m%d-%H%M%S}-{number:08x}" / first.name
                path.parent.mkdir(parents=True)
                path.write_text(text.replace(first.parent.name, path.parent.name))
                os.utime(path, (at.timestamp(), at.timestamp()))
            there = size
            asks = ["--url", url, "Why?"]
            command(["ask", *asks], state, home)
            command(["stats"], state, home)  # makes the index, and sums up what is new
            commands = {
                "ask": ["ask", *asks],
                "ask -c": ["ask", "-c", *asks],
                "sessions list": ["sessions", "list", "--limit", "10"],
                "stats": ["stats"],
            }
            for name, arguments in commands.items():
                times = [command(arguments, state, home) for _ in range(ROUNDS)]
                costs.setdefault(f"`{name}`, by sessions", {})[size] = min(times)
    return costs


def transcripts(largest: int) -> Costs:
    """Reading a transcript of so many MB and folding it."""
    costs: Costs = {}
    with tempfile.TemporaryDirectory() as made, one_session(Path(made)) as (_, _, first):
        rows = [json.loads(line) for line in first.read_text().splitlines()]
        header = next(row for row in rows if row["type"] == "header")
        asked, completed, answered = (
            next(row for row in rows if row["type"] == kind)
            for kind in ("user", "completion", "final_answer")
        )
        said = "It is so. " * 100
        text = json.dumps({"type": "final_answer", "content": said})
        for size in (1, 3, 10, 30, 100):
            if size > largest:
                break
            path, written, turn = Path(made) / "long.jsonl", 0, 0
            with path.open("w") as file:
                file.write(f"{json.dumps(header)}\n")
                while written < size * 1_000_000:
                    turn += 1
                    new = {"prompt": "x" * 1500, "kept": 500, "turn": turn}
                    for row in (
                        asked | {"content": f"question {turn}: " + "word " * 200},
                        completed | {"text": text, "counted": text} | new,
                        answered | {"turn": turn, "content": said},
                    ):
                        written += file.write(f"{json.dumps(row)}\n")

            def read(path: Path = path) -> None:
                inputs = SessionInputs(specs={}, words=load_words())
                Session.from_records(load(path), inputs)

            cost = least(read, 1 if size > 10 else ROUNDS)
            costs.setdefault("going on with a transcript, by MB", {})[size] = cost
    return costs


# --- in this process ------------------------------------------------------------------------------


def chat(largest: int) -> Costs:
    """The next question of a chat with so many."""
    sizes = [size for size in (10, 30, 100, 300, 1_000, 3_000) if size <= largest]
    backend = ScriptedBackend(*[answer("It is so.")] * (sizes[-1] + 100))
    costs: dict[int, float] = {}

    async def ask_on() -> None:
        asked = 0
        async with await Controller(backend, []).conversation() as conversation:
            for size in sizes:
                for _ in range(size - asked):
                    await conversation.run("What is it?")
                asked, times = size + 10, list[float]()
                for _ in range(10):
                    began = time.process_time()
                    await conversation.run("What is it?")
                    times.append(time.process_time() - began)
                costs[size] = statistics.median(times)

    asyncio.run(ask_on())
    return {"the next question of a chat, by questions": costs}


def tools(largest: int) -> Costs:
    """A new session with so many tools, in a program that had one before."""
    costs: dict[int, float] = {}
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}

    def tool(number: int) -> Tool:
        words = f"Does the thing number {number}."
        spec = ToolSpec(f"tool_{number}", words, schema, effects=frozenset({"read"}))
        return Tool(spec, lambda arguments: "done")

    for size in (5, 50, 500, 5_000):
        if size <= largest:
            backend = ScriptedBackend(*[answer("It is so.")] * 10)
            controller = Controller(backend, [tool(n) for n in range(size)], Policy(allow=["*"]))
            controller.run_sync("What is it?")
            costs[size] = least(lambda one=controller: one.run_sync("What is it?"))
    return {"a new session, by tools": costs}


def conversations(largest: int) -> Costs:
    """A request to a gateway whose conversation has so many characters, all but the end known."""
    costs: dict[int, float] = {}
    words = "I looked at the notes and wrote down what I found in them. " * 8

    def body(characters: int) -> dict[str, Any]:
        turns, messages = max(characters // (2 * len(words)), 1), []
        for number in range(turns):
            messages += [
                {"role": "user", "content": f"{number}: {words}"},
                {"role": "assistant", "content": words},
            ]
        return {"model": "scripted", "messages": [*messages, {"role": "user", "content": "Go on."}]}

    async def send(folder: Path) -> None:
        app = gateway(folder)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=None
            ) as client,
        ):
            for size in (2_000, 20_000, 200_000, 400_000):
                if size > largest:
                    break
                request, times = body(size), list[float]()
                for _ in range(6):
                    content = json.dumps(request).encode()
                    began = time.process_time()
                    reply = await client.post("/v1/chat/completions", content=content, headers=JSON)
                    assert reply.status_code == 200, reply.text
                    times.append(time.process_time() - began)
                    request["messages"] += [
                        reply.json()["choices"][0]["message"],
                        {"role": "user", "content": "Go on."},
                    ]
                costs[size] = statistics.median(times[1:])

    with tempfile.TemporaryDirectory() as made:
        os.environ["MLX_TOOLS_STATE_DIR"] = made
        asyncio.run(send(Path(made)))
    return {"a request to the gateway, by characters": costs}


def streams(largest: int) -> Costs:
    """Texts that come in pieces of four characters: the one that grows most, and braces in prose
    with characters beyond Latin-1."""
    costs: Costs = {}

    def stream(text: str, times: int = 1) -> None:
        for _ in range(times):
            reader = Reader()
            for begin in range(0, len(text), 4):
                reader.feed(text[begin : begin + 4])
            reader.finish()

    kinds: Mapping[str, Callable[[int], str]] = {
        **{name: lambda size, make=make: make(size).text for name, make in KINDS.items()},
        "braces among emoji": lambda size: "\U0001f600 { a " * (size // 9),
    }
    sizes = [size for size in (10_000, 100_000, 1_000_000) if size <= largest]
    if not sizes:
        return {}
    for name, make in kinds.items():
        costs[name] = {size: least(partial(stream, make(size)), 1) for size in sizes}
    # One sample is too large now and then: those that grew are measured again, in turns. So that a
    # machine whose speed changes does so for all sizes alike, each is as much text in all.
    for name, make in kinds.items():
        if len(sizes) < 2 or slope(costs[name]) <= STEEP:
            continue
        texts = {size: make(size) for size in sizes}
        again = dict.fromkeys(sizes, math.inf)
        for _ in range(ROUNDS):
            for size, text in texts.items():
                count = sizes[-1] // size
                cost = least(partial(stream, text, count), 1) / count
                again[size] = min(again[size], cost)
        costs[name] = again
    worst = max((name for name in costs), key=lambda name: slope(costs[name]))
    shown = dict.fromkeys((worst, "braces among emoji", "prose"))
    return {f"a streamed text ({name}), by bytes": costs[name] for name in shown}


MEASURES: Final[Mapping[str, tuple[Callable[[int], Costs], int]]] = {
    "sessions": (sessions, 100_000),
    "chat": (chat, 3_000),
    "transcripts": (transcripts, 100),
    "conversations": (conversations, 400_000),
    "tools": (tools, 5_000),
    "streams": (streams, 1_000_000),
}


# --- the table and the plot -----------------------------------------------------------------------


def slope(costs: Mapping[int, float]) -> float:
    """Return the exponent of the growth between the two largest sizes, 0 if there is one size."""
    if len(costs) < 2:
        return 0.0
    (small, before), (large, after) = sorted(costs.items())[-2:]
    return math.log(max(after, 1e-9) / max(before, 1e-9)) / math.log(large / small)


def table(figures: Mapping[str, Costs]) -> str:
    """Return the table of all costs."""
    lines = [
        "| what is done | smallest | | largest | | slope |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for costs in figures.values():
        for name, by_size in costs.items():
            (small, first), *_, (large, last) = sorted(by_size.items())
            row = (name, f"{small:,}", _time(first), f"{large:,}", _time(last))
            lines.append(f"| {' | '.join(row)} | {slope(by_size):.2f} |")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


WIDTH, HEIGHT, MARGIN = 720, 420, 60
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")


def plot(figures: Mapping[str, Costs]) -> str:
    """Return a picture of all costs, both axes logarithmic: linear growth has the grid's slope."""
    series = [(name, costs) for group in figures.values() for name, costs in group.items()]
    sizes = [math.log10(size) for _, costs in series for size in costs]
    times = [math.log10(max(cost, 1e-5)) for _, costs in series for cost in costs.values()]
    left, right = math.floor(min(sizes)), math.ceil(max(sizes))
    low, high = math.floor(min(times)), math.ceil(max(times))

    def x(value: float) -> float:
        return round(MARGIN + (value - left) / (right - left) * (WIDTH - 2 * MARGIN), 1)

    def y(value: float) -> float:
        return round(HEIGHT - MARGIN - (value - low) / (high - low) * (HEIGHT - 2 * MARGIN), 1)

    height = HEIGHT + 20 * len(series)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for tick in range(left, right + 1):
        parts.append(f'<path d="M{x(tick)} {y(low)}V{y(high)}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{x(tick)}" y="{y(low) + 18}" text-anchor="middle">{10**tick:,}</text>'
        )
    for tick in range(low, high + 1):
        parts.append(f'<path d="M{x(left)} {y(tick)}H{x(right)}" stroke="#ddd"/>')
        label = _time(10.0**tick)
        parts.append(f'<text x="{x(left) - 6}" y="{y(tick) + 4}" text-anchor="end">{label}</text>')
    for number, (name, costs) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        dash = ' stroke-dasharray="5 3"' if number >= len(COLOURS) else ""
        points = " ".join(
            f"{x(math.log10(size))},{y(math.log10(max(cost, 1e-5)))}"
            for size, cost in sorted(costs.items())
        )
        line = f'fill="none" stroke="{colour}" stroke-width="2"{dash}'
        parts.append(f'<polyline points="{points}" {line}/>')
        top = HEIGHT + 20 * number
        parts.append(f'<path d="M{MARGIN} {top}h30" {line}/>')
        parts.append(f'<text x="{MARGIN + 40}" y="{top + 4}">{name.replace("`", "")}</text>')
    return "\n".join([*parts, "</svg>\n"])


def write_page(figures: Mapping[str, Costs]) -> None:
    """Write the table and the plot into the documentation."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(figures)}\n\n{END}{after}", encoding="utf-8")
    PLOT.write_text(plot(figures), encoding="utf-8")


def read_figures() -> dict[str, Costs]:
    """Return what was measured before."""
    if not FIGURES.exists():
        return {}
    return {
        group: {
            name: {int(size): cost for size, cost in costs.items()} for name, costs in rows.items()
        }
        for group, rows in json.loads(FIGURES.read_text()).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=MEASURES, action="append")
    parser.add_argument("--largest", type=int)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    figures = read_figures()
    for name in () if options.page else options.only or MEASURES:
        measure, most = MEASURES[name]
        found = measure(min(most, options.largest or most))
        for what, costs in found.items():
            print(f"{what}: {costs}", flush=True)
        figures[name] = found
    figures = {name: figures[name] for name in MEASURES if name in figures}
    if options.largest is None:
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
        write_page(figures)


if __name__ == "__main__":
    main()
