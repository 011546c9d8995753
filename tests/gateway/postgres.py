"""A PostgreSQL server of Debian's package for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from tests.processes import children
from tests.waiting import wait_until

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
"""The folders of the versions that are installed, empty where none is."""


class Cluster:
    """A server on a socket in ``folder``, which nobody else reaches. `kill` ends it as ``kill -9``
    does, `start` begins it again."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder, self._settings, self._numbers = folder, settings, count(1)
        self.dsn = self.address("postgres")
        folder.mkdir(mode=0o755)
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:  # it does not run as root
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        made = ("initdb", "-D", "data", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
        assert self._begin(*made, "--locale=C", stdout=subprocess.DEVNULL).wait() == 0
        self.start()

    def address(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def new(self) -> str:
        """The address of a new, empty database."""
        name = f"test{next(self._numbers)}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.address(name)

    def _begin(self, name: str, *arguments: str, **more: Any) -> subprocess.Popen[bytes]:
        command = [str(BINARIES[-1] / name), *arguments]
        return subprocess.Popen(command, cwd=self.folder, **self._user, **more)

    def start(self) -> None:
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        options = ("-k", str(self.folder), "-c", "listen_addresses=", "-c", "max_connections=200")
        settings = [word for setting in self._settings for word in ("-c", setting)]
        words = ("postgres", "-D", "data", *options, *settings)
        self._server = self._begin(*words, stderr=subprocess.DEVNULL)

        def answers() -> bool:
            if self._server.poll() is not None:  # those of one that was killed are not gone yet
                self._server = self._begin(*words, stderr=subprocess.DEVNULL)
            with suppress(psycopg.OperationalError):
                psycopg.connect(self.dsn).close()
                return True
            return False

        wait_until(answers, "PostgreSQL did not start")

    def kill(self) -> None:
        for pid in (self._server.pid, *children(self._server.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._server.wait()

    def stop(self) -> None:
        """End it for good: what it holds is thrown away, so it need not be written down."""
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
