"""Goes on with a paused session: its transcript says how, the command line only what was decided.

The backend, the model, the style and the roots are those of the transcript's header, so that
nothing has to be said twice. What is configured today holds besides: where it has changed since the
session was begun it can only take power away.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

from anyio.from_thread import BlockingPortal, start_blocking_portal

from mlx_tools.app.jobs import jobs_of
from mlx_tools.app.own_output import ours
from mlx_tools.app.wiring import (
    RunOptions,
    approver_of,
    choose,
    refuse_where_off,
    registry_of,
    session_store,
)
from mlx_tools.cli import options
from mlx_tools.cli.approve import asker
from mlx_tools.cli.background import Turns
from mlx_tools.cli.failures import Interrupted
from mlx_tools.cli.output import begin_line, complain, note
from mlx_tools.cli.sessions import session_folder
from mlx_tools.cli.tools import NO_MODEL
from mlx_tools.cli.view import LiveView, tell
from mlx_tools.controller import ApprovalAnswer, Approvals, Approver, Controller, check_begun_here
from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.store.transcript import load
from mlx_tools.transcript.events import Event, Finished
from mlx_tools.transcript.records import Header, Record


def approvals_of(
    approve: Sequence[str],
    approve_all: bool,
    deny: Sequence[str],
    reason: str,
    edit: Sequence[tuple[str, str]],
) -> Approvals:
    """What the options of ``sessions resume`` say. Raises `UsageError` for what contradicts."""
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
        say(call, ApprovalAnswer(True, reason, arguments=_arguments(text)))
    if reason and not said:
        raise UsageError("--reason goes with --deny, --approve or --edit")
    return said or None


def _arguments(text: str) -> Mapping[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--edit: the arguments are no JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("--edit: the arguments are no JSON object", hint="--edit c1 '{\"x\": 1}'")
    return value


def resume_session(given: str, approvals: Approvals, *, as_json: bool) -> int:
    """Goes on with a session, by its id, the beginning of one, ``last`` or its transcript's path.

    Shows what happens and returns the exit code of how it ended.
    """
    live = ours().isatty() and not as_json
    view = LiveView(
        steps=sys.stderr if sys.stderr.isatty() else None, answer=ours() if live else None
    )
    outcome = None
    for event in _events(_path_of(given), approvals, view):
        view.show(event)
        if isinstance(event, Finished):
            outcome = event.outcome
    if outcome is None:
        raise UsageError("the run ended without an outcome")
    tell(outcome, as_json=as_json, include_outputs=False, plain=not as_json)
    return outcome.exit_code


def _path_of(given: str) -> Path:
    if os.sep in given:
        return session_store(options.load({})).path_of(given)
    folder = session_folder()
    return folder.path(folder.find(given))


def _events(path: Path, approvals: Approvals, view: LiveView) -> Iterator[Event]:
    records, header = _read(path)
    if header.backend.get("kind") == NO_MODEL:
        raise UsageError(
            "nothing waits in the session: it is a call without a model", hint="call it again"
        )
    # before anything that it says is done, such as asking the server that it names
    check_begun_here(records, session_store(options.load({})).secret)
    run = RunOptions(configuration=options.load(_as_options(header)))
    refuse_where_off(run)
    with ExitStack() as stack:
        portal: BlockingPortal = stack.enter_context(start_blocking_portal())
        turns = Turns(portal, asker(run.configuration.settings.policy.approve))
        controller = stack.enter_context(
            portal.wrap_async_context_manager(
                _reopening(
                    run,
                    header,
                    approver=approver_of(run.configuration, turns),
                    note=note,
                )
            )
        )
        conversation = stack.enter_context(closing(controller.reopen(path)))
        try:
            yield from turns.follow(lambda: conversation.stream_resumed(approvals))
        except KeyboardInterrupt:
            view.end()
            begin_line()
            complain(f"the transcript is in {path}", kind="interrupted")
            raise Interrupted from None
        finally:
            view.end()


def _read(path: Path) -> tuple[Sequence[Record], Header]:
    """The records of a session and its header, read without holding it."""
    if not path.is_file():
        raise UsageError(f"there is no transcript {path}", hint="mlx-tools sessions list")
    records = load(path)
    if not records or not isinstance(records[0], Header):
        raise TranscriptError(f"the transcript {path} holds nothing yet")
    return records, records[0]


def _as_options(header: Header) -> dict[str, str | bool | Sequence[str]]:
    """The header as options of the command line: how the model is reached, and the roots."""
    given: dict[str, str | bool | Sequence[str]] = {"tools.roots": list(header.roots)}
    kind, url = header.backend.get("kind"), header.backend.get("url")
    if isinstance(kind, str):
        given["backend.kind"] = kind
    if isinstance(url, str):
        given["backend.url"] = url
    if header.model is not None:
        given["model.name"] = header.model
    return given


@asynccontextmanager
async def _reopening(
    run: RunOptions, header: Header, *, approver: Approver, note: Callable[[str], None]
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
