"""Library, command line and pytest say the same of every transcript."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from mlx_tools.golden import find_golden, replay_files

ROOT = Path(__file__).resolve().parents[2]


def _started(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    places = {"PYTHONPATH": str(ROOT), "HOME": str(cwd)}
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **places}, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This repository's transcripts, some of them changed."""
    made = tmp_path_factory.mktemp("project") / "golden"
    shutil.copytree(ROOT / "golden_transcripts", made)
    for number, path in enumerate(find_golden([made])):
        text = path.read_text("utf-8")
        if number % 7 == 0:
            path.write_text(text.replace('"decision":"allow"', '"decision":"ask"'), "utf-8")
        elif number % 11 == 0:
            path.write_text(text[:-10], "utf-8")
    return made


@pytest.mark.slow
def test_library_command_line_and_pytest_agree(folder: Path) -> None:
    files = find_golden([folder])
    library = {check.path: check.passed for check in replay_files(files)}
    assert 10 < list(library.values()).count(False) < len(library) - 10

    ran = _started("mlx_tools", "golden", "run", str(folder), "--json", cwd=folder.parent)
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.returncode == 1
    assert {line["path"]: line["passed"] for line in lines[:-1]} == library

    report = folder.parent / "junit.xml"
    options = ("-p", "no:cacheprovider", "-q", f"--junitxml={report}")
    tested = _started("pytest", *options, str(folder), cwd=folder.parent)
    assert tested.returncode == 1, tested.stderr
    cases = {}
    for case in ET.parse(report).iter("testcase"):
        name = {p.get("name"): p.get("value") for p in case.iter("property")}.get("name")
        cases[name] = case.find("failure") is None and case.find("error") is None
    by_name = {check.name: check.passed for check in replay_files(files)}
    assert cases == by_name
