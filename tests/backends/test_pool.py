"""Several servers as one backend."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.backends import CompletionRequest, Health, UpstreamPool, choose_backend
from mlx_tools.backends.address import Address
from mlx_tools.backends.deadlines import Retry
from mlx_tools.backends.interface import Chunk
from mlx_tools.backends.pool import FAILURES, MAX_PAUSE, PAUSE, Upstream
from mlx_tools.backends.server_errors import ConnectionDropped, ServerFailed, TryAnotherServer
from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    UsageError,
)
from tests.backends.loopback import SSE, Connection, answers, says, serving
from tests.backends.test_choose import NOBODY, OK, listing, mlx_server, no_models, server_of
from tests.tables import table

__all__ = ["no_models"]  # a fixture

REFUSES = (BackendRefused("no"), BackendTimeout("late"), UsageError("no"))
GONE = (BackendUnreachable("gone"), BackendDead("dead"))
FAILS = (ConnectionDropped("broke off"), ServerFailed("failed"), BackendBroken("no completion"))


class Clock:
    """Seconds as a test has them."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Server:
    """A server that says its name, or raises ``error``: before it says anything or, ``late``,
    behind it. ``looks`` counts how often it was asked how it is."""

    def __init__(self, name: str) -> None:
        self.address = Address(f"http://{name}", loopback=True)
        self.model: str | None = "m"
        self.forbidden_tokens: tuple[int, ...] = ()
        self.error: Exception | None = None
        self.late = False
        self.asked = self.looks = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        self.asked += 1
        if self.error is not None and not self.late:
            raise self.error
        yield Chunk(str(self.address))
        if self.error is not None:
            raise self.error
        yield Chunk("", "stop")

    async def health(self, timeout: float = 5.0) -> Health:
        self.looks += 1
        await asyncio.sleep(0)
        return Health("ok" if self.error is None else "unreachable", "it is gone")

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        return ("m",)

    def remember_model(self, name: str | None, model_names: Sequence[str]) -> None:
        assert (name, model_names) == ("m", ("m",))


def pool_of(*names: str, spread: bool = False) -> tuple[UpstreamPool, list[Server], Clock]:
    clock, servers = Clock(), [Server(name) for name in names]
    upstreams = [Upstream(cast(Any, one), clock) for one in servers]
    retry = Retry(clock=clock, sleep=clock.sleep, jitter=lambda: 0.5)
    return UpstreamPool(upstreams, model="m", spread=spread, retry=retry), servers, clock


async def said(pool: UpstreamPool, conversation: str = "c") -> str:
    request = CompletionRequest(prompt="hm", conversation=conversation)
    text = "".join([chunk.text async for chunk in pool.complete(request)])
    return text.removeprefix("http://")


# --- failover -----------------------------------------------------------------------------------


@table("late", [False, True])
@table("error", [*GONE, *FAILS, TryAnotherServer("busy")], ids=lambda e: type(e).__name__)
def test_the_next_is_asked_where_one_fails_before_its_first_byte_and_not_later(
    error: BackendError, late: bool
) -> None:
    pool, (a, b), _ = pool_of("a", "b")
    a.error, a.late = error, late
    if late:
        with pytest.raises(type(error)):
            asyncio.run(said(pool))
    else:
        assert asyncio.run(said(pool)) == "b"
    assert (a.asked, b.asked) == (1, not late)


def test_the_next_is_asked_where_one_gives_nothing_again_and_again() -> None:
    with (
        serving(lambda request: request.send(SSE), health=OK, models=listing("org/m")) as a,
        serving(says("B"), health=OK, models=listing("org/m")) as b,
    ):
        assert asyncio.run(said(choose(a.url, b.url).backend)) == "B"
    assert len(a.bodies) > 1


@pytest.mark.parametrize("error", REFUSES, ids=lambda e: type(e).__name__)
def test_what_is_the_requests_own_fault_is_asked_once(error: Exception) -> None:
    pool, (a, b), _ = pool_of("a", "b")
    a.error = error
    with pytest.raises(type(error)):
        asyncio.run(said(pool))
    assert (a.asked, b.asked) == (1, 0)


def test_what_passes_is_sent_again_where_all_fail() -> None:
    pool, servers, clock = pool_of("a", "b")
    for one in servers:
        one.error = ServerFailed("failed")
    with pytest.raises(BackendError):
        asyncio.run(said(pool))
    assert all(one.asked > 1 for one in servers) and clock.now > 0


def test_all_that_are_gone_are_named() -> None:
    pool, servers, _ = pool_of("a", "b")
    for one in servers:
        one.error = BackendUnreachable("gone")
    with pytest.raises(BackendUnreachable):
        asyncio.run(said(pool))
    with pytest.raises(BackendUnreachable, match=r"none of 2 servers.*gone; .*gone"):
        asyncio.run(said(pool))
    assert [one.asked for one in servers] == [1, 1]  # the second time they were but looked at


# --- the breaker --------------------------------------------------------------------------------


def test_a_server_that_is_gone_is_looked_at_after_a_pause_that_grows() -> None:
    clock = Clock()
    breaker, pauses = Upstream(cast(Any, Server("a")), clock), []
    for _ in range(10):
        for _ in range(20):  # as many requests were under way
            breaker.fail("gone")
        assert breaker.problem and not breaker.is_due
        before = clock.now
        while not breaker.is_due:
            clock.now += PAUSE
        pauses.append(clock.now - before)
    assert pauses[:4] == [1, 2, 4, 8] and pauses[-1] == MAX_PAUSE
    breaker.succeed()
    assert not breaker.problem


def test_a_server_that_fails_now_and_then_stays_in() -> None:
    breaker = Upstream(cast(Any, Server("a")), Clock())
    for _ in range(20):
        for _ in range(FAILURES - 1):
            breaker.fail("failed", at_once=False)
        assert not breaker.problem
        breaker.succeed()
    for _ in range(FAILURES):
        breaker.fail("failed", at_once=False)
    assert breaker.problem


def test_one_that_comes_back_is_used_again_and_costs_no_request_before() -> None:
    pool, (a, b), clock = pool_of("a", "b")
    a.error = BackendUnreachable("gone")
    assert [asyncio.run(said(pool)) for _ in range(3)] == ["b", "b", "b"]
    assert (a.asked, a.looks) == (1, 0)
    clock.now += PAUSE
    assert asyncio.run(said(pool)) == "b"
    assert (a.asked, a.looks) == (1, 1)
    a.error, clock.now = None, clock.now + 2 * PAUSE
    assert asyncio.run(said(pool)) == "a"
    assert b.asked == 4


def test_many_at_once_have_a_server_looked_at_once() -> None:
    pool, (a, b), _ = pool_of("a", "b")
    for one in (a, b):
        one.error = BackendUnreachable("gone")

    async def many() -> list[Any]:
        with pytest.raises(BackendUnreachable):
            await said(pool)
        a.error = None
        return await asyncio.gather(*(said(pool, str(n)) for n in range(200)))

    assert set(asyncio.run(many())) == {"a"}
    assert a.looks == 2 and a.asked == 201  # how it is, and what it serves


def test_whoever_goes_away_leaves_the_next_a_server_to_look_at() -> None:
    pool, (a,), _ = pool_of("a")
    a.error = BackendUnreachable("gone")

    async def go() -> str:
        with pytest.raises(BackendUnreachable):
            await said(pool)
        task = asyncio.create_task(said(pool))
        while not a.looks:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        a.error = None
        return await said(pool)

    assert asyncio.run(go()) == "a"


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["up", "gone", "fails", "ask", "ask", "ask", "wait"]), st.integers(0, 2)
    ),
    max_size=40,
)


@given(events=EVENTS, spread=st.booleans())
def test_whatever_happens_an_answer_comes_while_one_server_is_well(
    events: list[tuple[str, int]], spread: bool
) -> None:
    pool, servers, clock = pool_of("a", "b", "c", spread=spread)
    for what, number in events:
        if what == "ask":
            well = {str(one.address)[7:] for one in servers if one.error is None}
            if well:
                assert asyncio.run(said(pool, str(number))) in well
            else:
                with pytest.raises(BackendError):
                    asyncio.run(said(pool, str(number)))
        elif what == "wait":
            clock.now += number
        else:
            errors = {"up": None, "gone": GONE[0], "fails": FAILS[1]}
            servers[number].error = errors[what]


# --- which server is asked ----------------------------------------------------------------------


def test_a_conversation_stays_with_its_server_and_moves_only_while_that_is_out() -> None:
    pool, servers, clock = pool_of("a", "b", "c", spread=True)
    conversations = [f"conversation {number}" for number in range(300)]

    async def homes() -> list[str]:
        return [await said(pool, one) for one in conversations]

    at_first = asyncio.run(homes())
    assert min(Counter(at_first).values()) > 60
    assert asyncio.run(homes()) == at_first
    servers[1].error = BackendUnreachable("gone")
    moved = asyncio.run(homes())
    assert all(now == was for now, was in zip(moved, at_first, strict=True) if was != "b")
    assert set(moved) == {"a", "c"}
    servers[1].error, clock.now = None, clock.now + MAX_PAUSE
    assert asyncio.run(homes()) == at_first


def test_another_process_sends_a_conversation_to_the_same_server() -> None:
    one, other = (pool_of(*names, spread=True)[0] for names in ("abc", "cab"))
    for number in range(50):
        request = CompletionRequest(prompt=f"{number} and so on")
        assert one.order(request)[0].address == other.order(request)[0].address


# --- how a pool is chosen -----------------------------------------------------------------------


def choose(*urls: str, **options: Any) -> Any:
    return asyncio.run(choose_backend(url=urls, **{"usual": NOBODY, **options}))


def test_the_first_that_answers_says_the_model_and_others_serve_it_too() -> None:
    with (
        serving(says("A"), health=OK, models=listing("org/m")) as a,
        serving(says("B"), health=OK, models=listing("org/other", "org/m")) as b,
        serving(says("C"), health=OK, models=listing("org/other")) as c,
    ):
        chosen = choose(NOBODY, a.url, b.url, c.url)
        pool = chosen.backend
        assert chosen.model == "org/m"
        assert f"{NOBODY} does not answer; {c.url} does not serve org/m" in chosen.note
        assert [one.address for one in pool.upstreams] == [NOBODY, a.url, b.url]
        assert [one.address for one in pool.other_upstreams] == [c.url]
        assert chosen.header_fields()["url"] == ",".join((NOBODY, a.url, b.url, c.url))
        assert asyncio.run(pool.models()) == ("org/m", "org/other")
        assert asyncio.run(said(pool)) == "A"
        other = choose(NOBODY, a.url, b.url, c.url, model="other").backend
        assert [one.address for one in other.upstreams] == [NOBODY, b.url, c.url]
        assert asyncio.run(said(other)) == "B"
        assert b.bodies[-1]["model"] == "org/other"


def test_no_server_of_mlx_lm_is_made_to_load_what_another_runs() -> None:
    both = "org/a", "org/b"
    with mlx_server(*both, "/models/a") as a, mlx_server(*both, "/models/b") as b:
        chosen = choose(a.url, b.url)
        assert [one.address for one in chosen.backend.upstreams] == [a.url]


def test_a_server_that_comes_up_later_is_used_if_it_serves_the_model() -> None:
    up: list[str] = []
    clock = Clock()
    clock.now = 1e9  # behind all that the servers' own clock says

    def health(request: Connection) -> None:
        (OK if up else answers(503, {"status": "loading"}))(request)

    def models(request: Connection) -> None:
        listing(*up)(request)

    with (
        serving(says("A"), health=health, models=models) as a,
        serving(says("B"), health=OK, models=listing("m")) as b,
    ):
        pool = choose(a.url, b.url).backend
        pool.upstreams[0].clock = clock
        for listed, who in (((), "B"), (("other",), "B"), (("other", "x/m"), "A")):
            up[:] = listed
            clock.now += MAX_PAUSE
            assert asyncio.run(said(pool)) == who
            assert asyncio.run(pool.models()) == (*listed, "m")  # others may be asked for these
        assert [body["model"] for body in a.bodies] == ["x/m"]


def test_a_model_that_none_serves_and_servers_that_none_answers_are_told() -> None:
    with server_of("m") as a:
        with pytest.raises(UsageError, match="none of the servers that answer serves the model x"):
            choose(a.url, NOBODY, model="x")
        with pytest.raises(UsageError, match="no completions server"):
            choose(a.url, "ollama:http://127.0.0.1:2")
    with pytest.raises(BackendUnreachable, match="none of 2 servers"):
        choose(NOBODY, "http://127.0.0.1:2")
