"""`mlx-tools tools`: listing, showing, exporting, and calling without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LISTED = [
    *("name", "description", "effects", "plugin", "pinned", "enabled", "disabled_reason"),
    *("permitted", "denied_reason", "needs_approval"),
]


def test_the_list_for_people_is_a_line_a_tool(run: Any) -> None:
    result = run("tools", "list")
    assert [line.split()[0] for line in result.out.splitlines()] == [
        *("calculator", "clock", "format_xml", "run_command"),
        *("file_access", "create_file", "edit_file", "search_files"),
        *("query_knowledge_base", "list_corpora", "notes_create", "notes_search"),
        *("translate", "describe_image", "transcribe_audio"),
        *("schedule_task", "fetch_url", "web_search"),
        *("tool_search", "read_artifact"),
    ]


def test_the_list_says_what_each_tool_could_do_and_why_it_may_not(run: Any, environ: Any) -> None:
    environ(POLICY_DENY="clock")
    options = ("--preset", "readonly_files", "--root", ".")
    rows = {row["name"]: row for row in run("tools", "list", "--json", *options).lines}
    lines = {line.split()[0]: line for line in run("tools", "list", *options).out.splitlines()}
    for name, effects, why in (
        ("clock", ["read"], "denied by the policy"),
        ("fetch_url", ["network", "read"], "not among the allowed tools"),
        ("schedule_task", ["write"], "not among the allowed tools"),
    ):
        assert rows[name]["effects"] == effects
        assert rows[name]["denied_reason"] == f"{name} is {why}"
        assert f"not permitted ({', '.join(effects)}) " in lines[name]
        assert lines[name].endswith(f" ({why})")
    assert rows["file_access"]["denied_reason"] is None and "permitted (" in lines["file_access"]
    assert "disabled (read)" in lines["query_knowledge_base"]
    assert rows["query_knowledge_base"]["denied_reason"] is None


def test_a_call_prints_the_output_and_leaves_a_record(run: Any) -> None:
    result = run("tools", "call", "calculator", '{"expression":"17 * 23"}')
    assert (result.code, result.out, result.err) == (0, "391\n", "")
    (transcript,) = Path("..").glob("state/sessions/*/transcript.jsonl")
    kinds = [json.loads(line)["type"] for line in transcript.read_text().splitlines()]
    assert kinds == ["header", "tool_call", "decision", "execution_started", "tool_observation"]


def test_a_call_as_json(run: Any) -> None:
    value = run("tools", "call", "calculator", "-", "--json", stdin='{"expression":"1+1"}').json
    assert value["status"] == "ok" and value["output"] == "2" and value["error_code"] is None
    assert value["decision"]["decision"] == "allow" and Path(value["transcript"]).is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("calculater", "{}"), 2, "did you mean calculator?"),
        (("calculator", "{"), 2, "JSON: not JSON"),
        (("calculator", "[]"), 2, "expected an object"),
        (("calculator", '{"expression":"1","expression":"2"}'), 2, "'expression' stands twice"),
        (("calculator", '{"expression":NaN}'), 2, "NaN is no JSON"),
        (("calculator", '{"expression":1e999}'), 2, "too large"),
        (("calculator", "{}"), 2, "invalid_arguments: expression"),
        (("calculator", '{"expression":"1/0"}'), 1, "tool_error"),
        (("calculator", '{"expression":"1"}', "--tools", "clock"), 1, "not_allowed"),
        (("file_access", '{"operation":"list","path":"."}'), 1, "disabled"),
        (("file_access", '{"operation":"read","path":"../x"}', "--root", "."), 1, "x"),
    ],
)
def test_a_call_that_fails_is_one_line(
    run: Any, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = run("tools", "call", *arguments)
    assert result.code == code and result.out == "" and said in result.error


def test_a_call_that_must_be_approved_waits_with_exit_code_4(run: Any, environ: Any) -> None:
    environ(POLICY_ASK="clock")
    result = run("tools", "call", "clock", "{}", "--json")
    assert result.code == 4 and result.json["status"] == "pending" and "paused" in result.error
    assert run("tools", "call", "clock", "{}", "--approve", "always").code == 0
    result = run("tools", "call", "clock", "{}", "--dry-run", "--json")
    assert result.code == 0 and result.json["status"] == "dry_run"
    assert result.error == "mlx-tools: note: dry run: clock was not called"


def test_a_person_who_calls_a_tool_is_not_taken_for_a_model(terminal: Any) -> None:
    screen = terminal("tools", "call", "clock", "{}", MLX_TOOLS_POLICY_ASK="clock")
    screen.until(r"Run clock\? no arguments[^$]*p pause ")
    screen.type("d")
    screen.until("You ask to call clock: [^$]*p pause ")
    screen.type("y")
    assert screen.end() == 0


def test_what_may_not_be_called_or_is_no_json_comes_with_what_to_do(run: Any) -> None:
    denied = run("tools", "call", "format_xml", '{"content": "<a/>"}')
    assert denied.error.endswith("(to allow it in a run: --tools format_xml)")
    more = ("file_access", '{"operation": "write", "path": "a", "content": ""}', "--root", ".:rw")
    assert run("tools", "call", *more, "--preset", "readonly_basic").error.endswith(
        "write is not granted by preset readonly_basic (to allow it in a run: --tools file_access)"
    )
    assert run("tools", "call", *more).code == 4
    assert run("tools", "call", *more, "--tools", "file_access").code == 4
    assert run("tools", "call", *more, "--tools", "file_access", "--approve", "always").code == 0
    up = ("file_access", '{"operation": "read", "path": "../a"}', "--root", ".")
    assert run("tools", "call", *up).error.endswith("paths go down from the folder")
    forbidden = run("tools", "call", "fetch_url", '{"url": "https://example.org"}', "--local-only")
    assert "--tools fetch_url" in forbidden.error
    local = ("--tools", "fetch_url", "--local-only")
    forbidden = run("tools", "call", "fetch_url", '{"url": "https://example.org"}', *local)
    assert forbidden.error.endswith("which local-only forbids")
    broken = run("tools", "call", "calculator", "{expression: 1}")
    assert """write it as '{"expression": "2+2"}', in single quotes""" in broken.error


def test_a_tool_that_is_shown_says_where_it_is_from_and_why_it_may_not_be_called(run: Any) -> None:
    assert '"expression"' in run("tools", "show", "calculator").out
    value = run("tools", "show", "clock", "--json").json
    assert value["parameters"]["type"] == "object" and value["permitted"] is True
    shown = run("tools", "show", "fetch_url").out
    assert shown.startswith("fetch_url  not permitted (network, read)\nfrom builtin; ")
    assert shown.endswith(
        "it is not permitted: fetch_url is not among the allowed tools; "
        "to allow it in a run: --tools fetch_url\n"
    )


def test_no_option_is_offered_that_would_not_help(run: Any, environ: Any) -> None:
    environ(POLICY_DENY="clock")
    assert "it is not permitted: " in (shown := run("tools", "show", "clock").out)
    assert "--tools" not in shown
    assert "--tools" not in run("tools", "enable", "clock").error
    assert "--tools" not in run("tools", "call", "clock", "{}").error


def test_a_search_prints_what_matches_and_may_be_called(run: Any) -> None:
    result = run("tools", "search", "what time is it in a city")
    assert result.code == 0 and result.out.startswith("clock(timezone?: string) - ")
    assert result.out.count("\n") == 1 and result.err == ""
    (row,) = run("tools", "search", "what time is it", "--json").lines
    assert list(row) == [*LISTED, "score", "signature"]
    assert row["name"] == "clock" and row["score"] > 0 and row["signature"] in result.out


def test_a_search_says_what_it_hides_and_why(run: Any) -> None:
    result = run("tools", "search", "read a text file")
    assert result.out == "" and "--root" in result.err and "no tool matches" in result.err
    result = run("tools", "search", "time", ALLOWED_TOOLS="calculator")
    assert result.out == "" and "1 of the best matches may not be called" in result.err
    rows = run("tools", "search", "time", "--all", "--json", ALLOWED_TOOLS="calculator").lines
    assert [(row["name"], row["permitted"]) for row in rows] == [("clock", False)]
    result = run("tools", "search", "time", "--all", ALLOWED_TOOLS="calculator")
    assert result.out.startswith("not permitted ") and result.err == ""


def test_a_search_has_a_limit_and_a_query(run: Any, environ: Any) -> None:
    environ(TOOLS_ROOTS=".")
    everything = ("tools", "search", "a text file, a date, an expression")
    assert len(run(*everything, "--json").lines) == 4
    result = run(*everything, "--json", "--limit", "1")
    assert len(result.lines) == 1 and "3 more match" in result.err
    assert run("tools", "search", "-", stdin="what time is it?").out.startswith("clock(")
    assert run("tools", "search", "  ").code == 2
    assert run("tools", "search", "x", "--limit", "0").code == 2


@pytest.mark.parametrize("form", ["openai", "anthropic", "mcp", "jsonschema"])
def test_an_export_is_json_and_holds_the_permitted_tools(run: Any, form: str) -> None:
    result = run("tools", "export", "--format", form)
    assert result.code == 0 and "calculator" in result.out and "file_access" not in result.out
    json.loads(result.out)
    assert run("tools", "export", "--format", "gbnf").out.startswith("root ::=")
    assert "web_search" in run("tools", "export", "--format", form, "--tools", "*").out


def test_tools_that_are_turned_off_are_not_called(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUGIN_MLX_TOOLS_ENABLED", "no")
    result = run("tools", "call", "clock", "{}")
    assert result.code == 2 and "PLUGIN_MLX_TOOLS_ENABLED" in result.error
    assert not any(row["enabled"] for row in run("tools", "list", "--json").lines)
