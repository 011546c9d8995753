"""The wishes of a strong model: they should come out as it wished, at no more requests.

    python benchmarks/strong.py                       all rows, 25 questions of each category
    python benchmarks/strong.py --limit 50 --out benchmarks/call_quality/strong.json
    python benchmarks/strong.py --rows base --strategy auto --style jsonl --category multiple

A scripted model (strong_model.py) that is told the right calls of BFCL's questions, of one in
twenty a wrong one, writes them token by token; each of its tokens has the probability
``--probability``. One turn a question is asked as a run asks it. A row is a strategy and a style,
and a habit of the model or its server: the base (it writes the style that it was asked for,
compact, streamed, keys in the schema's order, likelihoods to be had), one of `HABITS`, or several.

Told are, for each row and category, how many questions came out as it wished (calls equal as
values, or an answer where it wished none), and how often the model was asked for one. ``--out``
keeps the wishes, and of each row what came out otherwise; ``--lines`` a JSON line for each
question, whose calls the official checker judges: ``bfcl_official/agree.py --category '' --results
FILE``. ``--model bytes|tokens|mangled`` asks models that know nothing: then it counts whose calls
would run though they fit no schema, whose values nobody wrote, prompts that kill a stock server or
were sent twice before, and crashes.

In this process, and nothing sleeps; ``--http`` asks over a socket, ``--latency`` makes each request
take that many seconds more.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import anyio
from jsonschema import Draft202012Validator
from questions import Wanted, categories_of, questions, same_calls, wanted
from strong_model import (
    Mangled,
    RandomBytes,
    RandomTokens,
    Served,
    Serving,
    StrongModel,
    StrongServer,
    Wish,
)
from strong_text import in_order, shuffled

from mlx_tools import CompletionsBackend, Limits, RunSettings
from mlx_tools.app.proposal import Proposal, Proposer
from mlx_tools.backends import Backend, VerdictChoice
from mlx_tools.errors import MlxToolsError
from mlx_tools.messages import Style, ToolCall, replace
from mlx_tools.plugins.evaluate.bfcl_data import BfclItem, ensure_wheel
from mlx_tools.plugins.evaluate.bfcl_score import score
from mlx_tools.prompt import NAMED_FORMATS, ChatFormat, format_from_template
from mlx_tools.protocol import judge

CATEGORIES = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "irrelevance",
)
STYLES: tuple[Style, ...] = get_args(Style)
STRATEGIES = ("auto", "guided", "free")
TEMPLATE = Path(__file__).parents[1] / "tests" / "prompt" / "templates" / "qwen2.5-tools.jinja"
UNTOLD = ("out", "lines", "wheel")
"""Options that no figure depends on."""


@dataclass(frozen=True, slots=True)
class Row:
    """A way to ask a model, and its habits. ``dialect`` None: the style's own."""

    strategy: str = "auto"
    style: str = "jsonl"
    dialect: str | None = None
    spacing: str = "compact"
    escapes: bool = False
    likelihoods: bool = True
    streamed: bool = True
    shuffled: bool = False
    stubborn: bool = False
    thinks_as: str = ""

    @property
    def habits(self) -> str:
        """The difference from the base."""
        return ", ".join(name for name, habit in HABITS.items() if _has(self, habit)) or "base"


HABITS: Mapping[str, Mapping[str, Any]] = {
    "hermes": {"dialect": "hermes"},
    "blanks": {"spacing": "blank"},
    "indented": {"spacing": "pretty"},
    "escapes": {"escapes": True},
    "no likelihoods": {"likelihoods": False},
    "whole": {"streamed": False},
    "shuffled": {"shuffled": True},
    "stubborn": {"dialect": "hermes", "stubborn": True},
    "stubborn tags": {"dialect": "qwen3-coder", "stubborn": True},
    "thinks as OpenAI": {"thinks_as": "OpenAI"},
    "thinks as Anthropic": {"thinks_as": "Anthropic"},
    "thinks as Gemma": {"thinks_as": "Gemma"},
}
"""Habits of models and servers: another dialect, blanks after ``:`` and ``,``, one member a line,
``\\u`` for what is not ASCII, a server without likelihoods or that does not stream, keys in any
order, another dialect that it begins anew on a new line, whatever the host began, and thoughts in
the form of one of three families."""

ALL = {"dialect": "hermes", "spacing": "blank", "likelihoods": False, "shuffled": True}
"""Several at once."""


def _has(row: Row, habit: Mapping[str, Any]) -> bool:
    return all(getattr(row, key) == value for key, value in habit.items())


def rows(strategies: Sequence[str], styles: Sequence[str], habits: Sequence[str]) -> list[Row]:
    """The rows; ``free`` has the base alone, where nothing is there to be harmed."""
    known: dict[str, Mapping[str, Any]] = {"base": {}, **HABITS, "several": ALL}
    chosen = [known[name] for name in habits]
    return [
        replace(Row(strategy, style), **habit)
        for strategy in strategies
        for style in styles
        for habit in (chosen if strategy != "free" else chosen[:1])
    ]


# --- asking -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One question, and what is wished of it."""

    item: BfclItem
    wanted: Wanted


@dataclass(slots=True)
class Tally:
    """The result of a row in a category. ``otherwise`` is what did not come out as wished."""

    asked: int = 0
    as_wished: int = 0
    correct: int = 0
    requests: int = 0
    most_requests: int = 0
    deadly: int = 0
    repeated: int = 0
    crashed: int = 0
    unfit: int = 0
    invented: int = 0
    ran: int = 0
    seconds: float = 0.0
    otherwise: dict[str, Any] = field(default_factory=dict)


def cases(category: str, options: argparse.Namespace, wheel: Path) -> list[Case]:
    """The questions of a category; those whose right calls fit no schema are passed over."""
    found: list[Case] = []
    for item in questions(category, wheel, seed=options.seed, half="all"):
        wish = wanted(item, mistaken=options.mistaken)
        if wish is not None:
            found.append(Case(item, wish))
        if len(found) == options.limit:
            break
    return found


def model_for(case: Case, row: Row, options: argparse.Namespace) -> Served:
    """The model that is asked this question."""
    serving = Serving(likelihoods=row.likelihoods, whole=not row.streamed, latency=options.latency)
    if options.model == "bytes":
        return RandomBytes(options.seed, serving=serving)
    if options.model == "tokens":
        return RandomTokens(options.seed, serving=serving)
    strong = StrongModel(
        Wish(ordered(case, row.shuffled)),
        dialect=row.dialect or _own(row.style),
        spacing=row.spacing,  # type: ignore[arg-type]
        escapes=row.escapes,
        stubborn=row.stubborn,
        thought="The user wants something, and a tool may help." if row.thinks_as else "",
        thinks_as=row.thinks_as,
        probability=options.probability,
        seed=options.seed,
        serving=serving,
    )
    return strong if options.model == "strong" else Mangled(strong, serving=serving)


@functools.cache
def _native_format() -> ChatFormat:
    """The chat format of a model whose own template has it call in Hermes' form."""
    return format_from_template(
        TEMPLATE.read_text(encoding="utf-8"), name="hermes", eos_token="<|im_end|>", adds_bos=False
    )


def _own(style: str) -> str:
    """The dialect that a style asks for: a native one is that of the model's template."""
    return "hermes" if style == "native" else style


def ordered(case: Case, mixed: bool) -> tuple[ToolCall, ...]:
    """The wished calls, their keys in the schema's order or in any."""
    tools, chance = case.item.tools, random.Random(case.item.id)
    return tuple(
        replace(
            call,
            arguments=shuffled(call.arguments, chance)
            if mixed
            else in_order(call.arguments, tools[call.name].parameters),
        )
        for call in case.wanted.calls
    )


@contextlib.asynccontextmanager
async def reached(model: Served, over_http: bool) -> AsyncIterator[Backend]:
    """The model, in this process or over a socket."""
    if not over_http:
        yield model
        return
    with StrongServer(model) as server:
        yield CompletionsBackend(server.url)


async def ask(case: Case, row: Row, options: argparse.Namespace) -> dict[str, Any]:
    """One question's result."""
    item, model = case.item, model_for(case, row, options)
    settings = RunSettings(
        chat_format=_native_format() if row.style == "native" else NAMED_FORMATS["chatml"],
        style=row.style,  # type: ignore[arg-type]
        strategy=row.strategy,  # type: ignore[arg-type]
        verdict=VerdictChoice(),
    )
    limits = Limits(max_tokens=options.max_tokens)
    began = time.perf_counter()
    proposal, failed, crashed = Proposal(), None, False
    async with reached(model, options.http) as backend:
        propose = Proposer(backend, settings=settings, limits=limits)
        try:
            proposal = await propose(
                item.question, item.tools, history=item.history, context=item.context
            )
        except Exception as error:  # a crash is a result too, and the worst
            failed = f"{type(error).__name__}: {error}"
            crashed = not isinstance(error, MlxToolsError)
    wished = same_calls(proposal.calls, case.wanted.calls) and proposal.error is None
    if not case.wanted.calls:
        wished = wished and proposal.answered
    ran = [one.call for one in judge(proposal.reading, proposal.tools) if one.error is None]
    return {
        "type": "item",
        "category": item.category,
        "id": item.id,
        "strategy": row.strategy,
        "row": asdict(row),
        "wish_right": case.wanted.right,
        "as_wished": wished,
        "correct": score(item.category, item.functions, proposal.calls, item.answers).correct,
        "calls": [_call(call) for call in proposal.calls],
        "error": failed or proposal.error,
        "crashed": crashed,
        "requests": len(model.asked),
        "deadly": sum(asked.deadly for asked in model.asked),
        "repeated": repeated(model),
        "ran": len(ran),
        "unfit": sum(not _valid(call, proposal) for call in ran),
        "invented": [text for call in ran for text in invented(call, proposal, model)],
        "completion": proposal.completion,
        "seconds": round(time.perf_counter() - began, 4),
    }


def repeated(model: Served) -> int:
    """The number of requests with a prompt that was sent twice before."""
    counts = Counter(asked.prompt for asked in model.asked)
    return sum(max(0, count - 2) for count in counts.values())


def _call(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": dict(call.arguments)}


def _valid(call: ToolCall, proposal: Proposal) -> bool:
    schema = proposal.tools[call.name].parameters
    return call.name in proposal.tools and Draft202012Validator(schema).is_valid(
        dict(call.arguments)
    )


def invented(call: ToolCall, proposal: Proposal, model: Served) -> list[str]:
    """The values of a call that nobody wrote: neither the model, in as many pieces as it was asked
    at most, nor the tool's schema, nor among the tokens that it was asked about."""
    schema = json.dumps(proposal.tools[call.name].parameters, ensure_ascii=False)
    texts = [asked.written for asked in model.asked]
    texts += [_unescaped(text) for text in texts]
    texts += [_unescaped(proposal.completion)] if proposal.requests == 1 else []
    tokens = [token for asked in model.asked for token in asked.offered]
    pieces = 2 * len(model.asked)
    return [
        value
        for value in _leaves(call.arguments)
        if value not in schema and not _made_of(value, [*texts, *tokens], pieces)
    ]


def _unescaped(text: str) -> str:
    try:
        return str(
            json.loads('"' + text.replace('"', '\\"').replace('\\\\"', '\\"') + '"', strict=False)
        )
    except ValueError:
        return text


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield str(key)
            yield from _leaves(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        is_whole = math.isfinite(value) and value == int(value)
        yield str(int(value)) if is_whole else repr(value)


def _made_of(value: str, texts: Sequence[str], pieces: int) -> bool:
    """Return True if a value can be put together of so many pieces, each in one of the texts."""
    at = 0
    for _ in range(pieces):
        if at == len(value):
            return True
        longest = 0
        for text in texts:
            low, high = longest, len(value) - at
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if value[at : at + middle] in text else (low, middle - 1)
            longest = low
        if not longest:
            return False
        at += longest
    return at == len(value)


# --- telling ------------------------------------------------------------------------------------


def add(tally: Tally, result: Mapping[str, Any], *, knows: bool = True) -> None:
    """Count a result in. Of a model that ``knows`` nothing what it wrote is kept where it is a
    fault."""
    tally.asked += 1
    tally.as_wished += result["as_wished"]
    tally.correct += result["correct"]
    tally.requests += result["requests"]
    tally.most_requests = max(tally.most_requests, result["requests"])
    tally.deadly += result["deadly"]
    tally.repeated += result["repeated"]
    tally.crashed += result["crashed"]
    tally.ran += result["ran"]
    tally.unfit += result["unfit"]
    tally.invented += len(result["invented"])
    tally.seconds = round(tally.seconds + result["seconds"], 4)
    faulty = result["crashed"] or result["unfit"] or result["invented"]
    if faulty or (knows and not result["as_wished"]):
        kept = ("calls", "error", "completion", "requests", "invented")
        tally.otherwise[result["id"]] = {key: result[key] for key in kept}


def told(row: Row, tallies: Mapping[str, Tally]) -> str:
    """A row of the table."""
    cells = " ".join(f"{one.as_wished:>4}/{one.asked:<4}" for one in tallies.values())
    asked = sum(one.asked for one in tallies.values())
    wished = sum(one.as_wished for one in tallies.values())
    requests = sum(one.requests for one in tallies.values())
    most = max(one.most_requests for one in tallies.values())
    line = f"{row.strategy:7} {row.style:13} {row.habits:36} {cells} {wished / asked:7.1%}"
    line += f"  {requests / asked:5.2f} requests, at most {most}"
    for name in ("crashed", "deadly", "repeated", "unfit", "invented"):
        if number := sum(getattr(one, name) for one in tallies.values()):
            line += f", {number} {name}"
    return line


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rows. They take turns at each question, and who is first changes: what is made once, for
    the first to need it, is no row's cost."""
    wheel = options.wheel or ensure_wheel()
    known = {name: cases(name, options, wheel) for name in categories_of(options.category)}
    chosen = rows(*(getattr(options, key) for key in ("strategy", "style", "rows")))
    tallies = [{name: Tally() for name in known} for _ in chosen]
    with contextlib.ExitStack() as stack:
        lines = options.lines and stack.enter_context(options.lines.open("w", encoding="utf-8"))
        for category, some in known.items():
            for turn, case in enumerate(some):
                for place in range(len(chosen)):
                    number = (place + turn) % len(chosen)
                    result = await ask(case, chosen[number], options)
                    add(tallies[number][category], result, knows=options.model == "strong")
                    if lines:
                        lines.write(json.dumps(result, ensure_ascii=False) + "\n")
            print(f"{category}: {len(some)}", file=sys.stderr, flush=True)
    print(" " * 58, " ".join(f"{name[:9]:>9}" for name in known))
    right = [f"{sum(c.wanted.right for c in some):>4}/{len(some):<4}" for some in known.values()]
    print(f"{'wish right':58}", " ".join(right))
    found = []
    for row, own in zip(chosen, tallies, strict=True):
        print(told(row, own))
        of = {name: asdict(tally) for name, tally in own.items()}
        found.append({"row": asdict(row), "habits": row.habits, "of": of})
    return {"wishes": {name: _wishes(some) for name, some in known.items()}, "rows": found}


def _wishes(some: Sequence[Case]) -> dict[str, Any]:
    return {
        case.item.id: {
            "right": case.wanted.right,
            "calls": [_call(call) for call in case.wanted.calls],
        }
        for case in some
    }


def _names(allowed: Sequence[str]) -> Any:
    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")] if text != "all" else list(allowed)
        if unknown := [name for name in names if name not in allowed]:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(allowed)}")
        return names

    return read


def main(arguments: Sequence[str] | None = None) -> None:
    habits = ("base", *HABITS, "several")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--model", choices=("strong", "bytes", "tokens", "mangled"), default="strong"
    )
    parser.add_argument("--category", default=",".join(CATEGORIES), help="some of BFCL's; fresh")
    parser.add_argument("--limit", type=int, default=25, help="questions of each category")
    parser.add_argument("--seed", type=int, default=0, help="which are drawn, and all chance")
    parser.add_argument("--strategy", type=_names(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--style", type=_names(STYLES), default=list(STYLES))
    parser.add_argument("--rows", type=_names(habits), default=list(habits), help="habits, or base")
    parser.add_argument("--probability", type=float, default=0.97, help="of each wished token")
    parser.add_argument("--mistaken", type=int, default=20, help="one in so many wishes; 0: none")
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds more for each request")
    parser.add_argument("--http", action="store_true", help="over a socket")
    parser.add_argument("--wheel", type=Path, help="BFCL's package; it is fetched by default")
    parser.add_argument("--out", type=Path, help="keep the figures, and the wishes")
    parser.add_argument("--lines", type=Path, help="keep a JSON line for each question")
    options = parser.parse_args(arguments)
    found = anyio.run(measure, options)
    if options.out:
        given = {key: value for key, value in vars(options).items() if key not in UNTOLD}
        text = json.dumps({"options": given} | found, ensure_ascii=False, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
