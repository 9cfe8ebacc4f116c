"""Metrics: BLEU and chrF, perplexity, accuracy, masked-token accuracy, labeled bracket F1, word similarity, analogy."""

from regard.score.accuracy import AccuracyScore, score_accuracy
from regard.score.brackets import BracketScore, score_brackets
from regard.score.masked_lm import MaskedLMScore
from regard.score.perplexity import PerplexityScore, score_perplexity
from regard.score.translation import (
    Comparison,
    TranslationScore,
    compare_translations,
    score_sentences,
    score_translations,
)
from regard.score.word_vectors import AnalogyScore, WordSimilarityScore, score_word_vectors

__all__ = [
    "AccuracyScore",
    "AnalogyScore",
    "BracketScore",
    "Comparison",
    "MaskedLMScore",
    "PerplexityScore",
    "TranslationScore",
    "WordSimilarityScore",
    "compare_translations",
    "score_accuracy",
    "score_brackets",
    "score_perplexity",
    "score_sentences",
    "score_translations",
    "score_word_vectors",
]
