"""What a shortlist of words costs and saves: the model that ships, on its own test set.

    REGARD_DATA=… python benchmarks/shortlist.py

Learns a shortlist from the training pairs of `en-tr`, then translates its test set with and without it, greedily and
with 5 beams: BLEU and chrF, the share of outputs that are the same, how many words a step scores, and how many
tokens of the references are on the lists.
"""

import statistics
import sys
import time
from typing import Any

from common import say, write_results

from regard.data.corpus import Corpus
from regard.decode import Request, search_all, search_batch
from regard.score import score_translations
from regard.task import load_translator
from regard.task.reading import read_translation
from regard.task.shortlist import learn_shortlist, training_corpus
from regard.task.translate import BATCH_TOKENS


def main() -> int:
    translator = load_translator("en-tr")
    recipe = read_translation("tatoeba-en-tr")
    begin = time.perf_counter()
    pairs = list(training_corpus("en-tr").read())
    learnt = learn_shortlist(pairs, translator.source_text, translator.target_text)
    seconds = time.perf_counter() - begin
    cases = [say({"case": "learning", "pairs": len(pairs), "seconds": seconds})]
    tests = list(Corpus("test", (recipe.data.test["test"],)).read())
    sources, references = [pair.source for pair in tests], [pair.target for pair in tests]
    read = translator.source_text.encode_batch(sources)
    wanted = [set(tokens) for tokens in translator.target_text.encode_batch(references)]
    alone = [set(learnt.tokens([tokens]).tolist()) for tokens in read]
    on_list = [len(tokens & known) / len(tokens) for tokens, known in zip(wanted, alone, strict=True)]
    share = statistics.mean(on_list)
    cases.append(say({"case": "a sentence alone", "words": statistics.mean(map(len, alone)), "references": share}))
    for beams in (1, 5):
        outputs: dict[str, list[str]] = {}
        scores: dict[str, dict[str, float]] = {}
        for name, shortlist in (("whole", None), ("shortlist", learnt)):
            translator.shortlist = shortlist
            found = translator.translate_sentences(sources, translator.search(beams))
            outputs[name] = [best.text for best, *_ in found]
            score = score_translations(outputs[name], references)
            scores[name] = {"bleu": score.bleu, "chrf": score.chrf}
        same = sum(one == other for one, other in zip(outputs["whole"], outputs["shortlist"], strict=True))
        case: dict[str, Any] = {"case": f"{beams} beams", **scores, "same_outputs": same / len(sources)}
        cases.append(say(case))
    sizes = batch_sizes(translator, learnt, read)
    cases.append(say({"case": "a batch", "batches": len(sizes), "words": statistics.mean(sizes)}))
    print(f"written: {write_results('shortlist-en-tr', cases)}")
    return 0


def batch_sizes(translator: Any, learnt: Any, read: list[list[int]]) -> list[int]:
    """How many words each batch scores, put together as `regard translate` does."""
    sizes: list[int] = []

    def note(worker: Any, requests: Any, end: int) -> Any:
        sizes.append(len(learnt.tokens(request.source for request in requests)))
        return search_batch(worker, requests, end)

    config = translator.search(1)
    requests = [Request(tuple(tokens), 1, config) for tokens in read]
    search_all(translator.model, requests, translator.target_text.end, batch_tokens=BATCH_TOKENS["cpu"], search=note)
    return sizes


if __name__ == "__main__":
    sys.exit(main())
