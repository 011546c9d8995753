"""The user's file of settings, edited as text."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlx_tools.app.config import (
    BYTE_ORDER_MARK,
    MAX_FILE_BYTES,
    check_user_text,
    flatten,
    user_path,
)
from mlx_tools.errors import ConfigError, UsageError
from mlx_tools.paths import locked, read_text, write_whole

if TYPE_CHECKING:
    from tomlkit.items import Item


def edit_value(text: str, key: str, value: Any) -> str:
    """Return the text of the user's file with one setting changed.

    Args:
        text: the text.
        key: the setting's dotted name.
        value: its value; None removes it.

    Raises:
        ConfigError: the text is not TOML, or the value is written in a form that cannot be changed
            without changing another value.
    """
    if text.startswith(BYTE_ORDER_MARK):
        return BYTE_ORDER_MARK + edit_value(text[1:], key, value)
    import tomlkit  # imported late: it loads slowly
    from tomlkit.exceptions import TOMLKitError

    try:
        expected = dict(flatten(tomllib.loads(text)))
        expected.pop(key, None)
        if value is not None:
            expected[key] = list(value) if isinstance(value, tuple) else value
        document: Any = tomlkit.parse(text)
        *sections, name = key.split(".")
        inner = document
        for section in sections:
            inner = inner.get(section, {}) if value is None else inner.setdefault(section, {})
        if value is None:
            inner.pop(name, None)
        else:
            inner[name] = _item(value)
        edited = tomlkit.dumps(document)
        if dict(flatten(tomllib.loads(edited))) == expected:
            return edited
    except tomllib.TOMLDecodeError as error:
        where = f"{user_path()}: not TOML: {error}"
        raise ConfigError(where, hint="mlx-tools config edit") from None
    except (TOMLKitError, AttributeError, TypeError, RecursionError):
        pass
    raise ConfigError(
        f"{user_path()} says {key} in a form that only an editor can change",
        hint="mlx-tools config edit",
    )


def change_user_text(change: Callable[[str], str]) -> None:
    """Change the user's file, which may be a link to another file.

    The file is locked meanwhile.

    Args:
        change: returns the new text for the present text, which is empty if there is no file.

    Raises:
        ConfigErrors: the new text is not valid.
        UsageError: the file cannot be read or written.
    """
    file = user_path()
    try:
        with locked(file):
            text = change(read_user_text())
            check_user_text(text)
            # It may be a link into a folder under version control, so the link stays.
            file = file.resolve()
            mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o600
            write_whole(file, text.encode(), mode, max_bytes=MAX_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None


def read_user_text() -> str:
    """Return the text of the user's file, empty if there is none."""
    file = user_path()
    return read_text(file) if os.path.lexists(file) else ""


def as_toml(value: Any) -> str:
    """Return a setting's value as TOML."""
    return _item(value).as_string()


def _item(value: Any) -> Item:
    import tomlkit

    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update(value)
        return table
    item: Item = tomlkit.item(value)
    return item
