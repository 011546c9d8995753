"""The contents of the page as values: sessions, steps, calls that wait, tools.

Their texts come from others, so they must be escaped when they are shown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from mlx_tools.app import ReportStep, as_json, build_steps, escape_invisible, plugins
from mlx_tools.controller import ApprovalRequest
from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.gateway import ApiError, TurnRunner, json_object
from mlx_tools.plugins.page.shown_sessions import PageSessions
from mlx_tools.plugins.page.turns import TurnView, group_turns
from mlx_tools.policy import Policy
from mlx_tools.store import ListedSession, SessionStatus, SessionStore, session_status, to_json
from mlx_tools.tools import Registry
from mlx_tools.transcript import (
    Header,
    MendRecord,
    PauseRecord,
    PendingCall,
    Record,
    RepairRecord,
    UserRecord,
    context_used,
    find_last_state,
)

RECORDS: Final = 60
"""Records of a session on one page."""

MAX_ROWS: Final = 25
"""Sessions on one page."""

SECONDS: Final = 2.0
"""Seconds that a search takes for one page; the next page goes on from there."""

# --- sessions -------------------------------------------------------------------------------------


class SessionSearch(Struct, frozen=True):
    """Sessions, the last written first.

    Attributes:
        rows: The sessions.
        last_session: The last one that was looked at, empty if there are no more.
    """

    rows: Sequence[ListedSession]
    last_session: str = ""


def search_sessions(
    store: SessionStore,
    query: str,
    cursor: str,
    clock: Callable[[], float] = time.monotonic,
    titles: Mapping[str, str] = MappingProxyType({}),
) -> SessionSearch:
    """Find the sessions whose title, questions, calls or answers contain the query.

    An empty query is in all of them. Reads files.
    """
    ids, until, rows = store.by_last_update(), clock() + SECONDS, list[ListedSession]()
    if cursor in ids:
        ids = ids[ids.index(cursor) + 1 :]
    text = query.strip().casefold()
    for number, session in enumerate(ids):
        if number and (len(rows) == MAX_ROWS or clock() > until):
            return SessionSearch(rows, ids[number - 1])
        named = f"{session} {titles.get(session, '').casefold()}"
        if not text or text in named or _holds(store, session, text):
            rows.append(store.describe(session))
    return SessionSearch(rows)


def _holds(store: SessionStore, session: str, text: str) -> bool:
    try:
        records = store.records(session)
    except TranscriptError:
        return False
    said = (getattr(r, name, None) for r in records for name in ("content", "text", "name"))
    return any(isinstance(one, str) and text in one.casefold() for one in said)


# --- one session ----------------------------------------------------------------------------------


_ONLY_ARGUMENTS: Final = "it is made within another call, and only its arguments are here"


class WaitingCall(Struct, frozen=True, kw_only=True):
    """A call that a person decides about.

    Attributes:
        fresh: It would still do what it was asked about with, or with the arguments of this person.
        edited: The arguments of this person.
        draft: The arguments in a form.
        counts: Those of `Preview`, and so is ``omitted``.
        consent_binding: That of `ApprovalRequest`.
    """

    call: str
    name: str
    arguments: str
    digest: str
    preview: str = ""
    counts: str = ""
    omitted: str = ""
    reason: str = ""
    suspect: bool = False
    in_doubt: bool = False
    fresh: bool = True
    edited: bool = False
    draft: str = ""
    consent_binding: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session from its record ``start`` on.

    Attributes:
        run: It is a run of the gateway, which goes on with it.
        problem: Why it cannot be shown as it should.
    """

    id: str
    status: str
    records: Sequence[Record]
    start: int
    run: bool
    waiting: Sequence[WaitingCall] = ()
    problem: str = ""
    title: str = ""
    session_status: SessionStatus = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "session_status", session_status(self.records))

    @property
    def live(self) -> bool:
        """True if it is at work, and its end is on this page."""
        return self.run and self.status in ("queued", "running") and not self.later

    @property
    def end(self) -> int:
        """The number of the record after the last one on this page."""
        return min(self.start + RECORDS, len(self.records))

    @property
    def earlier(self) -> int | None:
        """The start of the page before this one."""
        return max(0, self.start - RECORDS) if self.start else None

    @property
    def later(self) -> int | None:
        """The start of the next page."""
        return self.end if self.end < len(self.records) else None

    def turns(self) -> list[TurnView]:
        """Return the questions on this page, each with its steps and end."""
        return group_turns(build_steps(self.records[self.start : self.end]))

    def setup(self) -> list[ReportStep]:
        """Return the steps that set up the session, if they are on this page."""
        steps = build_steps(self.records[self.start : self.end][:2])
        return [step for step in steps if step.kind == "setup"]

    @property
    def last_question(self) -> str:
        """The last question of the session, empty if there is none."""
        asked = (one.content for one in reversed(self.records) if isinstance(one, UserRecord))
        return next(asked, "")

    @property
    def context_share(self) -> str:
        """The share of the model's context in use, in words; empty if unknown."""
        size = next((one.context for one in self.records if isinstance(one, Header)), None)
        used = context_used(self.records)
        if not size or used is None:
            return "" if used is None else f"{used:,} tokens in the context"
        return f"{used:,} of {size:,} tokens of the context ({100 * used / size:.0f} %)"


def encode_records(records: Sequence[Record]) -> bytes:
    """Return records as bytes, as they are stored."""
    lines = (json.dumps(to_json(one), ensure_ascii=False) for one in records)
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogatepass")


async def session_shown(
    sessions: PageSessions, session: str, start: int | None, title: str = ""
) -> SessionView:
    """Return a session from a record on, by default its end.

    Raises `ApiError` if there is no such session.
    """
    status, records, problem = await sessions.read_status(session)
    waiting: list[WaitingCall] = []
    if status == "paused":
        try:
            waiting = await waiting_calls(sessions, session, records)
        except (ApiError, UsageError) as error:
            problem = str(error)
    begin, run = _begin(records, start), await sessions.run(session) is not None
    return SessionView(session, status, records, begin, run, waiting, problem, title)


def _begin(records: Sequence[Record], start: int | None) -> int:
    """Return the first record of a page, none that belongs to the one before it."""
    begin = max(0, len(records) - RECORDS) if start is None else min(start, len(records))
    while 0 < begin < len(records) and isinstance(records[begin], RepairRecord | MendRecord):
        begin -= 1
    return begin


class ChangesNames(Struct, frozen=True):
    """The names of the plugin ``files`` that the page uses."""

    Undo: Callable[[SessionStore, str], Any]


def undo_rows(store: SessionStore, session: str, *, act: bool) -> list[dict[str, str]]:
    """Return the changes of a session, and undo them with ``act``.

    Raises `TranscriptError` if the session is in use, and `UsageError` without the plugin
    ``files``.
    """
    with plugins().exports("files", ChangesNames).Undo(store, session) as undoing:
        steps = undoing.list_steps()
        if act:
            steps = [undoing.undo(step) if step.status == "due" else step for step in steps]
    return [
        {"path": step.change.path, "status": step.status, "words": _describe_step(step)}
        for step in steps
    ]


_WORDS: Final = {
    "restore": ("gets its old content again", "has its old content again"),
    "bring_back": ("comes back", "is back"),
    "remove": ("is removed, since the run made it", "was removed"),
}


def _describe_step(step: Any) -> str:
    """Return in words what becomes of a file, or why it stays."""
    if step.status == "refused":
        return f"stays as it is: {step.reason}"
    return _WORDS[step.action][step.status == "undone"]


# --- calls that wait ------------------------------------------------------------------------------


async def waiting_calls(
    sessions: PageSessions, session: str, records: Sequence[Record]
) -> list[WaitingCall]:
    """Return the calls of a session that wait for a person.

    Fails as `Sessions.waiting` does.
    """
    found = [_waiting(one, fresh=fresh) for one, fresh in await sessions.waiting(session)]
    pause = find_last_state(records)
    within = pause.nested_calls if isinstance(pause, PauseRecord) else ()
    requests = await sessions.waiting_within(session) if within else ()
    looks = {request.call: request for request in requests}
    return found + [_waiting_within(one, looks.get(one.call_id)) for one in within]


def _waiting_within(call: PendingCall, request: ApprovalRequest | None) -> WaitingCall:
    """Return a call within another call. ``request`` says how it would run now."""
    is_fresh = request is not None and request.digest == call.digest
    preview, counts, omitted = "", "", _ONLY_ARGUMENTS
    if request is not None and is_fresh:
        preview, counts, omitted = request.preview, request.counts, request.omitted
    return WaitingCall(
        call=call.call_id,
        name=call.name,
        arguments=as_json(call.arguments, indent=2),
        digest=call.digest,
        preview=preview,
        counts=counts,
        omitted=omitted,
        in_doubt=call.in_doubt,
    )


async def edited_call(sessions: PageSessions, session: str, call: str, text: str) -> WaitingCall:
    """Return a call that waits, with other arguments.

    Raises `ApiError`, and `UsageError` if it cannot have them.
    """
    edited = {call: json_object(text, "The arguments are")}
    for request, _ in await sessions.waiting(session, edited):
        return _waiting(request, fresh=True, edited=True)
    raise UsageError(f"{call[:100]} is not a call that waits")


async def is_shown_whole(
    sessions: PageSessions,
    session: str,
    call: str,
    arguments: Mapping[str, Any] | None,
    digest: str,
) -> bool:
    """Return whether the page shows everything that a waiting call would change.

    ``arguments`` replace the call's own if not None; ``digest`` is that of the call as it was
    shown. Raises as `Sessions.waiting` does.
    """
    if "/" in call:  # it waits in a nested run
        within = await sessions.waiting_within(session)
        asked = [one for one in within if (one.call, one.digest) == (call, digest)]
        return any(not one.omitted for one in asked)
    edited = None if arguments is None else {call: arguments}
    requests = await sessions.waiting(session, edited)
    return not any(request.omitted for request, _ in requests if request.call == call)


def _waiting(request: ApprovalRequest, *, fresh: bool, edited: bool = False) -> WaitingCall:
    text = as_json(request.arguments, indent=2)
    return WaitingCall(
        call=request.call,
        name=request.name,
        arguments=text,
        digest=request.digest,
        preview=request.preview,
        counts=request.counts,
        omitted=request.omitted,
        reason=request.reason,
        suspect=request.suspect,
        in_doubt=request.in_doubt,
        fresh=fresh,
        edited=edited,
        consent_binding=request.consent_binding,
        draft=text
        if escape_invisible(text) == text
        else json.dumps(dict(request.arguments), indent=2),
    )


def diff_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a call's preview, each with its kind.

    In a unified diff ``ins`` are added lines, and ``del`` removed ones.
    """
    changes = False
    for line in text.removesuffix("\n").split("\n"):
        changes = changes or line.startswith("@@")
        yield {"+": "ins", "-": "del"}.get(line[:1], "") if changes else "", line


# --- tools and models -----------------------------------------------------------------------------


def tool_rows(registry: Registry, policy: Policy) -> list[dict[str, Any]]:
    """Return the tools, first those that may run; ``why`` says why one may not."""
    rows = []
    for row in registry.listing(policy):
        why = row["disabled_reason"] or registry.lacks(row["name"], policy) or ""
        known = registry.describe(row["name"]) if row["name"] in registry.all_specs() else {}
        parameters = as_json(known.get("parameters"), indent=2)
        rows.append(row | {"off": bool(why), "why": why, "parameters": parameters})
    return sorted(rows, key=lambda row: row["off"])


def model_rows(runners: Mapping[str, TurnRunner | None]) -> list[dict[str, Any]]:
    """Return the models, with the settings of those that were asked before."""
    return [
        {"name": name, "told": {} if speaker is None else _describe_runner(speaker)}
        for name, speaker in runners.items()
    ]


def _describe_runner(speaker: TurnRunner) -> dict[str, Any]:
    manner = speaker.profile
    settings = manner.settings
    native = settings.route.get("path") == "native"
    return {
        "Asked": "by its server's own function calling" if native else "by a prompt",
        "Because": settings.route.get("reason"),
        "Chat format": manner.chat_format.name,
        "Style": manner.style,
        "Strategy": manner.strategy,
        "Reasoning": settings.reasoning,
        "Context": None if settings.context is None else f"{settings.context:,} tokens",
        "Server": getattr(speaker.backend, "url", None),
    }
