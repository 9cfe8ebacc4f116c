"""Encoders: equal to BERT with BERT's settings; independent of padding, packing and the rest of the batch."""

import copy
import importlib.util
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor, nn
from torch.nn import functional

from regard import UserError
from regard.attention import LearnedConfig, MultiHeadConfig, NormalizedConfig, SinusoidalConfig, read_pattern
from regard.config import ConfigError
from regard.fused.cuda_stack import CudaStack
from regard.fused.training import fuse_for_training
from regard.model import (
    ClassificationHeadConfig,
    EmbeddingConfig,
    Encoder,
    EncoderConfig,
    FeedForwardConfig,
    MaskedLMHeadConfig,
    NormConfig,
    StackConfig,
    TokenClassificationHeadConfig,
    count_parameters,
)
from regard.model.heads import mean_vector
from regard.train.mixed_precision import MixedPrecisionModel
from regard.train.step import forward_in_precision
from tests.model.small_models import (
    ENCODER_SAMPLES,
    EXACT,
    LABELS,
    PATTERNS,
    VOCAB_SIZE,
    WIDTH,
    build,
    encoder,
    encoders,
    ids,
    stack,
)

LENGTHS = torch.tensor([7, 1, 4])
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def token_types(rows: int, tokens: int, count: int = 2) -> Tensor:
    return ids(rows, tokens, count, seed=5)


def token_type_inputs(config: EncoderConfig, tokens: Tensor) -> dict[str, Tensor]:
    """Token types for a model that has them."""
    return {"token_types": token_types(*tokens.shape, config.token_types)} if config.token_types else {}


# Against BERT

BERTS: dict[str, dict[str, Any]] = {
    "default": {},
    "one wide head": {"num_attention_heads": 1, "hidden_act": "gelu_new", "num_hidden_layers": 1},
    "relu, three token types": {"hidden_act": "relu", "type_vocab_size": 3, "intermediate_size": 10},
    "large eps, deep": {"layer_norm_eps": 1e-3, "num_hidden_layers": 4, "hidden_size": 24, "hidden_act": "silu"},
}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "relu": "relu", "silu": "silu"}
all_berts = pytest.mark.parametrize("changes", BERTS.values(), ids=BERTS.keys())


def bert(architecture: str, changes: dict[str, Any]) -> Any:
    """A BERT from transformers, with every parameter moved away from its initial value."""
    transformers = pytest.importorskip("transformers")
    settings = {"vocab_size": VOCAB_SIZE, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings |= {"intermediate_size": 24, "max_position_embeddings": 20, "num_labels": len(LABELS)}
    torch.manual_seed(7)
    theirs = getattr(transformers, architecture)(transformers.BertConfig(**(settings | changes))).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return theirs


def from_bert(theirs: Any, **more: Any) -> Encoder:
    """The equivalent encoder, with BERT's weights."""
    bert_config = theirs.config
    norm = NormConfig(eps=bert_config.layer_norm_eps)
    activation = ACTIVATIONS[bert_config.hidden_act]
    config = EncoderConfig(
        vocab_size=bert_config.vocab_size,
        width=bert_config.hidden_size,
        encoder=StackConfig(
            layers=bert_config.num_hidden_layers,
            attention=MultiHeadConfig(heads=bert_config.num_attention_heads),
            feed_forward=FeedForwardConfig(hidden=bert_config.intermediate_size, activation=activation),
            norm_position="post",
            norm=norm,
        ),
        position=LearnedConfig(max_length=bert_config.max_position_embeddings),
        embedding=EmbeddingConfig(scale=False, norm=norm),
        token_types=bert_config.type_vocab_size,
        **more,
    )
    model = config.build().eval()
    model.load_state_dict({name: theirs.state_dict()[bert_name] for name, bert_name in bert_names(model).items()})
    return model


def bert_names(model: Encoder) -> dict[str, str]:
    """BERT's name of each of our tensors."""
    prefix = "" if model.config.head.kind == "none" else "bert."
    tensor_names = {
        "embed_tokens.weight": f"{prefix}embeddings.word_embeddings.weight",
        "embed_token_types.weight": f"{prefix}embeddings.token_type_embeddings.weight",
        "embedding.embed_positions.weight": f"{prefix}embeddings.position_embeddings.weight",
        "head.bias": "cls.predictions.bias",
    }
    modules = {
        "embedding.norm": f"{prefix}embeddings.LayerNorm",
        "pooler.dense": f"{prefix}pooler.dense",
        "head.dense": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm",
        "head.classifier": "classifier",
    }
    for layer in range(model.config.encoder.layers):
        here, there = f"encoder.layers.{layer}", f"{prefix}encoder.layer.{layer}"
        modules |= {
            f"{here}.self_attn.q_proj": f"{there}.attention.self.query",
            f"{here}.self_attn.k_proj": f"{there}.attention.self.key",
            f"{here}.self_attn.v_proj": f"{there}.attention.self.value",
            f"{here}.self_attn.o_proj": f"{there}.attention.output.dense",
            f"{here}.self_attn_norm": f"{there}.attention.output.LayerNorm",
            f"{here}.feed_forward.up_proj": f"{there}.intermediate.dense",
            f"{here}.feed_forward.down_proj": f"{there}.output.dense",
            f"{here}.feed_forward_norm": f"{there}.output.LayerNorm",
        }
    tensor_names |= {
        f"{one}.{kind}": f"{other}.{kind}" for one, other in modules.items() for kind in ("weight", "bias")
    }
    return {name: tensor_names[name] for name in model.state_dict()}


class RaggedBatch:
    """Rows of different lengths with token types, as input for both models."""

    def __init__(self, model: Encoder) -> None:
        self.tokens = ids(3, 7, seed=1)
        self.token_types = token_types(3, 7, model.config.token_types)
        self.real = torch.arange(7) < LENGTHS[:, None]

    def theirs(self, model: nn.Module) -> Any:
        with torch.no_grad():
            return model(input_ids=self.tokens, attention_mask=self.real.long(), token_type_ids=self.token_types)

    def ours(self, model: Encoder) -> Tensor:
        with torch.no_grad():
            return model(self.tokens, lengths=LENGTHS, token_types=self.token_types)


@all_berts
def test_hidden_states_and_pooler_equal_bert(changes):
    theirs = bert("BertModel", changes)
    model = from_bert(theirs, pooler=True)
    batch = RaggedBatch(model)
    expected = batch.theirs(theirs)
    torch.testing.assert_close(batch.ours(model)[batch.real], expected.last_hidden_state[batch.real], **CLOSE)
    pooled = model.pooled(batch.tokens, lengths=LENGTHS, token_types=batch.token_types)
    torch.testing.assert_close(pooled, expected.pooler_output, **CLOSE)


@all_berts
def test_masked_lm_logits_equal_bert(changes):
    theirs = bert("BertForMaskedLM", changes)
    norm = NormConfig(eps=theirs.config.layer_norm_eps)
    model = from_bert(theirs, head=MaskedLMHeadConfig(activation=ACTIVATIONS[theirs.config.hidden_act], norm=norm))
    batch = RaggedBatch(model)
    torch.testing.assert_close(batch.ours(model)[batch.real], batch.theirs(theirs).logits[batch.real], **CLOSE)


@all_berts
def test_classification_logits_equal_bert(changes):
    theirs = bert("BertForSequenceClassification", changes)
    model = from_bert(theirs, pooler=True, head=ClassificationHeadConfig(labels=LABELS, pooling="pooler"))
    batch = RaggedBatch(model)
    torch.testing.assert_close(batch.ours(model), batch.theirs(theirs).logits, **CLOSE)


@all_berts
def test_token_classification_logits_equal_bert(changes):
    theirs = bert("BertForTokenClassification", changes)
    model = from_bert(theirs, head=TokenClassificationHeadConfig(labels=LABELS))
    batch = RaggedBatch(model)
    torch.testing.assert_close(batch.ours(model)[batch.real], batch.theirs(theirs).logits[batch.real], **CLOSE)


def test_default_token_type_is_zero_as_in_bert():
    theirs = bert("BertModel", {})
    model = from_bert(theirs, pooler=True)
    tokens = ids(2, 5)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), theirs(input_ids=tokens).last_hidden_state, **CLOSE)
        assert torch.equal(model(tokens), model(tokens, token_types=torch.zeros_like(tokens)))


def test_sentence_vectors_are_the_normalized_mean_of_real_tokens():
    """As sentence-transformers computes them from BERT's hidden states: masked mean, then L2 normalization."""
    theirs = bert("BertModel", {})
    model = from_bert(theirs, pooler=True)
    batch = RaggedBatch(model)
    mask = batch.real[..., None].float()
    mean = (batch.theirs(theirs).last_hidden_state * mask).sum(1) / mask.sum(1)
    actual = model.sentence_vectors(batch.tokens, LENGTHS, token_types=batch.token_types)
    torch.testing.assert_close(actual, functional.normalize(mean, p=2, dim=1), **CLOSE)
    torch.testing.assert_close(actual.norm(dim=1), torch.ones(3))


def test_bert_base_has_the_published_number_of_parameters():
    """109,482,240 with the pooler, as bert-base-uncased has in transformers."""
    config = EncoderConfig(
        vocab_size=30_522,
        width=768,
        encoder=StackConfig(
            layers=12,
            norm_position="post",
            attention=MultiHeadConfig(heads=12),
            feed_forward=FeedForwardConfig(hidden=3072),
        ),
        position=LearnedConfig(max_length=512),
        embedding=EmbeddingConfig(norm=NormConfig()),
        token_types=2,
        pooler=True,
    )
    with torch.device("meta"):
        assert count_parameters(config.build()) == 109_482_240


# Padding, packing, masks


@given(config=encoders(), seed=some.integers(0, 99))
def test_padding_and_other_rows_do_not_change_the_output(config, seed):
    model = build(config, seed=seed)
    tokens = ids(3, 7, seed=seed)
    named = token_type_inputs(config, tokens)
    filled = torch.where(torch.arange(7) < LENGTHS[:, None], tokens, (tokens + 1) % VOCAB_SIZE)
    with torch.no_grad():
        batched = model(tokens, lengths=LENGTHS, **named)
        torch.testing.assert_close(model(filled, lengths=LENGTHS, **named), batched, **EXACT)
        for row, length in enumerate(LENGTHS.tolist()):
            own = {name: numbers[row : row + 1, :length] for name, numbers in named.items()}
            alone = model(tokens[row : row + 1, :length], **own)[0]
            actual = batched[row] if config.head.kind == "classification" else batched[row, :length]
            torch.testing.assert_close(actual, alone, **EXACT)


@given(config=encoders(), seed=some.integers(0, 99))
def test_packed_documents_equal_separate_rows(config, seed):
    model = build(config, seed=seed)
    tokens = ids(1, 8, seed=seed)
    named = token_type_inputs(config, tokens)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, -1]])
    if config.head.kind == "classification" or config.position.needs_length:
        with pytest.raises(UserError, match="document"):
            model(tokens, documents=documents, **named)
        return
    with torch.no_grad():
        packed = model(tokens, documents=documents, **named)
        for start, end in ((0, 3), (3, 7)):
            own = {name: numbers[:, start:end] for name, numbers in named.items()}
            torch.testing.assert_close(packed[:, start:end], model(tokens[:, start:end], **own), **EXACT)


@pytest.mark.parametrize("name", ENCODER_SAMPLES["encoder"])
def test_hidden_states_of_padding_are_zero(name):
    model = build(ENCODER_SAMPLES["encoder"][name])
    vectors = model.encode(ids(3, 7), lengths=LENGTHS)
    real = torch.arange(7) < LENGTHS[:, None]
    assert (vectors[~real] == 0).all()
    assert (vectors[real] != 0).any(dim=-1).all()


def test_hidden_states_of_padding_in_packed_rows_are_zero():
    documents = torch.tensor([[0, 0, 1, -1, -1]])
    vectors = build(encoder()).encode(ids(1, 5), documents=documents)
    assert (vectors[0, 3:] == 0).all()


def test_row_of_only_padding_has_finite_logits_and_gradients():
    model = build(encoder(head=ClassificationHeadConfig(labels=LABELS, pooling="mean")))
    logits = model(ids(2, 4), lengths=torch.tensor([4, 0]))
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_tokens_attend_to_what_the_pattern_allows(pattern):
    """In one layer, the hidden state of a token depends on exactly the tokens that the pattern allows."""
    model = build(encoder(encoder=stack(layers=1, pattern=pattern)))
    tokens = ids(1, 6)
    position = torch.arange(6)
    allowed = read_pattern(pattern).allows(torch.zeros(1, dtype=torch.long), position[:, None], position[None, :])
    with torch.no_grad():
        before = model(tokens)[0]
        for changed in range(6):
            other = tokens.clone()
            other[0, changed] = (other[0, changed] + 1) % VOCAB_SIZE
            differs = (model(other)[0] - before).abs().amax(dim=-1) > 1e-9
            expected = allowed[:, changed] | (position == changed)  # the residual connection
            assert torch.equal(differs, expected)


def test_without_positions_the_encoder_is_permutation_equivariant():
    model = build(encoder(position={"kind": "none"}))
    tokens, order = ids(1, 6), torch.tensor([3, 1, 5, 0, 2, 4])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens[:, order]), model(tokens)[:, order], **EXACT)


# Parts


def test_mean_pooling_ignores_padding():
    vectors = torch.tensor([[[2.0], [4.0], [0.0]], [[3.0], [0.0], [0.0]]])
    assert mean_vector(vectors, torch.tensor([2, 1])).tolist() == [[3.0], [3.0]]
    assert mean_vector(vectors, None).tolist() == [[2.0], [1.0]]


def test_heads_use_the_hidden_states_of_encode():
    tokens = ids(2, 5)
    for name, config in ENCODER_SAMPLES["encoder"].items():
        model = build(config)
        vectors = model.encode(tokens)
        assert vectors.shape == (2, 5, config.width), name
        if config.head.kind == "none":
            assert torch.equal(model(tokens), vectors)
        elif config.head.kind == "token_classification":
            torch.testing.assert_close(model(tokens), model.head(vectors), **EXACT)


def test_attention_hook_receives_the_weights_of_every_layer():
    model = build(ENCODER_SAMPLES["encoder"]["like BERT"])
    received: list[Tensor] = []
    logits = model(ids(2, 5), lengths=torch.tensor([5, 3]), attention_hook=lambda _, weights: received.append(weights))
    assert [weights.shape for weights in received] == [(2, 4, 5, 5)] * 2
    for weights in received:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
        assert (weights[1, :, :, 3:] == 0).all()
    torch.testing.assert_close(logits, model(ids(2, 5), lengths=torch.tensor([5, 3])), **EXACT)


def test_pooler_without_a_head_gets_gradients():
    model = build(encoder(pooler=True))
    model.pooled(ids(2, 5), lengths=torch.tensor([5, 2])).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"special_tokens": {"mask": 13}}, r"special_tokens\.mask: id 13 is outside the vocabulary of 13\."),
        ({"encoder": stack(heads=3)}, r"encoder\.attention\.heads: 3 heads do not divide the width 16"),
        ({"head": {"kind": "guess"}}, r"head\.kind: found 'guess'; expected one of"),
        ({"head": {"kind": "token_classification", "labels": []}}, r"head\.labels"),
        ({"head": {"kind": "token_classification", "labels": ["a", ""]}}, r"head\.labels"),
        ({"head": {"kind": "token_classification", "labels": ["a", "b", "a"]}}, r"head\.labels: 'a' comes twice"),
        ({"head": {"kind": "classification", "labels": ["a"], "pooling": "pooler"}}, "pooler: .*set it to true"),
        (
            {"head": {"kind": "classification", "labels": ["a"], "pooling": "mean"}, "pooler": True},
            "pooler: .*untrained",
        ),
        ({"head": MaskedLMHeadConfig(), "pooler": True}, "pooler: .*untrained"),
        (
            {"head": MaskedLMHeadConfig(), "position": SinusoidalConfig(combine="concatenate", features=4)},
            r"head\.tie_weights: ",
        ),
    ],
    ids=str,
)
def test_invalid_settings_are_refused_by_key(settings, message):
    with pytest.raises(ConfigError, match=message):
        encoder(**settings)


def test_config_has_the_labels_of_its_head():
    assert encoder(head=TokenClassificationHeadConfig(labels=LABELS)).labels == LABELS
    assert EncoderConfig.read(
        {"vocab_size": 5, "head": {"kind": "token_classification", "labels": ["x", "y"]}}
    ).labels == ("x", "y")
    assert encoder().labels == ()


def test_invalid_inputs_are_refused():
    plain, with_types = build(encoder()), build(encoder(token_types=2))
    tokens = ids(2, 5)
    with pytest.raises(UserError, match="has no token types"):
        plain(tokens, token_types=torch.zeros_like(tokens))
    with pytest.raises(UserError, match="run from 0 to 1; found 2"):
        with_types(tokens, token_types=torch.full_like(tokens, 2))
    with pytest.raises(UserError, match=r"token_types must contain integers of shape \(2, 5\)"):
        with_types(tokens, token_types=torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(UserError, match="no pooler"):
        plain.pooled(tokens)
    with pytest.raises(UserError, match="'normalized' positions"):
        build(encoder(position=NormalizedConfig()))(tokens, documents=torch.zeros_like(tokens))
    with pytest.raises(UserError, match="its own row"):
        build(encoder(head=ClassificationHeadConfig(labels=LABELS)))(tokens, documents=torch.zeros_like(tokens))


# Training


def output_and_grads(
    model: nn.Module, forward: Any, *given: Tensor, **more: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    if isinstance(forward, MixedPrecisionModel):
        forward.refresh()
    output = forward(*given, **more)
    torch.manual_seed(1)
    (output * torch.randn(output.shape)).sum().backward()
    return output.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_fused(config: EncoderConfig, **more: Any) -> None:
    """The fused model has the same outputs, padding included, and the same gradients."""
    config = without_dropout(config)
    model = build(config, torch.float32).train()
    tokens = ids(3, 7)
    named = {"lengths": LENGTHS, **token_type_inputs(config, tokens)}
    fused = fuse_for_training(model, **more)
    assert fused is not model
    assert type(fused.encoder) is not type(model.encoder) or fused.encoder.uses_checkpointing
    expected, expected_grads = output_and_grads(model, model, tokens, **named)
    actual, grads = output_and_grads(model, fused, tokens, **named)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert expected_grads.keys() == grads.keys() == dict(model.named_parameters()).keys()
    for name, grad in expected_grads.items():
        torch.testing.assert_close(grads[name], grad, rtol=1e-4, atol=1e-4 * max(1.0, float(grad.abs().max())))


def without_dropout(config: EncoderConfig) -> EncoderConfig:
    def zero_dropout(values: Any) -> Any:
        if isinstance(values, dict):
            return {key: 0.0 if key == "dropout" else zero_dropout(value) for key, value in values.items()}
        return values

    return EncoderConfig.read(zero_dropout(config.plain()))


FUSIBLE = {name: config for name, config in ENCODER_SAMPLES["encoder"].items() if config.encoder.residual}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FUSIBLE)
def test_fused_for_a_gpu_equals_unfused(name, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)
    check_fused(FUSIBLE[name])
    assert isinstance(fuse_for_training(build(FUSIBLE[name], torch.float32)).encoder, CudaStack)


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")
@pytest.mark.parametrize("fused_loss", [False, True])
@pytest.mark.parametrize("name", FUSIBLE)
def test_fused_for_a_cpu_equals_unfused(name, fused_loss):
    check_fused(FUSIBLE[name], fused_loss=fused_loss)


@pytest.mark.parametrize("name", ENCODER_SAMPLES["encoder"])
def test_activation_checkpointing_changes_nothing(name):
    check_fused(ENCODER_SAMPLES["encoder"][name], activation_checkpointing=True)


@pytest.mark.parametrize("name", ENCODER_SAMPLES["encoder"])
def test_training_in_bfloat16_has_float32_gradients(name):
    model = build(ENCODER_SAMPLES["encoder"][name], torch.float32)
    output, grads = output_and_grads(model, forward_in_precision(model, "bfloat16"), ids(2, 5))
    assert output.dtype == torch.bfloat16
    assert all(grad.dtype == torch.float32 and grad.isfinite().all() for grad in grads.values())


def test_masked_lm_learns():
    """Every token occurs twice in a row, so that a masked one can be predicted from its neighbor."""
    torch.manual_seed(0)
    mask = VOCAB_SIZE - 1
    config = encoder(head=MaskedLMHeadConfig(), encoder=stack(dropout=0.0), embedding=EmbeddingConfig(dropout=0.0))
    model = config.build()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(300):
        text = torch.randint(mask, (16, 4)).repeat_interleave(2, dim=1)
        masked = text.clone()
        masked[:, ::2] = mask
        loss = functional.cross_entropy(model(masked)[:, ::2].flatten(0, 1), text[:, ::2].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_deepcopy_of_tied_weights_shares_nothing():
    model = build(ENCODER_SAMPLES["encoder"]["like BERT"])
    clone = copy.deepcopy(model)
    assert "head.lm_head.weight" not in model.state_dict()
    assert clone.embed_tokens.weight.data_ptr() != model.embed_tokens.weight.data_ptr()


# Logits of some positions only


@pytest.mark.parametrize(
    "name", [name for name, config in ENCODER_SAMPLES["encoder"].items() if config.head.kind != "classification"]
)
def test_logits_at_positions_equal_those_of_the_full_output(name):
    config = ENCODER_SAMPLES["encoder"][name]
    model, tokens, positions = build(config), ids(3, 7), torch.tensor([[0, 6, 2], [0, 0, 0], [3, 1, 2]])
    full = model(tokens, lengths=LENGTHS, **token_type_inputs(config, tokens))
    selected = model(tokens, lengths=LENGTHS, positions=positions, **token_type_inputs(config, tokens))
    expected = torch.stack([row[selection] for row, selection in zip(full, positions, strict=True)])
    torch.testing.assert_close(selected, expected, **EXACT)


def test_classification_refuses_positions():
    model = build(encoder(head=ClassificationHeadConfig(labels=LABELS)))
    with pytest.raises(UserError, match="leave out positions"):
        model(ids(2, 5), positions=torch.zeros(2, 1, dtype=torch.long))
