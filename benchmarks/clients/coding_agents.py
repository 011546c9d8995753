"""The agents from npm, each set up by `mlx-tools connect`, doing a task of five tool calls.

Each has an empty home and a git repository of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model import TASK


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an agent: its home, a repository, the gateway's address, the model's name; and
    the command of an MCP server that it is given, where it is given one."""

    home: Path
    repository: Path
    url: str
    model: str
    mcp: tuple[str, ...] = ()


Command = tuple[list[str], dict[str, str]]
"""The command, and the variables of its environment beside the usual ones."""


CONNECT = [sys.executable, "-P", "-m", "mlx_tools", "connect"]


def connect(client: str, place: Place) -> None:
    """Set a client up for the gateway, as `mlx-tools connect` writes it into the empty home."""
    command = [*CONNECT, client, "--url", place.url, "--write"]
    done = subprocess.run(
        command, cwd=place.home, env=environ_of(place), capture_output=True, text=True
    )
    assert done.returncode == 0, f"mlx-tools connect {client}: {done.stderr}"


def environ_of(place: Place) -> dict[str, str]:
    """The environment with the home of a place."""
    environ = os.environ | {"HOME": str(place.home), "PWD": str(place.repository)}
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        environ[f"XDG_{kind}_HOME"] = str(place.home / f".{kind.lower()}")
    return environ


def pi(place: Place, task: str) -> Command:
    connect("pi", place)
    chosen = ["--provider", "mlx-tools", "--model", "default"]
    return ["pi", *chosen, "-p", task], {"PI_OFFLINE": "1"}


def opencode(place: Place, task: str) -> Command:
    connect("opencode", place)
    settings: dict[str, Any] = {"autoupdate": False, "share": "disabled"}
    if place.mcp:
        server = {"type": "local", "command": list(place.mcp), "timeout": 60_000}
        settings["mcp"] = {"local": server}
    (place.repository / "opencode.json").write_text(json.dumps(settings))
    return ["opencode", "run", task], {}


def codex(place: Place, task: str) -> Command:
    connect("codex", place)
    if place.mcp:
        command, *arguments = place.mcp
        with (place.home / ".codex" / "config.toml").open("a") as file:
            file.write(
                f"[mcp_servers.local]\ncommand = {json.dumps(command)}\n"
                f"args = {json.dumps(arguments)}\nstartup_timeout_sec = 60\nrequired = true\n"
            )
    # Its own sandbox needs what a container may not have.
    return ["codex", "exec", "--sandbox", "danger-full-access", task], {}


def claude_code(place: Place, task: str) -> Command:
    connect("claude-code", place)
    program = "claude-code".removesuffix("-code")
    return [program, "-p", task, "--allowedTools", "Bash"], {}


def qwen_code(place: Place, task: str) -> Command:
    connect("qwen-code", place)
    return ["qwen", "--yolo", "-p", task], {}


def continue_cli(place: Place, task: str) -> Command:
    connect("continue", place)
    config = str(place.home / ".continue" / "config.yaml")
    return ["cn", "--auto", "--config", config, "-p", task], {"CONTINUE_TELEMETRY_ENABLED": "0"}


def cline(place: Place, task: str) -> Command:
    connect("cline", place)
    return ["cline", task], {}


def kilo(place: Place, task: str) -> Command:
    connect("kilo", place)
    return ["kilo", "run", "--auto", task], {}


AGENTS: Mapping[str, Callable[[Place, str], Command]] = {
    "pi": pi,
    "opencode": opencode,
    "codex": codex,
    "claude-code": claude_code,
    "qwen-code": qwen_code,
    "continue": continue_cli,
    "cline": cline,
    "kilo": kilo,
}


def run_agent(
    command: Callable[[Place, str], Command],
    programs: Path,
    place: Place,
    task: str,
    seconds: float,
) -> subprocess.CompletedProcess[str]:
    """Let an agent do a task in the repository of a place, with a home of its own there.

    Raises:
        AssertionError: it failed, or was not done in this time.
    """
    (program, *arguments), more = command(place, task)
    try:
        done = subprocess.run(
            [str(programs / program), *arguments],
            cwd=place.repository,
            env=environ_of(place) | more,
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
    """The output of an agent, and the content of b.txt. Raises `AssertionError` if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        home, repository = Path(folder) / "home", Path(folder) / "repository"
        home.mkdir()
        make_repository(repository, {"README.md": "hello\n", "a.txt": "one\n"})
        place = Place(home, repository, url, model, mcp)
        done = run_agent(AGENTS[name], programs, place, task, seconds)
        made = repository / "b.txt"
        assert made.exists() or TASK not in task, f"no b.txt: {done.stdout[-300:]}"
        return done.stdout + done.stderr
