"""Asks the user whether a call may run: it is shown in brief, and escaped; a key answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TextIO

from mlx_tools.app import Configuration
from mlx_tools.cli import inputs
from mlx_tools.cli.call_text import (
    ShownLine,
    as_name,
    exact,
    in_brief,
    in_full,
    in_words,
    show,
    size_of,
    wrapped,
)
from mlx_tools.cli.inputs import EditFailed, at_terminal, editor_of, in_editor, read_key
from mlx_tools.cli.output import folded, steerable
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

_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "y": ("yes", "es"),
    "n": ("no", "o"),
    "e": ("edit", "dit"),
    "s": ("for the session", "ession"),
    "d": ("details", "etails"),
    "p": ("pause", "ause"),
}
"""What a key does, in words, and the rest of a word that begins with it, for a narrow screen."""

AskUser = Callable[[Sequence[ApprovalRequest]], Sequence[ApprovalAnswer]]
Look = Callable[[ApprovalRequest, Mapping[str, Any]], ApprovalRequest]
"""Gives the request with other arguments. Raises `UsageError` where it cannot have them."""


def approver_of(configuration: Configuration, user: Approver) -> Approver:
    """Who decides about calls that need approval: ``user``, where one is wanted and there."""
    wish = configuration.settings.policy.approve
    if wish != "never" and at_terminal():
        return user
    return AlwaysApprove() if wish == "always" else NobodyThere()


def asker(approve: str, look: Look | None = None) -> AskUser:
    """Who is asked, and about what, by the setting ``policy.approve``; see `ask_user`."""
    ask = partial(ask_user, look=look)
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
    look: Look | None = None,
) -> Sequence[ApprovalAnswer]:
    """Ask about one call after the other. Where the input ends, nothing more is decided.

    ``look`` is given where the calls are a model's, in a session that goes on: they can be edited,
    a consent can hold for longer than a call, and the model is told why not.
    """
    return Questions(requests, keyboard or sys.stdin, screen or sys.stderr, look).ask()


class Questions:
    """Asks about calls of one turn, one after the other: a key answers."""

    def __init__(
        self,
        requests: Sequence[ApprovalRequest],
        keyboard: TextIO,
        screen: TextIO,
        look: Look | None = None,
    ) -> None:
        self._requests = requests
        self._look = look
        self._keyboard = keyboard
        self._screen = screen
        self._consents: list[ApprovalRequest] = []

    def ask(self) -> Sequence[ApprovalAnswer]:
        """One answer a call, in order. Once nothing is decided about one, nothing is about the
        others. Raises KeyboardInterrupt for Ctrl-C."""
        answers: list[ApprovalAnswer] = []
        try:
            for number, request in enumerate(self._requests):
                answers.append(self._decide(request, number))
                if answers[-1].approved is None:
                    break
        except KeyboardInterrupt:
            self._say("")  # what comes next begins a line
            raise
        except OSError:  # the terminal is gone: nobody is there to decide
            pass
        left = len(self._requests) - len(answers)
        return [*answers, *[ApprovalAnswer(None)] * left]

    def _decide(self, asked: ApprovalRequest, number: int) -> ApprovalAnswer:
        """Return what the user decides about one call."""
        if any(_covers(consent, asked) for consent in self._consents):
            self._say(f"{as_name(asked.name)}: approved for the session")
            return ApprovalAnswer(True, APPROVED, for_session=True)
        request, draft = asked, ""
        many = len(self._requests)
        place = f"{number + 1} of {many}" if many > 1 else ""
        while True:
            edited = request is not asked
            brief = partial(self._show_brief, request, place=place, edited=edited)
            keys = self._keys(asked)
            key = self._key(keys, in_doubt=asked.in_doubt, show=brief)
            match key:
                case "y" | "s":
                    if key == "s":
                        self._consents.append(request)
                    arguments, digest = (
                        (request.arguments, request.digest) if edited else (None, "")
                    )
                    return ApprovalAnswer(True, APPROVED, arguments, key == "s", digest)
                case "p":
                    return ApprovalAnswer(None)
                case "n":
                    reason = self._reason()
                    if reason is not None:
                        return ApprovalAnswer(False, reason or REFUSED)
                case "e":
                    request, draft = self._edit(asked, request, draft)
                case "d":
                    by_model = self._look is not None
                    self._page(
                        partial(in_full, request, place=place, edited=edited, by_model=by_model)
                    )

    def _keys(self, request: ApprovalRequest) -> str:
        """The keys that answer here. No standing consent is offered for what it cannot cover, and
        what may have done its work with these arguments gets no others."""
        edit = "e" if self._look and not request.in_doubt else ""
        session = "s" if self._look and _plain(request) else ""
        return f"yn{edit}{session}dp"

    def _key(self, keys: str, *, in_doubt: bool, show: Callable[[], None] | None) -> str:
        """The key that is pressed, of those that are offered; ``p`` at the end of the input."""
        while True:
            line = _offer(keys, in_doubt, size_of(self._screen).columns)
            key = read_key(self._keyboard, self._screen, partial(self._prompt, f"{line} "), show)
            key = "p" if key is None else key.lower()
            if len(key) == 1 and key in keys:
                self._say({"n": "no", "p": "paused"}.get(key, "yes" if key in "ys" else ""))
                return key
            self._say("?")
            show = None

    def _reason(self) -> str | None:
        """Why not: a line, empty where none is given; None where the user thought better of it."""
        if self._look is None:  # nobody is told
            return ""
        from mlx_tools.cli.line_editor import edit_line

        line = edit_line(self._keyboard, self._screen, "Why not? (Enter for no reason) ")
        if line is None:
            return None
        return "".join(c if c.isprintable() else " " for c in line).strip()

    def _edit(
        self, asked: ApprovalRequest, request: ApprovalRequest, draft: str
    ) -> tuple[ApprovalRequest, str]:
        """The request as it is after editing, and a draft where that is not yet what it should
        be."""
        assert self._look is not None
        text = draft or exact(request.arguments, fold=False)
        try:
            changed = _edited(text, self._keyboard, self._screen)
        except EditFailed as error:
            self._say(in_words(f"Nothing was changed: {error}."))
            return request, draft
        try:
            value = inputs.parse_object(changed, "the arguments")
            if exact(value) == exact(asked.arguments):  # unlike ==, this tells 1 from 1.0 and true
                self._say("These are the call's own arguments.")
                return asked, ""
            return self._look(asked, value), ""
        except UsageError as error:
            self._say(in_words(f"{error}. The call is as it was; e goes on with your text."))
            return request, changed or text

    def _show_brief(self, request: ApprovalRequest, *, place: str, edited: bool) -> None:
        self._say("")
        show(in_brief(request, size_of(self._screen), place=place, edited=edited), self._screen)

    def _page(self, lines: Callable[[], Iterable[ShownLine]]) -> None:
        """Show lines a screen at a time, as wide as the screen is then."""
        rows, columns, shown = list[ShownLine](), 0, 0
        while True:
            size = size_of(self._screen)
            if columns != size.columns:
                columns = size.columns
                rows = [*wrapped(lines(), columns)]
            page = rows[shown : shown + max(1, size.lines - 2)]
            shown += len(page)
            left = len(rows) - shown
            if left <= 0:
                show(page, self._screen)
                return
            ask = partial(self._prompt, f"-- {left} rows more, q ends -- ")
            key = read_key(self._keyboard, self._screen, ask, partial(show, page, self._screen))
            self._say("")
            if key is None or key.lower() == "q":
                return

    def _prompt(self, text: str) -> None:
        print(text, end="", file=self._screen, flush=True)

    def _say(self, text: str) -> None:
        print(text, file=self._screen, flush=True)


def _covers(consent: ApprovalRequest, request: ApprovalRequest) -> bool:
    """Return whether a consent for the session that was given for one call holds for another."""
    same = consent.name == request.name and request.effects <= consent.effects
    return same and _plain(request)


def _offer(keys: str, in_doubt: bool, columns: int) -> str:
    """The keys on one line, spelled out, as wide as there is room."""
    words = {key: f"{key} {_KEYS[key][0]}" for key in keys}
    if in_doubt:
        words |= {"y": "y run it AGAIN", "n": "n give it up"}
    wide = "  ".join(words.values())
    if len(wide) < columns:
        return wide
    return folded(" ".join(f"{key}){_KEYS[key][1]}" for key in keys), columns - 1)


# --- arguments changed by hand: in the user's editor, or on a line where there is none ----------


def _edited(text: str, keyboard: TextIO, screen: TextIO) -> str:
    """``text`` as the user leaves it.

    The editor is that of ``VISUAL`` or ``EDITOR``, else nano or vi; it is started without a shell,
    on a file that only the user can read. Without one, the text stands on a line that can be
    changed; a dumb terminal shows it before. Raises `EditFailed`.
    """
    command = editor_of(os.environ)
    if command:
        return in_editor(command, text, "arguments.json", keyboard, screen)
    from mlx_tools.cli.line_editor import edit_line

    text = " ".join(line.strip() for line in text.split("\n"))
    if not steerable(screen):
        print(f"Now it is:\n{in_words(text)}", file=screen)
        text = ""
    line = edit_line(keyboard, screen, "The arguments: ", text)
    if not line or not line.strip():
        raise EditFailed("nothing was typed")
    return line
