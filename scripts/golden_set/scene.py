"""Scenes: scripted runs that are recorded as golden transcripts."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mlx_tools import (
    ApprovalAnswer,
    Controller,
    Limits,
    Policy,
    Registry,
    RunSettings,
    Tool,
    TranscriptStore,
)
from mlx_tools.backends import ModelFiles, VerdictChoice
from mlx_tools.controller import ApprovalRequest
from mlx_tools.errors import BackendError
from mlx_tools.golden import Golden, make_golden
from mlx_tools.messages import replace
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store.transcript import load
from mlx_tools.testing import Script, ScriptedBackend
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    DecisionRecord,
    MendRecord,
    ObservationRecord,
    Record,
    RepairRecord,
    StoppedRecord,
)
from mlx_tools.transcript.records import CorrectionRecord as Correction

Says = str | Script | Exception | Callable[[str], str | Script]

LIMITS = Limits(
    max_iterations=4,
    max_format_errors=2,
    total_timeout=300.0,
    completion_timeout=120.0,
    idle_timeout=60.0,
    tool_timeout=30.0,
    max_tokens=512,
    max_argument_bytes=65_536,
    max_observation_chars=4_000,
    max_calls_per_turn=8,
    parallel=4,
)
"""The limits of a scene that names none. They stay when the defaults change, and so do the bytes of
a recording."""

ALL = Policy(allow=["*"])
FREELY = Policy(allow=["*"], ask_effects=())
"""A policy that does not ask about writes, in scenes of something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A scene that is recorded as one golden transcript.

    ``says`` are the completions, ``asks`` the questions, ``choices`` the tool choice of each.
    ``answers`` are what a person says of calls, one after the other, then nothing. ``tools`` are
    made anew for each recording. ``play`` is what happens, by default every question in turn; it
    returns the session's id. ``files`` are the model's, where its own template is used.
    """

    name: str
    about: str
    says: Sequence[Says] = ()
    features: tuple[str, ...] = ()
    asks: Sequence[str] = ("Please help me.",)
    choices: Sequence[str | None] = ()
    tools: Callable[[], Sequence[Tool]] = list
    policy: Policy = ALL
    limits: Limits = LIMITS
    settings: Mapping[str, Any] = field(default_factory=dict)
    answers: Sequence[ApprovalAnswer] = ()
    history: Sequence[Mapping[str, Any]] = ()
    files: ModelFiles | None = None
    expect: Sequence[Mapping[str, Any]] = ()
    play: Callable[[Stage], Awaitable[str]] | None = None


class Approver:
    """Gives the answers of a scene; nobody is there when they have run out."""

    def __init__(self, answers: Sequence[ApprovalAnswer]) -> None:
        self._answers = list(answers)

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """One answer a request."""
        return [self._answers.pop(0) if self._answers else ApprovalAnswer(None) for _ in requests]


class Stage:
    """The place of a scene: a store in a folder of its own, a clock that ticks once a look."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene = scene
        self.folder = folder
        self.registry = Registry(scene.tools())
        self.store = TranscriptStore(folder / "sessions")
        self.later = timedelta()
        self._clock = self._ticks()

    def _ticks(self) -> Iterator[datetime]:
        at = datetime(2000, 1, 1, tzinfo=UTC)
        while True:
            yield at
            at += timedelta(seconds=1)

    def now(self) -> datetime:
        """The scene's own time."""
        return next(self._clock) + self.later

    def controller(
        self,
        *says: Says,
        answers: Sequence[ApprovalAnswer] = (),
        approver: Approver | None = None,
        backend: Any = None,
        policy: Policy | None = None,
        templates: Any = None,
    ) -> Controller:
        """The controller of the scene, with a model that says these things."""
        settings = {"style": "jsonl", "strategy": "free", "model": "scripted"} | dict(
            self.scene.settings
        )
        if self.scene.files is None:
            settings.setdefault("chat_format", NAMED_FORMATS["chatml"])
        return Controller(
            ScriptedBackend(*says) if backend is None else backend,
            self.registry,
            self.scene.policy if policy is None else policy,
            limits=self.scene.limits,
            settings=RunSettings(verdict=VerdictChoice(), **settings),
            store=self.store,
            approver=approver or Approver(answers),
            templates=templates,
            now=self.now,
        )

    async def ask_all(self, controller: Controller) -> str:
        """Asks every question of the scene in one session; returns its id."""
        scene = self.scene
        choices = [*scene.choices, *(None for _ in scene.asks)]
        async with await controller.conversation(history=scene.history) as conversation:
            for question, choice in zip(scene.asks, choices, strict=False):
                try:
                    await conversation.run(question, tool_choice=choice)
                except BackendError:
                    break
            return conversation.session

    def path(self, session: str) -> Path:
        """The transcript of a session."""
        return Path(self.store.find_path(session))

    def golden(self, session: str, **more: Any) -> Golden:
        """Return the golden transcript of a session on this stage."""
        scene, path = self.scene, self.path(session)
        return make_scene_golden(
            Golden.from_records(tuple(load(path))),
            scene,
            registry=self.registry,
            source="scripted",
            artifact=self.store.artifacts(path.parent).get,
            **more,
        )


def make_limits(**limits: Any) -> Limits:
    """Return the limits of a scene, with some replaced."""
    return replace(LIMITS, **limits)


def make_scene_golden(session: Golden, scene: Scene, **more: Any) -> Golden:
    """Return the golden transcript of a session, with the features in its records."""
    features = dict.fromkeys((*scene.features, *find_features(session)))
    return make_golden(
        session,
        name=scene.name,
        about=scene.about,
        features=tuple(features),
        expect=scene.expect,
        files=scene.files,
        **more,
    )


def find_features(session: Golden) -> Iterator[str]:
    """Yield the features in a run's records.

    These are style, chat format, strategies, repairs, error codes and the ends of its questions.
    """
    from mlx_tools.golden import list_outcomes

    header = session.header
    yield from (header.style, f"format-{header.chat_format['name']}")
    for record in session.records:
        yield from _find_record_features(record)
    if sum(isinstance(record, CallRecord) for record in session.records) == 0:
        yield "no-call"
    for outcome in list_outcomes(header, session.records):
        yield outcome.get("reason") or outcome["status"]


def _find_record_features(record: Record) -> Iterator[str]:
    match record:
        case CompletionRecord():
            yield record.strategy
            if record.error is not None:
                yield record.error.code
        case MendRecord():
            yield f"mended-{record.kind}"
        case AnswerRecord():
            yield from (key for key in ("truncated", "call_like") if getattr(record, key))
        case CompactedRecord():
            yield f"compacted-{record.reason}"
        case RepairRecord():
            yield record.name
        case DecisionRecord():
            yield f"{record.decision}-{record.rule.split()[0]}"
            if record.code is not None:
                yield record.code
        case ObservationRecord() | Correction() if record.error is not None:
            yield record.error.code
        case StoppedRecord():
            yield record.reason


async def record_scene(scene: Scene) -> Golden:
    """Run a scripted scene, and return its golden transcript."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(scene, Path(folder).resolve())
        if scene.play is not None:
            session = await scene.play(stage)
        else:
            session = await stage.ask_all(stage.controller(*scene.says, answers=scene.answers))
        return stage.golden(session)


__all__ = [
    "ALL",
    "LIMITS",
    "Approver",
    "Says",
    "Scene",
    "Stage",
    "make_limits",
    "make_scene_golden",
    "record_scene",
]
