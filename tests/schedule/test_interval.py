"""Every so many days or weeks: from which day it is counted, and what no clock or month shifts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.toolbox.schedule import Interval, When, parse_when

BERLIN = "Europe/Berlin"
NOW = datetime(2026, 11, 22, 2, 30, tzinfo=UTC)  # a Sunday, 3:30 in Berlin
ZONES = (BERLIN, "America/New_York", "Australia/Lord_Howe", "America/Havana", "Asia/Kolkata")


def interval(days: int, start: str, time: str) -> When:
    return When(
        BERLIN,
        interval=Interval(days, date.fromisoformat(start), clock_time.fromisoformat(time)),
    )


def dues(when: When, after: datetime, count: int) -> list[datetime]:
    """The next times, in UTC."""

    def following() -> Iterator[datetime]:
        moment: datetime | None = after
        while (moment := moment and when.next_after(moment)) is not None:
            yield moment

    return list(islice(following(), count))


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("every 2 days at 9:00", interval(2, "2026-11-22", "09:00")),
        ("every 2 days at 3:30", interval(2, "2026-11-23", "03:30")),
        ("Every other  day 6pm", interval(2, "2026-11-22", "18:00")),
        ("each second day at noon", interval(2, "2026-11-22", "12:00")),
        ("every third day at midnight", interval(3, "2026-11-23", "00:00")),
        ("every ten days at 9", interval(10, "2026-11-22", "09:00")),
        ("at 9:00 every 3 days", interval(3, "2026-11-22", "09:00")),
        ("every 1 day at 9:00", interval(1, "2026-11-22", "09:00")),
        ("every 2 weeks at 9:00", interval(14, "2026-11-22", "09:00")),
        ("every other week on monday at 9:00", interval(14, "2026-11-23", "09:00")),
        ("every two weeks on sun, 9:00", interval(14, "2026-11-22", "09:00")),
        ("every two weeks on sun, 3:00", interval(14, "2026-11-29", "03:00")),
        ("every other friday at 8:30", interval(14, "2026-11-27", "08:30")),
        ("every 2 days at 9:00 from 2026-12-01", interval(2, "2026-12-01", "09:00")),
        ("every 2 days starting 2026-12-01 at 9:00", interval(2, "2026-12-01", "09:00")),
        ("at 9am every 2 days, starting on 2026-12-01", interval(2, "2026-12-01", "09:00")),
        ("every other monday at 9:00 from 2026-12-01", interval(14, "2026-12-07", "09:00")),
        ("every 2 days at 3:00 from today", interval(2, "2026-11-22", "03:00")),
        ("every 2 days at 9:00 starting tomorrow", interval(2, "2026-11-23", "09:00")),
        ("every 2 days at 3:00 from sunday", interval(2, "2026-11-29", "03:00")),
        ("every 2 days at 4:00 from sunday", interval(2, "2026-11-22", "04:00")),
        ("every 3 days, starting on wed, at 9:00", interval(3, "2026-11-25", "09:00")),
        ("every other monday at 9 from tuesday", interval(14, "2026-11-30", "09:00")),
        ("every 2 days at 9:00 from 2020-01-01", interval(2, "2020-01-01", "09:00")),
    ],
)
def test_an_interval_is_counted_from_a_day(text: str, when: When) -> None:
    assert parse_when(text, BERLIN, NOW) == when
    assert When.from_json(when.to_json()) == when


def test_an_interval_may_say_its_zone() -> None:
    when = parse_when("every 2 days at 9:00 from 2026-12-01 Asia/Kolkata", BERLIN, NOW)
    assert when.next_after(NOW) == datetime(2026, 12, 1, 3, 30, tzinfo=UTC)
    assert str(when) == "every 2 days at 09:00 from 2026-12-01 (Asia/Kolkata)"


@pytest.mark.parametrize(
    ("days", "start", "time", "shown"),
    [
        # past the end of months, and a leap day
        (2, "2027-12-30", "09:00", ["12-30 08:00", "01-01 08:00", "01-03 08:00"]),
        (2, "2028-02-28", "09:00", ["02-28 08:00", "03-01 08:00", "03-03 08:00"]),
        (2, "2027-02-27", "09:00", ["02-27 08:00", "03-01 08:00", "03-03 08:00"]),
        # clocks go from 2:00 to 3:00 on 2027-03-28, and from 3:00 to 2:00 on 2027-10-31
        (2, "2027-03-26", "09:00", ["03-26 08:00", "03-28 07:00", "03-30 07:00"]),
        (2, "2027-03-26", "02:30", ["03-26 01:30", "03-28 01:00", "03-30 00:30"]),
        (14, "2027-10-17", "02:30", ["10-17 00:30", "10-31 00:30", "11-14 01:30"]),
    ],
)
def test_months_and_clocks_shift_nothing(
    days: int, start: str, time: str, shown: list[str]
) -> None:
    when = interval(days, start, time)
    before = datetime.fromisoformat(start).replace(tzinfo=UTC) - timedelta(days=9)
    assert [f"{due:%m-%d %H:%M}" for due in dues(when, before, 3)] == shown


def test_a_date_that_never_was_is_due_right_after_it() -> None:
    when = When("Pacific/Apia", interval=Interval(2, date(2011, 12, 28), clock_time(12)))
    found = dues(when, datetime(2011, 12, 28, tzinfo=UTC), 3)
    assert [f"{due:%m-%d %H:%M}" for due in found] == ["12-28 22:00", "12-30 10:00", "12-31 22:00"]


def test_the_calendar_ends() -> None:
    assert (
        interval(999, "9998-01-01", "09:00").next_after(datetime(9999, 12, 1, tzinfo=UTC)) is None
    )


MOMENT = st.datetimes(datetime(2024, 1, 1), datetime(2029, 1, 1)).map(
    lambda time: time.replace(tzinfo=UTC)
)


@given(
    days=st.integers(1, 40),
    start=st.dates(date(2023, 1, 1), date(2028, 1, 1)),
    time=st.times().map(lambda time: time.replace(second=0, microsecond=0)),
    zone=st.sampled_from(ZONES),
    after=MOMENT,
)
def test_it_is_due_on_each_such_day_as_a_daily_job_would_be(
    days: int, start: date, time: clock_time, zone: str, after: datetime
) -> None:
    found = dues(When(zone, interval=Interval(days, start, time)), after, 4)
    daily = When(zone, cron=f"{time.minute} {time.hour} * * *")
    assert [daily.next_after(due - timedelta(seconds=1)) for due in found] == found
    assert found[0] > after and found == sorted(set(found))
    for earlier, later in pairwise(found):
        assert abs((later - earlier) - timedelta(days=days)) <= timedelta(hours=1)
    first = datetime.combine(start, time, UTC)
    assert found[0] - max(after, first) <= timedelta(days=days, hours=26)
