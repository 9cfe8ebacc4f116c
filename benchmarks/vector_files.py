"""Word vectors beside gensim: files in both directions, neighbors, scores, and the time of a search.

    REGARD_DATA=FOLDER python benchmarks/vector_files.py --vectors FILE --peer PYTHON [--quick]

FILE has trained vectors of any format; PYTHON is an interpreter that has gensim, which runs apart, on the same files.
Both use one thread. The vectors are written as word2vec's text and binary, read by gensim and written again, and read
back; neighbors, analogies and scores must then agree. The search is timed on random vectors: a million of them, unless
--quick is given.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import log, process_memory_mb, write_results

from regard.data.registry import find_dataset, get_dataset
from regard.errors import UserError
from regard.interop.word_vectors import export_word_vectors, open_word_vectors, opening
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.score.word_vectors import ANALOGIES_FILE, ANALOGY_SETS, PAIR_SETS, AnalogyScore, score_word_vectors

PEER = Path(__file__).parent / "peers" / "gensim_vectors.py"
TOP, TOLERANCE = 10, 2e-6
ANALOGIES = (("man", "king", "woman"), ("he", "his", "she"), ("good", "better", "bad"), ("go", "went", "come"))
ODD = (("breakfast", "dinner", "lunch", "horse"), ("red", "green", "blue", "door"))


ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Read by numpy's libraries when they are loaded, so this program starts itself again with them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", required=True, help="a file of word vectors")
    parser.add_argument("--peer", required=True, help="a Python that has gensim")
    parser.add_argument("--quick", action="store_true", help="100,000 random vectors instead of a million; no file")
    given = parser.parse_args()
    if not ONE_THREAD.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_THREAD)
    if find_dataset("wordsim") is None:
        raise UserError("Set REGARD_DATA to the folder that has wordsim.")
    os.environ["REGARD_CACHE"] = tempfile.mkdtemp()
    words, dimensions, repeats = (100_000, [100], 5) if given.quick else (1_000_000, [50, 100, 200, 300], 15)
    keyed = open_word_vectors(given.vectors)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for target, suffix in (("word2vec", "txt"), ("word2vec-binary", "bin")):
            export_word_vectors(keyed, target, folder / f"ours.{suffix}")
        data = get_dataset("wordsim")
        asked: dict[str, Any] = {"near": list(keyed.words[100:400]), "analogies": ANALOGIES, "odd": ODD}
        asked |= {"pairs": {name: str(data / file) for name, file in PAIR_SETS.items()}, "limits": ANALOGY_SETS}
        asked |= {"questions": str(data / ANALOGIES_FILE)}
        (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
        peer = subprocess.Popen([given.peer, PEER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert peer.stdout is not None
        theirs = json.loads(peer.stdout.readline())
        cases = [*_files(folder, keyed, theirs, asked["near"]), *_answers(keyed, theirs), *_scores(keyed, theirs)]
    cases += [_search(words, dimension, repeats, peer) for dimension in dimensions]
    peer.communicate()
    cases.append(_conversion(words // 4))
    if not given.quick:
        print(write_results("vector-files", [{"peer": f"gensim {theirs['version']}"}, *cases]))
    return 0 if all(case.get("agree", True) for case in cases) else 1


def _files(folder: Path, keyed: KeyedVectors, theirs: dict[str, Any], words: list[str]) -> list[dict[str, Any]]:
    """Files in both directions: the same numbers, the same neighbors, and the time of reading."""
    ours = [[tuple(one) for one in keyed.near(word, TOP)] for word in words]
    cases = []
    for name in ("txt", "bin"):
        seconds, read = _timed(partial(open_word_vectors, folder / f"theirs.{name}"))
        case = {"case": f"read {name}", "words": len(keyed), "dimension": keyed.dimension}
        case |= {"ours": round(seconds, 3), "peer": round(theirs[f"load_{name}"], 3), "unit": "seconds"}
        case |= {"ratio": round(theirs[f"load_{name}"] / seconds, 2)}
        same = list(read.words) == list(keyed.words) and read.vectors.tobytes() == _float32(keyed)
        case |= {"agree": same and _same_neighbors(ours, theirs[f"near_{name}"]), "neighbors_of": len(words)}
        cases.append(log(case))
    read = open_word_vectors(folder / "theirs.glove.txt")
    same = list(read.words) == list(keyed.words) and read.vectors.tobytes() == _float32(keyed)
    return [*cases, log({"case": "read glove", "words": len(read), "agree": same})]


def _answers(keyed: KeyedVectors, theirs: dict[str, Any]) -> list[dict[str, Any]]:
    ours = [[tuple(one) for one in keyed.analogy(a, b, c, TOP)] for a, b, c in ANALOGIES]
    odd = [keyed.odd(words)[0].word for words in ODD]
    return [
        log({"case": "analogy", "questions": len(ours), "agree": _same_neighbors(ours, theirs["analogy"])}),
        log({"case": "odd", "questions": len(odd), "ours": odd, "peer": theirs["odd"], "agree": odd == theirs["odd"]}),
    ]


def _scores(keyed: KeyedVectors, theirs: dict[str, Any]) -> list[dict[str, Any]]:
    cases = []
    for name, score in score_word_vectors(keyed).items():
        peer = theirs[name]
        if isinstance(score, AnalogyScore):
            correct, known, _ = score.counts()
            same = all(peer.get(section) == [good, all_] for section, (good, all_, _) in score.sections.items() if all_)
            case = {"case": name, "ours": round(score.accuracy, 3), "peer": round(100 * peer["accuracy"], 3)}
            case |= {"unit": "percent", "correct": correct, "known": known, "agree": same}
        else:
            case = {"case": name, "ours": round(score.spearman, 6), "peer": round(peer["spearman"], 6)}
            case |= {"unit": "Spearman", "known": score.known, "pairs": score.pairs}
            unknown = abs(100 - 100 * score.coverage - peer["unknown"])
            pearson = abs(score.pearson - peer["pearson"])
            case |= {"agree": max(abs(score.spearman - peer["spearman"]), pearson) < 1e-4 and unknown < 1e-9}
        cases.append(log(case))
    return cases


def _search(words: int, dimension: int, repeats: int, peer: "subprocess.Popen[str]") -> dict[str, Any]:
    """The ten nearest of many random vectors, exactly, in turns; the norms are computed before. The times are those of
    the processor, on one thread, so that other load on the machine counts less."""
    assert peer.stdin is not None
    assert peer.stdout is not None
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((words, dimension), dtype=np.float32)
    keyed = KeyedVectors([f"w{row}" for row in range(words)], vectors)
    keyed.near("w0")
    print(words, dimension, repeats, file=peer.stdin, flush=True)
    assert peer.stdout.readline() == "ready\n"
    ours, theirs = [], []
    for row in range(repeats):
        start = time.process_time()
        keyed.near(f"w{row}", TOP)
        ours.append(time.process_time() - start)
        print(file=peer.stdin, flush=True)
        theirs.append(float(peer.stdout.readline()))
    mine, other = statistics.median(ours), statistics.median(theirs)
    case = {"case": "near", "words": words, "dimension": dimension, "ours": round(1e3 * mine, 2)}
    case |= {"peer": round(1e3 * other, 2), "unit": "milliseconds", "slowest": round(1e3 * max(ours), 2)}
    return log(case | {"ratio": round(statistics.median(b / a for a, b in zip(ours, theirs, strict=True)), 2)})


def _conversion(words: int, dimension: int = 300) -> dict[str, Any]:
    """A large text file is converted in bounded memory, and then opens at once."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "large.txt"
        row = " ".join(map(str, np.random.default_rng(0).standard_normal(dimension, dtype=np.float32)))
        with path.open("w") as file:
            file.writelines(f"w{number} {row}\n" for number in range(words))
        before = process_memory_mb()["RssAnon"]
        first, _ = _timed(partial(open_word_vectors, path))
        grown = process_memory_mb()["RssAnon"] - before
        again, found = _timed(partial(open_word_vectors, path))
        assert path.stat().st_size >= opening.LARGE
        case = {"case": "convert", "words": len(found), "dimension": dimension, "first": round(first, 2)}
        case |= {"again": round(again, 3), "unit": "seconds", "text_mb": round(path.stat().st_size / 1e6)}
        return log(case | {"array_mb": round(found.vectors.nbytes / 1e6), "memory_grown_mb": round(grown)})


def _same_neighbors(ours: list[list[Any]], theirs: list[list[Any]]) -> bool:
    """The same words in the same order, unless their similarities are equal to rounding, and the same similarities."""
    for mine, other in zip(ours, theirs, strict=True):
        if max(abs(one[1] - two[1]) for one, two in zip(mine, other, strict=True)) > TOLERANCE:
            return False
        if any(one[0] != two[0] and abs(one[1] - two[1]) > TOLERANCE for one, two in zip(mine, other, strict=True)):
            return False
    return True


def _float32(keyed: KeyedVectors) -> bytes:
    return np.asarray(keyed.vectors, dtype=np.float32).tobytes()


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    sys.exit(main())
