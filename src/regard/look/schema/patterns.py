"""Attention patterns and positional encodings."""

from regard.look.schema.message import AttentionType, Message


class AttentionPattern(Message):
    name: str
    pattern: str
    description: str
    pairs: int
    blocks: int
    full_blocks: int
    all_blocks: int
    computed_pairs: int
    cells: list[list[int]]
    tiles: list[list[int]]


class PatternsRequest(Message):
    length: int
    window: int
    step: int
    tokens: int
    causal: bool
    own: str


class Patterns(Message):
    request: PatternsRequest
    block: int
    cell: int
    dense: int
    patterns: list[AttentionPattern]


class LayerPattern(Message):
    attention_type: AttentionType
    layer: int
    pattern: str
    pairs: int
    dense: int


class ModelPatterns(Message):
    layers: list[LayerPattern]


class Requirement(Message):
    name: str
    holds: bool
    evidence: str


class Scheme(Message):
    name: str
    description: str
    encoding: list[list[float]]
    similarity: list[list[float]]
    similarity_description: str
    requirements: list[Requirement]


class Positions(Message):
    length: int
    width: int
    schemes: list[Scheme]
