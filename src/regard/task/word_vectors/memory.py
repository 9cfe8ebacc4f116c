"""Whether the tables of a model of word vectors fit into memory, which is known once the words have been counted."""

import torch

from regard.cost.format import si_prefixed
from regard.errors import UserError
from regard.model import count_parameters
from regard.model.before.word_vectors.config import GloveConfig, StaticVectorsConfig

_FLOAT32 = 4


def check_tables_fit(config: StaticVectorsConfig, memory: int) -> None:
    """Refuse tables that are larger than this many bytes (0: unknown), before the text is put into ids."""
    needed = table_bytes(config)
    if not memory or needed <= memory:
        return
    subwords = getattr(config, "subwords", None)
    buckets = "" if subwords is None else f" and {subwords.buckets:,} n-grams"
    fewer = "" if subwords is None else ", model.subwords.buckets"
    raise UserError(
        f"Vectors of {config.width:,} numbers for {config.vocab_size:,} words{buckets} need {si_prefixed(needed)}B of "
        f"memory in training, and this machine has {si_prefixed(memory)}B; lower model.width{fewer} or "
        "data.words.vocab_size, or raise data.words.min_count."
    )


def table_bytes(config: StaticVectorsConfig) -> int:
    """All vectors and biases and, for GloVe, AdaGrad's sum for each number."""
    copies = 2 if isinstance(config, GloveConfig) else 1
    with torch.device("meta"):
        return copies * _FLOAT32 * count_parameters(config.build())
