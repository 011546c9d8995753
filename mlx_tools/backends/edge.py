"""Foreign errors, translated where they enter: httpx's exceptions and a server's own words."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any, Final

from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    MlxToolsError,
    UsageError,
)
from mlx_tools.process import clean


class Dropped(BackendBroken):
    """The connection broke off."""


class ServerFailed(BackendRefused):
    """The server says that it failed, with a status from 500 on."""


START_HINT: Final = "start one, e.g. mlx_lm.server --model MODEL, or name another with --url"

_HTTPX: Final[dict[str, tuple[type[MlxToolsError], str]]] = {
    # name of the httpx class: what it becomes, and what it means
    "HTTPError": (BackendBroken, "the exchange with {0} failed"),
    "RequestError": (BackendBroken, "the exchange with {0} failed"),
    "TransportError": (BackendBroken, "the exchange with {0} failed"),
    "TimeoutException": (BackendTimeout, "{0} did not answer in time"),
    "ConnectTimeout": (BackendUnreachable, "{0} accepts no connection in time"),
    "ReadTimeout": (BackendTimeout, "{0} did not answer in time"),
    "WriteTimeout": (BackendTimeout, "{0} did not take the request in time"),
    "PoolTimeout": (BackendTimeout, "no connection to {0} was free in time"),
    "NetworkError": (Dropped, "the connection to {0} broke off"),
    "ConnectError": (BackendUnreachable, "no server answers at {0}"),
    "ReadError": (Dropped, "the connection to {0} broke off"),
    "WriteError": (Dropped, "the connection to {0} broke off"),
    "CloseError": (Dropped, "the connection to {0} broke off"),
    "ProtocolError": (BackendBroken, "{0} does not speak HTTP as it should"),
    "LocalProtocolError": (UsageError, "the request to {0} cannot be sent"),
    "RemoteProtocolError": (Dropped, "{0} broke off, or does not speak HTTP"),
    "ProxyError": (BackendUnreachable, "the proxy on the way to {0} refused"),
    "UnsupportedProtocol": (UsageError, "{0} is no http or https address"),
    "DecodingError": (BackendBroken, "{0} sent bytes that cannot be decoded"),
    "TooManyRedirects": (BackendRefused, "{0} redirects without end"),
    "HTTPStatusError": (BackendRefused, "{0} answered with an error"),
    "InvalidURL": (UsageError, "{0} is no address"),
    "CookieConflict": (BackendBroken, "{0} sent cookies that conflict"),
    "StreamError": (BackendBroken, "the stream from {0} cannot be read"),
    "StreamConsumed": (BackendBroken, "the stream from {0} cannot be read"),
    "StreamClosed": (BackendBroken, "the stream from {0} was closed"),
    "ResponseNotRead": (BackendBroken, "the stream from {0} cannot be read"),
    "RequestNotRead": (BackendBroken, "the request to {0} cannot be read"),
}

_HINTS: Final[dict[type[MlxToolsError], str]] = {
    BackendUnreachable: START_HINT,
    BackendBroken: "see the server's log; ask again",
    BackendTimeout: "allow more time with --timeout, or see the server's log",
}

DEAD_WORDS: Final = "generation thread died"
"""What mlx-lm's server answers once the thread that runs its model has ended."""


def translate(error: BaseException, address: str) -> MlxToolsError:
    """The error of our tree that stands for ``error`` (httpx's, or the operating system's)."""
    names = [cls.__name__ for cls in type(error).__mro__]
    kind, words = next(
        (_HTTPX[name] for name in names if name in _HTTPX),
        (BackendBroken, "the exchange with {0} failed"),
    )
    detail = clean(_reason(error)) or names[0]
    hint = next((_HINTS[cls] for cls in kind.__mro__ if cls in _HINTS), None)
    return kind(f"{words.format(address)}: {detail}", hint=hint)


def _reason(error: BaseException) -> str:
    """What the operating system said, where it stands behind ``error``; else the error's words."""
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            break
        if isinstance(seen, BaseExceptionGroup):
            seen = seen.exceptions[0]
        if isinstance(seen, OSError) and seen.strerror:
            return os.strerror(seen.errno) if seen.errno and seen.errno > 0 else seen.strerror
        seen = seen.__cause__ or seen.__context__
    return str(error)


def dead(address: str) -> BackendDead:
    """The error for a server whose model thread has ended."""
    return BackendDead(
        f"the server at {address} still answers, but the thread that runs its model has died",
        hint="restart it; another program may have sent a prompt that its cache held whole",
    )


_NAMES_MORE = re.compile("error|model", re.IGNORECASE)
"""What no server says that has no such page."""


def refused(status: int, body: bytes, address: str, *, location: str = "") -> MlxToolsError:
    """The error for an answer that is no completion: ``status`` and the body's first bytes."""
    said = words_of(body)
    if DEAD_WORDS in said:
        return dead(address)
    message = f"{address} answered {status}" + (f": {said}" if said else "")
    hint = None
    if 300 <= status < 400:
        hint = f"redirects are not followed; name the address itself: {clean(location)}"
    elif status in (401, 403):
        hint = "the server wants a key, or refuses this one"
    elif status in (404, 405) and len(said) < 20 and not _NAMES_MORE.search(said):
        hint = "it may be no completions server: /v1/completions is not offered there"
    elif status == 404:
        hint = "it may not have that model: leave --model out, or name one of its /v1/models"
    elif status in (429, 503):
        hint = "the server is busy or still loading its model; ask again in a while"
    return (ServerFailed if status >= 500 else BackendRefused)(message, hint=hint)


def some(names: Sequence[str]) -> str:
    """Names of models for a message, the first eight of them."""
    shown = ", ".join(clean(name, 100) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def words_of(body: bytes) -> str:
    """What an error's body says, in at most 300 characters: JSON's error, or a page's title."""
    text = body.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if "<" in text[:200]:
            title = re.search(r"(?is)<title[^>]*>([^<]{1,300})", text)
            text = title[1] if title else re.sub(r"<[^<>]{0,300}>", " ", text[:4000])
        return clean(text)
    return clean(error_text(value) or text)


def error_text(value: Any, depth: int = 4) -> str:
    """The message in an error object of any common shape; empty where ``value`` is none."""
    for key in ("error", "message", "detail"):
        if not isinstance(value, dict) or not depth:
            break
        inner = value.get(key)
        if isinstance(inner, str) and inner:
            return inner
        if isinstance(inner, dict | list) and inner:
            return error_text(inner, depth - 1) or _dumped(inner)
    return ""


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value)[:300]
    except RecursionError:
        return "an error too deep to be told"
