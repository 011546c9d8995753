"""Sessions and jobs by the settings: where they are kept, and what a job is made with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

from mlx_tools.app import config
from mlx_tools.app.config import Configuration
from mlx_tools.paths import config_dir, state_dir
from mlx_tools.store import RootName, SessionStore, TemplateFile, TranscriptStore
from mlx_tools.toolbox import SCHEDULE, Jobs, JobStore
from mlx_tools.transcript import Header

_LASTING: Final = ("backend.kind", "backend.url", "model.", "limits.", "tools.cache")
"""The settings that a job keeps, where they were set to something when it was made."""


def session_store(configuration: Configuration) -> SessionStore:
    """Where sessions are kept."""
    settings = configuration.settings
    own: Any = {
        "keep": settings.artifacts.keep_days * 86_400,
        "keep_all": settings.artifacts.keep == "always",
        "watched": configuration.watched,
    }
    if settings.sessions is None:
        return TranscriptStore(state_dir() / "sessions", **own)
    from mlx_tools.store import PostgresStore

    return PostgresStore(settings.sessions, **own)


class Keyed(Protocol):
    """A store of sessions, as far as it has the key of their approvals."""

    @property
    def secret(self) -> bytes: ...


def approval_templates(store: Keyed) -> TemplateFile:
    """The user's approval templates, sealed with the key of the sessions' approvals."""
    return TemplateFile(config_dir() / "approvals.json", lambda: store.secret)


def job_store(store: SessionStore) -> JobStore:
    """The jobs beside the sessions; they are sealed with the key that approvals are."""
    return JobStore(store.tables(SCHEDULE), lambda: store.secret)


def jobs_of(configuration: Configuration, header: Header | None = None) -> Jobs:
    """Return what ``schedule_task`` uses under these settings, or in a session that goes on:
    then its ``header`` says how the model is spoken to, and the limits."""
    return Jobs(
        store=job_store(session_store(configuration)),
        standing=configuration.standing(),
        roots=roots_of(configuration),
        options=lasting(configuration) | (recorded(header) if header is not None else {}),
    )


def roots_of(configuration: Configuration) -> tuple[str, ...]:
    """The folders of file tools, so that they are the same from anywhere."""
    return tuple(RootName.parse(root).absolute() for root in configuration.settings.tools.roots)


def lasting(configuration: Configuration) -> dict[str, str]:
    """The way to the model, and the limits, as options would give them: what was
    set here holds for the job, wherever it runs."""
    found = {}
    for key, row in config.table().items():
        value: Any = configuration.values.get(key)
        if not key.startswith(_LASTING) or value is None or not configuration.is_set(key):
            continue
        if key == "model.name" and Path(value).expanduser().is_dir():
            value = str(Path(value).expanduser().resolve())
        if isinstance(value, tuple):
            value = ",".join(value)
        scale = row.setting.scale
        found[key] = str(value) if scale == 1 else f"{value / scale:.9g}"
    return found


def recorded(header: Header) -> dict[str, str]:
    """Return how a session speaks to its model, and its limits, as options would give them."""
    said: dict[str, Any] = {
        "model.strategy": header.strategy,
        "model.prompt_style": header.style,
        "model.reasoning": header.reasoning,
        "model.response_mode": header.response_mode,
        "model.temperature": header.sampling.get("temperature"),
        "model.seed": header.sampling.get("seed"),
    }
    for key, row in config.table().items():
        name = key.removeprefix("limits.")
        if name != key:
            limit = header.limits.get(name.removesuffix("_ms"))
            if limit is not None and name.endswith("_ms"):  # recorded in seconds
                limit = f"{limit * 1000 / row.setting.scale:.9g}"
            said[key] = limit
    return {key: str(value) for key, value in said.items() if value is not None}
