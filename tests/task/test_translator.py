"""A translator keeps a text's layout; the one that ships is small, good and free to use."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from regard import UserError
from regard.run import find, load, save
from regard.task import Translator, load_translator
from regard.task.translate import Translation
from tests.task.small import SEARCH, save_random_model

FIXTURES = Path(__file__).parents[1] / "fixtures" / "format-1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def loud(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Translator:
    """A translator that says each sentence in capitals."""

    def shout(
        self: Translator, lines: Sequence[str], decode: object = None, progress: object = None, **more: object
    ) -> list[list[Translation]]:
        return [[Translation(line.upper(), 0.0, 0.0, (), ended=True)] for line in lines]

    monkeypatch.setattr(Translator, "translate_sentences", shout)
    return load_translator(folder)


@pytest.mark.parametrize(
    "text",
    [
        "one cat",
        "One cat. Two dogs.",
        "One cat.  Two dogs.\n",
        "A title\n\nOne cat. Two dogs.\n\n\n  - a point\n  - another\n\n1. first\n2. second",
        "\tindented, with a tab\r\nand another line end\r\n",
        " spaces around ",
        "# A heading\n> said he. Then he went.",
        "***\n---\n",
        "",
        "\n\n",
    ],
)
def test_the_layout_of_a_text_is_kept(text: str, loud: Translator) -> None:
    assert loud.translate(text) == text.upper()


def test_sentences_are_translated_one_by_one(loud: Translator) -> None:
    (found,) = loud.translate_all(["One cat. Two dogs.\n\nThe end"])
    assert [sentence for sentence, _ in found.sentences] == ["One cat.", "Two dogs.", "The end"]


def test_a_sentence_of_any_length_is_cut_into_parts_that_a_model_can_take(loud: Translator) -> None:
    text = "many words and " * 200
    (found,) = loud.translate_all([text])
    assert max(len(sentence) for sentence, _ in found.sentences) <= 500
    assert found.text == text.upper()


def test_texts_come_back_in_their_order(loud: Translator) -> None:
    assert [one.text for one in loud.translate_all(["b. B", "", "a"])] == ["B. B", "", "A"]


def test_a_text_has_as_many_candidates_as_its_sentence_with_most(folder: Path) -> None:
    (found,) = load_translator(folder).translate_all(["red cat. Old dog."])
    assert (found.candidates, found.candidate(0)) == (3, found.text)


def test_candidates_of_a_text_are_made_of_those_of_its_sentences(folder: Path) -> None:
    (found,) = load_translator(folder).translate_all(["red cat.\nOld dog."])
    assert found.candidate(1) == "\n".join(each[1].text for _, each in found.sentences)


def test_the_search_is_the_one_the_model_was_made_for(folder: Path) -> None:
    assert load_translator(folder).decode == SEARCH


def test_another_number_of_beams_leaves_the_rest_of_the_search_alone(folder: Path) -> None:
    assert load_translator(folder).search(7).plain() == SEARCH.plain() | {"beams": 7}


def test_a_translator_computes_in_float32_whatever_is_stored(folder: Path, tmp_path: Path) -> None:
    loaded = load(folder)
    save(loaded.model.half(), tmp_path / "half", tokenizer=loaded.tokenizer)
    assert {tensor.dtype for tensor in load_translator(tmp_path / "half").model.parameters()} == {torch.float32}


def test_a_language_model_is_no_translator_and_is_named() -> None:
    place = FIXTURES / "language-model"
    with pytest.raises(UserError) as refused:
        load_translator(place)
    assert str(refused.value) == f"{place}: this is no translator, but a language model: use `regard generate` with it."


def test_a_model_without_tokenizer_is_named(folder: Path, tmp_path: Path) -> None:
    save(load(folder).model, tmp_path / "bare")
    with pytest.raises(UserError) as refused:
        load_translator(tmp_path / "bare")
    assert str(refused.value) == f"{tmp_path / 'bare'}: This model has no tokenizer, so it can take ids but no text."


def test_a_name_that_nothing_has_is_answered_with_those_that_ship() -> None:
    with pytest.raises(UserError, match=r"en-xx: there is no such folder\. Models that ship with regard: .*en-tr"):
        load_translator("en-xx")


def test_a_search_that_makes_no_sense_names_its_file_and_key(folder: Path, tmp_path: Path) -> None:
    loaded = load(folder)
    save(loaded.model, tmp_path / "odd", tokenizer=loaded.tokenizer, origin={"decode": {"beams": 0}})
    with pytest.raises(UserError, match=r"run\.json: origin\.decode: beams: found 0"):
        load_translator(tmp_path / "odd")


# The model that ships.


def test_the_shipped_model_translates_a_sentence() -> None:
    assert load_translator("en-tr").translate("The cat ate the mouse.") == "Kedi fareyi yedi."


def test_the_shipped_model_takes_at_most_sixteen_megabytes() -> None:
    assert sum(path.stat().st_size for path in find("en-tr").rglob("*") if path.is_file()) <= 16_000_000


def test_the_shipped_model_has_a_card_that_says_how_good_it_is() -> None:
    card = (find("en-tr") / "README.md").read_text(encoding="utf-8")
    assert "| test set | sentences | BLEU | chrF |" in card


@pytest.mark.parametrize("name", ["README.md", "LICENCE.txt"])
def test_the_shipped_model_names_tatoeba_whose_sentences_it_learnt_from(name: str) -> None:
    text = (find("en-tr") / name).read_text(encoding="utf-8")
    assert "Tatoeba" in text
    assert "tatoeba.org" in text


EVERYDAY = {
    "My brother lives in Ankara.": "Erkek kardeşim Ankara'da yaşıyor.",
    "The children are playing in the garden.": "Çocuklar bahçede oynuyorlar.",
    "She bought two tickets for the concert.": "Konser için iki bilet aldı.",
    "We will meet in front of the museum at five.": "Beşte müzenin önünde buluşacağız.",
    "He forgot his umbrella on the bus.": "Şemsiyesini otobüste unuttu.",
    "Could you open the window a little?": "Pencereyi biraz açar mısın?",
    "I have been waiting for you since this morning.": "Bu sabahtan beri seni bekliyorum.",
    "Our neighbors have a big black dog.": "Komşularımızın büyük siyah bir köpeği var.",
    "I drink coffee without sugar.": "Kahveyi şekersiz içerim.",
    "The doctor told me to rest for a week.": "Doktor bir hafta dinlenmemi söyledi.",
}
"""Sentences that are not in the training data, and good Turkish for them."""


def test_the_shipped_model_translates_everyday_sentences_it_has_never_seen() -> None:
    translator = load_translator("en-tr")
    found = translator.translate_sentences(list(EVERYDAY))
    assert [best.text for best, *_ in found] == list(EVERYDAY.values())
