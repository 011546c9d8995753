"""Writes docs/benchmarks.md from benchmarks/results.json: figures and ratios.

The part on golden transcripts comes from benchmarks/golden_replay.json, where that is there.

``python benchmarks/report.py`` writes the page again; ``--check`` fails where it would differ.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from texts import COMPARED

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
REPLAYS = HERE / "golden_replay.json"
PAGE = HERE.parent / "docs" / "benchmarks.md"

Cell = dict[str, Any]
OURS = "mlx-tools"
STREAMED = "mlx-tools, streamed"
BARE = "bare interpreter"


def dump(results: dict[str, Any]) -> str:
    """The results as JSON, one cell a line."""

    def lines(value: Any, indent: str) -> str:
        if not isinstance(value, dict) or not any(isinstance(v, dict) for v in value.values()):
            return json.dumps(value, ensure_ascii=False)
        inner = ",\n".join(
            f"{indent} {json.dumps(key, ensure_ascii=False)}: {lines(item, indent + ' ')}"
            for key, item in value.items()
        )
        return f"{{\n{inner}\n{indent}}}"

    return lines(results, "") + "\n"


# --- figures ------------------------------------------------------------------------------------


def time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale or unit == "µs":
            value = seconds / scale
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.2g} {unit}"
    raise AssertionError


def times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.2g}×"


def bytes_of(size: str) -> str:
    number = int(size)
    for unit, scale in (("MB", 1_000_000), ("KB", 1_000)):
        if number >= scale:
            return f"{number / scale:g} {unit}"
    return f"{number} B"


def ratio(cell: Cell, other: Cell) -> float:
    """The factor by which ``cell`` takes longer: the median of the rounds' own ratios."""
    pairs = zip(cell["samples"], other["samples"], strict=False)
    return float(statistics.median(a / b for a, b in pairs))


def done(cell: Cell | None) -> bool:
    return cell is not None and "median" in cell and "over" not in cell


def factors(sizes: dict[str, dict[str, Cell]], name: str) -> Iterable[tuple[float, str]]:
    """The factor for each tenfold text, and which. By the minima: noise only adds."""
    known = [(int(size), cells[name]) for size, cells in sizes.items() if done(cells.get(name))]
    for (small, a), (large, b) in pairwise(known):
        if large == 10 * small:
            yield b["min"] / a["min"], f"{bytes_of(str(small))} to {bytes_of(str(large))}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def net(cells: dict[str, Cell], name: str) -> float:
    """Seconds above the bare interpreter's."""
    return float(cells[name]["median"]) - float(cells[BARE]["median"])


# --- the page -----------------------------------------------------------------------------------


def render(results: dict[str, Any], replays: dict[str, Any] | None = None) -> str:
    """The whole page; ``replays`` are the figures of golden_replay.py."""
    lines = [
        *head(results),
        *reading_part(results["reading"]),
        *building_part(results["startup"], results["steps"]),
    ]
    if replays is not None:
        lines += replays_part(replays)
    return "\n".join(lines).rstrip() + "\n"


HEAD = """\
# Benchmarks

<!-- Written by benchmarks/run.py. Change the scripts, not this page. -->

<!-- not run: takes minutes and wants a quiet machine -->
```console
$ {command}
```

This measures how quick mlx-tools is, beside its peers. How many calls are right is in
[evaluation.md](evaluation.md).

| | |
| --- | --- |
| measured | on {date}, in one run of {seconds} seconds |
| machine | {machine} |
| load average | {before} before, {after} after |
| versions | {versions} |

Competitors take turns in every round, each in a process of its own. Times are medians. A ratio is
the median of the rounds' own ratios. `benchmarks/results.json` has every sample, of more texts and
sizes than are shown here.
"""


def head(results: dict[str, Any]) -> list[str]:
    machine = results["machine"]
    described = [machine["processor"], f"{machine['architecture']}, {machine['cores']} cores"]
    described += [machine["system"], machine["python"]]
    text = HEAD.format(
        date=results["date"],
        seconds=results["seconds"],
        command=results["command"],
        machine=", ".join(filter(None, described)),
        versions=", ".join(f"{name} {number}" for name, number in results["versions"].items()),
        **results["load"],
    )
    return [text]


READING = """\
## Reading a completion

One text of {size} goes in, one tool call comes out; the times are processor time. `json` is
`json.loads`, `json_repair` its `loads`, `LangChain` its `JsonOutputParser`. `streamed` feeds the
text four characters at a time. Multiples of mlx-tools' time are in brackets. If a parser did not
find the call, the cell says what it gave. `>` marks one that was ended after that time.
"""

SHOWN = "100000"
"""The size of the texts that the page shows, of those that were measured."""


def reading_part(reading: dict[str, Any]) -> list[str]:
    kinds = {kind: reading[kind][SHOWN] for kind in COMPARED if SHOWN in reading.get(kind, {})}
    names = list(dict.fromkeys(name for cells in kinds.values() for name in cells))
    names.sort(key=[OURS, STREAMED, "json", "json_repair", "LangChain"].index)
    rows = [
        [f"`{kind}`", *(reading_cell(name, cells) for name in names)]
        for kind, cells in kinds.items()
    ]
    lines = [READING.format(size=bytes_of(SHOWN)), *table(["text", *names], rows)]
    return [*lines, f"{growth(reading)}\n"]


def growth(reading: dict[str, Any]) -> str:
    """The largest cost of ten times the text, read whole and streamed."""
    lines = [f"Of {len(reading)} kinds, most of them hostile, ten times the text takes at most:"]
    for name, said in ((OURS, "read whole"), (STREAMED, "streamed")):
        found = [(*one, kind) for kind, sizes in reading.items() for one in factors(sizes, name)]
        factor, step, kind = max(found, default=(0.0, "not measured", ""))
        late = [k for k, s in reading.items() if any("over" in c.get(name, {}) for c in s.values())]
        over = f"; over the cap: {', '.join(late)}" if late else ""
        lines.append(f"- {said}: {times(factor)} as long (`{kind}`, {step}{over})")
    return f"{lines[0]}\n\n{lines[1]}\n{lines[2]}"


def reading_cell(name: str, cells: dict[str, Cell]) -> str:
    cell = cells.get(name, {})
    if "over" in cell:
        return f"> {time(cell['over'])}"
    if not done(cell):
        return ""
    text = time(cell["median"])
    if name != OURS and done(cells.get(OURS)):
        text += f" ({times(ratio(cell, cells[OURS]))})"
    return text if cell["outcome"] == "the call" else f"{text}, {cell['outcome']}"


BUILDING = """\
## Starting, and a step

- *Import* is what a program imports to build an agent, above the bare interpreter's own {bare}.
- *Memory* is the most that such a process holds.
- *First answer* is import, an agent with one tool, and a run of one step. Like import it is the
  processor time of fresh processes.
- A *step* is what the framework itself costs. A scripted model asks for one small tool N times,
  then answers. The wall time of the run is divided by N.

Only mlx-tools and LangChain's JSON chat read the calls out of text, smolagents does both. The
others get the calls ready made. `durable` writes the transcript to a file. `synced`, with a tool
that writes, waits for the disk before and after every call. The others keep theirs in memory.
Multiples of mlx-tools' figures are in brackets.
"""

COMMANDS = {"help": "`--help`", "tab": "a Tab", "ask": "an answer of a scripted server"}
"""The purpose of the commands."""


def building_part(startup: dict[str, Any], steps: dict[str, dict[str, Cell]]) -> list[str]:
    imports, first = startup["import"], startup["first_answer"]
    lines = [BUILDING.format(bare=time(imports[BARE]["median"]))]
    rows = []
    names = [name for cells in (imports, *steps.values()) for name in cells if name != BARE]
    for name in dict.fromkeys(names):
        row = [name, "", "", ""]
        if name in imports:
            row[1] = multiple(net(imports, name), imports, name)
            row[2] = f"{startup['memory'][name] / 1e6:.0f} MB"
        if name in first:
            row[3] = multiple(net(first, name), first, name)
        rows.append([*row, *(step(cells, name) for cells in steps.values())])
    heads = (f"a step of {count}" for count in steps)
    lines += table(["", "import", "memory", "first answer", *heads], rows)
    commands = "\n".join(
        f"- {COMMANDS[key]}: "
        + ", ".join(time(cells[name]["median"]) for name in (OURS, "llm") if name in cells)
        for key, cells in startup["commands"].items()
    )
    return [*lines, f"As commands, whole processes, mlx-tools and llm take:\n\n{commands}\n"]


def step(cells: dict[str, Cell], name: str) -> str:
    if name not in cells:
        return ""
    text = time(cells[name]["median"])
    if name == OURS or OURS not in cells:
        return text
    return f"{text} ({times(ratio(cells[name], cells[OURS]))})"


def multiple(seconds: float, cells: dict[str, Cell], name: str) -> str:
    text = time(seconds)
    if name == OURS or OURS not in cells:
        return text
    return f"{text} ({times(seconds / net(cells, OURS))})"


REPLAYING = """\
## Replaying golden transcripts

`{command}` reads, replays and compares {replays:,} golden transcripts in
one process. They are copies of recorded runs of 1 to 5 calls, with {completions:,} completions and
{size:.0f} MB. It takes {wall:.3g} s and at most {memory:.0f} MB:
{replay} a replay, {completion} a completion.
"""


def replays_part(found: dict[str, Any]) -> list[str]:
    many = found["many"]
    return [
        REPLAYING.format(
            command=found["command"],
            replays=many["replays"],
            completions=many["completions"],
            size=many["bytes"] / 1e6,
            wall=many["median_seconds"],
            memory=many["peak_bytes"] / 1e6,
            replay=time(many["per_replay_us"] / 1e6),
            completion=time(many["per_completion_us"] / 1e6),
        )
    ]


def read_replays() -> dict[str, Any] | None:
    """The figures of golden_replay.py, where they are there."""
    if not REPLAYS.exists():
        return None
    found: dict[str, Any] = json.loads(REPLAYS.read_text(encoding="utf-8"))
    return found


def main() -> None:
    page = render(json.loads(RESULTS.read_text(encoding="utf-8")), read_replays())
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text(encoding="utf-8") != page:
            raise SystemExit("docs/benchmarks.md is not what benchmarks/report.py would write")
    else:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
