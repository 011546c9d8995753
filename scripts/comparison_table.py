"""Writes the comparison with other servers, from what the benchmarks of the gateway measured.

python scripts/comparison_table.py            write it into README.md and docs/compared.md
python scripts/comparison_table.py --check    exit 1 if it is out of date

Only what was measured has a cell; a server that was never measured has no column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from scripts.generated_part import ROOT, GeneratedPart


def _results(name: str) -> dict[str, Any]:
    text = (ROOT / "benchmarks" / name).read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _calls() -> str:
    """Return the row of the tool calls that arrived."""
    passed: dict[str, list[bool]] = {}
    for row in _results("gateway_peers.json")["rows"]:
        passed.setdefault(row["peer"], []).append(row["passed"])
    ours, corrected, server, proxy = (sum(one) for one in passed.values())
    (total,) = {len(one) for one in passed.values()}
    head = f"tool calls that arrive, of {total} that a model wrote in ten forms, some broken"
    gateway = f"{ours}, and {corrected} if the model heeds a correction"
    return _row(head, gateway, str(server), f"{proxy}, in front of mlx_lm.server")


def _delays() -> Iterator[str]:
    """Return the rows of the time that a server in between adds."""
    load = _results("gateway_load.json")
    for key, clients in (("1 clients", "one client"), ("200 clients", "200 clients at once")):
        direct = load[key]["direct"]["first_ms"]
        gateway, proxy = (
            f"{load[key][name]['first_ms'] - direct:,.0f} ms" for name in ("gateway", "litellm")
        )
        yield _row(f"delay of the first token, {clients}", gateway, "not measured", proxy)


def comparison() -> str:
    """Return the table, as Markdown."""
    heads = ("measured here", "mlx-tools", "mlx_lm.server", "LiteLLM")
    rows = [_row(*heads), _row(*("---" for _ in heads)), _calls(), *_delays()]
    return "\n".join(rows)


PARTS: Final = tuple(
    GeneratedPart(page, "comparison", "comparison_table.py", comparison)
    for page in ("../README.md", "compared.md")
)

if __name__ == "__main__":
    for part in PARTS:
        part.main()
