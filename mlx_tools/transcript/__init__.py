"""What happened in a session, as values: records, outcomes, events, metrics. Pure."""

from mlx_tools.transcript.events import Compacted, Event, Finished, FormatBroken
from mlx_tools.transcript.history import Consents, RunHistory, SessionHistory
from mlx_tools.transcript.outcome import (
    PREVIEW_CHARS,
    Answered,
    CallReport,
    Outcome,
    Paused,
    Stopped,
    at_rest,
    outcome_of,
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
    GoldenRecord,
    Header,
    MendKind,
    MendRecord,
    NestedRecord,
    ObservationRecord,
    PauseRecord,
    PendingCall,
    Record,
    RepairRecord,
    ResumedRecord,
    Said,
    State,
    StoppedRecord,
    SummaryRecord,
    UserRecord,
    dropped,
)
from mlx_tools.transcript.sources import (
    GivenSource,
    Laid,
    Source,
    Sources,
    lay_out,
    sources_of,
    spelled_out,
)
