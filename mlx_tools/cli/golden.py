"""`mlx-tools golden`: records runs, replays them, and checks them on real models."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mlx_tools.app import RunOptions, opened, registry_of, session_store
from mlx_tools.backends import ModelFiles, find_model, read_model_files
from mlx_tools.cli import golden_check, inputs, options
from mlx_tools.cli.background import answering
from mlx_tools.cli.golden_check import Paths, differences, show
from mlx_tools.cli.options import argument, option
from mlx_tools.cli.output import complain, note, print_json, shown
from mlx_tools.cli.sessions import session_folder
from mlx_tools.cli.view import LiveView
from mlx_tools.controller import Conversation
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError
from mlx_tools.golden import (
    CannotSettle,
    Golden,
    expectations,
    find_golden,
    make_golden,
    read_golden,
    read_results,
    read_session,
    replay,
    replay_files,
    settled,
    write_golden,
    write_report,
)
from mlx_tools.store import FORMAT_VERSION
from mlx_tools.transcript import Event, Finished, Header

app = typer.Typer(add_completion=False)
app.command()(golden_check.run)

FOLDER: Final = Path("golden_transcripts")
_WRITING: Final = tuple(key for key in options.WRITING if key != "limits.max_tokens")


@app.command()
def accept(
    paths: Paths,
    yes: options.Yes = False,
    dry_run: Annotated[
        bool, option("--dry-run", "Show what would change, and write nothing.")
    ] = False,
    as_json: options.AsJsonLines = False,
) -> int:
    """Bring transcripts up to date: shows what changes, asks, and writes.

    Exit code 1 where what was recorded does not suffice for one, which is told of and left alone.
    """
    found, code = [], EXIT_OK
    for path in find_golden(paths):
        golden = read_golden(path)
        try:
            differing, now = replay(golden).differences, settled(golden).now
        except CannotSettle as error:
            complain(f"{path}: {error}")
            code = EXIT_STOPPED
            continue
        if not differing and now.all == golden.all:
            continue
        found.append((now, path))
        version = golden.header.version
        if as_json:
            told = [difference.to_json() for difference in differing]
            names = {"name": golden.name, "path": str(path)}
            print_json(names | {"from_version": version, "differences": told})
            continue
        show([("bold", str(path))])
        if version != FORMAT_VERSION:
            show([("", f"  format {version} becomes {FORMAT_VERSION}")])
        elif not differing:
            show([("", "  nothing that it says; the digests of the words become today's")])
        show(differences(differing))
    if not found:
        note("nothing to accept")
    elif dry_run:
        complain(f"{len(found)} would be written", kind="dry run")
    elif not yes and not inputs.agreed(
        f"Write {len(found)} of them?",
        f"{len(found)} would be written, and ",
        "--yes writes them, --dry-run shows them",
    ):
        note("nothing was written")
    else:
        for now, path in found:
            write_golden(now, path)
        complain(f"{len(found)} written", kind="done")
    return code


@app.command()
def report(
    paths: Annotated[
        list[Path] | None, argument("PATH", "Transcripts, or folders of them.")
    ] = None,
    results: Annotated[
        Path | None, option("--results FILE", "What golden run --out FILE has kept.")
    ] = None,
    out: Annotated[Path, option("--out FILE", "Where the report goes.")] = Path(
        "golden-report.html"
    ),
) -> int:
    """Write a report of transcripts as one HTML file."""
    if bool(paths) == bool(results):
        raise UsageError("give transcripts, or --results FILE", hint="one of the two")
    if results is not None:
        checks = read_results(results)
    else:
        checks = list(replay_files(find_golden(paths or []), with_records=True))
    write_report(checks, out)
    complain(str(out), kind="report")
    return EXIT_OK


# --- recording ----------------------------------------------------------------------------------


@app.command()
@options.with_settings(*options.BACKEND, *_WRITING, *options.POLICY, "limits.max_iterations")
def record(
    name: Annotated[str, argument("NAME", "What the transcript is called.")],
    questions: Annotated[
        list[str] | None, argument("QUESTION", "Asked one after the other.")
    ] = None,
    session: Annotated[
        str, option("--session ID", "Ask nothing: keep this session (its id, last, a path).")
    ] = "",
    into: Annotated[Path, option("--into DIR", "The folder that it is kept in.")] = FOLDER,
    about: Annotated[str, option("--about TEXT", "What it shows, in a sentence.")] = "",
    expect: Annotated[
        str,
        option(
            "--expect JSON",
            "What a live check wants: an object a question, or a list; @FILE reads it.",
        ),
    ] = "",
    volatile: Annotated[
        str, option("--volatile A,B", "Tools that give something else each time.")
    ] = "clock",
    force: Annotated[bool, option("--force", "Write over one of this name.")] = False,
    as_json: options.AsJson = False,
    *,
    options_given: options.Options,
) -> int:
    """Ask questions, or take a past session, and keep the run."""
    target, wanted = _target(into, name, force), _expected(expect)
    if bool(questions) == bool(session):
        raise UsageError("give the questions to ask, or --session ID", hint="one of the two")
    run = options.run_options(options_given)
    if questions:
        path = _asked(run, [inputs.as_question(question) for question in questions])
    elif (path := Path(session)) and not path.is_file():
        path = session_folder().path(session_folder().find(session))
    kept = read_session(path)
    try:
        golden = make_golden(
            kept,
            name=name,
            registry=registry_of(run.configuration),
            about=about,
            expect=wanted,
            volatile=options.names(volatile),
            files=_files(kept.header),
            artifact=session_store(run.configuration).artifacts(path.parent).get,
        )
    except CannotSettle as error:
        for _, line in differences(error.differences):
            print(shown(line), file=sys.stderr)
        raise
    expectations(golden.golden.expect, golden.golden.outcomes)
    write_golden(golden, target)
    _tell(golden, target, as_json=as_json)
    return EXIT_OK


def _target(into: Path, name: str, force: bool) -> Path:
    """The file. Raises `UsageError` for a name that leads elsewhere, or is taken."""
    parts = name.removesuffix(".jsonl").split("/")
    if not name.isprintable() or any(not p or p.startswith((".", "~")) for p in parts):
        raise UsageError(f"{name!r} cannot name a transcript", hint="use letters, digits, - and _")
    path = into.joinpath(*parts[:-1], f"{parts[-1]}.jsonl")
    if path.exists() and not force:
        raise UsageError(f"{path} is there already", hint="another name, or --force")
    return path


def _expected(text: str) -> Sequence[Any]:
    """Return what a live check wants, as it was typed. Raises `UsageError`."""
    if not text:
        return ()
    try:
        value = json.loads(Path(text[1:]).read_text("utf-8") if text.startswith("@") else text)
    except OSError as error:
        raise UsageError(f"--expect: {text[1:]}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(
            "--expect: this is no JSON", hint='such as {"answer": {"contains": "391"}}'
        ) from None
    return value if isinstance(value, list) else [value]


def _asked(run: RunOptions, questions: Sequence[str]) -> Path:
    """Asks questions in one session, until one waits for an approval, and returns the path of its
    transcript."""

    async def asking(conversation: Conversation) -> AsyncGenerator[Event]:
        for question in questions:
            async for event in conversation.stream(question):
                yield event
            if isinstance(event, Finished) and event.outcome.status == "paused":
                return

    view = LiveView.here(answer=False)
    for event in answering(
        run,
        lambda approver: opened(run, approver=approver, note=note),
        lambda controller: controller.conversation(),
        asking,
        view,
    ):
        view.show(event)
    assert isinstance(event, Finished)
    assert event.outcome.transcript is not None
    return Path(event.outcome.transcript)


def _files(header: Header) -> ModelFiles | None:
    """The files of the model that a session was made with, where they are on this machine."""
    folder = find_model(header.model) if header.model else None
    return None if folder is None else read_model_files(folder, header.chat_format.get("name"))


def _tell(golden: Golden, target: Path, *, as_json: bool) -> None:
    outcomes = [dict(outcome) for outcome in golden.golden.outcomes]
    if as_json:
        print_json({"name": golden.name, "path": str(target), "outcomes": outcomes})
        return
    for outcome in outcomes:
        calls = ", ".join(call["name"] for call in outcome.get("calls", ()))
        said = outcome.get("answer") or outcome.get("reason") or ""
        complain(f"{said}{f' (called {calls})' if calls else ''}", kind=outcome["status"])
    complain(str(target), kind="kept")
