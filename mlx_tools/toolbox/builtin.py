"""The registry of the built-in tools, each disabled with the reason where it cannot work here."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mlx_tools.errors import require_instance, require_items
from mlx_tools.policy import check_presets
from mlx_tools.store.roots import Root, RootName, supported
from mlx_tools.tools import Registry, read_artifact, tool_search

if TYPE_CHECKING:
    from mlx_tools.toolbox.schedule_task import Jobs
    from mlx_tools.toolbox.web_tools import WebOptions

_NO_WALK: Final = "this system cannot open files safely (openat)"
_NO_ROOTS: Final = "no folder was named that it may see (--root DIR)"
_NO_JOBS: Final = "no place for jobs was named"


def builtin_tools(
    roots: Iterable[str | os.PathLike[str] | RootName] = (),
    *,
    switched_off: Mapping[str, str] | None = None,
    commands: Iterable[str] = (),
    knowledge_base: str | os.PathLike[str] | None = None,
    notes: str | os.PathLike[str] | None = None,
    jobs: Jobs | None = None,
    web: WebOptions | None = None,
) -> Registry:
    """The built-in tools, in the order of a listing.

    Args:
        roots: Folders that file tools may see (``DIR`` or ``DIR:rw``); without one, the file tools
            and ``run_command`` are disabled.
        switched_off: As for `Registry`.
        commands: Programs that ``run_command`` may run besides its own, with any arguments.
        knowledge_base: The file of the one to be searched, None for the user's own; its tools are
            disabled while nothing is in it.
        notes: The folder of the notes, which need not be there; without one, the tools for notes
            are disabled.
        jobs: Where ``schedule_task`` puts jobs; without it, that is disabled.
        web: For ``fetch_url`` and ``web_search``, by default the usual options.

    Raises UsageError for a root that is no folder, a program that is no name and options that
    cannot be, ToolDefinitionError where a preset does not hold for these tools.
    """
    from mlx_tools.toolbox.calculator import calculator
    from mlx_tools.toolbox.clock import clock
    from mlx_tools.toolbox.format_xml import format_xml
    from mlx_tools.toolbox.run_command import run_command, unusable
    from mlx_tools.toolbox.schedule_task import schedule_task

    registry = Registry(switched_off=switched_off)
    names = [_root(root) for root in require_items("roots", roots, "give a list of folders")]
    opened = [Root(name) for name in names] if supported() else []
    registry.provide(calculator())
    registry.provide(clock())
    _add_files(registry, opened)
    for tool in (format_xml(), tool_search(registry), read_artifact()):
        registry.provide(tool)
    commanding = run_command(opened, require_items("commands", commands, "give a list of programs"))
    registry.provide(commanding, unusable=functools.partial(unusable, opened))
    _add_knowledge(registry, None if knowledge_base is None else Path(knowledge_base))
    registry.provide(schedule_task(jobs), _NO_JOBS if jobs is None else None)
    _add_notes(registry, None if notes is None else Path(notes))
    _add_web(registry, web)
    check_presets(registry.all_specs())
    return registry


def _root(root: str | os.PathLike[str] | RootName) -> RootName:
    if isinstance(root, os.PathLike):
        return RootName(os.fspath(root))
    if isinstance(root, RootName):
        return root
    return RootName.parse(require_instance("a root", root, str, "write DIR, or DIR:rw"))


def _add_files(registry: Registry, roots: list[Root]) -> None:
    from mlx_tools.toolbox.file_access import create_file, file_access

    off = None if roots else _NO_ROOTS if supported() else _NO_WALK
    registry.provide(file_access(roots), off)
    registry.provide(create_file(roots), off)


def _add_knowledge(registry: Registry, file: Path | None) -> None:
    from mlx_tools.toolbox.knowledge import Knowledge

    knowledge = Knowledge(file)
    for tool in knowledge.tools():
        registry.provide(tool, unusable=knowledge.unusable)


def _add_notes(registry: Registry, folder: Path | None) -> None:
    from mlx_tools.toolbox.note_tools import notes_create, notes_search
    from mlx_tools.toolbox.notes import NO_FOLDER, Notes

    kept = Notes(folder)
    off = _NO_WALK if not supported() else NO_FOLDER if folder is None else None
    registry.provide(notes_create(kept), off)
    registry.provide(notes_search(kept), off)


def _add_web(registry: Registry, given: WebOptions | None) -> None:
    from mlx_tools.toolbox.web_tools import WebOptions, fetch_url, missing, web_search

    options = given or WebOptions()
    registry.provide(fetch_url(options.fetcher(), options.seconds))
    searching = web_search(engines=options.engines, seconds=options.seconds)
    registry.provide(searching, unusable=missing)
