"""Fails a run in which a test is skipped for a reason that ``tests/skips.txt`` does not list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LISTED = Path(__file__).with_name("skips.txt")


def known_reasons() -> list[str]:
    """The regular expressions of the list."""
    lines = map(str.strip, LISTED.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def is_known(reason: str) -> bool:
    """Return whether the list has this reason for a skip."""
    return any(re.fullmatch(known, reason) for known in known_reasons())


class KnownSkipsOnly:
    """The plugin; with xdist, that of the process that the workers report to."""

    def __init__(self) -> None:
        self._unknown: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._look_at(report)

    def _look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        assert isinstance(report.longrepr, tuple)
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not is_known(reason):
            self._unknown.setdefault(reason, report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, place in self._unknown.items():
            terminalreporter.write_line(
                f"skipped for a reason not in {LISTED.name}: {reason} ({place})"
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> object:
        result = yield
        if self._unknown and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return result
