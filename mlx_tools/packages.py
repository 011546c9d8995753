"""Code of installed packages: its entry points, and the exceptions that pass it."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OWN_PACKAGE: Final = "mlx-tools"
"""The name of this package."""
PLUGINS: Final = "mlx_tools"
"""The group of entry points whose modules are plugins."""


def find_offers(group: str) -> list[EntryPoint]:
    """Return the entry points of other packages in a group, not imported."""
    points = {
        (find_package(point), point.name, point.value): point
        for point in _entry_points(_places(), group)
        if find_package(point) != OWN_PACKAGE
    }
    return [points[key] for key in sorted(points)]


def may_offer(group: str) -> bool:
    """Return True if an installed package may have entry points in a group.

    Most commands find none, and to search the text of the files takes a fifth of reading them.
    """
    return _may_offer(_places(), group)


def find_package(point: EntryPoint) -> str:
    """Return the name of the package that an entry point belongs to."""
    return str(point.dist.name if point.dist is not None else point.module)


def _places() -> tuple[tuple[str, int], ...]:
    """Return the places on the import path, each with its time of change.

    The time changes when something is installed or removed there.
    """
    return tuple(map(_read_state, sys.path))


def _read_state(place: str) -> tuple[str, int]:
    with contextlib.suppress(OSError):
        return place, os.stat(place or ".").st_mtime_ns  # noqa: PTH116
    return place, 0


@functools.lru_cache(maxsize=8)
def _entry_points(places: tuple[tuple[str, int], ...], group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points in a group of the packages at these places.

    Cached: each registry asks, and to read those of a hundred packages takes as long as a short
    command.
    """
    if not _may_offer(places, group):
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


@functools.lru_cache(maxsize=8)
def _may_offer(places: tuple[tuple[str, int], ...], group: str) -> bool:
    return any(_names_group(place or ".", f"[{group}]".encode()) for place, _ in places)


def _names_group(place: str, header: bytes) -> bool:
    if os.path.isfile(place):  # noqa: PTH113 - an archive that may hold packages
        return not place.endswith(_STANDARD_LIBRARY)
    try:
        names = os.listdir(place)  # noqa: PTH208
    except OSError:
        return False
    for name in names:
        if name.endswith((".dist-info", ".egg-info", ".egg")):
            file_name = "EGG-INFO/entry_points.txt" if name.endswith(".egg") else "entry_points.txt"
            path = f"{place}/{name}/{file_name}"
            with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
                if header in file.read():
                    return True
    return False


_STANDARD_LIBRARY: Final = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
"""The archive that Python puts on its path; it holds no packages."""


def must_pass(error: BaseException, *, awaited: bool = False) -> bool:
    """Return True if an exception out of foreign code must be raised again.

    This is Ctrl-C, which only the main thread gets, and the cancellation of the running task. Any
    other exception is a fault of that code, of whatever class it is.

    Args:
        error: the exception, or a group of them.
        awaited: True if the foreign code was awaited: its coroutine may have been closed.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(must_pass(member, awaited=awaited) for member in error.exceptions)
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    if isinstance(error, GeneratorExit):
        return awaited
    # Without asyncio nothing is awaited, and it takes long to import.
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return False
    return task is not None and task.cancelling() > 0
