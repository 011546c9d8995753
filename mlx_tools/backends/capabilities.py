"""What a completions server can do, found out by asking it in one or two short requests each.

None of them relies on the server's name or version: what answers as wished has the ability.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal, cast, get_args

from mlx_tools.backends.completions import CompletionsBackend
from mlx_tools.backends.interface import CompletionRequest, GrammarText
from mlx_tools.backends.scores import ScoreForm, ScoreReader, fields
from mlx_tools.backends.whole import ask_whole
from mlx_tools.backends.wire import GrammarOption, grammar_fields
from mlx_tools.errors import BackendError


async def single_tokens(
    backend: CompletionsBackend, tokens: Sequence[str], timeout: float = 30.0
) -> dict[str, bool] | None:
    """Which of ``tokens`` the model's tokenizer reads as one token; None where it cannot be told.

    Three of them in a row must make the prompt three tokens longer.
    """

    async def length(prompt: str) -> int | None:
        request = CompletionRequest(prompt=prompt, max_tokens=1, timeout=timeout)
        return (await ask_whole(backend, request)).usage.prompt_tokens

    start = f"{secrets.token_hex(4)} x"
    base = await length(start)
    if base is None:
        return None
    found = {}
    for token in tokens:
        longer = await length(f"{start}{token * 3}")
        if longer is None:
            return None
        found[token] = longer - base == 3
    return found


async def has_logprobs(backend: CompletionsBackend, timeout: float = 30.0) -> bool:
    """Whether the likeliest next tokens come with an answer, in either dialect."""
    request = CompletionRequest(
        prompt=f"{secrets.token_hex(4)} 1, 2,", max_tokens=1, timeout=timeout
    )
    for dialect in (ScoreForm.MLX, ScoreForm.COMPLETIONS):
        try:
            answer = await ask_whole(backend, request, **fields(dialect, 2))
        except BackendError:
            continue
        if ScoreReader().read(answer.choice):
            return True
    return False


async def honours_stop(
    backend: CompletionsBackend, timeout: float = 30.0
) -> Literal["yes", "edits", "no"] | None:
    """What ``stop`` does: ``yes``, or it edits the text and runs on, or nothing. None: no telling.

    The stop text is a piece from the middle of what the model writes without it.
    """
    request = CompletionRequest(
        prompt=f"{secrets.token_hex(4)}\nOne, two, three, four, five, six, seven,",
        max_tokens=16,
        timeout=timeout,
    )
    free = (await ask_whole(backend, request)).text
    words = [word for word in free.split() if free.count(word) == 1]
    if len(words) < 3:
        return None
    stop = words[len(words) // 2]
    held = (await ask_whole(backend, request, stop=[stop])).text
    if held.rstrip() == free[: free.index(stop)].rstrip():
        return "yes"
    return "no" if held == free else "edits"


async def reports_cache(backend: CompletionsBackend, timeout: float = 30.0) -> bool:
    """Whether usage says how much of the prompt was cached."""
    prompt = f"{secrets.token_hex(4)} one two three four five six seven eight"
    request = CompletionRequest(prompt=prompt, max_tokens=1, timeout=timeout)
    await ask_whole(backend, request)  # the same again: text appended could be what it wrote
    return (await ask_whole(backend, request)).usage.cached_tokens is not None


async def obeys_grammar(backend: CompletionsBackend, timeout: float = 30.0) -> GrammarOption | None:
    """Which option holds the model to a grammar: llama.cpp's, vLLM's, or None."""
    request = CompletionRequest(
        prompt=f"{secrets.token_hex(4)} The sky is", max_tokens=4, timeout=timeout
    )
    only = GrammarText('root ::= "zq7"', 'start: "zq7"')
    for option in get_args(GrammarOption):
        try:
            answer = await ask_whole(backend, request, **grammar_fields(option, only))
        except BackendError:
            continue
        if answer.text.strip() == "zq7":
            return cast(GrammarOption, option)
    return None
