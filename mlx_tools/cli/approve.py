"""Asks the user whether a call may run: the call is shown whole, and escaped; a key answers."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from mlx_tools.app import Configuration
from mlx_tools.cli import inputs
from mlx_tools.cli.call_text import (
    ShownLine,
    as_name,
    exact,
    foot,
    in_words,
    show,
    size_of,
    whole,
    wrapped,
)
from mlx_tools.cli.inputs import at_terminal, handled, read_key, read_line, terminal_kept
from mlx_tools.controller import (
    AlwaysApprove,
    ApprovalAnswer,
    ApprovalRequest,
    Approver,
    NobodyThere,
)
from mlx_tools.errors import UsageError

APPROVED: Final = "approved at the terminal"
REFUSED: Final = "the user said no"

_BESIDE: Final = 10
"""Rows that foot and question may take: what is longer than the others is called long."""

_HELP: Final[Mapping[str, str]] = {
    "y": "run this call, once",
    "n": "do not run it, and say why (the model is told)",
    "e": "edit the arguments, then look again",
    "s": "run it, and let this tool run without asking for the rest of the session",
    "a": "run it and all that are left of these calls, but those that need a look of their own",
    "d": "show the call again, a screen at a time",
    "p": "decide nothing and pause the run (or Ctrl-D)",
    "?": "this list",
}
_AGAIN: Final = {"y": "run it AGAIN", "n": "give it up, and say why (the model is told)"}

AskUser = Callable[[Sequence[ApprovalRequest]], Sequence[ApprovalAnswer]]


def approver_of(configuration: Configuration, user: Approver) -> Approver:
    """Who decides about calls that need approval: ``user``, where one is wanted and there."""
    wish = configuration.settings.policy.approve
    if wish != "never" and at_terminal():
        return user
    return AlwaysApprove() if wish == "always" else NobodyThere()


def asker(approve: str, *, in_session: bool = True) -> AskUser:
    """Who is asked, and about what, by the setting ``policy.approve``; see `ask_user`."""
    ask = partial(ask_user, in_session=in_session)
    return partial(_ask_about_the_rest, ask) if approve == "always" else ask


def _ask_about_the_rest(
    ask: AskUser, requests: Sequence[ApprovalRequest]
) -> Sequence[ApprovalAnswer]:
    """Approve what a standing consent covers, and ask the user about the rest."""
    left = [request for request in requests if not _plain(request)]
    asked = iter(ask(left) if left else ())
    always = ApprovalAnswer(True, "--approve always")
    return [always if _plain(request) else next(asked) for request in requests]


def _plain(request: ApprovalRequest) -> bool:
    """Return whether a consent that was not given for this call alone may cover it."""
    return not (request.suspect or request.in_doubt)


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
    asked = Questions(requests, keyboard or sys.stdin, screen or sys.stderr, in_session=in_session)
    return asked.ask()


class Questions:
    """Asks about calls of one turn, one after the other: a key answers.

    ``in_session``: the calls are a model's, in a session that goes on: they can be edited, and a
    consent can hold for longer than a call.
    """

    def __init__(
        self,
        requests: Sequence[ApprovalRequest],
        keyboard: TextIO,
        screen: TextIO,
        *,
        in_session: bool = True,
    ) -> None:
        self._requests = requests
        self._in_session = in_session
        self._keyboard = keyboard
        self._screen = screen
        self._answers: list[ApprovalAnswer] = []
        self._all = False

    def ask(self) -> Sequence[ApprovalAnswer]:
        """One answer a call, in order. Once nothing is decided about one, nothing is about the
        others. Raises KeyboardInterrupt for Ctrl-C."""
        try:
            self._ask_all()
        except KeyboardInterrupt:
            self._say("")  # what comes next begins a line
            raise
        except OSError:  # the terminal is gone: nobody is there to decide
            pass
        left = len(self._requests) - len(self._answers)
        return [*self._answers, *[ApprovalAnswer(None)] * left]

    def _ask_all(self) -> None:
        many = len(self._requests) > 1
        if many:  # whoever approves all has seen all
            for number, request in enumerate(self._requests):
                self._show_whole(number, request.arguments)
        for number, request in enumerate(self._requests):
            if self._all and _plain(request):
                self._say(f"call {as_name(request.name)}: approved with the others")
                self._answers.append(ApprovalAnswer(True, APPROVED))
                continue
            if number or not many:
                self._show_whole(number, request.arguments)
            answer = self._decide(number)
            if answer.approved is None:
                return
            self._answers.append(answer)

    def _decide(self, number: int) -> ApprovalAnswer:
        """Return what the user decides about one call."""
        request = self._requests[number]
        arguments, draft = request.arguments, ""
        foot_shown = False
        keys = self._keys(number)
        while True:
            if not foot_shown:
                self._show_foot(number, arguments)
            foot_shown = True
            key = read_key(self._keyboard, partial(self._ask, number, keys))
            key = "p" if key is None else key.lower()
            if len(key) != 1 or key not in keys:
                self._say("?" if not key else in_words(key))
                self._help(number, keys)
                continue
            self._say({"y": "yes", "n": "no", "p": "paused", "?": "help"}.get(key, key))
            own = None if arguments is request.arguments else arguments
            match key:
                case "y" | "s" | "a":
                    self._all |= key == "a"
                    return ApprovalAnswer(True, APPROVED, own, for_session=key == "s")
                case "p":
                    return ApprovalAnswer(None)
                case "n":
                    reason = self._reason()
                    if reason is not None:
                        return ApprovalAnswer(False, reason or REFUSED)
                case "e":
                    arguments, draft = self._edit(request, arguments, draft)
                    if not draft:
                        self._show_whole(number, arguments)
                        foot_shown = False
                case "d":
                    self._page(number, arguments)
                    foot_shown = False
                case "?":
                    self._help(number, keys)

    def _keys(self, number: int) -> str:
        """The keys that answer here. No standing consent is offered for what it cannot cover."""
        plain = _plain(self._requests[number])
        edit = "e" if self._in_session else ""
        session = "s" if self._in_session and plain else ""
        every = "a" if plain and sum(map(_plain, self._requests[number:])) > 1 else ""
        return f"yn{edit}{session}{every}dp?"

    def _ask(self, number: int, keys: str) -> None:
        many = len(self._requests)
        of_many = f" ({number + 1} of {many})" if many > 1 else ""
        once = "AGAIN" if self._requests[number].in_doubt else "once"
        self._prompt(f"Run it {once}{of_many}? [{'/'.join(keys)}] ")

    def _help(self, number: int, keys: str) -> None:
        said = {**_HELP, **(_AGAIN if self._requests[number].in_doubt else {})}
        self._show([ShownLine(f"{key}  {said[key]}") for key in keys])

    def _reason(self) -> str | None:
        """Why not: a line, empty where none is given; None where the user thought better of it."""
        self._prompt("Why not? (a line; Enter for no reason) ")
        line = read_line(self._keyboard)
        if line is None:
            self._say("")
            return None
        return "".join(c for c in line if c.isprintable()).strip()

    def _edit(
        self, request: ApprovalRequest, arguments: Mapping[str, Any], draft: str
    ) -> tuple[Mapping[str, Any], str]:
        """The arguments after editing, and a draft where they are not yet what they should be."""
        text = draft or exact(arguments, fold=False)
        try:
            changed = _edited(text, self._keyboard, self._screen)
        except EditFailed as error:
            self._say(in_words(f"Nothing was changed: {error}."))
            return arguments, draft or text
        try:
            value = inputs.parse_object(changed, "the arguments")
        except UsageError as error:
            self._say(in_words(f"{error}. The call is as it was; e goes on with your text."))
            return arguments, changed or text
        if exact(value) == exact(request.arguments):  # unlike ==, this tells 1 from 1.0 and true
            self._say("These are the call's own arguments.")
            return request.arguments, ""
        return value, ""

    def _show_whole(self, number: int, arguments: Mapping[str, Any]) -> None:
        self._say("")
        self._show(self._whole(number, arguments))

    def _whole(self, number: int, arguments: Mapping[str, Any]) -> list[ShownLine]:
        many = len(self._requests)
        place = f"{number + 1} of {many}" if many > 1 else ""
        request = self._requests[number]
        return whole(request, arguments, place=place, by_model=self._in_session)

    def _show_foot(self, number: int, arguments: Mapping[str, Any]) -> None:
        size = size_of(self._screen)
        rows = len(wrapped(self._whole(number, arguments), size.columns))
        long = rows + _BESIDE > size.lines
        lines = foot(
            self._requests[number],
            arguments,
            columns=size.columns,
            heads=long or len(self._requests) > 1,
        )
        if long:
            lines.append(ShownLine(f"{rows} rows; d shows them a screen at a time", "dim"))
        self._show(lines)

    def _page(self, number: int, arguments: Mapping[str, Any]) -> None:
        """Show the call again, a screen at a time, as wide as the screen is then."""
        lines, shown = self._whole(number, arguments), 0
        while True:
            size = size_of(self._screen)
            rows = wrapped(lines, size.columns)
            height = max(1, size.lines - 2)
            show(rows[shown : shown + height], self._screen)
            shown += height
            if shown >= len(rows):
                return
            more = f"-- {len(rows) - shown} rows more, q ends -- "
            key = read_key(self._keyboard, partial(self._prompt, more))
            self._say("")
            if key is None or key.lower() == "q":
                return

    def _show(self, lines: Sequence[ShownLine]) -> None:
        show(wrapped(lines, size_of(self._screen).columns), self._screen)

    def _prompt(self, text: str) -> None:
        print(text, end="", file=self._screen, flush=True)

    def _say(self, text: str) -> None:
        print(text, file=self._screen, flush=True)


# --- arguments changed by hand: in the user's editor, or on a line where there is none ----------


class EditFailed(Exception):
    """Nothing was changed, and the message says why."""


def _edited(text: str, keyboard: TextIO, screen: TextIO) -> str:
    """``text`` as the user leaves it.

    The editor is that of ``VISUAL`` (not on a dumb terminal) or ``EDITOR``; it is started without a
    shell, on a file that only the user can read. Without one a line is read. Raises `EditFailed`.
    """
    command = _editor(os.environ)
    if command:
        return _in_editor(command, text, keyboard, screen)
    print(f"VISUAL and EDITOR name no editor. Now it is:\n{in_words(text)}", file=screen)
    print("The arguments, on one line: ", end="", file=screen, flush=True)
    line = read_line(keyboard)
    if not line or not line.strip():
        raise EditFailed("nothing was typed")
    return line


def _editor(environ: Mapping[str, str]) -> list[str]:
    """The user's editor as a program and its arguments, empty where none is named.

    Raises `EditFailed` where what is named is no command.
    """
    for name in ("EDITOR",) if environ.get("TERM") == "dumb" else ("VISUAL", "EDITOR"):
        if environ.get(name, "").strip():
            try:
                return shlex.split(environ[name])
            except ValueError as error:
                raise EditFailed(f"{name} is no command: {error}") from None
    return []


def _in_editor(command: list[str], text: str, keyboard: TextIO, screen: TextIO) -> str:
    try:
        folder = Path(tempfile.mkdtemp(prefix="mlx-tools-"))  # for the user alone
    except OSError as error:
        raise EditFailed(f"there is no place for a file to edit: {error.strerror}") from None
    try:
        path = folder / "arguments.json"
        path.touch(mode=0o600)
        path.write_text(text + "\n", encoding="utf-8")
        # Ctrl-C in an editor is the editor's; a handler, unlike "ignored", is not inherited by it
        with terminal_kept(keyboard), handled(signal.SIGINT, lambda *_: None):
            code = subprocess.run(  # noqa: S603 (the user's own command)
                [*command, str(path)], stdin=keyboard.fileno(), stdout=screen, stderr=screen
            ).returncode
        if code != 0:
            raise EditFailed(f"{command[0]} ended with exit code {code}")
        return path.read_bytes()[: inputs.MAX_BYTES].decode("utf-8-sig").removesuffix("\n")
    except OSError as error:
        raise EditFailed(f"{command[0]}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise EditFailed("what was saved is not UTF-8") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
