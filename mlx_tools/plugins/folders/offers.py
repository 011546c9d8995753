"""The tools of this plugin: the tools in the user's folder."""

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
    return list_folder_offers(ToolCollection(), roots)


def list_folder_offers(collection: ToolCollection, roots: Sequence[str] = ()) -> list[ToolOffer]:
    """Return the tools in a folder; a tool that may not run has the reason.

    The files of a tool that is not trusted are not used.

    Args:
        collection: the folder.
        roots: folders that tools may see. A whitelist of a tool applies below them. If tools could
            write to the choices of the user, no tool may run. If tools could write into the folder
            of a tool in the making, that tool may not run.

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
            functools.partial(_read_last_output, collection, collected.name),
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


def _read_last_output(collection: ToolCollection, name: str) -> tuple[str, str] | None:
    """Return the folder of a tool in the making, and the output of its last call."""
    place = collection.choices.load().making.get(name)
    if place is None:
        return None
    with contextlib.suppress(OSError):
        return place, read_regular(collection.log_path(name)).decode("utf-8", "replace")
    return None
