"""One ``mlx_lm.server`` process of ours: started, watched, stopped."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from mlx_tools.process import SUPERVISED, clean, end

LOGS_KEPT: Final = 10
_ACCESS: Final = re.compile(r'"[A-Z]+ \S+ HTTP/\d\.\d" \d{3} -\s*\Z')
_BLAS_FOLDERS: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib")

NO_OPENBLAS: Final = (
    "OpenBLAS is not installed: reading a prompt takes about ten times as long "
    "(on Debian or Ubuntu: apt install libopenblas0-pthread)"
)


class ServerProcess:
    """A server on a loopback port of its own, alive until `stop` or the end of this process.

    ``program`` is what runs: the module ``mlx_lm`` with its ``server`` command, or a script that
    takes the same options. ``log`` gets all that it prints.
    """

    def __init__(
        self,
        model: Path,
        log: Path,
        *,
        program: Sequence[str] = ("mlx_lm", "server"),
        environment: Mapping[str, str],
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        # nobody's web page has this origin; and who answers with it is the server started here,
        # not one that took the port in between
        self.origin = f"http://{secrets.token_hex(16)}.invalid"
        self.log = log
        arguments = [
            *("--model", str(model), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--allowed-origins", self.origin, "--log-level", "WARNING"),
        ]
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own script, no shell
                [*SUPERVISED, *program, *arguments],
                stdin=subprocess.PIPE,  # its lifeline: see supervise.py
                stdout=descriptor,
                stderr=descriptor,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C at the terminal is not for the server
            )
        finally:
            os.close(descriptor)

    @property
    def pid(self) -> int:
        """Its process id, which is its process group's too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def stop(self, patience: float = 5.0) -> None:
        """End it, and wait until it is gone. Calling it again does nothing."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:  # it holds Python's lock for long: end it from outside
            end(self._process)

    def tail(self, lines: int = 4) -> str:
        """The last lines of its log, on one line, fit to be shown; empty where it said nothing."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        said = [line for line in text.split("\n") if line.strip() and not _ACCESS.search(line)]
        return clean(" | ".join(line.strip() for line in said[-lines:]), 600)


def free_port() -> int:
    """A loopback port that nobody holds at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def server_environment(
    environ: Mapping[str, str], openblas: str | None, *, offline: bool = True
) -> dict[str, str]:
    """The environment for a server: ``environ``, OpenBLAS preloaded, no look-ups on the network."""
    environment = dict(environ)
    if offline:
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONUNBUFFERED": "1"}
    if openblas is not None:
        others = environment.get("LD_PRELOAD", "")
        if "openblas" not in others:
            environment["LD_PRELOAD"] = f"{others} {openblas}".strip()
    return environment


def find_openblas(platform: str = sys.platform) -> str | None:
    """OpenBLAS as the loader finds it, on Linux; None elsewhere, or where it is not installed.

    MLX's Linux build links a reference BLAS; with OpenBLAS preloaded it reads a prompt about ten
    times as fast. macOS has its own.
    """
    if not platform.startswith("linux"):
        return None
    import ctypes.util

    named = ctypes.util.find_library("openblas")
    if named is not None:
        return named
    return next((str(path) for path in _blas_files()), None)


def _blas_files() -> Iterator[Path]:
    for folder in map(Path, _BLAS_FOLDERS):
        for pattern in ("libopenblas*.so*", "*-linux-gnu/libopenblas*.so*"):
            yield from sorted(folder.glob(pattern))


def new_log(folder: Path) -> Path:
    """A name for a new log in ``folder``; the oldest logs there are removed, the last ten kept."""
    old = sorted(folder.glob("server-*.log"), key=_age)
    for path in old[: max(0, len(old) - LOGS_KEPT + 1)]:
        path.unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return folder / f"server-{stamp}-{os.getpid()}-{secrets.token_hex(2)}.log"


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
