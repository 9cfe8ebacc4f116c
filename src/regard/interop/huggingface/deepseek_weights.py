"""Where the tensors of DeepSeek-V2 and -V3 go: both have the same ones under the same names.

Turned features are pairs of neighbours there and stand in halves with us (attention/latent.py), and each of their
experts has tensors of its own, where ours are stacked. Files that have halves (`rope_interleave`), or stacked experts
as transformers keeps them in memory, are brought into the usual form before anything else (`settle`).

DeepSeek's own files may hold layers behind the last that predict tokens further ahead. Those are left out, as
transformers does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import LatentConfig
from regard.interop.huggingface.mapping import Change, Rule, part, parts
from regard.interop.huggingface.settings import Settings
from regard.interop.huggingface.weights import Weights
from regard.model import AnyModelConfig, ExpertsConfig, LanguageModelConfig

WORDS, OUTPUT = "embed_tokens.weight", "lm_head.weight"
_THEIRS, _OURS = "layers.{decoder}", "decoder.blocks.{decoder}"
_ATTENTION, _MIDDLE = f"{_OURS}.attention.function", f"{_OURS}.feed_forward.function"
_THEIR_ATTENTION, _THEIR_MIDDLE = f"{_THEIRS}.self_attn", f"{_THEIRS}.mlp"
_PRODUCTS = {"gate_proj": "gate", "up_proj": "widen", "down_proj": "narrow"}


def rules(config: AnyModelConfig) -> list[Rule]:
    """Where every tensor goes, layer by layer."""
    assert isinstance(config, LanguageModelConfig)
    assert isinstance(config.decoder.attention, LatentConfig)
    every = [Rule(WORDS, ("vocabulary.weight",)), Rule(OUTPUT, ("output.weight",))]
    attention, dense = _attention_rules(config.decoder.attention, config.width), _dense_rules(_THEIR_MIDDLE, _MIDDLE)
    for layer, middle in enumerate(config.decoder.feed_forwards):
        inside = _expert_rules(middle, config.width) if isinstance(middle, ExpertsConfig) else dense
        every += [rule.at("decoder", layer) for rule in (*attention, *inside)]
    return [*every, Rule("norm.weight", ("decoder.norm.weight",))]


def settle(settings: Settings, weights: Weights, config: LanguageModelConfig) -> None:
    """Bring a file's tensors into the form that the rules know."""
    layers, attention = config.decoder.layers, config.decoder.attention
    assert isinstance(attention, LatentConfig)
    beyond = range(layers, layers + settings.whole("num_nextn_predict_layers", 0, least=0))
    weights.skip([rf"layers\.{layer}\..*" for layer in beyond])
    halves = "rope_interleave" in settings.values and not settings.flag("rope_interleave", False)
    for layer, middle in enumerate(config.decoder.feed_forwards):
        if isinstance(middle, ExpertsConfig):
            _settle_experts(weights, f"layers.{layer}.mlp", middle)
        if halves:
            _settle_halves(weights, f"layers.{layer}.self_attn", attention, config.width)


def _attention_rules(config: LatentConfig, width: int) -> tuple[Rule, ...]:
    heads, plain = config.heads, config.sizes(width).head_width - config.rotary_width
    turned, kept = Neighbours(heads, plain), LatentBeside(config.latent)
    ways_down = (f"{_ATTENTION}.source.down", f"{_ATTENTION}.source.turned")
    ways_up = tuple(f"{_ATTENTION}.{name}.weight" for name in ("key", "value"))
    made_of = ("q_proj", "query") if config.query_latent is None else ("q_b_proj", "query.up")
    return parts(
        (
            Rule(f"{_THEIRS}.input_layernorm.weight", (f"{_OURS}.attention.norm.weight",)),
            Rule(f"{_THEIRS}.post_attention_layernorm.weight", (f"{_OURS}.feed_forward.norm.weight",)),
            Rule(f"{_THEIR_ATTENTION}.{made_of[0]}.weight", (f"{_ATTENTION}.{made_of[1]}.weight",), turned),
            Rule(f"{_THEIR_ATTENTION}.q_a_layernorm.weight", (f"{_ATTENTION}.query.norm.weight",)),
            Rule(f"{_THEIR_ATTENTION}.kv_a_layernorm.weight", (f"{_ATTENTION}.source.norm.weight",)),
            Rule(f"{_THEIR_ATTENTION}.kv_b_proj.weight", ways_up, Beside(heads, plain)),
            *(
                Rule(f"{_THEIR_ATTENTION}.kv_a_proj_with_mqa.{kind}", tuple(f"{way}.{kind}" for way in ways_down), kept)
                for kind in ("weight", "bias")
            ),
        ),
        part(f"{_THEIR_ATTENTION}.q_a_proj", f"{_ATTENTION}.query.down"),
        part(f"{_THEIR_ATTENTION}.o_proj", f"{_ATTENTION}.output"),
    )


def _dense_rules(theirs: str, ours: str) -> tuple[Rule, ...]:
    return parts(*(part(f"{theirs}.{name}", f"{ours}.{own}") for name, own in _PRODUCTS.items()))


def _expert_rules(config: ExpertsConfig, width: int) -> tuple[Rule, ...]:
    each = tuple(
        Rule(f"{_THEIR_MIDDLE}.experts.{{each}}.{name}.weight", (f"{_MIDDLE}.{own}.weight",), each=config.experts)
        for name, own in _PRODUCTS.items()
    )
    chosen = (
        Rule(f"{_THEIR_MIDDLE}.gate.weight", (f"{_MIDDLE}.router.weight",)),
        Rule(f"{_THEIR_MIDDLE}.gate.e_score_correction_bias", (f"{_MIDDLE}.correction",)),
    )
    if config.shared:
        return parts(each, chosen, _dense_rules(f"{_THEIR_MIDDLE}.shared_experts", f"{_MIDDLE}.shared"))
    none = {"gate_proj": (0, width), "up_proj": (0, width), "down_proj": (width, 0)}
    empty = (Rule(f"{_THEIR_MIDDLE}.shared_experts.{name}.weight", (), Empty(shape)) for name, shape in none.items())
    return parts(each, chosen, tuple(empty))


def _settle_experts(weights: Weights, place: str, config: ExpertsConfig) -> None:
    """Take experts that are stacked apart, and leave out shared ones that have no numbers."""
    both, narrow = weights.get(f"{place}.experts.gate_up_proj"), weights.get(f"{place}.experts.down_proj")
    if both is not None and narrow is not None:
        for number, (pair, down) in enumerate(zip(both, narrow, strict=False)):
            for name, tensor in zip(_PRODUCTS, (*pair.chunk(2), down), strict=True):
                weights.put(f"{place}.experts.{number}.{name}.weight", tensor)
        weights.put(f"{place}.experts.gate_up_proj", None)
        weights.put(f"{place}.experts.down_proj", None)
    for name in _PRODUCTS if not config.shared else ():
        empty = weights.get(f"{place}.shared_experts.{name}.weight")
        if empty is not None and not empty.numel():
            weights.put(f"{place}.shared_experts.{name}.weight", None)


def _settle_halves(weights: Weights, place: str, config: LatentConfig, width: int) -> None:
    """Put features that are turned in halves side by side."""
    query, latent = Neighbours(config.heads, config.sizes(width).head_width - config.rotary_width), config.latent
    for name, change in (
        ("q_proj.weight", query),
        ("q_b_proj.weight", query),
        ("kv_a_proj_with_mqa.weight", Neighbours(1, latent)),
        ("kv_a_proj_with_mqa.bias", Neighbours(1, latent)),
    ):
        tensor = weights.get(f"{place}.{name}")
        if tensor is not None:
            weights.put(f"{place}.{name}", change.send([tensor]))


@dataclass(frozen=True)
class Neighbours(Change):
    """Rows of heads: `plain` ones, then pairs to turn, which stand side by side with them and in halves with us."""

    heads: int
    plain: int

    def bring(self, theirs: Tensor) -> tuple[Tensor, ...]:
        rows = theirs.unflatten(0, (self.heads, -1))
        plain, turned = rows[:, : self.plain], rows[:, self.plain :]
        return (torch.cat((plain, turned[:, 0::2], turned[:, 1::2]), dim=1).flatten(0, 1),)

    def send(self, ours: Sequence[Tensor]) -> Tensor:
        rows = ours[0].unflatten(0, (self.heads, -1))
        plain, turned = rows[:, : self.plain], rows[:, self.plain :].unflatten(1, (2, -1))
        return torch.cat((plain, turned.transpose(1, 2).flatten(1, 2)), dim=1).flatten(0, 1)


@dataclass(frozen=True)
class Beside(Change):
    """Rows of heads, of which each has `first` for one tensor of ours and then some for another."""

    heads: int
    first: int

    def bring(self, theirs: Tensor) -> tuple[Tensor, ...]:
        rows = theirs.unflatten(0, (self.heads, -1))
        # Copies: parts of one memory cannot be saved under several names.
        return rows[:, : self.first].clone().flatten(0, 1), rows[:, self.first :].clone().flatten(0, 1)

    def send(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.cat([rows.unflatten(0, (self.heads, -1)) for rows in ours], dim=1).flatten(0, 1)


@dataclass(frozen=True)
class LatentBeside(Change):
    """The rows that make a latent, then those that make the key whose features are turned in pairs."""

    latent: int

    def bring(self, theirs: Tensor) -> tuple[Tensor, ...]:
        (rows,) = Neighbours(1, self.latent).bring(theirs)
        return Beside(1, self.latent).bring(rows)

    def send(self, ours: Sequence[Tensor]) -> Tensor:
        return Neighbours(1, self.latent).send([torch.cat(tuple(ours))])


@dataclass(frozen=True)
class Empty(Change):
    """A tensor without numbers: of shared experts, where there are none."""

    shape: tuple[int, ...]

    def send(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.empty(self.shape)
