"""KV cache size and decoding speed at long context: multi-head, grouped-query and latent attention; a rolling KV cache.

    python benchmarks/long_context.py --gpu           # the three kinds of attention
    python benchmarks/long_context.py --gpu --ring    # a sliding window with a rolling KV cache

Language models of equal width and depth differ only in their attention. For each, the KV cache is filled to a length,
its allocated bytes are counted, and single-token steps at that length are timed. With `--ring`, a model with a sliding
window generates very many tokens, and its memory is recorded after a tenth of them and at the end. `--gpu` takes the
full sizes in bf16 on a CUDA device; without it, small models run on the CPU.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.common import log, time_alternating, write_results

from regard.attention import MultiHeadConfig
from regard.attention.latent import LatentAttentionConfig
from regard.attention.positions.config import RotaryConfig
from regard.model import FeedForwardConfig, LanguageModel, LanguageModelConfig, NormConfig, StackConfig

FULL = {"width": 2048, "layers": 16, "heads": 16, "lengths": (4096, 16384, 32768), "rows": 16}
SMALL = {"width": 128, "layers": 2, "heads": 4, "lengths": (256, 1024), "rows": 2}
FULL_RING = {"width": 512, "layers": 2, "heads": 8, "new_tokens": 100_000}
SMALL_RING = {**SMALL, "new_tokens": 3000}
WINDOW, GLOBAL_TOKENS = 1024, 4


def make_model(attention: MultiHeadConfig | LatentAttentionConfig, sizes: dict[str, Any], device: str) -> LanguageModel:
    torch.manual_seed(1)
    stack = StackConfig(
        layers=sizes["layers"],
        norm_position="pre",
        dropout=0.0,
        norm=NormConfig(kind="rms"),
        attention=attention,
        feed_forward=FeedForwardConfig(hidden=4 * sizes["width"], activation="swiglu", bias=False),
    )
    config = LanguageModelConfig(vocab_size=32_000, width=sizes["width"], decoder=stack, position=RotaryConfig())
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        return config.build().to(dtype).eval()


def attention_kinds(sizes: dict[str, Any]) -> dict[str, MultiHeadConfig | LatentAttentionConfig]:
    """Three kinds of attention with the same head size.

    Latent attention has DeepSeek-V2's proportions: the latent is four heads wide, the rotary part half a head.
    """
    heads, head_dim = sizes["heads"], sizes["width"] // sizes["heads"]
    return {
        "plain": MultiHeadConfig(heads=heads, bias=False),
        "grouped, 4 query heads a key head": MultiHeadConfig(heads=heads, kv_heads=heads // 4, bias=False),
        "latent": LatentAttentionConfig(
            heads=heads,
            kv_latent=4 * head_dim,
            head_dim=head_dim,
            rope_head_dim=head_dim // 2,
            value_head_dim=head_dim,
            bias=False,
        ),
    }


@torch.inference_mode()
def prefilled_step(model: LanguageModel, rows: int, length: int) -> tuple[Any, Any]:
    """A KV cache with `length` tokens per row, and a function that decodes one more token and then drops it again."""
    cache = model.start(rows, length + 1)
    chunk = torch.randint(3, 30_000, (rows, 512), device=model.device)
    for start in range(0, length, 512):
        model.step(chunk[:, : min(512, length - start)], cache)
    token = chunk[:, :1]

    @torch.inference_mode()
    def step() -> None:
        model.step(token, cache)
        cache.truncate(length)

    return cache, step


def device_seconds(step: Callable[[], None]) -> float:
    """Seconds of GPU time per step, without the launch overhead of Python."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    return sum(float(event.device_time_total) for event in profile.key_averages()) / 3e6


def compare_attention(sizes: dict[str, Any], device: str) -> list[dict[str, Any]]:
    """Cache bytes per token and tokens per second of each kind of attention at each length."""
    cases = []
    for length in sizes["lengths"]:
        setups = {}
        for name, attention in attention_kinds(sizes).items():
            model = make_model(attention, sizes, device)
            cache, step = prefilled_step(model, sizes["rows"], length)
            setups[name] = (model, cache, step)
        steps = [step for _, _, step in setups.values()]
        seconds = time_alternating(steps, repeats=9)
        for (name, (_, cache, step)), step_seconds in zip(setups.items(), seconds, strict=True):
            cases.append(
                log(
                    {
                        "case": f"{name}, {length} tokens",
                        "bytes_per_token": cache.nbytes() / (sizes["rows"] * (length + 1)),
                        "cache_bytes": cache.nbytes(),
                        "tokens_per_second": sizes["rows"] / statistics.median(step_seconds),
                        "device_seconds_a_step": device_seconds(step) if device == "cuda" else None,
                        "rows": sizes["rows"],
                        "length": length,
                    }
                )
            )
        del setups, steps, step, cache
        if device == "cuda":
            torch.cuda.empty_cache()
    return cases


@torch.inference_mode()
def generate_with_rolling_cache(sizes: dict[str, Any], device: str) -> dict[str, Any]:
    """Greedy decoding of one row with a sliding window; memory after a tenth of the tokens and at the end."""
    attention = MultiHeadConfig(
        heads=sizes["heads"],
        kv_heads=sizes["heads"] // 4,
        pattern=f"sliding({WINDOW}) | global({GLOBAL_TOKENS})",
        bias=False,
    )
    model = make_model(attention, sizes, device)
    cache = model.start(1, sizes["new_tokens"] + 1)
    token = torch.full((1, 1), 5, device=device)
    snapshots, start = {}, time.perf_counter()
    for number in range(1, sizes["new_tokens"] + 1):
        logits, cache = model.step(token, cache)
        token = logits.argmax(-1)
        if number in (sizes["new_tokens"] // 10, sizes["new_tokens"]):
            if device == "cuda":
                torch.cuda.synchronize()
            snapshots[number] = {
                "cache_bytes": cache.nbytes(),
                "allocated": torch.cuda.memory_allocated() if device == "cuda" else None,
                "seconds": time.perf_counter() - start,
            }
    first, last = snapshots.values()
    return log(
        {
            "case": f"{sizes['new_tokens']:,} tokens behind a window of {WINDOW} and {GLOBAL_TOKENS} that all see",
            "after": {str(number): snapshot for number, snapshot in snapshots.items()},
            "constant": first["cache_bytes"] == last["cache_bytes"] and first["allocated"] == last["allocated"],
            "tokens_per_second": sizes["new_tokens"] / last["seconds"],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="full sizes in bf16 on a CUDA device")
    parser.add_argument(
        "--ring", action="store_true", help="generate with a rolling KV cache instead of comparing kinds of attention"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, with --gpu too; no results are written")
    args = parser.parse_args()
    if args.gpu and not torch.cuda.is_available():
        parser.error("--gpu needs a GPU, and none was found; leave it out to measure on the CPU")
    device, full = ("cuda" if args.gpu else "cpu"), args.gpu and not args.quick
    if args.ring:
        name, cases = "long-context-ring", [generate_with_rolling_cache(FULL_RING if full else SMALL_RING, device)]
    else:
        name, cases = "long-context", compare_attention(FULL if full else SMALL, device)
    if not args.quick:
        path = write_results(f"{name}-{'gpu' if args.gpu else 'cpu'}", cases)
        print(f"Results written to {path}")


if __name__ == "__main__":
    main()
