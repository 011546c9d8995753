"""One open session: questions that see each other, and what was asked of a person in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from mlx_tools.controller.approver import Approvals, answers_of
from mlx_tools.controller.completer import Emit
from mlx_tools.controller.driver import Driver
from mlx_tools.controller.telemetry import observed
from mlx_tools.errors import UsageError
from mlx_tools.messages import tool_named
from mlx_tools.policy import Policy, permitted
from mlx_tools.prompt import told_when_needed
from mlx_tools.transcript import events
from mlx_tools.transcript.outcome import Outcome, outcome_of
from mlx_tools.transcript.records import Header, State


class Conversation:
    """One open session: questions that see each other, in one transcript.

    ``policy`` is the one in force. ``begin`` makes the header of a new session, of its first
    question and that one's tool choice.
    """

    def __init__(
        self,
        driver: Driver,
        policy: Policy,
        begin: Callable[[str, str | None], Header] | None = None,
    ) -> None:
        self._driver = driver
        self._policy = policy
        self._begin = begin

    @property
    def session(self) -> str:
        """The session's id."""
        return self._driver.files.session

    @property
    def parent(self) -> str:
        """The session and the call that this one runs within, empty for one of its own."""
        return self._driver.session.header.parent

    @property
    def transcript(self) -> str | None:
        """The path of the transcript, None where it is in memory alone."""
        return self._driver.files.path

    async def run(self, question: str, *, tool_choice: str | None = None) -> Outcome:
        """Answers the next question; see `Controller.run`."""
        return await self._answer(question, tool_choice, lambda event: None)

    def stream(
        self, question: str, *, tool_choice: str | None = None, piped: int = 0
    ) -> AsyncGenerator[events.Event]:
        """Answers the next question and yields what happens; see `Controller.stream`.

        ``piped`` is how many characters at the end of the question are somebody else's text: a
        call that stands there is an echo.
        """
        return _told(lambda emit: self._answer(question, tool_choice, emit, piped))

    async def resume(self, approvals: Approvals = None) -> Outcome:
        """Goes on where the session was paused or broke off; see `Controller.resume`."""
        return await self._resume(approvals, lambda event: None)

    def stream_resumed(self, approvals: Approvals = None) -> AsyncGenerator[events.Event]:
        """Goes on like `resume` and yields what happens, like `stream`."""
        return _told(lambda emit: self._resume(approvals, emit))

    async def compact(self) -> events.Compacted | None:
        """Has the model sum up what was said before the last question (that too where it was the
        first), which then stands in place of it; None where nothing was said.

        Raises `UsageError` in the middle of a question, and `BackendError` where there is no
        summary: nothing has changed then.
        """
        told: list[events.Event] = []
        await self._driver.compact(told.append)
        return next((event for event in told if isinstance(event, events.Compacted)), None)

    async def go_on(self, question: str, approvals: Approvals) -> Outcome:
        """Goes on with a session in which ``question`` was asked: its outcome where that has come
        to rest, else like `resume`. Raises `UsageError` where another question was asked."""
        session = self._driver.session
        if session.question != question:
            raise UsageError("it asks something else than when it was made before")
        if session.state in (State.IDLE, State.STOPPED):
            return self._outcome()
        return await self._resume(approvals, lambda event: None)

    async def _resume(self, approvals: Approvals, emit: Emit) -> Outcome:
        driver = self._driver
        state = driver.session.state
        if state in (State.IDLE, State.STOPPED) and not isinstance(approvals, Mapping):
            ended = "has its answer" if state is State.IDLE else "has stopped"
            raise UsageError(f"nothing waits in the session: it {ended}", hint="ask again")
        current = driver.session.current
        sure = [c.call for c in driver.waiting() if not current.in_doubt(c.call)]
        sure += [call.call_id for call in driver.waiting_within() if not call.in_doubt]
        answers = answers_of(approvals, sure)
        with observed(driver.files.transcript, emit) as tell:
            await driver.resume(self._policy, answers, tell)
        return self._outcome()

    async def _answer(
        self, question: str, tool_choice: str | None, emit: Emit, piped: int = 0
    ) -> Outcome:
        if not isinstance(question, str) or not question.strip():
            raise UsageError("the question is no text, or empty")
        driver = self._driver
        if tool_choice is not None:
            tool_choice = tool_named(tool_choice, driver.session.specs)
        self._check_choice(tool_choice)
        if driver.session.state is State.EMPTY and self._begin is not None:
            driver.open(self._begin(question, tool_choice))
        with observed(driver.files.transcript, emit) as tell:
            await driver.run(question, tool_choice, tell, piped)
        return self._outcome()

    def _outcome(self) -> Outcome:
        driver = self._driver
        return outcome_of(
            driver.files.transcript,
            transcript=driver.files.path,
            outputs=driver.outputs.whole,
            artifacts=driver.outputs.artifacts,
        )

    def _check_choice(self, tool_choice: str | None) -> None:
        """Raises `UsageError` for a choice that is neither a word nor a tool that may be called."""
        if tool_choice in (None, "auto", "none"):
            return
        session = self._driver.session
        specs = session.specs
        policy = self._policy if session.state is State.EMPTY else session.policy
        allowed = [name for name, spec in specs.items() if permitted(policy, spec)]
        some = any(not told_when_needed(specs[name]) for name in allowed)
        if tool_choice not in allowed and (tool_choice != "required" or not some):
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


async def _told(answer: Callable[[Emit], Awaitable[Outcome]]) -> AsyncGenerator[events.Event]:
    """What happens while ``answer`` works; closing the generator cancels it."""
    told: asyncio.Queue[events.Event | None] = asyncio.Queue()

    async def work() -> None:
        try:
            outcome = await answer(told.put_nowait)
            told.put_nowait(events.Finished(outcome=outcome))
        finally:
            told.put_nowait(None)

    task = asyncio.create_task(work())
    try:
        while (event := await told.get()) is not None:
            yield event
        await task
    finally:
        if task.cancel():
            with suppress(asyncio.CancelledError):
                await task
