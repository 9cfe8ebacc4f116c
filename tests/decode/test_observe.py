"""An observer sees all that a search does and changes nothing, and a found output knows its own steps."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.heads import CrossAttention, Heads, SelfAttention
from regard.decode import Beams, Chooser, Diverse, Ensemble, Recording, Required, Sampled, Single, search
from regard.model import EncoderDecoder
from tests.decode.test_ensemble import translator
from tests.decode.test_search import END, Counting, Table, start

LIMITS = [6, 1, 3, 6]
WAYS = {
    "greedy": lambda limits: Single(limits, END),
    "sampled": lambda limits: Sampled(limits, END, seeds=list(limits), temperature=2.0),
    "beams": lambda limits: Beams(limits, END, 3),
    "diverse": lambda limits: Diverse(limits, END, 4, 2, 1.0),
    "required": lambda limits: Required(limits, END, 3, [((2,),) if limit > 2 else () for limit in limits]),
}
every_way = pytest.mark.parametrize("make", WAYS.values(), ids=WAYS.keys())


def replay(seen: Recording, width: int) -> list[dict[int, list[tuple[int, ...]]]]:
    """What each row of each output had written before each step, and at last behind the last: parents and tokens
    followed through the recorded steps.
    """
    texts = {slot: [()] * width for slot in seen.steps[0].slots}
    found = [texts]
    for step in seen.steps:
        tokens = step.tokens.view(len(step.slots), width).tolist()
        rows = torch.arange(step.tokens.numel()) if step.rows is None else step.rows
        places = rows.view(len(step.slots), width) - width * torch.arange(len(step.slots))[:, None]
        texts = {
            slot: [(*texts[slot][place], token) for place, token in zip(places[at].tolist(), tokens[at], strict=True)]
            for at, slot in enumerate(step.slots)
        }
        found.append(texts)
    return found


def watched(make, seed: int = 0) -> tuple[Table, Chooser, Recording, list]:
    table, chooser, seen = Table(4, 6, seed), make(LIMITS), Recording()
    return table, chooser, seen, search(table, table.start(), start(4), chooser, seen)


@every_way
def test_every_step_is_seen(make) -> None:
    table, chooser, seen = Counting(4, 6, 0), make(LIMITS), Recording()
    search(table, table.start(), start(4), chooser, seen)
    assert [step.number for step in seen.steps] == list(range(1, len(table.asked) + 1))
    assert [step.read.numel() for step in seen.steps] == table.asked
    assert [len(step.slots) * chooser.width for step in seen.steps] == table.asked


@every_way
def test_each_step_reads_what_the_one_before_it_wrote(make) -> None:
    _, chooser, seen, _ = watched(make)
    for before, step in itertools.pairwise(seen.steps):
        wrote = before.tokens.view(-1, chooser.width)
        kept = [before.slots.index(slot) for slot in step.slots]
        assert step.read.tolist() == wrote[kept].flatten().tolist()


@every_way
def test_rows_that_leave_are_no_longer_seen(make) -> None:
    table, seen = Table(4, 6, 0), Recording()
    table.scores[..., END] = -30  # nothing ends by itself
    limits = [5, 1, 1, 3]
    chooser = Beams(limits, END, 3) if isinstance(make(limits), Required) else make(limits)
    search(table, table.start(), start(4), chooser, seen)
    assert [step.slots for step in seen.steps] == [(0, 1, 2, 3), (0, 3), (0, 3), (0,), (0,)]


@every_way
def test_what_is_chosen_was_among_the_candidates(make) -> None:
    _, chooser, seen, _ = watched(make)
    for step in seen.steps:
        chosen = step.tokens.view(-1, chooser.width).tolist()
        rows = torch.arange(step.tokens.numel()) if step.rows is None else step.rows
        places = (rows.view(-1, chooser.width) % chooser.width).tolist()
        for at, slot in enumerate(step.slots):
            if step.number > LIMITS[slot]:
                continue  # it is over, and nothing in it counts
            candidates = set(zip(step.candidates.places[at].tolist(), step.candidates.tokens[at].tolist(), strict=True))
            assert set(zip(places[at], chosen[at], strict=True)) <= candidates


@every_way
@pytest.mark.parametrize("seed", range(5))
def test_the_total_of_every_candidate_is_that_of_the_text_it_would_make(make, seed: int) -> None:
    table, chooser, seen, _ = watched(make, seed)
    texts = replay(seen, chooser.width)
    for step, before in zip(seen.steps, texts, strict=False):
        for at, slot in enumerate(step.slots):
            for place, token, total in zip(*(each[at].tolist() for each in step.candidates), strict=True):
                text = (*before[slot][place], token)
                if total == float("-inf") or END in text[:-1] or len(text) > LIMITS[slot]:
                    continue
                assert total == pytest.approx(table.log_probability(slot, text, ended=False))


@every_way
@pytest.mark.parametrize("seed", range(5))
def test_every_output_can_be_followed_through_the_steps_to_its_last(make, seed: int) -> None:
    _, chooser, seen, found = watched(make, seed)
    texts = replay(seen, chooser.width)
    for slot, hypotheses in enumerate(found):
        for one in hypotheses:
            written = (*one.tokens, *([END] if one.ended else []))
            step, before = seen.steps[len(written) - 1], texts[len(written) - 1][slot]
            at = step.slots.index(slot)
            pairs = zip(step.candidates.places[at].tolist(), step.candidates.tokens[at].tolist(), strict=True)
            assert written in [(*before[place], token) for place, token in pairs]


@pytest.mark.parametrize("way", ["greedy", "sampled"])
def test_where_one_token_is_taken_the_likeliest_others_are_candidates_too(way: str) -> None:
    table, _, seen, found = watched(WAYS[way])
    for step in seen.steps:
        for at, slot in enumerate(step.slots):
            written = (*found[slot][0].tokens, *([END] if found[slot][0].ended else []))
            if step.number > len(written):
                continue  # it is over
            tokens, totals = step.candidates.tokens[at].tolist(), step.candidates.totals[at].tolist()
            there = [token for token, total in zip(tokens, totals, strict=True) if total > float("-inf")]
            text = (0, 1, *written)
            own = table.scores[slot, text[step.number - 1], text[step.number]]
            assert totals == sorted(totals, reverse=True)
            assert len(there) == len(set(there))
            assert set(own.topk(5).indices.tolist()) | {written[step.number - 1]} == set(there)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beams=st.integers(1, 4))
def test_parents_and_tokens_rebuild_every_hypothesis_that_is_alive(seed: int, beams: int) -> None:
    class Comparing(Recording):
        """Looks, at each step, at what the chooser itself holds."""

        def see(self, step) -> None:
            super().see(step)
            texts = replay(self, beams)[-1][0]
            for text, total, tokens in zip(
                texts, chooser.alive.totals[0].tolist(), chooser.alive.tokens[0].tolist(), strict=True
            ):
                if total != float("-inf"):
                    assert text == tuple(tokens[: step.number])

    table, chooser, seen = Table(1, 5, seed), Beams([6], END, beams), Comparing()
    search(table, table.start(), start(1), chooser, seen)
    assert seen.steps


@every_way
def test_what_is_found_is_the_same_with_an_observer_and_without(make) -> None:
    table, _, _, found = watched(make)
    assert search(table, table.start(), start(4), make(LIMITS)) == found


SOURCE, LENGTHS = torch.tensor([[3, 4, 5, 6, 7, 8], [2, 2, 1, 1, 1, 1], [8, 7, 6, 5, 1, 1]]), torch.tensor([6, 2, 4])


def watched_translator(make, seed: int = 0) -> tuple[EncoderDecoder, Chooser, Recording, list]:
    model, chooser, seen = translator(seed), make([6, 2, 4]), Recording(attention=True)
    return model, chooser, seen, search(model, model.start(SOURCE, 6, LENGTHS), start(3), chooser, seen)


@every_way
def test_every_layer_shows_its_attention_in_the_order_it_works(make) -> None:
    model, _, seen, _ = watched_translator(make)
    blocks = [(block["attention"].function, block["cross"].function) for block in model.decoder.blocks]
    assert len(seen.weights) == len(seen.steps)
    for weights in seen.weights:
        assert [module for module, _ in weights] == [function for pair in blocks for function in pair]


@every_way
def test_attention_has_a_row_a_head_and_a_key_each(make) -> None:
    _, _, seen, _ = watched_translator(make)
    for step, weights in zip(seen.steps, seen.weights, strict=True):
        for module, tensor in weights:
            keys = step.number if isinstance(module, SelfAttention) else SOURCE.shape[1]
            assert tensor.shape == (step.read.numel(), 2, 1, keys)


@every_way
def test_attention_weights_sum_to_1(make) -> None:
    _, _, seen, _ = watched_translator(make)
    for weights in seen.weights:
        for _, tensor in weights:
            torch.testing.assert_close(tensor.sum(dim=-1), torch.ones_like(tensor[..., 0]))


@every_way
def test_attention_is_that_of_a_pass_over_the_text_as_a_whole(make) -> None:
    model, chooser, seen, _ = watched_translator(make)
    texts = replay(seen, chooser.width)
    for number, (step, weights) in enumerate(zip(seen.steps, seen.weights, strict=True)):
        for at, slot in enumerate(step.slots):
            for place, text in enumerate(texts[number][slot]):
                whole: list[tuple[Heads, torch.Tensor]] = []
                length = LENGTHS[slot]
                target = torch.tensor([[1, *text]])
                model(
                    SOURCE[slot : slot + 1, :length],
                    target,
                    watch=lambda module, tensor, whole=whole: whole.append((module, tensor)),
                )
                decoder = whole[len(model.encoder.blocks) :]  # the encoder was read before the search
                for (module, tensor), (same, full) in zip(weights, decoder, strict=True):
                    assert module is same
                    ours = tensor[at * chooser.width + place, :, 0]
                    if isinstance(module, CrossAttention):
                        assert not ours[:, length:].any()
                        ours = ours[:, :length]
                    torch.testing.assert_close(ours, full[0, :, number].detach(), rtol=0, atol=1e-9)


@every_way
def test_what_a_translator_writes_is_the_same_when_its_attention_is_watched(make) -> None:
    model, _, _, found = watched_translator(make)
    plain = search(model, model.start(SOURCE, 6, LENGTHS), start(3), make([6, 2, 4]))
    for ours, theirs in zip(found, plain, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-9)


def test_without_being_asked_no_attention_is_shown() -> None:
    model, seen = translator(0), Recording()
    search(model, model.start(SOURCE, 6, LENGTHS), start(3), Beams([6] * 3, END, 2), seen)
    assert not any(seen.weights)


def test_the_attention_of_every_member_of_an_ensemble_is_seen() -> None:
    models, seen = [translator(0), translator(1)], Recording(attention=True)
    states = [model.start(SOURCE, 6, LENGTHS) for model in models]
    search(Ensemble(models), states, start(3), Beams([6] * 3, END, 2), seen)
    blocks = [block for model in models for block in model.decoder.blocks]
    functions = {block[part].function for block in blocks for part in ("attention", "cross")}
    assert all({module for module, _ in weights} == functions for weights in seen.weights)


@settings(max_examples=20)
@given(data=st.data())
def test_rows_that_share_a_source_score_as_rows_with_one_each(data: st.DataObject) -> None:
    """`regroup` beside `reorder`, through groups that grow, change places within themselves, and leave."""
    model, width = translator(5), 3
    shared, apart = model.start(SOURCE, 6, LENGTHS), model.start(SOURCE, 6, LENGTHS)
    groups = torch.arange(3)
    rows, sources = groups.repeat_interleave(width), None
    for _ in range(4):
        shared, apart = model.regroup(shared, rows, sources), model.reorder(apart, rows)
        tokens = torch.tensor(data.draw(st.lists(st.integers(1, 8), min_size=len(rows), max_size=len(rows))))[:, None]
        ours, shared = model.step(tokens, shared)
        theirs, apart = model.step(tokens, apart)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        count = len(rows) // width
        kept = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
        places = st.lists(st.integers(0, width - 1), min_size=width, max_size=width)
        rows = torch.tensor([group * width + place for group in kept for place in data.draw(places)])
        sources = None if len(kept) == count else torch.tensor(kept)


@pytest.mark.parametrize("way", ["greedy", "sampled", "beams", "diverse", "required"])
@pytest.mark.parametrize("count", [1, 3])
def test_alternatives_are_the_likeliest_tokens_of_every_step(way: str, count: int) -> None:
    table, limits = Table(4, 6, 1), [6, 1, 3, 6]
    makers = {
        "greedy": lambda: Single(limits, END, alternatives=count),
        "sampled": lambda: Sampled(limits, END, seeds=[1, 2, 3, 4], temperature=2.0, alternatives=count),
        "beams": lambda: Beams(limits, END, 3, alternatives=count),
        "diverse": lambda: Diverse(limits, END, 4, 2, 1.0, alternatives=count),
        "required": lambda: Required(limits, END, 3, [((2,),), (), (), ((4,),)], alternatives=count),
    }
    for row, hypotheses in enumerate(search(table, table.start(), start(4), makers[way]())):
        for one in hypotheses:
            before, last = 0, 1
            written = [*one.tokens, *([END] if one.ended else [])]
            assert len(one.alternatives) == len(written)
            for token, alternatives in zip(written, one.alternatives, strict=True):
                own = table.scores[row, before, last].log_softmax(dim=-1)
                wanted = sorted(enumerate(own.tolist()), key=lambda pair: -pair[1])[:count]
                assert [each for each, _ in alternatives] == [each for each, _ in wanted]
                assert [gain for _, gain in alternatives] == pytest.approx([gain for _, gain in wanted])
                before, last = last, token


@every_way
def test_the_steps_of_an_output_are_the_models_own_log_probabilities(make) -> None:
    table, _, _, found = watched(make)
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            written = (*one.tokens, *([END] if one.ended else []))
            totals = [table.log_probability(row, written[:at], ended=False) for at in range(len(written) + 1)]
            gains = [after - before for before, after in itertools.pairwise(totals)]
            assert one.steps == pytest.approx(gains)


@every_way
def test_no_alternatives_are_kept_where_none_are_asked_for(make) -> None:
    _, _, _, found = watched(make)
    assert all(one.alternatives == () for hypotheses in found for one in hypotheses)


@pytest.mark.parametrize("chooser", [Single([4], END, alternatives=9), Beams([4], END, 2, alternatives=9)])
def test_more_alternatives_than_tokens_are_all_of_them_and_no_more(chooser: Chooser) -> None:
    table = Table(1, 4, 1)
    for one in search(table, table.start(), start(1), chooser)[0]:
        assert all(sorted(token for token, _ in step) == [0, 1, 2, 3] for step in one.alternatives)
