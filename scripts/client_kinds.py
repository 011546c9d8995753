"""Writes `tests/data/client_kinds.json`: histories of every kind that the clients' own types know.

    python scripts/client_kinds.py

The types are those of the packages `openai`, `anthropic` and `openresponses-types`, whose import
takes seconds; so the tests read the file, and one slow test compares it with what this makes.
"""

from __future__ import annotations

import enum
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

KINDS: Final = Path(__file__).parents[1] / "tests" / "data" / "client_kinds.json"

LEVELS: Final = 2
"""Levels of objects within objects of which each kind is written; below them the first one."""


@cache
def list_fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return an object type's fields with their types, and its required fields."""
    if hasattr(kind, "__required_keys__"):  # a TypedDict, of either library
        hints = typing.get_type_hints(kind, include_extras=True)
        needed = {k for k, hint in hints.items() if typing.get_origin(hint) is typing.Required}
        return hints, frozenset(needed)
    fields = kind.model_fields
    return {f.alias or n: f.annotation for n, f in fields.items()}, frozenset(fields)


def list_values(hint: Any, level: int = 0) -> list[Any]:
    """Values of a type of a client's library: one for each kind that it knows, to a few levels of
    objects within objects, and one value below these."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Required, typing.NotRequired, typing.Annotated):
        return list_values(inner[0], level)
    if origin in (typing.Union, types.UnionType):
        ways = (value for way in inner for value in list_values(way, level))
        return [*islice(ways, None if level < LEVELS else 1)]
    if origin is typing.Literal:
        return [*inner] if level < LEVELS else [inner[0]]
    if hasattr(hint, "__required_keys__"):
        return list_objects(hint, level)
    if origin is not None:
        is_object = isinstance(origin, type) and issubclass(origin, Mapping)
        return [{"key": "text"} if is_object else list_values(inner[0], level)]
    if hint is type(None):
        return [None]
    if not isinstance(hint, type):
        return [{"any": "text"}]
    from pydantic import BaseModel, RootModel

    if issubclass(hint, RootModel):
        return list_values(hint.model_fields["root"].annotation, level)
    if issubclass(hint, enum.Enum):
        return [member.value for member in hint]
    if issubclass(hint, BaseModel):
        return list_objects(hint, level)
    for kind, value in ((bool, True), (int, 3), (float, 0.5), (str, "text")):
        if issubclass(hint, kind):
            return [value]
    return [{"any": "text"}]


def list_objects(kind: Any, level: int) -> list[dict[str, Any]]:
    """Return objects of a type: the smallest, and some that have all fields and values."""
    hints, needed = list_fields(kind)
    if level > 2 * LEVELS:
        return []
    found = {key: list_values(hint, level + 1) for key, hint in hints.items()}
    found = {key: values for key, values in found.items() if values}
    ways = max([1, *map(len, found.values())]) if level < LEVELS else 1
    made = [{key: values[0] for key, values in found.items() if key in needed}] if not level else []
    return made + [
        {key: values[way % len(values)] for key, values in found.items()} for way in range(ways)
    ]


def iter_messages(kind: Any) -> Iterator[dict[str, Any]]:
    """Yield messages of a type, each with one kind of block in its content."""
    seen: set[str] = set()
    for message in list_values(kind):
        content = message.get("content", "text")
        for block in content if isinstance(content, list) else [content]:
            if (text := json.dumps(block)) not in seen:
                yield {**message, "content": [block] if isinstance(block, dict) else block}
            seen.add(text)


def build_client_kinds() -> dict[str, list[Any]]:
    """Return the histories by interface: items for responses, else messages."""
    import openresponses_types as published
    from anthropic.types import MessageParam
    from anthropic.types.beta import BetaMessageParam
    from openai.types.chat import ChatCompletionMessageParam
    from openai.types.responses import ResponseInputItemParam

    body = published.CreateResponseBody.model_fields["input"].annotation
    lists = [value for value in list_values(body) if isinstance(value, list)]
    return {
        "responses": remove_duplicates([*list_values(ResponseInputItemParam), *lists[0]]),
        "messages": remove_duplicates(
            [*iter_messages(MessageParam), *iter_messages(BetaMessageParam)]
        ),
        "chat": remove_duplicates(list_values(ChatCompletionMessageParam)),
    }


def remove_duplicates(values: Any) -> list[Any]:
    """Return values without repetitions and without names of models."""
    texts = (
        re.sub('"(?:clau|gp)[a-z]*-[^"]*"', '"a-model"', json.dumps(value)) for value in values
    )
    return [json.loads(text) for text in dict.fromkeys(texts)]


def render_client_kinds() -> str:
    """Return the text of the file."""
    rows = [
        f'"{name}": [\n' + ",\n".join(json.dumps(one) for one in values) + "\n]"
        for name, values in build_client_kinds().items()
    ]
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    KINDS.write_text(render_client_kinds())
