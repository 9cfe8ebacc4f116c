"""The Huffman tree of a vocabulary: frequent words are near the root, so that predicting them takes few decisions.

Every word is a leaf. The path to it is the inner nodes from the root down, each with the way that is taken there: 0 to
the rarer child, 1 to the other (word2vec.c).
"""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class HuffmanPaths(NamedTuple):
    """The paths of all words, one behind the other."""

    offsets: NDArray[np.int64]
    """(words + 1,); where the path of each word begins, and the end of the last one."""
    nodes: NDArray[np.int32]
    """(decisions,); numbers of inner nodes, of which there is one less than words. The root is the last one."""
    codes: NDArray[np.float32]
    """(decisions,); 0 or 1, the way that is taken at each node."""


def huffman_paths(counts: NDArray[np.int64]) -> HuffmanPaths:
    """The paths of words that occur this often."""
    words = len(counts)
    heap = [(count, number) for number, count in enumerate(counts.tolist())]
    heapq.heapify(heap)
    parents, codes = np.zeros(2 * words, dtype=np.int64), np.zeros(2 * words, dtype=np.int64)
    for inner in range(words - 1):
        first_count, first = heapq.heappop(heap)
        second_count, second = heapq.heappop(heap)
        parents[[first, second]] = words + inner
        codes[second] = 1  # the more frequent one
        heapq.heappush(heap, (first_count + second_count, words + inner))
    paths = [_path(word, parents, codes, 2 * words - 2) for word in range(words)]
    offsets = np.zeros(words + 1, dtype=np.int64)
    np.cumsum([len(path) for path in paths], out=offsets[1:])
    nodes = np.array([node - words for path in paths for node, _ in path], dtype=np.int32)
    return HuffmanPaths(offsets, nodes, np.array([code for path in paths for _, code in path], dtype=np.float32))


def _path(word: int, parents: NDArray[np.int64], codes: NDArray[np.int64], root: int) -> list[tuple[int, int]]:
    """The inner nodes from the root to a word, and the way taken at each."""
    path = []
    node = word
    while node != root:
        path.append((int(parents[node]), int(codes[node])))
        node = int(parents[node])
    return path[::-1]
