"""The tools of bound MCP servers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mlx_tools.app import SourceMaker, hookimpl
from mlx_tools.tools import BoundSource, BoundSources, BoundTool, Tool

if TYPE_CHECKING:
    from mlx_tools.plugins.mcp.client import McpClients


@hookimpl
def sources(sources: BoundSources, roots: Sequence[str]) -> Mapping[str, SourceMaker]:
    """Return what makes the tools of MCP servers. It connects at the first call."""

    @functools.cache
    def clients() -> McpClients:
        from mlx_tools.plugins.mcp.client import McpClients

        return McpClients(sources, tuple(roots))

    def make(source: BoundSource, tool: BoundTool) -> Tool:
        return clients().tool(source, tool)

    def make_more(bound: Sequence[BoundSource]) -> list[Tool]:
        from mlx_tools.plugins.mcp.client import mcp_read

        readable = [source.name for source in bound if source.location.get("resources")]
        return [mcp_read(clients(), readable)] if readable else []

    async def close() -> None:
        if clients.cache_info().currsize:
            await clients().aclose()

    return {"mcp": SourceMaker(make, make_more, close)}
