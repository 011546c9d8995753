"""The confinement of a program: what it sees of the system, whether this system can hold it to
that, and how it is run to its end.

On Linux ``bwrap`` gives it namespaces of its own (users, processes, network, mounts, messages, host
name), no rights, no terminal, and a file system that is put together here: the system's programs
and libraries to read, the roots, an empty ``/tmp``, and nothing else. It ends when its parent ends,
with all that it started: the namespace of processes goes, whatever they did to get out of their
group. On macOS ``sandbox-exec`` denies what its profile does not name.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, field

from mlx_tools.process import Pipes, end
from mlx_tools.toolbox.program_files import program, trusted_folders
from mlx_tools.toolbox.sandbox_view import SandboxView
from mlx_tools.toolbox.seatbelt import seatbelt_profile

PROBE_SECONDS: Final = 10.0
CPU_SECONDS: Final = 600
FILE_BYTES: Final = 256 << 20
MEMORY_BYTES: Final = 4 << 30
TEMPORARY_BYTES: Final = 64 << 20
OPEN_FILES: Final = 1_024
PROCESSES: Final = 256


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
    """``bwrap`` on Linux: namespaces of its own for everything, no network, no rights.
    ``hides_contents``: a file can be shown with other contents."""

    path: str
    prlimit: str
    switches: frozenset[str]

    name = "bwrap"
    hides_contents = True

    @contextlib.contextmanager
    def confined(self, argv: Sequence[str], view: SandboxView) -> Iterator[SandboxCommand]:
        with contextlib.ExitStack() as stack:
            status, status_end = os.pipe()
            stack.callback(os.close, status)
            stack.callback(os.close, status_end)
            datas = {path: stack.enter_context(_open_data(d)) for path, d in view.replaced.items()}
            options = bwrap_options(self.switches, view, status_end, datas)
            given = b"".join(os.fsencode(option) + b"\0" for option in options)
            fd = stack.enter_context(_open_data(given))
            limits = [
                *(self.prlimit, f"--cpu={CPU_SECONDS}", f"--fsize={FILE_BYTES}", "--core=0"),
                *(f"--as={MEMORY_BYTES}", f"--nofile={OPEN_FILES}"),
            ]
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
    def confined(self, argv: Sequence[str], view: SandboxView) -> Iterator[SandboxCommand]:
        with tempfile.TemporaryDirectory(prefix="mlx-tools-", ignore_cleanup_errors=True) as own:
            temporary = os.path.realpath(own)
            profile = seatbelt_profile(argv[0], view, temporary)
            # macOS has no C.UTF-8; LC_CTYPE=UTF-8 is its own name for characters in UTF-8
            environment = {"TMPDIR": temporary, "LC_CTYPE": "UTF-8"}
            yield SandboxCommand((self.path, "-p", profile, *argv), view.folder, environment)


Sandbox = Bubblewrap | Seatbelt


@functools.cache
def sandbox(platform: str = sys.platform) -> Sandbox:
    """The sandbox of this system, tried out once. Raises NoSandbox with the reason."""
    return find(platform, trusted_folders())


def try_sandbox(platform: str = sys.platform) -> tuple[str, str]:
    """Return the name of the sandbox, or else "" and why there is none."""
    try:
        return sandbox(platform).name, ""
    except NoSandbox as error:
        return "", str(error)


def find(platform: str, folders: Sequence[str]) -> Sandbox:
    """The sandbox of a system whose own programs are in ``folders``: the first that works, once it
    has been seen to deny. Raises NoSandbox."""
    sandboxes: Sequence[Sandbox]
    if platform == "darwin":
        path = program("sandbox-exec", folders)
        if path is None:
            raise NoSandbox("sandbox-exec is missing")
        sandboxes = [Seatbelt(path)]
    else:
        path, prlimit = program("bwrap", folders), program("prlimit", folders)
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
    """The fault of a sandbox, None where a program in it reads below a root, reads nothing
    outside, writes nowhere, and has no network but its own."""
    cat, touch = program("cat", folders), program("touch", folders)
    if cat is None or touch is None:
        return "cannot be tried out: cat or touch is missing"
    with tempfile.TemporaryDirectory(prefix="mlx-tools-") as temporary:
        inside, outside = Path(temporary).resolve() / "inside", Path(temporary).resolve() / "out"
        for folder in (inside, outside):
            folder.mkdir()
            (folder / "token").write_text(f"token {folder.name}\n")
        view = SandboxView(str(inside), [(str(inside), False)])
        tried = []
        for tool, name in ((cat, "token"), (touch, "made")):
            try:
                argv = [tool, str(inside / name), str(outside / name)]
                with candidate.confined(argv, view) as confined:
                    tried.append(run(confined, {"LC_ALL": "C"}, PROBE_SECONDS))
            except OSError as error:
                return f"does not run: {error}"
        read = tried[0]
        if b"token inside" not in read.output:
            detail = " ".join(read.errors.decode(errors="replace").split())
            return f"does not work here: {detail[:200] or 'it printed nothing'}"
        if b"token out" in read.output:
            return "does not confine: a file outside was read"
        if read.status is not None:
            ours = Path("/proc/self/ns/net").stat().st_ino
            if status_of(read.status).get("net-namespace") in (None, ours):
                return "does not confine: it shares the network"
        if (inside / "made").exists() or (outside / "made").exists():
            return "does not confine: a file was made"
    return None


def _counts_by_namespace(release: str) -> bool:
    """True if this Linux counts a user's processes by namespace (since 5.14). An older one counts
    all that the user has, and the limit would hold for those."""
    found = re.match(r"(\d+)\.(\d+)", release, re.ASCII)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 14)


@contextlib.contextmanager
def _open_data(content: bytes) -> Iterator[int]:
    """A descriptor from which the content can be read."""
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
"""Switches that are tried, the best first. ``modern`` are options of bwrap 0.8; within some
containers ``/proc`` cannot be mounted."""

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_CONFIGURATION: Final = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")


def bwrap_options(
    switches: frozenset[str], view: SandboxView, status_end: int, descriptors: Mapping[str, int]
) -> list[str]:
    """The options that make the view. ``status_end`` is the descriptor that the state goes to;
    ``descriptors`` has, for a hidden file's path, the descriptor of its other contents."""
    made = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    made += ["--hostname", "sandbox", "--json-status-fd", str(status_end)]
    if "modern" in switches:
        made += ["--unshare-user", "--disable-userns"]
    for path in _SYSTEM:
        if Path(path).is_symlink():
            made += ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).is_dir():
            made += ["--ro-bind", path, path]
    for path in _CONFIGURATION:
        made += ["--ro-bind-try", path, path]
    made += ["--dev", "/dev"]
    if "proc" in switches:
        made += ["--proc", "/proc"]
    size = ["--size", str(TEMPORARY_BYTES)] if "modern" in switches else []
    made += [*size, "--tmpfs", "/tmp"] if size else ["--dir", "/tmp"]  # noqa: S108
    for path in view.programs:
        made += ["--ro-bind", path, path]
    for path, writable in view.outermost_first:
        made += ["--bind" if writable else "--ro-bind", path, path]
    for path in view.hidden.repositories:
        made += ["--ro-bind", path, path]
    for path in view.hidden.folders:
        made += ["--tmpfs", path, "--remount-ro", path]
    for path in view.hidden.files:
        if path in descriptors:
            made += ["--ro-bind-data", str(descriptors[path]), path]
        else:
            made += ["--ro-bind", os.devnull, path]  # a device, and none may be opened there
    return [*made, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", view.folder]


def status_of(data: bytes) -> dict[str, Any]:
    """The state of a program as the sandbox has said so far: ``child-pid`` and the numbers of its
    namespaces (``net-namespace``, …), then ``exit-code``."""
    found: dict[str, Any] = {}
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError, TypeError):
            found |= json.loads(line)
    return found


# --- running ------------------------------------------------------------------------------------

MAX_OUTPUT_BYTES: Final = 200_000
"""Of standard output and standard error together."""

MAX_STATUS_BYTES: Final = 65_536
"""Of what the sandbox tells."""

TICK: Final = 0.05
"""Seconds between two looks at whether to go on."""
_COUNT: Final = 0.01
"""Seconds between two counts of its processes."""
_NICER: Final = 5
"""Its niceness above ours."""
_GRACE: Final = 0.5
"""Seconds between the polite and the final signal, and that the ends of pipes are waited for."""

Ending = Literal["finished", "flood", "timeout", "cancelled", "processes"]


class ProcessResult(Struct, frozen=True):
    """The end of a program, and what it printed. ``code`` is its exit code, negative where a signal
    ended it; ``status`` is what the sandbox said of it, None where it says nothing, ``started``
    whether it got as far as starting the program."""

    ending: Ending
    code: int
    output: bytes
    errors: bytes
    status: bytes | None
    started: bool


def run(
    command: SandboxCommand,
    environment: Mapping[str, str],
    seconds: float,
    cancelled: Callable[[], bool] = lambda: False,
) -> ProcessResult:
    """Runs the command, without input, until it ends or ``seconds`` are over, or ``cancelled``, or
    it has printed `MAX_OUTPUT_BYTES`. Whatever it started is ended with it. Raises OSError where it
    cannot be started."""
    ending: Ending = "cancelled"
    with subprocess.Popen(  # noqa: S603 - absolute paths, no shell
        command.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, **command.environment},
        cwd=command.folder,
        pass_fds=command.inherited,
        start_new_session=True,
    ) as child:
        try:
            program = _ChildOutput(child, command.status)
            with contextlib.suppress(OSError):  # whatever it does, who watches it comes first
                own = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, child.pid, own + _NICER)
            ending = program.watch(time.monotonic() + seconds, cancelled)
        finally:
            # one that multiplies is given no time for it
            end(child, 0.0 if ending == "processes" else _GRACE)
        if ending == "finished":
            ending = program.drain()
        program.pipes.close()
    status = None if command.status is None else bytes(program.status)
    started = ending != "finished" or status is None or "exit-code" in status_of(status)
    output, errors = bytes(program.output), bytes(program.errors)
    return ProcessResult(ending, child.returncode, output, errors, status, started)


class _ChildOutput:
    """A child: what it prints, and what the sandbox tells of it, as it comes."""

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
        buffer += piece[: MAX_OUTPUT_BYTES + 1 - len(self.output) - len(self.errors)]
        return not self._flooded

    def _take_status(self, piece: bytes) -> bool:
        self.status += piece
        return len(self.status) < MAX_STATUS_BYTES

    @property
    def _flooded(self) -> bool:
        return len(self.output) + len(self.errors) > MAX_OUTPUT_BYTES

    def watch(self, deadline: float, cancelled: Callable[[], bool]) -> Ending:
        """Waits for an end, at the latest until this time."""
        looked = time.monotonic()
        while True:
            self.pipes.read(min(_COUNT, max(deadline - time.monotonic(), 0)))
            if self._flooded:
                return "flood"
            if self._child.poll() is not None:
                return "finished"
            if cancelled():
                return "cancelled"
            if time.monotonic() >= deadline:
                return "timeout"
            if time.monotonic() - looked >= _COUNT:
                looked = time.monotonic()
                if _processes(bytes(self.status)) > PROCESSES:
                    return "processes"

    def drain(self) -> Ending:
        """Read what is left in the pipes of a child that has ended; not for long, since a program
        that got away might hold them open."""
        until = time.monotonic() + _GRACE
        while any(end in self.pipes for end in self._ends) and time.monotonic() < until:
            self.pipes.read(TICK)
        self.pipes.read(0)
        return "flood" if self._flooded else "finished"


def _processes(status: bytes) -> int:
    """The number of processes of the program, itself included; 0 where it cannot be seen.

    The system's own limit does not hold for its superuser, and does not count by program.
    """
    mine = status_of(status).get("pid-namespace")
    if mine is None:
        return 0
    count = 0
    for name in os.listdir("/proc"):  # noqa: PTH208 - there may be very many
        if name.isdecimal():
            with contextlib.suppress(OSError):
                count += os.stat(f"/proc/{name}/ns/pid").st_ino == mine  # noqa: PTH116
    return count
