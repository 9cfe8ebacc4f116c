"""Search with captured CUDA graphs equals plain search, and one captured step is reused by many searches."""

import pytest

pytest.importorskip("triton")

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regard.attention import MultiHeadConfig
from regard.decode import (
    BeamSearch,
    Constraints,
    DecodeConfig,
    Engine,
    Greedy,
    Hypothesis,
    LengthPenalty,
    MinLengthProcessor,
    Request,
    search_all,
    search_batch,
)
from regard.decode.cuda_graphs import GraphPool, graph_batch_size, graph_pool_for
from regard.fused.cuda_decoder import CudaDecoder
from regard.model import (
    EncoderDecoder,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    SpecialTokensConfig,
    StackConfig,
)

VOCAB_SIZE, EOS = 60, 2


@contextmanager
def interpreted() -> Iterator[None]:
    """Run Triton kernels on the CPU, in Triton's interpreter."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("regard.kernels.dispatch.runs_triton", lambda device: True)
        yield


def make_model() -> EncoderDecoder:
    torch.manual_seed(5)
    stack = StackConfig(
        layers=1, attention=MultiHeadConfig(heads=2), feed_forward=FeedForwardConfig(hidden=16), dropout=0.0
    )
    tokens = SpecialTokensConfig(pad=0, bos=1, eos=EOS)
    config = EncoderDecoderConfig(
        vocab_size=VOCAB_SIZE, width=16, encoder=stack, decoder=stack, special_tokens=tokens, output_bias=True
    )
    model = config.build().eval()
    with torch.no_grad():
        model.embed_tokens.weight.mul_(5)
        model.lm_head_bias[EOS] += 4
    return model


class PlainAttention:
    """The attention kernels of a decoding step in plain PyTorch."""

    @staticmethod
    def self_attention_decode(
        qkv: Tensor, keys: Tensor, values: Tensor, beam_indices: Tensor, lengths: Tensor, heads: int, rotary: None
    ) -> Tensor:
        capacity, rows = keys.shape[:2]
        query, key, value = qkv.chunk(3, dim=1)
        row, last = torch.arange(rows), lengths.clamp(max=capacity - 1)
        keys[last, row], values[last, row], beam_indices[last, row] = key, value, row.int()
        position = torch.arange(capacity)
        valid = position <= last[:, None]
        past_keys, past_values = (kv[position[:, None], beam_indices.long()].transpose(0, 1) for kv in (keys, values))
        return PlainAttention.attend(query, past_keys, past_values, valid, heads)

    @staticmethod
    def cross_attention_decode(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, heads: int) -> Tensor:
        valid = torch.arange(keys.shape[1]) < lengths[:, None]
        rows_per_source = query.shape[0] // keys.shape[0]
        per_row = (tensor.repeat_interleave(rows_per_source, dim=0) for tensor in (keys, values, valid))
        return PlainAttention.attend(query, *per_row, heads)

    @staticmethod
    def attend(query: Tensor, key: Tensor, value: Tensor, valid: Tensor, heads: int) -> Tensor:
        query, key, value = (tensor.unflatten(-1, (heads, -1)) for tensor in (query, key, value))
        scores = torch.einsum("rhd,rjhd->rhj", query, key) / query.shape[-1] ** 0.5
        weights = scores.masked_fill(~valid[:, None], float("-inf")).softmax(dim=-1)
        return torch.einsum("rhj,rjhd->rhd", weights, value).flatten(1)


def plain_add_norm(residual: Tensor, sublayer_out: Tensor, norm: Any, *, pre_norm: bool) -> Tensor:
    assert pre_norm
    residual += sublayer_out
    return torch.nn.functional.layer_norm(residual, residual.shape[1:], norm.weight, norm.bias, norm.eps)


def plain_embed(
    tokens: Tensor, lengths: Tensor, table: Tensor, encodings: Tensor, scale: float, norm: Any, x: Tensor, **kind: bool
) -> Tensor:
    x.zero_()
    return plain_add_norm(x, table[tokens] * scale + encodings[lengths.clamp(max=len(encodings) - 1)], norm, **kind)


def make_decoder(model: Any) -> CudaDecoder[Any]:
    """A decoder with its kernels in plain PyTorch, because Triton's interpreter is too slow for long outputs."""
    with interpreted():
        decoder = CudaDecoder(model)
    for name, function in {"attention": PlainAttention, "add_norm": plain_add_norm, "embed": plain_embed}.items():
        assert hasattr(decoder, name)
        setattr(decoder, name, function)
    return decoder


def random_sources(count: int, seed: int = 1) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, 9))) for _ in range(count)]


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for mine, others in zip(found, expected, strict=True):
        assert [one.tokens for one in mine] == [one.tokens for one in others]
        assert [one.ended for one in mine] == [one.ended for one in others]
        for one, other in zip(mine, others, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-4)
            assert [[token for token, _ in step] for step in one.alternatives] == [
                [token for token, _ in step] for step in other.alternatives
            ]


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"config": DecodeConfig(beam_size=1)},
    "beam": {"config": DecodeConfig(beam_size=3)},
    "no length penalty": {"config": DecodeConfig(beam_size=2, length_penalty=LengthPenalty(kind="none"))},
    "sampling": {"config": DecodeConfig(beam_size=1, sample=True, temperature=0.9, top_k=20, seed=4)},
    "repetition penalty": {"config": DecodeConfig(beam_size=1, sample=True, repetition_penalty=1.3, seed=4)},
    "alternatives": {"config": DecodeConfig(beam_size=2), "alternatives": 3},
    "prefix": {"config": DecodeConfig(beam_size=2), "constraints": Constraints(prefix=(7, 8))},
    "forbidden words": {"config": DecodeConfig(beam_size=2), "constraints": Constraints(forbidden=((9,), (4, 5)))},
    "diverse": {"config": DecodeConfig(beam_size=4, beam_groups=2)},
    "no repeated n-grams": {"config": DecodeConfig(beam_size=2, no_repeat_ngram_size=2)},
    "limits": {"config": DecodeConfig(beam_size=3, min_length=4, max_repeats=2)},
    "required words": {"config": DecodeConfig(beam_size=3), "constraints": Constraints(required=((11,),))},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_captured_search_equals_plain_search(settings: dict[str, Any]) -> None:
    model = make_model()
    decoder = make_decoder(model)
    requests = [Request(source, 3 + number % 9, **settings) for number, source in enumerate(random_sources(7))]
    assert_same(search_batch(decoder, requests, EOS), search_batch(model, requests, EOS))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_captured_step_is_reused_for_the_same_shape(beam_size: int) -> None:
    model = make_model()
    decoder = make_decoder(model)
    config = DecodeConfig(beam_size=beam_size)
    unused = []
    for seed in range(4):
        requests = [Request(source, 9 + seed, config) for source in random_sources(5, seed)]
        assert_same(search_batch(decoder, requests, EOS), search_batch(model, requests, EOS))
        pool = graph_pool_for(decoder, Greedy([1], EOS))
        assert pool is not None
        unused.append(list(pool._unused.values()))
    assert len(unused[0]) == 1
    assert len({id(step) for steps in unused for step in steps}) == len(unused[-1]) < 4


@pytest.mark.parametrize("beam_size", [1, 2])
def test_buffers_grow_for_long_outputs(beam_size: int) -> None:
    model = make_model()
    decoder = make_decoder(model)
    for seed in range(2):
        requests = [Request(source, 150, DecodeConfig(beam_size=beam_size)) for source in random_sources(2, seed)]
        found = search_batch(decoder, requests, -1)
        assert len(found[0][0].tokens) == 150
        assert_same(found, search_batch(model, requests, -1))


@pytest.mark.parametrize("beam_size", [2, 5])
def test_triton_kernels_equal_plain_search(beam_size: int) -> None:
    model = make_model()
    requests = [
        Request(source, max_length, DecodeConfig(beam_size=beam_size))
        for source, max_length in zip(random_sources(2), (6, 9), strict=True)
    ]
    with interpreted():
        found = search_batch(CudaDecoder(model), requests, EOS)
    assert_same(found, search_batch(model, requests, EOS))


@pytest.mark.parametrize("beam_size", [1, 2])
def test_triton_kernels_apply_the_limits(beam_size: int) -> None:
    model = make_model()
    config = DecodeConfig(beam_size=beam_size, min_length=3, max_repeats=2)
    requests = [Request(source, 7, config) for source in random_sources(2)]
    with interpreted():
        found = search_batch(make_decoder(model), requests, EOS)
    assert_same(found, search_batch(model, requests, EOS))


def test_triton_kernels_work_with_growing_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.decode.beam.INITIAL_CAPACITY", 4)
    model = make_model()
    decoder = make_decoder(model)
    for seed in range(2):
        pairs = zip(random_sources(2, seed), (11, 3), strict=True)
        requests = [Request(source, max_length, DecodeConfig(beam_size=2)) for source, max_length in pairs]
        with interpreted():
            found = search_batch(decoder, requests, -1)
        assert len(found[0][0].tokens) == 11
        assert_same(found, search_batch(model, requests, -1))


def test_triton_kernels_work_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.decode.beam.INITIAL_CAPACITY", 4)
    model = make_model()
    rng = random.Random(2)
    requests = [Request(source, rng.randint(1, 10), DecodeConfig(beam_size=2)) for source in random_sources(7)]
    engine = Engine(make_decoder(model), EOS, max_rows=6)
    futures = [engine.submit(request) for request in requests]
    with interpreted():
        engine.run()
    expected = search_all(model, requests, EOS, batch_tokens=100)
    assert_same([future.result(0) for future in futures], expected)


def test_triton_kernels_keep_tensor_addresses() -> None:
    decoder = make_decoder(make_model())
    state, tokens = decoder.prefill(random_sources(2), 8)
    state.reorder_beams(torch.arange(2).repeat_interleave(2))
    strategy = BeamSearch([8, 8], EOS, 2)
    step = GraphPool().acquire(decoder, state, strategy, tokens.repeat_interleave(2))
    with interpreted():
        step.run()
        before = step.tokens, step.finished
        step.run()
    assert step.tokens.data_ptr() == before[0].data_ptr() == strategy.next_tokens.data_ptr()
    assert step.finished is before[1] is strategy.done


def test_pool_evicts_the_oldest_step() -> None:
    decoder, pool = make_decoder(make_model()), GraphPool(max_graphs=2)
    for slots in (1, 2, 3):
        state, tokens = decoder.prefill(random_sources(slots), 8)
        pool.release(pool.acquire(decoder, state, Greedy([8] * slots, EOS), tokens))
    assert [step.strategy.slots for step in pool._unused.values()] == [2, 3]


def test_graph_batch_sizes_are_few_and_close_to_the_batch() -> None:
    decoder = make_decoder(make_model())
    assert len({graph_batch_size(decoder, count) for count in range(1, 257)}) <= 28
    for count in range(1, 2000):
        assert count <= graph_batch_size(decoder, count) <= max(count + 1, 1.34 * count)
    assert graph_batch_size(make_model(), 37) == 37


def test_processors_are_part_of_the_graph_key() -> None:
    plain = Greedy([9, 9], EOS)
    strategy = Greedy([9, 9], EOS, processors=[MinLengthProcessor([3, 4], EOS)])
    assert strategy.graph_key() != plain.graph_key()
    assert len(strategy.tensors()) == len(plain.tensors()) + 1


def test_language_model_continues_prompts() -> None:
    torch.manual_seed(2)
    stack = StackConfig(
        layers=2, attention=MultiHeadConfig(heads=1), feed_forward=FeedForwardConfig(hidden=16), dropout=0.0
    )
    config = LanguageModelConfig(
        vocab_size=VOCAB_SIZE, width=16, decoder=stack, special_tokens=SpecialTokensConfig(bos=1, eos=EOS)
    )
    model = config.build().eval()
    requests = [Request(source, 12, DecodeConfig(beam_size=1)) for source in random_sources(4)]
    found = search_all(make_decoder(model), requests, EOS, batch_tokens=30)
    assert_same(found, search_all(model, requests, EOS, batch_tokens=30))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_engine_equals_plain_search(beam_size: int) -> None:
    model = make_model()
    rng = random.Random(3)
    config = DecodeConfig(beam_size=beam_size)
    requests = [Request(source, rng.randint(1, 90), config) for source in random_sources(17)]
    engine = Engine(make_decoder(model), EOS, max_rows=5 * beam_size)
    futures = [engine.submit(request) for request in requests]
    engine.run()
    expected = search_all(model, requests, EOS, batch_tokens=100)
    assert_same([future.result(0) for future in futures], expected)


def test_searches_that_share_a_pool_do_not_interfere() -> None:
    model = make_model()
    decoder = make_decoder(model)
    rng = random.Random(8)
    configs = [DecodeConfig(beam_size=1), DecodeConfig(beam_size=2), DecodeConfig(beam_size=1, sample=True, top_k=9)]
    requests = [
        Request(source, rng.choice([1, 5, 30, 100]), rng.choice(configs), Constraints(seed=number))
        for number, source in enumerate(random_sources(60))
    ]
    first, second = (Engine(decoder, EOS, max_rows=12) for _ in range(2))
    futures, waiting = [], list(requests)
    while waiting or first.busy or second.busy:
        new = [waiting.pop(0) for _ in range(min(rng.randint(0, 4), len(waiting)))]
        futures += [rng.choice([first, second]).submit(request) for request in new]
        if rng.random() < 0.2 and futures:
            rng.choice(futures).cancel()
        first.step()
        if rng.random() < 0.1:
            search_batch(decoder, requests[:3], EOS)  # interleaved, with the same shapes
        second.step()
    expected = search_all(model, requests, EOS, batch_tokens=100)
    done = [(future.result(0), best) for future, best in zip(futures, expected, strict=True) if not future.canceled]
    assert len(done) > 30
    assert_same([mine for mine, _ in done], [others for _, others in done])
