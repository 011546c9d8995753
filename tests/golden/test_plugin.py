"""A folder of golden transcripts is a folder of tests, for whoever has mlx-tools and pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any, cast, get_args
from xml.etree import ElementTree

import pytest

from mlx_tools.backends import StrategyChoice, StyleChoice
from mlx_tools.golden import plugin
from mlx_tools.testing import ScriptedServer, answer, call
from tests.golden.made import changed_file, golden_file

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """pytest in a project of its own: nothing of this repository's configuration applies."""
    (folder / "pytest.ini").touch()
    mine = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-W", "error"]
    return subprocess.run(
        [*command, "--strict-markers", "--strict-config", "--import-mode=importlib", *options],
        cwd=folder,
        env=mine | environ,
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
    golden_file(made, "sums", features=("small", "sum"))
    changed_file(made)
    return tmp_path


def test_the_plugin_is_installed_here(pytestconfig: pytest.Config) -> None:
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        pytest.skip("plugins are not loaded by themselves here")
    found = pytestconfig.pluginmanager.get_plugin(plugin.NAME)
    assert found is plugin, "run `make setup`: .venv was made before this plugin was"


def test_golden_transcripts_alone_are_collected_without_configuration(folder: Path) -> None:
    made = folder / "golden"
    whole = (made / "sums.jsonl").read_bytes()
    (made / ".hidden.jsonl").write_bytes(whole)
    (made / "sums.json").write_bytes(whole)
    (made / "rows.jsonl").write_text('{"a":1}\n{"b":2}\n')
    (made / "binary.jsonl").write_bytes(b"\x00\xff" * 9000)
    header, _, *rest = whole.split(b"\n")
    (made / "session.jsonl").write_bytes(b"\n".join([header, *rest]))  # no golden record
    os.mkfifo(made / "fifo.jsonl")
    (folder / "test_own.py").write_text("def test_own(): pass\n")
    assert collected(folder) == [
        "golden/changed.jsonl::replay",
        "golden/sums.jsonl::replay",
        "test_own.py::test_own",
    ]
    assert collected(folder, "-k", "sums", "-m", "golden") == ["golden/sums.jsonl::replay"]
    assert collected(folder, "-m", "not golden") == ["test_own.py::test_own"]


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


CONFTEST = """
from mlx_tools.testing import ScriptedServer, answer, call
from tests.golden.made import registry
def pytest_golden_registry(config):
    return registry(wrong={wrong})
"""


@pytest.mark.slow
def test_tools_that_only_read_are_run_with_the_projects_own(folder: Path) -> None:
    (folder / "golden" / "conftest.py").write_text(CONFTEST.format(wrong=False))
    # What was recorded names a tool that the built-in ones do not have: nothing is run of it.
    same = run(folder, "golden/sums.jsonl", "--golden-tools", "run", PYTHONPATH=str(ROOT))
    assert same.returncode == 0, same.stdout
    (folder / "golden" / "conftest.py").write_text(CONFTEST.format(wrong=True))
    other = run(folder, "golden/sums.jsonl", "--golden-tools", "run", PYTHONPATH=str(ROOT))
    assert "tools: the output of add (turn 1, call c1)\n  - 5\n  + 6" in other.stdout
    (folder / "golden" / "conftest.py").write_text("def pytest_golden_registry(): return 7\n")
    none = run(folder, "golden/sums.jsonl", "--golden-tools", "run")
    assert "pytest_golden_registry gave 7, not a Registry" in none.stdout
    assert "Traceback" not in none.stdout


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_one_error(folder: Path) -> None:
    done = run(folder, "golden", "--golden-live", "http://127.0.0.1:9")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("ERROR: --golden-live: no server answers at http://127.0.0.1:9")
    assert collected(folder, "--golden-live", "http://127.0.0.1:9") == [
        "golden/changed.jsonl::live",
        "golden/sums.jsonl::live",
    ]


def own_options() -> dict[str, dict[str, Any]]:
    """What the plugin's options were made with."""
    made: dict[str, dict[str, Any]] = {}

    class Group:
        def addoption(self, name: str, **attributes: Any) -> None:
            made[name] = attributes

    class Parser:
        def getgroup(self, name: str, description: str) -> Group:
            return Group()

    plugin.pytest_addoption(cast(pytest.Parser, Parser()))
    return made


@pytest.mark.parametrize(
    ("option", "right", "wrong"),
    [
        ("--golden-samples", ["1", "20"], ["0", "-1", "1.5", "", "x"]),
        ("--golden-min-rate", ["0", "0.9", "1"], ["1.5", "-0.1", "nan", "x"]),
        ("--golden-temperature", ["0", "0.7"], ["-1", "nan", "inf", "x"]),
    ],
)
def test_a_number_that_cannot_be_is_refused(
    option: str, right: list[str], wrong: list[str]
) -> None:
    read = own_options()[option]["type"]
    assert [read(text) for text in right] == [float(text) for text in right]
    for text in wrong:
        with pytest.raises(ArgumentTypeError, match="is not a"):
            read(text)


@pytest.mark.slow
def test_transcripts_are_asked_live_as_often_as_wanted(folder: Path) -> None:
    (folder / "golden" / "changed.jsonl").unlink()
    other = [call("add", a=2, b=4), answer("It is 6.")]
    script = [call("add", a=2, b=3), answer("It is 5."), *other]
    with ScriptedServer(*script, *script, *script) as server:
        live = ("golden", "--golden-live", server.url, "--golden-samples", "2", "-q")
        free = (*live, "--golden-strategy", "free")
        # half of the runs are right
        strict = run(folder, *free)
        assert "sums.jsonl::live" in strict.stdout
        assert "1 of 2 runs were as they should be\n\nrun 2\n" in strict.stdout
        assert "1 failed" in strict.stdout
        lenient = run(folder, *free, "--golden-min-rate", "0.5", "--golden-style", "xml")
        assert lenient.returncode == 0, lenient.stdout
        warm = run(folder, *free, "--golden-temperature", "0.7", "--golden-min-rate", "0.5")
        assert warm.returncode == 0, warm.stdout
    told = [body for body in server.bodies if body.get("temperature")]
    assert [body["seed"] for body in told] == [0, 0, 1, 1]
    assert "<tool_call>" in server.prompts[4]


@pytest.mark.slow
def test_a_server_that_dies_is_a_line_a_test(folder: Path) -> None:
    with ScriptedServer() as server:  # at the end of its script it answers with an error
        done = run(folder, "golden", "--golden-live", server.url, "--golden-strategy", "free")
    assert "2 failed" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "the script is at its end" in done.stdout


@pytest.mark.slow
def test_the_report_holds_what_all_workers_checked(folder: Path) -> None:
    golden_file(folder / "golden", "more")
    done = run(folder, "golden", "-n", "2", "--golden-report", "out/golden.html")
    assert "report of golden transcripts: " in done.stdout
    page = (folder / "out" / "golden.html").read_text()
    for name in ("sums", "changed", "more"):
        assert name in page
    assert "What is 2 + 3?" in page  # the runs are written out
    assert str(folder) not in page
    again = run(folder, "-k", "nothing", "--golden-report", "out/none.html")
    assert "no golden transcript was checked" in again.stdout
    assert not (folder / "out" / "none.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("--golden-live", "no address"), ("--golden-report", "golden")]
)
def test_a_place_that_cannot_be_is_one_error(folder: Path, options: tuple[str, str]) -> None:
    done = run(folder, "golden", *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith(f"ERROR: {options[0]}: ")


def test_the_choices_are_those_of_the_settings() -> None:
    options = own_options()
    assert options["--golden-style"]["choices"] == get_args(StyleChoice)
    assert options["--golden-strategy"]["choices"] == get_args(StrategyChoice)


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
