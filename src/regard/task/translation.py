"""The task the Transformer was made for: a sentence in one language becomes one in another."""

from pathlib import Path
from typing import Any, Self

import torch

from regard.data.corpus import Corpus
from regard.data.pairs import Pair
from regard.decode import DecodeConfig
from regard.score import TranslationScore, score_translations
from regard.task.job import Score, score_sets
from regard.task.prepare import Prepared, prepare
from regard.task.prompts import Translating, reading
from regard.task.recipe import Say
from regard.task.sequences import SequenceTask
from regard.task.translate import score_pairs, translate_lines
from regard.task.translation_recipe import TranslationRecipe
from regard.task.translator import load_translator
from regard.train.task import Measured
from regard.train.world import ALONE, World


class TranslationTask(SequenceTask):
    """Sentence pairs, an encoder–decoder, the loss of its next words, and the BLEU of what it writes."""

    def __init__(self, recipe: TranslationRecipe, prepared: Prepared, model: Translating, world: World = ALONE) -> None:
        self.recipe, self.prepared = recipe, prepared
        valid = prepared.valid if prepared.valid_pairs else None
        super().__init__(recipe.train, recipe.data.longest, prepared.train, valid, model, world)

    @classmethod
    def begin(cls, recipe: TranslationRecipe, folder: Path, say: Say, world: World) -> Self:
        """Tokenizers, stores of ids and a model with its first weights."""
        prepared, model = world.in_turn(lambda: _model_and_data(recipe, folder, say))
        return cls(recipe, prepared, model, world)

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
        source = reading(data.source, self.model)
        if self.world.size == 1:
            return score_pairs(self.worker(len(pairs)), source, data.target, pairs, decode, how)
        lines = [pair.source for pair in self.world.share(pairs)]
        found = translate_lines(self.worker(len(lines)), source, data.target, lines, decode.only_best())
        outputs = self.world.whole([best.text for best, *_ in found])
        references = [pair.target for pair in pairs]
        return score_translations(outputs, references, tokenised=how.tokenised, lowercase=how.lowercase)

    def test(self, say: Say) -> dict[str, Score]:
        """The test sets, by the search the recipe names; without any, the pairs held out."""
        recipe, data = self.recipe, self.recipe.data
        sets = {name: list(Corpus(name, (part,)).read()) for name, part in data.test.items()}
        if not sets and self.prepared.valid_pairs:
            sets = {"valid" if data.valid is not None else "held-out": self.prepared.valid_pairs}
        return score_sets(recipe, sets, lambda pairs: self.score(pairs, recipe.decode), say)

    def facts(self) -> dict[str, Any]:
        return {"data": self.prepared.fingerprints, "decode": self.recipe.decode.plain()}


def _model_and_data(recipe: TranslationRecipe, folder: Path, say: Say) -> tuple[Prepared, Translating]:
    if recipe.init_from is None:
        prepared = prepare(recipe, folder, say, None)
        shared = prepared.source is prepared.target
        sizes = (prepared.target.vocabulary, None if shared else prepared.source.vocabulary)
        torch.manual_seed(recipe.train.seed)
        return prepared, recipe.model_settings(*sizes).build()
    first = load_translator(recipe.init_from)
    tokenizers = first.source_text, first.target_text
    tokenizers[0].save(folder / "tokenizer.json")
    if tokenizers[1] is not tokenizers[0]:
        tokenizers[1].save(folder / "target_tokenizer.json")
    say(f"Starting from the weights and tokenizers of {recipe.init_from}.")
    torch.manual_seed(recipe.train.seed)
    return prepare(recipe, folder, say, tokenizers), first.translating.train()
