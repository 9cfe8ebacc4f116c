"""The stack as boxes in boxes, drawn from the model itself: every parameter stands in exactly one box.

Parts stand in the order of computing. A parameter that is used twice, as a tied table of words is, counts where it is
used first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from regard.attention.heads import Attention, OtherAttention
from regard.errors import UserError
from regard.look.attentions import Place, attentions_of
from regard.look.wire import AttentionPlace, Parameter, Part
from regard.model import ClassifyConfig, Encoder, EncoderDecoder, LanguageModel, VisionTransformer
from regard.model.block import Block, NoResidual, PostNorm, PreNorm
from regard.model.experts import Experts
from regard.model.stack import Stack
from regard.model.writer import Writer


def parts_of(model: nn.Module, name: str = "model") -> Part:
    """A model as boxes in boxes."""
    if not isinstance(model, EncoderDecoder | LanguageModel | Encoder | VisionTransformer):
        raise UserError(f"A model of the kind {type(model).__name__} cannot be drawn.")
    drawer = _Drawer(model)
    whole = drawer.box("", name, "model", drawer.in_and_out(), _ABOUT[type(model).__name__], drawer.whole())
    return whole.finished(set())


@dataclass
class _Box:
    path: str
    label: str
    kind: Any
    shape: str
    about: str
    parameters: list[tuple[str, nn.Parameter]]
    parts: list["_Box"] = field(default_factory=list)
    place: Place | None = None

    def finished(self, seen: set[int]) -> Part:
        """With its numbers counted, but for those that were counted before."""
        new = [(name, one) for name, one in self.parameters if id(one) not in seen]
        seen.update(id(one) for _, one in new)
        parts = [part.finished(seen) for part in self.parts]
        return Part(
            path=self.path,
            label=self.label,
            kind=self.kind,
            parameters=[Parameter(name=name, shape=list(one.shape)) for name, one in self.parameters],
            count=sum(one.numel() for _, one in new) + sum(part.count for part in parts),
            shape=self.shape,
            attention=None if self.place is None else AttentionPlace(side=self.place[0], layer=self.place[1]),
            about=self.about,
            parts=parts,
        )


class _Drawer:
    """Draws one model."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.names = {module: name for name, module in model.named_modules()}
        self.places: dict[nn.Module, Place] = {
            one: (side, layer) for side, layers in attentions_of(model).items() for layer, one in enumerate(layers)
        }
        self.width = int(self.config.width)
        self.words = f"(rows, {'patches' if isinstance(model, VisionTransformer) else 'words'}, {self.width})"

    def in_and_out(self) -> str:
        model, config = self.model, self.config
        if isinstance(model, VisionTransformer):
            height, width = config.size
            return f"(rows, {config.channels}, {height}, {width}) → (rows, {len(config.labels) or self.width})"
        out = config.vocabulary if isinstance(model, Writer) else _readout_width(model)
        rows = "(rows, " if _one_a_row(model) else "(rows, words, "
        return f"(rows, words) → {rows}{out})"

    def whole(self) -> list[_Box]:
        model = self.model
        if isinstance(model, EncoderDecoder):
            source = model.vocabulary if model.source_vocabulary is None else model.source_vocabulary
            return [
                self.input("Source words", "source_input", [source, model.source_input]),
                self.stack("Encoder", model.encoder, _ENCODER),
                self.input("Target words", "input", [model.vocabulary, model.input]),
                self.stack("Decoder", model.decoder, _DECODER),
                self.words_out(),
            ]
        if isinstance(model, LanguageModel):
            return [
                self.input("Words", "input", [model.vocabulary, model.input]),
                self.stack("Decoder", model.decoder, _CAUSAL),
                self.words_out(),
            ]
        if isinstance(model, Encoder):
            inputs = [one for one in (model.vocabulary, model.segments, model.input) if one is not None]
            parts = [self.input("Words", "input", inputs), self.stack("Encoder", model.encoder, _ENCODER)]
            return [*parts, *self.readout([model.pooler, model.head])]
        return [self.pictures_in(), self.stack("Encoder", model.encoder, _PATCHES), *self.classes_out()]

    def box(
        self, path: str, label: str, kind: str, shape: str, about: str, parts: Sequence[_Box] = (), own: Any = ()
    ) -> _Box:
        return _Box(path, label, kind, shape, about, list(own), list(parts))

    def input(self, label: str, path: str, modules: Sequence[nn.Module]) -> _Box:
        about = (
            "Each word is looked up in a table: its number becomes a vector. Its place in the sentence is put into it "
            "as well."
        )
        return self.box(path, label, "input", f"(rows, words) → {self.words}", about, own=self.parameters(modules))

    def pictures_in(self) -> _Box:
        model = self.model
        about = "The picture is cut into squares. Each becomes a vector, and its place in the picture is put into it."
        own = list(self.parameters([model.patches, model.position, model.registers]))
        if model.class_token is not None:
            own.append(("class_token", model.class_token))
        height, width = self.config.size
        shape = f"(rows, {self.config.channels}, {height}, {width}) → {self.words}"
        return self.box("patches", "Patches", "input", shape, about, own=own)

    def words_out(self) -> _Box:
        model = self.model
        table = model.vocabulary if model.output is None else model.output
        own = list(self.parameters([table]))
        if model.output_bias is not None:
            own.append(("output_bias", model.output_bias))
        tied = "the same table of words it was looked up in" if model.output is None else "a table of words"
        about = f"The vector is compared with {tied}: a score for each word, and by softmax a probability."
        return self.box(
            "output", "Scores", "output", f"{self.words} → (rows, words, {len(table.weight)})", about, own=own
        )

    def readout(self, modules: Iterable[nn.Module | None]) -> list[_Box]:
        there = [one for one in modules if one is not None]
        if not there:
            return []
        gives = "(rows, " if _one_a_row(self.model) else "(rows, words, "
        shape = f"{self.words} → {gives}{_readout_width(self.model)})"
        about = "What is wanted is read off the vectors: a score for each word or label."
        return [self.box("head", "Answer", "output", shape, about, own=self.parameters(there))]

    def classes_out(self) -> list[_Box]:
        there = [one for one in (self.model.representation, self.model.head) if one is not None]
        if not there:
            return []
        shape = f"{self.words} → (rows, {len(self.config.labels)})"
        about = "One vector stands for the picture, and a score for each class is read off it."
        return [self.box("head", "Classes", "output", shape, about, own=self.parameters(there))]

    def stack(self, label: str, stack: Stack, about: str) -> _Box:
        path = self.names[stack]
        parts = [self.block(number, block) for number, block in enumerate(stack.blocks)]
        if stack.memory is not None:
            shared = "Keys and values of the encoder's output, made once for all layers."
            own = self.parameters([stack.memory])
            parts.insert(0, self.box(f"{path}.memory", "Memory", "other", self.words, shared, own=own))
        if not isinstance(stack.norm, nn.Identity):
            parts.append(self.norm(stack.norm))
        return self.box(path, label, "stack", f"{self.words} → {self.words}", about, parts)

    def block(self, number: int, block: nn.Module) -> _Box:
        assert isinstance(block, Block)
        parts = [self.sublayer(one) for one in block.values()]
        about = "One layer: its parts in turn, each adding to what comes from below."
        return self.box(self.names[block], f"Layer {number + 1}", "block", f"{self.words} → {self.words}", about, parts)

    def sublayer(self, sublayer: nn.Module) -> _Box:
        assert isinstance(sublayer, PreNorm)
        function, norm = self.function(sublayer.function), self.norm(sublayer.norm)
        parts = [function, norm] if isinstance(sublayer, PostNorm) else [norm, function]
        if isinstance(sublayer, NoResidual):
            label, about = "Without residual", "What the part finds goes on alone; nothing is added to it."
        elif isinstance(sublayer, PostNorm):
            label, about = "Add & norm", "What the part finds is added to what it was given, and the sum is normalised."
        else:
            label, about = (
                "Norm & add",
                "What the part is given is normalised first; what it finds is added to the rest.",
            )
        return self.box(self.names[sublayer], label, "residual", f"{self.words} → {self.words}", about, parts)

    def norm(self, norm: nn.Module) -> _Box:
        label = "RMS norm" if isinstance(norm, nn.RMSNorm) else "Layer norm"
        about = "Every vector is brought to the same spread, then scaled by what was learned."
        own = self.parameters([norm])
        return self.box(self.names[norm], label, "norm", f"{self.words} → {self.words}", about, own=own)

    def function(self, function: nn.Module) -> _Box:
        own, path = self.parameters([function]), self.names[function]
        if isinstance(function, Attention):
            return self.attention(function, path, own)
        mixed = isinstance(function, Experts)
        label = "Experts" if mixed else "Feed-forward"
        about = (
            "For each word some of several small networks are chosen, and their results are mixed."
            if mixed
            else "Each word alone: its vector is widened, bent and narrowed again."
        )
        return self.box(path, label, "feed-forward", f"{self.words} → {self.words}", about, own=own)

    def attention(self, attention: Attention, path: str, own: Iterable[tuple[str, nn.Parameter]]) -> _Box:
        sizes, side = attention.sizes, self.places[attention][0]
        label = {"encoder": "Self-attention", "decoder": "Masked self-attention", "cross": "Cross-attention"}[side]
        heads = f"{sizes.heads} heads" if sizes.heads > 1 else "1 head"
        shared = f", {sizes.key_heads} of keys" if sizes.key_heads != sizes.heads else ""
        shape = (
            f"{self.words} → {heads} of {sizes.head_width}{shared} → {self.words}"
            if not isinstance(attention, OtherAttention)
            else f"{self.words} and the source's → {heads} of {sizes.head_width}{shared} → {self.words}"
        )
        box = self.box(path, label, "attention", shape, _LOOKS[side], own=own)
        box.place = self.places[attention]
        return box

    def parameters(self, modules: Iterable[nn.Module | None]) -> list[tuple[str, nn.Parameter]]:
        """All in these modules, by the names that the file of weights has for them."""
        return [
            (f"{self.names[module]}.{name}", parameter)
            for module in modules
            if module is not None
            for name, parameter in module.named_parameters()
        ]


def _one_a_row(model: Any) -> bool:
    """Whether there is one answer for a whole row."""
    return isinstance(model, Encoder) and isinstance(model.config.head, ClassifyConfig)


def _readout_width(model: Any) -> int:
    """How many scores an encoder gives."""
    if model.config.labels:
        return len(model.config.labels)
    return int(model.config.vocabulary if model.config.head.kind == "fill" else model.config.width)


_ABOUT = {
    "EncoderDecoder": "An encoder reads the whole source; a decoder writes the answer word by word and looks at both.",
    "LanguageModel": "One stack that only looks back: it scores the next word of a text.",
    "Encoder": "One stack that looks both ways: each word is seen in the light of all others.",
    "VisionTransformer": "A picture read as a sentence: each patch is a word.",
}
_ENCODER = "Layers in which every word looks at all words of the text."
_DECODER = "Layers in which each word written looks at those before it and at the source."
_CAUSAL = "Layers in which each word looks at itself and at those before it."
_PATCHES = "Layers in which every patch looks at all patches of the picture."
_LOOKS = {
    "encoder": "Each word asks, all words answer: it takes from each as much as the two fit each other.",
    "decoder": "Each word asks the words before it and itself; what comes later is hidden.",
    "cross": "Each word that is written asks the words of the source.",
}
