"""What a completions server can do, found out by asking it in one or two short requests each.

None of them relies on the server's name or version: what answers as wished has the ability.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from mlx_tools.backends.completions import CompletionsBackend
from mlx_tools.backends.interface import CompletionRequest, GrammarText
from mlx_tools.backends.scores import ScoreForm, ScoreReader, score_fields
from mlx_tools.backends.wire import (
    GRAMMAR_HINT,
    GrammarOption,
    completion_body,
    grammar_fields,
    read_usage,
)
from mlx_tools.errors import BackendError, BackendUnreachable, UsageError
from mlx_tools.prompt import NAMED_FORMATS, ChatFormat


def _request(prompt: str, max_tokens: int = 1) -> CompletionRequest:
    """A short one, of which the server's cache holds nothing."""
    prompt = f"{secrets.token_hex(4)} {prompt}"
    return CompletionRequest(prompt=prompt, max_tokens=max_tokens, timeout=30.0)


async def single_tokens(
    backend: CompletionsBackend, tokens: Sequence[str]
) -> dict[str, bool] | None:
    """Which of ``tokens`` the model's tokenizer reads as one token; None where it cannot be told.

    Three of them in a row must make the prompt three tokens longer.
    """
    start = _request("x").prompt
    lengths = []
    for more in ("", *tokens):
        request = CompletionRequest(prompt=start + more * 3, max_tokens=1, timeout=30.0)
        lengths.append((await backend.ask_whole(request)).usage.prompt_tokens)
        if lengths[-1] is None:
            return None
    return {t: (n or 0) - (lengths[0] or 0) == 3 for t, n in zip(tokens, lengths[1:], strict=True)}


async def has_logprobs(backend: CompletionsBackend) -> bool:
    """Whether the likeliest next tokens come with an answer, in either form."""
    request = _request("1, 2,")
    for form in (ScoreForm.MLX, ScoreForm.COMPLETIONS):
        try:
            answer = await backend.ask_whole(request, **score_fields(form, 2))
        except BackendError:
            continue
        if ScoreReader().read(answer.choice):
            return True
    return False


async def honours_stop(backend: CompletionsBackend) -> Literal["yes", "edits", "no"] | None:
    """What ``stop`` does: ``yes``, or it edits the text and runs on, or nothing. None: no telling.

    The stop text is a piece from the middle of what the model writes without it.
    """
    request = _request("\nOne, two, three, four, five, six, seven,", 16)
    free = (await backend.ask_whole(request)).chunk.text
    words = [word for word in free.split() if free.count(word) == 1]
    if len(words) < 3:
        return None
    stop = words[len(words) // 2]
    held = (await backend.ask_whole(request, stop=[stop])).chunk.text
    if held.rstrip() == free[: free.index(stop)].rstrip():
        return "yes"
    return "no" if held == free else "edits"


async def reports_cache(backend: CompletionsBackend) -> bool:
    """Whether usage says how much of the prompt was cached."""
    request = _request("one two three four five six seven eight")
    await backend.ask_whole(request)  # the same again: text appended could be what it wrote
    return (await backend.ask_whole(request)).usage.cached_tokens is not None


async def obeys_grammar(backend: CompletionsBackend) -> GrammarOption | None:
    """Which option holds the model to a grammar: llama.cpp's, vLLM's, or None."""
    request = _request("The sky is", 4)
    only = GrammarText('root ::= "zq7"', 'start: "zq7"')
    options: tuple[GrammarOption, ...] = get_args(GrammarOption)
    for option in options:
        try:
            answer = await backend.ask_whole(request, **grammar_fields(option, only))
        except BackendError:
            continue
        if answer.chunk.text.strip() == "zq7":
            return option
    return None


async def find_grammar_option(backend: CompletionsBackend) -> GrammarOption:
    """As `obeys_grammar`.

    Raises:
        UsageError: the server takes none.
        BackendError: the server cannot be asked.
    """
    found = await obeys_grammar(backend)
    if found is not None:
        return found
    health = await backend.health()
    if not health.ok:
        dead = health.as_error(str(backend.address))
        raise dead or BackendUnreachable(f"{backend.address}: {health.detail}")
    raise UsageError(f"the server at {backend.address} does not take grammars", hint=GRAMMAR_HINT)


# --- the chat format of a server that does not say its model ----------------------------------

PROBE_TIMEOUT: Final = 20.0
_SYSTEM: Final = "Be brief."
_QUESTION: Final = "Is water wet?"


async def hides_its_model(backend: CompletionsBackend) -> bool:
    """Whether this is mlx-lm's server without a Hugging Face cache: it lists its models with an
    empty answer, and so says nothing of the one it serves."""
    try:
        status, headers, body = await backend.get("/v1/models", 5.0)
    except Exception:  # whatever it is, it is not that
        return False
    return status == 200 and not body and headers.get("server", "").startswith("BaseHTTP/")


async def probe_chat_format(backend: CompletionsBackend) -> ChatFormat | None:
    """The named format that the server's own chat endpoint writes; None if none is.

    A short conversation is sent to that endpoint, then, as plain text, in each named format. The
    one that comes to the same tokens is the model's; the server's count of cached tokens says so,
    since the second prompt is then the first.
    """
    for system in (_SYSTEM, ""):
        expected = await _chat_tokens(backend, system)
        if expected is None:
            continue
        for name, chat_format in NAMED_FORMATS.items():
            if name != "plain" and await _is_same(backend, chat_format, system, expected):
                return chat_format
    return None


async def _chat_tokens(backend: CompletionsBackend, system: str) -> int | None:
    """The tokens of the prompt that the server's own template makes."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": _QUESTION})
    request = CompletionRequest(prompt="-", max_tokens=1)
    body: dict[str, Any] = completion_body(request, model=backend.model, stream=False)
    del body["prompt"]
    sent = json.dumps(body | {"messages": messages}).encode()
    try:
        status, _, answer = await backend.get("/v1/chat/completions", PROBE_TIMEOUT, sent)
        usage = read_usage(json.loads(answer).get("usage"))
    except Exception:  # a probe: what does not answer does not say
        return None
    return usage.prompt_tokens if usage is not None and status == 200 else None


async def _is_same(
    backend: CompletionsBackend, chat_format: ChatFormat, system: str, expected: int
) -> bool:
    opened, closed = chat_format.user
    asked = f"{opened}{_QUESTION}{closed}"
    if system and chat_format.system is None:
        before, after = chat_format.system_in_user
        asked = f"{opened}{before}{system}{after}{_QUESTION}{closed}"
    elif system and chat_format.system is not None:
        asked = f"{chat_format.system[0]}{system}{chat_format.system[1]}{asked}"
    prompt = f"{chat_format.bos}{asked}{chat_format.assistant[0]}"
    request = CompletionRequest(prompt=prompt, max_tokens=1, timeout=PROBE_TIMEOUT)
    try:
        usage = (await backend.ask_whole(request)).usage
    except BackendError:
        return False
    cached = usage.cached_tokens
    return usage.prompt_tokens == expected and (cached is None or cached >= expected - 1)
