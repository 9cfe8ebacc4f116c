"""Logits processors: a prefix, forbidden words and a minimum length of the output."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from regard.decode.strategy import GeneratedTokens, LogitsProcessor
from regard.errors import UserError

_EXCLUDED = float("-inf")


class PrefixProcessor(LogitsProcessor):
    """Every output begins with its prefix, one per slot."""

    slot_tensors = ("tokens", "lengths")
    key: Hashable = "prefix"

    def __init__(self, prefixes: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> None:
        longest = max((len(prefix) for prefix in prefixes), default=0)
        padded = [[*prefix, *[0] * (longest - len(prefix))] for prefix in prefixes]
        self.tokens = torch.tensor(padded, dtype=torch.long, device=device).view(len(prefixes), longest)
        self.lengths = torch.tensor([len(prefix) for prefix in prefixes], device=device)

    def __call__(self, logits: Tensor, generated: GeneratedTokens) -> Tensor:
        if self.tokens.shape[1] == 0:
            return logits
        beam_size = logits.shape[0] // self.tokens.shape[0]
        position = generated.lengths.clamp(max=self.tokens.shape[1] - 1)[:, None]
        forced = self.tokens.repeat_interleave(beam_size, dim=0).gather(1, position)  # (rows, 1)
        past_prefix = (generated.lengths >= self.lengths.repeat_interleave(beam_size))[:, None]
        only_forced = torch.full_like(logits, _EXCLUDED).scatter(1, forced, logits.gather(1, forced))
        return torch.where(past_prefix, logits, only_forced)


class ForbiddenProcessor(LogitsProcessor):
    """No output contains any of these token sequences, the same for all slots."""

    def __init__(self, sequences: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> None:
        if any(len(sequence) == 0 for sequence in sequences):
            raise UserError("A forbidden word has no tokens; leave it out.")
        single = sorted({sequence[0] for sequence in sequences if len(sequence) == 1})
        self.single_tokens = torch.tensor(single, device=device).long()
        self.key: Hashable = ("forbidden", *sorted({tuple(sequence) for sequence in sequences}))
        longer = sorted({tuple(sequence) for sequence in sequences if len(sequence) > 1})
        self.longer = [(torch.tensor(sequence[:-1], device=device), sequence[-1]) for sequence in longer]

    def __call__(self, logits: Tensor, generated: GeneratedTokens) -> Tensor:
        if self.single_tokens.numel():
            logits = logits.index_fill(1, self.single_tokens, _EXCLUDED)
        for beginning, last in self.longer:
            count = beginning.shape[0]
            position = generated.lengths[:, None] - count + torch.arange(count, device=beginning.device)
            same = generated.tokens.gather(1, position.clamp(min=0)) == beginning  # (rows, count)
            excluded = torch.zeros_like(logits, dtype=torch.bool)
            excluded[:, last] = same.all(dim=1) & (position[:, 0] >= 0)
            logits = logits.masked_fill(excluded, _EXCLUDED)
        return logits


class MinLengthProcessor(LogitsProcessor):
    """No output ends before its minimum number of tokens, one per slot."""

    slot_tensors = ("min_lengths",)

    def __init__(self, min_lengths: Sequence[int], eos: int, device: torch.device | str = "cpu") -> None:
        self.min_lengths, self.eos = torch.tensor(list(min_lengths), device=device), eos
        self.key: Hashable = ("min_length", eos)

    def __call__(self, logits: Tensor, generated: GeneratedTokens) -> Tensor:
        beam_size = logits.shape[0] // self.min_lengths.shape[0]
        excluded = torch.zeros_like(logits, dtype=torch.bool)
        excluded[:, self.eos] = generated.lengths < self.min_lengths.repeat_interleave(beam_size)
        return logits.masked_fill(excluded, _EXCLUDED)
