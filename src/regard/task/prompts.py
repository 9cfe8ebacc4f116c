"""A plain language model translates, too: the prompt is the sentence, its end, and the start of what is to come."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.data.tokenizer import TextTokenizer
from regard.model import EncoderDecoder, LanguageModel

Translating = EncoderDecoder | LanguageModel
"""What can translate."""


class Prompts(TextTokenizer):
    """Makes a prompt of each text: its ids, the end, and the start of the translation."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        assert self.end is not None
        assert self.start is not None
        return [[*ids, self.end, self.start] for ids in super().encode_batch(texts)]


def reading(tokenizer: TextTokenizer, model: Translating) -> TextTokenizer:
    """What makes sources of texts for this model: ids alone, or prompts."""
    if isinstance(model, EncoderDecoder):
        return tokenizer
    return Prompts(tokenizer.tokenizer, padding=tokenizer.padding, start=tokenizer.start, end=tokenizer.end)


def continued(batch: Batch, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """Source and target as one text: tokens, the words wanted behind each (-1 within the source), and lengths.

    tokens, wanted: # (rows, source + target); lengths: # (rows,)
    """
    (rows, long), wide = batch.source.shape, batch.target.shape[1]
    before = torch.cat((torch.full_like(batch.target[:, :1], start), batch.target[:, :-1]), dim=1)
    place = torch.arange(long + wide, device=batch.source.device).expand(rows, -1)
    behind = place - batch.source_lengths[:, None]  # where in the target each place is
    at = behind.clamp(0, wide - 1)
    tokens = torch.where(behind < 0, batch.source.gather(1, place.clamp(max=long - 1)), before.gather(1, at))
    asked = (behind >= 0) & (behind < batch.target_lengths[:, None])
    wanted = torch.where(asked, batch.target.gather(1, at), -1)
    return tokens, wanted, batch.source_lengths + batch.target_lengths
