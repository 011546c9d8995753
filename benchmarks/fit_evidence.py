"""Fits the weights of ``config/evidence.toml``: what the words of a request say of a call.

    python benchmarks/fit_evidence.py            fit and write
    python benchmarks/fit_evidence.py --check    fit on three quarters, score on the fourth, no file

No model is asked. The questions are of the tune half of BFCL (``mlx-tools eval bfcl --half``), so
the report half stays unseen. Two conditional logit models are fitted by gradient ascent with an L2
penalty: which candidate an argument has (each against the others and against none of them), and
which tool is called besides the calls made already (each against no more). A question's right
choices share their probability. Candidates come in the order of BFCL's answers, each with what the
calls before it have; the calls besides are those that guided decoding makes with no model.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlx_tools.backends.base import Chunk, CompletionRequest, TokenScore
from mlx_tools.decoding import (
    Asker,
    AskerLimits,
    Guide,
    RequestEvidence,
    Task,
    Unfilled,
    Weights,
    fitted_weights,
    guided,
)
from mlx_tools.decoding.features import Features, none_features
from mlx_tools.decoding.further import call_features
from mlx_tools.decoding.offers import Offers, Use, overlapping
from mlx_tools.decoding.outline import beside, outline
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
)
CALLS = ARGUMENTS[:6]
MAX_CALLS = 8
SMALLEST = 0.05
"""A weight below this is left out."""

BY_HAND = {"free": -4.0}
"""Weights of `Weights` that are chosen here, with the model, and not fitted."""


@dataclass(frozen=True, slots=True)
class Example:
    """One choice: the features of what can be chosen, and which of it is right."""

    category: str
    kind: str
    features: Sequence[Features]
    right: Sequence[bool]


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
    """Which candidate each argument of the right calls has."""
    offers = Offers(item.question, tuple(item.tools.values()))
    earlier: list[Use] = []
    for spec, wanted in right_calls(item):
        used: list[Use] = []
        for one in outline(spec):
            if one.kind == "other":
                continue
            allowed = wanted.get(one.about.name, [""])
            made = offers.of(one, beside(spec))
            right = [any(equal(c.value, w) for w in allowed if w != "") for c, _ in made]
            placed = [f | offers.placing(one, c, used, earlier) for c, f in made]
            hits = [c for (c, _), good in zip(made, right, strict=True) if good and c.mentions]
            if hits:
                free = [c for c in hits if not any(overlapping(used, m) for m in c.mentions)]
                taken = min(free or hits, key=lambda candidate: candidate.start)
                used += [(one.about.name, mention) for mention in taken.mentions]
            if not one.about.required:
                placed.append(none_features(one.about, one.kind, offers.context))
                right.append("" in allowed)
            if any(right) and len(right) > 1:
                yield Example(item.category, one.kind, placed, right)
        earlier += used


class Mute:
    """A model that finds all tokens equally likely, and writes nothing."""

    model = None

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        if request.top_logprobs:
            equally = (TokenScore("\0", -3.0), TokenScore("\1", -3.0))
            yield Chunk("\0", "length", scores=(equally,))
        else:
            yield Chunk("", "stop")


def call_examples(items: Sequence[BfclItem], weights: Weights) -> list[Example]:
    """Which tool is called besides, after each call of the right calls."""
    examples: list[Example] = []
    for item in items:
        wanted = Counter(spec.name for spec, _ in right_calls(item))
        if not wanted or sum(wanted.values()) > MAX_CALLS:
            continue

        def chosen(
            evidence: RequestEvidence,
            tools: Sequence[ToolSpec],
            made: Sequence[ToolSpec],
            wanted: Counter[str] = wanted,
            category: str = item.category,
        ) -> ToolSpec | None:
            left = wanted - Counter(spec.name for spec in made)
            calling, enough = call_features(evidence, tools, made)
            right = [tool.name in left for tool in tools]
            examples.append(
                Example(category, "calls", [*calling, enough], [*right, not any(right)])
            )
            return next((tool for tool in tools if tool.name in left), None)

        asyncio.run(_write(item, weights, chosen))
    return examples


async def _write(item: BfclItem, weights: Weights, chosen: Any) -> None:
    """Lets a mute model write the calls; ``chosen`` says which tool is next."""
    guided.next_tool = chosen
    asker = Asker(Mute(), "", AskerLimits(max_tokens=2000, timeout=60, idle_timeout=60))
    task = Task(style="jsonl", tools=item.tools, tool_choice="required", max_calls=MAX_CALLS)
    evidence = RequestEvidence(item.question, weights, (), tuple(item.tools.values()))
    with contextlib.suppress(Unfilled):
        await Guide(asker, task, evidence).write()


# --- fitting ----------------------------------------------------------------------------------


def fit(examples: Sequence[Example], penalty: float, steps: int = 400) -> dict[str, float]:
    """The weights under which the right choices are likeliest (Adam, full batches)."""
    names = sorted({name for e in examples for features in e.features for name in features})
    place = {name: number for number, name in enumerate(names)}
    rows, columns, values, group, right = [], [], [], [], []
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
        slope = np.bincount(column, weights=value * (likely - target)[row], minlength=len(names))
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
        if example.kind == "calls":
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
    for_calls = [item for item in learned if item.category in CALLS]
    features = arguments | fit(call_examples(for_calls, weights), 0.3)
    if not options.check:
        write(features)
        print(f"{TARGET.relative_to(ROOT)}: {len(features)} features of {len(learned)} questions")
        return 0
    weights = replace(weights, features=features)
    unseen = [e for item in held for e in argument_examples(item)]
    unseen += call_examples([item for item in held if item.category in CALLS], weights)
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
