"""Runs whose processes are killed at random: nothing is lost, nothing happens twice, and of every
call that nobody knows the end of a client is asked.

python benchmarks/chaos.py --store postgres --json benchmarks/chaos.json
python benchmarks/chaos.py --store files --json benchmarks/chaos.json

Each run makes calls that change things: they write lines into a ledger. Gateways, workers and the
database are killed (SIGKILL) and started again while clients ask for runs, look at them and decide
about calls in doubt, by the ledger. In PostgreSQL workers do the runs; in files the gateways do,
and a client asks one that broke off to go on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from mlx_tools.testing import Completion, ScriptedServer, answer, call
from tests.folders.tool_folders import make_folder
from tests.gateway.postgres import Cluster

STEPS = 2
"""Calls of each run."""

CLIENTS = 16

LATE = 2.0
"""Seconds before a client looks into the ledger about a call in doubt.

The process of a tool ends with a gateway that is killed, but not at once: on a busy machine it may
still write its line.
"""

LEDGER = """
import os, time

def execute(arguments):
    time.sleep({slow})
    line = "%(job)d %(step)d" % arguments
    file = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode() + b"\\n")
    os.close(file)
    time.sleep({slow})
    return {{"written": line}}
"""
NUMBERS = {
    "type": "object",
    "properties": {"job": {"type": "integer"}, "step": {"type": "integer"}},
    "required": ["job", "step"],
}


class Model(ScriptedServer):
    """Makes the calls of a job one by one, and then answers: what it wrote says how far it is."""

    def __init__(self) -> None:
        super().__init__()
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]

    def next(self, body: dict[str, Any], headers: dict[str, str]) -> Completion:
        prompt = body["prompt"]
        job = int(re.findall(r"Job (\d+)\.", prompt)[-1])
        done = rf"(?:written\W+|it is done: ){job} (\d+)"
        step = max(map(int, re.findall(done, prompt)), default=0) + 1
        text = call("record", job=job, step=step) if step <= STEPS else answer(f"job {job} done")
        return Completion(text, size=40)


@dataclass
class Program:
    """A process of ours that is started again each time that it is killed."""

    kind: str
    start: Callable[[], Any]
    process: Any = None
    kills: int = 0

    def begin(self) -> None:
        self.process = self.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.kills += 1
        self.begin()


class Database(Program):
    """The server of PostgreSQL, with all of its processes."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("database", lambda: None)
        self.cluster = cluster

    def kill(self) -> None:
        self.cluster.kill()
        self.cluster.start()
        self.kills += 1


@dataclass
class Chaos:
    """The processes at work, and their results."""

    options: argparse.Namespace
    folder: Path
    ledger: Path
    gateways: list[str] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    ended: dict[int, str] = field(default_factory=dict)
    runs: dict[int, str] = field(default_factory=dict)

    @property
    def numbers(self) -> range:
        """The jobs, of which no example in a prompt has one."""
        return range(1_000, 1_000 + self.options.runs)

    def written(self) -> Counter[tuple[int, int]]:
        """The number of times that each step of each job is in the ledger."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return Counter((int(job), int(step)) for job, step in map(str.split, lines))

    async def asked(self, client: httpx.AsyncClient, method: str, path: str, **more: Any) -> Any:
        """The answer of one of the gateways; None where it is dead, or cannot say it now."""
        url = random.choice(self.gateways) + path
        try:
            response = await client.request(method, url, **more)
        except httpx.HTTPError:
            self.counts["requests that failed"] += 1
            return None
        if response.status_code >= 500 or response.status_code == 429:
            self.counts[f"status {response.status_code}"] += 1
            return None
        return response.json()

    async def job(self, client: httpx.AsyncClient, number: int) -> None:
        """One run, from its client's side, until it has an answer."""
        body = {"question": f"Job {number}."}
        headers = {"idempotency-key": f"job-{number}"}
        until = time.monotonic() + self.options.patience
        while time.monotonic() < until:
            if number not in self.runs:
                run = await self.asked(client, "POST", "/v1/runs", json=body, headers=headers)
            else:
                run = await self.asked(client, "GET", f"/v1/runs/{self.runs[number]}")
            if run is None or "id" not in run:
                if run is not None:
                    self.counts[f"refused: {run['error']['message'][:80]}"] += 1
                    run = None
                await asyncio.sleep(0.2)
                continue
            self.runs[number] = run["id"]
            if run["status"] == "answered":
                self.ended[number] = run["answer"]
                return
            if run["status"] == "paused":
                await self.decide(client, run)
            elif run["status"] == "stopped":
                self.counts[f"stopped: {run['reason']}"] += 1
                go_on = {"question": f"Go on with Job {number}."}
                await self.asked(client, "POST", f"/v1/runs/{run['id']}/continue", json=go_on)
            await asyncio.sleep(0.1)

    async def decide(self, client: httpx.AsyncClient, run: dict[str, Any]) -> None:
        """A call in doubt is made again where the ledger does not have it."""
        for waits in run["pending"]:
            asked = waits["arguments"]
            await asyncio.sleep(LATE)
            done = self.written()[asked["job"], asked["step"]]
            said = {"call_id": waits["call_id"], "decision": "deny" if done else "approve"}
            said |= {"reason": f"it is done: {asked['job']} {asked['step']}"} if done else {}
            path = f"/v1/runs/{run['id']}/approvals"
            got = await self.asked(client, "POST", path, json=said | {"digest": waits["digest"]})
            if got is not None and "error" not in got:
                self.counts["doubts that were said, and decided"] += 1
                self.counts["of these the call had been made"] += bool(done)

    async def kill(self) -> None:
        """Kill one after the other, until it was often enough or all has ended."""
        while sum(one.kills for one in self.programs) < self.options.kills:
            await asyncio.sleep(random.uniform(0.5, 1.5) * self.options.every)
            if len(self.ended) == self.options.runs:
                return
            weights = [0.25 if one.kind == "database" else 1 for one in self.programs]
            (one,) = random.choices(self.programs, weights)
            await asyncio.to_thread(one.kill)

    async def main(self) -> None:
        killing = asyncio.create_task(self.kill())
        free = asyncio.Semaphore(CLIENTS)

        async def one(number: int) -> None:
            async with free:
                await self.job(client, number)

        async with httpx.AsyncClient(timeout=30) as client:
            await asyncio.gather(*(one(number) for number in self.numbers))
            if killing.done():
                killing.result()  # what went wrong there
            killing.cancel()
            listed, after = 0, ""
            while True:
                page = await self.asked(client, "GET", f"/v1/runs?limit=100{after}")
                if page is None:
                    await asyncio.sleep(0.5)
                    continue
                listed += len(page["data"])
                if not page["has_more"]:
                    break
                after = f"&after={page['last_id']}"
        self.counts["runs that are listed"] = listed


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def begin(chaos: Chaos, stack: ExitStack) -> None:
    """Start everything."""
    options, folder = chaos.options, chaos.folder
    model = stack.enter_context(Model())
    environ = os.environ | {
        f"XDG_{name}_HOME": str(folder) for name in ("CONFIG", "STATE", "DATA", "CACHE")
    }
    environ |= {"MLX_TOOLS_GATEWAY_APPROVALS": "client", "MLX_TOOLS_ALLOWED_TOOLS": "record"}
    program = [sys.executable, "-P", "-m", "mlx_tools"]
    code = LEDGER.format(path=str(chaos.ledger), slow=options.slow)
    tool = make_folder(folder, "record", code, NUMBERS, effects=["write"])
    adding = [*program, "tools", "add", str(tool), "--yes"]
    subprocess.run(adding, env=environ, check=True, capture_output=True)
    if options.store == "postgres":
        Path(folder).chmod(0o755)  # the server is another user
        cluster = Cluster(folder / "pg")
        stack.callback(cluster.stop)
        environ["MLX_TOOLS_SESSIONS"] = cluster.new()
        chaos.programs.append(Database(cluster))
    environ |= {"MLX_TOOLS_MODEL_CHAT_FORMAT": "chatml", "MLX_TOOLS_POLICY_APPROVE": "always"}
    log = stack.enter_context((folder / "log").open("ab"))

    def starting(*words: str) -> Callable[[], Any]:
        command = [*program, *words, "--url", model.url]
        return lambda: subprocess.Popen(command, env=environ, stdout=log, stderr=log)

    for _ in range(options.gateways):
        port = str(free_port())
        chaos.gateways.append(f"http://127.0.0.1:{port}")
        chaos.programs.append(Program("gateway", starting("serve", "--port", port)))
    for _ in range(options.workers if options.store == "postgres" else 0):
        chaos.programs.append(Program("worker", starting("worker")))
    for one in chaos.programs:
        if one.kind != "database":
            one.begin()
            stack.callback(end, one)


def end(program: Program) -> None:
    program.process.send_signal(signal.SIGTERM)
    try:
        program.process.wait(40)
    except subprocess.TimeoutExpired:
        program.process.kill()


def result(chaos: Chaos, seconds: float) -> dict[str, Any]:
    """The results, and what is wrong with them."""
    written, options = chaos.written(), chaos.options
    wanted = {(job, step) for job in chaos.numbers for step in range(1, STEPS + 1)}
    kills = Counter[str]()
    for one in chaos.programs:
        kills[one.kind] += one.kills
    wrong = {
        "runs without an answer": options.runs - len(chaos.ended),
        "calls that were lost": len(wanted - set(written)),
        "calls that happened twice": sum(1 for times in written.values() if times > 1),
        "runs that were made twice": chaos.counts["runs that are listed"] - options.runs,
    }
    return {
        "store": options.store,
        "gateways": options.gateways,
        "workers": options.workers if options.store == "postgres" else 0,
        "runs": options.runs,
        "calls": len(wanted),
        "kills": dict(kills),
        "seed": options.seed,
        "seconds": round(seconds),
        "wrong": wrong,
        "seen": dict(sorted(chaos.counts.items())),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=["postgres", "files"], default="postgres")
    for name, value in (("gateways", 3), ("workers", 5), ("runs", 500), ("kills", 200)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two kills")
    parser.add_argument("--slow", type=float, default=0.05, help="seconds before and after a line")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for all of it")
    parser.add_argument("--json", type=Path, help="a file that keeps the figures, by store")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="chaos") as name, ExitStack() as stack:
        chaos = Chaos(options, Path(name), Path(name, "ledger"))
        begin(chaos, stack)
        began = time.monotonic()
        asyncio.run(chaos.main())
        found = result(chaos, time.monotonic() - began)
        if any(found["wrong"].values()) or os.environ.get("CHAOS_LOG"):
            print((chaos.folder / "log").read_text()[-20_000:], file=sys.stderr)
    print(json.dumps(found, indent=1))
    if options.json:
        kept = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps(kept | {options.store: found}, indent=1) + "\n")
    return int(any(found["wrong"].values()))


if __name__ == "__main__":
    sys.exit(main())
