"""Quality and speed of the knowledge base, beside grep and two other indexes.

    python benchmarks/kb_recall.py [--docs DIR] [--git-docs DIR] [--out FILE]

Of two collections: *python*, the source of Python's standard library and the HTML of its
documentation; and *git*, the HTML of git's. The documentations are in the folders DIR, or in the
packages ``pythonX.Y-doc`` and ``git-doc`` of a Debian system, which are fetched and unpacked, not
installed. The questions, in ``kb_questions.json``, are as a person would ask, each with the files
that answer it, written before they were first asked. Those of the set *tune* were used to choose
the weights of the knowledge base, the others only to report.

Each index is built and asked in a process of its own. The other indexes get the same text of each
file, as one document, with its title and path. ``grep`` ranks files by how many of a question's
words they hold, then by lines that hold one. Each question is asked once more with its longest word
misspelled.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
QUESTIONS = HERE / "kb_questions.json"
PEERS = HERE / "kb_peers.txt"
ENGINES = ("mlx-tools", "tantivy", "bm25s", "grep")
DEPTH = 10

Ask = Callable[[str], list[str]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the files ----------------------------------------------------------------------------------


def gather(corpus: Path, of: str, docs: Path | None) -> None:
    """The files of a collection, below ``corpus``."""
    if of == "python":
        standard = Path(sysconfig.get_paths()["stdlib"])
        without = {"site-packages", "dist-packages", "__pycache__"}
        found = standard.rglob("*.py")
        sources = (p for p in found if not without & {*p.relative_to(standard).parts})
        copy(sources, standard, corpus / "stdlib")
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-doc"
        page, target = "library/index.html", corpus / "docs"
    else:
        package, page, target = "git-doc", "git-stash.html", corpus
    with TemporaryDirectory() as made:
        index = next((docs or fetched(package, Path(made))).rglob(page))
        folder = index.parents[page.count("/")]
        copy(folder.rglob("*.html"), folder, target)
    for path in corpus.rglob("*"):
        os.utime(path, (1e9, 1e9))


def copy(files: Iterable[Path], folder: Path, target: Path) -> None:
    for path in sorted(files):
        if path.is_file():
            copied = target / path.relative_to(folder)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)


def fetched(package: str, folder: Path) -> Path:
    """The files of a Debian package."""
    say(f"fetching {package}")
    subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
    (archive,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", str(archive), str(folder / "doc")], check=True)
    return folder / "doc"


# --- the engines --------------------------------------------------------------------------------


def documents(corpus: Path) -> Iterator[tuple[str, str, str]]:
    """Path, title and text of every file, as the knowledge base reads them."""
    from mlx_tools.plugins.kb.documents import UnreadableFile, read_document

    for path in sorted(p for p in corpus.rglob("*") if p.is_file()):
        try:
            document = read_document(path.name, path.read_bytes())
        except UnreadableFile:
            continue
        yield str(path.relative_to(corpus)), document.title, document.text


def knowledge_base(corpus: Path, folder: Path) -> Ask:
    from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase

    base = KnowledgeBase(folder / "kb.sqlite3")
    base.add([corpus])

    def ask(question: str) -> list[str]:
        hits = base.search(question, limit=DEPTH)
        return [str(Path(hit.path).relative_to(corpus)) for hit in hits]

    return ask


def tantivy_index(corpus: Path, folder: Path) -> Ask:
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("path", stored=True, tokenizer_name="en_stem")
    for name in ("title", "text"):
        builder.add_text_field(name, stored=False, tokenizer_name="en_stem")
    index = tantivy.Index(builder.build(), path=str(folder))
    writer = index.writer(heap_size=128_000_000, num_threads=1)
    for path, title, text in documents(corpus):
        writer.add_document(tantivy.Document(path=path, title=title, text=text))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def ask(question: str) -> list[str]:
        words = " ".join(re.findall(r"\w+", question))
        query, _ = index.parse_query_lenient(words, ["title", "path", "text"])
        hits = searcher.search(query, DEPTH).hits
        return [searcher.doc(address)["path"][0] for _, address in hits]

    return ask


def bm25s_index(corpus: Path, folder: Path) -> Ask:
    import bm25s

    found = list(documents(corpus))
    words = [f"{title}\n{path}\n{text}" for path, title, text in found]
    index = bm25s.BM25()
    index.index(bm25s.tokenize(words, stopwords="en", show_progress=False), show_progress=False)
    index.save(str(folder))
    paths = [path for path, _, _ in found]
    del found, words

    def ask(question: str) -> list[str]:
        tokens = bm25s.tokenize(question, stopwords="en", show_progress=False)
        numbers, _ = index.retrieve(tokens, k=DEPTH, show_progress=False)
        return [paths[int(number)] for number in numbers[0]]

    return ask


def plain_grep(corpus: Path, folder: Path) -> Ask:
    from mlx_tools.prompt import is_common

    known: dict[str, dict[str, int]] = {}

    def lines(word: str) -> dict[str, int]:
        if word not in known:
            command = ["grep", "-rciwF", "--", word, "."]
            done = subprocess.run(command, cwd=corpus, capture_output=True, text=True, check=False)
            pairs = (line.rpartition(":") for line in done.stdout.splitlines())
            known[word] = {path[2:]: int(count) for path, _, count in pairs if count != "0"}
        return known[word]

    def ask(question: str) -> list[str]:
        words = {w for w in re.findall(r"\w+", question.lower()) if not is_common(w)}
        held: Counter[str] = Counter()
        total: Counter[str] = Counter()
        for word in words:
            for path, count in lines(word).items():
                held[path] += 1
                total[path] += count
        return sorted(held, key=lambda path: (-held[path], -total[path], path))[:DEPTH]

    return ask


MAKE: dict[str, Callable[[Path, Path], Ask]] = {
    "mlx-tools": knowledge_base,
    "tantivy": tantivy_index,
    "bm25s": bm25s_index,
    "grep": plain_grep,
}


# --- measuring ----------------------------------------------------------------------------------


def peak_mb() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (1e6 if sys.platform == "darwin" else 1e3)


def spent() -> float:
    """Processor time of this process and of those it has run."""
    own, others = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def questions_of(of: str) -> list[dict[str, Any]]:
    found = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    return [question for question in found if question["of"] == of]


def one(engine: str, corpus: Path, of: str) -> dict[str, Any]:
    """The time of an engine, and the rank of the first file that answers each question."""
    questions = questions_of(of)
    with TemporaryDirectory() as made:
        folder = Path(made)
        began, worked = time.perf_counter(), time.process_time()
        ask = MAKE[engine](corpus, folder)
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        memory, size = peak_mb(), size_mb(folder)
        took: dict[str, list[float]] = {}
        places: dict[str, list[int | None]] = {}
        for question in questions:
            text = question["question"]
            for way, asked in (("", text), ("slip_", misspelled(text))):
                started = spent()
                found = ask(asked)
                took.setdefault(way, []).append(spent() - started)
                right = (n for n, path in enumerate(found) if path in question["files"])
                places.setdefault(way, []).append(next(right, None))
        return {
            "seconds": round(seconds, 1),
            "cpu_seconds": round(cpu, 1),
            "peak_mb": round(memory),
            "size_mb": round(size, 1),
            **{f"{way}query_ms": round(1000 * median(times), 1) for way, times in took.items()},
            **{f"{way}places": found for way, found in places.items()},
        }


def misspelled(question: str) -> str:
    """The question with two letters swapped in the midst of its longest word."""
    word = max(re.findall(r"\w+", question), key=len)
    at = len(word) // 2 - 1
    return question.replace(word, f"{word[:at]}{word[at + 1]}{word[at]}{word[at + 2 :]}")


def again(corpus: Path, folder: Path) -> dict[str, Any]:
    """A second add after a few changes: what was touched, and how long that took."""
    import sqlite3
    from contextlib import closing

    from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase

    base = KnowledgeBase(folder / "again.sqlite3")

    def rows() -> dict[str, int]:
        with closing(sqlite3.connect(base.path)) as sql, sql:
            return dict(sql.execute("SELECT path, id FROM file").fetchall())

    base.add([corpus])
    before = rows()
    began = time.process_time()
    base.add([corpus])
    untouched = time.process_time() - began
    same = rows() == before
    files = sorted(path for path in corpus.rglob("*.py") if path.is_file())
    for path in files[10:13]:
        path.write_text(path.read_text(encoding="utf-8", errors="replace") + "\n# more\n")
    files[20].unlink()
    (corpus / "stdlib" / "one_more.py").write_text("# new\n")
    began = time.process_time()
    done = base.add([corpus])
    seconds = time.process_time() - began
    after = rows()
    kept = sum(1 for path, number in before.items() if after.get(path) == number)
    return {
        "files": len(before),
        "nothing_changed": {"seconds": round(untouched, 2), "rows_as_before": same},
        "five_changes": {
            "seconds": round(seconds, 2),
            "changed": done.changed_files,
            "added": done.added_files,
            "removed": done.removed,
            "unchanged": done.unchanged,
            "rows_as_before": kept,
        },
    }


def install(folder: Path) -> None:
    """The other engines, in a folder of their own."""
    what = ["install", "--quiet", "--target", str(folder), "--requirement", str(PEERS)]
    for installer in (["uv", "pip"], ["pip"]):
        command = [sys.executable, "-m", *installer, *what]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return
    raise SystemExit("neither uv nor pip could install what kb_peers.txt names")


def measure(of: str, docs: Path | None) -> dict[str, Any]:
    """The figures of all engines on one collection."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        corpus, peers = folder / "corpus", folder / "peers"
        gather(corpus, of, docs)
        install(peers)
        files = [path for path in corpus.rglob("*") if path.is_file()]
        found: dict[str, Any] = {
            "files": len(files),
            "corpus_mb": round(sum(path.stat().st_size for path in files) / 1e6, 1),
            "engines": {},
        }
        check(corpus, of)
        for engine in ENGINES:
            say(f"measuring {engine} on {of}")
            given = ["--engine", engine, "--corpus", str(corpus), "--of", of]
            search = os.pathsep.join([str(HERE.parent), str(peers)])
            environ = {**os.environ, "PYTHONPATH": search}
            done = subprocess.run(
                [sys.executable, __file__, *given],
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
                check=True,
            )
            found["engines"][engine] = json.loads(done.stdout)
        if of == "python":
            found["again"] = again(corpus, folder)
        return found


def check(corpus: Path, of: str) -> None:
    """Every answer is there."""
    for question in questions_of(of):
        if not any((corpus / path).is_file() for path in question["files"]):
            raise SystemExit(f"no file answers {question['question']!r} in this version of {of}")


# --- telling ------------------------------------------------------------------------------------


def of_set(places: Sequence[int | None], of: str, name: str) -> list[int | None]:
    """The places of the questions of one set."""
    pairs = zip(places, questions_of(of), strict=True)
    return [place for place, question in pairs if question["set"] == name]


def share(places: Sequence[int | None], within: int) -> str:
    right = sum(1 for place in places if place is not None and place < within)
    return f"{right} of {len(places)}"


def table(found: dict[str, Any]) -> str:
    """The ranks of the right files, and the times of indexing and asking, by engine."""
    heads = "python: first | in 5 | git: first | in 5 | misspelled: in 5 | index | memory | on disk"
    lines = [f"| | {heads} | a question |", "| --- |" + " --- |" * 9]
    for name in ENGINES:
        got = found["python"]["engines"][name]
        python = of_set(got["places"], "python", "report")
        git = of_set(found["git"]["engines"][name]["places"], "git", "tune")
        indexed = name != "grep"
        cells = (
            *(share(places, count) for places in (python, git) for count in (1, 5)),
            share(got["slip_places"], 5),
            f"{got['cpu_seconds']:.0f} s" if indexed else "",
            f"{got['peak_mb']} MB" if indexed else "",
            f"{got['size_mb']:.0f} MB" if indexed else "",
            f"{got['query_ms']:.0f} ms" if got["query_ms"] >= 1 else "under 1 ms",
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--docs", type=Path, help="the folder of Python's documentation in HTML")
    parser.add_argument("--git-docs", type=Path, help="the folder of git's documentation in HTML")
    parser.add_argument("--out", type=Path, help="write the figures here")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--of", choices=("python", "git"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(json.dumps(one(options.engine, options.corpus, options.of)))
        return
    results: dict[str, Any] = {
        "command": "python benchmarks/kb_recall.py",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "python": sys.version.split()[0],
        "found": {
            "python": measure("python", options.docs),
            "git": measure("git", options.git_docs),
        },
    }
    if options.out:
        text = json.dumps(results, indent=1)
        flat = re.sub(r"\[[^\[\]{}]*\]", lambda m: " ".join(m[0].split()), text)
        options.out.write_text(flat + "\n", encoding="utf-8")
    print(table(results["found"]))


if __name__ == "__main__":
    main()
