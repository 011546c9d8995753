"""Writes the tables of docs/clients.md, from what benchmarks/gateway_clients.json and
benchmarks/gateway_peers.json say.

python scripts/clients_table.py            write the tables
python scripts/clients_table.py --check    exit 1 where they are out of date
"""

from __future__ import annotations

import json
import textwrap
from typing import Any, Final

from scripts.stretch import ROOT, Stretch

Row = dict[str, Any]


def found(name: str) -> dict[str, Any]:
    """What a benchmark wrote."""
    text = (ROOT / "benchmarks" / name).read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


def clients() -> str:
    """The tables of clients as Markdown."""
    results = found("gateway_clients.json")
    rows: list[Row] = results["scripted"]
    named = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    parts = [
        f"`python benchmarks/gateway_clients.py`, {results['date']}, with {named}.",
        "On a scripted model that does what a strong one does. A model that completes text sees no "
        "pictures, and the gateway tells no log probabilities: what asks for them gets an error "
        "that names it. An agent's tests are a task of five calls in a git repository, and that "
        "each of its prompts begins with the one before.",
        summary(rows),
    ]
    if "small" in results:
        small = results["small"]
        failed = [f"{one['client']}, {cell(one['why'])}" for one in small if not one["passed"]]
        parts.append(
            "On a real server, mlx-lm's, with SmolLM2 of 135 million parameters: an answer, and a "
            "call of a calculator with an answer after it, right or not, of 80 tokens at most: "
            f"{len(small) - len(failed)} of {len(small)} passed ({'; '.join(failed)})."
        )
    return "\n\n".join(parts)


def summary(rows: list[Row]) -> str:
    """A line for each client: how many passed, which failed and why, which it did not run."""
    lines = ["| client | passed | failed, and why | not run |", "| --- | --- | --- | --- |"]
    for client in dict.fromkeys(one["client"] for one in rows):
        its = [one for one in rows if one["client"] == client]
        run = [one for one in its if not one.get("skipped")]
        passed = sum(one["passed"] for one in run)
        failed = [f"{one['test']}: {cell(one['why'])}" for one in run if not one["passed"]]
        skipped = [f"{one['test']}: {cell(one['why'])}" for one in its if one.get("skipped")]
        lines.append(
            f"| {client} | {passed} of {len(run)} | {'<br>'.join(failed)} "
            f"| {'<br>'.join(skipped)} |"
        )
    return "\n".join(lines)


def cell(text: str) -> str:
    return textwrap.shorten(text, 140, placeholder=" …").replace("|", "\\|").replace("<", "&lt;")


def peers() -> str:
    """The table of peers as Markdown."""
    results = found("gateway_peers.json")
    rows: list[Row] = results["rows"]
    names = list(dict.fromkeys(one["peer"] for one in rows))
    lines = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    lines += [f"| {' | '.join(share(rows, name) for name in names)} |"]
    named = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    command = f"`python benchmarks/gateway_peers.py`, {results['date']}, with {named}."
    return "\n\n".join([command, "\n".join(lines)])


def share(rows: list[Row], peer: str) -> str:
    its = [one["passed"] for one in rows if one["peer"] == peer]
    return f"{sum(its)} of {len(its)}"


STRETCHES: Final = (
    Stretch("clients.md", "table of clients", "clients_table.py", clients),
    Stretch("clients.md", "table of peers", "clients_table.py", peers),
)


def write_page() -> None:
    for stretch in STRETCHES:
        stretch.main()


if __name__ == "__main__":
    write_page()
