"""A model in this process, by mlx-lm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.plugins.local.local import LocalBackend

__getattr__, __dir__ = attach_names(globals(), {"local": ("LocalBackend",)})
