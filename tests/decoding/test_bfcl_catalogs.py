"""Guided turns over real catalogs, BFCL's, from backends that write rubbish or know the answer.

The slow test takes every question; the others a sample of each category. They need BFCL's package
in the cache (`mlx-tools eval bfcl` fetches it), or its wheel in the folder ``MLX_TOOLS_SUITES``.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import Chunk, CompletionRequest, Limits, RunSettings
from mlx_tools.decoding import Asker, AskerLimits, Guide, Task, guidance
from mlx_tools.decoding.asker import MAX_REQUESTS
from mlx_tools.evaluate.bfcl_data import CATEGORIES, BfclItem, load_items, sample, wheel_path
from mlx_tools.proposal import Proposal, Proposer
from mlx_tools.protocol import Style, validate_arguments, write_answer, write_call
from tests.conftest import ENVIRON

from .schemas import Oracle, Rubbish

STYLES: tuple[Style, ...] = ("jsonl", "markdown-json", "xml")
CHOICES = ("required", "auto")
SAMPLE = 3
"""So many questions of each category in the default run."""

MOST = 600
"""Tokens of a turn."""


def wheel() -> Path:
    """BFCL's package, where it is on this machine."""
    cached = wheel_path(ENVIRON)
    suites = Path(ENVIRON["MLX_TOOLS_SUITES"]) if "MLX_TOOLS_SUITES" in ENVIRON else None
    for path in (cached, *(suites.rglob(cached.name) if suites is not None else ())):
        if path.is_file():
            return path
    pytest.skip("BFCL's package is neither in the cache nor in MLX_TOOLS_SUITES")


def items_of(category: str, limit: int | None) -> list[BfclItem]:
    items = sample(load_items(category, wheel()), limit=limit, seed=7)
    assert items
    return items


class Recorded:
    """Keeps what the backend wrote, and how often it was asked."""

    model = "recorded"

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.requests: list[CompletionRequest] = []
        self.said: list[str] = []

    @property
    def free(self) -> list[str]:
        """What it wrote, likelihoods aside: a long text comes in several of these."""
        pairs = zip(self.requests, self.said, strict=True)
        return [text for request, text in pairs if not request.top_logprobs]

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        self.requests.append(request)
        texts: list[str] = []
        self.said.append("")
        async for chunk in self._backend.complete(request):
            texts.append(chunk.text)
            self.said[-1] = "".join(texts)
            yield chunk


def proposed(item: BfclItem, backend: Any, style: Style, choice: str) -> Proposal:
    settings = RunSettings(
        strategy="guided", style=style, tool_choice=choice if item.tools else "auto"
    )
    limits = Limits(max_tokens=MOST, total_timeout=600)
    propose = Proposer(backend, settings=settings, limits=limits)

    async def main() -> Proposal:
        return await propose(item.question, item.tools, history=item.history, context=item.context)

    return anyio.run(main)


# --- where a value comes from -----------------------------------------------------------------

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|["\\/bfnrt])')


def unescaped(text: str) -> str:
    """A text as JSON reads it, without the escapes that stand for neither letter nor digit."""
    return ESCAPE.sub(lambda escape: chr(int(escape[1], 16)) if escape[1] else "", text)


def leaves(value: Any) -> Iterator[Any]:
    """The texts and numbers of a value, the keys of its objects too."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    elif not isinstance(value, bool) and value is not None:
        yield value


def bare(text: str) -> str:
    """The letters and digits of a text."""
    return re.sub(r"[\W_]+", "", text.casefold())


MONTHS = re.findall("...", "janfebmaraprmayjunjulaugsepoctnovdec")
WORDS = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen twenty",
)
ROUND = {"thirty": 3, "forty": 4, "fifty": 5, "sixty": 6, "seventy": 7, "eighty": 8, "ninety": 9}
OFTEN = {"yearly": 1, "annually": 1, "quarterly": 4, "monthly": 12, "weekly": 52, "daily": 365}
OTHER = OFTEN | {"once": 1, "twice": 2, "half": 5, "quarter": 25, "couple": 2, "dozen": 12, "a": 1}
ORDINALS = {"first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12}


TIMES = (60, 3600, 24, 1440, 86400, 7, 12, 1000)
"""By what a number is multiplied where it is told in another unit: of time, most of all."""


def figures(number: float | str) -> str:
    """The digits of a number without zeros at either end: what is left of it where its unit is
    changed (5 % is 0.05, 3 million 3000000)."""
    return re.sub(r"[eE].*|\D", "", f"{float(number):.12g}").strip("0")


def numbers(text: str) -> set[str]:
    """The figures of all numbers that a text tells, in digits or in words."""
    found = {figures(n) for n in NUMBER.findall(re.sub(r"(?<=\d),(?=\d{3})", "", text))}
    found |= {figures(n) for n in re.findall(r"\d+", text)}
    for word in re.findall(r"[a-z]+", text.casefold()):
        stem = word.removesuffix("th").removesuffix("s")
        known = ROUND | OTHER | ORDINALS | {name: n for n, name in enumerate(WORDS)}
        found |= {figures(known[one]) for one in (word, stem) if one in known}
        if word[:3] in MONTHS:
            found.add(figures(MONTHS.index(word[:3]) + 1))
    return found


class Sources:
    """All that a value may come from: the request, the tools, what the backend wrote."""

    def __init__(self, item: BfclItem, backend: Recorded) -> None:
        written = ["".join(backend.said), "".join(backend.free)]
        tools = json.dumps([spec.parameters for spec in item.tools.values()], ensure_ascii=False)
        if "boolean" in tools.lower():  # a text that its description calls a truth value
            tools += " true false"
        said = "\n".join([item.question, item.context, *(m["content"] for m in item.history)])
        texts = [said, tools, *written, *map(unescaped, written)]
        self._bare = [bare(text) for text in texts]
        asked = {figures(float(n) * times) for n in numbers(said) if n for times in TIMES}
        self._numbers = asked.union(*map(numbers, texts))
        self._two_digits = {digits[-2:].lstrip("0") for digits in self._numbers}

    def hold(self, value: Any) -> bool:
        """Whether the value stands in one of them: its letters and digits, whatever is between; a
        number up to its unit; or a date part by part."""
        text = value if isinstance(value, str) else json.dumps(value)
        if any(bare(text) in source for source in self._bare):
            return True
        if not isinstance(value, str):
            return figures(value) in self._numbers
        parts = re.findall(r"\d+", text)
        whole = re.fullmatch(r"[\d\W]+", text.replace("T", " ").replace("Z", " "))
        return bool(whole and parts) and all(
            {figures(part)} & (self._numbers | self._two_digits | {""}) for part in parts
        )


def check(item: BfclItem, proposal: Proposal, backend: Recorded) -> None:
    """Valid with no repair, or unfilled, or an answer without end; bounded; nothing made up."""
    endless = proposal.error == "truncated_output" and not proposal.calls
    assert proposal.valid or endless or proposal.error == "unfilled", proposal
    assert len(backend.requests) <= MAX_REQUESTS
    assert (proposal.pieces or 0) <= MOST + 64
    sources = Sources(item, backend)
    for call in proposal.calls:
        fitting, coercions, error = validate_arguments(item.tools[call.name], call.arguments)
        assert error is None and not coercions and fitting == call.arguments and not call.repairs
        for value in leaves(call.arguments):
            assert sources.hold(value), (value, proposal.completion)


# --- backends that write rubbish --------------------------------------------------------------


def rubbish(category: str, limit: int | None) -> None:
    for number, item in enumerate(items_of(category, limit)):
        for seed in (2 * number, 2 * number + 1):
            style, choice = STYLES[seed % 3], CHOICES[seed // 3 % 2]
            backend = Recorded(Rubbish(seed, scores=bool(seed % 2)))
            check(item, proposed(item, backend, style, choice), backend)


@pytest.mark.slow
@pytest.mark.parametrize("category", CATEGORIES)
def test_rubbish_becomes_a_valid_call_or_none_over_real_catalogs(category: str) -> None:
    rubbish(category, SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("category", CATEGORIES)
def test_rubbish_becomes_a_valid_call_or_none_over_all_of_them(category: str) -> None:
    rubbish(category, None)


# --- backends that know the answer ------------------------------------------------------------

ANSWERED = tuple(c for c in CATEGORIES if "relevance" not in c and "java" not in c)


def first(allowed: Any) -> Any:
    """The first of the values that BFCL takes for right; None where there is none to be given.

    Among them '' stands for nothing at all, and within objects they stand in lists again.
    """
    values = allowed if isinstance(allowed, list) else [allowed]
    value = next((one for one in values if one != ""), None)
    if isinstance(value, Mapping):
        return {key: given for key, inner in value.items() if (given := first(inner)) is not None}
    return value


def has_empty_array(value: Any) -> bool:
    """Whether there is one in it: guided decoding never chooses one, as docs/decoding.md says."""
    if isinstance(value, Mapping):
        return any(map(has_empty_array, value.values()))
    return isinstance(value, list) and (not value or any(map(has_empty_array, value)))


def in_order(value: Any, schema: Mapping[str, Any]) -> Any:
    """The value with its keys as they are asked for: needed ones first, else as in the schema."""
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return [in_order(one, schema["items"]) for one in value]
    if not isinstance(value, Mapping):
        return value
    known, needed = schema.get("properties", {}), schema.get("required", ())
    keys = sorted(known, key=lambda key: key not in needed)
    return {key: in_order(value[key], known[key]) for key in keys if key in value}


def answer_of(item: BfclItem) -> tuple[str, dict[str, Any]] | None:
    """A right call; None where it would need a coercion to fit, or holds an empty array."""
    name, allowed = next(iter(item.answers[0].items()))
    spec = item.tools.get(name)
    if spec is None:
        return None
    given = {key: value for key, inner in allowed.items() if (value := first(inner)) is not None}
    arguments = in_order(given, spec.parameters)
    fitting, coercions, error = validate_arguments(spec, arguments)
    if error is not None or coercions or fitting != arguments or has_empty_array(arguments):
        return None
    return name, arguments


def written(item: BfclItem, target: str, backend: Any, style: Style, choice: str) -> str:
    """What comes of a model that would write the target, with no request to go by."""
    asker = Asker(backend, "Prompt.", AskerLimits(max_tokens=4000, timeout=60, idle_timeout=60))
    task = Task(style=style, tools={choice: item.tools[choice]}, tool_choice=choice)
    return anyio.run(Guide(asker, task, guidance(""), lambda said: None).write)


def oracles(category: str, limit: int | None) -> int:
    """Right calls come out as they are; how many there were."""
    count = 0
    for number, item in enumerate(items_of(category, limit)):
        known = answer_of(item)
        if known is None:
            continue
        count += 1
        style = STYLES[number % 3]
        target = write_call(*known, style=style)
        backend = Oracle("Prompt.", target, scores=bool(number % 2), seed=number)
        assert written(item, target, backend, style, known[0]) == target
    return count


@pytest.mark.parametrize("category", ANSWERED)
def test_a_right_call_comes_out_as_it_is(category: str) -> None:
    assert oracles(category, 12)


@pytest.mark.slow
@pytest.mark.parametrize("category", ANSWERED)
def test_every_right_call_comes_out_as_it_is(category: str) -> None:
    assert oracles(category, None)


class Plausible:
    """Goes on with a right call; where what stands there is another, with its value for the last
    key, or with a text."""

    model = "plausible"

    def __init__(self, target: str, *, scores: bool, seed: int) -> None:
        self._target = target
        self._scores = scores
        self._seed = seed

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        text = request.prompt + self._rest(request.prompt[-len(self._target) :])
        oracle = Oracle("", text, scores=self._scores, seed=self._seed)
        async for chunk in oracle.complete(request):
            yield chunk

    def _rest(self, before: str) -> str:
        target = self._target
        for length in range(len(target) - 1, 8, -1):
            if before.endswith(target[:length]):
                return target[length:]
        keys = re.findall(r'"[^"]+":"?', before)
        if keys and keys[-1] in target and before.endswith(keys[-1]):
            return target.partition(keys[-1])[2]
        return 'Some text","and":1}}' if before.endswith('"') else '7,"and":1}}'


def plausible(category: str, limit: int | None) -> None:
    for number, item in enumerate(items_of(category, limit)):
        known = answer_of(item) if item.answers else None
        style, choice = STYLES[number % 3], CHOICES[number // 3 % 2]
        target = write_call(*known, style=style) if known else write_answer("I cannot.", style)
        backend = Recorded(Plausible(target, scores=bool(number % 2), seed=number))
        proposal = proposed(item, backend, style, choice)
        check(item, proposal, backend)
        assert proposal.valid, (item.id, proposal.error)


@pytest.mark.slow
@pytest.mark.parametrize("category", CATEGORIES)
def test_plausible_values_become_a_valid_turn(category: str) -> None:
    plausible(category, SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("category", CATEGORIES)
def test_plausible_values_become_a_valid_turn_over_all_of_them(category: str) -> None:
    plausible(category, None)


def test_a_value_that_begins_another_is_told_from_it() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "enum": [3, 35]}},
        "required": ["n"],
    }
    item = BfclItem("simple_python", "own", "", ({"name": "take", "parameters": schema},))
    target = write_call("take", {"n": 35})
    backend = Oracle("Prompt.", target, scores=False, seed=1)
    assert written(item, target, backend, "jsonl", "take") == target
