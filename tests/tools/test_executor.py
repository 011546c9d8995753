"""One call: within its time, whatever the tool does, and every end is a value."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from mlx_tools.errors import ErrorCode
from mlx_tools.tools import (
    Progress,
    Tool,
    ToolContext,
    ToolError,
    ToolLike,
    ToolResult,
    current_context,
    execute,
    tool,
)
from mlx_tools.tools.executor import MAX_OUTPUT_CHARS
from mlx_tools.tools.threads import MAX_THREADS
from tests.tables import table
from tests.waiting import until

SOON = 0.05
"""Seconds that a call which never ends is waited for."""
LONG = 60.0


def run(made: ToolLike, seconds: float = LONG, /, **arguments: Any) -> ToolResult:
    return asyncio.run(execute(made, arguments, timeout=seconds))


def failure(result: ToolResult) -> tuple[ErrorCode, str]:
    assert result.content is None
    assert result.error is not None
    return result.error.code, result.error.message


def both_ways(function: Callable[[], Any]) -> list[Tool]:
    """The function as a tool that runs in a thread, and as one that runs in the loop."""

    async def in_loop() -> Any:
        return function()

    return [tool(name="in_thread")(function), tool(name="in_loop")(in_loop)]


def raising(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


def test_what_is_returned_is_the_content() -> None:
    for made in both_ways(lambda: {"a": [1, "é"]}):
        result = run(made)
        assert (result.content, result.error) == ('{"a":[1,"é"]}', None)
        assert result.output_size_chars == 13


class Foreign(BaseException):
    """As libraries have for what must not be caught by mistake: trio's Cancelled, pytest's Exit."""


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@table(
    ("error", "expected"),
    [
        (ValueError("no such city"), ("tool_error", "ValueError: no such city")),
        (ValueError(), ("tool_error", "ValueError")),
        (ToolError("plain words"), ("tool_error", "plain words")),
        (ToolError("not this one", code="not_allowed"), ("not_allowed", "not this one")),
        (ToolError(""), ("tool_error", "the tool failed")),
        (SystemExit(3), ("tool_error", "SystemExit: 3")),
        (StopIteration(), ("tool_error", "StopIteration")),
        (StopAsyncIteration("x"), ("tool_error", "StopAsyncIteration: x")),
        (RecursionError("deep"), ("tool_error", "RecursionError: deep")),
        (MemoryError(), ("tool_error", "MemoryError")),
        (asyncio.CancelledError(), ("tool_error", None)),
        (GeneratorExit("x"), ("tool_error", "GeneratorExit: x")),
        (Foreign("x"), ("tool_error", "Foreign: x")),
        (BaseExceptionGroup("two", [Foreign("x")]), ("tool_error", None)),
        (TimeoutError("its own"), ("tool_error", "TimeoutError: its own")),
        (Silent(), ("tool_error", "Silent")),
        (ExceptionGroup("two", [ValueError("a")]), ("tool_error", None)),
        (ValueError("half \ud83d"), ("tool_error", "ValueError: half \ufffd")),
        (ValueError("x" * 10_000), ("tool_error", f"ValueError: {'x' * 487}…")),
    ],
)
def test_every_exception_is_an_error_in_few_words(
    error: BaseException, expected: tuple[ErrorCode, str | None]
) -> None:
    for made in both_ways(raising(error)):
        if isinstance(error, StopIteration) and made.is_async:
            continue  # Python itself makes it a RuntimeError there
        code, message = failure(run(made))
        assert code == expected[0]
        assert expected[1] is None or message == expected[1]
        assert "Traceback" not in message


def test_an_interrupt_from_the_keyboard_passes() -> None:
    for made in both_ways(raising(KeyboardInterrupt())):
        with pytest.raises(KeyboardInterrupt):
            run(made)


def test_a_tool_cannot_change_the_arguments_that_were_recorded() -> None:
    schema = {"type": "object", "properties": {"items": {"type": "array"}}}
    tries = []

    @tool(parameters=schema, effects={"read"}, retry="read_only")
    def take(items: list[int]) -> None:
        tries.append(list(items))
        items.clear()
        raise OSError

    arguments = {"items": [1, 2]}
    asyncio.run(execute(take, arguments, timeout=LONG))
    assert arguments == {"items": [1, 2]}
    assert tries == [[1, 2], [1, 2]]


def test_too_large_an_output_is_not_kept_but_its_size_is() -> None:
    for size, code in ((MAX_OUTPUT_CHARS, None), (MAX_OUTPUT_CHARS + 1, "payload_too_large")):
        result = run(tool(lambda size=size: "x" * size, name="t", parameters={"type": "object"}))
        assert (result.error and result.error.code) == code
        assert result.output_size_chars == size


# --- time ---


def test_a_function_that_never_ends_is_left_behind() -> None:
    began, ended = threading.Event(), threading.Event()
    contexts: list[ToolContext] = []

    @tool
    def hang(context: ToolContext) -> None:
        contexts.append(context)
        began.set()
        ended.wait(LONG)

    code, message = failure(run(hang, SOON))
    assert code == "timeout"
    assert "may still be running" in message
    assert began.wait(LONG) and contexts[0].cancelled
    assert contexts[0].timeout is not None
    ended.set()


def test_an_asynchronous_tool_is_cancelled_and_may_clean_up() -> None:
    cleaned: list[str] = []

    @tool
    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    async def main() -> ToolResult:
        result = await execute(wait, {}, timeout=SOON)
        await asyncio.sleep(0)
        return result

    assert failure(asyncio.run(main())) == ("timeout", f"no result within {SOON:g} s")
    assert cleaned == ["up"]


PROGRAM = """
import asyncio, os, resource, threading
from mlx_tools.tools import execute, tool

def hangs() -> None:
    threading.Event().wait()

async def swallows() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except {what}:
            pass

def full() -> None: ...

async def main(function):
    if function is full:
        highest = max(map(int, os.listdir("/dev/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
    made = tool(function, parameters={{"type": "object"}})
    result = await execute(made, {{}}, timeout={seconds})
    error = result.error
    print("ran" if error is None else f"{{error.code}} {{error.message}}")

asyncio.run(main({function}))
print("ended")
"""
LATE = f"timeout no result within {SOON} s"


@pytest.mark.parametrize(
    ("function", "what", "said"),
    [
        ("hangs", "None", f"{LATE}; it may still be running"),
        pytest.param("swallows", "asyncio.CancelledError", LATE, marks=pytest.mark.slow),
        pytest.param("swallows", "BaseException", LATE, marks=pytest.mark.slow),
        ("full", "None", "ran"),  # a thread needs no file
    ],
)
def test_neither_call_nor_program_is_held_up(function: str, what: str, said: str) -> None:
    seconds = LONG if said == "ran" else SOON
    code = PROGRAM.format(function=function, what=what, seconds=seconds)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG
    )
    assert done.stdout == f"{said}\nended\n", done.stderr


def test_the_shorter_time_holds() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    for own, seconds in ((SOON, LONG), (LONG, SOON), (None, 0.0)):
        code, message = failure(run(tool(name="t", timeout=own)(wait), seconds))
        shorter = min(own or LONG, seconds)
        assert (code, message) == ("timeout", f"no result within {shorter:g} s")


def test_a_tool_is_told_the_shorter_time() -> None:
    def left() -> float:
        return current_context().timeout or 0.0

    for own, seconds, shorter in ((20.0, LONG, 20.0), (LONG, 20.0, 20.0), (None, 20.0, 20.0)):
        result = run(tool(name="t", timeout=own)(left), seconds)
        assert 0 < float(result.content or 0) <= shorter


def test_cancelling_the_caller_cancels_the_call() -> None:
    started, cancelled = asyncio.Event(), []

    @tool
    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: execute(wait, {}, timeout=LONG))
            await started.wait()
            group.cancel_scope.cancel()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert cancelled == [True]


def test_calls_run_at_the_same_time() -> None:
    meeting = threading.Barrier(4)
    made = tool(name="meet")(lambda: meeting.wait(LONG) >= 0)

    async def main() -> list[ToolResult]:
        return await asyncio.gather(*(execute(made, {}, timeout=LONG) for _ in range(4)))

    assert [result.content for result in asyncio.run(main())] == ["true"] * 4


async def threads_are_free() -> None:
    made = tool(name="quick")(lambda: 1)

    async def works() -> bool:
        return (await execute(made, {}, timeout=LONG)).error is None

    await until(works)


def test_calls_one_after_the_other_start_no_thread_each() -> None:
    made = tool(name="where")(lambda: str(threading.get_ident()))

    async def main(calls: int) -> set[str | None]:
        return {(await execute(made, {}, timeout=LONG)).content for _ in range(calls)}

    asyncio.run(main(1))
    there = {str(thread.ident) for thread in threading.enumerate()}
    assert asyncio.run(main(9)) <= there


def test_so_many_calls_left_behind_are_an_error_and_no_new_thread() -> None:
    release = threading.Event()
    made = tool(name="t")(lambda: release.wait(LONG))

    async def main() -> list[ToolResult]:
        calls = (execute(made, {}, timeout=SOON) for _ in range(MAX_THREADS + 3))
        return await asyncio.gather(*calls)

    codes = [failure(result) for result in asyncio.run(main())]
    release.set()
    asyncio.run(threads_are_free())
    assert sum(code == "tool_error" for code, _ in codes) >= 3
    assert {code for code, _ in codes} == {"timeout", "tool_error"}


# --- trying again ---


def flaky(failures: int, error: Callable[[], Exception], **declared: Any) -> tuple[Tool, list[int]]:
    calls: list[int] = []

    def function() -> int:
        calls.append(1)
        if len(calls) <= failures:
            raise error()
        return len(calls)

    return tool(name="flaky", **declared)(function), calls


READ = {"effects": {"read"}}
AGAIN = {**READ, "retry": "read_only"}


@pytest.mark.parametrize(
    ("declared", "tries"),
    [
        (AGAIN, 2),
        (READ, 1),
        ({"effects": {"write"}, "retry": "read_only"}, 1),
        ({"retry": "read_only"}, 1),
    ],
)
def test_a_call_that_only_reads_and_says_so_is_tried_once_more(
    declared: dict[str, Any], tries: int
) -> None:
    made, calls = flaky(5, OSError, **declared)
    assert failure(run(made))[0] == "tool_error"
    assert len(calls) == tries
    made, calls = flaky(1, OSError, **declared)
    assert run(made).content == ("2" if tries == 2 else None)


def test_what_the_tool_says_on_purpose_and_a_timeout_are_final() -> None:
    made, calls = flaky(1, lambda: ToolError("no"), **AGAIN)
    assert failure(run(made)) == ("tool_error", "no")
    assert len(calls) == 1
    tries: list[int] = []

    async def wait() -> None:
        tries.append(1)
        await asyncio.Event().wait()

    assert failure(run(tool(name="t", **AGAIN)(wait), SOON))[0] == "timeout"
    assert tries == [1]


# --- what a tool sees ---


def test_progress_without_a_listener_and_after_the_end_goes_nowhere() -> None:
    kept: list[ToolContext] = []

    @tool
    async def keep(context: ToolContext) -> None:
        kept.append(context)
        context.progress("x")
        await asyncio.Event().wait()

    seen: list[Progress] = []

    async def main() -> None:
        await execute(keep, {}, ToolContext(report=seen.append), timeout=SOON)
        kept[0].progress("too late")
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [progress.message for progress in seen] == ["x"]


def test_context_variables_reach_a_function_in_a_thread_and_do_not_come_back() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    def look() -> str:
        before = variable.get()
        variable.set("inside")
        return before

    async def main() -> tuple[list[str | None], str]:
        variable.set("outside")
        results = [await execute(made, {}, timeout=LONG) for made in both_ways(look)]
        return [result.content for result in results], variable.get()

    assert asyncio.run(main()) == (["outside", "outside"], "outside")


def test_a_function_in_a_thread_can_run_an_event_loop_of_its_own() -> None:
    async def main() -> str | None:
        made = tool(name="loop")(lambda: anyio.run(sleepless))
        return (await execute(made, {}, timeout=LONG)).content

    async def sleepless() -> str:
        await anyio.sleep(0)
        return "ran"

    assert anyio.run(main) == "ran"


def test_a_second_try_gets_what_is_left_of_the_time() -> None:
    left: list[float] = []

    def fails() -> None:
        left.append(current_context().timeout or 0.0)
        raise OSError

    run(tool(name="t", effects={"read"}, retry="read_only")(fails))
    first, second = left
    assert second < first <= LONG


def test_a_call_that_was_cancelled_reports_nothing_more() -> None:
    seen: list[Progress] = []
    context = ToolContext(report=seen.append)
    context.progress("begun", 0.5)
    context.cancelled = True
    context.progress("goes on")
    assert [report.message for report in seen] == ["begun"]


@pytest.mark.parametrize(
    ("said", "told"), [(-1, 0.0), (0, 0.0), (0.25, 0.25), (1, 1.0), (17, 1.0), (float("nan"), None)]
)
def test_the_share_that_is_done_is_held_between_none_and_all(
    said: float, told: float | None
) -> None:
    seen: list[Progress] = []
    ToolContext(report=seen.append).progress("so far", said)
    assert [report.fraction for report in seen] == [told]
