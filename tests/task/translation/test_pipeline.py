"""The translation pipeline: layout, order and batching of texts and lines, and the pretrained model."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from regard import UserError
from regard.data.text.pairs import Pair
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.decode import DecodeConfig
from regard.model import EncoderDecoder, EncoderDecoderConfig
from regard.run import find_model, load_model, save_model
from regard.task.translation.pipeline import LineTranslator, Translator
from regard.task.translation.result import Translation
from regard.task.translation.shortlist import learn_shortlist
from tests.task.small import SEARCH, pairs, random_model, save_random_model, small_tokenizer

FIXTURES = Path(__file__).parents[2] / "fixtures" / "format-1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def uppercasing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Translator:
    """A translator whose "translation" is the sentence in upper case."""

    def uppercase(
        self: Translator, lines: Sequence[str], decode: object = None, progress: object = None, **more: object
    ) -> list[list[Translation]]:
        return [[Translation(line.upper(), 0.0, 0.0, (), ended=True)] for line in lines]

    monkeypatch.setattr(Translator, "translate_sentences", uppercase)
    return Translator.load(folder)


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
def test_layout_is_kept(text: str, uppercasing: Translator) -> None:
    assert uppercasing.translate(text) == text.upper()


def test_sentences_are_translated_one_by_one(uppercasing: Translator) -> None:
    (result,) = uppercasing.translate_batch(["One cat. Two dogs.\n\nThe end"])
    assert [sentence for sentence, _ in result.sentences] == ["One cat.", "Two dogs.", "The end"]


def test_very_long_sentence_is_split(uppercasing: Translator) -> None:
    text = "many words and " * 200
    (result,) = uppercasing.translate_batch([text])
    assert max(len(sentence) for sentence, _ in result.sentences) <= 500
    assert result.text == text.upper()


def test_order_of_texts_is_kept(uppercasing: Translator) -> None:
    assert [one.text for one in uppercasing.translate_batch(["b. B", "", "a"])] == ["B. B", "", "A"]


def test_text_has_as_many_candidates_as_the_sentence_with_most(folder: Path) -> None:
    (result,) = Translator.load(folder).translate_batch(["red cat. Old dog."])
    assert (len(result.texts), result.texts[0]) == (3, result.text)


def test_candidates_are_joined_from_sentences(folder: Path) -> None:
    (result,) = Translator.load(folder).translate_batch(["red cat.\nOld dog."])
    assert result.texts[1] == "\n".join(each[1].text for _, each in result.sentences)


def test_recorded_search_is_the_default(folder: Path) -> None:
    assert Translator.load(folder).decode == SEARCH


def test_beam_size_changes_nothing_else(folder: Path) -> None:
    assert Translator.load(folder).search(7).plain() == SEARCH.plain() | {"beam_size": 7}


def test_translator_computes_in_float32(folder: Path, tmp_path: Path) -> None:
    loaded = load_model(folder)
    save_model(loaded.model.half(), tmp_path / "half", tokenizer=loaded.tokenizer)
    assert {tensor.dtype for tensor in Translator.load(tmp_path / "half").model.parameters()} == {torch.float32}


def test_language_model_is_not_a_translator() -> None:
    place = FIXTURES / "language-model"
    with pytest.raises(UserError) as refused:
        Translator.load(place)
    assert str(refused.value).startswith(f"{place}: This is not a translator: it is a language model")
    assert str(refused.value).endswith("Use `regard generate` with it.")


def test_model_without_tokenizer_is_named(folder: Path, tmp_path: Path) -> None:
    save_model(load_model(folder).model, tmp_path / "bare")
    with pytest.raises(UserError) as refused:
        Translator.load(tmp_path / "bare")
    assert str(refused.value).startswith(f"{tmp_path / 'bare'}: This model has no tokenizer")


def test_unknown_model_lists_the_pretrained_ones() -> None:
    with pytest.raises(UserError, match=r"en-xx: there is no such folder\. Models that ship with regard: .*en-tr"):
        Translator.load("en-xx")


def test_invalid_recorded_search_names_file_and_key(folder: Path, tmp_path: Path) -> None:
    loaded = load_model(folder)
    save_model(loaded.model, tmp_path / "odd", tokenizer=loaded.tokenizer, origin={"decode": {"beam_size": 0}})
    with pytest.raises(UserError, match=r"run\.json: origin\.decode: beam_size: found 0"):
        Translator.load(tmp_path / "odd")


# Single lines

LINES = ["red", "old cat sea", "", "sun", "big dog man sun sea red old", "   ", "cat", "man sea"]
BEAMS = SEARCH
GREEDY = DecodeConfig.read(SEARCH.plain() | {"beam_size": 1})


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return small_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: TextTokenizer) -> EncoderDecoder:
    """In float64, so that rounding, which depends on the batch, never changes a decision."""
    return random_model(tokenizer.vocab_size).double()


def tokens(
    model: EncoderDecoder, tokenizer: TextTokenizer, lines: list[str], decode: DecodeConfig, batch: int | None = None
) -> list[tuple[int, ...]]:
    results = LineTranslator(model, tokenizer, tokenizer, batch_tokens=batch).translate(lines, decode)
    return [best.tokens for best, *_ in results]


@pytest.mark.parametrize("decode", [GREEDY, BEAMS], ids=["greedy", "beam_size"])
@pytest.mark.parametrize("batch", [1, 20, 10_000])
def test_batched_lines_equal_single_lines(
    model: EncoderDecoder, tokenizer: TextTokenizer, decode: DecodeConfig, batch: int
) -> None:
    """Results are in the order of the lines and do not depend on the batch size."""
    alone = [tokens(model, tokenizer, [line], decode)[0] for line in LINES]
    assert len(set(alone)) > len(LINES) // 2
    assert tokens(model, tokenizer, LINES, decode, batch) == alone


@pytest.mark.parametrize("beam_size", [1, 3])
def test_maximum_length_depends_on_the_line_only(
    model: EncoderDecoder, tokenizer: TextTokenizer, beam_size: int
) -> None:
    """Not on the longest line of its batch."""
    decode = DecodeConfig(beam_size=beam_size, max_length_ratio=1.0, max_length_offset=1)
    alone = [tokens(model, tokenizer, [line], decode)[0] for line in LINES]
    assert tokens(model, tokenizer, LINES, decode) == alone


def test_outputs_respect_the_maximum_length(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    """A truncated output is marked as not ended."""
    results = LineTranslator(model, tokenizer, tokenizer).translate(["red", "sun"], GREEDY)
    assert [(len(best.tokens), best.ended) for best, *_ in results] == [(12, False)] * 2


def test_blank_line_stays_blank(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    results = tokens(model, tokenizer, LINES, GREEDY)
    assert [number for number, row in enumerate(results) if not row] == [2, 5]


def test_no_lines_give_no_results(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    assert LineTranslator(model, tokenizer, tokenizer).translate([], GREEDY) == []


def test_candidates_are_sorted_by_score(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    for results in LineTranslator(model, tokenizer, tokenizer).translate(["red", "old cat sea"], BEAMS):
        scores = [one.score for one in results]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)


def test_candidates_differ(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    (results,) = LineTranslator(model, tokenizer, tokenizer).translate(["old cat sea"], BEAMS)
    assert len({one.tokens for one in results}) == 3


def test_greedy_search_gives_one_candidate(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    assert [len(results) for results in LineTranslator(model, tokenizer, tokenizer).translate(LINES, GREEDY)] == [
        1
    ] * len(LINES)


def test_candidate_text_is_its_decoded_tokens(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    (results,) = LineTranslator(model, tokenizer, tokenizer).translate(["old cat sea"], BEAMS)
    assert [one.text for one in results] == [tokenizer.decode(one.tokens) for one in results]


@pytest.mark.parametrize("decode", [GREEDY, BEAMS], ids=["greedy", "beam_size"])
def test_shortlist_restricts_outputs(model: EncoderDecoder, tokenizer: TextTokenizer, decode: DecodeConfig) -> None:
    given = [Pair(*pair) for pair in pairs(20)]
    shortlist = learn_shortlist(given, tokenizer, tokenizer, candidates=1, frequent=2)
    results = LineTranslator(model, tokenizer, tokenizer, shortlist).translate(LINES, decode)
    known = set(shortlist.tokens(tokenizer.encode_batch(LINES)).tolist())
    assert len(known) < tokenizer.vocab_size
    assert all(set(one.tokens) <= known for each in results for one in each)
    assert [results[number][0].text for number in (2, 5)] == ["", ""]


def test_progress_counts_up_to_all_lines(model: EncoderDecoder, tokenizer: TextTokenizer) -> None:
    progress: list[int] = []
    LineTranslator(model, tokenizer, tokenizer, batch_tokens=20).translate(LINES, GREEDY, progress=progress.append)
    assert len(progress) > 1
    assert progress == sorted(set(progress))
    assert progress[-1] == len(LINES)


@pytest.mark.parametrize("missing", ["bos", "eos"])
def test_model_without_bos_or_eos_cannot_be_decoded(missing: str, model: EncoderDecoder) -> None:
    values = model.config.plain()
    values["special_tokens"][missing] = None
    config = EncoderDecoderConfig.read(values)
    with pytest.raises(UserError, match=r"lacks special_tokens\.bos"):
        config.build().prefill([[5, 6]], 4)


# The pretrained model


def test_pretrained_model_translates() -> None:
    assert Translator.load("en-tr").translate("The cat ate the mouse.") == "Kedi fareyi yedi."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("THE CAT ATE THE MOUSE", "KEDİ FAREYİ YEDİ"),
        ("The cat ate the mouse", "Kedi fareyi yedi"),
        ("how are you", "nasılsın"),
        ("Who are you? WHERE ARE YOU GOING?", "Sen kimsin? NEREYE GİDİYORSUN?"),
    ],
)
def test_pretrained_model_keeps_letter_case_and_punctuation(text: str, expected: str) -> None:
    assert Translator.load("en-tr").translate(text) == expected


def test_pretrained_model_is_at_most_16_megabytes() -> None:
    assert sum(path.stat().st_size for path in find_model("en-tr").rglob("*") if path.is_file()) <= 16_000_000


def test_pretrained_model_has_a_card_with_scores() -> None:
    card = (find_model("en-tr") / "README.md").read_text(encoding="utf-8")
    assert "| test set | BLEU | chrF | sentences |" in card


@pytest.mark.parametrize("name", ["README.md", "LICENSE.txt"])
def test_pretrained_model_credits_tatoeba(name: str) -> None:
    text = (find_model("en-tr") / name).read_text(encoding="utf-8")
    assert "Tatoeba" in text
    assert "tatoeba.org" in text


EVERYDAY = {
    "My brother lives in Ankara.": "Erkek kardeşim Ankara'da yaşıyor.",
    "The children are playing in the garden.": "Çocuklar bahçede oynuyorlar.",
    "She bought two tickets for the concert.": "Konser için iki bilet aldı.",
    "We will meet in front of the museum at five.": "Beşte müzenin önünde buluşacağız.",
    "He forgot his umbrella on the bus.": "Şemsiyesini otobüste unuttu.",
    "Could you open the window a little?": "Pencereyi biraz açabilir misin?",
    "I have been waiting for you since this morning.": "Bu sabahtan beri seni bekliyorum.",
    "Our neighbors have a big black dog.": "Komşularımızın büyük siyah bir köpeği var.",
    "I drink coffee without sugar.": "Şeker olmadan kahve içerim.",
    "The doctor told me to rest for a week.": "Doktor bir hafta dinlenmemi söyledi.",
}
"""Sentences that are not in the training data, and good Turkish for them."""


def test_pretrained_model_translates_unseen_sentences() -> None:
    translator = Translator.load("en-tr")
    result = translator.translate_sentences(list(EVERYDAY))
    assert [best.text for best, *_ in result] == list(EVERYDAY.values())


def test_score_of_a_translation_is_what_the_search_found() -> None:
    translator = Translator.load("en-tr")
    sources = ["The cat ate the mouse.", "Good morning!", "Where is the old house of your mother?"]
    best = [one for one, *_ in translator.translate_sentences(sources)]
    found = translator.score(sources, [one.text for one in best])
    for source, one, logprobs in zip(sources, best, found, strict=True):
        assert (translator.target_tokenizer.encode(one.text), one.ended) == (list(one.tokens), True)
        assert logprobs == pytest.approx(one.token_logprobs, abs=1e-4)
        assert translator.score(source, one.text) == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize(("source", "target"), [(["a", "b"], ["c"]), ("a", ["b"])])
def test_score_needs_a_translation_for_each_source(source: str, target: str, folder: Path) -> None:
    with pytest.raises(UserError, match=r"for each|both alike"):
        Translator.load(folder).score(source, target)
