"""`mlx-tools kb`: add files to the knowledge base, search it, list it, remove from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins

from mlx_tools.cli import inputs
from mlx_tools.cli.options import AsJson, AsJsonLines, Yes, argument, option
from mlx_tools.cli.output import (
    LINES,
    PROSE,
    amount,
    complain,
    count_noun,
    for_terminal,
    note,
    print_json,
    print_prose,
    print_row,
    print_text,
    progress_bar,
)
from mlx_tools.cli.root import Interrupted
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED
from mlx_tools.toolbox import (
    BINARY,
    DEFAULT_CORPUS,
    DEFAULT_LIMIT,
    MAX_LIMIT,
    AddReport,
    Hit,
    KnowledgeBase,
)

app = typer.Typer(add_completion=False)

_TOLD = 10
"""Files that could not be read that are named one by one."""


@app.command()
def add(
    path_arguments: Annotated[list[str], argument("PATH…", "Files and folders.")],
    corpus: Annotated[
        str, option("--corpus NAME", "The corpus, a collection with a name, to add them to.")
    ] = DEFAULT_CORPUS,
    as_json: AsJson = False,
) -> None:
    """Take in files and folders; what has not changed is left as it is."""
    try:
        with progress_bar("reading") as report:
            done = KnowledgeBase().add(
                path_arguments, corpus, on_progress=lambda n, total, _: report(n, total)
            )
    except KeyboardInterrupt:
        complain("what was taken in is kept; adding again goes on", kind="interrupted")
        raise Interrupted from None
    named = {str(Path(one).resolve()) for one in path_arguments}
    told = [one for one in done.skipped if one.reason != BINARY or one.path in named]
    binary = sum(1 for one in done.skipped if one.reason == BINARY)
    if as_json:
        print_json(to_builtins(done))
    else:
        print_text(_summary(done, binary))
    for one in told[:_TOLD]:
        complain(f"{one.path}: {one.reason}", kind="skipped")
    if len(told) > _TOLD:
        complain(f"{len(told) - _TOLD} more (--json names them)", kind="skipped")


@app.command()
def search(
    words: Annotated[list[str], argument("QUERY…", "What to look for; - reads it.")],
    corpus: Annotated[
        str | None, option("--corpus NAME", "The corpus to search; without it all of them.")
    ] = None,
    limit: Annotated[
        int, option("--limit N", "How many passages at most.", min=1, max=MAX_LIMIT)
    ] = DEFAULT_LIMIT,
    as_json: AsJsonLines = False,
) -> None:
    """Find passages that answer a question in plain words."""
    query = inputs.as_question(" ".join(words))
    base = KnowledgeBase()
    hits = base.search(query, corpus, limit)
    for number, hit in enumerate(hits, start=1):
        if as_json:
            print_json({"n": number, "location": hit.path, **to_builtins(hit)})
            continue
        print_prose(f"{number}  {hit.name}", "   ", colour="bold")
        print_text(f"   {_place(hit)}", colour="dim")
        print_prose("".join(f"   | {line}\n" for line in hit.snippet.split("\n")), "   : ")
    if not hits:
        empty = not base.corpora()
        why = "nothing was added yet: mlx-tools kb add PATH" if empty else "nothing matches"
        note(why)


@app.command(name="list")
def list_all(as_json: AsJsonLines = False) -> None:
    """List the corpora, the collections that files were added to."""
    corpora = KnowledgeBase().corpora()
    for one in corpora:
        if as_json:
            known = to_builtins(one)
            print_json({("size_bytes" if key == "size" else key): known[key] for key in known})
        else:
            files, passages = count_noun(one.files, "file"), count_noun(one.passages, "passage")
            head = f"{one.name:<20} {files:>10} {passages:>14} {amount(one.size):>10}"
            print_row(head, f" {one.changed}")
    if not corpora:
        note("nothing was added yet: mlx-tools kb add PATH")


@app.command()
def remove(corpus: Annotated[str, argument("CORPUS", "The corpus.")], yes: Yes = False) -> int:
    """Remove a corpus; the files themselves stay where they are."""
    base = KnowledgeBase()
    files = next((one.files for one in base.corpora() if one.name == corpus), None)
    if files is not None and not _agreed(f"the corpus {corpus} ({count_noun(files, 'file')})", yes):
        return EXIT_STOPPED
    with progress_bar("removing") as report:
        removed = base.remove(corpus, on_progress=lambda n, total, _: report(n, total))
    print_text(f"{corpus}: {count_noun(removed, 'file')} removed from the knowledge base")
    return EXIT_OK


@app.command()
def forget(
    path: Annotated[Path, argument("PATH", "A file, or a folder with all below it.")],
    yes: Yes = False,
) -> int:
    """Remove a file from the knowledge base; the file itself stays where it is."""
    base = KnowledgeBase()
    found = base.forget(path, dry_run=True)
    what = found[0] if len(found) == 1 else f"{count_noun(len(found), 'file')} below {path}"
    if not _agreed(what, yes):
        return EXIT_STOPPED
    removed = base.forget(path)
    print_text(f"{count_noun(len(removed), 'file')} removed from the knowledge base")
    return EXIT_OK


def _agreed(subject: str, yes: bool) -> bool:
    question = f"Remove {subject} from the knowledge base?"
    return inputs.confirm(question, yes, warning="nothing was removed")


def _place(hit: Hit) -> str:
    """Where it stands, on one line, whatever the file is called."""
    path = for_terminal(hit.path, keep=PROSE.strip(LINES))
    if hit.page is not None:
        return f"{path}, page {hit.page}"
    return path if hit.snippet_line is None else f"{path}:{hit.snippet_line}"


def _summary(done: AddReport, binary: int) -> str:
    parts = [f"{done.added} added", f"{done.changed} changed", f"{done.unchanged} unchanged"]
    parts.append(f"{done.removed} removed")
    others = len(done.skipped) - binary
    if others:
        parts.append(f"{others} not readable")
    if binary:
        parts.append(f"{binary} no text")
    return f"{done.corpus}: {', '.join(parts)}"
