"""The process of a folder's tool: runs ``execute``, and watches the run.

It is started by ``python -I child.py PLACE/FOLDER/EXECUTE.PY RESULTS [offline] [traced] [ps]``. At
the end it removes PLACE if the caller can no longer do so. The call's arguments are one line of
JSON on standard input. The input then stays open as a lifeline: when it ends, the caller has ended
or given up. Messages go to the descriptor RESULTS, one line of JSON each, so that the tool's output
is never between them:

    {"progress": [message, share or null]}
    {"result": {...}}       the result of ``execute``
    {"fault": message}      the reason why there is no result; with ``traced`` also a ``trace``
    {"refused": message}    the reason why the tool was not run at all
    {"ended": status}       the status of the process, as from ``wait``; the last line

There are two processes. A fork of this one runs the tool. This one waits, and at the end it ends
all processes that the tool started, even if the tool, the call or the caller failed.

On Linux it adopts orphans of the tool (``PR_SET_CHILD_SUBREAPER``), so that it also finds processes
that left their group. macOS has neither that nor ``/proc``. There it runs ``ps`` repeatedly, and
remembers each process below this one, with its group and its descendants, even after its parent has
ended. The word ``ps`` forces this on other systems. This module imports nothing of mlx_tools.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

MAX_FAULT_CHARS = 2000
MAX_TRACE_CHARS = 8000
MAX_PROCESSES = 200
_COUNT_INTERVAL = 0.25
"""Seconds between two counts of the processes. A choice: each one reads all processes of the
system."""

_FIRST_COUNT = 0.03
"""Seconds to the first count with ``ps``, so that it finds a process that starts others and ends at
once. One run of ``ps`` takes about half of this."""

_END_SECONDS = 5.0
"""Seconds within which all processes that the tool started must have ended."""
_PR_SET_CHILD_SUBREAPER = 36
_TAKES_ANY_NAME = 0x08
"""A flag of a function's code: it has a parameter ``**names`` (``inspect.CO_VARKEYWORDS``)."""
_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000


def main() -> None:
    """Run the tool, wait for it, end leftover processes, and report how it ended."""
    path, results = sys.argv[1], int(sys.argv[2])
    # Programs that the tool starts must not hold the results open.
    os.set_inheritable(results, False)
    request = sys.stdin.buffer.readline()
    if not request.endswith(b"\n"):
        return  # the caller has ended
    if "offline" in sys.argv[3:] and (why := _leave_network()):
        _write(results, _encode_line({"refused": why}))
        return
    by_ps = "ps" in sys.argv[3:] or not sys.platform.startswith("linux")
    processes = _Processes() if by_ps else None
    # Before the fork, so that no orphan of the tool can escape.
    _adopt(subreaper=processes is None)
    worker = os.fork()
    if worker == 0:
        _work(path, request, results, traced="traced" in sys.argv[3:])
        return
    descendants = _find_descendants if processes is None else processes.descendants
    status = _watch(
        worker, results, descendants, _COUNT_INTERVAL if processes is None else _FIRST_COUNT
    )
    _end_all(descendants)
    if status is None:
        import shutil

        place = os.path.dirname(os.path.dirname(path))  # noqa: PTH120
        shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):  # the caller may no longer read the results
        _write(results, _encode_line({"ended": status}))
    # The last step, since it ends this process too.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # the rest of the group, including this process


def _encode_line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def _write(results: int, line: bytes) -> None:
    remaining = memoryview(line)
    while remaining:
        remaining = remaining[os.write(results, remaining) :]


# --- the tool -----------------------------------------------------------------------------------


def _work(path: str, request: bytes, results: int, *, traced: bool) -> None:
    """Run ``execute`` and report its outcome.

    If the tool itself forks, the copy that returns to this function reports nothing.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    worker_pid = os.getpid()
    try:
        line = _run_tool(path, json.loads(request), results, traced=traced)
    finally:
        if os.getpid() != worker_pid:
            os._exit(0)
    try:
        for stream in (sys.stdout, sys.stderr):
            # The tool may have closed it, or replaced it by None or another object.
            with contextlib.suppress(AttributeError, OSError, TypeError, ValueError):
                stream.flush()
    finally:
        with contextlib.suppress(OSError):  # the tool closed it, or the caller no longer reads it
            _write(results, line)


def _run_tool(path: str, arguments: dict[str, Any], results: int, *, traced: bool) -> bytes:
    """Return the line that reports the outcome of the call."""
    folder = os.path.dirname(path)  # noqa: PTH120 - pathlib would take longer to load than to use
    sys.path.insert(0, folder)
    sys.argv = [path]
    try:
        value = _call(_load_execute(path), arguments, results)
    except SystemExit as error:
        return _encode_line(
            {"fault": f"it called sys.exit({error.code!r:.100}) and returned nothing"}
        )
    except BaseException as error:
        message = {"fault": _describe_error(error, folder)}
        return _encode_line(message | ({"trace": _format_trace(error)} if traced else {}))
    if not isinstance(value, dict):
        kind = type(value).__name__
        kind = f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
        kind = "None" if value is None else kind
        return _encode_line({"fault": f"execute returned {kind}, and must return a dict"})
    try:
        return _encode_line({"result": value})
    except (TypeError, ValueError, RecursionError) as error:
        fault = f"what execute returned cannot be written as JSON: {error}"
        return _encode_line({"fault": fault[:MAX_FAULT_CHARS]})


def _load_execute(path: str) -> Callable[..., Any]:
    module: Any = type(sys)("execute")  # quicker than loading Python's importlib.util
    module.__file__ = path
    sys.modules["execute"] = module
    with open(path, "rb") as file:  # noqa: PTH123
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - the purpose of this process
    execute = getattr(module, "execute", None)
    if not callable(execute):
        raise TypeError("execute.py has no function execute(arguments)")
    return execute  # type: ignore[no-any-return]


def _call(execute: Callable[..., Any], arguments: dict[str, Any], results: int) -> Any:
    keywords = {"progress": _make_reporter(results)} if _takes_progress(execute) else {}
    value = execute(arguments, **keywords)
    if hasattr(value, "__await__"):
        import asyncio

        async def awaited() -> Any:
            return await value

        return asyncio.run(awaited())
    return value


def _takes_progress(function: Any) -> bool:
    """Return whether a function has a parameter ``progress``.

    A wrapper that passes any keyword on to such a function counts too.
    """
    while (code := getattr(function, "__code__", None)) is not None:
        if "progress" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            return True
        if not code.co_flags & _TAKES_ANY_NAME:
            return False
        function = getattr(function, "__wrapped__", None)
    return False


def _make_reporter(results: int) -> Callable[..., None]:
    def progress(message: str = "", fraction: float | None = None) -> None:
        """Report the progress of the call: a few words, and the share done from 0 to 1.

        If there are many reports, the caller decides which it passes on: only it knows the last.
        """
        values = [str(message)[:200], None if fraction is None else float(fraction)]
        _write(results, json.dumps({"progress": values}).encode() + b"\n")

    return progress


def _describe_error(error: BaseException, folder: str) -> str:
    """Return the exception's class and text, and its place in the tool's folder."""
    try:
        text = str(error)[:MAX_FAULT_CHARS]
    except Exception as failure:  # the tool's own class
        text = f"its text cannot be made: {type(failure).__name__}"
    kind = type(error).__name__
    place, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(folder + os.sep):
            place = f" ({name[len(folder) + 1 :]}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return (f"{kind}: {text}" if text else kind) + place


def _format_trace(error: BaseException) -> str:
    import traceback

    try:
        return "".join(traceback.format_exception(error))[-MAX_TRACE_CHARS:]
    except Exception as failure:  # the text of one exception in the chain
        return f"its trace cannot be made: {type(failure).__name__}"


# --- the watching process -----------------------------------------------------------------------


def _leave_network() -> str | None:
    """Move this process, and all that it starts, into an empty network.

    Returns:
        The reason why that is not possible, or None. On macOS the caller cuts off the network.
    """
    if not sys.platform.startswith("linux"):
        return None if sys.platform == "darwin" else "this system cannot run it without network"
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        # This needs a right, which a user namespace gives. In there `setgroups` must be denied
        # before an ordinary user may write `gid_map`.
        if libc.unshare(_CLONE_NEWNET) == 0:
            return None
        user, group = os.geteuid(), os.getegid()
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            return f"this system cannot run it without network: {os.strerror(number)}"
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                file.write(text)
    except OSError as error:
        return f"this system cannot run it without network: {error.strerror}"
    return None


def _adopt(*, subreaper: bool) -> None:
    """Forbid core dumps, and adopt orphans of the tool if the system can do that."""
    # The tool also runs without the module, or with a hard limit that cannot be lowered.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not subreaper:
        return
    # Only Linux has this call, and a libc may lack it.
    with contextlib.suppress(ImportError, OSError, AttributeError, TypeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _watch(
    worker: int, results: int, descendants: Callable[[], set[int]], first_look: float
) -> int | None:
    """Wait for the worker and return its status.

    None if the lifeline ended before, or if there are too many processes.
    """
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    # A signal between `_reap` and `select` would be missed. A byte in this pipe is not.
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    next_count = time.monotonic() + first_look
    while True:
        status = _reap(worker)
        if status is not None:
            return status
        ready, _, _ = select.select([0, wake_read], [], [], max(0.0, next_count - time.monotonic()))
        if wake_read in ready:
            os.read(wake_read, 4096)
        if 0 in ready and not os.read(0, 4096):
            return None
        if time.monotonic() < next_count:
            continue
        next_count = time.monotonic() + _COUNT_INTERVAL  # even if processes keep ending meanwhile
        if len(descendants()) > MAX_PROCESSES:
            _write(
                results, _encode_line({"fault": f"it started more than {MAX_PROCESSES} processes"})
            )
            return None


def _reap(worker: int) -> int | None:
    """Reap every process that has ended; return the worker's status if it has ended."""
    worker_status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == worker:
                worker_status = status
    return worker_status


def _end_all(descendants: Callable[[], set[int]]) -> None:
    """End every process that descends from this one, as far as the system knows them.

    They are stopped first, because a stopped process cannot start others.
    """
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        stopped: set[int] = set()
        while new := descendants() - stopped:
            for pid in new:
                _send_signal(pid, signal.SIGSTOP)
            stopped |= new
            if time.monotonic() > deadline:
                break
        if not stopped:
            return
        for pid in stopped:
            _send_signal(pid, signal.SIGKILL)
        _reap(-1)
        time.sleep(0.005)


def _send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _find_descendants() -> set[int]:
    """Return the live processes below this one; empty without ``/proc``."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - there may be very many
    except OSError:
        return set()
    for name in names:
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - quicker
                # The command's name, in parentheses, may have blanks and parentheses too.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    descendants: set[int] = set()
    pending = [os.getpid()]
    while pending:
        below = children.get(pending.pop(), ())
        pending += [pid for pid in below if pid not in descendants]
        descendants.update(below)
    return descendants


class _Processes:
    """Finds the processes below this one by ``ps``, even if their parent has ended.

    It recognizes processes of earlier runs of ``ps`` by their number and time of start.
    """

    def __init__(self) -> None:
        self._start_times: dict[int, str] = {}

    def descendants(self) -> set[int]:
        """Return the live processes that descend from this one, or share their groups.

        Processes that descended from this one in an earlier run of ``ps`` count too.
        """
        own_pid, group = os.getpid(), os.getpgrp()
        table = {row[0]: row for row in _list_processes() if row[0] != own_pid}
        self._start_times = {
            pid: start
            for pid, start in self._start_times.items()
            if pid in table and table[pid][4] == start
        }
        descendants = set(self._start_times)
        groups = {table[pid][2] for pid in descendants} - {group}
        if group == own_pid:  # this process leads it
            groups.add(group)
        has_grown = True
        while has_grown:
            has_grown = False
            for pid, parent, member_of, _, _ in table.values():
                if pid not in descendants and (
                    parent == own_pid or parent in descendants or member_of in groups
                ):
                    descendants.add(pid)
                    if member_of != group:
                        groups.add(member_of)
                    has_grown = True
        self._start_times |= {pid: table[pid][4] for pid in descendants}
        return {pid for pid in descendants if table[pid][3][:1] not in "ZX"}


def _list_processes() -> list[tuple[int, int, int, str, str]]:
    """Return number, parent, group, state and start of each process but ``ps`` itself."""
    import subprocess

    command = ["/bin/ps", "-axo", "pid=,ppid=,pgid=,stat=,lstart="]
    try:
        with subprocess.Popen(  # noqa: S603 - an argument list, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"LC_ALL": "C"},
        ) as ps:
            output = ps.communicate()[0].decode("ascii", "replace")
    except OSError:
        return []
    rows = []
    for line in output.splitlines():
        words = line.split(None, 4)
        if len(words) == 5 and words[0] != str(ps.pid):
            rows.append((int(words[0]), int(words[1]), int(words[2]), words[3], words[4]))
    return rows


if __name__ == "__main__":
    main()
