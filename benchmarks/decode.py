"""Decoding speed against CTranslate2 and Hugging Face on the same weights.

    python benchmarks/decode.py            # on a CPU; --quick takes less than a minute
    python benchmarks/decode.py --gpu      # on a GPU; see decode_gpu.py

A small encoder–decoder (3 + 3 layers, width 256, 4 heads, hidden 1,024, vocabulary 8,000) is saved as a run folder and
exported to both peers, so that all have the same weights. Sources have 16 tokens, outputs exactly 32. regard and the
peer are timed alternately in one process; the ratio is the median over rounds of the peer's time over ours. CTranslate2
runs in its best configuration: one thread for a single sentence, two workers of one thread each for 64. With int8, both
quantize weights ahead of time and activations row by row.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from benchmarks.common import log, median_ratio, time_alternating, word_level_tokenizer, write_results

from regard.attention import MultiHeadConfig
from regard.decode import DecodeConfig, Engine, Request, search_all
from regard.fused.cpu_decoder import Precision, make_cpu_decoder
from regard.interop.ctranslate2.export import export_ctranslate2
from regard.interop.huggingface import export_huggingface
from regard.model import EncoderDecoder, EncoderDecoderConfig, FeedForwardConfig, SpecialTokensConfig, StackConfig
from regard.run import save_model

VOCAB_SIZE, SOURCE_LENGTH, NEW_TOKENS = 8000, 16, 32
PAD, BOS, EOS = 0, 1, 2
PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
Call = Callable[[], object]


def small_model() -> EncoderDecoder:
    stack = StackConfig(
        layers=3,
        attention=MultiHeadConfig(heads=4),
        feed_forward=FeedForwardConfig(hidden=1024),
        norm_position="post",
        dropout=0.0,
    )
    special_tokens = SpecialTokensConfig(pad=PAD, bos=BOS, eos=EOS)
    config = EncoderDecoderConfig(
        vocab_size=VOCAB_SIZE, width=256, encoder=stack, decoder=stack, special_tokens=special_tokens
    )
    torch.manual_seed(0)
    return config.build().eval()


def random_sources(batch: int) -> list[list[int]]:
    """Random token ids, without the EOS that every decoder appends to a source."""
    generator = torch.Generator().manual_seed(1)
    rows: list[list[int]] = torch.randint(3, VOCAB_SIZE, (batch, SOURCE_LENGTH - 1), generator=generator).tolist()
    return rows


def decode_with_regard(model: EncoderDecoder, batch: int, beam_size: int, precision: Precision) -> Call:
    """regard's CPU decoder. EOS is -1, which no token has, so that only the maximum length ends an output."""
    decoder, config = make_cpu_decoder(model, precision), DecodeConfig(beam_size=beam_size)
    requests = [Request(tuple(row), NEW_TOKENS, config) for row in random_sources(batch)]
    cores = os.cpu_count() or 1

    def run() -> None:
        torch.set_num_threads(cores)  # creating a CTranslate2 model changes it for the whole process
        search_all(decoder, requests, -1, batch_tokens=1 << 20, threads=1 if batch == 1 else cores)

    return run


def decode_with_ctranslate2(folder: Path, batch: int, beam_size: int, precision: Precision) -> Call:
    import ctranslate2

    workers = 1 if batch == 1 else 2
    translator = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=precision, intra_threads=1, inter_threads=workers
    )
    tokens = [[*(f"w{token}" for token in row), f"w{EOS}"] for row in random_sources(batch)]
    return lambda: translator.translate_batch(
        tokens,
        beam_size=beam_size,
        min_decoding_length=NEW_TOKENS,
        max_decoding_length=NEW_TOKENS,
        max_batch_size=-(-batch // workers),
    )


def decode_with_hugging_face(folder: Path, batch: int, beam_size: int) -> Call:
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    model.generation_config.max_length = None
    ids = torch.tensor([[*row, EOS] for row in random_sources(batch)])

    def run() -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            num_beams=beam_size,
            do_sample=False,
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
        )

    return run


class TimedDecoder:
    """Wraps a decoder and adds up the time spent in `prefill` and in `step`."""

    def __init__(self, decoder: Any) -> None:
        self.decoder, self.prefill_seconds, self.step_seconds = decoder, 0.0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.decoder, name)

    def prefill(self, *args: Any) -> Any:
        start = time.perf_counter()
        result = self.decoder.prefill(*args)
        self.prefill_seconds += time.perf_counter() - start
        return result

    def step(self, *args: Any) -> Any:
        start = time.perf_counter()
        result = self.decoder.step(*args)
        self.step_seconds += time.perf_counter() - start
        return result


def time_breakdown(model: EncoderDecoder, batch: int, beam_size: int) -> dict[str, float]:
    """Fractions of the time in the encoder (prefill), in decoder steps and in the search itself, on one thread."""
    decoder = TimedDecoder(make_cpu_decoder(model))
    config = DecodeConfig(beam_size=beam_size)
    requests = [Request(tuple(row), NEW_TOKENS, config) for row in random_sources(batch)]
    search_all(decoder, requests, -1, batch_tokens=1 << 20)
    decoder.prefill_seconds = decoder.step_seconds = 0.0
    start = time.perf_counter()
    for _ in range(max(1, 64 // batch)):
        search_all(decoder, requests, -1, batch_tokens=1 << 20)
    seconds = time.perf_counter() - start
    prefill, steps = decoder.prefill_seconds / seconds, decoder.step_seconds / seconds
    return {"reading": prefill, "stepping": steps, "choosing": 1 - prefill - steps}


def roofline(batch: int, beam_size: int) -> dict[str, float]:
    """Upper bounds in tokens per second: by memory bandwidth (all weights are read in a step) and by matmul FLOPs."""
    layer = 6 * 256**2 + 2 * 256 * 1024
    weights = 3 * layer + 256 * VOCAB_SIZE
    buffer, a = torch.randn(weights), torch.randn(1024, 1024)
    torch.set_num_threads(1 if batch == 1 else os.cpu_count() or 1)
    read_seconds, matmul_seconds = (min(times) for times in time_alternating([buffer.sum, lambda: a @ a], 30))
    flop_rate = 2 * 1024**3 / matmul_seconds
    return {"by_bytes": batch / read_seconds, "by_operations": batch / (2 * weights * batch * beam_size / flop_rate)}


def compare(name: str, batch: int, ours: Call, peer: Call, rounds: int) -> dict[str, Any]:
    our_seconds, peer_seconds = time_alternating([ours, peer], rounds, warmup=2)
    return {
        "case": name,
        "ours": batch * NEW_TOKENS / statistics.median(our_seconds),
        "peer": batch * NEW_TOKENS / statistics.median(peer_seconds),
        "ratio": median_ratio(our_seconds, peer_seconds),
        "unit": "tokens a second",
        "rounds": rounds,
    }


def benchmark_cpu(quick: bool) -> list[dict[str, Any]]:
    model, cases = small_model(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = save_model(model, folder / "model", tokenizer=word_level_tokenizer(VOCAB_SIZE))
        export_ctranslate2(run, folder / "ctranslate2")
        export_huggingface(run, folder / "hf")
        for batch in (1, 64):
            for beam_size in (1, 5):
                rounds = (20 if batch == 1 else 3) if quick else (150 if batch == 1 else 15)
                setting = f"batch {batch}, beam {beam_size}" if beam_size > 1 else f"batch {batch}, greedy"
                for precision in PRECISIONS:
                    ours = decode_with_regard(model, batch, beam_size, precision)
                    peer = decode_with_ctranslate2(folder / "ctranslate2", batch, beam_size, precision)
                    cases.append(log(compare(f"{setting}, CTranslate2 {precision}", batch, ours, peer, rounds)))
                bounds, breakdown = roofline(batch, beam_size), time_breakdown(model, batch, beam_size)
                utilization = cases[-2]["ours"] / min(bounds.values())
                cases.append(log({"case": f"{setting}, floor", "share": utilization, **bounds, **breakdown}))
                ours = decode_with_regard(model, batch, beam_size, "float32")
                peer = decode_with_hugging_face(folder / "hf", batch, beam_size)
                cases.append(log(compare(f"{setting}, Hugging Face generate", batch, ours, peer, max(3, rounds // 3))))
    return cases


def continuous_batching(count: int) -> dict[str, Any]:
    """Requests of mixed lengths through the engine (continuous batching), against the same work sorted offline.

    One in twenty is canceled while it is decoded, and one in fifty has an absurdly large maximum length. Every result
    is compared with the offline one. Sources and outputs have 1 to 400 tokens.
    """
    decoder, rng = make_cpu_decoder(small_model()), random.Random(1)
    cores = os.cpu_count() or 1
    torch.set_num_threads(cores)
    config, max_length = DecodeConfig(beam_size=1), 500
    requests = []
    for number in range(count):
        source = tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, 400)))
        requested_length = 10**9 if number % 50 == 7 else rng.randint(1, 400)
        requests.append(Request(source, requested_length, config))
    bounded = [replace(request, max_length=min(request.max_length, max_length)) for request in requests]
    search_all(decoder, bounded[:64], -1, batch_tokens=4096, threads=cores)
    start = time.perf_counter()
    offline_results = search_all(decoder, bounded, -1, batch_tokens=4096, threads=cores)
    offline_seconds = time.perf_counter() - start
    offline_tokens = sum(len(best.tokens) for best, *_ in offline_results)
    engine = Engine(decoder, -1, max_rows=64, max_cache_bytes=1 << 30, max_length=max_length, threads=cores)
    waiting, futures, cache_bytes, resident_bytes = deque(requests), [], [], []
    start = time.perf_counter()
    while waiting or engine.busy:
        while waiting and len(engine.waiting) < 32:  # new requests arrive as others finish
            futures.append(engine.submit(waiting.popleft()))
            if len(futures) % 20 == 3:
                rng.choice(futures[-40:]).cancel()
        engine.step()
        cache_bytes.append(engine.cache_bytes())
        resident_bytes.append(_resident_bytes())
    seconds = time.perf_counter() - start
    results = [future.result(0) for future in futures]
    tokens = sum(len(hypotheses[0].tokens) for hypotheses in results if hypotheses)
    pairs = [(online[0], offline[0]) for online, offline in zip(results, offline_results, strict=True) if online]
    third = len(resident_bytes) // 3
    return {
        "case": f"{count:,} mixed requests, beside the same work sorted offline",
        "ours": tokens / seconds,
        "peer": offline_tokens / offline_seconds,
        "ratio": tokens / seconds / (offline_tokens / offline_seconds),
        "unit": "tokens a second",
        "canceled": sum(future.canceled for future in futures),
        "results": len(pairs),
        "share_equal": sum(online.tokens == offline.tokens for online, offline in pairs) / len(pairs),
        "most_bytes_of_cache": max(cache_bytes),
        "resident_bytes_by_third": [max(resident_bytes[at : at + third]) for at in (0, third, 2 * third)],
    }


def _resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds; no results are written")
    parser.add_argument("--gpu", action="store_true", help="run the GPU benchmark instead")
    args = parser.parse_args()
    if args.gpu:
        if not torch.cuda.is_available():
            parser.error("--gpu needs a GPU, and none was found; leave it out to measure on the CPU")
        from benchmarks.decode_gpu import benchmark_gpu

        name, cases = "decode-gpu", benchmark_gpu(args.quick)
    else:
        name, cases = "decode-cpu", benchmark_cpu(args.quick)
        if not args.quick:
            cases.append(log(continuous_batching(2000)))
    if not args.quick:
        print(f"Results written to {write_results(name, cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
