"""Measures redaction: findings in texts that hold no secrets, throughput, and hostile texts.

    python benchmarks/redaction.py                       this repository, the standard library
    python benchmarks/redaction.py --folder /usr/share/doc    and the text files below a folder
    python benchmarks/redaction.py --peer PYTHON         detect-secrets too, in that interpreter
    python benchmarks/redaction.py --hostile             seconds for doubling sizes

Throughput is text by processor time. The peer looks at files line by line, as its users run it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import process_time

from mlx_tools.policy.redact import Redactor, find_secrets
from mlx_tools.policy.secret_kinds import TOKEN_KINDS

ROOT = Path(__file__).resolve().parent.parent
PEER = """
import json, sys
from time import process_time
from collections import Counter
from detect_secrets.core.scan import scan_file
from detect_secrets.settings import default_settings
kinds, size = Counter(), 0
with default_settings():
    begin = process_time()
    for name in json.load(sys.stdin):
        size += len(open(name, errors="replace").read())
        kinds.update(found.type for found in scan_file(name))
print(json.dumps([size, process_time() - begin, kinds]))
"""
HOSTILE = {
    "a letter": "a",
    "a name, a sign": "key=",
    "a name, a sign, a value": "key=a1b2c3 ",
    "prefixes of tokens": "".join(hint for kind in TOKEN_KINDS for hint in kind.hints),
    "beginnings of JWTs": "eyJ.",
    "headers": "Bearer a1 ",
    "first lines of keys": "-----BEGIN " + "PRIVATE KEY-----\n",
    "URLs without an end": "http://a:",
    "base64": "QUtJ",
    "base64 in lines": "QUtJ" * 19 + "\n",
    "URL escapes of URL escapes": "%25",
    "JSON escapes": "\\u0041",
}


def library() -> Iterator[Path]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts:
            yield path


def repository() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split("\0"):
        if (ROOT / name).is_file():
            yield ROOT / name


def texts_below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and b"\0" not in path.read_bytes()[:8000]:
            yield path


def ours(paths: list[Path], show: bool) -> tuple[int, float, Counter[str]]:
    size, seconds, kinds = 0, 0.0, Counter[str]()
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        begin = process_time()
        found = find_secrets(text)
        seconds += process_time() - begin
        size += len(text)
        kinds.update(one.kind for one in found)
        for one in found if show else ():
            line = text.count("\n", 0, one.start) + 1
            print(f"  {path.name}:{line}: {one.kind}: {text[one.start : one.end][:60]!r}")
    return size, seconds, kinds


def row(name: str, size: int, seconds: float, kinds: Counter[str]) -> None:
    mega = size / 1e6
    print(
        f"{name:32} {mega:6.2f} MB {mega / seconds:6.2f} MB/s {kinds.total():6} findings"
        f" {kinds.total() / mega:8.2f} per MB"
    )
    for kind, count in kinds.most_common():
        print(f"    {count:6} {kind}")


def texts(peer: str | None, folder: Path | None, show: bool) -> None:
    places = {"this repository": [*repository()], "the library": [*library()]}
    if folder:
        places[str(folder)] = [*texts_below(folder)]
    for name, paths in places.items():
        row(name, *ours(paths, show))
        if peer:
            done = subprocess.run(
                [peer, "-c", PEER],
                input=json.dumps([str(path) for path in paths]),
                capture_output=True,
                text=True,
                check=True,
            )
            size, seconds, kinds = json.loads(done.stdout)
            row(f"{name}, by detect-secrets", size, seconds, Counter(kinds))


def hostile(largest: int) -> None:
    sizes = [largest // 4, largest // 2, largest]
    redactor = Redactor()
    print(f"{'seconds for characters:':32}", *(f"{size:>9,}" for size in sizes))
    for name, unit in HOSTILE.items():
        taken = []
        for size in sizes:
            text = (unit * (size // len(unit) + 1))[:size]
            begin = process_time()
            redactor.redact(text)
            taken.append(process_time() - begin)
        print(f"{name:32}", *(f"{seconds:9.3f}" for seconds in taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer", help="an interpreter that has detect-secrets")
    parser.add_argument("--folder", type=Path, help="look at the text files below it, too")
    parser.add_argument("--show", action="store_true", help="print every finding")
    parser.add_argument("--hostile", action="store_true", help="hostile texts, of doubling sizes")
    parser.add_argument("--size", type=int, default=200_000, help="characters of the largest one")
    given = parser.parse_args()
    if given.hostile:
        hostile(given.size)
    else:
        texts(given.peer, given.folder, given.show)


if __name__ == "__main__":
    sys.exit(main())
