"""The benchmark of the same tasks by several agents: what it counts, and its scripted model."""

from __future__ import annotations

import json
from typing import Any

import agent_tasks
import pytest
import work_beside_agents as bench
from agent_tasks import TASKS, Read, Task, do, say
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from mlx_tools.testing import Completion


def tokenizer() -> Tokenizer:
    """A tokenizer with a token for each character."""
    names = {chr(code): code for code in range(32, 127)} | {"\n": 10, "?": 63}
    made = Tokenizer(WordLevel(names, unk_token="?"))
    made.pre_tokenizer = Split(r"", "isolated")
    return made


def test_a_prompt_costs_what_stands_behind_its_longest_known_beginning() -> None:
    cache = bench.PrefixCache()
    assert cache.uncached([1, 2, 3]) == 3
    cache.insert([1, 2, 3, 4])
    cache.insert([1, 5])
    assert cache.uncached([1, 2, 3, 9, 9]) == 2
    assert cache.uncached([1, 2]) == 1  # the server reads one token at least


TASK = Task(
    "read a file",
    "What does a.txt say?",
    (do(Read("a.txt")), say("Hello.", "hello")),
    files={"a.txt": "hello\n"},
)


def served(server: bench.TaskServer, *turns: str) -> Completion:
    prompt = "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns)
    return server.next({"prompt": f"{prompt}<|im_start|>assistant\n"}, {})


def test_the_model_goes_on_only_if_it_is_shown_what_it_needs() -> None:
    with bench.TaskServer(TASK, agent_tasks.ours, tokenizer()) as server:
        call = served(server, "system\nTools:\nfile_access()", "user\nhello").text
        message = json.loads(call)
        assert (message["name"], message["arguments"]["path"]) == ("file_access", "a.txt")
        asked = ("system\nTools:\nfile_access()", "user\nhello", f"assistant\n{call}")
        answer = served(server, *asked, "user\nnothing")
    assert "I cannot see it" not in answer.text
    assert "not shown" in server.faults[0]


def test_a_prompt_for_a_title_is_counted_and_is_no_turn() -> None:
    with bench.TaskServer(TASK, agent_tasks.ours, tokenizer()) as server:
        served(server, "system\nWrite a title.", "user\nhello")
        served(server, "system\nTools:\nfile_access()", "user\nhello")
    assert [row["tools"] for row in server.rows] == [False, True]
    costs = bench.summed(server.rows)
    assert costs["requests"] == 2
    assert costs["first"] == server.rows[1]["prompt"]
    assert costs["uncached"] < costs["prompts"]


@pytest.mark.parametrize("name", list(bench.DIALECTS))
def test_every_agent_has_a_call_for_every_step(name: str) -> None:
    calls: list[Any] = [
        bench.DIALECTS[name](act) for task in TASKS for turn in task.turns for act in turn.acts
    ]
    assert len(calls) >= 30
    assert all(isinstance(tool, str) and arguments for tool, arguments in calls)


@pytest.mark.heavy
def test_a_task_is_done_by_the_documented_command() -> None:
    costs = bench.measure("mlx-tools", TASK, tokenizer())
    assert costs["requests"] == 2
    assert 0 < costs["first"] < costs["uncached"] < costs["prompts"]
