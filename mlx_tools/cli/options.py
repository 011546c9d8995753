"""Options that set settings, made once from the table of settings for every command that has them.

A command names the settings it takes; typed values go, as they were typed, into the configuration's
last layer, which checks them as it checks a file.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlx_tools.app import Configuration, Group, SettingRow, config
from mlx_tools.cli.completion import profile_names, session_ids
from mlx_tools.cli.output import keep_output, warn_all
from mlx_tools.errors import UsageError
from mlx_tools.policy import PRESETS

if TYPE_CHECKING:
    from mlx_tools.app import RunOptions


def _group(name: Group) -> tuple[str, ...]:
    return tuple(key for key, row in config.table().items() if row.setting.group == name)


BACKEND, WRITING = _group("backend"), _group("writing")
POLICY, RUN, GATEWAY = _group("policy"), _group("run"), _group("gateway")
OWN = (*_group("own"), *BACKEND)
"""The way to the model, where a person asks."""
ASK = (*OWN, *WRITING, *POLICY, *RUN)
"""The settings that a person's question takes."""

TOOLS = ("policy.allow", "policy.preset", "tools.roots")
"""The settings that say which tools there are, and which may be called."""
SERVED = ("profile", *BACKEND, *TOOLS, "policy.approve")
"""The settings that are said of a program that serves others; it reads the rest elsewhere."""

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
    """An option, as it is said: ``--limit N``, or a flag, ``--yes,-y``."""
    names, _, metavar = help_text.partition(" ")
    return typer.Option(*names.split(","), metavar=metavar or None, help=help, **kwargs)


def argument(metavar: str, help: str, **kwargs: Any) -> Any:  # noqa: A002
    """An argument of a command."""
    return typer.Argument(metavar=metavar, help=help, **kwargs)


def join_words(words: Sequence[str] | None) -> str | None:
    """The words of an argument as one text; None where there are none."""
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
        "Fail before the model is asked anything where one of these may not be called.",
        rich_help_panel="Tools",
    ),
]
AsJson = Annotated[bool, option("--json", "Print one JSON object.")]
AsJsonLines = Annotated[bool, option("--json", "Print one JSON object a line.")]
GoOn = Annotated[bool, option("--continue,-c", "Go on with the last conversation.")]
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
"""The options that were given, by setting's key, as they were typed."""


def with_settings(*keys: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for each of these settings.

    The command has a parameter ``options_given``, which takes those that were given (`Options`).
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        rows = [config.table()[key] for key in keys]
        parameters = {row.setting.flag.lstrip("-").replace("-", "_"): row for row in rows}

        @functools.wraps(command)
        def wrapper(**kwargs: Any) -> Any:
            options = {}
            for name, row in parameters.items():
                value = kwargs.pop(name)
                if isinstance(value, list) and row.key not in _PATHS:  # a path may hold commas
                    value = ",".join(value) if value else None
                if value is not None and value != []:
                    options[row.key] = value
            return command(**kwargs, options_given=options)

        own = inspect.signature(command, eval_str=True).parameters.values()
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.name != "options_given"]
            + [_option(name, row) for name, row in parameters.items()]
        )
        wrapper.__annotations__ = {p.name: p.annotation for p in own}
        return wrapper

    return decorate


def load(options: Options) -> Configuration:
    """The configuration with these options over it; its warnings go to standard error.

    From here on there may be code of others in this process, such as a package's tools.
    """
    loaded = config.load(options=options)
    keep_output()
    warn_all(loaded.warnings)
    return loaded


def run_options(
    options: Options, tool_choice: str = "auto", required: str = "", *, tools: bool = True
) -> RunOptions:
    """The options of a command that asks a model. Raises `UsageError` where that is turned off, or
    without ``tools``, where asking is."""
    from mlx_tools.app import RunOptions, require_tools_enabled  # it brings all a run needs

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


def pick_at_terminal() -> Callable[[str, Sequence[str]], str | None] | None:
    """Return the function that asks the user at the terminal; None without a terminal."""
    if not sys.stderr.isatty():
        return None
    from mlx_tools.cli.inputs import at_terminal, picked

    return picked if at_terminal() else None


def names(text: str | None) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))


def one_of(option: str, text: str, allowed: Sequence[str]) -> str:
    """Return the text. Raises `UsageError` where it is not one of those that are allowed."""
    if text not in allowed:
        said = f"{text!r} is not allowed" if text else "none is named"
        raise UsageError(f"{option}: {said}", hint=f"one of {', '.join(allowed)}")
    return text


def some_of(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """The names in a list with commas, each once. Raises `UsageError` for one that is not allowed,
    and for none."""
    return tuple(one_of(option, name, allowed) for name in dict.fromkeys(names(text)) or ("",))


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
    said = f"{row.setting.help}; FILE holds it" if row.setting.secret else row.setting.help
    return f"{said}." + (f" ({'; '.join(notes)})" if notes else "")


def _completer(row: SettingRow) -> Callable[..., list[str]] | None:
    if row.key == "profile":
        return profile_names
    known = PRESETS if row.key == "policy.preset" else row.choices
    return (lambda incomplete: [w for w in known if w.startswith(incomplete)]) if known else None
