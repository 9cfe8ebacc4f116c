"""The model diagram: a model as nested boxes, derived from its modules, with every parameter in exactly one box.

Boxes are in order of computation. A parameter that is used twice, such as tied embeddings, counts where it is used
first.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from regard.attention.multi_head import Attention, CrossAttentionBase, SelfAttentionBase
from regard.attention.positions.absolute import Added, Concatenated
from regard.errors import UserError
from regard.look.analysis.attention_maps import AttentionKey, attention_modules
from regard.look.analysis.diagram_box import Box
from regard.look.analysis.sequence_diagram import draw_sequence_model
from regard.look.schema import ModuleBox
from regard.model import (
    CausalSequenceModel,
    ClassificationHeadConfig,
    Encoder,
    EncoderDecoder,
    LanguageModel,
    SequenceToSequence,
    VisionTransformer,
)
from regard.model.autoregressive import AutoregressiveModel
from regard.model.embedding import EmbeddingLayer
from regard.model.mixture_of_experts import MixtureOfExperts
from regard.model.stack import Block, NoResidualBlock, PostNormBlock, Stack, Sublayer


def draw_model(model: nn.Module, name: str = "model") -> ModuleBox:
    """The diagram of a model."""
    if isinstance(model, SequenceToSequence | CausalSequenceModel):
        return draw_sequence_model(model, name)
    if not isinstance(model, EncoderDecoder | LanguageModel | Encoder | VisionTransformer):
        raise UserError(f"There is no diagram for a model of the type {type(model).__name__}.")
    diagram = _Diagram(model)
    description = _MODELS[type(model).__name__]
    root = Box("", name, "model", diagram.model_shape(), description, children=diagram.top_level())
    return root.to_message(set())


class _Diagram:
    """Builds the boxes of one model."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.names = {module: name for name, module in model.named_modules()}
        self.attention_keys: dict[nn.Module, AttentionKey] = {
            module: (attention_type, layer)
            for attention_type, layers in attention_modules(model).items()
            for layer, module in enumerate(layers)
        }
        self.width = int(self.config.width)
        sequence = "patches" if isinstance(model, VisionTransformer) else "tokens"
        self.hidden = f"(batch, {sequence}, {self.width})"
        self.same = f"{self.hidden} → {self.hidden}"

    def model_shape(self) -> str:
        model, config = self.model, self.config
        if isinstance(model, VisionTransformer):
            height, width = config.size
            return f"(batch, {config.channels}, {height}, {width}) → (batch, {len(config.labels) or self.width})"
        outputs = config.vocab_size if isinstance(model, AutoregressiveModel) else _head_width(model)
        return f"(batch, tokens) → {'(batch, ' if _is_classifier(model) else '(batch, tokens, '}{outputs})"

    def top_level(self) -> list[Box]:
        model = self.model
        if isinstance(model, EncoderDecoder):
            source = model.embed_tokens if model.source_embed_tokens is None else model.source_embed_tokens
            return [
                *self.embedding("Source embedding", "source_embedding", [source]),
                self.stack("Encoder", model.encoder, _ENCODER),
                *self.embedding("Target embedding", "embedding", [model.embed_tokens]),
                self.stack("Decoder", model.decoder, _DECODER),
                self.language_model_head(),
            ]
        if isinstance(model, LanguageModel):
            return [
                *self.embedding("Embedding", "embedding", [model.embed_tokens]),
                self.stack("Decoder", model.decoder, _CAUSAL_DECODER),
                self.language_model_head(),
            ]
        if isinstance(model, Encoder):
            embedding = self.embedding("Embedding", "embedding", [model.embed_tokens, model.embed_token_types])
            stack = self.stack("Encoder", model.encoder, _ENCODER)
            return [*embedding, stack, *self.encoder_head([model.pooler, model.head])]
        return [*self.patch_embedding(), self.stack("Encoder", model.encoder, _PATCH_ENCODER), *self.image_head()]

    def embedding(self, label: str, path: str, tables: Sequence[nn.Module | None]) -> list[Box]:
        """The token embedding, the positional encoding that joins it, and the norm of both."""
        layer: EmbeddingLayer = self.model.get_submodule(path)
        position, width = layer.embed_positions, self.config.position.token_width(self.width)
        description = "Each token id is looked up in the embedding table, which gives a vector."
        if layer.scale != 1:
            description += f" It is multiplied by {layer.scale:.4g}, the square root of the width."
        shape = f"(batch, tokens) → (batch, tokens, {width})"
        boxes = [Box(path, label, "input", shape, description, self.parameters(tables))]
        if isinstance(position, Added | Concatenated):
            boxes.append(self.position(position, self.width if width == self.width else self.width - width))
        if not isinstance(layer.norm, nn.Identity):
            boxes.append(self.norm(layer.norm))
        return boxes

    def position(self, position: nn.Module, width: int) -> Box:
        """The positional encoding of every token, which is added to its embedding or concatenated to it."""
        kind = self.config.position.kind
        label, description = _POSITIONS.get(kind, (f"{kind.capitalize()} positions", "An encoding of the position."))
        concatenated = isinstance(position, Concatenated)
        joined = "concatenated to the embedding" if concatenated else "added to the embedding"
        description = f"{description} It is {joined} and tells the model where the token is in the sequence."
        shape, parameters = f"(positions) → (batch, tokens, {width})", self.parameters([position])
        box = Box(self.names[position], label, "position", shape, description, parameters)
        box.position = "concatenated" if concatenated else "added"
        return box

    def patch_embedding(self) -> list[Box]:
        model = self.model
        description = "The image is cut into square patches, and each is projected to a vector."
        parameters = self.parameters([model.patch_embed, model.register_tokens])
        if model.register_tokens is not None:
            description += " Register tokens, which belong to no patch, come before them."
        if model.cls_token is not None:
            parameters.append(("cls_token", model.cls_token))
            description += " A class token, whose vector will represent the image, comes first."
        height, width = self.config.size
        shape = f"(batch, {self.config.channels}, {height}, {width}) → {self.hidden}"
        label, learned = _POSITIONS[self.config.position.kind]
        position = f"{learned} It is added to the patch embedding and tells the model where in the image the patch is."
        return [
            Box("patch_embed", "Patch embedding", "input", shape, description, parameters),
            Box(
                "embed_positions",
                label,
                "position",
                f"(rows, columns) → {self.hidden}",
                position,
                self.parameters([model.embed_positions]),
                position="added",
            ),
        ]

    def language_model_head(self) -> Box:
        model = self.model
        table = model.embed_tokens if model.lm_head is None else model.lm_head
        parameters = self.parameters([table])
        if model.lm_head_bias is not None:
            parameters.append(("lm_head_bias", model.lm_head_bias))
        weights = "the embedding table (tied weights)" if model.lm_head is None else "an output matrix"
        description = f"The hidden state is multiplied by {weights}: one logit per token, which softmax turns into "
        shape = f"{self.hidden} → (batch, tokens, {len(table.weight)})"
        return Box("lm_head", "LM head", "output", shape, f"{description}probabilities.", parameters)

    def encoder_head(self, modules: Iterable[nn.Module | None]) -> list[Box]:
        present = [module for module in modules if module is not None]
        if not present:
            return []
        outputs = "(batch, " if _is_classifier(self.model) else "(batch, tokens, "
        shape = f"{self.hidden} → {outputs}{_head_width(self.model)})"
        description = "The head computes one logit for each label, or for each token of the vocabulary."
        return [Box("head", "Head", "output", shape, description, self.parameters(present))]

    def image_head(self) -> list[Box]:
        present = [module for module in (self.model.pre_logits, self.model.head) if module is not None]
        if not present:
            return []
        shape = f"{self.hidden} → (batch, {len(self.config.labels)})"
        description = "One vector represents the image; the head computes a logit for each class from it."
        return [Box("head", "Classification head", "output", shape, description, self.parameters(present))]

    def stack(self, label: str, stack: Stack, description: str) -> Box:
        path = self.names[stack]
        children = [self.block(index, block) for index, block in enumerate(stack.blocks())]
        if stack.cross_kv is not None:
            shared = "Keys and values of the encoder's output, computed once for all layers."
            parameters = self.parameters([stack.cross_kv])
            children.insert(
                0, Box(f"{path}.cross_kv", "Shared keys and values", "other", self.hidden, shared, parameters)
            )
        if not isinstance(stack.final_norm, nn.Identity):
            children.append(self.norm(stack.final_norm))
        return Box(path, label, "stack", self.same, description, children=children)

    def block(self, index: int, block: Block) -> Box:
        children = [self.sublayer(block, sublayer) for sublayer in block.sublayers]
        description = "One layer: its sublayers run in order, and each adds to the residual stream."
        return Box(self.names[block], f"Layer {index + 1}", "block", self.same, description, children=children)

    def sublayer(self, block: Block, sublayer: Sublayer) -> Box:
        function, norm = self.function(sublayer.function), self.norm(sublayer.norm)
        children = [function, norm] if isinstance(block, PostNormBlock) else [norm, function]
        kind = "other" if isinstance(block, NoResidualBlock) else "residual"
        if kind == "other":
            label, description = "Without residual", "The sublayer's output replaces its input; there is no residual."
        elif isinstance(block, PostNormBlock):
            label, description = "Add & norm", "The sublayer's output is added to its input, and the sum is normalized."
        else:
            label, description = "Norm & add", "The input is normalized; the sublayer's output is added to it."
        path = f"{self.names[sublayer.function]}_residual"
        return Box(path, label, kind, self.same, description, children=children)

    def norm(self, norm: nn.Module) -> Box:
        label = "RMS norm" if isinstance(norm, nn.RMSNorm) else "Layer norm"
        description = "Every vector is normalized to the same scale, then multiplied by learned weights."
        return Box(self.names[norm], label, "norm", self.same, description, self.parameters([norm]))

    def function(self, function: nn.Module) -> Box:
        parameters, path = self.parameters([function]), self.names[function]
        if isinstance(function, Attention):
            return self.attention(function, path, parameters)
        if isinstance(function, MixtureOfExperts):
            label = "Mixture of experts"
            description = "A router sends each token to a few experts and mixes their outputs."
        else:
            label, description = "Feed-forward", "For each token by itself: up projection, activation, down projection."
        return Box(path, label, "feed-forward", self.same, description, parameters)

    def attention(self, attention: Attention, path: str, parameters: Sequence[tuple[str, nn.Parameter]]) -> Box:
        sizes, key = attention.sizes, self.attention_keys[attention]
        label = {"encoder": "Self-attention", "decoder": "Masked self-attention", "cross": "Cross-attention"}[key[0]]
        heads = f"{sizes.heads} heads" if sizes.heads > 1 else "1 head"
        kv_heads = f", {sizes.kv_heads} KV heads" if sizes.kv_heads != sizes.heads else ""
        inputs = f"{self.hidden} and the source's" if isinstance(attention, CrossAttentionBase) else self.hidden
        shape = f"{inputs} → {heads} of {sizes.head_dim}{kv_heads} → {self.hidden}"
        box = Box(path, label, "attention", shape, _ATTENTION[key[0]], parameters, attention=key)
        if isinstance(attention, SelfAttentionBase) and attention.rotary is not None:
            box.position = "rotary"
            box.description += f" {_ROTARY}"
        return box

    def parameters(self, modules: Iterable[nn.Module | None]) -> list[tuple[str, nn.Parameter]]:
        """The parameters of some modules by their state-dict names."""
        return [
            (f"{self.names[module]}.{name}", parameter)
            for module in modules
            if module is not None
            for name, parameter in module.named_parameters()
        ]


def _is_classifier(model: Any) -> bool:
    """Whether the model gives one output per sequence."""
    return isinstance(model, Encoder) and isinstance(model.config.head, ClassificationHeadConfig)


def _head_width(model: Any) -> int:
    """The number of outputs of an encoder's head."""
    if model.config.labels:
        return len(model.config.labels)
    return int(model.config.vocab_size if model.config.head.kind == "masked_lm" else model.config.width)


_MODELS = {
    "EncoderDecoder": "The encoder reads the source; the decoder generates the target and attends to both.",
    "LanguageModel": "A decoder-only model: each position predicts the next token from the tokens before it.",
    "Encoder": "An encoder-only model: each token attends to all others, before and after it.",
    "VisionTransformer": "An encoder of images: the patches of an image take the place of tokens.",
}
_POSITIONS = {
    "sinusoidal": (
        "Sinusoidal positions",
        "Sines and cosines of the position, at many wavelengths.",
    ),
    "learned": ("Learned positions", "A learned vector for each position."),
    "index": ("Index", "The number of the token itself."),
    "normalized": ("Normalized index", "The number of the token divided by the length of the text."),
    "binary": ("Binary positions", "The bits of the number of the token."),
}
"""The label of a positional encoding, and what it is."""
_ROTARY = "Queries and keys are rotated by their position (RoPE), so that their product depends on the distance."
_ENCODER = "Layers in which every token attends to all tokens of the text."
_DECODER = "Layers in which every generated token attends to the tokens before it and to the source."
_CAUSAL_DECODER = "Layers in which every token attends to itself and to the tokens before it."
_PATCH_ENCODER = "Layers in which every patch attends to all patches of the image."
_ATTENTION = {
    "encoder": "Each token's query is compared with every token's key; the values are mixed by how well they match.",
    "decoder": "Each token attends to itself and to the tokens before it; later ones are masked.",
    "cross": "Each generated token attends to the tokens of the source.",
}
