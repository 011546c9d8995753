"""The backend that this plugin adds."""

from __future__ import annotations

from collections.abc import Mapping

from mlx_tools.app import BackendMaker, hookimpl
from mlx_tools.backends import LOCAL


@hookimpl
def backends() -> Mapping[str, BackendMaker]:
    """Return the backend for a model in this process."""
    from mlx_tools.plugins.local.local import LocalBackend

    return {LOCAL: LocalBackend}
