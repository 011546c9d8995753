"""The model behind the gateway: scripted, and as right as a strong one.

It reads its prompt as a model does: who speaks, which tools there are, what was asked last, which
results have come since; and goes on from what the host began of its turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mlx_tools.testing import USAGE, Completion, ScriptedServer

COMMANDS = ("ls", "cat README.md", "printf 'two\\n' > b.txt", "cat b.txt", "wc -l *.txt")
"""The five calls of an agent's task."""

TASK = "DO THE TASK"
SHELLS = (
    *("bash", "Bash", "exec_command", "shell_command", "shell"),
    *("run_shell_command", "run_commands"),
)
"""The tools of agents that run a command."""

EDIT = "EDIT b.txt"
"""Asks for a file without tools."""

LAST_CALL = "submit_and_exit"
"""The call by which Cline wants a task to be ended."""

DONE = "The task is done."

JOKE = {"setup": "Why did the cat sit on the keyboard?", "punchline": "To catch the mouse."}

VALUES: dict[str, Any] = JOKE | {
    "expression": "1 + 1",
    "city": "Rome",
    "location": "San Francisco, CA",
    "input": 3,
    "answer_style": "pirate",
    "a": 3,
    "b": 4,
    "description": "a company",
}
"""The value for a parameter about which the question says nothing."""

CALLED_FOR = {
    "get_weather": r"weather",
    "magic_function": r"magic_function",
    "magic_function_no_args": r"magic_function_no_args|magic function",
    "greeting_generator": r"greeting",
    "my_adder_tool": r"\d \+ \d",
    "unicode_customer": r"customer",
}
"""The questions that call for a tool."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A prompt as it is read: ``tools`` are names with the parameters that each needs, ``results``
    what came since the ``question``, ``begun`` the beginning of the turn that is due."""

    tools: dict[str, list[str]]
    question: str
    results: tuple[str, ...]
    begun: str


def seen(prompt: str) -> Seen:
    turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", prompt, re.S)
    if not turns:  # no conversation: a text to go on with
        return Seen({}, prompt, (), "")
    question, results = "", list[str]()
    for role, text in turns[:-1]:
        lines = [line for line in text.split("\n") if '"type":"tool_observation"' in line]
        if role == "user" and not lines:
            question, results = text, []
        results += [line for line in lines if '"name":"protocol"' not in line]
    tools = dict[str, list[str]]()
    for name, parameters in re.findall(r"^([\w.-]+)\((.*?)\)(?: - |$)", prompt, re.M):
        tools[name] = re.findall(r"(\w+): ", re.sub(r"\w+\?: |\{.*?\}", "", parameters))
    return Seen(tools, question, tuple(results), turns[-1][1])


def turn(prompt: str) -> str:
    """The text of the model from the end of the prompt on."""
    now = seen(prompt)
    if not now.tools:
        return edit(prompt) if EDIT in now.question else plain(now.question)
    named = re.search(r'"name":"([^"]+)"', now.begun)
    calls = [one for one in wanted(now) if named is None or named[1] == one[0]]
    if not calls and ('"name":"' in now.begun or "final_result" in now.tools):
        name = named[1] if named else list(now.tools)[-1]
        calls = [(name, arguments_of(name, now))]
    lines = [line({"type": "tool_call", "name": n, "arguments": a}) for n, a in calls]
    said = "\n".join(lines) or line({"type": "final_answer", "content": answer(now)})
    if said.startswith(now.begun):
        return said[len(now.begun) :]
    return said


def line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def wanted(now: Seen) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls that the question asks for, and that have no result yet."""
    if TASK in now.question:
        if len(now.results) < len(COMMANDS):
            yield shell(now, COMMANDS[len(now.results)])
        elif LAST_CALL in now.tools and len(now.results) == len(COMMANDS):
            yield LAST_CALL, {"summary": DONE, "verified": True}
        return
    if now.results:
        return
    if "calculator" in now.tools:
        for sum_ in re.findall(r"\d+ [*+] \d+", now.question):
            yield "calculator", {"expression": sum_}
    for name, asked in CALLED_FOR.items():
        if name in now.tools and re.search(asked, now.question):
            yield name, arguments_of(name, now)


def shell(now: Seen, command: str) -> tuple[str, dict[str, Any]]:
    """A call that runs a command, by whichever tool does that."""
    name = next(name for name in SHELLS if name in now.tools)
    given: Any = ["bash", "-lc", command] if name == "shell" else command
    needed = now.tools[name]
    key = "cmd" if name == "exec_command" else "command"
    if name == "run_commands":
        key, given = "commands", [command]
    usual = {"description": "run it", "is_background": False}
    return name, {key: given} | {field: usual[field] for field in usual if field in needed}


def arguments_of(name: str, now: Seen) -> dict[str, Any]:
    if name == "final_result" and not now.tools[name]:
        return JOKE
    if name == "IterableJoke":
        return {"tasks": [JOKE]}
    found = {one: VALUES.get(one, "something") for one in now.tools.get(name, ())}
    sums = re.findall(r"\d+ [*+] \d+", now.question)
    if "expression" in found and sums:
        found["expression"] = sums[0]
    if "city" in found and "Oslo" in now.question:
        found["city"] = "Oslo"
    if name == "unicode_customer":
        found["customer_name"] = re.findall(r"'([^']+)'", now.question)[0]
    return found


def edit(prompt: str) -> str:
    """A file in the form that aider asks for: a block to replace by, or all of it."""
    if "SEARCH/REPLACE" in prompt:
        return "b.txt\n```\n<<<<<<< SEARCH\n=======\ntwo\n>>>>>>> REPLACE\n```\n"
    return "b.txt\n```\ntwo\n```\n"


def answer(now: Seen) -> str:
    """The words of the model where it calls nothing."""
    if TASK in now.question:
        return DONE
    if now.results:
        results = [json.loads(result) for result in now.results]
        return f"It is {' and '.join(str(r.get('content', 'unknown')) for r in results)}."
    return plain(now.question)


def plain(question: str) -> str:
    if "joke" in question:
        return line(JOKE)
    if "Count" in question:
        return " ".join(str(number) for number in range(1, 21))
    if "What is my name" in question:
        return "Your name is Ada."
    return "Hello, this is the scripted model."


class StrongServer(ScriptedServer):
    """Serves the model. A ceiling of tokens holds: a token is a word with the blank before it."""

    def __init__(self) -> None:
        super().__init__(model="scripted-chatml")

    def next(self, body: dict[str, Any], headers: dict[str, str]) -> Completion:
        self.bodies.append(body)
        text, most = turn(body["prompt"]), int(body.get("max_tokens", 10_000))
        words = re.findall(r"\s*\S+", text)
        cut = len(words) > most
        text = "".join(words[:most]) if cut else text
        return Completion(text, finish_reason="length" if cut else "stop", usage=USAGE)
