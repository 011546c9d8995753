"""The parts of the plugin ``runs`` that the page stands on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from mlx_tools.app import plugins
from mlx_tools.controller import ApprovalRequest
from mlx_tools.gateway import ApiError, Gateway
from mlx_tools.transcript import Record

Runs: TypeAlias = Any
RunRow: TypeAlias = Any
"""Its classes: no plugin imports another, so their types are not known here."""


class RunsNames(Struct, frozen=True):
    """The names of the plugin ``runs`` that the page uses."""

    END_STATUSES: tuple[str, ...]
    PATIENCE: float
    conflict: Callable[[str], ApiError]
    is_begun: Callable[[Sequence[Record]], bool]
    read_run: Callable[..., Any]
    requests_of: Callable[..., Awaitable[list[tuple[ApprovalRequest, bool]]]]
    runs_of: Callable[[Gateway], Runs]


_runs = plugins().exports("runs", RunsNames)
END_STATUSES, PATIENCE, conflict = _runs.END_STATUSES, _runs.PATIENCE, _runs.conflict
is_begun, read_run = _runs.is_begun, _runs.read_run
requests_of, runs_of = _runs.requests_of, _runs.runs_of
