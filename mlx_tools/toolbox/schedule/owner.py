"""Which runner is alive: each holds a lock on a file of its own, which the system takes away when
its process ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from pathlib import Path
from typing import Final

from mlx_tools.errors import ScheduleError
from mlx_tools.paths import private_dir

_TOKEN: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_PASSING: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE)
)


def passes(error: Exception) -> bool:
    """Whether an error of the system may be over when it is tried again."""
    return getattr(error, "errno", None) in _PASSING


class Owner:
    """A runner's lock, held until it is closed. ``folder`` is where the locks are."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_hex(16)
        self._path = private_dir(folder) / self.token
        try:
            self._fd = os.open(self._path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            raised = ScheduleError(f"{self._path} cannot be made: {error.strerror}")
            raised.passing = passes(error)
            raise raised from None

    def close(self) -> None:
        """Lets the lock go."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            os.close(self._fd)


def is_alive(folder: Path, token: str) -> bool:
    """Whether the runner of this token still holds its lock."""
    if not _TOKEN.fullmatch(token):
        return False
    try:
        fd = os.open(folder / token, _FLAGS)
    except FileNotFoundError:
        return False
    except OSError:  # too many open files, say: nobody's end is to be read out of that
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    with contextlib.suppress(OSError):
        (folder / token).unlink()  # its process is gone
    return False
