"""Vectors of words in their sentence, and of sentences: the hidden states of a model, pooled over tokens."""

from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.errors import UserError
from regard.model import AUTOREGRESSIVE_MODELS
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.run import save_model
from regard.task.contextual_vectors.model import ContextModel, tokenize_words
from regard.task.contextual_vectors.vectors import bag_of_vectors
from regard.task.pipeline import Pipeline
from tests.model.before.samples import build as build_before
from tests.model.small_models import build, encoder_decoder, language_model
from tests.task.encoders import save_random_encoder
from tests.task.encoders import tokenizer as encoder_tokenizer

TEXTS = ["I bank only at my local bank.", "We had a picnic by the untidy river bank", "bank", "Rob it, won't you?"]
CHOSEN = {"mean": lambda x: x.mean(dim=0), "first": lambda x: x[0], "last": lambda x: x[-1]}
EXACT = {"rtol": 0, "atol": 1e-5}


class StaticVectors(Pipeline):
    """Stands for a pipeline of static word vectors: it has `keyed`."""

    def __init__(self, keyed: KeyedVectors) -> None:
        self.keyed = keyed


def text_tokenizer():
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), TEXTS * 3)


@pytest.fixture(scope="module", params=["encoder", "language model", "encoder-decoder", "LSTM", "biLSTM", "ConvS2S"])
def pipeline(request, tmp_path_factory) -> Pipeline:
    folder = tmp_path_factory.mktemp("model") / "run"
    if request.param == "encoder":
        return regard.load(save_random_encoder(folder, encoder_tokenizer("bpe", TEXTS, 300), {"kind": "masked_lm"}))
    text = text_tokenizer()
    sizes = {"vocab_size": text.vocab_size, "special_tokens": {"pad": text.pad, "bos": text.bos, "eos": text.eos}}
    config = {
        "language model": language_model(**sizes),
        "encoder-decoder": encoder_decoder(**sizes),
        "LSTM": _config("recurrent-lm", sizes, width=8),
        "biLSTM": _config("bidirectional-lm", sizes, width=8),
        "ConvS2S": _config("convolutional", sizes, width=8, max_length=60),
    }[request.param]
    model = (build if request.param in ("language model", "encoder-decoder") else build_before)(config, torch.float32)
    return regard.load(save_model(model, folder, tokenizer=text.tokenizer))


def _config(kind, sizes, **settings):
    return AUTOREGRESSIVE_MODELS[kind].read({"kind": kind, **sizes, **settings})


def test_word_vectors_are_the_means_of_their_tokens_hidden_states(pipeline):
    model, text = ContextModel(pipeline.loaded), TEXTS[1]
    row = torch.tensor([[*model.before, *model.tokenizer.encode(text), *model.after]])
    with torch.no_grad():
        layers = [state[0, len(model.before) :] for state in pipeline.model.hidden_states(row)]
    words = text.split()
    counts = [len(model.tokenizer.encode(word if number == 0 else f" {word}")) for number, word in enumerate(words)]
    assert max(counts) > 1
    for layer, states in enumerate(layers):
        parts = states[: sum(counts)].split(counts)
        for pooling, chosen in CHOSEN.items():
            found = pipeline.contextual_vectors(text, layer=layer, pooling=pooling)
            assert found.words == tuple(words)
            torch.testing.assert_close(found.vectors, torch.stack([chosen(part) for part in parts]), **EXACT)
    last = pipeline.contextual_vectors(text, layer=len(layers) - 1)
    torch.testing.assert_close(pipeline.contextual_vectors(text).vectors, last.vectors)


def test_a_batch_gives_what_each_sentence_gives_alone(pipeline):
    together = pipeline.contextual_vectors(TEXTS)
    for text, found in zip(TEXTS, together, strict=True):
        alone = pipeline.contextual_vectors(text)
        assert alone.words == found.words
        torch.testing.assert_close(alone.vectors, found.vectors, **EXACT)
    vectors = pipeline.sentence_vectors(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        torch.testing.assert_close(pipeline.sentence_vectors(text), vector, **EXACT)


def test_given_words_are_those_of_the_text(pipeline):
    (found,) = pipeline.contextual_vectors([TEXTS[1].split()])
    torch.testing.assert_close(found.vectors, pipeline.contextual_vectors(TEXTS[1]).vectors)


def test_layers_that_do_not_exist_are_refused(pipeline):
    with pytest.raises(UserError, match="There is no layer 9; this model has layers 1 to"):
        pipeline.contextual_vectors("a bank", layer=9)
    with pytest.raises(UserError, match="pooling: found 'max'; expected mean, first or last"):
        pipeline.contextual_vectors("a bank", pooling="max")


def test_sentence_vectors_are_unit_vectors_and_zero_without_tokens(pipeline):
    vectors = pipeline.sentence_vectors([*TEXTS, ""])
    torch.testing.assert_close(vectors[:4].norm(dim=-1), torch.ones(4))
    if ContextModel(pipeline.loaded).before != [5]:  # CLS and SEP of an encoder have vectors of their own
        assert not vectors[4].any()
    assert pipeline.sentence_vectors([]).shape[0] == 0


def test_all_layers_are_stacked_where_they_have_one_width(tmp_path):
    text = text_tokenizer()
    sizes = {"vocab_size": text.vocab_size, "special_tokens": {"pad": text.pad, "eos": text.eos}}
    model = build_before(_config("bidirectional-lm", sizes, width=8, layers=2), torch.float32)
    pipeline = regard.load(save_model(model, tmp_path / "run", tokenizer=text.tokenizer))
    found = pipeline.contextual_vectors(TEXTS[0], layer="all").vectors
    assert found.shape == (3, 8, 16)
    for layer in range(3):
        assert torch.equal(found[layer], pipeline.contextual_vectors(TEXTS[0], layer=layer).vectors)
    here = pipeline.contextual_vectors(TEXTS[0], layer=0)
    first, second = (number for number, word in enumerate(here.words) if word == "bank")
    torch.testing.assert_close(here.vectors[first], here.vectors[second])
    last = pipeline.contextual_vectors(TEXTS[0])
    assert not torch.allclose(last.vectors[first], last.vectors[second])
    narrow = build_before(_config("convolutional-lm", sizes, width=8, hidden=6, layers=2), torch.float32)
    pipeline = regard.load(save_model(narrow, tmp_path / "narrow", tokenizer=text.tokenizer))
    with pytest.raises(UserError, match=r"different widths \(8, 6, 8\)"):
        pipeline.contextual_vectors(TEXTS[0], layer="all")


def test_words_are_aligned_with_their_tokens():
    text = text_tokenizer()
    words, row, tokens = tokenize_words(text, "Rob it, won't  you?")
    assert words == ("Rob", "it", ",", "wo", "n't", "you", "?")
    spelled = [text.decode([row[one] for one in each]).strip() for each in tokens]
    assert spelled[:3] + spelled[5:] == ["Rob", "it", ",", "you", "?"]
    assert "wo" in spelled[3]
    assert spelled[4].endswith("n't")  # a token may belong to two words
    with pytest.raises(UserError, match="The text has no words"):
        tokenize_words(text, "  ")
    with pytest.raises(UserError, match="A word is empty"):
        tokenize_words(text, ["a", ""])


def test_models_without_text_are_refused(tmp_path):
    model = build(language_model(), torch.float32)
    pipeline = regard.load(save_model(model, tmp_path / "run"))
    with pytest.raises(UserError, match="has no tokenizer"):
        pipeline.contextual_vectors("a bank")
    images = regard.VisionTransformerConfig(
        image_size=8, patch_size=4, width=8, encoder={"layers": 1, "attention": {"heads": 1}}
    )
    pipeline = regard.load(save_model(images.build(), tmp_path / "images"))
    with pytest.raises(UserError, match="reads no text"):
        pipeline.sentence_vectors("a bank")


def test_long_texts_are_refused_or_truncated(tmp_path):
    text = text_tokenizer()
    sizes = {"vocab_size": text.vocab_size, "special_tokens": {"pad": text.pad, "bos": text.bos, "eos": text.eos}}
    model = build_before(_config("convolutional", sizes, width=8, max_length=5), torch.float32)
    pipeline: Pipeline = regard.load(save_model(model, tmp_path / "run", tokenizer=text.tokenizer))
    with pytest.raises(UserError, match="positions for 5 tokens"):
        pipeline.sentence_vectors(TEXTS)
    ids_of = text.encode(TEXTS[1])
    found = pipeline.sentence_vectors([TEXTS[1]], truncate=True)
    torch.testing.assert_close(found[0], pipeline.sentence_vectors(text.decode(ids_of[:4])))


def test_sentence_vectors_of_an_encoder_are_those_of_sentence_bert(tmp_path: Path):
    text = encoder_tokenizer("bpe", TEXTS, 300)
    pipeline = regard.load(save_random_encoder(tmp_path / "run", text, {"kind": "masked_lm"}))
    row = torch.tensor([[5, *text.encode(TEXTS[0]), 4]])
    with torch.no_grad():
        torch.testing.assert_close(pipeline.sentence_vectors([TEXTS[0]]), pipeline.model.sentence_vectors(row))


def test_static_vectors_are_the_same_in_every_sentence():
    keyed = KeyedVectors(["bank", "river", "money"], np.eye(3, dtype=np.float32), name="mine")
    pipeline = StaticVectors(keyed)
    for each in pipeline.contextual_vectors(["The river bank.", "Bank money"]):
        assert "bank" in map(str.lower, each.words)
        for word, vector in zip(each.words, each.vectors, strict=True):
            assert vector.tolist() == keyed[word.lower()].tolist()
    torch.testing.assert_close(
        pipeline.sentence_vectors("the Bank by the river"), torch.tensor([0.5**0.5, 0.5**0.5, 0.0])
    )
    assert not pipeline.sentence_vectors("nothing known").any()
    assert bag_of_vectors(keyed, ["bank bank river"]).tolist() == [[pytest.approx(2 / 3), pytest.approx(1 / 3), 0]]
    with pytest.raises(UserError, match="There is no layer 2; static"):
        pipeline.contextual_vectors("bank", layer=2)
    composed = KeyedVectors(["bank"], keyed.vectors[:1], compose=lambda word: np.ones(3, dtype=np.float32))
    assert StaticVectors(composed).contextual_vectors("banks").vectors.tolist() == [[1, 1, 1]]
