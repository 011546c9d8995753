"""Whether a value looks like a secret, or like a word, a name, a template, a date.

What stands behind ``password =`` or ``api_key:`` is only taken for a secret where it looks like
one. Pure arithmetic on one short text; nothing here searches.
"""

from __future__ import annotations

import re
from collections import Counter
from math import log2
from typing import Final

LONGEST_JUDGED: Final = 128
"""Characters of a value that are looked at; what is longer is judged by its beginning."""

_TEMPLATE = re.compile(
    r"\$\{|\$\(|\{\{|%\(|<[A-Za-z]|\[redacted:|\.\.\.|…|x{7}|X{7}|\*{3}|\{[A-Za-z_]{0,30}\}|%[sdr]\b"
    r"|\[[A-Za-z0-9^]{1,8}-[A-Za-z0-9]|\{[0-9]{1,4}(?:,[0-9]{0,4})?\}"
    r"|^\$[A-Za-z_]\w*(?:$|[/.:])|^%[A-Za-z_]\w*%$|^(?:os|process|self|this|ENV|env)[.\[]"
)
_PLACEHOLDER_WORDS: Final = frozenset(
    (  # noqa: SIM905
        "admin bar changeit changeme default demo dummy enter example examplekey examplepassword"
        " examplesecret exampletoken fake false foo foobar fixme hidden insert key me my mykey"
        " mypass mypassword mysecret mytoken none notset null pass passwd password passwort"
        " passphrase placeholder pwd qwerty removed redacted replace replaceme sample secret"
        " some somepassword somesecret sometoken test testkey testpass testpassword testsecret"
        " testtoken testing the this token true undefined unset user value xx xxx xxxx your yourkey"
        " yourpassword yoursecret yourtoken here todo goes api apikey access auth client string"
    ).split()
)
_SPLIT = re.compile(r"[^A-Za-z0-9]+")
_LETTERS = re.compile(r"[^A-Za-z]+")
_NUMBERED = re.compile(r"(?:[A-Za-z][a-z]*|[A-Z]+)[0-9]{1,3}|[0-9]{1,4}[A-Za-z]{1,3}|[0-9]+")
_CHANGE = re.compile(r"(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]")
_LETTER_RUN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_PAIRS: Final = frozenset(
    (  # noqa: SIM905
        "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le"
        " ve co me de hi ri ro ic ne ea ra ce li ch ll be ma si om ur ca el ta la ns di fo ho pe"
        " ec pr no ct us ac ot il tr ly nc et ut ss so rs un lo wa ge ie wh ee wi em ad ol rt po"
        " we na ul ni ts mo ow pa im mi ai sh ir su id os iv ia am fi ci vi pl ig tu ev ld ry mp"
        " fe bl ab gh ty op wo sa ay ex ke ui fr oo ag if ap gr od bo sp rd do uc bu ei ov by rm"
        " ep tt oc fa ef cu rn sc gi da yo cr cl du ga qu ue ff ba ey ls va um pp ua up lu go ht"
        " ru ug ds lt pi rc rr eg au ck ew mu br bi pt ak pu ui rg ib tl ny ki rk ys ob mm fu ph"
        " og ms ye ud mb ip ub oi rl gu dr hr cc tw ft wn nu af hu nn eo vo rv nf xp gn sm fl iz"
        " ok nl my gl aw ju oa eq sy sl ps jo lf nv je nk kn gs dy hy ze ks xt bs ik dd pt rp sk"
    ).split()
)
"""Pairs of letters that nearly all pairs in words of European languages are among."""
_HEX = re.compile(r"[0-9A-F:-]+|[0-9a-f:-]+")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}|(?:19|20)[0-9]{6}[-_T]?[0-9]{4}|0x[0-9A-Fa-f]{1,16}$"
)
_ADDRESS = re.compile(r"[\w-]+(?:\.[\w-]+){0,9}:[0-9]{1,5}|\w+(?:\.\w+){2,9}", re.ASCII)
_CODE = re.compile(r"[()\[\]{}]|^\w+\.[A-Za-z_]\w*$|::|->|^[A-Za-z_][\w.]*=$|^[/~.]{1,2}/|://")


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
    if entropy(value) < min(2.8, log2(len(value)) * 0.7):
        return False
    changes = len(_CHANGE.findall(value))
    if changes >= 2 and len(value) >= 16 and _HEX.fullmatch(value):
        return True
    words = [word.lower() for word in _LETTER_RUN.findall(value)]
    pairs = [word[at : at + 2] for word in words for at in range(len(word) - 1)]
    if changes and len(words) >= 5 and sum(map(len, words)) <= 3.5 * len(words):
        return True  # upper and lower case change as they do in no name
    wordy = sum(pair in _PAIRS for pair in pairs) / len(pairs) if pairs else 0.0
    if changes >= max(4, len(value) / 6):
        return wordy < 0.8
    if changes >= 2:
        return wordy < 0.5 and not all(
            _NUMBERED.fullmatch(part) for part in _SPLIT.split(value) if part
        )
    return len(pairs) >= 9 and wordy < (0.4 if changes or value != value.lower() else 0.3)


def looks_chosen(value: str, shortest: int = 6) -> bool:
    """Whether a person could have chosen the value as a password: letters with digits or signs,
    and neither a piece of code nor a word that stands for a password."""
    if not shortest <= len(value) <= LONGEST_JUDGED or is_template(value) or is_placeholder(value):
        return False
    if any(character.isspace() for character in value) or _ADDRESS.fullmatch(value):
        return False
    kinds = (
        any(character.isalpha() for character in value),
        any(character.isdigit() for character in value),
        any(character in "!@#$%^&*+?~=" for character in value),
    )
    return kinds[0] and (kinds[1] or kinds[2]) and not (_CODE.search(value) and not all(kinds))
