"""The agents, each from npm, doing a task of five tool calls in a git repository of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model import TASK


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent works: its home, a repository, the gateway's address, the model's name; and
    the command of an MCP server that it is given, where it is given one."""

    home: Path
    repository: Path
    url: str
    model: str
    mcp: tuple[str, ...] = ()


Command = tuple[list[str], dict[str, str]]
"""What is run, and what its environment has beside the usual."""


def pi(place: Place, task: str) -> Command:
    folder = place.home / ".pi" / "agent"
    folder.mkdir(parents=True)
    model = {"id": place.model, "contextWindow": 128_000, "maxTokens": 16_384}
    provider = {
        "baseUrl": f"{place.url}/v1",
        "api": "openai-completions",
        "apiKey": "none",
        "models": [model],
    }
    (folder / "models.json").write_text(json.dumps({"providers": {"mlx-tools": provider}}))
    chosen = ["--provider", "mlx-tools", "--model", place.model]
    return ["pi", *chosen, "-p", task], {"PI_OFFLINE": "1"}


def opencode(place: Place, task: str) -> Command:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
        "models": {place.model: {}},
    }
    settings: dict[str, Any] = {"provider": {"mlx-tools": provider}, "autoupdate": False}
    settings["share"] = "disabled"
    if place.mcp:
        settings["mcp"] = {
            "local": {"type": "local", "command": list(place.mcp), "timeout": 60_000}
        }
    (place.repository / "opencode.json").write_text(json.dumps(settings))
    return ["opencode", "run", "--model", f"mlx-tools/{place.model}", task], {}


def codex(place: Place, task: str) -> Command:
    folder = place.home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(
        f'model = "{place.model}"\n'
        'model_provider = "mlx-tools"\n'
        "[model_providers.mlx-tools]\n"
        'name = "mlx-tools"\n'
        f'base_url = "{place.url}/v1"\n'
        'wire_api = "responses"\n'
        + (f"[mcp_servers.local]\ncommand = {json.dumps(place.mcp[0])}\n" if place.mcp else "")
        + (
            f"args = {json.dumps(place.mcp[1:])}\nstartup_timeout_sec = 60\nrequired = true\n"
            if place.mcp
            else ""
        )
    )
    # Its own sandbox needs what a container may not have.
    return ["codex", "exec", "--sandbox", "danger-full-access", task], {"CODEX_HOME": str(folder)}


AGENTS: Mapping[str, Callable[[Place, str], Command]] = {
    "pi": pi,
    "opencode": opencode,
    "codex": codex,
}


def run_agent(
    command: Callable[[Place, str], Command],
    programs: Path,
    place: Place,
    task: str,
    seconds: float,
) -> subprocess.CompletedProcess[str]:
    """Have an agent do a task in the repository of a place, with a home of its own there.

    Raises:
        AssertionError: it failed, or was not done in this time.
    """
    (program, *arguments), more = command(place, task)
    environ = os.environ | {"HOME": str(place.home), "PWD": str(place.repository), **more}
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        environ[f"XDG_{kind}_HOME"] = str(place.home / f".{kind.lower()}")
    try:
        done = subprocess.run(
            [str(programs / program), *arguments],
            cwd=place.repository,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"not done in {seconds:g} s") from None
    assert done.returncode == 0, (done.stderr + done.stdout)[-500:]
    return done


def make_repository(folder: Path, files: Mapping[str, str]) -> None:
    """A git repository in which these files were committed."""
    folder.mkdir()
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for step in (["init", "-q"], ["add", "."], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *step], cwd=folder, check=True)


def work(
    name: str,
    programs: Path,
    url: str,
    model: str,
    task: str,
    seconds: float,
    mcp: tuple[str, ...] = (),
) -> str:
    """What an agent printed, and what is then in b.txt. Raises `AssertionError` where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        home, repository = Path(folder) / "home", Path(folder) / "repository"
        home.mkdir()
        make_repository(repository, {"README.md": "hello\n", "a.txt": "one\n"})
        place = Place(home, repository, url, model, mcp)
        done = run_agent(AGENTS[name], programs, place, task, seconds)
        made = repository / "b.txt"
        assert made.exists() or TASK not in task, f"no b.txt: {done.stdout[-300:]}"
        return done.stdout + done.stderr
