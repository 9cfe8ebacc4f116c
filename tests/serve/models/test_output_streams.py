"""Several outputs of one request, as the engine decodes them."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from regard.decode import Constraints, DecodeConfig, Engine, Request
from regard.serve.models.cancellation import CanceledError, Cancellation
from regard.serve.models.engine_thread import EngineThread
from regard.serve.models.output_streams import MAX_IN_FLIGHT, OutputStreams
from tests.look.support import autoregressive_model
from tests.model.small_models import language_model

SAMPLED = DecodeConfig(beam_size=1, sample=True, min_length=0)


@pytest.fixture(scope="module")
def model() -> Any:
    return autoregressive_model(language_model(), torch.float32).pipeline.model  # type: ignore[attr-defined]


@pytest.fixture
def engine(model: Any) -> Iterator[EngineThread]:
    engine = EngineThread(Engine(model, -1), print)
    yield engine
    engine.close()


def requests(count: int, length: int, alternatives: int = 0) -> list[Request]:
    return [Request((1, 5, 6), length, SAMPLED, Constraints(seed=seed), alternatives) for seed in range(count)]


@pytest.mark.parametrize("logprobs", [False, True])
def test_outputs_grow_to_what_the_engine_decodes(engine: EngineThread, logprobs: bool) -> None:
    given = requests(MAX_IN_FLIGHT + 5, 12, alternatives=2 if logprobs else 0)
    expected = [engine.submit(request).result(20)[0] for request in given]
    seen: dict[int, int] = {}
    for number, hypothesis, done in OutputStreams(engine, given, logprobs=logprobs):
        length = len(hypothesis.tokens)
        assert hypothesis.tokens == expected[number].tokens[:length]
        if logprobs:
            assert len(hypothesis.token_logprobs) == len(hypothesis.alternatives) == length
        assert length > seen.get(number, 0)
        seen[number] = length
        assert done == (length == 12)
    assert seen == dict.fromkeys(range(len(given)), 12)


def test_slow_reader_misses_steps_and_no_tokens(engine: EngineThread) -> None:
    lengths = []
    for _, hypothesis, _ in OutputStreams(engine, requests(1, 60), logprobs=False):
        lengths.append(len(hypothesis.tokens))
        time.sleep(0.05)
    assert lengths[-1] == 60
    assert len(lengths) < 30


def test_stopped_output_does_not_come_again_and_the_others_go_on(engine: EngineThread) -> None:
    streams = OutputStreams(engine, requests(3, 500), logprobs=False)
    numbers = []
    for number, hypothesis, done in streams:
        assert number == 0 or len(hypothesis.tokens) <= 500
        numbers.append(number)
        if number != 0 and not done:
            assert numbers.count(number) == 1
            streams.stop(number)
    assert numbers[-1] == 0
    wait_until_idle(engine)


def test_closing_the_iterator_or_canceling_the_request_frees_the_slots(engine: EngineThread) -> None:
    outputs = iter(OutputStreams(engine, requests(4, 100_000), logprobs=False))
    next(outputs)
    outputs.close()
    wait_until_idle(engine)

    cancellation = Cancellation()

    def read_all() -> None:
        for _ in OutputStreams(engine, requests(4, 100_000), logprobs=False):
            cancellation.cancel()

    with pytest.raises(CanceledError):
        cancellation.run(read_all)
    wait_until_idle(engine)


def wait_until_idle(engine: EngineThread) -> None:
    deadline = time.monotonic() + 5
    while engine.active:
        assert time.monotonic() < deadline, "the outputs are still being decoded"
        time.sleep(0.01)
