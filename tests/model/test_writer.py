"""What every model that writes word after word must keep to, with an encoder to look at and without.

The statements are equalities, so they are tried on models drawn at random: any pattern, layout of heads, position,
order, norm and activation; weights in float64, where the only difference left is rounding.
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
from regard.attention import Attention, Cache, DynamicScaling, LearnedConfig, LongScaling, RotaryConfig
from regard.attention.ring import RingStore
from regard.model import EncoderDecoderConfig, ModelConfig

from .small_models import (
    EXACT,
    PATTERNS,
    POSITIONS,
    VOCABULARY,
    WIDTH,
    build,
    encoder_decoder,
    encoder_decoders,
    ids,
    language_model,
    language_models,
    layouts,
    source_size,
    stack,
)

both_kinds = pytest.mark.parametrize("kind", ["language-model", "encoder-decoder"])
drawn = given(data=some.data())
often = settings(max_examples=max(40, settings().max_examples))  # an example takes about 10 ms
CONFIG = {"language-model": language_model, "encoder-decoder": encoder_decoder}
CONFIGS = {"language-model": language_models(), "encoder-decoder": encoder_decoders()}


@dataclass
class Writer:
    """A model and, where it has an encoder, the sentences it translates: both kinds behind one way of asking."""

    model: Any
    rows: int
    source: Tensor | None = None
    source_lengths: Tensor | None = None

    @classmethod
    def of(cls, config: ModelConfig, rows: int, seed: int = 0) -> "Writer":
        model = build(config, seed=seed)
        if not isinstance(config, EncoderDecoderConfig):
            return cls(model, rows)
        lengths = torch.tensor([1 + (seed + row) % 4 for row in range(rows)])
        return cls(model, rows, ids(rows, 4, source_size(config), seed), lengths)

    @torch.no_grad()
    def logits(self, tokens: Tensor, rows: list[int] | None = None, **more: Any) -> Tensor:
        """Uncached. `rows` says whose source each row of tokens goes with: its own, if not given."""
        if self.source is None:
            return self.model(tokens, **more)
        named = {f"target_{name}" if name != "watch" else name: value for name, value in more.items()}
        rows = list(range(self.rows)) if rows is None else rows
        lengths = None if self.source_lengths is None else self.source_lengths[rows]
        return self.model(self.source[rows], tokens, source_lengths=lengths, **named)

    def start(self, capacity: int) -> Cache:
        if self.source is None:
            return self.model.start(self.rows, capacity)
        return self.model.start(self.source, capacity, self.source_lengths)

    def write(self, tokens: Tensor, cache: Cache, chunks: list[int]) -> Tensor:
        """Logits of the tokens given in chunks of these sizes, one after another."""
        parts = [self.model.step(part, cache)[0] for part in tokens.split(chunks, dim=1)]
        return torch.cat(parts, dim=1)


@some.composite
def writers(draw: some.DrawFn, kind: str, rows: some.SearchStrategy[int]) -> Writer:
    return Writer.of(draw(CONFIGS[kind]), draw(rows), draw(some.integers(0, 999)))


def draw_tokens(data: some.DataObject, rows: int, least: int = 1, most: int = 9) -> Tensor:
    return ids(rows, data.draw(some.integers(least, most)), seed=data.draw(some.integers(0, 999)))


def draw_chunks(data: some.DataObject, total: int) -> list[int]:
    """Sizes that add up to `total`."""
    cuts = sorted(data.draw(some.sets(some.integers(1, total - 1)))) if total > 1 else []
    return [end - start for start, end in itertools.pairwise([0, *cuts, total])]


# Cached equals uncached


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_uneven_chunks_equal_uncached_for_every_pattern_layout_and_position(pattern, position):
    tokens = ids(2, 7)
    for layout in layouts(POSITIONS[position]).values():
        decoder = stack(pattern=pattern, **layout)
        writer = Writer.of(language_model(decoder=decoder, position=POSITIONS[position], tie=False), rows=2)
        cached = writer.write(tokens, writer.start(7), [1, 4, 2])
        torch.testing.assert_close(cached, writer.logits(tokens), **EXACT)


@both_kinds
@often
@drawn
def test_step_by_step_equals_uncached(kind, data):
    writer = data.draw(writers(kind, some.integers(1, 3)))
    tokens = draw_tokens(data, writer.rows)
    length = tokens.shape[1]
    cached = writer.write(tokens, writer.start(length), [1] * length)
    torch.testing.assert_close(cached, writer.logits(tokens), **EXACT)


@both_kinds
@often
@drawn
def test_one_chunk_equals_uncached(kind, data):
    writer = data.draw(writers(kind, some.integers(1, 3)))
    tokens = draw_tokens(data, writer.rows)
    length = tokens.shape[1]
    cached = writer.write(tokens, writer.start(length + 3), [length])
    torch.testing.assert_close(cached, writer.logits(tokens), **EXACT)


@both_kinds
@often
@drawn
def test_uneven_chunks_equal_uncached(kind, data):
    writer = data.draw(writers(kind, some.integers(1, 3)))
    tokens = draw_tokens(data, writer.rows)
    length = tokens.shape[1]
    cached = writer.write(tokens, writer.start(length), draw_chunks(data, length))
    torch.testing.assert_close(cached, writer.logits(tokens), **EXACT)


def write_ragged(data: some.DataObject, writer: Writer, cache: Cache) -> tuple[list[Tensor], list[Tensor]]:
    """Two or three rounds in which every row brings as many tokens as it likes, padded with anything.

    Gives each row's real tokens, and the logits that stood beside them.
    """
    tokens: list[list[Tensor]] = [[] for _ in range(cache.rows)]
    logits: list[list[Tensor]] = [[] for _ in range(cache.rows)]
    for _ in range(data.draw(some.integers(2, 3))):
        counts = data.draw(some.lists(some.integers(0, 3), min_size=cache.rows, max_size=cache.rows))
        chunk = ids(cache.rows, 3, seed=data.draw(some.integers(0, 999)))
        scores, _ = writer.model.step(chunk, cache, counts=torch.tensor(counts))
        for row, count in enumerate(counts):
            tokens[row].append(chunk[row, :count])
            logits[row].append(scores[row, :count])
    return [torch.cat(each) for each in tokens], [torch.cat(each) for each in logits]


@both_kinds
@often
@drawn
def test_ragged_rows_equal_each_row_alone_and_uncached(kind, data):
    writer = data.draw(writers(kind, some.integers(2, 3)))
    tokens, logits = write_ragged(data, writer, writer.start(9))
    for row in range(writer.rows):
        if len(tokens[row]):
            alone = writer.logits(tokens[row][None], [row])[0]
            torch.testing.assert_close(logits[row], alone, **EXACT)


@both_kinds
@often
@drawn
def test_reordered_rows_go_on_as_the_rows_they_became(kind, data):
    """As beams do: some rows die, some live on twice, and each looks at its own source and past."""
    writer = data.draw(writers(kind, some.integers(1, 3)))
    before = draw_tokens(data, writer.rows, most=4)
    cache = writer.start(before.shape[1] + 3)
    writer.write(before, cache, [before.shape[1]])
    rows = data.draw(some.lists(some.integers(0, writer.rows - 1), min_size=1, max_size=5))
    cache = writer.model.reorder(cache, torch.tensor(rows))
    after = draw_tokens(data, len(rows), most=3)
    cached = writer.write(after, cache, draw_chunks(data, after.shape[1]))
    whole = torch.cat((before[rows], after), dim=1)
    torch.testing.assert_close(cached, writer.logits(whole, rows)[:, before.shape[1] :], **EXACT)


@both_kinds
@often
@drawn
def test_ragged_rows_can_be_reordered(kind, data):
    writer = data.draw(writers(kind, some.integers(2, 3)))
    cache = writer.start(10)
    before, _ = write_ragged(data, writer, cache)
    rows = data.draw(some.lists(some.integers(0, writer.rows - 1), min_size=1, max_size=4))
    after = ids(len(rows), 1)
    cached, _ = writer.model.step(after, writer.model.reorder(cache, torch.tensor(rows)))
    for number, row in enumerate(rows):
        alone = writer.logits(torch.cat((before[row], after[number]))[None], [row])
        torch.testing.assert_close(cached[number, 0], alone[0, -1], **EXACT)


def refuses_to_rewind(cache: Cache, lengths: int | Tensor) -> bool:
    """Rewind, or see it refused, which is right only where a window has let go of something."""
    stores = [layer.own for layer in cache.layers if isinstance(layer.own, RingStore)]
    if not any(cache.extent > sum(store.horizon) for store in stores) or (
        isinstance(lengths, int) and lengths == cache.extent
    ):
        cache.rewind(lengths)
        return False
    with pytest.raises(UserError, match="has let go of"):
        cache.rewind(lengths)
    return True


@both_kinds
@often
@drawn
def test_after_a_rewind_the_forgotten_tokens_leave_no_trace(kind, data):
    writer = data.draw(writers(kind, some.integers(1, 2)))
    before, after = draw_tokens(data, writer.rows, most=6), draw_tokens(data, writer.rows, most=4)
    kept = data.draw(some.integers(0, before.shape[1]))
    cache = writer.start(10)
    writer.write(before, cache, [before.shape[1]])
    if refuses_to_rewind(cache, kept):
        return
    cached = writer.write(after, cache, draw_chunks(data, after.shape[1]))
    whole = torch.cat((before[:, :kept], after), dim=1)
    torch.testing.assert_close(cached, writer.logits(whole)[:, kept:], **EXACT)


@both_kinds
@often
@drawn
def test_every_row_can_be_rewound_to_a_length_of_its_own(kind, data):
    writer = data.draw(writers(kind, some.integers(2, 3)))
    before, after = draw_tokens(data, writer.rows, most=5), draw_tokens(data, writer.rows, most=3)
    lengths = some.lists(some.integers(0, before.shape[1]), min_size=writer.rows, max_size=writer.rows)
    kept = data.draw(lengths)
    cache = writer.start(10)
    writer.write(before, cache, [before.shape[1]])
    if refuses_to_rewind(cache, torch.tensor(kept)):
        return
    cached = writer.write(after, cache, draw_chunks(data, after.shape[1]))
    for row, length in enumerate(kept):
        whole = torch.cat((before[row, :length], after[row]))[None]
        torch.testing.assert_close(cached[row], writer.logits(whole, [row])[0, length:], **EXACT)


@both_kinds
@drawn
def test_a_tightened_cache_goes_on_as_before(kind, data):
    writer = data.draw(writers(kind, some.integers(2, 3)))
    cache = writer.start(10)
    before, _ = write_ragged(data, writer, cache)
    cache.tighten()
    after = ids(writer.rows, 1)
    cached, _ = writer.model.step(after, cache)
    for row in range(writer.rows):
        alone = writer.logits(torch.cat((before[row], after[row]))[None], [row])
        torch.testing.assert_close(cached[row, 0], alone[0, -1], **EXACT)


@both_kinds
def test_rows_that_take_turns_need_no_more_room_than_the_longest_and_its_padding(kind):
    """Each row writes three tokens, never at the same time; the row that waits brings one token of padding."""
    writer = Writer.of(CONFIG[kind](), rows=2)
    cache = writer.start(4)
    for turn in range(6):
        writer.model.step(ids(2, 1), cache, counts=torch.tensor([1 - turn % 2, turn % 2]))
    assert cache.lengths.tolist() == [3, 3]


@both_kinds
def test_rows_that_were_rewound_apart_fill_the_cache_to_its_last_place(kind):
    writer = Writer.of(CONFIG[kind](), rows=2)
    cache = writer.start(4)
    writer.write(ids(2, 4), cache, [4])
    cache.rewind(torch.tensor([1, 2]))
    writer.model.step(ids(2, 2), cache)
    assert cache.lengths.tolist() == [3, 4]


# Rotary scaling whose angles change when the text outgrows the trained length

CHANGING = {
    "dynamic": RotaryConfig(base=100.0, scaling=DynamicScaling(factor=3, trained=4)),
    "long": RotaryConfig(
        base=100.0, scaling=LongScaling(short_factors=(1, 2), long_factors=(3, 5), trained=4, sharpness=1.2)
    ),
}
changing_positions = pytest.mark.parametrize("position", CHANGING)


@both_kinds
@changing_positions
def test_within_the_trained_length_changing_angles_step_as_uncached(kind, position):
    writer = Writer.of(CONFIG[kind](position=CHANGING[position]), rows=2)
    tokens = ids(2, 4)
    torch.testing.assert_close(writer.write(tokens, writer.start(4), [1, 1, 1, 1]), writer.logits(tokens), **EXACT)


@both_kinds
@changing_positions
@pytest.mark.parametrize(
    "layout", [name for name in layouts(RotaryConfig()) if name != "own widths"]
)  # "long" has factors for heads of width 4
def test_beyond_the_trained_length_a_step_equals_the_end_of_an_uncached_pass(kind, position, layout):
    """Of one layer: keys are kept unturned, so a new length turns all of them anew.

    A second layer's past was computed from what the first one saw at the shorter length. No cache can mend that
    without computing it again, so there the statement does not hold.
    """
    decoder = stack(layers=1, **layouts(CHANGING[position])[layout])
    writer = Writer.of(CONFIG[kind](position=CHANGING[position], decoder=decoder), rows=2)
    tokens = ids(2, 9)
    cache = writer.start(9)
    for length in range(1, 10):
        cached, _ = writer.model.step(tokens[:, length - 1 : length], cache)
        torch.testing.assert_close(cached[:, -1], writer.logits(tokens[:, :length])[:, -1], **EXACT)


@changing_positions
def test_beyond_the_trained_length_every_ragged_row_has_the_angles_of_its_own_length(position):
    writer = Writer.of(language_model(position=CHANGING[position], decoder=stack(layers=1)), rows=3)
    tokens = ids(3, 9)
    cache = writer.start(9)
    writer.model.step(tokens[:, :6], cache, counts=torch.tensor([2, 4, 6]))
    following = torch.stack([tokens[0, 2:5], tokens[1, 4:7], tokens[2, 6:9]])
    cached, _ = writer.model.step(following, cache, counts=torch.tensor([2, 1, 3]))
    for row, (length, new) in enumerate([(4, 2), (5, 1), (9, 3)]):
        alone = writer.logits(tokens[row : row + 1, :length])
        torch.testing.assert_close(cached[row, :new], alone[0, -new:], **EXACT)


@both_kinds
@changing_positions
def test_beyond_the_trained_length_a_prompt_in_one_chunk_equals_uncached(kind, position):
    writer = Writer.of(CONFIG[kind](position=CHANGING[position]), rows=2)
    tokens = ids(2, 8)
    torch.testing.assert_close(writer.write(tokens, writer.start(8), [8]), writer.logits(tokens), **EXACT)


@changing_positions
def test_a_padded_row_has_the_angles_of_its_own_length(position):
    writer = Writer.of(language_model(position=CHANGING[position]), rows=2)
    tokens = ids(2, 8)
    padded = writer.logits(tokens, lengths=torch.tensor([8, 5]))
    torch.testing.assert_close(padded[1:, :5], writer.logits(tokens[1:, :5]), **EXACT)


# What must change nothing


@both_kinds
@often
@drawn
def test_no_later_token_changes_an_earlier_logit(kind, data):
    writer = data.draw(writers(kind, some.integers(1, 2)))
    tokens = draw_tokens(data, writer.rows, least=2)
    place = data.draw(some.integers(1, tokens.shape[1] - 1))
    changed = tokens.clone()
    changed[:, place:] = (tokens[:, place:] + 1 + ids(1, 1, VOCABULARY - 1)) % VOCABULARY
    first, second = writer.logits(tokens), writer.logits(changed)
    # To the last bit: what may not be seen is multiplied by an exact zero.
    assert torch.equal(first[:, :place], second[:, :place])


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_later_tokens_have_no_gradient_at_an_earlier_logit(pattern, position):
    config = language_model(decoder=stack(pattern=pattern), position=POSITIONS[position], tie=False)
    model = build(config)
    vectors = []
    model.vocabulary.register_forward_hook(lambda module, given, made: vectors.append(made) or made)
    logits = model(ids(1, 6))
    (gradient,) = torch.autograd.grad(logits[:, 3].square().sum(), vectors)
    assert gradient[0, 4:].eq(0).all()
    assert gradient[0, 3].ne(0).any()


@both_kinds
@often
@drawn
def test_padding_behind_a_target_changes_nothing(kind, data):
    writer = data.draw(writers(kind, some.integers(1, 3)))
    tokens = draw_tokens(data, writer.rows)
    padding = draw_tokens(data, writer.rows, most=4)
    lengths = torch.full((writer.rows,), tokens.shape[1])
    padded = writer.logits(torch.cat((tokens, padding), dim=1), lengths=lengths)
    torch.testing.assert_close(padded[:, : tokens.shape[1]], writer.logits(tokens), **EXACT)


@both_kinds
@often
@drawn
def test_a_row_alone_equals_the_same_row_in_company(kind, data):
    writer = data.draw(writers(kind, some.integers(2, 3)))
    tokens = draw_tokens(data, writer.rows)
    row = data.draw(some.integers(0, writer.rows - 1))
    company = writer.logits(tokens)[row]
    torch.testing.assert_close(writer.logits(tokens[row : row + 1], [row])[0], company, **EXACT)


@both_kinds
def test_learned_positions_need_not_reach_over_padding(kind):
    writer = Writer.of(CONFIG[kind](position=LearnedConfig(limit=4)), rows=2)
    tokens = ids(2, 6)
    padded = writer.logits(tokens, lengths=torch.tensor([4, 2]))
    torch.testing.assert_close(padded[:, :2], writer.logits(tokens[:, :2]), **EXACT)


@both_kinds
def test_learned_positions_need_not_reach_over_the_padding_of_a_chunk(kind):
    writer = Writer.of(CONFIG[kind](position=LearnedConfig(limit=4)), rows=2)
    cache = writer.start(8)
    tokens = ids(2, 6)
    writer.model.step(tokens[:, :3], cache, counts=torch.tensor([3, 1]))
    cached, _ = writer.model.step(tokens[:, 3:], cache, counts=torch.tensor([1, 3]))
    torch.testing.assert_close(cached[:1, :1], writer.logits(tokens[:1, :4], [0])[:, 3:], **EXACT)


# Watching


@both_kinds
@drawn
def test_watching_changes_no_logit(kind, data):
    writer = data.draw(writers(kind, some.integers(1, 2)))
    tokens = draw_tokens(data, writer.rows)
    watched = writer.logits(tokens, watch=lambda module, weights: None)
    torch.testing.assert_close(watched, writer.logits(tokens), **EXACT)


@both_kinds
@drawn
def test_a_watcher_sees_every_attention_once(kind, data):
    writer = data.draw(writers(kind, some.integers(1, 2)))
    seen: list[nn.Module] = []
    writer.logits(draw_tokens(data, writer.rows), watch=lambda module, weights: seen.append(module))
    there_are = [module for module in writer.model.modules() if isinstance(module, Attention)]
    assert len(seen) == len(there_are)
    assert set(seen) == set(there_are)


@both_kinds
@drawn
def test_the_weights_a_watcher_sees_sum_to_one(kind, data):
    writer = data.draw(writers(kind, some.integers(1, 2)))
    writer.source_lengths = None  # a padded query in a narrow window sees nothing: its weights are all zero
    seen: list[Tensor] = []
    writer.logits(draw_tokens(data, writer.rows), watch=lambda module, weights: seen.append(weights))
    for weights in seen:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]).double(), **EXACT)


@both_kinds
@drawn
def test_the_weights_seen_in_cached_steps_are_those_of_an_uncached_pass(kind, data):
    writer = data.draw(writers(kind, some.integers(1, 2)))
    tokens = draw_tokens(data, writer.rows, least=2, most=6)
    whole: dict[nn.Module, Tensor] = {}
    writer.logits(tokens, watch=whole.__setitem__)
    cache = writer.start(tokens.shape[1])
    for place in range(tokens.shape[1]):
        step: dict[nn.Module, Tensor] = {}
        writer.model.step(tokens[:, place : place + 1], cache, watch=step.__setitem__)
        for module, weights in step.items():
            keys = weights.shape[-1]
            torch.testing.assert_close(weights[:, :, 0], whole[module][:, :, place, :keys], **EXACT)


# Wrong input


def refusal(kind: str, call: str, *given: Any, rows: int = 2, capacity: int = 4, **settings: Any) -> str:
    """The sentence with which a model refuses: `call` is "logits", or "step" behind an empty cache."""
    writer = Writer.of(CONFIG[kind](**settings), rows)

    def step(tokens: Tensor, counts: Tensor | None = None) -> None:
        writer.model.step(tokens, writer.start(capacity), counts)

    with pytest.raises(UserError) as caught:
        (writer.logits if call == "logits" else step)(*given)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


both_calls = pytest.mark.parametrize("call", ["logits", "step"])


@both_kinds
@both_calls
@pytest.mark.parametrize("wrong", [-1, VOCABULARY, 10**6])
def test_ids_outside_the_vocabulary_are_named(kind, call, wrong):
    tokens = ids(2, 3)
    tokens[1, 1] = wrong
    sentence = refusal(kind, call, tokens)
    assert f"id {wrong} " in sentence
    assert f"vocabulary of {VOCABULARY}" in sentence


@both_kinds
@both_calls
@pytest.mark.parametrize("shape", [(2,), (2, 3, 1)])
def test_ids_of_another_shape_are_refused_with_the_shape(kind, call, shape):
    sentence = refusal(kind, call, torch.zeros(shape, dtype=torch.long))
    assert "(rows, tokens)" in sentence
    assert f"found {shape}" in sentence


@both_kinds
@both_calls
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8])
def test_ids_of_another_type_are_refused_with_the_type(kind, call, dtype):
    sentence = refusal(kind, call, torch.zeros(2, 3, dtype=dtype))
    assert "whole numbers" in sentence
    assert str(dtype) in sentence


@both_kinds
@both_calls
def test_ids_of_half_the_size_are_as_good(kind, call):
    writer = Writer.of(CONFIG[kind](), rows=2)
    small, large = ids(2, 3).int(), ids(2, 3)
    if call == "logits":
        assert torch.equal(writer.logits(small), writer.logits(large))
    else:
        assert torch.equal(writer.model.step(small, writer.start(3))[0], writer.model.step(large, writer.start(3))[0])


@both_kinds
def test_no_tokens_give_no_logits(kind):
    writer = Writer.of(CONFIG[kind](), rows=2)
    assert writer.logits(ids(2, 0)).shape == (2, 0, VOCABULARY)


@both_kinds
def test_a_text_longer_than_its_learned_positions_is_refused_with_both_numbers(kind):
    sentence = refusal(kind, "logits", ids(2, 6), position=LearnedConfig(limit=4))
    assert "positions for 4 tokens and 6 are needed" in sentence
    assert "position.limit" in sentence


@both_kinds
def test_a_step_past_the_learned_positions_is_refused_with_both_numbers(kind):
    writer = Writer.of(CONFIG[kind](position=LearnedConfig(limit=4)), rows=2)
    cache = writer.start(8)
    writer.write(ids(2, 4), cache, [3, 1])
    with pytest.raises(UserError, match=r"positions for 4 tokens and 5 are needed.*position\.limit"):
        writer.model.step(ids(2, 1), cache)


@both_kinds
def test_a_step_past_the_cache_is_refused_with_both_numbers(kind):
    writer = Writer.of(CONFIG[kind](), rows=2)
    cache = writer.start(4)
    writer.write(ids(2, 3), cache, [3])
    with pytest.raises(UserError, match=r"room for 4 positions and 5 are needed; .*larger capacity\."):
        writer.model.step(ids(2, 2), cache)


@both_kinds
def test_a_refused_step_leaves_the_cache_as_it_was(kind):
    writer = Writer.of(CONFIG[kind](), rows=2)
    cache = writer.start(4)
    tokens = ids(2, 4)
    writer.write(tokens[:, :3], cache, [3])
    for wrong in (ids(2, 2), ids(2, 1) + VOCABULARY):
        with pytest.raises(UserError):
            writer.model.step(wrong, cache)
    cached, _ = writer.model.step(tokens[:, 3:], cache)
    torch.testing.assert_close(cached, writer.logits(tokens)[:, 3:], **EXACT)


@both_kinds
def test_a_step_with_another_number_of_rows_is_refused_with_both_numbers(kind):
    assert "holds 2 rows and 3 rows of tokens were given" in refusal(kind, "step", ids(3, 1))


@both_kinds
@pytest.mark.parametrize(
    "counts", [torch.tensor([1]), torch.tensor([1, 2, 1]), torch.ones(2, 1, dtype=torch.long), torch.ones(2)]
)
def test_counts_of_another_shape_or_type_are_refused_with_what_was_found(kind, counts):
    sentence = refusal(kind, "step", ids(2, 2), counts)
    assert sentence.startswith("counts ")
    assert f"found {tuple(counts.shape)} of {counts.dtype}" in sentence


@both_kinds
@pytest.mark.parametrize("capacity", [0, -1])
def test_a_cache_without_room_is_refused_with_the_number(kind, capacity):
    assert f"at least one row and one position; found 2 and {capacity}" in refusal(
        kind, "step", ids(2, 1), capacity=capacity
    )


@both_kinds
@changing_positions
def test_packed_documents_refuse_angles_that_depend_on_the_length_of_a_text(kind, position):
    model = build(CONFIG[kind](position=CHANGING[position]))
    sides = [""] if kind == "language-model" else ["source_", "target_"]
    named = {f"{side}documents": torch.tensor([[0, 0, 1, 1]]) for side in sides}
    with pytest.raises(UserError, match=r"Packed documents .* rotary scaling .*its own row\."):
        model(*[ids(1, 4)] * len(sides), **named)


# Settings


def wrong_setting(kind: str, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        CONFIG[kind](**settings)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    return sentence


@both_kinds
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"decoder": {"attention": {"heads": 5}}}, "decoder.attention.heads: 5 heads do not divide the width 16;"),
        (
            {"decoder": {"attention": {"heads": 4, "key_heads": 3}}},
            "decoder.attention.key_heads: 4 heads cannot share 3 key heads evenly;",
        ),
        (
            {"decoder": {"attention": {"heads": 4, "value_width": 5, "output": False}}},
            "decoder.attention.output: without it 4 heads of 5 values must make the width 16.",
        ),
        ({"decoder": {"attention": {"heads": 0}}}, "decoder.attention.heads: found 0; expected greater than or"),
        (
            {"decoder": {"attention": {"pattern": "sliding(0)"}}},
            "decoder.attention.pattern: sliding: window is 0; it counts the token itself, so it must be at least 1.",
        ),
        ({"decoder": {"attention": {"pattern": "slid(3)"}}}, "decoder.attention.pattern: 'slid(3)' is not a pattern;"),
        ({"decoder": {"layers": 0}}, "decoder.layers: found 0; expected greater than or equal to 1."),
        ({"decoder": {"dropout": 1.0}}, "decoder.dropout: found 1.0; expected less than 1."),
        ({"decoder": {"order": "middle"}}, "decoder.order: found 'middle'; expected 'pre', 'post' or 'none'."),
        ({"decoder": {"norm": {"kind": "batch"}}}, "decoder.norm.kind: found 'batch'; expected 'layer' or 'rms'."),
        ({"decoder": {"layer": 3}}, "decoder.layer: unknown key; did you mean 'layers'?"),
        ({"decoder": {"attention": {"haeds": 4}}}, "decoder.attention.haeds: unknown key; did you mean 'heads'?"),
        ({"embedding": {"norm": {"epsilom": 1}}}, "embedding.norm.epsilom: unknown key; did you mean 'epsilon'?"),
        ({"decoder": 3}, "decoder: found 3; expected "),
        ({"widht": 16}, "widht: unknown key; did you mean 'width'?"),
        ({"width": "wide"}, "width: found 'wide'; expected a valid integer"),
        ({"width": 0}, "width: found 0; expected greater than or equal to 1."),
        ({"vocabulary": 0}, "vocabulary: found 0; expected greater than or equal to 1."),
        ({"tie": "perhaps"}, "tie: found 'perhaps'; expected a valid boolean"),
        ({"position": {"kind": "rotray"}}, "position.kind: found 'rotray'; expected one of 'sinusoidal', 'learned',"),
        ({"position": {"base": 3}}, "position.kind: this key is required;"),
        ({"position": {"kind": "learned"}}, "position.limit: this key is required;"),
        ({"position": {"kind": "normalised"}}, "position.kind: 'normalised' needs the length of the whole sentence,"),
        (
            {"position": {"kind": "sinusoidal", "features": 4}},
            "position.features: an added code is as wide as the model;",
        ),
        (
            {"position": {"kind": "sinusoidal", "join": "concatenate"}, "tie": False},
            "position.features: found None; a concatenated code takes 1 to 15 of the model's 16 features.",
        ),
        (
            {"position": {"kind": "sinusoidal", "join": "concatenate", "features": 16}, "tie": False},
            "position.features: found 16; a concatenated code takes 1 to 15 of the model's 16 features.",
        ),
        (
            {"position": {"kind": "sinusoidal", "join": "concatenate", "features": 4}},
            "tie: word vectors that leave room for a concatenated position cannot score words too;",
        ),
        (
            {"position": {"kind": "rotary"}, "decoder": {"attention": {"heads": 4, "head_width": 3}}},
            "position.kind: rotary turns pairs of features, so a head's width must be even; found 3.",
        ),
        (
            {"position": {"kind": "rotary", "scaling": {"kind": "linear", "facto": 3}}},
            "position.scaling.facto: unknown key; did you mean 'factor'?",
        ),
        (
            {"position": {"kind": "rotary", "scaling": {"kind": "linaer", "factor": 3}}},
            "position.scaling.kind: found 'linaer'; expected one of 'linear', 'dynamic',",
        ),
        ({"tokens": {"end": VOCABULARY}}, f"tokens.end: id {VOCABULARY} is outside the vocabulary of {VOCABULARY}."),
        ({"tokens": {"padding": -1}}, "tokens.padding: found -1; expected greater than or equal to 0."),
    ],
    ids=str,
)
def test_a_wrong_setting_is_named_with_its_fix(kind, settings, expected):
    assert wrong_setting(kind, **settings).startswith(expected)


@pytest.mark.parametrize(
    "scaling",
    [
        {"kind": "long", "short_factors": [1], "long_factors": [1, 1], "trained": 4},
        {"kind": "long", "short_factors": [1, 1], "long_factors": [1], "trained": 4},
    ],
    ids=["short", "long"],
)
def test_long_scaling_wants_a_factor_for_each_pair_of_a_head(scaling):
    sentence = wrong_setting("language-model", position={"kind": "rotary", "scaling": scaling})
    assert sentence.startswith("position.scaling: 'long' needs a factor for each of the 2 pairs of a head; found 1.")


@pytest.mark.parametrize(
    ("key", "scaling"),
    [
        ("position.scaling", {"kind": "dynamic", "factor": 2, "trained": 4}),
        ("position.scaling.short_factors.0", {"kind": "long", "short_factors": [0], "long_factors": [1], "trained": 4}),
        ("position.scaling.long_factors.0", {"kind": "long", "short_factors": [1], "long_factors": [0], "trained": 4}),
        ("position.scaling.high", {"kind": "band", "factor": 2, "trained": 4, "low": 2, "high": 2}),
    ],
    ids=["dynamic", "short", "long", "band"],
)
def test_scaling_that_would_divide_by_zero_is_refused_with_its_key(key, scaling):
    """Heads of width 2 have a single pair, for which the exponent of dynamic scaling is 2/0."""
    narrow = stack(heads=4, head_width=2)
    sentence = wrong_setting("language-model", decoder=narrow, position={"kind": "rotary", "scaling": scaling})
    assert sentence.startswith(f"{key}: ")


@both_kinds
@given(data=some.data())
def test_a_config_survives_being_written_as_plain_data(kind, data):
    config = data.draw(CONFIGS[kind])
    assert type(config).read(config.plain()) == config


def test_tied_words_are_scored_with_the_vectors_they_are_looked_up_in():
    model = build(language_model(tie=True))
    hidden = torch.randn(1, 1, WIDTH, dtype=torch.float64)
    model.decoder = _Says(hidden)
    torch.testing.assert_close(model(ids(1, 1)), hidden @ model.vocabulary.weight.mT, **EXACT)


def test_untied_words_are_scored_with_vectors_of_their_own():
    model = build(language_model(tie=False))
    hidden = torch.randn(1, 1, WIDTH, dtype=torch.float64)
    model.decoder = _Says(hidden)
    torch.testing.assert_close(model(ids(1, 1)), hidden @ model.output.weight.mT, **EXACT)


@pytest.mark.parametrize("tie", [True, False])
def test_the_output_bias_is_added_to_the_scores(tie):
    model = build(language_model(tie=tie, output_bias=True))
    with_bias = model(ids(1, 3))
    bias = model.output_bias.detach().clone()
    with torch.no_grad():
        model.output_bias.zero_()
    torch.testing.assert_close(with_bias, model(ids(1, 3)) + bias, **EXACT)


class _Says(nn.Module):
    """A stack that says the same whatever it is given."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def states(self, memory: Tensor | None = None, capacity: int | None = None) -> list[Any]:
        return []

    def forward(self, x: Tensor, context: Any, states: list[Any]) -> Tensor:
        return self.answer
