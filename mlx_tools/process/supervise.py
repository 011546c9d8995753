"""Runs a program until the process that asked for it is gone, however that one ended.

Started as a script, ``python -P supervise.py PROGRAM ARGUMENTS…``; PROGRAM is a module's name, or a
path that ends in ``.py``. Its standard input is a pipe whose other end the parent holds. When the
parent closes it, ends, or is killed with a signal that cannot be caught, the pipe ends, and this
process and whatever it started are killed at once. So it works on Linux and on macOS, and there is
no second process that could be left over. Imports nothing of mlx_tools.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    """Watch standard input from a thread; run the program in this one."""
    program, arguments = sys.argv[1], sys.argv[2:]
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def die_with_it() -> None:
        while os.read(pipe, 4096):
            pass
        if os.getpgrp() == os.getpid():  # as it is where the parent gave it a session of its own
            os.killpg(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die_with_it, daemon=True).start()
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
