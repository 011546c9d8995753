"""Writes into docs/evaluation.md what the same tasks cost by other agents, from
benchmarks/work_beside_agents.json.

python scripts/agents_table.py            write it
python scripts/agents_table.py --check    exit 1 if it is out of date
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from scripts.generated_part import ROOT, GeneratedPart, paragraph

Cost = dict[str, int]

OURS: Final = "mlx-tools"
COLUMNS: Final = {
    "first": "first prompt",
    "prompts": "all prompts",
    "uncached": "uncached",
    "completions": "written",
    "requests": "requests",
}
HALF: Final = ("first", "prompts", "uncached")
"""Columns in which half as many tokens as another agent's are aimed at."""


def table() -> str:
    """The table and a sentence about it, as Markdown."""
    path = ROOT / "benchmarks" / "work_beside_agents.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    agents = [OURS, *found["versions"]]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    source = f"{found['date']}, with {versions}, tokens of {found['tokenizer']}"
    head = ["task", *COLUMNS.values()]
    rows = [[task["task"], *cells([task[one] for one in agents])] for task in found["tasks"]]
    totals = [total([task[one] for task in found["tasks"]]) for one in agents]
    rows.append(["**all tasks**", *cells(totals)])
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        [
            paragraph(f"{source}; {' / '.join(agents)}:"),
            "",
            *("| " + " | ".join(line) + " |" for line in lines),
            "",
            paragraph(examples(found["tasks"][0], agents)),
            "",
            *(paragraph(f"- {shares(found['tasks'], one)}") for one in agents[1:]),
        ]
    )


def cells(costs: Sequence[Cost]) -> list[str]:
    return [" / ".join(f"{cost[column]:,}" for cost in costs) for column in COLUMNS]


def total(costs: Sequence[Cost]) -> Cost:
    return {column: sum(cost[column] for cost in costs) for column in COLUMNS}


def examples(task: dict[str, Any], agents: Sequence[str]) -> str:
    """The part of a first prompt that is examples."""
    parts = " / ".join(f"{task[one]['examples']:,}" for one in agents)
    return (
        f"Of the first prompt in the first row, {parts} tokens are examples of calls and answers."
    )


def shares(tasks: Sequence[dict[str, Any]], agent: str) -> str:
    """Ours as a share of an agent's, over all tasks, and how often it is at most half."""
    parts = []
    for column in HALF:
        mine, theirs = (sum(task[one][column] for task in tasks) for one in (OURS, agent))
        half = sum(2 * task[OURS][column] <= task[agent][column] for task in tasks)
        parts.append(
            f"{COLUMNS[column]} {mine / theirs:.0%} (at most half in {half} of {len(tasks)} tasks)"
        )
    return f"Ours as a share of {agent}'s: {', '.join(parts)}."


PART: Final = GeneratedPart("evaluation.md", "same tasks by other agents", "agents_table.py", table)

if __name__ == "__main__":
    PART.main()
