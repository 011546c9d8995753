"""Writes the table of models by memory, from what `mlx-tools models list` suggests on a Mac.

python scripts/models_table.py            write it into docs/macos.md
python scripts/models_table.py --check    exit 1 if it is out of date
"""

from __future__ import annotations

from typing import Final

from mlx_tools.backends import suggest_model
from scripts.generated_part import GeneratedPart

MEMORIES: Final = (8, 16, 24, 32, 64, 128)
"""GB, as Macs are sold."""

BITS_A_SECOND: Final = 100e6
"""A usual line into a home."""


def table() -> str:
    """The suggested models, a row for each size of memory, Markdown."""
    rows = ["| memory | model | download | at 100 Mbit/s |", "| ---: | --- | ---: | ---: |"]
    for memory in MEMORIES:
        model = suggest_model(memory * 2**30, "darwin")
        minutes = model.weights * 8 / BITS_A_SECOND / 60
        size = f"{model.weights / 1e9:.1f} GB"
        rows.append(f"| {memory} GB | `{model.name}` | {size} | {minutes:.0f} min |")
    return "\n".join(rows)


PART: Final = GeneratedPart("macos.md", "models", "models_table.py", table)

if __name__ == "__main__":
    PART.main()
