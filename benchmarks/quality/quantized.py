"""Compare int8 with float32 weights on a CPU: BLEU, differing translations and speed.

    python benchmarks/quality/quantized.py en-tr --data tatoeba-en-tr/test.tsv.gz --lines 1000
    python benchmarks/quality/quantized.py runs/multi30k          # on the test sets of its recipe

Both translate the same sentences with the model's own search settings. The BLEU of each, their difference and the
fraction of translations that differ are written to benchmarks/results/quantized-MODEL.json. --quick uses 100 sentences
and writes no results.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import log, write_results

from regard.data.text.corpus import CorpusConfig
from regard.fused.cpu_decoder import CpuDecoder, Precision
from regard.model.autoregressive import AutoregressiveModel
from regard.score import score_translations
from regard.task.translation.evaluate import TextTestSet, recipe_test_sets
from regard.task.translation.pipeline import LineTranslator, Translator
from regard.task.translation.recipe import ScoreConfig

PRECISIONS: tuple[Precision, ...] = ("float32", "int8")


def read_test_set(dataset_path: str) -> TextTestSet:
    """A file of sentence pairs in a dataset, given as DATASET/PATH."""
    name, _, path = dataset_path.partition("/")
    return TextTestSet.read(CorpusConfig(dataset=name, path=path), ScoreConfig(), dataset_path)


def translate(translator: Translator, precision: Precision, sources: list[str]) -> tuple[list[str], float]:
    """The best translations, and the seconds that they took."""
    assert isinstance(translator.seq2seq_model, AutoregressiveModel)
    decoder = CpuDecoder(translator.seq2seq_model, precision)
    source, target = translator.source_tokenizer, translator.target_tokenizer
    LineTranslator(decoder, source, target).translate(sources[:20], translator.decode)  # compile the kernels
    start = time.perf_counter()
    translations = LineTranslator(decoder, source, target).translate(sources, translator.decode)
    return [best.text for best, *_ in translations], time.perf_counter() - start


def compare(translator: Translator, model: str, test_set: TextTestSet, lines: int | None) -> dict[str, Any]:
    """Translate a test set, or its first lines, in each precision."""
    sources, references = list(test_set.sources[:lines]), list(test_set.references[:lines])
    texts, seconds = {}, {}
    for precision in PRECISIONS:
        texts[precision], seconds[precision] = translate(translator, precision, sources)
    options = {"tokenized": test_set.score.tokenized, "lowercase": test_set.score.lowercase}
    scores = {precision: score_translations(texts[precision], references, **options) for precision in PRECISIONS}
    changed = sum(left != right for left, right in zip(*texts.values(), strict=True))
    return {
        "case": f"{model} on {test_set.name}",
        "sentences": len(sources),
        "bleu": {precision: scores[precision].bleu for precision in PRECISIONS},
        "difference": scores["int8"].bleu - scores["float32"].bleu,
        "share_changed": changed / len(sources),
        "seconds": seconds,
        "signature": scores["int8"].bleu_signature,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run folder, or name of a pretrained model")
    parser.add_argument(
        "--data", metavar="DATASET/PATH", action="append", help="sentence pairs (default: the recipe's test sets)"
    )
    parser.add_argument("--name", help="name of the model in the results (default: that of its folder)")
    parser.add_argument("--lines", type=int, help="use only the first LINES pairs")
    parser.add_argument("--quick", action="store_true", help="use 100 sentences and write no results")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    translator = Translator.load(options.model)
    test_sets = [read_test_set(path) for path in options.data] if options.data else recipe_test_sets(options.model)
    lines, name = 100 if options.quick else options.lines, options.name or Path(options.model).name
    cases = [log(compare(translator, name, test_set, lines)) for test_set in test_sets]
    if not options.quick:
        print(f"written: {write_results(f'quantized-{name}', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
