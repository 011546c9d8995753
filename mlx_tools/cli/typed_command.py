"""Programs that a person runs in a chat: a line that begins with ``!``.

The tool's rules, its sandbox, the policy and the question before a call hold as for the model. The
output goes with the next question.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from mlx_tools.app import call_recorded, config
from mlx_tools.cli.call_text import escape_line
from mlx_tools.cli.output import cut, note, print_text
from mlx_tools.cli.view import LiveView, show_change
from mlx_tools.controller import DirectCall, PauseApprover, shorten
from mlx_tools.errors import UsageError
from mlx_tools.transcript import Event, ToolStarted

if TYPE_CHECKING:
    from mlx_tools.cli.talk import ChatSession

MARK: Final = "!"

_SHELL_WORDS: Final = "();<>|&"
"""Characters of a shell's own words."""

_AS_QUESTION: Final = "a space before the ! sends it as a question"


def is_command(text: str) -> bool:
    """Return True for one line that begins with ``!``; a longer text is a question."""
    return text.startswith(MARK) and "\n" not in text.strip()


def run_line(talk: ChatSession, line: str) -> None:
    """Run a line's program, show its output, and keep that for the next question.

    Raises:
        UsageError: the line is no command, or the call is not allowed or fails.
        KeyboardInterrupt: Ctrl-C, which ends the program.
    """
    program, *arguments = split_line(line)
    _check_program(talk, program)
    call = _call(talk, program, arguments)
    if call.status == "pending" and not isinstance(talk.turns.own_approver, PauseApprover):
        note("nothing ran")  # the user was asked, and decided nothing
        return
    if call.preview:
        show_change(call.name, call.preview, sys.stderr)
    if call.status == "dry_run":
        note("a dry run: nothing ran")
    elif call.status == "pending":
        raise UsageError(
            "nothing ran: the call needs an approval, and nobody is asked here",
            hint="at a terminal you are, without --approve never",
        )
    elif call.error is not None:
        hint = f"/allow {call.name}" if call.error.code == "not_allowed" else None
        raise UsageError(f"nothing ran: {escape_line(call.error.message)}", hint=hint)
    elif call.result is not None:
        _keep(talk, line, call.result.content or "")


def split_line(line: str) -> list[str]:
    """Return the program and its arguments in a line.

    Raises:
        UsageError: there is no program, a quote is open, or only a shell could run it.
    """
    text = line.strip().removeprefix(MARK).strip()
    try:
        words = shlex.split(text)
        plain = [*shlex.shlex(text, posix=False, punctuation_chars=_SHELL_WORDS)]
    except ValueError as error:
        raise UsageError(f"{MARK}: {error}", hint=_AS_QUESTION) from None
    if not words:
        raise UsageError("no program is named", hint="as in !git status")
    if signs := [word for word in plain if not set(word) - {*_SHELL_WORDS}]:
        raise UsageError(
            f"{signs[0]}: there is no shell, so no pipes and no redirection",
            hint=f"run one program, or put {signs[0]} in quotes",
        )
    return words


def completions(talk: ChatSession, beginning: str) -> Iterator[str]:
    """Yield the programs that complete the first word of a line."""
    yield from (f"{MARK}{name}" for name in _programs(talk) if name.startswith(beginning[1:]))


def with_outputs(talk: ChatSession, question: str) -> tuple[str, int]:
    """Return a question with the outputs that go with it, and their characters."""
    added = "".join(f"\n\n{text}" for text in talk.outputs)
    return question + added, len(added)


def _programs(talk: ChatSession) -> Sequence[str]:
    spec = talk.controller.registry.all_specs().get(config.RUN_COMMAND)
    return () if spec is None else spec.parameters["properties"]["program"]["enum"]


def _check_program(talk: ChatSession, program: str) -> None:
    """Raise `UsageError` if the tool is off or does not know the program."""
    registry = talk.controller.registry
    reason = registry.disabled.get(config.RUN_COMMAND)
    if reason is None and config.RUN_COMMAND not in registry.all_specs():
        raise UsageError(
            f"nothing ran: there is no tool {config.RUN_COMMAND} here", hint=_AS_QUESTION
        )
    if reason is not None:
        reason = reason.replace("--root DIR", "/root DIR")
        raise UsageError(f"nothing ran: {config.RUN_COMMAND} is off: {reason}")
    if program not in _programs(talk):
        shown = cut(escape_line(program), 40)
        hint = f"/commands {shown} adds it; {_AS_QUESTION}"
        raise UsageError(f"nothing ran: run_command may not run {shown}", hint=hint)


def _call(talk: ChatSession, program: str, arguments: Sequence[str]) -> DirectCall:
    """Make the call, with questions to the user and a line while it runs."""
    calls = []

    async def happens() -> AsyncGenerator[Event]:
        yield ToolStarted(call=config.RUN_COMMAND, name=program)
        call, _ = await call_recorded(
            talk.configuration,
            talk.controller.registry,
            config.RUN_COMMAND,
            {"program": program, "arguments": [*arguments]},
            source="chat",
            approver=talk.turns.own_approver,
        )
        calls.append(call)

    view = LiveView.for_process(answer=False)
    try:
        for event in talk.turns.follow(happens, view):
            view.show(event)
    finally:
        view.end()
    return calls[0]


def _keep(talk: ChatSession, line: str, output: str) -> None:
    """Show an output, and keep of it what a tool's observation would have."""
    print_text(output, exact=True)
    limits = talk.controller.limits.for_model(talk.controller.context)
    kept = shorten(
        output,
        limits.observation_chars,
        lambda omitted, _: f"\n[{omitted} characters left out]\n",
    )
    talk.outputs.append(f"{line.strip()}\n{kept}")
    size = f"{len(kept):,}" if len(kept) == len(output) else f"{len(kept):,} of {len(output):,}"
    note(f"{size} characters of output go with the next question (or /clear begins without them)")
