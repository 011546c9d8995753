"""The library's front door: a question goes in, an outcome comes out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

import anyio

from mlx_tools.backends import (
    Backend,
    CompleteFunction,
    Decided,
    TokenCounter,
    as_backend,
    context_of,
    decide_for,
    folder_of,
    format_of,
    found_within,
    model_of,
    speakable,
)
from mlx_tools.controller.approvals import check_begun_here, seal_of
from mlx_tools.controller.approver import Approvals, Approver, NobodyThere
from mlx_tools.controller.conversation import Conversation
from mlx_tools.controller.driver import Driver, utc_now
from mlx_tools.controller.nested import NestedRuns, Within
from mlx_tools.controller.outputs import switched_off
from mlx_tools.controller.run_settings import RunSettings
from mlx_tools.controller.session import Session
from mlx_tools.errors import UsageError, require_instance, require_items, require_method
from mlx_tools.messages import Style, ToolSpec
from mlx_tools.policy import Limits, Policy, permitted, same
from mlx_tools.prompt import (
    ChatFormat,
    Frame,
    Neutraliser,
    Opening,
    Openings,
    is_search,
    read_history,
    told_when_needed,
)
from mlx_tools.store import load_words
from mlx_tools.store.session_store import MemoryStore, SessionFiles
from mlx_tools.store.transcript import FORMAT_VERSION
from mlx_tools.tools import Reads, Registry, Tool
from mlx_tools.transcript import events
from mlx_tools.transcript.history import Consents, nobody
from mlx_tools.transcript.outcome import Outcome
from mlx_tools.transcript.records import Header

T = TypeVar("T")


class Store(Protocol):
    """Where sessions are kept: `mlx_tools.store.session_store.TranscriptStore` or `MemoryStore`."""

    @property
    def secret(self) -> bytes: ...
    def create(self) -> SessionFiles: ...


class Controller:
    """Answers questions with a model that only completes text, and with tools.

    ``backend`` completes text: a `Backend`, or a plain ``async def complete(prompt: str) -> str``.
    ``tools`` are the tools that exist; ``policy`` says which may be called: none by default.
    ``store`` keeps the transcripts; without one they are in memory alone. ``approver`` is asked
    about calls that need an approval; without one such a run ends `Paused`. ``standing`` is what
    is configured for all sessions, where ``policy`` was chosen for the new ones alone: a session
    that is resumed is held to it where it has changed since. ``now`` is the wall clock, in UTC.
    Raises `UsageError` for anything that is not what it should be.
    """

    def __init__(
        self,
        backend: Backend | CompleteFunction,
        tools: Iterable[Tool] | Registry | None = (),
        policy: Policy | None = None,
        *,
        limits: Limits | None = None,
        settings: RunSettings | None = None,
        store: Store | None = None,
        approver: Approver | None = None,
        standing: Policy | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.backend = as_backend(backend)
        self.registry = tools if isinstance(tools, Registry) else Registry(tools)
        self.policy = _given("policy", policy, Policy, "write Policy(allow=[…])")
        self._standing = _given("standing", standing, Policy, "write Policy(allow=[…])")
        if standing is None:
            self._standing = self.policy
        self.limits = _given("limits", limits, Limits, "write Limits(max_iterations=…)")
        self.settings = _given("settings", settings, RunSettings, "write RunSettings(strategy=…)")
        self._now = now
        self._depth, self._parent = 0, ""
        self._consents: Consents = nobody
        self._decided: tuple[RunSettings, Decided] | None = None
        self._context: tuple[int | None] | None = None
        self._kept: tuple[Any, Openings] | None = None
        self._store = require_method(
            "store",
            MemoryStore() if store is None else store,
            "create",
            "write TranscriptStore(folder)",
        )
        self._approver = require_method(
            "approver",
            NobodyThere() if approver is None else approver,
            "decide",
            "give an Approver",
        )

    async def run(
        self,
        question: str,
        *,
        tool_choice: str | None = None,
        history: Sequence[Mapping[str, str]] = (),
    ) -> Outcome:
        """Answers one question.

        ``history`` are earlier messages, each ``{"role": "user" | "assistant", "content": text}``.
        Returns `Answered`, `Paused` or `Stopped`. Raises `UsageError` for what cannot be, and
        `BackendError` where the backend failed before it completed anything.
        """
        async with await self.conversation(history=history) as conversation:
            return await conversation.run(question, tool_choice=tool_choice)

    def run_sync(
        self,
        question: str,
        *,
        tool_choice: str | None = None,
        history: Sequence[Mapping[str, str]] = (),
    ) -> Outcome:
        """`run`, for callers without an event loop."""

        async def main() -> Outcome:
            return await self.run(question, tool_choice=tool_choice, history=history)

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return anyio.run(main)
        raise UsageError(
            "run_sync cannot be called where an event loop runs",
            hint="await controller.run(...) there",
        )

    async def stream(
        self,
        question: str,
        *,
        tool_choice: str | None = None,
        history: Sequence[Mapping[str, str]] = (),
    ) -> AsyncGenerator[events.Event]:
        """Like `run`, but yields what happens as it happens; the last event is `Finished`.

        Closing the generator (``contextlib.aclosing``) stops the run.
        """
        async with (
            await self.conversation(history=history) as conversation,
            aclosing(conversation.stream(question, tool_choice=tool_choice)) as happens,
        ):
            async for event in happens:
                yield event

    async def conversation(
        self, *, history: Sequence[Mapping[str, str]] = (), spent: float = 0.0
    ) -> Conversation:
        """Opens a session for any number of questions. Close it, or use it with ``async with``.

        Its header is written with its first question, by which a shortlist of tools is chosen.
        ``spent`` is how many seconds of the first question's total time are gone already; what it
        takes to find out what the server serves is added. Raises `BackendTimeout` where that takes
        all of it, and what `run` raises.
        """
        began = monotonic() - spent
        self._check_tools()
        messages = read_history(require_items("history", history, _HISTORY))
        with found_within(self.limits.total_timeout - spent):
            decided = await self._decide()
            chat_format = self.settings.chat_format or await format_of(self.backend, decided.style)
            decided = speakable(decided, chat_format, self.settings.style)
            context = self.settings.context or await self._find_context()
        openings = self._openings(decided.style, chat_format)
        files = self._store.create()
        try:
            if files.artifacts is not None:
                self.registry.add_reader()
            session = Session(
                [],
                specs=self.registry.specs(),
                words=load_words(),
                disabled=switched_off(self.registry, files.artifacts),
                consents=self._consents,
            )
            driver = self._driver(session, files, monotonic() - began)
        except BaseException:
            files.transcript.close()
            raise

        def begin(question: str, choice: str | None) -> Header:
            first = (choice or self.settings.tool_choice, *self.settings.require_tools)
            opening = openings.opening(question, history=messages, first=first)
            header = self._header(files.session, decided, chat_format, openings, opening)
            header = replace(header, context=context)
            return replace(header, history=tuple({"role": r, "content": c} for r, c in messages))

        return Conversation(driver, self.policy, begin)

    async def resume(
        self, session: str | os.PathLike[str], *, approvals: Approvals = None
    ) -> Outcome:
        """Goes on with a session that is paused, or that a crash broke off.

        ``session`` is its id or the path of its transcript. ``approvals`` says what was decided of
        the calls that wait, by their ids: ``{"c1": True}``, or an `ApprovalAnswer` each; True
        approves all that wait, but none that is in doubt, False refuses all. What is not decided is
        asked, or paused again. How the model is spoken to comes from the transcript; the policy is
        the recorded one, narrowed by what this controller has where that is another one.

        Raises `UsageError`, and runs nothing, for a session that has ended, a call that does not
        wait, and an approval of something else than what would run now. Raises `TranscriptError`
        for a transcript that is damaged, in use, or was not written with this store's secret.
        """
        async with self.reopen(session) as conversation:
            return await conversation.resume(approvals)

    def reopen(self, session: str | os.PathLike[str]) -> Conversation:
        """Opens a session again, for `Conversation.resume`. Raises what `resume` raises."""
        opens = getattr(self._store, "open", None)
        if opens is None:
            raise UsageError("this store cannot open a session again")
        files: SessionFiles = opens(session)
        try:
            if files.artifacts is not None:
                self.registry.add_reader()
            secret = self._store.secret
            check_begun_here(files.transcript, secret)
            folded = Session(
                files.transcript,
                specs=self.registry.specs(),
                words=load_words(),
                disabled=switched_off(self.registry, files.artifacts),
                believes=lambda said: same(seal_of(secret, said), said.seal),
                consents=self._consents,
            )
            driver = self._driver(folded, files)
            return Conversation(driver, self._in_force(folded.header))
        except BaseException:
            files.transcript.close()
            raise

    def _in_force(self, header: Header) -> Policy:
        """The policy under which a session goes on: its own, narrowed by what stands today where
        that is not what stood when it was begun."""
        own = Policy.from_json(header.policy)
        stood = Policy.from_json(header.standing) if header.standing else own
        same = stood.digest() == self._standing.digest()
        return own if same else own.narrowed_by(self._standing)

    def _within(self, run: Within) -> Controller:
        """A controller for a run within a call of one of this one's."""
        within = Controller(
            self.backend,
            self.registry,
            run.policy,
            limits=run.limits,
            settings=replace(self.settings, tool_choice="auto", require_tools=()),
            store=self._store,
            approver=run.approver,
            now=self._now,
        )
        within._depth, within._parent = self._depth + 1, run.parent
        within._consents = run.consents
        within._context = self._context
        return within

    def _driver(self, session: Session, files: SessionFiles, spent: float = 0.0) -> Driver:
        nested = partial(
            NestedRuns,
            session,
            self._approver,
            self._depth,
            make=self._within,
        )
        return Driver(
            session,
            files,
            backend=self.backend,
            registry=self.registry,
            approver=self._approver,
            secret=self._store.secret,
            spent=spent,
            now=self._now,
            nested=nested,
            reads=Reads(self.settings.cache),
            counter=TokenCounter(lambda: folder_of(self.backend, session.header.model)),
        )

    def _check_tools(self) -> None:
        self.settings = self.settings.naming(self.registry.named)
        choice = self.settings.tool_choice
        wanted = list(self.settings.require_tools)
        if choice not in ("auto", "none", "required"):
            wanted.append(choice)
        lacks = {name: self.registry.lacks(name, self.policy) for name in dict.fromkeys(wanted)}
        if missing := [f"{name} ({why})" for name, why in lacks.items() if why is not None]:
            allowed = sorted(spec.name for spec in self._permitted())
            raise UsageError(
                f"this run lacks the required tool {', '.join(missing)}",
                hint=f"it may call {', '.join(allowed) or 'nothing'}",
            )
        if choice == "required" and not self._offered():
            raise UsageError("a tool call is required, but no tool may be called")

    def _permitted(self) -> list[ToolSpec]:
        return [s for s in self.registry.specs().values() if permitted(self.policy, s)]

    def _offered(self) -> list[ToolSpec]:
        """The tools that may be called, but for those that are told of when they are needed."""
        return [spec for spec in self._permitted() if not told_when_needed(spec)]

    def _find_search(self) -> ToolSpec | None:
        """The tool that looks through the tools, where it may be called."""
        self.registry.add_search()
        return next((spec for spec in self._permitted() if is_search(spec)), None)

    async def _decide(self) -> Decided:
        """The style and strategy of these settings: looked up once."""
        if self._decided is None or self._decided[0] != self.settings:
            self._decided = self.settings, await decide_for(self.backend, self.settings)
        return self._decided[1]

    async def _find_context(self) -> int | None:
        """The size of the model's context: looked up once."""
        if self._context is None:
            self._context = (await context_of(self.backend, self.settings.model),)
        return self._context[0]

    def _openings(self, style: Style, chat_format: ChatFormat) -> Openings:
        """What makes the beginnings of sessions: the same as long as nothing changes here."""
        settings, words = self.settings, load_words()
        key = (words, settings, style, chat_format, self._permitted())
        if self._kept is None or self._kept[0] != key:
            frame = Frame(
                words=words,
                tools=tuple(self._offered()),
                neutraliser=Neutraliser(chat_format.control_tokens),
                style=style,
                native=chat_format.tools,
                response_mode=settings.response_mode,
                project_context=settings.project_context,
                persona=settings.persona,
                catalog_budget=settings.catalog_budget,
            )
            openings = Openings(frame, self._find_search)  # which may add that tool
            self._kept = (words, settings, style, chat_format, self._permitted()), openings
        return self._kept[1]

    def _header(
        self,
        session: str,
        decided: Decided,
        chat_format: ChatFormat,
        openings: Openings,
        opening: Opening,
    ) -> Header:
        settings = self.settings
        return Header(
            **settings.recorded(),
            version=FORMAT_VERSION,
            session=session,
            created=self._now().isoformat(timespec="seconds"),
            model=settings.model or model_of(self.backend),
            chat_format=chat_format.to_json(),
            style=decided.style,
            strategy=decided.strategy,
            verdict=decided.why,
            sampling={"temperature": settings.temperature, "seed": settings.seed},
            system=opening.system,
            examples=opening.examples,
            tools=openings.tools,
            catalog_hash=openings.catalog_hash,
            shortlist=opening.shortlist,
            shortlist_request=opening.request,
            policy=self.policy.to_json(),
            policy_hash=self.policy.digest(),
            standing={} if self._standing == self.policy else self._standing.to_json(),
            parent=self._parent,
            limits=self.limits.to_json(),
        )


_HISTORY: Final = 'each message is {"role": "user" or "assistant", "content": text}'


def _given(name: str, value: T | None, kind: type[T], hint: str) -> T:
    """What was given, or the default of its kind."""
    return kind() if value is None else require_instance(name, value, kind, hint)
