"""`mlx-tools tools new|add|trust|enable|disable|remove`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.errors import EXIT_PAUSED
from tests.command_line import Open, Result, Run
from tests.folders.tool_folders import make_folder
from tests.forked import forks


def rows(run: Run, *options: str) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in run("tools", "list", "--json", *options).lines}


def test_a_new_tool_that_cannot_be_noted_down_leaves_no_folder(run: Run, home: Path) -> None:
    lock = home / "data" / ".tools.json.lock"
    lock.mkdir(parents=True)
    failed = run("tools", "new", "counter")
    assert failed.code == 2 and "tools.json cannot be written" in failed.error
    assert not Path("counter").exists()
    lock.rmdir()
    assert run("tools", "new", "counter").code == 0


@pytest.mark.heavy
def test_a_new_tool_passes_its_own_test_is_added_and_called(run: Run, home: Path) -> None:
    made = run("tools", "new", "counter")
    folder = Path(made.out.strip())
    give_time(folder)
    assert folder == (home / "here" / "counter").resolve() or folder == home / "here" / "counter"
    options = ["-q", "-p", "no:cacheprovider", str(folder)]
    code = f"import pytest, sys; sys.exit(pytest.main({options}))"
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    tests = forks().start(code=code, folder=home, environ=environ)
    said = tests.communicate()
    assert tests.wait() == 0, said
    added = run("tools", "add", "counter", "--yes")
    assert added.code == 0
    assert added.out.strip() == str(home / "data" / "tools" / "counter")
    assert "effects: read\n" in added.err
    assert "to allow it in a run: --tools counter" in added.err
    row = rows(run, "--tools", "counter")["counter"]
    assert (row["plugin"], row["enabled"], row["permitted"]) == ("folder", True, True)
    called = run("tools", "call", "counter", '{"text": "a b"}', "--tools", "plugin:folder")
    assert json.loads(called.out) == {"success": True, "lines": 1, "words": 2, "characters": 3}
    failed = run("tools", "call", "counter", '{"text": " "}', "--tools", "counter")
    assert (failed.code, failed.out) == (1, "")
    assert failed.error == "mlx-tools: error: tool_error: there is no text to count in"


def test_nothing_is_added_unasked(run: Run, home: Path) -> None:
    make_folder(home / "here")
    refused = run("tools", "add", "echo")
    assert refused.code == 2
    assert refused.err.endswith("no terminal to confirm on (add --yes)\n")
    assert not (home / "data").exists()


def test_all_tools_of_a_folder_are_added_or_none(run: Run, home: Path) -> None:
    for name in ("one", "two"):
        make_folder(home / "here" / "all", name)
    bad = make_folder(home / "here" / "all", "three", code="import nothing_of_that_name, <")
    refused = run("tools", "add", "all", "--yes")
    assert (refused.code, refused.out) == (2, "")
    assert "three/execute.py, line 1: not Python" in refused.error
    assert not (home / "data" / "tools").exists()
    (bad / "execute.py").write_text("import nothing_of_that_name\ndef execute(a): return {}\n")
    added = run("tools", "add", "all", "--yes")
    names = ["one", "three", "two"]
    assert added.out.splitlines() == [str(home / "data" / "tools" / name) for name in names]
    reason = "it needs packages that are not installed: nothing_of_that_name"
    assert f"three: it is disabled: {reason}\n" in added.err
    found = rows(run, "--tools", "plugin:folder")
    assert [found[name]["disabled_reason"] for name in names] == [None, reason, None]
    called = run("tools", "call", "three", "{}", "--tools", "three")
    assert called.code == 1
    assert reason in called.error


def test_what_a_folder_says_of_itself_is_shown_and_cannot_pass_for_our_words(
    run: Run, home: Path
) -> None:
    folder = make_folder(home / "here", effects=["read"], environment=["API_TOKEN"])
    definition = {"name": "echo", "description": "Good.\neffects: none\x1b[2K\u202e"}
    (folder / "tool_definition.json").write_text(json.dumps(definition))
    (folder / "config.json").write_text('{"environment": ["API_TOKEN"]}')
    shown = run("tools", "add", "echo", "--yes").err
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "| effects: none\\u001b[2K" in shown
    lines = shown.splitlines()
    assert "effects: execute, network, read, write (all there are)" in lines
    assert "variables it sees: API_TOKEN" in lines
    assert any(line.startswith("| execute.py  ") for line in lines)


def test_any_tool_is_switched_off_and_on_and_a_changed_one_is_off_until_it_is_trusted(
    run: Run, home: Path
) -> None:
    make_folder(home / "here")
    run("tools", "add", "echo", "--yes")
    for name in ("echo", "clock"):
        assert run("tools", "disable", name).code == 0
        reason = f"switched off (mlx-tools tools enable {name})"
        assert rows(run)[name]["disabled_reason"] == reason
        called = run("tools", "call", name, "{}", "--tools", name)
        assert called.code == 1
        assert called.error == f"mlx-tools: error: disabled: {name} is disabled: {reason}"
        assert run("tools", "enable", name).code == 0
        assert rows(run)[name]["enabled"] is True
    code = home / "data" / "tools" / "echo" / "execute.py"
    code.write_text("def execute(a): return {'other': 1}")
    called = run("tools", "call", "echo", "{}", "--tools", "echo")
    assert called.code == 2 and "have changed since they were added" in called.error
    assert run("tools", "trust", "echo", "--yes").code == 0
    assert run("tools", "call", "echo", "{}", "--tools", "echo").out == '{"other":1}\n'


def test_what_else_keeps_a_tool_off_is_told(run: Run, configure: Any) -> None:
    written = configure("enabled = false\n")
    told = run("tools", "enable", "clock")
    assert told.code == 0
    assert f"clock: it is disabled: tools are turned off by {written}: enabled" in told.error


def test_a_new_tool_is_named_as_one_would_type_it(run: Run) -> None:
    tried, done = run("tools", "new", "counter").err.splitlines()
    assert "try it: pytest counter; or: mlx-tools tools call counter '{" in tried
    assert done.endswith("when it is done: mlx-tools tools add counter")


@pytest.mark.heavy
def test_a_question_about_a_folder_is_answered_after_it_was_seen(
    terminal: Open, home: Path
) -> None:
    make_folder(home / "here")
    for typed, code in (("n\r", 1), ("\r", 1), ("\x04", 1), ("\x03", 130), ("y\r", 0)):
        screen = terminal("tools", "add", "echo")
        screen.type("y\r")  # before anything was shown
        screen.until(r"Add echo in\s+\S+\?\s+\[y/N\] ")
        assert screen.process.poll() is None
        screen.type(typed)
        assert screen.end() == code
        said = {1: "note: nothing was changed", 130: "interrupted: by Ctrl-C", 0: "tools/echo"}
        assert said[code] in screen.text


def test_what_was_done_is_told(run: Run, home: Path) -> None:
    make_folder(home / "here")
    assert run("tools", "disable", "clock").error == (
        "mlx-tools: done: clock is off (mlx-tools tools enable clock)"
    )
    assert run("tools", "enable", "clock").error == "mlx-tools: done: clock can be called"
    switched = run("tools", "enable", "fetch_url").error
    assert switched.startswith("mlx-tools: note: fetch_url is on; it is not permitted: ")
    run("tools", "add", "echo", "--yes")
    assert run("tools", "remove", "echo").code == 2  # nobody is asked
    assert run("tools", "remove", "echo", "--yes").error == "mlx-tools: done: removed echo"
    assert "echo" not in rows(run)
    assert (home / "here" / "echo").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "nothing", "--yes"), "cannot be read: No such file"),
        (("add", "empty", "--yes"), "tool_definition.json is missing"),
        (("add", ".", "--yes"), "there is a tool clock already (built in)"),
        (("add", "twice", "--yes"), "2 of the folders in twice hold a tool echo"),
        (("add", "clock", "--yes"), "there is a tool clock already (built in)"),
        (("trust", "echo", "--yes"), "there is no tool 'echo'"),
        (("trust", "../x", "--yes"), "there is no tool '../x'"),
        (("trust", "calculator", "--yes"), "only tools that are folders are trusted"),
        (("add", "clock/execute.py", "--yes"), "is a file (name its folder: clock)"),
        (("new", "calculator"), "there is a tool calculator already (built in)"),
        (("enable", "nothing"), "there is no tool nothing"),
        (("disable", "../x"), "there is no tool ../x"),
        (("disable", ".."), "there is no tool .."),
        (("remove", "clock", "--yes"), "mlx-tools tools disable clock"),
        (("remove", "nothing", "--yes"), "there is no tool 'nothing'"),
        (("remove", "nothing"), "there is no tool 'nothing'"),
        (("new", "a b"), "cannot name a tool"),
        (("new", "twice"), "twice is there already"),
    ],
)
def test_a_mistake_is_one_line(run: Run, home: Path, arguments: tuple[str, ...], said: str) -> None:
    make_folder(home / "here", "clock")
    (home / "here" / "empty").mkdir()
    for name in ("a", "b"):
        make_folder(home / "here" / "twice" / name).rename(home / "here" / "twice" / f"{name}-echo")
    result = run("tools", *arguments)
    assert result.code == 2
    assert said in result.error


# --- a tool that is being made ----------------------------------------------------------------


def _make(run: Run, name: str, code: str = "") -> Path:
    folder = Path(run("tools", "new", name).out.strip())
    give_time(folder)
    if code:
        (folder / "execute.py").write_text(code)
    return folder


def give_time(folder: Path) -> None:
    """Take the time limit out of a new tool's configuration: the call's own is further off."""
    config = folder / "config.json"
    left = json.loads(config.read_text())
    del left["timeout"]
    config.write_text(json.dumps(left))


def _call(run: Run, name: str, *options: str) -> Result:
    return run("tools", "call", name, '{"text": "a b"}', "--tools", name, *options)


def test_whoever_makes_a_tool_sees_what_it_printed_and_its_traceback(run: Run) -> None:
    code = "def execute(arguments):\n    print('half \\x1b[2J way')\n    return {'x': 1 // 0}\n"
    _make(run, "counter", code)
    failed = _call(run, "counter")
    assert failed.code == 1 and "\x1b" not in failed.err
    said = failed.err.splitlines()
    assert "| half \\u001b[2J way" in said and "| Traceback (most recent call last):" in said
    assert any(line.endswith('execute.py", line 3, in execute') for line in said)
    assert "Traceback" in run("tools", "show", "counter").err
    # What a model is told of it is what it is told of any tool.
    (message,) = [line for line in said if line.startswith("mlx-tools: error: ")]
    assert "ZeroDivisionError" in message and "Traceback" not in message


def test_no_secret_stays_in_what_a_tool_printed(run: Run, home: Path) -> None:
    key = "ghp_" + "a1B2" * 9
    _make(run, "counter", f"def execute(arguments):\n    print('{key}')\n    return {{}}\n")
    assert "[redacted:" in _call(run, "counter").err
    assert key not in run("tools", "show", "counter").err
    kept = list((home / "data").rglob("*.log"))
    assert kept and all(key not in one.read_text() for one in kept)


def test_a_folder_of_the_older_layout_is_added_and_called(run: Run, home: Path) -> None:
    whole = {"mode": "ro", "whitelist": ["docs/**/*.md"], "requires_approval": False}
    code = "def execute(arguments):\n    return {'text': open(arguments['path']).read()}\n"
    parameters = {"properties": {"path": {"type": "string"}}}
    for name in ("read_docs", "file_access"):
        folder = make_folder(home / "old", name, code, parameters)
        config = {"name": name, "type": "llm_invokable", "directory": name, "metadata": whole}
        (folder / "config.json").write_text(json.dumps(config))
    added = run("tools", "add", str(home / "old" / "read_docs"), "--yes")
    assert added.code == 0 and "paths that it may be given: docs/**/*.md (in path)" in added.err
    Path("docs").mkdir()
    Path("docs/a.md").write_text("read me")
    Path("b.md").write_text("not me")
    call = ("tools", "call", "read_docs", "--tools", "read_docs")
    assert run(*call, '{"path": "docs/a.md"}').code == EXIT_PAUSED  # it may do more than read
    call += ("--approve", "always")
    assert run(*call, '{"path": "docs/a.md"}').json == {"text": "read me"}
    refused = run(*call, '{"path": "b.md"}')
    assert refused.code == 1 and "not in the tool's whitelist" in refused.err
    for _ in range(2):  # that name is a built-in tool's by now
        taken = run("tools", "add", str(home / "old" / "file_access"), "--yes")
        assert taken.code == 0 and "--root DIR:ro:docs/**/*.md" in taken.err
        assert "file_access is built in: yours is called file_access_folder" in taken.err
    call = ("tools", "call", "file_access_folder", "--tools", "file_access_folder")
    call += ("--approve", "always")
    assert run(*call, '{"path": "docs/a.md"}').json == {"text": "read me"}
    assert run(*call, '{"path": "b.md"}').code == 1


def test_a_tool_that_was_added_is_no_longer_the_one_that_is_made(run: Run, home: Path) -> None:
    folder = _make(run, "counter")
    assert run("tools", "add", "counter", "--yes").code == 0
    (folder / "execute.py").write_text("def execute(arguments):\n    return {'now': 1}\n")
    assert json.loads(_call(run, "counter").out)["words"] == 2
    assert "printed" not in run("tools", "show", "counter").err


def test_a_tool_is_not_run_where_it_is_made_if_tools_may_write_there(run: Run, home: Path) -> None:
    folder = _make(run, "counter")
    for root in (home / "here", folder, folder / "sub"):
        root.mkdir(exist_ok=True)
        refused = _call(run, "counter", "--root", f"{root}:rw")
        assert refused.code == 2 and "the folder in which it is made" in refused.error
    assert _call(run, "counter", "--root", str(home / "here")).code == 0


def test_a_tool_that_is_made_is_forgotten_and_its_folder_stays(run: Run) -> None:
    folder = _make(run, "counter")
    gone = run("tools", "remove", "counter")
    assert gone.code == 0 and "its folder stays" in gone.error
    assert (folder / "execute.py").exists() and "counter" not in rows(run)
    assert _call(run, "counter").code == 2
