"""A tool called without a model by an application: decided about as in a run, with a session of its
own that says so."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from mlx_tools.app.config import Configuration
from mlx_tools.app.jobs import approval_templates, roots_of, session_store
from mlx_tools.controller import Approver, DirectCall, call_tool
from mlx_tools.store import SessionFiles
from mlx_tools.tools import OnProgress, Registry
from mlx_tools.transcript import Header

NO_MODEL: Final = "none"
"""The backend's kind in the header of a call without a model."""


async def call_recorded(
    configuration: Configuration,
    registry: Registry,
    name: str,
    arguments: Mapping[str, Any],
    *,
    how: str,
    approver: Approver | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[DirectCall, SessionFiles]:
    """Call a tool under the policy and the limits of a configuration; see
    `mlx_tools.controller.call_tool`. ``how`` is what the header says of how it came about. Raises
    `StorageError` where nothing can be written down."""
    store, policy = session_store(configuration), configuration.policy()
    files = store.create()
    try:
        files.transcript.append(
            Header(
                session=files.session,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                backend={"kind": NO_MODEL, "how": how},
                roots=configuration.settings.tools.roots,
                policy=policy.to_json(),
                policy_hash=policy.digest(),
                limits=configuration.limits().to_json(),
            )
        )
        done = await call_tool(
            registry,
            policy,
            name,
            arguments,
            limits=configuration.limits(),
            approver=approver,
            record=files.transcript.append,
            session=files.session,
            secret=store.secret,
            undo=files.undo,
            on_progress=on_progress,
            templates=approval_templates(store),
            roots=roots_of(configuration),
        )
    finally:
        files.transcript.close()
    return done, files
