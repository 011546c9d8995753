"""The part of `mlx-tools tools` that changes which tools there are: folders added, tools switched.

What a folder says of itself is shown before it is added, and nothing in it is run.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, Final

import typer

from mlx_tools.app import tools_of
from mlx_tools.cli import options
from mlx_tools.cli.bind import bind
from mlx_tools.cli.call_text import ShownLine, as_name, exact, in_words, show_all
from mlx_tools.cli.inputs import confirmed
from mlx_tools.cli.options import Yes, argument, option
from mlx_tools.cli.output import complain, note, print_text
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError
from mlx_tools.messages import ALL_EFFECTS, ToolSpec, names_of
from mlx_tools.policy import BUILTIN, Policy, denial
from mlx_tools.tools import (
    NO_SUCH,
    PLUGIN,
    BoundSources,
    Registry,
    ToolCollection,
    ToolFolder,
    folders_in,
    read_folder,
    write_template,
)

ALLOW: Final = "to allow it in a run: --tools {name}"
_SHOWN_FILES: Final = 20
_NO_SANDBOX: Final = (
    "It runs as you, with your rights, in no sandbox: what it says of effects is believed."
)

Named = Annotated[str, argument("NAME", "The tool.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to the group."""
    for command in (new, add, bind, trust, enable, disable, remove):
        app.command()(command)


def lacking(name: str, registry: Registry, policy: Policy) -> str | None:
    """Why a tool cannot be called, and what helps where an option does; None where it can be."""
    lacks = registry.lacks(name, policy)
    spec = registry.specs().get(registry.named(name))  # None where it is disabled
    denied = denial(policy, spec) if spec is not None else None
    helps = denied is not None and denied.rule == "default"
    return f"{lacks}; {ALLOW.format(name=name)}" if lacks and helps else lacks


def new(
    name: Named,
    folder: Annotated[Path, option("--folder DIR", "Where its folder is made.")] = Path(),
) -> None:
    """Write a new tool to begin with: a folder that works, with a test. It is used where it is,
    as it is at each call, until it is added."""
    _refuse_taken(name, _tools().all_specs())
    made = write_template(folder, name)
    ToolCollection().make(name, made)
    print_text(str(made))
    near = quote(str(folder / name))
    call = f"""mlx-tools tools call {name} '{{"text": "a b"}}' --tools {name}"""
    note(f"try it: pytest {near}; or: {call}")
    note(f"what you change counts at the next call; when it is done: mlx-tools tools add {near}")


def add(
    folder: Annotated[Path, argument("DIR", "The tool's folder, or a folder of such folders.")],
    yes: Yes = False,
) -> int:
    """Add the tool in a folder, or each in it: its files are copied and trusted."""
    collection = ToolCollection()
    if folder.is_file():
        raise UsageError(f"{folder} is a file", hint=f"name its folder: {folder.parent}")
    found = [read_folder(one) for one in folders_in(folder.absolute())]
    taken = _tools().all_specs()
    for one in found:
        _refuse_taken(one.spec.name, taken, one.whitelist)
    for name, times in Counter(one.spec.name for one in found).items():
        if times > 1:
            raise UsageError(f"{times} of the folders in {folder} hold a tool {name}")
    added: list[str] = []
    try:
        for one in found:
            name = one.spec.name
            verb = "Replace" if (collection.folder / name).exists() else "Add"
            if _agreed(one, f"{verb} {name} in {collection.folder}?", yes):
                print_text(str(collection.add(one).path))
                added.append(name)
    finally:
        _tell(added)
    return EXIT_OK if len(added) == len(found) else EXIT_STOPPED


def trust(name: Named, yes: Yes = False) -> int:
    """Trust the files of a tool in the tools folder as they are now."""
    collection = _collection_of(name, "only tools that are folders are trusted by their files")
    found = collection.read(name)
    if not _agreed(found, f"Trust {name} as it is?", yes):
        return EXIT_STOPPED
    collection.trust(found)
    _tell([name])
    return EXIT_OK


def enable(name: Named) -> None:
    """Switch a tool on."""
    _switch(name, True)
    _tell([name])


def disable(name: Named) -> None:
    """Switch a tool off, wherever it comes from."""
    _switch(name, False)
    complain(f"{name} is off (mlx-tools tools enable {name})", kind="done")


def remove(name: Named, yes: Yes = False) -> int:
    """Delete a tool from the tools folder, or a source of bound tools."""
    sources = BoundSources()
    if name in sources.names():
        if not confirmed(f"Forget {name} and its tools?", yes):
            return EXIT_STOPPED
        sources.remove(name)
        complain(f"removed {name}", kind="done")
        return EXIT_OK
    collection = _collection_of(name, f"mlx-tools tools disable {name}")
    if path := collection.said().making.get(name):
        collection.make(name, None)
        complain(f"{name} is used no more; its folder stays: {in_words(path)}", kind="done")
        return EXIT_OK
    if not confirmed(f"Delete {collection.must_have(name)}?", yes):
        return EXIT_STOPPED
    collection.remove(name)
    complain(f"removed {name}", kind="done")
    return EXIT_OK


def tell_printed(name: str) -> None:
    """Show whoever makes a tool what its last call printed, and its traceback."""
    collection = ToolCollection()
    if name not in collection.said().making:
        return
    with contextlib.suppress(OSError):
        text = collection.log_of(name).read_text(encoding="utf-8", errors="replace")
        if text.strip():
            note(f"its last call printed, in {collection.said().making[name]}:")
            show_all(ShownLine(in_words(line), foreign=True) for line in text.split("\n"))


def _tools() -> Registry:
    return tools_of(options.load({}))


def _switch(name: str, on: bool) -> None:
    registry = _tools()
    name = registry.named(name)
    spec = registry.all_specs().get(name)
    if spec is None and registry.lacks(name, Policy()) == NO_SUCH:
        raise UsageError(
            f"there is no tool {name[:100]}", hint="mlx-tools tools list says which there are"
        )
    own = spec is None or spec.plugin == PLUGIN
    ToolCollection().switch(name, on if own or not on else None)


def _refuse_taken(name: str, taken: Mapping[str, ToolSpec], whitelist: Sequence[str] = ()) -> None:
    """Raises UsageError where a tool that is no folder of the user's has this name."""
    for other in (name, *names_of(name)):
        if other in taken and taken[other].plugin != PLUGIN:
            hint = "give yours another name"
            if whitelist and taken[other].plugin == BUILTIN:
                hint += (
                    f"; that one can be held to the same paths: --root DIR:ro:{':'.join(whitelist)}"
                )
            raise UsageError(
                f"there is a tool {other} already ({_origin(taken[other].plugin)})", hint=hint
            )


def _collection_of(name: str, hint: str) -> ToolCollection:
    """The tools folder. Raises UsageError where the tool of this name comes from elsewhere."""
    collection, registry = ToolCollection(), _tools()
    spec = registry.all_specs().get(registry.named(name))
    if spec is not None and spec.plugin != PLUGIN:
        raise UsageError(
            f"{name} is not in {collection.folder} ({_origin(spec.plugin)})", hint=hint
        )
    return collection


def _tell(names: Sequence[str]) -> None:
    """Tell of each of these tools that it can be called now, or what still keeps it from that."""
    if not names:
        return
    loaded = options.load({})
    registry, policy = tools_of(loaded), loaded.policy()
    for name in names:
        lacks = lacking(name, registry, policy)
        if lacks is not None:
            on = " is on;" if registry.named(name) in registry.specs() else ":"
            note(f"{name}{on} {lacks}")
        else:
            complain(f"{name} can be called", kind="done")


def _agreed(found: ToolFolder, question: str, yes: bool) -> bool:
    show_all(_declared(found))
    return confirmed(question, yes)


def _declared(found: ToolFolder) -> Iterator[ShownLine]:
    """The tool's own words, for a person who decides about it: nothing of it can look like
    a line of ours."""
    spec = found.spec
    yield ShownLine(f"{as_name(spec.name)}, from {in_words(str(found.path))}")
    for line in spec.description.split("\n"):
        yield ShownLine(in_words(line), foreign=True)
    for line in exact(spec.parameters).split("\n"):
        yield ShownLine(line, foreign=True)
    everything = spec.effects == ALL_EFFECTS
    effects = ", ".join(sorted(spec.possible_effects)) or "none"
    yield ShownLine(f"effects: {effects}{' (all there are)' if everything else ''}")
    yield ShownLine(f"approval before every call: {'yes' if spec.needs_approval else 'no'}")
    yield ShownLine(f"time: {f'{spec.timeout:g} s' if spec.timeout else 'that of the run'}")
    if found.whitelist:
        patterns = ", ".join(map(in_words, found.whitelist))
        yield ShownLine(f"paths that it may be given: {patterns} (in {', '.join(found.paths)})")
    if found.missing:
        yield ShownLine(
            f"it imports what is not installed: {', '.join(map(in_words, found.missing))}"
        )
    yield ShownLine(f"variables it sees: {', '.join(found.environment) or 'none of yours'}")
    yield ShownLine(f"files: {len(found.contents)}, {found.size} bytes, digest {found.digest}")
    for name, file in sorted(found.contents.items())[:_SHOWN_FILES]:
        yield ShownLine(f"{in_words(name)}  {len(file.data)} bytes", foreign=True)
    if len(found.contents) > _SHOWN_FILES:
        yield ShownLine(f"and {len(found.contents) - _SHOWN_FILES} more")
    yield ShownLine(_NO_SANDBOX)


def _origin(plugin: str) -> str:
    return "built in" if plugin == BUILTIN else f"of {plugin}"
