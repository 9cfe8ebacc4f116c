"""Measure the quality of decoding with a vocabulary shortlist: the model en-tr on its test set.

    REGARD_DATA=… python benchmarks/quality/shortlist.py

Learns a shortlist from the training pairs of `en-tr` and translates the test set with and without it, with beam sizes 1
and 5. The results contain BLEU and chrF, the fraction of identical outputs, the size of the shortlists, and the
fraction of the references' tokens that are on them.
"""

import argparse
import statistics
import sys
import time
from typing import Any

from benchmarks.common import log, write_results

from regard.data.text.corpus import Corpus
from regard.decode import Request, search_all, search_batch
from regard.score import score_translations
from regard.task.backend import BATCH_TOKENS
from regard.task.translation.pipeline import Translator
from regard.task.translation.recipe import read_translation_recipe
from regard.task.translation.shortlist import learn_shortlist, training_corpus


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    translator = Translator.load("en-tr")
    recipe = read_translation_recipe("tatoeba-en-tr")
    start = time.perf_counter()
    pairs = list(training_corpus("en-tr").read())
    shortlist = learn_shortlist(pairs, translator.source_tokenizer, translator.target_tokenizer)
    seconds = time.perf_counter() - start
    cases = [log({"case": "learning", "pairs": len(pairs), "seconds": seconds})]
    test_pairs = list(Corpus("test", (recipe.data.test["test"],)).read())
    sources, references = [pair.source for pair in test_pairs], [pair.target for pair in test_pairs]
    source_ids = translator.source_tokenizer.encode_batch(sources)
    target_ids = [set(ids) for ids in translator.target_tokenizer.encode_batch(references)]
    shortlists = [set(shortlist.tokens([ids]).tolist()) for ids in source_ids]
    recall = statistics.mean(
        len(targets & allowed) / len(targets) for targets, allowed in zip(target_ids, shortlists, strict=True)
    )
    size = statistics.mean(map(len, shortlists))
    cases.append(log({"case": "a sentence alone", "words": size, "references": recall}))
    for beam_size in (1, 5):
        outputs: dict[str, list[str]] = {}
        scores: dict[str, dict[str, float]] = {}
        for name, used_shortlist in (("whole", None), ("shortlist", shortlist)):
            translator.shortlist = used_shortlist
            translations = translator.translate_sentences(sources, translator.search(beam_size))
            outputs[name] = [best.text for best, *_ in translations]
            score = score_translations(outputs[name], references)
            scores[name] = {"bleu": score.bleu, "chrf": score.chrf}
        same = sum(left == right for left, right in zip(outputs["whole"], outputs["shortlist"], strict=True))
        case: dict[str, Any] = {"case": f"{beam_size} beams", **scores, "same_outputs": same / len(sources)}
        cases.append(log(case))
    sizes = batch_shortlist_sizes(translator, shortlist, source_ids)
    cases.append(log({"case": "a batch", "batches": len(sizes), "words": statistics.mean(sizes)}))
    print(f"written: {write_results('shortlist-en-tr', cases)}")
    return 0


def batch_shortlist_sizes(translator: Any, shortlist: Any, source_ids: list[list[int]]) -> list[int]:
    """The size of the shortlist of each batch, with the batches of `regard translate`."""
    sizes: list[int] = []

    def search(model: Any, requests: Any, eos: int) -> Any:
        sizes.append(len(shortlist.tokens(request.source for request in requests)))
        return search_batch(model, requests, eos)

    config = translator.search(1)
    requests = [Request(tuple(ids), 1, config) for ids in source_ids]
    search_all(
        translator.model, requests, translator.target_tokenizer.eos, batch_tokens=BATCH_TOKENS["cpu"], search=search
    )
    return sizes


if __name__ == "__main__":
    sys.exit(main())
