"""The backend of a run, and the model of a server: by its list, and by its name."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools.app import list_backend_makers
from mlx_tools.backends import (
    DEFAULT_MODEL,
    CompletionRequest,
    CompletionsBackend,
    ModelMissing,
    SelectedBackend,
    ServerBackend,
    VerdictStore,
    choose_backend,
    find_verdict,
    inspect_server,
)
from mlx_tools.backends.deadlines import Retry
from mlx_tools.backends.local_servers import match_model
from mlx_tools.backends.models.embedded import SMOLLM2, best_precision, model_folder
from mlx_tools.backends.models.listing import known_model
from mlx_tools.errors import (
    EXIT_BACKEND,
    EXIT_USAGE,
    BackendBroken,
    BackendRefused,
    BackendUnreachable,
    UsageError,
)
from mlx_tools.plugins.local import LocalBackend
from mlx_tools.testing import Completion, ScriptedServer
from tests.backends.asking import ask
from tests.backends.loopback import Connection, Server, answers, make_likelihoods, says, serving

Route = Callable[[Connection], None]
Serving = AbstractContextManager[Server]

NOBODY = "http://127.0.0.1:1"
OK = answers(200, {"status": "ok"})
GATEWAY = answers(200, {"status": "ok", "server": "mlx-tools"})


def listing(*names: str) -> Route:
    return answers(200, {"object": "list", "data": [{"id": name} for name in names]})


def mlx(route: Route) -> Route:
    """The route as mlx-lm's server answers it: by its ``Server`` header."""

    def answer(request: Connection) -> None:
        send = request.send
        request.send = lambda data: send(  # type: ignore[method-assign]
            data.replace(b"\r\n", b"\r\nServer: BaseHTTP/0.6 Python/3.12\r\n", 1)
        )
        route(request)

    return answer


def server_of(*models: str, health: Route = OK) -> Serving:
    """A server that lists these models."""
    return serving(says("Hi"), health=health, models=listing(*models))


def mlx_server(*models: str) -> Serving:
    """mlx-lm's server that lists these models."""
    return serving(says("Hi"), health=mlx(OK), models=mlx(listing(*models)))


@pytest.fixture(autouse=True)
def no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with no models."""
    for name in ("MLX_TOOLS_CACHE_DIR", "MLX_TOOLS_STATE_DIR", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))


def put_in_hub(name: str, added: dict[str, int]) -> Path:
    folder = Path(os.environ["HF_HUB_CACHE"]) / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "qwen3"}')
    (snapshot / "model.safetensors").write_bytes(b"x")
    tokens = [{"id": number, "content": token, "special": True} for token, number in added.items()]
    (snapshot / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    return snapshot


def choose(**options: Any) -> SelectedBackend:
    return asyncio.run(choose_backend(**{"usual": NOBODY, **options}))


def sent(chosen: SelectedBackend) -> str | None:
    """The name that is sent to the server."""
    assert isinstance(chosen.backend, CompletionsBackend)
    return chosen.backend.model


def url_of(chosen: SelectedBackend) -> str:
    assert isinstance(chosen.backend, CompletionsBackend)
    return chosen.backend.address.url


# --- which server -------------------------------------------------------------------------------


def test_a_named_address_is_used_and_nothing_is_said() -> None:
    with server_of("a/b") as server:
        chosen = choose(url=server.url + "/v1")
    assert (chosen.source, chosen.note, chosen.model, chosen.files) == ("named", "", "a/b", None)
    assert url_of(chosen) == server.url


def test_a_named_address_that_does_not_answer_never_falls_back() -> None:
    with server_of("a") as other:
        for kind in ("auto", "completions"):
            with pytest.raises(BackendUnreachable):
                choose(kind=kind, url=NOBODY, usual=other.url)
        assert other.requests == []


def test_without_an_address_the_usual_server_is_found_and_said() -> None:
    with server_of("a/b") as server:
        chosen = choose(usual=server.url)
    assert chosen.source == "found"
    assert server.url in chosen.note and "a/b" in chosen.note


def test_a_server_that_cannot_list_is_found_by_how_it_refuses() -> None:
    refuses = answers(400, {"error": "max_tokens must be at least 1"})
    with serving(refuses, health=OK, models=answers(200, b"")) as server:
        assert choose(usual=server.url, model="a/b").source == "found"
        assert server.bodies == [{"max_tokens": 0}]


def test_a_gateway_of_ours_goes_before_the_usual_server() -> None:
    with server_of("a/b", "c/d", health=GATEWAY) as gateway, server_of("e/f") as usual:
        addresses = {"gateway": gateway.url, "usual": usual.url}
        chosen = choose(**addresses, gateway_key="sesame")
        assert gateway.requests[-1].headers["authorization"] == "Bearer sesame"
        assert (chosen.source, chosen.model) == ("found", "a/b")
        assert chosen.note == f"using the gateway at {gateway.url} (model a/b)"
        assert choose(**addresses, model="c/d").model == "c/d"
        assert url_of(choose(**addresses, model="e/f")) == usual.url


def test_a_stranger_where_the_gateway_would_be_is_none() -> None:
    with server_of("a/b") as stranger, server_of("e/f") as usual:
        addresses = {"gateway": stranger.url, "usual": usual.url}
        assert choose(**addresses, gateway_key="sesame").model == "e/f"
        assert stranger.requests
        assert not any("authorization" in asked.headers for asked in stranger.requests)


def test_a_gateway_that_does_not_take_the_key_is_told_and_not_used() -> None:
    told: list[str] = []
    refused = answers(401, {"error": {"message": "the key is missing or wrong"}})
    with serving(says("Hi"), health=GATEWAY, models=refused) as gateway, server_of("e/f") as usual:
        chosen = choose(gateway=gateway.url, usual=usual.url, note=told.append)
    assert chosen.model == "e/f"
    assert len(told) == 1 and "gateway.api_key" in told[0]


def test_who_takes_no_gateway_takes_none_at_the_usual_address_either() -> None:
    with server_of("a/b", health=GATEWAY) as gateway:
        with pytest.raises(ModelMissing):
            choose(usual=gateway.url)
        assert choose(usual=gateway.url, gateway=NOBODY).model == "a/b"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("health", "complete"),
    [
        (answers(200, b"<html>", "text/html"), says("Hi")),
        (OK, answers(404, b"Not Found", "text/plain")),
        (OK, answers(200, b"<html>", "text/html")),
        (answers(503, {"status": "unavailable"}), answers(404, {"error": "x"})),
        (Connection.until_gone, says("Hi")),
    ],
    ids=["web server", "other service", "single-page app", "dead", "hangs"],
)
def test_what_is_no_living_completions_server_is_not_used(health: Route, complete: Route) -> None:
    with serving(complete, health=health) as server, pytest.raises(ModelMissing) as caught:
        choose(usual=server.url)
    assert caught.value.name == DEFAULT_MODEL
    assert f"models pull {DEFAULT_MODEL}" in str(caught.value)


def test_with_no_server_the_embedded_model_is_used_and_said_in_one_line(embedded: Path) -> None:
    chosen = choose()
    assert isinstance(chosen.backend, ServerBackend) and chosen.backend.pid is None
    assert (chosen.source, chosen.model) == ("embedded", DEFAULT_MODEL)
    assert DEFAULT_MODEL in chosen.note and "GB" in chosen.suggestion
    assert "\n" not in chosen.note + chosen.suggestion
    assert chosen.files is not None


def test_a_model_that_was_named_and_is_here_gets_a_server_of_our_own() -> None:
    put_in_hub("org/here", {"<tool_call>": 7, "<think>": 8})
    with server_of("other/model") as server:
        chosen = choose(usual=server.url, model="org/here")
    assert chosen.source == "started" and "org/here" in chosen.note
    assert chosen.files is not None and chosen.files.added_tokens["<tool_call>"] == 7


def test_a_model_that_the_usual_server_lists_is_asked_of_it() -> None:
    put_in_hub("org/here", {})
    with server_of("other/model", "org/here") as server:
        chosen = choose(usual=server.url, model="org/here")
    assert (chosen.source, sent(chosen)) == ("found", "org/here")
    assert chosen.files is not None


def test_mlx_lms_server_is_not_sent_a_name_that_would_make_it_load_again() -> None:
    put_in_hub("org/here", {"<tool_call>": 7, "<think>": 8})
    with mlx_server("org/here") as server:
        chosen = choose(url=server.url)
    assert (chosen.model, sent(chosen)) == ("org/here", None)
    assert chosen.files is not None and chosen.backend.forbidden_tokens == (7,)


def test_other_servers_are_sent_the_one_name_they_list() -> None:
    with server_of("m") as server:
        chosen = choose(url=server.url)
    assert (sent(chosen), chosen.backend.forbidden_tokens) == ("m", ())


def test_of_many_listed_models_mlx_lm_runs_the_folder_it_was_started_with(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with mlx_server("a/b", str(tmp_path)) as server:
        chosen = choose(url=server.url)
    assert chosen.model == str(tmp_path) and chosen.files is not None


@pytest.mark.parametrize(
    ("server", "model"), [(mlx_server("a/b", "c/d"), None), (server_of("a", "b"), "a")]
)
def test_where_it_cannot_be_told_which_model_runs_that_is_said(
    server: Serving, model: str | None
) -> None:
    with server as it:
        chosen = choose(url=it.url)
    assert chosen.model == model and "--model" in chosen.note


def test_files_that_cannot_be_read_are_said_and_do_not_stop_the_run() -> None:
    (put_in_hub("org/here", {}) / "tokenizer.json").write_text("{")
    with server_of("org/here") as server:
        chosen = choose(url=server.url)
    assert chosen.files is None and "tokenizer.json" in chosen.note


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "server", "url": NOBODY},
        {"kind": "local", "url": NOBODY},
        {"kind": "local", "model": "no model's name"},
        {"kind": "completions", "url": f"ollama:{NOBODY}"},
        {"url": f"anthropic:{NOBODY}"},
        {"kind": "engine"},
        {"kind": "server", "model": "no model's name"},
        {"url": "ftp://there"},
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        choose(**options)
    assert caught.value.hint


def test_a_model_can_be_run_in_this_process(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    chosen = choose(kind="local", model=str(tmp_path), interfaces=list_backend_makers)
    assert isinstance(chosen.backend, LocalBackend) and chosen.backend.model == tmp_path
    assert (chosen.source, chosen.model) == ("loaded", str(tmp_path))
    assert "this process" in chosen.note
    assert chosen.backend.forward_passes == 0  # nothing is loaded yet


def test_without_its_plugin_no_model_is_run_in_this_process(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UsageError, match="needs the plugin local"):
        choose(kind="local", model=str(tmp_path))


@pytest.mark.parametrize("kind", ["auto", "native"])
def test_a_model_in_this_process_has_no_address(kind: str) -> None:
    with pytest.raises(UsageError, match="nothing here speaks the interface local"):
        choose(kind=kind, url="local:http://127.0.0.1:1", interfaces=list_backend_makers)


# --- which model a server runs ------------------------------------------------------------------

EMBEDDED = make_likelihoods("Water", dict(SMOLLM2.likelihoods) | {"A": -4.2})
OTHER = make_likelihoods("Water", {"Water": -0.1, "The": -2.3})
FOLDER = f"{DEFAULT_MODEL}-{best_precision()}"


@pytest.fixture
def embedded() -> Path:
    """The embedded model's folder, as small as can be."""
    folder = model_folder(SMOLLM2, best_precision())
    folder.mkdir(parents=True)
    files = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"\x00" * 9000}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    sizes = {name: [len(data), ""] for name, data in files.items()}
    manifest = {"format": 1, "source": SMOLLM2.gguf_sha256, "files": sizes}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def check_known(chosen: SelectedBackend, files: Path, tmp_path: Path) -> None:
    """It is the embedded model, of which these are the files."""
    assert chosen.files is not None and chosen.files.path == files
    store = VerdictStore(tmp_path / "verdicts")
    assert find_verdict(chosen.identity(), store).source == "shipped"


@pytest.mark.parametrize("named", [None, DEFAULT_MODEL, FOLDER, "its folder"])
def test_the_embedded_model_in_a_stock_server_is_known_by_any_of_its_names(
    embedded: Path, tmp_path: Path, named: str | None
) -> None:
    with mlx_server("a/b", str(embedded)) as server:
        chosen = choose(url=server.url, model=str(embedded) if named == "its folder" else named)
        assert server.bodies == []
    assert sent(chosen) is None  # a name would make the server load it once more
    check_known(chosen, embedded, tmp_path)


@pytest.mark.parametrize("model", [None, DEFAULT_MODEL])
@pytest.mark.parametrize(
    "name", [DEFAULT_MODEL, f"{DEFAULT_MODEL}-4bit", "SmolLM2-135M-Instruct.Q4_1.gguf"]
)
def test_other_servers_that_serve_the_embedded_model_by_name_have_its_verdict_too(
    embedded: Path, tmp_path: Path, name: str, model: str | None
) -> None:
    with server_of(f"/srv/{name}") as server:
        chosen = choose(url=server.url, model=model)
    assert sent(chosen) == f"/srv/{name}"
    check_known(chosen, embedded, tmp_path)


def recognising(answer: Route, known: str = "") -> Serving:
    """mlx-lm's server that lists nothing, as where there is no Hugging Face cache folder, and knows
    the model ``known`` beside its own."""

    def complete(request: Connection) -> None:
        if request.body.get("model", known) != known:
            request.answer(404, {"error": "Repository not found"})
        else:
            (answer if request.body["prompt"] == SMOLLM2.probe_prompt else says("Hi"))(request)

    return serving(complete, health=mlx(OK), models=mlx(answers(200, b"")))


@pytest.mark.parametrize("named", [None, DEFAULT_MODEL, "its folder"])
def test_the_embedded_model_is_recognised_where_the_server_names_nothing(
    embedded: Path, tmp_path: Path, named: str | None
) -> None:
    with recognising(EMBEDDED) as server:
        chosen = choose(url=server.url, model=str(embedded) if named == "its folder" else named)
        assert len(server.bodies) == 1 and "model" not in server.bodies[0]
    assert (chosen.model, sent(chosen)) == (DEFAULT_MODEL, None)
    check_known(chosen, embedded, tmp_path)


def test_another_model_is_not_taken_for_it(embedded: Path) -> None:
    with recognising(OTHER) as server:
        chosen = choose(url=server.url)
    assert (chosen.model, chosen.files, sent(chosen)) == (None, None, None)


def test_a_stock_server_that_names_nothing_loads_a_folder_that_is_here(embedded: Path) -> None:
    with recognising(OTHER, str(embedded)) as server:
        chosen = choose(url=server.url, model=DEFAULT_MODEL)
    assert sent(chosen) == str(embedded) and chosen.files is not None


@pytest.mark.parametrize(
    ("names", "knows"),
    [
        (("a/b", "c"), "it knows a/b, c"),
        (tuple(map(str, range(20))), "it knows 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"),
    ],
)
def test_a_model_that_the_server_does_not_know_is_told_with_those_it_does(
    names: tuple[str, ...], knows: str
) -> None:
    with server_of(*names) as server, pytest.raises(UsageError) as caught:
        choose(url=server.url, model="nope")
    assert knows in str(caught.value) and "nope" in str(caught.value)
    assert str(caught.value).isprintable() and caught.value.exit_code == EXIT_USAGE


def test_a_stock_server_that_cannot_load_a_model_is_told_with_those_it_lists() -> None:
    """It loads models that it does not list, so it is asked first."""
    refuses = answers(404, {"error": "Repository not found"})
    with serving(refuses, health=mlx(OK), models=mlx(listing("a/b", "/m/c"))) as server:
        chosen = choose(url=server.url, model="no/such")
        assert sent(chosen) == "no/such"
        with pytest.raises(BackendRefused) as caught:
            ask(chosen.backend)
    assert "Repository not found; it lists the models a/b, /m/c" in caught.value.message
    assert "--model" in (caught.value.hint or "") and caught.value.exit_code == EXIT_BACKEND


def test_a_server_that_lists_nothing_is_sent_the_name_as_it_is() -> None:
    with serving(says("Hi"), health=OK) as server:
        assert sent(choose(url=server.url, model="anything")) == "anything"


@pytest.mark.parametrize(
    ("name", "listed", "meant"),
    [
        ("a/b", ("b", "a/b"), "a/b"),
        ("b", ("a/b", "c"), "a/b"),
        ("b", ("a/b", "c/b"), None),
        ("qwen3", ("qwen3:latest", "qwen3:4b"), "qwen3:latest"),
        ("m", ("/models/m.gguf",), "/models/m.gguf"),
        ("m", (r"C:\models\m",), r"C:\models\m"),
        (DEFAULT_MODEL, ("/mnt/x/models/smollm2-135m-4bit",), "/mnt/x/models/smollm2-135m-4bit"),
        ("x/b", ("a/b",), None),
        ("", ("",), ""),
    ],
)
def test_what_is_meant_by_a_name(name: str, listed: tuple[str, ...], meant: str | None) -> None:
    assert match_model(name, listed, loopback=False) == meant


def test_a_repository_of_that_name_is_another_model() -> None:
    assert known_model("someone/smollm2-135m") is None
    assert known_model("/srv/someone/smollm2-135m/") == DEFAULT_MODEL
    assert known_model("smollm2-135m-4bit-tuned") is None


async def text(backend: Any) -> str:
    request = CompletionRequest(prompt="Hi", max_tokens=9)
    async with aclosing(backend.complete(request)) as chunks:
        return "".join([chunk.text async for chunk in chunks])


def test_a_server_that_failed_and_has_another_model_then_is_not_asked() -> None:
    async def asks(server: ScriptedServer) -> None:
        backend = (await choose_backend(url=server.url)).backend
        assert await text(backend) == "one"
        with pytest.raises(BackendBroken):
            await text(backend)
        server.models = ("second",)
        for _ in range(2):
            with pytest.raises(BackendUnreachable, match="other models now: second, and no") as e:
                await text(backend)
            assert "/model NAME" in str(e.value.hint)
        server.models = ("second", "first")
        assert await text(backend) == "two"
        await backend.aclose()

    broken = Completion("ha", finish_reason=None)
    with ScriptedServer("one", broken, "two", model="first") as server:
        anyio.run(asks, server)


class Clock:
    """Seconds as a test has them."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def inspected(url: str, clock: Clock, model: str | None = None) -> CompletionsBackend:
    """A backend whose model was found out just now."""
    backend = CompletionsBackend(url, model, retry=Retry(clock=clock))
    await inspect_server(backend)
    return backend


def test_a_server_with_another_model_after_a_pause_is_not_asked() -> None:
    async def asks(server: ScriptedServer) -> None:
        clock = Clock()
        backend = await inspected(server.url, clock)
        clock.now += 3  # nothing was asked since the model was found
        server.models = ("second",)
        for _ in range(2):
            with pytest.raises(BackendUnreachable, match="other models now: second, and no more"):
                await text(backend)
        server.models = ("first",)
        assert await text(backend) == "one"
        clock.now += 3
        server.models = ("second",)
        with pytest.raises(BackendUnreachable, match="other models now: second, and no more"):
            await text(backend)
        await backend.aclose()

    with ScriptedServer("one", model="first") as server:
        anyio.run(asks, server)


def test_models_are_listed_again_only_after_a_pause_and_if_the_server_picks_its_model() -> None:
    async def count_requests(server: Server) -> list[int]:
        clock, counts = Clock(), []
        backend = await inspected(server.url, clock)
        for seconds in (0, 0, 3, 0):
            clock.now += seconds
            before = len(server.requests)
            assert await text(backend) == "ok"
            counts.append(len(server.requests) - before)
        await backend.aclose()
        return counts

    for models, expected in (listing("only"), [1, 1, 2, 1]), (listing("a", "b"), [1, 1, 1, 1]):
        with serving(says("ok"), health=OK, models=models) as server:
            assert anyio.run(count_requests, server) == expected


@pytest.mark.parametrize("other", ["/models/b", "org/b"])
def test_mlx_lm_with_another_model_after_a_pause_is_not_asked(other: str) -> None:
    """Its list is the whole cache, and the folder that it was started with."""
    names = ["org/a", "org/b", "/models/a"]

    def models(request: Connection) -> None:
        mlx(listing(*names))(request)

    async def asks(server: Server) -> None:
        clock = Clock()
        backend = await inspected(server.url, clock)
        assert await text(backend) == "ok"
        names[-1] = other
        clock.now += 3
        with pytest.raises(BackendUnreachable, match="and no more /models/a"):
            await text(backend)
        await backend.aclose()

    with serving(says("ok"), health=mlx(OK), models=models) as server:
        anyio.run(asks, server)


def test_mlx_lm_loads_a_model_that_is_named_so_its_start_does_not_matter() -> None:
    async def asks(server: Server) -> None:
        clock = Clock()
        backend = await inspected(server.url, clock, "org/a")
        clock.now += 3
        assert await text(backend) == "ok"
        assert server.bodies[-1]["model"] == "org/a"
        await backend.aclose()

    models = mlx(listing("org/a", "/models/b"))
    with serving(says("ok"), health=mlx(OK), models=models) as server:
        anyio.run(asks, server)
