"""Writes what benchmarks measured into docs/mcp.md and docs/tools.md: public servers, the
conformance suite, what servers cost a start, OpenAPI documents.

python scripts/mcp_table.py            write it
python scripts/mcp_table.py --check    exit 1 where it is out of date
"""

from __future__ import annotations

import json
from typing import Any, Final

from scripts.generated_part import ROOT, GeneratedPart, paragraph


def load_results(name: str) -> dict[str, Any]:
    """Return the results of a benchmark."""
    text = (ROOT / "benchmarks" / f"{name}.json").read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


def format_cell(text: str) -> str:
    return " ".join(text.split())[:140].replace("<", "&lt;")


def servers() -> str:
    results = load_results("mcp_servers")
    said = []
    for one in results["rows"]:
        without = f" ({format_cell(one['why'])})" if one["why"] else ""
        said.append(f"{one['server']} {one['version']}{without}")
    return paragraph(
        f"`python benchmarks/mcp_servers.py`, {results['date']}, adds public servers and calls "
        f"tools of each in `ask`, asked by a scripted model: {'; '.join(said)}."
    )


def conformance() -> str:
    results = load_results("mcp_conformance_client")
    rows = results["rows"]
    failed = [one["scenario"] for one in rows if not one["ok"] and not one["not_offered"]]
    without = dict.fromkeys(format_cell(one["not_offered"]) for one in rows if one["not_offered"])
    fail = f"These fail: {', '.join(failed)}. " if failed else ""
    return paragraph(
        f"`python benchmarks/mcp_conformance_client.py`, {results['date']}, with "
        f"`@modelcontextprotocol/conformance` {results['suite']}: "
        f"{sum(one['ok'] for one in rows)} of {len(rows)} scenarios pass. "
        f"{fail}Not offered: {'; '.join(without)}."
    )


def start() -> str:
    times: dict[str, float] = load_results("mcp_start")["seconds"]
    none = times["none"]
    said = [f"{what} {seconds - none:.2f} s" for what, seconds in times.items()][1:-1]
    return f"Processor time above a start with none: {'; '.join(said)} (`benchmarks/mcp_start.py`)."


def documents() -> str:
    results = load_results("openapi_documents")
    said = [
        f"{one['document']} {one['version']} ({one['bound']} operations, {one['left_out']} left "
        f"out, {one['valid, let through']} of {one['valid']} values)"
        for one in results["rows"]
    ]
    return paragraph(
        f"`python benchmarks/openapi_documents.py`, {results['date']}, has schemathesis "
        f"{results['schemathesis']} make valid values of a document, of which these were let "
        f"through: {'; '.join(said)}."
    )


PARTS: Final = {
    "mcp_servers": GeneratedPart("mcp.md", "table of servers", "mcp_table.py", servers),
    "mcp_conformance_client": GeneratedPart(
        "mcp.md", "table of client scenarios", "mcp_table.py", conformance
    ),
    "mcp_start": GeneratedPart("mcp.md", "table of starts", "mcp_table.py", start),
    "openapi_documents": GeneratedPart("tools.md", "table of documents", "mcp_table.py", documents),
}


def write_page() -> None:
    for name, part in PARTS.items():
        if (ROOT / "benchmarks" / f"{name}.json").exists():
            part.main()


if __name__ == "__main__":
    write_page()
