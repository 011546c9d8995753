"""The pytest plugin: a folder of golden transcripts is a folder of tests.

pytest loads this module in every run on a machine that has mlx-tools. It imports nothing of it
before there is a golden transcript to check.
"""

from __future__ import annotations

import pickle
import re
from base64 import b64decode, b64encode
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from mlx_tools.golden.checking import GoldenCheck

NAME: Final = "mlx-tools-golden"

_SUFFIX: Final = ".jsonl"
_ATTACHED: Final = "golden_check"
"""The attribute of a report that carries the check to the process which writes the HTML report."""


class NotAsRecorded(Exception):
    """A golden transcript did not come out as it was recorded. The message says where."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    group = parser.getgroup("golden", "golden transcripts")
    said = "write a report of the golden transcripts (HTML)"
    group.addoption("--golden-report", metavar="FILE", help=said)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and what writes the report."""
    config.addinivalue_line("markers", "golden: a golden transcript, replayed")
    # The workers of pytest-xdist hand their checks to the process that started them.
    ours = not hasattr(config, "workerinput") and not config.option.collectonly
    if ours and config.option.golden_report is not None:
        path = config.invocation_params.dir / config.option.golden_report
        if path.is_dir():
            raise pytest.UsageError(f"--golden-report: {path} is a folder")
        config.pluginmanager.register(_ReportWriter(path), f"{NAME}-report")


# --- collection ---------------------------------------------------------------------------------


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> GoldenFile | None:
    """The file, where it is a golden transcript."""
    if file_path.suffix != _SUFFIX:
        return None
    if file_path.name.startswith(".") and not parent.session.isinitpath(file_path):
        return None
    if not is_golden(file_path):
        return None
    found: GoldenFile = GoldenFile.from_parent(parent, path=file_path)
    return found


class GoldenFile(pytest.File):
    """A golden transcript."""

    def collect(self) -> Iterator[GoldenItem]:
        """Its one test: that it replays."""
        yield GoldenItem.from_parent(self, name="replay")


class GoldenItem(pytest.Item):
    """The test of a golden transcript. ``check`` is what it came to, once it was run."""

    check: GoldenCheck | None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_marker(pytest.mark.golden)

    def runtest(self) -> None:
        """Replays it. Raises `NotAsRecorded`."""
        from mlx_tools.app import spelled
        from mlx_tools.golden.checking import failure_text, replay_file

        with_records = self.config.option.golden_report is not None
        place, _, _ = self.nodeid.partition("::")
        # its path means the same on any machine
        self.check = check = replace(replay_file(self.path, with_records=with_records), path=place)
        for key, value in (
            ("name", check.name),
            ("source", check.source),
            ("features", ", ".join(check.features)),
            ("rooms", ", ".join(check.rooms)),
        ):
            self.user_properties.append((key, spelled(value)))
        if not check.passed:
            raise NotAsRecorded(failure_text(check))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The findings, without a traceback."""
        if isinstance(excinfo.value, NotAsRecorded):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it stands, and what a failure is headed with."""
        # pytest takes this for a dotted name where it is the end of the node's id.
        return self.path, None, self.nodeid.replace("::", ": ")


# --- the report ---------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attaches the check to the report, as a text: a worker of pytest-xdist hands it on so."""
    report = yield
    wanted = item.config.option.golden_report is not None
    if wanted and call.when == "call" and isinstance(item, GoldenItem) and item.check is not None:
        vars(report)[_ATTACHED] = b64encode(pickle.dumps(item.check)).decode()
    return report


class _ReportWriter:
    """Collects the checks of a run, those of other processes too, and writes the HTML report."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._checks: dict[str, str] = {}
        self._said = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the check of a test; of one that is run again, the last."""
        if (check := vars(report).get(_ATTACHED)) is not None:
            self._checks[report.nodeid] = check

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the report."""
        if not self._checks:
            self._said = "no golden transcript was checked: no report was written"
            return
        from mlx_tools.errors import MlxToolsError
        from mlx_tools.golden.report import write_report

        # written by this plugin, here or in a worker of pytest-xdist
        checks = [pickle.loads(b64decode(self._checks[key])) for key in sorted(self._checks)]  # noqa: S301
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_report(checks, self._path)
        except (MlxToolsError, OSError) as error:
            self._said = f"ERROR: --golden-report: {error}"
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
            return
        self._said = f"report of golden transcripts: {self._path}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Says where the report is."""
        if self._said:
            terminalreporter.write_line(self._said)


# --- which files are golden transcripts ---------------------------------------------------------
#
# Told by the beginning of their first two lines. pytest asks about every file below the folders
# that it collects from, whoever they belong to: no other file may be read whole, waited for, or
# complained about.

_BEGINNING: Final = 64
_LONGEST: Final = 1 << 26
"""Bytes after which a first line is nobody's header."""


def is_golden(path: Path) -> bool:
    """True where a file's first line begins as a transcript's header and its second as a golden
    record: one that is damaged after that is a golden transcript too."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as file:
            if not _is(b"header", file.read(_BEGINNING)):
                return False
            file.seek(0)
            return file.readline(_LONGEST).endswith(b"\n") and _is(b"golden", file.read(_BEGINNING))
    except (OSError, ValueError):
        return False


def _is(kind: bytes, line: bytes) -> bool:
    return re.match(rb'[ \t]*\{\s*"type"\s*:\s*"%s"' % kind, line) is not None
