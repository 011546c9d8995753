"""One turn as any client asks for it, and the answer to it.

Each interface (chat completions, responses, messages) reads its own body into a `TurnRequest` and
writes the turn in its own form. Between the two there is one core, `turn.py`. It sends text and
thoughts as they come, a call once its name is accepted, and the arguments of the call value by
value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol

from msgspec import Struct, field

from mlx_tools.backends import TokenScore
from mlx_tools.errors import (
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    MlxToolsError,
    StorageError,
)
from mlx_tools.messages import ToolSpec, Usage, json_line

Role = Literal["system", "user", "assistant", "tool"]

Finish = Literal["stop", "length", "tool_calls"]

JsonObject = dict[str, Any]

_MESSAGE_OVERHEAD: Final = 40
"""Characters of a message, or of a call, besides its text: braces, and the names of fields."""


class ClientCall(Struct, frozen=True, gc=False):
    """A call in a client's conversation, or in a turn for one.

    Attributes:
        id: The id by which the client knows it.
        name: The model's name of the tool.
        arguments: The JSON text of an object, as it was sent.
    """

    id: str
    name: str
    arguments: str


# A long conversation has hundreds of these, and no cycles that a garbage collector could find.
class ClientMessage(Struct, frozen=True, gc=False):
    """A message of a client's conversation."""

    role: Role
    content: str = ""
    """The text, its parts joined."""
    calls: tuple[ClientCall, ...] = ()
    """The calls of an assistant's message."""
    call_id: str = ""
    """The call that a tool's message answers."""
    is_error: bool = False
    """True if a tool's message says that the call failed."""


class TurnRequest(Struct, frozen=True, kw_only=True):
    """A turn that a client asks for."""

    messages: tuple[ClientMessage, ...] = ()
    prompt: str | None = None
    """A prompt that goes to the model unchanged, in place of all messages."""
    model: str = ""
    tools: tuple[ToolSpec, ...] = ()
    custom_tools: frozenset[str] = frozenset()
    """The tools whose one argument is a text."""
    tool_choice: str = "auto"
    """``auto``, ``none``, ``required`` or a tool's name."""
    allowed: frozenset[str] | None = None
    """The tools that may be called now; None if all may."""
    parallel: bool = True
    """True if the turn may have several calls."""
    schema: Mapping[str, Any] | None = None
    """The schema that the answer must fit, as a JSON value; None for text."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that go to the server unchanged (temperature, top_p, seed …)."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer."""
    max_tokens: int | None = None
    """The most tokens of the turn; None for the limit of the settings."""
    left_out: tuple[str, ...] = ()
    """Accepted fields and tools that have no effect, by the client's names."""
    catalog_note: str = ""
    """The part of the tools' descriptions that is left, in words; empty if all of it is."""
    top_logprobs: int = 0
    """The alternatives of each token that are asked for, with ``prompt``."""
    size: int = 0
    """The bytes of the body."""
    streamed: bool = True
    """True if the client sees the text as it comes."""

    @property
    def conversation(self) -> tuple[ClientMessage, ...]:
        """The messages before the turn; a last message of the model begins the turn."""
        return self.messages[:-1] if self._ends_with_model else self.messages

    @property
    def beginning(self) -> str:
        """The text of the model's last message, with which the turn begins; else empty."""
        return self.messages[-1].content if self._ends_with_model else ""

    @property
    def _ends_with_model(self) -> bool:
        last = self.messages[-1] if len(self.messages) > 1 else None
        return last is not None and last.role == "assistant" and not last.calls

    @property
    def messages_size(self) -> int:
        """The characters of the messages in the body, about."""
        texts = sum(len(message.content) for message in self.messages)
        calls = (call for message in self.messages if message.calls for call in message.calls)
        arguments = sum(len(call.arguments) + _MESSAGE_OVERHEAD for call in calls)
        return texts + arguments + _MESSAGE_OVERHEAD * len(self.messages)

    @property
    def messages_count(self) -> int:
        """The number of messages, and of the calls in them."""
        return len(self.messages) + sum([len(m.calls) for m in self.messages if m.calls])

    @property
    def is_plain(self) -> bool:
        """True if the model may write freely: there are neither tools nor a schema."""
        return not self.tools and self.schema is None


class TurnDone(Struct, frozen=True, kw_only=True):
    """The end of a turn, and all of it: ``text`` is what its pieces join to.

    Attributes:
        thought: What the model thought before it spoke, as far as it was told.
        calls: The calls, those first that the client was told of before.
        repairs: The names of the repairs of the calls, a dialect among them.
        echoed: The ids of calls that stand in an earlier result.
        stopped_by: The client's stop text that ended the answer, empty if none did.
        call_like: Whether the answer looks like a call that cannot be read, also after the model
            was told so.
        beginning_left_out: Whether the answer does not follow the client's beginning.
        scores: The alternatives of each token, if they were asked for and the server says them.
    """

    finish: Finish
    text: str = ""
    thought: str = ""
    calls: tuple[ClientCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    repairs: tuple[str, ...] = ()
    echoed: tuple[str, ...] = ()
    stopped_by: str = ""
    call_like: bool = False
    beginning_left_out: bool = False
    scores: tuple[tuple[TokenScore, ...], ...] = ()

    @property
    def notes(self) -> JsonObject:
        """The details that are known only at the end, for headers or the last event."""
        notes = {
            "repairs": [*self.repairs],
            "echoed": [*self.echoed],
            "call_like": self.call_like,
            "beginning_left_out": self.beginning_left_out,
        }
        return {name: value for name, value in notes.items() if value}


# --- a turn while it forms ------------------------------------------------------------------------


class FirstToken(Struct, frozen=True):
    """The model's first token has come."""


class TextAdded(Struct, frozen=True):
    """More of the answer's text."""

    text: str


class ThoughtAdded(Struct, frozen=True):
    """More of the model's thought."""

    text: str


class CallAdded(Struct, frozen=True):
    """A new call; ``index`` is its place among the calls of the turn."""

    index: int
    id: str
    name: str


class ArgumentsAdded(Struct, frozen=True):
    """More of a call's arguments: the next piece of one JSON text."""

    index: int
    text: str


TurnEvent = FirstToken | TextAdded | ThoughtAdded | CallAdded | ArgumentsAdded
Emit = Callable[[TurnEvent], None]
"""Takes the events of a turn, as it is written."""


class SentCalls:
    """The characters of each call that were sent, in the stream of one interface."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._names: list[str] = []

    def begin(self, name: str) -> None:
        """Note that the next call was begun, of the tool of this name."""
        self._sizes.append(0)
        self._names.append(name)

    def name(self, index: int) -> str:
        """Return the name of the tool of a call that was begun."""
        return self._names[index]

    def add(self, index: int, piece: str) -> None:
        """Note that a piece of a call's arguments, or of its text, was sent."""
        self._sizes[index] += len(piece)

    def __len__(self) -> int:
        return len(self._sizes)

    def remaining(self, index: int, text: str) -> str:
        """Return the part of a call's whole arguments or text that was not sent yet."""
        return text[self._sizes[index] :]


# --- errors ---------------------------------------------------------------------------------------

_FINAL: Final = frozenset(("model_output_invalid", "timeout", "upstream_timeout"))
"""Codes of server errors that the same request would cause again, so clients should not repeat it.
"""

_PASSING: Final = frozenset((408, 409, 429))
"""Statuses below 500 of requests that may succeed later."""

RETRY_SECONDS: Final = 5
"""Seconds after which to ask again if the server gives no time: loading a model takes some."""


class ApiError(MlxToolsError):
    """A request that cannot be served, as clients are told of it.

    Attributes:
        status: The HTTP status.
        code: The error's name in OpenAI's interface.
        param: The field at fault, or None.
        retry_after: Seconds until the client may ask again, or a date as HTTP writes it.
        should_retry: Whether the same request can succeed later, or None if that is unknown.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | str | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        if retry_after is None and status in (429, 503):
            retry_after = RETRY_SECONDS
        self.retry_after = retry_after
        is_final = code in _FINAL or (status < 500 and status not in _PASSING)
        if should_retry is None and (retry_after is not None or is_final):
            should_retry = not is_final
        self.should_retry = should_retry

    @property
    def headers(self) -> dict[str, str]:
        """The response headers that say whether and when to ask again."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        if self.should_retry is not None:
            headers["x-should-retry"] = str(self.should_retry).lower()
        return headers

    @property
    def type(self) -> str:
        """The kind of error, in OpenAI's words."""
        if self.status in (401, 403):
            return "authentication_error" if self.status == 401 else "permission_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"


def invalid(param: str, problem: str) -> ApiError:
    """Return the error for a field with a value that is not possible."""
    return ApiError(400, "invalid_value", f"{param}: {problem}", param=param)


def missing(param: str) -> ApiError:
    """Return the error for a field that must be there."""
    problem = f"{param}: Field required"
    return ApiError(400, "missing_required_parameter", problem, param=param)


def unsupported(param: str, problem: str) -> ApiError:
    """Return the error for a value that is not supported and would change the answer."""
    return ApiError(400, "unsupported_parameter", f"{param}: {problem}", param=param)


def as_api_error(error: MlxToolsError) -> ApiError:
    """Return the error that a client gets for an error of mlx-tools."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, StorageError):  # the disk is full, the database is away
        return ApiError(503, "storage_unavailable", str(error), retry_after=5)
    if isinstance(error, BackendTimeout):
        # A gateway's client has no option to allow a run more time.
        return ApiError(504, "upstream_timeout", error.message)
    if isinstance(error, BackendUnreachable):
        return ApiError(502, "upstream_error", str(error), should_retry=False)
    if isinstance(error, BackendRefused) and error.status in (429, 503):
        code = "rate_limit_exceeded" if error.status == 429 else "upstream_error"
        later = error.retry_after or None
        return ApiError(error.status, code, str(error), retry_after=later)
    if isinstance(error, BackendError):
        return ApiError(502, "upstream_error", str(error))
    return ApiError(400, "invalid_request", str(error))


def openai_error(error: ApiError) -> JsonObject:
    """Return the body of an error, in OpenAI's form."""
    told = {"message": error.message, "type": error.type, "param": error.param}
    return {"error": told | {"code": error.code}}


# --- how it is told -------------------------------------------------------------------------------

DONE: Final = "data: [DONE]\n\n"
"""The last event of OpenAI's streams."""


def server_sent(data: Mapping[str, Any], kind: str = "") -> str:
    """Return one server-sent event with its blank line, of a ``kind`` or none."""
    named = f"event: {kind}\n" if kind else ""
    return f"{named}data: {json_line(data)}\n\n"


class EventTemplate:
    """A server-sent event of which only one text changes; the rest is written once.

    ``data`` has `CHANGES` in the place of that text, and after it nothing that a client wrote.
    """

    CHANGES: Final = "\x00"

    def __init__(self, data: Mapping[str, Any], kind: str = "") -> None:
        self._head, _, self._tail = server_sent(data, kind).rpartition(json_line(self.CHANGES))

    def with_text(self, text: str) -> str:
        """Return the event with this text."""
        return f"{self._head}{json_line(text)}{self._tail}"


class Reply(Protocol):
    """The answer of one interface to one request.

    ``streamed`` is True if the client wants events. Each text that a method returns is one complete
    server-sent event, with its blank line. The texts are made in the order in which they are sent.
    """

    streamed: bool

    def begin(self) -> Iterable[str]:
        """Return the opening events."""
        ...

    def tell(self, event: TurnEvent) -> Iterable[str]:
        """Return the events for what has come."""
        ...

    def idle(self) -> Iterable[str]:
        """Return an event without content, which shows that the server is alive."""
        ...

    def end(self, done: TurnDone) -> Iterable[str]:
        """Return the events for the rest of the calls, and those that end the stream."""
        ...

    def fail(self, error: ApiError) -> Iterable[str]:
        """Return the events that end a stream after an error."""
        ...

    def whole(self, done: TurnDone) -> JsonObject:
        """Return the JSON body of a reply that is not streamed."""
        ...
