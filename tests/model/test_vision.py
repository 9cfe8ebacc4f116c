"""A vision transformer is ViT where it is built like ViT, at the size it was trained on and at any other."""

import importlib.util
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard import UserError
from regard.attention import HeadsConfig, Sinusoidal
from regard.config import ConfigError
from regard.fast.swift_training import FusedStack, for_training
from regard.model import (
    FeedForwardConfig,
    NormConfig,
    PixelsConfig,
    StackConfig,
    VisionTransformer,
    VisionTransformerConfig,
    count_parameters,
    read_any_config,
)
from regard.model.vision import LearnedGrid, Patches, SinusoidalGrid
from regard.run import save
from regard.train.gradient import in_precision
from regard.train.lowered import Lowered
from tests.task.small_pictures import as_if_recorded

from .small_models import EXACT, LABELS, READERS, build, pixels, stack, vision

CLOSE = {"rtol": 1e-5, "atol": 1e-5}

# Beside ViT

VITS: dict[str, dict[str, Any]] = {
    "usual": {},
    "no query, key and value biases": {"qkv_bias": False, "hidden_act": "gelu_new", "num_channels": 1},
    "one patch": {"patch_size": 8, "num_attention_heads": 1, "hidden_act": "relu", "num_hidden_layers": 1},
    "many patches": {"image_size": 12, "patch_size": 2, "layer_norm_eps": 1e-3, "num_channels": 4, "hidden_size": 24},
}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "relu": "relu"}
all_vits = pytest.mark.parametrize("changes", VITS.values(), ids=VITS.keys())


def vit(changes: dict[str, Any], architecture: str = "ViTForImageClassification") -> Any:
    """A ViT of transformers, every parameter moved away from where it starts."""
    transformers = pytest.importorskip("transformers")
    settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    settings |= {"image_size": 8, "patch_size": 4, "num_labels": len(LABELS)}
    torch.manual_seed(7)
    theirs = getattr(transformers, architecture)(transformers.ViTConfig(**(settings | changes))).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return theirs


def ours(theirs: Any, **more: Any) -> VisionTransformer:
    """The same model of our parts, with its weights."""
    given = theirs.config
    config = VisionTransformerConfig(
        image=given.image_size,
        patch=given.patch_size,
        channels=given.num_channels,
        width=given.hidden_size,
        encoder=StackConfig(
            layers=given.num_hidden_layers,
            attention=HeadsConfig(heads=given.num_attention_heads),
            feed_forward=FeedForwardConfig(hidden=given.intermediate_size, activation=ACTIVATIONS[given.hidden_act]),
            norm=NormConfig(epsilon=given.layer_norm_eps),
        ),
        **{"classes": LABELS, **more},
    )
    model = config.build().eval()
    model.load_state_dict(
        {name: taken(theirs.state_dict(), name, tensor) for name, tensor in model.state_dict().items()}
    )
    return model


def taken(theirs: dict[str, Tensor], name: str, tensor: Tensor) -> Tensor:
    """One of our tensors, from ViT's. Biases that it lacks are zero."""
    start = "vit." if "classifier.weight" in theirs else ""
    names = {
        "patches.project": f"{start}embeddings.patch_embeddings.projection",
        "position.table": f"{start}embeddings.position_embeddings",
        "class_token": f"{start}embeddings.cls_token",
        "encoder.norm": f"{start}layernorm",
        "representation.turn": "pooler.dense",
        "head.output": "classifier",
    }
    layers = {
        "attention.function.query": "attention.q_proj",
        "attention.function.source.key": "attention.k_proj",
        "attention.function.source.value": "attention.v_proj",
        "attention.function.output": "attention.o_proj",
        "attention.norm": "layernorm_before",
        "feed_forward.function.widen": "mlp.fc1",
        "feed_forward.function.narrow": "mlp.fc2",
        "feed_forward.norm": "layernorm_after",
    }
    if name in names:
        return theirs[names[name]].reshape(tensor.shape)
    module, _, kind = name.rpartition(".")
    if module.startswith("encoder.blocks."):
        _, _, layer, part = module.split(".", 3)
        there = f"{start}layers.{layer}.{layers[part]}.{kind}"
    else:
        there = f"{names[module]}.{kind}"
    return theirs[there].reshape(tensor.shape) if there in theirs else torch.zeros_like(tensor)


@all_vits
def test_scores_are_those_of_vit(changes):
    theirs = vit(changes)
    model = ours(theirs)
    given = pixels(3, model.config.channels, *model.config.size)
    with torch.no_grad():
        torch.testing.assert_close(model(given), theirs(given).logits, **CLOSE)


@all_vits
@pytest.mark.parametrize("patches", [(2, 2), (3, 5), (1, 4), (7, 6), (1, 1)], ids=str)
def test_scores_at_another_size_are_those_of_vit(changes, patches):
    theirs = vit(changes)
    model = ours(theirs)
    size = [count * model.config.patch for count in patches]
    given = pixels(2, model.config.channels, *size)
    with torch.no_grad():
        torch.testing.assert_close(model(given), theirs(given, interpolate_pos_encoding=True).logits, **CLOSE)


def test_vectors_and_representation_are_those_of_vit():
    theirs = vit({"pooler_output_size": 9}, "ViTModel")
    model = ours(theirs, classes=0, representation=9)
    given = pixels(2, 3, 8, 8)
    with torch.no_grad():
        wanted = theirs(given)
        torch.testing.assert_close(model.encode(given), wanted.last_hidden_state, **CLOSE)
        torch.testing.assert_close(model(given), wanted.pooler_output, **CLOSE)


def test_vit_base_has_as_many_parameters_as_it_is_known_to_have():
    """86,567,656 for ViT-B/16 at 224 pixels and 1,000 classes, as in transformers and timm."""
    parts = {"attention": HeadsConfig(heads=12), "feed_forward": FeedForwardConfig(hidden=3072)}
    config = VisionTransformerConfig(width=768, encoder=StackConfig(layers=12, **parts))
    with torch.device("meta"):
        assert count_parameters(config.build()) == 86_567_656


# Patches


@pytest.mark.parametrize(("patch", "channels", "size"), [(2, 3, (4, 6)), (4, 1, (4, 4)), (1, 2, (3, 2))], ids=str)
def test_patches_are_a_convolution_that_moves_by_whole_patches(patch, channels, size):
    part = Patches(patch, channels, 5).double()
    convolution = nn.Conv2d(channels, 5, patch, stride=patch).double()
    with torch.no_grad():
        part.project.weight.copy_(convolution.weight.view(5, -1))
        part.project.bias.copy_(convolution.bias)
    given = pixels(2, channels, *size).double()
    torch.testing.assert_close(part(given), convolution(given).permute(0, 2, 3, 1), **EXACT)
    torch.testing.assert_close(part.project.weight.view(5, channels, patch, patch), convolution.weight)


def test_pixels_may_lie_in_memory_in_any_order():
    model = build(vision())
    given = pixels(2, 2, 6, 4).double()
    other = given.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not other.is_contiguous()
    assert torch.equal(model(other), model(given))


# Positions


def test_at_the_trained_size_learned_positions_are_untouched():
    grid = LearnedGrid((2, 3), 4, class_token=True)
    assert torch.equal(grid(2, 3), grid.table[1:].view(2, 3, 4))
    assert torch.equal(grid.placed(torch.zeros(4)), grid.table[0])
    alone = LearnedGrid((2, 3), 4, class_token=False)
    assert torch.equal(alone(2, 3), alone.table.view(2, 3, 4))


def test_a_picture_of_the_same_area_but_another_shape_gets_positions_of_its_own():
    grid = LearnedGrid((2, 6), 4, class_token=False)
    turned = grid(6, 2)
    assert turned.shape == (6, 2, 4)
    assert not torch.allclose(turned.flatten(0, 1), grid.table)


def test_interpolated_positions_of_equal_vectors_are_the_same_vectors():
    grid = LearnedGrid((3, 3), 4, class_token=True).double()
    with torch.no_grad():
        grid.table[1:] = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(grid(5, 2), grid.table[1].expand(5, 2, 4), **EXACT)


def test_sinusoidal_codes_are_the_row_s_beside_the_column_s():
    codes = SinusoidalGrid(8, 100.0)(3, 5)
    side = Sinusoidal(4, 100.0)
    for row in range(3):
        for column in range(5):
            wanted = side.encode(torch.tensor([row, column])).flatten()
            torch.testing.assert_close(codes[row, column], wanted)
    assert codes.flatten(0, 1).unique(dim=0).shape[0] == 15


# What must not matter


@pytest.mark.parametrize("name", READERS["vision"])
def test_company_does_not_matter(name):
    config = READERS["vision"][name]
    model = build(config)
    given = pixels(3, config.channels, *config.size).double()
    with torch.no_grad():
        together = model(given)
        for row in range(3):
            torch.testing.assert_close(model(given[row : row + 1])[0], together[row], **EXACT)


@pytest.mark.parametrize("name", READERS["vision"])
def test_every_multiple_of_the_patch_can_be_read(name):
    config = READERS["vision"][name]
    model = build(config)
    others = config.registers + (config.pooling == "class")
    for rows, columns in ((1, 1), (2, 5), (4, 3)):
        given = pixels(2, config.channels, rows * config.patch, columns * config.patch).double()
        assert model.encode(given).shape == (2, others + rows * columns, config.width)
        scores = model(given)
        assert scores.shape == (2, len(config.labels) or config.width)
        assert scores.isfinite().all()


def test_without_positions_patches_are_a_set():
    model = build(vision())
    with torch.no_grad():
        model.position.table[1:] = 0
    given = pixels(1, 2, 6, 6).double()
    patches = given.unfold(2, 2, 2).unfold(3, 2, 2)  # (1, channels, 3, 3, 2, 2)
    turned = patches.flip(2).permute(0, 1, 2, 4, 3, 5).reshape(1, 2, 6, 6)
    torch.testing.assert_close(model(turned), model(given), **EXACT)


def test_registers_belong_to_no_place_and_are_left_out_of_the_mean():
    model = build(vision(pooling="mean", registers=2, classes=0))
    given = pixels(2, 2, 6, 6).double()
    vectors = model.encode(given)
    assert vectors.shape == (2, 2 + 9, model.config.width)
    torch.testing.assert_close(model(given), vectors[:, 2:].mean(dim=1), **EXACT)
    assert model.class_token is None
    assert model.position.table.shape == (9, model.config.width)


@pytest.mark.parametrize("name", READERS["vision"])
def test_the_config_knows_how_many_tokens_a_picture_has(name):
    config = READERS["vision"][name]
    assert build(config).encode(pixels(1, config.channels, *config.size).double()).shape[1] == config.tokens


def test_the_class_token_stands_for_the_picture():
    model = build(vision(registers=1, classes=0))
    given = pixels(2, 2, 6, 6).double()
    torch.testing.assert_close(model(given), model.encode(given)[:, 0], **EXACT)


def test_whoever_watches_sees_every_layer_s_weights():
    model = build(vision(registers=1))
    given = pixels(2, 2, 4, 6).double()
    seen: list[Tensor] = []
    watched = model(given, watch=lambda _, weights: seen.append(weights))
    assert [weights.shape for weights in seen] == [(2, 4, 8, 8)] * 2
    for weights in seen:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    torch.testing.assert_close(watched, model(given), **EXACT)


# Pixels


def test_pixels_are_normalised_as_the_config_says():
    config = PixelsConfig(mean=(0.1, 0.2), std=(0.5, 0.25))
    bytes_ = torch.tensor([[[[0, 255]], [[51, 102]]]], dtype=torch.uint8)
    wanted = torch.tensor([[[[-0.2, 1.8]], [[0.0, 0.8]]]])
    torch.testing.assert_close(config.apply(bytes_), wanted)
    torch.testing.assert_close(config.apply(bytes_.float() / 255), wanted)
    torch.testing.assert_close(PixelsConfig().apply(bytes_), bytes_ / 127.5 - 1)


@pytest.mark.parametrize("numbers", [(0.3,), (0.3, 0.6)], ids=str)
def test_normalising_copies_nothing_from_the_host(numbers):
    """Else no pass over pictures could be recorded as a CUDA graph."""
    config = PixelsConfig(mean=numbers, std=numbers)
    given = pixels(2, 2, 4, 4)
    with as_if_recorded():
        made = config.apply(given)
    wanted = torch.tensor(numbers)[:, None, None]
    torch.testing.assert_close(made, (given - wanted) / wanted)
    assert made.dtype == torch.float32


def test_how_pixels_are_normalised_survives_a_file():
    config = vision(image=(4, 6), classes=LABELS, pixels=PixelsConfig(mean=(0.1, 0.2), std=(0.3,)))
    read = read_any_config(json.loads(json.dumps(config.plain())))
    assert read == config
    assert read.size == (4, 6)
    assert read.labels == LABELS


def test_a_loaded_model_takes_pixels_and_nothing_else(tmp_path):
    model = build(vision(), torch.float32)
    save(model, tmp_path / "run")
    loaded = regard.load(tmp_path / "run")
    given = pixels(1, 2, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(loaded.logits(given), model(given))
    for wrong, named in (((given, given), {}), (([[1]],), {}), ((given,), {"lengths": [1]})):
        with pytest.raises(UserError, match=r"takes logits\(pixels\)"):
            loaded.logits(*wrong, **named)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image": 7}, "image: patches of 2 pixels do not fill a picture of 7 × 7"),
        ({"image": (4, 5)}, "image: patches of 2 pixels do not fill a picture of 4 × 5"),
        ({"image": 0}, "image"),
        ({"image": (4, 4, 4)}, "image"),
        ({"encoder": stack(heads=3)}, r"encoder\.attention\.heads: 3 heads do not divide the width 16"),
        ({"classes": ("cat", "dog", "cat")}, "classes: 'cat' comes twice"),
        ({"classes": -1}, "classes"),
        (
            {"width": 15, "encoder": stack(heads=3), "position": {"kind": "sinusoidal"}},
            r"position\.kind: .*odd width 15",
        ),
        ({"pixels": {"mean": (0.1, 0.2, 0.3)}}, r"pixels\.mean: found 3 numbers for 2 channels"),
        ({"pixels": {"std": (0.0,)}}, r"pixels\.std"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        vision(**settings)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(1, 2, 5, 6), "A picture of 5 × 6 pixels does not divide into patches of 2; resize"),
        (torch.zeros(1, 2, 0, 6), "A picture of 0 × 6 pixels"),
        (torch.zeros(1, 3, 6, 6), r"shape \(batch, 2, height, width\); found \(1, 3, 6, 6\)"),
        (torch.zeros(2, 6, 6), r"found \(2, 6, 6\)"),
        (torch.zeros(1, 2, 6, 6, dtype=torch.uint8), r"floating-point .* of torch\.uint8"),
    ],
    ids=str,
)
def test_pixels_that_cannot_be_read_are_refused_with_a_sentence(given, message):
    with pytest.raises(UserError, match=message):
        build(vision())(given)


# Training


def slopes(model: nn.Module, forward: Any, given: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    if isinstance(forward, Lowered):
        forward.refresh()
    made = forward(given)
    torch.manual_seed(1)
    (made * torch.randn(made.shape)).sum().backward()
    return made.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def calm(values: Any) -> Any:
    """Settings without dropout."""
    if isinstance(values, dict):
        return {key: 0.0 if key == "dropout" else calm(value) for key, value in values.items()}
    return values


def check_fast(config: VisionTransformerConfig, **more: Any) -> None:
    config = VisionTransformerConfig.read(calm(config.plain()))
    model = build(config, torch.float32).train()
    twin = for_training(model, **more)
    assert twin is not model
    for size in (config.size, (config.patch, 3 * config.patch)):
        given = pixels(2, config.channels, *size)
        wanted, plain = slopes(model, model, given)
        found, fast = slopes(model, twin, given)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert plain.keys() == fast.keys() == dict(model.named_parameters()).keys()
        for name, slope in plain.items():
            torch.testing.assert_close(fast[name], slope, rtol=1e-4, atol=1e-4 * max(1.0, float(slope.abs().max())))


FAST = {name: config for name, config in READERS["vision"].items() if config.encoder.order != "none"}


@pytest.mark.parametrize("name", FAST)
def test_the_fast_form_for_a_gpu_gives_the_same(name, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.fast.triton_switch.INTERPRETED", True)
    check_fast(FAST[name])
    assert isinstance(for_training(build(FAST[name], torch.float32)).encoder, FusedStack)


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")
@pytest.mark.parametrize("name", FAST)
def test_the_fast_form_for_a_cpu_gives_the_same(name):
    check_fast(FAST[name])


@pytest.mark.parametrize("name", READERS["vision"])
def test_recomputing_gives_the_same(name):
    check_fast(READERS["vision"][name], recompute=True)


@pytest.mark.parametrize("name", READERS["vision"])
def test_a_training_step_can_be_taken_in_bf16(name):
    config = READERS["vision"][name]
    model = build(config, torch.float32)
    made, found = slopes(model, in_precision(model, "bf16"), pixels(2, config.channels, *config.size))
    assert made.dtype == torch.bfloat16
    assert all(slope.dtype == torch.float32 and slope.isfinite().all() for slope in found.values())


def test_it_learns_which_corner_is_bright():
    torch.manual_seed(0)
    config = vision(classes=4, image=4, channels=1, encoder=stack(dropout=0.0), dropout=0.0)
    model = config.build()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(100):
        corner = torch.randint(4, (32,))
        bright = functional.one_hot(corner, 4).view(32, 1, 2, 2).float()
        pictures = bright.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3) + 0.1 * torch.randn(32, 1, 4, 4)
        loss = functional.cross_entropy(model(pictures), corner)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1
