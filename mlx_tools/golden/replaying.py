"""Replays a recorded run with today's code: no model, no tool, no clock.

What was recorded is taken record by record. Each is compared with what today's code makes of the
records before it, and then folded as it was recorded: so a difference is told once, in the room
where it arises, and does not show again in all that follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from mlx_tools.controller import (
    Complete,
    CompletionResult,
    Session,
    Turn,
    Write,
    decision_on,
    mend_points,
    not_started,
    reading_of,
    refusal_by,
)
from mlx_tools.decoding import ConstrainedTurn
from mlx_tools.errors import MlxToolsError, TranscriptError
from mlx_tools.golden.difference import Comparing, Difference, Room, alike, as_text, following, text
from mlx_tools.golden.expect import outcomes_of
from mlx_tools.golden.file import Golden
from mlx_tools.golden.recorded import (
    NamedSecrets,
    chat_format_today,
    could_say,
    given_by,
    opening_today,
    recorded_specs,
    replay_completion,
    replay_observation,
    specs_today,
)
from mlx_tools.messages import ErrorInfo, ToolCall, replace
from mlx_tools.policy import BUILTIN, TEMPLATE, can_be_preapproved
from mlx_tools.prompt import MESSAGES, Cut, PromptWords, replacements
from mlx_tools.protocol import Reading, judge
from mlx_tools.store import FORMAT_VERSION, load_words, word_files
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
    ResumedRecord,
    State,
    StoppedRecord,
    UserRecord,
)

_BY_RULE: Final = frozenset(("format_errors", "iteration_limit", "repeated_call"))
"""Reasons to stop that follow from the records; the others are the world's."""

_OF_THE_WORLD: Final = frozenset(("access_list", "changed", "edited"))
"""Rules of decisions that came from what a person did, or from outside."""


class Replay(Struct, frozen=True):
    """The result of a replay.

    ``now`` is the transcript as today's code would have written it, as far as the records say.
    """

    golden: Golden
    differences: tuple[Difference, ...]
    now: Golden

    @property
    def passed(self) -> bool:
        """True where all came out as it was recorded."""
        return not self.differences


def replay(golden: Golden, *, words: PromptWords | None = None) -> Replay:
    """Replays a golden transcript.

    ``words`` are the texts that the model reads, by default those of ``prompts/``. Raises
    `TranscriptError` for records that cannot follow each other.
    """
    try:
        return _Replayer(golden, words or load_words()).run()
    except TranscriptError:
        raise
    except MlxToolsError as error:
        raise TranscriptError(f"it cannot be replayed: {error.message}", hint=error.hint) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        # A file is anybody's: within its records anything may stand where another thing should.
        kind = type(error).__name__
        raise TranscriptError(f"a record holds what it should not ({kind}: {error})") from error


class _Replayer:
    def __init__(self, golden: Golden, words: PromptWords) -> None:
        self._golden = golden
        self._specs = recorded_specs(golden)
        self._today = specs_today(golden)
        messages = golden.golden.words.get(MESSAGES)
        changed = messages is not None and messages != word_files()[MESSAGES]
        self._comparing = Comparing(words_changed=changed)
        self._now: list[Record] = []
        self._followed: set[int] = set()  # positions of records that were compared already
        self._mends: list[MendRecord] = []  # of the completion that comes next
        self._session = Session.from_header(
            golden.header,
            specs=self._specs,
            words=words,
            disabled=golden.golden.disabled,
            finder=NamedSecrets(golden.golden.named),
        )

    def run(self) -> Replay:
        header = self._begin(self._golden.header)
        try:
            for position, record in enumerate(self._golden.records):
                self._take(position, record)
        except MlxToolsError:
            # What differs may make the rest impossible: then what was found is what there is to
            # tell.
            if not self._comparing.found:
                raise
        recorded = self._golden.golden
        outcomes = outcomes_of(self._golden.header, self._golden.records)
        for number, (was, found) in enumerate(zip(recorded.outcomes, outcomes, strict=False)):
            self._compare_keys("outcome", "the {}", was, found, f"question {number + 1}")
        if (header, self._now) != (self._golden.header, [*self._golden.records]):
            outcomes = outcomes_of(header, self._now)
        golden = replace(recorded, words=word_files(), outcomes=outcomes)
        now = replace(self._golden, header=header, golden=golden, records=tuple(self._now))
        return Replay(self._golden, tuple(self._comparing.found), now)

    # --- the beginning ---

    def _begin(self, header: Header) -> Header:
        """The header as it would be today: compares chat format, opening and tools."""
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
        """Tools that were recorded and exist today must not have changed."""
        for name, spec in self._specs.items():
            found = self._today.get(name)
            if found is None and spec.plugin == BUILTIN:
                self._comparing.texts("tools", f"the tool {name}", name, "")
            elif found is not None and found.plugin == spec.plugin:
                what = f"the {{}} of the tool {name}"
                self._compare_keys("tools", what, spec.to_json(), found.to_json())

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
        """Compares two objects, key by key; ``subject`` has a place for the key."""
        for key in dict.fromkeys((*was, *now)):
            if was.get(key) != now.get(key):
                before, after = text(was.get(key, "")), text(now.get(key, ""))
                self._comparing.texts(room, subject.format(key), before, after, location)

    # --- record by record ---

    def _take(self, position: int, record: Record) -> None:
        """Compares one record, and folds it."""
        self._comparing.turn = self._session.turn
        self._session.check(record)
        if position in self._followed:
            self._session.apply(record)
            return
        now: Record = record
        match record:
            case UserRecord():
                self._comparing.question += 1
                now = self._replay_question(record)
            case MendRecord():
                self._mends.append(record)
            case CompletionRecord():
                now = self._completed(record)
            case ResumedRecord():
                self._mends = []  # of a completion that nobody has the end of
            case CorrectionRecord() | StoppedRecord():
                now = self._limited(record)
            case CompactedRecord():
                now = self._replay_compaction(record)
            case DecisionRecord() if record.rule not in _OF_THE_WORLD:
                now = self._decided(record, self._golden.records[position - 1])
            case PauseRecord():
                now = self._paused(record)
            case EditRecord():
                now = self._edited(record)
            case ApprovalRecord():
                now = self._approved(record)
            case ExecutionRecord():
                now = self._replay_start(record)
            case ObservationRecord():
                now = self._replay_observation(record)
        self._session.apply(record)
        self._now.append(now)
        if isinstance(record, CompletionRecord):
            self._follow(position, record)

    def _replay_question(self, record: UserRecord) -> UserRecord:
        now = self._session.question_record(
            record.content, record.tool_choice, record.at, record.untyped_suffix_chars
        )
        self._comparing.field("prompt", "the tools told of", "tools", now, record)
        return now

    def _completed(self, record: CompletionRecord) -> CompletionRecord:
        due = self._session.next_step()
        if not isinstance(due, Complete):
            instead = as_text(due.records[0]) if isinstance(due, Write) else type(due).__name__
            self._comparing.texts("outcome", "what comes next", "a completion", instead, record)
            return record
        now = self._read(record, due)
        if record.prompt is not None:
            recorded = self._session.last_prompt[: record.shared_prefix_chars] + record.prompt
            if recorded != due.prompt:
                kept = min(record.shared_prefix_chars, now.shared_prefix_chars)
                was, is_now = recorded[kept:], due.prompt[kept:]
                self._comparing.texts("prompt", "the prompt", was, is_now, record)
        self._comparing.field("outcome", "the strategy", "strategy", now, record)
        for key in ("retained_text", "reasoning", "commentary", "dropped", "bare_text", "mended"):
            self._comparing.field("reading", f"what is read ({key})", key, now, record)
        return now

    def _read(self, record: CompletionRecord, due: Complete) -> CompletionRecord:
        """The completion as it would be recorded today."""
        turn = self._replay_draws(record, due) if self._mends else None
        if record.error is not None:
            reading = Reading(error=record.error, counted=record.retained_text)
            if not could_say(self._session.words, record.error):
                self._comparing.texts(
                    "prompt", "the words of a fault", record.error.message, "", record
                )
        elif turn is not None:
            reading = turn.reading
        else:
            reading = reading_of(record, replace(due.rules, prefix=record.prefix))
        if record.error is None:
            reading = self._session.settle_reading(reading, record)
        own = reading.reasoning
        written = CompletionResult(
            thought=record.reasoning.removesuffix(own) if due.thought is not None else "",
            prefix=record.prefix,
            text=record.text,
            finish_reason=record.finish_reason,
            usages=[record.usage],
            closed_early=record.closed_early,
            requests=record.requests,
            reading=reading,
            mended=record.mended if turn is None else turn.mended,
            repeated=record.repeated if turn is None else turn.repeated,
        )
        asked = self._session.last_prompt
        now = written.record(due, asked, duration_ms=record.duration_ms, recorded_at=record.at)
        return replace(now, pieces=record.pieces, context=record.context)

    def _replay_draws(self, record: CompletionRecord, due: Complete) -> ConstrainedTurn:
        """The turn of a completion that was mended: the model's draws are served as they were
        recorded, and what each goes on from, and what is put in place of what does not fit, is
        compared."""
        mends, self._mends = self._mends, []
        if not (record.prompt or "").endswith(due.rules.prefix):  # the host began it otherwise
            due = replace(due, rules=replace(due.rules, prefix=record.prefix))
        turn, stood = replay_completion(due, mends, record.text, record.finish_reason)
        put = (
            text + mend.replacement
            for mend, (text, _) in zip(mends, mend_points(mends), strict=True)
        )
        for number, was in enumerate(("", *put)):
            pending = number and mends[number - 1].restarted and not mends[number - 1].replacement
            if was != (now := stood.get(number, was)) and not pending:
                what = f"the prompt of the draw before mend {number + 1}"
                self._comparing.texts("reading", what, due.prompt + was, due.prompt + now, record)
                break
        if turn.mends != mends:
            was, now = ("\n".join(map(as_text, made)) for made in (mends, turn.mends))
            self._comparing.texts("reading", "the mends", was, now, record)
            self._now[-len(mends) :] = turn.mends
        self._comparing.texts("reading", "the mended text", record.text, turn.text, record)
        error = turn.reading.error if turn.pending_request is None else None
        end = (
            "unfilled" if turn.unfilled else "filled" if turn.pending_request is None else "goes on"
        )
        if error is not None and error.code == "unknown_tool":
            end = error.code
        was = "filled" if record.error is None else record.error.code
        self._comparing.texts("reading", "how the turn ends", was, end, record)
        return turn

    def _follow(self, position: int, record: CompletionRecord) -> None:
        """Compares what follows from the completion at ``position`` with what followed then."""
        session = self._session
        due = session.next_step()
        reading = session.state is State.READING
        now = due.records if reading and isinstance(due, Write) else ()
        places = following(self._golden.records, position + 1, now)
        was = [self._golden.records[place] for place in places]
        now = tuple(_with_change(one, was) for one in now)
        self._comparing.records(now, was)
        self._now += now
        self._followed.update(places)
        if not all(map(alike, now, was)) or len(now) != len(was):
            # What was recorded takes the place of what would follow today.
            session.current = Turn(was)
            session.state = State.READING if was else State.COMPLETING

    def _limited(self, record: CorrectionRecord | StoppedRecord) -> Record:
        """A limit that was reached: what is due by the records is compared, the world is not."""
        due = self._session.next_step()
        expected = due.records[0] if isinstance(due, Write) and due.records else None
        if expected is not None and alike(expected, record):
            self._comparing.record(expected, record)
            return expected
        if isinstance(record, CorrectionRecord) or record.reason in _BY_RULE:
            now = "" if expected is None else as_text(expected)
            self._comparing.texts("outcome", "the limit", as_text(record), now, record)
        return record

    def _replay_compaction(self, record: CompactedRecord) -> CompactedRecord:
        """The text in place of what left is compared where no model has written it; what leaves,
        and when, went by how tokens were counted."""
        texts = {**record.observations, "": record.content}
        keys = {at: key for at, said in texts.items() for key in record.artifacts if key in said}
        cut = Cut(tuple(record.observations), record.removed)
        content, observations = replacements(cut, keys, self._session.words)
        if record.reason != "full":
            content = record.content
        now = replace(record, content=content, observations=observations)
        self._comparing.field("prompt", "what stands for what left", "content", now, record)
        self._comparing.field("prompt", "what stands for what left", "observations", now, record)
        return now

    # --- calls ---

    def _decided(self, record: DecisionRecord, prior_record: Record) -> DecisionRecord:
        call = self._session.current.call(record.call)
        if isinstance(
            prior_record, EditRecord
        ):  # it is decided as what a person wrote, not a model
            call = replace(call, runs="freely", echoed=False)
        now = decision_on(call, self._session)
        if record.rule.startswith(TEMPLATE) and can_be_preapproved(now.rule):
            now = record  # a person's word stands, where it can
        self._comparing.record(now, record)
        return now

    def _paused(self, record: PauseRecord) -> PauseRecord:
        asked = {call.call for call in self._session.current.calls_needing_decision()}
        now = [key for key in record.calls if key in asked] + sorted(asked - {*record.calls})
        was, is_now = "\n".join(record.calls), "\n".join(now)
        self._comparing.texts("policy", "what a person is asked about", was, is_now, record)
        return record

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
        """A person's word stands; the tool that it is bound to is the one of this replay."""
        spec = self._specs.get(self._session.current.call(record.call).name)
        return replace(record, tool=spec.digest()) if record.tool and spec else record

    def _replay_start(self, record: ExecutionRecord) -> ExecutionRecord:
        call = self._session.current.call(record.call)
        spec = self._specs.get(call.name)
        now = replace(record, mutates=spec is None or spec.mutates(call.arguments))
        self._comparing.field("tools", "whether the call can change things", "mutates", now, record)
        return now

    def _replay_observation(self, record: ObservationRecord) -> ObservationRecord:
        session = self._session
        # Whatever a tool gives has a size: else the words are the host's.
        by_host = record.error is not None and record.output_size_chars is None
        if by_host or not session.current.calls[record.call].started:
            return self._replay_refusal(record)
        given = given_by(session, record)
        now = replay_observation(session, record, given)
        room: Room = "prompt" if self._comparing.words_changed else "tools"
        for key in ("content", "error", "artifact"):
            self._comparing.field(room, f"what is shown of {record.name} ({key})", key, now, record)
        said = given if isinstance(given, str) else given.message
        shown_now = now.content if now.error is None else now.error.message
        return replace(now, whole=None if shown_now == said else said)

    def _replay_refusal(self, record: ObservationRecord) -> ObservationRecord:
        """A call that did not run to its end because a person, policy, or a limit was against
        it."""
        session = self._session
        due = session.next_step()
        written = due.records if isinstance(due, Write) else ()
        now: Record | None = next((r for r in written if alike(r, record)), None)
        state = session.current.calls[record.call]
        decision, code = state.decision, record.error.code if record.error is not None else ""
        if now is None and decision is not None and decision.decision == "deny":
            now = refusal_by(decision, state, session)
        if now is None and code == "tool_error" and not state.started:
            now = not_started(state.record, session)
        if now is None and record.error is not None:
            said = session.words.error(record.error.code, name=record.name)
            now = replace(record, error=ErrorInfo(record.error.code, said))
        if not isinstance(now, ObservationRecord):
            return record
        now = replace(now, would_change=record.would_change)
        self._comparing.record(now, record)
        return now


def _with_change(record: Record, records: Iterable[Record]) -> Record:
    """The record, with the change that the recorded one says: a dry run's comes from the world."""
    if not isinstance(record, ObservationRecord):
        return record
    changes = (
        one.would_change
        for one in records
        if isinstance(one, ObservationRecord) and one.call == record.call
    )
    return replace(record, would_change=next(changes, ""))


def _turns(examples: Iterable[Mapping[str, str]]) -> str:
    """The turns of examples, a line each."""
    return "\n".join(f"{turn.get('role')}: {turn.get('content')}" for turn in examples)
