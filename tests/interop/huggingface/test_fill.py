"""An imported BERT fills gaps as it does in transformers."""

import pytest
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

import regard
from regard.interop import import_huggingface
from regard.task import Filler, Labeller, read_recipe, train
from regard.task.testing import run_tests
from tests.task.encoders import write_recipe
from tests.task.small import quick_runs

from .support import shake
from .texts import ENGLISH


@pytest.fixture
def folder(tmp_path):
    trained = BertWordPieceTokenizer()
    trained.train_from_iterator(ENGLISH * 5, vocab_size=120, show_progress=False)
    directory = tmp_path / "theirs"
    directory.mkdir()
    trained.save_model(str(directory))
    tokenizer = BertTokenizer.from_pretrained(directory)
    tokenizer.save_pretrained(directory)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes))
    shake(model, 1).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("text", ["The [MASK] is old.", "[MASK] the dog [MASK]", "a dog and a [MASK]"])
def test_an_imported_bert_fills_gaps_as_it_does_in_transformers(folder, tmp_path, text):
    import_huggingface(folder, tmp_path / "ours")
    ours = regard.load(tmp_path / "ours")
    assert isinstance(ours, Filler)
    theirs, tokenizer = BertForMaskedLM.from_pretrained(folder).eval(), BertTokenizer.from_pretrained(folder)
    batch = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        chances = theirs(**batch).logits[0].softmax(-1)
    gaps = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
    found = ours.fill(text, top=ours.text.vocabulary)
    assert len(found) == len(gaps)
    for guesses, place in zip(found, gaps, strict=True):
        assert len(guesses) > 50
        for guess in guesses:
            number = tokenizer.convert_tokens_to_ids(guess.text)
            if number == tokenizer.unk_token_id:  # a part of a word is shown without its mark
                number = tokenizer.convert_tokens_to_ids(f"##{guess.text}")
            assert guess.probability == pytest.approx(float(chances[place, number]), abs=1e-5)


@pytest.mark.parametrize("task", ["tagging", "classification"])
def test_an_imported_bert_is_fine_tuned(folder, tmp_path, task):
    import_huggingface(folder, tmp_path / "bert")
    lines = {"tagging": ["the/DT dog/NN", "a/DT cat/NN"], "classification": ["the dog\tone", "a cat\tother"]}[task]
    (tmp_path / "data.txt").write_text("".join(f"{line}\n" for line in lines * 4))
    part = {"path": "data.txt"} | ({"form": "slashes"} if task == "tagging" else {})
    path = write_recipe(tmp_path, task, {"train": [part], "valid": part}, model=None)
    with quick_runs(tmp_path / "cache"):
        trained = train(read_recipe(path, [f"init_from={tmp_path / 'bert'}", "train.steps=3"]), tmp_path / "run")
        again = run_tests(tmp_path / "run")
    ours = regard.load(tmp_path / "run")
    assert isinstance(ours, Labeller)
    assert (ours.config.segments, ours.config.tokens.classify) == (2, 2)
    assert again["valid"].rounded() == trained.scores["valid"].rounded()
