"""A plugin's settings set nothing of the core's."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from mlx_tools.app import Section, Setting
from mlx_tools.app.setting_rows import rows_of
from mlx_tools.app.settings import Settings, find_section_fault

ROWS = list(rows_of(Settings))


def section(setting: Setting, kind: Any = str, default: Any = "x") -> type[Section]:
    """A table with one setting, ``days``."""
    names = {"__annotations__": {"days": Annotated[kind, setting]}, "days": default}
    return type(Section)("OwnSettings", (Section,), names, frozen=True)


class WithoutDefault(Section, frozen=True):
    days: Annotated[int, Setting("any", "Days")]


@pytest.mark.parametrize(
    ("name", "table", "fault"),
    [
        ("moon", section(Setting("any", "Days")), None),
        ("policy", section(Setting("any", "Days")), "there is such a table already"),
        ("enabled", section(Setting("any", "Days")), "there is such a table already"),
        ("Moon phases", section(Setting("any", "Days")), "no name of a table"),
        ("moon", WithoutDefault, "days has no default"),
        ("moon", dict, "this is no Section"),
        ("moon", section(Setting("any", "Days", run="commands")), "a field of a run"),
        ("moon", section(Setting("any", "D", env="MLX_TOOLS_ALLOWED_TOOLS")), "sets already"),
        ("moon", section(Setting("any", "D", option="--tools A,B")), "sets already"),
        ("moon", section(Setting("any", "D", option="--days,-t N")), "sets already"),
    ],
)
def test_a_table_of_a_plugin_takes_nothing_of_the_core(
    name: str, table: Any, fault: str | None
) -> None:
    found = find_section_fault(name, table, ROWS)
    assert found is None if fault is None else fault in str(found)
