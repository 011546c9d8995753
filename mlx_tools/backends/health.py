"""What a server says of itself: whether it is well, and which models it serves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from mlx_tools.backends.address import Address
from mlx_tools.backends.edge import DEAD_WORDS, dead, translate, words_of
from mlx_tools.errors import BackendDead
from mlx_tools.process import clean

if TYPE_CHECKING:
    import httpx

MAX_BODY: Final = 4 << 20
"""Bytes of a list of models that are read; mlx-lm's lists the whole Hugging Face cache."""

_CONTEXT_KEYS: Final = ("max_model_len", "context_length")
"""What a row of the list of models calls the size of its context: vLLM and SGLang, OpenRouter."""

HealthStatus = Literal["ok", "loading", "dead", "unreachable", "unknown"]


@dataclass(frozen=True, slots=True)
class Health:
    """How a server is. ``unknown``: it answers, but does not say (many have no ``/health``).

    ``server`` is its own ``Server`` header; ``status_field`` says that it answered in the form that
    model servers use (``{"status": …}``), which a web page does not; ``allowed_origin`` is which
    web pages it lets read its answers, ``*`` for all of them.
    """

    status: HealthStatus
    detail: str = ""
    server: str = ""
    status_field: bool = False
    allowed_origin: str = ""

    @property
    def ok(self) -> bool:
        """Whether a completion may be asked for: not known to be down."""
        return self.status in ("ok", "unknown")

    @property
    def is_mlx_lm(self) -> bool:
        """Whether it is mlx-lm's server: no other is known to be built on Python's own."""
        return self.server.startswith("BaseHTTP/")

    def as_error(self, address: str) -> BackendDead | None:
        """The error for a server whose model thread has died; None for every other state."""
        return dead(address) if self.status == "dead" else None


async def find_health(
    client: httpx.AsyncClient, address: Address, headers: Mapping[str, str], timeout: float
) -> Health:
    """Ask ``/health``; any answer, and none, becomes a `Health`."""
    try:
        status, answered, body = await _ask(client, address.health, headers, timeout, 1 << 16)
    except Exception as error:
        return Health("unreachable", _why(error, address))
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    said = value.get("status") if isinstance(value, dict) else None
    known = isinstance(said, str)
    detail = f"{status}: {clean(str(said))}" if known else f"{status}: {words_of(body)}"
    found: HealthStatus = "unknown"
    if status == 200:
        found = "ok" if known or not body else "unknown"
    elif (status == 503 and said == "unavailable") or DEAD_WORDS in detail:
        found = "dead"
    elif status == 503:
        found = "loading"
    origin = answered.get("access-control-allow-origin", "")
    return Health(found, detail, answered.get("server", ""), known, origin)


async def find_models(
    client: httpx.AsyncClient, address: Address, headers: Mapping[str, str], timeout: float
) -> tuple[str, ...]:
    """Ask ``/v1/models``. Empty where the server cannot say.

    mlx-lm's cannot where no Hugging Face cache folder exists: it answers 200 and no body.
    """
    names = [item.get("id") for item in await _listed(client, address, headers, timeout)]
    return tuple(name for name in names if isinstance(name, str) and name)


async def find_context(
    client: httpx.AsyncClient,
    address: Address,
    headers: Mapping[str, str],
    timeout: float,
    model: str | None,
) -> int | None:
    """How many tokens the served model takes, by the list of models (vLLM and others) or by
    ``/props`` (llama.cpp's server, a slot's share). None where the server cannot say, as mlx-lm's.
    """
    items = await _listed(client, address, headers, timeout)
    own = [item for item in items if item.get("id") == model] or (items if len(items) == 1 else [])
    said = [item.get(key) for item in own for key in _CONTEXT_KEYS]
    value = await _object(client, address.properties, headers, timeout)
    settings = value.get("default_generation_settings")
    said.append(settings.get("n_ctx") if isinstance(settings, dict) else None)
    sizes = [n for n in said if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    return min(sizes, default=None)


async def _listed(
    client: httpx.AsyncClient, address: Address, headers: Mapping[str, str], timeout: float
) -> list[dict[str, Any]]:
    """The rows of ``/v1/models``."""
    items = (await _object(client, address.models, headers, timeout)).get("data")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


async def _object(
    client: httpx.AsyncClient, url: str, headers: Mapping[str, str], timeout: float
) -> dict[str, Any]:
    """The JSON object at an address, empty where there is none."""
    try:
        status, _, body = await _ask(client, url, headers, timeout, MAX_BODY)
        value: Any = json.loads(body) if status == 200 else None
    except Exception:
        return {}
    return value if isinstance(value, dict) else {}


async def refuses_as_completions_server(
    client: httpx.AsyncClient, address: Address, headers: Mapping[str, str], timeout: float
) -> bool:
    """Whether ``/v1/completions`` is there: a request that every such server refuses is refused.

    It asks for no tokens and holds no prompt, so nothing is ever generated.
    """
    body = b'{"max_tokens": 0}'
    try:
        status, _, said = await _ask(
            client, address.completions, headers, timeout, 1 << 16, content=body
        )
        return status in (400, 422) and isinstance(json.loads(said), dict)
    except Exception:
        return False


async def _ask(
    client: httpx.AsyncClient,
    url: str,
    headers: Mapping[str, str],
    timeout: float,
    most: int,
    *,
    content: bytes | None = None,
) -> tuple[int, httpx.Headers, bytes]:
    """Status, headers and body, of at most ``most`` bytes, within ``timeout`` seconds.

    ``content`` is posted; without it the address is got.
    """
    import anyio

    method = "GET" if content is None else "POST"
    sent = {**headers, "Accept": "application/json"}
    body = bytearray()
    with anyio.fail_after(timeout):
        async with client.stream(
            method, url, headers=sent, content=content, follow_redirects=False
        ) as answer:
            if answer.headers.get("content-encoding", "identity").lower() != "identity":
                raise ValueError("the answer is compressed, which was not asked for")
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > most:
                    raise ValueError("the answer is too long")
            return answer.status_code, answer.headers, bytes(body)


def _why(error: Exception, address: Address) -> str:
    if isinstance(error, TimeoutError):
        return f"{address} did not answer in time"
    if isinstance(error, ValueError):
        return f"{address}: {error}"
    return translate(error, str(address)).message
