"""The same tasks by ``mlx-tools ask``, pi and opencode: what each costs in tokens.

``python benchmarks/work_beside_agents.py`` gives the tasks of agent_tasks.py to a scripted model
that knows what to do. mlx-tools asks it with the documented command; pi and opencode, from npm at
the versions that ``clients/package.json`` pins, through ``mlx-tools serve`` with their own tools.
The model goes on only if it is shown what it needs, and what it leaves behind is checked.

Counted are tokens of the embedded model's tokenizer. *Uncached* are those of a prompt that no
prompt before, with its completion, began with: mlx_lm.server reads only these. It writes
work_beside_agents.json and the table of docs/evaluation.md; ``--only NAME`` asks one agent again
and keeps the others' figures, ``--task TEXT`` does the tasks of such a name and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import agent_tasks
from agent_tasks import TASKS, Act, Call, Task
from gateway_clients import CLIENTS, gateway, made, say
from tokenizers import Tokenizer

from coding_agents import AGENTS, Command, Place, make_repository, run_agent  # isort: skip
from mlx_tools.backends import DEFAULT_MODEL, model_path
from mlx_tools.testing import Completion, ScriptedServer
from scripts.agents_table import PART

RESULTS = Path(__file__).with_suffix(".json")
MODEL = "scripted-chatml"
SECONDS = 240
OURS = "mlx-tools"
DIALECTS: Mapping[str, Callable[[Act], Call]] = {
    OURS: agent_tasks.ours,
    "pi": agent_tasks.pi,
    "opencode": agent_tasks.opencode,
}

Row = dict[str, Any]


@dataclass
class PrefixCache:
    """Token sequences that a server holds: the prompts so far, each with its completion."""

    sequences: list[list[int]] = field(default_factory=list)

    def uncached(self, prompt: Sequence[int]) -> int:
        """The number of tokens behind the longest prefix that is held: at least one."""
        longest = max((common_prefix(prompt, one) for one in self.sequences), default=0)
        return max(len(prompt) - longest, 1)

    def insert(self, sequence: list[int]) -> None:
        self.sequences.append(sequence)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


class TaskServer(ScriptedServer):
    """A model that knows what to do for one task, by one agent's tools.

    A prompt without tools is one for a title or the like, and gets a few words.
    """

    def __init__(self, task: Task, dialect: Callable[[Act], Call], tokenizer: Tokenizer) -> None:
        super().__init__(model=MODEL)
        self.turns = list(task.turns)
        self.dialect = dialect
        self.tokenizer = tokenizer
        self.cache = PrefixCache()
        self.rows: list[Row] = []
        self.faults: list[str] = []

    def next(self, body: dict[str, Any], headers: dict[str, str]) -> Completion:
        prompt = body["prompt"]
        with_tools = "\nTools:\n" in prompt
        text = self.turn(prompt) if with_tools else "A task"
        tokens, completion = (self.tokenizer.encode(one).ids for one in (prompt, text))
        if len(completion) > body.get("max_tokens", len(completion)):
            self.faults.append(f"{len(completion)} tokens, of {body['max_tokens']} at most")
        self.rows.append(
            {
                "prompt": len(tokens),
                "uncached": self.cache.uncached(tokens),
                "completion": len(completion),
                "examples": len(self.tokenizer.encode(examples_in(prompt)).ids),
                "tools": with_tools,
            }
        )
        self.cache.insert(tokens + completion)
        return Completion(text, size=400)

    def turn(self, prompt: str) -> str:
        """The rest of the turn that the prompt ends with."""
        before, _, begun = prompt.rpartition("<|im_start|>assistant\n")
        results = before.rpartition("<|im_start|>assistant\n")[2]
        turn = self.turns.pop(0) if self.turns else agent_tasks.say("", "nothing more to be asked")
        missing = [sight for sight in turn.sees if not re.search(sight, results)]
        if missing:
            self.faults.append(f"not shown: {missing}, but {results[-800:]}")
        calls = [self.dialect(act) for act in turn.acts]
        lines = [line(type="tool_call", name=name, arguments=given) for name, given in calls]
        if missing or not lines:
            lines = [line(type="final_answer", content=turn.answer or "I cannot see it.")]
        text = "\n".join(lines)
        if not text.startswith(begun):
            self.faults.append(f"its turn was begun with {begun!r}")
        return text.removeprefix(begun)


def examples_in(prompt: str) -> str:
    """The turns before the question, in the first prompt of a conversation."""
    user = "<|im_start|>user\n"
    return prompt[prompt.find(user) : prompt.rfind(user)]


def line(**message: Any) -> str:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"))


def by_mlx_tools(task: Task) -> Callable[[Place, str], Command]:
    """The command of ``mlx-tools ask``: in a folder that may be changed."""
    permitted = ["--commands", task.programs] if task.programs else []

    def command(place: Place, question: str) -> Command:
        options = ["--url", place.url, "--chat-format", "chatml"]
        options += ["--root", ".:rw", "--approve", "always", *permitted]
        return [sys.executable, "-P", "-m", "mlx_tools", "ask", *options, question], {}

    return command


def measure(agent: str, task: Task, tokenizer: Tokenizer) -> Row:
    """Let an agent do a task, and return its cost.

    Raises:
        AssertionError: it was not done.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        TaskServer(task, DIALECTS[agent], tokenizer) as server,
    ):
        home, repository = Path(folder) / "home", Path(folder) / "repository"
        home.mkdir()
        make_repository(repository, task.files)
        if agent == OURS:
            place = Place(home, repository, server.url, MODEL)
            done = run_agent(by_mlx_tools(task), Path(), place, task.question, SECONDS)
        else:
            with gateway("--url", server.url, "--chat-format", "chatml") as url:
                place = Place(home, repository, url, MODEL)
                programs = made("node") / "node_modules" / ".bin"
                done = run_agent(AGENTS[agent], programs, place, task.question, SECONDS)
        assert not server.faults, f"{agent}, {task.name}: {server.faults}"
        assert not server.turns, f"{agent}, {task.name}: {len(server.turns)} turns were left"
        assert task.turns[-1].answer in done.stdout, done.stdout[-500:]
        for name, text in task.after.items():
            assert (repository / name).read_text() == text, f"{agent}, {task.name}: {name}"
    return summed(server.rows)


def summed(rows: Sequence[Row]) -> Row:
    """The figures of a task, from those of its requests."""
    first = next(row for row in rows if row["tools"])
    return {
        "first": first["prompt"],
        "examples": first["examples"],
        "prompts": sum(row["prompt"] for row in rows),
        "uncached": sum(row["uncached"] for row in rows),
        "completions": sum(row["completion"] for row in rows),
        "requests": len(rows),
    }


def versions() -> dict[str, str]:
    pins = json.loads((CLIENTS / "package.json").read_text())["dependencies"]
    return {"pi": pins["@mariozechner/pi-coding-agent"], "opencode": pins["opencode-ai"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", choices=list(DIALECTS), help="ask this agent")
    parser.add_argument("--task", default="", help="do the tasks whose name has this text")
    given = parser.parse_args()
    os.environ["GIT_CONFIG_NOSYSTEM"] = "1"
    tokenizer = Tokenizer.from_file(str(model_path(DEFAULT_MODEL) / "tokenizer.json"))
    agents = [given.only] if given.only else list(DIALECTS)
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["tasks"] if given.only else []
    tasks = []
    for number, task in enumerate(TASKS):
        if given.task in task.name:
            say(task.name)
            costs = {agent: measure(agent, task, tokenizer) for agent in agents}
            tasks.append({"task": task.name} | (kept[number] if kept else {}) | costs)
            say("\n".join(f"  {agent:10}{cost}" for agent, cost in costs.items()))
    if given.task:
        return
    result = {
        "command": "python benchmarks/work_beside_agents.py",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "tokenizer": DEFAULT_MODEL,
        "versions": versions(),
        "tasks": tasks,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    PART.main()


if __name__ == "__main__":
    main()
