"""Models before the Transformer in other formats: n-gram models as ARPA files, and one sentence for all others."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard import UserError
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.interop import import_arpa
from regard.model import SpecialTokensConfig
from regard.model.before.ngram.model import estimate_ngrams
from regard.run import load_model, save_model
from tests.model.before.samples import SAMPLES
from tests.task.small import command

TEXT = [
    "the old dog sees a cat",
    "a cat sees the dog",
    "the dog sleeps",
    "the cat sleeps",
    "a bird sees the old cat",
] * 3


@pytest.fixture(scope="module")
def trigrams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a trigram model with a word tokenizer."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="word"), TEXT)
    special = SpecialTokensConfig(pad=tokenizer.pad, bos=tokenizer.bos, eos=tokenizer.eos)
    model = estimate_ngrams(tokenizer.encode_batch(TEXT), 3, tokenizer.vocab_size, special_tokens=special)
    return save_model(model, tmp_path_factory.mktemp("models") / "trigrams", tokenizer=tokenizer.tokenizer)


@pytest.mark.parametrize("kind", sorted(SAMPLES))
@pytest.mark.parametrize("target", ["hf", "ctranslate2", "arpa"])
def test_formats_without_such_models_refuse_them_in_one_sentence(kind: str, target: str, tmp_path: Path) -> None:
    save_model(next(iter(SAMPLES[kind].values())).build(), tmp_path / "run")
    answer = command("export", tmp_path / "run", target, tmp_path / "out")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert ("no tokenizer" if (kind, target) == ("ngram", "arpa") else f"kind '{kind}'") in answer.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
def test_arpa_commands_change_no_probability(name: str, trigrams: Path, tmp_path: Path) -> None:
    out = tmp_path / name
    exported = command("export", trigrams, "arpa", out)
    assert (exported.code, exported.err) == (0, "")
    assert "n-grams of orders 1 to 3" in exported.out
    text = gzip.decompress(out.read_bytes()).decode() if name.endswith(".gz") else out.read_text("utf-8")
    assert text.startswith("\\data\\\nngram 1=12\n")
    assert "\t<unk>\t" in text
    imported = command("import", out, tmp_path / "back")
    assert (imported.code, imported.err) == (0, "")
    lines = [*TEXT[:5], "the unheard-of dog sleeps", "dog"]
    ours, theirs = (regard.load(folder).score(lines) for folder in (trigrams, tmp_path / "back"))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)
    assert command("export", tmp_path / "back", "arpa", tmp_path / "again.arpa").code == 0
    assert sorted((tmp_path / "again.arpa").read_text("utf-8").splitlines()) == sorted(text.splitlines())


def test_imported_model_scores_and_generates(trigrams: Path, tmp_path: Path) -> None:
    command("export", trigrams, "arpa", tmp_path / "model.arpa")
    command("import", tmp_path / "model.arpa", tmp_path / "back")
    (tmp_path / "text.txt").write_text("the dog sleeps\n", encoding="utf-8")
    answers = [
        (
            command("score", folder, "--data", tmp_path / "text.txt", "--logprobs").out,
            command("generate", folder, "the dog", "--temperature", "0").out,
        )
        for folder in (trigrams, tmp_path / "back")
    ]
    assert answers[0] == answers[1]
    assert answers[1][1] == "the dog sleeps\n"


def test_names_of_special_tokens_in_a_text_are_unknown_words(trigrams: Path, tmp_path: Path) -> None:
    command("export", trigrams, "arpa", tmp_path / "model.arpa")
    import_arpa(tmp_path / "model.arpa", tmp_path / "back")
    tokenizer = regard.load(tmp_path / "back").tokenizer
    unknown = tokenizer.tokenizer.token_to_id("<unk>")
    assert set(tokenizer.encode("<s> </s>")) == {unknown}


def test_arpa_file_that_cannot_be_imported_is_refused(trigrams: Path, tmp_path: Path) -> None:
    command("export", trigrams, "arpa", tmp_path / "model.arpa")
    text = (tmp_path / "model.arpa").read_text("utf-8")
    (tmp_path / "without.arpa").write_text(text.replace("<unk>", "other"), encoding="utf-8")
    with pytest.raises(UserError, match=r"without\.arpa has no <unk> among its 1-grams"):
        import_arpa(tmp_path / "without.arpa", tmp_path / "new")
    (tmp_path / "text.arpa").write_text("no such thing\n", encoding="utf-8")
    answer = command("import", tmp_path / "text.arpa", tmp_path / "new")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert not (tmp_path / "new").exists()


def test_existing_file_is_not_replaced(trigrams: Path, tmp_path: Path) -> None:
    (tmp_path / "model.arpa").write_text("mine", encoding="utf-8")
    answer = command("export", trigrams, "arpa", tmp_path / "model.arpa")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert (tmp_path / "model.arpa").read_text("utf-8") == "mine"
    assert command("export", trigrams, "arpa", tmp_path / "new.arpa", "--quantization", "int8").code == 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_tables_of_a_loaded_model_are_memory_mapped(trigrams: Path) -> None:
    """A large table takes no memory until it is looked up in, and processes share what they have read."""
    loaded = load_model(trigrams)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "model.safetensors" in line]
    ranges = [tuple(int(end, 16) for end in fields[0].split("-")) for fields in maps if str(trigrams) in fields[-1]]
    tensors = loaded.model.state_dict()
    assert tensors["tables.2.keys"].dtype == torch.int64
    for name, tensor in tensors.items():
        if tensor.numel():
            assert any(first <= tensor.data_ptr() < last for first, last in ranges), name
