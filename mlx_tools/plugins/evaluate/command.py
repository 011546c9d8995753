"""`mlx-tools eval`.

Measures how well a model calls tools, by the Berkeley leaderboard and by runs.
"""

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
    load_items,
    load_tasks,
    run_bfcl,
    run_tasks,
    sample,
    wheel_path,
)

app = typer.Typer(add_completion=False)

Step = Callable[[], None]
Ask = Callable[[Backend, Mapping[str, RunSettings], Results, Step], Awaitable[Sequence[Result]]]
"""Asks all questions with each strategy's settings; `Step` is called after each."""

Strategies = Annotated[
    str | None,
    option(
        "--strategy A,B",
        "How a completion is made to keep to the protocol: one, or several side by side.",
        show_default="model.strategy of the settings",
        rich_help_panel="Model",
    ),
]
OutputFile = Annotated[
    Path | None,
    option(
        "--out FILE",
        "Write a JSON line for each item to FILE; items that are in it are not asked again.",
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
        option(
            "--limit N", "So many of each category, drawn at random.", min=1, show_default="all"
        ),
    ] = None,
    seed: Annotated[int, option("--seed S", "Which random sample is drawn.")] = 0,
    half: Annotated[
        str,
        option(
            f"--half {'|'.join(get_args(Half))}",
            "Of each category a fixed half: one to tune on, one to report on.",
        ),
    ] = "all",
    wheel: Annotated[
        Path | None,
        option(
            "--wheel FILE", f"Take the questions from this wheel of {PACKAGE}; nothing is fetched."
        ),
    ] = None,
    strategy: Strategies = None,
    output: OutputFile = None,
    as_json: options.AsJson = False,
    *,
    options_given: options.Options,
) -> None:
    """Questions of the Berkeley Function-Calling Leaderboard (BFCL v4), one turn each."""
    categories: Sequence[str] = options.parse_choices("--category", category, ("all", *CATEGORIES))
    categories = CATEGORIES if "all" in categories else categories
    half = cast(Half, options.require_choice("--half", half, get_args(Half)))
    run = options.run_options(options_given, tools=False)
    strategies = _strategies(strategy, run)
    path, data = _data(wheel)
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
    _tell({**head, "sample": sample_settings}, results, as_json=as_json)


@app.command()
@options.with_settings("backend.url", "model.name")
def tasks(
    category: Annotated[
        str | None, option("--category A,B", "Only tasks of these categories.")
    ] = None,
    only: Annotated[str | None, option("--only A,B", "Only the tasks of these ids.")] = None,
    transcripts: Annotated[
        Path | None, option("--transcripts DIR", "Keep the transcript of each run in DIR.")
    ] = None,
    strategy: Strategies = None,
    output: OutputFile = None,
    as_json: options.AsJson = False,
    *,
    options_given: options.Options,
) -> None:
    """Whole runs with real tools, judged by their outcome."""
    selected_tasks = load_tasks().only(options.names(category), options.names(only))
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

    strategies, items = _strategies(strategy, run), len(selected_tasks.tasks)
    asking = partial(_run_benchmark, "tasks", run, strategies, output, items, ask, tasks=data)
    head, results = run_loop(asking)
    _tell(head, results, as_json=as_json)


def _data(wheel: Path | None) -> tuple[Path, str]:
    """Return the wheel that holds the questions, and an identifier of these questions."""
    if wheel is not None:
        try:
            return wheel, f"sha256:{file_sha256(wheel)}"
        except OSError as error:
            raise UsageError(f"--wheel: {wheel}: {error.strerror}") from None
    if not wheel_path().is_file():
        note(f"fetching {PACKAGE} {VERSION} (2 MB)")
    return ensure_wheel(), f"{PACKAGE}=={VERSION}"


def _strategies(text: str | None, run: RunOptions) -> Sequence[StrategyChoice]:
    """Return the named strategies, each once; else the configured one."""
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
    """Return the description of the run, and its results."""
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


def _tell(head: Mapping[str, Any], results: Sequence[Result], *, as_json: bool) -> None:
    summary = summarise(results)
    if as_json:
        print_json(dict(head) | {"rows": [row.to_json() for row in summary]})
    else:
        print_text(format_table(summary))
