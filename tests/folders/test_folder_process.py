"""Calls of a folder's tool: what comes back, and that nothing is left of the process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlx_tools.plugins.folders import load_tool
from mlx_tools.policy import Policy
from mlx_tools.tools import Progress, ToolContext, ToolResult, execute
from tests.examples import FEW
from tests.folders.tool_folders import make_folder
from tests.processes import is_alive
from tests.waiting import HANG, until, wait_until

LEFT = """
import os, subprocess, sys, time
def keep(name):
    with open(name, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
def children(folder):
    if os.fork() == 0:
        keep(folder + "/forked")
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            keep(folder + "/daemon")
        os._exit(0)
    for name in ("forked", "daemon"):
        while not (os.path.exists(folder + "/" + name) and open(folder + "/" + name).read()):
            time.sleep(0.01)
"""


def call(folder: Path, arguments: dict[str, Any] | None = None, **more: Any) -> ToolResult:
    seconds = more.pop("timeout", HANG)
    context = ToolContext(**more)
    return asyncio.run(execute(load_tool(folder), arguments or {}, context, timeout=seconds))


def fault(result: ToolResult) -> tuple[str, str]:
    assert result.error is not None
    return result.error.code, result.error.message


def told(path: Path) -> bool:
    """Return True if a process has written its number: the file is empty a moment before."""
    return path.exists() and path.read_text() != ""


def gone(path: Path) -> bool:
    """Return True if a file's process is gone, or was killed and not yet taken
    leave of."""
    return not is_alive(int(path.read_text()))


# --- what comes back ----------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)


@example([{"text": "é\u2028\x00" * 200_000}])
@FEW
@given(st.lists(st.dictionaries(st.text(), JSON_VALUES, max_size=4), min_size=1, max_size=4))
def test_any_arguments_reach_the_tool_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, many: list[dict[str, Any]]
) -> None:
    folder = make_folder(tmp_path_factory.mktemp("tools"), max_output_bytes=10_000_000)
    result = call(folder, {"many": many})
    assert result.content is not None
    assert json.loads(result.content) == {"got": {"many": many}}


PRINTS = """
import os, sys
def execute(arguments):
    print('{"result": {"x": 1}}')
    print('{"ended": 0}', file=sys.stderr)
    os.write(1, b"\\xff\\n")
    os.system("echo more")
    return {"n": 1}
"""
FORKS = "import os\ndef execute(a):\n os.fork()\n os.fork()\n return {'n': 1}"
THREADS = """
import threading, time
def execute(arguments):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return {"n": 1}
"""


@pytest.mark.parametrize("code", [PRINTS, FORKS, THREADS], ids=["prints", "forks", "threads"])
def test_a_result_is_told_once_whatever_else_goes_on(tmp_path: Path, code: str) -> None:
    assert call(make_folder(tmp_path, code=code)).content == '{"n":1}'


def test_an_asynchronous_execute_and_other_files_of_the_folder_work(tmp_path: Path) -> None:
    code = """
import asyncio
from dataclasses import dataclass
from helper import number
@dataclass
class Pair:
    one: int
async def execute(arguments):
    await asyncio.sleep(0)
    return {"number": number, "words": open("words.txt").read(), "pair": Pair(1).one}
"""
    folder = make_folder(tmp_path, code=code)
    (folder / "helper.py").write_text("number = 7\n")
    (folder / "words.txt").write_text("some")
    assert call(folder).content == '{"number":7,"words":"some","pair":1}'
    assert sorted(path.name for path in folder.iterdir()) == [
        *("config.json", "execute.py", "helper.py", "tool_definition.json", "words.txt")
    ]


def test_a_compiled_file_that_was_put_beside_a_source_is_not_run(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, code="import helper\ndef execute(a): return {'n': helper.n}")
    (folder / "helper.py").write_text("n = 666\n")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(folder)], check=True)
    stamp = (folder / "helper.py").stat()
    (folder / "helper.py").write_text("n = 1  #\n"[:8])
    os.utime(folder / "helper.py", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert (folder / "helper.py").stat().st_size == stamp.st_size
    assert call(folder).content == '{"n":1}'


@pytest.mark.heavy
def test_progress_is_reported_also_by_a_function_that_is_wrapped(tmp_path: Path) -> None:
    code = """
import time
from functools import wraps
def tried(function):
    @wraps(function)
    def wrapper(*values, **names):
        return function(*values, **names)
    return wrapper
def silent(function):
    @wraps(function)
    def wrapper(arguments):
        return function(arguments, progress=lambda *words: None)
    return wrapper
@tried
def execute(arguments, *, progress):
    progress("begun", float("nan"))
    time.sleep(0.1)
    progress("half", 7)
    for number in range(20_000):
        progress(str(number))
    return {}
"""
    seen: list[Progress] = []
    assert call(make_folder(tmp_path, code=code), report=seen.append).error is None
    assert seen[:3] == [Progress("begun", None), Progress("half", 1.0), Progress("0", None)]
    assert seen[-1] == Progress("19999", None)
    assert len(seen) < 1000
    silent = make_folder(tmp_path, "silent", code=code.replace("@tried", "@silent"))
    seen.clear()
    assert call(silent, report=seen.append).error is None
    assert seen == []


def test_the_environment_is_what_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("SECRET", "no")
    monkeypatch.setenv("PYTHONSTARTUP", "no")
    code = "import os\ndef execute(a): return dict(os.environ)"
    folder = make_folder(tmp_path, code=code, environment=["WANTED", "UNSET"])
    seen = json.loads(call(folder).content or "")
    assert seen["WANTED"] == "yes"
    assert set(seen) <= {"WANTED", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ"}


def test_it_is_isolated_and_has_no_input(tmp_path: Path) -> None:
    code = """
import sys
def execute(arguments):
    return {"isolated": sys.flags.isolated, "input": sys.stdin.read(),
            "main": "mlx_tools" in sys.modules}
"""
    content = call(make_folder(tmp_path, code=code)).content
    assert json.loads(content or "") == {"isolated": 1, "input": "", "main": False}


# --- what goes wrong ----------------------------------------------------------------------------

CRASH = "import ctypes\ndef execute(a): ctypes.string_at(0)"
DEEP = "def execute(a):\n x = []\n for _ in range(100_000): x = [x]\n return {'x': x}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def execute(a): return [1]", "execute returned a list, and must return a dict"),
        ("def execute(a): return None", "execute returned None, and must return a dict"),
        ("def execute(a): return 7", "execute returned an int, and must"),
        ("def execute(a): return {'x': float('nan')}", "cannot be written as JSON: Out of range"),
        ("def execute(a): return {'x': {1}}", "cannot be written as JSON: Object of type set"),
        ("def execute(a): return {(1, 2): 3}", "cannot be written as JSON: keys must be"),
        ("def execute(a): return {'x': 10**5000}", "cannot be written as JSON: Exceeds the limit"),
        (DEEP, "cannot be written as JSON: maximum recursion"),
        ("def execute(a):\n a['a'] = a\n return a", "cannot be written as JSON: Circular"),
        ("import sys\ndef execute(a): sys.exit(3)", "it called sys.exit(3) and returned nothing"),
        ("import os\ndef execute(a): os._exit(4)", "ended with the exit code 4 and without"),
        (CRASH, "its process crashed (SIGSEGV)"),
        ("import os\ndef execute(a): os.kill(os.getpid(), 9)", "crashed (SIGKILL)"),
        ("def execute(a):\n\n raise ValueError('no')", "ValueError: no (execute.py, line 3)"),
        ("def execute(a): raise KeyboardInterrupt", "KeyboardInterrupt (execute.py, line 1)"),
        ("class E(Exception):\n def __str__(s): 1/0\ndef execute(a): raise E", "E (execute.py"),
        ("raise OSError('at import')\ndef execute(a): ...", "OSError: at import (execute.py"),
        ("execute = 7", "TypeError: execute.py has no function execute"),
        ("def execute(): return {}", "TypeError: execute() takes 0 positional arguments"),
        ("def execute(a): return {'success': False, 'error': 'no luck'}", "no luck"),
        ("def execute(a): return {'success': False}", "the tool says that it failed"),
        ("def execute(a): return {'success': False, 'error': {'n': 1}}", '{"error": {"n": 1}}'),
        ("def execute(a): return {'success': False, 'message': 'why'}", "why"),
        ("def execute(a): return {'success': False, 'error': '', 'message': 'why'}", "why"),
        (
            "def execute(a): return {'success': False, 'error': 'no row 3', "
            "'error_type': 'NotFound', 'details': {'rows': [1, 2]}}",
            'NotFound: no row 3 (details: {"rows": [1, 2]})',
        ),
        (
            "def execute(a): return {'success': False, 'error': 'x' * 900, 'details': 'locked'}",
            "… (details: locked)",
        ),
        ("import os\ndef execute(a): os.closerange(3, 9999); return {}", "without a result"),
    ],
)
def test_whatever_goes_wrong_is_said(tmp_path: Path, code: str, said: str) -> None:
    code_, message = fault(call(make_folder(tmp_path, code=code)))
    assert code_ == "tool_error"
    assert said in message
    assert "Traceback" not in message or "it printed" in message


ENDS_LOUDLY = """
import sys
def execute(arguments):
    print("x" * 5000, "the end", file=sys.stderr)
    raise SystemExit
"""
ENDLESS = "def execute(a):\n for number in range(1_000_000): print(number)\n return {}"


def test_what_it_prints_stands_in_the_error_and_has_a_size(tmp_path: Path) -> None:
    code, message = fault(call(make_folder(tmp_path, code=ENDS_LOUDLY)))
    assert code == "tool_error" and len(message) <= 500
    assert message.startswith("it called sys.exit(None)") and message.endswith("the end")
    code, message = fault(call(make_folder(tmp_path, "endless", ENDLESS)))
    assert code == "payload_too_large"
    assert message.startswith("it printed more than 1000000 bytes, and was ended")


@pytest.mark.parametrize("size", [80, 100_000])
def test_a_result_has_a_size(tmp_path: Path, size: int) -> None:
    code = f"def execute(a): return {{'x': 'y' * {size}}}"
    assert call(make_folder(tmp_path, "good", code, max_output_bytes=size + 20)).error is None
    told = fault(call(make_folder(tmp_path, "bad", code, max_output_bytes=size)))
    assert told == ("payload_too_large", f"its result has more than {size} bytes")


def test_what_only_reads_is_tried_once_more(tmp_path: Path) -> None:
    code = f"""
import os
def execute(arguments):
    here = {str(tmp_path / "tried")!r}
    if not os.path.exists(here):
        open(here, "w").close()
        raise OSError("for once")
    return {{}}
"""
    assert call(make_folder(tmp_path, "reads", code, retry="read_only")).error is None
    (tmp_path / "tried").unlink()
    writes = make_folder(tmp_path, "writes", code, retry="read_only", effects=["write"])
    assert fault(call(writes))[1].startswith("OSError: for once")


def test_an_approval_is_of_the_files_that_were_there(tmp_path: Path) -> None:
    tool = load_tool(make_folder(tmp_path))
    shown, other = (
        asyncio.run(execute(tool, {}, ToolContext(expected=state), timeout=HANG))
        for state in (tool.preview({}).state, "other")
    )
    assert shown.error is None
    assert fault(other) == ("disabled", "its files are no longer those that were approved")


def test_local_only_leaves_it_no_network(tmp_path: Path) -> None:
    code = """
import socket
def execute(arguments):
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        there.listen()
        socket.create_connection(there.getsockname(), 5).close()
    return {}
"""
    folder = make_folder(tmp_path, code=code)
    assert call(folder).error is None
    code_, _ = fault(call(folder, policy=Policy(allow=["*"], local_only=True)))
    assert code_ in ("tool_error", "disabled")


# --- nothing is left ----------------------------------------------------------------------------

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")


@pytest.mark.slow
@linux
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("return {}", None),
        ("time.sleep(600)", "timeout"),
        ("raise ValueError", "tool_error"),
        ("os._exit(1)", "tool_error"),
        ("os.kill(os.getpid(), 11)", "tool_error"),
        ("print('x' * 2_000_000, flush=True); time.sleep(600)", "payload_too_large"),
    ],
)
def test_however_it_ends_nothing_it_started_is_left(
    tmp_path: Path, end: str, code: str | None
) -> None:
    text = f"{LEFT}\ndef execute(arguments):\n    children({str(tmp_path)!r})\n    {end}\n"
    result = call(make_folder(tmp_path, code=text), timeout=4 if code == "timeout" else 60)
    assert (result.error.code if result.error else None) == code
    assert gone(tmp_path / "forked")
    assert gone(tmp_path / "daemon")


@linux
def test_a_call_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    text = f"{LEFT}\ndef execute(arguments):\n    children({str(tmp_path)!r})\n    keep('a')\n"
    tool = load_tool(make_folder(tmp_path, code=text))

    async def cancelled() -> None:
        task = asyncio.create_task(execute(tool, {}, timeout=600))
        await until(lambda: all(told(tmp_path / name) for name in ("daemon", "forked")))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    wait_until(lambda: gone(tmp_path / "daemon") and gone(tmp_path / "forked"))


@linux
def test_nothing_outlives_a_caller_that_is_killed(tmp_path: Path) -> None:
    text = f"{LEFT}\ndef execute(arguments):\n    children({str(tmp_path)!r})\n    keep('a')\n"
    folder = make_folder(tmp_path, code=text)
    (tmp_path / "tmp").mkdir()
    program = (
        "import asyncio; from mlx_tools.plugins.folders import load_tool\n"
        "from mlx_tools.tools import execute\n"
        f"asyncio.run(execute(load_tool({str(folder)!r}), {{}}, timeout=600))"
    )
    environ = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    caller = subprocess.Popen([sys.executable, "-c", program], env=environ)
    places = [tmp_path / "forked", tmp_path / "daemon"]

    def begun() -> bool:
        own = list((tmp_path / "tmp").glob("*/echo/a"))
        return len(own) == 1 and all(map(told, places + own))

    try:
        wait_until(begun)
        (itself,) = (tmp_path / "tmp").glob("*/echo/a")
        places.append(itself.rename(tmp_path / "a"))
    finally:
        caller.send_signal(signal.SIGKILL)
        caller.wait()
    wait_until(lambda: all(gone(path) for path in places) and not any((tmp_path / "tmp").iterdir()))
    assert len(places) == 3  # what it started, and itself
