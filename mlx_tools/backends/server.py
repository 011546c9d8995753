"""An ``mlx_lm.server`` of our own, on a loopback port: started, watched, gone when we are."""

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
from mlx_tools.backends.server_options import check_options, memory_options, with_options
from mlx_tools.backends.transport import DiedAtWork
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

LOGS_KEPT: Final = 10
_ACCESS: Final = re.compile(r'"[A-Z]+ \S+ HTTP/\d\.\d" \d{3} -\s*\Z')
"""What is no news in a log."""

_NO_MEMORY: Final = re.compile(
    r"(?i)insufficient memory|out ?of ?memory|unable to allocate|cannot allocate|metal::malloc"
)
"""How Metal, MLX and the system say that there is no memory left."""

RESTARTED: Final = "the model's server had died; it is started again"

PATIENCE: Final = 5.0
"""Seconds that a server has to end by itself."""

TRIES: Final = 3
"""How often a start is tried where another program took the port in between."""


class ServerBackend:
    """Completions from a server that this process starts, with the model in the folder ``model``.

    It starts at the first completion, or by `start`; it ends by `aclose`, at the end of ``async
    with``, and with this process, also when that is killed. A server that dies in between is
    started again, once for a request, if none of the request's text had come.

    ``start_timeout`` is in seconds and covers reading the model. ``log_folder`` is by default
    ``logs`` in the state folder. ``note`` is told, in one line each, what a person should know.
    ``program`` is what to run in place of mlx-lm's server; it must take the same options.
    ``openblas`` finds the library that is preloaded on Linux. ``options`` are further options of
    mlx-lm's server (`mlx_tools.backends.server_options.ALLOWED`).

    A request in whose course the server ended is not sent again, since it may be what ended it.
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
        """Start the server and wait until its model completes text; does nothing where it runs.

        Raises:
            MissingDependency: mlx-lm is not installed.
            ModelError: there is no model in the folder.
            BackendError: the server ended, or was not ready in time; its last words are told.
        """
        await self.get_client()

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """As `CompletionsBackend.complete`; starts the server where none runs.

        Raises:
            BackendBroken: the server ended while it worked on the request; how, and what to do.
        """
        delivered = again = False
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
                    raise
                worked = running if isinstance(error, BackendBroken | DiedAtWork) else None
                failure = worked.end_at_work(error) if worked is not None else None
                await self._put_away(client)
                if failure is not None:
                    raise failure from error
                if delivered or again:
                    raise
            again = True
            self._tell(RESTARTED)

    async def health(self, timeout: float = 5.0) -> Health:
        """How the server is; ``unreachable`` before the start."""
        if self._running is None:
            return Health("unreachable", "the server has not been started")
        return await self._running.client.health(timeout)

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """The one model it was started with."""
        return (str(self.model),)

    async def aclose(self) -> None:
        """Stop the server and wait until it is gone. A closed backend does not start again."""
        self._closed = True
        async with self._exclusive():
            await self._stop()

    async def _put_away(self, client: CompletionsBackend) -> bool:
        """Stop the server of a client and keep its log; False if another request has done so."""
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
            return True  # another request has already put it away
        import anyio

        for _ in range(20):  # a process that is being ended is not gone at once
            if running.exit_code is not None:
                return True
            await anyio.sleep(0.02)
        return False

    async def get_client(self) -> CompletionsBackend:
        """The client of the running server, which is started where none runs; see `start`."""
        running = self._running
        if running is not None and running.exit_code is not None:
            # Told before a request is sent: of one that breaks off, it could be the cause.
            if await self._put_away(running.client):
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
            keep_log = keep_log or running.exit_code is not None
            await running.client.aclose()
            running.stop()
            if not keep_log:  # it ended as it should: nobody needs its log
                with suppress(OSError):
                    running.log.unlink()

    @asynccontextmanager
    async def _exclusive(self) -> AsyncGenerator[None, None]:
        """One start or stop at a time, whichever event loop or thread it comes from."""
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
                f"{self.model} holds no model", hint="mlx-tools models list shows what is here"
            )
        openblas = self._openblas()
        if said := slow_without(openblas):
            self._tell(said)
        environment = server_environment(self._environ, openblas)
        folder = private_dir(self._log_folder or state_dir(self._environ) / "logs")
        for left in reversed(range(TRIES)):
            process = ServerProcess(
                self.model, new_log(folder), self._program, environment, self._options
            )
            try:
                await self._until_ready(process)
                return process
            except _PortTaken:
                process.stop()
                if not left:
                    raise
            except BaseException:
                process.stop()
                raise
        raise AssertionError("unreachable")

    async def _until_ready(self, process: ServerProcess) -> None:
        """Wait for ``/health``, then for the model: health is ``ok`` while it is still read."""
        import anyio

        end = anyio.current_time() + self._start_timeout
        while not await process.answers():
            if process.exit_code is not None:
                raise process.end_of_start()
            if anyio.current_time() > end:
                raise BackendTimeout(
                    f"the server was not ready within {self._start_timeout:g} s",
                    hint=f"its log: {process.log}",
                )
            await anyio.sleep(0.05)
        left = max(1.0, end - anyio.current_time())
        try:
            await complete_one(process.client, left)
        except BackendError as error:
            raise type(error)(
                f"the model in {self.model} cannot be served: {process.tail(1) or error.message}",
                hint=f"the server's log: {process.log}",
            ) from error

    def _tell(self, line: str) -> None:
        self.notes = (*self.notes, line)
        if self._note is not None:
            self._note(line)


class _PortTaken(BackendUnreachable):
    """Another program got hold of the port between choosing it and listening on it."""


# --- its process --------------------------------------------------------------------------------


class ServerProcess:
    """A server on a loopback port of its own, alive until `stop` or the end of this process.

    ``program`` is what runs, ``log`` gets all that it prints, ``client`` is how it is asked.
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
        # the server that answers with this origin is the one started here, not one that took the
        # port in between
        self.origin = unused_origin()
        self.client = CompletionsBackend(
            f"http://127.0.0.1:{self.port}", headers={"Origin": self.origin}
        )
        self.log = log
        arguments = server_arguments(model, self.port, self.origin, options)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own script, no shell
                [*SUPERVISED, *program, *arguments],
                stdin=subprocess.PIPE,  # its lifeline: see process.py
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

    async def answers(self) -> bool:
        """Whether the server on the port is the one that was started, and listens."""
        health = await self.client.health(timeout=2.0)
        if health.status == "unreachable":
            return False
        if health.allowed_origin != self.origin:
            raise _PortTaken(f"another program answers on port {self.port}", hint="try again")
        return True

    def end_of_start(self) -> BackendUnreachable:
        """The error for a server that ended before it was ready."""
        tail = self.tail()
        if "address already in use" in tail.lower():
            return _PortTaken(f"port {self.port} was taken by another program", hint="try again")
        said = f": {tail}" if tail else ""
        return BackendUnreachable(
            f"the server ended before it was ready (exit code {self.exit_code}){said}",
            hint=f"{self._remedy(tail)}; its log: {self.log}"
            if _NO_MEMORY.search(tail)
            else f"its log: {self.log}",
        )

    def end_at_work(self, error: BackendError) -> BackendError:
        """The error for a server that ended, or whose model's thread did, during a request."""
        tail = self.tail()
        how = "its model's thread died"
        if self.exit_code is not None:
            how = f"exit code {self.exit_code}"
        if self.exit_code is not None and self.exit_code < 0:
            with suppress(ValueError):
                how = f"by {signal.Signals(-self.exit_code).name}"
        kind = BackendBroken if isinstance(error, BackendBroken) else BackendDead
        said = f": {tail}" if tail else ""
        return kind(
            f"the model's server ended while it worked on this request ({how}){said}",
            hint=f"{self._remedy(tail)}; its log: {self.log}",
        )

    def _remedy(self, tail: str) -> str:
        """What helps a server that ended so."""
        if _NO_MEMORY.search(tail) or self.exit_code == -signal.SIGKILL:
            return (
                "the memory was not enough: take a shorter context or a smaller model "
                "(mlx-tools models list)"
            )
        return "the next request starts it again"

    def stop(self) -> None:
        """End it, and wait until it is gone. Calling it again does nothing."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
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


def unused_origin() -> str:
    """Return an origin that no web page has, so that no page may read the server's answers."""
    return f"http://{secrets.token_hex(16)}.invalid"


def server_arguments(model: Path, port: int, origin: str, options: Sequence[str]) -> list[str]:
    """Return the options of mlx-lm's server for a model that it serves on this machine alone, and
    the user's further ``options``."""
    return [
        *("--model", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--allowed-origins", origin, "--log-level", "WARNING"),
        *with_options(memory_options(model), options),
    ]


def foreground_command(
    model: Path,
    port: int,
    options: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    openblas: Callable[[], str | None] = find_openblas,
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a server that a person runs in a terminal.

    Raises:
        MissingDependency: mlx-lm is not installed.
        UsageError: another program listens on the port.
    """
    _require_mlx_lm()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used: {error.strerror}", hint="choose another with --port"
            ) from None
    command = [sys.executable, "-P", "-m", "mlx_lm", "server"]
    command += server_arguments(model, port, unused_origin(), options)
    return command, server_environment(environ, openblas())


def _require_mlx_lm() -> None:
    if importlib.util.find_spec("mlx_lm") is None:
        raise MissingDependency("a server of our own needs mlx-lm", hint=to_install("mlx"))


def free_port() -> int:
    """A loopback port that nobody holds at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def server_environment(environ: Mapping[str, str], openblas: str | None) -> dict[str, str]:
    """The environment for a server: ``environ``, OpenBLAS preloaded, no look-ups on the network."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")
    environment = {**environ, **dict.fromkeys((*names, "PYTHONUNBUFFERED"), "1")}
    others = environment.get("LD_PRELOAD", "")
    if openblas is not None and "openblas" not in others:
        environment["LD_PRELOAD"] = f"{others} {openblas}".strip()
    return environment


def new_log(folder: Path) -> Path:
    """A name for a new log in ``folder``; the oldest logs there are removed, the last ten kept."""
    old = sorted(folder.glob("server-*.log"))  # their names begin with the time
    for path in old[: max(0, len(old) - LOGS_KEPT + 1)]:
        path.unlink(missing_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return folder / f"server-{stamp}-{os.getpid()}-{secrets.token_hex(2)}.log"
