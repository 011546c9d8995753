"""Approval templates: approvals in advance for calls of one shape. Pure.

A template has the digest of a tool's definition, and a pattern for each argument. A call with more
or fewer arguments does not match. A pattern is one of these:

- the value itself,
- a text with ``*``, ``?`` or ``[…]``,
- a list or an object of patterns,
- ``*`` alone, which matches any value.

A pattern must match the whole value. A path is compared in its resolved form, below one of the
template's folders. A call that does not match needs an approval as if there were no template.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from mlx_tools.messages import ToolSpec
from mlx_tools.policy.text_patterns import ANY, UPWARD_PARTS, fits_path, fits_text

_MAX_CLOCK_ERROR: Final = timedelta(minutes=5)
"""The time by which a clock may be behind ``made_at``. NTP corrects less. A person who wants to use
an expired template would set the clock back by more."""


class CallContext(Struct, frozen=True, kw_only=True):
    """A call as it would run now."""

    spec: ToolSpec
    pinned: str | None
    """The schema that was pinned for a tool from an external source."""
    arguments: Mapping[str, Any]
    """The validated arguments."""
    paths: Mapping[str, str]
    """The resolved path of each argument that the tool resolves."""
    roots: Collection[str]
    """The folders of the run."""
    nested: bool
    """True if the run is within a tool call."""
    now: datetime


class ApprovalTemplate(Struct, frozen=True, kw_only=True):
    """An approval given in advance for calls of one shape."""

    id: str
    tool: str
    """The name of the tool."""
    pin: str
    """The digest of the tool's definition (`compute_pin`)."""
    arguments: Mapping[str, Any]
    """A pattern for each argument."""
    roots: tuple[str, ...] = ()
    """Folders that must contain every path of the call and every folder of the run.

    Without folders, the template covers no path, and does not limit the folders of the run.
    """
    nested: bool = False
    """True if the template also covers calls of runs within a tool call."""
    made_at: str = ""
    """The time from which the template is valid (ISO 8601, UTC)."""
    expires_at: str = ""
    """The time at which the template ends (ISO 8601, UTC)."""
    seal: str = ""
    """The keyed digest that shows that the template was not changed."""

    def covers(self, call: CallContext) -> bool:
        """Return whether the template approves a call."""
        return (
            (self.tool, self.pin) == (call.spec.name, compute_pin(call.spec, call.pinned))
            and (self.nested or not call.nested)
            and self.holds(call.now)
            and self.arguments.keys() == call.arguments.keys()
            and (not self.roots or all(self._path_below(root) is not None for root in call.roots))
            and all(
                self._fits_path_pattern(pattern, call.paths[name])
                if name in call.paths
                else fits(pattern, call.arguments[name])
                for name, pattern in self.arguments.items()
            )
        )

    def holds(self, now: datetime) -> bool:
        """Return whether the template is valid at a time.

        It is not valid before ``made_at``. So nobody can set the clock back to use it after it has
        expired.
        """
        try:
            begin, end = map(datetime.fromisoformat, (self.made_at, self.expires_at))
            return begin - _MAX_CLOCK_ERROR <= now < end
        except (TypeError, ValueError, OverflowError):
            return False

    def _fits_path_pattern(self, pattern: Any, path: str) -> bool:
        below = self._path_below(path)
        if below is None or not isinstance(pattern, str):
            return False
        return fits_path(pattern, path if pattern.startswith("/") else below)

    def _path_below(self, path: str) -> str | None:
        """Return the rest of a path below one of the folders, or None."""
        rests = (_find_path_below(path, root) for root in self.roots)
        return next((rest for rest in rests if rest is not None), None)


def compute_pin(spec: ToolSpec, pinned: str | None) -> str:
    """Return a digest of the tool's definition and its pinned schema."""
    return hashlib.sha256(f"{spec.digest()}\n{pinned or ''}".encode()).hexdigest()


def _find_path_below(path: str, root: str) -> str | None:
    """Return the rest of an absolute path below a folder, or None."""
    if not root.startswith("/") or path == root:
        return "." if path == root else None
    rest = path.removeprefix(f"{root.rstrip('/')}/")
    return None if rest == path or not {*UPWARD_PARTS}.isdisjoint(rest.split("/")) else rest


def fits(pattern: Any, value: Any) -> bool:
    """Return whether a whole value matches a pattern."""
    if pattern == ANY:
        return True
    if isinstance(pattern, str):
        return isinstance(value, str) and fits_text(pattern, value)
    if isinstance(pattern, Mapping):
        return (
            isinstance(value, Mapping)
            and pattern.keys() == value.keys()
            and all(fits(pattern_part, value[name]) for name, pattern_part in pattern.items())
        )
    if isinstance(pattern, Sequence):
        same = isinstance(value, Sequence) and not isinstance(value, str)
        return same and len(pattern) == len(value) and all(map(fits, pattern, value))
    # In Python True == 1 and 1 == 1.0; in JSON they are different values.
    return type(pattern) is type(value) and bool(pattern == value)
