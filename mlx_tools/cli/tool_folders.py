"""The commands of `mlx-tools tools` that change the tools.

Add folders, bind, switch on and off.

A folder's own description is shown before it is added, and nothing in it is run.
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
from mlx_tools.cli.completion import tool_names
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
    find_folders,
    find_server_fault,
    parse_secret,
    read_document,
    read_folder,
    rename_folder,
    with_effects,
    write_template,
)

ALLOW: Final = "to allow it in a run: --tools {name}"
_NO_SANDBOX: Final = (
    "It runs as you, with your rights, in no sandbox: what it says of effects is believed."
)

ToolName = Annotated[str, argument("NAME", "The tool.", autocompletion=tool_names)]


def register(app: typer.Typer) -> None:
    """Add the commands to the group."""
    for command in (new, add, bind, trust, enable, disable, remove):
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


# --- operations of an OpenAPI document ------------------------------------------------------------

# `mlx-tools tools bind`: operations of an HTTP interface become tools, as in the document that a
# person agreed to.


_SECONDS: Final = 30.0
"""Seconds to fetch a document. A choice: it is one file, and a person waits."""


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
    old_source = _bound(sources, document, name)
    location = (
        str(old_source.at["document"]) if old_source and document == old_source.name else document
    )
    parsed = read_document(_bytes(location), location)
    at = _place(parsed, old_source, server, secrets or ())
    patterns = operations or (old_source.at["operations"] if old_source is not None else ["*"])
    stricter = {*(writes or ()), *(old_source.at["writes"] if old_source is not None else ())}
    candidates = list(parsed.operations())
    tools = [
        operation
        for _, operation in _select_operations(candidates, patterns)
        if isinstance(operation, BoundTool)
    ]
    _refuse_unknown(stricter, [tool.name for tool in tools], "--writes")
    title = (parsed.title or Path(location).stem).lower()
    default_name = re.sub(r"[^a-z0-9]+", "-", title).strip("-")[:31].strip("-") or "api"
    source = BoundSource(
        name=old_source.name if old_source is not None else name or default_name,
        kind="openapi",
        at=at | {"operations": list(patterns), "writes": sorted(stricter)},
        version=parsed.version,
        digest=parsed.digest,
        tools=tuple(with_effects(tool, tool.name in stricter) for tool in tools),
    )
    lines = [*_describe_source(source, _select_operations(candidates, patterns))]
    if old_source is not None:
        unchanged = TextLine("Nothing changed since it was agreed to.", "bold")
        lines += [*diff_sources(old_source, source)] or [unchanged]
    show_all(lines)
    if not confirm(f"Bind {source.name}?", yes):
        return EXIT_STOPPED
    sources.save(source)
    complain(f"{count_noun(len(source.tools), 'operation')} bound as {source.name}__…", kind="done")
    note(f"to allow them in a run: --tools 'plugin:{source.plugin}', or by their names")
    return EXIT_OK


def _bound(sources: BoundSources, document: str, name: str) -> BoundSource | None:
    """Return the source that is bound again, None for a new one.

    Raises:
        UsageError: the source is of another kind.
    """
    names = sources.names()
    source_name = name or (document if document in names and not Path(document).exists() else "")
    if source_name not in names:
        return None
    source = sources.read(source_name)
    if source.kind != "openapi":
        raise UsageError(f"{source_name} is an MCP server", hint="give another --name")
    return source


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
    """Return where the operations are called, and with which secrets."""
    is_file = re.match(r"https?://", document.place) is None
    place = str(Path(document.place).absolute()) if is_file else document.place
    url = server or (old_source.at["server"] if old_source is not None else "") or document.server
    if not re.match(r"https?://[^/]", url):
        raise UsageError(
            f"{document.place} names no server with its whole address", hint="give --server URL"
        )
    if fault := find_server_fault(url):
        raise UsageError(f"the server {in_words(url[:200])}: {fault}", hint="give --server URL")
    schemes = document.secrets()
    secrets_by_scheme = dict(old_source.at["secrets"]) if old_source is not None else {}
    for scheme, secret_place in map(parse_secret, secrets):
        if scheme not in schemes:
            known_schemes = ", ".join(schemes) or "none"
            raise UsageError(
                f"--secret: {scheme} is none of its schemes", hint=f"there is {known_schemes}"
            )
        secrets_by_scheme[scheme] = secret_place
    return {"document": place, "server": url.rstrip("/"), "secrets": secrets_by_scheme}


Operations = Sequence[tuple[str, BoundTool | OperationRefused]]


def _select_operations(candidates: Operations, patterns: Sequence[str]) -> Operations:
    """Return the operations that the patterns match.

    Raises:
        UsageError: a pattern matches none.
    """
    names = [name for name, _ in candidates]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            _refuse_unknown([pattern], names, "--operation")
    return [
        candidate
        for candidate in candidates
        if any(fnmatchcase(candidate[0], pattern) for pattern in patterns)
    ]


def _refuse_unknown(
    requested_names: Sequence[str] | set[str], names: Sequence[str], noun: str
) -> None:
    for name in requested_names:
        if name not in names:
            hint = did_you_mean(name, names)
            raise UsageError(f"{noun}: there is no operation {name[:100]!r}", hint=hint)


def _describe_source(source: BoundSource, candidates: Operations) -> Iterator[TextLine]:
    """Yield a description of the source; the document's own text is marked as foreign."""
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
    for tool in source.tools:  # all of them, since the person agrees to each
        line = tool.description.partition("\n")[0]
        kind = "writes" if "write" in tool.effects else "reads"
        yield TextLine(f"{kind}  {as_name(source.tool_name(tool.name))}")
        place = tool.at.get("server", source.at["server"]) + tool.at["path"]
        yield TextLine(f"  {tool.at['method']} {in_words(place)}", foreign=True)
        if line:
            yield TextLine(f"  {in_words(cut(line, 100))}", foreign=True)
    for name, refusal in candidates:
        if isinstance(refusal, OperationRefused):
            text = f"left out: {in_words(cut(name, 80))}: {in_words(refusal.message)}"
            yield TextLine(text, "yellow")
    secret_places = source.at["secrets"]
    needed = {scheme for tool in source.tools for way in tool.at["security"] for scheme in way}
    for scheme in sorted(needed):
        place_of_secret = secret_places.get(scheme)
        origin = (
            f"from {in_words(place_of_secret)}"
            if place_of_secret
            else f"not named (--secret {scheme}=env:VARIABLE)"
        )
        yield TextLine(f"secret {in_words(scheme)}: {origin}")
