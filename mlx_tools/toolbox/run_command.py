"""``run_command``: runs a program that has rules, with arguments that keep to them, sandboxed."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mlx_tools.errors import ErrorCode, UsageError
from mlx_tools.messages import Effects, replace
from mlx_tools.paths import expand_user
from mlx_tools.store import PathRefused, Root, identity_of
from mlx_tools.toolbox.command_rules import Plan, Rule, plan, repository_state, rules
from mlx_tools.toolbox.file_reading import tool_errors
from mlx_tools.toolbox.program_files import trusted_folders
from mlx_tools.toolbox.sandbox import (
    MAX_OUTPUT_BYTES,
    NoSandbox,
    ProcessResult,
    Sandbox,
    run,
    sandbox,
)
from mlx_tools.toolbox.sandbox_view import SandboxView
from mlx_tools.tools import Preview, Tool, ToolError, current_context, words_of

EFFECTS: Final[Effects] = frozenset(("read", "write", "execute"))
"""Of every call: no rule is believed so far that a program could be called harmless. The network
is not among them, since the sandbox has none."""

_MARGIN: Final = 0.9
"""The share of a call's time that a program may take, so that ending it fits into the rest."""

_SECONDS: Final = 60.0
"""Seconds that a program may take where the call has no time of its own."""

_ENDED: Final[Mapping[str, str]] = {
    "timeout": "it did not end in time, and was ended with all that it started",
    "cancelled": "it was ended, since nobody waited any more",
    "processes": "it started too many processes, and was ended with all of them",
}


def run_command(
    roots: Sequence[Root],
    programs: Iterable[str] = (),
    find: Callable[[], Sandbox] = sandbox,
    folders: Iterable[str] = (),
) -> Tool:
    """The tool for these roots; the first is where programs run.

    ``programs`` are further ones that may run with any arguments, by the names they have in the
    system's folders. ``find`` gives the sandbox, and raises NoSandbox. ``folders`` are folders of
    programs that the user trusts. Raises UsageError for a program that no file can be called, and a
    folder that is not named from the root on.
    """
    names = tuple(programs)
    for name in names:
        if not name.isprintable() or "/" in name or name[:1] in ("", "-", "."):
            raise UsageError(
                f"tools.commands: {name!r} is no name of a program",
                hint="write the name alone, without a folder",
            )
    own = tuple(map(str, map(expand_user, folders)))
    for folder in own:
        if not Path(folder).is_absolute() or len(Path(folder).parts) < 2:
            raise UsageError(
                f"tools.program_folders: {folder!r} is no folder of programs",
                hint="write its whole path",
            )
    commands = _Commands(roots, names, find, own)
    words = words_of("run_command")
    parameters: dict[str, Any] = {**words.parameters}
    properties = {**parameters["properties"]}
    properties["program"] = {**properties["program"], "enum": [*commands.programs]}
    spec = replace(
        words.spec(EFFECTS, private=True),
        parameters={**parameters, "properties": properties},
        needs_approval=True,
        consent_argument="program",
    )
    return Tool(spec, commands.run, preview=commands.preview)


def disabled_reason(roots: Sequence[Root], find: Callable[[], Sandbox] = sandbox) -> str | None:
    """The reason why the tool cannot work here, None where it can. Tries the sandbox out, once."""
    if why := _unfit(roots):
        return why
    try:
        find()
    except NoSandbox as error:
        return str(error)
    return None


def _unfit(roots: Sequence[Root]) -> str | None:
    """The reason why no program may run below these roots, None where one may."""
    if not roots:
        return "no folder was named that programs may see (--root DIR)"
    if any(root.patterns for root in roots):
        return "a folder was named with patterns (--root DIR:ro:PATTERN): programs see whole ones"
    if any(len(root.path.parts) == 1 for root in roots):
        return "the root / is the whole system; name a folder below it"
    return None


class _Commands:
    def __init__(
        self,
        roots: Sequence[Root],
        programs: tuple[str, ...],
        find: Callable[[], Sandbox],
        own: tuple[str, ...],
    ) -> None:
        added = (name for name in programs if name not in rules())
        self.programs = {**rules(), **{name: Rule(name, form="any") for name in added}}
        self._roots = roots
        self._find = find
        self._own = own
        self._notices = words_of("run_command").notices

    def preview(self, arguments: Mapping[str, Any]) -> Preview:
        """The words that would really run. Raises ToolError."""
        with tool_errors(f"{arguments['program']} cannot be run"):
            made = self._plan(arguments)
            return Preview(shlex.join(made.argv), made.state())

    def run(self, arguments: Mapping[str, Any]) -> str:
        """Run a program; an exit code other than 0 is no error. Raises ToolError."""
        context = current_context()
        with tool_errors(f"{arguments['program']} cannot be run"):
            made = self._plan(arguments)
            if context.expected is not None and context.expected != made.state():
                raise ToolError("what would run is no longer what was approved; nothing was run")
            try:
                box = self._find()
            except NoSandbox as error:
                raise ToolError(str(error), code="disabled") from None
            seconds = _SECONDS if context.timeout is None else context.timeout * _MARGIN
            with box.confined(made.argv, self._view(made, box)) as confined:
                environment = _environment(made.environment, made.folders)
                ran = run(confined, environment, seconds, lambda: bool(context.cancelled))
        if not ran.started:
            detail = " ".join(ran.errors.decode(errors="replace").split())
            raise ToolError(f"the sandbox could not be set up: {detail[:300]}")
        if ran.ending in _ENDED:
            code: ErrorCode = "timeout" if ran.ending == "timeout" else "tool_error"
            raise ToolError(_ENDED[ran.ending], code=code)
        return self._report(ran)

    def _plan(self, arguments: Mapping[str, Any]) -> Plan:
        if why := _unfit(self._roots):
            raise PathRefused(why)
        program, words = arguments["program"], arguments.get("arguments", ())
        return plan(self.programs, _folders(), self._roots, program, words, own=self._own)

    def _view(self, plan: Plan, box: Sandbox) -> SandboxView:
        first = self._roots[0].path
        replaced: dict[str, bytes] = {}
        if plan.rule.repository:
            if not box.hides_contents:
                raise PathRefused(
                    f"{plan.rule.name} cannot be confined here: {box.name} cannot hide what a "
                    "repository's configuration makes it run"
                )
            config = first / ".git" / "config"
            if str(config) in plan.private.files:
                replaced[str(config)] = repository_state(config)
        if not all(map(_in_place, self._roots)):
            raise PathRefused("a root was moved or replaced since it was opened")
        free = plan.rule.form == "any"  # what has rules only reads, and starts nothing
        roots = [(str(root.path), root.writable and free) for root in self._roots]
        return SandboxView(
            str(first), roots, plan.private, replaced, starts=free, programs=plan.folders
        )

    def _report(self, ran: ProcessResult) -> str:
        """The end of the program, on the first line, where nothing that it prints can stand; then
        what it printed."""
        notices = self._notices
        first = notices["code"].format(code=ran.code)
        if ran.ending == "flood":
            first = notices["flood"].format(kept=MAX_OUTPUT_BYTES)
        elif ran.code < 0:
            first = notices["signal"].format(signal=-ran.code)
        output, errors = self._text(ran.output), self._text(ran.errors)
        parts = [first, *([output] if output else [])]
        parts += [notices["errors"], errors] if errors else []
        parts += [] if parts[1:] else [notices["nothing"]]
        return "\n".join(part.rstrip("\n") for part in parts)

    def _text(self, output: bytes) -> str:
        """The printed text, with U+FFFD for what is no UTF-8; only told of where it is no text."""
        if b"\0" in output:
            return self._notices["binary"].format(size=len(output))
        return output.decode("utf-8", "replace")


@functools.cache
def _folders() -> tuple[str, ...]:
    return trusted_folders()


def _in_place(root: Root) -> bool:
    """True if the path still leads to the folder that was opened."""
    try:
        return identity_of(root.path.stat()) == root.identity
    except OSError:
        return False


def _environment(extra_environment: Mapping[str, str], folders: Sequence[str]) -> dict[str, str]:
    """All variables that a program gets: none of this process's, and none that makes programs load
    or run something."""
    return {
        "PATH": ":".join((*_folders(), *folders)),
        "HOME": "/nonexistent",
        "TERM": "dumb",
        **extra_environment,
    }
