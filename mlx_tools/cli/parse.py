"""`mlx-tools parse` and `mlx-tools propose`.

The reading of a completion's text, and one turn.

Neither runs a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer
from msgspec import Struct, to_builtins

from mlx_tools.app import Proposal, Proposer, RunOptions, open_selected_backend
from mlx_tools.backends import DEFAULT_STYLE
from mlx_tools.cli import inputs, options
from mlx_tools.cli.inputs import read_bytes, read_json
from mlx_tools.cli.options import argument, option
from mlx_tools.cli.output import complain, note, print_json, progress_counter
from mlx_tools.errors import (
    EXIT_OK,
    EXIT_STOPPED,
    BackendBroken,
    BackendRefused,
    BackendTimeout,
    MlxToolsError,
    ToolDefinitionError,
    UsageError,
)
from mlx_tools.messages import ALL_EFFECTS, Effect, ToolCall, ToolSpec, tool_named
from mlx_tools.protocol import (
    DIALECTS,
    JudgedCall,
    Reading,
    ReadingRules,
    Style,
    find_call_keys,
    judge,
    read,
)
from mlx_tools.schema import check_parameters

Tools = Mapping[str, ToolSpec]

_OPENINGS: Final = frozenset(("", *(dialect.open for dialect in DIALECTS)))
"""The openings of calls in the native forms of all known models; this one's form is unknown here.
"""

app = typer.Typer(add_completion=False)
propose_app = typer.Typer(add_completion=False)

ToolsFile = Annotated[
    Path | None,
    option(
        "--tools FILE",
        'A JSON list of tools: OpenAI function definitions, or {"name", "description", '
        '"parameters"}; each may carry "effects", else it has all.',
    ),
]


@app.command()
@options.with_settings("model.prompt_style")
def parse(
    file: Annotated[
        Path | None, argument("FILE", "The text; standard input without it, or for -.")
    ] = None,
    tools: ToolsFile = None,
    finish_reason: Annotated[
        str,
        option(
            "--finish-reason stop|length", "Whether the text ended by itself or at the token limit."
        ),
    ] = "stop",
    observations: Annotated[
        Path | None,
        option(
            "--observations FILE",
            "A JSON list of earlier observations' texts: calls copied from them are echoes.",
        ),
    ] = None,
    tool_choice: options.ToolChoice = "auto",
    *,
    options_given: options.Options,
) -> int:
    """Exit code 1 where the reading holds an error."""
    options.require_choice("--finish-reason", finish_reason, ("stop", "length"))
    style = options.load(options_given).settings.model.prompt_style
    # Bytes that are not UTF-8 become lone surrogates, and reading refuses these with a message.
    text = read_bytes(file).decode("utf-8", "surrogateescape")
    known_tools = None if tools is None else read_tools(tools)
    check_choice(tool_choice, known_tools)
    rules = _rules(known_tools, DEFAULT_STYLE if style == "auto" else style, tool_choice)
    reading = read(text, finish_reason, rules)  # type: ignore[arg-type]
    texts = [] if observations is None else read_json(observations)
    if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
        raise UsageError(f"{observations}: expected a JSON list of texts")
    result = as_json(reading, known_tools, tool_choice, texts)
    print_json(result)
    return EXIT_OK if result["error"] is None else EXIT_STOPPED


# --- a reading as the JSON object that `parse` and `propose` print -------------------------------


def _rules(tools: Tools | None, style: Style, tool_choice: str) -> ReadingRules:
    """Return the rules for a completion that may call these tools.

    Without ``tools`` any tool exists, takes any arguments and has all effects.
    """
    specs = tools or {}
    return ReadingRules(
        style=style,
        tool_choice=tool_choice,
        mutates=lambda name, arguments: name not in specs or specs[name].mutates(arguments),
        catalog={name: spec.parameters for name, spec in specs.items()},
        native=_OPENINGS if style == "native" else frozenset(),
    )


def check_choice(tool_choice: str, tools: Tools | None) -> None:
    """Raise `UsageError` if a tool choice is neither a word nor one of the tools."""
    allowed = ("auto", "none", "required", *(tools or ()))
    if tools is not None and tool_named(tool_choice, tools) not in allowed:
        raise UsageError(
            f"--tool-choice: {tool_choice!r} is not allowed",
            hint=f"auto, none, required or one of {', '.join(tools) or 'no tools'}",
        )


def as_json(
    reading: Reading,
    tools: Tools | None,
    tool_choice: str = "auto",
    observations: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a reading with its judged calls, as `parse` prints it.

    A wrong call stays among the messages, with its own ``error``. The first of these is also the
    reading's error if it had none.
    """
    specs = tools if tools is not None else _assumed(reading)
    echo_candidates = frozenset[str]().union(*map(find_call_keys, observations))
    judged_calls = iter(judge(reading, specs, echo_candidates, tool_choice))
    error = reading.error
    messages: list[dict[str, Any]] = []
    for message in reading.messages:
        if isinstance(message, ToolCall):
            call = next(judged_calls)
            messages.append(_call(call))
            error = error or call.error
        else:
            messages.append({"type": message.type, **to_builtins(message)})
    return {
        "messages": messages,
        **{name: to_builtins(getattr(reading, name)) for name in _READING_FIELDS},
        "error": to_builtins(error),
    }


_READING_FIELDS: Final = (
    "bare_text",
    "truncated",
    "call_like",
    "commentary",
    "reasoning",
    "dropped",
)
"""The fields of a reading that are printed besides its messages."""


def _call(judged_call: JudgedCall) -> dict[str, Any]:
    call = judged_call.call
    id_field = {} if call.id is None else {"id": call.id}
    fields = {"name": call.name, "arguments": dict(call.arguments), "repairs": list(call.repairs)}
    error_field = {} if judged_call.error is None else {"error": to_builtins(judged_call.error)}
    return {"type": call.type, **id_field, **fields, "runs": judged_call.runs, **error_field}


def _assumed(reading: Reading) -> Tools:
    tools: dict[str, ToolSpec] = {}
    for message in reading.messages:
        if isinstance(message, ToolCall):
            try:
                tools[message.name] = ToolSpec(message.name, parameters={"type": "object"})
            except ToolDefinitionError:  # no tool can have this name: unknown
                continue
    return tools


# --- tools that only have a definition, read from a JSON file -----------------------------------


def read_tools(path: Path) -> dict[str, ToolSpec]:
    """Return the tools in a file by name.

    Raises:
        UsageError: names the file, the item and the error.
    """
    return parse_definitions(read_json(path), str(path))


def parse_definitions(value: Any, name: str) -> dict[str, ToolSpec]:
    """Return the tools in a list of OpenAI or plain definitions.

    Each may have ``effects``; without them it has all.
    """
    if not isinstance(value, list):
        raise UsageError(f"{name}: expected a list of tool definitions")
    tools: dict[str, ToolSpec] = {}
    for number, item in enumerate(value, start=1):
        try:
            spec = _tool(item)
        except MlxToolsError as error:
            raise UsageError(f"{name}: tool {number}: {error}") from None
        if spec.name in tools:
            raise UsageError(f"{name}: tool {number}: {spec.name} is there twice")
        tools[spec.name] = spec
    return tools


def _tool(item: Any) -> ToolSpec:
    if not isinstance(item, Mapping):
        raise UsageError("expected an object")
    function = item.get("function", item)
    if not isinstance(function, Mapping):
        raise UsageError("function: expected an object")
    name = function.get("name")
    if not isinstance(name, str):
        raise UsageError("name: expected a string")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise UsageError(f"{name}: description: expected a string")
    parameters = function.get("parameters")
    parameters = {"properties": {}} if parameters is None else parameters
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise UsageError(f"{name}: parameters: expected a JSON Schema of type object")
    parameters = {"type": "object", **parameters}
    check_parameters(parameters)
    effects, known_effects = item.get("effects", function.get("effects")), get_args(Effect)
    effects = list(ALL_EFFECTS) if effects is None else effects
    if not isinstance(effects, list) or not all(effect in known_effects for effect in effects):
        raise UsageError(f"{name}: effects: expected a list of {', '.join(known_effects)}")
    return ToolSpec(name, description, parameters, effects=frozenset(effects))


# --- propose --------------------------------------------------------------------------------------


_LINE_ERRORS: Final = (BackendRefused, BackendBroken, BackendTimeout)
"""Errors that may be the fault of a line's question. After other errors nothing more is asked."""

FAILURES: Final = 3
"""This many of these errors in a row are due to the server, and no longer to the lines."""


class Item(Struct, frozen=True):
    """One question. ``place`` is its line in a batch."""

    id: Any
    question: str
    tools: Tools
    place: str | None = None


@propose_app.command()
@options.with_settings(*options.MODEL_SETTINGS, *options.WRITING, "limits.total_timeout_ms")
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
    """Print the proposal; exit code 1 if it could not be read, 3 if there was none.

    Exit code 1 also means that its time ran out. With a batch, 3 means that the server gave none to
    one of the lines.
    """
    question_text = options.join_words(question)
    if (question_text is None) == (batch is None):
        raise UsageError("give one QUESTION, or --batch FILE", hint="see: mlx-tools propose --help")
    run = options.run_options(options_given, tool_choice, tools=False)
    known_tools = read_tools(tools) if tools is not None else None
    if question_text is not None and known_tools is None:
        raise UsageError("no tools are named", hint="--tools FILE")
    if batch is not None:
        items = _items(batch, known_tools)
    else:
        items = [Item(None, inputs.as_question(question_text or ""), known_tools or {})]
    for item in items:
        check_choice(tool_choice, item.tools)
    if not items:
        return EXIT_OK
    with progress_counter("proposing", len(items)) as step:
        return inputs.run_loop(_propose_all, run, items, step)
    raise AssertionError("unreachable")


def _items(path: Path, known_tools: Tools | None) -> list[Item]:
    """Return the lines of a batch, all checked before the first is asked."""
    items = []
    for number, line in enumerate(inputs.read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        name = f"{path}: line {number}"
        value = inputs.parse_json(line, name)
        if not isinstance(value, dict) or not isinstance(value.get("question"), str):
            raise UsageError(f'{name}: expected {{"id", "question", "tools"}}')
        tools = parse_definitions(value["tools"], name) if "tools" in value else known_tools
        if tools is None:
            raise UsageError(f"{name}: no tools are named", hint="in the line, or by --tools")
        if not value["question"].strip():
            raise UsageError(f"{name}: the question is empty")
        items.append(Item(value.get("id"), value["question"], tools, name))
    return items


async def _propose_all(run: RunOptions, items: list[Item], step: Callable[[], None]) -> int:
    """Ask all questions, print each result, and return the exit code."""
    code, failures = EXIT_OK, 0
    async with open_selected_backend(run, note) as (selected, settings):
        limits = run.configuration.limits()
        propose = Proposer(selected.backend, settings=settings, limits=limits)
        for item in items:
            try:
                result = _proposed(item, run, await propose(item.question, item.tools))
                failures = 0
            except MlxToolsError as error:
                if item.place is None:
                    raise
                failures += 1
                error.message = f"{item.place}: {error.message}"
                if not isinstance(error, _LINE_ERRORS) or failures == FAILURES:
                    raise
                complain(str(error))
                code, result = max(code, error.exit_code), _failed_row(item, run, error)
            print_json(result)
            if item.place is None and result["error"] is not None:
                code = EXIT_STOPPED
            step()
    return code


def _failed_row(item: Item, run: RunOptions, error: MlxToolsError) -> dict[str, Any]:
    """Return the printed object for a line of a batch that the server did not answer."""
    code = "timeout" if isinstance(error, BackendTimeout) else "backend_error"
    nothing = Proposal(tools=item.tools)
    failure = {"error": {"code": code, "message": str(error)}, "strategy": None}
    usage = {"usage": {"requests": None} | to_builtins(nothing.usage)}
    return _proposed(item, run, nothing) | failure | usage


def _proposed(item: Item, run: RunOptions, proposal: Proposal) -> dict[str, Any]:
    """Return the proposal as it is printed."""
    return {
        "id": item.id,
        **as_json(proposal.reading, proposal.tools, run.tool_choice),
        "reasoning": proposal.reasoning,
        "completion": proposal.completion,
        "usage": {"requests": proposal.requests} | to_builtins(proposal.usage),
        "strategy": proposal.strategy,
    }
