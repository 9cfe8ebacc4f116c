"""Continuous batching: requests that join and leave a running batch are decoded as they would be alone."""

import random
import threading
from dataclasses import replace
from typing import TypeVar

import pytest
import torch

from regard import UserError
from regard.decode import Constraints, DecodeConfig, DecodeFuture, Engine, Hypothesis, Request, make_strategy, search
from regard.model import EncoderDecoder, EncoderDecoderConfig, LanguageModel, LanguageModelConfig
from regard.model.embedding import SpecialTokensConfig
from tests.decode.toy_models import small_stack

EOS = 2
AnyModel = TypeVar("AnyModel", EncoderDecoder, LanguageModel)
GREEDY = DecodeConfig(beam_size=1)
BEAM = DecodeConfig(beam_size=3)
SAMPLING = DecodeConfig(beam_size=1, sample=True, top_k=8, temperature=1.5)
ENDLESS = Constraints(forbidden=((EOS,),))


@pytest.fixture(scope="module")
def translator() -> EncoderDecoder:
    torch.manual_seed(4)
    tokens = SpecialTokensConfig(pad=0, bos=1, eos=EOS)
    config = EncoderDecoderConfig(
        vocab_size=23, width=8, encoder=small_stack(), decoder=small_stack(), special_tokens=tokens, output_bias=True
    )
    return diversify(config.build())


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    torch.manual_seed(5)
    tokens = SpecialTokensConfig(bos=1, eos=EOS)
    config = LanguageModelConfig(vocab_size=23, width=8, decoder=small_stack(), special_tokens=tokens, output_bias=True)
    return diversify(config.build())


def diversify(model: AnyModel) -> AnyModel:
    """Change the weights so that outputs differ and most of them end."""
    with torch.no_grad():
        model.embed_tokens.weight *= 2.5
        assert model.lm_head_bias is not None
        model.lm_head_bias[EOS] = 2.5
    return model.double().eval()


def decode_alone(model: EncoderDecoder | LanguageModel, request: Request) -> list[Hypothesis]:
    """The result of plain search for a single request."""
    state, start_tokens = model.prefill([request.source], min(request.max_length, 300))
    strategy = make_strategy(
        request.config,
        [request.max_length],
        EOS,
        constraints=[request.constraints],
        alternatives=request.alternatives,
    )
    return search(model, state, start_tokens, strategy)[0]


def mixed_requests(count: int, seed: int) -> list[Request]:
    """Requests of many lengths and settings."""
    rng = random.Random(seed)
    requests = []
    for number in range(count):
        source = tuple(rng.randrange(3, 23) for _ in range(rng.choice([1, 2, 5, 9, 30])))
        config = rng.choice([GREEDY, BEAM, SAMPLING, DecodeConfig(beam_size=4, beam_groups=2)])
        constraints = Constraints(
            prefix=rng.choice([(), (), (7, 8)]),
            forbidden=rng.choice([(), (), ((9,), (5, 6))]),
            required=((11,),) if config is BEAM and rng.random() < 0.2 else (),
            seed=number,
        )
        requests.append(Request(source, rng.choice([4, 9, 20, 80]), config, constraints, rng.choice([0, 0, 2])))
    return requests


def equal(found: list[Hypothesis], expected: list[Hypothesis]) -> bool:
    return [one.tokens for one in found] == [one.tokens for one in expected] and all(
        one.score == pytest.approx(other.score) and one.token_logprobs == pytest.approx(other.token_logprobs)
        for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("kind", ["translator", "language_model"])
def test_engine_equals_decoding_alone(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    requests = mixed_requests(50, seed=1)
    engine = Engine(model, EOS, max_rows=12)
    futures = [engine.submit(one) for one in requests[:20]]
    for one in requests[20:]:  # submitted while the first are being decoded
        engine.step()
        futures.append(engine.submit(one))
    engine.run()
    for future, one in zip(futures, requests, strict=True):
        assert equal(future.result(0), decode_alone(model, one)), one
    assert 10 < sum(future.result(0)[0].ended for future in futures) < 45


def test_requests_start_while_others_are_decoded(translator: EncoderDecoder) -> None:
    engine = Engine(translator, EOS, max_rows=8)
    long = engine.submit(Request((5, 6, 7), 40, GREEDY, ENDLESS))
    for _ in range(10):
        engine.step()
    short = engine.submit(Request((5, 6, 7), 3, GREEDY, ENDLESS))
    for _ in range(3):
        engine.step()
    assert short.done
    assert not long.done
    engine.run()
    assert len(long.result(0)[0].tokens) == 40


def test_canceled_requests_do_not_affect_others(translator: EncoderDecoder) -> None:
    requests = mixed_requests(20, seed=2)
    engine = Engine(translator, EOS, max_rows=16)
    futures = [engine.submit(one) for one in requests]
    engine.step()
    futures[3].cancel()
    futures[19].cancel()
    engine.run()
    for number, (future, one) in enumerate(zip(futures, requests, strict=True)):
        if number in (3, 19):
            assert future.done
            assert future.result(0) == [] or equal(future.result(0), decode_alone(translator, one))
        else:
            assert equal(future.result(0), decode_alone(translator, one))


def test_errors_reach_only_the_request_that_caused_them(translator: EncoderDecoder) -> None:
    engine = Engine(translator, EOS, max_rows=8)
    good = engine.submit(Request((5, 6), 10, GREEDY))
    outside = engine.submit(Request((5, 999), 10, GREEDY))
    impossible = engine.submit(Request((5, 6), 3, BEAM, Constraints(required=((7, 8, 9),))))
    wide = engine.submit(Request((5, 6), 3, DecodeConfig(beam_size=50)))
    engine.run()
    assert equal(good.result(0), decode_alone(translator, good.request))
    with pytest.raises(UserError, match="999"):
        outside.result(0)
    with pytest.raises(UserError, match="required words have 3 tokens"):
        impossible.result(0)
    with pytest.raises(UserError, match=r"beam size is 50.* 8 rows"):
        wide.result(0)


def test_cache_grows_with_the_output_and_not_with_max_length(translator: EncoderDecoder) -> None:
    engine = Engine(translator, EOS, max_rows=8, max_length=10**9)
    ends = next(
        one for one in mixed_requests(200, 7) if one.config == SAMPLING and decode_alone(translator, one)[0].ended
    )
    future = engine.submit(replace(ends, max_length=10**12))
    endless = engine.submit(Request((5, 6, 7), 10**12, GREEDY, ENDLESS))
    for _ in range(300):
        engine.step()
    assert equal(future.result(0), decode_alone(translator, ends))
    assert not endless.done
    assert engine.cache_bytes() <= 2 * 520 * translator.kv_bytes_per_token()
    endless.cancel()
    engine.run()
    assert endless.done


def test_engine_limits_the_length(translator: EncoderDecoder) -> None:
    engine = Engine(translator, EOS, max_rows=8, max_length=30)
    future = engine.submit(Request((5, 6, 7), 10**12, BEAM, ENDLESS))
    engine.run()
    assert {len(one.tokens) for one in future.result(0)} == {30}


def test_cache_stays_within_its_budget_by_cutting_outputs(translator: EncoderDecoder) -> None:
    budget = 800 * translator.kv_bytes_per_token()
    engine = Engine(translator, EOS, max_rows=64, max_cache_bytes=budget)
    futures = [engine.submit(Request((5, 6, token), 10**6, GREEDY, ENDLESS)) for token in range(3, 23)]
    while engine.step():
        assert engine.cache_bytes() <= budget
    assert min(len(future.result(0)[0].tokens) for future in futures) >= 64
    assert not any(future.result(0)[0].ended for future in futures)


def test_callback_receives_every_token_and_can_stop(translator: EncoderDecoder) -> None:
    received: list[tuple[int, ...]] = []

    def on_tokens(tokens: tuple[int, ...]) -> bool:
        received.append(tokens)
        return len(tokens) == 5

    engine = Engine(translator, EOS, max_rows=8)
    request = Request((5, 6, 7), 50, GREEDY, ENDLESS)
    future = engine.submit(request, on_tokens)
    engine.run()
    assert [len(tokens) for tokens in received] == [1, 2, 3, 4, 5]
    assert future.result(0)[0].tokens == received[-1] == decode_alone(translator, request)[0].tokens[:5]


@pytest.mark.parametrize("config", [GREEDY, SAMPLING, BEAM])
@pytest.mark.parametrize("vocab_size", [23, 80])  # from 64 on, compiled kernels choose the tokens
def test_outputs_of_a_model_without_an_end_token_end_one_by_one(config: DecodeConfig, vocab_size: int) -> None:
    torch.manual_seed(6)
    tokens = SpecialTokensConfig(bos=1)
    model = LanguageModelConfig(vocab_size=vocab_size, width=8, decoder=small_stack(), special_tokens=tokens).build()
    engine = Engine(model.eval(), -1, max_rows=32)
    futures = [engine.submit(Request((1, 5), length, config, Constraints(seed=length))) for length in range(1, 10)]
    engine.run()
    for length, future in enumerate(futures, start=1):
        (best, *_) = future.result(0)
        assert len(best.tokens) == length
        assert not best.ended


@pytest.mark.parametrize("sample", [False, True])
def test_callback_of_steps_receives_the_beginning_of_the_result(translator: EncoderDecoder, sample: bool) -> None:
    received: list[Hypothesis] = []
    config = DecodeConfig(beam_size=1, sample=sample, min_length=9)
    request = Request((5, 6, 7), 10, config, Constraints(seed=3), alternatives=2)
    engine = Engine(translator, EOS, max_rows=8)
    future = engine.submit(request, on_step=received.append)
    engine.run()
    (best,) = future.result(0)
    assert [len(one.tokens) for one in received] == list(range(1, len(received) + 1))
    assert len(received) >= 9
    for one in received:
        length = len(one.tokens)
        assert one.tokens == best.tokens[:length]
        assert one.token_logprobs == best.token_logprobs[:length]
        assert one.alternatives == best.alternatives[:length]


def test_steps_of_beam_search_are_refused(translator: EncoderDecoder) -> None:
    engine = Engine(translator, EOS, max_rows=8)
    future = engine.submit(Request((5, 6, 7), 10, DecodeConfig(beam_size=2)), on_step=lambda hypothesis: None)
    with pytest.raises(UserError, match="only at the end"):
        future.result(0)


def test_requests_may_come_from_other_threads(translator: EncoderDecoder) -> None:
    engine = Engine(translator, EOS, max_rows=8)
    requests = mixed_requests(12, seed=3)
    found: dict[int, list[Hypothesis]] = {}

    def submit(number: int) -> None:
        found[number] = engine.submit(requests[number]).result(60)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        engine.step()
    for number, one in enumerate(requests):
        assert equal(found[number], decode_alone(translator, one))


def test_result_of_an_unfinished_request_times_out() -> None:
    with pytest.raises(TimeoutError):
        DecodeFuture(Request((1,), 1, GREEDY)).result(0)


def test_max_length_below_1_is_refused() -> None:
    with pytest.raises(UserError, match="maximum length is 0"):
        Request((1,), 0, GREEDY)
