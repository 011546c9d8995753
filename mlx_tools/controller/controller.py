"""The library's front door: a question goes in, an outcome comes out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from datetime import datetime
from functools import partial
from types import NoneType
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar, get_args, get_origin

import anyio
import anyio.to_thread
from msgspec import Meta, ValidationError, convert, structs

from mlx_tools.backends import (
    Backend,
    CompleteFunction,
    ModelSetup,
    StrategyChoice,
    StyleChoice,
    VerdictChoice,
    as_backend,
    find_model_name,
    find_setup,
    limit_discovery,
)
from mlx_tools.controller.approvals import check_begun_here, compute_seal
from mlx_tools.controller.approver import (
    Approvals,
    Approver,
    DecideFunction,
    Templates,
    as_approver,
)
from mlx_tools.controller.conversation import Conversation, ConversationParts
from mlx_tools.controller.earlier import (
    MESSAGES,
    PriorConversation,
    prior_from_messages,
    prior_from_session,
)
from mlx_tools.controller.session import Session
from mlx_tools.controller.state import SessionInputs
from mlx_tools.controller.tool_runner import NestedRun, RunContext
from mlx_tools.controller.writer import WALL_CLOCK, Observer
from mlx_tools.errors import (
    ToolDefinitionError,
    UsageError,
    require_items,
    require_method,
    require_texts,
    wrong_argument,
)
from mlx_tools.messages import ToolSpec, replace
from mlx_tools.policy import Limits, Policy, can_be_allowed, equal_digests, seal
from mlx_tools.prompt import (
    CATALOG_BUDGET,
    READER,
    ChatFormat,
    Frame,
    Neutraliser,
    Openings,
    is_on_demand,
    is_reader,
    is_search,
    result_tool,
)
from mlx_tools.schema import is_large
from mlx_tools.store import FORMAT_VERSION, MemoryStore, SessionFiles, load_words, to_json
from mlx_tools.tools import (
    CacheScope,
    Finder,
    NestedReadCallCache,
    ReadCallCache,
    Registry,
    Tool,
    artifacts_off_reason,
    read_artifact,
    tool_search,
)
from mlx_tools.transcript import (
    Header,
    Outcome,
    Record,
    RecordedSettings,
    events,
)

T = TypeVar("T")

_SCHEMA: Final = "give a JSON Schema (2020-12), an object"

_MEASURED_SETTINGS: Final = frozenset(
    ("chat_format", "context", "model", "strategy", "style", "verdict")
)
"""Fields of a header that were measured or found when the session began."""

_LOCAL_SETTINGS: Final = frozenset(
    ("backend", "commands", "folder", "functions", "reasoning", "roots")
)
"""Settings that another model or machine has its own values of."""


class RunSettings(RecordedSettings, frozen=True, kw_only=True):
    """The way in which a run speaks with its model; all of it is in the header.

    Raises `UsageError`, naming the setting, for a value that is not valid.
    """

    style: StyleChoice = "auto"
    """The style of messages; ``auto`` by the ``verdict``, or ``jsonl`` without one."""
    strategy: StrategyChoice = "auto"
    """``auto``, ``free``, ``guided`` or ``grammar`` (for a backend that can hold a model to one).
    ``auto`` is by the ``verdict``; without one free, then guided once the model breaks the
    format."""
    verdict: VerdictChoice | None = None
    """The measurements of the model; None to look for stored ones."""
    chat_format: ChatFormat | None = None
    """The chat format; None to derive it from what the backend serves
    (`mlx_tools.backends.router`)."""
    catalog_budget: Annotated[int, Meta(ge=0, description="tokens, a whole number from 0")] = (
        CATALOG_BUDGET
    )
    """The tokens that the tools may take in the prompt. If they need more, a shortlist is shown."""
    temperature: Annotated[
        float, Meta(ge=0, le=sys.float_info.max, description="a number from 0")
    ] = 0.0
    seed: int | None = None
    cache: CacheScope = "run"
    """The time for which the result of a call that only reads is used again: one ``run``, the
    ``session``, or ``off``."""

    def naming(self, get_name: Callable[[str], str]) -> RunSettings:
        """Return the settings with tools by the names that ``get_name`` gives them."""
        choice, wanted = get_name(self.tool_choice), tuple(map(get_name, self.require_tools))
        if (choice, wanted) == (self.tool_choice, self.require_tools):
            return self
        return replace(self, tool_choice=choice, require_tools=wanted)

    def with_header_settings(self, header: Header) -> RunSettings:
        """Return the same model with the settings of a session that has this header."""
        said = {name: getattr(header, name) for name in _HEADER_SETTINGS - _LOCAL_SETTINGS}
        if header.catalog_budget is None:
            del said["catalog_budget"]
        return replace(self, **said)

    def __post_init__(self) -> None:
        for name in ("require_tools", "roots", "commands", "functions"):
            texts = require_texts(name, getattr(self, name), "allowed: a list of names")
            structs.force_setattr(self, name, texts)
        if self.output_schema is not None:
            structs.force_setattr(self, "output_schema", check_output_schema(self.output_schema))
        for name, kind in _KINDS.items():
            given = getattr(self, name)
            try:  # which accepts a mapping for any structure, too
                right = isinstance(convert(given, kind), Mapping) or not isinstance(given, Mapping)
            except (ValidationError, UnicodeEncodeError):  # half of a surrogate pair is no text
                right = False
            if not right:
                raise wrong_argument(name, given, f"allowed: {_describe_kind(kind)}")


def check_output_schema(schema: Any, name: str = "output_schema") -> dict[str, Any]:
    """Return a schema for answers as plain JSON.

    Raises `UsageError`, with ``name`` in its message, if the schema cannot be used.
    """
    if not isinstance(schema, Mapping):
        raise wrong_argument(name, schema, _SCHEMA)
    try:
        result_tool(schema, (), load_words())
        return dict(json.loads(json.dumps(schema, default=dict)))
    except ToolDefinitionError as error:
        raise UsageError(f"{name}: {error.message}", hint=error.hint or _SCHEMA) from None


_IN_WORDS: Final[Mapping[Any, str]] = {str: "a text", int: "a whole number", NoneType: "None"}


def _describe_kind(kind: Any) -> str:
    """Describe in words the values that a type allows."""
    parts = get_args(kind)
    if get_origin(kind) is Annotated:
        return str(parts[1].description)
    if get_origin(kind) is Literal:
        return ", ".join(parts)
    if get_origin(kind) is Mapping:
        return "a mapping"
    return " or ".join(map(_describe_kind, parts)) or _IN_WORDS.get(kind) or f"a {kind.__name__}"


_KINDS: Final[Mapping[str, Any]] = {one.name: one.type for one in structs.fields(RunSettings)}
_HEADER_SETTINGS: Final = _KINDS.keys() & {*Header.__struct_fields__} - _MEASURED_SETTINGS
"""The settings that a header has under the same name."""


_NO_CONVERSATION: Final = PriorConversation()
_NO_TOOLS: Final = Policy()
_DEFAULT_LIMITS: Final = Limits()
_DEFAULT_SETTINGS: Final = RunSettings()


class Store(Protocol):
    """The place where sessions are kept: a `SessionStore`, or a `MemoryStore`."""

    @property
    def secret(self) -> bytes: ...
    def create(self) -> SessionFiles: ...


def _check_observers(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    """Return the observers. Raises `UsageError` if one of them is no function."""
    hint = "give a list of functions that take a transcript"
    if not isinstance(observers, Iterable):
        raise wrong_argument("observers", observers, hint)
    for observer in (result := tuple(observers)):
        if not callable(observer):
            raise wrong_argument("observers", observer, hint)
    return result


class Controller:
    """Answers questions with a model that only completes text, and with tools.

    Args:
        backend: completes text: a `Backend`, or a plain ``async def complete(prompt: str) -> str``.
        tools: the tools that exist.
        policy: what may be called; by default nothing.
        limits: the limits of a run.
        settings: how a run speaks with its model.
        store: where transcripts are kept; by default in memory.
        approver: decides about calls that need an approval: an `Approver`, or a function that takes
            an `ApprovalRequest` and returns True or False. Without one such a run ends `Paused`.
        templates: a person's approval templates, which answer first for calls that they cover.
        configured_policy: the policy for all sessions, if ``policy`` was chosen for new ones alone.
            A session that is resumed is held to it if it has changed since.
        observers: are called when a run begins, and take its events: `Observer`.
        now: the wall clock, in UTC.
        run_context: the call that its runs belong to, None for runs of their own.

    Raises:
        UsageError: an argument is not valid.
    """

    def __init__(
        self,
        backend: Backend | CompleteFunction,
        tools: Iterable[Tool] | Registry | None = (),
        policy: Policy | None = None,
        *,
        limits: Limits | None = None,
        settings: RunSettings | None = None,
        store: Store | None = None,
        approver: Approver | DecideFunction | None = None,
        templates: Templates | None = None,
        configured_policy: Policy | None = None,
        observers: Iterable[Observer] = (),
        now: Callable[[], datetime] = WALL_CLOCK,
        run_context: RunContext | None = None,
    ) -> None:
        self.backend = as_backend(backend)
        self.registry = tools if isinstance(tools, Registry) else Registry(tools)
        self.policy = _NO_TOOLS if policy is None else policy
        self._configured_policy = self.policy if configured_policy is None else configured_policy
        self.limits = _DEFAULT_LIMITS if limits is None else limits
        self.settings = _DEFAULT_SETTINGS if settings is None else settings
        for name, value, kind, hint in (
            ("policy", self.policy, Policy, "write Policy(allow=[…])"),
            ("configured_policy", self._configured_policy, Policy, "write Policy(allow=[…])"),
            ("limits", self.limits, Limits, "write Limits(max_iterations=…)"),
            ("settings", self.settings, RunSettings, "write RunSettings(strategy=…)"),
        ):
            if not isinstance(value, kind):
                raise wrong_argument(name, value, hint)
        if not callable(now):
            raise wrong_argument("now", now, "give a function that returns a datetime")
        if run_context is not None and not isinstance(run_context, RunContext):
            raise wrong_argument("run_context", run_context, "leave it out")
        # The clock is passed in, so that tests of expiry and limits need not wait.
        self._now, self._templates = now, templates
        self._run_context = run_context
        self._observers = _check_observers(observers)
        self._setup: tuple[RunSettings, ModelSetup] | None = None
        self._cached_setup: tuple[Any, Openings, Header] | None = None
        self._store: Store = MemoryStore()
        if store is not None:
            self._store = require_method("store", store, "create", "write TranscriptStore(folder)")
        self._approver = as_approver(approver)

    @property
    def context(self) -> int | None:
        """The tokens that the model can take, as far as that is known.

        It is known by the settings, or once a conversation was opened.
        """
        return self.settings.context or (self._setup and self._setup[1].context)

    async def run(
        self,
        question: str,
        *,
        tool_choice: str | None = None,
        history: Sequence[Mapping[str, Any]] = (),
    ) -> Outcome:
        """Answer one question.

        Args:
            question: the question.
            tool_choice: ``auto``, ``none``, ``required`` or a tool's name, for this question.
            history: earlier messages, as `Outcome.messages` returns them. Each is ``{"role": role,
                "content": text}``, with a list of text parts in place of the text if you like.
                Roles are ``user``, ``assistant`` (with ``tool_calls`` as OpenAI has them), ``tool``
                (with the ``tool_call_id`` that it answers), and ``system`` or ``developer``, which
                count as such at the beginning.

        Returns:
            `Answered`, `Paused` or `Stopped`.

        Raises:
            UsageError: an argument is not valid.
            BackendError: the backend failed before it completed anything.
        """
        with closing(await self.conversation(history=history)) as conversation:
            return await conversation.run(question, tool_choice=tool_choice)

    def run_sync(
        self,
        question: str,
        *,
        tool_choice: str | None = None,
        history: Sequence[Mapping[str, Any]] = (),
    ) -> Outcome:
        """Answer one question without an event loop; see `run`."""
        outcomes: list[Outcome] = []

        # returns nothing, because asyncio prints a task together with its result
        async def run() -> None:
            outcomes.append(await self.run(question, tool_choice=tool_choice, history=history))

        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise UsageError(
                "run_sync cannot be called where an event loop runs",
                hint="await controller.run(...) there",
            )
        anyio.run(run)  # not in the block: an error of the run would show the RuntimeError, too
        return outcomes[0]

    async def stream(
        self,
        question: str,
        *,
        tool_choice: str | None = None,
        history: Sequence[Mapping[str, Any]] = (),
    ) -> AsyncGenerator[events.Event]:
        """Answer one question and yield its events; the last one is `Finished`.

        Closing the generator (``contextlib.aclosing``) stops the run.
        """
        async with (
            await self.conversation(history=history) as conversation,
            aclosing(conversation.stream(question, tool_choice=tool_choice)) as happens,
        ):
            async for event in happens:
                yield event

    async def conversation(self, *, history: Sequence[Mapping[str, Any]] = ()) -> Conversation:
        """Open a session for any number of questions.

        Close it, or use it with ``async with``. Its header is written with its first question, by
        which a shortlist of tools is chosen.

        Raises:
            BackendTimeout: asking the server what it serves takes as long as a whole run may.
            UsageError: an argument is not valid.
            BackendError: the backend fails.
        """
        if history == ():
            return await self._new(_NO_CONVERSATION)
        return await self._new(prior_from_messages(require_items("history", history, MESSAGES)))

    async def carry_over(
        self,
        session: str | os.PathLike[str] | Conversation,
        *,
        without_last: bool = False,
        consents: bool = False,
    ) -> Conversation:
        """Open a new session that continues the conversation of another one.

        It is under this controller's own settings: another model, policy, folders or system text.
        The earlier questions stand in the new transcript with their calls, results and answers:
        none of them runs again, counts for a run, or is an approval.

        Args:
            session: an id, the path of a transcript, or a conversation that is open; it stays as it
                is.
            without_last: True to leave out its last question and all that followed.
            consents: True to keep what a person allowed for the rest of an open conversation, as
                long as the new one is open and the tools are unchanged.

        Raises:
            UsageError: there is no such session, or nothing was asked in it.
            TranscriptError: it is damaged, or was not begun with this store's secret.
        """
        if isinstance(session, Conversation):
            earlier = session.earlier
            if session.is_begun:
                earlier = prior_from_session(session.session_state, session.files.artifacts)
            earlier = replace(earlier, consents=session.consents if consents else None)
        else:
            if (reads := getattr(self._store, "read", None)) is None:
                raise UsageError("this store cannot read a session again")
            files = reads(session)
            # Before the records are used: a forged header could name any policy.
            check_begun_here(files.transcript, self._store.secret)
            inputs = SessionInputs(specs=self.registry.specs(), words=load_words())
            read = Session.from_records(files.transcript, inputs)
            earlier = prior_from_session(read, files.artifacts)
        return await self._new(earlier.without_last() if without_last else earlier)

    async def _new(self, earlier: PriorConversation) -> Conversation:
        """Open a session; see `conversation`."""
        choice = self.settings.tool_choice
        if self.settings.require_tools or choice not in ("auto", "none"):
            self._check_tools()
        with limit_discovery(self.limits.total_timeout):
            if self._setup is None or self._setup[0] != self.settings:
                self._setup = self.settings, await find_setup(self.backend, self.settings)
        setup = self._setup[1]
        persona = self.settings.persona
        if earlier.system:
            persona = "\n\n".join(filter(None, (persona, earlier.system)))
        beginning = partial(self._beginning, setup, persona)
        schema = self.settings.output_schema
        # in a thread, so that the event loop serves others
        if schema is not None and is_large(schema):
            header = partial(self._header, *await anyio.to_thread.run_sync(beginning))
        else:
            header = partial(self._header, *beginning())
        return self._open(self._store.create(), header, earlier)

    async def resume(
        self, session: str | os.PathLike[str], *, approvals: Approvals = None
    ) -> Outcome:
        """Go on with a session that is paused, or that a crash broke off.

        The way in which the model is spoken to comes from the transcript. The policy is the
        recorded one, narrowed by this controller's if that is another one.

        Args:
            session: its id or the path of its transcript.
            approvals: decisions about pending calls by their ids: ``{"c1": True}``, or an
                `ApprovalAnswer` each. True approves all that are pending, except calls in doubt;
                False denies all. What is not decided is asked, or paused again.

        Raises:
            UsageError: the session has ended, a call is not pending, or an approval is of something
                else than what would run now. Nothing was run.
            TranscriptError: the transcript is damaged, in use, or was not written with this store's
                secret.
        """
        with closing(await self.reopen(session)) as conversation:
            return await conversation.resume(approvals)

    async def reopen(
        self, session: str | os.PathLike[str], *, narrowed_policy: Policy | None = None
    ) -> Conversation:
        """Open a session again, for further questions, or to resume it.

        New records are appended to its transcript: the next prompt begins with the bytes of the
        last one. What `resume` says of the header and the policy holds here.

        Args:
            session: its id or the path of its transcript.
            narrowed_policy: a policy that must allow a call besides.

        Raises:
            UsageError: there is no such session, or the backend has another model than it was begun
                with.
            TranscriptError: as in `resume`.
        """
        opens = getattr(self._store, "open", None)
        if opens is None:
            raise UsageError("this store cannot open a session again")
        files = opens(session)
        try:
            check_begun_here(files.transcript, self._store.secret)
            self._check_model(files.transcript[0])
        except BaseException:
            # The transcript is locked: without this a failed opening would block the session.
            files.transcript.close()
            raise
        conversation = self._open(files)
        if narrowed_policy is not None:
            conversation.policy = conversation.policy.intersect(narrowed_policy)
        return conversation

    def _check_model(self, header: Header) -> None:
        """Raise `UsageError` if the backend is known to have another model."""
        here = find_model_name(self.backend)
        if here is not None and header.model is not None and here != header.model:
            raise UsageError(
                f"the session {header.session} was begun with the model {header.model}, and "
                f"{here} is here",
                hint=f"go on with {header.model}, or carry the session over into a new one",
            )

    def _open(
        self,
        files: SessionFiles,
        header: Callable[[str, str, str | None], Header] | None = None,
        earlier: PriorConversation = _NO_CONVERSATION,
    ) -> Conversation:
        """Open a session; a new one gets the header that ``header`` makes."""
        secret = self._store.secret
        try:
            if files.artifacts is not None:
                self.registry.provide(read_artifact())
            specs, disabled = self.registry.specs(), dict(self.registry.disabled)
            if files.artifacts is None and is_reader(specs.get(READER)):
                # Listed, but disabled: a model that calls it learns why it does not work, not that
                # it is unknown.
                disabled[READER] = artifacts_off_reason()
            context = self._run_context or RunContext(reads=ReadCallCache(self.settings.cache))
            parts = ConversationParts(
                inputs=SessionInputs(
                    specs=specs,
                    words=load_words(),
                    disabled=disabled,
                    believes=lambda approval: equal_digests(
                        compute_seal(secret, approval), approval.seal
                    ),
                    consents=earlier.consents or context.consents,
                    unknown_ends=context.unknown_ends,
                ),
                backend=self.backend,
                registry=self.registry,
                approver=self._approver,
                templates=self._templates,
                secret=secret,
                now=self._now,
                controller=self,
                context=context,
                observers=self._observers,
            )
            return Conversation(
                files,
                parts,
                policy=self.policy if header else self._find_policy(files.transcript[0]),
                begin=None if header is None else partial(header, files.session),
                earlier=earlier,
            )
        except BaseException:
            files.transcript.close()
            raise

    def _find_policy(self, header: Record) -> Policy:
        """Return the policy under which a session continues.

        It is the session's own. If the configured policy has changed since, it is narrowed by that.
        """
        assert isinstance(header, Header)  # `check_begun_here` says so
        own = Policy.from_json(header.policy)
        stood = Policy.from_json(header.configured_policy) if header.configured_policy else own
        equal_digests = stood.digest() == self._configured_policy.digest()
        return own if equal_digests else own.intersect(self._configured_policy)

    def nested(self, run: NestedRun) -> Controller:
        """Return a controller for a run within a call of this one's runs."""
        return Controller(
            self.backend,
            self.registry,
            run.policy,
            limits=run.limits,
            settings=replace(
                self.settings,
                tool_choice="auto",
                require_tools=(),
                output_schema=None,
                context=self.context,
                chat_format=self._setup[1].chat_format if self._setup else None,
            ),
            store=self._store,
            approver=run.approver,
            templates=self._templates,
            observers=self._observers,
            now=self._now,
            run_context=replace(run.context, reads=NestedReadCallCache(run.context.reads)),
        )

    def read_records(self, session: str) -> Sequence[Record]:
        """Return the records of a session of this store, none if there is no such session."""
        reads = getattr(self._store, "read", None)
        try:
            return () if reads is None or os.sep in session else reads(session).transcript
        except UsageError:
            return ()

    def _check_tools(self) -> None:
        """Raise `UsageError` if the run lacks a tool that it requires."""
        self.settings = self.settings.naming(self.registry.resolve_name)
        choice, wanted = self.settings.tool_choice, self.settings.require_tools
        if choice not in ("auto", "none", "required"):
            wanted = (*wanted, choice)
        lacks = {name: self.registry.lacks(name, self.policy) for name in dict.fromkeys(wanted)}
        if missing := [f"{name} ({why})" for name, why in lacks.items() if why is not None]:
            allowed = sorted(spec.name for spec in self._permitted())
            raise UsageError(
                f"this run lacks the required tool {', '.join(missing)}",
                hint=f"it may call {', '.join(allowed) or 'nothing'}",
            )
        if choice == "required" and all(map(is_on_demand, self._permitted())):
            raise UsageError("a tool call is required, but no tool may be called")

    def _permitted(self) -> list[ToolSpec]:
        return [s for s in self.registry.specs().values() if can_be_allowed(self.policy, s)]

    def _find_search(self) -> ToolSpec | None:
        """Return the tool that searches the tools, if it may be called."""
        self.registry.provide(tool_search())
        return next((spec for spec in self._permitted() if is_search(spec)), None)

    def _beginning(self, setup: ModelSetup, persona: str | None) -> tuple[Openings, Header]:
        """Return the parts of a header that sessions share until something here changes."""
        settings, words, policy = self.settings, load_words(), self.policy
        model, specs = settings.model or find_model_name(self.backend), self.registry.specs()
        key = words, settings, setup, persona, policy, self.limits, model
        if self._cached_setup is None or self._cached_setup[0] != (*key, specs):
            frame = Frame(
                words=words,
                tools=tuple(
                    s for s in specs.values() if can_be_allowed(policy, s) and not is_on_demand(s)
                ),
                neutraliser=Neutraliser(setup.chat_format.control_tokens),
                style=setup.decided.style,
                native=setup.chat_format.tools,
                response_mode=settings.response_mode,
                project_context=settings.project_context,
                persona=persona,
                catalog_budget=settings.catalog_budget,
                output_schema=settings.output_schema,
                weak_model=setup.decided.weak,
            )
            openings = Openings(frame, self._find_search, Finder)  # which may add that tool
            header = Header(
                **{name: getattr(settings, name) for name in _HEADER_SETTINGS - {"persona"}},
                persona=persona,
                version=FORMAT_VERSION,
                session="",
                created="",
                model=model,
                chat_format=setup.chat_format.to_json(),
                style=setup.decided.style,
                strategy=setup.decided.strategy,
                verdict=setup.decided.reasons,
                weak_model=setup.decided.weak,
                sampling={"temperature": settings.temperature, "seed": settings.seed},
                context=setup.context,
                tools=openings.tools,
                catalog_hash=openings.catalog_hash,
                policy=policy.to_json(),
                policy_hash=policy.digest(),
                configured_policy={}
                if self._configured_policy == policy
                else self._configured_policy.to_json(),
                parent="" if self._run_context is None else self._run_context.parent,
                limits=self.limits.for_model(setup.context, weak=setup.decided.weak).to_json(),
            )
            self._cached_setup = (*key, self.registry.specs()), openings, header
        return self._cached_setup[1:]

    def _header(
        self,
        openings: Openings,
        header: Header,
        session: str,
        question: str,
        tool_choice: str | None,
    ) -> Header:
        """Return the header of a session that begins with this question."""
        settings = self.settings
        first = (tool_choice or settings.tool_choice, *settings.require_tools)
        opening = openings.opening(question, first=first)
        header = replace(
            header,
            session=session,
            created=self._now().isoformat(timespec="seconds"),
            system=opening.system,
            examples=opening.examples,
            shortlist=opening.shortlist,
            shortlist_request=opening.request,
        )
        return replace(header, seal=seal(self._store.secret, "header", to_json(header)))
