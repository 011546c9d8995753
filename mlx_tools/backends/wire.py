"""The completions interface: bodies of requests, and streams of answers. No I/O.

**Every request has a seed.** mlx-lm's server runs requests without a seed in a batch. If its cache
then has exactly a prompt's tokens, the thread that runs the model dies, for all clients and until a
restart. A request with a seed runs alone; there the same error is caught and answered. So no
request that is made here can kill the server. docs/backends.md has the measurements.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from mlx_tools.backends.interface import Chunk, CompletionRequest, GrammarText
from mlx_tools.backends.server_errors import LOG_HINT, error_text, find_context_hint
from mlx_tools.errors import (
    BackendBroken,
    BackendError,
    BackendRefused,
    UsageError,
    for_message,
    require_instance,
    require_text,
)
from mlx_tools.messages import FinishReason, Usage, replace
from mlx_tools.process import clean

# --- a request --------------------------------------------------------------------------------

GrammarOption = Literal["grammar", "structured_outputs"]
"""The request field for a grammar: llama.cpp's, and vLLM's."""

GRAMMAR_HINT: Final = "use the strategy guided, or the model in this process: --backend local"
"""The hint if a backend does not take grammars."""


def grammar_fields(option: GrammarOption, grammar: GrammarText) -> dict[str, Any]:
    """Return the request fields for a grammar."""
    if option == "structured_outputs":
        return {option: {"grammar": grammar.gbnf}}
    return {option: grammar.gbnf}


def _is_whole(value: object, minimum: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(value, Mapping)


_ALLOWED: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "max_tokens": (lambda n: _is_whole(n, 1), "a whole number from 1"),
    "temperature": (lambda t: _is_number(t) and t >= 0, "a finite number from 0"),
    "timeout": (lambda s: _is_number(s) and s > 0, "a finite number above 0"),
    "idle_timeout": (lambda s: _is_number(s) and s > 0, "a finite number above 0"),
    "seed": (
        lambda n: n is None or (_is_whole(n) and n < 2**63),
        "a whole number from 0 to 2**63 - 1",
    ),
    "logit_bias": (
        lambda bias: all(_is_whole(n) and _is_number(b) and abs(b) <= 100 for n, b in bias.items()),
        "a map of token ids, whole numbers from 0, to numbers from -100 to 100",
    ),
    "sampling": (_is_json, "a map of names to JSON values"),
}
"""For each field of a request: a check of its value, and the allowed values in words."""


def check_request(request: CompletionRequest) -> str:
    """Check a request, and return the prompt to send.

    A lone surrogate, such as from a file name that is not UTF-8, becomes U+FFFD.

    Raises:
        UsageError: a value cannot be sent; the message has it, and the allowed values.
    """
    wanted = "give a CompletionRequest(prompt=…)"
    require_instance("request", request, CompletionRequest, wanted)
    prompt = without_surrogates(require_text("prompt", request.prompt, "give a text"))
    if not (prompt or request.messages):
        raise UsageError("the prompt is empty", hint="there must be something to complete")
    for name, (fits, allowed) in _ALLOWED.items():
        if not fits(value := getattr(request, name)):
            raise UsageError(f"{name} is {for_message(value)}", hint=f"it must be {allowed}")
    return prompt


def completion_body(
    request: CompletionRequest,
    *,
    model: str | None = None,
    forbidden_tokens: Sequence[int] = (),
    grammar_option: GrammarOption | None = None,
    stream: bool = True,
) -> dict[str, Any]:
    """Return the JSON body of a completion request.

    If the request has no seed, the body gets one without an effect on the result: 0 if the
    temperature is 0, otherwise a new random number.

    Args:
        request: the request, which was checked.
        model: the model's name, None to omit it.
        forbidden_tokens: ids of tokens that get a bias of -100.
        grammar_option: the field with which the server takes a grammar, None if it takes none.
        stream: True for a stream with usage at its end, False for one JSON object.
    """
    seed = request.seed
    if seed is None:
        seed = 0 if request.temperature == 0 else secrets.randbelow(2**31)
    body: dict[str, Any] = {
        **request.sampling,
        "prompt": without_surrogates(request.prompt),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": seed,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    if model is not None:
        body["model"] = model
    if request.grammar is not None and grammar_option is not None:
        body |= grammar_fields(grammar_option, request.grammar)
    bias = {**dict.fromkeys(forbidden_tokens, -100), **request.logit_bias}
    if bias:
        body["logit_bias"] = {str(token): value for token, value in bias.items()}
    return body


# --- server-sent events -----------------------------------------------------------------------

MAX_EVENT: Final = 1 << 20
"""The limit in bytes of a line, and of the data of one event.

A choice: correct events have at most a few kilobytes, and a server that never sends a line end must
not fill the memory.
"""

_FIELDS: Final = frozenset((b"data", b"event", b"id", b"retry"))
"""The fields of an event stream. Any other line shows that this is not an event stream."""


_WHOLE_EVENTS: Final = re.compile(rb"(?:data: [^\r\n]*+\n\n)++")
"""Complete events with one line of data each. Nearly all pieces are so, and are read quickly."""


class EventReader:
    """Splits a stream into the data of its events, in bounded memory.

    Pieces may be split anywhere, also within a character or between ``\\r`` and ``\\n``. It follows
    the event-stream grammar of the HTML standard (section 9.2.6), but a server may send something
    else. So a line that is not a field is an error, and is not skipped; and so is a line or an
    event over the limit.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._open = bytearray()  # a line that has not ended
        self._after_cr = False
        self._data: list[bytes] = []
        self._size = 0
        self._first = True

    def feed(self, piece: bytes | None) -> Iterator[str]:
        """Take the next bytes, and yield the data of each event that they complete.

        Args:
            piece: the next bytes, None at the end of the stream.

        Raises:
            BackendBroken: a line is not a field, too long, or not UTF-8. The events before it were
                yielded.
        """
        piece = b"\n\n" if piece is None else piece
        if not piece:
            return
        is_between = not (self._open or self._data or self._after_cr)
        if is_between and len(piece) <= MAX_EVENT and _WHOLE_EVENTS.fullmatch(piece):
            self._first = False
            for event in piece[:-2].split(b"\n\n"):
                yield self._decode(event[6:])
            return
        begin = 1 if self._after_cr and piece[:1] == b"\n" else 0
        self._after_cr = piece.endswith(b"\r")  # its line feed may be in the next piece
        for line in piece[begin:].splitlines(keepends=True):
            self._open += line
            self._check(len(self._open), "a line")
            if line.endswith((b"\n", b"\r")):
                whole = bytes(self._open).rstrip(b"\r\n")
                self._open.clear()
                yield from self._line(whole)

    def _line(self, line: bytes) -> Iterator[str]:
        # Some servers begin with a byte order mark, which the standard allows once.
        if self._first:
            line, self._first = line.removeprefix(b"\xef\xbb\xbf"), False
        name, colon, value = line.partition(b":")
        if not line and self._data:
            data, self._data, self._size = b"\n".join(self._data), [], 0
            yield self._decode(data)
        elif name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value) + 1  # an empty line takes memory, too
            self._check(self._size, "an event")
        elif line and name not in _FIELDS and not (colon and not name):  # a comment: a keep-alive
            shown = line[:60].decode("utf-8", "backslashreplace")
            raise self._broken_stream(f"{shown!r} is no line of an event stream")

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise self._broken_stream("an event is not UTF-8, or ends within a character") from None

    def _check(self, size: int, part: str) -> None:
        if size > MAX_EVENT:
            raise self._broken_stream(f"{part} is longer than {MAX_EVENT} bytes")

    def _broken_stream(self, reason: str) -> BackendBroken:
        return BackendBroken(
            f"{self._address} sent no completion: {clean(reason)}",
            hint="is it a completions server?",
        )


# --- an answer ----------------------------------------------------------------------------------

_FINISH: Final[Mapping[str, FinishReason]] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence"), "stop"),
    **dict.fromkeys(("tool_calls", "function_call"), "tool_calls"),
}
"""The finish reason for each word of a server.

Any other word counts as ``length``: then the text may be incomplete, and is read as cut off
(reading rule 8 of docs/protocol.md).
"""

_FAILURE_REASONS: Final = frozenset(
    ("error", "abort", "aborted", "cancelled", "canceled", "content_filter")
)
"""Finish reasons of failed completions, whose text is not used."""

_MLX_LM: Final = re.compile(r"\d+\.\d+\.\d+[^-]*-\d+\.\d+\.\d+[^-]*-")
"""The beginning of mlx-lm's ``system_fingerprint``: its own version, then MLX's."""


def read_usage(value: Any) -> Usage | None:
    """Return the token counts of an answer; a count that is missing is None."""
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    counts = (value.get("prompt_tokens"), cached, value.get("completion_tokens"))
    usage = Usage(*(count if _is_whole(count) else None for count in counts))
    return None if usage == Usage() else usage


def without_surrogates(text: str) -> str:
    """Return a text without surrogates: pairs are joined, single ones replaced."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


TOKEN_BYTES: Final = 1024
"""A number of bytes that no tokenizer's token has (the longest tokens are runs of spaces)."""

MAX_EMPTY_TOKENS: Final = 3
"""Tokens without text that a server may count: the stop token, and one or two that it holds back.
"""


def check_size(size: int, max_tokens: int, address: str) -> None:
    """Check that a completion is not longer than ``max_tokens`` allows.

    Raises:
        BackendBroken: there is more text than ``max_tokens`` tokens can have.
    """
    # 64 tokens more, so that one long token is no error if max_tokens is small. A choice.
    if size > TOKEN_BYTES * (max_tokens + 64):
        raise BackendBroken(
            f"{address} sent far more text than was asked for", hint="it does not honour max_tokens"
        )


class Collector:
    """Reads one answer, streamed or whole."""

    def __init__(self, address: str, max_tokens: int) -> None:
        self.done = False
        """True after ``[DONE]``."""
        self.finish: FinishReason | None = None
        """The server's finish reason, None until it has come."""
        self.choice: dict[str, Any] = {}
        """The last ``choices[0]`` that the server sent."""
        self._address = address
        self._max_tokens = max_tokens
        self._events = EventReader(address)
        self._usage: Usage | None = None
        self._high = ""  # the first half of a surrogate pair that the server has split
        self._bytes = 0
        self._silent_tokens = 0  # the number of tokens that may have no event of their own
        self._texts = 0
        self._mlx_lm = False
        self._thought = 0  # the events of a thought that the server removed, before all text
        self._cut = False

    def feed(self, data: bytes | None) -> Iterator[str]:
        """Take the next bytes of the stream, and yield the texts that they add.

        Args:
            data: the next bytes, None at the end of the stream.

        Raises:
            BackendBroken: the bytes are not a stream of a completion, there is too much text, or
                the stream ended in the middle.
            BackendRefused: the server sent an error, or a finish reason of a failure.
        """
        try:
            for event in self._events.feed(data):
                if text := self._event(event):
                    yield text
                if self.done:
                    return
        except BackendError:
            if self.finish is None:
                raise
            self.done = True  # the text is complete: errors after the finish reason do not matter
        if data is None and self.finish is None:
            raise BackendBroken(
                f"{self._address} broke off in the middle of a completion",
                hint=f"its text is not used; {LOG_HINT}",
            )

    def take_whole(self, data: bytes) -> Chunk:
        """Return the completion of an answer that is not streamed. Raises as `feed` does."""
        try:
            text = self._event(data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise BackendBroken(f"{self._address} sent what is not UTF-8") from error
        if self.finish is None and "text" not in self.choice:
            raise BackendBroken(f"{self._address} sent what is no completion", hint=LOG_HINT)
        self._mlx_lm = False  # without events, removed text cannot be noticed
        last = self.last()
        return replace(last, text=text + last.text)

    def last(self) -> Chunk:
        """Return the chunk that ends the completion, with the text that was held back."""
        # After [DONE] without a finish reason the text may be incomplete: it counts as cut off.
        text = "\ufffd" if self._high else ""
        return Chunk(text, self.finish or "length", self._usage, self._is_edited())

    def _event(self, data: str) -> str:
        if data.strip() == "[DONE]":
            self.done = True
            return ""
        value = self._object(data)
        usage, fingerprint = read_usage(value.get("usage")), value.get("system_fingerprint")
        mlx_lm = isinstance(fingerprint, str) and _MLX_LM.match(fingerprint) is not None
        self._usage, self._mlx_lm = usage or self._usage, self._mlx_lm or mlx_lm
        choices = value.get("choices")
        if not choices and isinstance(choices, list | None):
            return ""
        choice = choices[0] if isinstance(choices, list) else None
        if not isinstance(choice, dict):
            raise self._broken_answer("choices that cannot be read", value)
        if self.finish is not None:
            return ""
        self.choice = choice
        raw_text = self._extract_text(choice)
        self.finish = self._read_finish(choice)
        text, size = self._whole_characters(raw_text)
        if raw_text:
            self._texts += 1
            self._silent_tokens += size - len(text) + sum(map(text.count, " \n<["))
        elif self.finish is None and usage is None and mlx_lm:
            # mlx-lm's server sends an event without text for reasoning alone
            self._thought += not self._bytes
            self._cut = self._cut or self._bytes > 0
        return text

    def _extract_text(self, choice: dict[str, Any]) -> str:
        """Return the text that an event adds."""
        text = choice.get("text")
        if text is None and ("delta" in choice or "message" in choice):
            raise BackendBroken(
                f"{self._address} answers in chat form where a text completion was asked for"
            )
        if not isinstance(text, str | None):
            raise self._broken_answer("a text that is no string", choice)
        return text or ""

    def _object(self, data: str) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._broken_answer("what is no JSON", data) from error
        if not isinstance(value, dict):
            raise self._broken_answer("what is no object", data)
        if value.get("error"):
            message = clean(error_text(value))
            raise BackendRefused(
                f"{self._address} broke off with an error: {message}",
                hint=find_context_hint(message),
            )
        return value

    def _read_finish(self, choice: Mapping[str, Any]) -> FinishReason | None:
        """Return the finish reason of an event, None while the completion goes on."""
        reason = choice.get("finish_reason") or None
        if not isinstance(reason, str | None):
            raise self._broken_answer("a finish reason that is no string", choice)
        if reason is not None and reason.lower() in _FAILURE_REASONS:
            raise BackendRefused(f"{self._address} gave the completion up: {clean(reason, 40)}")
        return None if reason is None else _FINISH.get(reason.lower(), "length")

    def _broken_answer(self, content: str, data: object) -> BackendBroken:
        try:
            shown = data if isinstance(data, str) else json.dumps(data)
        except RecursionError:
            shown = "too deep to be shown"
        return BackendBroken(f"{self._address} sent {content}: {clean(shown, 80)!r}", hint=LOG_HINT)

    def _whole_characters(self, text: str) -> tuple[str, int]:
        """Return the text up to its last complete character, and its size in bytes.

        The rest is held back.

        Raises:
            BackendBroken: there is too much text.
        """
        text, self._high = self._high + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._high = text[:-1], text[-1]
        text = without_surrogates(text)
        size = len(text) if text.isascii() else len(text.encode())
        self._bytes += size
        check_size(self._retained_bytes(), self._max_tokens, self._address)
        return text, size

    def _retained_bytes(self) -> int:
        """Return the number of bytes of the model's output so far."""
        return self._bytes

    def _is_edited(self) -> bool:
        """Return True if the server has certainly removed text from the completion.

        A thought before all text does not count. mlx-lm's server sends one event for each token
        with text. So tokens without an event, and without a reason for that, were removed. With any
        other server each token has at least one byte.
        """
        if self.finish == "tool_calls" or self._cut or (self._thought and not self._bytes):
            return True
        tokens = self._usage.completion_tokens if self._usage else None
        if tokens is None:
            return False
        explained = self._bytes
        if self._mlx_lm:
            explained = min(explained, self._texts + self._silent_tokens)
        return tokens - self._thought > explained + MAX_EMPTY_TOKENS
