"""Augmented pairs: letter case as each language writes it, final punctuation, and exact fractions."""

import pytest

from regard import UserError
from regard.data.text.augment import TextAugmentConfig, add_augmented, lowercase, uppercase
from regard.data.text.pairs import Pair


@pytest.mark.parametrize(
    ("language", "text", "upper", "lower"),
    [
        (None, "I win, Iris.", "I WIN, IRIS.", "i win, iris."),
        ("tr", "Iğdır'ı İzmir ile", "IĞDIR'I İZMİR İLE", "ığdır'ı izmir ile"),
        ("az", "İlk Işıq", "İLK IŞIQ", "ilk ışıq"),
        ("de", "Die Straße", "DIE STRASSE", "die straße"),
        ("el", "Οδυσσεύς", "ΟΔΥΣΣΕΎΣ", "οδυσσεύς"),
    ],
)
def test_case_follows_the_language(language: str | None, text: str, upper: str, lower: str) -> None:
    assert uppercase(text, language) == upper
    assert lowercase(text, language) == lower
    assert lowercase(upper, language).replace("ss", "ß") == lower.replace("ss", "ß")


def changed(pair: Pair, **config: object) -> list[Pair | None]:
    return [augmentation.apply(pair) for augmentation in TextAugmentConfig.read(config).augmentations()]


def test_each_side_has_its_language() -> None:
    pair = Pair("I win it.", "Iğdır ilidir.")
    config = {"uppercase": 0.1, "lowercase": 0.1, "target_language": "tr"}
    assert changed(pair, **config) == [("I WIN IT.", "IĞDIR İLİDİR."), ("i win it.", "ığdır ilidir.")]


@pytest.mark.parametrize(
    ("pair", "stripped"),
    [
        (("Yes.", "Evet!"), ("Yes", "Evet")),
        (("What is it ?", "Ne..."), ("What is it", "Ne")),
        (("Wait…", "等一下。"), ("Wait", "等一下")),
        (("Yes.", "Evet"), None),  # only one side has it
        (("Yes", "Evet"), None),
        (("...", "Evet."), None),  # nothing would be left
    ],
)
def test_final_punctuation_is_dropped_from_both_sides(pair: tuple[str, str], stripped: tuple[str, str] | None) -> None:
    assert changed(Pair(*pair), drop_final_punctuation=1.0) == [stripped]


def test_a_pair_without_letters_has_no_other_case() -> None:
    assert changed(Pair("3 + 4", "7"), uppercase=0.5, lowercase=0.5) == [None, None]


def test_fractions_of_added_pairs_are_exact() -> None:
    augmentations = TextAugmentConfig(uppercase=0.3, lowercase=0.05).augmentations()
    pairs = [Pair(f"Word {number}", "Wort") for number in range(100)]
    found = list(add_augmented(pairs, augmentations))
    assert [pair for pair in found if pair in pairs] == pairs
    assert sum(pair.source.isupper() for pair in found) == 30
    assert sum(pair.source.islower() for pair in found) == 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"uppercase": 1.5}, "^uppercase: found 1.5"),
        ({"lowercase": -0.1}, "^lowercase: found -0.1"),
        ({"target_language": "Turkish"}, "^target_language: found 'Turkish'"),
        ({"upercase": 0.1}, "^upercase: unknown key; did you mean 'uppercase'"),
    ],
)
def test_config_errors_name_the_key(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TextAugmentConfig.read(values)
