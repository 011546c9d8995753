"""The official conformance suite of the Model Context Protocol, on `mlx-tools mcp serve`.

``python benchmarks/mcp_conformance.py`` serves over HTTP, with tools of the names that the
scenarios call, lets npm's suite run each of its scenarios for servers, and writes
mcp_conformance.json and the table of docs/mcp.md. ``--check`` only holds the table to the figures
that are there. It ends with 1 where a scenario fails of which something is offered. npm brings
Node 22 for it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anyio

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from mlx_tools.app import AccessRules, RunOptions, config  # noqa: E402
from mlx_tools.cli.call_text import escape_line, format_call_message  # noqa: E402
from mlx_tools.plugins.mcp.delegation import Delegation  # noqa: E402
from mlx_tools.plugins.mcp.elicitation import ApprovalText  # noqa: E402
from mlx_tools.plugins.mcp.mcp_server import McpServer, serve_http  # noqa: E402
from mlx_tools.tools import ToolContext, ToolError, tool  # noqa: E402
from scripts.generated_part import paragraph  # noqa: E402

SUITE: Final = "@modelcontextprotocol/conformance@0.1.16"
FIGURES: Final = Path(__file__).with_suffix(".json")
PAGE: Final = ROOT / "docs" / "mcp.md"
BEGIN: Final = "<!-- conformance: written by benchmarks/mcp_conformance.py -->"
END: Final = "<!-- end of conformance -->"

LEFT_OUT: Final = {
    "logging-set-level": "logging: what a run does is told as progress",
    "completion-complete": "completion of arguments",
    "tools-call-image": "tools here answer with text",
    "tools-call-audio": "tools here answer with text",
    "tools-call-embedded-resource": "tools here answer with text",
    "tools-call-mixed-content": "tools here answer with text",
    "tools-call-with-logging": "logging",
    "tools-call-sampling": "sampling: a model is what is served",
    "tools-call-elicitation": "a form of a tool's own: forms are approvals",
    "elicitation-sep1034-defaults": "a form of a tool's own",
    "elicitation-sep1330-enums": "a form of a tool's own",
    "server-sse-polling": "streams that are taken up again: a run ends with its client",
    "resources-list": "resources",
    "resources-read-text": "resources",
    "resources-read-binary": "resources",
    "resources-templates-read": "resources",
    "resources-subscribe": "resources",
    "resources-unsubscribe": "resources",
    "prompts-list": "prompts",
    "prompts-get-simple": "prompts",
    "prompts-get-with-args": "prompts",
    "prompts-get-embedded-resource": "prompts",
    "prompts-get-with-image": "prompts",
}
"""Requests of a scenario for things that no client is offered."""

ADDRESS: Final = {"type": "object", "properties": {"street": {"type": "string"}}}
SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


@tool(effects=["read"])
def test_simple_text() -> str:
    """Answers with a text."""
    return "This is a simple text response for testing."


@tool(effects=["read"])
def test_error_handling() -> str:
    """Fails."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool(effects=["read"])
def test_tool_with_progress(context: ToolContext) -> str:
    """Says how far it has come."""
    for share in (0.0, 0.5, 1.0):
        context.progress("working", share)
        time.sleep(0.05)
    return "done"


@tool(effects=["read"], parameters=SCHEMA)
def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
    """Takes an address."""
    return json.dumps(arguments)


TOOLS: Final = (
    test_simple_text,
    test_error_handling,
    test_tool_with_progress,
    json_schema_2020_12_tool,
)


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of the server."""
    told: list[str] = []
    ready = threading.Event()

    def note(text: str) -> None:
        told.append(text)
        ready.set()

    def serve() -> None:
        loaded = config.load(options={"policy.allow": "*"})
        delegation = Delegation(RunOptions(configuration=loaded), lambda name: loaded, note)
        for one in TOOLS:
            delegation.registry.add(one)
        text = ApprovalText(format_call_message, escape_line)
        server = McpServer(delegation, text, by_person=False)
        anyio.run(serve_http, server, "127.0.0.1", 0, AccessRules(), note)

    threading.Thread(target=serve, daemon=True).start()
    if not ready.wait(60):
        raise SystemExit("the server did not start")
    yield told[0].partition("at ")[2]


def results(url: str) -> dict[str, dict[str, Any]]:
    """The suite's findings in each scenario: how many checks passed, and the faults of others."""
    command = ["npx", "-y", "-p", "node@22", "-p", SUITE, "conformance", "server", "--url", url]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--suite", "all", "--output-dir", folder]
        subprocess.run(command, stdout=sys.stderr, stderr=subprocess.DEVNULL, timeout=580)
        found = {}
        for file in sorted(Path(folder).glob("*/checks.json")):
            scenario = file.parent.name.removeprefix("server-").rpartition("-20")[0]
            checks = json.loads(file.read_text())
            ends = [one["status"] for one in checks]
            faults = [str(one.get("errorMessage", "")) for one in checks]
            bad = [why for end, why in zip(ends, faults, strict=True) if end == "FAILURE"]
            found[scenario] = {"passed": ends.count("SUCCESS"), "faults": bad}
    if not found:
        raise SystemExit("the suite did not run")
    return found


def told(figures: dict[str, Any]) -> str:
    """The results as Markdown."""
    scenarios = figures["scenarios"]
    offered = {name: one for name, one in scenarios.items() if name not in LEFT_OUT}
    failed = [name for name, one in offered.items() if not passes(one)]
    fail = f"These fail: {', '.join(failed)}. " if failed else ""
    without = dict.fromkeys(
        why.partition(":")[0] for name, why in LEFT_OUT.items() if name in scenarios
    )
    return paragraph(
        f"`{figures['suite']}` has {len(scenarios)} scenarios for servers. Of {len(offered)} "
        f"something is offered here, and {len(offered) - len(failed)} of these pass. "
        f"{fail}Not offered: {'; '.join(without)}."
    )


def passes(one: dict[str, Any]) -> bool:
    return bool(one["passed"]) and not one["faults"]


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    made.add_argument("--check", action="store_true", help="only hold the page to the figures")
    options = made.parse_args()
    if not options.check:
        with served() as url:
            found = results(url)
        figures = {"suite": SUITE, "scenarios": dict(sorted(found.items()))}
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name}: the marks of the table are missing")
    new = f"{before}{BEGIN}\n\n{told(figures)}\n\n{END}{after}"
    if options.check and new != page:
        raise SystemExit(f"{PAGE.name} is out of date")
    PAGE.write_text(new, encoding="utf-8")
    found = figures["scenarios"].items()
    bad = [name for name, one in found if not passes(one) and name not in LEFT_OUT]
    if bad:
        raise SystemExit(f"failed: {', '.join(bad)}")


if __name__ == "__main__":
    main()
