"""A gateway, and what else belongs to it, as processes before a scripted server."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from mlx_tools.testing import ScriptedServer
from tests.forked import Forked, forks
from tests.gateway.conftest import WEATHER
from tests.waiting import HANG, wait_until

NO_CERTIFICATES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""In place of the usual ones, which take longer to read than a request on loopback takes."""

request = partial(httpx.request, timeout=HANG, verify=NO_CERTIFICATES)
stream = partial(httpx.stream, timeout=HANG, verify=NO_CERTIFICATES)

BODY = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "tools": [WEATHER]}


class House:
    """Processes with one state in ``folder``, of which the first is a gateway. Runs
    may write to ``files``; ``settings`` are more of the environment."""

    def __init__(
        self, folder: Path, *scripts: Any, options: tuple[str, ...] = (), **settings: str
    ) -> None:
        self.folder, self.files = folder, folder / "files"
        self.files.mkdir()
        self.server = ScriptedServer(*scripts).__enter__()
        self.environ = os.environ | {
            f"XDG_{name}_HOME": str(folder) for name in ("CONFIG", "STATE", "DATA")
        }
        own = {
            "MODEL_CHAT_FORMAT": "chatml",
            "ALLOWED_TOOLS": "create_file,file_access,calculator",
            "TOOLS_ROOTS": f"{self.files}:rw",
        }
        self.environ |= {f"MLX_TOOLS_{name}": value for name, value in (own | settings).items()}
        self.processes: list[Forked] = []
        self.serve(*options)

    def start(self, *words: str) -> Forked:
        self.processes.append(forks().start(*words, environ=self.environ, folder=self.folder))
        return self.processes[-1]

    def at_work(self, command: str, *options: str) -> Forked:
        """Start a worker for runs, before the server."""
        return self.start(command, "--url", self.server.url, *options)

    def serve(self, *options: str) -> None:
        """Start a gateway, after one that has ended."""
        self.gateway = self.at_work("serve", "--port", "0", *options)
        self.url = self.said(self.gateway, r"served at (http://\S+)")

    def worker(self) -> Forked:
        made = self.at_work("worker")
        assert self.said(made, r"runs of (\S+) are done here") == "scripted"
        return made

    def said(self, process: Forked, pattern: str) -> str:
        lines: list[str] = []
        for line in iter(process.stderr.readline, b""):
            lines.append(line.decode())
            if found := re.search(pattern, lines[-1]):
                return found[1]
        raise AssertionError(f"it ended, and said: {''.join(lines)}")

    def ask(self, headers: Any = None, **more: Any) -> httpx.Response:
        url = f"{self.url}/chat/completions"
        return request("POST", url, json=BODY | more, headers=headers)

    def stream(self) -> Any:
        body = BODY | {"stream": True}
        return stream("POST", f"{self.url}/chat/completions", json=body)

    # --- runs ---

    def post(self, path: str = "", status: int = 0, **body: Any) -> dict[str, Any]:
        got = request("POST", f"{self.url}/runs{path}", json=body)
        assert not status or got.status_code == status, got.text
        found: dict[str, Any] = got.json()
        return found

    def get(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = request("GET", f"{self.url}/runs/{run}").json()
        return found

    def until(self, run: str, *statuses: str) -> dict[str, Any]:
        """The run, once it stands so."""
        wait_until(lambda: self.get(run)["status"] in statuses, f"{run} is never {statuses}")
        return self.get(run)

    def events(self, run: str) -> Iterator[str]:
        """The kinds of the events of a run, as they come."""
        with stream("GET", f"{self.url}/runs/{run}/events") as response:
            for line in response.iter_lines():
                if line.startswith("event: "):
                    yield line.removeprefix("event: ")

    def close(self) -> None:
        for one in self.processes:
            one.kill()
            one.communicate()
        self.server.__exit__(None, None, None)
