"""The state of a session, and the calls of its current turn.

Pure. `mlx_tools.controller.session` folds records into it and decides from it what step is next;
`mlx_tools.controller.turn` reads it to say what follows from a completion.
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
    """The state of one call.

    ``decision`` is the last one, ``approval`` what a person said, where that still holds,
    ``summary`` what the model wrote of its output. ``nested`` has the sessions of the runs within
    it, by number. ``was_started``: it began to run, be it that nobody knows how it ended;
    ``in_doubt``: just that, and it can change things. ``may_run``: a person let it, or policy did
    and it is not in doubt. ``repeats``: the same call was made before in this run, and nothing has
    changed since.
    """

    record: CallRecord
    decision: DecisionRecord | None = None
    approval: ApprovalRecord | None = None
    summary: SummaryRecord | None = None
    nested: dict[int, str] = field(default_factory=dict)
    edited: bool = False
    was_started: bool = False
    in_doubt: bool = False
    may_run: bool = False
    repeats: bool = False


class Turn(Struct):
    """The records that one completion brings, and how far its calls have come.

    ``noted`` is how many of the records are written. ``calls`` has all calls by key, ``open_calls``
    those that have no observation yet.
    """

    records: Sequence[Record] = ()
    noted: int = 0
    calls: dict[str, CallState] = field(default_factory=dict)
    open_calls: dict[str, CallState] = field(default_factory=dict)

    @property
    def unwritten(self) -> tuple[Record, ...]:
        """The records that follow from the completion and are not written yet.

        None does about a call that has ended: tools were others when it did.
        """
        if self.noted >= len(self.records):
            return ()
        rest = self.records[self.noted :]
        # Their ends are recorded: what today's policy says of them must not be written beside that.
        if ended := self.calls.keys() - self.open_calls.keys():
            about = (DecisionRecord, ObservationRecord)
            rest = [r for r in rest if not (isinstance(r, about) and r.call in ended)]
        return tuple(rest)

    def copy(self) -> Turn:
        """Return a copy that can go on while this turn stays as it is."""
        calls = {key: replace(state, nested={**state.nested}) for key, state in self.calls.items()}
        return replace(self, calls=calls, open_calls={key: calls[key] for key in self.open_calls})

    def drop_unwritten(self) -> None:
        """Take it that nothing more follows from the completion than what was noted."""
        self.records = self.records[: self.noted]

    def note(self, record: Record) -> None:
        """Take in a record that came after the completion."""
        if self.noted < len(self.records):
            self.noted += 1
        if isinstance(record, CallRecord):
            self.calls[record.call] = self.open_calls[record.call] = CallState(record)
        if not isinstance(record, CALL_RECORDS):
            return
        state = self.calls[record.call]
        # Before the match: each of the cases below may ask for it.
        state.in_doubt = in_doubt_after(record, state.in_doubt)
        match record:
            case DecisionRecord():
                # A new decision takes an old approval away: it was given under another rule.
                state.decision, state.approval = record, None
            case EditRecord():
                # Whatever it was before: only the approval that comes next lets it run.
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
        """Open calls that a person must decide about."""
        return tuple(s.record for key, s in self.open_calls.items() if self.is_pending(key))


class SessionInputs(Struct, frozen=True, kw_only=True):
    """The inputs of a session besides its records: none changes while it is open.

    What the tools were when a record was written may differ from what they are now: what is
    recorded holds.
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

    A record has only what is new of it.

    The text is put together when it is asked for: each completion of a long transcript would
    else copy all of it.
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
        """Take in a completion, whose prompt begins as the one before; it may be unknown."""
        shared = 0 if record.prompt is None else record.shared_prefix_chars
        # Cut from the end: prompts share a beginning, and mostly all but the last part.
        while self._parts and self._chars > shared:
            last = self._parts.pop()
            self._chars -= len(last)
            if self._chars < shared:
                self._parts.append(last[: shared - self._chars])
                self._chars = shared
        self._parts.append(record.prompt or "")
        self._chars += len(record.prompt or "")


# The headers that a gateway makes share these parts, which are checked when they are read.
_read_policy: Final = cache_by_identity(Policy.from_json)
_read_limits: Final = cache_by_identity(Limits.from_json)
_read_format: Final = cache_by_identity(ChatFormat.from_json)


class SessionState:
    """The state that the records of a session come to.

    Made from a header; `Session` folds the records that follow into it.
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
        """The tool whose call is the answer, where that has to fit a schema. The model knows it as
        it knows the others; nobody else does."""
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
        """Calls that stand in outputs: the model might echo them."""
        self.summary_artifacts: tuple[str, ...] = ()
        """The artifacts of what was summed up last."""
        self.pause: PauseRecord | None = None
        self.sent_prompt = SentPrompt()
        self.completed: CompletionRecord | None = None
        self.filling = False
        """Four fifths of the context were used, and nothing has been summed up since."""
        self.current = Turn(())
        # --- the question under way ---
        self.question, self.retries = "", 0
        """Its text, and the number of times that it was asked before."""
        self.tool_choice = header.tool_choice
        self.run_history = RunHistory()
        """The part of the history since the last question."""
        self.iterations = 0
        self.max_iterations = self.limits.max_iterations
        self.format_errors = 0
        self.repetitions = 0
        self.told_to_finish = False
        self.corrected_call_like = False
        """The model was just told that its text looks like a call."""

    def copy(self) -> Self:
        """Return a copy that can go on while this session stays as it is."""
        other = copy(self)
        # All that folding changes in place is copied; records and settings are shared.
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
        # A forced choice would never let the model answer: it holds for one call.
        elif choice not in ("auto", "none") and self.run_history.acted:
            choice = "auto"
        if self.result is None or choice not in ("auto", "none"):
            return choice
        answers = choice == "none" or self.run_history.reminded or not self.known_tools.tools
        return self.result_name if answers else "required"

    @property
    def offered_tools(self) -> Mapping[str, ToolSpec]:
        """The tools that the model may call now, the one whose call is the answer last."""
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

        No standing consent covers it then.
        """
        own = self.current.calls.get(call.call)
        return (own is not None and own.in_doubt) or self.history.unknown_ends.holds(
            call.name, call.arguments
        )
