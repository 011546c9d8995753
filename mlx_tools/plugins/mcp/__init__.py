"""Servers of the Model Context Protocol as tools, and mlx-tools as such a server.

It needs the extra ``mcp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.plugins.mcp.client import McpClients, read_prompt

__getattr__, __dir__ = attach_names(globals(), {"client": ("McpClients", "read_prompt")})
