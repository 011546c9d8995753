"""Which backend a run uses, and which model, of whose files, stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from msgspec import Struct

from mlx_tools.backends.capabilities import hides_its_model
from mlx_tools.backends.completions import CompletionsBackend, Health, some
from mlx_tools.backends.interface import BackendKind, CompletionRequest
from mlx_tools.backends.local import LocalBackend
from mlx_tools.backends.models.embedded import DEFAULT_MODEL, EMBEDDED
from mlx_tools.backends.models.files import ModelFiles, read_model_files
from mlx_tools.backends.models.hub import REPOSITORY
from mlx_tools.backends.models.listing import (
    find_model,
    known_model,
    last_part,
    memory_bytes,
    model_identity,
    model_path,
    suggest_model,
)
from mlx_tools.backends.running_model import Pick, RunningModel, find_running_model, is_path
from mlx_tools.backends.scores import MOST_SCORES
from mlx_tools.backends.server import ServerBackend
from mlx_tools.backends.transport import json_object, parse_address
from mlx_tools.errors import BackendError, BackendUnreachable, ModelError, UsageError
from mlx_tools.messages import Style
from mlx_tools.process import clean

if TYPE_CHECKING:
    from mlx_tools.backends.pool import UpstreamPool
    from mlx_tools.backends.vendors import VendorBackend

How = Literal["named", "found", "embedded", "started", "loaded"]

USUAL: Final = "http://127.0.0.1:8080"
"""Where mlx-lm's server listens unless it is told otherwise."""

PROBE_TIMEOUT: Final = 2.0
"""Seconds that a server nobody named has to answer."""

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

    ``how``: ``named`` (by an address, here or in a configuration), ``found`` (at the usual
    address), ``embedded`` (the embedded model, for want of a server), ``started`` (a server of our
    own, as asked), ``loaded`` (a model in this process, as asked). ``note`` is one line for a
    person, empty where there is nothing to say; ``suggestion`` is another, on the model that suits
    this machine, where the embedded one is used. ``model`` is the served model's name, None where
    the server does not say; ``files`` is what its files say, where they are on this machine.
    """

    backend: CompletionsBackend | UpstreamPool | ServerBackend | LocalBackend | VendorBackend
    how: How
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

    def identity(self, named: str | None = None) -> str | None:
        """What identifies the model, None where nothing does. ``named`` is the name that somebody
        gave it, where its server says none."""
        known = self.files is not None and not self.alike
        folder = self.files.path if known and self.files is not None else None
        return model_identity(self.model or named, folder)

    def described(self) -> dict[str, str]:
        """The backend as a session's header has it."""
        found: dict[str, str] = {"kind": self.backend.kind, "how": self.how}
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
    usual: str = USUAL,
    gateway: str | None = None,
    gateway_key: str | None = None,
    note: Callable[[str], None] | None = None,
    spread: bool = False,
    pick: Pick | None = None,
) -> SelectedBackend:
    """Choose by what was asked for; an address that was named never falls back to one that was not.

    ``auto`` takes the address ``url``, or the servers at several as one backend (``spread``: see
    `mlx_tools.backends.pool`); without one, a gateway of ours that answers at ``gateway`` and takes
    ``gateway_key`` (None: no gateway is taken, wherever it is), or a server at ``usual``; without
    that, one of our own with ``model`` or the embedded one. ``native`` takes ``url`` or that
    server, to be asked by its own chat interface (`mlx_tools.backends.router.find_route`).
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
    if urls and (vendor := parse_address(urls[0])).interface:
        from mlx_tools.backends.vendors import VENDORS

        if kind == "completions":
            raise UsageError(
                f"{vendor.url} is no completions server", hint="use --backend native or auto"
            )
        backend_of = VENDORS[vendor.interface]
        made = backend_of(vendor.url, model, api_key=api_key)
        return SelectedBackend(backend=made, how="named", model=model)
    if urls or kind in ("completions", "native"):
        return await inspect_server(
            CompletionsBackend((*urls, usual)[0], model, api_key=api_key), pick=pick
        )
    if kind == "auto" and gateway is not None:
        # without the key, which is no stranger's affair
        health = await CompletionsBackend(gateway).health(PROBE_TIMEOUT)
        backend = CompletionsBackend(gateway, model, api_key=gateway_key)
        if health.is_gateway and health.ok and await _gateway_serves(backend, note):
            return await _served(backend, health, how="found")
    if kind == "auto" and model not in EMBEDDED:
        backend = CompletionsBackend(usual, model, api_key=api_key)
        health = await backend.health(PROBE_TIMEOUT)
        taken = not (health.is_gateway and gateway is None)
        if taken and await _usual_serves(backend, health):
            return await _served(backend, health, how="found", pick=pick)
    return _own(kind, model, usual, note)


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


def _own(
    kind: BackendKind, model: str | None, usual: str, note: Callable[[str], None] | None
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
        backend = ServerBackend(folder, forbidden_tokens=ids, note=note)
        line = f"starting a server of our own with {name}"
    if kind == "auto" and model is None:
        how, suggestion = "embedded", suggest_model(memory_bytes()).line
        line = f"no server was named and none answers at {usual}: using the embedded model {name}"
    return SelectedBackend(
        backend=backend, how=how, note=line, suggestion=suggestion, model=name, files=files
    )


async def _gateway_serves(backend: CompletionsBackend, note: Callable[[str], None] | None) -> bool:
    """Whether a gateway takes our key, and serves the model that was named, if one was."""
    listed, name = await backend.models(PROBE_TIMEOUT), backend.model
    if not listed and note is not None:
        note(f"the gateway at {backend.address} tells us of no model: is gateway.api_key its key?")
    return bool(listed if name is None else match_model(name, listed, loopback=True))


async def _usual_serves(backend: CompletionsBackend, health: Health) -> bool:
    """Whether the server at the usual address answers, and serves completions.

    A model that was named and stands on this machine is served by it only if it lists that model:
    another server is not made to load it.
    """
    if health.status not in ("ok", "loading", "unknown"):
        return False
    listed, model = await backend.models(PROBE_TIMEOUT), backend.model
    if not listed and not await _completes(backend):
        return False  # some web server
    if model is None or find_model(model) is None:
        return True
    return match_model(model, listed, loopback=backend.address.loopback) is not None


async def _completes(backend: CompletionsBackend) -> bool:
    """Whether ``/v1/completions`` is there: a request that every such server refuses is refused.

    It asks for no tokens and holds no prompt, so nothing is ever generated.
    """
    try:
        status, _, said = await backend.get("/v1/completions", PROBE_TIMEOUT, b'{"max_tokens": 0}')
    except Exception:
        return False
    return status in (400, 422) and bool(json_object(said))


# --- the model that a server runs -------------------------------------------------------------


async def _served(
    backend: CompletionsBackend,
    health: Health,
    forbid: Collection[str] = CALL_MARKERS,
    *,
    how: How = "named",
    pick: Pick | None = None,
) -> SelectedBackend:
    """The model behind ``backend``: the one that it names, else the one that its server runs. Sets
    the name that is sent, which is none where mlx-lm's server would load its model once more.

    Raises:
        UsageError: the server does not know the model, or nothing tells which it runs; says which
            there are.
    """
    listed, name, doubt = await backend.models(), backend.model, ""
    running = RunningModel()
    entry: str | None
    if name is not None:
        entry = await _settled(backend, name, health, listed)
    elif health.is_gateway:
        entry = listed[0] if listed else None
        backend.model = entry
    else:
        if health.is_mlx_lm:
            running = await find_running_model(backend, listed, pick=pick)
            entry, doubt = running.name, running.doubt
        else:
            entry, doubt = which_runs(listed, mlx_lm=False)
        if not listed and entry is None and health.is_mlx_lm:
            entry = await _recognised(backend)
        backend.model = None if health.is_mlx_lm else entry  # others may insist on a name
    folder, files, broken = None, running.files, ""
    if entry is not None:
        folder = _folder(entry, loopback=backend.address.loopback)
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
    what = "gateway" if health.is_gateway else "server"
    using = f"using the {what} at {backend.address}{said}" if how == "found" else ""
    note = "; ".join(filter(None, (using, doubt, broken)))
    return SelectedBackend(
        backend=backend,
        how=how,
        note=note,
        model=name,
        files=files,
        health=health,
        alike=running.alike,
    )


async def _settled(
    backend: CompletionsBackend, name: str, health: Health, listed: tuple[str, ...]
) -> str:
    """What the server calls the model ``name``; sets what is sent."""
    loopback = backend.address.loopback
    entry = match_model(name, listed, loopback=loopback)
    if entry is not None:
        runs = health.is_mlx_lm and is_path(entry)  # the folder that it was started with
        backend.model = None if runs else entry
        return entry
    if not health.is_mlx_lm:
        if listed:
            raise UsageError(
                f"the server at {backend.address} does not know the model {clean(name, 100)}: "
                f"it knows {some(listed)}",
                hint="name one of these with --model, or leave it out",
            )
        return name
    known = None if listed else await _recognised(backend)
    if known is not None and match_model(name, (known,), loopback=True):
        backend.model = None
        return known
    # It loads what it does not list, too: a model that has no index, a folder.
    folder = find_model(name) if loopback else None
    backend.model = name if folder is None or REPOSITORY.fullmatch(name) else str(folder)
    return backend.model


def match_model(name: str, listed: Sequence[str], *, loopback: bool) -> str | None:
    """What a server lists that is meant by the name that a person gives: the same, that of the same
    model, or the one whose last part it is."""
    if name in listed:
        return name
    wanted = model_identity(name, find_model(name))
    for entry in listed:
        folder = _folder(entry, loopback=loopback)
        if wanted is not None and model_identity(entry, folder) == wanted:
            return entry
    tails = {entry: last_part(entry) for entry in listed}
    alike = [
        entry
        for entry, tail in tails.items()
        if name in (tail, tail.removesuffix(".gguf"), tail.removesuffix(":latest"))
    ]
    return alike[0] if len(alike) == 1 else None


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


def which_runs(listed: Sequence[str], *, mlx_lm: bool) -> tuple[str | None, str]:
    """Which of the listed models is the one in use, and a line where that is in doubt.

    mlx-lm's server lists the whole Hugging Face cache, and last the folder it was started with.
    """
    if len(listed) < 2:
        return (listed[0] if listed else None), ""
    if not mlx_lm:
        return listed[0], f"the server has {len(listed)} models: name one with --model"
    if is_path(listed[-1]):
        return listed[-1], ""
    return None, (
        f"the server lists {len(listed)} models and not which it runs: "
        "name it with --model, for its chat format"
    )


def _folder(name: str, *, loopback: bool) -> Path | None:
    # a path on another machine says nothing about this one
    return find_model(name) if loopback or not is_path(name) else None
