"""`python -m mlx_tools` is `mlx-tools`."""

from __future__ import annotations

import sys

from mlx_tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
