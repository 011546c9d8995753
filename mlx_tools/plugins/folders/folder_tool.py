"""The `Tool` of a folder. Each call runs in a separate process.

`child_process` is the code of that process. It always ends with the call, with all processes that
it started. If this process is killed, they end too, because their lifeline, standard input, ends.
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

from mlx_tools.errors import (
    ToolDefinitionError,
    UsageError,
    require_path,
    require_texts,
)
from mlx_tools.paths import package_file, private_dir, write_whole
from mlx_tools.plugins.folders.definition import (
    EXECUTE,
    ToolFolder,
    compute_digest,
    read_files,
    read_folder,
    write_files,
)
from mlx_tools.process import Pipes, end
from mlx_tools.tools import Preview, Tool, ToolContext, ToolError, current_context

CHILD: Final = package_file("plugins/folders/child_process.py")
CHANGED_REASON: Final = "its folder has changed since it was added"
MAX_TAIL_BYTES: Final = 8192
"""Bytes that are stored of the end of a tool's output, which shows why it failed."""

_PRINTED_CHARS: Final = 300
"""Characters of the printed text in an error message."""

_ERROR_CHARS: Final = 250
"""Characters of the tool's own error text if there are details: half of what a model sees."""

_DEFAULT_SECONDS: Final = 60.0
"""Seconds for a call without a time limit of its own."""
_MARGIN: Final = 0.5
"""Seconds of a call's time that are reserved to end its process, a tenth of it at most."""
_TICK: Final = 0.05
"""Seconds between two checks for cancellation: the delay with which a cancelled call may end."""
_END_SECONDS: Final = 1.0
"""Seconds that a process has to end after it has sent its result."""
_KILL_SECONDS: Final = 6.0
"""Seconds after which a process that should end is killed. It needs up to five seconds to end all
processes that the tool started."""

_ALWAYS: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ")
"""Variables that every tool sees if they are set. They reveal nothing about the user."""

_OFFLINE: Final = ("/usr/bin/sandbox-exec", "-p", "(version 1)(allow default)(deny network*)")


def offline_prefix(platform: str = sys.platform) -> tuple[str, ...]:
    """Return the words to put before a command to run it without network.

    On Linux the process itself leaves the network. On other systems than these two it reports that
    it cannot.
    """
    return _OFFLINE if platform == "darwin" else ()


def load_tool(folder: str | os.PathLike[str], roots: Iterable[str] = ()) -> Tool:
    """Return the tool in a folder. A call is refused if its files change.

    This is for your own tools, with `mlx_tools.Controller` and in tests: the tool is used without a
    question whether you trust it.

    Args:
        folder: the folder of the tool.
        roots: see `folder_tool`.

    Raises:
        UsageError: an argument is not valid.
        ToolDefinitionError: it is no tool; the message names the file and the fault.
    """
    path = Path(require_path("folder", folder, "give the folder of a tool"))
    return folder_tool(read_folder(path.resolve()), roots=require_texts("roots", roots, "a list"))


def folder_tool(
    folder: ToolFolder,
    disabled_reason: str | None = None,
    log: Path | None = None,
    roots: Sequence[str] = (),
) -> Tool:
    """Return the tool in a folder.

    Args:
        folder: the content of the folder.
        disabled_reason: the reason why it cannot run, None if it can.
        log: for a folder in the making, the file for the output and traceback of the last call.
            Each call then uses the present files.
        roots: folders (``DIR`` or ``DIR:rw``) below which a whitelist applies. Without one it
            applies below the working directory.
    """

    def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
        context = current_context()
        seconds = _DEFAULT_SECONDS if context.timeout is None else context.timeout
        now = _read_current(folder, making=log is not None)
        checked_arguments = _check_arguments(now, roots, arguments)
        if context.expected not in (None, now.digest):
            raise ToolError("its files are no longer those that were approved", code="disabled")
        until = time.monotonic() + seconds - min(_MARGIN, seconds / 10)
        talk = _ToolProcess(now, context, seconds, until)
        try:
            with _copy_folder(now) as execute:
                return _run_process(now, execute, checked_arguments, talk, traced=log is not None)
        except OSError as error:
            raise ToolError(f"no process can be started: {error.strerror}") from None
        finally:
            if log is not None:
                from mlx_tools.policy import Redactor  # imported late: its table loads slowly

                with contextlib.suppress(OSError, UsageError):  # the call is what counts
                    private_dir(log.parent)
                    log_text = Redactor().redact(talk.describe_output()).text
                    write_whole(log, log_text.encode("utf-8", "replace"))

    def preview(arguments: Mapping[str, Any]) -> Preview:
        now = folder if log is None else _read_current(folder, making=True)
        _check_arguments(now, roots, arguments)
        return Preview("", now.digest)

    return Tool(folder.spec, run, preview=preview, disabled_reason=lambda: disabled_reason)


def _check_arguments(
    folder: ToolFolder, roots: Sequence[str], arguments: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Check the restrictions, and return the arguments for the tool.

    Raises:
        ToolError: the restrictions do not permit the call.
    """
    folder.restrictions.check(arguments)
    writing = folder.restrictions.mode != "ro" and "write" in folder.spec.get_effects(arguments)
    return folder.restrictions.resolve_paths(arguments, roots, writing=writing)


def _read_current(folder: ToolFolder, *, making: bool) -> ToolFolder:
    """Return the present content of the folder.

    Raises:
        ToolError: the tool differs from the one that the model was shown.
    """
    try:
        same = not making and compute_digest(read_files(folder.path)) == folder.digest
        now = read_folder(folder.path) if making else folder
    except ToolDefinitionError as error:
        raise ToolError(str(error), code="disabled") from None
    if not (same or making):
        raise ToolError(CHANGED_REASON, code="disabled")
    if now.spec != folder.spec:
        raise ToolError("its description has changed: start a new session", code="disabled")
    return now


@contextlib.contextmanager
def _copy_folder(tool_folder: ToolFolder) -> Iterator[Path]:
    """Yield ``execute`` in a copy of the files that were checked. Raises OSError.

    So files that are replaced between the check and the run are not run.
    """
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="mlx-tools-", ignore_cleanup_errors=True) as place:
        folder = Path(place).resolve() / tool_folder.path.name
        write_files(tool_folder.contents, folder)
        yield folder / EXECUTE


# --- the process ----------------------------------------------------------------------------------


def _run_process(
    folder: ToolFolder,
    execute: Path,
    arguments: Mapping[str, Any],
    talk: _ToolProcess,
    *,
    traced: bool,
) -> dict[str, Any]:
    """Call ``execute`` in a separate process and wait for the result.

    In local-only mode the process has no network, or does not run.

    Raises:
        OSError: no process can be started.
        ToolError: there is no result.
    """
    request = json.dumps(dict(arguments), allow_nan=False).encode() + b"\n"
    results, results_end = os.pipe()
    # -I ignores the user's environment; -B writes no compiled files, and none was copied
    options = ("-I", "-B", "-X", "utf8")
    command = [sys.executable, *options, str(CHILD), str(execute), str(results_end)]
    if any(part.local_only for part in talk.context.policy.parts):
        command = [*offline_prefix(), *command, "offline"]
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
            pass_fds=(results_end,),
            start_new_session=True,
        )
    except BaseException:
        os.close(results)
        raise
    finally:
        os.close(results_end)
    assert child.stdin is not None and child.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended; its results have the reason
            # Standard input stays open: its end tells the child that the caller has ended.
            child.stdin.write(request)  # the child reads it before it runs the tool's code
            child.stdin.flush()
        return talk.listen(results, child.stdout.fileno())
    finally:
        os.close(results)  # before it is waited for: it may be about to write
        child.stdout.close()
        end(child, _KILL_SECONDS)  # closes its lifeline first, then kills what is left


class _ToolProcess:
    """The process of a call: its results, and the tool's output.

    Args:
        folder: the folder of the tool.
        context: the context of the call.
        seconds: the time limit of the call.
        deadline: the time at which the process is ended.
    """

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
        """Return the tool's result.

        Raises:
            ToolError: there is no result.
        """
        pipes = Pipes({results: self._read_results, prints: self._read_prints})
        after = inf
        while not self._is_over:
            now = time.monotonic()
            if self._result is not None:
                after = min(after, now + _END_SECONDS)
                self._is_over = now >= after
            elif self.context.cancelled:
                self._set_result(
                    ToolError("it was ended because the call was cancelled"), is_over=True
                )
            elif now >= self._deadline:
                limit = f"{round(self._seconds, 2):g} s"
                late = f"no result within {limit}; its process was ended with all it started"
                self._set_result(ToolError(late, code="timeout"), is_over=True)
            wait_seconds = _TICK if self._result is not None else max(0.0, self._deadline - now)
            pipes.read(0.0 if self._is_over else min(_TICK, wait_seconds))
        pipes.close()
        result = self._result
        if isinstance(result, dict):
            if result.get("success") is False:
                raise ToolError(_read_error(result))
            return result
        error = result or ToolError(_describe_end(None), passing=True)
        printed = self._tail.decode("utf-8", "replace").strip()[-_PRINTED_CHARS:].strip()
        # the output mostly shows the reason
        text = f"{error}; it printed: {printed}" if printed else str(error)
        raise ToolError(text, code=error.code, passing=error.passing)

    def describe_output(self) -> str:
        """Return the end of the tool's output, and its traceback if there is one."""
        printed = self._tail.decode("utf-8", "replace")
        return "\n".join(part.rstrip() for part in (printed, self._trace) if part.strip())

    def _set_result(self, result: dict[str, Any] | ToolError, *, is_over: bool = False) -> None:
        """Set the result of the call. Only the first one counts."""
        if self._result is None:
            self._result = result
        self._is_over = self._is_over or is_over

    def _read_results(self, piece: bytes) -> bool:
        first, *rest = piece.split(b"\n")
        self._line += first
        for following in rest:
            self._handle_line(bytes(self._line))
            self._line = bytearray(following)
        if len(self._line) > self._max_bytes + 100:  # even after a result it must not grow
            self._set_result(self._make_too_large_error(), is_over=True)
        self._is_over = self._is_over or not piece
        return not self._is_over

    def _handle_line(self, line: bytes) -> None:
        message = _parse_line(line)
        if "ended" in message:
            self._set_result(ToolError(_describe_end(message["ended"]), passing=True), is_over=True)
        elif "progress" in message and self._result is None:
            self.context.progress(*message["progress"])
        elif "fault" in message:
            self._trace = str(message.get("trace", ""))
            self._set_result(ToolError(str(message["fault"]), passing=True))
        elif "refused" in message:
            text = f"local-only mode holds, and {message['refused']}"
            self._set_result(ToolError(text, code="disabled"), is_over=True)
        elif "result" in message:
            fits = len(line) - len('{"result": }') <= self._max_bytes
            self._set_result(message["result"] if fits else self._make_too_large_error())

    def _make_too_large_error(self) -> ToolError:
        return ToolError(
            f"its result has more than {self._max_bytes} bytes", code="payload_too_large"
        )

    def _read_prints(self, piece: bytes) -> bool:
        self._printed_lines += len(piece)
        self._tail += piece
        del self._tail[:-MAX_TAIL_BYTES]
        if self._printed_lines <= self._max_bytes:
            return True
        if self._result is None:
            text = f"it printed more than {self._max_bytes} bytes, and was ended"
            self._set_result(ToolError(text, code="payload_too_large"), is_over=True)
        return False  # with a result, the process may end


def _parse_line(line: bytes) -> dict[str, Any]:
    """Parse a line of the process; an unusable line is empty.

    The tool runs in the same process, so a line can have any content.
    """
    try:
        parsed = json.loads(line)
        if "progress" in parsed:
            message, share = parsed["progress"]
            parsed = {"progress": (str(message), None if share is None else float(share))}
    except (ValueError, TypeError, OverflowError, RecursionError):
        return {}
    if not isinstance(parsed, dict) or not isinstance(parsed.get("result", {}), dict):
        return {}
    status = parsed.get("ended")  # a status as from ``wait``, None if unknown
    return parsed if status is None or (type(status) is int and 0 <= status <= 0xFFFF) else {}


def _read_error(value: Mapping[str, Any]) -> str:
    """Return the error text of a tool that reports a failure.

    It is ``error`` or ``message``, after ``error_type`` and before ``details``. Without these it is
    the whole result.
    """
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
    if len(text) > _ERROR_CHARS:  # a long text must leave room for the details
        text = f"{text[:_ERROR_CHARS]}…"
    shown = details if isinstance(details, str) else json.dumps(details, ensure_ascii=False)
    return f"{text} (details: {shown})"


def _describe_end(status: int | None) -> str:
    if status is None:
        return "its process was ended from outside"
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process ended with the exit code {code} and without a result"
    signal_names = {item.value: item.name for item in signal.Signals}
    return f"its process crashed ({signal_names.get(-code, f'signal {-code}')})"
