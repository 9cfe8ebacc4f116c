"""The reference for the page: a teacher-forced pass of the untraced model over a sentence and its translation."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.task.translation.pipeline import Translator


class ForcedPass(NamedTuple):
    source: list[int]
    target: list[int]
    """With bos and eos."""
    attention: dict[str, Tensor]
    """By attention type.  # (layers, heads, queries, keys)"""
    probabilities: Tensor
    """For each token of the target but the first, over the vocabulary.  # (tokens, vocab_size)"""


def forced_pass(translator: Translator, text: str) -> ForcedPass:
    """The pass over a text and its best translation."""
    (translations,) = translator.translate_sentences([text])
    special = translator.seq2seq_model.config.special_tokens
    assert special.bos is not None
    assert special.eos is not None
    source = [*translator.source_tokenizer.encode(text), special.eos]
    return forward(translator, source, [special.bos, *translations[0].tokens, special.eos])


def forward(translator: Translator, source: list[int], target: list[int]) -> ForcedPass:
    """The pass over given ids, with bos and eos."""
    model = translator.model
    names = {module: name for name, module in model.named_modules()}
    weights_by_type: dict[str, list[Tensor]] = {}

    def attention_hook(module: nn.Module, weights: Tensor) -> None:
        name = names[module]
        attention_type = "encoder" if name.startswith("encoder") else "cross" if "cross_attn" in name else "decoder"
        weights_by_type.setdefault(attention_type, []).append(weights[0])

    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([target]), attention_hook=attention_hook)
    attention = {attention_type: torch.stack(layers) for attention_type, layers in weights_by_type.items()}
    return ForcedPass(source, target, attention, logits[0, :-1].softmax(-1))
