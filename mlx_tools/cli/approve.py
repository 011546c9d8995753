"""Asks the user whether a call may run: it is shown in brief and escaped.

A key answers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final, TextIO

from mlx_tools.app import Configuration
from mlx_tools.cli import inputs
from mlx_tools.cli.call_text import (
    TextLine,
    describe_call,
    escape_line,
    escape_name,
    exact,
    get_screen_size,
    show,
    summarise_call,
    wrap_lines,
)
from mlx_tools.cli.inputs import EditFailed, edit_in_editor, find_editor, is_at_terminal, read_key
from mlx_tools.cli.output import cells, steerable, wrap_line
from mlx_tools.controller import (
    ApprovalAnswer,
    ApprovalRequest,
    ApproveAlways,
    Approver,
    PauseApprover,
)
from mlx_tools.errors import UsageError

APPROVED: Final = "approved at the terminal"
DEFAULT_REFUSAL: Final = "the user said no"

_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "y": ("yes", "es"),
    "n": ("no", "o"),
    "e": ("edit", "dit"),
    "s": ("for the session", "ession"),
    "d": ("details", "etails"),
    "p": ("pause", "ause"),
}
"""The meaning of each key, and the rest of a word that begins with it, for a narrow screen."""

EditRequest = Callable[[ApprovalRequest, Mapping[str, Any]], ApprovalRequest]
"""Returns the request with other arguments. Raises `UsageError` if they are not valid."""


def choose_approver(configuration: Configuration, user: Approver) -> Approver:
    """Return the approver of calls: ``user`` if one is wanted and there is a terminal."""
    setting = configuration.settings.policy.approve
    if setting != "never" and is_at_terminal():
        return user
    return ApproveAlways() if setting == "always" else PauseApprover()


def _is_plain(request: ApprovalRequest) -> bool:
    """Return True if a consent that covers more than this call may cover it."""
    return not (request.suspect or request.in_doubt)


class Questions:
    """An approver that asks the user about calls, one after the other; a key answers.

    Args:
        look: makes a request with other arguments; given if a model makes the calls in a session
            that continues. Calls can then be edited, a consent can last longer, and the model reads
            a reason.
        always: approve without a question what such a consent covers (``policy.approve``).
        keyboard: the terminal to read from.
        screen: the terminal to write to.
    """

    def __init__(
        self,
        look: EditRequest | None = None,
        *,
        always: bool = False,
        keyboard: TextIO | None = None,
        screen: TextIO | None = None,
    ) -> None:
        self._look = look
        self._always = always
        self._keyboard = keyboard or sys.stdin
        self._screen = screen or sys.stderr

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """Return the answers as `ask` does; nothing else runs meanwhile."""
        return self.ask(requests)

    def ask(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """Return one answer for each call, in order.

        If nothing is decided about one, as at the end of the input, the others are not decided
        either.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        unasked = [request for request in requests if self._always and _is_plain(request)]
        answers = self._answers([request for request in requests if request not in unasked])
        always = ApprovalAnswer(True, "--approve always")
        return [always if request in unasked else next(answers) for request in requests]

    def more_steps(self, steps_taken: int) -> int:
        """Return how many more steps a question may take.

        As many as ``steps_taken``, or none.

        At the end of the input it is none.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        text = f"\n{steps_taken} steps were taken, and there is no answer yet."
        prompt = partial(self._prompt, "y go on  n answer now ")
        while True:
            try:
                key = read_key(self._keyboard, self._screen, prompt, partial(_print_text, text))
            except OSError:  # the terminal was closed
                return 0
            key = "n" if key is None else key.lower()
            if key in ("y", "n"):
                self._say("go on" if key == "y" else "answer now")
                return steps_taken if key == "y" else 0
            text = "?"

    def _answers(self, requests: Sequence[ApprovalRequest]) -> Iterator[ApprovalAnswer]:
        consents: list[ApprovalRequest] = []
        many = len(requests)
        try:
            for number, request in enumerate(requests, start=1):
                if any(_covers(consent, request) for consent in consents):
                    self._say(f"{escape_name(request.name)}: approved for the session")
                    yield ApprovalAnswer(True, APPROVED, for_session=True)
                    continue
                place = f"{number} of {many}" if many > 1 else ""
                answer, decided = self._decide(request, place)
                if answer.approved is None:
                    break
                if answer.for_session:
                    consents.append(decided)
                yield answer
        except KeyboardInterrupt:
            self._say("")  # the next output begins a line
            raise
        except OSError:  # the terminal was closed
            pass
        yield from repeat(ApprovalAnswer(None))

    def _decide(
        self, approval_request: ApprovalRequest, place: str
    ) -> tuple[ApprovalAnswer, ApprovalRequest]:
        """Return the user's answer about one call, and the call as it was edited."""
        request, draft = approval_request, ""
        while True:
            edited = request is not approval_request
            show_brief = partial(self._show_brief, request, place=place, edited=edited)
            key = self._key(approval_request, show_brief, omits=bool(request.omitted))
            match key:
                case "y" if request.omitted and not self._confirm_by_typing():
                    self._say("Nothing was decided.")
                case "y" | "s":
                    edits = (request.arguments, request.digest) if edited else (None, "")
                    return ApprovalAnswer(True, APPROVED, edits[0], key == "s", edits[1]), request
                case "p":
                    return ApprovalAnswer(None), request
                case "n":
                    reason = self._reason()
                    if reason is not None:
                        return ApprovalAnswer(False, reason or DEFAULT_REFUSAL), request
                case "e":
                    request, draft = self._edit(approval_request, request, draft)
                case "d":
                    full = partial(describe_call, request, place=place, edited=edited)
                    self._page(partial(full, by_model=self._look is not None))

    def _key(
        self, request: ApprovalRequest, show: Callable[[TextIO], None] | None, *, omits: bool
    ) -> str:
        """Return the pressed key, of those offered; ``p`` at the end of the input.

        No lasting consent is offered for a call that it cannot cover. A call that may have done its
        work cannot be edited. ``omits``: not all of the change is shown, so no key alone approves
        it.
        """
        edit = "e" if self._look and not request.in_doubt else ""
        can_last = _is_plain(request) and request.consent_binding is not None and not omits
        session = "s" if self._look and can_last else ""
        keys = f"yn{edit}{session}dp"
        while True:
            columns = get_screen_size(self._screen).columns
            line = _offer(keys, request, columns, omits=omits)
            key = read_key(self._keyboard, self._screen, partial(self._prompt, f"{line} "), show)
            key = "p" if key is None else key.lower()
            if len(key) == 1 and key in keys:
                yes = "yes" if key in "ys" and not omits else ""
                word = {"n": "no", "p": "paused"}.get(key, yes)
                is_full = cells(line.rpartition("\n")[2]) + 1 + len(word) > columns
                self._say(f"\n{word}" if word and is_full else word)
                return key
            self._say("?")
            show = None

    def _confirm_by_typing(self) -> bool:
        """Return True if the user types ``yes`` in full.

        It is asked for a change that is not shown whole.
        """
        from mlx_tools.cli.line_editor import edit_line

        ask = "Not all of the change was shown. Type yes to run it: "
        line = edit_line(self._keyboard, self._screen, ask)
        return line is not None and line.strip().lower() == "yes"

    def _reason(self) -> str | None:
        """Return the reason for a no, empty if none is given.

        None if the user changed their mind.
        """
        if self._look is None:  # no model would read the reason
            return ""
        from mlx_tools.cli.line_editor import edit_line

        line = edit_line(self._keyboard, self._screen, "Why not? (Enter for no reason) ")
        if line is None:
            return None
        return "".join(c if c.isprintable() else " " for c in line).strip()

    def _edit(
        self, approval_request: ApprovalRequest, request: ApprovalRequest, draft: str
    ) -> tuple[ApprovalRequest, str]:
        """Return the request after editing, and a draft if the text is not valid yet."""
        assert self._look is not None
        text = draft or exact(request.arguments, fold=False)
        try:
            changed = _edit_text(text, self._keyboard, self._screen)
        except EditFailed as error:
            self._say(escape_line(f"Nothing was changed: {error}."))
            return request, draft
        try:
            value = inputs.parse_object(changed, "the arguments")
            if exact(value) == exact(
                approval_request.arguments
            ):  # unlike ==, this tells 1 from 1.0 and true
                self._say("These are the call's own arguments.")
                return approval_request, ""
            return self._look(approval_request, value), ""
        except UsageError as error:
            self._say(escape_line(f"{error}. The call is as it was; e goes on with your text."))
            return request, changed or text

    def _show_brief(
        self, request: ApprovalRequest, screen: TextIO, *, place: str, edited: bool
    ) -> None:
        print(file=screen)
        show(
            summarise_call(request, get_screen_size(self._screen), place=place, edited=edited),
            screen,
        )

    def _page(self, lines: Callable[[], Iterable[TextLine]]) -> None:
        """Show lines a screen at a time, wrapped for its present width."""
        rows, columns, shown = list[TextLine](), 0, 0
        while True:
            size = get_screen_size(self._screen)
            if columns != size.columns:
                columns = size.columns
                rows = [*wrap_lines(lines(), columns)]
            page = rows[shown : shown + max(1, size.lines - 2)]
            shown += len(page)
            remaining = len(rows) - shown
            if remaining <= 0:
                show(page, self._screen)
                return
            ask = partial(self._prompt, f"-- {remaining} rows more, q ends -- ")
            key = read_key(self._keyboard, self._screen, ask, partial(show, page))
            self._say("")
            if key is None or key.lower() == "q":
                return

    def _prompt(self, text: str) -> None:
        print(text, end="", file=self._screen, flush=True)

    def _say(self, text: str) -> None:
        print(text, file=self._screen, flush=True)


def _print_text(text: str, file: TextIO) -> None:
    print(text, file=file)


def _covers(consent: ApprovalRequest, request: ApprovalRequest) -> bool:
    """Return True if a consent for the session, given for one call, covers another."""
    is_similar = consent.name == request.name and request.effects <= consent.effects
    bindings = consent.consent_binding, request.consent_binding
    return (
        is_similar
        and None not in bindings
        and exact(bindings[0]) == exact(bindings[1])
        and _is_plain(request)
    )


def _offer(keys: str, request: ApprovalRequest, columns: int, *, omits: bool) -> str:
    """Return the keys on one line, in words as far as there is room."""
    words = {key: f"{key} {_KEYS[key][0]}" for key in keys}
    word_ends = {key: _KEYS[key][1] for key in keys}
    if "s" in keys and request.consent_binding:
        (argument,) = request.consent_binding
        words["s"] = f"s this {escape_line(argument)} {_KEYS['s'][0]}"
        word_ends["s"] += f", this {escape_line(argument)}"
    if omits:
        words |= {"y": "y yes, typed out"}
    if request.in_doubt:
        words |= {"y": "y run it AGAIN", "n": "n give it up"}
    long_line = "  ".join(words.values())
    if len(long_line) < columns:
        return long_line
    return wrap_line(" ".join(f"{key}){ending}" for key, ending in word_ends.items()), columns - 1)


# --- arguments changed by hand: in the user's editor, or on a line where there is none ----------


def _edit_text(text: str, keyboard: TextIO, screen: TextIO) -> str:
    """Return ``text`` as the user leaves it.

    The editor is that of ``VISUAL`` or ``EDITOR``, else nano or vi. It is started without a shell,
    on a file that only the user can read. Without an editor the text is in a line that can be
    changed; a dumb terminal shows it before.

    Raises:
        EditFailed: there is no text.
    """
    if find_editor(os.environ):
        return edit_in_editor(text, "arguments.json", keyboard, screen)
    from mlx_tools.cli.line_editor import edit_line

    text = " ".join(line.strip() for line in text.split("\n"))
    if not steerable(screen):
        print(f"Now it is:\n{escape_line(text)}", file=screen)
        text = ""
    line = edit_line(keyboard, screen, "The arguments: ", text)
    if not line or not line.strip():
        raise EditFailed("nothing was typed")
    return line
