"""The calculator: right, short, and bounded."""

from __future__ import annotations

import asyncio
import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import builtin_tools
from mlx_tools.plugins.basics.calculator import (
    MAX_CHARS,
    CalculationError,
    calculator,
    common_multiple,
    evaluate,
    format_number,
)
from tests.tables import table
from tests.tools.file_calls import execute_call


def value(expression: str) -> str:
    return format_number(evaluate(expression))


@table(
    ("expression", "expected"),
    [
        *(("17 * 23", "391"), ("0.1 + 0.2", "0.3"), ("10/4", "2.5"), ("1/3", "0.3333333333")),
        *(("-2/3", "-0.6666666667"), ("22 / 7", "3.142857143"), ("2 + 3 * 4 - 5", "9")),
        *(("(2 + 3) * 4", "20"), ("8 / 4 / 2", "1"), ("2 ** 3 ** 2", "512"), ("2^10", "1024")),
        *(("-2 ** 2", "-4"), ("2 ** -2", "0.25"), ("--5 - -3", "8"), ("7 // 2", "3")),
        *(("-7 // 2", "-4"), ("-7 % 3", "2"), ("7.5 % 2", "1.5"), ("10 mod 4", "2")),
        *(("3 × 4 ÷ 2 − 1", "5"), ("17 x 23", "391"), ("1,234,567.5 * 2", "2469135")),
        *(("1_000 + 1", "1001"), ("max(1,234)", "234"), ("max((1,234), 5)", "1234")),
        *((".5 + 5.", "5.5"), ("1e3 + 2.5E-1", "1000.25"), ("17 * 23 =", "391"), ("  42  ", "42")),
        *(("15% of 80", "12"), ("200 * 15%", "30"), ("50%", "0.5"), ("80 * (1 - 20%)", "64")),
        *(("10 % 3", "1"), ("5!", "120"), ("sqrt(16) + sqrt(0.25)", "4.5")),
        *(("sqrt(2)", "1.414213562"), ("sqrt(2) ** 2", "2"), ("math.sqrt(9)", "3")),
        *(("SQRT(9) + PI - pi", "3"), ("abs(-3.5)", "3.5"), ("round(2.5)", "3")),
        *(("round(-2.5)", "-3"), ("round(2.675, 2)", "2.68"), ("round(1234, -2)", "1200")),
        *(("floor(-2.5) + ceil(2.1)", "0"), ("min(3, 1, 2)", "1"), ("max(7) - min(1/2)", "6.5")),
        *(("sum(1, 2, 3) / mean(1, 3)", "3"), ("factorial(20)", "2432902008176640000")),
        ("2 ** 100", "1267650600228229401496703205376"),
        *(("log10(1000) + log2(8) + log(81, 3)", "10"), ("ln(e)", "1")),
        *(("log(100)", "4.605170186"), ("log10(10 ** 1000)", "1000"), ("exp(1)", "2.718281828")),
        *(("sin(pi) + cos(pi / 2)", "0"), ("sin(pi / 6)", "0.5"), ("degrees(pi)", "180")),
        *(("gcd(12, 18) + lcm(4, 6)", "18"), ("hypot(3, 4)", "5")),
        *(("pow(2, 5) + mod(-7, 3)", "34"), ("8 ** (1 / 3)", "2")),
        *(("(1 + 0.05 / 12) ** 360", "4.467744314"), ("1.0000001 ** 10000000", "2.718281693")),
        *(("123456789012 / 7", "17636684144.5714"), ("10 ** 20 / 3", "3.333333333e+19")),
        *(("1 / 7 / 10 ** 9", "1.428571429e-10"), ("10 ** -30", "1e-30"), ("0.1 ** 5", "0.00001")),
        *(("0 ** 0", "1"), ("-0.0", "0"), ("1e15 + 0.5", "1000000000000000.5")),
        *(("99999.99999999999 / 1", "99999.99999999999"), ("exp(1000)", "1.970071114e+434")),
        *(("floor(10 / 3 * 3) + int(-1/3 * 3)", "9"), ("(1/3 + 2/3)! + floor(ln(e))", "2")),
        *(("ceil(log2(8)) + floor(log(81, 3))", "7"), ("exp(1) - e", "0"), ("10 / 3 * 3", "10")),
        *(("2/3 - 1/3 - 1/3", "0"), ("100 * (1/3) * 3 - 100", "0"), ("1 % (1/3)", "0")),
        *(("floor((1/3) ** 2 * 9)", "1"), ("2 ** 9999 % 10", "8"), ("0 ** 1e9", "0")),
        *(("tau - 2 * pi", "0"), ("tau mod π", "0")),
        *(("factorial(22) / factorial(21)", "22"), ("10 ** 20 / 3 * 3", "100000000000000000000")),
    ],
)
def test_an_expression_has_its_value(expression: str, expected: str) -> None:
    assert value(expression) == expected


@table(
    ("expression", "what"),
    [
        *(("", "empty"), ("=", "empty"), ("1 / 0", "division by zero")),
        *(("1 % 0", "division by zero"), ("1 // 0.0", "division by zero")),
        *(("0 ** -1", "division by zero"), ("1 +", "ends where a number is due")),
        *(("* 2", "unexpected"), ("(1", "closing parenthesis is missing"), ("1)", "unexpected")),
        *(("1 2", "unexpected"), ("2(3)", "the sign between"), ("2pi", "unexpected")),
        *(("2 = 2", "unexpected"), ("1 < 2", "unexpected"), ("1..2", "unexpected")),
        *(("1.2.3", "unexpected"), ("1,23 + 1", "comma"), ("1,000,00", "comma")),
        *(("$5", "unexpected"), ("x + 1", "no known name"), ("foo(3)", "no function foo")),
        *(("__import__('os')", "no function __import__"), ("(1).__class__", "unexpected")),
        *(("sqrt", "needs parentheses"), ("sqrt()", "takes 1 numbers, not 0")),
        *(("max(*2)", "a number is missing"), ("max(**2)", "a number is missing")),
        *(("5%%", "number is due"), ("_group(1)", "no function"), ("1 ._percent", "unexpected")),
        *(("sqrt(1, 2)", "takes 1"), ("log(1, 2, 3)", "takes 1 to 2"), ("100 + 5%", "percentage")),
        *(("50% - 3", "percentage"), ("10 % -3", "percentage"), ("3!!", "two things")),
        *(("sqrt(-1)", "no real"), ("(-8) ** (1/3)", "no real"), ("log(0)", "positive")),
        *(("log(2, 1)", "base"), ("asin(2)", "no real value"), ("tan(pi / 2)", "no real value")),
        *(("factorial(-1)", "factorial"), ("factorial(2.5)", "whole number")),
        *(("gcd(1.5, 2)", "whole number"), ("٣ + ٤", "unexpected")),
        # bounds
        *(("9 ** 9 ** 9", "too large"), ("9 ** 99999999", "too large")),
        *(("2 ** 2 ** 2 ** 2 ** 2 ** 2", "too large"), ("1.5 ** (10 ** 100)", "too large")),
        *(("0.5 ** (10 ** 100)", "too"), ("2 ** -10000", "too close to zero")),
        *(("1e-3000 / 1e100", "too close to zero"), ("10 ** 3000 * 10 ** 3000", "too large")),
        *(("factorial(1001)", "factorial"), ("factorial(10 ** 9)", "factorial")),
        *(("exp(10000)", "too large"), ("1e999999999", "exponent")),
        *(("1e00000000000099999999", "exponent"), ("degrees(1e307)", "too large")),
        *(("round(1/3, 10 ** 9)", "decimal places"), ("(" * 60 + "1" + ")" * 60, "levels")),
        *(("2**" * 60 + "1", "too large"), ("1" * (MAX_CHARS + 1), "longer than")),
    ],
)
def test_what_has_no_value_says_why(expression: str, what: str) -> None:
    with pytest.raises(CalculationError, match=what):
        evaluate(expression)


@table(
    "expression",
    [
        *("-" * (MAX_CHARS - 1) + "1", "(" * 49 + "1" + ")" * 49, "1/7+" * 249 + "1"),
        *("(10**2999-1)/(10**2999-7)+" * 30 + "1", "round(10**2999/7,300)+" * 30 + "1"),
        *("factorial(1000)/factorial(999)*" * 30 + "1", "10**2999%7+" * 80 + "1"),
        *("1.1**1.1**" * 40 + "1", "9" * MAX_CHARS, "0." + "3" * (MAX_CHARS - 2)),
        *("1e3000/7*1e-3000*" * 50 + "1", "gcd(10**2999," * 49 + "1" + ")" * 49),
        *("sqrt(1/7)+" * 90 + "1", "exp(1/7)*ln(1/7)+" * 55 + "1", "(1/3)**2999+" * 80 + "1"),
        *("1e-3000**-1e-3000+" * 50 + "1", "2**0.5**" * 120 + "3", "9**-1e3000"),
        "(1+1e-300)**1e300+" * 55 + "1",
    ],
)
def test_hard_work_is_bounded(expression: str) -> None:
    try:
        assert len(value(expression)) <= 3100
    except CalculationError as error:
        assert len(str(error)) < 200


@given(
    st.decimals(min_value=-(10**6), max_value=10**6, places=3),
    st.decimals(min_value=-(10**6), max_value=10**6, places=3),
)
def test_decimal_fractions_are_exact(a: object, b: object) -> None:
    assert Fraction(value(f"({a}) + ({b})")) == Fraction(str(a)) + Fraction(str(b))


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_ten_digits_are_right(number: float) -> None:
    assert math.isclose(float(format_number(Decimal(number))), number, rel_tol=6e-10)
    assert math.isclose(float(format_number(-Decimal(number) / 3)), -number / 3, rel_tol=6e-10)


EXPRESSIONS = st.text(alphabet="0123456789.,+-*/%^!()eE x pi sqrt of modπ×÷", max_size=60)


@given(st.one_of(st.text(max_size=50), EXPRESSIONS))
def test_any_text_has_a_value_or_an_error(expression: str) -> None:
    try:
        assert value(expression)
    except CalculationError as error:
        assert 0 < len(str(error)) < 200


NUMBERS = st.integers(0, 99).map(str)
TREES = st.recursive(
    NUMBERS,
    lambda inner: st.builds(
        lambda a, sign, b: f"({a} {sign} {b})", inner, st.sampled_from(["+", "-", "*", "/"]), inner
    ),
    max_leaves=8,
)


def exactly(text: str) -> Fraction:
    """The value by another way: Python's own evaluation on fractions."""
    import re

    return Fraction(eval(re.sub(r"\d+", lambda n: f"Fraction({n[0]})", text)))


@given(TREES)
def test_it_agrees_with_exact_arithmetic(expression: str) -> None:
    try:
        expected = exactly(expression)
    except ZeroDivisionError:
        with pytest.raises(CalculationError, match="division by zero"):
            evaluate(expression)
        return
    found = Fraction(evaluate(expression))
    assert abs(found - expected) <= abs(expected) * Fraction(10) ** -3300


def test_the_tool_answers_and_says_what_is_wrong() -> None:
    calculator = builtin_tools().get("calculator")
    assert execute_call(calculator, expression="17 * 23").content == "391"
    error = execute_call(calculator, expression="1 / 0").error
    assert error is not None and (error.code, error.message) == ("tool_error", "division by zero")


def test_a_common_multiple_is_given_up_before_it_is_large() -> None:
    powers = iter([2**9000, 3**6000, *([5**4000] * 90)])
    with pytest.raises(CalculationError, match="too large"):
        common_multiple(powers)
    assert len([*powers]) == 90
    assert common_multiple([4, -6, 10]) == 60 and common_multiple([7, 0]) == 0
    with pytest.raises(CalculationError, match="too large"):
        evaluate("lcm(2**9000, 3**6000, 5**4000)")


def test_a_long_expression_is_calculated_beside_the_event_loop() -> None:
    seen: list[int] = []

    async def calculate(expression: str) -> str:
        served = asyncio.Event()
        asyncio.get_running_loop().call_soon(served.set)
        text = await calculator().call({"expression": expression})
        seen.append(served.is_set())
        return str(text)

    assert asyncio.run(calculate("1 + 1")) == "2"
    assert asyncio.run(calculate(" + ".join("1" * 50))) == "50"
    assert seen == [False, True]
