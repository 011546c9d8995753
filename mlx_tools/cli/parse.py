"""`mlx-tools parse`: how one completion's text is read. Runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlx_tools.backends import DEFAULT_STYLE
from mlx_tools.cli import options, reading
from mlx_tools.cli.inputs import read_bytes, read_json
from mlx_tools.cli.output import print_json
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError

app = typer.Typer(add_completion=False)


@app.command(help="Show how one completion's text is read; runs nothing.")
@options.with_settings("model.prompt_style")
def parse(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The text; standard input without it, or for -."),
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(
            "--tools",
            metavar="FILE",
            help='A JSON list of tools: OpenAI function definitions, or {"name", "description", '
            '"parameters"}; each may carry "effects", else it has all. Without it, names and '
            "arguments are not checked.",
        ),
    ] = None,
    finish_reason: Annotated[
        str,
        typer.Option(
            "--finish-reason",
            metavar="stop|length",
            help="Whether the text ended by itself or at the token limit.",
        ),
    ] = "stop",
    observations: Annotated[
        Path | None,
        typer.Option(
            "--observations",
            metavar="FILE",
            help="A JSON list of earlier observations' texts: calls copied from them are echoes.",
        ),
    ] = None,
    tool_choice: options.ToolChoice = "auto",
    *,
    options_given: options.Options,
) -> int:
    """Print the reading as one JSON object; exit code 1 where it holds an error."""
    if finish_reason not in ("stop", "length"):
        raise UsageError(
            f"--finish-reason: {finish_reason!r} is not allowed", hint="stop or length"
        )
    style = options.load(options_given).settings.model.prompt_style
    # Bytes that are no UTF-8 become lone surrogates, which reading refuses by name in a message.
    text = read_bytes(file).decode("utf-8", "surrogateescape")
    result = reading.read_completion(
        text,
        tools=reading.tools_from(tools),
        finish_reason=finish_reason,  # type: ignore[arg-type]
        style=DEFAULT_STYLE if style == "auto" else style,
        tool_choice=tool_choice,
        observations=_observations(observations),
    )
    print_json(result)
    return EXIT_OK if result["error"] is None else EXIT_STOPPED


def _observations(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    value = read_json(path)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{path}: expected a JSON list of texts")
    return tuple(value)
