"""The model servers of this machine: their usual addresses, and their programs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from mlx_tools.backends.completions import CompletionsBackend, Health
from mlx_tools.backends.listener import is_path
from mlx_tools.backends.models.listing import find_model, last_part, model_identity
from mlx_tools.backends.ollama_raw import is_ollama, list_loaded_models
from mlx_tools.backends.server_errors import json_object

_log = logging.getLogger(__name__)
PROBE_TIMEOUT: Final = 2.0
"""Seconds to wait for a server that nobody named. A choice: local servers answer at once."""

DEFAULT_ADDRESSES: Final = (
    "http://127.0.0.1:8080",  # mlx-lm, llama.cpp
    "http://127.0.0.1:1234",  # LM Studio
    "http://127.0.0.1:11434",  # Ollama
    "http://127.0.0.1:8000",  # vLLM, and servers like it
    "http://127.0.0.1:10240",  # mlx-omni-server
)
"""Addresses at which model servers listen by default, in the order of the search."""

Program = Literal["mlx-lm", "Ollama", "LM Studio", "gateway", "other"]


class LocalServer(Struct, frozen=True):
    """A server that answers, and its health."""

    backend: CompletionsBackend
    health: Health


class ModelState(NamedTuple):
    """A model in a server's list."""

    name: str
    is_loaded: bool


async def find_local_servers(
    addresses: Sequence[str],
    model: str | None,
    *,
    api_key: str | None = None,
    take_gateways: bool = True,
) -> list[LocalServer]:
    """Return the servers at these addresses that serve ``model``; None for any model.

    If the model's files are on this machine, a server must list the model; otherwise it might have
    to load it. If some servers list the model, the others are left out.
    """
    from asyncio import gather

    backends = [CompletionsBackend(address, model, api_key=api_key) for address in addresses]
    results = await gather(*(_inspect(backend, take_gateways) for backend in backends))
    servers = [server for server, _ in results if server is not None]
    listing = [server for server, lists_it in results if server is not None and lists_it]
    return listing or servers


async def _inspect(
    backend: CompletionsBackend, take_gateways: bool
) -> tuple[LocalServer | None, bool]:
    """Return the server behind a backend, or None; and True if it lists the model."""
    health = await backend.health(PROBE_TIMEOUT)
    if health.status not in ("ok", "loading", "unknown") or (
        health.is_gateway and not take_gateways
    ):
        return None, False
    model, model_names = backend.model, await backend.models(PROBE_TIMEOUT)
    # Ollama and LM Studio have no /health, but list their models
    if not model_names and (health.status == "unknown" or not await offers_completions(backend)):
        return None, False  # another web server, or a server without a model
    server = LocalServer(backend, health)
    if model is None:
        return server, False
    lists_it = match_model(model, model_names, loopback=backend.address.loopback) is not None
    return server if lists_it or find_model(model) is None else None, lists_it


async def find_program(backend: CompletionsBackend, health: Health) -> Program:
    """Return the program of a server; for Ollama, switch the backend to its interface."""
    if health.is_gateway:
        return "gateway"
    if health.is_mlx_lm:
        return "mlx-lm"
    if health.status != "unknown":  # Ollama and LM Studio have no /health
        return "other"
    if await is_ollama(backend, PROBE_TIMEOUT):
        backend.speak_ollama()
        return "Ollama"
    if await list_lm_studio_models(backend):
        return "LM Studio"
    backend.completes = not await _lacks_completions(backend)
    return "other"


async def list_lm_studio_models(backend: CompletionsBackend) -> list[ModelState]:
    """Return the language models that LM Studio lists; empty for other servers."""
    rows = (await backend.get_object("/api/v0/models", PROBE_TIMEOUT)).get("data")
    return [
        ModelState(row["id"], row.get("state") == "loaded")
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
        and isinstance(row.get("id"), str)
        and row.get("type") in ("llm", "vlm")
    ]


async def find_served_model(
    backend: CompletionsBackend, program: Program, model_names: Sequence[str]
) -> tuple[str | None, str]:
    """Return the model to request from a server, and a line if the model is in doubt.

    It is the model that is loaded, otherwise the first of the list.
    """
    states = [ModelState(name, False) for name in model_names]
    if program == "LM Studio":
        states = await list_lm_studio_models(backend)
    elif program == "Ollama":
        loaded = await list_loaded_models(backend, PROBE_TIMEOUT)
        states = [ModelState(name, name in loaded) for name in model_names]
    states.sort(key=lambda state: not state.is_loaded)
    if not states:
        return None, ""
    in_use = sum(state.is_loaded for state in states)
    doubt = f"the server has {len(states)} models: name one with --model"
    return states[0].name, "" if in_use == 1 or len(states) == 1 else doubt


async def offers_completions(backend: CompletionsBackend) -> bool:
    """Return True if the server has ``/v1/completions``: it refuses an empty request.

    The request has no prompt and asks for 0 tokens, so no text is ever generated.
    """
    try:
        status, _, body = await backend.get("/v1/completions", PROBE_TIMEOUT, b'{"max_tokens": 0}')
    except Exception as error:
        _log.debug("%s has no completions: %s", backend.address, type(error).__name__)
        return False
    return status in (400, 422) and bool(json_object(body))


async def _lacks_completions(backend: CompletionsBackend) -> bool:
    """Return True if a server has only a chat interface, as mlx-omni-server."""
    statuses = []
    for path in ("/v1/completions", "/v1/chat/completions"):
        try:
            status, _, _ = await backend.get(path, PROBE_TIMEOUT, b'{"max_tokens": 0}')
        except Exception as error:
            _log.debug("%s has nothing at %s: %s", backend.address, path, type(error).__name__)
            return False
        statuses.append(status)
    return statuses[0] in (404, 405) and statuses[1] not in (404, 405)


def match_model(name: str, model_names: Sequence[str], *, loopback: bool) -> str | None:
    """Return the entry of a server's list for a person's name of a model, or None.

    It is the same name, another name of the same model, or the only entry whose last part is the
    name.
    """
    if name in model_names:
        return name
    wanted = model_identity(name, find_model(name))
    for entry in model_names:
        folder = folder_here(entry, loopback=loopback)
        if wanted is not None and model_identity(entry, folder) == wanted:
            return entry
    tails = {entry: last_part(entry) for entry in model_names}
    alike = [
        entry
        for entry, tail in tails.items()
        if name in (tail, tail.removesuffix(".gguf"), tail.removesuffix(":latest"))
    ]
    return alike[0] if len(alike) == 1 else None


def folder_here(name: str, *, loopback: bool) -> Path | None:
    """Return the folder on this machine of a model that a server names, or None.

    A path on another machine does not count.
    """
    return find_model(name) if loopback or not is_path(name) else None
