"""Puts names in the place of what changes from run to run, and takes secrets out.

What a golden transcript holds must be the same wherever and whenever the same thing is recorded,
and must tell nobody whose machine it was: sessions, folders, keys of artifacts and digests get
names, times are counted from one fixed day, durations are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from mlx_tools.policy import redact
from mlx_tools.policy.redact import SecretSpan, find_secrets
from mlx_tools.store.transcript import from_json, to_json
from mlx_tools.transcript.records import (
    ApprovalRecord,
    CompactedRecord,
    CompletionRecord,
    Header,
    NestedRecord,
    ObservationRecord,
    PauseRecord,
    Record,
    SummaryRecord,
)

DAY: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""When all golden transcripts begin."""

SECRET: Final = "a secret: "  # noqa: S105
"""What the name of a secret stands for begins so; its kind follows."""

_TIMES: Final = frozenset(("created", "at", "expires_at"))
_PROTOCOL: Final = frozenset(("type", *_TIMES))
"""Keys under which no secret can stand."""


def named(
    header: Header, records: Sequence[Record], *, home: str = ""
) -> tuple[Header, list[Record], Mapping[str, str]]:
    """The records with names in them, and what each name stands for.

    ``home`` is a folder whose name is nobody's business: the user's own.
    """
    every = [_without_marks(record) for record in (header, *records)]
    meant = _meant(header, every, home)
    plain = [to_json(record) for record in every]
    for number, (value, kind) in enumerate(sorted(_secrets(plain).items()), start=1):
        meant[value] = f"{{secret {number}}}", f"{SECRET}{kind}"
    names = {value: name for value, (name, _) in meant.items()}
    order = sorted(names, key=len, reverse=True)  # a folder before the one that it lies in
    began = _time(header.created)
    made = [from_json(_replaced(value, order, names, began, "")) for value in plain]
    first = made[0]
    if not isinstance(first, Header):
        raise AssertionError("the first record is the header")
    return first, made[1:], dict(meant.values())


def _without_marks(record: Record) -> Record:
    """The record without what only this run could have: seals, durations, digests of what was
    shown, the address of the server."""
    match record:
        case Header():
            kind = {k: v for k, v in record.backend.items() if k == "kind"}
            return replace(record, seal="", backend=kind)
        case CompletionRecord() | SummaryRecord() | CompactedRecord() | ObservationRecord():
            return replace(record, duration_ms=None)
        case PauseRecord():
            digests = tuple(f"{{digest {call}}}" for call in record.calls)
            within = tuple(
                replace(call, digest=f"{{digest {call.call_id}}}") for call in record.within
            )
            return replace(record, digests=digests, within=within, seal="")
        case ApprovalRecord():
            state = "{state}" if record.state else ""
            return replace(record, digest=f"{{digest {record.call}}}", state=state, seal="")
    return record


def _meant(header: Header, records: Iterable[Record], home: str) -> dict[str, tuple[str, str]]:
    """By value: the name that stands for it, and what it is."""
    found: dict[str, tuple[str, str]] = {}

    def name(value: str, text: str, what: str) -> None:
        if len(value) > 1:
            found.setdefault(value, (text, what))

    name(header.session, "{session}", "the session's id")
    for number, root in enumerate(header.roots, start=1):
        path = root.removesuffix(":rw").removesuffix(":ro")
        mark = "" if number == 1 else f" {number}"
        name(os.path.normpath(path), f"{{root{mark}}}", "a folder that the run could see")
    if home:
        name(os.path.normpath(home), "{home}", "the user's own folder")
    if header.parent:
        name(header.parent.partition("/")[0], "{parent}", "the session that this one runs within")
    artifacts = nested = 0
    for record in records:
        keys: tuple[str | None, ...] = ()
        if isinstance(record, ObservationRecord):
            keys = (record.artifact,)
        elif isinstance(record, CompactedRecord):
            keys = record.artifacts
        for key in keys:
            if key is not None and key not in found:
                artifacts += 1
                name(key, f"{{artifact {artifacts}}}", "the key of an artifact")
        if isinstance(record, NestedRecord) and record.session not in found:
            nested += 1
            name(record.session, f"{{nested {nested}}}", "the session of a run within a call")
    return found


def _secrets(values: Any) -> dict[str, str]:
    """The secrets in the texts of JSON values, each with its kind."""
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


def _replaced(
    value: Any, order: Sequence[str], names: Mapping[str, str], began: datetime | None, key: str
) -> Any:
    """A JSON value with the names in its texts, and its times counted from `DAY`."""
    if isinstance(value, str):
        if key in _TIMES:
            return _from_day(value, began)
        for one in order:
            if one in value:
                value = value.replace(one, names[one])
        return value
    if isinstance(value, dict):
        return {
            _replaced(k, order, names, None, ""): _replaced(v, order, names, began, k)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_replaced(item, order, names, began, "") for item in value]
    return value


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _from_day(text: str, began: datetime | None) -> str:
    """The time as it would be, had the session begun on `DAY`."""
    at = _time(text)
    if at is None or began is None:
        return text
    moved = DAY + (at - began)
    return moved.isoformat(timespec="milliseconds" if "." in text else "seconds")


class NamedSecrets:
    """Finds the secrets in a text, those among them whose place a name has taken: what policy says
    of a call that holds one is the same then."""

    def __init__(self, names: Mapping[str, str]) -> None:
        kinds = {name: what for name, what in names.items() if what.startswith(SECRET)}
        self._kinds = {name: what.removeprefix(SECRET) for name, what in kinds.items()}

    def find_secrets(self, text: str, /) -> Sequence[SecretSpan]:
        """The secrets, in no order."""
        found = list(redact.find_secrets(text))
        for name, kind in self._kinds.items():
            if (start := text.find(name)) >= 0:
                found.append(SecretSpan(kind, start, start + len(name)))
        return found

    def holds_placeholder(self, text: str, /) -> bool:
        """Whether the text holds what stands for a secret that was taken out of an output."""
        return redact.holds_placeholder(text)
