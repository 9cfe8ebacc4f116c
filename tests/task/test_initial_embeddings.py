"""Starting token embeddings from word vectors: rows equal the file's, frozen ones stay, and resuming is exact."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.errors import UserError
from regard.interop.word_vectors import write_word_vectors
from regard.task.base import Recipe
from regard.task.initial_embeddings import whole_words
from regard.task.recipe_io import read_recipe
from regard.task.registry import read_values
from regard.task.run import train
from regard.train.distributed.process_group import SINGLE_PROCESS
from regard.train.step import training_forward
from tests.task.small import (
    TRANSLATIONS,
    WORDS,
    RecordingCallback,
    crashed_run,
    pairs,
    quick_runs,
    sentences,
    small_values,
    write_lines,
    write_recipe_file,
    write_table,
)

DNN2 = 'model={kind="dnn2",width=16,hidden=16,max_length=12}'
LSTM = 'model={kind="recurrent-attention",width=16,hidden=16}'


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def vectors(folder: Path, words: tuple[str, ...], width: int = 16, seed: int = 1) -> tuple[Path, Tensor]:
    """A file of random vectors, and what it says."""
    path = folder / f"vectors-{seed}-{width}.txt"
    rows = torch.randn(len(words), width, generator=torch.Generator().manual_seed(seed)).round(decimals=3)
    write_word_vectors(path, words, rows)
    return path, rows


def translation(folder: Path, *changes: str) -> Recipe:
    data = {"train": [{"path": str(write_table(folder / "train.tsv", pairs(60)))}]}
    return read_values(small_values(data, 'tokenizer.kind="word"', *changes))


def language(folder: Path, *changes: str) -> Recipe:
    text = write_lines(folder / "text.txt", sentences(200))
    values = small_values({"train": [{"path": str(text)}], "context_length": 16}, *changes)
    model = {"width": 16, "decoder": {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 16}}}
    settings = {key: value for key, value in values["train"].items() if key != "length_buckets"}
    own = {"task": "language-modeling", "model": model, "train": settings, "tokenizer": {"vocab_size": 300}}
    return read_values({key: value for key, value in values.items() if key != "decode"} | own)


def built(recipe: Recipe, folder: Path, log: Any = lambda message: None) -> Any:
    folder.mkdir()
    return recipe.build_task(folder, log, SINGLE_PROCESS)


@pytest.mark.parametrize("model", [DNN2, LSTM, "train.seed=1"])
def test_rows_equal_the_vectors_of_their_words(tmp_path: Path, model: str) -> None:
    source, english = vectors(tmp_path, (*WORDS[:5], "unseen"))
    target, german = vectors(tmp_path, TRANSLATIONS, seed=2)
    plain = translation(tmp_path, "tokenizer.shared=false", model)
    table = {"source": {"path": str(source)}, "target": {"path": str(target)}}
    recipe = read_values({**plain.plain(), "word_vectors": table})
    log: list[str] = []
    task, before = built(recipe, tmp_path / "run", log.append), built(plain, tmp_path / "plain").model
    own = getattr(task.model, "source_embed_tokens", None)
    of_source = task.model.source_embed_tokens if own is None else own
    ids = whole_words(task.prepared.source)
    assert torch.equal(of_source.weight[[ids[word] for word in WORDS[:5]]], english[:5])
    ids = whole_words(task.prepared.target)
    assert torch.equal(task.model.embed_tokens.weight[[ids[word] for word in TRANSLATIONS]], german)
    assert f"5 of {task.prepared.source.vocab_size} tokens start from the word vectors in {source}." in log
    changed = {id(of_source.weight), id(task.model.embed_tokens.weight)}
    for one, other in zip(task.model.parameters(), before.parameters(), strict=True):
        assert torch.equal(one, other) or id(one) in changed
    special = list(task.prepared.target.special_ids)
    assert torch.equal(task.model.embed_tokens.weight[special], before.embed_tokens.weight[special])


def test_only_subwords_with_a_space_before_them_are_words() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=400), [" the cat's cats, 12 Öfen"] * 3)
    words = whole_words(tokenizer)
    assert {"the", "Öfen", "12"} <= words.keys()
    assert tokenizer.decode([words["Öfen"]]) == " Öfen"
    assert "'s" not in words
    assert tokenizer.encode(" the") == [words["the"]]


def test_language_model_starts_from_vectors(tmp_path: Path) -> None:
    path, rows = vectors(tmp_path, WORDS)
    plain = language(tmp_path)
    recipe = read_values({**plain.plain(), "word_vectors": {"path": str(path)}})
    task = built(recipe, tmp_path / "run")
    words = whole_words(task.tokenizer)
    known = [word for word in WORDS if word in words]
    assert known
    assert torch.equal(
        task.model.embed_tokens.weight[[words[word] for word in known]], rows[[WORDS.index(word) for word in known]]
    )


@pytest.mark.parametrize("model", [DNN2, LSTM, "train.seed=1"])
def test_frozen_rows_do_not_change(tmp_path: Path, model: str) -> None:
    path, rows = vectors(tmp_path, (*WORDS, *TRANSLATIONS))
    frozen = f'word_vectors={{target={{path="{path}",freeze=true}}}}'
    recipe = translation(tmp_path, "train.optimizer.weight_decay=0.1", 'train.optimizer.kind="adamw"', model, frozen)
    begun = built(recipe, tmp_path / "begun")
    result = train(recipe, tmp_path / "run")
    ids = whole_words(begun.prepared.target)
    table = result.load().model.embed_tokens.weight
    assert torch.equal(table[[ids[word] for word in (*WORDS, *TRANSLATIONS)]], rows)
    assert torch.equal(table, begun.model.embed_tokens.weight)
    others = {name: parameter for name, parameter in begun.model.named_parameters() if parameter.requires_grad}
    trained = dict(result.load().model.named_parameters())
    assert sum(not torch.equal(trained[name], parameter) for name, parameter in others.items()) > len(others) // 2


def test_freezing_leaves_the_gradients_of_other_weights_as_they_are(tmp_path: Path) -> None:
    path, _ = vectors(tmp_path, WORDS)
    grads = []
    for freeze in ("true", "false"):
        table = f'word_vectors={{target={{path="{path}",freeze={freeze}}}}}'
        task = built(translation(tmp_path, table), tmp_path / freeze)
        forward = training_forward(task.model.train(), "float32")
        torch.manual_seed(1)
        task.loss(forward, next(iter(task.batches.epochs()))).total.backward()
        grads.append({name: parameter.grad for name, parameter in task.model.named_parameters()})
    frozen, free = grads
    assert [name for name, grad in frozen.items() if grad is None] == ["embed_tokens.weight"]
    for name, grad in frozen.items():
        if grad is not None:
            torch.testing.assert_close(grad, free[name])


@pytest.mark.parametrize("freeze", ["true", "false"])
def test_resumed_run_equals_one_that_was_not_interrupted(tmp_path: Path, freeze: str) -> None:
    path, _ = vectors(tmp_path, (*WORDS, *TRANSLATIONS))
    recipe = translation(tmp_path, DNN2, f'word_vectors={{target={{path="{path}",freeze={freeze}}}}}')
    whole = train(recipe, tmp_path / "whole").load().model.state_dict()
    crashed_run(recipe, tmp_path / "run", 9)
    path.unlink()  # it is read when a run begins, and not again
    resumed = train(recipe, tmp_path / "run", resume=True).load().model.state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_path_is_relative_to_the_recipe(tmp_path: Path) -> None:
    path, _ = vectors(tmp_path, WORDS)
    write_table(tmp_path / "train.tsv", pairs(60))
    file = write_recipe_file(tmp_path / "my.toml", {"train": [{"path": "train.tsv"}]})
    file.write_text(f'{file.read_text()}\n[word_vectors]\ntarget = {{ path = "{path.name}" }}\n')
    recipe: Any = read_recipe(file)
    assert recipe.word_vectors.target.path == str(path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (['model={kind="dnn1",max_length=12}', "tokenizer.vocab_size=40"], "a model of kind 'dnn1' has no token embed"),
        (["init_from=other"], "word_vectors: the embeddings are those of the model in init_from"),
        (["word_vectors={}"], "word_vectors: no file is given; set source, target or both"),
        (['word_vectors.source={path="other.txt",freeze=true}'], "word_vectors.target.freeze: source and target share"),
    ],
)
def test_recipe_that_cannot_start_from_vectors_is_refused(tmp_path: Path, changes: list[str], problem: str) -> None:
    with pytest.raises(UserError) as error:
        translation(tmp_path, 'word_vectors={target={path="vectors.txt"}}', *changes)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_vectors_of_another_dimension_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    path, _ = vectors(tmp_path, WORDS, width=10)
    with pytest.raises(UserError, match=r"the vectors have 10 numbers, but the model's embeddings have 16; set model"):
        train(translation(tmp_path, f'word_vectors={{source={{path="{path}"}}}}'), tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_vectors_without_a_known_word_are_refused(tmp_path: Path) -> None:
    path, _ = vectors(tmp_path, ("RED", "OLD"))
    with pytest.raises(UserError, match=r"it has none of the \d+ whole words of the vocabulary"):
        train(translation(tmp_path, f'word_vectors={{source={{path="{path}"}}}}'), tmp_path / "run")


def test_log_says_how_many_tokens_start_from_vectors(tmp_path: Path) -> None:
    path, _ = vectors(tmp_path, WORDS)
    callback = RecordingCallback()
    train(
        translation(tmp_path, DNN2, f'word_vectors={{source={{path="{path}"}}}}'), tmp_path / "run", callback=callback
    )
    assert f"8 of 20 tokens start from the word vectors in {path}." in callback.text
