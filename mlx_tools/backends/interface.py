"""The interface to a model: text in, pieces of text out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import force_setattr

from mlx_tools.errors import read_attribute, require_items, wrong_argument
from mlx_tools.messages import FinishReason, Usage

BackendKind = Literal["auto", "completions", "server", "local", "native"]
"""The wanted kind of backend: see `mlx_tools.backends.choose_backend`."""

RouteChoice = Literal["auto", "native", "prompted"]
"""The wanted route to a model: see `mlx_tools.backends.find_route`."""


MODEL_FOLDER: Final = "give the path of the model's folder"
"""The hint for a ``model`` argument that is not a folder."""


def check_token_ids(ids: Any) -> tuple[int, ...]:
    """Return the ``forbidden_tokens`` of a backend as a tuple.

    Raises:
        UsageError: they are not a list of whole numbers.
    """
    hint = "give a list of token ids"
    items = require_items("forbidden_tokens", ids, hint)
    if ids is None or not all(isinstance(item, int) for item in items):
        raise wrong_argument("forbidden_tokens", ids, hint)
    return tuple(items)


class GrammarText(Struct, frozen=True):
    """A grammar in the two dialects of backends."""

    gbnf: str
    """The grammar in llama.cpp's dialect."""
    lark: str
    """The grammar in llguidance's dialect, which checks arguments more exactly."""


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """One request for a completion, and its limits.

    A server with a chat interface can use ``messages``, ``tools`` and ``tool_choice`` instead of
    ``prompt``, which has the same content. The answer is the turn as text, with its calls as lines
    of the protocol. A backend that only completes text uses ``prompt``.
    """

    prompt: str
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int | None = None
    timeout: float = 120.0
    """Seconds for the whole completion, without any extension."""
    idle_timeout: float = 60.0
    """Seconds that the server may be silent. A keep-alive ends a silence."""
    grammar: GrammarText | None = None
    """The grammar of the completion. A backend that does not support grammars raises `UsageError`.
    """
    top_logprobs: int = 0
    """Alternatives to report for each generated token. A backend that cannot report them ignores
    this."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Numbers from -100 (never) to 100 that are added to the logits of these token ids. Some
    backends ignore them."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters by their names in the server's interface, such as ``top_p``, ``min_p`` and
    penalties.

    They are sent unchanged. The fields of this class override them. A backend ignores parameters
    that it does not know.
    """
    messages: Sequence[Mapping[str, Any]] | None = None
    """The messages in the format of OpenAI's chat completions, None to complete ``prompt``."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools in the format of OpenAI's chat completions."""
    tool_choice: str = "auto"
    """``auto``, ``none``, ``required`` or the name of a tool."""
    conversation: str = ""
    """A key that all requests of one conversation have, and few other requests.

    If there are several servers, it decides which one is asked. If it is empty, the prompt's
    beginning is the key.
    """


class TokenScore(Struct, frozen=True):
    """One alternative for a generated token, with its likelihood.

    The text of a control token, such as an end token, is its name.
    """

    text: str
    """The token's text, with U+FFFD for bytes that are not a complete character."""
    logprob: float
    """The natural logarithm of the token's probability."""
    data: bytes = b""
    """The token's bytes, which may be a part of a character; by default those of ``text``."""
    id: int | None = None
    """The token's id, None if unknown."""

    def __post_init__(self) -> None:
        if not self.data:
            force_setattr(self, "data", self.text.encode("utf-8", "replace"))


class Chunk(Struct, frozen=True):
    """A piece of a completion.

    The last chunk has the finish reason, and the usage if it is known.
    """

    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    edited: bool = False
    """True, in the last chunk, if the server removed a part of the model's text.

    mlx-lm's server removes reasoning and native tool calls. A thought before all other text does
    not count. It is False if unknown.
    """
    scores: tuple[tuple[TokenScore, ...], ...] = ()
    """The likeliest alternatives for each token of this chunk, the best first; or empty."""


class BackendTraits(Struct, frozen=True, kw_only=True):
    """The traits of a backend of this package, in its attribute ``traits``.

    Other backends have none.
    """

    asks_server: bool = False
    """True if it asks a server that is already running, as `CompletionsBackend` does."""

    own_model: bool = False
    """True if its ``model`` is the folder, or the name, of a model on this machine."""

    starts_server: bool = False
    """True if it starts its server itself."""

    takes_grammar: bool = False
    """True if it supports grammars. For a server this is False, because it must be asked."""


def read_traits(backend: object) -> BackendTraits:
    """Return the traits of a backend or of its wrapper; without any, all are False."""
    traits = read_attribute(backend, "traits")
    return traits if isinstance(traits, BackendTraits) else BackendTraits()


class Backend(Protocol):
    """Anything that completes text.

    `complete` is an async generator. Closing it (``aclosing``) cancels the request and releases the
    connection at once. It raises `mlx_tools.errors.BackendError`, and `mlx_tools.errors.UsageError`
    for a request that cannot be sent. If it raises, the text before the error does not count.

    Two members are optional. ``async def start(self)`` loads the model, or starts its server; it is
    awaited before the time of a run begins. ``context`` is the size of the model's context in
    tokens: a number, a function without arguments that returns one, or None.
    """

    def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]: ...


class RequestCancelled(Exception):
    """The request was cancelled."""
