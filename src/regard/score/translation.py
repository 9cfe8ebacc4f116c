"""BLEU and chrF of translations, by sacreBLEU (Post 2018), each with the signature that makes it comparable.

A number without its signature says little: the same output differs by several BLEU between tokenisations. `raw` text is
tokenised by sacreBLEU itself (13a); text that is `tokenised` already is taken as it stands, which is how some data sets
define their scores.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from regard.errors import UserError


@dataclass(frozen=True)
class TranslationScore:
    """Both measures, from 0 to 100, over a whole test set."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int

    def __str__(self) -> str:
        return f"BLEU {self.bleu:.2f}, chrF {self.chrf:.2f}"

    def rounded(self) -> dict[str, Any]:
        """As plain data, to two decimals."""
        return asdict(self) | {"bleu": round(self.bleu, 2), "chrf": round(self.chrf, 2)}


@dataclass(frozen=True)
class Comparison:
    """Two systems on one test set. `p_value` is the chance of so large a difference in BLEU if there were none;
    the ranges are 95 % intervals, as half their width."""

    first: float
    second: float
    first_range: float
    second_range: float
    p_value: float
    samples: int


def score_translations(
    outputs: Sequence[str], references: Sequence[str], *, tokenised: bool = False, lowercase: bool = False
) -> TranslationScore:
    """Score a test set. `tokenised`: both sides are tokenised already; `lowercase`: case does not count."""
    _check(outputs, references)
    bleu, chrf = _measures(tokenised, lowercase)
    return TranslationScore(
        bleu=bleu.corpus_score(outputs, [references]).score,
        chrf=chrf.corpus_score(outputs, [references]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(outputs),
    )


def score_sentences(
    outputs: Sequence[str], references: Sequence[str], *, tokenised: bool = False, lowercase: bool = False
) -> list[tuple[float, float]]:
    """BLEU (with effective order, as short sentences need) and chrF of each sentence by itself."""
    _check(outputs, references)
    bleu, chrf = _measures(tokenised, lowercase, sentence=True)
    return [
        (bleu.sentence_score(output, [reference]).score, chrf.sentence_score(output, [reference]).score)
        for output, reference in zip(outputs, references, strict=True)
    ]


def compare_translations(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    tokenised: bool = False,
    lowercase: bool = False,
    samples: int = 1000,
    seed: int = 12345,
) -> Comparison:
    """Whether two systems really differ, by paired bootstrap resampling (Koehn 2004)."""
    _check(first, references)
    _check(second, references)
    if samples < 1:
        raise UserError(f"The bootstrap needs at least one sample; found {samples}.")
    bleu, _ = _measures(tokenised, lowercase, references=references)
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)  # the library knows no other way
    level = logging.getLogger("sacrebleu").level
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    try:
        systems = [("first", list(first)), ("second", list(second))]
        test = PairedTest(systems, {"BLEU": bleu}, references=None, test_type="bs", n_samples=samples)
        results = test()[1]["BLEU"]
    finally:
        logging.getLogger("sacrebleu").setLevel(level)
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
    one, two = results
    # Of two equal outputs no sample differs more than the whole does, and the library takes that for significance.
    p_value = 1.0 if list(first) == list(second) else float(two.p_value)
    return Comparison(one.score, two.score, float(one.ci), float(two.ci), p_value, samples)


def _measures(
    tokenised: bool, lowercase: bool, *, sentence: bool = False, references: Sequence[str] | None = None
) -> tuple[BLEU, CHRF]:
    given = None if references is None else [list(references)]
    bleu = BLEU(
        tokenize="none" if tokenised else "13a",
        lowercase=lowercase,
        force=True,  # the library would warn of text that looks tokenised; here that was said
        effective_order=sentence,
        references=given,
    )
    return bleu, CHRF(lowercase=lowercase, references=given)


def _check(outputs: Sequence[str], references: Sequence[str]) -> None:
    if len(outputs) != len(references):
        raise UserError(f"There are {len(outputs)} outputs and {len(references)} references; give one for each.")
    if not outputs:
        raise UserError("There is nothing to score: no outputs were given.")
