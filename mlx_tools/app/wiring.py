"""Creates the parts of a run from the settings: tools, store, backend, controller."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from mlx_tools.app import config
from mlx_tools.app.builtin import add_builtin, list_added_offers, make_request
from mlx_tools.app.config import Configuration
from mlx_tools.app.config_edit import change_user_text, edit_value
from mlx_tools.app.hooks import collect, find_store_kind, list_backend_makers, list_source_makers
from mlx_tools.app.settings import SESSION, addresses, table
from mlx_tools.backends import (
    DEFAULT_ADDRESSES,
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
    find_servers,
    find_verdict,
    limit_discovery,
    memory_bytes,
    parse_address,
    probe_native,
    shows_tools,
    suggest_model,
)
from mlx_tools.controller import Approver, Controller, RunSettings
from mlx_tools.errors import BackendError, ModelError, UsageError, did_you_mean
from mlx_tools.messages import TOOL_NAME, ToolSpec, replace
from mlx_tools.paths import config_dir, data_dir, expand_user, folder_exists, state_dir
from mlx_tools.policy import (
    PLUGIN,
    PRESETS,
    Policy,
    can_be_allowed,
    check_presets,
    is_glob,
    matches,
)
from mlx_tools.prompt import CATALOG_BUDGET, SEARCH, build_catalog, is_on_demand, is_search
from mlx_tools.store import RootName, SessionStore, TemplateFile, TranscriptStore
from mlx_tools.tools import (
    OFF_REASON,
    BoundSources,
    Registry,
    UserChoicesFile,
    find_exposure,
    load_functions,
)
from mlx_tools.transcript import Header

Note = Callable[[str], None]
"""Gets a line that a person should read."""

_MAX_LEFT_OUT: Final = 5
"""Lines about tools that could not be added. More would hide other notes."""
_JOB_SETTINGS: Final = ("backend.kind", "backend.url", "model.", "limits.", "tools.cache")
"""The settings that a job stores if they were set when the job was made."""


class RunOptions(Struct, frozen=True, kw_only=True):
    """The options of an application that uses a model."""

    configuration: Configuration
    """The settings."""
    tool_choice: str = "auto"
    require_tools: tuple[str, ...] = ()
    output_schema: Mapping[str, Any] | None = None
    model: str | None = None
    """The model's name if this run names one."""
    person: bool = False
    """True if a person reads the notes, and not a program."""
    spread: bool = False
    """True to spread requests over several servers: see `mlx_tools.backends.pool`."""
    serves: bool = False
    """True for a gateway, which uses another gateway only if it is named."""
    pick: Callable[[str, Sequence[str]], Awaitable[str | None]] | None = None
    """Asks a person to choose one of several answers."""

    @property
    def model_name(self) -> str | None:
        """The model's name, from this run or from the settings."""
        return self.model or self.configuration.settings.model.name


def build_registry(
    configuration: Configuration, header: Header | None = None, note: Note | None = None
) -> Registry:
    """Return the tools under these settings, including disabled ones.

    Args:
        configuration: the settings.
        header: the header of a session that continues.
        note: called with a line for each allowed tool that was offered and could not be added.

    Raises:
        UsageError: a root is no folder, or an allowed tool or plugin does not exist.
    """
    registry = load_registry(configuration, header)
    _check_names(configuration, registry)
    if note is not None:
        note_left_out(configuration, registry, note)
    return registry


def load_registry(configuration: Configuration, header: Header | None = None) -> Registry:
    """Return the tools of `build_registry`, without a check of the settings' names."""
    settings = configuration.settings
    off: dict[str, str] = {}
    if not settings.enabled:
        off["*"] = f"tools are turned off by {configuration.describe_origin('enabled')}"
    tool_settings = settings.tools
    for name, is_on in UserChoicesFile().load().switched.items():
        if not is_on:
            off[name] = OFF_REASON.format(name=name)
    registry = Registry(switched_off=off)
    options = {
        "commands": tool_settings.commands,
        "program_folders": tool_settings.program_folders,
        "notes": data_dir() / "notes",
    }
    request = make_request(tool_settings.roots, options, configuration, header)
    add_builtin(registry, request)
    registry.with_offers(list_added_offers(request))
    _add_bound(registry, tool_settings.roots)
    for file in tool_settings.functions:
        for function_tool in load_functions(file):
            registry.add(function_tool)
    registry.with_entry_points()
    check_presets(registry.all_specs(), complete=False)
    return registry


def _add_bound(registry: Registry, roots: Sequence[str]) -> None:
    """Add the bound tools. Their plugins are imported only if there are any."""
    sources = BoundSources()
    if not sources.names():
        return
    folders = tuple(RootName.parse(root).absolute() for root in roots)
    makers = list_source_makers(sources, folders)
    refused = find_exposure(sources.folder, roots)
    registry.with_bound(sources, {kind: maker.make for kind, maker in makers.items()}, refused)
    for maker in makers.values():
        if maker.close is not None:
            registry.closers.append(maker.close)
        if maker.make_more is not None and refused is None:
            for tool in maker.make_more(registry.sources):
                registry.provide(tool)


_WORDS_FOR_TOOLS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("all", "any", "every", "everything"), "did you mean '*'?"),
    **dict.fromkeys(("none", "nothing", "no"), "did you mean '[]'?"),
}
"""The hints for words that are no names of tools, but may be typed for all or none of them."""


def _check_names(configuration: Configuration, registry: Registry) -> None:
    """Check the names of tools in the settings.

    A name that no tool has is a typing error, and must not be accepted as a tool that is never
    called or is forbidden.
    """
    specs = registry.all_specs()
    offered = {key.partition("/")[2] for key in registry.disabled if "/" in key}
    values = configuration.settings.policy
    for key, names in (
        ("policy.allow", values.allow or ()),
        ("policy.deny", values.deny),
        ("policy.ask", values.ask),
        ("policy.rate_limits", values.rate_limits.keys() - {SESSION}),
    ):
        for name in names:
            if registry.resolve_name(name) in specs or name in offered or is_glob(name):
                continue
            if name.startswith(PLUGIN):
                _check_plugin(configuration.describe_origin(key), name, registry)
                continue
            raise UsageError(
                f"{configuration.describe_origin(key)}: there is no tool {name}",
                hint=_WORDS_FOR_TOOLS.get(name.casefold()) or did_you_mean(name, specs),
            )


def _check_plugin(setting: str, pattern: str, registry: Registry) -> None:
    """Check that ``plugin:NAME`` or ``plugin:NAME/TOOL`` means an existing tool.

    Raises:
        UsageError: there is no such plugin, or it has no such tool.
    """
    plugin, _, name = pattern.removeprefix(PLUGIN).partition("/")
    if plugin not in (known := registry.plugin_names()):
        # the kind of a source is unknown if its file is damaged
        if f"bound:{plugin.rpartition(':')[2]}" in known:
            return
        raise UsageError(
            f"{setting}: there are no tools of a plugin {plugin}",
            hint=did_you_mean(pattern, [f"{PLUGIN}{one}" for one in sorted(known)]),
        )
    names = {spec.name for spec in registry.all_specs().values() if spec.plugin == plugin}
    if name and registry.resolve_name(name) not in names and pattern not in registry.disabled:
        raise UsageError(
            f"{setting}: the plugin {plugin} has no tool {name}",
            hint=did_you_mean(name, sorted(names), f"{plugin} has no tools"),
        )


def note_left_out(configuration: Configuration, registry: Registry, note: Note) -> None:
    """Note the allowed tools that were offered and could not be added."""
    allowed = configuration.settings.policy.allow or ()
    left_out = []
    for key, reason in registry.disabled.items():
        plugin, slash, name = key.removeprefix(PLUGIN).partition("/")
        spec = ToolSpec(name if TOOL_NAME.fullmatch(name) else "any", plugin=plugin)
        if slash and any(matches(pattern, spec) for pattern in allowed):
            left_out.append(f"{name} of the plugin {plugin} is left out: {reason}")
    for line in left_out[:_MAX_LEFT_OUT]:
        note(line)
    if more := len(left_out[_MAX_LEFT_OUT:]):
        note(f"{more} more tools are left out (mlx-tools tools list)")


def require_tools_enabled(configuration: Configuration, tool_choice: str = "auto") -> None:
    """Raise `UsageError` if all tools are turned off, unless ``tool_choice`` is none.

    The message names the setting that turns them off.
    """
    if not configuration.settings.enabled and tool_choice != "none":
        raise UsageError(
            f"tools are turned off by {configuration.describe_origin('enabled')}",
            hint="set it to true, or ask without tools: --tool-choice none",
        )


async def choose(
    options: RunOptions, note: Note, usual: Sequence[str] | None = None
) -> SelectedBackend:
    """Return the backend of the settings.

    Args:
        options: the options.
        note: called with each line that a person should read.
        usual: addresses to search for servers, None for the programs' defaults.
    """
    configuration = options.configuration
    backend_settings = configuration.settings.backend
    urls = addresses(backend_settings.url)
    if (
        backend_settings.kind in ("server", "local")
        and configuration.origins["backend.kind"][-1].kind == "option"
    ):
        urls = urls if urls and configuration.describe_origin("backend.url") == "--url" else ()
    if configuration.settings.policy.local_only:
        for url in urls:
            if not parse_address(url).loopback:
                origin = configuration.describe_origin("policy.local_only")
                raise UsageError(
                    f"{origin}: {url} is not on this machine",
                    hint="name a loopback address, or leave local-only mode",
                )
    pick = options.pick
    if configuration.settings.model.chat_format != "auto":
        pick = _no_pick  # the format is known, so the model's name is not needed
    try:
        selected = await choose_backend(
            kind=backend_settings.kind,
            url=urls or None,
            model=options.model_name,
            api_key=backend_settings.api_key if urls else None,
            gateway=None if options.serves else _find_gateway(configuration),
            gateway_key=configuration.settings.gateway.api_key,
            note=note,
            spread=options.spread,
            usual=usual or DEFAULT_ADDRESSES,
            pick=pick,
            pick_server=_server_picker(options, note),
            server_options=backend_settings.server_options,
            interfaces=list_backend_makers,
        )
    except ModelMissing as error:
        if options.model_name is not None or backend_settings.kind != "auto":
            raise
        raise ModelError(
            "no server was named, none answers, and the embedded model is not here",
            hint=f"{error.hint}, or start a server; {suggest_model(memory_bytes()).line}",
        ) from error
    if selected.note:
        note(selected.note)
    if selected.suggestion and options.person:
        note(selected.suggestion)
    return selected


def _server_picker(
    options: RunOptions, note: Note
) -> Callable[[Sequence[str]], Awaitable[str | None]] | None:
    """Return a function that asks a person which of several servers to use.

    It writes the answer into the user's file. None if there is no person to ask.
    """
    ask = options.pick
    if ask is None:
        return None

    async def pick(addresses: Sequence[str]) -> str | None:
        question = (
            "Several model servers answer on this machine. Which one is to be used from now on?"
        )
        address = await ask(question, addresses)
        if address is not None:
            change_user_text(lambda text: edit_value(text, "backend.url", address))
            note(f"kept as backend.url in {config.user_path()}")
        return address

    return pick


async def _no_pick(question: str, answers: Sequence[str]) -> str | None:
    return None


def _find_gateway(configuration: Configuration) -> str | None:
    """Return the address of this user's gateway, None if there can be none."""
    gateway_settings = configuration.settings.gateway
    host = f"[{gateway_settings.host}]" if ":" in gateway_settings.host else gateway_settings.host
    with contextlib.suppress(ValueError):
        host = "localhost" if ipaddress.ip_address(gateway_settings.host).is_unspecified else host
    try:
        address = parse_address(f"http://{host}:{gateway_settings.port or 80}")
    except UsageError:  # the command `serve` reports this error
        return None
    is_usable = address.loopback or not configuration.settings.policy.local_only
    return address.url if gateway_settings.port and is_usable else None


@asynccontextmanager
async def open_controller(
    options: RunOptions,
    *,
    approver: Approver,
    note: Note,
    wrap: Callable[[Backend], Backend] = lambda backend: backend,
) -> AsyncIterator[Controller]:
    """Open a controller under these settings; its backend is closed at the end.

    Args:
        options: the options.
        approver: decides about calls.
        note: called with each line that a person should read.
        wrap: returns the backend with a layer around it, such as a trace.
    """
    configuration = options.configuration
    registry = build_registry(configuration, note=note)
    _note_unfindable(configuration, registry, note)
    _note_disabled(configuration, registry, note)
    async with open_selected_backend(options, note) as (selected, settings):
        yield build_controller(configuration, registry, wrap(selected.backend), settings, approver)


def build_controller(
    configuration: Configuration,
    registry: Registry,
    backend: Backend,
    settings: RunSettings,
    approver: Approver,
    policy: Policy | None = None,
) -> Controller:
    """Return a controller of an open backend.

    Without ``policy`` the settings' policy applies.
    """
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
        observers=collect("observers"),
    )


def with_settings(settings: RunSettings, configuration: Configuration) -> RunSettings:
    """Return the settings of a run with the same model under another configuration."""
    return replace(settings, **configuration.make_run_values(), **_list_paths(configuration))


@asynccontextmanager
async def open_selected_backend(
    options: RunOptions, note: Note
) -> AsyncIterator[tuple[SelectedBackend, RunSettings]]:
    """Open the backend of the settings, and find out how a run uses it.

    Raises:
        BackendTimeout: to find that out takes longer than the limit of a whole run.
    """
    seconds = options.configuration.limits().total_timeout
    with limit_discovery(seconds):
        selected = await choose(options, note)
    try:
        with limit_discovery(seconds):
            settings = await run_settings(options, selected, note)
        yield selected, settings
    finally:
        await selected.backend.aclose()


def _note_unfindable(configuration: Configuration, registry: Registry, note: Note) -> None:
    """Note that some tools are neither in the catalog nor within a search's reach."""
    policy = configuration.policy()
    specs = [spec for spec in registry.specs().values() if can_be_allowed(policy, spec)]
    if any(map(is_search, specs)):
        return
    listed = [spec for spec in specs if not is_on_demand(spec)]
    if hidden := len(build_catalog(listed, CATALOG_BUDGET).hidden_names):
        note(
            f"{hidden} of {len(listed)} tools do not fit into the catalog, and {SEARCH}, with "
            "which the model would find them, is not allowed: allow it too, or fewer of them"
        )


def _note_disabled(configuration: Configuration, registry: Registry, note: Note) -> None:
    """Note the tools of a chosen preset that cannot work here, with reasons."""
    preset = configuration.settings.policy.preset
    if preset is None or not configuration.is_set("policy.preset"):
        return
    for name in PRESETS[preset].tools:
        if (reason := registry.disabled.get(name)) is not None:
            note(f"{name} of the preset {preset} is disabled: {reason}")


async def run_settings(options: RunOptions, selected: SelectedBackend, note: Note) -> RunSettings:
    """Return the settings of a run with the selected model.

    If its chat format is a guess, ``note`` gets a line, but only if a person reads it: a program
    cannot act on it, and may expect no output. `doctor` always reports it.
    """
    settings = options.configuration.settings
    model = selected.model or options.model_name
    format_choice = await find_served_format(
        selected.backend, settings.model.chat_format, files=selected.files, model=model
    )
    if format_choice.doubt and options.person:
        note(format_choice.doubt)
    verdict = find_verdict(selected.identity(options.model_name))
    if verdict.problem and "auto" in (settings.model.prompt_style, settings.model.strategy):
        note(verdict.problem)
    style = decide(settings.model.prompt_style, "free", verdict).style
    selected.free_markers(style)
    route = await choose_route(options, selected)
    return RunSettings(
        **options.configuration.make_run_values(),
        verdict=verdict,
        chat_format=format_choice.chat_format,
        tool_choice=options.tool_choice,
        require_tools=options.require_tools,
        output_schema=options.output_schema,
        model=model,
        backend=selected.header_fields(),
        route=route.to_json(),
        **_list_paths(options.configuration),
    )


async def choose_route(options: RunOptions, selected: SelectedBackend) -> Route:
    """Return how the selected model is asked.

    Raises:
        UsageError: the settings leave no route.
    """
    configuration = options.configuration
    routing, route = configuration.settings.routing, configuration.settings.routing.route
    if configuration.settings.backend.kind == "native":
        if route == "prompted":
            raise UsageError(
                f"{configuration.describe_origin('backend.kind')} is native, and "
                f"{configuration.describe_origin('routing.route')} prompted",
                hint="leave one of them out",
            )
        route = "native"
    return await find_route(
        selected.backend,
        route,
        model=selected.identity(options.model_name),
        template=selected.template,
        prompts=routing.local_enabled,
    )


async def try_native(
    options: RunOptions, selected: SelectedBackend, *, retry: bool = False
) -> NativeVerdict | None:
    """Try a server's own function calling with its model, unless that was done before.

    Args:
        options: the options.
        selected: the server. With several servers all are tried.
        retry: True to try again even if the result is known.

    Returns:
        The first verdict that is not passed, otherwise the last one. None if a trial is useless or
        its result could not be used later: there is no server, it takes only messages, its model is
        unknown, or the model's template has no tools.

    Raises:
        BackendError: the server fails.
        UsageError: the verdict cannot be stored.
    """
    model = selected.identity(options.model_name)
    if selected.health is not None and selected.health.is_gateway:
        return None  # a gateway of ours already reads the calls itself
    template = selected.template
    has_no_tools = template is not None and not shows_tools(template)
    if model is None or selected.backend.kind == "native" or has_no_tools:
        return None
    store, result = VerdictStore(), None
    for server, backend in find_servers(selected.backend):
        verdict = None if retry else store.native(server, model)
        if verdict is None:
            measured_at = datetime.now(UTC).isoformat(timespec="seconds")
            verdict = await probe_native(
                backend, server=server, model=model, measured_at=measured_at
            )
            store.save_native(verdict)
        result = verdict if result is None or result.passed else result
    return result


async def try_route(
    options: RunOptions, selected: SelectedBackend, settings: RunSettings, seconds: float
) -> RunSettings:
    """Return the settings with the route that a trial of at most ``seconds`` decides.

    There is a trial only if the route is ``auto`` and no trial was made before. If the server fails
    in it, the route stays.
    """
    routing = options.configuration.settings.routing
    is_fixed = options.configuration.settings.backend.kind == "native" or routing.route != "auto"
    if is_fixed or not routing.local_enabled or settings.route.get("path") == "native":
        return settings
    import anyio

    with anyio.move_on_after(seconds), contextlib.suppress(BackendError, UsageError):
        await try_native(options, selected)
    return replace(settings, route=(await choose_route(options, selected)).to_json())


# --- stores, and values that sessions and jobs store ----------------------------------------------


def session_store(configuration: Configuration) -> SessionStore:
    """Return the store of sessions."""
    settings = configuration.settings
    options: Any = {
        "keep": settings.artifacts.keep_days * 86_400,
        "keep_all": settings.artifacts.keep == "always",
        "watched": configuration.watched,
    }
    if settings.sessions is None:
        return TranscriptStore(state_dir() / "sessions", **options)
    return find_store_kind(settings.sessions).open(settings.sessions, **options)


class HasSecret(Protocol):
    """A store of sessions that is used only for its key of approvals."""

    @property
    def secret(self) -> bytes: ...


def approval_templates(store: HasSecret) -> TemplateFile:
    """Return the user's approval templates, sealed with the sessions' key."""
    return TemplateFile(config_dir() / "approvals.json", lambda: store.secret)


def list_roots(configuration: Configuration) -> tuple[str, ...]:
    """Return the folders of file tools as absolute paths."""
    return tuple(RootName.parse(root).absolute() for root in configuration.settings.tools.roots)


def list_function_files(configuration: Configuration) -> tuple[str, ...]:
    """Return the files of functions as absolute paths."""
    return function_files(configuration.settings.tools.functions)


def function_files(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the absolute paths of files of functions that a person named."""
    return tuple(str(expand_user(path).resolve()) for path in paths)


def _list_paths(configuration: Configuration) -> dict[str, Any]:
    """Return the paths that the header of a session stores."""
    return {
        "roots": list_roots(configuration),
        "functions": list_function_files(configuration),
        "folder": working_directory(),
    }


def working_directory() -> str:
    """Return the working directory, empty if it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def list_reusable_options(configuration: Configuration) -> dict[str, str]:
    """Return the settings for model and limits as options, for a job elsewhere."""
    options = {}
    for key, row in table().items():
        value: Any = configuration.values.get(key)
        if not key.startswith(_JOB_SETTINGS) or value is None or not configuration.is_set(key):
            continue
        if key == "model.name" and folder_exists(value):
            value = str(expand_user(value).resolve())
        if isinstance(value, tuple):
            value = ",".join(value)
        scale = row.setting.scale
        options[key] = str(value) if scale == 1 else f"{value / scale:.9g}"
    return options


def list_recorded_options(header: Header) -> dict[str, str]:
    """Return a session's settings for its model and its limits, as options."""
    values: dict[str, Any] = {
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
            if limit is not None and name.endswith("_ms"):  # the header has it in seconds
                limit = f"{limit * 1000 / row.setting.scale:.9g}"
            values[key] = limit
    return {key: str(value) for key, value in values.items() if value is not None}
