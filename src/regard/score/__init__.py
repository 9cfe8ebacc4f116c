"""Metrics: BLEU and chrF, perplexity, accuracy, masked-token accuracy, labeled bracket F1."""

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

__all__ = [
    "AccuracyScore",
    "BracketScore",
    "Comparison",
    "MaskedLMScore",
    "PerplexityScore",
    "TranslationScore",
    "compare_translations",
    "score_accuracy",
    "score_brackets",
    "score_perplexity",
    "score_sentences",
    "score_translations",
]
