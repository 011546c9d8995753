"""All sources, one over the other: the settings that hold, and where each came from."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mlx_tools.app.config import project
from mlx_tools.app.config.layers import (
    PROJECT_FILE,
    USER_FILE,
    ConfigErrors,
    Kind,
    Layer,
    read_environment,
    read_file,
    read_options,
    read_text,
)
from mlx_tools.app.config.settings import Settings
from mlx_tools.app.config.table import table
from mlx_tools.errors import ConfigError
from mlx_tools.paths import config_dir, read_data
from mlx_tools.policy import PRESETS, Limits, Policy, restriction
from mlx_tools.store.session_store import fingerprints

DEFAULT_FILE = "config/default.toml"

_Choice = tuple[tuple[str, ...] | None, str | None]
"""Which tools are allowed: a list, or the name of a preset."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: the kind of source, and the file, variable or option."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of this run.

    ``origins`` has an entry for every setting that has a value; a list that adds up has one for
    each source that added. ``files`` are those that were read. ``choices`` say which tools are
    allowed, as (list, preset): the first by whoever spoke last, any other by a project's file,
    which narrows it. ``layers`` are the sources, lowest first. ``watched`` are the places where a
    file was read, and those where one would have been had there been one, each with what was there
    (`fingerprints`).
    """

    settings: Settings
    choices: tuple[_Choice, ...]
    values: Mapping[str, Any] = field(repr=False)
    origins: Mapping[str, tuple[Origin, ...]]
    files: tuple[str, ...]
    warnings: tuple[str, ...]
    layers: tuple[Layer, ...] = field(default=(), repr=False)
    watched: Mapping[str, str] = field(default_factory=dict)

    def named_by(self, key: str) -> str:
        """Who set a setting, for an error: ``MLX_TOOLS_DRY_RUN``, ``FILE: policy.allow``."""
        origins = self.origins[key]
        told = [origin for origin in origins if origin.kind != "default"] or origins[:1]
        return " + ".join(
            origin.name if origin.kind in ("environment", "option") else f"{origin.name}: {key}"
            for origin in told
        )

    def run_values(self) -> dict[str, Any]:
        """What of the settings a run takes, by the fields of `RunSettings`."""
        return {
            row.setting.run: functools.reduce(getattr, key.split("."), self.settings)
            for key, row in table().items()
            if row.setting.run
        }

    def policy(self) -> Policy:
        """The policy that holds."""
        return self._policy_of(self.choices)

    def _policy_of(self, choices: Sequence[_Choice]) -> Policy:
        own = self.settings.policy
        allow, preset = choices[0]
        shared = {one.name for one in fields(Policy)} & set(type(own).model_fields)
        said = {name: getattr(own, name) for name in shared - {"allow", "preset"}}
        policy = Policy(allow=allow or (), preset=preset, **said)
        for allow, preset in choices[1:]:
            # It says which tools there are; all else is said above.
            policy = policy.narrowed_by(restriction(allow or (), preset=preset))
        return policy

    def standing(self) -> Policy:
        """What files and the environment take away from any session, also from one that was begun
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

    def is_set(self, key: str) -> bool:
        """Whether anything but the defaults sets it."""
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
    environ = os.environ if environ is None else environ
    layers = [defaults()]
    user = user_file or config_dir() / USER_FILE
    places = tuple(_project_places(cwd or _working_directory(), home or Path.home()))
    # Taken before the files are read: what changes in between is found to have changed.
    watched = fingerprints((user, *places))
    if os.path.lexists(user):
        layers.append(read_file(user, "user"))
    layers += [read_file(path, "project") for path in reversed(places) if os.path.lexists(path)]
    layers.append(read_environment(environ))
    layers.append(read_options(options or {}))
    return replace(merge(layers), watched=watched)


def defaults() -> Layer:
    """The layer that `config/default.toml` makes."""
    return read_text(read_data(DEFAULT_FILE), "default", DEFAULT_FILE)


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
        problems += layer.problems
        problems += _bad_tools(layer)
        chosen = any(key in layer.values for key in _TOOL_CHOICE)
        choice = layer.values.get("policy.allow"), layer.values.get("policy.preset")
        if layer.kind == "project":
            problems += project.loosened(layer, values)
        elif chosen:
            # A list of tools replaces a preset and a preset a list: who speaks last means all.
            choices.clear()
            for key in _TOOL_CHOICE:
                values.pop(key, None)
                origins.pop(key, None)
        if chosen:
            choices.append(choice)
        _put_over(values, origins, layer)
    if problems:
        raise ConfigErrors(problems)
    return Configuration(
        settings=Settings.model_validate(_nested(values)),
        choices=tuple(choices) or ((None, None),),
        values=values,
        origins=origins,
        files=tuple(layer.source for layer in layers if layer.kind in ("user", "project")),
        warnings=tuple(warning for layer in layers for warning in layer.warnings),
        layers=tuple(layers),
    )


_TOOL_CHOICE = ("policy.allow", "policy.preset")


def _put_over(values: dict[str, Any], origins: dict[str, tuple[Origin, ...]], layer: Layer) -> None:
    for key, value in layer.values.items():
        by_name = layer.kind in ("environment", "option")
        origin = Origin(layer.kind, layer.names[key] if by_name else layer.source)
        if isinstance(value, dict) or table()[key].setting.project == "add":
            values[key] = _added(values.get(key), value)
            if value:
                origins[key] = (*origins.get(key, ()), origin)
            origins.setdefault(key, (origin,))
        else:
            values[key] = value
            origins[key] = (origin,)


def _added(before: Any, value: Any) -> Any:
    """A list with what another one adds, or a table with what another one adds or replaces."""
    if isinstance(value, dict):
        return {**(before or {}), **value}
    return (*(before or ()), *(item for item in value if item not in (before or ())))


def _bad_tools(layer: Layer) -> list[str]:
    """Faults of what a layer says of tools that its types cannot see."""
    preset = layer.values.get("policy.preset")
    names = {key: layer.names.get(key, key) for key in _TOOL_CHOICE}
    where = "" if layer.kind in ("environment", "option") else f"{layer.source}: "
    if preset is not None and preset not in PRESETS:
        close = difflib.get_close_matches(preset, PRESETS, n=1)
        guess = f"; did you mean {close[0]}?" if close else ""
        return [
            f"{where}{names['policy.preset']}: {preset!r} is not allowed "
            f"(allowed: {', '.join(PRESETS)}{guess})"
        ]
    if preset is not None and layer.values.get("policy.allow") is not None:
        return [
            f"{where}{names['policy.allow']}: excludes {names['policy.preset']} "
            "(allowed: a list of tools, or a preset)"
        ]
    return []


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = value
    return nested
