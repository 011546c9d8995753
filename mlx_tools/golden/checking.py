"""Checks of golden transcripts: many replayed, in as many processes as pay, or one by one as a test
run asks for them; their results, the words for what was found, and baselines to compare with."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Literal

from mlx_tools.app import Share, fisher
from mlx_tools.backends import (
    CompletionsBackend,
    StrategyChoice,
    StyleChoice,
    find_served_format,
    look_at,
    native_markers,
)
from mlx_tools.controller import RunSettings
from mlx_tools.errors import BackendError, MlxToolsError, UsageError
from mlx_tools.golden.difference import ROOMS, Difference
from mlx_tools.golden.file import Golden, read_golden
from mlx_tools.golden.recorded import run_tools
from mlx_tools.golden.replaying import replay
from mlx_tools.golden.steps import spelled
from mlx_tools.protocol import Style
from mlx_tools.store import to_json
from mlx_tools.tools import Registry

VERSION: Final = 1
"""The format of a file of results, and of a baseline."""

Mode = Literal["replay", "live"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the matrix: the means of a check. A replay has none of the three."""

    model: str = ""
    style: str = ""
    strategy: str = ""

    @property
    def label(self) -> str:
        """The cell in words."""
        return " · ".join(filter(None, (self.model, self.style, self.strategy))) or "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of a transcript. ``records`` are those of the run, as JSON, the header first.

    ``error`` is why it could not be run to its end, or the transcript not be read. ``seconds`` is
    how long a live run took.
    """

    differences: tuple[Difference, ...] = ()
    records: tuple[Mapping[str, Any], ...] = ()
    error: str = ""
    seconds: float | None = None

    @property
    def passed(self) -> bool:
        """True where nothing was otherwise than it should be."""
        return not self.differences and not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCheck:
    """All runs of one transcript in one cell. ``path`` is the file's, as it was named."""

    name: str
    path: str
    mode: Mode = "replay"
    cell: Column = Column()  # frozen, so all may share it
    source: str = ""
    about: str = ""
    features: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()

    @classmethod
    def of(cls, golden: Golden, path: Path | None = None, **own: Any) -> GoldenCheck:
        """The check of a golden transcript."""
        about, path = golden.golden, path or golden.path
        return cls(
            name=golden.name,
            path="" if path is None else str(path),
            source=about.source,
            about=about.about,
            features=about.features,
            **own,
        )

    @property
    def share(self) -> Share:
        """The share of the runs that passed."""
        return Share(sum(sample.passed for sample in self.samples), len(self.samples))

    @property
    def passed(self) -> bool:
        """True where all runs passed."""
        return all(sample.passed for sample in self.samples)

    @property
    def rooms(self) -> tuple[str, ...]:
        """The rooms that differences come from, each once."""
        found = {d.room for sample in self.samples for d in sample.differences}
        return tuple(room for room in ROOMS if room in found)

    def to_json(self) -> dict[str, Any]:
        """The check as ``--json`` prints it: all but the runs' own records."""
        return {
            "name": self.name,
            "path": self.path,
            "mode": self.mode,
            **asdict(self.cell),
            "source": self.source,
            "features": list(self.features),
            "passed": self.passed,
            "samples": len(self.samples),
            "hits": self.share.hits,
            "rooms": list(self.rooms),
            "differences": [
                {"sample": number, **difference.to_json()}
                for number, sample in enumerate(self.samples, start=1)
                for difference in sample.differences
            ],
            "errors": [sample.error for sample in self.samples if sample.error],
        }


def write_results(checks: Iterable[GoldenCheck], path: Path) -> None:
    """Writes checks, with their runs, to a file: a JSON object a line. Raises `UsageError`."""
    try:
        with path.open("w", encoding="utf-8") as out:
            out.write(json.dumps({"golden_results": VERSION}) + "\n")
            for check in checks:
                out.write(encode_check(check) + "\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def read_results(path: Path) -> list[GoldenCheck]:
    """The checks of a file that `write_results` wrote. Raises `UsageError`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        head = json.loads(lines[0])
        if not isinstance(head, dict) or head.get("golden_results") != VERSION:
            raise UsageError(f"{path} holds no results that this version reads")
        return [decode_check(line) for line in lines[1:]]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise UsageError(
            f"{path} holds no results of golden transcripts, or is damaged",
            hint="mlx-tools golden run --out FILE writes such a file",
        ) from None


def encode_check(check: GoldenCheck) -> str:
    """A check with its runs, as a line of ASCII."""
    return json.dumps(asdict(check), ensure_ascii=True)


def decode_check(line: str) -> GoldenCheck:
    """The check that `encode_check` wrote. Raises ValueError, KeyError or TypeError on anything
    else."""
    value = json.loads(line)
    value["samples"] = tuple(
        Sample(
            **sample
            | {
                "differences": tuple(Difference(**one) for one in sample["differences"]),
                "records": tuple(sample["records"]),
            }
        )
        for sample in value["samples"]
    )
    cell, features = Column(**value["cell"]), tuple(value["features"])
    return GoldenCheck(**value | {"cell": cell, "features": features})


def sum_of(shares: Iterable[Share]) -> Share:
    """All of these shares together."""
    every = list(shares)
    return Share(sum(share.hits for share in every), sum(share.total for share in every))


# --- replays ------------------------------------------------------------------------------------

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


# --- a baseline of live checks --------------------------------------------------------------------

SURE: Final = 0.05
"""A fall that chance alone brings about less often than this is a regression."""


@dataclass(frozen=True, slots=True)
class Regression:
    """A fall in how often one transcript in one cell passes, or, with an empty ``name``, a whole
    cell. ``p`` is how often chance alone would bring so large a fall about."""

    name: str
    cell: Column
    before: Share
    after: Share
    p: float

    def to_json(self) -> dict[str, Any]:
        """The regression as ``--json`` prints it."""
        shares = {
            key: {"hits": share.hits, "samples": share.total}
            for key, share in (("before", self.before), ("after", self.after))
        }
        return {"name": self.name, **asdict(self.cell), **shares, "p": self.p}


@dataclass(frozen=True, slots=True)
class Baseline:
    """By transcript and cell, how many samples passed. ``drawn``: they were drawn at random, so
    that one which fails may be chance; else the same model must write the same again."""

    shares: Mapping[tuple[str, Column], Share]
    drawn: bool = False

    @classmethod
    def of(cls, checks: Iterable[GoldenCheck], *, drawn: bool) -> Baseline:
        """The baseline that these checks are."""
        return cls({(check.name, check.cell): check.share for check in checks}, drawn)

    def regressions(self, checks: Sequence[GoldenCheck]) -> list[Regression]:
        """The parts of ``checks`` that are worse than here, whole cells first. A transcript that
        passed less often counts where that is no chance; where nothing is drawn at random, it
        always does. What the baseline does not know is passed over."""
        known = [check for check in checks if (check.name, check.cell) in self.shares]
        found = []
        for cell in dict.fromkeys(check.cell for check in known):
            own = [check for check in known if check.cell == cell]
            before = sum_of(self.shares[check.name, cell] for check in own)
            after = sum_of(check.share for check in own)
            if (p := fisher(before, after)) < SURE:
                found.append(Regression("", cell, before, after, p))
        for check in known:
            before, after = self.shares[check.name, check.cell], check.share
            fell = after.hits * before.total < before.hits * after.total
            p = fisher(before, after)
            if fell and (p < SURE or not self.drawn):
                found.append(Regression(check.name, check.cell, before, after, p))
        return found

    def write(self, path: Path) -> None:
        """Writes it to a file. Raises `UsageError`."""
        rows = [
            {"name": name, **asdict(cell), "hits": share.hits, "samples": share.total}
            for (name, cell), share in self.shares.items()
        ]
        value = {"golden_baseline": VERSION, "drawn": self.drawn, "checks": rows}
        try:
            path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """The baseline in a file. Raises `UsageError`."""
        try:
            value = json.loads(path.read_text("utf-8"))
            if value["golden_baseline"] != VERSION:
                raise UsageError(f"{path} is a baseline of another version")
            shares = {
                (row["name"], Column(row["model"], row["style"], row["strategy"])): Share(
                    int(row["hits"]), int(row["samples"])
                )
                for row in value["checks"]
            }
            return cls(shares, bool(value["drawn"]))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"{path} is no baseline", hint="golden run --live --save-baseline FILE writes one"
            ) from None
