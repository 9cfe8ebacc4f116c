"""The fast form of a writer gives what the plain one gives, whatever it is made of and however rows move."""

import random
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from regard import UserError
from regard.attention import HeadsConfig
from regard.attention.position import LearnedConfig, NoPositionConfig, RotaryConfig, SinusoidalConfig
from regard.attention.rotary import DynamicScaling, YarnScaling
from regard.decode import DecodeConfig, Engine, Request, Wish, search_all, search_batch
from regard.decode.beam import Beams
from regard.decode.best import best_tokens
from regard.decode.single import Single
from regard.fast import swift_tiles
from regard.fast.swift import Swift, swift, why_not
from regard.model import (
    EncoderDecoder,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    NormConfig,
    StackConfig,
    TokensConfig,
)

SIZE, END = 1500, 2
TOKENS = TokensConfig(padding=0, start=1, end=END)


def stack(heads: HeadsConfig | None = None, **more: Any) -> StackConfig:
    more.setdefault("feed_forward", FeedForwardConfig(hidden=48))
    return StackConfig(layers=2, attention=heads or HeadsConfig(heads=4), dropout=0.0, **more)


def translator(kind: StackConfig | None = None, **more: Any) -> EncoderDecoder:
    torch.manual_seed(3)
    kind = kind or stack()
    config = EncoderDecoderConfig(
        vocabulary=SIZE, width=32, encoder=kind, decoder=kind, tokens=TOKENS, output_bias=True, **more
    )
    return lively(config.build())


def lively(model: Any) -> Any:
    """Outputs that differ and end sooner or later; random biases and norms, so that none can be forgotten."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
        model.vocabulary.weight.mul_(4)
        model.output_bias[END] += 6
    return model.eval()


KINDS = {
    "pre-norm": stack(),
    "post-norm": stack(order="post"),
    "one key head": stack(HeadsConfig(heads=4, key_heads=1)),
    "two key heads": stack(HeadsConfig(heads=4, key_heads=2)),
    "no biases": stack(
        HeadsConfig(heads=2, bias=False),
        feed_forward=FeedForwardConfig(hidden=40, bias=False),
        norm=NormConfig(bias=False),
    ),
    "rms norm": stack(norm=NormConfig(kind="rms")),
    "rms norm behind": stack(norm=NormConfig(kind="rms"), order="post"),
    "gelu": stack(feed_forward=FeedForwardConfig(hidden=48, activation="gelu")),
    "gelu, rms norm": stack(norm=NormConfig(kind="rms"), feed_forward=FeedForwardConfig(hidden=48, activation="gelu")),
    "gated": stack(feed_forward=FeedForwardConfig(hidden=48, activation="swiglu")),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_steps_give_the_same_logits(kind: StackConfig) -> None:
    model = translator(kind)
    fast = Swift(model)
    sources = [[5, 6, 7, 8, 9], [100], [7] * 12]
    with torch.inference_mode():
        plain, token = model.begin(sources, 30)
        quick, same = fast.begin(sources, 30)
        assert torch.equal(token, same)
        for _ in range(12):
            wanted, plain = model.step(token[:, None], plain)
            found, quick = fast.step(token[:, None], quick)
            assert torch.allclose(found, wanted, atol=2e-4, rtol=1e-4)
            token = torch.randint(3, SIZE, token.shape)


POSITIONS: dict[str, Any] = {
    "sinusoidal": SinusoidalConfig(),
    "halves": SinusoidalConfig(layout="halves"),
    "learned": LearnedConfig(limit=40),
    "rotary": RotaryConfig(),
    "scaled rotary": RotaryConfig(scaling=YarnScaling(factor=4.0, trained=16)),
    "none": NoPositionConfig(),
}


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS.keys())
@pytest.mark.parametrize("kind", ["pre-norm", "two key heads", "gated"])
def test_positions_are_the_same(position: Any, kind: str) -> None:
    model = translator(KINDS[kind], position=position)
    assert (Swift(model).reader is None) == (kind == "gated")
    check_logits(model, [[5, 6, 7], [8]], 20)


def check_logits(model: Any, sources: list[list[int]], steps: int) -> None:
    fast = Swift(model)
    with torch.inference_mode():
        plain, token = model.begin(sources, steps)
        quick, _ = fast.begin(sources, steps)
        for _ in range(steps):
            wanted, plain = model.step(token[:, None], plain)
            found, quick = fast.step(token[:, None], quick)
            assert torch.allclose(found, wanted, atol=2e-4, rtol=1e-4)
            token = torch.randint(3, SIZE, token.shape)


READERS: dict[str, dict[str, Any]] = {
    "one projection for all layers": {"memory": "shared"},
    "words of its own": {"source_vocabulary": 300},
    "an output of its own": {"tie": False},
    "post-norm": {"kind": stack(order="post")},
    "two key heads": {"kind": stack(HeadsConfig(heads=4, key_heads=2))},
    "rotary positions": {"position": RotaryConfig()},
    "rms norm": {"kind": stack(norm=NormConfig(kind="rms"))},
}


@pytest.mark.parametrize("change", READERS.values(), ids=READERS.keys())
def test_sources_of_all_lengths_are_read_alike(change: dict[str, Any]) -> None:
    model = translator(**change)
    chance = random.Random(2)
    sources = [[chance.randrange(3, 300) for _ in range(length)] for length in (3, 0, 140, 64, 1, 200, 63, 90, 5)]
    assert Swift(model).reader is not None
    check_logits(model, sources, 4)


def test_an_encoder_the_kernels_do_not_know_is_read_by_parts() -> None:
    torch.manual_seed(3)
    config = EncoderDecoderConfig(
        vocabulary=SIZE,
        width=32,
        encoder=stack(HeadsConfig(heads=4, pattern="sliding(3)")),
        decoder=stack(),
        tokens=TOKENS,
        output_bias=True,
    )
    model = lively(config.build())
    assert Swift(model).reader is None
    check_logits(model, [[5, 6, 7, 8, 9], [100]], 6)


def test_learned_positions_of_a_source_end_with_their_own_sentence() -> None:
    with pytest.raises(UserError, match="learned positions for 4 tokens"):
        Swift(translator(position=LearnedConfig(limit=4))).begin([[5, 6, 7, 8]], 3)


def test_what_is_not_a_number_is_not_hidden() -> None:
    model = translator()
    with torch.no_grad():
        model.decoder.norm.weight[0] = float("nan")
    for precision in ("float32", "int8"):
        fast = Swift(model, precision)  # type: ignore[arg-type]
        cache, token = fast.begin([[5, 6]], 3)
        assert fast.step(token[:, None], cache)[0].isnan().all()


@pytest.mark.parametrize("prompts", [[[5]], [[5, 6, 7, 8], [9], []]], ids=["one", "ragged"])
def test_a_language_model_goes_on_with_its_prompts(prompts: list[list[int]]) -> None:
    torch.manual_seed(1)
    for position in (SinusoidalConfig(), RotaryConfig()):
        config = LanguageModelConfig(
            vocabulary=SIZE, width=32, decoder=stack(), tokens=TOKENS, output_bias=True, position=position
        )
        check_logits(lively(config.build()), prompts, 10)


def test_rows_may_be_moved_in_every_way() -> None:
    model = translator()
    fast = Swift(model)
    chance = random.Random(7)
    sources = [[5, 6, 7, 8, 9], [100, 3], [7] * 12]
    with torch.inference_mode():
        plain, token = model.begin(sources, 60)
        quick, _ = fast.begin(sources, 60)
        count, group = 3, 1
        for number in range(40):
            wanted, plain = model.step(token[:, None], plain)
            found, quick = fast.step(token[:, None], quick)
            assert torch.allclose(found, wanted, atol=2e-4, rtol=1e-4), number
            move = chance.choice(["stay", "shuffle", "shuffle", "spread", "leave", "mix"])
            if move == "stay" or count * group > 40:
                rows, kept = torch.arange(count * group), None
                if count * group > 40:
                    rows, kept = torch.arange(group), torch.tensor([0])
            elif move == "shuffle":
                rows = torch.tensor(
                    [slot * group + chance.randrange(group) for slot in range(count) for _ in range(group)]
                )
                kept = None
            elif move == "spread":
                rows = torch.tensor(
                    [slot * group + chance.randrange(group) for slot in range(count) for _ in range(2 * group)]
                )
                kept, group = None, 2 * group
            elif move == "leave" and count > 1:
                kept = torch.tensor(sorted(chance.sample(range(count), count - 1)))
                rows = torch.tensor(
                    [slot * group + chance.randrange(group) for slot in kept.tolist() for _ in range(group)]
                )
            else:
                rows = torch.randint(0, count * group, (chance.randrange(1, 6),))
                plain, quick = model.reorder(plain, rows), fast.reorder(quick, rows)
                count, group = len(rows), 1
                token = torch.randint(3, SIZE, (len(rows),))
                continue
            plain, quick = model.regroup(plain, rows, kept), fast.regroup(quick, rows, kept)
            count = count if kept is None else len(kept)
            token = torch.randint(3, SIZE, (len(rows),))


def found_by(worker: Any, requests: list[Request]) -> list[list[tuple[int, ...]]]:
    return [[one.tokens for one in each] for each in search_batch(worker, requests, END)]


@pytest.mark.parametrize("beams", [1, 2, 5])
def test_searches_find_the_same(beams: int) -> None:
    model = translator()
    chance = random.Random(beams)
    requests = [
        Request(
            tuple(chance.randrange(3, SIZE) for _ in range(chance.randrange(1, 20))),
            chance.choice([1, 5, 40, 90]),
            DecodeConfig(beams=beams),
        )
        for _ in range(12)
    ]
    assert found_by(Swift(model), requests) == found_by(model, requests)


def test_several_threads_find_what_one_finds() -> None:
    fast = Swift(translator())
    chance = random.Random(5)
    requests = [
        Request(tuple(chance.randrange(3, SIZE) for _ in range(chance.randrange(1, 30))), 30, DecodeConfig(beams=3))
        for _ in range(40)
    ]
    one = search_all(fast, requests, END, batch_tokens=64, threads=1)
    two = search_all(fast, requests, END, batch_tokens=64, threads=2)
    assert [[each.tokens for each in row] for row in one] == [[each.tokens for each in row] for row in two]


@pytest.mark.parametrize("threads", [1, 2])
def test_requests_join_and_leave_an_engine_on_it(threads: int) -> None:
    model = translator()
    fast = Swift(model)
    chance = random.Random(9)
    requests = [
        Request(
            tuple(chance.randrange(3, SIZE) for _ in range(chance.choice([1, 4, 25]))),
            chance.choice([3, 20, 100]),
            chance.choice([DecodeConfig(beams=1), DecodeConfig(beams=3)]),
            Wish(forbidden=chance.choice([(), ((END,),)])),
        )
        for _ in range(30)
    ]
    engine = Engine(fast, END, rows=12, threads=threads)
    tickets = []
    for request in requests:
        tickets.append(engine.submit(request))
        engine.work()
    engine.run()
    for ticket, request in zip(tickets, requests, strict=True):
        (wanted,) = search_batch(model, [request], END)
        assert [one.tokens for one in ticket.result(0)] == [one.tokens for one in wanted]


# The compiled searches against the readable ones.


class Loops:
    """A stepper whose scores are random numbers, the same for the same history, with an end now and then."""

    def __init__(self, seed: int, size: int) -> None:
        self.seed, self.size = seed, size

    def step(self, tokens: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = (state * 31 + tokens[:, 0] + 7) % 1_000_003
        rows = []
        for number in state.tolist():
            random = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            scores = 2 * torch.randn(self.size, generator=random)
            scores[END] += 3
            rows.append(scores)
        return torch.stack(rows)[:, None], state

    def reorder(self, state: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return state[rows]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("beams", [2, 5])
def test_the_compiled_step_of_beam_search_is_the_readable_one(seed: int, beams: int) -> None:
    from regard.decode.search import search

    limits = [1, 2, 6, 15, 70, 9]

    class Readable(Beams):
        """A class of its own does not take the compiled way."""

    found = [
        search(Loops(seed, 1030), torch.arange(6), torch.ones(6, dtype=torch.long), kind(limits, END, beams))
        for kind in (Beams, Readable)
    ]
    for quick, plain in zip(*found, strict=True):
        assert [one.tokens for one in quick] == [one.tokens for one in plain]
        assert [one.ended for one in quick] == [one.ended for one in plain]
        for one, other in zip(quick, plain, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-5)
            assert one.steps == pytest.approx(other.steps, abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_the_compiled_step_of_greedy_search_is_the_readable_one(seed: int) -> None:
    from regard.decode.search import search

    class Readable(Single):
        plain = False

    limits = [1, 2, 6, 15, 70, 9]
    found = [
        search(Loops(seed, 1030), torch.arange(6), torch.ones(6, dtype=torch.long), kind(limits, END))
        for kind in (Single, Readable)
    ]
    for (quick,), (plain,) in zip(*found, strict=True):
        assert (quick.tokens, quick.ended) == (plain.tokens, plain.ended)
        assert quick.steps == pytest.approx(plain.steps, abs=1e-5)


@pytest.mark.parametrize("size", [1024, 1025, 1087, 8000])
@pytest.mark.parametrize("count", [1, 3, 10, 64])
def test_the_best_tokens_are_those_of_torch(size: int, count: int) -> None:
    torch.manual_seed(size + count)
    logits = 5 * torch.randn(7, size)
    best, tokens, total = best_tokens(logits, count)
    wanted, which = logits.topk(count, dim=1)
    assert torch.equal(best, wanted)
    assert torch.equal(tokens, which)
    assert torch.allclose(total, logits.logsumexp(dim=1, keepdim=True), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 9, 23])
@pytest.mark.parametrize("size", [1, 7, 64, 200])
def test_a_product_is_the_sum_it_should_be(rows: int, size: int) -> None:
    random = np.random.default_rng(rows + size)
    x, weight, bias, out = (
        random.standard_normal(shape).astype("f") for shape in ((rows, 23), (size, 23), size, (rows, size))
    )
    weights = tuple(array[None] for array in swift_tiles.pack_floats(weight, bias))
    wanted = x @ weight.T + bias
    added = out + wanted
    swift_tiles.multiply_rows(x, weights, 0, out, True, False)
    assert np.allclose(out, added, atol=1e-5)
    swift_tiles.multiply_rows(x, weights, 0, out, False, True)
    assert np.allclose(out, np.maximum(wanted, 0), atol=1e-5)
    swift_tiles.multiply_rows(x, weights, 0, out, False, False)
    assert np.allclose(out, wanted, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_a_single_row_is_no_exception(kind: StackConfig) -> None:
    check_logits(translator(kind), [[5, 6, 7]], 12)


# What has no fast form.


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"position": SinusoidalConfig(join="concatenate", features=8), "tie": False}, "positions must be added"),
        ({"position": RotaryConfig(scaling=DynamicScaling(factor=2.0, trained=8))}, "angles of positions"),
        ({"kind": stack(HeadsConfig(heads=4, similarity="cosine"))}, "scaled dot products"),
        ({"kind": stack(HeadsConfig(heads=4, pattern="sliding(3)"))}, "every earlier token"),
        ({"kind": stack(order="none")}, "residual"),
    ],
)
def test_a_model_without_a_fast_form_stays_itself_and_says_why(change: dict[str, Any], reason: str) -> None:
    model = translator(**change)
    assert reason in str(why_not(model))
    assert swift(model) is model
    with pytest.raises(UserError, match=reason):
        Swift(model)


def test_other_precisions_have_no_fast_form() -> None:
    assert "float64" in str(why_not(translator().double()))


def test_a_full_cache_says_so() -> None:
    fast = Swift(translator())
    cache, token = fast.begin([[5]], 2)
    for _ in range(2):
        fast.step(token[:, None], cache)
    with pytest.raises(UserError, match="room for 2 positions and 3 are needed"):
        fast.step(token[:, None], cache)


def test_learned_positions_end_with_their_own_sentence() -> None:
    fast = Swift(translator(position=LearnedConfig(limit=4)))
    cache, token = fast.begin([[5]], 9)
    for _ in range(4):
        fast.step(token[:, None], cache)
    with pytest.raises(UserError, match="learned positions for 4 tokens"):
        fast.step(token[:, None], cache)


@pytest.mark.parametrize("kind", [stack(), KINDS["gelu"]], ids=["in one", "by parts"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_only_some_words_are_scored_where_asked(kind: StackConfig, precision: Any) -> None:
    worker = Swift(translator(kind), precision)
    words = torch.tensor([3, 9, 700, SIZE - 1])
    some = worker.limited(words)
    with torch.inference_mode():
        (first, token), (second, _) = (each.begin([[5, 6, 7], [8]], 4) for each in (worker, some))
        for _ in range(3):
            every, first = worker.step(token[:, None], first)
            few, second = some.step(token[:, None], second)
            assert torch.equal(few, every[..., words])
            token = words[:2]


def test_a_plain_writer_scores_some_words_only_where_asked() -> None:
    model = translator()
    words = torch.tensor([3, 9, 700])
    state, token = model.begin([[5, 6, 7], [8]], 4)
    other, _ = model.begin([[5, 6, 7], [8]], 4)
    every, _ = model.step(token[:, None], state)
    few, _ = model.limited(words).step(token[:, None], other)
    assert torch.allclose(few, every[..., words], atol=1e-5)
    assert model.step(token[:, None], state)[0].shape[-1] == SIZE
