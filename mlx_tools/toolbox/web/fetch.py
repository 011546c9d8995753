"""Fetches a page: from checked addresses alone, within limits, redirects followed one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mlx_tools.process import clean
from mlx_tools.toolbox.web.body import Body, read_body
from mlx_tools.toolbox.web.lookup import Gate
from mlx_tools.toolbox.web.media import Media, media_of
from mlx_tools.toolbox.web.request import Wire, broken
from mlx_tools.toolbox.web.urls import Target, UrlRefused, joined
from mlx_tools.tools.context import ToolError

if TYPE_CHECKING:
    import httpx


from mlx_tools.errors import UsageError
from mlx_tools.toolbox.web.search_engines import DEFAULT_ENGINES
from mlx_tools.toolbox.web.urls import read_domain

MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """What a server sent: under ``target``, the URL that it stands at after all redirects."""

    target: Target
    media: Media
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """Fetches pages. ``max_bytes`` is how much of a body is read, before and after unpacking."""

    gate: Gate = field(default_factory=Gate)
    wire: Wire = field(default_factory=Wire)
    max_bytes: int = 3_000_000

    async def fetch(self, target: Target) -> FetchedPage:
        """The page at a URL. There is no limit of time here but that of a silent server. Raises
        Refused for what is never asked, ToolError for what went wrong."""
        for _ in range(MAX_REDIRECTS + 1):
            addresses = await self.gate.admit(target)
            async with self.wire.ask(target, addresses) as response:
                if response.status_code not in _REDIRECTS:
                    return await self._page(target, response)
                target = _next(target, response)
        raise ToolError(f"the page leads on and on: more than {MAX_REDIRECTS} redirects")

    async def _page(self, target: Target, response: httpx.Response) -> FetchedPage:
        import httpx

        status = response.status_code
        if not 200 <= status < 300:
            phrase = clean(response.reason_phrase, 60)
            raise ToolError(f"{target.host} answered {status} {phrase}".rstrip())
        media = media_of(response.headers.get("content-type", ""))
        encoding = response.headers.get("content-encoding", "")
        try:
            body = await read_body(response.aiter_raw(), encoding, self.max_bytes)
        except httpx.HTTPError as error:
            raise broken(target, error) from None
        return FetchedPage(target, media, body)


def _next(target: Target, response: httpx.Response) -> Target:
    """Where a redirect leads. Raises Refused."""
    named = set(response.headers.get_list("location"))
    if len(named) != 1:
        raise UrlRefused(f"{target.host} leads on without saying where to, or to several places")
    found = joined(target, named.pop())
    if target.scheme == "https" and found.scheme == "http":
        raise UrlRefused(
            f"{target.host} leads from https to http ({found.host}), which is not done"
        )
    return found


# --- options of the web tools -------------------------------------------------------------------


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
