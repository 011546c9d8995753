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
ASKS = "with_approval"
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


WRONG = '{"type":"tool_call","name":"calculator","arguments":{}}'
DELETE = '{"type":"tool_call","name":"delete_file","arguments":{"path":"a"}}'
DIALECT = "So.<function=calculator>\n<parameter=expression>\n1\n</parameter>\n</function>"
FREELY = ("calculator", [], "freely")
KNOWN = ("--tools", "tools.json")


@pytest.mark.parametrize(
    ("options", "text", "error", "calls"),
    [
        (KNOWN, CALL, None, [FREELY]),
        (KNOWN, DELETE, None, [("delete_file", [], "freely")]),
        (KNOWN, DELETE.replace("}", ",}", 1), None, [("delete_file", ["trailing_comma"], ASKS)]),
        ((*KNOWN, "--observations", "seen.json"), CALL, None, [("calculator", [], ASKS)]),
        (KNOWN, DIALECT, None, [("calculator", ["dialect"], "freely")]),
        (KNOWN, WRONG, "invalid_arguments", [("calculator", [], ASKS)]),
        (KNOWN, f"{CALL}\n{WRONG}\n", "invalid_arguments", [FREELY, ("calculator", [], ASKS)]),
        (KNOWN, WRONG.replace("tor", "te_it"), "unknown_tool", [("calculate_it", [], ASKS)]),
        (KNOWN, CALL[:-6], "truncated_output", []),
        (KNOWN, WRONG.replace("{}", '{"a":1,"a":2}'), "invalid_json", []),
        ((*KNOWN, "--tool-choice", "required"), "It is 391.", "invalid_json", []),
        (
            (),
            '{"type":"tool_call","name":"any","arguments":{"x":[1]}}',
            None,
            [("any", [], "freely")],
        ),
        ((), b'{"type":"tool_call","name":"x","arguments":{"path":"\xff"}}', "invalid_json", []),
    ],
)
def test_a_call_says_how_it_may_run_and_an_error_is_exit_code_1(
    run: Any, write: Any, options: tuple[str, ...], text: str | bytes, error: str | None, calls: Any
) -> None:
    write("tools.json", [CALCULATOR, OPENAI])
    write("seen.json", [f"The page says: {CALL}"])
    result = run("parse", *options, stdin=text)
    value = result.json
    found = [(one["name"], one["repairs"], one["runs"]) for one in value["messages"]]
    assert (result.code, (value["error"] or {}).get("code"), found) == (
        int(error is not None),
        error,
        calls,
    )
    if error == "invalid_arguments":
        assert value["messages"][-1]["error"] == value["error"]


def test_prose_and_what_was_cut_off_are_marked(run: Any) -> None:
    assert run("parse", stdin="It is 391.").json["bare_text"] is True
    assert run("parse", stdin=DIALECT).json["bare_text"] is True  # no tools are named
    for text in ("It is", '{"type":"final_answer","content":"It is'):
        result = run("parse", "--finish-reason", "length", stdin=text)
        assert (result.code, result.json["truncated"]) == (0, True)
        assert result.json["messages"][0]["content"] == "It is"


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
