"""The choice of a run's backend, and of the model behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, get_args

from mlx_tools.backends.address import Address, parse_address
from mlx_tools.backends.completions import CompletionsBackend
from mlx_tools.backends.inspection import (
    CALL_MARKERS,
    SelectedBackend,
    Source,
    find_marker_ids,
    inspect_found,
    inspect_server,
)
from mlx_tools.backends.interface import BackendKind
from mlx_tools.backends.local_servers import (
    DEFAULT_ADDRESSES,
    PROBE_TIMEOUT,
    LocalServer,
    find_local_servers,
    match_model,
)
from mlx_tools.backends.models.embedded import DEFAULT_MODEL, EMBEDDED
from mlx_tools.backends.models.files import read_model_files
from mlx_tools.backends.models.listing import (
    memory_bytes,
    model_path,
    suggest_model,
)
from mlx_tools.backends.running_model import Pick
from mlx_tools.backends.server import ServerBackend
from mlx_tools.errors import UsageError

LOCAL: Final = "local"
"""The name under which a plugin registers the backend for models in this process."""


async def choose_backend(
    *,
    kind: BackendKind = "auto",
    url: str | Sequence[str] | None = None,
    model: str | None = None,
    api_key: str | None = None,
    usual: str | Sequence[str] = DEFAULT_ADDRESSES,
    gateway: str | None = None,
    gateway_key: str | None = None,
    note: Callable[[str], None] | None = None,
    spread: bool = False,
    pick: Pick | None = None,
    pick_server: Callable[[Sequence[str]], Awaitable[str | None]] | None = None,
    server_options: Sequence[str] = (),
    interfaces: Callable[[], Mapping[str, Callable[..., Any]]] = dict,
) -> SelectedBackend:
    """Choose a backend. Nothing is started yet.

    If an address is given, no other address is used instead. If the server is mlx-lm's, the model
    must not write its own markers of calls (`SelectedBackend.free_markers`).

    Args:
        kind: ``auto`` tries, in this order: ``url``, a gateway of mlx-tools at ``gateway``, a
            server at one of the ``usual`` addresses, and a server that it starts itself.
            ``native`` uses a server's chat interface (`find_route`). ``local`` loads the model into
            this process.
        url: the address of a server, or several (see `mlx_tools.backends.pool`).
        model: the model's name; for a server that is started, by default the embedded model.
        gateway: the address of the user's gateway. None: never use a gateway, at any address.
        note: called with later messages of a server that was started.
        spread: True to spread conversations over several servers.
        pick: asks a person which model a server runs.
        pick_server: asks a person which of several addresses to use.
        interfaces: returns the results of the hook ``backends``.

    Raises:
        UsageError: the options contradict each other, or name something that does not exist.
        BackendUnreachable: the named server does not answer.
        ModelMissing: the model is not on this machine (its ``name`` can be pulled).
    """
    if kind not in (known := get_args(BackendKind)):
        raise UsageError(f"the backend {kind} is unknown", hint=f"use {', '.join(known)}")
    if kind in ("server", "local") and url:
        does = {"server": "starts a server of its own", "local": "runs the model in this process"}
        raise UsageError(f"the backend {kind} {does[kind]}", hint="leave the address out")
    urls = () if url is None else (url,) if isinstance(url, str) else tuple(dict.fromkeys(url))
    if len(urls) > 1:
        from mlx_tools.backends.pool import choose_pool

        return await choose_pool(urls, model, api_key=api_key, spread=spread, pick=pick)
    if urls and parse_address(urls[0]).interface:
        return _native(kind, parse_address(urls[0]), model, api_key, interfaces())
    usual = (usual,) if isinstance(usual, str) else usual
    if urls:
        return await inspect_server(CompletionsBackend(urls[0], model, api_key=api_key), pick=pick)
    if kind == "auto" and gateway is not None:
        # First without the key: another program may have this address.
        health = await CompletionsBackend(gateway).health(PROBE_TIMEOUT)
        backend = CompletionsBackend(gateway, model, api_key=gateway_key)
        if health.is_gateway and health.ok and await _gateway_serves(backend, note):
            return await inspect_found(backend, health, source="found")
    if kind in ("completions", "native") or (kind == "auto" and model not in EMBEDDED):
        gateways = gateway is not None or kind != "auto"
        server = await _local_server(usual, model, api_key, pick_server, gateways)
        if server is not None:
            how: Source = "found" if kind == "auto" else "named"
            return await inspect_found(server.backend, server.health, source=how, pick=pick)
    if kind in ("completions", "native"):
        return await inspect_server(CompletionsBackend(usual[0], model, api_key=api_key))
    return _own_server(kind, model, usual, note, server_options, interfaces)


def _native(
    kind: BackendKind,
    address: Address,
    model: str | None,
    api_key: str | None,
    makers: Mapping[str, Callable[..., Any]],
) -> SelectedBackend:
    """Return the backend for an address that names an interface of its own."""
    check_interface(address, makers)
    if kind == "completions":
        raise UsageError(
            f"{address.url} is no completions server", hint="use --backend native or auto"
        )
    backend = makers[address.interface](address.url, model, api_key=api_key)
    return SelectedBackend(backend=backend, source="named", model=model)


def check_interface(address: Address, makers: Mapping[str, Callable[..., Any]]) -> None:
    """Check that a plugin has the interface that an address names.

    Args:
        address: the address.
        makers: the functions that make backends of plugins, by interface.

    Raises:
        UsageError: no plugin has it.
    """
    known = [name for name in makers if name != LOCAL]
    if address.interface and address.interface not in known:
        raise UsageError(
            f"nothing here speaks the interface {address.interface}",
            hint=f"known are: {', '.join(known) or 'none'}",
        )


def _load_here(
    name: str,
    note: Callable[[str], None] | None,
    makers: Mapping[str, Callable[..., Any]],
) -> SelectedBackend:
    """Return the backend for a model in this process.

    Raises:
        UsageError: there is no plugin that loads models.
    """
    if LOCAL not in makers:
        raise UsageError(
            "the backend local needs the plugin local, which is not here",
            hint="--backend server starts a server with the model",
        )
    folder = model_path(name)
    files = read_model_files(folder, name)
    return SelectedBackend(
        backend=makers[LOCAL](folder, note=note),
        source="loaded",
        note=f"loading {name} into this process",
        model=name,
        files=files,
    )


def _own_server(
    kind: BackendKind,
    model: str | None,
    usual: Sequence[str],
    note: Callable[[str], None] | None,
    options: Sequence[str],
    interfaces: Callable[[], Mapping[str, Callable[..., Any]]],
) -> SelectedBackend:
    """Return the backend of a server to start, or of a model in this process."""
    if kind == "local":
        return _load_here(model or DEFAULT_MODEL, note, interfaces())
    name, suggestion = model or DEFAULT_MODEL, ""
    folder = model_path(name)
    files = read_model_files(folder, name)
    how: Source = "started"
    ids = find_marker_ids(files, CALL_MARKERS)
    backend = ServerBackend(folder, forbidden_tokens=ids, note=note, options=options)
    line = f"starting a server of our own with {name}"
    if kind == "auto" and model is None:
        how, suggestion = "embedded", suggest_model(memory_bytes()).line
        ports = ", ".join(str(parse_address(address).port) for address in usual)
        line = (
            f"no server was named and none answers on this machine (ports {ports}): "
            f"using the embedded model {name}"
        )
    return SelectedBackend(
        backend=backend, source=how, note=line, suggestion=suggestion, model=name, files=files
    )


async def _local_server(
    addresses: Sequence[str],
    model: str | None,
    api_key: str | None,
    pick_server: Callable[[Sequence[str]], Awaitable[str | None]] | None,
    take_gateways: bool,
) -> LocalServer | None:
    """Return the server at one of the addresses.

    If several answer, ``pick_server`` chooses one.

    Raises:
        UsageError: several servers answer, and none was chosen.
    """
    servers = await find_local_servers(
        addresses, model, api_key=api_key, take_gateways=take_gateways
    )
    if len(servers) < 2:
        return servers[0] if servers else None
    by_address = {str(server.backend.address): server for server in servers}
    address = await pick_server(tuple(by_address)) if pick_server is not None else None
    if address is None:
        raise UsageError(
            f"several model servers answer on this machine: {', '.join(by_address)}",
            hint="name one with --url, or for good: mlx-tools config set backend.url URL",
        )
    return by_address[address]


async def _gateway_serves(backend: CompletionsBackend, note: Callable[[str], None] | None) -> bool:
    """Return True if a gateway accepts the key and serves the wanted model."""
    listed, name = await backend.models(PROBE_TIMEOUT), backend.model
    if not listed and note is not None:
        note(f"the gateway at {backend.address} tells us of no model: is gateway.api_key its key?")
    return bool(listed if name is None else match_model(name, listed, loopback=True))
