"""The tools of this plugin: those in the user's folder."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence

from mlx_tools.app import ToolRequest, hookimpl
from mlx_tools.errors import ToolDefinitionError
from mlx_tools.paths import read_regular
from mlx_tools.plugins.folders.collection import CollectedTool, ToolCollection
from mlx_tools.plugins.folders.folder_tool import folder_tool
from mlx_tools.tools import FOLDER, Tool, ToolOffer, find_exposure


@hookimpl
def offers(request: ToolRequest) -> list[ToolOffer]:
    """Return the tools in the user's folder."""
    roots = () if request.configuration is None else request.configuration.settings.tools.roots
    return folder_offers(ToolCollection(), roots)


def folder_offers(collection: ToolCollection, roots: Sequence[str] = ()) -> list[ToolOffer]:
    """Return the tools in a folder; one that may not run has the reason.

    Nothing in the files of one that is not trusted is read as a tool's.

    Args:
        collection: the folder.
        roots: folders that tools may see. A whitelist of a tool applies below them. No tool may run
            if tools could write the choices of the user, and a tool in the making may not run if
            other tools could write into its folder.

    Raises:
        ConfigError: the user's choices cannot be read.
    """
    refusal = find_exposure(collection.choices.path, roots)
    return [
        ToolOffer(
            FOLDER,
            collected.name,
            functools.partial(_load, collected, refusal, tuple(roots)),
            functools.partial(_remove, collection, collected.name),
            functools.partial(_last_output, collection, collected.name),
        )
        for collected in collection.tools()
    ]


def _load(collected: CollectedTool, refusal: str | None, roots: Sequence[str]) -> Tool:
    if collected.folder is None or refusal is not None:
        raise ToolDefinitionError(refusal or collected.reason or "")
    if collected.log is not None:
        what = "the folder in which it is made"
        if exposed := find_exposure(collected.folder.path, roots, what):
            raise ToolDefinitionError(exposed)
    return folder_tool(collected.folder, collected.reason, collected.log, roots)


def _remove(collection: ToolCollection, name: str, confirm: Callable[[str], bool]) -> str | None:
    if path := collection.choices.load().making.get(name):
        collection.make(name, None)
        return f"{name} is used no more; its folder stays: {path}"
    if not confirm(f"Delete {collection.find_folder(name)}?"):
        return None
    collection.remove(name)
    return f"removed {name}"


def _last_output(collection: ToolCollection, name: str) -> tuple[str, str] | None:
    """Return the folder of a tool in the making, and what its last call printed."""
    place = collection.choices.load().making.get(name)
    if place is None:
        return None
    with contextlib.suppress(OSError):
        return place, read_regular(collection.log_path(name)).decode("utf-8", "replace")
    return None
