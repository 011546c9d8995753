"""The official conformance suite on the MCP client, scenario by scenario.

``python benchmarks/mcp_conformance_client.py`` lets npm's `@modelcontextprotocol/conformance` start
a server for each scenario and this script as its client: it looks at what the server offers, agrees
to it and calls each tool, by `McpClients` as a run does; where it is to sign in, it opens the page
as a browser would. Writes mcp_conformance_client.json and the table of docs/mcp.md.

Needs npm, and the extra ``mcp``. `OTHERS` says which scenarios are of what is not offered, and why.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from mlx_tools.plugins.mcp.client import McpClients, fetch_offer  # noqa: E402
from mlx_tools.tools import BoundSource, BoundSources, ToolContext, execute  # noqa: E402

RESULTS = HERE / "mcp_conformance_client.json"
VERSION = "0.1.16"
SUITE = ["npx", "-y", "-p", "node@22", "-p", f"@modelcontextprotocol/conformance@{VERSION}"]
SECONDS = 60
ARGUMENTS = {"a": 2, "b": 3}
OTHERS = {
    "auth/basic-cimd": "a client id that is an address: mlx-tools has no page of its own",
    "auth/pre-registration": "a client id and secret made by hand",
    "auth/2025-03-26-oauth-metadata-backcompat": "the SDK refuses metadata in which the issuer has "
    "another address than where it was found",
    "auth/client-credentials-jwt": "an extension: signing in without a person",
    "auth/client-credentials-basic": "an extension: signing in without a person",
    "auth/cross-app-access-complete-flow": "an extension: signing in at another program's word",
}


def browse(page: str) -> None:
    """Open a page, as a browser does that is signed in already."""
    try:
        urllib.request.urlopen(page, timeout=20).close()
    except urllib.error.URLError as error:
        print(error, file=sys.stderr)


async def confirmed(
    context: ToolContext, what: str, details: Mapping[str, Any], reason: str
) -> Mapping[str, Any]:
    return details


async def client(url: str, home: Path) -> None:
    sources, at = BoundSources(home / "bound"), {"url": url, "headers": {}}
    clients = McpClients(sources, show=browse)
    try:
        offer = await fetch_offer(clients, BoundSource(name="suite", kind="mcp", location=at))
        source = BoundSource(name="suite", kind="mcp", location=at, tools=offer.tools)
        sources.save(source)
        for tool in offer.tools:
            wanted = tool.parameters.get("properties", {})
            given = {key: value for key, value in ARGUMENTS.items() if key in wanted}
            context = ToolContext(confirms=confirmed)
            print(tool.name, await execute(clients.tool(source, tool), given, context, timeout=30))
    finally:
        await clients.aclose()


def conformance(*arguments: str) -> str:
    done = subprocess.run(
        [*SUITE, "conformance", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS * 3,
        cwd=tempfile.gettempdir(),
        check=False,
    )
    return done.stdout + done.stderr


def scenario(name: str) -> dict[str, Any]:
    """The suite's findings in one scenario."""
    command = f"{sys.executable} {Path(__file__).resolve()} --client"
    began = time.monotonic()
    told = conformance("client", "--command", command, "--scenario", name)
    counts = re.search(r"Passed: (\d+)/(\d+)", told)
    passed, checks = (int(counts[1]), int(counts[2])) if counts else (0, 0)
    found = {"scenario": name, "passed": passed, "checks": checks}
    ok = "OVERALL: PASSED" in told
    print(f"{name}: {passed}/{checks} {ok} {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found | {"ok": ok, "not_offered": OTHERS.get(name, "")}


def main() -> None:
    listed = conformance("list", "--client").partition("Client scenarios")[2]
    names = re.findall(r"^ +- (\S+)", listed, re.MULTILINE)
    rows = [scenario(name) for name in names]
    results = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "suite": VERSION, "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    from scripts.mcp_table import write_page

    write_page()
    wrong = [row["scenario"] for row in rows if not row["ok"] and not row["not_offered"]]
    raise SystemExit(f"failed: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MLX_TOOLS_STATE_DIR"] = folder
            asyncio.run(client(sys.argv[-1], Path(folder)))
    else:
        main()
