"""BLEU and chrF are sacreBLEU's, with their signatures."""

import os

import pytest
import sacrebleu

from regard import UserError
from regard.score import compare_translations, score_sentences, score_translations

REFERENCES = ["Kedi fareyi yedi.", "Bugün hava çok güzel.", "Ben yarın okula gideceğim.", "Bu kitap kimin?"]
OUTPUTS = ["Kedi fareyi yedi.", "Bugün hava güzel.", "Yarın okula gideceğim.", "Bu kimin kitabı?"]


def test_scores_equal_sacrebleu() -> None:
    score = score_translations(OUTPUTS, REFERENCES)
    assert score.bleu == sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES]).score
    assert score.chrf == sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES]).score
    assert score.sentences == 4


def test_bleu_worked_by_hand() -> None:
    # n-gram precisions of 5/6, 4/5, 3/4 and 2/3; both texts have six words, so the brevity penalty is 1.
    score = score_translations(["a b c d e f"], ["a b c d e g"])
    assert score.bleu == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)


def test_identical_text_scores_100() -> None:
    score = score_translations(REFERENCES, REFERENCES)
    assert (score.bleu, score.chrf) == (pytest.approx(100), pytest.approx(100))


def test_signatures_show_the_settings() -> None:
    raw = score_translations(OUTPUTS, REFERENCES)
    tokenized = score_translations(OUTPUTS, REFERENCES, tokenized=True, lowercase=True)
    assert "case:mixed" in raw.bleu_signature
    assert "tok:13a" in raw.bleu_signature
    assert "case:lc" in tokenized.bleu_signature
    assert "tok:none" in tokenized.bleu_signature
    assert raw.chrf_signature != tokenized.chrf_signature


def test_tokenized_text_is_not_tokenized_again() -> None:
    outputs, references = ["ein mann , der ( allein ) geht ."], ["ein mann, der (allein) geht."]
    assert score_translations(outputs, references).bleu == pytest.approx(100)
    assert score_translations(outputs, references, tokenized=True).bleu < 50


def test_case_counts_by_default() -> None:
    assert score_translations(["THE CAT ATE THE MOUSE"], ["the cat ate the mouse"]).bleu < 1
    assert score_translations(["THE CAT ATE THE MOUSE"], ["the cat ate the mouse"], lowercase=True).bleu > 99


def test_sentence_scores() -> None:
    scores = score_sentences(OUTPUTS, REFERENCES)
    assert scores[0] == (pytest.approx(100), pytest.approx(100))
    assert all(0 < bleu < 100 for bleu, _ in scores[1:])


def test_system_does_not_differ_from_itself() -> None:
    comparison = compare_translations(OUTPUTS, OUTPUTS, REFERENCES, samples=200)
    assert comparison.first == comparison.second
    assert comparison.p_value > 0.9


def test_much_worse_system_differs_significantly() -> None:
    many = REFERENCES * 25
    broken = [text[: len(text) // 2] for text in many]
    comparison = compare_translations(many, broken, many, samples=200)
    assert comparison.first > comparison.second
    assert comparison.p_value < 0.01


def test_bootstrap_is_reproducible_and_restores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    one, two = (compare_translations(OUTPUTS, REFERENCES, REFERENCES, samples=50) for _ in range(2))
    assert one == two
    assert os.environ["SACREBLEU_SEED"] == "7"


@pytest.mark.parametrize("outputs", [OUTPUTS[:3], [*OUTPUTS, "x"]])
def test_different_numbers_of_outputs_and_references_are_refused(outputs: list[str]) -> None:
    with pytest.raises(UserError, match=f"{len(outputs)} outputs and 4 references"):
        score_translations(outputs, REFERENCES)


def test_nothing_to_score_is_refused() -> None:
    with pytest.raises(UserError, match="nothing to score"):
        score_translations([], [])
