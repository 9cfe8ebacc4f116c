"""ViT (`ViTModel`, `ViTForImageClassification`): image patches, a class token before them, a pre-norm encoder.

Its tensors have two sets of names; the rules use the older one, which every version of transformers reads.
preprocessor_config.json says how images are preprocessed (`image_processor.py`).
"""

from functools import partial
from pathlib import Path

import torch

from regard.attention import MultiHeadConfig
from regard.errors import UserError
from regard.interop.huggingface.architecture import ACTIVATIONS, Architecture, labels
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.image_processor import read_image_processor
from regard.interop.huggingface.mapping import ConvPatches, Rule, Unsqueeze, expand_layers, join_rules, module_rules
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, FeedForwardConfig, NormConfig, StackConfig, VisionTransformerConfig

_HF_LAYER, _LAYER = "encoder.layer.{encoder}", "encoder.layers.{encoder}"
_ATTENTION, _FEED_FORWARD = f"{_LAYER}.self_attn", f"{_LAYER}.feed_forward"
_PROJECTIONS = ("query", "key", "value")
_PATCHES = "embeddings.patch_embeddings.projection"

RULES = join_rules(
    (
        Rule("embeddings.cls_token", ("cls_token",), Unsqueeze(2)),
        Rule("embeddings.position_embeddings", ("embed_positions.weight",), Unsqueeze()),
        Rule(f"{_PATCHES}.bias", ("patch_embed.proj.bias",)),
    ),
    module_rules(f"{_HF_LAYER}.layernorm_before", f"{_LAYER}.self_attn_norm"),
    module_rules(f"{_HF_LAYER}.attention.attention.query", f"{_ATTENTION}.q_proj"),
    module_rules(f"{_HF_LAYER}.attention.attention.key", f"{_ATTENTION}.k_proj"),
    module_rules(f"{_HF_LAYER}.attention.attention.value", f"{_ATTENTION}.v_proj"),
    module_rules(f"{_HF_LAYER}.attention.output.dense", f"{_ATTENTION}.o_proj"),
    module_rules(f"{_HF_LAYER}.layernorm_after", f"{_LAYER}.feed_forward_norm"),
    module_rules(f"{_HF_LAYER}.intermediate.dense", f"{_FEED_FORWARD}.up_proj"),
    module_rules(f"{_HF_LAYER}.output.dense", f"{_FEED_FORWARD}.down_proj"),
    module_rules("layernorm", "encoder.final_norm"),
    module_rules("pooler.dense", "pre_logits.dense"),
    module_rules("classifier", "head.classifier"),
)


def qkv_biases(layers: int) -> list[str]:
    """The names of the biases that a false `qkv_bias` leaves out."""
    names = (f"{_HF_LAYER}.attention.attention.{name}.bias" for name in _PROJECTIONS)
    return [name.replace("{encoder}", str(layer)) for name in names for layer in range(layers)]


def _read(has_head: bool, hf_config: HFConfig, weights: Weights) -> VisionTransformerConfig:
    hf_config.require("pooler_act", "tanh", "its pooler has tanh")
    width, layers = hf_config.integer("hidden_size"), hf_config.integer("num_hidden_layers")
    if not hf_config.flag("qkv_bias", True):
        _set_biases(weights, layers)
    dropout = hf_config.number("hidden_dropout_prob", 0.0)
    stack = StackConfig(
        layers=layers,
        attention=MultiHeadConfig(
            heads=hf_config.integer("num_attention_heads"),
            head_dim=hf_config.integer("head_dim") if hf_config.has("head_dim") else None,
            dropout=hf_config.number("attention_probs_dropout_prob", 0.0),
        ),
        feed_forward=FeedForwardConfig(
            hidden=hf_config.integer("intermediate_size"),
            activation=hf_config.choice("hidden_act", ACTIVATIONS, "gelu"),
        ),
        norm=NormConfig(eps=hf_config.number("layer_norm_eps", 1e-12)),
        dropout=dropout,
    )
    height, image_width = hf_config.height_and_width("image_size", 224)
    has_pooler = not has_head and weights.get("pooler.dense.weight") is not None
    return VisionTransformerConfig(
        image_size=height if height == image_width else (height, image_width),
        patch_size=_patch_size(hf_config),
        channels=hf_config.integer("num_channels", 3),
        width=width,
        encoder=stack,
        dropout=dropout,
        representation_size=hf_config.integer("pooler_output_size", width) if has_pooler else None,
        classes=_classes(hf_config) if has_head else 0,
        pixels=read_image_processor(_preprocessor(hf_config)).pixels,
    )


def _preprocessor(hf_config: HFConfig) -> HFConfig | None:
    """The preprocessor config beside config.json, with its file name in errors."""
    table = hf_config.table("preprocessor")
    location = str(Path(hf_config.location).with_name("preprocessor_config.json"))
    return None if table is None else HFConfig(table.values, location)


def _classes(hf_config: HFConfig) -> int | tuple[str, ...]:
    return labels(hf_config) if hf_config.has("id2label") else hf_config.integer("num_labels", 2)


def _patch_size(hf_config: HFConfig) -> int:
    height, image_width = hf_config.height_and_width("patch_size", 16)
    if height != image_width:
        raise UserError(
            f"{hf_config.location}: patch_size is {[height, image_width]}, which regard cannot import (its patches are "
            "squares); only equal sides can be."
        )
    return height


def _set_biases(weights: Weights, layers: int) -> None:
    """Set missing biases of queries, keys and values to zero: the output projection has one in any case."""
    for name in qkv_biases(layers):
        weight = weights.tensor(f"{name.removesuffix('bias')}weight")
        weights.put(name, torch.zeros(weight.shape[:1], dtype=weight.dtype))


def _rules(config: AnyModelConfig) -> list[Rule]:
    assert isinstance(config, VisionTransformerConfig)
    patches = ConvPatches(config.channels, config.patch_size)
    return expand_layers((*RULES, Rule(f"{_PATCHES}.weight", ("patch_embed.proj.weight",), patches)), config)


def _architecture(architecture: str, has_head: bool) -> Architecture:
    return Architecture(
        name="ViT",
        model_type="vit",
        class_name=architecture,
        base_class=None if has_head else architecture,
        prefix="vit.",
        read=partial(_read, has_head),
        rules=_rules,
        ignored_tensors=(r"embeddings\.mask_token", *((r"pooler\..*",) if has_head else ())),
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


VIT = _architecture("ViTModel", has_head=False)
VIT_CLASSIFICATION = _architecture("ViTForImageClassification", has_head=True)
