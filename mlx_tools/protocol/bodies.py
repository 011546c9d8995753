"""The readers of what stands between a dialect's marks (reading rule 8a).

What comes next in the text decides which reader goes on, not the mark alone, for models mix the
forms that they have seen: an object or an array is JSON, a tag is XML, a name is followed by an
object, by brackets, or by keys and values in turn.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

from mlx_tools.messages import ToolCall
from mlx_tools.protocol.dialects import DIALECTS, Dialect
from mlx_tools.protocol.literals import elements, keywords, literal_object, typed
from mlx_tools.protocol.objects import object_call
from mlx_tools.protocol.scan import HEADS
from mlx_tools.protocol.source import CutOff, Fault, Steps, TextSource
from mlx_tools.protocol.strict import Unreadable, encodable, loads, loose_name

Catalog = Mapping[str, Mapping[str, Any]]
_Object = tuple[dict[str, Any], tuple[str, ...]]

MOST_PROSE: Final = 200
"""Characters of prose that may stand between two calls with the same mark."""

MOST_NAME: Final = 200
_MOST_TAG: Final = 500

NAME: Final = re.compile(r"[\w$][\w$./-]*+")
_DIGITS: Final = re.compile(r"[0-9]++")
_WORD: Final = re.compile(r"[A-Za-z0-9_-]++")
_CALL_BEGINS: Final = re.compile(r"<\|tool_call_begin\|>|<｜tool▁call▁begin｜>|\[{|\n")
_TAG: Final = re.compile(
    r"<(?P<ns>[A-Za-z][\w.-]*:|｜DSML｜)?(?P<tag>function|invoke|parameter|param)"
    r"(?:=(?P<bare>[^>\n]+)|(?P<attributes>(?:\s+[\w.-]+=(?:\"[^\"]*\"|'[^']*'))+))\s*/?>"
)
_ATTRIBUTE: Final = re.compile(r"([\w.-]+)=(?:\"([^\"]*)\"|'([^']*)')")
_NEXT_PARAMETER: Final = re.compile(r"\n<parameter=([^>\n]+)>")

TAG_OPENS: Final = frozenset(("<function=", "<function name="))
"""Marks that are the beginning of a call's own tag."""

_PAIRED: Final = frozenset(dialect.open for dialect in DIALECTS if dialect.body == "pairs")

FENCES: Final = "```json", "```tool_code", "```"
OPENING: Final = (
    *(
        dialect.open
        for dialect in DIALECTS
        if not dialect.line and dialect.open not in TAG_OPENS and dialect.name != "harmony"
    ),
    *("<|plugin|>", "<｜tool▁call▁begin｜>", "<|tool_call_begin|>", "<｜tool_call_begin｜>"),
)
_CLOSES: Final = tuple({dialect.close: 0 for dialect in DIALECTS if len(dialect.close) > 1})
CLOSING: Final = (
    *(*_CLOSES, "</tool_calls>", "<｜tool▁call▁end｜>", "<|tool_call_end|>", "<｜tool_call_end｜>"),
)
_ARGUMENTS: Final = (
    *("[ARGS]", "[CALL_ID]", "<|tool_call_argument_begin|>", "<｜tool▁sep｜>", "Action Input:"),
    *("<tool_sep>", "<arg_key>", "<longcat_arg_key>"),
)
_M3: Final = "]<]minimax[>["


class Bodies:
    """Reads calls in whatever form they stand.

    ``begin`` is where the text of them begins. ``calls`` are those that were read, each up to its
    place in ``ends``; ``end`` is that of the last, closing marks included. ``cut`` says that the
    text ended within a call. ``begun``: a tool was named where a call may stand. ``tagged``: values
    stood between tags, so that a schema gave them their types. ``typed``: an object says itself
    that it is a call of the protocol's.
    """

    def __init__(
        self, source: TextSource, dialect: Dialect, catalog: Catalog, most: int | None = None
    ) -> None:
        self.source = source
        self.begin = self.end = source.pos
        self.calls: list[ToolCall] = []
        self.ends: list[int] = []
        self.cut: CutOff | None = None
        self.begun = self.tagged = self.typed = False
        self.dropped: list[str] = []
        self._dialect = dialect
        self._catalog = catalog
        self._loose = {loose_name(name): name for name in catalog}
        self._most = most
        self._closed = False
        self._junk = False
        self._one_array = False  # the family writes all its calls in one array or object

    def known(self, name: str) -> bool:
        """Return whether the catalog has a tool of this name, case and separators aside."""
        return loose_name(name) in self._loose

    def _add(self, name: str, arguments: Any, *repairs: str, call_id: str | None = None) -> None:
        if not isinstance(arguments, Mapping):
            raise Fault("arguments: an object")
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
                (yield from self.source.mark(*OPENING)) or (yield from self.source.mark(*FENCES))
            ):
                break
        char = yield from self.source.peek()
        if not char:
            raise CutOff
        if char in "{[":
            self._one_array = self._dialect.name == "mistral"
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
        try:
            value, repairs = yield from self._json()
        except Fault as fault:
            if self._dialect.form != "any" or not self.calls:
                raise
            yield from self._skip_line(fault)
            return
        cut, self.cut = self.cut, None  # it counts only if the object is a call
        keyed = not self._dialect.name_key
        if keyed and len(value) == 1 and isinstance(arguments := next(iter(value.values())), dict):
            self._add(next(iter(value)), arguments, *repairs)
            self.cut = cut
            return
        call, dropped = object_call(value, repairs)
        if call is None:
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
        if NAME.match(char):
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
            name = yield from self.source.match(NAME, MOST_NAME)
            if not name or (yield from self.source.peek()) != "(":
                raise Fault("a call is due in the brackets")
            yield from self._python(name)
            if (yield from self._more()) != ",":
                return

    def _python(self, name: str) -> Steps[None]:
        """The brackets after a name, and what stands in them."""
        if self._dialect.line and not self.known(name):
            raise Fault("no tool is named")
        self.begun = True
        text = yield from self.source.bracketed("'\"")
        inside = text[1:-1].strip()
        if self._dialect.open == "<|python_tag|>":
            name = name.removesuffix(".call")
        if not (inside.startswith("{") and self._dialect.line):
            self._add(name, keywords(inside))
            return
        try:
            value = loads(inside)
        except Unreadable:
            value = literal_object(inside)
        self._add(name, value)

    # --- a name first -------------------------------------------------------------------------

    def _named(self) -> Steps[None]:
        name = yield from self.source.match(NAME, MOST_NAME)
        if not name:
            raise Fault("a call is due after the mark")
        char = yield from self.source.peek()
        if char == ":":
            self.source.pos += 1
            if name == "call":
                yield from self.source.space(lines=False)
                name = yield from self.source.match(NAME, MOST_NAME)
                char = yield from self.source.peek()
            else:
                yield from self.source.match(_DIGITS, 12)
                name = name.removeprefix("functions.")
        if char == "(":
            yield from self._python(name)
        elif char == "{" and self._dialect.body == "literal":
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
                name = yield from self.source.match(NAME, MOST_NAME)
        if mark.endswith("arg_key>") or mark == "<tool_sep>":
            yield from self._pairs(name, begun=mark != "<tool_sep>")
            return
        char = yield from self._past_fence()
        if char == "{":
            yield from self._json_arguments(name)
        elif not mark and char == "<" and self._dialect.open in _PAIRED:
            yield from self._pairs(name, begun=False)
        elif char and not mark and not self.calls:
            yield from self._after_noise()
        else:
            yield from self._fail("arguments are due")

    def _past_fence(self) -> Steps[str]:
        """The next character, white space and an opening fence aside."""
        yield from self.source.space()
        yield from self.source.mark(*FENCES)
        yield from self.source.space()
        return (yield from self.source.peek())

    def _after_noise(self) -> Steps[None]:
        """Words stand between the mark and the call: they are dropped, and the call repaired."""
        self._junk = True
        found = _CALL_BEGINS.search((yield from self.source.ahead(MOST_PROSE)))
        if found is None or found[0] == "\n":
            raise Fault("a call is due after the mark")
        self.source.pos += found.start()
        yield from self._call()

    def _pairs(self, name: str, *, begun: bool) -> Steps[None]:
        """Keys and values in turn; ``begun``: the first key's tag is taken."""
        arguments = dict[str, Any]()
        self.tagged = True
        parameters = self._parameters(name)
        while True:
            yield from self.source.space()
            if not begun and not (yield from self.source.mark("<arg_key>", "<longcat_arg_key>")):
                break
            begun = False
            key, _ = yield from self.source.until("</arg_key>", "</longcat_arg_key>")
            yield from self.source.space()
            if not (yield from self.source.mark("<arg_value>", "<longcat_arg_value>")):
                raise Fault("a value is due after its key")
            text, _ = yield from self.source.until("</arg_value>", "</longcat_arg_value>")
            value = typed(text, parameters, key.strip())
            _put(arguments, key.strip(), _unquoted(value) if isinstance(value, str) else value)
        if not (yield from self.source.mark(*CLOSING)):
            yield from self._fail("a key or the end of the call is due")
        if not arguments and not self.known(name):
            raise Fault("no tool is named")
        self._add(name, arguments)
        self._closed = True

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
        arguments, repairs = dict[str, Any](), tuple[str, ...]()
        while not (yield from self.source.mark(_end_of(tag))):
            repairs += yield from self._parameter(self._parameters(name), arguments)
            yield from self.source.space()
        self._add(name, arguments, *repairs)

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
        self, parameters: Mapping[str, Any], arguments: dict[str, Any]
    ) -> Steps[tuple[str, ...]]:
        tag, key, attributes = yield from self._tag("a parameter is due", "parameter", "param")
        if tag["tag"] == "param" and (yield from self.source.mark("<![CDATA[")):
            text, _ = yield from self.source.until("]]>")
            yield from self.source.space()
            if not (yield from self.source.mark("</param>")):
                raise Fault("a parameter's end is due")
        else:
            text, _ = yield from self.source.until(_end_of(tag))
            text = html.unescape(text) if tag["tag"] == "param" else text
        repairs: tuple[str, ...] = ()
        properties = parameters.get("properties") or {}
        while tag["bare"] and (found := _NEXT_PARAMETER.search(text)):
            # A closing tag may be missing before the next parameter.
            unknown = bool(self._catalog) and found[1] not in properties
            if unknown or found[1] in arguments or found[1] == key:
                break
            _put(arguments, key, _value(text[: found.start() + 1], key, attributes, parameters))
            key, text, repairs = found[1], text[found.end() :], ("missing_closers",)
        _put(arguments, key, _value(text, key, attributes, parameters))
        return repairs

    def _kimi_k3(self) -> Steps[None]:
        self.source.pos += len("<|open|>call")
        head, _ = yield from self.source.until("<|sep|>")
        arguments: dict[str, Any] = {}
        while not (yield from self.source.mark("<|close|>call<|sep|>")):
            yield from self.source.space()
            if not (yield from self.source.mark("<|open|>argument")):
                yield from self._fail("an argument is due")
            attributes = _attributes((yield from self.source.until("<|sep|>"))[0])
            text, _ = yield from self.source.until("<|close|>argument<|sep|>")
            is_text = attributes.get("type", "string") == "string"
            _put(arguments, attributes.get("key", ""), text if is_text else loads(text))
            yield from self.source.space()
        self._add(html.unescape(_attributes(head).get("tool", "")), arguments)

    def _elements(self) -> Steps[None]:
        """MiniMax M3: each parameter an element of its own name, nested ones in it."""
        self.source.pos += len(_M3)
        _, name, _ = yield from self._tag("a call is due after the mark", "invoke")
        text, _ = yield from self.source.until(f"{_M3}</invoke>")
        before, *pieces = text.split(_M3)
        if before.strip():
            raise Fault("a parameter is due")
        self._add(name, elements(pieces, self._parameters(name)))


def _put(arguments: dict[str, Any], key: str, value: Any) -> None:
    if key in arguments:
        raise Fault(f"the parameter {key[:40]!a} stands twice")
    arguments[key] = value


def _value(
    text: str, key: str, attributes: Mapping[str, str], parameters: Mapping[str, Any]
) -> Any:
    for newline in ("\n", "\r\n"):
        if text.startswith(newline):  # each value stands on lines of its own
            text = text.removeprefix(newline).removesuffix(newline)
            break
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


def _end_of(tag: re.Match[str]) -> str:
    return f"</{tag['ns'] or ''}{tag['tag']}>"


def _attributes(text: str) -> dict[str, str]:
    found = _ATTRIBUTE.findall(text)
    return {key: html.unescape(double or single) for key, double, single in found}
