"""The root of the command line: finds the command, runs it, and turns what fails into a line.

A command's file is imported when the command is looked up, not before.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from mlx_tools.app import own_output
from mlx_tools.cli import COMMANDS, COMPLETION_VARIABLE, failures, output, version
from mlx_tools.errors import UsageError

_CONTEXT = {"help_option_names": ["--help", "-h"]}


class LazyGroup(TyperGroup):
    """A group whose commands are files of this package."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Of Ctrl-C the option parser would make an exit code without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            return failures.interrupted(error)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing:
                return None
            close = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            raise UsageError(
                f"no such command: {cmd_name}",
                hint=f"did you mean {close[0]}?" if close else f"one of {', '.join(COMMANDS)}",
            )
        module = importlib.import_module(f"mlx_tools.cli.{cmd_name}")
        command = get_command(module.app)
        command.name = cmd_name
        command.help = command.help or COMMANDS[cmd_name]
        for one in (command, *getattr(command, "commands", {}).values()):
            _show_flags_bare(one, ctx)
        return command


def _show_flags_bare(command: Any, ctx: Any) -> None:
    """A flag takes no value; the help would show one as if it took a ``<bool>``."""
    for option in (*command.params, command.get_help_option(ctx)):
        if getattr(option, "is_flag", False):
            option.metavar = ""


app = typer.Typer(cls=LazyGroup, context_settings=_CONTEXT, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlx-tools {version()}")
        raise typer.Exit


@app.callback(help="Reliable tool use for local models that only complete text.")
def _root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an internal error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Options of the program as a whole."""


def run(arguments: Sequence[str], *, within: bool = False) -> int:
    """Run the command that ``arguments`` name; what is returned is the exit code.

    ``within`` a program of somebody's own, standard output is then as it was before. Else it is
    ours to the end: what a tool left running must not print behind the answer.
    """
    output.make_sound()
    own_output.begin()
    try:
        return _run(arguments)
    finally:
        if within:
            own_output.give_back()


def _run(arguments: Sequence[str]) -> int:
    command = get_command(app)
    arguments = list(arguments)
    debug = False
    while arguments[:1] == ["--debug"]:
        debug = True
        del arguments[0]
    return failures.guarded(
        lambda: command.main(
            args=arguments,
            prog_name="mlx-tools",
            complete_var=COMPLETION_VARIABLE,
            standalone_mode=False,
        ),
        debug=debug,
    )
