"""Standard output holds what a command answers, whatever a package's tools print."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOISY = """
import ctypes, os, subprocess, sys, threading
from mlx_tools.tools import tool

print("imported")
BEFORE = sys.stdout

def effects(arguments):
    print("effects")
    return {"read"}

@tool(effects=effects)
def nod() -> str:
    "Nods."
    print("nod")
    BEFORE.write("kept\\n")
    thread = threading.Thread(target=print, args=("thread",))
    thread.start()
    thread.join()
    return "nods"

@tool(effects={"read"})
async def wave() -> str:
    "Waves."
    print("wave")
    return "waves"

@tool(effects={"read"})
def knock() -> str:
    "Knocks."
    os.write(1, b"descriptor\\n")
    sys.__stdout__.write("first stream\\n")
    sys.__stdout__.flush()
    subprocess.run(["echo", "program"])
    ctypes.CDLL(None).puts(b"library")
    return "knocks"

tools = [nod, wave, knock]
"""


@pytest.fixture
def noisy(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose tools print, to be found by whoever looks in the folder."""
    info = home / "noisy_tools-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mlx_tools.tools]\nall = noisy_tools:tools\n")
    (home / "noisy_tools.py").write_text(NOISY)
    monkeypatch.syspath_prepend(home)
    monkeypatch.delitem(sys.modules, "noisy_tools", raising=False)
    return home


def test_what_a_package_prints_as_it_is_imported_is_none_of_the_output(
    run: Any, noisy: Path
) -> None:
    listed = run("tools", "list", "--json")
    assert {"nod", "wave"} <= {row["name"] for row in listed.lines}
    assert listed.err == "imported\n"


@pytest.mark.parametrize(
    ("name", "output", "printed"),
    [("nod", "nods", {"effects", "nod", "kept", "thread"}), ("wave", "waves", {"wave"})],
)
def test_what_a_tool_prints_is_none_of_the_output(
    run: Any, noisy: Path, name: str, output: str, printed: set[str]
) -> None:
    called = run("tools", "call", name, "{}", "--tools", name, "--json")
    assert json.loads(called.out)["output"] == output
    assert printed <= set(called.err.splitlines())


def test_standard_output_is_a_callers_own_again_after_a_command(run: Any, noisy: Path) -> None:
    before = sys.stdout
    run("tools", "list")
    assert sys.stdout is before


MOVED = """
import os, subprocess, sys
from mlx_tools.cli import output

output.keep_output()
os.write(1, b"descriptor\\n")
subprocess.run(["echo", "program"])
print("print")
output.stdout().write("the answer\\n")
output.stdout().flush()
output.restore_output()
print("own again")
"""


def test_what_is_printed_below_python_is_none_of_the_output() -> None:
    done = subprocess.run([sys.executable, "-c", MOVED], capture_output=True, text=True, check=True)
    assert done.stdout == "the answer\nown again\n"
    assert set(done.stderr.splitlines()) == {"descriptor", "program", "print"}
