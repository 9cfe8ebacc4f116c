"""BLEU and chrF are sacreBLEU's, with their signatures."""

import os

import pytest
import sacrebleu

from regard import UserError
from regard.score import compare_translations, score_sentences, score_translations

REFERENCES = ["Kedi fareyi yedi.", "Bugün hava çok güzel.", "Ben yarın okula gideceğim.", "Bu kitap kimin?"]
OUTPUTS = ["Kedi fareyi yedi.", "Bugün hava güzel.", "Yarın okula gideceğim.", "Bu kimin kitabı?"]


def test_scores_are_sacrebleus() -> None:
    score = score_translations(OUTPUTS, REFERENCES)
    assert score.bleu == sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES]).score
    assert score.chrf == sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES]).score
    assert score.sentences == 4


def test_bleu_of_a_case_worked_by_hand() -> None:
    # The output a b c d e f against the reference a b c d e g: five of six words, four of five pairs, three of four
    # triples, two of three fours; both are six long, so nothing is taken off for brevity.
    score = score_translations(["a b c d e f"], ["a b c d e g"])
    assert score.bleu == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)


def test_the_same_text_scores_a_hundred() -> None:
    score = score_translations(REFERENCES, REFERENCES)
    assert (score.bleu, score.chrf) == (pytest.approx(100), pytest.approx(100))


def test_signatures_say_how_the_text_was_taken() -> None:
    raw = score_translations(OUTPUTS, REFERENCES)
    tokenised = score_translations(OUTPUTS, REFERENCES, tokenised=True, lowercase=True)
    assert "case:mixed" in raw.bleu_signature
    assert "tok:13a" in raw.bleu_signature
    assert "case:lc" in tokenised.bleu_signature
    assert "tok:none" in tokenised.bleu_signature
    assert raw.chrf_signature != tokenised.chrf_signature


def test_tokenised_text_is_taken_as_it_stands() -> None:
    outputs, references = ["ein mann , der ( allein ) geht ."], ["ein mann, der (allein) geht."]
    assert score_translations(outputs, references).bleu == pytest.approx(100)
    assert score_translations(outputs, references, tokenised=True).bleu < 50


def test_case_counts_unless_told_otherwise() -> None:
    assert score_translations(["THE CAT ATE THE MOUSE"], ["the cat ate the mouse"]).bleu < 1
    assert score_translations(["THE CAT ATE THE MOUSE"], ["the cat ate the mouse"], lowercase=True).bleu > 99


def test_each_sentence_has_its_own_scores() -> None:
    scores = score_sentences(OUTPUTS, REFERENCES)
    assert scores[0] == (pytest.approx(100), pytest.approx(100))
    assert all(0 < bleu < 100 for bleu, _ in scores[1:])


def test_a_system_is_not_found_better_than_itself() -> None:
    found = compare_translations(OUTPUTS, OUTPUTS, REFERENCES, samples=200)
    assert found.first == found.second
    assert found.p_value > 0.9


def test_a_much_worse_system_is_found_out() -> None:
    many = REFERENCES * 25
    broken = [text[: len(text) // 2] for text in many]
    found = compare_translations(many, broken, many, samples=200)
    assert found.first > found.second
    assert found.p_value < 0.01


def test_the_bootstrap_is_the_same_each_time_and_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    one, two = (compare_translations(OUTPUTS, REFERENCES, REFERENCES, samples=50) for _ in range(2))
    assert one == two
    assert os.environ["SACREBLEU_SEED"] == "7"


@pytest.mark.parametrize("outputs", [OUTPUTS[:3], [*OUTPUTS, "x"]])
def test_another_number_of_outputs_than_references_is_refused_with_both(outputs: list[str]) -> None:
    with pytest.raises(UserError, match=f"{len(outputs)} outputs and 4 references"):
        score_translations(outputs, REFERENCES)


def test_nothing_to_score_is_refused() -> None:
    with pytest.raises(UserError, match="nothing to score"):
        score_translations([], [])
