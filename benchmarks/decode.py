"""How fast outputs are written, beside CTranslate2 and Hugging Face on the same weights.

    python benchmarks/decode.py            # on a CPU; --quick ends within a minute
    python benchmarks/decode.py --gpu      # on a GPU; see decode_gpu.py

A small encoder–decoder (3 + 3 layers, width 256, 4 heads, hidden 1,024, vocabulary 8,000) is written to a run folder
and exported to both peers, so that all have the same weights. Sources of 16 tokens, exactly 32 new tokens. Ours and the
peer take turns in one process; the ratio is the median over rounds of the peer's time over ours. CTranslate2 runs in
its best set-up: one thread for one sentence, two workers of one thread for 64. With int8, both have rounded the weights
and round activations row by row.
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
from common import median_ratio, say, time_in_turn, write_results

from regard.attention import HeadsConfig
from regard.decode import DecodeConfig, Engine, Request, search_all
from regard.fast.swift import Precision, swift
from regard.interop.ctranslate2 import export_ctranslate2
from regard.interop.huggingface import export_huggingface
from regard.model import EncoderDecoder, EncoderDecoderConfig, FeedForwardConfig, StackConfig, TokensConfig
from regard.run import save

VOCABULARY, SOURCE, NEW = 8000, 16, 32
PADDING, START, END = 0, 1, 2
PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
Call = Callable[[], object]


def small_model() -> EncoderDecoder:
    stack = StackConfig(
        layers=3, attention=HeadsConfig(heads=4), feed_forward=FeedForwardConfig(hidden=1024), order="post", dropout=0.0
    )
    tokens = TokensConfig(padding=PADDING, start=START, end=END)
    config = EncoderDecoderConfig(vocabulary=VOCABULARY, width=256, encoder=stack, decoder=stack, tokens=tokens)
    torch.manual_seed(0)
    return config.build().eval()


def sources(batch: int) -> list[list[int]]:
    chance = torch.Generator().manual_seed(1)
    rows: list[list[int]] = torch.randint(3, VOCABULARY, (batch, SOURCE - 1), generator=chance).tolist()
    return rows


def ours(model: EncoderDecoder, batch: int, beams: int, precision: Precision) -> Call:
    """Nothing ends an output but its limit: no token has the number of the end."""
    worker, config = swift(model, precision), DecodeConfig(beams=beams)
    requests = [Request(tuple(row), NEW, config) for row in sources(batch)]
    cores = os.cpu_count() or 1

    def run() -> None:
        torch.set_num_threads(cores)  # making a CTranslate2 model sets its own number for the whole process
        search_all(worker, requests, -1, batch_tokens=1 << 20, threads=1 if batch == 1 else cores)

    return run


def ctranslate2(folder: Path, batch: int, beams: int, precision: Precision) -> Call:
    import ctranslate2 as peer

    workers = 1 if batch == 1 else 2
    model = peer.Translator(str(folder), device="cpu", compute_type=precision, intra_threads=1, inter_threads=workers)
    words = [[*(f"w{token}" for token in row), f"w{END}"] for row in sources(batch)]
    return lambda: model.translate_batch(
        words,
        beam_size=beams,
        min_decoding_length=NEW,
        max_decoding_length=NEW,
        max_batch_size=-(-batch // workers),
    )


def hugging_face(folder: Path, batch: int, beams: int) -> Call:
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    model.generation_config.max_length = None
    ids = torch.tensor([[*row, END] for row in sources(batch)])

    def run() -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            num_beams=beams,
            do_sample=False,
            min_new_tokens=NEW,
            max_new_tokens=NEW,
        )

    return run


class Timed:
    """A worker that notes how long it reads and steps."""

    def __init__(self, worker: Any) -> None:
        self.worker, self.reading, self.stepping = worker, 0.0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def begin(self, *given: Any) -> Any:
        start = time.perf_counter()
        made = self.worker.begin(*given)
        self.reading += time.perf_counter() - start
        return made

    def step(self, *given: Any) -> Any:
        start = time.perf_counter()
        made = self.worker.step(*given)
        self.stepping += time.perf_counter() - start
        return made


def where_time_goes(model: EncoderDecoder, batch: int, beams: int) -> dict[str, float]:
    """Shares of the time that one thread reads sources, steps, and chooses words."""
    timed = Timed(swift(model))
    requests = [Request(tuple(row), NEW, DecodeConfig(beams=beams)) for row in sources(batch)]
    search_all(timed, requests, -1, batch_tokens=1 << 20)
    timed.reading = timed.stepping = 0.0
    begin = time.perf_counter()
    for _ in range(max(1, 64 // batch)):
        search_all(timed, requests, -1, batch_tokens=1 << 20)
    whole = time.perf_counter() - begin
    reading, stepping = timed.reading / whole, timed.stepping / whole
    return {"reading": reading, "stepping": stepping, "choosing": 1 - reading - stepping}


def floors(batch: int, beams: int) -> dict[str, float]:
    """Tokens a second if nothing but the weights were read, and if nothing but products were computed."""
    layer = 6 * 256**2 + 2 * 256 * 1024
    weights = 3 * layer + 256 * VOCABULARY
    buffer, a = torch.randn(weights), torch.randn(1024, 1024)
    torch.set_num_threads(1 if batch == 1 else os.cpu_count() or 1)
    reads, products = (min(times) for times in time_in_turn([buffer.sum, lambda: a @ a], 30))
    rate = 2 * 1024**3 / products
    return {"by_bytes": batch / reads, "by_operations": batch / (2 * weights * batch * beams / rate)}


def compare(name: str, batch: int, mine: Call, peer: Call, rounds: int) -> dict[str, Any]:
    seconds, others = time_in_turn([mine, peer], rounds, warm=2)
    return {
        "case": name,
        "ours": batch * NEW / statistics.median(seconds),
        "peer": batch * NEW / statistics.median(others),
        "ratio": median_ratio(seconds, others),
        "unit": "tokens a second",
        "rounds": rounds,
    }


def on_a_cpu(quick: bool) -> list[dict[str, Any]]:
    model, cases = small_model(), []
    with tempfile.TemporaryDirectory() as place:
        folder = save(model, Path(place) / "model", tokenizer=_words())
        for kind in ("ctranslate2", "hf"):
            export = export_ctranslate2 if kind == "ctranslate2" else export_huggingface
            export(folder, Path(place) / kind)
        for batch in (1, 64):
            for beams in (1, 5):
                rounds = (20 if batch == 1 else 3) if quick else (150 if batch == 1 else 15)
                what = f"batch {batch}, beam {beams}" if beams > 1 else f"batch {batch}, greedy"
                for precision in PRECISIONS:
                    mine = ours(model, batch, beams, precision)
                    peer = ctranslate2(Path(place) / "ctranslate2", batch, beams, precision)
                    cases.append(say(compare(f"{what}, CTranslate2 {precision}", batch, mine, peer, rounds)))
                limits, shares = floors(batch, beams), where_time_goes(model, batch, beams)
                of_floor = cases[-2]["ours"] / min(limits.values())
                cases.append(say({"case": f"{what}, floor", "share": of_floor, **limits, **shares}))
                mine, peer = ours(model, batch, beams, "float32"), hugging_face(Path(place) / "hf", batch, beams)
                cases.append(say(compare(f"{what}, Hugging Face generate", batch, mine, peer, max(3, rounds // 3))))
    return cases


def mixed_load(count: int) -> dict[str, Any]:
    """Requests of all lengths that come while others are under way, beside the same work sorted and done at once.

    One in twenty is cancelled on its way, one in fifty has an absurd limit. Every result is compared with that of the
    sorted work. Sources and outputs have 1 to 400 tokens.
    """
    worker, chance = swift(small_model()), random.Random(1)
    cores = os.cpu_count() or 1
    torch.set_num_threads(cores)
    config, longest = DecodeConfig(beams=1), 500
    requests = []
    for number in range(count):
        source = tuple(chance.randrange(3, VOCABULARY) for _ in range(chance.randint(1, 400)))
        limit = 10**9 if number % 50 == 7 else chance.randint(1, 400)
        requests.append(Request(source, limit, config))
    bounded = [replace(request, limit=min(request.limit, longest)) for request in requests]
    search_all(worker, bounded[:64], -1, batch_tokens=4096, threads=cores)
    begin = time.perf_counter()
    sorted_results = search_all(worker, bounded, -1, batch_tokens=4096, threads=cores)
    offline = time.perf_counter() - begin
    tokens = sum(len(best.tokens) for best, *_ in sorted_results)
    engine = Engine(worker, -1, rows=64, memory=1 << 30, longest=longest, threads=cores)
    waiting, tickets, held, memory = deque(requests), [], [], []
    begin = time.perf_counter()
    while waiting or engine.busy:
        while waiting and len(engine.waiting) < 32:  # others come as these leave
            tickets.append(engine.submit(waiting.popleft()))
            if len(tickets) % 20 == 3:
                chance.choice(tickets[-40:]).cancel()
        engine.work()
        held.append(engine.held())
        memory.append(_resident())
    online = time.perf_counter() - begin
    found = [ticket.result(0) for ticket in tickets]
    done = sum(len(each[0].tokens) for each in found if each)
    pairs = [(each[0], best) for each, (best, *_) in zip(found, sorted_results, strict=True) if each]
    third = len(memory) // 3
    return {
        "case": f"{count:,} mixed requests, beside the same work sorted offline",
        "ours": done / online,
        "peer": tokens / offline,
        "ratio": done / online / (tokens / offline),
        "unit": "tokens a second",
        "cancelled": sum(ticket.cancelled for ticket in tickets),
        "results": len(pairs),
        "share_equal": sum(one.tokens == other.tokens for one, other in pairs) / len(pairs),
        "most_bytes_of_cache": max(held),
        "resident_bytes_by_third": [max(memory[at : at + third]) for at in (0, third, 2 * third)],
    }


def _resident() -> int:
    """Bytes of memory the process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _words() -> Any:
    """A tokenizer with a word for each number, which the exports need."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return Tokenizer(WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w3"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, and nothing is written")
    parser.add_argument("--gpu", action="store_true", help="the cases for a GPU")
    options = parser.parse_args()
    if options.gpu:
        from decode_gpu import on_a_gpu

        cases = on_a_gpu(options.quick)
        if not options.quick:
            print(f"written: {write_results('decode-gpu', cases)}")
        return 0
    cases = on_a_cpu(options.quick)
    if not options.quick:
        cases.append(say(mixed_load(2000)))
    if not options.quick:
        print(f"written: {write_results('decode-cpu', cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
