"""`python -m mlx_tools` is `mlx-tools`.

Python puts the working directory first on its path then, and a folder that somebody else has
filled may hold a `json.py`. It is taken off before anything more is imported; what Python and the
package itself have imported by now, `python -P -m mlx_tools` alone keeps it from.
"""

from __future__ import annotations

import os
import sys


def _leave_working_directory() -> None:
    """Takes off `sys.path` what `-m` put there."""
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib is not imported yet
    except OSError:  # it is gone, so nothing was put there
        return
    if not sys.flags.safe_path and sys.path[:1] == [here]:
        del sys.path[0]


if __name__ == "__main__":
    _leave_working_directory()

    from mlx_tools.cli import main

    sys.exit(main())
