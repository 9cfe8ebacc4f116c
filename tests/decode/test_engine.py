"""Requests that join and leave while others are under way get what they would get alone."""

import random
import threading
from dataclasses import replace
from typing import TypeVar

import pytest
import torch

from regard import UserError
from regard.attention import HeadsConfig
from regard.decode import DecodeConfig, Hypothesis, Wish, make_chooser, search
from regard.decode.engine import Engine, Request
from regard.model import (
    EncoderDecoder,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModel,
    LanguageModelConfig,
    StackConfig,
)
from regard.model.embedding import TokensConfig

END = 2
AnyModel = TypeVar("AnyModel", EncoderDecoder, LanguageModel)
GREEDY = DecodeConfig(beams=1)
BEAMS = DecodeConfig(beams=3)
SAMPLED = DecodeConfig(beams=1, sample=True, top_k=8, temperature=1.5)


def stack() -> StackConfig:
    return StackConfig(layers=2, attention=HeadsConfig(heads=2), feed_forward=FeedForwardConfig(hidden=16), dropout=0.0)


@pytest.fixture(scope="module")
def translator() -> EncoderDecoder:
    torch.manual_seed(4)
    tokens = TokensConfig(padding=0, start=1, end=END)
    config = EncoderDecoderConfig(
        vocabulary=23, width=8, encoder=stack(), decoder=stack(), tokens=tokens, output_bias=True
    )
    return lively(config.build())


@pytest.fixture(scope="module")
def writer() -> LanguageModel:
    torch.manual_seed(5)
    tokens = TokensConfig(start=1, end=END)
    config = LanguageModelConfig(vocabulary=23, width=8, decoder=stack(), tokens=tokens, output_bias=True)
    return lively(config.build())


def lively(model: AnyModel) -> AnyModel:
    """Outputs that differ, and end sooner or later."""
    with torch.no_grad():
        model.vocabulary.weight *= 2.5
        assert model.output_bias is not None
        model.output_bias[END] = 2.5
    return model.double().eval()


def alone(model: EncoderDecoder | LanguageModel, request: Request) -> list[Hypothesis]:
    """What the simple loop finds for one request by itself."""
    limit = min(request.limit, 300)
    state, start = model.begin([request.source], limit)
    chooser = make_chooser(
        request.config, [request.limit], END, wishes=[request.wish], alternatives=request.alternatives
    )
    return search(model, state, start, chooser)[0]


def mixed(count: int, seed: int) -> list[Request]:
    """Requests of many lengths, limits and ways to search."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        source = tuple(chance.randrange(3, 23) for _ in range(chance.choice([1, 2, 5, 9, 30])))
        config = chance.choice([GREEDY, BEAMS, SAMPLED, DecodeConfig(beams=4, groups=2)])
        wish = Wish(
            prefix=chance.choice([(), (), (7, 8)]),
            forbidden=chance.choice([(), (), ((9,), (5, 6))]),
            required=((11,),) if config is BEAMS and chance.random() < 0.2 else (),
            seed=number,
        )
        made.append(Request(source, chance.choice([4, 9, 20, 80]), config, wish, chance.choice([0, 0, 2])))
    return made


def same(found: list[Hypothesis], wanted: list[Hypothesis]) -> bool:
    return [one.tokens for one in found] == [one.tokens for one in wanted] and all(
        one.score == pytest.approx(other.score) and one.steps == pytest.approx(other.steps)
        for one, other in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("kind", ["translator", "writer"])
def test_every_request_gets_what_it_gets_alone(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    requests = mixed(50, seed=1)
    engine = Engine(model, END, rows=12)
    tickets = [engine.submit(one) for one in requests[:20]]
    for one in requests[20:]:  # the others come while the first are under way
        engine.work()
        tickets.append(engine.submit(one))
    engine.run()
    for ticket, one in zip(tickets, requests, strict=True):
        assert same(ticket.result(0), alone(model, one)), one
    assert 10 < sum(ticket.result(0)[0].ended for ticket in tickets) < 45


def test_rows_join_while_others_go_on(translator: EncoderDecoder) -> None:
    engine = Engine(translator, END, rows=8)
    endless = engine.submit(Request((5, 6, 7), 40, GREEDY, Wish(forbidden=((END,),))))
    for _ in range(10):
        engine.work()
    short = engine.submit(Request((5, 6, 7), 3, GREEDY, Wish(forbidden=((END,),))))
    for _ in range(3):
        engine.work()
    assert short.done
    assert not endless.done
    engine.run()
    assert len(endless.result(0)[0].tokens) == 40


def test_a_cancelled_request_leaves_at_once_and_the_others_do_not_notice(translator: EncoderDecoder) -> None:
    requests = mixed(20, seed=2)
    engine = Engine(translator, END, rows=16)
    tickets = [engine.submit(one) for one in requests]
    engine.work()
    tickets[3].cancel()
    tickets[19].cancel()
    engine.run()
    for number, (ticket, one) in enumerate(zip(tickets, requests, strict=True)):
        if number in (3, 19):
            assert ticket.done
            assert ticket.result(0) == [] or same(ticket.result(0), alone(translator, one))
        else:
            assert same(ticket.result(0), alone(translator, one))


def test_a_bad_request_is_told_so_and_spoils_no_other(translator: EncoderDecoder) -> None:
    engine = Engine(translator, END, rows=8)
    good = engine.submit(Request((5, 6), 10, GREEDY))
    outside = engine.submit(Request((5, 999), 10, GREEDY))
    impossible = engine.submit(Request((5, 6), 3, BEAMS, Wish(required=((7, 8, 9),))))
    wide = engine.submit(Request((5, 6), 3, DecodeConfig(beams=50)))
    engine.run()
    assert same(good.result(0), alone(translator, good.request))
    with pytest.raises(UserError, match="id 999 is outside the vocabulary"):
        outside.result(0)
    with pytest.raises(UserError, match="required words have 3 tokens"):
        impossible.result(0)
    with pytest.raises(UserError, match="50 beams were asked for and this engine has 8 rows"):
        wide.result(0)


def test_an_absurd_limit_costs_no_memory_until_it_is_used(translator: EncoderDecoder) -> None:
    engine = Engine(translator, END, rows=8, longest=10**9)
    ends = next(one for one in mixed(200, 7) if one.config == SAMPLED and alone(translator, one)[0].ended)
    ticket = engine.submit(replace(ends, limit=10**12))
    endless = engine.submit(Request((5, 6, 7), 10**12, GREEDY, Wish(forbidden=((END,),))))
    for _ in range(300):
        engine.work()
    assert same(ticket.result(0), alone(translator, ends))
    assert not endless.done
    assert engine.held() <= 2 * 520 * translator.bytes_a_position()
    endless.cancel()
    engine.run()
    assert endless.done


def test_no_output_gets_longer_than_the_engine_allows(translator: EncoderDecoder) -> None:
    engine = Engine(translator, END, rows=8, longest=30)
    found = engine.submit(Request((5, 6, 7), 10**12, BEAMS, Wish(forbidden=((END,),))))
    engine.run()
    assert {len(one.tokens) for one in found.result(0)} == {30}


def test_memory_stays_within_its_bound_and_what_outgrows_it_is_cut(translator: EncoderDecoder) -> None:
    bound = 800 * translator.bytes_a_position()
    engine = Engine(translator, END, rows=64, memory=bound)
    requests = [Request((5, 6, number), 10**6, GREEDY, Wish(forbidden=((END,),))) for number in range(3, 23)]
    tickets = [engine.submit(one) for one in requests]
    while engine.work():
        assert engine.held() <= bound
    lengths = [len(ticket.result(0)[0].tokens) for ticket in tickets]
    assert min(lengths) >= 64
    assert not any(ticket.result(0)[0].ended for ticket in tickets)


def test_whoever_listens_hears_every_token_and_can_say_enough(translator: EncoderDecoder) -> None:
    heard: list[tuple[int, ...]] = []

    def listen(tokens: tuple[int, ...]) -> bool:
        heard.append(tokens)
        return len(tokens) == 5

    engine = Engine(translator, END, rows=8)
    request = Request((5, 6, 7), 50, GREEDY, Wish(forbidden=((END,),)))
    ticket = engine.submit(request, listen)
    engine.run()
    assert [len(tokens) for tokens in heard] == [1, 2, 3, 4, 5]
    assert ticket.result(0)[0].tokens == heard[-1] == alone(translator, request)[0].tokens[:5]


def test_requests_may_come_from_other_threads(translator: EncoderDecoder) -> None:
    engine = Engine(translator, END, rows=8)
    requests = mixed(12, seed=3)
    found: dict[int, list[Hypothesis]] = {}

    def ask(number: int) -> None:
        found[number] = engine.submit(requests[number]).result(60)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        engine.work()
    for number, one in enumerate(requests):
        assert same(found[number], alone(translator, one))


def test_results_of_an_unfinished_request_are_not_ready() -> None:
    from regard.decode.engine import Ticket

    with pytest.raises(TimeoutError):
        Ticket(Request((1,), 1, GREEDY)).result(0)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(UserError, match="The limit is 0 tokens"):
        Request((1,), 0, GREEDY)
