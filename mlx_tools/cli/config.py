"""`mlx-tools config`: which settings hold, where each came from, whether the files are sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mlx_tools.app import Configuration, SettingRow, config
from mlx_tools.cli.options import AsJsonLines, argument
from mlx_tools.cli.output import print_json, print_text, to_json, warn_all

app = typer.Typer(add_completion=False)

HIDDEN = "(hidden)"


@app.command()
def show(as_json: AsJsonLines = False) -> None:
    """Print every setting, its value, and where the value came from."""
    loaded = config.load()
    warn_all(loaded.warnings)
    rows = [_described(row, loaded) for row in config.table().values()]
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
    """Check the files and variables that settings come from. Exit code 2 where one is wrong."""
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


def _described(row: SettingRow, loaded: Configuration) -> dict[str, Any]:
    value = loaded.values.get(row.key)
    secret = row.setting.secret and value is not None
    return {
        "key": row.key,
        "value": HIDDEN if secret else value,
        "from": [{"kind": o.kind, "name": o.name} for o in loaded.origins.get(row.key, ())],
        "env": row.env,
        "option": row.setting.flag or None,
        "allowed": row.allowed(),
        "description": row.setting.help,
    }


def _profile(name: str, layer: config.Layer) -> dict[str, Any]:
    """A profile, as a row of its own: what it sets."""
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
    plain = isinstance(value, str) and value.isprintable() and value
    return value if plain else to_json(value)


def _from(origins: Sequence[Mapping[str, str]]) -> str:
    named = [o["name"] for o in origins if o["kind"] != "default"]
    return " + ".join(named) if named else "default" if origins else "not set"
