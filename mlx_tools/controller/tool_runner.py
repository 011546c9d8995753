"""Runs the tools of a session: one call at a time, held to the access list."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from mlx_tools.controller.approver import Approver, confirm_action
from mlx_tools.controller.nested import CallEnd, NestedRuns
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.writer import SessionWriter
from mlx_tools.messages import ToolSpec
from mlx_tools.policy import Decision
from mlx_tools.prompt import is_on_demand, is_reader
from mlx_tools.store import SessionFiles
from mlx_tools.tools import Progress, ReadCallCache, Registry, ToolContext
from mlx_tools.transcript import CallRecord, events


class ToolRunner(Protocol):
    """Runs calls that were let through."""

    def begin(self) -> None:
        """Begin a run."""
        ...

    def end(self) -> None:
        """End the run: nothing may be called any more."""
        ...

    def spec_of(self, call: CallRecord, /) -> ToolSpec:
        """Return the tool of a call, as it is now."""
        ...

    def denial_of(self, call: CallRecord, /) -> Decision | None:
        """Return why the call may not start after all; None if it may."""
        ...

    async def run(self, call: CallRecord, expected_state: str | None, /) -> CallEnd:
        """Run the call. ``expected_state`` is the state that it was approved on."""
        ...

    def is_in_doubt(self, sessions: Iterable[str], /) -> bool:
        """Return whether a call of these sessions, of runs within a call, is in doubt."""
        ...

    def report(self, call: CallRecord, progress: Progress, /) -> None:
        """Tell how far a call has come."""
        ...


class RegistryRunner:
    """Runs calls with the tools of a registry."""

    def __init__(
        self,
        writer: SessionWriter,
        registry: Registry,
        files: SessionFiles,
        outputs: Outputs,
        approver: Approver,
        reads: ReadCallCache,
        nested: NestedRuns | None = None,
    ) -> None:
        self._writer = writer
        self._session = writer.session
        self._registry = registry
        self._files = files
        self._outputs = outputs
        self._approver = approver
        self._reads = reads
        self._nested = nested  # None: there is no model that a tool could ask

    def begin(self) -> None:
        session = self._session
        permit = session.header.session, session.policy.digest(), session.specs.values()
        # Before any call: without the list on disk nothing may run.
        self._files.access.begin(*permit)

    def end(self) -> None:
        self._files.access.end()

    def spec_of(self, call: CallRecord) -> ToolSpec:
        return self._registry.get(call.name).spec

    def denial_of(self, call: CallRecord) -> Decision | None:
        # Read again for each call: whoever deletes the list stops a run that is under way.
        return self._files.access.check(self.spec_of(call))

    async def run(self, call: CallRecord, expected_state: str | None) -> CallEnd:
        session, tool, nested = self._session, self._registry.get(call.name), self._nested
        shown_chars: int | None = self._outputs.most_chars
        if session.header.long_observations == "summary" and not is_reader(tool.spec):
            shown_chars = None  # the tool need not shorten what the model will summarise
        if nested is not None:
            # A call that is made again has its runs already: they go on where they were.
            nested.begin(call.call)
        context = ToolContext(
            policy=session.policy,
            tools=self._registry,
            expected=expected_state,
            artifacts=self._files.artifacts,
            undo=self._files.undo,
            asks=None if nested is None else lambda *asked: nested.ask(call, *asked),
            confirms=lambda _, *asked: confirm_action(self._approver, call.call, *asked),
            shown_chars=shown_chars,
            # An edit may rely only on what the model was shown of the file in this session.
            known_file=session.history.files.get,
            session=session.header.session,
            report=partial(self.report, call) if self._listens else None,
        )
        result = await self._reads.call(
            tool,
            call.arguments,
            context,
            of_session=is_on_demand(tool.spec),
            timeout=session.limits.tool_timeout,
            clean=self._outputs.clean,
        )
        return CallEnd(result) if nested is None else nested.end(call.call, result)

    @property
    def _listens(self) -> bool:
        """True if anybody is told how far a call has come."""
        return self._writer.emit is not None

    def is_in_doubt(self, sessions: Iterable[str]) -> bool:
        return self._nested is not None and self._nested.in_doubt(sessions)

    def report(self, call: CallRecord, progress: Progress) -> None:
        message = self._outputs.clean(progress.message)
        self._writer.tell(
            events.ToolProgress(
                call=call.call, name=call.name, message=message, fraction=progress.fraction
            )
        )
