"""A tool of a folder as any other tool: a spec, and a call that runs in a process of its own.

`child_process` is the other side. Whatever happens here, that process and all it started are ended
with the call; they end by themselves where this process is killed, since their lifeline ends with
it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final, Literal

from mlx_tools.errors import ErrorCode, ToolDefinitionError
from mlx_tools.process import Pipes, end
from mlx_tools.tools.context import ToolContext, ToolError, current_context
from mlx_tools.tools.folder.definition import (
    EXECUTE,
    ToolFolder,
    digest_of,
    read_files,
    read_folder,
    write_files,
)
from mlx_tools.tools.tool import Preview, Tool

CHILD: Final = Path(__file__).with_name("child_process.py")
CHANGED: Final = "its folder has changed since it was added"
KEPT_BYTES: Final = 8192
"""Of what a tool prints: so much of its end is kept."""

_PRINTED_CHARS: Final = 300
"""Of that, so much stands in an error."""

_SECONDS: Final = 60.0
"""What a call may take that has no time of its own."""
_MARGIN: Final = 0.5
"""Seconds of a call's time, a tenth at most, that are kept for ending its process."""
_TICK: Final = 0.05
"""Seconds between two looks at whether to go on."""
_AFTER: Final = 1.0
"""Seconds that a process has to end once it has told its result."""
_GONE: Final = 6.0
"""Seconds within which a process that was told to end is gone; then it is killed from outside."""

_ALWAYS: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ")
"""Variables that every tool sees, where they are set; they say nothing of the user."""

_OFFLINE: Final = ("/usr/bin/sandbox-exec", "-p", "(version 1)(allow default)(deny network*)")
"""On macOS: before what is to run without network."""


def load_tool(folder: str | os.PathLike[str]) -> Tool:
    """The tool in a folder, as it is now; a call is refused once its files are others.

    For a tool of one's own, `mlx_tools.Controller` and tests: nobody is asked whether it is
    trusted. Raises ToolDefinitionError, naming the file and the fault.
    """
    return folder_tool(read_folder(Path(folder).resolve()))


def folder_tool(found: ToolFolder, unusable: str | None = None) -> Tool:
    """The tool that a folder holds; ``unusable`` is why it cannot run, None where it can."""

    def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
        context = current_context()
        seconds = _SECONDS if context.timeout is None else context.timeout
        _check_unchanged(found)
        if context.expected not in (None, found.digest):
            raise ToolError("its files are no longer those that were approved", code="disabled")
        until = time.monotonic() + seconds - min(_MARGIN, seconds / 10)
        try:
            with _copied(found) as execute:
                came = _call(found, execute, arguments, until, context)
        except OSError as error:
            raise ToolError(f"no process can be started: {error.strerror}") from None
        return _result(came, seconds, found.max_output_bytes)

    preview = Preview("", found.digest)
    return Tool(found.spec, run, preview=lambda arguments: preview, unusable=lambda: unusable)


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


# --- what came of a call --------------------------------------------------------------------------

Ending = Literal["result", "fault", "refused", "ended", "timeout", "cancelled", "printed", "size"]


@dataclass(slots=True)
class _Came:
    """What came of a call.

    ``value`` is what ``execute`` returned (``result``), ``fault`` why there is nothing (``fault``),
    or why it was not run (``refused``), ``status`` how the process ended, as ``wait`` gives it,
    None where nobody knows. ``printed`` is the end of what it printed.
    """

    ending: Ending
    value: dict[str, Any] | None = None
    fault: str = ""
    status: int | None = None
    printed: str = ""


def _result(came: _Came, seconds: float, most: int) -> dict[str, Any]:
    """Return what the tool returned. Raises ToolError for anything else that came of the call."""
    code: ErrorCode = "tool_error"
    match came.ending:
        case "result":
            value = came.value or {}
            if value.get("success") is False:
                raise ToolError(_said(value))
            return value
        case "cancelled":
            raise ToolError("it was ended, since nobody waited any more")
        case "refused":
            raise ToolError(f"local-only mode holds, and {came.fault}", code="disabled")
        case "timeout":
            limit = f"{round(seconds, 2):g} s"
            text = f"no result within {limit}; its process was ended with all it started"
            code = "timeout"
        case "printed":
            text, code = f"it printed more than {most} bytes, and was ended", "payload_too_large"
        case "size":
            text, code = f"its result has more than {most} bytes", "payload_too_large"
        case "fault":
            text = came.fault
        case "ended":
            text = _how_ended(came.status)
    if printed := came.printed[-_PRINTED_CHARS:].strip():  # mostly it says why
        text = f"{text}; it printed: {printed}"
    raise ToolError(text, code=code, passing=came.ending in ("fault", "ended"))


def _said(value: Mapping[str, Any]) -> str:
    """Return what a tool says went wrong that says so itself."""
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
    known = {one.value: one.name for one in signal.Signals}
    return f"its process crashed ({known.get(-code, f'signal {-code}')})"


# --- the process ----------------------------------------------------------------------------------


def _call(
    found: ToolFolder,
    execute: Path,
    arguments: Mapping[str, Any],
    until: float,
    context: ToolContext,
) -> _Came:
    """Calls ``execute`` of the file in a process of its own, and waits for what comes, at the
    latest until this time. In local-only mode there is no network for it, or it is not run. Raises
    OSError where no process can be started."""
    request = json.dumps(dict(arguments), allow_nan=False).encode() + b"\n"
    # -I: nothing of the user's environment; no compiled file beside a source is written or read
    options = ("-I", "-B", "-X", "utf8", "-X", f"pycache_prefix={os.devnull}")
    results, told = os.pipe()
    passing = f"passing={execute.parent.parent}"  # removed where this process is killed
    command = (sys.executable, *options, str(CHILD), str(execute), str(told), passing)
    if any(part.local_only for part in context.policy.parts):
        command = (*(_OFFLINE if sys.platform == "darwin" else ()), *command, "offline")
    try:
        child = subprocess.Popen(  # noqa: S603 - an argument list, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                name: os.environ[name]
                for name in (*_ALWAYS, *found.environment)
                if name in os.environ
            },
            cwd=execute.parent,
            pass_fds=(told,),
            start_new_session=True,
        )
    except BaseException:
        os.close(results)
        raise
    finally:
        os.close(told)
    assert child.stdin is not None and child.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended: how, its results say
            child.stdin.write(request)  # which it reads before it runs anything of the tool
            child.stdin.flush()
        talk = _Talk(found.max_output_bytes, context)
        return talk.until(until, results, child.stdout.fileno())
    finally:
        os.close(results)  # before it is waited for: it may be about to write
        child.stdout.close()
        end(child, _GONE)  # its lifeline first, then all that is left


class _Talk:
    """What the other side of a call says: its results, and what the tool prints."""

    def __init__(self, most: int, context: ToolContext) -> None:
        self._most = most
        self._context = context
        self._line = bytearray()
        self._tail = bytearray()
        self._printed = 0
        self._came: _Came | None = None
        self._over = False

    def until(self, until: float, results: int, prints: int) -> _Came:
        """Listens until there is an end."""
        pipes = Pipes({results: self._read_results, prints: self._read_prints})
        after = inf
        while not self._over:
            now = time.monotonic()
            if self._came is not None:
                after = min(after, now + _AFTER)
                if now >= after:
                    break
            elif self._context.cancelled:
                self._came = _Came("cancelled")
                break
            elif now >= until:
                self._came = _Came("timeout")
                break
            pipes.read(max(0.0, min(_TICK, until - now)))
        pipes.read(0)
        pipes.close()
        came = self._came or _Came("ended")
        came.printed = self._tail.decode("utf-8", "replace").strip()
        return came

    def _read_results(self, piece: bytes) -> bool:
        *lines, rest = (self._line + piece).split(b"\n")
        for line in lines:
            self._take(bytes(line))
        self._line = bytearray(rest)
        if len(rest) > self._most + 100 and self._came is None:
            self._came, self._over = _Came("size"), True
        self._over = self._over or not piece
        return not self._over

    def _take(self, line: bytes) -> None:
        """Takes in a line. Only the first that says what came of the call counts."""
        told = _parsed(line)
        if "ended" in told:
            self._came = self._came or _Came("ended", status=told["ended"])
            self._over = True
        elif "progress" in told and self._came is None:
            self._context.progress(*told["progress"])
        elif "fault" in told:
            self._came = self._came or _Came("fault", fault=str(told["fault"]))
        elif "refused" in told:
            self._came, self._over = _Came("refused", fault=str(told["refused"])), True
        elif "result" in told:
            size = len(line) - len('{"result": }')
            self._came = self._came or (
                _Came("size") if size > self._most else _Came("result", told["result"])
            )

    def _read_prints(self, piece: bytes) -> bool:
        self._printed += len(piece)
        self._tail += piece
        del self._tail[:-KEPT_BYTES]
        if self._printed <= self._most:
            return True
        if self._came is None:
            self._came, self._over = _Came("printed"), True
        return False  # one that has told its result may end


def _parsed(line: bytes) -> dict[str, Any]:
    """A line of the other side. The tool shares its process: a line can hold anything."""
    try:
        told = json.loads(line)
        if "progress" in told:
            message, share = told["progress"]
            told = {"progress": (str(message), None if share is None else float(share))}
    except (ValueError, TypeError, OverflowError, RecursionError):
        return {}
    if not isinstance(told, dict) or not isinstance(told.get("result", {}), dict):
        return {}
    status = told.get("ended")  # as ``wait`` gives it; None where nobody knows
    return told if status is None or (type(status) is int and 0 <= status <= 0xFFFF) else {}
