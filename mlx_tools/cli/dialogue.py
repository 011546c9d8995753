"""A conversation as `chat` has it: turns that see each other, and what a slash asks for."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from anyio.from_thread import BlockingPortal

from mlx_tools.app.own_output import ours
from mlx_tools.app.wiring import RunOptions, approver_of, opened
from mlx_tools.cli.approve import asker
from mlx_tools.cli.background import Turns
from mlx_tools.cli.columns import beside, columns_of
from mlx_tools.cli.output import complain, note, print_text
from mlx_tools.cli.session_text import compacted
from mlx_tools.cli.view import LiveView, ending, list_sources
from mlx_tools.controller import Controller, Conversation
from mlx_tools.errors import StorageError, UsageError
from mlx_tools.transcript.events import Compacted, Event, Finished
from mlx_tools.transcript.outcome import Answered, Outcome, Paused

_COMMAND = re.compile(r"/[a-z]+", re.ASCII)


class Leave(Exception):
    """The user wants to leave."""


class Talk:
    """Questions and answers over one transcript. Raises what `opened` raises."""

    def __init__(self, run: RunOptions, portal: BlockingPortal) -> None:
        self._run = run
        self._portal = portal
        self._turns = Turns(portal, asker(run.configuration.settings.policy.approve))
        self._said: list[Mapping[str, str]] = []
        self._broken_off = False
        self._stack, self._controller, self._conversation = self._opened(run)

    @property
    def model(self) -> str | None:
        """The model's name, where it is known."""
        return self._controller.settings.model

    def say(self, line: str) -> Outcome | None:
        """Answer a question, or do what a slash asks for (then there is no outcome).

        Raises `Leave` for ``/quit``.
        """
        word, _, rest = line.strip().partition(" ")
        if _COMMAND.fullmatch(word):
            self._command(word, rest.strip())
            return None
        return self._ask(line.strip())

    def close(self) -> None:
        """End the conversation and what serves it."""
        self._conversation.close()
        self._stack.close()

    def _ask(self, question: str) -> Outcome:
        live = ours().isatty()
        view = LiveView(
            steps=sys.stderr if sys.stderr.isatty() else None, answer=ours() if live else None
        )
        outcome = None
        if self._broken_off:
            self._renew()
        try:
            for event in self._turns.run(self._conversation, question):
                view.show(event)
                if isinstance(event, Finished):
                    outcome = event.outcome
        except StorageError:
            self._broken_off = True  # that session keeps; the talk goes on in another
            raise
        finally:
            view.end()
        if outcome is None:
            raise UsageError("the turn ended without an outcome")
        if isinstance(outcome, Answered):
            self._said += (
                {"role": "user", "content": question},
                {"role": "assistant", "content": outcome.answer},
            )
            if not live:
                print_text(outcome.answer)
            list_sources(outcome.sources)
        said = ending(outcome)
        if said is not None:
            complain(said, kind=outcome.status)
        if isinstance(outcome, Paused):
            self._renew()  # the paused session keeps; the talk goes on in another
        return outcome

    def _command(self, word: str, rest: str) -> None:
        commands: Mapping[str, Callable[[str], None]] = {
            "/tools": self._show_tools,
            "/model": self._show_or_change_model,
            "/clear": self._clear,
            "/compact": self._compact,
            "/transcript": self._show_transcript,
            "/help": self._help,
            "/quit": self._leave,
            "/exit": self._leave,
        }
        if word not in commands:
            raise UsageError(f"there is no command {word}", hint=f"one of {', '.join(commands)}")
        commands[word](rest)

    def _show_tools(self, _: str) -> None:
        for row in self._controller.registry.listing(self._controller.policy):
            if row["permitted"]:
                asks = ", asks first" if row["needs_approval"] else ""
                print_text(f"{row['name']}  ({', '.join(row['effects'])}{asks})")
            elif row["enabled"]:
                print_text(f"{row['name']}  not permitted")
            else:
                said = f"disabled: {row['disabled_reason']}"
                print_text(beside(f"{row['name']} ", said, columns_of(ours())))

    def _show_or_change_model(self, name: str) -> None:
        if name:
            run = replace(self._run, model=name)
            old, ended = self._stack, self._conversation
            self._stack, self._controller, self._conversation = self._opened(run)
            self._run = run
            ended.close()
            old.close()
        print_text(self.model or "the server does not say which model it runs")

    def _clear(self, _: str) -> None:
        self._said.clear()
        self._renew()
        print_text("a new conversation begins")

    def _compact(self, _: str) -> None:
        conversation = self._conversation

        async def happens() -> AsyncGenerator[Event]:
            if (done := await conversation.compact()) is not None:
                yield done

        told = "nothing was said yet"
        for event in self._turns.follow(happens):
            if isinstance(event, Compacted):
                told = compacted(event.turns, event.observations, event.before, event.after)
        print_text(told)

    def _show_transcript(self, _: str) -> None:
        print_text(self._conversation.transcript or "the transcript is in memory alone")

    def _help(self, _: str) -> None:
        print_text(
            "/tools       which tools there are\n"
            "/model       which model answers; /model NAME goes on with another\n"
            "/clear       begin a new conversation\n"
            "/compact     have the model sum up what was said, to make room\n"
            "/transcript  where this conversation is kept\n"
            "/quit        leave (or Ctrl-D)\n"
            "Ctrl-C stops an answer."
        )

    def _leave(self, _: str) -> None:
        raise Leave

    def _renew(self) -> None:
        """Go on in a new session that remembers what was said."""
        old = self._conversation
        self._conversation = self._conversed(self._controller)
        self._broken_off = False
        old.close()

    def _conversed(self, controller: Controller) -> Conversation:
        return self._portal.call(lambda: controller.conversation(history=tuple(self._said)))

    def _opened(self, run: RunOptions) -> tuple[ExitStack, Controller, Conversation]:
        with ExitStack() as stack:
            controller = stack.enter_context(
                self._portal.wrap_async_context_manager(
                    opened(
                        run,
                        approver=approver_of(run.configuration, self._turns),
                        note=note,
                    )
                )
            )
            conversation = self._conversed(controller)
            return stack.pop_all(), controller, conversation
        raise AssertionError("unreachable")
