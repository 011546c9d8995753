"""Edits of a person's TOML files: one value changes, everything else stays."""

from __future__ import annotations

import tomllib
from typing import Any

from mlx_tools.errors import ConfigError
from mlx_tools.plugins.connect.json_edit import put_value


def read_toml(text: str) -> Any:
    """Return the value of a text. Raises ConfigError if it is no TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from None


def set_toml(text: str, path: tuple[str, ...], value: Any) -> str:
    """Set the value at a path of a text; missing tables are added at the end.

    Raises:
        ConfigError: the text is no TOML, or is written in a form that cannot be changed safely.
    """
    import tomlkit  # which takes long to load
    from tomlkit.exceptions import TOMLKitError

    expected = put_value(read_toml(text), path, value)
    *tables, name = path
    try:
        document: Any = tomlkit.parse(text)
        inner: Any = document
        for depth, table in enumerate(tables, start=1):
            if table not in inner:
                inner[table] = tomlkit.table(is_super_table=depth < len(tables))
            inner = inner[table]
        inner[name] = value
        edited = tomlkit.dumps(document)
        if tomllib.loads(edited) == expected:
            return edited
    except (TOMLKitError, tomllib.TOMLDecodeError, AttributeError, TypeError, RecursionError):
        pass
    raise ConfigError("this file's form is one that cannot be changed safely")
