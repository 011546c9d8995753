"""`mlx-tools kb`: adds, searches, lists and removes files of the knowledge base."""

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
    escape_for_terminal,
    note,
    print_json,
    print_prose,
    print_row,
    print_text,
    progress_bar,
)
from mlx_tools.cli.root import Interrupted
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED
from mlx_tools.plugins.kb.documents import BINARY
from mlx_tools.plugins.kb.knowledge_base import (
    DEFAULT_CORPUS,
    DEFAULT_LIMIT,
    MAX_LIMIT,
    AddReport,
    KnowledgeBase,
)
from mlx_tools.plugins.kb.search import Hit

app = typer.Typer(add_completion=False)

_MAX_NAMED = 10
"""Skipped files that are named one by one."""


@app.command()
def add(
    path_arguments: Annotated[list[str], argument("PATH…", "Files and folders.")],
    corpus: Annotated[
        str, option("--corpus NAME", "The corpus, a collection with a name, to add them to.")
    ] = DEFAULT_CORPUS,
    as_json: AsJson = False,
) -> None:
    """Add files and folders; unchanged files are not read again."""
    try:
        with progress_bar("reading") as report:
            result = KnowledgeBase().add(
                path_arguments, corpus, on_progress=lambda n, total, _: report(n, total)
            )
    except KeyboardInterrupt:
        complain("the files added so far are kept; add again to continue", kind="interrupted")
        raise Interrupted from None
    named_paths = {str(Path(item).resolve()) for item in path_arguments}
    skipped = [item for item in result.skipped if item.reason != BINARY or item.path in named_paths]
    binary = sum(1 for item in result.skipped if item.reason == BINARY)
    if as_json:
        print_json(to_builtins(result))
    else:
        print_text(_format_summary(result, binary))
    for item in skipped[:_MAX_NAMED]:
        complain(f"{item.path}: {item.reason}", kind="skipped")
    if len(skipped) > _MAX_NAMED:
        complain(f"{len(skipped) - _MAX_NAMED} more (--json names them)", kind="skipped")


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
        print_text(f"   {_format_place(hit)}", colour="dim")
        print_prose("".join(f"   | {line}\n" for line in hit.snippet.split("\n")), "   : ")
    if not hits:
        empty = not base.corpora()
        reason = "nothing was added yet: mlx-tools kb add PATH" if empty else "nothing matches"
        note(reason)


@app.command(name="list")
def list_all(as_json: AsJsonLines = False) -> None:
    """List the corpora, the collections that files were added to."""
    corpora = KnowledgeBase().corpora()
    for corpus_row in corpora:
        if as_json:
            fields = to_builtins(corpus_row)
            print_json({("size_bytes" if key == "size" else key): fields[key] for key in fields})
        else:
            files, passages = (
                count_noun(corpus_row.files, "file"),
                count_noun(corpus_row.passages, "passage"),
            )
            head = f"{corpus_row.name:<20} {files:>10} {passages:>14} {amount(corpus_row.size):>10}"
            print_row(head, f" {corpus_row.changed_at}")
    if not corpora:
        note("nothing was added yet: mlx-tools kb add PATH")


@app.command()
def remove(corpus: Annotated[str, argument("CORPUS", "The corpus.")], yes: Yes = False) -> int:
    """Remove a corpus; the files themselves stay where they are."""
    base = KnowledgeBase()
    files = next(
        (corpus_row.files for corpus_row in base.corpora() if corpus_row.name == corpus), None
    )
    if files is not None and not _confirm_removal(
        f"the corpus {corpus} ({count_noun(files, 'file')})", yes
    ):
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
    paths = base.forget(path, dry_run=True)
    subject = paths[0] if len(paths) == 1 else f"{count_noun(len(paths), 'file')} below {path}"
    if not _confirm_removal(subject, yes):
        return EXIT_STOPPED
    removed = base.forget(path)
    print_text(f"{count_noun(len(removed), 'file')} removed from the knowledge base")
    return EXIT_OK


def _confirm_removal(subject: str, yes: bool) -> bool:
    question = f"Remove {subject} from the knowledge base?"
    return inputs.confirm(question, yes, warning="nothing was removed")


def _format_place(hit: Hit) -> str:
    """Return the place of a passage on one line, with an escaped path."""
    path = escape_for_terminal(hit.path, keep=PROSE.strip(LINES))
    if hit.page is not None:
        return f"{path}, page {hit.page}"
    return path if hit.snippet_line is None else f"{path}:{hit.snippet_line}"


def _format_summary(done: AddReport, binary: int) -> str:
    parts = [
        f"{done.added_files} added",
        f"{done.changed_files} changed",
        f"{done.unchanged} unchanged",
    ]
    parts.append(f"{done.removed} removed")
    unreadable = len(done.skipped) - binary
    if unreadable:
        parts.append(f"{unreadable} not readable")
    if binary:
        parts.append(f"{binary} no text")
    return f"{done.corpus}: {', '.join(parts)}"
