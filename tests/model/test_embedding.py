"""The way in and out: vectors of words, their scale, their places, and what ids no word has."""

import pytest
import torch

from regard import UserError
from regard.attention import Context, LearnedConfig, NoPositionConfig, SinusoidalConfig
from regard.model import EmbeddingConfig, NormConfig
from regard.model.embedding import Input, Vocabulary

from .small_models import WIDTH, ids

PLAIN = EmbeddingConfig(dropout=0)
TOKENS = ids(2, 5)
VECTORS = torch.linspace(-1, 2, 2 * 5 * WIDTH).view(2, 5, WIDTH)
CONTEXT = Context(TOKENS)


def test_every_id_is_looked_up_in_its_row():
    vocabulary = Vocabulary(13, WIDTH)
    looked_up = vocabulary(TOKENS)
    assert looked_up.shape == (2, 5, WIDTH)
    assert torch.equal(looked_up[1, 3], vocabulary.weight[TOKENS[1, 3]])


def test_a_word_scores_its_dot_product_with_what_the_model_says():
    vocabulary = Vocabulary(13, WIDTH).double()
    x = VECTORS.double()
    torch.testing.assert_close(vocabulary.logits(x)[1, 2, 7], x[1, 2] @ vocabulary.weight[7], rtol=1e-12, atol=1e-12)


def test_vectors_times_the_square_root_of_the_width_start_with_a_spread_of_one():
    """§3.4 multiplies by √width, so that words are no smaller than positions; the start is made for it."""
    torch.manual_seed(0)
    scaled = Vocabulary(400, 256).weight * 256**0.5
    assert scaled.std().item() == pytest.approx(1, abs=0.02)  # of 102,400 draws: ten standard errors


@pytest.mark.parametrize(("scale", "factor"), [(True, WIDTH**0.5), (False, 1.0)])
def test_word_vectors_are_multiplied_by_the_square_root_of_the_width_where_wanted(scale, factor):
    made = Input(EmbeddingConfig(scale=scale, dropout=0), NoPositionConfig(), WIDTH)(VECTORS, CONTEXT)
    assert torch.equal(made, VECTORS * factor)


def test_positions_are_added_after_scaling():
    position = SinusoidalConfig()
    made = Input(PLAIN, position, WIDTH)(VECTORS, CONTEXT)
    code = position.build(WIDTH).encode(torch.arange(5))
    assert torch.equal(made, VECTORS * WIDTH**0.5 + code)


def test_concatenated_positions_stand_behind_the_scaled_vector():
    position = SinusoidalConfig(join="concatenate", features=4)
    narrow = VECTORS[..., : WIDTH - 4]
    made = Input(PLAIN, position, WIDTH)(narrow, CONTEXT)
    code = SinusoidalConfig().build(4).encode(torch.arange(5))
    assert torch.equal(made, torch.cat((narrow * WIDTH**0.5, code.expand(2, 5, 4)), dim=-1))


def test_the_norm_is_of_the_sum_of_word_and_position():
    config = EmbeddingConfig(dropout=0, norm=NormConfig())
    plain, normed = (Input(each, SinusoidalConfig(), WIDTH)(VECTORS, CONTEXT) for each in (PLAIN, config))
    expected = torch.nn.functional.layer_norm(plain, (WIDTH,))
    torch.testing.assert_close(normed, expected, rtol=0, atol=0)


@pytest.mark.parametrize("norm", [None, NormConfig()], ids=["sum", "normed sum"])
def test_dropout_falls_on_the_finished_sum(norm):
    """§5.4 of the paper: on the sums of the embeddings and the positional encodings."""
    torch.manual_seed(0)
    plain = Input(EmbeddingConfig(dropout=0, norm=norm), SinusoidalConfig(), WIDTH)(VECTORS, CONTEXT)
    dropped = Input(EmbeddingConfig(dropout=0.5, norm=norm), SinusoidalConfig(), WIDTH).train()(VECTORS, CONTEXT)
    gone, kept = dropped.eq(0), dropped.eq(2 * plain)
    assert (gone | kept).all()
    assert 0.3 < gone.float().mean() < 0.7  # of 160 fair draws: five standard deviations to either side


def test_evaluation_drops_nothing():
    dropping = Input(EmbeddingConfig(dropout=0.5), SinusoidalConfig(), WIDTH).eval()
    assert torch.equal(dropping(VECTORS, CONTEXT), Input(PLAIN, SinusoidalConfig(), WIDTH)(VECTORS, CONTEXT))


def test_every_document_in_a_row_counts_its_own_positions():
    documents = torch.tensor([[4, 4, 4, 7, 7], [1, 2, 2, 2, 2]])
    made = Input(PLAIN, LearnedConfig(limit=4), WIDTH)
    packed = made(VECTORS, Context(TOKENS, documents=documents)) - VECTORS * WIDTH**0.5
    places = torch.tensor([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])
    torch.testing.assert_close(packed, made.position.table[places], rtol=0, atol=1e-6)  # one float32 sum taken back


@pytest.mark.parametrize("wrong", [-1, 13, 2**40])
def test_an_id_outside_the_vocabulary_is_named_with_the_size(wrong):
    tokens = TOKENS.clone()
    tokens[1, 4] = wrong
    with pytest.raises(UserError, match=rf"^Token id {wrong} is outside the vocabulary of 13: ids run from 0 to 12\."):
        Vocabulary(13, WIDTH)(tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bool, torch.uint8])
def test_ids_that_are_no_whole_numbers_are_refused_with_their_type(dtype):
    with pytest.raises(UserError, match=f"Token ids must be whole numbers.*{dtype}"):
        Vocabulary(13, WIDTH)(TOKENS.to(dtype))
