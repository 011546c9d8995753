"""The available tools: which one a name means, and which arguments fit it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import ALIASES, loose_name
from mlx_tools.schema import (
    CheckTooLong,
    check_arguments,
    read_properties,
    read_required,
)

Catalog = Mapping[str, Mapping[str, Any]]

_MAX_NAME_CHARS: Final = 200
_LONG_NAME: Final = 6  # a name of at least so many characters is found within a word, too
_MIN_NEAR_CHARS: Final = 3  # characters from which on a name is recognised with one wrong character
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]{1,64}(?:\.|:|/|__)(?=[A-Za-z])")
"""The prefix that a server or a namespace puts before a tool's name."""

_TYPE_KEYWORDS: Final = frozenset(
    ("type", "additionalProperties", "unevaluatedProperties", "anyOf", "oneOf", "not")
)
"""Keywords of JSON Schema whose fault means that a value is of an impossible type, or a key is
unknown.

With any other fault, such as a missing key, the text is a call, but an invalid one."""


def without_prefixes(name: str) -> Iterator[str]:
    """Yield the names that ``name`` may mean: itself, then without its prefixes."""
    while 0 < len(name) <= _MAX_NAME_CHARS:
        yield name
        prefix = _PREFIX.match(name)
        name = name[prefix.end() :] if prefix is not None else ""


class ToolCatalog:
    """The tools by name, each with the schema of its parameters.

    If ``tools`` is None nothing is known, and every name may be a tool's. So a text is searched for
    calls without a catalog.
    """

    def __init__(self, tools: Catalog | None) -> None:
        self._tools = tools or {}
        self.knows_all = tools is None

    def __bool__(self) -> bool:
        return bool(self._tools) or self.knows_all

    @cached_property
    def _by_loose_name(self) -> dict[str, str]:
        names = {loose_name(name): name for name in self._tools}
        other = {loose_name(a): tool for a, tool in ALIASES.items() if tool in self._tools}
        # A tool's own name comes before an alias of another tool.
        return other | names

    def find(self, name: str) -> str:
        """Return the name of the tool that is meant, empty if none is.

        A name may differ in case and separators. It may follow the name of a server, or precede
        ``.call`` as with Llama's built-in tools.
        """
        if self.knows_all or name in self._tools:
            return name.removeprefix("functions.") if self.knows_all else name
        # Names with their prefixes first: a tool may itself be called `server__clock`.
        names = (*without_prefixes(name), *without_prefixes(name.removesuffix(".call")))
        return next((one for one in names if loose_name(one) in self._by_loose_name), "")

    def find_nearly(self, name: str) -> str:
        """Return the tool whose name differs in one missing or wrong character."""
        if meant := self.find(name):
            return meant
        if not _MIN_NEAR_CHARS <= len(name) <= _MAX_NAME_CHARS:
            return ""
        return next((tool for tool in self._tools if _is_near(name, tool)), "")

    @cached_property
    def all_parameters(self) -> frozenset[str]:
        """The names of the parameters of all tools."""
        return frozenset(key for schema in self._tools.values() for key in read_properties(schema))

    def pattern(self, *, glued: bool = False) -> re.Pattern[str]:
        """Return a pattern of the tools' names; short names count as whole words only.

        ``glued``: a name of any length begins a word, and may go on.
        """
        # Alternatives are tried in order: `get` would hide `get_weather`.
        names = sorted(self._tools, key=len, reverse=True)
        if glued:
            return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names)) or '(?!)'})")
        short = "|".join(re.escape(name) for name in names if len(name) < _LONG_NAME)
        long = [re.escape(name) for name in names if len(name) >= _LONG_NAME]
        words = [rf"(?<![\w-])(?:{short})(?![\w-])"] if short else []
        return re.compile("|".join((*long, *words)) or "(?!)", re.IGNORECASE)

    def parameters(self, name: str) -> Mapping[str, Any]:
        """Return the schema of a tool's parameters, empty if the tool is unknown."""
        return self._tools.get(self.own_name(name), {})

    def own_name(self, name: str) -> str:
        """Return a tool's name as the tool has it, empty if the tool is unknown."""
        return name if name in self._tools else self._by_loose_name.get(loose_name(name), "")

    def has_parameter(self, name: str, key: str) -> bool:
        """Return whether a tool's schema names this parameter."""
        return key in read_properties(self.parameters(name))

    def fits(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether a tool of this name could take the arguments.

        It could if there is no unknown key that its schema forbids, and every value is of a
        possible type after the coercions of rule 10. Missing keys do not matter.
        """
        if not self.find(name):
            return False
        try:
            _, _, found = check_arguments(arguments, self.parameters(self.find(name)))
        except (ToolDefinitionError, CheckTooLong, RecursionError):
            return True  # validation says what is wrong
        return not any(fault.validator in _TYPE_KEYWORDS for fault in found)

    def fits_closely(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether the arguments fit, and all of them are parameters."""
        known = read_properties(self.parameters(self.find(name)))
        return arguments.keys() <= known.keys() and self.fits(name, arguments)

    def takes(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether any tool could take the arguments and requires no others."""
        return bool(arguments) and any(self.fits_wholly(name, arguments) for name in self._tools)

    def fits_wholly(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether the arguments fit closely, with all required ones."""
        due = read_required(self.parameters(name))
        return arguments.keys() >= set(due) and self.fits_closely(name, arguments)


def _is_near(name: str, tool: str) -> bool:
    """Return whether two names differ in one missing, added or other character."""
    if abs(len(name) - len(tool)) > 1:
        return False
    long, short = sorted((name, tool), key=len, reverse=True)
    at = next((n for n, char in enumerate(short) if long[n] != char), len(short))
    return long[at + 1 :] in (short[at:], short[at + 1 :])
