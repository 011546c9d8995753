"""Regular expressions of a schema's ``pattern``, matched in time linear in the text.

A pattern comes from whoever wrote the tool, the text from the model: a backtracking engine can be
made to run for ever by either. Here the pattern becomes an automaton that is walked once (Thompson;
Russ Cox, "Regular Expression Matching Can Be Simple And Fast", 2007), with the sets of states met
on the way remembered. Back references, look-around and flags are not regular, or not JSON Schema's,
and are refused.

Where ECMA-262, JSON Schema's dialect, and Python differ, ECMA-262 holds: ``$`` is the very end, and
``\\d`` and ``\\w`` are ASCII.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

_MAX_NODES: Final = 4000
_MAX_STEPS: Final = 2_000_000  # characters times nodes
_MAX_STATES: Final = 2000
_WORD: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_DIGITS: Final = frozenset("0123456789")
_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z_])")

_Test = Callable[[str], bool]


class UnsupportedPattern(ValueError):
    """The pattern is no regular expression, or one that cannot be matched in linear time."""


class TooLong(ValueError):
    """The text is too long for this pattern."""


_TESTS: Final[dict[str, _Test]] = {
    "CATEGORY_DIGIT": lambda char: char in _DIGITS,
    "CATEGORY_NOT_DIGIT": lambda char: char not in _DIGITS,
    "CATEGORY_WORD": lambda char: char in _WORD,
    "CATEGORY_NOT_WORD": lambda char: char not in _WORD,
    "CATEGORY_SPACE": lambda char: char.isspace() or char == "\ufeff",
    "CATEGORY_NOT_SPACE": lambda char: not (char.isspace() or char == "\ufeff"),
}


class _State:
    """Nodes the automaton may be in, and the state that follows each character."""

    __slots__ = ("after", "nodes", "previous")

    def __init__(self, nodes: frozenset[int], previous: str) -> None:
        self.nodes = nodes
        self.previous = previous  # "": the beginning; else whether a word character came last
        self.after: dict[str, _State | bool] = {}


class Pattern:
    """A compiled pattern. Raises `UnsupportedPattern`."""

    def __init__(self, pattern: str) -> None:
        # A node is (test, next) for a character, (None, nexts) for a fork, (name, next) for an
        # assertion such as AT_END. Node 0 is the match.
        self._nodes: list[tuple[Any, Any]] = [(None, ())]
        self._start = self._sequence(_parsed(pattern), 0)
        self._states: dict[tuple[frozenset[int], str], _State] = {}

    def search(self, text: str) -> bool:
        """Whether the pattern matches anywhere in ``text``. Raises `TooLong`."""
        if len(text) * len(self._nodes) > _MAX_STEPS:
            raise TooLong
        state = self._state(frozenset(), "")
        for char in (*text, ""):
            after = state.after.get(char)
            if after is None:
                after = state.after[char] = self._step(state, char)
            if isinstance(after, bool):
                return after
            state = after
        return False

    def _state(self, nodes: frozenset[int], previous: str) -> _State:
        state = self._states.get((nodes, previous))
        if state is None:
            if len(self._states) >= _MAX_STATES:
                self._states.clear()
            state = self._states[nodes, previous] = _State(nodes, previous)
        return state

    def _step(self, state: _State, char: str) -> _State | bool:
        """What follows ``char``, "" being the end; True as soon as there is a match."""
        todo = [*state.nodes, self._start]
        seen: set[int] = set()
        after: set[int] = set()
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            if number == 0:
                return True
            test, following = self._nodes[number]
            if test is None:
                todo += following
            elif isinstance(test, str):
                if _holds(test, state.previous, char):
                    todo.append(following)
            elif char and test(char):
                after.add(following)
        if not char:
            return False
        return self._state(frozenset(after), "word" if char in _WORD else "other")

    # --- building, from the end to the beginning ---

    def _node(self, test: Any, following: Any) -> int:
        if len(self._nodes) >= _MAX_NODES:
            raise UnsupportedPattern("it is too large")
        self._nodes.append((test, following))
        return len(self._nodes) - 1

    def _sequence(self, items: Iterable[Any], following: int) -> int:
        for operation, argument in reversed(list(items)):
            following = self._item(str(operation), argument, following)
        return following

    def _item(self, operation: str, argument: Any, following: int) -> int:
        match operation:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self._node(_test(operation, argument), following)
            case "AT":
                return self._node(str(argument), following)
            case "BRANCH":
                ways = [self._sequence(branch, following) for branch in argument[1]]
                return self._node(None, tuple(ways))
            case "SUBPATTERN" if not argument[1] and not argument[2]:
                return self._sequence(argument[3], following)
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, item = argument
                return self._repeat(least, most, item, following)
        raise UnsupportedPattern(f"{operation.lower()} cannot be matched in linear time")

    def _repeat(self, least: int, most: Any, item: Any, following: int) -> int:
        if str(most) == "MAXREPEAT":
            again = self._node(None, ())
            body = self._sequence(item, again)
            self._nodes[again] = (None, (body, following))
            entry = again
        else:
            entry = following
            for _ in range(int(most) - least):
                entry = self._node(None, (self._sequence(item, entry), following))
        for _ in range(least):
            before, entry = entry, self._sequence(item, entry)
            if entry == before:  # nothing, any number of times
                break
        return entry


def _holds(assertion: str, previous: str, char: str) -> bool:
    match assertion:
        case "AT_BEGINNING" | "AT_BEGINNING_STRING":
            return not previous
        case "AT_END" | "AT_END_STRING":
            return not char
        case "AT_BOUNDARY":
            return (previous == "word") != (char in _WORD)
        case "AT_NON_BOUNDARY":
            return (previous == "word") == (char in _WORD)
    raise UnsupportedPattern(f"{assertion.lower()} is not known")


def _test(operation: str, argument: Any) -> _Test:
    if operation == "ANY":
        return lambda char: char not in "\n\r\u2028\u2029"
    if operation == "LITERAL":
        literal = chr(argument)
        return lambda char: char == literal
    if operation == "NOT_LITERAL":
        literal = chr(argument)
        return lambda char: char != literal
    negated = False
    tests: list[_Test] = []
    for kind, value in argument:
        match str(kind):
            case "NEGATE":
                negated = True
            case "LITERAL":
                tests.append(_range_test(value, value))
            case "RANGE":
                tests.append(_range_test(*value))
            case "CATEGORY" if str(value) in _TESTS:
                tests.append(_TESTS[str(value)])
            case _:
                raise UnsupportedPattern("a set of characters is not known")
    if negated:
        return lambda char: not any(test(char) for test in tests)
    return lambda char: any(test(char) for test in tests)


def _range_test(first: int, last: int) -> _Test:
    return lambda char: first <= ord(char) <= last


def _parsed(pattern: str) -> Any:
    """The pattern as Python's own parser sees it."""
    try:
        parser = import_module("re._parser")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parser.parse(_NAMED_GROUP.sub("(?P<", pattern), re.ASCII)
    except (ImportError, AttributeError, RecursionError, OverflowError, re.error) as error:
        raise UnsupportedPattern(f"it is no regular expression: {error}") from None
    if tree.state.flags & ~(re.ASCII | re.UNICODE):
        raise UnsupportedPattern("flags are no part of JSON Schema")
    return tree


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Pattern:
    """The pattern, ready for use. Raises `UnsupportedPattern`."""
    try:
        return Pattern(pattern)
    except RecursionError:
        raise UnsupportedPattern("it nests too deeply") from None
