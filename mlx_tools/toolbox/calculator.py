"""``calculator``: the value of an arithmetic expression.

An expression is translated to one of Python, which is parsed and never run: only the nodes that are
named here have a value. ``×``, ``^``, ``mod`` and the like become Python's operators, a number the
name of its exact value, ``5!`` and ``15%`` attributes, since those bind as closely. What could mean
two things is an error, never a choice: ``100 + 5%``, ``3!!``, ``2pi``. A comma groups digits in
threes, save between a function's numbers.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from mlx_tools.toolbox import numbers
from mlx_tools.toolbox.numbers import (
    CalculationError,
    Number,
    approximate,
    bounded,
    computed,
    shortest,
    whole,
    write,
)
from mlx_tools.tools import Tool, ToolError, words_of

MAX_CHARS: Final = 1_000
MAX_DEPTH: Final = 50
MAX_EXPONENT: Final = 3_000


def calculator() -> Tool:
    """The tool. It needs neither a thread nor a long time, whatever the expression."""

    async def run(arguments: Mapping[str, Any]) -> str:
        try:
            return write(evaluate(arguments["expression"]))
        except CalculationError as error:
            raise ToolError(str(error)) from None

    return Tool(words_of("calculator").spec(frozenset(("read",))), run)


# --- functions ----------------------------------------------------------------------------------


def _sqrt(a: Number) -> Number:
    if a < 0:
        raise CalculationError("a negative number has no real square root")
    if not isinstance(a, float):
        root = Fraction(math.isqrt(a.numerator), math.isqrt(a.denominator))
        if root * root == a:
            return bounded(root)
    return computed(lambda: math.sqrt(approximate(a)))


def _round(a: Number, digits: Number = 0) -> Number:
    """Rounded to so many decimal places; halves go away from zero, as taught in school."""
    places = whole(digits)
    if abs(places) > 300:
        raise CalculationError("at most 300 decimal places")
    scale = Fraction(10) ** places
    size = Fraction(math.floor(abs(shortest(a)) * scale + Fraction(1, 2))) / scale
    return bounded(size if a >= 0 else -size)


def _factorial(a: Number) -> Number:
    n = whole(a)
    if not 0 <= n <= 1000:
        raise CalculationError("a factorial is of a whole number from 0 to 1000")
    return bounded(math.factorial(n))


def _log(a: Number, base: Number | None = None) -> Number:
    if base is None:
        return _logarithm(a, math.log)
    if base <= 0 or base == 1:
        raise CalculationError("the base of a logarithm is positive and not 1")
    if base == 2:
        return _logarithm(a, math.log2)
    if base == 10:
        return _logarithm(a, math.log10)
    return numbers.divide(_logarithm(a, math.log), _logarithm(base, math.log))


def _logarithm(a: Number, function: Callable[[float], float]) -> float:
    if a <= 0:
        raise CalculationError("a logarithm is of a positive number")
    if isinstance(a, Fraction):
        size = a.numerator.bit_length() - a.denominator.bit_length()
        if abs(size) > 1000:  # beyond floating point, but not beyond its logarithm
            top, bottom = a.numerator, a.denominator
            return computed(lambda: function(top) - function(bottom))
        return computed(lambda: function(float(a)))
    return computed(lambda: function(a))


def _circular(function: Callable[[float], float]) -> Callable[[Number], Number]:
    """Sine, cosine and tangent, with the zeros and the poles that pi in floating point misses."""

    def of(a: Number) -> Number:
        angle = approximate(a)
        value = computed(lambda: function(angle))
        if abs(value) > 1e15:
            raise CalculationError("the function has no real value here")
        return 0 if abs(value) < 1e-15 and abs(angle) > 1e-6 else value

    return of


def _floating(function: Callable[..., float]) -> Callable[..., Number]:
    return lambda *values: computed(lambda: function(*map(approximate, values)))


def _of_whole(function: Callable[..., int]) -> Callable[..., Number]:
    return lambda *values: bounded(function(*map(whole, values)))


def _total(*values: Number) -> Number:
    return functools.reduce(numbers.add, values)


def _mean(*values: Number) -> Number:
    return numbers.divide(_total(*values), len(values))


_CONSTANTS: Final[Mapping[str, Number]] = {
    "pi": math.pi,
    "π": math.pi,
    "e": math.e,
    "tau": math.tau,
}

_ANY: Final = 100
"""How many arguments a function takes that takes any number."""

_FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Number], int, int]]] = {
    **{
        name: (_floating(getattr(math, name)), 1, 1)
        for name in [
            *("acos", "asin", "atan", "cbrt", "cosh", "degrees", "exp", "radians", "sinh", "tanh"),
        ]
    },
    **{name: (_circular(getattr(math, name)), 1, 1) for name in ("cos", "sin", "tan")},
    **dict.fromkeys(("average", "avg", "mean"), (_mean, 1, _ANY)),
    "abs": (abs, 1, 1),
    "atan2": (_floating(math.atan2), 2, 2),
    "ceil": (lambda a: bounded(math.ceil(a)), 1, 1),
    "factorial": (_factorial, 1, 1),
    "floor": (numbers.floor, 1, 1),
    "gcd": (_of_whole(math.gcd), 1, _ANY),
    "hypot": (_floating(math.hypot), 1, _ANY),
    "int": (lambda a: bounded(math.trunc(a)), 1, 1),
    "lcm": (_of_whole(math.lcm), 1, _ANY),
    "ln": (_log, 1, 1),
    "log": (_log, 1, 2),
    "log10": (lambda a: _log(a, 10), 1, 1),
    "log2": (lambda a: _log(a, 2), 1, 1),
    "max": (lambda *values: max(values), 1, _ANY),
    "min": (lambda *values: min(values), 1, _ANY),
    "mod": (numbers.modulo, 2, 2),
    "pow": (numbers.power, 2, 2),
    "round": (_round, 1, 2),
    "sqrt": (_sqrt, 1, 1),
    "sum": (_total, 1, _ANY),
    "trunc": (lambda a: bounded(math.trunc(a)), 1, 1),
}


# --- the language -------------------------------------------------------------------------------

_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d*)?", re.ASCII)
_TOKEN = re.compile(
    r"(?P<number>(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?:math\.)?(?P<name>[A-Za-z_π][A-Za-z0-9_]*)"
    r"|(?P<sign>\*\*|//|[-+*/%^!(),×·⋅÷−])",
    re.ASCII,
)
_SIGNS: Final = {"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "^": "**", "!": "._factorial"}
_WORDS: Final = {"of": "*", "mod": "%", "x": "*", "X": "*"}
_PERCENT = re.compile(r"%(?!\s*(?:[\d.(π]|(?!(?:of|mod|[xX])\b)[A-Za-z_]))", re.ASCII)
"""A percent sign that is no modulo: nothing to divide by follows."""

_BINARY: Final[Mapping[type[ast.operator], Callable[[Number, Number], Number]]] = {
    ast.Add: numbers.add,
    ast.Sub: numbers.subtract,
    ast.Mult: numbers.multiply,
    ast.Div: numbers.divide,
    ast.FloorDiv: numbers.floor_divide,
    ast.Mod: numbers.modulo,
    ast.Pow: numbers.power,
}


def evaluate(expression: str) -> Number:
    """The value of an expression. Raises CalculationError, which says what is wrong and where."""
    if len(expression) > MAX_CHARS:
        raise CalculationError(f"the expression is longer than {MAX_CHARS} characters")
    text = expression.strip().removesuffix("=").rstrip()
    if not text:
        raise CalculationError("the expression is empty")
    python, places, values = _translated(text)
    try:
        return _value(ast.parse(python, mode="eval").body, values)
    except SyntaxError as error:
        if "never closed" in error.msg:
            raise CalculationError("a closing parenthesis is missing at the end") from None
        if python[-1] in "+-*/%,(":
            raise CalculationError("the expression ends where a number is due") from None
        at = max((there for here, there in places if here < (error.offset or 1)), default=0)
        raise CalculationError(f"unexpected {text[at : at + 12]!r}") from None
    except (RecursionError, MemoryError):
        raise CalculationError("the expression has too many levels") from None


def _translated(text: str) -> tuple[str, list[tuple[int, int]], dict[str, Number]]:
    """The expression in Python; where its tokens begin, there and in the text; and what its names
    stand for."""
    python, places, values = "", [], dict[str, Number]()
    open_calls: list[bool] = []  # whether the parentheses that are open are a function's
    operand = function = False  # what the last token was the end of
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        inside = bool(open_calls) and open_calls[-1]
        grouped = None if inside else _GROUPED.match(text, at)
        token = grouped or _TOKEN.match(text, at)
        if token is None:
            raise CalculationError(f"unexpected {text[at : at + 12]!r}")
        places.append((len(python), at))
        found, at = token[0], token.end()
        name: str | None = None if grouped else token["name"]
        sign: str | None = None if grouped else token["sign"]
        if name in _WORDS and operand:
            sign = _WORDS[name]
        if sign is None:
            function = name is not None and text[at:].lstrip().startswith("(")
            key = f"_{len(values)}" if name is None else _known(name, function=function)
            if not function:
                values[key] = _number(found) if name is None else _CONSTANTS[key]
            python += f"{key} "
            operand = not function
            continue
        if sign == "(":
            open_calls.append(function)
            if len(open_calls) > MAX_DEPTH:
                raise CalculationError(f"more than {MAX_DEPTH} levels of parentheses")
            python += "(" if function or operand else "_group("
        elif sign == ")":
            open_calls[-1:] = []
            python += ")"
        elif _PERCENT.match(text, token.start()) and operand and not python.endswith("percent"):
            python += "._percent"
        else:
            python += _SIGNS.get(sign, sign)
        function = False
        operand = sign in (")", "!") or python.endswith("._percent")
        if sign == "!" and text[at:].lstrip().startswith("!"):
            raise CalculationError("!! can mean two things: write factorial(factorial(n))")
    return python, places, values


def _known(name: str, *, function: bool) -> str:
    """The name as the tables have it. Raises CalculationError for one that they do not have."""
    table: Mapping[str, object] = _FUNCTIONS if function else _CONSTANTS
    found = next((one for one in (name, name.lower()) if one in table), None)
    if found is not None:
        return found
    if function:
        raise CalculationError(f"there is no function {name[:40]}")
    known = name in _FUNCTIONS or name.lower() in _FUNCTIONS
    why = "needs parentheses" if known else "is no number and no known name"
    raise CalculationError(f"{name[:40]} {why}")


def _number(text: str) -> Number:
    digits, _, exponent = text.replace(",", "").replace("_", "").lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        raise CalculationError(f"an exponent is at most {MAX_EXPONENT}")
    return bounded(Fraction(digits.rstrip(".")) * Fraction(10) ** int(exponent or 0))


def _value(node: ast.expr, values: Mapping[str, Number]) -> Number:
    """The value of a node. Raises CalculationError for one that has none, or is not allowed."""
    match node:
        case ast.Name(name) if name in values:
            return values[name]
        case ast.Attribute(inner, "_percent"):
            return numbers.divide(_value(inner, values), 100)
        case ast.Attribute(inner, "_factorial"):
            return _factorial(_value(inner, values))
        case ast.UnaryOp(ast.UAdd() | ast.USub() as sign, inner):
            value = _value(inner, values)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left, operator, right):
            first, second = _value(left, values), _value(right, values)
            if isinstance(operator, ast.Add | ast.Sub) and (
                _is_percentage(left) or (_is_percentage(right) and first != 1)
            ):
                raise CalculationError(
                    "a percentage cannot be added: of what is it? Write 100 * 1.05 or 5% of 100"
                )
            return _BINARY[type(operator)](first, second)
        case ast.Call(ast.Name("_group"), [inner], []):
            return _value(inner, values)
        case ast.Call(ast.Name(name), arguments, []) if name in _FUNCTIONS:
            do, least, most = _FUNCTIONS[name]
            if not least <= len(arguments) <= most:
                count = str(least) if least == most else f"{least} to {most}"
                raise CalculationError(f"{name} takes {count} numbers, not {len(arguments)}")
            return do(*(_value(one, values) for one in arguments))
        case ast.Tuple() | ast.Call(ast.Name("_group"), [_, *_]):
            raise CalculationError("a comma groups digits in threes, or parts a function's numbers")
    raise CalculationError("a number is missing, or the sign between two of them")


def _is_percentage(node: ast.expr) -> bool:
    while isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Attribute) and node.attr == "_percent"
