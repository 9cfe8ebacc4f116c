"""Training skip-gram and CBOW: the compiled engine, the same in plain NumPy, and the one with the whole softmax."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching.word_blocks import ContextWindow, WordBlock
from regard.errors import how_to_install
from regard.kernels.dispatch import has_numba
from regard.model.before.word_vectors.config import CbowConfig, NegativeSamplingConfig, SoftmaxConfig
from regard.model.before.word_vectors.huffman import huffman_paths
from regard.model.before.word_vectors.subwords import rows_of_words
from regard.model.before.word_vectors.word2vec import Word2Vec
from regard.train.task import LogFn
from regard.train.word_vectors.batched import BatchedEngine, unsupported_reason
from regard.train.word_vectors.engine import BlockLoss, VectorEngine
from regard.train.word_vectors.plain import PlainWord2Vec, Setup
from regard.train.word_vectors.sampling import alias_table, keep_limits, negative_probabilities
from regard.train.word_vectors.softmax import SoftmaxWord2Vec


def word2vec_engine(
    model: Word2Vec,
    words: Sequence[str],
    counts: NDArray[np.int64],
    window: ContextWindow,
    device: torch.device,
    log: LogFn,
) -> VectorEngine[WordBlock]:
    """The fastest engine that can train the model on a device, to which the model is moved; those that only a CPU can
    train stay there. `words` are the vocabulary, `counts` how often they occur."""
    if device.type != "cpu":
        if (reason := unsupported_reason(model.config)) is None:
            return BatchedEngine(model.to(device), counts, window)
        log(f"{reason}, so these vectors are trained on the CPU.")
    if isinstance(model.config.loss, SoftmaxConfig):
        return SoftmaxWord2Vec(model, counts, window)
    setup = make_setup(model, words, counts, window)
    if has_numba():
        return CompiledWord2Vec(model, setup)
    log(
        f"numba is not installed, so training is about a hundred times slower; to install it, {how_to_install('fast')}."
    )
    return PlainWord2Vec(model, setup)


def make_setup(model: Word2Vec, words: Sequence[str], counts: NDArray[np.int64], window: ContextWindow) -> Setup:
    """The tables that random numbers are looked up in, the paths of the tree, and the n-grams of each word."""
    config, nothing = model.config, np.zeros(0, dtype=np.int64)
    subwords = (nothing, nothing.astype(np.int32)) if config.subwords is None else rows_of_words(words, config.subwords)
    negatives, aliases, paths = 0, nothing.astype(np.uint64), None
    if isinstance(config.loss, NegativeSamplingConfig):
        negatives = config.loss.negatives
        aliases = alias_table(negative_probabilities(counts, config.loss.power))
    else:
        paths = huffman_paths(counts)
    return Setup(
        isinstance(config, CbowConfig),
        window,
        keep_limits(counts, window.subsample),
        negatives,
        aliases,
        paths,
        subwords,
    )


class CompiledWord2Vec:
    """Trains with the numba kernel. The model's tables become views of tables whose rows are padded."""

    def __init__(self, model: Word2Vec, setup: Setup) -> None:
        from regard.kernels.cpu.word_vectors.rows import padded_width
        from regard.kernels.cpu.word_vectors.word2vec import Objective, Sampling, Subwords, train

        self._train, width = train, padded_width(model.config.width)
        self._tables = tuple(_padded(table, width) for table in (model.input_vectors, model.output_vectors))
        window, paths = setup.window, setup.paths
        nothing = np.zeros(0, dtype=np.int64)
        path_arrays = (nothing, nothing.astype(np.int32), nothing.astype(np.float32)) if paths is None else tuple(paths)
        parts = 2 * window.size if setup.cbow else 1
        self._sampling = Sampling(setup.keep, window.size, window.dynamic, setup.cbow)
        self._objective = Objective(setup.negatives, setup.max_targets, setup.aliases, *path_arrays)
        self._subwords = Subwords(*setup.subwords, parts * setup.max_rows)

    def train_block(self, block: WordBlock, lr: float, seed: int) -> BlockLoss:
        total, count = self._train(
            block.ids,
            block.offsets,
            self._sampling,
            self._objective,
            self._subwords,
            self._tables,
            np.float32(lr),
            np.uint64(seed),
        )
        return BlockLoss(total, count)

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        pass


def _padded(table: torch.nn.Parameter, width: int) -> NDArray[np.float32]:
    """The table with rows of this width, of which the parameter becomes a view: whole vectors are faster."""
    if table.shape[1] < width:
        padded = torch.zeros(len(table), width)
        padded[:, : table.shape[1]] = table.data
        table.data = padded[:, : table.shape[1]]
    else:
        padded = table.data
    found: NDArray[np.float32] = padded.numpy()
    return found
