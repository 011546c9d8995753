"""Control tokens in untrusted text: found, and broken so that no tokenizer takes them for its own.

A completions server tokenises the whole prompt, so a ``<|im_end|>`` in a file or a question would
end the turn. Two ways of breaking one:

- in plain text a visible mark after its first character (``<·|im_end|>``), which `restore` undoes;
- in a JSON string the first character as an escape (``\\u003c|im_end|>``), which loses nothing.

`Composer` joins host text and untrusted text, and sees to the seams between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from mlx_tools.prompt.markers import PROTOCOL_TAGS

MARKS: Final = ("·", "¦", "•", "⋅", "∙")
"""Characters that may break a token; the first that is in no control token is taken."""

LINE_BREAKS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""All that a reader might take for the end of a line, whatever a tokenizer does."""

_OBSERVATION: Final = (r"\{", r'\s{0,8}"type"\s{0,8}:\s{0,8}"tool_observation"')
_OBSERVATION_TEXT: Final = '"type":"tool_observation"'
_ASCII_SPACE: Final = frozenset(char for char in map(chr, range(128)) if char.isspace())
_SHAPE_LENGTH: Final = 64
_BLANKS: Final = 16

_OPENER = re.compile(r"[{\[]")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\\n]|\\.)*("?)|[{}\[\]]')
_UNIT = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL)
_SHORT_ESCAPES: Final = {"b": 8, "t": 9, "n": 10, "f": 12, "r": 13, '"': 34, "/": 47, "\\": 92}
_SURROGATE = re.compile("[\ud800-\udfff]")


class Neutraliser:
    """Breaks control tokens in text that the host did not write.

    ``control_tokens`` are literals. One that begins with a line feed is a delimiter of lines: it is
    also found after any other line break, after blanks, and in either letter case. Literals of one
    character cannot be told from ordinary text and are passed over, and so are blank ones. The tags
    of the ``xml`` style, and the head of an observation's JSON object, are always broken too:
    nobody but the host writes an observation.

    All methods are pure, and linear in the length of the text.
    """

    def __init__(self, control_tokens: Iterable[str] = ()) -> None:
        self._patterns = found = _patterns(tuple(control_tokens))
        self.control_tokens = found.tokens
        self.mark = found.mark
        self.reach = found.reach
        self._literal = found.literal
        self._any = found.any

    def plain(self, text: str) -> str:
        """``text`` with a mark after the first character of every control token.

        The places are found in the text without its marks, and every place gets one mark more than
        it had; so `restore` finds the same places, and gives back the text, whatever it held.
        """
        if not self._any.search(text) and self.mark not in text:
            return text
        return self._marked(text, add=True)

    def restore(self, text: str) -> str:
        """The text that `plain` was given."""
        return self._marked(text, add=False) if self.mark in text else text

    def in_json(self, text: str) -> str:
        """JSON ``text`` with the first character of every control token in a string escaped.

        Every string keeps its value. A token outside of all strings, which JSON cannot hold but a
        model's line may, is broken by the mark.
        """
        if not self._literal.search(text):
            return text
        return self._broken(self._escaped(text, prose=False), self._literal)

    def in_mixed(self, text: str) -> str:
        """A model's own text, prose and JSON in any order: strings as in `in_json`, all else as in
        `plain`."""
        if not self._any.search(text):
            return text
        return self._broken(self._escaped(text, prose=True), self._any)

    def found(self, text: str) -> bool:
        """Whether ``text`` holds a control token, or what could be taken for an observation."""
        return self._any.search(text) is not None

    def seam(self, before: str, after: str, untrusted: int | None = None) -> bool:
        """Whether a control token stands across the end of ``before`` and the start of ``after``.

        Where ``untrusted`` is given, only one that begins before that place of ``before`` counts.
        """
        if not self.may_go_on(before) or not _one_of(after[:1], self._patterns.inside):
            return False
        head = before[-self.reach :]
        limit = len(head) if untrusted is None else untrusted - (len(before) - len(head))
        for match in self._patterns.longest.finditer(head + after[: self.reach]):
            if match.start() >= min(limit, len(head)):
                return False
            if _end(match) > len(head):
                return True
        return False

    def may_go_on(self, text: str) -> bool:
        """False where nothing that is put after ``text`` makes a control token across its end.

        True says little: the last character alone is looked at.
        """
        return _one_of(text[-1:], self._patterns.begun)

    def _marked(self, text: str, *, add: bool) -> str:
        skeleton = text.replace(self.mark, "")
        places = {match.start() for match in self._any.finditer(skeleton)}
        if not places:
            return text
        parts = re.findall(f"[^{self.mark}]{self.mark}*", text)
        parts_from = len(text) - len(text.lstrip(self.mark))
        for place in places:
            part = parts[place]
            parts[place] = part + self.mark if add else part[0] + part[2:]
        return text[:parts_from] + "".join(parts)

    def _broken(self, text: str, pattern: re.Pattern[str]) -> str:
        """``text`` with a mark in whatever ``pattern`` still finds."""
        return pattern.sub(lambda match: match[0] + self.mark, text)

    def _escaped(self, text: str, *, prose: bool) -> str:
        tokens = self._literal.finditer(text)
        token = next(tokens, None)
        parts, done = [], 0
        for start, end in _strings(text, prose=prose):
            while token is not None and _end(token) <= start:
                token = next(tokens, None)
            if token is None:
                break
            if token.start() >= end:
                continue
            parts.append(text[done:start])
            position = start
            for unit in _UNIT.findall(text[start:end]):
                while token is not None and _end(token) <= position:
                    token = next(tokens, None)
                inside = token is not None and token.start() <= position
                escape = _escape(unit) if inside else None
                parts.append(unit if escape is None else escape)
                position += len(unit)
                if escape is not None:
                    token = next(tokens, None)
            done = end
        return "".join((*parts, text[done:]))


class Composer:
    """Text in the making, of host text and neutralised untrusted text.

    Where the end of one and the start of the next would make a control token together, the mark is
    put between them; host text alone is never changed.
    """

    def __init__(self, neutraliser: Neutraliser) -> None:
        self._neutraliser = neutraliser
        self._parts: list[str] = []
        self._tail = ""
        # The place in the tail up to which what goes on over its end may be anybody's.
        self._untrusted = 0

    def host(self, text: str) -> None:
        """Appends what the host wrote."""
        if mark := self._mark_before(text):
            self._append(mark, trusted=False)
            self._untrusted = 0
        self._append(text, trusted=True)

    def before(self, text: str) -> str:
        """All of the text as it would be after `host`; nothing is appended."""
        return f"{self}{self._mark_before(text)}{text}"

    def _mark_before(self, text: str) -> str:
        """What must stand between the end and host text, if anything must."""
        if self._untrusted and not self._neutraliser.may_go_on(self._tail):
            self._untrusted = 0  # no token that begins before the end can go on after it
        if self._untrusted and self._neutraliser.seam(self._tail, text, self._untrusted):
            return self._neutraliser.mark
        return ""

    def untrusted(self, text: str) -> None:
        """Appends text of any origin, already neutralised by itself.

        A lone surrogate, which no server could be sent, becomes U+FFFD.
        """
        text = _SURROGATE.sub("\ufffd", text)
        if text and self._neutraliser.seam(self._tail, text):
            text = self._neutraliser.mark + text
        self._append(text, trusted=False)

    def copy(self) -> Composer:
        """A composer that can be gone on with while this one stays."""
        other = Composer(self._neutraliser)
        other._parts = [str(self)]
        other._tail, other._untrusted = self._tail, self._untrusted
        return other

    def __str__(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return "".join(self._parts)

    def _append(self, text: str, *, trusted: bool) -> None:
        if not text:
            return
        self._parts.append(text)
        tail = self._tail + text[-self._neutraliser.reach :]
        cut = max(0, len(tail) - self._neutraliser.reach)
        self._tail = tail[cut:]
        self._untrusted = max(0, self._untrusted - cut) if trusted else len(self._tail)


class _Patterns(NamedTuple):
    """What a `Neutraliser` looks for. ``longest`` is ``any`` with the longest of tokens first.

    ``begun`` are the ASCII characters after which a token may go on, and ``inside`` those with
    which one may.
    """

    tokens: tuple[str, ...]
    mark: str
    reach: int
    literal: re.Pattern[str]
    any: re.Pattern[str]
    longest: re.Pattern[str]
    begun: frozenset[str]
    inside: frozenset[str]


@lru_cache(maxsize=32)
def _patterns(control_tokens: tuple[str, ...]) -> _Patterns:
    """Kept, because every session of a model needs the same ones."""
    trimmed = {_trimmed(token) for token in (*control_tokens, *PROTOCOL_TAGS)}
    tokens = tuple(sorted(token for token in trimmed if len(token.strip()) > 1))
    spelled = "".join(tokens)
    shortest = sorted(tokens, key=len)
    begun = "".join((*(token[:-1] for token in tokens), "{", _OBSERVATION_TEXT[:-1]))
    inside = "".join((*(token[1:] for token in tokens), _OBSERVATION_TEXT))
    return _Patterns(
        tokens=tokens,
        mark=next(m for m in (*MARKS, *map(chr, range(0x2190, 0x2300))) if m not in spelled),
        reach=_BLANKS + max((_SHAPE_LENGTH, *map(len, tokens))),
        literal=re.compile(_alternatives(shortest)),
        any=re.compile(_alternatives(shortest, _OBSERVATION)),
        longest=re.compile(_alternatives(shortest[::-1], _OBSERVATION)),
        begun=_in_either_case(begun) | _ASCII_SPACE,
        inside=_in_either_case(inside) | _ASCII_SPACE,
    )


def _in_either_case(text: str) -> frozenset[str]:
    """The characters, and all that `re` takes for the same without regard to case."""
    return frozenset((text + text.upper()).lower() + (text + text.lower()).upper() + text)


def _one_of(char: str, chars: frozenset[str]) -> bool:
    """Whether a character may be one of ``chars``; one that is not ASCII always may."""
    return char in chars or not char.isascii()


def _trimmed(token: str) -> str:
    return "\n" + token.strip() if token.startswith("\n") else token.strip()


def _alternatives(tokens: list[str], *shapes: tuple[str, str]) -> str:
    """A pattern that consumes the first character of a token and looks at the rest, as a group.

    Grouped by first and second character, so that text without these is passed over quickly; in a
    group the order stays. ``shapes`` are a first character and a pattern for the rest.
    """
    by_first: dict[str, dict[str, list[str]]] = {}
    for first, rest in shapes:
        by_first.setdefault(first, {}).setdefault("", []).append(rest)
    for token in tokens:
        if token[0] == "\n":
            line = rf"[ \t]{{0,{_BLANKS}}}(?i:{_spelled(token[1:])})"
            by_first.setdefault(f"[{LINE_BREAKS}]", {}).setdefault("", []).append(line)
        else:
            group = by_first.setdefault(re.escape(token[0]), {})
            group.setdefault(_spelled(token[1]), []).append(_spelled(token[2:]))
    return "|".join(f"{first}(?=({_grouped(group)}))" for first, group in by_first.items())


def _grouped(group: dict[str, list[str]]) -> str:
    return "|".join(f"{second}(?:{'|'.join(rest)})" for second, rest in group.items())


def _spelled(text: str) -> str:
    # Sentencepiece writes a space as U+2581, so either may come to the same token.
    return re.sub(r"\\ |▁", "[ ▁]", re.escape(text))


def _end(match: re.Match[str]) -> int:
    assert match.lastindex is not None
    return match.end(match.lastindex)


def _strings(text: str, *, prose: bool) -> Iterator[tuple[int, int]]:
    """Where the insides of JSON strings stand in ``text``.

    With ``prose`` a quote outside of all brackets is no string's.
    """
    depth = position = 0
    while match := (_OPENER if prose and not depth else _STRING_OR_BRACKET).search(text, position):
        position = match.end()
        found = match[0]
        if found[0] == '"':
            yield match.start() + 1, position - len(match[1])
        else:
            depth = max(0, depth + (1 if found in "{[" else -1))


def _escape(unit: str) -> str | None:
    """One character of a JSON string, or one escape, in the form ``\\u....``; None if it is so."""
    if len(unit) == 6:
        return None
    if len(unit) == 2:
        code = _SHORT_ESCAPES.get(unit[1])
        return None if code is None else f"\\u{code:04x}"
    utf16 = unit.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{utf16[i : i + 2].hex()}" for i in range(0, len(utf16), 2))
