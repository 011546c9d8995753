"""The public MCP servers as tools: each added and used in a run.

``python benchmarks/mcp_servers.py`` installs the servers that npm and PyPI have into
``benchmarks/.venv-mcp``, at the versions below; adds each with ``mlx-tools mcp add`` and asks with
``mlx-tools ask``: once a scripted model that calls its tools, once the embedded model behind
``mlx_lm.server``. Writes mcp_servers.json and the table of docs/mcp.md.

Run by the interpreter that has mlx-tools with its extra ``mcp``, and ``mlx`` for the real model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import venv
from datetime import UTC, datetime
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from mlx_tools.testing import ScriptedServer, answer, call  # noqa: E402
from scripts.mcp_table import write_page  # noqa: E402

RESULTS = HERE / "mcp_servers.json"
ENVIRONMENT = HERE / ".venv-mcp"
NPM = {
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
}
PYPI = {
    "mcp-server-time": "2026.10.19",
    "mcp-server-git": "2026.10.19",
    "mcp-server-fetch": "2026.10.24",
}
SMALL = "smollm2-135m"
SECONDS = 300

Call = tuple[str, dict[str, Any], str]
"""A tool of the server, its arguments, and what its answer must have in it."""


def program(name: str) -> str:
    """The path of a server's program."""
    folder = (
        "python/bin" if name.startswith("mcp-server-") and name in PYPI else "node_modules/.bin"
    )
    return str(ENVIRONMENT / folder / name)


def install() -> None:
    ENVIRONMENT.mkdir(exist_ok=True)
    if not (ENVIRONMENT / "node_modules").exists():
        wanted = [f"{name}@{version}" for name, version in NPM.items()]
        npm = ["npm", "install", "--no-audit", "--no-fund", "--loglevel", "error"]
        subprocess.run([*npm, "--prefix", str(ENVIRONMENT), *wanted], check=True, stdout=sys.stderr)
    if not (ENVIRONMENT / "python").exists():
        venv.create(ENVIRONMENT / "python", with_pip=True)
        pip = [str(ENVIRONMENT / "python/bin/python"), "-m", "pip", "install", "-qq"]
        subprocess.run([*pip, *(f"{k}=={v}" for k, v in PYPI.items())], check=True)


def cases(folder: Path, page: str) -> dict[str, tuple[list[str], list[Call], str]]:
    """Each server's command, the calls of the scripted model, and a question for a real one."""
    notes, repository = folder / "notes", folder / "repository"
    notes.mkdir()
    (notes / "bern.txt").write_text("The bears of Bern sleep in winter.\n")
    repository.mkdir()
    git = ["git", "-C", str(repository), "-c", "user.name=A", "-c", "user.email=a@b.test"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "begin with nothing"], check=True)
    wolf = {"name": "wolf", "entityType": "animal", "observations": ["it howls"]}
    new_york = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    return {
        "server-everything": (
            [program("mcp-server-everything")],
            [
                ("echo", {"message": "hello there"}, "hello there"),
                ("get-sum", {"a": 2, "b": 40}, "42"),
                ("trigger-long-running-operation", {"duration": 1, "steps": 4}, "completed"),
            ],
            "Use the tool to echo the message hello.",
        ),
        "server-filesystem": (
            [program("mcp-server-filesystem"), str(notes)],
            [
                ("list_directory", {"path": str(notes)}, "bern.txt"),
                ("read_text_file", {"path": str(notes / "bern.txt")}, "sleep in winter"),
                ("read_text_file", {"path": "/etc/passwd"}, "outside allowed directories"),
            ],
            f"List the files in {notes}.",
        ),
        "server-memory": (
            [program("mcp-server-memory")],
            [
                ("create_entities", {"entities": [wolf]}, "wolf"),
                ("search_nodes", {"query": "howls"}, "wolf"),
            ],
            "Search the nodes for wolf.",
        ),
        "mcp-server-time": (
            [program("mcp-server-time")],
            [
                ("convert_time", new_york, "21:00"),
                ("get_current_time", {"timezone": "Europe/Zurich"}, "Europe/Zurich"),
            ],
            "What time is it in Europe/Zurich?",
        ),
        "mcp-server-git": (
            [program("mcp-server-git"), "--repository", str(repository)],
            [("git_log", {"repo_path": str(repository)}, "begin with nothing")],
            f"What does the git log of {repository} say?",
        ),
        "mcp-server-fetch": (
            [program("mcp-server-fetch"), "--ignore-robots-txt", "--allow-private-ips"],
            [("fetch", {"url": page}, "Bears of Bern")],
            f"Fetch {page} and say what it is about.",
        ),
    }


def mlx_tools(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "mlx_tools", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
    )


def scripted(name: str, calls: list[Call]) -> str:
    """Return why a run with the scripted model went wrong; empty if it did not."""
    short = name.removeprefix("server-").removeprefix("mcp-server-")
    lines = [call(f"{short}__{tool}", **given) for tool, given, _ in calls]
    with ScriptedServer(*lines, answer("That was it.")) as server:
        run = mlx_tools(
            "ask",
            "--url",
            server.url,
            "--tools",
            f"plugin:mcp:{short}",
            "--approve",
            "always",
            "Go.",
        )
        if run.returncode or run.stdout.strip() != "That was it.":
            return f"{run.returncode}: {run.stdout} {run.stderr}"[-500:]
        for (tool, _, wanted), prompt in zip(calls, server.prompts[1:], strict=True):
            if wanted not in prompt[len(server.prompts[0]) :]:
                return f"{tool}: {prompt[-500:]}"
    return ""


def real(name: str, tool: str, question: str) -> dict[str, Any]:
    """The work of the embedded model with one tool: its calls and their errors."""
    short = name.removeprefix("server-").removeprefix("mcp-server-")
    run = mlx_tools(
        *("ask", "--backend", "server", "--model", SMALL, "--approve", "always", "--json"),
        *("--strategy", "guided"),  # left to itself it writes no line of the protocol
        *("--tools", f"{short}__{tool}", question),
    )
    try:
        told = json.loads(run.stdout)
    except ValueError:
        return {"ended": f"{run.returncode}: {run.stderr}"[-300:], "calls": []}
    calls = [one.get("status", "") for one in told["calls"]]
    return {"ended": told["reason"] or told["status"], "calls": calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="this server, and nothing is written")
    only = parser.parse_args().only
    install()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        for kind in ("CONFIG", "STATE", "DATA"):
            os.environ[f"XDG_{kind}_HOME"] = str(home / kind)
        (home / "index.html").write_text(
            "<title>Bears</title><article><h1>Bears of Bern</h1></article>"
        )
        web = ThreadingHTTPServer(
            ("127.0.0.1", 0), lambda *a: SimpleHTTPRequestHandler(*a, directory=name)
        )
        threading.Thread(target=web.serve_forever, daemon=True).start()
        page = f"http://127.0.0.1:{web.server_port}/index.html"
        for server, (command, calls, question) in cases(home, page).items():
            if only not in ("", server):
                continue
            short = server.removeprefix("server-").removeprefix("mcp-server-")
            began = time.monotonic()
            added = mlx_tools("mcp", "add", short, "--yes", "--", *command)
            row: dict[str, Any] = {"server": server, "seconds": round(time.monotonic() - began, 1)}
            row["version"] = ({k.rpartition("/")[2]: v for k, v in NPM.items()} | PYPI)[server]
            listed = [
                json.loads(line)
                for line in mlx_tools("tools", "list", "--json").stdout.splitlines()
            ]
            tools = [one for one in listed if one["plugin"] == f"mcp:{short}"]
            row["tools"] = len(tools)
            row["left_out"] = added.stderr.count("left out:")
            row["why"] = added.stderr[-500:] if added.returncode else scripted(server, calls)
            row["calls"] = [tool for tool, _, _ in calls]
            row["real"] = real(server, calls[0][0], question)
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
    if only:
        return
    results = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_page()


if __name__ == "__main__":
    main()
