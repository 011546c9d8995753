"""Options that set settings, made once from the table of settings for every command that has them.

A command names the settings it takes; typed values go, as they were typed, into the configuration's
last layer, which checks them as it checks a file.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from mlx_tools.app import config
from mlx_tools.app.config import Configuration, Group, SettingRow
from mlx_tools.cli.output import warn_all
from mlx_tools.errors import UsageError
from mlx_tools.policy import PRESETS


def _group(name: Group) -> tuple[str, ...]:
    return tuple(key for key, row in config.table().items() if row.setting.group == name)


BACKEND, WRITING, POLICY = _group("backend"), _group("writing"), _group("policy")
OUTPUTS = _group("outputs")
RUN = (*_group("run"), *OUTPUTS)

_PANELS: Mapping[Group, str] = {
    "backend": "Model",
    "writing": "Model",
    "policy": "Tools",
    "outputs": "Tools",
    "run": "Limits",
}

ToolChoice = Annotated[
    str,
    typer.Option(
        "--tool-choice",
        metavar="CHOICE",
        help="Whether the model must call a tool (required), must not (none), or must call this "
        "one first (its name).",
        rich_help_panel="Tools",
    ),
]
RequireTools = Annotated[
    str | None,
    typer.Option(
        "--require-tools",
        metavar="A,B",
        help="Fail before the model is asked anything where one of these may not be called.",
        rich_help_panel="Tools",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")]

Options = Mapping[str, str | bool | Sequence[str]]
"""The options that were given, by setting's key, as they were typed."""


def with_settings(*keys: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for each of these settings.

    The command has a parameter ``options_given``, which takes those that were given (`Options`).
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        parameters = {_parameter(config.table()[key]): key for key in keys}

        @functools.wraps(command)
        def wrapper(**given: Any) -> Any:
            options = {}
            for name, key in parameters.items():
                value = given.pop(name)
                if value is not None and value != []:
                    options[key] = _typed(key, value)
            return command(**given, options_given=options)

        own = inspect.signature(command, eval_str=True).parameters.values()
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.name != "options_given"]
            + [_option(name, config.table()[key]) for name, key in parameters.items()]
        )
        wrapper.__annotations__ = {p.name: p.annotation for p in own}
        return wrapper

    return decorate


def load(options: Options) -> Configuration:
    """The configuration with these options over it; its warnings go to standard error."""
    loaded = config.load(options=options)
    warn_all(loaded.warnings)
    for key in ("backend.kind", "model.strategy"):
        row = config.table()[key]
        value = str(loaded.values[key])
        if value not in row.setting.available:
            raise UsageError(
                f"{loaded.named_by(key)}: {value} is not in this version",
                hint=f"available: {', '.join(row.setting.available)}",
            )
    return loaded


def names(text: str | None) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))


def _parameter(row: SettingRow) -> str:
    return (row.setting.flag or row.key).lstrip("-").replace("-", "_")


def _typed(key: str, value: Any) -> str | bool | Sequence[str]:
    if isinstance(value, list) and key != "tools.roots":  # a folder's name may hold a comma
        return ",".join(value)
    return value  # type: ignore[no-any-return]


def _option(name: str, row: SettingRow) -> inspect.Parameter:
    kind: Any = str | None
    if row.is_a(bool):
        kind = bool | None
    elif row.is_a(tuple):
        kind = list[str] | None
    info = typer.Option(
        row.setting.flag or "",
        help=_help(row),
        metavar=row.setting.metavar or "|".join(row.choices) or None,
        rich_help_panel=_PANELS.get(row.setting.group),
        autocompletion=_completer(PRESETS if row.key == "policy.preset" else row.choices),
        show_default=False,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info]
    )


def _help(row: SettingRow) -> str:
    default = config.defaults().values.get(row.key)
    notes = [row.allowed()] if row.choices else []
    if row.key == "policy.preset":
        notes = [", ".join(PRESETS)]
    if default is not None and default != "" and not isinstance(default, bool | tuple):
        scale = row.setting.scale
        notes.append(f"default: {default / scale:g}" if scale != 1 else f"default: {default}")
    return f"{row.description}." + (f" ({'; '.join(notes)})" if notes else "")


def _completer(choices: Iterable[str]) -> Callable[[str], list[str]] | None:
    words = list(choices)
    if not words:
        return None

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete
