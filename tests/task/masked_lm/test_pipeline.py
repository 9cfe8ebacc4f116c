"""The fill-mask pipeline: masks are filled with the model's most likely tokens; contextual word vectors."""

from itertools import product
from pathlib import Path

import pytest
import torch
from benchmarks.quality.word_senses import compare_senses
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from regard import UserError
from regard.attention import Context
from regard.data.tokenizers.tokenizer import SPECIAL_NAMES, TextTokenizer
from regard.task.masked_lm.pipeline import MASK, FillMask
from tests.task.encoders import save_random_encoder, tokenizer

TEXTS = ["The cat ate the mouse.", "the old cat sat on the mat", "a mouse sat by the old mat", "unable, unkind, untidy"]
FILL = {"kind": "masked_lm"}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> FillMask:
    """An untrained model over few words."""
    text = tokenizer("word", ["red old big cat dog"])
    filler = FillMask.load(save_random_encoder(tmp_path_factory.mktemp("words") / "run", text, FILL))
    filler.encoder.double()
    return filler


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> FillMask:
    """An untrained model over subwords, with two layers."""
    text = tokenizer("bpe", TEXTS * 3, 320)
    stack = {"layers": 2, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}}
    return FillMask.load(save_random_encoder(tmp_path_factory.mktemp("pieces") / "run", text, FILL, encoder=stack))


def log_p(filler: FillMask, ids: list[int]) -> Tensor:
    with torch.no_grad():
        return filler.encoder(torch.tensor([ids])).double().log_softmax(-1)[0]


def token(text: TextTokenizer, word: str) -> int:
    (number,) = text.encode(word)
    return number


def test_guesses_are_the_most_likely_words(words: FillMask) -> None:
    (result,) = words.fill("old [MASK] dog", top=5)
    old, dog = token(words.tokenizer, "old"), token(words.tokenizer, "dog")
    probabilities = log_p(words, [5, old, 3, dog, 4])[2].exp()  # cls, old, mask, dog, sep
    expected = {
        word: float(probabilities[token(words.tokenizer, word)]) for word in ("red", "old", "big", "cat", "dog")
    }
    assert [guess.text for guess in result] == sorted(expected, key=lambda word: -expected[word])
    assert dict(result) == pytest.approx(expected)


def test_each_mask_is_filled_while_the_others_stay_masked(words: FillMask) -> None:
    first, second = words.fill("[MASK] old [MASK]", top=3)
    scores = log_p(words, [5, 3, token(words.tokenizer, "old"), 3, 4]).exp()
    assert first[0].probability == pytest.approx(float(scores[1][7:].max()))
    assert second[0].probability == pytest.approx(float(scores[3][7:].max()))


def test_batch_equals_single_texts(pieces: FillMask) -> None:
    texts = ["The [MASK] ate the mouse.", "[MASK]", "a [MASK] sat by the [MASK] mat and sat and sat", "un[MASK]"]
    together = pieces.fill(texts, top=3)
    for text, result in zip(texts, together, strict=True):
        alone = pieces.fill(text, top=3)
        assert [[guess.text for guess in gap] for gap in result] == [[guess.text for guess in gap] for gap in alone]
        for one, other in zip(result, alone, strict=True):
            assert [guess.probability for guess in one] == pytest.approx(
                [guess.probability for guess in other], rel=1e-4
            )


def test_mask_of_two_tokens_is_the_most_likely_pair(words: FillMask) -> None:
    """p(first) · p(second | first) for all pairs: there are fewer words than beams."""
    (result,) = words.fill("big [MASK]", top=25, tokens_per_mask=2)
    big = token(words.tokenizer, "big")
    ids = {word: token(words.tokenizer, word) for word in ("red", "old", "big", "cat", "dog")}
    begin = log_p(words, [5, big, 3, 3, 4])[2]
    expected = {}
    for one, other in product(ids, ids):
        rest = log_p(words, [5, big, ids[one], 3, 4])[3]
        expected[f"{one} {other}"] = float((begin[ids[one]] + rest[ids[other]]).exp())
    filled = {guess.text.replace(" ", ""): guess.probability for guess in result}
    assert filled == pytest.approx({text.replace(" ", ""): p for text, p in expected.items()})
    assert result[0].probability == max(filled.values())


def test_mask_after_a_space_replaces_the_word_with_its_space(pieces: FillMask) -> None:
    """The ids are those of the whole sentence, with the mask in place of the word's token."""
    whole = pieces.tokenizer.encode("The cat ate the mouse.")
    cat = token(pieces.tokenizer, " cat")
    row = pieces.encode_masked("The [MASK] ate the mouse.")
    assert row.ids == [5, *[3 if number == cat else number for number in whole], 4]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "byte", "word"])
@pytest.mark.parametrize("text", ["The [MASK] ate", "[MASK] ate", "un[MASK]", "a [MASK] [MASK]", "the mouse[MASK]"])
def test_filled_text_equals_decoded_ids(kind: str, text: str, tmp_path: Path) -> None:
    """Decoding the filled ids gives the filled text; a typed space is never lost or doubled."""
    sizes = {"bpe": 320, "unigram": 300}
    filler = FillMask.load(save_random_encoder(tmp_path / "run", tokenizer(kind, TEXTS * 3, sizes.get(kind)), FILL))  # type: ignore[arg-type]
    for hypothesis in filler._extend(filler._initial_hypotheses(0, filler.encode_masked(text)), 0, 4):
        guess = filler._text(hypothesis)
        parts, mask = text.split(MASK), hypothesis.mask
        before, after = MASK.join(parts[: mask + 1]), MASK.join(parts[mask + 1 :])
        decoded = filler.tokenizer.decode(hypothesis.ids)
        if kind != "word":  # which loses spaces
            assert decoded == (before + guess + after).replace(
                f" {MASK}" if filler._word_initial is not None else MASK, ""
            )
        if hypothesis.after_space:
            assert guess == guess.lstrip()


@pytest.mark.parametrize("typed", ["⟨mask⟩", "⟨sep⟩", "<mask>", "[SEP]", "[mask]", "[CLS]"])
def test_other_special_tokens_are_plain_text(pieces: FillMask, typed: str) -> None:
    row = pieces.encode_masked(f"{typed} [MASK]").ids
    assert row[1:-2] == pieces.tokenizer.encode(typed)
    assert not pieces.tokenizer.special_ids & set(row[1:-2])


PIECES = ["the", "cat", "un", "##kind", "##s", "(", "."]


@pytest.mark.parametrize(("text", "fitting"), [
    ("the [MASK]", {"the", "cat", "un", "(", "."}),
    ("[MASK] cat", {"the", "cat", "un", "(", "."}),
    ("([MASK] cat", {"the", "cat", "un", "(", "."}),
    ("un[MASK]", {"kind", "s", "(", "."}),
])  # fmt: skip
def test_masks_are_filled_with_what_fits_their_place(text: str, fitting: set[str], tmp_path: Path) -> None:
    """Continuation pieces only directly after a letter, and all pieces, as the vocabulary spells them, on request."""
    library = Tokenizer(models.WordPiece({name: i for i, name in enumerate([*SPECIAL_NAMES.values(), *PIECES])}))
    library.pre_tokenizer, library.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    filler = FillMask.load(save_random_encoder(tmp_path / "run", TextTokenizer(library), FILL))
    (guesses,) = filler.fill(text, top=20)
    assert {guess.text for guess in guesses} == fitting
    (tokens,) = filler.fill(text, top=20, pieces=True)
    assert {guess.text for guess in tokens} == set(PIECES)
    assert sum(guess.probability for guess in guesses) < sum(guess.probability for guess in tokens)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_no_space_is_added_to_an_attached_mask(kind: str, tmp_path: Path) -> None:
    size = {"bpe": 320, "unigram": 300}[kind]
    filler = FillMask.load(save_random_encoder(tmp_path / "run", tokenizer(kind, TEXTS * 3, size), FILL))  # type: ignore[arg-type]
    for text in ("un[MASK]", "([MASK]", "[MASK] ate"):
        (guesses,) = filler.fill(text, top=400)
        assert len(guesses) > 5
        assert not any(guess.text.startswith(" ") for guess in guesses)


def test_filled_uses_the_best_guesses(words: FillMask) -> None:
    text = "[MASK] cat [MASK]"
    first, second = words.fill(text, top=5)
    assert words.fill(text) == words.filled(text, [first, second]) == f"{first[0].text} cat {second[0].text}"


@pytest.mark.parametrize(("text", "settings", "message"), [
    ("no mask here", {}, "There is no mask in 'no mask here'; write"),
    ("a [MASK]", {"top": 0}, r"top \(0\)"),
    ("a [MASK]", {"tokens_per_mask": 0}, r"tokens_per_mask \(0\)"),
])  # fmt: skip
def test_invalid_input_is_refused(words: FillMask, text: str, settings: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        words.fill(text, **settings)


@pytest.mark.parametrize("head", [{"kind": "none"}, {"kind": "token_classification", "labels": ["a", "b"]}])
def test_model_with_another_head_is_refused(head: dict[str, object], tmp_path: Path) -> None:
    save_random_encoder(tmp_path / "run", tokenizer("character", TEXTS), head)
    with pytest.raises(UserError, match=f"run: .*does not fill masks: it was trained with the head '{head['kind']}'"):
        FillMask.load(tmp_path / "run")


def test_model_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="not a text encoder: its model is of the kind 'encoder-decoder'"):
        FillMask.load("en-tr")


# Word vectors


def test_word_vector_is_the_mean_of_its_tokens(pieces: FillMask) -> None:
    text = "The untidily old cat"
    result = pieces.vectors(text)
    assert result.words == ("The", "untidily", "old", "cat")
    ids = pieces.tokenizer.encode(text)
    with torch.no_grad():
        vectors = pieces.encoder.encode(torch.tensor([[5, *ids, 4]]))[0, 1:-1]
    counts = [len(pieces.tokenizer.encode(word)) for word in ("The", " untidily", " old", " cat")]
    assert counts[1] > 1
    expected = [part.mean(dim=0) for part in vectors.split(counts)]
    torch.testing.assert_close(result.vectors, torch.stack(expected))


def test_punctuation_is_a_separate_word(pieces: FillMask) -> None:
    text = "The cat (old) sat, didn't it?"
    result = pieces.vectors(text)
    assert result.words == ("The", "cat", "(", "old", ")", "sat", ",", "did", "n't", "it", "?")
    assert result.vectors.shape == (11, 16)


def test_layers_count_from_the_input(pieces: FillMask) -> None:
    text = "The old cat"
    torch.testing.assert_close(pieces.vectors(text, layer=2).vectors, pieces.vectors(text).vectors)
    assert not torch.equal(pieces.vectors(text, layer=1).vectors, pieces.vectors(text, layer=2).vectors)
    row = torch.tensor([[5, *pieces.tokenizer.encode(text), 4]])
    with torch.no_grad():
        inputs = pieces.encoder.embedding(pieces.encoder.embed_tokens(row), Context(row))
    torch.testing.assert_close(pieces.vectors(text, layer=0).vectors, inputs[0, 1:-1])
    with pytest.raises(UserError, match="There is no layer 3; this model has layers 1 to 2"):
        pieces.vectors(text, layer=3)


def test_static_vectors_do_not_depend_on_context(pieces: FillMask) -> None:
    one, other = pieces.static_vectors("The old cat").vectors[1], pieces.static_vectors("a big old dog").vectors[2]
    assert torch.equal(one, other)
    here, there = pieces.vectors("The old cat").vectors[1], pieces.vectors("a big old dog").vectors[2]
    assert not torch.allclose(here, there)


def test_text_without_words_is_refused(pieces: FillMask) -> None:
    with pytest.raises(UserError, match="The text has no words"):
        pieces.vectors("  ")


def test_senses_need_sentences_that_have_the_word(pieces: FillMask) -> None:
    with pytest.raises(UserError, match="'bank' is not in 'The cat'"):
        compare_senses(pieces, "bank", ["The cat", "a bank"], ["a bank", "the bank"])
    with pytest.raises(UserError, match="at least two sentences; found 1 and 2"):
        compare_senses(pieces, "bank", ["a bank"], ["a bank", "the bank"])
