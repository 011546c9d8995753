"""Which of the named chat formats a server's own chat endpoint writes.

For mlx-lm's server where it does not say which model it serves: a short conversation is sent to its
chat endpoint, then, as plain text, in each named format. The one that comes to the same tokens is
the model's; the server's count of cached tokens says so, since the second prompt is then the first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from mlx_tools.backends.completions import CompletionsBackend
from mlx_tools.backends.interface import CompletionRequest
from mlx_tools.backends.whole import ask_whole
from mlx_tools.backends.wire import completion_body, read_usage
from mlx_tools.errors import BackendError
from mlx_tools.prompt import NAMED_FORMATS, ChatFormat

SECONDS: Final = 20.0
_SYSTEM: Final = "Be brief."
_QUESTION: Final = "Is water wet?"
_MOST: Final = 1 << 20


async def hides_its_model(backend: CompletionsBackend) -> bool:
    """Whether this is mlx-lm's server without a Hugging Face cache: it lists its models with an
    empty answer, and so says nothing of the one it serves."""
    try:
        client = await backend.client()
        answer = await client.get(backend.address.models, headers=backend.headers, timeout=5.0)
    except Exception:  # whatever it is, it is not that
        return False
    server = answer.headers.get("server", "")
    return answer.status_code == 200 and not answer.content and server.startswith("BaseHTTP/")


async def probe_chat_format(backend: CompletionsBackend) -> ChatFormat | None:
    """The named format whose prompt is, token for token, the chat endpoint's; None if none is."""
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
    request = CompletionRequest(prompt="-", max_tokens=1, timeout=SECONDS)
    body: dict[str, Any] = completion_body(request, model=backend.model, stream=False)
    body["messages"] = messages
    del body["prompt"]
    url = backend.address.completions.removesuffix("completions") + "chat/completions"
    try:
        client = await backend.client()
        answer = await client.post(url, json=body, headers=backend.headers, timeout=SECONDS)
        usage = read_usage(json.loads(answer.content[:_MOST]).get("usage"))
    except Exception:  # a probe: what does not answer does not say
        return None
    return usage.prompt_tokens if usage is not None and answer.status_code == 200 else None


async def _is_same(
    backend: CompletionsBackend, chat_format: ChatFormat, system: str, expected: int
) -> bool:
    prompt = "".join(_rendered(chat_format, system))
    request = CompletionRequest(prompt=prompt, max_tokens=1, timeout=SECONDS)
    try:
        usage = (await ask_whole(backend, request)).usage
    except BackendError:
        return False
    cached = usage.cached_tokens
    return usage.prompt_tokens == expected and (cached is None or cached >= expected - 1)


def _rendered(chat_format: ChatFormat, system: str) -> Sequence[str]:
    opened, closed = chat_format.user
    if not system:
        return chat_format.bos, opened, _QUESTION, closed, chat_format.assistant[0]
    if chat_format.system is None:
        before, after = chat_format.system_in_user
        asked: tuple[str, ...] = (opened, before, system, after, _QUESTION, closed)
    else:
        asked = (chat_format.system[0], system, chat_format.system[1], opened, _QUESTION, closed)
    return chat_format.bos, *asked, chat_format.assistant[0]
