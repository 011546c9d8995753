"""The model servers that people have on their machine: found, told apart, and spoken to rightly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from mlx_tools.backends import CompletionsBackend, SelectedBackend, choose_backend, find_route
from mlx_tools.backends.local_servers import DEFAULT_ADDRESSES
from mlx_tools.backends.router import find_served_format
from mlx_tools.errors import BackendRefused, ModelError, UsageError
from tests.backends.asking import ask
from tests.backends.loopback import Connection, Server, answers, says, serving

NOBODY = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_models(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with no models."""
    for name in ("MLX_TOOLS_CACHE_DIR", "MLX_TOOLS_STATE_DIR", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))


@contextmanager
def routed(routes: dict[str, Callable[[Connection], None]], other: Any) -> Iterator[Server]:
    """A server that answers by its paths, and ``other`` elsewhere."""
    server = Server(lambda request: routes.get(request.path, other)(request))
    try:
        yield server
    finally:
        server.stop()


def listing(*names: str) -> Callable[[Connection], None]:
    return answers(200, {"object": "list", "data": [{"id": name} for name in names]})


OTHERS = answers(404, b"404 page not found", "text/plain")


def generate(request: Connection) -> None:
    """Ollama's raw completion: it says what it was asked."""
    lines: list[dict[str, Any]] = [{"response": text, "done": False} for text in ("Hel", "lo")]
    last = {"response": "", "done": True, "done_reason": "stop"}
    lines.append(last | {"prompt_eval_count": 7, "eval_count": 2})
    if not request.body["stream"]:
        lines = [last | {"response": "Hello", "prompt_eval_count": 7, "eval_count": 2}]
    body = b"".join(json.dumps({"model": "m"} | line).encode() + b"\n" for line in lines)
    request.answer(200, body, "application/x-ndjson")


def ollama(
    *models: str, loaded: Sequence[str] = (), template: str = "", complete: Any = generate
) -> Any:
    running = [{"model": name, "context_length": 4096} for name in loaded]
    return routed(
        {
            "/api/version": answers(200, {"version": "0.12.6"}),
            "/v1/models": listing(*models),
            "/api/ps": answers(200, {"models": running}),
            "/api/show": answers(200, {"template": template}),
            "/api/generate": complete,
            "/v1/completions": answers(400, {"error": {"message": "model is required"}}),
        },
        OTHERS,
    )


def lm_studio(*models: tuple[str, str, str]) -> Any:
    rows = [{"id": name, "type": kind, "state": state} for name, kind, state in models]
    return routed(
        {
            "/api/v0/models": answers(200, {"object": "list", "data": rows}),
            "/v1/models": listing(*(name for name, _, _ in models)),
            "/v1/completions": says("Hi"),
        },
        answers(200, {"error": "Unexpected endpoint or method."}),
    )


def choose(**options: Any) -> SelectedBackend:
    return asyncio.run(choose_backend(**options))


def test_the_usual_addresses_are_those_of_the_programs_that_people_have() -> None:
    ports = [int(address.rpartition(":")[2]) for address in DEFAULT_ADDRESSES]
    assert ports == [8080, 1234, 11434, 8000, 10240]
    assert all(address.startswith("http://127.0.0.1:") for address in DEFAULT_ADDRESSES)


def test_the_only_server_of_the_usual_addresses_is_used_and_told() -> None:
    with lm_studio(("org/one", "llm", "loaded")) as server:
        chosen = choose(usual=(NOBODY, server.url))
    assert chosen.source == "found" and chosen.model == "org/one"
    assert chosen.note == f"using LM Studio at {server.url} (model org/one)"


def picks(number: int | None) -> Callable[[Sequence[str]], Awaitable[str | None]]:
    """A person who picks the address of this number, or none."""

    async def pick(addresses: Sequence[str]) -> str | None:
        return None if number is None else addresses[number]

    return pick


def test_of_several_a_person_picks_and_a_script_is_refused() -> None:
    with lm_studio(("a", "llm", "loaded")) as one, ollama("b:1b") as two:
        usual = (one.url, NOBODY, two.url)
        with pytest.raises(UsageError, match=f"{one.url}, {two.url}") as caught:
            choose(usual=usual)
        assert "--url" in str(caught.value.hint) and "backend.url" in str(caught.value.hint)
        chosen = choose(usual=usual, pick_server=picks(1))
        assert chosen.model == "b:1b"
        assert choose(usual=usual, model="a").model == "a"  # which one alone lists
        with pytest.raises(UsageError):
            choose(usual=usual, pick_server=picks(None))


def test_a_web_server_and_an_ollama_without_models_are_none() -> None:
    with (
        serving(answers(200, b"<html>", "text/html")) as web,
        ollama() as empty,
        pytest.raises(ModelError),
    ):
        choose(usual=(web.url, empty.url))


# --- LM Studio ------------------------------------------------------------------------------------


def test_lm_studios_loaded_model_is_used_and_never_one_for_embeddings() -> None:
    models = [("embed", "embeddings", "loaded"), ("a", "llm", "not-loaded"), ("b", "vlm", "loaded")]
    with lm_studio(*models) as server:
        chosen = choose(url=server.url)
    assert (chosen.model, chosen.note) == ("b", "")
    with lm_studio(*models[:2], ("c", "llm", "not-loaded")) as server:
        chosen = choose(url=server.url)
    assert chosen.model == "a" and "2 models" in chosen.note


# --- Ollama ---------------------------------------------------------------------------------------


def test_ollama_gets_the_prompt_raw_by_its_own_interface() -> None:
    with ollama("qwen3:4b", "llama3.2:3b", loaded=["llama3.2:3b"]) as server:
        chosen = choose(url=server.url)
        assert chosen.model == "llama3.2:3b"
        text, last = ask(chosen.backend, "<|im_start|>user", temperature=0.5, max_tokens=9)
        asked = [request for request in server.requests if request.path == "/api/generate"][-1]
    assert text == "Hello" and last.finish_reason == "stop"
    assert last.usage is not None and (last.usage.prompt_tokens, last.usage.completion_tokens) == (
        *(7, 2),
    )
    assert asked.body["raw"] is True and asked.body["prompt"] == "<|im_start|>user"
    assert asked.body["model"] == "llama3.2:3b"
    assert asked.body["options"]["num_predict"] == 9
    assert asked.body["options"]["temperature"] == 0.5


def test_what_is_not_streamed_is_raw_too() -> None:
    from mlx_tools.backends import CompletionRequest

    with ollama("qwen3:4b") as server:
        chosen = choose(url=server.url)
        assert isinstance(chosen.backend, CompletionsBackend)
        request = CompletionRequest(prompt="Hi", max_tokens=4)
        answer = asyncio.run(chosen.backend.ask_whole(request))
    assert answer.chunk.text == "Hello" and answer.usage.prompt_tokens == 7


def test_an_error_and_a_thought_of_ollamas_are_read() -> None:
    fails = answers(200, b'{"error":"model requires more system memory"}\n', "application/x-ndjson")
    with ollama("m", complete=fails) as server, pytest.raises(BackendRefused, match="more system"):
        ask(choose(url=server.url).backend)
    lines = (
        {"response": "", "thinking": "Let"},
        {"response": "", "thinking": " me"},
        {"response": "Yes"},
        {"response": "", "done": True, "done_reason": "length"},
    )
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with ollama("m", complete=answers(200, body, "application/x-ndjson")) as server:
        text, last = ask(choose(url=server.url).backend)
    assert (text, last.finish_reason) == ("<think>Let me</think>Yes", "length")


@pytest.mark.parametrize(
    ("model", "template", "name"),
    [
        ("my-own", "{{ .System }}<|im_start|>user\n{{ .Prompt }}<|im_end|>", "chatml"),
        ("my-own", "<|start_header_id|>user<|end_header_id|>", "llama3"),
        ("my-own", "<start_of_turn>user\n{{ .Prompt }}<end_of_turn>", "gemma"),
        ("qwen3:4b", "{{ .Prompt }}", "chatml"),
    ],
)
def test_ollamas_template_says_the_chat_format(model: str, template: str, name: str) -> None:
    with ollama(model, template=template, loaded=[model]) as server:
        chosen = choose(url=server.url)

        async def find() -> Any:
            found = await find_served_format(chosen.backend, files=None, model=chosen.model)
            return found, await chosen.backend.context()  # type: ignore[union-attr]

        found, context = asyncio.run(find())
    assert found.chat_format.name == name and found.doubt == ""
    assert context == 4096


# --- a server with a chat interface alone ---------------------------------------------------------


def test_a_server_that_completes_no_text_is_asked_by_its_chat_interface() -> None:
    routes = {
        "/v1/models": listing("mlx-community/gemma"),
        "/v1/chat/completions": answers(422, {"detail": "messages are missing"}),
    }
    with routed(routes, answers(404, {"detail": "Not Found"})) as server:
        chosen = choose(usual=(server.url,))
        route = asyncio.run(find_route(chosen.backend, model=chosen.model))
    assert chosen.model == "mlx-community/gemma"
    assert (route.path, route.completes) == ("native", False)
