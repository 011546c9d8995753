"""Transcript records, plain, frozen values: a line of the transcript each.

Nothing here knows how they come about, are shown or stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
"""What did not fit: a tool's name; a key, a value or the punctuation of its arguments; white space
and what stands around arguments; that the text ended; without a request, a quote in an answer that
is not escaped; or a thought that repeated itself, and was closed."""


class _Record(Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """The root of all records; ``type`` is a record's kind, as it stands in its line."""

    type: ClassVar[str]


Reasoning = Annotated[
    Literal["off", "auto"] | Annotated[int, Meta(ge=1)], Meta(description="off, auto, tokens")
]


class RecordedSettings(Struct, frozen=True, kw_only=True):
    """The settings of a run that stand in its `Header` under the same name, as the caller gave
    them: `RunSettings` explains each.

    They are named there again, since the order of a header's fields is that of its line. A type
    says with its description what is allowed, for a caller who gives something else.
    """

    model: str | None = None
    backend: Mapping[str, Any] = field(default_factory=dict)
    route: Mapping[str, Any] = field(default_factory=dict)
    reasoning: Reasoning = "off"
    response_mode: str = "answer-first"
    persona: str | None = None
    project_context: str = ""
    tool_choice: Annotated[str, Meta(description="auto, none, required, a tool")] = "auto"
    require_tools: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    long_observations: LongObservations = "cut"
    context: Annotated[int, Meta(ge=1, description="tokens, a whole number from 1")] | None = None
    compact: Compaction = "off"
    output_schema: Mapping[str, Any] | None = None
    folder: str = ""


class Header(_Record, frozen=True, kw_only=True, tag="header"):
    """The first record of a transcript: all that resuming and replaying need.

    ``verdict`` says why ``style`` and ``strategy`` are what was measured of the model.
    ``shortlist`` names the tools of which the prompt tells at the beginning, where not of all, and
    ``shortlist_request`` is what they were chosen by. ``system`` and ``examples`` were made of
    ``project_context``, ``persona``, ``catalog_budget`` (tokens; None: unknown) and
    ``require_tools``; in older files of ``history`` too, earlier messages. ``configured_policy`` is
    what was configured besides ``policy``, empty where that is the same. ``parent`` names the
    session and the call that this one runs within. ``context`` is how many tokens the model can
    take, None where nobody says. ``route`` says by which ``path`` the model is asked: ``native``,
    by its server's own chat interface, or ``prompted``, as where it is empty; and the ``reason``.
    Of a native one it says whether the server ``completes`` text too, and ``obeys`` a tool choice.
    ``output_schema`` is the JSON Schema that answers must fit, None where they are text. ``seal``
    shows whoever has the store's secret that nobody changed the header.
    """

    session: str
    created: str
    version: int = 1
    model: str | None = None
    backend: Mapping[str, Any] = field(default_factory=dict)
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
    shortlist_request: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)
    policy_hash: str = ""
    configured_policy: Mapping[str, Any] = field(name="standing", default_factory=dict)
    parent: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    tool_choice: str = "auto"
    verdict: Mapping[str, Any] = field(default_factory=dict)
    project_context: str = ""
    persona: str | None = None
    catalog_budget: int | None = None
    history: tuple[Mapping[str, str], ...] = ()
    require_tools: tuple[str, ...] = ()
    long_observations: LongObservations = "cut"
    context: int | None = None
    compact: Compaction = "off"
    route: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    commands: tuple[str, ...] = ()
    """Programs that ``run_command`` may run besides its own."""
    functions: tuple[str, ...] = ()
    """Python files whose functions are tools."""
    weak_model: bool = False
    """The model's verdict says that it rarely calls tools correctly: it is shown more examples."""
    folder: str = ""
    """The working directory in which the session began, empty if unknown."""
    seal: str = ""


class GoldenRecord(_Record, frozen=True, kw_only=True, tag="golden"):
    """The mark of a golden transcript: it stands right behind the header.

    ``source`` says who wrote the completions. ``known`` are tools that the run could see and its
    catalog does not hold, ``disabled`` those that could not run, with the reason; ``effects`` what
    a call could do whose effects depend on its arguments, by its canonical form. ``template`` is
    what the chat format was read from. ``expect`` says what a live check wants of each question
    (`mlx_tools.golden.expect`), ``outcomes`` what they came to. ``named`` are the values behind
    names that stand for them because they change. ``words`` are digests of the files of
    ``prompts/``. ``volatile`` stands in older files, and says nothing any more.
    """

    name: str
    source: Literal["real", "scripted"] = "real"
    about: str = ""
    features: tuple[str, ...] = ()
    known: tuple[Mapping[str, Any], ...] = ()
    disabled: Mapping[str, str] = field(default_factory=dict)
    effects: Mapping[str, Any] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)
    expect: tuple[Mapping[str, Any], ...] = ()
    outcomes: tuple[Mapping[str, Any], ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    volatile: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)


class UserRecord(_Record, frozen=True, kw_only=True, tag="user"):
    """A question. ``at`` is the wall clock (ISO 8601, UTC), here and elsewhere; it never reaches
    the prompt.

    ``tools`` are the lines of the tools that match it and that the model had not been told of.
    ``untyped_suffix_chars`` is how many characters at the end of ``content`` nobody typed.
    ``joined_to_results``: it was said together with the results of the calls before it, and stands
    in the same turn.
    """

    content: str
    at: str = ""
    tool_choice: str | None = None
    tools: tuple[str, ...] = ()
    untyped_suffix_chars: int = field(name="piped", default=0)
    joined_to_results: bool = field(name="beside", default=False)


class CompletionRecord(_Record, frozen=True, kw_only=True, tag="completion"):
    """One completion as it came.

    ``prompt`` is what the model was asked with, but for the first ``shared_prefix_chars``
    characters, which are those of the prompt before it; None in format version 1. ``prefix`` is
    what the host wrote at the start of the model's turn, ``text`` what stands after it, mends
    included, ``retained_text`` what of both goes on in the prompt. ``mended`` numbers the messages,
    from 0, in which more was mended than what stands around arguments. ``requests`` is how often
    the backend was asked, ``pieces`` in how many pieces text came, ``usage`` the sum of all.
    ``error`` is why a turn ended before its message did. Rates of calls go by ``at``. ``context``
    is how many tokens the prompt has, None where the context's size is unknown.
    """

    turn: int
    prefix: str = ""
    text: str
    retained_text: str = field(name="counted", default="")
    finish_reason: FinishReason | None = None
    closed_early: bool = False
    usage: Usage = Usage()  # frozen, so all may share it
    duration_ms: int | None = None
    reasoning: str = ""
    commentary: str = ""
    dropped: tuple[str, ...] = ()
    bare_text: bool = False
    strategy: Strategy = "free"
    mended: tuple[int, ...] = ()
    requests: int = 1
    pieces: int | None = None
    error: ErrorInfo | None = None
    at: str = ""
    prompt: str | None = None
    shared_prefix_chars: int = field(name="kept", default=0)
    context: int | None = None
    repeated: bool = False
    """The turn was ended since its text repeated itself."""


class MendRecord(_Record, frozen=True, kw_only=True, tag="mend"):
    """One place where the next completion was mended while it was written.

    ``kind`` says what did not fit there, ``message`` in which message of the turn, from 0.
    ``kept_chars`` is how many characters of the turn stood, after the prefix; ``rejected_pieces``
    what the model had written since the last mend, in pieces, and ``ended`` how that ended, None
    where the stream was closed. ``replacement`` stands in place of what did not fit: what must
    stand there, or one of ``alternatives``, the tokens that were asked for, each with its
    ``logprob``, while the model wrote ``scored`` (``after_text`` all that stood, or before the
    token that ends it). It is empty where it was drawn again, or given up. ``restarted``: the model
    began its line anew, and nothing stands but ``replacement``.
    """

    turn: int
    kind: MendKind
    message: int = 0
    kept_chars: int = field(name="kept", default=0)
    rejected_pieces: tuple[str, ...] = field(name="drawn", default=())
    ended: FinishReason | None = None
    alternatives: tuple[Mapping[str, Any], ...] | None = None
    replacement: str = field(name="put", default="")
    scored: str = ""
    after_text: bool = field(name="behind", default=False)
    restarted: bool = field(name="anew", default=False)

    @property
    def clean(self) -> bool:
        """Return whether only white space, punctuation, or what stands around arguments was
        mended."""
        closes = bool(self.replacement) and not self.replacement.strip("}] \n")
        return self.kind in ("envelope", "quote", "thought") or (self.kind == "bracket" and closes)


def dropped(mends: Iterable[MendRecord]) -> str:
    """The text that the last of these mends, all of one turn so far, took away from the model's."""
    gone = text = ""
    for mend in mends:
        text += "".join(mend.rejected_pieces)
        gone, text = text[mend.kept_chars :], text[: mend.kept_chars] + mend.replacement
    return gone


class CallRecord(_Record, frozen=True, kw_only=True, tag="tool_call"):
    """A call that was read, valid or not. ``call`` is its key here: unique, and the host's own."""

    turn: int
    call: str
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
    """A call that waits for a person. An approval must carry its ``digest``. ``in_doubt``: it, or
    the same call before it, was started, and nobody knows how that ended."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    digest: str
    expires_at: str
    in_doubt: bool = False

    def to_json(self) -> dict[str, Any]:
        """The call as ``--json`` prints it; ``in_doubt`` only where it is."""
        return {k: v for k, v in to_builtins(self).items() if k != "in_doubt" or v}


class PauseRecord(_Record, frozen=True, kw_only=True, tag="paused"):
    """A person is asked about calls, and the run waits: written before anything is shown.

    Each of ``digests`` binds an approval of one of ``calls`` to what is shown, until
    ``expires_at``. ``within`` are calls that wait in runs within a call. ``seal`` shows that nobody
    changed what was shown of them.
    """

    calls: tuple[str, ...]
    digests: tuple[str, ...]
    expires_at: str
    at: str = ""
    within: tuple[PendingCall, ...] = ()
    seal: str = ""


class EditRecord(_Record, frozen=True, kw_only=True, tag="edited"):
    """A person gave a call other arguments; a decision on the call as it is now follows."""

    call: str
    arguments: Mapping[str, Any]
    at: str = ""


class ApprovalRecord(_Record, frozen=True, kw_only=True, tag="approval"):
    """A person's answer about a call that policy asked about; binds to ``digest``.

    ``state`` is what the call would act on as it was shown, ``expires_at`` until when this holds.
    ``scope`` ``session`` covers later calls too, of the tool with the digest ``tool``, with no more
    than ``effects``, and with the same values of the arguments ``bound_to``. ``seal`` shows whoever
    has the store's secret that a person said it.
    """

    call: str
    approved: bool
    digest: str
    reason: str = ""
    at: str = ""
    scope: Literal["call", "session"] = "call"
    state: str = ""
    expires_at: str = ""
    tool: str = ""
    effects: tuple[str, ...] = ()
    bound_to: Mapping[str, Any] | None = None
    seal: str = ""


class ResumedRecord(_Record, frozen=True, kw_only=True, tag="resumed"):
    """Another process goes on from here. ``policy`` is the one in force from now on: the header's,
    narrowed by what was configured at the time."""

    policy: Mapping[str, Any]
    at: str = ""


class ExecutionRecord(_Record, frozen=True, kw_only=True, tag="execution_started"):
    """Written, and on disk, before a tool starts."""

    call: str
    mutates: bool
    at: str = ""


class NestedRecord(_Record, frozen=True, kw_only=True, tag="nested_run"):
    """A call asks the model for the time number ``run`` (from 0), in the session ``session``: there
    the answer is found again, where the call has to be made again."""

    call: str
    run: int
    session: str


class SummaryRecord(_Record, frozen=True, kw_only=True, tag="summary"):
    """The model's summary of an output that is too long to be shown; its observation follows.

    ``parts`` are those of the output that it read, in order: each with its ``offset`` in characters
    and its ``summary``. ``problem`` is why there are fewer than there could be. ``usage`` adds up
    all ``requests``.
    """

    call: str
    parts: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""
    requests: int = 0
    usage: Usage = Usage()  # frozen, so all may share it
    duration_ms: int | None = None
    at: str = ""


class CompactedRecord(_Record, frozen=True, kw_only=True, tag="compacted"):
    """From here on the prompt is another one: what was oldest in it is replaced, in one step.

    ``removed`` is how many of the records that it was made of leave it, ``turns`` how many
    completions that are; ``content`` stands in their place, and ``observations``, by call, in place
    of those that left alone. ``artifacts`` keep what was replaced. ``before`` and ``after`` are the
    tokens of the prompt, None where nobody counts them; ``requests`` and ``usage`` are what a
    summary took.
    """

    reason: Literal["asked", "filling", "full"]
    removed: int = field(name="gone", default=0)
    turns: int = 0
    content: str = ""
    observations: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ()
    before: int | None = None
    after: int | None = None
    requests: int = 0
    usage: Usage = Usage()  # frozen, so all may share it
    duration_ms: int | None = None
    at: str = ""


class FileView(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text file as the model knows it: the lines that it was shown, or has written.

    ``file`` identifies the file, ``state`` its content then. The lines ``first`` to ``last`` of
    ``total`` are known, counted from 1. ``is_cut``: a line of these was not shown whole.
    """

    file: str
    state: str
    first: int
    last: int
    total: int
    is_cut: bool = False

    @property
    def is_whole(self) -> bool:
        return self.first == 1 and self.last >= self.total and not self.is_cut


class StartedCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call that can change things and was started."""

    name: str
    arguments: Mapping[str, Any]


class ObservationRecord(_Record, frozen=True, kw_only=True, tag="tool_observation"):
    """The end of a call. ``content`` is what the model sees; the whole stands in ``artifact``, and
    in ``whole`` where a golden transcript keeps it.

    ``nested`` is how many completions runs within the call took: they count against the run's.
    ``cached``: nothing ran, it is what the same call was answered before. ``sources`` are those
    that the content shows, each with ``n``, ``title`` and ``location``; ``files`` what the model
    knows of files by it. ``unknown_ends`` are the calls in runs within it whose end nobody knows.
    """

    call: str
    name: str
    content: str | None = None
    error: ErrorInfo | None = None
    id: str | None = None
    duration_ms: int | None = None
    output_size_chars: int | None = None
    artifact: str | None = None
    nested: int = 0
    cached: bool = False
    sources: tuple[Mapping[str, Any], ...] = ()
    whole: str | None = None
    files: tuple[FileView, ...] = ()
    would_change: str = ""
    """The change that a dry run left out, in words and as far as the model is shown it."""
    unknown_ends: tuple[StartedCall, ...] = ()

    @property
    def shown_error(self) -> ErrorInfo | None:
        """The error as the model reads it, with the change that a dry run left out."""
        if self.error is None or not self.would_change:
            return self.error
        return ErrorInfo(self.error.code, f"{self.error.message} {self.would_change}")

    @property
    def shown_text(self) -> str:
        """The words that the model reads."""
        error = self.shown_error
        return self.content or "" if error is None else error.message


class CorrectionRecord(_Record, frozen=True, kw_only=True, tag="correction"):
    """The model's line could not be read; this is what it is told.

    ``forged``: it wrote an observation, which is the host's to write, after calls had been
    answered.
    """

    turn: int
    error: ErrorInfo
    forged: bool = False


class ExtendedRecord(_Record, frozen=True, kw_only=True, tag="extended"):
    """A person let the run take more steps than its limit."""

    iterations: int
    """Completions that the question may take in addition."""
    at: str = ""


class AnswerRecord(_Record, frozen=True, kw_only=True, tag="final_answer"):
    """The final answer. ``sources`` is what the model named as such, whatever that is.

    ``bare_text``: it is prose. ``truncated``: it was cut off at the token limit. ``call_like``: it
    looks like a call that could not be read, and came again after a correction.
    """

    turn: int
    content: str
    sources: tuple[Any, ...] = ()
    bare_text: bool = False
    truncated: bool = False
    call_like: bool = False
    repeated: bool = False
    """It was cut off since its text repeated itself, not at the token limit."""


class StoppedRecord(_Record, frozen=True, kw_only=True, tag="stopped"):
    """The run ended without an answer, and why.

    ``waiting_for`` says whom the run was waiting for when its time ran out: the backend, a tool, or
    nobody. ``partial`` is what had come of a completion that broke off: kept, never read. ``used``
    are the tokens of a prompt that the context does not hold.
    """

    reason: StopReason
    message: str = ""
    waiting_for: Literal["", "backend", "tool"] = ""
    partial: str = ""
    used: int | None = None


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
    """One record of what was said before this session, in another one or to a caller.

    It stands in the prompt, and its texts are known for what they are; nothing of it runs again,
    counts for a run of this session, or is a person's approval. ``private``: a private tool has
    answered there. ``unknown_ends``, at the last of these records, are the calls of before whose
    end nobody knows, also those that were summed up.
    """

    record: PromptRecord
    private: bool = False
    unknown_ends: tuple[StartedCall, ...] = ()


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

for _kind in get_args(Record):
    _kind.type = _kind.__struct_config__.tag


# --- where a session can stand, and which records may come next ---------------------------------


class State(StrEnum):
    """Where a session stands."""

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
"""Which records may come next. One that may not is a `TranscriptError`, and changes nothing."""
