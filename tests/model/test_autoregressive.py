"""Autoregressive models, with and without an encoder: cached decoding equals uncached, causality, padding, errors.

Equivalences are tested on random models with any pattern, layout of heads, position encoding, norm position, norm
and activation, in float64, where only rounding errors remain.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor, nn

from regard import UserError
from regard.attention import Attention, DynamicScaling, KVCache, LearnedConfig, LongRopeScaling, RotaryConfig
from regard.attention.rolling_kv_cache import RollingKVBuffer
from regard.model import EncoderDecoderConfig, ModelConfig
from tests.model.small_models import (
    EXACT,
    PATTERNS,
    POSITIONS,
    VOCAB_SIZE,
    WIDTH,
    build,
    encoder_decoder,
    encoder_decoders,
    ids,
    language_model,
    language_models,
    layouts,
    source_vocab_size_of,
    stack,
)

every_kind = pytest.mark.parametrize("kind", ["language-model", "encoder-decoder"])
drawn = given(data=some.data())
many_examples = settings(max_examples=max(40, settings().max_examples))  # an example takes about 10 ms
CONFIG = {"language-model": language_model, "encoder-decoder": encoder_decoder}
CONFIGS = {"language-model": language_models(), "encoder-decoder": encoder_decoders()}


@dataclass
class DecodingHarness:
    """One interface to both kinds of models: a model and, if it has an encoder, its source sentences."""

    model: Any
    rows: int
    source: Tensor | None = None
    source_lengths: Tensor | None = None

    @classmethod
    def create(cls, config: ModelConfig, rows: int, seed: int = 0) -> "DecodingHarness":
        model = build(config, seed=seed)
        if not isinstance(config, EncoderDecoderConfig):
            return cls(model, rows)
        lengths = torch.tensor([1 + (seed + row) % 4 for row in range(rows)])
        return cls(model, rows, ids(rows, 4, source_vocab_size_of(config), seed), lengths)

    @torch.no_grad()
    def logits(self, tokens: Tensor, rows: list[int] | None = None, **more: Any) -> Tensor:
        """Uncached logits. `rows` has the source of each row of tokens; by default, row r has source r."""
        if self.source is None:
            return self.model(tokens, **more)
        named = {f"target_{name}" if name != "attention_hook" else name: value for name, value in more.items()}
        rows = list(range(self.rows)) if rows is None else rows
        lengths = None if self.source_lengths is None else self.source_lengths[rows]
        return self.model(self.source[rows], tokens, source_lengths=lengths, **named)

    def start(self, capacity: int) -> KVCache:
        if self.source is None:
            return self.model.start(self.rows, capacity)
        return self.model.start(self.source, capacity, self.source_lengths)

    def decode(self, tokens: Tensor, cache: KVCache, chunks: list[int]) -> Tensor:
        """Cached logits of the tokens, processed in chunks of these sizes."""
        logits = [self.model.step(chunk, cache)[0] for chunk in tokens.split(chunks, dim=1)]
        return torch.cat(logits, dim=1)


@some.composite
def harnesses(draw: some.DrawFn, kind: str, rows: some.SearchStrategy[int]) -> DecodingHarness:
    return DecodingHarness.create(draw(CONFIGS[kind]), draw(rows), draw(some.integers(0, 999)))


def draw_tokens(data: some.DataObject, rows: int, min_length: int = 1, max_length: int = 9) -> Tensor:
    return ids(rows, data.draw(some.integers(min_length, max_length)), seed=data.draw(some.integers(0, 999)))


def draw_chunks(data: some.DataObject, total: int) -> list[int]:
    """Chunk sizes with the sum `total`."""
    cuts = sorted(data.draw(some.sets(some.integers(1, total - 1)))) if total > 1 else []
    return [end - start for start, end in itertools.pairwise([0, *cuts, total])]


# Cached equals uncached


@pytest.mark.one_in(3)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_uneven_chunks_equal_uncached_for_every_pattern_layout_and_position(pattern, position):
    tokens = ids(2, 7)
    for layout in layouts(POSITIONS[position]).values():
        decoder = stack(pattern=pattern, **layout)
        harness = DecodingHarness.create(
            language_model(decoder=decoder, position=POSITIONS[position], tie_weights=False), rows=2
        )
        cached = harness.decode(tokens, harness.start(7), [1, 4, 2])
        torch.testing.assert_close(cached, harness.logits(tokens), **EXACT)


@every_kind
@many_examples
@drawn
def test_step_by_step_equals_uncached(kind, data):
    harness = data.draw(harnesses(kind, some.integers(1, 3)))
    tokens = draw_tokens(data, harness.rows)
    length = tokens.shape[1]
    cached = harness.decode(tokens, harness.start(length), [1] * length)
    torch.testing.assert_close(cached, harness.logits(tokens), **EXACT)


@every_kind
@many_examples
@drawn
def test_one_chunk_equals_uncached(kind, data):
    harness = data.draw(harnesses(kind, some.integers(1, 3)))
    tokens = draw_tokens(data, harness.rows)
    length = tokens.shape[1]
    cached = harness.decode(tokens, harness.start(length + 3), [length])
    torch.testing.assert_close(cached, harness.logits(tokens), **EXACT)


@every_kind
@many_examples
@drawn
def test_uneven_chunks_equal_uncached(kind, data):
    harness = data.draw(harnesses(kind, some.integers(1, 3)))
    tokens = draw_tokens(data, harness.rows)
    length = tokens.shape[1]
    cached = harness.decode(tokens, harness.start(length), draw_chunks(data, length))
    torch.testing.assert_close(cached, harness.logits(tokens), **EXACT)


def decode_ragged(data: some.DataObject, harness: DecodingHarness, cache: KVCache) -> tuple[list[Tensor], list[Tensor]]:
    """Decode two or three chunks with a random number of tokens per row and random padding.

    Returns the real tokens and the logits of each row.
    """
    tokens: list[list[Tensor]] = [[] for _ in range(cache.rows)]
    logits: list[list[Tensor]] = [[] for _ in range(cache.rows)]
    for _ in range(data.draw(some.integers(2, 3))):
        counts = data.draw(some.lists(some.integers(0, 3), min_size=cache.rows, max_size=cache.rows))
        chunk = ids(cache.rows, 3, seed=data.draw(some.integers(0, 999)))
        scores, _ = harness.model.step(chunk, cache, counts=torch.tensor(counts))
        for row, count in enumerate(counts):
            tokens[row].append(chunk[row, :count])
            logits[row].append(scores[row, :count])
    return [torch.cat(each) for each in tokens], [torch.cat(each) for each in logits]


@every_kind
@many_examples
@drawn
def test_ragged_rows_equal_each_row_alone(kind, data):
    harness = data.draw(harnesses(kind, some.integers(2, 3)))
    tokens, logits = decode_ragged(data, harness, harness.start(9))
    for row in range(harness.rows):
        if len(tokens[row]):
            alone = harness.logits(tokens[row][None], [row])[0]
            torch.testing.assert_close(logits[row], alone, **EXACT)


@every_kind
@many_examples
@drawn
def test_decoding_after_a_reorder_equals_uncached(kind, data):
    """As in beam search: rows are dropped or duplicated, and keep their source and their past."""
    harness = data.draw(harnesses(kind, some.integers(1, 3)))
    before = draw_tokens(data, harness.rows, max_length=4)
    cache = harness.start(before.shape[1] + 3)
    harness.decode(before, cache, [before.shape[1]])
    rows = data.draw(some.lists(some.integers(0, harness.rows - 1), min_size=1, max_size=5))
    cache.reorder(torch.tensor(rows))
    after = draw_tokens(data, len(rows), max_length=3)
    cached = harness.decode(after, cache, draw_chunks(data, after.shape[1]))
    whole = torch.cat((before[rows], after), dim=1)
    torch.testing.assert_close(cached, harness.logits(whole, rows)[:, before.shape[1] :], **EXACT)


@every_kind
@many_examples
@drawn
def test_decoding_after_a_reorder_of_ragged_rows_equals_uncached(kind, data):
    harness = data.draw(harnesses(kind, some.integers(2, 3)))
    cache = harness.start(10)
    before, _ = decode_ragged(data, harness, cache)
    rows = data.draw(some.lists(some.integers(0, harness.rows - 1), min_size=1, max_size=4))
    after = ids(len(rows), 1)
    cache.reorder(torch.tensor(rows))
    cached, _ = harness.model.step(after, cache)
    for number, row in enumerate(rows):
        alone = harness.logits(torch.cat((before[row], after[number]))[None], [row])
        torch.testing.assert_close(cached[number, 0], alone[0, -1], **EXACT)


def refuses_to_truncate(cache: KVCache, lengths: int | Tensor) -> bool:
    """Truncate, or check that it is refused because a rolling buffer has overwritten the needed keys."""
    buffers = [layer.self_kv for layer in cache.layers if isinstance(layer.self_kv, RollingKVBuffer)]
    if not any(cache.extent > sum(buffer.lookback) for buffer in buffers) or (
        isinstance(lengths, int) and lengths == cache.extent
    ):
        cache.truncate(lengths)
        return False
    with pytest.raises(UserError, match="no longer stored"):
        cache.truncate(lengths)
    return True


@every_kind
@many_examples
@drawn
def test_decoding_after_truncating_all_rows_equals_uncached(kind, data):
    harness = data.draw(harnesses(kind, some.integers(1, 2)))
    before, after = draw_tokens(data, harness.rows, max_length=6), draw_tokens(data, harness.rows, max_length=4)
    length = data.draw(some.integers(0, before.shape[1]))
    cache = harness.start(10)
    harness.decode(before, cache, [before.shape[1]])
    if refuses_to_truncate(cache, length):
        return
    cached = harness.decode(after, cache, draw_chunks(data, after.shape[1]))
    whole = torch.cat((before[:, :length], after), dim=1)
    torch.testing.assert_close(cached, harness.logits(whole)[:, length:], **EXACT)


@every_kind
@many_examples
@drawn
def test_decoding_after_truncating_each_row_equals_uncached(kind, data):
    harness = data.draw(harnesses(kind, some.integers(2, 3)))
    before, after = draw_tokens(data, harness.rows, max_length=5), draw_tokens(data, harness.rows, max_length=3)
    lengths = data.draw(some.lists(some.integers(0, before.shape[1]), min_size=harness.rows, max_size=harness.rows))
    cache = harness.start(10)
    harness.decode(before, cache, [before.shape[1]])
    if refuses_to_truncate(cache, torch.tensor(lengths)):
        return
    cached = harness.decode(after, cache, draw_chunks(data, after.shape[1]))
    for row, length in enumerate(lengths):
        sequence = torch.cat((before[row, :length], after[row]))[None]
        torch.testing.assert_close(cached[row], harness.logits(sequence, [row])[0, length:], **EXACT)


@every_kind
@drawn
def test_decoding_after_tighten_equals_uncached(kind, data):
    harness = data.draw(harnesses(kind, some.integers(2, 3)))
    cache = harness.start(10)
    before, _ = decode_ragged(data, harness, cache)
    cache.tighten()
    after = ids(harness.rows, 1)
    cached, _ = harness.model.step(after, cache)
    for row in range(harness.rows):
        alone = harness.logits(torch.cat((before[row], after[row]))[None], [row])
        torch.testing.assert_close(cached[row, 0], alone[0, -1], **EXACT)


@every_kind
def test_alternating_rows_need_capacity_for_the_longest_row_and_its_padding(kind):
    """Both rows decode three tokens in alternate steps, in which the other row has one token of padding."""
    harness = DecodingHarness.create(CONFIG[kind](), rows=2)
    cache = harness.start(4)
    for step in range(6):
        harness.model.step(ids(2, 1), cache, counts=torch.tensor([1 - step % 2, step % 2]))
    assert cache.lengths.tolist() == [3, 3]


@every_kind
def test_rows_truncated_to_different_lengths_can_fill_the_cache(kind):
    harness = DecodingHarness.create(CONFIG[kind](), rows=2)
    cache = harness.start(4)
    harness.decode(ids(2, 4), cache, [4])
    cache.truncate(torch.tensor([1, 2]))
    harness.model.step(ids(2, 2), cache)
    assert cache.lengths.tolist() == [3, 4]


# RoPE scaling that depends on the length of the text

LENGTH_DEPENDENT = {
    "dynamic": RotaryConfig(theta=100.0, scaling=DynamicScaling(factor=3, original_max_length=4)),
    "longrope": RotaryConfig(
        theta=100.0,
        scaling=LongRopeScaling(short_factors=(1, 2), long_factors=(3, 5), original_max_length=4, attention_factor=1.2),
    ),
}
length_dependent = pytest.mark.parametrize("position", LENGTH_DEPENDENT)


@every_kind
@length_dependent
def test_length_dependent_rope_within_the_trained_length_equals_uncached(kind, position):
    harness = DecodingHarness.create(CONFIG[kind](position=LENGTH_DEPENDENT[position]), rows=2)
    tokens = ids(2, 4)
    torch.testing.assert_close(harness.decode(tokens, harness.start(4), [1, 1, 1, 1]), harness.logits(tokens), **EXACT)


@every_kind
@length_dependent
@pytest.mark.parametrize(
    "layout", [name for name in layouts(RotaryConfig()) if name != "other head widths"]
)  # "longrope" has factors for a head_dim of 4
def test_length_dependent_rope_beyond_the_trained_length_equals_uncached(kind, position, layout):
    """With a single layer: the cache holds keys before rotation and rotates all of them for the new length.

    With more layers this does not hold: cached keys of the second layer were computed from outputs of the first one
    at a shorter length.
    """
    decoder = stack(layers=1, **layouts(LENGTH_DEPENDENT[position])[layout])
    harness = DecodingHarness.create(CONFIG[kind](position=LENGTH_DEPENDENT[position], decoder=decoder), rows=2)
    tokens = ids(2, 9)
    cache = harness.start(9)
    for length in range(1, 10):
        cached, _ = harness.model.step(tokens[:, length - 1 : length], cache)
        torch.testing.assert_close(cached[:, -1], harness.logits(tokens[:, :length])[:, -1], **EXACT)


@length_dependent
def test_length_dependent_rope_uses_the_length_of_each_ragged_row(position):
    harness = DecodingHarness.create(
        language_model(position=LENGTH_DEPENDENT[position], decoder=stack(layers=1)), rows=3
    )
    tokens = ids(3, 9)
    cache = harness.start(9)
    harness.model.step(tokens[:, :6], cache, counts=torch.tensor([2, 4, 6]))
    following = torch.stack([tokens[0, 2:5], tokens[1, 4:7], tokens[2, 6:9]])
    cached, _ = harness.model.step(following, cache, counts=torch.tensor([2, 1, 3]))
    for row, (length, new) in enumerate([(4, 2), (5, 1), (9, 3)]):
        alone = harness.logits(tokens[row : row + 1, :length])
        torch.testing.assert_close(cached[row, :new], alone[0, -new:], **EXACT)


@every_kind
@length_dependent
def test_length_dependent_rope_of_a_prompt_in_one_chunk_equals_uncached(kind, position):
    harness = DecodingHarness.create(CONFIG[kind](position=LENGTH_DEPENDENT[position]), rows=2)
    tokens = ids(2, 8)
    torch.testing.assert_close(harness.decode(tokens, harness.start(8), [8]), harness.logits(tokens), **EXACT)


@length_dependent
def test_length_dependent_rope_of_a_padded_row_uses_its_own_length(position):
    harness = DecodingHarness.create(language_model(position=LENGTH_DEPENDENT[position]), rows=2)
    tokens = ids(2, 8)
    padded = harness.logits(tokens, lengths=torch.tensor([8, 5]))
    torch.testing.assert_close(padded[1:, :5], harness.logits(tokens[1:, :5]), **EXACT)


# Causality, padding, other rows


@every_kind
@many_examples
@drawn
def test_logits_do_not_depend_on_later_tokens(kind, data):
    harness = data.draw(harnesses(kind, some.integers(1, 2)))
    tokens = draw_tokens(data, harness.rows, min_length=2)
    position = data.draw(some.integers(1, tokens.shape[1] - 1))
    changed = tokens.clone()
    changed[:, position:] = (tokens[:, position:] + 1 + ids(1, 1, VOCAB_SIZE - 1)) % VOCAB_SIZE
    first, second = harness.logits(tokens), harness.logits(changed)
    # Bit for bit: masked values are multiplied by an exact zero.
    assert torch.equal(first[:, :position], second[:, :position])


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_logits_have_no_gradient_for_later_tokens(pattern, position):
    config = language_model(decoder=stack(pattern=pattern), position=POSITIONS[position], tie_weights=False)
    model = build(config)
    vectors = []
    model.embed_tokens.register_forward_hook(lambda module, args, output: vectors.append(output) or output)
    logits = model(ids(1, 6))
    (gradient,) = torch.autograd.grad(logits[:, 3].square().sum(), vectors)
    assert gradient[0, 4:].eq(0).all()
    assert gradient[0, 3].ne(0).any()


@every_kind
@many_examples
@drawn
def test_padding_does_not_change_the_logits(kind, data):
    harness = data.draw(harnesses(kind, some.integers(1, 3)))
    tokens = draw_tokens(data, harness.rows)
    padding = draw_tokens(data, harness.rows, max_length=4)
    lengths = torch.full((harness.rows,), tokens.shape[1])
    padded = harness.logits(torch.cat((tokens, padding), dim=1), lengths=lengths)
    torch.testing.assert_close(padded[:, : tokens.shape[1]], harness.logits(tokens), **EXACT)


@every_kind
@many_examples
@drawn
def test_row_alone_equals_the_row_in_a_batch(kind, data):
    harness = data.draw(harnesses(kind, some.integers(2, 3)))
    tokens = draw_tokens(data, harness.rows)
    row = data.draw(some.integers(0, harness.rows - 1))
    batched = harness.logits(tokens)[row]
    torch.testing.assert_close(harness.logits(tokens[row : row + 1], [row])[0], batched, **EXACT)


@every_kind
def test_padding_needs_no_learned_positions(kind):
    harness = DecodingHarness.create(CONFIG[kind](position=LearnedConfig(max_length=4)), rows=2)
    tokens = ids(2, 6)
    padded = harness.logits(tokens, lengths=torch.tensor([4, 2]))
    torch.testing.assert_close(padded[:, :2], harness.logits(tokens[:, :2]), **EXACT)


@every_kind
def test_padding_of_a_chunk_needs_no_learned_positions(kind):
    harness = DecodingHarness.create(CONFIG[kind](position=LearnedConfig(max_length=4)), rows=2)
    cache = harness.start(8)
    tokens = ids(2, 6)
    harness.model.step(tokens[:, :3], cache, counts=torch.tensor([3, 1]))
    cached, _ = harness.model.step(tokens[:, 3:], cache, counts=torch.tensor([1, 3]))
    torch.testing.assert_close(cached[:1, :1], harness.logits(tokens[:1, :4], [0])[:, 3:], **EXACT)


# Attention hooks


@every_kind
@drawn
def test_attention_hook_does_not_change_the_logits(kind, data):
    harness = data.draw(harnesses(kind, some.integers(1, 2)))
    tokens = draw_tokens(data, harness.rows)
    hooked = harness.logits(tokens, attention_hook=lambda module, weights: None)
    torch.testing.assert_close(hooked, harness.logits(tokens), **EXACT)


@every_kind
@drawn
def test_attention_hook_is_called_once_per_attention(kind, data):
    harness = data.draw(harnesses(kind, some.integers(1, 2)))
    received: list[nn.Module] = []
    harness.logits(draw_tokens(data, harness.rows), attention_hook=lambda module, weights: received.append(module))
    attentions = [module for module in harness.model.modules() if isinstance(module, Attention)]
    assert len(received) == len(attentions)
    assert set(received) == set(attentions)


@every_kind
@drawn
def test_attention_weights_sum_to_one(kind, data):
    harness = data.draw(harnesses(kind, some.integers(1, 2)))
    harness.source_lengths = None  # the weights of a fully masked query, a padded one in a narrow window, are all zero
    received: list[Tensor] = []
    harness.logits(draw_tokens(data, harness.rows), attention_hook=lambda module, weights: received.append(weights))
    for weights in received:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]).double(), **EXACT)


@every_kind
@drawn
def test_attention_weights_of_cached_steps_equal_uncached(kind, data):
    harness = data.draw(harnesses(kind, some.integers(1, 2)))
    tokens = draw_tokens(data, harness.rows, min_length=2, max_length=6)
    uncached: dict[nn.Module, Tensor] = {}
    harness.logits(tokens, attention_hook=uncached.__setitem__)
    cache = harness.start(tokens.shape[1])
    for position in range(tokens.shape[1]):
        step: dict[nn.Module, Tensor] = {}
        harness.model.step(tokens[:, position : position + 1], cache, attention_hook=step.__setitem__)
        for module, weights in step.items():
            keys = weights.shape[-1]
            torch.testing.assert_close(weights[:, :, 0], uncached[module][:, :, position, :keys], **EXACT)


# Invalid input


def error_message(kind: str, call: str, *args: Any, rows: int = 2, capacity: int = 4, **settings: Any) -> str:
    """The error message of a call: "logits", or "step" with an empty cache."""
    harness = DecodingHarness.create(CONFIG[kind](**settings), rows)

    def step(tokens: Tensor, counts: Tensor | None = None) -> None:
        harness.model.step(tokens, harness.start(capacity), counts)

    with pytest.raises(UserError) as caught:
        (harness.logits if call == "logits" else step)(*args)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


every_call = pytest.mark.parametrize("call", ["logits", "step"])


@every_kind
@every_call
@pytest.mark.parametrize("wrong", [-1, VOCAB_SIZE, 10**6])
def test_ids_outside_the_vocabulary_are_refused(kind, call, wrong):
    tokens = ids(2, 3)
    tokens[1, 1] = wrong
    message = error_message(kind, call, tokens)
    assert f"id {wrong} " in message
    assert f"vocabulary of {VOCAB_SIZE}" in message


@every_kind
@every_call
@pytest.mark.parametrize("shape", [(2,), (2, 3, 1)])
def test_ids_of_wrong_shape_are_refused(kind, call, shape):
    message = error_message(kind, call, torch.zeros(shape, dtype=torch.long))
    assert "(rows, tokens)" in message
    assert f"found {shape}" in message


@every_kind
@every_call
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8])
def test_ids_of_wrong_dtype_are_refused(kind, call, dtype):
    message = error_message(kind, call, torch.zeros(2, 3, dtype=dtype))
    assert "integers" in message
    assert str(dtype) in message


@every_kind
@every_call
def test_int32_ids_equal_int64_ids(kind, call):
    harness = DecodingHarness.create(CONFIG[kind](), rows=2)
    int32, int64 = ids(2, 3).int(), ids(2, 3)
    if call == "logits":
        assert torch.equal(harness.logits(int32), harness.logits(int64))
    else:
        assert torch.equal(
            harness.model.step(int32, harness.start(3))[0], harness.model.step(int64, harness.start(3))[0]
        )


@every_kind
def test_empty_rows_have_empty_logits(kind):
    harness = DecodingHarness.create(CONFIG[kind](), rows=2)
    assert harness.logits(ids(2, 0)).shape == (2, 0, VOCAB_SIZE)


@every_kind
def test_text_longer_than_the_learned_positions_is_refused(kind):
    message = error_message(kind, "logits", ids(2, 6), position=LearnedConfig(max_length=4))
    assert "positions for 4 tokens, but 6 are needed" in message
    assert "position.max_length" in message


@every_kind
def test_step_beyond_the_learned_positions_is_refused(kind):
    harness = DecodingHarness.create(CONFIG[kind](position=LearnedConfig(max_length=4)), rows=2)
    cache = harness.start(8)
    harness.decode(ids(2, 4), cache, [3, 1])
    with pytest.raises(UserError, match=r"positions for 4 tokens, but 5 are needed.*position\.max_length"):
        harness.model.step(ids(2, 1), cache)


@every_kind
def test_step_beyond_the_capacity_is_refused(kind):
    harness = DecodingHarness.create(CONFIG[kind](), rows=2)
    cache = harness.start(4)
    harness.decode(ids(2, 3), cache, [3])
    with pytest.raises(UserError, match=r"capacity of 4 positions, but 5 are needed"):
        harness.model.step(ids(2, 2), cache)


@every_kind
def test_refused_step_does_not_change_the_cache(kind):
    harness = DecodingHarness.create(CONFIG[kind](), rows=2)
    cache = harness.start(4)
    tokens = ids(2, 4)
    harness.decode(tokens[:, :3], cache, [3])
    for wrong in (ids(2, 2), ids(2, 1) + VOCAB_SIZE):
        with pytest.raises(UserError):
            harness.model.step(wrong, cache)
    cached, _ = harness.model.step(tokens[:, 3:], cache)
    torch.testing.assert_close(cached, harness.logits(tokens)[:, 3:], **EXACT)


@every_kind
def test_step_with_wrong_number_of_rows_is_refused(kind):
    assert "has 2 rows, but the tokens have 3" in error_message(kind, "step", ids(3, 1))


@every_kind
@pytest.mark.parametrize(
    "counts", [torch.tensor([1]), torch.tensor([1, 2, 1]), torch.ones(2, 1, dtype=torch.long), torch.ones(2)]
)
def test_counts_of_wrong_shape_or_dtype_are_refused(kind, counts):
    message = error_message(kind, "step", ids(2, 2), counts)
    assert message.startswith("counts ")
    assert f"found {tuple(counts.shape)} of {counts.dtype}" in message


@every_kind
@pytest.mark.parametrize("capacity", [0, -1])
def test_cache_without_capacity_is_refused(kind, capacity):
    assert f"at least one row and one position; found 2 and {capacity}" in error_message(
        kind, "step", ids(2, 1), capacity=capacity
    )


@every_kind
@length_dependent
def test_packed_documents_with_length_dependent_rope_are_refused(kind, position):
    model = build(CONFIG[kind](position=LENGTH_DEPENDENT[position]))
    sides = [""] if kind == "language-model" else ["source_", "target_"]
    named = {f"{side}documents": torch.tensor([[0, 0, 1, 1]]) for side in sides}
    with pytest.raises(UserError, match=r"Packed documents .* RoPE scaling .*its own row\."):
        model(*[ids(1, 4)] * len(sides), **named)


# Configs


def config_error(kind: str, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        CONFIG[kind](**settings)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


@every_kind
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"decoder": {"attention": {"heads": 5}}}, "decoder.attention.heads: 5 heads do not divide the width 16;"),
        (
            {"decoder": {"attention": {"heads": 4, "kv_heads": 3}}},
            "decoder.attention.kv_heads: 3 KV heads do not divide 4 heads;",
        ),
        (
            {"decoder": {"attention": {"heads": 4, "value_head_dim": 5, "output_projection": False}}},
            "decoder.attention.output_projection: ",
        ),
        ({"decoder": {"attention": {"heads": 0}}}, "decoder.attention.heads: found 0; expected greater than or"),
        (
            {"decoder": {"attention": {"pattern": "sliding(0)"}}},
            "decoder.attention.pattern: sliding: window is 0;",
        ),
        ({"decoder": {"attention": {"pattern": "slid(3)"}}}, "decoder.attention.pattern: 'slid(3)' is not a pattern;"),
        ({"decoder": {"layers": 0}}, "decoder.layers: found 0; expected greater than or equal to 1."),
        ({"decoder": {"dropout": 1.0}}, "decoder.dropout: found 1.0; expected less than 1."),
        ({"decoder": {"norm_position": "middle"}}, "decoder.norm_position: found 'middle'; expected 'pre' or 'post'."),
        ({"decoder": {"norm": {"kind": "batch"}}}, "decoder.norm.kind: found 'batch'; expected 'layer' or 'rms'."),
        ({"decoder": {"layer": 3}}, "decoder.layer: unknown key; did you mean 'layers'?"),
        ({"decoder": {"attention": {"haeds": 4}}}, "decoder.attention.haeds: unknown key; did you mean 'heads'?"),
        ({"embedding": {"norm": {"epsilom": 1}}}, "embedding.norm.epsilom: unknown key; did you mean 'eps'?"),
        ({"decoder": 3}, "decoder: found 3; expected "),
        ({"widht": 16}, "widht: unknown key; did you mean 'width'?"),
        ({"width": "wide"}, "width: found 'wide'; expected a valid integer"),
        ({"width": 0}, "width: found 0; expected greater than or equal to 1."),
        ({"vocab_size": 0}, "vocab_size: found 0; expected greater than or equal to 1."),
        ({"tie_weights": "perhaps"}, "tie_weights: found 'perhaps'; expected a valid boolean"),
        ({"position": {"kind": "rotray"}}, "position.kind: found 'rotray'; expected one of 'sinusoidal', 'learned',"),
        ({"position": {"theta": 3}}, "position.kind: this key is required;"),
        ({"position": {"kind": "learned"}}, "position.max_length: this key is required"),
        ({"position": {"kind": "normalized"}}, "position.kind: 'normalized' needs the length of the whole text,"),
        (
            {"position": {"kind": "sinusoidal", "features": 4}},
            "position.features: an added encoding is as wide as the model;",
        ),
        (
            {"position": {"kind": "sinusoidal", "combine": "concatenate"}, "tie_weights": False},
            "position.features: found None; a concatenated encoding takes 1 to 15 of the model's 16 features.",
        ),
        (
            {"position": {"kind": "sinusoidal", "combine": "concatenate", "features": 16}, "tie_weights": False},
            "position.features: found 16; a concatenated encoding takes 1 to 15 of the model's 16 features.",
        ),
        (
            {"position": {"kind": "sinusoidal", "combine": "concatenate", "features": 4}},
            "tie_weights: token embeddings beside a concatenated position are too narrow",
        ),
        (
            {"position": {"kind": "rotary"}, "decoder": {"attention": {"heads": 4, "head_dim": 3}}},
            "position.kind: RoPE rotates pairs of features, so head_dim must be even; found 3.",
        ),
        (
            {"position": {"kind": "rotary", "scaling": {"kind": "linear", "facto": 3}}},
            "position.scaling.facto: unknown key; did you mean 'factor'?",
        ),
        (
            {"position": {"kind": "rotary", "scaling": {"kind": "linaer", "factor": 3}}},
            "position.scaling.kind: found 'linaer'; expected one of 'linear', 'dynamic',",
        ),
        (
            {"special_tokens": {"eos": VOCAB_SIZE}},
            f"special_tokens.eos: id {VOCAB_SIZE} is outside the vocabulary of {VOCAB_SIZE}.",
        ),
        ({"special_tokens": {"pad": -1}}, "special_tokens.pad: found -1; expected greater than or equal to 0."),
    ],
    ids=str,
)
def test_invalid_setting_is_refused_by_key(kind, settings, expected):
    assert config_error(kind, **settings).startswith(expected)


@pytest.mark.parametrize(
    "scaling",
    [
        {"kind": "longrope", "short_factors": [1], "long_factors": [1, 1], "original_max_length": 4},
        {"kind": "longrope", "short_factors": [1, 1], "long_factors": [1], "original_max_length": 4},
    ],
    ids=["short", "long"],
)
def test_longrope_needs_one_factor_per_pair_of_features(scaling):
    message = config_error("language-model", position={"kind": "rotary", "scaling": scaling})
    assert message.startswith("position.scaling: 'longrope' needs ")


@pytest.mark.parametrize(
    ("key", "scaling"),
    [
        ("position.scaling", {"kind": "dynamic", "factor": 2, "original_max_length": 4}),
        (
            "position.scaling.short_factors.0",
            {"kind": "longrope", "short_factors": [0], "long_factors": [1], "original_max_length": 4},
        ),
        (
            "position.scaling.long_factors.0",
            {"kind": "longrope", "short_factors": [1], "long_factors": [0], "original_max_length": 4},
        ),
        (
            "position.scaling.high_freq_factor",
            {"kind": "llama3", "factor": 2, "original_max_length": 4, "low_freq_factor": 2, "high_freq_factor": 2},
        ),
    ],
    ids=["dynamic", "short", "long", "llama3"],
)
def test_rope_scaling_that_would_divide_by_zero_is_refused_by_key(key, scaling):
    """A head_dim of 2 has a single pair of features, for which the exponent of dynamic scaling is 2/0."""
    narrow = stack(heads=4, head_dim=2)
    message = config_error("language-model", decoder=narrow, position={"kind": "rotary", "scaling": scaling})
    assert message.startswith(f"{key}: ")


@every_kind
@given(data=some.data())
def test_config_round_trips_through_plain_data(kind, data):
    config = data.draw(CONFIGS[kind])
    assert type(config).read(config.plain()) == config


def test_tied_logits_use_the_token_embeddings():
    model = build(language_model(tie_weights=True))
    hidden = torch.randn(1, 1, WIDTH, dtype=torch.float64)
    model.decoder = _ConstantStack(hidden)
    torch.testing.assert_close(model(ids(1, 1)), hidden @ model.embed_tokens.weight.mT, **EXACT)


def test_untied_logits_use_the_lm_head():
    model = build(language_model(tie_weights=False))
    hidden = torch.randn(1, 1, WIDTH, dtype=torch.float64)
    model.decoder = _ConstantStack(hidden)
    torch.testing.assert_close(model(ids(1, 1)), hidden @ model.lm_head.weight.mT, **EXACT)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_output_bias_is_added_to_the_logits(tie_weights):
    model = build(language_model(tie_weights=tie_weights, output_bias=True))
    with_bias = model(ids(1, 3))
    bias = model.lm_head_bias.detach().clone()
    with torch.no_grad():
        model.lm_head_bias.zero_()
    torch.testing.assert_close(with_bias, model(ids(1, 3)) + bias, **EXACT)


class _ConstantStack(nn.Module):
    """A stack with the same output for every input."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def states(self, memory: Tensor | None = None, capacity: int | None = None) -> list[Any]:
        return []

    def forward(self, x: Tensor, context: Any, states: list[Any]) -> Tensor:
        return self.output
