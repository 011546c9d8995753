"""The parts of the driver in a replay: what the world gave is recorded.

No model is asked, no tool runs, nobody is asked and no clock is read. What was recorded of them is
handed to the driver, which does with it what it does in any run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from mlx_tools.controller import (
    CallApprovals,
    Complete,
    CompletionResult,
    FittedStep,
    Outputs,
    PauseApprover,
    RunClock,
    Session,
    SessionWriter,
    mend_points,
    reading_of,
)
from mlx_tools.decoding import ConstrainedTurn
from mlx_tools.golden.difference import Comparison, as_text
from mlx_tools.golden.recorded import can_produce, replay_completion
from mlx_tools.messages import ALL_EFFECTS, ToolSpec, replace
from mlx_tools.policy import Decision
from mlx_tools.protocol import Reading
from mlx_tools.store import ConsumedApprovals
from mlx_tools.tools import Preview, Progress, Registry, ToolResult
from mlx_tools.transcript import (
    ApprovalRecord,
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    MendRecord,
    ObservationRecord,
    PauseRecord,
    Record,
    StoppedRecord,
)


class RunRecords:
    """The records of a run, and how far a replay of it has come."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.position = 0

    def peek(self) -> Record | None:
        """Return the record that comes next, None at the end."""
        return self.records[self.position] if self.position < len(self.records) else None

    def peek_completion(self) -> tuple[list[MendRecord], CompletionRecord | None]:
        """Return the completion that comes next, with its mends.

        It is None if something else comes next, or nobody has the end of it.
        """
        mends: list[MendRecord] = []
        for record in self.records[self.position :]:
            if not isinstance(record, MendRecord):
                return mends, record if isinstance(record, CompletionRecord) else None
            mends.append(record)
        return mends, None


class RecordedCompleter:
    """Gives the completions that were recorded, read as today's code reads them."""

    received_any = True
    partial = ""

    def __init__(self, session: Session, script: RunRecords, comparing: Comparison) -> None:
        self._session = session
        self._script = script
        self._comparing = comparing

    async def start(self) -> None:
        """Start nothing."""

    async def complete(self, step: Complete, emit: object) -> CompletionResult:
        """Return the completion that comes next in the records."""
        mends, record = self._script.peek_completion()
        assert record is not None, "the next record is no completion"
        turn = self._redraw(mends, record, step) if mends else None
        if record.error is not None:
            reading = Reading(error=record.error, retained_text=record.retained_text)
            if not can_produce(self._session.words, record.error):
                said = record.error.message
                self._comparing.texts("prompt", "the words of a fault", said, "", record)
        elif turn is not None:
            reading = turn.reading
        else:
            reading = reading_of(record, replace(step.rules, prefix=record.prefix))
        if record.error is None:
            reading = self._session.settle_reading(reading, record)
        own = reading.reasoning
        return CompletionResult(
            thought=record.reasoning.removesuffix(own) if step.thought is not None else "",
            prefix=record.prefix,
            text=record.text,
            finish_reason=record.finish_reason,
            usages=[record.usage],
            closed_early=record.closed_early,
            requests=record.requests,
            reading=reading,
            mends=() if turn is None else tuple(turn.mends),
            mended_messages=record.mended_messages if turn is None else turn.mended_messages,
            repeated=record.repeated if turn is None else turn.repeated,
        )

    def _redraw(
        self, mends: Sequence[MendRecord], record: CompletionRecord, step: Complete
    ) -> ConstrainedTurn:
        """The turn of a completion that was mended, written once more.

        The model's draws are served as they were recorded. The text that each goes on from, and
        the text in place of what does not fit, are compared.
        """
        if not (record.prompt or "").endswith(step.rules.prefix):  # the host began it otherwise
            step = replace(step, rules=replace(step.rules, prefix=record.prefix))
        turn, texts_before = replay_completion(step, mends, record.text, record.finish_reason)
        texts = (
            text + mend.replacement
            for mend, (text, _) in zip(mends, mend_points(mends), strict=True)
        )
        for number, was in enumerate(("", *texts)):
            pending = number and mends[number - 1].restarted and not mends[number - 1].replacement
            if was != (now := texts_before.get(number, was)) and not pending:
                what = f"the prompt of the draw before mend {number + 1}"
                prompt = step.prompt
                self._comparing.texts("reading", what, prompt + was, prompt + now, record)
                break
        if turn.mends != [*mends]:
            was, now = ("\n".join(map(as_text, made)) for made in (mends, turn.mends))
            self._comparing.texts("reading", "the mends", was, now, record)
        self._comparing.texts("reading", "the mended text", record.text, turn.text, record)
        was = "filled" if record.error is None else record.error.code
        self._comparing.texts("reading", "how the turn ends", was, _end_of(turn), record)
        return turn


def _end_of(turn: ConstrainedTurn) -> str:
    """The way in which a mended turn ended, in a word."""
    if turn.unfilled:
        return "unfilled"
    if turn.pending_request is not None:
        return "goes on"
    error = turn.reading.error
    return error.code if error is not None and error.code == "unknown_tool" else "filled"


class RecordedWindow:
    """Lets every prompt fit, but for those for which room was made then."""

    def __init__(self, script: RunRecords) -> None:
        self._script = script

    async def fit(self, step: Complete) -> FittedStep | CompactedRecord | StoppedRecord:
        """Return what was recorded in place of the step, if that was not sent."""
        record = self._script.peek()
        return record if isinstance(record, CompactedRecord) else FittedStep(step)

    async def count_sent(self, step: FittedStep, record: CompletionRecord) -> int | None:
        """Return the tokens that were counted then."""
        _, completion = self._script.peek_completion()
        return None if completion is None else completion.context


class RecordedRunner:
    """Lets calls begin that began then; the replay tells how each ended."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def begin(self) -> None:
        """Begin a run."""

    def end(self) -> None:
        """End it."""

    def spec_of(self, call: CallRecord) -> ToolSpec:
        """Return the recorded tool, or one that may do anything if none was recorded."""
        return self._session.specs.get(call.name) or ToolSpec(call.name, effects=ALL_EFFECTS)

    def denial_of(self, call: CallRecord) -> Decision | None:
        """Return None: the call began."""
        return None

    async def run(self, call: CallRecord, expected_state: str | None) -> NoReturn:
        """Fail: no tool runs in a replay."""
        raise AssertionError(f"{call.name} would run")

    def is_in_doubt(self, sessions: object) -> bool:
        """Return False: the sessions of runs within calls are not here."""
        return False

    def report(self, call: CallRecord, progress: Progress) -> None:
        """Tell nobody."""


class RecordedOutputs(Outputs):
    """Cuts and cleans outputs as today; ids of artifacts are those of then."""

    def __init__(self, session: Session, script: RunRecords) -> None:
        self._script = script
        super().__init__(session, None)

    def take(self, call: CallRecord, result: ToolResult) -> tuple[ObservationRecord, Any]:
        """Take in how a call ended; see `Outputs.take`."""
        record = self._script.peek()
        key = record.artifact if isinstance(record, ObservationRecord) else None
        self._store = cast(Any, RecordedArtifacts(key))
        self.begin()
        return super().take(call, result)


class RecordedArtifacts:
    """Stands for the store of artifacts."""

    def __init__(self, artifact: str | None) -> None:
        self._artifact = artifact

    @property
    def keep_all(self) -> bool:
        """True if an output was kept, though perhaps a model could be shown it whole."""
        return self._artifact is not None

    def add(self, text: str, key: str = "") -> str | None:
        """Return the id that the output had."""
        return self._artifact

    def sweep(self) -> None:
        """Do nothing: there is nothing to remove."""


class RecordedApprovals(CallApprovals):
    """Decides as today; what a person said, and what they were shown, is recorded."""

    def __init__(self, writer: SessionWriter, outputs: Outputs, script: RunRecords) -> None:
        super().__init__(
            writer,
            Registry(()),
            outputs,
            approver=PauseApprover(),
            templates=None,
            consumed_approvals=ConsumedApprovals(),
        )
        self._script = script

    async def write(self, records: Sequence[Record]) -> None:
        """Hand records on; what a dry run would have changed comes from the world."""
        self._writer.append_all(records)

    async def preview(self, call: CallRecord) -> Preview:
        """Return the fault of a call that could only fail, as it was recorded."""
        record = self._script.peek()
        if isinstance(record, ObservationRecord) and record.call == call.call:
            return Preview("", "", error=record.error)
        return Preview("", "")

    async def ask(self, calls: Sequence[CallRecord]) -> None:
        """Write down what is asked; nobody answers."""
        await self.pause(calls)

    async def pause(self, calls: Sequence[CallRecord], nested_calls: object = ()) -> list[Any]:
        """Write down what is asked."""
        keys = tuple(call.call for call in calls)
        self._writer.append(PauseRecord(calls=keys, digests=("",) * len(keys), expires_at=""))
        return []

    async def consume_approval(self, call: CallRecord, approval: ApprovalRecord) -> None:
        """Take the approval as given: the call began."""

    async def check_template(self, call: CallRecord, rule: str) -> None:
        """Take the template as covering the call: it began."""


class StoppedClock(RunClock):
    """No time passes in a replay."""

    @contextmanager
    def person_waits(self) -> Iterator[None]:
        yield
