"""Feed-forward networks over a whole sentence pair, which has at most m words a side: what these models share.

A feed-forward network has an input of fixed size. A sentence pair becomes one if both sides are padded to m words, so
that every word has a place of its own (DNN1, DNN2), or if words are mixed into a context vector (`context.py`). The
network predicts the target word after the words so far, and sees them all again for the next one.

Neither training nor decoding repeats what does not change. The first layer's sums at target position t differ from
those at t − 1 by one word, so those of all positions are cumulative sums. While decoding, a row is the sum so far and
its length.

**The end.** A target of more than m tokens has no place in the input. Training refuses one, but a search may go on: it
keeps rows that are finished, or that do not end. Tokens after the m-th are not seen, and EOS is certain after them.
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.model.autoregressive import check_length
from regard.model.before.base import Dropout, Seq2SeqConfig, SequenceToSequence
from regard.model.before.state import RecurrentState

_CERTAIN = 1e4
"""Added to the logit of EOS. It is finite so that a score can be computed for any output."""


class FixedLengthConfig(Seq2SeqConfig):
    """The config of a network over sentences of a limited length."""

    max_length: int = Field(default=64, ge=1, le=100_000)
    """The most tokens (m) that a source or a target may have, EOS or BOS included."""
    truncate_source: bool = False
    """Whether only the first tokens of a longer source are read; if not, it is refused."""
    hidden: int = Field(default=512, ge=1, le=1_000_000)
    """The width of the hidden layers."""
    layers: int = Field(default=2, ge=1, le=1000)
    """The number of hidden layers."""
    dropout: float = Dropout
    """The dropout probability of embeddings, if there are any, and of hidden layers."""


class FixedLengthState(RecurrentState):
    """The state of a model with a place for each of m words. `rows["length"]` is the number of words so far."""

    extent = 0
    """The most words that any row can have so far: known without asking the device."""

    def scatter_rows(self, sources: Tensor, other: RecurrentState) -> None:
        super().scatter_rows(sources, other)
        if isinstance(other, FixedLengthState):
            self.extent = max(self.extent, other.extent)

    def advance(self, tokens: int) -> None:
        """Count new tokens."""
        self.rows["length"] = self.rows["length"] + tokens
        self.extent += tokens


class FixedLengthModel(SequenceToSequence):
    """A model of a target of at most m tokens given a source of at most m tokens."""

    max_positions_key = "model.max_length"
    config: FixedLengthConfig

    @property
    def max_positions(self) -> int:
        return self.config.max_length

    @property
    def max_source_positions(self) -> int:
        return self.config.max_length

    @property
    def truncates_source(self) -> bool:
        return self.config.truncate_source

    def check_source(self, source: Tensor, lengths: Tensor | None) -> Tensor:
        """The source without columns that have no place: with lengths, they are padding.  source: # (batch, tokens)"""
        if lengths is None:
            check_length(source.shape[1], self.max_source_positions)
        return source[:, : self.max_source_positions]

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        state: RecurrentState,
        counts: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        positions = positions_after(state.rows["length"], tokens.shape[1])
        logits, state = super().step(tokens, state, counts, attention_hook)
        eos = self.config.special_tokens.eos
        if eos is not None:
            logits[..., eos] += _CERTAIN * (positions >= self.config.max_length)
        return logits, state


class PaddedContextModel(FixedLengthModel):
    """A network with a place in its input for every word of both sides; padding is all zeros.

    An input for padding ("xx" in pictures of such networks) would add nothing: every place has exactly one word or xx,
    so the weights of xx can be subtracted from those of all words and moved into the bias.
    """

    def __init__(self, config: FixedLengthConfig) -> None:
        super().__init__()
        self.config = config
        self.bias = nn.Parameter(torch.zeros(config.hidden))
        self.network = HiddenLayers(config.hidden, config.layers, config.dropout)

    def project_source(self, source: Tensor, mask: Tensor | None) -> Tensor:
        """What the source adds to the first hidden layer.

        source, mask: # (batch, tokens), True where there is a token; gives (batch, hidden)
        """
        raise NotImplementedError

    def project_target(self, target: Tensor, positions: Tensor, extent: int) -> Tensor:
        """What each target token at its position adds to the first hidden layer.

        Positions are below `extent`, except for those of tokens that have no place, whose result is ignored.
        target, positions: # (batch, tokens); gives (batch, tokens, hidden)
        """
        raise NotImplementedError

    def logits(self, x: Tensor) -> Tensor:
        """The logits, given the last hidden layer.  x: # (batch, tokens, hidden); gives (batch, tokens, vocabulary)"""
        raise NotImplementedError

    def encode(
        self, source: Tensor, lengths: Tensor | None = None, attention_hook: AttentionHook | None = None
    ) -> FixedLengthState:
        source = self.check_source(source, lengths)
        mask = None
        if lengths is not None:
            mask = torch.arange(source.shape[1], device=source.device) < lengths[:, None]  # (batch, tokens)
        total = self.project_source(source, mask) + self.bias  # (batch, hidden)
        length = torch.zeros(source.shape[0], dtype=torch.long, device=source.device)
        return FixedLengthState({"sum": _accumulator(total), "length": length}, memory_lengths=lengths)

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        assert isinstance(state, FixedLengthState)
        limit, new = self.config.max_length, tokens.shape[1]
        positions = positions_after(state.rows["length"], new)  # (rows, tokens)
        added = self.project_target(tokens, positions, min(state.extent + new, limit))
        seen = (positions < limit)[..., None]
        sums = state.rows["sum"][:, None] + _accumulator(added * seen).cumsum(1)  # (rows, tokens, hidden)
        state.rows = state.rows | {"sum": sums[:, -1]}
        state.advance(new)
        return self.logits(self.network(sums.to(added.dtype)))


class HiddenLayers(nn.Module):
    """Hidden layers with ReLU and dropout, from the sums of the first one on."""

    def __init__(self, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        linears = [nn.Linear(hidden, hidden) for _ in range(layers - 1)]
        for layer in linears:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(linears)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x: # (batch, tokens, hidden), the same shape comes out"""
        x = self.dropout(x.relu())
        for layer in self.layers:
            x = self.dropout(layer(x).relu())
        return x


def positions_after(lengths: Tensor, tokens: int) -> Tensor:
    """The positions of new tokens.  lengths: # (rows,), before them; gives (rows, tokens)"""
    return lengths[:, None] + torch.arange(tokens, device=lengths.device)


def _accumulator(x: Tensor) -> Tensor:
    """In at least float32, because sums of many small numbers are not exact enough in 16 bits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
