"""A table of clients that work on the gateway, made by asking each.

``python benchmarks/gateway_clients.py`` starts a scripted model that behaves as a strong one, the
gateway before it, and lets every client of the folder ``clients`` do its tests; then the same with
a real server and the embedded model, for a call and an answer. It writes gateway_clients.json and
the tables of docs/clients.md. ``--only NAME`` asks one client and writes nothing; ``--model`` does
one of the two parts, and leaves the other as it was written.

The clients are installed into ``benchmarks/.venv-clients`` at the versions that the folder pins, by
pip and npm. It is run by the interpreter that has mlx-tools with its extra ``gateway``, and ``mlx``
for the real server.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
import venv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CLIENTS = HERE / "clients"
ENVIRONMENT = HERE / ".venv-clients"
RESULTS = HERE / "gateway_clients.json"
sys.path[:0] = [str(CLIENTS), str(ROOT)]

from coding_agents import AGENTS, work  # noqa: E402
from gateway_load import free_port, process  # noqa: E402
from model import COMMANDS, DONE, TASK, StrongServer  # noqa: E402

from scripts.clients_table import write_page  # noqa: E402

SCRIPTS = {
    "openai": ("python", "openai_client.py"),
    "langchain": ("python", "langchain_suite.py"),
    "anthropic": ("python", "anthropic_client.py"),
    "pydantic-ai": ("python", "pydantic_ai_client.py"),
    "litellm": ("litellm", "litellm_client.py"),
    "ai-sdk": ("node", "ai_sdk.mjs"),
    "llm": ("python", "llm_client.py"),
    "openai-agents": ("python", "openai_agents_client.py"),
    "langgraph": ("python", "langgraph_client.py"),
    "instructor": ("instructor", "instructor_client.py"),
    "open-webui": ("open-webui", "open_webui_client.py"),
    "aider": ("aider", "aider_client.py"),
}
"""Each client's environment and script."""

CONNECTED = ("llm", "open-webui", "aider", *AGENTS)
"""The clients that `mlx-tools connect` sets up; the others are given the address in code."""

ON_SMALL_MODEL = ("openai", "langchain", "anthropic", "pydantic-ai", "litellm", "ai-sdk", "llm")
"""The clients that ask the real model too, for an answer and a call."""

PROMPT = f"{TASK}: look at the files here, write b.txt, and count the lines of all texts."
SMALL = "smollm2-135m"

SECONDS = 240
"""So long a client may take for its tests."""

Row = dict[str, Any]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- environments ---------------------------------------------------------------------------------


def made(name: str) -> Path:
    """The folder of an environment, made where it is missing or its pins are others now."""
    folder = ENVIRONMENT / name
    pins = CLIENTS / ("package.json" if name == "node" else f"{name}.txt")
    stamp, wanted = folder / ".ready", hashlib.sha256(pins.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return folder
    say(f"installing {pins.name}")
    if name == "node":
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_bytes(pins.read_bytes())
        npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel", "error"]
        subprocess.run(npm, cwd=folder, check=True, stdout=sys.stderr)
    else:
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq"]
        subprocess.run([*pip, "--requirement", str(pins)], check=True)
    stamp.write_text(wanted)
    return folder


# --- processes ------------------------------------------------------------------------------------


@contextlib.contextmanager
def gateway(*options: str) -> Iterator[str]:
    """The address of the gateway, without ``/v1``."""
    url = f"http://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as folder:
        environ = {f"XDG_{name}_HOME": folder for name in ("CONFIG", "STATE")}
        command = [sys.executable, "-P", "-m", "mlx_tools", "serve"]
        command += ["--port", url.rpartition(":")[2], *options]
        with process(command, f"{url}/health", environ):
            yield url


# --- tests ----------------------------------------------------------------------------------------


def rows_of(client: str, url: str, model: str, *tests: str) -> Iterator[Row]:
    """The results of a client's script."""
    name, script = SCRIPTS[client]
    folder = made(name)
    if name == "node":  # modules are looked for beside the script
        (folder / script).write_bytes((CLIENTS / script).read_bytes())
        command = ["node", str(folder / script)]
    else:
        command = [str(folder / "bin" / "python"), str(CLIENTS / script)]
    environ = {
        "GATEWAY_URL": url,
        "GATEWAY_MODEL": model,
        "MLX_TOOLS": f"{sys.executable} -P -m mlx_tools",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            [*command, *tests],
            env=os.environ | environ,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        told = bytes(error.stdout or b"").decode()
        why = f"not done in {SECONDS} s"
        yield from rows_in(told)
        yield {"client": client, "test": "the rest", "passed": False, "why": why}
        return
    rows = rows_in(done.stdout)
    if done.returncode or not rows:
        raise SystemExit(f"{script}: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    yield from rows


def rows_in(told: str) -> list[Row]:
    return [json.loads(line) for line in re.findall(r'\{"client":.*\}$', told, re.M)]


def agent_rows(name: str, url: str, server: StrongServer) -> Iterator[Row]:
    """An agent's task: whether it was done, and whether each prompt began as the last one."""
    before = len(server.bodies)
    yield row(name, "a task of five calls", lambda: done_by(name, url, server, before))
    prompts = task_prompts(server, before)
    yield row(name, "each prompt begins with the one before", lambda: check_growth(prompts))


def task_prompts(server: StrongServer, before: int) -> list[str]:
    """The prompts of the task itself; agents ask for titles besides."""
    return [p for p in server.prompts[before:] if TASK in p and "tool_call" in p]


def row(client: str, test: str, check: Any) -> Row:
    why = ""
    try:
        check()
    except AssertionError as error:
        why = str(error)[:300]
    return {"client": client, "test": test, "passed": not why, "why": why}


def done_by(name: str, url: str, server: StrongServer, before: int) -> None:
    said = work(name, made("node") / "node_modules" / ".bin", url, server.models[0], PROMPT, 180)
    assert DONE in said, f"it said {said[-200:]!r}"
    prompt = task_prompts(server, before)[-1]
    results = prompt[prompt.find(TASK) :].count('"type":"tool_observation"')
    assert results == len(COMMANDS), f"{results} results"
    assert "2 total" in prompt, "the last result is not there"
    assert len(server.prompts) > before + len(COMMANDS)


def check_growth(prompts: list[str]) -> None:
    """The beginning that the host wrote of a turn is left away: it is the model's own."""
    assert len(prompts) > len(COMMANDS), f"{len(prompts)} prompts"
    for one, following in itertools.pairwise(prompts):
        asked = one[: one.rfind("<|im_start|>assistant\n")]
        assert following.startswith(asked), "a prompt began otherwise"


def scripted(only: str) -> list[Row]:
    """All tests, on the scripted model."""
    rows: list[Row] = []
    with StrongServer() as server:
        options = ("--url", server.url, "--chat-format", "chatml")
        with gateway(*options) as url:
            for client in (*SCRIPTS, *AGENTS):
                if only not in ("", client):
                    continue
                say(client)
                if client in AGENTS:
                    rows += agent_rows(client, url, server)
                else:
                    rows += rows_of(client, url, server.models[0])
    return rows


def small(only: str) -> list[Row]:
    """An answer and a call of each client, on a real server and the embedded model."""
    rows: list[Row] = []
    with gateway("--backend", "server", "--model", SMALL) as url:
        with urllib.request.urlopen(f"{url}/v1/models") as answer:
            model = json.load(answer)["data"][0]["id"]
        for client in ON_SMALL_MODEL:
            if only in ("", client):
                say(f"{client}, {SMALL}")
                rows += rows_of(client, url, model, "answer", "call")
    return rows


def versions() -> dict[str, str]:
    """The versions that are pinned."""
    pins = [line for path in sorted(CLIENTS.glob("*.txt")) for line in path.open()]
    found = dict(line.strip().split("==") for line in pins)
    return found | json.loads((CLIENTS / "package.json").read_text())["dependencies"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", choices=[*SCRIPTS, *AGENTS], help="ask this client")
    parser.add_argument("--model", choices=["scripted", "small"], help="with this model alone")
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results |= {"versions": versions(), "connected": list(CONNECTED)}
    for name, part in {"scripted": scripted, "small": small}.items():
        if given.model in (None, name) and (name == "scripted" or given.only not in AGENTS):
            results[name] = part(given.only)
            results[f"{name}_date"] = f"{datetime.now(UTC):%Y-%m-%d}"
            for one in results[name]:
                if not one["passed"]:
                    say(f"{one['client']}: {one['test']}: {one['why']}")
            say(f"{sum(one['passed'] for one in results[name])} of {len(results[name])} passed")
    if not given.only:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write_page()


if __name__ == "__main__":
    main()
