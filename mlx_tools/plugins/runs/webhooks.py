"""Webhooks: other servers are told that a run waits or is done.

They are signed as Standard Webhooks specifies it, and sent only to servers that the user's settings
allow. A webhook is stored in a row until it is sent, so none is lost when the process ends.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final

import anyio

from mlx_tools.app import Configuration
from mlx_tools.errors import StorageError
from mlx_tools.gateway import ApiError, invalid
from mlx_tools.plugins.runs.rows import Hook, RunRows
from mlx_tools.plugins.runs.settings import signing_key
from mlx_tools.toolbox import Fetcher, Target, UrlRefused, is_public, read_url
from mlx_tools.tools import ToolError

DELAYS: Final = (5.0, 30.0, 180.0)
"""Seconds before each further attempt to send a webhook."""

SECONDS: Final = 20.0
"""Seconds that one attempt may take."""


@dataclass
class Webhooks:
    """The webhooks of runs.

    ``keys`` are the signing keys by the origins that the user named.
    ``now`` is in seconds since 1970.
    """

    keys: Mapping[str, bytes] = field(default_factory=dict)
    now: Callable[[], float] = time.time
    _telling: asyncio.Task[None] | None = field(default=None, init=False)
    _news: anyio.Event = field(default_factory=anyio.Event, init=False)

    @classmethod
    def from_settings(cls, configuration: Configuration) -> Webhooks:
        """Return the webhooks that the settings allow: none under ``policy.local_only``."""
        settings = configuration.settings
        own = {} if settings.policy.local_only else configuration.section("runs").webhooks
        return cls({origin: signing_key(secret) for origin, secret in own.items()})

    def check(self, url: str | None) -> None:
        """Raise `ApiError` for an address to which no webhook may be sent."""
        if url is None:
            return
        try:
            target = read_url(url)
        except UrlRefused as error:
            raise invalid("webhook", str(error)) from None
        if self._find_key(target) is None:
            problem = (
                "the user's settings do not allow this address (runs.webhooks names none like "
                "it, or policy.local_only holds)"
            )
            raise invalid("webhook", problem)

    def _find_key(self, target: Target) -> bytes | None:
        for origin, key in self.keys.items():
            named = read_url(origin)
            if (named.scheme, named.authority) == (target.scheme, target.authority):
                return key
        return None

    def wake(self, rows: RunRows) -> None:
        """Send all webhooks that are due, in a task that ends when there are no more."""
        self._news.set()
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_all(rows))

    async def _tell_all(self, rows: RunRows) -> None:
        failed = False
        while True:
            self._news = anyio.Event()
            try:
                due = await anyio.to_thread.run_sync(rows.next_due)
                if due is None:
                    return
                if due <= self.now():
                    await self._tell_some(rows)
                    continue
                failed = False
            except StorageError:
                if failed:  # a webhook that is due is sent the next time
                    return
                due, failed = self.now() + SECONDS, True
            with anyio.move_on_after(due - self.now()):
                await self._news.wait()

    async def _tell_some(self, rows: RunRows) -> None:
        now = self.now()
        owed = await anyio.to_thread.run_sync(rows.owed, now, now + 2 * SECONDS)
        # Not in a task group, which would wrap the error of a row that cannot be written.
        deliveries = (self.deliver(rows, hook) for hook in owed)
        for error in await asyncio.gather(*deliveries, return_exceptions=True):
            if error is not None:
                raise error

    async def deliver(self, rows: RunRows, hook: Hook) -> None:
        """Post a webhook, and record that it was sent or when it is tried again."""
        at = datetime.fromtimestamp(self.now(), UTC).isoformat(timespec="seconds")
        body = json.dumps({"type": hook.kind, "timestamp": at, "data": hook.data}).encode()
        again = None
        try:
            self.check(hook.url)
            with anyio.fail_after(SECONDS):
                told = await self._post(read_url(hook.url), body, hook.mark) // 100 == 2
        except (ToolError, TimeoutError):
            told = False
        except (UrlRefused, ApiError):
            told = True  # it may not be sent, or not any more
        if not told and hook.tries < len(DELAYS):
            again = self.now() + DELAYS[hook.tries]
        await anyio.to_thread.run_sync(rows.mark_sent, hook, again)

    async def _post(self, target: Target, body: bytes, mark: str) -> int:
        key = self._find_key(target) or b""
        address = target.address  # written in the same way, so the user named just this origin
        fetcher = Fetcher(
            ports=frozenset((target.port,)),
            may_ask=lambda found: found == address or is_public(ip_address(str(found))),
        )
        return await fetcher.post(target, body, sign_headers(key, mark, int(self.now()), body))

    async def aclose(self) -> None:
        """Stop sending; webhooks that are due stay in the store."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)


def sign_headers(key: bytes, mark: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the signed header fields of a message.

    ``mark`` is its id, ``timestamp`` the time in seconds since 1970.
    """
    said = f"{mark}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.digest(key, said, hashlib.sha256)).decode()
    return {
        "webhook-id": mark,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
        "content-type": "application/json",
    }
