"""Records and values as texts that a diff can show."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mlx_tools.messages import ErrorInfo
from mlx_tools.prompt import PromptWords
from mlx_tools.prompt.words import parts
from mlx_tools.store.transcript import to_json
from mlx_tools.transcript.records import Record

NAMES: Final[Mapping[str, str]] = {
    "tool_call": "the call",
    "repair": "the repair",
    "decision": "the decision",
    "tool_observation": "the refusal",
    "correction": "the correction",
    "final_answer": "the answer",
    "stopped": "the end",
}


def turns(examples: Iterable[Mapping[str, str]]) -> str:
    """The turns of examples, a line each."""
    return "\n".join(f"{turn.get('role')}: {turn.get('content')}" for turn in examples)


def text(value: Any) -> str:
    """A field's value: texts as they are, nothing where there is none, else JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, ErrorInfo):
        return f"{value.code}: {value.message}"
    if isinstance(value, tuple):
        return "\n".join(map(text, value))
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def shown(record: Record) -> str:
    """A record for a diff: its fields, a line each."""
    plain = to_json(record)
    return "\n".join(f"{key}: {text(value)}" for key, value in plain.items())


def could_say(words: PromptWords, error: ErrorInfo) -> bool:
    """Whether these words say this for some tool and some reason: which ones they were was not
    recorded."""
    template = " ".join(words.errors[error.code].split())
    pattern = "".join(".*" if named else re.escape(part) for part, named in parts(template))
    cut = error.message.endswith("…")
    # A reason that is empty leaves no blank behind it.
    said = (error.message, f"{error.message} ")
    return cut or any(re.fullmatch(pattern.strip(), one, re.DOTALL) for one in said)
