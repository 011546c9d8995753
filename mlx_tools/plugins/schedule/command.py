"""`mlx-tools schedule`: lists, adds, removes and runs tasks for later."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final

import typer

from mlx_tools.app import (
    Autostart,
    build_controller,
    build_registry,
    config,
    list_reusable_options,
    list_roots,
    open_selected_backend,
    session_store,
)
from mlx_tools.cli import inputs, options
from mlx_tools.cli.installing import note_left_out, program, tell_left
from mlx_tools.cli.options import argument, option
from mlx_tools.cli.output import complain, cut, note, print_json, print_prose, print_row, print_text
from mlx_tools.cli.root import Interrupted, internal_error
from mlx_tools.cli.saved_sessions import open_user_store
from mlx_tools.controller import PauseApprover
from mlx_tools.errors import (
    EXIT_BACKEND,
    EXIT_OK,
    EXIT_PAUSED,
    EXIT_STOPPED,
    EXIT_USAGE,
    ScheduleError,
    StorageError,
    TranscriptError,
    UsageError,
)
from mlx_tools.plugins.schedule.job_store import (
    UNFINISHED,
    Job,
    JobListing,
    JobRun,
    RunEnd,
    RunInspection,
    utc_now,
)
from mlx_tools.plugins.schedule.jobs import job_store
from mlx_tools.plugins.schedule.runner import FinishedRun, Runner, settle
from mlx_tools.plugins.schedule.when import parse_when
from mlx_tools.policy import Policy
from mlx_tools.store import SessionStore
from mlx_tools.toolbox import find_local_zone, find_zone
from mlx_tools.transcript import ExecutionRecord

app = typer.Typer(add_completion=False)


def job_ids() -> list[str]:
    """Return the ids of the jobs, in the order of `mlx-tools schedule list`."""
    return [listing.id for listing in job_store(session_store(config.load())).listing()]


_EXIT_CODES: Final = (EXIT_OK, EXIT_PAUSED, EXIT_STOPPED, EXIT_USAGE, EXIT_BACKEND)
"""Exit codes of runs. With several runs, the last one in this order is the command's."""

_MAX_TASK_CHARS: Final = 60
"""Characters of a task in a list."""
_RUN: Final = "mlx-tools schedule run"
_INTERVAL_MINUTES: Final = 5
"""Minutes between two starts of an installed schedule. A choice: no job starts later than this."""


JobId = Annotated[
    str, argument("ID", "The job's id, or the beginning of it.", autocompletion=job_ids)
]


@app.command(name="list")
def list_jobs(as_lines: options.AsJsonLines = False) -> None:
    """List the jobs, those that are due next first, and their last runs."""
    sessions = open_user_store()
    store = job_store(sessions)
    settle(store, partial(look, sessions))
    listing = store.listing()
    for listed in listing:
        if as_lines:
            print_json(listed.to_json())
        else:
            _print(listed)
    if not listing:
        note("there are no jobs: mlx-tools schedule add TASK --when WHEN")


@app.command()
@options.with_settings("profile", "backend.url", "model.name", *options.TOOLS)
def add(
    task: Annotated[list[str], argument("TASK…", "What is to be done.")],
    when: Annotated[
        str,
        option(
            "--when WHEN",
            "A time, or times that come again: 2030-01-31 17:00, tomorrow 9:00, in 2 hours, "
            "every weekday at 8:30, every 15 minutes, @daily, or five "
            "fields of cron.",
        ),
    ],
    timezone: Annotated[
        str | None, option("--timezone ZONE", "Such as Europe/Berlin; else this one's.")
    ] = None,
    require_tools: options.RequireTools = "",
    as_json: options.AsJson = False,
    *,
    options_given: options.Options,
) -> None:
    """Add a task that the model gets at a time, once or repeatedly."""
    configuration = options.load(options_given)
    build_registry(configuration)  # a wrong name of a tool must be reported now
    zone = find_zone(timezone).key if timezone is not None else find_local_zone()
    store = job_store(open_user_store())
    job = store.add(
        Job(
            task=inputs.as_text(" ".join(task), "task"),
            schedule_text=when,
            when=parse_when(when, zone, utc_now()),
            policy=configuration.policy().to_json(),
            configured_policy=configuration.configured_policy().to_json(),
            roots=list_roots(configuration),
            options=list_reusable_options(configuration),
            require_tools=options.names(require_tools),
        )
    )
    listed = store.find(job.id)
    if as_json:
        print_json(listed.to_json())
    else:
        print_text(f"{job.id}  due {_local(job, listed.next_due)}")
        _note(f"it runs when {_RUN} runs; to stay and run each in time: {_RUN} --loop")


@app.command()
def remove(job: JobId) -> None:
    """Remove a job; the sessions of its runs stay."""
    store = job_store(open_user_store())
    listed = store.find(job)
    store.remove(listed.id)
    complain(f"removed {listed.id}", kind="done")
    for run in listed.runs:
        if run.status == "running":
            note("its run is not broken off")
        elif run.status in UNFINISHED:
            note(f"its run still waits: mlx-tools sessions resume {run.session}")


@app.command()
def run(
    loop: Annotated[
        bool, option("--loop/--once", "Stay, and run each job when it is due; or look once.")
    ] = False,
    as_lines: options.AsJsonLines = False,
) -> int:
    """Run the jobs that are due now, and exit with the worst exit code of the runs."""

    def tell(finished: FinishedRun) -> None:
        _tell(finished, as_lines=as_lines)

    def trouble(error: ScheduleError) -> None:
        complain(f"{error.message}; it is tried again", kind="warning")

    # SIGTERM, which the system sends when it shuts down, ends a run like Ctrl-C. A program in the
    # background of a script ignores Ctrl-C at its start, and asyncio cancels tasks only through
    # Python's own handler, so that is set here.
    sigterm = inputs.handle_signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    sigint = inputs.handle_signal(signal.SIGINT, signal.default_int_handler)
    with sigterm, sigint, _runner() as runner:
        try:
            if loop:
                _note("each job runs when it is due; Ctrl-C ends this")
                inputs.run_loop(runner.run_forever, tell, trouble)
            runs_done = inputs.run_loop(runner.run_due, tell)
            if not runs_done:
                _note("nothing is due: mlx-tools schedule list")
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                print(file=sys.stderr)  # end the line with ^C
            complain("mlx-tools schedule list says what came of it", kind="interrupted")
            raise Interrupted from None
    return max(
        (run_done.exit_code for run_done in runs_done), key=_EXIT_CODES.index, default=EXIT_OK
    )


async def run_due() -> None:
    """Run the jobs that are due now, for a worker."""
    with _runner() as runner:
        await runner.run_due(lambda ended: _tell(ended, as_lines=False))


def _runner() -> Runner:
    sessions = open_user_store()
    return Runner(job_store(sessions), run_job, partial(look, sessions))


@app.command()
def install(yes: options.Yes = False) -> int:
    """Run the jobs in time from now on: shows the files for this, asks, writes them."""
    command = [*program(), "schedule", "run"]
    autostart = _autostart()
    for place, text in autostart.texts(command).items():
        complain(str(place), kind="writes")
        print_text(text)
    note_left_out(autostart)
    texts = {"warning": "nothing was written", "no_terminal_hint": "nothing is written: "}
    if not inputs.confirm("Write this?", yes, hint="--yes writes it", **texts):
        return EXIT_STOPPED
    failed_commands = autostart.install(command)
    if not failed_commands:
        complain("jobs run in time; mlx-tools schedule uninstall ends that", kind="done")
    return tell_left(failed_commands)


@app.command()
def uninstall() -> int:
    """Stop the automatic start; the jobs stay."""
    return tell_left(_autostart().uninstall())


def _autostart() -> Autostart:
    return Autostart(name="schedule", interval=_INTERVAL_MINUTES)


def _note(line: str) -> None:
    """Print a note for a person at a terminal, which a log does not need."""
    if sys.stderr.isatty():
        note(line)


def _tell(finished: FinishedRun, *, as_lines: bool) -> None:
    run, end = finished.run, finished.end
    if finished.fault is not None:
        internal_error(finished.fault)
    if as_lines:
        print_json(run.to_json() | {"answer": end.answer if end is not None else None})
        return
    session_text = f"  session {run.session}" if run.session else ""
    reason = f"  {run.reason}" if run.reason else ""
    print_text(f"{run.job}  {run.status}{_missed(finished.job, run)}{session_text}{reason}")
    if end is not None and end.answer is not None:
        print_text(end.answer, exact=True)
    if run.status == "paused":
        complain(f"mlx-tools sessions resume {run.session}", kind="waits")


def _print(job_listing: JobListing) -> None:
    """Print a job for a person: one line, and another one about its last run."""
    job = job_listing.job
    if job is None:
        problem = "it was changed, or this version does not know what it says"
        print_prose(f"{job_listing.id}  damaged: {problem}; it never runs, remove it")
        return
    due_at = _local(job, job_listing.next_due) if job_listing.next_due else "-"
    gist = cut(" ".join(job.task.split()), _MAX_TASK_CHARS)
    print_row(
        f"{job.id}  {job_listing.state:<9}  {due_at}  {' '.join(job.schedule_text.split())} ", gist
    )
    last = job_listing.runs[0] if job_listing.runs else None
    if last is not None:
        hint = f": mlx-tools sessions resume {last.session}" if last.status in UNFINISHED else ""
        hint = "" if last.status == "running" else hint
        reason = f" ({last.reason})" if last.reason else ""
        session = f" in session {last.session}" if last.session else ""
        missed = _missed(job, last)
        print_prose(f"          last {last.status}{session}{missed}{reason}{hint}", " " * 10)


def _missed(job: Job, run: JobRun) -> str:
    """Return a text about a run whose time was missed, with that time."""
    return f"  missed {_local(job, run.scheduled_at)}" if run.missed else ""


def _local(job: Job, due: datetime | None) -> str:
    if due is None:
        return "-"
    return f"{due.astimezone(find_zone(job.when.zone)):%Y-%m-%d %H:%M} {job.when.zone}"


# --- running a job, in the same way as `ask`, under the job's own policy ------------------------


async def run_job(job: Job, on_start: Callable[[str], None]) -> RunEnd:
    """Give the model a job's task, in a separate session.

    A call that needs an approval pauses the run.

    Raises:
        UsageError: the job has a setting that this version does not have.
    """
    known_options = {key: value for key, value in job.options.items() if key in config.table()}
    for key in sorted(job.options.keys() - known_options):
        if not key.startswith("limits."):  # a removed limit has its default
            raise UsageError(f"this version has no setting {key}", hint="make the job anew")
    options_of_run: dict[str, Any] = {**known_options, "tools.roots": list(job.roots)}
    if any(part.local_only for part in Policy.from_json(job.policy).parts):
        options_of_run["policy.local_only"] = True  # it also applies to the model's server
    run = options.run_options(options_of_run, job.tool_choice, ",".join(job.require_tools))
    configuration = run.configuration
    registry, policy = (
        build_registry(configuration),
        job.policy_today(configuration.configured_policy()),
    )
    try:
        async with open_selected_backend(run, note) as (chosen, settings):
            nobody = PauseApprover()
            controller = build_controller(
                configuration, registry, chosen.backend, settings, nobody, policy
            )
            async with await controller.conversation() as talk:
                on_start(talk.session)
                return RunEnd.from_outcome(await talk.run(job.task))
    finally:
        await registry.aclose()


def look(store: SessionStore, session: str) -> RunInspection:
    """Return the state of a run's session, by its transcript.

    Raises:
        StorageError: the sessions cannot be read at the moment.
    """
    if store.size(session) < 0:
        return RunInspection(state="missing")
    listed = store.describe(session)
    try:
        records = store.records(session)
    except StorageError:
        raise
    except TranscriptError as error:
        return RunInspection(state="damaged", reason=str(error))
    changed = any(isinstance(record, ExecutionRecord) and record.mutates for record in records)
    status = listed.status
    is_in_doubt = bool(status.in_doubt)
    return RunInspection(
        state=status.state, reason=status.reason, was_changed=changed, in_doubt=is_in_doubt
    )
