"""Kinds of secrets: their shapes, and how names and context tell a secret.

The table is ``config/secrets.toml``: shapes, names that tell a secret, and words that do not. It is
read once, when this module is imported. A name is cut into words, and the table has the kind of
each word or group of words. The last word decides: a ``page_token`` is no secret, a
``landing_page_api_key`` is one. A value after ``password =`` or ``api_key:`` is a secret only if it
looks like one, and not like a word, a name, a template or a date.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from math import log2
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mlx_tools.paths import read_data

_COLOUR: Final = r"(?<=[\[;0-9][0-9]m)|(?<=\[m)"
_PARTS: Final = {
    "<left>": rf"(?:(?<![A-Za-z0-9])|{_COLOUR})",
    "<edge>": rf"(?:(?<![\w.-])|{_COLOUR})",
    "<right>": "(?![A-Za-z0-9])",
    "<uuid>": "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
}
"""Parts that a pattern of the table names in angle brackets."""

TABLE: Final[dict[str, list[dict[str, Any]]]] = tomllib.loads(read_data("config/secrets.toml"))


class Kind(Struct, frozen=True):
    """A kind of secret with a shape."""

    name: str
    """The name that its placeholders show."""
    hints: tuple[str, ...]
    """Texts of which every such secret contains at least one; looking for them is quick."""
    pattern: str
    """Its shape, a regular expression."""


def _kind(entry: dict[str, str]) -> Kind:
    pattern = entry["pattern"]
    for name, part in _PARTS.items():
        pattern = pattern.replace(name, part)
    return Kind(entry["kind"], tuple(entry["hints"].split()), pattern)


TOKEN_KINDS: Final = tuple(map(_kind, TABLE["tokens"]))
"""All kinds with a shape. If two overlap, the first one names the secret."""

CONTEXT_KINDS: Final = tuple(entry["kind"] for entry in (*TABLE["contexts"], *TABLE["names"]))
"""Kinds that are known by the text before them (`find_in_context`)."""

PATH: Final = "path"
"""The kind of a redacted path."""

KIND_NAMES: Final = frozenset({kind.name for kind in TOKEN_KINDS} | {*CONTEXT_KINDS, PATH})
"""Every name that a placeholder of this package can contain."""


def read_words(group: str, column: str) -> frozenset[str]:
    """Return the words in one column of all entries of a group of the table."""
    return frozenset(word for entry in TABLE[group] for word in entry.get(column, "").split())


@cache
def compile_kinds() -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, re.Pattern[str]], ...]]:
    """Compile the kinds: every hint with its kind's index, and the names and patterns.

    They are compiled at the first use, since it takes a while.
    """
    hints = tuple((hint, index) for index, kind in enumerate(TOKEN_KINDS) for hint in kind.hints)
    return hints, tuple((kind.name, re.compile(kind.pattern, re.ASCII)) for kind in TOKEN_KINDS)


# --- names that tell that what is assigned to them is secret --------------------------------------

MAX_NAME_CHARS: Final = 64
"""Characters of a name that are read, before its sign. A choice: the words that tell are at its
end."""

_NO_NAME = re.compile(r"[^\w.\- \t]+", re.ASCII)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_MAX_NAME_WORDS: Final = 4
"""Words with blanks between them that a name is read from, as in ``secret access key``."""


def _glue_words(phrases: str) -> list[str]:
    """Return the phrases of the table as one word each, with their plurals."""
    glued = phrases.replace("-", "").split()
    return [*glued, *(word + "s" for word in glued)]


_NO: Final = ""
_TELLS: Final[dict[str, str]] = {
    glued: entry["kind"]
    for entry in reversed(TABLE["names"])
    for glued in _glue_words(f"{entry['words']} {entry['whole']}")
} | {glued: _NO for entry in TABLE["not_names"] for glued in _glue_words(entry.get("names", ""))}
"""The kind that words tell, `_NO` if they tell that the value is no secret."""
_LAST: Final = frozenset(_glue_words(" ".join(read_words("not_names", "last"))))
_MAX_PHRASE_WORDS: Final = 4
"""Words of the longest phrase of the table, with camelCase split: ``New York Times``."""


def _longest_first(text: str) -> tuple[int, str]:
    """Return a sort key that gives the same pattern in every process."""
    return -len(text), text


def _build_pattern(phrases: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern of the phrases that branches on the first letter.

    So it fails quickly.
    """
    branches = []
    for letter in sorted({phrase[0] for phrase in phrases}):
        rests = sorted((word[1:] for word in phrases if word[0] == letter), key=_longest_first)
        branches.append(f"{letter}(?:{'|'.join(map(re.escape, rests))})".replace("\\-", "[-_. ]?"))
    return re.compile("|".join(branches))


@cache
def _stem_pattern() -> re.Pattern[str]:
    """Return the pattern of words that tell a secret even within a longer word.

    It is compiled at the first use, since it takes a while.
    """
    return _build_pattern(read_words("names", "words"))


_JOINT = re.compile(r"[-_. ]")


def find_kind(text: str) -> str | None:
    """Return the kind of secret that is assigned to the name at the end of the text.

    None if the name tells no secret.
    """
    piece = " ".join(_NO_NAME.split(text)[-1].split()[-_MAX_NAME_WORDS:])
    kind = _find_sign([word.lower() for word in _WORD.findall(piece)])
    if kind is None and (stem := _stem_pattern().search(piece.lower())):
        kind = _TELLS[_JOINT.sub("", stem[0])]
    return kind or None


def _find_sign(words: list[str]) -> str | None:
    """Return the kind of the last words that tell anything, None if none do."""
    kind, index = None, 0
    while index < len(words):
        for size in range(min(_MAX_PHRASE_WORDS, len(words) - index), 0, -1):
            found_kind = _TELLS.get("".join(words[index : index + size]))
            if found_kind is not None:
                kind = found_kind
                break
        else:
            size = 1
            if stem := _stem_pattern().search(words[index]):
                kind = _TELLS[stem[0]]
            elif index == len(words) - 1 and words[index] in _LAST:
                kind = _NO
        index += size
    return kind


# --- what stands before a value -------------------------------------------------------------------
#
# Each function gets a text and where its *unit* begins: the stretch without blanks and quotes that
# is being judged. What stands before is context: names are read from it, nothing in it is found.

CONTEXT: Final = 120
"""Characters before a unit that are searched for its name: a name, its sign, and a type between."""

_SIGN = re.compile(
    r"(?<=[\w.-])[\"'`\])\\\s]{0,6}[ \t]{0,30}"
    r"(?P<sign>,?[\s\"'\\]{0,24}(?<![\w.-])[Vv]alue[\"'\\]{0,4}\s?[:=]"
    r"|:\s?(?:&(?:'static\s)?)?(?:str|[Ss]tring|bytes|SecretStr)\??\s?="
    r"|(?<=\s)is(?=\s)|\|\||:{1,3}=|\?=|=>|->|={1,3}|%3[Dd]|:|,|>|(?<=[\"'`])\s)"
    r"(?P<gap>[ \t]{9,30}|[\s\"'`=\\(]{0,8})(?:[bBrRuUfF@$]{1,2}(?=[\"'`]))?(?P<quote>[\"'`]?)",
    re.ASCII,
)
_MAX_SIGN_CHARS: Final = 100
"""Characters of the longest match of `_SIGN`."""
_MAX_NESTED_VALUES: Final = 32
"""Values within one value (``a=b=c``) that are judged whole. Further ones are judged by
`_MAX_JUDGED_CHARS`. In a text of nothing but signs each value is within another, and judging them
all whole took half a second for 32 kB."""
_MAX_JUDGED_CHARS: Final = 128
"""Characters that are judged of values deeper than that: as many as `MAX_JUDGED_CHARS`."""
_OPTION = re.compile(
    r"(?:(?:^|\s)--?|(?:setenv|setx?|export|ENV)\s{1,3}(?:-\w{1,3}\s)?)(?P<name>\w[\w.-]{0,60})"
    r"(?P<sign>)(?P<gap>[ \t]{1,4})(?P<quote>[\"']?)$",
    re.ASCII,
)
"""A name and its value with nothing but a blank between, as in ``--token VALUE``."""

_VALUE = re.compile(r"(?:[^\s\"'`<>,;&(){}\[\]|\\]|&(?![\w.%-]{1,40}=))+")
_QUOTED = re.compile(r"[^\s\"'`<>\\{}]+")
_ENVIRONMENT = re.compile(r"(?:^|[\r\n])(?:export[ \t])?[\w.]{1,60}$")
_LISTED_NAME = re.compile(r"[;?&][\w. -]{1,40}$")
"""A name in a connection string, or in the query of a URL."""
_SIGNS = re.compile(r"[!@#$%^&*+?~]")
_QUOTED_END = re.compile(r"\\+$")
_UNQUOTED_END = re.compile(r"[\\;,]+$")

_AUTHORIZATION = re.compile(
    r"authorization[\"'`\\]{0,4}\s{0,4}[:=,>]\s{0,4}[\"'`\\]{0,4}\s{0,2}"
    r"(?:[A-Za-z][A-Za-z-]{1,20}[\s+]{1,4})?",
    re.IGNORECASE | re.ASCII,
)
_SCHEME = re.compile(r"(?<![A-Za-z])(?:[Bb]earer|BEARER|[Bb]asic|BASIC)\s{1,4}", re.ASCII)
_AUTHORIZATION_VALUE = re.compile(r"[\w.~+/=:@%-]{1,4000}", re.ASCII)
_SCHEME_WORDS: Final = frozenset(("bearer", "basic", "token", "digest", "apikey", "oauth", "key"))

_URL = re.compile(
    r"(?<![A-Za-z0-9])(?:[A-Za-z][A-Za-z0-9+.-]{1,24}://[^\s/?#:@]{0,200}:"
    r"|jdbc:oracle:[a-z]{1,8}:[^\s/:@]{1,60}/)",
    re.ASCII,
)
_URL_PASSWORD = re.compile(r"[^\s/?#]{1,300}@(?=[\w\[{$%])")
_URL_TOKEN = re.compile(r"(?:(?<=https://)|(?<=http://))[\w.~%-]{20,200}(?=@\w)", re.ASCII)
_MIN_PASSWORD_CHARS: Final = 4
"""Characters of the shortest password in a URL. Shorter ones are parts of examples, as in ``a:b@``.
"""
_URL_PLACEHOLDERS: Final = frozenset(("password", "passwd", "pass", "pwd", "port", "secret", "pw"))

_LEADS: Final = (
    *("login", "pass", "PASS", "-u", "-user", "mysql", "mariadb", "redis-cli", "bindpw", "rootpw"),
    *("masterauth", "entified", "ENTIFIED"),
)
"""Texts of which every match of `_PASSWORD_NEXT` and `_CURL_KEY` contains one; this is quick to
check."""
_PASSWORD_NEXT = re.compile(
    r"(?:machine|login)\s{1,4}\S{1,60}\s{1,4}(?:login\s{1,4}\S{1,60}\s{1,4})?password\s{1,4}"
    r"|(?<!\S)(?:-u|--user|--proxy-user)[\s=]{0,4}[\"'{]{0,2}[^\s:\"']{0,60}[\"']?:[\"'{]{0,2}"
    r"|sshpass\s{1,4}-p\s{0,4}[\"']?|(?:mysql|mariadb)[\w-]{0,10}\s[^\n|;]{0,60}?(?<=\s)-p[\"']?"
    r"|\slogin\s[^\n|;]{0,60}?(?<=\s)-p\s{1,4}[\"']?|redis-cli\s[^\n|;]{0,60}?(?<=\s)-a\s{1,4}[\"']?"
    r"|(?:requirepass|masterauth|bindpw|rootpw)[ \t]{1,8}[\"']?"
    r"|(?:(?i:identified\s{1,4}by)|(?i:user|role|with)\s{1,4}(?:\S{1,60}\s{1,4})?(?i:password))\s{1,4}[\"']"
)
"""Text before a password in .netrc, on command lines, in settings of servers and in SQL."""
_CURL_KEY = re.compile(r"(?<!\S)(?:-u|--user)[\s=]{0,4}[\"']?(?P<key>[^\s:\"']{12,200}):$")
_JWK = re.compile(r"[\"']d\\?[\"']\s{0,3}:\s{0,3}\\?[\"']")
_AWS = re.compile(r"aws|amazon|secret_?access_?key", re.IGNORECASE)


class SecretSpan(NamedTuple):
    """A secret at ``text[start:end]``, the encoded stretch if it was encoded."""

    kind: str
    start: int
    end: int


def find_in_context(text: str, begin: int, text_after: str) -> Iterator[SecretSpan]:
    """Yield the secrets that the text before them tells, in any order.

    Args:
        text: the context and the unit.
        begin: the start of the unit in ``text``.
        text_after: the character after the unit, empty at the end of all.
    """
    yield from _find_assigned(text, begin, text_after)
    yield from _find_authorized(text, begin)
    yield from _find_in_urls(text, begin)
    yield from _find_after_words(text, begin, text_after)


def _find_assigned(text: str, begin: int, text_after: str) -> Iterator[SecretSpan]:
    reach = begin  # where the last value that is not in quotes ended
    within = 0  # values in a row that began within that one
    for name, signed in _find_signs(text, begin):
        start = signed.end()
        within = within + 1 if start < reach else 0
        if (kind := find_kind(name)) is None:
            continue
        value, quoted = _read_value(text, start, signed, reach, text_after)
        if not quoted:
            reach = max(reach, start + len(value))
        alone = signed["sign"] == "=" and not signed["gap"] and text_after in {"", "\n", "\r"}
        if (
            alone
            and not quoted
            and _ENVIRONMENT.search(text, max(0, signed.start() - 80), signed.start())
        ):
            value = text[start:]  # NAME=VALUE on a line of its own
        whole = start + len(value) == len(text)
        sign, gap = signed["sign"], signed["gap"]
        ends = text_after in {"", "\n", "\r"} or (sign == ">" and text_after == "<")
        ends |= text_after in {" ", "\t"} and (sign == "" or (sign == "=" and not gap))
        listed = sign == "=" and not gap and _LISTED_NAME.search(name) is not None
        tight = not gap.strip("\"'`\\") and whole and ends
        tight |= listed and (whole or text[start + len(value)] in ";&")
        judged = value if within <= _MAX_NESTED_VALUES else value[:_MAX_JUDGED_CHARS]
        if judged and _fits(kind, judged, quoted, tight, whole and ends, signed["sign"]):
            if kind != "password" and len(value) == 40 and _AWS.search(text, 0, start):
                kind = "aws_secret_key"
            yield SecretSpan(kind, start, start + len(value))


def _find_signs(text: str, begin: int) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield each name and its sign after which a value of the unit begins."""
    if option := _OPTION.search(text, max(0, begin - CONTEXT), begin):
        yield option["name"], option
    for signed in _SIGN.finditer(text, max(0, begin - _MAX_SIGN_CHARS)):
        if signed.end() >= begin:
            start = signed.start()
            yield text[max(0, start - MAX_NAME_CHARS) : start], signed


def _read_value(
    text: str, start: int, name_match: re.Match[str], reach: int, text_after: str
) -> tuple[str, bool]:
    """Return the assigned value, and whether it is quoted.

    A closing quote ends a unit. A value within an earlier one ends where that one ends, at
    ``reach``.
    """
    if name_match["quote"] or any(mark in name_match["gap"] for mark in "\"'`"):
        end = _QUOTED_END if text_after in {'"', "'", "`"} else _UNQUOTED_END
        return end.sub("", text[start:]), True
    if start < reach:
        return text[start:reach], False
    match = _VALUE.match(text, start)
    return (match[0] if match else ""), False


def _fits(kind: str, value: str, quoted: bool, tight: bool, ends: bool, sign: str) -> bool:
    # A comma is weak evidence: lists and prose have many. So only a long random value counts.
    if sign == "," and not quoted:
        return looks_random(value, 20) and sum(map(str.isdigit, value)) >= 3
    if kind == "password":
        if looks_random(value):
            return True
        if sign == ",":
            return looks_like_password(value, 8) and any(map(str.isdigit, value))
        if quoted or (tight and sign != ">"):
            return looks_like_password(value)
        return ends and looks_like_password(value, 8) and _is_mixed(value)
    if (
        kind in {"secret", "token", "api_key"}
        and sign != ","
        and _SIGNS.search(value)
        and (quoted or tight)
    ):
        chosen = looks_like_password(value, 16 if kind == "api_key" else 8)
        if chosen and any(map(str.isdigit, value)):
            return True
    return looks_random(value, 10 if kind in {"password", "secret", "token"} else 14)


def _is_mixed(value: str) -> bool:
    """Return whether cases, digits or signs are mixed as in no type's name."""
    digits = sum(map(str.isdigit, value))
    cases = value not in (value.lower(), value.upper())
    return digits >= 2 and cases if _SIGNS.search(value) is None else digits >= 1


def _find_authorized(text: str, begin: int) -> Iterator[SecretSpan]:
    for match in _AUTHORIZATION.finditer(text):
        if match.end() < begin:
            continue
        value = _AUTHORIZATION_VALUE.match(text, match.end())
        if value and value[0].lower() not in _SCHEME_WORDS and _is_credential(value[0]):
            yield SecretSpan("authorization_header", value.start(), value.end())
    for match in _SCHEME.finditer(text):
        value = _AUTHORIZATION_VALUE.match(text, match.end())
        if value and value.start() >= begin and looks_random(value[0], 16):
            yield SecretSpan("authorization_header", value.start(), value.end())


def _is_credential(value: str) -> bool:
    if len(value) < 8 or is_template(value) or is_placeholder(value):
        return False
    return (
        looks_like_password(value)
        or looks_random(value)
        or (value != value.lower() and value.isalnum())
    )


def _find_in_urls(text: str, begin: int) -> Iterator[SecretSpan]:
    if "://" not in text and "jdbc:" not in text:
        return
    for match in _URL.finditer(text):
        if match.end() < begin:
            continue
        password = _URL_PASSWORD.match(text, match.end())
        if password is None:
            continue
        value = password[0][:-1]
        if len(value) < _MIN_PASSWORD_CHARS or value.lower() in _URL_PLACEHOLDERS:
            continue
        if not is_template(value):
            yield SecretSpan("url_password", password.start(), password.end() - 1)
    for match in _URL_TOKEN.finditer(text, begin):
        if looks_random(match[0], 20):
            yield SecretSpan("url_password", match.start(), match.end())


def _find_after_words(text: str, begin: int, text_after: str) -> Iterator[SecretSpan]:
    for match in _JWK.finditer(text):
        value = _VALUE.match(text, match.end())
        if value and value.start() >= begin and len(value[0]) >= 43 and looks_random(value[0]):
            yield SecretSpan("private_jwk", value.start(), value.end())
    if not any(lead in text for lead in _LEADS):
        return
    until = _QUOTED if text_after in {'"', "'"} else _VALUE
    for match in _PASSWORD_NEXT.finditer(text):
        value = until.match(text, match.end())
        if (
            value
            and value.start() >= begin
            and (looks_like_password(value[0], 5) or looks_random(value[0]))
        ):
            yield SecretSpan("password", value.start(), value.end())
    key = _CURL_KEY.search(text)
    if (
        key
        and key.start("key") >= begin
        and (looks_random(key["key"], 12) or _is_mixed(key["key"]))
    ):
        yield SecretSpan("password", key.start("key"), key.end("key"))


# --- what a value looks like: arithmetic on one short text ----------------------------------------

MAX_JUDGED_CHARS: Final = 128
"""Characters of a value that are judged; a longer one is judged by its beginning."""

_TEMPLATE = re.compile(
    r"\$\{|\$\(|\{\{|%\(|<[A-Za-z]|\[redacted:|\.\.\.|…|x{7}|X{7}|\*{3}|\{[A-Za-z_]{0,30}\}|%[sdr]\b"
    r"|\[[A-Za-z0-9^]{1,8}-[A-Za-z0-9]|\{[0-9]{1,4}(?:,[0-9]{0,4})?\}"
    r"|&#?\w{2,6};|^\$[A-Za-z_]\w*(?:$|[/.:])|^%[A-Za-z_]\w*%$|^vault:|^(?:os|process|self|this|ENV|env)[.\[]"
)
_PLACEHOLDER_WORDS: Final = read_words("values", "words")
_SPLIT = re.compile(r"[^A-Za-z0-9]+")
_LETTERS = re.compile(r"[^A-Za-z]+")
_NUMBERED = re.compile(r"(?:[A-Za-z][a-z]*|[A-Z]+)[0-9]{1,3}|[0-9]{1,4}[A-Za-z]{1,3}|[0-9]+")
_CHANGE = re.compile(r"(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]")
_LETTER_RUN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_PAIRS: Final = read_words("values", "pairs")
_HEX = re.compile(r"[0-9A-F:-]+|[0-9a-f:-]+")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}|(?:19|20)[0-9]{2}[01][0-9][0-3][0-9][-_T]?[0-9]{4}|0x[0-9A-Fa-f]{1,16}$"
)
_ADDRESS = re.compile(r"[\w-]+(?:\.[\w-]+){0,9}(?::[0-9]{1,5}){1,2}|\w+(?:\.\w+){2,9}", re.ASCII)
_DOTTED = re.compile(r"\w\.[A-Za-z_]{2,}$")
"""Ends like a name in a module, or a file."""
_CODE = re.compile(
    r"[()\[\]{}]|^\w+\.[A-Za-z_]\w*$|::|->|^[A-Za-z_][\w.]*=$|^[/~.]{0,2}/|^[A-Za-z]:[/\\]|://"
)


def entropy(text: str) -> float:
    """Return Shannon's entropy in bits per character, 0 for an empty text."""
    size = len(text)
    return -sum(n / size * log2(n / size) for n in Counter(text).values()) if size else 0.0


def is_template(value: str) -> bool:
    """Return whether the value is a template to be filled in, or is masked."""
    return bool(_TEMPLATE.search(value[:MAX_JUDGED_CHARS])) or len(set(value)) < 3


def is_placeholder(value: str) -> bool:
    """Return whether words that stand for a secret make up the value.

    An example is ``your-api-key-here``.
    """
    if sum(map(str.isdigit, value)) > 4:
        return False
    return all(word.lower() in _PLACEHOLDER_WORDS for word in _LETTERS.split(value) if word)


def _is_hexadecimal(part: str) -> bool:
    return (
        len(part) >= 16 and bool(_HEX.fullmatch(part)) and entropy(part) > 3 and not part.isdigit()
    )


def looks_random(value: str, shortest: int = 10) -> bool:
    """Return whether a program generated the value: letters and digits, but no words.

    It counts how often letters and digits alternate, and how many pairs of letters occur in words.
    The limits were fitted to samples: keys drawn from the rules of gitleaks must be found, and
    identifiers in Python's standard library and documentation must not
    (``benchmarks/redaction.py``). A higher share of pairs finds more keys and more identifiers. The
    more a value looks like a key in other ways, the higher a share is allowed.
    """
    value = value[:MAX_JUDGED_CHARS]
    if len(value) < shortest or is_template(value) or _TIME.match(value) or "://" in value:
        return False
    if value.isdigit():
        return len(value) >= 15 and entropy(value) > 2
    if "\\" in value or is_placeholder(value):
        return False
    # Repetitive values such as ``abcabcabc`` are below; 16 random digits have about 3 bits. A short
    # value cannot have more than log2 of its length, and 0.7 of it allows for repeats.
    if entropy(value) < min(2.5, log2(len(value)) * 0.7):
        return False
    if _UUID.fullmatch(value):
        return True
    changes = len(_CHANGE.findall(value))
    if changes >= 2 and len(value) >= 16 and _HEX.fullmatch(value):
        return True
    words = [word.lower() for word in _LETTER_RUN.findall(value)]
    letters = sum(map(len, words))
    if _DOTTED.search(value):
        return False
    if any(map(_is_hexadecimal, _SPLIT.split(value))):
        return True
    mixed = value not in (value.lower(), value.upper())
    # In camelCase a word has about six letters. Random letters change case every two; digits
    # between are further evidence, so runs may be longer.
    if mixed and len(words) >= 5 and letters <= (3.5 if changes else 2.9) * len(words):
        return True  # upper and lower case change as they do in no name
    pairs = [word[start : start + 2] for word in words for start in range(len(word) - 1)]
    # Nearly all pairs in words are in the table, and far fewer of those in random letters.
    wordy = sum(pair in _PAIRS for pair in pairs) / len(pairs) if pairs else 0.0
    is_run = len(value) >= 14 and value.rstrip("=").replace("+", "").isalnum()
    digits = sum(map(str.isdigit, value))
    if is_run and letters and digits >= 4 and len(value) >= 16:
        return True
    # Letters and digits alternate more often than in names with a number or two.
    if changes >= max(4, len(value) / 6):
        return is_run or wordy < 0.8
    if changes >= 2:
        numbered = all(_NUMBERED.fullmatch(part) for part in _SPLIT.split(value) if part)
        return wordy < (0.75 if is_run else 0.5) and not numbered
    if is_run and not changes and len(words) == 1:
        return len(value) >= 16 and wordy < 0.6
    # Fewer signs of a key ask for fewer pairs of words: 0.55 with digits in one run of letters, 0.4
    # with digits or capitals, 0.3 for lower case alone, where abbreviations look random too.
    max_share = 0.55 if is_run and changes else 0.4 if changes or value != value.lower() else 0.3
    return len(pairs) >= 9 and wordy < max_share


def looks_like_password(value: str, shortest: int = 6) -> bool:
    """Return whether a person could have chosen the value as a password.

    It has letters with digits or signs, and is neither code nor a word that stands for a password.
    """
    if (
        not shortest <= len(value) <= MAX_JUDGED_CHARS
        or is_template(value)
        or is_placeholder(value)
    ):
        return False
    if any(map(str.isspace, value)) or "://" in value or _ADDRESS.fullmatch(value):
        return False
    letters, digits = any(map(str.isalpha, value)), any(map(str.isdigit, value))
    signs = not set("!@#$%^&*+?~=").isdisjoint(value)
    if not letters or not (digits or signs):
        return False
    return (digits and signs) or _CODE.search(value) is None
