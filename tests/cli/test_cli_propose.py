"""`mlx-tools propose`: one turn, read as `parse` reads it; nothing runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_tools.testing import Completion, ScriptedServer, answer, call

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"name": "delete_file", "parameters": {"properties": {"path": {"type": "string"}}}},
]
KEYS = [
    *("id", "messages", "bare_text", "truncated", "call_like", "commentary", "reasoning"),
    *("dropped", "error", "completion", "usage", "strategy"),
]


def propose(run: Any, *script: Any, options: tuple[str, ...], strategy: str = "free") -> Any:
    with ScriptedServer(*script) as server:
        chosen = ("--url", server.url, "--strategy", strategy)
        return run("propose", *chosen, *options), server


def test_the_proposal_is_what_parse_prints_and_more(run: Any, write: Any) -> None:
    tools = write("tools.json", TOOLS)
    script = call("get_weather", city="Oslo")
    options = ("Weather in Oslo?", "--tools", tools, "-s", "You are a pirate.")
    result, server = propose(run, script, options=options)
    assert "You are a pirate." in server.prompts[0]
    assert (result.code, result.err) == (0, "")
    value = result.json
    assert list(value) == KEYS
    assert value["completion"] == script and value["strategy"] == "free"
    assert value["usage"] == {
        "requests": 1,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "completion_tokens": 10,
    }
    parsed = run("parse", "--tools", tools, stdin=value["completion"]).json
    assert {key: value[key] for key in parsed} == parsed
    assert "get_weather(" in server.prompts[0] and len(server.bodies) == 1


@pytest.mark.parametrize(
    ("text", "code", "error"),
    [
        ('{"type":"tool_call","name":"get_weather","arguments":{}}', 1, "invalid_arguments"),
        ('{"type":"tool_call","name":"get_wether","arguments":{}}', 1, "unknown_tool"),
        ('{"type":"tool_call","name":"get_weather","argu', 1, "truncated_output"),
        ("Sunny.", 0, None),
    ],
)
def test_a_proposal_that_is_wrong_is_no_second_turn(
    run: Any, write: Any, text: str, code: int, error: str | None
) -> None:
    tools = write("tools.json", TOOLS)
    result, server = propose(
        run, Completion(text), answer("never"), options=("Weather?", "--tools", tools)
    )
    assert result.code == code and len(server.bodies) == 1
    assert (result.json["error"] or {}).get("code") == error


def test_a_batch_gives_one_result_a_line_in_order(run: Any, write: Any) -> None:
    lines = [
        {"id": "a", "question": "Weather in Oslo?", "tools": TOOLS},
        {"id": 2, "question": "Delete it", "tools": TOOLS[1:]},
        {"question": "What?"},
    ]
    batch = write("batch.jsonl", "\n\n".join(json.dumps(line) for line in lines) + "\n")
    result, server = propose(
        run,
        call("get_weather", city="Oslo"),
        Completion('{"type":"tool_call","name":"delete_file"'),
        answer("What."),
        options=("--batch", batch, "--tools", write("tools.json", TOOLS)),
    )
    assert result.code == 0
    assert [value["id"] for value in result.lines] == ["a", 2, None]
    assert [bool(value["error"]) for value in result.lines] == [False, True, False]
    assert "get_weather(" not in server.prompts[1] and "delete_file(" in server.prompts[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "batch.jsonl: line 1: not JSON"),
        ('{"question":"a","tools":[]}\n[]', 'line 2: expected {"id", "question", "tools"}'),
        ('{"question":3,"tools":[]}', "line 1: expected"),
        ('{"question":"a"}', "line 1: no tools are named"),
        ('{"question":" ","tools":[]}', "line 1: the question is empty"),
        ('{"question":"a","tools":[{}]}', "line 1: tool 1: name"),
    ],
)
def test_a_bad_batch_is_told_before_anything_is_asked(
    run: Any, write: Any, text: str, said: str
) -> None:
    result, server = propose(run, options=("--batch", write("batch.jsonl", text)))
    assert result.code == 2 and said in result.error and server.bodies == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "QUESTION, or --batch"),
        (("Hi",), "--tools FILE"),
        (("Hi", "--batch", "x"), "QUESTION, or --batch"),
        (("Hi", "--tools", "tools.json", "--strategy", "wild"), "--strategy"),
        (("Hi", "--tools", "tools.json", "--tool-choice", "x"), "get_weather"),
    ],
)
def test_wrong_usage_is_one_line(run: Any, write: Any, options: tuple[str, ...], said: str) -> None:
    write("tools.json", TOOLS)
    result, server = propose(run, options=options)
    assert result.code == 2 and said in result.error and server.bodies == []


# --- a batch on a server that fails -----------------------------------------------------------

REFUSED = Completion("the prompt is too long", status=400)
CUT = Completion("{", finish_reason=None)
SUNNY = answer("Sunny.")


def batch_of(write: Any, count: int) -> tuple[str, ...]:
    lines = (json.dumps({"id": n, "question": f"Question {n}?"}) for n in range(1, count + 1))
    return ("--batch", write("batch.jsonl", "\n".join(lines)), "--tools", write("t.json", TOOLS))


@pytest.mark.parametrize(("bad", "said"), [(REFUSED, "too long"), (CUT, "broke off")])
def test_a_line_that_the_server_fails_is_named_and_the_others_are_asked(
    run: Any, write: Any, bad: Completion, said: str
) -> None:
    script = (SUNNY, bad, bad, SUNNY, bad, bad)
    result, _ = propose(run, *script, options=batch_of(write, 6))
    assert result.code == 3
    assert [value["id"] for value in result.lines] == [1, 2, 3, 4, 5, 6]
    assert [value["error"] is None for value in result.lines] == [True, False, False, True] + [
        False
    ] * 2
    failed = result.lines[1]
    assert list(failed) == KEYS and failed["messages"] == []
    assert failed["error"]["code"] == "backend_error"
    assert said in failed["error"]["message"] and "line 2: " in failed["error"]["message"]
    assert failed["usage"]["requests"] is None and failed["strategy"] is None
    errors = result.err.splitlines()
    assert len(errors) == 4 and all("batch.jsonl: line " in line for line in errors)


def test_failures_in_a_row_stop_a_batch_and_name_the_line(run: Any, write: Any) -> None:
    result, server = propose(run, SUNNY, *[REFUSED] * 9, options=batch_of(write, 9))
    assert result.code == 3
    assert [value["id"] for value in result.lines] == [1, 2, 3]
    assert "line 4: " in result.err.splitlines()[-1]
    assert len(server.bodies) == 4


def test_a_batch_stops_where_the_server_is_gone(run: Any, write: Any) -> None:
    def last(prompt: str) -> Completion:
        server.stop()
        return SUNNY

    with ScriptedServer(SUNNY, last) as server:
        options = ("--url", server.url, "--strategy", "free", *batch_of(write, 9))
        result = run("propose", *options)
    assert result.code == 3
    assert [value["id"] for value in result.lines] == [1, 2]
    assert "batch.jsonl: line 3: no server answers" in result.error


@pytest.mark.heavy
def test_a_completion_that_takes_too_long_is_of_its_line(run: Any, write: Any) -> None:
    slow = Completion("{" * 700, delay=0.2)
    result, _ = propose(run, slow, SUNNY, options=("--timeout", "1.5", *batch_of(write, 2)))
    assert result.code == 1
    assert [value["error"] and value["error"]["code"] for value in result.lines] == [
        "timeout",
        None,
    ]


# --- a server that does not say what it is ----------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page", ["/health", "/v1/models"])
def test_the_timeout_bounds_finding_out_what_the_server_serves(
    run: Any, write: Any, page: str
) -> None:
    tools = write("tools.json", TOOLS)
    with ScriptedServer(hanging=page) as server:
        for command in (("propose", "Hi?", "--tools", tools), ("ask", "Hi?")):
            result = run(*command, "--url", server.url, "--timeout", "0.5")
            assert result.code == 3 and "in the 0.5 s that there were" in result.error
    assert server.bodies == []
