"""The root of the command line: finds and runs a command, and reports its failure.

A failure is one line on standard error and an exit code. A command's file is imported only when the
command is looked up.
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
from mlx_tools.cli.command_table import (
    COMMANDS,
    COMPLETION_VARIABLE,
    list_commands,
    list_subcommands,
)
from mlx_tools.cli.help_screen import Page, join_lines, render_help
from mlx_tools.cli.output import (
    LINES,
    complain,
    count_columns,
    escape_for_terminal,
    print_text,
    stdout,
)
from mlx_tools.cli.plain_values import read_plainly
from mlx_tools.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_STOPPED,
    EXIT_USAGE,
    BackendError,
    MlxToolsError,
    ModelError,
    PluginError,
    TranscriptError,
    UsageError,
    did_you_mean,
)
from mlx_tools.macos import raise_open_files
from mlx_tools.packages import must_pass

_CONTEXT = {"help_option_names": ["--help", "-h"]}

_FILES = {
    "approvals": "approval_templates",
    "propose": "parse",
    "store": "sessions",
}
"""The files of commands that have no file of their own name."""


_BUILT: dict[str, Any] = {}
"""The commands that were used.

A program that runs many commands builds each once: its options take half the time of a short one.
"""


class LazyGroup(TyperGroup):
    """A group whose commands are files of this package."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        The option parser would turn Ctrl-C into an exit code without a message.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            return interrupted(error)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        read_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(list_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _BUILT:
            found = _find_command(cmd_name)
            if found is None:
                if ctx.resilient_parsing:
                    return None
                hint = did_you_mean(cmd_name, list_commands())
                raise UsageError(f"no such command: {cmd_name}", hint=hint)
            command, command.name = found, cmd_name
            _add_subcommands(command)
            give_help(command, ctx)
            for subcommand in (command, *getattr(command, "commands", {}).values()):
                read_plainly(subcommand.get_params(ctx))
            _BUILT[cmd_name] = command
        return _BUILT[cmd_name]


def _find_command(name: str) -> Any:
    """Return a command, None if there is none of this name."""
    if name in COMMANDS:
        module = importlib.import_module(f"mlx_tools.cli.{_FILES.get(name, name)}")
        command = get_command(getattr(module, f"{name}_app", module.app))
        command.help = COMMANDS[name]
        return command
    return _load_plugin_command(name) if name in list_commands() else None


def _add_subcommands(group: Any) -> None:
    """Add the commands of plugins to a group. One that cannot be added is left out."""
    from mlx_tools.app import list_plugin_commands, plugins

    for name in list_subcommands(group.name):
        word = name.partition(" ")[2]
        try:
            if word in getattr(group, "commands", {}):
                raise UsageError(f"there is a command {name} already, from mlx-tools")
            if not isinstance(group, TyperGroup):
                raise UsageError(f"{group.name} is no group of commands")
            command = _load_plugin_command(name)
        except UsageError as error:
            plugin, _ = list_plugin_commands(COMMANDS).get(name, (name, None))
            plugins().refuse(plugin, str(error))
            continue
        command.name = word
        group.add_command(command)


def _load_plugin_command(name: str) -> Any:
    """Return a plugin's command.

    Raises:
        UsageError: it cannot be loaded.
    """
    from mlx_tools.app import list_plugin_commands, plugins

    plugin, offered = list_plugin_commands(COMMANDS).get(name, ("", None))
    if offered is None:
        raise UsageError(f"the command {name} of a plugin is not there any more")
    place, _, attribute = offered.app.partition(":")
    try:
        loaded = getattr(importlib.import_module(place), attribute)
        if not isinstance(loaded, typer.Typer):
            raise TypeError(f"{offered.app} is {type(loaded).__name__}, which is no typer.Typer")
        command = get_command(loaded)
    except BaseException as error:  # somebody else's code: nothing is known of it
        if must_pass(error):
            raise
        reason = str(error) or type(error).__name__
        problem = f"the command {name} of the plugin {plugin} cannot be loaded: {reason}"
        raise UsageError(problem, hint="install it anew, or remove its package") from error
    command.help = offered.help
    if plugin not in plugins().names():
        wrapped: Any = command
        wrapped.invoke = functools.partial(_invoke_plugin, plugin, command.invoke)
    return command


def _invoke_plugin(plugin: str, invoke: Callable[[Any], Any], context: Any) -> Any:
    """Run a command of another package, and name the package if it fails.

    Raises:
        PluginError: it raised an exception that no command is meant to raise.
    """
    try:
        return invoke(context)
    except (MlxToolsError, OSError, typer.Exit, typer.Abort):
        raise
    except BaseException as error:
        is_of_parser = callable(getattr(error, "format_message", None))
        if is_of_parser or isinstance(error, SystemExit) or must_pass(error):
            raise
        cause = f"{type(error).__name__}: {error}"
        raise PluginError(f"the plugin {plugin} failed: {cause}") from error


app = typer.Typer(cls=LazyGroup, context_settings=_CONTEXT, pretty_exceptions_enable=False)


@app.callback(help="Reliable tool use for local models that only complete text.")
def _root() -> None:
    """Give the program the options that typer adds; it has none of its own."""


def run(arguments: Sequence[str], *, is_nested: bool = False) -> int:
    """Run the command in ``arguments``, and return the exit code.

    With ``is_nested`` another program runs it, and afterwards standard output is as it was. Else it
    is ours to the end: output of a tool that still runs must not follow the answer.
    """
    output.repair_streams()
    output.forget_warnings()
    if not is_nested:
        raise_open_files()
    if not is_nested:  # imported modules stay in memory: fewer collections start faster
        gc.set_threshold(50_000, 20, 20)
        # httpx would load rich for its own command line; None makes it skip that
        sys.modules.setdefault("httpx._main", cast("ModuleType", None))
    program = functools.partial(
        get_command(app).main,
        args=list(arguments),
        prog_name="mlx-tools",
        complete_var=COMPLETION_VARIABLE,
        standalone_mode=False,
    )
    if not {"--install-completion", "--show-completion"}.isdisjoint(arguments):
        _set_bash_script()
    try:
        return run_guarded(program)
    finally:
        if is_nested:
            output.restore_output()


def _set_bash_script() -> None:
    """Make typer write our script for bash, if this typer can.

    With its own script bash offers files where only folders fit.
    """
    from typer import _completion_shared

    from mlx_tools.cli.completion import BASH_SCRIPT

    scripts = getattr(_completion_shared, "_completion_scripts", None)
    if isinstance(scripts, dict) and "bash" in scripts:
        scripts["bash"] = BASH_SCRIPT


# --- failures -----------------------------------------------------------------------------------


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after the command itself has reported it."""

    def __init__(self, session: str | None = None, transcript: str | None = None) -> None:
        super().__init__()
        self.session, self.transcript = session, transcript


def fails_as_json(command: Callable[..., Any]) -> Callable[..., Any]:
    """Make a command with ``--json`` print its failure as JSON, and still raise it.

    The JSON is the outcome of a run that has stopped, with the failure as ``error``.
    """

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        try:
            return command(**kwargs)
        except BrokenPipeError:
            raise  # nobody reads our output any more
        except (Exception, KeyboardInterrupt) as error:
            if kwargs["as_json"]:
                with contextlib.suppress(OSError):
                    output.print_json(_make_outcome(error))
            raise

    return wrapper


_REASONS: Final = (
    (KeyboardInterrupt, "interrupted"),
    (PluginError, "internal_error"),
    (BackendError, "backend_error"),
    (ModelError, "backend_error"),
    (TranscriptError, "storage_error"),
    (MlxToolsError, "usage_error"),
    (OSError, "storage_error"),
    (Exception, "internal_error"),
)


def _make_outcome(error: BaseException) -> dict[str, Any]:
    """Return the outcome of a run that this error ended, or that never began."""
    from mlx_tools.app import config, session_store
    from mlx_tools.transcript import Stopped, make_outcome

    reason = next(reason for kind, reason in _REASONS if isinstance(error, kind))
    value = Stopped(session="", reason="internal_error").to_json() | {"session": None}
    if isinstance(error, Interrupted) and error.session is not None:
        value |= {"session": error.session, "transcript": error.transcript}
        with contextlib.suppress(MlxToolsError, OSError):  # the session may not be at rest yet
            records = session_store(config.load()).records(error.session)
            value = make_outcome(records, transcript=error.transcript).to_json()
    code = reason if reason in ("interrupted", "internal_error") else _code(error)
    message = str(error) or "ended by Ctrl-C"
    if reason == "internal_error":
        message = f"{type(error).__name__}: {error}"
    return value | {
        "status": "stopped",
        "reason": reason,
        "error": {"code": code, "message": message},
    }


def _code(error: BaseException) -> str:
    """Return the name of an error's class, such as ``backend_unreachable``.

    The nearest in `errors`.
    """
    classes = (cls for cls in type(error).__mro__ if cls.__module__ == MlxToolsError.__module__)
    name = next(classes, type(error)).__name__
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def interrupted(error: KeyboardInterrupt) -> int:
    """Report that Ctrl-C ended the command, unless that was done.

    Return the exit code.
    """
    if not isinstance(error, Interrupted):
        if sys.stderr.isatty():
            print(file=sys.stderr)  # end the line that shows ^C, or a question
        complain("by Ctrl-C", kind="interrupted")
    # If Ctrl-C came within an exec (imported modules have many), `python -m` would end by the
    # signal itself, whatever is returned here. A further exec clears that state of the interpreter.
    exec("")  # noqa: S102
    return EXIT_INTERRUPTED


def run_guarded(command: Callable[[], Any]) -> int:
    """Run ``command`` and return the exit code: its own, or that of its failure.

    A user's mistake is one line, without a traceback.
    """
    try:
        code = command()
        stdout().flush()
        return code if isinstance(code, int) else EXIT_OK
    except PluginError as error:
        return internal_error(error)
    except MlxToolsError as error:
        for line in getattr(error, "problems", (str(error),)):
            complain(line)
        return error.exit_code
    except KeyboardInterrupt as error:
        return interrupted(error)
    except OSError as error:  # such as a full disk: no bug of ours
        return handle_os_error(error)
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # foreign code may raise anything
        message = getattr(error, "format_message", None)
        if callable(message):  # an error of the option parser: wrong usage
            complain(_usage(str(message()), error))
            return EXIT_USAGE
        return internal_error(error)


_OS_ERROR_HINTS: Final = {
    errno.ENOSPC: " (free some space, also where the output goes)",
    errno.EDQUOT: " (free some space, also where the output goes)",
    errno.EBADF: " (is standard output closed?)",
}
"""The hint for an error of the system, by its number."""


def handle_os_error(error: OSError) -> int:
    """Report an error of the system, such as a full disk; return the exit code.

    It is the exit code of every file that cannot be written. Nothing is reported if the reader of
    standard output has gone, or the terminal was closed.
    """
    # The interpreter flushes standard output at its end: it must not fail there again.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout().fileno())
    if isinstance(error, BrokenPipeError) or any(map(_is_gone, range(3))):
        return EXIT_STOPPED
    prefix = f"{error.filename}: " if error.filename else ""
    hint = _OS_ERROR_HINTS.get(error.errno or 0, "")
    complain(f"{prefix}{error.strerror or error}{hint}")
    return EXIT_USAGE


def _is_gone(file: int) -> bool:
    """Return True if an open file was a terminal that has been closed since."""
    try:
        termios.tcgetattr(file)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False


def _usage(message: str, error: BaseException) -> str:
    """Return the option parser's message in one line.

    If something is missing it says what could be given.
    """
    line = " ".join(message.split()).rstrip(".")
    line = line[:1].lower() + line[1:]
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "mlx-tools")
    command: Any = getattr(context, "command", None)
    parameter = getattr(error, "param", None)
    values = getattr(parameter, "metavar", None) or ""
    advice = ""
    if line.startswith("missing "):
        if parameter is None and hasattr(command, "list_commands"):
            advice = f": one of {', '.join(command.list_commands(context))}"
        elif "|" in values:
            advice = f": one of {values.replace('|', ', ')}"
    elif line.startswith("no such command") and hasattr(command, "list_commands"):
        # the closest word may do something else: remove is not resume
        line = line.partition(". ")[0]
        advice = f": one of {', '.join(command.list_commands(context))}"
    elif line.startswith("no such option") and any(option.nargs == -1 for option in command.params):
        advice = "; put words that start with - after --"
    return f"{line}{advice} (see: {path} --help)"


def internal_error(error: BaseException) -> int:
    """Report a bug of this program or of a plugin, and return the exit code.

    The traceback goes into a file that only the user can read.
    """
    text = "".join(traceback.format_exception(error))
    try:
        location = f"its traceback is in {_keep(text)}"
    except Exception as failure:  # if no file can be written, the bug itself is still reported
        print(escape_for_terminal(text, keep=LINES), file=sys.stderr, end="")
        location = f"its traceback is above, since no file took it: {type(failure).__name__}"
    if isinstance(error, PluginError):
        problem = f"{error} (a fault of that plugin"
    else:
        problem = f"internal error: {type(error).__name__}: {error} (this is a bug"
    complain(f"{problem}; {location})")
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
    """Make a command and its subcommands print their help from here."""
    for subcommand in (command, *getattr(command, "commands", {}).values()):
        brief = subcommand.get_help_option(context)
        brief.help, brief.callback = "Show this.", functools.partial(_print_help, False)
        whole = copy.copy(brief)
        whole.name, whole.opts = "help_all", ["--help-all"]
        whole.help, whole.callback = "Show all options.", functools.partial(_print_help, True)
        subcommand.params.append(whole)


def _print_help(show_all: bool, context: Any, _: Any, requested: bool) -> None:
    if requested and not context.resilient_parsing:
        print_text(format_help(context, count_columns(stdout()), show_all=show_all))
        context.exit()


def format_help(context: Any, columns: int | None = None, *, show_all: bool) -> str:
    """Return the help of a context's command in ``columns``.

    It is complete if it fits on a screen, or with ``show_all``.
    """
    return render_help(get_page(context), columns, show_all=show_all)


def get_page(context: Any) -> Page:
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
        "help": join_lines(command.help),
        "arguments": [(one.metavar, one.help or "") for one in arguments],
        "commands": [(name, join_lines(one.help)) for name, one in below.items()],
        "options": [
            {
                "names": sorted(one.opts),
                "head": _head(one),
                "text": join_lines(record[1] if record else ""),
                "panel": getattr(one, "rich_help_panel", None) or "Options",
                "help": join_lines(one.help),
            }
            for one, record in zip(options, records, strict=True)
        ],
    }


def _head(option: Any) -> str:
    """Return an option's names, the short one first, and the word for its value."""
    *short, long = sorted(option.opts, key=len)
    names = f"{', '.join(short)}, {long}" if short else f"    {long}"
    return names if option.is_flag else f"{names} {option.metavar or ''}".rstrip()
