"""The fused CPU decoder in int8 equals an emulation of quantization in PyTorch, and is close to float32."""

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("numba")


from regard import UserError
from regard.decode import DecodeConfig, Engine, Request, search_batch
from regard.fused.cpu_decoder import CpuDecoder, make_cpu_decoder
from regard.fused.cpu_forward import FusedStep, UnfusedStep
from regard.kernels.cpu.packed_gemm import quantize_weight
from regard.model import EncoderDecoder, LanguageModelConfig, StackConfig
from regard.task.translation.pipeline import Translator
from tests.fused.decoder_harness import EOS, SPECIAL_TOKENS, randomize, stack
from tests.fused.test_cpu_decoder import KINDS, VOCAB_SIZE, translator

pytestmark = pytest.mark.start_early(12)

SOURCES = [[5, 6, 7, 8, 9], [100], [7] * 12]


class QuantizedLinear(nn.Module):
    """A linear layer in PyTorch with quantized and dequantized weights and activations."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        quantized, scale = quantize_weight(weight.detach().numpy())
        self.weight, self.bias = torch.from_numpy(quantized * scale[:, None]), bias

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(dim=-1, keepdim=True) / 127
        return nn.functional.linear(torch.floor(x / scale + 0.5) * scale, self.weight, self.bias)


def emulate_int8(model: Any) -> Any:
    """A copy of the model in PyTorch with quantized linear layers and logits."""
    quantized = copy.deepcopy(model)
    for module in list(quantized.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, QuantizedLinear(child.weight, child.bias))
    output = quantized.embed_tokens if quantized.lm_head is None else quantized.lm_head
    quantized_output = QuantizedLinear(output.weight, quantized.lm_head_bias)
    output.logits = lambda x, bias: quantized_output(x)
    return quantized


def decode(decoder: Any, sources: list[list[int]], count: int = 12) -> Tensor:
    """Logits of `count` steps with the same random tokens for every decoder.  # (count, rows, vocab_size)"""
    rng = torch.Generator().manual_seed(4)
    with torch.inference_mode():
        cache, token = decoder.prefill(sources, count)
        outputs = []
        for _ in range(count):
            logits, cache = decoder.step(token[:, None], cache)
            outputs.append(logits[:, 0])
            token = torch.randint(3, VOCAB_SIZE, token.shape, generator=rng)
    return torch.stack(outputs)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("sources", [SOURCES, SOURCES[:1]], ids=["three rows", "one row"])
def test_logits_equal_the_quantized_model(kind: StackConfig, sources: list[list[int]]) -> None:
    model = translator(kind)
    actual, expected, exact = (
        decode(each, sources) for each in (CpuDecoder(model, "int8"), emulate_int8(model), model)
    )
    error, quantization = ((each - expected).abs() / expected.std() for each in (actual, exact))
    assert error.median() < 1e-5
    assert error.mean() < 0.1 * quantization.mean()  # a few numbers are rounded the other way
    assert error.max() < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_close_to_float32(kind: str) -> None:
    model = translator(KINDS[kind])
    actual, quantized, expected = (
        decode(each, SOURCES) for each in (CpuDecoder(model, "int8"), emulate_int8(model), model)
    )
    error, quantization = ((each - expected).abs() / expected.std() for each in (actual, quantized))
    assert error.mean() < 0.02
    assert error.max() < 1.05 * quantization.max()  # no more than the error of quantization itself
    if kind != "rms norm, post-norm":  # in post-norm models it is 0.07 to 0.22, depending on the seed
        assert error.max() < 0.15


def test_language_model_is_close_to_float32() -> None:
    torch.manual_seed(1)
    config = LanguageModelConfig(
        vocab_size=VOCAB_SIZE, width=32, decoder=stack(), special_tokens=SPECIAL_TOKENS, output_bias=True
    )
    model = randomize(config.build())
    prompts = [[5, 6, 7, 8], [9], []]
    actual, expected = decode(CpuDecoder(model, "int8"), prompts), decode(model, prompts)
    assert ((actual - expected).abs() / expected.std()).max() < 0.15


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("kind", [stack(), stack(norm_position="post")], ids=["pre-norm", "post-norm"])
def test_row_alone_is_bit_identical_to_the_row_in_a_batch(kind: StackConfig, precision: Any) -> None:
    fused = CpuDecoder(translator(kind), precision)
    sources = [*SOURCES, [3, 4], *([[9, 8, 7]] * 4)]
    batch = decode(fused, sources)
    for number, source in enumerate(sources):
        assert torch.equal(decode_alone(fused, source, number, len(sources)), batch[:, number])


def decode_alone(decoder: Any, source: list[int], number: int, rows: int, count: int = 12) -> Tensor:
    """The result of `decode` for one row of a batch, computed alone."""
    rng = torch.Generator().manual_seed(4)
    with torch.inference_mode():
        cache, token = decoder.prefill([source], count)
        outputs = []
        for _ in range(count):
            logits, cache = decoder.step(token[:, None], cache)
            outputs.append(logits[0, 0])
            token = torch.randint(3, VOCAB_SIZE, (rows,), generator=rng)[number : number + 1]
    return torch.stack(outputs)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_reordered_and_added_rows_are_bit_identical_to_single_rows(precision: Any) -> None:
    """The logits of every row equal those of a new cache after the row's source and tokens."""
    fused, rng = CpuDecoder(translator(), precision), random.Random(3)
    group = 2
    sources = [[5, 6, 7, 8, 9], [100, 3], [7] * 12]
    with torch.inference_mode():
        cache, start = fused.prefill(sources, 60)
        cache.reorder_beams(torch.arange(3).repeat_interleave(group), None)
        texts: list[list[int]] = [[int(start[0])] for _ in range(3 * group)]
        for number in range(25):
            logits, cache = fused.step(torch.tensor([text[-1] for text in texts])[:, None], cache)
            if number % 4 == 3:
                row = rng.randrange(len(texts))
                assert torch.equal(logits[row, 0], last_logits(fused, sources[row // group], texts[row]))
            slots = list(range(len(sources)))
            if number % 7 == 5 and len(slots) > 1:
                slots.remove(rng.choice(slots))
            rows = [slot * group + rng.randrange(group) for slot in slots for _ in range(group)]
            kept = None if len(slots) == len(sources) else torch.tensor(slots)
            cache.reorder_beams(torch.tensor(rows), kept)
            sources = [sources[slot] for slot in slots]
            texts = [[*texts[row], rng.randrange(3, VOCAB_SIZE)] for row in rows]
            if number % 6 == 4:
                new = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randrange(1, 20))]
                slot_index = rng.choice([0, len(sources)])
                other, start = fused.prefill([new], 60)
                other.reorder_beams(torch.zeros(group, dtype=torch.long), None)
                cache.scatter_rows(torch.tensor([slot_index]), other)
                sources[slot_index : slot_index + 1] = [new]
                texts[slot_index * group : (slot_index + 1) * group] = [[int(start[0])] for _ in range(group)]


def last_logits(decoder: Any, source: list[int], text: list[int]) -> Tensor:
    cache, _ = decoder.prefill([source], len(text))
    for token in text:
        logits, cache = decoder.step(torch.tensor([[token]]), cache)
    alone: Tensor = logits[0, 0]
    return alone


@pytest.mark.parametrize("beam_size", [1, 4])
def test_search_results_do_not_depend_on_the_batch(beam_size: int) -> None:
    fused, rng = CpuDecoder(translator(), "int8"), random.Random(beam_size)
    requests = [
        Request(
            tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randrange(1, 20))),
            30,
            DecodeConfig(beam_size=beam_size),
        )
        for _ in range(12)
    ]
    batch = search_batch(fused, requests, EOS)
    engine = Engine(fused, EOS, max_rows=10)
    futures = [engine.submit(request) for request in requests]
    engine.run()
    for request, outputs, future in zip(requests, batch, futures, strict=True):
        (alone,) = search_batch(fused, [request], EOS)
        assert [one.tokens for one in outputs] == [one.tokens for one in alone]
        assert [one.tokens for one in future.result(0)] == [one.tokens for one in alone]


LINES = (
    "She bought two tickets.",
    "The cat ate the mouse.",
    "I have never been to Ankara, but my brother lives there.",
    "Where did you put the keys?",
    "If it rains tomorrow, we will stay at home.",
    "He forgot to lock the door before he left.",
    "This book is much more interesting than that one.",
    "Can you tell me what time the train leaves?",
)


def test_translations_of_the_pretrained_model_are_nearly_equal() -> None:
    translator_pipeline = Translator.load("en-tr")
    model, end = translator_pipeline.seq2seq_model, translator_pipeline.target_tokenizer.eos
    assert isinstance(model, EncoderDecoder)
    assert end is not None
    requests = [
        Request(tuple(row), 40, DecodeConfig(beam_size=1))
        for row in translator_pipeline.source_tokenizer.encode_batch(LINES)
    ]
    quantized = CpuDecoder(model, "int8")
    float32, int8 = (search_batch(decoder, requests, end) for decoder in (model, quantized))
    agreed = total = 0
    with torch.inference_mode():
        for request, (one,) in zip(requests, float32, strict=True):
            cache, token = quantized.prefill([request.source], 41)
            for expected in (*one.tokens, end):
                logits, cache = quantized.step(token[:, None], cache)
                agreed, total = agreed + int(logits.argmax() == expected), total + 1
                token = torch.tensor([expected])
    assert agreed >= 0.98 * total
    assert sum(one.tokens == other.tokens for (one,), (other,) in zip(float32, int8, strict=True)) >= len(LINES) - 1


def test_weights_take_a_quarter_of_the_memory() -> None:
    model = translator(stack())
    steps = [CpuDecoder(model, precision).decode_step for precision in ("float32", "int8")]
    float32, int8 = ([packed[0].nbytes for packed in step.weights] for step in steps if isinstance(step, FusedStep))
    assert float32 == [4 * size for size in int8]


def test_steps_are_fused_where_possible() -> None:
    assert isinstance(CpuDecoder(translator(), "int8").decode_step, FusedStep)
    assert isinstance(CpuDecoder(translator(KINDS["gated"]), "int8").decode_step, UnfusedStep)
    assert make_cpu_decoder(translator(), "int8").precision == "int8"


def test_unknown_precision_is_an_error() -> None:
    with pytest.raises(UserError, match="float32 or int8; found 'int4'"):
        CpuDecoder(translator(), "int4")  # type: ignore[arg-type]


def test_token_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(UserError, match=f"Token id {VOCAB_SIZE} is outside the vocabulary"):
        CpuDecoder(translator()).prefill([[5, VOCAB_SIZE]], 3)
