"""What each part of guided decoding is worth: all of it, and each part off in turn.

    python benchmarks/ablation.py                                 kinds of evidence, with no model
    python benchmarks/ablation.py --parts --url http://127.0.0.1:8080 --limit 50 --request-weight 5

Questions are of the report half of BFCL (``mlx-tools eval bfcl``), which no weight was fitted on.
Without ``--url`` the model is mute: it finds all tokens equally likely and writes nothing, so
whatever is right was said by the words of the request; a hole that they cannot fill ends the turn.
The first form takes kinds of evidence away, ``--parts`` the parts that a model is needed for.
``--out FILE`` keeps the figures as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from mlx_tools import completer
from mlx_tools.backends import CompletionsBackend
from mlx_tools.backends.base import Backend, Chunk, CompletionRequest, TokenScore
from mlx_tools.decoding import Asker, RequestEvidence, Weights, choice, fitted_weights, guided
from mlx_tools.evaluate.bfcl_data import load_items, sample, wheel_path
from mlx_tools.evaluate.runner import ask_bfcl
from mlx_tools.evaluate.statistics import wilson
from mlx_tools.policy import Limits
from mlx_tools.prompt import NAMED_FORMATS, opening
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
"""The kinds of evidence: the features that are off, by name."""

NO_REACH = "tokens that reach over a hole"
PARTS: dict[str, str] = {
    "all of it": r"$^",
    "the request's candidates": r"^(number|text|list|enum|truth|allowed)",
    "the words shared with a tool": r"^first (match|shared|named|coverage)|^turn (match|named|rel)",
    "calibration": r"$^",
    NO_REACH: r"$^",
    "examples": r"$^",
    "style jsonl, with markdown-json": r"$^",
    "style jsonl, with xml": r"$^",
}
"""The parts that a model is needed for; `switched` takes away those that are no features."""


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


@contextlib.contextmanager
def switched(part: str) -> Iterator[str]:
    """Without a part of `PARTS`; gives the style to be asked in."""
    kept = guided.liking, choice._goes_on, opening.build_examples

    async def no_liking(asker: Asker, before: str, texts: Sequence[str]) -> list[float]:
        return [0.0] * len(texts)

    if part == "calibration":
        guided.liking = no_liking
    if part == NO_REACH:
        choice._goes_on = lambda rest, token: bool(token) and rest.startswith(token)
    if part == "examples":
        opening.build_examples = lambda words, tools, style: ()
    try:
        yield part.rpartition(" with ")[2] if part.startswith("style") else "jsonl"
    finally:
        guided.liking, choice._goes_on, opening.build_examples = kept


def guidance_by(weights: Weights) -> Callable[..., RequestEvidence]:
    """What stands in for `mlx_tools.decoding.guidance`."""

    def guidance(request: str, answered: Any, tools: Any, weight: float) -> RequestEvidence:
        return RequestEvidence(request, replace(weights, request=weight), answered, tools)

    return guidance


async def measure(backend: Backend, options: argparse.Namespace, wheel: Path) -> dict[str, Any]:
    """For each variant and category: how many are right, of how many."""
    settings = RunSettings(
        strategy="guided",
        chat_format=NAMED_FORMATS["chatml"],
        request_weight=options.request_weight,
    )
    found: dict[str, Any] = {}
    for variant, pattern in (PARTS if options.parts else OFF).items():
        completer.guidance = guidance_by(without(pattern))
        row = {}
        with switched(variant) as style:
            limits = Limits(max_tokens=options.max_tokens)
            chosen = replace(settings, style=style)
            propose = Proposer(backend, settings=chosen, limits=limits)
            for category in options.category.split(","):
                items = sample(
                    load_items(category, wheel),
                    limit=options.limit,
                    seed=options.seed,
                    half="report",
                )
                right = [(await ask_bfcl(item, propose))["correct"] for item in items]
                row[category] = [sum(right), len(right)]
        found[variant] = row
        cells = " ".join(share(*counts) for counts in row.values())
        print(
            f"{variant if variant == 'all of it' else 'without ' + variant:42} {cells}", flush=True
        )
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
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--category", default=",".join(CATEGORIES), help="some of BFCL's, by comma")
    parser.add_argument("--parts", action="store_true", help="the parts that a model is needed for")
    parser.add_argument("--out", type=Path, help="keep the figures here")
    options = parser.parse_args()
    wheel = wheel_path()
    if not wheel.exists():
        print(f"{wheel} is missing: run `mlx-tools eval bfcl --limit 1` first", file=sys.stderr)
        return 1
    backend: Any = CompletionsBackend(options.url) if options.url else Mute()
    print(" " * 42, " ".join(f"{category:>15.15}" for category in options.category.split(",")))
    found = anyio.run(measure, backend, options, wheel)
    if options.out:
        given = {"url": bool(options.url), "limit": options.limit, "seed": options.seed}
        value = {"command": " ".join(["python", *sys.argv]), "half": "report", **given}
        options.out.write_text(json.dumps(value | {"right of": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
