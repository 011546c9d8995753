"""Repetitions of clients after what cannot succeed, and what a person sees then.

``python benchmarks/gateway_retries.py`` starts a scripted model server and the gateway before it.
It has the official clients of OpenAI and Anthropic make one request with their own defaults, and
the agents below ``--agents FOLDER`` (see agent_requests.py) do one task: with a model server that
has gone, a model that writes nothing readable, and a context that is too small. It counts the
requests that reach the gateway and the turns of the model. The figures go to
``benchmarks/gateway_retries.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from agent_requests import COMMANDS
from gateway_load import free_port, process

from mlx_tools.testing import ScriptedServer

RESULTS = Path(__file__).resolve().parent / "gateway_retries.json"
AGENTS: Final = ("codex", "claude-code", "pi", "continue")
SECONDS: Final = 240
UNREADABLE: Final = '{"type":"tool_call","name": oops'
SENTENCES: Final = {
    "dead server": "no server answers",
    "unreadable model": "the model wrote no turn that fits",
    "small context": "maximum context length",
}
TOOL: Final = {"name": "look", "description": "Looks."}
SCHEMA: Final = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}

Row = dict[str, Any]


@contextmanager
def model_server(case: str) -> Iterator[tuple[str, Callable[[], int], Callable[[], None]]]:
    """A model server's address, what counts its turns, and what ends it if the case has it so."""
    if case != "dead server":
        with ScriptedServer(*[UNREADABLE] * 500, model="m") as server:
            yield server.url, lambda: len(server.prompts), lambda: None
        return
    code = "from mlx_tools.testing import ScriptedServer as S\nwith S(model='m') as s:\n"
    code += " print(s.url, flush=True)\n input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        yield running.stdout.readline().strip(), lambda: 0, running.kill


@contextmanager
def gateway(case: str) -> Iterator[tuple[str, Callable[[], int]]]:
    """The gateway's address, and what counts the turns of its model."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    context = "600" if case == "small context" else "200000"
    with (
        tempfile.TemporaryDirectory() as folder,
        model_server(case) as (upstream, count, end),
    ):
        environ = {f"XDG_{name}_HOME": folder for name in ("CONFIG", "STATE", "DATA")}
        environ["MLX_TOOLS_MODEL_CONTEXT"] = context
        command = [sys.executable, "-P", "-m", "mlx_tools", "serve", "--port", str(port)]
        command += ["--url", upstream, "--chat-format", "chatml", "--route", "prompted"]
        with process(command, f"{url}/health", environ):
            end()
            yield url, count


def requests_of(url: str) -> int:
    """The number of turns that the gateway was asked so far."""
    text = urllib.request.urlopen(f"{url}/metrics").read().decode()
    counts = re.findall(r'^mlx_tools_requests_total\{path="/v1/[^"]*"\} (\d+)', text, re.M)
    return sum(map(int, counts))


# --- the official clients -------------------------------------------------------------------------


def with_openai_chat(url: str, *, stream: bool) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    tools: Any = [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}]
    made = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "Look. " * 700}],
        tools=tools,
        tool_choice="required",
        stream=stream,
    )
    for _ in made if stream else ():
        pass


def with_openai_responses(url: str, *, stream: bool) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    tools: Any = [{"type": "function", **TOOL, "parameters": SCHEMA, "strict": False}]
    made: Any = client.responses.create(
        model="m", input="Look. " * 700, tools=tools, tool_choice="required", stream=stream
    )
    for event in made if stream else ():
        if event.type == "response.failed":
            raise RuntimeError(event.response.error.message)


def with_anthropic(url: str, *, stream: bool) -> None:
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="none")
    made: Any = client.messages.create(
        model="m",
        max_tokens=100,
        messages=[{"role": "user", "content": "Look. " * 700}],
        tools=[{**TOOL, "input_schema": SCHEMA}],
        tool_choice={"type": "any"},
        stream=stream,
    )
    for _ in made if stream else ():
        pass


CLIENTS: Final[dict[str, Callable[..., None]]] = {
    "openai chat": with_openai_chat,
    "openai responses": with_openai_responses,
    "anthropic messages": with_anthropic,
}


def ask_client(name: str, url: str, *, stream: bool) -> str:
    try:
        CLIENTS[name](url, stream=stream)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# --- agents ---------------------------------------------------------------------------------------


def ask_agent(name: str, programs: Path, url: str) -> str:
    """The text that an agent shows a person."""
    with tempfile.TemporaryDirectory() as folder:
        home, repository = Path(folder) / "home", Path(folder) / "repository"
        home.mkdir()
        repository.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
        command, more = COMMANDS[name](home, repository, url)
        environ = os.environ | {"HOME": str(home), "PWD": str(repository), **more}
        environ["PATH"] = f"{programs}{os.pathsep}{environ['PATH']}"
        for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
            environ[f"XDG_{kind}_HOME"] = str(home / f".{kind.lower()}")
        try:
            done = subprocess.run(
                command,
                cwd=repository,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            return f"not done in {SECONDS} s: {bytes(error.stdout or b'').decode()}"
        return done.stdout + done.stderr


def row_of(client: str, case: str, ask: Callable[[str], str]) -> Row:
    with gateway(case) as (url, count):
        before, turns = requests_of(url), count()
        began = time.monotonic()
        shown = ask(url)
        seconds = time.monotonic() - began
        row = {
            "client": client,
            "case": case,
            "requests": requests_of(url) - before,
            "model_turns": count() - turns,
            "seconds": round(seconds, 1),
            "sentence_is_shown": SENTENCES[case] in shown,
        }
    print(json.dumps(row), flush=True)
    if not row["sentence_is_shown"]:
        print(shown[-500:], file=sys.stderr)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--agents", type=Path, help="where agents are installed")
    parser.add_argument("--only", default="", help="ask this client alone, and write nothing")
    given = parser.parse_args()
    rows: list[Row] = []
    for case in SENTENCES:
        for name in CLIENTS:
            for stream in (False, True):
                if given.only not in ("", name):
                    continue
                label = f"{name}, streamed" if stream else name
                rows.append(
                    row_of(label, case, lambda url, n=name, s=stream: ask_client(n, url, stream=s))
                )
        for name in AGENTS if given.agents else ():
            programs = (given.agents / name / "node_modules" / ".bin").resolve()
            if programs.is_dir() and given.only in ("", name):
                rows.append(
                    row_of(name, case, lambda url, n=name, p=programs: ask_agent(n, p, url))
                )
    if not given.only:
        RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
