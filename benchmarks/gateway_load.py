"""The cost of the gateway for each request under load, beside LiteLLM's proxy in the same run.

``python benchmarks/gateway_load.py`` starts a scripted model server, the gateway before it and
LiteLLM's proxy before it, each one process on loopback, and asks each with the same clients, who
stream. Added is what a client waits longer than at the scripted server itself. Then the gateway
alone: its memory over many requests, and its slots after clients that go away at random.

``--beside FOLDER`` measures the gateway of another checkout of this project in turns with this
one's, and prints this one's times as multiples of that one's: whole is how long an answer takes,
processor the time of the gateway's process for one.

LiteLLM is installed into an environment of its own, ``benchmarks/.venv-gateway``, at the version of
gateway_peers.txt. The figures go to ``benchmarks/gateway_load.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ENVIRONMENT = HERE / ".venv-gateway"
PEERS = HERE / "gateway_peers.txt"
RESULTS = HERE / "gateway_load.json"

TOKENS = 50
PACE = 0.02
"""Seconds from token to token."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def upstream(port: int) -> None:
    """The scripted model server: streams words, by either interface."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    def event(value: Any) -> str:
        return f"data: {json.dumps(value)}\n\n"

    async def complete(request: Any) -> Any:
        body = await request.json()
        chat = "messages" in body
        told = "final_answer" in (body.get("prompt") or "")
        before, after = ('{"type":"final_answer","content":"', '"}') if told else ("", "")
        words = [
            *filter(None, (before,)),
            *["word "] * min(TOKENS, body["max_tokens"]),
            *filter(None, (after,)),
        ]
        same = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        usage = {
            "prompt_tokens": 1,
            "completion_tokens": len(words),
            "total_tokens": 1 + len(words),
        }
        if not body.get("stream"):
            said = {"role": "assistant", "content": "".join(words)}
            one = {"index": 0, "finish_reason": "stop"} | (
                {"message": said} if chat else {"text": said["content"]}
            )
            whole = same | {"object": "chat.completion", "choices": [one], "usage": usage}
            return JSONResponse(whole)

        async def stream() -> Any:
            for word in words:
                await asyncio.sleep(PACE)
                one = {"index": 0, "finish_reason": None}
                choice = one | ({"delta": {"content": word}} if chat else {"text": word})
                yield event(same | {"choices": [choice]})
            last = {"index": 0, "finish_reason": "stop"}
            choice = last | ({"delta": {}} if chat else {"text": ""})
            yield event(same | {"choices": [choice]})
            if (body.get("stream_options") or {}).get("include_usage"):
                yield event(same | {"choices": [], "usage": usage})
            yield "data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def models(request: Any) -> Any:
        return JSONResponse({"object": "list", "data": [{"id": "m-chatml", "object": "model"}]})

    async def health(request: Any) -> Any:
        return JSONResponse({"status": "ok"})

    post = ["POST"]
    app = Starlette(
        routes=[
            Route("/v1/completions", complete, methods=post),
            Route("/v1/chat/completions", complete, methods=post),
            Route("/v1/models", models),
            Route("/health", health),
        ]
    )
    uvicorn.run(app, port=port, log_level="warning")


# --- processes ------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextlib.contextmanager
def process(
    command: list[str], url: str, environ: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that answers at this address, until the end."""
    with tempfile.TemporaryFile() as log:
        one = subprocess.Popen(command, env=os.environ | environ, stdout=log, stderr=log)
        try:
            for _ in range(1800):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(url, timeout=1).close()
                    break
                if one.poll() is not None:
                    log.seek(0)
                    raise SystemExit(log.read().decode()[-2000:])
                time.sleep(0.1)
            yield one
        finally:
            one.terminate()
            one.wait()


@contextlib.contextmanager
def gateway(
    url: str, folder: Path, chat_format: str = "chatml", checkout: Path = ROOT
) -> Iterator[tuple[str, int]]:
    """The gateway of a checkout before a model server: its address and its process."""
    port = free_port()
    environ = {
        "PYTHONPATH": str(checkout),
        "MLX_TOOLS_GATEWAY_CONCURRENCY": "1000",
        **{f"XDG_{name}_HOME": str(folder) for name in ("CONFIG", "STATE", "DATA")},
    }
    command = [sys.executable, "-P", "-m", "mlx_tools", "serve", "--port", str(port)]
    command += ["--url", url, "--chat-format", chat_format]
    at = f"http://127.0.0.1:{port}"
    with process(command, f"{at}/health", environ) as one:
        yield at, one.pid


@contextlib.contextmanager
def litellm(url: str, folder: Path) -> Iterator[tuple[str, int]]:
    port = free_port()
    config = folder / "litellm.yaml"
    model = {"model": "openai/m-chatml", "api_base": f"{url}/v1", "api_key": "none"}
    config.write_text(
        json.dumps({"model_list": [{"model_name": "default", "litellm_params": model}]})
    )
    program = ENVIRONMENT / "bin" / "litellm"
    command = [str(program), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
    at = f"http://127.0.0.1:{port}"
    quiet = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with process(command, f"{at}/health/liveliness", quiet) as one:
        yield at, one.pid


def peers() -> None:
    """Make the peers' environment, where it is missing."""
    if not (ENVIRONMENT / "bin" / "litellm").exists():
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
        pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--requirement", str(PEERS)], check=True)


# --- clients --------------------------------------------------------------------------------------

_TOKEN = re.compile(r'"content": ?"[^"]')


async def ask(client: httpx.AsyncClient, url: str, number: int, tools: bool) -> list[float]:
    """Return the time of each token, in seconds from the request on."""
    body: dict[str, Any] = {
        "model": "default",
        "stream": True,
        "max_tokens": 500,
        "messages": [{"role": "user", "content": f"Say something, {number}."}],
    }
    if tools:
        body["tools"] = [WEATHER]
    began, came = time.perf_counter(), list[float]()
    headers = {"authorization": "Bearer none"}
    async with client.stream(
        "POST", f"{url}/v1/chat/completions", json=body, headers=headers
    ) as response:
        if response.status_code != 200:
            raise SystemExit(f"{url}: {response.status_code} {(await response.aread())[:300]!r}")
        came += [
            time.perf_counter() - began
            async for line in response.aiter_lines()
            if _TOKEN.search(line)
        ]
    return came


async def crowd(url: str, clients: int, tools: bool, pid: int = 0) -> dict[str, float]:
    """So many clients at once, one after the other within a second; medians in milliseconds."""

    async def later(number: int) -> tuple[list[float], float]:
        await asyncio.sleep(number / clients)
        began = time.perf_counter()
        return await ask(client, url, number, tools), time.perf_counter() - began

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=300) as client:
        await ask(client, url, -1, tools)
        spent = processor_seconds(pid) if pid else 0.0
        answers = await asyncio.gather(*(later(number) for number in range(clients)))
        spent = processor_seconds(pid) - spent if pid else 0.0
    came = [times for times, _ in answers]
    assert all(len(one) == TOKENS for one in came), {len(one) for one in came}
    first = statistics.median(one[0] for one in came)
    token = statistics.median((one[-1] - one[0]) / (len(one) - 1) for one in came)
    row = {"first_ms": round(first * 1000, 1), "token_ms": round(token * 1000, 2)}
    row["whole_ms"] = round(statistics.median(seconds for _, seconds in answers) * 1000, 1)
    return row | ({"processor_ms": round(spent / clients * 1000, 2)} if pid else {})


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process, all its threads'. Linux only."""
    # The clock that Linux gives each process; what /proc says is exact to 10 ms only.
    return time.clock_gettime((~pid << 3) | 2)


def in_rounds(
    servers: dict[str, tuple[str, bool, int]], clients: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Ask all servers in turns, some rounds; return the median of each number of each server."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, (url, tools, pid) in servers.items():
            rows[name].append(asyncio.run(crowd(url, clients, tools, pid)))
    return {
        name: {key: round(statistics.median(row[key] for row in found), 2) for key in found[0]}
        for name, found in rows.items()
    }


async def many(url: str, requests: int, pid: int) -> list[dict[str, int]]:
    """The gateway's memory, ten times over so many requests, 50 at once."""
    rows: list[dict[str, int]] = []
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=300) as client:

        async def worker(numbers: Iterator[int]) -> None:
            for number in numbers:
                message = {"role": "user", "content": f"Say something, {number}. {'x' * 200}"}
                body = {"messages": [message], "tools": [WEATHER], "max_tokens": 2}
                (await client.post(f"{url}/v1/chat/completions", json=body)).raise_for_status()

        for tenth in range(10):
            size = requests // 10
            numbers = iter(range(tenth * size, (tenth + 1) * size))
            await asyncio.gather(*(worker(numbers) for _ in range(50)))
            rows.append({"requests": (tenth + 1) * size, "rss_kb": memory(pid)})
    return rows


async def leaving(url: str, clients: int) -> dict[str, Any]:
    """Clients that go away at random; how long after the last the gateway still does something."""
    chance = random.Random(7)

    async def come(client: httpx.AsyncClient, number: int) -> None:
        await asyncio.sleep(number / 400)
        with contextlib.suppress(asyncio.TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(chance.uniform(0.001, 1.0)):
                await ask(client, url, number, tools=number % 2 == 0)

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=300) as client:
        await asyncio.gather(*(come(client, number) for number in range(clients)))
        began = time.perf_counter()
        while True:  # what came while the last ones left is read first
            text = (await client.get(f"{url}/metrics")).text
            found = re.findall(r"mlx_tools_(active|waiting)\{of=.turns.\} (\d+)$", text, re.M)
            left = {name: int(value) for name, value in found}
            seconds = round(time.perf_counter() - began, 1)
            if not any(left.values()) or seconds > 60:
                return {"clients": clients, "left": left, "seconds": seconds}
            await asyncio.sleep(0.2)


def memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


# --- the run --------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--leaving", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="another checkout, to compare with")
    parser.add_argument("--no-litellm", action="store_true")
    parser.add_argument("--upstream", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.upstream:
        upstream(given.upstream)
        return
    if not given.no_litellm:
        peers()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, __file__, "--upstream", str(port)]
    found: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    with tempfile.TemporaryDirectory() as name, process(command, f"{url}/health", {}):
        folder = Path(name)
        with contextlib.ExitStack() as stack:
            ours, pid = stack.enter_context(gateway(url, folder))
            servers = {
                "direct": (url, False, 0),
                "gateway": (ours, False, pid),
                "gateway, with a tool": (ours, True, pid),
            }
            if given.beside:
                other = stack.enter_context(gateway(url, folder / "beside", checkout=given.beside))
                servers["other gateway"] = (other[0], False, other[1])
                servers["other gateway, with a tool"] = (other[0], True, other[1])
            if not given.no_litellm:
                theirs, _ = stack.enter_context(litellm(url, folder))
                servers["litellm"] = (theirs, False, 0)
            for clients in (1, given.clients):
                row = in_rounds(servers, clients, given.rounds)
                own = {name: row[name] for name in row if not name.startswith("other ")}
                found[f"{clients} clients"] = own
                for name, numbers in row.items():
                    beside = row.get(f"other {name}", {})
                    times = {key: round(numbers[key] / beside[key], 2) for key in beside}
                    print(clients, name, json.dumps(numbers), times or "", flush=True)
        with gateway(url, folder) as (ours, pid):
            found["clients that leave"] = asyncio.run(leaving(ours, given.leaving))
            print(json.dumps(found["clients that leave"]), flush=True)
        with gateway(url, folder) as (ours, pid):
            found["memory"] = asyncio.run(many(ours, given.requests, pid))
            print(json.dumps(found["memory"]), flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
