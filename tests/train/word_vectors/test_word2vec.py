"""The compiled training of word2vec equals plain NumPy, draws what its formulas say, and learns what is defined."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from regard.data.batching.word_blocks import MAX_SENTENCE, ContextWindow, WordBlock, keep_probabilities
from regard.model.before.word_vectors.config import (
    CbowConfig,
    HierarchicalSoftmaxConfig,
    NegativeSamplingConfig,
    SkipGramConfig,
    SoftmaxConfig,
    SubwordsConfig,
)
from regard.model.before.word_vectors.word2vec import Word2Vec, contexts_of, negative_sampling_loss
from regard.train.word_vectors.plain import PlainWord2Vec, Random
from regard.train.word_vectors.sampling import alias_table, block_seed, keep_limits, negative_probabilities
from regard.train.word_vectors.softmax import SoftmaxWord2Vec
from regard.train.word_vectors.word2vec import make_setup

KINDS = {"skip-gram": SkipGramConfig, "cbow": CbowConfig}
LOSSES = {"negative-sampling": NegativeSamplingConfig(negatives=3), "hierarchical-softmax": HierarchicalSoftmaxConfig()}
COUNTS = np.array([400, 150, 90, 40, 40, 20, 9, 5, 2, 1])
WORDS = [f"word{number}" for number in range(len(COUNTS))]


def small_model(kind: str, **settings: Any) -> Word2Vec:
    torch.manual_seed(3)
    model = KINDS[kind](vocab_size=len(COUNTS), width=20, **settings).build()
    torch.nn.init.normal_(model.output_vectors, std=0.1)
    assert isinstance(model, Word2Vec)
    return model


def small_block(words: int = 300, seed: int = 1) -> WordBlock:
    rng = np.random.default_rng(seed)
    ids = rng.choice(len(COUNTS), size=words, p=COUNTS / COUNTS.sum()).astype(np.int32)
    cuts = np.sort(rng.choice(words, size=words // 12, replace=False))
    return WordBlock(ids, np.concatenate([[0], cuts, [words]]).astype(np.int64))


def compiled(model: Word2Vec, window: ContextWindow) -> Any:
    pytest.importorskip("numba")
    from regard.train.word_vectors.word2vec import CompiledWord2Vec

    return CompiledWord2Vec(model, make_setup(model, WORDS, COUNTS, window))


def plain(model: Word2Vec, window: ContextWindow) -> PlainWord2Vec:
    return PlainWord2Vec(model, make_setup(model, WORDS, COUNTS, window))


@pytest.mark.parametrize("subwords", [None, SubwordsConfig(buckets=30)], ids=["words", "subwords"])
@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "fixed"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_equals_plain_numpy(kind: str, loss: str, dynamic: bool, subwords: SubwordsConfig | None) -> None:
    window, models = ContextWindow(3, dynamic, subsample=0.05), []
    losses = []
    for make in (compiled, plain):
        models.append(small_model(kind, loss=LOSSES[loss], subwords=subwords))
        engine = make(models[-1], window)
        losses.append([engine.train_block(small_block(seed=step), 0.05, block_seed(1, step)) for step in range(2)])
    for fast, slow in zip(*losses, strict=True):
        assert fast.count == slow.count
        assert fast.total == pytest.approx(slow.total, rel=1e-5)
    for found, expected in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_long_sentence_is_cut_at_the_same_words() -> None:
    from regard.kernels.cpu.word_vectors import word2vec

    assert word2vec.MAX_SENTENCE == MAX_SENTENCE
    block = small_block(2 * MAX_SENTENCE + 500)._replace(offsets=np.array([0, 2 * MAX_SENTENCE + 500]))
    models = [small_model("cbow") for _ in range(2)]
    counts = [
        make(model, ContextWindow(2, subsample=0.2)).train_block(block, 0.01, 5).count
        for make, model in zip((compiled, plain), models, strict=True)
    ]
    assert counts[0] == counts[1]
    torch.testing.assert_close(models[0].input_vectors, models[1].input_vectors, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_the_gradient_of_the_negative_sampling_loss(kind: str) -> None:
    """At a rate so small that nothing changes on the way. With CBOW each word of the context gets the gradient for the
    mean, as in word2vec.c: that of a sum in place of the mean."""
    model, lr, seed = small_model(kind, loss=NegativeSamplingConfig(negatives=2)).double(), 1e-6, 9
    engine = plain(model, ContextWindow(2, dynamic=False, subsample=0))
    ids, random, total = torch.tensor([3, 0, 5, 1]), Random(seed), torch.zeros((), dtype=torch.float64)
    for _ in ids:
        random.bits()  # whether the word is kept
    for word, context in zip(ids, contexts_of(ids, 2), strict=True):
        around = context[context >= 0]
        hidden = model(word) if kind == "skip-gram" else model(around).mean(0).detach()
        if kind == "cbow":
            hidden = hidden + model(around).sum(0) - model(around).sum(0).detach()
        for target in around if kind == "skip-gram" else word[None]:
            drawn = [output for output, label in engine.decisions(int(target), random) if not label]
            negatives = torch.tensor([drawn], dtype=torch.long)
            total = total + negative_sampling_loss(hidden[None], model.output_vectors, target[None], negatives).sum()
    gradients = torch.autograd.grad(total, list(model.parameters()))
    before = [table.detach().clone() for table in model.parameters()]
    found = engine.train_block(WordBlock(ids.numpy().astype(np.int32), np.array([0, 4])), lr, seed)
    assert found.total == pytest.approx(total.item())
    for table, old, gradient in zip(model.parameters(), before, gradients, strict=True):
        torch.testing.assert_close((old - table) / lr, gradient, rtol=1e-3, atol=1e-5)


def chi_square(found: NDArray[Any], probabilities: NDArray[Any]) -> float:
    """Standard deviations that the statistic lies above its mean."""
    expected = probabilities * found.sum()
    used = expected > 0
    freedom = int(used.sum()) - 1
    statistic = float((((found - expected) ** 2)[used] / expected[used]).sum())
    return (statistic - freedom) / np.sqrt(2 * freedom)


def test_negative_words_are_drawn_in_proportion_to_a_power_of_their_counts() -> None:
    """Mikolov et al. 2013: the unigram distribution to the power of 3/4."""
    expected = COUNTS**0.75 / (COUNTS**0.75).sum()
    np.testing.assert_allclose(negative_probabilities(COUNTS, 0.75), expected)
    engine = plain(small_model("cbow", loss=NegativeSamplingConfig(negatives=1)), ContextWindow())
    random, found = Random(block_seed(1, 1)), np.zeros(len(COUNTS))
    for _ in range(100_000):
        for drawn, label in list(engine.decisions(-1, random))[1:]:
            found[drawn] += not label
    assert chi_square(found, expected) < 4


def test_the_alias_table_has_exactly_the_probabilities() -> None:
    probabilities = negative_probabilities(COUNTS, 0.75)
    table = alias_table(probabilities)
    found = np.zeros(len(COUNTS))
    stay = (table >> np.uint64(32)) / 2**32
    np.add.at(found, np.arange(len(COUNTS)), stay / len(COUNTS))
    np.add.at(found, (table & np.uint64(0xFFFFFFFF)).astype(int), (1 - stay) / len(COUNTS))
    np.testing.assert_allclose(found, probabilities, rtol=1e-6)


def test_frequent_words_are_left_out_with_the_probability_of_word2vec() -> None:
    """(√(f/t) + 1) · t/f of a word with frequency f, at most 1."""
    frequency = COUNTS / COUNTS.sum()
    expected = np.minimum((np.sqrt(frequency / 0.05) + 1) * 0.05 / frequency, 1)
    np.testing.assert_allclose(keep_probabilities(COUNTS, 0.05), expected, rtol=1e-6)
    limits, random = keep_limits(COUNTS, 0.05), Random(block_seed(2, 1))
    for word in (0, 1):
        kept = sum(random.bits() < int(limits[word]) for _ in range(20_000))
        assert chi_square(np.array([kept, 20_000 - kept]), np.array([expected[word], 1 - expected[word]])) < 8


def test_window_sizes_are_uniform() -> None:
    engine = plain(small_model("cbow"), ContextWindow(5))
    random, found = Random(block_seed(3, 1)), np.zeros(5)
    for _ in range(20_000):
        found[len(engine.context(range(21), 10, random)) // 2 - 1] += 1
    assert chi_square(found, np.full(5, 0.2)) < 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seeds_give_the_same_tables_bit_for_bit(kind: str) -> None:
    tables = []
    for _ in range(2):
        model = small_model(kind)
        engine = compiled(model, ContextWindow())
        for step in range(3):
            engine.train_block(small_block(seed=step), 0.05, block_seed(1, step))
        tables.append(model.input_vectors.detach().clone())
    assert torch.equal(*tables)


def text_in_groups(sentences: int = 1500) -> WordBlock:
    """Sentences about one of four things, each with three words of its own among words that all of them have."""
    rng = np.random.default_rng(5)
    groups = rng.integers(4, size=sentences)
    ids = np.where(rng.random((sentences, 8)) < 0.6, 3 * groups[:, None] + rng.integers(3, size=(sentences, 8)), 12)
    ids = np.where(ids == 12, 12 + rng.integers(4, size=ids.shape), ids)
    return WordBlock(ids.astype(np.int32).ravel(), np.arange(sentences + 1) * 8)


def nearest(model: Word2Vec) -> list[set[int]]:
    """The two nearest neighbors of each of the twelve words."""
    vectors = torch.nn.functional.normalize(model.input_vectors.detach()[:12], dim=1)
    similarities = (vectors @ vectors.T).fill_diagonal_(-2)
    return [set(row) for row in similarities.topk(2).indices.tolist()]


@pytest.mark.parametrize("loss", [SoftmaxConfig(), *LOSSES.values()], ids=["softmax", *LOSSES])
@pytest.mark.parametrize("kind", KINDS)
def test_every_loss_finds_the_neighbors_of_the_definition(kind: str, loss: Any) -> None:
    block, window = text_in_groups(), ContextWindow(4, dynamic=False, subsample=0)
    counts = np.bincount(block.ids, minlength=16)
    torch.manual_seed(1)
    model = KINDS[kind](vocab_size=16, width=16, loss=loss).build()
    if isinstance(loss, SoftmaxConfig):
        engine: Any = SoftmaxWord2Vec(model, counts, window)
    else:
        pytest.importorskip("numba")
        from regard.train.word_vectors.word2vec import CompiledWord2Vec

        engine = CompiledWord2Vec(model, make_setup(model, [str(word) for word in range(16)], counts, window))
    losses = [engine.train_block(block, 0.05, block_seed(1, step)) for step in range(30)]
    assert losses[-1].total / losses[-1].count < losses[0].total / losses[0].count
    expected = [set(range(word // 3 * 3, word // 3 * 3 + 3)) - {word} for word in range(12)]
    found = sum(len(one & other) for one, other in zip(nearest(model), expected, strict=True))
    assert found >= 21  # of 24; a tree ties words of other groups to each other


def test_without_numba_training_is_plain_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.train.word_vectors import word2vec

    monkeypatch.setattr(word2vec, "has_numba", lambda: False)
    messages: list[str] = []
    model, device = small_model("cbow"), torch.device("cpu")
    engine = word2vec.word2vec_engine(model, WORDS, COUNTS, ContextWindow(), device, messages.append)
    assert isinstance(engine, PlainWord2Vec)
    assert "numba is not installed" in messages[0]
