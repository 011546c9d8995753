"""What looks like a call and was read by no rule: the general net (reading rules 8a and 8b).

It looks for a tool's name beside what only calls have: arguments that this tool could take, a mark
spelt like a control token, an element that is named for calls. So it knows no family.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mlx_tools.protocol.catalog import ToolCatalog
from mlx_tools.protocol.delimiters import CONTROL_TOKEN, any_of
from mlx_tools.protocol.dialects import DIALECTS
from mlx_tools.protocol.judging import Candidate, Extent, outcome
from mlx_tools.protocol.objects import arguments_of, object_calls
from mlx_tools.protocol.scan import CLOSED, ObjectScanner
from mlx_tools.protocol.strict import Unreadable

_REREADS: Final = 4
"""So many times its length is read of a text at most, where what begins like objects is none."""

_NEAR: Final = 40  # characters between a control token and a tool's name, as rule 8a has it
LONG_NAME: Final = 6  # a name of so many characters is found within a word as well
_MOST_LINE: Final = 200  # characters before an object that are looked at for a line's beginning

_MARK_WORDS: Final = r"(?:tool|function|call|python|action|message|channel|recipient|plugin)"
_MARKS: Final = (
    CONTROL_TOKEN,
    re.compile(
        rf"[|｜][\w▁:]{{0,40}}{_MARK_WORDS}|{_MARK_WORDS}[\w▁:]{{0,40}}[|｜]", re.IGNORECASE
    ),
    re.compile(r"<[\w:]{0,40}(?:tool_?call|function_?call|invoke)|(?:tool|function)_?calls?>"),
    re.compile(r"</?[\w:|｜]{0,40}(?:parameter|param|arg_key|arg_value|argument)[ =>]"),
    any_of(
        [mark for one in DIALECTS for mark in (*one.inner, *one.call) if mark[:1] in ("<", "[")]
    ),
)
"""Marks of calls, whole or damaged."""

_BETWEEN: Final = (
    r"(?:[^A-Za-z{]|ARGS|json|arguments?|args|params|parameters|input|action|tool|function|code|"
    r"commentary|content|constrain|message|call|name|sep|id|call_id)"
)
_NAME_BEFORE: Final = re.compile(
    rf"(?<![\w.$-])(?<!new )(?<!= )(?<!await )(?<!return )(?:function)?"
    rf"(?P<name>[A-Za-z_$][\w$.-]*){_BETWEEN}{{0,24}}\Z",
    re.IGNORECASE,
)
_KEYS: Final = r"[\"']?(?:name|tool|tool_name|function|action)[\"']?\s*:\s*[\"']"
_CALL_KEY: Final = re.compile(r"[\"'](?:tool_calls|tool_use|arguments|parameters|args|\w*input)\b")
_NAME_KEY: Final = re.compile(
    rf"^[ \t]*[\[{{\"'][^\n]*?{_KEYS}(?P<name>[\w.$-]+)[\"']\s*,\s*"
    r"[\"']?(?:arguments|parameters|args|input)[\"']?\s*:",
    re.MULTILINE,
)
_ELEMENT: Final = re.compile(
    r"<(?P<tag>[\w:.|｜-]{0,40}(?:tool|call|invoke|function)[\w:.|｜-]{0,40})"
    r"(?:[\s=]+(?:[\w.-]+=)?[\"']?(?P<name>[\w.$-]+)[\"']?[^<>\n]{0,200})?>"
    r"(?:[\s>]*(?:<[\w:|-]+>\s*)?[\"']?(?P<first>[\w.$-]+))?",
    re.IGNORECASE,
)
_ATTRIBUTE: Final = re.compile(
    rf"{_MARK_WORDS}\s+(?:tool|name)=[\"'](?P<name>[\w.$-]+)", re.IGNORECASE
)
_CHILD: Final = re.compile(r"<(?P<tag>[\w.-]+)>\s*<?(?P<child>[\w.-]+)>|</(?P<end>[\w.-]+)>")
_NAME_LINE: Final = re.compile(
    r"^[ \t]*(?P<name>[\w.$-]+)[ \t]*\n[ \t]*(?P<key>[\w.$-]+)[ \t]*$", re.M
)
_HEADER: Final = re.compile(
    r"(?:^|[.!?。:])[ \t]{0,8}(?:Action|Tool|Tool Name|Tool Call|Function|Call):"
    r"[ \t]*(?P<name>[\w.$-]+)"
    r"[ \t]*(?:\(?\{|\(\w+=|\n[ \t]*(?:[A-Z]\w+ )?(?:Input|Arguments|Parameters):)",
    re.MULTILINE | re.IGNORECASE,
)


class CallLikeText:
    """A text, ``said`` with blanks for what is quoted in it, that may look like a call."""

    def __init__(self, text: str, said: str, catalog: ToolCatalog) -> None:
        self._text = text
        self._said = said
        self._catalog = catalog
        self._names = catalog.pattern(LONG_NAME)
        self._left = _REREADS * len(text)

    def reason(self) -> str:
        """Return why the text looks like a call; empty where it does not."""
        return next(filter(None, self._reasons()), "")

    def _reasons(self) -> Iterator[str]:
        for found in (*_NAME_KEY.finditer(self._said), *_HEADER.finditer(self._said)):
            if self._catalog.find(found["name"]):
                yield "a call that names a tool cannot be read"
        yield from self._objects()
        if self._is_marked():
            yield "the text looks like a call, and is none"

    # --- objects ------------------------------------------------------------------------------

    def _objects(self) -> Iterator[str]:
        """Why each object, wherever it stands, looks like a call."""
        pos, said = self._said.find("{"), self._said
        while pos >= 0 and self._left > 0:
            value, end = self._object_at(pos)
            line = said.rfind("\n", max(0, pos - _MOST_LINE), pos) + 1
            before = said[line:pos].strip(" \t[-*0123456789.)")
            begins = not before and pos - line < _MOST_LINE
            if value is None:
                ahead = said[pos : pos + _MOST_LINE]
                if begins and _CALL_KEY.search(ahead) and self._names.search(ahead):
                    yield "an object that names a tool cannot be read"
            elif self._is_call(value, pos, "line" if begins else "inline"):
                yield "the text looks like a call, and is none"
            pos = said.find("{", max(end if value is not None else pos + 1, pos + 1))

    def _object_at(self, begin: int) -> tuple[dict[str, Any] | None, int]:
        """The object whose brace stands there, None if it cannot be read, and its end."""
        scanner = ObjectScanner(begin)
        scanner.advance(self._text)
        self._left -= scanner.pos - begin
        try:
            if scanner.status != CLOSED or scanner.bad_reason:
                raise Unreadable(scanner.reason)
            return scanner.read(self._text)[0], scanner.pos
        except Unreadable:
            return None, scanner.pos

    def _is_call(self, value: Mapping[str, Any], pos: int, extent: Extent) -> bool:
        """Return whether an object is a call, holds one, or stands behind a tool's name."""
        for call, _ in object_calls(value):
            has_arguments = "missing_arguments" not in call.repairs
            fits = self._catalog.fits(call.name, call.arguments)
            names = bool(self._catalog.find(call.name))
            if has_arguments and outcome(Candidate("json", names, fits, extent), "said") != "text":
                return True
        if self._said[pos - 1 : pos] == "[" and any(self._fits(k, v) for k, v in value.items()):
            return True  # keyed by the tool's name
        if any(names_and_fits(self._catalog, one) for one in _objects_in(value)):
            return True
        before = _NAME_BEFORE.search(self._said, max(0, pos - 100), pos)
        return before is not None and self._fits(before["name"], value)

    def _fits(self, name: str, value: Any) -> bool:
        is_object = isinstance(value, Mapping) and bool(value)
        return is_object and self._catalog.fits_closely(name, value)

    # --- marks --------------------------------------------------------------------------------

    def _is_marked(self) -> bool:
        """Return whether a mark that no rule reads stands near a tool's name."""
        said, names = self._said, self._names
        for mark in _MARKS:
            for found in mark.finditer(said):
                if names.search(said, max(0, found.start() - _NEAR), found.end() + _NEAR):
                    return True
        for found in (*_ELEMENT.finditer(said), *_ATTRIBUTE.finditer(said)):
            if any(self._catalog.find(name) for name in found.groupdict().values() if name):
                return True
        children, ends = set[str](), set[str]()
        for found in _CHILD.finditer(said):
            name = self._catalog.find(found["tag"] or "")
            if name and self._catalog.has_parameter(name, found["child"]):
                return True
            (ends if found["end"] else children).add(found["end"] or found["child"])
        if any(self._catalog.has_parameter(end, key) for end in ends for key in ends & self._keys):
            return True
        return any(
            self._catalog.has_parameter(found["name"], found["key"])
            for found in _NAME_LINE.finditer(said)
        )

    @property
    def _keys(self) -> frozenset[str]:
        return self._catalog.all_parameters


def _objects_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a value, itself among them."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping):
            yield item
            todo += item.values()
        elif isinstance(item, list):
            todo += item


def names_and_fits(catalog: ToolCatalog, value: Mapping[str, Any]) -> bool:
    """Return whether an object names a tool, under whatever key, and holds its arguments: under
    another key, beside the name, or under the name itself."""
    for key, named in value.items():
        if not isinstance(named, str) or not catalog.find(named):
            continue
        rest = {k: item for k, item in value.items() if k not in (key, "type", "id")}
        held = [rest, *(arguments_of(item)[0] for item in rest.values())]
        if any(one and catalog.fits_closely(named, one) for one in held):
            return True
    return False
