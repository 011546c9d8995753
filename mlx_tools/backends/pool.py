"""Several servers as one backend: who of them is asked, and who instead while that one is out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from mlx_tools.backends.choose import (
    CALL_MARKERS,
    PROBE_TIMEOUT,
    SelectedBackend,
    inspect_server,
    match_model,
    which_runs,
)
from mlx_tools.backends.completions import CompletionsBackend, Health
from mlx_tools.backends.interface import BackendTraits, Chunk, CompletionRequest
from mlx_tools.backends.running_model import Pick
from mlx_tools.backends.transport import (
    MORE_TIME_HINT,
    START_HINT,
    Address,
    Clock,
    ConnectionDropped,
    Retry,
    ServerFailed,
    TryAnotherServer,
    now,
    parse_address,
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
LONGEST_PAUSE: Final = 60.0
"""Seconds after which a server that is out is looked at again: first, and at most."""

FAILURES: Final = 3
"""So many failures in a row put out a server that can be reached."""

KEY_CHARS: Final = 4096
"""Characters of a prompt that say which conversation it is, where nothing else does."""

_PASSED_ON: Final = (BackendUnreachable, BackendDead, BackendBroken, ServerFailed, TryAnotherServer)
"""After these another server may do what one did not. A request that took all of its time is not
asked again, and what one refuses another would."""

_PASSING: Final = (ConnectionDropped, ServerFailed)
"""What may work where it is sent once more, to the same server too."""


@dataclass(slots=True)
class Upstream:
    """A server of a pool, and whether it is worth asking, by how it did. ``problem`` is why it is
    out: not asked until it was looked at again, and is well. ``elsewhere``: it is well, and serves
    other models than the pool's. ``checking`` is set once whoever looks at it is done."""

    backend: CompletionsBackend
    clock: Clock = now
    problem: str = ""
    elsewhere: bool = False
    checking: anyio.Event | None = None
    _failures: int = 0
    _pause: float = PAUSE
    _retry_at: float = -math.inf

    @property
    def address(self) -> str:
        return str(self.backend.address)

    @property
    def is_due(self) -> bool:
        """True unless it is out, and its pause is not over."""
        return not self.problem or self.clock() >= self._retry_at

    def succeed(self) -> None:
        self.problem, self.elsewhere, self._failures, self._pause = "", False, 0, PAUSE

    def fail(self, problem: str, *, at_once: bool = True) -> None:
        """It failed so, and is out: ``at_once``, or after some failures; longer each time that it
        was looked at, whatever else was under way there."""
        if not self.is_due:
            return
        self._failures += 1
        if at_once or self.problem or self._failures >= FAILURES:
            self.problem, self.elsewhere = problem, False
            self._retry_at = self.clock() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def note(self, error: BackendError) -> None:
        """Hold a failure against the server, unless it is the request's own, or it is busy."""
        if not isinstance(error, BackendRefused) or isinstance(error, ServerFailed):
            gone = isinstance(error, BackendUnreachable | BackendDead)
            self.fail(error.message, at_once=gone)


class UpstreamPool:
    """The ``upstreams`` that serve one model, as one backend.

    A request goes to the first that is not out: in the order in which they stand or, with
    ``spread``, in one that its conversation decides (rendezvous hashing), so that every request of
    a conversation goes to the server that has its beginning in its cache, from whichever process it
    comes, and none but those of a server that is out are moved. Where one fails before anything of
    its answer has come the next is asked; after the last all of them again, as ``retry`` says.

    ``model`` is the name by which they know it, None where none says one. ``other_upstreams`` are
    servers that serve other models alone. What else is asked of the pool (its health, what it can)
    the server answers that would be asked first.
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
        """The first server that is not out; the first of all where all are."""
        ready = (one for one in self.upstreams if not one.problem)
        return next(ready, self.upstreams[0]).backend

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Those of all servers that were named, in their order."""
        return tuple(one.backend.address for one in (*self.upstreams, *self.other_upstreams))

    @property
    def forbidden_tokens(self) -> tuple[int, ...]:
        """Token ids that the model shall not write; to set them is to set those of every server."""
        return self.current.forbidden_tokens

    @forbidden_tokens.setter
    def forbidden_tokens(self, ids: Sequence[int]) -> None:
        self._forbid = CALL_MARKERS if ids else ()
        for one in self.upstreams:
            one.backend.forbidden_tokens = tuple(ids)

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Complete by the server whose turn it is, or by another before the first byte has come.

        Raises:
            UsageError: the request cannot be sent.
            BackendError: what the last one that was asked raised, or `BackendUnreachable` where
                none can be.
        """
        end = self._retry.clock() + request.timeout
        problem: BackendError | None = None
        for tries in range(self._retry.times + 1):
            passed_over: list[Upstream] = []
            for upstream in chain(self.order(request), passed_over):  # those where no other could
                last = upstream in passed_over
                due = upstream.checking is None and upstream.is_due  # and nobody looks already
                if upstream.problem and (last or due):
                    await self._look_again(upstream)
                if upstream.problem:
                    passed_over += [] if last else [upstream]
                    continue
                begun, left = False, end - self._retry.clock()
                if left <= 0:
                    said = f"no server began to answer within {request.timeout:g} s"
                    raise problem or BackendTimeout(said, hint=MORE_TIME_HINT)
                chunks = upstream.backend.complete(replace(request, timeout=left))
                try:
                    async with aclosing(chunks):
                        async for chunk in chunks:
                            if not begun:
                                upstream.succeed()
                            begun = True
                            yield chunk
                    return
                except BackendError as error:
                    upstream.note(error)
                    if begun or not isinstance(error, _PASSED_ON):
                        raise
                    problem = error
            delay = self._retry.delay(tries)
            over = tries == self._retry.times or self._retry.clock() + delay >= end
            if over or not isinstance(problem, _PASSING):
                break
            await self._retry.sleep(delay)
        raise problem or all_out(self.upstreams)

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """The models of all the servers, each once."""
        from asyncio import gather

        every = (*self.upstreams, *self.other_upstreams)
        well = [one.backend for one in every if one.elsewhere or not one.problem]
        listed = await gather(*(backend.models(timeout) for backend in well))
        return tuple(dict.fromkeys(name for names in listed for name in names))

    async def aclose(self) -> None:
        for one in (*self.upstreams, *self.other_upstreams):
            await one.backend.aclose()

    # --- who is asked -------------------------------------------------------------------------

    def order(self, request: CompletionRequest) -> list[Upstream]:
        """The servers in the order in which this request tries them."""
        if not self._spread:
            return [*self.upstreams]
        key = (request.conversation or request.prompt[:KEY_CHARS]).encode("utf-8", "replace")

        def weight(upstream: Upstream) -> bytes:
            return hashlib.blake2b(upstream.address.encode() + b"\0" + key, digest_size=8).digest()

        return sorted(self.upstreams, key=weight, reverse=True)

    async def _look_again(self, upstream: Upstream) -> None:
        """Look whether a server is well again. One does, all others wait for what it finds."""
        import anyio

        if upstream.checking is not None:
            await upstream.checking.wait()
            return
        done = upstream.checking = anyio.Event()
        try:
            with anyio.move_on_after(PROBE_TIMEOUT) as scope:
                await self._settle(upstream)
            if scope.cancelled_caught:
                upstream.fail(f"{upstream.address} did not answer in time")
        except MlxToolsError as error:
            upstream.fail(error.message)
        finally:
            upstream.checking = None
            done.set()

    async def _settle(self, upstream: Upstream) -> None:
        """Find out whether a server is well, and what it calls the model. Raises `MlxToolsError`
        where that cannot be told."""
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


def all_out(upstreams: Sequence[Upstream]) -> BackendUnreachable:
    """The error for servers of which none can be asked."""
    why = "; ".join(one.problem for one in upstreams)
    said = f"none of {len(upstreams)} servers can be asked: {why}"
    return BackendUnreachable(said, hint=START_HINT)


# --- which servers serve a model ----------------------------------------------------------------


async def serves(backend: CompletionsBackend, name: str, health: Health) -> bool:
    """Whether a server has the model of this name: it lists it and, mlx-lm's, does not run another;
    or it lists nothing."""
    listed, loopback = await backend.models(PROBE_TIMEOUT), backend.address.loopback
    runs, _ = which_runs(listed, mlx_lm=health.is_mlx_lm)
    having = (runs,) if health.is_mlx_lm and runs is not None else listed
    return not listed or match_model(name, having, loopback=loopback) is not None


async def choose_pool(
    urls: Sequence[str],
    model: str | None,
    *,
    api_key: str | None,
    spread: bool,
    pick: Pick | None = None,
) -> SelectedBackend:
    """The pool of the servers at ``urls`` that serve ``model``: without one, the model of the first
    that answers.

    Those that do not answer belong to it, and are asked once they do, if they serve it.

    Raises:
        BackendUnreachable: none answers.
        UsageError: none of those that answer serves the model, or one is no completions server.
    """
    from asyncio import gather

    every = []
    for url in urls:
        if parse_address(url).interface:
            raise UsageError(
                f"{url} is no completions server", hint="name it alone, or none but such servers"
            )
        # The pool itself asks again: another server first.
        every.append(Upstream(CompletionsBackend(url, api_key=api_key, retry=Retry(times=0))))
    healths = await gather(*(one.backend.health() for one in every))
    well = {one.address: health for one, health in zip(every, healths, strict=True) if health.ok}
    for one, health in zip(every, healths, strict=True):
        if not health.ok:
            one.fail(health.detail)
    answering = [one for one in every if one.address in well]
    if not answering:
        raise all_out(every)
    name = model or (await inspect_server(answering[0].backend, pick=pick)).model
    serving = answering
    if name is not None:
        told = await gather(*(serves(one.backend, name, well[one.address]) for one in answering))
        serving = [one for one, does in zip(answering, told, strict=True) if does]
    if not serving:
        raise UsageError(
            f"none of the servers that answer serves the model {clean(name or '', 100)}",
            hint="name one of theirs with --model, or leave it out",
        )
    looked = []
    for one in serving:
        one.backend.model = name
        looked.append(await inspect_server(one.backend, pick=pick))
    others = [one for one in answering if one not in serving]
    members = [one for one in every if one not in others]
    pool = UpstreamPool(members, model=name, other_upstreams=others, spread=spread)
    silent = [f"{one.address} does not answer" for one in every if one not in answering]
    note = "; ".join(filter(None, (looked[0].note, *silent)))
    return replace(looked[0], backend=pool, note=note, model=name)
