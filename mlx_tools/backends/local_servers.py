"""The model servers of this machine: where they are looked for, and which programs they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from mlx_tools.backends.completions import CompletionsBackend, Health
from mlx_tools.backends.models.listing import find_model, last_part, model_identity
from mlx_tools.backends.ollama_raw import is_ollama, loaded_models
from mlx_tools.backends.running_model import is_path
from mlx_tools.backends.transport import json_object

PROBE_TIMEOUT: Final = 2.0
"""Seconds that a server nobody named has to answer."""

USUAL_ADDRESSES: Final = (
    "http://127.0.0.1:8080",  # mlx-lm, llama.cpp
    "http://127.0.0.1:1234",  # LM Studio
    "http://127.0.0.1:11434",  # Ollama
    "http://127.0.0.1:8000",  # vLLM, and others that follow it
    "http://127.0.0.1:10240",  # mlx-omni-server
)
"""Where model servers listen by default, in the order in which they are looked for."""

Program = Literal["mlx-lm", "Ollama", "LM Studio", "gateway", "other"]


class LocalServer(Struct, frozen=True):
    """A server that answers, and its health."""

    backend: CompletionsBackend
    health: Health


class ModelState(NamedTuple):
    """A model as a server lists it."""

    name: str
    is_loaded: bool


async def find_local_servers(
    addresses: Sequence[str],
    model: str | None,
    *,
    api_key: str | None = None,
    take_gateways: bool = True,
) -> list[LocalServer]:
    """Return the servers at these addresses that serve ``model``, or any model without one.

    A model that is on this machine is served only by a server that lists it: another is not made
    to load it. If some list the model, the others are left out.
    """
    from asyncio import gather

    backends = [CompletionsBackend(address, model, api_key=api_key) for address in addresses]
    tried = await gather(*(_serves(backend, take_gateways) for backend in backends))
    servers = [server for server, _ in tried if server is not None]
    listing = [server for server, lists_it in tried if server is not None and lists_it]
    return listing or servers


async def _serves(
    backend: CompletionsBackend, take_gateways: bool
) -> tuple[LocalServer | None, bool]:
    """The server behind a backend, None if it is none, and whether it lists the model."""
    health = await backend.health(PROBE_TIMEOUT)
    if health.status not in ("ok", "loading", "unknown") or (
        health.is_gateway and not take_gateways
    ):
        return None, False
    model, listed = backend.model, await backend.models(PROBE_TIMEOUT)
    # Ollama and LM Studio, which have no /health, list what they have
    if not listed and (health.status == "unknown" or not await offers_completions(backend)):
        return None, False  # some web server, or one without a model
    server = LocalServer(backend, health)
    if model is None:
        return server, False
    lists_it = match_model(model, listed, loopback=backend.address.loopback) is not None
    return server if lists_it or find_model(model) is None else None, lists_it


async def find_program(backend: CompletionsBackend, health: Health) -> Program:
    """Return which program a server is. Has the backend speak its interface, where that differs."""
    if health.is_gateway:
        return "gateway"
    if health.is_mlx_lm:
        return "mlx-lm"
    if health.status != "unknown":  # the others do not know /health
        return "other"
    if await is_ollama(backend, PROBE_TIMEOUT):
        backend.speak_ollama()
        return "Ollama"
    if await lm_studio_models(backend):
        return "LM Studio"
    backend.completes = not await _lacks_completions(backend)
    return "other"


async def lm_studio_models(backend: CompletionsBackend) -> list[ModelState]:
    """Return the language models that LM Studio lists; none for other servers."""
    rows = (await backend.get_object("/api/v0/models", PROBE_TIMEOUT)).get("data")
    return [
        ModelState(row["id"], row.get("state") == "loaded")
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
        and isinstance(row.get("id"), str)
        and row.get("type") in ("llm", "vlm")
    ]


async def served_model(
    backend: CompletionsBackend, program: Program, listed: Sequence[str]
) -> tuple[str | None, str]:
    """Return the model that a server which takes any name should be asked for, and a line for a
    person if that is in doubt: the one that is loaded, else the first."""
    states = [ModelState(name, False) for name in listed]
    if program == "LM Studio":
        states = await lm_studio_models(backend)
    elif program == "Ollama":
        loaded = await loaded_models(backend, PROBE_TIMEOUT)
        states = [ModelState(name, name in loaded) for name in listed]
    states.sort(key=lambda state: not state.is_loaded)
    if not states:
        return None, ""
    in_use = sum(state.is_loaded for state in states)
    doubt = f"the server has {len(states)} models: name one with --model"
    return states[0].name, "" if in_use == 1 or len(states) == 1 else doubt


async def offers_completions(backend: CompletionsBackend) -> bool:
    """Return whether ``/v1/completions`` is there: every such server refuses an empty request.

    It asks for no tokens and holds no prompt, so nothing is ever generated.
    """
    try:
        status, _, said = await backend.get("/v1/completions", PROBE_TIMEOUT, b'{"max_tokens": 0}')
    except Exception:
        return False
    return status in (400, 422) and bool(json_object(said))


async def _lacks_completions(backend: CompletionsBackend) -> bool:
    """Return whether a server has a chat interface and no other, as mlx-omni-server."""
    statuses = []
    for path in ("/v1/completions", "/v1/chat/completions"):
        try:
            status, _, _ = await backend.get(path, PROBE_TIMEOUT, b'{"max_tokens": 0}')
        except Exception:
            return False
        statuses.append(status)
    return statuses[0] in (404, 405) and statuses[1] not in (404, 405)


def match_model(name: str, listed: Sequence[str], *, loopback: bool) -> str | None:
    """What a server lists that is meant by the name that a person gives: the same, that of the same
    model, or the one whose last part it is."""
    if name in listed:
        return name
    wanted = model_identity(name, find_model(name))
    for entry in listed:
        folder = folder_here(entry, loopback=loopback)
        if wanted is not None and model_identity(entry, folder) == wanted:
            return entry
    tails = {entry: last_part(entry) for entry in listed}
    alike = [
        entry
        for entry, tail in tails.items()
        if name in (tail, tail.removesuffix(".gguf"), tail.removesuffix(":latest"))
    ]
    return alike[0] if len(alike) == 1 else None


def folder_here(name: str, *, loopback: bool) -> Path | None:
    """Return the folder on this machine of a model that a server names, if it is here. A path on
    another machine says nothing about this one."""
    return find_model(name) if loopback or not is_path(name) else None
