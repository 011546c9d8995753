"""A server of the Model Context Protocol.

A local model that uses tools, and the tools themselves.

It needs the extra ``mcp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.mcp.delegation import Delegation
    from mlx_tools.mcp.elicitation import ApprovalText
    from mlx_tools.mcp.mcp_server import McpServer, http_application, serve_http, serve_stdio

__getattr__, __dir__ = names_of(
    globals(),
    {
        "delegation": ("Delegation",),
        "elicitation": ("ApprovalText",),
        "mcp_server": ("McpServer", "http_application", "serve_http", "serve_stdio"),
    },
)
