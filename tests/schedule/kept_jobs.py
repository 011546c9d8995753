"""Jobs in a file, as tests make them and look into it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from mlx_tools.plugins.schedule.job_store import SCHEDULE, JobStore, utc_now
from mlx_tools.store.tables import SqliteTables


def open_job_store(
    path: Path,
    secret: bytes | Callable[[], bytes] = b"secret",
    now: Callable[[], datetime] = utc_now,
    wait: float = 10.0,
) -> JobStore:
    return JobStore(SqliteTables(path, SCHEDULE, wait), secret, now)


def find_job_file(store: JobStore) -> Path:
    assert isinstance(store.tables, SqliteTables)
    return store.tables.path
