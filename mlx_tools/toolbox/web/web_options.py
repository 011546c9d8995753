"""What the web tools are told by whoever sets them up."""

from __future__ import annotations

from dataclasses import dataclass

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.web.fetch import Fetcher
from mlx_tools.toolbox.web.lookup import Gate
from mlx_tools.toolbox.web.search_engines import DEFAULT_ENGINES
from mlx_tools.toolbox.web.urls import UrlRefused, read_domain


@dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions:
    """``seconds`` is what one page or search may take; ``max_bytes`` how much of a page is read,
    before and after unpacking. Pages are fetched from ``domains`` alone, with all below them, where
    there are any, and never from ``blocked_domains``. ``engines`` are asked by searches, in turn.
    """

    seconds: float = 20.0
    max_bytes: int = 3_000_000
    domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    engines: tuple[str, ...] = DEFAULT_ENGINES

    def fetcher(self) -> Fetcher:
        """What fetches pages under these options. Raises UsageError for what is no domain."""
        gate = Gate(
            domains=_domains("web.domains", self.domains),
            blocked=_domains("web.blocked_domains", self.blocked_domains),
        )
        return Fetcher(gate=gate, max_bytes=self.max_bytes)


def _domains(key: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(map(read_domain, texts))
    except UrlRefused as error:
        raise UsageError(f"{key}: {error}", hint="write one such as example.org") from None
