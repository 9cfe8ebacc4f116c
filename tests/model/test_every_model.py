"""Properties of every Transformer: shapes, gradients, saving, compiling, copying and configs.

Models before the Transformer have these tests in tests/model/before/test_every_model.py.
"""

import copy
import json
from typing import get_args

import pytest
import torch
from torch import nn

import regard
from regard.attention import RotaryConfig
from regard.attention.positions.config import AnyPosition
from regard.model import (
    AUTOREGRESSIVE_MODELS,
    TRANSFORMERS,
    AnyModelConfig,
    EncoderConfig,
    StackConfig,
    VisionTransformerConfig,
    count_parameters,
    read_any_config,
    read_config,
)
from regard.model.feed_forward import Activation
from regard.model.heads import AnyHead, HeadActivation
from regard.model.vision_transformer import AnyGrid
from regard.run import save_model
from tests.model.small_models import ENCODER_SAMPLES, POSITIONS, SAMPLES, build, inputs

ALL_SAMPLES = {**SAMPLES, **ENCODER_SAMPLES}
EVERY = [
    pytest.param(config, id=f"{kind}: {name}") for kind, some in ALL_SAMPLES.items() for name, config in some.items()
]
every_model = pytest.mark.parametrize("config", EVERY)


def stacks_of(config: AnyModelConfig) -> list[StackConfig]:
    return [getattr(config, name) for name in ("decoder", "encoder") if hasattr(config, name)]


def output_shape(config: AnyModelConfig, rows: int, tokens: int) -> tuple[int, ...]:
    """The shape of the output for this many rows of this many tokens, or for this many images."""
    if isinstance(config, VisionTransformerConfig):
        return rows, len(config.labels) or config.width
    if not isinstance(config, EncoderConfig):
        return rows, tokens, config.vocab_size
    match config.head.kind:
        case "classification":
            return rows, len(config.labels)
        case "token_classification":
            return rows, tokens, len(config.labels)
    return rows, tokens, config.vocab_size if config.head.kind == "masked_lm" else config.width


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_every_registered_kind_has_samples(kind):
    assert len(ALL_SAMPLES.get(kind, {})) >= 3
    assert all(config.kind == kind for config in ALL_SAMPLES[kind].values())


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_samples_of_every_kind_cover_every_component(kind):
    """A new activation, norm position or position encoding is tested in every kind of model only if a sample has it."""
    configs = list(ALL_SAMPLES[kind].values())
    parts = [part for config in configs for part in stacks_of(config)]
    assert {part.feed_forward.activation for part in parts} == set(get_args(Activation))
    assert {(part.norm_position, part.residual) for part in parts} == {("pre", True), ("post", True), ("pre", False)}
    assert {part.norm.kind for part in parts} == {"layer", "rms"}
    assert {part.attention.kind for part in parts} == {"multi_head", "latent"}
    assert {part.attention.kv_heads for part in parts if part.attention.kind == "multi_head"} >= {None, 1, 2}
    kinds_of_position = AnyGrid if kind == "vision" else AnyPosition
    positions = {member.model_fields["kind"].default for member in get_args(get_args(kinds_of_position)[0])}
    unsupported = {"normalized"} if kind in AUTOREGRESSIVE_MODELS else set()
    assert {config.position.kind for config in configs} == positions - unsupported


@pytest.mark.parametrize("kind", ["encoder-decoder", "language-model"])
def test_autoregressive_samples_cover_tied_weights_and_output_bias(kind):
    outputs = {(config.tie_weights, config.output_bias) for config in SAMPLES[kind].values()}
    assert outputs >= {(True, False), (True, True), (False, True)}


def test_encoder_samples_cover_every_head_and_pooling():
    heads = [config.head for config in ENCODER_SAMPLES["encoder"].values()]
    assert {head.kind for head in heads} == {member.model_fields["kind"].default for member in head_configs()}
    assert {head.pooling for head in heads if head.kind == "classification"} == {"pooler", "cls", "mean"}
    assert {(head.tie_weights, head.bias) for head in heads if head.kind == "masked_lm"} == {
        (True, True),
        (False, False),
    }
    assert {head.activation for head in heads if head.kind == "masked_lm"} == set(get_args(HeadActivation))
    assert {config.pooling for config in ENCODER_SAMPLES["vision"].values()} == {"cls", "mean"}


def head_configs():
    return get_args(get_args(AnyHead)[0])


@every_model
def test_logits_are_finite_and_have_the_expected_shape(config):
    args = inputs(config)
    logits = build(config, torch.float32)(*args)
    assert logits.shape == output_shape(config, *args[-1].shape[:2])
    assert logits.isfinite().all()


@every_model
def test_every_parameter_receives_a_gradient(config):
    model = build(config)
    logits = model(*inputs(config))
    (logits * torch.randn_like(logits)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        largest = parameter.grad.abs().max().item()
        if is_exactly_zero(config, name):
            assert largest < 1e-12, name  # float64 rounding; other gradients of these models exceed 1e-6
        else:
            assert largest > 1e-6, name


def is_exactly_zero(config: AnyModelConfig, name: str) -> bool:
    """A key bias adds the same number to all scores of a query, which the softmax ignores.

    Not so if it is rotated with the key (rotary self-attention) or normalized with the key (cosine similarity).
    """
    if not name.endswith("k_proj.bias"):
        return False
    part = config.encoder if name.startswith("encoder") else config.decoder
    rotated = isinstance(config.position, RotaryConfig) and ".self_attn." in name
    return part.attention.similarity != "cosine" and not rotated


@every_model
def test_saved_and_loaded_model_has_the_same_logits(config, tmp_path):
    model = build(config, torch.float32)
    args = inputs(config)
    save_model(model, tmp_path / "run")
    loaded = regard.load(tmp_path / "run")
    assert loaded.config == config
    weights, saved = loaded.model.state_dict(), model.state_dict()
    assert all(torch.equal(weights[name], saved[name]) for name in saved)
    with torch.no_grad():  # up to rounding: kernels sum in another order if tensors are aligned differently
        torch.testing.assert_close(loaded.logits(*args), model(*args), rtol=0, atol=1e-5)


@every_model
def test_evaluation_is_deterministic(config):
    model = build(config)
    args = inputs(config)
    torch.manual_seed(1)
    first = model(*args)
    torch.manual_seed(2)
    assert torch.equal(model(*args), first)


@every_model
def test_training_has_dropout(config):
    model = build(config).train()
    args = inputs(config)
    assert not torch.equal(model(*args), model(*args))


@every_model
def test_bfloat16_runs(config):
    logits = build(config, torch.bfloat16)(*inputs(config))
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()


@pytest.mark.one_in(3)
@every_model
def test_model_compiles_to_one_graph(config):
    model = build(config)
    args = inputs(config)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")  # a graph break is an error
    torch.testing.assert_close(compiled(*args), model(*args), rtol=0, atol=0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [kind for kind in TRANSFORMERS if kind != "vision"])
@pytest.mark.parametrize("more", ["lengths", "documents"])
@pytest.mark.parametrize("attention", ["multi_head", "latent"])
def test_model_with_padded_or_packed_rows_compiles_to_one_graph(kind, more, attention):
    model = build(next(each for each in ALL_SAMPLES[kind].values() if stacks_of(each)[0].attention.kind == attention))
    args = inputs(model.config)
    sides = ["source_", "target_"] if len(args) == 2 else [""]
    values = {
        "lengths": lambda tokens: torch.tensor([tokens.shape[1], 2]),
        "documents": lambda tokens: (torch.arange(tokens.shape[1]) // 3).expand_as(tokens),
    }
    named = {f"{side}{more}": values[more](tokens) for side, tokens in zip(sides, args, strict=True)}
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")  # a graph break is an error
    torch.testing.assert_close(compiled(*args, **named), model(*args, **named), rtol=0, atol=0)


@every_model
def test_deepcopy_computes_the_same(config):
    model = build(config)
    args = inputs(config)
    assert torch.equal(copy.deepcopy(model)(*args), model(*args))


@every_model
def test_deepcopy_shares_nothing(config):
    model = build(config)
    before = model(*inputs(config))
    clone = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in clone.parameters():
            parameter.zero_()
    assert torch.equal(model(*inputs(config)), before)


@every_model
def test_building_on_the_meta_device_allocates_nothing(config):
    with torch.device("meta"):
        model = config.build()
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert count_parameters(model) == count_parameters(config.build())


@every_model
def test_materialized_meta_model_computes_the_same(config):
    """Constants outside the state dict, such as rotary frequencies, are computed again."""
    model = build(config, torch.float32)
    with torch.device("meta"):
        materialized = config.build()
    materialized.to_empty(device="cpu").load_state_dict(model.state_dict())
    args = inputs(config)
    assert torch.equal(materialized.eval()(*args), model(*args))


@every_model
def test_config_round_trips_through_json(config):
    assert read_any_config(json.loads(json.dumps(config.plain()))) == config


def test_shared_parameter_is_counted_once():
    first, second = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
    second.weight = first.weight
    assert count_parameters(nn.ModuleList([first, second])) == 6


def test_config_of_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(regard.UserError, match=r"file\.json: .*'transformer'.* encoder-decoder, language-model"):
        read_config({"kind": "transformer"}, "file.json")


@pytest.mark.parametrize("values", [None, [], "text", {}, {"kind": None}, {"kind": []}, {"kind": {}}, {"kind": 3}])
def test_invalid_config_data_is_refused_with_the_known_kinds(values):
    with pytest.raises(regard.UserError, match="expected one of encoder-decoder, language-model"):
        read_config(values)


def test_encoder_config_is_not_an_autoregressive_one():
    with pytest.raises(
        regard.UserError, match=r"file\.json: .*'vision' does not generate text.* encoder-decoder, language"
    ):
        read_config({"kind": "vision"}, "file.json")
    with pytest.raises(
        regard.UserError, match="'bert'; expected one of encoder-decoder, language-model, encoder, vision"
    ):
        read_any_config({"kind": "bert"})


def test_drawn_positions_cover_every_kind_but_normalized():
    """Equivalences are tested on positions drawn from these."""
    kinds = {member.model_fields["kind"].default for member in get_args(get_args(AnyPosition)[0])}
    assert {position.kind for position in POSITIONS.values()} == kinds - {"normalized"}
