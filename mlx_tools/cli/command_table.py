"""The commands, and the line that each has in ``mlx-tools --help``.

The hook ``commands`` gives those of plugins when one is run. For a Tab and for ``--help`` a table
of the built-in ones is read, which ``make docs`` writes: no plugin is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib.machinery import PathFinder
from typing import Any, Final, cast

import mlx_tools
from mlx_tools.packages import PLUGINS, may_offer

COMPLETION_VARIABLE: Final = "_MLX_TOOLS_COMPLETE"
"""The environment variable by which a shell asks what can follow."""

TABLE: Final = os.path.join(os.path.dirname(__file__), "plugin_commands.txt")  # noqa: PTH118, PTH120
"""The commands of built-in plugins, a line each: name, plugin, line of help, with tabs between."""

COMMANDS: Final[Mapping[str, str]] = {
    "ask": "Ask one question; the model may call tools.",
    "chat": "Talk with the model, with tools, line by line.",
    "parse": "Show how one completion's text is read; runs nothing.",
    "propose": "Show what the model would write in one turn; runs nothing.",
    "prompts": "Keep questions under a name, with blanks, for ask -p.",
    "tools": "List, show, search and call tools; add your own, switch any on and off.",
    "sessions": "List and show the stored sessions, continue one, remove old ones.",
    "store": "Copy sessions, jobs and all else between files and a database.",
    "serve": "Serve your model to agents, editors and other programs.",
    "approvals": "List, add and revoke approvals that hold for many calls.",
    "stats": "Count questions, calls and how they ended.",
    "golden": "Record runs, replay them, and check them on real models.",
    "models": "List, fetch, find and serve models.",
    "doctor": "Check the server, the model and this machine.",
    "config": "Show, check and change the settings.",
}
"""The commands of the core."""


@cache
def list_commands() -> Mapping[str, str]:
    """Return all commands that are here, core and plugins, with their lines of help."""
    return {name: text for name, text in _all_commands().items() if " " not in name}


def list_subcommands(group: str) -> Mapping[str, str]:
    """Return the commands that plugins add to a group, with their lines of help."""
    names = _all_commands().items()
    return {name: text for name, text in names if name.startswith(f"{group} ")}


@cache
def _all_commands() -> Mapping[str, str]:
    commands = dict(COMMANDS)
    for name, (plugin, text) in read_table().items():
        if _is_present(plugin):
            commands[name] = text
    for name, text in _commands_of_packages().items():
        commands.setdefault(name, text)
    return commands


@cache
def missing_commands() -> frozenset[str]:
    """Return the commands of built-in plugins that are not here."""
    rows = read_table().items()
    return frozenset(name for name, (plugin, _) in rows if not _is_present(plugin))


@cache
def read_table() -> Mapping[str, tuple[str, str]]:
    """Return the rows of `TABLE` by command: the plugin, and the line of help."""
    # not `open`: the package may stand in a zip archive
    text = cast("Any", __spec__).loader.get_data(TABLE).decode()
    rows = (line.split("\t", 2) for line in text.splitlines())
    return {name: (plugin, line) for name, plugin, line in rows}


def _is_present(plugin: str) -> bool:
    """Return True if the folder of a built-in plugin is here. Nothing is imported."""
    package = PathFinder.find_spec("mlx_tools.plugins", mlx_tools.__path__)
    places = None if package is None else package.submodule_search_locations
    return bool(places) and PathFinder.find_spec(f"mlx_tools.plugins.{plugin}", places) is not None


def _commands_of_packages() -> Mapping[str, str]:
    """Return the commands of other packages; they are imported only if there are any."""
    if not may_offer(PLUGINS):
        return {}
    from mlx_tools.app import list_plugin_commands

    offered = list_plugin_commands(COMMANDS)
    return {name: command.help for name, (_, command) in offered.items()}
