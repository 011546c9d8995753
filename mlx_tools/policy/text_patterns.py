"""Match texts and paths against patterns that a person wrote. Pure.

A wildcard matches only what a person expects at its position:

- In a URL each part is matched with the same part of the pattern. So ``https://*.example.com/*``
  matches no other host.
- In a mail address a wildcard does not match a second address.
- In other texts it does not match a character that begins another part of an address, a list or a
  command.
- A pattern of IP addresses, such as ``10.*``, does not match names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import unquote

from mlx_tools.policy.rules import DEEP, is_glob, match_path_parts

ANY: Final = "*"
UPWARD_PARTS: Final = ("", ".", "..")
"""Parts of a path that lead up, or to the same folder."""
_MAX_DECODINGS: Final = 5
"""Times that percent signs are decoded, to see the text that a server may see. A text that still
changes is refused. Servers decode once or twice, so such a text is an attack."""

_SEPARATORS: Final = frozenset("?#@:,;<>|&$`(){}\"'%!=")
"""Characters that begin another part of an address, a list or a command. Outside of URLs a wildcard
matches none of them."""

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
"""The characters that a wildcard matches in each part, as character classes of regular
expressions."""


def fits_text(pattern: str, text: str) -> bool:
    """Return whether a whole text matches a pattern.

    A wildcard does not match ``..`` in a path, or invisible characters.
    """
    if not is_glob(pattern):
        return text == pattern
    if not _is_plain(text):
        return False
    if "://" in pattern:
        return _fits_url(pattern, text)
    if "@" in pattern:
        return _fits_mail(pattern, text)
    same = all(
        text.count(separator) == _remove_classes(pattern).count(separator)
        for separator in _SEPARATORS - {"?"}
    )
    return same and "?" not in text and _fits_parts(pattern, text, _fits_word)


def fits_path(pattern: str, path: str) -> bool:
    """Return whether a resolved path matches a pattern.

    ``*`` ends at ``/``; ``**`` between two slashes matches any number of parts.
    """
    if not is_glob(pattern):
        return path == pattern
    return _is_plain(path, encoded_text=False) and _fits_parts(pattern, path)


def _is_plain(text: str, *, encoded_text: bool = True) -> bool:
    """Return whether a text has no invisible characters and no ``..`` in a path.

    Args:
        text: the text.
        encoded_text: decode percent signs first, also repeatedly. The decoded text must have no
            more separators.
    """
    plain = _decode_percent(text) if encoded_text else text
    if plain is None or not plain.isprintable() or "\\" in plain:
        return False
    added = (set(plain) - set(text)) & _SEPARATORS
    return not added and plain.count("/") == text.count("/") and ".." not in plain.split("/")


def _decode_percent(text: str) -> str | None:
    """Return the text with percent signs decoded until nothing changes.

    None if it still changes after `_MAX_DECODINGS` times.
    """
    for _ in range(_MAX_DECODINGS):
        plain = unquote(text)
        if plain == text:
            return plain
        text = plain
    return None


# --- parts ----------------------------------------------------------------------------------------


def _fits_url(pattern: str, text: str) -> bool:
    expected, actual = _URL.fullmatch(pattern), _URL.fullmatch(text)
    if expected is None or actual is None or " " in text:
        return False
    return (
        _fits(expected["scheme"], actual["scheme"], _LETTERS)
        and _fits_authority(expected["authority"], actual["authority"])
        and _fits_parts(expected["path"], actual["path"], _fits_in_path)
        and _fits_optional(expected["query"], actual["query"])
        and _fits_optional(expected["fragment"], actual["fragment"])
    )


def _fits_authority(pattern: str, text: str) -> bool:
    """Return whether a host and a port match.

    A user's name matches only a pattern without wildcards. Else ``https://example.com@evil`` could
    match.
    """
    if not is_glob(pattern):
        return pattern == text
    if expected := _IPV6.fullmatch(pattern):
        actual = _IPV6.fullmatch(text)
        if actual is None or actual["host"] != expected["host"]:
            return False
        return _fits_optional(expected["port"], actual["port"], _DIGITS)
    expected, actual = _AUTHORITY.fullmatch(pattern), _AUTHORITY.fullmatch(text)
    if expected is None or actual is None or not _HOST.fullmatch(actual["host"]):
        return False
    host = _fits_host(expected["host"], actual["host"])
    return host and _fits_optional(expected["port"], actual["port"], _DIGITS)


def _fits_host(pattern: str, text: str) -> bool:
    """Return whether a host matches.

    A pattern that looks like an IPv4 address does not match names. A ``*`` in it matches digits, or
    the missing numbers: ``10.*`` is 10.0.0.0 to 10.255.255.255.
    """
    if not _looks_like_ipv4(pattern):
        return _fits(pattern, text, _IN_HOST)
    if not _IPV4.fullmatch(text):
        return False
    labels = pattern.split(".")
    if len(labels) < 4:
        labels = [
            expanded for label in labels for expanded in ((DEEP, ANY) if label == ANY else (label,))
        ]
        labels += [DEEP] if labels[-1] != ANY and labels[-1].endswith(ANY) else []
    reached = match_path_parts(
        text.split("."), labels, lambda part, expanded: _fits(expanded, part, _DIGITS)
    )
    return len(labels) in reached


def _looks_like_ipv4(pattern: str) -> bool:
    """Return whether a pattern's labels are numbers or wildcards, as in an address."""
    plain = _CLASS.sub(lambda match: "*" if match[2].strip("0123456789-") else "0", pattern)
    numbers = all(map(_NUMBER.fullmatch, plain.split(".")))
    return is_glob(pattern) and numbers and any(map(str.isdigit, plain))


def _fits_optional(pattern: str | None, text: str | None, char_class: str = _IN_QUERY) -> bool:
    """Return whether an optional part matches, or is missing in both."""
    if pattern is None or text is None:
        return pattern is text
    return _fits(pattern, text, char_class)


def _fits_mail(pattern: str, text: str) -> bool:
    """Return whether a mail address matches, before and after its only ``@``."""
    if pattern.count("@") != 1 or text.count("@") != 1:
        return False
    (mailbox, host), (name, domain) = pattern.split("@"), text.split("@")
    return _fits(mailbox, name, _IN_MAILBOX) and _fits_host(host, domain)


def _fits_parts(pattern: str, text: str, fits: Callable[[str, str], bool] | None = None) -> bool:
    parts = pattern.split("/")
    if parts[-1] == DEEP:
        parts.append(ANY)
    return len(parts) in match_path_parts(text.split("/"), parts, fits or _fits_part)


def _fits_part(part: str, pattern: str) -> bool:
    return (
        fnmatchcase(part, pattern)
        if is_glob(pattern) and part not in UPWARD_PARTS
        else part == pattern
    )


def _fits_word(part: str, pattern: str) -> bool:
    """Match a part of a text that is neither a URL nor an address.

    A pattern such as ``10.*``, which may be the beginning of an IPv4 address, with or without a
    port, only matches digits and dots.
    """
    host, actual = pattern.partition(":")[0], part.partition(":")[0]
    if "." in host and _looks_like_ipv4(host) and not _LONG_NUMBER.search(host):
        return not actual.strip("0123456789.") and _fits_part(part, pattern)
    return _fits_part(part, pattern)


def _fits_in_path(part: str, pattern: str) -> bool:
    return _fits(pattern, part, _IN_PATH) and (part == pattern or part not in UPWARD_PARTS)


def _fits(pattern: str, text: str, char_class: str) -> bool:
    """Match a text with wildcards that match only the characters of one class.

    ``?`` is a plain character here, because it begins the query of a URL.
    """
    if "*" not in pattern and "[" not in pattern:
        return text == pattern
    first, *rest = (_to_expression(piece, char_class) for piece in pattern.split("*"))
    # Atomic groups, as in `fnmatch`, prevent backtracking into an earlier star.
    middle = "".join(f"(?>{char_class}*?{piece})" for piece in rest[:-1])
    last = f"{char_class}*{rest[-1]}" if rest else ""
    try:
        return re.fullmatch(first + middle + last, text, re.ASCII) is not None
    except re.error:  # a class such as [z-a]
        return False


_CLASS: Final = re.compile(r"\[(!?)([^\[\]]+)\]")


def _to_expression(piece: str, char_class: str) -> str:
    """Return a piece of a pattern as a regular expression.

    A class in brackets matches only characters that are also in ``char_class``.
    """
    parts, last = list[str](), 0
    for match in _CLASS.finditer(piece):
        inside = "-".join(map(re.escape, re.split("-+", match[2])))
        negated = "^" if match[1] else ""
        parts += [re.escape(piece[last : match.start()]), f"(?={char_class})[{negated}{inside}]"]
        last = match.end()
    return "".join((*parts, re.escape(piece[last:])))


def _remove_classes(pattern: str) -> str:
    """Return a pattern without its classes in brackets."""
    return _CLASS.sub("", pattern)
