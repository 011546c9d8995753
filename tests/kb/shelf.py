"""A few files for a knowledge base, and how they are found in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlx_tools.toolbox.kb import KnowledgeBase

TEXTS = {
    "tea.md": "# Tea\n\nBoil the water, then let the leaves stand for three minutes.\n",
    "milk/cold.txt": "Milk stands in the fridge, on the lower shelf.\n",
    "milk/warm.rst": "Warm milk\n=========\n\nHeat it slowly, it must not boil.\n",
    "code/kettle.py": '"""Drives the kettle."""\n\n\ndef heat_water(degree):\n    return degree\n',
    "page.html": "<title>Cups</title><p>Cups stand above the sink.</p>",
}


def written(folder: Path, texts: dict[str, str] = TEXTS) -> Path:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def paths(base: KnowledgeBase, question: str, **rest: Any) -> list[str]:
    return [Path(hit.path).name for hit in base.search(question, **rest)]
