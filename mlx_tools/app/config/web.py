"""The settings of the web tools."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from mlx_tools.app.config.setting import Milliseconds, Names, Section, Setting
from mlx_tools.errors import UsageError

_DOMAINS = "a list of domains such as example.org; each means all names below it too"
_ENGINES = "a list of duckduckgo, brave, mojeek, startpage, yahoo and wikipedia"


def _domains(value: Any) -> object:
    from mlx_tools.toolbox.web.urls import UrlRefused, read_domain

    try:
        return [read_domain(text) for text in value]
    except UrlRefused as error:
        raise UsageError(str(error)) from None


def _engines(value: Any) -> object:
    from mlx_tools.toolbox.web.search_engines import ENGINES

    if not value or not set(value) <= set(ENGINES):
        raise UsageError(f"search engines: {_ENGINES}")
    return value


class Web(Section):
    timeout_ms: Annotated[
        Milliseconds,
        Field(description="Time for one page or one search, where the call has not less"),
        Setting("lower"),
    ]
    max_kb: Annotated[
        int,
        Field(
            ge=1,
            le=20_000,
            description="Kilobytes of a page that are read, before and after unpacking",
        ),
        Setting("lower"),
    ]
    domains: Annotated[
        Names,
        Field(description="The only domains that fetch_url asks; empty: any on the internet"),
        Setting("never", allowed=_DOMAINS, check=_domains),
    ]
    blocked_domains: Annotated[
        Names,
        Field(description="Domains that fetch_url never asks; adds up"),
        Setting("add", allowed=_DOMAINS, check=_domains),
    ]
    search_engines: Annotated[
        Names,
        Field(
            description="Whom web_search asks, one after the other: the next one only where those "
            "before it found nothing"
        ),
        Setting("never", allowed=_ENGINES, check=_engines),
    ]
