"""Measures what a fresh process costs: imports, the first answer, and --help.

Every sample is the wall time of one new process; a bare interpreter takes its turn among the
others, and is what imports are reckoned from. Prints one JSON object.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from agents import AGENTS
from measure import HERE, Cell, arguments, finish, leave_out, quiet_environment, say

BARE = "bare interpreter"

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
"""What a program writes that uses the framework: the least that its agent needs."""

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

HELP = ("mlx-tools", "llm")

Command = list[str]


def python(code: str) -> Command:
    return [sys.executable, "-c", code]


def installed(
    commands: dict[str, Command], environment: dict[str, str], need: str
) -> dict[str, Command]:
    """The commands that work here. Each has now run once, so all that can be cached is."""
    there = {}
    for name, command in commands.items():
        if not Path(command[0]).exists():
            leave_out(f"{name}: no command of that name is installed", need)
            continue
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
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
    """The wall times of the commands, each run once in every round, in rotated order."""
    cells = {name: Cell() for name in commands}
    names: Sequence[str] = list(commands)
    for turn in range(rounds):
        shift = turn % len(names)
        for name in [*names[shift:], *names[:shift]]:
            start = perf_counter()
            subprocess.run(
                commands[name],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
            cells[name].samples.append(perf_counter() - start)
    return cells


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
        say("startup: --help")
        scripts = {name: [str(Path(sys.executable).parent / name), "--help"] for name in HELP}
        helps = measure({BARE: python("pass"), **scripts}, environment, options)
    finish({"import": imports, "memory": held, "first_answer": first, "help": helps})


if __name__ == "__main__":
    main()
