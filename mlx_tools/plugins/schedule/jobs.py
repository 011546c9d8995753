"""The user's jobs, and the maker of new ones for the tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.app import list_recorded_options, list_reusable_options, list_roots, session_store
from mlx_tools.plugins.schedule.job_store import SCHEDULE, JobStore
from mlx_tools.plugins.schedule.task_tool import Jobs
from mlx_tools.store import SessionStore

if TYPE_CHECKING:
    from mlx_tools.app import Configuration
    from mlx_tools.transcript import Header


def job_store(store: SessionStore) -> JobStore:
    """Return the store of jobs, which is part of that of the sessions.

    Jobs are sealed with the key of approvals.
    """
    return JobStore(store.tables(SCHEDULE), lambda: store.secret)


def make_jobs(configuration: Configuration, header: Header | None = None) -> Jobs:
    """Return the maker of jobs for ``schedule_task``.

    Args:
        configuration: the settings.
        header: the header of a session that continues. The settings of the model and the limits
            then come from it.
    """
    return Jobs(
        store=job_store(session_store(configuration)),
        configured_policy=configuration.configured_policy(),
        roots=list_roots(configuration),
        options=list_reusable_options(configuration)
        | (list_recorded_options(header) if header is not None else {}),
    )
