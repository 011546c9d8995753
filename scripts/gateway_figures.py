"""Writes the measurements of the gateway into docs/gateway.md.

They come from the files that gateway_load.py, gateway_stream.py, gateway_long.py,
gateway_memory.py and gateway_cache.py of benchmarks/ leave.

python scripts/gateway_figures.py            write it
python scripts/gateway_figures.py --check    exit 1 where it is out of date
"""

from __future__ import annotations

import json
from typing import Any, Final

from scripts.generated_part import ROOT, GeneratedPart, paragraph


def _kept(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))


def figures() -> str:
    """The measured figures as Markdown."""
    load, cache = _kept("gateway_load.json"), _kept("gateway_cache.json")
    counts = [key for key in load if key.endswith(" clients")]
    heads = "".join(f" {name.partition(' ')[0]} at once |" for name in counts)
    # Older results have no time of the whole answer.
    has_whole = all("whole_ms" in row for count in counts for row in load[count].values())
    keys, words = ["first_ms", "token_ms"], "to the first token and between tokens"
    if has_whole:
        keys, words = [*keys, "whole_ms"], "to the first token, between tokens, and in all"
    lines = [
        f"`python benchmarks/gateway_load.py`, on {load['machine']}, with so many clients at once: "
        f"medians in ms, {words}.",
        "",
        f"| asked |{heads}",
        f"| --- |{' --- |' * len(counts)}",
    ]
    for name in load[counts[0]]:
        rows = [load[count][name] for count in counts]
        cells = "".join(f" {', '.join(f'{row[key]:g}' for key in keys)} |" for row in rows)
        lines.append(f"| {name} |{cells}")
    first, last, left = load["memory"][0], load["memory"][-1], load["clients that leave"]
    told = (
        f"Memory: {first['rss_kb'] // 1024} MB after {first['requests']:,} requests, "
        f"{last['rss_kb'] // 1024} MB after {last['requests']:,}. Of {left['clients']:,} clients "
        f"that went away at random {left['left']['active']} held a slot {left['seconds']:g} s "
        "after the last. `python benchmarks/gateway_cache.py --pi PATH` has the agent pi ask ten "
        "questions of one conversation. At least this much of the prompt before was in the cache "
        "of the model's server: "
        + ", ".join(f"{name} {row['least']:.0%}" for name, row in cache.items() if row["least"])
        + " (more than 100 % is the model's own turn)."
    )
    costs = ", ".join(
        f"{name} {row['ms']:g} ms" for name, row in _kept("gateway_long.json").items()
    )
    long = (
        "Processor time of the next turn of a conversation of 200,000 characters, whose beginning "
        f"is known (`python benchmarks/gateway_long.py`): {costs}. The bare starlette reads the "
        "body and asks no model."
    )
    told_parts = [paragraph(told), "", paragraph(_stream()), "", paragraph(long)]
    return "\n".join([*lines, "", *told_parts, "", *_memory()])


def _stream() -> str:
    """Return how soon a client sees what a slow model writes."""
    kept = _kept("gateway_stream.json")
    first = max(row["first_event_s"] for row in kept["rows"])
    silence = max(row["longest_silence_s"] for row in kept["rows"])
    return (
        f"Of a model that writes for {kept['seconds']:.0f} seconds (`python "
        "benchmarks/gateway_stream.py`; text, a call and a thought in all three interfaces at "
        f"once) the first event follows the first token after {first:g} s at most, and no silence "
        f"lasts longer than {silence:g} s."
    )


def _memory() -> list[str]:
    """Return the table of the memory over many requests."""
    rows = [row for row in _kept("gateway_memory.json") if row["requests"] in _SHOWN]
    requests = " | ".join(f"{row['requests']:,}" for row in rows)
    sizes = " | ".join(f"{row['rss_kb'] / 1024:.0f}" for row in rows)
    return [
        "`python benchmarks/gateway_memory.py` sends requests of all three interfaces, each a "
        "conversation of its own:",
        "",
        f"| requests | {requests} |",
        f"| --- |{' --- |' * len(rows)}",
        f"| MB | {sizes} |",
    ]


_SHOWN: Final = (1_000, 2_000, 5_000, 10_000, 15_000)


PART: Final = GeneratedPart("gateway.md", "gateway's figures", "gateway_figures.py", figures)

if __name__ == "__main__":
    PART.main()
