"""An encoder is BERT where it is built like BERT, and what it gives does not depend on padding or company."""

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
from regard.attention import HeadsConfig, LearnedConfig, NormalisedConfig, SinusoidalConfig, read_pattern
from regard.config import ConfigError
from regard.fast.swift_training import FusedStack, for_training
from regard.model import (
    ClassifyConfig,
    EmbeddingConfig,
    Encoder,
    EncoderConfig,
    FeedForwardConfig,
    FillConfig,
    NormConfig,
    StackConfig,
    TagConfig,
    count_parameters,
)
from regard.model.embedding import Segments
from regard.model.readout import mean_vector
from regard.train.gradient import in_precision
from regard.train.lowered import Lowered

from .small_models import EXACT, LABELS, PATTERNS, READERS, VOCABULARY, WIDTH, build, encoder, encoders, ids, stack

LENGTHS = torch.tensor([7, 1, 4])
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def segments(rows: int, tokens: int, count: int = 2) -> Tensor:
    return ids(rows, tokens, count, seed=5)


def told(config: EncoderConfig, tokens: Tensor) -> dict[str, Tensor]:
    """Segments for a model that tells them apart."""
    return {"segments": segments(*tokens.shape, config.segments)} if config.segments else {}


# Beside BERT

BERTS: dict[str, dict[str, Any]] = {
    "usual": {},
    "one wide head": {"num_attention_heads": 1, "hidden_act": "gelu_new", "num_hidden_layers": 1},
    "relu, three segments": {"hidden_act": "relu", "type_vocab_size": 3, "intermediate_size": 10},
    "coarse norms, deep": {"layer_norm_eps": 1e-3, "num_hidden_layers": 4, "hidden_size": 24, "hidden_act": "silu"},
}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "relu": "relu", "silu": "silu"}
all_berts = pytest.mark.parametrize("changes", BERTS.values(), ids=BERTS.keys())


def bert(architecture: str, changes: dict[str, Any]) -> Any:
    """A BERT of transformers, every parameter moved away from where it starts."""
    transformers = pytest.importorskip("transformers")
    settings = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings |= {"intermediate_size": 24, "max_position_embeddings": 20, "num_labels": len(LABELS)}
    torch.manual_seed(7)
    theirs = getattr(transformers, architecture)(transformers.BertConfig(**(settings | changes))).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return theirs


def ours(theirs: Any, **more: Any) -> Encoder:
    """The same model of our parts, with its weights."""
    given = theirs.config
    norm = NormConfig(epsilon=given.layer_norm_eps)
    activation = ACTIVATIONS[given.hidden_act]
    config = EncoderConfig(
        vocabulary=given.vocab_size,
        width=given.hidden_size,
        encoder=StackConfig(
            layers=given.num_hidden_layers,
            attention=HeadsConfig(heads=given.num_attention_heads),
            feed_forward=FeedForwardConfig(hidden=given.intermediate_size, activation=activation),
            order="post",
            norm=norm,
        ),
        position=LearnedConfig(limit=given.max_position_embeddings),
        embedding=EmbeddingConfig(scale=False, norm=norm),
        segments=given.type_vocab_size,
        **more,
    )
    model = config.build().eval()
    model.load_state_dict({name: theirs.state_dict()[name_there] for name, name_there in names(model).items()})
    return model


def names(model: Encoder) -> dict[str, str]:
    """What each of our tensors is called in BERT."""
    start = "" if model.config.head.kind == "none" else "bert."
    found = {
        "vocabulary.weight": f"{start}embeddings.word_embeddings.weight",
        "segments.table": f"{start}embeddings.token_type_embeddings.weight",
        "input.position.table": f"{start}embeddings.position_embeddings.weight",
        "head.bias": "cls.predictions.bias",
    }
    modules = {
        "input.norm": f"{start}embeddings.LayerNorm",
        "pooler.turn": f"{start}pooler.dense",
        "head.turn": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm",
        "head.output": "classifier",
    }
    for layer in range(model.config.encoder.layers):
        here, there = f"encoder.blocks.{layer}", f"{start}encoder.layer.{layer}"
        modules |= {
            f"{here}.attention.function.query": f"{there}.attention.self.query",
            f"{here}.attention.function.source.key": f"{there}.attention.self.key",
            f"{here}.attention.function.source.value": f"{there}.attention.self.value",
            f"{here}.attention.function.output": f"{there}.attention.output.dense",
            f"{here}.attention.norm": f"{there}.attention.output.LayerNorm",
            f"{here}.feed_forward.function.widen": f"{there}.intermediate.dense",
            f"{here}.feed_forward.function.narrow": f"{there}.output.dense",
            f"{here}.feed_forward.norm": f"{there}.output.LayerNorm",
        }
    found |= {f"{one}.{kind}": f"{other}.{kind}" for one, other in modules.items() for kind in ("weight", "bias")}
    return {name: found[name] for name in model.state_dict()}


class Asked:
    """Ragged rows with segments, as both models take them."""

    def __init__(self, model: Encoder) -> None:
        self.tokens = ids(3, 7, seed=1)
        self.segments = segments(3, 7, model.config.segments)
        self.real = torch.arange(7) < LENGTHS[:, None]

    def theirs(self, model: nn.Module) -> Any:
        with torch.no_grad():
            return model(input_ids=self.tokens, attention_mask=self.real.long(), token_type_ids=self.segments)

    def ours(self, model: Encoder) -> Tensor:
        with torch.no_grad():
            return model(self.tokens, lengths=LENGTHS, segments=self.segments)


@all_berts
def test_vectors_and_pooler_are_those_of_bert(changes):
    theirs = bert("BertModel", changes)
    model = ours(theirs, pooler=True)
    asked = Asked(model)
    wanted = asked.theirs(theirs)
    torch.testing.assert_close(asked.ours(model)[asked.real], wanted.last_hidden_state[asked.real], **CLOSE)
    pooled = model.pooled(asked.tokens, lengths=LENGTHS, segments=asked.segments)
    torch.testing.assert_close(pooled, wanted.pooler_output, **CLOSE)


@all_berts
def test_words_are_filled_in_as_bert_does(changes):
    theirs = bert("BertForMaskedLM", changes)
    norm = NormConfig(epsilon=theirs.config.layer_norm_eps)
    model = ours(theirs, head=FillConfig(activation=ACTIVATIONS[theirs.config.hidden_act], norm=norm))
    asked = Asked(model)
    torch.testing.assert_close(asked.ours(model)[asked.real], asked.theirs(theirs).logits[asked.real], **CLOSE)


@all_berts
def test_texts_are_labelled_as_bert_does(changes):
    theirs = bert("BertForSequenceClassification", changes)
    model = ours(theirs, pooler=True, head=ClassifyConfig(labels=LABELS, pooling="pooler"))
    asked = Asked(model)
    torch.testing.assert_close(asked.ours(model), asked.theirs(theirs).logits, **CLOSE)


@all_berts
def test_tokens_are_labelled_as_bert_does(changes):
    theirs = bert("BertForTokenClassification", changes)
    model = ours(theirs, head=TagConfig(labels=LABELS))
    asked = Asked(model)
    torch.testing.assert_close(asked.ours(model)[asked.real], asked.theirs(theirs).logits[asked.real], **CLOSE)


def test_without_segments_all_is_of_the_first_as_in_bert():
    theirs = bert("BertModel", {})
    model = ours(theirs, pooler=True)
    tokens = ids(2, 5)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), theirs(input_ids=tokens).last_hidden_state, **CLOSE)
        assert torch.equal(model(tokens), model(tokens, segments=torch.zeros_like(tokens)))


def test_sentence_vectors_are_the_mean_of_real_tokens_at_length_one():
    """As sentence-transformers computes them from BERT's vectors: masked mean, then the Euclidean norm."""
    theirs = bert("BertModel", {})
    model = ours(theirs, pooler=True)
    asked = Asked(model)
    mask = asked.real[..., None].float()
    mean = (asked.theirs(theirs).last_hidden_state * mask).sum(1) / mask.sum(1)
    found = model.sentence_vectors(asked.tokens, LENGTHS, segments=asked.segments)
    torch.testing.assert_close(found, functional.normalize(mean, p=2, dim=1), **CLOSE)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))


def test_bert_base_has_as_many_parameters_as_it_is_known_to_have():
    """109,482,240 with its pooler, as bert-base-uncased has in transformers."""
    config = EncoderConfig(
        vocabulary=30_522,
        width=768,
        encoder=StackConfig(
            layers=12, order="post", attention=HeadsConfig(heads=12), feed_forward=FeedForwardConfig(hidden=3072)
        ),
        position=LearnedConfig(limit=512),
        embedding=EmbeddingConfig(norm=NormConfig()),
        segments=2,
        pooler=True,
    )
    with torch.device("meta"):
        assert count_parameters(config.build()) == 109_482_240


# What must not matter


@given(config=encoders(), seed=some.integers(0, 99))
def test_padding_and_company_do_not_matter(config, seed):
    model = build(config, seed=seed)
    tokens = ids(3, 7, seed=seed)
    named = told(config, tokens)
    filled = torch.where(torch.arange(7) < LENGTHS[:, None], tokens, (tokens + 1) % VOCABULARY)
    with torch.no_grad():
        together = model(tokens, lengths=LENGTHS, **named)
        torch.testing.assert_close(model(filled, lengths=LENGTHS, **named), together, **EXACT)
        for row, length in enumerate(LENGTHS.tolist()):
            own = {name: numbers[row : row + 1, :length] for name, numbers in named.items()}
            alone = model(tokens[row : row + 1, :length], **own)[0]
            found = together[row] if config.head.kind == "classify" else together[row, :length]
            torch.testing.assert_close(found, alone, **EXACT)


@given(config=encoders(), seed=some.integers(0, 99))
def test_packed_documents_get_what_they_get_alone(config, seed):
    model = build(config, seed=seed)
    tokens = ids(1, 8, seed=seed)
    named = told(config, tokens)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, -1]])
    if config.head.kind == "classify" or config.position.needs_length:
        with pytest.raises(UserError, match="document"):
            model(tokens, documents=documents, **named)
        return
    with torch.no_grad():
        packed = model(tokens, documents=documents, **named)
        for start, end in ((0, 3), (3, 7)):
            own = {name: numbers[:, start:end] for name, numbers in named.items()}
            torch.testing.assert_close(packed[:, start:end], model(tokens[:, start:end], **own), **EXACT)


@pytest.mark.parametrize("name", READERS["encoder"])
def test_padding_comes_out_as_zeros(name):
    model = build(READERS["encoder"][name])
    vectors = model.encode(ids(3, 7), lengths=LENGTHS)
    real = torch.arange(7) < LENGTHS[:, None]
    assert (vectors[~real] == 0).all()
    assert (vectors[real] != 0).any(dim=-1).all()


def test_padding_within_packed_rows_comes_out_as_zeros():
    documents = torch.tensor([[0, 0, 1, -1, -1]])
    vectors = build(encoder()).encode(ids(1, 5), documents=documents)
    assert (vectors[0, 3:] == 0).all()


def test_a_row_of_nothing_but_padding_has_finite_answers_and_gradients():
    model = build(encoder(head=ClassifyConfig(labels=LABELS, pooling="mean")))
    scores = model(ids(2, 4), lengths=torch.tensor([4, 0]))
    scores.square().sum().backward()
    assert scores.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_token_sees_what_the_pattern_allows(pattern):
    """In one layer a token's vector changes with just those tokens it may look at."""
    model = build(encoder(encoder=stack(layers=1, pattern=pattern)))
    tokens = ids(1, 6)
    place = torch.arange(6)
    allowed = read_pattern(pattern).allows(torch.zeros(1, dtype=torch.long), place[:, None], place[None, :])
    with torch.no_grad():
        before = model(tokens)[0]
        for changed in range(6):
            other = tokens.clone()
            other[0, changed] = (other[0, changed] + 1) % VOCABULARY
            moved = (model(other)[0] - before).abs().amax(dim=-1) > 1e-9
            expected = allowed[:, changed] | (place == changed)  # the residual carries a token to itself
            assert torch.equal(moved, expected)


def test_order_matters_only_through_positions():
    model = build(encoder(position={"kind": "none"}))
    tokens, order = ids(1, 6), torch.tensor([3, 1, 5, 0, 2, 4])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens[:, order]), model(tokens)[:, order], **EXACT)


# Parts


def test_a_segment_s_vector_is_added_to_each_of_its_words():
    part = Segments(3, 4)
    words, numbers = torch.randn(2, 5, 4), ids(2, 5, 3)
    wanted = words + functional.one_hot(numbers, 3).float() @ part.table
    torch.testing.assert_close(part(numbers, words), wanted)


def test_the_mean_leaves_out_padding():
    vectors = torch.tensor([[[2.0], [4.0], [0.0]], [[3.0], [0.0], [0.0]]])
    assert mean_vector(vectors, torch.tensor([2, 1])).tolist() == [[3.0], [3.0]]
    assert mean_vector(vectors, None).tolist() == [[2.0], [1.0]]


def test_every_head_stands_on_what_encode_gives():
    tokens = ids(2, 5)
    for name, config in READERS["encoder"].items():
        model = build(config)
        vectors = model.encode(tokens)
        assert vectors.shape == (2, 5, config.width), name
        if config.head.kind == "none":
            assert torch.equal(model(tokens), vectors)
        elif config.head.kind == "tag":
            torch.testing.assert_close(model(tokens), model.head(vectors), **EXACT)


def test_whoever_watches_sees_every_layer_s_weights():
    model = build(READERS["encoder"]["like BERT"])
    seen: list[Tensor] = []
    watched = model(ids(2, 5), lengths=torch.tensor([5, 3]), watch=lambda _, weights: seen.append(weights))
    assert [weights.shape for weights in seen] == [(2, 4, 5, 5)] * 2
    for weights in seen:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
        assert (weights[1, :, :, 3:] == 0).all()
    torch.testing.assert_close(watched, model(ids(2, 5), lengths=torch.tensor([5, 3])), **EXACT)


def test_the_pooler_of_a_model_without_a_head_learns_from_what_it_gives():
    model = build(encoder(pooler=True))
    model.pooled(ids(2, 5), lengths=torch.tensor([5, 2])).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": {"mask": 13}}, r"tokens\.mask: id 13 is outside the vocabulary of 13\."),
        ({"encoder": stack(heads=3)}, r"encoder\.attention\.heads: 3 heads do not divide the width 16"),
        ({"head": {"kind": "guess"}}, r"head\.kind: found 'guess'; expected one of"),
        ({"head": {"kind": "tag", "labels": []}}, r"head\.labels"),
        ({"head": {"kind": "tag", "labels": ["a", ""]}}, r"head\.labels"),
        ({"head": {"kind": "tag", "labels": ["a", "b", "a"]}}, r"head\.labels: 'a' comes twice"),
        ({"head": {"kind": "classify", "labels": ["a"], "pooling": "pooler"}}, "pooler: .*set it to true"),
        ({"head": {"kind": "classify", "labels": ["a"], "pooling": "mean"}, "pooler": True}, "pooler: .*untrained"),
        ({"head": FillConfig(), "pooler": True}, "pooler: .*untrained"),
        ({"head": FillConfig(), "position": SinusoidalConfig(join="concatenate", features=4)}, r"head\.tie: "),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        encoder(**settings)


def test_labels_are_known_by_the_config():
    assert encoder(head=TagConfig(labels=LABELS)).labels == LABELS
    assert EncoderConfig.read({"vocabulary": 5, "head": {"kind": "tag", "labels": ["x", "y"]}}).labels == ("x", "y")
    assert encoder().labels == ()


def test_what_is_asked_wrongly_is_answered_with_a_sentence():
    plain, told_apart = build(encoder()), build(encoder(segments=2))
    tokens = ids(2, 5)
    with pytest.raises(UserError, match="does not tell segments apart"):
        plain(tokens, segments=torch.zeros_like(tokens))
    with pytest.raises(UserError, match="numbered from 0 to 1; found 2"):
        told_apart(tokens, segments=torch.full_like(tokens, 2))
    with pytest.raises(UserError, match=r"segments must hold whole numbers in the shape \(2, 5\)"):
        told_apart(tokens, segments=torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(UserError, match="no pooler"):
        plain.pooled(tokens)
    with pytest.raises(UserError, match="'normalised' positions"):
        build(encoder(position=NormalisedConfig()))(tokens, documents=torch.zeros_like(tokens))
    with pytest.raises(UserError, match="row of its own"):
        build(encoder(head=ClassifyConfig(labels=LABELS)))(tokens, documents=torch.zeros_like(tokens))


# Training


def slopes(model: nn.Module, forward: Any, *given: Tensor, **more: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    if isinstance(forward, Lowered):
        forward.refresh()
    made = forward(*given, **more)
    torch.manual_seed(1)
    (made * torch.randn(made.shape)).sum().backward()
    return made.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_fast(config: EncoderConfig, **more: Any) -> None:
    """The fast form gives the same everywhere, padding included, and has the same gradients."""
    config = without_dropout(config)
    model = build(config, torch.float32).train()
    tokens = ids(3, 7)
    named = {"lengths": LENGTHS, **told(config, tokens)}
    twin = for_training(model, **more)
    assert twin is not model
    assert type(twin.encoder) is not type(model.encoder) or twin.encoder.recomputes
    wanted, plain = slopes(model, model, tokens, **named)
    found, fast = slopes(model, twin, tokens, **named)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert plain.keys() == fast.keys() == dict(model.named_parameters()).keys()
    for name, slope in plain.items():
        torch.testing.assert_close(fast[name], slope, rtol=1e-4, atol=1e-4 * max(1.0, float(slope.abs().max())))


def without_dropout(config: EncoderConfig) -> EncoderConfig:
    def calm(values: Any) -> Any:
        if isinstance(values, dict):
            return {key: 0.0 if key == "dropout" else calm(value) for key, value in values.items()}
        return values

    return EncoderConfig.read(calm(config.plain()))


FAST = {name: config for name, config in READERS["encoder"].items() if config.encoder.order != "none"}


@pytest.mark.parametrize("name", FAST)
def test_the_fast_form_for_a_gpu_gives_the_same(name, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.fast.triton_switch.INTERPRETED", True)
    check_fast(FAST[name])
    assert isinstance(for_training(build(FAST[name], torch.float32)).encoder, FusedStack)


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", FAST)
def test_the_fast_form_for_a_cpu_gives_the_same(name, late):
    check_fast(FAST[name], late=late)


@pytest.mark.parametrize("name", READERS["encoder"])
def test_recomputing_gives_the_same(name):
    check_fast(READERS["encoder"][name], recompute=True)


@pytest.mark.parametrize("name", READERS["encoder"])
def test_a_training_step_can_be_taken_in_bf16(name):
    model = build(READERS["encoder"][name], torch.float32)
    made, found = slopes(model, in_precision(model, "bf16"), ids(2, 5))
    assert made.dtype == torch.bfloat16
    assert all(slope.dtype == torch.float32 and slope.isfinite().all() for slope in found.values())


def test_it_learns_to_fill_gaps():
    """Words come in twos of a kind: a masked one can be told from its neighbour."""
    torch.manual_seed(0)
    mask = VOCABULARY - 1
    config = encoder(head=FillConfig(), encoder=stack(dropout=0.0), embedding=EmbeddingConfig(dropout=0.0))
    model = config.build()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(300):
        text = torch.randint(mask, (16, 4)).repeat_interleave(2, dim=1)
        hidden = text.clone()
        hidden[:, ::2] = mask
        loss = functional.cross_entropy(model(hidden)[:, ::2].flatten(0, 1), text[:, ::2].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1


def test_a_copy_shares_nothing_where_words_are_tied():
    model = build(READERS["encoder"]["like BERT"])
    twin = copy.deepcopy(model)
    assert "head.vocabulary.weight" not in model.state_dict()
    assert twin.vocabulary.weight.data_ptr() != model.vocabulary.weight.data_ptr()


# Asked about some tokens only


@pytest.mark.parametrize(
    "name", [name for name, config in READERS["encoder"].items() if config.head.kind != "classify"]
)
def test_asked_about_some_tokens_it_says_of_them_what_it_says_of_all(name):
    config = READERS["encoder"][name]
    model, tokens, places = build(config), ids(3, 7), torch.tensor([[0, 6, 2], [0, 0, 0], [3, 1, 2]])
    whole = model(tokens, lengths=LENGTHS, **told(config, tokens))
    some_tokens = model(tokens, lengths=LENGTHS, places=places, **told(config, tokens))
    wanted = torch.stack([row[place] for row, place in zip(whole, places, strict=True)])
    torch.testing.assert_close(some_tokens, wanted, **EXACT)


def test_a_label_for_a_whole_text_belongs_to_no_place():
    model = build(encoder(head=ClassifyConfig(labels=LABELS)))
    with pytest.raises(UserError, match="leave out places"):
        model(ids(2, 5), places=torch.zeros(2, 1, dtype=torch.long))
