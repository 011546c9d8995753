"""No room: a clear error, the old content as it was, and nothing left lying about."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

CALLS = """
import asyncio, json, os, resource, sys
from mlx_tools import builtin_tools
from mlx_tools.tools import execute
from tests.waiting import HANG

files = builtin_tools([sys.argv[1] + ":rw"])

def call(name, **arguments):
    return asyncio.run(execute(files.get(name), arguments, timeout=HANG))

def told(result):
    return None if result.error is None else [result.error.code, result.error.message]

os.chdir(sys.argv[1])
open("old.txt", "w").write("old content")
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
elif sys.argv[2] == "names":
    number = 0
    while True:
        try:
            open(f"name-{number}", "x").close()
        except OSError:
            break
        number += 1
big = "x" * 900_000
errors = [
    told(call("file_access", operation="write", path="old.txt", content=big)),
    told(call("file_access", operation="write", path="new.txt", content=big)),
    told(call("create_file", path="made/by/it.txt", content=big)),
]
names = sorted(n for n in os.listdir(".") if not n.startswith("name-"))
old = open("old.txt").read()
deleted = told(call("file_access", operation="delete", path="old.txt"))
print(json.dumps({"errors": errors, "names": names, "old": old, "deleted": deleted}))
"""


def outcome(command: list[str], kind: str, folder: Path) -> Any:
    done = subprocess.run(
        [*command, sys.executable, "-c", CALLS, str(folder), kind],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusals(found: Any) -> list[str]:
    """The errors of changes that came to nothing."""
    assert found["names"] == ["old.txt"]
    assert found["old"] == "old content"
    assert found["deleted"] is None
    assert all(
        code == "tool_error" and "nothing was changed" in said for code, said in found["errors"]
    )
    return [said for _, said in found["errors"]]


def small_disk(folder: Path, options: str) -> list[str]:
    """The words before a command that give it a file system of its own at ``folder``: in memory,
    and seen by nobody else. Skips where the system does not let a user have one."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare here to mount a small disk with")
    mount = 'mount -t tmpfs -o "$1" none "$0" && cd / && shift && exec "$@"'
    command = [unshare, "--user", "--map-root-user", "--mount", "sh", "-c", mount]
    command += [str(folder), options]
    tried = subprocess.run([*command, "true"], capture_output=True)
    if tried.returncode != 0:
        pytest.skip("a user may not mount a small disk here")
    return command


@pytest.mark.parametrize("kind", ["room", "names"])
def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path, kind: str) -> None:
    options = "size=256k" if kind == "room" else "nr_inodes=20"
    said = refusals(outcome(small_disk(tmp_path, options), kind, tmp_path))
    assert said and all("the disk is full" in one for one in said)


def test_a_file_that_may_not_grow_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    said = refusals(outcome([], "limit", tmp_path))
    assert said and all("File too large" in one for one in said)


NEW = """
import os, sys
from pathlib import Path
from mlx_tools.errors import UsageError
from mlx_tools.plugins.folders.collection import write_template
os.chdir(sys.argv[1])
with open("filler", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
try:
    write_template(Path(), "mine")
except UsageError as error:
    print(error.message)
print(os.listdir("."))
"""


def test_a_new_tool_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    command = small_disk(tmp_path, "size=256k")
    done = subprocess.run(
        [*command, sys.executable, "-c", NEW, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    told, left = done.stdout.splitlines()
    assert told.endswith("mine cannot be made: No space left on device")
    assert left == "['filler']"
