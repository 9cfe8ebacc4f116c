"""Toy models for tests of decoding, small enough to enumerate every output."""

import itertools

import torch
from torch import Tensor

from regard.attention import MultiHeadConfig
from regard.decode import Hypothesis, LengthPenalty
from regard.model import EncoderDecoder, EncoderDecoderConfig, FeedForwardConfig, StackConfig

EOS = 0
PENALTIES = [
    LengthPenalty(kind="none"),
    LengthPenalty(alpha=0.6),
    LengthPenalty(alpha=2.0),
    LengthPenalty(kind="power", alpha=1.0),
]


class TensorState:
    """The state of a toy model: tensors with one entry per row."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def reorder_beams(self, rows: Tensor, sources: Tensor | None = None) -> None:
        self.tensors = tuple(tensor[rows] for tensor in self.tensors)


class TableModel:
    """A trigram model: logits depend on the row and the last two tokens. The state is the row and the older token."""

    def __init__(self, rows: int, vocab_size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (rows, vocab_size, vocab_size, vocab_size)
        self.logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)

    def start(self) -> TensorState:
        rows = self.logits.shape[0]
        return TensorState(torch.arange(rows), torch.zeros(rows, dtype=torch.long))

    def step(self, tokens: Tensor, state: TensorState) -> tuple[Tensor, TensorState]:
        row, before = state.tensors
        return self.logits[row, before, tokens[:, 0]][:, None], TensorState(row, tokens[:, 0])

    def only(self, row: int) -> "TableModel":
        """The same model with one row."""
        alone = TableModel(1, 2, 0)
        alone.logits = self.logits[row : row + 1]
        return alone

    def logprob(self, row: int, tokens: tuple[int, ...], ended: bool) -> float:
        total, before, last = 0.0, 0, 1
        for token in [*tokens, *([EOS] if ended else [])]:
            total += float(self.logits[row, before, last].log_softmax(dim=-1)[token])
            before, last = last, token
        return total

    def all_outputs(self, row: int, max_length: int, penalty: LengthPenalty) -> list[tuple[float, tuple[int, ...]]]:
        """Every output with its score, best first."""
        outputs = []
        for length in range(max_length + 1):
            for tokens in itertools.product(range(1, self.logits.shape[-1]), repeat=length):
                ended = length < max_length
                logprob = self.logprob(row, tokens, ended)
                outputs.append((logprob / penalty.at(length + 1 if ended else length), tokens))
        return sorted(outputs, reverse=True)


class CountingModel(TableModel):
    """A trigram model that records the number of rows of each step."""

    def __init__(self, rows: int, vocab_size: int, seed: int) -> None:
        super().__init__(rows, vocab_size, seed)
        self.row_counts: list[int] = []

    def step(self, tokens: Tensor, state: TensorState) -> tuple[Tensor, TensorState]:
        self.row_counts.append(len(tokens))
        return super().step(tokens, state)


def start_tokens(rows: int) -> Tensor:
    return torch.ones(rows, dtype=torch.long)


def contains(tokens: tuple[int, ...], sequence: tuple[int, ...]) -> bool:
    return any(tokens[start : start + len(sequence)] == sequence for start in range(len(tokens) - len(sequence) + 1))


def small_stack(layers: int = 2) -> StackConfig:
    return StackConfig(
        layers=layers, attention=MultiHeadConfig(heads=2), feed_forward=FeedForwardConfig(hidden=16), dropout=0.0
    )


def make_translator(seed: int, vocab_size: int = 9, layers: int = 2) -> EncoderDecoder:
    torch.manual_seed(seed)
    config = EncoderDecoderConfig(vocab_size=vocab_size, width=8, encoder=small_stack(), decoder=small_stack(layers))
    return config.build().double().eval()


def reference_logprobs(models: list[EncoderDecoder], source: Tensor, tokens: tuple[int, ...]) -> list[float]:
    """The logarithm of the models' mean probabilities, by full forward passes.  source: # (1, tokens)"""
    target = torch.tensor([[1, *tokens]])
    with torch.no_grad():
        p = torch.stack([model(source, target[:, :-1]).softmax(dim=-1) for model in models]).mean(dim=0)
    return p.log().gather(2, target[:, 1:, None]).flatten().tolist()


def with_eos(one: Hypothesis) -> tuple[int, ...]:
    """The tokens of a hypothesis, with EOS if it ended."""
    return (*one.tokens, *([EOS] if one.ended else []))
