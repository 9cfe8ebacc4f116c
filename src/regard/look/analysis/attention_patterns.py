"""Attention patterns as matrices: which pairs a pattern allows, and which blocks are computed for them.

Three regions are easily confused. A pattern *allows* pairs of a query and a key. FlexAttention *computes* whole blocks
of 128 × 128 pairs, all that have an allowed one, and masks the rest of them. What a model *uses* are the allowed pairs
that it gives a weight worth mentioning; that is in a trace.
"""

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from regard.attention.mask import FLEX_BLOCK
from regard.attention.multi_head import Attention, SelfAttentionBase
from regard.attention.pattern import Both, Causal, Either, Full, Pattern
from regard.attention.patterns import Dilated, Global, Sliding, read_pattern
from regard.errors import UserError
from regard.look.analysis.attention_maps import attention_modules
from regard.look.schema import AttentionPattern, LayerPattern, ModelPatterns, Patterns, PatternsRequest
from regard.look.trace import Trace

MAX_LENGTH = 2048
"""The longest sequence of which all pairs are evaluated for a drawing."""
MAX_CELLS = 64
"""Rows and columns of a drawing: a cell of a longer sequence has several pairs."""
MAX_OWN = 200
"""Characters of a reader's own pattern."""

_DESCRIPTIONS = {
    "full": "Every query attends to every key.",
    "causal": "A query attends to itself and to what comes before it, as in a language model.",
    "sliding window": "A query attends to its neighbors only: the number of pairs grows with the length, not with its "
    "square.",
    "dilated window": "The same number of neighbors, some positions apart: a wider view for the same number of pairs.",
    "global and sliding": "The first tokens attend to all others, and all others to them; everything else is a sliding "
    "window. So what one token knows reaches any other in two layers.",
    "your own": "Written as in a recipe.",
}


def compare_patterns(request: PatternsRequest) -> Patterns:
    """The patterns of Longformer's figure 2 over a sequence, and one of the reader's own if there is a text.

    If the request is causal, no query attends to what comes after it, in any of them.
    """
    length, window, own = request.length, request.window, request.own.strip()
    if not 2 <= length <= MAX_LENGTH:
        raise UserError(f"length: expected 2 to {MAX_LENGTH:,} tokens, found {length}.")
    texts = {
        "full": "full",
        "causal": "causal",
        "sliding window": f"sliding({window})",
        "dilated window": f"dilated({window}, {request.step})",
        "global and sliding": f"global({request.tokens}) | sliding({window})",
    }
    if request.causal:
        del texts["full"]
        texts |= {name: f"causal & ({text})" for name, text in texts.items() if name != "causal"}
    if len(own) > MAX_OWN:
        raise UserError(f"own: a pattern has at most {MAX_OWN} characters here, found {len(own)}.")
    if own:
        texts["your own"] = own
    return Patterns(
        request=request,
        block=FLEX_BLOCK,
        cell=_cell_size(length),
        dense=length * length,
        patterns=[_describe(name, text, length) for name, text in texts.items()],
    )


def model_patterns(trace: Trace) -> ModelPatterns:
    """The pattern of each attention layer of a trace's model, and how many pairs of the trace it allows.

    Models before the Transformer have no patterns.
    """
    modules = attention_modules(trace.require_model().model)
    layers: list[LayerPattern] = []
    for attention_type, found in modules.items():
        queries, keys = trace.array(f"attention/{attention_type}").shape[-2:]
        for layer, module in enumerate(found):
            if isinstance(module, Attention):
                pattern = module.pattern if isinstance(module, SelfAttentionBase) else Full()
                layers.append(
                    LayerPattern(
                        attention_type=attention_type,
                        layer=layer,
                        pattern=pattern_text(pattern),
                        pairs=pattern.pairs(queries, keys),
                        dense=queries * keys,
                    )
                )
    return ModelPatterns(layers=layers)


def pattern_text(pattern: Pattern) -> str:
    """A pattern as in a recipe; what `read_pattern` makes of the text is equivalent."""
    match pattern:
        case Full():
            return "full"
        case Causal():
            return "causal"
        case Sliding(window):
            return f"sliding({window})"
        case Dilated(window, step):
            return f"dilated({window}, {step})"
        case Global(tokens):
            return f"global({tokens})"
        case Both(first, second):
            parts = [each for each in dict.fromkeys((first, second)) if each != Full()]
            return " & ".join(_in_brackets(each) for each in parts) if len(parts) > 1 else pattern_text(*parts)
        case Either(first, second):
            return f"{pattern_text(first)} | {pattern_text(second)}"
    raise UserError(f"{type(pattern).__name__} is no pattern of a recipe, so there is no text for it.")


def _in_brackets(pattern: Pattern) -> str:
    return f"({pattern_text(pattern)})" if isinstance(pattern, Either) else pattern_text(pattern)


@lru_cache(maxsize=64)
def _describe(name: str, text: str, length: int) -> AttentionPattern:
    pattern = read_pattern(text)
    tiles = _tiles(pattern, length)
    return AttentionPattern(
        name=name,
        pattern=pattern_text(pattern),
        description=_DESCRIPTIONS[name],
        pairs=pattern.pairs(length),
        blocks=int((tiles > 0).sum()),
        full_blocks=int((tiles == 2).sum()),
        all_blocks=tiles.numel(),
        computed_pairs=_computed_pairs(tiles, length),
        cells=_cells(pattern, length).tolist(),
        tiles=tiles.tolist(),
    )


def _tiles(pattern: Pattern, length: int) -> Tensor:
    """What FlexAttention does with each block: 0 skip it, 1 compute it with the mask, 2 compute it without."""
    mask = pattern.block_mask(length)
    tiles = torch.zeros(mask.kv_indices.shape[-2:], dtype=torch.int64)
    for value, counts, indices in (
        (1, mask.kv_num_blocks, mask.kv_indices),
        (2, mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        for row, columns in _listed(counts, indices):
            tiles[row, columns] = value
    return tiles


def _listed(counts: Tensor | None, indices: Tensor | None) -> Iterator[tuple[int, Tensor]]:
    """The columns of the blocks of each row."""
    if counts is not None and indices is not None:
        for row, count in enumerate(counts[0, 0].tolist()):
            yield row, indices[0, 0, row, :count].long()


def _computed_pairs(tiles: Tensor, length: int) -> int:
    """The pairs of the sequence in computed blocks; the last block of a row may reach beyond its end."""
    sizes = torch.full((len(tiles),), FLEX_BLOCK)
    sizes[-1] = length - FLEX_BLOCK * (len(tiles) - 1)
    return int(((tiles > 0) * sizes[:, None] * sizes).sum())


def _cell_size(length: int) -> int:
    """The number of positions behind a row or column of a drawing: a power of 2, so that blocks are whole cells."""
    size = 1
    while size * MAX_CELLS < length:
        size *= 2
    return size


def _cells(pattern: Pattern, length: int) -> Tensor:
    """The number of allowed pairs in each cell.  # (rows, columns)"""
    size = _cell_size(length)
    count = -(-length // size)
    missing = count * size - length
    allowed = torch.nn.functional.pad(pattern.dense_mask(length), (0, missing, 0, missing))
    counts: Tensor = allowed.unflatten(1, (count, size)).unflatten(0, (count, size)).sum(dim=(1, 3))
    return counts
