"""What a recorded run did, done again: its calls, its mended turns, its tools that only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import anyio

from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.session import Session
from mlx_tools.controller.step import Complete
from mlx_tools.decoding import Draw, HeldTurn, Score
from mlx_tools.golden.file import Golden
from mlx_tools.messages import ErrorInfo, FinishReason
from mlx_tools.policy import Limits, Policy
from mlx_tools.prompt import is_reader
from mlx_tools.tools import Registry, ToolResult, execute
from mlx_tools.transcript.records import (
    CallRecord,
    EditRecord,
    ExecutionRecord,
    MendRecord,
    ObservationRecord,
)

Given = str | ErrorInfo
"""What a tool gave: its output, or an error."""


@dataclass(frozen=True, slots=True)
class RecordedArtifacts:
    """Stands for the store of artifacts: what was kept, is kept under the id that it had."""

    artifact: str | None

    @property
    def keep_all(self) -> bool:
        """Whether an output is kept that a model can be shown whole."""
        return self.artifact is not None

    def put(self, text: str) -> str | None:
        """The id."""
        return self.artifact

    def sweep(self) -> None:
        """There is nothing to remove."""


def given_by(session: Session, record: ObservationRecord) -> Given:
    """What the tool gave, as far as the record says, without the host's own words around it."""
    if record.error is not None:
        message = record.whole if record.whole is not None else record.error.message
        return ErrorInfo(record.error.code, message)
    if record.whole is not None:
        return record.whole
    text = record.content or ""
    if session.current.was_edited(record.call):
        arguments = session.current.call(record.call).arguments
        text = text.removeprefix(session.words.edited_notice(arguments))
    return text


def observed(session: Session, record: ObservationRecord, given: Given) -> ObservationRecord:
    """The record of the same call, had its tool given ``given``: cut and cleaned as today."""
    failed = isinstance(given, ErrorInfo)
    size = record.output_size_chars
    result = ToolResult(
        None if failed else cast(str, given),
        cast(ErrorInfo, given) if failed else None,
        record.duration_ms or 0,
        size or 0,
    )
    outputs = Outputs(session, cast(Any, RecordedArtifacts(record.artifact)))
    shown = outputs.take(session.current.call(record.call), result)
    return replace(record, content=shown.content, error=shown.error, artifact=shown.artifact)


# --- a mended turn, drawn once more -------------------------------------------------------------


def redrawn(
    due: Complete, mends: Sequence[MendRecord], text: str, reason: FinishReason | None
) -> tuple[HeldTurn, Mapping[int, str]]:
    """The turn that ``due`` comes to, with what was recorded in place of a backend: ``mends``, in
    order, and the ``text`` of the turn in the end. With it, what stood of the turn at each draw, by
    the number of the mend that ended it."""
    turn = HeldTurn(due.rules, due.tools, due.strategy, due.turn)
    stood: dict[int, str] = {}
    while turn.due is not None and (done := len(turn.mends)) < len(mends):
        mend, draw = mends[done], turn.due
        if isinstance(draw, Score):
            _score(turn, mend)
            continue
        if mend.anew and not mend.drawn and not mend.put:  # what is drawn next says so itself
            if done + 1 == len(mends):
                break
            done += 1
            mend = mends[done]
        stood[done] = turn.text
        for piece in mend.drawn:
            turn.feed(piece)
        if turn.due is draw and mend.ended is not None:
            turn.end(mend.ended, cut_out=mend.kind == "envelope" and not mend.drawn)
        if turn.due is draw and len(turn.mends) < done + 1:
            return turn, stood  # what was mended then fits now
    last = turn.due
    if isinstance(last, Draw):
        all_there = len(turn.mends) >= len(mends)
        if all_there and not turn.unfilled:
            stood[len(mends)] = turn.text
        turn.feed(text[len(turn.text) :] if all_there else text)
        if turn.due is last and reason is not None and not turn.closing:
            turn.end(reason)
        elif turn.due is last:
            turn.close(reason)
    return turn, stood


def _score(turn: HeldTurn, mend: MendRecord) -> None:
    if mend.behind and mend.alternatives is not None and not turn.asks_behind:
        turn.ask_behind()
        return
    asked = mend.alternatives
    likely = None if asked is None else [(one["token"], one["logprob"]) for one in asked]
    turn.scored(likely, mend.scored)


# --- what the tools give today ------------------------------------------------------------------

READING = frozenset(("read",))


def run_tools(golden: Golden, registry: Registry) -> Mapping[str, Given]:
    """What the calls of a recorded run give today, by call.

    Run are the calls of tools that ``registry`` has, that only read, and whose output is not
    recorded as volatile: whatever else the recording says, nothing else is called.
    """
    return anyio.run(_run, golden, registry)


async def _run(golden: Golden, registry: Registry) -> Mapping[str, Given]:
    policy, limits = Policy.from_json(golden.header.policy), Limits.from_json(golden.header.limits)
    specs = registry.specs()
    given: dict[str, Given] = {}
    for call in _started(golden):
        spec = specs.get(call.name)
        if spec is None or call.name in golden.golden.volatile or is_reader(spec):
            continue
        if not spec.effects_of(call.arguments) <= READING:
            continue
        tool = registry.get(call.name)
        result = await execute(tool, call.arguments, timeout=limits.tool_timeout, policy=policy)
        if result.error is not None:
            given[call.call] = ErrorInfo(result.error.code, result.error.message)
        else:
            given[call.call] = result.content or ""
    return given


def _started(golden: Golden) -> Sequence[CallRecord]:
    """The calls that were run, with the arguments that they ran with."""
    calls: dict[str, CallRecord] = {}
    started: dict[str, CallRecord] = {}
    for record in golden.records:
        match record:
            case CallRecord():
                calls[record.call] = record
            case EditRecord():
                calls[record.call] = replace(calls[record.call], arguments=record.arguments)
            case ExecutionRecord():
                started[record.call] = calls[record.call]
    return list(started.values())
