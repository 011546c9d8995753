"""The call that is the answer, where that has to fit a JSON Schema.

Such an answer is the call of one more tool, which no registry has. So it is held, mended, repaired
and validated as any call is, in every style and dialect; `settle_result` makes the answer of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from mlx_tools.messages import ErrorInfo, FinalAnswer, ToolCall, ToolSpec, replace
from mlx_tools.protocol.quoting import fences
from mlx_tools.protocol.reading import Reading, writable
from mlx_tools.protocol.scan import INCOMPLETE, ObjectScanner
from mlx_tools.protocol.strict import Unreadable, compact, loads, loose_name
from mlx_tools.protocol.validate import validate_arguments
from mlx_tools.schema import check_parameters, is_of_objects, object_schema, schema_text

_KEY: Final = "value"
_LAST_LINES: Final = re.compile(r"^[ \t]*[{\[].*\Z", re.DOTALL | re.MULTILINE)


class ResultTool(Struct, frozen=True):
    """The tool whose call is the answer.

    ``is_wrapped``: the answer is no object, or need not be one, and stands under the one key that
    ``spec`` takes.
    """

    spec: ToolSpec
    is_wrapped: bool

    @classmethod
    def from_schema(cls, schema: Mapping[str, Any], name: str, description: str) -> ResultTool:
        """Make the tool for answers that fit ``schema``.

        Raises `ToolDefinitionError` where that cannot be used.
        """
        return _make_tool(schema_text(schema), name, description)

    def is_called(self, name: str, other_tools: Container[str]) -> bool:
        """Return whether a call's name means this tool and none of the ``other_tools``."""
        own = self.spec.name
        return name == own or (name not in other_tools and loose_name(name) == loose_name(own))

    def answer_from(
        self, arguments: Mapping[str, Any], repairs: tuple[str, ...]
    ) -> FinalAnswer | None:
        """Return the answer that a call with these arguments gives, as compact JSON.

        None where they do not fit.
        """
        fitting, coercions, error = validate_arguments(self.spec, arguments)
        if error is not None:
            return None
        value = fitting[_KEY] if self.is_wrapped else fitting
        return FinalAnswer(compact(value), (), (*repairs, *coercions))

    def arguments_in(self, text: str) -> Mapping[str, Any] | None:
        """The arguments for which ``text`` stands, which is JSON; else None.

        It may stand in the text's one fence, or be the last lines of the text.
        """
        fenced = [*fences(text)]
        fence = fenced[0].inside if len(fenced) == 1 else ""
        last = _LAST_LINES.search(text)
        for value in (text, fence, last[0] if last else ""):
            with suppress(Unreadable):
                return self._arguments(loads(value))
        return None

    def _arguments(self, value: Any) -> Mapping[str, Any] | None:
        if self.is_wrapped:
            return {_KEY: value}
        return value if isinstance(value, dict) else None


def holds_result(spec: ToolSpec, reading: Reading) -> bool:
    """Return whether an answer is JSON that a result tool's ``spec`` takes.

    It may be the arguments themselves or, of a wrapped answer, the value.
    """
    (answer,) = reading.messages
    if not isinstance(answer, FinalAnswer) or reading.truncated:
        return False
    tools = (ResultTool(spec, is_wrapped) for is_wrapped in (False, True))
    said = (tool.arguments_in(answer.content) for tool in tools)
    return any(one is not None and validate_arguments(spec, one)[2] is None for one in said)


@lru_cache(maxsize=256)
def _make_tool(text: str, name: str, description: str) -> ResultTool:
    """Make the tool once for a schema, so that what is compiled for it is kept."""
    schema = json.loads(text)
    is_object = is_of_objects(schema)
    parameters = {**schema, "type": "object"} if is_object else object_schema(schema, _KEY)
    check_parameters(parameters)
    return ResultTool(ToolSpec(name, description, parameters, effects=frozenset()), not is_object)


def settle_result(
    result: ResultTool,
    reading: Reading,
    other_tools: Container[str],
    read_again: Callable[..., Reading],
    *,
    wanted_message: str,
    early_message: str,
) -> Reading:
    """Return how a turn is read whose answer is a call of ``result``.

    That never stands as a call in it.

    Like an answer it counts where it comes first, and what follows is dropped; behind calls of
    ``other_tools`` it was written without what these give, and is dropped itself. A final answer,
    or bare text, counts where it is JSON that fits. ``read_again`` reads the text by other rules,
    given as keywords. ``wanted_message`` is the error of any other text; where ``early_message`` is
    not empty a call of another tool must come first, and it is the error of an answer.
    """
    calls = [message for message in reading.messages if isinstance(message, ToolCall)]
    places = (n for n, call in enumerate(calls) if result.is_called(call.name, other_tools))
    at = next(places, None)
    if at is None:
        done = bool(calls) or bool(early_message)
        spoken = reading if done else _spoken(result, reading, read_again, wanted_message)
        return replace(spoken, call_like=False)
    if at:
        return read_again(max_calls=at)
    alone = reading if len(calls) == 1 else read_again(max_calls=1)
    if early_message:
        return _refuse(alone, ErrorInfo("not_allowed", early_message))
    return _answered(result, alone, calls[0].arguments, calls[0].repairs)


def _spoken(
    result: ResultTool, reading: Reading, read_again: Callable[..., Reading], wanted_message: str
) -> Reading:
    """Return the answer of a turn without a call, or why it is none."""
    others = [read_again(tool_choice="auto"), read_again(tool_choice="auto", prefix="")]
    for free in others:  # some servers pay no heed to the prefix
        for answer in free.messages if not free.truncated else ():
            text = answer.content if isinstance(answer, FinalAnswer) else ""
            if (arguments := result.arguments_in(text)) is not None:
                return _answered(result, free, arguments, answer.repairs)
    if others[1].bare_text:  # which any text is
        others = others[:1]
    if any(free.messages and not free.truncated for free in others):
        return _refuse(reading, ErrorInfo("invalid_json", wanted_message))
    return reading


def _answered(
    result: ResultTool, reading: Reading, arguments: Mapping[str, Any], repairs: tuple[str, ...]
) -> Reading:
    answer = result.answer_from(arguments, repairs)
    if answer is None:
        _, _, error = validate_arguments(result.spec, arguments)
        assert error is not None
        return _refuse(reading, error)
    return replace(reading, messages=(answer,), bare_text=False, error=None)


def _refuse(reading: Reading, error: ErrorInfo) -> Reading:
    return replace(reading, messages=(), error=error, bare_text=False, clean=False, call_like=False)


@dataclass(slots=True)
class ResultText:
    """The text of an answer, told while its call is written.

    `feed` takes the next text of the arguments, as the model writes it, and gives the next of the
    answer's: compact, and what all of it joins to is what `ResultTool.taken` makes of arguments
    that need no coercion.
    """

    is_wrapped: bool
    _text: str = ""
    _pieces: list[str] = field(default_factory=list)
    _last: str = ""  # the last text that was told
    _closers: list[str] = field(default_factory=list)
    _told_chars: int = -1  # how much of the open string was told, -1 before its quote
    _scanner: ObjectScanner = field(init=False)

    def __post_init__(self) -> None:
        self._scanner = ObjectScanner(parts=self)

    def feed(self, text: str) -> str:
        """Take in more of the arguments; return more of the answer."""
        self._text += text
        if self._scanner.status == INCOMPLETE:
            self._scanner.advance(self._text)
        token = self._scanner.open_token() if self._scanner.status == INCOMPLETE else None
        if token is not None and token.is_string and not token.is_key:
            said = token.text
            half = "\ud800" <= said[-1:] <= "\udbff"  # the other half is in the next escape
            self._tell_string(said[: len(said) - half])
        out, self._pieces = "".join(self._pieces), []
        return writable(out)

    # --- what the scanner tells ---

    def on_open(self, begin: int, is_object: bool) -> bool:
        """Tell a brace or bracket."""
        self._tell("{" if is_object else "[")
        self._closers.append("}" if is_object else "]")
        return True

    def on_key(self, begin: int, key: str) -> bool:
        """Tell a key."""
        if len(self._closers) > 1 or not self.is_wrapped:
            self._tell(f"{compact(key)}:")
        return True

    def on_value(self, begin: int, end: int, value: str, is_string: bool) -> bool:
        """Tell a scalar, or what is left of one."""
        if is_string:
            self._tell_string(value)
            self._pieces.append('"')
            self._told_chars = -1
            return True
        try:
            self._tell(compact(loads(value)))
        except Unreadable:
            return False
        return True

    def on_close(self, begin: int) -> bool:
        """Tell a closing brace or bracket."""
        closer = self._closers.pop()
        if self._closers or not self.is_wrapped:
            self._pieces.append(closer)
            self._last = closer
        return True

    def _tell(self, text: str) -> None:
        """Tell a key, a value or an opening bracket, after the comma that is due."""
        if self._closers or not self.is_wrapped:
            self._pieces += ("" if self._last[-1:] in ("", "{", "[", ":") else ",", text)
            self._last = text

    def _tell_string(self, text: str) -> None:
        if self._told_chars < 0:
            self._told_chars = 0
            self._tell('"')
        self._pieces.append(compact(text[self._told_chars :])[1:-1])
        self._told_chars = len(text)
