"""The dates that a request mentions, written as an argument's description asks for them. Pure."""

from __future__ import annotations

import re
from datetime import date
from typing import Final

_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        (
            "january",
            "february",
            "march",
            "april",
            "may",
            "june",
            "july",
            "august",
            "september",
            "october",
            "november",
            "december",
        ),
        start=1,
    )
}
_MONTH: Final = (
    "(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    "|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\\.?"
)
_DAY: Final = r"(?P<day>[0-3]?[0-9])(?:st|nd|rd|th)?"
_YEAR: Final = r"(?P<year>[12][0-9]{3})"
_DATES: Final = tuple(
    re.compile(rf"(?<![\w-]){pattern}(?![\w-])", re.IGNORECASE)
    for pattern in (
        rf"{_YEAR}[-/.](?P<number>[01]?[0-9])[-/.](?P<day>[0-3]?[0-9])",
        rf"(?P<number>[01]?[0-9])/(?P<day>[0-3]?[0-9])/{_YEAR}",
        rf"{_YEAR},?\s+{_MONTH}\s+{_DAY}",
        rf"{_MONTH}\s+{_DAY}(?:,?\s+{_YEAR})?",
        rf"{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?",
        rf"(?P<number>[01]?[0-9])-(?P<day>[0-3]?[0-9])-{_YEAR}",
        rf"(?P<day>[0-3]?[0-9])\.(?P<number>[01]?[0-9])\.{_YEAR}",
    )
)
_LAYOUTS: Final = (
    (re.compile(r"\bY{4}-M{2}-D{2}\b", re.IGNORECASE), "%Y-%m-%d"),
    (re.compile(r"\bY{4}/M{2}/D{2}\b", re.IGNORECASE), "%Y/%m/%d"),
    (re.compile(r"\bM{2}/D{2}/Y{4}\b", re.IGNORECASE), "%m/%d/%Y"),
    (re.compile(r"\bD{2}/M{2}/Y{4}\b", re.IGNORECASE), "%d/%m/%Y"),
    (re.compile(r"\bM{2}-D{2}-Y{4}\b", re.IGNORECASE), "%m-%d-%Y"),
    (re.compile(r"\bD{2}-M{2}-Y{4}\b", re.IGNORECASE), "%d-%m-%Y"),
    (re.compile(r"\bD{2}\.M{2}\.Y{4}\b", re.IGNORECASE), "%d.%m.%Y"),
)


def layout(description: str, form: str = "") -> str | None:
    """How a date is to be written, as `date.strftime` has it, by an argument's description or its
    schema's ``format``; None where neither says."""
    if form == "date":
        return "%Y-%m-%d"
    return next((found for pattern, found in _LAYOUTS if pattern.search(description)), None)


def spans(request: str) -> list[tuple[int, int]]:
    """Where a request has dates, those without a year too."""
    found: list[tuple[int, int]] = []
    for pattern in _DATES:
        for match in pattern.finditer(request):
            if not any(match.start() < end and start < match.end() for start, end in found):
                found.append(match.span())
    return sorted(found)


def dates(request: str) -> list[tuple[date, int, int]]:
    """The dates of a request in order, and where each stands. One without a year has that of
    another; without any it is none."""
    found: dict[tuple[int, int], tuple[int | None, int, int]] = {}
    for pattern in _DATES:
        for match in pattern.finditer(request):
            if any(match.start() < end and start < match.end() for start, end in found):
                continue
            parts = match.groupdict()
            month = parts.get("number") or _month(parts["month"] or "")
            year = parts.get("year")
            found[match.span()] = (int(year) if year else None, int(month), int(parts["day"]))
    years = [year for year, _, _ in found.values() if year is not None]
    made = []
    for (start, end), (year, month, day) in sorted(found.items()):
        if year is None and not years:
            continue
        try:
            made.append((date(year or years[0], month, day), start, end))
        except ValueError:
            continue
    return made


def _month(name: str) -> int:
    return next(number for full, number in _MONTHS.items() if full.startswith(name.lower()[:3]))
