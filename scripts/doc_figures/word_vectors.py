"""Tables of word vectors: what they know beside gensim's, their neighbors, and the memory of training."""

from collections.abc import Iterator
from typing import Any

from doc_figures.markers import cases, table

Row = tuple[object, ...]
_ORDER = [
    *("novels-skipgram", "novels-cbow", "novels-fasttext", "novels-glove"),
    *("brown-skipgram", "brown-cbow", "brown-glove", "quick-vectors"),
]
_SETS = ("wordsim-353", "simlex-999", "men", "analogies-30000")


@table("recipe | trained by | seeds | WordSim-353 | SimLex-999 | MEN | analogies, 30,000 words")
def word_vector_scores() -> Iterator[Row]:
    found = sorted(cases("word-vectors"), key=lambda one: "gensim" in one["case"])
    for one in sorted(found, key=lambda one: _ORDER.index(one["case"].partition(", ")[0])):
        recipe, _, side = one["case"].partition(", ")
        yield f"`{recipe}`", side, len(one["seeds"]), *(_mean_std(one[name], name) for name in _SETS)


@table("text | words | most memory while words are counted | while they are put into ids | in training")
def word_vector_memory() -> Iterator[Row]:
    for one in cases("vectors-memory"):
        phases = one["peak_mb_of_phases"]
        peaks = (phases["Counting words"], phases["Tokenizing"], phases["Training"])
        words = one["text"].partition(" ")[0]
        yield one["case"].removesuffix(" of text"), words, *(f"{peak:,} MB" for peak in peaks)


@table("trained | regard, words a second | gensim | ratio")
def word_vector_speed() -> Iterator[Row]:
    for one in cases("vectors-cpu"):
        if "ratio" in one:
            name = one["case"].removesuffix(", words per second on 2 threads")
            yield name, f"{one['ours']:,}", f"{one['peer']:,}", one["ratio"]


@table("word | occurs | nearest neighbors, with their cosines")
def word_neighbors() -> Iterator[Row]:
    for one in cases("word-neighbors"):
        found = ", ".join(f"{word} {cosine:.2f}" for word, cosine in one["neighbors"].items())
        yield one["case"], f"{one['occurs']:,} times", found


def _mean_std(measured: dict[str, Any], name: str) -> str:
    digits, unit = (1, "%") if name.startswith("analogies") else (3, "")
    spread = "" if measured["std"] is None else f" ± {measured['std']:.{digits}f}"
    return f"{measured['mean']:.{digits}f}{spread}{unit}"
