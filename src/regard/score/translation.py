"""BLEU and chrF of translations by sacreBLEU (Post 2018), with the signatures that make them comparable.

A score without its signature says little: the same output differs by several BLEU between tokenizations. Raw text is
tokenized by sacreBLEU (13a); text that is already `tokenized` is used as it is, which is how some datasets define their
scores.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from regard.errors import UserError


@dataclass(frozen=True, repr=False)
class TranslationScore:
    """Both metrics, from 0 to 100, over a test set."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int

    def __str__(self) -> str:
        return f"BLEU {self.bleu:.2f}, chrF {self.chrf:.2f}"

    def __repr__(self) -> str:
        return f"TranslationScore({self})"

    def rounded(self) -> dict[str, Any]:
        """As plain data, to two decimals."""
        return asdict(self) | {"bleu": round(self.bleu, 2), "chrf": round(self.chrf, 2)}


@dataclass(frozen=True)
class Comparison:
    """Two systems on one test set. `p_value` is the probability of such a difference in BLEU if the systems were equal;
    the ranges are half the widths of 95 % intervals."""

    first: float
    second: float
    first_range: float
    second_range: float
    p_value: float
    samples: int


def score_translations(
    outputs: Sequence[str], references: Sequence[str], *, tokenized: bool = False, lowercase: bool = False
) -> TranslationScore:
    """Score a test set. `tokenized`: both sides are already tokenized; `lowercase`: ignore case."""
    _check(outputs, references)
    bleu, chrf = _metrics(tokenized, lowercase)
    return TranslationScore(
        bleu=bleu.corpus_score(outputs, [references]).score,
        chrf=chrf.corpus_score(outputs, [references]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(outputs),
    )


def score_sentences(
    outputs: Sequence[str], references: Sequence[str], *, tokenized: bool = False, lowercase: bool = False
) -> list[tuple[float, float]]:
    """Sentence-level BLEU (with effective order, which short sentences need) and chrF."""
    _check(outputs, references)
    bleu, chrf = _metrics(tokenized, lowercase, sentence=True)
    return [
        (bleu.sentence_score(output, [reference]).score, chrf.sentence_score(output, [reference]).score)
        for output, reference in zip(outputs, references, strict=True)
    ]


def compare_translations(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    tokenized: bool = False,
    lowercase: bool = False,
    samples: int = 1000,
    seed: int = 12345,
) -> Comparison:
    """Whether two systems differ significantly, by paired bootstrap resampling (Koehn 2004)."""
    _check(first, references)
    _check(second, references)
    if samples < 1:
        raise UserError(f"The bootstrap needs at least one sample; found {samples}.")
    bleu, _ = _metrics(tokenized, lowercase, references=references)
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)  # the library has no other way to set it
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
    # For identical outputs the library would report significance, because no sample differs more than the whole.
    p_value = 1.0 if list(first) == list(second) else float(two.p_value)
    return Comparison(one.score, two.score, float(one.ci), float(two.ci), p_value, samples)


def _metrics(
    tokenized: bool, lowercase: bool, *, sentence: bool = False, references: Sequence[str] | None = None
) -> tuple[BLEU, CHRF]:
    reference_lists = None if references is None else [list(references)]
    bleu = BLEU(
        tokenize="none" if tokenized else "13a",
        lowercase=lowercase,
        force=True,  # no warning about text that looks tokenized
        effective_order=sentence,
        references=reference_lists,
    )
    return bleu, CHRF(lowercase=lowercase, references=reference_lists)


def _check(outputs: Sequence[str], references: Sequence[str]) -> None:
    if len(outputs) != len(references):
        raise UserError(
            f"There are {len(outputs)} outputs and {len(references)} references; their numbers must be equal."
        )
    if not outputs:
        raise UserError("There is nothing to score; no outputs were given.")
