"""Keeps a run as a golden transcript: one that is made for it, or a past session."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from mlx_tools.app.wiring import (
    RunOptions,
    approver_of,
    opened,
    refuse_where_off,
    registry_of,
    session_store,
)
from mlx_tools.backends import ModelFiles, find_model, read_model_files
from mlx_tools.cli import golden_check, inputs, options
from mlx_tools.cli.approve import asker
from mlx_tools.cli.background import Turns
from mlx_tools.cli.output import complain, note, print_json
from mlx_tools.cli.sessions import session_folder
from mlx_tools.cli.view import LiveView
from mlx_tools.errors import EXIT_OK, UsageError
from mlx_tools.golden import (
    CannotSettle,
    Golden,
    expectations,
    make_golden,
    read_session,
    write_golden,
)
from mlx_tools.transcript.events import Finished
from mlx_tools.transcript.records import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """How a run is kept. ``expect`` is what a live check wants, as it was typed."""

    name: str
    into: Path
    about: str
    features: tuple[str, ...]
    expect: str | None
    volatile: tuple[str, ...]
    force: bool

    @property
    def path(self) -> Path:
        """The file. Raises `UsageError` for a name that leads elsewhere, or is taken."""
        parts = self.name.removesuffix(".jsonl").split("/")
        if not self.name.isprintable() or any(not p or p.startswith((".", "~")) for p in parts):
            raise UsageError(
                f"{self.name!r} cannot name a transcript", hint="use letters, digits, - and _"
            )
        path = self.into.joinpath(*parts[:-1], f"{parts[-1]}.jsonl")
        if path.exists() and not self.force:
            raise UsageError(f"{path} is there already", hint="another name, or --force")
        return path

    def wanted(self) -> Sequence[Any]:
        """The expectations. Raises `UsageError`."""
        text = self.expect
        if text is None:
            return ()
        try:
            if text.startswith("@"):
                text = Path(text[1:]).read_text("utf-8")
            value = json.loads(text)
        except OSError as error:
            raise UsageError(f"--expect: {text[1:]}: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise UsageError(
                "--expect: this is no JSON", hint='such as {"answer": {"contains": "391"}}'
            ) from None
        return value if isinstance(value, list) else [value]


def keep(
    kept: RecordOptions,
    questions: Sequence[str],
    session: str | None,
    options_given: options.Options,
    *,
    as_json: bool,
) -> int:
    """Asks, or takes the session, writes the transcript and says what came of the questions."""
    target, wanted = kept.path, kept.wanted()
    if bool(questions) == bool(session):
        raise UsageError("give the questions to ask, or --session ID", hint="one of the two")
    run = RunOptions(configuration=options.load(options_given))
    refuse_where_off(run)
    if session is None:
        path = _asked(run, [inputs.as_question(question) for question in questions])
    else:
        path = Path(session)
        if not path.is_file():
            path = session_folder().path(session_folder().find(session))
    try:
        golden = _golden(path, run, kept, wanted)
    except CannotSettle as error:
        golden_check.complain_of(error.differences)
        raise
    expectations(golden.golden.expect, golden.golden.outcomes)
    write_golden(golden, target)
    _tell(golden, target, as_json=as_json)
    return EXIT_OK


def _asked(run: RunOptions, questions: Sequence[str]) -> Path:
    """Asks questions in one session, and returns the path of its transcript."""
    view = LiveView(steps=sys.stderr if sys.stderr.isatty() else None, answer=None)
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        turns = Turns(portal, asker(run.configuration.settings.policy.approve))
        context = opened(
            run,
            approver=approver_of(run.configuration, turns),
            note=note,
        )
        controller = stack.enter_context(portal.wrap_async_context_manager(context))
        conversation = stack.enter_context(closing(portal.call(controller.conversation)))
        paused = False
        for question in questions:
            try:
                for event in turns.run(conversation, question):
                    view.show(event)
                    paused = isinstance(event, Finished) and event.outcome.status == "paused"
            finally:
                view.end()
            if paused:
                break
        path = conversation.transcript
    if path is None:
        raise UsageError("the session was kept nowhere")
    return Path(path)


def _golden(path: Path, run: RunOptions, kept: RecordOptions, wanted: Sequence[Any]) -> Golden:
    """The golden transcript of the session at ``path``."""
    session = read_session(path)
    return make_golden(
        session,
        name=kept.name,
        registry=registry_of(run.configuration),
        about=kept.about,
        features=kept.features,
        expect=wanted,
        volatile=kept.volatile,
        files=_files(session.header),
        artifact=session_store(run.configuration).artifacts(path.parent).get,
    )


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
