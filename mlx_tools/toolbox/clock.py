"""``clock``: the current date, time and day of the week, here or in a time zone; and time zones by
their IANA names, the only kind that knows when clocks are changed."""

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
from mlx_tools.tools import Tool, ToolError, words_of

_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_OFFSET = re.compile(r"(?:UTC|GMT)?\s*([+-])(\d{1,2})(?::?([0-5]\d))?", re.ASCII | re.IGNORECASE)
_MAX_OFFSET: Final = timedelta(hours=14)
_MAX_NAME_CHARS: Final = 100
_NOT_NAMES: Final = frozenset(("localtime", "posixrules", "Factory", "local"))
"""What a system may have among its zones that is another zone elsewhere, or tomorrow."""

Names = Callable[[], Set[str]]


def clock(
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    names: Names = zoneinfo.available_timezones,
    local: tzinfo | None = None,
) -> Tool:
    """The tool. ``now`` gives the time with its zone, ``names`` those of the system's time zones;
    ``local`` is what counts as local time, None for what the system says."""

    def run(arguments: Mapping[str, Any]) -> str:
        wanted = arguments.get("timezone")
        zone = None if wanted is None else _parse_zone(str(wanted).strip(), names)
        time = now().astimezone(zone or local)
        return f"{time.isoformat(timespec='seconds')} {_DAYS[time.weekday()]}"

    return Tool(words_of("clock").spec(frozenset(("read",)), cache=False), run)


def _parse_zone(name: str, names: Names) -> tzinfo | None:
    """The zone of a name, ``UTC``, ``Z``, ``local`` (None), or an offset. Raises ToolError."""
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
        return zone_of(name, names, cities=True)
    except UsageError as error:
        raise ToolError(str(error)) from None


def zone_of(
    name: str, names: Names = zoneinfo.available_timezones, *, cities: bool = False
) -> zoneinfo.ZoneInfo:
    """The zone of an IANA name, such as ``Europe/Berlin``; with ``cities`` of its city alone, where
    that is no other's too. Case does not matter, nor whether spaces stand for underscores.

    Raises `UsageError` with the names that come closest.
    """
    known, key = _zones_by_key(names), _key(name)
    if not known:
        raise UsageError(
            "this machine has no time zone data; UTC and offsets such as +02:00 work without it",
            hint="install the tzdata package",
        )
    of_city = [zone for other, zone in known.items() if other.rpartition("/")[2] == key]
    if key in known or (cities and len(of_city) == 1):
        return zoneinfo.ZoneInfo(known.get(key) or of_city[0])
    near = {other.rpartition("/")[2]: zone for other, zone in known.items()} | known
    alike = difflib.get_close_matches(key[:_MAX_NAME_CHARS], near, n=3, cutoff=0.7)
    close = list(dict.fromkeys([*of_city, *(near[other] for other in alike)]))[:3]
    hint = f"did you mean {', '.join(close)}?" if close else "write one such as Europe/Berlin"
    raise UsageError(f"there is no time zone {name[:_MAX_NAME_CHARS]!r}", hint=hint)


def local_zone() -> str:
    """The IANA name of this machine's zone. Raises `UsageError` where it cannot be told."""
    import tzlocal

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several files of a system may disagree
            name = tzlocal.reload_localzone().key
        return zone_of(name).key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, AttributeError, UsageError):
        raise UsageError(
            "this machine does not say in which time zone it is",
            hint="name it: --timezone Europe/Berlin, or TZ=Europe/Berlin",
        ) from None


@functools.cache
def _zones_by_key(names: Names) -> dict[str, str]:
    """The zones that this machine has, by their names as `_key` has them."""
    return {_key(zone): zone for zone in sorted(names() - _NOT_NAMES)}


def _key(name: str) -> str:
    return name.strip().casefold().replace(" ", "_").replace("-", "_")
