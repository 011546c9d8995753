"""The state of a session, and the calls of its current turn.

Pure. `mlx_tools.controller.session` folds records into it and decides the next step by it.
`mlx_tools.controller.turn` reads it to work out what follows from a completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Final, Self

from msgspec import Struct, field

from mlx_tools.messages import ToolSpec, replace
from mlx_tools.policy import Limits, Policy, SecretFinder, can_be_allowed
from mlx_tools.prompt import (
    ChatFormat,
    KnownTools,
    PromptWords,
    ResultTool,
    new_prompt,
    result_tool,
)
from mlx_tools.protocol import DEFAULT_REASONING_MARKERS
from mlx_tools.schema import cache_by_identity
from mlx_tools.tools import Finder
from mlx_tools.transcript import (
    ApprovalRecord,
    CallRecord,
    CompletionRecord,
    Consents,
    DecisionRecord,
    EditRecord,
    ExecutionRecord,
    Header,
    NestedRecord,
    ObservationRecord,
    PauseRecord,
    Record,
    RunHistory,
    SessionHistory,
    State,
    SummaryRecord,
    UnknownEnds,
    in_doubt_after,
)

CALL_RECORDS: Final = (
    *(DecisionRecord, ObservationRecord, ExecutionRecord, NestedRecord),
    *(SummaryRecord, ApprovalRecord, EditRecord),
)
"""Records about one call, which must be open."""


class CallState(Struct):
    """The state of one call."""

    record: CallRecord
    decision: DecisionRecord | None = None
    """The last decision."""
    approval: ApprovalRecord | None = None
    """A person's answer, while it holds."""
    summary: SummaryRecord | None = None
    """The model's summary of its output."""
    nested: dict[int, str] = field(default_factory=dict)
    """The sessions of its nested runs, by number."""
    edited: bool = False
    was_started: bool = False
    """True once it began to run, also if nobody knows how it ended."""
    in_doubt: bool = False
    """True if it was started, can change things, and nobody knows how it ended."""
    may_run: bool = False
    """True if a person allowed it, or policy did and it is not in doubt."""
    repeats: bool = False
    """True if the same call was made before in this run, and nothing has changed since."""


class Turn(Struct):
    """The records that follow from one completion, and the states of its calls."""

    records: Sequence[Record] = ()
    noted: int = 0
    """The number of the records that are written."""
    calls: dict[str, CallState] = field(default_factory=dict)
    """All calls, by key."""
    open_calls: dict[str, CallState] = field(default_factory=dict)
    """The calls without an observation, by key."""

    @property
    def unwritten(self) -> tuple[Record, ...]:
        """The records that follow from the completion and are not written yet.

        There is none about a call that has ended: the tools may have changed since.
        """
        if self.noted >= len(self.records):
            return ()
        rest = self.records[self.noted :]
        # Their ends are recorded. The decision of today's policy must not be written beside that.
        if ended := self.calls.keys() - self.open_calls.keys():
            about = (DecisionRecord, ObservationRecord)
            rest = [r for r in rest if not (isinstance(r, about) and r.call in ended)]
        return tuple(rest)

    def copy(self) -> Turn:
        """Return a copy that can go on while this turn stays as it is."""
        calls = {key: replace(state, nested={**state.nested}) for key, state in self.calls.items()}
        return replace(self, calls=calls, open_calls={key: calls[key] for key in self.open_calls})

    def drop_unwritten(self) -> None:
        """Drop the records that follow from the completion and were not written."""
        self.records = self.records[: self.noted]

    def note(self, record: Record) -> None:
        """Note a record that came after the completion."""
        if self.noted < len(self.records):
            self.noted += 1
        if isinstance(record, CallRecord):
            self.calls[record.call] = self.open_calls[record.call] = CallState(record)
        if not isinstance(record, CALL_RECORDS):
            return
        state = self.calls[record.call]
        # Before the match: each of the cases below may need it.
        state.in_doubt = in_doubt_after(record, state.in_doubt)
        match record:
            case DecisionRecord():
                # A new decision removes an old approval, which was given under another rule.
                state.decision, state.approval = record, None
            case EditRecord():
                # Whatever the call was before: only the next approval lets it run.
                state.record = replace(
                    state.record, arguments=record.arguments, runs="with_approval", echoed=False
                )
                state.edited, state.decision = True, None
            case ApprovalRecord():
                state.approval = record
            case ExecutionRecord():
                state.was_started, state.approval = True, None  # the approval is used up
            case NestedRecord():
                state.nested[record.run] = record.session
            case SummaryRecord():
                state.summary = record
            case ObservationRecord():
                del self.open_calls[record.call]
        if state.approval is not None:
            state.may_run = state.approval.approved
        else:
            allowed = state.decision is not None and state.decision.decision == "allow"
            # Policy never repeats a call in doubt; only a person's approval of that very call does.
            state.may_run = allowed and not state.in_doubt

    def call(self, key: str) -> CallRecord:
        """Return the call with this key, as it is now."""
        return self.calls[key].record

    def is_pending(self, key: str) -> bool:
        """Return whether a person must decide about this call."""
        state = self.open_calls.get(key)
        return state is not None and not state.may_run and state.approval is None

    def calls_needing_decision(self) -> tuple[CallRecord, ...]:
        """Return the open calls that a person must decide about."""
        return tuple(s.record for key, s in self.open_calls.items() if self.is_pending(key))


class SessionInputs(Struct, frozen=True, kw_only=True):
    """The inputs of a session besides its records, which are fixed while it is open.

    The tools may differ from those of the time when a record was written; then the record counts.
    """

    specs: Mapping[str, ToolSpec]
    """The tools that exist now, by name."""
    words: PromptWords
    """The texts that a model reads."""
    disabled: Mapping[str, str] = field(default_factory=dict)
    """The tools that exist but cannot run, with the reason."""
    finder: SecretFinder | None = None
    """Looks for secrets in arguments; None for the built-in patterns."""
    believes: Callable[[ApprovalRecord], bool] = lambda record: True
    """Returns whether a person really said what an approval record says."""
    consents: Consents | None = None
    """The consents of the session that this one runs within."""
    unknown_ends: UnknownEnds | None = None
    """The calls of that session whose end nobody knows."""


class SentPrompt:
    """The prompt of the last completion, empty while it is unknown.

    A record has only the new part of its prompt.

    The text is joined when it is needed: otherwise each completion of a long transcript would copy
    all of it.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._chars = 0

    def __str__(self) -> str:
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    def copy(self) -> SentPrompt:
        """Return a copy that can go on while this prompt stays as it is."""
        other = copy(self)
        other._parts = [*self._parts]
        return other

    def take(self, record: CompletionRecord) -> None:
        """Add a completion's prompt, which begins as the one before it; it may be unknown."""
        shared = 0 if record.prompt is None else record.shared_prefix_chars
        # Cut from the end: prompts share a beginning, mostly all but the last part.
        while self._parts and self._chars > shared:
            last = self._parts.pop()
            self._chars -= len(last)
            if self._chars < shared:
                self._parts.append(last[: shared - self._chars])
                self._chars = shared
        self._parts.append(record.prompt or "")
        self._chars += len(record.prompt or "")


# The headers that a gateway makes share these parts, so they are parsed once.
_read_policy: Final = cache_by_identity(Policy.from_json)
_read_limits: Final = cache_by_identity(Limits.from_json)
_read_format: Final = cache_by_identity(ChatFormat.from_json)


class SessionState:
    """The state that the records of a session lead to.

    It is made from a header; `Session` folds the later records into it.
    """

    def __init__(self, header: Header, inputs: SessionInputs) -> None:
        self.header = header
        self.specs = inputs.specs
        self.words = inputs.words
        self.disabled = inputs.disabled
        self.finder = inputs.finder
        self.believes = inputs.believes
        self.state = State.IDLE
        self.policy = _read_policy(header.policy)
        self.limits = _read_limits(header.limits)
        # --- how the model is spoken to ---
        self.chat_format = _read_format(header.chat_format)
        own = (self.chat_format.reasoning,) if self.chat_format.reasoning is not None else ()
        self.reasoning_markers = tuple(dict.fromkeys((*own, *DEFAULT_REASONING_MARKERS)))
        tools = self.chat_format.tools if header.style == "native" else None
        mark = () if tools is None else (tools.marks[0] if tools.marks else "",)
        self.call_form = ("", "") if tools is None else tools.call
        """The beginning of a call in the model's own template."""
        self.call_marks = frozenset((*self.chat_format.dialects, *mark))
        """All marks that open a call."""
        self.prompt = new_prompt(
            self.chat_format,
            tuple((one.get("role"), one.get("content")) for one in header.examples),
            style=header.style,
            system=header.system,
            words=self.words,
            reasoning=header.reasoning,
            tool_choice=header.tool_choice,
            answers_by_call=header.output_schema is not None,
        ).copy()
        self.neutraliser = self.prompt.neutraliser
        permitted = {n: s for n, s in self.specs.items() if can_be_allowed(self.policy, s)}
        self.known_tools = KnownTools(header, permitted, Finder)
        self.result: ResultTool | None = None
        """The tool whose call is the answer, if the answer has to fit a schema. The model knows it
        like the other tools; nothing else does."""
        if header.output_schema is not None:
            names = {str(tool.get("name")) for tool in header.tools}
            self.result = result_tool(header.output_schema, names, self.words)
        self.result_name = "" if self.result is None else self.result.spec.name
        # --- what happened ---
        asked = (said.get("content", "") for said in header.history if said.get("role") == "user")
        self.first_question = next(asked, "")
        """The first text of the user."""
        self.history = SessionHistory(inputs.consents, inputs.unknown_ends or UnknownEnds())
        self.turn = 0
        self.calls_made = 0
        self.calls_seen_in_outputs: set[str] = set()
        """Calls in outputs, which the model might echo."""
        self.summary_artifacts: tuple[str, ...] = ()
        """The artifacts of the texts that were summed up last."""
        self.pause: PauseRecord | None = None
        self.sent_prompt = SentPrompt()
        self.completed: CompletionRecord | None = None
        self.filling = False
        """True if four fifths of the context were used, and nothing was summed up since."""
        self.current = Turn(())
        # --- the question under way ---
        self.question, self.retries = "", 0
        """The text of the question, and how often it was asked before."""
        self.tool_choice = header.tool_choice
        self.run_history = RunHistory()
        """The part of the history since the last question."""
        self.iterations = 0
        self.max_iterations = self.limits.max_iterations
        self.format_errors = 0
        self.repetitions = 0
        self.told_to_finish = False
        self.corrected_call_like = False
        """True if the model was just told that its text looks like a call."""

    def copy(self) -> Self:
        """Return a copy that can go on while this session stays as it is."""
        other = copy(self)
        # All parts that folding changes in place are copied; records and settings are shared.
        other.prompt, other.known_tools = self.prompt.copy(), self.known_tools.copy()
        other.history, other.run_history = self.history.copy(), self.run_history.copy()
        other.calls_seen_in_outputs = {*self.calls_seen_in_outputs}
        other.sent_prompt, other.current = self.sent_prompt.copy(), self.current.copy()
        return other

    @property
    def choice(self) -> str:
        """The tool choice of the next completion.

        It is ``none`` after the model was told to finish. ``required`` and a named tool hold until
        one call has run; a search for tools does not count. With an output schema it is never
        ``auto`` or ``none``: the answer is a call then.
        """
        choice = self.tool_choice
        if self.told_to_finish:
            choice = "none"
        # A forced choice would never let the model answer, so it holds for one call.
        elif choice not in ("auto", "none") and self.run_history.acted:
            choice = "auto"
        if self.result is None or choice not in ("auto", "none"):
            return choice
        answers = choice == "none" or self.run_history.reminded or not self.known_tools.tools
        return self.result_name if answers else "required"

    @property
    def offered_tools(self) -> Mapping[str, ToolSpec]:
        """The tools that the model may call now, with the tool of the answer last."""
        if self.result is None or self.must_act:
            return self.known_tools.tools
        return {**self.known_tools.tools, self.result.spec.name: self.result.spec}

    @property
    def must_act(self) -> bool:
        """True if a tool must be called before there may be an answer."""
        due = self.tool_choice not in ("auto", "none") and not self.run_history.acted
        return due and not self.told_to_finish

    @property
    def calls_in_doubt(self) -> tuple[str, ...]:
        """The keys of the open calls that are in doubt, whatever became of the run."""
        return tuple(key for key, state in self.current.open_calls.items() if state.in_doubt)

    def is_doubtful(self, call: CallRecord) -> bool:
        """Return whether a call, or the same call before it, is in doubt.

        If so, no consent for the session covers it.
        """
        own = self.current.calls.get(call.call)
        return (own is not None and own.in_doubt) or self.history.unknown_ends.holds(
            call.name, call.arguments
        )
