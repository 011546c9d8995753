"""Asks the user whether a call may run: it is shown in brief, and escaped; a key answers."""

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
    as_name,
    exact,
    in_brief,
    in_full,
    in_words,
    show,
    size_of,
    wrap_lines,
)
from mlx_tools.cli.inputs import EditFailed, at_terminal, editor_of, in_editor, read_key
from mlx_tools.cli.output import steerable, wrap_line
from mlx_tools.controller import (
    ApprovalAnswer,
    ApprovalRequest,
    ApproveAlways,
    Approver,
    PauseApprover,
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

Look = Callable[[ApprovalRequest, Mapping[str, Any]], ApprovalRequest]
"""Gives the request with other arguments. Raises `UsageError` where it cannot have them."""


def approver_of(configuration: Configuration, user: Approver) -> Approver:
    """Who decides about calls that need approval: ``user``, where one is wanted and there."""
    wish = configuration.settings.policy.approve
    if wish != "never" and at_terminal():
        return user
    return ApproveAlways() if wish == "always" else PauseApprover()


def _plain(request: ApprovalRequest) -> bool:
    """Return whether a consent that was not given for this call alone may cover it."""
    return not (request.suspect or request.in_doubt)


class Questions:
    """Asks the user about calls, one after the other: a key answers. An approver.

    ``always``: what a standing consent covers is approved unasked (``policy.approve``). ``look`` is
    given where the calls are a model's, in a session that goes on: they can be edited, a consent
    can hold for longer than a call, and the model is told why not.
    """

    def __init__(
        self,
        look: Look | None = None,
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
        """As `ask` does, where no other work goes on meanwhile."""
        return self.ask(requests)

    def ask(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """One answer a call, in order. Once nothing is decided about one, as at the end of the
        input, nothing is about the others. Raises KeyboardInterrupt for Ctrl-C."""
        unasked = [request for request in requests if self._always and _plain(request)]
        answers = self._answers([request for request in requests if request not in unasked])
        always = ApprovalAnswer(True, "--approve always")
        return [always if request in unasked else next(answers) for request in requests]

    def more_steps(self, steps_taken: int) -> int:
        """Return how many steps more a question may take that has made ``steps_taken``: as many
        again, or none. At the end of the input it is none. Raises KeyboardInterrupt for Ctrl-C."""
        said = f"\n{steps_taken} steps were taken, and there is no answer yet."
        prompt = partial(self._prompt, "y go on  n answer now ")
        while True:
            try:
                key = read_key(self._keyboard, self._screen, prompt, partial(_print_to, said))
            except OSError:  # the terminal is gone: nobody is there to decide
                return 0
            key = "n" if key is None else key.lower()
            if key in ("y", "n"):
                self._say("go on" if key == "y" else "answer now")
                return steps_taken if key == "y" else 0
            said = "?"

    def _answers(self, requests: Sequence[ApprovalRequest]) -> Iterator[ApprovalAnswer]:
        consents: list[ApprovalRequest] = []
        many = len(requests)
        try:
            for number, request in enumerate(requests, start=1):
                if any(_covers(consent, request) for consent in consents):
                    self._say(f"{as_name(request.name)}: approved for the session")
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
            self._say("")  # what comes next begins a line
            raise
        except OSError:  # the terminal is gone: nobody is there to decide
            pass
        yield from repeat(ApprovalAnswer(None))

    def _decide(
        self, approval_request: ApprovalRequest, place: str
    ) -> tuple[ApprovalAnswer, ApprovalRequest]:
        """Return what the user decides about one call, and that call as it was edited."""
        request, draft = approval_request, ""
        while True:
            edited = request is not approval_request
            show_brief = partial(self._show_brief, request, place=place, edited=edited)
            key = self._key(approval_request, show_brief, omits=bool(request.omitted))
            match key:
                case "y" if request.omitted and not self._typed_out():
                    self._say("Nothing was decided.")
                case "y" | "s":
                    other = (request.arguments, request.digest) if edited else (None, "")
                    return ApprovalAnswer(True, APPROVED, other[0], key == "s", other[1]), request
                case "p":
                    return ApprovalAnswer(None), request
                case "n":
                    reason = self._reason()
                    if reason is not None:
                        return ApprovalAnswer(False, reason or REFUSED), request
                case "e":
                    request, draft = self._edit(approval_request, request, draft)
                case "d":
                    full = partial(in_full, request, place=place, edited=edited)
                    self._page(partial(full, by_model=self._look is not None))

    def _key(
        self, request: ApprovalRequest, show: Callable[[TextIO], None] | None, *, omits: bool
    ) -> str:
        """The key that is pressed, of those that are offered; ``p`` at the end of the input.

        No standing consent is offered for what it cannot cover, and what may have done its work
        with these arguments gets no others. ``omits``: not all of the change is shown, so no key
        alone approves it.
        """
        edit = "e" if self._look and not request.in_doubt else ""
        lasting = _plain(request) and request.consent_binding is not None and not omits
        session = "s" if self._look and lasting else ""
        keys = f"yn{edit}{session}dp"
        while True:
            line = _offer(keys, request, size_of(self._screen).columns, omits=omits)
            key = read_key(self._keyboard, self._screen, partial(self._prompt, f"{line} "), show)
            key = "p" if key is None else key.lower()
            if len(key) == 1 and key in keys:
                yes = "yes" if key in "ys" and not omits else ""
                self._say({"n": "no", "p": "paused"}.get(key, yes))
                return key
            self._say("?")
            show = None

    def _typed_out(self) -> bool:
        """Whether the user types ``yes``, letter by letter, to a change that is not shown whole."""
        from mlx_tools.cli.line_editor import edit_line

        ask = "Not all of the change was shown. Type yes to run it: "
        line = edit_line(self._keyboard, self._screen, ask)
        return line is not None and line.strip().lower() == "yes"

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
        self, approval_request: ApprovalRequest, request: ApprovalRequest, draft: str
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
            if exact(value) == exact(
                approval_request.arguments
            ):  # unlike ==, this tells 1 from 1.0 and true
                self._say("These are the call's own arguments.")
                return approval_request, ""
            return self._look(approval_request, value), ""
        except UsageError as error:
            self._say(in_words(f"{error}. The call is as it was; e goes on with your text."))
            return request, changed or text

    def _show_brief(
        self, request: ApprovalRequest, screen: TextIO, *, place: str, edited: bool
    ) -> None:
        print(file=screen)
        show(in_brief(request, size_of(self._screen), place=place, edited=edited), screen)

    def _page(self, lines: Callable[[], Iterable[TextLine]]) -> None:
        """Show lines a screen at a time, as wide as the screen is then."""
        rows, columns, shown = list[TextLine](), 0, 0
        while True:
            size = size_of(self._screen)
            if columns != size.columns:
                columns = size.columns
                rows = [*wrap_lines(lines(), columns)]
            page = rows[shown : shown + max(1, size.lines - 2)]
            shown += len(page)
            left = len(rows) - shown
            if left <= 0:
                show(page, self._screen)
                return
            ask = partial(self._prompt, f"-- {left} rows more, q ends -- ")
            key = read_key(self._keyboard, self._screen, ask, partial(show, page))
            self._say("")
            if key is None or key.lower() == "q":
                return

    def _prompt(self, text: str) -> None:
        print(text, end="", file=self._screen, flush=True)

    def _say(self, text: str) -> None:
        print(text, file=self._screen, flush=True)


def _print_to(text: str, file: TextIO) -> None:
    print(text, file=file)


def _covers(consent: ApprovalRequest, request: ApprovalRequest) -> bool:
    """Return whether a consent for the session that was given for one call holds for another."""
    same = consent.name == request.name and request.effects <= consent.effects
    bound = consent.consent_binding, request.consent_binding
    return same and None not in bound and exact(bound[0]) == exact(bound[1]) and _plain(request)


def _offer(keys: str, request: ApprovalRequest, columns: int, *, omits: bool) -> str:
    """The keys on one line, spelled out, as wide as there is room."""
    words = {key: f"{key} {_KEYS[key][0]}" for key in keys}
    rests = {key: _KEYS[key][1] for key in keys}
    if "s" in keys and request.consent_binding:
        (argument,) = request.consent_binding
        words["s"] = f"s this {in_words(argument)} {_KEYS['s'][0]}"
        rests["s"] += f", this {in_words(argument)}"
    if omits:
        words |= {"y": "y yes, typed out"}
    if request.in_doubt:
        words |= {"y": "y run it AGAIN", "n": "n give it up"}
    wide = "  ".join(words.values())
    if len(wide) < columns:
        return wide
    return wrap_line(" ".join(f"{key}){rest}" for key, rest in rests.items()), columns - 1)


# --- arguments changed by hand: in the user's editor, or on a line where there is none ----------


def _edited(text: str, keyboard: TextIO, screen: TextIO) -> str:
    """``text`` as the user leaves it.

    The editor is that of ``VISUAL`` or ``EDITOR``, else nano or vi; it is started without a shell,
    on a file that only the user can read. Without one, the text stands on a line that can be
    changed; a dumb terminal shows it before. Raises `EditFailed`.
    """
    if editor_of(os.environ):
        return in_editor(text, "arguments.json", keyboard, screen)
    from mlx_tools.cli.line_editor import edit_line

    text = " ".join(line.strip() for line in text.split("\n"))
    if not steerable(screen):
        print(f"Now it is:\n{in_words(text)}", file=screen)
        text = ""
    line = edit_line(keyboard, screen, "The arguments: ", text)
    if not line or not line.strip():
        raise EditFailed("nothing was typed")
    return line
