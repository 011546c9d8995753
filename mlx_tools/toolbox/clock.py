"""``clock``: the current date, time and weekday, here or in a time zone.

Time zones have IANA names: only these know when clocks are changed.
"""

from __future__ import annotations

import difflib
import functools
import re
import warnings
import zoneinfo
from collections.abc import Callable, Mapping, Set
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Final

from mlx_tools.errors import UsageError
from mlx_tools.tools import Tool, ToolError, load_words

_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_OFFSET = re.compile(r"(?:UTC|GMT)?\s*([+-])(\d{1,2})(?::?([0-5]\d))?", re.ASCII | re.IGNORECASE)
_MAX_OFFSET: Final = timedelta(hours=14)
_MAX_NAME_CHARS: Final = 100
_NOT_NAMES: Final = frozenset(("localtime", "posixrules", "Factory", "local"))
"""Names among a system's zones that mean another zone elsewhere, or tomorrow."""

Names = Callable[[], Set[str]]


def clock(
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    names: Names = zoneinfo.available_timezones,
    local: tzinfo | None = None,
) -> Tool:
    """Return the tool.

    Args:
        now: returns the time with its zone.
        names: returns the names of the system's time zones.
        local: the local time zone, None for the system's.
    """

    def run(arguments: Mapping[str, Any]) -> str:
        name = arguments.get("timezone")
        zone = None if name is None else _parse_zone(str(name).strip(), names)
        time = now().astimezone(zone or local)
        return f"{time.isoformat(timespec='seconds')} {_DAYS[time.weekday()]}"

    return Tool(load_words("clock").spec(frozenset(("read",)), cache=False), run)


def _parse_zone(name: str, names: Names) -> tzinfo | None:
    """Return the zone of a name, ``UTC``, ``Z``, ``local`` (None) or an offset.

    Raises:
        ToolError: there is no such zone.
    """
    if name.lower() in ("utc", "gmt", "z"):
        return UTC
    if name.lower() == "local":
        return None
    if offset := _OFFSET.fullmatch(name):
        size = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
        if size > _MAX_OFFSET:
            raise ToolError("an offset is at most 14 hours")
        return timezone(size if offset[1] == "+" else -size)
    try:
        return find_zone(name, names, cities=True)
    except UsageError as error:
        raise ToolError(str(error)) from None


def find_zone(
    name: str, names: Names = zoneinfo.available_timezones, *, cities: bool = False
) -> zoneinfo.ZoneInfo:
    """Return the zone of an IANA name, such as ``Europe/Berlin``.

    Case, and spaces for underscores, do not matter.

    Args:
        name: the name.
        names: returns the names of the system's time zones.
        cities: also accept the name of a city that only one zone has.

    Raises:
        UsageError: there is no such zone; the hint has the closest names.
    """
    zones_by_key, key = _zones_by_key(names), _make_key(name)
    if not zones_by_key:
        raise UsageError(
            "this machine has no time zone data; UTC and offsets such as +02:00 work without it",
            hint="install the tzdata package",
        )
    city_zones = [
        zone for zone_key, zone in zones_by_key.items() if zone_key.rpartition("/")[2] == key
    ]
    if key in zones_by_key or (cities and len(city_zones) == 1):
        return zoneinfo.ZoneInfo(zones_by_key.get(key) or city_zones[0])
    zones_by_name = {
        zone_key.rpartition("/")[2]: zone for zone_key, zone in zones_by_key.items()
    } | zones_by_key
    similar = difflib.get_close_matches(key[:_MAX_NAME_CHARS], zones_by_name, n=3, cutoff=0.7)
    suggestions = list(
        dict.fromkeys([*city_zones, *(zones_by_name[zone_key] for zone_key in similar)])
    )[:3]
    hint = (
        f"did you mean {', '.join(suggestions)}?"
        if suggestions
        else "write one such as Europe/Berlin"
    )
    raise UsageError(f"there is no time zone {name[:_MAX_NAME_CHARS]!r}", hint=hint)


def find_local_zone() -> str:
    """Return the IANA name of this machine's zone.

    Raises:
        UsageError: the machine does not say which it is.
    """
    import tzlocal

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several files of a system may disagree
            name = tzlocal.reload_localzone().key
        return find_zone(name).key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, AttributeError, UsageError):
        raise UsageError(
            "this machine does not say in which time zone it is",
            hint="name it: --timezone Europe/Berlin, or TZ=Europe/Berlin",
        ) from None


@functools.cache
def _zones_by_key(names: Names) -> dict[str, str]:
    """Return the zones of this machine by their keys (`_make_key`)."""
    return {_make_key(zone): zone for zone in sorted(names() - _NOT_NAMES)}


def _make_key(name: str) -> str:
    return name.strip().casefold().replace(" ", "_").replace("-", "_")
