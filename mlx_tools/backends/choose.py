"""Which backend a run uses, and which model's files stand behind it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from mlx_tools.backends.completions import CompletionsBackend
from mlx_tools.backends.edge import START_HINT
from mlx_tools.backends.health import Health, refuses_as_completions_server
from mlx_tools.backends.local import LocalBackend
from mlx_tools.backends.models.embedded import DEFAULT_MODEL, EMBEDDED
from mlx_tools.backends.models.files import ModelFiles, read_model_files
from mlx_tools.backends.models.listing import find_model, model_path
from mlx_tools.backends.models.memory import memory_bytes, suggest_model
from mlx_tools.backends.native_tokens import Native, native_markers, opener_ids
from mlx_tools.backends.served import Names, find_served
from mlx_tools.backends.server import ServerBackend
from mlx_tools.errors import BackendUnreachable, UsageError
from mlx_tools.messages import Style

Kind = Literal["auto", "completions", "server", "local", "native"]

USUAL: Final = "http://127.0.0.1:8080"
"""Where mlx-lm's server listens unless it is told otherwise."""

_CALLS: Final[tuple[Native, ...]] = ("calls",)

QUICK: Final = 2.0
"""Seconds that a server nobody named has to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A backend, and how it was chosen.

    ``how``: ``named`` (by an address, here or in a configuration), ``found`` (at the usual
    address), ``embedded`` (the embedded model, for want of a server), ``started`` (a server of our
    own, as asked), ``loaded`` (a model in this process, as asked). ``note`` is one line for a
    person, empty where there is nothing to say; ``suggestion`` is another, on the model that suits
    this machine, where the embedded one is used. ``model`` is the served model's name, None where
    the server does not say; ``files`` is what its files say, where they are on this machine.
    """

    backend: CompletionsBackend | ServerBackend | LocalBackend
    how: Literal["named", "found", "embedded", "started", "loaded"]
    note: str = ""
    suggestion: str = ""
    model: str | None = None
    files: ModelFiles | None = None
    health: Health | None = None

    def described(self) -> dict[str, str]:
        """The backend as a session's header has it."""
        found: dict[str, str] = {"kind": self.backend.kind, "how": self.how}
        if self.backend.kind == "completions":
            found["url"] = str(self.backend.address)
        return found

    def free_markers(self, style: Style) -> None:
        """Lets the model write its own markers of calls where it is spoken to in ``style``."""
        if not native_markers(style):
            self.backend.forbidden_tokens = ()


async def choose_backend(
    *,
    kind: Kind = "auto",
    url: str | None = None,
    model: str | None = None,
    api_key: str | None = None,
    forbid: Collection[Native] = _CALLS,
    usual: str = USUAL,
    note: Callable[[str], None] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Chosen:
    """Choose by what was asked for; an address that was named never falls back to another.

    ``auto`` takes the address ``url``; without one, a server that answers at ``usual``; without
    that, a server of our own with ``model`` or the embedded one. ``server`` and ``local`` take one
    of these two, in a server of our own and in this process. ``forbid`` says which of a model's
    native markers it shall not write, where their ids are known and the server is mlx-lm's (not
    ``calls`` for the ``xml`` style, which uses them). ``note`` is told what a server of our own has
    to say later. Nothing is started yet.

    Raises:
        UsageError: the options contradict each other, or name what is not there; a model that the
            server does not know is told with those that it does.
        BackendUnreachable: the named server does not answer.
        ModelMissing: the model is not on this machine (its ``name`` can be pulled).
    """
    if kind == "native":
        raise UsageError(
            "the backend native is not in this version",
            hint="use auto, completions, server or local",
        )
    if kind not in ("auto", "completions", "server", "local"):
        raise UsageError(
            f"{kind!r} is no backend", hint="use auto, completions, server, local or native"
        )
    if kind in ("server", "local") and url is not None:
        uses = (
            "starts a server of its own" if kind == "server" else "runs the model in this process"
        )
        raise UsageError(f"the backend {kind} {uses}", hint="leave the address out")
    if url is not None or kind == "completions":
        backend = CompletionsBackend(url or usual, model, api_key=api_key)
        return await look_at(backend, forbid=forbid, environ=environ)
    if kind == "auto" and model not in EMBEDDED:
        found = await _at_usual(usual, model, api_key, environ)
        if found is not None:
            return await _served(*found, "found", forbid, environ)
    return _own(kind, model, usual, forbid, note, environ)


async def look_at(
    backend: CompletionsBackend,
    *,
    forbid: Collection[Native] = _CALLS,
    environ: Mapping[str, str] = os.environ,
) -> Chosen:
    """What stands behind a backend that somebody made; sets its model name where one must be sent.

    Raises:
        BackendUnreachable: the server does not answer.
        UsageError: the server does not know the backend's model; says which it does.
    """
    health = await backend.health()
    if health.status == "unreachable":
        raise BackendUnreachable(health.detail, hint=START_HINT)
    return await _served(backend, health, "named", forbid, environ)


def _own(
    kind: Kind,
    model: str | None,
    usual: str,
    forbid: Collection[Native],
    note: Callable[[str], None] | None,
    environ: Mapping[str, str],
) -> Chosen:
    """A server of our own, or this process, with ``model`` or the embedded one."""
    name = model or DEFAULT_MODEL
    folder = model_path(name, environ)
    files = read_model_files(folder, name)
    if kind == "local":
        local = LocalBackend(folder, note=note)
        line = f"loading {name} into this process"
        return Chosen(backend=local, how="loaded", note=line, model=name, files=files)
    ids = opener_ids(files.added_tokens, forbid)
    backend = ServerBackend(folder, forbidden_tokens=ids, note=note, environ=environ)
    if kind == "server" or model is not None:
        line = f"starting a server of our own with {name}"
        return Chosen(backend=backend, how="started", note=line, model=name, files=files)
    line = f"no server was named and none answers at {usual}: using the embedded model {name}"
    return Chosen(
        backend=backend,
        how="embedded",
        note=line,
        suggestion=suggest_model(memory_bytes()).line,
        model=name,
        files=files,
    )


async def _at_usual(
    usual: str, model: str | None, api_key: str | None, environ: Mapping[str, str]
) -> tuple[CompletionsBackend, Health] | None:
    """The server at the usual address, if one answers there and serves completions.

    A model that was named and stands on this machine is served by it only if it lists that model:
    another server is not made to load it.
    """
    backend = CompletionsBackend(usual, model, api_key=api_key)
    health = await backend.health(QUICK)
    if health.status not in ("ok", "loading", "unknown"):
        return None
    listed = await backend.models(QUICK)
    if not listed:
        if not health.status_field:
            return None  # some web server: it neither lists models nor has a model server's health
        client = await backend.client()
        if not await refuses_as_completions_server(client, backend.address, {}, QUICK):
            return None
    if model is not None and find_model(model, environ) is not None:
        own = Names(listed, environ, loopback=backend.address.loopback)
        if own.meant_by(model) is None:
            return None
    return backend, health


async def _served(
    backend: CompletionsBackend,
    health: Health,
    how: Literal["named", "found"],
    forbid: Collection[Native],
    environ: Mapping[str, str],
) -> Chosen:
    """What a server that is there serves."""
    found = await find_served(backend, health, environ)
    if found.files is not None and health.is_mlx_lm:
        backend.forbidden_tokens = opener_ids(found.files.added_tokens, forbid)
    model = f" (model {found.name})" if found.name else ""
    lines = [f"using the server at {backend.address}{model}"] if how == "found" else []
    return Chosen(
        backend=backend,
        how=how,
        note="; ".join([*lines, *filter(None, [found.note])]),
        model=found.name,
        files=found.files,
        health=health,
    )
