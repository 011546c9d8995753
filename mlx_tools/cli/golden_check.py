"""`mlx-tools golden run`: replays transcripts, or asks them of real models, and says what came of
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, cast

import anyio
import typer

from mlx_tools.app import RunOptions, Share, found, registry_of
from mlx_tools.backends import STRATEGIES, STYLES, StrategyChoice, StyleChoice
from mlx_tools.cli import options
from mlx_tools.cli.options import argument, option
from mlx_tools.cli.output import counting, note, print_json, print_text
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
    write_report,
    write_results,
)

_MOST: Final = 5
"""Differences of one transcript that are shown; the rest is counted."""

Lines = Iterator[tuple[str, str]]
Told = Callable[[GoldenCheck], None]

Paths = Annotated[
    list[Path], argument("PATH", "Transcripts, or folders of them.", show_default=False)
]


@options.with_settings(
    *options.BACKEND, "model.chat_format", "model.temperature", "model.seed", "tools.roots"
)
def run(
    paths: Paths,
    tools: Annotated[
        str,
        option(
            "--tools replay|run",
            "Whether tools give what was recorded, or are run; without --live only those that "
            "read, and always give the same.",
        ),
    ] = "replay",
    live: Annotated[bool, option("--live", "Ask the questions of a model.")] = False,
    samples: Annotated[int, option("--samples N", "How often each is asked.", min=1)] = 1,
    models: Annotated[str, option("--models A,B", "Several models, side by side.")] = "",
    style: Annotated[
        str, option("--style A,B", "Prompt styles, side by side.", show_default="as recorded")
    ] = "",
    strategy: Annotated[str, option("--strategy A,B", "Strategies, side by side.")] = "",
    baseline: Annotated[
        Path | None, option("--baseline FILE", "Fail only where less passes than in this baseline.")
    ] = None,
    save_baseline: Annotated[
        Path | None, option("--save-baseline FILE", "Keep what passed as a baseline.")
    ] = None,
    out: Annotated[Path | None, option("--out FILE", "Keep the results, with all runs.")] = None,
    report: Annotated[Path | None, option("--report FILE", "Write a report as HTML.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what passed too.")] = False,
    as_json: options.AsJsonLines = False,
    *,
    options_given: options.Options,
) -> int:
    """Replay transcripts with today's code, or ask them of a model (--live)."""
    (tools,) = options.chosen("--tools", tools, ("replay", "run"))
    of_models = models or style or strategy or samples > 1 or baseline or save_baseline
    if not live and of_models:
        raise UsageError("a replay asks no model", hint="--live does")
    files = find_golden(paths)
    known = Baseline.read(baseline) if baseline is not None else None

    def tell(check: GoldenCheck) -> None:
        if as_json:
            print_json(check.to_json())
        elif verbose or not check.passed:
            show(_told(check))

    run_tools = tools == "run"
    if live:
        styles = options.chosen("--style", style, STYLES) if style else (None,)
        strategies = options.chosen("--strategy", strategy, STRATEGIES) if strategy else (None,)
        ways = list(product(styles, strategies))
        asked = options.run_options(options_given)
        goldens = [read_golden(path) for path in files]
        served = options.names(models) or (None,)
        checks = anyio.run(_check_live, goldens, asked, served, ways, samples, run_tools, tell)
    else:
        registry = partial(registry_of, options.load(options_given)) if run_tools else None
        keep = out is not None or report is not None
        checks = []
        with counting("replaying", len(files)) as step:
            for one in replay_files(files, with_records=keep, registry=registry, step=step):
                checks.append(one)
                tell(one)
    if save_baseline is not None:
        Baseline.of(checks, drawn=any(map(_temperature, checks))).write(save_baseline)
    if out is not None:
        write_results(checks, out)
    if report is not None:
        write_report(checks, report)
    return _finish(checks, known, as_json=as_json)


def _finish(checks: Sequence[GoldenCheck], known: Baseline | None, *, as_json: bool) -> int:
    """Says what came of it, and returns the exit code."""
    fallen = known.regressions(checks) if known is not None else []
    if as_json:
        passed = sum(one.passed for one in checks)
        worse = [one.to_json() for one in fallen]
        print_json({"checks": len(checks), "passed": passed, "regressions": worse})
    else:
        show(_fallen(fallen))
        show(_sums(checks))
    failed = bool(fallen) if known is not None else not all(one.passed for one in checks)
    return EXIT_STOPPED if failed else EXIT_OK


def _temperature(check: GoldenCheck) -> float:
    """At what temperature a check's runs were drawn."""
    header: Any = next((r for s in check.samples for r in s.records), {})
    return float((header.get("sampling") or {}).get("temperature") or 0.0)


# --- in words -----------------------------------------------------------------------------------


def show(lines: Iterable[tuple[str, str]]) -> None:
    """Prints lines."""
    for colour, line in lines:
        print_text(line, colour=colour)


def _told(check: GoldenCheck) -> Lines:
    """A check that failed, with its differences; one that passed is a line."""
    live = check.mode == "live"
    of = f"  {check.cell.label}  {check.share.hits}/{check.share.total}" if live else ""
    if check.passed:
        yield "green", f"pass  {check.name}{of}"
        return
    yield "red", f"FAIL  {check.name}{of}"
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


def _sums(every: Sequence[GoldenCheck]) -> Lines:
    """Return how many passed, by cell where there are several, and what the others come from."""
    cells = list(dict.fromkeys(check.cell for check in every))
    for cell in cells if any(check.mode == "live" for check in every) else ():
        own = [check.share for check in every if check.cell == cell]
        hits, total = sum(share.hits for share in own), sum(share.total for share in own)
        low, high = Share(hits, total).interval
        percent = f"{100 * hits / total:.0f} %" if total else "-"
        span = f"{100 * low:.0f} to {100 * high:.0f} %"
        yield "", f"{cell.label}: {hits} of {total} runs passed, {percent} ({span})"
    passed = sum(check.passed for check in every)
    rooms = Counter(room for check in every for room in check.rooms)
    errors = sum(any(sample.error for sample in check.samples) for check in every)
    parts = [f"{room} {rooms[room]}" for room in ROOMS if rooms[room]]
    parts += [f"unreadable {errors}"] if errors else []
    tail = f"; failed: {', '.join(parts)}" if parts else ""
    colour = "green" if passed == len(every) else "red"
    yield colour, f"{passed} of {len(every)} passed{tail}"


def _fallen(regressions: Iterable[Regression]) -> Lines:
    """Return what passes less often than in the baseline."""
    for one in regressions:
        what = one.name or "all transcripts"
        was, now = (f"{s.hits}/{s.total}" for s in (one.before, one.after))
        yield "red", f"worse  {what}  {one.cell.label}: {was} before, {now} now (p {one.p:.3g})"


# --- on real models -----------------------------------------------------------------------------


async def _check_live(
    goldens: Sequence[Golden],
    run: RunOptions,
    models: Sequence[str | None],
    ways: Sequence[tuple[str | None, str | None]],
    samples: int,
    run_tools: bool,
    tell: Told,
) -> list[GoldenCheck]:
    """Asks all, cell by cell: every model in each of the ``ways``, a style and a strategy. None is
    what the settings say, for a style what was recorded. ``run_tools``: tools are run instead of
    giving what was recorded."""
    checks: list[GoldenCheck] = []
    registry = registry_of(run.configuration) if run_tools else None
    with counting("asking", len(goldens) * len(models) * len(ways)) as step:
        for model in models:
            named = run if model is None else replace(run, model=model)
            async with found(named, note) as (chosen, settings):
                for (style, strategy), golden in product(ways, goldens):
                    own = replace(
                        settings,
                        style=cast(StyleChoice, style or "auto"),
                        strategy=cast(StrategyChoice, strategy or settings.strategy),
                    )
                    check = await check_live(
                        golden,
                        chosen.backend,
                        settings=own,
                        samples=samples,
                        tools="run" if run_tools else "replay",
                        registry=registry,
                    )
                    checks.append(check)
                    tell(check)
                    step()
    return checks
