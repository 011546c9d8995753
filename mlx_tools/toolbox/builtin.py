"""The built-in tools, each disabled with the reason if it cannot work here."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from mlx_tools.errors import require_instance, require_items
from mlx_tools.policy import check_presets
from mlx_tools.store import Root, RootName, supported
from mlx_tools.tools import Registry, Tool, read_artifact, tool_search

if TYPE_CHECKING:
    from mlx_tools.toolbox.schedule_task import Jobs


class ToolOptions(TypedDict, total=False):
    """Options of the built-in tools."""

    commands: Iterable[str]
    """Programs that ``run_command`` may run with any arguments, besides its own."""
    program_folders: Iterable[str]
    """Folders in which it looks for programs, besides the system's."""
    knowledge_base: str | os.PathLike[str] | None
    """The file of the knowledge base, None for the user's own. Its tools are disabled while it is
    empty."""
    notes: str | os.PathLike[str] | None
    """The folder of the notes, which need not exist. Without one, the tools for notes are disabled.
    """
    jobs: Jobs | None
    """The place for jobs of ``schedule_task``. Without it, that tool is disabled."""
    local_hosts: Iterable[str]
    """Hosts of this machine or its network, each with its port, that ``fetch_url`` may ask, and
    that
    results of ``searxng`` may be on."""
    searxng: str | None
    """The address of a SearXNG that ``web_search`` asks instead of search engines."""


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
    for tool in tools(roots, **options):
        registry.provide(tool)
    check_presets(registry.all_specs())
    return registry


def tools(
    roots: Iterable[str | os.PathLike[str] | RootName] = (),
    **options: Unpack[ToolOptions],
) -> list[Tool]:
    """Return the built-in tools; the entry point of this package."""
    from mlx_tools.toolbox.calculator import calculator
    from mlx_tools.toolbox.clock import clock
    from mlx_tools.toolbox.edit_file import edit_file
    from mlx_tools.toolbox.file_access import create_file, file_access
    from mlx_tools.toolbox.format_xml import format_xml
    from mlx_tools.toolbox.knowledge import Knowledge
    from mlx_tools.toolbox.media import (
        describe_image,
        no_speech,
        no_vision,
        transcribe_audio,
        translate,
    )
    from mlx_tools.toolbox.notes import NO_FOLDER, Notes, notes_create, notes_search
    from mlx_tools.toolbox.run_command import disabled_reason, run_command
    from mlx_tools.toolbox.schedule_task import schedule_task
    from mlx_tools.toolbox.search_files import search_files
    from mlx_tools.toolbox.urls import read_local
    from mlx_tools.toolbox.web_fetch import Fetcher
    from mlx_tools.toolbox.web_tools import fetch_url, make_search

    names = [_parse_root(root) for root in require_items("roots", roots, "give a list of folders")]
    open_roots = [Root(name) for name in names] if supported() else []
    commands = require_items("commands", options.get("commands"), "give a list of programs")
    file, folder = options.get("knowledge_base"), options.get("notes")
    knowledge = Knowledge(None if file is None else Path(file))
    notes = Notes(None if folder is None else Path(folder))
    jobs = options.get("jobs")
    local = frozenset(map(read_local, options.get("local_hosts", ())))
    no_walk = None if supported() else "this system cannot open files safely (openat)"
    no_files = no_walk or (
        None if open_roots else "no folder was named that it may see (--root DIR)"
    )
    writable = any(root.writable for root in open_roots)
    no_edits = no_files or (None if writable else "no folder was named with :rw (--root DIR:rw)")
    no_notes = no_walk or (NO_FOLDER if folder is None else None)
    no_jobs = "no place for jobs was named" if jobs is None else None
    return [
        calculator(),
        clock(),
        _disable(file_access(open_roots), no_files),
        _disable(create_file(open_roots), no_files),
        _disable(edit_file(open_roots), no_edits),
        _disable(search_files(open_roots), no_files),
        format_xml(),
        tool_search(),
        read_artifact(),
        _disable(
            run_command(open_roots, commands, folders=options.get("program_folders", ())),
            functools.partial(disabled_reason, open_roots),
        ),
        *(_disable(tool, knowledge.disabled_reason) for tool in knowledge.tools()),
        _disable(schedule_task(jobs), no_jobs),
        _disable(notes_create(notes), no_notes),
        _disable(notes_search(notes), no_notes),
        fetch_url(Fetcher(local=local)),
        make_search(options.get("searxng"), local),
        translate(),
        _disable(describe_image(open_roots), lambda: no_files or no_vision()),
        _disable(transcribe_audio(open_roots), lambda: no_files or no_speech()),
    ]


def _disable(tool: Tool, reason: str | Callable[[], str | None] | None) -> Tool:
    """Return the tool, disabled if ``reason`` says why."""
    tool.disabled_reason = reason if callable(reason) else lambda: reason
    return tool


def _parse_root(root: str | os.PathLike[str] | RootName) -> RootName:
    if isinstance(root, os.PathLike):
        return RootName(os.fspath(root))
    if isinstance(root, RootName):
        return root
    return RootName.parse(require_instance("a root", root, str, "write DIR, or DIR:rw"))
