"""Replays a recorded run with today's code: no model, no tool, no clock.

The records have all that came from outside: questions, completions, results, a person's answers.
The driver of every run takes the steps, with parts that return these in place of a model, tools and
a person (`mlx_tools.golden.recorded`). Each record that the driver would write is compared with the
recorded one, and the recorded one is folded. So a difference is reported once, in the room where it
arises, and not again in everything that follows from it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from msgspec import Struct

from mlx_tools.controller import (
    Ask,
    CallEnd,
    Complete,
    Driver,
    DriverParts,
    Outputs,
    PauseApprover,
    Session,
    SessionInputs,
    SessionWriter,
    Turn,
    Write,
    decide_call,
    make_refusal,
    not_started,
)
from mlx_tools.errors import MlxToolsError, TranscriptError
from mlx_tools.golden.difference import (
    Comparison,
    Difference,
    Room,
    alike,
    as_text,
    find_following,
    text,
)
from mlx_tools.golden.file import Golden
from mlx_tools.golden.recorded import (
    NamedSecrets,
    RecordedApprovals,
    RecordedWorld,
    StoppedClock,
    ToolOutput,
    chat_format_today,
    list_outcomes,
    opening_today,
    rebuild_result,
    recorded_specs,
    specs_today,
    tool_output,
)
from mlx_tools.messages import ErrorInfo, ToolCall, replace
from mlx_tools.policy import BUILTIN, TEMPLATE, can_be_preapproved
from mlx_tools.prompt import MESSAGES, Cut, PromptWords, replacements
from mlx_tools.protocol import Reading, judge
from mlx_tools.store import FORMAT_VERSION, digest_word_files, load_words
from mlx_tools.tools import Registry
from mlx_tools.transcript import (
    ApprovalRecord,
    CompactedRecord,
    CompletionRecord,
    CorrectionRecord,
    DecisionRecord,
    EditRecord,
    ExecutionRecord,
    Header,
    MendRecord,
    ObservationRecord,
    PauseRecord,
    Record,
    State,
    StoppedRecord,
    UserRecord,
)

_NO_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""The time of whatever is written in a replay: what was recorded has its own."""

_BY_RULE: Final = frozenset(("format_errors", "iteration_limit", "repeated_call", "repetition"))
"""Reasons to stop that follow from the records; the others come from outside."""

_OUTSIDE_RULES: Final = frozenset(("access_list", "changed", "edited"))
"""Rules of decisions that came from a person's action, or from outside."""


class Replay(Struct, frozen=True):
    """The result of a replay.

    ``now`` is the transcript as today's code would have written it, as far as the records say.
    """

    golden: Golden
    differences: tuple[Difference, ...]
    now: Golden
    missing_tools: tuple[str, ...] = ()
    """Tools of plugins and files that are not here today, whose definitions are not compared."""

    @property
    def passed(self) -> bool:
        """True if everything is as it was recorded."""
        return not self.differences


def replay(
    golden: Golden, *, words: PromptWords | None = None, registry: Registry | None = None
) -> Replay:
    """Replay a golden transcript.

    Args:
        golden: The transcript.
        words: The texts that the model reads, by default those of ``prompts/``.
        registry: The tools of today beside the built-in ones. Their definitions are compared too.

    Raises:
        TranscriptError: the records cannot follow each other.
    """
    words = words or load_words()  # a fault in these is no fault of the transcript
    try:
        return _Replayer(golden, words, registry).run()
    except TranscriptError:
        raise
    except MlxToolsError as error:
        raise TranscriptError(f"it cannot be replayed: {error.message}", hint=error.hint) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        # A file may come from anybody: any value may be of a wrong type.
        kind = type(error).__name__
        raise TranscriptError(f"a record holds what it should not ({kind}: {error})") from error


class _ReplayWriter(SessionWriter):
    """Compares the driver's records with the recorded ones, and folds the latter."""

    def __init__(self, session: Session, world: RecordedWorld, comparing: Comparison) -> None:
        super().__init__(session, [], secret=b"", now=lambda: _NO_TIME)
        self._world = world
        self._comparing = comparing
        self.records_now: list[Record] = []
        """The records as today's code would have written them."""
        self.output: ToolOutput = ""
        """The output of the call that ends now, as its tool returned it."""
        self.compared: set[int] = set()
        """Positions of records that followed from a completion, and were compared already."""

    def take(self, record: Record, now: Record | None = None) -> None:
        """Fold the recorded ``record``, which today would be written as ``now``."""
        self.session.apply(record)
        self.records_now.append(record if now is None else now)
        self._world.position += 1

    def append(
        self, record: Record, later_records: Sequence[Record] = (), reading: Reading | None = None
    ) -> Record:
        """Compare a record that the driver writes with the one that comes next."""
        if isinstance(record, MendRecord):
            self.records_now.append(record)  # compared with the other records of its completion
            return record
        if isinstance(record, CompletionRecord):
            self._compare_completion(record)
            return record
        was = self._world.peek()
        if was is None or not alike(record, was):
            recorded = "" if was is None else as_text(was)
            self._comparing.texts("outcome", "what comes next", recorded, as_text(record), was)
            return record
        match record, was:
            case ExecutionRecord(), ExecutionRecord():
                now: Record = replace(was, mutates=record.mutates)
                what = "whether the call can change things"
                self._comparing.field("tools", what, "mutates", now, was)
            case ObservationRecord(), ObservationRecord():
                now = self._compare_observation(record, was)
            case CompactedRecord(), CompactedRecord():
                now = self.compare_compaction(was)
            case PauseRecord(), PauseRecord():
                now = self.compare_pause(was)
            case _:
                self._comparing.record(record, was)
                now = record
        self.take(was, now)
        return was

    def append_all(self, records: Sequence[Record]) -> None:
        """Compare records that follow from one completion, or from a person's answer."""
        if self.session.state is not State.READING:
            super().append_all(records)
            return
        recorded = self._world.records
        places = find_following(recorded, self._world.position, records)
        was = [recorded[place] for place in places]
        now = [_with_change(one, was) for one in records]
        self._comparing.records(now, was)
        self.records_now += now
        self.compared.update(places)
        if not all(map(alike, now, was)) or len(now) != len(was):
            # The recorded records are folded, not those that would follow today.
            self.session.current = Turn(was)
            self.session.state = State.READING if was else State.COMPLETING

    def _compare_completion(self, now: CompletionRecord) -> None:
        mends, record = self._world.peek_completion()
        assert record is not None
        # Values from outside, none of which is determined again.
        now = replace(
            now,
            duration_ms=record.duration_ms,
            recorded_at=record.recorded_at,
            pieces=record.pieces,
        )
        comparing, prior = self._comparing, str(self.session.sent_prompt)
        if record.prompt is not None:
            recorded = prior[: record.shared_prefix_chars] + record.prompt
            prompt = prior[: now.shared_prefix_chars] + (now.prompt or "")
            if recorded != prompt:
                kept = min(record.shared_prefix_chars, now.shared_prefix_chars)
                comparing.texts("prompt", "the prompt", recorded[kept:], prompt[kept:], record)
        comparing.field("outcome", "the strategy", "strategy", now, record)
        for key in (
            "retained_text",
            "reasoning",
            "commentary",
            "dropped",
            "bare_text",
            "mended_messages",
        ):
            comparing.field("reading", f"what is read ({key})", key, now, record)
        for mend in mends:
            self.session.apply(mend)
        self._world.position += len(mends)
        self.take(record, now)

    def _compare_observation(
        self, now: ObservationRecord, record: ObservationRecord
    ) -> ObservationRecord:
        if ran_to_end(self.session, record) or _only_fails(self.session, record):
            room: Room = "prompt" if self._comparing.words_changed else "tools"
            shown = replace(record, content=now.content, error=now.error, artifact=now.artifact)
            for key in ("content", "error", "artifact"):
                what = f"what is shown of {record.name} ({key})"
                self._comparing.field(room, what, key, shown, record)
            said = self.output if isinstance(self.output, str) else self.output.message
            shown_now = shown.content if shown.error is None else shown.error.message
            return replace(shown, whole=None if shown_now == said else said)
        now = replace(now, would_change=record.would_change)
        self._comparing.record(now, record)
        return now

    def compare_compaction(self, record: CompactedRecord) -> CompactedRecord:
        """Compare the text in place of removed records, unless a model has written it.

        What is removed, and when, depended on how tokens were counted.
        """
        texts = {**record.observations, "": record.content}
        keys = {at: key for at, said in texts.items() for key in record.artifacts if key in said}
        cut = Cut(tuple(record.observations), record.removed)
        content, observations = replacements(cut, keys, self.session.words)
        if record.reason != "full":
            content = record.content
        now = replace(record, content=content, observations=observations)
        self._comparing.field("prompt", "what stands for what left", "content", now, record)
        self._comparing.field("prompt", "what stands for what left", "observations", now, record)
        return now

    def compare_pause(self, record: PauseRecord) -> PauseRecord:
        """Compare the calls that a person is asked about."""
        asked = {call.call for call in self.session.current.calls_needing_decision()}
        now = [key for key in record.calls if key in asked] + sorted(asked - {*record.calls})
        was, is_now = "\n".join(record.calls), "\n".join(now)
        self._comparing.texts("policy", "what a person is asked about", was, is_now, record)
        return record


class _Replayer:
    def __init__(self, golden: Golden, words: PromptWords, registry: Registry | None) -> None:
        self._golden = golden
        self._specs = recorded_specs(golden)
        self._today = specs_today(golden, registry)
        self._missing: list[str] = []
        messages = golden.golden.words.get(MESSAGES)
        changed = messages is not None and messages != digest_word_files()[MESSAGES]
        self._comparing = Comparison(words_changed=changed)
        inputs = SessionInputs(
            specs=self._specs,
            words=words,
            disabled=golden.golden.disabled,
            finder=NamedSecrets(golden.golden.named_values),
        )
        self._session = session = Session(golden.header, inputs)
        self._world = world = RecordedWorld(golden.records, session, self._comparing)
        self._writer = writer = _ReplayWriter(session, world, self._comparing)
        outputs = Outputs(session, cast(Any, world))
        parts = DriverParts(
            completer=world,
            window=world,
            runner=world,
            approvals=RecordedApprovals(writer, outputs, world),
            approver=PauseApprover(),
            outputs=outputs,
            clock=StoppedClock(),
        )
        self._driver = Driver(writer, parts)

    def run(self) -> Replay:
        header = self._begin(self._golden.header)
        try:
            _finish(self._replay())
        except MlxToolsError:
            # A difference may make the rest impossible: then the differences so far are the result.
            if not self._comparing.differences:
                raise
        recorded, records_now = self._golden.golden, self._writer.records_now
        outcomes = list_outcomes(self._golden.header, self._golden.records)
        for number, (was, found) in enumerate(zip(recorded.outcomes, outcomes, strict=False)):
            self._compare_keys("outcome", "the {}", was, found, f"question {number + 1}")
        if (header, records_now) != (self._golden.header, [*self._golden.records]):
            outcomes = list_outcomes(header, records_now)
        golden = replace(recorded, words=digest_word_files(), outcomes=outcomes)
        now = replace(self._golden, header=header, golden=golden, records=tuple(records_now))
        differences = tuple(self._comparing.differences)
        return Replay(self._golden, differences, now, tuple(self._missing))

    # --- the beginning ---

    def _begin(self, header: Header) -> Header:
        """Return the header as it would be today; compare chat format, opening and tools."""
        recorded = self._session.chat_format
        chat_format = chat_format_today(self._golden) or recorded
        if recorded != chat_format:
            was, now = recorded.to_json(), chat_format.to_json()
            keys = [key for key in was if was[key] != now[key]]
            texts = ("\n".join(f"{key}: {text(v[key])}" for key in keys) for v in (was, now))
            self._comparing.texts("prompt", f"the chat format {recorded.name}", *texts)
        opening = opening_today(self._golden, self._specs, self._session.words, recorded)
        for what, before, after in (
            ("the system prompt", header.system, opening.system),
            ("the examples", _turns(header.examples), _turns(opening.examples)),
            ("the shortlist of tools", text(header.shortlist), text(opening.shortlist)),
        ):
            self._comparing.texts("prompt", what, before, after)
        self._compare_tools()
        return replace(
            header,
            version=FORMAT_VERSION,
            chat_format=chat_format.to_json(),
            tools=tuple(self._tool_now(value) for value in header.tools),
            system=opening.system,
            examples=opening.examples,
            shortlist=opening.shortlist,
            shortlist_request=opening.request,
        )

    def _compare_tools(self) -> None:
        """Check that the recorded tools that still exist have not changed."""
        for name, spec in self._specs.items():
            found = self._today.get(name)
            if found is None and spec.plugin == BUILTIN:
                self._comparing.texts("tools", f"the tool {name}", name, "")
            elif found is not None and found.plugin == spec.plugin:
                what = f"the {{}} of the tool {name}"
                self._compare_keys("tools", what, spec.to_json(), found.to_json())
            elif spec.plugin:  # one that a program gave its controller has none
                self._missing.append(name)

    def _tool_now(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        found = self._today.get(value["name"])
        return found.to_json() if found is not None and found.plugin == value["plugin"] else value

    def _compare_keys(
        self,
        room: Room,
        subject: str,
        was: Mapping[str, Any],
        now: Mapping[str, Any],
        location: str = "",
    ) -> None:
        """Compare two objects, key by key; ``subject`` has a place for the key."""
        for key in dict.fromkeys((*was, *now)):
            if was.get(key) != now.get(key):
                before, after = text(was.get(key, "")), text(now.get(key, ""))
                self._comparing.texts(room, subject.format(key), before, after, location)

    # --- record by record ---

    async def _replay(self) -> None:
        """Let the driver write its own records; take all others as recorded."""
        while (record := self._world.peek()) is not None:
            self._comparing.turn = self._session.turn
            self._session.check(record)
            position = self._world.position
            if position in self._writer.compared:
                self._session.fold(record)
                self._world.position += 1
                continue
            await self._take(record)
            # a value from outside, or today another record comes
            if self._world.position == position:
                self._writer.take(record)

    async def _take(self, record: Record) -> None:
        writer, due = self._writer, self._session.next_step
        match record:
            case UserRecord():
                self._comparing.question += 1
                now = self._session.question_record(
                    record.content,
                    record.tool_choice,
                    record.recorded_at,
                    record.untyped_suffix_chars,
                    record.retries,
                )
                self._comparing.field("prompt", "the tools told of", "tools", now, record)
                writer.take(record, now)
            case MendRecord() | CompletionRecord():
                await self._complete()
            case CorrectionRecord() | StoppedRecord():
                await self._limit(record)
            case CompactedRecord():
                if record.reason != "asked" and isinstance(step := due(), Complete):
                    await self._driver.take(step)
                else:
                    writer.take(record, writer.compare_compaction(record))
            case DecisionRecord() if record.rule not in _OUTSIDE_RULES:
                writer.take(record, self._decided(record))
            case PauseRecord():
                if isinstance(step := due(), Ask):
                    await self._driver.take(step)
                else:
                    writer.take(record, writer.compare_pause(record))
            case EditRecord():
                writer.take(record, self._edited(record))
            case ApprovalRecord():
                writer.take(record, self._approved(record))
            case ExecutionRecord():
                await self._driver.begin_call(self._session.current.call(record.call))
            case ObservationRecord():
                await self._observe(record)

    async def _complete(self) -> None:
        mends, record = self._world.peek_completion()
        if record is None:
            return  # mends of a completion without a recorded end
        step = self._session.next_step()
        if isinstance(step, Complete):
            await self._driver.take(step)
        else:
            instead = as_text(step.records[0]) if isinstance(step, Write) else type(step).__name__
            self._comparing.texts("outcome", "what comes next", "a completion", instead, record)
            for mend in mends:
                self._writer.take(mend)
            self._writer.take(record)
        step = self._session.next_step()
        if self._session.state is State.READING and isinstance(step, Write):
            await self._driver.take(step)

    async def _limit(self, record: CorrectionRecord | StoppedRecord) -> None:
        """Compare a limit that was reached, if it follows from the records."""
        due = self._session.next_step()
        expected = due.records[0] if isinstance(due, Write) and due.records else None
        if expected is not None and alike(expected, record):
            await self._driver.take(due)
        elif isinstance(record, CorrectionRecord) or record.reason in _BY_RULE:
            now = "" if expected is None else as_text(expected)
            self._comparing.texts("outcome", "the limit", as_text(record), now, record)

    # --- calls ---

    def _decided(self, record: DecisionRecord) -> DecisionRecord:
        call = self._session.current.call(record.call)
        prior_record = self._world.records[self._world.position - 1]
        if isinstance(prior_record, EditRecord):
            # It is decided about as a person's text, not a model's.
            call = replace(call, runs="freely", echoed=False)
        now = decide_call(call, self._session)
        if record.rule.startswith(TEMPLATE) and can_be_preapproved(now.rule):
            now = record  # a person's answer stays, if it can
        self._comparing.record(now, record)
        return now

    def _edited(self, record: EditRecord) -> EditRecord:
        call = self._session.current.call(record.call)
        edited = Reading(messages=(ToolCall(call.name, record.arguments),), clean=True)
        (judged,) = judge(edited, self._specs)
        fault = judged.error.message if judged.error is not None else ""
        now = fault or text(judged.call.arguments)
        self._comparing.texts(
            "reading", "the edited arguments", text(record.arguments), now, record
        )
        return record

    def _approved(self, record: ApprovalRecord) -> ApprovalRecord:
        """Return a person's answer as it is, bound to the tool of this replay."""
        spec = self._specs.get(self._session.current.call(record.call).name)
        return replace(record, tool=spec.digest()) if record.tool and spec else record

    async def _observe(self, record: ObservationRecord) -> None:
        """Let a call end as it ended in the recording."""
        session, call = self._session, self._session.current.call(record.call)
        due = session.next_step()
        if ran_to_end(session, record):
            self._writer.output = tool_output(session, record)
            result = rebuild_result(record, self._writer.output)
            end = CallEnd(result, record.nested, record.unknown_ends)
            await self._driver.observe(call, end, mutates=True)
        elif isinstance(due, Write) and due.records and alike(due.records[0], record):
            await self._driver.take(due)
        elif isinstance(due, Ask) and _only_fails(session, record):
            self._writer.output = tool_output(session, record)
            await self._driver.take(due)
        else:
            self._writer.take(record, self._refusal(record))

    def _refusal(self, record: ObservationRecord) -> ObservationRecord:
        """Return the end of a call that a person, the policy or a limit refused."""
        session, now = self._session, record
        state = session.current.calls[record.call]
        decision, code = state.decision, record.error.code if record.error is not None else ""
        if decision is not None and decision.decision == "deny":
            now = make_refusal(decision, state, session)
        elif code == "tool_error" and not state.was_started:
            now = not_started(state.record, session)
        elif record.error is not None:
            said = session.words.error(record.error.code, name=record.name)
            now = replace(record, error=ErrorInfo(record.error.code, said))
        now = replace(now, would_change=record.would_change)
        self._comparing.record(now, record)
        return now


def ran_to_end(session: Session, record: ObservationRecord) -> bool:
    """Return whether a call ended with its tool's own result.

    A tool's result always has a size; without one the words are the host's.
    """
    by_host = record.error is not None and record.output_size_chars is None
    return session.current.calls[record.call].was_started and not by_host


def _only_fails(session: Session, record: ObservationRecord) -> bool:
    """Return whether nobody was asked about a call because it could only fail."""
    has_size = record.output_size_chars is not None
    return (
        record.error is not None and has_size and not session.current.calls[record.call].was_started
    )


def _finish(replay: Coroutine[Any, Any, None]) -> None:
    """Run a replay to its end.

    It never waits for anything, so it needs no event loop, and can be run within one.
    """
    try:
        replay.send(None)
    except StopIteration:
        return
    raise AssertionError("a replay waits for something")


def _with_change(record: Record, records: Iterable[Record]) -> Record:
    """Return the record with the change that the recorded one holds.

    The change of a dry run comes from the world.
    """
    if not isinstance(record, ObservationRecord):
        return record
    changes = (
        one.would_change
        for one in records
        if isinstance(one, ObservationRecord) and one.call == record.call
    )
    return replace(record, would_change=next(changes, ""))


def _turns(examples: Iterable[Mapping[str, str]]) -> str:
    """Return the turns of examples, a line each."""
    return "\n".join(f"{turn.get('role')}: {turn.get('content')}" for turn in examples)
