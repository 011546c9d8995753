"""Edits of YAML files: one value or item changes, everything else stays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from importlib import import_module
from typing import Any

from mlx_tools.errors import ConfigError, MissingDependency
from mlx_tools.paths import to_install
from mlx_tools.plugins.connect.json_edit import put_value

Path = tuple[str | int, ...]


def read_yaml(text: str) -> Any:
    """Return the value of a text.

    Raises:
        ConfigError: it is no YAML.
        MissingDependency: the package that reads YAML is not there.
    """
    if not text.strip():
        return None
    yaml = _yaml()
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", -1) + 1
        place = f": line {line} cannot be read" if line else ""
        raise ConfigError(f"not YAML{place}") from None


def set_yaml(text: str, path: Path, value: Any) -> str:
    """Set the value at a path of a text.

    An index behind the last item of a list appends.

    The path leads to a member of the whole or of a list in it.

    Raises:
        ConfigError: the text is no YAML, or is written in a form that cannot be changed safely.
        MissingDependency: the package that reads YAML is not there.
    """
    before = read_yaml(text)
    is_list = isinstance(path[0], int)
    expected = put_value(deepcopy(before) if before is not None else _empty(path), path, value)
    if before is None:
        ends = "" if not text or text.endswith("\n") else "\n"
        return text + ends + _block(expected, "")
    if not isinstance(before, list if is_list else dict):
        raise ConfigError("the file holds something else than was expected")
    edited = _edit(text, path, value)
    if read_yaml(edited) != expected:
        raise ConfigError("this file's form is one that cannot be changed safely")
    return edited


def _empty(path: Path) -> Any:
    return [] if isinstance(path[0], int) else {}


def _yaml() -> Any:
    try:
        return import_module("yaml")
    except ImportError as error:
        said = "changing a file in YAML needs pyyaml"
        raise MissingDependency(said, hint=to_install("openapi")) from error


def _edit(text: str, path: Path, value: Any) -> str:
    node, used = _yaml().compose(text), 0
    for step in path:
        inner = _member(node, step)
        if inner is None:
            break
        node, used = inner, used + 1
    rest = path[used:]
    if not rest:
        return _replace_node(text, node, value)
    if isinstance(rest[0], int):
        return _append_item(text, node, put_value(_empty(rest), (0, *rest[1:]), value)[0])
    end = len(text.rstrip())
    indent = " " * node.start_mark.column
    if node.flow_style or used:  # only the whole file's own members are added
        raise ConfigError("this file's form is one that cannot be changed safely")
    return f"{text[:end]}\n{_block(put_value({}, rest, value), indent)}{text[end:].lstrip()}"


def _member(node: Any, step: str | int) -> Any:
    """Return the node of a member; None if there is none."""
    if isinstance(step, int):
        items = node.value if node.id == "sequence" else []
        return items[step] if step < len(items) else None
    members = node.value if node.id == "mapping" else []
    return next((inner for key, inner in members if key.value == step), None)


def _replace_node(text: str, node: Any, value: Any) -> str:
    start, end = node.start_mark.index, _content_end(node)
    if node.id == "scalar":
        return text[:start] + _scalar(value) + text[end:]
    indent = " " * node.start_mark.column
    if node.flow_style:
        return text[:start] + json.dumps(value, ensure_ascii=False) + text[end:]
    return text[:start] + _block(value, indent).strip() + text[end:]


def _append_item(text: str, node: Any, item: Any) -> str:
    """Return the text with one more item at the end of a list."""
    if node.id == "scalar" and not node.value:  # a key without a value
        before, after = text[: node.start_mark.index].rstrip(), text[node.end_mark.index :]
        return f"{before}\n{_block([item], '  ')}{after.removeprefix(chr(10))}"
    if node.id != "sequence":
        raise ConfigError("a list was expected")
    if node.flow_style or not node.value:
        end = node.end_mark.index - 1
        comma = ", " if node.value else ""
        return f"{text[:end].rstrip()}{comma}{json.dumps(item, ensure_ascii=False)}{text[end:]}"
    indent = " " * node.start_mark.column
    end = _content_end(node)
    line_end = text.find("\n", end)
    end = len(text) if line_end < 0 else line_end
    return f"{text[:end]}\n{_block([item], indent).rstrip()}{text[end:]}"


def _content_end(node: Any) -> int:
    """Return the end of a node, without blank lines and comments after it."""
    if node.id == "scalar" or node.flow_style or not node.value:
        index: int = node.end_mark.index
        return index
    last = node.value[-1]
    return _content_end(last[1] if isinstance(last, tuple) else last)


def _block(value: Any, indent: str) -> str:
    """Return a value as YAML in lines of its own, with their line breaks."""
    return "".join(f"{indent}{line}\n" for line in _lines(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        found: list[str] = []
        for key, inner in value.items():
            if isinstance(inner, Mapping | list) and inner:
                found += [f"{key}:", *(f"  {line}" for line in _lines(inner))]
            else:
                found.append(f"{key}: {_scalar(inner)}")
        return found
    if isinstance(value, list):
        found = []
        for item in value:
            first, *further = _lines(item)
            found += [f"- {first}", *(f"  {line}" for line in further)]
        return found
    return [_scalar(value)]


def _scalar(value: Any) -> str:
    """Return a scalar as YAML; a text is quoted unless it is a plain word."""
    if isinstance(value, str) and value.replace("-", "").replace("_", "").isalnum():
        is_word = value[0].isalpha() and value.lower() not in _WORDS
        return value if is_word and value.isascii() else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "none", "y", "n"))
"""Words that some readers of YAML do not read as texts."""
