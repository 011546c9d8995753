"""The sandbox of a program: what it can see, and how it runs to its end.

On Linux ``bwrap`` gives it namespaces of its own (users, processes, network, mounts, IPC, host
name), no privileges, no terminal, and a new file system. This has the system's programs and
libraries to read, the roots, an empty ``/tmp``, and nothing else. The program ends when its parent
ends, with all that it started: the kernel ends a whole process namespace, whatever its processes
did to leave their group. On macOS ``sandbox-exec`` denies what its profile does not name.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, field

from mlx_tools.plugins.command.program_files import find_trusted, trusted_folders
from mlx_tools.plugins.command.sandbox_view import SandboxView
from mlx_tools.plugins.command.seatbelt import build_profile
from mlx_tools.process import Pipes, end

PROBE_SECONDS: Final = 10.0
"""Seconds for a trial run. A choice: the sandbox starts within them on a machine under load, too.
"""
CPU_SECONDS: Final = 600
"""Seconds of processor time. Calls end by their own timeout; this stops a program that escaped it.
"""
FILE_BYTES: Final = 256 << 20
"""Bytes of the largest file that a program may write."""
MEMORY_BYTES: Final = 4 << 30
"""Bytes of address space; compilers and interpreters reserve one or two gigabytes."""
TEMPORARY_BYTES: Final = 64 << 20
"""Bytes of ``/tmp``, which is in memory."""
OPEN_FILES: Final = 1_024
"""Open files of one process: the usual default of Linux."""
PROCESSES: Final = 256
"""Processes of one program: more than a parallel build starts, fewer than a fork bomb in one look.
"""


class NoSandbox(Exception):
    """Nothing here can confine a program; the message says why."""


class SandboxCommand(Struct, frozen=True):
    """A command that starts a program in the sandbox.

    Attributes:
        argv: its words.
        folder: where it is started.
        environment: the variables that the sandbox sets.
        inherited: the descriptors that it inherits.
        status: the descriptor from which its state is read (JSON lines), if the sandbox tells it.
    """

    argv: tuple[str, ...]
    folder: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)
    inherited: tuple[int, ...] = ()
    status: int | None = None


class Bubblewrap(Struct, frozen=True):
    """``bwrap`` on Linux: own namespaces for everything, no network, no privileges."""

    path: str
    prlimit: str
    switches: frozenset[str]

    name = "bwrap"
    hides_contents = True
    """True if a file can be shown with other contents."""

    @contextlib.contextmanager
    def confine(self, argv: Sequence[str], view: SandboxView) -> Iterator[SandboxCommand]:
        """Yield the command that runs the program in the sandbox."""
        with contextlib.ExitStack() as stack:
            status, status_end = os.pipe()
            stack.callback(os.close, status)
            stack.callback(os.close, status_end)
            datas = {
                path: stack.enter_context(_open_data(d)) for path, d in view.replaced_files.items()
            }
            options = build_bwrap_options(self.switches, view, status_end, datas)
            # By a descriptor, not as arguments: there may be thousands of hidden paths, and any
            # user can read the arguments of a process.
            option_bytes = b"".join(os.fsencode(option) + b"\0" for option in options)
            fd = stack.enter_context(_open_data(option_bytes))
            limits = [
                *(self.prlimit, f"--cpu={CPU_SECONDS}", f"--fsize={FILE_BYTES}", "--core=0"),
                *(f"--as={MEMORY_BYTES}", f"--nofile={OPEN_FILES}"),
            ]
            # `prlimit` runs inside the sandbox, so its limits do not hold for bwrap itself.
            if _counts_by_namespace(os.uname().release):
                limits.append(f"--nproc={PROCESSES}")
            yield SandboxCommand(
                (self.path, "--args", str(fd), "--", *limits, "--", *argv),
                "/",  # the view's folder is that of the program: --chdir
                {"TMPDIR": "/tmp", "LC_ALL": "C.UTF-8"},  # noqa: S108 - empty, and its own
                (status_end, fd, *datas.values()),
                status,
            )


class Seatbelt(Struct, frozen=True):
    """``sandbox-exec`` on macOS, with a profile that denies what it does not name."""

    path: str

    name = "sandbox-exec"
    hides_contents = False

    @contextlib.contextmanager
    def confine(self, argv: Sequence[str], view: SandboxView) -> Iterator[SandboxCommand]:
        """Yield the command that runs the program in the sandbox."""
        with tempfile.TemporaryDirectory(prefix="mlx-tools-", ignore_cleanup_errors=True) as folder:
            temporary = os.path.realpath(folder)
            profile = build_profile(argv[0], view, temporary)
            # macOS has no C.UTF-8; LC_CTYPE=UTF-8 is its own name for characters in UTF-8
            environment = {"TMPDIR": temporary, "LC_CTYPE": "UTF-8"}
            yield SandboxCommand((self.path, "-p", profile, *argv), view.folder, environment)


Sandbox = Bubblewrap | Seatbelt


@functools.cache
def detect_sandbox(platform: str = sys.platform) -> Sandbox:
    """Return the sandbox of this system, tested once.

    Raises:
        NoSandbox: there is none; the message says why.
    """
    return find_sandbox(platform, trusted_folders())


def try_sandbox(platform: str = sys.platform) -> tuple[str, str]:
    """Return the name of the sandbox, or else "" and why there is none."""
    try:
        return detect_sandbox(platform).name, ""
    except NoSandbox as error:
        return "", str(error)


def find_sandbox(platform: str, folders: Sequence[str]) -> Sandbox:
    """Return the first sandbox that works and that was seen to deny access.

    Args:
        platform: the system, as in `sys.platform`.
        folders: the folders of the system's own programs.

    Raises:
        NoSandbox: there is none; the message says why.
    """
    sandboxes: Sequence[Sandbox]
    if platform == "darwin":
        path = find_trusted("sandbox-exec", folders)
        if path is None:
            raise NoSandbox("sandbox-exec is missing")
        sandboxes = [Seatbelt(path)]
    else:
        path, prlimit = find_trusted("bwrap", folders), find_trusted("prlimit", folders)
        if path is None:
            raise NoSandbox("there is no sandbox: bwrap is missing (install bubblewrap)")
        if prlimit is None:
            raise NoSandbox("prlimit is missing (install util-linux)")
        sandboxes = [Bubblewrap(path, prlimit, some) for some in SWITCHES]
    reason = ""
    for candidate in sandboxes:
        fault = probe(candidate, folders)
        if fault is None:
            return candidate
        reason = reason or fault
    raise NoSandbox(f"there is no sandbox: {sandboxes[0].name} {reason}")


def probe(candidate: Sandbox, folders: Sequence[str]) -> str | None:
    """Return the fault of a sandbox, None if it confines a program.

    A program in it must read below a root, read nothing outside, write nowhere, and have no network
    but its own.
    """
    cat, touch = find_trusted("cat", folders), find_trusted("touch", folders)
    if cat is None or touch is None:
        return "cannot be tried out: cat or touch is missing"
    with tempfile.TemporaryDirectory(prefix="mlx-tools-") as temporary:
        inside, outside = Path(temporary).resolve() / "inside", Path(temporary).resolve() / "out"
        for folder in (inside, outside):
            folder.mkdir()
            (folder / "token").write_text(f"token {folder.name}\n")
        view = SandboxView(str(inside), [(str(inside), False)])
        results = []
        for tool, name in ((cat, "token"), (touch, "made")):
            try:
                argv = [tool, str(inside / name), str(outside / name)]
                with candidate.confine(argv, view) as confined:
                    results.append(run(confined, {"LC_ALL": "C"}, PROBE_SECONDS))
            except OSError as error:
                return f"does not run: {error}"
        read = results[0]
        if b"token inside" not in read.output:
            detail = " ".join(read.errors.decode(errors="replace").split())
            return f"does not work here: {detail[:200] or 'it printed nothing'}"
        if b"token out" in read.output:
            return "does not confine: a file outside was read"
        # The namespace's number is compared, since a machine without network would look the same.
        if read.status is not None:
            own_network = Path("/proc/self/ns/net").stat().st_ino
            if parse_status(read.status).get("net-namespace") in (None, own_network):
                return "does not confine: it shares the network"
        if (inside / "made").exists() or (outside / "made").exists():
            return "does not confine: a file was made"
    return None


def _counts_by_namespace(release: str) -> bool:
    """Return whether this Linux counts a user's processes by namespace (since 5.14).

    Older ones count all processes of the user, and the limit would apply to those.
    """
    version = re.match(r"(\d+)\.(\d+)", release, re.ASCII)
    return version is not None and (int(version[1]), int(version[2])) >= (5, 14)


@contextlib.contextmanager
def _open_data(content: bytes) -> Iterator[int]:
    """Yield a descriptor from which the content can be read."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        file.seek(0)
        yield file.fileno()


# --- bwrap --------------------------------------------------------------------------------------

SWITCHES: Final = (
    frozenset(("modern", "proc")),
    frozenset(("modern",)),
    frozenset(("proc",)),
    frozenset[str](),
)
"""Sets of features that are tried, the best first. ``modern`` are options of bwrap 0.8. Within some
containers ``/proc`` cannot be mounted."""

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_CONFIGURATION: Final = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")


def build_bwrap_options(
    switches: frozenset[str], view: SandboxView, status_end: int, descriptors: Mapping[str, int]
) -> list[str]:
    """Return the options of bwrap for a view.

    Args:
        switches: one of `SWITCHES`.
        view: what the program can see.
        status_end: the descriptor that the state is written to.
        descriptors: for each hidden file with other contents, the descriptor of these.
    """
    options = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    options += ["--hostname", "sandbox", "--json-status-fd", str(status_end)]
    if "modern" in switches:
        # In a user namespace of its own the program would have all rights, and with them more of
        # the kernel to attack.
        options += ["--unshare-user", "--disable-userns"]
    for path in _SYSTEM:
        if Path(path).is_symlink():
            options += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).is_dir():
            options += ["--ro-bind", path, path]
    for path in _CONFIGURATION:
        options += ["--ro-bind-try", path, path]
    options += ["--dev", "/dev"]
    if "proc" in switches:
        options += ["--proc", "/proc"]
    size = ["--size", str(TEMPORARY_BYTES)] if "modern" in switches else []
    options += [*size, "--tmpfs", "/tmp"] if size else ["--dir", "/tmp"]  # noqa: S108
    for path in view.programs:
        options += ["--ro-bind", path, path]
    # Mounts are made in order, and a later one covers an earlier. So inner roots come after outer
    # ones, and what is hidden comes last.
    for path, writable in view.outermost_first:
        options += ["--bind" if writable else "--ro-bind", path, path]
    for path in view.hidden.repositories:
        options += ["--ro-bind", path, path]
    for path in view.hidden.folders:
        # An empty folder in its place, read-only, so that nothing written there seems to be kept.
        options += ["--tmpfs", path, "--remount-ro", path]
    for path in view.hidden.files:
        if path in descriptors:
            options += ["--ro-bind-data", str(descriptors[path]), path]
        else:
            options += ["--ro-bind", os.devnull, path]  # a device, and none may be opened there
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", view.folder]


def parse_status(data: bytes) -> dict[str, Any]:
    """Parse the state of a program as the sandbox has reported it so far.

    It has ``child-pid`` and the numbers of its namespaces (``net-namespace``, …), later
    ``exit-code``.
    """
    state: dict[str, Any] = {}
    for line in data.split(b"\n"):
        # The last line may still be incomplete.
        with contextlib.suppress(ValueError, TypeError):
            state |= json.loads(line)
    return state


# --- running ------------------------------------------------------------------------------------

MAX_OUTPUT_BYTES: Final = 200_000
"""Bytes of standard output and standard error together: ten times what a model sees at most."""

MAX_STATUS_BYTES: Final = 65_536
"""Bytes of the sandbox's report, which is a few hundred."""

TICK: Final = 0.05
"""Seconds that one read of the pipes waits while they are drained."""
_COUNT_INTERVAL: Final = 0.01
"""Seconds between two counts of its processes. A choice: each count reads all of ``/proc``, and a
fork bomb starts processes meanwhile."""
_NICENESS_STEP: Final = 5
"""Its niceness above ours: on two cores the event loop still gets its turn."""
_GRACE: Final = 0.5
"""Seconds between SIGTERM and SIGKILL, and for the last bytes in the pipes."""

Ending = Literal["finished", "flood", "timeout", "cancelled", "processes"]


class ProcessResult(Struct, frozen=True):
    """The end of a program, and its output."""

    ending: Ending
    """The reason of the end."""
    code: int
    """The exit code, negative for a signal."""
    output: bytes
    errors: bytes
    status: bytes | None
    """The report of the sandbox, None if it makes none."""
    was_started: bool
    """True if the sandbox got as far as starting the program."""


def run(
    command: SandboxCommand,
    environment: Mapping[str, str],
    seconds: float,
    cancelled: Callable[[], bool] = lambda: False,
) -> ProcessResult:
    """Run the command without input, and end it with all that it started.

    It ends by itself, after ``seconds``, when ``cancelled`` returns True, or when it has printed
    `MAX_OUTPUT_BYTES`.

    Args:
        command: the command.
        environment: its environment variables.
        seconds: the time it has.
        cancelled: returns whether nobody waits any more.

    Raises:
        OSError: it cannot be started.
    """
    ending: Ending = "cancelled"
    with subprocess.Popen(  # noqa: S603 - absolute paths, no shell
        command.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, **command.environment},
        cwd=command.folder,
        pass_fds=command.inherited,
        # A group of its own, which is signalled as a whole, and no terminal to type into.
        start_new_session=True,
    ) as child:
        try:
            reader = _ChildOutput(child, command.status)
            with contextlib.suppress(OSError):  # whatever it does, who watches it comes first
                own_niceness = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, child.pid, own_niceness + _NICENESS_STEP)
            ending = reader.watch(time.monotonic() + seconds, cancelled)
        finally:
            if command.status is not None:
                _kill_namespace(child)
            # one that multiplies is given no time for it
            end(child, 0.0 if ending == "processes" else _GRACE)
        # Only now: before `end` a process that got away could hold the pipes open.
        last = reader.drain()
        if ending == "finished":
            ending = last
        reader.pipes.close()
    status = None if command.status is None else bytes(reader.status)
    started = ending != "finished" or status is None or "exit-code" in parse_status(status)
    output, errors = bytes(reader.output), bytes(reader.errors)
    return ProcessResult(ending, child.returncode, output, errors, status, started)


def _kill_namespace(child: subprocess.Popen[bytes]) -> None:
    """Kill all that bwrap has started, if it still runs.

    bwrap's child leaves its group a moment before it asks the kernel to end with its parent. If
    bwrap were killed in between, the child would run on. So bwrap is stopped first, and starts
    nothing more while its children are looked for. The first process of a namespace takes the
    others with it.
    """
    if child.poll() is not None:
        return
    os.kill(child.pid, signal.SIGSTOP)
    if sys.platform == "linux":  # bwrap runs nowhere else, and not every macOS has `waitid`
        # It ends or stops; WNOWAIT leaves its end to `Popen`.
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    for name in os.listdir("/proc"):  # noqa: PTH208 - there may be very many
        if name.isdecimal():
            # Processes may end between the listing and the reading.
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # The parent is the second field after the name, which may hold any characters.
                if int(file.read().rpartition(b")")[2].split()[1]) == child.pid:
                    os.kill(int(name), signal.SIGKILL)
    os.kill(child.pid, signal.SIGKILL)


class _ChildOutput:
    """The output of a child, and the report of the sandbox, as they come."""

    def __init__(self, child: subprocess.Popen[bytes], status: int | None) -> None:
        self.output, self.errors, self.status = bytearray(), bytearray(), bytearray()
        self._child = child
        assert child.stdout is not None and child.stderr is not None
        self._ends = child.stdout.fileno(), child.stderr.fileno()
        takers: dict[int, Callable[[bytes], bool]] = {
            self._ends[0]: functools.partial(self._take, self.output),
            self._ends[1]: functools.partial(self._take, self.errors),
        }
        if status is not None:
            takers[status] = self._take_status
        self.pipes = Pipes(takers)

    def _take(self, buffer: bytearray, piece: bytes) -> bool:
        # One byte more than allowed is kept, by which the flood is known.
        buffer += piece[: MAX_OUTPUT_BYTES + 1 - len(self.output) - len(self.errors)]
        return not self._is_flooded

    def _take_status(self, piece: bytes) -> bool:
        self.status += piece
        return len(self.status) < MAX_STATUS_BYTES

    @property
    def _is_flooded(self) -> bool:
        return len(self.output) + len(self.errors) > MAX_OUTPUT_BYTES

    def watch(self, deadline: float, cancelled: Callable[[], bool]) -> Ending:
        """Wait for the end of the child, at most until ``deadline``."""
        counted_at = time.monotonic()
        while True:
            self.pipes.read(min(_COUNT_INTERVAL, max(deadline - time.monotonic(), 0)))
            if self._is_flooded:
                return "flood"
            # After the check for a flood: a child that flooded and ended is reported as a flood.
            if self._child.poll() is not None:
                return "finished"
            if cancelled():
                return "cancelled"
            if time.monotonic() >= deadline:
                return "timeout"
            if time.monotonic() - counted_at >= _COUNT_INTERVAL:
                counted_at = time.monotonic()
                if _count_processes(bytes(self.status)) > PROCESSES:
                    return "processes"

    def drain(self) -> Ending:
        """Read the rest of the pipes of a child that has ended.

        The time is limited, since a program that got away might hold them open.
        """
        deadline = time.monotonic() + _GRACE
        while any(end in self.pipes for end in self._ends) and time.monotonic() < deadline:
            self.pipes.read(TICK)
        self.pipes.read(0)
        return "flood" if self._is_flooded else "finished"


def _count_processes(status: bytes) -> int:
    """Return the number of processes of the program, itself included; 0 if unknown.

    The system's own limit does not apply to its superuser, and it does not count by program.
    """
    namespace = parse_status(status).get("pid-namespace")
    if namespace is None:
        return 0
    count = 0
    # Processes may end between the listing and `stat`: those are not counted.
    for name in os.listdir("/proc"):  # noqa: PTH208 - there may be very many
        if name.isdecimal():
            with contextlib.suppress(OSError):
                count += os.stat(f"/proc/{name}/ns/pid").st_ino == namespace  # noqa: PTH116
    return count
