"""A folder of golden transcripts is a folder of tests, for whoever has mlx-tools and pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from codecs import BOM_UTF8
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mlx_tools import Policy, Registry
from mlx_tools.golden import plugin, replay_file, write_golden
from mlx_tools.golden.plugin import is_golden
from mlx_tools.testing import answer, call
from mlx_tools.tools import load_functions
from tests.golden.recordings import record_golden, write_changed_file, write_golden_file

ALONE = ("-p", "no:hypothesispytest", "-p", "no:schemathesis")


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest in a project of its own: nothing of this repository's configuration applies."""
    (folder / "pytest.ini").touch()
    mine = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", *ALONE, "-W", "error"]
    return subprocess.run(
        [*command, "--strict-markers", "--strict-config", "--import-mode=importlib", *options],
        cwd=folder,
        env=mine,
        capture_output=True,
        text=True,
        timeout=120,
    )


def collected(folder: Path, *options: str) -> list[str]:
    done = run(folder, "--collect-only", "-q", *options)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a transcript that replays and one that does not."""
    made = tmp_path / "golden"
    write_golden_file(made, "sums", features=("small", "sum"))
    write_changed_file(made)
    return tmp_path


def test_the_plugin_is_installed_here(pytestconfig: pytest.Config) -> None:
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        pytest.skip("plugins are not loaded by themselves here")
    found = pytestconfig.pluginmanager.get_plugin("mlx-tools-golden")
    assert found is plugin, "run `make setup`: .venv was made before this plugin was"


@pytest.mark.heavy
def test_golden_transcripts_alone_are_collected_without_configuration(folder: Path) -> None:
    made = folder / "golden"
    whole = (made / "sums.jsonl").read_bytes()
    (made / ".hidden.jsonl").write_bytes(whole)
    (made / "windows.jsonl").write_bytes(BOM_UTF8 + whole.replace(b"\n", b"\r\n"))
    assert replay_file(made / "windows.jsonl").passed
    (made / "sums.json").write_bytes(whole)
    (made / "rows.jsonl").write_text('{"a":1}\n{"b":2}\n')
    (made / "binary.jsonl").write_bytes(b"\x00\xff" * 9000)
    header, _, *rest = whole.split(b"\n")
    (made / "session.jsonl").write_bytes(b"\n".join([header, *rest]))  # no golden record
    os.mkfifo(made / "fifo.jsonl")
    (folder / "others").mkdir()
    (folder / "others" / "empty.jsonl").touch()
    (folder / "test_own.py").write_text("def test_own(): pass\n")
    assert collected(folder) == [
        "golden/changed.jsonl::replay",
        "golden/sums.jsonl::replay",
        "golden/windows.jsonl::replay",
        "test_own.py::test_own",
    ]
    chosen = collected(folder, "-k", "sums or own", "-m", "golden")
    assert chosen == ["golden/sums.jsonl::replay"]


@pytest.mark.heavy
def test_a_failure_is_the_small_diff_and_nothing_else(folder: Path) -> None:
    done = run(folder, "golden", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert " golden/changed.jsonl: replay " in done.stdout
    assert "prompt: the system prompt\n" in done.stdout
    assert "- addd(a?: number, b?: number)" in done.stdout
    assert "+ add(a?: number, b?: number)" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert ".py" not in done.stdout + done.stderr


@pytest.mark.heavy
def test_an_empty_file_in_place_of_a_golden_transcript_fails_as_golden_run_does(
    folder: Path,
) -> None:
    alone, usual = folder / "alone", folder / "golden_transcripts"
    for place, text in ((folder / "golden", ""), (alone, "\n"), (usual, " \n\n")):
        place.mkdir(exist_ok=True)
        (place / "empty.jsonl").write_text(text)
    # Without a summary, which has the reasons again where CI is set.
    done = run(folder, "golden", "golden_transcripts", "alone/empty.jsonl", "-q", "-rN")
    assert "4 failed, 1 passed" in done.stdout
    assert (
        done.stdout.count("the file is empty (take it from where it was kept, or remove it)") == 3
    )
    for place in (folder / "golden", alone, usual):
        (sample,) = replay_file(place / "empty.jsonl").samples
        assert sample.error is not None and sample.error.startswith("the file is empty (take")


@pytest.mark.slow
def test_a_damaged_or_newer_transcript_fails_with_its_fault(folder: Path) -> None:
    made = folder / "golden"
    lines = (made / "sums.jsonl").read_text().splitlines(keepends=True)
    newer = lines[0].replace('"type":"header"', '"type":"header","version":9')
    (made / "newer.jsonl").write_text("".join([newer.replace(',"version":2', ""), *lines[1:]]))
    (made / "cut.jsonl").write_text("".join(lines)[:-30])
    (made / "odd.jsonl").write_text("".join([*lines, '{"type":"nothing"}\n']))
    (made / "early.jsonl").write_text(lines[0] + lines[1][:40])
    done = run(folder, "golden", "-q")
    assert "5 failed, 1 passed" in done.stdout
    assert "format version 9; this program reads" in done.stdout
    assert "its last line is cut off" in done.stdout
    assert f"line {len(lines) + 1} of the transcript is damaged" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.heavy
def test_the_tools_of_the_settings_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stock.py"
    source = """
from mlx_tools import tool

@tool(effects={{"read"}})
def in_stock(article: str) -> int:
    "{doc}"
    return 3
"""
    file.write_text(source.format(doc="Pieces in stock."))
    registry = Registry(load_functions(str(file)))
    script = call("in_stock", article="hammer"), answer("There are 3.")
    made = record_golden(registry, *script, policy=Policy(allow=["in_stock"]))
    write_golden(made, tmp_path / "golden" / "stock.jsonl")
    monkeypatch.setenv("MLX_TOOLS_TOOLS_FUNCTIONS", str(file))
    assert "1 passed" in run(tmp_path, "golden").stdout
    file.write_text(source.format(doc="Pieces on the shelf."))
    done = run(tmp_path, "golden")
    assert "1 failed" in done.stdout and "+ Pieces on the shelf." in done.stdout
    file.unlink()
    done = run(tmp_path, "golden")
    assert "there is no such file" in done.stdout and "Traceback" not in done.stdout


@pytest.mark.slow
def test_workers_and_the_junit_file_tell_the_same(folder: Path) -> None:
    done = run(folder, "golden", "-n", "2", "--junitxml=out/junit.xml")
    assert "1 failed, 1 passed" in done.stdout
    cases = ElementTree.parse(folder / "out" / "junit.xml").iter("testcase")
    found = {case.get("classname"): case for case in cases}
    assert set(found) == {"golden.changed.jsonl", "golden.sums.jsonl"}
    properties = {
        name: {p.get("name"): p.get("value") for p in case.iter("property")}
        for name, case in found.items()
    }
    assert properties["golden.sums.jsonl"] == {
        "name": "sums",
        "source": "scripted",
        "features": "small, sum",
        "rooms": "",
    }
    assert properties["golden.changed.jsonl"]["rooms"] == "prompt"


def test_loading_the_plugin_loads_nothing_else_of_the_package() -> None:
    code = "import pytest, sys; had = {*sys.modules}; import mlx_tools.golden.plugin\n"
    code += "print(*sorted({*sys.modules} - had))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    mine = {name for name in done.stdout.split() if name.startswith("mlx_tools")}
    own = {"mlx_tools", "mlx_tools.golden", "mlx_tools.golden.plugin", "mlx_tools.lazy"}
    assert mine == own
    assert {*done.stdout.split()} - mine <= set(sys.stdlib_module_names)


def test_every_name_of_the_package_is_found_whatever_was_imported_first() -> None:
    code = """
import pkgutil, importlib, types
import mlx_tools.golden as golden
for module in pkgutil.iter_modules(golden.__path__):
    importlib.import_module(f"{golden.__name__}.{module.name}")
print(*[n for n in dir(golden) if isinstance(getattr(golden, n), types.ModuleType)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


# --- which files are golden transcripts ----------------------------------------------------------

HEADER = '{"type":"header","session":"s"}'
GOLDEN = '{"type":"golden","name":"n"}'


GOLDENS = (
    f"{HEADER}\n{GOLDEN}\n",
    f"{HEADER}\r\n{GOLDEN}\r\n",
    f"{HEADER}\n{GOLDEN}\nwhat is not JSON\n",
    f'{HEADER}\n{{"type":"golden","na',
    '{ "type" : "header" }\n {"type" : "golden"}',
    f'{{"type":"header","system":"{"long " * 60_000}"}}\n{GOLDEN}\n',
)
OTHERS = (
    *("", "\n", "{}", "[]\n[]\n", "\x00\x7f\x00", "null\nnull\n", HEADER, f"{HEADER}\n"),
    f"{GOLDEN}\n{HEADER}\n",
    f'{HEADER}\n{{"type":"user","content":"golden"}}\n',
    f'{HEADER}\n{{"type":"user","content":"\\"type\\":\\"golden\\""}}\n',
    f'{{"rows":[{{"type":"header"}}]}}\n{GOLDEN}\n',
    f"{HEADER}\n\n{GOLDEN}\n",
    f'{{"a":"header","b":{"[" * 9000}\n{GOLDEN}\n',
    f'{{"x":"{"long " * 60_000}"}}\n{GOLDEN}\n',
    f'{{"type":"header","system":"{"long " * 60_000}',
    f"{HEADER}\n[1]\n{GOLDEN}\n",
)


def test_a_golden_transcript_is_one_whatever_follows_and_another_file_is_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.jsonl"
    for text in (*GOLDENS, *OTHERS):
        path.write_bytes(text.encode())
        assert is_golden(path) == (text in GOLDENS), text[:80]


def test_what_cannot_be_read_is_none_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.jsonl")
    (tmp_path / "gone.jsonl").symlink_to("nowhere")
    (tmp_path / "round.jsonl").symlink_to("round.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("fifo", "gone", "round", "folder", "missing", "nul\0"):
        assert not is_golden(tmp_path / f"{name}.jsonl")


def test_of_a_huge_file_only_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.jsonl"
    for start in (b"", b'{"type":"header"'):
        with path.open("wb") as file:
            file.write(start)
            file.truncate(1 << 40)
        assert not is_golden(path)
