"""Which language a text is in."""

import pytest

from regard.data.registry import get_dataset
from regard.data.text.pairs import read_pairs
from regard.serve.languages.identification import PROFILES, identify, known_languages
from regard.serve.languages.names import language_name, same_language

SENTENCES = {
    "en": "Where is the nearest station, please?",
    "de": "Wo ist hier der nächste Bahnhof, bitte?",
    "fr": "Où est la gare la plus proche, s'il vous plaît ?",
    "tr": "En yakın istasyon nerede acaba?",
    "es": "¿Dónde está la estación más cercana, por favor?",
    "ru": "Где здесь ближайшая станция?",
    "ja": "一番近い駅はどこですか。",
    "zh": "最近的车站在哪里？",
    "ko": "가장 가까운 역이 어디예요?",
    "el": "Πού είναι ο κοντινότερος σταθμός;",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_sentence_is_identified_among_all_languages(language: str) -> None:
    first = identify(SENTENCES[language], sorted(known_languages()))[0]
    assert first.language == language
    assert first.confidence > 0.5


def test_short_sentences_of_two_languages_are_told_apart() -> None:
    pairs = list(read_pairs(get_dataset("tatoeba-en-tr-small") / "test.tsv.gz"))
    texts = [(text, language) for pair in pairs for text, language in zip(pair, ("en", "tr"), strict=True)]
    right = sum(identify(text, ["en", "tr"])[0].language == language for text, language in texts)
    assert right / len(texts) > 0.97


def test_confidence_is_low_for_a_language_that_was_not_asked_for() -> None:
    (only,) = identify(SENTENCES["es"], ["en"])
    assert only.language == "en"
    assert only.confidence < 0.05


def test_text_without_words_is_anything() -> None:
    assert [guess.language for guess in identify("12:30 !", ["tr", "en"])] == ["tr", "en"]
    assert identify("", ["tr"])[0].confidence == pytest.approx(1 / len(known_languages()))


def test_language_without_statistics_comes_last() -> None:
    assert [guess.language for guess in identify(SENTENCES["tr"], ["xx", "tr"])] == ["tr", "xx"]
    assert identify(SENTENCES["tr"], ["xx"])[0].confidence == 0


def test_region_is_that_of_its_language() -> None:
    assert identify(SENTENCES["zh"], ["en", "zh_Hans"])[0].language == "zh_Hans"


def test_file_is_small() -> None:
    assert PROFILES.stat().st_size < 200_000


def test_names() -> None:
    assert language_name("pt_BR") == "Portuguese"
    assert language_name("qq") == "qq"
    assert same_language("zh-CN", "zh_Hans")
    assert not same_language("zh-TW", "zh_Hans")
