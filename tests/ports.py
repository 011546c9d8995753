"""Ports for programs that are told one before they start."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from typing import Final

_PORTS: Final = range(20_000, 32_000)
"""Below those that a system gives out itself: no other test's program is given one of them."""


def free_port() -> int:
    """Return a port of this machine that nothing uses now, and that the system gives to nobody."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
