"""Imported models, which have no recipe, are scored on a user's own files as transformers would score them."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Tokenizer,
    ViTConfig,
    ViTForImageClassification,
)

import regard
from regard import UserError
from regard.interop import import_huggingface
from tests.interop.huggingface.support import randomize
from tests.interop.huggingface.texts import ENGLISH
from tests.task.small import command, write_lines

LABELS = {0: "good", 1: "bad", 2: "other"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def gpt2(tmp_path):
    """The folder of a small GPT-2, and its import."""
    directory = tmp_path / "theirs"
    directory.mkdir()
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(ENGLISH, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    bpe.save_model(str(directory))
    config = GPT2Config(vocab_size=300, n_embd=16, n_head=2, n_layer=2, n_positions=12, bos_token_id=0, eos_token_id=0)
    randomize(GPT2LMHeadModel(config)).save_pretrained(directory)
    import_huggingface(directory, tmp_path / "ours")
    return directory, tmp_path / "ours"


def save_bert(directory, model_class):
    directory.mkdir()
    wordpiece = BertWordPieceTokenizer()
    wordpiece.train_from_iterator(ENGLISH * 5, vocab_size=120, show_progress=False)
    wordpiece.save_model(str(directory))
    tokenizer = BertTokenizer.from_pretrained(directory)
    tokenizer.save_pretrained(directory)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    labels = {"id2label": LABELS, "label2id": {name: number for number, name in LABELS.items()}}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes, **labels)
    randomize(model_class(config), 1).save_pretrained(directory)
    return directory


@torch.no_grad()
def nll(model, tokens):
    """Of each token but the first."""
    logprobs = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
    return float(-logprobs.gather(1, torch.tensor(tokens[1:])[:, None]).sum())


def test_perplexity_of_gpt2_equals_transformers(gpt2, tmp_path):
    directory, ours = gpt2
    text = "\n".join(ENGLISH)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    theirs, tokenizer = GPT2LMHeadModel.from_pretrained(directory).eval(), GPT2Tokenizer.from_pretrained(directory)
    ids = tokenizer(text)["input_ids"]
    expected = 0.0
    for first in range(0, len(ids) - 1, 12):
        window, following = ids[first : first + 12], ids[first + 12 : first + 13]
        with torch.no_grad():
            logprobs = theirs(torch.tensor([window])).logits[0].log_softmax(-1)
        targets = [*window[1:], *following]
        expected -= float(logprobs[: len(targets)].gather(1, torch.tensor(targets)[:, None]).sum())
    score = regard.evaluate(ours, data=tmp_path / "text.txt")["given"]
    assert (score.tokens, score.bytes) == (len(ids) - 1, len(text.encode()) - len(tokenizer.decode(ids[:1]).encode()))
    assert score.nats == pytest.approx(expected, rel=1e-5)
    done = command("score", ours, "--data", tmp_path / "text.txt", "--set", "data.context_length=4", "--device", "cpu")
    assert f"({len(ids) - 1} tokens in windows of 4, " in done.out


def test_log_probabilities_of_lines_equal_transformers(gpt2, tmp_path):
    directory, ours = gpt2
    theirs, tokenizer = GPT2LMHeadModel.from_pretrained(directory).eval(), GPT2Tokenizer.from_pretrained(directory)
    lines = ["The cat sat", "", "Nobody", "in front of it"]
    path = write_lines(tmp_path / "lines.txt", lines)
    done = command("score", ours, "--data", path, "--logprobs", "--json", "--device", "cpu")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [one["text"] for one in found] == lines
    for line, one in zip(lines, found, strict=True):
        ids = [0, *tokenizer(line)["input_ids"]]  # behind <|endoftext|>
        assert one["logprob"] == pytest.approx(-nll(theirs, ids), abs=1e-3)
        assert "".join(token["text"] for token in one["tokens"]) == line
        if line:
            assert one["perplexity"] == pytest.approx(math.exp(nll(theirs, ids) / (len(ids) - 1)), rel=1e-3)


def test_accuracy_of_a_bert_classifier_equals_transformers(tmp_path):
    directory = save_bert(tmp_path / "theirs", BertForSequenceClassification)
    import_huggingface(directory, tmp_path / "ours")
    theirs, tokenizer = (
        BertForSequenceClassification.from_pretrained(directory).eval(),
        BertTokenizer.from_pretrained(directory),
    )
    with torch.no_grad():
        batches = [tokenizer(text, return_tensors="pt", truncation=True, max_length=40) for text in ENGLISH]
        logits = [theirs(**batch).logits[0] for batch in batches]
    ids = [int(row.argmax()) for row in logits]
    ids[0] = (ids[0] + 1) % len(LABELS)  # one is wrong
    labels = [LABELS[number] for number in ids]
    path = write_lines(tmp_path / "test.tsv", [f"{label}\t{text}" for label, text in zip(labels, ENGLISH, strict=True)])
    score = regard.evaluate(tmp_path / "ours", data=path, settings={"columns": [2, 1]})["given"]
    assert (score.items, score.correct) == (len(ENGLISH), len(ENGLISH) - 1)
    nats = -sum(float(row.log_softmax(-1)[number]) for row, number in zip(logits, ids, strict=True))
    assert score.nats == pytest.approx(nats, rel=1e-4)
    with pytest.raises(UserError, match=r"test\.tsv: the model has none of its labels"):  # the columns are swapped
        regard.evaluate(tmp_path / "ours", data=path)


def test_bert_tags_and_masked_tokens_are_scored(tmp_path):
    import_huggingface(save_bert(tmp_path / "tags", BertForTokenClassification), tmp_path / "tagger")
    path = write_lines(tmp_path / "tags.txt", ["the good", "cat bad", "", "dog other"])
    assert regard.evaluate(tmp_path / "tagger", data=path)["given"].items == 3
    import_huggingface(save_bert(tmp_path / "masked", BertForMaskedLM), tmp_path / "filler")
    score = regard.evaluate(tmp_path / "filler", data=write_lines(tmp_path / "text.txt", ENGLISH * 3))["given"]
    assert 10 < score.tokens < 100


@pytest.mark.parametrize("resample", [0, 2, 3])
def test_images_are_scored_as_they_are_classified(resample, tmp_path):
    """Resized by the model's own filter: nearest, bilinear or bicubic."""
    shape = {"hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 2, "num_attention_heads": 4}
    labels = {"id2label": LABELS, "label2id": {name: number for number, name in LABELS.items()}}
    model = ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, **shape, **labels))
    randomize(model).save_pretrained(tmp_path / "theirs")
    processor = {"size": {"height": 16, "width": 16}, "resample": resample, "image_mean": [0.4, 0.5, 0.6]}
    (tmp_path / "theirs" / "preprocessor_config.json").write_text(json.dumps(processor))
    import_huggingface(tmp_path / "theirs", tmp_path / "ours")
    classifier, nats = regard.load(tmp_path / "ours"), 0.0
    rng = np.random.default_rng(0)
    for number, label in enumerate(LABELS.values()):
        path = tmp_path / "images" / label / f"{number}.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(rng.integers(0, 256, (23, 31, 3), dtype=np.uint8)).save(path)
        nats -= math.log(dict(classifier.classify(path))[label])
    score = regard.evaluate(classifier, data=tmp_path / "images")["given"]
    assert (score.items, score.nats) == (3, pytest.approx(nats, rel=1e-4))


def test_imported_model_names_no_test_sets(gpt2):
    done = command("score", gpt2[1])
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--data" in done.err
