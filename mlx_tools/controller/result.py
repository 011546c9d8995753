"""The answer of a turn with an output schema: it is the call of one more tool.

`settle_result` makes the answer of the call; `ResultText` streams its text while it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlx_tools.messages import ErrorInfo, FinalAnswer, ToolCall, replace
from mlx_tools.parsing import INCOMPLETE, ObjectScanner, Unreadable, compact, loads, writable
from mlx_tools.prompt import ResultTool
from mlx_tools.protocol import Reading, validate_arguments


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

    That call never shows as a call. Like an answer it counts if it comes first, and later text is
    dropped. After calls of ``other_tools`` it was written without their results, and is itself
    dropped. A final answer, or bare text, counts if it is JSON that fits.

    ``read_again`` reads the text by other rules, given as keywords. ``wanted_message`` is the error
    of any other text. If ``early_message`` is not empty, a call of another tool must come first,
    and it is the error of an answer before that.
    """
    calls = [message for message in reading.messages if isinstance(message, ToolCall)]
    places = (n for n, call in enumerate(calls) if result.is_called(call.name, other_tools))
    at = next(places, None)
    if at is None:
        done = bool(calls) or bool(early_message)
        spoken = reading if done else _read_text_answer(result, reading, read_again, wanted_message)
        return replace(spoken, call_like=False)
    if at:
        return read_again(max_calls=at)
    alone = reading if len(calls) == 1 else read_again(max_calls=1)
    if early_message:
        return _refuse(alone, ErrorInfo("not_allowed", early_message))
    return _answered(result, alone, calls[0].arguments, calls[0].repairs)


def _read_text_answer(
    result: ResultTool, reading: Reading, read_again: Callable[..., Reading], wanted_message: str
) -> Reading:
    """Return the answer of a turn without a call, or why there is none."""
    others = [read_again(tool_choice="auto"), read_again(tool_choice="auto", prefix="")]
    for free in others:  # some servers ignore the prefix
        for answer in free.messages if not free.truncated else ():
            text = answer.content if isinstance(answer, FinalAnswer) else ""
            if (arguments := result.parse_arguments(text)) is not None:
                return _answered(result, free, arguments, answer.repairs)
    if others[1].bare_text:  # any text is one
        others = others[:1]
    if any(free.messages and not free.truncated for free in others):
        return _refuse(reading, ErrorInfo("invalid_json", wanted_message))
    return reading


def _answered(
    result: ResultTool, reading: Reading, arguments: Mapping[str, Any], repairs: tuple[str, ...]
) -> Reading:
    answer = result.make_answer(arguments, repairs)
    if answer is None:
        _, _, error = validate_arguments(result.spec, arguments)
        assert error is not None
        return _refuse(reading, error)
    return replace(reading, messages=(answer,), bare_text=False, error=None)


def _refuse(reading: Reading, error: ErrorInfo) -> Reading:
    return replace(reading, messages=(), error=error, bare_text=False, clean=False, call_like=False)


@dataclass(slots=True)
class ResultText:
    """The text of an answer, streamed while its call is written.

    `feed` takes the next text of the arguments, as the model writes it, and returns the next text
    of the answer, in compact form. All of it joined is the text that `ResultTool.make_answer` makes
    of arguments that need no coercion.
    """

    is_wrapped: bool
    _text: str = ""
    _pieces: list[str] = field(default_factory=list)
    _last: str = ""  # the last text that was returned
    _closers: list[str] = field(default_factory=list)
    _told_chars: int = -1  # the part of the open string that was returned, -1 before its quote
    _scanner: ObjectScanner = field(init=False)

    def __post_init__(self) -> None:
        self._scanner = ObjectScanner(parts=self)

    def feed(self, text: str) -> str:
        """Take more of the arguments; return more of the answer."""
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
        """Write a brace or bracket."""
        self._tell("{" if is_object else "[")
        self._closers.append("}" if is_object else "]")
        return True

    def on_key(self, begin: int, key: str) -> bool:
        """Write a key."""
        if len(self._closers) > 1 or not self.is_wrapped:
            self._tell(f"{compact(key)}:")
        return True

    def on_value(self, begin: int, end: int, value: str, is_string: bool) -> bool:
        """Write a scalar, or the rest of one."""
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
        """Write a closing brace or bracket."""
        closer = self._closers.pop()
        if self._closers or not self.is_wrapped:
            self._pieces.append(closer)
            self._last = closer
        return True

    def _tell(self, text: str) -> None:
        """Write a key, a value or an opening bracket, after the comma if one is due."""
        if self._closers or not self.is_wrapped:
            self._pieces += ("" if self._last[-1:] in ("", "{", "[", ":") else ",", text)
            self._last = text

    def _tell_string(self, text: str) -> None:
        if self._told_chars < 0:
            self._told_chars = 0
            self._tell('"')
        self._pieces.append(compact(text[self._told_chars :])[1:-1])
        self._told_chars = len(text)
