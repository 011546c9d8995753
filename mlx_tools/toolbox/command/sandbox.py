"""What confines a program: what it may see, and whether this system can hold it to that."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from mlx_tools.toolbox.command import bwrap, seatbelt
from mlx_tools.toolbox.command.plan import program, trusted_folders
from mlx_tools.toolbox.command.sandbox_view import SandboxView

PROBE_SECONDS: Final = 10.0
CPU_SECONDS: Final = 600
FILE_BYTES: Final = 256 << 20
MEMORY_BYTES: Final = 4 << 30
OPEN_FILES: Final = 1_024
PROCESSES: Final = 256


@dataclass(frozen=True, slots=True)
class Confined:
    """A command that starts a program in the sandbox: its words, the descriptors it inherits, and
    the one from which its state is read (JSON lines), where the sandbox tells it."""

    argv: tuple[str, ...]
    inherited: tuple[int, ...] = ()
    told: int | None = None


class Sandbox(Protocol):
    """Confines programs. ``hides_contents`` is whether a file can be shown with other contents."""

    @property
    def name(self) -> str: ...
    @property
    def hides_contents(self) -> bool: ...
    def confined(
        self, argv: Sequence[str], view: SandboxView
    ) -> contextlib.AbstractContextManager[Confined]:
        """The command that runs ``argv``; its descriptors are open as long as the context is."""
        ...


class NoSandbox(Exception):
    """Nothing here can confine a program; the message says why."""


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """``bwrap`` on Linux: namespaces of its own for everything, no network, no rights."""

    path: str
    prlimit: str
    switches: frozenset[str]

    name = "bwrap"
    hides_contents = True

    @contextlib.contextmanager
    def confined(self, argv: Sequence[str], view: SandboxView) -> Iterator[Confined]:
        """See `Sandbox`."""
        with contextlib.ExitStack() as stack:
            told, telling = os.pipe()
            stack.callback(os.close, told)
            stack.callback(os.close, telling)
            datas = {path: stack.enter_context(_open_data(d)) for path, d in view.replaced.items()}
            options = bwrap.options(self.switches, view, telling, datas)
            given = b"".join(os.fsencode(option) + b"\0" for option in options)
            fd = stack.enter_context(_open_data(given))
            limits = [
                *(self.prlimit, f"--cpu={CPU_SECONDS}", f"--fsize={FILE_BYTES}", "--core=0"),
                *(f"--as={MEMORY_BYTES}", f"--nofile={OPEN_FILES}"),
            ]
            if _counts_by_namespace(os.uname().release):
                limits.append(f"--nproc={PROCESSES}")
            yield Confined(
                (self.path, "--args", str(fd), "--", *limits, "--", *argv),
                (telling, fd, *datas.values()),
                told,
            )


@dataclass(frozen=True, slots=True)
class Seatbelt:
    """``sandbox-exec`` on macOS, with a profile that denies what it does not name."""

    path: str

    name = "sandbox-exec"
    hides_contents = False

    @contextlib.contextmanager
    def confined(self, argv: Sequence[str], view: SandboxView) -> Iterator[Confined]:
        """See `Sandbox`."""
        yield Confined((self.path, "-p", seatbelt.profile(argv[0], view), *argv))


@functools.cache
def sandbox() -> Sandbox:
    """The sandbox of this system, tried out once. Raises NoSandbox with the reason."""
    return find(sys.platform, trusted_folders())


def find(platform: str, folders: Sequence[str]) -> Sandbox:
    """The sandbox of a system whose own programs are in ``folders``, tried out. Raises
    NoSandbox."""
    if platform == "darwin":
        path = program("sandbox-exec", folders)
        if path is None:
            raise NoSandbox("sandbox-exec is missing")
        return _proven([Seatbelt(path)], folders)
    path, prlimit = program("bwrap", folders), program("prlimit", folders)
    if path is None:
        raise NoSandbox("there is no sandbox: bwrap is missing (install bubblewrap)")
    if prlimit is None:
        raise NoSandbox("prlimit is missing (install util-linux)")
    return _proven([Bubblewrap(path, prlimit, some) for some in bwrap.SWITCHES], folders)


def _proven(sandboxes: Sequence[Sandbox], folders: Sequence[str]) -> Sandbox:
    """The first that works, once it has been seen to deny. Raises NoSandbox."""
    reason = ""
    for candidate in sandboxes:
        fault = probe(candidate, folders)
        if fault is None:
            return candidate
        reason = reason or fault
    raise NoSandbox(f"there is no sandbox: {sandboxes[0].name} {reason}")


def probe(candidate: Sandbox, folders: Sequence[str]) -> str | None:
    """What is wrong with a sandbox, None where a program in it reads below a root, reads nothing
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
        try:
            read, told = _tried(
                candidate, [cat, str(inside / "token"), str(outside / "token")], view
            )
            _tried(candidate, [touch, str(inside / "made"), str(outside / "made")], view)
        except (OSError, subprocess.SubprocessError) as error:
            return f"does not run: {error}"
        if "token inside" not in read:
            return f"does not work here: {' '.join(told.split())[:200] or 'it printed nothing'}"
        if "token out" in read:
            return "does not confine: a file outside was read"
        if (inside / "made").exists() or (outside / "made").exists():
            return "does not confine: a file was made"
    return None


def _tried(candidate: Sandbox, argv: Sequence[str], view: SandboxView) -> tuple[str, str]:
    """Output and errors of a short program. Where the sandbox tells of its network, raises
    SubprocessError if that is ours."""
    with candidate.confined(argv, view) as confined:
        done = subprocess.run(  # noqa: S603 - absolute paths, no shell
            confined.argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"LC_ALL": "C"},
            pass_fds=confined.inherited,
            timeout=PROBE_SECONDS,
        )
        if confined.told is not None and done.returncode >= 0:
            os.set_blocking(confined.told, False)
            with contextlib.suppress(BlockingIOError):
                _check_network(os.read(confined.told, 65_536))
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def _check_network(told: bytes) -> None:
    ours = os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116
    if bwrap.namespace(told, "net") in (None, ours):
        raise subprocess.SubprocessError("it shares the network")


def _counts_by_namespace(release: str) -> bool:
    """Whether this Linux counts a user's processes by namespace (since 5.14). An older one counts
    all that the user has, and the limit would hold for those."""
    major, _, rest = release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return major.isdecimal() and minor.isdecimal() and (int(major), int(minor)) >= (5, 14)


@contextlib.contextmanager
def _open_data(content: bytes) -> Iterator[int]:
    """A descriptor from which the content can be read."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        file.seek(0)
        yield file.fileno()
