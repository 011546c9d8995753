"""Whether a value looks like a secret, or like a word, a name, a template, a date.

What stands behind ``password =`` or ``api_key:`` is only taken for a secret where it looks like
one. Pure arithmetic on one short text; nothing here searches.
"""

from __future__ import annotations

import re
from collections import Counter
from math import log2
from typing import Final

from mlx_tools.policy.secret_kinds import words_of

LONGEST_JUDGED: Final = 128
"""Characters of a value that are looked at; what is longer is judged by its beginning."""

_TEMPLATE = re.compile(
    r"\$\{|\$\(|\{\{|%\(|<[A-Za-z]|\[redacted:|\.\.\.|…|x{7}|X{7}|\*{3}|\{[A-Za-z_]{0,30}\}|%[sdr]\b"
    r"|\[[A-Za-z0-9^]{1,8}-[A-Za-z0-9]|\{[0-9]{1,4}(?:,[0-9]{0,4})?\}"
    r"|&#?\w{2,6};|^\$[A-Za-z_]\w*(?:$|[/.:])|^%[A-Za-z_]\w*%$|^vault:|^(?:os|process|self|this|ENV|env)[.\[]"
)
_PLACEHOLDER_WORDS: Final = words_of("values", "words")
_SPLIT = re.compile(r"[^A-Za-z0-9]+")
_LETTERS = re.compile(r"[^A-Za-z]+")
_NUMBERED = re.compile(r"(?:[A-Za-z][a-z]*|[A-Z]+)[0-9]{1,3}|[0-9]{1,4}[A-Za-z]{1,3}|[0-9]+")
_CHANGE = re.compile(r"(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]")
_LETTER_RUN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_PAIRS: Final = words_of("values", "pairs")
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
    """Shannon's entropy of the text's characters, in bits for each; 0 of an empty text."""
    size = len(text)
    return -sum(n / size * log2(n / size) for n in Counter(text).values()) if size else 0.0


def is_template(value: str) -> bool:
    """Whether the value stands for one that is filled in elsewhere, or is blotted out."""
    return bool(_TEMPLATE.search(value[:LONGEST_JUDGED])) or len(set(value)) < 3


def is_placeholder(value: str) -> bool:
    """Whether the value is made of words that stand for a secret: ``your-api-key-here``."""
    words = [word.lower() for word in _LETTERS.split(value) if word]
    digits = sum(character.isdigit() for character in value)
    return digits <= 4 and all(word in _PLACEHOLDER_WORDS for word in words)


def _is_hexadecimal(part: str) -> bool:
    return (
        len(part) >= 16 and bool(_HEX.fullmatch(part)) and entropy(part) > 3 and not part.isdigit()
    )


def looks_made(value: str, shortest: int = 10) -> bool:
    """Whether a machine made the value: letters and digits without words in them.

    Told by how often letters and digits change, and by how many pairs of letters are such as
    words have.
    """
    value = value[:LONGEST_JUDGED]
    if len(value) < shortest or is_template(value) or _TIME.match(value) or "://" in value:
        return False
    if value.isdigit():
        return len(value) >= 15 and entropy(value) > 2
    if "\\" in value or is_placeholder(value):
        return False
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
    if mixed and len(words) >= 5 and letters <= (3.5 if changes else 2.9) * len(words):
        return True  # upper and lower case change as they do in no name
    pairs = [word[at : at + 2] for word in words for at in range(len(word) - 1)]
    wordy = sum(pair in _PAIRS for pair in pairs) / len(pairs) if pairs else 0.0
    one = len(value) >= 14 and value.rstrip("=").replace("+", "").isalnum()
    digits = sum(map(str.isdigit, value))
    if one and letters and digits >= 4 and len(value) >= 16:
        return True
    if changes >= max(4, len(value) / 6):
        return one or wordy < 0.8
    if changes >= 2:
        numbered = all(_NUMBERED.fullmatch(part) for part in _SPLIT.split(value) if part)
        return wordy < (0.75 if one else 0.5) and not numbered
    if one and not changes and len(words) == 1:
        return len(value) >= 16 and wordy < 0.6
    least = 0.55 if one and changes else 0.4 if changes or value != value.lower() else 0.3
    return len(pairs) >= 9 and wordy < least


def looks_chosen(value: str, shortest: int = 6) -> bool:
    """Whether a person could have chosen the value as a password: letters with digits or signs,
    and neither a piece of code nor a word that stands for a password."""
    if not shortest <= len(value) <= LONGEST_JUDGED or is_template(value) or is_placeholder(value):
        return False
    if any(c.isspace() for c in value) or "://" in value or _ADDRESS.fullmatch(value):
        return False
    kinds = (
        any(character.isalpha() for character in value),
        any(character.isdigit() for character in value),
        any(character in "!@#$%^&*+?~=" for character in value),
    )
    return kinds[0] and (kinds[1] or kinds[2]) and not (_CODE.search(value) and not all(kinds))
