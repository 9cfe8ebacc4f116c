"""How alike a query and a key are: three similarities, one form that every backend takes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import Cosine, Dot, ScaledDot, attend
from regard.attention.similarity import Similarity

from .support import Layout, assert_close, inputs, layouts

# Unit roundoff in float64 is 1.1e-16; a score here is a sum of at most 16 products of numbers up to 1.
ROUNDING = 1e-14


def scores(similarity: Similarity, query: Tensor, key: Tensor) -> Tensor:
    query, key, scale = similarity(query, key)
    return scale * (query @ key.mT)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 16))
def test_scaled_dot_product_is_the_sum_of_products_over_the_root_of_the_width(
    queries: int, keys: int, width: int
) -> None:
    query, key, _ = inputs(Layout(1, 1, width, 1), 1, queries, keys)
    expected = [
        [math.fsum(a * b for a, b in zip(one, other, strict=True)) / math.sqrt(width) for other in key[0, 0].tolist()]
        for one in query[0, 0].tolist()
    ]
    assert_close(scores(ScaledDot(), query, key)[0, 0], torch.tensor(expected, dtype=torch.float64), ROUNDING)


@pytest.mark.parametrize("scale", [1.0, 0.25, -2.0])
def test_dot_product_is_the_sum_of_products_times_the_scale(scale: float) -> None:
    query, key, _ = inputs(Layout(1, 1, 8, 1), 1, 3, 4)
    expected = scale * torch.einsum("bhqw,bhkw->bhqk", query, key)
    assert_close(scores(Dot(scale), query, key), expected, ROUNDING)


def test_dot_product_is_not_scaled_unless_asked() -> None:
    assert Dot().scale == 1.0


@given(st.integers(1, 8), st.integers(1, 16))
def test_the_cosine_matrix_of_vectors_with_themselves_has_a_diagonal_of_ones(length: int, width: int) -> None:
    x, _, _ = inputs(Layout(2, 2, width, 1), 2, length, 1)
    diagonal = scores(Cosine(), x, x).diagonal(dim1=-2, dim2=-1)
    assert_close(diagonal, torch.ones_like(diagonal), ROUNDING)


@given(st.integers(1, 8), st.integers(1, 16))
def test_the_cosine_matrix_of_vectors_with_themselves_is_symmetric(length: int, width: int) -> None:
    x, _, _ = inputs(Layout(2, 2, width, 1), 2, length, 1)
    matrix = scores(Cosine(), x, x)
    assert_close(matrix, matrix.mT, ROUNDING)


@given(layouts(), st.floats(0.1, 30))
def test_cosine_scores_never_exceed_the_scale(layout: Layout, scale: float) -> None:
    query, key, _ = inputs(layout, 2, 5, 6)
    matrix = scores(Cosine(scale), query[:, : layout.key_heads] * 100, key / 100)
    assert matrix.abs().max() <= scale * (1 + ROUNDING)


def test_cosine_sees_the_direction_of_a_vector_and_not_its_length() -> None:
    query, key, value = inputs(Layout(2, 2, 8, 8), 2, 3, 4)
    stretch = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)[:, None]
    assert_close(
        attend(query * stretch, key, value, similarity=Cosine(4.0)),
        attend(query, key, value, similarity=Cosine(4.0)),
        ROUNDING,
    )


def test_the_cosine_with_a_vector_of_zeros_is_zero() -> None:
    _, key, _ = inputs(Layout(1, 1, 8, 1), 1, 1, 3)
    assert scores(Cosine(), torch.zeros_like(key), key).eq(0).all()


@given(layouts(), st.floats(0.1, 10))
def test_a_scale_for_each_head_does_what_the_same_number_does(layout: Layout, scale: float) -> None:
    query, key, value = inputs(layout, 2, 3, 5)
    each = torch.full((layout.heads, 1, 1), scale, dtype=torch.float64)
    assert_close(
        attend(query, key, value, similarity=Cosine(each)),
        attend(query, key, value, similarity=Cosine(scale)),
        ROUNDING * 10,  # scores up to 10
    )


def test_a_scale_for_each_head_reaches_that_head_alone() -> None:
    query, key, value = inputs(Layout(2, 1, 8, 8), 1, 3, 5)
    changed = attend(query, key, value, similarity=Cosine(torch.tensor([[[4.0]], [[9.0]]], dtype=torch.float64)))
    same = attend(query, key, value, similarity=Cosine(4.0))
    assert_close(changed[:, 0], same[:, 0], ROUNDING * 10)
    assert not torch.allclose(changed[:, 1], same[:, 1])


def test_a_learned_scale_receives_a_gradient() -> None:
    query, key, value = inputs(Layout(2, 1, 8, 8), 1, 3, 5)
    scale = torch.full((2, 1, 1), 4.0, dtype=torch.float64, requires_grad=True)
    attend(query, key, value, similarity=Cosine(scale)).square().sum().backward()
    assert scale.grad is not None
    assert (scale.grad != 0).all()


def test_a_learned_scale_kept_in_float32_serves_tensors_in_bfloat16() -> None:
    query, key, value = inputs(Layout(2, 1, 8, 8), 1, 3, 5, torch.bfloat16)
    found = attend(query, key, value, similarity=Cosine(torch.full((2, 1, 1), 4.0)))
    assert_close(found, attend(query, key, value, similarity=Cosine(4.0)), 2**-6)  # two roundings to 8 bits
