"""Recorded turns find what plain search finds, and one recording serves many searches."""

import pytest

pytest.importorskip("triton")

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from regard.attention import HeadsConfig
from regard.decode import Beams, DecodeConfig, Engine, Request, Wish, search_all, search_batch
from regard.decode.replay import Recorder, fitting_rows, recorder_of
from regard.decode.rules import Shortest
from regard.decode.search import Hypothesis
from regard.decode.single import Single
from regard.fast.swift_gpu import SwiftGpu
from regard.model import (
    EncoderDecoder,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    StackConfig,
    TokensConfig,
)

SIZE, END = 60, 2


@contextmanager
def interpreted() -> Iterator[None]:
    """Let Triton's kernels be taken on a CPU."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("regard.fast.triton_switch.INTERPRETED", True)
        yield


def model() -> EncoderDecoder:
    torch.manual_seed(5)
    kind = StackConfig(layers=1, attention=HeadsConfig(heads=2), feed_forward=FeedForwardConfig(hidden=16), dropout=0.0)
    tokens = TokensConfig(padding=0, start=1, end=END)
    config = EncoderDecoderConfig(
        vocabulary=SIZE, width=16, encoder=kind, decoder=kind, tokens=tokens, output_bias=True
    )
    made = config.build().eval()
    with torch.no_grad():
        made.vocabulary.weight.mul_(5)
        made.output_bias[END] += 4
    return made


class Kernels:
    """What the kernels of a GPU compute, in plain PyTorch: the interpreter is right, and slow."""

    @staticmethod
    def embed(tokens: Any, lengths: Any, table: Any, codes: Any, factor: float, norm: Any, x: Any) -> Any:
        x.copy_(table[tokens] * factor + codes[lengths.clamp(max=len(codes) - 1)])
        return Kernels.normalised(x, norm) if norm.before else x.clone()

    @staticmethod
    def normalised(x: Any, norm: Any) -> Any:
        return torch.nn.functional.layer_norm(x, x.shape[1:], norm.weight, norm.bias, norm.epsilon)

    @staticmethod
    def join(x: Any, change: Any, norm: Any, *, before: bool) -> Any:
        x += change
        return Kernels.normalised(x, norm)

    @staticmethod
    def attend_past(made: Any, keys: Any, values: Any, origin: Any, lengths: Any, heads: int, rotation: None) -> Any:
        capacity, rows = keys.shape[:2]
        query, key, value = made.chunk(3, dim=1)
        every = torch.arange(rows)
        here = lengths.clamp(max=capacity - 1)
        keys[here, every], values[here, every], origin[here, every] = key, value, every.int()
        places = torch.arange(capacity)[:, None]
        seen = (torch.arange(capacity) <= here[:, None])[:, None]
        return Kernels.mixed(
            query,
            keys[places, origin.long()].transpose(0, 1),
            values[places, origin.long()].transpose(0, 1),
            seen,
            heads,
        )

    @staticmethod
    def attend_memory(query: Any, keys: Any, values: Any, lengths: Any, heads: int) -> Any:
        group = query.shape[0] // keys.shape[0]
        seen = (torch.arange(keys.shape[1]) < lengths[:, None])[:, None].repeat_interleave(group, dim=0)
        return Kernels.mixed(query, *(each.repeat_interleave(group, dim=0) for each in (keys, values)), seen, heads)

    @staticmethod
    def mixed(query: Any, key: Any, value: Any, seen: Any, heads: int) -> Any:
        query, key, value = (each.unflatten(-1, (heads, -1)) for each in (query, key, value))
        scores = torch.einsum("rhd,rjhd->rhj", query, key) / query.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        return torch.einsum("rhj,rjhd->rhd", weights, value).flatten(1)


def fast_form(plain: Any) -> SwiftGpu[Any]:
    with interpreted():
        fast = SwiftGpu(plain)
    fast.kernels = Kernels  # type: ignore[assignment]
    return fast


def sources(count: int, seed: int = 1) -> list[tuple[int, ...]]:
    chance = random.Random(seed)
    return [tuple(chance.randrange(3, SIZE) for _ in range(chance.randint(1, 9))) for _ in range(count)]


def assert_same(found: list[list[Hypothesis]], wanted: list[list[Hypothesis]]) -> None:
    for mine, others in zip(found, wanted, strict=True):
        assert [one.tokens for one in mine] == [one.tokens for one in others]
        assert [one.ended for one in mine] == [one.ended for one in others]
        for one, other in zip(mine, others, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.steps == pytest.approx(other.steps, abs=1e-4)
            assert [[token for token, _ in step] for step in one.alternatives] == [
                [token for token, _ in step] for step in other.alternatives
            ]


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"config": DecodeConfig(beams=1)},
    "beams": {"config": DecodeConfig(beams=3)},
    "plain sums": {"config": DecodeConfig(beams=2, penalty="none")},
    "drawn": {"config": DecodeConfig(beams=1, sample=True, temperature=0.9, top_k=20, seed=4)},
    "less repetition": {"config": DecodeConfig(beams=1, sample=True, repetition=1.3, seed=4)},
    "alternatives": {"config": DecodeConfig(beams=2), "alternatives": 3},
    "a beginning": {"config": DecodeConfig(beams=2), "wish": Wish(prefix=(7, 8))},
    "forbidden words": {"config": DecodeConfig(beams=2), "wish": Wish(forbidden=((9,), (4, 5)))},
    "groups": {"config": DecodeConfig(beams=4, groups=2)},
    "required words": {"config": DecodeConfig(beams=3), "wish": Wish(required=((11,),))},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_way_of_searching_finds_the_same(way: dict[str, Any]) -> None:
    plain = model()
    fast = fast_form(plain)
    requests = [Request(source, 3 + number % 9, **way) for number, source in enumerate(sources(7))]
    assert_same(search_batch(fast, requests, END), search_batch(plain, requests, END))


@pytest.mark.parametrize("beams", [1, 3])
def test_one_recording_serves_the_next_search_of_its_shape(beams: int) -> None:
    plain = model()
    fast = fast_form(plain)
    config = DecodeConfig(beams=beams)
    made = []
    for seed in range(4):
        requests = [Request(source, 9 + seed, config) for source in sources(5, seed)]
        assert_same(search_batch(fast, requests, END), search_batch(plain, requests, END))
        recorder = recorder_of(fast, Single([1], END))
        assert recorder is not None
        made.append(list(recorder._kept.values()))
    assert len(made[0]) == 1
    assert len({id(turns) for kept in made for turns in kept}) == len(made[-1]) < 4


@pytest.mark.parametrize("beams", [1, 2])
def test_long_outputs_get_more_room_on_the_way(beams: int) -> None:
    plain = model()
    fast = fast_form(plain)
    for seed in range(2):
        requests = [Request(source, 150, DecodeConfig(beams=beams)) for source in sources(2, seed)]
        found = search_batch(fast, requests, -1)
        assert len(found[0][0].tokens) == 150
        assert_same(found, search_batch(plain, requests, -1))


@pytest.mark.parametrize("beams", [2, 5])
def test_kernels_find_what_plain_search_finds(beams: int) -> None:
    plain = model()
    requests = [
        Request(source, limit, DecodeConfig(beams=beams)) for source, limit in zip(sources(2), (6, 9), strict=True)
    ]
    with interpreted():
        found = search_batch(SwiftGpu(plain), requests, END)
    assert_same(found, search_batch(plain, requests, END))


def test_one_recording_of_kernels_serves_searches_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.decode.beam.ROOM", 4)
    plain = model()
    fast = fast_form(plain)
    for seed in range(2):
        limits = zip(sources(2, seed), (11, 3), strict=True)
        requests = [Request(source, limit, DecodeConfig(beams=2)) for source, limit in limits]
        with interpreted():
            found = search_batch(fast, requests, -1)
        assert len(found[0][0].tokens) == 11
        assert_same(found, search_batch(plain, requests, -1))


def test_kernels_serve_requests_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.decode.beam.ROOM", 4)
    plain = model()
    fast = fast_form(plain)
    chance = random.Random(2)
    requests = [Request(source, chance.randint(1, 10), DecodeConfig(beams=2)) for source in sources(7)]
    engine = Engine(fast, END, rows=6)
    tickets = [engine.submit(request) for request in requests]
    with interpreted():
        engine.run()
    wanted = search_all(plain, requests, END, batch_tokens=100)
    assert_same([ticket.result(0) for ticket in tickets], wanted)


def test_kernels_leave_next_tokens_and_what_is_settled_in_place() -> None:
    plain = model()
    fast, recorder = fast_form(plain), Recorder()
    state, token = fast.begin(sources(2), 8)
    state = fast.regroup(state, torch.arange(2).repeat_interleave(2), None)
    turns = recorder.lend(fast, state, Beams([8, 8], END, 2), token.repeat_interleave(2))
    with interpreted():
        turns.turn()
        assert isinstance(turns.chooser, Beams)
        before = turns.token, turns.settled
        turns.turn()
    assert turns.token.data_ptr() == before[0].data_ptr() == turns.chooser.chosen.data_ptr()
    assert turns.settled is before[1] is turns.chooser.over


def test_recordings_are_few_and_the_oldest_goes() -> None:
    plain = model()
    fast, recorder = fast_form(plain), Recorder(most=2)
    for slots in (1, 2, 3):
        state, token = fast.begin(sources(slots), 8)
        recorder.take_back(recorder.lend(fast, state, Single([8] * slots, END), token))
    assert [turns.chooser.slots for turns in recorder._kept.values()] == [2, 3]


def test_rows_come_in_few_numbers_not_much_larger() -> None:
    numbers = {fitting_rows(count) for count in range(1, 257)}
    assert len(numbers) <= 28
    assert all(count <= fitting_rows(count) <= max(count + 1, 1.34 * count) for count in range(1, 2000))


def test_a_lower_bound_for_lengths_can_be_recorded() -> None:
    chooser = Single([9, 9], END, rules=[Shortest([3, 4], END)])
    assert chooser.recorded_as() != Single([9, 9], END).recorded_as()
    assert len(chooser.held()) == len(Single([9, 9], END).held()) + 1


def test_a_language_model_writes_on() -> None:
    torch.manual_seed(2)
    kind = StackConfig(layers=2, attention=HeadsConfig(heads=1), feed_forward=FeedForwardConfig(hidden=16), dropout=0.0)
    config = LanguageModelConfig(vocabulary=SIZE, width=16, decoder=kind, tokens=TokensConfig(start=1, end=END))
    plain = config.build().eval()
    fast = fast_form(plain)
    requests = [Request(source, 12, DecodeConfig(beams=1)) for source in sources(4)]
    found = search_all(fast, requests, END, batch_tokens=30)
    assert_same(found, search_all(plain, requests, END, batch_tokens=30))


@pytest.mark.parametrize("beams", [1, 3])
def test_requests_that_come_and_go_get_the_same_results(beams: int) -> None:
    plain = model()
    fast = fast_form(plain)
    chance = random.Random(3)
    requests = [Request(source, chance.randint(1, 90), DecodeConfig(beams=beams)) for source in sources(17)]
    engine = Engine(fast, END, rows=5 * beams)
    tickets = [engine.submit(request) for request in requests]
    engine.run()
    wanted = search_all(plain, requests, END, batch_tokens=100)
    assert_same([ticket.result(0) for ticket in tickets], wanted)


def test_lanes_that_share_recordings_do_not_disturb_each_other() -> None:
    plain = model()
    fast = fast_form(plain)
    chance = random.Random(8)
    ways = [DecodeConfig(beams=1), DecodeConfig(beams=2), DecodeConfig(beams=1, sample=True, top_k=9)]
    requests = [
        Request(source, chance.choice([1, 5, 30, 100]), chance.choice(ways), Wish(seed=number))
        for number, source in enumerate(sources(60))
    ]
    first, second = (Engine(fast, END, rows=12) for _ in range(2))
    tickets, waiting = [], list(requests)
    while waiting or first.busy or second.busy:
        coming = [waiting.pop(0) for _ in range(min(chance.randint(0, 4), len(waiting)))]
        tickets += [chance.choice([first, second]).submit(request) for request in coming]
        if chance.random() < 0.2 and tickets:
            chance.choice(tickets).cancel()
        first.work()
        if chance.random() < 0.1:
            search_batch(fast, requests[:3], END)  # of the same shapes, in between
        second.work()
    wanted = search_all(plain, requests, END, batch_tokens=100)
    done = [(ticket.result(0), best) for ticket, best in zip(tickets, wanted, strict=True) if not ticket.cancelled]
    assert len(done) > 30
    assert_same([mine for mine, _ in done], [others for _, others in done])
