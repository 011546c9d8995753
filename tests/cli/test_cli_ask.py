"""`mlx-tools ask`: over real HTTP, with a server that says what it is told to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.store.artifacts import SWEEP_EVERY
from mlx_tools.testing import USAGE, Completion, ScriptedServer, answer, call
from tests.waiting import wait_until

KEYS = [
    *("status", "answer", "bare_text", "truncated", "truncated_by", "call_like", "reason"),
    *("session", "transcript"),
    *("turns", "calls", "sources", "pending", "usage", "repairs", "mends", "context", "model"),
    "strategy",
]
CALL_KEYS = [
    *("id", "name", "arguments", "status", "repairs", "duration_ms", "output_size_chars"),
    *("output_omitted", "error_code", "error_preview"),
]
CALCULATION = (call("calculator", expression="17 * 23"), answer("It is 391."))


def ask(run: Any, *script: Any, options: tuple[str, ...] = (), stdin: str | bytes = b"") -> Any:
    with ScriptedServer(*script) as server:
        result = run("ask", "--url", server.url, *options, stdin=stdin)
    return result, server


# --- output -------------------------------------------------------------------------------------


def test_the_answer_alone_goes_to_standard_output(run: Any) -> None:
    result, _ = ask(run, *CALCULATION, options=("What is 17 * 23?",))
    assert (result.code, result.out, result.err) == (0, "It is 391.\n", "")


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_answer_is_told_on_standard_error(run: Any, text: str) -> None:
    plain, as_json = (
        ask(run, answer(text), options=("Hi", *more))[0] for more in ((), ("--json",))
    )
    for result in (plain, as_json):
        assert (
            "the model gave an empty answer (ask in other words, or /retry in chat)" in result.err
        )
        assert result.code == 0
    assert not plain.out.strip() and as_json.json["answer"].strip() == ""
    with ScriptedServer(answer(text), answer("Hi.")) as server:
        talk = run("chat", "--url", server.url, stdin="Hello?\nHello?\n")
    assert talk.err.count("the model gave an empty answer") == 1
    shown = run("sessions", "show", as_json.json["session"])
    assert "the model gave an empty answer" in shown.out


def test_json_has_every_key_in_order(run: Any) -> None:
    result, _ = ask(run, *CALCULATION, options=("What is 17 * 23?", "--json"))
    value = result.json
    assert list(value) == KEYS and list(value["calls"][0]) == CALL_KEYS
    assert value["status"] == "answered" and value["answer"] == "It is 391."
    assert value["turns"] == 2 and value["strategy"] == "auto" and value["reason"] is None
    assert value["calls"][0]["arguments"] == {"expression": "17 * 23"}
    assert value["calls"][0]["status"] == "ok" and value["calls"][0]["output_omitted"] is True
    assert Path(value["transcript"]).is_file()
    assert value["usage"] == {
        "requests": 2,
        "prompt_tokens": 2 * USAGE["prompt_tokens"],  # type: ignore[operator]
        "cached_tokens": 80,
        "completion_tokens": 20,
    }


def test_numbers_that_were_not_reported_are_null(run: Any) -> None:
    result, _ = ask(
        run, Completion('{"type":"final_answer","content":"Hi."}'), options=("Hi", "--json")
    )
    assert result.json["usage"] == {
        "requests": 1,
        "prompt_tokens": None,
        "cached_tokens": None,
        "completion_tokens": None,
    }


# --- the model's context ------------------------------------------------------------------------


def test_a_person_is_told_that_the_context_fills_and_what_left(run: Any, environ: Any) -> None:
    environ(MODEL_CONTEXT="2000")
    calls = [call("calculator", expression="+".join([f"{n}"] * 120)) for n in range(9)]
    options = ("Add.", "--steps", "--max-iterations", "20")
    result, _ = ask(run, *calls, answer("Done."), options=options)
    assert result.code == 0
    assert result.err.count("of the model's context is used") == 1
    assert "the prompt was compacted: " in result.err


def test_events_are_json_lines_and_end_with_the_outcome(run: Any) -> None:
    result, _ = ask(run, *CALCULATION, options=("What is 17 * 23?", "--events"))
    kinds = [event["type"] for event in result.lines]
    assert kinds[0] == "turn_started" and kinds[-1] == "finished"
    assert [
        k for k in kinds if k in ("call_read", "call_decided", "tool_started", "tool_ended")
    ] == [*("call_read", "call_decided", "tool_started", "tool_ended")]
    assert result.lines[-1]["outcome"]["answer"] == "It is 391."
    pieces = [e["text"] for e in result.lines if e["type"] == "answer_piece"]
    assert "".join(pieces) == "It is 391."


# --- input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "stdin", "question"),
    [
        ((), "Is this it?\n", "Is this it?\n"),
        (("-",), "Is this it?\n", "Is this it?\n"),
        (("Sum", "it up:"), "one two three\n", "Sum it up:\n\none two three\n"),
        (("Just this",), "", "Just this"),
        (("Just this",), "\n \t\n", "Just this"),
    ],
)
def test_what_is_piped_is_the_question_or_is_added_to_it(
    run: Any, words: tuple[str, ...], stdin: str, question: str
) -> None:
    ask(run, answer("Ok."), options=words, stdin=stdin)
    (transcript,) = Path("..").glob("state/sessions/*/transcript.jsonl")
    records = [json.loads(line) for line in transcript.read_text().splitlines()]
    assert [r["content"] for r in records if r["type"] == "user"] == [question]


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\nHello?\n"


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (("-",), b"", "the question is empty"),
        ((), b" \n", "the question is empty"),
        (("  ",), b"", "the question is empty"),
        (("-",), b"\xff", "standard input: not UTF-8 at byte 0"),
        (("Hi",), b"abc\xff", "standard input: not UTF-8 at byte 3"),
        (("Hi",), PNG, "standard input is an image (image/png), and the model reads text only"),
        (("Hi",), b"\0\0\0\x18ftypheic\xff", "standard input is an image (image/heic), and"),
        (("Hi",), b"RIFF\xff\xff\xff\0WEBPVP8", "standard input is an image (image/webp), and"),
        (("-",), PNG, "describe_image"),
        (("Hi\udcff",), b"", "not UTF-8"),
    ],
)
def test_a_question_that_is_none_is_exit_code_2(
    run: Any, arguments: tuple[str, ...], stdin: bytes, said: str
) -> None:
    result, server = ask(run, options=arguments, stdin=stdin)
    assert result.code == 2 and said in result.error and server.bodies == []


# --- how a run ends -----------------------------------------------------------------------------


def test_a_call_that_must_be_approved_pauses_the_run_with_exit_code_4(
    run: Any, environ: Any
) -> None:
    environ(POLICY_ASK="calculator")
    result, _ = ask(run, *CALCULATION, options=("What is 17 * 23?", "--json"))
    assert result.code == 4 and result.json["status"] == "paused"
    (pending,) = result.json["pending"]
    assert pending["name"] == "calculator" and len(pending["digest"]) == 64
    assert result.json["calls"][0]["status"] == "pending"
    assert result.error == (
        "mlx-tools: paused: an approval is due for calculator "
        f"(mlx-tools sessions resume {result.json['session']})"
    )


def test_a_dry_run_reports_what_would_have_asked(run: Any, environ: Any) -> None:
    environ(POLICY_ASK="calculator")
    result, _ = ask(run, *CALCULATION, options=("What is 17 * 23?", "--dry-run", "--json"))
    assert result.code == 0
    (made,) = result.json["calls"]
    assert made["status"] == "dry_run" and made["error_code"] == "dry_run"


def test_a_run_that_stops_says_why_with_exit_code_1(run: Any) -> None:
    broken = Completion('{"type":"tool_call","name":')
    options = ("Hi", "--json", "--strategy", "free")
    result, _ = ask(run, broken, broken, broken, options=options)
    assert result.code == 1
    assert result.json["status"] == "stopped" and result.json["reason"] == "format_errors"
    assert result.error.startswith("mlx-tools: stopped: the call was cut off at the token limit")
    assert "--max-tokens" in result.error


def test_a_backend_that_fails_is_exit_code_3_at_once_and_later(run: Any) -> None:
    result, _ = ask(run, options=("Hi",))
    assert result.code == 3 and result.out == "" and "the script is at its end" in result.error
    result, _ = ask(run, CALCULATION[0], options=("Hi", "--json"))
    assert result.code == 3 and result.json["reason"] == "backend_error"
    assert result.json["calls"][0]["status"] == "ok"


def test_a_backend_that_is_not_there_is_exit_code_3_and_one_line(run: Any) -> None:
    with ScriptedServer() as server:
        url = server.url
    result = run("ask", "--url", url, "Hi")
    assert result.code == 3 and result.out == "" and url in result.error


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("ask", "--backend", "server", "Hi"), "mlx-tools models pull smollm2-135m"),
        (("ask", "--backend", "server", "-m", "some/model", "Hi"), "models pull some/model"),
        (("chat", "--backend", "local"), "mlx-tools models pull smollm2-135m"),
        (("models", "pull", "smollm2-135m"), "check the network and pip's index settings"),
        (("models", "pull", "some/model"), "the hub cannot be reached (check the network, then"),
    ],
)
@pytest.mark.heavy
def test_a_first_run_without_network_is_exit_code_3_and_one_line_of_what_to_do(
    run: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], told: str
) -> None:
    for name in [*os.environ]:
        if name.startswith(("PIP_", "UV_", "HF_", "HUGGINGFACE_")) or "proxy" in name.lower():
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
    for protocol in ("HTTP", "HTTPS", "ALL"):
        monkeypatch.setenv(f"{protocol}_PROXY", "http://127.0.0.1:9")
    result = run(*command, stdin="Hi\n")
    (line,) = [line for line in result.err.splitlines() if "pull: fetching" not in line]
    assert (result.code, result.out) == (3, "")
    assert line.startswith("mlx-tools: error: ") and told in line


# --- options ------------------------------------------------------------------------------------


def test_options_reach_the_server(run: Any) -> None:
    _, server = ask(
        run,
        answer("Hi."),
        options=("Hi", "--temperature", "0.5", "--seed", "7", "--max-tokens", "9", "--model", "m"),
    )
    (body,) = server.bodies
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.5, 7, 9)
    assert body["model"] == "m"


def test_only_the_named_tools_are_shown_and_called(run: Any) -> None:
    result, server = ask(
        run,
        *CALCULATION,
        options=("What is 17 * 23?", "--tools", "clock", "--json", "--strategy", "free"),
    )
    assert "calculator(" not in server.prompts[0] and "clock(" in server.prompts[0]
    assert result.json["calls"][0]["status"] == "denied"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tools", "calculater"), "did you mean calculator?"),
        (("--full-trace", "."), "--full-trace: .: Is a directory"),
        (("--tools", "clock", "--preset", "readonly_basic"), "excludes"),
        (("--preset", "all"), "readonly_basic"),
        (("--require-tools", "run_command"), "run_command"),
        (("--require-tools", "clock,file_access"), "file_access"),
        (("--tool-choice", "run_command"), "run_command"),
        (("--backend", "remote"), "--backend"),
        (("--max-iterations", "0"), "an integer from 1 to 1000"),
        (("--timeout", "soon"), "--timeout: 'soon' is not allowed"),
        (("--root", "nowhere"), "nowhere"),
        (("--reasoning", "-1"), "off, auto or an integer"),
        (("--approve", "maybe"), "never, auto, ask or always"),
    ],
)
def test_a_bad_option_is_one_line_before_any_model_call(
    run: Any, options: tuple[str, ...], said: str
) -> None:
    result, server = ask(run, options=("Hi", *options))
    assert result.code == 2 and result.out == "" and said in result.error
    assert server.bodies == []


def test_the_switch_turns_tools_off_and_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUGIN_MLX_TOOLS_ENABLED", "false")
    result, server = ask(run, options=("Hi",))
    assert result.code == 2 and "PLUGIN_MLX_TOOLS_ENABLED" in result.error
    assert server.bodies == []
    forced = Completion('Hi."}')  # the host has written the beginning of an answer
    result, server = ask(run, forced, options=("Hi", "--tool-choice", "none"))
    assert result.code == 0 and "calculator(" not in server.prompts[0]


def test_the_switch_turns_the_prompted_path_off_and_leaves_the_native_one(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTING_LOCAL_ENABLED", "false")
    monkeypatch.setenv("MLX_TOOLS_ROUTING_ROUTE", "prompted")
    result, server = ask(run, options=("Hi", "--backend", "native"))
    assert result.code == 2 and "leave one of them out" in result.error
    result, server = ask(run, options=("Hi",))
    assert result.code == 2 and "routing.local_enabled" in result.error and server.bodies == []
    monkeypatch.delenv("MLX_TOOLS_ROUTING_ROUTE")
    with ScriptedServer(Completion("Hello!"), chat=True) as server:
        result = run("ask", "Hi", "--url", server.url, "--json")
    assert (result.code, result.json["answer"], server.prompts) == (0, "Hello!", [])


def test_a_warning_of_the_configuration_goes_to_standard_error(run: Any, environ: Any) -> None:
    environ(FOREIGN_THING="1")
    result, _ = ask(run, answer("Hi."), options=("Hi",))
    assert result.code == 0 and result.error.startswith("mlx-tools: warning: MLX_TOOLS_FOREIGN")


def test_stored_outputs_are_deleted_after_the_days_that_are_set(
    run: Any, environ: Any, write: Any
) -> None:
    write("long.txt", "word " * 4000)
    reading = call("file_access", operation="read", path="long.txt")
    result, _ = ask(run, reading, answer("Read."), options=("Read it", "--root", ".", "--json"))
    folder = Path(result.json["transcript"]).parent / "artifacts"
    (artifact,) = folder.iterdir()
    two_days_ago = artifact.stat().st_mtime - 2 * 86_400
    os.utime(artifact, (two_days_ago, two_days_ago))
    ask(run, answer("Hi."), options=("Hi",))
    assert artifact.exists()
    environ(ARTIFACTS_KEEP_DAYS="1")
    mark = folder.parents[1] / ".swept"  # once an hour is looked, over all processes
    an_hour_ago = mark.stat().st_mtime - SWEEP_EVERY
    os.utime(mark, (an_hour_ago, an_hour_ago))
    ask(run, answer("Hi."), options=("Hi",))
    wait_until(lambda: not artifact.exists())


# --- more tools than fit ------------------------------------------------------------------------


# --- an answer that fits a schema ---------------------------------------------------------------

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def test_an_answer_fits_the_schema_that_is_named(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "person.json"
    file.write_text(json.dumps(PERSON))
    options = ("Who?", "--schema", str(file), "--events", "--tool-choice", "none")
    rest = '"name": "Ann", "age": 3}}'
    result, server = ask(run, rest, options=options)
    assert result.code == 0 and len(server.bodies) == 1
    events = [json.loads(line) for line in result.out.splitlines()]
    text = "".join(one["text"] for one in events if one["type"] == "answer_piece")
    assert text == events[-1]["outcome"]["answer"] == '{"name":"Ann","age":3}'
    assert not [one for one in events if one["type"] in ("call_opened", "call_read")]


@pytest.mark.parametrize("schema", ['{"type": "person"}', '{"$ref": "#/$defs/x"}', "[1]", "{"])
def test_a_schema_that_cannot_be_used_is_named_before_anything_is_asked(
    run: Any, tmp_path: Path, schema: str
) -> None:
    file = tmp_path / "person.json"
    file.write_text(schema)
    result, server = ask(run, options=("Who?", "--schema", str(file)))
    assert result.code == 2 and str(file) in result.err and not server.bodies


def test_tools_that_neither_fit_nor_can_be_searched_for_are_told(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_tools.app.wiring.CATALOG_BUDGET", 30)
    result, _ = ask(run, *CALCULATION, options=("What is 17 * 23?",))
    assert result.out == "It is 391.\n"
    assert "1 of 2 tools do not fit into the catalog" in result.error
    assert "tool_search" in result.error
