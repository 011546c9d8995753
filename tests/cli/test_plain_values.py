"""The values of parameters that are read without pydantic are those that typer reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from mlx_tools.cli.plain_values import read_plainly

COMMANDS = typer.Typer()

Limit = Annotated[int, typer.Option(min=1, max=9)]


@COMMANDS.command()
def one(
    text: str,
    texts: list[str] | None = None,
    word: str = "auto",
    flag: bool = False,
    switch: bool | None = None,
    number: int = 5,
    limit: Limit = 5,
    fraction: float | None = None,
    path: Path | None = None,
    pair: tuple[str, str] | None = None,
    rest: Annotated[list[Path] | None, typer.Argument()] = None,
) -> None:
    """Has a parameter of each kind that our commands have."""


VALUES: tuple[Any, ...] = (
    *(None, "", "a", " a\n", "5", "0", "1_0", "true", "no", "a\udcff", b"a", 5, 0, 10, 5.5),
    *(True, False, (), [], ("a",), ["a", "b"], ("a", "b"), (1, 2), Path("a"), (Path("a"), "b")),
)


def outcomes(command: Any) -> Iterator[tuple[str, Any, str]]:
    """Each parameter with each value, and what comes of it."""
    context = command.make_context("one", ["a"], resilient_parsing=True)
    for parameter in command.params:
        for value in VALUES:
            try:
                result = repr(parameter.process_value(context, value))
            except typer.BadParameter as error:
                result = error.format_message()
            except Exception as error:
                result = type(error).__name__
            yield parameter.name, value, result


def test_a_parameter_takes_and_refuses_the_values_that_typer_does() -> None:
    typers, ours = get_command(COMMANDS), get_command(COMMANDS)
    read_plainly(ours.params)
    assert [*outcomes(ours)] == [*outcomes(typers)]
