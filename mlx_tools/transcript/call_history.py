"""The calls of a run and of its session, as far as they decide about later ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from mlx_tools.messages import ALL_EFFECTS, Effects, ErrorInfo, ToolSpec, replace
from mlx_tools.policy import RateCounts
from mlx_tools.schema import to_hashable
from mlx_tools.transcript.doubt import UnknownEnds
from mlx_tools.transcript.records import (
    ApprovalRecord,
    CallRecord,
    FileView,
    ObservationRecord,
)
from mlx_tools.transcript.sources import NumberedSource, sources_in

_RAN: Final = ("tool_error", "timeout")
"""With these a call has run, and failed."""

Consents = Callable[[ToolSpec, Mapping[str, Any]], "Effects | None"]
"""The effects that a person allowed for the rest of a session, for calls of a tool with these
arguments; None where nobody did."""


class RunHistory(Struct):
    """The calls of one run, to tell a repeated call from a new one.

    The same call again is a repeat unless a call that can change things, itself not a repeat, came
    in between: running the tests, editing, running the tests is no repeat; A, B, A, B is one.
    """

    answered: bool = False
    """A call has run."""
    acted: bool = False
    """A call has run that was more than a search for tools."""
    reminded: bool = False
    """A call was refused since it repeats another."""
    changes: int = 0
    """The number of different calls that can change things."""
    mutations: int = 0
    """The number of all calls that can change things, except repeats."""
    last_calls: dict[tuple[str, Any], tuple[int, int]] = field(default_factory=dict)
    """For each call, the count of changes when it was last made, and its repeats since then."""
    faults: dict[tuple[str, Any], ErrorInfo] = field(default_factory=dict)
    """The errors of calls that brought no result."""

    def copy(self) -> RunHistory:
        """Return a history that can be added to while this one stays."""
        return replace(self, last_calls=dict(self.last_calls), faults=dict(self.faults))

    def fault(self, call: CallRecord) -> ErrorInfo | None:
        """Return the error of the same call before, None if it had a result."""
        # Arguments may be long, and most runs have no fault to look up.
        return self.faults.get((call.name, to_hashable(call.arguments))) if self.faults else None

    def end(self, call: CallRecord, error: ErrorInfo | None) -> None:
        """Record how a call ended; a reminder says nothing new."""
        if error is None:
            if self.faults:
                self.faults.pop((call.name, to_hashable(call.arguments)), None)
        elif error.code != "repeated_call":
            self.faults[call.name, to_hashable(call.arguments)] = error

    def add(self, name: str, arguments: Mapping[str, Any], spec: ToolSpec | None) -> int:
        """Add a call. Return how often it was made without a change in between.

        This call counts, too.
        """
        key = name, to_hashable(arguments)
        mutates = spec is not None and spec.mutates(arguments)
        at, times = self.last_calls.get(key, (-1, 0))
        times = times + 1 if at == (self.changes if mutates else self.mutations) else 1
        if mutates and times == 1:
            self.mutations += 1
            self.changes += key not in self.last_calls
        self.last_calls[key] = (self.changes if mutates else self.mutations), times
        return times

    def forget(self, call: CallRecord) -> None:
        """Remove a call that came after the last one that its turn may make.

        It can be made in the next turn.
        """
        key = call.name, to_hashable(call.arguments)
        self.faults.pop(key, None)
        at, times = self.last_calls.pop(key, (0, 0))
        if times > 1:
            self.last_calls[key] = at, times - 1

    def repeat_count(self, call: CallRecord) -> int:
        """Return how often a call was made in a row, without a change in between."""
        return self.last_calls.get((call.name, to_hashable(call.arguments)), (0, 0))[1]

    def may_serve_again(self, call: CallRecord, spec: ToolSpec | None) -> bool:
        """Return True if a call that repeats another may be answered again.

        It may if it only reads, and ran before.
        """
        fault = self.fault(call)
        ran = fault is None or fault.code in _RAN
        return ran and spec is not None and not spec.mutates(call.arguments)


class SessionHistory(Struct):
    """The history of a session that decides about its later calls.

    It covers all questions of the session.
    """

    shared: Consents | None = None
    """The consents of the session whose call this session runs within."""
    unknown_ends: UnknownEnds = field(default_factory=UnknownEnds)
    """The calls whose end is unknown, there and here."""
    rate_counts: RateCounts = field(default_factory=dict)
    """The calls that were let through, for rate limits."""
    private_read: bool = False
    """True if a private tool has answered."""
    sources: dict[int, NumberedSource] = field(default_factory=dict)
    """The sources that the model was given, by number."""
    files: dict[str, FileView] = field(default_factory=dict)
    """What the model knows of files, by file."""
    consents: dict[tuple[str, Any], ApprovalRecord] = field(default_factory=dict)
    """Consents for the rest of the session, by tool and binding (`ToolSpec.consent_binding`)."""
    last_completed_at: str = ""
    """The time of the last completion."""

    def copy(self) -> SessionHistory:
        """Return a history that can be added to while this one stays."""
        return replace(
            self,
            unknown_ends=UnknownEnds({**self.unknown_ends.calls}),
            rate_counts={**self.rate_counts},
            sources={**self.sources},
            files={**self.files},
            consents={**self.consents},
        )

    def observe(self, record: ObservationRecord, spec: ToolSpec | None, run: RunHistory) -> bool:
        """Record how a call ended, in the session and in ``run``. Return True if it ran.

        Args:
            record: the observation.
            spec: the tool, None if it is unknown.
            run: the history of the run.
        """
        self.sources.update(sources_in(record))
        self.files.update((view.file, view) for view in record.files)
        ran = record.error is None or record.error.code in _RAN
        run.answered |= ran
        run.reminded |= record.error is not None and record.error.code == "repeated_call"
        # what a run within the call has read is not known here
        shows = ran or bool(record.would_change)
        self.private_read |= shows and (spec is None or spec.private or record.nested > 0)
        return ran

    def add_consent(self, tool: str, record: ApprovalRecord) -> None:
        """Add a consent to calls of a tool for the rest of the session."""
        self.consents[tool, to_hashable(record.bound_to or {})] = record

    def allowed_effects(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Effects | None:
        """Return the effects that a person allowed for the rest of the session.

        They are those of this tool, as it is now, with these arguments, in this session or in the
        one that it runs within. None if nobody allowed any.
        """
        binding = spec.consent_binding(arguments) if self.consents else None
        record = None if binding is None else self.consents.get((spec.name, to_hashable(binding)))
        shared = None if self.shared is None else self.shared(spec, arguments)
        if record is None or record.tool != spec.digest():
            return shared
        own = frozenset(effect for effect in ALL_EFFECTS if effect in record.effects)
        return own if shared is None else own | shared
