"""How fast models train on a GPU, beside the peers on the same work; `train.py --gpu` runs it.

The paper's base model (6 + 6 layers, width 512, vocabulary 32,768, dropout 0.1), 768 pairs of 32 words a step, bf16,
beside `torch.nn.Transformer` whose forward and loss are compiled together, the best that its users get. And GPT-2 with
124 million parameters, 32 texts of 1,024 tokens, beside the same model written plainly in PyTorch and compiled with its
loss, as nanoGPT does it, and beside the figure that nanoGPT itself was measured at on such a chip on another day (its
code is not here). Both of these models bend by GELU's tanh form, as OpenAI's does; nanoGPT has the exact one.
Ours is what the training loop does: the fast form of the model, recorded and replayed, fused Adam.
Ours and the peer take turns in blocks of steps; peak memory of each is taken alone.
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
from common import median_ratio, operations, say, share_of_peak, time_in_blocks
from torch import Tensor, nn
from torch.nn import functional
from train_real import real_batches

from regard.attention import HeadsConfig
from regard.attention.position import LearnedConfig
from regard.data.batch import Batch
from regard.model import (
    EmbeddingConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    StackConfig,
    TokensConfig,
)
from regard.train.gradient import CapturedGradients, Gradients, for_steps
from regard.train.loss import Loss, word_loss
from regard.train.mover import mover_of
from regard.train.optimiser import OptimiserConfig

VOCABULARY, WIDTH, HIDDEN, HEADS, LAYERS, ROWS, WORDS = 32_768, 512, 2048, 8, 6, 768, 32
GPT2_VOCABULARY, GPT2_WIDTH, GPT2_LAYERS, GPT2_HEADS, GPT2_ROWS, GPT2_WORDS = 50_304, 768, 12, 12, 32, 1024
NANOGPT = 519_000.0
"""Tokens a second of nanoGPT, compiled, 32 × 1,024, bf16, on one H200, measured on another day."""
Step = Callable[[], object]


class Pairs:
    """The task of predicting a target of random words from a source of random words."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def loss(self, forward: Any, batch: Batch) -> Loss:
        scores = forward(batch.source, batch.target, source_lengths=None)
        return word_loss(scores, batch.target, None, 0.1, overwrite=True)


class Text:
    """The task of predicting each next word of a text."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def loss(self, forward: Any, batch: Batch) -> Loss:
        return word_loss(forward(batch.source), batch.target, None, 0.0, overwrite=True)


def base_config(rows: int = ROWS) -> EncoderDecoderConfig:
    stack = StackConfig(
        layers=LAYERS,
        attention=HeadsConfig(heads=HEADS, dropout=0.1),
        feed_forward=FeedForwardConfig(hidden=HIDDEN, dropout=0.1),
        order="post",
        dropout=0.1,
    )
    tokens = TokensConfig(padding=0, start=1, end=2)
    return EncoderDecoderConfig(vocabulary=VOCABULARY, width=WIDTH, encoder=stack, decoder=stack, tokens=tokens)


def gpt2_config() -> LanguageModelConfig:
    stack = StackConfig(
        layers=GPT2_LAYERS,
        attention=HeadsConfig(heads=GPT2_HEADS, bias=False),
        feed_forward=FeedForwardConfig(hidden=4 * GPT2_WIDTH, activation="gelu-tanh", bias=False),
        dropout=0.0,
    )
    embedding = EmbeddingConfig(scale=False, dropout=0.0)
    return LanguageModelConfig(
        vocabulary=GPT2_VOCABULARY,
        width=GPT2_WIDTH,
        decoder=stack,
        position=LearnedConfig(limit=GPT2_WORDS),
        embedding=embedding,
    )


def our_step(task: Any, batch: Batch, captured: bool = True) -> Step:
    """A step as the loop takes it."""
    model = task.model.train()
    optimiser = OptimiserConfig(epsilon=1e-8).build(model)
    maker: Any = CapturedGradients if captured else Gradients
    forward = for_steps(model, "bf16")
    gradients = maker(task, "bf16", forward, mover_of(optimiser, forward))
    scale = torch.full((), 1.0 / batch.count, device=batch.source.device)

    def step() -> None:
        gradients.add(batch, scale, only=True)
        gradients.move(optimiser, 1e-4, 1.0)

    return step


class PlainTransformer(nn.Module):
    """`torch.nn.Transformer` between word vectors, with dropout where ours has it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(WORDS, WIDTH) * 0.02)
        self.dropout = nn.Dropout(0.1)
        self.transformer = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, HIDDEN, 0.1, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        made = self.transformer(self._embed(source), self._embed(target), tgt_mask=mask, tgt_is_causal=True)
        scores: Tensor = made @ self.words.weight.T
        return scores

    def _embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.words(ids) + self.places)
        return embedded


class PlainBlock(nn.Module):
    """Attention and a feed-forward, each behind a norm, without biases."""

    def __init__(self) -> None:
        super().__init__()
        width = GPT2_WIDTH
        self.before_attention, self.before_hidden = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.inward, self.outward = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.widen, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inward(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (GPT2_HEADS, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.outward(seen.transpose(1, 2).flatten(2))
        bent: Tensor = self.narrow(functional.gelu(self.widen(self.before_hidden(x)), approximate="tanh"))
        return x + bent


class PlainLanguageModel(nn.Module):
    """GPT-2 with 124 million parameters, written as most would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(GPT2_VOCABULARY, GPT2_WIDTH)
        self.places = nn.Embedding(GPT2_WORDS, GPT2_WIDTH)
        self.blocks = nn.Sequential(*(PlainBlock() for _ in range(GPT2_LAYERS)))
        self.norm = nn.LayerNorm(GPT2_WIDTH, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, words: Tensor) -> Tensor:
        places = self.places(torch.arange(words.shape[1], device=words.device))
        scores: Tensor = self.norm(self.blocks(self.words(words) + places)) @ self.words.weight.T
        return scores


def peer_step(model: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> Step:
    """A step with forward and loss compiled together, under autocast, with fused Adam."""
    model = model.to("cuda").train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    whole = torch.compile(loss_of)

    def step() -> None:
        whole(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def pairs_peer(batch: Batch) -> Step:
    def loss_of(model: nn.Module) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = model(batch.source, batch.target)
        return functional.cross_entropy(scores.float().flatten(0, 1), batch.target.flatten(), label_smoothing=0.1)

    return peer_step(PlainTransformer(), loss_of)


def text_peer(batch: Batch) -> Step:
    def loss_of(model: nn.Module) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = model(batch.source)
            return functional.cross_entropy(scores.flatten(0, 1), batch.target.flatten())

    return peer_step(PlainLanguageModel(), loss_of)


def random_batch(vocabulary: int, rows: int, words: int, device: str) -> Batch:
    ids = torch.randint(3, vocabulary, (2, rows, words), device=device)
    lengths = torch.full((rows,), words, device=device)
    items, count = torch.arange(rows, device=device), rows * words
    return Batch((ids[0], ids[1]), (lengths, lengths), items, (count, count), 0, 0)


def peak() -> float:
    """Operations a second of large products."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    (seconds,) = time_in_blocks([lambda: a @ b], rounds=1)
    return 2 * 8192**3 / statistics.median(seconds)


def memory_of(make: Callable[[], Step]) -> tuple[Step, float, float]:
    """A step, the most memory it takes, and how long it is until the third has been taken."""
    gc.collect()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    step = make()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return step, (torch.cuda.max_memory_allocated() - held) / 2**30, time.perf_counter() - begin


STARTING = """
import sys, time
import torch, train_gpu as work
torch.set_float32_matmul_precision("high")
batch = work.random_batch(work.VOCABULARY, work.ROWS, work.WORDS, "cuda")
step = work.our_step(work.Pairs(work.base_config().build().to("cuda")), batch)
step()
torch.cuda.synchronize()
print(time.time() - float(sys.argv[1]))
"""


def start_up() -> dict[str, Any]:
    """Seconds from starting Python until the first step of the base model is taken, twice with one cache of kernels."""
    seconds = []
    with tempfile.TemporaryDirectory() as place:
        surroundings = {**os.environ, "TRITON_CACHE_DIR": place}
        for _ in range(2):
            words = [sys.executable, "-c", STARTING, str(time.time())]
            done = subprocess.run(
                words,
                cwd=Path(__file__).parent,
                env=_from_here(surroundings),
                capture_output=True,
                text=True,
                check=True,
            )
            seconds.append(float(done.stdout.splitlines()[-1]))
    return {"case": "start-up: import, compile, first batch", "seconds_cold": seconds[0], "seconds_warm": seconds[1]}


def _from_here(surroundings: dict[str, str]) -> dict[str, str]:
    """Where packages are looked for, said so that it holds in another folder."""
    places = [str(Path(each).resolve()) for each in surroundings.get("PYTHONPATH", "").split(os.pathsep) if each]
    return {**surroundings, "PYTHONPATH": os.pathsep.join(places)}


def on_a_gpu(quick: bool, parts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """All cases, or those of some parts."""
    torch.set_float32_matmul_precision("high")
    rate, rounds = peak(), 2 if quick else 4
    cases = [say({"case": "large products, bf16", "operations_a_second": rate})]
    if not parts or "start" in parts:
        cases.append(say(start_up()))
    if not parts or "pairs" in parts:
        cases.append(pairs_beside_torch(rate, rounds))
    if not parts or "text" in parts:
        cases.append(say(text_against_float32()))
        cases.append(text_beside_nanogpt(rate, rounds))
    return cases + (real_batches(quick, rate) if not parts or "real" in parts else [])


def pairs_beside_torch(rate: float, rounds: int) -> dict[str, Any]:
    batch = random_batch(VOCABULARY, ROWS, WORDS, "cuda")
    torch.manual_seed(1)
    found = in_turn(lambda: our_step(Pairs(base_config().build().to("cuda")), batch), lambda: pairs_peer(batch), rounds)
    speed, other = (ROWS * WORDS / found.pop(name) for name in ("seconds", "peer_seconds"))
    needed = sum(operations(base_config(), WORDS, WORDS))
    return say(
        {
            "case": "base encoder–decoder, 768 × 32, bf16, torch.nn.Transformer compiled with its loss",
            "ours": speed,
            "peer": other,
            "unit": "target tokens a second",
            "share_of_peak": share_of_peak(speed, needed, rate),
            "peer_share_of_peak": share_of_peak(other, needed, rate),
            **found,
        }
    )


def text_beside_nanogpt(rate: float, rounds: int) -> dict[str, Any]:
    batch = random_batch(GPT2_VOCABULARY, GPT2_ROWS, GPT2_WORDS, "cuda")
    torch.manual_seed(1)
    found = in_turn(lambda: our_step(Text(gpt2_config().build().to("cuda")), batch), lambda: text_peer(batch), rounds)
    speed, other = (GPT2_ROWS * GPT2_WORDS / found.pop(name) for name in ("seconds", "peer_seconds"))
    needed = sum(operations(gpt2_config(), GPT2_WORDS))
    return say(
        {
            "case": "GPT-2 124M, 32 × 1,024, bf16, written plainly and compiled with its loss, as nanoGPT",
            "ours": speed,
            "peer": other,
            "unit": "tokens a second",
            "nanogpt_elsewhere": NANOGPT,
            "ratio_to_nanogpt_elsewhere": speed / NANOGPT,
            "share_of_peak": share_of_peak(speed, needed, rate),
            "peer_share_of_peak": share_of_peak(other, needed, rate),
            **found,
        }
    )


def text_against_float32(rows: int = 4, device: str = "cuda") -> dict[str, Any]:
    """How far gradients of GPT-2 are from those in float32: in the fast form, and in bf16 without it."""
    torch.manual_seed(1)
    batch = random_batch(GPT2_VOCABULARY, rows, GPT2_WORDS, device)
    task: Any = Text(gpt2_config().build().to(device).train())
    scale = torch.full((), 1.0 / batch.count, device=device)

    def gradient(gradients: Any) -> Tensor:
        task.model.zero_grad()
        gradients.add(batch, scale)
        return torch.cat([parameter.grad.flatten().double() for parameter in task.model.parameters()])

    exactly = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    right = gradient(Gradients(task, "fp32"))
    torch.set_float32_matmul_precision(exactly)
    fast, plain = (
        float((gradient(Gradients(task, "bf16", forward)) - right).norm() / right.norm())
        for forward in (for_steps(task.model, "bf16"), None)
    )
    return {
        "case": "gradients of GPT-2 124M in bf16, how far from float32's, fast form and plain",
        "ours": fast,
        "peer": plain,
        "passed": fast < 1.1 * plain,
    }


def in_turn(make_ours: Callable[[], Step], make_peer: Callable[[], Step], rounds: int) -> dict[str, Any]:
    """Steps of ours and of a peer in turn: seconds of one, their ratio, memory of each alone, time to begin."""
    ours, our_memory, our_start = memory_of(make_ours)
    peer, peer_memory, peer_start = memory_of(make_peer)
    mine, theirs = time_in_blocks([ours, peer], rounds=rounds)
    return {
        "seconds": statistics.median(mine),
        "peer_seconds": statistics.median(theirs),
        "ratio": median_ratio(mine, theirs),
        "gigabytes": our_memory,
        "peer_gigabytes": peer_memory,
        "seconds_to_the_third_step": our_start,
        "peer_seconds_to_the_third_step": peer_start,
        "milliseconds_by_kernel": spent(ours),
    }


def spent(step: Step) -> dict[str, float]:
    """Milliseconds of a step by kernel, the largest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda event: -event.device_time_total)
    times: dict[str, float] = {}
    for event in events:
        name = event.key[:90] if len(times) < 40 else "the rest"
        times[name] = times.get(name, 0.0) + event.device_time_total / 3e3
    return times
