"""The parts of the plugin ``runs`` that the page needs."""

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
    WAIT_SECONDS: float
    conflict: Callable[[str], ApiError]
    is_begun: Callable[[Sequence[Record]], bool]
    read_run: Callable[..., Any]
    list_requests: Callable[..., Awaitable[list[tuple[ApprovalRequest, bool]]]]
    get_runs: Callable[[Gateway], Runs]


_runs = plugins().exports("runs", RunsNames)
END_STATUSES, WAIT_SECONDS, conflict = _runs.END_STATUSES, _runs.WAIT_SECONDS, _runs.conflict
is_begun, read_run = _runs.is_begun, _runs.read_run
list_requests, get_runs = _runs.list_requests, _runs.get_runs
