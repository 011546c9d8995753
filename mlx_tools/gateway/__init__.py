"""The gateway: a text-only model behind the interfaces of clients and agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.gateway.run_rows import RUNS, RunRows
    from mlx_tools.gateway.run_worker import work
    from mlx_tools.gateway.server import page_link, serve

__getattr__, __dir__ = names_of(
    globals(),
    {
        "run_rows": ("RUNS", "RunRows"),
        "run_worker": ("work",),
        "server": ("page_link", "serve"),
    },
)
