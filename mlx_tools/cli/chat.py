"""`mlx-tools chat`: a conversation with tools, line by line; turns see each other."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Final

import typer
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mlx_tools.app import RunOptions, opened
from mlx_tools.cli import inputs, options
from mlx_tools.cli.background import Turns
from mlx_tools.cli.output import beside, columns_of, complain, note, ours, print_text
from mlx_tools.cli.view import LiveView, compacted, ending, list_sources
from mlx_tools.controller import Controller, Conversation
from mlx_tools.errors import EXIT_OK, BackendError, MlxToolsError, StorageError, UsageError
from mlx_tools.paths import state_dir
from mlx_tools.transcript import Answered, Compacted, Event, Finished, Outcome, Paused

app = typer.Typer(add_completion=False)

_COMMAND = re.compile(r"/[a-z]+", re.ASCII)
_COMMANDS: Final[Mapping[str, str]] = {
    "/tools": "which tools there are",
    "/model": "which model answers; /model NAME goes on with another",
    "/clear": "begin a new conversation",
    "/compact": "have the model sum up what was said, to make room",
    "/transcript": "where this conversation is kept",
    "/help": "this list",
    "/quit": "leave (or Ctrl-D)",
}
_HELP: Final = "\n".join(f"{name:<12} {text}" for name, text in _COMMANDS.items())


@app.command()
@options.with_settings(*options.ASK)
def chat(
    tool_choice: options.ToolChoice = "auto",
    require_tools: options.RequireTools = "",
    *,
    options_given: options.Options,
) -> int:
    """Talk until the input ends."""
    run = options.run_options(options_given, tool_choice, require_tools)
    with start_blocking_portal() as portal, closing(Talk(run, portal)) as talk:
        return _at_keyboard(talk) if sys.stdin.isatty() else _from_pipe(talk)


def _at_keyboard(talk: Talk) -> int:
    """A person types: Ctrl-C stops a turn, Ctrl-D or /quit leaves, an error ends neither."""
    from mlx_tools.cli.line_editor import LineEditor

    history = state_dir() / "chat_history"
    editor = LineEditor(history, lambda: _COMMANDS, lambda command, beginning: (), lambda: "")
    talk.turns.type_ahead = editor.type_ahead
    complain(f"{talk.model or 'the model'} listens; /help, and Ctrl-D to leave", kind="chat")
    while True:
        try:
            line = editor.read()
            if line is None:
                return EXIT_OK
            if line.strip():
                talk.say(line)
        except Leave:
            return EXIT_OK
        except KeyboardInterrupt:
            continue
        except MlxToolsError as error:
            complain(str(error))


def _from_pipe(talk: Talk) -> int:
    """A program writes: one question a line. The exit code is that of the last turn that failed."""
    code = EXIT_OK
    for data in sys.stdin.buffer:
        line = inputs.decoded(data, "standard input")
        if not line.strip():
            continue
        try:
            outcome = talk.say(line)
        except Leave:
            break
        except BackendError:
            raise
        except MlxToolsError as error:
            complain(str(error))
            code = error.exit_code
            continue
        if outcome is not None and not isinstance(outcome, Answered):
            code = outcome.exit_code
    return code


class Leave(Exception):
    """The user wants to leave."""


class Talk:
    """Questions and answers over one transcript. Raises what `opened` raises."""

    def __init__(self, run: RunOptions, portal: BlockingPortal) -> None:
        self._run = run
        self._portal = portal
        self.turns = Turns(portal, run)
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
        line = inputs.as_text(line.strip(), "question")
        word, _, rest = line.partition(" ")
        if _COMMAND.fullmatch(word):
            self._command(word, rest.strip())
            return None
        return self._ask(line)

    def close(self) -> None:
        """End the conversation and what serves it."""
        self._conversation.close()
        self._stack.close()

    def _ask(self, question: str) -> Outcome:
        view = LiveView.here()
        if self._broken_off:
            self._renew()
        conversation = self._conversation
        try:
            for event in self.turns.follow(lambda: conversation.stream(question)):
                view.show(event)
        except StorageError:
            self._broken_off = True  # that session keeps; the talk goes on in another
            raise
        finally:
            view.end()
        assert isinstance(event, Finished)
        outcome = event.outcome
        if isinstance(outcome, Answered):
            self._said += (
                {"role": "user", "content": question},
                {"role": "assistant", "content": outcome.answer},
            )
            if not ours().isatty():
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
            "/transcript": lambda _: print_text(
                self._conversation.transcript or "the transcript is in memory alone"
            ),
            "/help": lambda _: print_text(_HELP),
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
        for event in self.turns.follow(happens):
            if isinstance(event, Compacted):
                told = compacted(event)
        print_text(told)

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
                    opened(run, approver=self.turns.approver, note=note)
                )
            )
            conversation = self._conversed(controller)
            return stack.pop_all(), controller, conversation
        raise AssertionError("unreachable")
