"""The first requests of coding agents, and how much of their tools' descriptions a model is told.

``python benchmarks/agent_requests.py FOLDER`` has each agent that is installed below ``FOLDER``
(``npm install --prefix FOLDER/NAME PACKAGE``, see `PACKAGES`) ask a scripted server on loopback
to list files. Of the request with the most tools it keeps names, lengths and hashes in
``benchmarks/agent_requests.json``, and no text. It makes the gateway's prompt of each request, for
several context sizes, and counts the descriptions that stand in it whole, white space aside.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from mlx_tools.backends import TokenCounter
from mlx_tools.controller import RunSettings
from mlx_tools.gateway.anthropic_messages import read_anthropic_messages
from mlx_tools.gateway.chat_completions import read_chat_completion
from mlx_tools.gateway.conversation import PromptProfile
from mlx_tools.gateway.request import TurnRequest
from mlx_tools.gateway.responses import read_responses
from mlx_tools.gateway.turn import TurnRunner
from mlx_tools.policy import Limits
from mlx_tools.prompt import NAMED_FORMATS, Neutraliser
from mlx_tools.store import load_words
from mlx_tools.testing import ScriptedBackend

RESULTS = Path(__file__).resolve().parent / "agent_requests.json"
CONTEXTS: Final = (None, 131_072, 32_768, 8_192)
TASK: Final = "List the files here"
SECONDS: Final = 150

PACKAGES: Final = {
    "claude-code": "@anthropic-ai/claude-code",
    "codex": "@openai/codex",
    "opencode": "opencode-ai",
    "pi": "@mariozechner/pi-coding-agent",
    "qwen-code": "@qwen-code/qwen-code",
    "continue": "@continuedev/cli",
    "cline": "cline",
    "kilo": "@kilocode/cli",
}

Body = dict[str, Any]
Command = tuple[list[str], dict[str, str]]
"""The command, and the variables of its environment beside the usual ones."""


# --- a server that keeps what it is asked ---------------------------------------------------------


class KeepingServer(ThreadingHTTPServer):
    """Answers `Done.` in all three interfaces, and keeps the bodies."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, Body]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: KeepingServer

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._reply({"object": "list", "data": [{"id": "m", "object": "model", "created": 0}]})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        body = json.loads(data or b"{}")
        self.server.requests.append((path, body))
        if path.endswith("count_tokens"):
            self._reply({"input_tokens": 1})
            return
        kind = path.rsplit("/", 1)[-1]
        whole, events = _ANSWERS.get(kind, _ANSWERS["completions"])
        if not body.get("stream"):
            self._reply(whole)
            return
        lines = []
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            lines.append(f"{name}data: {json.dumps(event)}\n\n")
        self._send("".join((*lines, "data: [DONE]\n\n")).encode(), "text/event-stream")

    def _reply(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_CHUNK: Body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
_MESSAGE: Body = {
    "id": "m1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
_TEXT = {"type": "text", "text": "Done."}
_ITEM: Body = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
}
_RESPONSE: Body = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "output": [_ITEM],
    "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
}


def _choice(**fields: Any) -> list[Body]:
    return [{"index": 0, "finish_reason": None, **fields}]


_ANSWERS: Final[Mapping[str, tuple[Body, list[Body]]]] = {
    "completions": (
        {
            **_CHUNK,
            "object": "chat.completion",
            "choices": _choice(
                message={"role": "assistant", "content": "Done."}, finish_reason="stop"
            ),
            "usage": _USAGE,
        },
        [
            {**_CHUNK, "choices": _choice(delta={"role": "assistant", "content": "Done."})},
            {**_CHUNK, "choices": _choice(delta={}, finish_reason="stop"), "usage": _USAGE},
        ],
    ),
    "messages": (
        {**_MESSAGE, "content": [_TEXT], "stop_reason": "end_turn"},
        [
            {
                "type": "message_start",
                "message": {**_MESSAGE, "content": [], "stop_reason": None},
            },
            {"type": "content_block_start", "index": 0, "content_block": {**_TEXT, "text": ""}},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": "Done."},
            },
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"output_tokens": 1},
            },
            {"type": "message_stop"},
        ],
    ),
    "responses": (
        _RESPONSE,
        [
            {
                "type": "response.created",
                "response": {**_RESPONSE, "status": "in_progress", "output": []},
            },
            {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
            {"type": "response.completed", "response": _RESPONSE},
        ],
    ),
}


# --- the agents -----------------------------------------------------------------------------------


def _claude(home: Path, repository: Path, url: str) -> Command:
    environ = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    program = PACKAGES["claude-code"].rpartition("/")[2].removesuffix("-code")
    return [program, "-p", TASK, "--model", "m"], environ


def _codex(home: Path, repository: Path, url: str) -> Command:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        'model = "m"\nmodel_provider = "local"\n[model_providers.local]\nname = "local"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\n'
    )
    command = ["codex", "exec", "--sandbox", "danger-full-access", TASK]
    return command, {"CODEX_HOME": str(home / ".codex")}


def _opencode(home: Path, repository: Path, url: str, program: str = "opencode") -> Command:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"m": {}},
    }
    settings = {"provider": {"local": provider}, "autoupdate": False, "share": "disabled"}
    for name in ("opencode.json", "kilo.json"):
        (repository / name).write_text(json.dumps(settings))
    return [program, "run", "--model", "local/m", TASK], {}


def _kilo(home: Path, repository: Path, url: str) -> Command:
    return _opencode(home, repository, url, "kilo")


def _pi(home: Path, repository: Path, url: str) -> Command:
    folder = home / ".pi" / "agent"
    folder.mkdir(parents=True)
    provider = {
        "baseUrl": f"{url}/v1",
        "api": "openai-completions",
        "apiKey": "none",
        "models": [{"id": "m", "contextWindow": 128_000, "maxTokens": 16_384}],
    }
    (folder / "models.json").write_text(json.dumps({"providers": {"local": provider}}))
    return ["pi", "--provider", "local", "--model", "m", "-p", TASK], {"PI_OFFLINE": "1"}


def _qwen(home: Path, repository: Path, url: str) -> Command:
    environ = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "m"}
    return ["qwen", "--auth-type", "openai", "-p", TASK], environ


def _continue(home: Path, repository: Path, url: str) -> Command:
    config = home / "config.yaml"
    config.write_text(
        "name: local\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: m\n    provider: openai\n"
        f"    model: m\n    apiBase: {url}/v1\n    apiKey: none\n    roles: [chat]\n"
        "    capabilities: [tool_use]\n"
    )
    return ["cn", "-p", TASK, "--config", str(config)], {"CONTINUE_TELEMETRY_ENABLED": "0"}


def _cline(home: Path, repository: Path, url: str) -> Command:
    auth = f"cline auth -p openai -k none -m m -b {url}/v1 >/dev/null 2>&1 </dev/null"
    return ["sh", "-c", f'{auth}; exec cline -y "{TASK}"'], {}


COMMANDS: Final[Mapping[str, Callable[[Path, Path, str], Command]]] = {
    "claude-code": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "pi": _pi,
    "qwen-code": _qwen,
    "continue": _continue,
    "cline": _cline,
    "kilo": _kilo,
}


def first_request(name: str, programs: Path) -> tuple[str, Body] | None:
    """Return the path and body of an agent's first request with tools, or None."""
    server = KeepingServer()
    with tempfile.TemporaryDirectory() as folder:
        home, repository = Path(folder) / "home", Path(folder) / "repository"
        home.mkdir()
        repository.mkdir()
        (repository / "README.md").write_text("hello\n")
        subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
        command, more = COMMANDS[name](home, repository, server.url)
        environ = os.environ | {"HOME": str(home), "PWD": str(repository), **more}
        environ["PATH"] = f"{programs}{os.pathsep}{environ['PATH']}"
        for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
            environ[f"XDG_{kind}_HOME"] = str(home / f".{kind.lower()}")
        try:
            subprocess.run(
                command,
                cwd=repository,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: not done in {SECONDS} s")
    server.shutdown()
    asked = [one for one in server.requests if one[1].get("tools")]
    return max(asked, key=lambda one: len(json.dumps(one[1]["tools"])), default=None)


# --- what the model is told -----------------------------------------------------------------------


def texts_in(value: Any) -> Iterator[str]:
    """All descriptions in a value, those of tools first."""
    if isinstance(value, dict):
        own = value.get("description")
        if isinstance(own, str) and own.strip():
            yield own
        for key, part in value.items():
            if key != "description" or not isinstance(part, str):
                yield from texts_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts_in(part)


def request_of(path: str, body: Body) -> TurnRequest:
    """The turn that a body asks for."""
    if path.endswith("/messages"):
        return read_anthropic_messages(body, new_id=str)[0]
    if path.endswith("/responses"):
        return read_responses(body, new_id=str, now=float)[0]
    return read_chat_completion(body, new_id=str, now=float)[0]


async def told(path: str, body: Body, context: int | None) -> Body:
    """The share of the descriptions that stands in the prompt of a request."""
    chatml = NAMED_FORMATS["chatml"]
    settings = RunSettings(chat_format=chatml, style="jsonl", model="m", context=context)
    profile = PromptProfile(
        settings=settings, chat_format=chatml, style="jsonl", strategy="free", words=load_words()
    )
    backend = ScriptedBackend("Done.")
    runner = TurnRunner(backend, profile, Limits(), TokenCounter())
    request = await runner.prepare(request_of(path, body))
    tokens = await runner.count(request)
    if context is None or tokens < context:
        await runner.run(request, lambda event: None, str)
    prompt = " ".join(backend.prompts[0].split()) if backend.prompts else ""
    neutral = Neutraliser(chatml.control_tokens).plain
    texts = [text for tool in body["tools"] for text in texts_in(tool)]
    whole = [text for text in texts if " ".join(neutral(text).split()) in prompt]
    return {
        "context": context,
        "tokens": tokens,
        "fits": bool(backend.prompts),
        "descriptions": len(texts),
        "told_whole": len(whole),
        "shortened": request.catalog_note,
    }


def summary(path: str, body: Body) -> Body:
    """A request without its texts: names, lengths and hashes."""
    tools = []
    for tool in body["tools"]:
        texts = [*texts_in(tool)]
        hashes = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
        name = tool.get("name") or (tool.get("function") or {}).get("name") or tool.get("type")
        sizes = [[len(text), digest] for text, digest in zip(texts, hashes, strict=True)]
        tools.append({"name": name, "descriptions": sizes})
    return {"path": path, "fields": sorted(body), "tools": tools}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the agents are installed")
    given = parser.parse_args()
    results: Body = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"agents": {}}
    for name in PACKAGES:
        programs = given.folder / name / "node_modules" / ".bin"
        if not programs.is_dir():
            continue
        request = first_request(name, programs.resolve())
        if request is None:
            print(f"{name}: no request with tools")
            continue
        rows = [asyncio.run(told(*request, context)) for context in CONTEXTS]
        results["agents"][name] = {**summary(*request), "told": rows}
        for row in rows:
            print(name, json.dumps(row))
    RESULTS.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
