"""The frame: help, version, completion, errors as one line, exit codes."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import cli
from mlx_tools.cli import root
from mlx_tools.cli.command_table import list_commands
from mlx_tools.errors import BackendUnreachable, UsageError
from mlx_tools.testing import Completion, ScriptedServer, answer
from tests.tables import table
from tests.waiting import HANG, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = [sys.executable, "-m", "mlx_tools"]


def test_help_names_every_command(run: Any) -> None:
    result = run("--help")
    assert result.code == 0 and result.err == ""
    for command in list_commands():
        assert f"\n  {command} " in result.out


@pytest.fixture
def cloned(home: Path) -> Path:
    """A working directory in which a file stands for every module there is, and runs nothing."""
    for name in (*sys.stdlib_module_names, "mlx_tools", "typer", "pydantic", "anyio", "httpx"):
        Path(f"{name}.py").write_text(f"import os\nos.write(2, b'{name} ')\nos._exit(9)\n")
    info = Path("evil-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Name: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mlx_tools.tools]\nevil = evil:tools\n")
    Path("evil.py").write_text("import os\nos._exit(9)\n")
    return Path.cwd()


def _listing(*options: str) -> subprocess.CompletedProcess[str]:
    """`tools list`, which loads much, and what installed packages bring."""
    command = [sys.executable, *options, "-m", "mlx_tools", "tools", "list"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.heavy
def test_the_program_as_a_module_imports_nothing_from_the_working_directory(cloned: Path) -> None:
    """But for what Python itself, and the package, have imported before its first line runs."""
    safe = _listing("-P")
    assert (safe.returncode, safe.stderr) == (0, "") and "calculator" in safe.stdout
    early = set()
    while (done := _listing()).returncode == 9:
        early.add(done.stderr.strip())
        (cloned / f"{done.stderr.strip()}.py").unlink()
    assert (done.returncode, done.stderr) == (0, "") and "calculator" in done.stdout
    assert "importlib" in early and len(early) < 20  # else -P need not be told of
    assert not early & {"json", "asyncio", "subprocess", "typer", "pydantic", "anyio", "pathlib"}


def test_help_is_folded_between_words_to_the_columns_of_a_terminal() -> None:
    whole = cli.help_text()
    for columns in (40, 80):
        folded = cli.help_text(columns)
        assert max(map(len, folded.splitlines())) <= columns
        assert folded.split() == whole.split()
        assert folded.count("\n\n") == whole.count("\n\n")
    assert cli.help_text(200) == whole


def test_without_a_command_help_goes_to_standard_error(run: Any) -> None:
    result = run()
    assert result.code == 2 and result.out == "" and "Commands:" in result.err


def test_version(run: Any) -> None:
    assert run("--version").out.startswith("mlx-tools ")


@pytest.mark.parametrize("text", ["confg", "bogus", "config\x1b[31m"])
def test_an_unknown_command_is_one_line_that_suggests(run: Any, text: str) -> None:
    result = run(text)
    assert result.code == 2 and "no such command" in result.error and "\x1b" not in result.err


HEAVY = {"typer", "rich", "pydantic", "httpx", "anyio", "asyncio", "prompt_toolkit"}


def test_help_and_version_load_nothing_heavy() -> None:
    code = (
        "import sys; from mlx_tools.cli import main; main(['--help']); "
        "print(*{n.partition('.')[0] for n in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded.isdisjoint({*HEAVY, "json"})


@pytest.mark.parametrize("line", ["ask --model x --style ", "sessions show "])
def test_a_tab_loads_nothing_heavy(line: str, home: Path) -> None:
    code = (
        "import sys; from mlx_tools.cli import main; main([]); "
        "print(*{n.partition('.')[0] for n in sys.modules})"
    )
    environ = os.environ | {
        "_MLX_TOOLS_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": f"mlx-tools {line}",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    said = done.stdout.splitlines()
    assert said[0] in ("auto", "last") and set(said[-1].split()).isdisjoint(HEAVY)


NOT_FOR_AN_ANSWER = {
    *("rich", "pygments", "prompt_toolkit", "pydantic", "pydantic_core", "jsonschema", "mcp"),
    *("starlette", "uvicorn", "jinja2", "tomlkit", "mlx", "numpy", "tokenizers", "psycopg"),
}
"""Packages that an answer of a server needs no code of: each costs more than the step itself."""


def test_an_answer_through_a_pipe_loads_no_package_that_it_does_not_need(home: Path) -> None:
    code = (
        "import sys; from mlx_tools.cli import main; main(); "
        "print(*{n.partition('.')[0] for n in sys.modules})"
    )
    with ScriptedServer(answer("Hi.")) as server:
        command = [sys.executable, "-c", code, "ask", "--url", server.url, "Hello?"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = done.stderr.split()  # what else prints goes there
    assert done.stdout == "Hi.\n" and "httpx" in loaded
    assert NOT_FOR_AN_ANSWER.isdisjoint(loaded)


def test_the_completion_script_can_be_shown(home: Path) -> None:
    environ = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [*PROGRAM, "--show-completion", "bash"], env=environ, capture_output=True, text=True
    )
    assert "_MLX_TOOLS_COMPLETE" in done.stdout, done.stderr


# --- failures -----------------------------------------------------------------------------------


def test_an_error_of_ours_is_one_line_with_its_exit_code(run: Any, capsys: Any) -> None:
    def fail() -> None:
        raise BackendUnreachable("no server answers", hint="start one")

    assert root.run_guarded(fail) == 3
    assert capsys.readouterr().err == "mlx-tools: error: no server answers (start one)\n"


def test_what_a_terminal_would_obey_is_spelled(run: Any, capsys: Any) -> None:
    def fail() -> None:
        raise UsageError("a\x1b[2Jb\r\u202ec\n mlx-tools: error: forged")

    root.run_guarded(fail)
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and not set(line) & set("\x1b\r\u202e")


def test_an_internal_error_is_one_line_and_its_traceback_a_private_file(
    home: Path, capsys: Any
) -> None:
    def fail() -> None:
        raise KeyError("oops")

    assert root.run_guarded(fail) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "KeyError" in line
    (crash,) = (home / "state" / "crashes").iterdir()
    assert str(crash) in line and "raise KeyError" in crash.read_text()
    assert stat.S_IMODE(crash.stat().st_mode) == 0o600
    (home / "state").rename(home / "away")
    (home / "state").touch()
    assert root.run_guarded(fail) == 1
    assert "raise KeyError" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(home: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "config", "show"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        error = process.stderr.read()
    assert error == b"" and process.returncode == 1


def test_an_unknown_command_of_a_group_lists_what_there_is(run: Any) -> None:
    result = run("sessions", "remove")
    assert result.code == 2 and "resume?" not in result.error
    assert "no such command 'remove': one of list, show, resume, delete, prune (see:" in result.err


@pytest.mark.parametrize("command", [("config", "show"), ("--help",), ("--version",)])
def test_a_full_disk_behind_standard_output_is_one_line(
    home: Path, command: tuple[str, ...]
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    with full.open("w") as out:
        done = subprocess.run([*PROGRAM, *command], stdout=out, stderr=subprocess.PIPE)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    assert b"free some space" in done.stderr


@pytest.mark.parametrize("command", [("config", "show"), ("--help",), ("--version",), ("ask",)])
def test_a_closed_standard_output_is_one_line(home: Path, command: tuple[str, ...]) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, *command]
    with ScriptedServer(answer("Hello.")) as server:
        asks = ("--url", server.url, "Hello?") if command == ("ask",) else ()
        done = subprocess.run([*closed, *asks], stderr=subprocess.PIPE)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    assert b"is standard output closed?" in done.stderr


def test_a_closed_standard_error_does_not_lose_the_answer(home: Path) -> None:
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *PROGRAM, "--version"]
    done = subprocess.run(closed, stdout=subprocess.PIPE)
    assert done.returncode == 0 and done.stdout.startswith(b"mlx-tools ")


def test_ctrl_c_ends_with_130_and_says_where_the_transcript_is(home: Path) -> None:
    slow = Completion('{"type":"final_answer","content":"' + "x" * 4000, delay=0.2)
    with ScriptedServer(slow) as server:
        process = subprocess.Popen(
            [*PROGRAM, "ask", "--url", server.url, "Hello?"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        wait_until(lambda: server.bodies)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG)
    assert process.returncode == 130 and out == b""
    assert b"transcript" in err and b"Traceback" not in err
    (transcript,) = (home / "state" / "sessions").glob("*/transcript.jsonl")
    assert f"mlx-tools ask --session {transcript.parent.name} goes on" in err.decode()
    assert '"interrupted"' in transcript.read_text()


def test_ctrl_c_within_an_import_ends_with_130(home: Path) -> None:
    Path("begun.py").write_text(
        "import sys; from mlx_tools.cli import root\n"
        "sys.exit(root.run_guarded(lambda: exec('raise KeyboardInterrupt')))\n"
    )
    command = [sys.executable, "-m", "begun"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "mlx-tools: interrupted: by Ctrl-C\n")


GROUPS = [
    *(("tools", "list"), ("kb", "list"), ("schedule", "list"), ("sessions", "list")),
    *(("golden", "run"), ("models", "list"), ("store", "copy"), ("prompts", "list")),
    *(("mcp", "list"), ("config", "show"), ("approvals", "list"), ("eval", "tasks")),
]


@table("group, command", GROUPS)
def test_a_group_without_a_command_says_which_there_are(run: Any, group: str, command: str) -> None:
    result = run(group)
    assert (result.code, result.out) == (2, "")
    assert result.error.startswith("mlx-tools: error: missing command: one of ")
    assert f" {command}" in result.error
    assert result.error.endswith(f"(see: mlx-tools {group} --help)")


def test_a_missing_option_says_which_values_there_are(run: Any) -> None:
    assert "one of openai, anthropic, mcp" in run("tools", "export").error


@pytest.mark.parametrize("command", [("ask",), ("tools", "add"), ("kb",), ("schedule", "run")])
def test_a_flag_is_not_shown_as_if_it_took_a_value(run: Any, command: tuple[str, ...]) -> None:
    shown = run(*command, "--help")
    assert shown.code == 0 and "--help" in shown.out
    assert "bool" not in shown.out


def test_windows_is_told_to_be_unsupported_before_anything_is_imported_that_it_lacks() -> None:
    windows = "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None; from mlx_tools"

    def last(program: str, lines: int, code: int) -> str:
        command = [sys.executable, "-c", f"{windows}{program}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
        assert done.returncode == code
        return "".join(done.stderr.splitlines()[-lines:])

    assert "WSL" in last(".cli import main; sys.exit(main(['ask', 'Hi?']))", 2, 2)
    for used in (" import Controller", " import TranscriptStore", ".toolbox import Fetcher"):
        assert last(used, 1, 1).startswith("ImportError: Windows is not supported (in WSL it works")
