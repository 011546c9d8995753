"""The commands of `mlx-tools tools` that change the tools.

Add folders, switch on and off.

A folder's own description is shown before it is added, and nothing in it is run.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from mlx_tools.app import tools_of
from mlx_tools.cli import options
from mlx_tools.cli.call_text import TextLine, as_name, exact, in_words, show_all
from mlx_tools.cli.completion import tool_names
from mlx_tools.cli.inputs import confirm
from mlx_tools.cli.options import Yes, argument
from mlx_tools.cli.output import complain, note, print_text
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError
from mlx_tools.messages import ALL_EFFECTS, ToolSpec, names_of
from mlx_tools.paths import read_regular
from mlx_tools.policy import BUILTIN, Policy, find_denial
from mlx_tools.tools import (
    FOLDER,
    NO_SUCH,
    BoundSources,
    Registry,
    ToolCollection,
    ToolFolder,
    find_folders,
    read_folder,
    rename_folder,
    write_template,
)

ALLOW: Final = "to allow it in a run: --tools {name}"
_NO_SANDBOX: Final = (
    "It runs as you, with your rights, in no sandbox: what it says of effects is believed."
)

ToolName = Annotated[str, argument("NAME", "The tool.", autocompletion=tool_names)]


def register(app: typer.Typer) -> None:
    """Add the commands to the group."""
    for command in (new, add, trust, enable, disable, remove):
        app.command()(command)


def lacking(name: str, registry: Registry, policy: Policy) -> str | None:
    """Return why a tool cannot be called, with an option that helps.

    None if it can be called.
    """
    reason = registry.lacks(name, policy)
    spec = registry.specs().get(registry.resolve_name(name))  # None if it is disabled
    denied = find_denial(policy, spec) if spec is not None else None
    option_helps = denied is not None and denied.rule == "default"
    return f"{reason}; {ALLOW.format(name=name)}" if reason and option_helps else reason


def new(name: Annotated[str, argument("NAME", "The tool.")]) -> None:
    """Write a new tool to begin with: a folder that works, with a test.

    It is used where it is, as it is at each call, until it is added.
    """
    _refuse_taken(name, _tools().all_specs())
    folder = write_template(Path(), name)
    ToolCollection().make(name, folder)
    print_text(str(folder), exact=True)
    call = f"""mlx-tools tools call {name} '{{"text": "a b"}}' --tools {name}"""
    note(f"try it: pytest {name}; or: {call}")
    note(f"what you change counts at the next call; when it is done: mlx-tools tools add {name}")


def add(
    folder: Annotated[Path, argument("DIR", "The tool's folder, or a folder of such folders.")],
    yes: Yes = False,
) -> int:
    """Add the tool in a folder, or each in it: its files are copied and trusted."""
    collection = ToolCollection()
    if folder.is_file():
        raise UsageError(f"{folder} is a file", hint=f"name its folder: {folder.parent}")
    existing = _tools().all_specs()
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
            if _agreed(candidate, f"{verb} {name} in {collection.folder}?", yes):
                print_text(str(collection.add(candidate).path), exact=True)
                added.append(name)
    finally:
        _tell(added)
    return EXIT_OK if len(added) == len(candidates) else EXIT_STOPPED


def trust(name: ToolName, yes: Yes = False) -> int:
    """Trust the files of a tool in the tools folder as they are now."""
    collection = _collection_of(name, "only tools that are folders are trusted by their files")
    folder = collection.read(name)
    if not _agreed(folder, f"Trust {name} as it is?", yes):
        return EXIT_STOPPED
    collection.trust(folder)
    _tell([name])
    return EXIT_OK


def enable(name: ToolName) -> None:
    """Switch a tool on."""
    _switch(name, True)
    _tell([name])


def disable(name: ToolName) -> None:
    """Switch a tool off, wherever it comes from."""
    _switch(name, False)
    complain(f"{name} is off (mlx-tools tools enable {name})", kind="done")


def remove(name: ToolName, yes: Yes = False) -> int:
    """Delete a tool from the tools folder, or a source of bound tools."""
    sources = BoundSources()
    if name in sources.names():
        if not confirm(f"Forget {name} and its tools?", yes):
            return EXIT_STOPPED
        sources.remove(name)
        complain(f"removed {name}", kind="done")
        return EXIT_OK
    collection = _collection_of(name, f"mlx-tools tools disable {name}")
    if path := collection.load_record().making.get(name):
        collection.make(name, None)
        complain(f"{name} is used no more; its folder stays: {in_words(path)}", kind="done")
        return EXIT_OK
    if not confirm(f"Delete {collection.find_folder(name)}?", yes):
        return EXIT_STOPPED
    collection.remove(name)
    complain(f"removed {name}", kind="done")
    return EXIT_OK


def tell_printed(name: str) -> None:
    """Show the author of a tool what its last call printed, and its traceback."""
    collection = ToolCollection()
    if name not in collection.load_record().making:
        return
    with contextlib.suppress(OSError):
        text = read_regular(collection.log_path(name)).decode("utf-8", "replace")
        if text.strip():
            note(f"its last call printed, in {collection.load_record().making[name]}:")
            show_all(TextLine(in_words(line), foreign=True) for line in text.split("\n"))


def _tools() -> Registry:
    return tools_of(options.load({}))


def _switch(name: str, is_on: bool) -> None:
    registry = _tools()
    name = registry.resolve_name(name)
    spec = registry.all_specs().get(name)
    if spec is None and registry.lacks(name, Policy()) == NO_SUCH:
        raise UsageError(
            f"there is no tool {name[:100]}", hint="mlx-tools tools list says which there are"
        )
    is_folder = spec is None or spec.plugin == FOLDER
    ToolCollection().switch(name, is_on if is_folder or not is_on else None)


def _free(folder: ToolFolder, taken_names: Mapping[str, ToolSpec]) -> ToolFolder:
    """Return the tool, renamed if a built-in tool has its name now.

    Only an older layout can have given it that name.

    A note says how the built-in tool does the same.
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
        UsageError: a tool that is no folder of the user's has this name.
    """
    for alias in (name, *names_of(name)):
        if alias in taken_names and taken_names[alias].plugin != FOLDER:
            raise UsageError(
                f"there is a tool {alias} already ({_origin(taken_names[alias].plugin)})",
                hint="give yours another name",
            )


def _collection_of(name: str, hint: str) -> ToolCollection:
    """Return the tools folder.

    Raises:
        UsageError: the tool of this name is not in it.
    """
    collection, registry = ToolCollection(), _tools()
    spec = registry.all_specs().get(registry.resolve_name(name))
    if spec is not None and spec.plugin != FOLDER:
        raise UsageError(
            f"{name} is not in {collection.folder} ({_origin(spec.plugin)})", hint=hint
        )
    return collection


def _tell(names: Sequence[str]) -> None:
    """Report for each tool that it can be called now, or what is still missing."""
    if not names:
        return
    loaded = options.load({})
    registry, policy = tools_of(loaded), loaded.policy()
    for name in names:
        reason = lacking(name, registry, policy)
        if reason is not None:
            separator = " is on;" if registry.resolve_name(name) in registry.specs() else ":"
            note(f"{name}{separator} {reason}")
        else:
            complain(f"{name} can be called", kind="done")


def _agreed(folder: ToolFolder, question: str, yes: bool) -> bool:
    show_all(_describe_tool(folder))
    return confirm(question, yes)


def _describe_tool(folder: ToolFolder) -> Iterator[TextLine]:
    """Yield a tool's description for a person who decides about it.

    Nothing of it can look like a line of ours.
    """
    spec = folder.spec
    yield TextLine(f"{as_name(spec.name)}, from {in_words(str(folder.path))}")
    for line in spec.description.split("\n"):
        yield TextLine(in_words(line), foreign=True)
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
        patterns = ", ".join(map(in_words, restrictions.whitelist))
        names = ", ".join(map(in_words, sorted(parameters.paths | parameters.commands)))
        yield TextLine(f"{' and '.join(kinds)} that it may be given: {patterns} (in {names})")
    if folder.missing:
        yield TextLine(
            f"it needs packages that are not installed: {', '.join(map(in_words, folder.missing))}"
        )
    yield TextLine(f"variables it sees: {', '.join(folder.environment) or 'none of yours'}")
    yield TextLine(f"files: {len(folder.contents)}, {folder.size} bytes, digest {folder.digest}")
    for name, file in sorted(folder.contents.items()):
        yield TextLine(f"{in_words(name)}  {len(file.data)} bytes", foreign=True)
    yield TextLine(_NO_SANDBOX)


def _origin(plugin: str) -> str:
    return "built in" if plugin == BUILTIN else f"of {plugin}"
