"""The seam to a model: text in, pieces of text out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import force_setattr

from mlx_tools.errors import attribute_of, require_items, wrong_argument
from mlx_tools.messages import FinishReason, Usage

BackendKind = Literal["auto", "completions", "server", "local", "native"]
"""Where a model runs, as it is asked for: `mlx_tools.backends.choose_backend`."""

RouteChoice = Literal["auto", "native", "prompted"]
"""By which path a model is asked: `mlx_tools.backends.find_route`."""


MODEL_FOLDER: Final = "give the path of the model's folder"
"""What ``model`` of a backend that loads it may be."""


def check_token_ids(ids: Any) -> tuple[int, ...]:
    """The ``forbidden_tokens`` of a backend, as a tuple. Raises `UsageError`."""
    hint = "give a list of token ids"
    found = require_items("forbidden_tokens", ids, hint)
    if ids is None or not all(isinstance(one, int) for one in found):
        raise wrong_argument("forbidden_tokens", ids, hint)
    return tuple(found)


class GrammarText(Struct, frozen=True):
    """What a completion may be, in the two dialects that backends take.

    ``gbnf`` is llama.cpp's, ``lark`` is llguidance's, which holds arguments more closely.
    """

    gbnf: str
    lark: str


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """What to complete, and within what bounds.

    ``timeout`` bounds the whole completion and ``idle_timeout`` the silence of the server, both in
    seconds. A keep-alive breaks the silence; nothing extends the whole. ``grammar`` is what the
    completion may be; a backend that cannot hold a model to one raises
    `mlx_tools.errors.UsageError`. ``top_logprobs`` is how many alternatives per generated token are
    wanted; a backend that cannot say gives none. ``logit_bias`` is added to the logits of these
    token ids before one is drawn, from -100 (never) to 100; a backend that cannot leaves it out.
    ``sampling`` are further parameters by their names in the server's interface (``top_p``,
    ``top_k``, ``min_p``, penalties …), sent as they are; what stands here by itself goes before
    them, and a backend that does not know one leaves it out.

    ``messages`` ask by way of the server's own chat interface: messages and ``tools`` as OpenAI's
    interface has them, ``tool_choice`` (``auto``, ``none``, ``required`` or a tool's name). What
    comes is the turn as text, its calls as lines of the protocol. They say the same as ``prompt``,
    by which a backend that only completes text goes.

    ``conversation`` is what all requests of a conversation have in common, and few others; empty:
    the beginning of the prompt. Where there are several servers it says which one.
    """

    prompt: str
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int | None = None
    timeout: float = 120.0
    idle_timeout: float = 60.0
    grammar: GrammarText | None = None
    top_logprobs: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"
    conversation: str = ""


class TokenScore(Struct, frozen=True):
    """One alternative for a token that was generated.

    ``text`` is the token's own text, with U+FFFD for bytes that are no whole character;
    ``logprob`` the natural logarithm of its probability. ``data`` are its bytes, which need be no
    whole character either: where none are given, those of the text. A control token, one that ends
    a completion too, stands here as it is spelled. ``id`` is its number, None where it is not told.
    """

    text: str
    logprob: float
    data: bytes = b""
    id: int | None = None

    def __post_init__(self) -> None:
        if not self.data:
            force_setattr(self, "data", self.text.encode("utf-8", "replace"))


class Chunk(Struct, frozen=True):
    """A piece of a completion. The last carries the finish reason, and usage where it is known.

    ``edited``, on the last: the server cut out some of what the model wrote (mlx-lm's does so with
    reasoning and native tool calls), so the text is not the model's own; a thought before all text
    is not meant. False where it cannot be told. What it is told by stands beside it: the finish
    reason ``tool_calls``, and ``usage.completion_tokens`` beside the text that came.

    ``scores`` holds, for each token generated in this chunk, its likeliest alternatives, best
    first; empty where none were asked for or the backend cannot say.
    """

    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    edited: bool = False
    scores: tuple[tuple[TokenScore, ...], ...] = ()


class BackendTraits(Struct, frozen=True, kw_only=True):
    """What a backend of this package can do besides completing text: its ``traits``.

    A foreign backend has none, whatever else it offers.
    """

    asks_server: bool = False
    """It answers what its server serves, as `CompletionsBackend` does."""

    own_model: bool = False
    """Its ``model`` is the folder, or the name, of a model on this machine."""

    starts_server: bool = False
    """Its server is one that it started."""

    takes_grammar: bool = False
    """It holds its model to a grammar without asking a server whether that works."""


def traits_of(backend: object) -> BackendTraits:
    """The traits of one of our backends, or of what passes them on; else none."""
    traits = attribute_of(backend, "traits")
    return traits if isinstance(traits, BackendTraits) else BackendTraits()


class Backend(Protocol):
    """Anything that completes text.

    `complete` is an async generator: closing it (``aclosing``) cancels the request and frees the
    connection at once. It raises `mlx_tools.errors.BackendError`, and `mlx_tools.errors.UsageError`
    for a request that cannot be sent. A completion that raises never counts, whatever text came
    before. Where there is an ``async def start(self)`` besides, which loads what is needed, it is
    awaited before a run's time begins. ``context`` may say how many tokens the model takes: a
    number, or a function without arguments that returns one, or None.
    """

    def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]: ...
