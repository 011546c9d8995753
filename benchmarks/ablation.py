"""What each kind of evidence is worth in guided decoding: all of it, and each kind off in turn.

    python benchmarks/ablation.py                                 with no model at all: a minute
    python benchmarks/ablation.py --url http://127.0.0.1:8080 --limit 50 --request-weight 5

Questions are of the report half of BFCL (``mlx-tools eval bfcl``), which no weight was fitted on.
Without ``--url`` the model is mute: it finds all tokens equally likely and writes nothing, so
whatever is right was said by the words of the request; a hole that they cannot fill ends the turn.
``--out FILE`` keeps the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from mlx_tools import completer
from mlx_tools.backends import CompletionsBackend
from mlx_tools.backends.base import Backend, Chunk, CompletionRequest, TokenScore
from mlx_tools.decoding import RequestEvidence, Weights, fitted_weights
from mlx_tools.evaluate.bfcl_data import load_items, sample, wheel_path
from mlx_tools.evaluate.runner import ask_bfcl
from mlx_tools.evaluate.statistics import wilson
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.proposal import Proposer
from mlx_tools.run_settings import RunSettings

CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")

OFF: dict[str, str] = {
    "all of it": r"$^",
    "the words around": r" (before|behind)\b|elsewhere|^\w+ (from|to|between|into|and) ",
    "what kind of thing": r" as |^(text|number) (no|\w+) before ",
    "the description's examples": r"example|listed|comma|hundred|decimal",
    "units and years": r"dimension|unit|year|often|seldom",
    "where it stands": r" (late|far|apart|first|rank|later)\b|tool$| bounds ",
    "what others have": r" taken$",
    "request against answer": r"^(first|answer)",
    "the words shared with a tool": r"^first (match|shared|named|coverage)|^turn (match|named|rel)",
}
"""The features that are off, by name."""


class Mute:
    """A model that finds all tokens equally likely, and writes nothing."""

    model = "mute"

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        if request.top_logprobs:
            equally = (TokenScore("\0", -3.0), TokenScore("\1", -3.0))
            yield Chunk("\0", "length", scores=(equally,))
        else:
            yield Chunk("", "stop")


def without(pattern: str) -> Weights:
    """The fitted weights less the features that match."""
    weights = fitted_weights()
    off = re.compile(pattern)
    kept = {name: value for name, value in weights.features.items() if not off.search(name)}
    return replace(weights, features=kept)


def guidance_by(weights: Weights) -> Callable[..., RequestEvidence]:
    """What stands in for `mlx_tools.decoding.guidance`."""

    def guidance(request: str, answered: Any, tools: Any, weight: float) -> RequestEvidence:
        return RequestEvidence(request, replace(weights, request=weight), answered, tools)

    return guidance


async def measure(backend: Backend, options: argparse.Namespace, wheel: Path) -> dict[str, Any]:
    """For each variant and category: how many are right, of how many."""
    settings = RunSettings(
        style="jsonl",
        strategy="guided",
        chat_format=NAMED_FORMATS["chatml"],
        request_weight=options.request_weight,
    )
    propose = Proposer(backend, settings=settings)
    found: dict[str, Any] = {}
    for variant, pattern in OFF.items():
        completer.guidance = guidance_by(without(pattern))
        row = {}
        for category in CATEGORIES:
            items = sample(
                load_items(category, wheel), limit=options.limit, seed=options.seed, half="report"
            )
            right = [(await ask_bfcl(item, propose))["correct"] for item in items]
            row[category] = [sum(right), len(right)]
        found[variant] = row
        cells = " ".join(share(*row[category]) for category in CATEGORIES)
        print(f"{variant if variant == 'all of it' else 'without ' + variant:36} {cells}")
    return found


def share(right: int, count: int) -> str:
    low, high = wilson(right, count)
    return f"{right / count:6.1%} ({low * 100:.0f}-{high * 100:.0f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="a server with a model; none: a mute one")
    parser.add_argument("--limit", type=int, help="so many of each category; none: the whole half")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--request-weight", type=float, default=1.0)
    parser.add_argument("--out", type=Path, help="keep the figures here")
    options = parser.parse_args()
    wheel = wheel_path()
    if not wheel.exists():
        print(f"{wheel} is missing: run `mlx-tools eval bfcl --limit 1` first", file=sys.stderr)
        return 1
    backend: Any = CompletionsBackend(options.url) if options.url else Mute()
    print(" " * 36, " ".join(f"{category:>15.15}" for category in CATEGORIES))
    found = anyio.run(measure, backend, options, wheel)
    if options.out:
        given = {"url": bool(options.url), "limit": options.limit, "seed": options.seed}
        value = {"command": " ".join(["python", *sys.argv]), "half": "report", **given}
        options.out.write_text(json.dumps(value | {"right of": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
