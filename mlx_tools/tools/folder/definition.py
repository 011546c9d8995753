"""A tool that is a folder: what its files say of it, held to what may be said.

config.json            what the tool may do and needs; every key is optional
tool_definition.json   name, description and parameters, as OpenAI writes a function
execute.py             a function ``execute(arguments: dict) -> dict``
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import ToolSpec
from mlx_tools.tools.declaration import check_declared
from mlx_tools.tools.folder import PLUGIN
from mlx_tools.tools.folder.code import check_code, missing_packages
from mlx_tools.tools.folder.contents import File, digest_of, read_files
from mlx_tools.tools.folder.declared import CONFIG, DEFINITION, configuration, definition

EXECUTE: Final = "execute.py"

DEFAULT_OUTPUT: Final = 1_000_000
"""Bytes that a tool may print, and that its result may have, where its folder says nothing."""

_SPEC_KEYS: Final = ("effects", "timeout", "needs_approval", "retry", "private", "cache")


@dataclass(frozen=True, slots=True)
class ToolFolder:
    """A tool's folder, read whole.

    ``enabled`` is what its configuration says, ``environment`` which variables it may see,
    ``max_output_bytes`` how much it may print and return. ``missing`` are packages that it imports
    and that are not installed. ``contents`` are its files by name, ``digest`` is the SHA-256 of
    them all.
    """

    path: Path
    spec: ToolSpec
    enabled: bool
    environment: tuple[str, ...]
    max_output_bytes: int
    missing: tuple[str, ...]
    contents: Mapping[str, File]
    digest: str

    @property
    def execute(self) -> Path:
        """The file that is run."""
        return self.path / EXECUTE

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(len(file.data) for file in self.contents.values())


def read_folder(path: Path) -> ToolFolder:
    """The tool in a folder. Raises ToolDefinitionError, naming the file and the fault."""
    with contextlib.suppress(OSError):  # before all is read: it may be any folder
        _check_complete(path, {child.name for child in path.iterdir()})
    contents = read_files(path)
    _check_complete(path, contents)
    name, description, parameters = definition(contents[DEFINITION].data, path / DEFINITION)
    config = configuration(contents.get(CONFIG, File(b"{}", False)).data, path / CONFIG, name)
    tree = check_code(contents[EXECUTE].data, path / EXECUTE)
    own = {key: config[key] for key in _SPEC_KEYS if key in config}
    if "effects" in own:
        own["effects"] = frozenset(own["effects"])
    try:
        spec = ToolSpec(name, description, parameters, plugin=PLUGIN, **own)
        check_declared(spec)
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"{path}: {error.message}", hint=error.hint) from None
    return ToolFolder(
        path=path,
        spec=spec,
        enabled=config.get("enabled", True),
        environment=tuple(config.get("environment", ())),
        max_output_bytes=config.get("max_output_bytes", DEFAULT_OUTPUT),
        missing=missing_packages(tree, contents),
        contents=contents,
        digest=digest_of(contents),
    )


def _check_complete(path: Path, names: Container[str]) -> None:
    """Raises ToolDefinitionError where a folder that has these names lacks what each tool's has."""
    for name in (DEFINITION, EXECUTE):
        if name not in names:
            raise ToolDefinitionError(
                f"{path / name} is missing",
                hint=f"a tool's folder holds {DEFINITION}, {EXECUTE} and mostly {CONFIG}",
            )


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
