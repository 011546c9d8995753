"""The process of a folder's tool: ``execute``, and the one that watches it.

Started as ``python -I child.py PLACE/FOLDER/EXECUTE.PY RESULTS [offline] [traced] [ps]``; PLACE is
removed at the end where the caller can no longer do it. The call's arguments come as one
line of JSON on standard input, which then stays open as a lifeline: when it ends, the caller is
gone or has given up. What is told goes to the descriptor RESULTS, one line of JSON each, so that
nothing the tool prints can stand among it:

    {"progress": [message, share or null]}
    {"result": {...}}       what ``execute`` returned
    {"fault": message}      why there is no result; with ``traced`` also its ``trace``
    {"refused": message}    why the tool was not run at all
    {"ended": status}       of the process, as ``wait`` gives it; the last line

There are two processes. A fork of this one runs the tool; this one waits, and ends everything that
the tool started, however the tool, the call or the caller ended. On Linux it adopts what the tool
started and let go of (``PR_SET_CHILD_SUBREAPER``), so that a process which left its group is found
as well. macOS has neither that nor ``/proc``: there ``ps`` is asked again and again, and whoever
was seen below this process is remembered, with its group and its descendants, also when its parent
ends. ``ps`` says to do so elsewhere. Imports nothing of mlx_tools.
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
_LOOK = 0.25
"""Seconds between two counts of them."""

_FIRST_LOOK = 0.03
"""Seconds to the first look where who starts processes and ends at once must be seen before that:
about twice what ``ps`` takes."""

_ENDING = 5.0
"""Seconds within which whatever the tool started is gone."""
_PR_SET_CHILD_SUBREAPER = 36
_TAKES_ANY_NAME = 0x08
"""Of a function's code: it has a parameter ``**names`` (``inspect.CO_VARKEYWORDS``)."""
_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000


def main() -> None:
    """Runs the tool, waits for it, ends what is left, says how it ended."""
    path, results = sys.argv[1], int(sys.argv[2])
    os.set_inheritable(results, False)
    request = sys.stdin.buffer.readline()
    if not request.endswith(b"\n"):
        return  # nobody is there any more
    if "offline" in sys.argv[3:] and (why := _leave_network()):
        _write(results, _line({"refused": why}))
        return
    by_ps = "ps" in sys.argv[3:] or not sys.platform.startswith("linux")
    processes = _Processes() if by_ps else None
    _adopt(subreaper=processes is None)
    worker = os.fork()
    if worker == 0:
        _work(path, request, results, traced="traced" in sys.argv[3:])
        return
    descendants = _descendants if processes is None else processes.descendants
    status = _watched(worker, results, descendants, _LOOK if processes is None else _FIRST_LOOK)
    _end_all(descendants)
    if status is None:
        import shutil

        place = os.path.dirname(os.path.dirname(path))  # noqa: PTH120
        shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):  # nobody reads it any more
        _write(results, _line({"ended": status}))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # what is left in the group, this process with it


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def _write(results: int, line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[os.write(results, left) :]


# --- the tool -----------------------------------------------------------------------------------


def _work(path: str, request: bytes, results: int, *, traced: bool) -> None:
    """Runs ``execute`` and tells what came of it. A copy of this process that the tool forked, and
    that comes back here, tells nothing."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    itself = os.getpid()
    try:
        told = _outcome(path, json.loads(request), results, traced=traced)
    finally:
        if os.getpid() != itself:
            os._exit(0)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(OSError):  # the tool closed it, or nobody reads it any more
        _write(results, told)


def _outcome(path: str, arguments: dict[str, Any], results: int, *, traced: bool) -> bytes:
    """The line that says what came of the call."""
    folder = os.path.dirname(path)  # noqa: PTH120 - pathlib would take longer to load than to use
    sys.path.insert(0, folder)
    sys.argv = [path]
    try:
        value = _called(_load_execute(path), arguments, results)
    except SystemExit as error:
        return _line({"fault": f"it called sys.exit({error.code!r:.100}) and returned nothing"})
    except BaseException as error:
        told = {"fault": _words(error, folder)}
        return _line(told | ({"trace": _trace(error)} if traced else {}))
    if not isinstance(value, dict):
        kind = type(value).__name__
        kind = f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
        kind = "None" if value is None else kind
        return _line({"fault": f"execute returned {kind}, and must return a dict"})
    try:
        return _line({"result": value})
    except (TypeError, ValueError, RecursionError) as error:
        fault = f"what execute returned cannot be written as JSON: {error}"
        return _line({"fault": fault[:MAX_FAULT_CHARS]})


def _load_execute(path: str) -> Callable[..., Any]:
    module: Any = type(sys)("execute")  # what imports modules would take longer to load than this
    module.__file__ = path
    sys.modules["execute"] = module
    with open(path, "rb") as file:  # noqa: PTH123
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - what this process is for
    execute = getattr(module, "execute", None)
    if not callable(execute):
        raise TypeError("execute.py has no function execute(arguments)")
    return execute  # type: ignore[no-any-return]


def _called(execute: Callable[..., Any], arguments: dict[str, Any], results: int) -> Any:
    more = {"progress": _reporter(results)} if _takes_progress(execute) else {}
    value = execute(arguments, **more)
    if hasattr(value, "__await__"):
        import asyncio

        async def awaited() -> Any:
            return await value

        return asyncio.run(awaited())
    return value


def _takes_progress(function: Any) -> bool:
    """Return whether a function has a parameter ``progress``, or passes it on to one that it
    wraps."""
    while (code := getattr(function, "__code__", None)) is not None:
        if "progress" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            return True
        if not code.co_flags & _TAKES_ANY_NAME:
            return False
        function = getattr(function, "__wrapped__", None)
    return False


def _reporter(results: int) -> Callable[..., None]:
    def progress(message: str = "", fraction: float | None = None) -> None:
        """Reports how far the call has come: a few words, and the share done from 0 to 1. Which of
        many reports are passed on is for the caller: it alone knows which was the last."""
        told = [str(message)[:200], None if fraction is None else float(fraction)]
        _write(results, json.dumps({"progress": told}).encode() + b"\n")

    return progress


def _words(error: BaseException, folder: str) -> str:
    """The error's kind and text, and where in the folder it was raised."""
    try:
        text = str(error)[:MAX_FAULT_CHARS]
    except Exception:
        text = ""
    kind = type(error).__name__
    place, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(folder + os.sep):
            place = f" ({name[len(folder) + 1 :]}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return (f"{kind}: {text}" if text else kind) + place


def _trace(error: BaseException) -> str:
    import traceback

    try:
        return "".join(traceback.format_exception(error))[-MAX_TRACE_CHARS:]
    except Exception:
        return ""


# --- who watches --------------------------------------------------------------------------------


def _leave_network() -> str | None:
    """Has this process, and all it starts, in a network of its own in which there is nothing.
    Returns why that cannot be, None where it is so. On macOS the caller sees to it."""
    if not sys.platform.startswith("linux"):
        return None if sys.platform == "darwin" else "this system cannot run it without network"
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
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
    """Has what the tool starts come to this process where its own parent ends, if that can be."""
    with contextlib.suppress(Exception):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not subreaper:
        return
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _watched(
    worker: int, results: int, descendants: Callable[[], set[int]], first_look: float
) -> int | None:
    """Waits for the worker; its status, or None where the lifeline ended first, or where there are
    too many processes."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    look = time.monotonic() + first_look
    while True:
        status = _reaped(worker)
        if status is not None:
            return status
        ready, _, _ = select.select([0, woken], [], [], max(0.0, look - time.monotonic()))
        if woken in ready:
            os.read(woken, 4096)
        if 0 in ready and not os.read(0, 4096):
            return None
        if time.monotonic() < look:
            continue
        look = time.monotonic() + _LOOK  # also where one process after the other ends meanwhile
        if len(descendants()) > MAX_PROCESSES:
            _write(results, _line({"fault": f"it started more than {MAX_PROCESSES} processes"}))
            return None


def _reaped(worker: int) -> int | None:
    """Takes leave of every process that has ended; the worker's status, if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == worker:
                found = status
    return found


def _end_all(descendants: Callable[[], set[int]]) -> None:
    """Ends every process that descends from this one, as far as the system tells which they are.

    They are stopped first: what is stopped starts no others.
    """
    until = time.monotonic() + _ENDING
    while time.monotonic() < until:
        stopped: set[int] = set()
        while new := descendants() - stopped:
            for pid in new:
                _send(pid, signal.SIGSTOP)
            stopped |= new
            if time.monotonic() > until:
                break
        if not stopped:
            return
        for pid in stopped:
            _send(pid, signal.SIGKILL)
        _reaped(-1)
        time.sleep(0.005)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _descendants() -> set[int]:
    """The processes below this one that have not ended; empty where there is no ``/proc``."""
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
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), ())
        waiting += [pid for pid in below if pid not in found]
        found.update(below)
    return found


class _Processes:
    """Finds the processes below this one by ``ps``, also those whose parent has ended: it knows
    again whom it has seen, by number and time of start."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def descendants(self) -> set[int]:
        """The processes that were started by this one or by one that was seen below it, and those
        in their groups, as far as they have not ended."""
        own, group = os.getpid(), os.getpgrp()
        table = {row[0]: row for row in _listed() if row[0] != own}
        self._seen = {
            pid: start
            for pid, start in self._seen.items()
            if pid in table and table[pid][4] == start
        }
        found = set(self._seen)
        groups = {table[pid][2] for pid in found} - {group}
        if group == own:  # this process leads it
            groups.add(group)
        more = True
        while more:
            more = False
            for pid, parent, member_of, _, _ in table.values():
                if pid not in found and (parent == own or parent in found or member_of in groups):
                    found.add(pid)
                    if member_of != group:
                        groups.add(member_of)
                    more = True
        self._seen |= {pid: table[pid][4] for pid in found}
        return {pid for pid in found if table[pid][3][:1] not in "ZX"}


def _listed() -> list[tuple[int, int, int, str, str]]:
    """The processes by number, with parent, group, state and start, but for ``ps`` itself."""
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
