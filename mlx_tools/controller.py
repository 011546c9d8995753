"""The library's front door: a question goes in, an outcome comes out."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self

import anyio

from mlx_tools import data, events
from mlx_tools.approval import Approver, NobodyThere
from mlx_tools.backends.base import Backend
from mlx_tools.backends.function import CompleteFunction, as_backend
from mlx_tools.driver import Driver
from mlx_tools.errors import UsageError
from mlx_tools.messages import Header
from mlx_tools.outcome import Outcome, outcome_of
from mlx_tools.policy import Limits, Policy, permitted
from mlx_tools.prompt import (
    ChatFormat,
    Neutraliser,
    PromptWords,
    build_examples,
    build_system,
)
from mlx_tools.protocol import Style, write_answer
from mlx_tools.router import decide_for, format_of
from mlx_tools.session import Session
from mlx_tools.spec import ToolSpec
from mlx_tools.store import MemoryStore, SessionFiles
from mlx_tools.tools import Registry, Tool
from mlx_tools.verdicts import (
    STRATEGIES,
    STYLES,
    Decided,
    FoundVerdict,
    StrategyChoice,
    StyleChoice,
)


class Store(Protocol):
    """Where sessions are kept: `mlx_tools.store.TranscriptStore` or `MemoryStore`."""

    @property
    def secret(self) -> bytes: ...
    def create(self) -> SessionFiles: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How a run speaks with its model. All of it stands in the transcript's header.

    ``chat_format`` None is found out by what the backend serves (`mlx_tools.router`), and so is
    ``verdict`` None: what was measured of that model. It decides a ``style`` and a ``strategy``
    that are ``auto``; where nothing was, they are ``jsonl``, and freely, guided where that breaks
    format. ``strategy`` may also be ``free``, ``guided`` or ``grammar`` (for a backend that can
    hold a model to one).
    ``reasoning`` is ``off``, ``auto`` or a budget in tokens. ``tool_choice`` is ``auto``, ``none``,
    ``required`` or a tool's name. A run whose policy lacks one of ``require_tools`` fails before
    the model is asked anything.
    """

    style: StyleChoice = "auto"
    strategy: StrategyChoice = "auto"
    verdict: FoundVerdict | None = None
    chat_format: ChatFormat | None = None
    reasoning: str | int = "off"
    response_mode: str = "answer-first"
    persona: str | None = None
    project_context: str = ""
    tool_choice: str = "auto"
    require_tools: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int | None = None
    model: str | None = None
    backend: Mapping[str, Any] = field(default_factory=dict)
    roots: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        thought = self.reasoning
        whole = isinstance(thought, int) and not isinstance(thought, bool) and thought > 0
        number = isinstance(self.temperature, int | float) and self.temperature >= 0
        for name, value, right, allowed in (
            ("style", self.style, self.style in STYLES, ", ".join(STYLES)),
            ("strategy", self.strategy, self.strategy in STRATEGIES, ", ".join(STRATEGIES)),
            ("reasoning", thought, whole or thought in ("off", "auto"), "off, auto, tokens"),
            ("temperature", self.temperature, number, "a number from 0"),
        ):
            if not right:
                raise UsageError(f"{name} cannot be {value!r}", hint=f"allowed: {allowed}")


class Controller:
    """Answers questions with a model that only completes text, and with tools.

    ``backend`` completes text: a `Backend`, or a plain ``async def complete(prompt: str) -> str``.
    ``tools`` are the tools that exist; ``policy`` says which may be called: none by default.
    ``store`` keeps the transcripts; without one they are in memory alone. ``approver`` is asked
    about calls that need an approval; without one such a run ends `Paused`.
    """

    def __init__(
        self,
        backend: Backend | CompleteFunction,
        tools: Sequence[Tool] | Registry = (),
        policy: Policy | None = None,
        *,
        limits: Limits | None = None,
        settings: RunSettings | None = None,
        store: Store | None = None,
        approver: Approver | None = None,
    ) -> None:
        self.backend = as_backend(backend)
        self.registry = tools if isinstance(tools, Registry) else Registry(tools)
        self.policy = policy or Policy()
        self.limits = limits or Limits()
        self.settings = settings or RunSettings()
        self._opening: _Opening | None = None
        self._decided: Decided | None = None
        self._store = store or MemoryStore()
        self._approver = approver or NobodyThere()

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

    async def conversation(self, *, history: Sequence[Mapping[str, str]] = ()) -> Conversation:
        """Opens a session for any number of questions. Close it, or use it with ``async with``."""
        self._check_tools()
        files = self._store.create()
        try:
            header = await self._header(files.session, history)
            files.transcript.append(header)
            session = Session(
                [header],
                specs=self.registry.specs(),
                words=data.load_words(),
                disabled=self.registry.disabled,
            )
        except BaseException:
            files.transcript.close()
            raise
        driver = Driver(
            session,
            files,
            backend=self.backend,
            registry=self.registry,
            approver=self._approver,
            secret=self._store.secret,
        )
        return Conversation(driver)

    def _check_tools(self) -> None:
        choice = self.settings.tool_choice
        wanted = list(self.settings.require_tools)
        if choice not in ("auto", "none", "required"):
            wanted.append(choice)
        allowed = {spec.name for spec in self._permitted()}
        if missing := [name for name in dict.fromkeys(wanted) if name not in allowed]:
            raise UsageError(
                f"this run lacks the required tool {', '.join(missing)}",
                hint=f"it may call {', '.join(sorted(allowed)) or 'nothing'}",
            )
        if choice == "required" and not allowed:
            raise UsageError("a tool call is required, but no tool may be called")

    def _permitted(self) -> list[ToolSpec]:
        return [s for s in self.registry.specs().values() if permitted(self.policy, s)]

    async def _header(self, session: str, history: Sequence[Mapping[str, str]]) -> Header:
        settings, words = self.settings, data.load_words()
        decided = self._decided or await decide_for(self.backend, settings)
        self._decided = decided
        chat_format = settings.chat_format or await format_of(self.backend, decided.style)
        neutraliser = Neutraliser(chat_format.control_tokens)
        key = (words, settings, decided.style, chat_format, self._permitted())
        if self._opening is None or self._opening.key != key:
            self._opening = _opening(*key, neutraliser)
        opening = self._opening
        earlier = (_earlier(message, decided.style, neutraliser) for message in history)
        return Header(
            session=session,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            model=settings.model or getattr(self.backend, "model", None),
            backend=settings.backend,
            chat_format=chat_format.to_json(),
            style=decided.style,
            strategy=decided.strategy,
            verdict=decided.why,
            reasoning=settings.reasoning,
            sampling={"temperature": settings.temperature, "seed": settings.seed},
            response_mode=settings.response_mode,
            system=opening.system,
            examples=(*opening.examples, *earlier),
            tools=opening.tools,
            roots=settings.roots,
            catalog_hash=opening.catalog_hash,
            policy=self.policy.to_json(),
            policy_hash=self.policy.digest(),
            limits=self.limits.to_json(),
            tool_choice=settings.tool_choice,
        )


@dataclass(frozen=True, slots=True)
class _Opening:
    """What all sessions of a controller begin with, as long as nothing of ``key`` changes."""

    key: tuple[PromptWords, RunSettings, Style, ChatFormat, list[ToolSpec]]
    system: str
    examples: tuple[Mapping[str, str], ...]
    tools: tuple[Mapping[str, Any], ...]
    catalog_hash: str


def _opening(
    words: PromptWords,
    settings: RunSettings,
    style: Style,
    chat_format: ChatFormat,
    specs: list[ToolSpec],
    neutraliser: Neutraliser,
) -> _Opening:
    system = build_system(
        words,
        response_mode=settings.response_mode,
        style=style,
        tools=specs,
        project_context=settings.project_context,
        persona=settings.persona,
        neutraliser=neutraliser,
    )
    turns = build_examples(words, specs, style)
    catalog = json.dumps([spec.to_json() for spec in specs], sort_keys=True)
    return _Opening(
        key=(words, settings, style, chat_format, specs),
        system=system.text,
        examples=tuple({"role": turn.role, "content": turn.content} for turn in turns),
        tools=tuple(json.loads(catalog)),
        catalog_hash=hashlib.sha256(catalog.encode()).hexdigest(),
    )


class Conversation:
    """One open session: questions that see each other, in one transcript."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @property
    def session(self) -> str:
        """The session's id."""
        return self._driver.files.session

    @property
    def transcript(self) -> str | None:
        """The path of the transcript, None where it is in memory alone."""
        return self._driver.files.path

    async def run(self, question: str, *, tool_choice: str | None = None) -> Outcome:
        """Answers the next question; see `Controller.run`."""
        return await self._answer(question, tool_choice, lambda event: None)

    async def stream(
        self, question: str, *, tool_choice: str | None = None
    ) -> AsyncGenerator[events.Event]:
        """Answers the next question and yields what happens; see `Controller.stream`."""
        told: asyncio.Queue[events.Event | None] = asyncio.Queue()

        async def answer() -> None:
            try:
                outcome = await self._answer(question, tool_choice, told.put_nowait)
                told.put_nowait(events.Finished(outcome=outcome))
            finally:
                told.put_nowait(None)

        task = asyncio.create_task(answer())
        try:
            while (event := await told.get()) is not None:
                yield event
            await task
        finally:
            if task.cancel():
                with suppress(asyncio.CancelledError):
                    await task

    async def _answer(
        self, question: str, tool_choice: str | None, emit: Callable[[events.Event], None]
    ) -> Outcome:
        if not isinstance(question, str) or not question.strip():
            raise UsageError("the question is no text, or empty")
        self._check_choice(tool_choice)
        driver = self._driver
        await driver.run(question, tool_choice, emit)
        return outcome_of(
            driver.files.transcript, transcript=driver.files.path, outputs=driver.outputs
        )

    def _check_choice(self, tool_choice: str | None) -> None:
        """Raises `UsageError` for a choice that is neither a word nor a tool that may be called."""
        if tool_choice in (None, "auto", "none"):
            return
        session = self._driver.session
        allowed = [n for n, spec in session.specs.items() if permitted(session.policy, spec)]
        if tool_choice not in allowed and (tool_choice != "required" or not allowed):
            raise UsageError(
                f"tool_choice: {tool_choice!r} is not allowed",
                hint=f"auto, none, required or one of {', '.join(sorted(allowed)) or 'no tools'}",
            )

    def close(self) -> None:
        """Closes the transcript."""
        self._driver.files.transcript.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _earlier(message: Mapping[str, str], style: Style, neutraliser: Neutraliser) -> dict[str, str]:
    """An earlier message as a turn of the prompt."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant") or not isinstance(content, str):
        raise UsageError(
            "an earlier message is not usable",
            hint='each is {"role": "user" or "assistant", "content": text}',
        )
    text = content if role == "user" else write_answer(content, style)
    return {"role": role, "content": neutraliser.plain(text)}
