"""From settings to the things that run: registry, store, backend, controller."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from mlx_tools.app import config
from mlx_tools.app.config import Configuration
from mlx_tools.app.settings import SESSION, addresses, table
from mlx_tools.backends import (
    USUAL_ADDRESSES,
    Backend,
    ModelMissing,
    NativeVerdict,
    Route,
    SelectedBackend,
    VerdictStore,
    choose_backend,
    decide,
    find_route,
    find_served_format,
    find_verdict,
    limit_discovery,
    memory_bytes,
    parse_address,
    probe_native,
    servers_of,
    suggest_model,
    tells_of_tools,
)
from mlx_tools.controller import Approver, Controller, RunSettings
from mlx_tools.errors import BackendError, ModelError, UsageError, did_you_mean
from mlx_tools.messages import replace
from mlx_tools.paths import config_dir, data_dir, expand_user, state_dir
from mlx_tools.policy import PLUGIN, PRESETS, Policy, can_be_allowed, check_presets, is_glob
from mlx_tools.prompt import CATALOG_BUDGET, SEARCH, build_catalog, is_on_demand, is_search
from mlx_tools.store import RootName, SessionStore, TemplateFile, TranscriptStore
from mlx_tools.toolbox import SCHEDULE, Jobs, JobStore
from mlx_tools.tools import (
    OFF,
    BoundSource,
    BoundSources,
    BoundTool,
    MakeTool,
    Registry,
    SourceKind,
    Tool,
    ToolCollection,
    exposed_by,
    tools_of_file,
)
from mlx_tools.transcript import Header

if TYPE_CHECKING:
    from mlx_tools.tools import McpClients

Note = Callable[[str], None]

_LASTING: Final = ("backend.kind", "backend.url", "model.", "limits.", "tools.cache")
"""The settings that a job keeps, where they were set to something when it was made."""


class RunOptions(Struct, frozen=True, kw_only=True):
    """The options of an application that asks a model: the settings that hold, and what is asked
    once. ``person``: a person reads what is noted, not a program. ``spread`` is for several
    servers (`mlx_tools.backends.pool`). ``serves``: the application is a gateway, which
    takes no gateway that nobody named. ``pick`` asks a person which of several answers is right."""

    configuration: Configuration
    tool_choice: str = "auto"
    require_tools: tuple[str, ...] = ()
    output_schema: Mapping[str, Any] | None = None
    model: str | None = None
    person: bool = False
    spread: bool = False
    serves: bool = False
    pick: Callable[[str, Sequence[str]], str | None] | None = None

    @property
    def model_name(self) -> str | None:
        """The model that was named: here, or by the settings."""
        return self.model or self.configuration.settings.model.name


def registry_of(configuration: Configuration, jobs: Jobs | None = None) -> Registry:
    """The tools that exist under these settings, the switched-off ones among them. ``jobs`` is what
    jobs are made with, None for what these settings say.

    Raises `UsageError` for a root that is no folder, and for an allowed tool that does not exist.
    """
    registry = tools_of(configuration, jobs)
    _check_names(configuration, registry)
    return registry


def tools_of(configuration: Configuration, jobs: Jobs | None = None) -> Registry:
    """`registry_of`, whatever tools the settings name."""
    settings = configuration.settings
    off: dict[str, str] = {}
    if not settings.enabled:
        off["*"] = f"tools are turned off by {configuration.named_by('enabled')}"
    own = settings.tools
    collection = ToolCollection()
    for name, on in collection.said().switched.items():
        if not on:
            off[name] = OFF.format(name=name)
    registry = Registry(switched_off=off).with_builtin(
        roots=own.roots,
        commands=own.commands,
        program_folders=own.program_folders,
        notes=data_dir() / "notes",
        jobs=jobs or jobs_of(configuration),
        local_hosts=settings.web.local_hosts,
        searxng=settings.web.searxng,
    )
    registry.with_folder(collection, exposed_by(collection.record, own.roots), own.roots)
    _add_bound(registry, own.roots)
    for file in own.functions:
        for made in tools_of_file(file):
            registry.add(made)
    registry.with_entry_points()
    check_presets(registry.all_specs())
    return registry


def _add_bound(registry: Registry, roots: Sequence[str]) -> None:
    """Add the tools that stand for what is elsewhere; what calls them is imported where there are
    any."""
    sources = BoundSources()

    @functools.cache
    def clients() -> McpClients:
        from mlx_tools.tools import McpClients

        found = McpClients(sources, tuple(RootName.parse(root).absolute() for root in roots))
        registry.closers.append(found.aclose)
        return found

    def operation(source: BoundSource, tool: BoundTool) -> Tool:
        from mlx_tools.tools import bound_operation

        return bound_operation(source, tool)

    def served(source: BoundSource, tool: BoundTool) -> Tool:
        return clients().tool(source, tool)

    made: Mapping[SourceKind, MakeTool] = {"mcp": served, "openapi": operation}
    refused = exposed_by(sources.folder, roots)
    registry.with_bound(sources, made, refused)
    readable = [one.name for one in registry.sources if one.at.get("resources")]
    if readable and refused is None:
        from mlx_tools.tools import mcp_read

        registry.provide(mcp_read(clients(), readable))


def _check_names(configuration: Configuration, registry: Registry) -> None:
    """A name that no tool has is a slip of the pen: it must not pass as a tool that is never
    called, or as one that is forbidden."""
    known = registry.all_specs()
    offered = {key.partition("/")[2] for key in registry.disabled if "/" in key}
    values = configuration.settings.policy
    for key, names in (
        ("policy.allow", values.allow or ()),
        ("policy.deny", values.deny),
        ("policy.ask", values.ask),
        ("policy.rate_limits", values.rate_limits.keys() - {SESSION}),
    ):
        for name in names:
            if registry.named(name) in known or name in offered:
                continue
            if is_glob(name) or name.startswith(PLUGIN):
                continue
            raise UsageError(
                f"{configuration.named_by(key)}: there is no tool {name}",
                hint=did_you_mean(name, known),
            )


def refuse_where_off(configuration: Configuration, tool_choice: str = "auto") -> None:
    """Raise `UsageError` where tools are turned off as a whole, and may be called; it names what
    turns them off."""
    if not configuration.settings.enabled and tool_choice != "none":
        raise UsageError(
            f"tools are turned off by {configuration.named_by('enabled')}",
            hint="set it to true, or ask without tools: --tool-choice none",
        )


async def choose(
    options: RunOptions, note: Note, usual: Sequence[str] | None = None
) -> SelectedBackend:
    """The backend that the settings ask for. What a person should know is told to ``note``.
    ``usual`` are the addresses at which servers are looked for, None for the programs' defaults."""
    configuration = options.configuration
    own = configuration.settings.backend
    urls = addresses(own.url)
    if (
        own.kind in ("server", "local")
        and configuration.origins["backend.kind"][-1].kind == "option"
    ):
        urls = urls if urls and configuration.named_by("backend.url") == "--url" else ()
    if configuration.settings.policy.local_only:
        for url in urls:
            if not parse_address(url).loopback:
                raise UsageError(
                    f"{configuration.named_by('policy.local_only')}: {url} is not on this machine",
                    hint="name a loopback address, or leave local-only mode",
                )
    pick = options.pick
    if configuration.settings.model.chat_format != "auto":
        pick = _no_pick  # the format is known whichever model it is
    try:
        chosen = await choose_backend(
            kind=own.kind,
            url=urls or None,
            model=options.model_name,
            api_key=own.api_key if urls else None,
            gateway=None if options.serves else _gateway_of(configuration),
            gateway_key=configuration.settings.gateway.api_key,
            note=note,
            spread=options.spread,
            usual=usual or USUAL_ADDRESSES,
            pick=pick,
            pick_server=_server_picker(options, note),
            server_options=own.server_options,
        )
    except ModelMissing as error:
        if options.model_name is not None or own.kind != "auto":
            raise
        raise ModelError(
            "no server was named, none answers, and the embedded model is not here",
            hint=f"{error.hint}, or start a server; {suggest_model(memory_bytes()).line}",
        ) from error
    if chosen.note:
        note(chosen.note)
    if chosen.suggestion and options.person:
        note(chosen.suggestion)
    return chosen


def _server_picker(options: RunOptions, note: Note) -> Callable[[Sequence[str]], str | None] | None:
    """Return what asks a person which of several servers is to be used, and keeps the answer in the
    person's file; None where nobody can be asked."""
    ask = options.pick
    if ask is None:
        return None

    def pick(addresses: Sequence[str]) -> str | None:
        said = "Several model servers answer on this machine. Which one is to be used from now on?"
        address = ask(said, addresses)
        if address is not None:
            config.write_users(config.with_value(config.users_text(), "backend.url", address))
            note(f"kept as backend.url in {config.user_path()}")
        return address

    return pick


def _no_pick(question: str, answers: Sequence[str]) -> str | None:
    return None


def _gateway_of(configuration: Configuration) -> str | None:
    """Where a gateway of this user's would be, None where it could not be known or used."""
    own = configuration.settings.gateway
    host = f"[{own.host}]" if ":" in own.host else own.host
    with contextlib.suppress(ValueError):
        host = "localhost" if ipaddress.ip_address(own.host).is_unspecified else host
    try:
        address = parse_address(f"http://{host}:{own.port or 80}")
    except UsageError:  # `serve` says so
        return None
    usable = address.loopback or not configuration.settings.policy.local_only
    return address.url if own.port and usable else None


@asynccontextmanager
async def open_controller(
    options: RunOptions,
    *,
    approver: Approver,
    note: Note,
    wrap: Callable[[Backend], Backend] = lambda backend: backend,
) -> AsyncIterator[Controller]:
    """A controller as the settings say; its backend is closed at the end.

    ``wrap`` may put something between controller and backend, such as a trace.
    """
    configuration = options.configuration
    registry = registry_of(configuration)
    _note_unfindable(configuration, registry, note)
    _note_disabled(configuration, registry, note)
    async with open_selected_backend(options, note) as (chosen, settings):
        yield controller_of(configuration, registry, wrap(chosen.backend), settings, approver)


def controller_of(
    configuration: Configuration,
    registry: Registry,
    backend: Backend,
    settings: RunSettings,
    approver: Approver,
    policy: Policy | None = None,
) -> Controller:
    """A controller of a backend that was found, as the settings say; they say the policy too, where
    none is given."""
    store = session_store(configuration)
    return Controller(
        backend,
        registry,
        policy or configuration.policy(),
        limits=configuration.limits(),
        settings=settings,
        store=store,
        approver=approver,
        templates=approval_templates(store),
        configured_policy=configuration.configured_policy(),
    )


def with_settings(settings: RunSettings, configuration: Configuration) -> RunSettings:
    """The same model, spoken to as other settings say."""
    return replace(settings, **configuration.run_values(), **_places_of(configuration))


@asynccontextmanager
async def open_selected_backend(
    options: RunOptions, note: Note
) -> AsyncIterator[tuple[SelectedBackend, RunSettings]]:
    """The backend that the settings ask for, closed at the end, and how a run speaks with it.

    Raises `BackendTimeout` where finding that out takes as long as a whole run may.
    """
    seconds = options.configuration.limits().total_timeout
    with limit_discovery(seconds):
        chosen = await choose(options, note)
    try:
        with limit_discovery(seconds):
            settings = await run_settings(options, chosen, note)
        yield chosen, settings
    finally:
        await chosen.backend.aclose()


def _note_unfindable(configuration: Configuration, registry: Registry, note: Note) -> None:
    """Tells that some tools are neither in the catalog nor found by the model, where that is so."""
    policy = configuration.policy()
    specs = [spec for spec in registry.specs().values() if can_be_allowed(policy, spec)]
    if any(map(is_search, specs)):
        return
    listed = [spec for spec in specs if not is_on_demand(spec)]
    if hidden := len(build_catalog(listed, CATALOG_BUDGET).hidden):
        note(
            f"{hidden} of {len(listed)} tools do not fit into the catalog, and {SEARCH}, with "
            "which the model would find them, is not allowed: allow it too, or fewer of them"
        )


def _note_disabled(configuration: Configuration, registry: Registry, note: Note) -> None:
    """Note each tool of a preset that a person chose and that cannot work here, with the reason."""
    preset = configuration.settings.policy.preset
    if preset is None or not configuration.is_set("policy.preset"):
        return
    for name in PRESETS[preset].tools:
        if (why := registry.disabled.get(name)) is not None:
            note(f"{name} of the preset {preset} is disabled: {why}")


async def run_settings(options: RunOptions, selected: SelectedBackend, note: Note) -> RunSettings:
    """Return how a run speaks with the model that was chosen.

    Where its chat format is a guess, ``note`` is told where a person reads it: nobody else can act
    on it, and a program may rely on silence. `doctor` says it everywhere.
    """
    settings = options.configuration.settings
    model = selected.model or options.model_name
    found = await find_served_format(
        selected.backend, settings.model.chat_format, files=selected.files, model=model
    )
    if found.doubt and options.person:
        note(found.doubt)
    verdict = find_verdict(selected.identity(options.model_name))
    if verdict.problem and "auto" in (settings.model.prompt_style, settings.model.strategy):
        note(verdict.problem)
    style = decide(settings.model.prompt_style, "free", verdict).style
    selected.free_markers(style)
    route = await route_of(options, selected)
    return RunSettings(
        **options.configuration.run_values(),
        verdict=verdict,
        chat_format=found.chat_format,
        tool_choice=options.tool_choice,
        require_tools=options.require_tools,
        output_schema=options.output_schema,
        model=model,
        backend=selected.header_fields(),
        route=route.to_json(),
        **_places_of(options.configuration),
    )


async def route_of(options: RunOptions, selected: SelectedBackend) -> Route:
    """By which path the model that was chosen is asked. Raises `UsageError` where the settings
    leave none."""
    configuration = options.configuration
    routing, wanted = configuration.settings.routing, configuration.settings.routing.route
    if configuration.settings.backend.kind == "native":
        if wanted == "prompted":
            raise UsageError(
                f"{configuration.named_by('backend.kind')} is native, and "
                f"{configuration.named_by('routing.route')} prompted",
                hint="leave one of them out",
            )
        wanted = "native"
    return await find_route(
        selected.backend,
        wanted,
        model=selected.identity(options.model_name),
        template=selected.template,
        prompts=routing.local_enabled,
    )


async def try_native(
    options: RunOptions, selected: SelectedBackend, *, retry: bool = False
) -> NativeVerdict | None:
    """Whether the server's own function calling works with its model: tried once, then known. Of
    several servers the first that does not do it, or the last.

    None where it cannot matter, or could not be known again: there is no server, it takes nothing
    but messages, nothing tells which model it has, or its template knows no tools. Raises
    `BackendError` where the server fails, and `UsageError` where the verdict cannot be kept.
    """
    model = selected.identity(options.model_name)
    if selected.health is not None and selected.health.is_gateway:
        return None  # its calls are what we made of its model's
    template = selected.template
    toolless = template is not None and not tells_of_tools(template)
    if model is None or selected.backend.kind == "native" or toolless:
        return None
    store, found = VerdictStore(), None
    for server, backend in servers_of(selected.backend):
        known = None if retry else store.native(server, model)
        if known is None:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            known = await probe_native(backend, server=server, model=model, measured_at=at)
            store.save_native(known)
        found = known if found is None or found.passed else found
    return found


async def with_route_tried(
    options: RunOptions, selected: SelectedBackend, settings: RunSettings, seconds: float
) -> RunSettings:
    """The settings with the route that follows from a trial, which is made where the route is left
    to ``auto`` and none was made, within so many seconds. A server that fails in it changes none.
    """
    routing = options.configuration.settings.routing
    asked = options.configuration.settings.backend.kind == "native" or routing.route != "auto"
    if asked or not routing.local_enabled or settings.route.get("path") == "native":
        return settings
    import anyio

    with anyio.move_on_after(seconds), contextlib.suppress(BackendError, UsageError):
        await try_native(options, selected)
    return replace(settings, route=(await route_of(options, selected)).to_json())


# --- what is kept: sessions, and jobs that are made in them ---------------------------------------


def session_store(configuration: Configuration) -> SessionStore:
    """Where sessions are kept."""
    settings = configuration.settings
    own: Any = {
        "keep": settings.artifacts.keep_days * 86_400,
        "keep_all": settings.artifacts.keep == "always",
        "watched": configuration.watched,
    }
    if settings.sessions is None:
        return TranscriptStore(state_dir() / "sessions", **own)
    from mlx_tools.store import PostgresStore

    return PostgresStore(settings.sessions, **own)


class HasSecret(Protocol):
    """A store of sessions, as far as it has the key of their approvals."""

    @property
    def secret(self) -> bytes: ...


def approval_templates(store: HasSecret) -> TemplateFile:
    """The user's approval templates, sealed with the key of the sessions' approvals."""
    return TemplateFile(config_dir() / "approvals.json", lambda: store.secret)


def job_store(store: SessionStore) -> JobStore:
    """The jobs beside the sessions; they are sealed with the key that approvals are."""
    return JobStore(store.tables(SCHEDULE), lambda: store.secret)


def jobs_of(configuration: Configuration, header: Header | None = None) -> Jobs:
    """Return what ``schedule_task`` uses under these settings, or in a session that goes on:
    then its ``header`` says how the model is spoken to, and the limits."""
    return Jobs(
        store=job_store(session_store(configuration)),
        configured_policy=configuration.configured_policy(),
        roots=roots_of(configuration),
        options=reusable_options(configuration)
        | (recorded_options(header) if header is not None else {}),
    )


def roots_of(configuration: Configuration) -> tuple[str, ...]:
    """The folders of file tools, so that they are the same from anywhere."""
    return tuple(RootName.parse(root).absolute() for root in configuration.settings.tools.roots)


def functions_of(configuration: Configuration) -> tuple[str, ...]:
    """The files of functions, so that they are the same from anywhere."""
    return function_files(configuration.settings.tools.functions)


def function_files(paths: Sequence[str]) -> tuple[str, ...]:
    """Return files of functions that a person named, so that they are the same from anywhere."""
    return tuple(str(expand_user(path).resolve()) for path in paths)


def _places_of(configuration: Configuration) -> dict[str, Any]:
    """The places that the header of a session keeps."""
    return {"roots": roots_of(configuration), "functions": functions_of(configuration)}


def reusable_options(configuration: Configuration) -> dict[str, str]:
    """The way to the model, and the limits, as options would give them: what was
    set here holds for the job, wherever it runs."""
    found = {}
    for key, row in table().items():
        value: Any = configuration.values.get(key)
        if not key.startswith(_LASTING) or value is None or not configuration.is_set(key):
            continue
        if key == "model.name" and expand_user(value).is_dir():
            value = str(expand_user(value).resolve())
        if isinstance(value, tuple):
            value = ",".join(value)
        scale = row.setting.scale
        found[key] = str(value) if scale == 1 else f"{value / scale:.9g}"
    return found


def recorded_options(header: Header) -> dict[str, str]:
    """Return how a session speaks to its model, and its limits, as options would give them."""
    said: dict[str, Any] = {
        "model.strategy": header.strategy,
        "model.prompt_style": header.style,
        "model.reasoning": header.reasoning,
        "model.response_mode": header.response_mode,
        "model.temperature": header.sampling.get("temperature"),
        "model.seed": header.sampling.get("seed"),
    }
    for key, row in table().items():
        name = key.removeprefix("limits.")
        if name != key:
            limit = header.limits.get(name.removesuffix("_ms"))
            if limit is not None and name.endswith("_ms"):  # recorded in seconds
                limit = f"{limit * 1000 / row.setting.scale:.9g}"
            said[key] = limit
    return {key: str(value) for key, value in said.items() if value is not None}
