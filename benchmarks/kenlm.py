"""n-gram models against KenLM: every entry of an ARPA file that its lmplz wrote, and a perplexity.

    REGARD_DATA=FOLDER python benchmarks/kenlm.py

The folder has kenlm/multi30k-en-3.arpa.gz, the output of `lmplz -o 3` (interpolated modified Kneser–Ney, no pruning)
over multi30k/tok/train.lc.norm.tok.en, and that text. We estimate the same model from the text, and compare all
probabilities and back-off weights in log10, as the file has them. The perplexity of multi30k/tok/
test_2016_flickr.lc.norm.tok.en counts words and ends of lines, unknown words included, as KenLM's `query` does.
The text may not be redistributed, so this is no test.
"""

import argparse
import gzip
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import log, write_results
from numpy.typing import NDArray

from regard.data.text.lines import read_lines
from regard.decode import score_all
from regard.errors import UserError
from regard.model import SpecialTokensConfig
from regard.model.before.ngram.arpa import BEGIN, END, read_arpa
from regard.model.before.ngram.model import NgramLM, estimate_ngrams

ARPA = "kenlm/multi30k-en-3.arpa.gz"
TRAIN = "multi30k/tok/train.lc.norm.tok.en.gz"
TEST = "multi30k/tok/test_2016_flickr.lc.norm.tok.en.gz"
PERPLEXITY = 37.0298
"""What KenLM's `query` gives for the test set, as SOURCE.txt beside the ARPA file says."""
TOLERANCE = 1e-5
"""In log10. The file has seven digits."""
Entries = dict[str, tuple[float, float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if "REGARD_DATA" not in os.environ:
        raise UserError("Set REGARD_DATA to the folder that has kenlm and multi30k.")
    data = Path(os.environ["REGARD_DATA"])
    theirs, words = read_arpa(data / ARPA)
    ids = {word: token for token, word in enumerate(words)}
    text = [[ids[word] for word in line.split()] for line in read_lines(data / TRAIN)]
    start = time.perf_counter()
    special = SpecialTokensConfig(bos=ids[BEGIN], eos=ids[END])
    ours = estimate_ngrams(text, theirs.config.order, len(words), special_tokens=special, discount_fallback=False)
    seconds = time.perf_counter() - start
    case = {
        "peer": "KenLM",
        "model": "3-grams of Multi30k, English",
        "entries": sum(_sizes(theirs)),
        **_compare(ours, read_entries(data / ARPA), words),
        "same_entries": all(map(np.array_equal, _keys(ours), _keys(theirs))),
        "perplexity": {
            "KenLM": PERPLEXITY,
            "KenLM's file, read by regard": _perplexity(theirs, ids, data / TEST),
            "estimated by regard": _perplexity(ours, ids, data / TEST),
        },
        "seconds_to_estimate": seconds,
    }
    perplexities = list(case["perplexity"].values())
    case["equal"] = (
        case["same_entries"]
        and max(case["largest_difference_log10"].values()) <= TOLERANCE
        and max(perplexities) - min(perplexities) < 1e-4
    )
    print(f"Results written to {write_results('kenlm', [log(case)])}")
    return 0 if case["equal"] else 1


def read_entries(path: Path) -> list[Entries]:
    """By order, log10 of probability and back-off weight of each n-gram, read from the text and not by our reader."""
    orders: list[Entries] = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            fields = line.rstrip("\n").split("\t")
            if line.startswith("\\") and "-grams:" in line:
                orders.append({})
            elif orders and len(fields) > 1:
                orders[-1][fields[1]] = float(fields[0]), float(fields[2]) if len(fields) > 2 else 0.0
    return orders


def _compare(ours: NgramLM, theirs: Sequence[Entries], words: Sequence[str]) -> dict[str, Any]:
    """How many entries both have, and the largest differences.

    The probability of <s> is not compared: it is never predicted, and lmplz writes 1 for it.
    """
    compared, largest = 0, {"probability": 0.0, "back_off": 0.0}
    grams = list(words)
    for number, (table, entries) in enumerate(zip(ours.tables, theirs, strict=True)):
        values = {name: tensor.double().numpy() / math.log(10) for name, tensor in table.state_dict().items()}
        if number:
            keys = table.state_dict()["keys"].tolist()
            grams = [f"{grams[key // len(words)]} {words[key % len(words)]}" for key in keys]
        assert set(grams) == set(entries), "an n-gram is missing"
        expected = np.array([entries[gram] for gram in grams])
        predicted = np.array([gram != BEGIN for gram in grams])
        difference = np.abs(values["logprobs"] - expected[:, 0])[predicted]
        largest["probability"] = max(largest["probability"], float(difference.max()))
        if "backoffs" in values:
            difference = np.abs(values["backoffs"] - expected[:, 1])
            largest["back_off"] = max(largest["back_off"], float(difference.max()))
        compared += int(predicted.sum())
    return {"compared_probabilities": compared, "largest_difference_log10": largest}


def _keys(model: NgramLM) -> list[NDArray[np.int64]]:
    return [table.state_dict()["keys"].numpy() for table in list(model.tables)[1:]]


def _sizes(model: NgramLM) -> list[int]:
    return [model.config.vocab_size, *model.config.entries]


def _perplexity(model: NgramLM, ids: dict[str, int], path: Path) -> float:
    """exp of the mean loss of words and ends of lines; each line begins with <s>."""
    lines = [[ids.get(word, ids["<unk>"]) for word in line.split()] for line in read_lines(path)]
    scores = score_all(model, [[ids[BEGIN]] for _ in lines], lines, ids[END], batch_tokens=1024)
    logprobs = [logprob for line in scores for logprob in line]
    assert len(logprobs) == sum(len(line) + 1 for line in lines)
    return math.exp(-math.fsum(logprobs) / len(logprobs))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"kenlm.py: {error}")
