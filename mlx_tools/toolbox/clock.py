"""``clock``: the current date, time and day of the week, here or in a time zone."""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Callable, Mapping, Set
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Final

from mlx_tools.tools import Tool, ToolError, words_of

_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_OFFSET = re.compile(r"(?:UTC|GMT)?\s*([+-])(\d{1,2})(?::?([0-5]\d))?", re.ASCII | re.IGNORECASE)
_MAX_OFFSET: Final = timedelta(hours=14)


def clock(
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    load: Callable[[str], tzinfo] = zoneinfo.ZoneInfo,
    names: Callable[[], Set[str]] = zoneinfo.available_timezones,
    local: tzinfo | None = None,
) -> Tool:
    """The tool. ``now`` gives the time with its zone; ``load`` and ``names`` are the system's time
    zones, and ``local`` is what counts as local time, None for what the system says."""

    def run(arguments: Mapping[str, Any]) -> str:
        wanted = arguments.get("timezone")
        zone = None if wanted is None else zone_of(str(wanted), load, names)
        time = now().astimezone(zone or local)
        return f"{time.isoformat(timespec='seconds')} {_DAYS[time.weekday()]}"

    return Tool(words_of("clock").spec(frozenset(("read",)), cache=False), run)


def zone_of(
    text: str,
    load: Callable[[str], tzinfo] = zoneinfo.ZoneInfo,
    names: Callable[[], Set[str]] = zoneinfo.available_timezones,
) -> tzinfo | None:
    """The zone that a text names: an IANA name, its city where that is no other's too, ``UTC``,
    ``Z``, ``local`` (None), or an offset.

    Case does not matter, nor whether spaces stand for underscores. Raises ToolError with the names
    that come closest.
    """
    name = text.strip()
    if name.lower() in ("utc", "gmt", "z"):
        return UTC
    if name.lower() == "local":
        return None
    if offset := _OFFSET.fullmatch(name):
        return _fixed(offset)
    try:
        return load(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = names()
    if not known:
        raise ToolError(
            "this machine has no time zone data (install the tzdata package); UTC and offsets such "
            "as +02:00 work without it"
        )
    key = _key(name)
    if found := sorted(zone for zone in known if _key(zone) == key):
        return load(found[0])
    if len(found := _of_city(key, known)) == 1:
        return load(found[0])
    close = _close(key, known)
    hint = f"did you mean {', '.join(close)}?" if close else "write one such as Europe/Berlin"
    raise ToolError(f"there is no time zone {name[:100]!r}; {hint}")


def _fixed(offset: re.Match[str]) -> tzinfo:
    size = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
    if size > _MAX_OFFSET:
        raise ToolError("an offset is at most 14 hours")
    return timezone(size if offset[1] == "+" else -size)


def _key(name: str) -> str:
    return name.casefold().replace(" ", "_").replace("-", "_")


def _of_city(key: str, known: Set[str]) -> list[str]:
    """The zones that are named after a city."""
    return [zone for zone in sorted(known) if _key(zone).rpartition("/")[2] == key]


def _close(key: str, known: Set[str]) -> list[str]:
    """The zones whose city is meant, then those that are spelled alike; at most three."""
    keys = {_key(zone): zone for zone in sorted(known)}
    cities = _of_city(key, known)
    alike = [keys[other] for other in difflib.get_close_matches(key, keys, n=3, cutoff=0.6)]
    by_city = {other.rpartition("/")[2]: zone for other, zone in keys.items()}
    alike += [by_city[c] for c in difflib.get_close_matches(key, by_city, n=3, cutoff=0.75)]
    return list(dict.fromkeys([*cities, *alike]))[:3]
