"""``clock``: returns the current date, time and weekday, local or in a time zone.

A time zone has an IANA name, because only these zones have the dates of clock changes. A fixed
offset such as ``+02:00`` works too.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Final

from mlx_tools.errors import UsageError
from mlx_tools.toolbox import ZoneNames, find_zone
from mlx_tools.tools import Tool, ToolError, load_words

_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_OFFSET = re.compile(r"(?:UTC|GMT)?\s*([+-])(\d{1,2})(?::?([0-5]\d))?", re.ASCII | re.IGNORECASE)
_MAX_OFFSET: Final = timedelta(hours=14)
"""The largest offset in use (Kiritimati)."""


def clock(
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    names: ZoneNames = zoneinfo.available_timezones,
    local: tzinfo | None = None,
) -> Tool:
    """Return the tool.

    Args:
        now: returns the current time, with a time zone.
        names: returns the names of the known time zones.
        local: the local time zone; None for the system's.
    """

    def run(arguments: Mapping[str, Any]) -> str:
        name = arguments.get("timezone")
        zone = None if name is None else _parse_zone(str(name).strip(), names)
        time = now().astimezone(zone or local)
        return f"{time.isoformat(timespec='seconds')} {_DAYS[time.weekday()]}"

    return Tool(load_words("clock").spec(frozenset(("read",)), cache=False), run)


def _parse_zone(name: str, names: ZoneNames) -> tzinfo | None:
    """Return the time zone of an IANA name, ``UTC``, ``Z``, ``local`` or an offset.

    Returns:
        The zone, None for ``local``.

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
