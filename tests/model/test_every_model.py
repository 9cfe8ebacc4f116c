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
from regard.model import (
    MODELS,
    WRITERS,
    AnyModelConfig,
    EncoderConfig,
    StackConfig,
    VisionTransformerConfig,
    count_parameters,
    read_any_config,
    read_config,
)
from regard.model.block import ORDERS
from regard.model.feed_forward import Activation
from regard.model.readout import AnyHead, Bend
from regard.model.vision import AnyGrid
from regard.run import save

from .small_models import POSITIONS, READERS, SAMPLES, build, inputs

ALL = {**SAMPLES, **READERS}
EVERY = [pytest.param(config, id=f"{kind}: {name}") for kind, some in ALL.items() for name, config in some.items()]
every_model = pytest.mark.parametrize("config", EVERY)


def stacks_of(config: AnyModelConfig) -> list[StackConfig]:
    return [getattr(config, name) for name in ("decoder", "encoder") if hasattr(config, name)]


def shape_of(config: AnyModelConfig, rows: int, tokens: int) -> tuple[int, ...]:
    """What a model of this config promises to give for these rows of tokens, or so many pictures."""
    if isinstance(config, VisionTransformerConfig):
        return rows, len(config.labels) or config.width
    if not isinstance(config, EncoderConfig):
        return rows, tokens, config.vocabulary
    match config.head.kind:
        case "classify":
            return rows, len(config.labels)
        case "tag":
            return rows, tokens, len(config.labels)
    return rows, tokens, config.vocabulary if config.head.kind == "fill" else config.width


@pytest.mark.parametrize("kind", MODELS)
def test_every_registered_kind_has_samples(kind):
    assert len(ALL.get(kind, {})) >= 3
    assert all(config.kind == kind for config in ALL[kind].values())


@pytest.mark.parametrize("kind", MODELS)
def test_samples_of_every_kind_hold_every_part(kind):
    """A new activation, order, similarity or position is tested with every model only if some sample has it."""
    configs = list(ALL[kind].values())
    parts = [part for config in configs for part in stacks_of(config)]
    assert {part.feed_forward.activation for part in parts} == set(get_args(Activation))
    assert {part.order for part in parts} == set(ORDERS)
    assert {part.norm.kind for part in parts} == {"layer", "rms"}
    assert {part.attention.kind for part in parts} == {"heads", "latent"}
    assert {part.attention.key_heads for part in parts if part.attention.kind == "heads"} >= {None, 1, 2}
    kinds_of_position = AnyGrid if kind == "vision" else AnyPosition
    positions = {member.model_fields["kind"].default for member in get_args(get_args(kinds_of_position)[0])}
    no_writer_has = {"normalised"} if kind in WRITERS else set()
    assert {config.position.kind for config in configs} == positions - no_writer_has


@pytest.mark.parametrize("kind", WRITERS)
def test_samples_of_writers_hold_every_way_out(kind):
    ways = {(config.tie, config.output_bias) for config in SAMPLES[kind].values()}
    assert ways >= {(True, False), (True, True), (False, True)}


def test_samples_of_readers_hold_every_head_and_pooling():
    heads = [config.head for config in READERS["encoder"].values()]
    assert {head.kind for head in heads} == {member.model_fields["kind"].default for member in heads_there_are()}
    assert {head.pooling for head in heads if head.kind == "classify"} == {"pooler", "first", "mean"}
    assert {(head.tie, head.bias) for head in heads if head.kind == "fill"} == {(True, True), (False, False)}
    assert {head.activation for head in heads if head.kind == "fill"} == set(get_args(Bend))
    assert {config.pooling for config in READERS["vision"].values()} == {"class", "mean"}


def heads_there_are():
    return get_args(get_args(AnyHead)[0])


@every_model
def test_logits_are_finite_and_of_the_promised_shape(config):
    given = inputs(config)
    logits = build(config, torch.float32)(*given)
    assert logits.shape == shape_of(config, *given[-1].shape[:2])
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


def truly_zero(config: AnyModelConfig, name: str) -> bool:
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


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "vision"])
@pytest.mark.parametrize("more", ["lengths", "documents"])
@pytest.mark.parametrize("attention", ["heads", "latent"])
def test_padded_and_packed_rows_are_one_graph_to_the_compiler(kind, more, attention):
    model = build(next(each for each in ALL[kind].values() if stacks_of(each)[0].attention.kind == attention))
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
    assert read_any_config(json.loads(json.dumps(config.plain()))) == config


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


def test_whoever_wants_a_writer_is_told_that_a_reader_is_none():
    with pytest.raises(regard.UserError, match=r"file\.json: .*'vision' does not write.* encoder-decoder, language"):
        read_config({"kind": "vision"}, "file.json")
    with pytest.raises(regard.UserError, match="'bert'; known kinds: encoder-decoder, language-model, encoder, vision"):
        read_any_config({"kind": "bert"})


def test_positions_to_draw_from_leave_out_only_those_that_change_with_the_text():
    """Equivalences are drawn over these; one that is missing would not be tested."""
    kinds = {member.model_fields["kind"].default for member in get_args(get_args(AnyPosition)[0])}
    assert {position.kind for position in POSITIONS.values()} == kinds - {"normalised"}
