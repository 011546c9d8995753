"""The question about a call at a terminal: shown whole, answered by one key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TextIO

from mlx_tools.cli.call_text import ShownLine, Size, foot, show, whole, wrapped
from mlx_tools.cli.edit import EditFailed, as_arguments, edited
from mlx_tools.cli.escape import as_name, exact, in_words
from mlx_tools.cli.keys import read_key, read_line
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest
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


class Questions:
    """Asks about calls of one turn, one after the other."""

    def __init__(
        self,
        requests: Sequence[ApprovalRequest],
        keyboard: TextIO,
        screen: TextIO,
        *,
        in_session: bool = True,
    ) -> None:
        """``in_session``: the calls are a model's, in a session that goes on: they can be edited,
        and a consent can hold for longer than a call."""
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
        """What the user decides about one call."""
        request = self._requests[number]
        arguments, draft = request.arguments, ""
        foot_shown = False
        while True:
            if not foot_shown:
                self._show_foot(number, arguments)
            foot_shown = True
            keys = self._keys(number)
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
        request = self._requests[number]
        left = [r for r in self._requests[number:] if _plain(r)]
        edit = "e" if self._in_session else ""
        session = "s" if self._in_session and _plain(request) else ""
        every = "a" if _plain(request) and len(left) > 1 else ""
        return f"yn{edit}{session}{every}dp?"

    def _ask(self, number: int, keys: str) -> None:
        request = self._requests[number]
        many = len(self._requests)
        of_many = f" ({number + 1} of {many})" if many > 1 else ""
        once = "AGAIN" if request.in_doubt else "once"
        question = f"Run it {once}{of_many}? [{'/'.join(keys)}] "
        print(question, end="", file=self._screen, flush=True)

    def _help(self, number: int, keys: str) -> None:
        said = {**_HELP, **(_AGAIN if self._requests[number].in_doubt else {})}
        self._show([ShownLine(f"{key}  {said[key]}") for key in keys])

    def _reason(self) -> str | None:
        """Why not: a line, empty where none is given; None where the user thought better of it."""
        print("Why not? (a line; Enter for no reason) ", end="", file=self._screen, flush=True)
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
            changed = edited(text, self._keyboard, self._screen)
        except EditFailed as error:
            self._say(in_words(f"Nothing was changed: {error}."))
            return arguments, draft or text
        try:
            value = as_arguments(changed)
        except UsageError as error:
            self._say(in_words(f"{error}. The call is as it was; e goes on with your text."))
            return arguments, changed or text
        if value == request.arguments and _same(value, request.arguments):
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
        size = Size.of(self._screen)
        rows = len(wrapped(self._whole(number, arguments), size.columns))
        long = rows + _BESIDE > size.rows
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
        """Show the call again, a screen at a time."""
        for left in self._screens(number, arguments):
            key = read_key(self._keyboard, partial(self._more, left))
            self._say("")
            if key is None or key.lower() == "q":
                break

    def _screens(self, number: int, arguments: Mapping[str, Any]) -> Iterator[int]:
        """Shows a screen, then gives how many rows are left, until none are."""
        lines = self._whole(number, arguments)
        shown = 0
        while True:
            size = Size.of(self._screen)
            rows = wrapped(lines, size.columns)
            height = max(1, size.rows - 2)
            show(rows[shown : shown + height], self._screen)
            shown += height
            if shown >= len(rows):
                return
            yield len(rows) - shown

    def _more(self, left: int) -> None:
        text = f"-- {left} rows more, q ends -- "
        print(text, end="", file=self._screen, flush=True)

    def _show(self, lines: Sequence[ShownLine]) -> None:
        show(wrapped(lines, Size.of(self._screen).columns), self._screen)

    def _say(self, text: str) -> None:
        print(text, file=self._screen, flush=True)


def _plain(request: ApprovalRequest) -> bool:
    """Whether a consent that was not given for this call alone may cover it."""
    return not (request.suspect or request.in_doubt)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: 1 and 1.0, or 1 and true, are not."""
    return exact(one) == exact(other)
