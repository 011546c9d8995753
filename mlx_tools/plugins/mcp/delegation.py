"""Tasks that a client gives to a local model.

They run under the server's policy or a narrower one.

A profile and a preset of the client narrow the policy and the limits. The tools, their folders and
the approver are the server's.
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
    build_registry,
    collect,
    open_selected_backend,
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
    calls_in_doubt,
    find_last_state,
    is_at_rest,
    make_outcome,
)

ORIGIN_KEY: Final = "asked"
"""The key in a header's backend fields that marks a session begun by a client."""

_ORIGIN: Final = "mcp"

T = TypeVar("T")
OnEvent = Callable[[Event], Awaitable[None]]


class DelegatedRun(Struct, frozen=True, kw_only=True):
    """A client's task; see `Delegation.run`."""

    user: str
    profile: str = ""
    preset: str | None = None
    system: str = ""
    require_tools: tuple[str, ...] = ()
    output_schema: Mapping[str, Any] | None = None


@dataclass
class Delegation:
    """Runs of local models for clients.

    Each profile's model is opened at its first use.
    """

    options: RunOptions
    """The options that the server was started with."""
    load: Callable[[str], Configuration]
    """Returns the configuration with a profile in place of its own."""
    note: Callable[[str], None]
    """Called with each line that a person should read."""
    registry: Registry = field(init=False)
    policy: Policy = field(init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _models: dict[str, _Model] = field(default_factory=dict)
    _lock: anyio.Lock = field(default_factory=anyio.Lock)

    def __post_init__(self) -> None:
        self.registry = build_registry(self.configuration)
        self.policy = self.configuration.policy()

    @property
    def configuration(self) -> Configuration:
        """The server's configuration."""
        return self.options.configuration

    async def aclose(self) -> None:
        """Close all models and tools."""
        await self._stack.aclose()
        await self.registry.aclose()

    async def run(
        self, work: DelegatedRun, approver: Approver, on_event: OnEvent, disconnected: anyio.Event
    ) -> Outcome:
        """Answer a task in a new session.

        Args:
            work: the task. Its ``system`` text follows the user's own.
            approver: decides about calls.
            on_event: gets the events.
            disconnected: set when the client has gone; after that no tool is called.

        Raises:
            UsageError: the task is not possible.
            BackendError: the model failed before it wrote anything.
        """
        controller = await self._controller(work, approver)
        history = [{"role": "system", "content": work.system}] if work.system else []
        async with await controller.conversation(history=history) as conversation:
            return await _run_until_left(
                conversation, conversation.stream(work.user), on_event, disconnected
            )

    async def resume(
        self,
        session: str,
        approver: Approver,
        on_event: OnEvent,
        disconnected: anyio.Event,
        answers: Mapping[str, ApprovalAnswer] | None = None,
    ) -> Outcome:
        """Continue a session that a client began, and return its outcome.

        It continues if it was broken off, if the end of a call is unknown, or if a person has
        decided. A session that waits for a person is left as it is without ``answers``.

        Raises:
            UsageError: there is no such session, or an answer is not valid.
        """
        records = self._records(session)
        is_waiting = is_at_rest(records) and isinstance(find_last_state(records), PauseRecord)
        if answers is None and is_at_rest(records) and (is_waiting or not calls_in_doubt(records)):
            path = session_store(self.configuration).read(session).path
            return make_outcome(records, transcript=path)
        header = records[0]
        assert isinstance(header, Header)
        work = DelegatedRun(user="", profile=header.backend.get("profile", ""))
        controller = await self._controller(work, approver)
        async with await controller.reopen(session, narrowed_policy=self.policy) as conversation:
            return await _run_until_left(
                conversation, conversation.stream_resumed(answers), on_event, disconnected
            )

    def _records(self, session: str) -> Sequence[Record]:
        """Return the records of a session that a client began.

        Raises:
            UsageError: no client began such a session.
        """
        error = UsageError(f"no client has begun a session {session[:80]!r}")
        # A path would reach any file of this machine.
        if os.sep in session:
            raise error
        store = session_store(self.configuration)
        try:
            records = store.read(session).transcript
        except UsageError:
            raise error from None
        header = records[0] if records else None
        if not isinstance(header, Header) or header.backend.get(ORIGIN_KEY) != _ORIGIN:
            raise error
        check_begun_here(records, store.secret)
        return records

    async def _controller(self, work: DelegatedRun, approver: Approver) -> Controller:
        model = await self._model(work.profile)
        policy = model.policy
        if work.preset is not None:
            policy = policy.intersect(restriction((), preset=work.preset))
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
            observers=collect("observers"),
        )

    async def _model(self, profile: str) -> _Model:
        # Two first calls at once must not open the model twice.
        async with self._lock:
            if profile not in self._models:
                self._models[profile] = await self._open(profile)
            return self._models[profile]

    async def _open(self, profile: str) -> _Model:
        server_configuration = self.configuration
        configuration = self.load(profile) if profile else server_configuration
        options = replace(self.options, configuration=configuration)
        selected, settings = await self._stack.enter_async_context(
            open_selected_backend(options, self.note)
        )
        roots = tuple(
            RootName.parse(root).absolute() for root in server_configuration.settings.tools.roots
        )
        origin = {ORIGIN_KEY: _ORIGIN} | ({"profile": profile} if profile else {})
        settings = replace(settings, roots=roots, backend={**settings.backend, **origin})
        policy, limits = self.policy, server_configuration.limits()
        if profile:
            policy = policy.intersect(configuration.policy())
            limits = limits.lower(configuration.limits())
        return _Model(selected.backend, settings, configuration, policy, limits)


class _Model(Struct, frozen=True):
    """An open model, its settings, and what its runs may do."""

    backend: Any
    settings: RunSettings
    configuration: Configuration
    policy: Policy
    limits: Limits


async def _run_until_left(
    conversation: Conversation,
    stream: AsyncGenerator[Event],
    on_event: OnEvent,
    disconnected: anyio.Event,
) -> Outcome:
    """Run to the end of a stream of events, and return the outcome.

    When the client leaves, the run's access list ends first, before the run does: so no tool is
    called in between.
    """

    async def follow(tasks: TaskGroup) -> Outcome:
        async with aclosing(stream) as events:
            async for event in events:
                await on_event(event)
        assert isinstance(event, Finished)
        return event.outcome

    return await until_left(disconnected, follow, conversation.files.access.end)


async def until_left(
    disconnected: anyio.Event,
    work: Callable[[TaskGroup], Awaitable[T]],
    leave: Callable[[], None] = lambda: None,
) -> T:
    """Return the result of ``work``, or cancel it once ``disconnected`` is set.

    Args:
        disconnected: set when the client has gone.
        work: gets a group in which further tasks can be started.
        leave: called before the work is cancelled.

    Raises:
        UsageError: the client has left.
        MlxToolsError: the error of ``work``.
    """
    results: list[T] = []
    problem: MlxToolsError = UsageError("the client has left")
    watching = anyio.CancelScope()

    async def watch() -> None:
        with watching:
            await disconnected.wait()
            leave()
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            results.append(await work(tasks))
        except MlxToolsError as error:
            problem = error
        watching.cancel()  # tasks that the work started come to their end
    if not results:
        raise problem
    return results[0]
