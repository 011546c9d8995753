"""Files of others are read only if they are regular and of a bounded size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mlx_tools.app import config
from mlx_tools.backends import VerdictStore
from mlx_tools.errors import MlxToolsError
from mlx_tools.golden import read_golden
from mlx_tools.paths import open_regular, read_regular, read_text
from mlx_tools.store import TranscriptStore, load
from tests.command_line import Run


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


def folder(path: Path) -> None:
    path.mkdir()


STRANGE = {
    "a link to a device": (link_to_a_device, "no regular file"),
    "a pipe": (pipe, "no regular file"),
    "10 GB": (sparse, "larger than"),
    "a folder": (folder, "directory"),
}
Make = Callable[[Path], None]
every = pytest.mark.parametrize(("make", "problem"), STRANGE.values(), ids=STRANGE)


@every
def test_only_a_regular_file_of_a_bounded_size_is_read(
    tmp_path: Path, make: Make, problem: str
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(OSError) as raised:
        read_regular(path)
    assert problem in str(raised.value.strerror).lower()


def test_a_regular_file_is_read_whole_also_by_way_of_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"12345")
    link.symlink_to(path)
    assert read_regular(link, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(link, 4)
    with open_regular(link) as file:
        assert file.read(2) == b"12"


def test_a_file_that_says_it_is_empty_is_bounded_too() -> None:
    path = Path("/proc/self/environ")
    if path.stat().st_size == 0 and path.exists():
        with pytest.raises(OSError, match="larger than 1 bytes"):
            read_regular(path, 1)


READERS: dict[str, Callable[[Path], object]] = {
    "a golden transcript": read_golden,
    "a transcript": load,
    "a transcript to go on with": lambda path: TranscriptStore(path.parent / "s").open(path),
    "a text of ours": read_text,
    "a configuration": lambda path: config.load(user_file=path, environ={}, cwd=path.parent),
    "a key": lambda path: config.load(
        options={"gateway.api_key": str(path)}, environ={}, cwd=path.parent
    ),
}


@every
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_each_reader_says_in_a_line_what_it_cannot_read(
    tmp_path: Path, read: Callable[[Path], object], make: Make, problem: str
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(MlxToolsError) as raised:
        read(path)
    assert "\n" not in raised.value.message
    assert str(path) in raised.value.message


@every
def test_a_strange_verdict_is_passed_over(tmp_path: Path, make: Make, problem: str) -> None:
    store = VerdictStore(tmp_path)
    make(store.path("a model"))
    found = store.get("a model")
    assert found.verdict is None
    assert problem in found.problem.lower()


COMMANDS = {
    "golden run": ("golden", "run", "{}"),
    "golden accept": ("golden", "accept", "{}"),
    "parse": ("parse", "{}"),
    "tools as a file": ("parse", "--tools", "{}", "-"),
    "observations": ("parse", "--observations", "{}", "-"),
    "a schema": ("ask", "--schema", "{}", "Hi"),
    "servers of another program": ("mcp", "import", "{}", "--yes"),
    "an OpenAPI document": ("tools", "bind", "{}", "--name", "a"),
    "a tool's folder": ("tools", "add", "{}"),
    "a knowledge base": ("kb", "add", "{}"),
    "a session": ("sessions", "show", "{}"),
    "a session to go on with": ("sessions", "resume", "{}"),
    "a key": ("serve", "--api-key-file", "{}"),
    "arguments": ("golden", "record", "a", "@{}"),
}


@every
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_each_command_ends_with_a_line(
    run: Run, tmp_path: Path, words: tuple[str, ...], make: Make, problem: str
) -> None:
    path = tmp_path / "given.jsonl"
    make(path)
    done = run(*(word.format(path) for word in words))
    may_be_a_folder = words[:2] == ("kb", "add") and make is folder
    assert done.code != 0 or "skipped" in done.err or may_be_a_folder
    assert "Traceback" not in done.err
