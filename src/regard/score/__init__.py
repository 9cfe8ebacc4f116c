"""How good an output is, by the field's own measures."""

from regard.score.accuracy import AccuracyScore, score_accuracy
from regard.score.brackets import BracketScore, score_brackets
from regard.score.filling import FillScore
from regard.score.language import LanguageScore, score_language
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
    "FillScore",
    "LanguageScore",
    "TranslationScore",
    "compare_translations",
    "score_accuracy",
    "score_brackets",
    "score_language",
    "score_sentences",
    "score_translations",
]
