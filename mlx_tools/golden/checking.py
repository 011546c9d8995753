"""Checks of golden transcripts: a replay, or the questions asked again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from msgspec import Struct, to_builtins

from mlx_tools.app import Share, collect, escape_invisible
from mlx_tools.backends import Backend
from mlx_tools.controller import (
    ApprovalAnswer,
    ApprovalRequest,
    Controller,
    PriorConversation,
    RunSettings,
)
from mlx_tools.errors import BackendError, MlxToolsError, TranscriptError
from mlx_tools.golden.difference import ROOMS, Difference, difference_lines
from mlx_tools.golden.expect import Expectation, expectations
from mlx_tools.golden.file import Golden, read_golden
from mlx_tools.golden.recorded import ToolOutput, list_outcomes, recorded_specs, with_calls
from mlx_tools.golden.replaying import replay
from mlx_tools.messages import ErrorInfo, ToolSpec, replace
from mlx_tools.policy import TEMPLATE, Limits, Policy
from mlx_tools.prompt import is_on_demand
from mlx_tools.protocol import canonical
from mlx_tools.store import TranscriptStore, load
from mlx_tools.tools import Registry, Tool, ToolError
from mlx_tools.transcript import (
    ApprovalRecord,
    CallRecord,
    CarriedRecord,
    DecisionRecord,
    EditRecord,
    Header,
    ObservationRecord,
    Record,
    UserRecord,
)

Mode = Literal["replay", "live"]


class Column(Struct, frozen=True):
    """A column of the matrix of checks. A replay has empty fields."""

    model: str = ""
    style: str = ""
    strategy: str = ""

    @property
    def label(self) -> str:
        """The cell in words."""
        return " · ".join(filter(None, (self.model, self.style, self.strategy))) or "replay"


class Sample(Struct, frozen=True, kw_only=True):
    """One run of a transcript."""

    differences: tuple[Difference, ...] = ()
    records: tuple[Record, ...] = ()
    """The records of the run, the header first."""
    error: str = ""
    """The reason why the run did not reach its end, or the transcript could not be read."""
    seconds: float | None = None
    """The time that a live run took."""

    @property
    def passed(self) -> bool:
        return not self.differences and not self.error


class GoldenCheck(Struct, frozen=True, kw_only=True):
    """All runs of one transcript in one cell. ``path`` is as the caller wrote it."""

    name: str
    path: str
    mode: Mode = "replay"
    cell: Column = Column()  # frozen, so all may share it
    source: str = ""
    about: str = ""
    features: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()
    missing_tools: tuple[str, ...] = ()
    """Tools of the recording that are not here, whose definitions a replay does not compare."""

    @classmethod
    def from_golden(cls, golden: Golden, path: Path | None = None, **fields: Any) -> GoldenCheck:
        """Return the check of a golden transcript."""
        about, path = golden.golden, path or golden.path
        return cls(
            name=golden.name,
            path="" if path is None else str(path),
            source=about.source,
            about=about.about,
            features=about.features,
            **fields,
        )

    @property
    def share(self) -> Share:
        return Share(sum(sample.passed for sample in self.samples), len(self.samples))

    @property
    def passed(self) -> bool:
        return all(sample.passed for sample in self.samples)

    @property
    def rooms(self) -> tuple[str, ...]:
        """The rooms that differences come from, each once."""
        found = {d.room for sample in self.samples for d in sample.differences}
        return tuple(room for room in ROOMS if room in found)

    def to_json(self) -> dict[str, Any]:
        """Return the check as ``--json`` prints it: all but the records of the runs."""
        return {
            "name": self.name,
            "path": self.path,
            "mode": self.mode,
            **to_builtins(self.cell),
            "source": self.source,
            "features": list(self.features),
            "passed": self.passed,
            "samples": len(self.samples),
            "hits": self.share.hits,
            "rooms": list(self.rooms),
            "differences": [
                {"sample": number, **difference.to_json()}
                for number, sample in enumerate(self.samples, start=1)
                for difference in sample.differences
            ],
            "errors": [sample.error for sample in self.samples if sample.error],
        }


def add_shares(shares: Iterable[Share]) -> Share:
    every = list(shares)
    return Share(sum(share.hits for share in every), sum(share.total for share in every))


def replay_file(
    path: Path, *, with_records: bool = False, registry: Registry | None = None
) -> GoldenCheck:
    """Replay one file.

    A file that cannot be read or replayed is a failed check with the error. ``registry`` is that of
    `replay`.
    """
    records: tuple[Record, ...] = ()
    missing: tuple[str, ...] = ()
    golden = None
    try:
        golden = read_golden(path)
        records = golden.all if with_records else ()
        done = replay(golden, registry=registry)
        sample = Sample(differences=done.differences, records=records)
        missing = done.missing_tools
    except TranscriptError as error:
        sample = Sample(error=str(error).removeprefix(f"{path}: "), records=records)
    if golden is None:
        return GoldenCheck(name=path.stem, path=str(path), samples=(sample,))
    return GoldenCheck.from_golden(golden, path, samples=(sample,), missing_tools=missing)


def failure_text(check: GoldenCheck) -> str:
    """Return the findings of a failed replay, for a person at a terminal.

    The text holds nothing that controls a terminal, and nothing that cannot be sent as UTF-8.
    """
    (sample,) = check.samples
    return escape_invisible(
        "\n".join(filter(None, [sample.error, *difference_lines(sample.differences)]))
    )


# --- on a real model ------------------------------------------------------------------------------


async def check_live(
    golden: Golden, backend: Backend, *, settings: RunSettings, samples: int = 1
) -> GoldenCheck:
    """Ask a transcript's questions of the model behind ``backend``, several times."""
    header = golden.header
    recorded = golden.golden.outcomes or list_outcomes(header, golden.records)
    wanted = expectations(golden.golden.expect, recorded)
    style = header.style if settings.style == "auto" else settings.style
    own = replace(settings.with_header_settings(header), style=style)
    made = []
    for number in range(samples):
        began, error = monotonic(), ""
        seeded = own if own.seed is None else replace(own, seed=own.seed + number)
        registry = Registry(_RecordedTools(golden, wanted).tools(recorded_specs(golden)))
        records: Sequence[Record] = ()
        with tempfile.TemporaryDirectory(prefix="mlx-tools-golden-") as folder:
            try:
                records = load(await _ask(golden, backend, seeded, registry, Path(folder)))
            except BackendError:
                raise
            except MlxToolsError as fault:
                error = str(fault)
        made.append(
            Sample(
                differences=tuple(_differences(records, wanted)),
                records=tuple(records),
                error=error,
                seconds=round(monotonic() - began, 3),
            )
        )
    cell = Column(settings.model or header.model or "", style, str(settings.strategy))
    return GoldenCheck.from_golden(golden, mode="live", cell=cell, samples=tuple(made))


async def _ask(
    golden: Golden, backend: Backend, settings: RunSettings, registry: Registry, folder: Path
) -> Path:
    """Ask the questions in a session below ``folder``; return its path."""
    header, store = golden.header, TranscriptStore(folder)
    controller = Controller(
        backend,
        registry,
        Policy.from_json(header.policy),
        limits=Limits.from_json(header.limits),
        settings=settings,
        store=store,
        approver=_RecordedApprover(golden.records),
        observers=collect("observers"),
    )
    carried = [record for record in golden.records if isinstance(record, CarriedRecord)]
    async with await controller.conversation() as conversation:
        conversation.earlier = PriorConversation(
            records=tuple(record.record for record in carried),
            private=any(record.private for record in carried),
            unknown_ends=tuple(call for record in carried for call in record.unknown_ends),
        )
        for record in golden.records:
            if isinstance(record, UserRecord):
                outcome = await conversation.run(
                    record.content,
                    tool_choice=record.tool_choice,
                    untyped_suffix_chars=record.untyped_suffix_chars,
                )
                if outcome.status == "paused":
                    break
        return store.find_path(conversation.session)


def _differences(
    records: Sequence[Record], expectations: Sequence[Expectation]
) -> Iterator[Difference]:
    if not records or not isinstance(header := records[0], Header):
        return
    outcomes = list_outcomes(header, records[1:])
    for number, one in enumerate(expectations):
        where = f"question {number + 1}" if len(expectations) > 1 else ""
        outcome = outcomes[number] if number < len(outcomes) else {"status": "not asked"}
        yield from one.differences(outcome, where)


class _RecordedTools:
    """Tools that return their recorded results.

    A call gets the output of the recorded call with the same arguments, else that of a recorded
    call that it may replace by the expectation, else an error.
    """

    def __init__(self, golden: Golden, expectations: Sequence[Expectation]) -> None:
        self._recorded_calls = list(_recorded_calls(golden.records))
        self._expected = [call for expectation in expectations for call in expectation.calls]
        self._used_names: set[int] = set()

    def tools(self, specs: Mapping[str, ToolSpec]) -> list[Tool]:
        """Return a tool for each that was recorded, except those of the host itself."""
        return [
            Tool(spec, partial(self._call, name))
            for name, spec in specs.items()
            if not is_on_demand(spec)
        ]

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        calls = [call for call, _ in self._recorded_calls]
        fits = [call for call in self._expected if call.fits(name, arguments)]
        key = canonical(name, arguments)
        same = [n for n, call in enumerate(calls) if canonical(call.name, call.arguments) == key]
        meant = same or [
            number
            for number, call in enumerate(calls)
            if call.name == name and any(one.fits(name, call.arguments) for one in fits)
        ]
        if not meant:
            raise ToolError("no output was recorded for a call with these arguments")
        place = next((number for number in meant if number not in self._used_names), meant[0])
        self._used_names.add(place)
        given = self._recorded_calls[place][1]
        if isinstance(given, ErrorInfo):
            raise ToolError(given.message)
        return given


def _recorded_calls(records: Sequence[Record]) -> Iterator[tuple[CallRecord, ToolOutput]]:
    """Yield the calls that returned or failed, in order, each with its result."""
    for record, call in with_calls(records):
        if not isinstance(record, ObservationRecord):
            continue
        if record.error is None:
            yield call, record.content or "" if record.whole is None else record.whole
        elif record.error.code == "tool_error":
            yield call, record.error


class _RecordedApprover:
    """An approver that gives the recorded answer about a call.

    It answers about no other call.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._answers: dict[str, ApprovalAnswer] = {}
        calls: dict[str, CallRecord] = {}
        edited: dict[str, Mapping[str, Any]] = {}
        for record in records:
            match record:
                case CallRecord():
                    calls[record.call] = record
                case EditRecord():
                    edited[record.call] = record.arguments
                case DecisionRecord() if record.rule.startswith(TEMPLATE):
                    call = calls[record.call]
                    self._answers[canonical(call.name, call.arguments)] = ApprovalAnswer(True)
                case ApprovalRecord():
                    call = calls[record.call]
                    self._answers[canonical(call.name, call.arguments)] = ApprovalAnswer(
                        record.approved,
                        record.reason,
                        arguments=edited.get(record.call),
                        for_session=record.scope == "session",
                    )

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        nothing = ApprovalAnswer(None)
        return [self._answers.get(canonical(r.name, r.arguments), nothing) for r in requests]
