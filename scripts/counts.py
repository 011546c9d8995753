"""Counts how large the house is, and writes it into docs/architecture.md.

    python scripts/counts.py                 write the table
    python scripts/counts.py --check         exit 1 where it is out of date
    python scripts/counts.py --of DIRECTORY  print the counts of another checkout

A *class name used twice* is one that two modules define; a *file name that recurs* one that two
folders of the package have (``__init__.py`` aside). A walk counts the functions and files of the
package that something goes through, and the pairs of functions in two files of which one calls the
other, when it is done the third time. It begins once the controller, the server or the transcript
is there; what stands for a model (``testing.py``) is no part of it, and what a function without a
name calls, the one calls that it stands in. A driver is a function that takes a session's steps in
a loop; before, the replayer's and the direct call's had no such loop, and are counted by hand. What
an addition touches is `scripts/additions.py`'s, and what takes time the benchmarks'.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import Final

from scripts import names as naming
from scripts.additions import ADDITIONS
from scripts.generated_part import ROOT, GeneratedPart
from scripts.import_diagram import find_cycles

BEFORE: Final = {
    "entries under `mlx_tools/`": 63,
    "lines of the package": 65679,
    "files of the package": 411,
    "class names used twice": 46,
    "file names that recur": 33,
    "settings": 60,
    "options over all commands": 279,
    "lines of tests": 56988,
    "lines of docs": 5998,
}
"""The counts before the rooms were put in order."""

WALKED: Final = """
import contextlib, os, sys, tempfile
from pathlib import Path
import anyio
import mlx_tools
from mlx_tools import Controller, Policy, RunSettings, tool
from mlx_tools.backends import TokenCounter
from mlx_tools.gateway.conversation import PromptProfile
from mlx_tools.gateway.request import ClientMessage, TurnRequest
from mlx_tools.gateway.turn import TurnRunner
from mlx_tools.golden import read_golden, replay
from mlx_tools.policy import Limits
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store import load_words
from mlx_tools.testing import ScriptedBackend

PACKAGE = os.path.dirname(mlx_tools.__file__) + os.sep
CALL = '{"type":"tool_call","name":"area","arguments":{"width":3.5,"height":4}}'
ANSWER = '{"type":"final_answer","content":"14"}'

@tool(effects={"read"})
def area(width: float, height: float) -> float:
    "Area of a rectangle."
    return width * height

def ask(counted):
    policy = Policy(allow=["area"])
    controller = Controller(ScriptedBackend(CALL, ANSWER), tools=[area], policy=policy)
    with counted:
        controller.run_sync("How large?")

def serve(counted):
    form = NAMED_FORMATS["chatml"]
    settings = RunSettings(chat_format=form, style="jsonl", model="m")
    profile = PromptProfile(
        settings=settings, chat_format=form, style="jsonl", strategy="auto", words=load_words()
    )
    runner = TurnRunner(ScriptedBackend(CALL), profile, Limits(), TokenCounter())
    request = TurnRequest(messages=(ClientMessage("user", "How large?"),), tools=(area.spec,))
    with counted:
        anyio.run(runner.run, request, lambda event: None, lambda: "call_1")

def call(counted):
    from mcp import Client
    from mlx_tools.app import RunOptions, config
    from mlx_tools.cli.call_text import format_call_message, escape_line
    from mlx_tools.plugins.mcp.delegation import Delegation
    from mlx_tools.plugins.mcp.elicitation import ApprovalText
    from mlx_tools.plugins.mcp.mcp_server import McpServer
    options = {"backend.url": "http://127.0.0.1:9", "policy.preset": "readonly_basic"}
    run = RunOptions(configuration=config.load(options=options))
    delegation = Delegation(run, lambda profile: run.configuration, lambda text: None)
    server = McpServer(delegation, ApprovalText(format_call_message, escape_line), True).server()

    async def ask_server():
        async with Client(server) as client:
            with counted:
                await client.call_tool("calculator", {"expression": "3.5 * 4"})

    anyio.run(ask_server)

def again(counted):
    golden = read_golden(Path("golden_transcripts/approvals/always-asked.jsonl"))
    with counted:
        replay(golden)

def named(code):
    # A function without a name belongs to the one that it stands in.
    place, name = code.co_filename, code.co_qualname
    while name.rpartition(".")[2].startswith("<"):
        name = name.rpartition(".")[0].removesuffix(".<locals>")
    return place, name

class Walk:
    def __init__(self):
        self.functions, self.crossings = set(), set()

    def __enter__(self):
        sys.setprofile(self.note)

    def __exit__(self, *failure):
        sys.setprofile(None)

    def note(self, frame, event, _):
        if event != "call" or not self.is_counted(frame):
            return
        function = named(frame.f_code)
        if not frame.f_code.co_name.startswith("<"):
            self.functions.add(function)
        if self.is_counted(frame.f_back):
            caller = named(frame.f_back.f_code)
            if caller[0] != function[0]:
                self.crossings.add((caller, function))

    def is_counted(self, frame):
        file = "" if frame is None else frame.f_code.co_filename
        return file.startswith(PACKAGE) and file != PACKAGE + "testing.py"

with tempfile.TemporaryDirectory() as home:
    os.environ["HOME"] = home
    for work in (ask, serve, call, again):
        work(contextlib.nullcontext())
        work(contextlib.nullcontext())  # a store that is new is tidied at its second session
        walk = Walk()
        work(walk)
        files = {file for file, _ in walk.functions}
        print(len(walk.functions), len(files), len(walk.crossings))
"""

WALKS: Final = (
    "a question with one call",
    "a turn of the gateway with one call",
    "a call of one tool by way of MCP",
    "a replay of a golden transcript with one call",
)
WALKS_BEFORE: Final = ("287 / 46 / 187", "205 / 34 / 130", "136 / 33 / 87", "195 / 27 / 141")
SIZES_BEFORE: Final = ("25,176 / 77", "20,946 / 74", "0 / 0", "37,439 / 142")
"""The counts of walks and rooms before there was one driver.

At first it also counted what is made before a walk begins, and what stands for a model, and counted
what a function without a name calls apart. So the three walks that there were came to 299 / 48 /
197, 210 / 37 / 132 and 202 / 30 / 144.
"""

PURE: Final = (
    *("errors", "messages", "schema", "parsing", "protocol", "policy", "transcript", "prompt"),
    *("decoding", "controller"),
)
RUN: Final = (
    "lazy",
    "packages",
    "macos",
    "paths",
    "process",
    "store",
    "backends",
    "tools",
    "testing",
)
"""The rooms that a run needs besides the pure ones; others are applications or plugins."""

HARD: Final = ("protocol", "decoding", "controller", "store", "plugins/command/sandbox")
"""Places whose code needs its reasons beside it."""

WORDS_BEFORE: Final = ("724", "1,997")
COMMENTS_BEFORE: Final = ("37", "24", "60", "45", "105")
"""The counts of names, first lines and comments when the glossary came."""


def counts(root: Path) -> dict[str, int]:
    """The counts of a checkout."""
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
    settings, options = map(int, _python(root, OPTIONS).split())
    entries = {path.relative_to(package).parts[0] for path in files}
    return {
        "entries under `mlx_tools/`": len(entries),
        "lines of the package": sum(map(_lines, files)),
        "files of the package": len(files),
        "class names used twice": sum(count > 1 for count in classes.values()),
        "file names that recur": sum(count > 1 for count in names.values()),
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
"""The fewest files that an addition touched before the rooms were put in order."""

RATIOS: Final = {"a step, as a multiple of llm's": "8", "the first answer, likewise": "1.7"}
"""The cost before, measured by the benchmarks of that day."""


def ratios() -> dict[str, float]:
    """The times of a step of fifty and of the first answer, from the last run of the benchmarks."""
    found = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    cells = found["steps"]["50"], found["startup"]["first_answer"]
    shares = [one["mlx-tools"]["median"] / one["llm"]["median"] for one in cells]
    return dict(zip(RATIOS, shares, strict=True))


def sizes(root: Path) -> dict[str, str]:
    """The lines and files of the pure rooms with the controller, a run, plugins, and all else."""
    parts = {
        "the pure rooms and the controller": PURE,
        "the rest of a run": RUN,
        "plugins": ("plugins",),
    }
    found: dict[str, list[Path]] = {name: [] for name in (*parts, "applications and tools")}
    for path in (root / "mlx_tools").rglob("*.py"):
        room = path.relative_to(root / "mlx_tools").parts[0].removesuffix(".py")
        part = next((name for name, rooms in parts.items() if room in rooms), None)
        found[part or "applications and tools"].append(path)
    return {
        f"{name}: lines / files": f"{sum(map(_lines, files)):,} / {len(files)}"
        for name, files in found.items()
    }


def walks(root: Path) -> dict[str, str]:
    """The functions, files and calls between files that three ordinary things walk through."""
    rows = _python(root, WALKED).splitlines()
    return {
        f"{name}: functions / files / crossings": row.replace(" ", " / ")
        for name, row in zip(WALKS, rows, strict=True)
    }


def drivers(root: Path) -> int:
    """The number of functions that take a session's steps in a loop."""
    return sum(
        any(_asks_for_steps(loop) for loop in ast.walk(function) if isinstance(loop, ast.While))
        for path in (root / "mlx_tools").rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _asks_for_steps(loop: ast.While) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("next_step", "_next_step")
        for node in ast.walk(loop)
    )


def words(root: Path) -> dict[str, str]:
    """The names and first lines of docstrings that break the rules of docs/glossary.md."""
    naming.PACKAGE = root / "mlx_tools"
    found = {
        "names outside the glossary": naming.bad_names,
        "first lines of docstrings that break the rules": naming.bad_first_lines,
    }
    return {
        name: f"{sum(len(find(room)) for room in naming.rooms()):,}" for name, find in found.items()
    }


def comments(root: Path) -> dict[str, str]:
    """The lines of code, docstrings left out, for one line of comment."""
    rows = {}
    for room in HARD:
        place = root / "mlx_tools" / room
        files = [place.with_suffix(".py")] if not place.is_dir() else place.rglob("*.py")
        counted = [_code_and_comments(path.read_text(encoding="utf-8")) for path in files]
        code, remarks = (sum(part) for part in zip(*counted, strict=True))
        rows[f"lines of code for one of comment in `{room}`"] = f"{code / max(remarks, 1):.0f}"
    return rows


def _code_and_comments(source: str) -> tuple[int, int]:
    """Return the lines of code and of comment; marks for tools and rulers are no comments."""
    tools = ("# noqa", "# type:", "# ---", "# fmt", "# pragma")
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    code: set[int] = set()
    remarks = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            remarks += not token.string.startswith(tools)
        elif token.type not in layout:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code), remarks


def table() -> str:
    """The counts as Markdown, beside those of before."""
    rows = [(name, f"{BEFORE[name]:,}", f"{count:,}") for name, count in counts(ROOT).items()]
    rows += [
        (f"files that a new {kind} touches", str(TOUCHED[kind]), str(len(one.edits)))
        for kind, one in ADDITIONS.items()
    ]
    rows += [(name, RATIOS[name], f"{share:.2g}") for name, share in ratios().items()]
    rows += [
        (name, before, now)
        for (name, now), before in zip(sizes(ROOT).items(), SIZES_BEFORE, strict=True)
    ]
    rows += [
        (name, before, now)
        for (name, now), before in zip(walks(ROOT).items(), WALKS_BEFORE, strict=True)
    ]
    rows += [
        ("circles of files inside rooms", "10", str(len(find_cycles()))),
        ("drivers of a session", "5", str(drivers(ROOT))),
    ]
    for found, before in ((words(ROOT), WORDS_BEFORE), (comments(ROOT), COMMENTS_BEFORE)):
        rows += [(name, old, now) for (name, now), old in zip(found.items(), before, strict=True)]
    lines = [("", "before", "now"), ("---", "---", "---"), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("|  |", "| |")


PART: Final = GeneratedPart("architecture.md", "counts", "counts.py", table)

if __name__ == "__main__":
    if "--of" in sys.argv:
        of = Path(sys.argv[sys.argv.index("--of") + 1])
        for name, count in counts(of).items():
            print(f"{count:8,}  {name}")
        for name, text in {**sizes(of), **walks(of), **words(of), **comments(of)}.items():
            print(f"{text:>20}  {name}")
        print(f"{drivers(of):8,}  drivers of a session")
    else:
        PART.main()
