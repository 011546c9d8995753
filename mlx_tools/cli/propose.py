"""`mlx-tools propose`: what the model would write in one turn, and how it is read. Nothing runs."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from mlx_tools import data
from mlx_tools.backends import Backend, Chunk, CompletionRequest
from mlx_tools.cli import inputs, options, reading
from mlx_tools.cli.output import complain, print_json
from mlx_tools.cli.toolfile import read_tools, tools_of
from mlx_tools.cli.wiring import RunOptions, choose, refuse_where_off, run_settings
from mlx_tools.controller import Controller, RunSettings
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, BackendError, UsageError
from mlx_tools.messages import CompletionRecord, Record
from mlx_tools.outcome import Stopped
from mlx_tools.policy import Policy
from mlx_tools.protocol import read
from mlx_tools.session import Complete, Session
from mlx_tools.spec import ToolSpec
from mlx_tools.store import MemoryStore, SessionFiles
from mlx_tools.tools import Registry, Tool

app = typer.Typer(add_completion=False)

Tools = Mapping[str, ToolSpec]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to ask."""

    id: Any
    question: str
    tools: Tools


@app.command(help="Show what the model would write in one turn; runs nothing.")
@options.with_settings(*options.BACKEND, *options.WRITING, "limits.total_timeout_ms")
def propose(
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="The question; - reads it.")
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(
            "--tools",
            metavar="FILE",
            help='A JSON list of tools: OpenAI function definitions, or {"name", "description", '
            '"parameters"}; each may carry "effects".',
        ),
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(
            "--batch",
            metavar="FILE",
            help='JSON lines of {"id", "question", "tools"}; prints one result a line, in order.',
        ),
    ] = None,
    tool_choice: options.ToolChoice = "auto",
    *,
    options_given: options.Options,
) -> int:
    """Print the proposal; exit code 1 where a single one could not be read."""
    if (question is None) == (batch is None):
        raise UsageError("give one QUESTION, or --batch FILE", hint="see: mlx-tools propose --help")
    run = RunOptions(configuration=options.load(options_given), tool_choice=tool_choice)
    refuse_where_off(run, tools=False)
    known = read_tools(tools) if tools is not None else None
    if question is not None and known is None:
        raise UsageError("no tools are named", hint="--tools FILE")
    items = _items(batch, known) if batch is not None else [_single(question or "", known or {})]
    for item in items:
        reading.check_choice(tool_choice, item.tools)
    with _bar(len(items), wanted=batch is not None) as step:
        results = anyio.run(_propose_all, run, items, step)
    return EXIT_OK if batch is not None or results[0]["error"] is None else EXIT_STOPPED


def _single(question: str, tools: Tools) -> Item:
    if question == "-":
        question = inputs.decoded(inputs.stdin_bytes(), "standard input")
    return Item(None, inputs.as_question(question), tools)


def _items(path: Path, known: Tools | None) -> list[Item]:
    """The lines of a batch, all checked before the first is asked."""
    items = []
    for number, line in enumerate(inputs.read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        name = f"{path}: line {number}"
        value = inputs.parse_json(line, name)
        if not isinstance(value, dict) or not isinstance(value.get("question"), str):
            raise UsageError(f'{name}: expected {{"id", "question", "tools"}}')
        tools = tools_of(value["tools"], name) if "tools" in value else known
        if tools is None:
            raise UsageError(f"{name}: no tools are named", hint="in the line, or by --tools")
        if not value["question"].strip():
            raise UsageError(f"{name}: the question is empty")
        items.append(Item(value.get("id"), value["question"], tools))
    return items


async def _propose_all(
    run: RunOptions, items: list[Item], step: Callable[[], None]
) -> list[dict[str, Any]]:
    chosen = await choose(run, lambda line: complain(line, kind="note"))
    results = []
    try:
        for item in items:
            controller = _Proposer(chosen.backend, run, item, await run_settings(run, chosen))
            results.append(await controller.propose())
            print_json(results[-1])
            step()
    finally:
        await chosen.backend.aclose()
    return results


class _Kept(MemoryStore):
    """A store in memory, whose last session can be looked at."""

    files: SessionFiles | None = None

    def create(self) -> SessionFiles:
        self.files = super().create()
        return self.files

    def completion(self) -> tuple[list[Record], CompletionRecord] | None:
        """The first completion, and the records before it."""
        records = list(self.files.transcript) if self.files is not None else []
        for number, record in enumerate(records):
            if isinstance(record, CompletionRecord):
                return records[:number], record
        return None


class _OneTurn:
    """Lets the requests of one turn through: the run is over then, whatever the model wrote."""

    def __init__(self, backend: Backend, store: _Kept) -> None:
        self._backend = backend
        self._store = store
        self.requests = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        if self._store.completion() is not None:
            raise BackendError("one turn was asked for")
        self.requests += 1
        async with aclosing(self._backend.complete(request)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk


class _Proposer:
    """Asks for one turn as `ask` does: same prompt, same limits. Every call waits for an approval
    that nobody gives, so nothing runs."""

    def __init__(
        self, backend: Backend, run: RunOptions, item: Item, settings: RunSettings
    ) -> None:
        self._run = run
        self._item = item
        self._store = _Kept()
        self._backend = _OneTurn(backend, self._store)
        self._controller = Controller(
            self._backend,
            Registry([Tool(spec, _never) for spec in item.tools.values()]),
            Policy(allow=["*"], ask=["*"]),
            limits=run.configuration.limits(),
            settings=settings,
            store=self._store,
        )

    async def propose(self) -> dict[str, Any]:
        """The proposal as it is printed."""
        outcome = await self._controller.run(self._item.question)
        kept = self._store.completion()
        if kept is None:
            raise BackendError(outcome.message if isinstance(outcome, Stopped) else "no completion")
        before, record = kept
        session = Session(before, specs=self._item.tools, words=data.load_words())
        due = session.due()
        assert isinstance(due, Complete)
        found = read(record.text, record.finish_reason or "stop", due.rules)
        result = reading.as_json(found, self._item.tools, self._run.tool_choice)
        return (
            {"id": self._item.id}
            | result
            | {
                "reasoning": record.reasoning,
                "completion": record.prefix + record.text,
                "usage": {"requests": self._backend.requests} | asdict(record.usage),
                "strategy": "free",
            }
        )


def _never(arguments: Mapping[str, Any]) -> Any:
    raise AssertionError("a proposed call must not run")


@contextmanager
def _bar(total: int, *, wanted: bool) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, for a batch at a terminal."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("proposing", total=total)
        yield lambda: bar.advance(task)
