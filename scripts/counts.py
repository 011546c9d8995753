"""Counts how large the house is, and writes it into docs/architecture.md.

    python scripts/counts.py                 write the table
    python scripts/counts.py --check         exit 1 where it is out of date
    python scripts/counts.py --of DIRECTORY  print the counts of another checkout

A *class name used twice* is one that two modules define; a *file name that recurs* one that two
folders of the package have (``__init__.py`` aside). Functions and files are those of the package
that one question with one call walks through, with a scripted model, when asked the second time.
What an addition touches is `scripts/additions.py`'s, and what takes time the benchmarks'.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from scripts.additions import ADDITIONS
from scripts.stretch import ROOT, Stretch

BEFORE: Final = {
    "entries under `mlx_tools/`": 63,
    "lines of the package": 65679,
    "files of the package": 411,
    "class names used twice": 46,
    "file names that recur": 33,
    "functions that a question with one call walks through": 608,
    "files that it walks through": 94,
    "settings": 60,
    "options over all commands": 279,
    "lines of tests": 56988,
    "lines of docs": 5998,
}
"""What this script counted before the rooms were put in order."""

WALK: Final = """
import sys
from mlx_tools import Controller, Policy, tool
from mlx_tools.testing import ScriptedBackend

@tool(effects={"read"})
def area(width: float, height: float) -> float:
    "Area of a rectangle."
    return width * height

CALL = '{"type":"tool_call","name":"area","arguments":{"width":3.5,"height":4}}'
ANSWER = '{"type":"final_answer","content":"14"}'

def ask():
    backend = ScriptedBackend(CALL, ANSWER)
    policy = Policy(allow=["area"])
    return Controller(backend, tools=[area], policy=policy).run_sync("How large?")

ask()
seen = set()

def note(frame, event, _):
    if event == "call" and "mlx_tools" in frame.f_code.co_filename:
        seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

sys.setprofile(note)
ask()
sys.setprofile(None)
named = {one for one in seen if "<" not in one[1].rpartition(".")[2]}
print(len(named), len({file for file, _ in named}))
"""


def counts(root: Path) -> dict[str, int]:
    """What there is in a checkout."""
    package = root / "mlx_tools"
    files = sorted(package.rglob("*.py"))
    classes = Counter(
        name
        for path in files
        for name in {
            node.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ClassDef)
        }
    )
    names = Counter(path.name for path in files if path.name != "__init__.py")
    functions, walked = map(int, _python(root, WALK).split())
    settings, options = map(int, _python(root, OPTIONS).split())
    entries = {path.relative_to(package).parts[0] for path in files}
    return {
        "entries under `mlx_tools/`": len(entries),
        "lines of the package": sum(map(_lines, files)),
        "files of the package": len(files),
        "class names used twice": sum(count > 1 for count in classes.values()),
        "file names that recur": sum(count > 1 for count in names.values()),
        "functions that a question with one call walks through": functions,
        "files that it walks through": walked,
        "settings": settings,
        "options over all commands": options,
        "lines of tests": sum(map(_lines, (root / "tests").rglob("*.py"))),
        "lines of docs": sum(map(_lines, [*(root / "docs").rglob("*.md"), root / "README.md"])),
    }


OPTIONS: Final = """
import importlib
from typer.main import get_command
from mlx_tools.cli import root
try:
    config = importlib.import_module("mlx_tools.app.config")
except ModuleNotFoundError:
    config = importlib.import_module("mlx_tools.config")

def options(command, context):
    own = sum(
        one.param_type_name == 'option' and one.name != 'help_all' for one in command.params
    )
    if hasattr(command, 'list_commands'):
        names = command.list_commands(context)
        own += sum(options(command.get_command(context, name), context) for name in names)
    return own

command = get_command(root.app)
context = command.make_context('mlx-tools', [], resilient_parsing=True)
print(len(config.table()), options(command, context))
"""


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def _python(root: Path, code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    if run.returncode:
        raise SystemExit(run.stderr)
    return run.stdout


TOUCHED: Final = {"setting of a run": 9, "stop reason": 2, "kind of record": 8, "backend": 8}
"""How many files an addition touched, at the least, before the rooms were put in order."""

RATIOS: Final = {"a step, as a multiple of llm's": "8", "the first answer, likewise": "1.7"}
"""What it took before, measured by the benchmarks of that day."""


def ratios() -> dict[str, float]:
    """What a step of fifty and the first answer take, from the last run of the benchmarks."""
    found = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    cells = found["steps"]["50"], found["startup"]["first_answer"]
    shares = [one["mlx-tools"]["median"] / one["llm"]["median"] for one in cells]
    return dict(zip(RATIOS, shares, strict=True))


def table() -> str:
    """The counts as Markdown, beside those of before."""
    rows = [(name, f"{BEFORE[name]:,}", f"{count:,}") for name, count in counts(ROOT).items()]
    rows += [
        (f"files that a new {kind} touches", str(TOUCHED[kind]), str(len(one.edits)))
        for kind, one in ADDITIONS.items()
    ]
    rows += [(name, RATIOS[name], f"{share:.2g}") for name, share in ratios().items()]
    lines = [("", "before", "now"), ("---", "---", "---"), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("|  |", "| |")


STRETCH: Final = Stretch("architecture.md", "counts", "counts.py", table)

if __name__ == "__main__":
    if "--of" in sys.argv:
        for name, count in counts(Path(sys.argv[sys.argv.index("--of") + 1])).items():
            print(f"{count:8,}  {name}")
    else:
        STRETCH.main()
