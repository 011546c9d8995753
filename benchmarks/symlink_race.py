"""Symbolic links swapped in while files are read, written and deleted: what leaves the folder.

    python benchmarks/symlink_race.py [--reads 100000] [--changes 100000] [--out FILE]

Another process puts, as fast as it can, links to files outside in the place of a file and of a
folder below a root, and takes them away again. Meanwhile files at these paths are read, written and
deleted: through the walk of the file tools, and, as often, as one does who checks a path (resolved,
below the root, no link) and then opens it. Counted is what came from outside and what landed there.
The folder lies in memory where the system has such a place, since every write is made durable.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlx_tools.store.changes import open_place, write_file
from mlx_tools.store.roots import PathAbsent, PathRefused, Root, RootName, WrongFileKind

SECRET = b"outside"
INSIDE = b"inside"
TARGETS = ("victim", "house/f")
MEMORY = Path("/dev/shm")


@dataclass
class Count:
    """The number of attempts, of successes, and of changes outside."""

    tried: int = 0
    done: int = 0
    leaked: int = 0
    seconds: float = 0.0


class Arena:
    """A root, what is outside, and the process that swaps links."""

    def __init__(self, base: Path) -> None:
        self.base = base.resolve()
        self.root = self.base / "root"
        self.outside = self.base / "outside"
        (self.root / "real").mkdir(parents=True)
        self.outside.mkdir()
        (self.root / "real" / "f").write_bytes(INSIDE)
        (self.root / "victim").write_bytes(INSIDE)
        self.restore()

    def restore(self) -> None:
        for entry in self.outside.iterdir():
            entry.unlink()
        for name in ("secret", "f"):
            (self.outside / name).write_bytes(SECRET)

    def touched(self) -> bool:
        """Return True if anything outside is not as it was; it is put back."""
        try:
            same = all((self.outside / name).read_bytes() == SECRET for name in ("secret", "f"))
        except OSError:
            same = False
        if same and sum(1 for _ in self.outside.iterdir()) == 2:
            return False
        self.restore()
        return True


def swap(base: Path) -> None:
    """Swaps until standard input ends, then prints how often."""
    root, outside = base / "root", base / "outside"
    victim, house, real = root / "victim", root / "house", root / "real"
    link, spare = root / "link", root / "spare"
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    rounds = 0
    print("ready", flush=True)
    while not over.is_set():
        rounds += 1
        link.symlink_to(outside / "secret")
        link.replace(victim)
        house.symlink_to(outside)
        spare.write_bytes(INSIDE)
        spare.replace(victim)
        house.unlink()
        real.rename(house)
        house.rename(real)
    print(rounds)


class Walk:
    """The file tools' way."""

    def __init__(self, root: Path) -> None:
        self.root = Root(RootName(str(root), writable=True))

    def read(self, path: str) -> bytes:
        fd = self.root.open_file(path.split("/"))
        try:
            return os.read(fd, 100)
        finally:
            os.close(fd)

    def write(self, path: str) -> None:
        with open_place(self.root, path.split("/"), {}) as place:
            write_file(place, b"written", new=False, expected=None)

    def delete(self, path: str) -> None:
        with open_place(self.root, path.split("/"), {}) as place:
            write_file(place, None, expected=None)


class Naive:
    """A check, and then the opening of what was checked."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _checked(self, path: str) -> Path:
        whole = self.root / path
        if whole.is_symlink() or not whole.resolve().is_relative_to(self.root):
            raise PathRefused("a link")
        return whole

    def read(self, path: str) -> bytes:
        return self._checked(path).read_bytes()

    def write(self, path: str) -> None:
        self._checked(path).write_bytes(b"written")

    def delete(self, path: str) -> None:
        self._checked(path).unlink()


def race(arena: Arena, way: Walk | Naive, reads: int, changes: int) -> dict[str, Count]:
    """Each operation so often, in turn at a path that is a link and at one below a link."""
    counts = {name: Count() for name in ("reads", "writes", "deletes")}

    def attempt(kind: str, call: Callable[[str], Any], path: str) -> None:
        count = counts[kind]
        count.tried += 1
        result = None
        with contextlib.suppress(PathRefused, WrongFileKind, PathAbsent, OSError):
            result = call(path)
            count.done += 1
        count.leaked += result == SECRET if kind == "reads" else arena.touched()

    for kind, call, times in (("reads", way.read, reads), ("changes", None, changes)):
        started = time.perf_counter()
        for turn in range(times):
            path = TARGETS[turn // 2 % 2]
            if call is not None:
                attempt(kind, call, path)
            elif turn % 2:
                attempt("deletes", way.delete, path)
            else:
                attempt("writes", way.write, path)
        taken = round(time.perf_counter() - started, 1)
        for name in ("reads",) if call else ("writes", "deletes"):
            counts[name].seconds = taken
    return counts


def measure(reads: int, changes: int) -> dict[str, Any]:
    """The counts of both ways, and how often links were swapped meanwhile."""
    found: dict[str, Any] = {}
    for name in ("walk", "check, then open"):
        with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            arena = Arena(Path(folder))
            command = [sys.executable, __file__, "--swap", str(arena.base)]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as other:
                other.stdout and other.stdout.readline()  # it has begun
                way = Walk(arena.root) if name == "walk" else Naive(arena.root)
                counts = race(arena, way, reads, changes)
                swaps, _ = other.communicate()
            litter = [path.name for path in arena.root.rglob(".mlx-tools-*")]
            found[name] = {
                **{kind: asdict(count) for kind, count in counts.items()},
                "swaps": int(swaps),
                "litter": len(litter),
            }
    return found


def table(found: dict[str, Any]) -> str:
    lines = ["| | | tried | done | outside |", "| --- | --- | --- | --- | --- |"]
    for name, counts in found.items():
        for kind in ("reads", "writes", "deletes"):
            count = counts[kind]
            share = f"{count['leaked'] / count['tried']:.2%}" if count["tried"] else "-"
            lines.append(
                f"| {name} | {kind} | {count['tried']} | {count['done']} | "
                f"{count['leaked']} ({share}) |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reads", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=100_000, help="writes and deletes together")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--swap", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.swap is not None:
        swap(options.swap)
        return
    found = measure(options.reads, options.changes)
    print(table(found))
    for name, counts in found.items():
        print(f"{name}: links were swapped {counts['swaps']} times")
    if options.out is not None:
        head = {
            "command": f"python benchmarks/symlink_race.py --reads {options.reads} "
            f"--changes {options.changes}",
            "date": datetime.now(UTC).date().isoformat(),
            "machine": {
                "system": platform.system(),
                "python": platform.python_version(),
                "cores": os.cpu_count(),
            },
        }
        options.out.write_text(json.dumps(head | {"found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
