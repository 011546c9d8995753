"""`mlx-tools eval`: measures how well a model calls tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import typer

from mlx_tools.app import (
    Proposer,
    Result,
    Results,
    RunOptions,
    config,
    describe_run,
    format_table,
    open_selected_backend,
    summarise,
)
from mlx_tools.backends import Backend, StrategyChoice, file_sha256
from mlx_tools.cli import options, version
from mlx_tools.cli.inputs import run_loop
from mlx_tools.cli.options import option
from mlx_tools.cli.output import note, print_json, print_text, progress_counter
from mlx_tools.controller import RunSettings
from mlx_tools.errors import UsageError
from mlx_tools.messages import replace
from mlx_tools.plugins.evaluate import (
    CATEGORIES,
    FILE,
    PACKAGE,
    VERSION,
    Half,
    ensure_wheel,
    find_wheel_path,
    load_items,
    load_tasks,
    run_bfcl,
    run_tasks,
    sample,
)

app = typer.Typer(add_completion=False)

Step = Callable[[], None]
Ask = Callable[[Backend, Mapping[str, RunSettings], Results, Step], Awaitable[Sequence[Result]]]
"""A function that asks all questions with each strategy's settings, and calls `Step` after each."""

Strategies = Annotated[
    str | None,
    option(
        "--strategy A,B",
        "When a completion must follow the protocol; several strategies are measured one by one.",
        show_default="model.strategy of the settings",
        rich_help_panel="Model",
    ),
]
OutputFile = Annotated[
    Path | None,
    option(
        "--out FILE",
        "Write a JSON line for each result to FILE; results in it are not measured again.",
    ),
]


@app.command()
@options.with_settings("backend.url", "model.name")
def bfcl(
    category: Annotated[
        str, option("--category A,B", f"all, or some of {', '.join(CATEGORIES)}.")
    ] = "all",
    limit: Annotated[
        int | None,
        option("--limit N", "Ask N random questions of each category.", min=1, show_default="all"),
    ] = None,
    seed: Annotated[int, option("--seed S", "The seed of the random choice.")] = 0,
    half: Annotated[
        str,
        option(
            f"--half {'|'.join(get_args(Half))}",
            "Ask a fixed half of each category: one to tune on, or one to report on.",
        ),
    ] = "all",
    wheel: Annotated[
        Path | None,
        option(
            "--wheel FILE",
            f"Read the questions from this wheel of {PACKAGE}, and download nothing.",
        ),
    ] = None,
    strategy: Strategies = None,
    output: OutputFile = None,
    as_json: options.AsJson = False,
    *,
    options_given: options.Options,
) -> None:
    """Ask the questions of the Berkeley leaderboard (BFCL v4), one turn each."""
    categories: Sequence[str] = options.parse_choices("--category", category, ("all", *CATEGORIES))
    categories = CATEGORIES if "all" in categories else categories
    half = cast(Half, options.require_choice("--half", half, get_args(Half)))
    run = options.run_options(options_given, tools=False)
    strategies = _parse_strategies(strategy, run)
    path, data = _find_wheel(wheel)
    items = [
        item
        for name in categories
        for item in sample(load_items(name, path), limit=limit, seed=seed, half=half)
    ]

    async def ask(
        backend: Backend, settings_by_name: Mapping[str, RunSettings], results: Results, step: Step
    ) -> Sequence[Result]:
        limits = run.configuration.limits()
        proposers = {
            name: Proposer(backend, settings=settings, limits=limits)
            for name, settings in settings_by_name.items()
        }
        return await run_bfcl(items, proposers, results, step)

    asking = partial(_run_benchmark, "bfcl", run, strategies, output, len(items), ask, data=data)
    head, results = run_loop(asking)
    sample_settings = {"categories": list(categories), "limit": limit, "seed": seed, "half": half}
    _print_results({**head, "sample": sample_settings}, results, as_json=as_json)


@app.command()
@options.with_settings("backend.url", "model.name")
def tasks(
    category: Annotated[
        str | None, option("--category A,B", "Only tasks of these categories.")
    ] = None,
    only: Annotated[str | None, option("--only A,B", "Only the tasks with these ids.")] = None,
    transcripts: Annotated[
        Path | None, option("--transcripts DIR", "Write the transcript of each run to DIR.")
    ] = None,
    strategy: Strategies = None,
    output: OutputFile = None,
    as_json: options.AsJson = False,
    *,
    options_given: options.Options,
) -> None:
    """Do whole runs with real tools, and check what they answered and changed."""
    selected_tasks = load_tasks().select(options.names(category), options.names(only))
    run = options.run_options(options_given)
    data = f"sha256:{file_sha256(FILE)}"

    async def ask(
        backend: Backend, settings_by_name: Mapping[str, RunSettings], results: Results, step: Step
    ) -> Sequence[Result]:
        limits = run.configuration.limits()
        return await run_tasks(
            selected_tasks,
            backend,
            settings_by_name,
            results,
            limits=limits,
            transcripts=transcripts,
            step=step,
        )

    strategies, items = _parse_strategies(strategy, run), len(selected_tasks.tasks)
    asking = partial(_run_benchmark, "tasks", run, strategies, output, items, ask, tasks=data)
    head, results = run_loop(asking)
    _print_results(head, results, as_json=as_json)


def _find_wheel(wheel: Path | None) -> tuple[Path, str]:
    """Return the path of the wheel with the questions, and an id of its content."""
    if wheel is not None:
        try:
            return wheel, f"sha256:{file_sha256(wheel)}"
        except OSError as error:
            raise UsageError(f"--wheel: {wheel}: {error.strerror}") from None
    if not find_wheel_path().is_file():
        note(f"downloading {PACKAGE} {VERSION} (2 MB)")
    return ensure_wheel(), f"{PACKAGE}=={VERSION}"


def _parse_strategies(text: str | None, run: RunOptions) -> Sequence[StrategyChoice]:
    """Return the strategies in the option, or the configured one."""
    if text is None:
        return (run.configuration.settings.model.strategy,)
    names = options.parse_choices("--strategy", text, config.table()["model.strategy"].choices)
    return cast(Sequence[StrategyChoice], names)


async def _run_benchmark(
    benchmark: Literal["bfcl", "tasks"],
    run: RunOptions,
    strategies: Sequence[StrategyChoice],
    output: Path | None,
    items: int,
    ask: Ask,
    **options: Any,
) -> tuple[Mapping[str, Any], Sequence[Result]]:
    """Measure a model, and return the description of the measurement and its results.

    Args:
        benchmark: the name of the benchmark.
        run: the options of the command.
        strategies: the strategies to measure.
        output: a file with earlier results, to which new ones are added.
        items: the number of questions.
        ask: asks the questions.
        options: more entries for the description.
    """
    async with open_selected_backend(run, note) as (selected, settings):
        settings_by_strategy: dict[str, RunSettings] = {
            name: replace(settings, strategy=name) for name in strategies
        }
        if "auto" in strategies and settings.verdict and settings.verdict.verdict:
            options["verdict"] = settings.verdict.verdict.measured_at
        limits = run.configuration.limits()
        description = describe_run(settings, limits, version=version(), **options)
        with (
            Results(output, benchmark, description) as results,
            progress_counter("asking", items * len(strategies)) as step,
        ):
            results_done = await ask(selected.backend, settings_by_strategy, results, step)
    return {"benchmark": benchmark, "settings": description}, results_done


def _print_results(head: Mapping[str, Any], results: Sequence[Result], *, as_json: bool) -> None:
    summary = summarise(results)
    if as_json:
        print_json(dict(head) | {"rows": [row.to_json() for row in summary]})
    else:
        print_text(format_table(summary))
