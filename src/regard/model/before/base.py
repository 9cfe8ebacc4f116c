"""The base of the models that came before the Transformer: what a new one inherits, and what it must say.

A model is one file: a config with a `kind` of its own that can `build` it, and a module with two methods. `encode` (or
`initial_state`, without a source) makes the state that decoding starts from; `decode` takes some tokens from a state to
the next, and gives the logits after each. The forward pass of training is `decode` over the whole target from the first
state, and a decoding step is `decode` over one token, so there is no second implementation that could differ.
"""

from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.config import Config, ConfigError
from regard.errors import UserError
from regard.model.autoregressive import CausalLM, GenerativeModel, Seq2SeqLM, check_length
from regard.model.before.state import RecurrentState
from regard.model.embedding import SpecialTokensConfig, TokenEmbedding

Dropout = Field(default=0.1, ge=0, lt=1)
AttentionType = Literal["encoder", "decoder", "cross"]


class SequenceConfig(Config):
    """What the configs of all models before the Transformer have."""

    vocab_size: int = Field(ge=1, le=10_000_000)
    """The size of the vocabulary."""
    special_tokens: SpecialTokensConfig = SpecialTokensConfig()

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """The name of the architecture: every config declares `kind: Literal["…"] = "…"`."""

    @model_validator(mode="after")
    def _check_special_tokens(self) -> Self:
        for name, token_id in self.special_tokens.plain().items():
            if token_id is not None and token_id >= self.vocab_size:
                raise ConfigError(
                    f"special_tokens.{name}", f"id {token_id} is outside the vocabulary of {self.vocab_size}."
                )
        return self

    def build(self) -> Any:
        """The model, with initial weights."""
        raise NotImplementedError


class Seq2SeqConfig(SequenceConfig):
    """The config of a model with a source and a target."""

    source_vocab_size: int | None = Field(default=None, ge=1, le=10_000_000)
    """The size of the source's vocabulary, where it is another than the target's."""


class CausalLMConfig(SequenceConfig):
    """The config of a model of one sequence."""


class AlignmentModule(nn.Module):
    """A module that calls `attention_hook(self, weights)`: the base of every attention before the Transformer's.

    These papers spoke of alignment: how much a target token is aligned with each token of the source. A model lists
    such modules (`attention_modules`), so that they can be recorded and drawn.
    """

    heads = 1
    """The number of heads."""
    attention_types: tuple[AttentionType, ...] = ("cross",)
    """What it attends to: "cross" is the source, "encoder" the source from within, "decoder" the target so far. A
    module that attends to the source and to the target so far at once, in this order of keys, has both."""


class _StepModel(GenerativeModel):
    """Decoding steps from `decode`."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        """The logits for the token after each token; the state is updated in place.

        tokens: # (rows, tokens); gives (rows, tokens, vocabulary)
        """
        raise NotImplementedError

    def attention_modules(self) -> dict[AttentionType, list[AlignmentModule]]:
        """The attention modules by type, in order of computation; empty for a model without attention."""
        modules: dict[AttentionType, list[AlignmentModule]] = {}
        for module in self.modules():
            if isinstance(module, AlignmentModule):
                for attention_type in module.attention_types:
                    modules.setdefault(attention_type, []).append(module)
        return modules

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        state: RecurrentState,
        counts: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """The logits for the token after each new token. A row may add one token or a chunk, `counts` of it real.

        tokens: # (rows, new tokens); counts: # (rows,); gives (rows, new tokens, vocabulary)
        """
        if tokens.shape[0] != state.count:
            raise UserError(f"The state has {state.count} rows, but the tokens have {tokens.shape[0]}.")
        if counts is None:
            return self.decode(tokens, state, attention_hook), state
        # All rows take the tokens that all of them have at once, and then one token at a time.
        shared, longest = (int(each) for each in counts.aminmax())
        parts = [self.decode(tokens[:, :shared], state, attention_hook)] if shared else []
        for number in range(shared, longest):
            old = state.rows
            parts.append(self.decode(tokens[:, number : number + 1], state, attention_hook))
            state.blend(counts > number, old)
        missing = tokens.shape[1] - longest
        logits = torch.cat(parts, dim=1)
        return nn.functional.pad(logits, (0, 0, 0, missing)) if missing else logits, state


class SequenceToSequence(_StepModel, Seq2SeqLM):
    """A model of a target given a source."""

    config: Seq2SeqConfig

    def encode(
        self, source: Tensor, lengths: Tensor | None = None, attention_hook: AttentionHook | None = None
    ) -> RecurrentState:
        """Read the source: the state before the first target token.  source: # (batch, tokens); lengths: # (batch,)"""
        raise NotImplementedError

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_lengths: Tensor | None = None,
        target_lengths: Tensor | None = None,
        source_documents: Tensor | None = None,
        target_documents: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> Tensor:
        """The logits for the token after each target token.  # (batch, tokens, vocabulary)

        source, target: # (batch, tokens); rows are padded on the right to the longest.
        """
        if source_documents is not None or target_documents is not None:
            raise UserError(f"A model of kind {self.config.kind!r} takes one pair per row; packed pairs are refused.")
        if source.shape[:1] != target.shape[:1]:
            raise UserError(
                "source and target must have the same number of rows; "
                f"found {tuple(source.shape)} and {tuple(target.shape)}."
            )
        check_length(source.shape[1], self.max_source_positions)
        check_length(target.shape[1], self.max_positions)
        # A batch may have rows of padding only, which nobody reads: as rows of one token, they stay finite.
        lengths = None if source_lengths is None else source_lengths.clamp(min=1)
        return self.decode(target, self.encode(source, lengths, attention_hook), attention_hook)

    @torch.no_grad()
    def start(self, source: Tensor, capacity: int, lengths: Tensor | None = None) -> RecurrentState:
        """The state after the source has been read; its size does not depend on `capacity`."""
        return self.encode(source, lengths)

    def kv_bytes_per_token(self) -> int:
        """Bytes of state for one token of a source, or of one row: what is larger."""
        with torch.device("meta"):
            model = self.config.build()
            state: RecurrentState = model.encode(torch.zeros(1, 2, dtype=torch.long))
        return max(state.nbytes() // 2, 1)

    def source_embedding_of(self, config: Seq2SeqConfig, width: int) -> TokenEmbedding | None:
        """The source's own token embedding; None if both sides share one."""
        return None if config.source_vocab_size is None else TokenEmbedding(config.source_vocab_size, width)


class CausalSequenceModel(_StepModel, CausalLM):
    """A model of one sequence."""

    config: CausalLMConfig

    def initial_state(self, rows: int) -> RecurrentState:
        """The state before the first token."""
        raise NotImplementedError

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        documents: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> Tensor:
        """The logits for the token after each token.  tokens: # (batch, tokens); gives (batch, tokens, vocabulary)"""
        if documents is not None:
            raise UserError(
                f"A model of kind {self.config.kind!r} cannot tell packed documents apart; set data.packing to "
                '"contiguous".'
            )
        check_length(tokens.shape[1], self.max_positions)
        return self.decode(tokens, self.initial_state(tokens.shape[0]), attention_hook)

    @torch.no_grad()
    def start(self, rows: int, capacity: int) -> RecurrentState:
        """The state before the first token; its size does not depend on `capacity`."""
        return self.initial_state(rows)

    def kv_bytes_per_token(self) -> int:
        """Bytes of state for one row: it does not grow with the number of tokens."""
        with torch.device("meta"):
            state = self.config.build().initial_state(1)
        return max(int(state.nbytes()), 1)
