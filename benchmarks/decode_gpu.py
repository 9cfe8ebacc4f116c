"""How fast outputs are written on a GPU, beside Hugging Face on the same weights; `decode.py --gpu` runs it.

The paper's base model (6 + 6 layers, width 512, vocabulary 32,768), sources of 32 tokens, exactly 64 new ones, greedy
and with 4 beams; and GPT-2 with 124 million parameters, prompts of 32 tokens, exactly 128 new ones; bf16. Ours and the
peer take turns in one process. Before that it is checked that the fast form finds in float32 what the plain one finds;
of bf16 the share of outputs and tokens that differ from float32's is reported.

Each case has its floors for one step: bytes of weights and cache over the memory's rate, operations over the rate of
products, and the time of as many empty kernels as a step starts; and where the time goes, by kind of kernel.
"""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import median_ratio, say, time_in_turn

from regard.attention import HeadsConfig
from regard.decode import DecodeConfig, Hypothesis, Request, search_batch
from regard.decode.replay import Recorder, Turns
from regard.decode.settings import make_chooser
from regard.fast.swift_gpu import SwiftGpu
from regard.interop.huggingface import export_huggingface, import_huggingface
from regard.model import EncoderDecoderConfig, FeedForwardConfig, StackConfig, TokensConfig, count_parameters
from regard.run import load, save

PADDING, START, END = 0, 1, 2
KINDS = {
    "products": ("gemm", "gemv", "cutlass", "splitK", "nvjet", "cublas"),
    "attention": ("_attend",),
    "sums and norms": ("_join", "_embed"),
    "the greatest scores": ("_parts", "_whole"),
}
"""Which kernels belong together, by parts of their names; the rest is choosing and bookkeeping."""


@dataclass(frozen=True)
class Work:
    """A model in both forms, and what is asked of it."""

    name: str
    model: Any
    peer: Any
    vocabulary: int
    source: int
    new: int
    batches: tuple[tuple[int, int], ...]
    """Rows and beams."""


def base_model(folder: Path, device: str, layers: int = 6, width: int = 512, vocabulary: int = 32_768) -> Work:
    from transformers import AutoModelForSeq2SeqLM

    stack = StackConfig(
        layers=layers,
        attention=HeadsConfig(heads=8),
        feed_forward=FeedForwardConfig(hidden=4 * width),
        order="post",
        dropout=0.0,
    )
    tokens = TokensConfig(padding=PADDING, start=START, end=END)
    torch.manual_seed(0)
    config = EncoderDecoderConfig(vocabulary=vocabulary, width=width, encoder=stack, decoder=stack, tokens=tokens)
    model = config.build().eval()
    save(model, folder / "base", tokenizer=_words(vocabulary))
    export_huggingface(folder / "base", folder / "base-hf")
    peer = AutoModelForSeq2SeqLM.from_pretrained(folder / "base-hf", dtype=torch.bfloat16).eval().to(device)
    batches = tuple((rows, beams) for beams in (1, 4) for rows in (1, 64, 256))
    return Work("base", model.to(device), peer, vocabulary, 32, 64, batches)


def gpt2(folder: Path, device: str, **sizes: int) -> Work:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    peer = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    peer.save_pretrained(folder / "gpt2-hf")
    import_huggingface(folder / "gpt2-hf", folder / "gpt2")
    model = load(folder / "gpt2").model.float().eval()
    size = peer.config.vocab_size
    return Work("GPT-2 124M", model.to(device), peer.to(device, torch.bfloat16), size, 32, 128, ((1, 1), (64, 1)))


def rows_of(work: Work, batch: int) -> list[list[int]]:
    """Sources; a translator reads its end behind each."""
    chance = torch.Generator().manual_seed(1)
    length = work.source - (work.name == "base")
    rows: list[list[int]] = torch.randint(3, work.vocabulary, (batch, length), generator=chance).tolist()
    return rows


def requests_of(work: Work, batch: int, beams: int) -> list[Request]:
    config = DecodeConfig(beams=beams, outputs=1)
    return [Request(tuple(row), work.new, config) for row in rows_of(work, batch)]


def hugging_face(work: Work, batch: int, beams: int, device: str) -> Callable[[], object]:
    end = [END] if work.name == "base" else []
    ids = torch.tensor([[*row, *end] for row in rows_of(work, batch)], device=device)
    work.peer.generation_config.max_length = None
    given = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "num_beams": beams,
        "do_sample": False,
        "min_new_tokens": work.new,
        "max_new_tokens": work.new,
        "pad_token_id": PADDING,
    }
    return lambda: work.peer.generate(**given)


def differ(found: Sequence[list[Hypothesis]], wanted: Sequence[list[Hypothesis]]) -> dict[str, float]:
    """The share of outputs that are not the same, and of tokens that stand elsewhere or are others."""
    pairs = [(one[0].tokens, other[0].tokens) for one, other in zip(found, wanted, strict=True)]
    tokens = [(a, b) for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True)]
    return {
        "outputs": sum(one != other for one, other in pairs) / len(pairs),
        "tokens": sum(a != b for a, b in tokens) / len(tokens),
    }


def step_floor(work: Work, fast: Any, batch: int, beams: int, turn_kernels: int) -> dict[str, float]:
    """Seconds of a step if only one thing counted, at the middle of the output."""
    decoder = count_parameters(fast.reader.decoder) + fast.scored.numel()
    weights = decoder * fast.table.element_size()
    position = fast.bytes_a_position()
    rows = batch * beams
    seen = work.new // 2 + (0 if work.name == "base" else work.source)
    cache = rows * seen * position + (batch * work.source * position if work.name == "base" else 0)
    rate, products, launch = limits()
    return {
        "bytes": (weights + cache) / rate,
        "operations": 2 * decoder * rows / products,
        "launches": turn_kernels * launch,
    }


_LIMITS: list[tuple[float, float, float]] = []


def limits() -> tuple[float, float, float]:
    """Bytes and operations a second that this GPU reaches, and seconds of an empty kernel within a recording."""
    if not _LIMITS:
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        x = torch.empty(1 << 29, device="cuda")
        y, one = torch.empty_like(x), torch.zeros(1, device="cuda")
        graph = torch.cuda.CUDAGraph()
        one.add_(1)
        with torch.cuda.graph(graph):
            for _ in range(1000):
                one.add_(1)
        product, copied, launched = (
            statistics.median(times)
            for times in time_in_turn([lambda: a @ b, lambda: y.copy_(x), graph.replay], repeats=10)
        )
        _LIMITS.append((2 * x.nbytes / copied, 2 * 8192**3 / product, launched / 1000))
        say({"case": "limits", "bytes": _LIMITS[0][0], "operations": _LIMITS[0][1], "launch": _LIMITS[0][2]})
    return _LIMITS[0]


@torch.inference_mode()
def where_time_goes(work: Work, fast: Any, batch: int, beams: int) -> tuple[dict[str, float], int]:
    """Microseconds of a turn by kind of kernel, and how many kernels it starts."""
    requests = requests_of(work, batch, beams)
    state, start = fast.begin([request.source for request in requests], work.new)
    chooser = make_chooser(requests[0].config, [work.new] * batch, -1, device=start.device)
    if beams > 1:
        state = fast.regroup(state, torch.arange(batch, device=start.device).repeat_interleave(beams), None)
    turns: Turns[Any] = Recorder().lend(fast, state, chooser, start.repeat_interleave(beams))
    for _ in range(work.new // 2):
        turns.turn()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(4):
            turns.turn()
        torch.cuda.synchronize()
    spent: dict[str, float] = {}
    count = 0
    for event in profile.key_averages():
        kind = next((kind for kind, names in KINDS.items() if any(name in event.key for name in names)), "the rest")
        spent[kind] = spent.get(kind, 0.0) + event.device_time_total / 4
        count += event.count
    return spent, count // 4


def compare(work: Work, fast: Any, batch: int, beams: int, rounds: int, device: str) -> dict[str, Any]:
    requests = requests_of(work, batch, beams)
    seconds, others = time_in_turn(
        [lambda: search_batch(fast, requests, -1), hugging_face(work, batch, beams, device)], rounds, warm=2
    )
    what = f"beam {beams}" if beams > 1 else "greedy"
    mine = statistics.median(seconds)
    case: dict[str, Any] = {
        "case": f"{work.name}, batch {batch}, {what}, bf16, Hugging Face generate",
        "ours": batch * work.new / mine,
        "peer": batch * work.new / statistics.median(others),
        "ratio": median_ratio(seconds, others),
        "unit": "tokens a second",
        "rounds": rounds,
        "milliseconds_a_step": 1e3 * mine / work.new,
    }
    if device == "cuda":
        spent, kernels = where_time_goes(work, fast, batch, beams)
        floors = step_floor(work, fast, batch, beams, kernels)
        case["microseconds_by_kind"] = spent
        case["kernels_a_step"] = kernels
        case["floor_milliseconds"] = {name: 1e3 * value for name, value in floors.items()}
        case["times_the_floor"] = mine / work.new / max(floors.values())
    return case


def check(work: Work, batch: int, beams: int) -> dict[str, Any]:
    """The fast form in float32 beside the plain one, and in bf16 beside itself in float32."""
    requests = requests_of(work, batch, beams)
    plain = search_batch(work.model, requests, -1)
    exact = search_batch(SwiftGpu(work.model), requests, -1)
    rounded = search_batch(SwiftGpu(work.model, torch.bfloat16), requests, -1)
    same = differ(exact, plain)
    return {
        "case": f"{work.name}, batch {batch}, {beams} beams: what differs",
        "float32_from_plain": same,
        "bf16_from_float32": differ(rounded, exact),
        "passed": same["outputs"] <= 0.02,
    }


def on_a_gpu(quick: bool) -> list[dict[str, Any]]:
    torch.backends.cuda.matmul.allow_tf32 = False
    cases = []
    with tempfile.TemporaryDirectory() as place:
        for work in (base_model(Path(place), "cuda"), gpt2(Path(place), "cuda")):
            with torch.inference_mode():
                cases += [say(check(work, 64, beams)) for beams in sorted({beams for _, beams in work.batches})]
            fast = SwiftGpu(work.model, torch.bfloat16)
            for batch, beams in work.batches:
                cases.append(say(compare(work, fast, batch, beams, 3 if quick else 7, "cuda")))
    return cases


def _words(count: int) -> Any:
    """A tokenizer with a word for each number, which the export needs."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return Tokenizer(WordLevel({f"w{number}": number for number in range(count)}, unk_token="w3"))
