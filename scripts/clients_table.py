"""Writes the figures of docs/clients.md, from what benchmarks/gateway_clients.json and
benchmarks/gateway_peers.json say.

python scripts/clients_table.py            write them
python scripts/clients_table.py --check    exit 1 where they are out of date
"""

from __future__ import annotations

import json
import textwrap
from typing import Any, Final

from scripts.generated_part import ROOT, GeneratedPart, paragraph

Row = dict[str, Any]


def load_results(name: str) -> dict[str, Any]:
    """Return the results of a benchmark."""
    text = (ROOT / "benchmarks" / name).read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


def clients() -> str:
    """The results of the clients, as Markdown."""
    results = load_results("gateway_clients.json")
    lines = ["| client | set up by | tests passed | failed |", "| --- | --- | --- | --- |"]
    for client, tests in group_by_client(results["scripted"]).items():
        failed = [test["test"] for test in tests if not test["passed"]]
        setup = "`mlx-tools connect`" if client in results["connected"] else "its address, in code"
        passed = f"{len(tests) - len(failed)} of {len(tests)}"
        lines.append(f"| {client} | {setup} | {passed} | {', '.join(failed)} |")
    parts = []
    if "small" in results:
        small = results["small"]
        failed = [
            f"{one['client']}, {format_cell(one['why'])}" for one in small if not one["passed"]
        ]
        which = f" ({'; '.join(failed)})" if failed else ""
        parts.append(
            f"On mlx-lm's server with SmolLM2 of 135 million parameters ({results['small_date']}), "
            "an answer, and a call "
            "with an answer after it, right or not, of 80 tokens at most: "
            f"{len(small) - len(failed)} of {len(small)}{which}."
        )
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    parts.append(f"Tried were {versions}.")
    command = (
        f"`python benchmarks/gateway_clients.py`, {results['scripted_date']}, on a scripted model:"
    )
    return "\n".join([command, "", *lines, *(f"\n{paragraph(part)}" for part in parts)])


def group_by_client(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the executed tests of each client."""
    its: dict[str, list[Row]] = {}
    for one in rows:
        if not one.get("skipped"):
            its.setdefault(one["client"], []).append(one)
    return its


def format_cell(text: str) -> str:
    return textwrap.shorten(text, 140, placeholder=" …").replace("<", "&lt;")


def peers() -> str:
    """The results of the peers, as Markdown."""
    results = load_results("gateway_peers.json")
    rows: list[Row] = results["rows"]
    names = dict.fromkeys(one["peer"] for one in rows)
    named = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return paragraph(
        f"`python benchmarks/gateway_peers.py`, {results['date']}, with {named}: "
        f"{'; '.join(f'{name}, {format_share(rows, name)}' for name in names)}."
    )


def format_share(rows: list[Row], peer: str) -> str:
    its = [one["passed"] for one in rows if one["peer"] == peer]
    return f"{sum(its)} of {len(its)}"


PARTS: Final = (
    GeneratedPart("clients.md", "table of clients", "clients_table.py", clients),
    GeneratedPart("clients.md", "table of peers", "clients_table.py", peers),
)


def write_page() -> None:
    for part in PARTS:
        part.main()


if __name__ == "__main__":
    write_page()
