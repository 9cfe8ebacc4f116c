"""Lexical shortlists: searching only the tokens that a source makes plausible instead of the full vocabulary.

With a large vocabulary the output projection, which scores every token, is most of a step's work, while few tokens are
plausible in a translation of a given source. A `Shortlist` holds them: the most likely target tokens of each source
token, and some that are always included. A batch shares one shortlist, made of all its sources. Only these tokens are
scored; strategies see a vocabulary of that size, and their results are mapped back to the full vocabulary.

Probabilities are normalized over the shortlist, so they are slightly higher than the model's own. Whatever else is in
its batch, a source always has at least the tokens of its own shortlist.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import torch
from torch import Tensor

from regard.decode.batch import BatchDecoderModel, Request, State
from regard.decode.config import Constraints, make_strategy
from regard.decode.constrained_beam import RequiredWord
from regard.decode.forbidden_text import ForbiddenText
from regard.decode.search import search
from regard.decode.strategy import Hypothesis
from regard.errors import UserError


@dataclass(frozen=True)
class Shortlist:
    """The target tokens that may occur: some always, others if a source token makes them plausible."""

    always: Tensor
    """Tokens included for every source.  # (n,)"""
    likeliest: Tensor
    """The most likely target tokens of each source token, padded with -1.  # (source vocab_size, candidates)"""
    vocabularies: Tensor
    """Hashes of the source and the target vocabulary that it was made for.  # (2, 32), bytes"""

    def tokens(self, sources: Iterable[Sequence[int]], more: Iterable[int] = ()) -> Tensor:
        """The tokens that may occur for any of these sources, and `more`, in ascending order.  # (n,)"""
        source_tokens = torch.tensor(sorted({token for source in sources for token in source}), dtype=torch.long)
        extra = torch.tensor(sorted(more), dtype=torch.long)
        likely = self.likeliest[source_tokens].flatten().long()
        found: Tensor = torch.cat((self.always.long(), likely, extra)).unique()
        return found[found >= 0]


@torch.inference_mode()
def search_batch_shortlisted(
    model: BatchDecoderModel[State], requests: Sequence[Request], eos: int, shortlist: Shortlist
) -> list[list[Hypothesis]]:
    """The same as `search_batch`, restricted to the shortlist of these sources.

    Tokens of prefixes and required words are always included.
    """
    constraints = [request.constraints for request in requests]
    max_lengths = [request.max_length for request in requests]
    state, start_tokens = model.prefill([request.source for request in requests], max(max_lengths))
    words = (sequence for each in constraints for word in each.required for sequence in RequiredWord.of(word).sequences)
    needed = {token for tokens in (*words, *(each.prefix for each in constraints)) for token in tokens}
    sources = (request.source for request in requests)
    tokens = shortlist.tokens(sources, {eos, *start_tokens.tolist(), *needed})
    restricted: ShortlistModel[State] = ShortlistModel(model, tokens.to(start_tokens.device))
    strategy = make_strategy(
        requests[0].config,
        max_lengths,
        restricted.index[eos],
        constraints=[restricted.map_constraints(each) for each in constraints],
        alternatives=requests[0].alternatives,
        device=start_tokens.device,
    )
    found = search(restricted, state, torch.searchsorted(restricted.tokens, start_tokens), strategy)
    return [[restricted.map_back(one) for one in hypotheses] for hypotheses in found]


class ShortlistModel(Generic[State]):
    """A model restricted to some tokens, whose ids are their indices in the shortlist.

    If the model has `with_shortlist(tokens)`, which returns a model that scores only these tokens, that is used. If
    not, all tokens are scored and these selected.
    """

    def __init__(self, model: Any, tokens: Tensor) -> None:
        """tokens: # (n,), ascending"""
        self.model, self.tokens = model, tokens
        self.ids: list[int] = tokens.tolist()
        self.index = {token: index for index, token in enumerate(self.ids)}
        self._texts: dict[ForbiddenText, ForbiddenText] = {}
        self._restricted = model.with_shortlist(tokens) if hasattr(model, "with_shortlist") else None

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens: # (rows, 1), indices; returns logits # (rows, 1, n)"""
        ids = self.tokens[tokens]
        if self._restricted is not None:
            result: tuple[Tensor, State] = self._restricted.step(ids, state)
            return result
        logits, state = self.model.step(ids, state)
        return logits.index_select(-1, self.tokens), state

    def map_constraints(self, constraints: Constraints) -> Constraints:
        """The same constraints in shortlist indices. Forbidden tokens outside the shortlist are dropped."""
        if constraints.tree is not None:
            raise UserError("Trees are decoded with all symbols; leave out the shortlist.")
        index = self.index
        return replace(
            constraints,
            prefix=tuple(index[token] for token in constraints.prefix),
            required=tuple(RequiredWord.of(word).mapped(index) for word in constraints.required),
            forbidden=tuple(
                tuple(index[token] for token in word)
                for word in constraints.forbidden
                if all(token in index for token in word)
            ),
            forbidden_text=self._map_text(constraints.forbidden_text),
        )

    def _map_text(self, forbidden: ForbiddenText | None) -> ForbiddenText | None:
        if forbidden is not None and forbidden not in self._texts:
            self._texts[forbidden] = forbidden.for_tokens(tuple(self.ids))
        return None if forbidden is None else self._texts[forbidden]

    def map_back(self, hypothesis: Hypothesis) -> Hypothesis:
        """The same hypothesis in token ids."""
        ids = self.ids
        return replace(
            hypothesis,
            tokens=tuple(ids[index] for index in hypothesis.tokens),
            alternatives=tuple(
                tuple((ids[index], logprob) for index, logprob in step) for step in hypothesis.alternatives
            ),
        )
