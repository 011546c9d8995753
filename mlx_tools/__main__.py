"""`python -m mlx_tools` is `mlx-tools`.

Python puts the working directory first on its path then, and a folder that somebody else has filled
may hold a `json.py`. So it is removed before anything more is imported. Modules that Python and the
package itself have imported by now are safe only with `python -P -m mlx_tools`.
"""

from __future__ import annotations

import os
import sys


def _leave_working_directory() -> None:
    """Remove the entry that `-m` put on `sys.path`."""
    try:
        working_directory = os.getcwd()  # noqa: PTH109 - pathlib is not imported yet
    except OSError:  # the folder does not exist any more, so it is not on the path
        return
    if not sys.flags.safe_path and sys.path[:1] == [working_directory]:
        del sys.path[0]


if __name__ == "__main__":
    _leave_working_directory()

    from mlx_tools.cli import main

    sys.exit(main())
