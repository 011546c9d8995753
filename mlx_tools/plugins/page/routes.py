"""The routes of this plugin."""

from __future__ import annotations

import sys
from functools import partial

from starlette.routing import BaseRoute

from mlx_tools.app import hookimpl, plugins
from mlx_tools.gateway import Gateway


@hookimpl
def routes(gateway: Gateway) -> list[BaseRoute]:
    """Return the routes of the page, which asks for a key of its own.

    There are none without the plugin ``runs``.
    """
    if "runs" not in plugins().names():
        return []
    from mlx_tools.cli.golden import keep_session
    from mlx_tools.plugins.page.command import link_with_key
    from mlx_tools.plugins.page.gateway_runs import get_runs
    from mlx_tools.plugins.page.page import PATH, Page, Person

    runs, configuration = get_runs(gateway), gateway.configuration
    person = Person(runs.sessions.secret, gateway.now)

    def tell(address: str) -> None:
        if sys.stderr.isatty():  # a file would keep the key
            gateway.note(f"its page is at {link_with_key(configuration, address)}")
        else:
            gateway.note(f"its page is at {address}; mlx-tools serve page prints its key")

    gateway.set_page_path(PATH)
    gateway.on_listening.append(tell)
    return Page(runs, gateway.models, person, partial(keep_session, configuration)).routes()
