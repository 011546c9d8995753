"""Asks the user at the terminal whether a call may run: the call is shown whole, and escaped."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from mlx_tools.approval import ApprovalAnswer, ApprovalRequest
from mlx_tools.cli.output import LINES, shown

_RUN_OF_SPACE = re.compile(r" {16,}")


def describe(request: ApprovalRequest) -> str:
    """The call as it would run, in full, with nothing in it that a terminal would obey.

    A long run of spaces is written as its length: nothing can be pushed out of sight.
    """
    arguments = json.dumps(dict(request.arguments), ensure_ascii=False, indent=2)
    arguments = _RUN_OF_SPACE.sub(lambda m: f"\\u0020×{len(m[0])}", shown(arguments, keep=LINES))
    indented = "\n".join(f"  {line}" for line in arguments.split("\n"))
    return (
        f"The model asks to call {shown(request.name)}: {shown(request.reason)}.\n"
        f"{indented}\n"
        f"  {shown(request.name)}, {len(arguments)} characters of arguments,"
        f" digest {request.digest}"
    )


def ask_user(
    requests: Sequence[ApprovalRequest],
    *,
    keyboard: TextIO | None = None,
    screen: TextIO | None = None,
) -> Sequence[ApprovalAnswer]:
    """Ask about one call after the other. Where the input ends, nothing more is decided."""
    keyboard, screen = keyboard or sys.stdin, screen or sys.stderr
    answers: list[ApprovalAnswer] = []
    for number, request in enumerate(requests, start=1):
        of_many = f" ({number} of {len(requests)})" if len(requests) > 1 else ""
        print(f"\n{describe(request)}", file=screen)
        answer = _answer(f"Run it once{of_many}? y, or n and why: ", keyboard, screen)
        answers.append(answer)
        if answer.approved is None:
            answers += [answer] * (len(requests) - number)
            break
    return answers


def asker(approve: str) -> Callable[[Sequence[ApprovalRequest]], Sequence[ApprovalAnswer]]:
    """Who is asked, and about what, by the setting ``policy.approve``."""
    return _ask_about_suspects if approve == "always" else ask_user


def _ask_about_suspects(requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
    """Approve what a standing consent covers, and ask the user about the rest."""
    return [
        ask_user([request])[0] if request.suspect else ApprovalAnswer(True, "--approve always")
        for request in requests
    ]


def _answer(prompt: str, keyboard: TextIO, screen: TextIO) -> ApprovalAnswer:
    _forget_typed_ahead(keyboard)
    while True:
        print(prompt, end="", file=screen, flush=True)
        line = keyboard.readline()
        if not line:
            print(file=screen)
            return ApprovalAnswer(None)
        word, _, reason = line.strip().partition(" ")
        if word.casefold() in ("y", "yes"):
            return ApprovalAnswer(True, "approved at the terminal")
        if word.casefold() in ("n", "no"):
            return ApprovalAnswer(False, reason.strip() or "the user said no")


def _forget_typed_ahead(keyboard: TextIO) -> None:
    """What was typed before the call was shown does not answer for it."""
    with contextlib.suppress(Exception):
        import termios

        termios.tcflush(keyboard.fileno(), termios.TCIFLUSH)
