"""A backend that starts, watches and ends its own ``mlx_lm.server``."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import ClassVar, Final, Literal, Self

from mlx_tools.backends.adapters import complete_one
from mlx_tools.backends.completions import CompletionsBackend, Health
from mlx_tools.backends.interface import (
    MODEL_FOLDER,
    BackendTraits,
    Chunk,
    CompletionRequest,
    check_token_ids,
)
from mlx_tools.backends.openblas import find_openblas, slow_without
from mlx_tools.backends.server_errors import DiedAtWork
from mlx_tools.backends.server_options import check_options, find_memory_options, with_options
from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendError,
    BackendTimeout,
    BackendUnreachable,
    MissingDependency,
    ModelError,
    UsageError,
    require_path,
    require_texts,
)
from mlx_tools.paths import private_dir, state_dir, to_install
from mlx_tools.process import SUPERVISED, clean, end

MAX_LOGS: Final = 10
"""The limit of logs in the log folder. A choice: enough for a few days of failures."""
_ACCESS: Final = re.compile(r'"[A-Z]+ \S+ HTTP/\d\.\d" \d{3} -\s*\Z')
"""Lines of a log that only report a request."""

_NO_MEMORY: Final = re.compile(
    r"(?i)insufficient memory|out ?of ?memory|unable to allocate|cannot allocate|metal::malloc"
)
"""Messages of Metal, MLX and the system if no memory is left."""

RESTARTED: Final = "the model's server had died; it is started again"
"""The note for a person when a dead server is started again."""

END_SECONDS: Final = 5.0
"""Seconds to wait for the end of a server. A choice: it ends at once unless a forward pass runs."""

TRIES: Final = 3
"""The limit of starts in a row, if another program takes the port each time."""


class ServerBackend:
    """Completions from a server that this process starts.

    `start` starts the server, or the first completion does. `aclose` ends it, or the end of
    ``async with``, or the end of this process, also if that is killed. A dead server is started
    again, once for each request, if no text of the request had come. But a request during which the
    server ended is not sent again, because the request may be the cause.

    Args:
        model: the model's folder.
        start_timeout: seconds for the start, in which the model is loaded.
        log_folder: the folder of logs; by default ``logs`` in the state folder.
        note: called with each line that a person should read.
        forbidden_tokens: ids of tokens that the model must not write.
        program: the program to run instead of mlx-lm's server; it must take the same options.
        openblas: finds the library that is preloaded on Linux.
        environ: the environment.
        options: further options of the server (`mlx_tools.backends.server_options.ALLOWED`).
    """

    kind: Literal["server"] = "server"
    traits: ClassVar = BackendTraits(own_model=True, starts_server=True)

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        start_timeout: float = 300.0,
        log_folder: Path | None = None,
        note: Callable[[str], None] | None = None,
        forbidden_tokens: Sequence[int] = (),
        program: Sequence[str] = ("mlx_lm", "server"),
        openblas: Callable[[], str | None] = find_openblas,
        environ: Mapping[str, str] = os.environ,
        options: Sequence[str] = (),
    ) -> None:
        self.model = Path(require_path("model", model, MODEL_FOLDER))
        self.notes: tuple[str, ...] = ()
        self._start_timeout = start_timeout
        self._log_folder = log_folder
        self._note = note
        self.forbidden_tokens = check_token_ids(forbidden_tokens)
        self._program = require_texts("program", program, "give the words of a command as a list")
        self._openblas = openblas
        self._environ = environ
        self._options = check_options(options)
        self._gate = threading.Lock()
        self._running: ServerProcess | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def url(self) -> str | None:
        """The running server's address; None before the start."""
        return self._running.client.address.base if self._running else None

    @property
    def pid(self) -> int | None:
        """The running server's process id; None before the start."""
        return self._running.pid if self._running else None

    async def start(self) -> None:
        """Start the server, and wait until its model completes text.

        Do nothing if it is running.

        Raises:
            MissingDependency: mlx-lm is not installed.
            ModelError: there is no model in the folder.
            BackendError: the server ended, or was not ready in time; the message has the end of its
                log.
        """
        await self.get_client()

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Complete as `CompletionsBackend.complete` does; start the server if none runs.

        Raises:
            BackendBroken: the server ended during the request; the message says how.
        """
        delivered = is_retry = False
        while True:
            client = await self.get_client()
            running = self._running
            try:
                async with aclosing(client.complete(request)) as chunks:
                    async for chunk in chunks:
                        delivered = True
                        yield chunk
                return
            except BackendError as error:
                if not await self._has_died(client, error):
                    if running is not None and isinstance(error, BackendTimeout):
                        running.keeps_log = True
                        hint = f"the machine may be busy: ask again; its log: {running.log}"
                        raise BackendTimeout(error.message, hint=hint) from error
                    raise
                process = running if isinstance(error, BackendBroken | DiedAtWork) else None
                failure = process.make_work_error(error) if process is not None else None
                await self._retire(client)
                if failure is not None:
                    raise failure from error
                if delivered or is_retry:
                    raise
            is_retry = True
            self._tell(RESTARTED)

    async def health(self, timeout: float = 5.0) -> Health:
        """Return the server's state; ``unreachable`` before the start."""
        if self._running is None:
            return Health("unreachable", "the server has not been started")
        return await self._running.client.health(timeout)

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """Return the model that the server is started with."""
        return (str(self.model),)

    async def aclose(self) -> None:
        """Stop the server, and wait until it has ended. It cannot be started again."""
        self._closed = True
        async with self._exclusive():
            await self._stop()

    async def _retire(self, client: CompletionsBackend) -> bool:
        """Stop a client's server, keep its log; False if another request has done so."""
        async with self._exclusive():
            if self._running is None or self._running.client is not client:
                return False
            await self._stop(keep_log=True)
            return True

    async def _has_died(self, client: CompletionsBackend, error: BackendError) -> bool:
        if isinstance(error, BackendDead):
            return True
        if not isinstance(error, BackendUnreachable | BackendBroken):
            return False
        running = self._running
        if running is None or running.client is not client:
            return True  # another request has already stopped it
        import anyio

        # A killed process needs a moment to end: 20 checks, 0.4 s in all.
        for _ in range(20):
            if running.exit_code is not None:
                return True
            await anyio.sleep(0.02)
        return False

    async def get_client(self) -> CompletionsBackend:
        """Return the client of the running server; start a server if none runs."""
        running = self._running
        if running is not None and running.exit_code is not None:
            # Checked before the request is sent: it may be sent to a new server, because it cannot
            # be what ended the old one.
            if await self._retire(running.client):
                self._tell(RESTARTED)
            running = self._running
        if running is None:
            async with self._exclusive():
                running = self._running = self._running or await self._ensure_started()
        running.client.forbidden_tokens = self.forbidden_tokens
        return running.client

    async def _stop(self, *, keep_log: bool = False) -> None:
        running, self._running = self._running, None
        if running is not None:
            keep_log = keep_log or running.keeps_log or running.exit_code is not None
            await running.client.aclose()
            running.stop()
            if not keep_log:  # it ended normally, so nobody needs its log
                with suppress(OSError):
                    running.log.unlink()

    @asynccontextmanager
    async def _exclusive(self) -> AsyncGenerator[None, None]:
        """Allow only one start or stop at a time, over all event loops and threads.

        The lock is polled, because an asyncio lock belongs to one loop, and a blocking lock would
        block the loop.
        """
        import anyio

        while not self._gate.acquire(blocking=False):
            await anyio.sleep(0.02)
        try:
            yield
        finally:
            self._gate.release()

    async def _ensure_started(self) -> ServerProcess:
        if self._closed:
            raise BackendUnreachable("the server was closed", hint="make a new ServerBackend")
        if self._program[0] == "mlx_lm":
            _require_mlx_lm()
        if not (self.model / "config.json").is_file():
            raise ModelError(
                f"{self.model} has no model", hint="mlx-tools models list shows the models here"
            )
        openblas = self._openblas()
        if line := slow_without(openblas):
            self._tell(line)
        environment = make_environment(self._environ, openblas)
        folder = private_dir(self._log_folder or state_dir(self._environ) / "logs")
        for tries_left in reversed(range(TRIES)):
            process = ServerProcess(
                self.model, make_log_path(folder), self._program, environment, self._options
            )
            try:
                await self._wait_until_ready(process)
                return process
            # Another program has taken the port before the server listened on it: try another port.
            except _PortTaken:
                process.stop()
                if not tries_left:
                    raise
            except BaseException:
                process.stop()
                raise
        raise AssertionError("unreachable")

    async def _wait_until_ready(self, process: ServerProcess) -> None:
        """Wait for ``/health``, then for the model.

        The health is already ``ok`` while the model is loading.
        """
        import anyio

        end = anyio.current_time() + self._start_timeout
        while not await process.is_listening():
            if process.exit_code is not None:
                raise process.make_start_error()
            if anyio.current_time() > end:
                raise BackendTimeout(
                    f"the server was not ready within {self._start_timeout:g} s",
                    hint=f"its log: {process.log}",
                )
            await anyio.sleep(0.05)
        seconds_left = max(1.0, end - anyio.current_time())
        try:
            await complete_one(process.client, seconds_left)
        except BackendError as error:
            raise type(error)(
                f"the model in {self.model} cannot be served: "
                f"{process.read_tail(1) or error.message}",
                hint=f"the server's log: {process.log}",
            ) from error

    def _tell(self, line: str) -> None:
        self.notes = (*self.notes, line)
        if self._note is not None:
            self._note(line)


class _PortTaken(BackendUnreachable):
    """Another program has taken the port before the server listened on it."""


# --- the server's process -----------------------------------------------------------------------


class ServerProcess:
    """A server on a loopback port, alive until `stop` or the end of this process.

    Args:
        model: the model's folder.
        log: the file for the server's output.
        program: the command to run.
        environment: the server's environment.
        options: further options of the server.
    """

    def __init__(
        self,
        model: Path,
        log: Path,
        program: Sequence[str],
        environment: Mapping[str, str],
        options: Sequence[str] = (),
    ) -> None:
        self.port = free_port()
        # A server that answers with this origin is the one that was started here, not another
        # program that has taken the port.
        self.origin = make_unused_origin()
        self.client = CompletionsBackend(
            f"http://127.0.0.1:{self.port}", headers={"Origin": self.origin}
        )
        self.log = log
        self.keeps_log = False
        """True if an error message names the log."""
        arguments = make_arguments(model, self.port, self.origin, options)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own script, no shell
                [*SUPERVISED, *program, *arguments],
                stdin=subprocess.PIPE,  # when this pipe closes, the server ends: see process.py
                stdout=descriptor,
                stderr=descriptor,
                env=dict(environment),
                start_new_session=True,  # so that Ctrl-C at the terminal does not end it
            )
        finally:
            os.close(descriptor)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of the process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    async def is_listening(self) -> bool:
        """Return True if the server listens on its port.

        Raises:
            _PortTaken: another program answers on this port.
        """
        health = await self.client.health(timeout=2.0)
        if health.status == "unreachable":
            return False
        if health.allowed_origin != self.origin:
            raise _PortTaken(f"another program answers on port {self.port}", hint="try again")
        return True

    def make_start_error(self) -> BackendUnreachable:
        """Return the error for a server that ended before it was ready."""
        tail = self.read_tail()
        # Only the server's message shows that it could not listen on the port.
        if "address already in use" in tail.lower():
            return _PortTaken(f"port {self.port} was taken by another program", hint="try again")
        detail = f": {tail}" if tail else ""
        return BackendUnreachable(
            f"the server ended before it was ready (exit code {self.exit_code}){detail}",
            hint=f"{self._find_advice(tail)}; its log: {self.log}"
            if _NO_MEMORY.search(tail)
            else f"its log: {self.log}",
        )

    def make_work_error(self, error: BackendError) -> BackendError:
        """Return the error for a server, or its model's thread, that ended in a request."""
        tail = self.read_tail()
        cause = "its model's thread died"
        if self.exit_code is not None:
            cause = f"exit code {self.exit_code}"
        if self.exit_code is not None and self.exit_code < 0:
            with suppress(ValueError):
                cause = f"by {signal.Signals(-self.exit_code).name}"
        kind = BackendBroken if isinstance(error, BackendBroken) else BackendDead
        detail = f": {tail}" if tail else ""
        return kind(
            f"the model's server ended while it worked on this request ({cause}){detail}",
            hint=f"{self._find_advice(tail)}; its log: {self.log}",
        )

    def _find_advice(self, tail: str) -> str:
        """Return advice about a server that ended with this log."""
        # The system sends SIGKILL if it runs out of memory.
        if _NO_MEMORY.search(tail) or self.exit_code == -signal.SIGKILL:
            return (
                "the memory was not enough: take a shorter context or a smaller model "
                "(mlx-tools models list)"
            )
        return "the next request starts it again"

    def stop(self) -> None:
        """End the server, and wait until it has ended. Calling it again does nothing."""
        if self._process.stdin is not None:
            # The supervisor ends the server when this pipe closes.
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # its Python is busy for long: kill it
            end(self._process)

    def read_tail(self, lines: int = 4) -> str:
        """Return the last lines of its log as one line, safe to show; or empty."""
        try:
            with self.log.open("rb") as file:
                # The last 8 KiB have the last lines; a log can be gigabytes long.
                file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines_shown = [
            line for line in text.split("\n") if line.strip() and not _ACCESS.search(line)
        ]
        return clean(" | ".join(line.strip() for line in lines_shown[-lines:]), 600)


def make_unused_origin() -> str:
    """Return an origin of no web page, so that no page can read the server's answers."""
    return f"http://{secrets.token_hex(16)}.invalid"


def make_arguments(model: Path, port: int, origin: str, options: Sequence[str]) -> list[str]:
    """Return the arguments of mlx-lm's server, which then serves only this machine."""
    return [
        *("--model", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--allowed-origins", origin, "--log-level", "WARNING"),
        *with_options(find_memory_options(model), options),
    ]


def foreground_command(
    model: Path,
    port: int,
    options: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    openblas: Callable[[], str | None] = find_openblas,
) -> tuple[list[str], dict[str, str]]:
    """Return command and environment of a server that runs in a person's terminal.

    Raises:
        MissingDependency: mlx-lm is not installed.
        UsageError: another program listens on the port.
    """
    _require_mlx_lm()
    with socket.socket() as probe:
        # Without this option, a port would count as taken while old connections are closing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used: {error.strerror}", hint="choose another with --port"
            ) from None
    command = [sys.executable, "-P", "-m", "mlx_lm", "server"]
    command += make_arguments(model, port, make_unused_origin(), options)
    return command, make_environment(environ, openblas())


def _require_mlx_lm() -> None:
    if importlib.util.find_spec("mlx_lm") is None:
        raise MissingDependency("a server of our own needs mlx-lm", hint=to_install("mlx"))


def free_port() -> int:
    """Return a loopback port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_environment(environ: Mapping[str, str], openblas: str | None) -> dict[str, str]:
    """Return a server's environment: ``environ``, offline, with OpenBLAS preloaded."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")
    # Offline: the model is a folder, and nobody on the network should learn which model runs.
    environment = {**environ, **dict.fromkeys((*names, "PYTHONUNBUFFERED"), "1")}
    preloaded = environment.get("LD_PRELOAD", "")
    if openblas is not None and "openblas" not in preloaded:
        environment["LD_PRELOAD"] = f"{preloaded} {openblas}".strip()
    return environment


def make_log_path(folder: Path) -> Path:
    """Return the path of a new log in ``folder``; remove all but the newest nine logs."""
    old = sorted(folder.glob("server-*.log"))  # their names begin with the time
    for path in old[: max(0, len(old) - MAX_LOGS + 1)]:
        path.unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return folder / f"server-{stamp}-{os.getpid()}-{secrets.token_hex(2)}.log"
