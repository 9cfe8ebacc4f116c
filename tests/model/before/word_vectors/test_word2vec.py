"""word2vec as it is defined: contexts, losses and gradients."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.model.before.word_vectors.config import CbowConfig, HierarchicalSoftmaxConfig, SkipGramConfig
from regard.model.before.word_vectors.huffman import huffman_paths
from regard.model.before.word_vectors.word2vec import (
    NO_WORD,
    Word2Vec,
    contexts_of,
    hierarchical_softmax_loss,
    negative_sampling_loss,
)

TEXT = "the professor is scribbling on the board and the student is writing down the scribbles"
SENTENCE = TEXT.split()
KINDS = {"skip-gram": SkipGramConfig, "cbow": CbowConfig}


def small_model(kind: str, **settings: Any) -> Word2Vec:
    model = KINDS[kind](vocab_size=7, width=4, **settings).build().double()
    torch.nn.init.normal_(model.output_vectors)
    torch.nn.init.normal_(model.input_vectors)
    assert isinstance(model, Word2Vec)
    return model


@pytest.mark.parametrize(
    ("word", "context"),
    [("professor", ["the", "is", "scribbling"]), ("student", ["and", "the", "is", "writing"])],
)
def test_contexts_are_those_of_the_slides(word: str, context: list[str]) -> None:
    """Unberath, "Embeddings, Attention, and Transformers": what is a word's context?"""
    vocabulary = sorted(set(SENTENCE))
    ids = torch.tensor([vocabulary.index(each) for each in SENTENCE])
    row = contexts_of(ids, 2)[SENTENCE.index(word)]
    assert [vocabulary[number] for number in row.tolist() if number != NO_WORD] == context


@pytest.mark.parametrize("kind", KINDS)
def test_looking_up_a_word_is_multiplying_its_one_hot_vector_with_the_table(kind: str) -> None:
    model, ids = small_model(kind), torch.tensor([3, 0, 6])
    assert torch.equal(model(ids), F.one_hot(ids, 7).double() @ model.input_vectors)


def test_cbow_is_the_cross_entropy_given_the_mean_of_the_context() -> None:
    model = small_model("cbow")
    embedded = (model.input_vectors[1] + model.input_vectors[2] + model.input_vectors[5]) / 3
    expected = F.cross_entropy(model.output_vectors @ embedded, torch.tensor(4))
    found = model.cross_entropy(torch.tensor([4]), torch.tensor([[NO_WORD, 1, 2, 5]]))
    torch.testing.assert_close(found[0], expected)


def test_skip_gram_averages_the_losses_over_the_context() -> None:
    model = small_model("skip-gram")
    logits = model.output_vectors @ model.input_vectors[4]
    expected = F.cross_entropy(logits.expand(3, -1), torch.tensor([1, 2, 5]))
    found = model.cross_entropy(torch.tensor([4]), torch.tensor([[NO_WORD, 1, 2, 5]]))
    torch.testing.assert_close(found[0], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_cross_entropy_are_finite_differences(kind: str) -> None:
    model = small_model(kind)
    contexts = contexts_of(torch.tensor([0, 3, 1, 1, 6]), 2)

    def loss(inputs: Tensor, outputs: Tensor) -> Tensor:
        tables = {"model.input_vectors": inputs, "model.output_vectors": outputs}
        return torch.func.functional_call(_Losses(model), tables, contexts)

    assert torch.autograd.gradcheck(loss, (model.input_vectors, model.output_vectors))


class _Losses(torch.nn.Module):
    def __init__(self, model: Word2Vec) -> None:
        super().__init__()
        self.model = model

    def forward(self, contexts: Tensor) -> Tensor:
        return self.model.cross_entropy(torch.tensor([0, 3, 1, 1, 6]), contexts)


def test_gradients_of_negative_sampling_are_finite_differences() -> None:
    targets, negatives = torch.tensor([1, 4]), torch.tensor([[0, 1, 2], [2, 2, 6]])
    hidden = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    outputs = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: negative_sampling_loss(*x, targets, negatives), (hidden, outputs))


def test_negative_sampling_skips_random_words_that_are_the_true_one() -> None:
    hidden, outputs = torch.randn(1, 4), torch.randn(7, 4)
    with_it = negative_sampling_loss(hidden, outputs, torch.tensor([1]), torch.tensor([[0, 1]]))
    without = negative_sampling_loss(hidden, outputs, torch.tensor([1]), torch.tensor([[0]]))
    torch.testing.assert_close(with_it, without)


def test_hierarchical_softmax_is_a_distribution_over_the_words() -> None:
    paths = huffman_paths(torch.tensor([50, 20, 9, 9, 4, 2, 1]).numpy())
    model = small_model("skip-gram", loss=HierarchicalSoftmaxConfig())
    assert model.output_vectors.shape == (6, 4)
    total = 0.0
    for word in range(7):
        path = slice(int(paths.offsets[word]), int(paths.offsets[word + 1]))
        nodes, codes = model.output_vectors[paths.nodes[path]], torch.from_numpy(paths.codes[path])
        total += math.exp(-hierarchical_softmax_loss(model.input_vectors[0], nodes, codes).item())
    assert total == pytest.approx(1)


def test_huffman_codes_are_as_short_as_entropy_permits() -> None:
    """Of counts that are powers of two, the word with a share 2⁻ⁿ has a path of n decisions."""
    paths = huffman_paths(torch.tensor([8, 4, 2, 1, 1]).numpy())
    assert torch.tensor(paths.offsets).diff().tolist() == [1, 2, 3, 4, 4]
    assert paths.codes[: 1 + 2].tolist() == [0, 1, 0]


def test_huffman_paths_of_one_word_are_empty() -> None:
    assert huffman_paths(torch.tensor([3]).numpy()).offsets.tolist() == [0, 0]
