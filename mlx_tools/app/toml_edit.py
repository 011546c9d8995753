"""One value changed in a TOML file that a person wrote: comments, order and blanks stay."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from mlx_tools.errors import ConfigError

if TYPE_CHECKING:
    from tomlkit.items import Item


def with_value(text: str, key: str, value: Any) -> str:
    """The text with a setting's ``key``, dotted, set to ``value``; with None it is not set.

    Raises ConfigError where the text is not TOML, and where it says the value in a form that cannot
    be changed without changing another.
    """
    import tomlkit  # which takes long to load
    from tomlkit.exceptions import TOMLKitError

    try:
        wanted = _changed(tomllib.loads(text), key, value)
        document = _changed(tomlkit.parse(text), key, None if value is None else _item(value))
        edited = tomlkit.dumps(document)
        if _pruned(tomllib.loads(edited)) == _pruned(wanted):
            return edited
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}", hint="mlx-tools config edit") from None
    except (TOMLKitError, AttributeError, TypeError, RecursionError):
        pass
    raise ConfigError(
        f"the file says {key} in a form that only an editor can change",
        hint="mlx-tools config edit",
    )


def as_toml(value: Any) -> str:
    """A setting's value as TOML."""
    return _item(value).as_string()


def _item(value: Any) -> Item:
    import tomlkit

    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update(value)
        return table
    item: Item = tomlkit.item(value)
    return item


def _changed(document: Any, key: str, value: Any) -> Any:
    """The document, or what tomllib made of it, with the value in it."""
    *tables, name = key.split(".")
    inner = document
    for table in tables:
        if value is None and table not in inner:
            return document
        inner = inner.setdefault(table, {})
    if value is None:
        inner.pop(name, None)
    else:
        inner[name] = list(value) if isinstance(value, tuple) else value
    return document


def _pruned(value: Any) -> Any:
    """A document without its empty tables: whether there is one says nothing."""
    if not isinstance(value, dict):
        return value
    inner = {name: _pruned(one) for name, one in value.items()}
    return {name: one for name, one in inner.items() if one != {}}
