"""The settings of a run, and the source of each.

There are five sources: defaults, the user's file, the project's files, the environment and the
command line. Each overrides the ones before it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, convert, structs

from mlx_tools.app.hooks import plugins
from mlx_tools.app.project_rules import find_loosened
from mlx_tools.app.setting_hints import (
    describe_missing_plugin,
    describe_unknown_key,
    find_close_variable,
    guess_word,
    list_section_names,
    map_rows_by_variable,
    may_be_of_missing_plugin,
    not_allowed,
)
from mlx_tools.app.setting_rows import Section, SettingRow
from mlx_tools.app.settings import (
    OTHER_VARIABLES,
    PROFILES,
    SESSION,
    Settings,
    list_left_out_tables,
    load_plugin_sections,
    table,
)
from mlx_tools.errors import ConfigError, UsageError
from mlx_tools.messages import replace
from mlx_tools.packages import must_pass
from mlx_tools.paths import (
    config_dir,
    expand_user,
    read_data,
    read_regular,
)
from mlx_tools.policy import (
    FUNCTIONS,
    PLUGIN,
    PRESETS,
    Limits,
    Policy,
    restriction,
)
from mlx_tools.store import RootName, fingerprints

Kind = Literal["default", "user", "project", "environment", "option"]

USER_FILE = "config.toml"
PROJECT_FILE = "mlx-tools.toml"
DEFAULT_FILE = "config/default.toml"
MAX_FILE_BYTES = 1_000_000
"""Bytes of a file of settings. A real one is far shorter."""
BYTE_ORDER_MARK = "\N{BYTE ORDER MARK}"
"""Some editors write it before the text of a file."""

WRITING_PRESET = "workspace"
"""The preset if a folder may be written to and no tools were chosen."""

RUN_COMMAND = "run_command"
"""The tool that runs programs."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")
"""A key that names an environment variable."""
_KEY = re.compile(r"[\x21-\x7e]{1,4000}")
"""A valid key: printable ASCII without spaces."""

_TOOL_CHOICE = ("policy.allow", "policy.preset")
"""The settings that choose the tools that may be called."""

_Choice = tuple[tuple[str, ...] | None, str | None]
"""The allowed tools: a list, or the name of a preset."""


class ConfigErrors(ConfigError):
    """One or more errors in the configuration, each on its own line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class Origin(Struct, frozen=True):
    """The source of a value: its kind, and the file, variable or option."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of a run."""

    settings: Settings
    choices: tuple[_Choice, ...]
    """The allowed tools, as (list, preset).

    The first is from the source with the highest rank. Each other one is from a project's file, and
    narrows the first.
    """
    values: Mapping[str, Any] = field(repr=False)
    origins: Mapping[str, tuple[Origin, ...]]
    """The source of every setting that has a value. A list that adds up may have several."""
    files: tuple[str, ...]
    """The files that were read."""
    warnings: tuple[str, ...]
    layers: tuple[Layer, ...] = field(default=(), repr=False)
    """The sources, the lowest first."""
    allowed: tuple[str, ...] = ()
    """The tools that `with_options` added to the first choice."""
    watched: Mapping[str, str] = field(default_factory=dict)
    """The paths of all files, also of missing ones, with their states (`fingerprints`)."""
    profiles: Mapping[str, Layer] = field(default_factory=dict, repr=False)
    """The profiles of the user's file by name."""
    plugin_settings: Mapping[str, Section] = field(default_factory=dict)
    """The settings of plugins by the name of their table."""

    def section(self, name: str) -> Any:
        """Return the settings of a plugin's table.

        Raises:
            UsageError: no installed plugin has such a table.
        """
        if name not in self.plugin_settings:
            raise UsageError(f"no plugin that is here has the settings {name}")
        return self.plugin_settings[name]

    def describe_origin(self, key: str) -> str:
        """Return the source of a setting, for a message.

        Examples are ``MLX_TOOLS_DRY_RUN`` and ``FILE: policy.allow``.
        """
        origins = self.origins[key]
        shown = [origin for origin in origins if origin.kind != "default"] or origins[:1]
        return " + ".join(
            origin.name if origin.kind in ("environment", "option") else f"{origin.name}: {key}"
            for origin in shown
        )

    def make_run_values(self) -> dict[str, Any]:
        """Return the values for the fields of `RunSettings`, by field."""
        runs = {key: row.setting.run for key, row in table().items()}
        return {name: self.values.get(key) for key, name in runs.items() if name}

    def policy(self) -> Policy:
        """Return the policy of these settings."""
        return self._build_policy(self.choices)

    def _build_policy(self, choices: Sequence[_Choice]) -> Policy:
        section = self.settings.policy
        allow, preset = choices[0]
        shared = {policy_field.name for policy_field in fields(Policy)} & {
            *section.__struct_fields__
        }
        fields_given = {name: getattr(section, name) for name in shared - {"allow", "preset"}}
        rates = dict(fields_given.pop("rate_limits"))
        session = rates.pop(SESSION, None)
        fields_given |= {"rate_limits": rates, "session_rate_limit": session}
        policy = Policy(allow=allow or (), preset=preset, **fields_given)
        for allow, preset in choices[1:]:
            # A further choice only narrows the tools: the policy already has all other rules.
            policy = policy.intersect(restriction(allow or (), preset=preset))
        return policy

    def configured_policy(self) -> Policy:
        """Return the policy of files and the environment, which applies to every session.

        It also applies to a session that began with other settings. The defaults and the options of
        this command are not part of it.
        """
        configured = merge([layer for layer in self.layers if layer.kind != "option"])
        is_chosen = any(configured.is_set(key) for key in _TOOL_CHOICE)
        first: _Choice = configured.choices[0] if is_chosen else (("*",), None)
        return configured._build_policy((first, *configured.choices[1:]))

    def limits(self) -> Limits:
        """Return the limits of these settings."""
        values = structs.asdict(self.settings.limits).items()
        seconds = {key[:-3]: value / 1000 for key, value in values if key.endswith("_ms")}
        return Limits(**seconds, **{k: value for k, value in values if not k.endswith("_ms")})

    def with_options(
        self, options: Mapping[str, str | bool | Sequence[str]], allow: Sequence[str] = ()
    ) -> Configuration:
        """Return these settings with more options; no file is read again.

        A tool that a file denies, or that a project's file does not allow, stays forbidden.

        Args:
            options: as in `load`.
            allow: further tools that may be called.

        Raises:
            ConfigErrors: an option is not valid.
        """
        old_layer, new_layer = self.layers[-1], _read_options(options)
        old_values = {
            k: v
            for k, v in old_layer.values.items()
            if not (new_layer.chooses and k in _TOOL_CHOICE)
        }
        values, names = {**old_values, **new_layer.values}, {**old_layer.names, **new_layer.names}
        is_addition = old_layer.adds and not new_layer.chooses
        layer = replace(new_layer, values=values, names=names, adds=is_addition)
        merged = merge([*self.layers[:-1], layer])
        (tools, preset), *narrowing = merged.choices
        allowed = (*self.allowed, *allow)
        if allowed:
            merged = replace(merged, choices=(((*(tools or ()), *allowed), preset), *narrowing))
        return replace(merged, allowed=allowed, watched=self.watched, profiles=self.profiles)

    def with_profile(self, name: str) -> Configuration:
        """Return these settings with a profile of the user's file; no file is read again.

        The profile overrides the other values of that file.

        Raises:
            UsageError: there is no such profile.
        """
        if name not in self.profiles:
            profile_names = ", ".join(self.profiles) or "none"
            raise UsageError(
                f"there is no profile {name[:100]!r}", hint=f"profiles: {profile_names}"
            )
        user_count = sum(layer.kind in ("default", "user") for layer in self.layers)
        layers = [
            *self.layers[:user_count],
            _fill_environment(self.profiles[name], os.environ),
            *self.layers[user_count:],
        ]
        return replace(merge(layers), watched=self.watched, profiles=self.profiles)

    def is_set(self, key: str) -> bool:
        """Return True if any source but the defaults sets it."""
        return any(origin.kind != "default" for origin in self.origins.get(key, ()))


def load(
    *,
    options: Mapping[str, str | bool | Sequence[str]] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user_file: Path | None = None,
    home: Path | None = None,
) -> Configuration:
    """Return the settings for a run in the current place.

    The other arguments are for callers that do not run in the user's own environment.

    Args:
        options: the command's options by setting's key, as typed.
        environ: the environment.
        cwd: the working directory.
        user_file: the user's file.
        home: the user's home folder.

    Raises:
        ConfigErrors: lists every error of every source.
    """
    user = user_file or user_path()
    places = tuple(_iter_project_places(cwd or _get_working_directory(), home or Path.home()))
    # Before the files are read, so that a change in between is noticed.
    watched = fingerprints((user, *places))
    user_layers = [read_file(user, "user")] if os.path.lexists(user) else []
    project = [read_file(path, "project") for path in reversed(places) if os.path.lexists(path)]
    environ = os.environ if environ is None else environ
    later = [_read_environment(environ), _read_options(options or {})]
    # Profiles rank below the project's files, which tighten them like the rest of the user's file.
    profiles = user_layers[0].profiles if user_layers else {}
    profile_layers = _select_profile(profiles, [*user_layers, *later], user)
    user_layers, profile_layers, later = (
        [_fill_environment(layer, environ) for layer in layers]
        for layers in (user_layers, profile_layers, later)
    )
    merged = merge([defaults(), *user_layers, *profile_layers, *project, *later])
    return replace(merged, watched=watched, profiles=profiles)


def _fill_environment(layer: Layer, environ: Mapping[str, str]) -> Layer:
    """Return a layer with the variables' values in place of keys such as ``${NAME}``."""
    values, problems = dict(layer.values), list(layer.problems)
    for key, value in layer.values.items():
        if table()[key].setting.secret and (match := _VARIABLE.fullmatch(str(value))):
            values[key] = environ.get(match[1], "").strip()
            if not _KEY.fullmatch(values[key]):
                problems.append(f"{layer.source}: {key}: the variable {match[1]} holds no key")
    return replace(layer, values=values, problems=tuple(problems))


def _select_profile(
    profiles: Mapping[str, Layer], layers: Sequence[Layer], user: Path
) -> list[Layer]:
    """Return the layer of the profile that the last of these layers chooses, if any.

    If there is no such profile, the layer has a problem.
    """
    choosing = next((layer for layer in reversed(layers) if "profile" in layer.values), None)
    name = choosing.values["profile"] if choosing is not None else None
    if choosing is None or name is None or any(layer.problems for layer in layers):
        return []
    setting_name = choosing.names["profile"]
    if name not in profiles:
        existing = f"there are {', '.join(profiles)}" if profiles else f"{user} defines none"
        place = f"{choosing.source}: {setting_name}" if choosing.kind == "user" else setting_name
        return [Layer("user", str(user), problems=(f"{place}: no profile {name!r} ({existing})",))]
    profile = profiles[name]
    if choosing.kind != "option":
        return [profile]
    # A profile of an option is only for this command. It must not apply to a session that is
    # resumed later.
    return [
        replace(
            profile, kind="option", names=dict.fromkeys(profile.values, f"{setting_name} {name}")
        )
    ]


def user_path() -> Path:
    """Return the path of the user's file; it need not exist."""
    return config_dir() / USER_FILE


def read_typed(key: str, text: str) -> Any:
    """Return the value of a setting that a person typed, in the setting's unit.

    None for an empty text, which unsets the setting. ``[]`` is an empty list.

    Raises:
        ConfigErrors: there is no such setting, or the value is not allowed.
    """
    row = table().get(key)
    if row is None:
        raise ConfigErrors([describe_unknown_key(key, text)])
    text = text.strip()
    if not text:
        return None
    try:
        return row.read(text)
    except ValueError:
        raise ConfigErrors([f"{key}: {not_allowed(row, repr(text))}"]) from None


def check_user_text(text: str) -> None:
    """Check a text for the user's file.

    Raises:
        ConfigErrors: it is not valid.
    """
    layer = _read_toml(text, "user", str(user_path()))
    merge([defaults(), layer, *_select_profile(layer.profiles, [layer], user_path())])


def _iter_project_places(cwd: Path, home: Path) -> Iterator[Path]:
    """Yield the possible places of a project's file, the nearest first.

    These are the working directory and the folders above it, up to the home folder.
    """
    for folder in (cwd, *cwd.parents):
        yield folder / PROJECT_FILE
        if folder in (home, home.resolve()):
            break


def _get_working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError:
        raise ConfigError(
            "the working directory is gone", hint="change to a folder that exists"
        ) from None


def merge(layers: Sequence[Layer]) -> Configuration:
    """Merge the layers, the lowest first.

    Raises:
        ConfigErrors: lists the problems of all layers.
    """
    values: dict[str, Any] = {}
    origins: dict[str, tuple[Origin, ...]] = {}
    choices: list[_Choice] = []
    problems: list[str] = []
    for layer in layers:
        problems += [*layer.problems, *_check_choice(layer)]
        if layer.kind == "project":
            problems += find_loosened(layer.source, layer.values, values)
        if layer.adds and "policy.preset" not in layer.values:
            choices[:] = [_add_tools(choice, layer) for choice in choices]
            all_tools, _ = _add_tools((values.get("policy.allow"), None), layer)
            layer = replace(layer, values={**layer.values, "policy.allow": all_tools})
        elif layer.chooses:
            if layer.kind != "project":
                # A list of tools replaces a preset, and a preset replaces a list: the last wins.
                choices.clear()
                for key in _TOOL_CHOICE:
                    values.pop(key, None)
                    origins.pop(key, None)
            choices.append((layer.values.get("policy.allow"), layer.values.get("policy.preset")))
        _apply_layer(values, origins, layer)
    if problems:
        raise ConfigErrors(problems)
    if choices:
        choices[0] = _complete_choice(choices[0], values, origins)
    nested: dict[str, Any] = {}
    for key in table():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = values.get(key)
    plugin_settings: dict[str, Section] = {}
    for name, plugin_section in load_plugin_sections().items():
        try:
            plugin_settings[name] = convert(nested.pop(name, {}), plugin_section)
        except BaseException as error:  # a plugin's `__post_init__` may raise anything
            if must_pass(error):
                raise
            raise ConfigErrors([f"{name}: its values do not go together: {error}"]) from error
    return Configuration(
        settings=convert(nested, Settings),
        plugin_settings=plugin_settings,
        choices=tuple(choices) or ((None, None),),
        values=values,
        origins=origins,
        files=tuple(layer.source for layer in layers if layer.kind in ("user", "project")),
        warnings=tuple(warning for layer in layers for warning in layer.warnings),
        layers=tuple(layers),
    )


def _complete_choice(
    choice: _Choice, values: dict[str, Any], origins: dict[str, tuple[Origin, ...]]
) -> _Choice:
    """Return the allowed tools, given the folders and programs in the settings.

    If no tools were chosen, a folder that may be written to selects the writing preset. Named
    programs allow the tool that runs them. A project's file cannot set folders or programs, and
    tools that it leaves out stay forbidden.
    """
    allow, preset = choice
    by_default = all(origin.kind == "default" for origin in origins.get("policy.preset", ()))
    writable = any(_is_writable(root) for root in values.get("tools.roots") or ())
    if preset is not None and by_default and writable:
        preset = values["policy.preset"] = WRITING_PRESET
    tool_settings = ((RUN_COMMAND, "tools.commands"), (f"{PLUGIN}{FUNCTIONS}", "tools.functions"))
    added_tools = [tool for tool, key in tool_settings if values.get(key)]
    allow = tuple(dict.fromkeys((*(allow or ()), *added_tools))) if added_tools else allow
    return allow, preset


def _is_writable(root: str) -> bool:
    with contextlib.suppress(UsageError):  # a wrong root is reported when it is opened
        return RootName.parse(root).writable
    return False


def _add_tools(choice: _Choice, layer: Layer) -> _Choice:
    allow, preset = choice
    return (*(allow or ()), *layer.values["policy.allow"]), preset


def _apply_layer(
    values: dict[str, Any], origins: dict[str, tuple[Origin, ...]], layer: Layer
) -> None:
    """Override the values of the lower layers with those of a layer."""
    for key, value in layer.values.items():
        by_name = layer.kind in ("environment", "option")
        origin = Origin(layer.kind, layer.names[key] if by_name else layer.source)
        old_value, only_origin = values.get(key), (origin,)
        if isinstance(value, dict):
            values[key] = {**(old_value or {}), **value}
        elif table()[key].setting.project == "add":
            values[key] = (
                *(old_value or ()),
                *(item for item in value if item not in (old_value or ())),
            )
        else:
            values[key], origins[key] = value, only_origin
            continue
        origins[key] = (*origins.get(key, ()), origin) if value else origins.get(key, only_origin)


def _check_choice(layer: Layer) -> list[str]:
    """Return the problems of a layer's choice of tools that its types allow."""
    preset = layer.values.get("policy.preset")
    prefix = "" if layer.kind in ("environment", "option") else f"{layer.source}: "
    allow_name, preset_name = (layer.names.get(key, key) for key in _TOOL_CHOICE)
    if preset is not None and preset not in PRESETS:
        allowed = ", ".join(PRESETS) + guess_word(preset, PRESETS)
        return [f"{prefix}{preset_name}: {preset!r} is not allowed (allowed: {allowed})"]
    if preset is not None and layer.values.get("policy.allow") is not None and not layer.adds:
        allowed = "a list of tools, or a preset"
        return [f"{prefix}{allow_name}: excludes {preset_name} (allowed: {allowed})"]
    return []


# --- the sources: read and checked, not yet merged ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one source."""

    kind: Kind
    source: str
    values: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The name of each key in the source, such as that of a variable."""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    adds: bool = False
    """True if its list of tools is added to the allowed ones instead of replacing them."""
    profiles: Mapping[str, Layer] = field(default_factory=dict, repr=False)
    """The profiles of the user's file by name."""

    @property
    def chooses(self) -> bool:
        """True if it chooses the tools that may be called."""
        return any(key in self.values for key in _TOOL_CHOICE)


@functools.cache
def defaults() -> Layer:
    """Return the layer of `config/default.toml`, and of the defaults of plugins."""
    layer = _read_toml(read_data(DEFAULT_FILE), "default", DEFAULT_FILE)
    values = {
        f"{name}.{key}": value
        for name, section in load_plugin_sections().items()
        for key, value in structs.asdict(section()).items()
        if value is not None
    }
    return replace(layer, values={**layer.values, **values})


def read_file(path: Path, kind: Kind) -> Layer:
    """Read a TOML file of settings. Problems are listed in the layer, not raised."""

    def fault(problem: str) -> Layer:
        return Layer(kind, str(path), problems=(f"{path}: {problem}",))

    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            return fault("not a regular file")
        if info.st_size > MAX_FILE_BYTES:
            return fault(f"larger than {MAX_FILE_BYTES} bytes")
        text = read_regular(path, MAX_FILE_BYTES).decode("utf-8")
    except OSError as error:
        return fault(error.strerror or str(error))
    except UnicodeDecodeError as error:
        return fault(f"not UTF-8 at byte {error.start}")
    layer = _read_toml(text, kind, str(path))
    pairs = [pair for part in (layer, *layer.profiles.values()) for pair in part.values.items()]
    plain_secrets = [
        table()[key].setting.secret and not _VARIABLE.fullmatch(str(value)) for key, value in pairs
    ]
    if info.st_mode & 0o077 and any(plain_secrets):
        warning = f"{path}: holds a key and can be read by others (chmod 600 {path})"
        return replace(layer, warnings=(*layer.warnings, warning))
    return layer


def _read_toml(text: str, kind: Kind, source: str) -> Layer:
    try:
        document = tomllib.loads(text.removeprefix(BYTE_ORDER_MARK))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Layer(kind, source, problems=(f"{source}: not TOML: {error}",))
    tables = document.pop(PROFILES, {})
    layer = _read_table(document, kind, source)
    if not tables:
        return layer
    if kind == "project":
        fault = f"{source}: {PROFILES}: a project's file must not define any (your own file can)"
        return replace(layer, problems=(*layer.problems, fault))
    if not isinstance(tables, Mapping) or not all(isinstance(v, dict) for v in tables.values()):
        fault = f"{source}: {PROFILES}: no tables of settings (write [{PROFILES}.NAME])"
        return replace(layer, problems=(*layer.problems, fault))
    profiles = {
        name: _read_table(settings, kind, f"{source}: {PROFILES}.{name}", left_out_key="profile")
        for name, settings in tables.items()
    }
    faults = [
        fault
        for profile in profiles.values()
        for fault in (*profile.problems, *_check_choice(profile))
    ]
    return replace(layer, problems=(*layer.problems, *faults), profiles=profiles)


def _read_table(
    document: Mapping[str, Any], kind: Kind, source: str, *, left_out_key: str = ""
) -> Layer:
    """Return the settings in a table, in sections or with dotted keys.

    ``left_out_key`` is not allowed in it.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    warnings: list[str] = []
    for key, value in flatten(document):
        row = table().get(key)
        if row is None or key == left_out_key:
            if _may_be_of_faulty_plugin(key, value):
                warnings.append(f"{source}: {key}: ignored, as a plugin's settings are left out")
            elif kind == "user" and may_be_of_missing_plugin(key, value):
                warnings.append(f"{source}: {describe_missing_plugin(key)}")
            else:
                problems.append(f"{source}: {describe_unknown_key(key, value)}")
            continue
        try:
            values[key] = row.check(value)
        except ValueError:
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            problems.append(f"{source}: {key}: {not_allowed(row, shown)}")
    names = {key: key for key in values}
    return Layer(kind, source, values, names, tuple(problems), tuple(warnings))


def _may_be_of_faulty_plugin(key: str, value: Any) -> bool:
    """Return True if an unknown key may be a setting of a plugin that was left out."""
    if key.partition(".")[0] in list_left_out_tables():
        return True
    return bool(plugins().without_settings) and may_be_of_missing_plugin(key, value)


def flatten(document: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield dotted keys with their values. A table that is no section is a value."""
    for name, value in document.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key in list_section_names():
            yield from flatten(value, f"{key}.")
        else:
            yield key, value


def _read_environment(environ: Mapping[str, str]) -> Layer:
    """Return the settings in the environment.

    A variable with our prefix that is no setting is a problem if it was meant as one: if its name
    is close to a known name, or begins like one. Otherwise it is a warning.
    """
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    problems: list[str] = []
    warnings: list[str] = []
    prefixes = (
        "PLUGIN_MLX_TOOLS",
        *(f"MLX_TOOLS_{section.upper()}_" for section in list_section_names()),
    )
    for name in sorted(environ):
        row = map_rows_by_variable().get(name)
        if row is not None:
            try:
                values[row.key] = row.read(environ[name])
                names[row.key] = name
            except ValueError:
                problems.append(f"{name}: {not_allowed(row, repr(environ[name]))}")
        elif name.startswith(("MLX_TOOLS_", *prefixes, "ROUTING_LOCAL")) and (
            name not in OTHER_VARIABLES
        ):
            if close := find_close_variable(name):
                problems.append(f"{name}: no such setting (did you mean {close}?)")
            elif name.startswith(prefixes):
                problems.append(f"{name}: no such setting (see: mlx-tools config show)")
            elif name.startswith("MLX_TOOLS_"):
                warnings.append(f"{name}: no such setting, ignored (see: mlx-tools config show)")
    return Layer("environment", "environment", values, names, tuple(problems), tuple(warnings))


def _read_options(options: Mapping[str, str | bool | Sequence[str]]) -> Layer:
    """Return the settings of the command line, from typed texts and switches by key."""
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    problems: list[str] = []
    is_addition = False
    for key, value in options.items():
        row = table()[key]
        flag = row.setting.flag or key
        try:
            if key == "policy.allow" and re.match(r"\s*[+-]", str(value)):
                values[key], values["policy.deny"] = _split_changes(str(value))
                is_addition, names["policy.deny"] = True, flag
            else:
                values[key] = _as_option(row, value)
            names[key] = flag
        except ConfigError as error:
            problems.append(f"{flag}: {error}")
        except ValueError:
            problems.append(f"{flag}: {not_allowed(row, repr(value), row.setting.scale)}")
    return Layer("option", "command line", values, names, tuple(problems), adds=is_addition)


def _as_option(row: SettingRow, value: str | bool | Sequence[str]) -> Any:
    """Return an option's value.

    Raises:
        ValueError: as `SettingRow.check`.
        ConfigError: a file that should hold a secret does not.
    """
    if not isinstance(value, str):
        return row.check(value if isinstance(value, bool) else list(value))
    if not value.strip() and not row.may_be_empty:
        raise ValueError  # probably from a shell variable that is not set
    return row.read(_read_secret(value) if row.setting.secret else value, scale=row.setting.scale)


def _read_secret(file: str) -> str:
    """Return the secret in a file.

    A secret cannot be given on a command line, where other users could see it.
    """
    try:
        text = read_regular(expand_user(file), MAX_FILE_BYTES).decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: {problem}", hint="a file that holds the key") from None
    if not _KEY.fullmatch(text):
        raise ConfigError(f"{file} holds no key", hint="write one line without spaces into it")
    return text


def _split_changes(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tools that ``+a,-b`` adds, and those that it removes."""
    words = [part.strip() for part in text.split(",") if part.strip()]
    if not all(re.match(r"[+-].", word) for word in words):
        raise ConfigError(f"{text!r} is not allowed (allowed: names alone, or + or - before each)")
    added, removed = (tuple(word[1:] for word in words if word[0] == sign) for sign in "+-")
    for names in (added, removed):
        table()["policy.deny"].check(list(names))
    return added, removed
