"""Which model a server runs: what it says, and what it is known by where it says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Final

from mlx_tools.backends.completions import CompletionsBackend
from mlx_tools.backends.edge import some
from mlx_tools.backends.health import Health
from mlx_tools.backends.interface import CompletionRequest
from mlx_tools.backends.models.embedded import EMBEDDED
from mlx_tools.backends.models.files import ModelFiles, read_model_files
from mlx_tools.backends.models.hub import REPOSITORY
from mlx_tools.backends.models.identity import known_model, last_part, model_identity
from mlx_tools.backends.models.listing import find_model
from mlx_tools.backends.scores import MOST
from mlx_tools.backends.template_probe import hides_its_model
from mlx_tools.errors import BackendError, ModelError, UsageError
from mlx_tools.process import clean

ALIKE: Final = 0.25
"""By how much a model's likelihoods may differ from machine to machine, as natural logarithms."""


@dataclass(frozen=True, slots=True)
class Served:
    """The model that is used of a server.

    ``name`` is what a person calls it, or the server, None where nobody says; ``files`` what its
    files say, where they are on this machine; ``note`` one line on what is in doubt.
    """

    name: str | None
    files: ModelFiles | None
    note: str = ""


async def find_served(
    backend: CompletionsBackend, health: Health, environ: Mapping[str, str]
) -> Served:
    """The model behind ``backend``: the one that it names, else the one that its server runs. Sets
    the name that is sent, which is none where mlx-lm's server would load its model once more.

    Raises:
        UsageError: the server does not know the model; says which it does.
    """
    listed, name, doubt = await backend.models(), backend.model, ""
    entry: str | None
    if name is not None:
        entry = await _settled(backend, name, health, listed, environ)
    else:
        entry, doubt = _which(listed, mlx_lm=health.is_mlx_lm)
        if not listed and health.is_mlx_lm:
            entry = await _recognised(backend)
        backend.model = None if health.is_mlx_lm else entry  # others may insist on a name
    files, broken = _files(entry, environ, loopback=backend.address.loopback)
    if entry is not None and not (name and _is_path(entry)):
        name = entry
    return Served(name, files, "; ".join(line for line in (doubt, broken) if line))


async def _settled(
    backend: CompletionsBackend,
    name: str,
    health: Health,
    listed: tuple[str, ...],
    environ: Mapping[str, str],
) -> str:
    """What the server calls the model ``name``; sets what is sent."""
    loopback = backend.address.loopback
    entry = Names(listed, environ, loopback=loopback).meant_by(name)
    if entry is not None:
        runs = health.is_mlx_lm and _is_path(entry)  # the folder that it was started with
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
    if known is not None and Names((known,), environ, loopback=True).meant_by(name):
        backend.model = None
        return known
    # It loads what it does not list, too: a model that has no index, a folder.
    folder = find_model(name, environ) if loopback else None
    backend.model = name if folder is None or REPOSITORY.fullmatch(name) else str(folder)
    return backend.model


class Names:
    """The names that a server lists, and which of them is meant by a name that a person gives."""

    def __init__(
        self, listed: tuple[str, ...], environ: Mapping[str, str], *, loopback: bool
    ) -> None:
        self._listed = listed
        self._environ = environ
        self._loopback = loopback

    def meant_by(self, name: str) -> str | None:
        """The listed name: the same, that of the same model, or the one whose last part it is."""
        if name in self._listed:
            return name
        wanted = model_identity(name, find_model(name, self._environ))
        for entry in self._listed:
            if wanted is not None and self._identity(entry) == wanted:
                return entry
        alike = [
            entry
            for entry in self._listed
            if name in (last_part(entry), *map(last_part(entry).removesuffix, (".gguf", ":latest")))
        ]
        return alike[0] if len(alike) == 1 else None

    def _identity(self, entry: str) -> str | None:
        here = self._loopback or not _is_path(entry)
        return model_identity(entry, find_model(entry, self._environ) if here else None)


async def _recognised(backend: CompletionsBackend) -> str | None:
    """The embedded model where it is that which the server runs, by how it begins an answer.

    It is asked where mlx-lm's server lists nothing, for want of a Hugging Face cache folder.
    """
    if not await hides_its_model(backend):
        return None
    given, backend.model = backend.model, None
    try:
        return await _begins_like(backend)
    except BackendError:
        return None  # the run's own request will say what is wrong
    finally:
        backend.model = given


async def _begins_like(backend: CompletionsBackend) -> str | None:
    for model in EMBEDDED.values():
        request = CompletionRequest(prompt=model.asked, max_tokens=1, top_logprobs=MOST)
        async with aclosing(backend.complete(request)) as chunks:
            scores = [row async for chunk in chunks for row in chunk.scores]
        found = {score.text: score.logprob for score in scores[0]} if scores else {}
        known = model.likelihoods
        if all(abs(found.get(text, -99.0) - known[text]) < ALIKE for text in known):
            return model.name
    return None


def _which(listed: tuple[str, ...], *, mlx_lm: bool) -> tuple[str | None, str]:
    """Which of the listed models is the one in use, and a line where that is in doubt.

    mlx-lm's server lists the whole Hugging Face cache, and last the folder it was started with.
    """
    if len(listed) == 1:
        return listed[0], ""
    if not listed:
        return None, ""
    if mlx_lm:
        if _is_path(listed[-1]):
            return listed[-1], ""
        return None, (
            f"the server lists {len(listed)} models and not which it runs: "
            "name it with --model, for its chat format"
        )
    return listed[0], f"the server has {len(listed)} models: name one with --model"


def _files(
    name: str | None, environ: Mapping[str, str], *, loopback: bool
) -> tuple[ModelFiles | None, str]:
    """The named model's files, and a line where they are there and cannot be read."""
    if name is None:
        return None, ""
    # a path on another machine says nothing about this one
    folder = find_model(name, environ) if loopback or not _is_path(name) else None
    if folder is None and (known := known_model(name)) is not None:
        folder = find_model(known, environ)
    if folder is None:
        return None, ""
    try:
        return read_model_files(folder, name), ""
    except ModelError as error:
        return None, str(error)


def _is_path(name: str) -> bool:
    return PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute()
