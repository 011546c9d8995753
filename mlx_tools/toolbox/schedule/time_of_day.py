"""The time of day in people's words: *8 o'clock*, *half past eight*, *20.30*, *8* in the evening.

What may be one of two times is refused, with both. Every text here is in small letters, with one
space between its words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import time as clock_time
from typing import Final, Literal

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.schedule.phrases import NUMBERS, WEEKDAY

Part = Literal["", "morning", "afternoon", "evening", "night", "tonight", "nights"]
"""Which part of a day is named. ``nights`` are those of all days."""

_HOUR: Final = rf"\d{{1,2}}|{'|'.join(NUMBERS[1:])}"
_PAST: Final = {
    **dict.fromkeys(("half",), 30),
    **dict.fromkeys(("quarter", "a quarter"), 15),
    **dict.fromkeys(("five", "5"), 5),
    **dict.fromkeys(("ten", "10"), 10),
    **dict.fromkeys(("twenty", "20"), 20),
}
_FEW: Final = "5|10|20|five|ten|twenty"
_SAID: Final = {"": 0, "fifteen": 15, "thirty": 30, "forty-five": 45, "forty five": 45}
_HALF: Final = r"(?: ?(?P<half>[ap]m))?"

_FORMS: Final = tuple(
    re.compile(form, re.ASCII)
    for form in (
        r"(?:at )?(?P<name>noon|midnight)",
        rf"(?:at )?(?P<hour>\d{{1,2}}):(?P<minute>\d\d){_HALF}",
        r"(?:at )?(?P<hour>\d{1,2})\.(?P<minute>\d\d) ?(?P<half>[ap]m)",
        r"at (?P<hour>\d{1,2})\.(?P<minute>\d\d)",
        rf"(?:at )?(?P<shift>half|(?:a )?quarter|{_FEW}) (?P<way>past) (?P<spoken>{_HOUR}){_HALF}",
        rf"(?:at )?(?P<shift>(?:a )?quarter) (?P<way>to) (?P<spoken>{_HOUR}){_HALF}",
        rf"at (?P<shift>{_FEW}) (?P<way>to) (?P<spoken>{_HOUR}){_HALF}",
        rf"(?:at )?(?P<spoken>{_HOUR}) ?(?P<half>[ap]m)",
        rf"(?:at )?(?P<spoken>{_HOUR}) o'clock{_HALF}",
        rf"at (?P<spoken>{_HOUR})(?: (?P<rest>fifteen|thirty|forty[- ]five){_HALF})?",
    )
)
"""The forms of a time of day. ``spoken`` is an hour of whichever half of the day is meant."""

_NAMED: Final[tuple[Part, ...]] = ("morning", "afternoon", "evening")
_WORDS: Final[tuple[tuple[str, str, Part], ...]] = (
    (r"tonight", "today", "tonight"),
    (r"nightly|(?:every|each) night", "every day", "nights"),
    *((f"this {name}", "today", name) for name in _NAMED),
    *((f"(?:every|each) {name}", "every day", name) for name in _NAMED),
    *((f"in the {name}", "", name) for name in _NAMED),
    *((rf"(?P<day>tomorrow|weekday|{WEEKDAY}) {name}", r"\g<day>", name) for name in _NAMED),
    (rf"(?P<day>tomorrow|weekday|{WEEKDAY}) night", r"\g<day>", "night"),
    (r"at night", "", "night"),
)
_PARTS: Final = tuple(
    (re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.ASCII), instead, part)
    for pattern, instead, part in _WORDS
)
_NEAR: Final = timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day as it was said: an hour and minute, and what says which half of the day is
    meant. ``text`` are the words; ``name`` is *noon* or *midnight*."""

    text: str
    hour: int
    minute: int
    half: str = ""
    spoken: bool = False
    name: str = ""

    def either(self) -> tuple[clock_time, clock_time]:
        """Both times that an hour means which says no half of the day. Raises ValueError."""
        return clock_time(self.hour % 12, self.minute), clock_time(self.hour % 12 + 12, self.minute)

    @property
    def open(self) -> bool:
        """Whether it may be of either half of the day."""
        return self.spoken and not self.half and 1 <= self.hour <= 12


def part_of(said: str) -> tuple[str, Part]:
    """A text without the part of a day that it names, and that part."""
    for pattern, instead, part in _PARTS:
        found = pattern.search(said)
        if found is not None:
            said = f"{said[: found.start()]}{found.expand(instead)}{said[found.end() :]}"
            return " ".join(said.split()), part
    return said, ""


def clock_of(said: str, part: Part) -> tuple[str, Clock] | None:
    """A text without the time of day with which it begins or ends, and that; None where there is
    none. In a part of a day that is named a bare number is an hour."""
    words = said.split(" ")
    for size in range(min(6, len(words)), 0, -1):
        for start in (len(words) - size, 0):
            text = " ".join(words[start : start + size]).removesuffix(",")
            clock = _read(text) or (_read(f"at {text}") if part else None)
            if clock is not None:
                rest = " ".join((*words[:start], *words[start + size :]))
                return rest.strip(", "), clock
    return None


def _read(text: str) -> Clock | None:
    for form in _FORMS:
        found = form.fullmatch(text)
        if found is None:
            continue
        got = {name: value or "" for name, value in found.groupdict().items()}
        if name := got.get("name"):
            return Clock(text, 12 if name == "noon" else 0, 0, name=name)
        spoken = got.get("spoken", "")
        hour = _number(spoken or got["hour"])
        minute = int(got.get("minute") or _SAID[got.get("rest", "")])
        if shift := got.get("shift"):
            minute = _PAST[shift]
            if not 1 <= hour <= 12:
                raise ValueError(text)
            if got["way"] == "to":
                return _before(text, hour, 60 - minute, got["half"])
        return Clock(text, hour, minute, got.get("half", ""), spoken=bool(spoken))
    return None


def _before(text: str, hour: int, minute: int, half: str) -> Clock:
    """So many minutes past the hour before, as *ten to nine* is. Ten to noon is in the morning."""
    if hour == 12 and half:
        half = "am" if half == "pm" else "pm"
    return Clock(text, (hour - 2) % 12 + 1, minute, half, spoken=True)


def time_meant(clock: Clock, part: Part, day: str, now: datetime) -> tuple[clock_time, int]:
    """The time of day that is meant on a day, and how many days later than that day it is. Raises
    ValueError for one that there is not, `UsageError` for what may be two, or cannot be."""
    if part:
        return _in_part(clock, part)
    if clock.name:
        return clock_time(clock.hour), 0
    if clock.half:
        if not 1 <= clock.hour <= 12:
            raise ValueError(clock.text)
        return clock.either()[clock.half == "pm"], 0
    if clock.open:
        return _nearest(clock, day, now), 0
    return clock_time(clock.hour, clock.minute), 0


def _nearest(clock: Clock, day: str, now: datetime) -> clock_time:
    """Which of both times an hour means, as *at 8* does: by itself the hour of a clock of 24, where
    that comes first; today the one that is to come; on other days the hour of a clock of 24. An
    hour of the night is one only where it is near."""
    early, late = clock.either()
    plain = late if clock.hour == 12 else early
    other = early if clock.hour == 12 else late
    if day == "today":
        ahead = [one for one in (early, late) if one > now.time()]
        if len(ahead) == 1:
            return ahead[0]
        if not ahead:
            return late  # which is past
    elif not day:
        wait = _wait(plain, now)
        if wait < _wait(other, now) and (wait < _NEAR or not 1 <= clock.hour <= 5):
            return plain
    elif not 1 <= clock.hour <= 5:
        return plain
    raise UsageError(
        f"{clock.text!r} may mean {_face(early)} or {_face(late)}",
        hint=f"write {_face(early)} or {_face(late)}",
    )


def _wait(time: clock_time, now: datetime) -> timedelta:
    """How long it is by the clock's face until it shows a time."""
    ahead = datetime.combine(now.date(), time) - now.replace(tzinfo=None)
    return ahead if ahead > timedelta(0) else ahead + timedelta(days=1)


def _in_part(clock: Clock, part: Part) -> tuple[clock_time, int]:
    """A time in a part of a day, by the hours that are called so."""
    hour, name = clock.hour, "night" if part in ("tonight", "nights") else part
    if clock.half:
        if not 1 <= hour <= 12:
            raise ValueError(clock.text)
        hours = [hour % 12 + (12 if clock.half == "pm" else 0)]
    else:
        hours = [hour] if hour == 0 or hour > 12 or clock.name else [hour % 12, hour % 12 + 12]
    spans = {"morning": range(1, 12), "afternoon": range(12, 19), "evening": range(16, 24)}
    span = spans.get(name, range(17 if part == "tonight" else 18, 24))
    fit = [one for one in hours if one in span]
    if fit:
        return clock_time(fit[0], clock.minute), 0
    if part == "nights" and 0 <= hours[0] <= 4:
        return clock_time(hours[0], clock.minute), 0
    if part == "tonight" and hours[0] == 0 and clock.minute == 0:
        return clock_time(0), 1  # where tonight ends
    time = clock_time(hours[0], clock.minute)
    if name == "night" and time.hour <= 5:
        raise UsageError(
            f"{clock.text!r} may be in one of two nights", hint=f"write the day and {_face(time)}"
        )
    raise UsageError(f"{clock.text!r} is not in the {name}", hint="write the time as 9:00 or 21:00")


def _face(time: clock_time) -> str:
    return f"{time.hour}:{time.minute:02}"


def _number(word: str) -> int:
    return NUMBERS.index(word) if word in NUMBERS else int(word)
