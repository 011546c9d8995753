"""A plugin's settings set nothing of the core's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest

from mlx_tools.app import Section, Setting
from mlx_tools.app.project_rules import find_fault
from mlx_tools.app.setting_rows import SettingRow, iter_rows
from mlx_tools.app.settings import Settings, find_section_fault


def unreadable() -> type[Section]:
    """A table whose annotation names a type that does not exist."""
    names = {"__annotations__": {"days": "NoSuchType"}, "days": 1}
    return type(Section)("OwnSettings", (Section,), names, frozen=True)


def refuse_with(error: BaseException) -> Any:
    def test(value: Any) -> None:
        raise error

    return test


ROWS = list(iter_rows(Settings))


def section(setting: Setting, kind: Any = str, default: Any = "x") -> type[Section]:
    """A table with one setting, ``days``."""
    names = {"__annotations__": {"days": Annotated[kind, setting]}, "days": default}
    return type(Section)("OwnSettings", (Section,), names, frozen=True)


class WithoutSetting(Section, frozen=True):
    days: int = 1


class WithOtherNames(Section, frozen=True, rename="upper"):
    days: Annotated[int, Setting("any", "Days")] = 1


class WithFaultyValues(Section, frozen=True):
    days: Annotated[int, Setting("any", "Days")] = 1

    def __post_init__(self) -> None:
        raise KeyError(self.days)


class ThatExits(Section, frozen=True):
    days: Annotated[int, Setting("any", "Days")] = 1

    def __post_init__(self) -> None:
        raise SystemExit(self.days)


class WithOneVariableTwice(Section, frozen=True):
    days: Annotated[int, Setting("any", "Days", env="MLX_TOOLS_MOON")] = 1
    weeks: Annotated[int, Setting("any", "Weeks", env="MLX_TOOLS_MOON")] = 1


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
        ("moon", WithOneVariableTwice, "sets already"),
        ("moon", WithOtherNames, "cannot be read"),
        ("moon", ThatExits, "cannot be read: SystemExit: 1"),
        ("moon", WithFaultyValues, "cannot be read"),
        ("profiles", section(Setting("any", "Days")), "there is such a table already"),
        (7, section(Setting("any", "Days")), "no name of a table"),
        ("moon\n", section(Setting("any", "Days")), "no name of a table"),
        ("moon", 7, "this is no Section"),
        ("moon", WithoutSetting, "days has no Setting"),
        ("moon", unreadable(), "cannot be read"),
        ("moon", section(Setting("nevver", "Days")), "its Setting is wrong"),  # type: ignore[arg-type]
        ("moon", section(Setting("any", 7)), "its Setting is wrong"),  # type: ignore[arg-type]
        ("moon", section(Setting("any", "Days", test=7)), "no function"),  # type: ignore[arg-type]
        ("moon", section(Setting("any", "D", option="days")), "no option"),
        ("moon", section(Setting("any", "D", env="HOME")), "begin with MLX_TOOLS_"),
        ("moon", section(Setting("allow", "D"), tuple[str, ...], ()), "allowed tools only"),
        ("moon", section(Setting("lower", "D")), "does not fit"),
        ("moon", section(Setting("stricter", "D")), "does not fit"),
        ("moon", section(Setting("only_true", "D")), "does not fit"),
        ("moon", section(Setting("add", "D")), "does not fit"),
        ("moon", section(Setting("any", "D"), bytes, b""), "no type"),
        ("moon", section(Setting("any", "D"), list[str], []), "no type"),
        ("moon", section(Setting("any", "D"), Literal[1, 2], 1), "no type"),
        ("moon", section(Setting("any", "D"), Literal["a", "b"], "c"), "default 'c' is not"),
        ("moon", section(Setting("any", "D"), int, "7"), "default '7' is not"),
        ("moon", section(Setting("any", "D"), int, None), "default None is not"),
        ("moon", section(Setting("any", "D", test=refuse_with(KeyError()))), "is not allowed"),
        ("moon", section(Setting("any", "D"), int | None, None), None),
        ("moon", section(Setting("stricter", "D"), Literal["a", "b"], "b"), None),
        ("moon", section(Setting("lower", "D"), float, 1.5), None),
    ],
)
def test_a_table_of_a_plugin_is_checked_and_takes_nothing_of_the_core(
    name: Any, table: Any, fault: str | None
) -> None:
    found = find_section_fault(name, table, ROWS)
    assert found is None if fault is None else fault in str(found)


def test_a_project_may_not_set_what_has_an_unknown_rule() -> None:
    setting = Setting("nevver", "Days")  # type: ignore[arg-type]
    row = SettingRow("moon.days", str, setting)
    assert "must not set" in str(find_fault(row, "x", {}))


def test_any_exception_of_a_test_refuses_the_value() -> None:
    row = SettingRow("moon.days", str, Setting("any", "Days", test=refuse_with(KeyError("x"))))
    with pytest.raises(ValueError):
        row.check("x")
