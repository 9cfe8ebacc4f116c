"""Attention, as the slides work it out by hand."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import (
    Causal,
    Context,
    Cosine,
    Dilated,
    Dot,
    Full,
    Global,
    MultiHeadConfig,
    NoPositionConfig,
    Pattern,
    ScaledDot,
    SelfAttention,
    Sliding,
    attend,
    attend_with_weights,
)
from regard.model import EncoderDecoder, count_parameters
from regard.model.presets import paper_model
from regard.model.stack import Stack
from tests.seeds.small import WIDTH, head, ids, random_ids, run_attention, stack, translator, writer

# Thinking Machines: 001 "QKV Operation", 003 "An Example"


def thinking_machines() -> tuple[Tensor, Tensor]:
    """The query of "Thinking" and both keys, 64 wide, with the slides' dot products 112 and 96."""
    query = torch.ones(1, 64)
    keys = torch.stack((torch.full((64,), 112 / 64), torch.full((64,), 96 / 64)))
    return head(query), head(keys)


def test_thinking_machines_scores_112_and_96_become_14_and_12() -> None:
    """003 "An Example": divide by 8, the root of d_k = 64."""
    query, keys, scale = ScaledDot()(*thinking_machines())
    assert (query @ keys.mT).flatten().tolist() == [112, 96]
    assert (scale * (query @ keys.mT)).flatten().tolist() == [14, 12]


def test_thinking_machines_weights_are_0_881_and_0_119() -> None:
    """003 "An Example" prints 0.88 and 0.12."""
    query, keys = thinking_machines()
    _, weights = attend_with_weights(query, keys, keys)
    assert weights.flatten().tolist() == pytest.approx([0.881, 0.119], abs=5e-4)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "flex"])
def test_thinking_machines_sum_is_0_881_of_one_value_and_0_119_of_the_other(backend: str) -> None:
    """001 "QKV Operation": z₁ = 0.881 v₁ + 0.119 v₂, whichever way attention is computed."""
    torch.manual_seed(0)
    values = torch.randn(2, 64)
    z = attend(*thinking_machines(), head(values), backend=backend)[0, 0, 0]
    rounding = 5e-4 * values.abs().sum(dim=0)  # the slides' weights have three digits
    assert ((z - 0.881 * values[0] - 0.119 * values[1]).abs() <= rounding).all()


# I like going to movies: 001 "Self-Attention" and "Masked Self-Attention"

SHOWN = torch.tensor([[0.5, 0.1, 0.0, 0.2, 0.2, 0.0], [0.2, 0.6, 0.0, 0.0, 0.2, 0.0]])  # rows of "I" and "like"
MASKED = torch.tensor([[1.0, 0, 0, 0], [0.3, 0.7, 0, 0], [0.2, 0.3, 0.5, 0], [0.1, 0.2, 0.1, 0.6]])  # "I" … "to"


class NonZero(Pattern):
    """Allow the keys with a non-zero weight on the slide: a softmax alone never gives 0."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.weights[query, key] > 0


def asking_for(weights: Tensor, instead_of_minus_infinity: float) -> tuple[Tensor, Tensor]:
    """Queries and keys whose dot products are the logarithms of these weights: each query selects one key feature.

    No finite score gives a weight of 0; such entries get the given score instead.
    """
    scores = weights.log().nan_to_num(neginf=instead_of_minus_infinity)
    return head(torch.eye(len(weights))), head(scores.T)


def test_i_like_going_to_movies_with_one_hot_values_returns_its_weights() -> None:
    """001 "Self-Attention": 0.5·I + 0.1·like + 0.2·to + 0.2·movies, and 0.2·I + 0.6·like + 0.2·movies."""
    query, key = asking_for(SHOWN, instead_of_minus_infinity=3.0)  # a high score: only the pattern masks it
    mixed = attend(query, key, head(torch.eye(6)), NonZero(SHOWN), start=0, similarity=Dot())
    assert torch.allclose(mixed[0, 0], SHOWN, atol=1e-6)


def test_a_very_low_score_gives_the_same_zeros_as_a_pattern() -> None:
    """002 "Decoders should not see into the future": a score of −∞ is a weight of 0."""
    query, key = asking_for(SHOWN, instead_of_minus_infinity=-1e4)
    mixed = attend(query, key, head(torch.eye(6)), similarity=Dot())
    assert torch.allclose(mixed[0, 0], SHOWN, atol=1e-6)
    assert (mixed[0, 0][SHOWN == 0] == 0).all()


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_masked_i_like_going_to_movies_returns_the_triangle_of_weights(backend: str) -> None:
    """001 "Masked QKV Operation": 1·I; 0.3·I + 0.7·like; 0.2, 0.3, 0.5; 0.1, 0.2, 0.1, 0.6."""
    query, key = asking_for(MASKED, instead_of_minus_infinity=3.0)  # later words have the highest scores and are masked
    mixed = attend(query, key, head(torch.eye(4)), Causal(), similarity=Dot(), backend=backend)
    assert torch.allclose(mixed[0, 0], MASKED, atol=1e-6)


# Soft lookup: 002 "Self Attention", 004 "trainable database"


def database() -> tuple[Tensor, Tensor]:
    """Five keys of length 1 and their values."""
    torch.manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(5, 8).double(), dim=-1), torch.randn(5, 8).double()


def test_soft_lookup_becomes_a_dictionary_as_the_temperature_goes_to_0() -> None:
    """002 "Self Attention": "pick up the key most like the query and return the value vector"."""
    keys, values = database()
    far = []
    for temperature in (1.0, 0.3, 0.1, 0.03, 0.01):
        looked_up = attend(head(keys[3:4]), head(keys), head(values), similarity=Dot(1 / temperature))
        far.append(float((looked_up[0, 0, 0] - values[3]).norm()))
    assert all(later < earlier for earlier, later in pairwise(far))
    assert far[-1] < 1e-6


def test_equal_scores_give_the_plain_mean_of_the_values() -> None:
    """000 "How to embed context": the first idea, one vector with equal weights, is attention with a scale of 0."""
    keys, values = database()
    mixed = attend(head(keys), head(keys), head(values), similarity=Dot(0.0))
    assert torch.allclose(mixed[0, 0], values.mean(dim=0).expand(5, -1))


# The four-word cosine matrix: 000 "Choices for A matrix" and "Decoder Self-Attention (training)"

PRINTED = {(1, 0): 0.46, (2, 1): 0.051, (3, 0): 0.054, (3, 1): 0.23}
"""The cosines that can be read on the slide. Of (2, 0) and (3, 2) too little is left; they are taken as 0 here."""


def four_words() -> Tensor:
    """Four word vectors of different lengths with the slide's cosines.  # (1, 1, 4, 4)"""
    cosines = torch.eye(4, dtype=torch.float64)
    for (row, column), cosine in PRINTED.items():
        cosines[row, column] = cosines[column, row] = cosine
    directions = torch.linalg.cholesky(cosines)
    return head(directions * torch.tensor([[1.0], [2.0], [0.5], [3.0]]))


def cosine_matrix() -> Tensor:
    words, same, scale = Cosine()(four_words(), four_words())
    return scale * (words @ same.mT)[0, 0]  # (4, 4)


def test_cosine_matrix_has_the_printed_numbers() -> None:
    """000 "Decoder Self-Attention (training)": 0.46, 0.051, 0.054 and 0.23, whatever the vectors' lengths."""
    looked_up = {place: float(cosine_matrix()[place]) for place in PRINTED}
    assert looked_up == pytest.approx(PRINTED)


def test_cosine_matrix_is_symmetric() -> None:
    """000 "Choices for A matrix"."""
    assert torch.allclose(cosine_matrix(), cosine_matrix().T)


def test_cosine_of_a_word_with_itself_is_1() -> None:
    """000 "Choices for A matrix"."""
    assert torch.allclose(cosine_matrix().diagonal(), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("pattern", [Full(), Causal()])
def test_attention_from_cosines_has_rows_that_sum_to_1(pattern: Pattern) -> None:
    """000 "Choices for A matrix": "normalize values in each row using softmax", masked or not."""
    _, weights = attend_with_weights(*[four_words()] * 3, pattern, similarity=Cosine())
    assert torch.allclose(weights.sum(dim=-1), torch.ones(1, 1, 4, dtype=torch.float64))


def test_masked_attention_from_cosines_is_0_above_the_diagonal() -> None:
    """000 "Decoder Self-Attention (training)": "set values in upper triangle to −∞"."""
    _, weights = attend_with_weights(*[four_words()] * 3, Causal(), similarity=Cosine())
    assert (weights[0, 0].triu(1) == 0).all()


def test_second_word_gives_0_368_to_the_first_and_0_632_to_itself() -> None:
    """000 "Decoder Self-Attention (training)": the softmax of the slide's 0.46 and 1."""
    _, weights = attend_with_weights(*[four_words()] * 3, Causal(), similarity=Cosine())
    assert weights[0, 0, 1, :2].tolist() == pytest.approx([0.368, 0.632], abs=5e-4)


def test_context_seen_from_each_word_is_the_weights_times_the_words() -> None:
    """000 "Refinement of idea": Z = A·X, one row per word, without query or key projections."""
    words = four_words()
    mixed = attend(words, words, words, similarity=Cosine())
    assert torch.allclose(mixed[0, 0], cosine_matrix().softmax(dim=-1) @ words[0, 0])


# Weights, means and their cost


def test_weights_are_not_negative_and_sum_to_1() -> None:
    """004 eq. 2: the definition of "to incorporate attention"."""
    torch.manual_seed(0)
    _, weights = attend_with_weights(torch.randn(2, 3, 7, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8))
    assert (weights >= 0).all()
    assert torch.allclose(weights.sum(dim=-1), torch.ones(2, 3, 7))


def test_attention_alone_is_linear_in_its_values() -> None:
    """002 "Three Problems": "just a weighted average", hence the feed-forward network after it."""
    torch.manual_seed(0)
    query, key, one, two = torch.randn(4, 1, 1, 6, 8).double()
    mixed = attend(query, key, 2 * one + 3 * two)
    assert torch.allclose(mixed, 2 * attend(query, key, one) + 3 * attend(query, key, two))


@pytest.mark.parametrize("width", [16, 32, 64, 128, 256, 512, 1024])
def test_scores_over_root_d_keep_a_spread_of_1(width: int) -> None:
    """002 "Scaled dot product attention": the standard deviation is within 3 % of 1 at every width."""
    torch.manual_seed(0)
    query, key, scale = ScaledDot()(torch.randn(1024, width), torch.randn(1024, width))
    assert float((scale * (query @ key.mT)).std()) == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("width", [16, 32, 64, 128, 256, 512, 1024])
def test_scores_without_the_root_spread_with_the_root_of_d(width: int) -> None:
    """002 "Scaled dot product attention": "grows proportional to √d"."""
    torch.manual_seed(0)
    query, key, scale = Dot()(torch.randn(1024, width), torch.randn(1024, width))
    assert float((scale * (query @ key.mT)).std()) == pytest.approx(math.sqrt(width), rel=0.03)


def attention_flops(length: int, width: int) -> int:
    x = torch.randn(1, 1, length, width)
    with FlopCounterMode(display=False) as counter:
        attend(x, x, x, backend="reference")  # the fused kernels count as 0 on the CPU
    return counter.get_total_flops()


def test_attention_costs_4_n_squared_d() -> None:
    """002 "Problems with Transformers" and 003 "Multi-head Attention": O(n² d)."""
    assert attention_flops(32, 8) == 4 * 32**2 * 8
    assert attention_flops(64, 8) == 4 * attention_flops(32, 8)


@pytest.mark.parametrize(
    ("pattern", "keys_per_word"),
    [(Sliding(4), 7), (Dilated(4, 2), 7), (Global(2) | Sliding(4), 11)],
    ids=["sliding", "dilated", "global+sliding"],
)
def test_local_patterns_grow_with_the_length_alone(pattern: Pattern, keys_per_word: int) -> None:
    """000 "Attention Variants", pictures (b) to (d): a longer text costs the same for each further word."""
    assert pattern.pairs(128) - pattern.pairs(64) == 64 * keys_per_word


def test_full_pattern_grows_with_the_square_of_the_length() -> None:
    """000 "Attention Variants", picture (a): "full n² attention"."""
    assert [Full().pairs(length) for length in (64, 128)] == [64**2, 128**2]


# Heads


def paper_heads(heads: int) -> tuple[int, int]:
    """Parameters and FLOPs of the paper's base model with this many heads, on the meta device."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        model = paper_model(37_000, heads=heads).build().eval()
        words = torch.zeros(1, 16, dtype=torch.long)
        model(
            words, words, attention_hook=lambda attention, weights: None
        )  # with an observer, on the path whose FLOPs are counted
    return count_parameters(model), counter.get_total_flops()


@pytest.mark.parametrize("heads", [1, 2, 4, 16, 32])
def test_heads_at_constant_width_change_neither_parameters_nor_flops(heads: int) -> None:
    """004 eq. 11, 003 "Multi-head Attention", 000 "Multi-head attention": the width is divided among the heads."""
    assert paper_heads(heads) == paper_heads(8)


def formula(attention: SelfAttention, x: Tensor, scale: float) -> Tensor:
    """Concat(softmax(scale · X Q_h (X K_h)ᵀ) X V_h) over the heads, as 002 and 004 write it."""
    width = attention.q_proj.out_features // attention.heads
    parts = []
    for number in range(attention.heads):
        one = slice(number * width, (number + 1) * width)
        query, key = x @ attention.q_proj.weight[one].T, x @ attention.k_proj.weight[one].T
        parts.append((scale * (query @ key.T)).softmax(dim=-1) @ (x @ attention.v_proj.weight[one].T))
    return torch.cat(parts, dim=-1)


def test_heads_without_scale_and_output_are_the_first_form_of_002() -> None:
    """002 "Multi-head Self-attention": O = [O₁, …, O_k], no √d and no W_O (000 draws none either)."""
    torch.manual_seed(0)
    config = MultiHeadConfig(heads=4, bias=False, similarity="dot", output_projection=False)
    attention, x = SelfAttention(config, WIDTH, Full()).double(), torch.randn(5, WIDTH).double()
    assert torch.allclose(run_attention(attention, x), formula(attention, x, scale=1.0))


def test_heads_are_scaled_and_mixed_by_default() -> None:
    """004 eq. 10: MHA = Concat(h_i) W_O, the scores over √d_k."""
    torch.manual_seed(0)
    attention = SelfAttention(MultiHeadConfig(heads=4, bias=False), WIDTH, Full()).double()
    x = torch.randn(5, WIDTH).double()
    expected = formula(attention, x, scale=(WIDTH / 4) ** -0.5) @ attention.o_proj.weight.T
    assert torch.allclose(run_attention(attention, x), expected)


# Receptive fields: 001 "RNN, 1D Conv, Transformers", 003 "Updating Representations"


def reach(layers: int, words: int, pattern: str = "full", *, causal: bool = False) -> Tensor:
    """Which inputs each output depends on: the non-zeros of the Jacobian.  # (words, words)"""
    torch.manual_seed(0)
    config = stack(layers, width=8, attention=MultiHeadConfig(heads=2, pattern=pattern))
    model = Stack(config, 8, NoPositionConfig(), causal=causal).double()
    context = Context(torch.zeros(1, words, dtype=torch.long))

    def output(x: Tensor) -> Tensor:
        return model(x[None], context, model.states())[0]

    slopes = torch.autograd.functional.jacobian(output, torch.randn(words, 8).double())
    return slopes.abs().sum(dim=(1, 3)) > 0


def test_one_layer_of_attention_reaches_every_word() -> None:
    """001 "RNN, 1D Conv, Transformers": attention covers all words in one layer."""
    assert reach(1, words=12).all()


def test_one_layer_of_masked_attention_reaches_itself_and_every_earlier_word() -> None:
    """001 "Decoder Self-Attention": "can only attend to itself and backwards"."""
    assert torch.equal(reach(1, words=12, causal=True), torch.ones(12, 12).tril().bool())


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_a_window_reaches_as_slowly_as_a_convolution(layers: int) -> None:
    """003 "Updating Representations": 1 + L(k − 1) words, here with a causal window of k = 3."""
    seen = reach(layers, words=12, pattern="sliding(3)", causal=True)
    assert int(seen[-1].sum()) == 1 + layers * (3 - 1)


# Permutations: 001 "Self-Attention = Set Encoding", 002 "Three Problems", 004 "Positional Encoding"

SENTENCE, ORDER = ids(3, 1, 4, 15, 9, 2), torch.tensor([4, 2, 0, 5, 1, 3])


def test_without_positions_permuting_the_input_permutes_the_output() -> None:
    """001 "Self-Attention = Set Encoding": the encoder is equivariant."""
    model = translator(position=NoPositionConfig())
    assert torch.allclose(model.encode(SENTENCE[:, ORDER]), model.encode(SENTENCE)[:, ORDER])


def test_without_positions_the_output_itself_is_not_invariant() -> None:
    """004 "Positional Encoding" calls it "permutation invariant"."""
    model = translator(position=NoPositionConfig())
    assert not torch.allclose(model.encode(SENTENCE[:, ORDER]), model.encode(SENTENCE), atol=0.1)


def test_without_positions_the_mean_over_words_is_invariant() -> None:
    """004 "Positional Encoding": what is invariant is a sum over the words."""
    model = translator(position=NoPositionConfig())
    assert torch.allclose(model.encode(SENTENCE[:, ORDER]).mean(dim=1), model.encode(SENTENCE).mean(dim=1))


def test_with_positions_order_matters_even_to_the_mean() -> None:
    """001 "Positional Encoding": "we need to inject order information"."""
    model = translator()
    assert not torch.allclose(model.encode(SENTENCE[:, ORDER]).mean(dim=1), model.encode(SENTENCE).mean(dim=1))


def test_a_decoder_of_one_layer_without_positions_sees_a_bag_of_words() -> None:
    """002 "Three Problems": "encoder and decoder has no inherent notion of ordering"."""
    model = writer(layers=1, position=NoPositionConfig())
    assert torch.allclose(model(ids(1, 2, 3, 4))[:, -1], model(ids(2, 3, 1, 4))[:, -1])


def test_a_decoder_of_two_layers_knows_order_without_positions() -> None:
    """002 "Three Problems" does not hold for deeper decoders: the mask itself breaks the symmetry between words."""
    model = writer(layers=2, position=NoPositionConfig())
    assert not torch.allclose(model(ids(1, 2, 3, 4))[:, -1], model(ids(2, 3, 1, 4))[:, -1])


# Masks


def masked_by_product(query: Tensor, key: Tensor) -> Tensor:
    """001 "Masked Self-Attention": raw scores times a triangle of ones, then the softmax."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return scores.tril().softmax(dim=-1)


def test_multiplying_scores_by_the_triangle_lets_later_words_in() -> None:
    """001 "Masked Self-Attention": a score of 0 is not a weight of 0; every later word keeps one."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 5, 8)
    assert (masked_by_product(query, key)[torch.ones(5, 5).triu(1).bool()] > 0).all()


def test_minus_infinity_keeps_later_words_out() -> None:
    """002 "Decoders should not see into the future", 000 "Decoder Self-Attention (training)": as regard does."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 5, 8)
    _, weights = attend_with_weights(head(query), head(key), head(key), Causal())
    assert (weights[0, 0].triu(1) == 0).all()


class Before(Pattern):
    """000 "Attention terminology", word for word: "word attends only to words before it"."""

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key < query


def test_only_words_before_it_would_leave_the_first_word_nothing() -> None:
    """000 "Attention terminology": the first word would get zeros."""
    torch.manual_seed(0)
    x = torch.randn(1, 1, 5, 8)
    assert (attend(x, x, x, Before())[0, 0, 0] == 0).all()


def test_a_word_sees_itself_and_those_before_it() -> None:
    """002 "Decoders should not see into the future" (j ≤ i), 001 "Decoder Self-Attention"."""
    assert torch.equal(Causal().dense_mask(5), torch.ones(5, 5).tril().bool())


# 004's equations as printed


def test_without_the_softmax_weights_are_neither_positive_nor_sum_to_1() -> None:
    """004 eq. 7 has no softmax, against its own eq. 2."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 5, 8).double()
    printed = query @ key.T / 8**0.5
    assert (printed < 0).any()
    assert (printed.sum(dim=-1) - 1).abs().min() > 0.1


def test_without_the_softmax_attention_is_one_matrix_for_all_queries() -> None:
    """004 eq. 7: (Q Kᵀ) V = Q (Kᵀ V), a linear map; with the softmax it is not."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 5, 8).double()
    one_matrix = query @ (key.T @ value) / 8**0.5
    assert torch.allclose((query @ key.T / 8**0.5) @ value, one_matrix)
    assert not torch.allclose(attend(head(query), head(key), head(value))[0, 0], one_matrix, atol=0.1)


def test_scores_of_each_word_with_itself_would_give_all_words_one_vector() -> None:
    """004 eq. 5 and 6: q_i·k_i is one score per word, so every query gets the same sum; with q_i·k_j it does not."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 5, 8).double()
    printed = ((query * key).sum(dim=-1) / 8**0.5).softmax(dim=0) @ value
    ours = attend(head(query), head(key), head(value))[0, 0]
    assert printed.shape == (8,)
    assert torch.pdist(ours).min() > 0.1


# Decoding with a cache: 000 "Decoder Self-Attention (Inference): KV-cache"


def test_cached_steps_give_what_masked_attention_gives_at_once() -> None:
    """000 "KV-cache", 001 "Decoding during Training & Testing"."""
    model, tokens = writer(), random_ids(7)
    cache = model.start(rows=1, capacity=7)
    steps = [model.step(tokens[:, place : place + 1], cache)[0] for place in range(7)]
    assert torch.allclose(torch.cat(steps, dim=1), model(tokens))


def test_a_cached_step_computes_attention_for_the_latest_word_only() -> None:
    """000 "KV-cache": "in each round, compute self-attention only for latest token"."""
    model, tokens = writer(layers=1), random_ids(3)
    cache, shapes = model.start(rows=1, capacity=3), []
    for place in range(3):
        model.step(
            tokens[:, place : place + 1], cache, attention_hook=lambda _, weights: shapes.append(tuple(weights.shape))
        )
    assert shapes == [(1, 4, 1, 1), (1, 4, 1, 2), (1, 4, 1, 3)]


# Two designs of cross-attention: 000 "Cross-attention"


def count_projections(model: EncoderDecoder) -> list[str]:
    """The names of the projections of the encoder's output, one for each time one is computed."""
    called: list[str] = []
    for name, module in model.decoder.named_modules():
        if name.endswith(("cross_attn.k_proj", "cross_kv.k_proj")):
            module.register_forward_hook(lambda *_, name=name: called.append(name))
    return called


@pytest.mark.parametrize(("cross_kv", "times"), [("per_layer", 3), ("shared", 1)])
def test_encoder_keys_and_values_are_made_once_for_the_whole_decoding(cross_kv: str, times: int) -> None:
    """000 "Cross-attention": once per layer, or once for all three layers; never again while decoding."""
    model = translator(layers=3, cross_kv=cross_kv)
    called = count_projections(model)
    cache = model.start(random_ids(6), capacity=5)
    for place in range(5):
        model.step(random_ids(5)[:, place : place + 1], cache)
    assert len(called) == times


@pytest.mark.parametrize("cross_kv", ["per_layer", "shared"])
def test_both_designs_of_cross_attention_decode_what_they_compute_at_once(cross_kv: str) -> None:
    """000 "Cross-attention"."""
    model, source, target = translator(layers=3, cross_kv=cross_kv), random_ids(6), random_ids(5, seed=1)
    cache = model.start(source, capacity=5)
    steps = [model.step(target[:, place : place + 1], cache)[0] for place in range(5)]
    assert torch.allclose(torch.cat(steps, dim=1), model(source, target))


def test_sharing_the_memory_saves_the_parameters_of_all_layers_but_one() -> None:
    """000 "Cross-attention": two projections, weights and biases, for each layer after the first."""
    layer, shared = (count_parameters(translator(layers=3, cross_kv=cross_kv)) for cross_kv in ("per_layer", "shared"))
    assert layer - shared == (3 - 1) * 2 * (WIDTH * WIDTH + WIDTH)


def test_sharing_the_memory_keeps_one_copy_of_it_instead_of_one_a_layer() -> None:
    """000 "Cross-attention": the contents of the cache before the first decoding step."""
    layer, shared = (
        translator(layers=3, cross_kv=cross_kv).start(random_ids(6), 5) for cross_kv in ("per_layer", "shared")
    )
    assert layer.nbytes() == 3 * shared.nbytes()
