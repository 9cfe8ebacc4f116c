"""Decoding speed on a GPU against Hugging Face on the same weights; run by `decode.py --gpu`.

Two models in bf16: the paper's base model (6 + 6 layers, width 512, vocabulary 32,768) with sources of 32 tokens and
exactly 64 new ones, greedy and with beam size 4; and GPT-2 with 124 million parameters, with prompts of 32 tokens and
exactly 128 new ones. regard and the peer are timed alternately in one process. Before that, the outputs of the fused
decoder in float32 are checked against those of the model itself; for bf16 the fraction of outputs and tokens that
differ from float32 is reported.

Each case has the lower bounds on the time of a step (bytes of weights and KV cache over memory bandwidth, FLOPs over
the FLOP/s of large matmuls, and the launch time of its kernels) and a breakdown of its time by kind of kernel.
"""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import log, median_ratio, time_alternating, word_level_tokenizer

from regard.attention import MultiHeadConfig
from regard.decode import DecodeConfig, Hypothesis, Request, search_batch
from regard.decode.config import make_strategy
from regard.decode.cuda_graphs import GraphedStep, GraphPool
from regard.decode.strategy import SlottedStrategy
from regard.fused.cuda_decoder import CudaDecoder
from regard.interop.huggingface import export_huggingface, import_huggingface
from regard.model import EncoderDecoderConfig, FeedForwardConfig, SpecialTokensConfig, StackConfig, count_parameters
from regard.run import load_model, save_model

PAD, BOS, EOS = 0, 1, 2
KERNEL_KINDS = {
    "products": ("gemm", "gemv", "cutlass", "splitK", "nvjet", "cublas"),
    "attention": ("_attention_decode",),
    "sums and norms": ("_add_norm", "_embed_decode"),
    "the greatest scores": ("_reduce_parts", "_select"),
}
"""Kernels by substrings of their names; the rest belongs to the search."""


@dataclass(frozen=True)
class Workload:
    """A model, the same model in Hugging Face, and the shapes to decode."""

    name: str
    model: Any
    peer: Any
    vocab_size: int
    source_length: int
    new_tokens: int
    batches: tuple[tuple[int, int], ...]
    """Batch and beam size of each case."""

    @property
    def is_encoder_decoder(self) -> bool:
        return self.name == "base"


def base_model(folder: Path, device: str, layers: int = 6, width: int = 512, vocab_size: int = 32_768) -> Workload:
    from transformers import AutoModelForSeq2SeqLM

    stack = StackConfig(
        layers=layers,
        attention=MultiHeadConfig(heads=8),
        feed_forward=FeedForwardConfig(hidden=4 * width),
        norm_position="post",
        dropout=0.0,
    )
    special_tokens = SpecialTokensConfig(pad=PAD, bos=BOS, eos=EOS)
    torch.manual_seed(0)
    config = EncoderDecoderConfig(
        vocab_size=vocab_size, width=width, encoder=stack, decoder=stack, special_tokens=special_tokens
    )
    model = config.build().eval()
    save_model(model, folder / "base", tokenizer=word_level_tokenizer(vocab_size))
    export_huggingface(folder / "base", folder / "base-hf")
    peer = AutoModelForSeq2SeqLM.from_pretrained(folder / "base-hf", dtype=torch.bfloat16).eval().to(device)
    batches = tuple((rows, beam_size) for beam_size in (1, 4) for rows in (1, 64, 256))
    return Workload("base", model.to(device), peer, vocab_size, 32, 64, batches)


def gpt2(folder: Path, device: str, **sizes: int) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    peer = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    peer.save_pretrained(folder / "gpt2-hf")
    import_huggingface(folder / "gpt2-hf", folder / "gpt2")
    model = load_model(folder / "gpt2").model.float().eval()
    vocab_size, batches = peer.config.vocab_size, ((1, 1), (64, 1))
    return Workload("GPT-2 124M", model.to(device), peer.to(device, torch.bfloat16), vocab_size, 32, 128, batches)


def random_sources(work: Workload, batch: int) -> list[list[int]]:
    """Random token ids; for the encoder–decoder without the EOS that is appended to a source."""
    generator = torch.Generator().manual_seed(1)
    length = work.source_length - work.is_encoder_decoder
    rows: list[list[int]] = torch.randint(3, work.vocab_size, (batch, length), generator=generator).tolist()
    return rows


def make_requests(work: Workload, batch: int, beam_size: int) -> list[Request]:
    config = DecodeConfig(beam_size=beam_size, nbest=1)
    return [Request(tuple(row), work.new_tokens, config) for row in random_sources(work, batch)]


def decode_with_hugging_face(work: Workload, batch: int, beam_size: int, device: str) -> Callable[[], object]:
    suffix = [EOS] if work.is_encoder_decoder else []
    ids = torch.tensor([[*row, *suffix] for row in random_sources(work, batch)], device=device)
    work.peer.generation_config.max_length = None
    arguments = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "num_beams": beam_size,
        "do_sample": False,
        "min_new_tokens": work.new_tokens,
        "max_new_tokens": work.new_tokens,
        "pad_token_id": PAD,
    }
    return lambda: work.peer.generate(**arguments)


def fraction_different(actual: Sequence[list[Hypothesis]], expected: Sequence[list[Hypothesis]]) -> dict[str, float]:
    """The fraction of outputs that differ, and of tokens that differ position by position."""
    pairs = [(one[0].tokens, other[0].tokens) for one, other in zip(actual, expected, strict=True)]
    tokens = [(a, b) for one, other in pairs for a, b in zip(one, other, strict=True)]
    return {
        "outputs": sum(one != other for one, other in pairs) / len(pairs),
        "tokens": sum(a != b for a, b in tokens) / len(tokens),
    }


def step_lower_bounds(work: Workload, decoder: Any, batch: int, beam_size: int, kernels: int) -> dict[str, float]:
    """Lower bounds in seconds on a step in the middle of the output: memory traffic, FLOPs, kernel launches."""
    parameters = count_parameters(decoder.model.decoder) + decoder.lm_head.numel()
    weight_bytes = parameters * decoder.table.element_size()
    token_bytes = decoder.kv_bytes_per_token()
    rows = batch * beam_size
    self_length = work.new_tokens // 2 + (0 if work.is_encoder_decoder else work.source_length)
    cross_bytes = batch * work.source_length * token_bytes if work.is_encoder_decoder else 0
    cache_bytes = rows * self_length * token_bytes + cross_bytes
    bandwidth, flop_rate, launch_seconds = measure_gpu_limits()
    return {
        "bytes": (weight_bytes + cache_bytes) / bandwidth,
        "operations": 2 * parameters * rows / flop_rate,
        "launches": kernels * launch_seconds,
    }


@cache
def measure_gpu_limits() -> tuple[float, float, float]:
    """Memory bandwidth (bytes/s) and matmul FLOP/s that this GPU reaches, and seconds per tiny kernel in a graph."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x = torch.empty(1 << 29, device="cuda")
    y, one = torch.empty_like(x), torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    one.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(1000):
            one.add_(1)
    matmul_seconds, copy_seconds, graph_seconds = (
        statistics.median(times)
        for times in time_alternating([lambda: a @ b, lambda: y.copy_(x), graph.replay], repeats=10)
    )
    bandwidth, flop_rate = 2 * x.nbytes / copy_seconds, 2 * 8192**3 / matmul_seconds
    launch_seconds = graph_seconds / 1000
    log({"case": "limits", "bytes": bandwidth, "operations": flop_rate, "launch": launch_seconds})
    return bandwidth, flop_rate, launch_seconds


@torch.inference_mode()
def profile_step(work: Workload, decoder: Any, batch: int, beam_size: int) -> tuple[dict[str, float], int]:
    """Microseconds of a step by kind of kernel, and how many kernels it launches."""
    requests = make_requests(work, batch, beam_size)
    state, start_tokens = decoder.prefill([request.source for request in requests], work.new_tokens)
    strategy = make_strategy(requests[0].config, [work.new_tokens] * batch, -1, device=start_tokens.device)
    assert isinstance(strategy, SlottedStrategy)
    if beam_size > 1:
        state.reorder_beams(torch.arange(batch, device=start_tokens.device).repeat_interleave(beam_size), None)
    graphed_step: GraphedStep[Any] = GraphPool().acquire(
        decoder, state, strategy, start_tokens.repeat_interleave(beam_size)
    )
    for _ in range(work.new_tokens // 2):
        graphed_step.run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(4):
            graphed_step.run()
        torch.cuda.synchronize()
    microseconds: dict[str, float] = {}
    count = 0
    for event in profile.key_averages():
        kinds = (kind for kind, names in KERNEL_KINDS.items() if any(name in event.key for name in names))
        kind = next(kinds, "the rest")
        microseconds[kind] = microseconds.get(kind, 0.0) + event.device_time_total / 4
        count += event.count
    return microseconds, count // 4


def compare(work: Workload, decoder: Any, batch: int, beam_size: int, rounds: int, device: str) -> dict[str, Any]:
    requests = make_requests(work, batch, beam_size)
    peer = decode_with_hugging_face(work, batch, beam_size, device)
    our_seconds, peer_seconds = time_alternating([lambda: search_batch(decoder, requests, -1), peer], rounds, warmup=2)
    search = f"beam {beam_size}" if beam_size > 1 else "greedy"
    step_seconds = statistics.median(our_seconds) / work.new_tokens
    case: dict[str, Any] = {
        "case": f"{work.name}, batch {batch}, {search}, bf16, Hugging Face generate",
        "ours": batch / step_seconds,
        "peer": batch * work.new_tokens / statistics.median(peer_seconds),
        "ratio": median_ratio(our_seconds, peer_seconds),
        "unit": "tokens a second",
        "rounds": rounds,
        "milliseconds_a_step": 1e3 * step_seconds,
    }
    if device == "cuda":
        microseconds, kernels = profile_step(work, decoder, batch, beam_size)
        bounds = step_lower_bounds(work, decoder, batch, beam_size, kernels)
        case["microseconds_by_kind"] = microseconds
        case["kernels_a_step"] = kernels
        case["floor_milliseconds"] = {name: 1e3 * seconds for name, seconds in bounds.items()}
        case["times_the_floor"] = step_seconds / max(bounds.values())
    return case


def check_outputs(work: Workload, batch: int, beam_size: int) -> dict[str, Any]:
    """The fused decoder in float32 against the model itself, and in bf16 against float32."""
    requests = make_requests(work, batch, beam_size)
    unfused = search_batch(work.model, requests, -1)
    float32 = search_batch(CudaDecoder(work.model), requests, -1)
    bfloat16 = search_batch(CudaDecoder(work.model, torch.bfloat16), requests, -1)
    different = fraction_different(float32, unfused)
    return {
        "case": f"{work.name}, batch {batch}, {beam_size} beams: what differs",
        "float32_from_plain": different,
        "bf16_from_float32": fraction_different(bfloat16, float32),
        "passed": different["outputs"] <= 0.02,
    }


def benchmark_gpu(quick: bool) -> list[dict[str, Any]]:
    torch.backends.cuda.matmul.allow_tf32 = False
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for work in (base_model(Path(folder), "cuda"), gpt2(Path(folder), "cuda")):
            with torch.inference_mode():
                cases += [
                    log(check_outputs(work, 64, beam_size))
                    for beam_size in sorted({beam_size for _, beam_size in work.batches})
                ]
            decoder = CudaDecoder(work.model, torch.bfloat16)
            for batch, beam_size in work.batches:
                cases.append(log(compare(work, decoder, batch, beam_size, 3 if quick else 7, "cuda")))
    return cases
