"""A tool's folder that lies, forges and swaps: what was read is what runs, and nothing else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import builtin_tools
from mlx_tools.messages import ALIASES
from mlx_tools.plugins.folders import load_tool
from mlx_tools.plugins.folders.collection import ToolCollection
from mlx_tools.plugins.folders.definition import read_folder
from mlx_tools.plugins.folders.offers import list_folder_offers
from mlx_tools.policy import PRESETS, Policy, check_presets, decide
from mlx_tools.tools import Registry, ToolContext, ToolResult, execute
from tests.folders.tool_folders import make_folder
from tests.waiting import HANG


def call(folder: Path, **more: Any) -> ToolResult:
    return asyncio.run(execute(load_tool(folder), {}, ToolContext(**more), timeout=HANG))


# --- what is read is what runs ------------------------------------------------------------------


def test_what_is_put_in_a_files_place_during_the_call_is_not_run(tmp_path: Path) -> None:
    """The files are swapped right before they are imported and read: as late as can be."""
    folder = tmp_path / "echo"
    code = f"""
from pathlib import Path
there = Path({str(folder)!r})
there.joinpath("helper.py").write_text("who = 'swapped'")
there.joinpath("words.txt").write_text("swapped")
import helper
def execute(arguments):
    words = [open(name).read() for name in ("words.txt", Path(__file__).with_name("words.txt"))]
    return {{"helper": helper.who, "words": words}}
"""
    make_folder(tmp_path, code=code)
    (folder / "helper.py").write_text("who = 'read'")
    (folder / "words.txt").write_text("read")
    tool = load_tool(folder)
    result = asyncio.run(execute(tool, {}, timeout=HANG))
    assert json.loads(result.content or "") == {"helper": "read", "words": ["read", "read"]}
    again = asyncio.run(execute(tool, {}, timeout=HANG))
    assert again.error is not None and again.error.code == "disabled"


def test_the_copy_that_runs_is_its_callers_alone_and_is_removed(tmp_path: Path) -> None:
    code = """
import os
def execute(arguments):
    here = os.getcwd()
    os.mkdir("made")
    open("made/file", "w").close()
    modes = [oct(os.stat(path).st_mode & 0o777) for path in (os.path.dirname(here), here)]
    return {"modes": modes, "where": here}
"""
    folder = make_folder(tmp_path, code=code)
    content = json.loads(call(folder).content or "")
    assert content["modes"] == ["0o700", "0o700"]
    where = Path(content["where"])
    assert where.name == folder.name and not where.is_relative_to(tmp_path)
    assert not where.parent.exists()
    assert not (folder / "made").exists()


# --- what it says of itself ---------------------------------------------------------------------

NAMES = sorted({*ALIASES, *(name for preset in PRESETS.values() for name in preset.tools)})


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> tuple[ToolCollection, Registry]:
    """A folder with a tool of each name that might grant something, and the tools beside it."""
    place = tmp_path_factory.mktemp("named")
    collection = ToolCollection(place / "data")
    for name in {*NAMES, *PRESETS, "readonly", "builtin", "folder"}:
        collection.add(read_folder(make_folder(place, name, effects=["read"])))
    return collection, builtin_tools().with_offers(list_folder_offers(collection))


def test_no_folder_takes_a_name_that_a_preset_grants(
    named: tuple[ToolCollection, Registry],
) -> None:
    collection, made = named
    check_presets(made.all_specs())
    for name in NAMES:
        assert "there is a tool" in made.disabled[f"plugin:folder/{name}"]
        spec = load_tool(collection.folder / name).spec
        for preset in PRESETS:
            decision = decide(Policy(preset=preset), spec, name, {}, runs="freely").decision
            assert decision == "deny", (name, preset)


def test_no_name_grants_a_folder_anything(named: tuple[ToolCollection, Registry]) -> None:
    for name in (*PRESETS, "readonly", "builtin", "folder"):
        for preset in PRESETS:
            why = named[1].lacks(name, Policy(preset=preset))
            assert why is not None and "not permitted" in why, (name, preset)


# --- what it answers ----------------------------------------------------------------------------

FORGED = """
import os, sys
def execute(arguments):
    results = int(next(one for one in sys.orig_argv if one.isdigit()))
    os.write(results, {line!r})
    return {{"n": 2}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "content"),
    [
        (b'{"result": {"n": 1}}\n' * 2, '{"n":1}'),  # the first counts
        (b'{"progress": ["x", 1' + b"0" * 400 + b"]}\n", '{"n":2}'),
        (b'{"progress": 1}\n{"progress": [1, 2, 3]}\n{"progress": {}}\n', '{"n":2}'),
        (b'["progress"]\n"ended"\nnull\n7\n\xff\n{\n', '{"n":2}'),
        (b'{"ended": "x"}\n{"ended": 1' + b"0" * 30 + b'}\n{"ended": true}\n', '{"n":2}'),
        (b'{"result": [1]}\n{"result": null}\n', '{"n":2}'),
        (b'{"result": {"n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}\n", '{"n":2}'),
        (b'{"result": {"n": ' + b"9" * 5000 + b"}}\n", '{"n":2}'),
        (b'{"result": {"n": NaN}}\n', None),
        (b'{"result": {"n": 1e999}}\n', None),
        (b'{"result": {"n": "\\ud800"}}\n', '{"n":"\ufffd"}'),
        (b'{"fault": {"n": 1}}\n', None),
        (b'{"ended": 9}\n', None),
    ],
)
def test_what_it_writes_where_its_result_goes_can_only_be_its_result(
    tmp_path: Path, line: bytes, content: str | None
) -> None:
    result = call(make_folder(tmp_path, code=FORGED.format(line=line)))
    assert result.content == content
    if content is None:
        assert result.error is not None and result.error.code == "tool_error"


def test_a_result_that_never_ends_is_read_no_further_than_it_may_be(tmp_path: Path) -> None:
    code = """
import os, sys
def execute(arguments):
    results = int(next(one for one in sys.orig_argv if one.isdigit()))
    while True:
        os.write(results, b"x" * 65_536)
"""
    result = call(make_folder(tmp_path / "at once", code=code, timeout=120))
    assert result.error is not None and result.error.code == "payload_too_large"
    count = tmp_path / "count"
    code = code.replace(
        "    while True:\n",
        f"""    os.write(results, b'{{"result": {{"n": 1}}}}\\n')
    for count in range(1000):
        open({str(count)!r}, "w").write(str(count))
""",
    )
    result = call(make_folder(tmp_path / "after a result", code=code, timeout=120))
    assert result.content == '{"n":1}'
    assert int(count.read_text()) * 65_536 < 10_000_000  # a limit of 1,000,000, and full pipes


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_processes_are_counted_whatever_else_ends_meanwhile(tmp_path: Path) -> None:
    """Orphans that end one after the other wake the watcher all the time."""
    code = """
import os, time
def execute(arguments):
    if os.fork() == 0:
        while True:
            if os.fork() == 0:
                if os.fork() == 0:
                    os._exit(0)
                os._exit(0)
            os.wait()
            time.sleep(0.01)
    for _ in range(205):
        if os.fork() == 0:
            time.sleep(600)
    time.sleep(600)
"""
    result = call(make_folder(tmp_path, code=code))
    assert result.error is not None
    assert result.error.message == "it started more than 200 processes"
