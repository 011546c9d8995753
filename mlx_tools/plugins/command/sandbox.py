"""The sandbox of a program, and the run of a program in it.

On Linux ``bwrap`` gives the program its own namespaces (users, processes, network, mounts, IPC,
host name), no privileges, no terminal, and a new file system. This has only the roots, an empty
``/tmp``, and the system's programs and libraries, read-only. If the parent ends, the program ends
with all processes that it started: the kernel ends a process namespace as a whole, even if
processes left their group. On macOS ``sandbox-exec`` denies everything that its profile does not
allow.
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

from mlx_tools.plugins.command.program_files import find_trusted, list_trusted_folders
from mlx_tools.plugins.command.sandbox_view import SandboxView
from mlx_tools.plugins.command.seatbelt import build_profile
from mlx_tools.process import Pipes, end

PROBE_SECONDS: Final = 10.0
"""Seconds for a trial run. A choice: enough for the sandbox to start on a machine under load."""
CPU_SECONDS: Final = 600
"""Seconds of processor time. Calls have their own timeout; this stops a program that escaped it."""
FILE_BYTES: Final = 256 << 20
"""Bytes of the largest file that a program may write."""
MEMORY_BYTES: Final = 4 << 30
"""Bytes of address space. Compilers and interpreters reserve one or two gigabytes."""
TEMPORARY_BYTES: Final = 64 << 20
"""Bytes of ``/tmp``, which is in memory."""
OPEN_FILES: Final = 1_024
"""Open files of one process: the usual default of Linux."""
PROCESSES: Final = 256
"""Processes of one program: more than a parallel build starts, and fewer than a fork bomb starts
between two counts."""


class NoSandbox(Exception):
    """There is no sandbox on this system; the message says why."""


class SandboxCommand(Struct, frozen=True):
    """A command that starts a program in the sandbox."""

    argv: tuple[str, ...]
    """Its words."""
    folder: str = "/"
    """The folder that it is started in."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that the sandbox sets."""
    inherited: tuple[int, ...] = ()
    """The descriptors that it inherits."""
    status: int | None = None
    """The descriptor of the sandbox's report (JSON lines), None if it makes none."""


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
            # Options are passed by a descriptor: there may be thousands of hidden paths, and any
            # user can read the arguments of a process.
            option_bytes = b"".join(os.fsencode(option) + b"\0" for option in options)
            fd = stack.enter_context(_open_data(option_bytes))
            limits = [
                *(self.prlimit, f"--cpu={CPU_SECONDS}", f"--fsize={FILE_BYTES}", "--core=0"),
                *(f"--as={MEMORY_BYTES}", f"--nofile={OPEN_FILES}"),
            ]
            # `prlimit` runs inside the sandbox, so its limits do not apply to bwrap itself.
            if _counts_by_namespace(os.uname().release):
                limits.append(f"--nproc={PROCESSES}")
            yield SandboxCommand(
                (self.path, "--args", str(fd), "--", *limits, "--", *argv),
                "/",  # the program itself starts in the view's folder: --chdir
                {"TMPDIR": "/tmp", "LC_ALL": "C.UTF-8"},  # noqa: S108 - empty, and its own
                (status_end, fd, *datas.values()),
                status,
            )


class Seatbelt(Struct, frozen=True):
    """``sandbox-exec`` on macOS. Its profile denies everything that it does not allow."""

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
    """Return the sandbox of this system. It is tested once.

    Raises:
        NoSandbox: there is none; the message says why.
    """
    return find_sandbox(platform, list_trusted_folders())


def try_sandbox(platform: str = sys.platform) -> tuple[str, str]:
    """Return the name of the sandbox and "", or "" and the reason why there is none."""
    try:
        return detect_sandbox(platform).name, ""
    except NoSandbox as error:
        return "", str(error)


def find_sandbox(platform: str, folders: Sequence[str]) -> Sandbox:
    """Return the first sandbox that works and denies access in a test.

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

    A program in it must be able to read below a root, but not outside. It must not be able to
    write, or to share the network.
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
        # A failed connection proves nothing on a machine without network, so the numbers of the
        # namespaces are compared.
        if read.status is not None:
            own_network = Path("/proc/self/ns/net").stat().st_ino
            if parse_status(read.status).get("net-namespace") in (None, own_network):
                return "does not confine: it shares the network"
        if (inside / "made").exists() or (outside / "made").exists():
            return "does not confine: a file was made"
    return None


def _counts_by_namespace(release: str) -> bool:
    """Return whether this Linux counts a user's processes by namespace (since 5.14).

    Older ones count all processes of the user, so the limit would apply to all of them.
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
"""Sets of features to try, the best first. ``modern`` are options of bwrap 0.8. In some containers
``/proc`` cannot be mounted."""

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
        # The program must not create a user namespace: in there it would have all rights, and so
        # could attack more of the kernel.
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
    # Mounts are made in order, and a later one covers an earlier one. So inner roots come after
    # outer ones, and hidden paths come last.
    for path, writable in view.outermost_first:
        options += ["--bind" if writable else "--ro-bind", path, path]
    for path in view.hidden.repositories:
        options += ["--ro-bind", path, path]
    for path in view.hidden.folders:
        # An empty folder replaces it. It is read-only: written files would be lost without notice.
        options += ["--tmpfs", path, "--remount-ro", path]
    for path in view.hidden.files:
        if path in descriptors:
            options += ["--ro-bind-data", str(descriptors[path]), path]
        else:
            options += ["--ro-bind", os.devnull, path]  # devices cannot be opened there
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", view.folder]


def parse_status(data: bytes) -> dict[str, Any]:
    """Parse the sandbox's report on a program, which may be incomplete.

    It has ``child-pid`` and the numbers of the namespaces (``net-namespace``, …), and later
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
"""Bytes of standard output and standard error together: ten times as many as a model can see."""

MAX_STATUS_BYTES: Final = 65_536
"""Bytes of the sandbox's report, which is a few hundred."""

TICK: Final = 0.05
"""Seconds that one read waits while the pipes are drained."""
_COUNT_INTERVAL: Final = 0.01
"""Seconds between two counts of the program's processes. A choice: each count reads all of
``/proc``, but a fork bomb starts processes meanwhile."""
_NICENESS_STEP: Final = 5
"""The program's niceness above ours, so that the event loop gets its turn even on two cores."""
_GRACE: Final = 0.5
"""Seconds between SIGTERM and SIGKILL, and for the last bytes in the pipes."""

Ending = Literal["finished", "flood", "timeout", "cancelled", "processes"]


class ProcessResult(Struct, frozen=True):
    """The end of a program, and its output."""

    ending: Ending
    """The reason why it ended."""
    code: int
    """The exit code, negative for a signal."""
    output: bytes
    errors: bytes
    status: bytes | None
    """The report of the sandbox, None if it makes none."""
    was_started: bool
    """True if the sandbox started the program."""


def run(
    command: SandboxCommand,
    environment: Mapping[str, str],
    seconds: float,
    cancelled: Callable[[], bool] = lambda: False,
) -> ProcessResult:
    """Run the command without input, and end it with all processes that it started.

    It ends by itself, after ``seconds``, when ``cancelled`` returns True, or when it has printed
    `MAX_OUTPUT_BYTES`.

    Args:
        command: the command.
        environment: its environment variables.
        seconds: its time limit.
        cancelled: returns True once the caller no longer waits for the result.

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
        # It gets its own process group, so that signals reach all of it, and no terminal.
        start_new_session=True,
    ) as child:
        try:
            reader = _ChildOutput(child, command.status)
            # the loop that watches the program must get its turn first
            with contextlib.suppress(OSError):
                own_niceness = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, child.pid, own_niceness + _NICENESS_STEP)
            ending = reader.watch(time.monotonic() + seconds, cancelled)
        finally:
            if command.status is not None:
                _kill_namespace(child)
            # a fork bomb gets no time to go on
            end(child, 0.0 if ending == "processes" else _GRACE)
        # Not before `end`: a process that escaped could hold the pipes open.
        last = reader.drain()
        if ending == "finished":
            ending = last
        reader.pipes.close()
    status = None if command.status is None else bytes(reader.status)
    started = ending != "finished" or status is None or "exit-code" in parse_status(status)
    output, errors = bytes(reader.output), bytes(reader.errors)
    return ProcessResult(ending, child.returncode, output, errors, status, started)


def _kill_namespace(child: subprocess.Popen[bytes]) -> None:
    """Kill all processes that bwrap has started, if it still runs.

    bwrap's child leaves its group a moment before it asks the kernel to end it with its parent. If
    bwrap were killed in between, the child would run on. So bwrap is stopped first, and cannot
    start others while its children are searched. The end of a namespace's first process ends all
    others in it.
    """
    if child.poll() is not None:
        return
    os.kill(child.pid, signal.SIGSTOP)
    if sys.platform == "linux":  # bwrap is only for Linux, and not every macOS has `waitid`
        # Wait until it ends or stops; WNOWAIT leaves its exit code to `Popen`.
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    for name in os.listdir("/proc"):  # noqa: PTH208 - there may be very many
        if name.isdecimal():
            # Processes may end between the listing and the reading.
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # The parent is the second field after the name. The name may have any characters,
                # so the last bracket is searched.
                if int(file.read().rpartition(b")")[2].split()[1]) == child.pid:
                    os.kill(int(name), signal.SIGKILL)
    os.kill(child.pid, signal.SIGKILL)


class _ChildOutput:
    """The output of a child and the report of the sandbox so far."""

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
        # One byte more than allowed is stored, which shows that there was too much output.
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
            # After the check for too much output, since that counts even if the child has ended.
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

        The time is limited, because a program that escaped may hold them open.
        """
        deadline = time.monotonic() + _GRACE
        while any(end in self.pipes for end in self._ends) and time.monotonic() < deadline:
            self.pipes.read(TICK)
        self.pipes.read(0)
        return "flood" if self._is_flooded else "finished"


def _count_processes(status: bytes) -> int:
    """Return the number of processes of the program, itself included; 0 if unknown.

    The system's own limit is not enough: it does not apply to root, and counts by user.
    """
    namespace = parse_status(status).get("pid-namespace")
    if namespace is None:
        return 0
    count = 0
    # Processes that end between the listing and `stat` are not counted.
    for name in os.listdir("/proc"):  # noqa: PTH208 - there may be very many
        if name.isdecimal():
            with contextlib.suppress(OSError):
                count += os.stat(f"/proc/{name}/ns/pid").st_ino == namespace  # noqa: PTH116
    return count
