"""The programs that may run and their arguments, as ``config/commands.toml`` has them."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mlx_tools.errors import ConfigError
from mlx_tools.paths import read_data

FILE: Final = "config/commands.toml"
PATH: Final = "path"
"""The kind of an option's value that is a path below a root."""

Form = Literal["options", "expression", "subcommands", "any"]
Operands = Literal["paths", "revisions", "text", "none"]

_LISTS: Final = ("flags", "instead", "anywhere", "before", "insert")


@dataclass(frozen=True, slots=True)
class Rule:
    """What one program, or one of its subcommands, may be given.

    ``values`` and ``optional`` map options to the kind of their value; ``least`` and ``most`` count
    the operands after the ``first`` one. The form ``any`` takes any arguments: it is that of the
    programs which a user added. The rest is told at the head of the file.
    """

    name: str
    about: str = ""
    form: Form = "options"
    flags: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    digits: bool = False
    first: Literal["", "text"] = ""
    instead: tuple[str, ...] = ()
    operands: Operands = "paths"
    least: int = 0
    most: int | None = None
    anywhere: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    insert: tuple[str, ...] = ()
    repository: bool = False
    excludes: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    subcommands: Mapping[str, Rule] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether it may write below a root that was named ``:rw``. What has rules only reads."""
        return self.form == "any"


@dataclass(frozen=True, slots=True)
class Rules:
    """All programs by name, and what each kind of value looks like, whole."""

    programs: Mapping[str, Rule]
    kinds: Mapping[str, re.Pattern[str]]

    def with_programs(self, names: tuple[str, ...]) -> Rules:
        """These rules and further programs with any arguments; one that has rules keeps them."""
        added = {name: Rule(name, form="any") for name in names if name not in self.programs}
        return Rules({**self.programs, **added}, self.kinds)


@functools.cache
def rules() -> Rules:
    """The rules that come with the package."""
    return parse(read_data(FILE))


def parse(text: str) -> Rules:
    """Reads rules. Raises ConfigError for a key that is none, and a kind that is not defined."""
    document = tomllib.loads(text)
    kinds = {name: re.compile(pattern) for name, pattern in document["kinds"].items()}
    programs = {name: _rule(name, given) for name, given in document["programs"].items()}
    for rule in programs.values():
        for one in (rule, *rule.subcommands.values()):
            used = {*one.values.values(), *one.optional.values()} - {PATH, *kinds}
            if used:
                raise ConfigError(f"{FILE}: {one.name}: no kind {', '.join(sorted(used))}")
    return Rules(programs, kinds)


def _rule(name: str, given: Mapping[str, Any]) -> Rule:
    values = dict(given)
    for key in _LISTS:
        if key in values:
            values[key] = tuple(values[key].split())
    subcommands = values.pop("subcommands", {})
    below = {word: _rule(f"{name} {word}", inner) for word, inner in subcommands.items()}
    try:
        return Rule(name, **values, subcommands=below)
    except TypeError as error:
        raise ConfigError(f"{FILE}: {name}: {error}") from None
