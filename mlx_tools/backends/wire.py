"""The completions interface as bytes: a request's body, an event's meaning. Pure.

**Every request carries a seed.** mlx-lm's server runs requests without one in a batch, where a
prompt whose tokens its cache holds whole ends the thread that runs the model, for every client and
until it is restarted. A request with a seed is served on its own, where the same fault is caught
and answered. So no request built here can kill the server, whatever was asked before and by whom;
docs/backends.md has the measurements.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from mlx_tools.backends.edge import error_text
from mlx_tools.backends.interface import CompletionRequest, GrammarText
from mlx_tools.errors import BackendBroken, BackendRefused, BackendUnreachable, UsageError
from mlx_tools.messages import FinishReason, Usage
from mlx_tools.process import clean

if TYPE_CHECKING:
    from mlx_tools.backends.completions import CompletionsBackend


GrammarOption = Literal["grammar", "structured_outputs", "guided_grammar"]
"""llama.cpp's, vLLM's, and an older vLLM's."""

HINT: Final = "use the strategy guided, or the model in this process: --backend local"


def grammar_fields(option: GrammarOption, grammar: GrammarText) -> dict[str, Any]:
    """What to add to a request's body."""
    if option == "structured_outputs":
        return {option: {"grammar": grammar.gbnf}}
    return {option: grammar.gbnf}


async def find_grammar_option(backend: CompletionsBackend, timeout: float = 30.0) -> GrammarOption:
    """Which option holds this server's model to a grammar: found by short requests, whose grammar
    allows one word alone.

    Raises:
        UsageError: none does.
        BackendError: the server cannot be asked.
    """
    from mlx_tools.backends.capabilities import obeys_grammar

    found = await obeys_grammar(backend, timeout)
    if found is not None:
        return found
    health = await backend.health()
    if not health.ok:
        dead = health.as_error(str(backend.address))
        raise dead or BackendUnreachable(f"{backend.address}: {health.detail}")
    raise UsageError(f"the server at {backend.address} does not take grammars", hint=HINT)


_FINISH: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "limit": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}

_FAILED: Final = frozenset(("error", "abort", "aborted", "cancelled", "canceled", "content_filter"))

_MLX_LM: Final = re.compile(r"\d+\.\d+\.\d+[^-]*-\d+\.\d+\.\d+[^-]*-")
"""How mlx-lm's ``system_fingerprint`` begins: its own version, then MLX's."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event says. ``finish`` is None while the completion goes on. ``choice`` is all that
    the server sent of it."""

    text: str = ""
    finish: FinishReason | None = None
    usage: Usage | None = None
    mlx_lm: bool = False
    choice: Mapping[str, Any] | None = None


def check_request(request: CompletionRequest) -> str:
    """Refuse what no server can complete; give the prompt as it is sent.

    A lone surrogate (from a file name that is no UTF-8, say) cannot be sent and becomes U+FFFD.

    Raises:
        UsageError: names the value and what is allowed.
    """
    prompt = without_surrogates(request.prompt)
    if not prompt:
        raise UsageError("the prompt is empty", hint="there must be something to complete")
    if not _whole(request.max_tokens) or request.max_tokens < 1:
        raise UsageError(
            f"max_tokens is {request.max_tokens!r}", hint="it must be a whole number from 1"
        )
    for name in ("temperature", "timeout", "idle_timeout"):
        value = getattr(request, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        zero = name == "temperature"
        if not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            bound = "from 0" if zero else "above 0"
            raise UsageError(f"{name} is {value!r}", hint=f"it must be a finite number {bound}")
    seed = request.seed
    if seed is not None and not (_whole(seed) and 0 <= seed < 2**63):
        raise UsageError(f"seed is {seed!r}", hint="it must be a whole number from 0 to 2**63 - 1")
    for token, bias in request.logit_bias.items():
        number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not (_whole(token) and token >= 0 and number and -100 <= bias <= 100):
            raise UsageError(
                f"logit_bias holds {token!r}: {bias!r}",
                hint="it maps token ids, whole numbers from 0, to numbers from -100 to 100",
            )
    return prompt


def completion_body(
    request: CompletionRequest,
    *,
    model: str | None = None,
    forbidden_tokens: Sequence[int] = (),
    grammar_option: GrammarOption | None = None,
    stream: bool = True,
) -> dict[str, Any]:
    """The JSON body that asks for ``request``, streamed with usage at the end, or whole.

    ``grammar_option`` is how the server takes the request's grammar, where it has one.

    Without a seed of the caller's it gets one that changes nothing: any constant where the
    temperature is 0, a fresh random one elsewhere.
    """
    prompt = check_request(request)
    seed = request.seed
    if seed is None:
        seed = 0 if request.temperature == 0 else secrets.randbelow(2**31)
    body: dict[str, Any] = {
        "prompt": prompt,
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


def read_event(data: str, address: str) -> Piece:
    """What one event's data says, or an answer that came whole.

    Raises:
        BackendRefused: it is an error of the server's.
        BackendBroken: it is no piece of a completion.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BackendBroken(
            f"{address} sent what is no JSON: {clean(data, 80)!r}",
            hint="see the server's log; ask again",
        ) from error
    if not isinstance(value, dict):
        raise BackendBroken(f"{address} sent what is no object: {clean(data, 80)!r}")
    if value.get("error"):
        raise BackendRefused(f"{address} broke off with an error: {clean(error_text(value))}")
    fingerprint = value.get("system_fingerprint")
    mlx_lm = isinstance(fingerprint, str) and _MLX_LM.match(fingerprint) is not None
    usage = read_usage(value.get("usage"))
    choice = _first_choice(value, address)
    if choice is None:
        return Piece(usage=usage, mlx_lm=mlx_lm)
    text = choice.get("text")
    if text is None and ("delta" in choice or "message" in choice):
        raise BackendBroken(f"{address} answers in chat form where a text completion was asked for")
    if not isinstance(text, str | None):
        raise BackendBroken(f"{address} sent a text that is no string: {clean(data, 80)!r}")
    finish = read_finish(choice.get("finish_reason"), address)
    return Piece(text or "", finish, usage, mlx_lm, choice)


def _first_choice(value: Mapping[str, Any], address: str) -> Mapping[str, Any] | None:
    choices = value.get("choices")
    if not choices and isinstance(choices, list | None):
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise BackendBroken(f"{address} sent an event whose choices cannot be read")
    return choices[0]


def read_finish(value: Any, address: str) -> FinishReason | None:
    """A server's finish reason in our words; None for none yet.

    A word that is not known becomes ``length``: such an end promises nothing, so text that it
    leaves open counts as cut off (reading rule 8).

    Raises:
        BackendRefused: the server says that it gave the completion up.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise BackendBroken(f"{address} sent a finish reason that is no string")
    if value.lower() in _FAILED:
        raise BackendRefused(f"{address} gave the completion up: {clean(value, 40)}")
    return _FINISH.get(value.lower(), "length")


def read_usage(value: Any) -> Usage | None:
    """Token counts as the server gives them; what it leaves out stays None."""
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    usage = Usage(
        prompt_tokens=_count(value.get("prompt_tokens")),
        cached_tokens=_count(cached),
        completion_tokens=_count(value.get("completion_tokens")),
    )
    return None if usage == Usage() else usage


def without_surrogates(text: str) -> str:
    """The text as it can be encoded: pairs joined, a lone surrogate replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
