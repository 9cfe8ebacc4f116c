"""A served model gives the answers of its pipeline, alone and beside other requests, and frees what is canceled."""

import copy
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from regard.decode import DecodeConfig
from regard.serve.limits import Limits
from regard.serve.models.cancellation import CanceledError, Cancellation
from regard.serve.models.served_model import LoadOptions, ServedModel
from regard.task.json_records import translation_record
from regard.task.pipeline import Pipeline
from regard.task.translation.result import TranslatedText
from tests.look.support import autoregressive_model, parser
from tests.model.small_models import language_model

TEXTS = ["the old cat ate a mouse", "the sea", "red sun, big sea. Old dog!", "a mouse and a cat and a man"]
LONG = DecodeConfig(beam_size=1, max_length_offset=120)


def served(pipeline: Pipeline, **options: Any) -> ServedModel:
    return ServedModel("small", copy.copy(pipeline), Limits(), LoadOptions(fused=False, **options), print)


@pytest.fixture
def translator() -> Iterator[ServedModel]:
    model = served(autoregressive_model().pipeline, max_rows=16)
    yield model
    model.close()


def rounded(found: TranslatedText) -> list[dict[str, Any]]:
    """Tokens and probabilities; batches of different sizes round the last digits differently."""
    return translation_record(found, 1, autoregressive_model().pipeline.target_tokenizer)["sentences"]


QUESTIONS: dict[str, list[Callable[[Any], Any]]] = {
    "translate": [
        *(lambda model, text=text: model.translate(text) for text in TEXTS),
        *(lambda model, text=text: model.translate(text, beam_size=1) for text in TEXTS),
        lambda model: model.translate(TEXTS, nbest=3),
        lambda model: model.translate(TEXTS, temperature=1.0, seed=4),
        lambda model: model.translate(TEXTS[0], prefix="the", forbid=["cat"]),
        lambda model: [rounded(each) for each in model.translate(TEXTS[:2], details=True, alternatives=2)],
    ],
    "generate": [
        *(lambda model, text=text: model.generate(text, max_new_tokens=9, seed=1) for text in TEXTS),
        lambda model: model.generate(TEXTS, max_new_tokens=9, beam_size=3, nbest=2),
        lambda model: "".join(model.stream(TEXTS[0], max_new_tokens=9, seed=2)),
        lambda model: model.generate(TEXTS[0], max_new_tokens=9, stop="a"),
    ],
    "parse": [*(lambda model, text=text: str(model.parse(text)) for text in TEXTS)],
}
PIPELINES: dict[str, Callable[[], Any]] = {
    "translate": lambda: autoregressive_model().pipeline,
    "generate": lambda: autoregressive_model(language_model()).pipeline,
    "parse": lambda: parser().pipeline,  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("capability", QUESTIONS)
def test_answers_in_company_equal_those_of_the_pipeline(capability: str) -> None:
    pipeline = PIPELINES[capability]()
    expected = [ask(pipeline) for ask in QUESTIONS[capability]]
    model = served(pipeline, max_rows=12)
    try:
        with ThreadPoolExecutor(16) as threads:
            found = list(threads.map(lambda ask: ask(model.pipeline), QUESTIONS[capability] * 3))
    finally:
        model.close()
    assert found == expected * 3


def test_a_canceled_request_leaves_its_slots_at_the_next_step(translator: ServedModel) -> None:
    cancellation, raised = Cancellation(), threading.Event()

    def run() -> None:
        with pytest.raises(CanceledError):
            cancellation.run(lambda: translator.pipeline.translate_batch(TEXTS * 20, LONG, split=False))
        raised.set()

    threading.Thread(target=run).start()
    wait_until(lambda: any(engine.active for engine in translator.engines()))
    cancellation.cancel()
    assert raised.wait(5)
    wait_until(lambda: not any(engine.engine.busy for engine in translator.engines()))
    assert translator.pipeline.translate(TEXTS[0])


def test_a_request_of_many_sentences_leaves_room_for_others(translator: ServedModel) -> None:
    long = threading.Thread(target=lambda: translator.pipeline.translate_batch(TEXTS * 20, LONG, split=False))
    long.start()
    wait_until(lambda: any(engine.active for engine in translator.engines()))
    translator.pipeline.translate(TEXTS[1], beam_size=1)
    assert long.is_alive()
    long.join()


@pytest.mark.parametrize("error", [RuntimeError("broken"), torch.OutOfMemoryError("full")])
def test_a_failing_step_ends_the_requests_of_its_batch_only(
    translator: ServedModel, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = translator.backend.engine_model.decoder  # type: ignore[union-attr]
    step = decoder.step

    def fail_on_beams(tokens: torch.Tensor, state: Any) -> Any:
        if len(tokens) % 5 == 0:
            raise error
        return step(tokens, state)

    expected = translator.pipeline.translate(TEXTS[0], beam_size=1)
    monkeypatch.setattr(decoder, "step", fail_on_beams)
    with ThreadPoolExecutor(2) as threads:
        alone = threads.submit(translator.pipeline.translate, TEXTS[0], beam_size=1)
        failing = threads.submit(translator.pipeline.translate, TEXTS[0], beam_size=5)
        with pytest.raises(type(error), match=str(error)):
            failing.result()
        assert alone.result() == expected
    monkeypatch.undo()
    assert translator.pipeline.translate(TEXTS[0], beam_size=5)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
