"""The questions of ``mlx-tools doctor --probe``, and whether a proposal is the right one."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mlx_tools.app.proposal import Proposal
from mlx_tools.errors import ConfigError, MlxToolsError
from mlx_tools.messages import Effects, ToolCall, ToolSpec
from mlx_tools.paths import read_data
from mlx_tools.toolbox import builtin_tools

FILE: Final = "prompts/evaluate/probe.toml"
_EFFECTS: Final[Effects] = frozenset(("read",))


@dataclass(frozen=True, slots=True)
class Expected:
    """The call that is right: each argument with its right values. Those of ``optional`` may be
    left out; no other may be given."""

    name: str
    arguments: Mapping[str, Sequence[Any]]
    optional: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """One question, with the tools it is asked with; all of a ``group`` have the same. ``call``
    None: it needs an answer."""

    id: str
    group: str
    question: str
    tools: Mapping[str, ToolSpec]
    call: Expected | None = None

    def is_valid(self, proposal: Proposal) -> bool:
        """Whether the proposal keeps to the protocol, and is of the kind that is due."""
        due = proposal.answered if self.call is None else bool(proposal.calls)
        return proposal.valid and due

    def is_right(self, proposal: Proposal) -> bool:
        """Whether the proposal is the right call and no other, or an answer where one is due.

        A line that needed a repair can be right.
        """
        if self.call is None:
            return proposal.answered and not proposal.calls
        return len(proposal.calls) == 1 and fits(proposal.calls[0], self.call)


@dataclass(frozen=True, slots=True)
class ProbeQuestions:
    """All questions, those with the same tools side by side; ``digest`` tells them from others."""

    questions: tuple[Question, ...]
    digest: str


def load_questions(text: str | None = None) -> ProbeQuestions:
    """The questions of ``text``, by default those that come with mlx-tools.

    Raises `ConfigError` for a text that holds none.
    """
    text = read_data(FILE) if text is None else text
    try:
        questions = [
            one for catalog in tomllib.loads(text)["catalogs"] for one in _catalog(catalog)
        ]
    except (ValueError, KeyError, TypeError, AttributeError, MlxToolsError) as error:
        raise ConfigError(f"{FILE} holds no questions: {error}") from None
    if len({one.id for one in questions}) != len(questions) or not questions:
        raise ConfigError(f"{FILE}: no question, or two with the same id")
    return ProbeQuestions(tuple(questions), hashlib.sha256(text.encode()).hexdigest()[:16])


def _catalog(catalog: Mapping[str, Any]) -> list[Question]:
    known = _tools(catalog)
    found = []
    for one in catalog["questions"]:
        call = Expected(**one["call"]) if "call" in one else None
        if call is not None and call.name not in known:
            raise ConfigError(f"{one['id']}: there is no tool {call.name}")
        found.append(Question(one["id"], catalog["name"], one["question"], known, call))
    return found


def _tools(catalog: Mapping[str, Any]) -> dict[str, ToolSpec]:
    if "builtin" in catalog:
        builtin = builtin_tools().all_specs()
        return {name: builtin[name] for name in catalog["builtin"]}
    specs = [
        ToolSpec(one["name"], one["description"], json.loads(one["parameters"]), _EFFECTS)
        for one in catalog["tools"]
    ]
    return {spec.name: spec for spec in specs}


def fits(call: ToolCall, expected: Expected) -> bool:
    """Whether a call is the expected one."""
    right = {**expected.optional, **expected.arguments}
    given = call.arguments
    return (
        call.name == expected.name
        and given.keys() <= right.keys()
        and given.keys() >= expected.arguments.keys()
        and all(any(same(value, one) for one in right[key]) for key, value in given.items())
    )


def same(value: Any, right: Any) -> bool:
    """Whether two values are the same. Numbers by what they are worth; texts whatever their case,
    the white space between their words and a mark at their end."""
    if isinstance(value, bool) or isinstance(right, bool):
        return value is right
    if isinstance(value, int | float) and isinstance(right, int | float):
        return value == right
    if isinstance(value, str) and isinstance(right, str):
        return _plain(value) == _plain(right)
    if isinstance(value, Mapping) and isinstance(right, Mapping):
        return value.keys() == right.keys() and all(same(value[k], right[k]) for k in value)
    if isinstance(value, list | tuple) and isinstance(right, list | tuple):
        pairs = zip(value, right, strict=False)
        return len(value) == len(right) and all(same(one, other) for one, other in pairs)
    return value is None and right is None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".,;:!?")
