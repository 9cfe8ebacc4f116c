"""ViT (`ViTModel`, `ViTForImageClassification`): patches of a picture, a class token before them, a pre-norm encoder.

Two spellings of its tensors' names are about; the rules have the older one, which every version of transformers reads.
How pictures are prepared stands in preprocessor_config.json (`pictures.py`).
"""

from functools import partial
from pathlib import Path

import torch

from regard.attention import HeadsConfig
from regard.errors import UserError
from regard.interop.huggingface.family import ACTIVATIONS, Family, labels
from regard.interop.huggingface.mapping import Row, Rule, Squares, for_layers, part, parts
from regard.interop.huggingface.pictures import read_preparation
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import Weights
from regard.model import (
    AnyModelConfig,
    FeedForwardConfig,
    NormConfig,
    StackConfig,
    VisionTransformerConfig,
)

_THEIRS, _OURS = "encoder.layer.{encoder}", "encoder.blocks.{encoder}"
_ATTENTION, _WIDEN = f"{_OURS}.attention.function", f"{_OURS}.feed_forward.function"
_PROJECTIONS = ("query", "key", "value")
_PATCHES = "embeddings.patch_embeddings.projection"

RULES = parts(
    (
        Rule("embeddings.cls_token", ("class_token",), Row(2)),
        Rule("embeddings.position_embeddings", ("position.table",), Row()),
        Rule(f"{_PATCHES}.bias", ("patches.project.bias",)),
    ),
    part(f"{_THEIRS}.layernorm_before", f"{_OURS}.attention.norm"),
    part(f"{_THEIRS}.attention.attention.query", f"{_ATTENTION}.query"),
    part(f"{_THEIRS}.attention.attention.key", f"{_ATTENTION}.source.key"),
    part(f"{_THEIRS}.attention.attention.value", f"{_ATTENTION}.source.value"),
    part(f"{_THEIRS}.attention.output.dense", f"{_ATTENTION}.output"),
    part(f"{_THEIRS}.layernorm_after", f"{_OURS}.feed_forward.norm"),
    part(f"{_THEIRS}.intermediate.dense", f"{_WIDEN}.widen"),
    part(f"{_THEIRS}.output.dense", f"{_WIDEN}.narrow"),
    part("layernorm", "encoder.norm"),
    part("pooler.dense", "representation.turn"),
    part("classifier", "head.output"),
)


def biases(layers: int) -> list[str]:
    """The names of what settings with a false `qkv_bias` leave out."""
    names = (f"{_THEIRS}.attention.attention.{name}.bias" for name in _PROJECTIONS)
    return [name.replace("{encoder}", str(layer)) for name in names for layer in range(layers)]


def _read(names_classes: bool, settings: Settings, weights: Weights) -> VisionTransformerConfig:
    settings.must_be("pooler_act", "tanh", "its pooler bends by tanh")
    width, layers = settings.whole("hidden_size"), settings.whole("num_hidden_layers")
    if not settings.flag("qkv_bias", True):
        _set_biases(weights, layers)
    dropout = settings.number("hidden_dropout_prob", 0.0)
    stack = StackConfig(
        layers=layers,
        attention=HeadsConfig(
            heads=settings.whole("num_attention_heads"),
            head_width=settings.whole("head_dim") if settings.has("head_dim") else None,
            dropout=settings.number("attention_probs_dropout_prob", 0.0),
        ),
        feed_forward=FeedForwardConfig(
            hidden=settings.whole("intermediate_size"),
            activation=settings.choice("hidden_act", ACTIVATIONS, "gelu"),
        ),
        norm=NormConfig(epsilon=settings.number("layer_norm_eps", 1e-12)),
        dropout=dropout,
    )
    height, beside = settings.sides("image_size", 224)
    has_pooler = not names_classes and weights.get("pooler.dense.weight") is not None
    return VisionTransformerConfig(
        image=height if height == beside else (height, beside),
        patch=_patch(settings),
        channels=settings.whole("num_channels", 3),
        width=width,
        encoder=stack,
        dropout=dropout,
        representation=settings.whole("pooler_output_size", width) if has_pooler else None,
        classes=_classes(settings) if names_classes else 0,
        pixels=read_preparation(_preprocessor(settings)).pixels,
    )


def _preprocessor(settings: Settings) -> Settings | None:
    """The settings of the file beside config.json, with its name in errors."""
    table = settings.table("preprocessor")
    where = str(Path(settings.where).with_name("preprocessor_config.json"))
    return None if table is None else Settings(table.values, where)


def _classes(settings: Settings) -> int | tuple[str, ...]:
    return labels(settings) if settings.has("id2label") else settings.whole("num_labels", 2)


def _patch(settings: Settings) -> int:
    height, beside = settings.sides("patch_size", 16)
    if height != beside:
        raise UserError(
            f"{settings.where}: patch_size is {[height, beside]}, which regard cannot import (its patches are "
            "squares); only equal sides can be."
        )
    return height


def _set_biases(weights: Weights, layers: int) -> None:
    """Queries, keys and values without a bias have one of zero: the output beside them has one in any case."""
    for name in biases(layers):
        weight = weights.tensor(f"{name.removesuffix('bias')}weight")
        weights.put(name, torch.zeros(weight.shape[:1], dtype=weight.dtype))


def _rules(config: AnyModelConfig) -> list[Rule]:
    assert isinstance(config, VisionTransformerConfig)
    squares = Squares(config.channels, config.patch)
    return for_layers((*RULES, Rule(f"{_PATCHES}.weight", ("patches.project.weight",), squares)), config)


def _family(architecture: str, names_classes: bool) -> Family:
    return Family(
        name="ViT",
        kind="vit",
        architecture=architecture,
        bare=None if names_classes else architecture,
        prefix="vit.",
        read=partial(_read, names_classes),
        rules=_rules,
        harmless=(r"embeddings\.mask_token", *((r"pooler\..*",) if names_classes else ())),
        renames=(
            (r"^layers\.", "encoder.layer."),
            (r"\.attention\.q_proj\.", ".attention.attention.query."),
            (r"\.attention\.k_proj\.", ".attention.attention.key."),
            (r"\.attention\.v_proj\.", ".attention.attention.value."),
            (r"\.attention\.o_proj\.", ".attention.output.dense."),
            (r"\.mlp\.fc1\.", ".intermediate.dense."),
            (r"\.mlp\.fc2\.", ".output.dense."),
        ),
    )


VIT = _family("ViTModel", names_classes=False)
VIT_CLASSIFY = _family("ViTForImageClassification", names_classes=True)
