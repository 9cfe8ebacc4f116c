"""Logits processors: a prefix, forbidden words, a minimum length, and limits on repetition.

With a processor, a step runs in PyTorch. The limits that are on by default (`OutputLimits`) are no processors, because
the compiled steps of greedy and beam search apply them too; `apply_limits` is what they do.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from regard.decode.strategy import MAX_PERIOD, GeneratedTokens, LogitsProcessor, OutputLimits
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


class NoRepeatNgramProcessor(LogitsProcessor):
    """No n-gram of this size occurs twice in an output (Paulus et al. 2017), as in Hugging Face.

    A row in which this would leave no token at all keeps those it has, such as the next token of a prefix.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UserError(f"An n-gram has at least one token; found no_repeat_ngram_size = {size}.")
        self.size = size
        self.key: Hashable = ("no_repeat_ngram", size)

    def __call__(self, logits: Tensor, generated: GeneratedTokens) -> Tensor:
        tokens, lengths = generated
        if tokens.shape[1] < self.size:
            return logits
        ngrams = tokens.unfold(1, self.size, 1)  # (rows, starts, size)
        before = self.size - 1
        position = (lengths[:, None] - before + torch.arange(before, device=tokens.device)).clamp(min=0)
        same = (ngrams[:, :, :before] == tokens.gather(1, position)[:, None]).all(dim=2)  # (rows, starts)
        start = torch.arange(ngrams.shape[1], device=tokens.device)
        repeats = same & (start + self.size <= lengths[:, None])
        none = logits.shape[1]  # an additional column for n-grams that do not count
        last = torch.where(repeats, ngrams[:, :, before], none)
        excluded = torch.zeros(len(logits), none + 1, dtype=torch.bool, device=logits.device).scatter(1, last, True)
        return _exclude_unless_all(logits, excluded[:, :none])


def apply_limits(limits: OutputLimits, eos: int, logits: Tensor, generated: GeneratedTokens) -> Tensor:
    """The logits with -inf for every token that the limits of an output exclude, as the compiled steps do it."""
    if limits.min_length and eos >= 0:
        excluded = torch.zeros_like(logits, dtype=torch.bool)
        excluded[:, eos] = generated.lengths < limits.min_length
        logits = _exclude_unless_all(logits, excluded)
    if limits.max_repeats:
        repeated = repeated_tokens(limits.max_repeats, generated)
        excluded = torch.zeros_like(logits, dtype=torch.bool).scatter(1, repeated.clamp(min=0), repeated >= 0)
        logits = _exclude_unless_all(logits, excluded)
    return logits


def repeated_tokens(max_repeats: int, generated: GeneratedTokens) -> Tensor:
    """The token that would repeat the end of each row once more, if that is `max_repeats` equal n-grams; else -1.

    Of several such n-grams, each of at most `MAX_PERIOD` tokens, the shortest counts.  # (rows, 1)
    """
    tokens = generated.tokens
    lengths = generated.lengths.clamp(max=tokens.shape[1])[:, None]
    period = torch.arange(1, MAX_PERIOD + 1, device=tokens.device)
    back = torch.arange(1, (max_repeats - 1) * MAX_PERIOD + 1, device=tokens.device)
    newer = tokens.gather(1, (lengths - back).clamp(min=0))  # (rows, back)
    older = tokens.gather(1, (lengths[:, :, None] - back[:, None] - period).clamp(min=0).flatten(1))
    same = newer[:, :, None] == older.unflatten(1, (len(back), MAX_PERIOD))
    counts = back[:, None] <= (max_repeats - 1) * period  # the comparisons that matter for each period
    loops = (same | ~counts).all(dim=1) & (lengths >= max_repeats * period)  # (rows, period)
    shortest = torch.where(loops, period, MAX_PERIOD + 1).amin(dim=1, keepdim=True)
    token = tokens.gather(1, (lengths - shortest).clamp(min=0))
    return torch.where(shortest <= MAX_PERIOD, token, -1)


def _exclude_unless_all(logits: Tensor, excluded: Tensor) -> Tensor:
    """-inf where excluded, except in rows where no token would be left."""
    processed = logits.masked_fill(excluded, _EXCLUDED)
    some_left = (processed != _EXCLUDED).any(dim=1, keepdim=True)
    return torch.where(some_left, processed, logits)
