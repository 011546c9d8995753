"""A progress bar on standard error, for work that counts its steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mlx_tools.app.own_output import ours

_shown: list[Any] = []
"""The bar that is on the screen, where one is."""


@contextmanager
def counting(what: str, total: int, *, wanted: bool = True) -> Iterator[Callable[[], None]]:
    """Gives what is to be called after each of ``total`` steps. Shown at a terminal alone."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Left())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        _shown.append(bar)
        try:
            yield lambda: bar.advance(task)
        finally:
            _shown.remove(bar)


@contextmanager
def bar_away() -> Iterator[None]:
    """Inside, no bar is on the screen: what is written to standard output begins a line."""
    if not _shown or not ours().isatty():
        yield
        return
    bar = _shown[-1]
    bar.stop()
    try:
        yield
    finally:
        bar.start()
