"""Measures what a fresh process costs: imports, the first answer, and the commands' --help, Tab and
first answer.

Every sample is the processor time of one new process, which a busy machine falsifies least; a bare
interpreter takes its turn among the others, and is what imports are reckoned from. Prints one JSON
object.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agents import AGENTS
from measure import HERE, Cell, arguments, finish, leave_out, quiet_environment, say

from mlx_tools.testing import Completion, ScriptedServer, answer

BARE = "bare interpreter"
OURS = "mlx-tools"

IMPORTS = {
    BARE: "pass",
    "mlx-tools": "from mlx_tools import Controller, CompletionsBackend, Policy, tool",
    "llm": "import llm",
    "smolagents": "from smolagents import Model, ToolCallingAgent, tool",
    "Pydantic AI": "from pydantic_ai import Agent",
    "LangChain JSON chat": (
        "from langchain_classic.agents import AgentExecutor, create_json_chat_agent"
    ),
    "LangChain create_agent": "from langchain.agents import create_agent",
}
"""The text of a program that uses the framework: the least that its agent needs."""

FIRST_ANSWER = """
import sys
sys.path.insert(0, {here!r})
from agents import load
agent = load({name!r})
agent.prepare(1)
agent.outcome(agent.run())
agent.close()
"""

MEMORY = """
import pathlib, resource, sys
status = pathlib.Path("/proc/self/status")
if status.exists():
    print(next(int(l.split()[1]) * 1024 for l in status.read_text().splitlines() if "VmHWM" in l))
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(peak if sys.platform == "darwin" else peak * 1024)
"""
"""Prints the most memory that the process has held, in bytes."""

Command = list[str]

QUESTION = "Does anyone answer?"
ANSWER = "The server does."


def python(code: str) -> Command:
    return [sys.executable, "-c", code]


def commands(server: str, home: Path) -> dict[str, dict[str, Command]]:
    """The command lines by what they are for: --help, a Tab, and an answer of this server, which
    llm speaks to as it does to any that is like OpenAI's."""
    folder = Path(sys.executable).parent
    ours, llm = str(folder / "mlx-tools"), str(folder / "llm")
    (home / "extra-openai-models.yaml").write_text(
        f"- {{model_id: scripted, model_name: scripted, api_base: '{server}/v1'}}\n"
    )
    typed = ["/usr/bin/env", "COMP_CWORD=1"]
    tabs = {
        OURS: [*typed, "COMP_WORDS=mlx-tools c", "_MLX_TOOLS_COMPLETE=complete_bash", ours],
        "llm": [*typed, "COMP_WORDS=llm c", "_LLM_COMPLETE=bash_complete", llm],
    }
    asked = {
        OURS: [ours, "ask", "--url", server, QUESTION],
        "llm": [llm, "-m", "scripted", "--key", "none", QUESTION],
    }
    return {"help": {OURS: [ours, "--help"], "llm": [llm, "--help"]}, "tab": tabs, "ask": asked}


def reply(prompt: str) -> str | Completion:
    """The answer to one of mlx-tools' prompts, or to a chat's messages."""
    return Completion(ANSWER) if prompt.startswith("[{") else answer(ANSWER)


def installed(
    commands: dict[str, Command], environment: dict[str, str], need: str
) -> dict[str, Command]:
    """The commands that work here. Each has now run once, so all that can be cached is."""
    there = {}
    for name, command in commands.items():
        if not all(Path(word).exists() for word in command if word.startswith("/")):
            leave_out(f"{name}: no command of that name is installed", need)
            continue
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode == 0:
            there[name] = command
        elif "ModuleNotFoundError" in done.stderr or "ImportError" in done.stderr:
            leave_out(f"{name}: {done.stderr.strip().splitlines()[-1]}", need)
        else:
            raise SystemExit(f"{name} failed:\n{done.stderr}")
    return there


def alternate(
    commands: dict[str, Command], environment: dict[str, str], rounds: int
) -> dict[str, Cell]:
    """The times of the commands, each run once in every round, in rotated order."""
    cells = {name: Cell() for name in commands}
    names: Sequence[str] = list(commands)
    for turn in range(rounds):
        shift = turn % len(names)
        for name in [*names[shift:], *names[:shift]]:
            cells[name].samples.append(processor_time(commands[name], environment))
    return cells


def processor_time(command: Command, environment: dict[str, str]) -> float:
    """Seconds of a process, the system's for it included."""
    none = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment, stdin=none, stdout=none, stderr=none)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} failed: exit code {process.returncode}")
    return used.ru_utime + used.ru_stime


def memory(environment: dict[str, str], names: Sequence[str]) -> dict[str, int]:
    """The most bytes that a process holds which does nothing but the import."""
    return {
        name: int(
            subprocess.run(
                python(f"{IMPORTS[name]}\n{MEMORY}"),
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for name in names
    }


def measure(
    commands: dict[str, Command], environment: dict[str, str], options: Any
) -> dict[str, Any]:
    there = installed(commands, environment, options.need)
    cells = alternate(there, environment, options.rounds)
    return {name: cell.to_json() for name, cell in cells.items()}


def main() -> None:
    options = arguments(__doc__, rounds=11, need="any")
    date, before = f"{datetime.now(UTC):%Y-%m-%d}", round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(prefix="mlx-tools-bench-") as home:
        # A home of their own: nobody's plugins, settings or logs take part.
        environment = quiet_environment() | {
            "HOME": home,
            "LLM_USER_PATH": home,
            "XDG_CONFIG_HOME": home,
        }
        say("startup: imports")
        imports = measure(
            {name: python(code) for name, code in IMPORTS.items()}, environment, options
        )
        held = memory(environment, list(imports))
        say("startup: first answers")
        answers = {
            name: python(FIRST_ANSWER.format(here=str(HERE), name=name))
            for name in AGENTS
            if name in IMPORTS
        }
        first = measure({BARE: python("pass"), **answers}, environment, options)
        told: dict[str, Any] = {}
        with ScriptedServer(*[reply] * 10_000, chat=True) as server:
            for name, lines in commands(server.url, Path(home)).items():
                say(f"startup: {name}")
                told[name] = measure({BARE: python("pass"), **lines}, environment, options)
    when = {"date": date, "load": {"before": before, "after": round(os.getloadavg()[0], 2)}}
    finish({**when, "import": imports, "memory": held, "first_answer": first, "commands": told})


if __name__ == "__main__":
    main()
