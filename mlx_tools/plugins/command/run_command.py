"""``run_command``: runs a program with checked arguments, in a sandbox."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mlx_tools.errors import ErrorCode, UsageError
from mlx_tools.messages import Effects, replace
from mlx_tools.paths import expand_user
from mlx_tools.plugins.command.program_files import list_trusted_folders
from mlx_tools.plugins.command.rules import Plan, Rule, keep_repository_lines, load_rules, make_plan
from mlx_tools.plugins.command.sandbox import (
    MAX_OUTPUT_BYTES,
    NoSandbox,
    ProcessResult,
    Sandbox,
    detect_sandbox,
    run,
)
from mlx_tools.plugins.command.sandbox_view import SandboxView
from mlx_tools.store import PathRefused, Root, get_identity
from mlx_tools.toolbox import tool_errors
from mlx_tools.tools import Preview, Tool, ToolError, current_context, load_words

EFFECTS: Final[Effects] = frozenset(("read", "write", "execute"))
"""The effects of every call, because no rule proves that a program is harmless. The network is not
among them, because the sandbox has none."""

_MARGIN: Final = 0.9
"""The share of a call's time that a program may take. The rest is left to end it."""

_SECONDS: Final = 60.0
"""Seconds that a program may take if the call has no time limit."""

_PRINTED_CHARS: Final = 3_000
"""Characters of output in the error about a program that was ended: some 50 lines."""

_END_MESSAGES: Final[Mapping[str, str]] = {
    "timeout": "it did not end in time, and was ended with all that it started",
    "cancelled": "it was ended because the call was cancelled",
    "processes": "it started too many processes, and was ended with all of them",
}


def run_command(
    roots: Sequence[Root],
    programs: Iterable[str] = (),
    find: Callable[[], Sandbox] = detect_sandbox,
    folders: Iterable[str] = (),
) -> Tool:
    """Return the tool for these roots. Programs run in the first one.

    Args:
        roots: the folders that programs may see.
        programs: further programs of the system's folders, which may run with any arguments.
        find: returns the sandbox, or raises NoSandbox.
        folders: folders of programs that the user trusts.

    Raises:
        UsageError: a program's name is not valid, or a folder is not absolute.
    """
    names = tuple(programs)
    for name in names:
        if not name.isprintable() or "/" in name or name[:1] in ("", "-", "."):
            raise UsageError(
                f"tools.commands: {name!r} is no name of a program",
                hint="write the name alone, without a folder",
            )
    user_folders = tuple(map(str, map(expand_user, folders)))
    for folder in user_folders:
        if not Path(folder).is_absolute() or len(Path(folder).parts) < 2:
            raise UsageError(
                f"tools.program_folders: {folder!r} is no folder of programs",
                hint="write its whole path",
            )
    commands = _Commands(roots, names, find, user_folders)
    words = load_words("run_command")
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


def disabled_reason(
    roots: Sequence[Root], find: Callable[[], Sandbox] = detect_sandbox
) -> str | None:
    """Return why the tool cannot work here, or None. The sandbox is tested once."""
    if why := _find_obstacle(roots):
        return why
    try:
        find()
    except NoSandbox as error:
        return str(error)
    return None


def _find_obstacle(roots: Sequence[Root]) -> str | None:
    """Return why no program may run below these roots, or None."""
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
        user_folders: tuple[str, ...],
    ) -> None:
        added = (name for name in programs if name not in load_rules())
        self.programs = {**load_rules(), **{name: Rule(name, form="any") for name in added}}
        self._roots = roots
        self._find = find
        self._user_folders = user_folders
        self._notices = load_words("run_command").notices

    def preview(self, arguments: Mapping[str, Any]) -> Preview:
        """Return the words of the real command. Raises ToolError."""
        with tool_errors(f"{arguments['program']} cannot be run"):
            command_plan = self._make_plan(arguments)
            return Preview(shlex.join(command_plan.argv), command_plan.digest())

    def run(self, arguments: Mapping[str, Any]) -> str:
        """Run a program; an exit code other than 0 is no error. Raises ToolError."""
        context = current_context()
        with tool_errors(f"{arguments['program']} cannot be run"):
            command_plan = self._make_plan(arguments)
            if context.expected is not None and context.expected != command_plan.digest():
                raise ToolError(
                    "the program or its arguments have changed since the approval; nothing was run"
                )
            try:
                found_sandbox = self._find()
            except NoSandbox as error:
                raise ToolError(str(error), code="disabled") from None
            seconds = _SECONDS if context.timeout is None else context.timeout * _MARGIN
            with found_sandbox.confine(
                command_plan.argv, self._make_view(command_plan, found_sandbox)
            ) as confined:
                environment = _make_environment(command_plan.environment, command_plan.folders)
                result = run(confined, environment, seconds, lambda: bool(context.cancelled))
        if not result.was_started:
            detail = " ".join(result.errors.decode(errors="replace").split())
            raise ToolError(f"the sandbox could not be set up: {detail[:300]}")
        if result.ending in _END_MESSAGES:
            code: ErrorCode = "timeout" if result.ending == "timeout" else "tool_error"
            message, printed = _END_MESSAGES[result.ending], "\n".join(self._list_output(result))
            if printed:  # the end of the output shows how far the program got
                cut = "[…]\n" if len(printed) > _PRINTED_CHARS else ""
                message = f"{message}; it printed:\n{cut}{printed[-_PRINTED_CHARS:]}"
            raise ToolError(message, code=code, max_chars=_PRINTED_CHARS + 200)
        return self._format_result(result)

    def _make_plan(self, arguments: Mapping[str, Any]) -> Plan:
        if why := _find_obstacle(self._roots):
            raise PathRefused(why)
        program, words = arguments["program"], arguments.get("arguments", ())
        return make_plan(
            self.programs,
            _find_folders(),
            self._roots,
            program,
            words,
            user_folders=self._user_folders,
        )

    def _make_view(self, plan: Plan, box: Sandbox) -> SandboxView:
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
                replaced[str(config)] = keep_repository_lines(config)
        if not all(map(_is_in_place, self._roots)):
            raise PathRefused("a root was moved or replaced since it was opened")
        free = plan.rule.form == "any"  # programs with rules only read, and start no others
        roots = [(str(root.path), root.writable and free) for root in self._roots]
        return SandboxView(
            str(first), roots, plan.private, replaced, starts=free, programs=plan.folders
        )

    def _format_result(self, ran: ProcessResult) -> str:
        """Return how the program ended on the first line, then its output.

        Its output can never be on the first line.
        """
        notices = self._notices
        first_line = notices["code"].format(code=ran.code)
        if ran.ending == "flood":
            first_line = notices["flood"].format(kept=MAX_OUTPUT_BYTES)
        elif ran.code < 0:
            first_line = notices["signal"].format(signal=-ran.code)
        return "\n".join((first_line, *(self._list_output(ran) or [notices["nothing"]])))

    def _list_output(self, ran: ProcessResult) -> list[str]:
        """Return the printed texts, without their last line ends, under their notices."""
        output, errors = (
            self._decode_output(text).rstrip("\n") for text in (ran.output, ran.errors)
        )
        parts = [output] if ran.output else []
        return parts + ([self._notices["errors"], errors] if ran.errors else [])

    def _decode_output(self, output: bytes) -> str:
        """Return the printed text, or its size if it is binary.

        Invalid UTF-8 becomes U+FFFD.
        """
        if b"\0" in output:
            return self._notices["binary"].format(size=len(output))
        return output.decode("utf-8", "replace")


@functools.cache
def _find_folders() -> tuple[str, ...]:
    return list_trusted_folders()


def _is_in_place(root: Root) -> bool:
    """Return whether the root's path still leads to the opened folder."""
    try:
        return get_identity(root.path.stat()) == root.identity
    except OSError:
        return False


def _make_environment(
    extra_environment: Mapping[str, str], folders: Sequence[str]
) -> dict[str, str]:
    """Return all environment variables of a program.

    None comes from this process, and none makes programs load or run other files.
    """
    return {
        "PATH": ":".join((*_find_folders(), *folders)),
        "HOME": "/nonexistent",
        "TERM": "dumb",
        **extra_environment,
    }
