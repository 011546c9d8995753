"""Work that a client hands to a local model: run under what the server was started with, or less.

A profile and a preset of the client narrow the policy and the limits; the tools, their folders and
who approves are the server's.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from mlx_tools.app import (
    Configuration,
    RunOptions,
    approval_templates,
    open_selected_backend,
    registry_of,
    session_store,
)
from mlx_tools.controller import (
    ApprovalAnswer,
    Approver,
    Controller,
    Conversation,
    RunSettings,
    check_begun_here,
    check_output_schema,
)
from mlx_tools.errors import MlxToolsError, UsageError
from mlx_tools.messages import replace
from mlx_tools.policy import Limits, Policy, restriction
from mlx_tools.store import RootName
from mlx_tools.tools import Registry
from mlx_tools.transcript import (
    Event,
    Finished,
    Header,
    Outcome,
    PauseRecord,
    Record,
    at_rest,
    calls_in_doubt,
    outcome_of,
    rests,
)

ASKED: Final = "asked"
"""What a header says of a session that a client began, among what it says of the backend."""

_OVER: Final = "mcp"

T = TypeVar("T")
See = Callable[[Event], Awaitable[None]]


class DelegatedRun(Struct, frozen=True, kw_only=True):
    """What a client asks for; see `Delegation.run`."""

    user: str
    profile: str = ""
    preset: str | None = None
    system: str = ""
    require_tools: tuple[str, ...] = ()
    output_schema: Mapping[str, Any] | None = None


@dataclass
class Delegation:
    """Runs of local models. ``options`` are what the server was started with, ``load`` gives the
    configuration with a profile in place of its own. Each profile's model is looked for when it is
    first asked. ``note`` takes what a person should know."""

    options: RunOptions
    load: Callable[[str], Configuration]
    note: Callable[[str], None]
    registry: Registry = field(init=False)
    policy: Policy = field(init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _models: dict[str, _Model] = field(default_factory=dict)
    _lock: anyio.Lock = field(default_factory=anyio.Lock)

    def __post_init__(self) -> None:
        self.registry = registry_of(self.configuration)
        self.policy = self.configuration.policy()

    @property
    def configuration(self) -> Configuration:
        """That of the server."""
        return self.options.configuration

    async def aclose(self) -> None:
        """Close what was opened."""
        await self._stack.aclose()
        await self.registry.aclose()

    async def run(
        self, work: DelegatedRun, approver: Approver, see: See, disconnected: anyio.Event
    ) -> Outcome:
        """Answer ``user`` in a session of its own. ``system`` stands behind the user's own system
        text. ``see`` gets what happens; once ``disconnected`` is set nothing more is called.

        Raises `UsageError` for what cannot be, and `BackendError` where the model failed before it
        wrote anything.
        """
        controller = await self._controller(work, approver)
        history = [{"role": "system", "content": work.system}] if work.system else []
        async with await controller.conversation(history=history) as conversation:
            return await _followed(conversation, conversation.stream(work.user), see, disconnected)

    async def resume(
        self,
        session: str,
        approver: Approver,
        see: See,
        disconnected: anyio.Event,
        answers: Mapping[str, ApprovalAnswer] | None = None,
    ) -> Outcome:
        """The outcome of a session that a client began, which goes on where it was broken off, a
        call of it is in doubt, or a person has decided. One that waits for a person is left as it
        is, without ``answers``.

        Raises `UsageError` where there is no such session, or an answer does not hold.
        """
        records = self._records(session)
        waits = rests(records) and isinstance(at_rest(records), PauseRecord)
        if answers is None and rests(records) and (waits or not calls_in_doubt(records)):
            path = session_store(self.configuration).read(session).path
            return outcome_of(records, transcript=path)
        header = records[0]
        assert isinstance(header, Header)
        work = DelegatedRun(user="", profile=header.backend.get("profile", ""))
        controller = await self._controller(work, approver)
        async with await controller.reopen(session, narrowed_policy=self.policy) as conversation:
            return await _followed(
                conversation, conversation.stream_resumed(answers), see, disconnected
            )

    def _records(self, session: str) -> Sequence[Record]:
        """The records of a session that a client began."""
        nobodys = UsageError(f"no client has begun a session {session[:80]!r}")
        if os.sep in session:
            raise nobodys
        store = session_store(self.configuration)
        try:
            records = store.read(session).transcript
        except UsageError:
            raise nobodys from None
        header = records[0] if records else None
        if not isinstance(header, Header) or header.backend.get(ASKED) != _OVER:
            raise nobodys
        check_begun_here(records, store.secret)
        return records

    async def _controller(self, work: DelegatedRun, approver: Approver) -> Controller:
        model = await self._model(work.profile)
        policy = model.policy
        if work.preset is not None:
            policy = policy.narrowed_by(restriction((), preset=work.preset))
        schema = work.output_schema
        settings = replace(
            model.settings,
            require_tools=work.require_tools,
            output_schema=None if schema is None else check_output_schema(schema),
        )
        store = session_store(model.configuration)
        return Controller(
            model.backend,
            self.registry,
            policy,
            limits=model.limits,
            settings=settings,
            store=store,
            approver=approver,
            templates=approval_templates(store),
            configured_policy=model.configuration.configured_policy(),
        )

    async def _model(self, profile: str) -> _Model:
        async with self._lock:
            if profile not in self._models:
                self._models[profile] = await self._open(profile)
            return self._models[profile]

    async def _open(self, profile: str) -> _Model:
        own = self.configuration
        configuration = self.load(profile) if profile else own
        options = replace(self.options, configuration=configuration)
        chosen, settings = await self._stack.enter_async_context(
            open_selected_backend(options, self.note)
        )
        roots = tuple(RootName.parse(root).absolute() for root in own.settings.tools.roots)
        asked = {ASKED: _OVER} | ({"profile": profile} if profile else {})
        settings = replace(settings, roots=roots, backend={**settings.backend, **asked})
        policy, limits = self.policy, own.limits()
        if profile:
            policy = policy.narrowed_by(configuration.policy())
            limits = limits.lower(configuration.limits())
        return _Model(chosen.backend, settings, configuration, policy, limits)


class _Model(Struct, frozen=True):
    """A model that was found, how it is spoken to, and what its runs may do."""

    backend: Any
    settings: RunSettings
    configuration: Configuration
    policy: Policy
    limits: Limits


async def _followed(
    conversation: Conversation, stream: AsyncGenerator[Event], see: See, disconnected: anyio.Event
) -> Outcome:
    """The outcome of a run. Its access list ends with the client, before the run does: nothing is
    called meanwhile."""

    async def follow(tasks: TaskGroup) -> Outcome:
        async with aclosing(stream) as events:
            async for event in events:
                await see(event)
        assert isinstance(event, Finished)
        return event.outcome

    return await until_left(disconnected, follow, conversation.files.access.end)


async def until_left(
    disconnected: anyio.Event,
    work: Callable[[TaskGroup], Awaitable[T]],
    leave: Callable[[], None] = lambda: None,
) -> T:
    """The result of ``work``, which gets what tasks beside it can be started in. Once
    ``disconnected`` is set, ``leave`` is called and the work cancelled. Raises what it raises."""
    done: list[T] = []
    problem: MlxToolsError = UsageError("the client has left")
    watched = anyio.CancelScope()

    async def watch() -> None:
        with watched:
            await disconnected.wait()
            leave()
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            done.append(await work(tasks))
        except MlxToolsError as error:
            problem = error
        watched.cancel()  # what was started beside the work comes to its end
    if not done:
        raise problem
    return done[0]
