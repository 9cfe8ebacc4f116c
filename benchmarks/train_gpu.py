"""Training speed on a GPU against compiled PyTorch models on the same batches; run by `train.py --gpu`.

Two models in bf16. The paper's base model (6 + 6 layers, width 512, vocabulary 32,768, dropout 0.1) on 768 pairs of 32
tokens per step, against `torch.nn.Transformer` with forward and loss compiled together, the fastest way to use it.
GPT-2 with 124 million parameters on 32 rows of 1,024 tokens, against a straightforward PyTorch implementation compiled
with its loss, as in nanoGPT; also against nanoGPT's own speed, which was measured on the same kind of GPU on another
day (its code is not included here). Ours and the straightforward one use the tanh approximation of GELU, as OpenAI's
model does; nanoGPT uses the exact GELU.

Ours runs the trainer's own step: fused kernels, captured as CUDA graphs, and fused Adam. Steps of ours and of the peer
are timed in alternating blocks; peak memory is measured for each alone.
"""

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import log, median_ratio, model_flops_utilization, time_in_blocks, training_flops_per_token
from benchmarks.train_end_to_end import benchmark_end_to_end
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import MultiHeadConfig
from regard.attention.positions.config import LearnedConfig
from regard.data.batching.token_batches import Batch
from regard.model import (
    EmbeddingConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    SpecialTokensConfig,
    StackConfig,
)
from regard.train.cuda_graph_step import CudaGraphStep
from regard.train.fused_adam import fused_adam_for
from regard.train.loss import Loss, cross_entropy
from regard.train.optimizer import OptimizerConfig
from regard.train.step import TrainStep, training_forward

VOCAB_SIZE, WIDTH, HIDDEN, HEADS, LAYERS, ROWS, LENGTH = 32_768, 512, 2048, 8, 6, 768, 32
GPT2_VOCAB_SIZE, GPT2_WIDTH, GPT2_LAYERS, GPT2_HEADS, GPT2_ROWS, GPT2_LENGTH = 50_304, 768, 12, 12, 32, 1024
NANOGPT_TOKENS_PER_SECOND = 519_000.0
"""Speed of nanoGPT, compiled, 32 × 1,024, bf16, on one H200, measured on another day."""
Step = Callable[[], object]


class PairsTask:
    """The translation task: predict the target of a batch of pairs."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def loss(self, forward: Any, batch: Batch) -> Loss:
        logits = forward(batch.source, batch.target, source_lengths=None)
        return cross_entropy(logits, batch.target, None, 0.1, inplace=True)


class LanguageModelingTask:
    """The language modeling task: predict each next token."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def loss(self, forward: Any, batch: Batch) -> Loss:
        return cross_entropy(forward(batch.source), batch.target, None, 0.0, inplace=True)


def base_config() -> EncoderDecoderConfig:
    stack = StackConfig(
        layers=LAYERS,
        attention=MultiHeadConfig(heads=HEADS, dropout=0.1),
        feed_forward=FeedForwardConfig(hidden=HIDDEN, dropout=0.1),
        norm_position="post",
        dropout=0.1,
    )
    special_tokens = SpecialTokensConfig(pad=0, bos=1, eos=2)
    return EncoderDecoderConfig(
        vocab_size=VOCAB_SIZE, width=WIDTH, encoder=stack, decoder=stack, special_tokens=special_tokens
    )


def gpt2_config() -> LanguageModelConfig:
    stack = StackConfig(
        layers=GPT2_LAYERS,
        attention=MultiHeadConfig(heads=GPT2_HEADS, bias=False),
        feed_forward=FeedForwardConfig(hidden=4 * GPT2_WIDTH, activation="gelu-tanh", bias=False),
        dropout=0.0,
    )
    embedding = EmbeddingConfig(scale=False, dropout=0.0)
    return LanguageModelConfig(
        vocab_size=GPT2_VOCAB_SIZE,
        width=GPT2_WIDTH,
        decoder=stack,
        position=LearnedConfig(max_length=GPT2_LENGTH),
        embedding=embedding,
    )


def make_our_step(task: Any, batch: Batch, cuda_graphs: bool = True) -> Step:
    """The trainer's step on one batch: fused kernels, optionally CUDA graphs, fused Adam."""
    model = task.model.train()
    optimizer = OptimizerConfig(eps=1e-8).build(model)
    step_class: Any = CudaGraphStep if cuda_graphs else TrainStep
    forward = training_forward(model, "bfloat16")
    train_step = step_class(task, "bfloat16", forward, fused_adam_for(optimizer, forward))
    scale = torch.full((), 1.0 / batch.count, device=batch.source.device)

    def step() -> None:
        train_step.backward(batch, scale, only=True)
        train_step.optimizer_step(optimizer, 1e-4, 1.0)

    return step


class TorchEncoderDecoder(nn.Module):
    """`torch.nn.Transformer` with tied embeddings and learned positions, and dropout as in ours."""

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCAB_SIZE, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.dropout = nn.Dropout(0.1)
        self.transformer = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, HIDDEN, 0.1, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        hidden = self.transformer(self._embed(source), self._embed(target), tgt_mask=mask, tgt_is_causal=True)
        logits: Tensor = hidden @ self.token_embedding.weight.T
        return logits

    def _embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.token_embedding(ids) + self.positions)
        return embedded


class TorchBlock(nn.Module):
    """A pre-norm block without biases: causal self-attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        width = GPT2_WIDTH
        self.attn_norm, self.ffn_norm = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv_proj, self.o_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up_proj, self.down_proj = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv_proj(self.attn_norm(x)).chunk(3, dim=-1)
        query, key, value = (tensor.unflatten(-1, (GPT2_HEADS, -1)).transpose(1, 2) for tensor in qkv)
        context = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.o_proj(context.transpose(1, 2).flatten(2))
        output: Tensor = self.down_proj(functional.gelu(self.up_proj(self.ffn_norm(x)), approximate="tanh"))
        return x + output


class TorchLanguageModel(nn.Module):
    """GPT-2 with 124 million parameters, in straightforward PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(GPT2_VOCAB_SIZE, GPT2_WIDTH)
        self.position_embedding = nn.Embedding(GPT2_LENGTH, GPT2_WIDTH)
        self.blocks = nn.Sequential(*(TorchBlock() for _ in range(GPT2_LAYERS)))
        self.norm = nn.LayerNorm(GPT2_WIDTH, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        positions = self.position_embedding(torch.arange(ids.shape[1], device=ids.device))
        hidden = self.norm(self.blocks(self.token_embedding(ids) + positions))
        logits: Tensor = hidden @ self.token_embedding.weight.T
        return logits


def make_compiled_step(model: nn.Module, loss_function: Callable[[nn.Module], Tensor]) -> Step:
    """A training step with fused Adam and with forward and loss compiled together."""
    model = model.to("cuda").train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    compiled_loss = torch.compile(loss_function)

    def step() -> None:
        compiled_loss(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def make_torch_transformer_step(batch: Batch) -> Step:
    def loss_function(model: nn.Module) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(batch.source, batch.target)
        return functional.cross_entropy(logits.float().flatten(0, 1), batch.target.flatten(), label_smoothing=0.1)

    return make_compiled_step(TorchEncoderDecoder(), loss_function)


def make_torch_gpt2_step(batch: Batch) -> Step:
    def loss_function(model: nn.Module) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(batch.source)
            return functional.cross_entropy(logits.flatten(0, 1), batch.target.flatten())

    return make_compiled_step(TorchLanguageModel(), loss_function)


def random_batch(vocab_size: int, rows: int, length: int, device: str) -> Batch:
    ids = torch.randint(3, vocab_size, (2, rows, length), device=device)
    lengths = torch.full((rows,), length, device=device)
    items, count = torch.arange(rows, device=device), rows * length
    return Batch((ids[0], ids[1]), (lengths, lengths), items, (count, count), 0, 0)


def measure_matmul_flops() -> float:
    """FLOP/s of large matmuls in bf16, the reference for utilization."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    (seconds,) = time_in_blocks([lambda: a @ b], rounds=1)
    return 2 * 8192**3 / statistics.median(seconds)


def measure_memory(make_step: Callable[[], Step]) -> tuple[Step, float, float]:
    """Build a step and run it three times: the step, its peak memory in GiB, and the seconds this took."""
    gc.collect()
    torch.cuda.empty_cache()
    allocated = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    step = make_step()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return step, (torch.cuda.max_memory_allocated() - allocated) / 2**30, time.perf_counter() - start


FIRST_STEP = """
import sys, time
import torch
from benchmarks.train_gpu import LENGTH, ROWS, VOCAB_SIZE, PairsTask, base_config, make_our_step, random_batch
torch.set_float32_matmul_precision("high")
batch = random_batch(VOCAB_SIZE, ROWS, LENGTH, "cuda")
step = make_our_step(PairsTask(base_config().build().to("cuda")), batch)
step()
torch.cuda.synchronize()
print(time.time() - float(sys.argv[1]))
"""


def start_up() -> dict[str, Any]:
    """Seconds from starting Python to the end of the base model's first step, with a cold and a warm Triton cache."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "TRITON_CACHE_DIR": folder, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        for _ in range(2):
            command = [sys.executable, "-c", FIRST_STEP, str(time.time())]
            process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            seconds.append(float(process.stdout.splitlines()[-1]))
    return {"case": "start-up: import, compile, first batch", "seconds_cold": seconds[0], "seconds_warm": seconds[1]}


def benchmark_gpu(quick: bool, parts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """All cases, or only those of some parts: start, pairs, text, real."""
    torch.set_float32_matmul_precision("high")
    peak_flops, rounds = measure_matmul_flops(), 2 if quick else 4
    cases = [log({"case": "large products, bf16", "operations_a_second": peak_flops})]
    if not parts or "start" in parts:
        cases.append(log(start_up()))
    if not parts or "pairs" in parts:
        cases.append(compare_base_model(peak_flops, rounds))
    if not parts or "text" in parts:
        cases.append(log(check_gpt2_gradients()))
        cases.append(compare_gpt2(peak_flops, rounds))
    return cases + (benchmark_end_to_end(quick, peak_flops) if not parts or "real" in parts else [])


def compare_base_model(peak_flops: float, rounds: int) -> dict[str, Any]:
    """The base model against torch.nn.Transformer."""
    batch = random_batch(VOCAB_SIZE, ROWS, LENGTH, "cuda")
    torch.manual_seed(1)
    results = compare_steps(
        lambda: make_our_step(PairsTask(base_config().build().to("cuda")), batch),
        lambda: make_torch_transformer_step(batch),
        rounds,
    )
    ours, peer = (ROWS * LENGTH / results.pop(name) for name in ("seconds", "peer_seconds"))
    flops_per_token = sum(training_flops_per_token(base_config(), LENGTH, LENGTH))
    return log(
        {
            "case": "base encoder–decoder, 768 × 32, bf16, torch.nn.Transformer compiled with its loss",
            "ours": ours,
            "peer": peer,
            "unit": "target tokens a second",
            "share_of_peak": model_flops_utilization(ours, flops_per_token, peak_flops),
            "peer_share_of_peak": model_flops_utilization(peer, flops_per_token, peak_flops),
            **results,
        }
    )


def compare_gpt2(peak_flops: float, rounds: int) -> dict[str, Any]:
    """GPT-2 against the compiled PyTorch implementation, and against nanoGPT's recorded speed."""
    batch = random_batch(GPT2_VOCAB_SIZE, GPT2_ROWS, GPT2_LENGTH, "cuda")
    torch.manual_seed(1)
    results = compare_steps(
        lambda: make_our_step(LanguageModelingTask(gpt2_config().build().to("cuda")), batch),
        lambda: make_torch_gpt2_step(batch),
        rounds,
    )
    ours, peer = (GPT2_ROWS * GPT2_LENGTH / results.pop(name) for name in ("seconds", "peer_seconds"))
    flops_per_token = sum(training_flops_per_token(gpt2_config(), GPT2_LENGTH))
    return log(
        {
            "case": "GPT-2 124M, 32 × 1,024, bf16, written plainly and compiled with its loss, as nanoGPT",
            "ours": ours,
            "peer": peer,
            "unit": "tokens a second",
            "nanogpt_elsewhere": NANOGPT_TOKENS_PER_SECOND,
            "ratio_to_nanogpt_elsewhere": ours / NANOGPT_TOKENS_PER_SECOND,
            "share_of_peak": model_flops_utilization(ours, flops_per_token, peak_flops),
            "peer_share_of_peak": model_flops_utilization(peer, flops_per_token, peak_flops),
            **results,
        }
    )


def check_gpt2_gradients(rows: int = 4, device: str = "cuda") -> dict[str, Any]:
    """Relative error of GPT-2's bf16 gradients against float32: on fused kernels, and on PyTorch's."""
    torch.manual_seed(1)
    batch = random_batch(GPT2_VOCAB_SIZE, rows, GPT2_LENGTH, device)
    task: Any = LanguageModelingTask(gpt2_config().build().to(device).train())
    scale = torch.full((), 1.0 / batch.count, device=device)

    def gradient(train_step: Any) -> Tensor:
        task.model.zero_grad()
        train_step.backward(batch, scale)
        return torch.cat([parameter.grad.flatten().double() for parameter in task.model.parameters()])

    matmul_precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    expected = gradient(TrainStep(task, "float32"))
    torch.set_float32_matmul_precision(matmul_precision)
    fused, unfused = (
        float((gradient(TrainStep(task, "bfloat16", forward)) - expected).norm() / expected.norm())
        for forward in (training_forward(task.model, "bfloat16"), None)
    )
    return {
        "case": "gradients of GPT-2 124M in bf16, how far from float32's, fast form and plain",
        "ours": fused,
        "peer": unfused,
        "passed": fused < 1.1 * unfused,
    }


def compare_steps(make_ours: Callable[[], Step], make_peer: Callable[[], Step], rounds: int) -> dict[str, Any]:
    """Seconds per step of ours and of a peer in alternating blocks, their ratio, and memory and start-up of each."""
    ours, our_memory, our_start_up = measure_memory(make_ours)
    peer, peer_memory, peer_start_up = measure_memory(make_peer)
    our_seconds, peer_seconds = time_in_blocks([ours, peer], rounds=rounds)
    return {
        "seconds": statistics.median(our_seconds),
        "peer_seconds": statistics.median(peer_seconds),
        "ratio": median_ratio(our_seconds, peer_seconds),
        "gigabytes": our_memory,
        "peer_gigabytes": peer_memory,
        "seconds_to_the_third_step": our_start_up,
        "peer_seconds_to_the_third_step": peer_start_up,
        "milliseconds_by_kernel": time_by_kernel(ours),
    }


def time_by_kernel(step: Step) -> dict[str, float]:
    """Milliseconds of a step by kernel: the 40 slowest, and the rest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda event: -event.device_time_total)
    milliseconds: dict[str, float] = {}
    for event in events:
        name = event.key[:90] if len(milliseconds) < 40 else "the rest"
        milliseconds[name] = milliseconds.get(name, 0.0) + event.device_time_total / 3e3
    return milliseconds
