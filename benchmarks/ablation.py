"""The worth of each part of how a model is asked: strategies, styles, the examples.

    python benchmarks/ablation.py --category fresh                   a mute model: what is nobody's
    python benchmarks/ablation.py --url http://127.0.0.1:8080 --limit 50 --half report \\
        --category multiple,live_simple,fresh --rows auto,free --out FILE

A row changes one thing of the first, which is strategy ``auto`` in style ``jsonl`` with the
examples. Questions are BFCL's and the fresh ones (questions.py), one turn each, asked and scored as
`mlx-tools eval bfcl` does; ``--out`` is a file of results as it writes them, a row for a strategy,
so a run that breaks off is gone on with. Without ``--url`` the model is mute: it finds all tokens
equally likely and writes nothing, so whatever is right then, no model said.

A switch that changes nothing measures nothing: before a row is measured, what it asks of a model is
held against the first row's, and where that is the same, it ends here.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args
from unittest import mock

import anyio
from questions import categories_of, questions
from strong_model import Mangled, StrongModel, Wish

from mlx_tools import Limits, RunSettings
from mlx_tools.app.proposal import Proposer
from mlx_tools.app.results import Results, describe_run
from mlx_tools.app.statistics import Share, mcnemar
from mlx_tools.backends import (
    Backend,
    Chunk,
    CompletionRequest,
    CompletionsBackend,
    TokenScore,
    VerdictChoice,
    find_served_format,
    inspect_server,
)
from mlx_tools.messages import ToolCall, ToolSpec, replace
from mlx_tools.plugins.evaluate.bfcl_data import BfclItem, Half, ensure_wheel, run_bfcl
from mlx_tools.prompt import NAMED_FORMATS, PROMPTED_STYLES, opening

CATEGORIES = "simple_python,multiple,live_simple,live_multiple,irrelevance,fresh"


@dataclass(frozen=True, slots=True)
class Row:
    """A change of how a model is asked."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    examples: Literal["two", "many", "none"] = "two"


ROWS: Mapping[str, Row] = {
    "auto": Row(),
    "free": Row({"strategy": "free"}),
    "guided": Row({"strategy": "guided"}),
    **{f"style {style}": Row({"style": style}) for style in PROMPTED_STYLES if style != "jsonl"},
    "many examples": Row(examples="many"),
    "no examples": Row(examples="none"),
}


class Mute:
    """A model that finds all tokens equally likely, and writes nothing."""

    model = "mute"

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        """Nothing, or two tokens alike."""
        if request.top_logprobs:
            equally = (TokenScore("\0", -3.0), TokenScore("\1", -3.0))
            yield Chunk("\0", "length", scores=(equally,))
        else:
            yield Chunk("", "stop")


@contextlib.contextmanager
def switched(row: Row) -> Iterator[None]:
    """Show the row's examples."""
    many = partial(opening.build_examples, weak_model=True)
    others = {"none": lambda *_, **__: (), "many": lambda *given, **__: many(*given)}
    with contextlib.ExitStack() as stack:
        if build := others.get(row.examples):
            stack.enter_context(mock.patch.object(opening, "build_examples", build))
            stack.enter_context(mock.patch.dict(opening._parts_cache, clear=True))
        yield


class Switched:
    """A `Proposer` that asks as a row has it."""

    def __init__(self, row: Row, backend: Backend, settings: RunSettings, limits: Limits) -> None:
        given = {"strategy": "auto", "style": "jsonl", "verdict": VerdictChoice(), **row.settings}
        self.settings = replace(settings, **given)
        self._row = row
        self._propose = Proposer(backend, settings=self.settings, limits=limits)

    async def __call__(self, question: str, tools: Mapping[str, ToolSpec], **more: Any) -> Any:
        """The text that the model would write."""
        with switched(self._row):
            return await self._propose(question, tools, **more)


# --- a switch that switches ---------------------------------------------------------------------

QUESTION = "How warm is it in Oslo?"
TOOL = ToolSpec(
    "weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


async def fingerprint(row: Row) -> tuple[str, ...]:
    """Prompts of a row to models that write a known call in another form, half right, or with bytes
    changed: all their prompts, and what they were let write. Strategies differ in what they make of
    that."""
    call = ToolCall("weather", {"city": "Oslo"})
    chatml = RunSettings(chat_format=NAMED_FORMATS["chatml"])
    asked: list[str] = []
    for model in (
        StrongModel(Wish((call,)), dialect="hermes"),
        StrongModel(Wish((ToolCall("weather", {"city": ["Oslo", "Rome"], "country": "Norway"}),))),
        Mangled(StrongModel(Wish((call,))), every=12),
    ):
        await Switched(row, model, chatml, Limits(max_tokens=200))(QUESTION, {"weather": TOOL})
        asked += [text for one in model.asked for text in (one.prompt, one.text)]
    return tuple(asked)


async def check(rows: Sequence[str], known: Mapping[str, Row] = ROWS) -> None:
    """Raise where the switch of a row changes nothing."""
    first = await fingerprint(known["auto"])
    for name in rows:
        if name != "auto" and await fingerprint(known[name]) == first:
            raise SystemExit(f"{name}: this switch changes nothing of what a model is asked")


# --- measuring ----------------------------------------------------------------------------------


async def find_model_name(options: argparse.Namespace) -> tuple[Backend, RunSettings]:
    """The model that is asked, and how it is spoken to."""
    if not options.url:
        return Mute(), RunSettings(chat_format=NAMED_FORMATS["chatml"])
    chosen = await inspect_server(CompletionsBackend(options.url, options.model))
    found = await find_served_format(
        chosen.backend, options.chat_format, files=chosen.files, model=chosen.model
    )
    if found.doubt:
        print(found.doubt, file=sys.stderr)
    return chosen.backend, RunSettings(chat_format=found.chat_format)


async def measure(options: argparse.Namespace) -> Sequence[Mapping[str, Any]]:
    """The results of all questions by all rows."""
    await check(options.rows)
    backend, settings = await find_model_name(options)
    limits = Limits(
        max_tokens=options.max_tokens,
        completion_timeout=600,
        idle_timeout=600,
        total_timeout=1200,
    )
    items = [item for category in options.category for item in drawn(category, options)]
    proposers = {name: Switched(ROWS[name], backend, settings, limits) for name in options.rows}
    more = {"model": options.model, "url": bool(options.url), "half": options.half}
    about = describe_run(settings, limits, seed=options.seed, **more)
    with Results(options.out, "ablation", about) as results:
        return await run_bfcl(items, proposers, results)


def drawn(category: str, options: argparse.Namespace) -> list[BfclItem]:
    """The questions of a category."""
    half: Half = options.half
    wheel = options.wheel or ensure_wheel()
    return questions(category, wheel, limit=options.limit, seed=options.seed, half=half)


# --- telling ------------------------------------------------------------------------------------


def table(results: Sequence[Mapping[str, Any]], rows: Sequence[str]) -> str:
    """Shares with their 95 % intervals, and of each row on how many questions only it was right, or
    only the first."""
    right: dict[tuple[str, str], dict[str, bool]] = {}
    for one in results:
        right.setdefault((one["strategy"], one["category"]), {})[one["id"]] = one["correct"]
    lines = [f"{'':28} {'':12} {'correct':24} only this, only {rows[0]}"]
    for category in dict.fromkeys(one["category"] for one in results):
        for row in rows:
            found, first = right[row, category], right[rows[0], category]
            share = Share(sum(found.values()), len(found))
            low, high = (100 * end for end in share.interval)
            only = sum(found[one] and not first[one] for one in found)
            less = sum(first[one] and not found[one] for one in found)
            pair = "" if row == rows[0] else f"{only}, {less} (p {mcnemar(only, less):.2g})"
            cell = f"{share.hits} of {share.total} ({low:.0f}-{high:.0f} %)"
            lines.append(f"{category:28} {row:12} {cell:24} {pair}".rstrip())
    return "\n".join(lines)


def _rows(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in ROWS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(ROWS)}")
    return names


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", help="a server with a model; none: a mute one")
    parser.add_argument("--model", help="its model, where it must be named")
    parser.add_argument("--chat-format", default="auto", help="its model's chat format")
    parser.add_argument("--rows", type=_rows, default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--category", type=categories_of, default=categories_of(CATEGORIES))
    parser.add_argument("--limit", type=int, help="so many of each category; none: all")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--half", default="report", choices=get_args(Half), help="of BFCL's")
    parser.add_argument("--wheel", type=Path, help="BFCL's package; it is fetched by default")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument(
        "--out", type=Path, help="keep the results; what is there is not asked again"
    )
    options = parser.parse_args(arguments)
    print(table(anyio.run(measure, options), options.rows))


if __name__ == "__main__":
    main()
