"""Runs a question in the background while this thread shows what happens and asks.

The event loop has a thread of its own, so the main thread is free for the terminal. Ctrl-C reaches
it at once, in the middle of a completion or of a question to the user.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    closing,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from msgspec import Struct

from mlx_tools.app import RunOptions, open_controller
from mlx_tools.backends import Backend
from mlx_tools.cli.approve import Questions, choose_approver
from mlx_tools.cli.inputs import ctrl_c_later, handle_signal
from mlx_tools.cli.output import begin_line, complain, note
from mlx_tools.cli.root import Interrupted
from mlx_tools.cli.type_ahead import TypeAhead
from mlx_tools.cli.view import LiveView
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest, Approver, Controller, Conversation
from mlx_tools.transcript import Event, Finished, Outcome

if TYPE_CHECKING:
    from mlx_tools.app import SavedSession

T = TypeVar("T")

_END_SECONDS: Final = 10.0
"""Seconds without an event after which a cancelled run is abandoned.

A choice: a tool that does not end must not keep the user from the prompt."""

_TICK: Final = 0.1
"""Seconds between two updates of the view, and checks for signals, while nothing happens."""
_POLL_SECONDS: Final = 0.02
"""Seconds between two checks for a question while a backend is opened."""


def wait_for(future: Future[T]) -> T:
    """Return the result of a future.

    A signal just before a wait without a timeout would be noticed only at the end of the wait.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    while not wait([future], _TICK).done:
        continue
    return future.result()


class NewSession(Struct, frozen=True):
    """A new session, with the interface of `SavedSession`."""

    run: RunOptions

    def open_controller(
        self, approver: Approver, wrap: Callable[[Backend], Backend] = lambda backend: backend
    ) -> AbstractAsyncContextManager[Controller]:
        """Open a controller; see `SavedSession.open_controller`."""
        return open_controller(self.run, approver=approver, note=note, wrap=wrap)

    async def begin(self, controller: Controller) -> Conversation:
        """Open the session."""
        return await controller.conversation()


def answer(
    session: NewSession | SavedSession,
    stream: Callable[[Conversation], AsyncGenerator[Event]],
    view: LiveView,
    *,
    on_event: Callable[[Event], None] = lambda event: None,
    wrap: Callable[[Backend], Backend] = lambda backend: backend,
) -> Outcome:
    """Return the outcome of a conversation in a session.

    Ctrl-C ends it, prints where its transcript is and what goes on with it, and is raised again.

    Args:
        session: the session.
        stream: returns the events of the conversation.
        view: shows each event.
        on_event: gets each event before it is shown.
        wrap: as for `mlx_tools.app.open_controller`.
    """
    with start_blocking_portal() as portal:
        turns = Turns(portal, session.run)
        controllers = portal.wrap_async_context_manager(
            session.open_controller(turns.approver, wrap)
        )
        with (
            controllers as controller,
            closing(wait_for(portal.start_task_soon(session.begin, controller))) as conversation,
        ):
            view.start()
            try:
                for event in turns.follow(lambda: stream(conversation), view):
                    on_event(event)
                    view.show(event)
            except KeyboardInterrupt:
                view.end()
                begin_line()
                location = conversation.transcript or f"session {conversation.session}"
                hint = f"mlx-tools ask --session {conversation.session} goes on"
                complain(f"the transcript is in {location} ({hint})", kind="interrupted")
                raise Interrupted(conversation.session, conversation.transcript) from None
            finally:
                view.end()
    assert isinstance(event, Finished)
    return event.outcome


@dataclass(slots=True)
class _Question:
    """A question to the user.

    The main thread calls ``ask``, the loop waits for ``answer``.
    """

    ask: Callable[[], Any]
    answer: Future[Any] = field(default_factory=Future)


class _OwnCalls:
    """Asks the user about calls of their own: no model reads a reason."""

    def __init__(self, turns: Turns, always: bool) -> None:
        self._turns = turns
        self._questions = Questions(always=always)

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        answers: Sequence[ApprovalAnswer] = await self._turns.ask_main_thread(
            lambda: self._questions.ask(requests)
        )
        return answers


class Turns:
    """Runs turns of a conversation, one at a time, on the loop behind ``portal``.

    It is an approver too: the main thread answers the questions of the run.
    """

    def __init__(self, portal: BlockingPortal, run: RunOptions) -> None:
        self.portal = portal
        self.approver = choose_approver(run.configuration, self)
        """The approver: this object, or another one if no user is wanted or there."""
        always = run.configuration.settings.policy.approve == "always"
        self._questions = Questions(self._look, always=always)
        self.own_approver = choose_approver(run.configuration, _OwnCalls(self, always))
        """The approver of calls that the user makes."""
        self.type_ahead: TypeAhead | None = None
        """Holds what is typed meanwhile."""
        self._queue: queue.SimpleQueue[Event | _Question | None] = queue.SimpleQueue()

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """Ask the user, from the loop; see `mlx_tools.controller.approvals.Approver`."""
        answers: Sequence[ApprovalAnswer] = await self.ask_main_thread(
            lambda: self._questions.ask(requests)
        )
        return answers

    async def more_steps(self, steps_taken: int) -> int:
        """Ask the user, from the loop; see `mlx_tools.controller.approvals.StepApprover`."""
        return int(await self.ask_main_thread(lambda: self._questions.more_steps(steps_taken)))

    async def ask_main_thread(self, ask: Callable[[], Any]) -> Any:
        """Let the main thread ask the user something; return the answer."""
        question = _Question(ask)
        decided = anyio.Event()
        question.answer.add_done_callback(lambda _: self.portal.start_task_soon(decided.set))
        self._queue.put(question)
        await decided.wait()
        return question.answer.result()

    def wait_answering(self, does: Callable[[], T]) -> T:
        """Return the result of a blocking function; meanwhile the user can be asked.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(does())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        while not wait([future], _POLL_SECONDS).done:
            with suppress(queue.Empty):
                item = self._queue.get_nowait()
                assert isinstance(item, _Question)
                try:
                    with self.keyboard():
                        answer = item.ask()
                except BaseException:
                    item.answer.set_result(None)  # nobody waits for it any more
                    raise
                item.answer.set_result(answer)
        return future.result()

    def _look(self, request: ApprovalRequest, arguments: Mapping[str, Any]) -> ApprovalRequest:
        assert request.preview_edit is not None
        return self.portal.call(request.preview_edit, arguments)

    def keyboard(self) -> AbstractContextManager[None]:
        """Free the keyboard for a question to the user."""
        return self.type_ahead.lend_terminal() if self.type_ahead else nullcontext()

    def follow(
        self, stream: Callable[[], AsyncGenerator[Event]], view: LiveView
    ) -> Iterator[Event]:
        """Yield the events of a run; the last is `Finished`.

        Ctrl-C ends the run, which is then in the transcript as interrupted.

        Args:
            stream: returns the events.
            view: shows them; it learns that time passes, and that the user is asked.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        future: Future[None] | None = None
        has_ended = False
        try:
            with ctrl_c_later():
                future = self.portal.start_task_soon(self._run, stream)
            with handle_signal(signal.SIGCONT, view.reset_position):
                while (item := self.next_item(view)) is not None:
                    if isinstance(item, _Question):
                        view.prepare_question()
                        with self.keyboard():
                            answer = item.ask()
                        item.answer.set_result(answer)
                        view.tick()  # what runs now may take long
                    else:
                        yield item
            has_ended = True
            wait_for(future)
        except BaseException:
            if future is None:
                raise  # nothing was started
            future.cancel()
            # A cancelled future does not mean that the run has recorded its interruption: wait for
            # its last event. Another Ctrl-C, or a tool that does not end, ends this wait.
            with suppress(queue.Empty):
                while not has_ended and self._queue.get(timeout=_END_SECONDS) is not None:
                    continue
            raise

    def next_item(self, view: LiveView) -> Event | _Question | None:
        """Return the next event or question; until then the view shows that time passes."""
        while True:
            # A signal just before a wait without a timeout would be noticed only at its end.
            with suppress(queue.Empty):
                return self._queue.get(timeout=_TICK)
            if view.moves:
                view.tick()

    async def _run(self, stream: Callable[[], AsyncGenerator[Event]]) -> None:
        try:
            async with aclosing(stream()) as events:
                async for event in events:
                    self._queue.put(event)
        finally:
            self._queue.put(None)
