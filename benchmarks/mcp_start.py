"""The cost of kept servers for a run: none, ten unused, one used alone, one of ten used.

``python benchmarks/mcp_start.py`` asks a scripted model by ``mlx-tools ask``, round by round, and
tells the processor time of the run with all that it started, in seconds: the least of the rounds,
and what it is more than with none. What importing the SDK costs a process stands beside it. Writes
mcp_start.json and the table of docs/mcp.md.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mlx_tools.messages import replace

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from mlx_tools.testing import ScriptedServer, answer, call  # noqa: E402
from mlx_tools.tools import BoundSource, BoundSources, BoundTool  # noqa: E402
from scripts.mcp_table import write_page  # noqa: E402

RESULTS = HERE / "mcp_start.json"
ROUNDS = 5
TOOLS = 15
STRANGER = HERE.parent / "tests" / "tools" / "mcp_stranger.py"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
IMPORT = "from mcp import Client; import mcp.client.stdio"


def cost(command: Sequence[str], environ: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environ, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def configured(home: Path, count: int) -> dict[str, str]:
    """The environment of a user who keeps so many servers."""
    folder = home / str(count)
    sources = BoundSources(folder / "mlx-tools" / "bound")
    for number in range(count):
        command = [sys.executable, "-I", str(STRANGER), "plain", os.devnull]
        echo = BoundTool("echo", "Say it again.", SCHEMA)
        more = [replace(echo, name=f"echo{n}", effects=("read",)) for n in range(TOOLS - 1)]
        at = {"command": command, "env": {}, "cwd": None}
        name = f"server{number}"
        sources.save(BoundSource(name=name, kind="mcp", location=at, tools=(echo, *more)))
    kept = {f"XDG_{kind}_HOME": str(folder) for kind in ("CONFIG", "STATE", "DATA")}
    return {**os.environ, **kept}


def run(home: Path, count: int, *, used: bool) -> float:
    lines = [call("server0__echo", text="hi")] if used else [call("calculator", expression="1+1")]
    wanted = "calculator,plugin:mcp:server0" if used else "calculator"
    with ScriptedServer(*lines, answer("Done.")) as server:
        command = [sys.executable, "-P", "-m", "mlx_tools", "ask", "--url", server.url]
        command += ["--tools", wanted, "--approve", "always", "Go."]
        spent = cost(command, configured(home, count))
        assert not used or '"hi"' in server.prompts[1]
    return spent


def main() -> None:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for _ in range(ROUNDS):
            for what, count, used in (
                ("none", 0, False),
                ("ten, none used", 10, False),
                ("one, used", 1, True),
                ("ten, one used", 10, True),
            ):
                found.setdefault(what, []).append(run(Path(name), count, used=used))
            plain = cost([sys.executable, "-c", "import pydantic, asyncio"], dict(os.environ))
            sdk = cost([sys.executable, "-c", IMPORT], dict(os.environ))
            found.setdefault("the SDK's import alone", []).append(sdk - plain)
    least = {what: round(min(times), 3) for what, times in found.items()}
    print(json.dumps(least, indent=1))
    RESULTS.write_text(json.dumps({"rounds": ROUNDS, "seconds": least}, indent=1) + "\n")
    write_page()


if __name__ == "__main__":
    main()
