"""The task the Transformer was made for: a sentence in one language becomes one in another."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.data.batch import Batch, TokenBatches
from regard.data.pairs import Pair
from regard.decode import DecodeConfig, Worker
from regard.errors import UserError
from regard.model import EncoderDecoder
from regard.model.experts import balance_of, gathered
from regard.model.writer import Writer
from regard.score import TranslationScore, score_translations
from regard.task.forms import Forms
from regard.task.prepare import Prepared
from regard.task.recipe import Recipe
from regard.task.translate import score_pairs, translate_lines
from regard.train.loss import Loss, consistent_word_loss, word_loss
from regard.train.task import Forward, Measured
from regard.train.world import ALONE, World

_VALIDATION_TOKENS = 8192


class TranslationTask:
    """Sentence pairs, an encoder–decoder, the loss of its next words, and the BLEU of what it writes."""

    def __init__(self, recipe: Recipe, prepared: Prepared, model: EncoderDecoder, world: World = ALONE) -> None:
        self.recipe, self.prepared, self.model, self.world = recipe, prepared, model, world
        train = recipe.train
        try:
            self.batches = TokenBatches(
                prepared.train, train.tokens, seed=train.seed, shapes=train.shapes, limit=recipe.data.longest
            )
        except UserError as error:
            raise UserError(
                f"{error} Raise data.longest ({recipe.data.longest}) or train.tokens ({train.tokens})."
            ) from None

    def loss(self, forward: Forward, batch: Batch) -> Loss:
        """Teacher forcing: every word is predicted from the right words before it."""
        settings = self.recipe.train.loss
        with gathered() as notes:
            scores = self._scores(forward, batch, passes=2 if settings.consistency else 1)
        if settings.consistency:
            loss = consistent_word_loss(
                scores, batch.target, batch.target_lengths, settings.smoothing, settings.consistency, overwrite=True
            )
        else:
            loss = word_loss(scores, batch.target, batch.target_lengths, settings.smoothing, overwrite=True)
        return loss.also(balance_of(notes))

    def plain_loss(self, forward: Forward, batch: Batch) -> Loss:
        return word_loss(self._scores(forward, batch), batch.target, batch.target_lengths)

    def validation(self) -> Iterator[Batch]:
        if self.prepared.valid is None or not self.prepared.valid_pairs:
            return iter(())
        longest = self.recipe.data.longest
        return TokenBatches(self.prepared.valid, max(_VALIDATION_TOKENS, longest), shapes=16, limit=longest).epoch()

    def measure(self) -> Measured | None:
        """BLEU and chrF of greedy translations: quick, and a good guess at what a beam would give."""
        if not self.prepared.valid_pairs:
            return None
        greedy = DecodeConfig(beams=1, longest_factor=self.recipe.decode.longest_factor)
        scored = self.score(self.prepared.valid_pairs, greedy)
        return Measured(scored.bleu, {"bleu": scored.bleu, "chrf": scored.chrf})

    def score(self, pairs: list[Pair], decode: DecodeConfig) -> TranslationScore:
        """How good translations of pairs' sources are; several processes share them out."""
        data, how = self.prepared, self.recipe.score
        if self.world.size == 1:
            return score_pairs(self._worker(len(pairs)), data.source, data.target, pairs, decode, how)
        lines = [pair.source for pair in self.world.share(pairs)]
        found = translate_lines(self._worker(len(lines)), data.source, data.target, lines, decode.only_best())
        outputs = self.world.whole([best.text for best, *_ in found])
        references = [pair.target for pair in pairs]
        return score_translations(outputs, references, tokenised=how.tokenised, lowercase=how.lowercase)

    def _worker(self, inputs: int) -> Worker[Any]:
        """The model, with its weights as they are now, in the form that is fastest for so many inputs."""
        return Forms(self.model).worker(inputs) if isinstance(self.model, Writer) else self.model

    def _scores(self, forward: Forward, batch: Batch, passes: int = 1) -> Tensor:
        """Scores for each target word, given the words before it.  # (passes · rows, length, vocabulary)"""
        tokens = self.model.config.tokens
        assert tokens.start is not None
        start = torch.full_like(batch.target[:, :1], tokens.start)
        before = torch.cat((start, batch.target[:, :-1]), dim=1)
        source, lengths, targets = batch.source, batch.source_lengths, batch.target_lengths
        if passes > 1:
            source, before = source.repeat(passes, 1), before.repeat(passes, 1)
            lengths, targets = lengths.repeat(passes), targets.repeat(passes)
        return forward(source, before, source_lengths=lengths, target_lengths=targets)
