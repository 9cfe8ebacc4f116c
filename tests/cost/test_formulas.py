"""Closed forms of costs, against PyTorch's FLOP counter, the models' parameters and their decoding states."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard.cost.counted import count_pass
from regard.cost.formulas import entries, entry_bytes, formula_of, full_table, full_table_power
from regard.model import (
    MODELS,
    STATIC_VECTORS,
    AnyModelConfig,
    EncoderDecoderConfig,
    GenerativeConfig,
    Seq2SeqConfig,
    SequenceConfig,
    VisionTransformerConfig,
    build_meta,
    count_parameters,
    transformer_base,
)
from regard.model.before.ngram.model import NgramConfig, estimate_ngrams
from tests.model.before.samples import SAMPLES as BEFORE
from tests.model.before.samples import sample
from tests.model.small_models import ENCODER_SAMPLES as ENCODERS
from tests.model.small_models import SAMPLES as TRANSFORMERS

LENGTHS = [(1, 1), (4, 7), (11, 6)]
"""Tokens of the source and of the target."""
MORE: dict[str, SequenceConfig] = {
    "window-lm, wide": sample("window-lm", window=9, width=20, hidden=30, direct=True),
    "recurrent-lm, deep": sample("recurrent-lm", cell="gru", width=10, layers=5),
    "convolutional-lm, kernel of one token": sample("convolutional-lm", width=10, kernel=1, layers=1),
    "context, deep": sample("context", width=10, hidden=6, layers=4, max_length=30, source_vocab_size=40),
    "dnn2, one layer": sample("dnn2", width=10, hidden=6, layers=1, max_length=30),
    "recurrent, bidirectional": sample("recurrent", width=6, hidden=10, layers=3, bidirectional=True, cell="lstm"),
    "recurrent, same widths": sample("recurrent", width=8, hidden=8, summary_input="first_state", tie_weights=False),
    "recurrent-attention, maxout": sample(
        "recurrent-attention",
        width=6,
        hidden=10,
        layers=3,
        cell="lstm",
        decoder={"kind": "bahdanau", "readout": "maxout"},
    ),
    "recurrent-attention, other widths": sample(
        "recurrent-attention", width=6, hidden=10, encoder_hidden=14, attention={"hidden": 5}
    ),
    "recurrent-attention, general": sample(
        "recurrent-attention", width=6, hidden=10, encoder_hidden=14, attention={"kind": "general"}
    ),
    "recurrent-attention, Luong without input feeding": sample(
        "recurrent-attention", width=6, hidden=10, layers=2, decoder={"kind": "luong", "input_feeding": False}
    ),
    "gnmt, deep": sample("gnmt", width=6, layers=5, attention={"kind": "general"}),
    "deep-att, deep": sample(
        "deep-att", width=6, hidden=4, encoder_layers=3, decoder_layers=4, attention={"hidden": 7}
    ),
    "recurrent-attention, experts": sample(
        "recurrent-attention", width=6, hidden=10, encoder_hidden=14, layers=2, experts={"experts": 4, "hidden": 5}
    ),
    "bytenet, deep": sample("bytenet", width=10, kernel=5, encoder_sets=3, decoder_sets=2, length_ratio=1.7),
}
CONFIGS: dict[str, AnyModelConfig] = {
    f"{kind}, {name}": config
    for samples in (BEFORE, {"more": MORE}, TRANSFORMERS, ENCODERS)
    for kind, configs in samples.items()
    for name, config in configs.items()
}
WITHOUT_FORMULA = {
    "encoder, latent",
    "encoder, local",
    "encoder-decoder, concatenated",
    "encoder-decoder, latent",
    "encoder-decoder, latent and shared",
    "encoder-decoder, two patterns",
    "language-model, dilated and global",
    "language-model, latent in a window",
    "language-model, latent with dynamic rotary",
    "language-model, like DeepSeek",
    "language-model, sliding",
    "vision, latent",
    "vision, local",
}
"""Attention that does not see everything, and latent attention."""
NAMES = sorted(CONFIGS.keys() - WITHOUT_FORMULA)
EVERY_MODEL = pytest.mark.parametrize("name", NAMES)
EVERY_GENERATIVE_MODEL = pytest.mark.parametrize(
    "name", [name for name in NAMES if isinstance(CONFIGS[name], GenerativeConfig)]
)


def attention_hook(attention: Any, weights: Tensor) -> None:
    """With a hook, attention uses the reference implementation, whose matmuls PyTorch's counter knows."""


def is_seq2seq(config: AnyModelConfig) -> bool:
    return isinstance(config, EncoderDecoderConfig | Seq2SeqConfig)


def counted_flops(config: AnyModelConfig, model: Any, source: int, target: int) -> int:
    """PyTorch's count of a forward pass; on the meta device recurrent layers are unrolled."""
    inputs = [torch.zeros(1, length, dtype=torch.long, device=model.device) for length in (source, target)]
    if isinstance(config, VisionTransformerConfig):
        inputs = [torch.zeros(1, config.channels, *config.size)]
    elif not is_seq2seq(config):
        inputs = inputs[1:]
    both = {"following": inputs[0]} if getattr(model, "is_bidirectional", False) else {}
    with FlopCounterMode(display=False) as counter:
        model(*inputs, attention_hook=attention_hook) if model.device.type == "cpu" else model(*inputs, **both)
    return int(counter.get_total_flops())


@EVERY_MODEL
def test_flops_equal_pytorch_s(name: str) -> None:
    config, formula = CONFIGS[name], formula_of(CONFIGS[name])
    # A Transformer's experts are chosen by values, which the meta device does not have.
    model = build_meta(config) if isinstance(config, SequenceConfig) else config.build()
    lengths = [(0, config.sequence_length)] if isinstance(config, VisionTransformerConfig) else LENGTHS
    assert formula is not None
    for source, target in lengths:
        assert sum(formula.flops(source, target)) == counted_flops(config, model, source, target)


@EVERY_MODEL
def test_parameters_equal_the_model_s(name: str) -> None:
    formula = formula_of(CONFIGS[name])
    assert formula is not None
    assert formula.parameter_count() == count_parameters(build_meta(CONFIGS[name]))


@EVERY_GENERATIVE_MODEL
def test_state_equals_the_model_s(name: str) -> None:
    """After the target has been read, with room for no more than that."""
    config, formula = CONFIGS[name], formula_of(CONFIGS[name])
    model: Any = config.build().eval()
    assert formula is not None
    for source, target in LENGTHS:
        start = (torch.zeros(1, source, dtype=torch.long), target) if is_seq2seq(config) else (1, target)
        _, state = model.step(torch.zeros(1, target, dtype=torch.long), model.start(*start))
        assert formula.state_bytes(source, target) == state.nbytes()


@pytest.mark.parametrize("name", MORE)
def test_source_and_target_are_counted_apart(name: str) -> None:
    """As `regard cost` counts them."""
    formula, passed = formula_of(MORE[name]), count_pass(MORE[name], 1, 5, 8)
    assert formula is not None
    assert formula.flops(5, 8) == (passed.encode.flops, passed.decode.flops)


@pytest.mark.parametrize("name", sorted(WITHOUT_FORMULA))
def test_a_model_with_other_parts_has_no_formula(name: str) -> None:
    assert formula_of(CONFIGS[name]) is None


def test_every_kind_of_model_has_a_formula() -> None:
    assert {CONFIGS[name].kind for name in NAMES} == MODELS.keys() - STATIC_VECTORS.keys()


# Growth

ORDERS = {
    "ngram": "O(1)",
    "window-lm": "O(k·n·d²)",
    "dnn1": "O(n·d²)",
    "dnn2": "O(n·d²)",
    "context": "O(n²·d + n·d²)",
    "recurrent": "O(n·d²)",
    "recurrent-lm": "O(n·d²)",
    "bidirectional-lm": "O(n·d²)",
    "recurrent-attention": "O(n²·d + n·d²)",
    "gnmt": "O(n²·d + n·d²)",
    "deep-att": "O(n²·d + n·d²)",
    "convolutional": "O(k·n·d² + n²·d)",
    "convolutional-lm": "O(k·n·d²)",
    "bytenet": "O(k·n·d²)",
    "encoder-decoder": "O(n²·d + n·d²)",
    "language-model": "O(n²·d + n·d²)",
    "encoder": "O(n²·d + n·d²)",
    "vision": "O(n²·d + n·d²)",
}


@pytest.mark.parametrize("kind", ORDERS)
def test_order_of_a_layer(kind: str) -> None:
    """Vaswani et al. 2017, Table 1: n²·d for self-attention, n·d² for recurrent and k·n·d² for convolutional layers."""
    (config, *_) = (CONFIGS[name] for name in NAMES if name.startswith(f"{kind}, "))
    formula = formula_of(config)
    assert formula is not None
    assert formula.order == ORDERS[kind]
    same_lengths = (formula.source + formula.target).renamed({"m": "n"})
    assert same_lengths.degree("n") == (2 if "n²" in formula.order else 1 if "n" in formula.order else 0)


@pytest.mark.parametrize(
    ("kind", "grows"),
    [("recurrent-lm", False), ("convolutional-lm", False), ("window-lm", False), ("language-model", True)],
)
def test_only_a_kv_cache_grows_with_the_target(kind: str, grows: bool) -> None:
    formula = formula_of(CONFIGS[next(name for name in NAMES if name.startswith(f"{kind}, "))])
    assert formula is not None
    assert formula.state.degree("n") == int(grows)


def test_formula_of_the_paper_s_model_is_readable() -> None:
    """6 layers: 8·n·d² of projections and 4·n²·d of scores; keys and values of the source count for the source."""
    formula = formula_of(transformer_base(37_000))
    assert formula is not None
    assert str(formula.source) == "24·m²·d + 72·m·d² + 24·m·d·f"
    assert str(formula.target) == "24·m·n·d + 24·n²·d + 72·n·d² + 24·n·d·f + 2·n·d·|T|"
    assert str(formula.parameters) == "72·d² + 24·d·f + d·|T| + 72·d + 12·f"
    assert str(formula.state) == "48·m·d + 48·n·d"


# n-grams


def test_full_table_has_a_probability_for_every_token_after_every_context() -> None:
    """Lecture 000: |T|^(t+1) for contexts of t tokens."""
    config = NgramConfig(vocab_size=200_000, order=4)
    assert str(full_table(config)) == "|T|⁴"
    assert full_table(config)({"|T|": 200_000}) == 200_000**4
    assert full_table_power(config) == pytest.approx(math.log10(200_000**4))


def test_estimated_table_has_the_n_grams_of_its_text() -> None:
    model = estimate_ngrams([[3, 4, 5, 3, 4], [4, 3]], order=3, vocab_size=6)
    tables = dict(model.named_buffers())
    assert entries(model.config) == sum(len(each) for name, each in tables.items() if name.endswith(".logprobs"))
    assert entry_bytes(model.config) == sum(each.nbytes for each in tables.values())
    assert entries(NgramConfig(vocab_size=6, order=3)) is entry_bytes(NgramConfig(vocab_size=6, order=3)) is None
    assert entries(NgramConfig(vocab_size=6, order=1)) == 6
