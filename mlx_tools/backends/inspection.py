"""The model behind a chosen backend: its name and its files."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from mlx_tools.backends.address import Address
from mlx_tools.backends.capabilities import hides_its_model
from mlx_tools.backends.completions import CompletionsBackend, Health, list_names
from mlx_tools.backends.interface import Chunk, CompletionRequest
from mlx_tools.backends.listener import is_path
from mlx_tools.backends.local_servers import (
    find_program,
    find_served_model,
    folder_here,
    match_model,
)
from mlx_tools.backends.models.embedded import EMBEDDED
from mlx_tools.backends.models.files import ModelFiles, read_model_files
from mlx_tools.backends.models.hub import REPOSITORY
from mlx_tools.backends.models.listing import (
    find_model,
    known_model,
    model_identity,
)
from mlx_tools.backends.running_model import Pick, RunningModel, find_running_model
from mlx_tools.backends.scores import MAX_SCORES
from mlx_tools.backends.server import ServerBackend
from mlx_tools.errors import BackendError, BackendUnreachable, ModelError, UsageError
from mlx_tools.messages import Style
from mlx_tools.process import clean

Source = Literal["named", "found", "embedded", "started", "loaded"]

MAX_LIKELIHOOD_DIFFERENCE: Final = 0.25
"""The limit of the difference between likelihoods and the recorded ones, as natural logarithms.

A choice: precision and hardware change likelihoods a little (float16 changes logits by up to 0.4,
so float32 is used). With another model some of the recorded tokens differ by more.
"""

CALL_MARKERS: Final = frozenset(
    (
        *("<tool_call>", "<|tool_call>", "<|tool_call_start|>", "<|tool_calls_section_begin|>"),
        *("<|tool_call_begin|>", "<start_function_call>", "<minimax:tool_call>"),
        *("<longcat_tool_call>", "[TOOL_CALLS]", "<|python_tag|>"),
    )
)
"""Tokens with which models open a native call, as mlx-lm's server knows them.

The server removes the text between such markers from a completion. If the ids of these tokens are
known they can be forbidden, and the model then writes its calls in the form of the protocol.
"""


def find_forbidden_markers(style: Style) -> frozenset[str]:
    """Return the model's own markers of calls that are forbidden in this style."""
    are_used = style in ("xml", "native")  # calls in these styles have such markers
    return frozenset() if are_used else CALL_MARKERS


def find_marker_ids(files: ModelFiles, markers: Collection[str]) -> tuple[int, ...]:
    """Return the ids of the markers that are one token of the model."""
    return tuple(number for text, number in files.added_tokens.items() if text in markers)


class NativeBackend(Protocol):
    """A server that takes only messages, with an interface of a plugin."""

    kind: Literal["native"]
    address: Address
    model: str
    forbidden_tokens: Any

    def complete(self, request: CompletionRequest, /) -> AsyncGenerator[Chunk, None]: ...
    async def health(self, timeout: float = 5.0) -> Health: ...
    async def models(self, timeout: float = 5.0) -> tuple[str, ...]: ...
    async def aclose(self) -> None: ...


class LocalModel(Protocol):
    """A model in this process, from a plugin."""

    kind: Literal["local"]
    model: Path
    forbidden_tokens: tuple[int, ...]
    notes: tuple[str, ...]
    """Lines about this machine for a person, known as soon as the model is loaded."""

    async def start(self) -> None: ...
    def complete(self, request: CompletionRequest, /) -> AsyncGenerator[Chunk, None]: ...
    async def models(self, timeout: float = 5.0) -> tuple[str, ...]: ...
    async def aclose(self) -> None: ...


class ServerPool(Protocol):
    """Several servers as one backend: `mlx_tools.backends.pool.UpstreamPool`."""

    kind: Literal["completions"]
    forbidden_tokens: Any

    @property
    def addresses(self) -> tuple[Address, ...]: ...
    def complete(self, request: CompletionRequest, /) -> AsyncGenerator[Chunk, None]: ...
    def __getattr__(self, name: str, /) -> Any: ...


class SelectedBackend(Struct, frozen=True, kw_only=True):
    """A backend, and how it was chosen."""

    backend: CompletionsBackend | ServerPool | ServerBackend | LocalModel | NativeBackend
    source: Source
    """The way in which it was chosen.

    - ``named``: by an address in an option or in the configuration.
    - ``found``: at one of the usual addresses.
    - ``embedded``: the embedded model, because no server was found.
    - ``started``: a server that is started, as requested.
    - ``loaded``: a model in this process, as requested.
    """
    note: str = ""
    """One line for a person, or empty."""
    suggestion: str = ""
    """One line about a better model for this machine, if the embedded model is used."""
    model: str | None = None
    """The name of the served model, None if unknown."""
    files: ModelFiles | None = None
    """The model's files, None if they are not on this machine."""
    health: Health | None = None
    alike: tuple[str, ...] = ()
    """The possible models, if only their common chat template is known."""

    @property
    def template(self) -> str | None:
        """The model's chat template, None if unknown."""
        return self.files.chat_template if self.files is not None else None

    def identity(self, name: str | None = None) -> str | None:
        """Return the model's identity, None if unknown.

        Args:
            name: the model's name by a person, used if the server does not name it.
        """
        is_exact = self.files is not None and not self.alike
        folder = self.files.path if is_exact and self.files is not None else None
        return model_identity(self.model or name, folder)

    def header_fields(self) -> dict[str, str]:
        """Return the backend's fields for the header of a session."""
        fields: dict[str, str] = {"kind": self.backend.kind, "how": self.source}
        if self.backend.kind == "completions":
            fields["url"] = ",".join(address.url for address in self.backend.addresses)
        elif self.backend.kind == "native":
            fields["url"] = self.backend.address.url
        return fields

    def free_markers(self, style: Style) -> None:
        """Allow the model its own markers of calls if ``style`` uses them."""
        if not find_forbidden_markers(style):
            self.backend.forbidden_tokens = ()


async def inspect_server(
    backend: CompletionsBackend,
    *,
    forbid: Collection[str] = CALL_MARKERS,
    pick: Pick | None = None,
) -> SelectedBackend:
    """Find the server and the model behind a backend.

    Set the model's name if it must be sent.

    Raises:
        BackendUnreachable: the server does not answer.
        UsageError: the server does not know the backend's model. Or its model cannot be found out,
            and ``pick`` is None; the message names the possible models.
    """
    health = await backend.health()
    if health.status == "unreachable":
        raise BackendUnreachable(health.detail, hint=health.hint)
    return await inspect_found(backend, health, forbid, pick=pick)


# --- the model that a server runs -------------------------------------------------------------


async def inspect_found(
    backend: CompletionsBackend,
    health: Health,
    forbid: Collection[str] = CALL_MARKERS,
    *,
    source: Source = "named",
    pick: Pick | None = None,
) -> SelectedBackend:
    """Find the model behind ``backend``: its named model, or the one of its server.

    Set the name that is sent. No name is sent if mlx-lm's server would then load its model again.

    Raises:
        UsageError: the server does not know the model, or the model cannot be found out. The
            message lists the server's models.
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
            entry, doubt = await find_served_model(backend, program, listed)
        if not listed and entry is None and health.is_mlx_lm:
            entry = await _recognise_embedded(backend)
        backend.model = None if health.is_mlx_lm else entry  # other servers may require a name
    is_known = entry in listed or entry == running.name
    backend.remember_model(entry if is_known else None, listed)
    folder, files, broken = None, running.files, ""
    if entry is not None:
        folder = folder_here(entry, loopback=backend.address.loopback)
        known_name = known_model(entry) if folder is None else None
        folder = find_model(known_name) if known_name is not None else folder
    try:
        files = files if folder is None else read_model_files(folder, entry)
    except ModelError as error:
        broken = str(error)  # only a note: the run goes on without the files
    if entry is not None and not (name and is_path(entry)):
        name = entry
    if files is not None and health.is_mlx_lm:
        backend.forbidden_tokens = find_marker_ids(files, forbid)
    suffix = f" (model {name})" if name else ""
    names = {"mlx-lm": "the server", "other": "the server", "gateway": "the gateway"}
    using = (
        f"using {names.get(program, program)} at {backend.address}{suffix}"
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
    """Return the server's name for the model ``name``; set the name that is sent."""
    loopback = backend.address.loopback
    entry = match_model(name, model_names, loopback=loopback)
    if entry is not None:
        # The only path in the list of mlx-lm's server is the folder that it was started with.
        is_running_model = health.is_mlx_lm and is_path(entry)
        backend.model = None if is_running_model else entry
        return entry
    if not health.is_mlx_lm:
        if model_names:
            raise UsageError(
                f"the server at {backend.address} does not know the model {clean(name, 100)}: "
                f"it knows {list_names(model_names)}",
                hint="name one of these with --model, or leave it out",
            )
        return name
    recognised = None if model_names else await _recognise_embedded(backend)
    if recognised is not None and match_model(name, (recognised,), loopback=True):
        backend.model = None
        return recognised
    # mlx-lm's server also loads models that it does not list: folders, and models without an index.
    folder = find_model(name) if loopback else None
    backend.model = name if folder is None or REPOSITORY.fullmatch(name) else str(folder)
    return backend.model


async def _recognise_embedded(backend: CompletionsBackend) -> str | None:
    """Return the embedded model's name if likelihoods show that the server runs it.

    This is for mlx-lm's server without a Hugging Face cache folder, which lists no models.
    """
    if not await hides_its_model(backend):
        return None
    old_model, backend.model = backend.model, None
    try:
        for model in EMBEDDED.values():
            request = CompletionRequest(
                prompt=model.probe_prompt, max_tokens=1, top_logprobs=MAX_SCORES
            )
            async with aclosing(backend.complete(request)) as chunks:
                scores = [row async for chunk in chunks for row in chunk.scores]
            logprobs = {score.text: score.logprob for score in scores[0]} if scores else {}
            expected = model.likelihoods
            if all(
                abs(logprobs.get(text, -99.0) - expected[text]) < MAX_LIKELIHOOD_DIFFERENCE
                for text in expected
            ):
                return model.name
    except BackendError:
        pass  # the run's own request will raise it again
    finally:
        backend.model = old_model
    return None


def guess_running_model(model_names: Sequence[str], *, mlx_lm: bool) -> tuple[str | None, str]:
    """Return the listed model that is in use, or None; and a line if it is in doubt.

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
