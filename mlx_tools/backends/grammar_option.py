"""Detection of the request field with which a completions server takes a grammar."""

from __future__ import annotations

import secrets
from typing import Any, Protocol, get_args

from mlx_tools.backends.address import Address
from mlx_tools.backends.interface import CompletionRequest, GrammarText
from mlx_tools.backends.wire import GRAMMAR_HINT, GrammarOption, grammar_fields
from mlx_tools.errors import BackendBroken, BackendRefused, UsageError


class GrammarServer(Protocol):
    """A server that completes text: a `CompletionsBackend`."""

    address: Address
    grammar_option: GrammarOption | None

    async def ask_whole(
        self, request: CompletionRequest, limits: Any = None, **options: Any
    ) -> Any: ...


def short_request(prompt: str, max_tokens: int = 1) -> CompletionRequest:
    """Return a short request whose prompt is not in the server's cache."""
    prompt = f"{secrets.token_hex(4)} {prompt}"
    return CompletionRequest(prompt=prompt, max_tokens=max_tokens, timeout=30.0)


async def obeys_grammar(backend: GrammarServer) -> GrammarOption | None:
    """Return the request field with which the server takes a grammar, or None.

    It is llama.cpp's field or vLLM's. The backend uses it from then on.

    Raises:
        BackendError: the server cannot be asked.
    """
    request = short_request("The sky is", 4)
    only = GrammarText('root ::= "zq7"', 'start: "zq7"')
    option: GrammarOption
    for option in get_args(GrammarOption):
        try:
            answer = await backend.ask_whole(request, **grammar_fields(option, only))
        except (BackendRefused, BackendBroken):
            continue
        if answer.chunk.text.strip() == "zq7":
            backend.grammar_option = option
            return option
    return None


async def find_grammar_option(backend: GrammarServer) -> None:
    """Find the request field for a grammar, as `obeys_grammar` does.

    Raises:
        UsageError: the server does not take grammars.
        BackendError: the server cannot be asked.
    """
    if await obeys_grammar(backend) is None:
        message = f"the server at {backend.address} does not take grammars"
        raise UsageError(message, hint=GRAMMAR_HINT)
