"""Measures what ordinary tasks cost: requests, and tokens of prompts and completions.

``python benchmarks/ordinary_work.py`` does every task of `tests.work.tasks` through ``ask``, at the
defaults, with the scripted model that knows what to do. It counts tokens with the embedded model's
tokenizer, and writes ordinary_work.json and the table of docs/evaluation.md. It takes a minute. The
tests hold the characters of prompts and completions to this file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from mlx_tools.backends import DEFAULT_MODEL, TokenCounter, find_model  # noqa: E402
from scripts.work_table import PART  # noqa: E402
from tests.command_line import isolated  # noqa: E402
from tests.work.doors import check_disk, run_in_ask, set_up_task  # noqa: E402
from tests.work.model import ScriptedModel  # noqa: E402
from tests.work.task import Task  # noqa: E402
from tests.work.tasks import TASKS  # noqa: E402

RESULTS: Final = HERE / "ordinary_work.json"

Row = dict[str, Any]


def uncached_parts(prompts: Sequence[str], completions: Sequence[str]) -> list[str]:
    """The part of each prompt that the server has not read or written before."""
    known = ["", *(p + c for p, c in zip(prompts[:-1], completions[:-1], strict=True))]
    return [prompt[shared(prompt, text) :] for prompt, text in zip(prompts, known, strict=True)]


def shared(text: str, other: str) -> int:
    """Characters that two texts begin with alike."""
    pairs = zip(text, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other)))


def kept_texts(home: Path) -> list[str]:
    """The completions that the transcripts of a home hold."""
    files = home.glob("state/sessions/*/transcript.jsonl")
    records = (json.loads(row) for file in files for row in file.read_text().splitlines())
    return [record["text"] for record in records if record["type"] == "completion"]


def row_of(task: Task, model: ScriptedModel, home: Path, count: Any) -> Row:
    """The cost of a task. Of a completion that the client cut off, since it repeated itself, counts
    what the client read."""
    prompts, completions = model.prompts, model.completions
    uncached = uncached_parts(prompts, completions)
    if "loops" in task.name:
        completions = kept_texts(home)
    return {
        "task": task.name,
        "doors": list(task.doors),
        "requests": len(prompts),
        "first_prompt_chars": len(prompts[0]),
        "prompt_chars": sum(map(len, prompts)),
        "first_prompt_tokens": count(prompts[0]),
        "prompt_tokens": sum(map(count, prompts)),
        "uncached_tokens": sum(map(count, uncached)),
        "written_tokens": sum(map(count, completions)),
    }


def measure(task: Task, count: Any) -> Row:
    """Do a task, and say what it took."""
    with (
        tempfile.TemporaryDirectory() as folder,
        isolated(Path(folder)) as home,
        ScriptedModel(task.context) as model,
        set_up_task(task),
    ):
        model.begin([task])
        outcome = run_in_ask(task, model.url)
        check_disk(task)
        assert not model.faults and outcome.status == task.status, (task.name, outcome)
        return row_of(task, model, home, count)


def main() -> None:
    folder = find_model(DEFAULT_MODEL)
    if folder is None:
        raise SystemExit(f"fetch the tokenizer first: mlx-tools models pull {DEFAULT_MODEL}")
    counter = TokenCounter(lambda: folder)
    rows = [measure(task, counter.count) for task in TASKS]
    RESULTS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PART.main()


if __name__ == "__main__":
    main()
