"""A search among the tokens that can be meant, instead of the whole vocabulary.

For a large vocabulary the last product of every step, which scores each word, is most of the work. Of a given source
few words are a plausible translation. A `Shortlist` knows them: for each source token the likeliest target tokens,
and some that may always come. What is searched together shares one list, made of all
its sources. Scores are made for that list only, choosers see a vocabulary of that size, and what they find gets the
names of the whole vocabulary back.

Probabilities are those among the tokens of the list: they sum to one there, and so are a little higher than the
model's own. Whatever the company, a source finds at least the tokens that it calls for itself; those that its
neighbours call for come with them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import torch
from torch import Tensor

from regard.decode.engine import Request, Worker
from regard.decode.search import Hypothesis, State, move, search
from regard.decode.settings import Wish, make_chooser
from regard.errors import UserError


@dataclass(frozen=True)
class Shortlist:
    """Target tokens that may come: some always, others where a source token calls for them."""

    always: Tensor
    """Tokens that belong to every list.  # (some,)"""
    likeliest: Tensor
    """The tokens that each source token calls for; -1 stands for none.  # (source vocabulary, candidates)"""
    vocabularies: Tensor
    """What tells the source's and the target's vocabulary from others.  # (2, 32), bytes"""

    def tokens(self, sources: Iterable[Sequence[int]], more: Iterable[int] = ()) -> Tensor:
        """The tokens that may come for any of these sources, and `more`, in their order.  # (some,)"""
        read = torch.tensor(sorted({token for source in sources for token in source}), dtype=torch.long)
        given = torch.tensor(sorted(more), dtype=torch.long)
        found: Tensor = torch.cat((self.always.long(), self.likeliest[read].flatten().long(), given)).unique()
        return found[found >= 0]


@torch.inference_mode()
def search_batch_among(
    worker: Worker[State], requests: Sequence[Request], end: int, shortlist: Shortlist
) -> list[list[Hypothesis]]:
    """Requests of one lane, searched together among the tokens that the shortlist has for their sources.

    Tokens that a wish asks for are among them, whatever the shortlist says.
    """
    limits, wishes = [request.limit for request in requests], [request.wish for request in requests]
    state, start = worker.begin([request.source for request in requests], max(limits))
    asked = {token for wish in wishes for tokens in (wish.prefix, *wish.required) for token in tokens}
    tokens = shortlist.tokens((request.source for request in requests), {end, *start.tolist(), *asked})
    among: Among[State] = Among(worker, tokens.to(start.device))
    chooser = make_chooser(
        requests[0].config,
        limits,
        among.place[end],
        wishes=[among.wish(wish) for wish in wishes],
        alternatives=requests[0].alternatives,
        device=start.device,
    )
    found = search(among, state, torch.searchsorted(among.tokens, start), chooser)
    return [[among.real(one) for one in hypotheses] for hypotheses in found]


class Among(Generic[State]):
    """A stepper over some of another's tokens, which it knows by their places among them.

    Where the other has `limited(tokens)`, a stepper that scores these tokens only and otherwise works alike, that is
    used. Elsewhere all are scored and these are taken.
    """

    def __init__(self, stepper: Any, tokens: Tensor) -> None:
        """tokens: # (some,), in their order"""
        self.stepper, self.tokens = stepper, tokens
        self.names: list[int] = tokens.tolist()
        self.place = {token: place for place, token in enumerate(self.names)}
        self.limited = stepper.limited(tokens) if hasattr(stepper, "limited") else None

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens: # (rows, 1), places; gives logits # (rows, 1, some)"""
        real = self.tokens[tokens]
        if self.limited is not None:
            scores: tuple[Tensor, State] = self.limited.step(real, state)
            return scores
        logits, state = self.stepper.step(real, state)
        return logits.index_select(-1, self.tokens), state

    def reorder(self, state: State, rows: Tensor) -> State:
        reordered: State = self.stepper.reorder(state, rows)
        return reordered

    def regroup(self, state: State, rows: Tensor, sources: Tensor | None) -> State:
        return move(self.stepper, state, rows, sources)

    def wish(self, wish: Wish) -> Wish:
        """The same wish in places. What can never come need not be forbidden."""
        if wish.tree is not None:
            raise UserError("A tree is searched for among all its symbols; leave out the shortlist.")
        return replace(
            wish,
            prefix=tuple(self.place[token] for token in wish.prefix),
            required=tuple(tuple(self.place[token] for token in word) for word in wish.required),
            forbidden=tuple(
                tuple(self.place[token] for token in word)
                for word in wish.forbidden
                if all(token in self.place for token in word)
            ),
        )

    def real(self, one: Hypothesis) -> Hypothesis:
        """The same output in tokens."""
        return replace(
            one,
            tokens=tuple(self.names[place] for place in one.tokens),
            alternatives=tuple(
                tuple((self.names[place], chance) for place, chance in each) for each in one.alternatives
            ),
        )
