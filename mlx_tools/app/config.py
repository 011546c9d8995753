"""The settings that hold, and where each came from: defaults, the user's file, the project's files,
environment, command line, one over the other."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import functools
import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from mlx_tools.app.settings import SESSION, SettingRow, Settings, table
from mlx_tools.errors import ConfigError, UsageError
from mlx_tools.messages import replace
from mlx_tools.paths import (
    config_dir,
    expand_user,
    private_dir,
    read_data,
    read_regular,
    read_text,
    write_whole,
)
from mlx_tools.policy import (
    FUNCTIONS,
    PLUGIN,
    PRESETS,
    Limits,
    Policy,
    Rate,
    is_glob,
    names_same_tool,
    restriction,
)
from mlx_tools.store import RootName, fingerprints

if TYPE_CHECKING:
    from tomlkit.items import Item

Kind = Literal["default", "user", "project", "environment", "option"]

USER_FILE = "config.toml"
PROJECT_FILE = "mlx-tools.toml"
DEFAULT_FILE = "config/default.toml"
MAX_FILE_BYTES = 1_000_000
BYTE_ORDER_MARK = "\N{BYTE ORDER MARK}"
"""Stands before the text of a file that some editors have saved."""

OTHER_VARIABLES = frozenset(
    f"MLX_TOOLS_{name}" for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "STATE_DIR", "SUITES")
)
"""Variables with our prefix that are no settings: where folders are, and where test suites are."""

WRITING_PRESET = "workspace"
"""The preset that holds if a folder may be written to and nobody chose tools."""

RUN_COMMAND = "run_command"
"""The tool that runs programs."""

PROFILES = "profiles"
"""The table of the user's file that holds the profiles, each a table of settings."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_KEY = re.compile(r"[\x21-\x7e]{1,4000}")

_TOOL_CHOICE = ("policy.allow", "policy.preset")

_Choice = tuple[tuple[str, ...] | None, str | None]
"""Which tools are allowed: a list, or the name of a preset."""


class ConfigErrors(ConfigError):
    """One or more faults of the configuration, each on a line of its own."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class Origin(Struct, frozen=True):
    """Where a value came from: the kind of source, and the file, variable or option."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of this run.

    ``origins`` has an entry for every setting that has a value; a list that adds up has one for
    each source that added. ``files`` are those that were read. ``choices`` say which tools are
    allowed, as (list, preset): the first by whoever spoke last, any other by a project's file,
    which narrows it; ``allowed`` are those that `with_options` added to the first. ``layers`` are
    the sources, lowest first. ``watched`` are the places where a file was read, and those where one
    would have been had there been one, each with what was there (`fingerprints`). ``profiles`` are
    those of the user's file, by name.
    """

    settings: Settings
    choices: tuple[_Choice, ...]
    values: Mapping[str, Any] = field(repr=False)
    origins: Mapping[str, tuple[Origin, ...]]
    files: tuple[str, ...]
    warnings: tuple[str, ...]
    layers: tuple[Layer, ...] = field(default=(), repr=False)
    allowed: tuple[str, ...] = ()
    watched: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, Layer] = field(default_factory=dict, repr=False)

    def named_by(self, key: str) -> str:
        """Who set a setting, for an error: ``MLX_TOOLS_DRY_RUN``, ``FILE: policy.allow``."""
        origins = self.origins[key]
        told = [origin for origin in origins if origin.kind != "default"] or origins[:1]
        return " + ".join(
            origin.name if origin.kind in ("environment", "option") else f"{origin.name}: {key}"
            for origin in told
        )

    def run_values(self) -> dict[str, Any]:
        """Return what of the settings a run takes, by the fields of `RunSettings`."""
        runs = {key: row.setting.run for key, row in table().items()}
        return {name: self.values.get(key) for key, name in runs.items() if name}

    def policy(self) -> Policy:
        """The policy that holds."""
        return self._policy_of(self.choices)

    def _policy_of(self, choices: Sequence[_Choice]) -> Policy:
        own = self.settings.policy
        allow, preset = choices[0]
        shared = {one.name for one in fields(Policy)} & set(type(own).model_fields)
        said = {name: getattr(own, name) for name in shared - {"allow", "preset"}}
        rates = dict(said.pop("rate_limits"))
        session = rates.pop(SESSION, None)
        said |= {"rate_limits": rates, "session_rate_limit": session}
        policy = Policy(allow=allow or (), preset=preset, **said)
        for allow, preset in choices[1:]:
            # It says which tools there are; all else is said above.
            policy = policy.narrowed_by(restriction(allow or (), preset=preset))
        return policy

    def configured_policy(self) -> Policy:
        """The policy that files and the environment hold any session to, also one that was begun
        with other choices: nothing that is merely a default or an option of this command."""
        lasting = merge([layer for layer in self.layers if layer.kind != "option"])
        chosen = any(lasting.is_set(key) for key in _TOOL_CHOICE)
        first: _Choice = lasting.choices[0] if chosen else (("*",), None)
        return lasting._policy_of((first, *lasting.choices[1:]))

    def limits(self) -> Limits:
        """The limits that hold, in their own units."""
        values = self.settings.limits.model_dump().items()
        seconds = {key[:-3]: value / 1000 for key, value in values if key.endswith("_ms")}
        return Limits(**seconds, **{k: value for k, value in values if not k.endswith("_ms")})

    def with_options(
        self, options: Mapping[str, str | bool | Sequence[str]], allow: Sequence[str] = ()
    ) -> Configuration:
        """The same with more options, as `load` takes them, and with the tools ``allow`` besides
        those that may be called anyway; no file is read again. As with any option, what a file
        denies, or a project's does not allow, stays forbidden. Raises `ConfigErrors`."""
        own, more = self.layers[-1], _read_options(options)
        before = {k: v for k, v in own.values.items() if not (more.chooses and k in _TOOL_CHOICE)}
        values, names = {**before, **more.values}, {**own.names, **more.names}
        adds = own.adds and not more.chooses
        layer = replace(more, values=values, names=names, adds=adds)
        found = merge([*self.layers[:-1], layer])
        (tools, preset), *narrowing = found.choices
        allowed = (*self.allowed, *allow)
        if allowed:
            found = replace(found, choices=(((*(tools or ()), *allowed), preset), *narrowing))
        return replace(found, allowed=allowed, watched=self.watched, profiles=self.profiles)

    def with_profile(self, name: str) -> Configuration:
        """The same with a profile of the user's file over the rest of that; no file is read again.
        Raises `UsageError` where there is none."""
        if name not in self.profiles:
            there = ", ".join(self.profiles) or "none"
            raise UsageError(f"there is no profile {name[:100]!r}", hint=f"profiles: {there}")
        own = sum(layer.kind in ("default", "user") for layer in self.layers)
        layers = [
            *self.layers[:own],
            _fill_environment(self.profiles[name], os.environ),
            *self.layers[own:],
        ]
        return replace(merge(layers), watched=self.watched, profiles=self.profiles)

    def is_set(self, key: str) -> bool:
        """Return whether anything but the defaults sets it."""
        return any(origin.kind != "default" for origin in self.origins.get(key, ()))


def load(
    *,
    options: Mapping[str, str | bool | Sequence[str]] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user_file: Path | None = None,
    home: Path | None = None,
) -> Configuration:
    """The configuration that holds here, for a run with these command-line options.

    ``options`` are by setting's key, as typed. The rest is for callers that are not in the place
    of the user: environment, working directory, the user's file and home folder. Raises
    `ConfigErrors` with every fault of every source.
    """
    user = user_file or user_path()
    places = tuple(_project_places(cwd or _working_directory(), home or Path.home()))
    # Taken before the files are read: what changes in between is found to have changed.
    watched = fingerprints((user, *places))
    own = [read_file(user, "user")] if os.path.lexists(user) else []
    project = [read_file(path, "project") for path in reversed(places) if os.path.lexists(path)]
    environ = os.environ if environ is None else environ
    over = [_read_environment(environ), _read_options(options or {})]
    # Below the project's files, which tighten a profile as they do all else of the user's file.
    profiles = own[0].profiles if own else {}
    chosen = _profile(profiles, [*own, *over], user)
    own, chosen, over = (
        [_fill_environment(one, environ) for one in some] for some in (own, chosen, over)
    )
    found = merge([defaults(), *own, *chosen, *project, *over])
    return replace(found, watched=watched, profiles=profiles)


def _fill_environment(layer: Layer, environ: Mapping[str, str]) -> Layer:
    """The layer, with a key that is written as ``${NAME}`` taken from the environment."""
    values, problems = dict(layer.values), list(layer.problems)
    for key, value in layer.values.items():
        if table()[key].setting.secret and (said := _VARIABLE.fullmatch(str(value))):
            values[key] = environ.get(said[1], "").strip()
            if not _KEY.fullmatch(values[key]):
                problems.append(f"{layer.source}: {key}: the variable {said[1]} holds no key")
    return replace(layer, values=values, problems=tuple(problems))


def _profile(profiles: Mapping[str, Layer], layers: Sequence[Layer], user: Path) -> list[Layer]:
    """The layer of the profile that the last of these chooses, a fault where there is none."""
    chosen = next((one for one in reversed(layers) if "profile" in one.values), None)
    name = chosen.values["profile"] if chosen is not None else None
    if chosen is None or name is None or any(one.problems for one in layers):
        return []
    said = chosen.names["profile"]
    if name not in profiles:
        there = f"there are {', '.join(profiles)}" if profiles else f"{user} defines none"
        where = f"{chosen.source}: {said}" if chosen.kind == "user" else said
        return [Layer("user", str(user), problems=(f"{where}: no profile {name!r} ({there})",))]
    found = profiles[name]
    if chosen.kind != "option":
        return [found]
    # What was only asked for once holds no session that somebody goes on with.
    return [replace(found, kind="option", names=dict.fromkeys(found.values, f"{said} {name}"))]


def user_path() -> Path:
    """Where the user's file is, or would be."""
    return config_dir() / USER_FILE


def as_typed(key: str, text: str) -> Any:
    """The value of a setting as a person types it, in its own unit; None for none.

    Raises `ConfigErrors` where there is no such setting, or it cannot be this.
    """
    row = table().get(key)
    if row is None:
        raise ConfigErrors([_unknown_key(key, text)])
    try:
        return row.read(text)
    except ValueError:
        raise ConfigErrors([f"{key}: {_not_allowed(row, repr(text))}"]) from None


def check_users(text: str) -> None:
    """Raise `ConfigErrors` for what could not stand in the user's file."""
    own = _read_toml(text, "user", str(user_path()))
    merge([defaults(), own, *_profile(own.profiles, [own], user_path())])


def _project_places(cwd: Path, home: Path) -> Iterator[Path]:
    """Where a project's file may be: in the working directory and above it, up to the home folder,
    the nearest place first."""
    for folder in (cwd, *cwd.parents):
        yield folder / PROJECT_FILE
        if folder in (home, home.resolve()):
            break


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError:
        raise ConfigError(
            "the working directory is gone", hint="change to a folder that exists"
        ) from None


def merge(layers: Sequence[Layer]) -> Configuration:
    """The layers one over the other, lowest first. Raises `ConfigErrors`."""
    values: dict[str, Any] = {}
    origins: dict[str, tuple[Origin, ...]] = {}
    choices: list[_Choice] = []
    problems: list[str] = []
    for layer in layers:
        problems += [*layer.problems, *_bad_choice(layer)]
        if layer.kind == "project":
            problems += _find_loosened(layer, values)
        if layer.adds and "policy.preset" not in layer.values:
            choices[:] = [_with_more(choice, layer) for choice in choices]
            every, _ = _with_more((values.get("policy.allow"), None), layer)
            layer = replace(layer, values={**layer.values, "policy.allow": every})
        elif layer.chooses:
            if layer.kind != "project":
                # A list of tools replaces a preset and a preset a list: who speaks last means all.
                choices.clear()
                for key in _TOOL_CHOICE:
                    values.pop(key, None)
                    origins.pop(key, None)
            choices.append((layer.values.get("policy.allow"), layer.values.get("policy.preset")))
        _put_over(values, origins, layer)
    if problems:
        raise ConfigErrors(problems)
    if choices:
        choices[0] = _chosen_by_tools(choices[0], values, origins)
    nested: dict[str, Any] = {}
    for key in table():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = values.get(key)
    return Configuration(
        settings=Settings.model_validate(nested),
        choices=tuple(choices) or ((None, None),),
        values=values,
        origins=origins,
        files=tuple(layer.source for layer in layers if layer.kind in ("user", "project")),
        warnings=tuple(warning for layer in layers for warning in layer.warnings),
        layers=tuple(layers),
    )


def _chosen_by_tools(
    choice: _Choice, values: dict[str, Any], origins: dict[str, tuple[Origin, ...]]
) -> _Choice:
    """The tools that are allowed, given the folders and programs that were named.

    If nobody chose tools, a folder that may be written to brings the preset for that. Programs that
    were named bring the tool that runs them. Neither can stand in a project's file, and what a
    project's file leaves out stays out.
    """
    allow, preset = choice
    by_default = all(origin.kind == "default" for origin in origins.get("policy.preset", ()))
    writable = any(_is_writable(root) for root in values.get("tools.roots") or ())
    if preset is not None and by_default and writable:
        preset = values["policy.preset"] = WRITING_PRESET
    named = ((RUN_COMMAND, "tools.commands"), (f"{PLUGIN}{FUNCTIONS}", "tools.functions"))
    brought = [tool for tool, key in named if values.get(key)]
    allow = tuple(dict.fromkeys((*(allow or ()), *brought))) if brought else allow
    return allow, preset


def _is_writable(root: str) -> bool:
    with contextlib.suppress(UsageError):  # what is no root is told where roots are opened
        return RootName.parse(root).writable
    return False


def _with_more(choice: _Choice, layer: Layer) -> _Choice:
    allow, preset = choice
    return (*(allow or ()), *layer.values["policy.allow"]), preset


def _put_over(values: dict[str, Any], origins: dict[str, tuple[Origin, ...]], layer: Layer) -> None:
    for key, value in layer.values.items():
        by_name = layer.kind in ("environment", "option")
        origin = Origin(layer.kind, layer.names[key] if by_name else layer.source)
        before, all_of_it = values.get(key), (origin,)
        if isinstance(value, dict):
            values[key] = {**(before or {}), **value}
        elif table()[key].setting.project == "add":
            values[key] = (*(before or ()), *(item for item in value if item not in (before or ())))
        else:
            values[key], origins[key] = value, all_of_it
            continue
        origins[key] = (*origins.get(key, ()), origin) if value else origins.get(key, all_of_it)


def _bad_choice(layer: Layer) -> list[str]:
    """Faults of what a layer says of tools that its types cannot see."""
    preset = layer.values.get("policy.preset")
    where = "" if layer.kind in ("environment", "option") else f"{layer.source}: "
    allow_name, preset_name = (layer.names.get(key, key) for key in _TOOL_CHOICE)
    if preset is not None and preset not in PRESETS:
        allowed = ", ".join(PRESETS) + _guess(preset, PRESETS)
        return [f"{where}{preset_name}: {preset!r} is not allowed (allowed: {allowed})"]
    if preset is not None and layer.values.get("policy.allow") is not None and not layer.adds:
        allowed = "a list of tools, or a preset"
        return [f"{where}{allow_name}: excludes {preset_name} (allowed: {allowed})"]
    return []


# --- the sources: read and checked, not yet merged ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one source. ``names`` says by what name each key was set there.

    ``adds``: its list of tools is added to those that may be called, and replaces nothing.
    ``profiles`` are those of the user's file, by name.
    """

    kind: Kind
    source: str
    values: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    adds: bool = False
    profiles: Mapping[str, Layer] = field(default_factory=dict, repr=False)

    @property
    def chooses(self) -> bool:
        """Return whether it says which tools may be called."""
        return any(key in self.values for key in _TOOL_CHOICE)


@functools.cache
def defaults() -> Layer:
    """The layer that `config/default.toml` makes."""
    return _read_toml(read_data(DEFAULT_FILE), "default", DEFAULT_FILE)


def read_file(path: Path, kind: Kind) -> Layer:
    """The settings of a TOML file. Faults are listed in the layer, not raised."""

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
    every = [pair for one in (layer, *layer.profiles.values()) for pair in one.values.items()]
    held = [
        table()[key].setting.secret and not _VARIABLE.fullmatch(str(value)) for key, value in every
    ]
    if info.st_mode & 0o077 and any(held):
        warning = f"{path}: holds a key and can be read by others (chmod 600 {path})"
        return replace(layer, warnings=(warning,))
    return layer


def _read_toml(text: str, kind: Kind, source: str) -> Layer:
    try:
        document = tomllib.loads(text.removeprefix(BYTE_ORDER_MARK))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Layer(kind, source, problems=(f"{source}: not TOML: {error}",))
    written = document.pop(PROFILES, {})
    layer = _of_table(document, kind, source)
    if not written:
        return layer
    if kind == "project":
        fault = f"{source}: {PROFILES}: a project's file must not define any (your own file can)"
        return replace(layer, problems=(*layer.problems, fault))
    if not isinstance(written, Mapping) or not all(isinstance(v, dict) for v in written.values()):
        fault = f"{source}: {PROFILES}: no tables of settings (write [{PROFILES}.NAME])"
        return replace(layer, problems=(*layer.problems, fault))
    profiles = {
        name: _of_table(settings, kind, f"{source}: {PROFILES}.{name}", left_out_key="profile")
        for name, settings in written.items()
    }
    faults = [fault for one in profiles.values() for fault in (*one.problems, *_bad_choice(one))]
    return replace(layer, problems=(*layer.problems, *faults), profiles=profiles)


def _of_table(
    document: Mapping[str, Any], kind: Kind, source: str, *, left_out_key: str = ""
) -> Layer:
    """The settings in a table, sections and dotted keys alike; ``left_out_key`` is none of them."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in _flattened(document):
        row = table().get(key)
        if row is None or key == left_out_key:
            problems.append(f"{source}: {_unknown_key(key, value)}")
            continue
        try:
            values[key] = row.check(value)
        except ValueError:
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            problems.append(f"{source}: {key}: {_not_allowed(row, shown)}")
    return Layer(kind, source, values, {key: key for key in values}, tuple(problems))


def _flattened(document: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted keys with their values; a table stays a value where it is no section of ours."""
    for name, value in document.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key in _sections():
            yield from _flattened(value, f"{key}.")
        else:
            yield key, value


@functools.cache
def _sections() -> tuple[str, ...]:
    return tuple(sorted({key.rpartition(".")[0] for key in table()} - {""}))


@functools.cache
def _by_env() -> dict[str, SettingRow]:
    return {row.env: row for row in table().values()}


def _read_environment(environ: Mapping[str, str]) -> Layer:
    """The settings of the environment.

    A variable with our prefix that is no setting is a fault where it was meant for one (its name
    is close to a known one, or starts as one), and else a warning.
    """
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    problems: list[str] = []
    warnings: list[str] = []
    meant = ("PLUGIN_MLX_TOOLS", *(f"MLX_TOOLS_{section.upper()}_" for section in _sections()))
    for name in sorted(environ):
        row = _by_env().get(name)
        if row is not None:
            try:
                values[row.key] = row.read(environ[name])
                names[row.key] = name
            except ValueError:
                problems.append(f"{name}: {_not_allowed(row, repr(environ[name]))}")
        elif name.startswith(("MLX_TOOLS_", *meant, "ROUTING_LOCAL")) and (
            name not in OTHER_VARIABLES
        ):
            if close := _close_variable(name):
                problems.append(f"{name}: no such setting (did you mean {close}?)")
            elif name.startswith(meant):
                problems.append(f"{name}: no such setting (see: mlx-tools config show)")
            elif name.startswith("MLX_TOOLS_"):
                warnings.append(f"{name}: no such setting, ignored (see: mlx-tools config show)")
    return Layer("environment", "environment", values, names, tuple(problems), tuple(warnings))


def _close_variable(name: str) -> str | None:
    """The variable that a name which is none may mean: also as one would derive it from a key."""
    said = name.removeprefix("MLX_TOOLS_").lower().replace("_", ".", 1)
    if found := next((key for key in (said, *_alike(said)) if key in table()), None):
        return table()[found].env
    close = difflib.get_close_matches(name, [*_by_env(), *OTHER_VARIABLES], n=1, cutoff=0.8)
    return close[0] if close else None


def _read_options(options: Mapping[str, str | bool | Sequence[str]]) -> Layer:
    """The settings of the command line, by key: text as it was typed, or a switch."""
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    problems: list[str] = []
    adds = False
    for key, value in options.items():
        row = table()[key]
        flag = row.setting.flag or key
        try:
            if key == "policy.allow" and re.match(r"\s*[+-]", str(value)):
                values[key], values["policy.deny"] = _more_and_less(str(value))
                adds, names["policy.deny"] = True, flag
            else:
                values[key] = _as_option(row, value)
            names[key] = flag
        except ConfigError as error:
            problems.append(f"{flag}: {error}")
        except ValueError:
            problems.append(f"{flag}: {_not_allowed(row, repr(value), row.setting.scale)}")
    return Layer("option", "command line", values, names, tuple(problems), adds=adds)


def _as_option(row: SettingRow, value: str | bool | Sequence[str]) -> Any:
    """An option's value. Raises ValueError as `SettingRow.check` does, `ConfigError` for a file
    that holds no secret."""
    if not isinstance(value, str):
        return row.check(value if isinstance(value, bool) else list(value))
    if not value.strip() and not row.may_be_empty:
        raise ValueError  # a variable of the shell that is not set, most likely
    return row.read(_secret_in(value) if row.setting.secret else value, scale=row.setting.scale)


def _secret_in(file: str) -> str:
    """The secret that a file holds: it stands on no command line, where others see it."""
    try:
        text = read_regular(expand_user(file), MAX_FILE_BYTES).decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: {problem}", hint="a file that holds the key") from None
    if not _KEY.fullmatch(text):
        raise ConfigError(f"{file} holds no key", hint="write one line without spaces into it")
    return text


def _more_and_less(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tools of ``+a,-b``: those that are added, and those that are taken away."""
    said = [part.strip() for part in text.split(",") if part.strip()]
    if not all(re.match(r"[+-].", one) for one in said):
        raise ConfigError(f"{text!r} is not allowed (allowed: names alone, or + or - before each)")
    more, less = (tuple(one[1:] for one in said if one[0] == sign) for sign in "+-")
    for names in (more, less):
        table()["policy.deny"].check(list(names))
    return more, less


def _bare(key: str) -> str:
    """A key as a hand may have it: units, and what parts words, are left out."""
    return key.lower().removesuffix("_ms").replace("_", "").replace("-", "")


def _alike(key: str) -> list[str]:
    """The settings and sections that a name which is none may mean, the likeliest first: in another
    section or none, named as its option is, or misspelt."""
    section, _, tail = key.rpartition(".")
    flag = f"--{tail.replace('_', '-')}"
    same = [
        known
        for known, row in table().items()
        if known.rpartition(".")[2] == tail or row.setting.flag == flag
    ]
    same.sort(key=lambda known: -difflib.SequenceMatcher(None, known, key).ratio())
    names = {_bare(known): known for known in (*table(), *_sections())}
    names |= {} if section else {_bare(known.rpartition(".")[2]): known for known in table()}
    close = difflib.get_close_matches(_bare(key), names, n=1, cutoff=0.7)
    return same + [names[one] for one in close]


def _unknown_key(key: str, value: Any) -> str:
    if key in _sections():
        return f"{key}: a section, written [{key}]"
    close, section = _alike(key), key.partition(".")[0]
    known = [k for k in table() if k.startswith(f"{section}.")] or _sections()
    hint = f"did you mean {close[0]}?" if close else f"allowed here: {', '.join(known)}"
    what = "section" if isinstance(value, Mapping) else "setting"
    return f"{key}: no such {what} ({hint})"


def _not_allowed(row: SettingRow, allowed_text: str, scale: int = 1) -> str:
    guess = _guess(allowed_text.strip("'\""), row.choices)
    allowed_text = (
        "(hidden)"
        if row.setting.secret
        else allowed_text
        if len(allowed_text) <= 80
        else allowed_text[:77] + "..."
    )
    return f"{allowed_text} is not allowed (allowed: {row.allowed(scale)}{guess})"


def _guess(text: str, words: Iterable[str]) -> str:
    close = difflib.get_close_matches(text, list(words), n=1)
    return f"; did you mean {close[0]}?" if close else ""


# --- a project's file ---------------------------------------------------------------------------
# It comes with a folder that somebody else may have written, such as a cloned repository. So it is
# held against what holds without it, and whatever would loosen that is a fault.


def _find_loosened(layer: Layer, base: Mapping[str, Any]) -> list[str]:
    """The faults of a project's file, given the values that hold without it."""
    return [
        f"{layer.source}: {key}: {fault}"
        for key, value in layer.values.items()
        if (fault := _fault(table()[key], value, base))
    ]


def _fault(row: SettingRow, value: Any, base: Mapping[str, Any]) -> str | None:
    before = base.get(row.key)
    match row.setting.project:
        case "never":
            return "a project's file must not set this (set it in your own file)"
        case "only_true" | "only_false" as rule:
            wanted = rule == "only_true"
            fine = value in (wanted, before)
            return None if fine else _loosens(str(wanted).lower())
        case "lower":
            fine = before is None or value <= before  # None follows the model
            return None if fine else _loosens(f"at most {before}")
        case "rarer":
            return _oftener(value, before)
        case "stricter":
            within = row.choices[: row.choices.index(before) + 1]
            return None if value in within else _loosens(" or ".join(within))
        case "more":
            fine = set(before or ()) <= set(value)
            return None if fine else _loosens(f"{', '.join(before or ())}, and more")
        case "allow":
            return _describe_widened(_allowed_tools({row.key: value}), _allowed_tools(base))
        case _:  # "any" gives no power, "add" only adds to what is refused
            return None


def _loosens(allowed: str) -> str:
    return f"a project's file can only tighten this (allowed: {allowed})"


def _oftener(value: Any, old_value: Any) -> str | None:
    """A rate, or one of a table of rates, that allows more calls than the one before it."""
    if isinstance(value, Mapping):
        faults = (
            (name, _oftener(value[name], (old_value or {}).get(name))) for name in sorted(value)
        )
        return next((f"{name}: {fault}" for name, fault in faults if fault), None)
    if old_value is None or Rate.parse(value).is_as_strict_as(Rate.parse(old_value)):
        return None
    return _loosens(f"no more calls than {old_value}, in a time no shorter")


def _allowed_tools(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The names and patterns that the list or, without one, the preset allows."""
    allow, preset = values.get("policy.allow"), values.get("policy.preset")
    if allow is not None:
        return tuple(allow)
    return PRESETS[preset].tools if preset is not None and preset in PRESETS else ()


def _describe_widened(new_names: Collection[str], old_names: Collection[str]) -> str | None:
    more = [name for name in new_names if not _is_covered(name, old_names)]
    if not more:
        return None
    return (
        f"a project's file can only tighten this: {', '.join(more)} is not allowed without it "
        f"(allowed: {', '.join(old_names) or 'no tool'})"
    )


def _is_covered(name: str, old_names: Collection[str]) -> bool:
    """Return whether what ``name`` means may be allowed already.

    Only a list of exact names says for sure that it is not. Whatever is said here, the policy of a
    run holds what a project's file allows to what holds without it (`Configuration.policy`).
    """
    if any(names_same_tool(other, name) for other in old_names) or "*" in old_names:
        return True
    if name.startswith(PLUGIN):
        return name.partition("/")[0] in old_names  # some tools of a plugin that is allowed whole
    if is_glob(name):
        return False
    return any(p.startswith(PLUGIN) or fnmatch.fnmatchcase(name, p) for p in old_names)


# --- a file of settings, edited -------------------------------------------------------------------


def with_value(text: str, key: str, value: Any) -> str:
    """The text with a setting's ``key``, dotted, set to ``value``; with None it is not set.

    Raises ConfigError where the text is not TOML, and where it says the value in a form that cannot
    be changed without changing another.
    """
    if text.startswith(BYTE_ORDER_MARK):
        return BYTE_ORDER_MARK + with_value(text[1:], key, value)
    import tomlkit  # which takes long to load
    from tomlkit.exceptions import TOMLKitError

    try:
        wanted = dict(_flattened(tomllib.loads(text)))
        wanted.pop(key, None)
        if value is not None:
            wanted[key] = list(value) if isinstance(value, tuple) else value
        document: Any = tomlkit.parse(text)
        *sections, name = key.split(".")
        inner = document
        for section in sections:
            inner = inner.get(section, {}) if value is None else inner.setdefault(section, {})
        if value is None:
            inner.pop(name, None)
        else:
            inner[name] = _item(value)
        edited = tomlkit.dumps(document)
        if dict(_flattened(tomllib.loads(edited))) == wanted:
            return edited
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}", hint="mlx-tools config edit") from None
    except (TOMLKitError, AttributeError, TypeError, RecursionError):
        pass
    raise ConfigError(
        f"the file says {key} in a form that only an editor can change",
        hint="mlx-tools config edit",
    )


def write_users(text: str) -> None:
    """Write the text of the user's file, which may be a link to another.

    Raises:
        ConfigErrors: it cannot stand there.
        UsageError: the file cannot be written.
    """
    check_users(text)
    file = user_path()
    try:
        private_dir(file.parent)
        file = file.resolve()
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o600
        write_whole(file, text.encode(), mode)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None


def users_text() -> str:
    """Return the text of the user's file, empty if there is none."""
    file = user_path()
    return read_text(file) if os.path.lexists(file) else ""


def as_toml(value: Any) -> str:
    """A setting's value as TOML."""
    return _item(value).as_string()


def _item(value: Any) -> Item:
    import tomlkit

    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update(value)
        return table
    item: Item = tomlkit.item(value)
    return item
