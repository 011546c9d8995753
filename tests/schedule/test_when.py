"""Times of jobs: the grammar of their texts, cron, intervals, changed clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import UsageError
from mlx_tools.plugins.schedule.when import (
    SHORTHANDS,
    Schedule,
    counts_from_now,
    find_next_time,
    normalize_cron,
    parse_when,
)
from mlx_tools.toolbox import find_local_zone, find_zone
from tests.tables import table

BERLIN = "Europe/Berlin"
NOW = datetime(2026, 11, 22, 2, 30, tzinfo=UTC)  # a Sunday, 3:30 in Berlin

ZONES = (
    *(BERLIN, "America/New_York", "Asia/Kolkata", "Africa/Cairo", "America/Santiago", "UTC"),
    *("Asia/Beirut", "Pacific/Auckland", "America/Havana", "Europe/Lisbon"),
    *("Australia/Lord_Howe", "Antarctica/Troll", "Africa/Casablanca", "Asia/Gaza"),
)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- the grammar --------------------------------------------------------------------------------


@table(
    ("text", "at"),
    [
        ("2026-12-24 18:00", "2026-12-24 17:00"),
        ("2026-12-24T18:00:05", "2026-12-24 17:00:05"),
        ("2026-12-24T18:00:00.000Z", "2026-12-24 18:00"),
        ("2026-12-24T18:00:00.001+0100", "2026-12-24 17:00:01"),
        ("2026-12-24 18:00+05:30", "2026-12-24 12:30"),
        *(("in 2 hours", "2026-11-22 04:30"), ("In  an   hour", "2026-11-22 03:30")),
        *(("in a week", "2026-11-29 02:30"), ("today at 11pm", "2026-11-22 22:00")),
        *(("wed, 6 pm", "2026-11-25 17:00"), ("on 2026-12-24 at 9pm", "2026-12-24 20:00")),
        *(("tomorrow 9:00", "2026-11-23 08:00"), ("tomorrow at 12:15 am", "2026-11-22 23:15")),
        *(("3:30", "2026-11-23 02:30"), ("monday at 18:00", "2026-11-23 17:00")),
        ("on Sunday 3:00", "2026-11-29 02:00"),
    ],
)
def test_a_time_is_read_once(text: str, at: str) -> None:
    when = parse_when(text, BERLIN, NOW)
    assert when == Schedule(BERLIN, run_at=utc(at)) and when.next_after(NOW) == utc(at)
    assert when.next_after(utc(at)) is None


def test_a_time_is_never_early() -> None:
    now = NOW + timedelta(microseconds=1)
    assert parse_when("in 1 minute", BERLIN, now).run_at == NOW + timedelta(seconds=61)


@table(
    ("text", "cron"),
    [
        ("0-0/5 0 1 Jan,feb-mar sun", "0-0/5 0 1 1,2-3 0"),
        ("*/15  9-17  1,15 jan-jun  *", "*/15 9-17 1,15 1-6 *"),
        ("0 9 * * fri-sun", "0 9 * * 5-7"),
        ("5/20 9 1 december *", "5/20 9 1 12 *"),
        *SHORTHANDS.items(),
        ("every 15 minutes", "*/15 * * * *"),
        ("every 6 hours", "0 */6 * * *"),
        ("Every weekday at 8:30", "30 8 * * 1-5"),
        ("every monday and thursday at 18:00", "0 18 * * 1,4"),
        ("every sunday, tuesday, and friday at 0:00", "0 0 * * 0,2,5"),
        ("daily at 9pm", "0 21 * * *"),
    ],
)
def test_a_repeated_time_is_cron(text: str, cron: str) -> None:
    assert parse_when(text, BERLIN, NOW) == Schedule(BERLIN, cron=cron)


@table(
    ("text", "said"),
    [
        *(("", "not understood"), ("soon", "every weekday at 8:30")),
        *(("every monday", "not understood"), ("at 5", "not understood")),
        *(("every 2 days at 9:00", "not understood"), ("next monday 9:00", "not understood")),
        ("24.12.2026 18:00", "2030-01-31"),
        ("2026-12-24 18:00 Europe/Berlin", "not understood"),
        *(("in 2 hours and", "not understood"), ("tomorrow 9", "not understood")),
        *(("2027-02-29 10:00", "no date"), ("24:00", "no date"), ("13pm", "no date")),
        *(("2020-01-01 10:00", "is past"), ("today 3:30", "is past")),
        ("9999-12-31 23:59Z", "too far ahead"),
        ("every 7 minutes", "does not divide an hour"),
        *(("every 5 hours", "does not divide a day"), ("@reboot", "@daily")),
        *(("60 * * * *", "no minute"), ("* 24 * * *", "no hour")),
        *(("* * * * 8", "no day of the week"), ("* * mon * *", "no day of the month")),
        *(("001 * * * *", "no minute"), ("* * * *", "has 4")),
        *(("0 0 * * 5#2", "no day of the week"), ("*/0 * * * *", "no minute")),
        *(("0 0 30 2 *", "there is no day"), ("* * * * * *", "has 6")),
        *(("x" * 10_000, "not understood"), ("in 9999 weeks" * 2, "not understood")),
        *(("9:00\n30 8 * * *", "not understood"), ("２０:００", "not understood")),
    ],
)
def test_anything_else_is_an_error_that_helps(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_when(text, BERLIN, NOW)
    assert said in str(caught.value) and len(str(caught.value)) < 500


def test_only_what_counts_from_now_is_another_time_whenever_it_is_said() -> None:
    assert counts_from_now("in an hour") and counts_from_now("In 2  days")
    assert not counts_from_now("tomorrow at 9:00") and not counts_from_now("9:00")


WORDS = (
    *("every", "in", "at", "on", "day", "days", "monday", "and", ",", "9:00", "25:99", "am"),
    *("noon", "tomorrow", "2", "99", "hours", "minutes", "weekday", "*", "*/5", "1-5", "@daily"),
    *("2026-12-24", "18:00", "0", "31", "feb", "utc", "Asia/Tokyo", "mondays", "from now", "h"),
)


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join)))
def test_any_text_is_a_time_to_come_or_an_error(text: str) -> None:
    try:
        when = parse_when(text, BERLIN, NOW)
    except UsageError:
        return
    due = when.next_after(NOW)
    assert due is not None and due > NOW and due.utcoffset() == timedelta(0)


# --- changed clocks -----------------------------------------------------------------------------


@table(
    ("text", "after", "due"),
    [
        # clocks go from 2:00 to 3:00 on 2026-03-29, and from 3:00 to 2:00 on 2026-10-25
        ("30 2 * * *", "2026-03-28 12:00", "2026-03-29 01:00"),
        ("0 3 * * *", "2026-03-28 12:00", "2026-03-29 01:00"),
        ("30 2 * * *", "2026-03-29 01:00", "2026-03-30 00:30"),
        ("30 2 * * *", "2026-10-24 12:00", "2026-10-25 00:30"),
        ("30 2 * * *", "2026-10-25 00:30", "2026-10-26 01:30"),
        ("30 2 * * *", "2026-10-25 00:45", "2026-10-26 01:30"),
        ("*/30 * * * *", "2026-10-25 00:30", "2026-10-25 01:00"),
        ("0 * * * *", "2026-10-25 00:00", "2026-10-25 01:00"),
        ("0 * * * *", "2026-03-29 00:00", "2026-03-29 01:00"),
        ("0 0 29 2 *", "2026-03-01 00:00", "2028-02-28 23:00"),
        ("0 0 29 2 */7", "2033-01-01 00:00", "2060-02-28 23:00"),
        ("59 23 31 12 *", "2026-12-31 22:59", "2027-12-31 22:59"),
        # of two kinds of days either will do, unless one begins with a star
        ("0 12 13 * 5", "2026-11-22 00:00", "2026-11-27 11:00"),
        ("0 12 13 * 5", "2026-12-11 12:00", "2026-12-13 11:00"),
        ("0 12 */13 * 5", "2026-11-22 00:00", "2026-11-27 11:00"),
        ("0 12 1,14 * *", "2026-11-22 00:00", "2026-12-01 11:00"),
    ],
)
def test_cron_in_the_hour_that_is_left_out_or_shown_twice(text: str, after: str, due: str) -> None:
    assert Schedule(BERLIN, cron=normalize_cron(text)).next_after(utc(after)) == utc(due)


@pytest.mark.parametrize(
    ("zone", "text", "after", "dues"),
    [
        # by half an hour: from 2:00 back to 1:30, and from 2:00 on to 2:30
        (
            "Australia/Lord_Howe",
            "*/30 1 * * *",
            "2026-04-04 13:30",
            ("2026-04-04 14:00", "2026-04-04 14:30", "2026-04-04 15:00", "2026-04-05 14:30"),
        ),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03 12:00", ("2026-10-03 15:30",)),
        ("Australia/Lord_Howe", "*/30 2 * * *", "2026-10-03 12:00", ("2026-10-03 15:30",)),
        # by two hours: from 1:00 on to 3:00
        ("Antarctica/Troll", "30 1,2 * * *", "2026-03-28 12:00", ("2026-03-29 01:00",)),
        # at midnight: it comes right after the gap
        ("America/Havana", "15 0 * * *", "2026-03-07 12:00", ("2026-03-08 05:00",)),
        # from a minute past midnight back into the day before
        (
            *("America/St_Johns", "*/30 0,23 * * *", "2010-11-07 02:00"),
            ("2010-11-07 02:30", "2010-11-07 03:00", "2010-11-07 03:30"),
        ),
        # a whole day that never was
        ("Pacific/Apia", "0 12 30 12 *", "2011-12-29 12:00", ("2011-12-30 10:00",)),
    ],
)
def test_cron_where_clocks_are_changed_in_other_ways(
    zone: str, text: str, after: str, dues: tuple[str, ...]
) -> None:
    when, moment, found = Schedule(zone, cron=normalize_cron(text)), utc(after), []
    for _ in dues:
        moment = when.next_after(moment) or moment
        found.append(moment)
    assert found == [utc(due) for due in dues]


@pytest.mark.parametrize(
    ("text", "now", "at"),
    [
        ("2027-03-28 02:30", "2026-11-22 12:00", "2027-03-28 01:30"),  # 3:30 on the clock
        ("tomorrow 2:30", "2027-03-27 12:00", "2027-03-28 01:30"),
        ("tomorrow 2:30", "2026-10-24 12:00", "2026-10-25 00:30"),  # the first of two
        ("in 1 day", "2026-10-24 12:00", "2026-10-25 13:00"),  # 25 hours later
        ("in 24 hours", "2026-10-24 12:00", "2026-10-25 12:00"),
    ],
)
def test_a_time_of_one_day_when_clocks_are_changed(text: str, now: str, at: str) -> None:
    assert parse_when(text, BERLIN, utc(now)).run_at == utc(at)


def parsed(field: str, least: int, most: int) -> set[int]:
    """The numbers of a cron field: an oracle for what the tests below write."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, dash, high = span.partition("-")
        first = least if span == "*" else int(low)
        last = int(high) if dash else most if span == "*" or step else first
        found |= set(range(first, last + 1, int(step or 1)))
    return found


def by_hand(text: str, zone: ZoneInfo, after: datetime, days: int) -> datetime | None:
    """The next time, found minute by minute by what cron(8) says."""
    minute, hour, day, month, week = text.split(" ")
    minutes, hours = parsed(minute, 0, 59), parsed(hour, 0, 23)
    month_days, months = parsed(day, 1, 31), parsed(month, 1, 12)
    week_days = {n % 7 for n in parsed(week, 0, 7)}
    both = day.startswith("*") or week.startswith("*")
    face = minute.startswith("*") or hour.startswith("*")

    def means(local: datetime) -> bool:
        right = [local.day in month_days, (local.weekday() + 1) % 7 in week_days]
        fits = local.minute in minutes and local.hour in hours and local.month in months
        return fits and (all(right) if both else any(right))

    start = after.replace(second=0, microsecond=0) - timedelta(days=1)
    seen: set[datetime] = set()
    shown = start.astimezone(zone).replace(tzinfo=None)
    for number in range(1, (days + 1) * 1440):
        moment = start + timedelta(minutes=number)
        local = moment.astimezone(zone).replace(tzinfo=None)
        due = means(local) if face else False
        if not face:
            # what the clock's face shows for the first time, and what it went past without showing
            passed = local - shown
            steps = [
                shown + timedelta(minutes=n + 1) for n in range(int(passed.total_seconds()) // 60)
            ]
            due = any(step not in seen and means(step) for step in steps)
            seen.update(steps)
        shown = max(shown, local)
        if due and moment > after:
            return moment
    return None


def fields(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.tuples(st.one_of(st.just("*"), span), st.integers(1, most)).map(
        "{0[0]}/{0[1]}".format
    )
    one = st.one_of(number.map(str), span, step)
    return st.one_of(st.just("*"), one, st.lists(one, min_size=1, max_size=3).map(",".join))


CRON = st.tuples(
    fields(0, 59),
    fields(0, 23),
    st.one_of(st.just("*"), fields(1, 31)),
    st.one_of(st.just("*"), fields(1, 12)),
    st.one_of(st.just("*"), fields(0, 7)),
).map(" ".join)
MOMENT = st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1)).map(
    lambda t: t.replace(tzinfo=UTC)
)
CHANGES = (
    *("2026-03-29 01:00", "2026-10-25 01:00", "2026-03-08 07:00", "2026-11-01 06:00"),
    *("2026-04-23 22:00", "2026-10-29 21:00", "2026-09-06 04:00", "2026-04-05 03:00"),
    *("2026-04-04 15:00", "2026-10-03 15:30", "2026-02-15 02:00", "2026-03-22 02:00"),
)
NEAR = st.tuples(st.sampled_from(CHANGES), st.integers(-180, 180)).map(
    lambda pair: utc(pair[0]) + timedelta(minutes=pair[1])
)


@given(text=CRON, zone=st.sampled_from(ZONES), after=st.one_of(NEAR, MOMENT))
def test_the_next_time_is_the_first_that_a_clock_shows(
    text: str, zone: str, after: datetime
) -> None:
    try:
        expression = normalize_cron(text)
    except UsageError:
        return
    found = find_next_time(expression, find_zone(zone), after)
    wanted = by_hand(text, find_zone(zone), after, days=4)
    if wanted is None:
        assert found is None or found > after + timedelta(days=4) - timedelta(minutes=2)
    else:
        assert found == wanted


# --- zones --------------------------------------------------------------------------------------


def test_a_zone_has_its_iana_name_whatever_its_case() -> None:
    assert find_zone(" europe/berlin ").key == BERLIN and find_zone("America/new york").key
    assert find_zone(find_local_zone()).key == find_local_zone()


def test_a_city_alone_is_no_zone_of_a_job() -> None:
    with pytest.raises(UsageError, match="Europe/Berlin"):
        find_zone("Berlin")
