"""`mlx-tools serve page`: the address of the gateway's page, with its key."""

from __future__ import annotations

import time

import typer

from mlx_tools.app import Configuration, session_store
from mlx_tools.cli.output import print_text
from mlx_tools.cli.serve import check_options, require_extra

app = typer.Typer(add_completion=False)


@app.command()
def page(context: typer.Context) -> None:
    """Print the page's address, with its key."""
    run, _ = check_options(context.obj)
    with require_extra("gateway", "the page"):
        from mlx_tools.gateway import http_address

    gateway = run.configuration.settings.gateway
    print_text(link_with_key(run.configuration, http_address(gateway.host, gateway.port)))


def link_with_key(configuration: Configuration, address: str) -> str:
    """Return the page's address with its key, which a browser sends to nobody.

    Raises:
        UsageError: the plugin ``runs``, which the page needs, is not here.
    """
    from mlx_tools.plugins.page.page import Person

    return f"{address}#key={Person(session_store(configuration).secret, time.time).key}"
