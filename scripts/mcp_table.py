"""Writes the tables of docs/mcp.md and docs/tools.md that benchmarks measured: public servers, the
conformance suite, what servers cost a start, OpenAPI documents.

python scripts/mcp_table.py            write the tables
python scripts/mcp_table.py --check    exit 1 where they are out of date
"""

from __future__ import annotations

import json
from typing import Any, Final

from scripts.stretch import ROOT, Stretch


def found(name: str) -> dict[str, Any]:
    """What a benchmark wrote."""
    text = (ROOT / "benchmarks" / f"{name}.json").read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


def table(*rows: list[str]) -> str:
    """Rows as Markdown, the first as heads."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]])


def cell(text: str) -> str:
    return " ".join(text.split())[:140].replace("|", "\\|").replace("<", "&lt;")


def servers() -> str:
    results = found("mcp_servers")
    rows = [["server", "tools", "called in a run", "worked", "the embedded model"]]
    for one in results["rows"]:
        called = ", ".join(f"`{name}`" for name in dict.fromkeys(one["calls"]))
        real = one["real"]["calls"]
        worked = "yes" if not one["why"] else f"no: {cell(one['why'])}"
        said = ", ".join(real) if real else f"no call ({cell(one['real']['ended'])})"
        rows.append([f"{one['server']} {one['version']}", str(one["tools"]), called, worked, said])
    return f"`python benchmarks/mcp_servers.py`, {results['date']}.\n\n{table(*rows)}"


def conformance() -> str:
    results = found("mcp_conformance_client")
    ended: dict[str, list[str]] = {}
    for one in results["rows"]:
        said = cell(f"not offered: {one['not_offered']}") if one["not_offered"] else "FAIL"
        ended.setdefault("pass" if one["ok"] else said, []).append(one["scenario"])
    rows = [["", "scenarios"], *([said, ", ".join(names)] for said, names in ended.items())]
    passed = len(ended.get("pass", ()))
    return (
        f"`python benchmarks/mcp_conformance_client.py`, {results['date']}, with "
        f"`@modelcontextprotocol/conformance` {results['suite']}: {passed} of "
        f"{len(results['rows'])} "
        f"scenarios pass.\n\n{table(*rows)}"
    )


def start() -> str:
    times: dict[str, float] = found("mcp_start")["seconds"]
    none = times["none"]
    said = [f"{what} {seconds - none:.2f} s" for what, seconds in times.items()][1:-1]
    return f"Processor time above a start with none: {'; '.join(said)} (`benchmarks/mcp_start.py`)."


def documents() -> str:
    results = found("openapi_documents")
    heads = ["document", "operations", "left out", "valid values let through"]
    rows = [[*heads, "invalid ones refused", "calls answered", "start, s more"]]
    rows += [
        [
            f"{one['document']} {one['version']}",
            str(one["bound"]),
            str(one["left_out"]),
            f"{one['valid, let through']} of {one['valid']}",
            f"{one['invalid, refused']} of {one['invalid']}",
            f"{one['answered']} of {one['called']}",
            f"{max(one['seconds'], 0):.1f}",
        ]
        for one in results["rows"]
    ]
    named = f"`python benchmarks/openapi_documents.py`, {results['date']}, "
    return f"{named}schemathesis {results['schemathesis']}.\n\n{table(*rows)}"


STRETCHES: Final = {
    "mcp_servers": Stretch("mcp.md", "table of servers", "mcp_table.py", servers),
    "mcp_conformance_client": Stretch(
        "mcp.md", "table of client scenarios", "mcp_table.py", conformance
    ),
    "mcp_start": Stretch("mcp.md", "table of starts", "mcp_table.py", start),
    "openapi_documents": Stretch("tools.md", "table of documents", "mcp_table.py", documents),
}


def write_page() -> None:
    for name, stretch in STRETCHES.items():
        if (ROOT / "benchmarks" / f"{name}.json").exists():
            stretch.main()


if __name__ == "__main__":
    write_page()
