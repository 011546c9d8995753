"""`mlx-tools config`.

Shows the settings and their sources, checks files, and changes the user's.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mlx_tools.app import (
    Configuration,
    SettingRow,
    as_toml,
    change_user_text,
    config,
    edit_value,
    read_user_text,
)
from mlx_tools.cli.inputs import EditFailed, confirm, edit_in_editor, is_at_terminal
from mlx_tools.cli.options import AsJsonLines, argument
from mlx_tools.cli.output import complain, note, print_json, print_text, warn_all
from mlx_tools.errors import EXIT_OK, EXIT_USAGE, ConfigError, UsageError
from mlx_tools.messages import json_line

app = typer.Typer(add_completion=False)

HIDDEN = "(hidden)"


@app.command()
def show(as_json: AsJsonLines = False) -> None:
    """Print every setting, its value, and where the value came from."""
    loaded = config.load()
    warn_all(loaded.warnings)
    rows = [_describe_row(row, loaded) for row in config.table().values()]
    rows += [_profile(name, layer) for name, layer in loaded.profiles.items()]
    if as_json:
        for row in rows:
            print_json(row)
        return
    lines = [(row["key"], _plain(row["value"]), _from(row["from"])) for row in rows]
    widths = [min(max(len(line[i]) for line in lines), 48) for i in range(2)]
    for key, value, origin in lines:
        print_text(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {origin}".rstrip())


@app.command()
def check(
    file: Annotated[
        Path | None,
        argument(
            "FILE",
            "A file to check, mlx-tools.toml as a project's; without it, all that hold here.",
        ),
    ] = None,
) -> None:
    """Check the files and variables that settings come from.

    Exit code 2 where one is wrong.
    """
    if file is None:
        loaded = config.load()
        sources: Sequence[str] = (*loaded.files, "environment")
    else:
        as_project = file.name == config.PROJECT_FILE
        layer = config.read_file(file, "project" if as_project else "user")
        loaded = config.merge([config.defaults(), layer])
        sources = (str(file),)
    warn_all(loaded.warnings)
    for source in sources:
        print_text(f"ok: {source}")


def _keys(incomplete: str) -> list[str]:
    rows = config.table().items()
    return [key for key, row in rows if key.startswith(incomplete) and not row.setting.secret]


_MEANT_UNSET: Final = frozenset(("none", "null", "nil", "default", "unset", "unlimited"))
"""Words that may be typed for a setting without a value."""


@app.command(name="set")
def set_value(
    key: Annotated[
        str, argument("KEY", "The setting, as config show names it.", autocompletion=_keys)
    ],
    words: Annotated[
        list[str],
        argument("VALUE…", "Its value; lists with commas, [] for none; '' unsets it."),
    ],
) -> None:
    """Write a setting into your file; comments and order stay."""
    row = config.table().get(key)
    text = " ".join(words)
    if row is not None and row.setting.secret and text.strip():
        raise UsageError(
            f"{key} is a secret, and others on this machine can see command lines",
            hint=f"mlx-tools config edit, or {row.env}",
        )
    try:
        value = config.read_typed(key, text)
    except config.ConfigErrors as error:
        if row is None or text.casefold() not in _MEANT_UNSET:
            raise
        raise ConfigError(error.message, hint=f"mlx-tools config set {key} '' unsets it") from None
    change_user_text(lambda text: edit_value(text, key, value))
    print_text(f"{key} = {as_toml(value)}" if value is not None else f"{key} is not set")
    with contextlib.suppress(ConfigError):  # every command reports an error elsewhere
        loaded = config.load()
        warn_all(loaded.warnings)
        if value is not None and all(origin.kind != "user" for origin in loaded.origins[key]):
            note(f"{loaded.describe_origin(key)} overrides it")


@app.command()
def path() -> None:
    """Print where your file is."""
    print_text(str(config.user_path()), exact=True)
    if not config.user_path().exists():
        note("it is not there yet")


@app.command()
def edit() -> int:
    """Change your file in your editor; it is checked before it takes effect."""
    if not is_at_terminal():
        raise UsageError("an editor needs a terminal", hint="mlx-tools config set KEY VALUE")
    old_text = text = read_user_text()

    def replace(current_text: str) -> str:
        nonlocal old_text
        if current_text != old_text:
            old_text = current_text
            problem = "another program changed it meanwhile; if you save again, yours replaces it"
            raise config.ConfigErrors([f"{config.user_path()}: {problem}"])
        return text

    tries_again = True
    while tries_again:
        try:
            shown = text.removesuffix("\n")
            text = edit_in_editor(shown, config.USER_FILE, sys.stdin, sys.stderr) + "\n"
            if text in (old_text, f"{old_text}\n"):
                note("nothing was changed")
            else:
                change_user_text(replace)
                print_text(str(config.user_path()), exact=True)
                with contextlib.suppress(ConfigError):  # every command reports an error elsewhere
                    warn_all(config.load().warnings)
            return EXIT_OK
        except config.ConfigErrors as error:
            for problem in error.problems:
                complain(problem)
            tries_again = confirm("Edit it again? Else your file stays as it was.")
        except EditFailed as error:
            raise UsageError(f"nothing was changed: {error}") from None
    return EXIT_USAGE


def _describe_row(row: SettingRow, configuration: Configuration) -> dict[str, Any]:
    value = configuration.values.get(row.key)
    secret = row.setting.secret and bool(value)
    return {
        "key": row.key,
        "value": HIDDEN if secret else value,
        "from": [{"kind": o.kind, "name": o.name} for o in configuration.origins.get(row.key, ())],
        "env": row.env,
        "option": row.setting.flag or None,
        "allowed": row.allowed(),
        "description": row.setting.help,
    }


def _profile(name: str, layer: config.Layer) -> dict[str, Any]:
    """Return a profile as a row of its own, with the settings that it holds."""
    table = config.table()
    return {
        "key": f"{config.PROFILES}.{name}",
        "value": {
            key: HIDDEN if table[key].setting.secret else value
            for key, value in layer.values.items()
        },
        "from": [{"kind": layer.kind, "name": layer.source.rpartition(": ")[0]}],
        "env": None,
        "option": f"--profile {name}",
        "allowed": "settings",
        "description": "Settings under one name",
    }


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    is_plain = isinstance(value, str) and value.isprintable() and value
    return value if is_plain else json_line(value)


def _from(origins: Sequence[Mapping[str, str]]) -> str:
    names = " + ".join(origin["name"] for origin in origins if origin["kind"] != "default")
    return names or ("default" if origins else "not set")
