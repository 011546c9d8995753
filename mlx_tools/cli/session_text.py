"""A session in words: what was asked, called, decided, seen and answered, in the order it happened.

Whatever a model, a tool or a file wrote is spelled so that no terminal obeys it, and indented below
a line of ours that says what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from mlx_tools.cli.call_text import as_name, in_words, on_one_line
from mlx_tools.cli.output import beside, counted, cut
from mlx_tools.golden import steps_of
from mlx_tools.store import ListedSession, Standing
from mlx_tools.transcript import PREVIEW_CHARS, Record

QUESTION_CHARS: Final = 60
_PREVIEW_LINES: Final = 8
_COLOURS: Final = {
    **dict.fromkeys(("user", "call", "answer"), "bold"),
    **dict.fromkeys(("model", "policy", "host"), "dim"),
    **dict.fromkeys(("person", "end"), "yellow"),
    "tool": "green",
}

Lines = Iterator[tuple[str, str]]
"""Colours (`mlx_tools.cli.output.COLOURS`, or none) and lines."""


def row(listed: ListedSession, columns: int | None = None) -> str:
    """A session on one line: id, state, model, what it was asked, and what waits.

    Of a terminal with so many ``columns`` it takes more lines, where it must.
    """
    known = listed.standing
    about = gist(known)
    if known.pending:
        about += f"  ({counted(len(known.pending), 'approval')} due)"
    if known.in_doubt:
        about += f"  ({counted(len(known.in_doubt), 'call')} in doubt)"
    model = cut(in_words(known.model or "-"), 20)
    head = f"{listed.session:<24}  {known.state:<11}  {model:<20} "
    return beside(head, about, columns).rstrip()


def gist(known: Standing) -> str:
    """Return what a session is about, cut to fit a line."""
    if known.state == "damaged":
        return in_words(known.reason)
    if not known.question and known.first_call:
        return f"a call of {cut(as_name(known.first_call), QUESTION_CHARS)}, without a model"
    return cut(in_words(" ".join(known.question.split())), QUESTION_CHARS)


def title(listed: ListedSession) -> Lines:
    """Return what is known of a session as a whole."""
    known = listed.standing
    reason = f" ({in_words(known.reason)})" if known.reason else ""
    yield "bold", f"session {listed.session}: {known.state}{reason}"
    yield "dim", f"made {in_words(known.created) or '-'}, model {in_words(known.model or '-')}"
    yield "dim", f"transcript {in_words(str(listed.path))}"


def conversation(records: Sequence[Record]) -> Lines:
    """The records as a conversation, a step after the other."""
    for step in steps_of(records):
        if step.kind == "setup":
            continue
        if step.kind == "user":
            yield "", ""
        notes = [*step.notes, *([f"at {step.at}"] if step.at else [])]
        line = f"{step.label} {step.title}".strip() + (f" ({', '.join(notes)})" if notes else "")
        line += f": {cut(step.words, PREVIEW_CHARS)}" if step.words else ""
        yield "red" if step.bad else _COLOURS.get(step.kind, ""), in_words(line)
        for block in step.blocks:
            if block.aside:
                continue
            lines = block.text.split("\n")
            if block.fold:
                lines = block.text[:PREVIEW_CHARS].split("\n")[:_PREVIEW_LINES]
            yield from _text("\n".join(lines))
            if block.fold or block.left_out:
                yield "dim", f"  … {block.fold or f'{block.left_out} characters more'}"


def waiting(known: Standing) -> Lines:
    """The calls that a person must decide about, each with what an approval must carry."""
    for call in known.pending:
        yield "", ""
        yield "bold", f"an approval is due for {in_words(call.call_id)} {as_name(call.name)}"
        yield "", f"  {on_one_line(call.arguments)}"
        yield "", f"  digest {in_words(call.digest)}"
        yield "", f"  until {in_words(call.expires_at)}"
    for key in known.in_doubt:
        yield "yellow", f"{in_words(key)} is in doubt: it was started, and may have done its work"


def _text(text: str) -> Lines:
    for line in text.split("\n"):
        yield "", f"  {in_words(line.expandtabs(4))}"


def as_json(listed: ListedSession) -> dict[str, Any]:
    """A session as ``sessions list --json`` prints it: every key, always."""
    known = listed.standing
    return {
        "session": listed.session,
        "created": known.created,
        "state": known.state,
        "reason": known.reason or None,
        "question": known.question,
        "questions": known.questions,
        "model": known.model,
        "pending": [call.to_json() for call in known.pending],
        "in_doubt": list(known.in_doubt),
        "size_bytes": listed.size,
        "transcript": str(listed.path),
    }
