"""Token embeddings: lookup, logits, scale, positions, dropout and invalid ids."""

import pytest
import torch

from regard import UserError
from regard.attention import Context, LearnedConfig, NoPositionConfig, SinusoidalConfig
from regard.model import EmbeddingConfig, NormConfig
from regard.model.embedding import EmbeddingLayer, TokenEmbedding, TokenTypeEmbedding
from tests.model.small_models import WIDTH, ids

PLAIN = EmbeddingConfig(dropout=0)
TOKENS = ids(2, 5)
VECTORS = torch.linspace(-1, 2, 2 * 5 * WIDTH).view(2, 5, WIDTH)
CONTEXT = Context(TOKENS)


def test_ids_select_rows_of_the_weight():
    embedding = TokenEmbedding(13, WIDTH)
    vectors = embedding(TOKENS)
    assert vectors.shape == (2, 5, WIDTH)
    assert torch.equal(vectors[1, 3], embedding.weight[TOKENS[1, 3]])


def test_logits_are_dot_products_with_the_embeddings():
    embedding = TokenEmbedding(13, WIDTH).double()
    x = VECTORS.double()
    torch.testing.assert_close(embedding.logits(x)[1, 2, 7], x[1, 2] @ embedding.weight[7], rtol=1e-12, atol=1e-12)


def test_scaled_embeddings_are_initialized_with_unit_variance():
    """§3.4 of the paper multiplies embeddings by √width; the initialization compensates for it."""
    torch.manual_seed(0)
    scaled = TokenEmbedding(400, 256).weight * 256**0.5
    assert scaled.std().item() == pytest.approx(1, abs=0.02)  # 102,400 samples: ten standard errors


@pytest.mark.parametrize(("scale", "factor"), [(True, WIDTH**0.5), (False, 1.0)])
def test_scale_multiplies_embeddings_by_the_square_root_of_the_width(scale, factor):
    output = EmbeddingLayer(EmbeddingConfig(scale=scale, dropout=0), NoPositionConfig(), WIDTH)(VECTORS, CONTEXT)
    assert torch.equal(output, VECTORS * factor)


def test_positions_are_added_after_scaling():
    position = SinusoidalConfig()
    output = EmbeddingLayer(PLAIN, position, WIDTH)(VECTORS, CONTEXT)
    encoding = position.build(WIDTH).encode(torch.arange(5))
    assert torch.equal(output, VECTORS * WIDTH**0.5 + encoding)


def test_concatenated_positions_follow_the_scaled_embedding():
    position = SinusoidalConfig(combine="concatenate", features=4)
    narrow = VECTORS[..., : WIDTH - 4]
    output = EmbeddingLayer(PLAIN, position, WIDTH)(narrow, CONTEXT)
    encoding = SinusoidalConfig().build(4).encode(torch.arange(5))
    assert torch.equal(output, torch.cat((narrow * WIDTH**0.5, encoding.expand(2, 5, 4)), dim=-1))


def test_norm_applies_to_the_sum_of_embedding_and_position():
    config = EmbeddingConfig(dropout=0, norm=NormConfig())
    plain, normed = (EmbeddingLayer(each, SinusoidalConfig(), WIDTH)(VECTORS, CONTEXT) for each in (PLAIN, config))
    expected = torch.nn.functional.layer_norm(plain, (WIDTH,))
    torch.testing.assert_close(normed, expected, rtol=0, atol=0)


@pytest.mark.parametrize("norm", [None, NormConfig()], ids=["sum", "normed sum"])
def test_dropout_applies_to_the_sum(norm):
    """§5.4 of the paper: dropout on the sums of the embeddings and the positional encodings."""
    torch.manual_seed(0)
    plain = EmbeddingLayer(EmbeddingConfig(dropout=0, norm=norm), SinusoidalConfig(), WIDTH)(VECTORS, CONTEXT)
    output = EmbeddingLayer(EmbeddingConfig(dropout=0.5, norm=norm), SinusoidalConfig(), WIDTH).train()(
        VECTORS, CONTEXT
    )
    dropped, kept = output.eq(0), output.eq(2 * plain)
    assert (dropped | kept).all()
    assert 0.3 < dropped.float().mean() < 0.7  # 160 samples: five standard deviations to either side


def test_evaluation_has_no_dropout():
    evaluated = EmbeddingLayer(EmbeddingConfig(dropout=0.5), SinusoidalConfig(), WIDTH).eval()
    assert torch.equal(evaluated(VECTORS, CONTEXT), EmbeddingLayer(PLAIN, SinusoidalConfig(), WIDTH)(VECTORS, CONTEXT))


def test_positions_start_at_zero_in_every_packed_document():
    documents = torch.tensor([[4, 4, 4, 7, 7], [1, 2, 2, 2, 2]])
    layer = EmbeddingLayer(PLAIN, LearnedConfig(max_length=4), WIDTH)
    packed = layer(VECTORS, Context(TOKENS, documents=documents)) - VECTORS * WIDTH**0.5
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])
    torch.testing.assert_close(
        packed, layer.embed_positions.weight[positions], rtol=0, atol=1e-6
    )  # one float32 sum, subtracted again


def test_token_type_embedding_is_added_to_every_token():
    embedding = TokenTypeEmbedding(3, 4)
    vectors, token_types = torch.randn(2, 5, 4), ids(2, 5, 3)
    expected = vectors + torch.nn.functional.one_hot(token_types, 3).float() @ embedding.weight
    torch.testing.assert_close(embedding(token_types, vectors), expected)


@pytest.mark.parametrize("wrong", [-1, 13, 2**40])
def test_id_outside_the_vocabulary_is_refused(wrong):
    tokens = TOKENS.clone()
    tokens[1, 4] = wrong
    with pytest.raises(UserError, match=rf"^Token id {wrong} is outside the vocabulary of 13: ids run from 0 to 12\."):
        TokenEmbedding(13, WIDTH)(tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bool, torch.uint8])
def test_ids_of_another_dtype_are_refused(dtype):
    with pytest.raises(UserError, match=f"Token ids must be integers.*{dtype}"):
        TokenEmbedding(13, WIDTH)(TOKENS.to(dtype))
