"""Fixtures that tests of several rooms use: the embedded model, and one real server on it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.gateway.postgres import Cluster

# No test is a measurement of time.
ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# By default the same few examples in every run; `--hypothesis-profile explore` looks for new ones.
settings.register_profile("same", ANY_MACHINE, max_examples=12, derandomize=True)
settings.register_profile("explore", ANY_MACHINE, max_examples=500)
settings.load_profile("same")

# Tests wait for thousands of files to be on the disk; in memory they are there at once.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    room = os.statvfs(MEMORY)
    if room.f_bavail * room.f_frsize > 4 << 30 and not room.f_flag & getattr(os, "ST_NOEXEC", 0):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

ENVIRON = dict(os.environ)
"""As the tests were started with; a test that sets variables of its own does not reach it."""

os.environ["MLX_TOOLS_DATA_DIR"] = str(Path(tempfile.gettempdir(), f"mlx-tools-none-{os.getpid()}"))
"""What the person who runs the tests keeps is no part of them."""

for heard in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    # `nohup` and a shell's `&` have them ignored, and what the tests start would inherit that.
    if signal.getsignal(heard) is signal.SIG_IGN:
        usual = signal.default_int_handler if heard is signal.SIGINT else signal.SIG_DFL
        signal.signal(heard, usual)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server; each test makes a database of its own in it."""
    from tests.gateway.postgres import BINARIES, Cluster

    if not BINARIES:
        pytest.skip("PostgreSQL is not installed")
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        Path(folder).chmod(0o755)  # the server is another user
        made = Cluster(Path(folder, "pg"), "fsync=off")
        yield made
        made.stop()


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The embedded model's folder; fetched into the cache where it is not there yet.

    ``MLX_TOOLS_CACHE_DIR`` names a cache to share between runs.
    """
    from mlx_tools.backends import DEFAULT_MODEL, pull_model

    return pull_model(DEFAULT_MODEL, environ=ENVIRON).path


@pytest.fixture(scope="session")
def real_server(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a stock server with the embedded model: one for all workers of a run.

    It must not be killed. A test that tries to starts a server of its own.
    """
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in ENVIRON else base
    with shared_server(real_model, folder) as url:
        yield url


@contextmanager
def shared_server(model: Path, folder: Path) -> Iterator[str]:
    """A server that all who share ``folder`` use; the process that started it stops it last."""
    from mlx_tools.backends import ServerBackend

    place = folder / "server.json"
    users = os.open(folder / "server.users", os.O_RDWR | os.O_CREAT, 0o600)
    own: ServerBackend | None = None
    try:
        fcntl.flock(users, fcntl.LOCK_SH)  # not while its owner stops it
        with locked(folder / "server.start"):
            if place.exists():
                url = str(json.loads(place.read_text()))
            else:
                own = ServerBackend(model, log_folder=folder, environ=ENVIRON)
                asyncio.run(own.start())
                url = own.url or ""
                place.write_text(json.dumps(url))
        yield url
    finally:
        if own is not None:
            fcntl.flock(users, fcntl.LOCK_UN)
            fcntl.flock(users, fcntl.LOCK_EX)  # once no other worker uses it
            place.unlink(missing_ok=True)
            asyncio.run(own.aclose())
        os.close(users)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock ``path``."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
