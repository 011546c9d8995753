"""One request to one address: no cookies, no credentials, no proxy, nothing followed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mlx_tools.process import clean
from mlx_tools.toolbox.web.body import ENCODINGS
from mlx_tools.toolbox.web.urls import Target
from mlx_tools.tools.context import ToolError

if TYPE_CHECKING:
    import ssl

    import httpx

CONNECT_SECONDS: Final = 5.0
"""For one address: where a host has several, the next is tried."""

ACCEPT: Final = (
    "text/html,application/xhtml+xml,text/markdown,text/plain,application/json,*/*;q=0.5"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How a request is made. ``idle`` is how many seconds a server may be silent; ``context`` makes
    the TLS context, None for the one that trusts the usual authorities."""

    idle: float = 10.0
    context: ssl.SSLContext | None = None

    @contextlib.asynccontextmanager
    async def ask(self, target: Target, addresses: list[str]) -> AsyncIterator[httpx.Response]:
        """The response of the first of these addresses that can be connected to, its body not yet
        read. The host's name stands in the request, and is what the certificate is held to; the
        address alone decides who is asked. Raises ToolError."""
        import httpx

        async with contextlib.AsyncExitStack() as stack:
            for address in addresses:
                transport = httpx.AsyncHTTPTransport(
                    verify=self.context or _usual_context(), trust_env=False, http2=False
                )
                await stack.enter_async_context(transport)
                try:
                    response = await transport.handle_async_request(self._request(target, address))
                    break
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    if address == addresses[-1]:
                        raise ToolError(_unreachable(target, error)) from None
                except httpx.HTTPError as error:
                    raise broken(target, error) from None
            stack.push_async_callback(response.aclose)
            yield response

    def _request(self, target: Target, address: str) -> httpx.Request:
        import httpx

        times = {"connect": CONNECT_SECONDS, "read": self.idle, "write": self.idle, "pool": 1.0}
        return httpx.Request(
            "GET",
            httpx.URL(
                scheme=target.scheme,
                host=address,
                port=target.port,
                raw_path=target.path.encode("ascii"),
            ),
            headers=[
                ("Host", target.authority),
                ("User-Agent", _agent()),
                ("Accept", ACCEPT),
                ("Accept-Encoding", ", ".join(ENCODINGS)),
                ("Connection", "close"),
            ],
            extensions={"timeout": times, "sni_hostname": target.host},
        )


def broken(target: Target, error: Exception) -> ToolError:
    """What went wrong while a server answered, in words."""
    import httpx

    if isinstance(error, httpx.TimeoutException):
        return ToolError(f"{target.host} went silent", code="timeout")
    return ToolError(f"{target.host} did not answer as a web server does: {clean(str(error), 200)}")


def _unreachable(target: Target, error: Exception) -> str:
    told = clean(str(error), 200)
    return f"{target.host} cannot be reached" + (f": {told}" if told else "")


@functools.cache
def _usual_context() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()


@functools.cache
def _agent() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"mlx-tools/{version('mlx-tools')}"
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "mlx-tools"
