"""A question that is answered by yes or no, on a line."""

from __future__ import annotations

import sys

from mlx_tools.cli.columns import columns_of, folded
from mlx_tools.cli.escape import in_words
from mlx_tools.cli.keys import forget_typed, read_line


def said_yes(question: str) -> bool:
    """Whether the user at the terminal says yes. Nothing, and the end of the input, is no.

    What was typed before the question is shown answers nothing. Raises KeyboardInterrupt for
    Ctrl-C.
    """
    forget_typed(sys.stdin)
    columns = columns_of(sys.stderr) if sys.stderr.isatty() else None
    asked = folded(f"{in_words(question)} [y/N]", columns, "  ")
    print(asked, end=" ", file=sys.stderr, flush=True)
    line = read_line(sys.stdin)
    if line is None:
        print(file=sys.stderr)  # behind the question
    return (line or "").strip().casefold() in ("y", "yes")
