"""Translation of errors of httpx, the system and servers into errors of mlx-tools."""

from __future__ import annotations

import json
import os
import re
from collections.abc import (
    Iterator,
    Mapping,
)
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    import ssl


START_HINT: Final = "start one with mlx-tools models serve NAME, or name another with --url"
LOG_HINT: Final = "see the server's log; ask again"


class ConnectionDropped(BackendBroken):
    """The connection broke off."""


class EmptyResponse(BackendBroken):
    """The server began an answer, and ended it without a byte.

    mlx-lm's server does so if its cache has exactly the prompt.
    """


class TryAnotherServer(BackendRefused):
    """The server is busy, does not have the model, or does not answer: try another."""


class ServerFailed(BackendRefused):
    """The server answered with a status from 500 on."""


_HTTPX: Final[Mapping[str, tuple[type[MlxToolsError], str, str | None]]] = {
    # name of httpx's class: class of the error, message, hint
    "ConnectTimeout": (BackendUnreachable, "{0} accepts no connection in time", START_HINT),
    "TimeoutException": (
        BackendTimeout,
        "{0} did not answer in time",
        "allow more time with --timeout, or see the server's log",
    ),
    "ConnectError": (BackendUnreachable, "no server answers at {0}", START_HINT),
    "NetworkError": (ConnectionDropped, "the connection to {0} broke off", LOG_HINT),
    "RemoteProtocolError": (ConnectionDropped, "{0} broke off, or does not speak HTTP", LOG_HINT),
    "ProxyError": (BackendUnreachable, "the proxy on the way to {0} refused", START_HINT),
    "LocalProtocolError": (UsageError, "the request to {0} cannot be sent", None),
    "UnsupportedProtocol": (UsageError, "{0} is no http or https address", None),
    "InvalidURL": (UsageError, "{0} is no address", None),
    "Exception": (BackendBroken, "the exchange with {0} failed", LOG_HINT),
}
"""The translation of httpx's errors, by the name of the class or of a base class.

The most derived class counts.
"""

DEAD_WORDS: Final = "generation thread died"
"""A part of the answer of mlx-lm's server after its model's thread has died."""


def translate(error: Exception, address: str) -> MlxToolsError:
    """Return the `MlxToolsError` for an error of httpx or of the operating system."""
    import ssl

    # httpx wraps a TLS failure in a ConnectError, whose message does not name the certificate.
    for cause in iter_causes(error):
        if isinstance(cause, ssl.SSLError):
            return _make_tls_error(cause, address)
    names = [cls.__name__ for cls in type(error).__mro__]
    kind, words, hint = next(_HTTPX[name] for name in names if name in _HTTPX)
    detail = clean(_find_reason(error)) or names[0]
    return kind(f"{words.format(address)}: {detail}", hint=hint)


def iter_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    cause: BaseException | None = error
    # Chains have two or three links. The limit is for a chain that is a circle.
    for _ in range(8):
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _find_reason(error: BaseException) -> str:
    """Return the operating system's message behind an error, else the error's own."""
    for cause in iter_causes(error):
        # os.strerror always has the same words for a number. Errors of getaddrinfo have numbers
        # below 0, and their own message.
        if isinstance(cause, OSError) and cause.strerror:
            return os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror
    return str(error)


_CERTIFICATES: Final[Mapping[int, str]] = {
    10: "the server needs a new one, or this machine's clock is wrong",  # expired
    62: "name the server as its certificate does",  # another host name
    64: "name the server as its certificate does",  # another IP address
}
"""Advice for a certificate's fault, by OpenSSL's number."""


def _make_tls_error(error: ssl.SSLError, address: str) -> BackendUnreachable:
    """Return the error for a certificate that is not trusted, or for missing TLS."""
    message, number = getattr(error, "verify_message", ""), getattr(error, "verify_code", 0)
    if not number:
        reason = clean((error.reason or str(error)).replace("_", " ").lower())
        hint = "does it speak http:// there, not https://?"
        return BackendUnreachable(f"{address} does not speak TLS: {reason}", hint=hint)
    default_hint = (
        "SSL_CERT_FILE=FILE trusts the certificates in FILE (PEM), such as your own authority's"
    )
    return BackendUnreachable(
        f"the certificate of {address} is not trusted: {clean(message)}",
        hint=_CERTIFICATES.get(number, default_hint),
    )


class DiedAtWork(BackendDead):
    """The thread that runs the model ended while a request waited for it."""


def make_dead_error(address: str, kind: type[BackendDead] = BackendDead) -> BackendDead:
    """Return the error for a server whose model thread has ended."""
    return kind(
        f"the server at {address} still answers, but the thread that runs its model has died",
        hint="restart it; another program may have sent a prompt that its cache held whole",
    )


_TOO_LONG: Final = re.compile(r"(?i)context[ _](length|size|window)|prompt is too long")
"""Words in a server's error about too long a prompt: of vLLM, SGLang, llama.cpp, LM Studio, and of
OpenAI's and Anthropic's interfaces."""


def find_context_hint(detail: str) -> str | None:
    """Return the hint for an error about too long a prompt, None for others."""
    if not _TOO_LONG.search(detail):
        return None
    return (
        "the prompt is too long for the model: ask for less at once, or /compact in chat; "
        "mlx-tools config set model.context TOKENS makes room in time"
    )


def as_refusal(
    status: int,
    body: bytes,
    address: str,
    headers: Mapping[str, str],
    path: str = "/v1/completions",
) -> MlxToolsError:
    """Return the error for an answer with an error status.

    Args:
        status: the HTTP status.
        body: the first bytes of the body.
        address: the server's address, for the message.
        headers: the headers of the answer.
        path: the path of the request.
    """
    detail = read_error_body(body)
    if DEAD_WORDS in detail:
        return make_dead_error(address)
    message = f"{address} answered {status}" + (f": {detail}" if detail else "")
    hint = find_context_hint(detail)
    if 300 <= status < 400:
        location = clean(headers.get("location", ""))
        hint = f"redirects are not followed; name the address itself: {location}"
    elif status in (401, 403):
        hint = "the server wants a key, or refuses this one"
    # A short 404 that mentions no error and no model comes from a web server without this page.
    elif status in (404, 405) and len(detail) < 20 and not re.search("(?i)error|model", detail):
        hint = f"it may be no completions server: {path} is not offered there"
        if path.endswith("/completions") and "chat" not in path:
            hint += "; --backend native asks a server by its own chat interface"
    elif status == 404:
        hint = "it may not have that model: leave --model out, or name one of its /v1/models"
    elif status in (429, 503):
        hint = "the server is busy or still loading its model; ask again in a while"
    kind = TryAnotherServer if status in (404, 429) else BackendRefused
    error = (ServerFailed if status >= 500 else kind)(message, hint=hint)
    error.status = status
    if re.fullmatch(r"(?a)[\w ,:+-]{1,40}", retry_after := headers.get("retry-after", "")):
        error.retry_after = retry_after
    return error


def read_error_body(body: bytes) -> str:
    """Return the message in an error's body, at most 300 characters.

    It is the error of a JSON object, the title of a web page, or the text itself.
    """
    text = body.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if "<" in text[:200]:
            # The title of a proxy's error page names the error.
            title = re.search(r"(?is)<title[^>]*>([^<]{1,300})", text)
            text = title[1] if title else re.sub(r"<[^<>]{0,300}>", " ", text[:4000])
        return clean(text)
    return clean(error_text(value) or text)


def json_object(text: bytes | str) -> dict[str, Any]:
    """Return the JSON object in a text, or an empty one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def error_text(value: Any, depth: int = 4) -> str:
    """Return the message in an error object of any common form, or an empty text."""
    for key in ("error", "message", "detail"):
        inner = value.get(key) if isinstance(value, dict) and depth else None
        if isinstance(inner, str) and inner:
            return inner
        if isinstance(inner, dict | list) and inner:
            try:
                return error_text(inner, depth - 1) or json.dumps(inner)[:300]
            except RecursionError:
                return "an error too deep to be shown"
    return ""
