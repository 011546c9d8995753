"""The machines for so many runs a day, how long a run waits for one, how many approvals wait
for a person, and how large the disk gets: by a model, checked by a simulation of days.

python benchmarks/capacity.py [--json benchmarks/capacity.json]

The model: runs come at random, in the busiest hour `PEAK` times as often as on average, and take
as long as their tokens do. The wait for one of ``c`` slots is Erlang's C, by Allen and Cunneen for
times that are not exponential; what waits for a person, and what is kept, is a rate times a time
(Little). The simulation draws every run of `DAYS` days, and hands each to the slot that is free
first.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DAYS = 3
PEAK = 2.0
"""The busiest hour's rate, as a multiple of the day's."""

RATES = (10, 1_000, 100_000)
"""Runs a day."""


@dataclass(frozen=True)
class Load:
    """The load of a run. ``tokens_per_second`` is what a machine writes over all of its ``slots``,
    prompts included at the rate that they cost; times are in seconds."""

    tokens: float = 1_500.0
    spread: float = 1.0
    tokens_per_second: float = 60.0
    slots: int = 2
    asks: float = 0.2
    person: float = 600.0
    bytes_kept: float = 40_000.0
    days_kept: float = 30.0
    most_wait: float = 30.0

    @property
    def seconds(self) -> float:
        """The mean time of a run in its slot."""
        return self.tokens / (self.tokens_per_second / self.slots)

    @property
    def variation(self) -> float:
        """The squared coefficient of variation of that time, which is log-normal."""
        return math.expm1(self.spread**2)


def waiting(load: Load, rate: float, slots: int) -> float:
    """The mean wait for a slot, in seconds, at ``rate`` runs a second; infinite where too many
    come."""
    busy = rate * load.seconds
    if busy >= slots:
        return math.inf
    blocked = 1.0  # Erlang's B, one slot after the other
    for slot in range(1, slots + 1):
        blocked = busy * blocked / (slot + busy * blocked)
    waits = slots * blocked / (slots - busy * (1 - blocked))
    return waits * load.seconds / (slots - busy) * (1 + load.variation) / 2


def machines(load: Load, a_day: int) -> int:
    """As many as keep the mean wait of the busiest hour below ``most_wait``."""
    rate, found = a_day / 86_400 * PEAK, 1
    while waiting(load, rate, found * load.slots) > load.most_wait:
        found += 1
    return found


def rate_at(second: float, a_day: int) -> float:
    """Runs a second at this second: the day swings between nothing and the busiest hour."""
    swing = math.cos(2 * math.pi * (second / 86_400 - 0.5))
    return a_day / 86_400 * (1 + (PEAK - 1) * swing)


def simulated(load: Load, a_day: int, count: int, seed: int) -> dict[str, float]:
    """Findings of the simulation: the wait in the busiest hours, approvals that wait, the load."""
    random.seed(seed)
    most, now = a_day / 86_400 * PEAK, 0.0
    free = [0.0] * (count * load.slots)
    mean = math.log(load.seconds) - load.spread**2 / 2
    waits, work, person = list[float](), 0.0, 0.0
    while (now := now + random.expovariate(most)) < DAYS * 86_400:
        if random.random() * most > rate_at(now, a_day):
            continue
        began = max(now, heapq.heappop(free))
        takes = random.lognormvariate(mean, load.spread)
        heapq.heappush(free, began + takes)
        work += takes
        person += random.expovariate(1 / load.person) if random.random() < load.asks else 0
        if abs(now % 86_400 - 43_200) < 1_800:
            waits.append(began - now)
    return {
        "wait in the busiest hour, s": statistics.fmean(waits) if waits else 0.0,
        "approvals that wait, on average": person / (DAYS * 86_400),
        "busy, %": 100 * work / (DAYS * 86_400 * len(free)),
    }


def planned(load: Load, a_day: int, count: int) -> dict[str, float]:
    """The same by the model."""
    rate = a_day / 86_400
    return {
        "wait in the busiest hour, s": waiting(load, rate * PEAK, count * load.slots),
        "approvals that wait, on average": rate * load.asks * load.person,
        "busy, %": 100 * rate * load.seconds / (count * load.slots),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    options, load = parser.parse_args(), Load()
    rows: list[dict[str, Any]] = []
    for a_day in RATES:
        count = machines(load, a_day)
        model = planned(load, a_day, count)
        days = [simulated(load, a_day, count, seed) for seed in range(5)]
        found = {key: statistics.fmean(one[key] for one in days) for key in model}
        kept = a_day * load.days_kept * load.bytes_kept / 1e9
        rows.append({"runs a day": a_day, "machines": count, "disk, GB": round(kept, 3)})
        for key in model:
            rows[-1][key] = {"model": round(model[key], 2), "simulated": round(found[key], 2)}
    text = json.dumps({"load": vars(load), "rows": rows}, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
