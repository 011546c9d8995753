"""A run's records as the steps of a conversation, for a page and for a terminal.

The texts in a step are foreign, so the code that shows them must escape them. For HTML
`mlx_tools.app.templates` does this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from mlx_tools.messages import ErrorInfo, replace
from mlx_tools.paths import package_file
from mlx_tools.transcript import (
    EMPTY_ANSWER,
    AnswerRecord,
    ApprovalRecord,
    CallRecord,
    CarriedRecord,
    CompactedRecord,
    CompletionRecord,
    CorrectionRecord,
    DecisionRecord,
    EditRecord,
    ExecutionRecord,
    ExtendedRecord,
    GoldenRecord,
    Header,
    MendRecord,
    NestedRecord,
    ObservationRecord,
    PauseRecord,
    Record,
    RepairRecord,
    ResumedRecord,
    StoppedRecord,
    SummaryRecord,
    UserRecord,
    drop_advice,
    dropped_text,
    stopped_in_words,
)
from mlx_tools.unseen import FOR_PAGES, as_number, escape_unseen

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_CHARS: Final = 20_000
"""Characters of one text that are shown, most from its beginning and some from its end.

A choice: about ten screens of a terminal. The whole text is in the transcript.
"""

TAIL: Final = 4_000
"""Characters that are shown from the end of a text that is too long."""
SHORT_CHARS: Final = 700
SHORT_LINES: Final = 14
"""Lines of a text that is shown open. Longer texts are folded.

A choice: about half a screen.
"""

ON_ONE_LINE: Final = 72
"""Characters of arguments that are shown on one line."""

Kind = Literal[
    "setup", "user", "model", "call", "policy", "person", "tool", "host", "answer", "end"
]
"""The author or the kind of a step, which decides its look."""


class Block(Struct, frozen=True):
    """A text of a step."""

    text: str
    prose: bool = False
    """True for text that the model wrote for a person."""
    fold: str = ""
    """The label of a folded text. Empty for an open text."""
    prefix: str = ""
    """Text that the host wrote in front of it."""
    left_out: int = 0
    """Characters that are left out before ``tail``."""
    tail: str = ""
    is_aside: bool = False
    """True for details that few readers need."""


@dataclass(slots=True)
class ReportStep:
    """One step."""

    kind: Kind
    label: str
    title: str = ""
    notes: Sequence[str] = ()
    """Shown beside the title."""
    words: str = ""
    """Shown below the title."""
    blocks: Sequence[Block] = ()
    bad: bool = False
    """True if something went wrong."""
    timestamp: str = ""
    call: str = ""
    """The call that the step is about."""
    whole: str = ""
    """The complete text of a person or the model."""


def build_steps(records: Sequence[Record], *, advice: bool = False) -> list[ReportStep]:
    """Return the steps of a run.

    With ``advice`` they say what a person at a terminal can do; a page or a report has no terminal.
    """
    steps: list[ReportStep] = []
    calls: dict[str, ReportStep] = {}
    mends: list[MendRecord] = []
    for record in records:
        # A repair belongs to its call, and is shown there.
        if isinstance(record, RepairRecord) and (call := calls.get(record.call or "")) is not None:
            call.notes = [*call.notes, f"repaired: {record.name}"]
            continue
        if isinstance(record, GoldenRecord) and not record.expect:
            continue
        step = _make_step(record)
        if advice and isinstance(record, StoppedRecord):
            step.words = _join_message(record.message, stopped_in_words([record]))
        mends = [*mends, record] if isinstance(record, MendRecord) else []
        if isinstance(record, MendRecord):
            step.words = (
                f"{dropped_text(mends) or 'nothing'} → {record.replacement or 'written anew'}"
            )
        step.timestamp = getattr(record, "recorded_at", "")
        said = record.record if isinstance(record, CarriedRecord) else record
        step.call = getattr(said, "call", None) or ""
        if isinstance(said, UserRecord | AnswerRecord):
            step.whole = said.content
        if isinstance(record, CallRecord):
            calls[record.call] = step
        steps.append(step)
    return steps


def fold_text(text: str, name: str = "", *, is_aside: bool = False) -> Block:
    """Return a text as a block: folded if it is long, cut if it is very long."""
    lines = text.count("\n") + 1
    is_folded = is_aside or len(text) > SHORT_CHARS or lines > SHORT_LINES
    size = f"{len(text):,} characters" + (f", {lines:,} lines" if lines > 1 else "")
    fold = (f"{name}: {size}" if name else size) if is_folded else ""
    if len(text) <= MAX_CHARS:
        return Block(text, fold=fold, is_aside=is_aside)
    head, tail = text[: MAX_CHARS - TAIL], text[-TAIL:]
    return Block(head, fold=fold, left_out=len(text) - MAX_CHARS, tail=tail, is_aside=is_aside)


# --- one step for each record ---


def _make_step(record: Record) -> ReportStep:
    match record:
        case CarriedRecord():
            step = _make_step(record.record)
            return replace(step, notes=[*step.notes, "from before"])
        case Header() | GoldenRecord() | UserRecord():
            return _make_beginning(record)
        case CompletionRecord():
            return _make_completion(record)
        case MendRecord():
            return ReportStep("host", "Mended", record.kind)
        case RepairRecord():
            return ReportStep("call", "Repair", record.name)
        case SummaryRecord():
            lines = (f"[from {p.get('offset')}] {as_text(p.get('summary'))}" for p in record.parts)
            blocks = [fold_text("\n".join(lines))] if record.parts else []
            notes = _select_notes((record.problem, record.problem))
            label = f"Summary {record.call}"
            return ReportStep("model", label, "of a long output", notes, blocks=blocks)
        case CompactedRecord():
            counts = (("before", record.tokens_before), ("after", record.tokens_after))
            notes = [f"{count} tokens {moment}" for moment, count in counts if count is not None]
            removed = "\n".join(f"{call}: {text}" for call, text in record.observations.items())
            blocks = [fold_text(text) for text in (record.content, removed) if text]
            return ReportStep("host", "Compacted", record.reason, notes, blocks=blocks)
        case CorrectionRecord():
            notes = _select_notes((record.forged, "an observation was forged"))
            return ReportStep(
                "host", "Corrected", notes=notes, words=_format_error(record.error), bad=True
            )
        case ResumedRecord():
            return ReportStep("host", "Resumed", "by another process")
        case ExtendedRecord():
            return ReportStep("person", "Extended", f"by {record.iterations} steps")
        case AnswerRecord() | StoppedRecord():
            return _make_end(record)
        case _:
            return _make_call_step(record)


def _make_beginning(record: Header | GoldenRecord | UserRecord) -> ReportStep:
    if isinstance(record, UserRecord):
        choice = record.tool_choice
        blocks = [
            _make_prose(record.content),
            *_make_asides(("Tools told of", "\n".join(record.tools))),
        ]
        notes = _select_notes((choice, f"tool choice: {choice}"))
        return ReportStep("user", "Question", notes=notes, blocks=blocks)
    if isinstance(record, GoldenRecord):
        blocks = _make_asides(("What is expected", record.expect))
        return ReportStep("setup", "Expected", blocks=blocks)
    count = len(record.tools)
    notes = [record.style, record.strategy, f"{count} tools" if count != 1 else "1 tool"]
    blocks = _make_asides(
        ("System prompt", record.system),
        ("Examples", _format_turns(record.examples)),
        ("Earlier messages", _format_turns(record.history)),
        ("Tools", record.tools),
        ("Policy", record.policy),
        ("Limits", record.limits),
    )
    return ReportStep("setup", "Setup", record.model or "", notes, blocks=blocks)


def _make_completion(record: CompletionRecord) -> ReportStep:
    reason, tokens = record.finish_reason, record.usage.completion_tokens
    notes = _select_notes(
        (True, f"turn {record.turn}"),
        (reason == "length", "cut off by its limit"),
        (reason not in (None, "stop", "length"), f"ended by {reason}"),
        (record.strategy != "free", record.strategy),
        (record.context is not None, f"a prompt of {record.context} tokens"),
        (tokens is not None, f"{tokens} tokens"),
    )
    prefix, text = record.prefix, record.text
    if record.strategy == "guided":
        text = text.removeprefix(prefix)  # here the text includes the host's part
    blocks = _make_asides(("Thought", record.reasoning))
    if prefix or text:
        blocks.append(replace(fold_text(text, "Text"), prefix=prefix, is_aside=True))
    blocks += _make_asides(("Left unread", "\n".join(record.dropped)))
    if record.prompt is not None:
        title = "Prompt, what is added to it" if record.shared_prefix_chars else "Prompt"
        blocks.append(fold_text(record.prompt, title, is_aside=True))
    words, bad = "" if prefix or text else "nothing", record.error is not None
    words = words if record.error is None else _format_error(record.error)
    return ReportStep(
        "model", "Model wrote", "", [*notes, *_format_duration(record)], words, blocks, bad
    )


def _join_message(message: str, words: str) -> str:
    """Return the words about an end, after its recorded message if they leave it out."""
    return words if message in words else f"{message}\n{words}"


def _make_end(record: AnswerRecord | StoppedRecord) -> ReportStep:
    if isinstance(record, StoppedRecord):
        waiting = _select_notes((record.waiting_for, f"waiting for the {record.waiting_for}"))
        blocks = [fold_text(record.partial, "What had come")] if record.partial else []
        words = stopped_in_words([record], advice=False)
        words = _join_message(drop_advice(record.message), words)
        return ReportStep("end", "Stopped", record.reason, waiting, words, blocks, bad=True)
    notes = _select_notes(
        (record.bare_text, "plain text"),
        (record.truncated, "cut off since it repeated itself" if record.repeated else "cut off"),
        (record.call_like, "looks like a call"),
    )
    blocks = [_make_prose(record.content)]
    words = "" if record.content.strip() else EMPTY_ANSWER
    if record.sources:
        blocks.append(fold_text(as_json(record.sources, indent=2), "Sources"))
    return ReportStep("answer", "Answer", notes=notes, words=words, blocks=blocks)


def _make_call_step(
    record: CallRecord
    | DecisionRecord
    | PauseRecord
    | EditRecord
    | ApprovalRecord
    | ExecutionRecord
    | NestedRecord
    | ObservationRecord,
) -> ReportStep:
    match record:
        case CallRecord():
            notes = _select_notes((record.echoed, "copied out of an observation"))
            blocks = _make_argument_blocks(record.arguments)
            return ReportStep("call", f"Call {record.call}", record.name, notes, blocks=blocks)
        case DecisionRecord():
            code, word = record.code, record.decision
            notes = _select_notes((record.rule, f"rule {record.rule}"), (code, str(code)))
            label, bad = f"Policy {record.call}", word == "deny"
            return ReportStep("policy", label, word, notes, record.reason, bad=bad)
        case PauseRecord():
            return ReportStep("person", "Waits", "for a person", [", ".join(record.calls)])
        case EditRecord():
            blocks = _make_argument_blocks(record.arguments)
            return ReportStep("person", f"Person {record.call}", "edited the call", blocks=blocks)
        case ApprovalRecord():
            decision = "approved" if record.approved else "refused"
            notes = _select_notes((record.scope == "session", "for the session"))
            label, bad = f"Person {record.call}", not record.approved
            return ReportStep("person", label, decision, notes, record.reason, bad=bad)
        case ExecutionRecord():
            notes = _select_notes((record.mutates, "can change things"))
            return ReportStep("host", f"Runs {record.call}", "the tool starts", notes)
        case NestedRecord():
            return ReportStep(
                "host", f"Runs {record.call}", "asks the model", [f"time {record.run}"]
            )
    size = record.output_size_chars
    notes = _select_notes(
        (record.cached, "as before"),
        (size not in (None, len(record.content or "")), f"{size} characters in all"),
        (record.artifact, "kept whole"),
    )
    blocks = [fold_text(record.content)] if record.content is not None else []
    blocks += _make_asides(
        ("The whole output", record.whole), ("Would change", record.would_change)
    )
    words, bad = (
        "" if record.error is None else _format_error(record.error),
        record.error is not None,
    )
    notes = [*_format_duration(record), *notes]
    return ReportStep("tool", f"Result {record.call}", record.name, notes, words, blocks, bad)


def _make_asides(*blocks_by_title: tuple[str, Any]) -> list[Block]:
    """Return each non-empty value as a folded text under its title."""
    return [
        fold_text(
            value if isinstance(value, str) else as_json(value, indent=2), name, is_aside=True
        )
        for name, value in blocks_by_title
        if value
    ]


def _select_notes(*notes: tuple[Any, str]) -> list[str]:
    """Return the notes whose condition is true."""
    return [note for is_true, note in notes if is_true]


def _make_argument_blocks(arguments: Mapping[str, Any]) -> list[Block]:
    line = as_json(arguments)
    return [Block(line) if len(line) <= ON_ONE_LINE else fold_text(as_json(arguments, indent=2))]


def _make_prose(text: str) -> Block:
    return replace(fold_text(text), prose=True, fold="")


def _format_error(error: ErrorInfo) -> str:
    return ": ".join(filter(None, (error.code, error.message)))


def _format_duration(record: CompletionRecord | ObservationRecord) -> list[str]:
    return [] if record.duration_ms is None else [f"{record.duration_ms} ms"]


def _format_turns(turns: Iterable[Mapping[str, str]]) -> str:
    return "\n".join(f"{turn.get('role')}: {turn.get('content')}" for turn in turns)


# --- foreign texts, made visible ------------------------------------------------------------------
#
# An invisible character is shown as its number, such as U+202E. Line ends and tabs stay.

MAX_NAME: Final = 160
"""Characters of a name. A choice: two lines of a terminal."""


def brief(value: Any) -> str:
    """Return a value as a short text: a name or a few words, cut if it is longer."""
    text = as_text(value)
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"


def escape_invisible(text: str, mark: str = "{}") -> str:
    """Return a text with numbers in place of its invisible characters.

    A number is within ``mark``, with the count if the character is repeated.
    """

    def within_mark(char: str, count: int) -> str:
        return mark.format(as_number(char, count))

    return escape_unseen(text, FOR_PAGES, within_mark, keep="\n\t")


def as_text(value: Any) -> str:
    """Return a text unchanged, "" for None, and any other value as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else as_json(value)


def as_json(value: Any, indent: int | None = None) -> str:
    """Return any value as JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=dict)
    except RecursionError:
        return "(nested too deeply to be shown)"


# --- pages of HTML --------------------------------------------------------------------------------


STYLESHEET: Final = package_file("app/look.css")
"""The stylesheet that these pages share."""


class Html(str):
    """HTML that is put into a page without escaping."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def templates(folder: Path) -> Environment:
    """Return the templates of a folder, and ``steps.html.j2`` for the steps of a run."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, STYLESHEET.parent]),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["escaped"] = escape_html
    environment.filters["brief"] = lambda value: escape_html(brief(value))
    return environment


def escape_html(value: Any) -> Html:
    """Return a text as HTML, with marks around the numbers of invisible characters."""
    return Html(escape_invisible(escape(as_text(value)), '<b class="x">{}</b>'))


def _finalize(value: Any) -> Any:
    """Escape a printed value that `escape_html` has not escaped, such as an attribute."""
    return value if hasattr(value, "__html__") else escape_invisible(as_text(value))
