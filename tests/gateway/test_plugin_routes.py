"""The routes of plugins: behind the gateway's key, but for a page that has a key of its own."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute

from mlx_tools.app import AccessRules, Plugins, ServerConfig, listen
from mlx_tools.errors import UsageError
from mlx_tools.gateway.server import GRACE_SECONDS, GatewayServer
from tests.gateway.conftest import chat, send
from tests.plugins.test_page import FILES
from tests.tables import table

KEY = {"authorization": "Bearer secret"}
DOOR = AccessRules(key="secret")
PAGE = """
from mlx_tools.app import hookimpl
from starlette.responses import PlainTextResponse
from starlette.applications import Starlette
from starlette.routing import Route

async def show(request):
    return PlainTextResponse("shown")

@hookimpl
def routes(gateway):
    gateway.set_page_path("/tides/")
    gateway.on_listening.append(print)
    return [Route(path, show) for path in ("/", "/tides/dover", "/tide", "/v1/models", "/v1/tide")]
"""

GREEDY = """
from mlx_tools.app import hookimpl
from starlette.responses import PlainTextResponse
from starlette.applications import Starlette
from starlette.routing import Mount, Route, WebSocketRoute

async def show(request):
    return PlainTextResponse("taken")

async def talk(socket):
    await socket.accept()

@hookimpl
def routes(gateway):
    return [
        Route("/", show, methods=["GET", "POST"]),
        Route("/tides/dover", show, methods=["GET", "POST"]),
        WebSocketRoute("/tides/talk", talk),
        WebSocketRoute("/", talk),
        Route("/{path:path}", show, methods=["GET", "POST"]),
        Mount("", show),
    ]
"""
FAILING = """
from mlx_tools.app import hookimpl

@hookimpl
def routes(gateway):
    gateway.set_page_path("/tides/")
    gateway.on_startup.append(None)
    gateway.gauges["tides"] = None
    gateway.operations.clear()
    gateway.shared["tides"] = 7
    raise ValueError("no tides today")
"""
LIVING = """
from functools import partial
from mlx_tools.app import hookimpl
from mlx_tools.gateway import Operation

@hookimpl
def routes(gateway):
    happened = gateway.shared["tides"] = []

    async def note(what):
        happened.append(what)

    gateway.on_startup.append(partial(note, "startup"))
    gateway.on_shutdown.append(partial(happened.append, "shutdown"))
    gateway.on_cleanup.append(partial(note, "cleanup"))
    gateway.gauges["tides"] = lambda: {"active": 7, "tides": 3}
    gateway.meters.declare({"tides": ("gauge", "Tides")})
    gateway.operations.append(Operation("get", "/v1/tides", "The tides", answer="Tides"))
    gateway.schemas["Tides"] = {"type": "array"}
    return []
"""


def plugins_with(folder: Path, monkeypatch: pytest.MonkeyPatch, *texts: str) -> Plugins:
    """Plugins of packages that have these modules, and no built-in ones."""
    points = []
    for number, text in enumerate(texts):
        name = f"routes_{number}_of_{folder.name}".replace("-", "_")
        (folder / f"{name}.py").write_text(text)
        points.append(EntryPoint(f"x{number}", name, "mlx_tools"))
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    return Plugins("mlx_tools.no_such_package", lambda _: points)


async def first_message(app: Any, scope: dict[str, Any]) -> Any:
    """Return the first message that an application sends to a client without a key."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def keep(message: Any) -> None:
        sent.append(message)

    base = {"headers": [(b"host", b"127.0.0.1")], "query_string": b"", "state": {}}
    await app(base | scope, receive, keep)
    return sent[0]


def test_a_route_of_another_package_asks_for_the_key(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = plugins_with(tmp_path, monkeypatch, FILES["plugin_with_routes.py"])
    one = begin(door=DOOR, hooks=hooks)
    wrong = {"authorization": "Bearer wrong"}
    assert send(one, "GET", "/v1/moon", **wrong).status_code == 401
    assert send(one, "GET", "/v1/moon", host="evil.example", **KEY).status_code == 403
    assert send(one, "GET", "/v1/moon", **KEY).json() == {"phase": "full"}


def test_only_the_page_of_a_plugin_is_shown_without_the_key(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = begin(door=DOOR, hooks=plugins_with(tmp_path, monkeypatch, PAGE))
    paths = ("/", "/tides/dover", "/tide", "/v1/tide", "/v1/models", "/metrics")
    wrong = {"authorization": "Bearer wrong"}
    statuses = [send(one, "GET", path, **wrong).status_code for path in paths]
    assert statuses == [200, 200, 401, 401, 401, 401]
    # a path that the gateway serves itself stays its own
    assert send(one, "GET", "/v1/models", **KEY).json()["object"] == "list"


def test_every_route_but_health_and_the_page_asks_for_the_key(begin: Any) -> None:
    one = begin(door=DOOR)

    kinds, page = set(), one.gateway.page_path
    for route in one.app.routes:
        if route.path in ("/health", "/") or (page and f"{route.path}/".startswith(page)):
            continue
        if isinstance(route, WebSocketRoute):
            message = anyio.run(first_message, one.app, {"type": "websocket", "path": route.path})
            assert (message["type"], message["code"]) == ("websocket.close", 1008), route.path
        else:
            assert isinstance(route, Route)
            for method in route.methods or ():
                scope = {"type": "http", "method": method, "path": route.path}
                assert anyio.run(first_message, one.app, scope)["status"] == 401, (
                    method,
                    route.path,
                )
        kinds.add(type(route))
    assert Route in kinds


@table(
    "path", ["", "/", "/v1/", "/v1", "page", "/page", "//", "/a/b/", "/a/../v1/", "/A/", "/v1/x/"]
)
def test_no_other_path_is_taken_out_of_the_key(begin: Any, path: str) -> None:
    gateway = begin(hooks=Plugins("mlx_tools.no_such_package", lambda _: [])).gateway
    with pytest.raises(UsageError):
        gateway.set_page_path(path)
    gateway.set_page_path("/tides/")
    with pytest.raises(UsageError):
        gateway.set_page_path("/moon/")
    assert gateway.page_path == "/tides/"


def test_a_plugin_lives_counts_and_is_described_with_the_gateway(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = begin(hooks=plugins_with(tmp_path, monkeypatch, LIVING))
    happened = one.gateway.shared["tides"]

    async def live() -> None:
        async with one.app.router.lifespan_context(one.app):
            assert happened == ["startup"]
            one.gateway.shut_down()
        assert happened == ["startup", "shutdown", "cleanup"]

    anyio.run(live)
    metrics = send(one, "GET", "/metrics").text
    assert 'mlx_tools_active{of="tides"} 7\n' in metrics
    assert 'mlx_tools_tides{of="tides"} 3\n' in metrics
    document = send(one, "GET", "/openapi.json").json()
    assert document["paths"]["/v1/tides"]["get"]["summary"] == "The tides"
    assert document["components"]["schemas"]["Tides"] == {"type": "array"}


def test_without_plugins_the_gateway_serves_its_interfaces_alone(begin: Any) -> None:
    one = begin("Rain.", hooks=Plugins("mlx_tools.no_such_package", lambda _: []))
    document = send(one, "GET", "/openapi.json").json()
    assert not [path for path in document["paths"] if path.startswith("/v1/runs")]
    assert "runs_total" not in send(one, "GET", "/metrics").text
    assert [send(one, "GET", path).status_code for path in ("/", "/v1/runs", "/page/x")] == [
        404
    ] * 3
    assert chat(one).json()["choices"][0]["message"]["content"] == "Rain."


def test_no_other_plugin_serves_what_the_page_serves_without_the_key(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, texts in enumerate(((PAGE, GREEDY), (GREEDY, PAGE))):
        folder = tmp_path / f"order{number}"
        folder.mkdir()
        one = begin(door=DOOR, hooks=plugins_with(folder, monkeypatch, *texts))
        wrong = {"authorization": "Bearer wrong"}
        for headers in (wrong, KEY):
            assert send(one, "GET", "/", **headers).text == "shown"
            assert send(one, "GET", "/tides/dover", **headers).text == "shown"
            for method, path in (("POST", "/"), ("GET", "/tides/cork"), ("GET", "/tides/")):
                assert send(one, method, path, **headers).status_code == 404, (method, path)
        for path in ("/", "/tides/talk", "/tides/dover"):
            message = anyio.run(first_message, one.app, {"type": "websocket", "path": path})
            assert (message["type"], message["code"]) == ("websocket.close", 1008), path
        assert send(one, "GET", "/elsewhere", **wrong).status_code == 401
        assert send(one, "GET", "/elsewhere", **KEY).text == "taken"


def test_nothing_stays_of_a_plugin_whose_hook_fails(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = plugins_with(tmp_path, monkeypatch, FAILING, FILES["plugin_with_routes.py"])
    one = begin(door=DOOR, hooks=hooks)
    assert "no tides today" in str(hooks.faults)
    assert (one.gateway.page_path, one.gateway.on_startup, one.gateway.shared) == ("", [], {})
    assert send(one, "GET", "/tides/dover").status_code == 401
    assert send(one, "GET", "/v1/moon", **KEY).json() == {"phase": "full"}
    assert "/v1/models" in send(one, "GET", "/openapi.json", **KEY).json()["paths"]
    assert send(one, "GET", "/metrics", **KEY).status_code == 200


UNUSABLE = {
    "gateway.gauges = None": "gauges is NoneType",
    "gateway.on_startup = 7": "on_startup is int",
    "gateway.page_path = None": "page_path is NoneType",
    "gateway.operations.append(7)": "operations or schemas cannot be described: AttributeError",
    "gateway.schemas['Tides'] = object()": "operations or schemas cannot be described: TypeError",
    "gateway.schemas = {(): {}}": "operations or schemas cannot be described: ",
}


@table("addition, fault", UNUSABLE.items())
def test_of_a_plugin_whose_additions_cannot_be_used_nothing_stays(
    addition: str, fault: str, begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FILES["plugin_with_routes.py"].replace("    return", f"    {addition}\n    return")
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    hooks = plugins_with(folder, monkeypatch, text, FILES["plugin_with_routes.py"])
    one = begin(hooks=hooks)
    (told,) = hooks.faults.values()
    assert told.startswith("routes: ") and fault in told
    for path in ("/openapi.json", "/metrics", "/v1/moon"):
        assert send(one, "GET", path).status_code == 200, path


FAILING_LATER = """
from mlx_tools.app import hookimpl

def fail(*arguments):
    raise LookupError("no tide")

async def fail_later():
    fail()

@hookimpl
def routes(gateway):
    gateway.on_startup.append(fail_later)
    gateway.on_cleanup += [fail_later, fail]
    gateway.on_listening.append(fail)
    gateway.on_shutdown += [fail, 7]
    gateway.gauges["tides"] = fail
    gateway.gauges |= {"ebb": lambda: 7, "flood": lambda: {"active": None}}
    return []
"""


def live_through(one: Any) -> None:
    """Let a gateway shut down, listen, start and end, and call what was added to each."""
    one.gateway.shut_down()
    for tell in one.gateway.on_listening:
        tell("http://127.0.0.1:1/")

    async def live() -> None:
        async with one.app.router.lifespan_context(one.app):
            pass

    anyio.run(live)


def test_what_a_plugin_adds_to_the_gateway_is_left_out_if_it_fails(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = plugins_with(tmp_path, monkeypatch, FAILING_LATER)
    one = begin(hooks=hooks)
    assert send(one, "GET", "/metrics").status_code == 200
    live_through(one)
    places = ("on_startup", "on_cleanup", "on_listening", "on_shutdown", "gauges")
    (faults,) = hooks.faults.values()
    assert [place for place in places if f"{place}: " not in faults] == []


# --- the start and the end of the server ----------------------------------------------------------


async def serve_with(lifespan: Any, on_started: Callable[[], None]) -> None:
    """Serve an application with this lifespan, and end at once."""
    with listen("127.0.0.1", 0) as listening:
        config = ServerConfig(Starlette(), GRACE_SECONDS)
        server = GatewayServer(config, lifespan, on_started, lambda: None)
        server.should_exit = True
        await server.serve(sockets=[listening])


@table("place", ["start", "end"])
def test_a_failing_start_or_end_of_the_gateway_is_raised_and_not_printed(
    place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        for step in ("start", "end"):
            steps.append(step)
            if step == place:
                raise LookupError("no tide")
            if step == "start":
                yield

    with pytest.raises(LookupError, match="no tide"):
        anyio.run(serve_with, lifespan(), lambda: steps.append("told"))
    # a gateway that does not start does not say where it serves
    assert steps == ["start", "told", "end"][: len(steps)] and steps[-1] == place
    assert "Traceback" not in capfd.readouterr().err


def test_of_a_built_in_plugin_only_a_failing_start_ends_the_gateway(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / f"built_in_of_{tmp_path.name}".replace("-", "_")
    folder = package / "tides"
    folder.mkdir(parents=True)
    for place in (package, folder):
        (place / "__init__.py").touch()
    (folder / "routes.py").write_text(FAILING_LATER)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    hooks = Plugins(package.name, lambda _: [])
    one = begin(hooks=hooks)
    with pytest.raises(LookupError, match="no tide"):
        live_through(one)
    places = ("on_cleanup", "on_listening", "on_shutdown")
    assert [place for place in places if f"{place}: " not in hooks.faults["tides"]] == []
