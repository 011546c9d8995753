"""A full trace of a run: every prompt, every completion as it came, every event, every output.

Written only when it is asked for, to a file that its owner alone can read. Without it, what is kept
of a run is its transcript.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mlx_tools.app.config import Configuration
from mlx_tools.backends import Backend, Chunk, CompletionRequest
from mlx_tools.cli.output import to_json
from mlx_tools.errors import UsageError
from mlx_tools.store.roots import RootName
from mlx_tools.transcript.events import Event, Finished

MODE = 0o600


def cleaner(configuration: Configuration) -> Callable[[str], str]:
    """What takes secrets, and folders, out of a trace, as the settings of the policy say."""
    policy = configuration.policy()
    if not (policy.redacts or policy.redacts_paths):
        return str
    from mlx_tools.policy.redact import Redactor

    roots = [RootName.parse(root).path for root in configuration.settings.tools.roots]
    given = (str(Path(folder).absolute()) for folder in (*roots, str(Path.home())))
    folders = tuple(dict.fromkeys(folder for folder in given if folder != "/"))
    redactor = Redactor(secrets=policy.redacts, paths=folders if policy.redacts_paths else ())
    return lambda line: redactor.text(line).text


class FullTrace:
    """A file of JSON lines. Raises `UsageError` where it cannot be made, before anything runs.

    The file is a regular one: no link is followed, and nothing else is written to. One that was
    there is emptied, and closed to others first. Where the disk is full later on, the run goes on
    without its trace: `problem` says so. ``clean`` is what every line passes before it is written:
    the place where secrets are taken out.
    """

    def __init__(self, path: Path, *, clean: Callable[[str], str] = str) -> None:
        self.problem: str | None = None
        self._path = path
        self._clean = clean
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags, MODE)
        except OSError as error:
            why = "a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise UsageError(f"--full-trace: {path}: {why}", hint="name a file") from None
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"--full-trace: {path}: not a regular file", hint="name a file")
            os.fchmod(descriptor, MODE)  # a file that was there may have been open to others
            os.ftruncate(descriptor, 0)
        except OSError as error:
            self._file.close()
            raise UsageError(f"--full-trace: {path}: {error.strerror}") from None
        except BaseException:
            self._file.close()
            raise

    def write(self, kind: str, **values: Any) -> None:
        """Append one line."""
        if self.problem is not None:
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = self._clean(to_json({"at": at, "kind": kind} | values))
        left = memoryview(line.encode("utf-8") + b"\n")
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self.problem = f"--full-trace: {self._path} is incomplete: {error.strerror}"

    def event(self, event: Event) -> None:
        """Append an event; the last one with all outputs, and with counters."""
        if isinstance(event, Finished):
            outcome = event.outcome
            whole = outcome.to_json(include_outputs=True)
            self.write("outcome", outcome=whole, counters=outcome.counters.to_json())
        else:
            self.write("event", event=event.to_json())

    def traced(self, backend: Backend) -> Backend:
        """The backend, what is asked of it and what it gives written down."""
        return _Traced(backend, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


class _Traced:
    def __init__(self, backend: Backend, trace: FullTrace) -> None:
        self._backend = backend
        self._trace = trace
        self.model = getattr(backend, "model", None)

    def __getattr__(self, name: str) -> Any:  # what the backend can do, and which model it serves
        return getattr(self._backend, name)

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        self._trace.write("request", request=asdict(request))
        text, last = "", None
        try:
            async with aclosing(self._backend.complete(request)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    text += chunk.text
                    last = chunk
                    yield chunk
        finally:
            ended = last if last is not None and last.finish_reason is not None else None
            self._trace.write(
                "completion",
                text=text,
                finish_reason=ended.finish_reason if ended else None,
                usage=asdict(ended.usage) if ended and ended.usage else None,
            )
