"""A tool of a folder as any other tool: a spec, and a call that runs in a process of its own.

`child_process` is the other side. Whatever happens here, that process and all it started are ended
with the call; they end by themselves where this process is killed, since their lifeline ends with
it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.process import end
from mlx_tools.tools.context import ToolError, current_context
from mlx_tools.tools.folder.definition import (
    EXECUTE,
    ToolFolder,
    digest_of,
    read_files,
    read_folder,
    write_files,
)
from mlx_tools.tools.tool import Preview, Tool

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


def folder_tool(found: ToolFolder, unusable: str | None = None) -> Tool:
    """The tool that a folder holds; ``unusable`` is why it cannot run, None where it can."""

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


# --- the process ----------------------------------------------------------------------------------

CHILD: Final = Path(__file__).with_name("child_process.py")
KEPT_BYTES: Final = 8192
"""Of what a tool prints: so much of its end is kept."""

_TICK: Final = 0.05
"""Seconds between two looks at whether to go on."""
_AFTER: Final = 1.0
"""Seconds that a process has to end once it has told its result."""
_GONE: Final = 6.0
"""Seconds within which a process that was told to end is gone; then it is killed from outside."""

_ALWAYS: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ")
"""Variables that every tool sees, where they are set."""

_OFFLINE: Final = ("/usr/bin/sandbox-exec", "-p", "(version 1)(allow default)(deny network*)")
"""On macOS: before what is to run without network."""

Ending = Literal["result", "fault", "refused", "ended", "timeout", "cancelled", "printed", "size"]


@dataclass(frozen=True, slots=True)
class Came:
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


def environment(names: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a tool sees: a few that say nothing of the user, and those it names."""
    return {name: environ[name] for name in (*_ALWAYS, *names) if name in environ}


def call(
    execute: Path,
    arguments: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    seconds: float | None,
    most: int,
    offline: bool = False,
    passing: Path | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[str, float | None], None] = lambda message, fraction: None,
) -> Came:
    """Calls ``execute`` of the file with these arguments (JSON values), and waits for what comes.

    ``seconds`` is its time, None for as long as nobody cancels. ``most`` is how many bytes it may
    print, and how many its result may have as JSON. ``offline``: there is no network for it, or it
    is not run. ``passing`` is a folder that is there for this call alone: it is removed where
    this process is killed. Raises OSError where no process can be started, ValueError where the
    arguments are no JSON.
    """
    request = json.dumps(dict(arguments), allow_nan=False).encode() + b"\n"
    (results, told), (prints, printed) = _two_pipes()
    try:
        # -I: nothing of the user's environment; no compiled file beside a source is written or read
        options = ("-I", "-B", "-X", "utf8", "-X", f"pycache_prefix={os.devnull}")
        command: tuple[str, ...] = (sys.executable, *options, str(CHILD), str(execute), str(told))
        command += () if passing is None else (f"passing={passing}",)
        if offline:
            around = _OFFLINE if sys.platform == "darwin" else ()
            command = (*around, *command, "offline")
        child = subprocess.Popen(  # noqa: S603 - an argument list, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=printed,
            env=dict(environ),
            cwd=execute.parent,
            pass_fds=(told,),
            start_new_session=True,
        )
    except BaseException:
        os.close(results)
        os.close(prints)
        raise
    finally:
        os.close(told)
        os.close(printed)
    try:
        talk = _Talk(child, request, results, prints, most, progress)
    except BaseException:  # there are no more descriptors
        end(child)
        for file in (results, prints):
            os.close(file)
        raise
    try:
        return talk.until(seconds, cancelled)
    finally:
        talk.close()


def _two_pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    first = os.pipe()
    try:
        return first, os.pipe()
    except OSError:
        for file in first:
            os.close(file)
        raise


class _Talk:
    """Everything that goes between the two sides of one call."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        request: bytes,
        results: int,
        prints: int,
        most: int,
        progress: Callable[[str, float | None], None],
    ) -> None:
        assert child.stdin is not None
        self._child, self._stdin = child, child.stdin
        self._results, self._prints = results, prints
        self._left = memoryview(request)
        self._most = most
        self._progress = progress
        self._line = bytearray()
        self._tail = bytearray()
        self._printed = 0
        self._came: Came | None = None
        self._over = False
        self._selector = selectors.DefaultSelector()
        for file, event in (
            (self._stdin.fileno(), selectors.EVENT_WRITE),
            (results, selectors.EVENT_READ),
            (prints, selectors.EVENT_READ),
        ):
            os.set_blocking(file, False)
            self._selector.register(file, event)

    def until(self, seconds: float | None, cancelled: Callable[[], bool]) -> Came:
        """Talks until there is an end."""
        until = None if seconds is None else time.monotonic() + seconds
        after: float | None = None
        while not self._over:
            now = time.monotonic()
            if self._came is not None:
                after = now + _AFTER if after is None else after
                if now >= after:
                    break
            elif cancelled():
                self._came = Came("cancelled")
                break
            elif until is not None and now >= until:
                self._came = Came("timeout")
                break
            self._step(_TICK if until is None else max(0.0, min(_TICK, until - now)))
        self._read_prints()
        came = self._came or Came("ended")
        printed = self._tail.decode("utf-8", "replace").strip()
        return Came(came.ending, came.value, came.fault, came.status, printed)

    def close(self) -> None:
        """Ends the process and all it started; waits until they are gone."""
        self._selector.close()
        os.close(self._results)
        os.close(self._prints)
        with contextlib.suppress(OSError):
            self._stdin.close()  # its lifeline
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_GONE)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)  # where its watcher was killed from outside
        self._child.wait()

    def _step(self, wait: float) -> None:
        for key, _ in self._selector.select(wait):
            if key.fd == self._results:
                self._read_results()
            elif key.fd == self._prints:
                self._read_prints()
            else:
                self._write()

    def _write(self) -> None:
        try:
            self._left = self._left[os.write(self._stdin.fileno(), self._left[:65_536]) :]
        except BlockingIOError:
            return
        except OSError:  # it has ended: how, its results say
            self._left = self._left[:0]
        if not self._left:
            self._selector.unregister(self._stdin.fileno())

    def _read_results(self) -> None:
        piece = _read(self._results)
        if piece is None:
            return
        if not piece:
            self._over = True
            return
        *lines, rest = (self._line + piece).split(b"\n")
        for line in lines:
            self._take(bytes(line))
        self._line = bytearray(rest)
        if len(rest) > self._most + 100 and self._came is None:
            self._came, self._over = Came("size"), True

    def _take(self, line: bytes) -> None:
        """Takes in a line. Only the first that says what came of the call counts."""
        told = _parsed(line)
        if "ended" in told:
            status = told["ended"]
            self._came = self._came or Came("ended", status=status)
            self._over = True
        elif "progress" in told and self._came is None:
            self._progress(*told["progress"])
        elif "fault" in told:
            self._came = self._came or Came("fault", fault=str(told["fault"]))
        elif "refused" in told:
            self._came, self._over = Came("refused", fault=str(told["refused"])), True
        elif "result" in told:
            size = len(line) - len('{"result": }')
            self._came = self._came or (
                Came("size") if size > self._most else Came("result", told["result"])
            )

    def _read_prints(self) -> None:
        while self._printed <= self._most:
            piece = _read(self._prints)
            if not piece:
                return
            self._printed += len(piece)
            self._tail += piece
            del self._tail[:-KEPT_BYTES]
        if self._came is None:
            self._came, self._over = Came("printed"), True
        elif self._came.ending not in ("printed", "size"):  # it has told its result: let it end
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._prints)


def _read(file: int) -> bytes | None:
    """What is there, empty at the end, None where there is nothing yet."""
    try:
        return os.read(file, 65_536)
    except BlockingIOError:
        return None


def _parsed(line: bytes) -> dict[str, Any]:
    """A line of the other side. The tool shares its process: a line can hold anything."""
    try:
        told = json.loads(line)
        if "progress" in told:
            message, share = told["progress"]
            told = {"progress": (str(message), None if share is None else float(share))}
    except (ValueError, TypeError, OverflowError, RecursionError):
        return {}
    known = isinstance(told, dict) and isinstance(told.get("result", {}), dict)
    return told if known and _is_status(told.get("ended")) else {}


def _is_status(value: Any) -> bool:
    """Whether it is how a process can have ended, as ``wait`` gives it; None where nobody knows."""
    return value is None or (type(value) is int and 0 <= value <= 0xFFFF)
