"""Formulas as sums of products, and interpolation."""

from fractions import Fraction

import pytest

from regard.cost.expression import Expression, symbol
from regard.cost.interpolation import interpolate

n, d, T = symbol("n"), symbol("d"), symbol("|T|")
FORMULA = n * d * d * 8 + n * n * d * 4 + n * d * T * 2 + d * Fraction(1, 2) + 1000


def test_terms_are_printed_by_degree_with_lengths_before_widths() -> None:
    assert str(FORMULA) == "4·n²·d + 8·n·d² + 2·n·d·|T| + 1/2·d + 1,000"
    assert (str(Expression()), str(n * 0), str(Expression.of(1)), str(n)) == ("0", "0", "1", "n")


def test_value_is_that_of_the_same_arithmetic_with_numbers() -> None:
    assert FORMULA({"n": 7, "d": 6, "|T|": 11}) == 8 * 7 * 36 + 4 * 49 * 6 + 2 * 7 * 6 * 11 + 3 + 1000


def test_order_leaves_out_factors_of_other_terms() -> None:
    assert FORMULA.order == "O(n²·d + n·d² + n·d·|T|)"
    assert Expression().order == Expression.of(3).order == "O(1)"
    assert (FORMULA.degree("n"), FORMULA.degree("|T|"), FORMULA.degree("m")) == (2, 1, 0)


def test_symbols_that_become_one_are_added() -> None:
    assert str((symbol("m") * n * 2 + n * n * 3).renamed({"m": "n"})) == "5·n²"


@pytest.mark.parametrize("has_source", [False, True])
def test_interpolation_finds_the_polynomial(has_source: bool) -> None:
    def values(rows: int, source: int, target: int) -> list[int]:
        return [rows * (3 * target**2 + 5 * source * target + 2), 7 + rows * source**2]

    first, second = interpolate(values, 2, has_source)
    with_source = "5·m·n·rows + 3·n²·rows + 2·rows" if has_source else "3·n²·rows + 2·rows"
    assert (str(first), str(second)) == (with_source, "m²·rows + 7" if has_source else "7")
