"""Approval templates: a person's standing yes for calls of one shape. Pure.

A template names the tool, as it was then, and has a pattern for every argument that such a call
has: a call with another argument, or with one less, is another shape. A pattern is the value
itself, a text with ``*``, ``?`` or ``[…]`` in it, a list or an object of patterns, or ``*`` alone,
which any value fits. It is held against the whole value, never against a part of it, and against a
path as the tool resolved it, below one of the template's folders.

What does not fit for any reason is asked about as if there were no template.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from mlx_tools.messages import ToolSpec
from mlx_tools.policy.text_patterns import ANY, UP, fits_path, fits_text

_SLACK: Final = timedelta(minutes=5)
"""How far a clock may have been set back before it is no longer believed."""


class CallContext(Struct, frozen=True, kw_only=True):
    """A call as it would run now: ``arguments`` were validated, ``paths`` are those of them that
    the tool resolves, each as the path that it comes to. ``roots`` are the folders of the run;
    ``nested``: it is one within a call."""

    spec: ToolSpec
    pinned: str | None
    arguments: Mapping[str, Any]
    paths: Mapping[str, str]
    roots: Collection[str]
    nested: bool
    at: datetime


class ApprovalTemplate(Struct, frozen=True, kw_only=True):
    """A standing yes.

    ``tool`` and ``pin`` say which tool, and as what (`pin_of`); ``arguments`` has the patterns.
    ``roots`` are folders: paths that the tool resolves lie below them, and so do all folders of the
    run; without any, the template covers no path, and says nothing of the run's. ``nested``: it
    holds in runs within a call too. It holds from ``made_at`` until ``expires_at`` (ISO 8601, UTC).
    ``seal`` shows that nobody changed it.
    """

    id: str
    tool: str
    pin: str
    arguments: Mapping[str, Any]
    roots: tuple[str, ...] = ()
    nested: bool = False
    made_at: str = ""
    expires_at: str = ""
    seal: str = ""

    def covers(self, call: CallContext) -> bool:
        """Return whether a call is one of these."""
        return (
            (self.tool, self.pin) == (call.spec.name, pin_of(call.spec, call.pinned))
            and (self.nested or not call.nested)
            and self.holds(call.at)
            and self.arguments.keys() == call.arguments.keys()
            and (not self.roots or all(self._path_below(root) is not None for root in call.roots))
            and all(
                self._leads(pattern, call.paths[name])
                if name in call.paths
                else fits(pattern, call.arguments[name])
                for name, pattern in self.arguments.items()
            )
        )

    def holds(self, now: datetime) -> bool:
        """Return whether its time has come, by a clock that was not set back, and is not over."""
        try:
            begin, end = map(datetime.fromisoformat, (self.made_at, self.expires_at))
            return begin - _SLACK <= now < end
        except (TypeError, ValueError, OverflowError):
            return False

    def _leads(self, pattern: Any, path: str) -> bool:
        below = self._path_below(path)
        if below is None or not isinstance(pattern, str):
            return False
        return fits_path(pattern, path if pattern.startswith("/") else below)

    def _path_below(self, path: str) -> str | None:
        """The rest of a path below one of the folders, None where it lies below none."""
        found = (_path_in(path, root) for root in self.roots)
        return next((rest for rest in found if rest is not None), None)


def pin_of(spec: ToolSpec, pinned: str | None) -> str:
    """Return what changes with anything that a tool declares, or is held to."""
    return hashlib.sha256(f"{spec.digest()}\n{pinned or ''}".encode()).hexdigest()


def _path_in(path: str, root: str) -> str | None:
    """The rest of an absolute path below a folder, None where it does not lie there."""
    if not root.startswith("/") or path == root:
        return "." if path == root else None
    rest = path.removeprefix(f"{root.rstrip('/')}/")
    return None if rest == path or not {*UP}.isdisjoint(rest.split("/")) else rest


def fits(pattern: Any, value: Any) -> bool:
    """Return whether a value is what a pattern says, whole."""
    if pattern == ANY:
        return True
    if isinstance(pattern, str):
        return isinstance(value, str) and fits_text(pattern, value)
    if isinstance(pattern, Mapping):
        return (
            isinstance(value, Mapping)
            and pattern.keys() == value.keys()
            and all(fits(one, value[name]) for name, one in pattern.items())
        )
    if isinstance(pattern, Sequence):
        same = isinstance(value, Sequence) and not isinstance(value, str)
        return same and len(pattern) == len(value) and all(map(fits, pattern, value))
    return type(pattern) is type(value) and bool(pattern == value)
