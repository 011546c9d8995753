"""The delay until a client sees a slow model's text: real time, real sockets.

``python benchmarks/gateway_stream.py`` starts a scripted model server that writes for 40 seconds,
the gateway before it, and asks for text, a call and a thought in all three interfaces at once. It
measures the time from the model's first token to the first event, and the longest silence. The
figures go to ``benchmarks/gateway_stream.json``. ``--seconds N`` has the model write for so long.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from gateway_load import free_port, gateway
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

RESULTS = Path(__file__).resolve().parent / "gateway_stream.json"

MOST_DELAY = 0.2
MOST_SILENCE = 10.0
PACE = 0.25
PREFILL = 1.0
"""Seconds before the first token."""

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
}
TOOL = {"name": "write", "description": "Writes a file."}
TOOLS = {
    "chat/completions": [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}],
    "responses": [{"type": "function", **TOOL, "parameters": SCHEMA}],
    "messages": [{**TOOL, "input_schema": SCHEMA}],
}
KINDS = ("text", "call", "thought")


class SlowModel:
    """A completions server whose model writes what the question asks for, slowly."""

    def __init__(self, seconds: float) -> None:
        self.first_tokens: dict[str, float] = {}
        self._words = int(seconds / PACE)
        post = ["POST"]
        app = Starlette(
            routes=[
                Route("/v1/completions", self._complete, methods=post),
                Route("/v1/models", self._models),
                Route("/health", self._models),
            ]
        )
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> SlowModel:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def _models(self, request: Any) -> Any:
        return JSONResponse({"object": "list", "data": [{"id": "m-chatml", "object": "model"}]})

    async def _complete(self, request: Any) -> Any:
        prompt = (await request.json()).get("prompt", "")
        cases = re.findall(r"Write (\w+) for ([\w/]+)\.", prompt)
        if not cases:  # the gateway tries what the server can do
            return JSONResponse({"error": "no prompt"}, 400)
        case = cases[-1]
        return StreamingResponse(self._stream(*case), media_type="text/event-stream")

    async def _stream(self, kind: str, interface: str) -> AsyncIterator[str]:
        words = [f"word {number} " for number in range(self._words)]
        before = {
            "text": [],
            "thought": ["<think>"],
            "call": ['{"type":"tool_call","name":"write","arguments":{"path":"a","content":"'],
        }
        after = {"text": [], "thought": ["</think>\n\nDone."], "call": ['"}}']}
        await asyncio.sleep(PREFILL)
        self.first_tokens[f"{interface} {kind}"] = time.monotonic()
        for piece in (*before[kind], *words, *after[kind]):
            yield _event({"text": piece}, None)
            await asyncio.sleep(PACE)
        yield _event({"text": ""}, "stop")
        yield "data: [DONE]\n\n"


def _event(choice: dict[str, Any], reason: str | None) -> str:
    choices = [{"index": 0, "finish_reason": reason, **choice}]
    return f"data: {json.dumps({'id': 'x', 'object': 'text_completion', 'choices': choices})}\n\n"


async def ask(client: httpx.AsyncClient, url: str, interface: str, kind: str) -> list[float]:
    """Return when each event came."""
    question = f"Write {kind} for {interface}."
    body: dict[str, Any] = {"model": "default", "stream": True, "tools": TOOLS[interface]}
    if interface == "responses":
        body["input"] = question
    else:
        body |= {"messages": [{"role": "user", "content": question}], "max_tokens": 9_999}
    if interface == "messages":
        body["thinking"] = {"type": "enabled", "budget_tokens": 1_024}
    async with client.stream("POST", f"{url}/v1/{interface}", json=body) as response:
        response.raise_for_status()
        lines = response.aiter_lines()
        return [time.monotonic() async for line in lines if line.startswith("data: {")]


async def measure(url: str, model: SlowModel) -> list[dict[str, Any]]:
    """Ask for everything at once; return a row for each."""
    cases = [(interface, kind) for interface in TOOLS for kind in KINDS]
    async with httpx.AsyncClient(timeout=120) as client:
        answers = await asyncio.gather(*(ask(client, url, *case) for case in cases))
    rows = []
    for (interface, kind), times in zip(cases, answers, strict=True):
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        first = model.first_tokens[f"{interface} {kind}"]
        row = {
            "interface": interface,
            "kind": kind,
            "first_event_s": round(times[0] - first, 3),
            "longest_silence_s": round(max(gaps), 2),
            "events": len(times),
        }
        rows.append(row)
        print(json.dumps(row))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=40.0, help="so long the model writes")
    given = parser.parse_args()
    with (
        SlowModel(given.seconds) as model,
        tempfile.TemporaryDirectory() as folder,
        gateway(model.url, Path(folder)) as (url, _),
    ):
        rows = asyncio.run(measure(url, model))
    late = [row for row in rows if row["first_event_s"] > MOST_DELAY]
    silent = [row for row in rows if row["longest_silence_s"] >= MOST_SILENCE]
    if late or silent:
        raise SystemExit(f"too late: {late}, too silent: {silent}")
    RESULTS.write_text(json.dumps({"seconds": given.seconds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
