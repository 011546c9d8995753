"""The test suites of others that come along in ``tests/data/suites``, as its README describes."""

from __future__ import annotations

import json
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "suites"


@cache
def json_test_suite() -> dict[str, bytes]:
    """The files of JSONTestSuite by name, such as ``y_array_empty``."""
    with zipfile.ZipFile(FOLDER / "json_test_suite.zip") as archive:
        files = [name for name in archive.namelist() if name.endswith(".json")]
        return {Path(name).stem: archive.read(name) for name in sorted(files)}


@cache
def naughty_strings() -> list[str]:
    """The strings of the big list of naughty strings."""
    with zipfile.ZipFile(FOLDER / "naughty_strings.zip") as archive:
        strings: list[str] = json.loads(archive.read("blns.json"))
    return strings


@cache
def dialect_vectors(file: str = "vectors.jsonl") -> tuple[dict[str, Any], ...]:
    """The lines of a file of the dialect suite."""
    with zipfile.ZipFile(FOLDER / "dialects.zip") as archive:
        lines = archive.read(file).decode().split("\n")[:-1]
    return tuple(map(json.loads, lines))
