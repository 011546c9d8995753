"""The gateway's memory while clients come and go over WebSockets.

``python benchmarks/sockets.py`` starts a gateway before a scripted model, has one run answer, and
then 1,000 clients a round follow it over a socket to its end and leave, 50 at a time. After each
round it prints how many there were, and the memory of the gateway's process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import httpx
import websockets

from mlx_tools.testing import ScriptedServer, answer

ROUND = 1_000
AT_ONCE = 50


def megabytes(process: int) -> int:
    """The memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024


async def follow(url: str, room: asyncio.Semaphore) -> None:
    """Be one client."""
    async with room, websockets.connect(url, compression=None, open_timeout=60) as socket:
        while json.loads(await socket.recv())["type"] != "finished":
            pass


async def rounds(url: str, process: int, count: int) -> None:
    """Let clients come and go."""
    async with httpx.AsyncClient(timeout=60) as client:
        run = (await client.post(f"{url}/runs", json={"question": "x"})).json()["id"]
    address, room = f"{url.replace('http', 'ws')}/runs/{run}/socket", asyncio.Semaphore(AT_ONCE)
    print(f"at first {megabytes(process)} MB", flush=True)
    for number in range(1, count + 1):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(ROUND):
                tasks.create_task(follow(address, room))
        await asyncio.sleep(2)
        print(f"after {number * ROUND:,} clients {megabytes(process)} MB", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    with ScriptedServer(answer("done")) as server, tempfile.TemporaryDirectory() as folder:
        environ = {f"XDG_{name}_HOME": folder for name in ("CONFIG", "STATE", "DATA")}
        command = [sys.executable, "-P", "-m", "mlx_tools", "serve", "--port", "0"]
        command += ["--url", server.url, "--chat-format", "chatml"]
        process = subprocess.Popen(
            command, env=os.environ | environ, cwd=folder, stderr=subprocess.PIPE, text=True
        )
        lines = process.stderr
        assert lines is not None
        try:
            url = next(m[1] for m in (re.search(r"at (http\S+)", line) for line in lines) if m)
            threading.Thread(target=lines.read, daemon=True).start()
            asyncio.run(rounds(url, process.pid, given.rounds))
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
