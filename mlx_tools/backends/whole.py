"""A completion that comes whole, for what no stream gives: likelihoods, probes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mlx_tools.backends.base import CompletionRequest
from mlx_tools.backends.collect import Collector
from mlx_tools.backends.edge import refused
from mlx_tools.backends.wire import read_finish, read_usage
from mlx_tools.errors import BackendBroken, BackendTimeout
from mlx_tools.messages import FinishReason, Usage

if TYPE_CHECKING:
    from mlx_tools.backends.completions import CompletionsBackend

MAX_ANSWER: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion that came whole: its text, its end, its usage, and all that the server sent."""

    text: str
    finish: FinishReason | None
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

    body = backend.body(request) | {"stream": False}
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
    if answer.startswith(b"data:"):  # it streams whatever it is asked for
        return _streamed(bytes(answer), str(backend.address), request.max_tokens)
    return _read(bytes(answer), str(backend.address))


def _streamed(body: bytes, address: str, max_tokens: int) -> Answer:
    collector = Collector(address, max_tokens)
    text = collector.feed(body)
    text += "" if collector.done else collector.end()
    last = collector.last()
    return Answer(text + last.text, last.finish_reason, last.usage or Usage(), {})


def _read(body: bytes, address: str) -> Answer:
    try:
        value = json.loads(body)
        choice = value["choices"][0]
        text = choice.get("text") or ""
        finish = read_finish(choice.get("finish_reason"), address)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise BackendBroken(f"{address} sent what is no completion") from error
    return Answer(str(text), finish, read_usage(value.get("usage")) or Usage(), choice)
