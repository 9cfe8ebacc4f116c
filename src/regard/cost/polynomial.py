"""Polynomials in the shape of a batch: rows, tokens of the source, tokens of the target.

They are affine in the rows and of degree 2 at most in the lengths. Fractions keep all of it exact.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

Exponents = tuple[int, int, int]
"""Of the rows, the source's length and the target's."""

_LENGTHS = ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2))


class Polynomial(NamedTuple):
    """Several polynomials at once: for each power product, the coefficient in each of them."""

    coefficients: tuple[tuple[Exponents, tuple[Fraction, ...]], ...]
    outputs: int

    @classmethod
    def of(cls, coefficients: Mapping[Exponents, Sequence[int | Fraction]], outputs: int) -> "Polynomial":
        """`outputs` polynomials; power products that are not given have coefficients of 0."""
        return cls(tuple((key, tuple(map(Fraction, values))) for key, values in coefficients.items()), outputs)

    def __call__(self, rows: int, source: int, target: int) -> list[int]:
        totals = [Fraction(0)] * self.outputs
        for exponents, factors in self.coefficients:
            value = _power_product(exponents, (rows, source, target))
            totals = [total + factor * value for total, factor in zip(totals, factors, strict=True)]
        return [round(total) for total in totals]


def fit_polynomial(values: Callable[[int, int, int], Sequence[int]], first: int, has_source: bool) -> Polynomial:
    """The polynomials through what `values` gives for batches whose texts have `first` to `first` + 2 tokens."""
    lengths = [(source, target) for source, target in _LENGTHS if has_source or source == 0]
    exponents = [(rows, *pair) for rows in (0, 1) for pair in lengths]
    # Points in the same pattern as the exponents determine all coefficients.
    shapes = [(2 + rows, first + source if has_source else 0, first + target) for rows, source, target in exponents]
    system = [[Fraction(_power_product(each, shape)) for each in exponents] for shape in shapes]
    found = [list(values(*shape)) for shape in shapes]
    solved = _solve([left + list(map(Fraction, right)) for left, right in zip(system, found, strict=True)])
    return Polynomial.of(dict(zip(exponents, solved, strict=True)), len(found[0]))


def _power_product(exponents: Exponents, shape: tuple[int, int, int]) -> int:
    return math.prod(int(size**exponent) for size, exponent in zip(shape, exponents, strict=True))


def _solve(system: list[list[Fraction]]) -> list[list[Fraction]]:
    """Solve a square system exactly (Gauss–Jordan); each row holds its coefficients, then its right-hand sides."""
    size = len(system)
    for column in range(size):
        pivot = next(index for index in range(column, size) if system[index][column])
        system[column], system[pivot] = system[pivot], system[column]
        head = system[column][column]
        system[column] = [value / head for value in system[column]]
        for index, row in enumerate(system):
            if index != column and row[column]:
                factor = row[column]
                system[index] = [a - factor * b for a, b in zip(row, system[column], strict=True)]
    return [row[size:] for row in system]
