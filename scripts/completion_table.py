"""Write tables of the commands: mlx_tools/cli/completions.json for a Tab, help.json for --help.

plugin_commands.txt has the commands of the built-in plugins, for both.

python scripts/completion_table.py            write the files
python scripts/completion_table.py --check    exit 1 if one is out of date
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command

from mlx_tools.app import plugins
from mlx_tools.cli import command_table, completion, help_screen
from mlx_tools.cli.root import app, get_page

COMPLETERS = (completion.__name__, "mlx_tools.plugins.")
"""The modules whose functions complete a word: that of the command line, and those of plugins."""


def table() -> str:
    """Return the text of the table for a Tab."""
    rows: dict[str, Any] = {}
    root, context = _root()
    _add(rows, "", root, context)
    return "{\n" + ",\n".join(f"{_json(path)}: {_lines(row)}" for path, row in rows.items()) + "}\n"


def help_table() -> str:
    """Return the text of the table of help screens, a command a line."""
    pages: dict[str, Any] = {}
    root, context = _root()
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        inner = command.make_context(name, [], parent=context, resilient_parsing=True)
        pages[name] = get_page(inner)
        for below, one in getattr(command, "commands", {}).items():
            deeper = one.make_context(below, [], parent=inner, resilient_parsing=True)
            pages[f"{name} {below}"] = get_page(deeper)
    rows = (f"{_json(path)}: {_json(page)}" for path, page in pages.items())
    return "{\n" + ",\n".join(rows) + "}\n"


def plugin_table() -> str:
    """Return the text of the table of the built-in plugins' commands."""
    hooks = plugins()
    rows = (
        f"{command.name}\t{name}\t{command.help}\n"
        for name in hooks.built_in("commands")
        for _, commands in hooks.call_one(name, "commands", built_in=True)
        for command in commands
    )
    return "".join(rows)


def _root() -> tuple[Any, Any]:
    root = get_command(app)
    return root, root.make_context("mlx-tools", [], resilient_parsing=True)


def _lines(row: dict[str, Any]) -> str:
    """A command's row as JSON, an option a line."""
    options = ",\n".join(map(_json, row["options"]))
    rest = f'"commands": {_json(row["commands"])}, "arguments": {_json(row["arguments"])}'
    return f'{{{rest}, "options": [\n{options}]}}'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _add(rows: dict[str, Any], path: str, command: Any, context: Any) -> None:
    group = isinstance(command, TyperGroup)
    subcommands = {
        name: command.get_command(context, name)
        for name in (command.list_commands(context) if group else ())
    }
    visible = {name: one for name, one in subcommands.items() if not one.hidden}
    parameters = command.get_params(context)
    said = _completers(command)
    rows[path] = {
        "commands": {name: _line(one.help) for name, one in visible.items()},
        "options": [
            {
                "names": sorted([*one.opts, *one.secondary_opts]),
                "help": _line(one.help),
                "values": 0 if one.is_flag or one.count else one.nargs,
                "words": _words(one, context, said),
                "many": one.multiple,
            }
            for one in parameters
            if isinstance(one, TyperOption) and not one.hidden
        ],
        "arguments": [
            _words(one, context, said) for one in parameters if isinstance(one, TyperArgument)
        ],
    }
    for name, one in visible.items():
        inner = one.make_context(name, [], parent=context, resilient_parsing=True)
        _add(rows, f"{path} {name}".strip(), one, inner)


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _words(parameter: Any, context: Any, said: dict[str, Any]) -> list[str] | str:
    """The words that it takes, or the function that knows them when a Tab is pressed.

    A lambda cannot be found by its name later: its words are those of now. What is written
    DIR takes a folder.
    """
    if (parameter.metavar or "").startswith("DIR"):
        return completion.FOLDERS
    function = said.get(parameter.name)
    name = getattr(function, "__name__", "")
    if function is not None and name.isidentifier() and function.__module__.startswith(COMPLETERS):
        place = function.__module__
        return name if place == completion.__name__ else f"{place}:{name}"
    return [item.value for item in parameter.shell_complete(context, "")]


def _completers(command: Any) -> dict[str, Any]:
    """The functions that complete a command's parameters, by the parameter's name."""
    if command.callback is None:
        return {}
    parameters = inspect.signature(command.callback, eval_str=True).parameters
    return {
        name: getattr(info, "autocompletion", None)
        for name, parameter in parameters.items()
        for info in getattr(parameter.annotation, "__metadata__", ())
    }


def main() -> None:
    files = (
        (command_table.TABLE, plugin_table),  # first: the others are made from it
        (completion.TABLE, table),
        (help_screen.TABLE, help_table),
    )
    for path, write in files:
        text = write()
        file = Path(path)
        if "--check" not in sys.argv[1:]:
            file.write_text(text, encoding="utf-8")
            for cached in vars(command_table).values():
                if hasattr(cached, "cache_clear"):
                    cached.cache_clear()
        elif file.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{file.name} is out of date: make docs")


if __name__ == "__main__":
    main()
