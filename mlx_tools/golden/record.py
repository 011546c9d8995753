"""Makes a golden transcript of a session, and brings one up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from mlx_tools.backends import ModelFiles
from mlx_tools.errors import TranscriptError
from mlx_tools.golden.difference import Difference
from mlx_tools.golden.expect import UNFINISHED, outcomes_of
from mlx_tools.golden.file import Golden
from mlx_tools.golden.placeholders import named
from mlx_tools.golden.replaying import Replay, replay
from mlx_tools.golden.session_start import effects_of, specs_today, template_of
from mlx_tools.messages import ToolCall, ToolSpec
from mlx_tools.policy import Policy, permitted
from mlx_tools.prompt import ChatFormat
from mlx_tools.tools import Registry
from mlx_tools.transcript.records import (
    CallRecord,
    EditRecord,
    GoldenRecord,
    Header,
    ObservationRecord,
    Record,
)

ROUNDS: Final = 6
"""How often a transcript is brought up to date before it is given up: each change may bring one
more, such as another word of an observation the prompt that it stands in."""

VOLATILE: Final = ("clock",)
"""Tools whose output is another each time."""


class CannotSettle(TranscriptError):
    """What was recorded is not enough to say what the run would be today."""

    def __init__(self, message: str, differences: Sequence[Difference] = ()) -> None:
        first = f": {differences[0].what} ({differences[0].room})" if differences else ""
        super().__init__(message + first, hint="record it again with the model")
        self.differences = tuple(differences)


def make_golden(
    session: Golden,
    *,
    name: str,
    registry: Registry,
    source: Literal["real", "scripted"] = "real",
    about: str = "",
    features: Sequence[str] = (),
    expect: Sequence[Mapping[str, Any]] = (),
    volatile: Sequence[str] = VOLATILE,
    files: ModelFiles | None = None,
    artifact: Callable[[str], str | None] = lambda key: None,
    home: str | None = None,
) -> Golden:
    """The golden transcript of a session that has come to rest.

    ``registry`` are the tools that it had, ``files`` the model's, where they are here, ``artifact``
    reads one of the session's. ``home`` is the user's folder, whose name is taken out. Raises
    `TranscriptError` where the session has not come to rest, and `CannotSettle` where it does not
    replay: it was made with other prompts or another version.
    """
    header = session.header
    if any(o["status"] == UNFINISHED for o in outcomes_of(header, session.records)):
        raise TranscriptError("the session has not come to rest", hint="resume it first")
    calls = [r for r in session.records if isinstance(r, CallRecord | EditRecord)]
    # Of which folders the session could see, the registry of today need not know.
    specs = {**registry.all_specs(), **_builtin_then(session, registry)}
    golden = GoldenRecord(
        name=name,
        source=source,
        about=about,
        features=tuple(features),
        known=_known(
            header, registry.specs(), {c.name for c in calls if isinstance(c, CallRecord)}
        ),
        disabled=_disabled(header, registry, calls),
        effects=effects_of(specs, _made(session.records)),
        template=template_of(files, ChatFormat.from_json(header.chat_format), header.model),
        expect=tuple(expect),
        volatile=tuple(tool for tool in volatile if tool in specs),
    )
    records = [_with_whole(record, artifact) for record in session.records]
    raw = Golden(header, golden, tuple(records))
    if differences := replay(raw).differences:
        raise CannotSettle("the session does not replay as it is", differences)
    own = str(Path.home()) if home is None else home
    named_header, (kept, *named_records), names = named(header, [golden, *records], home=own)
    if not isinstance(kept, GoldenRecord):
        raise AssertionError("the golden record comes first")
    kept = replace(kept, named=names)
    return settled(Golden(named_header, kept, tuple(named_records))).now


def settled(golden: Golden, **today: Any) -> Replay:
    """The last replay of a transcript that was brought up to date; its ``now`` replays without a
    difference. ``today`` are `replay`'s. Raises `CannotSettle` where it cannot be."""
    for _ in range(ROUNDS):
        try:
            done = replay(golden, **today)
        except TranscriptError as error:
            raise CannotSettle(f"what was recorded does not follow any more: {error}") from None
        if done.now.all == golden.all and done.passed:
            _check_rest(done)
            return done
        golden = done.now
    raise CannotSettle("it comes out otherwise each time", done.differences)


def _check_rest(done: Replay) -> None:
    """A run that would go on today, or ends before all that was recorded, is no run."""
    outcomes = outcomes_of(done.now.header, done.now.records)
    if any(outcome["status"] == UNFINISHED for outcome in outcomes):
        raise CannotSettle("the run would go on today, and nobody knows what the model would write")


def _known(
    header: Header, specs: Mapping[str, ToolSpec], called: set[str]
) -> tuple[Mapping[str, Any], ...]:
    """The tools that matter to the run and that its catalog does not hold."""
    listed = {tool["name"] for tool in header.tools}
    policy = Policy.from_json(header.policy)
    return tuple(
        spec.to_json()
        for name, spec in specs.items()
        if name not in listed and (name in called or permitted(policy, spec))
    )


def _builtin_then(session: Golden, registry: Registry) -> dict[str, ToolSpec]:
    """The built-in tools as they are with the folders that the session could see."""
    own = registry.all_specs()
    return {
        name: spec
        for name, spec in specs_today(session).items()
        if name in own and own[name].plugin == spec.plugin
    }


def _disabled(
    header: Header, registry: Registry, calls: Sequence[CallRecord | EditRecord]
) -> dict[str, str]:
    """The tools that were called and could not run, with the reason."""
    listed = {tool["name"] for tool in header.tools}
    called = {call.name for call in calls if isinstance(call, CallRecord)} - listed
    return {name: why for name, why in registry.disabled.items() if name in called}


def _made(records: Sequence[Record]) -> list[ToolCall]:
    """All calls that were read or edited."""
    names = {r.call: r.name for r in records if isinstance(r, CallRecord)}
    return [
        ToolCall(names[r.call], r.arguments)
        for r in records
        if isinstance(r, CallRecord | EditRecord) and r.call in names
    ]


def _with_whole(record: Record, artifact: Callable[[str], str | None]) -> Record:
    """An observation that was cut, with all of it: what a replay cuts again."""
    if not isinstance(record, ObservationRecord) or record.artifact is None:
        return record
    whole = artifact(record.artifact)
    return record if whole is None or whole == record.content else replace(record, whole=whole)
