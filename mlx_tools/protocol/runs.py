"""A run of calls in a dialect: from its opening mark to the end of the last call that belongs to it
(reading rule 8a).

What comes next in the text decides which reader goes on, not the mark alone, for models mix the
forms that they have seen: an object or an array is JSON, a tag is XML, a name is followed by an
object, by brackets, or by keys and values in turn.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from mlx_tools.messages import ToolCall, replace
from mlx_tools.protocol.delimiters import END_TOKENS
from mlx_tools.protocol.dialects import DIALECTS, Dialect
from mlx_tools.protocol.literals import (
    elements,
    keywords,
    literal_object,
    typed,
    without_first_line_break,
    without_line_breaks,
)
from mlx_tools.protocol.objects import object_call
from mlx_tools.protocol.scan import HEADS
from mlx_tools.protocol.source import CutOff, Fault, Steps, TextSource
from mlx_tools.protocol.strict import Unreadable, encodable, loads, loose_name

Catalog = Mapping[str, Mapping[str, Any]]
_Object = tuple[dict[str, Any], tuple[str, ...]]

_MOST_PROSE: Final = 200
"""Characters of prose that may stand between two calls with the same mark."""

_MOST_NAME: Final = 200
_MOST_TAG: Final = 500

_NAME: Final = re.compile(r"[\w$][\w$./-]*+")
_DIGITS: Final = re.compile(r"[0-9]++")
_WORD: Final = re.compile(r"[A-Za-z0-9_-]++")
_CALL_BEGINS: Final = re.compile(r"<\|tool_call_begin\|>|<｜tool▁call▁begin｜>|\[{|\n")
_TAG: Final = re.compile(
    r"<(?P<ns>[A-Za-z][\w.-]*:|｜DSML｜)?(?P<tag>function|invoke|parameter|param)"
    r"(?:=(?P<bare>[^>\n]+)|(?P<attributes>(?:\s+[\w.-]+=(?:\"[^\"]*\"|'[^']*'))+))\s*/?>"
)
_ATTRIBUTE: Final = re.compile(r"([\w.-]+)=(?:\"([^\"]*)\"|'([^']*)')")
_LINE_BEGUN: Final = re.compile(r"\n[ \t]*+\Z")
_MOST_INDENT: Final = 100
"""Blanks that may stand before a mark that begins a line; a page is narrower."""

_OPENED_KEY: Final = re.compile(r"(?:[\w.-]+=[\"'])?([^\"'<>=\s]+)")
"""After an opening mark: the key that it names, as an attribute or alone."""

_TAG_OPENS: Final = frozenset(("<function=", "<function name="))
"""Marks that are the beginning of a call's own tag."""

_PAIRED: Final = frozenset(dialect.open for dialect in DIALECTS if dialect.body == "pairs")

_FENCES: Final = "```json", "```tool_code", "```"
_OPENING: Final = (
    *(
        dialect.open
        for dialect in DIALECTS
        if not dialect.line and dialect.open not in _TAG_OPENS and dialect.name != "harmony"
    ),
    *("<|plugin|>", "<｜tool▁call▁begin｜>", "<|tool_call_begin|>", "<｜tool_call_begin｜>"),
)
_CLOSES: Final = tuple({dialect.close: 0 for dialect in DIALECTS if len(dialect.close) > 1})
_CLOSING: Final = (
    *(*_CLOSES, "</tool_calls>", "<｜tool▁call▁end｜>", "<|tool_call_end|>", "<｜tool_call_end｜>"),
)
_ARGUMENTS: Final = (
    *("[ARGS]", "[CALL_ID]", "<|tool_call_argument_begin|>", "<｜tool▁sep｜>", "Action Input:"),
    *("<tool_sep>", "<arg_key>", "<longcat_arg_key>"),
)
_M3: Final = "]<]minimax[>["
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


_PAIR_KEY_ENDS: Final = "</arg_key>", "</longcat_arg_key>"
_PAIR_VALUES: Final = "<arg_value>", "<longcat_arg_value>"
_PAIR_CALLS: Final = "<tool_call>", "</tool_call>"
_ValueText = tuple[str, bool]


class _Marks(NamedTuple):
    """Of a value between tags: its own closing mark, what opens a key, and its family's others."""

    end: str
    keys: tuple[str, ...]
    others: tuple[str, ...]


_KIMI_K3: Final = _Marks(
    "<|close|>argument<|sep|>", ("<|open|>argument",), ("<|open|>call", "<|close|>call<|sep|>")
)


class MessageHeader(NamedTuple):
    """The header of a message of harmony and its kin: whom it is for, and in which channel."""

    recipient: str
    channel: str


class Run:
    """One run of calls, from the opening mark that stands where ``source`` is read.

    `steps` is to be resumed while it yields. Afterwards ``calls`` are those that were read, each up
    to its place in ``ends``; ``end`` is that of the last, closing marks included. ``fault`` says
    why no more could be read, ``cut`` that the text ended within a call. ``quoted``: prose follows
    in the same line. ``begun``: a tool was named where a call may stand. ``header``: no call stood
    there, but what precedes a message of another kind. ``tagged``: values stood between tags, so
    that a schema gave them their types. ``typed``: an object says itself that it is a call of the
    protocol's.
    """

    def __init__(
        self,
        source: TextSource,
        dialect: Dialect,
        catalog: Catalog | None,
        most: int | None = None,
        skip: int | None = None,
    ) -> None:
        """``catalog``: without one every name is a tool's. ``skip``: the length of what stands
        before the first call, by default of the mark."""
        self.source = source
        self.begin = self.end = source.pos
        self.calls: list[ToolCall] = []
        self.ends: list[int] = []
        self.cut: CutOff | None = None
        self.fault = ""
        self.quoted = self.begun = self.tagged = self.typed = False
        self.header: MessageHeader | None = None
        self.dropped: list[str] = []
        self.dialect = dialect
        self._catalog = catalog or {}
        self._loose = {loose_name(name): name for name in self._catalog}
        self._knows_all = catalog is None
        self._most = most
        size = 0 if dialect.open in _TAG_OPENS else len(dialect.open)
        self._skip = size if skip is None else skip
        self._last = 0  # where a call was looked for last
        self.object_begin = -1  # of the object that is open and may be a call
        self._closed = False
        self._junk = False
        self._one_array = False  # the family writes all its calls in one array or object

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
        again = one = self._line_form if self.dialect.line else self._call
        if self.dialect.name == "harmony":
            again = one = self._message
        if self.dialect.name not in _ONE_A_LINE:
            again = self._call
        self._last = self.source.pos
        yield from one()
        while self.calls and self.cut is None and (yield from self._goes_on()):
            self._last = self.source.pos
            yield from again()

    def _goes_on(self) -> Steps[bool]:
        """After a call: past what closes it, and whether another follows."""
        separated = False
        while True:
            yield from self.source.space()
            if (yield from self.source.mark(*_CLOSING)):
                self._closed = True
                self.end = self.source.pos
                continue
            char = yield from self.source.peek()
            if char not in (",", ";") or separated or self._closed:
                break
            separated = True
            self.source.pos += 1
        if not self._full:
            if (yield from self.source.mark(*_OPENING)):
                self._closed = False
                return not self._one_array
            if (yield from self._another(char)):
                return not self._one_array
        return (yield from self._ended())

    def _another(self, char: str) -> Steps[bool]:
        """Return whether a call stands here that has no opening mark of its own."""
        if self.dialect.name in _ONE_A_LINE:
            return (yield from self._is_marked_again())
        ahead = yield from self.source.ahead(len("<｜DSML｜invoke name="))
        if _CALL_TAG.match(ahead):
            return True
        if self._closed or not char:
            return False
        if char == "{":
            return True
        if self.dialect.body == "literal":
            return ahead.startswith("call:")
        return self.dialect.name in ("olmo3", "gemma3") and bool(_NAME.match(char))

    def _is_marked_again(self) -> Steps[bool]:
        """Past the mark of a line, or before the header, that calls another known tool."""
        here = self.source.pos
        if self.dialect.name == "harmony":
            begun = yield from self.source.mark("<|start|>", "<|channel|>")
            self.source.pos = here
            ahead = (yield from self.source.ahead(_MOST_HEADER)) if begun else ""
            found = _NEXT_MESSAGE.match(ahead)
            return found is not None and self.known(found[1].removeprefix("functions."))
        if not (yield from self.source.mark(self.dialect.open)):
            return False
        behind = self.source.pos
        yield from self.source.space(lines=False)
        name = yield from self.source.match(_NAME, _MOST_NAME)
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
        opening = self.dialect.open
        if not self._full and self.dialect.close and not self.dialect.line and not self._one_array:
            ahead = yield from self.source.ahead(_MOST_PROSE + len(opening))
            found = ahead.find(opening)
            is_new = self.source.pos + found + self._skip > self._last  # else no call stood there
            if found >= 0 and is_new and not _FOREIGN.search(ahead, 0, found):
                self.dropped.append(ahead[:found].strip())
                self.source.pos += found + self._skip
                return True
        self.source.pos = self.end
        in_array = self._full and char == "," and not self._closed
        self.quoted = not (ends or in_array or self.dialect.is_token)
        return False

    # --- one call ---------------------------------------------------------------------------

    def known(self, name: str) -> bool:
        """Return whether the catalog has a tool of this name, case and separators aside."""
        return bool(name) if self._knows_all else loose_name(name) in self._loose

    def _add(
        self, name: str, arguments: Mapping[str, Any], *repairs: str, call_id: str | None = None
    ) -> None:
        if not name or not encodable(name):
            raise Fault("name: required")
        names = (*repairs, "noise") if self._junk else repairs
        self.calls.append(ToolCall(name, arguments, call_id, tuple(dict.fromkeys(names))))
        self.end = self.source.pos
        self.ends.append(self.end)
        self._closed = False

    def _fail(self, reason: str) -> Steps[NoReturn]:
        """Raises: something else stands here than is due, or the text ends."""
        raise Fault(reason) if (yield from self.source.peek()) else CutOff()

    @property
    def _full(self) -> bool:
        return self._most is not None and len(self.calls) >= self._most

    def _call(self) -> Steps[None]:
        """One call, or an array of them, whatever its form."""
        while True:
            yield from self.source.space()
            if not (
                (yield from self.source.mark(*_OPENING)) or (yield from self.source.mark(*_FENCES))
            ):
                break
        char = yield from self.source.peek()
        if not char:
            raise CutOff
        if char in "{[":
            self._one_array = self.dialect.name == "mistral"
            yield from self._object() if char == "{" else self._array()
        elif char in "<]":
            yield from self._tags()
        else:
            yield from self._named()

    # --- JSON ---------------------------------------------------------------------------------

    def _json(self) -> Steps[_Object]:
        """The object that stands here; at the very end one that lacks closing brackets is read
        with them, and the run is ``cut``."""
        try:
            return (yield from self.source.json_object())
        except CutOff as cut:
            if cut.scanner is None or not cut.scanner.closable:
                raise
            try:
                found = cut.scanner.read(self.source.text, close=True)
            except Unreadable:
                raise cut from None
            self.cut = cut
            return found

    def _json_arguments(self, name: str) -> Steps[None]:
        value, repairs = yield from self._json()
        self._add(name, value, *repairs)

    def _object(self) -> Steps[None]:
        self.object_begin = self.source.pos
        try:
            value, repairs = yield from self._json()
            self.object_begin = -1
        except Fault as fault:
            self.object_begin = -1
            if self.dialect.form != "any" or not self.calls:
                raise
            yield from self._skip_line(fault)
            return
        cut, self.cut = self.cut, None  # it counts only if the object is a call
        keyed = not self.dialect.name_key
        if keyed and len(value) == 1 and isinstance(arguments := next(iter(value.values())), dict):
            self._add(next(iter(value)), arguments, *repairs)
            self.cut = cut
            return
        call, dropped = object_call(value, repairs)
        if call is None or value.get("type") in ("final_answer", "tool_observation"):
            raise Fault("a call needs a name and arguments")
        self._add(call.name, call.arguments, *call.repairs, call_id=call.id)
        self.typed = self.typed or value.get("type") == "tool_call"
        self.dropped += dropped
        self.cut = cut
        if cut is not None and "missing_arguments" in call.repairs:
            raise cut

    def _skip_line(self, fault: Fault) -> Steps[None]:
        """Past something in the wrapper that is no call, where it does not look like one."""
        rest, mark = yield from self.source.until("\n", *_CLOSES)
        if any(f'"{head}"' in rest for head in HEADS):
            raise fault
        self.dropped.append(rest.strip())
        self._junk = True
        if mark == "\n" and (yield from self.source.peek()) == "{":
            yield from self._object()

    def _array(self) -> Steps[None]:
        self.source.pos += 1
        yield from self.source.space()
        char = yield from self.source.peek()
        if _NAME.match(char):
            yield from self._calls_in_brackets()
            return
        first = len(self.calls)
        while True:
            yield from self.source.space()
            char = yield from self.source.peek()
            if char == "{":
                yield from self._object()
                if self.cut is not None:
                    return
            elif char == '"':
                self.source.pos += 1
                self.dropped.append((yield from self.source.until('"'))[0])
                self._junk = True
            elif char != "]" or len(self.calls) == first:
                yield from self._fail("a call is due in the array")
            if (yield from self._more()) != "," or self._full:
                return

    def _more(self) -> Steps[str]:
        """Past the mark behind an item: a comma, or what closes the brackets; none at the end."""
        yield from self.source.space()
        char = yield from self.source.peek()
        if not char:
            if not self.calls:
                raise CutOff
            last = self.calls[-1]
            self.calls[-1] = replace(last, repairs=(*last.repairs, "missing_closers"))
            self.cut = CutOff()
        elif char not in ",]":
            raise Fault("',' or ']' is due")
        else:
            self.source.pos += 1
            if char == "]":
                self.end = self.ends[-1] = self.source.pos
        return char

    # --- Python -------------------------------------------------------------------------------

    def _calls_in_brackets(self) -> Steps[None]:
        while True:
            yield from self.source.space()
            name = yield from self.source.match(_NAME, _MOST_NAME)
            if not name or (yield from self.source.peek()) != "(":
                raise Fault("a call is due in the brackets")
            yield from self._python(name)
            if (yield from self._more()) != ",":
                return

    def _python(self, name: str) -> Steps[None]:
        """The brackets after a name, and what stands in them."""
        if self.dialect.line and not self.known(name):
            raise Fault("no tool is named")
        self.begun = True
        text = yield from self.source.bracketed("'\"")
        inside = text[1:-1].strip()
        if self.dialect.open == "<|python_tag|>":
            name = name.removesuffix(".call")
        if not (inside.startswith("{") and self.dialect.line):
            self._add(name, keywords(inside))
            return
        try:
            value = loads(inside)
        except Unreadable:
            value = literal_object(inside)
        self._add(name, value)

    # --- a name first -------------------------------------------------------------------------

    def _named(self) -> Steps[None]:
        name = yield from self.source.match(_NAME, _MOST_NAME)
        if not name:
            raise Fault("a call is due after the mark")
        char = yield from self.source.peek()
        if char == ":":
            self.source.pos += 1
            if name == "call":
                yield from self.source.space(lines=False)
                name = yield from self.source.match(_NAME, _MOST_NAME)
                char = yield from self.source.peek()
            else:
                yield from self.source.match(_DIGITS, 12)
                name = name.removeprefix("functions.")
        if char == "(":
            yield from self._python(name)
        elif char == "{" and self.dialect.body == "literal":
            self._add(name, literal_object((yield from self.source.bracketed('"'))))
        else:
            yield from self._after_name(name)

    def _after_name(self, name: str) -> Steps[None]:
        """A name and, past what parts them, its arguments."""
        yield from self.source.space()
        mark = yield from self.source.mark(*_ARGUMENTS)
        if mark == "[CALL_ID]":
            yield from self.source.match(_WORD, 64)
            mark = yield from self.source.mark(*_ARGUMENTS)
        if mark == "<｜tool▁sep｜>":
            yield from self.source.space()
            if (yield from self.source.peek()) not in ("{", "`"):  # the kind stood first
                name = yield from self.source.match(_NAME, _MOST_NAME)
        if mark.endswith("arg_key>") or mark == "<tool_sep>":
            yield from self._pairs(name, begun=mark != "<tool_sep>")
            return
        char = yield from self._past_fence()
        if char == "{":
            yield from self._json_arguments(name)
        elif not mark and char == "<" and self.dialect.open in _PAIRED:
            yield from self._pairs(name, begun=False)
        elif char and not mark and not self.calls:
            yield from self._after_noise()
        else:
            yield from self._fail("arguments are due")

    def _past_fence(self) -> Steps[str]:
        """The next character, white space and an opening fence aside."""
        yield from self.source.space()
        yield from self.source.mark(*_FENCES)
        yield from self.source.space()
        return (yield from self.source.peek())

    def _after_noise(self) -> Steps[None]:
        """Words stand between the mark and the call: they are dropped, and the call repaired."""
        self._junk = True
        found = _CALL_BEGINS.search((yield from self.source.ahead(_MOST_PROSE)))
        if found is None or found[0] == "\n":
            raise Fault("a call is due after the mark")
        self.source.pos += found.start()
        yield from self._call()

    def _pairs(self, name: str, *, begun: bool) -> Steps[None]:
        """Keys and values in turn; ``begun``: the first key's tag is taken."""
        arguments = dict[str, Any]()
        self.tagged = is_closed = True
        unclosed = False
        parameters = self._parameters(name)
        while True:
            yield from self.source.space()
            if not begun and not (yield from self.source.mark("<arg_key>", "<longcat_arg_key>")):
                break
            begun = False
            key, value_mark = yield from self._pair_key()
            self._check_key(key, parameters, is_closed=is_closed and not value_mark)
            unclosed = unclosed or bool(value_mark)
            value_mark = value_mark or (yield from self.source.mark(*_PAIR_VALUES))
            if not value_mark:
                raise Fault("a value is due after its key")
            value_end, key_mark = value_mark.replace("<", "</"), value_mark.replace("value", "key")
            text, is_closed = yield from self._value_text(
                _Marks(
                    value_end, (key_mark,), (key_mark.replace("<", "</"), value_mark, *_PAIR_CALLS)
                ),
                lambda found: found not in arguments and self._has(parameters, found),
            )
            unclosed = unclosed or not is_closed
            value = typed(text, parameters, key)
            _put(arguments, key, _unquoted(value) if isinstance(value, str) else value)
        if not (yield from self.source.mark(*_CLOSING)):
            yield from self._fail("a key or the end of the call is due")
        if not arguments and not self.known(name):
            raise Fault("no tool is named")
        self._add(name, arguments, *_closers(unclosed))
        self._closed = True

    def _pair_key(self) -> Steps[tuple[str, str]]:
        """A key, and the mark of its value where that stands in place of the key's own end."""
        key, mark = yield from self.source.until(*_PAIR_KEY_ENDS, *_PAIR_VALUES)
        key = key.strip()
        if not key or "<" in key or "\n" in key:
            raise Fault("a key's end is due")
        yield from self.source.space()
        return key, mark if mark in _PAIR_VALUES else ""

    def _parameters(self, name: str) -> Mapping[str, Any]:
        own = name if name in self._catalog else self._loose.get(loose_name(name), "")
        return self._catalog.get(own, {})

    # --- tags ---------------------------------------------------------------------------------

    def _tags(self) -> Steps[None]:
        self.tagged = True
        ahead = yield from self.source.ahead(len(_M3))
        if ahead == _M3:
            yield from self._elements()
            return
        if ahead.startswith("<|open|>call"):
            yield from self._kimi_k3()
            return
        tag, name, _ = yield from self._tag("a call is due after the mark", "function", "invoke")
        yield from self.source.space()
        if (yield from self.source.peek()) == "{":
            yield from self._json_arguments(name)
            return
        arguments, parameters = dict[str, Any](), self._parameters(name)
        is_closed, unclosed = True, False
        while not (yield from self.source.mark(_end_of(tag))):
            if self._wrapper_end and (yield from self.source.stands(self._wrapper_end)):
                unclosed = True  # the calls' own end stands in place of this one's
                break
            is_closed = yield from self._parameter(tag, parameters, arguments, is_closed=is_closed)
            unclosed = unclosed or not is_closed
            yield from self.source.space()
        self._add(name, arguments, *_closers(unclosed))

    def _tag(self, due: str, *names: str) -> Steps[tuple[re.Match[str], str, Mapping[str, str]]]:
        """The tag of one of these names that stands here, taken; what it names; its attributes."""
        if (yield from self.source.peek()) != "<":
            yield from self._fail(due)
        ahead = yield from self.source.tag(_MOST_TAG)
        found = _TAG.match(ahead)
        if found is None and ">" not in ahead and len(ahead) < _MOST_TAG:
            raise CutOff
        if found is None or found["tag"] not in names:
            raise Fault(due)
        self.source.pos += found.end()
        if found["bare"]:
            return found, found["bare"].strip(), {}
        attributes = _attributes(found["attributes"])
        return found, attributes.get("name", ""), attributes

    def _parameter(
        self,
        call: re.Match[str],
        parameters: Mapping[str, Any],
        arguments: dict[str, Any],
        *,
        is_closed: bool,
    ) -> Steps[bool]:
        """Read one parameter of the ``call`` whose tag that is; ``is_closed``: the one before it
        has its closing tag. Returns whether this one has."""
        tag, key, attributes = yield from self._tag("a parameter is due", "parameter", "param")
        self._check_key(key, parameters, is_closed=is_closed)
        is_closed = True
        if tag["tag"] == "param" and (yield from self.source.mark("<![CDATA[")):
            text, _ = yield from self.source.until("]]>")
            yield from self.source.space()
            if not (yield from self.source.mark("</param>")):
                raise Fault("a parameter's end is due")
        else:
            text, is_closed = yield from self._value_text(
                _Marks(_end_of(tag), _begins_of(tag), (*_begins_of(call), _end_of(call))),
                lambda found: found not in (key, *arguments) and self._has(parameters, found),
            )
            text = html.unescape(text) if tag["tag"] == "param" else text
        _put(arguments, key, _value(text, key, attributes, parameters))
        return is_closed

    # --- values between tags ---

    @property
    def _wrapper_end(self) -> str:
        """What closes the family's calls, empty where nothing does or it may stand in prose."""
        return "" if self.dialect.line else self.dialect.close

    def _value_text(self, marks: _Marks, may_follow: Callable[[str], bool]) -> Steps[_ValueText]:
        """The text of a value without a line break at each end, and whether its own mark ends it.

        It ends before any mark of its family that begins a line or is spelt like a control token,
        too. One within a line is text where the value's own mark follows, unless it opens a key
        that ``may_follow``.
        """
        begin, marked = self.source.pos, False
        wrapper = () if self.dialect.line else (self.dialect.open, self._wrapper_end or marks.end)
        while True:
            _, mark = yield from self.source.until(marks.end, *marks.keys, *marks.others, *wrapper)
            text, at = self.source.text, self.source.pos - len(mark)
            if mark == marks.end:
                return without_line_breaks(text[begin:at]), True
            line = _LINE_BEGUN.search(text, max(begin, at - _MOST_INDENT), at)
            if line or any(char in mark for char in "|｜"):
                if marked:
                    raise Fault("a value's end is due")
                self.source.pos = at
                end = line.start() if line else at  # the line break is not the value's
                return without_first_line_break(text[begin:end]).removesuffix("\r"), False
            if mark in marks.keys:
                opened = _OPENED_KEY.match((yield from self.source.tag(_MOST_TAG)))
                if opened is not None and may_follow(opened[1]):
                    raise Fault(f"the end of a value is due before the key {opened[1][:40]!a}")
            marked = True

    def _has(self, parameters: Mapping[str, Any], key: str) -> bool:
        return key in (parameters.get("properties") or {})

    def _check_key(self, key: str, parameters: Mapping[str, Any], *, is_closed: bool) -> None:
        """Raise where the value before the key lacks its end, and the schema does not have it."""
        if not is_closed and self._catalog and not self._has(parameters, key):
            raise Fault("a value's end is due")

    def _kimi_k3(self) -> Steps[None]:
        self.source.pos += len("<|open|>call")
        head, _ = yield from self.source.until("<|sep|>")
        name = html.unescape(_attributes(head).get("tool", ""))
        arguments, parameters = dict[str, Any](), self._parameters(name)
        is_closed, unclosed = True, False
        while not (yield from self.source.mark("<|close|>call<|sep|>")):
            yield from self.source.space()
            if not (yield from self.source.mark("<|open|>argument")):
                yield from self._fail("an argument is due")
            attributes = _attributes((yield from self.source.until("<|sep|>"))[0])
            key = attributes.get("key", "")
            self._check_key(key, parameters, is_closed=is_closed)
            text, is_closed = yield from self._value_text(_KIMI_K3, lambda found: False)
            unclosed = unclosed or not is_closed
            is_text = attributes.get("type", "string") == "string"
            _put(arguments, key, text if is_text else loads(text))
            yield from self.source.space()
        self._add(name, arguments, *_closers(unclosed))

    def _elements(self) -> Steps[None]:
        """MiniMax M3: each parameter an element of its own name, nested ones in it."""
        self.source.pos += len(_M3)
        _, name, _ = yield from self._tag("a call is due after the mark", "invoke")
        text, _ = yield from self.source.until(f"{_M3}</invoke>")
        before, *pieces = text.split(_M3)
        if before.strip():
            raise Fault("a parameter is due")
        self._add(name, elements(pieces, self._parameters(name)))

    # --- one line, and messages with headers ---

    def _line_form(self) -> Steps[None]:
        """The forms whose mark may stand in prose: a name of the catalog must follow."""
        match self.dialect.name:
            case "phi":
                self.source.pos = self.begin + len("functools")
                yield from self._array()
            case "functionary":
                yield from self._functionary()
            case "pythonic":
                yield from self.source.space()
                self._name_tool((yield from self.source.match(_NAME, _MOST_NAME)))
                self.source.pos = self.begin
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
        is_react = self.dialect.name == "react"
        if is_react and (yield from self.source.peek()) in ("\n", "`"):
            yield from self.source.space()
            if (yield from self.source.mark(*_FENCES)):
                yield from self.source.space()
                yield from self._call()
                return
        name = yield from self.source.match(_NAME, _MOST_NAME)
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
            name = yield from self.source.match(_NAME, _MOST_NAME)
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


def _put(arguments: dict[str, Any], key: str, value: Any) -> None:
    if key in arguments:
        raise Fault(f"the parameter {key[:40]!a} stands twice")
    arguments[key] = value


def _value(
    text: str, key: str, attributes: Mapping[str, str], parameters: Mapping[str, Any]
) -> Any:
    match attributes.get("string"):
        case "true":
            return text
        case "false":
            return loads(text)
    return typed(text, parameters, key)


def _unquoted(text: str) -> str:
    """``text`` without the quotes of JSON, which some write around every value."""
    try:
        value = loads(text) if text[:1] == text[-1:] == '"' else text
    except Unreadable:
        return text
    return value if isinstance(value, str) else text


def _closers(are_missing: bool) -> tuple[str, ...]:
    """The repairs of a call, some of whose closing marks may be missing."""
    return ("missing_closers",) if are_missing else ()


def _end_of(tag: re.Match[str]) -> str:
    return f"</{tag['ns'] or ''}{tag['tag']}>"


def _begins_of(tag: re.Match[str]) -> tuple[str, str]:
    """The two ways in which tags like this one begin."""
    begin = f"<{tag['ns'] or ''}{tag['tag']}"
    return f"{begin}=", f"{begin} "


def _attributes(text: str) -> dict[str, str]:
    found = _ATTRIBUTE.findall(text)
    return {key: html.unescape(double or single) for key, double, single in found}
