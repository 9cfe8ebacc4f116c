"""An observer receives every step of a search without changing it; hypotheses have the logprobs of their tokens."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.multi_head import CrossAttention, MultiHeadAttention, SelfAttention
from regard.decode import (
    BeamSearch,
    ConstrainedBeamSearch,
    DiverseBeamSearch,
    Diversity,
    Ensemble,
    EnsembleState,
    Greedy,
    Hypothesis,
    RecordingObserver,
    Sampler,
    SamplingParams,
    SearchStrategy,
    Step,
    search,
)
from regard.model import EncoderDecoder
from tests.decode.toy_models import EOS, CountingModel, TableModel, make_translator, start_tokens, with_eos

Make = Callable[..., SearchStrategy]
MAX_LENGTHS = [6, 1, 3, 6]
STRATEGIES: dict[str, Make] = {
    "greedy": lambda lengths, **options: Greedy(lengths, EOS, **options),
    "sampling": lambda lengths, **options: Sampler(
        lengths, EOS, SamplingParams(temperature=2.0), seeds=list(lengths), **options
    ),
    "beam": lambda lengths, **options: BeamSearch(lengths, EOS, 3, **options),
    "diverse": lambda lengths, **options: DiverseBeamSearch(lengths, EOS, 4, Diversity(2, 1.0), **options),
    "constrained": lambda lengths, **options: ConstrainedBeamSearch(
        lengths, EOS, 3, [((2,),) if length > 2 else () for length in lengths], **options
    ),
}
every_strategy = pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())
Texts = dict[int, list[tuple[int, ...]]]


def replay(observer: RecordingObserver, beam_size: int) -> list[Texts]:
    """The tokens of each beam before each step and after the last, rebuilt from recorded beam indices and tokens."""
    texts: Texts = {slot: [()] * beam_size for slot in observer.steps[0].slots}
    replayed = [texts]
    for step in observer.steps:
        tokens = step.tokens.view(len(step.slots), beam_size).tolist()
        beams = beam_indices(step, beam_size)
        texts = {
            slot: [(*texts[slot][beam], token) for beam, token in zip(beams[index], tokens[index], strict=True)]
            for index, slot in enumerate(step.slots)
        }
        replayed.append(texts)
    return replayed


def beam_indices(step: Step, beam_size: int) -> list[list[int]]:
    """The beam within its slot that each row continues."""
    rows = torch.arange(step.tokens.numel()) if step.beam_indices is None else step.beam_indices
    first_rows = beam_size * torch.arange(len(step.slots))[:, None]
    return (rows.view(len(step.slots), beam_size) - first_rows).tolist()


Observed = tuple[TableModel, SearchStrategy, RecordingObserver, list[list[Hypothesis]]]


def observe(make: Make, seed: int = 0) -> Observed:
    model, strategy, observer = TableModel(4, 6, seed), make(MAX_LENGTHS), RecordingObserver()
    return model, strategy, observer, search(model, model.start(), start_tokens(4), strategy, observer)


@every_strategy
def test_every_step_is_observed(make: Make) -> None:
    model, strategy, observer = CountingModel(4, 6, 0), make(MAX_LENGTHS), RecordingObserver()
    search(model, model.start(), start_tokens(4), strategy, observer)
    assert [step.number for step in observer.steps] == list(range(1, len(model.row_counts) + 1))
    assert [step.input_tokens.numel() for step in observer.steps] == model.row_counts
    assert [len(step.slots) * strategy.beam_size for step in observer.steps] == model.row_counts


@every_strategy
def test_input_tokens_are_those_chosen_in_the_step_before(make: Make) -> None:
    _, strategy, observer, _ = observe(make)
    for before, step in itertools.pairwise(observer.steps):
        chosen = before.tokens.view(-1, strategy.beam_size)
        remaining = [before.slots.index(slot) for slot in step.slots]
        assert step.input_tokens.tolist() == chosen[remaining].flatten().tolist()


@every_strategy
def test_finished_slots_are_no_longer_observed(make: Make) -> None:
    model, observer = TableModel(4, 6, 0), RecordingObserver()
    model.logits[..., EOS] = -30  # no output ends by itself
    max_lengths = [5, 1, 1, 3]
    strategy = make(max_lengths)
    if isinstance(strategy, ConstrainedBeamSearch):
        strategy = BeamSearch(max_lengths, EOS, 3)
    search(model, model.start(), start_tokens(4), strategy, observer)
    assert [step.slots for step in observer.steps] == [(0, 1, 2, 3), (0, 3), (0, 3), (0,), (0,)]


@every_strategy
def test_chosen_tokens_are_among_the_candidates(make: Make) -> None:
    _, strategy, observer, _ = observe(make)
    for step in observer.steps:
        chosen = step.tokens.view(-1, strategy.beam_size).tolist()
        beams = beam_indices(step, strategy.beam_size)
        for index, slot in enumerate(step.slots):
            if step.number > MAX_LENGTHS[slot]:
                continue  # the slot is finished, and its beams are ignored
            assert set(zip(beams[index], chosen[index], strict=True)) <= set(candidate_pairs(step, index))


def candidate_pairs(step: Step, index: int) -> list[tuple[int, int]]:
    """(beam, token) of each candidate."""
    columns = (step.candidates.beam_indices[index].tolist(), step.candidates.tokens[index].tolist())
    return list(zip(*columns, strict=True))


@every_strategy
@pytest.mark.parametrize("seed", range(5))
def test_candidate_logprobs_are_those_of_their_tokens(make: Make, seed: int) -> None:
    model, strategy, observer, _ = observe(make, seed)
    for step, before in zip(observer.steps, replay(observer, strategy.beam_size), strict=False):
        for index, slot in enumerate(step.slots):
            for beam, token, logprob in zip(*(each[index].tolist() for each in step.candidates), strict=True):
                tokens = (*before[slot][beam], token)
                if logprob == float("-inf") or EOS in tokens[:-1] or len(tokens) > MAX_LENGTHS[slot]:
                    continue
                assert logprob == pytest.approx(model.logprob(slot, tokens, ended=False))


@every_strategy
@pytest.mark.parametrize("seed", range(5))
def test_every_output_is_the_last_candidate_of_a_replayed_beam(make: Make, seed: int) -> None:
    _, strategy, observer, found = observe(make, seed)
    texts = replay(observer, strategy.beam_size)
    for slot, hypotheses in enumerate(found):
        for one in hypotheses:
            tokens = with_eos(one)
            step, before = observer.steps[len(tokens) - 1], texts[len(tokens) - 1][slot]
            pairs = candidate_pairs(step, step.slots.index(slot))
            assert tokens in [(*before[beam], token) for beam, token in pairs]


@pytest.mark.parametrize("name", ["greedy", "sampling"])
def test_greedy_and_sampling_report_the_most_likely_tokens(name: str) -> None:
    model, _, observer, found = observe(STRATEGIES[name])
    for step in observer.steps:
        for index, slot in enumerate(step.slots):
            tokens = with_eos(found[slot][0])
            if step.number > len(tokens):
                continue  # the slot is finished
            reported, logprobs = step.candidates.tokens[index].tolist(), step.candidates.logprobs[index].tolist()
            real = [token for token, logprob in zip(reported, logprobs, strict=True) if logprob > float("-inf")]
            context = (0, 1, *tokens)
            logits = model.logits[slot, context[step.number - 1], context[step.number]]
            assert logprobs == sorted(logprobs, reverse=True)
            assert len(real) == len(set(real))
            assert set(logits.topk(5).indices.tolist()) | {tokens[step.number - 1]} == set(real)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beam_size=st.integers(1, 4))
def test_replayed_beams_are_the_alive_hypotheses(seed: int, beam_size: int) -> None:
    class ComparingObserver(RecordingObserver):
        """Compares the replayed beams with the strategy's alive hypotheses."""

        def on_step(self, step: Step) -> None:
            super().on_step(step)
            alive = (strategy.alive.logprobs[0].tolist(), strategy.alive.tokens[0].tolist())
            for text, logprob, tokens in zip(replay(self, beam_size)[-1][0], *alive, strict=True):
                if logprob != float("-inf"):
                    assert text == tuple(tokens[: step.number])

    model, strategy, observer = TableModel(1, 5, seed), BeamSearch([6], EOS, beam_size), ComparingObserver()
    search(model, model.start(), start_tokens(1), strategy, observer)
    assert observer.steps


@every_strategy
def test_observer_does_not_change_the_result(make: Make) -> None:
    model, _, _, found = observe(make)
    assert search(model, model.start(), start_tokens(4), make(MAX_LENGTHS)) == found


SOURCE, LENGTHS = torch.tensor([[3, 4, 5, 6, 7, 8], [2, 2, 1, 1, 1, 1], [8, 7, 6, 5, 1, 1]]), torch.tensor([6, 2, 4])


def observe_translator(
    make: Make,
) -> tuple[EncoderDecoder, SearchStrategy, RecordingObserver, list[list[Hypothesis]]]:
    model, strategy, observer = make_translator(0), make([6, 2, 4]), RecordingObserver(attention=True)
    found = search(model, model.start(SOURCE, 6, LENGTHS), start_tokens(3), strategy, observer)
    return model, strategy, observer, found


@every_strategy
def test_attention_is_reported_in_the_order_of_the_layers(make: Make) -> None:
    model, _, observer, _ = observe_translator(make)
    blocks = [(block.self_attn, block.cross_attn) for block in model.decoder.layers]
    assert len(observer.weights) == len(observer.steps)
    for weights in observer.weights:
        assert [module for module, _ in weights] == [module for pair in blocks for module in pair]


@every_strategy
def test_attention_weights_have_their_shape_and_sum_to_1(make: Make) -> None:
    _, _, observer, _ = observe_translator(make)
    for step, weights in zip(observer.steps, observer.weights, strict=True):
        for module, tensor in weights:
            keys = step.number if isinstance(module, SelfAttention) else SOURCE.shape[1]
            assert tensor.shape == (step.input_tokens.numel(), 2, 1, keys)
            torch.testing.assert_close(tensor.sum(dim=-1), torch.ones_like(tensor[..., 0]))


@every_strategy
def test_attention_equals_that_of_a_full_forward_pass(make: Make) -> None:
    model, strategy, observer, _ = observe_translator(make)
    texts = replay(observer, strategy.beam_size)
    for number, (step, weights) in enumerate(zip(observer.steps, observer.weights, strict=True)):
        for index, slot in enumerate(step.slots):
            for beam, text in enumerate(texts[number][slot]):
                reference: list[tuple[MultiHeadAttention, torch.Tensor]] = []
                length = LENGTHS[slot]
                model(
                    SOURCE[slot : slot + 1, :length],
                    torch.tensor([[1, *text]]),
                    attention_hook=lambda module, tensor, reference=reference: reference.append((module, tensor)),
                )
                decoder = reference[len(model.encoder.layers) :]  # the encoder ran before the search
                for (module, tensor), (expected_module, expected) in zip(weights, decoder, strict=True):
                    assert module is expected_module
                    ours = tensor[index * strategy.beam_size + beam, :, 0]
                    if isinstance(module, CrossAttention):
                        assert not ours[:, length:].any()
                        ours = ours[:, :length]
                    torch.testing.assert_close(ours, expected[0, :, number].detach(), rtol=0, atol=1e-9)


@every_strategy
def test_observing_attention_does_not_change_the_result(make: Make) -> None:
    model, _, _, found = observe_translator(make)
    plain = search(model, model.start(SOURCE, 6, LENGTHS), start_tokens(3), make([6, 2, 4]))
    for ours, theirs in zip(found, plain, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-9)


def test_attention_is_reported_only_on_request() -> None:
    model, observer = make_translator(0), RecordingObserver()
    search(model, model.start(SOURCE, 6, LENGTHS), start_tokens(3), BeamSearch([6] * 3, EOS, 2), observer)
    assert not any(observer.weights)


def test_attention_of_every_ensemble_member_is_reported() -> None:
    models, observer = [make_translator(0), make_translator(1)], RecordingObserver(attention=True)
    states = EnsembleState(model.start(SOURCE, 6, LENGTHS) for model in models)
    search(Ensemble(models), states, start_tokens(3), BeamSearch([6] * 3, EOS, 2), observer)
    blocks = [block for model in models for block in model.decoder.layers]
    modules = {getattr(block, part) for block in blocks for part in ("self_attn", "cross_attn")}
    assert all({module for module, _ in weights} == modules for weights in observer.weights)


@settings(max_examples=20)
@given(data=st.data())
def test_beams_that_share_a_source_equal_beams_with_copies(data: st.DataObject) -> None:
    """`reorder_beams` equals `reorder` while groups of beams grow, are permuted and are dropped."""
    model, beam_size = make_translator(5), 3
    shared, separate = model.start(SOURCE, 6, LENGTHS), model.start(SOURCE, 6, LENGTHS)
    rows, sources = torch.arange(3).repeat_interleave(beam_size), None
    for _ in range(4):
        shared.reorder_beams(rows, sources)
        separate.reorder(rows)
        tokens = torch.tensor(data.draw(st.lists(st.integers(1, 8), min_size=len(rows), max_size=len(rows))))[:, None]
        ours, shared = model.step(tokens, shared)
        theirs, separate = model.step(tokens, separate)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        count = len(rows) // beam_size
        remaining = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
        beams = st.lists(st.integers(0, beam_size - 1), min_size=beam_size, max_size=beam_size)
        rows = torch.tensor([group * beam_size + beam for group in remaining for beam in data.draw(beams)])
        sources = None if len(remaining) == count else torch.tensor(remaining)


@every_strategy
@pytest.mark.parametrize("count", [1, 3])
def test_alternatives_are_the_most_likely_tokens(make: Make, count: int) -> None:
    model = TableModel(4, 6, 1)
    found = search(model, model.start(), start_tokens(4), make(MAX_LENGTHS, alternatives=count))
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            before, last = 0, 1
            for token, alternatives in zip(with_eos(one), one.alternatives, strict=True):
                logprobs = model.logits[row, before, last].log_softmax(dim=-1)
                expected = sorted(enumerate(logprobs.tolist()), key=lambda pair: -pair[1])[:count]
                assert [each for each, _ in alternatives] == [each for each, _ in expected]
                assert [each for _, each in alternatives] == pytest.approx([each for _, each in expected])
                before, last = last, token


@every_strategy
def test_token_logprobs_match_the_model(make: Make) -> None:
    model, _, _, found = observe(make)
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            tokens = with_eos(one)
            sums = [model.logprob(row, tokens[:length], ended=False) for length in range(len(tokens) + 1)]
            expected = [after - before for before, after in itertools.pairwise(sums)]
            assert one.token_logprobs == pytest.approx(expected)
            assert one.alternatives == ()


@pytest.mark.parametrize("strategy", [Greedy([4], EOS, alternatives=9), BeamSearch([4], EOS, 2, alternatives=9)])
def test_alternatives_are_limited_to_the_vocabulary(strategy: SearchStrategy) -> None:
    model = TableModel(1, 4, 1)
    for one in search(model, model.start(), start_tokens(1), strategy)[0]:
        assert all(sorted(token for token, _ in step) == [0, 1, 2, 3] for step in one.alternatives)
