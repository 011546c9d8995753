"""The readers of what stands between a dialect's marks (reading rule 8a).

`Run` reads from an opening mark to the end of the last call that belongs to it. What comes next in
the text decides which reader goes on, not the mark alone, for models mix the forms that they have
seen: an object or an array is JSON, a tag is XML, a name is followed by an object, by brackets, or
by keys and values in turn.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from mlx_tools.messages import ToolCall
from mlx_tools.protocol import lexis
from mlx_tools.protocol.dialects import DIALECTS, Dialect
from mlx_tools.protocol.lexis import END_TOKENS
from mlx_tools.protocol.literals import elements, keywords, literal_object, typed
from mlx_tools.protocol.objects import object_call
from mlx_tools.protocol.scan import HEADS, repaired
from mlx_tools.protocol.source import CutOff, Fault, Steps, TextSource, literals
from mlx_tools.protocol.strict import Unreadable, encodable, loads, loose_name

Catalog = Mapping[str, Mapping[str, Any]]

MOST_PROSE: Final = 200
"""Characters of prose that may stand between two calls with the same mark."""

_NAME: Final = re.compile(r"[\w$][\w$./-]*+")
_MOST_NAME: Final = 200
_DIGITS: Final = re.compile(r"[0-9]++")
_WORD: Final = re.compile(r"[A-Za-z0-9_-]++")
_M3: Final = "]<]minimax[>["

_TAG_OPENS: Final = frozenset(("<function=", "<function name="))
"""Marks that are the beginning of a call's own tag."""

_ONE_A_LINE: Final = frozenset(("react", "call", "harmony"))
"""Families whose every call has a line or a message, and the mark, of its own."""

_NEXT_MESSAGE: Final = re.compile(
    r"(?:(?!<\|message)[^\n{])*?\bto=([\w.$-]+)(?:(?!<\|message)[^\n{])*<\|message"
)
_MOST_HEADER: Final = 200

_OPENING: Final = literals(
    *(
        dialect.open
        for dialect in DIALECTS
        if not dialect.line and dialect.open not in _TAG_OPENS and dialect.name != "harmony"
    ),
    *("<|plugin|>", "<｜tool▁call▁begin｜>", "<|tool_call_begin|>", "<｜tool_call_begin｜>"),
)
_CLOSES: Final = tuple(
    dict.fromkeys(dialect.close for dialect in DIALECTS if len(dialect.close) > 1)
)
_CLOSING: Final = literals(
    *(close for close in _CLOSES if close not in ("```", "</function>")),
    *("</function>", "</tool_calls>", "<｜tool▁call▁end｜>", "<|tool_call_end|>"),
    *("<｜tool_call_end｜>", "```"),
)
_ARGUMENTS: Final = literals(
    *("[ARGS]", "[CALL_ID]", "<|tool_call_argument_begin|>", "<｜tool▁sep｜>", "Action Input:"),
    *("<tool_sep>", "<arg_key>", "<longcat_arg_key>"),
)
_CALL_BEGINS: Final = literals("<|tool_call_begin|>", "<｜tool▁call▁begin｜>", "[{", "\n")
_FENCE: Final = literals("```json", "```tool_code", "```")
_ENDS: Final = literals(*END_TOKENS)
_SEP: Final = literals("<|sep|>")
_HEADER_END: Final = literals("<|message|>", "\n")
_FOREIGN: Final = re.compile(
    r"<tool_response>|<\|tool_response|^[ \t]*(?:Observation|Result|User)[ \t]*:|[\[{]|<\|", re.M
)
"""What between two calls shows that more than prose stands there."""

_TAG: Final = re.compile(
    r"<(?P<ns>[A-Za-z][\w.-]*:|｜DSML｜)?(?P<tag>function|invoke|parameter|param)"
    r"(?:=(?P<bare>[^>\n]+)|(?P<attributes>(?:\s+[\w.-]+=(?:\"[^\"]*\"|'[^']*'))+))\s*/?>"
)
_ATTRIBUTE: Final = re.compile(r"([\w.-]+)=(?:\"([^\"]*)\"|'([^']*)')")
_MOST_TAG: Final = 500
_CALL_TAG: Final = re.compile(
    r"<(?:[A-Za-z][\w.-]*:|｜DSML｜)?(?:function|invoke)[ =]|<\|open\|>call |\]<\]minimax\[>\[<inv"
)


class MessageHeader(NamedTuple):
    """What precedes a message of harmony and its kin: whom it is for, and in which channel."""

    recipient: str
    channel: str


class Run:
    """One run of calls, from the opening mark that stands where ``source`` begins.

    `steps` is to be resumed while it yields. Afterwards ``calls`` are those that were read, and
    ``end`` is where their text ends, closing marks included. ``fault`` says why no more could be
    read, ``cut`` that the text ended within a call. ``quoted``: prose follows in the same line.
    ``header``: no call stood there, but what precedes a message of another kind.
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
        self.calls: list[ToolCall] = []
        self.ends: list[int] = []
        self.end = 0
        self.fault = ""
        self.cut: CutOff | None = None
        self.quoted = False
        self.typed = False  # an object says itself that it is a call of the protocol's
        self.header: MessageHeader | None = None
        self.dropped: list[str] = []
        self.opening = dialect.open
        self._source = source
        self._dialect = dialect
        self._catalog = catalog
        self._loose = {loose_name(name): name for name in catalog}
        self._most = most
        self._closed = False
        self._junk = False
        self.begun = False  # a tool was named where a call may stand
        self._tagged = False
        self._alone = False  # the family writes all its calls in one array or object
        size = 0 if dialect.open in _TAG_OPENS else len(dialect.open)
        self._skip = size if skip is None else skip

    def steps(self) -> Steps[None]:
        """Reads the run."""
        try:
            yield from self._run()
        except Fault as fault:
            self.fault = str(fault) or "a call is due"
        except Unreadable as fault:
            self.fault = str(fault)
        except CutOff as cut:
            self.cut = cut

    @property
    def is_tagged(self) -> bool:
        """Whether values stood between tags, so that a schema gave them their types."""
        return self._tagged

    def known(self, name: str) -> bool:
        """Whether the catalog has a tool of this name, case and separators aside."""
        return loose_name(name) in self._loose

    # --- the run ------------------------------------------------------------------------------

    def _run(self) -> Steps[None]:
        source = self._source
        source.step(self._skip)
        if self._dialect.name == "harmony":
            yield from self._message()
        elif self._dialect.line:
            yield from self._line_form()
        else:
            yield from self._call()
        again = self._call
        if self._dialect.name in _ONE_A_LINE:
            again = self._line_form if self._dialect.line else self._message
        while self.calls and self.cut is None and (yield from self._goes_on()):
            yield from again()

    def _add(self, name: str, arguments: Any, *repairs: str, call_id: str | None = None) -> None:
        if not isinstance(arguments, Mapping):
            raise Fault("arguments: an object")
        if not name or not encodable(name):
            raise Fault("name: required")
        names = (*repairs, "noise") if self._junk else repairs
        self.calls.append(ToolCall(name, arguments, call_id, tuple(dict.fromkeys(names))))
        self.end = self._source.size
        self.ends.append(self.end)
        self._closed = False

    @property
    def _full(self) -> bool:
        return self._most is not None and len(self.calls) >= self._most

    def _call(self) -> Steps[None]:
        """One call, or an array of them, whatever its form."""
        source = self._source
        while True:
            yield from source.space()
            if not ((yield from source.mark(_OPENING)) or (yield from source.mark(_FENCE))):
                break
        char = yield from source.peek()
        if not char:
            raise CutOff
        if char in "{[":
            self._alone = self._dialect.name == "mistral"
            yield from self._object() if char == "{" else self._array()
        elif char in "<]":
            yield from self._tags()
        else:
            yield from self._named()

    def _goes_on(self) -> Steps[bool]:
        """After a call: past what closes it, and whether another follows."""
        source = self._source
        separated = False
        while True:
            yield from source.space()
            if (yield from source.mark(_CLOSING)):
                self._closed = True
                self.end = source.size
                continue
            char = yield from source.peek()
            if char not in (",", ";") or separated or self._closed:
                break
            separated = True
            source.step()
        if self._full:
            return (yield from self._ended())
        if (yield from source.mark(_OPENING)):
            self._closed = False
            return not self._alone
        if (yield from self._another(char)):
            return not self._alone
        return (yield from self._ended())

    def _another(self, char: str) -> Steps[bool]:
        """Whether a call stands here that has no opening mark of its own."""
        if self._dialect.name in _ONE_A_LINE:
            return (yield from self._is_marked_again())
        ahead = yield from self._source.ahead(len("<｜DSML｜invoke name="))
        if _CALL_TAG.match(ahead):
            return True
        if self._closed or not char:
            return False
        if char == "{":
            return True
        if self._dialect.body == "literal":
            return ahead.startswith("call:")
        return self._dialect.name in ("olmo3", "gemma3") and bool(_NAME.match(char))

    def _is_marked_again(self) -> Steps[bool]:
        """Past the mark of a line, or before the header, that calls another known tool."""
        source = self._source
        here = source.size
        if self._dialect.name == "harmony":
            begun = yield from source.mark(literals("<|start|>", "<|channel|>"))
            source.put_back(here)
            ahead = (yield from source.ahead(_MOST_HEADER)) if begun else ""
            found = _NEXT_MESSAGE.match(ahead)
            return found is not None and self.known(found[1].removeprefix("functions."))
        if not (yield from source.mark(literals(self._dialect.open))):
            return False
        behind = source.size
        yield from source.space(lines=False)
        name = yield from source.match(_NAME, _MOST_NAME)
        again = self.known(name)
        source.put_back(behind if again else here)
        return again

    def _ended(self) -> Steps[bool]:
        """After the last call: whether prose follows in its line, or another call after it."""
        source = self._source
        source.put_back(self.end)
        yield from source.space(lines=False)
        here = source.size
        char = yield from source.peek()
        ends = char in ("", "\n") or bool((yield from source.mark(_ENDS)))
        source.put_back(here)
        opening = self._dialect.open
        if not self._full and self._dialect.close and not self._dialect.line and not self._alone:
            ahead = yield from source.ahead(MOST_PROSE + len(opening))
            found = ahead.find(opening)
            if found >= 0 and not _FOREIGN.search(ahead, 0, found):
                self.dropped.append(source.step(found).strip())
                source.step(self._skip)
                return True
        source.put_back(self.end)
        in_array = self._full and char == "," and not self._closed
        self.quoted = not (ends or in_array or self._dialect.is_token)
        return False

    # --- JSON ---------------------------------------------------------------------------------

    def _object(self) -> Steps[None]:
        try:
            value, repairs = yield from self._source.json_object()
        except CutOff as cut:
            self._close(cut)
            return
        except Fault as fault:
            if self._dialect.form != "any" or not self.calls:
                raise
            yield from self._skip_line(fault)
            return
        self._take(value, repairs)

    def _take(self, value: dict[str, Any], repairs: tuple[str, ...]) -> None:
        keyed = not self._dialect.name_key
        if keyed and len(value) == 1 and isinstance(arguments := next(iter(value.values())), dict):
            self._add(next(iter(value)), arguments, *repairs)
            return
        call, dropped = object_call(value, repairs)
        if call is None:
            raise Fault("a call needs a name and arguments")
        self._add(call.name, call.arguments, *call.repairs, call_id=call.id)
        self.typed = self.typed or value.get("type") == "tool_call"
        self.dropped += dropped

    def _close(self, cut: CutOff) -> None:
        """An object at the very end that lacks closing brackets: read with them, and marked."""
        if cut.scanner is None or not cut.scanner.closable:
            raise cut
        try:
            value, repairs = repaired(cut.text, cut.scanner.fixes, cut.scanner.closers())
        except Unreadable:
            raise cut from None
        self._take(value, repairs)
        if "missing_arguments" in self.calls[-1].repairs:
            raise cut
        self.cut = cut

    def _skip_line(self, fault: Fault) -> Steps[None]:
        """Past something in the wrapper that is no call, where it does not look like one."""
        rest, mark = yield from self._source.until(literals("\n", *_CLOSES))
        if any(f'"{head}"' in rest for head in HEADS):
            raise fault
        self.dropped.append(rest.strip())
        self._junk = True
        if mark == "\n" and (yield from self._source.peek()) == "{":
            yield from self._object()

    def _array(self) -> Steps[None]:
        source = self._source
        source.step()
        yield from source.space()
        char = yield from source.peek()
        if _NAME.match(char) or char == "_":
            yield from self._calls_in_brackets()
            return
        first = len(self.calls)
        while True:
            yield from source.space()
            char = yield from source.peek()
            if char == "{":
                yield from self._object()
                if self.cut is not None:
                    return
            elif char == '"':
                self.dropped.append((yield from self._string()))
            elif char == "]" and len(self.calls) > first:
                yield from self._more()
                return
            else:
                raise Fault("a call is due in the array") if char else CutOff()
            if (yield from self._more()) != ",":
                return
            if self._full:
                return

    def _more(self) -> Steps[str]:
        """Past the mark behind an item: a comma, or what closes the brackets; none at the end."""
        source = self._source
        yield from source.space()
        char = yield from source.peek()
        if not char:
            self._unclosed()
        elif char == "]":
            source.step()
            self.end = self.ends[-1] = source.size
        elif char != ",":
            raise Fault("',' or ']' is due")
        else:
            source.step()
        return char

    def _string(self) -> Steps[str]:
        source = self._source
        source.step()
        text, _ = yield from source.until(literals('"'))
        self._junk = True
        return text

    def _unclosed(self) -> None:
        if not self.calls:
            raise CutOff
        last = self.calls[-1]
        self.calls[-1] = replace(last, repairs=(*last.repairs, "missing_closers"))
        self.cut = CutOff()

    # --- Python -------------------------------------------------------------------------------

    def _calls_in_brackets(self) -> Steps[None]:
        source = self._source
        while True:
            yield from source.space()
            name = yield from source.match(_NAME, _MOST_NAME)
            if not name or (yield from source.peek()) != "(":
                raise Fault("a call is due in the brackets")
            yield from self._python(name)
            if (yield from self._more()) != ",":
                return

    def _python(self, name: str) -> Steps[None]:
        """The brackets after a name, and what stands in them."""
        if self._dialect.line and not self.known(name):
            raise Fault("no tool is named")
        self.begun = True
        text = yield from self._source.bracketed("'\"")
        inside = text[1:-1].strip()
        if self._dialect.name == "llama3_builtin" or self._dialect.open == "<|python_tag|>":
            name = name.removesuffix(".call")
        if inside.startswith("{") and self._dialect.line:
            self._add(name, self._json_or_literal(inside))
        else:
            self._add(name, keywords(inside))

    @staticmethod
    def _json_or_literal(text: str) -> Any:
        try:
            return loads(text)
        except Unreadable:
            return literal_object(text)

    # --- a name first -------------------------------------------------------------------------

    def _named(self) -> Steps[None]:
        source = self._source
        name = yield from source.match(_NAME, _MOST_NAME)
        if not name:
            raise Fault("a call is due after the mark")
        char = yield from source.peek()
        if char == ":" and name == "call":
            source.step()
            yield from source.space(lines=False)
            name = yield from source.match(_NAME, _MOST_NAME)
            char = yield from source.peek()
        elif char == ":":
            source.step()
            yield from source.match(_DIGITS, 12)
            name = name.removeprefix("functions.")
        if char == "(":
            yield from self._python(name)
            return
        if char == "{" and self._dialect.body == "literal":
            text = yield from source.bracketed('"')
            self._add(name, literal_object(text))
            return
        yield from self._after_name(name)

    def _after_name(self, name: str) -> Steps[None]:
        """A name and, past what parts them, its arguments."""
        source = self._source
        yield from source.space()
        mark = yield from source.mark(_ARGUMENTS)
        if mark == "[CALL_ID]":
            yield from source.match(_WORD, 64)
            mark = yield from source.mark(_ARGUMENTS)
        if mark == "<｜tool▁sep｜>":
            yield from source.space()
            if (yield from source.peek()) not in ("{", "`"):  # the kind stood first
                name = yield from source.match(_NAME, _MOST_NAME)
        if mark.endswith("arg_key>") or mark == "<tool_sep>":
            yield from self._pairs(name, begun=mark != "<tool_sep>")
            return
        yield from source.space()
        yield from source.mark(_FENCE)
        yield from source.space()
        char = yield from source.peek()
        if char == "{":
            value, repairs = yield from self._arguments()
            self._add(name, value, *repairs)
        elif not mark and char == "<" and self._dialect.open in _PAIRED:
            yield from self._pairs(name, begun=False)
        elif not mark and not self.calls:
            yield from self._after_noise(char)
        else:
            raise Fault("arguments are due") if char else CutOff()

    def _arguments(self) -> Steps[tuple[dict[str, Any], tuple[str, ...]]]:
        try:
            return (yield from self._source.json_object())
        except CutOff as cut:
            if cut.scanner is None or not cut.scanner.closable:
                raise
            try:
                value = repaired(cut.text, cut.scanner.fixes, cut.scanner.closers())
            except Unreadable:
                raise cut from None
            self.cut = cut
            return value

    def _after_noise(self, char: str) -> Steps[None]:
        """Words stand between the mark and the call: they are dropped, and the call repaired."""
        if not char:
            raise CutOff
        self._junk = True
        ahead = yield from self._source.ahead(MOST_PROSE)
        found = _CALL_BEGINS.pattern.search(ahead)
        if found is None or found[0] == "\n":
            raise Fault("a call is due after the mark")
        self._source.step(found.start())
        yield from self._call()

    def _pairs(self, name: str, *, begun: bool) -> Steps[None]:
        """Keys and values in turn; ``begun``: the first key's tag is taken."""
        source, arguments = self._source, dict[str, Any]()
        self._tagged = True
        parameters = self._parameters(name)
        while True:
            yield from source.space()
            if not begun and not (yield from source.mark(_KEY_TAG)):
                break
            begun = False
            key, _ = yield from source.until(_KEY_END)
            yield from source.space()
            if not (yield from source.mark(_VALUE_TAG)):
                raise Fault("a value is due after its key")
            value, _ = yield from source.until(_VALUE_END)
            key = key.strip()
            value = typed(value, parameters, key)
            self._put(arguments, key, _unquoted(value) if isinstance(value, str) else value)
        closing = yield from source.mark(_CLOSING)
        if not closing:
            raise (
                Fault("a key or the end of the call is due")
                if (yield from source.peek())
                else CutOff()
            )
        if not arguments and not self.known(name):
            raise Fault("no tool is named")
        self._add(name, arguments)
        self._closed = True

    @staticmethod
    def _put(arguments: dict[str, Any], key: str, value: Any) -> None:
        if key in arguments:
            raise Fault(f"the parameter {key[:40]!a} stands twice")
        arguments[key] = value

    def _parameters(self, name: str) -> Mapping[str, Any]:
        own = name if name in self._catalog else self._loose.get(loose_name(name), "")
        return self._catalog.get(own, {})

    # --- tags ---------------------------------------------------------------------------------

    def _tags(self) -> Steps[None]:
        source = self._source
        self._tagged = True
        ahead = yield from source.ahead(len(_M3))
        if ahead == _M3:
            yield from self._elements()
            return
        if ahead.startswith("<|open|>call"):
            yield from self._kimi_k3()
            return
        tag = yield from self._tag()
        if tag is None or tag["tag"] not in ("function", "invoke"):
            raise Fault("a call is due after the mark")
        name, _ = _named_in(tag)
        end = f"</{tag['ns'] or ''}{tag['tag']}>"
        yield from source.space()
        if (yield from source.peek()) == "{":
            value, repairs = yield from self._arguments()
            self._add(name, value, *repairs)
            return
        arguments: dict[str, Any] = {}
        repairs = ()
        ending = literals(end)
        while not (yield from source.mark(ending)):
            tag = yield from self._tag()
            if tag is None or tag["tag"] not in ("parameter", "param"):
                there = yield from source.peek()
                raise Fault("a parameter is due") if there else CutOff()
            repairs += yield from self._parameter(tag, self._parameters(name), arguments)
            yield from source.space()
        self._add(name, arguments, *repairs)

    def _tag(self) -> Steps[re.Match[str] | None]:
        """The tag that stands here, taken; None where none does."""
        source = self._source
        if (yield from source.peek()) != "<":
            return None
        ahead = yield from source.tag(_MOST_TAG)
        found = _TAG.match(ahead)
        if found is None:
            if ">" not in ahead and len(ahead) < _MOST_TAG:
                raise CutOff
            return None
        source.step(found.end())
        return found

    def _parameter(
        self, tag: re.Match[str], parameters: Mapping[str, Any], arguments: dict[str, Any]
    ) -> Steps[tuple[str, ...]]:
        key, attributes = _named_in(tag)
        if tag["tag"] == "param" and (yield from self._source.mark(_CDATA)):
            text, _ = yield from self._source.until(_CDATA_END)
            yield from self._source.space()
            if not (yield from self._source.mark(_PARAM_END)):
                raise Fault("a parameter's end is due")
        else:
            text, _ = yield from self._source.until(literals(f"</{tag['ns'] or ''}{tag['tag']}>"))
            text = html.unescape(text) if tag["tag"] == "param" else text
        rest, repairs = text, tuple[str, ...]()
        if tag["bare"]:  # a closing tag may be missing before the next parameter
            rest, repairs = self._split(key, text, parameters, arguments)
            key = rest[0] if isinstance(rest, tuple) else key
            rest = rest[1] if isinstance(rest, tuple) else rest
        self._put(arguments, key, self._value(rest, key, attributes, parameters))
        return repairs

    def _split(
        self, key: str, text: str, parameters: Mapping[str, Any], arguments: dict[str, Any]
    ) -> tuple[Any, tuple[str, ...]]:
        """The parameters in ``text`` but the last, where their closing tags are missing."""
        properties = parameters.get("properties") or {}
        repairs: tuple[str, ...] = ()
        while found := _NEXT_PARAMETER.search(text):
            unknown = bool(self._catalog) and found[1] not in properties
            if unknown or found[1] in arguments or found[1] == key:
                break
            self._put(arguments, key, self._value(text[: found.start() + 1], key, {}, parameters))
            key, text, repairs = found[1], text[found.end() :], ("missing_closers",)
        return (key, text), repairs

    @staticmethod
    def _value(
        text: str, key: str, attributes: Mapping[str, str], parameters: Mapping[str, Any]
    ) -> Any:
        if text.startswith("\n"):  # each value stands on lines of its own
            text = text[1:].removesuffix("\n")
        elif text.startswith("\r\n"):
            text = text[2:].removesuffix("\r\n")
        match attributes.get("string"):
            case "true":
                return text
            case "false":
                return loads(text)
        return typed(text, parameters, key)

    def _kimi_k3(self) -> Steps[None]:
        source = self._source
        source.step(len("<|open|>call"))
        head, _ = yield from source.until(_SEP)
        name = _attributes(head).get("tool", "")
        arguments: dict[str, Any] = {}
        while not (yield from source.mark(_K3_CALL_END)):
            yield from source.space()
            if not (yield from source.mark(_K3_ARGUMENT)):
                raise Fault("an argument is due") if (yield from source.peek()) else CutOff()
            head, _ = yield from source.until(_SEP)
            attributes = _attributes(head)
            text, _ = yield from source.until(_K3_ARGUMENT_END)
            kind = attributes.get("type", "string")
            self._put(
                arguments, attributes.get("key", ""), text if kind == "string" else loads(text)
            )
            yield from source.space()
        self._add(html.unescape(name), arguments)

    def _elements(self) -> Steps[None]:
        """MiniMax M3: each parameter an element of its own name, nested ones in it."""
        source = self._source
        source.step(len(_M3))
        tag = yield from self._tag()
        if tag is None or tag["tag"] != "invoke":
            raise Fault("a call is due after the mark")
        name, _ = _named_in(tag)
        text, _ = yield from source.until(_M3_END)
        pieces = text.split(_M3)
        if pieces[0].strip():
            raise Fault("a parameter is due")
        self._add(name, elements(pieces[1:], self._parameters(name)))

    # --- one line, and messages with headers ----------------------------------------------------

    def _line_form(self) -> Steps[None]:
        """The forms whose mark may stand in prose: a name of the catalog must follow."""
        source = self._source
        match self._dialect.name:
            case "phi":
                source.put_back(len("functools"))
                yield from self._array()
                return
            case "functionary":
                yield from self._functionary()
                return
            case "pythonic":
                source.put_back(0)
                yield from self._ahead_is_known(1)
                yield from self._array()
                return
            case "gemma3":
                yield from source.space()
                if (yield from source.peek()) == "[":
                    yield from self._array()
                else:
                    yield from self._named()
                return
        yield from source.space(lines=False)
        char = yield from source.peek()
        if self._dialect.name == "react" and char in ("\n", "`"):
            yield from source.space()
            if (yield from source.mark(_FENCE)):
                yield from source.space()
                yield from self._call()
                return
        name = yield from source.match(_NAME, _MOST_NAME)
        if not self.known(name):
            raise Fault("no tool is named")
        self.begun = True
        if self._dialect.name == "call":
            if (yield from source.peek()) != "(":
                raise Fault("brackets are due")
            yield from self._python(name)
            return
        yield from self._react(name)

    def _functionary(self) -> Steps[None]:
        """A name on a line, its arguments on the next; more calls follow their mark."""
        source = self._source
        while True:
            name = yield from source.match(_NAME, _MOST_NAME)
            if not self.known(name) or (yield from source.ahead(2)) != "\n{":
                raise Fault("no tool is named")
            self.begun = True
            source.step()
            value, repairs = yield from self._arguments()
            self._add(name, value, *repairs)
            yield from source.space()
            if self._full or self.cut or not (yield from source.mark(_FUNCTIONARY)):
                return

    def _ahead_is_known(self, skip: int) -> Steps[None]:
        ahead = yield from self._source.ahead(_MOST_NAME + skip)
        found = _NAME.match(ahead[skip:].lstrip(lexis.WHITE))
        if found is None or not self.known(found[0]):
            raise Fault("no tool is named")
        self.begun = True

    def _react(self, name: str) -> Steps[None]:
        source = self._source
        yield from source.space()
        if not (yield from source.mark(_ACTION_INPUT)):
            raise Fault("'Action Input:' is due")
        yield from source.space()
        yield from source.mark(_FENCE)
        yield from source.space()
        if (yield from source.peek()) != "{":
            raise Fault("arguments are due")
        value, repairs = yield from self._arguments()
        self._add(name, value, *repairs)

    def _message(self) -> Steps[None]:
        """The header of a message, up to its text: a call where it is for a tool."""
        source = self._source
        begin = source.size if self.calls else 0  # of the header, its mark with it
        try:
            _, end = yield from source.until(_HEADER_END)
        except CutOff:
            self.begun = "to=functions." in "".join(source.taken)
            raise
        if end == "\n":
            raise Fault("a message is due after its header")
        head = "".join(source.taken)[begin:]
        to = re.search(r"\bto=([\w.$-]+)", head)
        channel = re.search(r"<\|channel\|>\s*(\w+)", head)
        self.end = source.size
        recipient = to[1] if to else ""
        self.header = MessageHeader(recipient, channel[1] if channel else "")
        if not recipient or recipient in ("user", "assistant"):
            return
        yield from source.space()
        if (yield from source.peek()) == "{":
            if not self._loose and not self.known(recipient):
                raise Fault("there are no tools")
            self.header = None
            self.begun = True
            value, repairs = yield from self._arguments()
            self._add(recipient.removeprefix("functions."), value, *repairs)


_FUNCTIONARY: Final = literals(">>>")
_PAIRED: Final = frozenset(dialect.open for dialect in DIALECTS if dialect.body == "pairs")
_KEY_TAG: Final = literals("<arg_key>", "<longcat_arg_key>")
_KEY_END: Final = literals("</arg_key>", "</longcat_arg_key>")
_VALUE_TAG: Final = literals("<arg_value>", "<longcat_arg_value>")
_VALUE_END: Final = literals("</arg_value>", "</longcat_arg_value>")
_CDATA: Final = literals("<![CDATA[")
_CDATA_END: Final = literals("]]>")
_PARAM_END: Final = literals("</param>")
_M3_END: Final = literals(_M3 + "</invoke>")
_K3_ARGUMENT: Final = literals("<|open|>argument")
_K3_ARGUMENT_END: Final = literals("<|close|>argument<|sep|>")
_K3_CALL_END: Final = literals("<|close|>call<|sep|>")
_ACTION_INPUT: Final = literals("Action Input:")
_NEXT_PARAMETER: Final = re.compile(r"\n<parameter=([^>\n]+)>")


def _unquoted(text: str) -> str:
    """``text`` without the quotes of JSON, which some write around every value."""
    try:
        value = loads(text) if text[:1] == text[-1:] == '"' else text
    except Unreadable:
        return text
    return value if isinstance(value, str) else text


def _attributes(text: str) -> dict[str, str]:
    found = _ATTRIBUTE.findall(text)
    return {key: html.unescape(double or single) for key, double, single in found}


def _named_in(tag: re.Match[str]) -> tuple[str, Mapping[str, str]]:
    if tag["bare"]:
        return tag["bare"].strip(), {}
    attributes = _attributes(tag["attributes"])
    return attributes.get("name", ""), attributes
