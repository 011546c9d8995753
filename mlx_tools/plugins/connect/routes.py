"""The line of this plugin for the person who starts the gateway; it adds no route."""

from __future__ import annotations

from starlette.routing import BaseRoute

from mlx_tools.app import hookimpl
from mlx_tools.gateway import Gateway


@hookimpl
def routes(gateway: Gateway) -> list[BaseRoute]:
    """Announce ``mlx-tools connect`` once the gateway listens."""

    def tell(address: str) -> None:
        gateway.note("mlx-tools connect CLIENT sets up an agent or editor, such as codex or zed")

    gateway.on_listening.append(tell)
    return []
