"""Processes of this package that start in milliseconds: forked off one that has it all imported.

What runs in them is what would run in a new process, with arguments, environment, folder and files
of its own, and a terminal of its own where that is asked for. That the program starts from nothing
as well is for ``tests/cli/test_cli_main.py`` to show.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from tests import slowed

ROOT = Path(__file__).resolve().parents[1]

LATE = (
    *("anyio._backends._asyncio", "httpcore._backends.anyio", "httpx", "idna", "jsonschema"),
    *("platformdirs", "prompt_toolkit.shortcuts", "rich.live", "rich.markdown"),
    *("rich.progress", "rich.syntax", "urllib.request"),
)
"""Modules of others that the commands import when they need them."""

CLIENT = """
import json, os, socket, sys
asking = socket.socket(socket.AF_UNIX)
asking.connect({path!r})
job = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environ": dict(os.environ)}}
socket.send_fds(asking, [json.dumps(job).encode() + b"\\n"], [0, 1, 2])
_, code = asking.makefile().read().split()
sys.exit(int(code) % 256)
"""
"""Has a fork run the command, on files of its own."""


class Forks:
    """The process that is forked, of the interpreter ``python``."""

    def __init__(self, python: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="forks-")
        self.path = str(Path(self._folder, "socket"))
        self._process = subprocess.Popen(
            [python, "-P", __file__, self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | slowed.preload(self._folder),
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "it did not start"

    def write_command(self, script: Path) -> None:
        """The command as a program."""
        write_program(script, "-IS", CLIENT.format(path=self.path))

    def close(self) -> None:
        """End it; what was forked off runs on."""
        self._process.communicate()
        shutil.rmtree(self._folder)

    def start(
        self,
        *arguments: str,
        files: Sequence[int] = (),
        code: str = "",
        terminal: bool = False,
        folder: Path | None = None,
        environ: dict[str, str] | None = None,
    ) -> Forked:
        """Runs ``mlx-tools`` with these arguments, or the text of a Python program.

        ``files`` are its standard input, output and error, the first its controlling terminal where
        it is to have one. Without any it has pipes for its output, and nothing to read.
        """
        job = {
            "arguments": arguments,
            "code": code,
            "terminal": terminal,
            "folder": str(folder or Path.cwd()),
            "environ": dict(os.environ) if environ is None else environ,
        }
        if files:
            return Forked(self.path, job, files)
        out, err = os.pipe(), os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        made = Forked(self.path, job, (nothing, out[1], err[1]))
        for file in (nothing, out[1], err[1]):
            os.close(file)
        made.stdout, made.stderr = (os.fdopen(pipe[0], "rb") for pipe in (out, err))
        return made


def write_program(script: Path, options: str, text: str, python: str = sys.executable) -> None:
    """A program in Python."""
    script.write_text(f"#!{python} {options}\n{text}", encoding="utf-8")
    script.chmod(0o755)


@cache
def forks(python: str = sys.executable) -> Forks:
    """The one of this process."""
    made = Forks(python)
    atexit.register(made.close)
    return made


class Forked:
    """A process that was forked, to be used as one of `subprocess`."""

    stdout: IO[bytes]
    stderr: IO[bytes]

    def __init__(self, path: str, job: dict[str, Any], files: Sequence[int]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        socket.send_fds(self._socket, [json.dumps(job).encode() + b"\n"], files)
        self._lines = self._socket.makefile()
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float = 120.0) -> int:
        """The exit code, once it ended."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("mlx-tools", timeout)
        return code

    def communicate(self, timeout: float = 120.0) -> tuple[bytes, bytes]:
        """The output until it ends; to its standard error no more than a pipe holds."""
        out, err = (b"" if file.closed else file.read() for file in (self.stdout, self.stderr))
        self.stdout.close()
        self.stderr.close()
        self.wait(timeout)
        return out, err

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended, and its end is not told yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, whatever it does."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._socket], [], [], timeout)[0]:
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._socket.close()
        return self.returncode


# --- in the process that is forked --------------------------------------------------------------


def serve(path: str) -> None:
    """Forks for whoever connects, until nobody is left to."""
    for module in pkgutil.walk_packages(
        importlib.import_module("mlx_tools").__path__, "mlx_tools."
    ):
        if not module.name.endswith(("__main__", ".plugin")) and ".foreign" not in module.name:
            importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)
    build_commands()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    os.write(1, b"ready\n")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    waited: list[socket.socket | int] = [listener, 0]
    while listener in select.select(waited, [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            one(connection)
        connection.close()


def build_commands() -> None:
    """Build all commands with their options, which takes half of a short command's time."""
    root = importlib.import_module("mlx_tools.cli.root")
    group: Any = root.get_command(root.app)
    context = group.make_context("mlx-tools", [], resilient_parsing=True)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        for inner in (command, *getattr(command, "commands", {}).values()):
            for parameter in inner.params:
                if hasattr(parameter, "get_runtime_param"):  # older typers build them at once
                    parameter.get_runtime_param()


def forget_plugins() -> None:
    """Forget what was cached of plugins: other packages may be installed where the job runs."""
    for name in ("app.hooks", "app.settings", "app.config", "cli.command_table"):
        module = importlib.import_module(f"mlx_tools.{name}")
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def one(connection: socket.socket) -> None:
    """Runs one job in a fork, and tells its number and how it ended."""
    data, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while not data.endswith(b"\n"):
        data += connection.recv(1 << 16)
    number = os.fork()
    if number == 0:
        connection.close()
        run(json.loads(data), files)
    for file in (0, 1, 2, *files):
        os.close(file)
    with contextlib.suppress(OSError):  # whoever asked may be gone
        connection.sendall(b"%d\n" % number)
        _, status = os.waitpid(number, 0)
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def run(job: dict[str, Any], files: list[int]) -> None:
    """Be the process of this job."""
    os.setsid()
    if job.get("terminal"):
        fcntl.ioctl(files[0], termios.TIOCSCTTY, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environ"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if importlib.import_module("mlx_tools.packages").may_offer("mlx_tools"):
        forget_plugins()
    time.tzset()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    lines = 1 if os.isatty(1) else -1
    sys.stdout = open(1, "w", lines, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["mlx-tools", *job["arguments"]]
    code: Any = 0
    try:
        if slowed.is_slowed():
            slowed.slow_down()
        if job.get("code"):
            sys.path.insert(0, "")
            sys.argv[0] = "-c"
            exec(compile(job["code"], "<string>", "exec"), vars(sys.modules["__main__"]))
        else:
            code = importlib.import_module("mlx_tools.cli").main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    serve(sys.argv[1])
