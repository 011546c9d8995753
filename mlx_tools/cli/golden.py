"""`mlx-tools golden`: records runs, replays them, and checks them on real models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from mlx_tools.cli import options
from mlx_tools.cli.golden_check import CheckOptions, check, chosen
from mlx_tools.cli.output import complain
from mlx_tools.errors import EXIT_OK, UsageError
from mlx_tools.golden import read_results, replay_files

app = typer.Typer(
    help="Record runs, replay them, and check them on real models.", add_completion=False
)

FOLDER: Final = Path("golden_transcripts")
_LIVE: Final = tuple(
    key for key in options.WRITING if key not in ("model.strategy", "model.prompt_style")
)

Paths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH", help="Transcripts, or folders of them.", show_default=False),
]
Only = Annotated[
    str | None,
    typer.Option("--only", metavar="GLOB", help="Only those of this name, such as 'approval-*'."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")]

BaselineFile = Annotated[
    Path | None,
    typer.Option(
        "--baseline", metavar="FILE", help="Fail only where less passes than in this baseline."
    ),
]

NewBaseline = Annotated[
    Path | None,
    typer.Option("--save-baseline", metavar="FILE", help="Keep what passed as a baseline."),
]

Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Keep the results, with all runs.")
]

ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write a report as HTML.")
]

Jobs = Annotated[
    int | None, typer.Option("--jobs", metavar="N", min=1, help="Processes that replay.")
]


@app.command(help="Ask questions, or take a past session, and keep the run.")
@options.with_settings(*options.BACKEND, *options.WRITING, *options.POLICY, *options.RUN)
def record(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the transcript is called.")],
    questions: Annotated[
        list[str] | None, typer.Argument(metavar="QUESTION", help="Asked one after the other.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", metavar="ID", help="Ask nothing: keep this session (its id, last, a path)."
        ),
    ] = None,
    into: Annotated[
        Path, typer.Option("--into", metavar="DIR", help="The folder that it is kept in.")
    ] = FOLDER,
    about: Annotated[
        str, typer.Option("--about", metavar="TEXT", help="What it shows, in a sentence.")
    ] = "",
    features: Annotated[
        str | None, typer.Option("--features", metavar="A,B", help="Words to find it by.")
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect",
            metavar="JSON",
            help="What a live check wants: an object a question, or a list; @FILE reads it.",
        ),
    ] = None,
    volatile: Annotated[
        str,
        typer.Option("--volatile", metavar="A,B", help="Tools that give something else each time."),
    ] = "clock",
    force: Annotated[bool, typer.Option("--force", help="Write over one of this name.")] = False,
    as_json: AsJson = False,
    *,
    options_given: options.Options,
) -> int:
    """Record a golden transcript."""
    from mlx_tools.cli.golden_record import RecordOptions, keep

    kept = RecordOptions(
        name=name,
        into=into,
        about=about,
        features=options.names(features),
        expect=expect,
        volatile=options.names(volatile),
        force=force,
    )
    return keep(kept, questions or (), session, options_given, as_json=as_json)


@app.command(help="Replay transcripts with today's code, or ask them of a model (--live).")
@options.with_settings(*options.BACKEND, *_LIVE, "tools.roots")
def run(
    paths: Paths,
    only: Only = None,
    tools: Annotated[
        str,
        typer.Option(
            "--tools",
            metavar="replay|run",
            help="Whether tools give what was recorded, or are run; without --live only those that "
            "read, and always give the same.",
        ),
    ] = "replay",
    live: Annotated[bool, typer.Option("--live", help="Ask the questions of a model.")] = False,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=1, help="How often each is asked.")
    ] = 1,
    models: Annotated[
        str | None, typer.Option("--models", metavar="A,B", help="Several models, side by side.")
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            "--style",
            metavar="A,B",
            help="Prompt styles, side by side.",
            show_default="as recorded",
        ),
    ] = None,
    strategy: Annotated[
        str | None, typer.Option("--strategy", metavar="A,B", help="Strategies, side by side.")
    ] = None,
    baseline: BaselineFile = None,
    save_baseline: NewBaseline = None,
    out: Out = None,
    report: ReportFile = None,
    jobs: Jobs = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what passed too.")] = False,
    as_json: AsJson = False,
    *,
    options_given: options.Options,
) -> int:
    """Check transcripts, and return 1 where one failed."""
    wanted = CheckOptions(
        live=live,
        tools=tools,
        samples=samples,
        models=models,
        style=style,
        strategy=strategy,
        baseline=baseline,
        save_baseline=save_baseline,
        out=out,
        report=report,
        jobs=jobs,
        verbose=verbose,
        as_json=as_json,
    )
    return check(chosen(paths, only), wanted, options_given)


@app.command(help="Bring transcripts up to date: shows what changes, asks, and writes.")
def accept(
    paths: Paths,
    only: Only = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Accept what comes out today."""
    from mlx_tools.cli import golden_accept

    files = chosen(paths, only)
    return golden_accept.accept(files, yes=yes, dry_run=dry_run, as_json=as_json)


@app.command(help="Write a report of transcripts as one HTML file.")
def report(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="PATH", help="Transcripts, or folders of them.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option("--results", metavar="FILE", help="What golden run --out FILE has kept."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where the report goes.")
    ] = Path("golden-report.html"),
    only: Only = None,
) -> int:
    """Write the report."""
    from mlx_tools.golden import write_report

    if bool(paths) == bool(results):
        raise UsageError("give transcripts, or --results FILE", hint="one of the two")
    if results is not None:
        checks = read_results(results)
    else:
        checks = list(replay_files(chosen(paths or [], only), with_records=True))
    write_report(checks, out)
    complain(str(out), kind="report")
    return EXIT_OK
