"""The share of an agent's last prompt in the model server's cache at its next turn.

``python benchmarks/gateway_cache.py --pi PATH`` asks the agent pi (from npm,
``@mariozechner/pi-coding-agent``) ten questions of one conversation, through the gateway and
through the chat interface of mlx_lm.server itself, each before a fresh mlx_lm.server with the
embedded model. What a request cost stands in its answer. Its share is the cached tokens by the
tokens of the prompt before it. The figures go to ``benchmarks/gateway_cache.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gateway_load
from gateway_load import free_port, process

from mlx_tools.backends import DEFAULT_MODEL, find_openblas, model_path

RESULTS = Path(__file__).with_suffix(".json")

QUESTIONS = (
    *("Say hello.", "What can you read here?", "Read README.md.", "What is it about?"),
    *("Name a colour.", "Another one.", "Read a.txt.", "What does it say?", "Thank you.", "Bye."),
)


class Recorder(ThreadingHTTPServer):
    """Passes requests on, and keeps what each answer says that it cost."""

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.target = target
        self.usages: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Passing(BaseHTTPRequestHandler):
    server: Recorder

    def log_message(self, *_: object) -> None:
        return

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = urllib.request.Request(
            self.server.target + self.path, body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=600) as answer:
            self.send_response(200)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.end_headers()
            for line in answer:
                if b'"usage"' in line and line.startswith(b"data: {"):
                    usage = json.loads(line[6:]).get("usage")
                    self.server.usages += [usage] if usage else []
                self.wfile.write(line)
        self.close_connection = True


@contextmanager
def model_server() -> Iterator[str]:
    """A fresh mlx_lm.server with the embedded model."""
    port = free_port()
    command = [sys.executable, "-m", "mlx_lm", "server", "--port", str(port)]
    command += ["--model", str(model_path(DEFAULT_MODEL))]
    environ = {"LD_PRELOAD": find_openblas() or ""}
    with process(command, f"http://127.0.0.1:{port}/health", environ):
        yield f"http://127.0.0.1:{port}"


def talk(pi: str, url: str, model: str, folder: Path) -> None:
    """The whole conversation, a process a question."""
    home = folder / "home"
    (home / ".pi" / "agent").mkdir(parents=True)
    one = {"id": model, "contextWindow": 200_000, "maxTokens": 24}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none"}
    models = {"providers": {"here": {**provider, "models": [one]}}}
    (home / ".pi" / "agent" / "models.json").write_text(json.dumps(models))
    repository = folder / "repository"
    repository.mkdir()
    (repository / "README.md").write_text("# Bread\n\nHow to bake it.\n")
    (repository / "a.txt").write_text("Flour, water, salt.\n")
    for number, question in enumerate(QUESTIONS):
        command = [pi, "--provider", "here", "--model", model, "--tools", "read"]
        command += [*(["-c"] if number else []), "-p", question]
        environ = {**os.environ, "HOME": str(home)}
        subprocess.run(
            command, cwd=repository, env=environ, timeout=900, capture_output=True, check=False
        )


def shares(usages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    before = None
    for usage in usages:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        row = {"prompt": usage["prompt_tokens"], "cached": cached}
        if before is not None:
            row["share"] = round(cached / before, 3)
        rows.append(row)
        before = usage["prompt_tokens"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pi", required=True, help="the agent's program")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for name in ("gateway", "mlx_lm.server"):
        with tempfile.TemporaryDirectory() as made, model_server() as server:
            folder = Path(made)
            if name == "gateway":
                with gateway_load.gateway(server, folder, "auto") as (url, _):
                    recorder = Recorder(url)
                    talk(given.pi, recorder.url, "default", folder)
            else:
                recorder = Recorder(server)
                talk(given.pi, recorder.url, str(model_path(DEFAULT_MODEL)), folder)
        rows = shares(recorder.usages)
        found[name] = {"least": min((r["share"] for r in rows[1:]), default=None), "requests": rows}
        print(name, json.dumps(found[name]), flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
