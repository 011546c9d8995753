"""The part of `mlx-tools tools` that changes which tools there are: folders added, tools switched.

What a folder says of itself is shown before it is added, and nothing in it is run.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mlx_tools.app import tools_of
from mlx_tools.cli import options
from mlx_tools.cli.call_text import TextLine, as_name, diff_sources, exact, in_words, show_all
from mlx_tools.cli.inputs import MAX_BYTES, confirm, read_bytes
from mlx_tools.cli.options import Yes, argument, option
from mlx_tools.cli.output import complain, count_noun, cut, note, print_text
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError, did_you_mean
from mlx_tools.messages import ALL_EFFECTS, ToolSpec, names_of
from mlx_tools.paths import read_regular
from mlx_tools.policy import BUILTIN, Policy, find_denial
from mlx_tools.tools import (
    FOLDER,
    NO_SUCH,
    PLACE_FORM,
    BoundSource,
    BoundSources,
    BoundTool,
    OpenApiDocument,
    OperationRefused,
    Registry,
    ToolCollection,
    ToolFolder,
    folders_in,
    parse_secret,
    read_document,
    read_folder,
    renamed,
    server_fault,
    with_effects,
    write_template,
)

ALLOW: Final = "to allow it in a run: --tools {name}"
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
    denied = find_denial(policy, spec) if spec is not None else None
    helps = denied is not None and denied.rule == "default"
    return f"{lacks}; {ALLOW.format(name=name)}" if lacks and helps else lacks


def new(name: Named) -> None:
    """Write a new tool to begin with: a folder that works, with a test. It is used where it is,
    as it is at each call, until it is added."""
    _refuse_taken(name, _tools().all_specs())
    made = write_template(Path(), name)
    ToolCollection().make(name, made)
    print_text(str(made), exact=True)
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
    taken = _tools().all_specs()
    found = [_free(read_folder(one), taken) for one in folders_in(folder.absolute())]
    for one in found:
        _refuse_taken(one.spec.name, taken)
    for name, times in Counter(one.spec.name for one in found).items():
        if times > 1:
            raise UsageError(f"{times} of the folders in {folder} hold a tool {name}")
    added: list[str] = []
    try:
        for one in found:
            name = one.spec.name
            verb = "Replace" if (collection.folder / name).exists() else "Add"
            if _agreed(one, f"{verb} {name} in {collection.folder}?", yes):
                print_text(str(collection.add(one).path), exact=True)
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
        if not confirm(f"Forget {name} and its tools?", yes):
            return EXIT_STOPPED
        sources.remove(name)
        complain(f"removed {name}", kind="done")
        return EXIT_OK
    collection = _collection_of(name, f"mlx-tools tools disable {name}")
    if path := collection.said().making.get(name):
        collection.make(name, None)
        complain(f"{name} is used no more; its folder stays: {in_words(path)}", kind="done")
        return EXIT_OK
    if not confirm(f"Delete {collection.must_have(name)}?", yes):
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
        text = read_regular(collection.log_of(name)).decode("utf-8", "replace")
        if text.strip():
            note(f"its last call printed, in {collection.said().making[name]}:")
            show_all(TextLine(in_words(line), foreign=True) for line in text.split("\n"))


def _tools() -> Registry:
    return tools_of(options.load({}))


def _switch(name: str, is_on: bool) -> None:
    registry = _tools()
    name = registry.named(name)
    spec = registry.all_specs().get(name)
    if spec is None and registry.lacks(name, Policy()) == NO_SUCH:
        raise UsageError(
            f"there is no tool {name[:100]}", hint="mlx-tools tools list says which there are"
        )
    own = spec is None or spec.plugin == FOLDER
    ToolCollection().switch(name, is_on if own or not is_on else None)


def _free(folder: ToolFolder, taken_names: Mapping[str, ToolSpec]) -> ToolFolder:
    """The tool, which an older layout may have given the name of one that is built in now: then
    under another, and that one's way to the same is told."""
    restrictions = folder.restrictions
    patterns = restrictions.whitelist if restrictions.parameters.paths else ()
    name, paths = folder.spec.name, ":".join(patterns)
    if not folder.older or name not in taken_names or taken_names[name].plugin != BUILTIN:
        return folder
    free = f"{name}_folder"
    same = f"; that one can be held to the same paths: --root DIR:ro:{paths}" if paths else ""
    note(f"{name} is built in: yours is called {free}{same}")
    return renamed(folder, free)


def _refuse_taken(name: str, taken_names: Mapping[str, ToolSpec]) -> None:
    """Raises UsageError where a tool that is no folder of the user's has this name."""
    for other in (name, *names_of(name)):
        if other in taken_names and taken_names[other].plugin != FOLDER:
            raise UsageError(
                f"there is a tool {other} already ({_origin(taken_names[other].plugin)})",
                hint="give yours another name",
            )


def _collection_of(name: str, hint: str) -> ToolCollection:
    """The tools folder. Raises UsageError where the tool of this name comes from elsewhere."""
    collection, registry = ToolCollection(), _tools()
    spec = registry.all_specs().get(registry.named(name))
    if spec is not None and spec.plugin != FOLDER:
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


def _agreed(folder: ToolFolder, question: str, yes: bool) -> bool:
    show_all(_describe_tool(folder))
    return confirm(question, yes)


def _describe_tool(folder: ToolFolder) -> Iterator[TextLine]:
    """The tool's own words, for a person who decides about it: nothing of it can look like
    a line of ours."""
    spec = folder.spec
    yield TextLine(f"{as_name(spec.name)}, from {in_words(str(folder.path))}")
    for line in spec.description.split("\n"):
        yield TextLine(in_words(line), foreign=True)
    for line in exact(spec.parameters).split("\n"):
        yield TextLine(line, foreign=True)
    everything = spec.effects == ALL_EFFECTS
    effects = ", ".join(sorted(spec.possible_effects)) or "none"
    yield TextLine(f"effects: {effects}{' (all there are)' if everything else ''}")
    yield TextLine(f"approval before every call: {'yes' if spec.needs_approval else 'no'}")
    yield TextLine(f"time: {f'{spec.timeout:g} s' if spec.timeout else 'that of the run'}")
    restrictions = folder.restrictions
    if restrictions.mode == "ro":
        yield TextLine("mode ro: calls whose operation does not read or list are refused")
    if restrictions.whitelist:
        known = restrictions.parameters
        kinds = [kind for kind in ("paths", "commands") if getattr(known, kind)]
        patterns = ", ".join(map(in_words, restrictions.whitelist))
        names = ", ".join(map(in_words, sorted(known.paths | known.commands)))
        yield TextLine(f"{' and '.join(kinds)} that it may be given: {patterns} (in {names})")
    if folder.missing:
        yield TextLine(
            f"it imports what is not installed: {', '.join(map(in_words, folder.missing))}"
        )
    yield TextLine(f"variables it sees: {', '.join(folder.environment) or 'none of yours'}")
    yield TextLine(f"files: {len(folder.contents)}, {folder.size} bytes, digest {folder.digest}")
    for name, file in sorted(folder.contents.items()):
        yield TextLine(f"{in_words(name)}  {len(file.data)} bytes", foreign=True)
    yield TextLine(_NO_SANDBOX)


def _origin(plugin: str) -> str:
    return "built in" if plugin == BUILTIN else f"of {plugin}"


# --- operations of an OpenAPI document ------------------------------------------------------------

# `mlx-tools tools bind`: operations of an HTTP interface as tools, held to the document that a
# person agreed to.


_SECONDS: Final = 30.0


def bind(
    document: Annotated[
        str,
        argument(
            "DOCUMENT",
            "An OpenAPI document: a file, a URL, or the name of one that is bound, to look at it "
            "again.",
        ),
    ],
    name: Annotated[str, option("--name NAME", "What stands before its tools' names.")] = "",
    operations: Annotated[
        list[str] | None,
        option("--operation NAME", "Only these operations; * stands for anything. Repeatable."),
    ] = None,
    server: Annotated[str, option("--server URL", "The server to ask, else the first named.")] = "",
    secrets: Annotated[
        list[str] | None, option("--secret WHERE", f"A secret's place: {PLACE_FORM}. Repeatable.")
    ] = None,
    writes: Annotated[
        list[str] | None,
        option("--writes NAME", "An operation that writes although it is a GET. Repeatable."),
    ] = None,
    yes: Yes = False,
) -> int:
    """Bind the operations of an OpenAPI document as tools."""
    sources = BoundSources()
    before = _bound(sources, document, name)
    place = str(before.at["document"]) if before and document == before.name else document
    read = read_document(_bytes(place), place)
    at = _place(read, before, server, secrets or ())
    wanted = operations or (before.at["operations"] if before is not None else ["*"])
    stricter = {*(writes or ()), *(before.at["writes"] if before is not None else ())}
    found = list(read.operations())
    tools = [one for _, one in _select_operations(found, wanted) if isinstance(one, BoundTool)]
    _refuse_unknown(stricter, [tool.name for tool in tools], "--writes")
    title = (read.title or Path(place).stem).lower()
    usual = re.sub(r"[^a-z0-9]+", "-", title).strip("-")[:31].strip("-") or "api"
    source = BoundSource(
        name=before.name if before is not None else name or usual,
        kind="openapi",
        at=at | {"operations": list(wanted), "writes": sorted(stricter)},
        version=read.version,
        digest=read.digest,
        tools=tuple(with_effects(tool, tool.name in stricter) for tool in tools),
    )
    lines = [*_describe_source(source, _select_operations(found, wanted))]
    if before is not None:
        same = TextLine("Nothing changed since it was agreed to.", "bold")
        lines += [*diff_sources(before, source)] or [same]
    show_all(lines)
    if not confirm(f"Bind {source.name}?", yes):
        return EXIT_STOPPED
    sources.put(source)
    complain(f"{count_noun(len(source.tools), 'operation')} bound as {source.name}__…", kind="done")
    note(f"to allow them in a run: --tools 'plugin:{source.plugin}', or by their names")
    return EXIT_OK


def _bound(sources: BoundSources, document: str, name: str) -> BoundSource | None:
    """The source that is bound anew, None for a new one. Raises UsageError for another kind's."""
    known = sources.names()
    given = name or (document if document in known and not Path(document).exists() else "")
    if given not in known:
        return None
    found = sources.read(given)
    if found.kind != "openapi":
        raise UsageError(f"{given} is an MCP server", hint="give another --name")
    return found


def _bytes(place: str) -> bytes:
    if not re.match(r"https?://", place):
        return read_bytes(Path(place))
    import httpx

    try:
        with httpx.stream("GET", place, follow_redirects=True, timeout=_SECONDS) as response:
            response.raise_for_status()
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise UsageError(f"{place}: larger than {MAX_BYTES >> 20} MB")
            return bytes(data)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UsageError(f"{place}: {error}") from None


def _place(
    document: OpenApiDocument, old_source: BoundSource | None, server: str, secrets: Sequence[str]
) -> dict[str, Any]:
    """Where the operations are asked, and with which secrets."""
    local = re.match(r"https?://", document.place) is None
    place = str(Path(document.place).absolute()) if local else document.place
    chosen = (
        server or (old_source.at["server"] if old_source is not None else "") or document.server
    )
    if not re.match(r"https?://[^/]", chosen):
        raise UsageError(
            f"{document.place} names no server with its whole address", hint="give --server URL"
        )
    if fault := server_fault(chosen):
        raise UsageError(f"the server {in_words(chosen[:200])}: {fault}", hint="give --server URL")
    schemes = document.secrets()
    named = dict(old_source.at["secrets"]) if old_source is not None else {}
    for scheme, where in map(parse_secret, secrets):
        if scheme not in schemes:
            known = ", ".join(schemes) or "none"
            raise UsageError(f"--secret: {scheme} is none of its schemes", hint=f"there is {known}")
        named[scheme] = where
    return {"document": place, "server": chosen.rstrip("/"), "secrets": named}


Found = Sequence[tuple[str, BoundTool | OperationRefused]]


def _select_operations(candidates: Found, patterns: Sequence[str]) -> Found:
    """The operations that are meant. Raises UsageError for a pattern that means none."""
    names = [name for name, _ in candidates]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            _refuse_unknown([pattern], names, "--operation")
    return [one for one in candidates if any(fnmatchcase(one[0], pattern) for pattern in patterns)]


def _refuse_unknown(
    requested_names: Sequence[str] | set[str], names: Sequence[str], noun: str
) -> None:
    for name in requested_names:
        if name not in names:
            hint = did_you_mean(name, names)
            raise UsageError(f"{noun}: there is no operation {name[:100]!r}", hint=hint)


def _describe_source(source: BoundSource, candidates: Found) -> Iterator[TextLine]:
    """What would be bound: ours in words, the document's own marked as foreign."""
    digest = source.digest[:16]
    yield TextLine(f"{source.name}, version {in_words(source.version)}, digest {digest}", "bold")
    servers = {source.at["server"], *(tool.at.get("server") for tool in source.tools)} - {None}
    for server in sorted(servers):
        yield TextLine(f"asked at {in_words(server)}")
    if len(servers) > 1:
        secret = ", with the secrets that they need" if source.at["secrets"] else ""
        yield TextLine(f"! These are {len(servers)} servers{secret}", "yellow")
    effects = Counter("write" if "write" in tool.effects else "read" for tool in source.tools)
    yield TextLine(f"{effects['read']} that read, {effects['write']} that may write")
    for tool in source.tools:  # all of them: each is agreed to
        line = tool.description.partition("\n")[0]
        kind = "writes" if "write" in tool.effects else "reads"
        yield TextLine(f"{kind}  {as_name(source.tool_name(tool.name))}")
        place = tool.at.get("server", source.at["server"]) + tool.at["path"]
        yield TextLine(f"  {tool.at['method']} {in_words(place)}", foreign=True)
        if line:
            yield TextLine(f"  {in_words(cut(line, 100))}", foreign=True)
    for name, why in candidates:
        if isinstance(why, OperationRefused):
            text = f"left out: {in_words(cut(name, 80))}: {in_words(why.message)}"
            yield TextLine(text, "yellow")
    named = source.at["secrets"]
    needed = {scheme for tool in source.tools for way in tool.at["security"] for scheme in way}
    for scheme in sorted(needed):
        where = named.get(scheme)
        said = f"from {in_words(where)}" if where else f"not named (--secret {scheme}=env:VARIABLE)"
        yield TextLine(f"secret {in_words(scheme)}: {said}")
