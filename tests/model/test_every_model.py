"""What every registered model must do, tried on unlike samples of each kind."""

import copy
import json
from typing import get_args

import pytest
import torch
from torch import nn

import regard
from regard.attention import RotaryConfig
from regard.attention.position import AnyPosition
from regard.model import MODELS, EncoderDecoderConfig, ModelConfig, StackConfig, count_parameters, read_config
from regard.model.block import ORDERS
from regard.model.feed_forward import Activation
from regard.run import save

from .small_models import POSITIONS, SAMPLES, build, inputs

EVERY = [pytest.param(config, id=f"{kind}: {name}") for kind, some in SAMPLES.items() for name, config in some.items()]
every_model = pytest.mark.parametrize("config", EVERY)


def stacks_of(config: ModelConfig) -> list[StackConfig]:
    return [config.decoder, config.encoder] if isinstance(config, EncoderDecoderConfig) else [config.decoder]


@pytest.mark.parametrize("kind", MODELS)
def test_every_registered_kind_has_samples(kind):
    assert len(SAMPLES.get(kind, {})) >= 3
    assert all(config.kind == kind for config in SAMPLES[kind].values())


@pytest.mark.parametrize("kind", MODELS)
def test_samples_of_every_kind_hold_every_part(kind):
    """A new activation, order, similarity or position is tested with every model only if some sample has it."""
    configs = list(SAMPLES[kind].values())
    parts = [part for config in configs for part in stacks_of(config)]
    positions = {member.model_fields["kind"].default for member in get_args(get_args(AnyPosition)[0])}
    assert {part.feed_forward.activation for part in parts} == set(get_args(Activation))
    assert {part.order for part in parts} == set(ORDERS)
    assert {part.norm.kind for part in parts} == {"layer", "rms"}
    assert {part.attention.key_heads for part in parts} >= {None, 1, 2}
    assert {config.position.kind for config in configs} == positions - {"normalised"}  # no writer can have it
    assert {(config.tie, config.output_bias) for config in configs} >= {(True, False), (True, True), (False, True)}


@every_model
def test_logits_are_finite_and_of_the_promised_shape(config):
    given = inputs(config)
    logits = build(config, torch.float32)(*given)
    assert logits.shape == (*given[-1].shape, config.vocabulary)
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
        if truly_zero(config, name):
            assert largest < 1e-12, name  # rounding in float64; what is not zero is above 1e-6 in these models
        else:
            assert largest > 1e-6, name


def truly_zero(config: ModelConfig, name: str) -> bool:
    """A key bias adds the same number to all scores of a query, and the softmax does not change with it.

    Not so where the bias is turned by the key's position (rotary self-attention) or normalised with the key (cosine).
    """
    if not name.endswith("key.bias"):
        return False
    part = config.encoder if name.startswith("encoder") else config.decoder
    turned = isinstance(config.position, RotaryConfig) and ".attention." in name
    return part.attention.similarity != "cosine" and not turned


@every_model
def test_a_saved_model_loads_with_the_same_logits(config, tmp_path):
    model = build(config, torch.float32)
    given = inputs(config)
    save(model, tmp_path / "run")
    loaded = regard.load(tmp_path / "run")
    assert loaded.config == config
    with torch.no_grad():
        assert torch.equal(loaded.logits(*given), model(*given))


@every_model
def test_evaluation_has_no_chance_in_it(config):
    model = build(config)
    given = inputs(config)
    torch.manual_seed(1)
    first = model(*given)
    torch.manual_seed(2)
    assert torch.equal(model(*given), first)


@every_model
def test_training_has_dropout(config):
    model = build(config).train()
    given = inputs(config)
    assert not torch.equal(model(*given), model(*given))


@every_model
def test_bfloat16_runs(config):
    logits = build(config, torch.bfloat16)(*inputs(config))
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()


@every_model
def test_the_model_is_one_graph_to_the_compiler(config):
    model = build(config)
    given = inputs(config)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")  # a graph break is an error
    torch.testing.assert_close(compiled(*given), model(*given), rtol=0, atol=0)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("more", ["lengths", "documents"])
def test_padded_and_packed_rows_are_one_graph_to_the_compiler(kind, more):
    model = build(SAMPLES[kind]["plain"])
    given = inputs(model.config)
    sides = ["source_", "target_"] if len(given) == 2 else [""]
    numbers = {
        "lengths": lambda tokens: torch.tensor([tokens.shape[1], 2]),
        "documents": lambda tokens: (torch.arange(tokens.shape[1]) // 3).expand_as(tokens),
    }
    named = {f"{side}{more}": numbers[more](tokens) for side, tokens in zip(sides, given, strict=True)}
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")  # a graph break is an error
    torch.testing.assert_close(compiled(*given, **named), model(*given, **named), rtol=0, atol=0)


@every_model
def test_a_copy_computes_the_same(config):
    model = build(config)
    given = inputs(config)
    assert torch.equal(copy.deepcopy(model)(*given), model(*given))


@every_model
def test_a_copy_is_a_model_of_its_own(config):
    model = build(config)
    before = model(*inputs(config))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(model(*inputs(config)), before)


@every_model
def test_building_on_the_meta_device_sets_no_memory_aside(config):
    with torch.device("meta"):
        model = config.build()
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert count_parameters(model) == count_parameters(config.build())


@every_model
def test_a_model_built_on_the_meta_device_computes_the_same_once_filled(config):
    """What no file holds, such as the angles of positions, must come by itself."""
    model = build(config, torch.float32)
    with torch.device("meta"):
        later = config.build()
    later.to_empty(device="cpu").load_state_dict(model.state_dict())
    given = inputs(config)
    assert torch.equal(later.eval()(*given), model(*given))


@every_model
def test_a_config_survives_a_file(config):
    assert read_config(json.loads(json.dumps(config.plain()))) == config


def test_a_shared_parameter_is_counted_once():
    first, second = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
    second.weight = first.weight
    assert count_parameters(nn.ModuleList([first, second])) == 6


def test_a_config_of_unknown_kind_is_refused_with_the_kinds_there_are():
    with pytest.raises(regard.UserError, match=r"file\.json: .*'transformer'.* encoder-decoder, language-model\."):
        read_config({"kind": "transformer"}, "file.json")


@pytest.mark.parametrize("values", [None, [], "text", {}, {"kind": None}, {"kind": []}, {"kind": {}}, {"kind": 3}])
def test_data_that_is_no_config_is_refused_with_the_kinds_there_are(values):
    with pytest.raises(regard.UserError, match="known kinds: encoder-decoder, language-model"):
        read_config(values)


def test_positions_to_draw_from_leave_out_only_those_that_change_with_the_text():
    """Equivalences are drawn over these; one that is missing would not be tested."""
    kinds = {member.model_fields["kind"].default for member in get_args(get_args(AnyPosition)[0])}
    assert {position.kind for position in POSITIONS.values()} == kinds - {"normalised"}
