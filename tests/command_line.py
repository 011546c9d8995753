"""The command line as a program would use it: arguments, environment, standard streams.

Fixtures for the ``conftest.py`` of each folder whose tests run commands; `run_command` and
`isolated` are for programs without pytest.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.backends.deadlines import Retry
from mlx_tools.cli import main
from tests.cli.terminal import Terminal
from tests.waiting import HANG


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON value."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The one line on standard error."""
        (line,) = self.err.splitlines()
        return line


Run = Callable[..., Result]
Open = Callable[..., Terminal]


def run_command(*arguments: str, stdin: str | bytes = b"") -> Result:
    """Run a command in this process, without a terminal."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    with Streams(data) as (out, err):
        code = main(list(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    return Result(code, out.getvalue().decode(), err.getvalue().decode())


@contextmanager
def isolated(folder: Path) -> Iterator[Path]:
    """An empty home in ``folder``: no file of the user's, no variable of the caller's but one that
    gives tools time on a busy machine, and the empty working directory ``here``."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("MLX_TOOLS_", "PLUGIN_MLX_TOOLS", "ROUTING_LOCAL")):
                patch.delenv(name)
        patch.setenv("MLX_TOOLS_TOOL_TIMEOUT_MS", str(round(HANG * 1000)))  # it starts programs
        for kind in ("config", "data", "state", "cache"):
            patch.setenv(f"MLX_TOOLS_{kind.upper()}_DIR", str(folder / kind))
        patch.setenv("HOME", str(folder))
        (folder / "here").mkdir(parents=True)
        patch.chdir(folder / "here")
        yield folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home: no file of the user's, no variable of the caller's, an empty folder."""
    with isolated(tmp_path) as folder:
        yield folder
        monkeypatch.undo()  # later, it would bring back the variables of this home


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process, without a terminal, with these variables more. A server that
    fails is asked again without a pause."""
    for module in ("completions", "pool"):
        monkeypatch.setattr(f"mlx_tools.backends.{module}.Retry", partial(Retry, pause=0.0))

    def command(*arguments: str, stdin: str | bytes = b"", **environ: str) -> Result:
        with monkeypatch.context() as inner:
            for name, value in environ.items():
                inner.setenv(f"MLX_TOOLS_{name}", value)
            return run_command(*arguments, stdin=stdin)

    return command


@pytest.fixture
def environ(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets variables of ours, by the names that they have behind ``MLX_TOOLS_``."""

    def put(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"MLX_TOOLS_{name}", value)

    return put


@pytest.fixture
def terminal(home: Path) -> Iterator[Open]:
    """Starts commands, each on a terminal of its own, with these variables more."""
    with ExitStack() as opened:
        yield lambda *arguments, program="", columns=100, **environ: opened.enter_context(
            closing(Terminal(*arguments, program=program, columns=columns, environ=environ))
        )


@pytest.fixture
def configure(home: Path) -> Callable[[str], Path]:
    """Writes the user's own file of settings."""

    def write(text: str) -> Path:
        file = home / "config" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file

    return write


class Streams:
    """Standard streams of bytes in place of this process's own."""

    def __init__(self, data: bytes) -> None:
        self._new = (io.BytesIO(data), io.BytesIO(), io.BytesIO())

    def __enter__(self) -> tuple[io.BytesIO, io.BytesIO]:
        self._old = (sys.stdin, sys.stdout, sys.stderr)
        stdin, out, err = (io.TextIOWrapper(raw, "utf-8") for raw in self._new)
        sys.stdin, sys.stdout, sys.stderr = stdin, out, err
        return self._new[1], self._new[2]

    def __exit__(self, *_: object) -> None:
        for wrapper in (sys.stdin, sys.stdout, sys.stderr):
            wrapper.detach()
        sys.stdin, sys.stdout, sys.stderr = self._old


@pytest.fixture
def write(home: Path) -> Iterator[Callable[[str, Any], str]]:
    """Writes a file into the working directory, JSON unless it is text or bytes; gives its name."""

    def file(name: str, value: Any) -> str:
        if isinstance(value, bytes):
            Path(name).write_bytes(value)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            Path(name).write_text(text, encoding="utf-8")
        return name

    yield file
