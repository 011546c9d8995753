"""Text that looks like a call but that no rule reads (reading rules 8a and 8b).

A tool's name is not enough. Next to it must be something that only calls have: arguments that this
tool could take, a mark spelt like a control token, or an element named for calls. So no family of
models has to be known.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from mlx_tools.parsing import (
    CutOff,
    Fault,
    TextSource,
    Unreadable,
    find_objects,
    finished,
    iter_values,
    keywords,
    match_any,
)
from mlx_tools.protocol.catalog import ToolCatalog
from mlx_tools.protocol.delimiters import CONTROL_TOKEN
from mlx_tools.protocol.dialects import DIALECTS, STRING_MARKS
from mlx_tools.protocol.judging import Candidate, Extent, outcome
from mlx_tools.protocol.objects import NAME_KEYS, object_calls, read_arguments
from mlx_tools.schema import read_properties

BESIDE_TEXT: Final = "a call beside text is no call"
_MAX_NAME_OFFSET: Final = (
    40  # characters between a control token and a tool's name, as rule 8a has it
)
_MAX_LINE_CHARS: Final = (
    200  # characters before an object in which its line's beginning is looked for
)

_MARK_WORDS: Final = r"(?:tool|function|call|python|action|message|channel|recipient|plugin)"
_MARKS: Final = (
    CONTROL_TOKEN,
    # A token that lost a bracket keeps its bar and one of these words.
    re.compile(
        rf"[|｜][\w▁:]{{0,40}}{_MARK_WORDS}|{_MARK_WORDS}[\w▁:]{{0,40}}[|｜]", re.IGNORECASE
    ),
    re.compile(r"<[\w:]{0,40}(?:tool_?call|function_?call|invoke)|(?:tool|function)_?calls?>"),
    re.compile(r"</?[\w:|｜]{0,40}(?:parameter|param|arg_key|arg_value|argument)[ =>]"),
    match_any(
        [mark for one in DIALECTS for mark in (*one.inner, *one.call) if mark[:1] in ("<", "[")]
    ),
)
"""Marks of calls, whole or damaged."""

_PARAMETER: Final = re.compile(
    r"<[\w:|｜]{0,40}(?:parameter|param|argument|arg_key|arg)(?:=|>|\s+(?:name|key)=)[\"']?"
    r"(?P<key>[\w.-]{1,64})"
)
_LINE: Final = re.compile(r"[^\n]+")
_MAX_CALL_LINE_CHARS: Final = 4_000  # characters; a longer text is data
_CALL_END: Final = re.compile(
    r"\s*<[/|｜][\w|｜:]{0,40}(?:tool|function|call|invoke|action)[\w|｜:]{0,40}>"
)
_NAME_AND_BRACKET: Final = re.compile(
    r"[\s\[]*<?[\w$.:/-]+[^\w(\[{<>]{0,20}(?:[A-Za-z ]{0,20}:\s*)?([({<>])"
)
# After one of these words a call is an example in an answer about code.
_CODE_WORDS: Final = frozenset(("await", "return", "yield", "new", "assert", "not", "from", "in"))
_MARK_BEFORE: Final = re.compile(r"(?:</?[\w|｜:]{1,40}>\s*)+")
_MARK_WORD: Final = re.compile(r"(?:tool|function|code|calls?|python|json|name)_?", re.IGNORECASE)
_MARK: Final = re.compile(r"</?[\w|｜:]{1,40}>")
_MARK_CHARS: Final = 43  # of the longest mark
_LAST_WORD: Final = re.compile(r"[A-Za-z_][\w.-]{0,200}\Z")
_LINE_HEAD: Final = re.compile(r"[\s\[*]{0,8}(?:[A-Za-z_ ]{1,24}:[\s*]{0,4})?")
_KEY_AND_VALUE: Final = re.compile(
    r"(?P<quote>[\"']?)(?P<key>[A-Za-z_]\w*?)(?:[\"']?\s*[:=]|[\"'](?=\s*[\"'\d])|(?=[\"'\d]))\s*(?:[\"'\d\[{-]|true|false|null"
    r"|True|False|None)"
)
"""A key and a value, of which one mark between them may be missing."""

_FILLER: Final = (
    r"(?:[^A-Za-z{]|ARGS|json|arguments?|args|params|parameters|input|action|tool|function|code|"
    r"commentary|content|constrain|message|call|name|sep|id|call_id)"
)
# `new Name {`, `= name {` and the like are code in other languages.
_NAME_BEFORE: Final = re.compile(
    rf"(?<![\w.$-])(?<!new )(?<!= )(?<!await )(?<!return )(?:function)?"
    rf"(?P<name>[A-Za-z_$][\w$.-]*){_FILLER}{{0,24}}\Z",
    re.IGNORECASE,
)
_GLUED: Final = re.compile(rf"[A-Za-z]{{1,12}}{_FILLER}{{0,24}}", re.IGNORECASE)
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
_CHILD: Final = re.compile(r"<(?P<tag>[\w.-]+)>(?=\s*<?(?P<key>[\w.-]+)>)")
_CLOSING_TAG: Final = re.compile(r"</([\w.-]+)>")
_NAME_LINE: Final = re.compile(
    r"^[ \t]*(?P<name>[\w.$-]+)[ \t]*\n[ \t]*(?P<key>[\w.$-]+)[ \t]*$", re.M
)
_HEADER: Final = re.compile(
    r"(?:^|[.!?。:])[ \t]{0,8}(?:Action|Tool|Tool Name|Tool Call|Function|Call):"
    r"[ \t]*(?P<name>[\w.$-]+)"
    r"[ \t]*(?:\(?\{|\(\w+=|\n[ \t]*(?:[A-Z]\w+ )?(?:Input|Arguments|Parameters):)",
    re.MULTILINE | re.IGNORECASE,
)


_CALL_FORMS: Final = (_NAME_KEY, _HEADER)
_MARK_FORMS: Final = (_ELEMENT, _ATTRIBUTE, _CHILD, _NAME_LINE)
"""Forms that only calls have.

A group ``key`` is a parameter of the tool that another group names. Any other group names a tool.
"""


class CallLikeText:
    """A text that may look like a call.

    ``unquoted`` is the text with its quoted parts replaced by blanks.
    """

    def __init__(self, text: str, unquoted: str, catalog: ToolCatalog) -> None:
        self._text = text
        self._unquoted = unquoted
        self._catalog = catalog
        self._names = catalog.pattern()
        self._word_starts = catalog.pattern(glued=True)

    def reason(self) -> str:
        """Return why the text looks like a call; empty if it does not."""
        return next(filter(None, self._reasons()), "")

    def _reasons(self) -> Iterator[str]:
        # The first reason is what the correction tells the model: a line says more than a mark.
        yield from self._call_lines()
        is_named = self._names.search(self._text) is not None
        if is_named and any(map(self._is_form, _CALL_FORMS)):
            yield "a call that names a tool cannot be read"
        yield from self._objects()
        is_marked = is_named and (any(map(self._is_form, _MARK_FORMS)) or self._is_marked())
        if is_marked or self._is_form(_PARAMETER):
            yield "its marks are not those of a call"

    def _is_form(self, form: re.Pattern[str]) -> bool:
        """Return whether a form is in the text whose groups name a tool or its parameter."""
        for found in form.finditer(self._unquoted):
            groups = found.groupdict()
            key = groups.pop("key", None)
            tools = [*filter(None, map(self._catalog.find, filter(None, groups.values())))]
            is_key = any(self._catalog.has_parameter(tool, key) for tool in tools if key)
            if (
                is_key
                or (tools and key is None)
                or (not groups and key in self._catalog.all_parameters)
            ):
                return True
        return False

    # --- objects ------------------------------------------------------------------------------

    def _objects(self) -> Iterator[str]:
        """Yield the reason why each object looks like a call, at any place in the text."""
        said = self._unquoted
        for scanner, value in find_objects(self._text, said):
            pos, end = scanner.start, scanner.pos
            line = said.rfind("\n", max(0, pos - _MAX_LINE_CHARS), pos) + 1
            before = said[line:pos].strip(" \t[-*0123456789.)")
            begins = not before and pos - line < _MAX_LINE_CHARS
            # An object that cannot be read has no keys to judge by, so its first characters are
            # used.
            if value is None or scanner.bad_reason:
                ahead = said[pos : pos + _MAX_LINE_CHARS]
                if begins and _CALL_KEY.search(ahead) and self._names.search(ahead):
                    yield "an object that names a tool cannot be read"
            elif self._is_call(value, pos, end, "line" if begins else "inline"):
                is_alone = not (said[:pos].strip() or said[end:].strip())
                yield "its keys are not those of a call" if is_alone else BESIDE_TEXT

    def _is_call(self, value: Mapping[str, Any], pos: int, end: int, extent: Extent) -> bool:
        """Return whether an object is a call, holds one, or follows a tool's name."""
        for call, _ in object_calls(value):
            has_arguments = "missing_arguments" not in call.repairs
            fits = self._catalog.fits(call.name, call.arguments)
            names = bool(self._catalog.find(call.name))
            if (
                has_arguments
                and outcome(Candidate("json", names, fits, extent), "spoken") != "text"
            ):
                return True
        if self._unquoted[pos - 1 : pos] == "[" and any(self._fits(k, v) for k, v in value.items()):
            return True  # keyed by the tool's name
        if any(fitting_calls(self._catalog, value)):
            return True
        if _CALL_END.match(self._unquoted, end) and self._catalog.takes(value):
            return True
        window = max(0, pos - 100)
        before = _NAME_BEFORE.search(self._unquoted, window, pos)
        if before is not None and self._fits(before["name"], value):
            return True
        if before is not None and (glued := self._glued_name(before["name"])):
            return self._fits(glued, value)
        for found in self._word_starts.finditer(
            self._unquoted, window, pos
        ):  # joined to the word after it
            if _GLUED.fullmatch(self._unquoted, found.end(), pos):
                return self._fits(found[0], value)
        return False

    def _fits(self, name: str, value: Any) -> bool:
        # `{}` fits each tool that requires nothing, so it says nothing about a name before it.
        is_object = isinstance(value, Mapping) and bool(value)
        return is_object and self._catalog.fits_closely(self._catalog.find_nearly(name), value)

    # --- lines --------------------------------------------------------------------------------

    def _call_lines(self) -> Iterator[str]:
        """Yield why each line looks like a call in Python, or like the rest of one."""
        lines = [*_LINE.finditer(self._unquoted)]
        whole = self._unquoted.strip(" \t\r\n`")
        all_chars = len(_MARK_BEFORE.sub("", whole[: _end_without_marks(whole)]).strip())
        for number, found in enumerate(lines):
            line = found[0].rstrip(" \t`")
            # Four blanks make a line code in Markdown; alone in the output nothing is quoted.
            is_code = line.startswith("    ")
            is_whole = all_chars <= len(line)
            if is_code and not is_whole:
                continue
            if len(line) > _MAX_CALL_LINE_CHARS or not line.endswith((")", "]", "}", ">")):
                continue
            if reason := self._call_line(line, is_whole=is_whole):
                yield reason
            before = lines[number - 1][0].strip() if number else ""
            name = self._catalog.find(before)
            if name and self._begins_with_key(line.lstrip(), name, is_quoted=True):
                yield "the brackets of a call are missing"

    def _call_line(self, line: str, *, is_whole: bool) -> str:
        """Return why a line is like a call in Python.

        A word may precede the call if the line is the whole text. A line of valid Python that is no
        such call is code.
        """
        line = line[: _end_without_marks(line)]
        head, bracket, rest = line.partition("(")
        word = _LAST_WORD.search(head)
        if word is not None and bracket:
            before, name = head[: word.start()], self._find_named_tool(word[0], is_whole=is_whole)
            prefix = before.strip(" \t[")
            begins = not prefix or (is_whole and " " not in prefix and prefix not in _CODE_WORDS)
            with suppress(Unreadable):
                arguments = keywords(rest.rstrip("]} \t").removesuffix(")"))
                if name and begins and arguments and self._catalog.fits_wholly(name, arguments):
                    return BESIDE_TEXT
                # Valid Python that does not fit a tool completely is code, however much it looks
                # like a call.
                return ""
        found = self._word_starts.search(line)
        if found is None or not _LINE_HEAD.fullmatch(line, 0, found.start()):
            return ""
        behind = line[found.end() :].lstrip(" \t([{")
        is_damaged = self._begins_with_key(behind, self._catalog.find(found[0]))
        is_code = not is_whole and _is_python(line)
        is_call = is_damaged and not is_code and not _has_text_after(line)
        return "a call cannot be read" if is_call else ""

    def _find_named_tool(self, word: str, *, is_whole: bool) -> str:
        """Return the tool that a word names, also if a mark is joined to the word.

        In code a name in another case is another name.
        """
        name = self._catalog.find_nearly(word)
        # Names are found in any case; `Clock(1)` is a class more often than the tool `clock`.
        if self._catalog.own_name(name)[:1] == word[:1] or (name and name != word):
            return name
        return self._glued_name(word) if is_whole and not name else ""

    def _glued_name(self, word: str) -> str:
        """Return the tool whose name ends a word, after a character that only marks have."""
        names = (self._catalog.find(word[one.end() :]) for one in _MARK_WORD.finditer(word))
        return next(filter(None, names), "")

    def _begins_with_key(self, text: str, name: str, *, is_quoted: bool = False) -> bool:
        """Return whether a parameter of this tool and a value are there.

        The mark between them may be missing.
        """
        key = _KEY_AND_VALUE.match(text)
        keys = sorted(read_properties(self._catalog.parameters(name)), key=len, reverse=True)
        if key is None or (is_quoted and not key["quote"]):
            return False
        return any(key["key"] == one or key["key"].rstrip("0123456789") == one for one in keys)

    # --- marks --------------------------------------------------------------------------------

    def _is_marked(self) -> bool:
        """Return whether a mark that no rule reads is near a tool's name."""
        said, names = self._unquoted, self._names
        for mark in _MARKS:
            for found in mark.finditer(said):
                if names.search(
                    said, max(0, found.start() - _MAX_NAME_OFFSET), found.end() + _MAX_NAME_OFFSET
                ):
                    return True
        tags = set(_CLOSING_TAG.findall(said))
        keys = tags & self._catalog.all_parameters
        return any(self._catalog.has_parameter(tag, key) for tag in tags for key in keys)


def _end_without_marks(text: str) -> int:
    """Return where the text ends without the marks and white space after it."""
    end = len(text)
    while True:  # backwards: a pattern would look from every mark to the end
        while end and text[end - 1].isspace():
            end -= 1
        begin = text.rfind("<", max(0, end - _MARK_CHARS), end)
        if begin < 0 or not _MARK.fullmatch(text, begin, end):
            return end
        end = begin


def may_be_call(text: str) -> bool:
    """Return whether a text that begins with a tool's name may be a call alone."""
    name = _NAME_AND_BRACKET.match(text)
    return name is not None and not (name[1] == "(" and _has_text_after(text))


def _has_text_after(text: str) -> bool:
    """Return whether text follows the first bracket that is closed.

    Brackets and marks do not count as text.
    """
    begin = text.find("(")
    source = TextSource(text, pos=max(begin, 0), final=True)
    try:
        finished(source.bracketed("'\"", STRING_MARKS))
    except (Fault, CutOff):
        return False
    return begin >= 0 and bool(text[source.pos : _end_without_marks(text)].strip("()[]{}`; \t\n"))


def _is_python(line: str) -> bool:
    """Return whether a line is valid Python: code is no damaged call."""
    try:
        ast.parse(line.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def fitting_calls(catalog: ToolCatalog, value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield tool and arguments of each object in a value that fits a tool.

    Any key may have the name. The arguments are under another key, next to it or below the name.
    """
    for found in iter_values(value):
        for key, named in found.items() if isinstance(found, Mapping) else ():
            find = catalog.find_nearly if key in NAME_KEYS else catalog.find
            tool = find(named) if isinstance(named, str) else ""
            if not tool:
                continue
            others = {k: item for k, item in found.items() if k not in (key, "type", "id")}
            for held in (others, *(read_arguments(item)[0] for item in others.values())):
                if held and catalog.fits_closely(tool, held):
                    yield tool, held
