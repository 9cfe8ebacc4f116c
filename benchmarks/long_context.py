"""What caches hold and how fast steps are at long context: plain, grouped and latent heads; a window in a ring buffer.

Language models of equal width and depth differ in their heads only. For each the cache is filled to a length, its
bytes are counted as allocated, and steps behind it are timed. With `--ring` one model with a window writes very many
tokens, and what is held is looked at on the way. `--gpu` takes the full sizes in bf16 on a CUDA device; without it
small ones on the CPU.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import say, time_in_turn, write_results

from regard.attention import HeadsConfig
from regard.attention.latent import LatentConfig
from regard.attention.position import RotaryConfig
from regard.model import FeedForwardConfig, LanguageModel, LanguageModelConfig, NormConfig, StackConfig

FULL = {"width": 2048, "layers": 16, "heads": 16, "lengths": (4096, 16384, 32768), "rows": 16}
SMALL = {"width": 128, "layers": 2, "heads": 4, "lengths": (256, 1024), "rows": 2}
WRITER, SMALL_WRITER = {"width": 512, "layers": 2, "heads": 8, "written": 100_000}, {**SMALL, "written": 3000}
WINDOW, GLOBAL = 1024, 4


def model_with(attention: HeadsConfig | LatentConfig, sizes: dict[str, Any], device: str) -> LanguageModel:
    torch.manual_seed(1)
    stack = StackConfig(
        layers=sizes["layers"],
        order="pre",
        dropout=0.0,
        norm=NormConfig(kind="rms"),
        attention=attention,
        feed_forward=FeedForwardConfig(hidden=4 * sizes["width"], activation="swiglu", bias=False),
    )
    config = LanguageModelConfig(vocabulary=32_000, width=sizes["width"], decoder=stack, position=RotaryConfig())
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        return config.build().to(dtype).eval()


def kinds(sizes: dict[str, Any]) -> dict[str, HeadsConfig | LatentConfig]:
    """Heads of equal width. The latent is that of DeepSeek-V2: four times as wide as a head, half a head turned."""
    heads, each = sizes["heads"], sizes["width"] // sizes["heads"]
    return {
        "plain": HeadsConfig(heads=heads, bias=False),
        "grouped, 4 query heads a key head": HeadsConfig(heads=heads, key_heads=heads // 4, bias=False),
        "latent": LatentConfig(
            heads=heads, latent=4 * each, head_width=each, rotary_width=each // 2, value_width=each, bias=False
        ),
    }


@torch.inference_mode()
def steps_at(model: LanguageModel, rows: int, length: int) -> tuple[Any, Any]:
    """A cache with so many tokens of every row in it, and a step behind them that leaves it as it was."""
    cache = model.start(rows, length + 1)
    chunk = torch.randint(3, 30_000, (rows, 512), device=model.device)
    for first in range(0, length, 512):
        model.step(chunk[:, : min(512, length - first)], cache)
    token = chunk[:, :1]

    @torch.inference_mode()
    def step() -> None:
        model.step(token, cache)
        cache.rewind(length)

    return cache, step


def on_device(step: Callable[[], None]) -> float:
    """Seconds that the device is busy with a step, without the time that Python takes to tell it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    return sum(float(event.device_time_total) for event in profile.key_averages()) / 3e6


def compared(sizes: dict[str, Any], device: str) -> list[dict[str, Any]]:
    cases = []
    for length in sizes["lengths"]:
        made = {}
        for name, attention in kinds(sizes).items():
            model = model_with(attention, sizes, device)
            cache, step = steps_at(model, sizes["rows"], length)
            made[name] = (model, cache, step)
        steps = [step for _, _, step in made.values()]
        seconds = time_in_turn(steps, repeats=9)
        for (name, (_, cache, step)), taken in zip(made.items(), seconds, strict=True):
            cases.append(
                say(
                    {
                        "case": f"{name}, {length} tokens",
                        "bytes_per_token": cache.bytes() / (sizes["rows"] * (length + 1)),
                        "cache_bytes": cache.bytes(),
                        "tokens_per_second": sizes["rows"] / statistics.median(taken),
                        "device_seconds_a_step": on_device(step) if device == "cuda" else None,
                        "rows": sizes["rows"],
                        "length": length,
                    }
                )
            )
        del made, steps, step, cache
        if device == "cuda":
            torch.cuda.empty_cache()
    return cases


@torch.inference_mode()
def written_in_a_ring(sizes: dict[str, Any], device: str) -> dict[str, Any]:
    """Greedy steps of one row, one token each, as many as asked for; what is held after a tenth and at the end."""
    attention = HeadsConfig(
        heads=sizes["heads"], key_heads=sizes["heads"] // 4, pattern=f"sliding({WINDOW}) | global({GLOBAL})", bias=False
    )
    model = model_with(attention, sizes, device)
    cache = model.start(1, sizes["written"] + 1)
    token = torch.full((1, 1), 5, device=device)
    held, begin = {}, time.perf_counter()
    for number in range(1, sizes["written"] + 1):
        logits, cache = model.step(token, cache)
        token = logits.argmax(-1)
        if number in (sizes["written"] // 10, sizes["written"]):
            if device == "cuda":
                torch.cuda.synchronize()
            held[number] = {
                "cache_bytes": cache.bytes(),
                "allocated": torch.cuda.memory_allocated() if device == "cuda" else None,
                "seconds": time.perf_counter() - begin,
            }
    first, last = held.values()
    return say(
        {
            "case": f"{sizes['written']:,} tokens behind a window of {WINDOW} and {GLOBAL} that all see",
            "after": {str(number): facts for number, facts in held.items()},
            "constant": first["cache_bytes"] == last["cache_bytes"] and first["allocated"] == last["allocated"],
            "tokens_per_second": sizes["written"] / last["seconds"],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument(
        "--ring", action="store_true", help="the generation behind a window, not the comparison of heads"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes on whatever device")
    asked = parser.parse_args()
    device, full = ("cuda" if asked.gpu else "cpu"), asked.gpu and not asked.quick
    if asked.ring:
        name, cases = "long-context-ring", [written_in_a_ring(WRITER if full else SMALL_WRITER, device)]
    else:
        name, cases = "long-context", compared(FULL if full else SMALL, device)
    if not asked.quick:
        print(write_results(f"{name}-{'gpu' if asked.gpu else 'cpu'}", cases))


if __name__ == "__main__":
    main()
