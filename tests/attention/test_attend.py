"""`attend`: every backend equals the reference; alignment, masks, documents, dropout, backends and similarities.

Inputs and therefore results lie between −1 and 1, so that absolute tolerances are relative to the largest value:

- float64 and float32: 32 units of roundoff. Scores are sums of at most 16 products, results of at most 300.
- bfloat16: 3 units (2^-7 each). Every backend sums products in float32, but may round the scores, the weights and the
  result to 8 bits once each.
"""

import itertools
import math
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention

from regard.attention import (
    Causal,
    Cosine,
    Dilated,
    Documents,
    Dot,
    Full,
    Global,
    Lengths,
    Mask,
    Pattern,
    ScaledDot,
    Sliding,
    attend,
    attend_with_weights,
)
from regard.attention.attend import BLOCKWISE_MIN_LENGTH, FLEX_MIN_LENGTH, Backend, Similarity, select_backend
from regard.errors import UserError
from tests.attention.support import (
    AROUND_BLOCKS,
    Layout,
    MaskSpec,
    PatternSpec,
    assert_close,
    causal_patterns,
    inputs,
    layouts,
    mask_specs,
    packed_ids,
    plain_patterns,
)

TOLERANCE = {torch.float64: 32 * 2**-52, torch.float32: 32 * 2**-23, torch.bfloat16: 3 * 2**-7}
BACKENDS: tuple[Backend, ...] = ("reference", "sdpa", "blockwise", "flex", "matmul")
PLAIN = Layout(4, 2, 8, 6)

dtypes = st.sampled_from(list(TOLERANCE))
similarities = st.sampled_from([ScaledDot(), Dot(0.5), Cosine(2.0), Cosine(torch.tensor(2.0, dtype=torch.float64))])
seeds = st.integers(0, 2**16)


@pytest.fixture(autouse=True, scope="module")
def untraced_flex() -> Iterator[pytest.MonkeyPatch]:
    """Run FlexAttention without compiling: the same arithmetic in 5 ms instead of 170 ms per new shape and pattern."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        yield patch


def attention_formula(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, similarity: Similarity | None = None
) -> tuple[Tensor, Tensor]:
    """Result and weights of attention by its formula, query by query, in float64.  mask: # (rows, queries, keys)"""
    query, key, value = query.double(), key.double(), value.double()
    query, key, scale = (similarity or ScaledDot())(query, key)
    group = query.shape[1] // key.shape[1]
    result = query.new_zeros(*query.shape[:3], value.shape[3])
    weights = query.new_zeros(*query.shape[:3], key.shape[2])
    for row, head, query_index in itertools.product(*(range(size) for size in query.shape[:3])):
        allowed = mask[row, query_index].nonzero()[:, 0]
        if len(allowed) == 0:
            continue
        scores = scale * (key[row, head // group, allowed] @ query[row, head, query_index])
        exponentials = (scores - scores.max()).exp()
        weights[row, head, query_index, allowed] = exponentials / exponentials.sum()
        result[row, head, query_index] = (exponentials / exponentials.sum()) @ value[row, head // group, allowed]
    return result, weights


def gradients(backend: Backend, mask_spec: MaskSpec, layout: Layout, similarity: Similarity, seed: int) -> list[Tensor]:
    """Gradients of query, key and value for a fixed random gradient of the result."""
    tensors = [
        tensor.requires_grad_()
        for tensor in inputs(layout, mask_spec.rows, mask_spec.queries, mask_spec.keys, seed=seed)
    ]
    result = attend(*tensors, mask_spec.bind(), similarity=similarity, backend=backend)
    output_grad = torch.rand(result.shape, generator=torch.Generator().manual_seed(seed), dtype=result.dtype)
    return list(torch.autograd.grad((result * output_grad).sum(), tensors))


# Backends agree.


@given(mask_specs(), layouts(), dtypes, similarities, seeds)
@settings(max_examples=80)
def test_reference_equals_the_formula(
    mask_spec: MaskSpec, layout: Layout, dtype: torch.dtype, similarity: Similarity, seed: int
) -> None:
    query, key, value = inputs(layout, mask_spec.rows, mask_spec.queries, mask_spec.keys, dtype, seed)
    actual = attend(query, key, value, mask_spec.bind(), similarity=similarity, backend="reference")
    expected, _ = attention_formula(query, key, value, mask_spec.reference_mask(), similarity)
    assert_close(actual, expected.to(dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("backend", ["sdpa", "blockwise", "flex", "matmul"])
@given(mask_spec=mask_specs(), layout=layouts(), dtype=dtypes, similarity=similarities, seed=seeds)
@settings(max_examples=100)
def test_every_backend_equals_the_reference(
    backend: Backend, mask_spec: MaskSpec, layout: Layout, dtype: torch.dtype, similarity: Similarity, seed: int
) -> None:
    tensors = inputs(layout, mask_spec.rows, mask_spec.queries, mask_spec.keys, dtype, seed)
    actual, expected = (
        attend(*tensors, mask_spec.bind(), similarity=similarity, backend=each) for each in (backend, "reference")
    )
    assert_close(actual, expected, TOLERANCE[dtype])


@given(mask_specs(), layouts(), dtypes, similarities, seeds)
@settings(max_examples=15)
def test_compiled_flex_equals_the_reference(
    mask_spec: MaskSpec, layout: Layout, dtype: torch.dtype, similarity: Similarity, seed: int
) -> None:
    tensors = inputs(layout, mask_spec.rows, mask_spec.queries, mask_spec.keys, dtype, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
        actual = attend(*tensors, mask_spec.bind(), similarity=similarity, backend="flex")
    expected = attend(*tensors, mask_spec.bind(), similarity=similarity, backend="reference")
    assert_close(actual, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("backend", ["sdpa", "blockwise", "flex", "matmul"])
@given(mask_spec=mask_specs(AROUND_BLOCKS), layout=layouts(), dtype=dtypes, seed=seeds)
@settings(max_examples=30)
def test_every_backend_equals_the_reference_over_several_blocks(
    backend: Backend, mask_spec: MaskSpec, layout: Layout, dtype: torch.dtype, seed: int
) -> None:
    tensors = inputs(layout, mask_spec.rows, mask_spec.queries, mask_spec.keys, dtype, seed)
    actual, expected = (attend(*tensors, mask_spec.bind(), backend=each) for each in (backend, "reference"))
    assert_close(actual, expected, TOLERANCE[dtype])


@pytest.mark.parametrize(
    "pattern", [Causal() & Sliding(3), Causal() & Dilated(4, 200), Causal() & (Global(2) | Sliding(9))]
)
def test_fused_kernels_skip_fully_masked_blocks(pattern: Pattern) -> None:
    # PyTorch's kernel processes 512 keys at a time: here entire blocks of them are masked.
    tensors = inputs(Layout(1, 1, 4, 4), 1, 1100, 1100, torch.float32)
    assert_close(
        attend(*tensors, pattern, backend="sdpa"),
        attend(*tensors, pattern, backend="reference"),
        TOLERANCE[torch.float32],
    )


@given(mask_specs(), layouts(), similarities, seeds)
@settings(max_examples=150)
def test_sdpa_gradients_equal_the_reference(
    mask_spec: MaskSpec, layout: Layout, similarity: Similarity, seed: int
) -> None:
    pairs = zip(
        *(gradients(backend, mask_spec, layout, similarity, seed) for backend in ("sdpa", "reference")), strict=True
    )
    for actual, expected in pairs:
        # The gradient of a key is a sum over queries in up to six heads: at most 120 terms of size 1.
        assert_close(actual, expected, 120 * TOLERANCE[torch.float64])


@pytest.mark.parametrize("similarity", [ScaledDot(), Dot(0.5), Cosine(2.0)], ids=["scaled", "dot", "cosine"])
def test_reference_gradients_equal_finite_differences(similarity: Similarity) -> None:
    tensors = [tensor.requires_grad_() for tensor in inputs(Layout(2, 1, 3, 2), 2, 3, 4)]
    pattern = Sliding(2) & Lengths(torch.tensor([0, 4]))

    def run(*tensors: Tensor) -> Tensor:
        return attend(*tensors, pattern, similarity=similarity, backend="reference")

    assert torch.autograd.gradcheck(run, tensors)


# Positions of the queries.


@pytest.mark.parametrize("backend", BACKENDS)
@given(spec=causal_patterns(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), seed=seeds)
@settings(max_examples=40)
def test_chunked_queries_equal_one_pass(backend: Backend, spec: PatternSpec, sizes: list[int], seed: int) -> None:
    length = sum(sizes)
    query, key, value = inputs(PLAIN, 2, length, length, seed=seed)
    chunks, start = [], 0
    for size in sizes:
        end = start + size
        chunks.append(attend(query[:, :, start:end], key[:, :, :end], value[:, :, :end], spec.pattern, backend=backend))
        start = end
    assert_close(
        torch.cat(chunks, dim=2), attend(query, key, value, spec.pattern, backend=backend), TOLERANCE[torch.float64]
    )


@pytest.mark.parametrize("backend", BACKENDS)
@given(spec=plain_patterns(), starts=st.lists(st.integers(0, 9), min_size=3, max_size=3), seed=seeds)
@settings(max_examples=40)
def test_rows_with_different_starts_equal_single_rows(
    backend: Backend, spec: PatternSpec, starts: list[int], seed: int
) -> None:
    tensors = inputs(PLAIN, 3, 4, 12, seed=seed)
    batched = attend(*tensors, spec.pattern, start=torch.tensor(starts), backend=backend)
    alone = [
        attend(*(tensor[row : row + 1] for tensor in tensors), spec.pattern, start=start, backend=backend)
        for row, start in enumerate(starts)
    ]
    assert_close(batched, torch.cat(alone), TOLERANCE[torch.float64])


@pytest.mark.parametrize("backend", BACKENDS)
def test_causal_attention_over_more_keys_than_queries_is_aligned_at_the_bottom_right(backend: Backend) -> None:
    query, key, _ = inputs(Layout(1, 1, 4, 1), 1, 2, 5)
    value = torch.eye(5, dtype=torch.float64)[None, None]  # attention then returns its weights
    attended = attend(query, key, value, Causal(), backend=backend)[0, 0] > 0
    assert attended.tolist() == [[True] * 4 + [False], [True] * 5]


@pytest.mark.parametrize("backend", BACKENDS)
def test_default_pattern_is_full_attention(backend: Backend) -> None:
    tensors = inputs(PLAIN, 2, 3, 5)
    expected, _ = attention_formula(*tensors, torch.ones(2, 3, 5, dtype=torch.bool))
    assert_close(attend(*tensors, backend=backend), expected, TOLERANCE[torch.float64])


# Fully masked queries.

FULLY_MASKED = [
    pytest.param(Lengths(torch.tensor([0, 5])), (0, slice(None)), id="a row of padding"),
    pytest.param(Sliding(1) & Lengths(torch.tensor([3, 5])), (0, slice(3, None)), id="a few queries"),
    pytest.param(Documents(torch.tensor([[0, 0, -1, 1, 1], [0] * 5])), (0, slice(2, 3)), id="between documents"),
]


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("pattern", "empty"), FULLY_MASKED)
def test_fully_masked_query_gets_zeros(
    pattern: Pattern, empty: tuple[int, slice], backend: Backend, dtype: torch.dtype
) -> None:
    row, queries = empty
    result = attend(*inputs(PLAIN, 2, 5, 5, dtype), pattern, backend=backend)
    assert result[row, :, queries].eq(0).all()
    assert result[1].ne(0).all()  # the other row is not fully masked


@pytest.mark.parametrize("backend", BACKENDS)
def test_queries_before_the_first_key_get_zeros(backend: Backend) -> None:
    result = attend(*inputs(PLAIN, 2, 5, 3), Causal(), backend=backend)
    assert result[:, :, :2].eq(0).all()
    assert result[:, :, 2:].ne(0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pattern", [Full(), Causal(), Sliding(2)], ids=str)
def test_without_a_single_key_every_query_gets_zeros(pattern: Pattern, backend: Backend) -> None:
    query, key, value = inputs(PLAIN, 2, 3, 0)
    assert torch.equal(
        attend(query, key, value, pattern, backend=backend), torch.zeros(2, 4, 3, 6, dtype=torch.float64)
    )


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize(("pattern", "empty"), FULLY_MASKED)
def test_fully_masked_query_has_zero_gradient_and_leaves_others_finite(
    pattern: Pattern, empty: tuple[int, slice], backend: Backend, dtype: torch.dtype
) -> None:
    row, queries = empty
    tensors = [tensor.requires_grad_() for tensor in inputs(PLAIN, 2, 5, 5, dtype)]
    actual = torch.autograd.grad(attend(*tensors, pattern, backend=backend).float().square().sum(), tensors)
    assert all(gradient.isfinite().all() for gradient in actual)
    assert actual[0][row, :, queries].eq(0).all()


@pytest.mark.parametrize(("pattern", "empty"), FULLY_MASKED)
def test_reference_backward_has_no_nan(pattern: Pattern, empty: tuple[int, slice]) -> None:
    tensors = [tensor.requires_grad_() for tensor in inputs(PLAIN, 2, 5, 5)]
    with torch.autograd.set_detect_anomaly(True):  # raises at the first NaN inside the backward pass
        attend(*tensors, pattern, backend="reference").square().sum().backward()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in tensors)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_fully_masked_key_has_zero_gradient(backend: Backend) -> None:
    query, key, value = (tensor.requires_grad_() for tensor in inputs(PLAIN, 2, 5, 5))
    result = attend(query, key, value, Lengths(torch.tensor([3, 5])), backend=backend)
    actual = torch.autograd.grad(result.square().sum(), (key, value))
    assert all(gradient[0, :, 3:].eq(0).all() for gradient in actual)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "pattern", [Full(), Causal(), Lengths(torch.tensor([1, 2]))], ids=["full", "causal", "lengths"]
)
def test_no_queries_give_an_empty_result(pattern: Pattern, backend: Backend) -> None:
    query, key, value = inputs(PLAIN, 2, 0, 5)
    assert attend(query, key, value, pattern, backend=backend).shape == (2, 4, 0, 6)


# Packed documents and padding.


def document_spans(line: list[int]) -> list[tuple[int, int, int]]:
    """Id, start and end of every document in a row."""
    return [(number, line.index(number), line.index(number) + line.count(number)) for number in set(line) - {-1}]


@pytest.mark.parametrize("backend", BACKENDS)
@given(numbers=packed_ids(2, 12), within=plain_patterns(), layout=layouts(), seed=seeds)
@settings(max_examples=40)
def test_packed_document_equals_the_document_alone(
    backend: Backend, numbers: list[list[int]], within: PatternSpec, layout: Layout, seed: int
) -> None:
    tensors = inputs(layout, 2, 12, 12, seed=seed)
    packed = attend(*tensors, Documents(torch.tensor(numbers), within.pattern), backend=backend)
    for row, line in enumerate(numbers):
        for _, first, end in document_spans(line):
            alone = attend(
                *(tensor[row : row + 1, :, first:end] for tensor in tensors), within.pattern, backend=backend
            )
            assert_close(packed[row : row + 1, :, first:end], alone, TOLERANCE[torch.float64])


@pytest.mark.parametrize("backend", BACKENDS)
@given(numbers=packed_ids(2, 9), key_document_ids=packed_ids(2, 9), within=plain_patterns(), seed=seeds)
@settings(max_examples=40)
def test_packed_pair_equals_the_pair_alone(
    backend: Backend, numbers: list[list[int]], key_document_ids: list[list[int]], within: PatternSpec, seed: int
) -> None:
    query, key, value = inputs(PLAIN, 2, 9, 9, seed=seed)
    pattern = Documents(torch.tensor(numbers), within.pattern, torch.tensor(key_document_ids))
    packed = attend(query, key, value, pattern, start=0, backend=backend)
    for row, (line, other) in enumerate(zip(numbers, key_document_ids, strict=True)):
        key_spans = {number: slice(first, end) for number, first, end in document_spans(other)}
        for number, first, end in document_spans(line):
            actual, keys = packed[row, :, first:end], key_spans.get(number, slice(0, 0))
            alone = [query[row, :, first:end], key[row, :, keys], value[row, :, keys]]
            expected = attend(*(tensor[None] for tensor in alone), within.pattern, start=0)[0]
            assert_close(actual, expected, TOLERANCE[torch.float64])


@pytest.mark.parametrize("backend", BACKENDS)
@given(numbers=packed_ids(2, 12), within=plain_patterns(), seed=seeds)
@settings(max_examples=20)
def test_padding_among_documents_gets_zeros_and_changes_no_document(
    backend: Backend, numbers: list[list[int]], within: PatternSpec, seed: int
) -> None:
    padding = torch.tensor(numbers) < 0
    tensors = inputs(PLAIN, 2, 12, 12, seed=seed)
    noisy = [torch.where(padding[:, None, :, None], 100.0, tensor) for tensor in tensors]
    pattern = Documents(torch.tensor(numbers), within.pattern)
    result = attend(*noisy, pattern, backend=backend)
    expected = attend(*tensors, pattern, backend=backend).masked_fill(padding[:, None, :, None], 0.0)
    assert_close(result, expected, TOLERANCE[torch.float64])


@pytest.mark.parametrize("backend", BACKENDS)
@given(spec=plain_patterns(), lengths=st.lists(st.integers(1, 6), min_size=2, max_size=2), seed=seeds)
@settings(max_examples=20)
def test_padding_does_not_change_the_result(backend: Backend, spec: PatternSpec, lengths: list[int], seed: int) -> None:
    tensors = inputs(PLAIN, 2, 6, 6, seed=seed)
    padded = attend(*tensors, spec.pattern & Lengths(torch.tensor(lengths)), backend=backend)
    for row, length in enumerate(lengths):
        alone = attend(*(tensor[row : row + 1, :, :length] for tensor in tensors), spec.pattern, backend=backend)
        assert_close(padded[row : row + 1, :, :length], alone, TOLERANCE[torch.float64])


# Attention weights and shared masks.


@given(mask_specs(), layouts(), dtypes, similarities, seeds)
def test_attention_weights_equal_the_formula(
    mask_spec: MaskSpec, layout: Layout, dtype: torch.dtype, similarity: Similarity, seed: int
) -> None:
    query, key, value = inputs(layout, mask_spec.rows, mask_spec.queries, mask_spec.keys, dtype, seed)
    _, weights = attend_with_weights(query, key, value, mask_spec.bind(), similarity=similarity)
    _, expected = attention_formula(query, key, value, mask_spec.reference_mask(), similarity)
    # Weights are float32 or better; the cosine's normalized queries are bfloat16 where the input is.
    assert_close(weights, expected.to(weights.dtype), TOLERANCE[dtype])


@given(mask_specs(), layouts(), dtypes, seeds)
def test_attention_weights_sum_to_one_or_to_zero_if_fully_masked(
    mask_spec: MaskSpec, layout: Layout, dtype: torch.dtype, seed: int
) -> None:
    tensors = inputs(layout, mask_spec.rows, mask_spec.queries, mask_spec.keys, dtype, seed)
    _, weights = attend_with_weights(*tensors, mask_spec.bind())
    expected = mask_spec.reference_mask().any(dim=-1)[:, None].expand(weights.shape[:3]).to(weights.dtype)
    assert_close(weights.sum(dim=-1), expected, TOLERANCE[weights.dtype])


@given(mask_specs(), layouts(), similarities, seeds)
def test_attend_with_weights_equals_the_reference(
    mask_spec: MaskSpec, layout: Layout, similarity: Similarity, seed: int
) -> None:
    tensors = inputs(layout, mask_spec.rows, mask_spec.queries, mask_spec.keys, seed=seed)
    result, _ = attend_with_weights(*tensors, mask_spec.bind(), similarity=similarity)
    assert torch.equal(result, attend(*tensors, mask_spec.bind(), similarity=similarity, backend="reference"))


@pytest.mark.parametrize("backend", BACKENDS)
@given(mask_spec=mask_specs(), seed=seeds)
@settings(max_examples=25)
def test_shared_mask_equals_the_pattern(backend: Backend, mask_spec: MaskSpec, seed: int) -> None:
    tensors = inputs(PLAIN, mask_spec.rows, mask_spec.queries, mask_spec.keys, seed=seed)
    attention_mask = mask_spec.bind()
    attend(*tensors, attention_mask, backend=backend)
    again = attend(*tensors, attention_mask, backend=backend)
    assert torch.equal(again, attend(*tensors, mask_spec.spec.pattern, start=mask_spec.start_argument, backend=backend))


def test_mask_without_rows_works_for_any_batch_size() -> None:
    tensors = inputs(PLAIN, 3, 4, 4)
    assert torch.equal(attend(*tensors, Sliding(2).bind(4)), attend(*tensors, Sliding(2)))


# Dropout. With one-hot values, the result of attention is its weights.

SAMPLES = 4000


def sample_dropout(backend: Backend, dropout: float, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """Samples of the weights after dropout, and the weights before.  # (samples, queries, keys), (queries, keys)"""
    torch.manual_seed(0)
    query, key, _ = inputs(Layout(1, 1, 8, 8), 1, 3, 6, torch.float32)
    value = torch.eye(6)[None, None]
    many = [tensor.expand(samples, -1, -1, -1) for tensor in (query, key, value)]
    _, weights = attend_with_weights(query, key, value)
    return attend(*many, dropout=dropout, backend=backend)[:, 0], weights[0, 0]


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_dropout_preserves_the_mean_of_every_weight(backend: Backend) -> None:
    samples, weights = sample_dropout(backend, 0.25)
    # A weight w becomes w / 0.75 with probability 0.75; its standard deviation is w·√(0.25/0.75). Five standard errors:
    tolerance = 5 * weights * (0.25 / 0.75) ** 0.5 / SAMPLES**0.5
    assert ((samples.mean(dim=0) - weights).abs() <= tolerance).all()


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_dropout_zeroes_or_rescales_a_weight(backend: Backend) -> None:
    samples, weights = sample_dropout(backend, 0.25, 50)
    kept = samples != 0
    assert_close(samples, torch.where(kept, weights / 0.75, 0.0), TOLERANCE[torch.float32])


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_dropout_drops_with_the_given_probability(backend: Backend) -> None:
    samples, _ = sample_dropout(backend, 0.25)
    # Five standard errors of the dropped fraction of 18 weights per sample.
    assert abs(float((samples == 0).float().mean()) - 0.25) <= 5 * (0.25 * 0.75 / (18 * SAMPLES)) ** 0.5


@pytest.mark.parametrize("backend", ["reference", "sdpa", "matmul"])
def test_no_dropout_changes_nothing(backend: Backend) -> None:
    samples, weights = sample_dropout(backend, 0.0, 50)
    assert_close(samples, weights.expand_as(samples), TOLERANCE[torch.float32])


def test_returned_weights_are_before_dropout() -> None:
    tensors = inputs(PLAIN, 2, 3, 5)
    torch.manual_seed(0)
    assert torch.equal(attend_with_weights(*tensors, dropout=0.5)[1], attend_with_weights(*tensors)[1])


# Selection of the backend.


@given(mask_specs(), st.sampled_from([0.0, 0.1]), dtypes)
def test_cpu_selects_sdpa(mask_spec: MaskSpec, dropout: float, dtype: torch.dtype) -> None:
    query, _, value = inputs(PLAIN, mask_spec.rows, mask_spec.queries, mask_spec.keys, dtype)
    assert select_backend(query, value, mask_spec.bind(), dropout) == "sdpa"


LOCAL = Causal() & Sliding(9)


@pytest.mark.parametrize(
    ("pattern", "queries", "keys", "widths", "dropout", "dtype", "expected"),
    [
        pytest.param(
            LOCAL, FLEX_MIN_LENGTH, FLEX_MIN_LENGTH, (16, 16), 0.0, torch.bfloat16, "flex", id="long and local"
        ),
        pytest.param(LOCAL, FLEX_MIN_LENGTH, FLEX_MIN_LENGTH, (64, 32), 0.0, torch.float32, "flex", id="float32"),
        pytest.param(
            LOCAL, FLEX_MIN_LENGTH - 1, FLEX_MIN_LENGTH, (64, 64), 0.0, torch.bfloat16, "sdpa", id="few queries"
        ),
        pytest.param(
            Sliding(9), FLEX_MIN_LENGTH, FLEX_MIN_LENGTH - 1, (64, 64), 0.0, torch.bfloat16, "sdpa", id="few keys"
        ),
        pytest.param(
            Causal(), FLEX_MIN_LENGTH, FLEX_MIN_LENGTH, (64, 64), 0.0, torch.bfloat16, "sdpa", id="the triangle"
        ),
        pytest.param(Full(), FLEX_MIN_LENGTH, FLEX_MIN_LENGTH, (64, 64), 0.0, torch.bfloat16, "sdpa", id="everything"),
        pytest.param(LOCAL, FLEX_MIN_LENGTH, FLEX_MIN_LENGTH, (64, 64), 0.1, torch.bfloat16, "sdpa", id="dropout"),
        pytest.param(LOCAL, FLEX_MIN_LENGTH, FLEX_MIN_LENGTH, (64, 64), 0.0, torch.float64, "sdpa", id="float64"),
        # The GPU kernel needs tiles of at least 16 features.
        pytest.param(LOCAL, FLEX_MIN_LENGTH, FLEX_MIN_LENGTH, (8, 64), 0.0, torch.bfloat16, "sdpa", id="narrow keys"),
        pytest.param(LOCAL, FLEX_MIN_LENGTH, FLEX_MIN_LENGTH, (64, 8), 0.0, torch.bfloat16, "sdpa", id="narrow values"),
        pytest.param(Full(), 16, 30_000, (576, 512), 0.0, torch.bfloat16, "matmul", id="wide heads"),
        pytest.param(LOCAL, 16, 30_000, (64, 512), 0.0, torch.bfloat16, "matmul", id="wide values"),
        pytest.param(Full(), 16, 30_000, (256, 256), 0.0, torch.bfloat16, "sdpa", id="just not too wide"),
        pytest.param(Full(), 2**14, 2**15, (576, 512), 0.0, torch.bfloat16, "sdpa", id="too many scores to hold"),
    ],
)
def test_gpu_selects_the_fastest_supported_backend(
    pattern: Pattern,
    queries: int,
    keys: int,
    widths: tuple[int, int],
    dropout: float,
    dtype: torch.dtype,
    expected: str,
) -> None:
    # Only the attributes of a GPU tensor that are read.
    facts = {"is_cuda": True, "dtype": dtype, "requires_grad": False}
    query = SimpleNamespace(shape=(1, 1, queries, widths[0]), **facts)
    value = SimpleNamespace(shape=(1, 1, keys, widths[1]), **facts)
    assert select_backend(query, value, pattern.bind(queries, keys), dropout) == expected


def test_wide_heads_with_gradients_use_sdpa() -> None:
    facts = {"is_cuda": True, "dtype": torch.bfloat16, "requires_grad": True}
    query, value = (SimpleNamespace(shape=(1, 1, length, 512), **facts) for length in (16, 300))
    assert select_backend(query, value, Full().bind(16, 300), 0.0) == "sdpa"
    with torch.no_grad():
        assert select_backend(query, value, Full().bind(16, 300), 0.0) == "matmul"


@pytest.mark.parametrize(
    ("pattern", "length", "expected"),
    [
        pytest.param(LOCAL, BLOCKWISE_MIN_LENGTH, "blockwise", id="long and local"),
        pytest.param(LOCAL, BLOCKWISE_MIN_LENGTH - 1, "sdpa", id="short"),
        pytest.param(Causal() & Sliding(BLOCKWISE_MIN_LENGTH // 2), BLOCKWISE_MIN_LENGTH, "sdpa", id="little left out"),
        pytest.param(Causal() & (Global(2) | Sliding(9)), BLOCKWISE_MIN_LENGTH, "sdpa", id="global"),
        pytest.param(Causal(), BLOCKWISE_MIN_LENGTH, "sdpa", id="the triangle"),
    ],
)
def test_cpu_selects_blockwise_for_long_sparse_patterns(pattern: Pattern, length: int, expected: str) -> None:
    query = SimpleNamespace(is_cuda=False, dtype=torch.float32, shape=(1, 1, length, 64))
    assert select_backend(query, query, pattern.bind(length)) == expected


BLOCKWISE_PATTERNS = [
    Causal() & Sliding(40),
    Sliding(300),
    Causal() & Dilated(5, 60),
    Causal() & (Global(2) | Sliding(9)),
    Full(),
]


@pytest.mark.parametrize("pattern", BLOCKWISE_PATTERNS, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(700, 700), (300, 900), (512, 512)])
def test_blockwise_output_and_gradients_equal_the_reference(pattern: Pattern, queries: int, keys: int) -> None:
    actual, expected = [], []
    for backend, results in (("blockwise", actual), ("reference", expected)):
        tensors = [tensor.requires_grad_() for tensor in inputs(Layout(4, 2, 6, 5), 2, queries, keys, torch.float64)]
        output = attend(*tensors, pattern, backend=backend)
        results += [output, *torch.autograd.grad(output.square().sum(), tensors)]
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)  # float64: sums in another order


def test_blockwise_supports_rows_of_different_lengths() -> None:
    pattern = (Causal() & Sliding(30)) & Lengths(torch.tensor([600, 0, 270]))
    tensors = inputs(PLAIN, 3, 600, 600, torch.float64)
    actual, expected = (attend(*tensors, pattern, backend=backend) for backend in ("blockwise", "reference"))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_blockwise_mask_memory_is_linear_in_the_length() -> None:
    mask_sizes = [
        sum(block.mask.numel() for block in (Causal() & Sliding(100)).bind(n).query_blocks()) for n in (2048, 8192)
    ]
    assert mask_sizes[1] < 4.3 * mask_sizes[0]


def test_attend_uses_the_selected_backend() -> None:
    tensors = inputs(PLAIN, 2, 5, 5)
    assert torch.equal(attend(*tensors, Sliding(2)), attend(*tensors, Sliding(2), backend="sdpa"))


# Invalid input.


@pytest.mark.parametrize(
    ("query", "key", "value", "problem"),
    [
        ((2, 3, 8), (2, 1, 5, 8), (2, 1, 5, 8), "batch, heads, length, head_dim"),
        ((2, 4, 3, 8), (2, 5, 8), (2, 1, 5, 8), "batch, heads, length, head_dim"),
        ((2, 4, 3, 8), (2, 1, 5, 8), (1, 2, 1, 5, 8), "batch, heads, length, head_dim"),
        ((2, 4, 3, 8), (3, 2, 5, 8), (3, 2, 5, 8), "same batch size"),
        ((2, 4, 3, 8), (2, 2, 5, 8), (1, 2, 5, 8), "same batch size"),
        ((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 6, 8), "same heads and length"),
        ((2, 4, 3, 8), (2, 2, 5, 8), (2, 4, 5, 8), "same heads and length"),
        ((2, 4, 3, 8), (2, 2, 5, 6), (2, 2, 5, 8), "same head_dim"),
        ((2, 4, 3, 8), (2, 3, 5, 8), (2, 3, 5, 8), "3 KV heads do not divide 4 query heads"),
        ((2, 4, 3, 8), (2, 0, 5, 8), (2, 0, 5, 8), "0 KV heads do not divide 4 query heads"),
        ((2, 2, 3, 8), (2, 4, 5, 8), (2, 4, 5, 8), "4 KV heads do not divide 2 query heads"),
    ],
)
def test_incompatible_shapes_are_refused(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], problem: str
) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        attend(torch.zeros(query), torch.zeros(key), torch.zeros(value))
    assert f"query {query}, key {key}, value {value}" in str(caught.value)


@pytest.mark.parametrize(
    "attention_mask",
    [Causal().bind(4, 5), Causal().bind(3, 6), Lengths(torch.tensor([1, 2, 3])).bind(3, 5, rows=3)],
    ids=["queries", "keys", "rows"],
)
def test_mask_of_wrong_size_is_refused(attention_mask: Mask) -> None:
    with pytest.raises(
        UserError, match=f"{attention_mask.rows} rows, {attention_mask.queries} queries and {attention_mask.keys} keys"
    ) as caught:
        attend(*inputs(PLAIN, 2, 3, 5), attention_mask)
    assert "query (2, 4, 3, 8)" in str(caught.value)


def test_start_together_with_a_mask_is_refused() -> None:
    with pytest.raises(UserError, match="start"):
        attend(*inputs(PLAIN, 2, 3, 5), Causal().bind(3, 5), start=0)


@pytest.mark.parametrize("start", [torch.tensor([0]), torch.tensor([[0, 1]])], ids=["one row", "two dimensions"])
def test_starts_of_wrong_shape_are_refused(start: Tensor) -> None:
    with pytest.raises(UserError, match=r"expected shape \(2,\)") as caught:
        attend(*inputs(PLAIN, 2, 3, 5), Causal(), start=start)
    assert f"found {tuple(start.shape)}" in str(caught.value)


def test_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="no attention backend 'flash'; choose one of reference, sdpa, blockwise, flex"):
        attend(*inputs(PLAIN, 2, 3, 5), backend="flash")  # type: ignore[arg-type]


def test_flex_with_dropout_is_refused() -> None:
    with pytest.raises(UserError, match=r"no attention dropout.*use the sdpa backend"):
        attend(*inputs(PLAIN, 2, 3, 5), dropout=0.1, backend="flex")


@pytest.mark.parametrize("which", range(3), ids=["query", "key", "value"])
def test_flex_with_gradients_on_the_cpu_is_refused(which: int) -> None:
    tensors = list(inputs(PLAIN, 2, 3, 5))
    tensors[which].requires_grad_()
    with pytest.raises(UserError, match="no gradients on cpu; use the sdpa backend or a GPU"):
        attend(*tensors, backend="flex")


def test_flex_on_a_cpu_accepts_parameters_without_grad_mode() -> None:
    query, key, value = inputs(PLAIN, 2, 3, 5)
    expected = attend(query, key, value, backend="flex")
    with torch.no_grad():
        assert torch.equal(attend(query.requires_grad_(), key, value, backend="flex"), expected)


# Similarities

# The unit roundoff of float64 is 1.1e-16; a score is a sum of at most 16 products of numbers up to 1.
ROUNDING = 1e-14


def scores(similarity: Similarity, query: Tensor, key: Tensor) -> Tensor:
    query, key, scale = similarity(query, key)
    return scale * (query @ key.mT)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 16))
def test_scaled_dot_product_equals_the_formula(queries: int, keys: int, width: int) -> None:
    query, key, _ = inputs(Layout(1, 1, width, 1), 1, queries, keys)
    expected = [
        [math.fsum(a * b for a, b in zip(one, other, strict=True)) / math.sqrt(width) for other in key[0, 0].tolist()]
        for one in query[0, 0].tolist()
    ]
    assert_close(scores(ScaledDot(), query, key)[0, 0], torch.tensor(expected, dtype=torch.float64), ROUNDING)


@pytest.mark.parametrize("scale", [1.0, 0.25, -2.0])
def test_dot_product_equals_the_formula(scale: float) -> None:
    query, key, _ = inputs(Layout(1, 1, 8, 1), 1, 3, 4)
    expected = scale * torch.einsum("bhqw,bhkw->bhqk", query, key)
    assert_close(scores(Dot(scale), query, key), expected, ROUNDING)


def test_default_scale_of_the_dot_product_is_one() -> None:
    assert Dot().scale == 1.0


@given(st.integers(1, 8), st.integers(1, 16))
def test_cosine_of_a_vector_with_itself_is_one(length: int, width: int) -> None:
    x, _, _ = inputs(Layout(2, 2, width, 1), 2, length, 1)
    diagonal = scores(Cosine(), x, x).diagonal(dim1=-2, dim2=-1)
    assert_close(diagonal, torch.ones_like(diagonal), ROUNDING)


@given(st.integers(1, 8), st.integers(1, 16))
def test_cosine_is_symmetric(length: int, width: int) -> None:
    x, _, _ = inputs(Layout(2, 2, width, 1), 2, length, 1)
    matrix = scores(Cosine(), x, x)
    assert_close(matrix, matrix.mT, ROUNDING)


@given(layouts(), st.floats(0.1, 30))
def test_cosine_scores_never_exceed_the_scale(layout: Layout, scale: float) -> None:
    query, key, _ = inputs(layout, 2, 5, 6)
    matrix = scores(Cosine(scale), query[:, : layout.kv_heads] * 100, key / 100)
    assert matrix.abs().max() <= scale * (1 + ROUNDING)


def test_cosine_does_not_depend_on_the_norm() -> None:
    query, key, value = inputs(Layout(2, 2, 8, 8), 2, 3, 4)
    factors = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)[:, None]
    assert_close(
        attend(query * factors, key, value, similarity=Cosine(4.0)),
        attend(query, key, value, similarity=Cosine(4.0)),
        ROUNDING,
    )


def test_cosine_with_a_zero_vector_is_zero() -> None:
    _, key, _ = inputs(Layout(1, 1, 8, 1), 1, 1, 3)
    assert scores(Cosine(), torch.zeros_like(key), key).eq(0).all()


@given(layouts(), st.floats(0.1, 10))
def test_equal_scales_per_head_equal_one_scale(layout: Layout, scale: float) -> None:
    query, key, value = inputs(layout, 2, 3, 5)
    each = torch.full((layout.heads, 1, 1), scale, dtype=torch.float64)
    assert_close(
        attend(query, key, value, similarity=Cosine(each)),
        attend(query, key, value, similarity=Cosine(scale)),
        ROUNDING * 10,  # scores up to 10
    )


def test_scale_per_head_applies_to_its_head_only() -> None:
    query, key, value = inputs(Layout(2, 1, 8, 8), 1, 3, 5)
    changed = attend(query, key, value, similarity=Cosine(torch.tensor([[[4.0]], [[9.0]]], dtype=torch.float64)))
    same = attend(query, key, value, similarity=Cosine(4.0))
    assert_close(changed[:, 0], same[:, 0], ROUNDING * 10)
    assert not torch.allclose(changed[:, 1], same[:, 1])


def test_learned_scale_receives_a_gradient() -> None:
    query, key, value = inputs(Layout(2, 1, 8, 8), 1, 3, 5)
    scale = torch.full((2, 1, 1), 4.0, dtype=torch.float64, requires_grad=True)
    attend(query, key, value, similarity=Cosine(scale)).square().sum().backward()
    assert scale.grad is not None
    assert (scale.grad != 0).all()


def test_float32_scale_works_with_bfloat16_tensors() -> None:
    query, key, value = inputs(Layout(2, 1, 8, 8), 1, 3, 5, torch.bfloat16)
    actual = attend(query, key, value, similarity=Cosine(torch.full((2, 1, 1), 4.0)))
    assert_close(actual, attend(query, key, value, similarity=Cosine(4.0)), 2**-6)  # two roundings to 8 bits
