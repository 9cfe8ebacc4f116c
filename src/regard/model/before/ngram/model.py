"""n-gram models: the next token depends on the n − 1 tokens before it alone (Markov 1913, Shannon 1948).

The model is a table of probabilities, estimated by counting (`estimation.py`) and never trained by gradients. Of
what was not seen in a text, it backs off: the probability given a shorter context, times the weight γ that the longer
context leaves to it. This is the form in which ARPA files store such models (`arpa.py`).

The logits are log-probabilities. Contexts are looked up by binary search in the sorted keys of each order, and the
continuations of a context are adjacent, so the probabilities of the whole vocabulary are those of the shortest context,
over which each longer one writes its own.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.context import AttentionHook
from regard.config import ConfigError
from regard.errors import UserError
from regard.model.autoregressive import check_length
from regard.model.before.base import CausalLMConfig, CausalSequenceModel
from regard.model.before.ngram.estimation import IMPOSSIBLE, Ngrams, estimate
from regard.model.before.state import RecurrentState
from regard.model.embedding import SpecialTokensConfig, out_of_vocabulary

_CHUNK = 1 << 22
"""How many continuations are looked up at once."""
_MAX_ENTRIES = 1 << 40


class NgramConfig(CausalLMConfig):
    """An n-gram model with interpolated modified Kneser–Ney smoothing."""

    kind: Literal["ngram"] = "ngram"
    order: int = Field(default=3, ge=1, le=1000)
    """The length of the longest n-grams: a token is predicted from the order − 1 tokens before it."""
    prune: tuple[Annotated[int, Field(ge=0, le=_MAX_ENTRIES)], ...] = Field(default=(), strict=False)
    """By order, beginning with 0 for single tokens: n-grams seen at most this often are dropped. The last value holds
    for all longer n-grams. If not given, none are."""
    discount_fallback: bool = True
    """Whether discounts that a text is too small or too regular to estimate are 0.5, 1 and 1.5; otherwise such a text
    is refused."""
    entries: tuple[Annotated[int, Field(ge=0, le=_MAX_ENTRIES)], ...] = Field(default=(), strict=False)
    """How many n-grams there are of each order from 2 on. Counting fills this in."""
    max_continuations: tuple[Annotated[int, Field(ge=0, le=_MAX_ENTRIES)], ...] = Field(default=(), strict=False)
    """The most n-grams of each order from 2 on that share their first n − 1 tokens. Counting fills this in."""

    @model_validator(mode="after")
    def _check_orders(self) -> Self:
        if len(self.prune) > self.order:
            raise ConfigError("prune", f"found {len(self.prune)} thresholds for n-grams of order {self.order}.")
        if self.prune and (self.prune[0] != 0 or list(self.prune) != sorted(self.prune)):
            raise ConfigError("prune", f"found {list(self.prune)}; begin with 0, and never decrease with the order.")
        for name in ("entries", "max_continuations"):
            values = getattr(self, name)
            if values and len(values) != self.order - 1:
                raise ConfigError(name, f"expected {self.order - 1} sizes, found {list(values)}.")
        if any(most > self.vocab_size for most in self.max_continuations):
            raise ConfigError("max_continuations", f"a context has at most {self.vocab_size} continuations.")
        return self

    def build(self) -> "NgramLM":
        return NgramLM(self)


class NgramTable(nn.Module):
    """The n-grams of one order, sorted by key: index of the prefix × size of the vocabulary + last token."""

    keys: Tensor  # (entries,)
    logprobs: Tensor  # (entries,)
    backoffs: Tensor  # (entries,)

    def __init__(self, entries: int, *, has_keys: bool, is_context: bool) -> None:
        super().__init__()
        if has_keys:
            self.register_buffer("keys", torch.full((entries,), -1))
        self.register_buffer("logprobs", torch.zeros(entries))
        if is_context:
            self.register_buffer("backoffs", torch.zeros(entries))

    def find(self, keys: Tensor) -> Tensor:
        """The index of each key; −1 where there is no such n-gram."""
        if not len(self.keys):
            return torch.full_like(keys, -1)
        found = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[found] == keys, found, -1)


class NgramLM(CausalSequenceModel):
    """Looks up the log-probabilities of the next token. The state is where the contexts are in the tables."""

    supports_packing = True

    def __init__(self, config: NgramConfig) -> None:
        super().__init__()
        self.config: NgramConfig = config
        sizes = (config.vocab_size, *(config.entries or (0,) * (config.order - 1)))
        self.tables = nn.ModuleList(
            NgramTable(size, has_keys=number > 0, is_context=number < config.order - 1)
            for number, size in enumerate(sizes)
        )
        special = config.special_tokens
        never = [token for token in {special.pad, special.bos} if token is not None and config.vocab_size > 2]
        logprobs = self._table(1).logprobs.fill_(-float(np.log(config.vocab_size - len(never))))
        logprobs[never] = IMPOSSIBLE

    @property
    def device(self) -> torch.device:
        return self._table(1).logprobs.device

    def fit(self, tokens: NDArray[Any], offsets: NDArray[Any] | None = None) -> None:
        """Count the n-grams of documents that lie one behind the other; earlier counts are replaced.

        A document begins at each of the `offsets`, and behind each EOS.
        """
        config = self.config
        ngrams = estimate(
            tokens,
            order=config.order,
            vocab_size=config.vocab_size,
            offsets=offsets,
            prune=config.prune,
            fallback=config.discount_fallback,
            **config.special_tokens.plain(),
        )
        self.set_tables(ngrams)

    def set_tables(self, ngrams: Sequence[Ngrams]) -> None:
        """Replace all n-grams. Those of each order must be sorted by key."""
        size, logprobs = self.config.vocab_size, self._table(1).logprobs
        changes = {
            "entries": tuple(len(each.keys) for each in ngrams[1:]),
            "max_continuations": tuple(each.max_continuations(size) for each in ngrams[1:]),
        }
        self.config = NgramConfig(**(self.config.plain() | changes))
        for number, each in enumerate(ngrams):
            table = self._table(number + 1)
            if number:
                table.keys = torch.from_numpy(each.keys).to(logprobs.device)
            table.logprobs = torch.from_numpy(each.logprobs).to(logprobs)
            if each.backoffs is not None:
                table.backoffs = torch.from_numpy(each.backoffs).to(logprobs)

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Tensor | None = None,
        documents: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> Tensor:
        """The log-probabilities of the token after each token.  tokens: # (batch, tokens)

        Packed documents need no mask: each begins with a token that no n-gram has in its middle.
        """
        check_length(tokens.shape[1], self.max_positions)
        return self.decode(tokens, self.initial_state(tokens.shape[0]), attention_hook)

    def initial_state(self, rows: int) -> RecurrentState:
        """No context: neither the last token is known, nor any before it."""
        return RecurrentState({"contexts": torch.full((rows, self.config.order - 1), -1, device=self.device)})

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        contexts = self._contexts(tokens.long(), state.rows["contexts"])
        state.rows = {"contexts": contexts[:, -1]}
        return self._logprobs(contexts.flatten(0, 1)).view(*tokens.shape, -1)

    def _contexts(self, tokens: Tensor, before: Tensor) -> Tensor:
        """Where the last 1, 2 … order − 1 tokens up to each token are in the tables of their order; −1 if nowhere.

        tokens: # (rows, tokens); before, those up to the last token: # (rows, order − 1)
        """
        size = self.config.vocab_size
        found: list[Tensor] = []
        for length in range(1, self.config.order):
            if length == 1:
                found.append(tokens)
            else:  # the n-gram that ends at the token before, and this token
                prefix = torch.cat((before[:, length - 2 : length - 1], found[-1][:, :-1]), dim=1)  # (rows, tokens)
                at = self._table(length).find(prefix * size + tokens)
                found.append(torch.where(prefix >= 0, at, -1))
        return torch.stack(found, dim=2) if found else before[:, None].expand(-1, tokens.shape[1], -1)

    def _logprobs(self, contexts: Tensor) -> Tensor:
        """The log-probabilities of all tokens.  contexts: # (contexts, order − 1); gives (contexts, vocabulary)"""
        logprobs = self._table(1).logprobs.repeat(len(contexts), 1)
        for length in range(1, self.config.order):
            at = contexts[:, length - 1]
            logprobs += self._backoffs(length, at)[:, None]
            most = self.config.max_continuations[length - 1] if self.config.max_continuations else 0
            if most:
                step = max(1, _CHUNK // most)
                for part, some in zip(at.split(step), logprobs.split(step), strict=True):
                    self._write_continuations(self._table(length + 1), part, some, most)
        return logprobs

    def _backoffs(self, length: int, at: Tensor) -> Tensor:
        """The back-off weights of contexts of this length; 0 for those that were never seen.  # (contexts,)"""
        backoffs = self._table(length).backoffs
        if not len(backoffs):
            return backoffs.new_zeros(len(at))
        if length > 1:
            return torch.where(at >= 0, backoffs[at.clamp(min=0)], 0)
        try:
            return functional.embedding(at, backoffs[:, None]).squeeze(1)
        except IndexError:
            raise UserError(out_of_vocabulary(at, self.config.vocab_size)) from None

    def _write_continuations(self, table: NgramTable, at: Tensor, logprobs: Tensor, most: int) -> None:
        """Write the probabilities of the n-grams that continue contexts over those of shorter contexts.

        Every context gets `most` places: those that it does not need repeat its last continuation, or, if it has none,
        the value that is there. at: # (contexts,); logprobs: # (contexts, vocabulary)
        """
        size = self.config.vocab_size
        first = torch.searchsorted(table.keys, at * size)[:, None]  # (contexts, 1)
        last = torch.searchsorted(table.keys, (at + 1) * size)[:, None] - 1
        places = torch.arange(most, device=at.device) + first
        places = torch.minimum(places, last).clamp(min=0)  # (contexts, most)
        seen = last >= first
        tokens = torch.where(seen, table.keys[places] % size, 0)
        logprobs.scatter_(1, tokens, torch.where(seen, table.logprobs[places], logprobs[:, :1]))

    def _table(self, length: int) -> NgramTable:
        table = self.tables[length - 1]
        assert isinstance(table, NgramTable)
        return table


def estimate_ngrams(
    documents: Iterable[Sequence[int]],
    order: int,
    vocab_size: int,
    *,
    special_tokens: SpecialTokensConfig | None = None,
    prune: Sequence[int] = (),
    discount_fallback: bool = True,
) -> NgramLM:
    """An n-gram model of documents or sentences, each followed by EOS if there is such a token.

    estimate_ngrams([[3, 4, 5], [4, 3]], order=3, vocab_size=6, special_tokens=SpecialTokensConfig(bos=1, eos=2))
    """
    special = special_tokens or SpecialTokensConfig()
    model = NgramConfig(
        vocab_size=vocab_size,
        special_tokens=special,
        order=order,
        prune=tuple(prune),
        discount_fallback=discount_fallback,
    ).build()
    end = [] if special.eos is None else [special.eos]
    rows = [np.array([*document, *end], dtype=np.int64) for document in documents]
    offsets = np.cumsum([0, *map(len, rows)])
    model.fit(np.concatenate(rows) if rows else np.empty(0, dtype=np.int64), offsets)
    return model
