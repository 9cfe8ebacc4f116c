"""The word vectors of a file, of a model's embeddings: which tokens are words, and in and out on the command line."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import regard
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.errors import UserError
from regard.run import load_model, save_model
from regard.task.initial_embeddings import whole_words
from regard.task.word_vectors.opening import open_keyed_vectors
from tests.model.before.samples import SAMPLES
from tests.task.encoders import save_random_encoder
from tests.task.encoders import tokenizer as encoder_tokenizer
from tests.task.small import command

FIXTURES = Path(__file__).parents[2] / "fixtures" / "word_vectors"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = ["the cat sat on the mat", "the dog sat on the log"]
    folder = tmp_path_factory.mktemp("models") / "encoder"
    return save_random_encoder(folder, encoder_tokenizer("word", text), {"kind": "masked_lm"})


def test_words_of_wordpiece_are_the_tokens_that_continue_none() -> None:
    pieces = ["[UNK]", "cat", "##s", "the", "##ing", "."]
    model = models.WordPiece({piece: row for row, piece in enumerate(pieces)}, unk_token="[UNK]")
    assert whole_words(TextTokenizer(Tokenizer(model), unk=0)) == {"cat": 1, "the": 3, ".": 5}


def test_words_of_sentencepiece_are_the_tokens_with_the_sign_of_a_space() -> None:
    tokenizer = Tokenizer(models.BPE({"▁cat": 0, "s": 1, "▁": 2, "▁the": 3, "cat": 4}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    assert whole_words(TextTokenizer(tokenizer)) == {"cat": 0, "the": 3}


def test_embeddings_of_a_model_answer_as_word_vectors(encoder: Path) -> None:
    notes: list[str] = []
    keyed = open_keyed_vectors(encoder, log=notes.append)
    assert {"the", "cat", "sat", "on", "mat"} <= set(keyed.words)
    assert not any(word.startswith(("<", "[")) for word in keyed.words)
    assert "are whole words" in notes[0]
    loaded = load_model(encoder)
    assert loaded.tokenizer is not None
    row = loaded.model.embed_tokens.weight[loaded.tokenizer.token_to_id("cat")]
    np.testing.assert_array_equal(keyed["cat"], row.detach().numpy())


def test_each_side_of_a_translator_has_its_own_words() -> None:
    english, turkish = (open_keyed_vectors("en-tr", side, log=lambda message: None) for side in ("source", "target"))
    assert "father" in english
    assert "kedi" in turkish
    with pytest.raises(UserError, match=r"no vector for 'fahter'; did you mean father"):
        english.near("fahter")


def test_vectors_go_out_and_in_on_the_command_line(encoder: Path, tmp_path: Path) -> None:
    keyed = open_keyed_vectors(encoder, log=lambda message: None)
    done = command("export", encoder, "word2vec-binary", tmp_path / "v.bin")
    assert (done.code, done.out) == (0, f"{tmp_path / 'v.bin'}: exported {len(keyed)} word vectors of dimension "
                                        f"{keyed.dimension} as word2vec-binary.\n")  # fmt: skip
    done = command("import", tmp_path / "v.bin", tmp_path / "v.safetensors")
    assert (done.code, done.err) == (0, "")
    found = open_keyed_vectors(tmp_path / "v.safetensors")
    assert list(found.words) == list(keyed.words)
    np.testing.assert_array_equal(found.vectors, keyed.vectors)
    refused = command("import", tmp_path / "v.bin", tmp_path / "folder")
    assert refused.code == 2
    assert "let" in refused.err
    assert "end with .safetensors" in refused.err


def test_notes_name_a_model_as_it_was_given() -> None:
    notes: list[str] = []
    keyed = open_keyed_vectors("en-tr", log=notes.append)
    assert notes[0].startswith("en-tr: ")
    with pytest.raises(UserError, match=r"^en-tr: there is no vector for 'fahter'"):
        keyed.near("fahter")


def test_load_opens_a_file_of_vectors() -> None:
    found = regard.load(FIXTURES / "gensim.bin")
    np.testing.assert_array_equal(found["queen"], open_keyed_vectors(FIXTURES / "gensim.txt")["queen"])
    with pytest.raises(UserError, match="dtype and fused are for models that generate"):
        regard.load(FIXTURES / "gensim.bin", dtype="int8")


def test_model_without_words_is_refused_in_one_sentence(tmp_path: Path) -> None:
    save_model(next(iter(SAMPLES["ngram"].values())).build(), tmp_path / "ngrams")
    with pytest.raises(UserError, match="without token embeddings has no word vectors"):
        open_keyed_vectors(tmp_path / "ngrams")
