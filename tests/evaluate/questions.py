"""A few questions in BFCL's own file format, and a wheel that holds them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.plugins.evaluate.bfcl_data import find_wheel_path
from tests.conftest import ENVIRON, PERSON

AREA = {
    "name": "shapes.area",
    "description": "The area of a rectangle.",
    "parameters": {
        "type": "dict",
        "properties": {
            "width": {"type": "float", "description": "Its width."},
            "height": {"type": "integer", "description": "Its height."},
            "unit": {"type": "string", "description": "The unit.", "enum": ["cm", "m"]},
            "round": {"type": "boolean", "description": "Whether to round."},
        },
        "required": ["width", "height"],
    },
}
PLAY = {
    "name": "play",
    "description": "Plays songs.",
    "parameters": {
        "type": "dict",
        "properties": {
            "songs": {"type": "array", "items": {"type": "string"}, "description": "Their names."},
            "options": {
                "type": "dict",
                "description": "How.",
                "properties": {
                    "volume": {"type": "integer", "description": "From 0 to 10."},
                    "mood": {"type": "string", "description": "The mood."},
                },
            },
        },
        "required": ["songs"],
    },
}

AREA_ANSWER = {
    "shapes.area": {"width": [2.5], "height": [4], "unit": ["cm", ""], "round": ["", False]}
}
PLAY_ANSWER = {
    "play": {
        "songs": [["Blue Moon", "So What"]],
        "options": ["", {"volume": [3], "mood": ["calm", ""]}],
    }
}

Line = dict[str, Any]


def line(item_id: str, question: str, *functions: Mapping[str, Any], **more: Any) -> Line:
    messages = more.get("messages", [{"role": "user", "content": question}])
    return {"id": item_id, "question": [messages], "function": list(functions)}


TALK = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Hi"},
    {"role": "user", "content": "there"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "How large is 2.5 by 4?"},
]

QUESTIONS: Mapping[str, Sequence[tuple[Line, Sequence[Mapping[str, Any]] | None]]] = {
    "simple_python": [
        (line(f"simple_python_{n}", f"Question {n}: 2.5 by 4 cm?", AREA), [AREA_ANSWER])
        for n in range(40)
    ],
    "multiple": [(line(f"multiple_{n}", f"Play {n}", AREA, PLAY), [PLAY_ANSWER]) for n in range(8)],
    "parallel_multiple": [
        (line("parallel_multiple_0", "Play and measure", AREA, PLAY), [AREA_ANSWER, PLAY_ANSWER])
    ],
    "irrelevance": [(line("irrelevance_0", "Who am I?", AREA), None)],
    "live_simple": [(line("live_simple_0-0-0", "", AREA, messages=TALK), [AREA_ANSWER])],
    "live_relevance": [(line("live_relevance_0-0-0", "Play", PLAY), None)],
}


def make_wheel(path: Path) -> Path:
    """Write the questions as the package has them."""
    with zipfile.ZipFile(path, "w") as archive:
        for category, entries in QUESTIONS.items():
            questions = "\n".join(json.dumps(entry) for entry, _ in entries)
            archive.writestr(f"bfcl_eval/data/BFCL_v4_{category}.json", questions)
            answers = [
                json.dumps({"id": entry["id"], "ground_truth": answer})
                for entry, answer in entries
                if answer is not None
            ]
            if answers:
                name = f"bfcl_eval/data/possible_answer/BFCL_v4_{category}.json"
                archive.writestr(name, "\n".join(answers) + "\n")
    return path


def fetched_wheel() -> Path:
    """BFCL's own package, if `mlx-tools eval bfcl` put it into a cache of this machine."""
    for environ in (PERSON, ENVIRON):
        if (path := find_wheel_path(environ)).is_file():
            return path
    pytest.skip("BFCL's package is not in the cache")
