"""The co-occurrence counts behind a run: those of the text that its recipe trains on, or of another text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.cooccurrence import CooccurrenceConfig, Cooccurrences, cached_cooccurrences
from regard.data.text.documents import TextConfig
from regard.data.text.vocabulary import VOCABULARY, Vocabulary, count_words
from regard.data.text.word_corpus import cached_corpus, corpus_fingerprint
from regard.data.text.words import WordsConfig, read_sentences
from regard.errors import UserError
from regard.model.before.word_vectors.ratios import RatioTable, cooccurrence_ratios
from regard.run import find_model
from regard.task.recipe_io import read_recipe
from regard.task.word_vectors.recipe import WordVectorsRecipe
from regard.train.task import LogFn


@dataclass(frozen=True)
class TextCounts:
    """What was counted in a text."""

    vocabulary: Vocabulary
    cooccurrences: Cooccurrences

    def ratios(self, words: Sequence[str]) -> RatioTable:
        """How likely words are near the first word and near the second: `ice steam solid gas water fashion`."""
        if len(words) < 3:
            raise UserError(
                "Ratios need two words and those to compare near them, such as: ice steam solid gas water fashion."
            )
        first, second, *others = words
        return cooccurrence_ratios(self.cooccurrences, self.vocabulary, first, second, others)


def count_text(
    sources: Sequence[TextConfig],
    words: WordsConfig,
    config: CooccurrenceConfig,
    log: LogFn = lambda message: None,
    vocabulary: Vocabulary | None = None,
) -> TextCounts:
    """The words of a text and their co-occurrences: counted once, then found in the cache."""
    if vocabulary is None:
        vocabulary = count_words(read_sentences(sources, words), words, log)
    corpus = cached_corpus(sources, words, vocabulary, log)
    fingerprint = corpus_fingerprint(sources, words)
    return TextCounts(vocabulary, cached_cooccurrences(corpus, vocabulary, config, fingerprint, log))


def count_run(
    model: str | Path, *, data: str | Path | None = None, window: int | None = None, log: LogFn = lambda message: None
) -> TextCounts:
    """The counts of the text that word vectors were trained on, or of `data`, whose words are split in the same way.

    The window is that of GloVe, if it is GloVe, or else 15 words on either side.
    """
    folder = find_model(model)
    recipe = read_recipe(folder) if (folder / "recipe.toml").is_file() else None
    if not isinstance(recipe, WordVectorsRecipe):
        raise UserError(
            f"{model}: only a run of word vectors knows the text that it was trained on; give one of these."
        )
    is_glove = recipe.model.get("kind") == "glove"
    config = CooccurrenceConfig(window=window or (recipe.data.window if is_glove else 15))
    if data is not None:
        return count_text([TextConfig(path=str(data))], recipe.data.words, config, log)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    return count_text(recipe.data.train, recipe.data.words, config, log, vocabulary)
