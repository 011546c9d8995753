"""A Jupyter notebook as text: what stands in its cells, and what they printed; no images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

_MOST_OUTPUT: Final = 2_000
"""Characters of what a cell printed that are kept."""


def read_notebook(source: str) -> str | None:
    """The cells as Markdown, code in fences; None where this is no notebook."""
    try:
        cells = json.loads(source)["cells"]
        return "\n\n".join(part for cell in cells for part in _of_cell(cell) if part.strip())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _of_cell(cell: Any) -> Iterator[str]:
    text = _joined(cell["source"])
    if cell["cell_type"] != "code":
        yield text
        return
    yield _fenced(text)
    said = "\n".join(_said(output) for output in cell.get("outputs", ()))
    yield _fenced(said[:_MOST_OUTPUT])


def _said(output: Any) -> str:
    return _joined(output.get("text") or output.get("data", {}).get("text/plain", ""))


def _joined(text: Any) -> str:
    return text if isinstance(text, str) else "".join(map(str, text))


def _fenced(text: str) -> str:
    return f"```\n{text.strip()}\n```" if text.strip() else ""
