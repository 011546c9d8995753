"""Measures what a framework itself costs per step: a scripted model, one small tool, no network.

A run is N calls of the tool and an answer; what is recorded is its wall time divided by N, for N of
10 and 50. Prints one JSON object. `agents/` holds the same run for each framework.
"""

from __future__ import annotations

from typing import Any

from agents import AGENTS
from measure import arguments, compare, finish, open_all, say


def main() -> None:
    options = arguments(__doc__, steps=[10, 50], rounds=25, agents=list(AGENTS), need="any")
    competitors = open_all("agent", options.agents, (1,), options.need)
    results: dict[str, Any] = {}
    for steps in options.steps:
        say(f"steps: {steps}")
        cells = compare(competitors, (steps,), rounds=options.rounds)
        for cell in cells.values():
            cell.samples = [seconds / steps for seconds in cell.samples]
        results[str(steps)] = {name: cell.to_json() for name, cell in cells.items()}
    for competitor in competitors:
        competitor.close()
    finish(results)


if __name__ == "__main__":
    main()
