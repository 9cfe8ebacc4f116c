"""Score models on the same sentences as they are, in lower case, in capitals, and without final punctuation.

    python benchmarks/quality/letter_case.py tatoeba-en-tr=runs/tatoeba-en-tr tatoeba-en-tr-case=en-tr \\
        --data tatoeba-en-tr/test.tsv.gz --target-language tr

Sources and references are changed alike, in the way that data.augment changes training pairs. Every model translates
with its own search settings. BLEU and chrF are written to benchmarks/results/letter-case-DATASET.json; --dry-run only
prints them.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.common import log, write_results

from regard.data.text.augment import TextAugmentConfig
from regard.data.text.corpus import CorpusConfig, read_corpus
from regard.data.text.pairs import Pair
from regard.score import score_translations
from regard.task.translation.pipeline import Translator


def changes(config: TextAugmentConfig) -> dict[str, Callable[[Pair], Pair]]:
    """How pairs are changed, by name; a pair in which there is nothing to change stays as it is."""
    kinds = {augmentation.kind: augmentation.change for augmentation in config.augmentations()}
    both = "uppercase, drop_final_punctuation"
    return {
        "as is": lambda pair: pair,
        **kinds,
        both: lambda pair: kinds["uppercase"](kinds["drop_final_punctuation"](pair)),
    }


def score(name: str, model: str, pairs: list[Pair], kinds: dict[str, Callable[[Pair], Pair]]) -> dict[str, Any]:
    """The scores of a model for the same pairs, changed in each of these ways."""
    translator = Translator.load(model)
    case: dict[str, Any] = {"case": name, "sentences": len(pairs), "bleu": {}, "chrf": {}}
    for kind, change in kinds.items():
        changed = [change(pair) for pair in pairs]
        decode = translator.decode.only_best()
        found = translator.translate_batch([pair.source for pair in changed], decode, split=False)
        scored = score_translations([one.text for one in found], [pair.target for pair in changed])
        case["bleu"][kind], case["chrf"][kind] = scored.bleu, scored.chrf
        case["signature"] = scored.bleu_signature
    return case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL", help="a name for the results, and the model")
    parser.add_argument("--data", required=True, metavar="DATASET/PATH", help="sentence pairs of a dataset")
    parser.add_argument("--source-language", help="ISO 639 code, for languages with a case of their own, such as tr")
    parser.add_argument("--target-language", help="the same for the references")
    parser.add_argument("--dry-run", action="store_true", help="write no results")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    dataset, _, path = options.data.partition("/")
    config = TextAugmentConfig(
        uppercase=1,
        lowercase=1,
        drop_final_punctuation=1,
        source_language=options.source_language,
        target_language=options.target_language,
    )
    pairs, kinds = list(read_corpus(CorpusConfig(dataset=dataset, path=path))), changes(config)
    cases = []
    for name, _, model in (model.partition("=") for model in options.models):
        cases.append(log(score(name, model, pairs, kinds)))
    if not options.dry_run:
        print(f"written: {write_results(f'letter-case-{dataset}', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
