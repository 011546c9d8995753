"""The built-in tools. A tool that cannot work here is disabled with the reason.

Plugins add theirs by the hook ``tools``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from mlx_tools.app.hook_values import ToolRequest
from mlx_tools.app.hooks import Plugins, plugins
from mlx_tools.errors import require_instance, require_items
from mlx_tools.messages import replace
from mlx_tools.policy import check_presets
from mlx_tools.store import Root, RootName, can_open_safely
from mlx_tools.tools import (
    Registry,
    ToolOffer,
    find_entry_points,
    read_artifact,
    tool_search,
)

if TYPE_CHECKING:
    from mlx_tools.app.config import Configuration
    from mlx_tools.transcript import Header


class ToolOptions(TypedDict, total=False):
    """Options of the built-in tools."""

    commands: Iterable[str]
    """Further programs that ``run_command`` may run, with any arguments."""
    program_folders: Iterable[str]
    """Further folders in which it searches programs, besides the system's."""
    knowledge_base: str | os.PathLike[str] | None
    """The file of the knowledge base, None for the user's own. Its tools are disabled while it is
    empty."""
    notes: str | os.PathLike[str] | None
    """The folder of the notes, which need not exist. Without one, the tools for notes are disabled.
    """
    jobs: Any
    """The plugin's maker of jobs for ``schedule_task``. Without it, that tool is disabled."""
    local_hosts: Iterable[str]
    """Hosts of this machine or its network, each with its port, that ``fetch_url`` may fetch from
    and results of ``searxng`` may lead to."""
    searxng: str | None
    """The address of a SearXNG that ``web_search`` uses instead of search engines."""


def builtin_tools(
    roots: Iterable[str | os.PathLike[str] | RootName] = (),
    *,
    switched_off: Mapping[str, str] | None = None,
    **options: Unpack[ToolOptions],
) -> Registry:
    """Return a registry of the built-in tools, in the order of a listing.

    Args:
        roots: folders that file tools may see (``DIR`` or ``DIR:rw``). Without one, the file
            tools and ``run_command`` are disabled.
        switched_off: see `Registry`.
        options: see `ToolOptions`.

    Raises:
        UsageError: a root is no folder, or an option is not valid.
        ToolDefinitionError: a preset does not fit these tools.
    """
    registry = Registry(switched_off=switched_off)
    add_builtin(registry, make_request(roots, options))
    check_presets(registry.all_specs(), complete=False)
    return registry


def make_request(
    roots: Iterable[str | os.PathLike[str] | RootName],
    options: Mapping[str, Any],
    configuration: Configuration | None = None,
    header: Header | None = None,
) -> ToolRequest:
    """Return the request that tools are made from.

    Args:
        roots: see `builtin_tools`.
        options: see `ToolOptions`.
        configuration: the settings, for plugins that read theirs.
        header: the header of a session that continues.

    Raises:
        UsageError: a root is no folder, or an option is not valid.
    """
    names = [_parse_root(root) for root in require_items("roots", roots, "give a list of folders")]
    no_walk = None if can_open_safely() else "this system cannot open files safely (openat)"
    return ToolRequest(
        tuple(Root(name) for name in names) if can_open_safely() else (),
        no_walk,
        no_walk or (None if names else "no folder was named that it may see (--root DIR)"),
        options,
        configuration,
        header,
    )


def add_builtin(registry: Registry, request: ToolRequest) -> None:
    """Add the built-in tools to a registry: those of plugins, then those of the core.

    After that `Registry.with_entry_points` adds those of other packages, from the same request.

    Raises:
        UsageError: an option is not valid.
    """
    hooks = plugins()
    for name in hooks.built_in("tools"):
        for _, made in hooks.call_one(name, "tools", built_in=True, request=request):
            for tool in made:
                registry.provide(tool)
    # The core's are last, so that a model sees the tools that do the work first.
    registry.provide(tool_search())
    registry.provide(read_artifact())
    registry.offers = lambda: [*find_entry_points(), *list_plugin_tools(hooks, request)]


def list_plugin_tools(hooks: Plugins, request: ToolRequest) -> list[ToolOffer]:
    """Return the tools that plugins of other packages offer, without loading them.

    Args:
        hooks: the plugins.
        request: the roots, options and settings to make them from.
    """

    def make(name: str) -> list[Any]:
        found = hooks.call_one(name, "tools", built_in=False, request=request)
        return [tool for _, offered in found for tool in offered]

    made = [
        ToolOffer(name, "tools", functools.partial(make, name)) for name in hooks.installed("tools")
    ]
    offered = [
        replace(offer, plugin=name)
        for name in hooks.installed("offers")
        for _, offers in hooks.call_one(name, "offers", built_in=False, request=request)
        for offer in offers
    ]
    return made + offered


def list_added_offers(request: ToolRequest) -> list[ToolOffer]:
    """Return the offers of built-in plugins: tools that a person added."""
    hooks = plugins()
    return [
        offer
        for name in hooks.built_in("offers")
        for _, offers in hooks.call_one(name, "offers", built_in=True, request=request)
        for offer in offers
    ]


def _parse_root(root: str | os.PathLike[str] | RootName) -> RootName:
    if isinstance(root, os.PathLike):
        return RootName(os.fspath(root))
    if isinstance(root, RootName):
        return root
    return RootName.parse(require_instance("a root", root, str, "write DIR, or DIR:rw"))
