"""`mlx-tools propose`: what the model would write in one turn, and how it is read. Nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import typer

from mlx_tools.app import Proposal, Proposer, RunOptions, found
from mlx_tools.cli import inputs, options
from mlx_tools.cli.options import argument, option
from mlx_tools.cli.output import complain, counting, note, print_json
from mlx_tools.cli.parse import ToolsFile, as_json, check_choice, read_tools, tools_of
from mlx_tools.errors import (
    EXIT_OK,
    EXIT_STOPPED,
    BackendBroken,
    BackendRefused,
    BackendTimeout,
    MlxToolsError,
    UsageError,
)
from mlx_tools.messages import ToolSpec

app = typer.Typer(add_completion=False)

Tools = Mapping[str, ToolSpec]

_OF_A_LINE: Final = (BackendRefused, BackendBroken, BackendTimeout)
"""Errors that may be the question's fault. Of a server that is gone, nothing more is asked."""

FAILURES: Final = 3
"""So many of these in a row are the server's state, and no longer the lines'."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to ask. ``place`` is the line of a batch that it stands in."""

    id: Any
    question: str
    tools: Tools
    place: str | None = None


@app.command()
@options.with_settings(*options.OWN, *options.WRITING, "limits.total_timeout_ms")
def propose(
    question: Annotated[
        list[str] | None, argument("QUESTION…", "The question; - reads it.")
    ] = None,
    tools: ToolsFile = None,
    batch: Annotated[
        Path | None,
        option(
            "--batch FILE",
            'JSON lines of {"id", "question", "tools"}; prints one result a line, in order.',
        ),
    ] = None,
    tool_choice: options.ToolChoice = "auto",
    *,
    options_given: options.Options,
) -> int:
    """Print the proposal; exit code 1 where a single one could not be read or its time ran out, 3
    where the server gave none to it or to a line of the batch."""
    asked = options.joined(question)
    if (asked is None) == (batch is None):
        raise UsageError("give one QUESTION, or --batch FILE", hint="see: mlx-tools propose --help")
    run = options.run_options(options_given, tool_choice, tools=False)
    known = read_tools(tools) if tools is not None else None
    if asked is not None and known is None:
        raise UsageError("no tools are named", hint="--tools FILE")
    if batch is not None:
        items = _items(batch, known)
    else:
        items = [Item(None, inputs.as_question(asked or ""), known or {})]
    for item in items:
        check_choice(tool_choice, item.tools)
    if not items:
        return EXIT_OK
    with counting("proposing", len(items)) as step:
        return anyio.run(_propose_all, run, items, step)
    raise AssertionError("unreachable")


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
    code, failures = EXIT_OK, 0
    async with found(run, note) as (chosen, settings):
        limits = run.configuration.limits()
        propose = Proposer(chosen.backend, settings=settings, limits=limits)
        for item in items:
            try:
                result = _as_json(item, run, await propose(item.question, item.tools))
                failures = 0
            except MlxToolsError as error:
                if item.place is None:
                    raise
                failures += 1
                error.message = f"{item.place}: {error.message}"
                if not isinstance(error, _OF_A_LINE) or failures == FAILURES:
                    raise
                complain(str(error))
                code, result = max(code, error.exit_code), _failed(item, run, error)
            print_json(result)
            if item.place is None and result["error"] is not None:
                code = EXIT_STOPPED
            step()
    return code


def _failed(item: Item, run: RunOptions, error: MlxToolsError) -> dict[str, Any]:
    """Return what is printed for a line of a batch to which the server gave nothing."""
    code = "timeout" if isinstance(error, BackendTimeout) else "backend_error"
    nothing = Proposal(tools=item.tools)
    failed = {"error": {"code": code, "message": str(error)}, "strategy": None}
    usage = {"usage": {"requests": None} | asdict(nothing.usage)}
    return _as_json(item, run, nothing) | failed | usage


def _as_json(item: Item, run: RunOptions, proposal: Proposal) -> dict[str, Any]:
    """The proposal as it is printed."""
    return {
        "id": item.id,
        **as_json(proposal.reading, proposal.tools, run.tool_choice),
        "reasoning": proposal.reasoning,
        "completion": proposal.completion,
        "usage": {"requests": proposal.requests} | asdict(proposal.usage),
        "strategy": proposal.strategy,
    }
