"""The process of one competitor: does its work when it is told to, and says how long it took.

``serve.py parser|agent NAME`` reads requests from standard input, one JSON object a line, and
answers each on standard output. `measure.Competitor` is the other side.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, TextIO


def load(kind: str, name: str) -> Any:
    """The competitor: something with ``prepare``, ``run``, ``outcome``, ``close``, ``clock``."""
    if kind == "parser":
        return importlib.import_module("parsers").Subject(name)
    return importlib.import_module("agents").load(name)


def do(subject: Any, request: dict[str, Any]) -> dict[str, Any]:
    """One request, answered."""
    if request["do"] == "prepare":
        subject.prepare(*request["task"])
    number = request.get("number", 1)
    clock = subject.clock
    start = clock()
    for _ in range(number):
        result = subject.run()
    seconds = (clock() - start) / number
    try:
        return {"outcome": subject.outcome(result), "seconds": seconds}
    except RuntimeError as error:
        return {"broken": str(error)}


def serve(kind: str, name: str, answers: TextIO) -> None:
    def answer(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    try:
        subject = load(kind, name)
    except ImportError as error:
        return answer({"missing": str(error)})
    answer({"ready": True})
    try:
        for line in sys.stdin:
            answer(do(subject, json.loads(line)))
    finally:
        subject.close()


if __name__ == "__main__":
    # Frameworks print; what they print must not land among the answers.
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        serve(sys.argv[1], sys.argv[2], out)
