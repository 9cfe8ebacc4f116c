"""Search with a shortlist equals search over a vocabulary of only those tokens."""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decode import Constraints, DecodeConfig, Ensemble, Hypothesis, Request, search_all, search_batch
from regard.decode.shortlist import Shortlist, search_batch_shortlisted
from regard.fused.cpu_decoder import make_cpu_decoder
from regard.model import EncoderDecoder
from tests.task.small import random_model

VOCAB_SIZE, EOS, MAX_LENGTH = 70, 2, 9
SOURCES = [(5, 6, 7), (8, 9), (10, 11, 12, 13), (5,), (20, 21)]
FULL = Shortlist(torch.arange(VOCAB_SIZE), torch.full((VOCAB_SIZE, 1), -1), torch.zeros(2, 32, dtype=torch.uint8))

SETTINGS: dict[str, tuple[DecodeConfig, Constraints]] = {
    "greedy": (DecodeConfig(beam_size=1), Constraints()),
    "beam": (DecodeConfig(beam_size=4), Constraints()),
    "diverse": (DecodeConfig(beam_size=4, beam_groups=2), Constraints()),
    "sampling": (
        DecodeConfig(beam_size=1, sample=True, top_k=9, top_p=0.9, repetition_penalty=1.2, seed=4),
        Constraints(),
    ),
    "prefix": (DecodeConfig(beam_size=3), Constraints(prefix=(30, 31))),
    "required words": (DecodeConfig(beam_size=3), Constraints(required=((40, 41), (42,)))),
    "forbidden words": (DecodeConfig(beam_size=3), Constraints(forbidden=((14,), (15, 16), (33,), (34, 35)))),
}


@pytest.fixture(scope="module")
def model() -> EncoderDecoder:
    """In float64, so that rounding changes no choice."""
    return random_model(VOCAB_SIZE).double()


@pytest.fixture(scope="module")
def shortlist() -> Shortlist:
    """A shortlist of less than half of the vocabulary, even for all sources together."""
    rng = random.Random(0)
    likeliest = [[-1, *rng.sample(range(4, VOCAB_SIZE), 2)] for _ in range(VOCAB_SIZE)]
    always = torch.tensor([0, 1, EOS, 3, 14, 15, 16], dtype=torch.int32)
    return Shortlist(always, torch.tensor(likeliest, dtype=torch.int32), FULL.vocabularies)


def make_requests(config: DecodeConfig, constraints: Constraints | None = None, alternatives: int = 0) -> list[Request]:
    seeded = (replace(constraints or Constraints(), seed=number) for number in range(len(SOURCES)))
    pairs = zip(SOURCES, seeded, strict=True)
    return [Request(source, MAX_LENGTH, config, each, alternatives) for source, each in pairs]


class MaskedModel:
    """A model that masks all other tokens."""

    def __init__(self, model: Any, tokens: Tensor) -> None:
        self.model = model
        self.excluded = torch.ones(VOCAB_SIZE, dtype=torch.bool).index_fill(0, tokens, False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = self.model.step(tokens, state)
        return logits.masked_fill(self.excluded, float("-inf")), state


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    """The same outputs in the same order, with the same log-probabilities up to rounding."""
    for mine, others in zip(found, expected, strict=True):
        assert [(one.tokens, one.ended) for one in mine] == [(one.tokens, one.ended) for one in others]
        for one, other in zip(mine, others, strict=True):
            assert (one.score, *one.token_logprobs) == pytest.approx((other.score, *other.token_logprobs))
            assert one.logprob == pytest.approx(other.logprob)


@pytest.mark.parametrize("alternatives", [0, 3])
@pytest.mark.parametrize(("config", "constraints"), SETTINGS.values(), ids=SETTINGS.keys())
def test_shortlist_of_the_full_vocabulary_changes_nothing(
    config: DecodeConfig, constraints: Constraints, alternatives: int, model: EncoderDecoder
) -> None:
    requests = make_requests(config, constraints, alternatives)
    assert search_batch_shortlisted(model, requests, EOS, FULL) == search_batch(model, requests, EOS)


@pytest.mark.parametrize(("config", "constraints"), SETTINGS.values(), ids=SETTINGS.keys())
def test_shortlist_equals_masking_the_other_tokens(
    config: DecodeConfig, constraints: Constraints, model: EncoderDecoder, shortlist: Shortlist
) -> None:
    requests = make_requests(config, constraints)
    needed = {token for word in (constraints.prefix, *constraints.required) for token in word}
    tokens = shortlist.tokens(SOURCES, needed)
    assert len(tokens) < VOCAB_SIZE // 2
    found = search_batch_shortlisted(model, requests, EOS, shortlist)
    assert_same(found, search_batch(MaskedModel(model, tokens), requests, EOS))


def test_shortlist_equals_forbidding_the_other_tokens(model: EncoderDecoder, shortlist: Shortlist) -> None:
    config = DecodeConfig(beam_size=1)
    others = set(range(VOCAB_SIZE)) - set(shortlist.tokens(SOURCES).tolist())
    forbidden = Constraints(forbidden=tuple((token,) for token in sorted(others)))
    found = search_batch_shortlisted(model, make_requests(config), EOS, shortlist)
    expected = search_batch(model, make_requests(config, forbidden), EOS)
    assert [one.tokens for (one,) in found] == [one.tokens for (one,) in expected]


def test_logprobs_are_normalized_over_the_shortlist(model: EncoderDecoder, shortlist: Shortlist) -> None:
    requests = make_requests(DecodeConfig(beam_size=1))[:1]
    ((one,),) = search_batch_shortlisted(model, requests, EOS, shortlist)
    tokens = shortlist.tokens(SOURCES[:1])
    state, start_tokens = model.prefill(SOURCES[:1], MAX_LENGTH)
    logits, _ = model.step(start_tokens[:, None], state)
    logprobs = logits[0, -1, tokens].log_softmax(dim=0)
    assert one.token_logprobs[0] == pytest.approx(float(logprobs.max()))
    assert one.tokens[0] == int(tokens[logprobs.argmax()])


@pytest.mark.parametrize("beam_size", [1, 3])
def test_alternatives_are_token_ids_of_the_shortlist(
    beam_size: int, model: EncoderDecoder, shortlist: Shortlist
) -> None:
    tokens = set(shortlist.tokens(SOURCES).tolist())
    requests = make_requests(DecodeConfig(beam_size=beam_size), alternatives=4)
    for hypotheses in search_batch_shortlisted(model, requests, EOS, shortlist):
        for one in hypotheses:
            assert all({token for token, _ in step} <= tokens for step in one.alternatives)
            for token, logprob, step in zip(one.tokens, one.token_logprobs, one.alternatives, strict=False):
                assert dict(step).get(token, logprob) == pytest.approx(logprob)


def test_required_tokens_are_added_to_the_shortlist(model: EncoderDecoder) -> None:
    bare = Shortlist(torch.tensor([EOS, 14, 15]), torch.full((VOCAB_SIZE, 1), -1), FULL.vocabularies)
    constraints = Constraints(prefix=(30, 31), required=((40, 41),))
    requests = make_requests(DecodeConfig(beam_size=3), constraints)
    for hypotheses in search_batch_shortlisted(model, requests, EOS, bare):
        for one in hypotheses:
            assert one.tokens[:2] == (30, 31)
            assert (40, 41) in zip(one.tokens, one.tokens[1:], strict=False)


def test_beam_search_returns_beam_size_hypotheses(model: EncoderDecoder, shortlist: Shortlist) -> None:
    found = search_batch_shortlisted(model, make_requests(DecodeConfig(beam_size=4)), EOS, shortlist)
    assert [len({one.tokens for one in hypotheses}) for hypotheses in found] == [4] * len(SOURCES)


def test_shortlist_of_a_batch_is_the_union_of_its_sources(shortlist: Shortlist) -> None:
    likeliest = shortlist.likeliest
    expected = {*shortlist.always.tolist(), *likeliest[8].tolist(), *likeliest[9].tolist(), 50} - {-1}
    assert shortlist.tokens([(8, 9), (9, 8, 8)], [50]).tolist() == sorted(expected)


def test_shortlist_of_an_empty_source_has_only_the_common_tokens(shortlist: Shortlist) -> None:
    assert shortlist.tokens([()]).tolist() == shortlist.always.tolist()


class RecordingModel:
    """A model that supports shortlists, records them, and fails if the full vocabulary is scored."""

    def __init__(self, model: Any) -> None:
        self.model, self.shortlists = model, list[Tensor]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        raise AssertionError("the full vocabulary was scored")

    def with_shortlist(self, tokens: Tensor) -> "RestrictedModel":
        self.shortlists.append(tokens)
        return RestrictedModel(self.model, tokens)


class RestrictedModel:
    """A model that scores only the tokens of a shortlist."""

    def __init__(self, model: Any, tokens: Tensor) -> None:
        self.model, self.tokens = model, tokens

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = self.model.step(tokens, state)
        return logits[..., self.tokens], state


@pytest.mark.parametrize("beam_size", [1, 4])
def test_models_that_support_shortlists_score_only_these_tokens(
    beam_size: int, model: EncoderDecoder, shortlist: Shortlist
) -> None:
    recording = RecordingModel(model)
    requests = make_requests(DecodeConfig(beam_size=beam_size))
    expected = search_batch_shortlisted(model, requests, EOS, shortlist)
    assert_same(search_batch_shortlisted(recording, requests, EOS, shortlist), expected)
    assert [tokens.tolist() for tokens in recording.shortlists] == [shortlist.tokens(SOURCES).tolist()]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_cpu_decoder_equals_the_plain_model(beam_size: int, shortlist: Shortlist) -> None:
    pytest.importorskip("numba")
    model = random_model(VOCAB_SIZE)
    requests = make_requests(DecodeConfig(beam_size=beam_size))
    fused, plain = (
        search_batch_shortlisted(each, requests, EOS, shortlist) for each in (make_cpu_decoder(model), model)
    )
    for mine, others in zip(fused, plain, strict=True):
        assert [one.tokens for one in mine] == [one.tokens for one in others]


def test_ensembles_use_shortlists(model: EncoderDecoder, shortlist: Shortlist) -> None:
    requests = make_requests(DecodeConfig(beam_size=3))
    found = search_batch_shortlisted(Ensemble([model, model]), requests, EOS, shortlist)
    assert_same(found, search_batch_shortlisted(model, requests, EOS, shortlist))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch_tokens", [1, 12, 1000])
def test_results_are_in_the_order_of_the_requests(batch_tokens: int, threads: int, model: EncoderDecoder) -> None:
    requests = [*make_requests(DecodeConfig(beam_size=2)), *make_requests(DecodeConfig(beam_size=1))]
    shortlisted = partial(search_batch_shortlisted, shortlist=FULL)
    found = search_all(model, requests, EOS, search=shortlisted, batch_tokens=batch_tokens, threads=threads)
    assert_same(found, search_all(model, requests, EOS, batch_tokens=batch_tokens))


def test_every_batch_has_its_own_shortlist(model: EncoderDecoder, shortlist: Shortlist) -> None:
    recording = RecordingModel(model)
    shortlisted = partial(search_batch_shortlisted, shortlist=shortlist)
    search_all(recording, make_requests(DecodeConfig(beam_size=1)), EOS, search=shortlisted, batch_tokens=1)
    found = sorted(tokens.tolist() for tokens in recording.shortlists)
    assert found == sorted(shortlist.tokens([source]).tolist() for source in SOURCES)


def test_progress_counts_finished_requests(model: EncoderDecoder) -> None:
    counts: list[int] = []
    search_all(model, make_requests(DecodeConfig(beam_size=1)), EOS, batch_tokens=8, progress=counts.append)
    assert len(counts) > 1
    assert counts == sorted(set(counts))
    assert counts[-1] == len(SOURCES)


def test_no_requests_give_no_results(model: EncoderDecoder) -> None:
    assert search_all(model, [], EOS, batch_tokens=8) == []
