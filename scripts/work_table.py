"""Writes the table of ordinary tasks into docs/evaluation.md, from what
benchmarks/ordinary_work.py leaves.

python scripts/work_table.py            write it
python scripts/work_table.py --check    exit 1 where it is out of date
"""

from __future__ import annotations

import json
from typing import Any, Final

from scripts.generated_part import ROOT, GeneratedPart

COLUMNS: Final = (
    "requests",
    "first_prompt_tokens",
    "prompt_tokens",
    "uncached_tokens",
    "written_tokens",
)
HEAD: Final = (
    "task",
    "doors",
    "requests",
    "first prompt",
    "all prompts",
    "uncached",
    "written",
)


def table() -> str:
    """The tasks, a row each, and the sums, Markdown."""
    path = ROOT / "benchmarks" / "ordinary_work.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    lines = [f"| {' | '.join(HEAD)} |", f"| --- | --- |{' ---: |' * len(COLUMNS)}"]
    for row in rows:
        cells = [f"{row[column]:,}" for column in COLUMNS]
        lines.append(f"| {row['task']} | {', '.join(row['doors'])} | {' | '.join(cells)} |")
    sums = [f"{sum(row[column] for row in rows):,}" for column in COLUMNS]
    lines.append(f"| all {len(rows)} | | {' | '.join(sums)} |")
    return "\n".join(lines)


PART: Final = GeneratedPart("evaluation.md", "table of ordinary tasks", "work_table.py", table)

if __name__ == "__main__":
    PART.main()
