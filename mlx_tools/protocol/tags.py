"""Calls with arguments between tags, or as keys and values in turn.

One reader for all families. A tag is written ``<…>``, with or without a namespace, or between the
family's own marks. A parameter is named by an attribute, after ``=``, or by the tag itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mlx_tools.parsing import MAX_DEPTH, CutOff, Fault, Steps, TextSource, Unreadable, loads
from mlx_tools.protocol.catalog import ToolCatalog
from mlx_tools.protocol.dialects import DIALECTS, Dialect
from mlx_tools.protocol.tag_values import (
    read_as,
    typed_value,
    without_first_line_break,
    without_line_breaks,
)
from mlx_tools.schema import list_branches, possible_types, read_properties

_MAX_TAG_CHARS: Final = 500  # characters of a tag; descriptions of tools stand in none
_MAX_INDENT: Final = 100  # blanks before a mark that begins a line; a page is narrower
_NAME_END: Final = re.compile(r"[\w$.:/-]*+")
_ATTRIBUTE: Final = re.compile(r"([\w.-]+)=(?:\"([^\"]*)\"|'([^']*)')")
_ATTRIBUTES: Final = r"(?P<attributes>(?:\s+[\w.-]+=(?:\"[^\"]*\"|'[^']*'))*)"
_TAG: Final = re.compile(
    r"(?P<ns>[A-Za-z][\w.-]*:|[|｜]\w+[|｜])?(?P<tag>[A-Za-z_][\w.-]*+)"
    rf"(?:=(?P<bare>[^>\n]+)|{_ATTRIBUTES})\s*(?P<empty>/?)"
)
"""A tag without its brackets."""

_BRACKETS: Final = {one.brackets[0]: one.brackets[1:] for one in DIALECTS}
"""For each beginning of a tag: its end, and the beginning of its closing tag."""

TAG_STARTS: Final = "".join({opening[0] for opening in _BRACKETS})
_CALL_WORDS: Final = frozenset(("function", "invoke", "call", "tool"))
_ATTRIBUTES_OF_TAGS: Final = frozenset(("name", "key", "tool", "id", "index", "type", "string"))
_PARAMETERS: Final = frozenset(("parameter", "param", "argument", "arg"))
_NAMES: Final = frozenset(("tool_name", "name", "function_name", "function", "tool"))
_HOLDERS: Final = frozenset(("arguments", "parameters", "args", "input", "params"))
# Agents ask for these parameters beside a tool's own; no tool takes them.
_IGNORED: Final = frozenset(("server_name", "id", "tool_call_id", "thought"))
_LINE_BEGUN: Final = re.compile(r"\n[ \t]*+\Z")
_OPENED_KEY: Final = re.compile(r"(?:[\w.-]+=[\"'])?([^\"'<>=\s]+)")
"""After an opening mark: the key that it names, as an attribute or alone."""

PAIRS: Final = tuple(dict.fromkeys(one.inner[:4] for one in DIALECTS if one.body == "pairs"))
"""The marks around a key, then around a value, for each family with pairs."""

KEY_OPENS: Final = tuple(marks[0] for marks in PAIRS)


class TaggedArguments(NamedTuple):
    """A call that was read from tags; and True if a closing mark is missing in it."""

    name: str
    arguments: dict[str, Any]
    is_unclosed: bool


class _Tag(NamedTuple):
    """One opening tag: its name, the tool or key that it names, and how it is closed."""

    tag: str
    value_name: str
    attributes: Mapping[str, str]
    end: str
    begins: tuple[str, ...]  # the beginning of tags of this kind
    is_empty: bool
    prefix: str
    namespace: str


class TagReader:
    """Reads the calls of one family between tags, at the place of ``source``."""

    def __init__(self, source: TextSource, catalog: ToolCatalog, dialect: Dialect) -> None:
        self._source = source
        self._catalog = catalog
        wrapper = () if dialect.line else (dialect.open, dialect.close)
        self._wrapper = tuple(mark for mark in (*wrapper, *dialect.call) if mark)
        self._wrapper_ends = tuple(mark for mark in (dialect.close, *dialect.call[1:2]) if mark)
        self._name = ""  # of the tool
        self._arguments: dict[str, Any] = {}
        self._is_closed = True  # the last value has its closing mark
        self._is_unclosed = False  # some value has not
        self._whole: dict[str, Any] | None = None  # the arguments, if they are one object

    def call(self) -> Steps[TaggedArguments | str]:
        """Read the call whose tag begins here.

        If an object of arguments follows, only the tag is read, and the name is returned.
        """
        tag = yield from self._tag("a call is due after the mark")
        self._name = tag.value_name
        own_name = "" if tag.value_name else self._catalog.find(tag.tag)
        is_call = not _CALL_WORDS.isdisjoint(tag.tag.split("_"))
        if own_name and not (is_call and self._catalog.knows_all):
            self._name = own_name
        elif not is_call:
            raise Fault("no tool is named")
        self._take_attributes(tag)
        # Only MiniMax M3 writes lists and objects as elements, so only there a value is a tree.
        if tag.prefix:
            found = yield from self._element(tag, self._catalog.parameters(self._name))
            if not isinstance(found, dict):
                raise Fault("a parameter is due")
            self._arguments = found
        elif not tag.is_empty:
            yield from self._source.space()
            if self._name and (yield from self._source.peek()) == "{":
                return self._name
            yield from self._members(tag)
        if not self._name:
            raise Fault("name: required")
        arguments = self._arguments if self._whole is None else self._whole
        return TaggedArguments(self._name, arguments, self._is_unclosed)

    def _take_attributes(self, tag: _Tag) -> None:
        """Take the parameters that are attributes in a call's tag."""
        for key in tag.attributes.keys() - _ATTRIBUTES_OF_TAGS:
            if self._catalog.knows_all or self._has(key):
                self._add_argument(key, self._typed_value(tag.attributes[key], key, {}))
            # In an element named as the tool is, each attribute is a parameter.
            elif tag.tag == self._name:
                raise Fault("a parameter is due")

    def _members(self, call: _Tag) -> Steps[None]:
        """Read the content of a call's tag, up to its end."""
        while not (yield from self._source.mark(call.end)):
            ends = [mark for mark in self._wrapper_ends if mark != call.end]
            if ends and (yield from self._source.peek_mark(*ends)):
                self._is_unclosed = True  # the end mark of all calls is in place of this call's
                break
            yield from self._member(call)
            yield from self._source.space()

    def _member(self, call: _Tag) -> Steps[None]:
        tag = yield from self._tag("a parameter is due")
        key = tag.value_name
        if tag.namespace != call.namespace:
            raise Fault("a parameter is due")
        if tag.tag in _PARAMETERS and key:
            yield from self._parameter(tag, key, call)
        elif key or tag.attributes:
            raise Fault("a parameter is due")
        elif not self._name and tag.tag in _NAMES:
            text, _ = yield from self._source.read_until(tag.end)
            self._name = text.strip()
        elif tag.tag in _HOLDERS and not self._has(tag.tag):
            yield from self._holder(tag)
        elif tag.tag in _IGNORED and not self._has(tag.tag):
            yield from self._source.read_until(tag.end)
        elif self._catalog.knows_all or self._has(tag.tag):
            yield from self._parameter(tag, tag.tag, call)
        else:
            raise Fault("a parameter is due")

    def _holder(self, tag: _Tag) -> Steps[None]:
        """Read an element that holds all arguments: as one object, or an element each."""
        yield from self._source.space()
        if (yield from self._source.peek()) == "{":
            self._whole, _ = yield from self._source.json_object()
            yield from self._source.space()
            if not (yield from self._source.mark(tag.end)):
                raise Fault("the end of the arguments is due")
            return
        while not (yield from self._source.mark(tag.end)):
            member = yield from self._tag("a parameter is due")
            yield from self._parameter(member, member.value_name or member.tag, tag)
            yield from self._source.space()

    def _parameter(self, tag: _Tag, key: str, call: _Tag) -> Steps[None]:
        self._check_key(key)
        # MiniCPM writes real XML, with CDATA and entities; in all other families text is as it is.
        if tag.tag == "param" and (yield from self._source.mark("<![CDATA[")):
            text, _ = yield from self._source.read_until("]]>")
            yield from self._source.space()
            if not (yield from self._source.mark(tag.end)):
                raise Fault("a parameter's end is due")
            self._is_closed = True
        else:
            others = (
                # Tags that are named as parameters are known by the schema alone; others all begin
                # alike.
                (*call.begins, call.end) if tag.value_name else (call.end, *self._own_tags(tag.end))
            )
            text = yield from self._value(tag.end, tag.begins if tag.value_name else (), others)
        if tag.tag == "param" and ("CDATA[" in text or "]]>" in text):
            raise Fault("a value's end is due")
        text = _unescape(text) if tag.tag == "param" else text
        self._add_argument(key, self._typed_value(text, key, tag.attributes))

    def _own_tags(self, end: str) -> Iterator[str]:
        """Return the tags that are named as parameters of the tool, other than ``end``."""
        keys = read_properties(self._catalog.parameters(self._name))
        return (tag for key in keys for tag in (f"<{key}>", f"</{key}>") if tag != end)

    def _typed_value(self, text: str, key: str, attributes: Mapping[str, str]) -> Any:
        is_text = attributes.get("string"), attributes.get("type")
        if is_text[0] == "true" or is_text[1] == "string":
            return text
        if is_text[0] == "false" or is_text[1]:
            return loads(text)
        return typed_value(text, self._catalog.parameters(self._name), key)

    def _tag(self, due: str) -> Steps[_Tag]:
        """Take the tag that comes next and return it."""
        source, begin = self._source, self._source.pos
        if not (opening := (yield from source.mark(*_BRACKETS))):
            rest = yield from source.lookahead(max(map(len, _BRACKETS)))
            raise CutOff if any(one.startswith(rest) for one in _BRACKETS) else Fault(due)
        end, closing = _BRACKETS[opening]
        ahead = yield from source.tag(_MAX_TAG_CHARS, end)
        found = _TAG.fullmatch(ahead.removesuffix(end)) if ahead.endswith(end) else None
        if found is None:
            source.pos = begin
            raise Fault(due) if ahead.endswith(end) or len(ahead) >= _MAX_TAG_CHARS else CutOff
        source.pos += len(ahead)
        attributes = _attributes(found["attributes"] or "")
        if end != ">" and "key" in attributes:
            # such families mark the values that are no text
            attributes.setdefault("type", "string")
        ns, tag = found["ns"] or "", found["tag"]
        named = attributes.get("name") or attributes.get("key") or attributes.get("tool", "")
        named = (found["bare"] or named).strip()
        named = named.strip("\"'") if found["bare"] else named
        head = f"{opening}{ns}{tag}"
        return _Tag(
            tag,
            value_name=named,
            attributes=attributes,
            end=f"{closing}{ns}{tag}{end}",
            begins=(f"{head}=", f"{head} "),
            is_empty=bool(found["empty"]),
            prefix=opening.removesuffix("<") if end == ">" else "",
            namespace=ns or opening,
        )

    def _element(self, tag: _Tag, schema: Any, depth: int = 0) -> Steps[Any]:
        """Read the value of an element: text, or more elements, one for each key or item."""
        source, ways = self._source, []
        if isinstance(schema, Mapping):
            ways = [way for way in (schema, *list_branches(schema)) if isinstance(way, Mapping)]
        damaged_end = f"{tag.end[:-1]}{tag.prefix}"  # without its last character
        text, mark = yield from source.read_until(tag.end, damaged_end, f"{tag.prefix}<")
        source.pos -= len(mark)
        if mark in (tag.end, damaged_end) and (depth or text.strip()):
            source.pos += len(tag.end) - (mark == damaged_end)
            kinds = frozenset(kind for way in ways for kind in possible_types(way, way))
            return read_as(without_line_breaks(text), kinds)
        if text.strip() or depth > MAX_DEPTH:
            raise Fault("a parameter is due")
        lists = [way for way in ways if depth and way.get("type") == "array"]
        objects = [way for way in ways if read_properties(way)]
        members: dict[str, Any] = {}
        items: list[Any] = []
        while not (yield from source.mark(tag.end)):
            child = yield from self._tag("tags do not match")
            is_item = child.tag == "item" and bool(lists or (depth and not objects))
            part = read_properties(objects[0]).get(child.tag) if objects else None
            part = lists[0].get("items") if is_item and lists else part
            value = yield from self._element(child, part, depth + 1)
            if child.tag in members or (members and is_item) or (items and not is_item):
                raise Fault(f"the parameter {child.tag[:40]!a} stands twice, or is no item")
            if is_item:
                items.append(value)
            else:
                members[child.tag] = value
            yield from source.space()
        return items or members

    # --- keys and values in turn --------------------------------------------------------------

    def pairs(self, name: str, key_open: str) -> Steps[TaggedArguments]:
        """Read the arguments of a call whose first key's opening mark was taken.

        If ``key_open`` is empty, no mark was taken.
        """
        source, self._name = self._source, name
        marks = next((one for one in PAIRS if one[0] == key_open), ())
        begun = bool(key_open)
        while begun or (key_open := (yield from source.mark(*KEY_OPENS))):
            marks = next(one for one in PAIRS if one[0] == key_open)
            yield from self._pair(marks)
            begun = False
            yield from source.space()
        return TaggedArguments(name, self._arguments, self._is_unclosed)

    def _pair(self, marks: Sequence[str]) -> Steps[None]:
        source = self._source
        key_open, key_close, value_open, value_close = marks
        ends = [mark for mark in (key_close, value_open) if mark]
        key, mark = yield from source.read_until(*ends)
        key = key.strip()
        # A key is one word: with a tag or a line break in it, its end mark is missing.
        if not key or "<" in key or "\n" in key:
            raise Fault("a key's end is due")
        lacks_end = bool(key_close) and mark == value_open
        self._check_key(key, is_closed=self._is_closed and not lacks_end)
        self._is_unclosed = self._is_unclosed or lacks_end
        if mark != value_open:
            yield from source.space()
            if not (yield from source.mark(value_open)):
                raise Fault("a value is due after its key")
        others = tuple(filter(None, (key_close, value_open, "<tool_call>", "</tool_call>")))
        text = yield from self._value(value_close, (key_open,), others)
        value = typed_value(text, self._catalog.parameters(self._name), key)
        self._add_argument(key, _unquoted(value) if isinstance(value, str) else value)

    # --- values -------------------------------------------------------------------------------

    def _value(self, end: str, keys: tuple[str, ...], other_marks: tuple[str, ...]) -> Steps[str]:
        """Return the text of a value, without a line break at each end.

        It ends at its own closing mark ``end``. It also ends before any mark of its family that
        begins a line or is spelt like a control token. A mark within a line is text if the value's
        own mark follows, unless the mark opens a key that may follow here.
        """
        source, begin, is_marked = self._source, self._source.pos, False
        self._is_closed = False
        while True:
            _, mark = yield from source.read_until(end, *keys, *other_marks, *self._wrapper)
            at = source.pos - len(mark)
            if mark == end:
                self._is_closed = True
                return without_line_breaks(source.text[begin:at])
            line = _LINE_BEGUN.search(source.text, max(begin, at - _MAX_INDENT), at)
            if line or any(char in mark for char in "|｜"):
                if is_marked:
                    raise Fault("a value's end is due")
                source.pos = at
                self._is_unclosed = True
                value_end = line.start() if line else at  # the line break is not part of the value
                value = without_first_line_break(source.text[begin:value_end]).removesuffix("\r")
                if _ends_damaged(value, end):
                    raise Fault("a value's end is damaged")
                return value
            if mark in keys:
                opened = _OPENED_KEY.match((yield from source.tag(_MAX_TAG_CHARS)))
                if opened is not None and self._may_follow(opened[1]):
                    raise Fault(f"the end of a value is due before the key {opened[1][:40]!a}")
            is_marked = True

    def _may_follow(self, key: str) -> bool:
        return key not in self._arguments and self._has(key)

    def _has(self, key: str) -> bool:
        return self._catalog.has_parameter(self._name, key)

    def _check_key(self, key: str, *, is_closed: bool | None = None) -> None:
        """Raise if the value before an unknown key lacks its end."""
        is_closed = self._is_closed if is_closed is None else is_closed
        # An unknown key right after such a value is more likely a part of it, as in a page of XML.
        if not is_closed and not self._catalog.knows_all and not self._has(key):
            raise Fault("a value's end is due")

    def _add_argument(self, key: str, value: Any) -> None:
        if key in self._arguments:
            raise Fault(f"the parameter {key[:40]!a} stands twice")
        self._arguments[key] = value


def _ends_damaged(value: str, end: str) -> bool:
    """Return whether a value ends in its closing mark with a character missing."""
    tail = value.rstrip()[-len(end) :]
    return any(tail.endswith(end[:at] + end[at + 1 :]) for at in range(len(end)))


def _unquoted(text: str) -> str:
    """Return ``text`` without JSON's quotes, which some write around every value."""
    try:
        value = loads(text) if text[:1] == text[-1:] == '"' else text
    except Unreadable:
        return text
    return value if isinstance(value, str) else text


def _attributes(text: str) -> dict[str, str]:
    found = _ATTRIBUTE.findall(text)
    return {key: _unescape(double or single) for key, double, single in found}


def _unescape(text: str) -> str:
    if "&" not in text:
        return text
    import html  # imported late: it has a table of two thousand names, and calls rarely have one

    return html.unescape(text)
