"""A session in words: what was asked, called, decided, seen and answered, in the order it happened.

Whatever a model, a tool or a file wrote is spelled so that no terminal obeys it, and indented below
a line of ours that says what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mlx_tools.cli.call_text import as_name, in_words, on_one_line
from mlx_tools.cli.output import beside, counted, cut
from mlx_tools.store import ListedSession, Standing
from mlx_tools.transcript import (
    PREVIEW_CHARS,
    AnswerRecord,
    ApprovalRecord,
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    CorrectionRecord,
    DecisionRecord,
    EditRecord,
    ExecutionRecord,
    Header,
    MendRecord,
    ObservationRecord,
    PauseRecord,
    Record,
    RepairRecord,
    ResumedRecord,
    StoppedRecord,
    SummaryRecord,
    UserRecord,
    dropped,
)

QUESTION_CHARS: Final = 60
_PREVIEW_LINES: Final = 8

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
    """The records as a conversation, each call under its key."""
    names = {r.call: r.name for r in records if isinstance(r, CallRecord)}
    repairs: dict[str, list[str]] = {}
    for record in records:
        if isinstance(record, RepairRecord) and record.call is not None:
            repairs.setdefault(record.call, []).append(in_words(record.name))
    mends: list[MendRecord] = []
    for record in records:
        match record:
            case Header() | RepairRecord():
                continue
            case MendRecord():
                mends.append(record)
                said = mended(record.kind, dropped(mends), record.put)
                yield "yellow", f"! {in_words(' '.join(said.split()))}"
            case CompletionRecord() | ResumedRecord():
                mends = []
                yield from _other(record, names)
            case CallRecord():
                yield from _call(record, repairs.get(record.call, []))
            case PauseRecord():
                yield "yellow", "the run waits for a person"
            case _:
                mends.clear()
                yield from _other(record, names)


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


def _call(record: CallRecord, repairs: Sequence[str]) -> Lines:
    notes = [f"repaired: {', '.join(repairs)}"] if repairs else []
    notes += ["it stands in an earlier observation"] if record.echoed else []
    noted = f"  ({'; '.join(notes)})" if notes else ""
    key = in_words(record.call)
    yield "bold", f"→ {key} {as_name(record.name)} {on_one_line(record.arguments)}{noted}"


def _other(record: Record, names: Mapping[str, str]) -> Lines:
    match record:
        case UserRecord():
            yield "", ""
            yield "bold", f"question{_at(record.at)}"
            yield from _text(record.content)
        case CompletionRecord():
            used = "" if record.context is None else f", a prompt of {record.context} tokens"
            yield "dim", f"· turn {in_words(str(record.turn))}{_thought(record)}{used}"
        case DecisionRecord():
            said = f"{record.decision} by {record.rule}: {record.reason}"
            yield "dim", f"  {in_words(record.call)} policy: {in_words(said)}"
        case EditRecord():
            key = in_words(record.call)
            yield "yellow", f"  {key} edited by a person: {on_one_line(record.arguments)}"
        case ResumedRecord():
            yield "dim", f"resumed{_at(record.at)}"
        case ApprovalRecord():
            word = "approved" if record.approved else "denied"
            word += " for the session" if record.scope == "session" else ""
            said = f" ({in_words(record.reason)})" if record.reason else ""
            yield "yellow", f"  {in_words(record.call)} {word} by a person{said}{_at(record.at)}"
        case ExecutionRecord():
            name = as_name(names.get(record.call, "?"))
            yield "dim", f"  {in_words(record.call)} {name} starts{_at(record.at)}"
        case SummaryRecord():
            yield from _summary(record)
        case CompactedRecord():
            said = compacted(record.turns, len(record.observations), record.before, record.after)
            yield "yellow", f"! {said}{_at(record.at)}"
            if record.content:
                yield from _text(record.content)
        case ObservationRecord():
            yield from _observation(record)
        case CorrectionRecord():
            yield "yellow", f"! {in_words(record.error.code)}: {in_words(record.error.message)}"
        case AnswerRecord():
            yield "bold", "answer"
            yield from _text(record.content)
            for source in record.sources:
                yield "dim", f"  source {on_one_line(source)}"
        case StoppedRecord():
            said = f": {in_words(record.message)}" if record.message else ""
            yield "yellow", f"stopped, {in_words(record.reason)}{said}"


def compacted(turns: int, observations: int, before: int | None, after: int | None) -> str:
    """Return what left the prompt, in words."""
    parts = [
        counted(number, what)
        for number, what in ((turns, "turn"), (observations, "observation"))
        if number
    ]
    tokens = "" if before is None or after is None else f", from {before} to {after} tokens"
    return f"the prompt was compacted: {' and '.join(parts) or 'nothing'} left out{tokens}"


def mended(kind: str, gone: str, put: str) -> str:
    """Return how a turn was mended, in words."""
    return f"mended ({kind}): {gone or 'nothing'} → {put or 'written anew'}"


def _summary(record: SummaryRecord) -> Lines:
    why = f": {in_words(record.problem)}" if record.problem else ""
    asked = counted(record.requests, "request")
    yield "dim", f"  {in_words(record.call)} its output summarised by the model, {asked}{why}"


def _observation(record: ObservationRecord) -> Lines:
    took = "" if record.duration_ms is None else f" {in_words(str(record.duration_ms))} ms"
    took = " (as before)" if record.cached else took
    begin = f"← {in_words(record.call)} {as_name(record.name)}{took}"
    if record.error is not None:
        yield "red", f"{begin} {in_words(record.error.code)}"
        yield from _text(record.error.message[:PREVIEW_CHARS])
        return
    content = record.content or ""
    size = record.output_size_chars if record.output_size_chars is not None else len(content)
    yield "green", f"{begin} {in_words(str(size))} characters"
    preview = content[:PREVIEW_CHARS].split("\n")
    yield from _text("\n".join(preview[:_PREVIEW_LINES]))
    if len(content) > PREVIEW_CHARS or len(preview) > _PREVIEW_LINES:
        yield "dim", "  …"


def _thought(record: CompletionRecord) -> str:
    return f", {len(record.reasoning)} characters of thought" if record.reasoning else ""


def _at(at: str) -> str:
    return f" at {in_words(at)}" if at else ""


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
