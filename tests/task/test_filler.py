"""Gaps are found where they are marked, and filled with what the model holds for likely."""

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard import UserError
from regard.attention import Context
from regard.data.tokenizer import TextTokenizer
from regard.task import load_filler
from regard.task.filler import MASK, Filler
from regard.task.senses import compare_senses
from tests.task.encoders import save_random, tokenizer

TEXTS = ["The cat ate the mouse.", "the old cat sat on the mat", "a mouse sat by the old mat", "unable, unkind, untidy"]
FILL = {"kind": "fill"}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Filler:
    """An untrained filler over few words."""
    text = tokenizer("word", ["red old big cat dog"])
    return load_filler(save_random(tmp_path_factory.mktemp("words") / "run", text, FILL))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Filler:
    """An untrained filler over parts of words, two layers deep."""
    text = tokenizer("bpe", TEXTS * 3, 320)
    stack = {"layers": 2, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}}
    return load_filler(save_random(tmp_path_factory.mktemp("pieces") / "run", text, FILL, encoder=stack))


def log_p(filler: Filler, ids: list[int]) -> Tensor:
    with torch.no_grad():
        return filler.encoder(torch.tensor([ids])).double().log_softmax(-1)[0]


def token(text: TextTokenizer, word: str) -> int:
    (number,) = text.encode(word)
    return number


def test_guesses_are_the_likeliest_words_with_the_models_probabilities(words: Filler) -> None:
    (found,) = words.fill("old [MASK] dog", top=5)
    old, dog = token(words.text, "old"), token(words.text, "dog")
    chances = log_p(words, [5, old, 3, dog, 4])[2].exp()  # classify, old, mask, dog, separator
    wanted = {word: float(chances[token(words.text, word)]) for word in ("red", "old", "big", "cat", "dog")}
    assert [guess.text for guess in found] == sorted(wanted, key=lambda word: -wanted[word])
    assert dict(found) == pytest.approx(wanted)


def test_each_gap_is_filled_while_the_others_are_gaps(words: Filler) -> None:
    first, second = words.fill("[MASK] old [MASK]", top=3)
    scores = log_p(words, [5, 3, token(words.text, "old"), 3, 4]).exp()
    assert first[0].probability == pytest.approx(float(scores[1][7:].max()))
    assert second[0].probability == pytest.approx(float(scores[3][7:].max()))


def test_many_texts_are_filled_as_each_alone(pieces: Filler) -> None:
    texts = ["The [MASK] ate the mouse.", "[MASK]", "a [MASK] sat by the [MASK] mat and sat and sat", "un[MASK]"]
    together = pieces.fill_all(texts, top=3)
    for text, found in zip(texts, together, strict=True):
        alone = pieces.fill(text, top=3)
        assert [[guess.text for guess in gap] for gap in found] == [[guess.text for guess in gap] for gap in alone]
        for one, other in zip(found, alone, strict=True):
            assert [guess.probability for guess in one] == pytest.approx(
                [guess.probability for guess in other], rel=1e-4
            )


def test_a_gap_of_two_tokens_is_the_likeliest_of_all_pairs(words: Filler) -> None:
    """p(first) · p(second | first), tried for all of them: there are fewer words than beginnings that are followed."""
    (found,) = words.fill("big [MASK]", top=25, pieces=2)
    big = token(words.text, "big")
    ids = {word: token(words.text, word) for word in ("red", "old", "big", "cat", "dog")}
    begin = log_p(words, [5, big, 3, 3, 4])[2]
    wanted = {}
    for one, other in product(ids, ids):
        rest = log_p(words, [5, big, ids[one], 3, 4])[3]
        wanted[f"{one} {other}"] = float((begin[ids[one]] + rest[ids[other]]).exp())
    said = {guess.text.replace(" ", ""): guess.probability for guess in found}
    assert said == pytest.approx({text.replace(" ", ""): chance for text, chance in wanted.items()})
    assert found[0].probability == max(said.values())


def test_a_gap_behind_a_space_takes_the_place_of_a_word_with_its_space(pieces: Filler) -> None:
    """The row is that of the whole sentence, with the mask where the word's token stood."""
    whole = pieces.text.encode("The cat ate the mouse.")
    cat = token(pieces.text, " cat")
    row = pieces.row("The [MASK] ate the mouse.")
    assert row.ids == [5, *[3 if number == cat else number for number in whole], 4]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "byte", "word"])
@pytest.mark.parametrize("text", ["The [MASK] ate", "[MASK] ate", "un[MASK]", "a [MASK] [MASK]", "the mouse[MASK]"])
def test_a_guess_in_the_place_of_the_mark_is_the_text_the_model_saw(kind: str, text: str, tmp_path: Path) -> None:
    """Its ids, put where the masks were, give that text back; a space that was typed is never lost or doubled."""
    sizes = {"bpe": 320, "unigram": 300}
    filler = load_filler(save_random(tmp_path / "run", tokenizer(kind, TEXTS * 3, sizes.get(kind)), FILL))  # type: ignore[arg-type]
    for gap in filler._filled(filler._gaps(0, filler.row(text)), 0, 4):
        guess = filler._shown(gap)
        parts = text.split(MASK)
        before, after = MASK.join(parts[: gap.number + 1]), MASK.join(parts[gap.number + 1 :])
        seen = filler.text.decode(gap.row)
        if kind != "word":  # which loses spaces
            assert seen == (before + guess + after).replace(
                f" {MASK}" if filler._behind_space is not None else MASK, ""
            )
        if gap.spaced:
            assert guess == guess.lstrip()


@pytest.mark.parametrize("typed", ["⟨mask⟩", "⟨separator⟩", "<mask>", "[SEP]", "[mask]", "[CLS]"])
def test_whatever_else_looks_special_is_plain_text(pieces: Filler, typed: str) -> None:
    row = pieces.row(f"{typed} [MASK]").ids
    assert row[1:-2] == pieces.text.encode(typed)
    assert not pieces.text.special & set(row[1:-2])


def test_a_text_is_filled_with_the_best_of_each_gap(words: Filler) -> None:
    text = "[MASK] cat [MASK]"
    first, second = words.fill(text)
    assert words.filled(text, [first, second]) == f"{first[0].text} cat {second[0].text}"


@pytest.mark.parametrize(("text", "settings", "sentence"), [
    ("no gap here", {}, "There is no gap in 'no gap here'; write"),
    ("a [MASK]", {"top": 0}, "at least one word"),
    ("a [MASK]", {"pieces": 0}, "at least one word of at least one token"),
])  # fmt: skip
def test_what_cannot_be_filled_is_refused(words: Filler, text: str, settings: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        words.fill(text, **settings)


@pytest.mark.parametrize(("head", "sentence"), [
    ({"kind": "none"}, "does not fill gaps: it was trained with the head 'none'"),
    ({"kind": "tag", "labels": ["a", "b"]}, "does not fill gaps: it was trained with the head 'tag'"),
])  # fmt: skip
def test_a_model_that_does_not_fill_is_refused_by_its_name(
    head: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    save_random(tmp_path / "run", tokenizer("character", TEXTS), head)
    with pytest.raises(UserError, match=f"run {sentence}"):
        load_filler(tmp_path / "run")


def test_a_model_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="no encoder of texts: its model is of the kind 'encoder-decoder'"):
        load_filler("en-tr")


# Words in context.


def test_a_words_vector_is_the_mean_of_its_tokens(pieces: Filler) -> None:
    text = "The untidily old cat"
    found = pieces.vectors(text)
    assert found.words == ("The", "untidily", "old", "cat")
    ids = pieces.text.encode(text)
    with torch.no_grad():
        vectors = pieces.encoder.encode(torch.tensor([[5, *ids, 4]]))[0, 1:-1]
    counts = [len(pieces.text.encode(word)) for word in ("The", " untidily", " old", " cat")]
    assert counts[1] > 1
    wanted = [part.mean(dim=0) for part in vectors.split(counts)]
    torch.testing.assert_close(found.vectors, torch.stack(wanted))


def test_punctuation_is_a_word_of_its_own_even_where_it_clings(pieces: Filler) -> None:
    text = "The cat (old) sat, didn't it?"
    found = pieces.vectors(text)
    assert found.words == ("The", "cat", "(", "old", ")", "sat", ",", "did", "n't", "it", "?")
    assert found.vectors.shape == (11, 16)


def test_layers_are_counted_from_what_goes_into_the_first(pieces: Filler) -> None:
    text = "The old cat"
    with torch.no_grad():
        last = pieces.encoder.encoder.norm(pieces.vectors(text, layer=2).vectors)
    torch.testing.assert_close(last, pieces.vectors(text).vectors)  # one token a word, so the norm of means is theirs
    assert not torch.equal(pieces.vectors(text, layer=1).vectors, pieces.vectors(text, layer=2).vectors)
    row = torch.tensor([[5, *pieces.text.encode(text), 4]])
    with torch.no_grad():
        entering = pieces.encoder.input(pieces.encoder.vocabulary(row), Context(row))
    torch.testing.assert_close(pieces.vectors(text, layer=0).vectors, entering[0, 1:-1])
    with pytest.raises(UserError, match="There is no layer 3; this model has layers 1 to 2"):
        pieces.vectors(text, layer=3)


def test_before_any_layer_a_word_has_one_vector_wherever_it_stands(pieces: Filler) -> None:
    one, other = pieces.static_vectors("The old cat").vectors[1], pieces.static_vectors("a big old dog").vectors[2]
    assert torch.equal(one, other)
    here, there = pieces.vectors("The old cat").vectors[1], pieces.vectors("a big old dog").vectors[2]
    assert not torch.allclose(here, there)


def test_a_text_without_words_has_no_vectors(pieces: Filler) -> None:
    with pytest.raises(UserError, match="There is no word in the text"):
        pieces.vectors("  ")


def test_senses_need_sentences_that_have_the_word(pieces: Filler) -> None:
    with pytest.raises(UserError, match="'bank' is not in 'The cat'"):
        compare_senses(pieces, "bank", ["The cat", "a bank"], ["a bank", "the bank"])
    with pytest.raises(UserError, match="two sentences at least; found 1 and 2"):
        compare_senses(pieces, "bank", ["a bank"], ["a bank", "the bank"])
