"""The sessions on the page: runs of the gateway, and those of other commands.

The gateway resumes its runs itself. A session of `ask`, `chat` or a job is resumed in this process
with its own settings: its model's server, its folders, and its policy within the policy that is
configured here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import anyio

from mlx_tools.app import RunOptions, SavedSession, find_header, make_options, require_tools_enabled
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest, ApproveAlways, PauseApprover
from mlx_tools.errors import MlxToolsError, TranscriptError, UsageError
from mlx_tools.gateway import ApiError, as_api_error
from mlx_tools.plugins.page.gateway_runs import (
    WAIT_SECONDS,
    RunRow,
    Runs,
    conflict,
    is_begun,
    list_requests,
)
from mlx_tools.policy import restriction
from mlx_tools.store import session_status
from mlx_tools.transcript import Event, Record


class PageSessions:
    """The runs of a gateway, and the other sessions of its store.

    ``owner`` is the name under which those take a place among the runs.
    """

    def __init__(self, runs: Runs, owner: str) -> None:
        self._runs, self._owner = runs, owner
        self._acts: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, session: str) -> RunRow | None:
        """Return the gateway's run that a session belongs to, None if there is none."""
        return await anyio.to_thread.run_sync(self._runs.rows.find, session)

    async def read_status(self, session: str) -> tuple[str, Sequence[Record], str]:
        """Return the status of a session, its records, and what is wrong with them.

        Raises `ApiError` if there is none.
        """
        if (row := await self.run(session)) is not None:
            return (*await self._runs.read_status(row), "")
        return await anyio.to_thread.run_sync(self._read_session, session)

    def _check_there(self, session: str) -> None:
        if not self._runs.sessions.has(session):
            raise ApiError(404, "not_found", "There is no such session, or none any more.")

    def _read_session(self, session: str) -> tuple[str, Sequence[Record], str]:
        self._check_there(session)
        store = self._runs.sessions
        try:
            records = store.records(session)
        except TranscriptError as error:
            return "damaged", (), str(error)
        try:
            with store.hold(session):
                return session_status(records).state, records, ""
        except TranscriptError:
            return "running", records, ""

    async def waiting(
        self, session: str, edited: Mapping[str, Mapping[str, Any]] | None = None
    ) -> list[tuple[ApprovalRequest, bool]]:
        """Return the calls of any session that wait, as `Runs.waiting` does."""
        if (row := await self.run(session)) is not None:
            requests: list[tuple[ApprovalRequest, bool]] = await self._runs.waiting(row, edited)
            return requests
        async with self._lock_session(session):
            try:
                saved = await self._saved_session(session)
                async with saved.open_for_reading() as conversation:
                    return await list_requests(conversation, edited)
            except UsageError:
                raise
            except MlxToolsError as error:
                raise as_api_error(error) from error

    async def waiting_within(self, session: str) -> list[ApprovalRequest]:
        """Return the calls that wait within a session's calls, none if all are hidden."""
        try:
            if (row := await self.run(session)) is not None:
                requests: list[ApprovalRequest] = await self._runs.waiting_within(row)
                return requests
            async with self._lock_session(session):
                saved = await self._saved_session(session)
                async with saved.open_for_reading() as conversation:
                    return await conversation.waiting_within()
        except MlxToolsError:
            return []

    async def resume(self, session: str, call: str, answer: ApprovalAnswer | None) -> None:
        """Resume a session that waits, by a decision, until that is recorded.

        Without a decision the page asks again about the calls that wait. Raises `ApiError` if it is
        refused.
        """
        if (row := await self.run(session)) is not None:
            if answer is None:
                await self._runs.look_again(row)
            else:
                await self._runs.decide(row, call, answer, by_person=True)
            return
        await anyio.to_thread.run_sync(self._check_there, session)
        answers = None if answer is None else {call: answer}
        async with self._lock_session(session):
            taken, refused = anyio.Event(), list[MlxToolsError]()
            task = asyncio.create_task(self._do(session, answers, taken, refused))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            with anyio.move_on_after(WAIT_SECONDS):
                await taken.wait()
        for error in refused:
            raise conflict(str(error)) from error

    async def _do(
        self,
        session: str,
        answers: Mapping[str, ApprovalAnswer] | None,
        start_event: anyio.Event,
        refusals: list[MlxToolsError],
    ) -> None:
        try:
            saved = await self._saved_session(session)
            always = saved.run.configuration.settings.policy.approve == "always"
            async with (
                self._runs.admission.slot(self._owner),
                saved.open_controller(ApproveAlways() if always else PauseApprover()) as controller,
                await saved.begin(controller) as conversation,
            ):
                records = conversation.files.transcript
                began = len(records)

                def tell(event: Event) -> None:
                    if not start_event.is_set() and is_begun(records[began:]):
                        start_event.set()

                try:
                    await conversation.resume(answers, tell)
                except UsageError:
                    await conversation.settle()  # it waits again
                    raise
        except MlxToolsError as error:
            refusals.append(error)
        finally:
            start_event.set()

    def _lock_session(self, session: str) -> anyio.Lock:
        return self._acts.setdefault(session, anyio.Lock())

    async def _saved_session(self, session: str) -> SavedSession:
        store, configuration = self._runs.sessions, self._runs.execution.configuration
        records = await anyio.to_thread.run_sync(store.records, session)
        header = find_header(session, records, store.secret)
        own = configuration.settings.policy
        rules = {name: True for name in ("local_only", "dry_run") if getattr(own, name)}
        run = RunOptions(
            configuration=configuration.with_options(make_options(header)), serves=True
        )
        require_tools_enabled(run.configuration, run.tool_choice)
        within = restriction(("*",), **rules) if rules else None
        return SavedSession(session, header, run, lambda text: None, within)
