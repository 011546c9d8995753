"""`mlx-tools tools bind`: adds operations of an HTTP interface as tools.

The operations are those of a document that a person agreed to.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mlx_tools.cli.call_text import TextLine, diff_sources, escape_line, escape_name, show_all
from mlx_tools.cli.inputs import MAX_BYTES, confirm, read_bytes
from mlx_tools.cli.options import Yes, argument, option
from mlx_tools.cli.output import complain, count_noun, cut, note
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError, did_you_mean
from mlx_tools.paths import file_exists
from mlx_tools.plugins.openapi.address import find_server_fault
from mlx_tools.plugins.openapi.document import (
    MAX_OPERATIONS,
    OpenApiDocument,
    OperationRefused,
    read_document,
    with_effects,
)
from mlx_tools.plugins.openapi.request import PLACE_FORM, parse_secret
from mlx_tools.tools import (
    BoundSource,
    BoundSources,
    BoundTool,
)

app = typer.Typer(add_completion=False)

_SECONDS: Final = 30.0
"""Seconds to fetch a document. A choice: it is one file, and a person waits."""


@app.command()
def bind(
    document: Annotated[
        str,
        argument(
            "DOCUMENT",
            "An OpenAPI document: a file, a URL, or the name of one that is bound, to look at it "
            "again.",
        ),
    ],
    name: Annotated[str, option("--name NAME", "The prefix of its tools' names.")] = "",
    operations: Annotated[
        list[str] | None,
        option("--operation NAME", "Only these operations; * matches anything. Repeatable."),
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
        str(old_source.location["document"])
        if old_source and document == old_source.name
        else document
    )
    parsed = read_document(_bytes(location), location)
    at = _place(parsed, old_source, server, secrets or ())
    patterns = operations or (
        old_source.location["operations"] if old_source is not None else ["*"]
    )
    stricter = {*(writes or ()), *(old_source.location["writes"] if old_source is not None else ())}
    names = parsed.operation_names()
    if not names:
        raise UsageError(f"{location} has no operations", hint="give another document")
    # The patterns are for the present operations. The changes show operations that are gone.
    _refuse_unmatched(operations or (), names)
    selected_names = _select_names(names, patterns)
    if not selected_names:
        _refuse_unmatched(patterns, names)
    selected = list(parsed.operations(selected_names.__contains__))
    tools = [operation for _, operation in selected if isinstance(operation, BoundTool)]
    _refuse_unknown(writes or (), [tool.name for tool in tools], "--writes")
    title = (parsed.title or Path(location).stem).lower()
    default_name = re.sub(r"[^a-z0-9]+", "-", title).strip("-")[:31].strip("-") or "api"
    source = BoundSource(
        name=old_source.name if old_source is not None else name or default_name,
        kind="openapi",
        location=at | {"operations": list(patterns), "writes": sorted(stricter)},
        version=parsed.version,
        digest=parsed.digest,
        tools=tuple(with_effects(tool, tool.name in stricter) for tool in tools),
    )
    lines = [*_describe_source(source, selected)]
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
    source_name = name or (document if document in names and not file_exists(document) else "")
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
            if not response.is_success:
                raise UsageError(f"{response.url}: HTTP {response.status_code}")
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise UsageError(f"{place}: larger than {MAX_BYTES >> 20} MB")
            return bytes(data)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        # a UnicodeError if the host's name is not valid
        raise UsageError(f"{place}: {error}") from None


def _place(
    document: OpenApiDocument, old_source: BoundSource | None, server: str, secrets: Sequence[str]
) -> dict[str, Any]:
    """Return the servers of the operations, and the places of their secrets."""
    is_file = re.match(r"https?://", document.place) is None
    place = str(Path(document.place).absolute()) if is_file else document.place
    url = (
        server
        or (old_source.location["server"] if old_source is not None else "")
        or document.server
    )
    if not re.match(r"https?://[^/]", url):
        raise UsageError(
            f"{document.place} names no server with its whole address", hint="give --server URL"
        )
    if fault := find_server_fault(url):
        raise UsageError(f"the server {escape_line(url[:200])}: {fault}", hint="give --server URL")
    schemes = document.secrets()
    secrets_by_scheme = dict(old_source.location["secrets"]) if old_source is not None else {}
    for scheme, secret_place in map(parse_secret, secrets):
        if scheme not in schemes:
            known_schemes = ", ".join(schemes) or "none"
            raise UsageError(
                f"--secret: {scheme} is none of its schemes", hint=f"there is {known_schemes}"
            )
        secrets_by_scheme[scheme] = secret_place
    return {"document": place, "server": url.rstrip("/"), "secrets": secrets_by_scheme}


Operations = Sequence[tuple[str, BoundTool | OperationRefused]]


def _refuse_unmatched(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raise UsageError if a pattern matches no operation."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            _refuse_unknown([pattern], names, "--operation")


def _select_names(names: Sequence[str], patterns: Sequence[str]) -> frozenset[str]:
    """Return the names that match a pattern.

    Raises:
        UsageError: too many match.
    """
    selected = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if len(selected) > MAX_OPERATIONS:
        raise UsageError(
            f"these are {len(selected)} operations, and at most {MAX_OPERATIONS} can be bound",
            hint="choose some by their names, such as --operation 'get*'",
        )
    return frozenset(selected)


def _refuse_unknown(requested_names: Sequence[str], names: Sequence[str], noun: str) -> None:
    for name in requested_names:
        if name not in names:
            hint = did_you_mean(name, names)
            raise UsageError(f"{noun}: there is no operation {name[:100]!r}", hint=hint)


def _describe_source(source: BoundSource, candidates: Operations) -> Iterator[TextLine]:
    """Yield a description of the source; the document's own text is marked as foreign."""
    digest = source.digest[:16]
    yield TextLine(f"{source.name}, version {escape_line(source.version)}, digest {digest}", "bold")
    servers = {
        source.location["server"],
        *(tool.location.get("server") for tool in source.tools),
    } - {None}
    for server in sorted(servers):
        yield TextLine(f"asked at {escape_line(server)}")
    if len(servers) > 1:
        secret = ", with the secrets that they need" if source.location["secrets"] else ""
        yield TextLine(f"! These are {len(servers)} servers{secret}", "yellow")
    effects = Counter("write" if "write" in tool.effects else "read" for tool in source.tools)
    yield TextLine(f"{effects['read']} that read, {effects['write']} that may write")
    for tool in source.tools:  # all are shown, because the person agrees to each
        line = tool.description.partition("\n")[0]
        kind = "writes" if "write" in tool.effects else "reads"
        yield TextLine(f"{kind}  {escape_name(source.tool_name(tool.name))}")
        place = tool.location.get("server", source.location["server"]) + tool.location["path"]
        yield TextLine(f"  {tool.location['method']} {escape_line(place)}", foreign=True)
        if line:
            yield TextLine(f"  {escape_line(cut(line, 100))}", foreign=True)
    for name, refusal in candidates:
        if isinstance(refusal, OperationRefused):
            text = f"left out: {escape_line(cut(name, 80))}: {escape_line(refusal.message)}"
            yield TextLine(text, "yellow")
    secret_places = source.location["secrets"]
    needed = {
        scheme for tool in source.tools for way in tool.location["security"] for scheme in way
    }
    for scheme in sorted(needed):
        place_of_secret = secret_places.get(scheme)
        origin = (
            f"from {escape_line(place_of_secret)}"
            if place_of_secret
            else f"not named (--secret {scheme}=env:VARIABLE)"
        )
        yield TextLine(f"secret {escape_line(scheme)}: {origin}")
