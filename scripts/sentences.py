"""Find sentences of the documentation that are long, or in words for which there are plainer ones.

``python scripts/sentences.py PAGE`` lists them, ``--write`` lowers the numbers of
``scripts/sentences.toml`` to what is there.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TABLE: Final = ROOT / "scripts" / "sentences.toml"

MAX_WORDS: Final = 25
"""The most words of a sentence. A choice: those who read English as a second language need short
ones; docstrings have at most 20."""

UNUSUAL: Final = re.compile(
    r"\b(?:(?:go(?:es)?|went) over (?:the|your|its)|told (?:as|of|at once)|whoever"
    r"|and its like|save for|save where|by way of|what is said"
    r"|stands? (?:behind words|right behind)"
    r"|bears? (?:the|an?|its|no|all)|come(?:s)? to rest|on its last legs|may but"
    r"|where nobody (?:says|knows)|is gone on with|of ours|nobody (?:is here|can) "
    r"|that (?:speaks|denies|asks) (?:decides|comes)|is no more|goes? for all"
    r"|(?:is|are) told (?:it|what|as|of|that)|for want of)\b",
    re.IGNORECASE,
)
"""Turns of phrase for which there are usual words: *overrides*, *reported*, *anyone who*."""

_GENERATED: Final = re.compile(r"<!-- [^>]*: written by .*?<!-- end of [^>]*-->", re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE: Final = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2 *$", re.DOTALL | re.MULTILINE)
_CODE: Final = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODES: Final = re.compile(r"\bC(?:,? (?:and |or )?C\b)+")
_WORD: Final = re.compile(r"[\w'’-]*\w[\w'’-]*")
_ITEM: Final = re.compile(r"^ *(?:[-*]|\d+\.) ")
_END: Final = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<=[.!?])[*_)\"”]*\s+(?=\S)")


def pages() -> list[Path]:
    """Return the pages that are held to this."""
    names = ("README.md", "CONTRIBUTING.md")
    return [*(ROOT / name for name in names), *sorted((ROOT / "docs").glob("*.md"))]


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page, each with the line that it begins in.

    A piece of code is one word; tables, blocks of code, headings and what a script writes are left
    out.
    """
    for pattern in (_GENERATED, _COMMENT, _FENCE):
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    text = _CODE.sub(lambda match: "C" + "\n" * match[0].count("\n"), text)
    block: list[str] = []
    begin = 1
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        is_text = bool(line.strip()) and not line.lstrip().startswith(("|", "#", "<", "!["))
        if block and (not is_text or _ITEM.match(line)):
            yield from _split(block, begin)
            block = []
        if is_text:
            begin = begin if block else number
            block.append(line)


def _split(block: list[str], begin: int) -> Iterator[tuple[int, str]]:
    text = _ITEM.sub("", "\n".join(block))
    place = 0
    for piece in _END.split(text):
        place = text.index(piece, place)
        line = begin + text.count("\n", 0, place)
        yield line, " ".join(_LINK.sub(r"\1", piece).split())


def words(sentence: str) -> int:
    """Return how many words a sentence has; a list of pieces of code is one."""
    return len(_WORD.findall(_CODES.sub("C", sentence)))


def long_sentences(page: Path) -> list[tuple[int, str]]:
    """Return the sentences of a page that are too long."""
    text = page.read_text(encoding="utf-8")
    return [(line, part) for line, part in sentences(text) if words(part) > MAX_WORDS]


def unusual(page: Path) -> list[tuple[int, str]]:
    """Return the unusual turns of phrase of a page."""
    text = page.read_text(encoding="utf-8")
    return [(line, match[0]) for line, part in sentences(text) for match in UNUSUAL.finditer(part)]


def count() -> dict[str, dict[str, int]]:
    """Return how many of each kind the pages have, without those that have none."""
    kinds = {"long": long_sentences, "unusual": unusual}
    counts = {
        kind: {str(page.relative_to(ROOT)): len(find(page)) for page in pages()}
        for kind, find in kinds.items()
    }
    return {kind: {name: n for name, n in rows.items() if n} for kind, rows in counts.items()}


def read_table() -> dict[str, dict[str, int]]:
    """Return how many of each a page may still have."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def _rows(counts: dict[str, int]) -> str:
    return "".join(f'\n"{name}" = {number}' for name, number in counts.items())


def main(arguments: list[str]) -> None:
    """List what is found, or write the numbers."""
    if "--write" in arguments:
        head = TABLE.read_text(encoding="utf-8").partition("\n[")[0]
        parts = [f"[{kind}]" + _rows(rows) for kind, rows in count().items()]
        TABLE.write_text("\n\n".join([head.rstrip(), *parts]) + "\n", encoding="utf-8")
        return
    for page in pages():
        if not arguments or page.stem in arguments:
            for line, text in [*long_sentences(page), *unusual(page)]:
                print(f"{page.relative_to(ROOT)}:{line}: {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
