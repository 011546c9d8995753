"""`mlx-tools prompts`: the commands for questions with a name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mlx_tools.cli import inputs, options
from mlx_tools.cli.completion import prompt_names
from mlx_tools.cli.named_prompts import QUESTION, NamedPrompts, find_blanks
from mlx_tools.cli.options import argument
from mlx_tools.cli.output import note, print_json, print_text
from mlx_tools.errors import UsageError

app = typer.Typer(add_completion=False)

Name = Annotated[str, argument("NAME", "The prompt.", autocompletion=prompt_names)]


@app.command("list")
def list_prompts(as_json: options.AsJson = False) -> None:
    """List the prompts with the beginnings of their texts."""
    prompts = NamedPrompts()
    for name in prompts.names():
        try:
            text = prompts.read(name)
            blanks = find_blanks(text)
        except UsageError as error:
            note(f"{name} is left out, since it cannot be asked: {error}")
            continue
        if as_json:
            row: dict[str, Any] = {"name": name, "text": text, "blanks": blanks}
            print_json(row)
        else:
            print_text(f"{name}  {' '.join(text.split())[:60]}")


@app.command()
def show(name: Name) -> None:
    """Print a prompt's text."""
    print_text(NamedPrompts().read(name).rstrip())


@app.command("set")
def set_prompt(
    name: Name,
    words: Annotated[
        list[str] | None,
        argument("TEXT…", "The text, with $NAME for what is filled in; - reads standard input."),
    ] = None,
) -> None:
    """Write a prompt; what was there under its name is replaced."""
    text = inputs.as_question(options.join_words(words) or "-")
    path = NamedPrompts().write(name, text)
    blanks = [blank for blank in find_blanks(text) if blank != QUESTION]
    values = "".join(f" {blank}=…" for blank in blanks)
    note(f"kept in {path}: mlx-tools ask -p {name}{values}")


@app.command()
def remove(name: Name) -> None:
    """Remove a prompt."""
    NamedPrompts().remove(name)
    print_text(f"{name} is removed")
