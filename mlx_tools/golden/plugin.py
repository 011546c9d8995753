"""The pytest plugin: a folder of golden transcripts is a folder of tests.

pytest loads this module in every run on a machine that has mlx-tools. The module imports nothing
else of mlx-tools before there is a golden transcript to check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

_SUFFIX: Final = ".jsonl"
_FOLDER: Final = "golden_transcripts"
"""The usual folder, as `mlx-tools golden` has it."""


_TOOLS: Final = pytest.StashKey[Any]()
"""The tools of the settings, of a session of pytest."""


class NotAsRecorded(Exception):
    """A golden transcript differs from its recording. The message says where."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "golden: a golden transcript, replayed")


# --- collection ---------------------------------------------------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> GoldenFile | None:
    """Collect the file, if it is a golden transcript."""
    if file_path.suffix != _SUFFIX:
        return None
    if file_path.name.startswith(".") and not parent.session.isinitpath(file_path):
        return None
    is_named = parent.session.isinitpath(file_path)
    if not is_golden(file_path) and not _was_emptied(file_path, is_named=is_named):
        return None
    found: GoldenFile = GoldenFile.from_parent(parent, path=file_path)
    return found


class GoldenFile(pytest.File):
    """A golden transcript."""

    def collect(self) -> Iterator[GoldenItem]:
        """Yield its one test: that it replays."""
        yield GoldenItem.from_parent(self, name="replay")


class GoldenItem(pytest.Item):
    """The test of a golden transcript."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_marker(pytest.mark.golden)

    def runtest(self) -> None:
        """Replay it. Raises `NotAsRecorded`."""
        from mlx_tools.app import escape_invisible
        from mlx_tools.errors import MlxToolsError
        from mlx_tools.golden.checking import failure_text, replay_file

        try:
            check = replay_file(self.path, registry=self._load_tools())
        except MlxToolsError as error:
            raise NotAsRecorded(escape_invisible(str(error))) from None
        for key, value in (
            ("name", check.name),
            ("source", check.source),
            ("features", ", ".join(check.features)),
            ("rooms", ", ".join(check.rooms)),
        ):
            self.user_properties.append((key, escape_invisible(value)))
        if not check.passed:
            raise NotAsRecorded(failure_text(check))

    def _load_tools(self) -> Any:
        """Return the tools of the settings, loaded once for all tests."""
        from mlx_tools.app import config, load_registry

        stash = self.session.stash
        if _TOOLS not in stash:
            stash[_TOOLS] = load_registry(config.load())
        return stash[_TOOLS]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the findings, without a traceback."""
        if isinstance(excinfo.value, NotAsRecorded):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the place of the test, and the heading of a failure."""
        # pytest takes this for a dotted name if it is the end of the node's id.
        return self.path, None, self.nodeid.replace("::", ": ")


# --- which files are golden transcripts ---------------------------------------------------------
# A golden transcript is recognised by the beginning of its first two lines. pytest asks about every
# file below the folders that it collects from, also those of others. So no other file may be read
# whole, waited for, or reported.

_BEGINNING: Final = 64
_MAX_LINE_BYTES: Final = 1 << 26
"""Bytes after which a first line is no header."""


def is_golden(path: Path) -> bool:
    """Return True if a file begins as a golden transcript does.

    Its first line is a header's and its second a golden record's: a file that is damaged after that
    is a golden transcript too.
    """
    try:
        if not path.is_file():  # reading a pipe would wait
            return False
        with path.open("rb") as file:
            if not _is(b"header", file.read(_BEGINNING)):
                return False
            file.seek(0)
            return file.readline(_MAX_LINE_BYTES).endswith(b"\n") and _is(
                b"golden", file.read(_BEGINNING)
            )
    except (OSError, ValueError):
        return False


def _was_emptied(path: Path, *, is_named: bool) -> bool:
    """Return True if a file is empty, and was a golden transcript by its place.

    This is so if it is named, if it is in the usual folder, or if another one is beside it.
    """
    try:
        if not path.is_file() or path.stat().st_size > _BEGINNING or path.read_bytes().strip():
            return False
        others = path.parent.glob(f"*{_SUFFIX}")
        return is_named or path.parent.name == _FOLDER or any(map(is_golden, others))
    except (OSError, ValueError):
        return False


def _is(kind: bytes, line: bytes) -> bool:
    return re.match(rb'(?:\xef\xbb\xbf)?[ \t]*\{\s*"type"\s*:\s*"%s"' % kind, line) is not None
