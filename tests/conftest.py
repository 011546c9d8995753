"""Fixtures that tests of several rooms use: the embedded model, and one real server on it."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.clean_environment import cache_environs, clean_environment

if TYPE_CHECKING:
    from tests.gateway.postgres import Cluster

# No test is a measurement of time.
ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# By default the same few examples in every run; `--hypothesis-profile explore` looks for new ones.
settings.register_profile("same", ANY_MACHINE, max_examples=12, derandomize=True)
settings.register_profile("explore", ANY_MACHINE, max_examples=500)
settings.load_profile("same")
# It also draws constants of the project's modules that are loaded. These differ from worker to
# worker, and so would the examples.
with suppress(ImportError):
    from hypothesis.internal.conjecture import providers

    providers.is_local_module_file = lambda path: False

# Tests wait for thousands of files to be on the disk; in memory they are there at once.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    room = os.statvfs(MEMORY)
    if room.f_bavail * room.f_frsize > 4 << 30 and not room.f_flag & getattr(os, "ST_NOEXEC", 0):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

FIRST = (
    *("tests/work/test_work.py", "tests/test_zip.py", "tests/docs/test_readme.py"),
    "tests/tools/test_mcp_client.py",
)
"""Files that take several seconds. At the end, one of them would keep one worker alone at work."""

PERSON, ENVIRON = cache_environs(clean_environment())
"""The environments of the person who runs the tests, to read a cache, and of the tests: a test that
sets variables of its own does not reach it."""

sys.dont_write_bytecode = False

for heard in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    # `nohup` and a shell's `&` have them ignored, and what the tests start would inherit that.
    if signal.getsignal(heard) is signal.SIG_IGN:
        usual = signal.default_int_handler if heard is signal.SIGINT else signal.SIG_DFL
        signal.signal(heard, usual)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--known-skips-only",
        action="store_true",
        help="fail if a test is skipped for a reason that tests/skips.txt does not list",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--known-skips-only"):
        from tests.skips import KnownSkipsOnly

        config.pluginmanager.register(KnownSkipsOnly())


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Leave the garbage collector off: what is collected stays until the end."""
    gc.disable()
    try:
        yield
    finally:
        # Nothing is frozen: hypothesis asks the collector who refers to its generators, and warns
        # of one that nothing seems to hold.
        gc.enable()
        gc.set_threshold(50_000, 20, 20)  # as in the program itself


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as heavy all tests that need a PostgreSQL server, and put the longest files first."""
    for item in items:
        if os.environ["HOME"] in item.nodeid:  # each worker has another, and all must collect alike
            raise pytest.UsageError(f"the name of a test holds a folder: {item.nodeid}")
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("heavy")
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
    verdict_folder()  # before a test sets variables


@cache
def verdict_folder() -> Path:
    """Return the folder in which the package records what a server at an address can do."""
    from mlx_tools.paths import state_dir

    return state_dir() / "verdicts"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Forget what is recorded of a server: that of a later test may have its address."""
    if verdict_folder().exists():
        shutil.rmtree(verdict_folder())


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
    """The embedded model's folder: the person's own if it is there, else fetched for the tests.

    ``MLX_TOOLS_CACHE_DIR`` names a cache to share between checkouts.
    """
    from mlx_tools.backends import DEFAULT_MODEL, find_model, pull_model

    return find_model(DEFAULT_MODEL, PERSON) or pull_model(DEFAULT_MODEL, environ=ENVIRON).path


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
