"""Common behaviour of all interfaces, over the whole of the gateway: what is refused and by which
name, errors, images, schemas, streams that are cut anywhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from mlx_tools.backends import Chunk, CompletionRequest, CompletionsBackend
from mlx_tools.backends.deadlines import Retry
from mlx_tools.errors import BackendBroken
from mlx_tools.testing import ScriptedBackend
from tests.gateway.conftest import chat, respond, send, write_message


def test_errors_have_the_shape_of_their_interface(serving: Any) -> None:
    one = serving(context=10)
    long = write_message(one, messages=[{"role": "user", "content": "a " * 400}])
    assert (long.status_code, long.json()["error"]["type"]) == (400, "invalid_request_error")
    assert long.json()["error"]["message"].startswith("prompt is too long: ")
    told = respond(one, input="a " * 400).json()["error"]
    assert (told["code"], told["param"]) == ("context_length_exceeded", "input")
    missing = send(one, "GET", "/v1/responses/resp_none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


class BreaksOff:
    """A server that begins to answer."""

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        yield Chunk("Rain and ")
        raise BackendBroken("it broke off")


@pytest.mark.parametrize("ask", [respond, write_message, chat])
def test_a_server_that_breaks_off_in_the_middle_is_told_behind_what_came(
    serving: Any, ask: Any
) -> None:
    response = ask(serving(backend=BreaksOff()), stream=True)
    *before, last = [line for line in response.text.split("\n") if line.startswith("data: {")]
    assert "Rain and " in "".join(before)
    told = json.loads(last.removeprefix("data: "))
    assert (told.get("response") or told)["error"]["message"] == "it broke off"


@pytest.mark.parametrize("name", ["a\r\nset-cookie: b", "名前", "\x00", "é", ""])
def test_a_field_of_any_name_is_named_in_a_header_that_can_be_sent(serving: Any, name: str) -> None:
    one = serving("Rain.", "Rain.")
    for stream in (False, True):
        response = respond(one, **{name: 1}, stream=stream)
        assert response.status_code == 200
        assert "set-cookie" not in response.headers
        left_out = response.headers["x-mlx-tools-left-out"]
        assert left_out.isascii() and left_out.isprintable()


def asking(one: Any, interface: str, **body: Any) -> Any:
    """The answer of an interface to the least that can be asked, and this besides."""
    usual = {
        "chat/completions": {"messages": HI},
        "responses": {"input": "Hi"},
        "messages": {"messages": HI, "max_tokens": 9},
        "completions": {"prompt": "Hi"},
        "runs": {"question": "x"},
    }
    given = usual[interface] | {"model": "scripted"} | body
    kept = {name: value for name, value in given.items() if value != "missing"}
    return send(one, "POST", f"/v1/{interface}", kept)


HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SHORT = {
    "HI": HI[0],
    "IMAGE_URL": {"type": "image_url", "image_url": {"url": "x"}},
    "INPUT_IMAGE": {"type": "input_image", "image_url": "x"},
    "IMAGE": {"type": "image", "source": {"type": "url", "url": "x"}},
    "CHAT_TOOL": {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    "TOOL": {"type": "function", "name": "f", "parameters": SCHEMA},
    "OWN": {"name": "f", "input_schema": SCHEMA},
    "SEARCH": {"type": "web_search", "name": "web_search"},
}
REFUSED = """
chat/completions | n | {"n": 2}
chat/completions | logprobs | {"logprobs": true}
chat/completions | modalities | {"modalities": ["text", "audio"]}
chat/completions | functions | {"functions": [{}]}
chat/completions | messages | {"messages": []}
chat/completions | messages[0].role | {"messages": [{"role": "robot", "content": ""}]}
chat/completions | messages | {"messages": [{"role": "assistant", "content": "Hi"}]}
chat/completions | messages[1].tool_call_id | {"messages": [$HI, {"role": "tool", "content": "x"}]}
chat/completions | tool_choice | {"tool_choice": "required"}
chat/completions | tool_choice | {"tools": [$CHAT_TOOL], "tool_choice": {"type": "function",
  "function": {"name": "x"}}}
chat/completions | tools | {"tools": [$CHAT_TOOL, $CHAT_TOOL]}
chat/completions | tools[0].function | {"tools": [{"type": "function"}]}
chat/completions | temperature | {"temperature": "hot"}
chat/completions | stop | {"stop": 5}
chat/completions | model | {"model": "gpt-9"}
chat/completions | response_format.type | {"response_format": {"type": "yaml"}}
responses | input | {"input": "missing"}
responses | input | {"input": 5}
responses | input[0] | {"input": ["a"]}
responses | input[0].type | {"input": [{}]}
responses | input[0].type | {"input": [{"type": "item_reference", "id": "msg_1"}]}
responses | input[0].role | {"input": [{"role": "judge", "content": "a"}]}
responses | input[0].arguments | {"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}
responses | tools[0].type | {"tools": [{"name": "f"}]}
responses | tools[0].name | {"tools": [{"type": "function"}]}
responses | tools | {"tools": [$TOOL, $TOOL]}
responses | tools[0].tools[0].name | {"tools": [{"type": "namespace", "name": "n", "tools":
  [{"type": "function"}]}]}
responses | tool_choice | {"tool_choice": "maybe"}
responses | tool_choice | {"tool_choice": "required"}
responses | tool_choice | {"tool_choice": "required", "tools": [$SEARCH]}
responses | tool_choice | {"tools": [$SEARCH], "tool_choice": $SEARCH}
responses | tool_choice | {"tool_choice": {"type": "function", "name": "f"}}
responses | tool_choice | {"tool_choice": {"type": "allowed_tools", "tools": [1]}}
responses | background | {"background": true}
responses | conversation | {"conversation": "conv_1"}
responses | prompt | {"prompt": {"id": "p"}}
responses | top_logprobs | {"top_logprobs": 2}
responses | include | {"include": ["message.output_text.logprobs"]}
responses | previous_response_id | {"previous_response_id": "resp_none"}
responses | store | {"store": true}
responses | text.format.schema | {"text": {"format": {"type": "json_schema"}}}
responses | text.format.type | {"text": {"format": {"type": "grammar"}}}
chat/completions | max_tokens | {"max_tokens": -2}
chat/completions | tools[0].function.name | {"tools": [{"type": "function", "function": {"name":
  ""}}]}
responses | max_output_tokens | {"max_output_tokens": 1.5}
messages | max_tokens | {"max_tokens": -5}
messages | messages | {"messages": null}
messages | messages | {"messages": []}
messages | model | {"model": null}
messages | messages[0].content | {"messages": [{"role": "user"}]}
messages | messages[0].role | {"messages": [{"role": "tool", "content": "a"}]}
messages | messages | {"messages": [{"role": "assistant", "content": "I am"}]}
messages | system | {"system": 5}
messages | tools[0].input_schema | {"tools": [{"name": "f"}]}
messages | tools | {"tools": [$OWN, $OWN]}
messages | tool_choice | {"tool_choice": {"type": "any"}}
messages | tool_choice | {"tool_choice": {"type": "any"}, "tools": [$SEARCH]}
messages | tool_choice | {"tools": [$SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}
messages | tool_choice.name | {"tools": [$OWN], "tool_choice": {"type": "tool"}}
messages | stop_sequences[0] | {"stop_sequences": [""]}
messages | output_config.format.schema | {"output_config": {"format": {"type": "json_schema"}}}
completions | logprobs | {"logprobs": 5}
completions | logprobs | {"logprobs": true}
completions | top_logprobs | {"logprobs": true, "top_logprobs": 12}
completions | logprobs | {"logprobs": true, "top_logprobs": 2, "stream": true}
"""
"""Interface, the field that is named, and what is asked besides the least."""


@pytest.mark.parametrize("row", REFUSED.replace("\n  ", " ").strip().split("\n"))
def test_what_cannot_be_had_is_refused_by_the_field_and_no_model_is_asked(
    serving: Any, row: str
) -> None:
    interface, param, body = row.split(" | ")
    for name in sorted(SHORT, key=len, reverse=True):
        body = body.replace(f"${name}", json.dumps(SHORT[name]))
    one = serving()
    response = asking(one, interface, **json.loads(body))
    error = response.json()["error"]
    assert response.status_code == (404 if error.get("code") == "model_not_found" else 400)
    assert error["type"] == "invalid_request_error"
    assert param in (error["message"] if interface == "messages" else [error["param"]])
    assert one.backend.prompts == []


NEW_YEAR = "Fri, 01 Jan 2027 00:00:00 GMT"


@pytest.mark.parametrize("interface", ["chat/completions", "responses", "messages", "completions"])
@pytest.mark.parametrize(
    ("told", "status", "later"),
    [
        ((429, {"Retry-After": "7"}), 429, "7"),
        ((429, {}), 429, "5"),
        ((503, {"Retry-After": NEW_YEAR}), 503, NEW_YEAR),
        ((503, {}), 503, "5"),
        ((500, {"Retry-After": "7"}), 502, None),
        ((429, {"Retry-After": "7" * 99}), 429, "5"),
    ],
)
def test_when_to_ask_a_server_again_is_passed_on(
    serving: Any, interface: str, told: tuple[int, dict[str, str]], status: int, later: str | None
) -> None:
    def busy(request: httpx.Request) -> httpx.Response:
        return httpx.Response(told[0], headers=told[1], json={"error": "busy"})

    client = httpx.AsyncClient(transport=httpx.MockTransport(busy))
    server = CompletionsBackend("http://127.0.0.1:9", client=client, retry=Retry(times=0))
    response = asking(serving(backend=server), interface)
    assert (response.status_code, response.headers.get("retry-after")) == (status, later)
    assert response.headers.get("x-should-retry") == ("true" if later else None)
    assert "busy" in response.text


UNREADABLE = '{"type":"tool_call","name":"get_weather"'
CITY_TOOL = {"name": "get_weather", "description": "Forecast."}
TOOLS = {
    "chat/completions": [{"type": "function", "function": CITY_TOOL | {"parameters": SCHEMA}}],
    "responses": [{"type": "function", "parameters": SCHEMA} | CITY_TOOL],
    "messages": [CITY_TOOL | {"input_schema": SCHEMA}],
}
REQUIRED = {
    "chat/completions": "required",
    "responses": "required",
    "messages": {"type": "any"},
}


@pytest.mark.parametrize("interface", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize(
    "case", ["dead upstream", "unreadable model", "small context", "bad field"]
)
def test_clients_are_told_not_to_repeat_what_cannot_succeed(
    serving: Any, interface: str, case: str
) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    client = httpx.AsyncClient(transport=httpx.MockTransport(refuse))
    dead = CompletionsBackend("http://127.0.0.1:9", client=client, retry=Retry(times=0))
    body: dict[str, Any] = {}
    status, sentence = 502, "no server answers"
    options: dict[str, Any] = {"backend": dead}
    if case == "unreadable model":
        body = {"tools": TOOLS[interface], "tool_choice": REQUIRED[interface]}
        options = {"backend": ScriptedBackend(*[UNREADABLE] * 9), "strategy": "free"}
        sentence = "no turn that fits"
    elif case == "small context":
        status, sentence, options = 400, "maximum context length is 9", {"context": 9}
    elif case == "field":
        status, sentence, body = 400, "temperature", {"temperature": "hot"}
    one = serving(**options)
    response = asking(one, interface, **body)
    assert (response.status_code, response.headers.get("x-should-retry")) == (status, "false")
    assert sentence in response.text
    assert "retry-after" not in response.headers
    if case == "unreadable model":
        assert len(one.backend.requests) == 3  # turns of the model for one request
