"""What each head is worth: how much worse a model gets on a development set when the head is switched off.

By the loss (the mean of −log p over what is asked for), or by BLEU, for which everything is translated anew for each
head. Michel et al. 2019 ("Are Sixteen Heads Really Better than One?", §3) do the same with zeros.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from regard.errors import UserError
from regard.look.development import Development, development_set, each_alone, mean_loss
from regard.look.subject import Subject
from regard.look.switch import Means, every_head, mean_outputs, switched_off
from regard.look.wire import HeadWorth, Measure, Switched, Worth, WorthRequest
from regard.look.writers import TranslationSubject
from regard.task.translate import score_pairs
from regard.task.translation_recipe import ScoreConfig, TranslationRecipe


def head_worths(
    subject: Subject,
    request: WorthRequest,
    folder: Path | None = None,
    alone: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[tuple[int, Worth]]:
    """How many heads there are, and what is known so far: first with all heads, then with one more off each time.

    `alone` is entered for every pass over the development set, and for that only.
    """
    if request.measure == "bleu" and not isinstance(subject, TranslationSubject):
        raise UserError("BLEU is for translations; ask for the loss of this model.")
    development = development_set(subject, request.lines, folder)
    heads = every_head(subject.model)
    means: Means | None = None
    with alone():
        if request.how == "mean":
            with mean_outputs(subject.model) as means:
                each_alone(subject, development.examples)
        whole = _measured(subject, development, request.measure)
    found: list[HeadWorth] = []
    count = len(development.examples)

    def so_far() -> Worth:
        return Worth(measure=request.measure, whole=whole, sentences=count, heads=list(found))

    yield len(heads), so_far()
    for (side, layer), head in heads:
        off = [Switched(side=side, layer=layer, head=head, how=request.how)]
        with alone(), switched_off(subject.model, off, means):
            value = _measured(subject, development, request.measure)
        found.append(HeadWorth(side=side, layer=layer, head=head, value=value, change=value - whole))
        yield len(heads), so_far()


def worth_of_heads(subject: Subject, request: WorthRequest, folder: Path | None = None) -> Worth:
    """The same at once."""
    *_, (_, worth) = head_worths(subject, request, folder)
    return worth


@torch.no_grad()
def _measured(subject: Subject, development: Development, measure: Measure) -> float:
    if measure == "loss":
        return mean_loss(subject, development.examples)
    assert isinstance(subject, TranslationSubject)
    recipe = development.recipe
    score = recipe.score if isinstance(recipe, TranslationRecipe) else ScoreConfig()
    translator = subject.translator
    texts = translator.source_text, translator.target_text
    return score_pairs(translator.translating, *texts, development.pairs, translator.decode, score).bleu
