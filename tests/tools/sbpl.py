"""Reads a profile of ``sandbox-exec`` as strictly as macOS does, and decides by it.

Known of the real one, by Apple's own profiles and those of Chromium and Codex: a profile is a list
of Scheme's; ``(version 1)`` comes first; a rule names operations and filters that there are, each
filter with arguments of its kind; an operation takes the filters of its kind alone; the last rule
that fits decides.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any, Final

OPERATIONS: Final = frozenset(
    (
        *("default", "file*", "file-chroot", "file-ioctl", "file-link", "file-map-executable"),
        *("file-read*", "file-read-data", "file-read-metadata", "file-read-xattr"),
        *("file-test-existence", "file-write*", "file-write-create", "file-write-data"),
        *("file-write-flags", "file-write-mode", "file-write-owner", "file-write-setugid"),
        *("file-write-times", "file-write-unlink", "file-write-xattr"),
        *("ipc-posix*", "ipc-posix-sem", "ipc-posix-shm*", "mach-lookup", "mach-register"),
        *("network*", "network-bind", "network-inbound", "network-outbound", "process*"),
        *("process-exec", "process-exec*", "process-exec-interpreter", "process-fork"),
        *("process-info*", "process-info-pidinfo", "pseudo-tty", "signal", "sysctl-read"),
        *("sysctl-write", "system-socket", "user-preference-read", "iokit-open"),
    )
)

PATHS: Final = frozenset(("literal", "subpath", "regex", "prefix", "path-ancestors"))
FILTERS: Final = {
    "file": PATHS,
    "process-exec": PATHS,
    "process-info": frozenset(("target",)),
    "signal": frozenset(("target",)),
    "mach-lookup": frozenset(("global-name", "local-name")),
    "ipc-posix-sem": frozenset(("ipc-posix-name",)),
    "sysctl-read": frozenset(("sysctl-name", "sysctl-name-prefix")),
    "network": frozenset(("local", "remote", *PATHS)),
}
TARGETS: Final = frozenset(("self", "same-sandbox", "others", "children"))

_TOKEN: Final = re.compile(
    r'''\s*(?:;[^\n]*\s*)*(?:(?P<mark>[()])|\#"(?P<raw>[^"]*)"'''
    r"""|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<word>[^\s()"\#;]+))""",
    re.DOTALL,
)


class Malformed(Exception):
    """macOS refuses such a profile."""


class Profile:
    """A profile that was read. Raises `Malformed` for what macOS would refuse."""

    def __init__(self, text: str) -> None:
        lists = _read(text)
        if not lists or lists[0] != ["version", "1"]:
            raise Malformed("(version 1) comes first")
        self.rules = [_rule(one) for one in lists[1:]]

    def allows(self, operation: str, value: str = "") -> bool:
        """Return the decision on an operation on a path, a name or a target."""
        if operation not in OPERATIONS or operation.endswith("*"):
            raise ValueError(f"{operation} is no operation")
        decision = "allow"
        for verdict, operations, filters in self.rules:
            if any(_covers(one, operation) for one in operations) and (
                not filters or any(_fits(one, value) for one in filters)
            ):
                decision = verdict
        return decision == "allow"

    def starts(self, program: str) -> bool:
        """Return whether a program gets as far as its first instruction: the kernel looks up the
        root, the loader maps the system's libraries."""
        return (
            self.allows("process-exec", program)
            and self.allows("file-read-data", "/")
            and self.allows("file-read-data", "/usr/lib/dyld")
            and self.allows("file-map-executable", "/usr/lib/libSystem.B.dylib")
            and self.allows("file-read-data", "/System/Volumes/Preboot/Cryptexes/OS/System/x")
        )


def _read(text: str) -> list[Any]:
    root: list[Any] = []
    open_lists, at, text = [root], 0, text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise Malformed(text[at : at + 40])
        at = token.end()
        if token["mark"] == "(":
            open_lists.append([])
        elif token["mark"] == ")":
            if len(open_lists) == 1:
                raise Malformed("a parenthesis too many")
            done = open_lists.pop()
            open_lists[-1].append(done)
        elif token["word"] is not None:
            open_lists[-1].append(token["word"])
        else:
            quoted = token["text"]
            value = token["raw"] if quoted is None else re.sub(r"(?s)\\(.)", r"\1", quoted)
            open_lists[-1].append(("text", value))
    if len(open_lists) != 1:
        raise Malformed("a list is not closed")
    return root


def _rule(words: Any) -> tuple[str, list[str], list[Any]]:
    if not isinstance(words, list) or not words or words[0] not in ("allow", "deny"):
        raise Malformed(f"no rule: {words!r:.60}")
    operations = [word for word in words[1:] if isinstance(word, str)]
    filters = [word for word in words[1:] if isinstance(word, list)]
    if not operations or len(operations) + len(filters) != len(words) - 1:
        raise Malformed(f"no rule: {words!r:.60}")
    if unknown := [one for one in operations if one not in OPERATIONS]:
        raise Malformed(f"unbound variable: {unknown[0]}")
    if any(isinstance(w, str) for w in words[1 + len(operations) :]):
        raise Malformed("an operation behind a filter")
    for one in filters:
        for operation in operations:
            _check_filter(one, operation)
    return words[0], operations, filters


def _check_filter(words: list[Any], operation: str) -> None:
    kind, *values = words if words else [""]
    known = [names for family, names in FILTERS.items() if operation.startswith(family)]
    if not any(kind in names for names in known):
        raise Malformed(f"{operation} takes no filter {kind}")
    if kind == "target":
        if len(values) != 1 or values[0] not in TARGETS:
            raise Malformed(f"no target: {values}")
        return
    if not values or any(not isinstance(one, tuple) for one in values):
        raise Malformed(f"{kind} takes texts")
    for _, value in values:
        if kind == "regex":
            re.compile(value)
        elif kind in PATHS and not value.startswith("/"):
            raise Malformed(f"{kind} takes an absolute path, not {value!r}")
        elif kind in PATHS and value != "/" and value.endswith("/"):
            raise Malformed(f"{value!r} ends in a slash, and would fit nothing")


def _covers(rule: str, operation: str) -> bool:
    return fnmatchcase(operation, "*" if rule == "default" else rule)


def _fits(words: list[Any], value: str) -> bool:
    kind, *texts = words
    if kind == "target":
        return bool(texts[0] == value)
    inside = {
        "literal": str.__eq__,
        "prefix": str.startswith,
        "subpath": lambda path, folder: f"{path}/".startswith(f"{folder.rstrip('/')}/"),
        "regex": lambda path, pattern: re.search(pattern, path) is not None,
    }
    test = inside.get(kind, str.__eq__)
    return any(test(value, text) for _, text in texts)
