"""Writes what was measured of the gateway into docs/gateway.md: from the files that
benchmarks/gateway_load.py and benchmarks/gateway_cache.py leave.

python scripts/gateway_figures.py            write it
python scripts/gateway_figures.py --check    exit 1 where it is out of date
"""

from __future__ import annotations

import json
from typing import Any

from scripts.stretch import ROOT, Stretch


def _kept(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))


def figures() -> str:
    """The tables, Markdown."""
    load, cache = _kept("gateway_load.json"), _kept("gateway_cache.json")
    lines = [
        f"`python benchmarks/gateway_load.py`, on {load['machine']}: medians in milliseconds.",
        "",
        "| clients at once | asked | to the first token | from token to token |",
        "| --- | --- | --- | --- |",
    ]
    for clients in (key for key in load if key.endswith(" clients")):
        for name, row in load[clients].items():
            number = clients.partition(" ")[0]
            lines.append(f"| {number} | {name} | {row['first_ms']:g} | {row['token_ms']:g} |")
    memory, left = load["memory"], load["clients that leave"]
    lines += [
        "",
        "Memory: "
        + ", ".join(f"{row['rss_kb'] // 1024} MB after {row['requests']:,}" for row in memory)
        + f" requests. Of {left['clients']:,} clients that went away at random "
        f"{left['left']['active']} held a slot {left['seconds']:g} s after the last.",
        "",
        "`python benchmarks/gateway_cache.py --pi PATH`: the agent pi, ten questions of one "
        "conversation on the embedded model. How much of the prompt before was in the cache of the "
        "model's server:",
        "",
        "| asked | requests | least share | shares |",
        "| --- | --- | --- | --- |",
    ]
    for name, row in cache.items():
        shares = [f"{one['share']:.0%}" for one in row["requests"] if "share" in one]
        least = "" if row["least"] is None else f"{row['least']:.0%}"
        lines.append(f"| {name} | {len(row['requests'])} | {least} | {', '.join(shares)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    Stretch("gateway.md", "gateway's figures", "gateway_figures.py", figures).main()
