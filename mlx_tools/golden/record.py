"""Makes a golden transcript of a session, and brings one up to date."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from mlx_tools.backends import ModelFiles
from mlx_tools.errors import TranscriptError, require_instance, require_items, require_texts
from mlx_tools.golden.difference import Difference
from mlx_tools.golden.file import Golden
from mlx_tools.golden.recorded import (
    SECRET,
    UNFINISHED,
    list_effects,
    list_outcomes,
    read_template,
    specs_today,
)
from mlx_tools.golden.replaying import Replay, replay
from mlx_tools.messages import ToolCall, replace
from mlx_tools.policy import Policy, can_be_allowed, find_secrets
from mlx_tools.prompt import ChatFormat
from mlx_tools.store import RootName, from_json, to_json
from mlx_tools.tools import Registry
from mlx_tools.transcript import (
    ApprovalRecord,
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    EditRecord,
    GoldenRecord,
    Header,
    NestedRecord,
    ObservationRecord,
    PauseRecord,
    Record,
    SummaryRecord,
)

ROUNDS: Final = 6
"""Times that a transcript is brought up to date, at most. Each change may cause one more: another
word in an observation changes the prompt that it is in."""


class CannotSettle(TranscriptError):
    """The recording does not say enough to tell what the run would be today."""

    def __init__(self, message: str, differences: Sequence[Difference] = ()) -> None:
        first = f": {differences[0].subject} ({differences[0].room})" if differences else ""
        super().__init__(message + first, hint="record it again with the model")
        self.differences = tuple(differences)


def make_golden(
    session: Golden | Sequence[Record],
    *,
    name: str,
    registry: Registry,
    source: Literal["real", "scripted"] = "real",
    about: str = "",
    features: Sequence[str] = (),
    expect: Sequence[Mapping[str, Any]] = (),
    files: ModelFiles | None = None,
    artifact: Callable[[str], str | None] = lambda key: None,
) -> Golden:
    """Make the golden transcript of a session that has come to rest.

    ``session`` are its records, as in ``store.read(session).transcript``. ``registry`` has the
    tools of the session, ``files`` are the model's, if they are here, and ``artifact`` reads an
    artifact of the session.

    Raises `TranscriptError` if the session has not come to rest. Raises `CannotSettle` if it does
    not replay, because it was made with other prompts or another version.
    """
    if not isinstance(session, Golden):
        session = Golden.from_records(require_items("session", session, "give its records"))
    require_instance("registry", registry, Registry, "write controller.registry")
    features = require_texts("features", features, "give a list of texts")
    expect = require_items("expect", expect, "give a list, an expectation a question")
    if files is not None:
        require_instance("files", files, ModelFiles, "give the model's files, or None")
    header = session.header
    if any(o["status"] == UNFINISHED for o in list_outcomes(header, session.records)):
        raise TranscriptError("the session has not come to rest", hint="resume it first")
    tools = {r.call: r.name for r in session.records if isinstance(r, CallRecord)}
    made = [
        ToolCall(tools[r.call], r.arguments)
        for r in session.records
        if isinstance(r, CallRecord | EditRecord) and r.call in tools
    ]
    called, listed = set(tools.values()), {tool["name"] for tool in header.tools}
    own, policy = registry.all_specs(), Policy.from_json(header.policy)
    # Today's registry need not know which folders the session could see.
    specs = own | {
        name: spec
        for name, spec in specs_today(session).items()
        if name in own and own[name].plugin == spec.plugin
    }
    golden = GoldenRecord(
        name=name,
        source=source,
        about=about,
        features=features,
        extra_tools=tuple(  # the tools that matter to the run and are not in its catalog
            spec.to_json()
            for name, spec in registry.specs().items()
            if name not in listed and (name in called or can_be_allowed(policy, spec))
        ),
        disabled={n: w for n, w in registry.disabled.items() if n in called and n not in listed},
        effects=list_effects(specs, made),
        template=read_template(files, ChatFormat.from_json(header.chat_format), header.model),
        expect=tuple(expect),
    )
    header = replace(header, functions=())  # paths of this machine, of which a replay needs none
    raw = Golden(header, golden, tuple(_with_whole(record, artifact) for record in session.records))
    if differences := replay(raw).differences:
        raise CannotSettle("the session does not replay as it is", differences)
    return settle(name_values(raw, home=str(Path.home()))).now


def settle(golden: Golden, *, registry: Registry | None = None) -> Replay:
    """Return the last replay of a transcript that was brought up to date.

    Its ``now`` replays without a difference. ``registry`` is that of `replay`.

    Raises:
        CannotSettle: no such transcript can be made.
    """
    for _ in range(ROUNDS):
        try:
            done = replay(golden, registry=registry)
        except TranscriptError as error:
            raise CannotSettle(f"what was recorded does not follow any more: {error}") from None
        if done.now.all == golden.all and done.passed:
            outcomes = list_outcomes(done.now.header, done.now.records)
            if any(outcome["status"] == UNFINISHED for outcome in outcomes):
                raise CannotSettle(
                    "the run would go on today, and nobody knows what the model would write"
                )
            return done
        golden = done.now
    raise CannotSettle("it comes out otherwise each time", done.differences)


def _with_whole(record: Record, artifact: Callable[[str], str | None]) -> Record:
    """Add the whole output to an observation that was cut: a replay cuts it again."""
    if not isinstance(record, ObservationRecord) or record.artifact is None:
        return record
    whole = artifact(record.artifact)
    return record if whole is None or whole == record.content else replace(record, whole=whole)


# --- names in the place of what changes from run to run -------------------------------------------
# A golden transcript of the same run must be the same in every place and at every time, and must
# not show whose machine it was. So sessions, folders, keys of artifacts, digests and secrets get
# names, times are counted from one fixed day, and durations are left out.

DAY: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""The time at which all golden transcripts begin."""

_TIMES: Final = frozenset(("created", "at", "expires_at"))
_PROTOCOL: Final = frozenset(("type", *_TIMES))
"""Keys whose values cannot be secrets."""


def name_values(golden: Golden, *, home: str) -> Golden:
    """Return the transcript with names for values, and the meaning of each name.

    ``home`` is a folder whose name is private: the user's home.
    """
    every = [_without_marks(record) for record in golden.all]
    # for each value, the name in its place, and the value's kind
    meant: dict[str, tuple[str, str]] = {}
    times: Counter[str] = Counter()
    for value, kind, what in _own_values(golden.header, every, home):
        if len(value) > 1 and value not in meant:
            times[kind] += 1
            numbered = times[kind] > 1 or kind in ("artifact", "file", "nested")
            meant[value] = f"{{{kind} {times[kind]}}}" if numbered else f"{{{kind}}}", what
    plain = [to_json(record) for record in every]
    for number, (value, kind) in enumerate(sorted(_secrets(plain).items()), start=1):
        meant[value] = f"{{secret {number}}}", f"{SECRET}{kind}"
    order = sorted(meant, key=len, reverse=True)  # a folder before the folder that it is in

    def renamed(value: Any, key: str = "") -> Any:
        if isinstance(value, str) and key in _TIMES:
            return _from_day(value, golden.header.created)
        if isinstance(value, str):
            for one in order:
                value = value.replace(one, meant[one][0])
        elif isinstance(value, dict):
            return {renamed(k): renamed(v, k) for k, v in value.items()}
        elif isinstance(value, list | tuple):
            return [renamed(item) for item in value]
        return value

    made = Golden.from_records([from_json(renamed(value)) for value in plain])
    return replace(made, golden=replace(made.golden, named_values=dict(meant.values())))


def _without_marks(record: Record) -> Record:
    """Return the record without the values of this one run.

    These are seals, durations, digests and the address of the server.
    """
    match record:
        case Header():
            kind = {k: v for k, v in record.backend.items() if k == "kind"}
            return replace(record, seal="", backend=kind, folder="")
        case CompletionRecord() | SummaryRecord() | CompactedRecord() | ObservationRecord():
            return replace(record, duration_ms=None)
        case PauseRecord():
            digests = tuple(f"{{digest {call}}}" for call in record.calls)
            within = tuple(
                replace(call, digest=f"{{digest {call.call_id}}}") for call in record.nested_calls
            )
            return replace(record, digests=digests, nested_calls=within, seal="")
        case ApprovalRecord():
            state = "{state}" if record.state else ""
            return replace(record, digest=f"{{digest {record.call}}}", state=state, seal="")
    return record


def _own_values(
    header: Header, records: Iterable[Record], home: str
) -> Iterator[tuple[str, str, str]]:
    """Yield the values that belong to this one run, each with its kind and meaning."""
    yield header.session, "session", "the session's id"
    for root in header.roots:
        path = os.path.normpath(RootName.parse(root).path)
        yield path, "root", "a folder that the run could see"
    yield home and os.path.normpath(home), "home", "the user's own folder"
    parent = (header.parent or "").partition("/")[0]
    yield parent, "parent", "the session that this one runs within"
    for record in records:
        if isinstance(record, NestedRecord):
            yield record.session, "nested", "the session of a run within a call"
        elif isinstance(record, ObservationRecord):
            yield record.artifact or "", "artifact", "the key of an artifact"
            # It follows from the folder's path.
            yield from ((view.file, "file", "the identity of a file") for view in record.files)
        elif isinstance(record, CompactedRecord):
            yield from ((key, "artifact", "the key of an artifact") for key in record.artifacts)


def _secrets(values: Any) -> dict[str, str]:
    """Find the secrets in the texts of JSON values, each with its kind."""
    found: dict[str, str] = {}
    waiting: list[Any] = [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            for secret in find_secrets(value):
                found[value[secret.start : secret.end]] = secret.kind
        elif isinstance(value, dict):
            waiting += [item for key, item in value.items() if key not in _PROTOCOL]
        elif isinstance(value, list | tuple):
            waiting += value
    return found


def _from_day(text: str, start_date: str) -> str:
    """Return the time as it would be, had the session begun on `DAY`."""
    try:
        moved = DAY + (datetime.fromisoformat(text) - datetime.fromisoformat(start_date))
    except (ValueError, TypeError):
        return text
    return moved.isoformat(timespec="milliseconds" if "." in text else "seconds")
