"""A run of calls in a dialect: from its opening mark to the end of the last call that belongs to it
(reading rule 8a)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from mlx_tools.protocol.bodies import (
    CLOSING,
    FENCES,
    MOST_NAME,
    MOST_PROSE,
    NAME,
    OPENING,
    TAG_OPENS,
    Bodies,
    Catalog,
)
from mlx_tools.protocol.delimiters import END_TOKENS, WHITE
from mlx_tools.protocol.dialects import Dialect
from mlx_tools.protocol.source import CutOff, Fault, Steps, TextSource
from mlx_tools.protocol.strict import Unreadable

_MOST_HEADER: Final = 200
_NEXT_MESSAGE: Final = re.compile(
    r"(?:(?!<\|message)[^\n{])*?\bto=([\w.$-]+)(?:(?!<\|message)[^\n{])*<\|message"
)
_FOREIGN: Final = re.compile(
    r"<tool_response>|<\|tool_response|^[ \t]*(?:Observation|Result|User)[ \t]*:|[\[{]|<\|", re.M
)
"""What between two calls shows that more than prose stands there."""

_CALL_TAG: Final = re.compile(
    r"<(?:[A-Za-z][\w.-]*:|｜DSML｜)?(?:function|invoke)[ =]|<\|open\|>call |\]<\]minimax\[>\[<inv"
)
_ONE_A_LINE: Final = frozenset(("react", "call", "harmony"))
"""Families whose every call has a line or a message, and the mark, of its own."""


class MessageHeader(NamedTuple):
    """The header of a message of harmony and its kin: whom it is for, and in which channel."""

    recipient: str
    channel: str


class Run(Bodies):
    """One run of calls, from the opening mark that stands where the source is read.

    `steps` is to be resumed while it yields. Afterwards ``fault`` says why no more could be read.
    ``quoted``: prose follows in the same line. ``header``: no call stood there, but what precedes a
    message of another kind.
    """

    def __init__(
        self,
        source: TextSource,
        dialect: Dialect,
        catalog: Catalog,
        most: int | None = None,
        skip: int | None = None,
    ) -> None:
        """``skip``: the length of what stands before the first call, by default of the mark."""
        super().__init__(source, dialect, catalog, most)
        self.fault = ""
        self.quoted = False
        self.header: MessageHeader | None = None
        self.opening = dialect.open
        size = 0 if dialect.open in TAG_OPENS else len(dialect.open)
        self._skip = size if skip is None else skip

    def steps(self) -> Steps[None]:
        """Reads the run."""
        try:
            yield from self._run()
        except (Fault, Unreadable) as fault:
            self.fault = str(fault) or "a call is due"
        except CutOff as cut:
            self.cut = cut

    # --- the run ---

    def _run(self) -> Steps[None]:
        self.source.pos += self._skip
        again = one = self._line_form if self._dialect.line else self._call
        if self._dialect.name == "harmony":
            again = one = self._message
        if self._dialect.name not in _ONE_A_LINE:
            again = self._call
        yield from one()
        while self.calls and self.cut is None and (yield from self._goes_on()):
            yield from again()

    def _goes_on(self) -> Steps[bool]:
        """After a call: past what closes it, and whether another follows."""
        separated = False
        while True:
            yield from self.source.space()
            if (yield from self.source.mark(*CLOSING)):
                self._closed = True
                self.end = self.source.pos
                continue
            char = yield from self.source.peek()
            if char not in (",", ";") or separated or self._closed:
                break
            separated = True
            self.source.pos += 1
        if not self._full:
            if (yield from self.source.mark(*OPENING)):
                self._closed = False
                return not self._one_array
            if (yield from self._another(char)):
                return not self._one_array
        return (yield from self._ended())

    def _another(self, char: str) -> Steps[bool]:
        """Return whether a call stands here that has no opening mark of its own."""
        if self._dialect.name in _ONE_A_LINE:
            return (yield from self._is_marked_again())
        ahead = yield from self.source.ahead(len("<｜DSML｜invoke name="))
        if _CALL_TAG.match(ahead):
            return True
        if self._closed or not char:
            return False
        if char == "{":
            return True
        if self._dialect.body == "literal":
            return ahead.startswith("call:")
        return self._dialect.name in ("olmo3", "gemma3") and bool(NAME.match(char))

    def _is_marked_again(self) -> Steps[bool]:
        """Past the mark of a line, or before the header, that calls another known tool."""
        here = self.source.pos
        if self._dialect.name == "harmony":
            begun = yield from self.source.mark("<|start|>", "<|channel|>")
            self.source.pos = here
            ahead = (yield from self.source.ahead(_MOST_HEADER)) if begun else ""
            found = _NEXT_MESSAGE.match(ahead)
            return found is not None and self.known(found[1].removeprefix("functions."))
        if not (yield from self.source.mark(self._dialect.open)):
            return False
        behind = self.source.pos
        yield from self.source.space(lines=False)
        name = yield from self.source.match(NAME, MOST_NAME)
        again = self.known(name)
        self.source.pos = behind if again else here
        return again

    def _ended(self) -> Steps[bool]:
        """After the last call: whether prose follows in its line, or another call after it."""
        self.source.pos = self.end
        yield from self.source.space(lines=False)
        here = self.source.pos
        char = yield from self.source.peek()
        ends = char in ("", "\n") or bool((yield from self.source.mark(*END_TOKENS)))
        self.source.pos = here
        opening = self._dialect.open
        if (
            not self._full
            and self._dialect.close
            and not self._dialect.line
            and not self._one_array
        ):
            ahead = yield from self.source.ahead(MOST_PROSE + len(opening))
            found = ahead.find(opening)
            if found >= 0 and not _FOREIGN.search(ahead, 0, found):
                self.dropped.append(ahead[:found].strip())
                self.source.pos += found + self._skip
                return True
        self.source.pos = self.end
        in_array = self._full and char == "," and not self._closed
        self.quoted = not (ends or in_array or self._dialect.is_token)
        return False

    # --- one line, and messages with headers ---

    def _line_form(self) -> Steps[None]:
        """The forms whose mark may stand in prose: a name of the catalog must follow."""
        match self._dialect.name:
            case "phi":
                self.source.pos = self.begin + len("functools")
                yield from self._array()
            case "functionary":
                yield from self._functionary()
            case "pythonic":
                self.source.pos = self.begin
                ahead = yield from self.source.ahead(MOST_NAME + 1)
                name = NAME.match(ahead[1:].lstrip(WHITE))
                self._name_tool(name[0] if name else "")
                yield from self._array()
            case "gemma3":
                yield from self.source.space()
                is_array = (yield from self.source.peek()) == "["
                yield from self._array() if is_array else self._named()
            case _:
                yield from self._action()

    def _name_tool(self, name: str) -> None:
        if not self.known(name):
            raise Fault("no tool is named")
        self.begun = True

    def _action(self) -> Steps[None]:
        """After ``call:`` or ``Action:``, on the same line: a tool, and its arguments."""
        yield from self.source.space(lines=False)
        is_react = self._dialect.name == "react"
        if is_react and (yield from self.source.peek()) in ("\n", "`"):
            yield from self.source.space()
            if (yield from self.source.mark(*FENCES)):
                yield from self.source.space()
                yield from self._call()
                return
        name = yield from self.source.match(NAME, MOST_NAME)
        self._name_tool(name)
        if not is_react:
            if (yield from self.source.peek()) != "(":
                raise Fault("brackets are due")
            yield from self._python(name)
            return
        yield from self.source.space()
        if not (yield from self.source.mark("Action Input:")):
            raise Fault("'Action Input:' is due")
        if (yield from self._past_fence()) != "{":
            raise Fault("arguments are due")
        yield from self._json_arguments(name)

    def _functionary(self) -> Steps[None]:
        """A name on a line, its arguments on the next; more calls follow their mark."""
        while True:
            name = yield from self.source.match(NAME, MOST_NAME)
            self._name_tool(name)
            if (yield from self.source.ahead(2)) != "\n{":
                raise Fault("no tool is named")
            self.source.pos += 1
            yield from self._json_arguments(name)
            yield from self.source.space()
            if self._full or self.cut or not (yield from self.source.mark(">>>")):
                return

    def _message(self) -> Steps[None]:
        """The header of a message, up to its text: a call where it is for a tool."""
        begin = self.source.pos if self.calls else self.begin  # of the header, with its mark
        try:
            _, end = yield from self.source.until("<|message|>", "\n")
        except CutOff:
            self.begun = "to=functions." in self.source.text[self.begin :]
            raise
        if end == "\n":
            raise Fault("a message is due after its header")
        head = self.source.text[begin : self.source.pos]
        to = re.search(r"\bto=([\w.$-]+)", head)
        channel = re.search(r"<\|channel\|>\s*(\w+)", head)
        self.end = self.source.pos
        recipient = to[1] if to else ""
        self.header = MessageHeader(recipient, channel[1] if channel else "")
        if not recipient or recipient in ("user", "assistant"):
            return
        yield from self.source.space()
        if (yield from self.source.peek()) == "{":
            if not self._loose and not self.known(recipient):
                raise Fault("there are no tools")
            self.header = None
            self.begun = True
            yield from self._json_arguments(recipient.removeprefix("functions."))
