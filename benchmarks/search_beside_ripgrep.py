"""``search_files`` beside ripgrep: the same lines, and how much processor time each takes.

    python benchmarks/search_beside_ripgrep.py [--files 20000] [--out FILE]

Makes a tree of source files in memory where the system has such a place, with files that a
``.gitignore`` names and private ones, and searches it for several patterns. ripgrep (``rg``,
Debian's package) searches hidden files too, as the tool does. Compared are the lines, as
``path:line: text``, and the processor time: the tool's in a process that runs already, ripgrep's
whole process, once with one thread and once with as many as it likes. Exits with 1 where lines
differ, or the tool takes more than eight times ripgrep's time.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlx_tools import builtin_tools
from mlx_tools.tools import Tool

MEMORY = Path("/dev/shm")
MOST_TIMES = 8
PATTERNS = (
    "word77 word78",
    r"(?i)\bNEEDLE\b",
    r"\bword5 .*word6 ",
    r"[a-z]+99 w[a-z]+88 ",
    r"def \w+1\(word1\d\d\)",
)
PRIVATE = (".env", ".ssh/config", "id_rsa")


def make_tree(folder: Path, files: int) -> None:
    """Source files in folders of two levels, some ignored, some private."""
    chance = random.Random(20_000)
    words = [f"word{number}" for number in range(3000)]
    for number in range(files):
        path = folder / f"package{number // 200}" / f"part{number // 20 % 10}" / f"file{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"def {chance.choice(words)}({chance.choice(words)}):"]
        size = chance.randint(10, 120)
        lines += ["    " + " ".join(chance.choices(words, k=8)) for _ in range(size)]
        path.write_text("\n".join(lines) + "\n")
    (folder / ".gitignore").write_text("*.log\n/package3/\n!keep.log\n")
    for name in ("a.log", "keep.log", *PRIVATE):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("a needle: word77 word78\n")


def processor_time(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def by_ripgrep(folder: Path, pattern: str, *more: str) -> tuple[list[str], float]:
    """The lines that ripgrep finds, but for private files, and its processor time."""
    left_out = [part for name in (".git", *PRIVATE) for part in ("-g", f"!{name}")]
    command = ["rg", "--no-config", "-n", "--hidden", "--no-require-git", *left_out, *more]
    began = processor_time(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, pattern, "."], cwd=folder, capture_output=True, text=True, check=False
    )
    spent = processor_time(resource.RUSAGE_CHILDREN) - began
    found = (line.removeprefix("./").split(":", 2) for line in done.stdout.splitlines())
    return sorted(f"{path}:{number}: {text}" for path, number, text in found), spent


def by_tool(tool: Tool, pattern: str) -> tuple[list[str], float]:
    """The lines that the tool finds, and the processor time that it takes."""
    assert tool.blocking is not None
    began = time.process_time()
    result = str(tool.blocking({"pattern": pattern}))
    spent = time.process_time() - began
    return sorted(line for line in result.split("\n") if not line.startswith("[")), spent


def measure(folder: Path) -> list[dict[str, Any]]:
    tool = builtin_tools([str(folder)]).get("search_files")
    assert isinstance(tool, Tool)
    by_tool(tool, "warm")
    by_ripgrep(folder, "warm")
    rows = []
    for pattern in PATTERNS:
        lines, ours = by_tool(tool, pattern)
        expected, one_thread = by_ripgrep(folder, pattern, "-j1")
        _, threads = by_ripgrep(folder, pattern)
        row = {"pattern": pattern, "lines": len(lines), "same_lines": lines == expected}
        row |= {"tool_s": round(ours, 3), "rg_one_thread_s": round(one_thread, 3)}
        row |= {"rg_threads_s": round(threads, 3), "times": round(ours / one_thread, 1)}
        print(json.dumps(row))
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if shutil.which("rg") is None:
        print("there is no rg: apt-get install ripgrep", file=sys.stderr)
        return 2
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as base:
        folder = Path(base).resolve() / "tree"
        make_tree(folder, options.files)
        rows = measure(folder)
    if options.out is not None:
        system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
        result = {
            "command": f"python benchmarks/search_beside_ripgrep.py --files {options.files}",
            "measured": datetime.now(UTC).date().isoformat(),
            "system": system,
            "rows": rows,
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    sound = all(row["same_lines"] and row["times"] <= MOST_TIMES for row in rows)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
