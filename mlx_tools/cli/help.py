"""What `mlx-tools COMMAND --help` prints: what is used most, on one screen; all by `--help-all`."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from mlx_tools.cli.output import beside, columns_of, folded, ours, print_text

ROWS: Final = 23
"""Rows of a small terminal (80x24) above the line that is typed next."""

_COLUMNS: Final = 80

MOST_USED: Final = (
    *("--continue", "--session", "--model", "--url", "--profile", "--system", "--tools"),
    *("--preset", "--root", "--approve", "--schema", "--batch", "--when", "--timezone"),
    *("--live", "--samples", "--models", "--report", "--into", "--expect"),
    *("--category", "--limit", "--out", "--host", "--port", "--api-key-file", "--probe"),
    *("--observations", "--format", "--yes", "--json"),
)
"""Options that the screen shows of a command with more than fit on it, in this order."""


def give_help(command: Any, context: Any) -> None:
    """Have a command, and all below it, print its help from here."""
    for one in (command, *getattr(command, "commands", {}).values()):
        brief = one.get_help_option(context)
        brief.help, brief.callback = "Show this.", _printer(everything=False)
        whole = copy.copy(brief)
        whole.name, whole.opts = "help_all", ["--help-all"]
        whole.help, whole.callback = "Show all options.", _printer(everything=True)
        one.params.append(whole)


def _printer(*, everything: bool) -> Any:
    def printed(context: Any, _: Any, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            columns = columns_of(ours()) if ours().isatty() else None
            print_text(help_of(context, columns or _COLUMNS, everything=everything))
            context.exit()

    return printed


def help_of(context: Any, columns: int = _COLUMNS, *, everything: bool) -> str:
    """The help of a context's command, as wide as that. All of it where it fits on a screen."""
    options = [one for one in context.command.get_params(context) if not _is_argument(one)]
    text = _text(context, options, columns, brief=False)
    if everything or text.count("\n") < ROWS:
        return text
    named = {name: one for one in options for name in one.opts}
    shown = [named[name] for name in (*MOST_USED, "--help-all", "--help") if name in named]
    return _text(context, shown, columns, brief=True)


def _text(context: Any, options: Iterable[Any], columns: int, *, brief: bool) -> str:
    command = context.command
    arguments = [one for one in command.get_params(context) if _is_argument(one)]
    said = [one.metavar if one.required else f"[{one.metavar}]" for one in arguments]
    below = getattr(command, "commands", {})
    usage = ["[OPTIONS]", *said, *(["COMMAND …"] if below else ())]
    parts = [
        [folded(f"Usage: {context.command_path} {' '.join(usage)}", columns, "  ")],
        [folded(" ".join((command.help or "").split()), columns)],
    ]
    if arguments:
        parts.append([*_rows([(one.metavar, one.help or "") for one in arguments], columns)])
    if below:
        rows = [(name, " ".join((one.help or "").split())) for name, one in below.items()]
        parts.append(["Commands:", *_rows(rows, columns)])
    panels: dict[str, list[tuple[str, str]]] = {"Options": []}
    for one in options:
        panel = None if brief else getattr(one, "rich_help_panel", None)
        text = _in_brief(one.help, columns - _HEAD - 4) if brief else _whole(one, context)
        panels.setdefault(panel or "Options", []).append((_head(one), text))
    parts += [[f"{name}:", *_rows(rows, columns)] for name, rows in panels.items()]
    return "\n\n".join("\n".join(part) for part in parts)


_HEAD: Final = 24
"""Columns for an option's names; longer ones stand out."""


def _rows(said: list[tuple[str, str]], columns: int) -> Iterator[str]:
    width = min(max(len(head) for head, _ in said), _HEAD)
    for head, text in said:
        yield beside(f"  {head:<{width}} ", text, columns)


def _head(option: Any) -> str:
    """An option's names, the short one first, and what stands for its value."""
    *short, long = sorted(option.opts, key=len)
    names = f"{', '.join(short)}, {long}" if short else f"    {long}"
    return names if option.is_flag else f"{names} {option.metavar or ''}".rstrip()


def _whole(option: Any, context: Any) -> str:
    record = option.get_help_record(context)
    return " ".join((record[1] if record else "").split())


def _in_brief(text: str | None, room: int) -> str:
    """The first clause of an option's help; with the values that it lists, where there is room."""
    text = " ".join((text or "").split())
    first = re.split(r"[;:(]|\.(?:\s|$)", text, maxsplit=1)[0].strip()
    listed = re.search(r"\(([^()]+)\)$", text)
    values = re.sub(r", | or ", "|", listed[1].split(";")[0]) if listed else ""
    more = f"{first} ({values})" if values and " " not in values else first
    return f"{more if len(more) < room else first}."


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")
