"""Checks of golden transcripts: many replayed, in as many processes as pay, or one by one as a test
run asks for them; and the words for what was found."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Literal

from mlx_tools.backends import (
    CompletionsBackend,
    StrategyChoice,
    StyleChoice,
    find_served_format,
    look_at,
    native_markers,
)
from mlx_tools.controller import RunSettings
from mlx_tools.errors import BackendError, MlxToolsError
from mlx_tools.golden.file import Golden, read_golden
from mlx_tools.golden.recorded import run_tools
from mlx_tools.golden.replaying import replay
from mlx_tools.golden.results import Column, GoldenCheck, Sample
from mlx_tools.golden.steps import spelled
from mlx_tools.protocol import Style
from mlx_tools.store.transcript import to_json
from mlx_tools.tools import Registry

WORTH: Final = 400
"""Fewer files than this are done before another process has started."""
_CHUNK: Final = 50
_SAFE_PATH: Final = "PYTHONSAFEPATH"


def replay_file(
    path: Path, *, with_records: bool = False, registry: Registry | None = None
) -> GoldenCheck:
    """Replays one file. What cannot be read or replayed is a check that failed, with the error.

    ``with_records`` keeps the records, for a report. With a ``registry`` the tools that only read,
    and whose output is the same each time, are run, and what they give is compared.
    """
    try:
        golden = read_golden(path)
    except MlxToolsError as error:
        return _unreadable(path, error)
    records = tuple(to_json(record) for record in golden.all) if with_records else ()
    try:
        tools = registry.all_specs() if registry is not None else {}
        given = run_tools(golden, registry) if registry is not None else {}
        differences = replay(golden, tools=tools, given=given).differences
        sample = Sample(differences=differences, records=records)
    except MlxToolsError as error:
        sample = Sample(error=_said(path, error), records=records)
    return GoldenCheck.of(golden, path, samples=(sample,))


def _said(path: Path, error: MlxToolsError) -> str:
    return str(error).removeprefix(f"{path}: ")


def _unreadable(path: Path, error: MlxToolsError, **own: Any) -> GoldenCheck:
    sample = Sample(error=_said(path, error))
    return GoldenCheck(name=path.stem, path=str(path), samples=(sample,), **own)


def replay_files(
    paths: Sequence[Path],
    *,
    with_records: bool = False,
    registry: Callable[[], Registry] | None = None,
    jobs: int | None = None,
    step: Callable[[], None] = lambda: None,
) -> Iterator[GoldenCheck]:
    """Replays files; a check each, in their order.

    ``registry`` makes the tools that are run (see `replay_file`). ``jobs`` is how many processes
    work, by default as many as there are cores, and one alone for a few files. ``step`` is called
    after each file.
    """
    if jobs is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        jobs = (cores or 1) if len(paths) >= WORTH else 1
    if jobs == 1 or registry is not None:
        made = registry() if registry is not None else None
        for path in paths:
            yield replay_file(path, with_records=with_records, registry=made)
            step()
        return
    task = partial(replay_file, with_records=with_records)
    with _nothing_from_here():  # all processes are started in here
        pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
        checks = pool.map(task, paths, chunksize=_CHUNK)
    with pool:
        for check in checks:
            yield check
            step()


@contextlib.contextmanager
def _nothing_from_here() -> Iterator[None]:
    """Processes that are started meanwhile import nothing from the working directory, which may
    hold a `multiprocessing.py` of somebody else's: `multiprocessing` passes no ``-P`` on."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


# --- one by one ----------------------------------------------------------------------------------

_SHOWN: Final = 8
"""Differences of a sample that are shown; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The way transcripts are asked again: server, number of samples, how it is spoken to.

    A ``style`` ``auto`` is that in which a transcript was recorded.
    """

    url: str
    samples: int = 1
    min_rate: float = 1.0
    style: StyleChoice = "auto"
    strategy: StrategyChoice = "auto"
    temperature: float = 0.0


class Checker:
    """Checks transcripts.

    ``live`` None replays them; ``with_records`` keeps the records that a report shows.
    """

    def __init__(self, live: Live | None = None, *, with_records: bool = False) -> None:
        self._live = live
        self._with_records = with_records
        self._found: dict[frozenset[str], tuple[CompletionsBackend, RunSettings]] = {}

    def reach(self) -> None:
        """Finds out what stands behind the address. Raises `MlxToolsError` where nothing does."""
        self._served("jsonl")

    def check(self, path: Path, registry: Registry | None = None) -> GoldenCheck:
        """The check of one file; what cannot be read or run is a check that failed.

        With a ``registry`` its tools are run: in a replay those that only read, live all.
        """
        if self._live is None:
            return replay_file(path, with_records=self._with_records, registry=registry)
        live: dict[str, Any] = {
            "mode": "live",
            "cell": Column("", self._live.style, self._live.strategy),
        }
        try:
            golden = read_golden(path)
        except MlxToolsError as error:
            return _unreadable(path, error, **live)
        try:
            return self._ask(golden, self._live, registry)
        except MlxToolsError as error:
            # A backend's hint is for the command line.
            said = error.message if isinstance(error, BackendError) else _said(path, error)
            return GoldenCheck.of(golden, path, samples=(Sample(error=said),), **live)

    def passed(self, check: GoldenCheck) -> bool:
        """True where as many of the runs passed as are asked for."""
        needed = 1.0 if self._live is None else self._live.min_rate
        return (check.share.value or 0.0) >= needed

    def _ask(self, golden: Golden, live: Live, registry: Registry | None) -> GoldenCheck:
        import anyio

        from mlx_tools.golden.live import check_live

        tools: Literal["replay", "run"] = "replay" if registry is None else "run"
        style = golden.header.style if live.style == "auto" else live.style
        backend, settings = self._served(style)
        asked = partial(check_live, settings=settings, samples=live.samples)
        return anyio.run(partial(asked, golden, backend, tools=tools, registry=registry))

    def _served(self, style: Style) -> tuple[CompletionsBackend, RunSettings]:
        """The backend, and how its model is spoken to. Which of its own markers the model shall not
        write depends on the style."""
        import anyio

        live, forbid = self._live, native_markers(style)
        if live is None:
            raise AssertionError("there is no server in a replay")
        if forbid not in self._found:
            self._found[forbid] = anyio.run(_find, live, style)
        return self._found[forbid]


async def _find(live: Live, style: Style) -> tuple[CompletionsBackend, RunSettings]:
    backend = CompletionsBackend(live.url)
    chosen = await look_at(backend, forbid=native_markers(style))
    found = await find_served_format(backend, files=chosen.files, model=chosen.model)
    return backend, RunSettings(
        style=live.style,
        strategy=live.strategy,
        chat_format=found.chat_format,
        temperature=live.temperature,
        seed=0 if live.temperature else None,
        model=chosen.model,
    )


def failure_text(check: GoldenCheck) -> str:
    """The findings of a check that did not pass, for a person at a terminal: nothing in it steers
    that, or cannot be sent as UTF-8."""
    if len(check.samples) == 1:
        return spelled("\n".join(_lines(check.samples[0])))
    share = check.share
    lines = [f"{share.hits} of {share.total} runs were as they should be"]
    for number, sample in enumerate(check.samples, start=1):
        if not sample.passed:
            lines += ["", f"run {number}", *_lines(sample)]
    return spelled("\n".join(lines))


def _lines(sample: Sample) -> Iterator[str]:
    if sample.error:
        yield sample.error
    for difference in sample.differences[:_SHOWN]:
        where = f" ({difference.where})" if difference.where else ""
        yield f"{difference.room}: {difference.what}{where}"
        yield from (f"  {line}" for line in difference.lines())
    if (more := len(sample.differences) - _SHOWN) > 0:
        yield f"({more} more)"
