"""Goes on with a paused session: its transcript says how, the command line only what was decided.

The backend, the model, the style and the roots are those of the transcript's header, so that
nothing has to be said twice. What is configured today holds besides: where it has changed since the
session was begun it can only take power away.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from mlx_tools.app import RunOptions, choose, jobs_of, registry_of, session_store
from mlx_tools.cli import options
from mlx_tools.cli.background import answer
from mlx_tools.cli.inputs import parse_object
from mlx_tools.cli.output import note
from mlx_tools.cli.sessions import session_folder
from mlx_tools.cli.tools import NO_MODEL
from mlx_tools.cli.view import LiveView, tell
from mlx_tools.controller import (
    ApprovalAnswer,
    Approvals,
    Approver,
    Controller,
    check_begun_here,
)
from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.store import load
from mlx_tools.transcript import Header, Record


def approvals_of(
    approve: Sequence[str],
    approve_all: bool,
    deny: Sequence[str],
    reason: str,
    edit: Sequence[tuple[str, str]],
) -> Approvals:
    """Return what ``sessions resume`` was told. Raises `UsageError` for what contradicts."""
    if approve_all and (approve or deny or edit):
        raise UsageError("--approve-all goes with no other decision")
    if approve_all:
        return True
    said: dict[str, ApprovalAnswer] = {}

    def say(call: str, answer: ApprovalAnswer) -> None:
        if call in said:
            raise UsageError(f"{call} is decided about twice")
        said[call] = answer

    for text in approve:
        call, _, digest = text.partition("=")
        say(call, ApprovalAnswer(True, reason, digest=digest))
    for call in deny:
        say(call, ApprovalAnswer(False, reason or "the user said no"))
    for call, text in edit:
        value = parse_object(text, "--edit: the arguments", "--edit c1 '{\"x\": 1}'")
        say(call, ApprovalAnswer(True, reason, arguments=value))
    if reason and not said:
        raise UsageError("--reason goes with --deny, --approve or --edit")
    return said or None


def resume_session(given: str, approvals: Approvals, *, as_json: bool) -> int:
    """Goes on with a session, by its id, the beginning of one, ``last`` or its transcript's path.

    Shows what happens and returns the exit code of how it ended.
    """
    path = _path_of(given)
    records, header = _read(path)
    if header.backend.get("kind") == NO_MODEL:
        raise UsageError(
            "nothing waits in the session: it is a call without a model", hint="call it again"
        )
    # before anything that it says is done, such as asking the server that it names
    check_begun_here(records, session_store(options.load({})).secret)
    run = options.run_options(_as_options(header))

    outcome = answer(
        run,
        lambda approver: _reopening(run, header, approver),
        lambda controller: controller.reopen(path),
        lambda conversation: conversation.stream_resumed(approvals),
        LiveView.here(answer=not as_json),
    )
    tell(outcome, as_json=as_json, include_outputs=False, plain=not as_json)
    return outcome.exit_code


def _path_of(given: str) -> Path:
    if os.sep in given:
        return session_store(options.load({})).path_of(given)
    folder = session_folder()
    return folder.path(folder.find(given))


def _read(path: Path) -> tuple[Sequence[Record], Header]:
    """The records of a session and its header, read without holding it."""
    if not path.is_file():
        raise UsageError(f"there is no transcript {path}", hint="mlx-tools sessions list")
    records = load(path)
    if not records or not isinstance(records[0], Header):
        raise TranscriptError(f"the transcript {path} holds nothing yet")
    return records, records[0]


def _as_options(header: Header) -> options.Options:
    """The header as options of the command line: how the model is reached, and the roots."""
    said = {
        "backend.kind": header.backend.get("kind"),
        "backend.url": header.backend.get("url"),
        "model.name": header.model,
    }
    named = {key: value for key, value in said.items() if isinstance(value, str)}
    return {"tools.roots": list(header.roots), **named}


@asynccontextmanager
async def _reopening(
    run: RunOptions, header: Header, approver: Approver
) -> AsyncIterator[Controller]:
    """A controller for a session that was begun before; its backend is closed at the end."""
    configuration = run.configuration
    registry = registry_of(configuration, jobs_of(configuration, header))
    chosen = await choose(run, note)
    try:
        chosen.free_markers(header.style)
        yield Controller(
            chosen.backend,
            registry,
            store=session_store(configuration),
            approver=approver,
            standing=configuration.standing(),
        )
    finally:
        await chosen.backend.aclose()
