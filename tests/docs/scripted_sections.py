"""What a scripted model writes in sections of the documentation that are run without a real one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mlx_tools.testing import answer, call

_SUM: Final = (call("calculator", expression="17 * 23"), answer("17 * 23 is 391."))

SCRIPTS: Final[Mapping[str, tuple[str, ...]]] = {
    "README: Five first things": (
        *_SUM,
        call("edit_file", path="plan.md", old="kale", new="lettuce"),
        answer("Bed 2 has lettuce now."),
        call("area", width=3.5, height=4),
        answer("It is 14 square metres."),
        call("weather", city="Oslo"),
        *_SUM,
    ),
}
"""The completions in order, by page and section."""
