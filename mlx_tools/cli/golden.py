"""`mlx-tools golden`: records runs, replays them, and checks them on real models."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from mlx_tools.app import (
    Configuration,
    RunOptions,
    Share,
    build_registry,
    load_registry,
    open_selected_backend,
    session_store,
)
from mlx_tools.backends import (
    STRATEGIES,
    STYLES,
    StrategyChoice,
    StyleChoice,
    find_model,
    read_model_files,
)
from mlx_tools.cli import inputs, options
from mlx_tools.cli.background import NewSession, answer
from mlx_tools.cli.options import argument, option
from mlx_tools.cli.output import (
    complain,
    count_noun,
    escape_for_terminal,
    note,
    print_json,
    print_text,
    progress_counter,
)
from mlx_tools.cli.view import LiveView
from mlx_tools.controller import Conversation
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, TranscriptError, UsageError
from mlx_tools.golden import (
    ROOMS,
    CannotSettle,
    Difference,
    Golden,
    GoldenCheck,
    SharedDifference,
    check_live,
    difference_lines,
    expectations,
    export_lora,
    find_golden,
    make_golden,
    read_golden,
    replay,
    replay_file,
    settle,
    share_differences,
    write_golden,
    write_report,
)
from mlx_tools.messages import replace
from mlx_tools.paths import file_exists, folder_exists
from mlx_tools.store import FORMAT_VERSION
from mlx_tools.tools import Registry
from mlx_tools.transcript import Event, Finished

app = typer.Typer(add_completion=False)

FOLDER: Final = Path("golden_transcripts")
"""The folder of transcripts if none is named."""

LORA: Final = "mlx-lora"
"""The form of training data for mlx_lm.lora."""

_MAX_DIFFERENCES: Final = 24
"""Differences that are printed: some four screens. ``--json`` and ``--report`` have them all."""

_MAX_NAMES: Final = 6
"""Transcripts of a difference that are named: two rows of a terminal."""

_DIGESTS_ONLY: Final = "nothing that it says; the digests of the words become today's"

_INTERVALS: Final = (
    "in brackets: the share that many more runs may come to, with 95 % confidence (Wilson); more "
    "runs (--samples) narrow it"
)

Paths = Annotated[
    list[Path] | None, argument("PATH…", f"Transcripts, or folders of them; without any {FOLDER}.")
]


@app.command()
@options.with_settings("backend.url", "tools.functions")
def run(
    paths: Paths = None,
    live: Annotated[bool, option("--live", "Ask the questions of a model.")] = False,
    samples: Annotated[int, option("--samples N", "How often each is asked.", min=1)] = 1,
    models: Annotated[str, option("--models A,B", "Several models, side by side.")] = "",
    style: Annotated[
        str, option("--style A,B", "Prompt styles, side by side.", show_default="as recorded")
    ] = "",
    strategy: Annotated[str, option("--strategy A,B", "Strategies, side by side.")] = "",
    report: Annotated[Path | None, option("--report FILE", "Write a report as HTML.")] = None,
    as_json: options.AsJsonLines = False,
    *,
    options_given: options.Options,
) -> int:
    """Replay transcripts with today's code, or ask them of a model (--live)."""
    if not live and (models or style or strategy or samples > 1):
        raise UsageError("a replay asks no model", hint="--live does")
    files = find_golden(paths or [FOLDER])

    def tell(check: GoldenCheck) -> None:
        if as_json:
            print_json(check.to_json())
        elif live and not check.passed:
            _show_check(check)

    if live:
        styles = options.parse_choices("--style", style, STYLES) if style else (None,)
        strategies = (
            options.parse_choices("--strategy", strategy, STRATEGIES) if strategy else (None,)
        )
        cells = list(product(styles, strategies))
        run_choice = options.run_options(options_given)
        goldens = [read_golden(path) for path in files]
        model_names = options.names(models) or (None,)
        checks = inputs.run_loop(
            _check_live, goldens, run_choice, model_names, cells, samples, tell
        )
    else:
        checks, registry = [], _load_tools(options_given)
        with progress_counter("replaying", len(files)) as step:
            for path in files:
                check = replay_file(path, with_records=report is not None, registry=registry)
                checks.append(check)
                tell(check)
                step()
    if report is not None:
        write_report(checks, report)
    passed = sum(passed_check.passed for passed_check in checks)
    if as_json:
        print_json({"checks": len(checks), "passed": passed})
    else:
        if not live:
            _show_replays(checks)
        _show_sums(checks)
    _note_missing_tools(checks)
    return EXIT_OK if passed == len(checks) else EXIT_STOPPED


async def _check_live(
    goldens: Sequence[Golden],
    run: RunOptions,
    models: Sequence[str | None],
    ways: Sequence[tuple[str | None, str | None]],
    samples: int,
    tell: Callable[[GoldenCheck], None],
) -> list[GoldenCheck]:
    """Ask all questions, cell by cell.

    Every model in each of the ``ways`` (a style and a strategy).

    None means the setting; for a style it means the recorded one.
    """
    checks: list[GoldenCheck] = []
    with progress_counter("asking", len(goldens) * len(models) * len(ways)) as step:
        for model in models:
            options_of_model = run if model is None else replace(run, model=model)
            async with open_selected_backend(options_of_model, note) as (selected, settings):
                for (style, strategy), golden in product(ways, goldens):
                    cell_settings = replace(
                        settings,
                        style=cast(StyleChoice, style or "auto"),
                        strategy=cast(StrategyChoice, strategy or settings.strategy),
                    )
                    check = await check_live(
                        golden, selected.backend, settings=cell_settings, samples=samples
                    )
                    checks.append(check)
                    tell(check)
                    step()
    return checks


def _load_tools(options_given: options.Options) -> Registry:
    """Return the tools that are here today, with which recorded ones are compared."""
    return load_registry(options.run_options(options_given).configuration)


def _note_missing_tools(checks: Sequence[GoldenCheck]) -> None:
    """Note tools whose definitions were not compared, since they are not here."""
    names = list(dict.fromkeys(name for check in checks for name in check.missing_tools))
    if names:
        listed = ", ".join(names[:_MAX_NAMES]) + (" …" if len(names) > _MAX_NAMES else "")
        note(f"not here, so not compared: {listed} (--functions FILE.py adds a file of functions)")


@app.command()
@options.with_settings("tools.functions")
def accept(paths: Paths = None, yes: options.Yes = False, *, options_given: options.Options) -> int:
    """Bring transcripts up to date: shows what changes, asks, and writes.

    Exit code 1 if a transcript is damaged, or if its recording does not suffice: it is reported and
    left as it is.
    """
    found, code = [], EXIT_OK
    changes: list[tuple[str, str]] = []
    differences: list[tuple[str, Difference]] = []
    registry = _load_tools(options_given)
    for path in find_golden(paths or [FOLDER]):
        try:
            golden = read_golden(path)
            differing = replay(golden, registry=registry).differences
            now = settle(golden, registry=registry).now
        except TranscriptError as error:
            said = str(error)
            complain(said if said.startswith(str(path)) else f"{path}: {said}")
            code = EXIT_STOPPED
            continue
        if not differing and now.all == golden.all:
            continue
        found.append((now, path))
        version = golden.header.version
        if version != FORMAT_VERSION:
            changes.append((f"format {version} becomes {FORMAT_VERSION}", str(path)))
        elif not differing:
            changes.append((_DIGESTS_ONLY, str(path)))
        differences += [(str(path), difference) for difference in differing]
    for change in dict.fromkeys(change for change, _ in changes):
        print_text(change, colour="bold")
        _show_names([path for other, path in changes if other == change])
    _show_shared(share_differences(differences))
    if not found:
        note("nothing to accept" if code == EXIT_OK else "nothing was written")
    elif inputs.confirm(
        f"Write {len(found)} of them?",
        yes,
        warning="nothing was written",
        no_terminal_hint=f"{len(found)} would be written, and ",
        hint="--yes writes them",
    ):
        for now, path in found:
            write_golden(now, path)
        complain(f"{len(found)} written", kind="done")
    return code


@app.command()
@options.with_settings("tools.functions")
def report(
    paths: Paths = None,
    output_file: Annotated[Path, option("--out FILE", "Where the report goes.")] = Path(
        "golden-report.html"
    ),
    *,
    options_given: options.Options,
) -> None:
    """Replay transcripts, and write a report of them as one HTML file."""
    files, registry = find_golden(paths or [FOLDER]), _load_tools(options_given)
    checks = [replay_file(path, with_records=True, registry=registry) for path in files]
    write_report(checks, output_file)
    _note_missing_tools(checks)
    complain(str(output_file), kind="report")


@app.command()
def export(
    folder: Annotated[Path, argument("DIR", "Where the files go; none of them may be there.")],
    paths: Paths = None,
    format: Annotated[  # noqa: A002
        str, option(f"--format {LORA}", "The form: for mlx_lm.lora.")
    ] = LORA,
) -> None:
    """Write recorded runs as training data for a model."""
    if format != LORA:
        raise UsageError(f"--format: {format!r} is not allowed", hint=f"allowed: {LORA}")
    result = export_lora(map(read_golden, find_golden(paths or [FOLDER])), folder)
    text = (
        f"{count_noun(result.train, 'completion')} to train with, {result.valid} to validate with"
    )
    complain(f"{text}, {result.left_out} left out, in {folder}", kind="done")


# --- recording ----------------------------------------------------------------------------------


@app.command()
@options.with_settings(
    *("backend.url", "model.name", "policy.allow", "tools.roots", "tools.functions"),
    "policy.approve",
)
def record(
    name: Annotated[str, argument("NAME", "What the transcript is called.")],
    questions: Annotated[
        list[str] | None, argument("QUESTION", "Asked one after the other.")
    ] = None,
    session: Annotated[
        str, option("--session ID", "Ask nothing: keep this session (its id, last, a path).")
    ] = "",
    folder: Annotated[Path, option("--into DIR", "The folder that it is kept in.")] = FOLDER,
    about: Annotated[str, option("--about TEXT", "What it shows, in a sentence.")] = "",
    expect: Annotated[
        str,
        option(
            "--expect JSON",
            "What a live check wants: an object a question, or a list; @FILE reads it.",
        ),
    ] = "",
    *,
    options_given: options.Options,
) -> None:
    """Ask questions, or take a past session, and keep the run."""
    target, wanted = _target(folder, name), _expected(expect)
    if bool(questions) == bool(session):
        raise UsageError("give the questions to ask, or --session ID", hint="one of the two")
    run = options.run_options(options_given)
    if questions:
        expectations(wanted, [{}] * len(questions))  # an error comes before a model is asked
        session = _ask_questions(run, [inputs.as_question(question) for question in questions])
    try:
        golden = _load_golden(
            session, target, run.configuration, name=name, about=about, expect=wanted
        )
    except CannotSettle as error:
        for line in difference_lines(error.differences):
            print(escape_for_terminal(line), file=sys.stderr)
        raise
    for outcome in golden.golden.outcomes:
        calls = ", ".join(call["name"] for call in outcome.get("calls", ()))
        said = outcome.get("answer") or outcome.get("reason") or "a call waits for an approval"
        complain(f"{said}{f' (called {calls})' if calls else ''}", kind=outcome["status"])
    complain(str(target), kind="kept")
    _warn_if_unexpected(golden)


def _warn_if_unexpected(golden: Golden) -> None:
    """Note the expectations that the recorded run does not meet."""
    outcomes = golden.golden.outcomes
    wanted = expectations(golden.golden.expect, outcomes)
    pairs = zip(wanted, outcomes, strict=True)
    if differences := [row for one, outcome in pairs for row in one.differences(outcome)]:
        for line in difference_lines(differences):
            print(escape_for_terminal(line), file=sys.stderr)
        note("this run is not what --expect wants: correct that, or delete it and record it again")


def keep_session(configuration: Configuration, session: str, name: str) -> Path:
    """Store a session of the user as a golden transcript, and return its path.

    It goes where `record` puts one.

    Raises:
        MlxToolsError: it cannot be stored.
    """
    target = _target(FOLDER, name).absolute()
    _load_golden(session_store(configuration).find(session), target, configuration, name=name)
    return target


def _load_golden(
    session: str,
    target: Path,
    configuration: Configuration,
    *,
    name: str,
    about: str = "",
    expect: Sequence[Any] = (),
) -> Golden:
    """Make a golden transcript of a session, found by its id, ``last`` or a path."""
    store = session_store(configuration)
    is_path = file_exists(session) and not folder_exists(session)
    files = store.read(Path(session) if is_path else store.find(session))
    kept = Golden.from_records(files.transcript)
    # those of the model that it was made with, where they are on this machine
    folder = find_model(kept.header.model) if kept.header.model else None
    form = kept.header.chat_format.get("name")
    golden = make_golden(
        kept,
        name=name,
        registry=build_registry(configuration),
        about=about,
        expect=expect,
        files=None if folder is None else read_model_files(folder, form),
        artifact=files.artifacts.get if files.artifacts is not None else lambda key: None,
    )
    expectations(golden.golden.expect, golden.golden.outcomes)
    write_golden(golden, target)
    return golden


def _target(folder: Path, name: str) -> Path:
    """Return the path of a new transcript.

    Raises `UsageError` if the name is taken, or leads out of the folder.
    """
    parts = name.removesuffix(".jsonl").split("/")
    if not name.isprintable() or any(not p or p.startswith((".", "~")) for p in parts):
        raise UsageError(f"{name!r} cannot name a transcript", hint="use letters, digits, - and _")
    path = folder.joinpath(*parts[:-1], f"{parts[-1]}.jsonl")
    if path.exists():
        raise UsageError(f"{path} is there already", hint="give another name, or delete it")
    return path


def _expected(text: str) -> Sequence[Any]:
    """Return the typed expectations of a live check. Raises `UsageError`."""
    if not text:
        return ()
    if text.startswith("@"):
        text = inputs.read_text(Path(text[1:]))
    value = inputs.parse_json(text, "--expect", 'such as {"answer": {"contains": "391"}}')
    return value if isinstance(value, list) else [value]


def _ask_questions(run: RunOptions, questions: Sequence[str]) -> str:
    """Ask questions in one session, until one waits for an approval; return its id."""

    async def asking(conversation: Conversation) -> AsyncGenerator[Event]:
        for question in questions:
            async for event in conversation.stream(question):
                yield event
            if isinstance(event, Finished) and event.outcome.status == "paused":
                return

    return answer(NewSession(run), asking, LiveView.for_process(answer=False)).session


# --- in words -----------------------------------------------------------------------------------


def _show_check(check: GoldenCheck) -> None:
    """Print a check that failed, with its differences."""
    live = check.mode == "live"
    of = f"  {check.cell.label}  {check.share.hits}/{check.share.total}" if live else ""
    print_text(f"FAIL  {check.name}{of}", colour="red")
    for number, sample in enumerate(check.samples, start=1):
        if sample.passed:
            continue
        if len(check.samples) > 1:
            print_text(f"  sample {number}", colour="dim")
        if sample.error:
            print_text(f"  {sample.error}")
        _show_differences(sample.differences)


def _show_replays(checks: Sequence[GoldenCheck]) -> None:
    """Print the errors of replays, and each difference once for all transcripts."""
    for check in checks:
        for sample in check.samples:
            if sample.error:
                print_text(f"FAIL  {check.name}", colour="red")
                print_text(f"  {sample.error}")
    _show_shared(
        share_differences(
            (check.path or check.name, difference)
            for check in checks
            for sample in check.samples
            for difference in sample.differences
        )
    )


def _show_shared(shared: Sequence[SharedDifference]) -> None:
    """Print differences with the transcripts that have them."""
    for row in shared[:_MAX_DIFFERENCES]:
        _show_differences([row.first], len(row.names) == 1)
        _show_names(row.names)
    if len(shared) > _MAX_DIFFERENCES:
        left = len(shared) - _MAX_DIFFERENCES
        rest = f"and {left} more differences; golden run --json prints them all"
        print_text(rest)


def _show_names(names: Sequence[str]) -> None:
    """Print the transcripts of a difference, the first few by name."""
    shown = ", ".join(names[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    count = f" {len(names):,} transcripts:" if len(names) > 1 else ""
    print_text(f"  in{count} {shown}{more}", colour="dim")


def _show_differences(differences: Sequence[Difference], with_place: bool = True) -> None:
    """Print the first few differences with their diffs, in colours."""
    if not with_place:  # the difference is that of the first transcript only
        differences = [replace(difference, location="") for difference in differences]
    for line in difference_lines(differences):
        colour = {"  -": "red", "  +": "green"}.get(line[:3], "" if line[:1] == " " else "bold")
        print_text(f"  {line}", colour=colour)


def _show_sums(checks: Sequence[GoldenCheck]) -> None:
    """Print how many passed, by cell, and the causes of the others."""
    is_live = any(check.mode == "live" for check in checks)
    for cell in dict.fromkeys(check.cell for check in checks) if is_live else ():
        shares = [check.share for check in checks if check.cell == cell]
        hits, total = sum(share.hits for share in shares), sum(share.total for share in shares)
        low, high = Share(hits, total).interval
        percent = f"{100 * hits / total:.0f} %" if total else "-"
        span = f"{100 * low:.0f} to {100 * high:.0f} %"
        print_text(f"{cell.label}: {hits} of {total} runs passed, {percent} ({span})")
    if is_live:
        print_text(_INTERVALS, colour="dim")
    passed = sum(check.passed for check in checks)
    rooms = Counter(room for check in checks for room in check.rooms)
    errors = sum(any(sample.error for sample in check.samples) for check in checks)
    parts = [f"{room} {rooms[room]}" for room in ROOMS if rooms[room]]
    parts += [f"unreadable {errors}"] if errors else []
    tail = f"; failed: {', '.join(parts)}" if parts else ""
    colour = "green" if passed == len(checks) else "red"
    print_text(f"{passed} of {len(checks)} passed{tail}", colour=colour)
