"""Protocol messages and transcript records: plain, frozen values.

A *message* is what the model wrote or the host answers on the wire. A *record* is a line of the
transcript. Nothing here knows how either is read, shown or stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from mlx_tools.errors import ErrorCode

Style = Literal["jsonl", "markdown-json", "xml"]
"""How protocol lines are written: `mlx_tools.protocol.styles`."""

Strategy = Literal["free", "guided", "grammar"]
"""How a completion came about: written freely, guided hole by hole, or masked by a grammar."""

FinishReason = Literal["stop", "length", "tool_calls"]
"""Why a completion ended: by itself, by its token limit, or (a break of format) at native tool
markers."""


# --- messages ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A fault in words that a model or a program can act on: at most 500 characters."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as it was read. ``id`` is the model's own, None where it gave none."""

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    repairs: tuple[str, ...] = ()
    type: ClassVar[str] = "tool_call"


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The answer that ends a run."""

    content: str
    sources: tuple[Any, ...] = ()
    repairs: tuple[str, ...] = ()
    type: ClassVar[str] = "final_answer"


Message = ToolCall | FinalAnswer


@dataclass(frozen=True, slots=True)
class ToolObservation:
    """What the host answers to a call: the tool's output, or an error. One of the two is None."""

    name: str
    content: str | None = None
    error: ErrorInfo | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one completion. A number the server did not report is None, never 0."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


# --- records ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first record of a transcript: all that resuming and replaying need.

    ``verdict`` says why, where ``style`` and ``strategy`` were left to what was measured of the
    model; it is empty where they were named, or nothing was known. ``shortlist`` names the tools
    that the prompt tells of at the beginning, where it does not tell of all; ``shortlist_request``
    is what they were chosen by. ``standing`` is what was configured at the time besides what this
    session was allowed, empty where that is ``policy`` itself. ``parent`` names the session and the
    call that this one runs within, where it does. ``seal`` shows whoever has the
    store's secret that nobody changed the header since.
    """

    type: ClassVar[str] = "header"
    session: str
    created: str
    version: int = 1
    model: str | None = None
    backend: Mapping[str, Any] = field(default_factory=dict)
    chat_format: Mapping[str, Any] = field(default_factory=dict)
    style: Style = "jsonl"
    strategy: str = "free"
    request_weight: float = 1.0
    reasoning: str | int = "off"
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
    standing: Mapping[str, Any] = field(default_factory=dict)
    parent: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)
    tool_choice: str = "auto"
    verdict: Mapping[str, Any] = field(default_factory=dict)
    seal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """A question. ``at`` is the wall clock (ISO 8601, UTC); it never reaches the prompt.

    ``tools`` are the lines of the tools that match it and that the model had not been told of.
    """

    type: ClassVar[str] = "user"
    content: str
    at: str = ""
    tool_choice: str | None = None
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRecord:
    """One completion as it came.

    ``prefix`` is what the host wrote at the start of the model's turn, ``text`` what the model
    wrote after it (with ``guided``: what both wrote), ``counted`` what of both goes on in the
    prompt. ``requests`` is how often the backend was asked, ``pieces`` in how many pieces text
    came: with a stock server as many as tokens. ``usage`` adds up all requests. ``error`` is why a
    guided turn could not be filled. ``at`` is the wall clock when it was read (ISO 8601, UTC): what
    the rates of calls go by.
    """

    type: ClassVar[str] = "completion"
    turn: int
    prefix: str = ""
    text: str
    counted: str = ""
    finish_reason: FinishReason | None = None
    closed_early: bool = False
    usage: Usage = Usage()
    duration_ms: int | None = None
    reasoning: str = ""
    commentary: str = ""
    dropped: tuple[str, ...] = ()
    bare_text: bool = False
    strategy: Strategy = "free"
    requests: int = 1
    pieces: int | None = None
    error: ErrorInfo | None = None
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A call that was read, valid or not. ``call`` is its key here: unique, and the host's own."""

    type: ClassVar[str] = "tool_call"
    turn: int
    call: str
    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    runs: Literal["freely", "with_approval"] = "with_approval"
    echoed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRecord:
    """A repair or coercion that reading made; ``call`` is None for one to an answer."""

    type: ClassVar[str] = "repair"
    turn: int
    name: str
    call: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """What policy said of a call, by which rule, and why."""

    type: ClassVar[str] = "decision"
    call: str
    decision: Literal["allow", "ask", "deny"]
    rule: str
    reason: str
    code: ErrorCode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRecord:
    """A person is asked about calls, and the run waits: written before anything is shown.

    Each of ``digests`` binds an approval of one of ``calls`` to what is shown. ``at`` is when it
    was asked, ``expires_at`` until when an approval can be given (ISO 8601, UTC). ``within`` are
    calls that wait in runs within a call: each with ``call_id``, ``name``, ``arguments``,
    ``digest`` and ``expires_at``. ``seal`` shows that nobody changed what was shown of them.
    """

    type: ClassVar[str] = "paused"
    calls: tuple[str, ...]
    digests: tuple[str, ...]
    expires_at: str
    at: str = ""
    within: tuple[Mapping[str, Any], ...] = ()
    seal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditRecord:
    """A person gave a call other arguments; a decision on the call as it is now follows."""

    type: ClassVar[str] = "edited"
    call: str
    arguments: Mapping[str, Any]
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRecord:
    """What a person said of a call that policy asked about; binds to ``digest``.

    ``state`` is what the call would act on as it was shown, ``expires_at`` until when this holds:
    both are part of the digest. ``scope`` ``session`` covers later calls too, of the tool with the
    digest ``tool``, with no more than ``effects``. ``seal`` shows whoever has the store's secret
    that a person said it.
    """

    type: ClassVar[str] = "approval"
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
    seal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedRecord:
    """Another process goes on from here. ``policy`` is the one in force from now on: the header's,
    narrowed by what was configured at the time."""

    type: ClassVar[str] = "resumed"
    policy: Mapping[str, Any]
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """Written, and on disk, before a tool starts."""

    type: ClassVar[str] = "execution_started"
    call: str
    mutates: bool
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedRecord:
    """A call asks the model for the time number ``run`` (from 0), in the session ``session``: there
    the answer is found again, where the call has to be made again."""

    type: ClassVar[str] = "nested_run"
    call: str
    run: int
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationRecord:
    """How a call ended. ``content`` is what the model sees; the whole stands in ``artifact``.

    ``nested`` is how many completions runs within the call took: they count against the run's.
    """

    type: ClassVar[str] = "tool_observation"
    call: str
    name: str
    content: str | None = None
    error: ErrorInfo | None = None
    id: str | None = None
    duration_ms: int | None = None
    output_size_chars: int | None = None
    artifact: str | None = None
    nested: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionRecord:
    """The model's line could not be read; this is what it is told.

    ``forged``: it wrote an observation, which is the host's to write, after calls had been
    answered.
    """

    type: ClassVar[str] = "correction"
    turn: int
    error: ErrorInfo
    forged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
    """The final answer."""

    type: ClassVar[str] = "final_answer"
    turn: int
    content: str
    sources: tuple[Any, ...] = ()
    bare_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedRecord:
    """The run ended without an answer, and why.

    ``waiting_for`` says whom the run was waiting for when its time ran out: the backend, a tool, or
    nobody. ``partial`` is what had come of a completion that broke off: kept, never read.
    """

    type: ClassVar[str] = "stopped"
    reason: str
    message: str = ""
    waiting_for: Literal["", "backend", "tool"] = ""
    partial: str = ""


Record = (
    Header
    | UserRecord
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
    | ObservationRecord
    | CorrectionRecord
    | AnswerRecord
    | StoppedRecord
)
