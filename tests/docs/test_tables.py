"""Generated parts of the documentation are as their scripts would write them now."""

from __future__ import annotations

from importlib import import_module

import pytest

from scripts.generated_part import ROOT, GeneratedPart


def find_generated_parts() -> list[GeneratedPart]:
    """Return the generated parts of all pages, from every script that writes some.

    ``tests/test_architecture.py`` checks the diagram of imports, because it reads all modules.
    """
    parts: list[GeneratedPart] = []
    for path in sorted((ROOT / "scripts").glob("*.py")):
        if "GeneratedPart(" in path.read_text(encoding="utf-8") and path.stem not in (
            "generated_part",
            "counts",
            "import_diagram",
        ):
            module = import_module(f"scripts.{path.stem}")
            parts += [part for part in vars(module).values() if isinstance(part, GeneratedPart)]
            more_parts = vars(module).get("PARTS", ())
            parts += more_parts.values() if isinstance(more_parts, dict) else more_parts
    return parts


PARTS = find_generated_parts()


def test_there_are_generated_parts() -> None:
    assert len({part.path for part in PARTS}) >= 5


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_generated_part_is_as_its_script_writes_it(part: GeneratedPart) -> None:
    page, wanted = part.render_page()
    assert page == wanted, "out of date: make docs"
