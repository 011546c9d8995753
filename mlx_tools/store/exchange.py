"""Exchange of two names in one folder, and detection of writers of an open file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

_LINUX_EXCHANGE: Final = 2  # RENAME_EXCHANGE of linux/fs.h
_MACOS_SWAP: Final = 2  # RENAME_SWAP of sys/stdio.h
_NOT_POSSIBLE: Final = frozenset(
    (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM)
)
"""Error numbers of file systems and sandboxes that cannot swap names."""


@functools.cache
def _find_system_call() -> Callable[..., int] | None:
    """Return the C library's function that swaps names, None if it has none."""
    import ctypes  # imported late: most runs exchange no names

    name = "renameatx_np" if sys.platform == "darwin" else "renameat2"
    try:
        function: Any = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError):
        return None
    # Without argument types ctypes would guess them from the Python values.
    text, number = ctypes.c_char_p, ctypes.c_int
    function.argtypes = (number, text, number, text, ctypes.c_uint)
    function.restype = number
    swap: Callable[..., int] = function
    return swap


def exchange(folder: int, name: str, second_path: str) -> bool:
    """Swap two names of an open folder in one step.

    Each name then leads to the file that the other led to.

    Args:
        folder: a descriptor of the folder.
        name: one name in it.
        second_path: the other name in it.

    Returns:
        False, without a change, if the system or the file system cannot swap names.

    Raises:
        OSError: one of the names does not exist.
    """
    swap = _find_system_call()
    if swap is None:
        return False
    flag = _MACOS_SWAP if sys.platform == "darwin" else _LINUX_EXCHANGE
    if swap(folder, os.fsencode(name), folder, os.fsencode(second_path), flag) == 0:
        return True
    import ctypes

    # ctypes has saved errno right after the call; the real one may have changed since then.
    number = ctypes.get_errno()
    if number in _NOT_POSSIBLE:
        return False
    raise OSError(number, os.strerror(number), name)


def is_open_for_writing(fd: int) -> bool:
    """Return True if some process has the file open for writing.

    It is False if no process has, or if the system does not say. Linux grants a read lease only for
    a file that nobody has open for writing (fcntl(2)). The lease is released at once.
    """
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError):
        # Breaking a lease sends SIGIO, which would end this process; SIGURG is ignored by default.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    try:
        # The kernel refuses the lease (EAGAIN) if the file is open for writing anywhere.
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
