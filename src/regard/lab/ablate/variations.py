"""The variations of `regard ablate`, as data: what is changed, which claim that tests, and what the paper measured.

Groups A to E and "big" are Table 3 of Vaswani et al. 2017, whose numbers are on newstest2013 (English to German,
perplexity per BPE token, BLEU by beam search without checkpoint averaging). Group F are other claims about the
Transformer; group L trains each scheme of positions on short sentences and tests it on longer ones.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from regard.errors import UserError
from regard.lab.ablate import changes, design_changes
from regard.lab.ablate.settings import ChangeFunction, Direction

BASE = "base"
"""The name of the recipe that is varied, as it is."""


@dataclass(frozen=True)
class PaperRow:
    """A row of Table 3."""

    setting: str
    ppl: float
    bleu: float
    parameters: int | None = None
    """In millions; None where they are those of the base."""


@dataclass(frozen=True)
class Variation:
    """One change of a recipe."""

    name: str
    group: str
    family: str
    """What `--only` selects: all variations of the same setting."""
    change: ChangeFunction
    claim: str
    """What is claimed about it, as a sentence."""
    ppl: Direction | None = None
    """Where the claim expects perplexity to go; None if it does not say."""
    bleu: Direction | None = None
    paper: PaperRow | None = None
    others: Mapping[str, Direction] = field(default_factory=dict)
    """Where it expects other measures to go (`analysis.MEASURES`)."""
    against: str = BASE
    """The run that it is compared with."""

    @property
    def expects(self) -> dict[str, Direction]:
        """Where the claim expects each measure to go."""
        own = {"ppl": self.ppl, "bleu": self.bleu, **self.others}
        return {measure: direction for measure, direction in own.items() if direction is not None}


PAPER_BASE = PaperRow(
    "N = 6, d_model = 512, d_ff = 2048, h = 8, d_k = d_v = 64, P_drop = 0.1, ε_ls = 0.1", 4.92, 25.8, 65
)

GROUPS = {
    "A": "Heads at constant compute",
    "B": "Key width",
    "C": "Size of the model",
    "D": "Dropout and label smoothing",
    "E": "Learned positions",
    "big": "The big model",
    "F": "Other claims",
    "L": "Trained on short sentences, tested on longer ones",
}
_HALF, _QUARTER = Fraction(1, 2), Fraction(1, 4)
_ONE_HEAD = "A single head averages what several heads keep apart, so it is worse."
_MANY_HEADS = "Quality drops off with too many heads, whose keys become narrow."
_BIGGER = "Bigger models are better."
_NARROW_KEYS = "Narrower keys hurt: compatibility is not easy to determine."
_SHORT = "short-"
_SCHEMES: dict[str, tuple[str, dict[str, Direction], str]] = {
    "sinusoidal": (
        "Sinusoids may allow the model to extrapolate to sequences longer than those of training.",
        {"long": "lower"}, "learned",
    ),
    "learned": (
        "Learned positions beyond those of training have never been trained, so long sentences suffer.",
        {"long": "higher"}, "sinusoidal",
    ),
    "rotary": (
        "Rotary positions depend on distances only, many of which long sentences share with short ones.",
        {"long": "lower"}, "learned",
    ),
    "none": ("Without positions the encoder sees a bag of words.", {"ppl": "higher"}, "sinusoidal"),
    "index": ("The plain index grows without bound and swamps the embedding.", {"ppl": "higher"}, "sinusoidal"),
    "binary": (
        "The bits of the index are bounded, but neighbors may differ in all of them.", {"ppl": "higher"}, "sinusoidal",
    ),
}  # fmt: skip
"""The schemes that a decoder can use (normalized positions need the length of the whole sequence): the claim about
each, what it expects on long sentences or of perplexity, and the scheme to compare with."""


def _rows() -> list[Variation]:
    return [
        Variation(
            "heads-1", "A", "heads", changes.heads(None), _ONE_HEAD, "higher", "lower",
            PaperRow("h = 1, d_k = d_v = 512", 5.29, 24.9),
        ),
        Variation(
            "heads-half", "A", "heads", changes.heads(_HALF), "Half as many heads are slightly worse.", "higher",
            "lower", PaperRow("h = 4, d_k = d_v = 128", 5.00, 25.5),
        ),
        Variation(
            "heads-double", "A", "heads", changes.heads(2), "Twice as many heads are as good.", "same", "same",
            PaperRow("h = 16, d_k = d_v = 32", 4.91, 25.8),
        ),
        Variation(
            "heads-quadruple", "A", "heads", changes.heads(4), _MANY_HEADS, "higher", "lower",
            PaperRow("h = 32, d_k = d_v = 16", 5.01, 25.4),
        ),
        Variation(
            "keys-quarter", "B", "keys", changes.key_width(_QUARTER), _NARROW_KEYS, "higher", "lower",
            PaperRow("d_k = 16", 5.16, 25.1, 58),
        ),
        Variation(
            "keys-half", "B", "keys", changes.key_width(_HALF), _NARROW_KEYS, "higher", "lower",
            PaperRow("d_k = 32", 5.01, 25.4, 60),
        ),
        Variation(
            "layers-third", "C", "layers", changes.layers(Fraction(1, 3)), _BIGGER, "higher", "lower",
            PaperRow("N = 2", 6.11, 23.7, 36),
        ),
        Variation(
            "layers-two-thirds", "C", "layers", changes.layers(Fraction(2, 3)), _BIGGER, "higher", "lower",
            PaperRow("N = 4", 5.19, 25.3, 50),
        ),
        Variation(
            "layers-four-thirds", "C", "layers", changes.layers(Fraction(4, 3)), _BIGGER, "lower", None,
            PaperRow("N = 8", 4.88, 25.5, 80),
        ),
        Variation(
            "width-half", "C", "width", changes.width(_HALF), _BIGGER, "higher", "lower",
            PaperRow("d_model = 256, d_k = d_v = 32", 5.75, 24.5, 28),
        ),
        Variation(
            "width-double", "C", "width", changes.width(2), _BIGGER, "lower", "higher",
            PaperRow("d_model = 1024, d_k = d_v = 128", 4.66, 26.0, 168),
        ),
        Variation(
            "hidden-half", "C", "hidden", changes.hidden(_HALF), _BIGGER, "higher", "lower",
            PaperRow("d_ff = 1024", 5.12, 25.4, 53),
        ),
        Variation(
            "hidden-double", "C", "hidden", changes.hidden(2), _BIGGER, "lower", "higher",
            PaperRow("d_ff = 4096", 4.75, 26.2, 90),
        ),
        Variation(
            "dropout-0", "D", "dropout", changes.dropout(0, 0.0), "Dropout is very helpful against over-fitting.",
            "higher", "lower", PaperRow("P_drop = 0.0", 5.77, 24.6), {"gap": "higher"},
        ),
        Variation(
            "dropout-double", "D", "dropout", changes.dropout(2, 0.2), "Twice the dropout is slightly worse.",
            "higher", "lower", PaperRow("P_drop = 0.2", 4.95, 25.5), {"gap": "lower"},
        ),
        Variation(
            "smoothing-0", "D", "smoothing", changes.label_smoothing(0.0),
            "Label smoothing hurts perplexity, as the model learns to be more unsure, but improves BLEU.",
            "lower", "lower", PaperRow("ε_ls = 0.0", 4.67, 25.3),
        ),
        Variation(
            "smoothing-0.2", "D", "smoothing", changes.label_smoothing(0.2),
            "More label smoothing hurts perplexity and leaves BLEU about the same.", "higher", "same",
            PaperRow("ε_ls = 0.2", 5.47, 25.7),
        ),
        Variation(
            "positions-learned", "E", "positions", changes.learned_positions,
            "Learned positions give nearly identical results.", "same", "same",
            PaperRow("learned positions instead of sinusoids", 4.92, 25.7),
        ),
        Variation(
            "big", "big", "big", changes.big, _BIGGER, "lower", "higher",
            PaperRow("N = 6, d_model = 1024, d_ff = 4096, h = 16, P_drop = 0.3, 300K steps", 4.33, 26.4, 213),
        ),
        Variation(
            "norm", "F", "norm", design_changes.other_norm_position,
            "Pre-norm reaches a given loss in fewer steps than post-norm (Xiong et al. 2020).",
        ),
        Variation(
            "no-residual", "F", "residual", design_changes.no_residual,
            "Without residual connections gradients do not reach the first layers, and deep stacks do not train.",
            "higher", "lower",
        ),
        Variation(
            "no-scaling", "F", "scaling", design_changes.no_scaling,
            "Without 1/√d_k the softmax saturates, so gradients become small (§3.2.1).", "higher", "lower",
        ),
        Variation(
            "no-feed-forward", "F", "feed-forward", design_changes.no_feed_forward,
            "Attention alone only averages values, so the feed-forward network is needed.", "higher", "lower",
        ),
        Variation(
            "no-output-projection", "F", "output-projection", design_changes.no_output_projection,
            "W^O lets heads exchange what they found; without it, the model is worse.", "higher", "lower",
        ),
        Variation(
            "combination", "F", "combination", design_changes.other_combination,
            "Added positions do as well as concatenated ones, which take features from the embedding.", "same", "same",
        ),
        Variation(
            "cross-kv", "F", "cross-kv", design_changes.other_cross_kv,
            "Keys and values of the source can be projected once for all decoder layers, at little loss.",
            "same", "same",
        ),
    ]  # fmt: skip


def _length_rows() -> list[Variation]:
    return [
        Variation(
            f"{_SHORT}{kind}",
            "L",
            "lengths",
            design_changes.short_training(kind),
            claim,
            others=expects,
            against=f"{_SHORT}{other}",
        )
        for kind, (claim, expects, other) in _SCHEMES.items()
    ]


VARIATIONS: tuple[Variation, ...] = (*_rows(), *_length_rows())
FAMILIES = tuple(dict.fromkeys(one.family for one in VARIATIONS))


def select_variations(only: Sequence[str] | None) -> list[Variation]:
    """The variations of these families, or with these names; all of them if None."""
    if only is None:
        return list(VARIATIONS)
    names = {*FAMILIES, *(one.name for one in VARIATIONS)}
    for name in only:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected some of {', '.join(FAMILIES)}."
            raise UserError(f"--only: there is no variation {name!r}; {hint}")
    if not only:
        raise UserError(f"--only: name some of {', '.join(FAMILIES)}.")
    return [one for one in VARIATIONS if one.family in only or one.name in only]


def describe_variations() -> str:
    """All variations by group, with what is claimed about each; in parentheses the family, if it has another name."""
    lines = []
    for group, title in GROUPS.items():
        lines.append(f"{title}{f' ({group})' if len(group) == 1 else ''}")
        for one in VARIATIONS:
            if one.group == group:
                family = "" if one.family == one.name else f" ({one.family})"
                lines.append(f"  {one.name}{family}: {one.claim}")
    return "\n".join(lines)
