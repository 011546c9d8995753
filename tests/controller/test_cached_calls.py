"""The result of a call that only reads serves the same call again, and only where it may."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import (
    Answered,
    Controller,
    Limits,
    Outcome,
    Policy,
    RunSettings,
    Stopped,
    TranscriptStore,
    tool,
)
from mlx_tools.messages import ToolSpec
from mlx_tools.testing import ScriptedApprover, ScriptedBackend, answer, call
from mlx_tools.tools import (
    NestedReadCallCache,
    ReadCallCache,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
)
from mlx_tools.transcript.records import ObservationRecord
from tests.controller.sessions import read_records
from tests.waiting import EXPIRES, HANG

ALL = Policy(allow=["*"], ask_effects=())
READ = frozenset({"read"})


class World:
    """A place that can be read and written, and how often it was."""

    def __init__(self) -> None:
        self.value, self.reads = 1, 0

        @tool(effects={"read"})
        def look(at: str) -> str:
            """Looks."""
            self.reads += 1
            return f"{at}: {self.value}"

        @tool(effects={"read"}, cache=False)
        def watch(at: str) -> str:
            """Looks at what changes by itself."""
            self.reads += 1
            return f"{at}: {self.reads}"

        @tool(effects={"write"})
        def change(to: int) -> str:
            """Changes it."""
            self.value = to
            return "done"

        @tool(effects={"read"})
        async def ponder(context: ToolContext) -> str:
            """Has the model change it."""
            return await context.ask("Go on.")

        self.tools = [look, watch, change, ponder]


def controller(world: World, *script: str, cache: str = "run", **more: Any) -> Controller:
    settings = RunSettings(cache=cache)  # type: ignore[arg-type]
    more.setdefault("policy", ALL)
    return Controller(ScriptedBackend(*script), world.tools, settings=settings, **more)


def asked(run: Controller, times: int = 2) -> list[Outcome]:
    """The outcomes of so many questions of one conversation."""

    async def ask() -> list[Outcome]:
        async with await run.conversation() as conversation:
            return [await conversation.run("What?") for _ in range(times)]

    return asyncio.run(ask())


def test_a_call_after_one_that_was_refused_is_answered_as_before(tmp_path: Path) -> None:
    """The model may look again after a change; the change was refused, so nothing is different."""
    world = World()
    store = TranscriptStore(tmp_path)
    run = controller(
        world,
        call("look", at="a"),
        call("change", to=2),
        call("look", at="a"),
        answer("1"),
        policy=Policy(allow=["*"], ask=["change"]),
        approver=ScriptedApprover(False),
        store=store,
    )
    outcome = run.run_sync("What is it?")
    first, refused, again = outcome.calls
    assert (first.output, again.output, world.reads) == ("a: 1", "a: 1", 1)
    assert (first.status, refused.status, again.status) == ("ok", "denied", "ok")
    assert (first.cached, again.cached, again.duration_ms) == (False, True, 0)
    assert "cached" not in first.to_json()
    assert again.to_json()["cached"] is True
    assert outcome.counters.tools["look"].ran == 1
    assert outcome.counters.tools["look"].ok == 2
    written = read_records(outcome)
    assert [r.cached for r in written if isinstance(r, ObservationRecord)] == [False, False, True]


MADE_BEFORE = "(You made this very call before, and no call has changed anything since.) "


@pytest.mark.parametrize(
    ("name", "cache", "reads"), [("look", "run", 1), ("look", "off", 2), ("watch", "run", 2)]
)
def test_a_call_made_again_in_a_question_is_served_and_the_model_is_told_so(
    name: str, cache: str, reads: int
) -> None:
    world = World()
    script = (call(name, at="a"), call("look", at="b"), call(name, at="a"), answer("1"))
    outcome = controller(world, *script, cache=cache).run_sync("What is it?")
    first, _, again = outcome.calls
    assert (first.status, again.status) == ("ok", "ok")
    assert again.cached is (reads == 1) and world.reads == reads + 1
    assert not (first.output or "").startswith(MADE_BEFORE)
    assert (again.output or "").startswith(f"{MADE_BEFORE}a: ")


def test_a_call_made_the_third_time_in_a_question_ends_the_run() -> None:
    world = World()
    backend = [call("look", at="a")] * 3
    outcome = controller(world, *backend, answer("1")).run_sync("What is it?")
    assert isinstance(outcome, Stopped) and outcome.reason == "repeated_call"
    assert [c.error_code for c in outcome.calls] == [None, None, "repeated_call"]


def test_a_reading_call_that_failed_is_made_again_once() -> None:
    tries: list[str] = []

    @tool(effects={"read"})
    def look(at: str) -> str:
        """Looks."""
        tries.append(at)
        if len(tries) == 1:
            raise ToolError("it is busy")
        return "there"

    script = (call("look", at="a"), call("look", at="a"), answer("1"))
    outcome = Controller(ScriptedBackend(*script), [look], ALL).run_sync("What is it?")
    assert [c.status for c in outcome.calls] == ["error", "ok"]
    assert outcome.calls[1].output == f"{MADE_BEFORE}there"


@pytest.mark.parametrize(("cache", "reads"), [("off", 2), ("run", 2), ("session", 1)])
def test_later_questions_of_a_session_are_served_where_that_is_wanted(
    cache: str, reads: int
) -> None:
    world = World()
    script = (call("look", at="a"), answer("1")) * 2
    run = controller(world, *script, cache=cache)
    outcomes = asked(run)
    assert world.reads == reads
    assert [outcome.calls[0].cached for outcome in outcomes] == [False, reads == 1]


@pytest.mark.parametrize("name", ["watch", "change"])
def test_what_changes_by_itself_or_changes_things_is_made_every_time(name: str) -> None:
    world = World()
    arguments = {"at": "a"} if name == "watch" else {"to": 2}
    run = controller(world, *(call(name, **arguments), answer("x")) * 2, cache="session")
    assert not any(outcome.calls[0].cached for outcome in asked(run))


@pytest.mark.parametrize("cache", ["off", "run"])
def test_a_run_within_a_call_shares_the_answers_of_the_question_around_it(cache: str) -> None:
    world = World()
    looks = [call("look", at="a"), call("look", at="b")]
    within = [looks[0], looks[1], answer("inner")]
    script = (looks[0], call("ponder"), *within, looks[1], answer("1"))
    outcome = controller(world, *script, cache=cache).run_sync("What is it?")
    assert isinstance(outcome, Answered) and outcome.answer == "1"
    assert [c.cached for c in outcome.calls] == [False, False, cache == "run"]
    assert world.reads == (2 if cache == "run" else 4)
    assert outcome.calls[2].output == "b: 1"  # it is the first such call of this session


def test_an_answer_of_the_model_is_not_kept() -> None:
    world = World()
    script = (call("ponder"), answer("a"), call("ponder"), answer("b"), answer("done"))
    outcome = controller(world, *script).run_sync("What is it?")
    assert [c.cached for c in outcome.calls] == [False, False]
    assert [(c.output or "")[-1:] for c in outcome.calls] == ["a", "b"]


def test_an_answer_of_one_session_alone_is_not_shared() -> None:
    world, reads = World(), ReadCallCache("run")

    def looked(session: str) -> ToolResult:
        context = ToolContext(session=session)
        made = NestedReadCallCache(reads).call(
            world.tools[0], {"at": "a"}, context, of_session=True, timeout=HANG
        )
        return asyncio.run(made)

    assert [looked(session).cached for session in ("s1", "s2", "s1")] == [False, False, True]


def test_a_change_that_the_model_makes_within_a_call_empties_the_cache() -> None:
    world = World()
    script = (
        *(call("look", at="a"), answer("1")),
        *(call("ponder"), call("change", to=2), answer("changed"), answer("done")),
        *(call("look", at="a"), answer("2")),
    )
    run = controller(world, *script, cache="session", limits=Limits(max_iterations=9))
    outcomes = asked(run, 3)
    assert [outcome.calls[-1].output for outcome in outcomes] == ["a: 1", "changed", "a: 2"]


# --- alone --------------------------------------------------------------------------------------


def made(
    reads: ReadCallCache,
    subject: Tool,
    arguments: dict[str, Any],
    expected: str | None = None,
    timeout: float = HANG,
) -> ToolResult:
    context = ToolContext(expected=expected)
    return asyncio.run(reads.call(subject, arguments, context, timeout=timeout))


def test_a_call_that_was_approved_on_a_state_is_made() -> None:
    world = World()
    reads = ReadCallCache("run")
    for expected in (None, "state", "state"):
        assert not made(reads, world.tools[0], {"at": "a"}, expected=expected).cached
    assert world.reads == 3


def test_nothing_is_kept_once_a_change_did_not_end_in_time() -> None:
    world = World()

    end = threading.Event()

    @tool(effects={"write"})
    def slow() -> None:
        """Changes something, some time."""
        end.wait(60)

    reads = ReadCallCache("session")
    assert made(reads, world.tools[0], {"at": "a"}).error is None
    assert made(reads, slow, {}, timeout=EXPIRES).error is not None
    for _ in range(2):
        assert not made(reads, world.tools[0], {"at": "a"}).cached
    end.set()


def test_what_was_read_while_something_changed_is_not_kept() -> None:
    reads = ReadCallCache("session")
    entered, leave = anyio.Event, anyio.Event

    async def overlapping() -> None:
        read_began, change_began, read_may_end = entered(), entered(), leave()

        @tool(effects={"read"})
        async def look() -> str:
            """Looks."""
            read_began.set()
            await read_may_end.wait()
            return "old"

        @tool(effects={"write"})
        async def change() -> str:
            """Changes."""
            change_began.set()
            return "done"

        async with anyio.create_task_group() as group:

            async def read() -> None:
                await reads.call(look, {}, ToolContext(), timeout=120.0)

            group.start_soon(read)
            await read_began.wait()
            await reads.call(change, {}, ToolContext(), timeout=120.0)
            assert change_began.is_set()
            read_may_end.set()
        assert not (await reads.call(look, {}, ToolContext(), timeout=120.0)).cached

    anyio.run(overlapping, backend="asyncio")


def test_each_tool_and_each_value_of_an_argument_has_an_answer_of_its_own() -> None:
    """The same arguments to another tool are another call; so are 1, 1.0, True and "1"."""

    def named(name: str) -> Tool:
        async def answered(arguments: Any) -> str:
            return f"{name} {arguments!r}"

        return Tool(ToolSpec(name, effects=READ), answered)

    values = (1, 1.0, True, "1", [1], {"a": 1}, {"a": 1.0}, None)
    wanted = [(named(name), {"at": value}) for name in ("look", "watch") for value in values]
    reads = ReadCallCache("session")

    async def go() -> None:
        for cached in (False, True):
            for made, arguments in wanted:
                result = await reads.call(made, arguments, ToolContext(), timeout=120.0)
                assert result.content == f"{made.spec.name} {arguments!r}"
                assert result.cached == cached

    asyncio.run(go())


def making(reads: ReadCallCache) -> Callable[[int, int], bool]:
    """Return a function that says whether a call is made that comes to so many characters."""

    def made(number: int, size: int) -> bool:
        calls: list[Any] = []

        async def answered(arguments: Any) -> str:
            calls.append(arguments)
            return "x" * size

        look = Tool(ToolSpec("look", effects=READ), answered)
        asyncio.run(reads.call(look, {"n": number}, ToolContext(), timeout=120.0))
        return bool(calls)

    return made


def test_the_answer_that_was_used_longest_ago_goes_first() -> None:
    made = making(ReadCallCache("session"))
    assert all(made(number, 100_000) for number in range(50))
    assert not made(0, 100_000)
    assert made(50, 100_000)
    assert not made(0, 100_000) and made(1, 100_000)


def test_what_is_kept_has_bounds() -> None:
    made = making(ReadCallCache("session"))
    assert all(made(number, 100_000) for number in range(60))
    assert not any(made(number, 100_000) for number in range(10, 60))
    assert made(9, 100_000)
    assert all(made(number, 1) for number in range(100, 400))
    assert not any(made(number, 1) for number in range(200, 400)) and made(199, 1)
    assert made(1000, 2_000_000) and made(1000, 2_000_000)


VALUES = st.one_of(st.integers(0, 3), st.sampled_from(["0", "a", "", True, False, 1.0, None]))


@given(st.lists(st.tuples(st.sampled_from(["read", "write"]), VALUES), max_size=30))
def test_what_is_found_is_what_a_call_would_come_to(steps: list[tuple[str, Any]]) -> None:
    """However reads and writes follow: the world as it is, never as it was."""
    state: dict[str, int] = {}

    async def look(arguments: Any) -> str:
        return f"{arguments['key']!r} {state.get(repr(arguments['key']), 0)}"

    async def change(arguments: Any) -> str:
        state[repr(arguments["key"])] = state.get(repr(arguments["key"]), 0) + 1
        return "done"

    reads = ReadCallCache("session")
    subjects = {
        "read": Tool(ToolSpec("look", effects=READ), look),
        "write": Tool(ToolSpec("change", effects=frozenset({"write"})), change),
    }

    async def go() -> None:
        for kind, key in steps:
            subject = subjects[kind]
            result = await reads.call(subject, {"key": key}, ToolContext(), timeout=120.0)
            if kind == "read":
                wanted = state.get(repr(key), 0)
                assert (result.content or "").endswith(f" {wanted}")

    asyncio.run(go())
