"""The masked-LM task: a recipe becomes a model that predicts masked tokens from both sides."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import UserError
from regard.data.batching.masking import Masking, MaskingConfig
from regard.data.batching.row_batch import RowBatch, ScoredPositionsBatch
from regard.task.evaluate import evaluate
from regard.task.masked_lm.pipeline import FillMask
from regard.task.masked_lm.recipe import MaskedLMRecipe
from regard.task.masked_lm.task import MaskedLMTask
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from regard.train.distributed.process_group import SINGLE_PROCESS
from regard.train.loss import cross_entropy
from tests.task.encoders import evaluate_once, write_recipe
from tests.task.small import RecordingCallback, quick_runs, sentences

TEXT = "\n".join(sentences(120)) + "\n"
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
LINES = {"data.packing": "packed", "data.train.0.unit": "line", "data.valid.unit": "line"}


def counted(count: int) -> str:
    """Lines that count up from a random number: the neighbors of a masked word determine it."""
    rng = random.Random(1)
    lines = [[NUMBERS[(first + offset) % 10] for offset in range(rng.randint(3, 9))]
             for first in rng.choices(range(10), k=count)]  # fmt: skip
    return "".join(" ".join(line) + "\n" for line in lines)


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def recipe_file(folder: Path, text: str = TEXT, **changes: Any) -> Path:
    (folder / "text.txt").write_text(text, encoding="utf-8")
    data = {
        "train": [{"path": "text.txt", "end": 0.8}],
        "valid": {"path": "text.txt", "begin": 0.8},
        "context_length": 16,
    }
    return write_recipe(folder, "masked-lm", data, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can count."""
    folder = tmp_path_factory.mktemp("masked-lm")
    changes = [*(f"{key}={value}" for key, value in LINES.items()), "model.position.kind=rotary", "model.width=32"]
    changes += ["train.schedule.kind=linear", *evaluate_once(300)]
    train(read_recipe(recipe_file(folder, counted(400)), changes), folder / "run")
    return folder / "run"


def opened(path: Path, folder: Path, *changes: str) -> MaskedLMTask:
    recipe = read_recipe(path, changes)
    assert isinstance(recipe, MaskedLMRecipe)
    folder.mkdir(exist_ok=True)
    return MaskedLMTask.prepare(recipe, folder, lambda message: None, SINGLE_PROCESS)


def test_counting_task_is_learned(trained: Path) -> None:
    score = json.loads((trained / "run.json").read_text())["origin"]["scores"]["valid"]
    assert score["accuracy"] > 85  # a line that is masked completely cannot be predicted
    assert score["tokens"] > 20


def test_run_folder_is_complete(trained: Path) -> None:
    assert {"recipe.toml", "tokenizer.json", "run.json", "model.safetensors", "README.md"} <= set(os.listdir(trained))
    card = (trained / "README.md").read_text()
    assert "| test set | accuracy | loss | perplexity |" in card
    assert "regard fill THIS-FOLDER" in card


def test_model_uses_both_sides(trained: Path) -> None:
    model = regard.load(trained)
    assert isinstance(model, FillMask)
    assert model.fill("one two three [MASK]") == "one two three four"
    assert model.fill("[MASK] five six seven") == "four five six seven"


def test_validation_score_equals_row_by_row_computation(tmp_path: Path) -> None:
    """The same tokens are masked, and each row goes through the model by itself."""
    train(read_recipe(recipe_file(tmp_path)), tmp_path / "run")
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["origin"]["scores"]["valid"]
    filler = FillMask.load(tmp_path / "run")
    ids = [*filler.tokenizer.encode(TEXT[int(len(TEXT) * 0.8) :]), filler.tokenizer.sep]
    windows = [ids[first : first + 16] for first in range(1, len(ids), 16)]  # the first token is only read
    rows = torch.zeros(len(windows), 16, dtype=torch.long)
    for row, window in zip(rows, windows, strict=True):
        row[: len(window)] = torch.tensor(window)
    masking = Masking(
        MaskingConfig(mask_fraction=1.0, random_fraction=0.0),
        mask_id=3,
        vocab_size=filler.tokenizer.vocab_size,
        special_ids=filler.tokenizer.special_ids,
    )
    lengths = torch.tensor([len(window) for window in windows])
    tokens, targets = masking.mask(rows.numpy(), lengths.numpy(), epoch=0, index=0)
    nats, count, correct = 0.0, 0, 0
    for row, target, window in zip(tokens, targets, windows, strict=True):
        with torch.no_grad():
            logprobs = filler.encoder(torch.from_numpy(row[None, : len(window)])).log_softmax(-1)[0]
        for position in range(len(window)):
            if target[position] >= 0:
                assert row[position] == filler.mask_id
                nats -= float(logprobs[position, target[position]])
                count += 1
                correct += int(logprobs[position].argmax()) == target[position]
    assert (recorded["tokens"], recorded["correct"]) == (count, correct)
    assert recorded["nats"] == pytest.approx(nats, abs=1e-3)


@pytest.mark.parametrize(
    ("packing", "more"), [("contiguous", ["masking.whole_word=true"]), ("random", []), ("packed", [])]
)
def test_loss_at_scored_positions_equals_loss_of_all_logits(packing: str, more: list[str], tmp_path: Path) -> None:
    """Loss and gradients of a batch equal those of logits for every position."""
    task = opened(recipe_file(tmp_path), tmp_path / "run", f"data.packing={packing}", "data.train.0.unit=line", *more)
    model = task.model.double()
    batch = next(task.batches.epochs())
    assert isinstance(batch, ScoredPositionsBatch)
    assert batch.targets.shape[1] < batch.tokens.shape[1]
    targets = torch.full_like(batch.tokens, -1).scatter(1, batch.scored_positions, batch.targets)
    whole = model(batch.tokens, lengths=batch.lengths, documents=batch.documents)
    losses = [task.loss(model, batch), cross_entropy(whole, targets)]
    assert int(losses[0].count) == int(losses[1].count) == batch.count
    torch.testing.assert_close(losses[0].total, losses[1].total)
    gradients = [torch.autograd.grad(loss.total, list(model.parameters())) for loss in losses]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_packed_documents_are_independent(tmp_path: Path) -> None:
    """The loss of a packed row is the sum of its documents' losses."""
    task = opened(recipe_file(tmp_path), tmp_path / "run", "data.packing=packed", "data.train.0.unit=line")
    model = task.model.eval().double()
    batch = next(task.batches.epochs())
    assert isinstance(batch, ScoredPositionsBatch)
    assert batch.documents is not None
    tokens = model.config.special_tokens
    targets = torch.full_like(batch.tokens, -1).scatter(1, batch.scored_positions, batch.targets)
    total = 0.0
    with torch.no_grad():
        packed = task.nll(model, batch)
        for row, target, documents in zip(batch.tokens, targets, batch.documents, strict=True):
            for number in range(int(documents.max()) + 1):
                here = documents == number
                assert (int(row[here][0]), int(row[here][-1])) == (tokens.cls, tokens.sep)
                total += float(cross_entropy(model(row[here][None]), target[here][None]).nll)
    assert float(packed.nll) == pytest.approx(total)


def test_validation_masks_are_fixed_and_training_masks_vary(tmp_path: Path) -> None:
    task = opened(recipe_file(tmp_path), tmp_path / "run")
    (first,), (second,) = task.validation_batches(), task.validation_batches()
    assert torch.equal(first.tokens, second.tokens)
    masked = first.tokens.gather(1, first.scored_positions)[first.targets >= 0]
    assert (masked == task.tokenizer.mask).all()
    assert 0.1 < len(masked) / int(first.lengths.sum()) < 0.2
    batches = task.batches.epochs()
    targets = [_targets(next(batches)) for _ in range(2 * len(task.batches))]
    assert targets[: len(task.batches)] != targets[len(task.batches) :]


def _targets(batch: RowBatch) -> list[list[int]]:
    listed: list[list[int]] = batch.targets.tolist()
    return listed


def test_finished_run_is_scored_again(trained: Path) -> None:
    recorded = json.loads((trained / "run.json").read_text())["origin"]["scores"]["valid"]
    assert train(read_recipe(trained), trained, resume=True).scores["valid"].rounded() == recorded
    assert evaluate(trained)["valid"].rounded() == recorded


def test_init_from(trained: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, "masked-lm", {"train": [{"path": "text.txt"}], "context_length": 16}, model=None)
    (tmp_path / "text.txt").write_text(counted(20), encoding="utf-8")
    task = opened(path, tmp_path / "opened", f"init_from={trained}")
    before = FillMask.load(trained)
    assert task.tokenizer.fingerprint == before.tokenizer.fingerprint
    for key, value in before.encoder.state_dict().items():
        torch.testing.assert_close(task.model.state_dict()[key], value, rtol=0, atol=0)
    callback = RecordingCallback()
    train(read_recipe(path, [f"init_from={trained}", "train.steps=1"]), tmp_path / "run", callback=callback)
    assert f"Starting from the weights and the tokenizer of {trained}." in callback.text
    with pytest.raises(UserError, match=r"does not fit the recipe's model: for .* Leave \[model\] out"):
        opened(path, tmp_path / "opened", f"init_from={trained}", "model.width=16")


def test_user_data(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(TEXT, encoding="utf-8")
    recipe = read_recipe("brown-fill", data=tmp_path / "mine.txt")
    assert isinstance(recipe, MaskedLMRecipe)
    assert [part.unit for part in recipe.data.train] == ["file", "line"]
    small = ["model.width=16", "model.encoder.layers=1", "model.encoder.attention.heads=2", "train.steps=1"]
    recipe = read_recipe("brown-fill", [*small, "tokenizer.kind=character"], data=tmp_path / "mine.txt")
    callback = RecordingCallback()
    train(recipe, tmp_path / "run", callback=callback)
    size = len(TEXT) - int(0.95 * len(TEXT))  # the same end of the text, read in either way
    assert f"The last {size} of {len(TEXT):,} characters are held out for validation" in callback.text


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        ("", [], "there is no text"),
        (TEXT, ["data.context_length=300"], "300"),
        (TEXT, ["task=masked_lm"], "did you mean 'masked-lm'"),
        (TEXT, ["model.vocab_size=9"], "model.vocab_size: "),
        (TEXT, ["model.head.kind=none"], "must be \"masked_lm\""),
        (TEXT, ["model.head.kind=token_classification"], "model.head.labels: this key is required"),
        (TEXT, ["masking.probabilty=0.2"], "did you mean 'probability'"),
        (TEXT, ["masking.mask_fraction=0.95"], "masking.random_fraction: found 0.1 "),
        (
            TEXT,
            ["train.length_buckets=4"],
            "train.length_buckets: found 4, but all rows have data.context_length tokens",
        ),
        (TEXT, ["tokenizer.kind=bpe", "tokenizer.vocab_size=260"], "need 262"),
        (TEXT, ["init_from=en-tr"], "init_from: en-tr is not an encoder"),
        (TEXT, ["data.train.0.path=nowhere.txt"], "nowhere.txt"),
    ],
)  # fmt: skip
def test_errors_leave_no_run_folder(text: str, change: list[str], message: str, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, text)
    with pytest.raises(UserError, match=message):
        train(read_recipe(path, change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_workload_matches_the_batches(tmp_path: Path) -> None:
    task = opened(recipe_file(tmp_path), tmp_path / "run", "train.grad_accumulation=2", "data.context_length=64")
    work, batch = task.workload(), next(iter(task.batches.epochs()))
    assert (work.batch_size, work.target_length) == batch.tokens.shape
    assert (work.predicted_tokens, work.steps, work.grad_accumulation, work.forward_passes) == (
        batch.targets.shape[1],
        12,
        2,
        1,
    )
    assert work == task.recipe.expected_workload()
