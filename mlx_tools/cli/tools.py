"""`mlx-tools tools`.

Which tools there are, what they are, finding and calling one.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Final

import typer
from msgspec import to_builtins

from mlx_tools.app import (
    build_registry,
    call_recorded,
    note_left_out,
    require_tools_enabled,
)
from mlx_tools.cli import inputs, options
from mlx_tools.cli.approve import Questions, choose_approver
from mlx_tools.cli.options import argument, option
from mlx_tools.cli.output import (
    complain,
    cut,
    escape_for_terminal,
    first_sentence,
    note,
    print_json,
    print_prose,
    print_row,
    print_text,
    table,
    write_bytes,
)
from mlx_tools.cli.tool_switches import ALLOW, ToolName, lacking, register, tell_printed
from mlx_tools.cli.view import describe_progress, show_change
from mlx_tools.controller import DirectCall
from mlx_tools.errors import (
    EXIT_OK,
    EXIT_PAUSED,
    EXIT_STOPPED,
    EXIT_USAGE,
    UsageError,
    did_you_mean,
)
from mlx_tools.messages import json_line
from mlx_tools.policy import Policy
from mlx_tools.prompt import signature
from mlx_tools.store import SessionFiles
from mlx_tools.tools import (
    DEFAULT_LIMIT,
    FORMATS,
    NO_SUCH,
    Progress,
    Registry,
    ToolSearch,
    export,
    find_tools,
)
from mlx_tools.transcript import PREVIEW_CHARS

_DEFAULT_RULES: Final = ("default", "preset ")
"""The beginnings of the rules that deny a call which no list names."""

_EXAMPLE: Final = """write it as '{"expression": "2+2"}', in single quotes"""
"""Advice on how to write arguments."""

app = typer.Typer(add_completion=False)


@app.command(name="list")
@options.with_settings(*options.TOOLS)
def list_tools(as_json: options.AsJsonLines = False, *, options_given: options.Options) -> None:
    """List the tools: effects, where they come from, what holds for them."""
    loaded = options.load(options_given)
    rows = build_registry(loaded).listing(loaded.policy())
    if as_json:
        for row in rows:
            print_json(row)
        return
    heads_of_rows = table([(row["name"], _origin(row), _describe_status(row)) for row in rows])
    for row, head in zip(rows, heads_of_rows, strict=True):
        print_row(f"{head} ", _gist(row))


@app.command()
def show(name: ToolName, as_json: options.AsJson = False) -> None:
    """Show all that is known of a tool."""
    loaded = options.load({})
    registry = build_registry(loaded)
    facts = _describe_tool(registry, name)
    name = facts["name"]
    row = next(row for row in registry.listing(loaded.policy()) if row["name"] == name)
    facts |= {key: value for key, value in row.items() if key not in facts}
    if as_json:
        print_json(facts)
        return
    print_text(f"{name}  {_describe_status(row)}", colour="bold")
    print_prose(_describe_declaration(facts), colour="dim")
    print_prose(f"\n{facts['description']}\n")
    print_text(json.dumps(facts["parameters"], ensure_ascii=False, indent=2))
    if row["disabled_reason"]:
        print_prose(f"\ndisabled: {row['disabled_reason']}")
    elif not row["permitted"]:
        print_prose(f"\n{lacking(name, registry, loaded.policy())}")
    tell_printed(name, registry)


@app.command()
def search(
    words: Annotated[list[str], argument("TEXT…", "What the tool should do; - reads it.")],
    limit: Annotated[int, option("--limit N", "How many tools at most.", min=1)] = DEFAULT_LIMIT,
    show_all: Annotated[
        bool, option("--all", "All tools, also those that may not be called.")
    ] = False,
    as_json: options.AsJsonLines = False,
) -> None:
    """Find the tools that match a request, the best match first."""
    loaded = options.load({})
    query, registry = inputs.as_question(" ".join(words)), build_registry(loaded)
    result = find_tools(registry, loaded.policy(), query, limit, include_hidden=show_all)
    rows = {row["name"]: row for row in registry.listing(loaded.policy())}
    for spec, score in result.hits:
        row = rows[spec.name]
        if as_json:
            print_json(row | {"score": score, "signature": signature(spec)})
        elif show_all:
            print_row(f"{_describe_status(row):<24}", signature(spec))
        else:
            print_prose(signature(spec), "  ")
    _tell_hidden(result)


@app.command()
@options.with_settings(*options.POLICY)
def call(
    name: ToolName,
    arguments: Annotated[str, argument("JSON", "Its arguments as a JSON object; - reads it.")],
    as_json: options.AsJson = False,
    *,
    options_given: options.Options,
) -> int:
    """Call a tool without a model: same checks, same policy, same record."""
    loaded = options.load(options_given)
    require_tools_enabled(loaded)
    registry = build_registry(loaded)
    _describe_tool(registry, name)
    note_left_out(loaded, registry, note)
    name_of_text = "standard input" if arguments == "-" else "JSON"
    text = inputs.read_text() if arguments == "-" else arguments
    value = inputs.parse_object(text, name_of_text, _EXAMPLE)
    always = loaded.settings.policy.approve == "always"

    def tell(progress: Progress) -> None:
        complain(describe_progress(progress.message, progress.fraction), kind="progress")

    async def run() -> tuple[DirectCall, SessionFiles]:
        try:
            return await call_recorded(
                loaded,
                registry,
                name,
                value,
                source="tools call",
                approver=choose_approver(loaded, Questions(always=always)),
                on_progress=tell if sys.stderr.isatty() else None,
            )
        finally:
            await registry.aclose()

    direct_call, files = inputs.run_loop(run)
    if as_json:
        print_json(_as_json(direct_call, files))
    elif direct_call.result is not None and direct_call.result.content is not None:
        print_text(direct_call.result.content, exact=True)
    tell_printed(direct_call.name, registry)
    return _tell(direct_call)


@app.command(name="export")
@options.with_settings("policy.allow")
def export_tools(
    format: Annotated[  # noqa: A002
        str, typer.Option("--format", metavar="|".join(FORMATS), help="The form.")
    ],
    *,
    options_given: options.Options,
) -> None:
    """Print the permitted tools in another program's form."""
    loaded = options.load(options_given)
    registry = build_registry(loaded)
    rows = {row["name"]: row for row in registry.listing(loaded.policy())}
    specs = [spec for name, spec in registry.all_specs().items() if rows[name]["permitted"]]
    write_bytes(export(specs, format).encode())


register(app)


def _tell_hidden(search: ToolSearch) -> None:
    """Note what a search did not show."""
    if not search.hits:
        note("no tool matches that may be called")
    if search.hidden_count:
        note(f"{search.hidden_count} more match (--limit)")
    if search.denied:
        note(f"{search.denied} of the best matches may not be called (--all)")
    for name, reason in search.disabled:
        note(f"{name} matches, and is disabled: {reason}")


def _describe_declaration(facts: dict[str, Any]) -> str:
    """Return on one line what a tool declares besides its description."""
    parts = [f"from {facts['plugin'] or 'this program'}"]
    if facts["pinned"]:
        parts.append(f"pinned to {facts['pinned']}")
    parts.append(f"effects: {', '.join(facts['effects']) or 'none'}")
    if facts["timeout"] is not None:
        parts.append(f"at most {facts['timeout']:g} s")
    return "; ".join(parts)


def _origin(row: dict[str, Any]) -> str:
    """Return where a tool comes from, and the beginning of what it is pinned to."""
    return (row["plugin"] or "-") + (f" @{row['pinned'][:8]}" if row["pinned"] else "")


def _describe_status(row: dict[str, Any]) -> str:
    """Return whether a tool is permitted, and its effects, as far as they are known."""
    status = "permitted" if row["permitted"] else "not permitted" if row["enabled"] else "disabled"
    effects = ", ".join(row["effects"]) or ("no effects" if row["enabled"] else "")
    approval = ", asks" if row["permitted"] and row["needs_approval"] else ""
    return f"{status} ({effects}{approval})" if effects else status


def _gist(row: dict[str, Any]) -> str:
    """Return the first sentence of a description, with why the tool cannot be called.

    For a tool that is not there it is the reason.
    """
    if row["disabled_reason"]:
        return str(row["disabled_reason"])
    reason = (row["denied_reason"] or "").removeprefix(row["name"]).lstrip(": ").removeprefix("is ")
    first = first_sentence(row["description"])
    return f"{cut(first, 100)}{reason and f' ({reason})'}"


def _describe_tool(registry: Registry, name: str) -> dict[str, Any]:
    """Return all facts about a tool.

    Raises:
        UsageError: there is no such tool.
    """
    names = registry.all_specs()
    if registry.resolve_name(name) in names:
        return registry.describe(name)
    reason = registry.lacks(name, Policy())
    if reason != NO_SUCH:
        raise UsageError(f"{name[:100]}: {reason}")
    raise UsageError(f"there is no tool {name[:100]}", hint=did_you_mean(name, names))


def _as_json(done: DirectCall, files: SessionFiles) -> dict[str, Any]:
    result = done.result
    return {
        "name": done.name,
        "arguments": dict(done.arguments),
        "status": done.status,
        "repairs": list(done.repairs),
        "decision": to_builtins(done.decision) if done.decision is not None else None,
        "duration_ms": result.duration_ms if result is not None else None,
        "output_size_chars": result.output_size_chars if result is not None else None,
        "output": result.content if result is not None else None,
        "preview": done.preview or None,
        "error_code": done.error.code if done.error is not None else None,
        "error_preview": done.error.message[:PREVIEW_CHARS] if done.error is not None else None,
        "session": files.session,
        "transcript": files.path,
    }


def _tell(done: DirectCall) -> int:
    if done.preview:
        show_change(done.name, done.preview, sys.stderr)
    if done.error is not None and done.status == "dry_run":
        note(done.error.message)
    elif done.error is not None:
        decision = done.decision
        # only an option that names the tool is missing
        option_helps = (
            decision and decision.decision == "deny" and decision.rule.startswith(_DEFAULT_RULES)
        )
        hint = f" ({ALLOW.format(name=done.name)})" if option_helps else ""
        complain(f"{done.error.code}: {done.error.message}{hint}")
    if done.status == "pending":
        call_text = f"{done.name} {escape_for_terminal(json_line(done.arguments))}"
        complain(f"an approval is due for {call_text} (--approve always gives it)", kind="paused")
        return EXIT_PAUSED
    if done.status in ("ok", "dry_run"):
        return EXIT_OK
    has_bad_arguments = done.error is not None and done.error.code == "invalid_arguments"
    return EXIT_USAGE if has_bad_arguments else EXIT_STOPPED
