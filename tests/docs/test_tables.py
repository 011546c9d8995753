"""Generated parts of the documentation are as their scripts would write them now."""

from __future__ import annotations

from importlib import import_module

import pytest

from scripts.stretch import ROOT, Stretch


def stretches() -> list[Stretch]:
    """The generated parts of pages, of every script that has some.

    The diagram of imports is for ``tests/test_architecture.py``, which has read all modules.
    """
    found: list[Stretch] = []
    for path in sorted((ROOT / "scripts").glob("*.py")):
        if "Stretch(" in path.read_text(encoding="utf-8") and path.stem not in (
            "stretch",
            "counts",
            "import_diagram",
        ):
            module = import_module(f"scripts.{path.stem}")
            found += [one for one in vars(module).values() if isinstance(one, Stretch)]
            several = vars(module).get("STRETCHES", ())
            found += several.values() if isinstance(several, dict) else several
    return found


STRETCHES = stretches()


def test_there_are_generated_parts() -> None:
    assert len({one.path for one in STRETCHES}) >= 5


@pytest.mark.parametrize("stretch", STRETCHES, ids=lambda one: one.name)
def test_a_generated_part_is_as_its_script_writes_it(stretch: Stretch) -> None:
    page, wanted = stretch.written()
    assert page == wanted, "out of date: make docs"
