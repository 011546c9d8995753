"""A grammar as a server takes it: which option, found by trying, and what goes into the body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from mlx_tools.backends.interface import GrammarText
from mlx_tools.errors import BackendUnreachable, UsageError

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
