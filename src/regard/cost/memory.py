"""What one process holds when most is held, piece by piece.

A pass holds most at one of three moments, and the largest counts:

- the loss is taken: all is there that forward keeps, and the scores of words;
- the way back begins: gradients of the last feed-forward's middle stand beside what it kept, and where layers are
  computed again also the inside of one (the largest there is);
- the way back ends: little is left of what was kept, and copies of weights in bf16 have all their gradients.

The plain form casts each weight by itself, so that its last moment is never the largest, and the second only where
layers are computed again.
"""

from operator import add
from typing import Literal

from torch import nn

from regard.cost.effort import Device, Precision, number_size
from regard.cost.fast import BENDS, draw_their_own, fast_parts
from regard.cost.forward import parts
from regard.cost.hardware import Hardware
from regard.cost.middle import middle_width
from regard.cost.readers import answers, stack_of, table_uses
from regard.model import AnyModelConfig, FeedForwardConfig, count_parameters
from regard.model.block import Block

Form = Literal["plain", "fast"]
"""A model as it is written, or as a GPU trains it (fast/swift_training.py)."""
LossWay = Literal["rows", "kernel", "over", "late"]
"""How the loss is taken: some rows at a time with PyTorch's own operations, by a kernel that needs no room of its own
(train/triton_loss.py), by that kernel with the gradient of the logits written over them, or with words scored in the
loss itself, so that there is a piece of the logits only, and it is gone before the way back."""
LOSS_CELLS: dict[Device, int] = {"cpu": 1 << 19, "cuda": 1 << 23}
"""Logits that the loss looks at together where it takes some rows at a time."""
LATE_CELLS = 1 << 30
"""Logits that there are at once where the loss scores words itself."""
STREAMS = 3
"""Where passes are recorded, products run on the main stream, on one that passes warm up on, and on PyTorch's own for
recording."""


def weights_bytes(model: nn.Module, precision: Precision, shards: int) -> int:
    """Weights in float32, and as they are computed with: all of them, or of shared ones two blocks and the rest."""
    parameters = count_parameters(model)
    if shards == 1:
        return parameters * (4 if precision == "fp32" else 4 + 2)
    blocks = [count_parameters(part) for part in model.modules() if isinstance(part, Block)]
    gathered = parameters - sum(blocks) + 2 * max(blocks)
    return parameters * 4 // shards + min(parameters, gathered) * number_size(precision)


def workspace_bytes(hardware: Hardware, *, captured: bool) -> int:
    """What the library of matrix products sets aside: once for each thread and stream, and never given back."""
    streams = STREAMS if captured and hardware.captures else 1
    return 2 * streams * hardware.workspace


def batch_bytes(
    config: AnyModelConfig,
    rows: int,
    source: int,
    target: int,
    precision: Precision,
    device: Device,
    form: Form,
    loss: LossWay,
    lowered: int = 0,
    *,
    asked: int | None = None,
    recompute: bool = False,
    recorded: bool = False,
) -> tuple[int, int]:
    """What a micro-batch keeps for backward, and what is held beside that when most is.

    `lowered` is how many parameters have copies in bf16 whose gradients are collected after the way back. `asked`: of
    how many tokens of a row a word is asked, where gaps are filled. `recompute`: the inside of layers is computed again
    on the way back, `recorded`: in passes that are recorded.
    """
    size, cells = number_size(precision), rows * target
    given, classes = answers(config, target, asked)
    logits = 0 if loss == "late" else rows * given * classes * size
    scoring = _while_scoring(config.width, rows * given, classes, precision, device, loss)
    if form == "plain":
        sides = parts(config, rows, source, target, device, asked)
    else:
        sides = fast_parts(config, rows, source, target, device, asked, late=loss == "late")
    again = computed_again(config, source, target, form, recompute=recompute, recorded=recorded)
    pairs = list(zip(sides, again, strict=True))
    kept = sum((side.lasting if twice else side.whole).bytes(precision, device) for side, twice in pairs) + logits
    # Beside the inside of a decoder's layer stand gradients of its middle; an encoder's is counted with the last ones.
    middles = [size * cells * _middle_numbers(each) for each in stack_of(config).feed_forwards]
    insides = [[inside.bytes(precision, device) for inside in side.insides] if twice else [0] for side, twice in pairs]
    most = max(map(add, insides[1], middles)) if again[1] else middles[-1]
    table = classes * config.width
    beginning = max(most, max(insides[0]) + middles[-1]) + size * table - logits  # which are gone by then
    if form == "plain":
        return kept, max(scoring, beginning) if recompute else scoring
    # One more gradient of the table of words, and its sum with the others.
    ending = lowered + (2 * table if table_uses(config) > 1 else 0)
    return kept, max(scoring, beginning, size * ending - kept)


def computed_again(
    config: AnyModelConfig, source: int, target: int, form: Form, *, recompute: bool, recorded: bool
) -> tuple[bool, bool]:
    """Of the encoder's layers and of the decoder's: whether their inside is computed again on the way back."""
    if not recompute or not recorded or form == "plain":
        return recompute, recompute
    encoder, decoder = draw_their_own(config, source, target)
    return not encoder, not decoder


def _middle_numbers(middle: FeedForwardConfig) -> int:
    """Of how many numbers of a token there are gradients when the way back through a feed-forward begins.

    What left the other bends is gone when their own way back begins; ReLU and gated ones still need as much.
    """
    spared = middle.activation in BENDS and middle.activation != "relu"
    return middle_width(middle) * (1 if spared else 2)


def _while_scoring(width: int, cells: int, classes: int, precision: Precision, device: Device, loss: LossWay) -> int:
    """What is held for a moment because words or classes are scored and judged."""
    size, logits = number_size(precision), cells * classes
    slopes = (cells + classes) * width  # of the vectors that are scored and of the words'
    if loss == "late":
        pieces = -(-logits // LATE_CELLS)
        scores = -(-cells // pieces) * classes
        return size * (scores + slopes + cells * width) + 8 * cells
    if loss == "over":
        return size * slopes
    if loss == "kernel":
        return size * logits
    # Last turn's logarithms and slopes are still there when the next are made of a float32 copy.
    return size * logits + 4 * (4 if precision == "bf16" else 3) * min(logits, LOSS_CELLS[device])
