"""The history of a run and of its session, as far as it decides about later calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mlx_tools.messages import ALL_EFFECTS, Effects, ToolSpec
from mlx_tools.policy import RateCounts
from mlx_tools.schema import hashable
from mlx_tools.transcript.records import ApprovalRecord, ObservationRecord
from mlx_tools.transcript.sources import given_in

_RAN: Final = ("tool_error", "timeout")
"""With these a call has run, and failed."""

Consents = Callable[[ToolSpec], "Effects | None"]
"""The effects that a person allowed a tool for the rest of a session, None where nobody did."""


@dataclass(slots=True)
class RunHistory:
    """Which calls one run has made: what tells a repeated call from a new one.

    The same call again is a repeat unless a call that can change things, itself not a repeat, came
    in between: running the tests, editing, running the tests is no repeat; A, B, A, B is one.
    ``answered``: one has run; ``acted``: one that was more than a search for tools; ``reminded``:
    the model was told that it repeats itself.
    """

    answered: bool = False
    acted: bool = False
    reminded: bool = False
    changes: int = 0
    seen: dict[tuple[str, Any], int] = field(default_factory=dict)

    def add(self, name: str, arguments: Mapping[str, Any], spec: ToolSpec | None) -> bool:
        """Take in a call; return whether it was made before, and nothing has changed since."""
        key = name, hashable(arguments)
        seen = self.seen.get(key)
        repeated = seen == self.changes
        if seen is None and spec is not None and spec.mutates(arguments):
            self.changes += 1
        self.seen[key] = self.changes
        return repeated


@dataclass(slots=True)
class SessionHistory:
    """The history of a session that decides about its later calls, over all its questions.

    ``made`` are the calls that were let through, ``private_read`` is whether a private tool has
    answered, ``at`` is when the last completion came, ``sources`` is the highest number of a source
    that was given, ``consents`` what a person allowed for the rest of the session, by tool.
    ``shared`` are the consents of the session whose call this one runs within.
    """

    shared: Consents | None = None
    made: RateCounts = field(default_factory=dict)
    private_read: bool = False
    sources: int = 0
    consents: dict[str, ApprovalRecord] = field(default_factory=dict)
    at: str = ""

    def observe(self, record: ObservationRecord, spec: ToolSpec | None, run: RunHistory) -> bool:
        """Take in how a call of the tool ``spec`` ended, in ``run`` too; return whether it ran."""
        if record.sources:
            self.sources = max(self.sources, *(one.n for one in given_in(record.sources)), 0)
        ran = record.error is None or record.error.code in _RAN
        run.answered |= ran
        run.reminded |= record.error is not None and record.error.code == "repeated_call"
        # what a run within the call has read is not known here
        self.private_read |= ran and (spec is None or spec.private or record.nested > 0)
        return ran

    def consented(self, spec: ToolSpec) -> Effects | None:
        """The effects that a person allowed this tool, as it is now, for the rest of the session,
        or of the one that it runs within; None where nobody did."""
        record = self.consents.get(spec.name)
        shared = None if self.shared is None else self.shared(spec)
        if record is None or record.tool != spec.digest():
            return shared
        own = frozenset(effect for effect in ALL_EFFECTS if effect in record.effects)
        return own if shared is None else own | shared
