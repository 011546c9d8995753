"""Texts and paths against patterns that a person wrote. Pure.

A wildcard takes what a person expects at its place, and no more. In a URL each part is held against
its own part of the pattern, so that ``https://*.example.com/*`` is no other host's; in a mail
address a wildcard takes no second address; elsewhere none takes a character that begins another
part of an address, a list or a command. A pattern of IP addresses, such as ``10.*``, takes no
names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import unquote

from mlx_tools.policy.rules import DEEP, is_glob, parts_reached

ANY: Final = "*"
UP: Final = ("", ".", "..")
_DECODED: Final = 5
"""How often a text is decoded to see what it may come to; one that still changes is refused."""

_SEPARATORS: Final = frozenset("?#@:,;<>|&$`(){}\"'%!=")
"""Characters that begin another part of an address, a list or a command. A wildcard in a text that
is no URL takes none of them."""

_URL: Final = re.compile(
    r"(?P<scheme>[^:/?#]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)"
    r"(?:\?(?P<query>[^#]*))?(?:\#(?P<fragment>.*))?",
    re.DOTALL,
)
_AUTHORITY: Final = re.compile(r"(?P<host>.*?)(?::(?P<port>[0-9*?]*))?", re.DOTALL)
_IPV6: Final = re.compile(r"(?P<host>\[[^\[\]]*:[^\[\]]*\])(?::(?P<port>[0-9*]*))?")
_IPV4: Final = re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(?:\.(?!$)|$)){4}")
_NUMBER: Final = re.compile(r"[0-9*?]*|0[Xx][0-9A-Fa-f*?]*")
"""A label of an IPv4 address, perhaps with wildcards: decimal, octal or hexadecimal."""

_LONG_NUMBER: Final = re.compile("[0-9]{4}")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]+", re.ASCII)

_LETTERS: Final = "[a-z]"
_DIGITS: Final = "[0-9]"
_IN_HOST: Final = "[A-Za-z0-9.-]"
_IN_MAILBOX: Final = "[A-Za-z0-9._+-]"
_IN_PATH: Final = "[^/]"
_IN_QUERY: Final = "[^&;#]"
"""What a wildcard takes, part by part, as a class of a regular expression."""


def fits_text(pattern: str, text: str) -> bool:
    """Return whether a text is what a pattern says, whole. No wildcard takes a part that goes up,
    nor what cannot be seen."""
    if not is_glob(pattern):
        return text == pattern
    if not _is_plain(text):
        return False
    if "://" in pattern:
        return _fits_url(pattern, text)
    if "@" in pattern:
        return _fits_mail(pattern, text)
    same = all(text.count(one) == _literals(pattern).count(one) for one in _SEPARATORS - {"?"})
    return same and "?" not in text and _fits_parts(pattern, text, _fits_word)


def fits_path(pattern: str, path: str) -> bool:
    """Return whether a path, as a tool resolved it, is what a pattern says: ``*`` ends at ``/``,
    ``**`` between two is any number of parts."""
    if not is_glob(pattern):
        return path == pattern
    return _is_plain(path, encoded_text=False) and _fits_parts(pattern, path)


def _is_plain(text: str, *, encoded_text: bool = True) -> bool:
    """True for a text that holds nothing unseen and does not go up. ``encoded_text``: nor after it
    was decoded, be it more than once, which brings no new separator either."""
    plain = _decode_percent(text) if encoded_text else text
    if plain is None or not plain.isprintable() or "\\" in plain:
        return False
    added = (set(plain) - set(text)) & _SEPARATORS
    return not added and plain.count("/") == text.count("/") and ".." not in plain.split("/")


def _decode_percent(text: str) -> str | None:
    """The text that percent signs stand for in the end; None if there seems to be no end."""
    for _ in range(_DECODED):
        plain = unquote(text)
        if plain == text:
            return plain
        text = plain
    return None


# --- parts ----------------------------------------------------------------------------------------


def _fits_url(pattern: str, text: str) -> bool:
    wanted, given = _URL.fullmatch(pattern), _URL.fullmatch(text)
    if wanted is None or given is None or " " in text:
        return False
    return (
        _fits(wanted["scheme"], given["scheme"], _LETTERS)
        and _fits_authority(wanted["authority"], given["authority"])
        and _fits_parts(wanted["path"], given["path"], _fits_in_path)
        and _fits_rest(wanted["query"], given["query"])
        and _fits_rest(wanted["fragment"], given["fragment"])
    )


def _fits_authority(pattern: str, text: str) -> bool:
    """True for a host and a port that the pattern means; a user's name only without a wildcard."""
    if not is_glob(pattern):
        return pattern == text
    if wanted := _IPV6.fullmatch(pattern):
        given = _IPV6.fullmatch(text)
        if given is None or given["host"] != wanted["host"]:
            return False
        return _fits_rest(wanted["port"], given["port"], _DIGITS)
    wanted, given = _AUTHORITY.fullmatch(pattern), _AUTHORITY.fullmatch(text)
    if wanted is None or given is None or not _HOST.fullmatch(given["host"]):
        return False
    host = _fits_host(wanted["host"], given["host"])
    return host and _fits_rest(wanted["port"], given["port"], _DIGITS)


def _fits_host(pattern: str, text: str) -> bool:
    """Return whether a host fits. A pattern that looks like an IPv4 address fits no names; a ``*``
    in it stands for digits, or for the missing numbers: ``10.*`` is 10.0.0.0 to 10.255.255.255."""
    if not _looks_like_ipv4(pattern):
        return _fits(pattern, text, _IN_HOST)
    if not _IPV4.fullmatch(text):
        return False
    labels = pattern.split(".")
    if len(labels) < 4:
        labels = [one for label in labels for one in ((DEEP, ANY) if label == ANY else (label,))]
        labels += [DEEP] if labels[-1] != ANY and labels[-1].endswith(ANY) else []
    reached = parts_reached(text.split("."), labels, lambda part, one: _fits(one, part, _DIGITS))
    return len(labels) in reached


def _looks_like_ipv4(pattern: str) -> bool:
    """Return whether all labels of a pattern are numbers or wildcards, so that it reads as one."""
    plain = _CLASS.sub(lambda one: "*" if one[2].strip("0123456789-") else "0", pattern)
    numbers = all(map(_NUMBER.fullmatch, plain.split(".")))
    return is_glob(pattern) and numbers and any(map(str.isdigit, plain))


def _fits_rest(pattern: str | None, text: str | None, prefix: str = _IN_QUERY) -> bool:
    """True for a part that is there in both and fits, or in neither."""
    if pattern is None or text is None:
        return pattern is text
    return _fits(pattern, text, prefix)


def _fits_mail(pattern: str, text: str) -> bool:
    """True for one address: what stands before and behind the only ``@``."""
    if pattern.count("@") != 1 or text.count("@") != 1:
        return False
    (mailbox, host), (name, domain) = pattern.split("@"), text.split("@")
    return _fits(mailbox, name, _IN_MAILBOX) and _fits_host(host, domain)


def _fits_parts(pattern: str, text: str, fits: Callable[[str, str], bool] | None = None) -> bool:
    parts = pattern.split("/")
    if parts[-1] == DEEP:
        parts.append(ANY)
    return len(parts) in parts_reached(text.split("/"), parts, fits or _fits_part)


def _fits_part(part: str, pattern: str) -> bool:
    return fnmatchcase(part, pattern) if is_glob(pattern) and part not in UP else part == pattern


def _fits_word(part: str, pattern: str) -> bool:
    """Like `_fits_part`, but a pattern such as ``10.*``, which may be the beginning of an IPv4
    address, with or without a port, takes digits and dots alone."""
    host, given = pattern.partition(":")[0], part.partition(":")[0]
    if "." in host and _looks_like_ipv4(host) and not _LONG_NUMBER.search(host):
        return not given.strip("0123456789.") and _fits_part(part, pattern)
    return _fits_part(part, pattern)


def _fits_in_path(part: str, pattern: str) -> bool:
    return _fits(pattern, part, _IN_PATH) and (part == pattern or part not in UP)


def _fits(pattern: str, text: str, prefix: str) -> bool:
    """Return whether a text fits, where a wildcard takes characters of one class alone. In these
    parts ``?`` stands for itself: it begins the query of a URL."""
    if "*" not in pattern and "[" not in pattern:
        return text == pattern
    first, *others = (_expression(piece, prefix) for piece in pattern.split("*"))
    # atomic, as in `fnmatch`: what a star has taken is not tried again
    middle = "".join(f"(?>{prefix}*?{piece})" for piece in others[:-1])
    last = f"{prefix}*{others[-1]}" if others else ""
    try:
        return re.fullmatch(first + middle + last, text, re.ASCII) is not None
    except re.error:  # a class such as [z-a]
        return False


_CLASS: Final = re.compile(r"\[(!?)([^\[\]]+)\]")


def _expression(piece: str, prefix: str) -> str:
    """A piece of a pattern as a regular expression. A class takes only what other wildcards do."""
    out, last = list[str](), 0
    for match in _CLASS.finditer(piece):
        inside = "-".join(map(re.escape, re.split("-+", match[2])))
        negated = "^" if match[1] else ""
        out += [re.escape(piece[last : match.start()]), f"(?={prefix})[{negated}{inside}]"]
        last = match.end()
    return "".join((*out, re.escape(piece[last:])))


def _literals(pattern: str) -> str:
    """A pattern without its classes: what a class takes is no literal."""
    return _CLASS.sub("", pattern)
