"""Time zones by their IANA names: the only kind that knows when clocks are changed."""

from __future__ import annotations

import difflib
import functools
import warnings
import zoneinfo
from typing import Final

from mlx_tools.errors import UsageError

UTC_NAME: Final = "UTC"
_NOT_NAMES: Final = frozenset(("localtime", "posixrules", "factory", "local"))
"""What a system may have among its zones that is another zone elsewhere, or tomorrow."""


def zone_of(name: str) -> zoneinfo.ZoneInfo:
    """The zone of an IANA name, such as ``Europe/Berlin``. Case does not matter, nor whether spaces
    stand for underscores. Raises `UsageError` with the names that come closest."""
    wanted = name.strip().replace(" ", "_")
    if 0 < len(wanted) <= 100 and wanted.isascii():
        known = _known()
        if exact := known.get(wanted.casefold()):
            return zoneinfo.ZoneInfo(exact)
        close = difflib.get_close_matches(wanted.casefold(), known, n=3, cutoff=0.7)
        cities = [zone for zone in known if zone.rpartition("/")[2] == wanted.casefold()]
        alike = [known[zone] for zone in dict.fromkeys((*cities, *close))][:3]
        if not known:
            raise UsageError(
                "this machine has no time zone data", hint="install the tzdata package"
            )
        if alike:
            raise UsageError(
                f"there is no time zone {name[:100]!r}", hint=f"did you mean {', '.join(alike)}?"
            )
    raise UsageError(
        f"there is no time zone {name[:100]!r}", hint="write one such as Europe/Berlin, or UTC"
    )


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
            hint="name it: --timezone Europe/Berlin, or schedule.timezone",
        ) from None


@functools.cache
def _known() -> dict[str, str]:
    """The zones that this machine has, by their names in small letters."""
    names = {zone.casefold(): zone for zone in zoneinfo.available_timezones()}
    return {key: name for key, name in names.items() if key not in _NOT_NAMES}
