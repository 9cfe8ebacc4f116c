"""Skip-gram and CBOW on a CPU: one pass over some sentences, an update of the tables at each word.

Formulas are those of word2vec.c, but that skip-gram takes a word as input and its context as targets, which are the
same pairs the other way round. The word's vector moves with each prediction, and is written back after the last one.
Several threads may update the same tables at once, without locks; they rarely touch the same rows (Hogwild).

All random numbers are 32 bits of a linear congruential generator with a state of 64 bits (Knuth's MMIX), one per block.
"""

from typing import Any, NamedTuple

import numpy as np

from regard.kernels.cpu.jit import jit, jit_inline
from regard.kernels.cpu.vector_math import exp
from regard.kernels.cpu.word_vectors.rows import add_to_rows, mean_of_rows, score_rows, update_rows

MAX_SENTENCE = 1000
"""A sentence is cut where so many of its words have been kept, as in word2vec.c."""
MULTIPLIER, INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)
_HALF = np.uint64(32)
_ZERO, _ONE = np.float32(0), np.float32(1)
_MAX_SCORE = np.float32(15)
"""Scores are limited to this: beyond, σ is 0 or 1 in float32."""
_TINY = 1e-200
"""Probabilities are multiplied until they are as small as this, and then their logarithm is taken."""
_LOWER = np.uint64(0xFFFFFFFF)


class Sampling(NamedTuple):
    """How words and their contexts are taken from a text."""

    keep: Any
    """A word is kept if a random number of 32 bits is less than this.  # (words,), uint64"""
    window: Any
    """The most words on either side."""
    dynamic: Any
    """Whether the size of each window is random, from 1 to `window`."""
    cbow: Any
    """Whether words are predicted from their context, not the context from words."""


class Objective(NamedTuple):
    """What is predicted about a word: that it is none of some random words, or the way to it in a tree."""

    negatives: Any
    """The number of random words; 0 for the tree."""
    max_targets: Any
    """The most output vectors that predict one word."""
    aliases: Any
    """Walker's alias table in one number per word: in the upper 32 bits the probability to stay, in the lower ones the
    other word.  # (words,), uint64"""
    offsets: Any
    """Where the path of each word begins.  # (words + 1,), int64"""
    nodes: Any
    """The inner nodes on the paths.  # (decisions,), int32"""
    codes: Any
    """The way taken at each, 0 or 1.  # (decisions,), float32"""


class Subwords(NamedTuple):
    """The rows that make up each word's input vector; both are empty if that is one row, the word's id."""

    offsets: Any
    """# (words + 1,), int64"""
    rows: Any
    """# (rows,), int32"""
    max_rows: Any
    """The most rows that one prediction is made from."""


@jit
def train(
    ids: Any, offsets: Any, sampling: Any, objective: Any, subwords: Any, tables: Any, lr: Any, state: Any
) -> Any:
    """Update the tables by a block of sentences; `state` is that of the random numbers.

    Returns the sum of the losses and their number: with skip-gram one for each pair of words, with CBOW for each word.

    ids: # (words,); offsets: # (sentences + 1,); tables: input and output vectors  # (rows, width), a multiple of LANES
    """
    inputs, outputs = tables
    sentence = np.empty(MAX_SENTENCE, np.int64)
    rows = np.empty(objective.max_targets, np.int64)
    labels, grads = np.empty(rows.shape[0], np.float32), np.empty(rows.shape[0], np.float32)
    input_rows = np.empty(subwords.max_rows, np.int64)
    moving, both = np.empty((2, inputs.shape[1]), np.float32), np.arange(2)
    hidden, change, error = moving[0], moving[1], np.empty(inputs.shape[1], np.float32)
    loss, count = 0.0, 0
    for number in range(offsets.shape[0] - 1):
        position, end = offsets[number], offsets[number + 1]
        while position < end:
            words, position, state = _keep_words(ids, position, end, sampling.keep, sentence, state)
            for center in range(words):
                first, last, state = _window(center, words, sampling, state)
                if last - first < 2:
                    continue
                parts = 0
                for other in range(first, last):
                    if sampling.cbow != (other == center):
                        parts = _add_rows(sentence[other], subwords, input_rows, parts)
                mean_of_rows(inputs, input_rows, parts, hidden)
                change[:] = _ZERO
                for other in range(first, last):
                    if sampling.cbow == (other == center):
                        targets, state = _list_targets(sentence[other], objective, rows, labels, state)
                        score_rows(outputs, rows, targets, hidden, grads)
                        loss += _loss_and_grads(grads, labels, targets, lr)
                        update_rows(outputs, rows, targets, grads, hidden, error)
                        add_to_rows(moving, both, 2, error)
                        count += 1
                add_to_rows(inputs, input_rows, parts, change)
    return loss, count


@jit_inline
def random(state: Any) -> Any:
    """The next state; its upper 32 bits are the random number."""
    return state * MULTIPLIER + INCREMENT


@jit_inline
def _keep_words(ids: Any, position: Any, end: Any, keep: Any, sentence: Any, state: Any) -> Any:
    """Subsample words of a sentence into a buffer; returns their number, the position behind them, and the state."""
    words = 0
    while position < end and words < MAX_SENTENCE:
        word = ids[position]
        position += 1
        state = random(state)
        if state >> _HALF < keep[word]:
            sentence[words] = word
            words += 1
    return words, position, state


@jit_inline
def _window(center: Any, words: Any, sampling: Any, state: Any) -> Any:
    """Where the window around a word begins and ends, and the state."""
    size = sampling.window
    if sampling.dynamic:
        state = random(state)
        size = 1 + np.int64(((state >> _HALF) * np.uint64(size)) >> _HALF)
    return max(center - size, 0), min(center + size + 1, words), state


@jit_inline
def _list_targets(word: Any, objective: Any, rows: Any, labels: Any, state: Any) -> Any:
    """List the output vectors that predict a word and what each should say; returns their number and the state."""
    targets = 0
    if objective.negatives == 0:
        for decision in range(objective.offsets[word], objective.offsets[word + 1]):
            rows[targets], labels[targets] = objective.nodes[decision], _ONE - objective.codes[decision]
            targets += 1
        return targets, state
    rows[targets], labels[targets] = word, _ONE
    targets += 1
    vocab_size = np.uint64(objective.aliases.shape[0])
    for _ in range(objective.negatives):
        state = random(state)
        drawn = np.int64(((state >> _HALF) * vocab_size) >> _HALF)
        entry = objective.aliases[drawn]
        state = random(state)
        if state >> _HALF >= entry >> _HALF:
            drawn = np.int64(entry & _LOWER)
        if drawn != word:
            rows[targets], labels[targets] = drawn, _ZERO
            targets += 1
    return targets, state


@jit_inline
def _add_rows(word: Any, subwords: Any, rows: Any, parts: Any) -> Any:
    """List the input vectors that make up a word; returns their number."""
    if subwords.rows.shape[0] == 0:
        rows[parts] = word
        return parts + 1
    for entry in range(subwords.offsets[word], subwords.offsets[word + 1]):
        rows[parts] = subwords.rows[entry]
        parts += 1
    return parts


@jit_inline
def _loss_and_grads(scores: Any, labels: Any, targets: Any, lr: Any) -> Any:
    """The loss; scores become the negative gradients of the loss with respect to them, times the learning rate."""
    for target in range(targets):
        score = max(min(scores[target], _MAX_SCORE), -_MAX_SCORE)
        small = exp(-abs(score))
        probability = (_ONE if score > _ZERO else small) / (_ONE + small)
        scores[target] = probability
    likelihood, loss = 1.0, 0.0
    for target in range(targets):
        error = labels[target] - scores[target]
        likelihood *= _ONE - abs(error)
        if likelihood < _TINY:
            loss -= np.log(likelihood)
            likelihood = 1.0
        scores[target] = error * lr
    return loss - np.log(likelihood)
