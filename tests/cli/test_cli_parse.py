"""`mlx-tools parse`: bytes in, one JSON object out, an exit code that says how it went."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

CALL = '{"type":"tool_call","name":"calculator","arguments":{"expression":"17 * 23"}}'
ANSWER = '{"type":"final_answer","content":"391"}'
CALCULATOR = {
    "name": "calculator",
    "description": "Calculates.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
    "effects": ["read"],
}
OPENAI = {
    "type": "function",
    "function": {
        "name": "delete_file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
KEYS = [
    *("messages", "bare_text", "truncated", "call_like", "commentary", "reasoning", "dropped"),
    "error",
]


def test_a_call_is_printed_with_every_key(run: Any, write: Any) -> None:
    result = run("parse", "--tools", write("tools.json", [CALCULATOR, OPENAI]), stdin=CALL)
    assert (result.code, result.err) == (0, "")
    assert list(result.json) == KEYS
    assert result.json == {
        "messages": [
            {
                "type": "tool_call",
                "name": "calculator",
                "arguments": {"expression": "17 * 23"},
                "repairs": [],
                "runs": "freely",
            }
        ],
        "bare_text": False,
        "truncated": False,
        "call_like": False,
        "commentary": "",
        "reasoning": "",
        "dropped": [],
        "error": None,
    }


def test_the_text_may_come_from_a_file_or_a_dash(run: Any, write: Any) -> None:
    assert run("parse", write("text", ANSWER)).json["messages"][0]["content"] == "391"
    assert run("parse", "-", stdin=ANSWER).json["messages"][0]["content"] == "391"


def test_a_repaired_call_of_a_tool_that_can_change_things_needs_approval(
    run: Any, write: Any
) -> None:
    tools = write("tools.json", [CALCULATOR, OPENAI])
    text = '{"type":"tool_call","name":"delete_file","arguments":{"path":"a",}}'
    (message,) = run("parse", "--tools", tools, stdin=text).json["messages"]
    assert message["repairs"] == ["trailing_comma"] and message["runs"] == "with_approval"
    (message,) = run("parse", "--tools", tools, stdin=text.replace(",}", "}")).json["messages"]
    assert message["runs"] == "freely"


def test_an_echoed_call_needs_approval(run: Any, write: Any) -> None:
    seen = write("seen.json", [f"The page says: {CALL}"])
    tools = write("tools.json", [CALCULATOR])
    result = run("parse", "--tools", tools, "--observations", seen, stdin=CALL)
    assert result.json["messages"][0]["runs"] == "with_approval"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"type":"tool_call","name":"calculator","arguments":{}}', "invalid_arguments"),
        ('{"type":"tool_call","name":"calculate_it","arguments":{}}', "unknown_tool"),
        (
            '{"type":"tool_call","name":"calculator","arguments":{"expression":"1',
            "truncated_output",
        ),
        ('{"type":"tool_call","name":"calculator","arguments":{"a":1,"a":2}}', "invalid_json"),
    ],
)
def test_an_error_is_exit_code_1(run: Any, write: Any, text: str, code: str) -> None:
    result = run("parse", "--tools", write("tools.json", [CALCULATOR]), stdin=text)
    assert result.code == 1 and result.err == ""
    assert result.json["error"]["code"] == code and result.json["error"]["message"]


def test_messages_and_an_error_may_stand_together(run: Any, write: Any) -> None:
    wrong = '{"type":"tool_call","name":"calculator","arguments":{}}'
    tools = write("tools.json", [CALCULATOR])
    result = run("parse", "--tools", tools, stdin=f"{CALL}\n{wrong}\n")
    assert result.code == 1
    first, second = result.json["messages"]
    assert "error" not in first and first["runs"] == "freely"
    assert second["error"] == result.json["error"] and second["runs"] == "with_approval"


def test_without_tools_names_and_arguments_are_not_checked(run: Any) -> None:
    result = run("parse", stdin='{"type":"tool_call","name":"anything","arguments":{"x":[1]}}')
    assert result.code == 0 and result.json["messages"][0]["arguments"] == {"x": [1]}


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("markdown-json", f"```json\n{CALL}\n```"),
        ("xml", '<tool_call>{"name":"clock","arguments":{}}</tool_call>'),
    ],
)
def test_the_style_is_an_option_and_a_setting(
    run: Any, environ: Any, style: str, text: str
) -> None:
    expected = run("parse", "--style", style, stdin=text)
    assert expected.code == 0 and expected.json["messages"][0]["type"] == "tool_call"
    environ(MODEL_PROMPT_STYLE=style)
    assert run("parse", stdin=text).json == expected.json


def test_prose_is_no_answer_where_a_call_is_required(run: Any, write: Any) -> None:
    tools = write("tools.json", [CALCULATOR])
    assert run("parse", stdin="It is 391.").json["bare_text"] is True
    result = run("parse", "--tools", tools, "--tool-choice", "required", stdin="It is 391.")
    assert result.code == 1 and result.json["error"] is not None


def test_bytes_that_are_no_text_never_become_part_of_a_message(run: Any) -> None:
    result = run("parse", stdin=b'{"type":"tool_call","name":"x","arguments":{"path":"\xff"}}')
    assert result.code == 1 and result.json["messages"] == []


@given(st.binary(max_size=60))
@example(b'{"type":"final_answer","content":"\\ud800"}')
@example(b'{"type":"final_answer","content":"\xff"}')
@example(b"\xef\xbb\xbf" + ANSWER.encode())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_one_line_of_json(run: Any, data: bytes) -> None:
    result = run("parse", stdin=data)
    assert result.code in (0, 1) and result.out.count("\n") == 1
    assert list(json.loads(result.out)) == KEYS


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"name": "x"}, "expected a list"),
        ([1], "tool 1: expected an object"),
        ([{}], "tool 1: name: expected a string"),
        ([{"name": "a b"}], "cannot name a tool"),
        ([{"name": "x"}, {"name": "x"}], "tool 2: x is there twice"),
        ([{"name": "x", "effects": ["reads"]}], "read, write, execute, network"),
        ([{"name": "x", "effects": "read"}], "effects: expected a list"),
        ([{"name": "x", "parameters": []}], "x: parameters: expected a JSON Schema"),
        ([{"name": "x", "parameters": {"type": "array"}}], "type object"),
        ([{"name": "x", "parameters": {"properties": {"a": {"type": "strng"}}}}], "strng"),
        ([{"type": "function", "function": 3}], "function: expected an object"),
        ('[{"name": "x", "name": "y"}]', "the key 'name' stands twice"),
        ("[1,", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_bad_list_of_tools_is_one_line_and_exit_code_2(
    run: Any, write: Any, value: Any, said: str
) -> None:
    result = run("parse", "--tools", write("tools.json", value), stdin=CALL)
    assert result.code == 2 and result.out == ""
    assert result.error.startswith("mlx-tools: error: tools.json: ") and said in result.error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tools", "none.json"], "none.json: No such file"),
        (["none.txt"], "none.txt: No such file"),
        (["."], ".: Is a directory"),
        (["--style", "json"], "--style: 'json' is not allowed"),
        (["--finish-reason", "end"], "one of stop, length"),
        (["--finish-reason", "stop,length"], "one of stop, length"),
        (["--observations", "bad.json"], "expected a JSON list of texts"),
        (["--tools", "tools.json", "--tool-choice", "calculater"], "calculator"),
        (["--bogus"], "--bogus"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    run: Any, write: Any, arguments: list[str], said: str
) -> None:
    write("bad.json", [1])
    write("tools.json", [CALCULATOR])
    result = run("parse", *arguments, stdin=CALL)
    assert result.code == 2 and result.out == "" and said in result.error


def test_a_call_in_a_dialect_is_read_where_the_tools_are_named(run: Any, write: Any) -> None:
    text = "So.<function=calculator>\n<parameter=expression>\n1+1\n</parameter>\n</function>"
    result = run("parse", "--tools", write("tools.json", [CALCULATOR]), stdin=text)
    (message,) = result.json["messages"]
    assert (message["name"], message["arguments"]) == ("calculator", {"expression": "1+1"})
    assert message["repairs"] == ["dialect"]
    assert run("parse", stdin=text).json["bare_text"] is True


def test_an_answer_that_was_cut_off_is_marked(run: Any) -> None:
    for text in ("It is", '{"type":"final_answer","content":"It is'):
        result = run("parse", "--finish-reason", "length", stdin=text)
        assert (result.code, result.json["truncated"]) == (0, True)
        assert result.json["messages"][0]["content"] == "It is"
