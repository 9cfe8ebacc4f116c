"""What PyTorch says, without anything of the page's own machinery: the pass over a sentence and its answer, watched."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.task import Translator


class Pass(NamedTuple):
    source: list[int]
    target: list[int]
    """With its start and its end."""
    attention: dict[str, Tensor]
    """Of each side, every layer and head.  # (layers, heads, queries, keys)"""
    probabilities: Tensor
    """Of each token of the target but the first, and of all others in its place.  # (tokens, vocabulary)"""


def forced(translator: Translator, text: str) -> Pass:
    """The best translation of a text, gone through once more."""
    (found,) = translator.translate_sentences([text])
    special = translator.translating.config.tokens
    assert special.start is not None
    assert special.end is not None
    source = [*translator.source_text.encode(text), special.end]
    target = [special.start, *found[0].tokens, special.end]
    return through(translator, source, target)


def through(translator: Translator, source: list[int], target: list[int]) -> Pass:
    """Given ids, start and end among them."""
    model = translator.model
    names = {module: name for name, module in model.named_modules()}
    seen: dict[str, list[Tensor]] = {}

    def watch(module: nn.Module, weights: Tensor) -> None:
        name = names[module]
        side = "encoder" if name.startswith("encoder") else "cross" if ".cross." in name else "decoder"
        seen.setdefault(side, []).append(weights[0])

    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([target]), watch=watch)
    attention = {side: torch.stack(layers) for side, layers in seen.items()}
    return Pass(source, target, attention, logits[0, :-1].softmax(-1))
