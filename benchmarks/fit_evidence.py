"""Fits the weights of ``config/evidence.toml``: what the words of a request say of a call.

    python benchmarks/fit_evidence.py            fit and write
    python benchmarks/fit_evidence.py --check    fit on three quarters, score on the fourth, no file

No model is asked. The questions are of the tune half of BFCL (``mlx-tools eval bfcl --half``), so
the report half stays unseen. Three conditional logit models are fitted by gradient ascent, with an
L2 penalty: which candidate an argument has (each against the others and against none of them),
which tool is called first (each against an answer), and which way the turn's calls are made of all
that the search for one finds. A question's right choices share their probability. Calls come in the
order of BFCL's answers.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlx_tools.decoding import RequestEvidence, Weights, fitted_weights
from mlx_tools.decoding.features import Candidate, Features, none_features
from mlx_tools.decoding.offers import Offers, Use, overlapping
from mlx_tools.decoding.opening import opening_features
from mlx_tools.decoding.outline import beside, outline
from mlx_tools.decoding.turn import PlannedCall, TurnPlanner
from mlx_tools.evaluate.bfcl_data import BfclItem, load_items, sample, wheel_path
from mlx_tools.spec import ToolSpec

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "config" / "evidence.toml"
ARGUMENTS = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "simple_java",
    "simple_javascript",
    "live_simple",
    "live_multiple",
    "irrelevance",
    "live_irrelevance",
)
TURNS = ARGUMENTS[:6]
ROUNDS = 4
TURN_AT_FIRST = {
    "turn call": -1.0,
    "turn odds": 3.0,
    "turn missing": -1.0,
    "turn cut stop": 0.5,
    "turn cut then": 0.5,
}
"""With what the search begins."""
SMALLEST = 0.05
"""A weight below this is left out."""

BY_HAND = {"free": -4.0}
FEATURES_BY_HAND = {
    "answer again": 3.0,
    "first computes": 5.0,
    "first keeps": 3.0,
    "first opens": 3.0,
    "first of one's own": 4.0,
    "turn new tool, unsaid": -1.5,
    "turn spread name": 1.5,
    "turn list cut": -0.5,
    "enum told": 5.0,
    "text file": 4.0,
    "text sum": 8.0,
    "text moment": 8.0,
    "text clause": 8.0,
}
"""Weights that are chosen here and not fitted: BFCL has no runs of several turns, no tool that
computes what a formula says, hardly a clause that goes on without a word of any tool, nor a plain
list of names in a request that does not say in words that there are several things to do. Sums in
words, times to come and whole clauses are offered only where an argument asks for one of them;
no tool there reads what is the user's own, hardly any description says what each allowed value
does, and few arguments are files."""


@dataclass(frozen=True, slots=True)
class Example:
    """One choice: the features of what can be chosen, and which of it is right."""

    category: str
    kind: str
    features: Sequence[Features]
    right: Sequence[bool]
    weight: float = 1.0


# --- what is right ----------------------------------------------------------------------------


def plain(text: str) -> str:
    """A text as BFCL compares it."""
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')


def equal(value: Any, wanted: Any) -> bool:
    """Whether a value is one that BFCL takes, objects aside."""
    if isinstance(value, str) and isinstance(wanted, str):
        return plain(value) == plain(wanted)
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return value == wanted
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(equal, value, wanted))
    return False


def same_name(name: str) -> str:
    return re.sub(r"\W", "_", name)


def right_calls(item: BfclItem) -> list[tuple[ToolSpec, Mapping[str, Any]]]:
    """The calls that BFCL wants: the tool, and what each argument may be."""
    tools = {same_name(spec.name): spec for spec in item.tools.values()}
    calls = [next(iter(answer.items())) for answer in item.answers]
    return [(tools[same_name(n)], wanted) for n, wanted in calls if same_name(n) in tools]


# --- examples ---------------------------------------------------------------------------------


def argument_examples(item: BfclItem) -> Iterator[Example]:
    """Which candidate each argument of the right calls has, of all that no call before has; left
    out is what goes on with a list of such a call."""
    offers = Offers(item.question, tuple(item.tools.values()))
    earlier: list[Use] = []
    for spec, wanted in right_calls(item):
        used: list[Use] = []
        for one in outline(spec):
            if one.kind == "other":
                continue
            allowed = wanted.get(one.about.name, [""])
            offered = [
                (candidate, features, any(equal(candidate.value, w) for w in allowed if w != ""))
                for candidate, features in offers.of(one, beside(spec))
            ]
            made = [o for o in offered if o[2] or not meets(earlier, o[0])]
            hits = [c for c, _, good in made if good and c.mentions]
            placed = [features | offers.placing(one, c, used) for c, features, _ in made]
            right = [good for _, _, good in made]
            if hits:
                free = [c for c in hits if not meets(used, c)]
                taken = min(free or hits, key=lambda candidate: candidate.start)
                used += [(one.about.name, mention) for mention in taken.mentions]
                if goes_on(offers, taken, earlier):
                    continue
            if not one.about.required:
                placed.append(none_features(one.about, one.kind, offers.context))
                right.append("" in allowed)
            if any(right) and len(right) > 1:
                yield Example(item.category, one.kind, placed, right)
        earlier += used


def meets(used: Sequence[Use], candidate: Candidate) -> bool:
    return any(overlapping(used, mention) for mention in candidate.mentions)


def goes_on(offers: Offers, candidate: Candidate, earlier: Sequence[Use]) -> bool:
    """Whether a candidate stands in a list behind what an earlier call has."""
    return any(
        overlapping(earlier, one)
        for run in offers.lists
        for one in run
        if any(m.start < run[-1].end and one.end <= m.start for m in candidate.mentions)
    )


def opening_example(item: BfclItem, weights: Weights) -> Example | None:
    """Which tool is called first, or none."""
    tools = tuple(item.tools.values())
    if not tools:
        return None
    evidence = RequestEvidence(item.question, weights, (), tools)
    calling, answer = opening_features(evidence, tools)
    wanted = {spec.name for spec, _ in right_calls(item)}
    right = [tool.name in wanted for tool in tools]
    return Example(item.category, "first", [*calling, answer], [*right, not wanted])


def turn_examples(
    items: Sequence[BfclItem], weights: Weights, penalty: float
) -> tuple[list[Example], dict[str, float]]:
    """Which way the turn is made, of those that the search finds, and the weights of that.

    What the search finds hangs on the weights, so it is done again with the better ones, and all
    that was found is kept. A question of which no way is right teaches the tools alone.
    """
    found: list[dict[str, tuple[Features, bool, bool]]] = [{} for _ in items]
    planners = [
        TurnPlanner(RequestEvidence(item.question, weights, (), tools), tools)
        for item in items
        for tools in (tuple(item.tools.values()),)
    ]
    fitted = dict(TURN_AT_FIRST)
    examples: list[Example] = []
    for _ in range(ROUNDS):
        for item, ways, planner in zip(items, found, planners, strict=True):
            planner.weights = replace(weights, features=fitted)
            for calls, features in planner.ways():
                key = repr(sorted(features.items()))
                ways[key] = (features, all_right(item, calls), tools_right(item, calls))
        examples = []
        for item, ways in zip(items, found, strict=True):
            features = [f for f, _, _ in ways.values()]
            right, weight = [good for _, good, _ in ways.values()], 1.0
            if not any(right):
                right, weight = [good for _, _, good in ways.values()], 0.7
            if any(right):
                examples.append(Example(item.category, "turn", features, right, weight))
        fitted = fit(examples, penalty)
    return examples, fitted


def turns_unseen(items: Sequence[BfclItem], weights: Weights) -> list[Example]:
    """The ways that the search finds with these weights; right or not."""
    examples = []
    for item in items:
        tools = tuple(item.tools.values())
        ways = TurnPlanner(RequestEvidence(item.question, weights, (), tools), tools).ways()
        if ways:
            right = [all_right(item, calls) for calls, _ in ways]
            examples.append(Example(item.category, "turn", [f for _, f in ways], right))
    return examples


def tools_right(item: BfclItem, calls: Sequence[PlannedCall]) -> bool:
    wanted = Counter(spec.name for spec, _ in right_calls(item))
    return Counter(call.spec.name for call in calls) == wanted


def all_right(item: BfclItem, calls: Sequence[PlannedCall]) -> bool:
    """Whether planned calls are those that BFCL wants, in any order; objects aside."""
    left = list(calls)
    for spec, wanted in right_calls(item):
        same = [call for call in left if call.spec == spec and call_right(call, wanted)]
        if not same:
            return False
        left.remove(same[0])
    return not left


def call_right(call: PlannedCall, wanted: Mapping[str, Any]) -> bool:
    for one in outline(call.spec):
        allowed = wanted.get(one.about.name, [""])
        planned = call.plan.get(one.about.name)
        if planned is None:
            good = "" in allowed or one.kind == "other"
        else:
            good = any(equal(planned.candidate.value, w) for w in allowed if w != "")
        if not good:
            return False
    return True


# --- fitting ----------------------------------------------------------------------------------


def fit(examples: Sequence[Example], penalty: float, steps: int = 400) -> dict[str, float]:
    """The weights under which the right choices are likeliest (Adam, full batches)."""
    names = sorted({name for e in examples for features in e.features for name in features})
    place = {name: number for number, name in enumerate(names)}
    rows, columns, values, group, right = [], [], [], [], []
    counts = np.array([example.weight for example in examples for _ in example.features])
    for number, example in enumerate(examples):
        for features, good in zip(example.features, example.right, strict=True):
            for name, value in features.items():
                if value:
                    rows.append(len(group))
                    columns.append(place[name])
                    values.append(value)
            group.append(number)
            right.append(good)
    row, column = np.array(rows), np.array(columns)
    value, owner, good = np.array(values, float), np.array(group), np.array(right)
    starts = np.r_[0, np.flatnonzero(np.diff(owner)) + 1]
    weights, mean, square = (np.zeros(len(names)) for _ in range(3))
    for step in range(1, steps + 1):
        scores = np.bincount(row, weights=value * weights[column], minlength=len(owner))
        likely = np.exp(scores - np.maximum.reduceat(scores, starts)[owner])
        likely /= np.add.reduceat(likely, starts)[owner]
        target = likely * good
        target /= np.maximum(np.add.reduceat(target, starts)[owner], 1e-12)
        slope = np.bincount(
            column, weights=value * (counts * (likely - target))[row], minlength=len(names)
        )
        slope += penalty * weights
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope * slope
        weights -= 0.05 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return dict(zip(names, map(float, weights), strict=True))


def shares(examples: Sequence[Example], weights: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """Of each kind of choice how many are right, and of how many."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for example in examples:
        scores = [
            sum(weights.get(name, 0.0) * value for name, value in features.items())
            for features in example.features
        ]
        best = max(range(len(scores)), key=scores.__getitem__)
        group = "live" if example.category.startswith("live") else "non-live"
        if example.kind in ("turn", "first"):
            group = example.category
        tally = found[f"{group} {example.kind}"]
        tally[0] += bool(example.right[best])
        tally[1] += 1
    return {name: (right, count) for name, (right, count) in sorted(found.items())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="score on a held-out quarter")
    parser.add_argument("--wheel", type=Path, default=None, help="the wheel with the questions")
    options = parser.parse_args()
    wheel = options.wheel or wheel_path()
    if not wheel.exists():
        print(f"{wheel} is missing: run `mlx-tools eval bfcl --limit 1` first", file=sys.stderr)
        return 1
    items = {
        name: sample(load_items(name, wheel), limit=None, seed=0, half="tune") for name in ARGUMENTS
    }
    shuffled = [item for name in ARGUMENTS for item in items[name]]
    random.Random(0).shuffle(shuffled)
    edge = len(shuffled) * 3 // 4 if options.check else len(shuffled)
    learned, held = shuffled[:edge], shuffled[edge:]
    arguments = fit([e for item in learned for e in argument_examples(item)], 0.5)
    weights = replace(fitted_weights(), features=arguments, **BY_HAND)
    for_turns = [item for item in learned if item.category in TURNS]
    features = arguments | turn_examples(for_turns, weights, 0.1)[1]
    openings = [e for item in learned if (e := opening_example(item, weights))]
    features |= fit(openings, 0.3) | FEATURES_BY_HAND
    if not options.check:
        write(features)
        print(f"{TARGET.relative_to(ROOT)}: {len(features)} features of {len(learned)} questions")
        return 0
    weights = replace(weights, features=features)
    unseen = [e for item in held for e in argument_examples(item)]
    unseen += [e for item in held if (e := opening_example(item, weights))]
    unseen += turns_unseen([item for item in held if item.category in TURNS], weights)
    for name, (right, count) in shares(unseen, features).items():
        print(f"{name:28} {right:5} of {count:5}  {right / count:.1%}")
    return 0


def write(features: Mapping[str, float]) -> None:
    """Writes the weights, by name."""
    lines = [
        "# What the words of a request say of a call, in natural logarithms of odds.",
        "# Written by `python benchmarks/fit_evidence.py`; docs/call-quality.md says how.",
        "",
        "[weights]",
        *(f"{name} = {value}" for name, value in BY_HAND.items()),
        "",
        "[features]",
        *(f'"{n}" = {v:.2f}' for n, v in sorted(features.items()) if abs(v) >= SMALLEST),
    ]
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
