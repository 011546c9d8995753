"""The root of the command line: finds the command, runs it, and turns what fails into one line on
standard error and an exit code.

A command's file is imported when the command is looked up, not before.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import gc
import importlib
import os
import re
import sys
import termios
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from mlx_tools.cli import output
from mlx_tools.cli.command_table import COMMANDS, COMPLETION_VARIABLE
from mlx_tools.cli.help_screen import Page, help_text_of, on_a_line
from mlx_tools.cli.output import LINES, columns_of, complain, for_terminal, print_text, stdout
from mlx_tools.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_STOPPED,
    EXIT_USAGE,
    BackendError,
    MlxToolsError,
    ModelError,
    TranscriptError,
    UsageError,
    did_you_mean,
)
from mlx_tools.macos import raise_open_files

_CONTEXT = {"help_option_names": ["--help", "-h"]}

_FILES = {
    "undo": "sessions",
    "approvals": "approval_templates",
    "propose": "parse",
    "store": "sessions",
    "worker": "serve",
}
"""Where a command stands that has no file of its name."""


_BUILT: dict[str, Any] = {}
"""The commands that were used. A program that runs many builds each once: half of what a short one
takes is its options."""


class LazyGroup(TyperGroup):
    """A group whose commands are files of this package."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Of Ctrl-C the option parser would make an exit code without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            return interrupted(error)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing:
                return None
            hint = did_you_mean(cmd_name, COMMANDS)
            raise UsageError(f"no such command: {cmd_name}", hint=hint)
        if cmd_name not in _BUILT:
            module = importlib.import_module(f"mlx_tools.cli.{_FILES.get(cmd_name, cmd_name)}")
            command = get_command(getattr(module, f"{cmd_name}_app", module.app))
            command.name = cmd_name
            command.help = COMMANDS[cmd_name]
            give_help(command, ctx)
            _BUILT[cmd_name] = command
        return _BUILT[cmd_name]


app = typer.Typer(cls=LazyGroup, context_settings=_CONTEXT, pretty_exceptions_enable=False)


@app.callback(help="Reliable tool use for local models that only complete text.")
def _root() -> None:
    """The program as a whole has no options but those that typer gives it."""


def run(arguments: Sequence[str], *, is_nested: bool = False) -> int:
    """Run the command that ``arguments`` name; what is returned is the exit code.

    ``is_nested`` a program of somebody's own, standard output is then as it was before. Else it is
    ours to the end: what a tool left running must not print behind the answer.
    """
    output.make_sound()
    if not is_nested:
        raise_open_files()
    if not is_nested:  # what is imported stays, however often it is looked through
        gc.set_threshold(50_000, 20, 20)
        # httpx's own command line, for which it would load rich: as where its extra is missing
        sys.modules.setdefault("httpx._main", cast("ModuleType", None))
    program = functools.partial(
        get_command(app).main,
        args=list(arguments),
        prog_name="mlx-tools",
        complete_var=COMPLETION_VARIABLE,
        standalone_mode=False,
    )
    try:
        return run_guarded(program)
    finally:
        if is_nested:
            output.give_output_back()


# --- failures -----------------------------------------------------------------------------------


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after the command itself has said what became of it. ``session`` is that of the run
    which it ended, where it ended one, and ``transcript`` the path of its transcript, if any."""

    def __init__(self, session: str | None = None, transcript: str | None = None) -> None:
        super().__init__()
        self.session, self.transcript = session, transcript


def fails_as_json(command: Callable[..., Any]) -> Callable[..., Any]:
    """Have a command print what makes it fail, where it was asked for JSON: as the outcome of a run
    that has stopped, with what was at fault as ``error``. It is raised all the same."""

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        try:
            return command(**kwargs)
        except BrokenPipeError:
            raise  # nobody reads it
        except (Exception, KeyboardInterrupt) as error:
            if kwargs["as_json"]:
                with contextlib.suppress(OSError):
                    output.print_json(_stopped_by(error))
            raise

    return wrapper


_REASONS: Final = (
    (KeyboardInterrupt, "interrupted"),
    (BackendError, "backend_error"),
    (ModelError, "backend_error"),
    (TranscriptError, "storage_error"),
    (MlxToolsError, "usage_error"),
    (OSError, "storage_error"),
    (Exception, "internal_error"),
)


def _stopped_by(error: BaseException) -> dict[str, Any]:
    """The outcome of a run that this ended, or that never began."""
    from mlx_tools.app import config, session_store
    from mlx_tools.transcript import Stopped, outcome_of

    reason = next(reason for kind, reason in _REASONS if isinstance(error, kind))
    value = Stopped(session="", reason="internal_error").to_json() | {"session": None}
    if isinstance(error, Interrupted) and error.session is not None:
        value |= {"session": error.session, "transcript": error.transcript}
        with contextlib.suppress(MlxToolsError, OSError):  # it has not come to rest
            records = session_store(config.load()).records(error.session)
            value = outcome_of(records, transcript=error.transcript).to_json()
    code = reason if reason in ("interrupted", "internal_error") else _code(error)
    said = str(error) or "ended by Ctrl-C"
    if reason == "internal_error":
        said = f"{type(error).__name__}: {error}"
    return value | {"status": "stopped", "reason": reason, "error": {"code": code, "message": said}}


def _code(error: BaseException) -> str:
    """The name of an error's kind, as ``backend_unreachable``: the nearest that `errors` has."""
    own = (one for one in type(error).__mro__ if one.__module__ == MlxToolsError.__module__)
    name = next(own, type(error)).__name__
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def interrupted(error: KeyboardInterrupt) -> int:
    """Say that Ctrl-C ended the command, where it was not said yet; its exit code."""
    if not isinstance(error, Interrupted):
        if sys.stderr.isatty():
            print(file=sys.stderr)  # behind ^C, or a question
        complain("by Ctrl-C", kind="interrupted")
    # Where it came within an exec, as there are many in what is imported, `python -m` ends by the
    # signal itself, whatever is returned here. The next exec takes that back.
    exec("")  # noqa: S102
    return EXIT_INTERRUPTED


def run_guarded(command: Callable[[], Any]) -> int:
    """Run ``command`` and return the exit code: what it returns, or what its failure means.

    A user's mistake is one line, without a traceback.
    """
    try:
        code = command()
        stdout().flush()
        return code if isinstance(code, int) else EXIT_OK
    except MlxToolsError as error:
        for line in getattr(error, "problems", (str(error),)):
            complain(line)
        return error.exit_code
    except KeyboardInterrupt as error:
        return interrupted(error)
    except OSError as error:  # a full disk, say: no bug of ours
        return handle_os_error(error)
    except Exception as error:
        message = getattr(error, "format_message", None)
        if callable(message):  # the option parser's own: wrong usage
            complain(_usage(str(message()), error))
            return EXIT_USAGE
        return internal_error(error)


def handle_os_error(error: OSError) -> int:
    """Say what the system refused, such as room on a disk that is full; the exit code, which is
    that of every file that cannot be written.

    Whoever has read enough of standard output, or has closed the terminal, is told nothing.
    """
    with contextlib.suppress(OSError, ValueError):  # the interpreter flushes it when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout().fileno())
    if isinstance(error, BrokenPipeError) or any(map(_is_gone, range(3))):
        return EXIT_STOPPED
    where = f"{error.filename}: " if error.filename else ""
    complain(f"{where}{error.strerror or error}")
    return EXIT_USAGE


def _is_gone(file: int) -> bool:
    """Return whether an open file was a terminal that has been closed since."""
    try:
        termios.tcgetattr(file)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False


def _usage(message: str, error: Exception) -> str:
    """The option parser's words in one line, with what could stand where something is missing: the
    commands of a group, or an option's values."""
    line = " ".join(message.split()).rstrip(".")
    line = line[:1].lower() + line[1:]
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "mlx-tools")
    command: Any = getattr(context, "command", None)
    parameter = getattr(error, "param", None)
    values = getattr(parameter, "metavar", None) or ""
    wanted = ""
    if line.startswith("missing "):
        if parameter is None and hasattr(command, "list_commands"):
            wanted = f": one of {', '.join(command.list_commands(context))}"
        elif "|" in values:
            wanted = f": one of {values.replace('|', ', ')}"
    elif line.startswith("no such option") and any(one.nargs == -1 for one in command.params):
        wanted = "; put words that start with - after --"
    return f"{line}{wanted} (see: {path} --help)"


def internal_error(error: Exception) -> int:
    """Tell of a fault of this program and keep its traceback in a file that only the user can read;
    returns the exit code."""
    text = "".join(traceback.format_exception(error))
    try:
        kept = f"its traceback is in {_keep(text)}"
    except Exception:  # no place to write must not hide the error itself
        print(for_terminal(text, keep=LINES), file=sys.stderr, end="")
        kept = "its traceback stands above"
    complain(f"internal error: {type(error).__name__}: {error} (this is a bug; {kept})")
    return EXIT_STOPPED


def _keep(text: str) -> Path:
    from mlx_tools.paths import state_dir
    from mlx_tools.policy import Redactor

    folder = state_dir() / "crashes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(Redactor().redact(text).text)
    return path


# --- help -----------------------------------------------------------------------------------------


def give_help(command: Any, context: Any) -> None:
    """Have a command, and all below it, print its help from here."""
    for one in (command, *getattr(command, "commands", {}).values()):
        brief = one.get_help_option(context)
        brief.help, brief.callback = "Show this.", functools.partial(_print_help, False)
        whole = copy.copy(brief)
        whole.name, whole.opts = "help_all", ["--help-all"]
        whole.help, whole.callback = "Show all options.", functools.partial(_print_help, True)
        one.params.append(whole)


def _print_help(show_all: bool, context: Any, _: Any, requested: bool) -> None:
    if requested and not context.resilient_parsing:
        print_text(help_of(context, columns_of(stdout()), show_all=show_all))
        context.exit()


def help_of(context: Any, columns: int | None = None, *, show_all: bool) -> str:
    """Return the help of a context's command."""
    return help_text_of(page_of(context), columns, show_all=show_all)


def page_of(context: Any) -> Page:
    """Return the page of a context's command, for the table of help screens."""
    command = context.command
    parameters = command.get_params(context)
    options = [one for one in parameters if one.param_type_name == "option"]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = [one.metavar if one.required else f"[{one.metavar}]" for one in arguments]
    below = getattr(command, "commands", {})
    usage = ["[OPTIONS]", *words, *(["COMMAND …"] if below else ())]
    records = [one.get_help_record(context) for one in options]
    return {
        "usage": f"Usage: {context.command_path} {' '.join(usage)}",
        "help": on_a_line(command.help),
        "arguments": [(one.metavar, one.help or "") for one in arguments],
        "commands": [(name, on_a_line(one.help)) for name, one in below.items()],
        "options": [
            {
                "names": sorted(one.opts),
                "head": _head(one),
                "text": on_a_line(record[1] if record else ""),
                "panel": getattr(one, "rich_help_panel", None) or "Options",
                "help": on_a_line(one.help),
            }
            for one, record in zip(options, records, strict=True)
        ],
    }


def _head(option: Any) -> str:
    """An option's names, the short one first, and what stands for its value."""
    *short, long = sorted(option.opts, key=len)
    names = f"{', '.join(short)}, {long}" if short else f"    {long}"
    return names if option.is_flag else f"{names} {option.metavar or ''}".rstrip()
