"""Transcript records: plain, frozen values, one for each line of a transcript.

Nothing here knows how records are made, shown or stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from msgspec import Meta, Struct, field, to_builtins

from mlx_tools.errors import ErrorCode, StopReason
from mlx_tools.messages import (
    Compaction,
    ErrorInfo,
    FinishReason,
    LongObservations,
    Strategy,
    Style,
    Usage,
)

MendKind = Literal["name", "key", "value", "bracket", "envelope", "end", "quote", "thought"]
"""The part that did not fit: a tool's name; a key, a value or the punctuation of its arguments;
white space and text around arguments; the end of the text; without a request, a quote in an answer
that is not escaped; or a thought that repeated itself, and was closed."""


class _Record(Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """The root of all records; ``type`` is a record's kind, as it stands in its line."""

    type: ClassVar[str]


Reasoning = Annotated[
    Literal["off", "auto"] | Annotated[int, Meta(ge=1)], Meta(description="off, auto, tokens")
]


class RecordedSettings(Struct, frozen=True, kw_only=True):
    """The settings of a run that stand in its `Header`, as the caller gave them.

    The header names them again, since the order of its fields is that of its line. The description
    of a type says what is allowed, for a caller who gives something else.
    """

    model: str | None = None
    backend: Mapping[str, Any] = field(default_factory=dict)
    route: Mapping[str, Any] = field(default_factory=dict)
    reasoning: Reasoning = "off"
    """``off``, ``auto`` or a budget in tokens."""
    response_mode: str = "answer-first"
    persona: str | None = None
    project_context: str = ""
    tool_choice: Annotated[str, Meta(description="auto, none, required, a tool")] = "auto"
    """``auto``, ``none``, ``required`` or a tool's name."""
    require_tools: tuple[str, ...] = ()
    """Tools without which the run fails before the model is asked anything."""
    roots: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    long_observations: LongObservations = "cut"
    """The shown part of an output that is too long: head and tail (``cut``), or between them a
    ``summary`` by the model, if the call only reads."""
    context: Annotated[int, Meta(ge=1, description="tokens, a whole number from 1")] | None = None
    """The tokens that the model can take; None to take it from what the backend serves, if that
    says it."""
    compact: Compaction = "off"
    """``auto`` to summarise the oldest turns once four fifths of the context are used, ``off`` to
    do so on request."""
    output_schema: Mapping[str, Any] | None = None
    """The JSON Schema that the answer must fit, which is then JSON."""
    folder: str = ""


class Header(_Record, frozen=True, kw_only=True, tag="header"):
    """The first record of a transcript: all that resuming and replaying need.

    ``system`` and ``examples`` are made of ``project_context``, ``persona``, ``catalog_budget`` and
    ``require_tools``; in older files of ``history`` too, earlier messages.
    """

    session: str
    created: str
    version: int = 1
    model: str | None = None
    backend: Mapping[str, Any] = field(default_factory=dict)
    """The backend."""
    chat_format: Mapping[str, Any] = field(default_factory=dict)
    style: Style = "jsonl"
    strategy: Strategy = "free"
    reasoning: Reasoning = "off"
    sampling: Mapping[str, Any] = field(default_factory=dict)
    response_mode: str = "answer-first"
    system: str = ""
    examples: tuple[Mapping[str, str], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    roots: tuple[str, ...] = ()
    catalog_hash: str = ""
    shortlist: tuple[str, ...] = ()
    """The tools that the prompt names at first, if these are not all."""
    shortlist_request: str = ""
    """The text by which they were chosen."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    policy_hash: str = ""
    configured_policy: Mapping[str, Any] = field(name="standing", default_factory=dict)
    """The configured policy, empty if ``policy`` is the same."""
    parent: str = ""
    """The session and the call that this session runs within."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    tool_choice: str = "auto"
    verdict: Mapping[str, Any] = field(default_factory=dict)
    """The measurement that chose ``style`` and ``strategy``."""
    project_context: str = ""
    persona: str | None = None
    catalog_budget: int | None = None
    """The tokens for the catalog, None if unknown."""
    history: tuple[Mapping[str, str], ...] = ()
    require_tools: tuple[str, ...] = ()
    long_observations: LongObservations = "cut"
    context: int | None = None
    """The tokens that the model can take, None if unknown."""
    compact: Compaction = "off"
    route: Mapping[str, Any] = field(default_factory=dict)
    """The ``path`` by which the model is asked, and the reason: ``native``, by its server's chat
    API, or ``prompted``, the default. For a native one also if the server ``completes`` text, and
    ``obeys`` a tool choice."""
    output_schema: Mapping[str, Any] | None = None
    """The JSON Schema that answers must fit, None for text."""
    commands: tuple[str, ...] = ()
    """Programs that ``run_command`` may run besides its own."""
    functions: tuple[str, ...] = ()
    """Python files whose functions are tools."""
    weak_model: bool = False
    """The model's verdict says that it rarely calls tools correctly: it is shown more examples."""
    folder: str = ""
    """The working directory in which the session began, empty if unknown."""
    seal: str = ""
    """Shows to an owner of the store's secret that nobody changed the header."""


class GoldenRecord(_Record, frozen=True, kw_only=True, tag="golden"):
    """The mark of a golden transcript, right after the header."""

    name: str
    source: Literal["real", "scripted"] = "real"
    """The writer of the completions."""
    about: str = ""
    features: tuple[str, ...] = ()
    extra_tools: tuple[Mapping[str, Any], ...] = field(name="known", default=())
    """Tools that the run could see and that its catalog does not hold."""
    disabled: Mapping[str, str] = field(default_factory=dict)
    """The tools that could not run, with the reason."""
    effects: Mapping[str, Any] = field(default_factory=dict)
    """The effects of calls whose effects depend on their arguments, by canonical form."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """The source of the chat format."""
    expect: tuple[Mapping[str, Any], ...] = ()
    """The expectations of a live check for each question (`mlx_tools.golden.expect`)."""
    outcomes: tuple[Mapping[str, Any], ...] = ()
    """The outcomes of the questions."""
    named_values: Mapping[str, str] = field(name="named", default_factory=dict)
    """The values behind names that stand for them because they change."""
    volatile: tuple[str, ...] = ()
    """In older files only; it has no meaning any more."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Digests of the files of ``prompts/``."""


class UserRecord(_Record, frozen=True, kw_only=True, tag="user"):
    """A question."""

    content: str
    recorded_at: str = field(name="at", default="")
    """The wall clock (ISO 8601, UTC), here and elsewhere; it never reaches the prompt."""
    tool_choice: str | None = None
    tools: tuple[str, ...] = ()
    """The lines of tools that match the question and that the model had not been told of."""
    untyped_suffix_chars: int = field(name="piped", default=0)
    """The number of characters at the end of ``content`` that nobody typed."""
    joined_to_results: bool = field(name="beside", default=False)
    """True if it came with the results of the calls before it, in the same turn."""
    retries: int = 0
    """The number of times that a person had it asked again: its completions are drawn at random."""


class CompletionRecord(_Record, frozen=True, kw_only=True, tag="completion"):
    """One completion, as the backend returned it."""

    turn: int
    prefix: str = ""
    """The text that the host wrote at the start of the model's turn."""
    text: str
    """The text after it, mends included."""
    retained_text: str = field(name="counted", default="")
    """The part of both that goes on in the prompt."""
    finish_reason: FinishReason | None = None
    closed_early: bool = False
    usage: Usage = Usage()  # frozen, so all may share it
    """The sum of all usage."""
    duration_ms: int | None = None
    reasoning: str = ""
    commentary: str = ""
    dropped: tuple[str, ...] = ()
    bare_text: bool = False
    strategy: Strategy = "free"
    mended_messages: tuple[int, ...] = field(name="mended", default=())
    """The numbers, from 0, of messages with more mended than the envelope of arguments."""
    requests: int = 1
    """The number of requests to the backend."""
    pieces: int | None = None
    """The number of pieces in which text came."""
    error: ErrorInfo | None = None
    """The reason why a turn ended before its message did."""
    recorded_at: str = field(name="at", default="")
    """The time that rates of calls go by."""
    prompt: str | None = None
    """The prompt without its first ``shared_prefix_chars``; None in format version 1."""
    shared_prefix_chars: int = field(name="kept", default=0)
    """The number of characters that the prompt has in common with the one before it."""
    context: int | None = None
    """The tokens of the prompt, None if the context's size is unknown."""
    repeated: bool = False
    """The turn was ended since its text repeated itself."""


class MendRecord(_Record, frozen=True, kw_only=True, tag="mend"):
    """One place where the next completion was mended while it was written."""

    turn: int
    kind: MendKind
    """The part that did not fit."""
    message: int = 0
    """The number of the message in the turn, from 0."""
    kept_chars: int = field(name="kept", default=0)
    """The number of characters of the turn that stayed, after the prefix."""
    rejected_pieces: tuple[str, ...] = field(name="drawn", default=())
    """The text of the model since the last mend, in pieces."""
    finish_reason: FinishReason | None = field(name="ended", default=None)
    """The finish reason of that text, None if the stream was closed."""
    alternatives: tuple[Mapping[str, Any], ...] | None = None
    """The tokens that were asked for, each with its ``logprob``."""
    replacement: str = field(name="put", default="")
    """The text in place of the part that did not fit: the only one that can stand there, or one of
    ``alternatives``. It is empty if the model was asked again, or if the place was given up."""
    scored_text: str = field(name="scored", default="")
    """The text of the model when the alternatives were asked for."""
    after_text: bool = field(name="behind", default=False)
    """True if the alternatives follow all of it, False if they come before the token that ends
    it."""
    restarted: bool = field(name="anew", default=False)
    """True if the model began its line again, and only ``replacement`` stands."""

    @property
    def clean(self) -> bool:
        """True if only white space, punctuation or the envelope of arguments was mended."""
        closes = bool(self.replacement) and not self.replacement.strip("}] \n")
        return self.kind in ("envelope", "quote", "thought") or (self.kind == "bracket" and closes)


def dropped_text(mends: Iterable[MendRecord]) -> str:
    """Return the text of the model that the last of these mends removed.

    The mends are all of one turn so far.
    """
    gone = text = ""
    for mend in mends:
        text += "".join(mend.rejected_pieces)
        gone, text = text[mend.kept_chars :], text[: mend.kept_chars] + mend.replacement
    return gone


class CallRecord(_Record, frozen=True, kw_only=True, tag="tool_call"):
    """A call that was read, valid or not."""

    turn: int
    call: str
    """The call's key here: unique, and the host's own."""
    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    runs: Literal["freely", "with_approval"] = "with_approval"
    echoed: bool = False


class RepairRecord(_Record, frozen=True, kw_only=True, tag="repair"):
    """A repair or coercion that reading made; ``call`` is None for one to an answer."""

    turn: int
    name: str
    call: str | None = None


class DecisionRecord(_Record, frozen=True, kw_only=True, tag="decision"):
    """The decision of policy on a call, by which rule, and why."""

    call: str
    decision: Literal["allow", "ask", "deny"]
    rule: str
    reason: str
    code: ErrorCode | None = None


class PendingCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that waits for a person."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    digest: str
    """The digest that an approval must carry."""
    expires_at: str
    in_doubt: bool = False
    """True if it, or the same call before it, was started and its end is unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return the call as ``--json`` prints it; ``in_doubt`` only if it is true."""
        return {k: v for k, v in to_builtins(self).items() if k != "in_doubt" or v}


class PauseRecord(_Record, frozen=True, kw_only=True, tag="paused"):
    """A person is asked about calls, and the run waits.

    It is written before anything is shown. Each of ``digests`` binds an approval of one of
    ``calls`` to what is shown.
    """

    calls: tuple[str, ...]
    digests: tuple[str, ...]
    expires_at: str
    """The time until which an approval can be given."""
    recorded_at: str = field(name="at", default="")
    nested_calls: tuple[PendingCall, ...] = field(name="within", default=())
    """The calls that wait in nested runs."""
    seal: str = ""
    """A keyed digest: it shows that nobody changed the record."""


class EditRecord(_Record, frozen=True, kw_only=True, tag="edited"):
    """A person changed the arguments of a call.

    A decision on the call with the new arguments follows.
    """

    call: str
    arguments: Mapping[str, Any]
    recorded_at: str = field(name="at", default="")


class ApprovalRecord(_Record, frozen=True, kw_only=True, tag="approval"):
    """A person's answer about a call that the policy asked about."""

    call: str
    approved: bool
    digest: str
    """The digest of the call as it was shown. The answer counts for this call only."""
    reason: str = ""
    recorded_at: str = field(name="at", default="")
    scope: Literal["call", "session"] = "call"
    """With ``session`` the approval covers later calls of the tool, too, within the limits of
    ``tool``, ``effects`` and ``bound_to``."""
    state: str = ""
    """The state that the call would change, as it was shown."""
    expires_at: str = ""
    """The time until which the approval counts."""
    tool: str = ""
    """The digest of the tool that later calls must have."""
    effects: tuple[str, ...] = ()
    """The effects that later calls may have."""
    bound_to: Mapping[str, Any] | None = None
    """Arguments that must have the same values in later calls."""
    seal: str = ""
    """A keyed digest: it shows to the owner of the store's key that a person gave the answer."""


class ResumedRecord(_Record, frozen=True, kw_only=True, tag="resumed"):
    """Another process continues the session from here."""

    policy: Mapping[str, Any]
    """The policy from now on: the header's policy, narrowed by the configured one."""
    recorded_at: str = field(name="at", default="")


class ExecutionRecord(_Record, frozen=True, kw_only=True, tag="execution_started"):
    """The start of a tool. It is on disk before the tool starts."""

    call: str
    mutates: bool
    recorded_at: str = field(name="at", default="")


class NestedRecord(_Record, frozen=True, kw_only=True, tag="nested_run"):
    """A call asks the model in a nested run.

    If the call has to be made again, the answer is read from the nested run's session.
    """

    call: str
    run: int
    """The number of the nested run within the call, from 0."""
    session: str
    """The session of the nested run."""


class SummaryRecord(_Record, frozen=True, kw_only=True, tag="summary"):
    """The model's summary of an output that is too long to be shown.

    Its observation follows.
    """

    call: str
    parts: tuple[Mapping[str, Any], ...] = ()
    """The parts of the output that the model read, each with its ``offset`` in characters and its
    ``summary``."""
    problem: str = ""
    """The reason why parts are missing, empty if none are."""
    requests: int = 0
    """The number of requests for the summary."""
    usage: Usage = Usage()  # frozen, so all may share it
    """The sum of all ``requests``."""
    duration_ms: int | None = None
    recorded_at: str = field(name="at", default="")


class CompactedRecord(_Record, frozen=True, kw_only=True, tag="compacted"):
    """A compaction: from here on, a text replaces the oldest part of the prompt."""

    reason: Literal["asked", "filling", "full"]
    removed: int = field(name="gone", default=0)
    """The number of records that are removed from the prompt."""
    turns: int = 0
    """The number of completions among them."""
    content: str = ""
    """The text that replaces them."""
    observations: Mapping[str, str] = field(default_factory=dict)
    """The texts that replace single observations, by call."""
    artifacts: tuple[str, ...] = ()
    """The artifacts with the replaced texts."""
    tokens_before: int | None = field(name="before", default=None)
    """The tokens of the prompt before, None if unknown."""
    tokens_after: int | None = field(name="after", default=None)
    """The tokens of the prompt after, None if unknown."""
    requests: int = 0
    """The number of requests for a summary."""
    usage: Usage = Usage()  # frozen, so all may share it
    """The sum of all ``requests``."""
    duration_ms: int | None = None
    recorded_at: str = field(name="at", default="")


class FileView(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a text file that the model knows: lines that it has read or written."""

    file: str
    """The file's identity."""
    state: str
    """The digest of the file's content at that time."""
    first: int
    """The first known line, counted from 1."""
    last: int
    """The last known line."""
    total: int
    """The number of lines of the file."""
    is_cut: bool = False
    """True if one of these lines was truncated."""

    @property
    def is_whole(self) -> bool:
        """True if the model knows the whole file."""
        return self.first == 1 and self.last >= self.total and not self.is_cut


class StartedCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call that can change things and was started."""

    name: str
    arguments: Mapping[str, Any]


class ObservationRecord(_Record, frozen=True, kw_only=True, tag="tool_observation"):
    """The end of a call."""

    call: str
    name: str
    content: str | None = None
    """The text that the model sees."""
    error: ErrorInfo | None = None
    id: str | None = None
    duration_ms: int | None = None
    output_size_chars: int | None = None
    artifact: str | None = None
    """The artifact with the whole output."""
    nested: int = 0
    """The number of completions of nested runs, which count against the run's limit."""
    cached: bool = False
    """True if this is the result of an earlier call, and no tool ran."""
    sources: tuple[Mapping[str, Any], ...] = ()
    """The sources in the content, each with ``n``, ``title`` and ``location``."""
    whole: str | None = None
    """The whole output, only in some golden transcripts."""
    files: tuple[FileView, ...] = ()
    """The parts of files that the model knows after this observation."""
    would_change: str = ""
    """A description of the change that a dry run did not make, as the model reads it."""
    unknown_ends: tuple[StartedCall, ...] = ()
    """The calls of nested runs whose end is unknown."""

    @property
    def shown_error(self) -> ErrorInfo | None:
        """The error as the model reads it, with the change that a dry run did not make."""
        if self.error is None or not self.would_change:
            return self.error
        return ErrorInfo(self.error.code, f"{self.error.message} {self.would_change}")

    @property
    def shown_text(self) -> str:
        """The text that the model reads."""
        error = self.shown_error
        return self.content or "" if error is None else error.message


class CorrectionRecord(_Record, frozen=True, kw_only=True, tag="correction"):
    """A turn could not be read, and the model gets an error message."""

    turn: int
    error: ErrorInfo
    """The error that the model reads."""
    forged: bool = False
    """True if the model itself wrote an observation, after calls had been answered. Only the host
    may write one."""


class ExtendedRecord(_Record, frozen=True, kw_only=True, tag="extended"):
    """A person let the run take more steps than its limit."""

    iterations: int
    """The number of completions that are added to the limit."""
    recorded_at: str = field(name="at", default="")


class AnswerRecord(_Record, frozen=True, kw_only=True, tag="final_answer"):
    """The final answer."""

    turn: int
    content: str
    sources: tuple[Any, ...] = ()
    """The list of citations as the model wrote it; its items may have any type."""
    bare_text: bool = False
    """True if the answer was written as plain text, not as a message of the protocol."""
    truncated: bool = False
    """True if the answer was cut off at the token limit."""
    call_like: bool = False
    """True if the answer looks like a call that could not be read, also after a correction."""
    repeated: bool = False
    """True if the answer was cut off because it repeated itself."""


class StoppedRecord(_Record, frozen=True, kw_only=True, tag="stopped"):
    """The run ended without an answer."""

    reason: StopReason
    message: str = ""
    waiting_for: Literal["", "backend", "tool"] = ""
    """The part that the run waited for when its time ran out: the backend, a tool, or nothing."""
    partial: str = ""
    """The text of a completion that broke off. It is stored, but never read as a turn."""
    used_tokens: int | None = field(name="used", default=None)
    """The tokens of the prompt that is too long for the context."""


PromptRecord = (
    UserRecord
    | CompletionRecord
    | CallRecord
    | ObservationRecord
    | CorrectionRecord
    | AnswerRecord
    | CompactedRecord
)
"""The records that a prompt is made of."""


class CarriedRecord(_Record, frozen=True, kw_only=True, tag="carried"):
    """One record of the prior conversation, from another session or from a caller.

    It is part of the prompt. Its calls do not run again, do not count for this session's limits,
    and are not approved by it.
    """

    record: PromptRecord
    private: bool = False
    """True if a private tool has answered in the prior conversation."""
    unknown_ends: tuple[StartedCall, ...] = ()
    """Earlier calls whose end is unknown, summarised ones too. Only the last record has them."""


Record = (
    Header
    | GoldenRecord
    | CarriedRecord
    | UserRecord
    | MendRecord
    | CompletionRecord
    | CallRecord
    | RepairRecord
    | DecisionRecord
    | PauseRecord
    | EditRecord
    | ApprovalRecord
    | ResumedRecord
    | ExecutionRecord
    | NestedRecord
    | SummaryRecord
    | CompactedRecord
    | ObservationRecord
    | CorrectionRecord
    | ExtendedRecord
    | AnswerRecord
    | StoppedRecord
)

REQUESTING_RECORDS: Final = (CompletionRecord, SummaryRecord, CompactedRecord)
"""The records of requests to the model."""

for _kind in get_args(Record):
    _kind.type = _kind.__struct_config__.tag


# --- the states of a session, and the records that may come next --------------------------------


class State(StrEnum):
    """The state of a session."""

    EMPTY = "empty"
    IDLE = "idle"
    COMPLETING = "completing"
    READING = "reading"
    CALLING = "calling"
    PAUSED = "paused"
    STOPPED = "stopped"


TRANSITIONS: Final[Mapping[State, frozenset[str]]] = {
    State.EMPTY: frozenset({"header"}),
    State.IDLE: frozenset({"golden", "carried", "user", "compacted"}),
    State.COMPLETING: frozenset(
        {"mend", "completion", "compacted", "correction", "extended", "resumed", "stopped"}
    ),
    State.READING: frozenset(
        {"tool_call", "repair", "decision", "tool_observation", "correction", "final_answer"}
        | {"resumed", "stopped"}
    ),
    State.CALLING: frozenset(
        {"decision", "paused", "edited", "approval", "execution_started", "nested_run"}
        | {"summary", "tool_observation", "resumed", "stopped"}
    ),
    State.PAUSED: frozenset({"edited", "approval", "tool_observation", "resumed", "stopped"}),
    State.STOPPED: frozenset({"user", "compacted", "resumed"}),
}
"""The records that may come next. Any other is a `TranscriptError`, and changes nothing."""


def find_last_state(records: Sequence[Record]) -> Record:
    """Return the last record that shows the state of the last question.

    It is the last record that is not a compaction.
    """
    return next(r for r in reversed(records) if not isinstance(r, CompactedRecord))


def is_at_rest(records: Sequence[Record]) -> bool:
    """Return True if the last question was answered, or its run has paused or stopped."""
    has_question = any(isinstance(record, UserRecord) for record in records)
    if not has_question:
        return False
    return isinstance(find_last_state(records), AnswerRecord | PauseRecord | StoppedRecord)


def count_mends(records: Iterable[Record]) -> int:
    """Return the number of mends in a turn, without quotes, which cost no request."""
    return sum(isinstance(r, MendRecord) and r.kind != "quote" for r in records)
