"""The interface to a model: text in, pieces of text out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import force_setattr

from mlx_tools.errors import read_attribute, require_items, wrong_argument
from mlx_tools.messages import FinishReason, Usage

BackendKind = Literal["auto", "completions", "server", "local", "native"]
"""The place of a model, as a caller asks for it: see `mlx_tools.backends.choose_backend`."""

RouteChoice = Literal["auto", "native", "prompted"]
"""The way in which a model is asked: see `mlx_tools.backends.find_route`."""


MODEL_FOLDER: Final = "give the path of the model's folder"
"""Advice for a ``model`` argument that is no folder."""


def check_token_ids(ids: Any) -> tuple[int, ...]:
    """Return the ``forbidden_tokens`` of a backend as a tuple.

    Raises:
        UsageError: they are no list of whole numbers.
    """
    hint = "give a list of token ids"
    items = require_items("forbidden_tokens", ids, hint)
    if ids is None or not all(isinstance(item, int) for item in items):
        raise wrong_argument("forbidden_tokens", ids, hint)
    return tuple(items)


class GrammarText(Struct, frozen=True):
    """A grammar in the two dialects that backends take."""

    gbnf: str
    """In llama.cpp's dialect."""
    lark: str
    """In llguidance's dialect, which holds arguments more closely."""


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """One request for a completion, and its limits.

    ``messages``, ``tools`` and ``tool_choice`` ask the model through its server's own chat
    interface. The answer is the turn as text, with its calls as lines of the protocol. They say the
    same as ``prompt``, which a backend that only completes text uses.
    """

    prompt: str
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int | None = None
    timeout: float = 120.0
    """Seconds for the whole completion; nothing extends them."""
    idle_timeout: float = 60.0
    """Seconds that the server may be silent. A keep-alive breaks the silence."""
    grammar: GrammarText | None = None
    """The grammar that holds the completion. A backend that takes none raises `UsageError`."""
    top_logprobs: int = 0
    """Alternatives to report for each generated token. A backend that cannot report them sends
    none."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids, from -100 (never) to 100. Some backends leave it out.
    """
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters by their names in the server's interface (``top_p``, ``min_p``, penalties
    …).

    They are sent as they are. The fields of this class override them, and a backend leaves out the
    ones that it does not know.
    """
    messages: Sequence[Mapping[str, Any]] | None = None
    """The conversation as OpenAI's chat interface has it, None to complete ``prompt``."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools as OpenAI's chat interface has them."""
    tool_choice: str = "auto"
    """``auto``, ``none``, ``required`` or the name of a tool."""
    conversation: str = ""
    """A key that all requests of one conversation share, and few others; empty: the prompt's
    beginning.

    With several servers it decides which one is asked.
    """


class TokenScore(Struct, frozen=True):
    """One alternative for a generated token, and how likely it was.

    A control token, such as one that ends a completion, appears as it is spelled.
    """

    text: str
    """The token's own text, with U+FFFD for bytes that are no whole character."""
    logprob: float
    """The natural logarithm of its probability."""
    data: bytes = b""
    """Its bytes, which need not be a whole character. If left out, those of ``text``."""
    id: int | None = None
    """Its number, None if unknown."""

    def __post_init__(self) -> None:
        if not self.data:
            force_setattr(self, "data", self.text.encode("utf-8", "replace"))


class Chunk(Struct, frozen=True):
    """A piece of a completion.

    The last one carries the finish reason, and usage if it is known.
    """

    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    edited: bool = False
    """On the last chunk: the server cut out some of what the model wrote.

    mlx-lm's server does so with reasoning and native tool calls, so the text is not the model's
    own. A thought before all text does not count. False if it is unknown.
    """
    scores: tuple[tuple[TokenScore, ...], ...] = ()
    """For each token of this chunk its likeliest alternatives, best first; empty if there are none.
    """


class BackendTraits(Struct, frozen=True, kw_only=True):
    """The abilities of a backend of this package besides completing text: ``traits``.

    A backend from elsewhere has none, whatever else it offers.
    """

    asks_server: bool = False
    """It asks a server that is already running, as `CompletionsBackend` does."""

    own_model: bool = False
    """Its ``model`` is the folder, or the name, of a model on this machine."""

    starts_server: bool = False
    """It starts its server itself."""

    takes_grammar: bool = False
    """It holds its model to a grammar, and no server must be asked whether that works."""


def read_traits(backend: object) -> BackendTraits:
    """Return the traits of one of our backends, or of a wrapper that passes them on.

    Else no traits.
    """
    traits = read_attribute(backend, "traits")
    return traits if isinstance(traits, BackendTraits) else BackendTraits()


class Backend(Protocol):
    """Anything that completes text.

    `complete` is an async generator. Closing it (``aclosing``) cancels the request and frees the
    connection at once. It raises `mlx_tools.errors.BackendError`, and `mlx_tools.errors.UsageError`
    for a request that cannot be sent. A completion that raises never counts, whatever text came
    before.

    Two members are optional. ``async def start(self)`` loads what is needed, and is awaited before
    the time of a run begins. ``context`` is the size of the model's context in tokens: a number, a
    function without arguments that returns one, or None.
    """

    def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]: ...


class RequestCancelled(Exception):
    """The request was cancelled."""
