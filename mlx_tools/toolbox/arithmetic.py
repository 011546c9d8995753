"""The calculator's language: read in one pass, with a bound on its length and its depth.

Python's own parser is not used: it can be made to run out of stack or memory, and it knows neither
``15% of 80`` nor ``×``. What could mean two things is an error, never a choice: ``100 + 5%``,
``3!!``, ``2pi``. A comma groups digits in threes, save between a function's numbers.

    sum      product (("+" | "-") product)*
    product  sign (("*" | "×" | "/" | "÷" | "//" | "%" | "mod" | "of") sign)*
    sign     ("+" | "-")* power
    power    postfix (("**" | "^") sign)?
    postfix  value "!"? "%"?
    value    number | constant | function "(" sum ("," sum)* ")" | "(" sum ")"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from mlx_tools.toolbox import functions, numbers
from mlx_tools.toolbox.numbers import CalculationError, Number

MAX_CHARS: Final = 1_000
MAX_DEPTH: Final = 50
MAX_EXPONENT: Final = 3_000

_NUMBER = re.compile(r"(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d*)?", re.ASCII)
_NAME = re.compile(r"(?:math\.)?([A-Za-z_π][A-Za-z0-9_]*)", re.ASCII)
_SYMBOL = re.compile(r"\*\*|//|[-+*/%^!(),×·⋅÷−]")
_SAME: Final[Mapping[str, str]] = {"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "^": "**"}

_PRODUCTS: Final[Mapping[str, Callable[[Number, Number], Number]]] = {
    "*": numbers.multiply,
    "/": numbers.divide,
    "//": numbers.floor_divide,
    "%": numbers.modulo,
    "mod": numbers.modulo,
    "of": numbers.multiply,
    "x": numbers.multiply,
    "X": numbers.multiply,
}


class _Value(NamedTuple):
    """A value, and whether it was written as a percentage with no parentheses around it."""

    number: Number
    percent: bool = False


def evaluate(expression: str) -> Number:
    """The value of an expression. Raises CalculationError, which says what is wrong and where."""
    if len(expression) > MAX_CHARS:
        raise CalculationError(f"the expression is longer than {MAX_CHARS} characters")
    return _ExpressionReader(expression.strip().removesuffix("=")).value()


class _ExpressionReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._commas_part = False  # whether a comma here parts the arguments of a function

    def value(self) -> Number:
        if not self._rest():
            raise CalculationError("the expression is empty")
        result = self._sum().number
        if rest := self._rest():
            raise CalculationError(f"unexpected {self._shown(rest)} after a complete expression")
        return result

    # --- the grammar ---

    def _sum(self) -> _Value:
        left = self._product()
        while (symbol := self._take("+", "-")) is not None:
            right = self._product()
            if left.percent or (right.percent and left.number != 1):
                raise CalculationError(
                    "a percentage cannot be added: of what is it? Write 100 * 1.05 or 5% of 100"
                )
            do = numbers.add if symbol == "+" else numbers.subtract
            left = _Value(do(left.number, right.number))
        return left

    def _product(self) -> _Value:
        left = self._sign()
        while (symbol := self._take(*_PRODUCTS)) is not None:
            right = self._sign()
            left = _Value(_PRODUCTS[symbol](left.number, right.number))
        return left

    def _sign(self) -> _Value:
        minus, signed = False, False
        while (symbol := self._take("+", "-")) is not None:
            minus, signed = minus != (symbol == "-"), True
        value = self._power()
        return value._replace(number=-value.number) if minus and signed else value

    def _power(self) -> _Value:
        base = self._postfix()
        if self._take("**") is None:
            return base
        self._enter()
        exponent = self._sign()
        self._depth -= 1
        return _Value(numbers.power(base.number, exponent.number))

    def _postfix(self) -> _Value:
        value = _Value(self._single())
        if self._take("!") is not None:
            value = _Value(functions.factorial(value.number))
            if self._rest().startswith("!"):
                raise CalculationError("!! can mean two things: write factorial(factorial(n))")
        if self._percent_follows():
            self._take("%")
            value = _Value(numbers.divide(value.number, 100), percent=True)
        return value

    def _percent_follows(self) -> bool:
        """Whether the next sign is a percent sign and no modulo: nothing to divide by follows."""
        rest = self._rest()
        if not rest.startswith("%"):
            return False
        after = rest[1:].lstrip()
        word = _NAME.match(after)
        if word:
            return word[1] in ("of", "x", "X", "mod")
        return not after or not (after[0].isdigit() or after[0] in ".(π")

    def _single(self) -> Number:
        rest = self._rest()
        if self._take("(") is not None:
            return self._inside(commas_part=False)[0]
        number = self._number()
        if number is not None:
            return number
        match = _NAME.match(rest)
        if match is None:
            raise CalculationError(
                f"a number is missing before {self._shown(rest)}"
                if rest
                else "the expression ends where a number is due"
            )
        return self._named(match)

    def _named(self, match: re.Match[str]) -> Number:
        name = match[1]
        self._at += match.end()
        function = functions.FUNCTIONS.get(name) or functions.FUNCTIONS.get(name.lower())
        if self._take("(") is not None:
            if function is None:
                raise CalculationError(f"there is no function {name[:40]}")
            do, least, most = function
            values = self._inside(commas_part=True)
            if not least <= len(values) <= most:
                count = str(least) if least == most else f"{least} to {most}"
                raise CalculationError(f"{name} takes {count} numbers, not {len(values)}")
            return do(*values)
        constant = functions.CONSTANTS.get(name, functions.CONSTANTS.get(name.lower()))
        if constant is None:
            why = "needs parentheses" if function else "is no number and no known name"
            raise CalculationError(f"{name[:40]} {why}")
        return constant

    def _inside(self, *, commas_part: bool) -> list[Number]:
        """What stands in parentheses, the opening one taken."""
        self._enter()
        before, self._commas_part = self._commas_part, commas_part
        values = [self._sum().number]
        while commas_part and self._take(",") is not None:
            values.append(self._sum().number)
        if self._take(")") is None:
            rest = self._rest()
            found = f"before {self._shown(rest)}" if rest else "at the end"
            raise CalculationError(f"a closing parenthesis is missing {found}")
        self._commas_part = before
        self._depth -= 1
        return values

    # --- tokens ---

    def _number(self) -> Number | None:
        rest = self._rest()
        match = None if self._commas_part else _GROUPED.match(rest)
        match = match or _NUMBER.match(rest)
        if match is None:
            return None
        text = match[0].replace(",", "").replace("_", "")
        digits, _, exponent = text.lower().partition("e")
        if exponent and abs(int(exponent)) > MAX_EXPONENT:
            raise CalculationError(f"an exponent is at most {MAX_EXPONENT}")
        self._at += match.end()
        value = Fraction(digits.rstrip(".") or digits) * Fraction(10) ** int(exponent or 0)
        after = self._text[self._at : self._at + 1]
        if after == "," and not self._commas_part:
            raise CalculationError("a comma groups digits in threes, or parts a function's numbers")
        if after == "." or after.isdigit():
            raise CalculationError(f"{match[0][:40]}{after} is no number")
        return numbers.bounded(value)

    def _take(self, *wanted: str) -> str | None:
        """The next sign or word, if it is one of these."""
        rest = self._rest()
        match = _SYMBOL.match(rest) or _NAME.match(rest)
        if match is None:
            return None
        found = _SAME.get(match[0], match[0])
        if found not in wanted:
            return None
        self._at += match.end()
        return found

    def _rest(self) -> str:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at :]

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculationError(f"more than {MAX_DEPTH} levels of parentheses or powers")

    @staticmethod
    def _shown(rest: str) -> str:
        return repr(rest[:12])
