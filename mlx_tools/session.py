"""The session decides, the controller does.

A `Session` folds the records of a transcript and says what is due next: complete this prompt, run
these calls, ask a person about those, nothing more. It performs no I/O and reads no clock, so every
path, crash and limit can be tested without a model. Folding the same records again gives the same
session: that is all there is to resuming.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mlx_tools.due import Ask, Complete, Due, Execute, Observed, Rest, Thought, Write
from mlx_tools.errors import ErrorCode, TranscriptError
from mlx_tools.messages import ErrorInfo, Strategy, ToolCall
from mlx_tools.past import History, Past
from mlx_tools.policy import Finder, Limits, Policy, permitted
from mlx_tools.prompt import ChatFormat, Neutraliser, Prompt, PromptWords, Told
from mlx_tools.protocol import (
    DEFAULT_REASONING_MARKERS,
    Reading,
    ReadingRules,
    calls_in,
    forcing_prefix,
    read,
)
from mlx_tools.records import (
    AnswerRecord,
    ApprovalRecord,
    CallRecord,
    CompletionRecord,
    CorrectionRecord,
    ExecutionRecord,
    GoldenRecord,
    Header,
    ObservationRecord,
    PauseRecord,
    Record,
    ResumedRecord,
    StoppedRecord,
    UserRecord,
)
from mlx_tools.spec import ToolSpec
from mlx_tools.states import TRANSITIONS, State
from mlx_tools.turn import Turn, follow

MAX_BREAKS: Final = 2
"""After so many breaks of format a session on ``auto`` stays guided."""


class Session:
    """The fold of a transcript's records.

    ``asked`` is the prompt of the last completion, empty where it is unknown.
    ``specs`` are the tools that exist now, by name; ``disabled`` those that exist but cannot run,
    with the reason; ``words`` the texts that a model reads; ``finder`` looks for secrets. What the
    tools were when a record was written may differ from what they are now: what is recorded holds.
    """

    current: Turn
    prompt: Prompt
    policy: Policy
    asked_again: bool

    def __init__(
        self,
        records: Sequence[Record],
        *,
        specs: Mapping[str, ToolSpec],
        words: PromptWords,
        disabled: Mapping[str, str] | None = None,
        finder: Finder | None = None,
        believes: Callable[[ApprovalRecord], bool] = lambda record: True,
    ) -> None:
        self.state = State.EMPTY
        self.specs = specs
        self.words = words
        self.disabled = disabled or {}
        self.finder = finder
        self._believes = believes
        self.past = Past()
        self.turn = 0
        self.calls_made = 0
        self.breaks = 0
        self.pause: PauseRecord | None = None
        self.asked = ""
        self._pending: tuple[CompletionRecord, Reading] | None = None
        for record in records:
            self.apply(record)

    # --- the fold ---

    def apply(self, record: Record) -> None:
        """Folds one record. Raises `TranscriptError` where it may not come now."""
        self.check(record)
        self.fold(record)

    def fold(self, record: Record) -> None:
        """Folds a record that `check` let pass, and that nothing has come after."""
        if isinstance(record, Header):
            self._open(record)
            return
        if isinstance(record, GoldenRecord):
            return  # it says what the session is kept for
        if self._begins_calling(record):
            self.current.all_written()
        self.past.note(record, self.specs)
        match record:
            case UserRecord():
                self._ask(record)
            case CompletionRecord():
                self._complete(record)
                if self.asked_again:
                    return  # what was broken is recorded, and not sent
            case StoppedRecord():
                self.state = State.STOPPED
            case AnswerRecord():
                self.state = State.IDLE
            case PauseRecord():
                self.state = State.PAUSED
                self.pause = record
            case ResumedRecord():
                self.policy = Policy.from_json(record.policy)
                self.state = State.CALLING if self.state is State.PAUSED else self.state
            case CorrectionRecord():
                self._correct(record)
            case _:
                self._follow(record)
        self.prompt.add(record)

    def _open(self, header: Header) -> None:
        self.header = header
        self.policy = Policy.from_json(header.policy)
        self.limits = Limits.from_json(header.limits)
        self.chat_format = ChatFormat.from_json(header.chat_format)
        self._neutraliser = Neutraliser(self.chat_format.control_tokens)
        own = (self.chat_format.reasoning,) if self.chat_format.reasoning is not None else ()
        self._markers = tuple(dict.fromkeys((*own, *DEFAULT_REASONING_MARKERS)))
        self.prompt = Prompt(
            chat_format=self.chat_format,
            style=header.style,
            system=header.system,
            examples=header.examples,
            neutraliser=self._neutraliser,
            words=self.words,
            reasoning=header.reasoning,
        )
        self.observations: list[str] = []  # those in which calls stand, which might be echoed
        self.current = Turn(())
        self.told = Told(header, {n: s for n, s in self.specs.items() if permitted(self.policy, s)})
        self.state = State.IDLE

    def _ask(self, record: UserRecord) -> None:
        self.tool_choice = record.tool_choice or self.header.tool_choice
        self.told.ask(record, self.tool_choice)
        self.iterations = 0
        self.format_errors = 0
        self.told_to_finish = False
        self.asked_again = False
        self.question = record.content
        self.answered: list[ToolCall] = []
        self.observed: list[Observed] = []
        self.history = History()
        self.state = State.COMPLETING

    def _complete(self, record: CompletionRecord) -> None:
        reading = self._reading_of(record)
        self.asked = "" if record.prompt is None else self.asked[: record.kept] + record.prompt
        self.turn = record.turn
        if self._breaks_format(record, reading):
            self.breaks += 1
            self.asked_again = True
            return
        self.asked_again = False
        self.iterations += 1
        self.current = follow(reading, record, self)
        self.state = State.READING

    def _breaks_format(self, record: CompletionRecord, reading: Reading) -> bool:
        """Whether the turn is asked again, guided: what was written freely holds no message. A
        thought that its budget cut off is no break."""
        if self.header.strategy != "auto" or record.strategy != "free" or reading.messages:
            return False
        cut_off = bool(reading.reasoning) and not reading.counted.strip()
        return reading.error is not None and bool(record.text.strip()) and not cut_off

    def _correct(self, record: CorrectionRecord) -> None:
        if record.error.code == "iteration_limit":
            self.told_to_finish = True
            return
        self.format_errors += 1
        if self.state is State.READING:
            self.current.note(record)
            self._settle()

    def _follow(self, record: Record) -> None:
        if isinstance(record, ExecutionRecord):
            yes = self.current.approval(record.call)
            if yes is not None and yes.scope == "session" and self._believes(yes):
                self.past.consent(self.current.call(record.call).name, yes)
        self.current.note(record)
        if isinstance(record, CallRecord):
            self.format_errors = 0
            self.calls_made += 1
            self.history.add(record.name, record.arguments, self.specs.get(record.name))
        elif isinstance(record, ObservationRecord):
            if record.nested:  # the last word is left, whatever runs within the call took
                self.iterations = min(self.iterations + record.nested, self.limits.max_iterations)
            search = self.told.observe(record)
            self.history.observe(record, search=search and record.name != self.tool_choice)
            made = self.current.call(record.call)
            call = ToolCall(made.name, made.arguments)
            if record.error is None and not search:
                self.answered.append(call)
            # A tool's error is an observation too, and its words may be somebody else's.
            said = record.content if record.error is None else record.error.message
            if said and not search:
                self.observed.append(Observed(said, record.error is not None, call))
            if said and calls_in(said):
                self.observations.append(said)
        self._settle()

    def _settle(self) -> None:
        """Goes on once the records of a completion are all there, and all calls are answered."""
        if self.current.unwritten:
            return
        self.state = State.CALLING if self.current.open_calls else State.COMPLETING

    def check(self, record: Record) -> None:
        """Raises `TranscriptError` where this record may not come now; changes nothing.

        Beside the table: a record must speak of a call that is open, and start none that may not.
        """
        if record.type not in TRANSITIONS[self.state] and not self._begins_calling(record):
            raise TranscriptError(f"a {record.type} record may not follow while {self.state.value}")
        if self.state is not State.EMPTY:
            self.current.check(record)

    def _begins_calling(self, record: Record) -> bool:
        """Whether the record says that the decisions of a turn are all there, though today there
        would be more of them: a tool or the policy was another one then."""
        at_end = self.state is State.READING and record.type in ("execution_started", "paused")
        return at_end and bool(self.current.open_calls)

    # --- what is due ---

    def due(self) -> Due:
        """What must happen next. It follows from the records alone."""
        if self.state is State.COMPLETING:
            return self._due_completion()
        if self.state is State.READING:
            return Write(self.current.unwritten)
        if self.state is State.CALLING:
            if refused := self.current.refused():
                return Write(tuple(self._denial(call, reason) for call, reason in refused))
            if runnable := self.current.runnable():
                return Execute(runnable)
            return Ask(self.current.asked())
        return Rest(self.state)

    def _denial(self, call: CallRecord, reason: str) -> ObservationRecord:
        """A call that a person refused; one that was started may have done its work."""
        code: ErrorCode = "in_doubt" if self.current.in_doubt(call.call) else "denied"
        text = self.words.error(code, name=call.name, reason=reason)
        return ObservationRecord(
            call=call.call, name=call.name, id=call.id, error=ErrorInfo(code, text)
        )

    def _due_completion(self) -> Due:
        limits = self.limits
        if self.format_errors >= limits.max_format_errors:
            return Write((StoppedRecord(reason="format_errors"),))
        if self.iterations >= limits.max_iterations and not self.told_to_finish:
            text = self.words.error("iteration_limit")
            notice = CorrectionRecord(turn=self.turn, error=ErrorInfo("iteration_limit", text))
            return Write((notice,))
        if self.iterations > limits.max_iterations:
            return Write((StoppedRecord(reason="iteration_limit"),))
        rules = self._rules(forcing_prefix(self.header.style, self.choice))
        thought = self._thought(rules.prefix)
        return Complete(
            turn=self.turn + 1,
            prompt=self.prompt.render("" if thought else rules.prefix),
            rules=rules,
            max_tokens=limits.max_tokens,
            thought=thought,
            strategy=self.strategy,
            tools=self.told.tools,
            question=self.question,
            answered=tuple(self.answered),
            observed=tuple(self.observed),
        )

    @property
    def strategy(self) -> Strategy:
        """How the next completion is written. With ``auto`` freely, but guided where that broke
        format just now, or twice in this session."""
        match self.header.strategy:
            case "guided" | "grammar" as given:
                return given
            case "auto" if self.asked_again or self.breaks >= MAX_BREAKS:
                return "guided"
        return "free"

    @property
    def choice(self) -> str:
        """``required`` and a named tool hold until one call has run that was no mere search for
        tools; the last word is forced."""
        if self.told_to_finish:
            return "none"
        if self.tool_choice not in ("auto", "none") and self.history.acted:
            return "auto"
        return self.tool_choice

    def _rules(self, prefix: str) -> ReadingRules:
        choice = self.choice
        return ReadingRules(
            style=self.header.style,
            prefix=prefix,
            in_thought=self._thought(prefix) is None and self.prompt.thought_open,
            max_calls=1 if choice in self.specs else self.limits.max_calls_per_turn,
            tool_choice=choice,
            mutates=self._mutates,
            reasoning_markers=self._markers,
        )

    def _mutates(self, name: str, arguments: Mapping[str, object]) -> bool:
        spec = self.specs.get(name)
        return spec is None or spec.mutates(arguments)

    def _thought(self, prefix: str) -> Thought | None:
        """A plan for the thought, where one is wanted and could swallow the prefix."""
        reasoning, markers = self.header.reasoning, self.chat_format.reasoning
        forced = bool(prefix) or self.strategy != "free"
        if markers is None or reasoning == "off" or not (forced or isinstance(reasoning, int)):
            return None
        opening = "" if self.prompt.thought_open else f"{markers[0]}\n"
        budget = reasoning if isinstance(reasoning, int) else self.limits.max_tokens
        return Thought(opening, f"\n{markers[1]}\n\n{prefix}", markers[1], budget)

    # --- what the controller asks for ---

    def asking(self, content: str, tool_choice: str | None, at: str = "") -> UserRecord:
        """The record of a question, with the tools that it brings (`Told.offer`)."""
        tools = self.told.offer(content, tool_choice or self.header.tool_choice)
        return UserRecord(content=content, at=at, tool_choice=tool_choice, tools=tools)

    @property
    def neutraliser(self) -> Neutraliser:
        """What breaks control tokens in text that goes into a prompt."""
        return self._neutraliser

    def neutralise(self, text: str) -> str:
        """``text`` with its control tokens broken, for use in a prompt."""
        return self._neutraliser.plain(text)

    def read_already(self, record: CompletionRecord, reading: Reading) -> None:
        """Says how a completion was read that is folded next: it need not be read again."""
        self._pending = (record, reading)

    def _reading_of(self, record: CompletionRecord) -> Reading:
        """The reading that came with the record, or, when folding again, the same one anew."""
        if self._pending is not None and self._pending[0] is record:
            reading = self._pending[1]
            self._pending = None
            return reading
        if record.error is not None:
            return Reading(error=record.error)
        return read(record.text, record.finish_reason or "stop", self._rules(record.prefix))
