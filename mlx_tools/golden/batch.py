"""Replays many golden transcripts, in as many processes as pay."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from mlx_tools.errors import MlxToolsError
from mlx_tools.golden.file import Golden, read_golden
from mlx_tools.golden.recorded import run_tools
from mlx_tools.golden.replaying import replay
from mlx_tools.golden.results import GoldenCheck, Sample
from mlx_tools.messages import ToolSpec
from mlx_tools.store.transcript import to_json
from mlx_tools.tools import Registry

WORTH: Final = 400
"""Fewer files than this are done before another process has started."""
_CHUNK: Final = 50
_SAFE_PATH: Final = "PYTHONSAFEPATH"


def replay_file(
    path: Path,
    *,
    with_records: bool = False,
    registry: Registry | None = None,
) -> GoldenCheck:
    """Replays one file. What cannot be read or replayed is a check that failed, with the error.

    ``with_records`` keeps the records, for a report. With a ``registry`` the tools that only read,
    and whose output is the same each time, are run, and what they give is compared.
    """
    golden: Golden | None = None
    try:
        golden = read_golden(path)
        tools: Mapping[str, ToolSpec] = registry.all_specs() if registry is not None else {}
        given = run_tools(golden, registry) if registry is not None else {}
        done = replay(golden, tools=tools, given=given)
        sample = Sample(differences=done.differences)
    except MlxToolsError as error:
        sample = Sample(error=str(error).removeprefix(f"{path}: "))
    if golden is None:
        return GoldenCheck(name=path.stem, path=str(path), samples=(sample,))
    if with_records:
        records = tuple(to_json(record) for record in golden.all)
        sample = Sample(differences=sample.differences, error=sample.error, records=records)
    own = golden.golden
    return GoldenCheck(
        name=golden.name,
        path=str(path),
        source=own.source,
        about=own.about,
        features=own.features,
        samples=(sample,),
    )


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
    jobs = jobs or (_cores() if len(paths) >= WORTH else 1)
    if jobs == 1 or registry is not None:
        made = registry() if registry is not None else None
        for path in paths:
            yield replay_file(path, with_records=with_records, registry=made)
            step()
        return
    task = _replay_with if with_records else replay_file
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


def _replay_with(path: Path) -> GoldenCheck:
    return replay_file(path, with_records=True)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
