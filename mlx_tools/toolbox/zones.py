"""The time zones of this machine, by name."""

from __future__ import annotations

import difflib
import functools
import warnings
import zoneinfo
from collections.abc import Callable, Set
from typing import Final

from mlx_tools.errors import UsageError

_MAX_NAME_CHARS: Final = 100
_NOT_NAMES: Final = frozenset(("localtime", "posixrules", "Factory", "local"))
"""Names among a system's zones whose meaning depends on the machine or the time."""

ZoneNames = Callable[[], Set[str]]


def find_zone(
    name: str, names: ZoneNames = zoneinfo.available_timezones, *, cities: bool = False
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
    zones_by_key, key = _map_zones_by_key(names), _make_key(name)
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
        UsageError: the machine has no configured time zone.
    """
    import tzlocal

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # files of a system may name different zones
            name = tzlocal.reload_localzone().key
        return find_zone(name).key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, AttributeError, UsageError):
        raise UsageError(
            "this machine does not say in which time zone it is",
            hint="name it: --timezone Europe/Berlin, or TZ=Europe/Berlin",
        ) from None


@functools.cache
def _map_zones_by_key(names: ZoneNames) -> dict[str, str]:
    """Return the zones of this machine by their keys (`_make_key`)."""
    return {_make_key(zone): zone for zone in sorted(names() - _NOT_NAMES)}


def _make_key(name: str) -> str:
    return name.strip().casefold().replace(" ", "_").replace("-", "_")
