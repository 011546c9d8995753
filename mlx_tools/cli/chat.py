"""`mlx-tools chat`: a conversation with tools; turns see each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

import typer
from anyio.from_thread import start_blocking_portal

from mlx_tools.cli import inputs, options, typed_command
from mlx_tools.cli.call_text import escape_line
from mlx_tools.cli.chat_commands import (
    COMMANDS,
    EXITS,
    ExitChat,
    ResumeChat,
    completions,
    run_slash_command,
)
from mlx_tools.cli.chat_rights import permissions, roots
from mlx_tools.cli.output import (
    begin_line,
    color_text,
    complain,
    count_columns,
    count_noun,
    cut,
    wrap_line,
)
from mlx_tools.cli.project import with_project
from mlx_tools.cli.saved_sessions import (
    describe_resumed,
    refuse_options,
    resolve_session,
    tell_resumed,
)
from mlx_tools.cli.talk import ChatSession
from mlx_tools.cli.type_ahead import TypeAhead
from mlx_tools.errors import EXIT_OK, BackendError, MlxToolsError
from mlx_tools.messages import replace
from mlx_tools.paths import state_dir
from mlx_tools.transcript import (
    Answered,
    AnswerRecord,
    Header,
    Outcome,
    UserRecord,
    find_last_state,
)

if TYPE_CHECKING:
    from mlx_tools.app import RunOptions, SavedSession

app = typer.Typer(add_completion=False)

_MAX_RECAP_CHARS: Final = 300
"""Characters of the last question and answer that are shown when a session continues."""


@app.command()
@options.with_settings(*options.ASK)
def chat(
    latest: options.ContinueLast = False,
    session: options.SessionGiven = None,
    tool_choice: options.ToolChoice = "auto",
    require_tools: options.RequireTools = "",
    *,
    options_given: options.Options,
) -> int:
    """Talk until the input ends."""
    if latest or session is not None:
        choice = "" if tool_choice == "auto" else tool_choice
        refuse_options(tool_choice=choice, require_tools=require_tools)
        same = {key: value for key, value in options_given.items() if key != "model.name"}
        saved = resolve_session(session, latest, same)
        if isinstance(model := options_given.get("model.name"), str):
            other = saved.fallback_options and replace(saved.fallback_options, model=model)
            run = replace(saved.run, model=model)
            saved = replace(saved, run=run, fallback_options=other)
        if latest and not sys.stdin.isatty():  # at a terminal the reminder says it
            tell_resumed(saved)
        return continue_chat(saved)
    return _talk(with_project(options.run_options(options_given, tool_choice, require_tools)))


def continue_chat(saved: SavedSession) -> int:
    """Continue a saved session in a chat."""
    return _talk(saved.run, saved)


def _talk(run: RunOptions, saved: SavedSession | None = None) -> int:
    left: ResumeChat | None = None
    while True:
        try:
            return _talk_once(run, saved)
        except ResumeChat as wanted:
            left, saved, run = wanted, wanted.saved, wanted.saved.run
        except MlxToolsError as error:
            # At a keyboard an open chat reports its errors itself, so this one was never opened.
            if left is None or not sys.stdin.isatty():
                raise
            complain(str(error))
            run = left.run
            saved = resolve_session(left.session, False, {}) if left.session else None
            left = None


def _talk_once(run: RunOptions, saved: SavedSession | None) -> int:
    keyboard = TypeAhead.for_process()
    quiet = keyboard.silence() if keyboard else nullcontext()
    with quiet, start_blocking_portal() as portal:
        with keyboard.buffer_input() if keyboard else nullcontext():
            talk = ChatSession(run, portal, saved, keyboard)
        with closing(talk):
            return _at_keyboard(talk) if sys.stdin.isatty() else _from_pipe(talk)


def _at_keyboard(talk: ChatSession) -> int:
    """Run a chat with a person.

    Ctrl-C stops a turn, Ctrl-D or /quit leaves, an error ends neither.
    """
    from mlx_tools.cli.line_editor import LineEditor

    complete = partial(completions, talk)
    ahead = talk.turns.type_ahead
    history = state_dir() / "chat_history"
    commands = {name: command.help for name, command in COMMANDS.items()}
    editor = LineEditor(history, commands, complete, talk.status_text, ahead)
    for row in (*banner(talk), *reminder(talk)):
        text = wrap_line(row, count_columns(sys.stderr), "  ")
        print(color_text(text, "dim", sys.stderr), file=sys.stderr)
    _run_and_report(ahead, talk.decide_pending)
    while True:
        try:
            line = editor.read()
        except KeyboardInterrupt:
            continue
        if line is None or line.strip().casefold() in EXITS:
            return EXIT_OK
        try:
            _run_and_report(ahead, partial(say, talk, line))
        except ExitChat:
            return EXIT_OK


def _run_and_report(type_ahead: TypeAhead | None, does: Callable[[], object]) -> None:
    """Run what a person asked for; report an error or Ctrl-C, and do not end the chat."""
    try:
        with type_ahead.buffer_input() if type_ahead else nullcontext():
            does()
    except KeyboardInterrupt:
        begin_line()
        complain("by Ctrl-C", kind="stopped")
    except MlxToolsError as error:
        complain(str(error))


def _from_pipe(talk: ChatSession) -> int:
    """Run a chat with a program: one question a line.

    The exit code is that of the last turn that failed.
    """
    code = EXIT_OK
    for data in sys.stdin.buffer:
        text = inputs.decode_text(data, "standard input")  # an error here ends the chat
        try:
            outcome = say(talk, text)
        except ExitChat:
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


def say(talk: ChatSession, text: str) -> Outcome | None:
    """Answer a question, or run a slash command or a program; those have no outcome.

    A text that begins with a space is a question, whatever follows.

    Raises:
        ExitChat: the command is ``/quit``.
    """
    if not text.strip():
        return None
    if text.startswith("/"):
        run_slash_command(talk, text.rstrip())
        return None
    if typed_command.is_command(text):
        typed_command.run_line(talk, text)
        return None
    question, file_chars = inputs.with_files(inputs.as_text(text.strip(), "question"))
    question, output_chars = typed_command.with_outputs(talk, question)
    try:
        return talk.ask(question, untyped_suffix_chars=file_chars + output_chars)
    finally:
        # A question that could not be asked leaves the outputs for the next one.
        if talk.last_question is not None and talk.last_question.content == question:
            talk.outputs.clear()


def reminder(talk: ChatSession) -> Iterator[str]:
    """Yield the last question and answer of a session that continues."""
    records = [*talk.past_records]
    questions = [record.content for record in records if isinstance(record, UserRecord)]
    if not questions:
        return
    count = count_noun(len(questions), "question")
    header = next(record for record in records if isinstance(record, Header))
    yield f"{describe_resumed(header)}, {count} so far:"
    yield f"> {_brief(questions[-1])}"
    last = find_last_state(records)
    if isinstance(last, AnswerRecord):
        yield _brief(last.content)
    elif not talk.conversation.undecided:
        yield "(it has no answer)"


def _brief(text: str) -> str:
    return escape_line(cut(" ".join(text.split()), _MAX_RECAP_CHARS))


def banner(talk: ChatSession) -> Iterator[str]:
    """Yield the first lines of a chat: the model, its folders and tools."""
    size = talk.context
    yield (talk.model or "a model without a name") + (
        f", {size:,} tokens of context" if size else ""
    )
    yield f"folders: {', '.join(roots(talk)) or 'none (/root DIR)'}"
    yield f"tools: {', '.join(one.brief for one in permissions(talk) if one.brief) or 'none'}"
    if talk.configuration.settings.policy.dry_run:
        yield "dry run: what would change anything is only shown"
    yield "/help lists the commands, Ctrl-D leaves"
