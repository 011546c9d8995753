"""`mlx-tools approvals`: approvals in advance, for calls of a certain shape.

See `mlx_tools.policy.approval_template`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer
from msgspec import to_builtins

from mlx_tools.app import approval_templates, build_registry, list_roots
from mlx_tools.cli import options
from mlx_tools.cli.call_text import TextLine, escape_line, escape_name, format_value, show_all
from mlx_tools.cli.completion import template_ids, tool_names
from mlx_tools.cli.inputs import confirm, parse_json
from mlx_tools.cli.options import AsJsonLines, Yes, argument, option
from mlx_tools.cli.output import complain, count_noun, note, print_json, print_text
from mlx_tools.cli.saved_sessions import open_user_store
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError
from mlx_tools.policy import ApprovalTemplate, compute_pin
from mlx_tools.store import RootName

app = typer.Typer(add_completion=False)

DAYS: Final = 30
"""Days that a template is valid by default: a choice, so that a forgotten one ends."""
_MAX_DAYS: Final = 366


@app.command(name="list")
def list_templates(as_lines: AsJsonLines = False) -> None:
    """List the templates that are valid, the oldest first."""
    file = approval_templates(open_user_store())
    templates = file.templates(datetime.now(UTC))
    for template in templates:
        if as_lines:
            print_json({k: value for k, value in to_builtins(template).items() if k != "seal"})
        else:
            print_text("\n".join(_lines(template)))
    if not templates:
        note("there are no approval templates")
    if strangers := file.foreign_count:
        note(
            f"{count_noun(strangers, 'entry')} of {file.path} was not added here, and has "
            "no effect (approvals revoke --all removes it)"
        )


@app.command()
@options.with_settings("tools.roots")
def add(
    tool: Annotated[
        str, argument("TOOL", "The tool whose calls are meant.", autocompletion=tool_names)
    ],
    patterns: Annotated[
        list[str] | None,
        argument(
            "ARGUMENT=PATTERN…",
            "What each argument of the call is: ARGUMENT=TEXT, in which * ? [ are wildcards, "
            "ARGUMENT=* for any value, ARGUMENT:=JSON. A path is one below a root.",
        ),
    ] = None,
    days: Annotated[int, option("--days N", "For how long it holds.", min=1, max=_MAX_DAYS)] = DAYS,
    nested: Annotated[
        bool, option("--nested", "In runs that tools start within a call, too.")
    ] = False,
    yes: Yes = False,
    *,
    options_given: options.Options,
) -> int:
    """Approve calls of one tool in advance, by patterns for their arguments."""
    configuration, now = options.load(options_given), datetime.now(UTC)
    registry = build_registry(configuration)
    tool_found = registry.get(tool)
    pinned = getattr(tool_found, "pinned", None)
    roots = tuple(RootName.parse(root).path for root in list_roots(configuration))
    template = ApprovalTemplate(
        id="",
        tool=tool_found.spec.name,
        pin=compute_pin(tool_found.spec, pinned if isinstance(pinned, str) else None),
        arguments=_arguments(patterns or (), tool_found.spec.parameters),
        roots=roots,
        nested=nested,
        made_at=now.isoformat(timespec="seconds"),
        expires_at=(now + timedelta(days=days)).isoformat(timespec="seconds"),
    )
    if not roots and "execute" in tool_found.spec.possible_effects:
        raise UsageError(
            f"{tool} may run programs, in whatever folders a run has",
            hint="name the folders that it is for: --root DIR",
        )
    if not yes:
        show_all(map(TextLine, _lines(template)))
    if not confirm("Add this approval template?", yes, warning="nothing was added"):
        return EXIT_STOPPED
    added = approval_templates(open_user_store()).add(template)
    print_text("\n".join(_lines(added)))
    return EXIT_OK


@app.command()
def revoke(
    ids: Annotated[
        list[str] | None,
        argument(
            "ID…",
            "The ids of templates, as approvals list shows them.",
            autocompletion=template_ids,
        ),
    ] = None,
    revoke_all: Annotated[bool, option("--all", "All of them.")] = False,
) -> None:
    """Remove templates: from now on their calls are asked about again."""
    if revoke_all == bool(ids):
        raise UsageError("which templates?", hint="name their ids, or say --all")
    file, requested = approval_templates(open_user_store()), frozenset(ids or ())
    revoked = file.revoke(None if revoke_all else requested)
    if revoked < len(requested):
        raise UsageError(
            f"{count_noun(revoked, 'template')} revoked; there are no templates with the other ids",
            hint="mlx-tools approvals list",
        )
    complain(f"{count_noun(revoked, 'template')} revoked", kind="done")


def _arguments(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patterns by argument.

    Raises:
        UsageError: no call could have such arguments.
    """
    properties = schema.get("properties") or {}
    patterns: dict[str, Any] = {}
    for word in words:
        parts = re.fullmatch(r"([^=:]+)(:?=)(.*)", word, re.DOTALL)
        if parts is None:
            raise UsageError(f"{word!r} is not ARGUMENT=PATTERN", hint="write ARGUMENT=PATTERN")
        name, sign, pattern = parts.groups()
        if name not in properties or name in patterns:
            fault = "is said twice" if name in patterns else "is no argument of it"
            raise UsageError(f"{name!r} {fault}", hint=f"it has {', '.join(properties) or 'none'}")
        patterns[name] = pattern if sign == "=" else parse_json(pattern, f"{name}:=")
    if missing := [name for name in schema.get("required") or () if name not in patterns]:
        raise UsageError(
            f"a call always has {', '.join(missing)}, and no pattern for it was given",
            hint=f"{missing[0]}=* stands for any value",
        )
    return patterns


def _lines(template: ApprovalTemplate) -> Iterator[str]:
    until = datetime.fromisoformat(template.expires_at).astimezone()
    yield f"{template.id} {escape_name(template.tool)}, until {until:%Y-%m-%d %H:%M}".strip()
    for name, pattern in template.arguments.items():
        shown = "anything" if pattern == "*" else format_value(pattern)
        yield f"  {escape_name(name)}: {shown}"
    if template.roots:
        roots = ", ".join(map(escape_line, template.roots))
        yield f"  in runs whose folders lie in {roots}; paths are below it"
    if template.nested:
        yield "  in runs within a call too"
