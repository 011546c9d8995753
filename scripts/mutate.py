"""Change the code and its words, one small thing at a time, and see whether a test notices.

    python scripts/mutate.py                  # all mutations; tables on standard output
    python scripts/mutate.py --only code      # those that tests must notice
    python scripts/mutate.py --only golden    # those that golden transcripts must notice
    python scripts/mutate.py NAME...          # those whose names begin with one of these
    python scripts/mutate.py --write          # also write scripts/golden_set/mutations.md

Each mutation is made in a copy of the tree, never in the checkout. A mutation of the code
(``scripts/mutations.toml``) names the tests that must fail with it. One of
``scripts/golden_set/mutations.py`` names the transcripts that must fail, and the room to blame. The
exit code is 1 if one is not noticed so, or if the text that it replaces is no longer there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mlx_tools.golden import find_golden  # noqa: E402
from scripts.golden_set.mutating import Facts, Mutation  # noqa: E402
from scripts.golden_set.mutations import mutations as golden_mutations  # noqa: E402

FOLDER: Final = ROOT / "golden_transcripts"
PAGE: Final = ROOT / "scripts" / "golden_set" / "mutations.md"
DATA: Final = ROOT / "scripts" / "mutations.toml"
LEFT_OUT: Final = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")
JOBS: Final = 2
"""Copies at a time by default: tests of processes and sockets slow each other down."""
MOST_SECONDS: Final = 600
"""After this time a test run is ended. A mutation that makes a test wait for ever is noticed."""
MOST_SECONDS_OF_ALL: Final = 3600
"""After this time the run of all tests without a mutation is ended; other work slows it down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeMutation:
    """A small change of the code, as real bugs are, and the tests that must fail with it.

    ``old``, which stands in ``file`` once, becomes ``new``.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def code_mutations() -> list[CodeMutation]:
    """Return the mutations of the data file."""
    rows = tomllib.loads(DATA.read_text(encoding="utf-8"))["mutation"]
    return [CodeMutation(**{**row, "tests": tuple(row["tests"])}) for row in rows]


class TextNotFound(Exception):
    """The text that a mutation replaces is not exactly once in its file."""


class Tree:
    """A copy of the checkout in which one thing at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writes = 0
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a process that runs the code of the copy."""
        return {**os.environ, "PYTHONPATH": str(self.folder)}

    @contextmanager
    def changed(self, mutation: CodeMutation | Mutation) -> Iterator[None]:
        """Hold a mutation in the copy. Raises `Gone`."""
        path = self.folder / mutation.file
        before = path.read_text(encoding="utf-8")
        if (times := before.count(mutation.old)) != 1:
            raise TextNotFound(f"its text stands there {times} times, not once")
        self._write(path, before.replace(mutation.old, mutation.new))
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        """Write a file, with a time of its own, so that no compiled module stands for another."""
        path.write_text(text, encoding="utf-8")
        self._writes += 1
        os.utime(path, (self._writes * 10, self._writes * 10))


# --- mutations that tests must notice -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TestedResult:
    """The test that noticed a mutation; empty if none did. ``fault``: it could not be tried."""

    mutation: CodeMutation
    noticed_by: str = ""
    fault: str = ""

    @property
    def sound(self) -> bool:
        """True if a test noticed it."""
        return bool(self.noticed_by) and not self.fault

    def to_json(self) -> dict[str, Any]:
        """The result as ``--json`` prints it."""
        own = self.mutation
        return {
            "name": own.name,
            "file": own.file,
            "sound": self.sound,
            "noticed_by": self.noticed_by,
            "fault": self.fault,
        }


TEST_WORKER: Final = """
import importlib, json, os, signal, sys
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
import pytest
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        os.setsid()
        signal.alarm(job["seconds"])
        output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = pytest.main(job["arguments"])
        sys.stdout.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    try:
        os.killpg(child, signal.SIGKILL)  # what the tests left behind
    except OSError:
        pass
    print(os.waitstatus_to_exitcode(status), flush=True)
"""
"""Runs pytest for each line that it is given, each time in a process of its own that has loaded
nothing of mlx-tools before."""

PRELOADED: Final = (
    *("pytest", "hypothesis.strategies", "anyio._backends._asyncio", "asyncio", "httpx"),
    *("httpcore", "msgspec", "pydantic", "jinja2.sandbox", "json_repair", "jsonschema"),
    *("referencing", "attr", "starlette.applications", "starlette.testclient", "uvicorn"),
    *("websockets", "sqlite3", "psycopg", "rich.console", "rich.markdown", "prompt_toolkit"),
    *("llguidance", "platformdirs", "docstring_parser", "requests", "urllib.request"),
)
"""Packages that are the same whatever is changed: to load them is half of a short test run."""


class TestRunner:
    """A process that runs tests with the code of a copy."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._worker = subprocess.Popen(
            [sys.executable, "-c", TEST_WORKER, json.dumps(PRELOADED)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree.folder,
            env=tree.environ,
        )

    def close(self) -> None:
        """End the process."""
        self._worker.communicate()

    def run(self, tests: Sequence[str], seconds: int = MOST_SECONDS) -> tuple[int, str]:
        """Run tests until one fails or time is over; return the exit code and what failed."""
        assert self._worker.stdin is not None and self._worker.stdout is not None
        output = self.tree.folder.with_suffix(".log")
        options = ("-x", "-m", "not slow", "-p", "no:cacheprovider", "--tb=no", "-rfE")
        quiet = "ignore::pytest.PytestAssertRewriteWarning"  # plugins are loaded already
        job = {
            "arguments": [*options, "-W", quiet, *tests],
            "output": str(output),
            "seconds": seconds,
        }
        self._worker.stdin.write(f"{json.dumps(job)}\n")
        self._worker.stdin.flush()
        code = int(self._worker.stdout.readline() or "-9")
        if code == -signal.SIGALRM:
            return 1, f"no end within {seconds} s"
        said = output.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return code, lines[0].split(" ", 1)[1][:200] if lines else said[-300:].strip()


def try_tests(runner: TestRunner, mutation: CodeMutation) -> TestedResult:
    """Run the tests of a mutation with it."""
    try:
        with runner.tree.changed(mutation):
            code, failed = runner.run(mutation.tests)
    except TextNotFound as gone:
        return TestedResult(mutation, fault=str(gone))
    if code not in (0, 1):
        return TestedResult(mutation, fault=f"pytest ended with {code}: {failed}")
    return TestedResult(mutation, noticed_by=failed if code else "")


# --- mutations that golden transcripts must notice ------------------------------------------------

WORKER: Final = """
import importlib, json, os, sys
from pathlib import Path
for name in json.loads(sys.argv[3]):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
copy, folder = Path(sys.argv[1]), Path(sys.argv[2])

def replayed(names):
    import mlx_tools
    assert Path(mlx_tools.__file__).is_relative_to(copy), mlx_tools.__file__
    from mlx_tools.golden import replay_file
    found = {}
    for name in names:
        check = replay_file(folder / name)
        errors = [sample.error for sample in check.samples if sample.error]
        if not check.passed:
            found[name.removesuffix(".jsonl")] = {"rooms": check.rooms, "errors": errors}
    return found

names = json.loads(sys.stdin.readline())
for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            said = {"failed": replayed(names)}
        except BaseException as error:
            said = {"fault": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Replays all transcripts for each line that it is given, each time in a process of its own that
has loaded nothing of mlx-tools before."""

LOADED: Final = ("anyio", "asyncio", "attr", "jinja2", "json_repair", "jsonschema", "referencing")
"""Packages that are the same whatever is changed: the worker loads them once."""


@dataclass(frozen=True, slots=True)
class GoldenResult:
    """The rooms that transcripts failed in with one mutation, by transcript."""

    mutation: Mutation
    failed: Mapping[str, Sequence[str]]
    missed: tuple[str, ...] = ()
    wrongly: tuple[str, ...] = ()
    fault: str = ""

    @property
    def rooms(self) -> tuple[str, ...]:
        """The rooms that differences were told of."""
        return tuple(sorted({room for rooms in self.failed.values() for room in rooms}))

    @property
    def sound(self) -> bool:
        """True if those that must notice it did, in its room, and no other."""
        noticed = bool(self.failed) and not (self.missed or self.wrongly or self.fault)
        return noticed and not self.wrong_rooms

    @property
    def wrong_rooms(self) -> tuple[str, ...]:
        """The rooms that no difference may be in, and the mutation's own if none is in it."""
        own = self.mutation
        return tuple(
            sorted(({own.room} - {*self.rooms}) | ({*self.rooms} - {own.room, *own.follows}))
        )

    def to_json(self) -> dict[str, Any]:
        """The result as ``--json`` prints it."""
        own = self.mutation
        return {
            "name": own.name,
            "file": own.file,
            "room": own.room,
            "rooms": list(self.rooms),
            "sound": self.sound,
            "failed": {name: list(rooms) for name, rooms in sorted(self.failed.items())},
            "missed": list(self.missed),
            "wrongly": list(self.wrongly),
            "fault": self.fault,
        }


class Replayer:
    """A process that replays all transcripts with the code of a copy."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._names = [str(path.relative_to(FOLDER)) for path in find_golden([FOLDER])]
        self._facts = [Facts.of(FOLDER / name, FOLDER) for name in self._names]
        arguments = (str(tree.folder), str(FOLDER), json.dumps(LOADED))
        self._worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree.folder,
            env=tree.environ,
        )
        self._send(json.dumps(self._names))

    def close(self) -> None:
        """End the process."""
        self._worker.communicate()

    def _send(self, line: str) -> None:
        if self._worker.stdin is not None:
            self._worker.stdin.write(f"{line}\n")
            self._worker.stdin.flush()

    @property
    def count(self) -> int:
        """The number of transcripts."""
        return len(self._names)

    def replay(self) -> dict[str, dict[str, Any]]:
        """Return what fails, by transcript. Raises RuntimeError if the copy does not even start."""
        self._send("replay")
        line = self._worker.stdout.readline() if self._worker.stdout is not None else ""
        answer: dict[str, Any] = json.loads(line or '{"fault": "the worker has ended"}')
        if "fault" in answer:
            raise RuntimeError(answer["fault"])
        failed: dict[str, dict[str, Any]] = answer["failed"]
        return failed

    def try_mutation(self, mutation: Mutation) -> GoldenResult:
        """Replay all transcripts with a mutation."""
        try:
            with self.tree.changed(mutation):
                failed = self.replay()
        except (TextNotFound, RuntimeError) as error:
            return GoldenResult(mutation, {}, fault=str(error))
        errors = sorted({error for check in failed.values() for error in check["errors"]})
        due = {facts.name for facts in self._facts if mutation.hits(facts)}
        return GoldenResult(
            mutation,
            {name: check["rooms"] for name, check in failed.items()},
            missed=tuple(sorted(due - failed.keys())),
            wrongly=tuple(sorted(failed.keys() - due)),
            fault="; ".join(errors)[:300],
        )


# --- reports --------------------------------------------------------------------------------------


def code_table(results: Sequence[TestedResult]) -> str:
    """The mutations of the code, and what noticed each."""
    sound = sum(result.sound for result in results)
    lines = ["| Mutation | File | Noticed by |", "|---|---|---|"]
    for result in results:
        told = result.noticed_by.split(" - ")[0] or f"**nothing** {result.fault}".strip()
        lines.append(f"| {result.mutation.name} | `{result.mutation.file}` | {told} |")
    return "\n".join([*lines, "", f"{sound} of {len(results)} are noticed by tests."]) + "\n"


def golden_page(results: Sequence[GoldenResult], transcripts: int) -> str:
    """The table, as scripts/golden_set/mutations.md holds it."""
    sound = sum(result.sound for result in results)
    lines = [
        "# What the golden transcripts notice",
        "",
        "Made by `python scripts/mutate.py --only golden --write`, which changes one small thing",
        f"at a time in a copy of the code and replays the {transcripts} transcripts of",
        "`golden_transcripts/` with it. A mutation is noticed as it should be where the",
        "transcripts that it concerns fail, in the room that the change was made in, and no other",
        "does. What is no longer asked about may differ in its outcome too.",
        "",
        f"{sound} of {len(results)} mutations are noticed so.",
        "",
        "| Mutation | File | Room | Fails | Which are | As it should |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        own = result.mutation
        told = "yes" if result.sound else "**no**"
        file = f"`{own.file}`"
        cells = (own.name, file, ", ".join(result.rooms), str(len(result.failed)), own.who, told)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def golden_complaint(result: GoldenResult) -> str:
    """The fault of a result, in a line."""
    own = result.mutation
    said = [f"{own.name}: rooms {', '.join(result.rooms) or 'none'}"]
    said += [f"must be {own.room}"] if result.wrong_rooms else []
    said += [f"not noticed by {', '.join(result.missed)}"] if result.missed else []
    said += [f"wrongly by {', '.join(result.wrongly)}"] if result.wrongly else []
    return "; ".join([*said, *filter(None, [result.fault])])


# --- the command ----------------------------------------------------------------------------------


def run_in_copies(folder: Path, tasks: Sequence[Callable[[Tree], None]]) -> None:
    """Run tasks at the same time, each with its own copy of the tree."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        trees = [Tree(folder / f"copy-{number}") for number in range(len(tasks))]
        for _ in pool.map(lambda task, tree: task(tree), tasks, trees):
            pass


def try_code(chosen: Sequence[CodeMutation], folder: Path, jobs: int) -> list[TestedResult]:
    """Try the mutations of the code. Raises RuntimeError if a test fails without any."""
    results: dict[str, TestedResult] = {}
    tests = sorted({test for mutation in chosen for test in mutation.tests})
    jobs = max(1, min(jobs, len(chosen)))

    def share(part: int) -> Callable[[Tree], None]:
        def task(tree: Tree) -> None:
            with closing(TestRunner(tree)) as runner:
                code, failed = runner.run(tests[part::jobs] or tests, MOST_SECONDS_OF_ALL)
                if code:
                    raise RuntimeError(f"without any mutation this fails: {failed}")
                for mutation in chosen[part::jobs]:
                    result = results[mutation.name] = try_tests(runner, mutation)
                    if not result.sound:
                        complaint = result.fault or "no test notices it"
                        print(f"{mutation.name}: {complaint}", file=sys.stderr, flush=True)

        return task

    run_in_copies(folder, [share(part) for part in range(jobs)])
    return [results[mutation.name] for mutation in chosen]


def try_golden(
    chosen: Sequence[Mutation], folder: Path, jobs: int
) -> tuple[list[GoldenResult], int]:
    """Try the mutations that transcripts must notice; return also the number of transcripts.
    Raises RuntimeError if a transcript fails without any."""
    results: dict[str, GoldenResult] = {}
    counts: list[int] = []

    def share(part: Sequence[Mutation]) -> Callable[[Tree], None]:
        def task(tree: Tree) -> None:
            with closing(Replayer(tree)) as replayer:
                counts.append(replayer.count)
                if failed := replayer.replay():
                    raise RuntimeError(f"without any mutation these fail: {', '.join(failed)}")
                for mutation in part:
                    result = results[mutation.name] = replayer.try_mutation(mutation)
                    if not result.sound:
                        print(golden_complaint(result), file=sys.stderr, flush=True)

        return task

    jobs = max(1, min(jobs, len(chosen)))
    run_in_copies(folder, [share(chosen[part::jobs]) for part in range(jobs)])
    return [results[mutation.name] for mutation in chosen], counts[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="the beginnings of names; all by default")
    parser.add_argument("--only", choices=("code", "golden"), help="one kind of mutations")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"copies at a time ({JOBS})")
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    names = tuple(options.names) or ""
    code = [one for one in code_mutations() if one.name.startswith(names)]
    golden = [one for one in golden_mutations() if one.name.startswith(names)]
    code = [] if options.only == "golden" else code
    golden = [] if options.only == "code" else golden
    if not code and not golden:
        print("no mutation is named so", file=sys.stderr)
        return 2
    tested: list[TestedResult] = []
    replayed: list[GoldenResult] = []
    tables: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        try:
            if golden:
                replayed, transcripts = try_golden(golden, folder / "golden", options.jobs)
                tables.append(golden_page(replayed, transcripts))
                if options.write:
                    PAGE.write_text(tables[-1], encoding="utf-8")
            if code:
                tested = try_code(code, folder / "code", options.jobs)
                tables.append(code_table(tested))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 2
    results: list[GoldenResult | TestedResult] = [*replayed, *tested]
    if options.json:
        print(json.dumps([result.to_json() for result in results], indent=1))
    else:
        print("\n".join(tables))
    return 0 if all(result.sound for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
