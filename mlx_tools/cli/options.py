"""Options that set settings, made from the table of settings.

A command names its settings. Typed values go unchanged into the last layer of the configuration,
which checks them like a file.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mlx_tools.app import Configuration, Group, SettingRow, config
from mlx_tools.cli.completion import model_names, profile_names, session_ids, tool_names
from mlx_tools.cli.output import keep_output, warn_all
from mlx_tools.errors import UsageError
from mlx_tools.policy import PRESETS

if TYPE_CHECKING:
    from mlx_tools.app import RunOptions


def _group(name: Group) -> tuple[str, ...]:
    return tuple(key for key, row in config.table().items() if row.setting.group == name)


BACKEND, WRITING = _group("backend"), _group("writing")
POLICY, RUN, GATEWAY = _group("policy"), _group("run"), _group("gateway")
MODEL_SETTINGS = (*_group("own"), *BACKEND)
"""The settings for the way to the model, if a person asks."""
ASK = (*MODEL_SETTINGS, *WRITING, *POLICY, *RUN)
"""The settings that a person's question takes."""

TOOLS = ("policy.allow", "policy.preset", "tools.roots")
"""The settings that say which tools exist, and which may be called."""
SERVED = ("profile", *BACKEND, *TOOLS, "policy.approve")
"""The settings of a program that serves others; it reads the other settings elsewhere."""

_PATHS = ("tools.roots", "tools.functions")
"""Lists whose option is given once for each item."""

_PANELS: Mapping[Group, str] = {
    "own": "Model",
    "backend": "Model",
    "writing": "Model",
    "policy": "Tools",
    "run": "Limits",
    "gateway": "Gateway",
}


def option(help_text: str, help: str, **kwargs: Any) -> Any:  # noqa: A002
    """Return an option from its text: ``--limit N``, or a flag, ``--yes,-y``."""
    names, _, metavar = help_text.partition(" ")
    return typer.Option(*names.split(","), metavar=metavar or None, help=help, **kwargs)


def argument(metavar: str, help: str, **kwargs: Any) -> Any:  # noqa: A002
    """Return an argument of a command."""
    return typer.Argument(metavar=metavar, help=help, **kwargs)


def join_words(words: Sequence[str] | None) -> str | None:
    """Return the words of an argument as one text; None if there are none."""
    return " ".join(words) if words else None


ToolChoice = Annotated[
    str,
    option(
        "--tool-choice CHOICE",
        "Whether the model must call a tool (required), must not (none), or must call this "
        "one first (its name).",
        rich_help_panel="Tools",
    ),
]
RequireTools = Annotated[
    str,
    option(
        "--require-tools A,B",
        "Fail at once, before the model is asked, if one of these tools may not be called.",
        rich_help_panel="Tools",
        autocompletion=tool_names,
    ),
]
AsJson = Annotated[bool, option("--json", "Print one JSON object.")]
AsJsonLines = Annotated[bool, option("--json", "Print one JSON object a line.")]
ContinueLast = Annotated[
    bool, option("--continue,-c", "Go on with this folder's last conversation.")
]
SessionGiven = Annotated[
    str | None,
    option(
        "--session ID",
        "Go on with this session: its id, or the beginning of it.",
        autocompletion=session_ids,
    ),
]
Yes = Annotated[bool, option("--yes,-y", "Do not ask.")]

Options = Mapping[str, str | bool | Sequence[str]]
"""The given options by setting's key, as they were typed."""


def with_settings(*keys: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for each of these settings.

    The command has a parameter ``options_given``, which takes the given ones (`Options`).
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        rows = [config.table()[key] for key in keys]
        parameters = {row.setting.flag.lstrip("-").replace("-", "_"): row for row in rows}

        @functools.wraps(command)
        def wrapper(**kwargs: Any) -> Any:
            options = {}
            for name, row in parameters.items():
                value = kwargs.pop(name)
                if isinstance(value, list) and row.key not in _PATHS:  # a path may have commas
                    value = ",".join(value) if value else None
                if value is not None and value != []:
                    options[row.key] = value
            return command(**kwargs, options_given=options)

        command_parameters = inspect.signature(command, eval_str=True).parameters.values()
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                p.replace(kind=p.KEYWORD_ONLY)
                for p in command_parameters
                if p.name != "options_given"
            ]
            + [_option(name, row) for name, row in parameters.items()]
        )
        wrapper.__annotations__ = {p.name: p.annotation for p in command_parameters}
        return wrapper

    return decorate


def load(options: Options) -> Configuration:
    """Return the configuration with these options.

    Print its warnings on standard error.

    From here on foreign code may be in this process, such as a package's tools.
    """
    loaded = config.load(options=options)
    keep_output()
    warn_all(loaded.warnings)
    return loaded


def run_options(
    options: Options, tool_choice: str = "auto", required: str = "", *, tools: bool = True
) -> RunOptions:
    """Return the options of a command that asks a model.

    Raises:
        UsageError: tools are turned off and may be called. With ``tools`` False this is not
            checked.
    """
    from mlx_tools.app import (  # imported late: it imports all that a run needs
        RunOptions,
        require_tools_enabled,
    )

    run = RunOptions(
        configuration=load(options),
        tool_choice=tool_choice,
        require_tools=names(required),
        person=sys.stderr.isatty(),
        pick=pick_at_terminal(),
    )
    if tools:
        require_tools_enabled(run.configuration, tool_choice)
    return run


def pick_at_terminal() -> Callable[[str, Sequence[str]], Awaitable[str | None]] | None:
    """Return the function that asks the user at the terminal; None without a terminal."""
    if not sys.stderr.isatty():
        return None
    from mlx_tools.cli.inputs import is_at_terminal, pick_in_thread

    return pick_in_thread if is_at_terminal() else None


def names(text: str | None) -> tuple[str, ...]:
    """Return the names in a list with commas."""
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))


def require_choice(option: str, text: str, allowed: Sequence[str]) -> str:
    """Return the text if it is one of the allowed ones, else raise `UsageError`."""
    if text not in allowed:
        problem = f"{text!r} is not allowed" if text else "none is named"
        raise UsageError(f"{option}: {problem}", hint=f"one of {', '.join(allowed)}")
    return text


def parse_choices(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the names in a list with commas, each once.

    Raises:
        UsageError: one is not allowed, or there is none.
    """
    return tuple(
        require_choice(option, name, allowed) for name in dict.fromkeys(names(text)) or ("",)
    )


def _option(name: str, row: SettingRow) -> inspect.Parameter:
    metavar = row.setting.option.partition(" ")[2]
    kind: Any = bool | None if row.is_a("boolean") else str | None
    info = typer.Option(
        *row.setting.flags,
        help=_help(row),
        metavar=metavar or None,
        rich_help_panel=_PANELS[row.setting.group],
        autocompletion=_completer(row),
        show_default=False,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[list[str] | None if row.is_a("array") else kind, info],
    )


def _help(row: SettingRow) -> str:
    default, scale = config.defaults().values.get(row.key), row.setting.scale
    notes = [row.allowed()] if row.choices else []
    if row.key == "policy.preset":
        notes = [", ".join(PRESETS)]
    if default is not None and default != "" and not isinstance(default, bool | tuple):
        notes.append(f"default: {default / scale:g}" if scale != 1 else f"default: {default}")
    text = f"{row.setting.help}; FILE holds it" if row.setting.secret else row.setting.help
    return f"{text}." + (f" ({'; '.join(notes)})" if notes else "")


_COMPLETERS: Final[Mapping[str, Callable[..., list[Any]]]] = {
    "profile": profile_names,
    "model.name": model_names,
    "policy.allow": tool_names,
}


def _completer(row: SettingRow) -> Callable[..., list[Any]] | None:
    if row.key in _COMPLETERS:
        return _COMPLETERS[row.key]
    words = PRESETS if row.key == "policy.preset" else row.choices
    return (
        (lambda incomplete: [word for word in words if word.startswith(incomplete)])
        if words
        else None
    )
