"""The rules of ``.gitignore`` files (gitignore(5)).

They have the same meaning as in git. pathspec converts a line of such a file to a regular
expression. The line may be hostile, and Python's own engine would take for ever for some
expressions, so Rust's linear engine matches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

IGNORE_FILE: Final = ".gitignore"
MAX_IGNORE_BYTES: Final = 256_000
"""Bytes of a ``.gitignore`` that are read. GitHub's largest template has 11,000."""

_GROUP_SIZE: Final = 100
"""Rules that are first tried together, with one expression, because most paths match none."""

_Matches = Callable[[str], bool]


class IgnoreRules:
    """The rules of one ``.gitignore``.

    ``folder`` is the path of its folder, empty or with a ``/`` at its end. Paths below it are
    matched.
    """

    def __init__(self, content: bytes, folder: str) -> None:
        self._skip = len(folder)
        rules = list(_parse_rules(content.decode("utf-8-sig", "replace").split("\n")))
        self._groups = [
            _Group(rules[start : start + _GROUP_SIZE])
            for start in range(0, len(rules), _GROUP_SIZE)
        ]

    def decide(self, path: str) -> bool | None:
        """Return True if the path is ignored, False if included again, otherwise None.

        A folder's path ends in ``/``.
        """
        inner_path = path[self._skip :]
        for group in reversed(self._groups):
            if (decision := group.decide(inner_path)) is not None:
                return decision
        return None


def is_ignored(path: str, rules: Sequence[IgnoreRules]) -> bool:
    """Return whether a path is ignored by the rules above it, the innermost last."""
    for ignore_rules in reversed(rules):
        if (decision := ignore_rules.decide(path)) is not None:
            return decision
    return False


class _Group:
    """Consecutive rules. The last one that matches decides."""

    def __init__(self, rules: Sequence[tuple[str, bool]]) -> None:
        self._rules = rules
        self._any = _compile_expression("|".join(f"(?:{expression})" for expression, _ in rules))
        self._each_matches: list[tuple[_Matches | None, bool]] = []

    def decide(self, path: str) -> bool | None:
        if self._any is not None and not self._any(path):
            return None
        if not self._each_matches:
            self._each_matches = [
                (_compile_expression(text), ignores) for text, ignores in reversed(self._rules)
            ]
        decisions = (
            ignores for match, ignores in self._each_matches if match is not None and match(path)
        )
        return next(decisions, None)


def _parse_rules(lines: Iterable[str]) -> Iterable[tuple[str, bool]]:
    """Yield each rule as a regular expression, and whether it ignores."""
    from pathspec.patterns.gitignore.base import GitIgnorePatternError
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    for line in lines:
        try:
            expression, ignores = GitIgnoreSpecPattern.pattern_to_regex(line.rstrip("\r"))
        except GitIgnorePatternError:  # git ignores such a line too
            continue
        if expression is None or ignores is None:
            continue
        text = str(expression).replace("(?P<ps_d>", "(?:")
        if _compile_expression(text) is not None:
            yield text, ignores


def _compile_expression(expression: str) -> _Matches | None:
    """Compile an expression; None if it does not compile."""
    from pydantic_core import SchemaError, SchemaValidator

    form: Any = {"type": "str", "pattern": expression, "regex_engine": "rust-regex"}
    try:
        return SchemaValidator(form).isinstance_python
    except (SchemaError, UnicodeEncodeError):
        return None
