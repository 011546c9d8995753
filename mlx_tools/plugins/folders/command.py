"""The commands of `mlx-tools tools` that make and add tools in folders.

A folder's own description is shown before it is added, and nothing in it is run.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from mlx_tools.cli.call_text import TextLine, escape_line, escape_name, exact, show_all
from mlx_tools.cli.inputs import confirm
from mlx_tools.cli.options import Yes, argument
from mlx_tools.cli.output import note, print_text
from mlx_tools.cli.tool_switches import ToolName, describe_origin, load_tools, tell_callable
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError
from mlx_tools.messages import ALL_EFFECTS, ToolSpec, list_names
from mlx_tools.plugins.folders.collection import ToolCollection, write_template
from mlx_tools.plugins.folders.definition import (
    ToolFolder,
    find_folders,
    read_folder,
    rename_folder,
)
from mlx_tools.policy import BUILTIN
from mlx_tools.tools import FOLDER

_NO_SANDBOX: Final = (
    "It runs as you, with your rights, in no sandbox: what it says of effects is believed."
)

new_app, add_app, trust_app = (typer.Typer(add_completion=False) for _ in range(3))


@new_app.command()
def new(name: Annotated[str, argument("NAME", "The tool.")]) -> None:
    """Write a new tool to begin with: a folder that works, with a test.

    Until it is added, each call uses the present files of this folder.
    """
    _refuse_taken(name, load_tools().all_specs())
    folder = write_template(Path(), name)
    try:
        ToolCollection().make(name, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # it is not used, and would block the name
        raise
    print_text(str(folder), exact=True)
    call = f"""mlx-tools tools call {name} '{{"text": "a b"}}' --tools {name}"""
    note(f"try it: pytest {name}; or: {call}")
    note(f"what you change counts at the next call; when it is done: mlx-tools tools add {name}")


@add_app.command()
def add(
    folder: Annotated[Path, argument("DIR", "The tool's folder, or a folder of such folders.")],
    yes: Yes = False,
) -> int:
    """Add the tool in a folder, or each in it: its files are copied and trusted."""
    collection = ToolCollection()
    if folder.is_file():
        raise UsageError(f"{folder} is a file", hint=f"name its folder: {folder.parent}")
    existing = load_tools().all_specs()
    candidates = [
        _free(read_folder(candidate), existing) for candidate in find_folders(folder.absolute())
    ]
    for candidate in candidates:
        _refuse_taken(candidate.spec.name, existing)
    for name, count in Counter(candidate.spec.name for candidate in candidates).items():
        if count > 1:
            raise UsageError(f"{count} of the folders in {folder} hold a tool {name}")
    added: list[str] = []
    try:
        for candidate in candidates:
            name = candidate.spec.name
            verb = "Replace" if (collection.folder / name).exists() else "Add"
            if _confirm_tool(candidate, f"{verb} {name} in {collection.folder}?", yes):
                print_text(str(collection.add(candidate).path), exact=True)
                added.append(name)
    finally:
        tell_callable(added)
    return EXIT_OK if len(added) == len(candidates) else EXIT_STOPPED


@trust_app.command()
def trust(name: ToolName, yes: Yes = False) -> int:
    """Trust the present files of a tool in the tools folder."""
    collection = _load_collection(name, "only tools that are folders are trusted by their files")
    folder = collection.read(name)
    if not _confirm_tool(folder, f"Trust {name} as it is?", yes):
        return EXIT_STOPPED
    collection.trust(folder)
    tell_callable([name])
    return EXIT_OK


def _free(folder: ToolFolder, taken_names: Mapping[str, ToolSpec]) -> ToolFolder:
    """Return the tool, renamed if a built-in tool has its name now.

    This can only happen to a tool of the older layout. A note says how the built-in tool can do the
    same.
    """
    restrictions = folder.restrictions
    patterns = restrictions.whitelist if restrictions.parameters.paths else ()
    name, paths = folder.spec.name, ":".join(patterns)
    if not folder.older or name not in taken_names or taken_names[name].plugin != BUILTIN:
        return folder
    free_name = f"{name}_folder"
    advice = f"; that one can be held to the same paths: --root DIR:ro:{paths}" if paths else ""
    note(f"{name} is built in: yours is called {free_name}{advice}")
    return rename_folder(folder, free_name)


def _refuse_taken(name: str, taken_names: Mapping[str, ToolSpec]) -> None:
    """Refuse a name that another tool has.

    Raises:
        UsageError: a tool from elsewhere than the tools folder has this name.
    """
    for alias in (name, *list_names(name)):
        if alias in taken_names and taken_names[alias].plugin != FOLDER:
            raise UsageError(
                f"there is a tool {alias} already ({describe_origin(taken_names[alias].plugin)})",
                hint="give yours another name",
            )


def _load_collection(name: str, hint: str) -> ToolCollection:
    """Return the tools folder.

    Raises:
        UsageError: it does not have a tool of this name.
    """
    collection, registry = ToolCollection(), load_tools()
    spec = registry.all_specs().get(registry.resolve_name(name))
    if spec is not None and spec.plugin != FOLDER:
        raise UsageError(
            f"{name} is not in {collection.folder} ({describe_origin(spec.plugin)})", hint=hint
        )
    return collection


def _confirm_tool(folder: ToolFolder, question: str, yes: bool) -> bool:
    show_all(_describe_tool(folder))
    return confirm(question, yes)


def _describe_tool(folder: ToolFolder) -> Iterator[TextLine]:
    """Yield a tool's description for a person who decides about it.

    Its texts are escaped and marked, so that none can look like a line of ours.
    """
    spec = folder.spec
    yield TextLine(f"{escape_name(spec.name)}, from {escape_line(str(folder.path))}")
    for line in spec.description.split("\n"):
        yield TextLine(escape_line(line), foreign=True)
    for line in exact(spec.parameters).split("\n"):
        yield TextLine(line, foreign=True)
    has_all_effects = spec.effects == ALL_EFFECTS
    effects = ", ".join(sorted(spec.possible_effects)) or "none"
    yield TextLine(f"effects: {effects}{' (all there are)' if has_all_effects else ''}")
    yield TextLine(f"approval before every call: {'yes' if spec.needs_approval else 'no'}")
    yield TextLine(f"time: {f'{spec.timeout:g} s' if spec.timeout else 'that of the run'}")
    restrictions = folder.restrictions
    if restrictions.mode == "ro":
        yield TextLine("mode ro: calls whose operation does not read or list are refused")
    if restrictions.whitelist:
        parameters = restrictions.parameters
        kinds = [kind for kind in ("paths", "commands") if getattr(parameters, kind)]
        patterns = ", ".join(map(escape_line, restrictions.whitelist))
        names = ", ".join(map(escape_line, sorted(parameters.paths | parameters.commands)))
        yield TextLine(f"{' and '.join(kinds)} that it may be given: {patterns} (in {names})")
    if folder.missing:
        names = ", ".join(map(escape_line, folder.missing))
        yield TextLine(f"it needs packages that are not installed: {names}")
    yield TextLine(f"variables it sees: {', '.join(folder.environment) or 'none of yours'}")
    yield TextLine(f"files: {len(folder.contents)}, {folder.size} bytes, digest {folder.digest}")
    for name, file in sorted(folder.contents.items()):
        yield TextLine(f"{escape_line(name)}  {len(file.data)} bytes", foreign=True)
    yield TextLine(_NO_SANDBOX)
