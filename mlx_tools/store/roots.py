"""Safe opening of files below a folder, and of nothing outside it.

A path is never checked first and opened later: in between, somebody could put a symbolic link
there. Instead each name is opened relative to the folder before it (``dir_fd``), and never through
a link (``O_NOFOLLOW``). So the opened file is the checked file, even if others change the tree
meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import unicodedata
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from mlx_tools.errors import UsageError
from mlx_tools.macos import permission_hint, real_case
from mlx_tools.paths import expand_user
from mlx_tools.policy import match_path_parts

MAX_PATH_CHARS: Final = 4096
"""The limit of Linux (PATH_MAX)."""

Identity = tuple[int, int]
"""The identity of a file or folder: its device, and its number on that device."""

_KERNEL_FILES: Final = frozenset(
    {
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devfs"),
        *("devpts", "devtmpfs", "efivarfs", "fusectl", "mqueue", "nsfs", "proc", "pstore"),
        *("rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"),
    }
)
"""Types of file systems with files of the kernel. Reading one can hang, or show secrets."""


class PathRefused(Exception):
    """The path may not be opened, whether it exists or not; the message says why."""


class PathUnlisted(PathRefused):
    """The path is in the folder, but matches none of the folder's patterns."""


class WrongFileKind(Exception):
    """The path leads to something of another kind, such as a folder instead of a file."""


class PathAbsent(Exception):
    """The path does not exist."""


def can_open_safely() -> bool:
    """Return True if this system can open and change paths without following links."""
    needed = {os.access, os.open, os.stat, os.mkdir, os.rmdir, os.link, os.rename, os.unlink}
    return needed <= os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


_ROOT: Final = re.compile(r"(.*?)(?::(ro|rw)(?::(.*))?)?", re.DOTALL)
_MAX_PATTERNS: Final = 100


class RootName(Struct, frozen=True):
    """A folder that file tools may see, as the user wrote it.

    The text is ``DIR``, ``DIR:ro`` or ``DIR:rw``. The last two may be followed by ``:PATTERN``,
    once or more often: then only files that match a pattern may be seen.
    """

    path: str
    """The path of the folder."""
    writable: bool = False
    """True if tools may change files in the folder."""
    patterns: tuple[str, ...] = ()
    """Patterns of the files that may be seen; all files if there are none."""

    @classmethod
    def parse(cls, text: str) -> RootName:
        """Parse ``DIR[:ro|:rw[:PATTERN…]]``.

        Raises:
            UsageError: the folder is empty, or a pattern is not valid.
        """
        found = _ROOT.fullmatch(text)
        path = found[1] if found is not None else ""
        if found is None or not path or "\0" in path:
            raise UsageError(f"root {text!r}: no folder is named", hint="write DIR, or DIR:rw")
        patterns = tuple(found[3].split(":")) if found[3] is not None else ()
        try:
            check_patterns(patterns)
        except ValueError as error:
            raise UsageError(f"root {text!r}: {error}", hint="such as DIR:ro:**/*.md") from None
        return cls(path, found[2] == "rw", patterns)

    def absolute(self) -> str:
        """Return the root as a text with an absolute path."""
        path = expand_user(self.path).resolve()
        if self.patterns:
            return ":".join((str(path), "rw" if self.writable else "ro", *self.patterns))
        return f"{path}:rw" if self.writable else str(path)


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise ValueError, with a reason, if a pattern of paths is not valid."""
    if len(patterns) > _MAX_PATTERNS:
        raise ValueError(f"there are more than {_MAX_PATTERNS} patterns")
    for pattern in patterns:
        parts = pattern.split("/")
        if not pattern.strip() or len(pattern) > MAX_PATH_CHARS or "\0" in pattern:
            raise ValueError(f"{pattern[:100]!r} is no pattern")
        if parts[0] in ("", "~") or not {"", ".", ".."}.isdisjoint(parts) or "\\" in pattern:
            raise ValueError(f"the pattern {pattern[:100]!r} does not go down from the folder")


class PathPatterns:
    """Patterns of paths below a folder.

    ``*``, ``?`` and ``[…]`` match within a name. ``**`` matches zero or more folders. Without
    patterns every path matches.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [tuple(_normalize(pattern.split("/"))) for pattern in patterns]

    def __bool__(self) -> bool:
        """Return True if there are patterns, so that some paths may not be seen."""
        return bool(self._patterns)

    def match(self, parts: Sequence[str]) -> bool:
        """Return True if the path may be seen."""
        names = _normalize(parts)
        matches = (len(p) in match_path_parts(names, p) for p in self._patterns)
        return not self._patterns or any(matches)

    def match_below(self, parts: Sequence[str]) -> bool:
        """Return True if a path below this one may be seen."""
        names = _normalize(parts)
        more = (min(match_path_parts(names, p), default=len(p)) < len(p) for p in self._patterns)
        return not self._patterns or any(more)


class Root:
    """A folder whose path is resolved once, and which then stays open.

    So renaming the folder or its parents has no effect. Raises UsageError if it is not a folder, or
    is one of the kernel.
    """

    def __init__(self, name: RootName) -> None:
        self.writable = name.writable
        self.patterns = PathPatterns(name.patterns)
        try:
            given = expand_user(name.path).absolute()
            self.path = given.resolve(strict=True)
            # Open as long as the root exists: all paths below start at this descriptor, even if the
            # path leads elsewhere later.
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with os.scandir(self.fd) as entries:  # macOS may forbid this in a folder that opens
                next(entries, None)
            self.path = real_case(self.fd, self.path)
        except (OSError, RuntimeError, ValueError) as error:
            reason, hint = str(error), None
            if isinstance(error, OSError):
                reason, hint = error.strerror or reason, permission_hint(error, name.path)
            raise UsageError(
                f"root {name.path!r}: {reason}", hint=hint or "name a folder"
            ) from None
        # Closed with the object at the latest, so that callers need not close it.
        self.close = weakref.finalize(self, os.close, self.fd)
        # A model writes paths as it has read them: /tmp or /private/tmp on macOS, $HOME through a
        # link.
        spellings = {given, self.path, *_find_spellings(self.path)}
        self._prefixes = {_normalize(path.parts) for path in spellings}
        self._kernel_devices = list_kernel_devices()
        self.identity = get_identity(os.fstat(self.fd))
        if self.identity[0] in self._kernel_devices:
            self.close()
            raise UsageError(f"root {name.path!r}: its files are the kernel's, not documents")

    def split(self, path: str, *, writing: bool = False) -> tuple[str, ...] | None:
        """Return the names of a path below the root, none for the root itself.

        It is None for an absolute path outside the root. ``~/`` is the home folder if the path is
        then in the root, otherwise a folder of the name ``~``.

        Args:
            path: the path as the model wrote it.
            writing: True if the file is to be changed.

        Raises:
            PathRefused: no tool may open the path, or change it, in any root.
        """
        steps = _split_path(path)
        is_home = path == "~" or path.startswith("~/")
        if path.startswith("/") or is_home:
            absolute = _split_path(expand_home(path))
            forms = _normalize(absolute)
            prefix = next((p for p in self._prefixes if forms[: len(p)] == p), None)
            if prefix is not None:
                steps = absolute[len(prefix) :]
            elif not is_home:
                return None
        private = find_private_part(steps, self.path.name, writing=writing)
        if private is not None:
            raise PathRefused(
                f"{private} is private: files of this name hold secrets or run by themselves"
            )
        return steps

    def open_file(self, parts: Sequence[str]) -> int:
        """Return a descriptor of a regular file, for reading.

        Raises:
            PathRefused: the file may not be opened.
            WrongFileKind: it is not a regular file.
            PathAbsent: there is no such file.
        """
        if not parts:
            raise WrongFileKind("this is a folder; list it instead")
        self.check_listed(parts)
        parent = self.open_folder(parts[:-1])
        try:
            return self.open_last(parent, parts[-1])
        finally:
            os.close(parent)

    def resolve(self, parts: Sequence[str]) -> Path:
        """Return a path without links, for programs that open it themselves.

        The file or folder may be absent.

        Raises:
            PathRefused: the path may not be opened.
            WrongFileKind: a part of the path is a file.
        """
        self.check_listed(parts)
        with contextlib.ExitStack() as opened, contextlib.suppress(PathAbsent, FileNotFoundError):
            if parts:
                parent = self.open_folder(parts[:-1])
                opened.callback(os.close, parent)
                kind = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode
                enters = self.enter if stat.S_ISDIR(kind) else self.open_last
                os.close(enters(parent, parts[-1]))
        return self.path.joinpath(*parts)

    def check_listed(self, parts: Sequence[str]) -> None:
        """Raise PathUnlisted if a path matches none of the root's patterns."""
        if not self.patterns.match(parts):
            raise PathUnlisted(f"{parts[-1]} is none of the files that may be seen in this folder")

    def open_listing(self, parts: Sequence[str]) -> int:
        """Return a descriptor of a folder to list. Raise as `open_folder` does."""
        if not self.patterns.match_below(parts):
            raise PathUnlisted("the folder holds none of the files that may be seen")
        return self.open_folder(parts)

    def open_folder(self, parts: Sequence[str]) -> int:
        """Return a descriptor of a folder.

        Raises:
            PathRefused: the folder may not be opened.
            WrongFileKind: it is no folder.
            PathAbsent: there is no such folder.
        """
        current = os.dup(self.fd)
        try:
            for part in parts:
                below = self.enter(current, part)
                os.close(current)
                current = below
        except BaseException:
            os.close(current)
            raise
        return current

    def enter(self, parent: int, name: str) -> int:
        """Return a descriptor of a folder in an open folder. Raise as `open_folder`."""
        return self._open(parent, name, os.O_DIRECTORY, stat.S_ISDIR)

    def open_last(self, parent: int, name: str) -> int:
        """Return a descriptor of a regular file in an open folder. Raise as `open_file`."""
        try:
            kind = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind):
                raise WrongFileKind(f"{name} is a folder; list it instead")
            if not stat.S_ISREG(kind):  # opening a device or a pipe can have an effect of its own
                raise _irregular_error(kind, name)
        except OSError as error:
            raise translate_open_error(error, parent, name) from None
        return self.open_listed(parent, name)

    def open_listed(self, parent: int, name: str) -> int:
        """Return a descriptor of a file that was listed as regular in the open folder.

        Raises as `open_file` does, also if something else has replaced the file since then.
        """
        # O_NOCTTY: a terminal in the file's place must not become this process's terminal.
        return self._open(parent, name, os.O_NOCTTY, stat.S_ISREG)

    def _open(self, parent: int, name: str, flags: int, of_kind: Callable[[int], bool]) -> int:
        """Return a descriptor of a file or folder of the right kind in an open folder.

        The kind is that of the open file, not of its name, so nobody can change it in between.
        """
        # O_NOFOLLOW: somebody may have put a link there meanwhile. O_NONBLOCK: a pipe must not
        # block the call.
        flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(name, flags, dir_fd=parent)
        except OSError as error:
            raise translate_open_error(error, parent, name) from None
        status = os.fstat(fd)
        wrong = None
        if not of_kind(status.st_mode):
            wrong = f"{name} was replaced by something else"
        elif status.st_dev in self._kernel_devices:
            wrong = f"{name} is the kernel's, not a document"
        # The places of the other names are unknown. One of them may be a secret file.
        elif of_kind is stat.S_ISREG and status.st_nlink > 1:
            wrong = (
                f"{name} has other names too (hard links), one of which may lie outside the folder"
            )
        if wrong is not None:
            os.close(fd)
            raise PathRefused(wrong)
        return fd


def expand_home(path: str) -> str:
    """Replace ``~/`` at the start of a path with the home folder, if there is one."""
    if path != "~" and not path.startswith("~/"):
        return path
    try:
        return f"{Path('~').expanduser()}/{path[2:]}"
    except RuntimeError:
        return path


def _find_spellings(path: Path) -> Iterator[Path]:
    """Yield other paths to a folder, by ``$PWD`` and ``$HOME``.

    These variables may lead to the working directory or the home folder through links.
    """
    for spelled in (Path(os.environ.get("PWD", "")), Path(expand_home("~"))):
        try:
            real = spelled.resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        if not spelled.is_absolute() or ".." in spelled.parts:
            continue
        if path.is_relative_to(real):
            yield spelled / path.relative_to(real)
        elif real.is_relative_to(path):
            below = real.relative_to(path).parts
            if spelled.parts[-len(below) :] == below:
                yield Path(*spelled.parts[: -len(below)])


def get_identity(status: os.stat_result) -> Identity:
    """Return the identity of the file with this status."""
    return status.st_dev, status.st_ino


def list_kernel_devices() -> frozenset[int]:
    """Return the devices of file systems with files of the kernel.

    They are the mounted ones, and ``/dev``, ``/proc`` and ``/sys`` if these are file systems of
    their own.
    """
    devices = set()
    try:
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").split("\n"):
            fields, _, kind = line.partition(" - ")
            if kind.partition(" ")[0] in _KERNEL_FILES:
                major, _, minor = fields.split()[2].partition(":")
                devices.add(os.makedev(int(major), int(minor)))
    except (OSError, ValueError, IndexError):
        devices.clear()  # not Linux, or no /proc: then only the three folders below count
    # In containers /dev and /proc may be on the device of ``/``, which must stay usable.
    ordinary = Path("/").stat().st_dev
    for place in ("/dev", "/proc", "/sys"):
        try:
            device = Path(place).stat().st_dev
        except OSError:
            continue
        if device != ordinary:
            devices.add(device)
    return frozenset(devices)


def _split_path(path: str) -> tuple[str, ...]:
    """Return the names of a path.

    Raises:
        PathRefused: the path could mean another file to another program, or goes up.
    """
    if len(path) > MAX_PATH_CHARS:
        raise PathRefused(f"the path is longer than {MAX_PATH_CHARS} characters")
    if "\0" in path:
        raise PathRefused("the path holds a NUL character")
    # Python would pass some of these to the system as raw bytes (surrogateescape).
    if any("\ud800" <= character <= "\udfff" for character in path):
        raise PathRefused("the path holds half a character (a lone surrogate)")
    steps = tuple(step for step in path.split("/") if step not in ("", "."))
    if ".." in steps:
        raise PathRefused("the path goes up (..); paths go down from the folder")
    return steps


def _normalize(parts: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a path with composed accents, so that they can be compared."""
    return tuple(unicodedata.normalize("NFC", part) for part in parts if part != "/")


def translate_open_error(error: OSError, parent: int, name: str) -> Exception:
    """Return the exception for an error of the system on opening a file.

    The file is looked at again, but only for the message: the path stays refused.
    """
    match error.errno:
        case errno.ENOENT:
            return PathAbsent(f"there is no {name}")
        case errno.ELOOP | errno.ENOTDIR | errno.EMLINK:
            try:
                kind = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            except OSError:
                kind = 0
            return (
                _irregular_error(kind, name)
                if stat.S_ISLNK(kind)
                else WrongFileKind(f"{name} is no folder")
            )
        case errno.EACCES | errno.EPERM:
            return PathRefused(f"{name} may not be opened by this user")
        case errno.ENAMETOOLONG:
            return PathRefused("a name in the path is too long")
    return PathRefused(f"{name}: {error.strerror}")


def _irregular_error(kind: int, name: str) -> PathRefused:
    if stat.S_ISLNK(kind):
        return PathRefused(f"{name} is a symbolic link, and links are not followed")
    return PathRefused(f"{name} is not a regular file")


# --- private names ------------------------------------------------------------------------------
#
# Files and folders that contain secrets or run by themselves are refused in every root, by their
# names. The root itself may have such a name, because the user chose it. Names are compared as the
# laxest file systems compare them: without case, with composed accents, without invisible
# characters.

_NAMES: Final = frozenset(
    {
        # keys, passwords and tokens
        *(
            *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store"),
            ".vault-token",
        ),
        *(".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc", ".pypirc", ".git-credentials"),
        *(".gitconfig", ".htpasswd", ".env", ".envrc", ".authinfo", ".s3cfg", ".boto", ".gem"),
        *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk"),
        *("keychains", "keyrings", ".terraformrc", "credentials.tfrc.json"),
        # files that a shell runs when it starts or ends
        *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile"),
        *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc"),
        *(".login", ".logout", ".inputrc", ".xinitrc", ".xprofile", ".xsession"),
        # old contents of files, for undo, which no model may see
        ".mlx-tools-undo",
        # in this folder macOS opens every file by its number
        ".vol",
    }
)
_PATTERNS: Final = (
    *(".env.*", ".*history", "*.keychain", "*.keychain-db", "*.kdbx", "*.pem", "*.key", "*.p12"),
    *("*.pfx", "*.jks", "*.keystore", "*.ppk"),
)
_INSIDE: Final = (
    # (a folder, the names that are refused anywhere below it)
    ("*.git", frozenset({"config", "config.worktree", "hooks", "credentials"})),
    (".hg", frozenset({"hgrc"})),
    (".config", frozenset({"fish", "gh", "gcloud", "git", "op", "rclone"})),
    (".cargo", frozenset({"credentials", "credentials.toml"})),
    (".m2", frozenset({"settings.xml"})),
)

FOLDERS: Final = tuple(folder for folder, _ in _INSIDE)
"""Patterns of folders in which more names are private than elsewhere."""

# Files that may be read but not changed, because they decide what other programs run, or what this
# program may do.
_UNCHANGED: Final = frozenset(
    {
        # A file .git, or .git/commondir, can name a configuration in any place, and that names
        # programs to run. On NTFS git~1 is another name of .git.
        *(".git", "git~1", ".hg", ".svn", ".bzr", ".jj", ".husky", ".direnv"),
        # desktops, editors, debuggers, interpreters and terminals run programs named in these
        *(".config", ".local", "launchagents", "launchdaemons", ".vscode", ".idea", ".vim"),
        *(".vimrc", ".gvimrc", ".exrc", ".nvimrc", ".emacs", ".emacs.d", ".dir-locals.el"),
        *(".gdbinit", ".lldbinit", ".pdbrc", ".pythonrc", ".pythonrc.py", ".irbrc", ".pryrc"),
        *(".rprofile", ".renviron", ".sqliterc", ".psqlrc", ".curlrc", ".wgetrc", ".mailcap"),
        *(".tmux.conf", ".screenrc", ".forward", ".procmailrc", ".pam_environment", ".xsessionrc"),
        *(".xserverrc", ".mavenrc", ".yarnrc", ".yarnrc.yml", ".condarc", ".gemrc"),
        *("sitecustomize.py", "usercustomize.py"),
        "mlx-tools.toml",
    }
)
_UNCHANGED_PATTERNS: Final = ("*.pth",)
_UNCHANGED_INSIDE: Final = (
    ("*.git", frozenset({"commondir", "gitdir", "head", "info", "modules", "worktrees"})),
    ("application support", frozenset({"mlx-tools"})),
)

# Characters that some file systems ignore when they compare names, besides those of category Cf:
# the others of Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties.txt).
_IGNORED: Final = frozenset(
    (
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, 0x2065),
        *(*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9)),
        *range(0xE0000, 0xE1000),
    )
)


def find_private_part(
    parts: Sequence[str], parent: str = "", *, writing: bool = False
) -> str | None:
    """Return the first part of a path that is private, or None.

    Args:
        parts: the path's names below the root.
        parent: the root's last name. It is never refused itself, but shows for example that
            ``config`` below it belongs to a repository.
        writing: True to refuse also files that may be read but not changed.
    """
    names = _NAMES | _UNCHANGED if writing else _NAMES
    patterns = _PATTERNS + _UNCHANGED_PATTERNS if writing else _PATTERNS
    inside_of = _INSIDE + _UNCHANGED_INSIDE if writing else _INSIDE
    folders = [fold_name(parent)] if parent else []
    for part in parts:
        name = fold_name(part)
        if name in names or any(fnmatchcase(name, pattern) for pattern in patterns):
            return part
        for folder, inside in inside_of:
            if name in inside and any(fnmatchcase(parent, folder) for parent in folders):
                return part
        folders.append(name)
    return None


_PRIVATE: Final = re.compile("|".join(map(translate, _PATTERNS)))


class PrivateNames:
    """The names that may not be read in one folder.

    They are those of `find_private_part`, but many names are checked faster.

    Args:
        parts: the names of the folder's path below the root.
        parent: the root's last name.
    """

    def __init__(self, parts: Sequence[str], parent: str) -> None:
        folders = [fold_name(part) for part in (parent, *parts)]
        self._inside = frozenset(
            name
            for folder, inside in _INSIDE
            if any(fnmatchcase(folder_name, folder) for folder_name in folders)
            for name in inside
        )

    def __contains__(self, name: str) -> bool:
        name = _fold_entry(name)
        return name in _NAMES or name in self._inside or _PRIVATE.match(name) is not None


def fold_name(name: str) -> str:
    """Return a name as the laxest file systems compare it.

    They ignore case, the form of accents, and invisible characters.
    """
    if name.isascii():
        return name.lower().partition(":")[0].rstrip(" .")
    visible = "".join(
        c
        for c in unicodedata.normalize("NFKC", name)
        if unicodedata.category(c) != "Cf" and ord(c) not in _IGNORED
    )
    # On NTFS a colon begins the name of a stream: .git::$INDEX_ALLOCATION is the folder .git.
    folded = unicodedata.normalize("NFKC", visible.casefold()).partition(":")[0]
    return folded.rstrip(" .")


_fold_entry: Final = lru_cache(maxsize=4096)(fold_name)
"""`fold_name` with a cache, because each walk of a tree needs the same names again.

Most trees have at most 4,096 entries, and these take less than a megabyte."""
