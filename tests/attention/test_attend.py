"""One door to attention, three ways behind it that agree.

Inputs lie between −1 and 1, so the results do too and an absolute tolerance is one relative to the largest value:

- float64 and float32: 32 units of roundoff. Scores are sums of at most 16 products, results of at most 300.
- bfloat16: 3 units (2^-7 each). Products are summed in float32 on every path, but the scores, the weights and the
  result may each be rounded to 8 bits once.
"""

import itertools
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
    Pattern,
    ScaledDot,
    Scope,
    Sliding,
    attend,
    attend_and_show,
)
from regard.attention.attend import FLEX_FROM, STRIPS_FROM, Path, choose
from regard.attention.similarity import Similarity
from regard.errors import UserError

from .support import (
    AROUND_BLOCKS,
    Layout,
    Seen,
    Work,
    assert_close,
    causal_patterns,
    inputs,
    layouts,
    numberings,
    plain_patterns,
    works,
)

TOLERANCE = {torch.float64: 32 * 2**-52, torch.float32: 32 * 2**-23, torch.bfloat16: 3 * 2**-7}
PATHS: tuple[Path, ...] = ("reference", "sdpa", "strips", "flex", "products")
PLAIN = Layout(4, 2, 8, 6)

dtypes = st.sampled_from(list(TOLERANCE))
similarities = st.sampled_from([ScaledDot(), Dot(0.5), Cosine(2.0), Cosine(torch.tensor(2.0, dtype=torch.float64))])
seeds = st.integers(0, 2**16)


@pytest.fixture(autouse=True, scope="module")
def untraced_flex() -> Iterator[pytest.MonkeyPatch]:
    """FlexAttention without tracing: the same arithmetic in 5 ms instead of 170 for every new shape and pattern."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        yield patch


def written_out(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, similarity: Similarity | None = None
) -> tuple[Tensor, Tensor]:
    """Attention by one sum after another, in float64.  mask: # (rows, queries, keys); gives the result and weights"""
    query, key, value = query.double(), key.double(), value.double()
    query, key, scale = (similarity or ScaledDot())(query, key)
    group = query.shape[1] // key.shape[1]
    result = query.new_zeros(*query.shape[:3], value.shape[3])
    weights = query.new_zeros(*query.shape[:3], key.shape[2])
    for row, head, place in itertools.product(*(range(size) for size in query.shape[:3])):
        seen = mask[row, place].nonzero()[:, 0]
        if len(seen) == 0:
            continue
        scores = scale * (key[row, head // group, seen] @ query[row, head, place])
        parts = (scores - scores.max()).exp()
        weights[row, head, place, seen] = parts / parts.sum()
        result[row, head, place] = (parts / parts.sum()) @ value[row, head // group, seen]
    return result, weights


def gradients(path: Path, work: Work, layout: Layout, similarity: Similarity, seed: int) -> list[Tensor]:
    """Gradients of query, key and value under one fixed weighting of the result."""
    tensors = [tensor.requires_grad_() for tensor in inputs(layout, work.rows, work.queries, work.keys, seed=seed)]
    result = attend(*tensors, work.scope(), similarity=similarity, path=path)
    pull = torch.rand(result.shape, generator=torch.Generator().manual_seed(seed), dtype=result.dtype)
    return list(torch.autograd.grad((result * pull).sum(), tensors))


# The three ways agree.


@given(works(), layouts(), dtypes, similarities, seeds)
@settings(max_examples=80)
def test_the_reference_is_attention_written_out(
    work: Work, layout: Layout, dtype: torch.dtype, similarity: Similarity, seed: int
) -> None:
    query, key, value = inputs(layout, work.rows, work.queries, work.keys, dtype, seed)
    found = attend(query, key, value, work.scope(), similarity=similarity, path="reference")
    expected, _ = written_out(query, key, value, work.plain_mask(), similarity)
    assert_close(found, expected.to(dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("path", ["sdpa", "strips", "flex", "products"])
@given(work=works(), layout=layouts(), dtype=dtypes, similarity=similarities, seed=seeds)
@settings(max_examples=100)
def test_every_path_gives_what_the_reference_gives(
    path: Path, work: Work, layout: Layout, dtype: torch.dtype, similarity: Similarity, seed: int
) -> None:
    tensors = inputs(layout, work.rows, work.queries, work.keys, dtype, seed)
    found, expected = (attend(*tensors, work.scope(), similarity=similarity, path=way) for way in (path, "reference"))
    assert_close(found, expected, TOLERANCE[dtype])


@given(works(), layouts(), dtypes, similarities, seeds)
@settings(max_examples=15)
def test_flex_gives_what_the_reference_gives_when_it_is_traced_too(
    work: Work, layout: Layout, dtype: torch.dtype, similarity: Similarity, seed: int
) -> None:
    tensors = inputs(layout, work.rows, work.queries, work.keys, dtype, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
        found = attend(*tensors, work.scope(), similarity=similarity, path="flex")
    expected = attend(*tensors, work.scope(), similarity=similarity, path="reference")
    assert_close(found, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("path", ["sdpa", "strips", "flex", "products"])
@given(work=works(AROUND_BLOCKS), layout=layouts(), dtype=dtypes, seed=seeds)
@settings(max_examples=30)
def test_every_path_gives_what_the_reference_gives_over_several_blocks(
    path: Path, work: Work, layout: Layout, dtype: torch.dtype, seed: int
) -> None:
    tensors = inputs(layout, work.rows, work.queries, work.keys, dtype, seed)
    found, expected = (attend(*tensors, work.scope(), path=way) for way in (path, "reference"))
    assert_close(found, expected, TOLERANCE[dtype])


@pytest.mark.parametrize(
    "pattern", [Causal() & Sliding(3), Causal() & Dilated(4, 200), Causal() & (Global(2) | Sliding(9))]
)
def test_fused_kernels_pass_over_far_keys_that_are_all_hidden(pattern: Pattern) -> None:
    # PyTorch's kernel takes 512 keys at a time: here whole stretches of them are hidden from a query.
    tensors = inputs(Layout(1, 1, 4, 4), 1, 1100, 1100, torch.float32)
    assert_close(
        attend(*tensors, pattern, path="sdpa"),
        attend(*tensors, pattern, path="reference"),
        TOLERANCE[torch.float32],
    )


@given(works(), layouts(), similarities, seeds)
@settings(max_examples=150)
def test_sdpa_gives_the_gradients_the_reference_gives(
    work: Work, layout: Layout, similarity: Similarity, seed: int
) -> None:
    pairs = zip(*(gradients(path, work, layout, similarity, seed) for path in ("sdpa", "reference")), strict=True)
    for found, expected in pairs:
        # A key's gradient sums over every query that sees it, in up to six heads: at most 120 terms of size 1.
        assert_close(found, expected, 120 * TOLERANCE[torch.float64])


@pytest.mark.parametrize("similarity", [ScaledDot(), Dot(0.5), Cosine(2.0)], ids=["scaled", "dot", "cosine"])
def test_the_gradients_of_the_reference_are_those_of_finite_differences(similarity: Similarity) -> None:
    tensors = [tensor.requires_grad_() for tensor in inputs(Layout(2, 1, 3, 2), 2, 3, 4)]
    pattern = Sliding(2) & Lengths(torch.tensor([0, 4]))

    def run(*tensors: Tensor) -> Tensor:
        return attend(*tensors, pattern, similarity=similarity, path="reference")

    assert torch.autograd.gradcheck(run, tensors)


# Where the queries stand.


@pytest.mark.parametrize("path", PATHS)
@given(seen=causal_patterns(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), seed=seeds)
@settings(max_examples=40)
def test_chunks_of_queries_over_the_keys_so_far_make_up_the_square(
    path: Path, seen: Seen, sizes: list[int], seed: int
) -> None:
    length = sum(sizes)
    query, key, value = inputs(PLAIN, 2, length, length, seed=seed)
    chunks, start = [], 0
    for size in sizes:
        end = start + size
        chunks.append(attend(query[:, :, start:end], key[:, :, :end], value[:, :, :end], seen.pattern, path=path))
        start = end
    assert_close(torch.cat(chunks, dim=2), attend(query, key, value, seen.pattern, path=path), TOLERANCE[torch.float64])


@pytest.mark.parametrize("path", PATHS)
@given(seen=plain_patterns(), starts=st.lists(st.integers(0, 9), min_size=3, max_size=3), seed=seeds)
@settings(max_examples=40)
def test_rows_with_a_start_each_give_what_each_row_gives_alone(
    path: Path, seen: Seen, starts: list[int], seed: int
) -> None:
    tensors = inputs(PLAIN, 3, 4, 12, seed=seed)
    together = attend(*tensors, seen.pattern, start=torch.tensor(starts), path=path)
    alone = [
        attend(*(tensor[row : row + 1] for tensor in tensors), seen.pattern, start=start, path=path)
        for row, start in enumerate(starts)
    ]
    assert_close(together, torch.cat(alone), TOLERANCE[torch.float64])


@pytest.mark.parametrize("path", PATHS)
def test_causal_attention_over_more_keys_than_queries_is_aligned_at_the_bottom_right(path: Path) -> None:
    query, key, _ = inputs(Layout(1, 1, 4, 1), 1, 2, 5)
    value = torch.eye(5, dtype=torch.float64)[None, None]  # attention then returns its weights
    seen = attend(query, key, value, Causal(), path=path)[0, 0] > 0
    assert seen.tolist() == [[True] * 4 + [False], [True] * 5]


@pytest.mark.parametrize("path", PATHS)
def test_without_a_pattern_everything_is_seen(path: Path) -> None:
    tensors = inputs(PLAIN, 2, 3, 5)
    expected, _ = written_out(*tensors, torch.ones(2, 3, 5, dtype=torch.bool))
    assert_close(attend(*tensors, path=path), expected, TOLERANCE[torch.float64])


# Queries that see nothing.

NOTHING = [
    pytest.param(Lengths(torch.tensor([0, 5])), (0, slice(None)), id="a row of padding"),
    pytest.param(Sliding(1) & Lengths(torch.tensor([3, 5])), (0, slice(3, None)), id="a few queries"),
    pytest.param(Documents(torch.tensor([[0, 0, -1, 1, 1], [0] * 5])), (0, slice(2, 3)), id="between documents"),
]


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("pattern", "empty"), NOTHING)
def test_a_query_that_sees_nothing_gets_zeros(
    pattern: Pattern, empty: tuple[int, slice], path: Path, dtype: torch.dtype
) -> None:
    row, queries = empty
    result = attend(*inputs(PLAIN, 2, 5, 5, dtype), pattern, path=path)
    assert result[row, :, queries].eq(0).all()
    assert result[1].ne(0).all()  # the other row sees something


@pytest.mark.parametrize("path", PATHS)
def test_queries_before_the_first_key_get_zeros(path: Path) -> None:
    result = attend(*inputs(PLAIN, 2, 5, 3), Causal(), path=path)
    assert result[:, :, :2].eq(0).all()
    assert result[:, :, 2:].ne(0).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("pattern", [Full(), Causal(), Sliding(2)], ids=str)
def test_without_a_single_key_every_query_gets_zeros(pattern: Pattern, path: Path) -> None:
    query, key, value = inputs(PLAIN, 2, 3, 0)
    assert torch.equal(attend(query, key, value, pattern, path=path), torch.zeros(2, 4, 3, 6, dtype=torch.float64))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("path", ["reference", "sdpa"])
@pytest.mark.parametrize(("pattern", "empty"), NOTHING)
def test_a_query_that_sees_nothing_has_a_gradient_of_zero_and_leaves_the_others_finite(
    pattern: Pattern, empty: tuple[int, slice], path: Path, dtype: torch.dtype
) -> None:
    row, queries = empty
    tensors = [tensor.requires_grad_() for tensor in inputs(PLAIN, 2, 5, 5, dtype)]
    found = torch.autograd.grad(attend(*tensors, pattern, path=path).float().square().sum(), tensors)
    assert all(gradient.isfinite().all() for gradient in found)
    assert found[0][row, :, queries].eq(0).all()


@pytest.mark.parametrize(("pattern", "empty"), NOTHING)
def test_the_reference_makes_no_nan_on_the_way_back_either(pattern: Pattern, empty: tuple[int, slice]) -> None:
    tensors = [tensor.requires_grad_() for tensor in inputs(PLAIN, 2, 5, 5)]
    with torch.autograd.set_detect_anomaly(True):  # raises at the first NaN inside the backward pass
        attend(*tensors, pattern, path="reference").square().sum().backward()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in tensors)


@pytest.mark.parametrize("path", ["reference", "sdpa"])
def test_a_key_that_nobody_sees_has_a_gradient_of_zero(path: Path) -> None:
    query, key, value = (tensor.requires_grad_() for tensor in inputs(PLAIN, 2, 5, 5))
    result = attend(query, key, value, Lengths(torch.tensor([3, 5])), path=path)
    found = torch.autograd.grad(result.square().sum(), (key, value))
    assert all(gradient[0, :, 3:].eq(0).all() for gradient in found)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "pattern", [Full(), Causal(), Lengths(torch.tensor([1, 2]))], ids=["full", "causal", "lengths"]
)
def test_no_queries_give_an_empty_result(pattern: Pattern, path: Path) -> None:
    query, key, value = inputs(PLAIN, 2, 0, 5)
    assert attend(query, key, value, pattern, path=path).shape == (2, 4, 0, 6)


# Packed documents and padding.


def runs(line: list[int]) -> list[tuple[int, int, int]]:
    """Number, first position and end of every document in a row."""
    return [(number, line.index(number), line.index(number) + line.count(number)) for number in set(line) - {-1}]


@pytest.mark.parametrize("path", PATHS)
@given(numbers=numberings(2, 12), within=plain_patterns(), layout=layouts(), seed=seeds)
@settings(max_examples=40)
def test_a_packed_document_gets_what_it_would_get_alone_in_a_row(
    path: Path, numbers: list[list[int]], within: Seen, layout: Layout, seed: int
) -> None:
    tensors = inputs(layout, 2, 12, 12, seed=seed)
    packed = attend(*tensors, Documents(torch.tensor(numbers), within.pattern), path=path)
    for row, line in enumerate(numbers):
        for _, first, end in runs(line):
            alone = attend(*(tensor[row : row + 1, :, first:end] for tensor in tensors), within.pattern, path=path)
            assert_close(packed[row : row + 1, :, first:end], alone, TOLERANCE[torch.float64])


@pytest.mark.parametrize("path", PATHS)
@given(numbers=numberings(2, 9), key_numbers=numberings(2, 9), within=plain_patterns(), seed=seeds)
@settings(max_examples=40)
def test_a_packed_pair_gets_what_it_would_get_alone_in_a_row(
    path: Path, numbers: list[list[int]], key_numbers: list[list[int]], within: Seen, seed: int
) -> None:
    query, key, value = inputs(PLAIN, 2, 9, 9, seed=seed)
    pattern = Documents(torch.tensor(numbers), within.pattern, torch.tensor(key_numbers))
    packed = attend(query, key, value, pattern, start=0, path=path)
    for row, (line, other) in enumerate(zip(numbers, key_numbers, strict=True)):
        places = {number: slice(first, end) for number, first, end in runs(other)}
        for number, first, end in runs(line):
            found, keys = packed[row, :, first:end], places.get(number, slice(0, 0))
            alone = [query[row, :, first:end], key[row, :, keys], value[row, :, keys]]
            expected = attend(*(tensor[None] for tensor in alone), within.pattern, start=0)[0]
            assert_close(found, expected, TOLERANCE[torch.float64])


@pytest.mark.parametrize("path", PATHS)
@given(numbers=numberings(2, 12), within=plain_patterns(), seed=seeds)
@settings(max_examples=20)
def test_padding_among_documents_gets_zeros_and_changes_no_document(
    path: Path, numbers: list[list[int]], within: Seen, seed: int
) -> None:
    padding = torch.tensor(numbers) < 0
    tensors = inputs(PLAIN, 2, 12, 12, seed=seed)
    noisy = [torch.where(padding[:, None, :, None], 100.0, tensor) for tensor in tensors]
    pattern = Documents(torch.tensor(numbers), within.pattern)
    result = attend(*noisy, pattern, path=path)
    expected = attend(*tensors, pattern, path=path).masked_fill(padding[:, None, :, None], 0.0)
    assert_close(result, expected, TOLERANCE[torch.float64])


@pytest.mark.parametrize("path", PATHS)
@given(seen=plain_patterns(), lengths=st.lists(st.integers(1, 6), min_size=2, max_size=2), seed=seeds)
@settings(max_examples=20)
def test_padding_changes_nothing(path: Path, seen: Seen, lengths: list[int], seed: int) -> None:
    tensors = inputs(PLAIN, 2, 6, 6, seed=seed)
    padded = attend(*tensors, seen.pattern & Lengths(torch.tensor(lengths)), path=path)
    for row, length in enumerate(lengths):
        alone = attend(*(tensor[row : row + 1, :, :length] for tensor in tensors), seen.pattern, path=path)
        assert_close(padded[row : row + 1, :, :length], alone, TOLERANCE[torch.float64])


# What it shows, and what it shares.


@given(works(), layouts(), dtypes, similarities, seeds)
def test_the_weights_shown_are_those_of_attention_written_out(
    work: Work, layout: Layout, dtype: torch.dtype, similarity: Similarity, seed: int
) -> None:
    query, key, value = inputs(layout, work.rows, work.queries, work.keys, dtype, seed)
    _, weights = attend_and_show(query, key, value, work.scope(), similarity=similarity)
    _, expected = written_out(query, key, value, work.plain_mask(), similarity)
    # Weights are float32 or better; the cosine's normalised queries are bfloat16 where the input is.
    assert_close(weights, expected.to(weights.dtype), TOLERANCE[dtype])


@given(works(), layouts(), dtypes, seeds)
def test_the_weights_shown_sum_to_one_or_to_zero_where_nothing_is_seen(
    work: Work, layout: Layout, dtype: torch.dtype, seed: int
) -> None:
    tensors = inputs(layout, work.rows, work.queries, work.keys, dtype, seed)
    _, weights = attend_and_show(*tensors, work.scope())
    expected = work.plain_mask().any(dim=-1)[:, None].expand(weights.shape[:3]).to(weights.dtype)
    assert_close(weights.sum(dim=-1), expected, TOLERANCE[weights.dtype])


@given(works(), layouts(), similarities, seeds)
def test_the_result_beside_the_weights_is_that_of_the_reference(
    work: Work, layout: Layout, similarity: Similarity, seed: int
) -> None:
    tensors = inputs(layout, work.rows, work.queries, work.keys, seed=seed)
    shown, _ = attend_and_show(*tensors, work.scope(), similarity=similarity)
    assert torch.equal(shown, attend(*tensors, work.scope(), similarity=similarity, path="reference"))


@pytest.mark.parametrize("path", PATHS)
@given(work=works(), seed=seeds)
@settings(max_examples=25)
def test_a_scope_shared_by_two_calls_does_what_the_pattern_does(path: Path, work: Work, seed: int) -> None:
    tensors = inputs(PLAIN, work.rows, work.queries, work.keys, seed=seed)
    scope = work.scope()
    attend(*tensors, scope, path=path)
    again = attend(*tensors, scope, path=path)
    assert torch.equal(again, attend(*tensors, work.seen.pattern, start=work.given_start, path=path))


def test_a_scope_in_which_rows_are_alike_serves_any_number_of_rows() -> None:
    tensors = inputs(PLAIN, 3, 4, 4)
    assert torch.equal(attend(*tensors, Sliding(2).over(4)), attend(*tensors, Sliding(2)))


# Dropout. With one-hot values attention returns its own weights.

SAMPLES = 4000


def dropped(path: Path, dropout: float, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """Weights after dropout, in many samples, and before.  # (samples, queries, keys), (queries, keys)"""
    torch.manual_seed(0)
    query, key, _ = inputs(Layout(1, 1, 8, 8), 1, 3, 6, torch.float32)
    value = torch.eye(6)[None, None]
    many = [tensor.expand(samples, -1, -1, -1) for tensor in (query, key, value)]
    _, weights = attend_and_show(query, key, value)
    return attend(*many, dropout=dropout, path=path)[:, 0], weights[0, 0]


@pytest.mark.parametrize("path", ["reference", "sdpa"])
def test_dropout_keeps_the_mean_of_every_weight(path: Path) -> None:
    samples, weights = dropped(path, 0.25)
    # A weight w is kept as w / 0.75 with chance 0.75: its deviation is w·√(0.25/0.75). Five of them, over √samples.
    allowed = 5 * weights * (0.25 / 0.75) ** 0.5 / SAMPLES**0.5
    assert ((samples.mean(dim=0) - weights).abs() <= allowed).all()


@pytest.mark.parametrize("path", ["reference", "sdpa"])
def test_a_weight_is_dropped_whole_or_kept_and_enlarged(path: Path) -> None:
    samples, weights = dropped(path, 0.25, 50)
    kept = samples != 0
    assert_close(samples, torch.where(kept, weights / 0.75, 0.0), TOLERANCE[torch.float32])


@pytest.mark.parametrize("path", ["reference", "sdpa"])
def test_dropout_drops_the_share_of_weights_it_says(path: Path) -> None:
    samples, _ = dropped(path, 0.25)
    # Five standard deviations of a share of 18 weights in each sample.
    assert abs(float((samples == 0).float().mean()) - 0.25) <= 5 * (0.25 * 0.75 / (18 * SAMPLES)) ** 0.5


@pytest.mark.parametrize("path", ["reference", "sdpa", "products"])
def test_no_dropout_changes_nothing(path: Path) -> None:
    samples, weights = dropped(path, 0.0, 50)
    assert_close(samples, weights.expand_as(samples), TOLERANCE[torch.float32])


def test_the_weights_shown_are_those_before_dropout() -> None:
    tensors = inputs(PLAIN, 2, 3, 5)
    torch.manual_seed(0)
    assert torch.equal(attend_and_show(*tensors, dropout=0.5)[1], attend_and_show(*tensors)[1])


# Which way is taken.


@given(works(), st.sampled_from([0.0, 0.1]), dtypes)
def test_on_the_cpu_sdpa_is_chosen_for_all_work(work: Work, dropout: float, dtype: torch.dtype) -> None:
    query, _, value = inputs(PLAIN, work.rows, work.queries, work.keys, dtype)
    assert choose(query, value, work.scope(), dropout) == "sdpa"


LOCAL = Causal() & Sliding(9)


@pytest.mark.parametrize(
    ("pattern", "queries", "keys", "widths", "dropout", "dtype", "expected"),
    [
        pytest.param(LOCAL, FLEX_FROM, FLEX_FROM, (16, 16), 0.0, torch.bfloat16, "flex", id="long and local"),
        pytest.param(LOCAL, FLEX_FROM, FLEX_FROM, (64, 32), 0.0, torch.float32, "flex", id="float32"),
        pytest.param(LOCAL, FLEX_FROM - 1, FLEX_FROM, (64, 64), 0.0, torch.bfloat16, "sdpa", id="few queries"),
        pytest.param(Sliding(9), FLEX_FROM, FLEX_FROM - 1, (64, 64), 0.0, torch.bfloat16, "sdpa", id="few keys"),
        pytest.param(Causal(), FLEX_FROM, FLEX_FROM, (64, 64), 0.0, torch.bfloat16, "sdpa", id="the triangle"),
        pytest.param(Full(), FLEX_FROM, FLEX_FROM, (64, 64), 0.0, torch.bfloat16, "sdpa", id="everything"),
        pytest.param(LOCAL, FLEX_FROM, FLEX_FROM, (64, 64), 0.1, torch.bfloat16, "sdpa", id="dropout"),
        pytest.param(LOCAL, FLEX_FROM, FLEX_FROM, (64, 64), 0.0, torch.float64, "sdpa", id="float64"),
        # The GPU kernel multiplies tiles of 16 features and refuses fewer.
        pytest.param(LOCAL, FLEX_FROM, FLEX_FROM, (8, 64), 0.0, torch.bfloat16, "sdpa", id="narrow keys"),
        pytest.param(LOCAL, FLEX_FROM, FLEX_FROM, (64, 8), 0.0, torch.bfloat16, "sdpa", id="narrow values"),
        pytest.param(Full(), 16, 30_000, (576, 512), 0.0, torch.bfloat16, "products", id="wide heads"),
        pytest.param(LOCAL, 16, 30_000, (64, 512), 0.0, torch.bfloat16, "products", id="wide values"),
        pytest.param(Full(), 16, 30_000, (256, 256), 0.0, torch.bfloat16, "sdpa", id="just not too wide"),
        pytest.param(Full(), 2**14, 2**15, (576, 512), 0.0, torch.bfloat16, "sdpa", id="too many scores to hold"),
    ],
)
def test_on_a_gpu_the_way_is_chosen_that_pays_and_is_right(
    pattern: Pattern,
    queries: int,
    keys: int,
    widths: tuple[int, int],
    dropout: float,
    dtype: torch.dtype,
    expected: str,
) -> None:
    # As much of a tensor on a GPU as is asked about.
    facts = {"is_cuda": True, "dtype": dtype, "requires_grad": False}
    query = SimpleNamespace(shape=(1, 1, queries, widths[0]), **facts)
    value = SimpleNamespace(shape=(1, 1, keys, widths[1]), **facts)
    assert choose(query, value, pattern.over(queries, keys), dropout) == expected


def test_wide_heads_that_learn_take_a_way_with_gradients() -> None:
    facts = {"is_cuda": True, "dtype": torch.bfloat16, "requires_grad": True}
    query, value = (SimpleNamespace(shape=(1, 1, length, 512), **facts) for length in (16, 300))
    assert choose(query, value, Full().over(16, 300), 0.0) == "sdpa"
    with torch.no_grad():
        assert choose(query, value, Full().over(16, 300), 0.0) == "products"


@pytest.mark.parametrize(
    ("pattern", "length", "expected"),
    [
        pytest.param(LOCAL, STRIPS_FROM, "strips", id="long and local"),
        pytest.param(LOCAL, STRIPS_FROM - 1, "sdpa", id="short"),
        pytest.param(Causal() & Sliding(STRIPS_FROM // 2), STRIPS_FROM, "sdpa", id="little left out"),
        pytest.param(Causal() & (Global(2) | Sliding(9)), STRIPS_FROM, "sdpa", id="global"),
        pytest.param(Causal(), STRIPS_FROM, "sdpa", id="the triangle"),
    ],
)
def test_on_the_cpu_long_work_is_done_in_strips_where_half_is_left_out(
    pattern: Pattern, length: int, expected: str
) -> None:
    query = SimpleNamespace(is_cuda=False, dtype=torch.float32, shape=(1, 1, length, 64))
    assert choose(query, query, pattern.over(length)) == expected


STRIPED = [
    Causal() & Sliding(40),
    Sliding(300),
    Causal() & Dilated(5, 60),
    Causal() & (Global(2) | Sliding(9)),
    Full(),
]


@pytest.mark.parametrize("pattern", STRIPED, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(700, 700), (300, 900), (512, 512)])
def test_several_strips_give_the_output_and_gradients_of_the_whole(pattern: Pattern, queries: int, keys: int) -> None:
    found, wanted = [], []
    for path, kept in (("strips", found), ("reference", wanted)):
        tensors = [tensor.requires_grad_() for tensor in inputs(Layout(4, 2, 6, 5), 2, queries, keys, torch.float64)]
        output = attend(*tensors, pattern, path=path)
        kept += [output, *torch.autograd.grad(output.square().sum(), tensors)]
    for mine, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10)  # float64: sums in another order


def test_strips_of_rows_that_differ_are_right_too() -> None:
    pattern = (Causal() & Sliding(30)) & Lengths(torch.tensor([600, 0, 270]))
    tensors = inputs(PLAIN, 3, 600, 600, torch.float64)
    found, wanted = (attend(*tensors, pattern, path=path) for path in ("strips", "reference"))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_strips_hold_masks_that_grow_with_the_length_not_with_its_square() -> None:
    held = [sum(strip.mask.numel() for strip in (Causal() & Sliding(100)).over(n).strips()) for n in (2048, 8192)]
    assert held[1] < 4.3 * held[0]


def test_a_call_without_a_path_takes_the_chosen_one() -> None:
    tensors = inputs(PLAIN, 2, 5, 5)
    assert torch.equal(attend(*tensors, Sliding(2)), attend(*tensors, Sliding(2), path="sdpa"))


# Wrong input.


@pytest.mark.parametrize(
    ("query", "key", "value", "problem"),
    [
        ((2, 3, 8), (2, 1, 5, 8), (2, 1, 5, 8), "batch, heads, length, width"),
        ((2, 4, 3, 8), (2, 5, 8), (2, 1, 5, 8), "batch, heads, length, width"),
        ((2, 4, 3, 8), (2, 1, 5, 8), (1, 2, 1, 5, 8), "batch, heads, length, width"),
        ((2, 4, 3, 8), (3, 2, 5, 8), (3, 2, 5, 8), "number of rows"),
        ((2, 4, 3, 8), (2, 2, 5, 8), (1, 2, 5, 8), "number of rows"),
        ((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 6, 8), "every key needs one value"),
        ((2, 4, 3, 8), (2, 2, 5, 8), (2, 4, 5, 8), "every key needs one value"),
        ((2, 4, 3, 8), (2, 2, 5, 6), (2, 2, 5, 8), "same width"),
        ((2, 4, 3, 8), (2, 3, 5, 8), (2, 3, 5, 8), "4 query heads cannot share 3 key heads"),
        ((2, 4, 3, 8), (2, 0, 5, 8), (2, 0, 5, 8), "4 query heads cannot share 0 key heads"),
        ((2, 2, 3, 8), (2, 4, 5, 8), (2, 4, 5, 8), "2 query heads cannot share 4 key heads"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_the_problem_and_the_shapes(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], problem: str
) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        attend(torch.zeros(query), torch.zeros(key), torch.zeros(value))
    assert f"query {query}, key {key}, value {value}" in str(caught.value)


@pytest.mark.parametrize(
    "scope",
    [Causal().over(4, 5), Causal().over(3, 6), Lengths(torch.tensor([1, 2, 3])).over(3, 5, rows=3)],
    ids=["queries", "keys", "rows"],
)
def test_a_scope_laid_over_other_work_is_refused_with_both_sizes(scope: Scope) -> None:
    with pytest.raises(UserError, match=f"{scope.rows} rows, {scope.queries} queries and {scope.keys} keys") as caught:
        attend(*inputs(PLAIN, 2, 3, 5), scope)
    assert "query (2, 4, 3, 8)" in str(caught.value)


def test_a_start_beside_a_scope_that_has_one_is_refused() -> None:
    with pytest.raises(UserError, match="start"):
        attend(*inputs(PLAIN, 2, 3, 5), Causal().over(3, 5), start=0)


@pytest.mark.parametrize("start", [torch.tensor([0]), torch.tensor([[0, 1]])], ids=["one row", "two dimensions"])
def test_starts_for_other_rows_are_refused_with_both_shapes(start: Tensor) -> None:
    with pytest.raises(UserError, match=r"expected shape \(2,\)") as caught:
        attend(*inputs(PLAIN, 2, 3, 5), Causal(), start=start)
    assert f"found {tuple(start.shape)}" in str(caught.value)


def test_an_unknown_path_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match="no attention path 'flash'; choose one of reference, sdpa, strips, flex"):
        attend(*inputs(PLAIN, 2, 3, 5), path="flash")  # type: ignore[arg-type]


def test_flex_with_dropout_is_refused_with_what_to_do() -> None:
    with pytest.raises(UserError, match=r"no dropout.*take the sdpa path"):
        attend(*inputs(PLAIN, 2, 3, 5), dropout=0.1, path="flex")


@pytest.mark.parametrize("which", range(3), ids=["query", "key", "value"])
def test_flex_with_gradients_on_the_cpu_is_refused_with_what_to_do(which: int) -> None:
    tensors = list(inputs(PLAIN, 2, 3, 5))
    tensors[which].requires_grad_()
    with pytest.raises(UserError, match="no gradients on cpu; take the sdpa path or a GPU"):
        attend(*tensors, path="flex")


def test_flex_takes_tensors_that_want_gradients_where_none_are_recorded() -> None:
    query, key, value = inputs(PLAIN, 2, 3, 5)
    expected = attend(query, key, value, path="flex")
    with torch.no_grad():
        assert torch.equal(attend(query.requires_grad_(), key, value, path="flex"), expected)
