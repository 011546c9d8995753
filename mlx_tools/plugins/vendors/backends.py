"""The backends that this plugin adds."""

from __future__ import annotations

from collections.abc import Mapping

from mlx_tools.app import BackendMaker, hookimpl


@hookimpl
def backends() -> Mapping[str, BackendMaker]:
    """Return the backends for addresses with ``anthropic:`` and ``ollama:``."""
    from mlx_tools.plugins.vendors.vendors import VENDORS

    return VENDORS
