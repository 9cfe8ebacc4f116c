"""GloVe's updates of one pair of words after the other, compiled with numba."""

from typing import Any

import numpy as np

from regard.kernels.cpu.jit import jit


@jit
def glove_adagrad(
    pairs: Any, targets: Any, weights: Any, vectors: Any, vector_sums: Any, biases: Any, bias_sums: Any, lr: Any
) -> Any:
    """Take an AdaGrad step on half the weighted squared error of each pair; returns Σ weight · error² before each step.

    pairs: # (pairs, 2), words and contexts; targets, weights: # (pairs,), float32
    vectors: two tables # (words, width), of words and of contexts; biases: two # (words,); sums: the same shapes

    As in GloVe's own code, the sums are those of the squared steps (rate × gradient), and a step is divided by the
    root of the sum before it is added.
    """
    (words, contexts), (word_sums, context_sums) = vectors, vector_sums
    (word_bias, context_bias), (word_bias_sums, context_bias_sums) = biases, bias_sums
    width, total = words.shape[1], np.float64(0)
    for pair in range(pairs.shape[0]):
        i, j = pairs[pair, 0], pairs[pair, 1]
        w, u, w_sums, u_sums = words[i], contexts[j], word_sums[i], context_sums[j]
        error = word_bias[i] + context_bias[j] - targets[pair]
        for k in range(width):
            error += w[k] * u[k]
        step = weights[pair] * error
        total += step * error
        step *= lr
        for k in range(width):
            w_step, u_step = step * u[k], step * w[k]
            w[k] -= w_step / np.sqrt(w_sums[k])
            u[k] -= u_step / np.sqrt(u_sums[k])
            w_sums[k] += w_step * w_step
            u_sums[k] += u_step * u_step
        word_bias[i] -= step / np.sqrt(word_bias_sums[i])
        context_bias[j] -= step / np.sqrt(context_bias_sums[j])
        word_bias_sums[i] += step * step
        context_bias_sums[j] += step * step
    return total
