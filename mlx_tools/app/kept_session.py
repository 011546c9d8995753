"""A saved session that continues with the settings of its header.

These are its backend, model, style and roots, which a user need not name again. The present
configuration applies too. This module also calls a tool without a model, in its own session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from mlx_tools.app.config import Configuration
from mlx_tools.app.hooks import collect
from mlx_tools.app.wiring import (
    Note,
    RunOptions,
    addresses,
    approval_templates,
    build_registry,
    choose,
    list_recorded_options,
    list_roots,
    session_store,
)
from mlx_tools.backends import Backend, Chunk, CompletionRequest, SelectedBackend
from mlx_tools.controller import (
    Approver,
    Controller,
    Conversation,
    DirectCall,
    PauseApprover,
    call_tool,
    check_begun_here,
)
from mlx_tools.errors import BackendError, TranscriptError, UsageError
from mlx_tools.policy import Policy
from mlx_tools.store import SessionFiles
from mlx_tools.tools import OnProgress, Registry
from mlx_tools.transcript import Header, Record

NO_MODEL: Final = "none"
"""The backend's kind in the header of a call without a model."""


class _NoBackend:
    """A backend that is never used."""

    def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        raise BackendError("no model is asked here")


class SavedSession(Struct, frozen=True):
    """A session to continue."""

    place: str
    """Its id, or its transcript's path."""
    header: Header
    run: RunOptions
    """The options to reach its model."""
    note: Note
    """Gets each line that a person should read."""
    narrowed_policy: Policy | None = None
    """Narrows the session's policy, None for no change."""
    fallback_options: RunOptions | None = None
    """The options to reach the model at another address, if the first does not answer."""

    @asynccontextmanager
    async def open_controller(
        self, approver: Approver, wrap: Callable[[Backend], Backend] = lambda backend: backend
    ) -> AsyncIterator[Controller]:
        """Open a controller for the session; its backend is closed at the end.

        ``wrap`` is as for `mlx_tools.app.open_controller`.
        """
        configuration = self.run.configuration
        registry = build_registry(configuration, self.header, self.note)
        selected = await self._select_backend()
        try:
            selected.free_markers(self.header.style)
            yield self._make_controller(wrap(selected.backend), registry, approver)
        finally:
            await registry.aclose()
            await selected.backend.aclose()

    async def _select_backend(self) -> SelectedBackend:
        """Return the backend, or the one at the other address if it cannot be reached."""
        try:
            return await choose(self.run, self.note)
        except (BackendError, UsageError) as error:
            return await choose(self.take_fallback(error), self.note)

    def take_fallback(self, error: BackendError | UsageError) -> RunOptions:
        """Return the options for the other address, and note the address.

        Raises:
            BackendError: the given error, if there is no other address.
            UsageError: likewise.
        """
        if self.fallback_options is None:
            raise error
        url = self.fallback_options.configuration.settings.backend.url
        self.note(f"{error.message}: trying {', '.join(addresses(url))}")
        return self.fallback_options

    @asynccontextmanager
    async def open_for_reading(self) -> AsyncIterator[Conversation]:
        """Open the session to see its waiting calls, without a model."""
        registry = build_registry(self.run.configuration, self.header)
        try:
            async with await self.begin_without_model(registry, PauseApprover()) as conversation:
                yield conversation
        finally:
            await registry.aclose()

    async def begin_without_model(self, registry: Registry, approver: Approver) -> Conversation:
        """Open the session to read it or to decide about its calls, without a model."""
        return await self.begin(self._make_controller(_NoBackend(), registry, approver))

    def _make_controller(
        self, backend: Backend, registry: Registry, approver: Approver
    ) -> Controller:
        store = session_store(self.run.configuration)
        return Controller(
            backend,
            registry,
            store=store,
            approver=approver,
            templates=approval_templates(store),
            configured_policy=self.run.configuration.configured_policy(),
            observers=collect("observers"),
        )

    async def begin(self, controller: Controller) -> Conversation:
        """Open the session with a controller."""
        return await controller.reopen(self.place, narrowed_policy=self.narrowed_policy)


def find_header(place: str, records: Sequence[Record], secret: bytes) -> Header:
    """Return the header of a session that can continue.

    It is checked before any of its values is used, such as the address of a server.

    Raises:
        UsageError: the session cannot continue.
        TranscriptError: its transcript has no header.
    """
    header = records[0] if records else None
    if not isinstance(header, Header):
        raise TranscriptError(f"the transcript of {place} holds nothing yet")
    if header.backend.get("kind") == NO_MODEL:
        raise UsageError(
            "nothing waits in the session: it is a call without a model", hint="call it again"
        )
    check_begun_here(records, secret)
    return header


def make_options(header: Header) -> Mapping[str, str | Sequence[str]]:
    """Return a header as options of the command line.

    These are the options for the model and its server, the limits, and the roots.
    """
    said = {
        "backend.kind": header.backend.get("kind"),
        "backend.url": header.backend.get("url"),
        "model.name": header.model,
        "prompt.system": header.persona,
    }
    named = {key: value for key, value in said.items() if isinstance(value, str)}
    places = {
        "tools.commands": list(header.commands),
        "tools.functions": list(header.functions),
    }
    kept = {key: some for key, some in places.items() if some}
    return {"tools.roots": list(header.roots), **kept, **list_recorded_options(header), **named}


# --- a call without a model ----------------------------------------------------------------------


async def call_recorded(
    configuration: Configuration,
    registry: Registry,
    name: str,
    arguments: Mapping[str, Any],
    *,
    source: str,
    approver: Approver | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[DirectCall, SessionFiles]:
    """Call a tool under a configuration's policy and limits, in its own session.

    See `mlx_tools.controller.call_tool`. The header stores ``source`` as the origin of the call.

    Raises:
        StorageError: the session cannot be written.
    """
    store, policy = session_store(configuration), configuration.policy()
    files = store.create()
    try:
        files.transcript.append(
            Header(
                session=files.session,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                backend={"kind": NO_MODEL, "how": source},
                roots=configuration.settings.tools.roots,
                policy=policy.to_json(),
                policy_hash=policy.digest(),
                limits=configuration.limits().for_model(None).to_json(),
            )
        )
        result = await call_tool(
            registry,
            policy,
            name,
            arguments,
            limits=configuration.limits(),
            approver=approver,
            record=files.transcript.append,
            session=files.session,
            secret=store.secret,
            undo=files.undo,
            on_progress=on_progress,
            templates=approval_templates(store),
            roots=list_roots(configuration),
        )
    finally:
        files.transcript.close()
    return result, files
