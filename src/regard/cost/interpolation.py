"""The polynomials through what was counted for a few short batches, in the rows and lengths of a batch.

They are affine in the rows and of degree 2 at most in the lengths. Fractions keep all of it exact.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from regard.cost.expression import Expression, Product, expression

Exponents = tuple[int, int, int]
"""Of the rows, the source's length and the target's."""

ROWS, SOURCE, TARGET = SYMBOLS = ("rows", "m", "n")
_LENGTHS = ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2))


def interpolate(
    values: Callable[[int, int, int], Sequence[int]], first: int, has_source: bool
) -> tuple[Expression, ...]:
    """The polynomials through what `values` gives for batches whose texts have `first` to `first` + 2 tokens."""
    lengths = [(source, target) for source, target in _LENGTHS if has_source or source == 0]
    exponents = [(rows, *pair) for rows in (0, 1) for pair in lengths]
    # Points in the same pattern as the exponents determine all coefficients.
    shapes = [(2 + rows, first + source if has_source else 0, first + target) for rows, source, target in exponents]
    system = [[Fraction(_power_product(each, shape)) for each in exponents] for shape in shapes]
    found = [list(values(*shape)) for shape in shapes]
    solved = _solve([left + list(map(Fraction, right)) for left, right in zip(system, found, strict=True)])
    products = list(map(_product, exponents))
    return tuple(expression(dict(zip(products, column, strict=True))) for column in zip(*solved, strict=True))


def _product(exponents: Exponents) -> Product:
    return tuple(sorted((name, exponent) for name, exponent in zip(SYMBOLS, exponents, strict=True) if exponent))


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
