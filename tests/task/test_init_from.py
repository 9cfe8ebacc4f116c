"""Starting from another model: its settings are taken, given ones are used or refused, and the saved recipe says so."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from regard import UserError
from regard.data.tokenizers.extension import replaced_tokens
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
from regard.model import LanguageModel, LanguageModelConfig
from regard.run import load_model, save_model
from regard.task.language_modeling.task import LanguageModelingTask
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from regard.task.translation.pipeline import Translator
from regard.train.distributed.process_group import SINGLE_PROCESS
from tests.task.small import RecordingCallback, command, pairs, quick_runs, small_values, write_table

STACK = {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translation run of one step."""
    base = tmp_path_factory.mktemp("first")
    with quick_runs(base / "cache"):
        train(read_recipe(recipe_file(base), ["train.steps=1"]), base / "run")
    return base / "run"


def recipe_file(folder: Path, **changes: Any) -> Path:
    """A small translation recipe; None removes a table."""
    train_file = write_table(folder / "train.tsv", pairs(40))
    values = small_values({"train": [{"path": str(train_file)}]}) | {"task": "translation"} | changes
    path = folder / "small.toml"
    path.write_text(tomli_w.dumps({key: value for key, value in values.items() if value is not None}), encoding="utf-8")
    return path


def test_given_settings_are_used_and_logged_and_the_others_are_those_of_the_model(first: Path, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, model={"encoder": {"dropout": 0.25}}, tokenizer=None)
    callback = RecordingCallback()
    changes = [f"init_from={first}", "train.steps=1", "train.schedule.lr=1e-12"]
    train(read_recipe(path, changes), tmp_path / "run", callback=callback)
    ours, theirs = load_model(tmp_path / "run"), load_model(first)
    assert ours.config.encoder.dropout == 0.25
    assert ours.config.decoder == theirs.config.decoder
    assert "model.encoder.dropout = 0.25" in callback.text
    for name, tensor in theirs.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], tensor)
    saved = tomllib.loads((tmp_path / "run" / "recipe.toml").read_text(encoding="utf-8"))
    assert saved["model"]["width"] == 16
    assert saved["model"]["encoder"]["dropout"] == 0.25
    assert saved["tokenizer"]["kind"] == "character"
    assert train(read_recipe(tmp_path / "run"), tmp_path / "run", resume=True).scores  # the saved recipe can be read


def test_settings_that_do_not_fit_are_refused_in_one_sentence_with_the_fix(first: Path, tmp_path: Path) -> None:
    done = command("train", "quick", "--set", f"init_from={first}", "--out", tmp_path / "run")
    assert done.code == 2
    assert "model.width" in done.err
    assert "tokenizer.kind" in done.err
    assert "--set model={} --set tokenizer={}" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
    path = recipe_file(tmp_path, model={"width": 128}, tokenizer={"kind": "bpe", "vocab_size": 2000})
    fix = ["model={}", "tokenizer={}", f"init_from={first}", "train.steps=1"]
    train(read_recipe(path, fix), tmp_path / "run")
    assert load_model(tmp_path / "run").config == load_model(first).config


def test_settings_of_another_kind_of_model_are_refused(first: Path, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, model={"kind": "language-model", "decoder": STACK}, tokenizer=None)
    with pytest.raises(UserError, match=r"does not fit the recipe's model.*--set model=\{\}"):
        train(read_recipe(path, [f"init_from={first}"]), tmp_path / "run")


def test_recipe_of_a_finished_run_can_be_read_without_the_model_it_started_from(first: Path, tmp_path: Path) -> None:
    link = tmp_path / "pretrained"
    link.symlink_to(first)
    train(read_recipe(recipe_file(tmp_path), [f"init_from={link}", "train.steps=1"]), tmp_path / "run")
    link.unlink()
    assert read_recipe(tmp_path / "run").init_from == str(link)


def test_fine_tuning_begins_with_a_validation_of_the_initial_model(first: Path, tmp_path: Path) -> None:
    train(read_recipe(recipe_file(tmp_path), [f"init_from={first}", "train.steps=1"]), tmp_path / "run")
    before, after = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        for folder in (first, tmp_path / "run")
    )
    assert [line["step"] for line in after if "valid/nll" in line] == [0, 1]
    assert after[0] == pytest.approx(before[-1] | {"step": 0}, rel=1e-6)  # the end of the first run
    assert 0 not in [line["step"] for line in before]
    assert after[0]["valid/loss"] != after[0]["valid/nll"]  # there is label smoothing


# New tokens


@pytest.fixture(scope="module", params=["shared", "separate", "language-model"])
def extended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of one step with a BPE tokenizer, and one of no step (its learning rate is tiny) with ten new tokens."""
    base = tmp_path_factory.mktemp(request.param)
    shared = request.param != "separate"
    model = {"kind": "language-model", "width": 16, "decoder": STACK} if request.param == "language-model" else None
    changes = {"tokenizer": {"kind": "bpe", "vocab_size": 280, "shared": shared}} | ({"model": model} if model else {})
    with quick_runs(base / "cache"):
        path = recipe_file(base, **changes)
        train(read_recipe(path, ["train.steps=1"]), base / "first")
        more = ["data.augment={uppercase=1.0}", "tokenizer.new_tokens=10", f"init_from={base / 'first'}"]
        recipe = read_recipe(path, [*more, "train.steps=1", "train.schedule.lr=1e-12"])
        train(recipe, base / "second")
    return base / "first", base / "second"


def test_old_tokens_stay_and_new_ones_start_from_those_they_replace(extended: tuple[Path, Path]) -> None:
    old, new = (Translator.load(folder) for folder in extended)
    assert new.target_tokenizer.vocab_size == old.target_tokenizer.vocab_size + 10 == 290
    assert len(new.source_tokenizer.encode("CAT DOG")) < len(old.source_tokenizer.encode("CAT DOG"))
    before, after = old.model.state_dict(), new.model.state_dict()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name][: len(tensor)], tensor)
    for name in {"embed_tokens.weight", "source_embed_tokens.weight"} & set(after):
        tokenizers = [each.source_tokenizer if "source" in name else each.target_tokenizer for each in (old, new)]
        for token, replaced in enumerate(replaced_tokens(*tokenizers), start=280):
            torch.testing.assert_close(after[name][token], before[name][replaced].mean(dim=0))


def test_logits_of_old_tokens_stay(extended: tuple[Path, Path]) -> None:
    old, new = (Translator.load(folder) for folder in extended)
    ids = old.source_tokenizer.encode("red cat"), old.target_tokenizer.encode("rot")
    assert ids == (new.source_tokenizer.encode("red cat"), new.target_tokenizer.encode("rot"))
    inputs = [torch.tensor([row]) for row in ids][: 1 if isinstance(old.model, LanguageModel) else 2]
    with torch.no_grad():
        torch.testing.assert_close(new.model(*inputs)[..., :280], old.model(*inputs))


def test_saved_recipe_says_that_tokens_were_added(extended: tuple[Path, Path], tmp_path: Path) -> None:
    saved = tomllib.loads((extended[1] / "recipe.toml").read_text(encoding="utf-8"))
    assert (saved["tokenizer"]["vocab_size"], saved["tokenizer"]["new_tokens"]) == (280, 10)
    assert train(read_recipe(extended[1]), extended[1], resume=True).scores  # has finished with this recipe
    assert "started from the weights of first" in (extended[1] / "README.md").read_text(encoding="utf-8")
    changes = ["model={}", "tokenizer={}", f"init_from={extended[1]}", "train.steps=1"]
    third = read_recipe(recipe_file(tmp_path), changes)
    assert third.resolved()["tokenizer"]["vocab_size"] == 290
    assert "new_tokens" not in third.resolved()["tokenizer"]


def test_resumed_run_keeps_its_new_tokens(extended: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(extended[1], tmp_path / "run")
    train(read_recipe(tmp_path / "run", ["train.steps=2"]), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (extended[1] / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("changes", [[], ["tokenizer={}", "init_from=FIRST"]])
def test_new_tokens_need_a_bpe_tokenizer_to_extend(changes: list[str], first: Path, tmp_path: Path) -> None:
    options = [change.replace("FIRST", str(first)) for change in [*changes, "tokenizer.new_tokens=5"]]
    arguments = [word for option in options for word in ("--set", option)]
    done = command("train", recipe_file(tmp_path), *arguments, "--out", tmp_path / "run")
    assert done.code == 2
    assert "tokenizer.new_tokens" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


# Language models


def imported_language_model(folder: Path, **special: int) -> tuple[Path, TextTokenizer]:
    """A language model as from an import: without a recipe, and with special tokens of its own."""
    text = train_tokenizer(TokenizerConfig(kind="character"), ["some text"])
    values = {"vocab_size": text.vocab_size, "width": 16, "decoder": STACK, "special_tokens": {"pad": 0, **special}}
    return save_model(LanguageModelConfig.read(values).build(), folder, tokenizer=text.tokenizer), text


def packed_task(folder: Path, model: Path) -> LanguageModelingTask:
    (folder / "text.txt").write_text("some\ntext\n", encoding="utf-8")
    data = {"train": [{"path": "text.txt", "unit": "line"}], "context_length": 16, "packing": "packed"}
    values = {
        "description": "A small recipe to test with.",
        "task": "language-modeling",
        "init_from": str(model),
        "data": data,
        "train": {"steps": 1, "batch_tokens": 64, "schedule": {"kind": "constant", "lr": 0.01, "warmup_steps": 0}},
    }
    path = folder / "packed.toml"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    (folder / "run").mkdir()
    task = read_recipe(path).build_task(folder / "run", lambda message: None, SINGLE_PROCESS)
    assert isinstance(task, LanguageModelingTask)
    return task


@pytest.mark.parametrize(("special", "start"), [({"bos": 40, "eos": 41}, 40), ({"eos": 41}, 41)])
def test_packed_documents_begin_with_the_models_own_start_token(
    special: dict[str, int], start: int, tmp_path: Path
) -> None:
    folder, text = imported_language_model(tmp_path / "model", **special)
    task = packed_task(tmp_path, folder)
    batch = next(task.batches.epochs())
    documents = [[start, *text.encode(line)] for line in ("some", "text")]
    assert batch.tokens[0, :10].tolist() in ([*documents[0], *documents[1]], [*documents[1], *documents[0]])
    assert batch.targets[0, 4] == batch.targets[0, 9] == 41
    saved = tomllib.loads((tmp_path / "packed.toml").read_text(encoding="utf-8"))
    assert "tokenizer" not in saved


def test_a_model_without_end_token_cannot_append_one(tmp_path: Path) -> None:
    folder, _ = imported_language_model(tmp_path / "model")
    with pytest.raises(UserError, match=r"^data\.append_eos: .* has no end-of-sequence token"):
        packed_task(tmp_path, folder)


def test_language_model_cannot_start_from_another_kind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="init_from: en-tr is not a language model"):
        read_recipe("shakespeare-cpu", ["init_from=en-tr"])


def test_saved_recipe_of_a_run_from_an_imported_model_names_no_tokenizer(tmp_path: Path) -> None:
    folder, _ = imported_language_model(tmp_path / "model", bos=40, eos=41)
    packed_task(tmp_path, folder)
    train(read_recipe(tmp_path / "packed.toml"), tmp_path / "trained")
    saved = tomllib.loads((tmp_path / "trained" / "recipe.toml").read_text(encoding="utf-8"))
    assert "tokenizer" not in saved
    assert saved["model"]["width"] == 16
    metadata = json.loads((tmp_path / "trained" / "run.json").read_text(encoding="utf-8"))
    assert metadata["model"]["special_tokens"]["bos"] == 40
