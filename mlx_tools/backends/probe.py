"""What a completions server can do, found out by asking it in one or two short requests each.

None of them relies on the server's name or version: what answers as wished has the ability.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from mlx_tools.backends.base import CompletionRequest
from mlx_tools.backends.completions import CompletionsBackend
from mlx_tools.backends.edge import refused
from mlx_tools.backends.wire import completion_body, read_finish, read_usage
from mlx_tools.errors import BackendBroken, BackendError, BackendTimeout
from mlx_tools.messages import Usage

MAX_ANSWER: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion that came whole: its text, its end, its usage, and all that the server sent."""

    text: str
    finish: str | None
    usage: Usage
    choice: Mapping[str, Any]


async def ask_whole(
    backend: CompletionsBackend, request: CompletionRequest, **options: Any
) -> Answer:
    """One completion that is not streamed, with ``options`` added to its body.

    Raises:
        BackendError: as for `CompletionsBackend.complete`.
    """
    import anyio

    body = completion_body(
        request, model=backend.model, forbidden_tokens=backend.forbidden_tokens
    ) | {"stream": False}
    del body["stream_options"]
    content = json.dumps(body | options).encode()
    answer = bytearray()
    with anyio.move_on_after(request.timeout) as scope, backend.translated():
        async with (
            backend.client() as client,
            client.stream(
                "POST", backend.address.completions, content=content, headers=backend.headers
            ) as response,
        ):
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise BackendBroken(f"{backend.address} sent compressed bytes")
            async for piece in response.aiter_bytes():
                answer += piece
                if len(answer) > MAX_ANSWER:
                    raise BackendBroken(f"{backend.address} sent more than 4 MB")
    if scope.cancelled_caught:
        raise BackendTimeout(f"{backend.address} did not answer in {request.timeout:g} s")
    if response.status_code != 200:
        raise refused(response.status_code, bytes(answer), str(backend.address))
    return _read(bytes(answer), str(backend.address))


def _read(body: bytes, address: str) -> Answer:
    try:
        value = json.loads(body)
        choice = value["choices"][0]
        text = choice.get("text") or ""
        finish = read_finish(choice.get("finish_reason"), address)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise BackendBroken(f"{address} sent what is no completion") from error
    return Answer(str(text), finish, read_usage(value.get("usage")) or Usage(), choice)


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
    """Whether the likeliest next tokens come with an answer: in mlx-lm's form, or OpenAI's."""
    request = CompletionRequest(
        prompt=f"{secrets.token_hex(4)} 1, 2,", max_tokens=1, timeout=timeout
    )
    for options in ({"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}):
        try:
            answer = await ask_whole(backend, request, **options)
        except BackendError:
            continue
        given = answer.choice.get("logprobs")
        if isinstance(given, dict) and _first_alternatives(given):
            return True
    return False


def _first_alternatives(logprobs: Mapping[str, Any]) -> bool:
    content = logprobs.get("content")
    if isinstance(content, list) and content and isinstance(content[0], dict):
        return bool(content[0].get("top_logprobs"))
    listed = logprobs.get("top_logprobs")
    return isinstance(listed, list) and bool(listed) and bool(listed[0])


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


async def obeys_grammar(backend: CompletionsBackend, timeout: float = 30.0) -> str | None:
    """Which option holds the model to a grammar: llama.cpp's ``grammar``, vLLM's, or None."""
    request = CompletionRequest(
        prompt=f"{secrets.token_hex(4)} The sky is", max_tokens=4, timeout=timeout
    )
    forms: tuple[tuple[str, Any], ...] = (
        ("grammar", 'root ::= "zq7"'),
        ("structured_outputs", {"choice": ["zq7"]}),
    )
    for name, value in forms:
        try:
            answer = await ask_whole(backend, request, **{name: value})
        except BackendError:
            continue
        if answer.text.strip() == "zq7":
            return name
    return None
