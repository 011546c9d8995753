"""``calculator``: calculates the value of an arithmetic expression.

An expression is translated to a Python expression. That is parsed, but never run: `_evaluate_node`
calculates its value, and refuses every node that it does not know. The translation replaces

- ``×``, ``^``, ``mod`` and other operators by Python's,
- a number by a subscript such as ``_['1.5']``, so that Python does not read it as a float,
- ``5!`` and ``15%`` by attributes, which have the right precedence.

An expression with two meanings is an error: ``100 + 5%``, ``3!!``, ``2pi``. A comma groups digits
in threes, except between the arguments of a function.

All numbers are decimals with so many digits that sums, products and whole numbers are exact: 0.1 +
0.2 is 0.3, and 1 / 3 * 3 is 1. The size of numbers is limited, so no expression takes long.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import (
    ROUND_FLOOR,
    ROUND_HALF_UP,
    Context,
    Decimal,
    DecimalException,
    InvalidOperation,
    Overflow,
    Subnormal,
    localcontext,
)
from typing import Any, Final

from mlx_tools.tools import Tool, ToolError, load_words

MAX_CHARS: Final = 1_000
"""Characters of an expression."""
SHORT_CHARS: Final = 100
"""Characters of an expression that is calculated without a thread. It takes at most 40 ms: nine
powers of a number with 3,400 digits."""
MAX_DEPTH: Final = 50
"""Levels of parentheses. Python's parser allows about 200."""
MAX_EXPONENT: Final = 3_000
"""The largest exponent of a number. It keeps results below 3,000 digits."""

_TRAPS: Final = [InvalidOperation, Overflow, Subnormal]
_EXACT: Final = Context(3_400, ROUND_HALF_UP, -3_009, 3_009, traps=_TRAPS)
"""The context of calculations. It refuses larger numbers, and numbers closer to zero."""

_SUM_CONTEXT: Final = Context(3_400, ROUND_HALF_UP, -99_999, 99_999, traps=_TRAPS)
"""The context of sums. Cancellation may leave a number below the limit of `_EXACT` for a moment."""
_ROUNDED: Final = Context(3_350, ROUND_HALF_UP, -3_009, 3_009, traps=_TRAPS)
"""Drops the last 50 digits, because in these 1 / 3 * 3 is not 1."""

_INEXACT: Final = Context(50, ROUND_HALF_UP, -3_009, 3_009, traps=_TRAPS)
"""The context of functions without an exact result, such as logarithms."""
_SIGNIFICANT: Final = Context(38, ROUND_HALF_UP, -3_009, 3_009, traps=_TRAPS)
"""The digits of `_INEXACT` that are used. The last twelve may be wrong."""

_TINY: Final = Decimal("1e-30")
"""Added to a large inexact number, so that it does not count as whole."""

_TOO_LARGE: Final = "the result is too large (more than 3000 digits)"

_MAX_BITS: Final = 10_000
"""Bits of a whole number: a few more than 3,000 digits, which `_EXACT` then refuses."""

_MAX_POWER: Final = 10_000
"""The largest exponent for an exact power of a number with at most `MAX_PLACES` digits."""

DIGITS: Final = 10
"""Significant digits of a number that cannot be written exactly."""

MAX_PLACES: Final = 20
"""Significant digits of a decimal fraction that is still written exactly."""


class CalculationError(Exception):
    """The reason why an expression has no value."""


def calculator() -> Tool:
    """Return the tool.

    A long expression is calculated in a thread, because it may take half a second.
    """

    def calculate(expression: str) -> str:
        try:
            return format_number(evaluate(expression))
        except CalculationError as error:
            raise ToolError(str(error)) from None

    async def run(arguments: Mapping[str, Any]) -> str:
        expression = arguments["expression"]
        if len(expression) <= SHORT_CHARS:
            return calculate(expression)
        import anyio.to_thread  # imported late: it loads slowly, and few expressions are long

        return await anyio.to_thread.run_sync(calculate, expression)

    return Tool(load_words("calculator").spec(frozenset(("read",))), run)


def format_number(value: Decimal) -> str:
    """Return a number as text: exact if whole or a short decimal, else ten digits."""
    number = _ROUNDED.normalize(value)
    _, shown, exponent = number.as_tuple()
    if not number:
        return "0"
    if int(exponent) >= 0 or max(len(shown), -int(exponent)) <= MAX_PLACES:
        return f"{number:f}"
    with localcontext(_EXACT):
        # Digits before the point. Below 0.1 it is negative: the zeros after the point.
        digits = number.adjusted() + 1
        if not -6 < digits < 16:
            text, _, power = f"{number:.{DIGITS - 1}e}".partition("e")
            return f"{text.rstrip('0').rstrip('.')}e{int(power):+d}"
        return f"{number:.{max(DIGITS - digits, 4)}f}".rstrip("0").rstrip(".")


# --- operators and functions --------------------------------------------------------------------


def _to_whole(a: Decimal) -> int:
    """Return the number as an integer.

    Raises:
        CalculationError: it has a fraction.
    """
    rounded = _ROUNDED.plus(a)
    if rounded != rounded.to_integral_value():
        raise CalculationError("a whole number is needed here")
    return int(rounded)


def _floor(a: Decimal) -> Decimal:
    return _ROUNDED.plus(a).to_integral_value(ROUND_FLOOR)


def _add(a: Decimal, b: Decimal) -> Decimal:
    """Return the sum; zero if only the last, inexact digits are left."""
    total = _SUM_CONTEXT.add(a, b)
    if total.adjusted() < max(a.adjusted(), b.adjusted()) - _ROUNDED.prec:
        return Decimal(0)
    return +total


def _subtract(a: Decimal, b: Decimal) -> Decimal:
    return _add(a, -b)


def _divide(a: Decimal, b: Decimal) -> Decimal:
    if not b:
        raise CalculationError("division by zero")
    return a / b


def _modulo(a: Decimal, b: Decimal) -> Decimal:
    """Return the remainder of a division, with the divisor's sign as in Python."""
    return _subtract(a, b * _floor(_divide(a, b)))


def _compute_inexact(function: Callable[..., Decimal], *values: Decimal) -> Decimal:
    """Return the result of an inexact function, rounded to its significant digits.

    A result with more digits before the point never counts as whole.
    """
    value = _SIGNIFICANT.plus(function(*map(_INEXACT.plus, values)))
    return value + _TINY if value and value.adjusted() >= _SIGNIFICANT.prec else value


def _power(a: Decimal, b: Decimal) -> Decimal:
    if not b:
        return Decimal(1)
    if not a and b < 0:
        raise CalculationError("division by zero")
    whole = b == b.to_integral_value()
    if whole and abs(b) <= (_MAX_POWER if len(a.as_tuple().digits) <= MAX_PLACES else 1_000):
        return a**b
    if a < 0 and not whole:
        raise CalculationError("a negative number has no real power with a fraction as exponent")
    return _compute_inexact(_INEXACT.power, a, b)


def _sqrt(a: Decimal) -> Decimal:
    if a < 0:
        raise CalculationError("a negative number has no real square root")
    root = _INEXACT.sqrt(a)
    return root if root * root == a else _compute_inexact(_INEXACT.sqrt, a)


def _round(a: Decimal, digits: Decimal = Decimal(0)) -> Decimal:
    """Round to decimal places; halves go away from zero, as taught in school."""
    places = _to_whole(digits)
    if abs(places) > 300:
        raise CalculationError("at most 300 decimal places")
    scale = Decimal(1).scaleb(-places)
    return (_ROUNDED.plus(a) / scale).to_integral_value(ROUND_HALF_UP) * scale


def _factorial(a: Decimal) -> Decimal:
    n = _to_whole(a)
    if not 0 <= n <= 1000:
        raise CalculationError("a factorial is of a whole number from 0 to 1000")
    return Decimal(math.factorial(n))


def _log(a: Decimal, base: Decimal | None = None) -> Decimal:
    if a <= 0:
        raise CalculationError("a logarithm is of a positive number")
    if base is not None and (base <= 0 or base == 1):
        raise CalculationError("the base of a logarithm is positive and not 1")
    if base is None:
        return _compute_inexact(_INEXACT.ln, a)
    if base == 10:
        return _compute_inexact(_INEXACT.log10, a)
    return _compute_inexact(
        lambda a, base: _INEXACT.divide(_INEXACT.ln(a), _INEXACT.ln(base)), a, base
    )


def _wrap_float(function: Callable[..., float]) -> Callable[..., Decimal]:
    """Return a function on floats as a function on decimals.

    A decimal for pi is not exact. So ``sin(pi)`` gives a tiny number and ``tan(pi / 2)`` a huge
    one; the first counts as zero, and the second as no value.
    """

    def compute(*values: Decimal) -> Decimal:
        floats = [*map(float, values)]
        try:
            value = function(*floats)
        except (ValueError, ZeroDivisionError):
            raise CalculationError("the function has no real value here") from None
        if not all(map(math.isfinite, (*floats, value))):
            raise CalculationError(_TOO_LARGE)
        if function in _CIRCULAR and abs(value) > 1e15:
            raise CalculationError("the function has no real value here")
        if function in _CIRCULAR and abs(value) < 1e-15 and abs(values[0]) > 1e-6:
            return Decimal(0)
        return Decimal(value) + (_TINY if abs(value) > 1e15 else 0)

    return compute


_CIRCULAR: Final = (math.cos, math.sin, math.tan)


def _wrap_integer(function: Callable[..., int]) -> Callable[..., Decimal]:
    return lambda *values: Decimal(function(*map(_to_whole, values)))


def common_multiple(values: Iterable[int]) -> int:
    """Return the least common multiple.

    Raises:
        CalculationError: it is too large. The calculation stops before it takes long.
    """
    multiple = 1
    for value in values:
        multiple = math.lcm(multiple, value)
        if multiple.bit_length() > _MAX_BITS:
            raise CalculationError(_TOO_LARGE)
    return multiple


def _sum(*values: Decimal) -> Decimal:
    return functools.reduce(_add, values)


_CONSTANTS: Final[Mapping[str, Decimal]] = {
    **dict.fromkeys(("pi", "π"), Decimal("3.1415926535897932384626433832795028842")),
    "e": Decimal("2.7182818284590452353602874713526624978"),
    "tau": Decimal("6.2831853071795864769252867665590057684"),
}

_MAX_ARGUMENTS: Final = 100
"""Arguments of a function that takes any number of them."""

_FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Decimal], int, int]]] = {
    **{
        name: (_wrap_float(getattr(math, name)), 1, 1)
        for name in [
            *("acos", "asin", "atan", "cbrt", "cos", "cosh", "degrees", "radians", "sin", "sinh"),
            *("tan", "tanh"),
        ]
    },
    **dict.fromkeys(("average", "avg", "mean"), (lambda *v: _sum(*v) / len(v), 1, _MAX_ARGUMENTS)),
    **dict.fromkeys(("int", "trunc"), (lambda a: _floor(abs(a)).copy_sign(a), 1, 1)),
    "abs": (abs, 1, 1),
    "atan2": (_wrap_float(math.atan2), 2, 2),
    "ceil": (lambda a: -_floor(-a), 1, 1),
    "exp": (lambda a: _compute_inexact(_INEXACT.exp, a), 1, 1),
    "factorial": (_factorial, 1, 1),
    "floor": (_floor, 1, 1),
    "gcd": (_wrap_integer(math.gcd), 1, _MAX_ARGUMENTS),
    "hypot": (lambda *values: _sqrt(_sum(*(a * a for a in values))), 1, _MAX_ARGUMENTS),
    "lcm": (_wrap_integer(lambda *values: common_multiple(values)), 1, _MAX_ARGUMENTS),
    "ln": (_log, 1, 1),
    "log": (_log, 1, 2),
    "log10": (lambda a: _log(a, Decimal(10)), 1, 1),
    "log2": (lambda a: _log(a, Decimal(2)), 1, 1),
    "max": (lambda *values: max(values), 1, _MAX_ARGUMENTS),
    "min": (lambda *values: min(values), 1, _MAX_ARGUMENTS),
    "mod": (_modulo, 2, 2),
    "pow": (_power, 2, 2),
    "round": (_round, 1, 2),
    "sqrt": (_sqrt, 1, 1),
    "sum": (_sum, 1, _MAX_ARGUMENTS),
}


# --- the language -------------------------------------------------------------------------------

_GROUPED_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d*)?", re.ASCII)
"""A number whose digits are grouped in threes by commas."""
_TOKEN = re.compile(
    r"(?P<number>(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?:math\.)?(?P<name>[A-Za-z_π][A-Za-z0-9_]*)"
    r"|(?P<sign>\*\*|//|[-+*/%^!(),×·⋅÷−])",
    re.ASCII,
)
_SIGNS: Final = {"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "^": "**", "!": "._factorial"}
_WORDS: Final = {"of": "*", "mod": "%", "x": "*", "X": "*"}
_PERCENT = re.compile(r"%(?!\s*(?:[\d.(π]|(?!(?:of|mod|[xX])\b)[A-Za-z_]))", re.ASCII)
"""A percent sign that is not a modulo, because no divisor follows."""

_BINARY: Final[Mapping[type[ast.operator], Callable[[Decimal, Decimal], Decimal]]] = {
    ast.Add: _add,
    ast.Sub: _subtract,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: lambda a, b: _floor(_divide(a, b)),
    ast.Mod: _modulo,
    ast.Pow: _power,
}


def evaluate(expression: str) -> Decimal:
    """Return the value of an expression.

    Raises:
        CalculationError: it has no value. The message says what is wrong, and where.
    """
    if len(expression) > MAX_CHARS:
        raise CalculationError(f"the expression is longer than {MAX_CHARS} characters")
    text = expression.strip().removesuffix("=").rstrip()
    if not text:
        raise CalculationError("the expression is empty")
    translation = _Translation(text)
    try:
        with localcontext(_EXACT):
            return +_evaluate_node(ast.parse(translation.python, mode="eval").body)
    except (Overflow, OverflowError):
        raise CalculationError(_TOO_LARGE) from None
    except Subnormal:
        raise CalculationError("the result is too close to zero") from None
    except DecimalException:
        raise CalculationError("the function has no real value here") from None
    except SyntaxError as error:
        raise translation.explain(error) from None
    except (RecursionError, MemoryError):
        raise CalculationError("the expression has too many levels") from None


class _Translation:
    """The translation of an expression to Python.

    Raises:
        CalculationError: the expression has an unknown token or name.
    """

    def __init__(self, text: str) -> None:
        self.python = ""
        self._text = text
        self._offsets: list[tuple[int, int]] = []
        """The offsets of each token in ``python`` and in ``text``."""
        self._open_parentheses: list[bool] = []
        """True for each open parenthesis that belongs to a function."""
        self._after_operand = self._after_function = False
        """The kind of the last token."""
        position = 0
        while position < len(text):
            position = position + 1 if text[position].isspace() else self._translate_token(position)

    def explain(self, error: SyntaxError) -> CalculationError:
        """Return the error for an expression that Python cannot parse."""
        if "never closed" in error.msg:
            return CalculationError("a closing parenthesis is missing at the end")
        if self.python[-1] in "+-*/%,(":
            return CalculationError("the expression ends where a number is due")
        error_offset = error.offset or 1
        starts = [start for offset, start in self._offsets if offset < error_offset]
        return self._unexpected(max(starts, default=0))

    def _unexpected(self, position: int) -> CalculationError:
        return CalculationError(f"unexpected {self._text[position : position + 12]!r}")

    def _translate_token(self, position: int) -> int:
        """Add the token at ``position``, and return the position of its end."""
        in_arguments = bool(self._open_parentheses) and self._open_parentheses[-1]
        grouped = None if in_arguments else _GROUPED_NUMBER.match(self._text, position)
        token = grouped or _TOKEN.match(self._text, position)
        if token is None:
            raise self._unexpected(position)
        self._offsets.append((len(self.python), position))
        name: str | None = None if grouped else token["name"]
        sign: str | None = None if grouped else token["sign"]
        if name in _WORDS and self._after_operand:
            sign = _WORDS[name]
        if sign is not None:
            self._add_sign(sign, token)
        elif name is not None:
            self._add_name(name, is_function=self._text_after(token).startswith("("))
        else:
            self._add_operand(f"_[{token[0]!r}]")
        return token.end()

    def _text_after(self, token: re.Match[str]) -> str:
        """Return the text after a token, without white space before it."""
        return self._text[token.end() :].lstrip()

    def _add_name(self, name: str, *, is_function: bool) -> None:
        self._add_operand(_find_name(name, function=is_function))
        self._after_operand, self._after_function = not is_function, is_function

    def _add_operand(self, python: str) -> None:
        self.python += f"{python} "
        self._after_operand, self._after_function = True, False

    def _add_sign(self, sign: str, token: re.Match[str]) -> None:
        is_percent = False
        if sign == "(":
            self._open_parentheses.append(self._after_function)
            if len(self._open_parentheses) > MAX_DEPTH:
                raise CalculationError(f"more than {MAX_DEPTH} levels of parentheses")
            # A syntax tree of Python has no parentheses, but 100 + (5%) has a value here, and
            # 100 + 5% has none.
            self.python += "(" if self._after_function or self._after_operand else "_group("
        elif sign == ")":
            self._open_parentheses[-1:] = []
            self.python += ")"
        elif self._is_percent(token):
            self.python += "._percent"
            is_percent = True
        else:
            self.python += _SIGNS.get(sign, sign)
        self._after_function = False
        self._after_operand = is_percent or sign in (")", "!")
        if sign == "!" and self._text_after(token).startswith("!"):
            raise CalculationError("!! can mean two things: write factorial(factorial(n))")

    def _is_percent(self, token: re.Match[str]) -> bool:
        """Return whether a token is a percent sign after a number, and not a modulo."""
        is_sign = _PERCENT.match(self._text, token.start()) is not None
        return is_sign and self._after_operand and not self.python.endswith("percent")


def _find_name(name: str, *, function: bool) -> str:
    """Return the key of a name in the tables, which may be written in capitals.

    Args:
        name: the name of a function or constant.
        function: True for a function.

    Raises:
        CalculationError: there is no such name.
    """
    table: Mapping[str, object] = _FUNCTIONS if function else _CONSTANTS
    for candidate in (name, name.lower()):
        if candidate in table:
            return candidate
    if function:
        raise CalculationError(f"there is no function {name[:40]}")
    is_function = name in _FUNCTIONS or name.lower() in _FUNCTIONS
    reason = "needs parentheses" if is_function else "is no number and no known name"
    raise CalculationError(f"{name[:40]} {reason}")


def _parse_number(text: str) -> Decimal:
    plain = text.replace(",", "").replace("_", "").lower()
    exponent = plain.partition("e")[2]
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        raise CalculationError(f"an exponent is at most {MAX_EXPONENT}")
    return Decimal(plain)


def _evaluate_node(node: ast.expr) -> Decimal:
    """Return the value of a node.

    Raises:
        CalculationError: it has no value, or such nodes are not allowed.
    """
    match node:
        case ast.Subscript(ast.Name("_"), ast.Constant(str(text))):
            return _parse_number(text)
        case ast.Name(name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Attribute(inner, "_percent"):
            return _evaluate_node(inner) / 100
        case ast.Attribute(inner, "_factorial"):
            return _factorial(_evaluate_node(inner))
        case ast.UnaryOp(ast.UAdd() | ast.USub() as sign, inner):
            value = _evaluate_node(inner)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left, operator, right):
            first, second = _evaluate_node(left), _evaluate_node(right)
            if isinstance(operator, ast.Add | ast.Sub) and (
                _is_percentage(left) or (_is_percentage(right) and first != 1)
            ):
                raise CalculationError(
                    "a percentage cannot be added: of what is it? Write 100 * 1.05 or 5% of 100"
                )
            return _BINARY[type(operator)](first, second)
        case ast.Call(ast.Name("_group"), [inner], []):
            return _evaluate_node(inner)
        case ast.Call(ast.Name(name), arguments, []) if name in _FUNCTIONS:
            function, minimum, maximum = _FUNCTIONS[name]
            if not minimum <= len(arguments) <= maximum:
                count = str(minimum) if minimum == maximum else f"{minimum} to {maximum}"
                raise CalculationError(f"{name} takes {count} numbers, not {len(arguments)}")
            return function(*(_evaluate_node(argument) for argument in arguments))
        case ast.Tuple() | ast.Call(ast.Name("_group"), [_, *_]):
            raise CalculationError("a comma groups digits in threes, or parts a function's numbers")
    raise CalculationError("a number is missing, or the sign between two of them")


def _is_percentage(node: ast.expr) -> bool:
    while isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Attribute) and node.attr == "_percent"
