"""The execution of runs: the model, tools, policy and session of each.

A process that is gone may have begun an action. The transcript shows that, and the action is done
only once. A call that can change things, was started and has no known end is never made again: a
person is asked about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
from msgspec import Struct

from mlx_tools.app import (
    Configuration,
    approval_templates,
    build_registry,
    collect,
    config,
    list_roots,
    session_store,
)
from mlx_tools.controller import (
    ApprovalAnswer,
    ApprovalRequest,
    ApproveAlways,
    Approver,
    Controller,
    Conversation,
    PauseApprover,
    check_header,
)
from mlx_tools.errors import (
    BackendError,
    MlxToolsError,
    StorageError,
    ToolDefinitionError,
    TranscriptError,
    UsageError,
)
from mlx_tools.gateway import DEFAULT, ApiError, Note, ServedModels, TurnRunner, invalid, read
from mlx_tools.messages import replace
from mlx_tools.plugins.runs.body import ResultBody, RunAct, RunRequest, read_run
from mlx_tools.plugins.runs.queue import RunQueue
from mlx_tools.plugins.runs.rows import Hook, Queue, RunRow, RunRows
from mlx_tools.plugins.runs.webhooks import Webhooks
from mlx_tools.policy import Limits, Policy, restriction
from mlx_tools.store import RootName, SessionFiles, SessionStore, Statements
from mlx_tools.tools import Registry, Tool, ToolError
from mlx_tools.transcript import (
    ApprovalRecord,
    DecisionRecord,
    Event,
    Header,
    ObservationRecord,
    Record,
    ResumedRecord,
    Stopped,
    UserRecord,
    is_at_rest,
    make_outcome,
)

_MAX_NOTED: Final = 100
"""Lines about tools that are noted at most, so that a changing reason fills no log."""


class _ClientToolApprover(Struct, frozen=True):
    """Decides like another approver; calls of a client's own tools wait."""

    inner: Approver
    own_names: frozenset[str]

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        answers = await self.inner.decide(requests)
        pairs = zip(requests, answers, strict=True)
        return [ApprovalAnswer(None) if one.name in self.own_names else said for one, said in pairs]


class _ExistingSession(Struct, frozen=True):
    """A store that returns a session without a question as its next new one."""

    inner: SessionStore
    session: str

    @property
    def secret(self) -> bytes:
        return self.inner.secret

    def create(self) -> SessionFiles:
        files = self.inner.open(self.session)
        try:
            for header in files.transcript[:1]:
                check_header(header, self.secret)
        except BaseException:
            files.transcript.close()
            raise
        return files


MakeRegistry = Callable[[Header | None], Registry]
"""Makes the tools that exist, for a new session or one with this header."""


class RunExecution:
    """Opens the sessions of runs and does in them what is asked.

    Attributes:
        configuration: The server's settings.
        store: The sessions.
        rows: The runs, and what is still to be done about each.
        queue: Where runs wait for workers; None if the process that is asked does them.
        webhooks: Tell other servers what came of runs.
        make_registry: Makes the tools that exist.
    """

    def __init__(
        self,
        configuration: Configuration,
        models: ServedModels,
        note: Note,
        webhooks: Webhooks,
        make_registry: MakeRegistry | None = None,
    ) -> None:
        """``note`` is called with faults that no client hears of."""
        self.configuration, self._models = configuration, models
        self._note, self.webhooks = note, webhooks
        self.make_registry = make_registry or self._registry
        self._noted: set[str] = set()
        self.store = session_store(configuration)
        self.queue = None if self.store.dsn is None else RunQueue(self.store)
        add: Queue = _add_nowhere if self.queue is None else self.queue.add
        self.rows = RunRows(self.store, add)

    async def begin(self, run_request: RunRequest) -> tuple[Conversation, str]:
        """Begin a session, and return it with its model's name. Raises `MlxToolsError`."""
        speaker = await self._models.speaker(self._find_model(run_request))
        controller = self._controller(speaker, run_request, self.store)
        model = speaker.profile.settings.model or DEFAULT
        return await controller.conversation(history=run_request.history), model

    async def open(self, row: RunRow, records: Sequence[Record]) -> Conversation:
        """Open the session of a run, which has these ``records``. Raises `MlxToolsError`."""
        asked = await anyio.to_thread.run_sync(read_run, row.body)
        speaker = await self._models.speaker(row.model or self._find_model(asked))
        if not has_question(records):
            controller = self._controller(speaker, asked, _ExistingSession(self.store, row.id))
            return await controller.conversation(history=asked.history)
        header = next(record for record in records if isinstance(record, Header))
        return await self._controller(speaker, asked, self.store, header).reopen(row.id)

    async def run(
        self, row: RunRow, conversation: Conversation, emit: Callable[[Event], None]
    ) -> None:
        """Do the action of the row until the run rests, and record that it is done.

        Raises `StorageError`.
        """
        assert row.act is not None
        refusal = await self._do(conversation, row.act, emit)
        records = conversation.files.transcript
        if refusal or is_at_rest(records):
            await self.put_to_rest(row, [*records], refusal)

    async def _do(
        self, conversation: Conversation, act: RunAct, emit: Callable[[Event], None]
    ) -> str:
        """Do an action until the run comes to rest; return why not, if it is refused."""
        refusal = ""
        try:
            await perform(conversation, act, emit)
        except UsageError as error:
            refusal = str(error)
            with suppress(MlxToolsError):
                await conversation.settle()  # a withdrawn action may have begun
        except StorageError:
            raise
        except BackendError:
            pass  # the transcript says whether it was done
        except Exception as error:
            self._note(f"run {conversation.session} ended with {type(error).__name__}")
        finally:
            await conversation.registry.aclose()
        return refusal

    async def read(self, row: RunRow) -> Sequence[Record]:
        """Read the records of a run, as they are now. Raises `ApiError`."""
        try:
            return await anyio.to_thread.run_sync(self.store.records, row.id)
        except TranscriptError as error:
            if await anyio.to_thread.run_sync(self.store.size, row.id) >= 0:
                raise ApiError(500, "transcript_damaged", error.message) from error
            raise ApiError(404, "not_found", f"the session of {row.id} was removed") from error

    async def put_to_rest(
        self, row: RunRow, records: Sequence[Record], refusal_reason: str = ""
    ) -> None:
        """Record that a run has nothing more to do, and add the webhook for it."""
        hook, url = None, row.body.get("webhook")
        if url is not None and (row.act is None or len(records) > row.act.records):
            status = get_run_status(row, records)
            kind = "run.paused" if status == "paused" else "run.done"
            data = {"id": row.id, "status": status}
            hook = Hook(f"{row.id}.{len(records)}", url, kind, data)
        rest = partial(self.rows.mark_done, now=self.webhooks.now(), refusal_reason=refusal_reason)
        await anyio.to_thread.run_sync(rest, row, hook)
        if hook is not None:
            self.webhooks.wake(self.rows)

    def _find_model(self, run_request: RunRequest) -> str:
        """Return the model that a run or its profile names, empty if neither does."""
        layer = self.configuration.profiles.get(run_request.body.profile or "")
        named = "" if layer is None else str(layer.values.get("model.name", ""))
        return run_request.body.model or named

    def _load_profile(self, profile: str) -> tuple[Policy, Limits, dict[str, Any]]:
        """Return the policy, limits and prompt settings of a profile of the user's.

        Raises `ApiError` if there is none of this name.
        """
        try:
            found = self.configuration.with_profile(profile)
        except UsageError as error:
            raise invalid("profile", str(error)) from None
        said, rows = found.make_run_values(), config.table()
        own = {rows[key].setting.run for key in self.configuration.profiles[profile].values}
        return found.policy(), found.limits(), {key: said[key] for key in own & said.keys()}

    def _registry(self, header: Header | None, roots: Sequence[str] | None = None) -> Registry:
        configuration = self.configuration
        if roots is not None:
            configuration = configuration.with_options({"tools.roots": roots})
        return build_registry(configuration, header, self._note_once)

    def _note_once(self, line: str) -> None:
        """Note a line about the tools, unless an earlier run noted it."""
        if line not in self._noted and len(self._noted) < _MAX_NOTED:
            self._noted.add(line)
            self._note(line)

    @property
    def roots(self) -> list[RootName]:
        """The folders of this server."""
        return [RootName.parse(root) for root in list_roots(self.configuration)]

    def _named_roots(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return the server's folders that a run names.

        Raises:
            ApiError: one is none of them.
        """
        roots = {RootName.parse(root).path: root for root in list_roots(self.configuration)}
        for path in paths:
            if path not in roots:
                raise invalid("roots", f"{path[:200]} is no folder of this server")
        return tuple(roots[path] for path in dict.fromkeys(paths))

    def _controller(
        self,
        speaker: TurnRunner,
        run_request: RunRequest,
        store: SessionStore | _ExistingSession,
        header: Header | None = None,
    ) -> Controller:
        """Return the controller of a run, with the client's own tools.

        Policy and limits are the server's, narrowed as the client says. Raises `MlxToolsError`.
        """
        configuration, given, own = self.configuration, run_request.body, run_request.own_names
        roots = None if given.roots is None else self._named_roots(given.roots)
        made = self.make_registry(header) if roots is None else self._registry(header, roots)
        registry, policy = made, configuration.policy()
        named = [registry.resolve_name(name) for name in given.tools or ()]
        for name in named if header is None else ():
            if (why := registry.lacks(name, policy)) is not None:
                raise invalid("tools", f"{name}: {why}")
        for spec in run_request.client_tools:
            try:
                registry.add(Tool(spec, _made_elsewhere))
            except ToolDefinitionError as error:
                raise invalid("client_tools", str(error)) from None
        limits, settings = configuration.limits(), speaker.profile.settings
        if roots is not None:
            settings = replace(settings, roots=roots)
        policy = _admitting(policy, own)
        if given.profile is not None and header is None:  # otherwise the header says it
            narrowed, lower, said = self._load_profile(given.profile)
            policy = policy.intersect(_admitting(narrowed, own))
            limits, settings = limits.lower(lower), replace(settings, **said)
        if given.tools is not None:
            policy = policy.intersect(restriction((*named, *own)))
        elif given.preset is not None:
            policy = policy.intersect(restriction(tuple(own), preset=given.preset))
        always = configuration.settings.policy.approve == "always"
        return Controller(
            speaker.backend,
            registry,
            policy,
            limits=run_request.limits_within(limits),
            settings=replace(settings, output_schema=run_request.schema),
            store=store,
            approver=_ClientToolApprover(ApproveAlways() if always else PauseApprover(), own),
            templates=approval_templates(store),
            configured_policy=_admitting(configuration.configured_policy(), own),
            observers=collect("observers"),
        )


async def perform(conversation: Conversation, act: RunAct, emit: Callable[[Event], None]) -> None:
    """Do an action on a run until it rests; resume one that a dead process began.

    Raises `UsageError` if it is refused, and what runs raise.
    """
    records = conversation.files.transcript
    since, body = records[act.records :], act.body
    match act.type:
        case "ask" if not has_question(since):
            await conversation.run(body["question"], emit=emit)
            return
        case "decide" if not _has(since, ApprovalRecord, body["call"]):
            answer = ApprovalAnswer(**{k: v for k, v in body.items() if k != "call"})
            await conversation.resume({body["call"]: answer}, emit)
            return
        case "give":
            given = read(ResultBody, body)
            if not _has(since, ObservationRecord, given.call_id):
                await conversation.resume(results={given.call_id: given.result()}, emit=emit)
                return
        case "look" if not since:
            await conversation.resume(emit=emit)
            return
    if not is_at_rest(records):
        await conversation.resume(emit=emit)


def _has(
    records: Sequence[Record], kind: type[ApprovalRecord | ObservationRecord], call: str
) -> bool:
    """Return whether a record of this kind belongs to a call."""
    return any(isinstance(one, kind) and one.call == call for one in records)


async def list_requests(
    conversation: Conversation,
    edited: Mapping[str, Mapping[str, Any]] | None = None,
    own_names: frozenset[str] = frozenset(),
) -> list[tuple[ApprovalRequest, bool]]:
    """Return the calls that wait for a person, as they would run now.

    Args:
        conversation: The session of the run.
        edited: Other arguments by call: only these calls are returned, with them.
        own_names: The client's own tools, whose calls wait for their client.

    Returns:
        Each call, and whether it is still what was asked about.

    Raises:
        UsageError: a call cannot have such arguments.
    """
    found = [pair for pair in await conversation.waiting() if pair[0].name not in own_names]
    if edited is None:
        return found
    asked = [(one, edited[one.call]) for one, _ in found if one.call in edited]
    return [(await one.preview_edit(new), True) for one, new in asked if one.preview_edit]


def get_run_status(row: RunRow, records: Sequence[Record]) -> str:
    """Return the status of a run that no process works on."""
    if is_at_rest(records):
        outcome = make_outcome(records)
        cancelled = isinstance(outcome, Stopped) and outcome.reason == "cancelled"
        return "cancelled" if cancelled else outcome.status
    return "cancelled" if row.cancelled else "stopped"


def has_question(records: Sequence[Record]) -> bool:
    """Return whether there is a question among the records."""
    return any(isinstance(one, UserRecord) for one in records)


def is_begun(new_records: Sequence[Record]) -> bool:
    """Return whether the action on a run is among the records since."""
    return any(not isinstance(record, ResumedRecord | DecisionRecord) for record in new_records)


def _add_nowhere(db: Statements, run: str, model: str) -> None:
    """Add nothing to a queue."""


def _made_elsewhere(arguments: Mapping[str, Any]) -> str:
    raise ToolError("its client makes this call, and sends the result")


def _admitting(policy: Policy, own_names: frozenset[str]) -> Policy:
    """Return the policy with a client's own tools.

    Their calls wait for the client's results.
    """
    if not own_names:
        return policy
    names = tuple(sorted(own_names))
    first, *others = (
        replace(part, narrowing=(), allow=(*part.allow, *names), ask=(*part.ask, *names))
        for part in policy.parts
    )
    return replace(first, narrowing=tuple(others))
