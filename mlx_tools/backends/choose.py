"""Which backend a run uses, and which model, of whose files, stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Literal, get_args

from msgspec import Struct

from mlx_tools.backends.capabilities import hides_its_model
from mlx_tools.backends.completions import CompletionsBackend, Health, some
from mlx_tools.backends.interface import BackendKind, CompletionRequest
from mlx_tools.backends.local import LocalBackend
from mlx_tools.backends.local_servers import (
    PROBE_TIMEOUT,
    USUAL_ADDRESSES,
    LocalServer,
    find_local_servers,
    find_program,
    folder_here,
    match_model,
    served_model,
)
from mlx_tools.backends.models.embedded import DEFAULT_MODEL, EMBEDDED
from mlx_tools.backends.models.files import ModelFiles, read_model_files
from mlx_tools.backends.models.hub import REPOSITORY
from mlx_tools.backends.models.listing import (
    find_model,
    known_model,
    memory_bytes,
    model_identity,
    model_path,
    suggest_model,
)
from mlx_tools.backends.running_model import Pick, RunningModel, find_running_model, is_path
from mlx_tools.backends.scores import MOST_SCORES
from mlx_tools.backends.server import ServerBackend
from mlx_tools.backends.transport import Address, parse_address
from mlx_tools.errors import BackendError, BackendUnreachable, ModelError, UsageError
from mlx_tools.messages import Style
from mlx_tools.process import clean

if TYPE_CHECKING:
    from mlx_tools.backends.pool import UpstreamPool
    from mlx_tools.backends.vendors import VendorBackend

How = Literal["named", "found", "embedded", "started", "loaded"]

ALIKE: Final = 0.25
"""By how much a model's likelihoods may differ from machine to machine, as natural logarithms."""

CALL_MARKERS: Final = frozenset(
    (
        *("<tool_call>", "<|tool_call>", "<|tool_call_start|>", "<|tool_calls_section_begin|>"),
        *("<|tool_call_begin|>", "<start_function_call>", "<minimax:tool_call>"),
        *("<longcat_tool_call>", "[TOOL_CALLS]", "<|python_tag|>"),
    )
)
"""Tokens with which models open a native call, as mlx-lm's server knows them. It cuts what stands
between such markers out of a completion's text; where a model's ids for them are known they can be
forbidden, so that the model writes in the protocol's own words."""


def native_markers(style: Style) -> frozenset[str]:
    """Which of its own markers a model shall not write in this style: `choose_backend`."""
    own = style in ("xml", "native")  # they are what a call is written with
    return frozenset() if own else CALL_MARKERS


def marker_ids(files: ModelFiles, markers: Collection[str]) -> tuple[int, ...]:
    """The ids of those markers that the model has as one token."""
    return tuple(number for text, number in files.added_tokens.items() if text in markers)


class SelectedBackend(Struct, frozen=True, kw_only=True):
    """A backend, and how it was chosen.

    ``source``: ``named`` (by an address, here or in a configuration), ``found`` (at the usual
    address), ``embedded`` (the embedded model, for want of a server), ``started`` (a server of our
    own, as asked), ``loaded`` (a model in this process, as asked). ``note`` is one line for a
    person, empty where there is nothing to say; ``suggestion`` is another, on the model that suits
    this machine, where the embedded one is used. ``model`` is the served model's name, None where
    the server does not say; ``files`` is what its files say, where they are on this machine.
    """

    backend: CompletionsBackend | UpstreamPool | ServerBackend | LocalBackend | VendorBackend
    source: How
    note: str = ""
    suggestion: str = ""
    model: str | None = None
    files: ModelFiles | None = None
    health: Health | None = None
    alike: tuple[str, ...] = ()
    """The models that it may be, if only their common chat template is known."""

    @property
    def template(self) -> str | None:
        """The model's chat template, where it is known."""
        return self.files.chat_template if self.files is not None else None

    def identity(self, name: str | None = None) -> str | None:
        """What identifies the model, None where nothing does. ``name`` is the name that somebody
        gave it, where its server says none."""
        known = self.files is not None and not self.alike
        folder = self.files.path if known and self.files is not None else None
        return model_identity(self.model or name, folder)

    def header_fields(self) -> dict[str, str]:
        """The backend as a session's header has it."""
        found: dict[str, str] = {"kind": self.backend.kind, "how": self.source}
        if self.backend.kind == "completions":
            found["url"] = ",".join(address.url for address in self.backend.addresses)
        elif self.backend.kind == "native":
            found["url"] = self.backend.address.url
        return found

    def free_markers(self, style: Style) -> None:
        """Lets the model write its own markers of calls where it is spoken to in ``style``."""
        if not native_markers(style):
            self.backend.forbidden_tokens = ()


async def choose_backend(
    *,
    kind: BackendKind = "auto",
    url: str | Sequence[str] | None = None,
    model: str | None = None,
    api_key: str | None = None,
    usual: str | Sequence[str] = USUAL_ADDRESSES,
    gateway: str | None = None,
    gateway_key: str | None = None,
    note: Callable[[str], None] | None = None,
    spread: bool = False,
    pick: Pick | None = None,
    pick_server: Callable[[Sequence[str]], str | None] | None = None,
    server_options: Sequence[str] = (),
) -> SelectedBackend:
    """Choose by what was asked for; an address that was named never falls back to one that was not.

    ``auto`` takes the address ``url``, or the servers at several as one backend (``spread``: see
    `mlx_tools.backends.pool`); without one, a gateway of ours that answers at ``gateway`` and takes
    ``gateway_key`` (None: no gateway is taken, wherever it is), or the server that answers at one
    of the ``usual`` addresses; without that, one of our own with ``model`` or the embedded one. If
    several servers answer, ``pick_server`` is asked with their addresses. ``native`` takes ``url``
    or that server, to be asked by its own chat interface (`mlx_tools.backends.router.find_route`).
    ``server`` and ``local`` take one of these two models, in a server of our own and in this
    process. A model's own markers of calls are forbidden, where their ids are known and the server
    is mlx-lm's: see `SelectedBackend.free_markers`. ``note`` is told what a server of our own has
    to say later, ``pick`` asks a person for what only a person knows. Nothing is started yet.

    Raises:
        UsageError: the options contradict each other, or name what is not there; a model that the
            server does not know is told with those that it does.
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
        return _vendor(kind, parse_address(urls[0]), model, api_key)
    usual = (usual,) if isinstance(usual, str) else usual
    if urls:
        return await inspect_server(CompletionsBackend(urls[0], model, api_key=api_key), pick=pick)
    if kind == "auto" and gateway is not None:
        # without the key, which is no stranger's affair
        health = await CompletionsBackend(gateway).health(PROBE_TIMEOUT)
        backend = CompletionsBackend(gateway, model, api_key=gateway_key)
        if health.is_gateway and health.ok and await _gateway_serves(backend, note):
            return await _served(backend, health, source="found")
    if kind in ("completions", "native") or (kind == "auto" and model not in EMBEDDED):
        gateways = gateway is not None or kind != "auto"
        server = await _local_server(usual, model, api_key, pick_server, gateways)
        if server is not None:
            how: How = "found" if kind == "auto" else "named"
            return await _served(server.backend, server.health, source=how, pick=pick)
    if kind in ("completions", "native"):
        return await inspect_server(CompletionsBackend(usual[0], model, api_key=api_key))
    return _own_server(kind, model, usual, note, server_options)


def _vendor(
    kind: BackendKind, address: Address, model: str | None, api_key: str | None
) -> SelectedBackend:
    """A server that speaks Anthropic's or Ollama's interface, as its address says."""
    from mlx_tools.backends.vendors import VENDORS

    if kind == "completions":
        raise UsageError(
            f"{address.url} is no completions server", hint="use --backend native or auto"
        )
    backend = VENDORS[address.interface](address.url, model, api_key=api_key)
    return SelectedBackend(backend=backend, source="named", model=model)


async def inspect_server(
    backend: CompletionsBackend,
    *,
    forbid: Collection[str] = CALL_MARKERS,
    pick: Pick | None = None,
) -> SelectedBackend:
    """What stands behind a backend that somebody made; sets its model name where one must be sent.

    Raises:
        BackendUnreachable: the server does not answer.
        UsageError: the server does not know the backend's model, or nothing tells which it runs
            and ``pick`` is None; says which it may be.
    """
    health = await backend.health()
    if health.status == "unreachable":
        raise BackendUnreachable(health.detail, hint=health.hint)
    return await _served(backend, health, forbid, pick=pick)


def _own_server(
    kind: BackendKind,
    model: str | None,
    usual: Sequence[str],
    note: Callable[[str], None] | None,
    options: Sequence[str],
) -> SelectedBackend:
    """A server of our own, or this process, with ``model`` or the embedded one."""
    name, suggestion = model or DEFAULT_MODEL, ""
    folder = model_path(name)
    files = read_model_files(folder, name)
    backend: LocalBackend | ServerBackend
    how: How = "started"
    if kind == "local":
        backend, how = LocalBackend(folder, note=note), "loaded"
        line = f"loading {name} into this process"
    else:
        ids = marker_ids(files, CALL_MARKERS)
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
    pick_server: Callable[[Sequence[str]], str | None] | None,
    take_gateways: bool,
) -> LocalServer | None:
    """The server that answers at one of the addresses; of several, the one that is picked.

    Raises:
        UsageError: several answer, and nobody says which is meant.
    """
    servers = await find_local_servers(
        addresses, model, api_key=api_key, take_gateways=take_gateways
    )
    if len(servers) < 2:
        return servers[0] if servers else None
    by_address = {str(server.backend.address): server for server in servers}
    address = pick_server(tuple(by_address)) if pick_server is not None else None
    if address is None:
        raise UsageError(
            f"several model servers answer on this machine: {', '.join(by_address)}",
            hint="name one with --url, or for good: mlx-tools config set backend.url URL",
        )
    return by_address[address]


async def _gateway_serves(backend: CompletionsBackend, note: Callable[[str], None] | None) -> bool:
    """Whether a gateway takes our key, and serves the model that was named, if one was."""
    listed, name = await backend.models(PROBE_TIMEOUT), backend.model
    if not listed and note is not None:
        note(f"the gateway at {backend.address} tells us of no model: is gateway.api_key its key?")
    return bool(listed if name is None else match_model(name, listed, loopback=True))


# --- the model that a server runs -------------------------------------------------------------


async def _served(
    backend: CompletionsBackend,
    health: Health,
    forbid: Collection[str] = CALL_MARKERS,
    *,
    source: How = "named",
    pick: Pick | None = None,
) -> SelectedBackend:
    """The model behind ``backend``: the one that it names, else the one that its server runs. Sets
    the name that is sent, which is none where mlx-lm's server would load its model once more.

    Raises:
        UsageError: the server does not know the model, or nothing tells which it runs; says which
            there are.
    """
    listed, name, doubt = await backend.models(), backend.model, ""
    running, program = RunningModel(), await find_program(backend, health)
    entry: str | None
    if name is not None:
        entry = await _settle_model(backend, name, health, listed)
    elif health.is_gateway:
        entry = listed[0] if listed else None
        backend.model = entry
    else:
        if health.is_mlx_lm:
            running = await find_running_model(backend, listed, pick=pick)
            entry, doubt = running.name, running.doubt
        else:
            entry, doubt = await served_model(backend, program, listed)
        if not listed and entry is None and health.is_mlx_lm:
            entry = await _recognised(backend)
        backend.model = None if health.is_mlx_lm else entry  # others may insist on a name
    folder, files, broken = None, running.files, ""
    if entry is not None:
        folder = folder_here(entry, loopback=backend.address.loopback)
        known = known_model(entry) if folder is None else None
        folder = find_model(known) if known is not None else folder
    try:
        files = files if folder is None else read_model_files(folder, entry)
    except ModelError as error:
        broken = str(error)  # it is told, and does not stop the run
    if entry is not None and not (name and is_path(entry)):
        name = entry
    if files is not None and health.is_mlx_lm:
        backend.forbidden_tokens = marker_ids(files, forbid)
    said = f" (model {name})" if name else ""
    what = {"mlx-lm": "the server", "other": "the server", "gateway": "the gateway"}
    using = (
        f"using {what.get(program, program)} at {backend.address}{said}"
        if source == "found"
        else ""
    )
    note = "; ".join(filter(None, (using, doubt, broken)))
    return SelectedBackend(
        backend=backend,
        source=source,
        note=note,
        model=name,
        files=files,
        health=health,
        alike=running.alike,
    )


async def _settle_model(
    backend: CompletionsBackend, name: str, health: Health, model_names: tuple[str, ...]
) -> str:
    """What the server calls the model ``name``; sets what is sent."""
    loopback = backend.address.loopback
    entry = match_model(name, model_names, loopback=loopback)
    if entry is not None:
        runs = health.is_mlx_lm and is_path(entry)  # the folder that it was started with
        backend.model = None if runs else entry
        return entry
    if not health.is_mlx_lm:
        if model_names:
            raise UsageError(
                f"the server at {backend.address} does not know the model {clean(name, 100)}: "
                f"it knows {some(model_names)}",
                hint="name one of these with --model, or leave it out",
            )
        return name
    known = None if model_names else await _recognised(backend)
    if known is not None and match_model(name, (known,), loopback=True):
        backend.model = None
        return known
    # It loads what it does not list, too: a model that has no index, a folder.
    folder = find_model(name) if loopback else None
    backend.model = name if folder is None or REPOSITORY.fullmatch(name) else str(folder)
    return backend.model


async def _recognised(backend: CompletionsBackend) -> str | None:
    """The embedded model where it is that which the server runs, by how likely it begins an answer.

    It is asked where mlx-lm's server lists nothing, for want of a Hugging Face cache folder.
    """
    if not await hides_its_model(backend):
        return None
    given, backend.model = backend.model, None
    try:
        for model in EMBEDDED.values():
            request = CompletionRequest(prompt=model.asked, max_tokens=1, top_logprobs=MOST_SCORES)
            async with aclosing(backend.complete(request)) as chunks:
                scores = [row async for chunk in chunks for row in chunk.scores]
            found = {score.text: score.logprob for score in scores[0]} if scores else {}
            known = model.likelihoods
            if all(abs(found.get(text, -99.0) - known[text]) < ALIKE for text in known):
                return model.name
    except BackendError:
        pass  # the run's own request will say what is wrong
    finally:
        backend.model = given
    return None


def which_runs(model_names: Sequence[str], *, mlx_lm: bool) -> tuple[str | None, str]:
    """Which of the listed models is the one in use, and a line where that is in doubt.

    mlx-lm's server lists the whole Hugging Face cache, and last the folder it was started with.
    """
    if len(model_names) < 2:
        return (model_names[0] if model_names else None), ""
    if not mlx_lm:
        return model_names[0], f"the server has {len(model_names)} models: name one with --model"
    if is_path(model_names[-1]):
        return model_names[-1], ""
    return None, (
        f"the server lists {len(model_names)} models and not which it runs: "
        "name it with --model, for its chat format"
    )
