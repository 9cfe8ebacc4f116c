"""An imported BERT predicts masked tokens as in transformers, and can be fine-tuned."""

import pytest
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

import regard
from regard.interop import import_huggingface
from regard.task.classification.pipeline import TextLabeler
from regard.task.evaluate import evaluate
from regard.task.masked_lm.pipeline import FillMask
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.interop.huggingface.support import randomize
from tests.interop.huggingface.texts import ENGLISH
from tests.task.encoders import write_recipe
from tests.task.small import quick_runs


@pytest.fixture
def folder(tmp_path):
    wordpiece = BertWordPieceTokenizer()
    wordpiece.train_from_iterator(ENGLISH * 5, vocab_size=120, show_progress=False)
    directory = tmp_path / "theirs"
    directory.mkdir()
    wordpiece.save_model(str(directory))
    tokenizer = BertTokenizer.from_pretrained(directory)
    tokenizer.save_pretrained(directory)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes))
    randomize(model, 1).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("text", ["The [MASK] is old.", "[MASK] the dog [MASK]", "a dog and a [MASK]"])
def test_predictions_for_masked_tokens_equal_transformers(folder, tmp_path, text):
    import_huggingface(folder, tmp_path / "ours")
    ours = regard.load(tmp_path / "ours")
    assert isinstance(ours, FillMask)
    theirs, tokenizer = BertForMaskedLM.from_pretrained(folder).eval(), BertTokenizer.from_pretrained(folder)
    batch = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        probabilities = theirs(**batch).logits[0].softmax(-1)
    masked_positions = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
    predictions = ours.fill(text, top=ours.tokenizer.vocab_size)
    assert len(predictions) == len(masked_positions)
    for candidates, position in zip(predictions, masked_positions, strict=True):
        assert len(candidates) > 50
        for candidate in candidates:
            token = tokenizer.convert_tokens_to_ids(candidate.text)
            if token == tokenizer.unk_token_id:  # continuation pieces are shown without their ## prefix
                token = tokenizer.convert_tokens_to_ids(f"##{candidate.text}")
            assert candidate.probability == pytest.approx(float(probabilities[position, token]), abs=1e-5)


@pytest.mark.parametrize("task", ["token-classification", "text-classification"])
def test_imported_bert_can_be_fine_tuned(folder, tmp_path, task):
    import_huggingface(folder, tmp_path / "bert")
    lines = {
        "token-classification": ["the/DT dog/NN", "a/DT cat/NN"],
        "text-classification": ["the dog\tone", "a cat\tother"],
    }[task]
    (tmp_path / "data.txt").write_text("".join(f"{line}\n" for line in lines * 4))
    source = {"path": "data.txt"} | ({"format": "slashes"} if task == "token-classification" else {})
    path = write_recipe(tmp_path, task, {"train": [source], "valid": source}, model=None, tokenizer=None)
    with quick_runs(tmp_path / "cache"):
        trained = train(read_recipe(path, [f"init_from={tmp_path / 'bert'}", "train.steps=3"]), tmp_path / "run")
        again = evaluate(tmp_path / "run")
    ours = regard.load(tmp_path / "run")
    assert isinstance(ours, TextLabeler)
    assert (ours.config.token_types, ours.config.special_tokens.cls) == (2, 2)
    assert again["valid"].rounded() == trained.scores["valid"].rounded()
