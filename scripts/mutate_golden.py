"""Changes the code and its words, one small thing at a time, and says which transcripts notice.

    python scripts/mutate_golden.py               # all mutations; a table on standard output
    python scripts/mutate_golden.py --write       # the same, to scripts/golden_set/mutations.md
    python scripts/mutate_golden.py NAME...       # those whose names begin with one of these

Every mutation is made in a copy of mlx_tools/, prompts/ and config/, never in the checkout. The
exit code is 1 where one is not noticed, or noticed by other transcripts or in another room than it
must be, or where the text that it replaces is no longer there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mlx_tools.golden import find_golden  # noqa: E402
from scripts.golden_set.mutating import Facts, Mutation  # noqa: E402
from scripts.golden_set.mutations import mutations  # noqa: E402

FOLDER: Final = ROOT / "golden_transcripts"
PAGE: Final = ROOT / "scripts" / "golden_set" / "mutations.md"
COPIED: Final = ("mlx_tools", "prompts", "config")

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
class Found:
    """What came of one mutation: by transcript, the rooms that it failed in."""

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
        """Whether it was noticed by those that must notice it, in its room, and by no other."""
        noticed = bool(self.failed) and not (self.missed or self.wrongly or self.fault)
        return noticed and self.rooms == (self.mutation.room,)

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


class Mutants:
    """A copy of the code in which one thing at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in COPIED:
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=leave)
        self._names = [str(path.relative_to(FOLDER)) for path in find_golden([FOLDER])]
        self._facts = {name: Facts.of(FOLDER / name, FOLDER) for name in self._names}
        self._made = 0
        given = (str(folder), str(FOLDER), json.dumps(LOADED))
        self._worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
        )
        self._tell(json.dumps(self._names))

    def close(self) -> None:
        """Ends the process that replays."""
        self._worker.communicate()

    def _tell(self, line: str) -> None:
        if self._worker.stdin is not None:
            self._worker.stdin.write(f"{line}\n")
            self._worker.stdin.flush()

    @property
    def count(self) -> int:
        """How many transcripts there are."""
        return len(self._names)

    def replayed(self) -> dict[str, dict[str, Any]]:
        """What fails, by transcript. Raises RuntimeError where the copy does not even start."""
        self._tell("replay")
        line = self._worker.stdout.readline() if self._worker.stdout is not None else ""
        said: dict[str, Any] = json.loads(line or '{"fault": "the worker has ended"}')
        if "fault" in said:
            raise RuntimeError(said["fault"])
        found: dict[str, dict[str, Any]] = said["failed"]
        return found

    def tried(self, mutation: Mutation) -> Found:
        """What becomes of the transcripts with a mutation."""
        path = self._folder / mutation.file
        before = path.read_text(encoding="utf-8")
        if before.count(mutation.old) != 1:
            times = before.count(mutation.old)
            return Found(mutation, {}, fault=f"its text stands there {times} times, not once")
        self._put(path, before.replace(mutation.old, mutation.new))
        try:
            failed = self.replayed()
        except RuntimeError as error:
            return Found(mutation, {}, fault=str(error))
        finally:
            self._put(path, before)
        errors = sorted({error for check in failed.values() for error in check["errors"]})
        facts = {facts.name: facts for facts in self._facts.values()}
        due = {name for name, one in facts.items() if mutation.hits(one)}
        return Found(
            mutation,
            {name: check["rooms"] for name, check in failed.items()},
            missed=tuple(sorted(due - failed.keys())),
            wrongly=tuple(sorted(failed.keys() - due)),
            fault="; ".join(errors)[:300],
        )

    def _put(self, path: Path, text: str) -> None:
        """Writes a file, with a time of its own, so that no compiled module stands for another."""
        path.write_text(text, encoding="utf-8")
        self._made += 1
        os.utime(path, (self._made * 10, self._made * 10))


def page(found: Sequence[Found], transcripts: int) -> str:
    """The table, as scripts/golden_set/mutations.md holds it."""
    sound = sum(one.sound for one in found)
    lines = [
        "# What the golden transcripts notice",
        "",
        "Made by `python scripts/mutate_golden.py --write`, which changes one small thing at a",
        f"time in a copy of the code and replays the {transcripts} transcripts of",
        "`golden_transcripts/` with it. A mutation is noticed as it should be where the",
        "transcripts that it concerns fail, each in the room that the change was made in, and no",
        "other does.",
        "",
        f"{sound} of {len(found)} mutations are noticed so.",
        "",
        "| Mutation | File | Room | Fails | Which are | As it should |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        own = one.mutation
        told = "yes" if one.sound else "**no**"
        file = f"`{own.file}`"
        cells = (own.name, file, ", ".join(one.rooms), str(len(one.failed)), own.who, told)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="the beginnings of names; all by default")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    names = tuple(options.names) or ""
    chosen = [mutation for mutation in mutations() if mutation.name.startswith(names)]
    if not chosen:
        print("no mutation is named so", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        first = Mutants(Path(folder).resolve() / "0")
        with closing(first):
            if failed := first.replayed():
                print(f"without any mutation these fail: {', '.join(failed)}", file=sys.stderr)
                return 2
            found = list(_tried(chosen, first, Path(folder).resolve()))
    table = page(found, first.count)
    if options.write:
        PAGE.write_text(table, encoding="utf-8")
    print(json.dumps([one.to_json() for one in found], indent=1) if options.json else table)
    return 0 if all(one.sound for one in found) else 1


def _tried(chosen: Sequence[Mutation], first: Mutants, folder: Path) -> Iterator[Found]:
    """What becomes of each, with as many copies as there are cores."""
    idle: SimpleQueue[Mutants] = SimpleQueue()
    idle.put(first)

    def one(mutation: Mutation) -> Found:
        mutants = idle.get()
        try:
            return mutants.tried(mutation)
        finally:
            idle.put(mutants)

    jobs = min(os.cpu_count() or 1, len(chosen))
    with ExitStack() as open_, ThreadPoolExecutor(jobs) as pool:
        for number in range(1, jobs):
            idle.put(open_.enter_context(closing(Mutants(folder / str(number)))))
        for found in pool.map(one, chosen):
            if not found.sound:
                print(_complaint(found), file=sys.stderr, flush=True)
            yield found


def _complaint(one: Found) -> str:
    said = [f"{one.mutation.name}: rooms {', '.join(one.rooms) or 'none'}"]
    said += [f"must be {one.mutation.room}"] if one.rooms != (one.mutation.room,) else []
    said += [f"not noticed by {', '.join(one.missed)}"] if one.missed else []
    said += [f"wrongly by {', '.join(one.wrongly)}"] if one.wrongly else []
    return "; ".join([*said, *filter(None, [one.fault])])


if __name__ == "__main__":
    raise SystemExit(main())
