"""A model in this process, by mlx-lm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.plugins.local.local import LocalBackend

__getattr__, __dir__ = names_of(globals(), {"local": ("LocalBackend",)})
