"""The settings of this plugin."""

from typing import Annotated, Any

from mlx_tools.app import Section, Setting, hookimpl
from mlx_tools.backends import parse_address
from mlx_tools.errors import UsageError


def _check_local_hosts(value: Any) -> None:
    from mlx_tools.toolbox import UrlRefused, read_local

    try:
        for text in value:
            read_local(text)
    except UrlRefused as error:
        raise UsageError(str(error)) from None


class WebSettings(Section, frozen=True):
    local_hosts: Annotated[
        tuple[str, ...],
        Setting(
            "never",
            "Hosts of this machine or its network that fetch_url may use too, each with its port",
            allowed="a list of hosts, each with its port, such as localhost:8080",
            test=_check_local_hosts,
        ),
    ] = ()
    searxng: Annotated[
        str | None,
        Setting(
            "never",
            "The address of a SearXNG server, which web_search uses instead of other engines",
            allowed="an address such as http://127.0.0.1:8888",
            test=parse_address,
        ),
    ] = None


@hookimpl
def settings() -> dict[str, type[Section]]:
    """Return the table ``web``."""
    return {"web": WebSettings}
