"""Running a job: as `ask` would run its task, under the policy that it was made with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mlx_tools.app import config
from mlx_tools.app.wiring import (
    RunOptions,
    found,
    refuse_where_off,
    registry_of,
    session_store,
)
from mlx_tools.cli import options
from mlx_tools.cli.sessions import session_folder
from mlx_tools.controller import Controller, NobodyThere
from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.policy import Policy
from mlx_tools.toolbox.schedule import Job, RunEnd, Seen
from mlx_tools.transcript.records import ExecutionRecord


async def run_job(job: Job, began: Callable[[str], None], note: Callable[[str], None]) -> RunEnd:
    """Gives the model the task, in a session of its own. Nobody is asked: a call that needs an
    approval pauses the run."""
    async with _controller(job, note) as controller, await controller.conversation() as talk:
        began(talk.session)
        return RunEnd.of(await talk.run(job.task))


def look(session: str) -> Seen:
    """How the session of a run stands, by its transcript."""
    folder = session_folder()
    if session not in folder.ids():
        return Seen(state="missing")
    listed = folder.listed(session)
    try:
        records = folder.records(session)
    except TranscriptError as error:
        return Seen(state="damaged", reason=str(error))
    changed = any(isinstance(one, ExecutionRecord) and one.mutates for one in records)
    return Seen(state=listed.standing.state, reason=listed.standing.reason, changed=changed)


@asynccontextmanager
async def _controller(job: Job, note: Callable[[str], None]) -> AsyncIterator[Controller]:
    """A controller for a job; its backend is closed at the end. Raises `UsageError` where the job
    was made with a setting that this version does not have."""
    if unknown := sorted(set(job.options) - set(config.table())):
        raise UsageError(f"this version has no setting {unknown[0]}", hint="make the job anew")
    given: dict[str, Any] = {**job.options, "tools.roots": list(job.roots)}
    if any(part.local_only for part in Policy.from_json(job.policy).parts):
        given["policy.local_only"] = True  # it holds for where the model is, too
    configuration = options.load(given)
    run = RunOptions(
        configuration=configuration,
        tool_choice=job.tool_choice,
        require_tools=job.require_tools,
    )
    refuse_where_off(run)
    registry, standing = registry_of(configuration), configuration.standing()
    async with found(run, note) as (chosen, settings):
        yield Controller(
            chosen.backend,
            registry,
            job.policy_today(standing),
            limits=configuration.limits(),
            settings=settings,
            store=session_store(configuration),
            approver=NobodyThere(),
            standing=standing,
        )
