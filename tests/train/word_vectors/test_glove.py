"""GloVe's compiled updates equal the plain ones, and their gradient is that of the loss."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data.cooccurrence import CooccurrenceConfig, Cooccurrences, PairBlock, count_cooccurrences
from regard.data.text.word_corpus import WordCorpus
from regard.model.before.word_vectors.config import GloveConfig
from regard.model.before.word_vectors.glove import Glove
from regard.train.word_vectors.glove import TABLES, GloveEngine, plain_adagrad

WORDS = 30


def small_model(seed: int = 0, x_max: float = 10.0, width: int = 9) -> Glove:
    torch.manual_seed(seed)
    return Glove(GloveConfig(vocab_size=WORDS, width=width, x_max=x_max))


def random_block(pairs: int, seed: int = 0) -> PairBlock:
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, WORDS, size=(2, pairs)).astype(np.int32)
    return PairBlock(rows, columns, rng.exponential(20, size=pairs).astype(np.float32) + 0.1)


def tables(model: Glove) -> list[np.ndarray]:
    return [getattr(model, name).detach().numpy().copy() for name in TABLES]


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Cooccurrences:
    """Words that follow each other in a circle, so that there is something to learn."""
    ids = (np.arange(6000) * 7 % WORDS + np.random.default_rng(0).integers(0, 3, 6000)) % WORDS
    corpus = WordCorpus(ids.astype(np.uint16), np.arange(0, 6001, 20))
    path: Path = tmp_path_factory.mktemp("counts") / "found"
    return count_cooccurrences(path, corpus, WORDS, CooccurrenceConfig(window=4))


def epochs(engine: GloveEngine, counts: Cooccurrences, numbers: range) -> list[float]:
    """Train some epochs; returns the mean loss of each."""
    means = []
    for number in numbers:
        losses = [engine.train_block(block, 0.05, number) for _, block in counts.blocks(500, seed=number)]
        means.append(sum(loss.total for loss in losses) / len(counts))
    return means


def reference_update(model: Glove, sums: dict[str, torch.Tensor], block: PairBlock, lr: float) -> float:
    """AdaGrad on half the loss, with gradients by autograd; returns the sum of the losses before each update."""
    total, tables = 0.0, [getattr(model, name) for name in TABLES]
    rows, columns = (torch.from_numpy(ids.astype(np.int64)) for ids in block[:2])
    for row, column, count in zip(rows, columns, torch.from_numpy(block.counts), strict=True):
        loss = model.loss(row, column, count)
        total += loss.item()
        for table, gradient, squares in zip(tables, torch.autograd.grad(loss / 2, tables), sums.values(), strict=True):
            step = lr * gradient
            table.data -= step / squares.sqrt()
            squares += step**2
    return total


@pytest.mark.parametrize("compiled", [True, False])
def test_equals_the_reference(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.train.word_vectors.glove.has_numba", lambda: compiled)
    ours, plain, block = small_model(), small_model(), random_block(200)
    order = np.random.default_rng(5).permutation(200)
    sums = {name: torch.ones_like(getattr(plain, name)) for name in TABLES}
    expected = reference_update(plain, sums, PairBlock(*(values[order] for values in block)), 0.05)
    engine = GloveEngine(ours)
    assert (engine._update is plain_adagrad) is not compiled
    found = engine.train_block(block, 0.05, seed=5)
    assert found.total == pytest.approx(expected, rel=1e-5)
    for one, other in zip(tables(ours), tables(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    for name, values in engine.state_dict().items():
        torch.testing.assert_close(values, sums[name], rtol=1e-5, atol=1e-6)


def test_step_is_the_gradient_by_finite_differences() -> None:
    """The first step of AdaGrad divides by 1, so it is the rate times the gradient of J / 2."""
    model, lr = small_model(x_max=50.0), 1e-3
    block = PairBlock(np.array([3], dtype=np.int32), np.array([4], dtype=np.int32), np.array([17.0], dtype=np.float32))
    exact = small_model(x_max=50.0).double()
    before = tables(model)
    GloveEngine(model).train_block(block, lr, seed=0)
    pair = torch.tensor([3]), torch.tensor([4]), torch.tensor([17.0], dtype=torch.float64)
    for name, old, new in zip(TABLES, before, tables(model), strict=True):
        table = getattr(exact, name).data.view(-1)
        differences = torch.zeros(len(table), dtype=torch.float64)
        for entry in range(len(table)):
            for sign in (1, -1):
                table[entry] += sign * 1e-6
                differences[entry] += sign * exact.loss(*pair).item() / 2 / 2e-6
                table[entry] -= sign * 1e-6
        np.testing.assert_allclose((old - new).reshape(-1) / lr, differences.numpy(), rtol=1e-3, atol=2e-4)


def test_loss_falls_and_vectors_predict_the_counts(counts: Cooccurrences) -> None:
    model = small_model(x_max=0)
    losses = epochs(GloveEngine(model), counts, range(25))
    assert losses[-1] < 0.2 * losses[0]
    assert losses == sorted(losses, reverse=True)
    pairs = [torch.from_numpy(np.array(values)) for values in (counts.rows, counts.columns, counts.counts)]
    predicted = model.residual(*pairs) + pairs[2].log()
    assert torch.corrcoef(torch.stack((predicted, pairs[2].log())))[0, 1] > 0.9


def test_resumed_equals_uninterrupted(counts: Cooccurrences) -> None:
    whole, first, second = small_model(), small_model(), small_model(seed=1)
    expected = epochs(GloveEngine(whole), counts, range(4))
    stopped = GloveEngine(first)
    found = epochs(stopped, counts, range(2))
    second.load_state_dict(first.state_dict())
    resumed = GloveEngine(second)
    resumed.load_state_dict({name: values.clone() for name, values in stopped.state_dict().items()})
    found += epochs(resumed, counts, range(2, 4))
    assert found == expected
    for one, other in zip(tables(second), tables(whole), strict=True):
        np.testing.assert_array_equal(one, other)


def test_threads_reach_about_the_same_loss(counts: Cooccurrences) -> None:
    alone, together = small_model(), small_model()
    expected = epochs(GloveEngine(alone), counts, range(12))
    engine, total = GloveEngine(together), 0.0
    with ThreadPoolExecutor(2) as pool:
        for number in range(12):
            blocks = [block for _, block in counts.blocks(100, seed=number)]
            losses = pool.map(lambda block, number=number: engine.train_block(block, 0.05, number), blocks)
            total = sum(loss.total for loss in losses) / len(counts)
    assert total == pytest.approx(expected[-1], rel=0.1)
