"""Replays ten thousand golden transcripts, and sets a replay's step beside a step of llm's.

    python benchmarks/golden_replay.py [--replays 10000] [--rounds 25] [--results FILE]

It writes benchmarks/golden_replay.json, and its part of docs/benchmarks.md.

Recorded are runs of a scripted model: a question, a call of a small tool, an answer (and some of
more calls). Copies of them are replayed in fresh processes: wall time from the process's start to
its end, and the most memory that it holds at one time.

Then the same run, a question to its answer, is done in turns by `llm`, by mlx-tools' Controller,
and by a replay of what was recorded: wall time by completion. The environment is that of run.py.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from measure import compare, open_all, quiet_environment, ratio, say

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "golden_replay.json"
STEPS = (1, 10)
"""Calls of the runs that are set side by side; a run has one completion more."""

MIXED = (1, 1, 1, 1, 2, 3, 5)
"""Calls of the runs that are copied: most are short, as people's are."""


# --- many replays -------------------------------------------------------------------------------


def make_copies(folder: Path, number: int) -> tuple[int, int]:
    """Copies of recorded runs, each in a file of its own: their completions, and their bytes."""
    from agents.golden_ import record

    made = []
    for place, steps in enumerate(MIXED):
        path = folder / f"recorded-{place}"
        record(steps, path, f"run {place}")
        made.append((path.read_bytes(), steps + 1))
        path.unlink()
    completions = size = 0
    for copy in range(number):
        data, read = made[copy % len(made)]
        (folder / f"{copy:06}.jsonl").write_bytes(data)
        completions += read
        size += len(data)
    return completions, size


def replay_all(folder: Path) -> None:
    """The work of one process: replays all, and fails where one does not come out as it was."""
    from mlx_tools.golden import replay_file

    done = 0
    for path in sorted(folder.glob("*.jsonl")):
        check = replay_file(path)
        if not check.passed:
            raise SystemExit(f"{check.path} did not replay: {check.to_json()}")
        done += 1
    print(done)


def timed(folder: Path) -> tuple[float, float, int]:
    """The seconds, those of processors, and the replays of a fresh process."""
    before = _used().ru_utime + _used().ru_stime
    command = [sys.executable, str(Path(__file__)), "--work", str(folder)]
    start = perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, env=quiet_environment())
    seconds = perf_counter() - start
    if done.returncode:
        raise SystemExit("replaying failed: see the message above")
    return seconds, _used().ru_utime + _used().ru_stime - before, int(done.stdout)


def _used() -> resource.struct_rusage:
    """The resources that all ended processes below this one used."""
    return resource.getrusage(resource.RUSAGE_CHILDREN)


def measure_many(replays: int, repeats: int) -> dict[str, Any]:
    """The replays, in a fresh process each time."""
    with tempfile.TemporaryDirectory(prefix="mlx-tools-bench-") as base:
        folder = Path(base)
        completions, size = make_copies(folder, replays)
        seconds, spent = [], []
        for turn in range(repeats):
            say(f"{replays} replays ({turn + 1} of {repeats})")
            took, used, done = timed(folder)
            if done != replays:
                raise SystemExit(f"{done} of {replays} were replayed")
            seconds.append(round(took, 3))
            spent.append(round(used, 3))
    return {
        "replays": replays,
        "completions": completions,
        "bytes": size,
        "seconds": seconds,
        "median_seconds": round(median(seconds), 3),
        "processor_seconds": round(median(spent), 3),
        "per_replay_us": round(1e6 * median(seconds) / replays, 1),
        "per_completion_us": round(1e6 * median(seconds) / completions, 1),
        "peak_bytes": _used().ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


# --- one step, beside llm's ---------------------------------------------------------------------


def measure_step(rounds: int, names: Sequence[str], need: str) -> dict[str, Any]:
    """The same run by each, in turns: seconds by completion, and how many times llm's they are."""
    competitors = open_all("agent", names, (1,), need)
    found: dict[str, Any] = {}
    for steps in STEPS:
        say(f"a run of {steps} calls")
        cells = compare(competitors, (steps,), rounds=rounds)
        for cell in cells.values():
            cell.samples = [seconds / (steps + 1) for seconds in cell.samples]
        found[str(steps)] = {name: cell.to_json() for name, cell in cells.items()}
        if "llm" in cells:
            for name, cell in cells.items():
                times = ratio(cell, cells["llm"])
                found[str(steps)][name]["times_llm"] = times and float(f"{times:.3g}")
    for competitor in competitors:
        competitor.close()
    return found


# --- all of it ----------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> None:
    from agents import REPLAY
    from report import dump
    from run import machine, versions

    before = os.getloadavg()[0]
    described = machine()
    wanted = {"replays": 10_000, "repeats": 3, "rounds": 25}
    given = [f" --{k} {vars(options)[k]}" for k, v in wanted.items() if vars(options)[k] != v]
    results: dict[str, Any] = {
        "command": "python benchmarks/golden_replay.py" + "".join(given),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": described,
        "versions": {k: v for k, v in versions().items() if k in ("mlx-tools", "llm")},
        "load": {"before": round(before, 2)},
        "many": measure_many(options.replays, options.repeats),
        "step": measure_step(options.rounds, ["llm", "mlx-tools", REPLAY], options.need),
    }
    results["load"]["after"] = round(os.getloadavg()[0], 2)
    text = dump(results)
    if options.results is not None:
        options.results.write_text(text, encoding="utf-8")
    print(text, end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--replays", type=int, default=10_000, help="how many (default: 10000)")
    parser.add_argument("--repeats", type=int, default=3, help="how often (default: 3)")
    parser.add_argument("--rounds", type=int, default=25, help="of a step (default: 25)")
    parser.add_argument("--results", type=Path, help="where the figures go (JSON)")
    parser.add_argument("--here", action="store_true", help="use this interpreter as it is")
    parser.add_argument("--need", choices=["any", "all"], default="any", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        return replay_all(options.work)
    if options.here:
        return measure(options)
    from run import environment_python

    again = [str(environment_python()), str(Path(__file__)), "--here", "--need", "all"]
    again += [] if options.results else ["--results", str(RESULTS)]
    code = subprocess.run([*again, *sys.argv[1:]]).returncode
    if not code and not options.results:
        code = subprocess.run([sys.executable, str(HERE / "report.py")]).returncode
    raise SystemExit(code)


if __name__ == "__main__":
    main()
