"""One turn as any client asks for it, and what it is answered with.

Each interface (chat completions, responses, messages) reads its own body into a `TurnRequest` and
writes the turn in its own form; between the two there is one core, `turn.py`. It tells of the text
as it grows, and of calls once they are judged, with the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


class ClientCall(Struct, frozen=True):
    """A call in a client's conversation, or in a turn for one. ``id`` is the one that the client
    knows it by, ``arguments`` the JSON text of an object, as it was sent."""

    id: str
    name: str
    arguments: str


class ClientMessage(Struct, frozen=True):
    """A message of a client's conversation.

    ``calls`` are an assistant's; ``call_id`` is the call that a tool's message answers, and
    ``failed`` whether it says that the call failed. ``content`` is text, its parts joined.
    """

    role: Role
    content: str = ""
    calls: tuple[ClientCall, ...] = ()
    call_id: str = ""
    failed: bool = False


class TurnRequest(Struct, frozen=True, kw_only=True):
    """What a client asks for.

    ``tool_choice`` is ``auto``, ``none``, ``required`` or a tool's name. ``allowed`` are the tools
    that may be called now where these are not all, ``parallel`` is whether the turn may hold
    several calls. ``schema`` is what the answer must fit, as a JSON value; None for text.
    ``sampling`` goes to the server as it is (temperature, top_p, seed …). ``stop`` are texts that
    end the answer, ``max_tokens`` is a ceiling, None for the settings' own. ``left_out`` are the
    fields and tools that were accepted and have no effect, by the names that the client gave.
    ``size`` is how many bytes the body has that it was read of; ``streamed``: the client sees the
    text as it comes.
    ``prompt`` is one that goes to the model as it is, in place of all messages; ``top_logprobs`` is
    how many alternatives of each token are wanted then.
    """

    messages: tuple[ClientMessage, ...] = ()
    prompt: str | None = None
    model: str = ""
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    allowed: frozenset[str] | None = None
    parallel: bool = True
    schema: Mapping[str, Any] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    left_out: tuple[str, ...] = ()
    top_logprobs: int = 0
    size: int = 0
    streamed: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the model may write as it does: nothing is called, and no form is held to."""
        return not self.tools and self.schema is None


class TurnDone(Struct, frozen=True, kw_only=True):
    """The end of a turn, and all of it: ``text`` is what its pieces join to.

    ``repairs`` names what was repaired in the calls, a dialect among it; ``echoed`` are the ids of
    calls that stand in an earlier result. ``stopped_by`` is the client's stop text that ended the
    answer, empty where none did. ``call_like``: the answer looks like a call that cannot be read,
    also after the model was told so. ``scores`` are the alternatives of each token, where they were
    asked for and the server says them.
    """

    finish: Finish
    text: str = ""
    calls: tuple[ClientCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    repairs: tuple[str, ...] = ()
    echoed: tuple[str, ...] = ()
    stopped_by: str = ""
    call_like: bool = False
    scores: tuple[tuple[TokenScore, ...], ...] = ()


_FINAL: Final = frozenset(("model_output_invalid", "timeout", "upstream_timeout"))
"""Codes of server errors that the same request meets again, so clients should not repeat it."""

_PASSING: Final = frozenset((408, 409, 429))
"""Statuses below 500 of requests that may succeed later."""

RETRY_SECONDS: Final = 5
"""Seconds after which to ask again if nobody says better: a server that loads takes some."""


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
    """The error for a field that holds what cannot be."""
    return ApiError(400, "invalid_value", f"{param}: {problem}", param=param)


def missing(param: str) -> ApiError:
    """The error for a field that must be there."""
    problem = f"{param}: Field required"
    return ApiError(400, "missing_required_parameter", problem, param=param)


def unsupported(param: str, problem: str) -> ApiError:
    """The error for what cannot be had here, and would change the answer."""
    return ApiError(400, "unsupported_parameter", f"{param}: {problem}", param=param)


def as_api_error(error: MlxToolsError) -> ApiError:
    """What a client is told of an error of ours."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, StorageError):  # the disk is full, the database is away
        return ApiError(503, "storage_unavailable", str(error), retry_after=5)
    if isinstance(error, BackendTimeout):
        # What would allow a run more time is no option of the gateway's.
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
    """The body that tells of an error, in OpenAI's form."""
    told = {"message": error.message, "type": error.type, "param": error.param}
    return {"error": told | {"code": error.code}}


# --- how it is told -------------------------------------------------------------------------------

DONE: Final = "data: [DONE]\n\n"
"""The last event of OpenAI's streams."""


def server_sent(data: Mapping[str, Any], kind: str = "") -> str:
    """One server-sent event with its blank line, of a ``kind`` or none."""
    named = f"event: {kind}\n" if kind else ""
    return f"{named}data: {json_line(data)}\n\n"


class Reply(Protocol):
    """How one interface answers one request.

    ``streamed`` is whether the client wants events. Each text of `begin`, `more`, `end` and `fail`
    is one server-sent event, whole, with its blank line.
    """

    streamed: bool

    def begin(self) -> Iterable[str]:
        """The events before anything has come."""
        ...

    def more(self, text: str) -> Iterable[str]:
        """The events that tell of more of the answer."""
        ...

    def end(self, done: TurnDone) -> Iterable[str]:
        """The events that tell of the calls, and those that end the stream."""
        ...

    def fail(self, error: ApiError) -> Iterable[str]:
        """The events that end a stream in which something went wrong."""
        ...

    def whole(self, done: TurnDone) -> JsonObject:
        """The JSON body of a reply that is not streamed."""
        ...
