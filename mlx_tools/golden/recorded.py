"""A recorded run for today's code: opening, tools, turns, outcomes.

All that came from outside the code comes from the records of the run.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from msgspec import Struct

from mlx_tools.app import builtin_tools, plugins
from mlx_tools.backends import ModelFiles, find_chat_format
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
    make_preface,
    mend_points,
    reread_completion,
)
from mlx_tools.decoding import ConstrainedTurn, SampleTokens, ScoreTokens
from mlx_tools.errors import ChatFormatError, TranscriptError
from mlx_tools.golden.difference import Comparison, as_text
from mlx_tools.golden.file import Golden
from mlx_tools.messages import (
    ALL_EFFECTS,
    Effects,
    ErrorInfo,
    FinishReason,
    ToolCall,
    ToolSpec,
    replace,
)
from mlx_tools.policy import Decision, SecretSpan, redact
from mlx_tools.prompt import (
    CATALOG_BUDGET,
    ChatFormat,
    Frame,
    Neutraliser,
    Opening,
    Openings,
    PromptWords,
    is_on_demand,
    is_search,
    parts,
)
from mlx_tools.protocol import Reading, canonical
from mlx_tools.store import ConsumedApprovals, RootName
from mlx_tools.tools import Finder, Preview, Progress, Registry, ToolResult
from mlx_tools.transcript import (
    ApprovalRecord,
    CallRecord,
    CarriedRecord,
    CompactedRecord,
    CompletionRecord,
    EditRecord,
    Header,
    MendRecord,
    ObservationRecord,
    PauseRecord,
    Record,
    StoppedRecord,
    UserRecord,
    make_outcome,
)

# --- tools, opening, chat format ----------------------------------------------------------------


def recorded_specs(golden: Golden) -> dict[str, ToolSpec]:
    """Return the tools as they were recorded, by name: first those of the catalog."""
    found: dict[str, ToolSpec] = {}
    for value in (*golden.header.tools, *golden.golden.extra_tools):
        spec = _spec(json.dumps(value))
        if value.get("by_arguments"):
            effects = RecordedEffects(spec.name, golden.golden.effects, value["effects"])
            spec = replace(spec, effects=effects)
        found.setdefault(spec.name, spec)
    return found


@functools.lru_cache(maxsize=512)
def _spec(text: str) -> ToolSpec:
    """Return the tool of a header's JSON.

    It is one object for all transcripts, since what is made of its parameters, such as their
    validator, is cached with them.
    """
    return ToolSpec.from_json(json.loads(text))


class RecordedEffects:
    """The effects that the calls of a tool had when they were recorded.

    Any other call has all ``possible`` effects.
    """

    def __init__(self, name: str, effects_by_call: Mapping[str, Any], possible: Any) -> None:
        self._name = name
        self._effects_by_call = effects_by_call
        self.possible: Effects = frozenset(possible) & ALL_EFFECTS

    def __call__(self, arguments: Mapping[str, Any]) -> Effects:
        found = self._effects_by_call.get(canonical(self._name, arguments))
        return self.possible if found is None else frozenset(found)


def list_effects(specs: Mapping[str, ToolSpec], calls: list[ToolCall]) -> dict[str, list[str]]:
    """Return the effects of these calls, for `RecordedEffects`."""
    return {
        canonical(call.name, call.arguments): sorted(spec.get_effects(call.arguments))
        for call in calls
        if (spec := specs.get(call.name)) is not None and callable(spec.effects)
    }


def specs_today(golden: Golden, registry: Registry | None = None) -> Mapping[str, ToolSpec]:
    """Return the tools that this session would have today, with those of a registry."""
    builtin = _builtin_specs(
        writable=any(RootName.parse(root).writable for root in golden.header.roots)
    )
    return builtin if registry is None else {**registry.all_specs(), **builtin}


class FileSpecs(Struct, frozen=True):
    """The names of the plugin ``files`` that a replay uses."""

    file_access_spec: Callable[..., ToolSpec]


@functools.cache
def _builtin_specs(*, writable: bool) -> Mapping[str, ToolSpec]:
    specs = builtin_tools().all_specs()
    if writable and "files" in plugins().names():
        spec = plugins().exports("files", FileSpecs).file_access_spec(writable=True)
        specs[spec.name] = spec
    return specs


def opening_today(
    golden: Golden, specs: Mapping[str, ToolSpec], words: PromptWords, chat_format: ChatFormat
) -> Opening:
    """Return the opening of the recorded tools and settings with today's words."""
    header = golden.header
    tools = tuple(specs[tool["name"]] for tool in header.tools if tool["name"] in specs)
    frame = Frame(
        words=words,
        tools=tuple(spec for spec in tools if not is_on_demand(spec)),
        neutraliser=Neutraliser(chat_format.control_tokens),
        style=header.style,
        native=chat_format.tools,
        response_mode=header.response_mode,
        project_context=header.project_context,
        persona=header.persona,
        catalog_budget=CATALOG_BUDGET if header.catalog_budget is None else header.catalog_budget,
        output_schema=header.output_schema,
        weak_model=header.weak_model,
    )
    search = next((spec for spec in tools if is_search(spec)), None)
    first = next(r for r in golden.records if isinstance(r, UserRecord))
    choice = first.tool_choice or header.tool_choice
    carried = (r.record for r in golden.records if isinstance(r, CarriedRecord))
    said = next((r.content for r in carried if isinstance(r, UserRecord)), first.content)
    return Openings(frame, lambda: search, Finder).opening(
        said, first=(choice, *header.require_tools)
    )


def chat_format_today(golden: Golden) -> ChatFormat | None:
    """Return the chat format as today's code finds it.

    None if the transcript does not say of which template.
    """
    known = golden.golden.template
    return _found_format(json.dumps(known), golden.header.model) if known else None


@functools.lru_cache(maxsize=32)
def _found_format(template: str, model: str | None) -> ChatFormat:
    values = json.loads(template)
    files = values.get("files")
    read = None
    if files is not None:
        lists = {k: tuple(v) for k, v in files.items() if isinstance(v, list)}
        read = ModelFiles(path=Path(), **(files | lists))
    return find_chat_format(values["wanted"], files=read, model=model).chat_format


_FILE_FIELDS: Final = (
    *("name", "chat_template", "bos_token", "eos_token", "adds_bos", "special_tokens"),
    "end_tokens",
)


def read_template(files: ModelFiles | None, chat_format: ChatFormat, model: str | None) -> Any:
    """Return the source of ``chat_format``, for a golden record.

    Empty if no source here gives this format.
    """
    read = None if files is None else {key: getattr(files, key) for key in _FILE_FIELDS}
    for wanted in ("auto", chat_format.name):
        for known in (read, None):
            value = json.dumps({"wanted": wanted, "files": known})
            try:
                if _found_format(value, model) == chat_format:
                    return json.loads(value)
            except ChatFormatError:
                continue
    return {}


# --- what tools gave ----------------------------------------------------------------------------

ToolOutput = str | ErrorInfo
"""The result of a tool: its output, or an error."""


def tool_output(session: Session, record: ObservationRecord) -> ToolOutput:
    """Return the output of a tool, without the host's own words around it."""
    preface = make_preface(session, session.current.call(record.call))
    if record.error is not None:
        message = record.whole if record.whole is not None else record.error.message
        return ErrorInfo(record.error.code, message.removeprefix(preface))
    text = record.whole if record.whole is not None else record.content or ""
    return text.removeprefix(preface)


def rebuild_result(record: ObservationRecord, output: ToolOutput) -> ToolResult:
    """Return the result of a call whose tool returned ``output``."""
    content, error = (None, output) if isinstance(output, ErrorInfo) else (output, None)
    return ToolResult(content, error, record.duration_ms or 0, record.output_size_chars or 0)


# --- a mended turn, drawn once more -------------------------------------------------------------


def replay_completion(
    due: Complete, mends: Sequence[MendRecord], text: str, reason: FinishReason | None
) -> tuple[ConstrainedTurn, Mapping[int, str]]:
    """Return the turn of a completion, with the records in place of a backend.

    With the turn comes the text that stood at each draw, by the number of the mend that ended it.

    Args:
        due: the step.
        mends: the mends, which are served in order.
        text: the text of the turn in the end.
        reason: the finish reason of the turn.
    """
    turn = ConstrainedTurn(due.rules, due.tools, due.strategy, due.turn)
    stood: dict[int, str] = {}
    while turn.pending_request is not None and (done := len(turn.mends)) < len(mends):
        mend, draw = mends[done], turn.pending_request
        if isinstance(draw, ScoreTokens):
            _score(turn, mend)
            continue
        if (
            mend.restarted and not mend.rejected_pieces and not mend.replacement
        ):  # the next sample says so itself
            if done + 1 == len(mends):
                break
            done += 1
            mend = mends[done]
        stood[done] = turn.text
        for piece in mend.rejected_pieces:
            turn.feed(piece)
        if turn.pending_request is draw and mend.finish_reason is not None:
            turn.end_sample(
                mend.finish_reason, cut_out=mend.kind == "envelope" and not mend.rejected_pieces
            )
        if turn.pending_request is draw and len(turn.mends) < done + 1:
            return turn, stood  # the mended text fits today
    last = turn.pending_request
    if isinstance(last, SampleTokens):
        all_there = len(turn.mends) >= len(mends)
        if all_there and not turn.unfilled:
            stood[len(mends)] = turn.text
        turn.feed(text[len(turn.text) :] if all_there else text)
        if turn.pending_request is last and reason is not None and not turn.should_close:
            turn.end_sample(reason)
        elif turn.pending_request is last:
            turn.end_turn(reason)
    return turn, stood


def _score(turn: ConstrainedTurn, mend: MendRecord) -> None:
    if mend.after_text and mend.alternatives is not None and not turn.is_scored_at_boundary:
        turn.ask_scores_at_boundary()
        return
    asked = mend.alternatives
    likely = None if asked is None else [(one["token"], one["logprob"]) for one in asked]
    turn.feed_scores(likely, mend.scored_text)


# --- what was said, and by whom -----------------------------------------------------------------


def with_calls(records: Sequence[Record]) -> Iterator[tuple[Record, CallRecord]]:
    """Yield each record that is about a call, with the call.

    The call has the arguments that it had then, if a person edited it.
    """
    calls: dict[str, CallRecord] = {}
    for record in records:
        if isinstance(record, CallRecord):
            calls[record.call] = record
        elif isinstance(record, EditRecord):
            calls[record.call] = replace(calls[record.call], arguments=record.arguments)
        elif (call := calls.get(getattr(record, "call", ""))) is not None:
            yield record, call


def can_produce(words: PromptWords, error: ErrorInfo) -> bool:
    """Return True if these words say this for some tool and some reason.

    The tool and the reason were not recorded.
    """
    template = " ".join(words.errors[error.code].split())
    pattern = "".join(".*" if named else re.escape(part) for part, named in parts(template))
    cut = error.message.endswith("…")
    # A reason that is empty leaves no blank behind it.
    said = (error.message, f"{error.message} ")
    return cut or any(re.fullmatch(pattern.strip(), one, re.DOTALL) for one in said)


SECRET: Final = "a secret: "  # noqa: S105
"""The beginning of the meaning of a secret's name; the kind follows."""


class NamedSecrets:
    """A search for secrets that also finds the names in their places.

    So the decision of policy on a call with a secret stays the same.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._kinds = {
            name: what.removeprefix(SECRET)
            for name, what in names.items()
            if what.startswith(SECRET)
        }

    def find_secrets(self, text: str, /) -> Sequence[SecretSpan]:
        found = list(redact.find_secrets(text))
        for name, kind in self._kinds.items():
            if (start := text.find(name)) >= 0:
                found.append(SecretSpan(kind, start, start + len(name)))
        return found

    holds_placeholder = staticmethod(redact.holds_placeholder)


# --- what the questions came to -----------------------------------------------------------------

_OUTCOME_KEYS: Final = ("status", "answer", "reason", "turns", "sources", "repairs", "strategy")
_CALL_KEYS: Final = (
    *("id", "name", "arguments", "status", "repairs"),
    *("output_size_chars", "error_code", "error_preview"),
)
UNFINISHED: Final = "unfinished"
"""The status of a question that has not come to rest."""


def list_outcomes(header: Header, records: Sequence[Record]) -> tuple[Mapping[str, Any], ...]:
    """Return an object for each question, in their order."""
    starts = [i for i, record in enumerate(records) if isinstance(record, UserRecord)]
    ends = [*starts[1:], len(records)]
    return tuple(
        _outcome(header, records[start:end]) for start, end in zip(starts, ends, strict=True)
    )


def _outcome(header: Header, run: Sequence[Record]) -> Mapping[str, Any]:
    try:
        whole = make_outcome((header, *run)).to_json()
    except TranscriptError:
        return {"status": UNFINISHED}
    calls = [{key: call[key] for key in _CALL_KEYS} for call in whole["calls"]]
    waiting = [{key: call[key] for key in ("call_id", "name")} for call in whole["pending"]]
    own = {key: whole[key] for key in _OUTCOME_KEYS if whole[key] not in (None, [], {})}
    own |= {"mends": whole["mends"]} if whole["mends"] else {}
    return own | {"calls": calls} | ({"pending": waiting} if waiting else {})


# --- the parts of the driver in a replay ----------------------------------------------------------
# No model is asked, no tool runs, no person is asked and no clock is read. The driver gets their
# recorded results, and uses them as in any run.


class RecordedWorld:
    """The model, its context, the tools and artifacts of a run, as recorded.

    It has the records of the run, and the position of its replay. Completions are read as today's
    code reads them. Every prompt fits, except those for which room was made in the recording. Calls
    begin as they began in the recording, and the replay says how each ended. An output was stored
    if it was stored in the recording.
    """

    received_any = True
    partial = ""
    keep_all = True

    def __init__(self, records: Sequence[Record], session: Session, comparing: Comparison) -> None:
        self.records = records
        self.position = 0
        self._session = session
        self._comparing = comparing

    def peek(self) -> Record | None:
        """Return the record that comes next, None at the end."""
        return self.records[self.position] if self.position < len(self.records) else None

    def peek_completion(self) -> tuple[list[MendRecord], CompletionRecord | None]:
        """Return the next completion, with its mends.

        It is None if another record comes next, or if the completion has no recorded end.
        """
        mends: list[MendRecord] = []
        for record in self.records[self.position :]:
            if not isinstance(record, MendRecord):
                return mends, record if isinstance(record, CompletionRecord) else None
            mends.append(record)
        return mends, None

    # --- the model and its context ---

    async def start(self) -> None:
        """Start nothing."""

    async def complete(self, step: Complete, emit: object) -> CompletionResult:
        """Return the completion that comes next in the records."""
        mends, record = self.peek_completion()
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
            reading = reread_completion(record, replace(step.rules, prefix=record.prefix))
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
        """Write the turn of a mended completion once more.

        The model's samples are those that were recorded. The text that each sample continues, and
        each replacement, are compared.
        """
        # the host began it in another way
        if not (record.prompt or "").endswith(step.rules.prefix):
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
        self._comparing.texts("reading", "how the turn ends", was, _name_end(turn), record)
        return turn

    async def fit(self, step: Complete) -> FittedStep | CompactedRecord | StoppedRecord:
        """Return the record in place of the step, if the step was not sent."""
        record = self.peek()
        return record if isinstance(record, CompactedRecord) else FittedStep(step)

    async def count_sent(self, step: FittedStep, record: CompletionRecord) -> int | None:
        """Return the recorded count of tokens."""
        _, completion = self.peek_completion()
        return None if completion is None else completion.context

    # --- the tools ---

    def begin(self) -> None:
        """Begin a run."""

    def end(self) -> None:
        """End it."""

    def find_spec(self, call: CallRecord) -> ToolSpec:
        """Return the recorded tool, or one that may do anything if none was recorded."""
        return self._session.specs.get(call.name) or ToolSpec(call.name, effects=ALL_EFFECTS)

    def find_denial(self, call: CallRecord) -> Decision | None:
        """Return None: the call began."""
        return None

    async def run(self, call: CallRecord, expected_state: str | None) -> NoReturn:
        """Fail: no tool runs in a replay."""
        raise AssertionError(f"{call.name} would run")

    def is_in_doubt(self, sessions: object) -> bool:
        """Return False: the sessions of runs within calls are not here."""
        return False

    def report(self, call: CallRecord, progress: Progress) -> None:
        """Ignore the progress: nobody watches a replay."""

    # --- the store of artifacts ---

    def add(self, text: str, key: str = "") -> str | None:
        """Return the id that an output had, None if it was not kept."""
        record = self.peek()
        return record.artifact if isinstance(record, ObservationRecord) else None

    def sweep(self) -> None:
        """Do nothing: there is nothing to remove."""


def _name_end(turn: ConstrainedTurn) -> str:
    """Return how a mended turn ended, in a word."""
    if turn.unfilled:
        return "unfilled"
    if turn.pending_request is not None:
        return "goes on"
    error = turn.reading.error
    return error.code if error is not None and error.code == "unknown_tool" else "filled"


_NO_TOOLS: Final = Registry(())


class RecordedApprovals(CallApprovals):
    """Decides as today; the requests to a person, and the answers, are recorded."""

    def __init__(self, writer: SessionWriter, outputs: Outputs, world: RecordedWorld) -> None:
        super().__init__(
            writer,
            _NO_TOOLS,
            outputs,
            approver=PauseApprover(),
            templates=None,
            consumed_approvals=ConsumedApprovals(),
        )
        self._world = world

    async def write(self, records: Sequence[Record]) -> None:
        """Pass records on; the change of a dry run comes from the recording."""
        self._writer.append_all(records)

    async def preview(self, call: CallRecord) -> Preview:
        """Return the fault of a call that could only fail, as it was recorded."""
        record = self._world.peek()
        if isinstance(record, ObservationRecord) and record.call == call.call:
            return Preview("", "", error=record.error)
        return Preview("", "")

    async def ask(self, calls: Sequence[CallRecord]) -> None:
        """Record the questions; nobody answers."""
        await self.pause(calls)

    async def pause(self, calls: Sequence[CallRecord], nested_calls: object = ()) -> list[Any]:
        """Record the questions."""
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
