"""The pytest plugin: a folder of golden transcripts is a folder of tests.

pytest loads this module in every run on a machine that has mlx-tools. It imports nothing of it
before there is a golden transcript to check.
"""

from __future__ import annotations

import json
import os
import re
import stat
from argparse import ArgumentTypeError
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from mlx_tools.golden.checking import Checker, GoldenCheck
    from mlx_tools.tools import Registry

NAME: Final = "mlx-tools-golden"

_SUFFIX: Final = ".jsonl"
_ATTACHED: Final = "golden_check"
"""The attribute of a report that carries the check to the process which writes the HTML report."""

_checkers: Final = pytest.StashKey["Checker"]()
_registries: Final = pytest.StashKey["dict[Path, Registry]"]()


class GoldenHooks:
    """The hooks that a project may define in its ``conftest.py``."""

    @pytest.hookspec(firstresult=True)
    def pytest_golden_registry(self, config: pytest.Config) -> Registry | None:
        """The tools that ``--golden-tools run`` runs; by default the built-in ones."""


class NotAsRecorded(Exception):
    """A golden transcript did not come out as it was recorded. The message says where."""


# --- options ------------------------------------------------------------------------------------


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Makes the hooks known."""
    pluginmanager.add_hookspecs(GoldenHooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("golden", "golden transcripts")
    add = group.addoption
    add(
        "--golden-tools",
        choices=("replay", "run"),
        default="replay",
        help="take what tools gave from the transcripts, or run those that only read (live: all)",
    )
    add("--golden-live", metavar="URL", help="ask the model on this completions server again")
    add(
        "--golden-samples",
        metavar="N",
        type=_number(int, 1, 10**9, "a whole number from 1"),
        default=1,
        help="how often each transcript is asked live",
    )
    add(
        "--golden-min-rate",
        metavar="R",
        type=_number(float, 0, 1, "a number from 0 to 1"),
        default=1.0,
        help="the share of live runs, from 0 to 1, that must be right (default: 1)",
    )
    add(
        "--golden-temperature",
        metavar="T",
        type=_number(float, 0, 100, "a number from 0"),
        default=0.0,
        help="of live runs (default: 0); above 0 each run has a seed of its own",
    )
    add(
        "--golden-style",
        choices=("auto", "jsonl", "markdown-json", "xml", "native"),
        default="auto",
        help="the style of live runs, by default that of the transcript",
    )
    add(
        "--golden-strategy",
        choices=("auto", "free", "guided", "grammar"),
        default="auto",
        help="the strategy of live runs",
    )
    add("--golden-report", metavar="FILE", help="write a report of the golden transcripts (HTML)")


def _number(kind: Callable[[str], Any], low: float, high: float, what: str) -> Callable[[str], Any]:
    """A reader of numbers from ``low`` to ``high``; ``what`` they are, for a person."""

    def read(text: str) -> Any:
        try:
            if low <= (value := kind(text)) <= high:
                return value
        except ValueError:
            pass
        raise ArgumentTypeError(f"{text!r} is not {what}")

    return read


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker; finds out whether the server and the report's place are there."""
    config.addinivalue_line("markers", "golden: a golden transcript, replayed or asked again")
    if hasattr(config, "workerinput"):  # of pytest-xdist; all this was done before it was started
        return
    if config.option.collectonly:
        return
    if config.option.golden_live is not None:
        _reach(config)
    if config.option.golden_report is not None:
        path = config.invocation_params.dir / config.option.golden_report
        if path.is_dir():
            raise pytest.UsageError(f"--golden-report: {path} is a folder")
        config.pluginmanager.register(_ReportWriter(path), f"{NAME}-report")


def _reach(config: pytest.Config) -> None:
    from mlx_tools.errors import MlxToolsError

    try:
        _checker(config).reach()
    except MlxToolsError as error:
        raise pytest.UsageError(f"--golden-live: {error.message}") from None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """A line that says what is asked of which server."""
    option = config.option
    if option.golden_live is None:
        return []
    often = f"{option.golden_samples} times each, " if option.golden_samples > 1 else ""
    return [f"golden transcripts: live, {often}{option.golden_live}"]


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
        """Its one test: that it replays, or what it does live."""
        live = self.config.option.golden_live is not None
        yield GoldenItem.from_parent(self, name="live" if live else "replay")


class GoldenItem(pytest.Item):
    """The test of a golden transcript. ``check`` is what it came to, once it was run."""

    check: GoldenCheck | None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_marker(pytest.mark.golden)

    def runtest(self) -> None:
        """Checks it. Raises `NotAsRecorded`."""
        from mlx_tools.golden.checking import failure_text
        from mlx_tools.golden.steps import spelled

        checker = _checker(self.config)
        found = checker.check(self.path, self._registry())
        place, _, _ = self.nodeid.partition("::")
        self.check = check = replace(found, path=place)  # it means the same on any machine
        for key, value in (
            ("name", check.name),
            ("source", check.source),
            ("features", ", ".join(check.features)),
            ("rooms", ", ".join(check.rooms)),
        ):
            self.user_properties.append((key, spelled(value)))
        if not checker.passed(check):
            raise NotAsRecorded(failure_text(check))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The findings, without a traceback."""
        if isinstance(excinfo.value, NotAsRecorded | pytest.UsageError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it stands, and what a failure is headed with."""
        # pytest takes this for a dotted name where it is the end of the node's id.
        return self.path, None, self.nodeid.replace("::", ": ")

    def _registry(self) -> Registry | None:
        """The tools that are run, None where none are. Every folder may have its own."""
        if self.config.option.golden_tools != "run":
            return None
        made = self.config.stash.setdefault(_registries, {})
        folder = self.path.parent
        if folder not in made:
            made[folder] = _registry_of(self)
        return made[folder]


def _registry_of(item: pytest.Item) -> Registry:
    from mlx_tools.tools import Registry

    found = item.ihook.pytest_golden_registry(config=item.config)
    if not isinstance(found, Registry):
        raise pytest.UsageError(f"pytest_golden_registry gave {found!r}, not a Registry")
    return found


@pytest.hookimpl(trylast=True)
def pytest_golden_registry() -> Registry:
    """The tools that are run where a project names none: the built-in ones."""
    from mlx_tools.toolbox import builtin_tools

    return builtin_tools()


def _checker(config: pytest.Config) -> Checker:
    from mlx_tools.golden.checking import Checker, Live

    made = config.stash.get(_checkers, None)
    if made is None:
        option, live = config.option, None
        if option.golden_live is not None:
            live = Live(
                url=option.golden_live,
                samples=option.golden_samples,
                min_rate=option.golden_min_rate,
                style=option.golden_style,
                strategy=option.golden_strategy,
                temperature=option.golden_temperature,
            )
        made = Checker(live, with_records=option.golden_report is not None)
        config.stash[_checkers] = made
    return made


# --- the report ---------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attaches the check to the report, as a text: a worker of pytest-xdist hands it on so."""
    report = yield
    wanted = item.config.option.golden_report is not None
    if wanted and call.when == "call" and isinstance(item, GoldenItem) and item.check is not None:
        from mlx_tools.golden.checking import encode_check

        vars(report)[_ATTACHED] = encode_check(item.check)
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
        from mlx_tools.golden.checking import decode_check
        from mlx_tools.golden.report import write_report

        checks = [decode_check(self._checks[key]) for key in sorted(self._checks)]
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

_LOOK: Final = 1 << 16
"""Bytes of a line that are looked at; one that is longer must say what it is at its beginning."""

_LONGEST: Final = 1 << 26
"""Bytes after which a first line is nobody's header."""

_BOM: Final = b"\xef\xbb\xbf"


def is_golden(path: Path) -> bool:
    """True where a file's first line is a transcript's header and its second a golden record, as
    far as can be told without reading on: one that is damaged after or within these is one too."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return _says(file, "header") and _says(file, "golden", last=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _says(file: IO[bytes], kind: str, *, last: bool = False) -> bool:
    """True where the line at which a file stands is a record of this kind; it then stands at the
    next one, but for the last."""
    line = file.readline(_LOOK).removeprefix(_BOM)
    if re.match(rb'\s*\{\s*"type"\s*:\s*"%s"' % kind.encode(), line):
        return last or line.endswith(b"\n") or _skip_line(file)
    if not line.lstrip().startswith(b"{") or b'"%s"' % kind.encode() not in line:
        return False
    try:  # another program may have written its keys in another order
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("type") == kind


def _skip_line(file: IO[bytes]) -> bool:
    """Reads to the end of a line; whether there is one."""
    for _ in range(_LONGEST // _LOOK):
        part = file.readline(_LOOK)
        if part.endswith(b"\n") or len(part) < _LOOK:
            return part.endswith(b"\n")
    return False
