"""A tool that is a folder: reads its files and checks what they declare.

config.json            the rights and needs of the tool; every key is optional
tool_definition.json   name, description and parameters, in OpenAI's form of a function
execute.py             a function ``execute(arguments: dict) -> dict``

An unknown key is an error, because it could be a restriction. Keys that only describe the tool,
such as its author, are ignored.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, ValidationError, convert

from mlx_tools.errors import ToolDefinitionError, did_you_mean
from mlx_tools.messages import Effect, ToolSpec, replace
from mlx_tools.plugins.folders.restrictions import (
    RestrictedEffects,
    Restrictions,
    check_whitelist,
    find_parameters,
)
from mlx_tools.schema import check_parameters
from mlx_tools.tools import FOLDER

CONFIG: Final = "config.json"
DEFINITION: Final = "tool_definition.json"
EXECUTE: Final = "execute.py"

DEFAULT_OUTPUT_BYTES: Final = 1_000_000
"""Bytes that a tool may print, and that its result may have, if its folder sets no other limit."""

_SPEC_KEYS: Final = ("effects", "timeout", "needs_approval", "retry", "private", "cache")


class ToolFolder(Struct, frozen=True):
    """The complete content of a tool's folder."""

    path: Path
    spec: ToolSpec
    enabled: bool
    """True if its configuration enables it."""
    environment: tuple[str, ...]
    """The environment variables that it may see."""
    max_output_bytes: int
    """Bytes that it may print, and that its result may have."""
    restrictions: Restrictions
    """The restrictions that are checked before each call."""
    missing: tuple[str, ...]
    """Packages that it imports but that are not installed."""
    contents: Mapping[str, File]
    """Its files by name."""
    digest: str
    """The SHA-256 of all its files."""
    older: bool = False
    """True if its configuration has the older layout."""

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return sum(len(file.data) for file in self.contents.values())


def read_folder(path: Path) -> ToolFolder:
    """Read the tool in a folder.

    Raises:
        ToolDefinitionError: it is no tool. The message names the file and the fault.
    """
    contents = read_files(path, (DEFINITION, EXECUTE))

    def data(name: str, limit: bytes = b"") -> bytes:  # a file may have vanished meanwhile
        return contents[name].data if name in contents else limit

    name, description, parameters, restricting = _read_definition(
        data(DEFINITION), path / DEFINITION
    )
    values = _load_json(data(CONFIG, b"{}"), path / CONFIG)
    config = _read_configuration(values, path / CONFIG, name)
    for key, value in _read_configuration(restricting, path / DEFINITION, name).items():
        if config.setdefault(key, value) != value:
            raise ToolDefinitionError(f"{path / DEFINITION}: {key}: {CONFIG} says another")
    tree = _check_code(data(EXECUTE), path / EXECUTE)
    restrictions = Restrictions(
        find_parameters(parameters), config.get("mode", ""), tuple(config.get("whitelist", ()))
    )
    if restrictions.whitelist:
        try:
            check_whitelist(restrictions.whitelist, restrictions.parameters)
        except ValueError as error:
            raise ToolDefinitionError(
                f"{path / CONFIG}: whitelist: {error}",
                hint='call a parameter path or command, or give it "format": "path"',
            ) from None
    declared = {key: config[key] for key in _SPEC_KEYS if key in config}
    if "effects" in declared:
        declared["effects"] = frozenset(declared["effects"])
    if restrictions.mode:
        declared["effects"] = RestrictedEffects(restrictions, declared.get("effects"))
    return ToolFolder(
        path=path,
        spec=ToolSpec(name, description, parameters, plugin=FOLDER, **declared),
        enabled=config.get("enabled", True),
        environment=tuple(config.get("environment", ())),
        max_output_bytes=config.get("max_output_bytes", DEFAULT_OUTPUT_BYTES),
        restrictions=restrictions,
        missing=_find_missing_packages(tree, contents),
        contents=contents,
        digest=compute_digest(contents),
        older=_METADATA in values,
    )


def rename_folder(folder: ToolFolder, name: str) -> ToolFolder:
    """Return the same tool under another name, which is also written to its files."""
    contents = dict(folder.contents)
    for file in (DEFINITION, CONFIG):
        if file not in contents:
            continue
        value = json.loads(contents[file].data)
        for part in (value, value.get("function"), value.get(_METADATA)):
            if isinstance(part, dict) and "name" in part:
                part["name"] = name
        text = json.dumps(value, indent=2, ensure_ascii=False)
        contents[file] = File(text.encode(errors="surrogatepass"), contents[file].executable)
    spec = replace(folder.spec, name=name)
    return replace(folder, spec=spec, contents=contents, digest=compute_digest(contents))


def find_folders(path: Path) -> list[Path]:
    """Return the folders of tools at ``path``, sorted by name.

    This is ``path`` itself if it has a tool's files, otherwise each folder in it with a definition.
    """
    if (path / DEFINITION).exists() or (path / EXECUTE).exists():
        return [path]
    try:
        below = sorted(child for child in path.iterdir() if (child / DEFINITION).is_file())
    except OSError:
        return [path]
    return below or [path]


# --- the files and their digest -------------------------------------------------------------------

MAX_FILES: Final = 1000
"""Files of one tool. With `MAX_BYTES` and `MAX_DEPTH` it prevents that a wrong folder, such as a
home folder, is read completely. Real tools with their data stay far below these limits."""
MAX_BYTES: Final = 20_000_000
MAX_DEPTH: Final = 20

_CACHES: Final = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis")
IGNORED_NAMES: Final = frozenset((*_CACHES, ".git", ".DS_Store"))
"""Files of other programs. They are not copied and not part of the digest."""


class File(Struct, frozen=True):
    """A file's bytes, and True if it may be executed."""

    data: bytes
    executable: bool


def read_files(path: Path, needed: Iterable[str] = ()) -> dict[str, File]:
    """Read all files below a folder, by their names in it.

    The ``needed`` files are checked before the rest is read, because the folder may be any.

    Raises:
        ToolDefinitionError: a file cannot be read, is needed and missing, or is neither file nor
            folder, or there are too many or too large files.
    """
    files: dict[str, File] = {}
    bytes_left = MAX_BYTES
    try:
        for name in needed:
            file_path = path / name
            if path.is_dir() and (file_path.is_dir() or not os.path.lexists(file_path)):
                raise ToolDefinitionError(
                    f"{file_path} is missing",
                    hint=f"a tool's folder holds {DEFINITION}, {EXECUTE} and mostly {CONFIG}",
                )
        for name, file_path in _walk(path, "", MAX_DEPTH):
            files[name] = file = _read_file(file_path, bytes_left)
            bytes_left -= len(file.data)
            if len(files) > MAX_FILES:
                raise ToolDefinitionError(f"{path} holds more than {MAX_FILES} files")
    except OSError as error:
        where = error.filename or path
        raise ToolDefinitionError(f"{where} cannot be read: {error.strerror}") from None
    return files


def compute_digest(contents: Mapping[str, File]) -> str:
    """Return the SHA-256 of the files' names, contents and rights to be executed."""
    whole = hashlib.sha256()
    for name in sorted(contents):
        file = contents[name]
        inner = hashlib.sha256(file.data).hexdigest()
        whole.update(f"{name!a} {int(file.executable)} {inner}\n".encode())
    return whole.hexdigest()


def write_files(contents: Mapping[str, File], folder: Path) -> None:
    """Create the folder with these files, for this user only. Raises OSError."""
    folder.mkdir(mode=0o700)
    for name, file in contents.items():
        target = folder / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(target, flags, 0o700 if file.executable else 0o600), "wb") as output:
            output.write(file.data)


def _walk(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, Path]]:
    if depth == 0:
        raise ToolDefinitionError(f"{folder} is more than {MAX_DEPTH} folders deep")
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name in IGNORED_NAMES:
            continue
        entry_path = Path(entry.path)
        if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
            kind = "a symbolic link" if entry.is_symlink() else "no regular file"
            raise ToolDefinitionError(
                f"{entry_path} is {kind}", hint="a tool's folder holds files and folders alone"
            )
        name = prefix + entry.name
        if entry.is_dir():
            yield from _walk(entry_path, f"{name}/", depth - 1)
        else:
            yield name, entry_path


def _read_file(path: Path, bytes_left: int) -> File:
    # After the listing the file may have been replaced: by a link, hence O_NOFOLLOW, or by a named
    # pipe, whose opening would wait for a writer, hence O_NONBLOCK.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        data = file.read(bytes_left + 1) if stat.S_ISREG(mode) else b""
    if not stat.S_ISREG(mode):
        raise ToolDefinitionError(f"{path} is no regular file")
    if len(data) > bytes_left:
        raise ToolDefinitionError(f"a tool's folder holds at most {MAX_BYTES} bytes: {path}")
    return File(data, bool(mode & stat.S_IXUSR))


# --- config.json and tool_definition.json ---------------------------------------------------------

DESCRIPTIVE_KEYS: Final = frozenset(
    {
        *("author", "authors", "category", "comment", "comments", "created", "description"),
        *("display_name", "examples", "homepage", "icon", "keywords", "label", "license"),
        *("maintainer", "notes", "output_schema", "repository", "returns", "summary", "tags"),
        *("title", "updated", "url", "version"),
    }
)
"""Keys that only describe the tool to a person, like those that begin with ``_``, ``$`` or ``x-``.
"""

_YES_OR_NO: Final = (bool, "true or false")
_SECONDS: Final = (
    Annotated[float, Meta(gt=0, le=86_400)],
    "seconds, more than 0 and at most 86400",
)
_VARIABLE = Annotated[str, Meta(pattern=r"^(?ai:(?!LD_|DYLD_|PYTHON)[A-Z_][A-Z0-9_]*)\Z")]
"""The name of an environment variable. Variables with refused prefixes make programs load code."""

_KEYS: Final[Mapping[str, tuple[Any, str]]] = {
    "name": (str, f"the name in {DEFINITION}"),
    "enabled": _YES_OR_NO,
    "effects": (list[Effect], "a list of some of read, write, execute, network"),
    "timeout": _SECONDS,
    "timeout_seconds": _SECONDS,
    "timeout_ms": (
        Annotated[float, Meta(gt=0, le=86_400_000)],
        "milliseconds, more than 0 and at most 86400000",
    ),
    "needs_approval": _YES_OR_NO,
    "requires_approval": _YES_OR_NO,
    "retry": (Literal["never", "read_only"], "never or read_only"),
    "private": _YES_OR_NO,
    "cache": _YES_OR_NO,
    "environment": (
        Annotated[list[_VARIABLE], Meta(max_length=100)],
        "a list of variables' names, none that begins with LD_, DYLD_ or PYTHON",
    ),
    "max_output_bytes": (
        Annotated[int, Meta(ge=1, le=10_000_000)],
        "a whole number from 1 to 10000000",
    ),
    "type": (Literal["llm_invokable"], "llm_invokable"),
    "directory": (
        Annotated[str, Meta(pattern=r"^(?!\.\.?\Z)[^/\0]+\Z")],
        "the name of the tool's folder",
    ),
    "mode": (Literal["ro", "rw"], "ro or rw"),
    "whitelist": (
        Annotated[list[str], Meta(min_length=1)],
        "a list of patterns of paths, such as docs/**/*.md, or of commands, at least one",
    ),
}
"""The keys of a configuration: the type of their values, and its description."""

_ALIASES: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "requires_approval": ("needs_approval", lambda value: value),
    "timeout_seconds": ("timeout", lambda value: value),
    "timeout_ms": ("timeout", lambda value: value / 1000),
}
"""Aliases of keys in files of other systems, with the conversion of their values."""

_METADATA: Final = "metadata"
_WRAPPER_KEYS: Final = ("type", "function")
_SCHEMAS: Final = ("input_schema", "inputSchema")
"""Names of ``parameters`` at Anthropic and in MCP."""
_FUNCTION: Final = ("name", "description", "parameters", "strict", "type")
_RESTRICTING: Final = ("mode", "whitelist", "needs_approval", "requires_approval")
"""Keys of a configuration that a definition may also have."""


def _read_configuration(values: Mapping[str, Any], path: Path, name: str) -> dict[str, Any]:
    """Return the values of ``config.json`` under their canonical keys.

    An older layout has some of them under ``metadata``.

    Raises:
        ToolDefinitionError: a key is unknown or its value is not allowed; the message names both.
    """
    _check_keys(values, (*_KEYS, _METADATA), path, "")
    older: Any = values.get(_METADATA, {})
    if not isinstance(older, dict):
        raise ToolDefinitionError(f"{path}: {_METADATA}: expected an object")
    _check_keys(older, tuple(_KEYS), path, f"{_METADATA}.")
    config: dict[str, Any] = {}
    entries: list[tuple[str, Any]] = [*values.items(), *older.items()]
    for key, value in entries:
        if key not in _KEYS:
            continue
        kind, allowed = _KEYS[key]
        try:
            convert(value, kind)
        except ValidationError:
            text = json.dumps(value, ensure_ascii=False)
            text = text if len(text) <= 60 else f"{text[:59]}…"
            raise ToolDefinitionError(
                f"{path}: {key}: {text} is not allowed", hint=allowed
            ) from None
        canonical_key, change = _ALIASES.get(key, (key, lambda value: value))
        if canonical_key in config:
            raise ToolDefinitionError(f"{path}: {key}: it says {canonical_key} once more")
        config[canonical_key] = change(value)
    if config.get("name", name) != name:
        raise ToolDefinitionError(
            f"{path}: name: {config['name']!r:.80} is not the name in {DEFINITION}, {name}"
        )
    return config


def _read_definition(data: bytes, path: Path) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """Return name, description, parameters and restrictions of a definition.

    It has OpenAI's form of a function, perhaps within ``{"type": "function", "function": …}``.

    Raises:
        ToolDefinitionError: the file is no such definition.
    """
    value, place = _load_json(data, path), ""
    function = value.get("function", value)
    if value.get("type", "function") != "function" or not isinstance(function, dict):
        raise ToolDefinitionError(
            f"{path}: expected a function definition",
            hint='{"type": "function", "function": {"name": …, "description": …, …}}',
        )
    if function is not value:
        place = "function."
        _check_keys(value, _WRAPPER_KEYS, path, "", optional_keys=_RESTRICTING)
    _check_keys(function, _FUNCTION, path, place, optional_keys=_RESTRICTING)
    restricting: dict[str, Any] = {}
    for key, entry in (*value.items(), *function.items()):
        if key in _RESTRICTING and restricting.setdefault(key, entry) != entry:
            raise ToolDefinitionError(f"{path}: {key}: it says {key} twice")
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not name.strip():
        raise ToolDefinitionError(f"{path}: {place}name: expected a text")
    if not isinstance(description, str | None):
        raise ToolDefinitionError(f"{path}: {place}description: expected a text")
    schema = function.get("parameters")
    if not isinstance(schema, dict | None):
        raise ToolDefinitionError(f"{path}: {place}parameters: expected a JSON Schema")
    parameters = {"type": "object", **({"properties": {}} if schema is None else schema)}
    try:
        ToolSpec(name)
        check_parameters(parameters)
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"{path}: {error.message}", hint=error.hint) from None
    return name, description or "", parameters, restricting


def _load_json(data: bytes, path: Path) -> dict[str, Any]:
    from mlx_tools.parsing import Unreadable, loads

    try:
        text = data.decode("utf-8-sig")
        value = loads(text)
    except UnicodeDecodeError:
        raise ToolDefinitionError(f"{path} is not UTF-8 text") from None
    except Unreadable as error:
        reason = str(error)
        try:
            json.loads(text)
        except json.JSONDecodeError as json_error:  # it has the place of the fault
            reason = f"{json_error.msg} (line {json_error.lineno}, column {json_error.colno})"
        except (ValueError, RecursionError):
            pass
        raise ToolDefinitionError(f"{path} is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise ToolDefinitionError(f"{path}: expected an object")
    return value


def _check_keys(
    value: Mapping[str, Any],
    known_keys: tuple[str, ...],
    path: Path,
    place: str,
    optional_keys: tuple[str, ...] = (),
) -> None:
    unknown = sorted(
        key
        for key in value
        if not (
            key in known_keys
            or key in optional_keys
            or key in DESCRIPTIVE_KEYS
            or key.startswith(("_", "$", "x-"))
        )
    )
    if unknown:
        hint = did_you_mean(unknown[0], known_keys, f"known are {', '.join(known_keys)}")
        if known_keys is _WRAPPER_KEYS and unknown[0] in _FUNCTION:
            hint = "it belongs within function"
        elif unknown[0] in _SCHEMAS:
            hint = "it is called parameters here"
        elif unknown[0] in _KEYS:
            hint = f"it belongs in {CONFIG}"
        raise ToolDefinitionError(f"{path}: {place}{unknown[0][:80]}: unknown key", hint=hint)


# --- execute.py, checked without running it -------------------------------------------------------

_MOVES_PATH: Final = re.compile(
    rb"\bsys\s*\.\s*(?:meta_)?path\b|\bfrom\s+sys\s+import\b|\bimport\b.*\bsite\b|\baddsitedir\b"
)
"""Finds code that changes where Python looks for packages."""


def _check_code(data: bytes, path: Path) -> ast.Module:
    """Return the syntax tree of the file.

    Raises:
        ToolDefinitionError: it is not Python, or defines no ``execute``.
    """
    try:
        tree = ast.parse(data, str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        if isinstance(error, RecursionError | MemoryError):  # their messages differ by version
            reason = "it nests too deep"
        raise ToolDefinitionError(f"{path}{line}: not Python: {reason}") from None
    if not any(_makes_execute(node) for node in ast.walk(tree)):
        raise ToolDefinitionError(
            f"{path} has no function execute", hint="def execute(arguments: dict) -> dict:"
        )
    return tree


def _makes_execute(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name == "execute"
        case ast.Name():
            return node.id == "execute" and isinstance(node.ctx, ast.Store)
        case ast.alias():
            return (node.asname or node.name) in ("execute", "*")
    return False


def _find_missing_packages(tree: ast.Module, files: Mapping[str, File]) -> tuple[str, ...]:
    """Return the packages that the file needs but that are not installed, sorted.

    Imports within a function, an ``if`` or a ``try`` do not count. The folder's ``files`` can be
    imported too. If a file changes the places where Python searches packages, no package counts as
    missing.
    """
    if _MOVES_PATH.search(files[EXECUTE].data):
        return ()
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    own_modules = {name.partition("/")[0].partition(".")[0] for name in files}
    needed = {name.partition(".")[0] for name in names} - own_modules
    return tuple(sorted(name for name in needed if _is_absent(name)))


@functools.lru_cache(maxsize=1024)
def _is_absent(package: str) -> bool:
    """Return whether a package is not installed, without importing it."""
    if package in sys.modules or package in sys.stdlib_module_names:
        return False
    try:
        return importlib.util.find_spec(package) is None
    except (ImportError, ValueError, AttributeError):  # a finder of modules may raise these
        return False
