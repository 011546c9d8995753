"""The programs that may run, as ``config/commands.toml`` has them, and the arguments of a call held
to a program's rule. What is there is not looked at.

Whatever a rule does not name is refused. What comes out is in an order that cannot be read in
another way: options first, then ``--``, then operands.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mlx_tools.paths import read_data
from mlx_tools.store import Refused

PATH: Final = "path"
"""The kind of an option's value that is a path below a root."""

Form = Literal["options", "expression", "subcommands", "any"]
Operands = Literal["paths", "revisions", "text", "none"]

_LISTS: Final = ("flags", "instead", "anywhere", "before", "insert")


@dataclass(frozen=True, slots=True)
class Rule:
    """The arguments that one program, or one of its subcommands, may be given.

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
        """True if it may write below a root that was named ``:rw``. What has rules only reads."""
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
    document = tomllib.loads(read_data("config/commands.toml"))
    kinds = {name: re.compile(pattern) for name, pattern in document["kinds"].items()}
    programs = {name: _rule(name, given) for name, given in document["programs"].items()}
    return Rules(programs, kinds)


def _rule(name: str, given: Mapping[str, Any]) -> Rule:
    values = dict(given)
    for key in _LISTS:
        if key in values:
            values[key] = tuple(values[key].split())
    subcommands = values.pop("subcommands", {})
    below = {word: _rule(f"{name} {word}", inner) for word, inner in subcommands.items()}
    return Rule(name, **values, subcommands=below)


# --- the arguments of a call --------------------------------------------------------------------

MAX_ARGUMENTS: Final = 256
MAX_BYTES: Final = 32_768

_DIGITS: Final = re.compile(r"-[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Word:
    """One argument. ``kind`` says what is still to be done with it: nothing with what is
    ``verbatim``; a ``path`` is looked for below the roots, and a ``pattern`` expanded there first;
    a ``revision`` is git's, or a path; what is ``free`` is expanded where that gives anything, and
    may be anything. ``option`` stands before a path that is its value."""

    text: str
    kind: Literal["verbatim", "path", "pattern", "revision", "free"] = "verbatim"
    option: str = ""


def check(rules: Rules, rule: Rule, arguments: Sequence[str]) -> tuple[Word, ...]:
    """The arguments to run the program with, as words. Raises Refused with the reason."""
    _check_size(arguments)
    match rule.form:
        case "any":
            words = [Word(text, "verbatim" if text[:1] == "-" else "free") for text in arguments]
        case "expression":
            words = _RuleReader(rules, rule).expression(arguments)
        case "subcommands":
            words = _subcommand(rules, rule, arguments)
        case _:
            words = _RuleReader(rules, rule).options(arguments)
    return (*map(Word, rule.before), *words)


def _check_size(arguments: Sequence[str]) -> None:
    if len(arguments) > MAX_ARGUMENTS:
        raise Refused(f"there are more than {MAX_ARGUMENTS} arguments")
    for argument in arguments:
        if "\0" in argument:
            raise Refused("an argument holds a NUL character")
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise Refused("an argument holds half a character (a lone surrogate)")
    if sum(len(argument.encode()) + 1 for argument in arguments) > MAX_BYTES:
        raise Refused(f"the arguments are longer than {MAX_BYTES} bytes")


def _subcommand(rules: Rules, rule: Rule, arguments: Sequence[str]) -> list[Word]:
    known = ", ".join(rule.subcommands)
    if not arguments:
        raise Refused(f"{rule.name}: the first argument is one of {known}")
    chosen = rule.subcommands.get(arguments[0])
    if chosen is None:
        raise Refused(f"{rule.name} {_quoted(arguments[0])} is not allowed here; there are {known}")
    words = _RuleReader(rules, chosen).options(arguments[1:])
    return [Word(arguments[0]), *map(Word, chosen.insert), *words]


class _RuleReader:
    """Reads the arguments of one rule from left to right."""

    def __init__(self, rules: Rules, rule: Rule) -> None:
        self._kinds = rules.kinds
        self._rule = rule
        self._seen: set[str] = set()

    def options(self, arguments: Sequence[str]) -> list[Word]:
        """The usual form: options, which start with a dash, and operands, in any order."""
        before: list[str] = []
        after: list[str] | None = None
        options: list[Word] = []
        rest = iter(arguments)
        for argument in rest:
            if argument == "--":
                after = list(rest)
            elif argument.startswith("-"):
                options += self._option(argument, rest)
            else:
                before.append(argument)
        return [*options, *self._operands(before, after)]

    def expression(self, arguments: Sequence[str]) -> list[Word]:
        """Paths, and from the first word that is none on an expression, whose order counts."""
        rest = iter(arguments)
        paths: list[Word] = []
        words: list[Word] = []
        for argument in rest:
            if words or argument in self._rule.flags or argument.startswith("-"):
                words += self._word(argument, rest)
            else:
                paths.append(Word(argument, "pattern"))
        return [*(paths or [Word(".")]), *words]

    def _word(self, argument: str, rest: Iterator[str]) -> list[Word]:
        if argument in self._rule.flags:
            return [Word(argument)]
        if argument in self._rule.values:
            return self._with_value(argument, self._next(argument, rest))
        raise self._refused(argument)

    def _option(self, argument: str, rest: Iterator[str]) -> list[Word]:
        rule = self._rule
        if argument in rule.flags or argument in rule.optional:
            self._seen.add(argument)
            return [Word(argument)]
        if argument in rule.values:
            return self._with_value(argument, self._next(argument, rest))
        if rule.digits and _DIGITS.fullmatch(argument):
            return [Word(argument)]
        if argument.startswith("--"):
            return self._long(argument)
        return self._short(argument, rest)

    def _long(self, argument: str) -> list[Word]:
        name, written, value = argument.partition("=")
        kind = self._rule.values.get(name) or self._rule.optional.get(name)
        if not written or kind is None:
            raise self._refused(argument)
        self._hold(name, kind, value)
        return [Word(value, "path", f"{name}=")] if kind == PATH else [Word(argument)]

    def _short(self, argument: str, rest: Iterator[str]) -> list[Word]:
        """Short options in one word; one that takes a value takes what follows it there."""
        for position, character in enumerate(argument[1:], start=1):
            option, remainder = f"-{character}", argument[position + 1 :]
            kind = self._rule.values.get(option) or self._rule.optional.get(option)
            if kind is not None and (remainder or option in self._rule.values):
                value = remainder or self._next(option, rest)
                self._hold(option, kind, value)
                if kind == PATH:  # no rule has one; a bundle would have to be taken apart
                    raise self._refused(argument)
                return [Word(argument), *([] if remainder else [Word(value)])]
            if kind is None and option not in self._rule.flags:
                raise self._refused(option if len(argument) > 2 else argument)
            self._seen.add(option)
        if argument == "-":
            raise Refused(f"{self._rule.name}: standard input is empty here; name a file")
        return [Word(argument)]

    def _with_value(self, option: str, value: str) -> list[Word]:
        kind = self._rule.values[option]
        self._hold(option, kind, value)
        return [Word(option), Word(value, "path" if kind == PATH else "verbatim")]

    def _hold(self, option: str, kind: str, value: str) -> None:
        self._seen.add(option)
        if kind != PATH and not self._kinds[kind].fullmatch(value):
            raise Refused(f"{self._rule.name} {option}: {_quoted(value)} is not allowed here")

    def _next(self, option: str, rest: Iterator[str]) -> str:
        try:
            return next(rest)
        except StopIteration:
            raise Refused(f"{self._rule.name} {option} needs a value") from None

    def _operands(self, before: list[str], after: list[str] | None) -> list[Word]:
        """The operands with the ``--`` before them; git's own keeps its place."""
        rule = self._rule
        first: list[Word] = []
        if rule.first and self._seen.isdisjoint(rule.instead):
            source = before or after
            if not source:
                raise Refused(f"{rule.name}: the first argument is what is looked for")
            if not before and rule.operands == "revisions":
                raise Refused(f"{rule.name}: what is looked for stands before --, or after -e")
            first = [Word(source.pop(0))]
        count = len(before) + len(after or ())
        self._check_count(count)
        if rule.operands == "revisions":
            words = [*first, *(Word(text, "revision") for text in before)]
            return words + ([Word("--"), *(Word(t, "path") for t in after)] if after else [])
        kind: Literal["verbatim", "pattern"] = "verbatim" if rule.operands == "text" else "pattern"
        words = [*first, *(Word(text, kind) for text in (*before, *(after or ())))]
        return [Word("--"), *words] if words else []

    def _check_count(self, count: int) -> None:
        rule = self._rule
        most = 0 if rule.operands == "none" else rule.most
        what = "path" if rule.operands == "paths" else "argument"
        if most is not None and count > most:
            raise Refused(f"{rule.name} takes {most} {what}{'s' * (most != 1)} here, not {count}")
        if count < rule.least and self._seen.isdisjoint(rule.anywhere):
            least = rule.least
            raise Refused(f"{rule.name} needs {least} {what}{'s' * (least != 1)}, not {count}")

    def _refused(self, argument: str) -> Refused:
        return Refused(f"{self._rule.name}: the option {_quoted(argument)} is not allowed here")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
