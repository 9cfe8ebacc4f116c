"""word2vec in batches: the same predictions and gradients as the definition, on any device."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.data.batching.word_blocks import MAX_SENTENCE, ContextWindow, WordBlock
from regard.model.before.word_vectors.config import (
    CbowConfig,
    HierarchicalSoftmaxConfig,
    NegativeSamplingConfig,
    SkipGramConfig,
    SubwordsConfig,
)
from regard.model.before.word_vectors.word2vec import NO_WORD, Word2Vec, contexts_of, negative_sampling_loss
from regard.train.word_vectors.batched import BatchedEngine, BatchSettings
from regard.train.word_vectors.predictions import Predictions, Windows, cbow_predictions, skip_gram_predictions
from regard.train.word_vectors.word2vec import word2vec_engine

WORDS, WIDTH = 40, 6
COUNTS = np.arange(400, 0, -10)
UNSHARED = BatchSettings(batch=16, group=1, max_rate=1e9)
SHARED = BatchSettings(batch=16, group=4, shared=7, max_rate=1e9)


def small_model(kind: type[SkipGramConfig] | type[CbowConfig] = SkipGramConfig) -> Word2Vec:
    torch.manual_seed(0)
    model: Word2Vec = kind(vocab_size=WORDS, width=WIDTH, loss=NegativeSamplingConfig(negatives=3)).build()
    torch.nn.init.normal_(model.output_vectors, std=0.5)
    return model


def random_block(lengths: list[int], seed: int = 0) -> WordBlock:
    ids = np.random.default_rng(seed).integers(0, WORDS, size=sum(lengths)).astype(np.int32)
    return WordBlock(ids, np.cumsum([0, *lengths]))


def windows(size: int, dynamic: bool = False) -> Windows:
    return Windows(torch.ones(WORDS), size, dynamic)


def tensors(block: WordBlock) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(block.ids).long(), torch.from_numpy(block.offsets)


def test_predictions_are_the_contexts_of_each_sentence() -> None:
    block = random_block([1, 7, 2, 5])
    expected = []
    for start, end in zip(block.offsets[:-1], block.offsets[1:], strict=True):
        sentence = torch.from_numpy(block.ids[start:end]).long()
        pairs = zip(sentence.tolist(), contexts_of(sentence, 3).tolist(), strict=True)
        expected += [(word, [one for one in context if one != NO_WORD]) for word, context in pairs]
    expected = [(word, context) for word, context in expected if context]

    cbow = cbow_predictions(*tensors(block), windows(3), torch.Generator())
    known = [ids[weights > 0].tolist() for ids, weights in zip(cbow.inputs, cbow.weights, strict=True)]
    assert list(zip(cbow.targets.tolist(), known, strict=True)) == expected

    pairs = skip_gram_predictions(*tensors(block), windows(3), torch.Generator())
    found = list(zip(pairs.targets.tolist(), pairs.inputs[:, 0].tolist(), strict=True))
    assert found == [(word, one) for word, context in expected for one in context]


def test_long_sentences_are_cut() -> None:
    pairs = skip_gram_predictions(*tensors(random_block([MAX_SENTENCE + 2])), windows(1), torch.Generator())
    assert len(pairs.targets) == 2 * (MAX_SENTENCE - 1) + 2


def test_subsampling_and_window_sizes_follow_their_distributions() -> None:
    size, rng = 4, torch.Generator().manual_seed(0)
    keep = torch.linspace(0.1, 1, WORDS)
    block = random_block([1000] * 100)
    found = cbow_predictions(*tensors(block), Windows(keep, size, True), rng)
    kept = Counter(found.targets.tolist())
    expected = np.bincount(block.ids, minlength=WORDS) * keep.numpy()
    spread = np.sqrt(expected * (1 - keep.numpy()) + 1)
    assert (abs(np.array([kept[word] for word in range(WORDS)]) - expected) < 5 * spread).all()
    sizes = Counter((found.weights.sum(dim=1) / 2).tolist())  # at the ends of sentences windows are cut
    assert all(sizes[one] == pytest.approx(len(found.targets) / size, rel=0.05) for one in range(1, size + 1))


def test_negatives_follow_counts_to_the_power() -> None:
    engine = BatchedEngine(small_model(), COUNTS, ContextWindow(), UNSHARED)
    drawn = engine.draw(50_000, torch.Generator().manual_seed(0))
    expected = COUNTS**0.75 / (COUNTS**0.75).sum() * drawn.numel()
    found = np.bincount(drawn.reshape(-1).numpy(), minlength=WORDS)
    assert ((found - expected) ** 2 / expected).sum() < 73  # chi-square with 39 degrees of freedom, p = 0.001


@pytest.mark.parametrize("kind", [SkipGramConfig, CbowConfig])
@pytest.mark.parametrize("settings", [UNSHARED, SHARED])
def test_step_is_the_gradient_of_the_definition(
    kind: type[SkipGramConfig] | type[CbowConfig], settings: BatchSettings
) -> None:
    """With the same random words: each counts as often as `negatives / shared`, and the inputs of a mean each take all
    of its gradient, which is the one by autograd times their number."""
    model, exact, lr = small_model(kind), small_model(kind), 0.1
    engine = BatchedEngine(model, COUNTS, ContextWindow(3, subsample=0), settings)
    take = cbow_predictions if kind is CbowConfig else skip_gram_predictions
    batch = take(*tensors(random_block([5, 4])), windows(2), torch.Generator()).padded(settings.group)
    negatives = engine.draw(len(batch.targets) // settings.group, torch.Generator().manual_seed(1))

    total = torch.zeros(())
    means = []
    for inputs, weights in zip(batch.inputs, batch.weights, strict=True):
        vectors = exact.input_vectors[inputs[weights > 0]]
        whole = vectors.sum(dim=0)  # its value becomes that of the mean, its gradient stays
        means.append(whole - (whole - whole / max(len(vectors), 1)).detach())
    for row, target in enumerate(batch.targets):
        if not batch.weights[row].any():
            continue
        drawn = negatives[row // settings.group][None]
        true_only = negative_sampling_loss(means[row][None], exact.output_vectors, target[None], drawn[:, :0])
        both = negative_sampling_loss(means[row][None], exact.output_vectors, target[None], drawn)
        total = total + (true_only + (both - true_only) * 3 / drawn.shape[1]).sum()
    total.backward()
    loss = engine.update(batch, negatives, lr)
    assert loss.item() == pytest.approx(total.item(), rel=1e-5)
    for table, other in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(table.detach(), other.detach() - lr * other.grad, rtol=1e-4, atol=1e-6)


def test_frequent_rows_take_their_mean_step_at_a_limited_rate() -> None:
    settings = BatchSettings(batch=64, group=1, max_rate=0.2)
    engine = BatchedEngine(small_model(), COUNTS, ContextWindow(), settings)
    table, rows = torch.zeros(3, 1), torch.tensor([0, 1, 1, 1, 1])
    engine._add(table, rows, torch.tensor([[3.0], [1.0], [2.0], [3.0], [4.0]]), torch.ones(5), lr=0.1)
    torch.testing.assert_close(table[:, 0], 0.1 * torch.tensor([3.0, 2 * 2.5, 0.0]))


@pytest.mark.parametrize("kind", [SkipGramConfig, CbowConfig])
def test_same_seed_gives_the_same_tables_and_the_loss_falls(kind: type[SkipGramConfig] | type[CbowConfig]) -> None:
    ids = (np.arange(8000) // 2 % WORDS).astype(np.int32)
    block = WordBlock(ids, np.arange(0, 8001, 80))

    def train(seed: int) -> tuple[Word2Vec, list[float]]:
        model = small_model(kind)
        engine = BatchedEngine(model, COUNTS, ContextWindow(2, subsample=0), BatchSettings(batch=256))
        losses = [engine.train_block(block, 0.05, seed + epoch) for epoch in range(20)]
        return model, [loss.total / loss.count for loss in losses]

    model, losses = train(0)
    again, same = train(0)
    assert losses == same
    assert torch.equal(model.input_vectors, again.input_vectors)
    assert losses != train(100)[1]
    assert losses[-1] < 0.8 * losses[0]


def same_topic(model: Word2Vec, topics: int) -> float:
    """The share of the four nearest neighbors that are of a word's topic, over all words."""
    vectors = F.normalize(model.input_vectors.detach(), dim=1)
    cosines = (vectors @ vectors.T).fill_diagonal_(-1)
    words = torch.arange(len(vectors))
    return (cosines.topk(4).indices % topics == words[:, None] % topics).float().mean().item()


@pytest.mark.parametrize("kind", [SkipGramConfig, CbowConfig])
def test_shared_random_words_find_the_neighbors_that_others_do(kind: type[SkipGramConfig] | type[CbowConfig]) -> None:
    """Each sentence is of one of eight topics, of which every word has one; neighbors should be of the same."""
    rng, topics = np.random.default_rng(0), 8
    ids = rng.integers(0, WORDS // topics, size=(1500, 8)) * topics + rng.integers(0, topics, size=(1500, 1))
    block = WordBlock(ids.astype(np.int32).reshape(-1), np.arange(0, ids.size + 1, 8))
    counts = np.bincount(block.ids, minlength=WORDS)
    for settings in (BatchSettings(256, group=1), BatchSettings(256, group=32)):
        for lr in (0.1, 0.5):  # a row's step is limited, so a high rate does not diverge
            torch.manual_seed(0)
            model = kind(vocab_size=WORDS, width=16).build()
            engine = BatchedEngine(model, counts, ContextWindow(3, subsample=0), settings)
            for epoch in range(4):
                engine.train_block(block, lr, epoch)
            assert same_topic(model, topics) > 0.95


@pytest.mark.parametrize("changes", [{"loss": HierarchicalSoftmaxConfig()}, {"subwords": SubwordsConfig(buckets=9)}])
def test_what_is_not_trained_in_batches_stays_on_the_cpu(changes: Any) -> None:
    model = SkipGramConfig(vocab_size=WORDS, width=WIDTH, **changes).build()
    messages: list[str] = []
    words = [f"w{number}" for number in range(WORDS)]
    engine = word2vec_engine(model, words, COUNTS, ContextWindow(), torch.device("meta"), messages.append)
    assert not isinstance(engine, BatchedEngine)
    assert model.device.type == "cpu"
    assert "batches" in messages[0]


def test_batches_do_not_wait_for_the_device() -> None:
    """Tensors without values refuse every operation that would read one on the host."""
    engine = BatchedEngine(small_model(), COUNTS, ContextWindow())
    with FakeTensorMode():
        engine.model = SkipGramConfig(vocab_size=WORDS, width=WIDTH).build()
        ids = torch.zeros(64, dtype=torch.int64)
        batch = Predictions(ids[:, None], torch.ones(64, 1), ids)
        assert engine.update(batch, torch.zeros(2, 32, dtype=torch.int64), 0.1).shape == ()


def test_empty_blocks_have_no_loss() -> None:
    engine = BatchedEngine(small_model(), COUNTS, ContextWindow(subsample=0))
    loss = engine.train_block(random_block([1, 1]), 0.1, 0)
    assert (loss.total, loss.count) == (0, 0)
