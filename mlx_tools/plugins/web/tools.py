"""The tools of this plugin."""

from __future__ import annotations

from mlx_tools.app import ToolRequest, hookimpl
from mlx_tools.plugins.web.web_tools import fetch_url, make_search
from mlx_tools.toolbox import Fetcher, read_local
from mlx_tools.tools import Tool


@hookimpl
def tools(request: ToolRequest) -> list[Tool]:
    """Return ``fetch_url`` and ``web_search``."""
    options = request.options
    if request.configuration is not None:
        section = request.configuration.section("web")
        options = {"local_hosts": section.local_hosts, "searxng": section.searxng}
    local = frozenset(map(read_local, options.get("local_hosts", ())))
    return [fetch_url(Fetcher(local=local)), make_search(options.get("searxng"), local)]
