"""The session decides, the driver acts.

A `Session` folds the records of a transcript and returns the next step: complete this prompt, run
these calls, ask a person about those calls, or nothing more. It does no I/O and reads no clock, so
every path, crash and limit can be tested without a model. Folding the same records again gives the
same session; that is how a session is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, Self

from msgspec import Struct, field

from mlx_tools.controller.result import settle_result
from mlx_tools.controller.state import CALL_RECORDS, CallState, SessionInputs, SessionState, Turn
from mlx_tools.controller.turn import follow, refusal
from mlx_tools.errors import MlxToolsError, TranscriptError
from mlx_tools.messages import ErrorInfo, FinishReason, Strategy, ToolSpec, replace
from mlx_tools.policy import Policy
from mlx_tools.prompt import (
    ChatMessage,
    may_leave,
    native_messages,
)
from mlx_tools.protocol import (
    Reading,
    ReadingRules,
    as_repetition,
    find_call_keys,
    forcing_prefix,
    opening,
    read,
    with_mended,
)
from mlx_tools.transcript import (
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
    GoldenRecord,
    Header,
    MendRecord,
    ObservationRecord,
    PauseRecord,
    Record,
    ResumedRecord,
    RunHistory,
    State,
    StoppedRecord,
    UserRecord,
)

_DAMAGE: Final = (
    *(MlxToolsError, ArithmeticError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)
"""Exceptions that a fold raises on a record with nonsensical values."""

_IN_TURN: Final = (State.READING, State.CALLING, State.PAUSED)
_BEGINS_CALLING: Final = ("execution_started", "paused")


# --- steps ----------------------------------------------------------------------------------------


class Thought(Struct, frozen=True):
    """A thinking model's thought before the prefix: within ``budget`` tokens.

    ``opening`` follows the prompt, then comes the model's thought, then ``closing``.
    """

    opening: str
    closing: str
    marker: str
    budget: int


class Complete(Struct, frozen=True):
    """Ask the model to continue ``prompt``, which ends in ``rules.prefix``.

    ``strategy`` says how. ``tools`` are those that the model knows. ``messages`` have the same
    content as the prompt, for a turn that begins with the server's own chat interface.
    """

    turn: int
    prompt: str
    rules: ReadingRules
    max_tokens: int
    thought: Thought | None = None
    strategy: Strategy = "free"
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    messages: tuple[ChatMessage, ...] | None = None


class Write(Struct, frozen=True):
    """Append these records: they follow from the records so far."""

    records: tuple[Record, ...]


class Execute(Struct, frozen=True):
    """Run these calls, in parallel."""

    calls: tuple[CallRecord, ...]


class Ask(Struct, frozen=True):
    """Ask a person about these calls."""

    calls: tuple[CallRecord, ...]


class Idle(Struct, frozen=True):
    """Do nothing: the next record is a question or an approval, or there is none.

    ``state`` is the state of the session.
    """

    state: str


Step = Complete | Write | Execute | Ask | Idle


def fills(size: int | None, used_tokens: int | None) -> bool:
    """Return whether so much of a context is used that a person is told: four fifths."""
    return size is not None and used_tokens is not None and 5 * used_tokens >= 4 * size


def reread_completion(record: CompletionRecord, rules: ReadingRules) -> Reading:
    """Read a recorded completion again, by the rules under which it was written."""
    reading = read(record.text, record.finish_reason or "stop", rules)
    reading = with_mended(reading, record.mended_messages)
    return as_repetition(reading) if record.repeated else reading


class CompletionText(Protocol):
    """The parts of a completion that reading needs, with a record or without one."""

    @property
    def prefix(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...
    @property
    def mended_messages(self) -> tuple[int, ...]: ...


class Session(SessionState):
    """The fold of a transcript's records, and the step that comes next.

    What an open session holds is documented at the fields of `SessionState`.
    """

    @classmethod
    def from_records(cls, records: Sequence[Record], inputs: SessionInputs) -> Self:
        """Return the session of a whole transcript.

        Raises:
            TranscriptError: the records cannot be those of a session; it names the first that
                cannot.
        """
        session: Self | None = None
        for number, record in enumerate(records, start=1):
            try:
                if session is not None:
                    session.apply(record)
                elif isinstance(record, Header):
                    session = cls(record, inputs)
                else:
                    raise TranscriptError(f"a {record.type} record may not come first")
            except _DAMAGE as error:
                problem = getattr(error, "message", type(error).__name__)
                raise TranscriptError(f"record {number} of the transcript: {problem}") from error
        if session is None:
            raise TranscriptError("the transcript is empty")
        return session

    # --- the fold ---

    def apply(self, record: Record) -> None:
        """Fold one record. Raises `TranscriptError` if it may not come now."""
        self.check(record)
        self.fold(record)

    def check(self, record: Record) -> None:
        """Raise `TranscriptError` if this record may not come now; change nothing.

        Beside the table of transitions: a record must be about an open call. It must not start a
        call that may not start, or answer a question that nobody asks. A question must have a text,
        and each request that was shown its digest.
        """
        # The table comes first: it says what can follow, and the other checks only narrow that.
        if record.type not in TRANSITIONS[self.state] and not self._begins_calling(record):
            raise TranscriptError(f"a {record.type} record may not follow while {self.state.value}")
        if isinstance(record, CALL_RECORDS):
            state = self.current.open_calls.get(record.call)
            if state is None:
                raise TranscriptError(
                    f"a {record.type} record speaks of the call {record.call!r}, which is not open"
                )
            if isinstance(record, ExecutionRecord) and not state.may_run:
                raise TranscriptError(f"the call {record.call!r} was not allowed to run")
            if isinstance(record, (ApprovalRecord, EditRecord)) and not self.current.is_pending(
                record.call
            ):
                raise TranscriptError(f"nobody asks about the call {record.call!r} (any more)")
        elif isinstance(record, ResumedRecord) and self.state is State.STOPPED:
            if not self.current.open_calls:
                raise TranscriptError("a run that has stopped has no call to decide about")
        elif isinstance(record, UserRecord) and not record.content.strip():
            raise TranscriptError("the question is empty")
        elif isinstance(record, CarriedRecord) and self.question:
            raise TranscriptError(f"a {record.type} record may not follow a question")
        elif isinstance(record, ExtendedRecord) and not self.at_step_limit:
            raise TranscriptError("the question has not used its steps")
        # Both lists are read in parallel later: a missing digest would bind an approval to another
        # call.
        elif isinstance(record, PauseRecord) and len(record.calls) != len(record.digests):
            raise TranscriptError("a paused record has not one digest for each of its calls")
        elif isinstance(record, CompactedRecord):
            answering = self.state is State.COMPLETING
            if not may_leave(self.prompt, record.removed, answering=answering):
                raise TranscriptError(f"a {record.type} record takes away what is no whole turn")

    def _begins_calling(self, record: Record) -> bool:
        """Return whether the record shows that the decisions of a turn are complete.

        Today there might be more of them: tools or the policy were different then.
        """
        at_end = self.state is State.READING and record.type in _BEGINS_CALLING
        return at_end and bool(self.current.open_calls)

    def fold(
        self, record: Record, reading: Reading | None = None, *, is_past: bool = False
    ) -> None:
        """Fold a record that `check` let pass, and that nothing has come after.

        Args:
            record: the record.
            reading: how a completion was read, if that was done already.
            is_past: what follows from a completion is known: no call of it is decided about.
        """
        # In an old transcript a turn may have fewer decisions than would be made today.
        if self.state is State.READING and record.type in _BEGINS_CALLING:
            self.current.drop_unwritten()
        match record:
            case GoldenRecord() | MendRecord():
                # what a session is for; how the completion came about is in the earlier records
                return
            case CarriedRecord():
                self._carry(record)
                return
            case UserRecord():
                self._ask(record)
            case CompletionRecord():
                self._complete(record, reading, is_past=is_past)
            case StoppedRecord():
                self.state = State.STOPPED
            case AnswerRecord():
                self.state = State.IDLE
            case PauseRecord():
                self.state, self.pause = State.PAUSED, record
            case ResumedRecord():
                self.policy = Policy.from_json(record.policy)
                if self.state in (State.PAUSED, State.STOPPED):
                    self.state = State.CALLING
            case ExtendedRecord():
                self.max_iterations += record.iterations
                return
            case CompactedRecord():
                self.prompt.add(record)
                self.known_tools.compact(record, self.prompt.records)
                self.summary_artifacts = record.artifacts
                self.filling = self.filling and record.reason == "full"
                return
            case _:
                self._follow(record)
        self.prompt.add(record)

    def _carry(self, message: CarriedRecord) -> None:
        """Fold what was said before: its content is known, and nothing of it counts."""
        record = message.record
        match record:
            case UserRecord():
                self.known_tools.ask(record, "auto")
                self._hear(record)
            case CallRecord():
                # Keys are never used twice: an approval of ``c3`` must not fit another call.
                self.calls_made += 1  # new keys continue these
            case ObservationRecord():
                self._note_observation(record, RunHistory())
            case CompactedRecord():
                # The removed records were folded before: only these new words can hold a call to be
                # echoed.
                self.calls_seen_in_outputs |= find_call_keys(record.content)
                self.known_tools.compact(record, ())
                self.summary_artifacts = record.artifacts
        for call in message.unknown_ends:
            self.history.unknown_ends.begin(call)
        self.history.private_read |= message.private
        self.prompt.add(record)

    def _hear(self, record: UserRecord) -> None:
        """Note the words of a question; a call in text that was piped in may be echoed."""
        if record.untyped_suffix_chars:
            self.calls_seen_in_outputs |= find_call_keys(
                record.content[-record.untyped_suffix_chars :]
            )
        self.first_question = self.first_question or record.content

    def _ask(self, record: UserRecord) -> None:
        self.tool_choice = record.tool_choice or self.header.tool_choice
        self.known_tools.ask(record, self.tool_choice)
        # Limits are those of one question; earlier questions do not count.
        self.iterations = 0
        self.max_iterations = self.limits.max_iterations
        self.format_errors = 0
        self.repetitions = 0
        self.told_to_finish = False
        # True if the model was just told that its text looks like a call
        self.corrected_call_like = False
        self._hear(record)
        self.question = record.content
        self.retries = record.retries
        self.run_history = RunHistory()
        self.state = State.COMPLETING

    def _complete(
        self, record: CompletionRecord, reading: Reading | None, *, is_past: bool
    ) -> None:
        if reading is None and record.error is not None:
            reading = Reading(error=record.error)
        elif reading is None:
            reading = self.settle_reading(
                reread_completion(record, self._rules(record.prefix)), record
            )
        # Before the turn is read: a record holds only the part of its prompt that follows this one.
        self.sent_prompt.take(record)
        self.completed, self.turn = record, record.turn
        self.history.last_completed_at = record.recorded_at
        # Stays true until something is summed up: a shorter prompt does not reset it.
        if record.context is not None:
            self.filling = self.filling or fills(self.header.context, record.context)
        self.iterations += 1
        # What followed is recorded. Deciding again could differ under today's tools and policy.
        self.current = Turn(()) if is_past else follow(reading, record, self)
        self.corrected_call_like = reading.call_like
        self.state = State.READING

    def _follow(self, record: Record) -> None:
        """Fold a record of a turn.

        The session goes on once all records of its completion are there, and all calls are
        answered.
        """
        turn, times = self.current, 0
        match record:
            case CorrectionRecord():
                if record.error.code == "iteration_limit":
                    self.told_to_finish = True
                    return
                self.format_errors += 1
                # Counted apart from format errors: one warning is enough for a model in a loop.
                self.repetitions += record.error.code == "repetition"
                if self.state is not State.READING:
                    return
            case ExecutionRecord():
                if record.mutates:
                    # From its start on, not from a crash: nobody may be left to record that the end
                    # is unknown.
                    self.history.unknown_ends.begin(turn.call(record.call))
                # A consent holds once its call has started: an approval that was never used is no
                # consent.
                yes = turn.calls[record.call].approval
                if yes is not None and yes.scope == "session" and self.believes(yes):
                    self.history.add_consent(turn.call(record.call).name, yes)
            case CallRecord():
                # A call that was read shows that the model knows the form: only errors in a row
                # count.
                self.format_errors = 0
                self.calls_made += 1
                spec = self.specs.get(record.name)
                times = self.run_history.add(record.name, record.arguments, spec)
            case DecisionRecord() if record.decision != "deny":
                self.history.rate_counts[record.call] = (
                    turn.calls[record.call].record.name,
                    self.history.last_completed_at,
                )
            case ObservationRecord():
                self._observe(record)
        turn.note(record)
        # Known only after the turn has noted the call.
        if times > 1 and isinstance(record, CallRecord):
            turn.calls[record.call].repeats = True
        if self.state in _IN_TURN and not turn.unwritten:
            self.state = State.CALLING if turn.open_calls else State.COMPLETING

    def _observe(self, record: ObservationRecord) -> None:
        if record.nested:  # one completion is left, whatever nested runs have used
            self.iterations = min(self.iterations + record.nested, self.max_iterations)
        state = self.current.calls[record.call]
        self.history.unknown_ends.end(state.record, record, was_started=state.was_started)
        self.run_history.end(state.record, record.error)
        # Its turn had more calls than it may have, and nothing decided about this one. It was never
        # considered, so making it again in the next turn is no repetition.
        is_over = record.error is not None and record.error.code == "rate_limited"
        if is_over and state.decision is None:  # a policy's rate limit ends a call by a decision
            self.run_history.forget(state.record)
        search, ran = self._note_observation(record, self.run_history)
        self.run_history.acted |= ran and (not search or record.name == self.tool_choice)

    def _note_observation(self, record: ObservationRecord, run: RunHistory) -> tuple[bool, bool]:
        """Note an observation; return whether it is of a search, and whether its call ran."""
        search = self.known_tools.observe(record)
        ran = self.history.observe(record, self.specs.get(record.name), run)
        # A tool's error is an observation too, and its text may come from anybody. The results of a
        # search are lines of the catalog, from which the model is supposed to call.
        text = record.shown_text
        if text and not search:
            self.calls_seen_in_outputs |= find_call_keys(text)
        return search, ran

    # --- the next step ---

    def next_step(self) -> Step:
        """Return the next step. It follows from the records alone."""
        if self.state is State.COMPLETING:
            return self._completion_step()
        if self.state is State.READING:
            return Write(self.current.unwritten)
        if self.state is State.CALLING:
            states = self.current.open_calls.values()
            # Denials first: the model learns of all ends of its turn together.
            refused = [s for s in states if s.approval is not None and not s.approval.approved]
            if refused:
                return Write(tuple(map(self._denial, refused)))
            # A call that may run does not wait for a person's answer about others.
            if runnable := [state.record for state in states if state.may_run]:
                return Execute(tuple(runnable))
            return Ask(self.current.calls_needing_decision())
        return Idle(self.state)

    def _denial(self, state: CallState) -> ObservationRecord:
        """Return the end of a call that a person refused.

        The call may have done its work before.
        """
        reason = state.approval.reason if state.approval is not None else ""
        return refusal(state.record, self, "in_doubt" if state.in_doubt else "denied", reason)

    @property
    def at_step_limit(self) -> bool:
        """True if the question has used its completions; False once told to finish."""
        used = self.state is State.COMPLETING and self.iterations >= self.max_iterations
        return (
            used
            and not self.told_to_finish
            and self.format_errors < (self.limits.max_format_errors)
        )

    def _completion_step(self) -> Step:
        limits = self.limits
        if self.repetitions > 1:  # it was warned once, and does it again
            return Write((StoppedRecord(reason="repetition"),))
        if self.format_errors >= limits.max_format_errors:
            return Write((StoppedRecord(reason="format_errors"),))
        if self.at_step_limit:
            text = self.words.error("iteration_limit")
            if self.result is not None:
                text = self._result_text("finish")
            notice = CorrectionRecord(turn=self.turn, error=ErrorInfo("iteration_limit", text))
            return Write((notice,))
        # It was told to finish, and has used the one completion for that.
        if self.iterations > self.max_iterations:
            return Write((StoppedRecord(reason="iteration_limit"),))
        style, choice, tools = self.header.style, self.choice, self.offered_tools
        native, strategy = self._uses_native_chat(choice), self.header.strategy
        messages, prefix, thought = None, "", None
        if native:
            # Text from a chat interface is mended like any other, if the server also completes
            # text.
            strategy = "auto" if self.header.route.get("completes", True) else "free"
            messages = native_messages(
                self.prompt, self.header, self.words, self.neutraliser, self.result_name
            )
        # Even a free choice begins with the opening of a message: so the rest is held to the
        # schema.
        elif strategy == "guided" and choice == "auto":
            prefix = opening(style) if tools else forcing_prefix(style, "none")
        else:
            prefix = forcing_prefix(style, choice, self.call_form)
        if not native and self.header.reasoning != "off":
            thought = self._thought(prefix)
        return Complete(
            turn=self.turn + 1,
            prompt=self.prompt.render("" if thought else prefix),
            rules=self._rules(prefix),
            max_tokens=limits.completion_tokens,
            thought=thought,
            strategy=strategy,
            tools=tools,
            messages=messages,
        )

    def _uses_native_chat(self, choice: str) -> bool:
        """Return whether the model is asked by its server's own chat interface.

        A model that can be prompted instead is prompted in two cases: the interface has just
        failed, or it would ignore which tool must be called.
        """
        route = self.header.route
        if route.get("path") != "native":
            return False
        forced = choice not in ("auto", "none") and not route.get("obeys", True)
        return not (route.get("completes", True) and (self.format_errors or forced))

    def _result_text(self, key: str) -> str:
        return self.words.text(f"result.{key}", name=self.result_name)

    def settle_reading(self, reading: Reading, completion: CompletionText) -> Reading:
        """Return how a completion is read if its answer is a call.

        By the rules alone it is read as ``reading`` (`mlx_tools.controller.result.settle_result`).
        """
        if self.result is None:
            return reading

        def read_with(**changes: Any) -> Reading:
            rules = replace(self._rules(completion.prefix), **changes)
            return with_mended(
                read(completion.text, completion.finish_reason or "stop", rules),
                completion.mended_messages,
            )

        return settle_result(
            self.result,
            reading,
            self.specs,
            read_with,
            wanted_message=self._result_text("wanted"),
            early_message=self._result_text("early") if self.must_act else "",
        )

    def _rules(self, prefix: str) -> ReadingRules:
        """Return the rules for reading a turn that the host began with ``prefix``."""
        choice = self.choice
        native = self._uses_native_chat(choice)
        is_one = choice in self.specs or choice == self.result_name
        thinking = self.prompt.thought_open and self._thought(prefix) is None
        # One call more than may run is read, so that the model is told about it.
        most = self.limits.max_calls_per_turn
        most = 1 if is_one or most == 1 else most + 1
        return ReadingRules(
            style="jsonl" if native else self.header.style,
            server_split_calls=native,
            prefix=prefix,
            in_thought=thinking and not native,
            max_calls=most,
            tool_choice=choice,
            mutates=self.may_mutate,
            reasoning_markers=self.reasoning_markers,
            catalog={name: spec.parameters for name, spec in self.offered_tools.items()},
            native=self.call_marks,
            call=self.call_form,
            ends=self.chat_format.turn_ends,
            result=self.result_name,
        )

    def may_mutate(self, name: str, arguments: Mapping[str, object]) -> bool:
        """Return whether a call may change something: True for a tool that is not known."""
        if name == self.result_name:
            return False
        spec = self.specs.get(name)
        return spec is None or spec.mutates(arguments)

    def _thought(self, prefix: str) -> Thought | None:
        """Plan the thought, if one is wanted and could swallow the prefix."""
        reasoning, markers = self.header.reasoning, self.chat_format.reasoning
        forced = bool(prefix) or self.header.strategy in ("guided", "grammar")
        if markers is None or reasoning == "off" or not (forced or isinstance(reasoning, int)):
            return None
        opening = "" if self.prompt.thought_open else f"{markers[0]}\n"
        # A thought before a forced beginning needs an end, or the prefix would be within it.
        budget = reasoning if isinstance(reasoning, int) else self.limits.completion_tokens
        return Thought(opening, f"\n{markers[1]}\n\n{prefix}", markers[1], budget)

    def question_record(
        self,
        content: str,
        tool_choice: str | None,
        recorded_at: str = "",
        untyped_suffix_chars: int = 0,
        retries: int = 0,
    ) -> UserRecord:
        """Return the record of a question, with the tools that come with it.

        `KnownTools.offer` chooses these.
        """
        tools = self.known_tools.offer(content, tool_choice or self.header.tool_choice)
        return UserRecord(
            content=content,
            recorded_at=recorded_at,
            tool_choice=tool_choice,
            tools=tools,
            untyped_suffix_chars=untyped_suffix_chars,
            retries=retries,
        )
