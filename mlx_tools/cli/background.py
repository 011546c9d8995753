"""Runs a question in the background while this thread shows what happens and asks.

The event loop has a thread of its own, so that the main thread is free for the terminal: Ctrl-C
reaches it at once, in the middle of a completion or of a question to the user alike.
"""

from __future__ import annotations

import queue
import signal
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    closing,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from msgspec import Struct

from mlx_tools.app import RunOptions, open_controller
from mlx_tools.backends import Backend
from mlx_tools.cli.approve import Questions, approver_of
from mlx_tools.cli.inputs import ctrl_c_later, handle_signal
from mlx_tools.cli.output import begin_line, complain, note
from mlx_tools.cli.root import Interrupted
from mlx_tools.cli.type_ahead import TypeAhead
from mlx_tools.cli.view import LiveView
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest, Approver, Controller, Conversation
from mlx_tools.transcript import Event, Finished, Outcome

if TYPE_CHECKING:
    from mlx_tools.app import SavedSession

_PATIENCE: Final = 10.0
"""Seconds without a sign of life after which a run that was told to stop is left alone."""

_TICK: Final = 0.1
"""Seconds between two looks of a view at the clock."""


class NewSession(Struct, frozen=True):
    """A session of its own, as `SavedSession` is one to go on with."""

    run: RunOptions

    def open_controller(
        self, approver: Approver, wrap: Callable[[Backend], Backend] = lambda backend: backend
    ) -> AbstractAsyncContextManager[Controller]:
        """See `SavedSession.open_controller`."""
        return open_controller(self.run, approver=approver, note=note, wrap=wrap)

    async def begin(self, controller: Controller) -> Conversation:
        """The session, open."""
        return await controller.conversation()


def answer(
    session: NewSession | SavedSession,
    stream: Callable[[Conversation], AsyncGenerator[Event]],
    view: LiveView,
    *,
    on_event: Callable[[Event], None] = lambda event: None,
    wrap: Callable[[Backend], Backend] = lambda backend: backend,
) -> Outcome:
    """Return the outcome of a conversation in a session, of which ``stream`` gives the events: each
    goes to ``on_event``, and is shown. ``wrap`` is as for `mlx_tools.app.open_controller`.

    Ctrl-C ends it, says where its transcript is, and is raised again.
    """
    with start_blocking_portal() as portal:
        turns = Turns(portal, session.run)
        controllers = portal.wrap_async_context_manager(
            session.open_controller(turns.approver, wrap)
        )
        with (
            controllers as controller,
            closing(portal.call(session.begin, controller)) as conversation,
        ):
            try:
                for event in turns.follow(lambda: stream(conversation), view):
                    on_event(event)
                    view.show(event)
            except KeyboardInterrupt:
                view.end()
                begin_line()
                kept = conversation.transcript or f"session {conversation.session}"
                complain(f"the transcript is in {kept}", kind="interrupted")
                raise Interrupted(conversation.session, conversation.transcript) from None
            finally:
                view.end()
    assert isinstance(event, Finished)
    return event.outcome


@dataclass(slots=True)
class _Question:
    """A question to the user: the main thread calls ``ask``, the loop waits for ``answer``."""

    ask: Callable[[], Any]
    answer: Future[Any] = field(default_factory=Future)


class Turns:
    """Runs turns of a conversation, one at a time, on the loop behind ``portal``.

    It is an approver too: what the run asks the user is answered in the main thread. ``approver``
    is who decides: it, or somebody else where no user is wanted or there. ``type_ahead`` keeps what
    is typed meanwhile.
    """

    def __init__(self, portal: BlockingPortal, run: RunOptions) -> None:
        self.portal = portal
        self.approver = approver_of(run.configuration, self)
        always = run.configuration.settings.policy.approve == "always"
        self._questions = Questions(self._look, always=always)
        self.type_ahead: TypeAhead | None = None
        self._queue: queue.SimpleQueue[Event | _Question | None] = queue.SimpleQueue()

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """Asks the user, from the loop; see `mlx_tools.controller.approver.Approver`."""
        answers: Sequence[ApprovalAnswer] = await self._ask_main_thread(
            lambda: self._questions.ask(requests)
        )
        return answers

    async def more_steps(self, steps_taken: int) -> int:
        """Asks the user, from the loop; see `mlx_tools.controller.approver.StepApprover`."""
        return int(await self._ask_main_thread(lambda: self._questions.more_steps(steps_taken)))

    async def _ask_main_thread(self, ask: Callable[[], Any]) -> Any:
        """Have the main thread ask the user something; return the answer."""
        question = _Question(ask)
        decided = anyio.Event()
        question.answer.add_done_callback(lambda _: self.portal.start_task_soon(decided.set))
        self._queue.put(question)
        await decided.wait()
        return question.answer.result()

    def _look(self, request: ApprovalRequest, arguments: Mapping[str, Any]) -> ApprovalRequest:
        assert request.edited is not None
        return self.portal.call(request.edited, arguments)

    def keyboard(self) -> AbstractContextManager[None]:
        """Inside, the user can be asked something."""
        return self.type_ahead.lend_terminal() if self.type_ahead else nullcontext()

    def follow(
        self, stream: Callable[[], AsyncGenerator[Event]], view: LiveView
    ) -> Iterator[Event]:
        """Return what happens in a run, whose events ``stream`` gives; the last is `Finished`.

        ``view`` is what shows them: it is told that time passes, and that the user is asked.

        Raises what the run raises. Ctrl-C (KeyboardInterrupt) ends the run, which is then in the
        transcript as interrupted, and is raised again.
        """
        future: Future[None] | None = None
        ended = False
        try:
            with ctrl_c_later():
                future = self.portal.start_task_soon(self._run, stream)
            with handle_signal(signal.SIGCONT, view.reset_position):
                while (item := self._next(view)) is not None:
                    if isinstance(item, _Question):
                        view.asks()
                        with self.keyboard():
                            answer = item.ask()
                        item.answer.set_result(answer)
                    else:
                        yield item
            ended = True
            future.result()
        except BaseException:
            if future is None:
                raise  # nothing was begun
            future.cancel()
            # A cancelled future does not say that the run has written down that it was told to
            # stop. Another Ctrl-C, or a tool that does not let go, ends the wait for that.
            with suppress(queue.Empty):
                while not ended and self._queue.get(timeout=_PATIENCE) is not None:
                    continue
            raise

    def _next(self, view: LiveView) -> Event | _Question | None:
        """What comes next; until then ``view`` shows that time passes."""
        while view.moves:
            with suppress(queue.Empty):
                return self._queue.get(timeout=_TICK)
            view.tick()
        return self._queue.get()

    async def _run(self, stream: Callable[[], AsyncGenerator[Event]]) -> None:
        try:
            async with aclosing(stream()) as events:
                async for event in events:
                    self._queue.put(event)
        finally:
            self._queue.put(None)
