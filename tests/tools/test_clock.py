"""The clock, with a clock of our own."""

from __future__ import annotations

import asyncio
import zoneinfo
from collections.abc import Callable, Set
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.plugins.basics.clock import clock
from mlx_tools.tools import ToolError
from tests.tables import table

NOW = datetime(2026, 11, 21, 23, 30, 5, 123456, tzinfo=UTC)


def at(names: Callable[[], Set[str]] = zoneinfo.available_timezones, **arguments: Any) -> str:
    made = clock(lambda: NOW, names)
    found: str = asyncio.run(made.call(arguments))
    return found


@pytest.mark.parametrize(
    ("timezone", "expected"),
    [
        ("UTC", "2026-11-21T23:30:05+00:00 Saturday"),
        ("Z", "2026-11-21T23:30:05+00:00 Saturday"),
        ("Europe/Berlin", "2026-11-22T00:30:05+01:00 Sunday"),
        ("europe/berlin", "2026-11-22T00:30:05+01:00 Sunday"),
        ("America/New York", "2026-11-21T18:30:05-05:00 Saturday"),
        (" Asia/Kolkata ", "2026-11-22T05:00:05+05:30 Sunday"),
        ("+02:00", "2026-11-22T01:30:05+02:00 Sunday"),
        ("UTC-3", "2026-11-21T20:30:05-03:00 Saturday"),
        ("GMT+0530", "2026-11-22T05:00:05+05:30 Sunday"),
    ],
)
def test_the_time_in_a_zone_with_its_weekday(timezone: str, expected: str) -> None:
    assert at(timezone=timezone) == expected


def test_a_city_that_one_zone_alone_is_named_after_is_that_zone() -> None:
    assert at(timezone="tokyo") == at(timezone="Asia/Tokyo")
    assert at(timezone="New York") == at(timezone="America/New_York")


def test_local_time_is_the_systems_or_what_is_given_and_its_clock_the_real_one() -> None:
    local = NOW.astimezone()
    assert at().startswith(local.isoformat(timespec="seconds"))
    assert at(timezone="local") == at()
    zone = zoneinfo.ZoneInfo("Asia/Tokyo")
    text = asyncio.run(clock(lambda: NOW, local=zone).call({}))
    assert text == at(timezone="Asia/Tokyo")
    before = datetime.now(UTC).replace(microsecond=0)
    text = asyncio.run(clock().call({"timezone": "UTC"}))
    assert before <= datetime.fromisoformat(text.split()[0]) <= datetime.now(UTC)


@table(
    ("timezone", "hint"),
    [
        *(("Tokio", "Asia/Tokyo"), ("Louisville", "America/Louisville")),
        *(("Europe/Berln", "Europe/Berlin"), ("berln", "Europe/Berlin"), ("xyzzy", "such as")),
        *(("../../etc/passwd", "no time zone"), ("/etc/localtime", "no time zone")),
        *(("Europe", "no time zone"), ("a\0b", "no time zone"), ("+25", "14 hours")),
        *(("", "no time zone"), ("localtime", "such as"), ("x" * 10_000, "such as")),
        ("Ｕ\0TC", "such as"),
    ],
)
def test_an_unknown_zone_is_answered_with_close_ones(timezone: str, hint: str) -> None:
    with pytest.raises(ToolError, match=hint) as caught:
        at(timezone=timezone)
    assert len(str(caught.value)) < 300


def test_without_time_zone_data_it_says_what_is_missing_and_utc_works() -> None:
    def names() -> Set[str]:
        return set()

    with pytest.raises(ToolError, match="tzdata"):
        at(names, timezone="Europe/Berlin")
    assert at(names, timezone="UTC").endswith("+00:00 Saturday")
    assert at(names, timezone="+02:00").endswith("+02:00 Sunday")
    assert at(names)


@given(st.text(max_size=40))
def test_any_text_is_a_zone_or_an_error(text: str) -> None:
    try:
        assert at(timezone=text)
    except ToolError as error:
        assert str(error)
