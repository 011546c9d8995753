"""The programs that may run, as ``config/commands.toml`` has them, and the arguments of a call held
to a program's rule. What is there is not looked at.

Whatever a rule does not name is refused. What comes out is in an order that cannot be read in
another way: options first, then ``--``, then operands.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from mlx_tools.paths import open_regular, read_data
from mlx_tools.store import (
    FOLDERS,
    PathAbsent,
    PathRefused,
    Root,
    WrongFileKind,
    folded,
    private_part,
)
from mlx_tools.toolbox.program_files import Make, ProgramFile, find_program

PATH: Final = "path"
"""The kind of an option's value that is a path below a root."""

Form = Literal["options", "expression", "subcommands", "any"]
Operands = Literal["paths", "revisions", "text", "none"]
Kind = Literal["verbatim", "path", "pattern", "revision", "free"]

_LISTS: Final = ("flags", "instead", "anywhere", "before", "insert")


class Rule(Struct, frozen=True):
    """The arguments that one program, or one of its subcommands, may be given.

    ``values`` and ``optional`` map options to the kind of their value; ``least`` and ``most`` count
    the operands after the ``first`` one. The form ``any`` takes any arguments: it is that of the
    programs which a user added. The rest is told at the head of the file.
    """

    name: str
    about: str = ""
    form: Form = "options"
    flags: Sequence[str] = ()
    values: Mapping[str, str] = msgspec.field(default_factory=dict)
    optional: Mapping[str, str] = msgspec.field(default_factory=dict)
    digits: bool = False
    first: Literal["", "text"] = ""
    instead: Sequence[str] = ()
    operands: Operands = "paths"
    least: int = 0
    most: int | None = None
    anywhere: Sequence[str] = ()
    before: Sequence[str] = ()
    insert: Sequence[str] = ()
    repository: bool = False
    excludes: bool = False
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    subcommands: Mapping[str, Rule] = msgspec.field(default_factory=dict)


@functools.cache
def _document() -> dict[str, Any]:
    return tomllib.loads(read_data("config/commands.toml"))


@functools.cache
def rules(make: Make = "gnu") -> Mapping[str, Rule]:
    """All programs that have rules, by name, with the options that those of this make take."""
    document = _document()
    given = {**document["programs"], **(document["bsd"] if make == "bsd" else {})}
    return {name: _rule(name, given[name]) for name in given}


@functools.cache
def kinds() -> Mapping[str, re.Pattern[str]]:
    """What each kind of value looks like, whole."""
    return {name: re.compile(pattern) for name, pattern in _document()["kinds"].items()}


def _rule(name: str, entries: Mapping[str, Any]) -> Rule:
    values = {key: value.split() if key in _LISTS else value for key, value in entries.items()}
    subcommands = values.pop("subcommands", {})
    below = {word: _rule(f"{name} {word}", inner) for word, inner in subcommands.items()}
    return Rule(name, **values, subcommands=below)


# --- the arguments of a call --------------------------------------------------------------------

MAX_ARGUMENTS: Final = 256
MAX_BYTES: Final = 32_768

_DIGITS: Final = re.compile("-[0-9]{1,9}")


class Word(Struct, frozen=True):
    """One argument. ``kind`` says what is still to be done with it: nothing with what is
    ``verbatim``; a ``path`` is looked for below the roots, and a ``pattern`` expanded there first;
    a ``revision`` is git's, or a path; what is ``free`` is expanded where that gives anything, and
    may be anything. ``option`` stands before a path that is its value."""

    text: str
    kind: Kind = "verbatim"
    option: str = ""


def check(rule: Rule, arguments: Sequence[str]) -> tuple[Word, ...]:
    """The arguments to run the program with, as words. Raises Refused with the reason."""
    _check_size(arguments)
    match rule.form:
        case "any":
            words = [Word(text, "verbatim" if text[:1] == "-" else "free") for text in arguments]
        case "expression":
            words = _RuleReader(rule).expression(arguments)
        case "subcommands":
            words = _subcommand(rule, arguments)
        case _:
            words = _RuleReader(rule).options(arguments)
    return (*map(Word, rule.before), *words)


def _check_size(arguments: Sequence[str]) -> None:
    if len(arguments) > MAX_ARGUMENTS:
        raise PathRefused(f"there are more than {MAX_ARGUMENTS} arguments")
    text = "".join(arguments)
    if "\0" in text:
        raise PathRefused("an argument holds a NUL character")
    try:
        size = len(text.encode()) + len(arguments)
    except UnicodeEncodeError:
        raise PathRefused("an argument holds half a character (a lone surrogate)") from None
    if size > MAX_BYTES:
        raise PathRefused(f"the arguments are longer than {MAX_BYTES} bytes")


def _subcommand(rule: Rule, arguments: Sequence[str]) -> list[Word]:
    known = ", ".join(rule.subcommands)
    if not arguments:
        raise PathRefused(f"{rule.name}: the first argument is one of {known}")
    chosen = rule.subcommands.get(arguments[0])
    if chosen is None:
        raise PathRefused(
            f"{rule.name} {_quoted(arguments[0])} is not allowed here; there are {known}"
        )
    words = _RuleReader(chosen).options(arguments[1:])
    return [Word(arguments[0]), *map(Word, chosen.insert), *words]


class _RuleReader:
    """Reads the arguments of one rule from left to right."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._kinds = {**rule.optional, **rule.values}
        self._seen_options: set[str] = set()

    def options(self, arguments: Sequence[str]) -> list[Word]:
        """The usual form: options, which start with a dash, and operands, in any order."""
        before: list[str] = []
        after: list[str] = []
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
                words += self._option(argument, rest)
            else:
                paths.append(Word(argument, "pattern"))
        return [*(paths or [Word(".")]), *words]

    def _option(self, argument: str, remaining: Iterator[str]) -> list[Word]:
        rule = self._rule
        if argument in rule.flags or argument in rule.optional:
            self._seen_options.add(argument)
            return [Word(argument)]
        if kind := rule.values.get(argument):
            value = self._next(argument, remaining)
            self._hold(argument, value)
            return [Word(argument), Word(value, "path" if kind == PATH else "verbatim")]
        if rule.form == "expression":  # its options are whole words
            raise self._refuse_option(argument)
        if rule.digits and _DIGITS.fullmatch(argument):
            return [Word(argument)]
        if not argument.startswith("--"):
            return self._short(argument, remaining)
        name, written, value = argument.partition("=")
        if not written or name not in self._kinds:
            raise self._refuse_option(argument)
        self._hold(name, value)
        return [Word(value, "path", f"{name}=") if self._kinds[name] == PATH else Word(argument)]

    def _short(self, argument: str, remaining: Iterator[str]) -> list[Word]:
        """Short options in one word; one that takes a value takes what follows it there."""
        for position, character in enumerate(argument[1:], start=1):
            option, remainder = f"-{character}", argument[position + 1 :]
            kind = self._kinds.get(option)
            if kind == PATH:  # no rule has one; a bundle would have to be taken apart
                raise self._refuse_option(argument)
            if kind is not None and (remainder or option in self._rule.values):
                value = remainder or self._next(option, remaining)
                self._hold(option, value)
                return [Word(argument), *([] if remainder else [Word(value)])]
            if kind is None and option not in self._rule.flags:
                raise self._refuse_option(option if len(argument) > 2 else argument)
            self._seen_options.add(option)
        if argument == "-":
            raise PathRefused(f"{self._rule.name}: standard input is empty here; name a file")
        return [Word(argument)]

    def _hold(self, option: str, value: str) -> None:
        """Takes note of an option, and holds its value to its kind."""
        self._seen_options.add(option)
        kind = self._kinds[option]
        if kind != PATH and not kinds()[kind].fullmatch(value):
            raise PathRefused(f"{self._rule.name} {option}: {_quoted(value)} is not allowed here")

    def _next(self, option: str, remaining: Iterator[str]) -> str:
        if (value := next(remaining, None)) is None:
            raise PathRefused(f"{self._rule.name} {option} needs a value")
        return value

    def _operands(self, preceding_words: list[str], following_words: list[str]) -> list[Word]:
        """The operands with the ``--`` before them; git's own keeps its place."""
        rule = self._rule
        first: list[Word] = []
        if rule.first and self._seen_options.isdisjoint(rule.instead):
            source = preceding_words or following_words
            if not source:
                raise PathRefused(f"{rule.name}: the first argument is what is looked for")
            if not preceding_words and rule.operands == "revisions":
                raise PathRefused(f"{rule.name}: what is looked for stands before --, or after -e")
            first = [Word(source.pop(0))]
        self._check_count(len(preceding_words) + len(following_words))
        if rule.operands == "revisions":
            words = [*first, *(Word(text, "revision") for text in preceding_words)]
            return words + (
                [Word("--"), *(Word(t, "path") for t in following_words)] if following_words else []
            )
        kind: Kind = "verbatim" if rule.operands == "text" else "pattern"
        words = [*first, *(Word(text, kind) for text in (*preceding_words, *following_words))]
        return [Word("--"), *words] if words else []

    def _check_count(self, count: int) -> None:
        rule = self._rule
        most = 0 if rule.operands == "none" else rule.most
        what = "path" if rule.operands == "paths" else "argument"
        if most is not None and count > most:
            raise PathRefused(
                f"{rule.name} takes {most} {what}{'s' * (most != 1)} here, not {count}"
            )
        if count < rule.least and self._seen_options.isdisjoint(rule.anywhere):
            least = rule.least
            raise PathRefused(f"{rule.name} needs {least} {what}{'s' * (least != 1)}, not {count}")

    def _refuse_option(self, argument: str) -> PathRefused:
        return PathRefused(f"{self._rule.name}: the option {_quoted(argument)} is not allowed here")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")


# --- plans ----------------------------------------------------------------------------------------

# The command that a call of ``run_command`` really runs: a program that was found, with words
# that are checked and paths that are located, and what it must not see.


MAX_EXPANDED_BYTES: Final = 100_000
"""Of all arguments, after patterns were expanded."""

_MISREAD: Final = tuple("-+@(!,")
"""Beginnings that make some programs read more than a path; ``./`` goes before them."""


class Plan(Struct, frozen=True):
    """A command to run: ``argv`` with the program's absolute path first, the variables that its
    environment has besides those that every program gets, what it must not see, and the folders
    that it needs to see besides the system's."""

    rule: Rule
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    private: HiddenPaths
    folders: tuple[str, ...] = ()

    def state(self) -> str:
        """A name for the words and the program's file as they are now. Raises OSError."""
        path = Path(self.argv[0])
        found = path.stat()
        file = f"{path.resolve()} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
        identity = "\0".join([*self.argv, file])
        return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()


def plan(
    programs: Mapping[str, Rule],
    folders: Sequence[str],
    roots: Sequence[Root],
    name: str,
    words: Sequence[str],
    find: Callable[..., ProgramFile] = find_program,
    own: Sequence[str] = (),
) -> Plan:
    """The command of a call. Raises Refused where it may not run, Absent for what is not there.

    ``find`` finds a program's file, ``own`` are folders of programs that the user trusts.
    """
    rule = programs.get(name)
    if rule is None:
        known = ", ".join(programs)
        raise PathRefused(f"the program {name[:60]!r} is not allowed; there are {known}")
    file, absent = None, None
    try:
        writable = [root.path for root in roots if root.writable]
        file = find(name, folders, own, writable)
    except PathAbsent as error:  # what is wrong with the arguments is told first
        absent = error
    if file is not None and file.make == "bsd" and rule.form != "any":
        rule = rules("bsd").get(name, rule)
    checked = check(rule, words)
    if file is None:
        raise absent or PathAbsent(name)
    environment = dict(rule.environment)
    if rule.repository:
        environment |= _repository(roots[0])
    arguments = [text for word in checked for text in _located(roots, word)]
    private = hidden(roots)
    if rule.subcommands and rule.subcommands[words[0]].excludes:
        # Git leaves out what it cannot see: it would say that such a file was changed, and show
        # what it held when it was committed.
        above = f"{roots[0].path}/"
        below = (path.removeprefix(above) for path in private.files if path.startswith(above))
        arguments += [
            f":(top,exclude,literal){path}" for path in below if not path.startswith(".git/")
        ]
    if sum(len(os.fsencode(argument)) + 1 for argument in arguments) > MAX_EXPANDED_BYTES:
        raise PathRefused(
            f"the arguments are longer than {MAX_EXPANDED_BYTES} bytes with the files they match"
        )
    return Plan(rule, (file.path, *arguments), environment, private, file.folders)


def _repository(root: Root) -> dict[str, str]:
    """The variables that fix which repository is meant: the folder ``.git`` in the root.

    Nothing is looked for, and nothing in the folder says that it is elsewhere: there, a
    configuration would be read that is not hidden. Raises PathAbsent where there is no such folder.
    """
    folder = root.path / ".git"
    if folder.is_symlink() or not folder.is_dir():
        raise PathAbsent(
            "there is no repository here: the first root has no folder .git of its own"
        )
    if os.path.lexists(folder / "commondir"):
        raise PathAbsent("the repository here is a part of one that lies elsewhere (a worktree)")
    path = str(folder)
    return {"GIT_DIR": path, "GIT_COMMON_DIR": path, "GIT_WORK_TREE": str(root.path)}


def _located(roots: Sequence[Root], word: Word) -> list[str]:
    """The arguments that a word becomes. Raises PathRefused, PathAbsent."""
    pattern = _MAGIC.search(word.text) is not None
    match word.kind:
        case "path":
            return [word.option + _paths(roots, word.text)[0]]
        case "pattern":
            return _paths(roots, word.text, pattern=pattern)
        case "revision":
            return [_revision(roots, word.text)]
        case "free" if pattern:
            with contextlib.suppress(PathRefused, PathAbsent):  # some text, such as a program's
                return _paths(roots, word.text, pattern=True)
    return [word.text]


def _paths(roots: Sequence[Root], text: str, *, pattern: bool = False) -> list[str]:
    """A path below a root as the program gets it: in the first root that has it, else in the first
    where it could be. Of a ``pattern`` that is no file's name, the files that it matches in the
    first root where it matches any. Raises PathRefused, PathAbsent."""
    if not text:
        raise PathRefused("a path is empty")
    places = [(root, parts) for root in roots if (parts := root.parts(text)) is not None]
    if not places:
        raise PathRefused(f"{text[:100]!r} lies outside the folders that may be seen")
    for root, parts in places:
        if os.path.lexists(root.path.joinpath(*parts)):
            return [_argument(roots, root, parts)]
    if not pattern:
        return [_argument(roots, *places[0])]
    for root, parts in places:
        if found := expand(root, parts):
            return [_argument(roots, root, path) for path in found]
    raise PathAbsent(f"no file matches {text[:100]!r}")


def _argument(roots: Sequence[Root], root: Root, parts: Sequence[str]) -> str:
    """Relative below the first root, where the program runs; absolute elsewhere."""
    if root is not roots[0]:
        return str(root.path.joinpath(*parts))
    path = "/".join(parts) or "."
    return f"./{path}" if path.startswith(_MISREAD) else path


def _revision(roots: Sequence[Root], text: str) -> str:
    """A commit, a range, ``COMMIT:PATH`` or a path; git tells them apart. Raises Refused."""
    if text.startswith("/"):
        return _paths(roots, text)[0]
    for path in (text, text.rpartition(":")[2]):
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise PathRefused("the path goes up (..); paths go down from the folder")
        private = private_part(parts, Path(roots[0].path).name)
        if private is not None:
            raise PathRefused(f"{private} is private: files of this name hold secrets")
    return text


# --- patterns: ``*.py`` expanded below a root, without a shell and never through a link ---------

MAX_MATCHES: Final = 1_000
MAX_LOOKED_AT: Final = 100_000
"""Entries of folders that one pattern may have us look at."""
MAX_DEPTH: Final = 100

_MAGIC: Final = re.compile(r"[*?\[]")
_ANY_DEPTH: Final = "**"


def expand(root: Root, pattern: Sequence[str]) -> list[tuple[str, ...]]:
    """The paths below the root, as names, that the names of a pattern match, in order.

    ``*``, ``?`` and ``[…]`` match no name that starts with a dot unless the pattern's name does;
    ``**`` as a whole name matches any number of folders that are not hidden. Private names are not
    matched. Raises PathRefused where there are too many.
    """
    steps = [*pattern, "*"] if pattern[-1] == _ANY_DEPTH else pattern
    found: list[tuple[str, ...]] = []
    looked_at = 0
    waiting: list[tuple[tuple[str, ...], set[int]]] = [((), {0})]
    while waiting:  # folders, each with the steps that come next: of `**` there are several ways
        at, places = waiting.pop()
        for place, step in enumerate(steps):
            if place in places and step == _ANY_DEPTH:
                places.add(place + 1)
        entries = _entries(root, at)
        looked_at += len(entries)
        if looked_at > MAX_LOOKED_AT:
            raise PathRefused(f"the pattern looks at more than {MAX_LOOKED_AT} files")
        for name, is_folder in entries:
            fitting = (place for place in places if _fits(name, steps[place]))
            next_places = {place + (steps[place] != _ANY_DEPTH) for place in fitting}
            if not next_places or private_part((*at, name), root.path.name) is not None:
                continue
            if len(steps) in next_places:
                found.append((*at, name))
                next_places.remove(len(steps))
            if len(found) > MAX_MATCHES:
                raise PathRefused(f"the pattern matches more than {MAX_MATCHES} files")
            if is_folder and next_places and len(at) < MAX_DEPTH:
                waiting.append(((*at, name), next_places))
    return sorted(found)


def _fits(name: str, step: str) -> bool:
    if name.startswith(".") and not step.startswith("."):
        return False
    return name == step or fnmatchcase(name, step)


def _entries(root: Root, locations: Sequence[str]) -> list[tuple[str, bool]]:
    """The names in a folder, and which are folders; none where it is gone, or not to be seen."""
    try:
        fd = root.open_folder(locations)
    except (PathAbsent, WrongFileKind, PathRefused):
        return []
    try:
        with os.scandir(fd) as found:
            listed = itertools.islice(found, MAX_LOOKED_AT + 1)
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listed]
    except OSError:
        return []
    finally:
        os.close(fd)


# --- what is private below the roots ------------------------------------------------------------

MAX_ENTRIES: Final = 200_000
"""Files and folders below the roots: so many are looked through in about two seconds."""
MAX_HIDDEN: Final = 1_000

_STATE: Final = re.compile(
    r"^[ \t]*(repositoryformatversion|filemode|bare|ignorecase|precomposeunicode|symlinks"
    r"|objectformat|refstorage)[ \t]*=[ \t]*([A-Za-z0-9]{1,20})[ \t]*$"
)
_SECTION: Final = re.compile(r"^[ \t]*\[(core|extensions)\][ \t]*$", re.IGNORECASE)
_MAX_CONFIG_BYTES: Final = 100_000


@dataclass(slots=True)
class HiddenPaths:
    """Absolute paths: files and folders to hide, and repositories not to be written to."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    repositories: list[str] = field(default_factory=list)


def hidden(roots: Sequence[Root]) -> HiddenPaths:
    """All that is private below the roots. Raises Refused where it cannot all be looked through."""
    found = HiddenPaths()
    left = MAX_ENTRIES
    waiting = [(str(root.path), _last_private((root.path.name,))) for root in roots]
    while waiting:
        folder, above = waiting.pop()
        try:
            with os.scandir(folder) as listed:
                entries = list(itertools.islice(listed, MAX_ENTRIES + 1))
        except OSError:  # the program runs as the same user: what we cannot open, it cannot
            continue
        for entry in entries:
            left -= 1
            is_folder = entry.is_dir(follow_symlinks=False)
            if _private(entry.name, above):
                if not entry.is_symlink():  # where it leads to is hidden by its own name, or unseen
                    (found.folders if is_folder else found.files).append(entry.path)
            elif is_folder:
                if folded(entry.name) == ".git":
                    found.repositories.append(entry.path)
                waiting.append((entry.path, _last_private((above, entry.name))))
            count = len(found.files) + len(found.folders) + len(found.repositories)
            if left < 0 or count > MAX_HIDDEN:
                raise PathRefused(
                    f"below the roots are more than {MAX_ENTRIES} files, or {MAX_HIDDEN} private "
                    "ones: too many to be hidden; a smaller root would do"
                )
    return found


def repository_state(config: Path) -> bytes:
    """The lines of a configuration that git must know to read a repository, and no others.

    Everything that names a program, a file or an address is left out, whatever it is called.
    """
    try:
        with open_regular(config) as file:
            text = file.read(_MAX_CONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        return b""
    lines: list[str] = []
    within = False
    for line in text.splitlines():
        if line.lstrip().startswith("["):
            section = _SECTION.match(line)
            within = section is not None
            if section:
                lines.append(f"[{section[1].lower()}]")
        elif within and (found := _STATE.match(line.lower())):
            lines.append(f"\t{found[1]} = {found[2]}")
    return ("\n".join(lines) + "\n").encode() if lines else b""


@functools.lru_cache(maxsize=10_000)
def _last_private(names: tuple[str, ...]) -> str:
    """The last of the names that is such a folder's, else nothing."""
    fitting = [name for name in names if any(fnmatchcase(folded(name), p) for p in FOLDERS)]
    return fitting[-1] if fitting else ""


@functools.lru_cache(maxsize=100_000)
def _private(name: str, parent: str) -> bool:
    return private_part((name,), parent) is not None
