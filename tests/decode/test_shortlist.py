"""A search among some tokens is a search in which no others exist."""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decode import DecodeConfig, Ensemble, Hypothesis, Request, Wish, search_all, search_batch
from regard.decode.shortlist import Shortlist, search_batch_among
from regard.fast.swift import swift
from regard.model import EncoderDecoder
from tests.task.small import random_model

SIZE, END, LIMIT = 70, 2, 9
SOURCES = [(5, 6, 7), (8, 9), (10, 11, 12, 13), (5,), (20, 21)]
WHOLE = Shortlist(torch.arange(SIZE), torch.full((SIZE, 1), -1), torch.zeros(2, 32, dtype=torch.uint8))

SEARCHES: dict[str, tuple[DecodeConfig, Wish]] = {
    "greedy": (DecodeConfig(beams=1), Wish()),
    "beams": (DecodeConfig(beams=4), Wish()),
    "groups": (DecodeConfig(beams=4, groups=2), Wish()),
    "drawn": (DecodeConfig(beams=1, sample=True, top_k=9, top_p=0.9, repetition=1.2, seed=4), Wish()),
    "a beginning": (DecodeConfig(beams=3), Wish(prefix=(30, 31))),
    "a required word": (DecodeConfig(beams=3), Wish(required=((40, 41), (42,)))),
    "forbidden words": (DecodeConfig(beams=3), Wish(forbidden=((14,), (15, 16), (33,), (34, 35)))),
}


@pytest.fixture(scope="module")
def model() -> EncoderDecoder:
    """In float64, where rounding changes no decision."""
    return random_model(SIZE).double()


@pytest.fixture(scope="module")
def few() -> Shortlist:
    """A list that has less than half of the vocabulary for all sources together."""
    dice = random.Random(0)
    likeliest = torch.tensor([[-1, *dice.sample(range(4, SIZE), 2)] for _ in range(SIZE)], dtype=torch.int32)
    return Shortlist(torch.tensor([0, 1, END, 3, 14, 15, 16], dtype=torch.int32), likeliest, WHOLE.vocabularies)


def among(shortlist: Shortlist) -> Any:
    return partial(search_batch_among, shortlist=shortlist)


def requests(config: DecodeConfig, wish: Wish = Wish(), alternatives: int = 0) -> list[Request]:  # noqa: B008
    seeded = (replace(wish, seed=number) for number in range(len(SOURCES)))
    return [Request(source, LIMIT, config, each, alternatives) for source, each in zip(SOURCES, seeded, strict=True)]


class Masked:
    """A worker for which all but some tokens are impossible."""

    def __init__(self, worker: Any, tokens: Tensor) -> None:
        self.worker = worker
        self.hidden = torch.ones(SIZE, dtype=torch.bool).index_fill(0, tokens, False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = self.worker.step(tokens, state)
        return logits.masked_fill(self.hidden, float("-inf")), state


def alike(found: list[list[Hypothesis]], wanted: list[list[Hypothesis]]) -> None:
    """The same outputs in the same order, with the same chances to rounding."""
    for some, others in zip(found, wanted, strict=True):
        assert [(one.tokens, one.ended) for one in some] == [(one.tokens, one.ended) for one in others]
        for one, other in zip(some, others, strict=True):
            assert (one.score, *one.steps) == pytest.approx((other.score, *other.steps))
            assert one.log_probability == pytest.approx(other.log_probability)


# What is found.


@pytest.mark.parametrize("alternatives", [0, 3])
@pytest.mark.parametrize(("config", "wish"), SEARCHES.values(), ids=SEARCHES.keys())
def test_among_the_whole_vocabulary_everything_is_the_same(
    config: DecodeConfig, wish: Wish, alternatives: int, model: EncoderDecoder
) -> None:
    asked = requests(config, wish, alternatives)
    assert search_batch_among(model, asked, END, WHOLE) == search_batch(model, asked, END)


@pytest.mark.parametrize(("config", "wish"), SEARCHES.values(), ids=SEARCHES.keys())
def test_among_some_tokens_it_is_as_if_the_others_were_impossible(
    config: DecodeConfig, wish: Wish, model: EncoderDecoder, few: Shortlist
) -> None:
    asked = requests(config, wish)
    wished = {token for word in (wish.prefix, *wish.required) for token in word}
    tokens = few.tokens(SOURCES, wished)
    assert len(tokens) < SIZE // 2
    alike(search_batch_among(model, asked, END, few), search_batch(Masked(model, tokens), asked, END))


def test_greedy_search_finds_what_it_finds_where_all_other_tokens_are_forbidden(
    model: EncoderDecoder, few: Shortlist
) -> None:
    config = DecodeConfig(beams=1)
    others = set(range(SIZE)) - set(few.tokens(SOURCES).tolist())
    forbidden = Wish(forbidden=tuple((token,) for token in sorted(others)))
    found = search_batch_among(model, requests(config), END, few)
    wanted = search_batch(model, requests(config, forbidden), END)
    assert [one.tokens for (one,) in found] == [one.tokens for (one,) in wanted]


def test_log_probabilities_are_those_among_the_tokens_of_the_list(model: EncoderDecoder, few: Shortlist) -> None:
    asked = requests(DecodeConfig(beams=1))[:1]
    ((one,),) = search_batch_among(model, asked, END, few)
    tokens = few.tokens(SOURCES[:1])
    state, first = model.begin(SOURCES[:1], LIMIT)
    logits, _ = model.step(first[:, None], state)
    chances = logits[0, -1, tokens].log_softmax(dim=0)
    assert one.steps[0] == pytest.approx(float(chances.max()))
    assert one.tokens[0] == int(tokens[chances.argmax()])


@pytest.mark.parametrize("beams", [1, 3])
def test_alternatives_are_tokens_of_the_list_under_their_own_names(
    beams: int, model: EncoderDecoder, few: Shortlist
) -> None:
    known = set(few.tokens(SOURCES).tolist())
    found = search_batch_among(model, requests(DecodeConfig(beams=beams), alternatives=4), END, few)
    for one in (one for some in found for one in some):
        assert all({token for token, _ in each} <= known for each in one.alternatives)
        for token, gain, each in zip(one.tokens, one.steps, one.alternatives, strict=False):
            assert dict(each).get(token, gain) == pytest.approx(gain)


def test_words_that_are_asked_for_come_though_no_source_calls_for_them(model: EncoderDecoder) -> None:
    bare = Shortlist(torch.tensor([END, 14, 15]), torch.full((SIZE, 1), -1), WHOLE.vocabularies)
    wish = Wish(prefix=(30, 31), required=((40, 41),))
    found = search_batch_among(model, requests(DecodeConfig(beams=3), wish), END, bare)
    for one in (one for some in found for one in some):
        assert one.tokens[:2] == (30, 31)
        assert (40, 41) in zip(one.tokens, one.tokens[1:], strict=False)


def test_as_many_candidates_are_found_as_there_are_beams(model: EncoderDecoder, few: Shortlist) -> None:
    found = search_batch_among(model, requests(DecodeConfig(beams=4)), END, few)
    assert [len({one.tokens for one in some}) for some in found] == [4] * len(SOURCES)


# Which tokens are on a list.


def test_a_list_has_what_may_always_come_and_what_its_sources_call_for(few: Shortlist) -> None:
    wanted = {*few.always.tolist(), *few.likeliest[8].tolist(), *few.likeliest[9].tolist(), 50} - {-1}
    assert few.tokens([(8, 9), (9, 8, 8)], [50]).tolist() == sorted(wanted)


def test_sources_without_tokens_call_for_nothing(few: Shortlist) -> None:
    assert few.tokens([()]).tolist() == few.always.tolist()


# Who takes the steps.


class WithLimits:
    """A worker that can score some tokens only, and is never to score them all."""

    def __init__(self, worker: Any) -> None:
        self.worker, self.limits = worker, list[Tensor]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        raise AssertionError("all tokens were scored")

    def limited(self, tokens: Tensor) -> "_Some":
        self.limits.append(tokens)
        return _Some(self.worker, tokens)


class _Some:
    def __init__(self, worker: Any, tokens: Tensor) -> None:
        self.worker, self.tokens = worker, tokens

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = self.worker.step(tokens, state)
        return logits[..., self.tokens], state


@pytest.mark.parametrize("beams", [1, 4])
def test_a_worker_that_can_score_some_tokens_only_does_so(beams: int, model: EncoderDecoder, few: Shortlist) -> None:
    worker = WithLimits(model)
    asked = requests(DecodeConfig(beams=beams))
    alike(search_batch_among(worker, asked, END, few), search_batch_among(model, asked, END, few))
    assert [tokens.tolist() for tokens in worker.limits] == [few.tokens(SOURCES).tolist()]


@pytest.mark.parametrize("beams", [1, 4])
def test_the_fast_form_of_a_model_finds_the_same(beams: int, few: Shortlist) -> None:
    pytest.importorskip("numba")
    model = random_model(SIZE)
    asked = requests(DecodeConfig(beams=beams))
    fast, plain = (search_batch_among(worker, asked, END, few) for worker in (swift(model), model))
    assert [[one.tokens for one in some] for some in fast] == [[one.tokens for one in some] for some in plain]


def test_an_ensemble_searches_among_some_tokens_too(model: EncoderDecoder, few: Shortlist) -> None:
    asked = requests(DecodeConfig(beams=3))
    both = Ensemble([model, model])
    alike(search_batch_among(both, asked, END, few), search_batch_among(model, asked, END, few))


# Many requests.


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("budget", [1, 12, 1000])
def test_results_come_in_the_order_of_the_requests(budget: int, threads: int, model: EncoderDecoder) -> None:
    asked = [*requests(DecodeConfig(beams=2)), *requests(DecodeConfig(beams=1))]
    found = search_all(model, asked, END, search=among(WHOLE), batch_tokens=budget, threads=threads)
    alike(found, search_all(model, asked, END, batch_tokens=budget))


def test_a_batch_has_a_list_of_its_own(model: EncoderDecoder, few: Shortlist) -> None:
    worker = WithLimits(model)
    search_all(worker, requests(DecodeConfig(beams=1)), END, search=among(few), batch_tokens=1)
    lists = sorted(tokens.tolist() for tokens in worker.limits)
    assert lists == sorted(few.tokens([source]).tolist() for source in SOURCES)


def test_progress_counts_up_to_all_requests(model: EncoderDecoder) -> None:
    heard: list[int] = []
    asked = requests(DecodeConfig(beams=1))
    search_all(model, asked, END, search=among(WHOLE), batch_tokens=8, progress=heard.append)
    assert len(heard) > 1
    assert heard == sorted(set(heard))
    assert heard[-1] == len(SOURCES)


def test_no_requests_give_no_results(model: EncoderDecoder) -> None:
    assert search_all(model, [], END, search=among(WHOLE), batch_tokens=8) == []
