"""Runs a program that is spoken to in lines, until either side is gone, and bounds what it says.

Started as a script, ``python -I relay.py LINE ERRORS PROGRAM ARGUMENTS…``: what comes on standard
input goes to the program, its lines come back on standard output. One that is longer than LINE
bytes ends it; of its standard error the first ERRORS bytes are passed on. When standard input ends,
however the parent ended, so does the program's; two seconds later it and whatever it started are
killed. Imports nothing of mlx_tools.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

PATIENCE = 2.0
CHUNK = 65_536


def main() -> None:
    """Pass on what either side says."""
    line, errors, *command = sys.argv[1:]
    try:
        child = subprocess.Popen(  # noqa: S603 - an argument list, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)
    assert child.stdout is not None and child.stderr is not None
    threading.Thread(target=_errors, args=(child.stderr.fileno(), int(errors)), daemon=True).start()
    threading.Thread(target=_down, args=(child,), daemon=True).start()
    if _up(child.stdout.fileno(), int(line)):
        sys.exit(child.wait())
    print(f"it wrote a line of more than {line} bytes, and was ended", file=sys.stderr)
    _kill()


def _up(source: int, most: int) -> bool:
    """Pass its lines on; False where one is too long."""
    length = 0
    while data := os.read(source, CHUNK):
        head, newline, _ = data.partition(b"\n")
        if length + len(head) > most:
            return False
        length = len(data) - data.rfind(b"\n") - 1 if newline else length + len(data)
        try:
            _write(1, data)
        except OSError:  # nobody reads it any more
            return True
    return True


def _down(child: subprocess.Popen[bytes]) -> None:
    """Pass on what it is told; at the end of that, and of its patience, it is killed."""
    assert child.stdin is not None
    while data := os.read(0, CHUNK):
        try:
            _write(child.stdin.fileno(), data)
        except OSError:
            break
    child.stdin.close()
    time.sleep(PATIENCE)
    _kill()


def _errors(source: int, most: int) -> None:
    while data := os.read(source, CHUNK):
        _write(2, data[:most])
        most -= len(data[:most])


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _kill() -> None:
    if os.getpgrp() == os.getpid():  # as it is where the parent gave it a session of its own
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
