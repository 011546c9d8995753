"""Writes into docs/training.md what training the embedded model did, from
benchmarks/lora_trial.json.

python scripts/training_table.py            write it
python scripts/training_table.py --check    exit 1 if it is out of date
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from scripts.generated_part import ROOT, GeneratedPart, paragraph


def table() -> str:
    """The trial and its table, as Markdown."""
    path = ROOT / "benchmarks" / "lora_trial.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    kinds: list[str] = found["kinds"]
    strategies = list(found["before"])
    columns = [(strategy, when) for strategy in strategies for when in ("before", "after")]
    head = ["held-back questions", *(f"`{strategy}`, {when}" for strategy, when in columns)]
    rows = [
        [
            kind or "all",
            *(format_share(found[when][strategy], kinds, kind) for strategy, when in columns),
        ]
        for kind in (*dict.fromkeys(kinds), "")
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        [
            paragraph(describe_trial(found)),
            "",
            *("| " + " | ".join(line) + " |" for line in lines),
        ]
    )


def describe_trial(found: dict[str, Any]) -> str:
    """Return the size of the trial, and the losses at its ends."""
    training = found["training"]
    ends = []
    for name, losses in training["losses"].items():
        ends.append(
            f"{name} loss "
            + ", ".join(f"{losses[at]:g} at iteration {at}" for at in find_ends(list(losses)))
        )
    return (
        f"{found['date']}, {found['model']} on two cores: {found['completions']} completions of "
        f"{found['runs']} runs, {training['iters']} iterations in {training['processor_s']} s of "
        f"processor time; {'; '.join(ends)}."
    )


def find_ends(iterations: Sequence[str]) -> Sequence[str]:
    """Return the first and the last iteration."""
    return [*iterations[:1], *iterations[1:][-1:]]


def format_share(passed: Sequence[bool], kinds: Sequence[str], kind: str) -> str:
    """Return the passed questions of a kind, or of all kinds."""
    chosen = [one for one, of in zip(passed, kinds, strict=True) if kind in ("", of)]
    return f"{sum(chosen)} of {len(chosen)}"


PART: Final = GeneratedPart("training.md", "trial", "training_table.py", table)

if __name__ == "__main__":
    PART.main()
