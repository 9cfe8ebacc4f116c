"""How good an output is, by the field's own measures."""

from regard.score.translation import (
    Comparison,
    TranslationScore,
    compare_translations,
    score_sentences,
    score_translations,
)

__all__ = ["Comparison", "TranslationScore", "compare_translations", "score_sentences", "score_translations"]
