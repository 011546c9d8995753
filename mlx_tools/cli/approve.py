"""Asks the user whether a call may run: the call is shown whole, and escaped.

At a terminal a key answers (`mlx_tools.cli.question`), elsewhere a line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TextIO

from mlx_tools.cli.call_text import foot, whole, wrapped
from mlx_tools.cli.keys import have_keys
from mlx_tools.cli.question import APPROVED, REFUSED, Questions
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest

_COLUMNS: Final = 100


def describe(request: ApprovalRequest) -> str:
    """The call as it would run, in full, with nothing in it that a terminal would obey."""
    arguments = request.arguments
    lines = whole(request, arguments) + foot(request, arguments, columns=_COLUMNS, heads=False)
    return "\n".join(line.text for line in wrapped(lines, None))


def ask_user(
    requests: Sequence[ApprovalRequest],
    *,
    keyboard: TextIO | None = None,
    screen: TextIO | None = None,
    in_session: bool = True,
) -> Sequence[ApprovalAnswer]:
    """Ask about one call after the other. Where the input ends, nothing more is decided.

    Without ``in_session`` no call can be edited, and no consent holds for longer than a call.
    """
    keyboard, screen = keyboard or sys.stdin, screen or sys.stderr
    if have_keys(keyboard, screen):
        return Questions(requests, keyboard, screen, in_session=in_session).ask()
    answers: list[ApprovalAnswer] = []
    for number, request in enumerate(requests, start=1):
        of_many = f" ({number} of {len(requests)})" if len(requests) > 1 else ""
        print(f"\n{describe(request)}", file=screen)
        once = "AGAIN" if request.in_doubt else "once"
        answer = _answer(f"Run it {once}{of_many}? y, or n and why: ", keyboard, screen)
        answers.append(answer)
        if answer.approved is None:
            answers += [answer] * (len(requests) - number)
            break
    return answers


def asker(
    approve: str, *, in_session: bool = True
) -> Callable[[Sequence[ApprovalRequest]], Sequence[ApprovalAnswer]]:
    """Who is asked, and about what, by the setting ``policy.approve``; see `ask_user`."""
    ask = partial(ask_user, in_session=in_session)
    return partial(_ask_about_the_rest, ask) if approve == "always" else ask


def _ask_about_the_rest(
    ask: Callable[[Sequence[ApprovalRequest]], Sequence[ApprovalAnswer]],
    requests: Sequence[ApprovalRequest],
) -> Sequence[ApprovalAnswer]:
    """Approve what a standing consent covers, and ask the user about the rest."""
    left = [request for request in requests if request.suspect or request.in_doubt]
    asked = iter(ask(left) if left else ())
    return [
        next(asked)
        if request.suspect or request.in_doubt
        else ApprovalAnswer(True, "--approve always")
        for request in requests
    ]


def _answer(prompt: str, keyboard: TextIO, screen: TextIO) -> ApprovalAnswer:
    while True:
        print(prompt, end="", file=screen, flush=True)
        line = keyboard.readline()
        if not line:
            print(file=screen)
            return ApprovalAnswer(None)
        word, _, reason = line.strip().partition(" ")
        if word.casefold() in ("y", "yes"):
            return ApprovalAnswer(True, APPROVED)
        if word.casefold() in ("n", "no"):
            return ApprovalAnswer(False, reason.strip() or REFUSED)
