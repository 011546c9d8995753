"""The tools of bound OpenAPI documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_tools.app import SourceMaker, hookimpl
from mlx_tools.tools import BoundSource, BoundSources, BoundTool, Tool


@hookimpl
def sources(sources: BoundSources, roots: Sequence[str]) -> Mapping[str, SourceMaker]:
    """Return the maker of the tools of operations."""

    def make(source: BoundSource, tool: BoundTool) -> Tool:
        from mlx_tools.plugins.openapi.request import make_operation

        return make_operation(source, tool)

    return {"openapi": SourceMaker(make)}
