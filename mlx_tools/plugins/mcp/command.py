"""`mlx-tools mcp`: servers of the Model Context Protocol as sources of tools.

And one of ours.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from mlx_tools.app import AccessRules, Configuration
from mlx_tools.cli import options
from mlx_tools.cli.call_text import (
    TextLine,
    diff_sources,
    escape_line,
    escape_name,
    format_call_message,
    show_all,
)
from mlx_tools.cli.inputs import confirm, parse_json, read_text, run_loop
from mlx_tools.cli.options import AsJsonLines, Yes, argument, option
from mlx_tools.cli.output import complain, count_noun, cut, note, print_json, print_row, stdout
from mlx_tools.cli.serve import refuse_without_key, require_extra
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, MlxToolsError, UsageError, did_you_mean
from mlx_tools.messages import replace
from mlx_tools.paths import data_dir, read_regular
from mlx_tools.plugins.mcp.client import McpClients, ServerOffer, fetch_offer, log_path
from mlx_tools.plugins.mcp.places import (
    find_config_files,
    mask_place,
    read_place,
    read_servers,
    strip_comments,
)
from mlx_tools.plugins.mcp.sign_in import tokens_path
from mlx_tools.tools import BoundSource, BoundSources, ToolError

app = typer.Typer(add_completion=False)


def server_names() -> list[str]:
    """Return the names of the MCP servers."""
    names = []
    for path in sorted((data_dir() / "bound").glob("*.json")):
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            if json.loads(read_regular(path))["kind"] == "mcp":
                names.append(path.stem)
    return names


Reads = Annotated[
    list[str] | None,
    option("--reads TOOL", "A tool that only reads; * matches anything. Repeatable."),
]


ServerName = Annotated[str, argument("NAME", "The server.", autocompletion=server_names)]


@app.command(context_settings={"ignore_unknown_options": True})
def add(
    name: Annotated[str, argument("NAME", "The prefix of its tools' names.")],
    place: Annotated[
        list[str], argument("COMMAND…|URL", "Behind --: what starts it; or where it is.")
    ],
    env: Annotated[
        list[str] | None, option("--env NAME[=VALUE]", "A variable that it sees. Repeatable.")
    ] = None,
    header: Annotated[
        list[str] | None, option("--header NAME=VALUE", "Sent with each request. Repeatable.")
    ] = None,
    reads: Reads = None,
    yes: Yes = False,
) -> int:
    """Add a server: it is asked what it offers, and you whether you agree."""
    if name in BoundSources().names():
        raise UsageError(f"there is {name} already", hint=f"mlx-tools mcp remove {name}")
    if len(place) == 1 and place[0].startswith(("http://", "https://")):
        entry: dict[str, Any] = {"url": place[0], "headers": _pairs(header, "--header")}
    else:
        # by its whole path: what launchd or systemd starts may have another PATH
        command = shutil.which(place[0]) or place[0]
        entry = {"command": command, "args": place[1:], "env": _pairs(env, "--env")}
    return EXIT_OK if _agree(name, read_place(entry, name), reads or (), yes) else EXIT_STOPPED


@app.command(name="import")
def import_servers(
    file: Annotated[
        Path | None,
        argument("FILE", "JSON with mcpServers; without it the files of other programs."),
    ] = None,
    yes: Yes = False,
) -> int:
    """Add the servers of a file, or those of Claude Desktop, VS Code and Cursor."""
    files = [("the file", file)] if file is not None else list(find_config_files())
    if not files:
        raise UsageError("no other program keeps servers here", hint="name a FILE")
    existing, added = set(BoundSources().names()), 0
    for program, path in files:
        try:
            servers = _read_servers(path)
        except UsageError as error:
            if file is not None:
                raise
            note(f"{program}: {error}")
            continue
        note(f"{program}, {path}: {count_noun(len(servers), 'server')}")
        for name, entry in servers.items():
            if name in existing:
                note(f"{name} is here already")
                continue
            try:
                added += _agree(name, read_place(entry, "the entry"), (), yes)
            except (UsageError, ToolError) as error:
                complain(f"{name}: {error}")
                continue
            existing.add(name)
    complain(f"{count_noun(added, 'server')} added", kind="done")
    return EXIT_OK if added else EXIT_STOPPED


@app.command(name="list")
def list_servers(as_lines: AsJsonLines = False) -> None:
    """List the servers: their places, tools and changes.

    Where they are, how many tools they have, and whether they changed.
    """
    sources = list(_sources())
    for source in sources:
        state = "changed" if source.changed_tools else "as agreed"
        if as_lines:
            hidden = {key: list(source.location.get(key) or ()) for key in ("env", "headers")}
            place = {**source.location, **hidden}  # names alone: the values may be secrets
            tools = [source.tool_name(tool.name) for tool in source.tools]
            row = {"name": source.name, "version": source.version, "at": place, "tools": tools}
            print_json(row | {"changed": bool(source.changed_tools)})
        else:
            tools_ = count_noun(len(source.tools), "tool")
            print_row(f"{source.name:<16} {tools_:<10} {state:<10}", mask_place(source.location))
    if not sources:
        note("there are no servers yet: mlx-tools mcp add NAME -- COMMAND, or mcp import")


@app.command(name="show")
def show_server(name: ServerName) -> None:
    """Show what was agreed to of a server."""
    source = _source(name)
    show_all(_describe_server(source, {}, {}))
    if source.changed_tools:
        note(source.disabled_reason)


@app.command()
def test(name: ServerName, reads: Reads = None, yes: Yes = False) -> int:
    """Connect to a server, show what changed, and ask whether you agree."""
    source = _source(name)
    offer = _inspect_source(source)
    # Of what was agreed to before, a tool may be gone: the changes show that.
    _check_reads(name, offer, reads or ())
    agreed = _accept_source(source, offer, reads or source.location.get("reads", ()))
    changes = list(diff_sources(source, agreed))
    if not changes:
        BoundSources().save(agreed)
        complain(f"{name} answers, and is as you agreed to it", kind="done")
        return EXIT_OK
    show_all([*_describe_server(agreed, offer.hints, offer.refused_tools), *changes])
    if not confirm(f"Agree to what {name} says now?", yes):
        return EXIT_STOPPED
    BoundSources().save(agreed)
    complain(f"{name} is agreed to as it is now", kind="done")
    return EXIT_OK


@app.command()
def remove(name: ServerName, yes: Yes = False) -> int:
    """Forget a server, its tools and what it gave for signing in."""
    _source(name)
    if not confirm(f"Forget {name}?", yes):
        return EXIT_STOPPED
    BoundSources().remove(name)
    for file in (tokens_path(name), log_path(name)):
        with suppress(OSError):
            file.unlink()
    complain(f"removed {name}", kind="done")
    return EXIT_OK


@app.command()
@options.with_settings(*options.SERVED, "gateway.api_key")
def serve(
    transport: Annotated[
        str,
        option("--transport stdio|http", "By what clients come: as what starts it, or by address."),
    ] = "stdio",
    host: Annotated[
        str, option("--host HOST", "With http: the address; any but loopback needs a key.")
    ] = "127.0.0.1",
    port: Annotated[
        int, option("--port N", "With http: the port; 0 takes a free one.", min=0, max=65_535)
    ] = 8322,
    *,
    options_given: options.Options,
) -> int:
    """Serve agents: a local model that uses tools, and the permitted tools."""
    options.require_choice("--transport", transport, ("stdio", "http"))
    run = options.run_options(options_given)
    settings = run.configuration.settings
    key = settings.gateway.api_key or ""
    if transport == "http":
        refuse_without_key(host, key)
    with require_extra("mcp", "the server"):
        from mlx_tools.plugins.mcp.delegation import Delegation
        from mlx_tools.plugins.mcp.elicitation import ApprovalText
        from mlx_tools.plugins.mcp.mcp_server import McpServer, serve_http, serve_stdio

    def load(profile: str) -> Configuration:
        overrides = {"policy.local_only": True} if settings.policy.local_only else {}
        return options.load({**options_given, "profile": profile, **overrides})

    server = McpServer(
        Delegation(run, load, note),
        ApprovalText(format_call_message, escape_line),
        by_person=transport == "stdio" or bool(key),
    )
    with suppress(KeyboardInterrupt):
        if transport == "stdio":
            out = os.fdopen(os.dup(stdout().fileno()), "w", encoding="utf-8", newline="\n")
            run_loop(serve_stdio, server, out)
        else:
            door = AccessRules(
                hosts={host, *settings.gateway.hosts}, origins=settings.gateway.origins, key=key
            )
            anyio.run(serve_http, server, host, port, door, note)
    return EXIT_OK


# --- looking at a server, and agreeing to it ------------------------------------------------------


def _agree(name: str, place: Mapping[str, Any], reads: Sequence[str], yes: bool) -> bool:
    """Show a person what a server offers, and add it if the person agrees.

    Return True if added.
    """
    source = BoundSource(name=name, kind="mcp", location=place)
    verb = "is reached at" if "url" in place else "is started as"
    show_all([TextLine(f"{name} {verb}: {escape_line(mask_place(place))}", "bold")])
    if not confirm("Connect to it?", yes):
        return False
    offer = _inspect_source(source)
    _check_reads(name, offer, reads)
    source = _accept_source(source, offer, reads)
    show_all(_describe_server(source, offer.hints, offer.refused_tools))
    if not confirm(f"Add {name}?", yes):
        return False
    BoundSources().save(source)
    complain(f"{name} added: {count_noun(len(source.tools), 'tool')}", kind="done")
    note(f"to allow them in a run: --tools 'plugin:{source.plugin}', or by their names")
    return True


def _inspect_source(source: BoundSource) -> ServerOffer:
    async def ask() -> ServerOffer:
        clients = McpClients(BoundSources(), show=_sign_in)
        try:
            return await fetch_offer(clients, replace(source, tools=(), changed_tools=()))
        finally:
            await clients.aclose()

    try:
        return run_loop(ask)
    except ToolError as error:
        hint = (
            f"its own words are in {log_path(source.name)}"
            if "command" in source.location
            else None
        )
        raise UsageError(str(error), hint=hint) from None


def _sign_in(page: str) -> None:
    import webbrowser

    note(f"sign in at {escape_line(page)}")
    webbrowser.open(page)


def _check_reads(server: str, offer: ServerOffer, reads: Sequence[str]) -> None:
    """Raise UsageError if a pattern matches no tool."""
    names = [tool.name for tool in offer.tools]
    for pattern in reads:
        if not any(fnmatchcase(name, pattern) for name in names):
            hint = did_you_mean(pattern, names)
            raise UsageError(f"--reads: {server} has no tool {pattern!r}", hint=hint)


def _accept_source(source: BoundSource, offer: ServerOffer, reads: Sequence[str]) -> BoundSource:
    """Return the source as a person would agree to it."""
    tools = tuple(
        replace(tool, effects=("network", "read"))
        if any(fnmatchcase(tool.name, pattern) for pattern in reads)
        else tool
        for tool in offer.tools
    )
    prompts = {
        prompt.name: {arg.name: bool(arg.required) for arg in prompt.arguments or ()}
        for prompt in offer.prompts
    }
    facts = {"reads": list(reads), "resources": offer.resources, "prompts": prompts}
    place = {**source.location, **facts}
    return replace(source, location=place, version=offer.version, tools=tools, changed_tools=())


def _describe_server(
    source: BoundSource, hints: Mapping[str, str], refusals: Mapping[str, str]
) -> Iterator[TextLine]:
    """Yield a description of a server and its tools.

    Its own text is marked as foreign.
    """
    yield TextLine(f"{source.name}: {escape_line(mask_place(source.location))}", "bold")
    yield TextLine(f"it calls itself {escape_line(source.version) or 'nothing'}")
    for tool in source.tools:  # all of them, since the person agrees to each
        effects = ", ".join(tool.effects)
        yield TextLine(f"{escape_name(source.tool_name(tool.name))}: {effects}")
        words = cut(" ".join(tool.description.split()), 200)
        if words:
            yield TextLine(escape_line(words), foreign=True)
        if hints.get(tool.name):
            yield TextLine(f"it hints, and is not believed: {escape_line(hints[tool.name])}", "dim")
    for name, reason in refusals.items():
        yield TextLine(f"left out: {escape_line(cut(name, 80))}: {escape_line(reason)}", "yellow")
    if prompts := source.location.get("prompts"):
        listed = ", ".join(f"/{source.name}:{name}" for name in prompts)
        yield TextLine(f"prompts for chat: {escape_line(listed)}")
    if source.location.get("resources"):
        yield TextLine("it has resources, which mcp_read reads")


def _sources() -> Iterator[BoundSource]:
    bound = BoundSources()
    for name in bound.names():
        try:
            source = bound.read(name)
        except MlxToolsError as error:
            complain(str(error))
            continue
        if source.kind == "mcp":
            yield source


def _source(name: str) -> BoundSource:
    source = BoundSources().read(name)
    if source.kind != "mcp":
        raise UsageError(f"{name} is no MCP server", hint=f"mlx-tools tools bind {name}")
    return source


def _read_servers(path: Path) -> Mapping[str, Any]:
    """Return the servers in a file.

    Raises:
        UsageError: there are none.
    """
    return read_servers(parse_json(strip_comments(read_text(path)), str(path)), str(path))


def _pairs(pairs: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return names and values; a name without a value means this process's variable."""
    values = {}
    for text in pairs or ():
        name, equals, value = text.partition("=")
        if not name or (not equals and option == "--header"):
            raise UsageError(f"{option}: {text[:80]!r} is no NAME=VALUE")
        values[name] = value if equals else f"${{{name}}}"
    return values
