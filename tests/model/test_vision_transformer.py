"""Vision transformers: equal to ViT with ViT's settings, at the training image size and at any other."""

import importlib.util
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard import UserError
from regard.attention import MultiHeadConfig, Sinusoidal
from regard.config import ConfigError
from regard.fused.cuda_stack import CudaStack
from regard.fused.training import fuse_for_training
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
from regard.model.vision_transformer import LearnedGrid, PatchEmbedding, SinusoidalGrid
from regard.run import save_model
from regard.train.mixed_precision import MixedPrecisionModel
from regard.train.step import forward_in_precision
from tests.model.small_models import ENCODER_SAMPLES, EXACT, LABELS, build, pixels, stack, vision
from tests.task.small_images import no_host_sync

CLOSE = {"rtol": 1e-5, "atol": 1e-5}

# Against ViT

VITS: dict[str, dict[str, Any]] = {
    "default": {},
    "no qkv biases": {"qkv_bias": False, "hidden_act": "gelu_new", "num_channels": 1},
    "one patch": {"patch_size": 8, "num_attention_heads": 1, "hidden_act": "relu", "num_hidden_layers": 1},
    "many patches": {"image_size": 12, "patch_size": 2, "layer_norm_eps": 1e-3, "num_channels": 4, "hidden_size": 24},
}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "relu": "relu"}
all_vits = pytest.mark.parametrize("changes", VITS.values(), ids=VITS.keys())


def vit(changes: dict[str, Any], architecture: str = "ViTForImageClassification") -> Any:
    """A ViT from transformers, with every parameter moved away from its initial value."""
    transformers = pytest.importorskip("transformers")
    settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    settings |= {"image_size": 8, "patch_size": 4, "num_labels": len(LABELS)}
    torch.manual_seed(7)
    theirs = getattr(transformers, architecture)(transformers.ViTConfig(**(settings | changes))).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return theirs


def from_vit(theirs: Any, **more: Any) -> VisionTransformer:
    """The equivalent vision transformer, with ViT's weights."""
    vit_config = theirs.config
    config = VisionTransformerConfig(
        image_size=vit_config.image_size,
        patch_size=vit_config.patch_size,
        channels=vit_config.num_channels,
        width=vit_config.hidden_size,
        encoder=StackConfig(
            layers=vit_config.num_hidden_layers,
            attention=MultiHeadConfig(heads=vit_config.num_attention_heads),
            feed_forward=FeedForwardConfig(
                hidden=vit_config.intermediate_size, activation=ACTIVATIONS[vit_config.hidden_act]
            ),
            norm=NormConfig(eps=vit_config.layer_norm_eps),
        ),
        **{"classes": LABELS, **more},
    )
    model = config.build().eval()
    model.load_state_dict(
        {name: convert(theirs.state_dict(), name, tensor) for name, tensor in model.state_dict().items()}
    )
    return model


def convert(theirs: dict[str, Tensor], name: str, tensor: Tensor) -> Tensor:
    """One of our tensors from ViT's. Biases that ViT lacks are zero."""
    prefix = "vit." if "classifier.weight" in theirs else ""
    names = {
        "patch_embed.proj": f"{prefix}embeddings.patch_embeddings.projection",
        "embed_positions.weight": f"{prefix}embeddings.position_embeddings",
        "cls_token": f"{prefix}embeddings.cls_token",
        "encoder.final_norm": f"{prefix}layernorm",
        "pre_logits.dense": "pooler.dense",
        "head.classifier": "classifier",
    }
    layers = {
        "self_attn.q_proj": "attention.q_proj",
        "self_attn.k_proj": "attention.k_proj",
        "self_attn.v_proj": "attention.v_proj",
        "self_attn.o_proj": "attention.o_proj",
        "self_attn_norm": "layernorm_before",
        "feed_forward.up_proj": "mlp.fc1",
        "feed_forward.down_proj": "mlp.fc2",
        "feed_forward_norm": "layernorm_after",
    }
    if name in names:
        return theirs[names[name]].reshape(tensor.shape)
    module, _, kind = name.rpartition(".")
    if module.startswith("encoder.layers."):
        _, _, layer, sublayer = module.split(".", 3)
        vit_name = f"{prefix}layers.{layer}.{layers[sublayer]}.{kind}"
    else:
        vit_name = f"{names[module]}.{kind}"
    return theirs[vit_name].reshape(tensor.shape) if vit_name in theirs else torch.zeros_like(tensor)


@all_vits
def test_logits_equal_vit(changes):
    theirs = vit(changes)
    model = from_vit(theirs)
    images = pixels(3, model.config.channels, *model.config.size)
    with torch.no_grad():
        torch.testing.assert_close(model(images), theirs(images).logits, **CLOSE)


@all_vits
@pytest.mark.parametrize("patches", [(2, 2), (3, 5), (1, 4), (7, 6), (1, 1)], ids=str)
def test_logits_at_another_image_size_equal_vit(changes, patches):
    theirs = vit(changes)
    model = from_vit(theirs)
    size = [count * model.config.patch_size for count in patches]
    images = pixels(2, model.config.channels, *size)
    with torch.no_grad():
        torch.testing.assert_close(model(images), theirs(images, interpolate_pos_encoding=True).logits, **CLOSE)


def test_hidden_states_and_representation_equal_vit():
    theirs = vit({"pooler_output_size": 9}, "ViTModel")
    model = from_vit(theirs, classes=0, representation_size=9)
    images = pixels(2, 3, 8, 8)
    with torch.no_grad():
        expected = theirs(images)
        torch.testing.assert_close(model.encode(images), expected.last_hidden_state, **CLOSE)
        torch.testing.assert_close(model(images), expected.pooler_output, **CLOSE)


def test_vit_base_has_the_published_number_of_parameters():
    """86,567,656 for ViT-B/16 at 224 pixels and 1,000 classes, as in transformers and timm."""
    parts = {"attention": MultiHeadConfig(heads=12), "feed_forward": FeedForwardConfig(hidden=3072)}
    config = VisionTransformerConfig(width=768, encoder=StackConfig(layers=12, **parts))
    with torch.device("meta"):
        assert count_parameters(config.build()) == 86_567_656


# Patches


@pytest.mark.parametrize(("patch_size", "channels", "size"), [(2, 3, (4, 6)), (4, 1, (4, 4)), (1, 2, (3, 2))], ids=str)
def test_patch_embedding_equals_a_strided_convolution(patch_size, channels, size):
    patch_embedding = PatchEmbedding(patch_size, channels, 5).double()
    convolution = nn.Conv2d(channels, 5, patch_size, stride=patch_size).double()
    with torch.no_grad():
        patch_embedding.proj.weight.copy_(convolution.weight.view(5, -1))
        patch_embedding.proj.bias.copy_(convolution.bias)
    images = pixels(2, channels, *size).double()
    torch.testing.assert_close(patch_embedding(images), convolution(images).permute(0, 2, 3, 1), **EXACT)
    torch.testing.assert_close(
        patch_embedding.proj.weight.view(5, channels, patch_size, patch_size), convolution.weight
    )


def test_pixels_may_be_non_contiguous():
    model = build(vision())
    images = pixels(2, 2, 6, 4).double()
    other = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not other.is_contiguous()
    assert torch.equal(model(other), model(images))


# Positions


def test_learned_positions_are_not_interpolated_at_the_training_size():
    grid = LearnedGrid((2, 3), 4, has_cls=True)
    assert torch.equal(grid(2, 3), grid.weight[1:].view(2, 3, 4))
    assert torch.equal(grid.add_position(torch.zeros(4)), grid.weight[0])
    without_cls = LearnedGrid((2, 3), 4, has_cls=False)
    assert torch.equal(without_cls(2, 3), without_cls.weight.view(2, 3, 4))


def test_learned_positions_of_another_shape_with_the_same_area_are_interpolated():
    grid = LearnedGrid((2, 6), 4, has_cls=False)
    resized = grid(6, 2)
    assert resized.shape == (6, 2, 4)
    assert not torch.allclose(resized.flatten(0, 1), grid.weight)


def test_interpolation_of_equal_positions_changes_nothing():
    grid = LearnedGrid((3, 3), 4, has_cls=True).double()
    with torch.no_grad():
        grid.weight[1:] = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(grid(5, 2), grid.weight[1].expand(5, 2, 4), **EXACT)


def test_sinusoidal_grid_concatenates_row_and_column_encodings():
    encodings = SinusoidalGrid(8, 100.0)(3, 5)
    sinusoidal = Sinusoidal(4, 100.0)
    for row in range(3):
        for column in range(5):
            expected = sinusoidal.encode(torch.tensor([row, column])).flatten()
            torch.testing.assert_close(encodings[row, column], expected)
    assert encodings.flatten(0, 1).unique(dim=0).shape[0] == 15


# Batches, image sizes, registers


@pytest.mark.parametrize("name", ENCODER_SAMPLES["vision"])
def test_images_are_independent_of_the_batch(name):
    config = ENCODER_SAMPLES["vision"][name]
    model = build(config)
    images = pixels(3, config.channels, *config.size).double()
    with torch.no_grad():
        batched = model(images)
        for row in range(3):
            torch.testing.assert_close(model(images[row : row + 1])[0], batched[row], **EXACT)


@pytest.mark.parametrize("name", ENCODER_SAMPLES["vision"])
def test_image_size_can_be_any_multiple_of_the_patch_size(name):
    config = ENCODER_SAMPLES["vision"][name]
    model = build(config)
    extra_tokens = config.registers + (config.pooling == "cls")
    for rows, columns in ((1, 1), (2, 5), (4, 3)):
        images = pixels(2, config.channels, rows * config.patch_size, columns * config.patch_size).double()
        assert model.encode(images).shape == (2, extra_tokens + rows * columns, config.width)
        logits = model(images)
        assert logits.shape == (2, len(config.labels) or config.width)
        assert logits.isfinite().all()


def test_without_positions_the_order_of_patches_does_not_matter():
    model = build(vision())
    with torch.no_grad():
        model.embed_positions.weight[1:] = 0
    images = pixels(1, 2, 6, 6).double()
    patches = images.unfold(2, 2, 2).unfold(3, 2, 2)  # (1, channels, 3, 3, 2, 2)
    permuted = patches.flip(2).permute(0, 1, 2, 4, 3, 5).reshape(1, 2, 6, 6)
    torch.testing.assert_close(model(permuted), model(images), **EXACT)


def test_registers_have_no_position_and_are_not_pooled():
    model = build(vision(pooling="mean", registers=2, classes=0))
    images = pixels(2, 2, 6, 6).double()
    vectors = model.encode(images)
    assert vectors.shape == (2, 2 + 9, model.config.width)
    torch.testing.assert_close(model(images), vectors[:, 2:].mean(dim=1), **EXACT)
    assert model.cls_token is None
    assert model.embed_positions.weight.shape == (9, model.config.width)


@pytest.mark.parametrize("name", ENCODER_SAMPLES["vision"])
def test_sequence_length_counts_all_tokens(name):
    config = ENCODER_SAMPLES["vision"][name]
    assert build(config).encode(pixels(1, config.channels, *config.size).double()).shape[1] == config.sequence_length


def test_cls_token_represents_the_image():
    model = build(vision(registers=1, classes=0))
    images = pixels(2, 2, 6, 6).double()
    torch.testing.assert_close(model(images), model.encode(images)[:, 0], **EXACT)


def test_attention_hook_receives_the_weights_of_every_layer():
    model = build(vision(registers=1))
    images = pixels(2, 2, 4, 6).double()
    received: list[Tensor] = []
    logits = model(images, attention_hook=lambda _, weights: received.append(weights))
    assert [weights.shape for weights in received] == [(2, 4, 8, 8)] * 2
    for weights in received:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    torch.testing.assert_close(logits, model(images), **EXACT)


# Pixels


def test_pixels_are_normalized_by_mean_and_std():
    config = PixelsConfig(mean=(0.1, 0.2), std=(0.5, 0.25))
    bytes_ = torch.tensor([[[[0, 255]], [[51, 102]]]], dtype=torch.uint8)
    expected = torch.tensor([[[[-0.2, 1.8]], [[0.0, 0.8]]]])
    torch.testing.assert_close(config.apply(bytes_), expected)
    torch.testing.assert_close(config.apply(bytes_.float() / 255), expected)
    torch.testing.assert_close(PixelsConfig().apply(bytes_), bytes_ / 127.5 - 1)


@pytest.mark.parametrize("numbers", [(0.3,), (0.3, 0.6)], ids=str)
def test_normalizing_pixels_needs_no_host_sync(numbers):
    """A host sync could not be captured in a CUDA graph."""
    config = PixelsConfig(mean=numbers, std=numbers)
    images = pixels(2, 2, 4, 4)
    with no_host_sync():
        output = config.apply(images)
    expected = torch.tensor(numbers)[:, None, None]
    torch.testing.assert_close(output, (images - expected) / expected)
    assert output.dtype == torch.float32


def test_config_with_pixels_round_trips_through_json():
    config = vision(image_size=(4, 6), classes=LABELS, pixels=PixelsConfig(mean=(0.1, 0.2), std=(0.3,)))
    read = read_any_config(json.loads(json.dumps(config.plain())))
    assert read == config
    assert read.size == (4, 6)
    assert read.labels == LABELS


def test_loaded_model_accepts_only_pixels(tmp_path):
    model = build(vision(), torch.float32)
    save_model(model, tmp_path / "run")
    loaded = regard.load(tmp_path / "run")
    images = pixels(1, 2, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(loaded.logits(images), model(images))
    for wrong, named in (((images, images), {}), (([[1]],), {}), ((images,), {"lengths": [1]})):
        with pytest.raises(UserError, match=r"takes logits\(pixels\)"):
            loaded.logits(*wrong, **named)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 7}, "image_size: patches of 2 pixels do not fill an image of 7 × 7"),
        ({"image_size": (4, 5)}, "image_size: patches of 2 pixels do not fill an image of 4 × 5"),
        ({"image_size": 0}, "image_size"),
        ({"image_size": (4, 4, 4)}, "image_size"),
        ({"encoder": stack(heads=3)}, r"encoder\.attention\.heads: 3 heads do not divide the width 16"),
        ({"classes": ("cat", "dog", "cat")}, "classes: 'cat' comes twice"),
        ({"classes": -1}, "classes"),
        (
            {"width": 15, "encoder": stack(heads=3), "position": {"kind": "sinusoidal"}},
            r"position\.kind: .*even width; width is 15",
        ),
        ({"pixels": {"mean": (0.1, 0.2, 0.3)}}, r"pixels\.mean: found 3 numbers for 2 channels"),
        ({"pixels": {"std": (0.0,)}}, r"pixels\.std"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused_by_key(settings, message):
    with pytest.raises(ConfigError, match=message):
        vision(**settings)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 2, 5, 6), "An image of 5 × 6 pixels does not divide into patches of 2; resize"),
        (torch.zeros(1, 2, 0, 6), "An image of 0 × 6 pixels"),
        (torch.zeros(1, 3, 6, 6), r"shape \(batch, 2, height, width\); found \(1, 3, 6, 6\)"),
        (torch.zeros(2, 6, 6), r"found \(2, 6, 6\)"),
        (torch.zeros(1, 2, 6, 6, dtype=torch.uint8), r"floating-point .* of torch\.uint8"),
    ],
    ids=str,
)
def test_invalid_pixels_are_refused(images, message):
    with pytest.raises(UserError, match=message):
        build(vision())(images)


# Training


def output_and_grads(model: nn.Module, forward: Any, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    if isinstance(forward, MixedPrecisionModel):
        forward.refresh()
    output = forward(images)
    torch.manual_seed(1)
    (output * torch.randn(output.shape)).sum().backward()
    return output.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def zero_dropout(values: Any) -> Any:
    """The settings with every dropout set to zero."""
    if isinstance(values, dict):
        return {key: 0.0 if key == "dropout" else zero_dropout(value) for key, value in values.items()}
    return values


def check_fused(config: VisionTransformerConfig, **more: Any) -> None:
    config = VisionTransformerConfig.read(zero_dropout(config.plain()))
    model = build(config, torch.float32).train()
    fused = fuse_for_training(model, **more)
    assert fused is not model
    for size in (config.size, (config.patch_size, 3 * config.patch_size)):
        images = pixels(2, config.channels, *size)
        expected, expected_grads = output_and_grads(model, model, images)
        actual, grads = output_and_grads(model, fused, images)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        assert expected_grads.keys() == grads.keys() == dict(model.named_parameters()).keys()
        for name, grad in expected_grads.items():
            torch.testing.assert_close(grads[name], grad, rtol=1e-4, atol=1e-4 * max(1.0, float(grad.abs().max())))


FUSIBLE = {name: config for name, config in ENCODER_SAMPLES["vision"].items() if config.encoder.residual}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FUSIBLE)
def test_fused_for_a_gpu_equals_unfused(name, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)
    check_fused(FUSIBLE[name])
    assert isinstance(fuse_for_training(build(FUSIBLE[name], torch.float32)).encoder, CudaStack)


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")
@pytest.mark.parametrize("name", FUSIBLE)
def test_fused_for_a_cpu_equals_unfused(name):
    check_fused(FUSIBLE[name])


@pytest.mark.parametrize("name", ENCODER_SAMPLES["vision"])
def test_activation_checkpointing_changes_nothing(name):
    check_fused(ENCODER_SAMPLES["vision"][name], activation_checkpointing=True)


@pytest.mark.parametrize("name", ENCODER_SAMPLES["vision"])
def test_training_in_bfloat16_has_float32_gradients(name):
    config = ENCODER_SAMPLES["vision"][name]
    model = build(config, torch.float32)
    output, grads = output_and_grads(
        model, forward_in_precision(model, "bfloat16"), pixels(2, config.channels, *config.size)
    )
    assert output.dtype == torch.bfloat16
    assert all(grad.dtype == torch.float32 and grad.isfinite().all() for grad in grads.values())


def test_classifier_learns_which_corner_is_bright():
    torch.manual_seed(0)
    config = vision(classes=4, image_size=4, channels=1, encoder=stack(dropout=0.0), dropout=0.0)
    model = config.build()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(100):
        corner = torch.randint(4, (32,))
        bright = functional.one_hot(corner, 4).view(32, 1, 2, 2).float()
        images = bright.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3) + 0.1 * torch.randn(32, 1, 4, 4)
        loss = functional.cross_entropy(model(images), corner)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
