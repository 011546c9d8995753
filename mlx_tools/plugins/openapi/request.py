"""Calls of bound operations: one request each, to the server that was agreed to.

The named secrets are sent only there. Redirects are not followed, and the environment's proxies and
``.netrc`` are not used. A secret is read when a call needs it. It is never in a file of ours, in a
preview or in a result.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from mlx_tools.errors import UsageError
from mlx_tools.plugins.openapi.address import PATH_PARTS, is_reserved, join_url
from mlx_tools.plugins.openapi.document import BODY, FORM, JSON
from mlx_tools.tools import BoundSource, BoundTool, Preview, Tool, ToolError, is_local, submit

if TYPE_CHECKING:
    import httpx

PLACE_FORM: Final = "SCHEME=env:VARIABLE or SCHEME=keychain:SERVICE/USER"
MAX_ANSWER_BYTES: Final = 2_000_000
"""Bytes of an answer: far more than a model can see."""
_MAX_ERROR_CHARS: Final = 2000
"""Characters of a server's error text in our error."""
_PASSING_STATUSES: Final = frozenset((429, 502, 503, 504))
"""Statuses after which the same request may soon succeed."""
_SEPARATORS: Final = {"spaceDelimited": " ", "pipeDelimited": "|"}
_MIN_SECRET_CHARS: Final = 4
"""The minimum of characters of secrets that are removed from answers. A shorter one occurs in many
texts."""


def parse_secret(text: str) -> tuple[str, str]:
    """Return a scheme's name and the place of its secret. Raises UsageError."""
    scheme, _, place = text.partition("=")
    kind, _, name = place.partition(":")
    is_valid = (kind == "env" and name) or (kind == "keychain" and "/" in name.strip("/"))
    if not scheme or not is_valid:
        raise UsageError(f"--secret: {text[:80]!r} does not say where it is", hint=PLACE_FORM)
    return scheme, place


def make_operation(
    source: BoundSource,
    tool: BoundTool,
    environ: Mapping[str, str] = os.environ,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Tool:
    """Return the tool that calls one operation (`mlx_tools.tools.bound.MakeTool`).

    Args:
        source: the source of the tool.
        tool: the bound tool.
        environ: the environment variables that secrets may be in.
        transport: sends requests, None for the network.
    """

    async def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
        import httpx

        request = _Request(source, tool, arguments)
        secrets = await _find_secrets(source, tool, environ)
        if secrets and not request.is_private:
            raise ToolError("its secret would go over the network in clear: name an https server")
        for scheme, secret in secrets:
            request.add_secret(scheme, secret)
        try:
            async with (
                httpx.AsyncClient(
                    transport=transport, trust_env=False, follow_redirects=False
                ) as client,
                client.stream(
                    request.method,
                    request.url,
                    headers=request.headers,
                    content=request.content,
                    timeout=None,  # the call has its own limit
                ) as response,
            ):
                data = await _read_body(response)
        except httpx.InvalidURL as error:
            raise ToolError(f"the request cannot be made: {error}") from None
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise ToolError(
                _hide_secrets(f"{request.host} failed: {why}", _list_forms(secrets)), passing=True
            ) from None
        return _read_answer(response, data, secrets)

    def preview(arguments: Mapping[str, Any]) -> Preview:
        request = _Request(source, tool, arguments)
        sent = f"{request.method} {request.url}"
        if request.content is not None:
            sent += f"\n\n{request.content.decode()}"
        return Preview(sent, "")  # the request that would be sent, without secrets

    return source.tool(tool, run, preview=preview)


async def _find_secrets(
    source: BoundSource, tool: BoundTool, environ: Mapping[str, str]
) -> list[tuple[Mapping[str, Any], str]]:
    """Return the schemes by which this call authenticates, with their secrets.

    The operation may accept several ways. The first one whose secrets were named is used.

    Raises:
        ToolError: there is no such way.
    """
    places_by_scheme, ways = source.location.get("secrets", {}), tool.location.get("security", ())
    for way in sorted(ways, key=len, reverse=True):
        if all(scheme in places_by_scheme for scheme in way):
            return [
                (way[name], await _read_secret(places_by_scheme[name], environ)) for name in way
            ]
    if ways:
        lacking = next(iter(ways[0]), "")
        raise ToolError(
            f"it needs a secret for {lacking}, and none was named (mlx-tools tools bind "
            f"{source.name} --secret {lacking}=env:VARIABLE)"
        )
    return []


async def _read_secret(place: str, environ: Mapping[str, str]) -> str:
    kind, _, name = place.partition(":")
    if kind == "env":
        secret = environ.get(name, "")
        missing = f"the environment's variable {name} is not set"
    else:
        service, _, user = name.rpartition("/")
        outcome = submit(functools.partial(_read_keychain, service, user))
        value, error = await outcome or ("", None)
        if error is not None:
            raise ToolError(str(error)) from None
        secret, missing = value or "", f"the keychain has no secret {name}"
    if not secret.strip():
        raise ToolError(f"its secret is missing: {missing}")
    return secret.strip()


def _read_keychain(service: str, user: str) -> str:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ModuleNotFoundError:
        raise ToolError("keyring is not installed (the extra keychain)") from None
    try:
        return keyring.get_password(service, user) or ""
    except KeyringError as error:
        raise ToolError(f"the keychain cannot be read: {error}") from None


class _Request:
    """A request, ready to be sent.

    Raises:
        ToolError: the arguments cannot be sent.
    """

    def __init__(self, source: BoundSource, tool: BoundTool, arguments: Mapping[str, Any]) -> None:
        self.method = str(tool.location["method"])
        self.headers: dict[str, str] = {"accept": "application/json, text/*;q=0.9, */*;q=0.5"}
        self.content: bytes | None = None
        self._query: list[tuple[str, str]] = []
        self._cookies: list[str] = []
        places: dict[str, str] = {}
        for place in tool.location["parameters"]:
            if place["argument"] in arguments:
                self._add_parameter(place, arguments[place["argument"]], places)
        if BODY in arguments:
            media = str(tool.location["body"])
            self.headers["content-type"] = media
            self.content = _encode_body(media, arguments[BODY])
        try:
            path = PATH_PARTS.sub(lambda part: places[part[1]], str(tool.location["path"]))
        except KeyError as error:
            raise ToolError(f"nothing was sent: no argument fills {error} of its path") from None
        server = str(tool.location.get("server", source.location["server"])).rstrip("/")
        try:
            self._base = join_url(server, path)
        except ValueError as error:
            raise ToolError(f"nothing was sent: {error}", code="not_allowed") from None

    @property
    def url(self) -> str:
        query = urlencode(self._query, quote_via=quote)
        return f"{self._base}{'&' if '?' in self._base else '?'}{query}" if query else self._base

    @property
    def host(self) -> str:
        return urlsplit(self._base).netloc

    @property
    def is_private(self) -> bool:
        """True if nobody between here and the server can read the request."""
        parts = urlsplit(self._base)
        return parts.scheme == "https" or is_local(parts.hostname)

    def add_secret(self, scheme: Mapping[str, Any], secret: str) -> None:
        """Add the secret of a scheme to the request."""
        if not secret.isascii() or not secret.isprintable():
            raise ToolError("its secret holds what no header can have")
        kind, how = scheme.get("type"), str(scheme.get("scheme", "bearer")).lower()
        if kind == "apiKey":
            name, place = str(scheme.get("name")), scheme.get("in")
            if place == "query":
                self._query.append((name, secret))
            elif place == "cookie":
                self._add_cookie(name, secret)
            elif is_reserved(name):
                raise ToolError(f"its secret would stand in the header {name[:80]}")
            else:
                self.headers[name.lower()] = secret
        elif kind == "http" and how == "basic":
            coded = base64.b64encode(secret.encode()).decode()
            self.headers["authorization"] = f"Basic {coded}"
        elif kind in ("oauth2", "openIdConnect") or how == "bearer":
            self.headers["authorization"] = f"Bearer {secret}"
        else:
            raise ToolError(f"it takes secrets in a way that is not known here: {how}")

    def _add_parameter(self, place: Mapping[str, Any], value: Any, places: dict[str, str]) -> None:
        name, where = place["name"], place["in"]
        if where == "query":
            self._query += _format_form(name, value, place)
            return
        text = (
            json.dumps(value) if place["json"] else _format_simple(value, explode=place["explode"])
        )
        if where == "path":
            if text in ("", ".", ".."):
                raise ToolError(f"{name} is a part of the path, and cannot be {text!r}")
            places[name] = quote(text, safe="")
        elif where == "cookie":
            self._add_cookie(name, quote(text, safe=""))
        elif is_reserved(name):
            raise ToolError(f"the header {name[:80]} is not an argument's", code="not_allowed")
        elif text.isascii() and (text.isprintable() or not text):
            self.headers[name.lower()] = text
        else:
            raise ToolError(f"{name} is a header, and may hold printable ASCII alone")

    def _add_cookie(self, name: str, value: str) -> None:
        self._cookies.append(f"{name}={value}")
        self.headers["cookie"] = "; ".join(self._cookies)


def _format_scalar(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _format_simple(value: Any, *, explode: bool) -> str:
    if isinstance(value, list):
        return ",".join(map(_format_scalar, value))
    if isinstance(value, Mapping):
        between = "=" if explode else ","
        return ",".join(f"{key}{between}{_format_scalar(item)}" for key, item in value.items())
    return _format_scalar(value)


def _format_form(name: str, value: Any, place: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a parameter of the query, by its style."""
    if place["json"]:
        yield name, json.dumps(value)
    elif isinstance(value, Mapping) and place["style"] == "deepObject":
        yield from ((f"{name}[{key}]", _format_scalar(item)) for key, item in value.items())
    elif isinstance(value, Mapping) and place["explode"]:
        yield from ((str(key), _format_scalar(item)) for key, item in value.items())
    elif isinstance(value, list) and place["explode"]:
        yield from ((name, _format_scalar(item)) for item in value)
    elif isinstance(value, list):
        yield name, _SEPARATORS.get(place["style"], ",").join(map(_format_scalar, value))
    else:
        yield name, _format_simple(value, explode=False)


def _encode_body(media: str, value: Any) -> bytes:
    if media.partition(";")[0].strip().lower() != FORM:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    if not isinstance(value, Mapping):
        raise ToolError("a form is an object")
    pairs: list[tuple[str, str]] = []
    for key, value_or_list in value.items():
        several = value_or_list if isinstance(value_or_list, list) else [value_or_list]
        pairs += ((str(key), _format_scalar(each)) for each in several)
    return urlencode(pairs).encode()


async def _read_body(response: httpx.Response) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            raise ToolError(
                f"the answer has more than {MAX_ANSWER_BYTES} bytes", code="payload_too_large"
            )
    return bytes(data)


def _read_answer(
    response: httpx.Response, data: bytes, secrets: list[tuple[Mapping[str, Any], str]]
) -> dict[str, Any]:
    """Return the result of a call for the model.

    Raises:
        ToolError: the answer reports a failure.
    """
    status, media = response.status_code, response.headers.get("content-type", "")
    media = media.partition(";")[0].strip().lower()
    text = data.decode(response.encoding or "utf-8", "replace")
    if not JSON.fullmatch(media) and media and not media.startswith("text/") and b"\0" in data:
        text = f"{len(data)} bytes of {media}"
    hidden = _list_forms(secrets)
    body = _hide_secrets(text, hidden)
    if JSON.fullmatch(media):
        # an answer that is not JSON, or is nested too deeply, is shown as text
        with contextlib.suppress(ValueError, RecursionError):
            body = _hide_secrets(json.loads(text), hidden)
    if 300 <= status < 400:
        raise ToolError(
            _hide_secrets(f"it redirects to {response.headers.get('location')}", hidden)
        )
    if status >= 400:
        text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
        error_text = " ".join(text.split())[:_MAX_ERROR_CHARS]
        reason = f"HTTP {status} {response.reason_phrase}".strip()
        raise ToolError(
            f"{reason}: {error_text}" if error_text else reason, passing=status in _PASSING_STATUSES
        )
    return {"status": status, "body": body}


def _list_forms(secrets: list[tuple[Mapping[str, Any], str]]) -> list[str]:
    """Return the forms in which a server may send back the secrets of a call.

    These are the plain form, the form in an address, and base64.
    """
    return [
        form
        for _, secret in secrets
        if len(secret) >= _MIN_SECRET_CHARS
        for form in (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode())
    ]


def _hide_secrets(value: Any, forms: list[str]) -> Any:
    """Replace all forms of secrets in a text or a JSON value."""
    if isinstance(value, list):
        return [_hide_secrets(item, forms) for item in value]
    if isinstance(value, dict):
        return {
            _hide_secrets(key, forms): _hide_secrets(item, forms) for key, item in value.items()
        }
    shown = text = value if isinstance(value, str) else str(value)  # some keys are numbers
    for form in forms:
        shown = shown.replace(form, "[secret]")
    return value if shown == text else shown
