"""Counts what comes of calls in every family's form: published texts, damaged ones, quoted ones.

``python benchmarks/damaged_calls.py`` reads those that tests/protocol/test_damage.py makes, and
the answers of coding agents that hold no call. It writes damaged_calls.json and the tables of
docs/evaluation.md. It takes half a minute.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from mlx_tools.messages import FinalAnswer  # noqa: E402
from mlx_tools.protocol import read  # noqa: E402
from scripts.damage_table import PART  # noqa: E402
from tests.protocol.test_damage import READ_FILE, counts, damaged, quoted  # noqa: E402
from tests.protocol.test_dialect_suite import (  # noqa: E402
    all_vectors,
    expected_calls,
    read_calls,
    rules_of,
)
from tests.protocol.test_judging import CODING, answers  # noqa: E402

RESULTS: Final = HERE / "damaged_calls.json"


def published() -> dict[str, int]:
    """Return the counts of the published texts of all families."""
    found: Counter[str] = Counter()
    for vector in all_vectors():
        reading = read(vector["text"], vector.get("finish", "stop"), rules_of(vector))
        due, got = expected_calls(vector), read_calls(reading, vector)
        is_answer = any(isinstance(message, FinalAnswer) for message in reading.messages)
        if due:
            found["calls"] += len(due)
            found["exact"] += sum(one == other for one, other in zip(got, due, strict=False))
            found["shown as an answer"] += is_answer
            found["wrong"] += got != due[: len(got)]
        elif vector["kind"] == "none":
            found["texts without a call"] += 1
            found["invented"] += bool(got)
            found["corrected"] += not is_answer
    return dict(found)


def innocent() -> dict[str, int]:
    """Return the counts of the answers of coding agents."""
    found: Counter[str] = Counter()
    for text in answers():
        reading = read(text, "stop", CODING)
        found["answers"] += 1
        found["corrected"] += not reading.bare_text
    return dict(found)


def by_kind(texts: Iterator[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Return a row for each kind of damage or place."""
    return [
        {"kind": kind, "texts": found.total(), **found} for kind, found in counts(texts).items()
    ]


def main() -> None:
    """Count, and write the results and the page."""
    results = {
        "published": published(),
        "damaged": by_kind(damaged(READ_FILE)),
        "quoted": by_kind(quoted(READ_FILE)),
        "innocent": innocent(),
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PART.main()


if __name__ == "__main__":
    main()
