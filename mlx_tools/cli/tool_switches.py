"""The commands of `mlx-tools tools` that switch tools on and off, or remove them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from mlx_tools.app import load_registry
from mlx_tools.cli import options
from mlx_tools.cli.call_text import TextLine, escape_line, show_all
from mlx_tools.cli.completion import tool_names
from mlx_tools.cli.inputs import confirm
from mlx_tools.cli.options import Yes, argument
from mlx_tools.cli.output import complain, note
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError
from mlx_tools.policy import BUILTIN, Policy, find_denial
from mlx_tools.tools import FOLDER, NO_SUCH, BoundSources, Registry, UserChoicesFile

ALLOW: Final = "to allow it in a run: --tools {name}"

ToolName = Annotated[str, argument("NAME", "The tool.", autocompletion=tool_names)]


def register(app: typer.Typer) -> None:
    """Add the commands to the group."""
    for command in (enable, disable, remove):
        app.command()(command)


def enable(name: ToolName) -> None:
    """Switch a tool on."""
    _switch(name, True)
    tell_callable([name])


def disable(name: ToolName) -> None:
    """Switch a tool off, wherever it comes from."""
    _switch(name, False)
    complain(f"{name} is off (mlx-tools tools enable {name})", kind="done")


def remove(name: ToolName, yes: Yes = False) -> int:
    """Delete a tool that was added, or a source of bound tools."""
    sources = BoundSources()
    if name in sources.names():
        if not confirm(f"Forget {name} and its tools?", yes):
            return EXIT_STOPPED
        sources.remove(name)
        complain(f"removed {name}", kind="done")
        return EXIT_OK
    registry = load_tools()
    spec, offer = registry.all_specs().get(registry.resolve_name(name)), registry.find_offer(name)
    if spec is not None and (offer is None or offer.remove is None or spec.plugin != offer.plugin):
        raise UsageError(
            f"{name} was not added by you ({describe_origin(spec.plugin)})",
            hint=f"mlx-tools tools disable {name}",
        )
    if offer is None or offer.remove is None:
        raise UsageError(
            f"there is no tool {name[:80]!r} that can be removed",
            hint="mlx-tools tools list says which there are",
        )
    done = offer.remove(lambda question: confirm(question, yes))
    if done is None:
        return EXIT_STOPPED
    complain(escape_line(done), kind="done")
    return EXIT_OK


def lacking(name: str, registry: Registry, policy: Policy) -> str | None:
    """Return why a tool cannot be called, with an option that helps.

    None if it can be called.
    """
    reason = registry.lacks(name, policy)
    spec = registry.specs().get(registry.resolve_name(name))  # None if it is disabled
    denied = find_denial(policy, spec) if spec is not None else None
    option_helps = denied is not None and denied.rule == "default"
    return f"{reason}; {ALLOW.format(name=name)}" if reason and option_helps else reason


def tell_printed(name: str, registry: Registry) -> None:
    """Show the author of a tool what its last call printed, and its traceback."""
    offer = registry.find_offer(name)
    if offer is None or offer.last_output is None:
        return
    place, text = offer.last_output() or ("", "")
    if text.strip():
        note(f"its last call printed, in {place}:")
        show_all(TextLine(escape_line(line), foreign=True) for line in text.split("\n"))


def tell_callable(names: Sequence[str]) -> None:
    """Report for each tool that it can be called now, or what is still missing."""
    if not names:
        return
    loaded = options.load({})
    registry, policy = load_registry(loaded), loaded.policy()
    for name in names:
        reason = lacking(name, registry, policy)
        if reason is not None:
            separator = " is on;" if registry.resolve_name(name) in registry.specs() else ":"
            note(f"{name}{separator} {reason}")
        else:
            complain(f"{name} can be called", kind="done")


def load_tools() -> Registry:
    """Return the tools under the user's settings."""
    return load_registry(options.load({}))


def describe_origin(plugin: str) -> str:
    """Return where a tool of this plugin comes from, in words."""
    return "built in" if plugin == BUILTIN else f"of {plugin}"


def _switch(name: str, is_on: bool) -> None:
    registry = load_tools()
    name = registry.resolve_name(name)
    spec = registry.all_specs().get(name)
    if spec is None and registry.lacks(name, Policy()) == NO_SUCH:
        raise UsageError(
            f"there is no tool {name[:100]}", hint="mlx-tools tools list says which there are"
        )
    is_folder = spec is None or spec.plugin == FOLDER
    UserChoicesFile().switch(name, is_on if is_folder or not is_on else None)
