"""Checks golden transcripts, by replaying them or on real models, and says what came of it."""

from __future__ import annotations

import fnmatch
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import anyio

from mlx_tools.app.statistics import Share
from mlx_tools.app.wiring import RunOptions, found, registry_of
from mlx_tools.backends import StrategyChoice, StyleChoice
from mlx_tools.cli import golden_check, options
from mlx_tools.cli.output import complain, print_json, print_text, shown
from mlx_tools.cli.progress import counting
from mlx_tools.controller import RunSettings
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError
from mlx_tools.golden import (
    ROOMS,
    Baseline,
    Difference,
    Golden,
    GoldenCheck,
    Regression,
    check_live,
    find_golden,
    read_golden,
    replay_files,
    write_results,
)

_MOST: Final = 5
"""Differences of one transcript that are shown; the rest is counted."""

Lines = Iterator[tuple[str, str]]


def told(check: GoldenCheck) -> Lines:
    """A check that failed, with its differences; one that passed is a line."""
    share = check.share
    cell = f"  {check.cell.label}" if check.mode == "live" else ""
    count = f"  {share.hits}/{share.total}" if check.mode == "live" else ""
    if check.passed:
        yield "green", f"pass  {check.name}{cell}{count}"
        return
    yield "red", f"FAIL  {check.name}{cell}{count}"
    for number, sample in enumerate(check.samples, start=1):
        if sample.passed:
            continue
        if len(check.samples) > 1:
            yield "dim", f"  sample {number}"
        if sample.error:
            yield "", f"  {sample.error}"
        yield from differences(sample.differences)


def differences(found: Sequence[Difference]) -> Lines:
    """Differences with their diffs, the first few of them."""
    for difference in found[:_MOST]:
        where = f" ({difference.where})" if difference.where else ""
        yield "bold", f"  {difference.room}: {difference.what}{where}"
        for line in difference.lines():
            colour = {"-": "red", "+": "green"}.get(line[:1], "")
            yield colour, f"    {line}"
    if len(found) > _MOST:
        yield "dim", f"  and {len(found) - _MOST} more"


def sums(checks: Iterable[GoldenCheck]) -> Lines:
    """How many passed, by cell where there are several, and what the others come from."""
    every = list(checks)
    cells = list(dict.fromkeys(check.cell for check in every))
    for cell in cells if any(check.mode == "live" for check in every) else ():
        own = [check for check in every if check.cell == cell]
        hits = sum(check.share.hits for check in own)
        total = sum(check.share.total for check in own)
        low, high = Share(hits, total).interval
        percent = f"{100 * hits / total:.0f} %" if total else "-"
        yield "", f"{cell.label}: {hits} of {total} runs passed, {percent} ({_span(low, high)})"
    passed = sum(check.passed for check in every)
    rooms = Counter(room for check in every for room in check.rooms)
    errors = sum(any(sample.error for sample in check.samples) for check in every)
    parts = [f"{room} {rooms[room]}" for room in ROOMS if rooms[room]]
    parts += [f"unreadable {errors}"] if errors else []
    tail = f"; failed: {', '.join(parts)}" if parts else ""
    colour = "green" if passed == len(every) else "red"
    yield colour, f"{passed} of {len(every)} passed{tail}"


def fallen(regressions: Iterable[Regression]) -> Lines:
    """What passes less often than in the baseline."""
    for one in regressions:
        what = one.name or "all transcripts"
        was, now = (f"{s.hits}/{s.total}" for s in (one.before, one.after))
        yield "red", f"worse  {what}  {one.cell.label}: {was} before, {now} now (p {one.p:.3g})"


def complain_of(found: Sequence[Difference]) -> None:
    """Differences on standard error."""
    for _, line in differences(found):
        print(shown(line), file=sys.stderr)


def show(lines: Iterable[tuple[str, str]]) -> None:
    """Prints lines."""
    for colour, line in lines:
        print_text(line, colour=colour)


def _span(low: float, high: float) -> str:
    return f"{100 * low:.0f} to {100 * high:.0f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What ``golden run`` was told. Raises `UsageError` for what contradicts itself."""

    live: bool
    tools: str
    samples: int
    models: str | None
    style: str | None
    strategy: str | None
    baseline: Path | None
    save_baseline: Path | None
    out: Path | None
    report: Path | None
    jobs: int | None
    verbose: bool
    as_json: bool

    def __post_init__(self) -> None:
        if self.tools not in ("replay", "run"):
            raise UsageError(f"--tools: {self.tools!r} is not allowed", hint="replay or run")
        of_models = self.models or self.style or self.strategy or self.samples > 1
        if not self.live and (of_models or self.baseline or self.save_baseline):
            raise UsageError("a replay asks no model", hint="--live does")


def check(paths: Sequence[Path], wanted: CheckOptions, options_given: options.Options) -> int:
    """Checks transcripts, and returns the exit code."""
    known = Baseline.read(wanted.baseline) if wanted.baseline is not None else None

    def tell(check: GoldenCheck) -> None:
        if wanted.as_json:
            print_json(check.to_json())
        elif wanted.verbose or not check.passed:
            show(golden_check.told(check))

    how = _live if wanted.live else _replayed
    return _finish(how(paths, wanted, options_given, tell), wanted, known)


def chosen(paths: Sequence[Path], only: str | None) -> list[Path]:
    """The files that are meant. Raises `UsageError` where there are none."""
    files = find_golden(paths)
    if only is None:
        return files
    meant = [path for path in files if fnmatch.fnmatchcase(path.stem, only)]
    if not meant:
        raise UsageError(f"--only: none of {len(files)} transcripts is called {only}")
    return meant


def _replayed(
    files: Sequence[Path],
    wanted: CheckOptions,
    options_given: options.Options,
    tell: Callable[[GoldenCheck], None],
) -> list[GoldenCheck]:
    registry = None
    if wanted.tools == "run":
        from functools import partial

        from mlx_tools.app.wiring import registry_of

        registry = partial(registry_of, options.load(options_given))
    checks = []
    keep = wanted.out is not None or wanted.report is not None
    with counting("replaying", len(files)) as step:
        for one in replay_files(
            files, with_records=keep, registry=registry, jobs=wanted.jobs, step=step
        ):
            checks.append(one)
            tell(one)
    return checks


def _live(
    files: Sequence[Path],
    wanted: CheckOptions,
    options_given: options.Options,
    tell: Callable[[GoldenCheck], None],
) -> list[GoldenCheck]:
    from mlx_tools.app.wiring import RunOptions, refuse_where_off
    from mlx_tools.backends import STRATEGIES, STYLES
    from mlx_tools.cli.golden_check import Matrix, check_all

    run = RunOptions(configuration=options.load(options_given))
    refuse_where_off(run)
    matrix = Matrix(
        options.names(wanted.models) or (None,),
        _listed("--style", wanted.style, STYLES),
        _listed("--strategy", wanted.strategy, STRATEGIES),
    )
    goldens = [read_golden(path) for path in files]
    run_tools = wanted.tools == "run"
    with counting("asking", len(goldens) * len(matrix)) as step:

        def told(check: GoldenCheck) -> None:
            tell(check)
            step()

        async def work() -> list[GoldenCheck]:
            return await check_all(
                goldens, run, matrix, samples=wanted.samples, run_tools=run_tools, told=told
            )

        return anyio.run(work)


def _listed(option: str, text: str | None, allowed: Sequence[str]) -> Sequence[str | None]:
    names = options.names(text)
    if unknown := [name for name in names if name not in allowed]:
        raise UsageError(f"{option}: {unknown[0]!r} is not allowed", hint=", ".join(allowed))
    return tuple(dict.fromkeys(names)) or (None,)


def _finish(checks: Sequence[GoldenCheck], wanted: CheckOptions, known: Baseline | None) -> int:
    """Keeps and reports what came of it, and returns the exit code."""
    fallen = known.regressions(checks) if known is not None else []
    failed = bool(fallen) if known is not None else not all(one.passed for one in checks)
    if wanted.save_baseline is not None:
        drawn = any(_temperature(one) for one in checks)
        Baseline.of(checks, drawn=drawn).write(wanted.save_baseline)
    if wanted.out is not None:
        write_results(checks, wanted.out)
    if wanted.report is not None:
        from mlx_tools.golden import write_report

        write_report(checks, wanted.report)
    if wanted.as_json:
        passed = sum(one.passed for one in checks)
        told = [one.to_json() for one in fallen]
        print_json({"checks": len(checks), "passed": passed, "regressions": told})
    else:
        show(golden_check.fallen(fallen))
        show(golden_check.sums(checks))
    return EXIT_STOPPED if failed else EXIT_OK


def _temperature(check: GoldenCheck) -> float:
    """At what temperature a check's runs were drawn."""
    header: Any = next((r for s in check.samples for r in s.records), {})
    return float((header.get("sampling") or {}).get("temperature") or 0.0)


# --- on real models -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matrix:
    """What transcripts are asked with: every model with every style and strategy. None is what the
    settings say, for a style what was recorded."""

    models: Sequence[str | None]
    styles: Sequence[str | None]
    strategies: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.models) * len(self.styles) * len(self.strategies)

    def of(self, settings: RunSettings) -> Iterator[RunSettings]:
        """The settings of one model's cells."""
        for style in self.styles:
            for strategy in self.strategies:
                own = settings.strategy if strategy is None else cast(StrategyChoice, strategy)
                wanted: StyleChoice = "auto" if style is None else cast(StyleChoice, style)
                yield replace(settings, style=wanted, strategy=own)


async def check_all(
    goldens: Sequence[Golden],
    run: RunOptions,
    matrix: Matrix,
    *,
    samples: int,
    run_tools: bool,
    told: Callable[[GoldenCheck], None],
) -> list[GoldenCheck]:
    """Asks all, cell by cell; ``told`` gets each check as it is there. ``run_tools``: tools are run
    instead of giving what was recorded."""
    checks: list[GoldenCheck] = []
    registry = registry_of(run.configuration) if run_tools else None
    for model in matrix.models:
        named = run if model is None else replace(run, model=model)
        async with found(named, lambda line: complain(line, kind="note")) as (chosen, settings):
            for own in matrix.of(settings):
                for golden in goldens:
                    check = await check_live(
                        golden,
                        chosen.backend,
                        settings=own,
                        samples=samples,
                        tools="run" if run_tools else "replay",
                        registry=registry,
                    )
                    checks.append(check)
                    told(check)
    return checks
