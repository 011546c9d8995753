"""What a text lacks that means no time, where it comes close to one that does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from mlx_tools.toolbox.schedule.phrases import WEEKDAY

_FIRST_OF_MONTH: Final = "write cron's five fields: 0 9 1 * * is each first of a month at 9:00"
_NTH: Final = re.compile(
    r"(?:on )?(?:the |every |each )?(?:first|second|third|fourth|last|\d(?:st|nd|rd|th)) "
    rf"(?:day|{WEEKDAY})"
    r" (?:of|in) (?:every|each|the) (?:month|year)\b.*",
    re.ASCII,
)
_EXAMPLES: Final = {"morning": "9:00", "afternoon": "15:00"}
_THIRD: Final = re.compile(
    rf"(?P<before>every|each) (?P<count>third|3rd|fourth|4th) (?P<day>{WEEKDAY})\b(?P<after>.*)",
    re.ASCII,
)


def near_miss(said: str, means: Callable[[str], bool]) -> tuple[str, str] | None:
    """What a text lacks that means nothing, and what to write instead. ``means`` says whether
    another text means something."""
    if not said:
        return None
    part = re.search(r"\b(?:morning|afternoon|evening|night|tonight|nightly)\b", said)
    time = _EXAMPLES.get(part[0], "20:00") if part else "9:00"
    if means(f"{said} at {time}"):
        return "says no time of day", f"write {said} at {time}"
    if said.startswith("next ") and means(_with_time(said.removeprefix("next "))):
        return "may mean two days", f"write {said.removeprefix('next ')} for the first, or the date"
    if re.search(r"\bnext (?:week|month|year)\b", said):
        return "may mean several days", "write the date, such as 2030-01-31 17:00"
    other = re.sub(r"\b(?:second|2nd) ", "other ", said, count=1)
    if other != said and means(_with_time(other)):
        return "may mean two things", f"write {other} for one of two"
    if _THIRD.fullmatch(said):
        return "may mean two things", "write every 3 weeks on monday at 9:00, or the dates"
    if re.match(r"every (?:\d+ |other |second )?(?:month|year)|monthly|yearly", said):
        return "cannot be counted out", _FIRST_OF_MONTH
    if _NTH.fullmatch(said):
        return "cannot be counted out", _FIRST_OF_MONTH
    if re.search(r"(?<![\w:])(?:\d{1,4}[./]\d{1,2}[./]\d{1,4}|\d{1,2}/\d{1,2})\b", said):
        return "is a date that is read in two ways", "write dates as 2030-01-31"
    return _several(said, means)


def _several(said: str, means: Callable[[str], bool]) -> tuple[str, str] | None:
    """What there is to say of a text that leaves open how often, or says several times."""
    for before in ("in", "every"):
        if means(f"{before} {said}"):
            return "may be once or again and again", f"write {before} {said}"
    first, also, second = said.rpartition(" and ")
    if (
        also
        and not said.startswith("in ")
        and means(first)
        and re.match(r"(?:at )?\d|noon|midnight", second)
    ):
        return "names several times", "make a job for each of them"
    return None


def _with_time(said: str) -> str:
    return said if re.search(r"\d|noon|midnight", said) else f"{said} at noon"
