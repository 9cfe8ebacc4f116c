"""The diagram of a model before the Transformer, derived from nothing but its modules.

These models have no stack of blocks in common, so their boxes follow the names of modules: embeddings are inputs,
`encoder` is a column of its own, `lm_head` is the output, and all else is in between, in order of definition. Lists of
layers are opened, and so is whatever has attention in it. A box says what its module's docstring says. Shapes are those
of a pass on the meta device, which computes nothing; a module that the pass does not call as a whole has none.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.positions.absolute import Position
from regard.errors import UserError
from regard.look.analysis.attention_maps import AttentionKey
from regard.look.analysis.diagram_box import Box
from regard.look.schema import ModuleBox
from regard.model import CausalSequenceModel, Seq2SeqLM, SequenceToSequence
from regard.model.before.base import AlignmentModule
from regard.model.embedding import TokenEmbedding

_BATCH, _SOURCE, _TARGET = 23, 19, 17
"""The sizes of the pass on the meta device: primes, which are the width of no model."""
_SIZES = {_BATCH: "batch", _SOURCE: "source tokens", _TARGET: "tokens"}


def draw_sequence_model(model: SequenceToSequence | CausalSequenceModel, name: str) -> ModuleBox:
    """The diagram of a model."""
    diagram = _SequenceDiagram(model)
    shape = f"(batch, tokens) → (batch, tokens, {model.config.vocab_size})"
    return Box("", name, "model", shape, _describe(model), children=diagram.top_level()).to_message(set())


class _SequenceDiagram:
    """Builds the boxes of one model."""

    def __init__(self, model: SequenceToSequence | CausalSequenceModel) -> None:
        self.model: Any = model
        self.attention_keys: dict[nn.Module, AttentionKey] = {
            module: (attention_type, layer)
            for attention_type, layers in reversed(model.attention_modules().items())
            for layer, module in enumerate(layers)
        }
        self.shapes = _module_shapes(model)

    def top_level(self) -> list[Box]:
        model = self.model
        children = {name: module for name, module in model.named_children() if _is_drawn(module)}
        encoder, lm_head = children.pop("encoder", None), children.pop("lm_head", None)
        inputs = {name: module for name, module in children.items() if "embed" in name or "position" in name}
        of_source = {name: module for name, module in inputs.items() if "source" in name}
        boxes: list[Box] = []
        if encoder is not None:
            if not any(isinstance(module, TokenEmbedding) for module in of_source.values()):
                boxes.append(self.shared_source_embedding())
            boxes += [self.leaf(module, name, "input") for name, module in of_source.items()]
            boxes.append(self.stack("encoder", encoder, _describe(encoder)))
        else:
            of_source = {}
        boxes += [self.leaf(module, name, "input") for name, module in inputs.items() if name not in of_source]
        boxes += self.body({name: module for name, module in children.items() if name not in inputs})
        return [*boxes, *self.output(lm_head)]

    def shared_source_embedding(self) -> Box:
        """The embedding of the source by the table that the target has too."""
        table = self.model.embed_tokens
        shape = f"(batch, source tokens) → (batch, source tokens, {table.weight.shape[1]})"
        description = "Each token id is looked up in the embedding table, which source and target share."
        return Box("source_embedding", "Source embedding", "input", shape, description, _named(table, "embed_tokens"))

    def body(self, modules: dict[str, nn.Module]) -> list[Box]:
        """What is between embeddings and logits, as one stack."""
        if not modules:
            return []
        if len(modules) == 1:
            ((name, module),) = modules.items()
            return [self.stack(name, module, _describe(module))]
        children = [box for name, module in modules.items() for box in self.parts(module, name)]
        return [Box("body", "Layers", "stack", "", "What computes hidden states from embeddings.", children=children)]

    def stack(self, name: str, module: nn.Module, description: str) -> Box:
        is_leaf = isinstance(module, AlignmentModule) or not any(map(_is_drawn, module.children()))
        children = [self.box(module, f"{name}.module")] if is_leaf else list(self.inside(module, name))
        return Box(name, _label(module, name), "stack", self.shape(name), description, children=children)

    def output(self, lm_head: nn.Module | None) -> list[Box]:
        """The logits, and whatever parameters the model itself has: biases."""
        parameters = [] if lm_head is None else _named(lm_head, "lm_head")
        weights = "an output matrix"
        if lm_head is None and getattr(self.model.config, "tie_weights", False):
            parameters = _named(self.model.embed_tokens, "embed_tokens")
            weights = "the embedding table (tied weights)"
        parameters += list(self.model.named_parameters(recurse=False))
        if not parameters:
            return []
        description = f"The hidden state is multiplied by {weights}: one logit per token, which softmax turns into "
        shape = f"→ (batch, tokens, {self.model.config.vocab_size})"
        return [Box("lm_head", "LM head", "output", shape, f"{description}probabilities.", parameters)]

    def parts(self, module: nn.Module, path: str) -> Iterator[Box]:
        """The boxes of a module within a stack: those of a list's items, or one."""
        if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            yield from self.inside(module, path)
        elif _is_drawn(module):
            yield self.box(module, path)

    def inside(self, module: nn.Module, path: str) -> Iterator[Box]:
        """The boxes of what a module consists of."""
        for name, child in module.named_children():
            yield from self.parts(child, f"{path}.{name}")
        if own := [(f"{path}.{name}", parameter) for name, parameter in module.named_parameters(recurse=False)]:
            description = "Parameters of the module itself."
            yield Box(f"{path}.parameters", "Parameters", "other", "", description, own)

    def box(self, module: nn.Module, path: str) -> Box:
        has_attention = any(isinstance(each, AlignmentModule) for each in module.modules())
        if isinstance(module, AlignmentModule) or not has_attention:
            return self.leaf(module, path, "attention" if has_attention else "other")
        children = list(self.inside(module, path))
        return Box(path, _label(module, path), "block", self.shape(path), _describe(module), children=children)

    def leaf(self, module: nn.Module, path: str, kind: str) -> Box:
        """A box with all parameters of a module."""
        name = path.removesuffix(".module")
        attention = self.attention_keys.get(module)
        shape = self.shape(name)
        if isinstance(module, Position):
            return self.position(module, path)
        if attention is not None and shape:
            heads = "1 head" if module.heads == 1 else f"{module.heads} heads"
            shape = shape.replace(" → ", f" → {heads} → ")
        return Box(path, _label(module, name), kind, shape, _describe(module), _named(module, name), (), attention)

    def position(self, position: Position, path: str) -> Box:
        """A positional encoding, which these models add to the embedding."""
        kind = "Source positions" if "source" in path else "Positions"
        description = "A learned vector for each position is added to the embedding."
        return Box(path, kind, "position", "", description, _named(position, path), position="added")

    def shape(self, path: str) -> str:
        return self.shapes.get(path, "")


def _module_shapes(model: SequenceToSequence | CausalSequenceModel) -> dict[str, str]:
    """The shapes of the first input and output of each module in one pass (of embeddings the last), by its name."""
    shapes: dict[str, str] = {}

    def recorder(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            found, produced = _first_tensor(inputs), _first_tensor(output)
            if found is not None and produced is not None:
                if isinstance(module, TokenEmbedding):  # one for both sides is drawn with its last call, the target's
                    shapes.pop(name, None)
                shapes.setdefault(name, f"{_write(found)} → {_write(produced)}")

        return hook

    try:
        with torch.device("meta"), torch.no_grad():
            copy = model.config.build().eval()
            for name, module in copy.named_modules():
                module.register_forward_hook(recorder(name))
            inputs = [torch.zeros(_BATCH, min(_TARGET, copy.max_positions or _TARGET), dtype=torch.long)]
            if isinstance(copy, Seq2SeqLM):
                length = min(_SOURCE, copy.max_source_positions or _SOURCE)
                inputs.insert(0, torch.zeros(_BATCH, length, dtype=torch.long))
            copy(*inputs)
    except (UserError, RuntimeError, NotImplementedError):  # a model that needs real numbers
        return {}
    return shapes


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tuple | list):
        return next((found for each in value if (found := _first_tensor(each)) is not None), None)
    return None


def _write(tensor: Tensor) -> str:
    return f"({', '.join(_SIZES.get(size, str(size)) for size in tensor.shape)})"


def _is_drawn(module: nn.Module) -> bool:
    """Whether a module is worth a box: dropout is not, nor what has neither parameters nor attention."""
    return any(isinstance(each, AlignmentModule) for each in module.modules()) or any(True for _ in module.parameters())


def _named(module: nn.Module, path: str) -> list[tuple[str, nn.Parameter]]:
    return [(f"{path}.{name}", parameter) for name, parameter in module.named_parameters()]


def _label(module: nn.Module, path: str) -> str:
    """The name of a module in words; that of an item of a list with its number, counted from 1."""
    *before, name = path.split(".")
    cell = getattr(module, "cell", None)
    if name == "embed_tokens":
        return "Embedding"
    if isinstance(module, AlignmentModule):
        return "Attention"
    if name.isdigit():
        name = f"{before[-1].removesuffix('s') if before else 'layer'} {int(name) + 1}"
    words = name.replace("_", " ").replace("proj", "projection").replace("embed ", "embedding of ")
    return f"{cell.upper()} {words}" if isinstance(cell, str) else words[:1].upper() + words[1:]


def _describe(module: nn.Module) -> str:
    """The first sentence of a module's own docstring."""
    kind = type(module)
    if kind.__module__.startswith("torch."):
        return "A linear layer." if isinstance(module, nn.Linear) else f"PyTorch's {kind.__name__}."
    if isinstance(module, TokenEmbedding):
        return "Each token id is looked up in the embedding table, which gives a vector."
    return (inspect.getdoc(kind) or kind.__name__).split("\n", maxsplit=1)[0].replace("`", "")
