"""The restrictions in a tool's folder: `mode`, and a `whitelist`.

They come from other systems, whose host enforces them. So this host enforces them too, before the
tool's code runs. They do not describe the code's effects. A tool declares these separately; without
a declaration it has all effects.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from mlx_tools.messages import ALL_EFFECTS, MUTATING, Effects
from mlx_tools.store import PathPatterns, PathRefused, Root, RootName, WrongFileKind, check_patterns
from mlx_tools.tools import ToolError

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
"""First words of operations that read or list. Any other operation may make changes."""

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
"""Words in the name of an operation that makes changes."""
_CHANGES_IF_SET: Final = frozenset(
    (
        *("append", "create", "delete", "erase", "execute", "overwrite", "purge", "remove"),
        *("rename", "replace", "save", "truncate", "unlink", "update", "write"),
    )
)
"""Words in the name of a parameter that makes changes if it is set. There are fewer than for
operations, because parameters such as `commit` or `store` may name a thing to read."""

_OPERATIONS: Final = frozenset(("action", "actions", "op", "operation", "operations"))
"""Last words of the names of parameters that choose the operation."""
_COMMANDS: Final = frozenset(("cmd", "command", "commands", "executable", "program"))
"""Last words of the names of parameters that are a shell command, or its words."""
_COMMAND_LINES: Final = frozenset(("commandline", "command_line", "cmdline"))
_OPEN_MODES: Final = frozenset(("mode", "open_mode", "flags"))
"""Names of parameters that may be the mode in which a file is opened."""
_WRITING_MODE: Final = re.compile(r"[rbt]*[wax+][rwaxbt+]*")

_PATHS: Final = frozenset(
    {
        *("path", "paths", "file", "files", "filename", "filenames", "folder", "folders"),
        *("dir", "directory", "directories"),
    }
)
"""Last words of the names of parameters that are paths. Parameters of the format ``path`` are paths
too."""

_SHELL: Final = frozenset(";&|`$<>(){}\\")
"""Characters with which a shell starts another command, or writes the output to a file."""


class Parameters(Struct, frozen=True):
    """The parameters of a tool whose meaning is known, at any depth of the schema."""

    paths: frozenset[str]
    """The names of parameters that are paths."""
    commands: frozenset[str]
    """The names of parameters that are commands."""
    operations: frozenset[str]
    """The names of parameters that choose the operation."""
    decided: bool
    """True if every call that fits the schema has an operation that shows whether it reads."""


class Restrictions(Struct, frozen=True):
    """The restrictions of one tool, and the parameters that they apply to."""

    parameters: Parameters
    mode: Mode = ""
    whitelist: tuple[str, ...] = ()

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ToolError for a call whose operation or command is not permitted."""
        if self.mode == "ro" and self.purpose(arguments) == "changes":
            operation_name = next(
                operation for operation in self._operations(arguments) if not _reads(operation)
            )
            raise ToolError(
                f"{operation_name[:100]!r} is refused: the tool's folder permits only reading and "
                "listing (mode ro)",
                code="not_allowed",
            )
        for command in self._commands(arguments) if self.whitelist else ():
            _check_command(command, self.whitelist)

    def purpose(self, arguments: Mapping[str, Any]) -> Purpose:
        """Return the purpose of a call by its operation: to read or to make changes."""
        if not all(map(_reads, self._operations(arguments))):
            return "changes"
        at_top = any(isinstance(arguments.get(name), str) for name in self.parameters.operations)
        return "reads" if at_top and not _asks_for_change(arguments) else "unknown"

    def _operations(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        """Yield the operations that a call names, at any depth, declared or not."""
        for key, value in _iter_items(arguments):
            if key in self.parameters.operations or _find_last_word(key) in _OPERATIONS:
                several = value if isinstance(value, list) else [value]
                yield from (operation for operation in several if isinstance(operation, str))

    def _commands(self, arguments: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the commands of a call, each a text or a list of words."""
        names = self.parameters.commands
        for key, value in _iter_items(arguments):
            if key not in names:
                continue
            several = value if isinstance(value, list) and key.lower().endswith("s") else [value]
            # an object with a command inside comes later in the iteration
            yield from (
                command
                for command in several
                if not (isinstance(command, dict) and names & command.keys())
            )

    def resolve_paths(
        self, arguments: Mapping[str, Any], roots: Sequence[str], *, writing: bool
    ) -> Mapping[str, Any]:
        """Return the arguments with each path as an absolute path on disk.

        Without a whitelist they are unchanged.

        Args:
            arguments: the arguments of a call.
            roots: folders (``DIR`` or ``DIR:rw``) below which the whitelist applies.
            writing: True if the roots must be writable.

        Raises:
            ToolError: a path is not in the whitelist.
        """
        if not self.whitelist or not self.parameters.paths:
            return arguments
        names = [RootName.parse(root) for root in roots] or [RootName(".", writable=True)]
        open_roots, patterns = [Root(name) for name in names], PathPatterns(self.whitelist)

        def resolve_value(value: Any, is_path: bool) -> Any:
            match value:
                case str() if is_path:
                    return _resolve_path(value, open_roots, patterns, writing=writing)
                case list():
                    return [resolve_value(item, is_path) for item in value]
                case dict():
                    return {
                        key: resolve_value(item, _names_path(key) or key in self.parameters.paths)
                        for key, item in value.items()
                    }
            return value

        result: Mapping[str, Any] = resolve_value(dict(arguments), False)
        return result


class RestrictedEffects(Struct, frozen=True):
    """Effects of a call to a tool with a `mode`: the declared ones, or all.

    A call with a reading operation has only effects that change nothing. A refused call has none.
    """

    restrictions: Restrictions
    declared_effects: Effects | None = None

    def __call__(self, arguments: Mapping[str, Any]) -> Effects:
        purpose = self.restrictions.purpose(arguments)
        if purpose == "reads":
            return self._reading
        refused = purpose == "changes" and self.restrictions.mode == "ro"
        return frozenset() if refused else self._any

    @property
    def possible(self) -> Effects:
        """All effects that some call may have."""
        decided = self.restrictions.parameters.decided and self.restrictions.mode == "ro"
        return self._reading if decided else self._any

    @property
    def _any(self) -> Effects:
        return ALL_EFFECTS if self.declared_effects is None else self.declared_effects

    @property
    def _reading(self) -> Effects:
        return self._any - MUTATING


# --- the parameters of a schema -------------------------------------------------------------------


def find_parameters(schema: Mapping[str, Any]) -> Parameters:
    """Return the parameters of a schema whose meaning is known."""
    declared = list(_iter_properties(schema))
    operations = {name for name, parameter_schema in declared if _chooses(name, parameter_schema)}
    commands = {name for name, _ in declared if name not in operations and _names_command(name)}
    top, needed = schema.get("properties", {}), schema.get("required", ())
    sure = any(name in operations and _is_text(top.get(name)) for name in needed)
    changing = any(_split_to_set(name) & _CHANGES_IF_SET for name, _ in declared)
    return Parameters(
        paths=frozenset(
            name for name, parameter_schema in declared if _is_path(name, parameter_schema)
        ),
        commands=frozenset(commands),
        operations=frozenset(operations),
        decided=sure and not changing,
    )


def check_whitelist(patterns: Sequence[str], parameters: Parameters) -> None:
    """Raise ValueError, with the reason, if the patterns fit no parameter."""
    if not parameters.paths and not parameters.commands:
        raise ValueError("none of the parameters is a path or a command that it could hold for")
    if not parameters.commands:
        check_patterns(patterns)
    for pattern in patterns:
        if not pattern.strip() or not pattern.isprintable():
            raise ValueError(f"{pattern[:100]!r} is no pattern")


def _names_path(name: str) -> bool:
    """Return whether a parameter is a path or a list of paths, by its name.

    Examples are ``path``, ``source_path`` and ``outputDir``.
    """
    return _find_last_word(name) in _PATHS


def _iter_properties(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the properties that a schema declares, at any depth."""
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
    """Return whether a parameter is a path by its name, or by its schema's format."""
    parts = (schema, schema.get("items")) if isinstance(schema, dict) else ()
    by_format = any(isinstance(part, dict) and part.get("format") == "path" for part in parts)
    return by_format or _names_path(name)


def _names_command(name: str) -> bool:
    return _find_last_word(name) in _COMMANDS or name.lower() in _COMMAND_LINES


def _chooses(name: str, schema: Any) -> bool:
    """Return whether a parameter chooses the operation, by its name or its values."""
    values = [
        listed_value for listed_value in _iter_enum_values(schema) if isinstance(listed_value, str)
    ]
    if name.lower() in _OPEN_MODES and any(map(_WRITING_MODE.fullmatch, values)):
        return True
    if _find_last_word(name) in _OPERATIONS or (_names_command(name) and values):
        return True
    return any(_split_to_set(value) & _CHANGING for value in values)


def _iter_enum_values(schema: Any) -> Iterator[Any]:
    """Yield the values that a schema lists for a parameter."""
    if isinstance(schema, dict):
        listed = schema.get("enum")
        yield from listed if isinstance(listed, list) else ()
        if "const" in schema:
            yield schema["const"]
        for key in ("anyOf", "oneOf", "allOf"):
            for part in schema.get(key) or ():
                yield from _iter_enum_values(part)
        yield from _iter_enum_values(schema.get("items"))


def _is_text(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    listed = schema.get("enum") or [None]
    return schema.get("type") == "string" or all(isinstance(value, str) for value in listed)


# --- the operation and commands of a call ---------------------------------------------------------


def _reads(operation: str) -> bool:
    """Return whether an operation reads or lists, and has no word for a change."""
    words = _split(operation)
    reading = bool(words) and (words[0] in _READING or operation in ("r", "rb", "rt"))
    return reading and not _CHANGING.intersection(words)


def _asks_for_change(arguments: Mapping[str, Any]) -> bool:
    """Return whether a set parameter asks for a change by its name.

    An example is ``"delete": true``.
    """
    return any(
        value and _split_to_set(key) & _CHANGES_IF_SET for key, value in _iter_items(arguments)
    )


def _iter_items(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments and everything within them, with their names."""
    pending: list[Any] = [arguments]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, Mapping):
            yield from part.items()
            pending += part.values()


def _check_command(command: Any, whitelist: Sequence[str]) -> None:
    """Raise ToolError for a command that no entry of the whitelist permits.

    An entry of one word permits the program with any arguments. An entry of several words permits
    exactly these words; `*` as the last word permits any further ones. Within a word `*` matches
    any characters except `/`.
    """
    words = command if isinstance(command, list) else [command]
    text = " ".join(word if isinstance(word, str) else repr(word) for word in words)
    fault = "is not in the tool's whitelist"
    if not all(isinstance(word, str) for word in words):
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
    allows_more = len(entry) == 1 or entry[-1] == "*"
    fixed = entry[:-1] if len(entry) > 1 and entry[-1] == "*" else entry
    enough = len(words) >= len(fixed) if allows_more else len(words) == len(fixed)
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
            parts = root.split(path, writing=writing)
            if parts is None or not patterns.match(parts):
                continue
            if writing and not root.writable:
                raise PathRefused("the folder was named without :rw (--root DIR:rw)")
            return str(root.resolve(parts))
    except (PathRefused, WrongFileKind) as error:
        raise ToolError(f"{path[:200]}: {error}", code="not_allowed") from None
    raise ToolError(f"{path[:200]} is not in the tool's whitelist", code="not_allowed")


def _split(name: str) -> list[str]:
    """Split a name into lower-case words: ``get_file``, ``getFile``, ``get-file``."""
    snake_case = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [word for word in re.split(r"[^a-z0-9]+", snake_case.lower()) if word]


def _split_to_set(name: str) -> frozenset[str]:
    return frozenset(_split(name))


def _find_last_word(name: str) -> str:
    words = re.split(r"[^a-z]+", "_".join(_split(name)))
    return words[-1]
