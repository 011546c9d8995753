"""``run_command``: what it runs, how it ends it, and what a program finds in its sandbox."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_tools import builtin_tools
from mlx_tools.errors import UsageError
from mlx_tools.plugins.command.run_command import run_command
from mlx_tools.plugins.command.sandbox import NoSandbox, Sandbox, SandboxCommand, run
from mlx_tools.policy import Policy, decide
from mlx_tools.store.roots import Root, RootName
from mlx_tools.tools import Tool, ToolContext, ToolError, ToolLike, execute
from mlx_tools.tools.context import CONTEXT
from tests.processes import processes
from tests.tables import table
from tests.tools.file_calls import execute_call, write_files
from tests.tools.sandboxed import (
    make_tool,
    needs_bwrap,
    needs_sandbox,
    read_output,
    read_refusal,
    run_program,
)
from tests.waiting import EXPIRES, HANG, until, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {"a.py": "one\n", "b.py": "two\ntwo\n", "sub/c.py": "three\n"}
    return write_files(tmp_path / "root", texts)


@pytest.fixture
def free(folder: Path) -> ToolLike:
    """With an interpreter, which can try anything."""
    return make_tool(folder, commands=["python3", "sh", "env"])


def python(callee: ToolLike, code: str, *, timeout: float = HANG) -> str:
    result = run_program(callee, "python3", "-c", code, timeout=timeout)
    return result.content if result.content is not None else str(result.error)


@needs_sandbox
def test_a_consent_for_the_session_is_bound_to_the_program(free: ToolLike) -> None:
    arguments = {"program": "python3", "arguments": ["-V"]}
    assert free.spec.consent_binding(arguments) == {"program": "python3"}


# --- without a sandbox, or a root ---


def no_sandbox() -> Sandbox:
    raise NoSandbox("there is no sandbox: the tests took it away")


def test_without_a_sandbox_or_a_root_nothing_runs_and_the_reason_is_told(folder: Path) -> None:
    root = Root(RootName(str(folder)))
    callee = run_command([root], find=no_sandbox)
    assert read_refusal(callee, "cat", "a.py") == (
        "disabled",
        "there is no sandbox: the tests took it away",
    )
    assert "--root" in builtin_tools().disabled["run_command"]
    assert "whole system" in builtin_tools(["/"]).disabled["run_command"]


@pytest.mark.parametrize("name", ["", "/bin/sh", "../sh", "-x", ".sh", "a\0b", "a\nb"])
def test_a_further_program_is_named_by_its_name_alone(name: str) -> None:
    with pytest.raises(UsageError, match=r"tools\.commands"):
        builtin_tools(commands=[name])


def test_every_call_is_asked_about_and_a_dry_run_runs_none() -> None:
    spec = builtin_tools().all_specs()["run_command"]
    call = {"program": "ls", "arguments": []}
    assert spec.possible_effects == {"read", "write", "execute"}
    allowed = Policy(allow=["run_command"])
    assert decide(allowed, spec, spec.name, call, runs="freely").decision == "ask"
    dry = Policy(allow=["run_command"], dry_run=True)
    assert decide(dry, spec, spec.name, call, runs="freely").decision == "deny"
    assert decide(Policy(preset="readonly_basic"), spec, spec.name, call, runs="freely").rule


# --- what it runs ---


@needs_sandbox
def test_patterns_are_expanded_without_a_shell_in_every_root(folder: Path, tmp_path: Path) -> None:
    callee = make_tool(folder)
    assert read_output(callee, "wc", "-l", "*.py").split() == [
        "1",
        "a.py",
        "2",
        "b.py",
        "3",
        "total",
    ]
    assert read_output(callee, "ls", "**/*.py").split() == ["a.py", "b.py", "sub/c.py"]
    code, message = read_refusal(callee, "cat", "*.txt")
    assert (code, "no file matches" in message) == ("tool_error", True)
    callee = make_tool(write_files(folder, {"-n": "dash\n", "--version": "two dashes\n"}))
    assert read_output(callee, "cat", "--", "-n") == "dash"
    assert read_output(callee, "head", "-n1", "--", "--v*").endswith("two dashes")
    assert "two dashes\ndash\n" in str(run_program(callee, "cat", "*").content)
    other = write_files(tmp_path / "other", {"d.py": "four\n"})
    callee = make_tool(folder, other)
    assert read_output(callee, "cat", "a.py", "d.py", f"{other}/d.py") == "one\nfour\nfour"


@needs_bwrap
def test_joined_letters_of_options_are_read_as_gnus_programs_read_them(folder: Path) -> None:
    callee = make_tool(write_files(folder, {"--version": "two dashes\n"}))
    assert read_output(callee, "head", "-qn1", "-v", "--", "--v*").endswith("two dashes")


@needs_sandbox
def test_what_is_printed_is_told_after_the_exit_code_errors_apart_and_bytes_in_words(
    folder: Path, free: ToolLike
) -> None:
    result = run_program(make_tool(folder), "cat", "a.py", "missing.py")
    assert result.content is not None
    first, out, mark, err = result.content.split("\n")
    assert (first, out, mark) == ("[exit code 1]", "one", "[standard error]")
    assert "missing.py" in err
    result = run_program(make_tool(folder), "grep", "nothing", "a.py")
    assert result.content == "[exit code 1]\n[It printed nothing.]"
    assert "[4 bytes that are no text]" in python(
        free, "import os; os.write(1, bytes([0, 1, 2, 255]))"
    )
    told = python(free, "import os; os.write(1, b'caf\\xe9 \\xf0\\x9f')")
    assert "caf\ufffd \ufffd" in told


@needs_sandbox
def test_a_program_is_the_systems_or_not_installed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, message = read_refusal(make_tool(folder, commands=["no-such-program"]), "no-such-program")
    assert code == "tool_error"
    assert "no-such-program is not installed" in message
    for place in (tmp_path / "bin", folder):
        place.mkdir(exist_ok=True)
        (place / "cat").write_text("#!/bin/sh\necho shadowed\n")
        (place / "cat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{folder}:{os.environ['PATH']}")
    assert read_output(make_tool(folder), "cat", "a.py") == "one"


@needs_sandbox
def test_the_environment_holds_nothing_of_ours(
    folder: Path, free: ToolLike, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "BASH_ENV", "ENV", "PYTHONPATH", "GIT_DIR"):
        monkeypatch.setenv(name, str(folder / "no-such-file"))
    monkeypatch.setenv("API_KEY", "a-key-of-ours")
    names = {line.partition("=")[0] for line in read_output(free, "env").splitlines()}
    set_by_the_system = {"LC_CTYPE", "__CF_USER_TEXT_ENCODING"} if sys.platform == "darwin" else ()
    assert names <= {"PATH", "LC_ALL", "HOME", "TERM", "TMPDIR", "PWD", *set_by_the_system}


@needs_sandbox
def test_preview_shows_the_words_that_run_and_the_call_keeps_to_them(folder: Path) -> None:
    callee = make_tool(folder)
    assert isinstance(callee, Tool)
    call = {"program": "wc", "arguments": ["-l", "*.py"]}
    preview = callee.preview(call)
    assert preview is not None
    assert preview.text == "/usr/bin/wc -l -- a.py b.py"
    approved = ToolContext(expected=preview.state)
    assert execute_call(callee, approved, **call).error is None
    (folder / "d.py").write_text("")
    assert "have changed since the approval" in str(execute_call(callee, approved, **call).error)


# --- what a program finds there ---


@needs_sandbox
def test_nothing_outside_the_roots_can_be_read(
    folder: Path, tmp_path: Path, free: ToolLike
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("told-to-nobody")
    (folder / "link").symlink_to(secret)
    assert read_refusal(free, "cat", str(secret))[0] == "not_allowed"
    assert "told-to-nobody" not in python(free, f"print(open({str(secret)!r}).read())")
    assert "told-to-nobody" not in str(run_program(free, "cat", "link"))


@needs_bwrap
def test_what_is_outside_the_roots_is_not_there(
    folder: Path, tmp_path: Path, free: ToolLike
) -> None:
    (tmp_path / "secret.txt").write_text("told-to-nobody")
    (folder / "link").symlink_to(tmp_path / "secret.txt")
    assert "No such file" in str(run_program(free, "cat", "link").content)
    listed = python(free, "import os; print(sorted(os.listdir('/')), os.listdir('/tmp'))")
    assert not {"home", "root", "var", "run", "srv"} & set(re.findall(r"'(\w+)'", listed))


@needs_sandbox
def test_private_names_are_hidden_below_a_root(folder: Path, free: ToolLike) -> None:
    write_files(folder, dict.fromkeys((".env", "sub/.ssh/id"), "a-private-token"))
    (folder / "alias").symlink_to(".env")
    for result in (
        run_program(free, "grep", "-r", "private-token"),
        run_program(free, "cat", "alias"),
        run_program(free, "sh", "-c", "cat .env sub/.ssh/id; grep -r token ."),
    ):
        assert "a-private-token" not in str(result)


@needs_sandbox
def test_a_root_is_written_to_only_where_it_is_rw_and_the_program_was_added(folder: Path) -> None:
    code = "open('made', 'w').write('x')"
    assert "[exit code 0]" not in python(make_tool(folder, commands=["python3"]), code)
    assert not (folder / "made").exists()
    writing = make_tool(f"{folder}:rw", commands=["python3"])
    assert "[exit code 0]" in python(writing, code)
    assert (folder / "made").read_text() == "x"


@needs_sandbox
def test_a_repository_is_not_written_to_even_below_a_rw_root(folder: Path) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    writing = make_tool(f"{folder}:rw", commands=["sh"])
    for command in (
        "echo x > .git/hooks/post-commit",
        "echo x >> .git/config",
        "mv .git old",
        "rm -rf .git",
        "mv .git/config .git/c",
    ):
        assert "[exit code 0]" not in str(run_program(writing, "sh", "-c", command).content), (
            command
        )
    assert (folder / ".git" / "config").read_text().startswith("[core]")
    assert not (folder / ".git" / "hooks" / "post-commit").exists()


@needs_sandbox
def test_no_server_of_ours_is_reached(free: ToolLike) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('in')"
        assert "\nin" not in python(free, code)


@needs_bwrap
def test_there_is_no_network(free: ToolLike) -> None:
    ours = Path("/proc/self/ns/net").stat().st_ino
    code = (
        "import socket, os\n"
        f"print(os.stat('/proc/self/ns/net').st_ino == {ours})\n"
        "try: socket.create_connection(('192.0.2.1', 9), 2)\n"
        "except OSError as e: print(e.strerror)\n"
    )
    told = python(free, code)
    assert "Network is unreachable" in told and "True" not in told


@needs_bwrap
def test_a_program_sees_no_file_process_or_namespace_of_ours(folder: Path, free: ToolLike) -> None:
    with (folder / "a.py").open() as ours:
        os.set_inheritable(ours.fileno(), True)
        code = "import os, sys; print(repr(sys.stdin.read()), sorted(os.listdir('/proc/self/fd')))"
        told = python(free, code)
    assert "'' ['0', '1', '2', '3']" in told
    code = "import os; print([p for p in os.listdir('/proc') if p.isdecimal()])"
    assert len(python(free, code).split(",")) < 5
    assert "[exit code 0]" not in str(run_program(free, "sh", "-c", "unshare -Ur true").content)


# --- how it ends it ---


@needs_sandbox
@pytest.mark.parametrize(
    "code",
    [
        "while True: print('y' * 10_000)",
        "import sys\nwhile True: sys.stderr.write('y' * 10_000)",
        *("print('y' * 50_000_000)", "print('y' * 200_500)"),
    ],
    ids=["endless", "errors", "one line", "just past the cap"],
)
def test_a_flood_is_cut_while_it_runs(free: ToolLike, code: str) -> None:
    told = python(free, code)
    assert told.startswith("[The output was cut after 200000 bytes")
    assert len(told) < 210_000
    whole = python(free, "import sys; sys.stdout.write('y' * 200_000)")
    assert whole.startswith("[exit code 0]") and whole.count("y") == 200_000


def alive(mark: str) -> bool:
    return any(mark in process.command for process in processes())


def ends(mark: str) -> bool:
    return bool(wait_until(lambda: not alive(mark)))


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(600)",
        "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15, 1)]\n"
        "while True: time.sleep(1)",
        "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\ntime.sleep(600)",
        "import os, time\nos.fork() or os.setsid() or os.fork() or os.setsid()\ntime.sleep(600)",
        "import os, time\nos.close(1); os.close(2); time.sleep(600)",
        "import os, time\nif os.fork() == 0:\n os.setpgid(0, 0)\n time.sleep(600)\nprint('done')",
    ],
    ids=["sleeps", "ignores", "escapes", "double", "silent", "leaves-one-behind"],
)
def test_nothing_is_left_running(free: ToolLike, code: str, tmp_path: Path) -> None:
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    run_program(free, "python3", "-c", f"# {mark}\n{code}", timeout=5)
    assert ends(mark)


@needs_sandbox
def test_too_long_is_a_timeout(free: ToolLike) -> None:
    result = run_program(free, "sh", "-c", "while :; do :; done", timeout=EXPIRES)
    assert result.error is not None and result.error.code == "timeout"


LEAVES_ITS_GROUP = """
import os, pathlib, sys, time
if os.fork() == 0:
    os.setsid()
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(600)
os.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="bwrap is Linux's")
def test_the_child_of_a_sandbox_that_is_ended_in_its_first_moments_ends_too(tmp_path: Path) -> None:
    """bwrap's child has left its group before it asks to end with its parent."""
    begun = tmp_path / f"begun-{os.getpid()}"
    status, writing = os.pipe()
    command = SandboxCommand((sys.executable, "-c", LEAVES_ITS_GROUP, str(begun)), status=status)
    assert run(command, {}, HANG, begun.exists).ending == "cancelled"
    assert ends(str(begun))
    os.close(status)
    os.close(writing)


@needs_sandbox
def test_a_call_that_nobody_waits_for_is_ended(free: ToolLike, tmp_path: Path) -> None:
    mark = f"mark-{tmp_path.name}-{os.getpid()}"

    async def run() -> None:
        call = {"program": "python3", "arguments": ["-c", f"# {mark}\nimport time\ntime.sleep(99)"]}
        running = asyncio.create_task(execute(free, call, timeout=100))
        await until(lambda: alive(mark))
        running.cancel()

    asyncio.run(run())
    assert ends(mark)


@needs_sandbox
@table(
    ("code", "shown"),
    [
        ("echo one; echo two", "it printed:\none\ntwo"),
        ("printf 'no end'; echo fault >&2", "it printed:\nno end\n[standard error]\nfault"),
        ("seq 10000; printf end", "it printed:\n[…]\n"),
        ("printf 'a\\0b'", "it printed:\n[3 bytes that are no text]"),
        ("true", "was cancelled"),
    ],
)
def test_the_error_of_a_program_that_was_ended_shows_the_end_of_its_output(
    folder: Path, code: str, shown: str
) -> None:
    begun = folder / "begun"
    begun.unlink(missing_ok=True)

    class Cancelled(ToolContext):
        cancelled = property(lambda self: begun.exists(), lambda self, value: None)

    callee = make_tool(f"{folder}:rw", commands=["sh"])
    assert isinstance(callee, Tool)
    token = CONTEXT.set(Cancelled(timeout=HANG))
    try:
        with pytest.raises(ToolError) as caught:
            callee.blocking(
                {"program": "sh", "arguments": ["-c", f"{code}; touch begun; sleep 600"]}
            )
    finally:
        CONTEXT.reset(token)
    message = str(caught.value)
    assert shown in message and len(message) <= caught.value.max_chars
    assert not code.startswith("seq") or message.endswith("\n9999\n10000\nend")


@needs_bwrap
def test_a_program_that_multiplies_is_ended(free: ToolLike) -> None:
    # A bomb that stops by itself at some number: should the guard fail, the machine lives.
    code = """import os, time
for _ in range(1500):
    try:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
    except OSError:
        break
time.sleep(30)"""
    result = run_program(free, "python3", "-c", code, timeout=20)
    assert result.error is not None
    assert result.error.code in ("tool_error", "timeout")


@needs_bwrap
def test_memory_and_file_sizes_have_a_limit(free: ToolLike) -> None:
    assert "MemoryError" in python(free, "x = bytearray(6 << 30)")
    assert "[exit code 0]" not in python(
        free, "f = open('/tmp/x', 'wb')\nfor _ in range(400): f.write(b'x' * (1 << 20))"
    )


@needs_sandbox
def test_a_root_that_was_replaced_is_not_seen(folder: Path, tmp_path: Path) -> None:
    callee = make_tool(folder)
    folder.rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    assert read_refusal(callee, "ls")[0] == "not_allowed"
