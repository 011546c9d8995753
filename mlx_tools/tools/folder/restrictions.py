"""The restrictions that a tool's folder states: `mode`, and a `whitelist` of paths or commands.

They come from systems in which the host enforces them, so they are enforced here before the tool's
code runs. They never stand for what the code does: a tool declares that with its effects, and
without any it is taken to have all.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from mlx_tools.messages import ALL_EFFECTS, MUTATING, Effects
from mlx_tools.store import PathPatterns, PathRefused, Root, RootName, WrongFileKind, check_patterns
from mlx_tools.tools.context import ToolError

Mode = Literal["", "ro", "rw"]
Purpose = Literal["reads", "changes", "unknown"]

_READING: Final = frozenset(
    (
        *("cat", "check", "count", "describe", "diff", "exists", "find", "get", "glob", "grep"),
        *("has", "head", "help", "info", "inspect", "list", "lookup", "ls", "metadata", "peek"),
        *("preview", "read", "search", "show", "size", "stat", "stats", "status", "tail", "tree"),
        *("view", "wc"),
    )
)
"""First words of operations that read or list. Any other operation is taken to change something."""

_CHANGING: Final = frozenset(
    (
        *(
            "add",
            "append",
            "apply",
            "chmod",
            "chown",
            "clear",
            "commit",
            "copy",
            "create",
            "delete",
        ),
        *("destroy", "drop", "edit", "erase", "exec", "execute", "insert", "kill", "mkdir"),
        *("modify", "move", "mv", "overwrite", "patch", "post", "purge", "put", "remove", "rename"),
        *("replace", "reset", "rm", "rmdir", "save", "send", "store", "touch", "truncate"),
        *("unlink", "update", "upload", "write"),
    )
)
"""Words that say in the name of an operation that something is changed."""
_CHANGES_IF_SET: Final = frozenset(
    (
        *("append", "create", "delete", "erase", "execute", "overwrite", "purge", "remove"),
        *("rename", "replace", "save", "truncate", "unlink", "update", "write"),
    )
)
"""Words that say so in the name of a parameter: fewer, since `commit` or `store` may be what is
read."""

_OPERATIONS: Final = frozenset(("action", "actions", "op", "operation", "operations"))
"""Last words of the names of parameters that choose what is done."""
_COMMANDS: Final = frozenset(("cmd", "command", "commands", "executable", "program"))
"""Last words of the names of parameters that are a command for a shell, or its words."""
_COMMAND_LINES: Final = frozenset(("commandline", "command_line", "cmdline"))
_OPEN_MODES: Final = frozenset(("mode", "open_mode", "flags"))
"""Names of parameters that may say how a file is opened."""
_WRITING_MODE: Final = re.compile(r"[rbt]*[wax+][rwaxbt+]*")

_PATHS: Final = frozenset(
    {
        *("path", "paths", "file", "files", "filename", "filenames", "folder", "folders"),
        *("dir", "directory", "directories"),
    }
)
"""Last words of the names of parameters that are paths; the format ``path`` says so of any."""

_SHELL: Final = frozenset(";&|`$<>(){}\\")
"""Characters that let a command start another one, or go elsewhere, if a shell reads it."""


class Parameters(Struct, frozen=True):
    """The parameters of a tool whose meaning the host knows: the names, wherever in the schema they
    stand, of ``paths``, of ``commands`` and of those that choose an ``operation``. ``decided``:
    every call that fits the schema says by its operation whether it reads."""

    paths: frozenset[str]
    commands: frozenset[str]
    operations: frozenset[str]
    decided: bool


class Restrictions(Struct, frozen=True):
    """The restrictions of one tool, and the parameters that they hold for."""

    parameters: Parameters
    mode: Mode = ""
    whitelist: tuple[str, ...] = ()

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ToolError for a call whose operation or command is not permitted."""
        if self.mode == "ro" and self.purpose(arguments) == "changes":
            chosen = next(one for one in self._operations(arguments) if not _reads(one))
            raise ToolError(
                f"{chosen[:100]!r} is refused: the tool's folder permits reading and listing alone "
                "(mode ro)",
                code="not_allowed",
            )
        for command in self._commands(arguments) if self.whitelist else ():
            _check_command(command, self.whitelist)

    def purpose(self, arguments: Mapping[str, Any]) -> Purpose:
        """Tell by its operation whether a call reads, or changes something."""
        if not all(map(_reads, self._operations(arguments))):
            return "changes"
        at_top = any(isinstance(arguments.get(name), str) for name in self.parameters.operations)
        return "reads" if at_top and not _asks_for_change(arguments) else "unknown"

    def _operations(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        """The operations that a call names at any depth, also where no parameter is declared."""
        for key, value in _items(arguments):
            if key in self.parameters.operations or _last_word(key) in _OPERATIONS:
                several = value if isinstance(value, list) else [value]
                yield from (one for one in several if isinstance(one, str))

    def _commands(self, arguments: Mapping[str, Any]) -> Iterator[Any]:
        """The commands of a call, each a text or a list of words."""
        names = self.parameters.commands
        for key, value in _items(arguments):
            if key not in names:
                continue
            several = value if isinstance(value, list) and key.lower().endswith("s") else [value]
            # an object that has a command in it is come to by itself
            yield from (
                one for one in several if not (isinstance(one, dict) and names & one.keys())
            )

    def held(
        self, arguments: Mapping[str, Any], roots: Sequence[str], *, writing: bool
    ) -> Mapping[str, Any]:
        """Return the arguments with each path as it is on disk, from the top on; unchanged without
        a whitelist. ``writing``: the roots must be writable. Raises ToolError for a path that is
        not in the whitelist."""
        if not self.whitelist or not self.parameters.paths:
            return arguments
        names = [RootName.parse(one) for one in roots] or [RootName(".", writable=True)]
        opened, patterns = [Root(name) for name in names], PathPatterns(self.whitelist)

        def resolved(value: Any, is_path: bool) -> Any:
            match value:
                case str() if is_path:
                    return _resolve_path(value, opened, patterns, writing=writing)
                case list():
                    return [resolved(item, is_path) for item in value]
                case dict():
                    return {
                        key: resolved(item, _names_path(key) or key in self.parameters.paths)
                        for key, item in value.items()
                    }
            return value

        held: Mapping[str, Any] = resolved(dict(arguments), False)
        return held


class RestrictedEffects(Struct, frozen=True):
    """Effects of a call to a tool with a `mode`: those that its folder ``declares``, or all.

    A call whose operation reads has no effect that changes something, and one that is refused has
    none.
    """

    restrictions: Restrictions
    declared: Effects | None = None

    def __call__(self, arguments: Mapping[str, Any]) -> Effects:
        purpose = self.restrictions.purpose(arguments)
        if purpose == "reads":
            return self._reading
        refused = purpose == "changes" and self.restrictions.mode == "ro"
        return frozenset() if refused else self._any

    @property
    def possible(self) -> Effects:
        """Return the effects that a call may have at most."""
        decided = self.restrictions.parameters.decided and self.restrictions.mode == "ro"
        return self._reading if decided else self._any

    @property
    def _any(self) -> Effects:
        return ALL_EFFECTS if self.declared is None else self.declared

    @property
    def _reading(self) -> Effects:
        return self._any - MUTATING


# --- what a schema says ---------------------------------------------------------------------------


def known_parameters(schema: Mapping[str, Any]) -> Parameters:
    """Find the parameters of a schema whose meaning the host knows."""
    declared = list(_declared_properties(schema))
    operations = {name for name, one in declared if _chooses(name, one)}
    commands = {name for name, _ in declared if name not in operations and _names_command(name)}
    top, needed = schema.get("properties", {}), schema.get("required", ())
    sure = any(name in operations and _is_text(top.get(name)) for name in needed)
    changing = any(_words(name) & _CHANGES_IF_SET for name, _ in declared)
    return Parameters(
        paths=frozenset(name for name, one in declared if _is_path(name, one)),
        commands=frozenset(commands),
        operations=frozenset(operations),
        decided=sure and not changing,
    )


def check_whitelist(patterns: Sequence[str], parameters: Parameters) -> None:
    """Raise ValueError, with the reason, where these are no patterns for any parameter."""
    if not parameters.paths and not parameters.commands:
        raise ValueError("none of the parameters is a path or a command that it could hold for")
    if not parameters.commands:
        check_patterns(patterns)
    for pattern in patterns:
        if not pattern.strip() or not pattern.isprintable():
            raise ValueError(f"{pattern[:100]!r} is no pattern")


def _names_path(name: str) -> bool:
    """True for the name of a parameter that is a path, or a list of them: ``path``,
    ``source_path``, ``outputDir``."""
    return _last_word(name) in _PATHS


def _declared_properties(schema: Any) -> Iterator[tuple[str, Any]]:
    """The properties that a schema declares, at any depth."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            properties = part.get("properties")
            if isinstance(properties, dict):
                yield from properties.items()
            pending += part.values()


def _is_path(name: str, schema: Any) -> bool:
    """True for a parameter that is a path by its name, or by its schema's format."""
    parts = (schema, schema.get("items")) if isinstance(schema, dict) else ()
    by_format = any(isinstance(part, dict) and part.get("format") == "path" for part in parts)
    return by_format or _names_path(name)


def _names_command(name: str) -> bool:
    return _last_word(name) in _COMMANDS or name.lower() in _COMMAND_LINES


def _chooses(name: str, schema: Any) -> bool:
    """True for a parameter that chooses what is done: by its name, or by the values that it may
    have."""
    values = [one for one in _enum_values(schema) if isinstance(one, str)]
    if name.lower() in _OPEN_MODES and any(map(_WRITING_MODE.fullmatch, values)):
        return True
    if _last_word(name) in _OPERATIONS or (_names_command(name) and values):
        return True
    return any(_words(value) & _CHANGING for value in values)


def _enum_values(schema: Any) -> Iterator[Any]:
    """The values that a parameter may have, where its schema lists them."""
    if isinstance(schema, dict):
        listed = schema.get("enum")
        yield from listed if isinstance(listed, list) else ()
        if "const" in schema:
            yield schema["const"]
        for key in ("anyOf", "oneOf", "allOf"):
            for part in schema.get(key) or ():
                yield from _enum_values(part)
        yield from _enum_values(schema.get("items"))


def _is_text(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    listed = schema.get("enum") or [None]
    return schema.get("type") == "string" or all(isinstance(one, str) for one in listed)


# --- what a call says -----------------------------------------------------------------------------


def _reads(operation: str) -> bool:
    """True for an operation that reads or lists, and says nothing of a change."""
    words = _split(operation)
    reading = bool(words) and (words[0] in _READING or operation in ("r", "rb", "rt"))
    return reading and not _CHANGING.intersection(words)


def _asks_for_change(arguments: Mapping[str, Any]) -> bool:
    """True where a parameter that is set says by its name that something is changed:
    ``"delete": true``."""
    return any(value and _words(key) & _CHANGES_IF_SET for key, value in _items(arguments))


def _items(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments, and what is within them, with their names."""
    pending: list[Any] = [arguments]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, Mapping):
            yield from part.items()
            pending += part.values()


def _check_command(command: Any, whitelist: Sequence[str]) -> None:
    """Raise ToolError for a command, a text or a list of words, that no entry permits.

    An entry of one word permits the program with any arguments. One of several words permits these
    words; `*` as the last one stands for any more. Within a word `*` stands for anything but `/`.
    """
    words = command if isinstance(command, list) else [command]
    text = " ".join(one if isinstance(one, str) else repr(one) for one in words)
    fault = "is not in the tool's whitelist"
    if not all(isinstance(one, str) for one in words):
        fault = "is no command"
    elif _SHELL & set(text) or not text.isprintable():
        fault = "holds characters that a shell obeys, and the tool's whitelist permits none"
    else:
        try:
            parts = list(command) if isinstance(command, list) else shlex.split(text)
        except ValueError as error:
            parts, fault = [], f"cannot be split into words ({error})"
        if any(_permits(entry.split(), parts) for entry in whitelist):
            return
    raise ToolError(f"the command {text[:200]!r} {fault}", code="not_allowed")


def _permits(entry: Sequence[str], words: Sequence[str]) -> bool:
    more = len(entry) == 1 or entry[-1] == "*"
    fixed = entry[:-1] if len(entry) > 1 and entry[-1] == "*" else entry
    enough = len(words) >= len(fixed) if more else len(words) == len(fixed)
    return enough and all(map(_fits, fixed, words))


def _fits(pattern: str, word: str) -> bool:
    if "*" not in pattern:
        return pattern == word
    parts = map(re.escape, pattern.split("*"))
    return ".." not in word.split("/") and re.fullmatch("[^/]*".join(parts), word) is not None


def _resolve_path(
    path: str, roots: Sequence[Root], patterns: PathPatterns, *, writing: bool
) -> str:
    try:
        for root in roots:
            parts = root.parts(path, writing=writing)
            if parts is None or not patterns.fit(parts):
                continue
            if writing and not root.writable:
                raise PathRefused("the folder was named without :rw (--root DIR:rw)")
            return str(root.resolved(parts))
    except (PathRefused, WrongFileKind) as error:
        raise ToolError(f"{path[:200]}: {error}", code="not_allowed") from None
    raise ToolError(f"{path[:200]} is not in the tool's whitelist", code="not_allowed")


def _split(name: str) -> list[str]:
    """The words of a name, in small letters: ``get_file``, ``getFile``, ``get-file``."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [word for word in re.split(r"[^a-z0-9]+", parted.lower()) if word]


def _words(name: str) -> frozenset[str]:
    return frozenset(_split(name))


def _last_word(name: str) -> str:
    words = re.split(r"[^a-z]+", "_".join(_split(name)))
    return words[-1]
