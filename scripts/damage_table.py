"""Writes the tables of damaged calls into docs/evaluation.md, from what
benchmarks/damaged_calls.py leaves.

python scripts/damage_table.py            write them
python scripts/damage_table.py --check    exit 1 where they are out of date
"""

from __future__ import annotations

import json
from typing import Any, Final

from scripts.generated_part import ROOT, GeneratedPart, paragraph

COLUMNS: Final = ("exact", "another call", "corrected", "refused", "shown", "a mark in a value")
"""``shown``: as an answer, whether or not all of the call is left in it."""


def table() -> str:
    """Return the sums of the published texts, and a row for each kind of damage."""
    path = ROOT / "benchmarks" / "damaged_calls.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    texts, innocent = results["published"], results["innocent"]
    said = paragraph(
        f"Published texts of all families: {texts['exact']} of {texts['calls']} calls exact, "
        f"{texts['shown as an answer']} texts shown as an answer, {texts['wrong']} wrong, "
        f"{texts['invented']} invented; {texts['corrected']} of {texts['texts without a call']} "
        f"texts without a call corrected. Answers of coding agents: {innocent['corrected']} of "
        f"{innocent['answers']} corrected, once each."
    )
    lines = [said, "", f"| what was done to the text | texts | {' | '.join(COLUMNS)} |"]
    lines.append(f"| --- |{' ---: |' * (len(COLUMNS) + 1)}")
    for row in (*results["damaged"], *results["quoted"]):
        row = {**row, "shown": row.get("shown", 0) + row.get("hidden", 0)}
        cells = " | ".join(f"{row.get(column, 0):,}" for column in COLUMNS)
        lines.append(f"| {row['kind']} | {row['texts']:,} | {cells} |")
    return "\n".join(lines)


PART: Final = GeneratedPart("evaluation.md", "table of damaged calls", "damage_table.py", table)

if __name__ == "__main__":
    PART.main()
