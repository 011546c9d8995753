"""A tool of a folder as any other tool: a spec, and a call that runs in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.tools.context import current_context
from mlx_tools.tools.folder.contents import digest_of, read_files, write_files
from mlx_tools.tools.folder.definition import EXECUTE, ToolFolder, read_folder
from mlx_tools.tools.folder.run import Came, call, environment
from mlx_tools.tools.tool import Preview, Tool, ToolError

_MARGIN: Final = 0.5
"""Seconds of a call's time, a tenth at most, that are kept for ending its process."""

_SECONDS: Final = 60.0
"""What a call may take that has no time of its own."""

_PRINTED_CHARS: Final = 300
"""Of what a tool printed: so much of the end stands in an error."""

CHANGED: Final = "its folder has changed since it was added"


def load_tool(folder: str | os.PathLike[str]) -> Tool:
    """The tool in a folder, as it is now; a call is refused once its files are others.

    For a tool of one's own, `mlx_tools.Controller` and tests: nobody is asked whether it is
    trusted. Raises ToolDefinitionError, naming the file and the fault.
    """
    return folder_tool(read_folder(Path(folder).resolve()))


def folder_tool(found: ToolFolder) -> Tool:
    """The tool that a folder holds."""

    def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
        context = current_context()
        seconds = _SECONDS if context.timeout is None else context.timeout
        _check_unchanged(found)
        if context.expected not in (None, found.digest):
            raise ToolError("its files are no longer those that were approved", code="disabled")
        tries = 2 if found.spec.retry == "read_only" and not found.spec.mutates(arguments) else 1
        until = time.monotonic() + seconds - min(_MARGIN, seconds / 10)
        for left in reversed(range(tries)):
            try:
                with _copied(found) as execute:
                    came = call(
                        execute,
                        arguments,
                        environ=environment(found.environment, os.environ),
                        seconds=until - time.monotonic(),
                        most=found.max_output_bytes,
                        offline=any(part.local_only for part in context.policy.parts),
                        passing=execute.parent.parent,
                        cancelled=lambda: context.cancelled,
                        progress=context.progress,
                    )
            except OSError as error:
                raise ToolError(f"no process can be started: {error.strerror}") from None
            if came.ending not in ("fault", "ended") or not left:
                break
        return _result(came, seconds, found.max_output_bytes)

    return Tool(found.spec, run, preview=lambda arguments: Preview("", found.digest))


def _check_unchanged(found: ToolFolder) -> None:
    try:
        same = digest_of(read_files(found.path)) == found.digest
    except ToolDefinitionError as error:
        raise ToolError(str(error), code="disabled") from None
    if not same:
        raise ToolError(CHANGED, code="disabled")


@contextlib.contextmanager
def _copied(found: ToolFolder) -> Iterator[Path]:
    """``execute`` in a copy of the files as they were read: whatever is put in their place between
    the look at them and the run is not run. Raises OSError."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="mlx-tools-", ignore_cleanup_errors=True) as place:
        folder = Path(place).resolve() / found.path.name
        write_files(found.contents, folder)
        yield folder / EXECUTE


def _result(came: Came, seconds: float, most: int) -> dict[str, Any]:
    """What the tool returned. Raises ToolError for anything else that came of the call."""
    match came.ending:
        case "result":
            value = came.value or {}
            if value.get("success") is False:
                raise ToolError(_said(value))
            return value
        case "timeout":
            limit = f"{round(seconds, 2):g} s"
            text = f"no result within {limit}; its process was ended with all it started"
            raise ToolError(_with_printed(text, came), code="timeout")
        case "cancelled":
            raise ToolError("it was ended, since nobody waited any more")
        case "refused":
            raise ToolError(f"local-only mode holds, and {came.fault}", code="disabled")
        case "printed":
            text = f"it printed more than {most} bytes, and was ended"
            raise ToolError(_with_printed(text, came), code="payload_too_large")
        case "size":
            text = f"its result has more than {most} bytes"
            raise ToolError(_with_printed(text, came), code="payload_too_large")
        case "fault":
            raise ToolError(_with_printed(came.fault, came))
    raise ToolError(_with_printed(_how_ended(came.status), came))


def _said(value: Mapping[str, Any]) -> str:
    """What a tool says went wrong that says so itself."""
    error = value.get("error") or value.get("message")
    if isinstance(error, str) and error.strip():
        return error
    rest = {key: item for key, item in value.items() if key != "success"}
    return json.dumps(rest, ensure_ascii=False) if rest else "the tool says that it failed"


def _how_ended(status: int | None) -> str:
    if status is None:
        return "its process was ended from outside"
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process ended with the exit code {code} and without a result"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process crashed ({name})"


def _with_printed(text: str, came: Came) -> str:
    """The text and the end of what the tool printed: mostly it says why."""
    printed = came.printed[-_PRINTED_CHARS:].strip()
    return f"{text}; it printed: {printed}" if printed else text
