"""The programs that may run, and the check of their arguments by rules.

The rules are in ``config/commands.toml``, which describes its own format. Arguments that a rule
does not name are refused. The checked arguments always have the same order, which a program cannot
misread: options first, then ``--``, then operands.
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
from mlx_tools.plugins.command.program_files import Make, ProgramFile, find_program
from mlx_tools.store import (
    FOLDERS,
    PathAbsent,
    PathRefused,
    Root,
    WrongFileKind,
    find_private_part,
    fold_name,
)

PATH: Final = "path"
"""The kind of an option's value that is a path below a root."""

Form = Literal["options", "expression", "subcommands", "any"]
Operands = Literal["paths", "revisions", "text", "none"]
Kind = Literal["verbatim", "path", "pattern", "revision", "free"]

_LISTS: Final = ("flags", "first_substitutes", "anywhere", "leading_words", "insert")


class Rule(Struct, frozen=True):
    """The arguments that one program, or one of its subcommands, may have."""

    name: str
    """The program, or the program and the subcommand, as messages name it."""
    about: str = ""
    """A few words on its use."""
    form: Form = "options"
    """The way to write arguments. ``any`` allows any: it is for programs that a user added."""
    flags: Sequence[str] = ()
    """Options without a value."""
    values: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Options with a value, each with the kind of the value."""
    optional: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Options with a value that may be left out, each with the kind of the value."""
    digits: bool = False
    """True if ``-5`` is an option."""
    first: Literal["", "text"] = ""
    """The kind of the first operand, if it is no path."""
    first_substitutes: Sequence[str] = ()
    """Options that replace the first operand."""
    operands: Operands = "paths"
    """The kind of the operands after the first one."""
    min_operands: int = 0
    """The minimum of operands, without the first one."""
    max_operands: int | None = None
    """The maximum of operands, without the first one. None for no limit."""
    anywhere: Sequence[str] = ()
    """Options with which no path is needed."""
    leading_words: Sequence[str] = ()
    """Arguments that always come first."""
    insert: Sequence[str] = ()
    """Arguments that always follow the subcommand."""
    repository: bool = False
    """True if it needs the repository of the first root."""
    excludes: bool = False
    """True if git is told to leave out private files, which it cannot see."""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Environment variables besides those that every program gets."""
    subcommands: Mapping[str, Rule] = msgspec.field(default_factory=dict)
    """The rules of the subcommands, by name."""


@functools.cache
def _load_document() -> dict[str, Any]:
    return tomllib.loads(read_data("config/commands.toml"))


@functools.cache
def load_rules(make: Make = "gnu") -> Mapping[str, Rule]:
    """Return the rules of all programs, by name, with the options of this make."""
    document = _load_document()
    entries = {**document["programs"], **(document["bsd"] if make == "bsd" else {})}
    return {name: _make_rule(name, entries[name]) for name in entries}


@functools.cache
def load_kinds() -> Mapping[str, re.Pattern[str]]:
    """Return the pattern of each kind of value."""
    return {name: re.compile(pattern) for name, pattern in _load_document()["kinds"].items()}


def _make_rule(name: str, entries: Mapping[str, Any]) -> Rule:
    values = {key: value.split() if key in _LISTS else value for key, value in entries.items()}
    subcommands = values.pop("subcommands", {})
    below = {word: _make_rule(f"{name} {word}", inner) for word, inner in subcommands.items()}
    return Rule(name, **values, subcommands=below)


# --- the arguments of a call --------------------------------------------------------------------

MAX_ARGUMENTS: Final = 256
"""Arguments of one call. A pattern such as ``*.py`` counts as one."""
MAX_BYTES: Final = 32_768
"""Bytes of all arguments of one call, before patterns are expanded."""

_DIGITS: Final = re.compile("-[0-9]{1,9}")


class Word(Struct, frozen=True):
    """One argument."""

    text: str
    kind: Kind = "verbatim"
    """The check that it still needs.

    A ``verbatim`` word needs none. A ``path`` is resolved below the roots; a ``pattern`` is
    expanded there first. A ``revision`` is one of git, or a path. A ``free`` word is expanded if it
    matches any file, and stays unchanged otherwise.
    """
    option: str = ""
    """The option, if the word is a path that is an option's value."""


def check_arguments(rule: Rule, arguments: Sequence[str]) -> tuple[Word, ...]:
    """Return the arguments to run the program with.

    Raises:
        PathRefused: the rule does not allow them; the message says why.
    """
    _check_size(arguments)
    match rule.form:
        case "any":
            words = [Word(text, "verbatim" if text[:1] == "-" else "free") for text in arguments]
        case "expression":
            words = _RuleReader(rule).read_expression(arguments)
        case "subcommands":
            words = _read_subcommand(rule, arguments)
        case _:
            words = _RuleReader(rule).read_options(arguments)
    return (*map(Word, rule.leading_words), *words)


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


def _read_subcommand(rule: Rule, arguments: Sequence[str]) -> list[Word]:
    allowed_names = ", ".join(rule.subcommands)
    if not arguments:
        raise PathRefused(f"{rule.name}: the first argument is one of {allowed_names}")
    subcommand = rule.subcommands.get(arguments[0])
    if subcommand is None:
        raise PathRefused(
            f"{rule.name} {_quote(arguments[0])} is not allowed here"
            f"{_hint_at_words(arguments[0])}; there are {allowed_names}"
        )
    words = _RuleReader(subcommand).read_options(arguments[1:])
    return [Word(arguments[0]), *map(Word, subcommand.insert), *words]


class _RuleReader:
    """Reads the arguments of one rule from left to right."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._kinds = {**rule.optional, **rule.values}
        self._seen_options: set[str] = set()

    def read_options(self, arguments: Sequence[str]) -> list[Word]:
        """Read the usual form: operands, and options that start with a dash, in any order."""
        before: list[str] = []
        after: list[str] = []
        options: list[Word] = []
        remaining = iter(arguments)
        for argument in remaining:
            if argument == "--":
                after = list(remaining)
            elif argument.startswith("-"):
                options += self._read_option(argument, remaining)
            else:
                before.append(argument)
        return [*options, *self._list_operands(before, after)]

    def read_expression(self, arguments: Sequence[str]) -> list[Word]:
        """Read paths and then an expression, whose words keep their order."""
        remaining = iter(arguments)
        paths: list[Word] = []
        words: list[Word] = []
        for argument in remaining:
            if words or argument in self._rule.flags or argument.startswith("-"):
                words += self._read_option(argument, remaining)
            else:
                paths.append(Word(argument, "pattern"))
        return [*(paths or [Word(".")]), *words]

    def _read_option(self, argument: str, remaining: Iterator[str]) -> list[Word]:
        rule = self._rule
        if argument in rule.flags or argument in rule.optional:
            self._seen_options.add(argument)
            return [Word(argument)]
        if kind := rule.values.get(argument):
            value = self._read_value(argument, remaining)
            self._check_value(argument, value)
            return [Word(argument), Word(value, "path" if kind == PATH else "verbatim")]
        if rule.form == "expression":  # its options cannot be bundled
            raise self._refuse_option(argument)
        if rule.digits and _DIGITS.fullmatch(argument):
            return [Word(argument)]
        if not argument.startswith("--"):
            return self._read_short(argument, remaining)
        name, written, value = argument.partition("=")
        if not written or name not in self._kinds:
            raise self._refuse_option(argument)
        self._check_value(name, value)
        return [Word(value, "path", f"{name}=") if self._kinds[name] == PATH else Word(argument)]

    def _read_short(self, argument: str, remaining: Iterator[str]) -> list[Word]:
        """Read short options in one word. The rest after one with a value is its value."""
        for position, character in enumerate(argument[1:], start=1):
            option, remainder = f"-{character}", argument[position + 1 :]
            kind = self._kinds.get(option)
            # no rule has one: a bundle would have to be split to resolve the path
            if kind == PATH:
                raise self._refuse_option(argument)
            if kind is not None and (remainder or option in self._rule.values):
                value = remainder or self._read_value(option, remaining)
                self._check_value(option, value)
                return [Word(argument), *([] if remainder else [Word(value)])]
            if kind is None and option not in self._rule.flags:
                is_bundle = len(argument) > 2 and not _hint_at_words(argument)
                raise self._refuse_option(option if is_bundle else argument)
            self._seen_options.add(option)
        if argument == "-":
            raise PathRefused(f"{self._rule.name}: standard input is empty here; name a file")
        return [Word(argument)]

    def _check_value(self, option: str, value: str) -> None:
        """Record an option, and check its value by its kind."""
        self._seen_options.add(option)
        kind = self._kinds[option]
        if kind != PATH and not load_kinds()[kind].fullmatch(value):
            fault = f"{_quote(value)} is not allowed here{_hint_at_words(value)}"
            raise PathRefused(f"{self._rule.name} {option}: {fault}")

    def _read_value(self, option: str, remaining: Iterator[str]) -> str:
        if (value := next(remaining, None)) is None:
            raise PathRefused(f"{self._rule.name} {option} needs a value")
        return value

    def _list_operands(self, preceding_words: list[str], following_words: list[str]) -> list[Word]:
        """Return ``--`` and the operands; with git's revisions ``--`` keeps its place."""
        rule = self._rule
        first: list[Word] = []
        if rule.first and self._seen_options.isdisjoint(rule.first_substitutes):
            source = preceding_words or following_words
            if not source:
                raise PathRefused(f"{rule.name}: the first argument must be the text to look for")
            if not preceding_words and rule.operands == "revisions":
                raise PathRefused(f"{rule.name}: put the text to look for before --, or after -e")
            first = [Word(source.pop(0))]
        self._check_count(len(preceding_words) + len(following_words))
        if rule.operands == "revisions":
            words = [*first, *(Word(text, "revision") for text in preceding_words)]
            return words + (
                [Word("--"), *(Word(t, "path") for t in following_words)] if following_words else []
            )
        kind: Kind = "verbatim" if rule.operands == "text" else "pattern"
        words = [*first, *(Word(text, kind) for text in (*preceding_words, *following_words))]
        # After ``--`` no program reads a file's name such as ``-rf`` as an option.
        return [Word("--"), *words] if words else []

    def _check_count(self, count: int) -> None:
        rule = self._rule
        maximum = 0 if rule.operands == "none" else rule.max_operands
        what = "path" if rule.operands == "paths" else "argument"
        if maximum is not None and count > maximum:
            raise PathRefused(
                f"{rule.name} takes {maximum} {what}{'s' * (maximum != 1)} here, not {count}"
            )
        if count < rule.min_operands and self._seen_options.isdisjoint(rule.anywhere):
            minimum = rule.min_operands
            raise PathRefused(
                f"{rule.name} needs {minimum} {what}{'s' * (minimum != 1)}, not {count}"
            )

    def _refuse_option(self, argument: str) -> PathRefused:
        name, hint = self._rule.name, _hint_at_words(argument)
        return PathRefused(f"{name}: the option {_quote(argument)} is not allowed here{hint}")


def _hint_at_words(argument: str) -> str:
    """Return a hint for an argument with blanks: models often join several words."""
    has_blanks = any(character.isspace() for character in argument)
    return ": give each word as an item of its own" if has_blanks else ""


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")


# --- plans ----------------------------------------------------------------------------------------

# The real command of a call of ``run_command``: the program's file, the checked words with resolved
# paths, and the paths that the program must not see.


MAX_EXPANDED_BYTES: Final = 100_000
"""Bytes of all arguments after patterns are expanded. Linux allows 128 kB for one argument."""

_MISREAD: Final = tuple("-+@(!,")
"""First characters that some programs do not read as a part of a path. They get ``./`` in front."""


class Plan(Struct, frozen=True):
    """A command to run."""

    rule: Rule
    argv: tuple[str, ...]
    """The words, with the program's absolute path first."""
    environment: Mapping[str, str]
    """Environment variables besides those that every program gets."""
    private: HiddenPaths
    """Paths that it must not see."""
    folders: tuple[str, ...] = ()
    """Folders that it needs to see besides the system's."""

    def digest(self) -> str:
        """Return a digest of the words and of the present state of the program's file.

        Raises:
            OSError: the file cannot be read.
        """
        path = Path(self.argv[0])
        status = path.stat()
        file = f"{path.resolve()} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
        identity = "\0".join([*self.argv, file])
        return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()


def make_plan(
    programs: Mapping[str, Rule],
    folders: Sequence[str],
    roots: Sequence[Root],
    name: str,
    words: Sequence[str],
    find: Callable[..., ProgramFile] = find_program,
    user_folders: Sequence[str] = (),
) -> Plan:
    """Return the command of a call.

    Args:
        programs: the rules by program.
        folders: the system's folders of programs.
        roots: the folders that programs may see.
        name: the name of the program.
        words: the arguments of the call.
        find: finds a program's file.
        user_folders: folders of programs that the user trusts.

    Raises:
        PathRefused: the command may not run.
        PathAbsent: the program or a file is not there.
    """
    rule = programs.get(name)
    if rule is None:
        allowed_names = ", ".join(programs)
        raise PathRefused(f"the program {name[:60]!r} is not allowed; there are {allowed_names}")
    file, absent = None, None
    try:
        writable = [root.path for root in roots if root.writable]
        file = find(name, folders, user_folders, writable)
    except PathAbsent as error:  # faults of the arguments are reported first
        absent = error
    if file is not None and file.make == "bsd" and rule.form != "any":
        rule = load_rules("bsd").get(name, rule)
    checked_words = check_arguments(rule, words)
    if file is None:
        raise absent or PathAbsent(name)
    environment = dict(rule.environment)
    if rule.repository:
        environment |= _fix_repository(roots[0])
    arguments = [text for word in checked_words for text in _locate(roots, word)]
    private = find_hidden(roots)
    if rule.subcommands and rule.subcommands[words[0]].excludes:
        # Git is told to leave out the hidden files. Otherwise it would report them as changed, and
        # show their committed contents.
        root_prefix = f"{roots[0].path}/"
        inner_paths = (
            path.removeprefix(root_prefix) for path in private.files if path.startswith(root_prefix)
        )
        arguments += [
            f":(top,exclude,literal){path}" for path in inner_paths if not path.startswith(".git/")
        ]
    if sum(len(os.fsencode(argument)) + 1 for argument in arguments) > MAX_EXPANDED_BYTES:
        raise PathRefused(
            f"the arguments are longer than {MAX_EXPANDED_BYTES} bytes with the files they match"
        )
    return Plan(rule, (file.path, *arguments), environment, private, file.folders)


def _fix_repository(root: Root) -> dict[str, str]:
    """Return the variables that fix the repository: ``.git`` in the first root.

    Git then does not search for a repository. Files in the folder cannot lead it to another one,
    whose configuration is not hidden.

    Raises:
        PathAbsent: there is no such folder.
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


def _locate(roots: Sequence[Root], word: Word) -> list[str]:
    """Return the arguments that a word becomes. Raises PathRefused, PathAbsent."""
    pattern = _MAGIC.search(word.text) is not None
    match word.kind:
        case "path":
            return [word.option + _resolve_paths(roots, word.text)[0]]
        case "pattern":
            return _resolve_paths(roots, word.text, pattern=pattern)
        case "revision":
            return [_check_revision(roots, word.text)]
        case "free" if pattern:
            with contextlib.suppress(PathRefused, PathAbsent):  # no path, but some other text
                return _resolve_paths(roots, word.text, pattern=True)
    return [word.text]


def _resolve_paths(roots: Sequence[Root], text: str, *, pattern: bool = False) -> list[str]:
    """Return the paths below a root that the program gets for a text.

    The first root that has the file is taken, otherwise the first one that could have it. A
    ``pattern`` that is no file's name becomes the matching files of the first root with a match.

    Raises:
        PathRefused: the path is outside the roots, or private.
        PathAbsent: nothing matches the pattern.
    """
    if not text:
        raise PathRefused("a path is empty")
    places = [(root, parts) for root in roots if (parts := root.split(text)) is not None]
    if not places:
        raise PathRefused(f"{text[:100]!r} lies outside the folders that may be seen")
    for root, parts in places:
        if os.path.lexists(root.path.joinpath(*parts)):
            return [_format_argument(roots, root, parts)]
    if not pattern:
        return [_format_argument(roots, *places[0])]
    for root, parts in places:
        if matches := expand(root, parts):
            return [_format_argument(roots, root, path) for path in matches]
    raise PathAbsent(f"no file matches {text[:100]!r}")


def _format_argument(roots: Sequence[Root], root: Root, parts: Sequence[str]) -> str:
    """Return a path in the form that the program gets.

    It is relative below the first root, where the program runs, and absolute below others.
    """
    if root is not roots[0]:
        return str(root.path.joinpath(*parts))
    path = "/".join(parts) or "."
    return f"./{path}" if path.startswith(_MISREAD) else path


def _check_revision(roots: Sequence[Root], text: str) -> str:
    """Return a commit, a range, ``COMMIT:PATH`` or a path; git tells them apart.

    Raises:
        PathRefused: it has ``..``, or names a private file.
    """
    if text.startswith("/"):
        return _resolve_paths(roots, text)[0]
    for path in (text, text.rpartition(":")[2]):
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise PathRefused("the path goes up (..); paths go down from the folder")
        private = find_private_part(parts, Path(roots[0].path).name)
        if private is not None:
            raise PathRefused(f"{private} is private: files of this name hold secrets")
    return text


# --- patterns: ``*.py`` expanded below a root, without a shell and never through a link ---------

MAX_MATCHES: Final = 1_000
"""Files that one pattern may match."""
MAX_SCANNED: Final = 100_000
"""Entries of folders that are read for one pattern. A choice: a source tree has far fewer."""
MAX_DEPTH: Final = 100

_MAGIC: Final = re.compile(r"[*?\[]")
_ANY_DEPTH: Final = "**"


def expand(root: Root, pattern: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the paths below the root that a pattern matches, sorted.

    ``*``, ``?`` and ``[…]`` match a name that starts with a dot only if the pattern's part does
    too. ``**`` as a whole part matches any number of folders that are not hidden. Private names are
    not matched, and links are not followed.

    Raises:
        PathRefused: there are too many paths.
    """
    steps = [*pattern, "*"] if pattern[-1] == _ANY_DEPTH else pattern
    matches: list[tuple[str, ...]] = []
    scanned = 0
    pending: list[tuple[tuple[str, ...], set[int]]] = [((), {0})]
    # folders, each with the parts of the pattern that come next: `**` can go on in several ways
    while pending:
        folder, places = pending.pop()
        for place, step in enumerate(steps):
            if place in places and step == _ANY_DEPTH:
                places.add(place + 1)
        entries = _list_entries(root, folder)
        scanned += len(entries)
        if scanned > MAX_SCANNED:
            raise PathRefused(f"the pattern looks at more than {MAX_SCANNED} files")
        for name, is_folder in entries:
            fitting = (place for place in places if _fits(name, steps[place]))
            next_places = {place + (steps[place] != _ANY_DEPTH) for place in fitting}
            if not next_places or find_private_part((*folder, name), root.path.name) is not None:
                continue
            if len(steps) in next_places:
                matches.append((*folder, name))
                next_places.remove(len(steps))
            if len(matches) > MAX_MATCHES:
                raise PathRefused(f"the pattern matches more than {MAX_MATCHES} files")
            if is_folder and next_places and len(folder) < MAX_DEPTH:
                pending.append(((*folder, name), next_places))
    return sorted(matches)


def _fits(name: str, step: str) -> bool:
    if name.startswith(".") and not step.startswith("."):
        return False
    return name == step or fnmatchcase(name, step)


def _list_entries(root: Root, locations: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the names in a folder, and which are folders; none if it cannot be read."""
    try:
        fd = root.open_folder(locations)
    except (PathAbsent, WrongFileKind, PathRefused):
        return []
    try:
        with os.scandir(fd) as scan:
            entries = itertools.islice(scan, MAX_SCANNED + 1)
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []
    finally:
        os.close(fd)


# --- what is private below the roots ------------------------------------------------------------

MAX_ENTRIES: Final = 200_000
"""Files and folders below the roots. The search of so many takes about two seconds."""
MAX_HIDDEN: Final = 1_000
"""Paths that are hidden. Each one needs its own mount."""

_STATE: Final = re.compile(
    r"^[ \t]*(repositoryformatversion|filemode|bare|ignorecase|precomposeunicode|symlinks"
    r"|objectformat|refstorage)[ \t]*=[ \t]*([A-Za-z0-9]{1,20})[ \t]*$"
)
_SECTION: Final = re.compile(r"^[ \t]*\[(core|extensions)\][ \t]*$", re.IGNORECASE)
_MAX_CONFIG_BYTES: Final = 100_000


@dataclass(slots=True)
class HiddenPaths:
    """Absolute paths: files and folders to hide, and repositories that are read-only."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    repositories: list[str] = field(default_factory=list)


def find_hidden(roots: Sequence[Root]) -> HiddenPaths:
    """Return all private paths below the roots.

    Raises:
        PathRefused: there are too many files to search.
    """
    hidden_paths = HiddenPaths()
    entries_left = MAX_ENTRIES
    pending = [(str(root.path), _find_last_private((root.path.name,))) for root in roots]
    while pending:
        folder, private_parent = pending.pop()
        try:
            with os.scandir(folder) as scan:
                entries = list(itertools.islice(scan, MAX_ENTRIES + 1))
        except OSError:  # the program runs as the same user, so it cannot open the folder either
            continue
        for entry in entries:
            entries_left -= 1
            is_folder = entry.is_dir(follow_symlinks=False)
            if _is_private(entry.name, private_parent):
                # the target of a link is hidden by its own name, or lies outside the view
                if not entry.is_symlink():
                    (hidden_paths.folders if is_folder else hidden_paths.files).append(entry.path)
            elif is_folder:
                if fold_name(entry.name) == ".git":
                    hidden_paths.repositories.append(entry.path)
                pending.append((entry.path, _find_last_private((private_parent, entry.name))))
            count = (
                len(hidden_paths.files) + len(hidden_paths.folders) + len(hidden_paths.repositories)
            )
            if entries_left < 0 or count > MAX_HIDDEN:
                raise PathRefused(
                    f"below the roots are more than {MAX_ENTRIES} files, or {MAX_HIDDEN} private "
                    "ones: too many to be hidden; a smaller root would do"
                )
    return hidden_paths


def keep_repository_lines(config: Path) -> bytes:
    """Return the lines of a configuration that git needs to read a repository.

    All other lines are left out, since they could name a program, a file or an address.
    """
    try:
        with open_regular(config) as file:
            text = file.read(_MAX_CONFIG_BYTES).decode("utf-8", "replace")
    except OSError:
        return b""
    lines: list[str] = []
    in_known_section = False
    for line in text.splitlines():
        if line.lstrip().startswith("["):
            section = _SECTION.match(line)
            in_known_section = section is not None
            if section:
                lines.append(f"[{section[1].lower()}]")
        elif in_known_section and (match := _STATE.match(line.lower())):
            lines.append(f"\t{match[1]} = {match[2]}")
    return ("\n".join(lines) + "\n").encode() if lines else b""


@functools.lru_cache(maxsize=10_000)
def _find_last_private(names: tuple[str, ...]) -> str:
    """Return the last name in a path that makes a folder's content private, or ""."""
    private_names = [
        name for name in names if any(fnmatchcase(fold_name(name), p) for p in FOLDERS)
    ]
    return private_names[-1] if private_names else ""


@functools.lru_cache(maxsize=100_000)
def _is_private(name: str, parent: str) -> bool:
    return find_private_part((name,), parent) is not None
