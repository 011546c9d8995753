"""Runs a question in the background while this thread shows what happens and asks.

The event loop has a thread of its own, so that the main thread is free for the terminal: Ctrl-C
reaches it at once, in the middle of a completion or of a question to the user alike.
"""

from __future__ import annotations

import queue
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from anyio.from_thread import BlockingPortal

from mlx_tools.controller import ApprovalAnswer, ApprovalRequest
from mlx_tools.transcript.events import Event

if TYPE_CHECKING:
    from mlx_tools.controller import Conversation

_PATIENCE: Final = 10.0
"""Seconds without a sign of life after which a run that was told to stop is left alone."""

AskUser = Callable[[Sequence[ApprovalRequest]], Sequence[ApprovalAnswer]]


@dataclass(slots=True)
class _Question:
    """Calls that the user must decide about; the loop waits for ``answers``."""

    requests: Sequence[ApprovalRequest]
    answers: Future[Sequence[ApprovalAnswer]] = field(default_factory=Future)


class Turns:
    """Runs turns of a conversation, one at a time, on the loop behind ``portal``.

    It is an approver too: what the run asks is answered by ``ask_user``, in the main thread.
    """

    def __init__(self, portal: BlockingPortal, ask_user: AskUser) -> None:
        self.portal = portal
        self._ask_user = ask_user
        self._queue: queue.SimpleQueue[Event | _Question | None] = queue.SimpleQueue()

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """Asks the user, from the loop; see `mlx_tools.controller.Approver`."""
        import anyio

        question = _Question(requests)
        decided = anyio.Event()
        question.answers.add_done_callback(lambda _: self.portal.start_task_soon(decided.set))
        self._queue.put(question)
        await decided.wait()
        return question.answers.result()

    def run(
        self,
        conversation: Conversation,
        question: str,
        tool_choice: str | None = None,
        piped: int = 0,
    ) -> Iterator[Event]:
        """What happens while the question is answered; see `follow`."""
        return self.follow(
            lambda: conversation.stream(question, tool_choice=tool_choice, piped=piped)
        )

    def follow(self, stream: Callable[[], AsyncGenerator[Event]]) -> Iterator[Event]:
        """What happens in a run, whose events ``stream`` gives; the last is `Finished`.

        Raises what the run raises. Ctrl-C (KeyboardInterrupt) ends the run, which is then in the
        transcript as interrupted, and is raised again.
        """
        future = self.portal.start_task_soon(self._run, stream)
        ended = False
        try:
            yield from self._told()
            ended = True
            future.result()
        except BaseException:
            future.cancel()
            if not ended:
                self._wait_for_end()
            raise

    def _wait_for_end(self) -> None:
        """Until a run that was told to stop has written that down; a cancelled future says nothing
        of that. Another Ctrl-C, or a tool that does not let go, ends the wait."""
        with suppress(queue.Empty):
            while self._queue.get(timeout=_PATIENCE) is not None:
                continue

    async def _run(self, stream: Callable[[], AsyncGenerator[Event]]) -> None:
        try:
            async with aclosing(stream()) as events:
                async for event in events:
                    self._queue.put(event)
        finally:
            self._queue.put(None)

    def _told(self) -> Iterator[Event]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, _Question):
                item.answers.set_result(self._ask_user(item.requests))
            else:
                yield item
