"""No test waits for time: the code of the tests is searched for what would."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import HANG, wait_until

pytestmark = pytest.mark.check

TESTS = Path(__file__).parent

FAR_OFF = 5.0
"""Seconds. A shorter deadline is met on a quiet machine and missed on a busy one."""

FOR_EVER = 60.0
"""Seconds of a sleep that stands for a hang, and is broken off."""

SLEEPS = {"sleep"}
DEADLINES = {"fail_after", "move_on_after", "timeout_at"}
BLOCKING = {"wait", "wait_for", "join", "acquire", "communicate", "timeout"}
"""Calls whose timeout may stand without its name."""

ANY = re.compile(
    rf"(?i:timeout)\w*\s*=|\b(?:{'|'.join(SLEEPS | DEADLINES)})\s*\("
    rf"|\b(?:{'|'.join(BLOCKING)})\s*\([\s(]*[\d.]"
)
"""A text without these is not looked at further."""

EXCEPTIONS = {
    "waiting.py": "the one place that looks again after a pause",
    "slowed.py": "pauses are what it is for",
    "cli/test_cli_approve.py": "what is pasted comes in pieces only if there is time between them",
    "cli/test_cli_chat.py": "lines that are typed are told from a paste by the time between them",
}
"""Files in which a sleep stands, and why. Deadlines are searched for in them too."""


def faults(text: str, sleeps: bool = True) -> Iterator[str]:
    """The calls in a text of Python that wait for time, each with its line."""
    for node in ast.walk(ast.parse(text)) if ANY.search(text) else ():
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        first = node.args[0] if node.args else None
        seconds = _number(first)
        short = seconds is not None and 0 < seconds < FAR_OFF
        named = [k for k in node.keywords if k.arg and "timeout" in k.arg.lower()]
        if (
            (name in SLEEPS and sleeps and first and not _is_no_pause(seconds))
            or (name in DEADLINES and not _is_guard(first, seconds))
            or (name in BLOCKING and short)
            or any(0 < (_number(k.value) or 0) < FAR_OFF for k in named)
        ):
            yield f"{node.lineno}: {ast.unparse(node)}"


def _number(node: ast.expr | None) -> float | None:
    """The number that a node is, or None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    return None


def _is_no_pause(seconds: float | None) -> bool:
    """True for a sleep that only lets others go on, and for one that stands for a hang."""
    return seconds is not None and (seconds == 0 or seconds >= FOR_EVER)


def _is_guard(node: ast.expr | None, seconds: float | None) -> bool:
    """True for a deadline that only ends what hangs."""
    name = getattr(node, "id", getattr(node, "attr", ""))
    return name == "HANG" or (seconds is not None and seconds >= FOR_EVER)


def test_no_test_waits_for_time() -> None:
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        place = path.relative_to(TESTS).as_posix()
        text = path.read_text(encoding="utf-8")
        found += [f"{place}:{fault}" for fault in faults(text, sleeps=place not in EXCEPTIONS)]
    assert found == [], "wait for an event (tests/waiting.py): CONTRIBUTING.md, Habits"


def test_what_waits_for_time_is_found() -> None:
    waits = (
        *("time.sleep(0.1)", "sleep(pause)", "anyio.fail_after(30)", "move_on_after(LONG)"),
        *("process.wait(timeout=1)", "event.wait(0.5)", "ask(idle_timeout=0.3)", "thread.join(1)"),
        *("asyncio.wait_for(task, timeout=2.0)", "run(Limits(total_timeout=0.05))"),
    )
    assert [text for text in waits if not [*faults(text)]] == []
    fine = ("sleep(0)", "sleep(600)", "fail_after(HANG)", "wait(timeout=60)", "', '.join(words)")
    assert [text for text in fine if [*faults(text)]] == []


def test_a_wait_ends_with_what_it_waits_for() -> None:
    looks = iter([0, None, "", "come"])
    assert wait_until(lambda: next(looks)) == "come"
    assert HANG >= FOR_EVER
