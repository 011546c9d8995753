"""Who may be asked: a URL's host is looked up once, and what is asked is what was found and
checked."""

from __future__ import annotations

import functools
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mlx_tools.toolbox.web.addresses import Address, address_of, not_public
from mlx_tools.toolbox.web.urls import Target, UrlRefused, is_within
from mlx_tools.tools.context import ToolError
from mlx_tools.tools.threads import submit

ALLOWED_PORTS: Final = frozenset((80, 443, 8080, 8443))
"""Ports on which sites serve pages. Others are other services, which no page is fetched from."""

MAX_ADDRESSES: Final = 4
"""Addresses of one host that are tried."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Looks a name up: the addresses of a host, as texts. Raises OSError where there are none."""


async def system_resolve(host: str, port: int) -> list[str]:
    """The addresses that the system knows for a name, its order kept."""
    look = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    value, error = await submit(look) or (None, None)
    if error is not None:
        raise error
    return [str(entry[4][0]) for entry in value or ()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What may be asked.

    ``domains`` are the only ones, with all below them, where there are any; ``blocked`` are left
    out in any case. ``refusal`` says why an address may not be asked; ``resolve`` looks names up.
    """

    domains: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    ports: frozenset[int] = ALLOWED_PORTS
    refusal: Callable[[Address], str | None] = not_public
    resolve: Resolve = system_resolve

    async def admit(self, target: Target) -> list[str]:
        """The addresses to ask for a target, at least one. Raises Refused where any address of its
        host is refused, ToolError where there is none."""
        self.check(target)
        fixed = target.address
        found = [fixed] if fixed is not None else await self._look_up(target)
        for address in found:
            why = self.refusal(address)
            if why is not None:
                raise UrlRefused(
                    f"{target.host} is not out on the internet ({why}); such addresses are "
                    "never asked"
                )
        return [str(address) for address in found[:MAX_ADDRESSES]]

    def check(self, target: Target) -> None:
        """What can be said without looking the name up. Raises Refused."""
        if target.port not in self.ports:
            listed = ", ".join(map(str, sorted(self.ports)))
            raise UrlRefused(f"port {target.port} is not asked; the ports are {listed}")
        if is_within(target.host, self.blocked):
            raise UrlRefused(f"{target.host} is blocked by web.blocked_domains")
        if self.domains and not is_within(target.host, self.domains):
            raise UrlRefused(f"{target.host} is not among web.domains")

    async def _look_up(self, target: Target) -> list[Address]:
        try:
            texts = await self.resolve(target.host, target.port)
            found = [address_of(text) for text in dict.fromkeys(texts)]
        except (OSError, UnicodeError, ValueError):
            found = []
        if not found:
            raise ToolError(f"there is no host {target.host}, or its name cannot be looked up")
        return found
