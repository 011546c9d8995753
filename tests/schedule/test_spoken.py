"""When, in the words that people use: read as what is meant, or refused with what it lacks."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.schedule import parse_when
from mlx_tools.toolbox.schedule.when import counts_from_now

BERLIN = "Europe/Berlin"
NOW = datetime(2026, 11, 22, 14, 30, tzinfo=UTC)  # a Sunday, 15:30 in Berlin


def local(text: str, now: datetime = NOW) -> str:
    """When a text means once, by the clock in Berlin."""
    at = parse_when(text, BERLIN, now).at
    assert at is not None
    return f"{at.astimezone(ZoneInfo(BERLIN)):%m-%d %H:%M}"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("tonight at 8", "11-22 20:00"),
        ("tonight at 5", "11-22 17:00"),
        ("tonight 20:00", "11-22 20:00"),
        ("tonight at 11:30pm", "11-22 23:30"),
        ("tonight at midnight", "11-23 00:00"),
        ("midnight tonight", "11-23 00:00"),
        ("tonight at 12", "11-23 00:00"),
        ("this evening at 7", "11-22 19:00"),
        ("this afternoon at 4", "11-22 16:00"),
        ("tomorrow morning at 9", "11-23 09:00"),
        ("9 tomorrow morning", "11-23 09:00"),
        ("tomorrow evening at 7:30", "11-23 19:30"),
        ("tomorrow night at 11", "11-23 23:00"),
        ("friday morning at 9", "11-27 09:00"),
        ("friday night at 11", "11-27 23:00"),
        ("tomorrow at 8 in the morning", "11-23 08:00"),
        ("at 12:30 in the afternoon", "11-23 12:30"),
        ("8 in the evening", "11-22 20:00"),
        ("tomorrow at 5 in the afternoon", "11-23 17:00"),
        ("5 in the afternoon tomorrow", "11-23 17:00"),
        ("at 8 o'clock tomorrow", "11-23 08:00"),
        ("tomorrow at 8 o\u2019clock", "11-23 08:00"),
        ("8 o'clock pm", "11-22 20:00"),
        ("20 o'clock", "11-22 20:00"),
        ("tomorrow at half past eight", "11-23 08:30"),
        ("quarter past 5pm", "11-22 17:15"),
        ("tomorrow at a quarter to nine", "11-23 08:45"),
        ("tomorrow at ten to nine", "11-23 08:50"),
        ("tomorrow at quarter to 12 pm", "11-23 11:45"),
        ("tomorrow at quarter to 1pm", "11-23 12:45"),
        ("tomorrow at quarter to 12 am", "11-23 23:45"),
        ("tomorrow at eight thirty", "11-23 08:30"),
        ("eight pm", "11-22 20:00"),
        ("tomorrow at 20.30", "11-23 20:30"),
        ("today at 5", "11-22 17:00"),
        ("tomorrow at 12", "11-23 12:00"),
        ("tomorrow at midday", "11-23 12:00"),
        ("the day after tomorrow at 9", "11-24 09:00"),
        ("in 3 days at 9am", "11-25 09:00"),
        ("a week from today at 9", "11-29 09:00"),
        ("in two weeks at 9", "12-06 09:00"),
        ("this friday at 9", "11-27 09:00"),
        ("on the 3rd at 5pm", "12-03 17:00"),
        ("on the 30th at 5pm", "11-30 17:00"),
        ("5pm on the 3rd", "12-03 17:00"),
        ("the 3rd of December at 17:00", "12-03 17:00"),
        ("at 5pm on 3 dec", "12-03 17:00"),
        ("Dec. 3rd, 2026 at 5pm", "12-03 17:00"),
        ("friday, december 4 at 9", "12-04 09:00"),
        ("january 5 at 9", "01-05 09:00"),
        ("2026/12/03 17:00", "12-03 17:00"),
        ("Mon. 9 am", "11-23 09:00"),
        ("tomorrow at 9.", "11-23 09:00"),
        ("tomorrow at 8 p.m", "11-23 20:00"),
        ("tomorrow at 8 P.M. ", "11-23 20:00"),
        ("at 8 in the evening Asia/Tokyo", "11-23 12:00"),
        ("on May 5th, 2027, at 9", "05-05 09:00"),
        ("in an hour and a half", "11-22 17:00"),
        ("in one and a half hours", "11-22 17:00"),
        ("in 1.5 hours", "11-22 17:00"),
        ("in 2 and a half hours", "11-22 18:00"),
        ("in a quarter of an hour", "11-22 15:45"),
        ("in three quarters of an hour", "11-22 16:15"),
        ("in fifteen minutes", "11-22 15:45"),
        ("in forty-five minutes", "11-22 16:15"),
        ("in 2 hours' time", "11-22 17:30"),
        ("in 2 hours from now", "11-22 17:30"),
    ],
)
def test_a_time_is_read_as_a_person_means_it(text: str, at: str) -> None:
    assert local(text) == at


@pytest.mark.parametrize(
    ("text", "cron"),
    [
        ("every morning at 8", "0 8 * * *"),
        ("each evening at 6", "0 18 * * *"),
        ("every night at 11", "0 23 * * *"),
        ("nightly at 2", "0 2 * * *"),
        ("every night at midnight", "0 0 * * *"),
        ("every weekday morning at 7", "0 7 * * 1-5"),
        ("every monday morning at 7:30", "30 7 * * 1"),
        ("first of every month at 9am", "0 9 1 * *"),
        ("on the 15th of each month at 8:30", "30 8 15 * *"),
        ("monthly on the 1st at 9", "0 9 1 * *"),
        ("every month on the 28th at noon", "0 12 28 * *"),
        ("at 9 on the first of every month", "0 9 1 * *"),
        ("every year on december 24 at 18:00", "0 18 24 12 *"),
        ("annually on 1 january at 9", "0 9 1 1 *"),
        ("every december 24th at 18:00", "0 18 24 12 *"),
        ("weekly on mondays at 9", "0 9 * * 1"),
        ("every week on monday and friday at 9", "0 9 * * 1,5"),
        ("once a week on tue at 9", "0 9 * * 2"),
        ("once a day at 9", "0 9 * * *"),
        ("every working day at 9", "0 9 * * 1-5"),
        ("every two hours", "0 */2 * * *"),
        ("every other hour", "0 */2 * * *"),
        ("every half hour", "*/30 * * * *"),
        ("every quarter of an hour", "*/15 * * * *"),
        ("every twenty minutes", "*/20 * * * *"),
        ("every 60 minutes", "0 * * * *"),
    ],
)
def test_what_comes_again_and_again_is_cron(text: str, cron: str) -> None:
    assert parse_when(text, BERLIN, NOW).cron == cron


@pytest.mark.parametrize(
    ("text", "days", "first"),
    [
        ("fortnightly on monday at 9", 14, "11-23"),
        ("every fortnight on monday at 9", 14, "11-23"),
        ("every 3rd day at 9", 3, "11-23"),
        ("every 2 days at half past eight from friday", 2, "11-27"),
    ],
)
def test_what_comes_every_so_many_days_is_an_interval(text: str, days: int, first: str) -> None:
    interval = parse_when(text, BERLIN, NOW).interval
    assert interval is not None and (interval.days, f"{interval.start:%m-%d}") == (days, first)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("at 8", "8:00 or 20:00"),
        ("8 o'clock", "8:00 or 20:00"),
        ("half past eight", "8:30 or 20:30"),
        ("at 12", "0:00 or 12:00"),
        ("tomorrow at 5", "5:00 or 17:00"),
        ("every weekday at 5", "5:00 or 17:00"),
        ("every 2 days at 3 from monday", "3:00 or 15:00"),
        ("tomorrow at midnight", "begins or where it ends"),
        ("midnight on friday", "begins or where it ends"),
        ("tonight at 2", "two nights"),
        ("friday night at 1", "two nights"),
        ("tomorrow morning at 9pm", "not in the morning"),
        ("this evening at 7am", "not in the evening"),
        ("tonight at noon", "not in the night"),
        ("tomorrow morning at 12", "not in the morning"),
        ("tomorrow afternoon at 13pm", "no date and time"),
        ("tonight", "write tonight at 20:00"),
        ("tomorrow morning", "write tomorrow morning at 9:00"),
        ("first of every month", "no time of day"),
        ("on the 3rd", "no time of day"),
        ("next Friday", "two days"),
        ("next friday at 9", "write friday at 9"),
        ("monday next week at 9", "several days"),
        ("this sunday at 17:00", "said on that day"),
        ("on the 22nd at 17:00", "said on that day"),
        ("on the 31st at 9", "no such day"),
        ("31st of every month at 9", "not every month"),
        ("the last day of every month at 9", "cannot be counted out"),
        ("first monday of every month at 9", "cannot be counted out"),
        ("every first monday of the month at 9", "cannot be counted out"),
        ("november 20 at 9", "may be past"),
        ("monday, december 4 at 9", "no monday"),
        ("30 february at 9", "no date and time"),
        ("on 12/03/2026 at 5pm", "2030-01-31"),
        ("5/6 at 9am", "2030-01-31"),
        ("every third monday at 9", "two things"),
        ("monday to friday at 9", "write every monday to friday at 9"),
        ("2 hours", "write in 2 hours"),
        ("every day at 9:00 and 17:00", "several times"),
        ("every 90 minutes", "does not divide"),
        ("in 1 hour and 5", "not understood"),
        ("in 1.3 hours", "not understood"),
        ("by 5pm tomorrow", "not understood"),
        ("every day 5 to 9", "not understood"),
        ("of tonight, first midnight", "not understood"),
        ("the 5 at 18:30", "not understood"),
    ],
)
def test_what_may_mean_two_times_or_none_is_refused_with_what_helps(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_when(text, BERLIN, NOW)
    assert said in str(caught.value)


def test_an_hour_by_itself_is_the_one_that_comes_first() -> None:
    morning, night = NOW.replace(hour=6), NOW.replace(hour=20)  # 7:00 and 21:00 in Berlin
    assert local("at 8", morning) == "11-22 08:00" and local("at 8", night) == "11-23 08:00"
    assert local("at 2", night) == "11-23 02:00"
    with pytest.raises(UsageError, match="5:00 or 17:00"):
        parse_when("at 5", BERLIN, night)


def test_only_what_counts_from_now_is_another_time_whenever_it_is_said() -> None:
    assert counts_from_now("in an hour and a half") and counts_from_now("in 2 hours' time")
    assert not counts_from_now("in 3 days at 9am") and not counts_from_now("tomorrow at 9")


DAYS = st.sampled_from(("tomorrow", "on friday", "2026-12-24", "dec 24", "every weekday", "daily"))
HALVES = st.sampled_from((("am", "in the morning"), ("pm", "in the afternoon"), ("pm", "at night")))


@given(DAYS, st.integers(0, 59), st.data())
def test_all_ways_to_say_a_time_mean_the_same(day: str, minute: int, data: st.DataObject) -> None:
    half, part = data.draw(HALVES)
    hours = {"in the morning": (1, 11), "in the afternoon": (1, 6), "at night": (6, 11)}[part]
    hour = data.draw(st.integers(*hours))
    face = f"{hour + 12 * (half == 'pm')}:{minute:02}"
    wanted = parse_when(f"{day} {face}", BERLIN, NOW)
    for said in (f"{hour}:{minute:02} {half}", f"{hour}.{minute:02}{half}"):
        assert parse_when(f"{day} at {said}", BERLIN, NOW) == wanted
        assert parse_when(f"{said} {day}", BERLIN, NOW) == wanted
    assert parse_when(f"{day} at {hour}:{minute:02} {part}", BERLIN, NOW) == wanted
    assert (wanted.next_after(NOW) or NOW) > NOW
