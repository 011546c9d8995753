"""What is known of a call beside its name and its arguments: what `decide` is told."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol

from mlx_tools.messages import MUTATING, Effects, ToolSpec

_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class FoundSecret(Protocol):
    """A secret that was found in a text."""

    @property
    def kind(self) -> str: ...


class SecretFinder(Protocol):
    """What looks through a text: for secrets of known kinds, and for what stands in the place of
    one that was taken out. Pure."""

    def find_secrets(self, text: str, /) -> Sequence[FoundSecret]: ...
    def holds_placeholder(self, text: str, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A rate that leaves no room for the call: the rule's name, and the reason in words."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one call.

    ``consented`` are the effects that a person allowed this tool for the rest of the session, None
    where nobody did. ``secrets`` are the kinds of secrets in the arguments, never the values;
    ``placeholder`` is whether they hold the mark that stands for one. ``private_read``: a private
    tool has answered in this session. ``exceeded`` is the rate that leaves no room for the call.
    """

    consented: Effects | None = None
    secrets: tuple[str, ...] = ()
    placeholder: bool = False
    private_read: bool = False
    exceeded: Exceeded | None = None


NOTHING_KNOWN: Final = Facts()


def facts_of(
    spec: ToolSpec,
    arguments: Mapping[str, Any],
    finder: SecretFinder | None = None,
    *,
    consented: Effects | None = None,
    private_read: bool = False,
    exceeded: Exceeded | None = None,
) -> Facts:
    """The facts of a call with these arguments, which ``finder`` looks through; without one,
    `mlx_tools.policy.redact`.

    They are looked through only for a tool that might do what a find forbids: use the network with
    a secret, change something with a placeholder.
    """
    possible = spec.possible_effects | spec.effects_of(arguments)
    secrets: set[str] = set()
    placeholder = False
    look = _ours() if finder is None else finder
    if "network" in possible:
        texts = (one for text in _texts(arguments) for one in (text, *_undisguised(text)))
        secrets = {one.kind for text in texts for one in look.find_secrets(text)}
    if not MUTATING.isdisjoint(possible):
        placeholder = any(map(look.holds_placeholder, _texts(arguments)))
    return Facts(
        consented=consented,
        secrets=tuple(sorted(secrets)),
        placeholder=placeholder,
        private_read=private_read,
        exceeded=exceeded,
    )


def _ours() -> SecretFinder:
    from mlx_tools.policy import redact  # its patterns take a while to compile

    return redact


def _texts(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Every text in the arguments, names too, as it is; then all as one line of JSON, in which a
    value stands beside its name."""
    left: list[Any] = [arguments]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case Mapping() as mapping:
                left += _flat(mapping.items())
            case list() | tuple() as items:
                left += items
    yield _compact(dict(arguments))


_GAP: Final = re.compile(r"(?:[\s+]|%(?:20|0[0-9ad]))+", re.IGNORECASE)
"""What divides words, in a URL too."""

_JOINED: Final = (2, 3, 4)
"""Pieces that a secret may have been divided into."""

_SHORT_PIECE: Final = 8
"""Characters of pieces of which there may be any number."""

_SHORTEST: Final = 16
"""Characters of the shortest secret that is looked for so."""

_MOST_JOINED: Final = 10_000
"""Characters of a text that is looked at so; a URL and a query have less."""


def _undisguised(text: str) -> Iterator[str]:
    """What a text says to whoever reads wide letters as plain ones, leaves out what cannot be seen,
    and puts together again what was divided by blanks; nothing where that is the text itself."""
    plain = "".join(
        char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char) != "Cf"
    )
    if plain != text:
        yield plain
    pieces = [piece for piece in _GAP.split(plain) if piece] if len(plain) <= _MOST_JOINED else []
    joined = [
        "".join(pieces[at : at + size]) for size in _JOINED for at in range(len(pieces) - size + 1)
    ]
    for short, run in groupby(pieces, key=lambda piece: len(piece) <= _SHORT_PIECE):
        joined += ["".join(run)] if short else []
    if found := [one for one in joined if len(one) >= _SHORTEST]:
        yield "\n\n".join(found)


def _flat(items: Iterable[tuple[str, Any]]) -> Iterator[Any]:
    for name, value in items:
        yield name
        yield value
