"""Tells other servers that a run waits or is done: signed as Standard Webhooks specifies it, and
nowhere but where the user's settings allow."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, Final

import anyio

from mlx_tools.gateway.request import ApiError
from mlx_tools.toolbox import Fetcher, Target, UrlRefused, is_public, read_url
from mlx_tools.tools import ToolError

DELAYS: Final = (0.0, 5.0, 30.0, 180.0)
"""Seconds before each time that it is tried to tell one thing."""

SECONDS: Final = 20.0
"""How long telling it once may take."""

_MOST: Final = 1_000
"""Things that are being told at the same time."""


@dataclass
class Webhooks:
    """Where may be told what. ``origins`` are those that the user named, ``key`` what is signed
    with, empty where there is none. ``now`` is in seconds since 1970."""

    origins: tuple[str, ...] = ()
    key: bytes = b""
    now: Callable[[], float] = time.time
    _telling: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def check(self, url: str | None) -> None:
        """Raise `ApiError` for an address that is told nothing."""
        if url is None:
            return
        try:
            target = read_url(url)
        except UrlRefused as error:
            raise _refused(str(error)) from None
        if target.authority not in self._authorities(target.scheme) or not self.key:
            raise _refused("the user's settings do not allow this address (gateway.webhooks)")

    def _authorities(self, scheme: str) -> set[str]:
        allowed = map(read_url, self.origins)
        return {one.authority for one in allowed if one.scheme == scheme}

    def tell(self, url: str | None, mark: str, kind: str, data: dict[str, Any]) -> None:
        """Tell it, soon; what cannot be told in a few minutes is given up. ``mark`` is the same
        each time that this is told."""
        if url is None or len(self._telling) >= _MOST:
            return
        task = asyncio.create_task(self._tell(url, mark, kind, data))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, url: str, mark: str, kind: str, data: dict[str, Any]) -> None:
        at = datetime.fromtimestamp(self.now(), UTC).isoformat(timespec="seconds")
        body = json.dumps({"type": kind, "timestamp": at, "data": data}).encode()
        for delay in DELAYS:
            await anyio.sleep(delay)
            try:
                self.check(url)
                with anyio.fail_after(SECONDS):
                    if await self._post(read_url(url), body, mark) // 100 == 2:
                        return
            except (ToolError, TimeoutError):
                continue
            except (UrlRefused, ApiError):
                return

    async def _post(self, target: Target, body: bytes, mark: str) -> int:
        address = target.address  # written as one, so the user named just this
        fetcher = Fetcher(
            ports=frozenset((target.port,)),
            may_ask=lambda found: found == address or is_public(ip_address(str(found))),
        )
        return await fetcher.post(target, body, signed(self.key, mark, int(self.now()), body))

    async def aclose(self) -> None:
        """Give up what is being told."""
        telling = [*self._telling]
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)


def signed(key: bytes, mark: str, at: int, body: bytes) -> dict[str, str]:
    """The header fields of a message, by its id and the time in seconds since 1970."""
    said = f"{mark}.{at}.".encode() + body
    signature = base64.b64encode(hmac.digest(key, said, hashlib.sha256)).decode()
    return {
        "webhook-id": mark,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{signature}",
        "content-type": "application/json",
    }


def _refused(problem: str) -> ApiError:
    return ApiError(400, "invalid_value", f"webhook: {problem}", param="webhook")
