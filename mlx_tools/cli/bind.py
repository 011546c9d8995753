"""`mlx-tools tools bind`: operations of an HTTP interface as tools, held to the document that a
person agreed to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

from mlx_tools.cli.call_text import ShownLine, as_name, changed, in_words, show_all
from mlx_tools.cli.inputs import MAX_BYTES, confirmed, read_bytes
from mlx_tools.cli.options import Yes, argument, option
from mlx_tools.cli.output import complain, counted, cut, note
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError, did_you_mean
from mlx_tools.tools import (
    PLACE_FORM,
    BoundSource,
    BoundSources,
    BoundTool,
    OpenApiDocument,
    OperationRefused,
    parse_secret,
    read_document,
    with_effects,
)

_SHOWN: Final = 20
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
    tools = [one for _, one in _chosen(found, wanted) if isinstance(one, BoundTool)]
    _refuse_unknown(stricter, [tool.name for tool in tools], "--writes")
    source = BoundSource(
        name=before.name if before is not None else name or _slug(read.title or Path(place).stem),
        kind="openapi",
        at=at | {"operations": list(wanted), "writes": sorted(stricter)},
        version=read.version,
        digest=read.digest,
        tools=tuple(with_effects(tool, tool.name in stricter) for tool in tools),
    )
    lines = [*_told(source, _chosen(found, wanted))]
    if before is not None:
        same = ShownLine("Nothing changed since it was agreed to.", "bold")
        lines += [*changed(before, source)] or [same]
    show_all(lines)
    if not confirmed(f"Bind {source.name}?", yes):
        return EXIT_STOPPED
    sources.put(source)
    complain(f"{counted(len(source.tools), 'operation')} bound as {source.name}__…", kind="done")
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
            data = b""
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise UsageError(f"{place}: larger than {MAX_BYTES >> 20} MB")
            return data
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UsageError(f"{place}: {error}") from None


def _place(
    document: OpenApiDocument, before: BoundSource | None, server: str, secrets: Sequence[str]
) -> dict[str, Any]:
    """Where the operations are asked, and with which secrets."""
    local = re.match(r"https?://", document.place) is None
    place = str(Path(document.place).absolute()) if local else document.place
    chosen = server or (before.at["server"] if before is not None else "") or document.server
    if not re.match(r"https?://[^/]", chosen):
        raise UsageError(
            f"{document.place} names no server with its whole address", hint="give --server URL"
        )
    schemes = document.secrets()
    named = dict(before.at["secrets"]) if before is not None else {}
    for scheme, where in map(parse_secret, secrets):
        if scheme not in schemes:
            known = ", ".join(schemes) or "none"
            raise UsageError(f"--secret: {scheme} is none of its schemes", hint=f"there is {known}")
        named[scheme] = where
    return {"document": place, "server": chosen.rstrip("/"), "secrets": named}


Found = Sequence[tuple[str, BoundTool | OperationRefused]]


def _chosen(found: Found, wanted: Sequence[str]) -> Found:
    """The operations that are meant. Raises UsageError for a pattern that means none."""
    names = [name for name, _ in found]
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            _refuse_unknown([pattern], names, "--operation")
    return [one for one in found if any(fnmatchcase(one[0], pattern) for pattern in wanted)]


def _refuse_unknown(given: Sequence[str] | set[str], names: Sequence[str], what: str) -> None:
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names)
            raise UsageError(f"{what}: there is no operation {name[:100]!r}", hint=hint)


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:31].strip("-") or "api"


def _told(source: BoundSource, found: Found) -> Iterator[ShownLine]:
    """What would be bound: ours in words, the document's own marked as foreign."""
    digest = source.digest[:16]
    yield ShownLine(f"{source.name}, version {in_words(source.version)}, digest {digest}", "bold")
    servers = {source.at["server"], *(tool.at.get("server") for tool in source.tools)} - {None}
    for server in sorted(servers):
        yield ShownLine(f"asked at {in_words(cut(server, 200))}")
    effects = Counter("write" if "write" in tool.effects else "read" for tool in source.tools)
    yield ShownLine(f"{effects['read']} that read, {effects['write']} that may write")
    for tool in source.tools[:_SHOWN]:
        line = tool.description.partition("\n")[0]
        kind = "writes" if "write" in tool.effects else "reads"
        yield ShownLine(f"{kind}  {as_name(source.tool_name(tool.name))}")
        place = tool.at.get("server", "") + tool.at["path"]  # some are elsewhere
        yield ShownLine(f"  {tool.at['method']} {in_words(cut(place, 200))}", foreign=True)
        if line:
            yield ShownLine(f"  {in_words(cut(line, 100))}", foreign=True)
    if len(source.tools) > _SHOWN:
        yield ShownLine(f"and {len(source.tools) - _SHOWN} more")
    refused = [(name, why) for name, why in found if isinstance(why, OperationRefused)]
    for name, why in refused[:_SHOWN]:
        yield ShownLine(f"left out: {in_words(cut(name, 80))}: {in_words(why.message)}", "yellow")
    if len(refused) > _SHOWN:
        yield ShownLine(f"and {len(refused) - _SHOWN} more are left out", "yellow")
    named = source.at["secrets"]
    needed = {scheme for tool in source.tools for way in tool.at["security"] for scheme in way}
    for scheme in sorted(needed):
        where = named.get(scheme)
        said = f"from {in_words(where)}" if where else f"not named (--secret {scheme}=env:VARIABLE)"
        yield ShownLine(f"secret {in_words(scheme)}: {said}")
