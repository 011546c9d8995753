"""The address of a completions server, as a person writes it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from mlx_tools.errors import UsageError

_TAIL: Final = re.compile(r"/*(?:/v1(?:/+(?:chat/+)?completions)?)?/*\Z")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%]+\]", re.ASCII)
_EXAMPLE: Final = "an address looks like http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Address:
    """``base`` is the address without ``/v1`` and without a slash at its end.

    ``loopback`` says that its host is this machine by name or number; then no proxy is asked.
    """

    base: str
    host: str
    loopback: bool

    @property
    def completions(self) -> str:
        """Where completions are asked for."""
        return f"{self.base}/v1/completions"

    @property
    def models(self) -> str:
        """Where the served models are listed."""
        return f"{self.base}/v1/models"

    @property
    def properties(self) -> str:
        """Where llama.cpp's server says what it was started with."""
        return f"{self.base}/props"

    @property
    def health(self) -> str:
        """Where mlx-lm's server, llama.cpp and vLLM say how they are."""
        return f"{self.base}/health"

    def __str__(self) -> str:
        return self.base


def parse_address(url: str) -> Address:
    """Read ``url``: http or https, with or without ``/v1`` and a slash at the end.

    Raises:
        UsageError: it is no such address; a user name or password in it is refused too, because an
            address is shown and recorded.
    """
    text = url.strip()
    if not text:
        raise UsageError("the server's address is empty", hint=_EXAMPLE)
    if not text.isprintable() or " " in text or "\\" in text:
        raise UsageError(
            f"{text!r} is no address: it holds white space or control characters", hint=_EXAMPLE
        )
    scheme = re.match(r"(?i)(https?)://", text)
    if scheme is None:
        bare = re.match(r"(?:\w[\w.-]*|\[[0-9A-Fa-f:]+\]):\d+(?:/|\Z)", text)
        hint = f"write http://{text}" if bare else _EXAMPLE
        raise UsageError(f"{_shown(text)} is no http or https address", hint=hint)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"{_shown(text)} is no address: {error}", hint=_EXAMPLE) from error
    if "@" in parts.netloc:
        raise UsageError(
            "the server's address holds a user name or password",
            hint="leave it out; a key is given by its own option",
        )
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise UsageError(f"{_shown(text)} has a query or a fragment", hint="leave it out")
    shown = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(shown) or ".." in host or port == 0:
        raise UsageError(f"{_shown(text)} names no host that can be reached", hint=_EXAMPLE)
    path = _TAIL.sub("", parts.path)
    netloc = shown if port is None else f"{shown}:{port}"
    return Address(f"{scheme[1].lower()}://{netloc}{path}", host, _is_loopback(host))


def _is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(text: str) -> str:
    """The address as it may be shown: what stands before an ``@`` could be a password."""
    return re.sub(r"//[^/@]*@", "//…@", text)[:200]
