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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.paths import package_file, private_dir, write_whole
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

CHILD: Final = package_file("tools/folder/child_process.py")
CHANGED: Final = "its folder has changed since it was added"
KEPT_BYTES: Final = 8192
"""Of what a tool prints: so much of its end is kept."""

_PRINTED_CHARS: Final = 300
"""Of that, so much stands in an error."""

_ERROR_CHARS: Final = 250
"""Of a tool's own words for its error, where it gives details: half of what a model is shown."""

_SECONDS: Final = 60.0
"""Seconds that a call may take that has no time of its own."""
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


def without_network(platform: str = sys.platform) -> tuple[str, ...]:
    """What stands before a command that is to run without network; on Linux it sees to it itself,
    and elsewhere it says that it cannot."""
    return _OFFLINE if platform == "darwin" else ()


def load_tool(folder: str | os.PathLike[str], roots: Iterable[str] = ()) -> Tool:
    """The tool in a folder, as it is now; a call is refused once its files are others. ``roots``
    are as for `folder_tool`.

    For a tool of one's own, `mlx_tools.Controller` and tests: nobody is asked whether it is
    trusted. Raises ToolDefinitionError, naming the file and the fault.
    """
    return folder_tool(read_folder(Path(folder).resolve()), roots=tuple(roots))


def folder_tool(
    folder: ToolFolder,
    disabled_reason: str | None = None,
    log: Path | None = None,
    roots: Sequence[str] = (),
) -> Tool:
    """The tool that a folder holds; ``disabled_reason`` is why it cannot run, None where it can.
    Where it has a whitelist, that holds below the ``roots`` (``DIR`` or ``DIR:rw``), without one
    below the working directory.

    With a ``log`` the folder is one that somebody is making: it is used as it is at each call, and
    what the last one printed, and its traceback, are kept there.
    """

    def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
        context = current_context()
        seconds = _SECONDS if context.timeout is None else context.timeout
        now = _as_it_is(folder, making=log is not None)
        held = _held_to(now, roots, arguments)
        if context.expected not in (None, now.digest):
            raise ToolError("its files are no longer those that were approved", code="disabled")
        until = time.monotonic() + seconds - min(_MARGIN, seconds / 10)
        talk = _ToolProcess(now, context, seconds, until)
        try:
            with _copy_folder(now) as execute:
                return _call(now, execute, held, talk, traced=log is not None)
        except OSError as error:
            raise ToolError(f"no process can be started: {error.strerror}") from None
        finally:
            if log is not None:
                from mlx_tools.policy import Redactor  # its table takes a while to read

                with contextlib.suppress(OSError, UsageError):  # the call is what counts
                    private_dir(log.parent)
                    said = Redactor().redact(talk.said()).text
                    write_whole(log, said.encode("utf-8", "replace"))

    def preview(arguments: Mapping[str, Any]) -> Preview:
        now = folder if log is None else _as_it_is(folder, making=True)
        _held_to(now, roots, arguments)
        return Preview("", now.digest)

    return Tool(folder.spec, run, preview=preview, disabled_reason=lambda: disabled_reason)


def _held_to(
    folder: ToolFolder, roots: Sequence[str], arguments: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The arguments that the tool gets, held to its restrictions. Raises ToolError for a call that
    they do not permit."""
    folder.restrictions.check(arguments)
    writing = folder.restrictions.mode != "ro" and "write" in folder.spec.effects_of(arguments)
    return folder.restrictions.held(arguments, roots, writing=writing)


def _as_it_is(folder: ToolFolder, *, making: bool) -> ToolFolder:
    """The folder as it is now: the same, or one that somebody is making. Raises ToolError where the
    tool is not what the model was shown."""
    try:
        same = not making and digest_of(read_files(folder.path)) == folder.digest
        now = read_folder(folder.path) if making else folder
    except ToolDefinitionError as error:
        raise ToolError(str(error), code="disabled") from None
    if not (same or making):
        raise ToolError(CHANGED, code="disabled")
    if now.spec != folder.spec:
        raise ToolError("what it says of itself was changed: begin anew", code="disabled")
    return now


@contextlib.contextmanager
def _copy_folder(tool_folder: ToolFolder) -> Iterator[Path]:
    """``execute`` in a copy of the files as they were read: whatever is put in their place between
    the look at them and the run is not run. Raises OSError."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="mlx-tools-", ignore_cleanup_errors=True) as place:
        folder = Path(place).resolve() / tool_folder.path.name
        write_files(tool_folder.contents, folder)
        yield folder / EXECUTE


# --- the process ----------------------------------------------------------------------------------


def _call(
    folder: ToolFolder,
    execute: Path,
    arguments: Mapping[str, Any],
    talk: _ToolProcess,
    *,
    traced: bool,
) -> dict[str, Any]:
    """Calls ``execute`` of the file in a process of its own, and waits for what comes. In
    local-only mode there is no network for it, or it is not run. Raises OSError where no process
    can be started, ToolError where there is no result."""
    request = json.dumps(dict(arguments), allow_nan=False).encode() + b"\n"
    results, told = os.pipe()
    # -I: nothing of the user's environment; no compiled file is written, and none was copied
    options = ("-I", "-B", "-X", "utf8")
    command = [sys.executable, *options, str(CHILD), str(execute), str(told)]
    if any(part.local_only for part in talk.context.policy.parts):
        command = [*without_network(), *command, "offline"]
    if traced:
        command.append("traced")
    try:
        child = subprocess.Popen(  # noqa: S603 - an argument list, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                name: os.environ[name]
                for name in (*_ALWAYS, *folder.environment)
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
        return talk.listen(results, child.stdout.fileno())
    finally:
        os.close(results)  # before it is waited for: it may be about to write
        child.stdout.close()
        end(child, _GONE)  # its lifeline first, then all that is left


class _ToolProcess:
    """The other side of a call as it is heard: its results, and what the tool prints. ``until`` is
    when at the latest it is ended, of the ``seconds`` that the call has."""

    def __init__(
        self, folder: ToolFolder, context: ToolContext, seconds: float, deadline: float
    ) -> None:
        self.context = context
        self._max_bytes = folder.max_output_bytes
        self._seconds, self._deadline = seconds, deadline
        self._line = bytearray()
        self._tail = bytearray()
        self._printed_lines = 0
        self._trace = ""
        self._result: dict[str, Any] | ToolError | None = None
        self._is_over = False

    def listen(self, results: int, prints: int) -> dict[str, Any]:
        """Return what the tool returned. Raises ToolError for anything else that comes."""
        pipes = Pipes({results: self._read_results, prints: self._read_prints})
        after = inf
        while not self._is_over:
            now = time.monotonic()
            if self._result is not None:
                after = min(after, now + _AFTER)
                self._is_over = now >= after
            elif self.context.cancelled:
                self._end(ToolError("it was ended, since nobody waited any more"), is_over=True)
            elif now >= self._deadline:
                limit = f"{round(self._seconds, 2):g} s"
                late = f"no result within {limit}; its process was ended with all it started"
                self._end(ToolError(late, code="timeout"), is_over=True)
            left = _TICK if self._result is not None else max(0.0, self._deadline - now)
            pipes.read(0.0 if self._is_over else min(_TICK, left))
        pipes.close()
        came = self._result
        if isinstance(came, dict):
            if came.get("success") is False:
                raise ToolError(_error_message(came))
            return came
        error = came or ToolError(_how_ended(None), passing=True)
        printed = self._tail.decode("utf-8", "replace").strip()[-_PRINTED_CHARS:].strip()
        text = f"{error}; it printed: {printed}" if printed else str(error)  # mostly it says why
        raise ToolError(text, code=error.code, passing=error.passing)

    def said(self) -> str:
        """Return the end of what the tool printed, and its traceback where there was one."""
        printed = self._tail.decode("utf-8", "replace")
        return "\n".join(part.rstrip() for part in (printed, self._trace) if part.strip())

    def _end(self, result: dict[str, Any] | ToolError, *, is_over: bool = False) -> None:
        """Only the first that says what came of the call counts."""
        if self._result is None:
            self._result = result
        self._is_over = self._is_over or is_over

    def _read_results(self, piece: bytes) -> bool:
        first, *rest = piece.split(b"\n")
        self._line += first
        for following in rest:
            self._take(bytes(self._line))
            self._line = bytearray(following)
        if len(self._line) > self._max_bytes + 100 and self._result is None:
            self._end(self._too_large(), is_over=True)
        self._is_over = self._is_over or not piece
        return not self._is_over

    def _take(self, line: bytes) -> None:
        told = _parsed(line)
        if "ended" in told:
            self._end(ToolError(_how_ended(told["ended"]), passing=True), is_over=True)
        elif "progress" in told and self._result is None:
            self.context.progress(*told["progress"])
        elif "fault" in told:
            self._trace = str(told.get("trace", ""))
            self._end(ToolError(str(told["fault"]), passing=True))
        elif "refused" in told:
            text = f"local-only mode holds, and {told['refused']}"
            self._end(ToolError(text, code="disabled"), is_over=True)
        elif "result" in told:
            fits = len(line) - len('{"result": }') <= self._max_bytes
            self._end(told["result"] if fits else self._too_large())

    def _too_large(self) -> ToolError:
        return ToolError(
            f"its result has more than {self._max_bytes} bytes", code="payload_too_large"
        )

    def _read_prints(self, piece: bytes) -> bool:
        self._printed_lines += len(piece)
        self._tail += piece
        del self._tail[:-KEPT_BYTES]
        if self._printed_lines <= self._max_bytes:
            return True
        if self._result is None:
            text = f"it printed more than {self._max_bytes} bytes, and was ended"
            self._end(ToolError(text, code="payload_too_large"), is_over=True)
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


def _error_message(value: Mapping[str, Any]) -> str:
    """Return the words of a tool that says itself that it failed: `error`, or `message`, behind
    its `error_type` and before its `details`; without an error all that it returned."""
    error, kind, details = (value.get(key) for key in ("error", "error_type", "details"))
    error = error or value.get("message")
    if not isinstance(error, str) or not error.strip():
        rest = {key: item for key, item in value.items() if key != "success"}
        return json.dumps(rest, ensure_ascii=False) if rest else "the tool says that it failed"
    text = error.strip()
    if isinstance(kind, str) and kind.strip() and not text.startswith(kind.strip()):
        text = f"{kind.strip()}: {text}"
    if details in (None, "", [], {}):
        return text
    if len(text) > _ERROR_CHARS:  # so that a long text leaves room for the details
        text = f"{text[:_ERROR_CHARS]}…"
    shown = details if isinstance(details, str) else json.dumps(details, ensure_ascii=False)
    return f"{text} (details: {shown})"


def _how_ended(status: int | None) -> str:
    if status is None:
        return "its process was ended from outside"
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process ended with the exit code {code} and without a result"
    known = {one.value: one.name for one in signal.Signals}
    return f"its process crashed ({known.get(-code, f'signal {-code}')})"
