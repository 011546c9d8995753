"""Several servers as one backend: an ordered list, asked from the beginning."""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from mlx_tools.backends.address import Address, parse_address
from mlx_tools.backends.completions import CompletionsBackend, Health
from mlx_tools.backends.deadlines import MORE_TIME_HINT, Clock, Retry, now
from mlx_tools.backends.inspection import (
    CALL_MARKERS,
    SelectedBackend,
    guess_running_model,
    inspect_server,
)
from mlx_tools.backends.interface import BackendTraits, Chunk, CompletionRequest
from mlx_tools.backends.local_servers import PROBE_TIMEOUT, match_model
from mlx_tools.backends.running_model import Pick
from mlx_tools.backends.server_errors import (
    START_HINT,
    ConnectionDropped,
    ServerFailed,
    TryAnotherServer,
)
from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    MlxToolsError,
    UsageError,
)
from mlx_tools.messages import replace
from mlx_tools.process import clean

if TYPE_CHECKING:
    import anyio

PAUSE: Final = 1.0
"""Seconds before the first check of a server that is down.

A choice: short enough to notice a restart soon, but a dead server is not asked for each request.
"""
MAX_PAUSE: Final = 60.0
"""The limit in seconds between two checks; each pause is twice the one before."""

FAILURES: Final = 3
"""Failures in a row after which a server counts as down although it can be reached.

A choice: one or two failures may come from the request, or from a moment of load.
"""

KEY_CHARS: Final = 4096
"""Characters of a prompt that identify its conversation if the request has no key."""

_PASSED_ON: Final = (BackendUnreachable, BackendDead, BackendBroken, ServerFailed, TryAnotherServer)
"""Errors after which another server is asked.

After a timeout no time is left. And if one server refuses a request, the others would refuse it,
too.
"""

_PASSING: Final = (ConnectionDropped, ServerFailed)
"""Errors after which the same request may succeed, even at the same server."""


@dataclass(slots=True)
class Upstream:
    """A server of a pool, and its state."""

    backend: CompletionsBackend
    clock: Clock = now
    problem: str = ""
    """The reason why it is down, or empty. It is not asked until a check succeeds."""
    elsewhere: bool = False
    """True if it works but serves other models than the pool's."""
    checking: anyio.Event | None = None
    """Set while a request checks the server; other requests wait for it."""
    _failures: int = 0
    _pause: float = PAUSE
    _retry_at: float = -math.inf

    @property
    def address(self) -> str:
        return str(self.backend.address)

    @property
    def is_due(self) -> bool:
        """True if the server is not down, or if its pause is over."""
        return not self.problem or self.clock() >= self._retry_at

    def succeed(self) -> None:
        """Record a success: the server is not down."""
        self.problem, self.elsewhere, self._failures, self._pause = "", False, 0, PAUSE

    def fail(self, problem: str, *, at_once: bool = True) -> None:
        """Record a failure; the server is then down, at once or after `FAILURES`.

        Each failed check doubles the pause.
        """
        # Other requests that failed at the same time must not double the pause once more.
        if not self.is_due:
            return
        self._failures += 1
        if at_once or self.problem or self._failures >= FAILURES:
            self.problem, self.elsewhere = problem, False
            self._retry_at = self.clock() + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE)

    def note(self, error: BackendError) -> None:
        """Count an error against the server.

        It does not count if the server refused the request or is busy.
        """
        if not isinstance(error, BackendRefused) or isinstance(error, ServerFailed):
            at_once = isinstance(error, BackendUnreachable | BackendDead)
            self.fail(error.message, at_once=at_once)


class UpstreamPool:
    """The servers of one model, as one backend.

    A request goes to the first server of an ordered list that is not down. If that server fails
    before any part of its answer has come, the next one is asked. Servers that are down come last,
    and each is checked before it is asked. If the last error may pass, all servers are tried again,
    as ``retry`` says.

    With ``spread`` the conversation decides the order of the servers (rendezvous hashing). So all
    requests of a conversation, also from several processes, go to the server that has their
    beginning in its cache. If a server is down, only its own conversations move to another one.

    All other methods and attributes are those of the server that would be asked first.

    Args:
        upstreams: the servers that serve the model.
        model: the model's name at these servers, None if unknown.
        other_upstreams: servers that serve only other models.
        spread: True to spread conversations over the servers, False to prefer the first server.
        retry: the number of retries with all servers, and the pauses before them.
    """

    kind: Literal["completions"] = "completions"
    traits: ClassVar = BackendTraits(asks_server=True)

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        *,
        model: str | None = None,
        other_upstreams: Sequence[Upstream] = (),
        spread: bool = False,
        retry: Retry | None = None,
    ) -> None:
        self.upstreams, self.other_upstreams = tuple(upstreams), tuple(other_upstreams)
        self.model = model
        self._spread = spread
        self._retry = retry or Retry()
        self._forbid: Collection[str] = CALL_MARKERS

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.current, name)

    @property
    def current(self) -> CompletionsBackend:
        """The first server that is not down; the first of all if all are down."""
        ready = (upstream for upstream in self.upstreams if not upstream.problem)
        return next(ready, self.upstreams[0]).backend

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of all servers that were named, in their order."""
        return tuple(
            upstream.backend.address for upstream in (*self.upstreams, *self.other_upstreams)
        )

    @property
    def forbidden_tokens(self) -> tuple[int, ...]:
        """Ids of tokens that the model must not write; set for all servers at once."""
        return self.current.forbidden_tokens

    @forbidden_tokens.setter
    def forbidden_tokens(self, ids: Sequence[int]) -> None:
        self._forbid = CALL_MARKERS if ids else ()
        for upstream in self.upstreams:
            upstream.backend.forbidden_tokens = tuple(ids)

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Complete with the first server of this request's order; if it fails, the next.

        Raises:
            UsageError: the request cannot be sent.
            BackendError: the error of the last server, or `BackendUnreachable` if all servers are
                down.
        """
        end = self._retry.clock() + request.timeout
        problem: BackendError | None = None
        for tries in range(self._retry.times + 1):
            async with aclosing(self._candidates(request)) as candidates:
                async for upstream in candidates:
                    # The timeout is for all servers together: each gets the remaining time.
                    seconds_left = end - self._retry.clock()
                    if seconds_left <= 0:
                        message = f"no server began to answer within {request.timeout:g} s"
                        raise problem or BackendTimeout(message, hint=MORE_TIME_HINT)
                    has_begun = False
                    chunks = upstream.backend.complete(replace(request, timeout=seconds_left))
                    try:
                        async with aclosing(chunks):
                            async for chunk in chunks:
                                if not has_begun:
                                    upstream.succeed()
                                has_begun = True
                                yield chunk
                        return
                    except BackendError as error:
                        upstream.note(error)
                        # After text was yielded no other server can continue: its text may differ.
                        if has_begun or not isinstance(error, _PASSED_ON):
                            raise
                        problem = error
            # The last error decides whether another round may help.
            delay = self._retry.find_delay(tries)
            is_over = tries == self._retry.times or self._retry.clock() + delay >= end
            if is_over or not isinstance(problem, _PASSING):
                break
            await self._retry.sleep(delay)
        raise problem or make_unreachable_error(self.upstreams)

    async def _candidates(self, request: CompletionRequest) -> AsyncGenerator[Upstream, None]:
        """Yield the servers to ask, in turn; those that are down come last.

        A server that is down is yielded only if a check succeeds.
        """
        down: list[Upstream] = []
        for upstream in self.order(request):
            # Its pause is over: it may work again, and have this conversation in its cache.
            if upstream.problem and upstream.is_due and upstream.checking is None:
                await self._check_again(upstream)
            if upstream.problem:
                down.append(upstream)
            else:
                yield upstream
        for upstream in down:
            if upstream.problem:  # otherwise another request's check has succeeded meanwhile
                await self._check_again(upstream)
            if not upstream.problem:
                yield upstream

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """Return the models of all servers, each model once."""
        from asyncio import gather

        upstreams = (*self.upstreams, *self.other_upstreams)
        backends = [
            upstream.backend for upstream in upstreams if upstream.elsewhere or not upstream.problem
        ]
        listed = await gather(*(backend.models(timeout) for backend in backends))
        return tuple(dict.fromkeys(name for names in listed for name in names))

    async def aclose(self) -> None:
        for upstream in (*self.upstreams, *self.other_upstreams):
            await upstream.backend.aclose()

    # --- the order of the servers -------------------------------------------------------------

    def order(self, request: CompletionRequest) -> list[Upstream]:
        """Return the servers in the order in which this request tries them."""
        if not self._spread:
            return [*self.upstreams]
        # Made of the request alone, because the key must be the same in every process.
        key = (request.conversation or request.prompt[:KEY_CHARS]).encode("utf-8", "replace")

        def weight(upstream: Upstream) -> bytes:
            return hashlib.blake2b(upstream.address.encode() + b"\0" + key, digest_size=8).digest()

        return sorted(self.upstreams, key=weight, reverse=True)

    async def _check_again(self, upstream: Upstream) -> None:
        """Check whether a server works again.

        If several requests need this at once, one of them checks, and the others wait.
        """
        import anyio

        if upstream.checking is not None:
            await upstream.checking.wait()
            return
        done = upstream.checking = anyio.Event()
        try:
            with anyio.move_on_after(PROBE_TIMEOUT) as scope:
                await self._check(upstream)
            if scope.cancelled_caught:
                upstream.fail(f"{upstream.address} did not answer in time")
        except MlxToolsError as error:
            upstream.fail(error.message)
        finally:
            upstream.checking = None
            done.set()

    async def _check(self, upstream: Upstream) -> None:
        """Check whether a server works and has the model; record the result.

        Raises:
            MlxToolsError: the check itself failed.
        """
        backend = upstream.backend
        health = await backend.health(PROBE_TIMEOUT)
        if not health.ok:
            upstream.fail(health.detail)
            return
        if self.model is not None and not await serves(backend, self.model, health):
            upstream.fail(f"{upstream.address} does not serve {clean(self.model, 100)}")
            upstream.elsewhere = True
            return
        backend.model = self.model
        await inspect_server(backend, forbid=self._forbid)
        upstream.succeed()


def make_unreachable_error(upstreams: Sequence[Upstream]) -> BackendUnreachable:
    """Return the error for a pool whose servers are all down."""
    problems = "; ".join(upstream.problem for upstream in upstreams)
    message = f"none of {len(upstreams)} servers can be asked: {problems}"
    return BackendUnreachable(message, hint=START_HINT)


# --- choosing the servers -----------------------------------------------------------------------


async def serves(backend: CompletionsBackend, name: str, health: Health) -> bool:
    """Return True if a server serves the model ``name``.

    A server without a list counts as serving it. With mlx-lm's server it must be the running model,
    if that is known.
    """
    listed, loopback = await backend.models(PROBE_TIMEOUT), backend.address.loopback
    running, _ = guess_running_model(listed, mlx_lm=health.is_mlx_lm)
    names = (running,) if health.is_mlx_lm and running is not None else listed
    return not listed or match_model(name, names, loopback=loopback) is not None


async def choose_pool(
    urls: Sequence[str],
    model: str | None,
    *,
    api_key: str | None,
    spread: bool,
    pick: Pick | None = None,
) -> SelectedBackend:
    """Return the servers at ``urls`` that serve ``model`` as one backend.

    If ``model`` is None, it is the model of the first server that answers. Servers that do not
    answer are part of the pool, too, and are checked later.

    Raises:
        BackendUnreachable: no server answers.
        UsageError: no server that answers serves the model, or an address is not that of a
            completions server.
    """
    from asyncio import gather

    upstreams = []
    for url in urls:
        if parse_address(url).interface:
            raise UsageError(
                f"{url} is no completions server",
                hint="name it alone, or name completions servers only",
            )
        # The pool repeats a request itself, at another server first.
        upstreams.append(Upstream(CompletionsBackend(url, api_key=api_key, retry=Retry(times=0))))
    healths = await gather(*(upstream.backend.health() for upstream in upstreams))
    healthy = {
        upstream.address: health
        for upstream, health in zip(upstreams, healths, strict=True)
        if health.ok
    }
    for upstream, health in zip(upstreams, healths, strict=True):
        if not health.ok:
            upstream.fail(health.detail)
    answering = [upstream for upstream in upstreams if upstream.address in healthy]
    if not answering:
        raise make_unreachable_error(upstreams)
    name = model or (await inspect_server(answering[0].backend, pick=pick)).model
    serving = answering
    if name is not None:
        answers = await gather(
            *(serves(upstream.backend, name, healthy[upstream.address]) for upstream in answering)
        )
        serving = [
            upstream for upstream, is_serving in zip(answering, answers, strict=True) if is_serving
        ]
    if not serving:
        raise UsageError(
            f"none of the servers that answer serves the model {clean(name or '', 100)}",
            hint="name one of theirs with --model, or leave it out",
        )
    selections = []
    for upstream in serving:
        upstream.backend.model = name
        selections.append(await inspect_server(upstream.backend, pick=pick))
    elsewhere = [upstream for upstream in answering if upstream not in serving]
    members = [upstream for upstream in upstreams if upstream not in elsewhere]
    pool = UpstreamPool(members, model=name, other_upstreams=elsewhere, spread=spread)
    left_out = [
        f"{upstream.address} does not answer" for upstream in upstreams if upstream not in answering
    ]
    left_out += [
        f"{upstream.address} does not serve {clean(name or '', 100)}" for upstream in elsewhere
    ]
    note = "; ".join(filter(None, (selections[0].note, *left_out)))
    return replace(selections[0], backend=pool, note=note, model=name)
