"""A sequence of calls in a dialect (reading rule 8a).

It goes from the opening mark to the end of the last call that belongs to it. The text after the
mark decides how it is read, not the mark alone, because models mix the forms that they have seen.
An object or an array is JSON, a tag is XML. After a name comes an object, or brackets, or keys and
values in turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from mlx_tools.messages import FinishReason, ToolCall, loose_name, replace
from mlx_tools.parsing import (
    HEADS,
    CutOff,
    Fault,
    Steps,
    TextSource,
    Unreadable,
    encodable,
    keywords,
    literal_object,
    loads,
)
from mlx_tools.protocol.catalog import ToolCatalog
from mlx_tools.protocol.delimiters import END_TOKENS
from mlx_tools.protocol.dialects import DIALECTS, STRING_MARKS, Dialect
from mlx_tools.protocol.judging import Candidate, Extent
from mlx_tools.protocol.objects import is_alias, is_envelope, may_mutate, object_calls
from mlx_tools.protocol.tags import KEY_OPENS, TAG_STARTS, TaggedArguments, TagReader
from mlx_tools.schema import read_required

_Object = tuple[dict[str, Any], tuple[str, ...]]

_MAX_PROSE_CHARS: Final = 200
"""Characters of prose that may stand between two calls with the same mark."""

_MAX_NAME_CHARS: Final = 200
_MAX_HEADER_CHARS: Final = 200

_NAME: Final = re.compile(r"[\w$][\w$./-]*+")
_NUMBER: Final = re.compile(r"[0-9]++")
_WORD: Final = re.compile(r"[A-Za-z0-9_-]++")
_BULLET: Final = re.compile(r"[0-9]{1,3}[.)][ \t]++")
_FENCES: Final = "```json", "```tool_code", "```python", "```py", "```xml", "```"

# Marks that end in `=` are a part of the call's tag, which the reader of tags takes whole.
# Harmony's marks are headers. Both are searched for separately.
_OPENING: Final = tuple(
    mark
    for one in DIALECTS
    for mark in ("" if one.line or one.opens_tag else one.open, *one.call[:1])
    if mark and not mark.endswith("=") and one.name != "harmony"
)
# A lone `]` closes a list of JSON as well, so the reader of the list takes it.
_CLOSES: Final = tuple({one.close: 0 for one in DIALECTS if len(one.close) > 1})
_CLOSING: Final = (*_CLOSES, *(mark for one in DIALECTS for mark in one.call[1:]))
_ARGUMENT_MARKS: Final = tuple(
    mark
    for one in DIALECTS
    for mark in one.inner
    if one.body == "named_json" or (one.body == "xml" and mark.endswith("｜>"))
)
"""The marks between a name and its arguments."""

_HEADER_MARKS: Final = tuple(mark for mark in _ARGUMENT_MARKS if mark[:2] == "<|")

_CALL_TAGS: Final = tuple(
    {mark: 0 for one in DIALECTS for mark in (one.open, *one.call[:1]) if mark.endswith("=")}
)
_CALL_TYPE: Final = "tool_call"
# A result that the model made up between two calls: the second call builds on an invented result.
_FOREIGN: Final = re.compile(
    r"<tool_response>|<\|tool_response|^[ \t]*(?:Observation|Result|User)[ \t]*:|[\[{]|<\|", re.M
)
"""Signs between two calls that show more than prose."""


class MessageHeader(NamedTuple):
    """The header of a message, as in harmony: its recipient and channel."""

    recipient: str
    channel: str


_RECIPIENT: Final = re.compile(r"\bto=([\w.$-]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")


class CallSequenceReader:
    """One sequence of calls, from the opening mark where ``source`` is read.

    Resume `steps` while it yields. Afterwards the attributes say what was read.
    """

    def __init__(
        self,
        source: TextSource,
        dialect: Dialect,
        catalog: ToolCatalog,
        max_calls: int | None = None,
        skip: int | None = None,
    ) -> None:
        """Begin at the place of ``source``.

        ``skip`` is the length of the text before the first call, by default that of the mark.
        """
        self.source = source
        self.dialect = dialect
        self.begin = self.end = source.pos
        """The places of the opening mark, and after the last closing mark."""
        self.calls: list[ToolCall] = []
        self.ends: list[int] = []
        """The place where each call ends."""
        self.dropped: list[str] = []
        self.cut: CutOff | None = None
        """Set if the text ends within a call."""
        self.fault = ""
        """The reason why no more calls could be read."""
        self.has_open_end = False
        """True if the text ends after a mark that opens a call."""
        self.has_text_behind = False
        """True if prose follows in the same line."""
        self.names_tool = False
        """True if a tool is named in a place for calls."""
        self.is_explicit = False
        """True if the form has enough marks to be a call, whatever it names."""
        self.is_tagged = False
        """True if values were between tags, so that a schema gave them their types."""
        self.is_typed = False
        """True if an object has the protocol's own type of calls."""
        self.is_envelope = False
        """True if an object has OpenAI's or Anthropic's type of calls."""
        self.is_python = False
        """True if a call was written as in Python."""
        self.aliases = True
        """True if all objects were calls by their keys alone."""
        self.header: MessageHeader | None = None
        """The header of a message of another kind, which was there in place of a call."""
        self.object_begin = -1
        """The place of an open object that may be a call."""
        self._catalog = catalog
        self._max_calls = max_calls
        size = 0 if dialect.opens_tag else len(dialect.open)
        self._skip = size if skip is None else skip
        self._last = 0  # where a call was searched for last
        self._is_closed = False  # a closing mark follows the last call
        self._has_noise = False
        self._in_array = False
        self._is_one_array = False  # the family writes all its calls in one array or object

    def steps(self) -> Steps[None]:
        """Read the sequence."""
        try:
            self.source.pos += self._skip
            is_more = True
            while is_more:
                self._last = self.source.pos
                yield from self._message() if self._has_header else self._call()
                goes_on = self.calls and self.cut is None and not self.has_open_end
                is_more = bool(goes_on) and (yield from self._find_next_call())
        except (Fault, Unreadable) as fault:
            self.fault = str(fault) or "a call is due"
        except CutOff as cut:
            self.cut = cut

    def candidate(self, extent: Extent = "whole") -> Candidate:
        """Return the calls in the form in which the table of rule 8a judges them."""
        names, fits, is_explicit = self.names_tool, None, self.aliases
        first = self.calls[0] if self.calls else None
        if first is not None:
            names = bool(self._catalog.find(first.name))
            fits = self._catalog.fits(first.name, first.arguments)
            is_explicit = is_explicit and "missing_arguments" not in first.repairs
        is_code = self.is_python if not self.dialect.open else self.dialect.lists_code
        if is_code and not all(
            self._catalog.own_name(call.name) == call.name for call in self.calls
        ):
            # in code a name in another case is another name
            return Candidate("python", False, None, extent)
        if self.dialect.open:
            is_explicit = self.is_explicit or not self.dialect.line
            return Candidate("marked", names, fits, is_explicit=is_explicit)
        if self.is_envelope or (self.is_typed and extent != "whole"):
            return Candidate("marked", names, fits, extent, is_explicit=True)
        names = names and not self._is_only_named
        return Candidate("python" if self.is_python else "json", names, fits, extent, is_explicit)

    @property
    def _is_only_named(self) -> bool:
        """True if an object names a tool and holds no arguments of it."""
        first = self.calls[0] if self.calls else None
        if first is None or "missing_arguments" not in first.repairs or self.is_typed:
            return False
        return bool(self.dropped or read_required(self._catalog.parameters(first.name)))

    def may_close(
        self, reason: FinishReason, mutates: Callable[[str, Mapping[str, Any]], bool]
    ) -> bool:
        """Return whether the calls count if the last one lacks closing brackets (rule 7)."""
        if reason != "stop" or not self.calls or "missing_closers" not in self.calls[-1].repairs:
            return False
        return not any(may_mutate(mutates, call) for call in self.calls)

    @property
    def _has_header(self) -> bool:
        return self.dialect.header

    # --- from one call to the next ------------------------------------------------------------

    def _find_next_call(self) -> Steps[bool]:
        """Skip what closes a call; return whether another one follows."""
        is_separated = False
        while True:
            yield from self.source.space()
            if (yield from self.source.mark(*_CLOSING)):
                self._is_closed = True
                self.end = self.source.pos
                continue
            char = yield from self.source.peek()
            # One separator at most: a second one, or one after a closing mark, begins prose.
            is_separator = char in (",", ";") and not (is_separated or self._is_closed)
            if not is_separator and not (yield from self.source.match(_BULLET, 8)):
                break
            is_separated = True
            self.source.pos += is_separator
        if not self._is_full and not self._is_one_array and (yield from self._is_another(char)):
            return True
        return (yield from self._is_followed())

    def _is_another(self, char: str) -> Steps[bool]:
        """Return whether a call begins here; take its mark."""
        here = self.source.pos
        if self._has_header:
            # Harmony's final message begins with the same marks. Only a recipient that is a tool
            # makes it a call.
            begun = yield from self.source.mark("<|start|>", "<|channel|>")
            self.source.pos = here
            ahead = (yield from self.source.lookahead(_MAX_HEADER_CHARS)) if begun else ""
            header, has_message, _ = ahead.partition("<|message")
            found = _RECIPIENT.search(header) if has_message and "\n" not in header else None
            return found is not None and bool(self._catalog.find(found[1]))
        if (yield from self.source.mark(*_OPENING)):
            self._is_closed = False
            return True
        if self.dialect.line and self.dialect.open and not self.dialect.opens_tag:
            if (yield from self.source.mark(self.dialect.open)):
                behind = self.source.pos
                yield from self.source.space()
                is_call = (yield from self.source.peek()) in ("`", "{", "[")
                is_call = is_call or bool((yield from self._peek_name()))
                self.source.pos = behind if is_call else here
                return is_call
            return self.dialect.body == "python" and (yield from self._is_named())
        if (yield from self.source.peek_mark(*_CALL_TAGS)):
            return True
        # Functionary's template ends the prompt with its mark, so only later calls have the mark.
        if not self.dialect.open and (yield from self.source.mark(">>>")):
            return True
        if not char or (self._is_closed and self.dialect.open):
            return False
        if self.dialect.body == "literal":
            return bool((yield from self.source.peek_mark("call:")))
        if char == "{" or (char == "<" and not self.dialect.open):
            return True
        may_be_named = self.dialect.body == "python" or not self.dialect.open
        return may_be_named and (yield from self._is_named())

    def _peek_name(self) -> Steps[str]:
        """Return the name of a tool that comes next, without taking it; else ""."""
        here = self.source.pos
        name = yield from self.source.match(_NAME, _MAX_NAME_CHARS)
        self.source.pos = here
        return self._catalog.find(name)

    def _is_named(self) -> Steps[bool]:
        """Return whether a name begins here, with text after it as in a call."""
        here = self.source.pos
        name = yield from self.source.match(_NAME, _MAX_NAME_CHARS)
        char = yield from self.source.peek()
        self.source.pos = here
        is_call = char == "(" or (not self.dialect.open and char in ("{", "\n", ":"))
        is_known = bool(self._catalog.find(name)) or name == "print"
        return bool(name) and is_call and (is_known or not self.dialect.line)

    def _is_followed(self) -> Steps[bool]:
        """Return False after the last call; note whether prose follows in its line.

        Return True if another call with the same mark follows after prose.
        """
        source, dialect = self.source, self.dialect
        source.pos = self.end
        yield from source.space(lines=False)
        here = source.pos
        char = yield from source.peek()
        ends = char in ("", "\n") or bool((yield from source.mark(*END_TOKENS)))
        source.pos = here
        # Models introduce the next call in words. A call with its own mark goes on the sequence;
        # without a mark the words end it.
        if not self._is_full and dialect.close and not dialect.line and not self._is_one_array:
            ahead = yield from source.lookahead(_MAX_PROSE_CHARS + len(dialect.open))
            found = ahead.find(dialect.open)
            is_new = source.pos + found + self._skip > self._last  # else there was no call
            if found >= 0 and is_new and not _FOREIGN.search(ahead, 0, found):
                self.dropped.append(ahead[:found].strip())
                source.pos += found + self._skip
                return True
        source.pos = self.end
        in_array = self._is_full and char == "," and not self._is_closed
        self.has_text_behind = not (ends or in_array or dialect.is_token)
        return False

    # --- one call -----------------------------------------------------------------------------

    def _add(
        self, name: str, arguments: Mapping[str, Any], *repairs: str, call_id: str | None = None
    ) -> None:
        if not name or not encodable(name):
            raise Fault("name: required")
        found = self._catalog.find(name)
        if found and name not in (found, f"functions.{found}", f"{found}.call"):
            repairs = (*repairs, "tool_name")
        names = (*repairs, "noise") if self._has_noise else repairs
        call = ToolCall(found or name, arguments, call_id, tuple(dict.fromkeys(names)))
        self.names_tool = self.names_tool or bool(found)
        self.calls.append(call)
        self.end = self.source.pos
        self.ends.append(self.end)
        self._is_closed = False

    def _fail(self, reason: str) -> Steps[NoReturn]:
        """Raise: other text is here than expected, or the text ends."""
        raise Fault(reason) if (yield from self.source.peek()) else CutOff()

    @property
    def _is_full(self) -> bool:
        return self._max_calls is not None and len(self.calls) >= self._max_calls

    def _call(self) -> Steps[None]:
        """Read one call, or an array of calls, in any form."""
        is_fenced = False
        while True:
            yield from self.source.space(lines=not self.dialect.line or is_fenced)
            if self.dialect.line and not is_fenced and self.dialect.open:
                # The mark may be in prose. Then a call must be in its line, or a fence after it.
                if (yield from self.source.peek()) not in ("\n", "`"):
                    break
                yield from self.source.space()
                if not (yield from self.source.peek_mark("`")):
                    break
            is_fenced = bool((yield from self.source.mark(*_FENCES)))
            if not is_fenced and not (yield from self.source.mark(*_OPENING, *_HEADER_MARKS)):
                break
        char = yield from self.source.peek()
        if not char and self.calls:
            self.has_open_end = True  # a mark that opens a call is in place of one that closes
            return
        if not char:
            raise CutOff
        if self.dialect.lists_code and not (yield from self._peek_name()):
            raise Fault("no tool is named")
        if self.dialect.open.endswith("["):
            yield from self._array()
        elif char == "{":
            self._is_one_array = self.dialect.one_value
            yield from self._object()
        elif char == "[":
            self._is_one_array = self.dialect.one_value
            self.source.pos += 1
            yield from self._array()
        elif char in TAG_STARTS:
            yield from self._tags()
        else:
            yield from self._named_call()

    # --- JSON ---------------------------------------------------------------------------------

    def _json(self) -> Steps[_Object]:
        """Read the object that begins here.

        At the end of the text an object that lacks closing brackets is read with them, and the
        sequence is ``cut``.
        """
        try:
            return (yield from self.source.json_object())
        except CutOff as cut:
            if cut.scanner is None or not cut.scanner.closable:
                raise
            try:
                found = cut.scanner.read(self.source.text, close=True)
            except Unreadable:
                raise cut from None
            # Whether it counts without its brackets depends on what the calls can change:
            # `may_close`.
            self.cut = cut
            return found

    def _json_arguments(self, name: str) -> Steps[None]:
        self._note(name)
        value, repairs = yield from self._json()
        inner = object_calls(value)  # some models name the tool once more within the object
        if inner and not self._catalog.find(name):
            name = self._catalog.find(inner[0][0].name) or name
        if (
            len(inner) == 1
            and loose_name(inner[0][0].name) == loose_name(name)
            and not self._catalog.fits_closely(name, value)
        ):
            value, repairs = dict(inner[0][0].arguments), (*repairs, *inner[0][0].repairs)
        self._add(name, value, *repairs)

    def _note(self, name: str) -> None:
        self.names_tool = self.names_tool or bool(self._catalog.find(name))

    def _object(self) -> Steps[None]:
        self.object_begin = self.source.pos
        try:
            value, repairs = yield from self._json()
            self.object_begin = -1
        except Fault as fault:
            self.object_begin = -1
            # Only a wrapper of several calls may have a remark between them; otherwise the call is
            # faulty.
            if self.dialect.form != "any" or not self.calls:
                raise
            yield from self._skip_line(fault)
            return
        cut, self.cut = self.cut, None  # it counts only if the object is a call
        keys = [*value] if len(value) == 1 else []
        # Apertus writes the name as the only key, and other models sometimes do. Most data looks
        # so, too: in bare text the key must be a tool's name, within a list.
        if keys and isinstance(value[keys[0]], dict):
            is_known = bool(self._catalog.find(keys[0])) and not self._catalog.knows_all
            is_bare = not self.dialect.open
            is_listed = is_bare and self._in_array
            if not self.dialect.name_key or (is_known and (is_listed or not is_bare)):
                self.aliases = False
                self._add(keys[0], value[keys[0]], *repairs)
                self.cut = cut
                return
        found = object_calls(value, repairs)
        if not found or value.get("type") in ("final_answer", "tool_observation"):
            raise Fault("a call needs a name and arguments")
        first = found[0][0]
        # `{"name": "Ann"}` is data. An object with a name alone must name a tool, or have the
        # protocol's type.
        is_named_alone = not self.dialect.open and "missing_arguments" in first.repairs
        if is_named_alone and not (
            self._catalog.find(first.name) or value.get("type") == _CALL_TYPE
        ):
            raise Fault("a call needs a name and arguments")
        self.is_typed = self.is_typed or value.get("type") == _CALL_TYPE
        self.is_envelope = self.is_envelope or is_envelope(value)
        is_known = not self._catalog or bool(self._catalog.find_nearly(first.name))
        self.aliases = self.aliases and is_alias(value, is_known=is_known)
        for call, dropped in found:
            if self._is_full:
                break
            self._add(call.name, call.arguments, *call.repairs, call_id=call.id)
            self.dropped += dropped
        self.cut = cut
        if cut is not None and "missing_arguments" in found[-1][0].repairs:
            raise cut

    def _skip_line(self, fault: Fault) -> Steps[None]:
        """Skip a line in the wrapper that does not look like a call."""
        rest, mark = yield from self.source.read_until("\n", *_CLOSES)
        if any(f'"{head}"' in rest for head in HEADS):
            raise fault
        self.dropped.append(rest.strip())
        self._has_noise = True
        if mark == "\n" and (yield from self.source.peek()) == "{":
            yield from self._object()

    def _array(self) -> Steps[None]:
        """Read the objects or Python calls in brackets, the first of which is taken."""
        first, self._in_array = len(self.calls), True
        while True:
            yield from self.source.space()
            char = yield from self.source.peek()
            if char == "{":
                yield from self._object()
                if self.cut is not None:
                    return
            elif char == '"':
                self.source.pos += 1
                self.dropped.append((yield from self.source.read_until('"'))[0])
                self._has_noise = True
            elif _NAME.match(char):
                name = yield from self.source.match(_NAME, _MAX_NAME_CHARS)
                if (yield from self.source.peek()) != "(":
                    raise Fault("a call is due in the brackets")
                yield from self._python(name)
            elif char != "]" or len(self.calls) == first:
                yield from self._fail("a call is due in the array")
            if (yield from self._after_item()) != "," or self._is_full:
                return

    def _after_item(self) -> Steps[str]:
        """Skip the mark after an item: a comma, or the one that closes the brackets.

        The mark is empty at the end.
        """
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
                self.end = self.source.pos
                if self.ends:
                    self.ends[-1] = self.end
        return char

    # --- a name first -------------------------------------------------------------------------

    def _python(self, name: str) -> Steps[None]:
        """Read the brackets after a name, and the arguments in them."""
        self.aliases, self.is_python = False, True
        # Gemma and Gemini were trained to print the result of a call.
        if name == "print" and not self._catalog.find(name):
            yield from self._print_call()
            return
        self._note(name)
        if self.dialect.line and not self._catalog.find(name) and not self.dialect.any_name:
            raise Fault("no tool is named")
        text = yield from self.source.bracketed("'\"", STRING_MARKS)
        inside = text[1:-1].strip()
        # JavaScript passes named arguments as one object.
        is_object = inside.startswith("{") and self.dialect.line
        self.is_explicit = self.is_explicit or is_object
        if not is_object:
            arguments = keywords(inside)
            if not self._catalog.find(name) and self.dialect.line:
                raise Fault("no tool is named")
            self._add(name, arguments)
            return
        try:
            value = loads(inside)
        except Unreadable:
            value = literal_object(inside, STRING_MARKS)
        self._add(name, value)

    def _print_call(self) -> Steps[None]:
        """Read a call within ``print(…)``."""
        self.source.pos += 1
        yield from self.source.space()
        name = yield from self.source.match(_NAME, _MAX_NAME_CHARS)
        if name in ("", "print") or (yield from self.source.peek()) != "(":
            raise Fault("a call is due in the brackets")
        yield from self._python(name)
        yield from self.source.space()
        if not (yield from self.source.mark(")")):
            yield from self._fail("the end of the brackets is due")
        self.end = self.ends[-1] = self.source.pos

    def _named_call(self) -> Steps[None]:
        """Read a name, and its arguments in any form."""
        source, is_literal = self.source, self.dialect.body == "literal"
        name = yield from source.match(_NAME, _MAX_NAME_CHARS)
        if not name:
            raise Fault("a call is due after the mark")
        # Gemma writes `call:NAME{…}`; Kimi numbers its calls, as in `functions.NAME:0`.
        if name == "call" and (yield from source.mark(":")):
            is_literal = True
            yield from source.space(lines=False)
            name = yield from source.match(_NAME, _MAX_NAME_CHARS)
        elif (yield from source.mark(":")):
            yield from source.match(_NUMBER, 12)
        char = yield from source.peek()
        if char == "(":
            yield from self._python(name)
            return
        if not self.dialect.open and not self._catalog.find(name):
            name = name.removeprefix("function")  # the kind came first, without its mark
        self.aliases = False
        self._note(name)
        if char == "{" and is_literal:
            text = yield from source.bracketed('"', STRING_MARKS)
            self._add(name, literal_object(text, STRING_MARKS))
            return
        yield from self._after_name(name)

    def _after_name(self, name: str) -> Steps[None]:
        """Read the arguments after a name, and the marks before them."""
        source, dialect = self.source, self.dialect
        mark = yield from self._skip_argument_marks()
        char = yield from source.peek()
        # Step 3 and DeepSeek write the kind first; after it comes a tag, or the name.
        if name == "function" and char == "<":
            yield from self._tags()
            return
        if name == "function" and _NAME.match(char or "{"):  # the kind came first
            name = yield from source.match(_NAME, _MAX_NAME_CHARS)
            self._note(name)
            mark = (yield from self._skip_argument_marks()) or mark
        has_own_mark = bool(mark) or not dialect.line
        self.is_explicit = self.is_explicit or bool(mark)
        yield from source.mark(*_FENCES)
        yield from source.space()
        char = yield from source.peek()
        if char == "{" and (has_own_mark or self._catalog.find(name)):
            yield from self._json_arguments(name)
        elif key_open := (yield from source.mark(*KEY_OPENS, "<tool_sep>")):
            if key_open == "<tool_sep>":
                yield from source.space()
                key_open = yield from source.mark(*KEY_OPENS)
            yield from self._pairs(name, key_open)
        elif char == "<" and not mark and not dialect.line and self._has_pairs:
            yield from self._pairs(name, "")
        elif char and not mark and not self.calls and dialect.open and not dialect.line:
            yield from self._after_noise()
        else:
            yield from self._fail("arguments are due")

    def _skip_argument_marks(self) -> Steps[str]:
        """Skip white space and the marks after a name; return the last of these."""
        mark = ""
        while True:
            yield from self.source.space()
            found = yield from self.source.mark(*_ARGUMENT_MARKS)
            if not found:
                return mark
            mark = found
            # Mistral's newer templates have an id between name and arguments.
            if mark == "[CALL_ID]":
                yield from self.source.match(_WORD, 64)

    @property
    def _has_pairs(self) -> bool:
        """True if a family with this opening mark writes keys and values in turn."""
        opening = self.dialect.open
        return any(one.body == "pairs" and one.open == opening for one in DIALECTS)

    def _after_noise(self) -> Steps[None]:
        """Drop the words between the mark and the call; the call counts as repaired."""
        # Only once: in a text full of marks each mark would start another search.
        if self._has_noise:
            raise Fault("a call is due after the mark")
        self._has_noise = True
        ahead = yield from self.source.lookahead(_MAX_PROSE_CHARS)
        places = [at for mark in (*_OPENING, "[{") if (at := ahead.find(mark)) >= 0]
        line = ahead.find("\n")
        if not places or 0 <= line < min(places) or "`" in ahead[: min(places)]:
            raise Fault("a call is due after the mark")
        self.source.pos += min(places)
        yield from self._call()

    def _pairs(self, name: str, key_open: str) -> Steps[None]:
        self.is_tagged = True
        tags = TagReader(self.source, self._catalog, self.dialect)
        found = yield from tags.pairs(name, key_open)
        if not (yield from self.source.mark(*_CLOSING)):
            yield from self._fail("a key or the end of the call is due")
        if not found.arguments and not self._catalog.find(name):
            raise Fault("no tool is named")
        self._add_tagged(found)
        self._is_closed = True

    def _tags(self) -> Steps[None]:
        self.is_tagged, self.aliases = True, False
        tags = TagReader(self.source, self._catalog, self.dialect)
        found = yield from tags.call()
        if isinstance(found, TaggedArguments):
            self._add_tagged(found)
            return
        yield from self._json_arguments(found)

    def _add_tagged(self, tagged: TaggedArguments) -> None:
        self._add(tagged.name, tagged.arguments, *("missing_closers",) * tagged.is_unclosed)

    # --- messages with headers ----------------------------------------------------------------

    def _message(self) -> Steps[None]:
        """Read the header of a message, as in harmony: its recipient and channel."""
        begin = self.source.pos if self.calls else self.begin  # of the header, with its mark
        try:
            _, end = yield from self.source.read_until("<|message|>", "\n")
        except CutOff:
            found = _RECIPIENT.search(self.source.text, self.begin)
            self.names_tool = found is not None and bool(self._catalog.find(found[1]))
            if "{" in self.source.text[self.begin :]:
                raise Fault("a message's mark is due") from None
            raise
        if end == "\n":
            raise Fault("a message is due after its header")
        head = self.source.text[begin : self.source.pos]
        recipients, channels = _RECIPIENT.findall(head), _CHANNEL.findall(head)
        recipient = recipients[-1] if recipients else ""
        self.end = self.source.pos
        self.header = MessageHeader(recipient, channels[-1] if channels else "")
        if not recipient and self._catalog.pattern().search(head):
            self._fail_header("the recipient of the message cannot be read")
        # In Functionary's form a message for `all` is for the user.
        if not recipient or recipient in ("user", "assistant", "all"):
            return
        yield from self.source.space()
        char = yield from self.source.peek()
        if char == "{":
            if not self._catalog:
                raise Fault("there are no tools")
            self.header = None
            self.is_explicit = True
            yield from self._json_arguments(recipient.removeprefix("functions."))
        elif char == '"' and self._catalog.find(recipient):
            self._fail_header("arguments are due")

    def _fail_header(self, reason: str) -> NoReturn:
        """Fail if a message is for a tool and no call can be read."""
        self.header, self.names_tool = None, True
        raise Fault(reason)
