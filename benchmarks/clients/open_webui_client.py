"""Open WebUI: its server, started with the variables that `mlx-tools connect` names."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import checks
from checks import CALCULATOR, HELLO, SUM, URL

SECONDS = 180
"""So long the server may take to start: it makes its database, and imports much."""


class WebUi:
    """A server that runs, and the token of its one user."""

    def __init__(self, url: str) -> None:
        self.url, self._token = url, ""
        person = {"name": "a", "email": "a@example.com", "password": "aaaaaaaA1!"}
        self._token = self.ask("/api/v1/auths/signup", person)["token"]

    def ask(self, path: str, body: Any = None) -> Any:
        data = self.read(path, body)
        return json.loads(data)

    def read(self, path: str, body: Any = None) -> bytes:
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                found: bytes = response.read()
                return found
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read()[:300]!r}") from None

    def complete(self, question: str, **more: Any) -> Any:
        messages = [{"role": "user", "content": question}]
        return {"model": "default", "messages": messages, "stream": False, **more}


@contextmanager
def web_ui() -> Iterator[WebUi]:
    connect = [*shlex.split(os.environ["MLX_TOOLS"]), "connect", "open-webui"]
    plan = subprocess.run(
        [*connect, "--url", URL, "--json"], check=True, capture_output=True, text=True
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | json.loads(plan.stdout)["variables"]
        environ |= {"DATA_DIR": folder, "HOME": folder, "WEBUI_SECRET_KEY": "a" * 32}
        environ |= {"OFFLINE_MODE": "true", "HF_HUB_OFFLINE": "1", "ENABLE_OLLAMA_API": "false"}
        environ |= {"RAG_EMBEDDING_ENGINE": "openai", "BYPASS_EMBEDDING_AND_RETRIEVAL": "true"}
        program = str(Path(sys.executable).with_name("open-webui"))
        log = Path(folder) / "log"
        with log.open("w") as out:
            server = subprocess.Popen(
                [program, "serve", "--host", "127.0.0.1", "--port", str(port)],
                env=environ,
                cwd=folder,
                stdout=out,
                stderr=out,
            )
            try:
                yield _started(f"http://127.0.0.1:{port}", server, log)
            finally:
                server.terminate()
                server.wait()


def _started(url: str, server: subprocess.Popen[bytes], log: Path) -> WebUi:
    begin = time.monotonic()
    while time.monotonic() < begin + SECONDS and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return WebUi(url)
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"open-webui did not start: {log.read_text()[-3000:]}")


def main() -> None:
    with web_ui() as one:

        def models() -> None:
            rows = one.ask("/api/models")["data"]
            assert [row["id"] for row in rows if row["id"] in ("default", checks.MODEL)], rows

        def answer() -> None:
            made = one.ask("/api/chat/completions", one.complete(HELLO, model=checks.MODEL))
            checks.check_answer(made["choices"][0]["message"]["content"])

        def streamed() -> None:
            body = one.complete(HELLO, model=checks.MODEL, stream=True)
            lines = one.read("/api/chat/completions", body).decode().splitlines()
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            pieces = [e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]]
            checks.check_answer("".join(pieces))

        def call() -> None:
            tools = [{"type": "function", "function": CALCULATOR}]
            body = one.complete(SUM, model=checks.MODEL, tools=tools)
            made = one.ask("/api/chat/completions", body)["choices"][0]
            (called,) = made["message"]["tool_calls"]
            assert json.loads(called["function"]["arguments"]) == {"expression": "17 * 23"}, made

        tests = {"models": models, "answer": answer, "streamed answer": streamed, "call": call}
        checks.run("open-webui", tests)


if __name__ == "__main__":
    main()
