"""The way to a server elsewhere: certificates and proxies of the environment, and where keys go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mlx_tools.backends import CompletionsBackend, inspect_server
from mlx_tools.backends.deadlines import Retry
from mlx_tools.errors import BackendError, BackendUnreachable, UsageError
from tests.backends.asking import ask
from tests.backends.loopback import Connection, Server, says, serving
from tests.backends.vendor_servers import VENDORS, retry_at_once, serve_turns
from tests.tools.web_server import certificate

__all__ = ["retry_at_once"]  # a fixture

_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets variables of the environment; without it none is there."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

    def given(**values: object) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    return given


def named(server: Server, host: str = "localhost") -> str:
    """The server's address over TLS."""
    return f"https://{host}:{urlsplit(server.url).port}"


# --- certificates -------------------------------------------------------------------------------


def test_a_certificate_of_ones_own_works_where_ssl_cert_file_names_it(
    tmp_path: Path, variables: Callable[..., None]
) -> None:
    context, _ = certificate(tmp_path, "localhost")
    with serving(says("Hi"), context=context) as server:
        with pytest.raises(BackendUnreachable, match="is not trusted: self-signed") as caught:
            ask(CompletionsBackend(named(server)))
        assert "SSL_CERT_FILE" in str(caught.value.hint)
        with pytest.raises(BackendUnreachable, match="is not trusted") as caught:
            asyncio.run(
                inspect_server(CompletionsBackend(named(server)))
            )  # as every command does first
        assert "SSL_CERT_FILE" in str(caught.value.hint)
        variables(SSL_CERT_FILE=tmp_path / "cert.pem")
        assert ask(CompletionsBackend(named(server)))[0] == "Hi"
        with pytest.raises(BackendUnreachable, match="not trusted") as caught:
            ask(CompletionsBackend(named(server, "127.0.0.1")))
        assert caught.value.hint == "name the server as its certificate does"


def test_a_server_without_tls_is_told_as_one(variables: Callable[..., None]) -> None:
    with serving(says("Hi")) as server:
        with pytest.raises(BackendUnreachable, match="does not speak TLS") as caught:
            ask(CompletionsBackend(named(server)))
        assert "http://" in str(caught.value.hint)


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_certificate_file_that_is_none_is_the_callers_fault(
    tmp_path: Path, variables: Callable[..., None], text: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    variables(SSL_CERT_FILE=file)
    with pytest.raises(UsageError, match="certificate settings") as caught:
        ask(CompletionsBackend("https://localhost:9"))
    assert "SSL_CERT_FILE" in str(caught.value.hint)


# --- proxies ------------------------------------------------------------------------------------


def refuses(request: Connection) -> None:
    """A proxy that passes nothing on."""
    request.answer(403, b"no", "text/plain")


def test_a_proxy_is_asked_for_what_is_elsewhere_and_not_left_out(
    variables: Callable[..., None],
) -> None:
    proxy = Server(refuses)
    variables(HTTPS_PROXY=proxy.url, HTTP_PROXY=proxy.url)
    url = "https://model.invalid"
    with pytest.raises(BackendUnreachable, match="the proxy on the way"):
        ask(CompletionsBackend(url, api_key="sk-1"))
    assert [(one.method, one.path) for one in proxy.requests] == [("CONNECT", "model.invalid:443")]
    assert "authorization" not in proxy.requests[0].headers
    variables(NO_PROXY="model.invalid")
    with pytest.raises(BackendUnreachable):
        ask(CompletionsBackend(url))
    assert len(proxy.requests) == 1
    proxy.stop()
    variables(NO_PROXY="")
    with pytest.raises(BackendUnreachable) as caught:
        ask(CompletionsBackend(url, retry=Retry(times=0)))
    assert "HTTPS_PROXY" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "goes"),
    [({}, True), ({"api_key": "sk-1"}, False), ({"headers": {"X-Api-Key": "sk-1"}}, False)],
)
def test_over_plain_http_no_proxy_sees_a_key(
    variables: Callable[..., None], given: dict[str, object], goes: bool
) -> None:
    proxy = Server(refuses)
    variables(HTTP_PROXY=proxy.url, ALL_PROXY=proxy.url)
    with pytest.raises(BackendError):
        ask(CompletionsBackend("http://model.invalid", **given))  # type: ignore[arg-type]
    assert bool(proxy.requests) is goes
    proxy.stop()


# --- the SDKs of others -------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", VENDORS)
def test_an_sdk_goes_the_same_way_and_takes_no_key_of_the_environment(
    vendor: str, variables: Callable[..., None]
) -> None:
    pytest.importorskip(vendor)
    make, says = VENDORS[vendor]
    proxy = Server(refuses)
    variables(
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), proxy.url),
        **{f"{name}_API_KEY": "sk-of-mine" for name in ("ANTHROPIC", "OLLAMA", "OPENAI")},
    )
    with serve_turns(says("Hi")) as server:
        assert ask(make(server.url, "m"))[0] == "Hi"
        sent = json.dumps([one.headers for one in server.requests])
    assert "sk-of-mine" not in sent
    with pytest.raises(BackendError):
        ask(make("http://model.invalid", "m", api_key="sk-1"))
    assert proxy.requests == []
    proxy.stop()


@pytest.mark.parametrize("vendor", VENDORS)
def test_an_sdk_tells_of_a_certificate_in_the_same_words(
    vendor: str, tmp_path: Path, variables: Callable[..., None]
) -> None:
    pytest.importorskip(vendor)
    context, _ = certificate(tmp_path, "localhost")
    with serving(says("Hi"), context=context) as server:
        backend = VENDORS[vendor][0](named(server), "m")
        assert asyncio.run(backend.health()).status == "unreachable"
        with pytest.raises(BackendUnreachable, match="is not trusted"):
            ask(backend)
