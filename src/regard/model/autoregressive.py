"""What all models that generate text have in common, and what the Transformers among them do.

There are two kinds. A `CausalLM` models one sequence: the next token given the tokens before it. A `Seq2SeqLM` models a
target given a source. Tasks, search, the command line and the inspector ask for one of these, so a Transformer, a
recurrent network and a table of n-grams are trained and decoded by the same code. A model computes all positions at
once in training (`forward`), or step by step while decoding: `start` makes a state, `step` gives the logits of the next
token. Here is what follows from these: how sources and prompts of any length become a batch.

In an `AutoregressiveModel`, the Transformer's, token ids go through a causal stack, and the state is a KV cache.
"""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention import Context, Full, KVCache, Lengths
from regard.attention.context import AttentionHook
from regard.attention.kv_cache import LayerState
from regard.attention.positions.config import AnyPosition, SinusoidalConfig
from regard.config import Config, ConfigError
from regard.errors import UserError
from regard.model.embedding import EmbeddingConfig, EmbeddingLayer, SpecialTokensConfig, TokenEmbedding, check_ids
from regard.model.stack import Stack, StackConfig, check_stack

EMPTY_PROMPT = "An empty prompt needs a BOS token, and this model has none; give it some text."


class GenerativeModel(nn.Module):
    """What both kinds have in common."""

    max_positions_key = "model.position.max_length"
    """The setting that limits the positions, if anything does."""

    if TYPE_CHECKING:
        config: Any

        @property
        def device(self) -> torch.device: ...

        def step(
            self,
            tokens: Tensor,
            state: Any,
            counts: Tensor | None = None,
            attention_hook: AttentionHook | None = None,
        ) -> tuple[Tensor, Any]: ...

        def kv_bytes_per_token(self) -> int: ...

    @property
    def max_positions(self) -> int | None:
        """The most tokens that a sequence (the target, if there is a source) may have; None without a limit."""
        return None

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        """The vectors of a text's tokens after every layer: of the source, if the model has one.

        The first are the embeddings. The last include what follows the layers, such as a final norm: they are what the
        logits, or the decoder, are computed from. In between, a layer's output is the next one's input.

        tokens: # (batch, tokens); lengths: # (batch,); gives (batch, tokens, width) for each layer
        """
        raise UserError(
            f"A model of kind {self.config.kind!r} has no vectors of tokens in their context; use a recurrent or "
            "convolutional network or a Transformer."
        )


class CausalLM(GenerativeModel):
    """A model of one sequence: `forward(tokens)` gives the logits of the token after each token."""

    supports_packing = False
    """Whether several documents can be packed into a row without seeing each other."""
    is_bidirectional = False
    """Whether it also predicts each token from those after it: `forward(tokens, following=…)`, which training uses."""

    if TYPE_CHECKING:

        def start(self, rows: int, capacity: int) -> Any: ...

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]], capacity: int) -> tuple[Any, Tensor]:
        """Run the prompts except for their last tokens; the state has room for `capacity` tokens from those on.

        An empty prompt becomes the BOS token. Gives the state and the last token of each prompt.  # (rows,)
        """
        bos = self.config.special_tokens.bos
        if bos is None and not all(prompts):
            raise UserError(EMPTY_PROMPT)
        rows = [list(prompt) or [bos or 0] for prompt in prompts]
        device = self.device
        longest = max(len(row) for row in rows) - 1
        check_length(longest + 1, self.max_positions)
        state = self.start(len(rows), longest + capacity)
        last = check_ids(torch.tensor([row[-1] for row in rows]), self.config.vocab_size)
        if longest:
            padded = torch.tensor([[*row[:-1], *[0] * (longest + 1 - len(row))] for row in rows])
            counts = torch.tensor([len(row) - 1 for row in rows], device=device)
            self.step(check_ids(padded, self.config.vocab_size).to(device), state, counts)
            state.tighten()
        return state, last.to(device)


class Seq2SeqLM(GenerativeModel):
    """A model of a target given a source: `forward(source, target)` gives the logits after each target token."""

    if TYPE_CHECKING:

        def start(self, source: Tensor, capacity: int, lengths: Tensor | None = None) -> Any: ...

    @property
    def max_source_positions(self) -> int | None:
        """The most tokens that a source may have, EOS included; None without a limit."""
        return None

    @property
    def truncates_source(self) -> bool:
        """Whether only the first tokens of a longer source are read; if not, it is refused."""
        return False

    @torch.no_grad()
    def prefill(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[Any, Tensor]:
        """Encode sources of any length, each with EOS appended; the state has room for `capacity` target tokens.

        Gives the state and the first target tokens.  # (rows,)
        """
        ids, lengths = (tensor.to(self.device) for tensor in self.pad_sources(sources))
        same_length = len({min(len(each), ids.shape[1] - 1) for each in sources}) == 1
        state = self.start(ids, capacity, None if same_length else lengths)
        state.memory_lengths = lengths  # rows of other lengths may be added later
        return state, self.first_tokens(len(sources))

    def pad_sources(self, sources: Sequence[Sequence[int]], step: int = 1) -> tuple[Tensor, Tensor]:
        """Sources with EOS, padded to the longest or to the next multiple of `step`, and their lengths.

        On the CPU.  # (rows, tokens), (rows,)
        """
        tokens = self.config.special_tokens
        if tokens.bos is None or tokens.eos is None:
            raise UserError("This model cannot be decoded: its config lacks special_tokens.bos or special_tokens.eos.")
        limit = self.max_source_positions
        if self.truncates_source and limit is not None:
            sources = [source[: limit - 1] for source in sources]
        lengths = [len(source) + 1 for source in sources]
        check_length(max(lengths), limit)
        longest, pad = -(-max(lengths) // step) * step, tokens.pad or 0
        flat = [each for row in sources for each in (*row, tokens.eos, *[pad] * (longest - len(row) - 1))]
        ids = check_ids(torch.tensor(flat), self.config.source_vocab_size or self.config.vocab_size)
        return ids.view(len(sources), longest), torch.tensor(lengths)

    def first_tokens(self, rows: int) -> Tensor:
        """BOS for each row.  # (rows,)"""
        assert self.config.special_tokens.bos is not None
        return torch.full((rows,), self.config.special_tokens.bos, device=self.device)


def check_length(length: int, limit: int | None) -> None:
    """Refuse a sequence that is longer than there are positions: a GPU would end the process instead."""
    if limit is not None and length > limit:
        raise UserError(
            f"The model has positions for {limit} tokens, but {length} are needed; shorten the text, or train a model "
            "with more positions."
        )


class AutoregressiveConfig(Config):
    """The config of an autoregressive model. The defaults are those of the paper's base model."""

    vocab_size: int = Field(ge=1, le=10_000_000)
    """The size of the vocabulary."""
    width: int = Field(default=512, ge=1, le=1_000_000)
    """The width of the model: the features of each token between layers (d_model)."""
    decoder: StackConfig = StackConfig()
    """The layers of the decoder."""
    position: AnyPosition = SinusoidalConfig()
    """The positional encoding."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    tie_weights: bool = True
    """Whether the token embedding is also the output projection (`lm_head`)."""
    output_bias: bool = False
    """Whether the logits have a bias."""
    special_tokens: SpecialTokensConfig = SpecialTokensConfig()

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        check_stack("decoder", self.decoder, self.width, self.position)
        if self.tie_weights and self.position.token_width(self.width) != self.width:
            raise ConfigError(
                "tie_weights",
                "token embeddings beside a concatenated position are too narrow to score tokens; set it to false.",
            )
        if self.position.needs_length:
            raise ConfigError(
                "position.kind",
                f"{self.position.kind!r} needs the length of the whole text, which is unknown while generating; "
                "choose another.",
            )
        for name, token_id in self.special_tokens.plain().items():
            if token_id is not None and token_id >= self.vocab_size:
                raise ConfigError(
                    f"special_tokens.{name}", f"id {token_id} is outside the vocabulary of {self.vocab_size}."
                )
        return self


class AutoregressiveModel(GenerativeModel):
    """Token embedding, causal stack, logits. `cross_kv` as in `Stack`."""

    def __init__(self, config: AutoregressiveConfig, cross_kv: str | None) -> None:
        super().__init__()
        width = config.width
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.position.token_width(width))
        self.embedding = EmbeddingLayer(config.embedding, config.position, width)
        self.decoder = Stack(config.decoder, width, config.position, causal=True, cross_kv=cross_kv)
        self.lm_head = None if config.tie_weights else TokenEmbedding(config.vocab_size, width)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.output_bias else None

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def max_positions(self) -> int | None:
        """The most tokens that a sequence may have; None without a limit."""
        return self.embedding.embed_positions.max_length

    @property
    def max_source_positions(self) -> int | None:
        """The most tokens that a source may have: encoder and decoder have the same positions."""
        return self.max_positions

    def decode(self, tokens: Tensor, context: Context, states: list[LayerState]) -> Tensor:
        """The logits for the token after each token.  tokens: # (batch, tokens); gives (batch, tokens, vocabulary)"""
        x = self.decoder(self.embedding(self.embed_tokens(tokens), context), context, states)
        return (self.embed_tokens if self.lm_head is None else self.lm_head).logits(x, self.lm_head_bias)

    @torch.no_grad()
    def step(
        self, tokens: Tensor, cache: KVCache, counts: Tensor | None = None, attention_hook: AttentionHook | None = None
    ) -> tuple[Tensor, KVCache]:
        """The logits for the token after each new token. A row may add one token or a chunk, `counts` of it real.

        tokens: # (batch, new tokens); counts: # (batch,); gives (batch, new tokens, vocabulary)
        """
        positions, extent = self.embedding.embed_positions, cache.extent + tokens.shape[-1]
        if counts is None and positions.max_length is not None and extent > positions.max_length:
            cache.tighten()  # its extent may count rows that are gone
            positions.check_length(cache.extent + tokens.shape[-1])
        memory = Full() if cache.memory_lengths is None else Lengths(cache.memory_lengths)
        context = Context.after(cache, tokens, counts, memory=memory, attention_hook=attention_hook)
        logits = self.decode(tokens, context, cache.layers)
        cache.advance(tokens.shape[1], counts)
        return logits, cache

    def has_room(self, cache: KVCache, tokens: int) -> bool:
        """Whether every row has positions for this many more tokens, so that they can be added in one step."""
        max_length = self.embedding.embed_positions.max_length
        return max_length is None or cache.extent + tokens <= max_length

    def with_shortlist(self, tokens: Tensor) -> Self:
        """The same model with logits for these tokens only, in this order.  tokens: # (shortlist,)"""
        lm_head = self.embed_tokens if self.lm_head is None else self.lm_head
        copied = copy.copy(self)
        copied._modules, copied._parameters = dict(self._modules), dict(self._parameters)
        copied.lm_head = TokenEmbedding(0, lm_head.weight.shape[1])
        copied.lm_head.weight = nn.Parameter(lm_head.weight[tokens], requires_grad=False)
        if self.lm_head_bias is not None:
            copied.lm_head_bias = nn.Parameter(self.lm_head_bias[tokens], requires_grad=False)
        return copied

    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache for one more token of one row, and at most for one token of a source."""
        return sum(each.kv_features for each in self.decoder.self_attention()) * self.embed_tokens.weight.element_size()
