"""A tool that is a folder: its files read whole, and what they say held to what may be said.

config.json            what the tool may do and needs; every key is optional
tool_definition.json   name, description and parameters, as OpenAI writes a function
execute.py             a function ``execute(arguments: dict) -> dict``

Every key is known or refused: one that is passed over might have been meant to keep a tool from
something. Passed over is what only tells something about the tool, such as who wrote it.
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
from mlx_tools.schema import check_parameters
from mlx_tools.tools.folder.restrictions import (
    RestrictedEffects,
    Restrictions,
    check_whitelist,
    known_parameters,
)

CONFIG: Final = "config.json"
DEFINITION: Final = "tool_definition.json"
EXECUTE: Final = "execute.py"

FOLDER: Final = "folder"
"""The plugin that the tools of the user's folder are to a policy: ``plugin:folder``."""

DEFAULT_OUTPUT: Final = 1_000_000
"""Bytes that a tool may print, and that its result may have, where its folder says nothing."""

_SPEC_KEYS: Final = ("effects", "timeout", "needs_approval", "retry", "private", "cache")


class ToolFolder(Struct, frozen=True):
    """A tool's folder, read whole.

    ``enabled`` is what its configuration says, ``environment`` which variables it may see,
    ``max_output_bytes`` how much it may print and return. ``restrictions`` are checked before each
    call. ``missing`` are packages that it imports and that are not installed. ``contents`` are its
    files by name, ``digest`` is the SHA-256 of them all. ``older`` is a configuration of the older
    layout.
    """

    path: Path
    spec: ToolSpec
    enabled: bool
    environment: tuple[str, ...]
    max_output_bytes: int
    restrictions: Restrictions
    missing: tuple[str, ...]
    contents: Mapping[str, File]
    digest: str
    older: bool = False

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(len(file.data) for file in self.contents.values())


def read_folder(path: Path) -> ToolFolder:
    """The tool in a folder. Raises ToolDefinitionError, naming the file and the fault."""
    contents = read_files(path, (DEFINITION, EXECUTE))

    def data(name: str, limit: bytes = b"") -> bytes:  # one may have gone meanwhile
        return contents[name].data if name in contents else limit

    name, description, parameters, restricting = _definition(data(DEFINITION), path / DEFINITION)
    given = _json(data(CONFIG, b"{}"), path / CONFIG)
    config = _configuration(given, path / CONFIG, name)
    for key, value in _configuration(restricting, path / DEFINITION, name).items():
        if config.setdefault(key, value) != value:
            raise ToolDefinitionError(f"{path / DEFINITION}: {key}: {CONFIG} says another")
    tree = _check_code(data(EXECUTE), path / EXECUTE)
    restrictions = Restrictions(
        known_parameters(parameters), config.get("mode", ""), tuple(config.get("whitelist", ()))
    )
    if restrictions.whitelist:
        try:
            check_whitelist(restrictions.whitelist, restrictions.parameters)
        except ValueError as error:
            raise ToolDefinitionError(
                f"{path / CONFIG}: whitelist: {error}",
                hint='call a parameter path or command, or give it "format": "path"',
            ) from None
    own = {key: config[key] for key in _SPEC_KEYS if key in config}
    if "effects" in own:
        own["effects"] = frozenset(own["effects"])
    if restrictions.mode:
        own["effects"] = RestrictedEffects(restrictions, own.get("effects"))
    return ToolFolder(
        path=path,
        spec=ToolSpec(name, description, parameters, plugin=FOLDER, **own),
        enabled=config.get("enabled", True),
        environment=tuple(config.get("environment", ())),
        max_output_bytes=config.get("max_output_bytes", DEFAULT_OUTPUT),
        restrictions=restrictions,
        missing=_missing_packages(tree, contents),
        contents=contents,
        digest=digest_of(contents),
        older=_METADATA in given,
    )


def renamed(folder: ToolFolder, name: str) -> ToolFolder:
    """The same tool under another name, in its files as well."""
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
    return replace(folder, spec=spec, contents=contents, digest=digest_of(contents))


def folders_in(path: Path) -> list[Path]:
    """The folders of tools that are meant by ``path``: itself, or where it has none of a tool's
    files, those right below it that have a definition, in order of names."""
    if (path / DEFINITION).exists() or (path / EXECUTE).exists():
        return [path]
    try:
        below = sorted(child for child in path.iterdir() if (child / DEFINITION).is_file())
    except OSError:
        return [path]
    return below or [path]


# --- the files: read whole, within bounds, and what identifies them -------------------------------

MAX_FILES: Final = 1000
MAX_BYTES: Final = 20_000_000
MAX_DEPTH: Final = 20

_CACHES: Final = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis")
LEFT_OUT: Final = frozenset((*_CACHES, ".git", ".DS_Store"))
"""Files of other programs; no part of the tool: not copied, and not in its digest."""


class File(Struct, frozen=True):
    """A file's bytes, and whether it may be executed."""

    data: bytes
    executable: bool


def read_files(path: Path, needed: Iterable[str] = ()) -> dict[str, File]:
    """All files below a folder, by their names in it. Raises ToolDefinitionError where they cannot
    be read, are too many or too large, are anything but files and folders, or where one that is
    ``needed`` is missing: before the rest is read, since it may be any folder."""
    found: dict[str, File] = {}
    left = MAX_BYTES
    try:
        for name in needed:
            at = path / name
            if path.is_dir() and (at.is_dir() or not os.path.lexists(at)):
                raise ToolDefinitionError(
                    f"{at} is missing",
                    hint=f"a tool's folder holds {DEFINITION}, {EXECUTE} and mostly {CONFIG}",
                )
        for name, at in _walk(path, "", MAX_DEPTH):
            found[name] = file = _read(at, left)
            left -= len(file.data)
            if len(found) > MAX_FILES:
                raise ToolDefinitionError(f"{path} holds more than {MAX_FILES} files")
    except OSError as error:
        where = error.filename or path
        raise ToolDefinitionError(f"{where} cannot be read: {error.strerror}") from None
    return found


def digest_of(contents: Mapping[str, File]) -> str:
    """SHA-256 of the files: their names, what is in them, and whether they may be executed."""
    whole = hashlib.sha256()
    for name in sorted(contents):
        file = contents[name]
        inner = hashlib.sha256(file.data).hexdigest()
        whole.update(f"{name!a} {int(file.executable)} {inner}\n".encode())
    return whole.hexdigest()


def write_files(contents: Mapping[str, File], folder: Path) -> None:
    """Makes the folder ``folder`` of these files, for this user alone. Raises OSError."""
    folder.mkdir(mode=0o700)
    for name, file in contents.items():
        at = folder / name
        at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(at, flags, 0o700 if file.executable else 0o600), "wb") as out:
            out.write(file.data)


def _walk(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, Path]]:
    if depth == 0:
        raise ToolDefinitionError(f"{folder} is more than {MAX_DEPTH} folders deep")
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name in LEFT_OUT:
            continue
        at = Path(entry.path)
        if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
            kind = "a symbolic link" if entry.is_symlink() else "no regular file"
            raise ToolDefinitionError(
                f"{at} is {kind}", hint="a tool's folder holds files and folders alone"
            )
        name = prefix + entry.name
        if entry.is_dir():
            yield from _walk(at, f"{name}/", depth - 1)
        else:
            yield name, at


def _read(path: Path, bytes_left: int) -> File:
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

TELLING: Final = frozenset(
    {
        *("author", "authors", "category", "comment", "comments", "created", "description"),
        *("display_name", "examples", "homepage", "icon", "keywords", "label", "license"),
        *("maintainer", "notes", "output_schema", "repository", "returns", "summary", "tags"),
        *("title", "updated", "url", "version"),
    }
)
"""Keys that tell a person something and change nothing; so do those that begin with ``_``, ``$`` or
``x-``."""

_YES_OR_NO: Final = (bool, "true or false")
_SECONDS: Final = (
    Annotated[float, Meta(gt=0, le=86_400)],
    "seconds, more than 0 and at most 86400",
)
_VARIABLE = Annotated[str, Meta(pattern=r"^(?ai:(?!LD_|DYLD_|PYTHON)[A-Z_][A-Z0-9_]*)\Z")]
"""The name of a variable; some of them decide what a program loads."""

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
"""The keys of a configuration: the type of their values, and in words what is one."""

_OTHER_NAMES: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "requires_approval": ("needs_approval", lambda value: value),
    "timeout_seconds": ("timeout", lambda value: value),
    "timeout_ms": ("timeout", lambda value: value / 1000),
}
"""Other names of a key, as such files have them elsewhere, and what a value is under its own."""

_METADATA: Final = "metadata"
_AROUND: Final = ("type", "function")
_SCHEMAS: Final = ("input_schema", "inputSchema")
"""Other names for ``parameters``: Anthropic's and MCP's."""
_FUNCTION: Final = ("name", "description", "parameters", "strict", "type")
_RESTRICTING: Final = ("mode", "whitelist", "needs_approval", "requires_approval")
"""Keys of a configuration that a definition may have, too."""


def _configuration(values: Mapping[str, Any], path: Path, name: str) -> dict[str, Any]:
    """The keys of ``config.json`` under their own names; an older layout has some of them within
    ``metadata``. ``name`` is the tool's. Raises ToolDefinitionError, naming the key and what is
    allowed."""
    _check_keys(values, (*_KEYS, _METADATA), path, "")
    older: Any = values.get(_METADATA, {})
    if not isinstance(older, dict):
        raise ToolDefinitionError(f"{path}: {_METADATA}: expected an object")
    _check_keys(older, tuple(_KEYS), path, f"{_METADATA}.")
    config: dict[str, Any] = {}
    said: list[tuple[str, Any]] = [*values.items(), *older.items()]
    for key, value in said:
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
        own, change = _OTHER_NAMES.get(key, (key, lambda value: value))
        if own in config:
            raise ToolDefinitionError(f"{path}: {key}: it says {own} once more")
        config[own] = change(value)
    if config.get("name", name) != name:
        raise ToolDefinitionError(
            f"{path}: name: {config['name']!r:.80} is not the name in {DEFINITION}, {name}"
        )
    return config


def _definition(data: bytes, path: Path) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """Name, description, parameters and restrictions of ``tool_definition.json``: a function as
    OpenAI writes it, with or without ``{"type": "function", "function": …}`` around it. Raises
    ToolDefinitionError."""
    value, place = _json(data, path), ""
    function = value.get("function", value)
    if value.get("type", "function") != "function" or not isinstance(function, dict):
        raise ToolDefinitionError(
            f"{path}: expected a function definition",
            hint='{"type": "function", "function": {"name": …, "description": …, …}}',
        )
    if function is not value:
        place = "function."
        _check_keys(value, _AROUND, path, "", optional_keys=_RESTRICTING)
    _check_keys(function, _FUNCTION, path, place, optional_keys=_RESTRICTING)
    restricting: dict[str, Any] = {}
    for key, said in (*value.items(), *function.items()):
        if key in _RESTRICTING and restricting.setdefault(key, said) != said:
            raise ToolDefinitionError(f"{path}: {key}: it says {key} twice")
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not name.strip():
        raise ToolDefinitionError(f"{path}: {place}name: expected a text")
    if not isinstance(description, str | None):
        raise ToolDefinitionError(f"{path}: {place}description: expected a text")
    given = function.get("parameters")
    if not isinstance(given, dict | None):
        raise ToolDefinitionError(f"{path}: {place}parameters: expected a JSON Schema")
    parameters = {"type": "object", **({"properties": {}} if given is None else given)}
    try:
        ToolSpec(name)
        check_parameters(parameters)
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"{path}: {error.message}", hint=error.hint) from None
    return name, description or "", parameters, restricting


def _json(data: bytes, path: Path) -> dict[str, Any]:
    from mlx_tools.protocol import strict

    try:
        text = data.decode("utf-8-sig")
        value = strict.loads(text)
    except UnicodeDecodeError:
        raise ToolDefinitionError(f"{path} is not UTF-8 text") from None
    except strict.Unreadable as error:
        said = str(error)
        try:
            json.loads(text)
        except json.JSONDecodeError as found:  # it knows where: a person mends it
            said = f"{found.msg} (line {found.lineno}, column {found.colno})"
        except (ValueError, RecursionError):
            pass
        raise ToolDefinitionError(f"{path} is not JSON: {said}") from None
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
            or key in TELLING
            or key.startswith(("_", "$", "x-"))
        )
    )
    if unknown:
        hint = did_you_mean(unknown[0], known_keys, f"known are {', '.join(known_keys)}")
        if known_keys is _AROUND and unknown[0] in _FUNCTION:
            hint = "it belongs within function"
        elif unknown[0] in _SCHEMAS:
            hint = "it is called parameters here"
        elif unknown[0] in _KEYS:
            hint = f"it belongs in {CONFIG}"
        raise ToolDefinitionError(f"{path}: {place}{unknown[0][:80]}: unknown key", hint=hint)


# --- execute.py, as it looks to somebody who does not run it --------------------------------------

_MOVES_PATH: Final = re.compile(
    rb"\bsys\s*\.\s*(?:meta_)?path\b|\bfrom\s+sys\s+import\b|\bimport\b.*\bsite\b|\baddsitedir\b"
)
"""In a file that changes where Python looks for packages."""


def _check_code(data: bytes, path: Path) -> ast.Module:
    """The file's syntax tree. Raises ToolDefinitionError where it is not Python, or makes nothing
    called ``execute``."""
    try:
        tree = ast.parse(data, str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        if isinstance(error, RecursionError | MemoryError):  # each Python has other words for it
            said = "it nests too deep"
        raise ToolDefinitionError(f"{path}{line}: not Python: {said}") from None
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


def _missing_packages(tree: ast.Module, files: Mapping[str, File]) -> tuple[str, ...]:
    """The packages that the file cannot do without and that are not installed, in order of names.

    Only imports that are made in any case count: not those within a function, an ``if`` or a
    ``try``. The folder's ``files`` can be imported too. A file that changes where Python looks for
    packages is believed to find them.
    """
    if _MOVES_PATH.search(files[EXECUTE].data):
        return ()
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    own = {name.partition("/")[0].partition(".")[0] for name in files}
    wanted = {name.partition(".")[0] for name in names} - own
    return tuple(sorted(name for name in wanted if _absent(name)))


@functools.lru_cache(maxsize=1024)
def _absent(package: str) -> bool:
    """Return whether there is no such package; nothing is imported."""
    if package in sys.modules or package in sys.stdlib_module_names:
        return False
    try:
        return importlib.util.find_spec(package) is None
    except (ImportError, ValueError, AttributeError):  # of what finds modules here
        return False
