"""Whether it is a person who asks the page, and not a client of the gateway.

A client may not decide about its own calls, so its key opens nothing here. A person's key is made
of the secret of the sessions, which only this user can read: whoever has it could decide at a
terminal too. It is given to the page once, and a cookie stands for it then.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from mlx_tools.policy import same

COOKIE: Final = "mlx_tools_person"
HOLDS: Final = 30 * 86_400
"""Seconds for which a browser is known."""


class Person:
    """The person whose sessions have this secret; ``now`` is the time in seconds since 1970."""

    def __init__(self, secret: bytes, now: Callable[[], float]) -> None:
        self._secret, self._now = secret, now
        self.key = self._sealed("key")[:40]

    def admit(self, response: Response, *, https: bool) -> None:
        """Have the browser that gets this response known from now on."""
        until = str(int(self._now()) + HOLDS)
        value = f"{until}.{self._sealed(f'cookie {until}')}"
        response.set_cookie(
            COOKIE, value, max_age=HOLDS, secure=https, httponly=True, samesite="strict"
        )

    def is_at(self, request: Request) -> bool:
        """Return whether the request comes from a browser that was admitted."""
        until, _, seal = request.cookies.get(COOKIE, "").partition(".")
        if not same(seal, self._sealed(f"cookie {until}")):
            return False
        return int(until) > self._now()

    def _sealed(self, what: str) -> str:
        text = f"the page: {what}".encode(errors="surrogatepass")
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()
