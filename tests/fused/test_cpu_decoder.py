"""The fused CPU decoder equals the unfused model, with every kind of layer and after any reordering of rows."""

import random
from typing import Any

import pytest
import torch

pytest.importorskip("numba")

from regard import UserError
from regard.attention import MultiHeadConfig
from regard.attention.positions.config import LearnedConfig, NoPositionConfig, RotaryConfig, SinusoidalConfig
from regard.attention.positions.rotary import DynamicScaling, YarnScaling
from regard.decode import Constraints, DecodeConfig, Engine, Request, search_all, search_batch
from regard.fused.cpu_decoder import CpuDecoder, is_compiled, make_cpu_decoder
from regard.fused.support import cpu_decoder_unsupported_reason
from regard.model import (
    EncoderDecoder,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    NormConfig,
    StackConfig,
)
from tests.fused.decoder_harness import EOS, SPECIAL_TOKENS, STACKS, build_translator, check_logits, randomize, stack

pytestmark = pytest.mark.start_early(12)

VOCAB_SIZE = 1500


def translator(kind: StackConfig | None = None, **more: Any) -> EncoderDecoder:
    return build_translator(VOCAB_SIZE, kind, **more)


KINDS = {
    **STACKS,
    "rms norm, post-norm": stack(norm=NormConfig(kind="rms"), norm_position="post"),
    "gelu, rms norm": stack(norm=NormConfig(kind="rms"), feed_forward=FeedForwardConfig(hidden=48, activation="gelu")),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_logits_equal_unfused(kind: StackConfig) -> None:
    model = translator(kind)
    check_logits(CpuDecoder(model), model, [[5, 6, 7, 8, 9], [100], [7] * 12], 12, capacity=30)


POSITIONS: dict[str, Any] = {
    "sinusoidal": SinusoidalConfig(),
    "halves": SinusoidalConfig(layout="halves"),
    "learned": LearnedConfig(max_length=40),
    "rotary": RotaryConfig(),
    "scaled rotary": RotaryConfig(scaling=YarnScaling(factor=4.0, original_max_length=16)),
    "none": NoPositionConfig(),
}


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS.keys())
@pytest.mark.parametrize("kind", ["pre-norm", "two kv heads", "gated"])
def test_every_position_equals_unfused(position: Any, kind: str) -> None:
    model = translator(KINDS[kind], position=position)
    assert (CpuDecoder(model).encoder is None) == (kind == "gated")
    check_cpu_logits(model, [[5, 6, 7], [8]], 20)


def check_cpu_logits(model: Any, sources: list[list[int]], steps: int) -> None:
    check_logits(CpuDecoder(model), model, sources, steps)


ENCODERS: dict[str, dict[str, Any]] = {
    "shared cross_kv": {"cross_kv": "shared"},
    "source vocabulary": {"source_vocab_size": 300},
    "untied output": {"tie_weights": False},
    "post-norm": {"kind": stack(norm_position="post")},
    "two kv heads": {"kind": stack(MultiHeadConfig(heads=4, kv_heads=2))},
    "rotary positions": {"position": RotaryConfig()},
    "rms norm": {"kind": stack(norm=NormConfig(kind="rms"))},
}


@pytest.mark.parametrize("change", ENCODERS.values(), ids=ENCODERS.keys())
def test_fused_encoder_with_sources_of_many_lengths(change: dict[str, Any]) -> None:
    model = translator(**change)
    rng = random.Random(2)
    sources = [[rng.randrange(3, 300) for _ in range(length)] for length in (3, 0, 140, 64, 1, 200, 63, 90, 5)]
    assert CpuDecoder(model).encoder is not None
    check_cpu_logits(model, sources, 4)


def test_unsupported_encoder_runs_unfused() -> None:
    torch.manual_seed(3)
    config = EncoderDecoderConfig(
        vocab_size=VOCAB_SIZE,
        width=32,
        encoder=stack(MultiHeadConfig(heads=4, pattern="sliding(3)")),
        decoder=stack(),
        special_tokens=SPECIAL_TOKENS,
        output_bias=True,
    )
    model = randomize(config.build())
    assert CpuDecoder(model).encoder is None
    check_cpu_logits(model, [[5, 6, 7, 8, 9], [100]], 6)


def test_source_longer_than_learned_positions_is_an_error() -> None:
    with pytest.raises(UserError, match="learned positions for 4 tokens"):
        CpuDecoder(translator(position=LearnedConfig(max_length=4))).prefill([[5, 6, 7, 8]], 3)


def test_nan_weights_give_nan_logits() -> None:
    model = translator()
    with torch.no_grad():
        model.decoder.final_norm.weight[0] = float("nan")
    for precision in ("float32", "int8"):
        fused = CpuDecoder(model, precision)  # type: ignore[arg-type]
        cache, token = fused.prefill([[5, 6]], 3)
        assert fused.step(token[:, None], cache)[0].isnan().all()


@pytest.mark.parametrize("prompts", [[[5]], [[5, 6, 7, 8], [9], []]], ids=["one", "ragged"])
def test_language_model_continues_prompts(prompts: list[list[int]]) -> None:
    torch.manual_seed(1)
    for position in (SinusoidalConfig(), RotaryConfig()):
        config = LanguageModelConfig(
            vocab_size=VOCAB_SIZE,
            width=32,
            decoder=stack(),
            special_tokens=SPECIAL_TOKENS,
            output_bias=True,
            position=position,
        )
        check_cpu_logits(randomize(config.build()), prompts, 10)


def test_logits_equal_unfused_after_any_reordering() -> None:
    model = translator()
    fused = CpuDecoder(model)
    rng = random.Random(7)
    sources = [[5, 6, 7, 8, 9], [100, 3], [7] * 12]
    with torch.inference_mode():
        cache, token = model.prefill(sources, 60)
        fused_cache, _ = fused.prefill(sources, 60)
        count, group = 3, 1
        for step in range(40):
            expected, cache = model.step(token[:, None], cache)
            actual, fused_cache = fused.step(token[:, None], fused_cache)
            assert torch.allclose(actual, expected, atol=2e-4, rtol=1e-4), step
            operation = rng.choice(["keep", "shuffle", "shuffle", "expand", "remove", "resample"])
            if operation == "keep" or count * group > 40:
                rows, kept = torch.arange(count * group), None
                if count * group > 40:
                    rows, kept = torch.arange(group), torch.tensor([0])
            elif operation == "shuffle":
                rows = torch.tensor(
                    [slot * group + rng.randrange(group) for slot in range(count) for _ in range(group)]
                )
                kept = None
            elif operation == "expand":
                rows = torch.tensor(
                    [slot * group + rng.randrange(group) for slot in range(count) for _ in range(2 * group)]
                )
                kept, group = None, 2 * group
            elif operation == "remove" and count > 1:
                kept = torch.tensor(sorted(rng.sample(range(count), count - 1)))
                rows = torch.tensor(
                    [slot * group + rng.randrange(group) for slot in kept.tolist() for _ in range(group)]
                )
            else:
                rows = torch.randint(0, count * group, (rng.randrange(1, 6),))
                cache.reorder(rows)
                fused_cache.reorder_beams(rows, rows // (fused_cache.rows // fused_cache.sources))
                count, group = len(rows), 1
                token = torch.randint(3, VOCAB_SIZE, (len(rows),))
                continue
            cache.reorder_beams(rows, kept)
            fused_cache.reorder_beams(rows, kept)
            count = count if kept is None else len(kept)
            token = torch.randint(3, VOCAB_SIZE, (len(rows),))


def search_results(decoder: Any, requests: list[Request]) -> list[list[tuple[int, ...]]]:
    return [[one.tokens for one in each] for each in search_batch(decoder, requests, EOS)]


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_search_results_equal_unfused(beam_size: int) -> None:
    model = translator()
    rng = random.Random(beam_size)
    requests = [
        Request(
            tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randrange(1, 20))),
            rng.choice([1, 5, 40, 90]),
            DecodeConfig(beam_size=beam_size),
        )
        for _ in range(12)
    ]
    assert search_results(CpuDecoder(model), requests) == search_results(model, requests)


def test_search_results_do_not_depend_on_the_number_of_threads() -> None:
    fused = CpuDecoder(translator())
    rng = random.Random(5)
    requests = [
        Request(tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randrange(1, 30))), 30, DecodeConfig(beam_size=3))
        for _ in range(40)
    ]
    one = search_all(fused, requests, EOS, batch_tokens=64, threads=1)
    two = search_all(fused, requests, EOS, batch_tokens=64, threads=2)
    assert [[each.tokens for each in row] for row in one] == [[each.tokens for each in row] for row in two]


@pytest.mark.parametrize("threads", [1, 2])
def test_engine_adds_and_removes_requests(threads: int) -> None:
    model = translator()
    fused = CpuDecoder(model)
    rng = random.Random(9)
    requests = [
        Request(
            tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.choice([1, 4, 25]))),
            rng.choice([3, 20, 100]),
            rng.choice([DecodeConfig(beam_size=1), DecodeConfig(beam_size=3)]),
            Constraints(forbidden=rng.choice([(), ((EOS,),)])),
        )
        for _ in range(30)
    ]
    engine = Engine(fused, EOS, max_rows=12, threads=threads)
    futures = []
    for request in requests:
        futures.append(engine.submit(request))
        engine.step()
    engine.run()
    for future, request in zip(futures, requests, strict=True):
        (expected,) = search_batch(model, [request], EOS)
        assert [one.tokens for one in future.result(0)] == [one.tokens for one in expected]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_single_row_equals_unfused(kind: StackConfig) -> None:
    check_cpu_logits(translator(kind), [[5, 6, 7]], 12)


# Errors and unsupported models


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"position": SinusoidalConfig(combine="concatenate", features=8), "tie_weights": False},
            "positions must be added",
        ),
        ({"position": RotaryConfig(scaling=DynamicScaling(factor=2.0, original_max_length=8))}, "rotary frequencies"),
        ({"kind": stack(MultiHeadConfig(heads=4, similarity="cosine"))}, "scaled dot-product attention"),
        ({"kind": stack(MultiHeadConfig(heads=4, pattern="sliding(3)"))}, "all earlier tokens"),
        ({"kind": stack(residual=False)}, "residual"),
    ],
)
def test_unsupported_models_have_a_reason(change: dict[str, Any], reason: str) -> None:
    model = translator(**change)
    assert reason in str(cpu_decoder_unsupported_reason(model))
    assert make_cpu_decoder(model) is model
    with pytest.raises(UserError, match=reason):
        CpuDecoder(model)


def test_other_precisions_are_not_supported() -> None:
    assert "float64" in str(cpu_decoder_unsupported_reason(translator().double()))


def test_full_cache_is_an_error() -> None:
    fused = CpuDecoder(translator())
    cache, token = fused.prefill([[5]], 2)
    for _ in range(2):
        fused.step(token[:, None], cache)
    with pytest.raises(UserError, match="room for 2 positions and 3 are needed"):
        fused.step(token[:, None], cache)


def test_text_longer_than_learned_positions_is_an_error() -> None:
    fused = CpuDecoder(translator(position=LearnedConfig(max_length=4)))
    cache, token = fused.prefill([[5]], 9)
    for _ in range(4):
        fused.step(token[:, None], cache)
    with pytest.raises(UserError, match="learned positions for 4 tokens"):
        fused.step(token[:, None], cache)


@pytest.mark.parametrize("kind", [stack(), KINDS["gelu"]], ids=["fused step", "unfused step"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_shortlist_gives_the_logits_of_its_tokens(kind: StackConfig, precision: Any) -> None:
    decoder = CpuDecoder(translator(kind), precision)
    shortlist = torch.tensor([3, 9, 700, VOCAB_SIZE - 1])
    shortlisted = decoder.with_shortlist(shortlist)
    with torch.inference_mode():
        (first, token), (second, _) = (each.prefill([[5, 6, 7], [8]], 4) for each in (decoder, shortlisted))
        for _ in range(3):
            logits, first = decoder.step(token[:, None], first)
            shortlist_logits, second = shortlisted.step(token[:, None], second)
            assert torch.equal(shortlist_logits, logits[..., shortlist])
            token = shortlist[:2]


def test_shortlist_of_the_unfused_model() -> None:
    model = translator()
    shortlist = torch.tensor([3, 9, 700])
    state, token = model.prefill([[5, 6, 7], [8]], 4)
    other, _ = model.prefill([[5, 6, 7], [8]], 4)
    logits, _ = model.step(token[:, None], state)
    shortlist_logits, _ = model.with_shortlist(shortlist).step(token[:, None], other)
    assert torch.allclose(shortlist_logits, logits[..., shortlist], atol=1e-5)
    assert model.step(token[:, None], state)[0].shape[-1] == VOCAB_SIZE


def test_is_compiled_after_a_step() -> None:
    decoder = CpuDecoder(translator())
    cache, token = decoder.prefill([[5]], 2)
    decoder.step(token[:, None], cache)
    assert is_compiled()


def test_sources_of_a_language_model_can_be_removed() -> None:
    torch.manual_seed(1)
    config = LanguageModelConfig(vocab_size=VOCAB_SIZE, width=32, decoder=stack(), special_tokens=SPECIAL_TOKENS)
    cache, _ = CpuDecoder(config.build().eval()).prefill([[5, 6], [7], [8]], 4)
    cache.reorder_beams(torch.tensor([2, 0]), torch.tensor([2, 0]))
    assert (cache.rows, cache.sources, cache.lengths.tolist()) == (2, 2, [0, 1])
