"""Waits that follow each other: their deadlines, and the look at a silent server."""

from __future__ import annotations

import asyncio
import gc
import weakref
from functools import partial
from typing import Any

import anyio
import pytest

from mlx_tools.backends import CompletionRequest, Deadlines, WaitTimer
from mlx_tools.backends.waits import ResponseWaits
from mlx_tools.errors import BackendBroken, BackendTimeout
from mlx_tools.testing import run, skip
from tests.waiting import HANG, until

IDLE, WHOLE, INTERVAL = 60.0, 600.0, 4.0


def waits(watch: Any = None, *, silent: bool = False) -> ResponseWaits:
    request = CompletionRequest(prompt="x", timeout=WHOLE, idle_timeout=IDLE)
    limits = Deadlines(request, "the server", clock=asyncio.get_running_loop().time)
    return ResponseWaits(limits, silent=silent, watch=watch, interval=INTERVAL)


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def result_of(future: asyncio.Future[str]) -> str:
    return await future


async def failure_after(seconds: float, waiting: ResponseWaits) -> str:
    """Return how a wait for nothing fails once so much time has passed."""
    task = asyncio.create_task(waiting.wait(never))
    await skip(0)
    assert not task.done()
    await skip(seconds)
    with pytest.raises(BackendTimeout) as caught:
        await task
    return str(caught.value)


def test_a_silence_ends_at_the_idle_timeout_and_a_request_at_its_own() -> None:
    async def tried() -> None:
        assert "silent for 60 s" in await failure_after(IDLE, waits())
        assert "did not complete within 600 s" in await failure_after(WHOLE, waits(silent=True))

    run(tried)


def test_each_wait_has_its_own_deadline_however_short_the_one_before() -> None:
    async def tried() -> None:
        waiting = waits()
        with pytest.raises(BackendTimeout):
            task = asyncio.create_task(waiting.wait(never, 1.0))
            await skip(1.0)
            await task
        for _ in range(3):
            came: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(waiting.wait(partial(result_of, came)))
            await skip(IDLE - 1)
            came.set_result("piece")
            assert await task == "piece"
        assert "silent for 60 s" in await failure_after(IDLE, waiting)

    run(tried)


def test_without_time_nothing_is_awaited() -> None:
    async def tried() -> None:
        waiting = waits()
        await skip(WHOLE)
        with pytest.raises(BackendTimeout, match="did not complete"):
            await waiting.wait(lambda: pytest.fail("it was awaited"))

    run(tried)


@pytest.mark.heavy
def test_a_silent_server_is_looked_at_again_and_again_until_it_has_died() -> None:
    async def tried() -> None:
        looks = 0

        async def watch() -> None:
            nonlocal looks
            looks += 1
            if looks == 3:
                raise BackendBroken("it died")

        task = asyncio.create_task(waits(watch).wait(never))
        for _ in range(3):
            assert not task.done()
            await skip(INTERVAL)
        with pytest.raises(BackendBroken, match="it died"):
            await task
        assert looks == 3

    run(tried)


def test_a_look_at_the_server_ends_with_the_wait() -> None:
    async def tried() -> None:
        ended, came = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def watch() -> None:
            try:
                await never()
            finally:
                ended.set()

        task = asyncio.create_task(waits(watch).wait(partial(result_of, came)))
        await skip(0)
        await skip(INTERVAL)
        came.set_result("piece")
        assert await task == "piece"
        await asyncio.wait_for(ended.wait(), HANG)

    run(tried)


def test_who_is_cancelled_by_others_ends_even_at_the_deadline() -> None:
    async def tried() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with anyio.CancelScope() as scope:
            loop.call_later(IDLE - 1, scope.cancel)
            passing = asyncio.create_task(skip(IDLE + 2))  # both are due in one go
            await waits().wait(never)
        assert scope.cancelled_caught and not task.cancelling()
        await passing

    run(tried)


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts its timers and tasks."""

    timers = tasks = 0

    def call_at(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        self.timers += 1
        return super().call_at(*args, **options)

    def create_task(self, *args: Any, **options: Any) -> Any:
        self.tasks += 1
        return super().create_task(*args, **options)


def test_a_thousand_short_waits_share_one_timer_and_start_no_task() -> None:
    async def tried() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        waiting, before = waits(never), loop.tasks
        for _ in range(1000):
            await waiting.wait(lambda: asyncio.sleep(0))
        assert loop.tasks == before
        assert loop.timers == 1

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(tried())


def test_a_closed_timer_keeps_nobody_alive() -> None:
    class Owner:
        def __init__(self) -> None:
            self.timer = WaitTimer(self.called)

        def called(self) -> None: ...

    async def tried() -> None:
        owner = Owner()
        owner.timer.start(HANG)
        owner.timer.close()
        gone = weakref.ref(owner)
        gc.disable()
        try:
            del owner
            assert gone() is None
        finally:
            gc.enable()

    asyncio.run(tried())


def test_a_timer_calls_at_the_last_time_that_it_was_given() -> None:
    async def tried() -> None:
        calls: list[int] = []
        timer = WaitTimer(lambda: calls.append(1))
        timer.start(10)
        timer.start(30)
        await skip(20)
        assert not calls
        timer.start(2)  # earlier than before
        await skip(5)
        assert calls == [1]
        timer.start(10)
        timer.stop()
        await skip(20)
        assert calls == [1]
        timer.start(1)
        await skip(5)
        await until(lambda: calls == [1, 1])

    run(tried)
