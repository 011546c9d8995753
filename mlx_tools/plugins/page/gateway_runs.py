"""The parts of the plugin ``runs`` that the page stands on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from mlx_tools.app import plugins
from mlx_tools.controller import ApprovalRequest
from mlx_tools.gateway import ApiError, Gateway
from mlx_tools.transcript import Record

Runs: TypeAlias = Any
RunRow: TypeAlias = Any
"""Its classes: no plugin imports another, so their types are not known here."""

_runs: Any = plugins().exports("runs")
END_STATUSES: tuple[str, ...] = _runs.END_STATUSES
PATIENCE: float = _runs.PATIENCE
conflict: Callable[[str], ApiError] = _runs.conflict
is_begun: Callable[[Sequence[Record]], bool] = _runs.is_begun
read_run: Callable[..., Any] = _runs.read_run
requests_of: Callable[..., Awaitable[list[tuple[ApprovalRequest, bool]]]] = _runs.requests_of
runs_of: Callable[[Gateway], Runs] = _runs.runs_of
