"""GloVe's loss is the formula of the paper; at weight 1 it is J of the lecture."""

import math

import numpy as np
import torch

from regard.model.before.word_vectors.config import GloveConfig
from regard.model.before.word_vectors.glove import Glove


def test_loss_at_weight_1_is_the_squared_error_of_the_logarithm() -> None:
    """J(w_i, w_j) = (w_i·u_j + b_i + b_j − log X_ij)²"""
    model = GloveConfig(vocab_size=3, width=2, x_max=0).build()
    with torch.no_grad():
        model.word_table[1], model.context_table[2] = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
        model.word_bias[1], model.context_bias[2] = 0.5, 0.25
    loss = model.loss(torch.tensor([1]), torch.tensor([2]), torch.tensor([10.0]))
    assert math.isclose(loss.item(), (1 * 3 - 2 * 1 + 0.5 + 0.25 - math.log(10)) ** 2, rel_tol=1e-5)


def test_rare_pairs_count_less() -> None:
    counts = torch.tensor([1.0, 50.0, 100.0, 1e6])
    weights = Glove(GloveConfig(vocab_size=1, width=1)).weight(counts)
    torch.testing.assert_close(weights, torch.tensor([0.01**0.75, 0.5**0.75, 1.0, 1.0]))


def test_vector_of_a_word_is_the_sum_of_its_rows_in_both_tables() -> None:
    model = Glove(GloveConfig(vocab_size=3, width=4))
    expected = (model.word_table + model.context_table).detach().numpy()
    np.testing.assert_array_equal(model.word_vectors(["a", "b", "c"]), expected)
    np.testing.assert_array_equal(model(torch.tensor([2, 0])).detach().numpy(), expected[[2, 0]])
