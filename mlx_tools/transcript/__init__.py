"""Records, outcomes, events and metrics of a session, as values. Pure."""

from mlx_tools.transcript.call_history import Consents, RunHistory, SessionHistory
from mlx_tools.transcript.chat_messages import observation_text, tool_call
from mlx_tools.transcript.counters import Counters, CounterSum, count
from mlx_tools.transcript.doubt import UnknownEnds, calls_in_doubt, in_doubt_after, unknown_ends_of
from mlx_tools.transcript.endings import EMPTY_ANSWER, STOP_WORDS, cut_in_words, stopped_in_words
from mlx_tools.transcript.events import (
    AnswerPiece,
    CallRead,
    Compacted,
    Event,
    Finished,
    FormatBroken,
    ThoughtPiece,
    ToolEnded,
    ToolStarted,
)
from mlx_tools.transcript.outcome import (
    PREVIEW_CHARS,
    Answered,
    CallReport,
    Outcome,
    Paused,
    Stopped,
    Unfinished,
    context_used,
    last_run,
    outcome_of,
    outcome_of_run,
    pending_calls,
)
from mlx_tools.transcript.records import (
    TRANSITIONS,
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
    FileView,
    GoldenRecord,
    Header,
    MendKind,
    MendRecord,
    NestedRecord,
    ObservationRecord,
    PauseRecord,
    PendingCall,
    PromptRecord,
    Record,
    RecordedSettings,
    RepairRecord,
    ResumedRecord,
    StartedCall,
    State,
    StoppedRecord,
    SummaryRecord,
    UserRecord,
    at_rest,
    dropped_text,
    is_at_rest,
)
from mlx_tools.transcript.sources import (
    NumberedSource,
    RenderedSources,
    Source,
    Sources,
    expand_citations,
    render_sources,
    sources_in,
    sources_of,
)
