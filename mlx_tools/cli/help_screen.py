"""Help screens of commands, laid out from a table made of the commands.

To load a command and all its options takes forty times as long as to print its help.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from mlx_tools.cli.command_table import list_subcommands, missing_commands
from mlx_tools.cli.output import join_columns, wrap_line

TABLE: Final = str(Path(__file__).with_name("help.json"))
"""The pages by command path, written by ``scripts/completion_table.py``."""

ROWS: Final = 23
"""Rows of a small terminal (80x24) above the line that is typed next."""

COLUMNS: Final = 80

COMMON_OPTIONS: Final = (
    *("--continue", "--session", "--model", "--url", "--system", "--tools", "--preset"),
    *("--root", "--approve", "--max-iterations", "--max-tokens"),
    *("--batch", "--when", "--timezone"),
    *("--live", "--samples", "--models", "--report", "--into", "--expect"),
    *("--category", "--limit", "--out", "--host", "--port", "--api-key-file", "--probe"),
    *("--observations", "--format", "--yes", "--json"),
)
"""Options that the screen shows of a command with more than fit on it, in this order."""

Page = Mapping[str, Any]
"""``usage``, ``help``, rows of ``arguments`` and ``commands``, and ``options`` with their names,
head, text, panel and own help."""

Rows = Sequence[tuple[str, str]]
"""Texts for a column of its own, each with a text beside it."""

_HEAD: Final = 24
"""Columns for an option's names; longer ones stand out."""


def find_page(arguments: Sequence[str]) -> Page | None:
    """Return the page of the command that these words name; None if they name none."""
    # not `open`: the package may stand in a zip archive
    pages = json.loads(cast("Any", __spec__).loader.get_data(TABLE))
    if not arguments or _has_changed(arguments[0], pages):
        return None
    return cast("Page | None", pages.get(" ".join(arguments)))


def _has_changed(command: str, pages: Mapping[str, Any]) -> bool:
    """Return True if plugins of a command are missing, or others add to it."""
    missing = any(name.split()[0] == command for name in missing_commands())
    return missing or not pages.keys() >= list_subcommands(command).keys()


def render_help(page: Page, columns: int | None, *, show_all: bool) -> str:
    """Return the help of a command, so wide; all of it if it fits on a screen."""
    width = columns or COLUMNS
    panels: dict[str, list[tuple[str, str]]] = {"Options": []}
    for option in page["options"]:
        panels.setdefault(option["panel"], []).append((option["head"], option["text"]))
    text = _lay_out(page, panels, width)
    if show_all or text.count("\n") < ROWS:
        return text
    by_name = {name: option for option in page["options"] for name in option["names"]}
    used = [by_name[name] for name in (*COMMON_OPTIONS, "--help-all", "--help") if name in by_name]
    room = width - _HEAD - 4
    brief = [(option["head"], _in_brief(option["help"], room)) for option in used]
    return _lay_out(page, {"Options": brief}, width)


def _lay_out(page: Page, panels: Mapping[str, Rows], columns: int) -> str:
    parts = [[wrap_line(page["usage"], columns, "  ")], [wrap_line(page["help"], columns)]]
    if page["arguments"]:
        parts.append(_rows(page["arguments"], columns))
    if page["commands"]:
        parts.append(["Commands:", *_rows(page["commands"], columns)])
    parts += [[f"{name}:", *_rows(rows, columns)] for name, rows in panels.items()]
    return "\n\n".join("\n".join(part) for part in parts)


def _rows(rows: Rows, columns: int) -> list[str]:
    width = min(max(len(head) for head, _ in rows), _HEAD)
    return [join_columns(f"  {head:<{width}} ", text, columns) for head, text in rows]


def join_lines(text: str | None) -> str:
    """Return a text with its white space joined."""
    return " ".join((text or "").split())


def _in_brief(text: str, room: int) -> str:
    """Return the first clause of an option's help, with its values if they fit."""
    first = re.split(r"[;:(]|\.(?:\s|$)", text, maxsplit=1)[0].strip()
    values_match = re.search(r"\(([^()]+)\)$", text)
    values = re.sub(r", | or ", "|", values_match[1].split(";")[0]) if values_match else ""
    more = f"{first} ({values})" if values and " " not in values else first
    return f"{more if len(more) < room else first}."
