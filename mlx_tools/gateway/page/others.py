"""Sessions that are no runs of a gateway, as those of `ask`, `chat` and jobs: a person decides
about their calls at the page too. Each goes on in this process with what it was begun with: its
model's server, its folders, its policy under what is configured here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import anyio

from mlx_tools.app import KeptSession, RunOptions, as_options, header_of, refuse_where_off
from mlx_tools.controller import AlwaysApprove, ApprovalAnswer, ApprovalRequest, NobodyThere
from mlx_tools.errors import MlxToolsError, UsageError
from mlx_tools.gateway.request import ApiError
from mlx_tools.gateway.run_work import requests_of
from mlx_tools.gateway.runs import PATIENCE, Runs, is_taken
from mlx_tools.gateway.turn import as_api_error
from mlx_tools.policy import restriction
from mlx_tools.transcript import Event, Record


class OtherSessions:
    """The sessions beside the ``runs`` of a gateway. ``owner`` is whose turn it is that takes one
    of its places."""

    def __init__(self, runs: Runs, owner: str) -> None:
        self._runs, self._owner = runs, owner
        self._acts: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    async def waiting(
        self, session: str, edited: Mapping[str, Mapping[str, Any]] | None = None
    ) -> list[tuple[ApprovalRequest, bool]]:
        """As `Runs.waiting`."""
        async with self._acting(session):
            try:
                kept = await self._kept(session)
                async with kept.looked_at() as conversation:
                    return await requests_of(conversation, edited)
            except UsageError:
                raise
            except MlxToolsError as error:
                raise as_api_error(error) from error

    async def go_on(self, session: str, answers: Mapping[str, ApprovalAnswer] | None) -> None:
        """Have a session that waits go on with these decisions, or ask anew about what waits; wait
        until that is written down. Raises `ApiError` where it is refused."""
        async with self._acting(session):
            taken, refused = anyio.Event(), list[MlxToolsError]()
            task = asyncio.create_task(self._do(session, answers, taken, refused))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            with anyio.move_on_after(PATIENCE):
                await taken.wait()
        for error in refused:
            raise ApiError(409, "conflict", str(error)) from error

    async def _do(
        self,
        session: str,
        answers: Mapping[str, ApprovalAnswer] | None,
        taken: anyio.Event,
        refused: list[MlxToolsError],
    ) -> None:
        try:
            kept = await self._kept(session)
            always = kept.run.configuration.settings.policy.approve == "always"
            async with (
                self._runs.admission.slot(self._owner),
                kept.opened(AlwaysApprove() if always else NobodyThere()) as controller,
                await kept.begin(controller) as one,
            ):
                records = one.files.transcript
                try:
                    await one.resume(answers, partial(_tell, records, len(records), taken))
                except UsageError:
                    await one.settle()  # it waits again
                    raise
        except MlxToolsError as error:
            refused.append(error)
        finally:
            taken.set()

    def _acting(self, session: str) -> anyio.Lock:
        return self._acts.setdefault(session, anyio.Lock())

    async def _kept(self, session: str) -> KeptSession:
        store, configuration = self._runs.sessions, self._runs.configuration
        records = await anyio.to_thread.run_sync(store.records, session)
        header = header_of(session, records, store.secret)
        own = configuration.settings.policy
        rules = {name: True for name in ("local_only", "dry_run") if getattr(own, name)}
        run = RunOptions(configuration=configuration.over(as_options(header)), serves=True)
        refuse_where_off(run.configuration, run.tool_choice)
        within = restriction(("*",), **rules) if rules else None
        return KeptSession(session, records, header, run, lambda text: None, within)


def _tell(records: Sequence[Record], began: int, taken: anyio.Event, event: Event) -> None:
    if is_taken(records[began:]):
        taken.set()
