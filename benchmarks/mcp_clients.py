"""A table of clients of `mlx-tools mcp serve`: each calls `llm_with_tools` over it.

``python benchmarks/mcp_clients.py`` asks the Inspector's command line, the SDK's own client over
both transports, Codex and opencode, and prints who was answered. The local model is scripted: it
calls the calculator and says what that gave. So is the model of the two agents, which they reach
through the gateway: it calls the tool of that name that its prompt lists, and repeats the answer.
The agents are those of ``clients/package.json``, or stand in the folder of ``--programs``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from gateway_clients import free_port, gateway, made, process
from mcp import Client, StdioServerParameters

from mlx_tools.testing import USAGE, Completion, ScriptedServer

# gateway_clients puts the folder of these into the path
from coding_agents import work  # isort: skip
from model import Seen, line, seen  # isort: skip

INSPECTOR: Final = "@modelcontextprotocol/inspector@0.15.0"
TASK: Final = "What is 6 * 7? Ask the local model."
SECONDS: Final = 180


class Model(ScriptedServer):
    """Serves what ``turn`` makes of a prompt."""

    def __init__(self, turn: Callable[[Seen], str]) -> None:
        super().__init__(model="scripted-chatml")
        self._turn = turn

    def next(self, body: dict[str, Any], headers: dict[str, str]) -> Completion:
        self.bodies.append(body)
        now = seen(body["prompt"])
        return Completion(self._turn(now).removeprefix(now.begun), usage=USAGE)


def local(now: Seen) -> str:
    """The model behind the server."""
    if not now.results:
        arguments = {"expression": "6 * 7"}
        return line({"type": "tool_call", "name": "calculator", "arguments": arguments})
    said = json.loads(now.results[-1])["content"]
    return line({"type": "final_answer", "content": f"By the calculator: {said}."})


def agent(now: Seen) -> str:
    """The model of an agent."""
    name = next((one for one in now.tools if one.endswith("llm_with_tools")), None)
    if name is not None and not now.results:
        return line({"type": "tool_call", "name": name, "arguments": {"user": "6 * 7?"}})
    said = now.results[-1] if now.results else f"there is no such tool among {', '.join(now.tools)}"
    return line({"type": "final_answer", "content": f"It said: {said}"})


def by_inspector(command: tuple[str, ...]) -> str:
    asked = ("--method", "tools/call", "--tool-name", "llm_with_tools", "--tool-arg", "user=6 * 7?")
    run = ["npx", "-y", INSPECTOR, "--cli", *command, *asked]
    done = subprocess.run(run, capture_output=True, text=True, timeout=SECONDS)
    return done.stdout + done.stderr[-500:]


def by_sdk(server: StdioServerParameters | str, mode: str) -> str:
    async def ask() -> str:
        async with Client(server, mode=mode) as client:
            await client.list_tools()
            return str((await client.call_tool("llm_with_tools", {"user": "6 * 7?"})).content)

    return anyio.run(ask)


def by_agent(name: str, programs: Path, command: tuple[str, ...]) -> str:
    with Model(agent) as server, gateway("--url", server.url, "--chat-format", "chatml") as url:
        return work(name, programs, url, server.models[0], TASK, SECONDS, command)


def over_http(command: tuple[str, ...]) -> str:
    port = free_port()
    serving = [*command, "--transport", "http", "--port", str(port)]
    with process(serving, f"http://127.0.0.1:{port}/health", {}):
        return by_sdk(f"http://127.0.0.1:{port}/mcp", "auto")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--programs", type=Path, help="where codex and opencode are")
    options.add_argument("--only", default="", help="ask this client")
    given = options.parse_args()
    programs = given.programs or made("node") / "node_modules" / ".bin"
    with Model(local) as server, tempfile.TemporaryDirectory() as folder:
        environ = [f"XDG_{kind}_HOME={folder}" for kind in ("CONFIG", "STATE", "DATA")]
        environ.append("MLX_TOOLS_MODEL_CHAT_FORMAT=chatml")
        command = ("env", *environ, sys.executable, "-P", "-m", "mlx_tools", "mcp", "serve")
        command += ("--url", server.url)
        stdio = StdioServerParameters(
            command=command[0], args=list(command[1:]), env=dict(os.environ)
        )
        clients: dict[str, Callable[[], str]] = {
            "the SDK's client": partial(by_sdk, stdio, "auto"),
            "the SDK's client, with a handshake": partial(by_sdk, stdio, "legacy"),
            "the SDK's client, over HTTP": partial(over_http, command),
            INSPECTOR: partial(by_inspector, command),
            "codex": partial(by_agent, "codex", programs, command),
            "opencode": partial(by_agent, "opencode", programs, command),
        }
        failed = False
        for name, ask in clients.items():
            if given.only not in name:
                continue
            said = ""
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                said = ask()
            fine = "By the calculator: 42." in said
            failed |= not fine
            print(f"{name}: {'answered' if fine else f'NOT ANSWERED: {said[-1500:]}'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
