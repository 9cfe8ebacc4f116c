"""Where the tensors of DeepSeek-V2 and -V3 go: both have the same ones under the same names.

Hugging Face interleaves the features that RoPE rotates; ours are in halves (attention/latent.py). And each of its
experts has tensors of its own, where ours are stacked. Files in halves (`rope_interleave`), or with stacked experts as
transformers keeps them in memory, are converted to the usual form first (`normalize_weights`).

DeepSeek's own files may hold layers after the last that predict further tokens (MTP). Those are left out, as in
transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import LatentAttentionConfig
from regard.interop.huggingface.hf_config import HFConfig
from regard.interop.huggingface.mapping import Rule, Transform, join_rules, module_rules
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, LanguageModelConfig, MixtureOfExpertsConfig

EMBEDDING, LM_HEAD = "embed_tokens.weight", "lm_head.weight"
_HF_LAYER, _LAYER = "layers.{decoder}", "decoder.layers.{decoder}"
_ATTENTION, _FEED_FORWARD = f"{_LAYER}.self_attn", f"{_LAYER}.feed_forward"
_HF_ATTENTION, _HF_FEED_FORWARD = f"{_HF_LAYER}.self_attn", f"{_HF_LAYER}.mlp"
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def rules(config: AnyModelConfig) -> list[Rule]:
    """Where every tensor goes, layer by layer."""
    assert isinstance(config, LanguageModelConfig)
    assert isinstance(config.decoder.attention, LatentAttentionConfig)
    all_rules = [Rule(EMBEDDING, ("embed_tokens.weight",)), Rule(LM_HEAD, ("lm_head.weight",))]
    attention, dense = (
        _attention_rules(config.decoder.attention, config.width),
        _dense_rules(_HF_FEED_FORWARD, _FEED_FORWARD),
    )
    for layer, each in enumerate(config.decoder.feed_forwards):
        feed_forward = _expert_rules(each, config.width) if isinstance(each, MixtureOfExpertsConfig) else dense
        all_rules += [rule.at("decoder", layer) for rule in (*attention, *feed_forward)]
    return [*all_rules, Rule("norm.weight", ("decoder.final_norm.weight",))]


def normalize_weights(hf_config: HFConfig, weights: Weights, config: LanguageModelConfig) -> None:
    """Convert a file's tensors to the form that the rules know."""
    layers, attention = config.decoder.layers, config.decoder.attention
    assert isinstance(attention, LatentAttentionConfig)
    beyond = range(layers, layers + hf_config.integer("num_nextn_predict_layers", 0, minimum=0))
    weights.drop([rf"layers\.{layer}\..*" for layer in beyond])
    halves = "rope_interleave" in hf_config.values and not hf_config.flag("rope_interleave", False)
    for layer, each in enumerate(config.decoder.feed_forwards):
        if isinstance(each, MixtureOfExpertsConfig):
            _unstack_experts(weights, f"layers.{layer}.mlp", each)
        if halves:
            _interleave_rope(weights, f"layers.{layer}.self_attn", attention, config.width)


def _attention_rules(config: LatentAttentionConfig, width: int) -> tuple[Rule, ...]:
    heads, nope = config.heads, config.sizes(width).head_dim - config.rope_head_dim
    rope, latent = DeinterleaveRope(heads, nope), LatentAndRopeKey(config.kv_latent)
    down_projections = (f"{_ATTENTION}.kv_down_proj", f"{_ATTENTION}.k_rope_proj")
    up_projections = tuple(f"{_ATTENTION}.{name}.weight" for name in ("k_up_proj", "v_up_proj"))
    query = ("q_proj", "q_proj") if config.query_latent is None else ("q_b_proj", "q_proj.up_proj")
    return join_rules(
        (
            Rule(f"{_HF_LAYER}.input_layernorm.weight", (f"{_LAYER}.self_attn_norm.weight",)),
            Rule(f"{_HF_LAYER}.post_attention_layernorm.weight", (f"{_LAYER}.feed_forward_norm.weight",)),
            Rule(f"{_HF_ATTENTION}.{query[0]}.weight", (f"{_ATTENTION}.{query[1]}.weight",), rope),
            Rule(f"{_HF_ATTENTION}.q_a_layernorm.weight", (f"{_ATTENTION}.q_proj.norm.weight",)),
            Rule(f"{_HF_ATTENTION}.kv_a_layernorm.weight", (f"{_ATTENTION}.kv_norm.weight",)),
            Rule(f"{_HF_ATTENTION}.kv_b_proj.weight", up_projections, SplitHeads(heads, nope)),
            *(
                Rule(
                    f"{_HF_ATTENTION}.kv_a_proj_with_mqa.{kind}",
                    tuple(f"{projection}.{kind}" for projection in down_projections),
                    latent,
                )
                for kind in ("weight", "bias")
            ),
        ),
        module_rules(f"{_HF_ATTENTION}.q_a_proj", f"{_ATTENTION}.q_proj.down_proj"),
        module_rules(f"{_HF_ATTENTION}.o_proj", f"{_ATTENTION}.o_proj"),
    )


def _dense_rules(hf: str, ours: str) -> tuple[Rule, ...]:
    return join_rules(*(module_rules(f"{hf}.{name}", f"{ours}.{name}") for name in _PROJECTIONS))


def _expert_rules(config: MixtureOfExpertsConfig, width: int) -> tuple[Rule, ...]:
    each = tuple(
        Rule(
            f"{_HF_FEED_FORWARD}.experts.{{each}}.{name}.weight",
            (f"{_FEED_FORWARD}.experts.{name}.weight",),
            each=config.experts,
        )
        for name in _PROJECTIONS
    )
    router = (
        Rule(f"{_HF_FEED_FORWARD}.gate.weight", (f"{_FEED_FORWARD}.router.weight",)),
        Rule(f"{_HF_FEED_FORWARD}.gate.e_score_correction_bias", (f"{_FEED_FORWARD}.expert_bias",), keep_dtype=True),
    )
    if config.shared_experts:
        return join_rules(
            each, router, _dense_rules(f"{_HF_FEED_FORWARD}.shared_experts", f"{_FEED_FORWARD}.shared_experts")
        )
    none = {"gate_proj": (0, width), "up_proj": (0, width), "down_proj": (width, 0)}
    empty = (
        Rule(f"{_HF_FEED_FORWARD}.shared_experts.{name}.weight", (), EmptyTensor(shape)) for name, shape in none.items()
    )
    return join_rules(each, router, tuple(empty))


def _unstack_experts(weights: Weights, prefix: str, config: MixtureOfExpertsConfig) -> None:
    """Unstack experts, and remove shared experts without elements."""
    gate_up, down = weights.get(f"{prefix}.experts.gate_up_proj"), weights.get(f"{prefix}.experts.down_proj")
    if gate_up is not None and down is not None:
        for number, (pair, expert_down) in enumerate(zip(gate_up, down, strict=False)):
            for name, tensor in zip(_PROJECTIONS, (*pair.chunk(2), expert_down), strict=True):
                weights.put(f"{prefix}.experts.{number}.{name}.weight", tensor)
        weights.put(f"{prefix}.experts.gate_up_proj", None)
        weights.put(f"{prefix}.experts.down_proj", None)
    for name in _PROJECTIONS if not config.shared_experts else ():
        empty = weights.get(f"{prefix}.shared_experts.{name}.weight")
        if empty is not None and not empty.numel():
            weights.put(f"{prefix}.shared_experts.{name}.weight", None)


def _interleave_rope(weights: Weights, prefix: str, config: LatentAttentionConfig, width: int) -> None:
    """Interleave RoPE features that are stored in halves."""
    query, latent = (
        DeinterleaveRope(config.heads, config.sizes(width).head_dim - config.rope_head_dim),
        config.kv_latent,
    )
    for name, transform in (
        ("q_proj.weight", query),
        ("q_b_proj.weight", query),
        ("kv_a_proj_with_mqa.weight", DeinterleaveRope(1, latent)),
        ("kv_a_proj_with_mqa.bias", DeinterleaveRope(1, latent)),
    ):
        tensor = weights.get(f"{prefix}.{name}")
        if tensor is not None:
            weights.put(f"{prefix}.{name}", transform.to_hf([tensor]))


@dataclass(frozen=True)
class DeinterleaveRope(Transform):
    """Rows of heads: `nope` of them, then those that RoPE rotates, interleaved in Hugging Face and in halves here."""

    heads: int
    nope: int

    def from_hf(self, hf: Tensor) -> tuple[Tensor, ...]:
        rows = hf.unflatten(0, (self.heads, -1))
        nope, rope = rows[:, : self.nope], rows[:, self.nope :]
        return (torch.cat((nope, rope[:, 0::2], rope[:, 1::2]), dim=1).flatten(0, 1),)

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        rows = ours[0].unflatten(0, (self.heads, -1))
        nope, rope = rows[:, : self.nope], rows[:, self.nope :].unflatten(1, (2, -1))
        return torch.cat((nope, rope.transpose(1, 2).flatten(1, 2)), dim=1).flatten(0, 1)


@dataclass(frozen=True)
class SplitHeads(Transform):
    """Rows of heads; the first `first` of each belong to one tensor of ours, the rest to another."""

    heads: int
    first: int

    def from_hf(self, hf: Tensor) -> tuple[Tensor, ...]:
        rows = hf.unflatten(0, (self.heads, -1))
        # Clones: safetensors does not save several names that share storage.
        return rows[:, : self.first].clone().flatten(0, 1), rows[:, self.first :].clone().flatten(0, 1)

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.cat([rows.unflatten(0, (self.heads, -1)) for rows in ours], dim=1).flatten(0, 1)


@dataclass(frozen=True)
class LatentAndRopeKey(Transform):
    """The rows of the latent, then those of the shared RoPE key, whose features are interleaved."""

    latent: int

    def from_hf(self, hf: Tensor) -> tuple[Tensor, ...]:
        (rows,) = DeinterleaveRope(1, self.latent).from_hf(hf)
        return SplitHeads(1, self.latent).from_hf(rows)

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        return DeinterleaveRope(1, self.latent).to_hf([torch.cat(tuple(ours))])


@dataclass(frozen=True)
class EmptyTensor(Transform):
    """A tensor without elements: a shared expert, if there are none."""

    shape: tuple[int, ...]

    def to_hf(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.empty(self.shape)
