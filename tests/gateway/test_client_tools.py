"""A client's tools: names of any characters, faulty schemas, custom tools, choices."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.gateway.client_tools import (
    Choice,
    ClientTool,
    ClientTools,
    ToolDefinition,
    custom_grammar,
    custom_input,
    read_choice,
    readable_name,
)
from mlx_tools.gateway.request import ApiError
from mlx_tools.messages import ToolSpec
from mlx_tools.schema import read_lenient_schema
from tests.faulty_schemas import mutants
from tests.gateway.conftest import chat, respond, write_message
from tests.gateway.test_told_stays import SlippingModel
from tests.tables import table

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def tools_of(*names: str | tuple[str, str]) -> ClientTools:
    """Tools of these names, or of namespaces and names."""
    pairs = [("", name) if isinstance(name, str) else name for name in names]
    return ClientTools([ToolDefinition(ClientTool(name, space)) for space, name in pairs])


# --- names ---


@given(st.lists(st.tuples(st.text(), st.text(min_size=1)), max_size=5, unique=True))
def test_every_name_becomes_one_for_the_model_and_comes_back(pairs: list[Any]) -> None:
    tools = tools_of(*pairs)
    names = [spec.name for spec in tools.specs]
    assert len(set(names)) == len(pairs) and all(map(NAME.fullmatch, names))
    for (space, name), known in zip(pairs, names, strict=True):
        assert tools.model_name(name, space) == known
        found = tools.client_tool(known)
        assert (found.namespace, found.name) == (space, name)
        assert NAME.fullmatch(readable_name(name, space))


def test_a_name_for_the_model_reads_like_the_clients() -> None:
    assert readable_name("get_weather") == "get_weather"
    assert readable_name("files/read") == "files_read"
    assert readable_name("météo") == "meteo"
    assert readable_name("spawn", "agents") == "agents_spawn"
    assert readable_name("天気").startswith("tool_")
    assert readable_name("a" * 65) != readable_name("a" * 66)


def test_names_that_would_be_one_stay_apart_in_any_order() -> None:
    first, second = tools_of("a.b", "a_b", "a/b"), tools_of("a/b", "a_b", "a.b")
    for name in ("a.b", "a_b", "a/b"):
        assert first.model_name(name) == second.model_name(name)
    assert first.model_name("a_b") == "a_b"
    assert tools_of("a_b").model_name("a.b") != "a_b"  # of a tool that is no longer offered


def test_two_tools_of_one_name_are_refused() -> None:
    tools_of("a", "b", ("x", "a"))
    with pytest.raises(ApiError, match="'a' names two of them") as refused:
        tools_of("a", "b", "a")
    assert refused.value.param == "tools"


ODD_NAMES = [
    *("files/read", "srv:tool", "Get Weather", "météo", "天気", "a.b", "x" * 200),
    "mcp__plugin_chrome-devtools-mcp_chrome-devtools__performance_analyze_insight",
]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_of_any_name_is_called_by_the_clients_own_in_all_interfaces(
    serving: Any, stream: bool
) -> None:
    for name in ODD_NAMES:
        call = {"type": "tool_call", "name": readable_name(name), "arguments": {"city": "Rome"}}
        one = serving(*[json.dumps(call)] * 3)
        function = {"name": name, "parameters": CITY}
        own = {"name": name, "input_schema": CITY}
        said = [
            chat(one, tools=[{"type": "function", "function": function}], stream=stream),
            respond(one, tools=[{"type": "function", **function}], stream=stream),
            write_message(one, tools=[own], stream=stream),
        ]
        for response in said:
            assert response.status_code == 200, response.text
            text = response.text.replace(" ", "")
            assert f'"name":{json.dumps(name, ensure_ascii=False)}'.replace(" ", "") in text


def test_a_call_of_an_odd_name_is_told_by_the_models_name_when_it_comes_back(serving: Any) -> None:
    one = serving("Fine.")
    calls = [{"id": "1", "function": {"name": "Get Weather", "arguments": '{"city":"Rome"}'}}]
    messages = [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "Sunny."},
    ]
    tool = {"type": "function", "function": {"name": "Get Weather", "parameters": CITY}}
    assert chat(one, messages=messages, tools=[tool]).status_code == 200
    assert '"name":"Get_Weather"' in one.backend.prompts[0].replace(" ", "")


# --- schemas ---


def test_a_faulty_schema_is_named_by_its_tool_and_leaves_the_others(serving: Any) -> None:
    faulty: list[Any] = [None, [], "x", {"type": 5}, {"type": "string"}, {"properties": []}]
    faulty += [{"$ref": "#"}, {"properties": {"a": 5}}, {"type": "array"}, {"required": "x"}]
    for schema in faulty:
        one = serving(*['{"type":"tool_call","name":"good","arguments":{"city":"Rome"}}'] * 3)
        function = [
            {"name": "odd tool", "parameters": schema},
            {"name": "good", "parameters": CITY},
        ]
        said = [
            chat(one, tools=[{"type": "function", "function": each} for each in function]),
            respond(one, tools=[{"type": "function", **each} for each in function]),
            write_message(
                one,
                tools=[{"name": f["name"], "input_schema": f["parameters"]} for f in function],
            ),
        ]
        for response in said:
            assert response.status_code == 200, response.text
            assert '"good"' in response.text
            named = "odd tool" in response.headers.get("x-mlx-tools-left-out", "")
            assert named == (schema is not None), schema
        assert all("good(city: string)" in prompt for prompt in one.backend.prompts)


def test_a_pattern_that_cannot_be_matched_is_left_to_the_client_by_name() -> None:
    schema = {"properties": {"to": {"type": "string", "pattern": "^(?!a)b$"}, "pattern": {}}}
    tools = ClientTools([ToolDefinition(ClientTool("f"), None, schema)])
    assert tools.specs[0].parameters["properties"] == {"to": {"type": "string"}, "pattern": {}}
    assert tools.left_out == ["f.parameters/properties/to/pattern"]
    assert schema["properties"]["to"]["pattern"] == "^(?!a)b$"


def test_what_was_dropped_of_one_tool_fills_no_header() -> None:
    schema = {"properties": {f"p{n}": {"type": "x"} for n in range(1000)}}
    tools = ClientTools([ToolDefinition(ClientTool("f"), None, schema)])
    assert len(tools.left_out) == 5
    assert tools.left_out[-1] == "f.parameters (996 more)"


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_of_faulty_schemas_none_loses_its_request_or_touches_another_tool(
    serving: Any, count: int
) -> None:
    call = '{"type":"tool_call","name":"good","arguments":{"city":"Rome"}}'
    faulty = [schema for _, schema in mutants(count, seed=11)]
    one, alone = serving(*[call] * count), serving(call)
    good = {"type": "function", "function": {"name": "good", "parameters": CITY}}
    chat(alone, tools=[good])
    (line,) = re.findall(r"^good\(.*\)", alone.backend.prompts[0], re.MULTILINE)
    for start in range(0, count, 25):
        schemas = dict(enumerate(faulty[start : start + 25]))
        functions = [{"name": f"odd_{n}", "parameters": each} for n, each in schemas.items()]
        tools = [good, *({"type": "function", "function": each} for each in functions)]
        response = chat(one, tools=tools)
        assert response.json()["choices"][0]["finish_reason"] == "tool_calls", response.text
        named = response.headers["x-mlx-tools-left-out"]
        for number, schema in schemas.items():
            is_named = f"odd_{number}.parameters" in named
            assert is_named == bool(read_lenient_schema(schema).dropped), schema
        assert f"\n{line}\n" in one.backend.prompts[-1]


def test_of_many_faulty_tools_each_is_named(serving: Any) -> None:
    one = serving("Fine.")
    tools = [{"name": f"tool_{n:03}", "parameters": {"properties": {"a": 5}}} for n in range(150)]
    response = chat(one, tools=[{"type": "function", "function": tool} for tool in tools])
    named = response.headers["x-mlx-tools-left-out"].split(", ")
    assert named == [f"tool_{n:03}.parameters" for n in range(150)]


# --- custom tools ---

PATCH = '*** Begin Patch\n*** Add File: h.txt\n+hello "x"\n*** End Patch\n'
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}
CALLED = json.dumps({"type": "tool_call", "name": "apply_patch", "arguments": {"input": PATCH}})


def test_a_custom_tool_is_a_function_of_one_text_with_its_grammar_in_words() -> None:
    tool = ClientTool("apply_patch", is_custom=True)
    for form in (GRAMMAR, {"type": "grammar", "grammar": GRAMMAR}):
        defined = ToolDefinition(tool, "Patches files.", grammar=custom_grammar(form))
        (spec,) = ClientTools([defined]).specs
        assert spec.parameters["properties"] == {"input": {"type": "string"}}
        assert spec.description.startswith("Patches files.\n")
        assert 'lark grammar:\nstart: "a"+' in spec.description
    assert custom_grammar({"type": "text"}) is custom_grammar(None) is None
    assert custom_input('{"input": "a"}') == "a"


@pytest.mark.parametrize("stream", [False, True])
def test_a_custom_tools_call_comes_back_as_one_with_its_text(serving: Any, stream: bool) -> None:
    flat = {"type": "custom", "name": "apply_patch", "description": "x", "format": GRAMMAR}
    nested = {"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "text"}}}
    one = serving(CALLED, CALLED)
    response = respond(one, tools=[flat], stream=stream)
    assert '"type":"custom_tool_call"' in response.text.replace(" ", "")
    assert json.dumps(PATCH) in response.text
    response = chat(one, tools=[nested], stream=stream)
    assert '"type":"custom"' in response.text.replace(" ", "")
    assert json.dumps(PATCH) in response.text


def test_a_custom_tools_text_is_sent_in_pieces_as_it_is_written(serving: Any) -> None:
    text = PATCH + "+a\u2028b \N{GRINNING FACE}\n" + "".join(f"+line {n}\n" for n in range(20))
    called = json.dumps(
        {"type": "tool_call", "name": "apply_patch", "arguments": {"input": text}}
    ).replace("\\n+line", "\n+line")  # written as they are
    flat = {"type": "custom", "name": "apply_patch"}
    one = serving(backend=SlippingModel([called, called], 5))
    events = _events(respond(one, tools=[flat], stream=True))
    kind = "response.custom_tool_call_input"
    deltas = [event["delta"] for event in events if event["type"] == f"{kind}.delta"]
    (done,) = (event for event in events if event["type"] == f"{kind}.done")
    assert len(deltas) > 20 and "".join(deltas) == done["input"] == text
    assert events[-1]["response"]["output"][0]["input"] == text
    nested = {"type": "custom", "custom": {"name": "apply_patch"}}
    events = _events(chat(one, tools=[nested], stream=True))
    calls = [
        call for event in events for call in event["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert calls[0]["custom"] == {"name": "apply_patch", "input": ""}
    assert len(calls) > 20 and "".join(call["custom"]["input"] for call in calls) == text


def _events(response: Any) -> list[Any]:
    """The events of a stream."""
    lines = response.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_a_custom_call_that_comes_back_is_told_with_its_result(serving: Any) -> None:
    one = serving("Done.", "Done.")
    items = [
        {"role": "user", "content": "patch it"},
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": PATCH},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "Success."},
    ]
    assert respond(one, input=items).status_code == 200
    custom = {"name": "apply_patch", "input": PATCH}
    messages = [
        {"role": "user", "content": "patch it"},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": custom}]},
        {"role": "tool", "tool_call_id": "c", "content": "Success."},
    ]
    assert chat(one, messages=messages).status_code == 200
    first, second = one.backend.prompts
    assert first == second
    assert "Add File: h.txt" in first and "Success." in first


# --- choices ---


def test_a_choice_is_of_tools_that_there_are() -> None:
    weather, other = ToolSpec("weather"), ToolSpec("other")
    for choice in (Choice("weather"), Choice("auto"), Choice("none"), Choice("required")):
        assert choice.among([weather, other]) == choice
    assert Choice("auto", frozenset({"other"})).among([weather, other]).allowed == {"other"}
    for choice, tools in (
        (Choice("nope"), [weather]),
        (Choice("auto", frozenset({"weather", "nope"})), [weather]),
        (Choice("weather"), []),
        (Choice("required"), []),
        (Choice("required", frozenset()), [weather]),
    ):
        with pytest.raises(ApiError) as refused:
            choice.among(tools)
        assert (refused.value.status, refused.value.param) == (400, "tool_choice")


@table(
    ("value", "tool"),
    [
        (None, "auto"),
        ("any", "required"),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "required"}, "required"),
        ({"type": "any"}, "required"),
        ({"type": "function", "function": {"name": "a b"}}, "a_b"),
        ({"function": {"name": "a b"}}, "a_b"),
        ({"type": "function", "name": "a b"}, "a_b"),
        ({"type": "tool", "name": "a b"}, "a_b"),
        ({"type": "custom", "name": "patch"}, "patch"),
        ({"type": "custom", "custom": {"name": "patch"}}, "patch"),
        ("a b", "a_b"),
    ],
)
def test_a_choice_is_read_in_the_form_of_any_interface(value: Any, tool: str) -> None:
    tools = ClientTools(
        [
            ToolDefinition(ClientTool("a b")),
            ToolDefinition(ClientTool("patch", is_custom=True)),
        ]
    )
    assert read_choice(value, tools).tool == tool


def test_messages_takes_a_choice_in_the_words_of_openai(serving: Any) -> None:
    call = '{"type":"tool_call","name":"f","arguments":{"city":"Rome"}}'
    rest = ',"arguments":{"city":"Rome"}}'
    for choice in ("any", "required", {"type": "required"}, "auto", {"type": "none"}):
        one = serving(call if choice == "auto" else 'f"' + rest, call, call)
        tool = {"name": "f", "input_schema": CITY}
        assert write_message(one, tools=[tool], tool_choice=choice).status_code == 200
