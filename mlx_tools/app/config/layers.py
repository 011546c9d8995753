"""Where settings come from: files, environment, command line. Read, checked, not yet merged."""

from __future__ import annotations

import difflib
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mlx_tools.app.config.table import SettingRow, by_env, table
from mlx_tools.errors import ConfigError

Kind = Literal["default", "user", "project", "environment", "option"]

USER_FILE = "config.toml"
PROJECT_FILE = "mlx-tools.toml"
MAX_FILE_BYTES = 1_000_000

OTHER_VARIABLES = frozenset(
    (
        "MLX_TOOLS_CACHE_DIR",
        "MLX_TOOLS_CONFIG_DIR",
        "MLX_TOOLS_DATA_DIR",
        "MLX_TOOLS_STATE_DIR",
        "MLX_TOOLS_SUITES",
    )
)
"""Variables with our prefix that are no settings: where folders are, and where test suites are."""


class ConfigErrors(ConfigError):
    """One or more faults of the configuration, each on a line of its own."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Layer:
    """What one source sets. ``names`` says by what name each key was set there."""

    kind: Kind
    source: str
    values: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_file(path: Path, kind: Kind) -> Layer:
    """The settings of a TOML file. Faults are listed in the layer, not raised."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            return Layer(kind, str(path), problems=(f"{path}: not a regular file",))
        if info.st_size > MAX_FILE_BYTES:
            return Layer(kind, str(path), problems=(f"{path}: larger than {MAX_FILE_BYTES} bytes",))
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        return Layer(kind, str(path), problems=(f"{path}: {error.strerror or error}",))
    except UnicodeDecodeError as error:
        return Layer(kind, str(path), problems=(f"{path}: not UTF-8 at byte {error.start}",))
    layer = read_text(text, kind, str(path))
    if info.st_mode & 0o077 and any(table()[key].setting.secret for key in layer.values):
        warning = f"{path}: holds a key and can be read by others (chmod 600 {path})"
        return Layer(kind, str(path), layer.values, layer.names, layer.problems, (warning,))
    return layer


def read_text(text: str, kind: Kind, source: str) -> Layer:
    """The settings of a file's text."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Layer(kind, source, problems=(f"{source}: not TOML: {error}",))
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in _flatten(document):
        row = table().get(key)
        if row is None:
            problems.append(f"{source}: {_unknown_key(key, value)}")
            continue
        try:
            values[key] = row.check(value)
        except ValueError:
            problems.append(f"{source}: {key}: {_not_allowed(row, _toml(value), 1)}")
    return Layer(kind, source, values, {key: key for key in values}, tuple(problems))


def read_environment(environ: Mapping[str, str]) -> Layer:
    """The settings of the environment.

    A variable with our prefix that is no setting is a fault where it was meant for one (its name
    is close to a known one, or starts as one), and else a warning.
    """
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    problems: list[str] = []
    warnings: list[str] = []
    for name in sorted(environ):
        row = by_env().get(name)
        if row is not None:
            try:
                values[row.key] = row.read(environ[name])
                names[row.key] = name
            except ValueError:
                text = "(hidden)" if row.setting.secret else repr(environ[name])
                problems.append(f"{name}: {_not_allowed(row, text, 1)}")
        elif name.startswith(_PREFIXES) and name not in OTHER_VARIABLES:
            if close := _close_variable(name):
                problems.append(f"{name}: no such setting (did you mean {close}?)")
            elif name.startswith(_SECTION_PREFIXES):
                problems.append(f"{name}: no such setting (see: mlx-tools config show)")
            elif name.startswith("MLX_TOOLS_"):
                warnings.append(f"{name}: no such setting, ignored (see: mlx-tools config show)")
    return Layer("environment", "environment", values, names, tuple(problems), tuple(warnings))


def read_options(options: Mapping[str, str | bool | Sequence[str]]) -> Layer:
    """The settings of the command line, by key: text as it was typed, or a switch."""
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    problems: list[str] = []
    for key, value in options.items():
        row = table()[key]
        flag = row.setting.flag or key
        scale = row.setting.scale
        try:
            if isinstance(value, str):
                if not value.strip() and not row.is_a(tuple):
                    raise ValueError  # a variable of the shell that is not set, most likely
                values[key] = row.read(value, scale=scale)
            else:
                values[key] = row.check(value if isinstance(value, bool) else list(value))
            names[key] = flag
        except ValueError:
            problems.append(f"{flag}: {_not_allowed(row, repr(value), scale)}")
    return Layer("option", "command line", values, names, tuple(problems))


_PREFIXES = ("MLX_TOOLS_", "PLUGIN_MLX_TOOLS", "ROUTING_LOCAL")
_SECTION_PREFIXES = (
    "PLUGIN_MLX_TOOLS",
    *sorted({f"MLX_TOOLS_{key.split('.')[0].upper()}_" for key in table() if "." in key}),
)


def _close_variable(name: str) -> str | None:
    for row in table().values():  # a fixed name stands instead of the one a user would derive
        if name == "MLX_TOOLS_" + row.key.upper().replace(".", "_"):
            return row.env
    close = difflib.get_close_matches(name, [*by_env(), *OTHER_VARIABLES], n=1, cutoff=0.8)
    return close[0] if close else None


def _flatten(document: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted keys with their values; a table stays a value where it is no section of ours."""
    sections = {key.rpartition(".")[0] for key in table()}
    for name, value in document.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key in sections:
            yield from _flatten(value, f"{key}.")
        else:
            yield key, value


def _unknown_key(key: str, value: Any) -> str:
    sections = sorted({k.rpartition(".")[0] for k in table()} - {""})
    if key in sections:
        return f"{key}: a section, written [{key}]"
    names = [*table(), *sections]
    tail = key.rpartition(".")[2]
    close = [k for k in table() if k.rpartition(".")[2] == tail][:1]  # the wrong section
    close = close or difflib.get_close_matches(key, names, n=1, cutoff=0.7)
    section = key.partition(".")[0]
    known = [k for k in table() if k.startswith(f"{section}.")] or sections
    hint = f"did you mean {close[0]}?" if close else f"allowed here: {', '.join(known)}"
    what = "section" if isinstance(value, Mapping) else "setting"
    return f"{key}: no such {what} ({hint})"


def _not_allowed(row: SettingRow, shown: str, scale: int) -> str:
    close = difflib.get_close_matches(shown.strip("'\""), row.choices, n=1, cutoff=0.6)
    guess = f"; did you mean {close[0]}?" if close else ""
    shown = "(hidden)" if row.setting.secret else shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{shown} is not allowed (allowed: {row.allowed(scale)}{guess})"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return (
        repr(value)
        if isinstance(value, (str, int, float, list, dict))
        else "a " + type(value).__name__
    )
