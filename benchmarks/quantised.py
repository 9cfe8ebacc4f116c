"""What int8 weights cost in quality, and what they gain in time: a test set translated with float32 and with int8.

    python benchmarks/quantised.py en-tr --data tatoeba-en-tr/test.tsv.gz --lines 1000
    python benchmarks/quantised.py runs/multi30k          # on the test sets that its recipe names

Both translate the same sentences with the search that the model was made for, on a CPU. BLEU of each, their difference,
and how many translations are not the same, go to benchmarks/results/quantised-MODEL.json. --quick takes 100 sentences
and writes nothing.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import say, write_results

from regard.data.corpus import CorpusConfig
from regard.fast.swift import Precision, Swift
from regard.score import score_translations
from regard.task.scoring import Test, given_test_set, own_test_sets
from regard.task.translate import translate_lines
from regard.task.translation_recipe import ScoreConfig
from regard.task.translator import Translator, load_translator

PRECISIONS: tuple[Precision, ...] = ("float32", "int8")


def given_set(place: str) -> Test:
    """A file of pairs in a data set, SET/PATH."""
    name, _, path = place.partition("/")
    return given_test_set(CorpusConfig(set=name, path=path), ScoreConfig(), place)


def outputs(translator: Translator, precision: Precision, sources: list[str]) -> tuple[list[str], float]:
    """The best translations, and how many seconds they took."""
    worker = Swift(translator.translating, precision)
    source, target = translator.source_text, translator.target_text
    translate_lines(worker, source, target, sources[:20], translator.decode)  # compiles
    begin = time.perf_counter()
    found = translate_lines(worker, source, target, sources, translator.decode)
    return [best.text for best, *_ in found], time.perf_counter() - begin


def compare(translator: Translator, model: str, test: Test, lines: int | None) -> dict[str, Any]:
    sources, references = list(test.sources[:lines]), list(test.references[:lines])
    texts, seconds = {}, {}
    for precision in PRECISIONS:
        texts[precision], seconds[precision] = outputs(translator, precision, sources)
    how = {"tokenised": test.score.tokenised, "lowercase": test.score.lowercase}
    scores = {precision: score_translations(texts[precision], references, **how) for precision in PRECISIONS}
    changed = sum(one != other for one, other in zip(*texts.values(), strict=True))
    return {
        "case": f"{model} on {test.name}",
        "sentences": len(sources),
        "bleu": {precision: scores[precision].bleu for precision in PRECISIONS},
        "difference": scores["int8"].bleu - scores["float32"].bleu,
        "share_changed": changed / len(sources),
        "seconds": seconds,
        "signature": scores["int8"].bleu_signature,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run folder, or a model that ships with regard")
    parser.add_argument(
        "--data", metavar="SET/PATH", action="append", help="pairs; the model's own test sets if not given"
    )
    parser.add_argument("--name", help="what results call the model, if not by the name of its folder")
    parser.add_argument("--lines", type=int, help="take only so many pairs, from the first on")
    parser.add_argument("--quick", action="store_true", help="100 sentences, and nothing is written")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    translator = load_translator(options.model)
    tests = [given_set(place) for place in options.data] if options.data else own_test_sets(options.model, None)
    lines, name = 100 if options.quick else options.lines, options.name or Path(options.model).name
    cases = [say(compare(translator, name, test, lines)) for test in tests]
    if not options.quick:
        print(f"written: {write_results(f'quantised-{name}', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
