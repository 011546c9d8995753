"""The built-in tools, each with why it cannot work here where it cannot."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mlx_tools.tools.builtin.rooted import Root, RootName, supported
from mlx_tools.tools.tool import Tool

if TYPE_CHECKING:
    from mlx_tools.tools.builtin.schedule_task import Jobs
    from mlx_tools.tools.builtin.tool_search import Tools
    from mlx_tools.tools.web.options import WebOptions

_NO_WALK: Final = "this system cannot open files safely (openat)"
_NO_ROOTS: Final = "no folder was named that it may see (--root DIR)"
_NO_JOBS: Final = "no place for jobs was named"


@dataclass(frozen=True, slots=True)
class Provided:
    """A tool, and ``off``: why it is disabled, None where it is not. ``unusable`` says so too, each
    time somebody asks."""

    tool: Tool
    off: str | None = None
    unusable: Callable[[], str | None] | None = None


def provided(
    tools: Tools,
    roots: Iterable[RootName],
    *,
    commands: Iterable[str],
    knowledge_base: Path | None,
    notes: Path | None,
    jobs: Jobs | None,
    web: WebOptions | None,
) -> Iterator[Provided]:
    """All of them, in the order of a listing; see `mlx_tools.tools.Registry.builtin`. ``tools`` is
    what ``tool_search`` looks through."""
    from mlx_tools.tools.builtin.calculator import calculator
    from mlx_tools.tools.builtin.clock import clock
    from mlx_tools.tools.builtin.format_xml import format_xml
    from mlx_tools.tools.builtin.read_artifact import read_artifact
    from mlx_tools.tools.builtin.run_command import run_command, unusable
    from mlx_tools.tools.builtin.schedule_task import schedule_task
    from mlx_tools.tools.builtin.tool_search import tool_search

    opened = [Root(name) for name in roots] if supported() else []
    yield Provided(calculator())
    yield Provided(clock())
    yield from _of_files(opened)
    yield from map(Provided, (format_xml(), tool_search(tools), read_artifact()))
    commanding = run_command(opened, commands)
    yield Provided(commanding, unusable=functools.partial(unusable, opened))
    yield from _of_knowledge(knowledge_base)
    yield Provided(schedule_task(jobs), _NO_JOBS if jobs is None else None)
    yield from _of_notes(notes)
    yield from _of_web(web)


def _of_files(roots: list[Root]) -> Iterator[Provided]:
    from mlx_tools.tools.builtin.create_file import create_file
    from mlx_tools.tools.builtin.file_access import file_access

    off = None if roots else _NO_ROOTS if supported() else _NO_WALK
    yield Provided(file_access(roots), off)
    yield Provided(create_file(roots), off)


def _of_knowledge(file: Path | None) -> Iterator[Provided]:
    from mlx_tools.tools.builtin.knowledge import Knowledge

    knowledge = Knowledge(file)
    for tool in knowledge.tools():
        yield Provided(tool, unusable=knowledge.unusable)


def _of_notes(folder: Path | None) -> Iterator[Provided]:
    from mlx_tools.tools.builtin.notes import NO_FOLDER, Notes
    from mlx_tools.tools.builtin.notes_create import notes_create
    from mlx_tools.tools.builtin.notes_search import notes_search

    kept = Notes(folder)
    off = _NO_WALK if not supported() else NO_FOLDER if folder is None else None
    yield Provided(notes_create(kept), off)
    yield Provided(notes_search(kept), off)


def _of_web(given: WebOptions | None) -> Iterator[Provided]:
    from mlx_tools.tools.builtin.fetch_url import fetch_url
    from mlx_tools.tools.builtin.web_search import web_search
    from mlx_tools.tools.web.options import WebOptions
    from mlx_tools.tools.web.search import missing

    options = given or WebOptions()
    yield Provided(fetch_url(options.fetcher(), options.seconds))
    searching = web_search(engines=options.engines, seconds=options.seconds)
    yield Provided(searching, unusable=missing)
