"""Progress: what is said first is passed on, a flood is thinned, the last word is not lost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.testing import run, skip
from mlx_tools.tools import Progress, ToolContext, execute, tool
from mlx_tools.tools.context import BURST, REPORT_INTERVAL, Reports
from tests.waiting import HANG


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def told(*steps: float, count: int = 1) -> list[str]:
    """The reports that reach the listener after each of these pauses, in seconds, of ``count``."""
    seen: list[str] = []

    async def main() -> None:
        clock = Clock()
        reports = Reports(lambda progress: seen.append(progress.message), clock)
        for number, step in enumerate(steps):
            clock.now += step
            for part in range(count):
                reports.take(Progress(f"{number}.{part}"))
        reports.end()

    asyncio.run(main())
    return seen


def test_of_a_flood_the_beginning_and_the_last_report_arrive_and_a_pause_makes_room() -> None:
    seen = told(0, count=100_000)
    assert seen == [*(f"0.{number}" for number in range(BURST)), "0.99999"]
    assert told(0, 10 * BURST * REPORT_INTERVAL, count=BURST) == [
        f"{number}.{part}" for number in range(2) for part in range(BURST)
    ]


@given(st.lists(st.floats(0, 3), min_size=1, max_size=20), st.integers(1, 40))
def test_what_arrives_is_in_order_bounded_by_time_and_ends_with_the_last(
    steps: list[float], count: int
) -> None:
    seen = told(*steps, count=count)
    places = [tuple(map(int, message.split("."))) for message in seen]
    assert places == sorted(set(places))
    assert places[-1] == (len(steps) - 1, count - 1)
    # A sum of floats is not exact.
    assert len(seen) <= BURST + sum(steps[1:]) / REPORT_INTERVAL + 1 + 1e-6


def test_reports_of_many_threads_at_once_lose_no_last_word() -> None:
    seen: list[str] = []

    async def main() -> None:
        reports = Reports(lambda progress: seen.append(progress.message))

        def flood(name: int) -> None:
            for number in range(2000):
                reports.take(Progress(f"{name}.{number}"))

        threads = [threading.Thread(target=flood, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        reports.take(Progress("end"))
        reports.end()

    asyncio.run(main())
    assert seen[-1] == "end"
    assert len(seen) == len(set(seen))


def test_a_fault_of_the_listener_costs_the_call_nothing() -> None:
    faults: list[Any] = []

    @tool
    def work(context: ToolContext) -> str:
        context.progress("x")
        return "done"

    def listen(progress: Progress) -> None:
        raise ValueError(progress.message)

    async def main() -> str | None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, told: faults.append(told))
        return (await execute(work, {}, ToolContext(report=listen), timeout=HANG)).content

    assert asyncio.run(main()) == "done"
    assert [str(fault["exception"]) for fault in faults] == ["x"]


def test_nothing_is_told_of_a_call_that_was_cancelled() -> None:
    seen: list[Progress] = []

    async def main() -> None:
        reports = Reports(seen.append, Clock())
        for _ in range(2 * BURST):
            reports.take(Progress("x"))
        reports.end(cancelled=True)
        reports.take(Progress("later"))
        await skip(2 * REPORT_INTERVAL)

    run(main)
    assert seen == []
