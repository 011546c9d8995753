"""`mlx-tools propose`: what the model would write in one turn, and how it is read. Nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final

import anyio
import typer

from mlx_tools.app.proposal import Proposal, Proposer
from mlx_tools.app.wiring import RunOptions, found, refuse_where_off
from mlx_tools.cli import inputs, options, reading
from mlx_tools.cli.output import complain, print_json
from mlx_tools.cli.progress import counting
from mlx_tools.cli.toolfile import read_tools, tools_of
from mlx_tools.errors import (
    EXIT_BACKEND,
    EXIT_OK,
    EXIT_STOPPED,
    BackendBroken,
    BackendRefused,
    BackendTimeout,
    MlxToolsError,
    UsageError,
)
from mlx_tools.messages import ToolSpec, Usage
from mlx_tools.protocol import Reading

app = typer.Typer(add_completion=False)

Tools = Mapping[str, ToolSpec]

_OF_A_LINE: Final = (BackendRefused, BackendBroken, BackendTimeout)
"""What may be the fault of what was asked. Of a server that is gone, nothing more is asked."""

FAILURES: Final = 3
"""So many of these in a row are the server's state, and no longer the lines'."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to ask. ``place`` is the line of a batch that it stands in."""

    id: Any
    question: str
    tools: Tools
    place: str | None = None


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
    """Print the proposal; exit code 1 where a single one could not be read, 3 where the server
    gave none to it or to a line of the batch."""
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
    with counting("proposing", len(items), wanted=batch is not None) as step:
        return anyio.run(_propose_all, run, items, step) if items else EXIT_OK
    raise AssertionError("unreachable")


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
        items.append(Item(value.get("id"), value["question"], tools, name))
    return items


async def _propose_all(run: RunOptions, items: list[Item], step: Callable[[], None]) -> int:
    """Asks for all, prints each result, and returns the exit code."""
    began, limits = monotonic(), run.configuration.limits()
    code, failures = EXIT_OK, 0
    async with found(run, lambda line: complain(line, kind="note")) as (chosen, settings):
        if items[0].place is None:  # then there is one, and its time has begun already
            left = max(limits.total_timeout - (monotonic() - began), 0.001)
            limits = replace(limits, total_timeout=left)
        propose = Proposer(chosen.backend, settings=settings, limits=limits)
        for item in items:
            try:
                result = _as_json(item, await propose(item.question, item.tools), run.tool_choice)
                failures = 0
            except MlxToolsError as error:
                if item.place is None:
                    raise
                failures += 1
                error.message = f"{item.place}: {error.message}"
                if not isinstance(error, _OF_A_LINE) or failures == FAILURES:
                    raise
                complain(str(error))
                code, result = EXIT_BACKEND, _failed(item, error, run.tool_choice)
            print_json(result)
            if item.place is None and result["error"] is not None:
                code = EXIT_STOPPED
            step()
    return code


def _failed(item: Item, error: MlxToolsError, tool_choice: str) -> dict[str, Any]:
    """What is printed for a line of a batch to which the server gave nothing."""
    code = "timeout" if isinstance(error, BackendTimeout) else "backend_error"
    return (
        {"id": item.id}
        | reading.as_json(Reading(), item.tools, tool_choice)
        | {
            "error": {"code": code, "message": str(error)},
            "reasoning": "",
            "completion": "",
            "usage": {"requests": None} | asdict(Usage()),
            "strategy": None,
        }
    )


def _as_json(item: Item, proposal: Proposal, tool_choice: str) -> dict[str, Any]:
    """The proposal as it is printed."""
    read = reading.as_json(proposal.reading, proposal.tools, tool_choice)
    return (
        {"id": item.id}
        | read
        | {
            "reasoning": proposal.reasoning,
            "completion": proposal.completion,
            "usage": {"requests": proposal.requests} | asdict(proposal.usage),
            "strategy": proposal.strategy,
        }
    )
