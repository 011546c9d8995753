"""Checks golden transcripts, by replaying them or on real models, and says what came of it."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from mlx_tools.cli import golden_text, options
from mlx_tools.cli.golden_text import show
from mlx_tools.cli.output import print_json
from mlx_tools.cli.progress import counting
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError
from mlx_tools.golden import find_golden, read_golden
from mlx_tools.golden.baseline import Baseline
from mlx_tools.golden.batch import replay_files
from mlx_tools.golden.results import GoldenCheck, write_results


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
            show(golden_text.told(check))

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
    from mlx_tools.backends.verdicts import STRATEGIES, STYLES
    from mlx_tools.cli.golden_live import Matrix, check_all

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
        from mlx_tools.golden.report import write_report

        write_report(checks, wanted.report)
    if wanted.as_json:
        passed = sum(one.passed for one in checks)
        told = [one.to_json() for one in fallen]
        print_json({"checks": len(checks), "passed": passed, "regressions": told})
    else:
        show(golden_text.fallen(fallen))
        show(golden_text.sums(checks))
    return EXIT_STOPPED if failed else EXIT_OK


def _temperature(check: GoldenCheck) -> float:
    """At what temperature a check's runs were drawn."""
    header: Any = next((r for s in check.samples for r in s.records), {})
    return float((header.get("sampling") or {}).get("temperature") or 0.0)
