"""Tables and figures of docs/guides/scaling.md: most are computed by `regard.cost`, some quote measured results."""

from collections.abc import Iterator

from doc_figures.markers import case, cases, figure, table
from doc_figures.results import Row, percent
from doc_figures.slide import SlideCost, slide_cost, slide_model, slide_parameters
from regard.attention import LatentAttentionConfig, MultiHeadConfig, RotaryConfig
from regard.cost import HARDWARE, TrainingSetup, Workload, estimate
from regard.cost.format import number_range, si_prefixed
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig, transformer_base
from regard.model.stack import AnyAttention
from regard.task.recipe_io import read_recipe
from regard.task.run import expected_cost

H200 = HARDWARE["h200"]
_BASE_WORK = Workload(768, 32, 32)


def power(number: float) -> str:
    """1.29e+23 → 1.29 · 10²³."""
    digits, exponent = f"{number:.2e}".split("e+")
    return f"{digits} · 10{''.join('⁰¹²³⁴⁵⁶⁷⁸⁹'[int(digit)] for digit in str(int(exponent)))}"


def language_model(width: int, layers: int, pattern: str = "full") -> LanguageModelConfig:
    """A GPT of a width and depth, with heads of 64."""
    stack = StackConfig(
        layers=layers,
        attention=MultiHeadConfig(heads=width // 64, pattern=pattern),
        feed_forward=FeedForwardConfig(hidden=4 * width),
        dropout=0.0,
    )
    return LanguageModelConfig(vocab_size=50_304, width=width, decoder=stack)


@table("length | full attention | attention's share | window of 512 | attention's share | KV cache")
def cost_by_length() -> Iterator[Row]:
    for length in (128, 1024, 8192, 32_768, 131_072):
        full, window = (
            estimate(language_model(768, 12, pattern), Workload(1, length), TrainingSetup("bfloat16"))
            for pattern in ("full", "sliding(512)")
        )
        cells = [
            cell
            for cost in (full, window)
            for cell in (f"{si_prefixed(3 * cost.flops_per_token[1])}FLOP", percent(cost.attention_fraction))
        ]
        yield f"{length:,}", *cells, f"{si_prefixed(length * full.kv_cache_bytes_per_token[0])}B"


@table("attention | KV cache per token | KV cache of 131,072 tokens")
def cache_by_attention() -> Iterator[Row]:
    kinds: dict[str, AnyAttention] = {
        "multi-head, 12 heads": MultiHeadConfig(heads=12),
        "grouped-query, 12 heads in 4 groups": MultiHeadConfig(heads=12, kv_heads=4),
        "latent (MLA), 12 heads, latent of 128, RoPE key of 32": LatentAttentionConfig(
            heads=12, kv_latent=128, rope_head_dim=32
        ),
        "multi-head, 12 heads, window of 512": MultiHeadConfig(heads=12, pattern="sliding(512)"),
    }
    for name, attention in kinds.items():
        stack = language_model(768, 12).decoder.model_copy(update={"attention": attention})
        config = LanguageModelConfig(vocab_size=50_304, width=768, decoder=stack, position=RotaryConfig())
        cost = estimate(config, Workload(1, 131_072), TrainingSetup("bfloat16"))
        yield name, f"{si_prefixed(cost.kv_cache_bytes_per_token[0])}B", f"{si_prefixed(cost.kv_cache_bytes())}B"


@table(
    "width × layers | parameters | training FLOPs per token | attention's share | persistent memory | GPUs | "
    "KV cache per token"
)
def cost_by_size() -> Iterator[Row]:
    costs = {
        f"{width:,} × {layers}": estimate(language_model(width, layers), Workload(1, 1024), TrainingSetup("bfloat16"))
        for width, layers in ((256, 4), (768, 12), (768, 24), (1536, 12), (2048, 24), (4096, 32))
    }
    costs["12,288 × 96 (the slide)"] = estimate(slide_model(), Workload(1, 1024), TrainingSetup("bfloat16"))
    for name, cost in costs.items():
        yield (
            name,
            si_prefixed(cost.parameters).strip(),
            f"{si_prefixed(3 * cost.flops_per_token[1])}FLOP",
            percent(cost.attention_fraction, 1),
            f"{si_prefixed(cost.model_state_bytes)}B",
            -(-cost.model_state_bytes // H200.memory),
            f"{si_prefixed(cost.kv_cache_bytes_per_token[0])}B",
        )


@table("processes | minutes | GPU hours | activations and loss, each | persistent memory, each")
def cost_by_processes() -> Iterator[Row]:
    likely = expected_cost(read_recipe("transformer-base"))
    for processes in (1, 2, 4, 8, 16, 32):
        cost = estimate(likely.config, likely.workload, TrainingSetup("bfloat16", processes=processes))
        low, high = cost.minutes(H200, cuda_graphs=processes == 1)
        hours = number_range(processes * low / 60, processes * high / 60)
        batch = f"{si_prefixed(cost.activation_bytes + cost.temporary_bytes)}B"
        yield processes, f"{low:.0f}–{high:.0f}", hours, batch, f"{si_prefixed(cost.model_state_bytes)}B"


@table("recipe | parameters | target tokens | training FLOPs | target tokens per second | H200 hours")
def paper_models() -> Iterator[Row]:
    """At the FLOP/s measured with the base model at length 32."""
    measured = estimate(transformer_base(32_768), _BASE_WORK, TrainingSetup("bfloat16"))
    rate = case("train-gpu", "base")["ours"] * measured.flops_per_step / (768 * 32)
    for name in ("transformer-base", "transformer-big"):
        cost = expected_cost(read_recipe(name))
        tokens = cost.workload.batch_size * cost.workload.target_length * cost.workload.steps
        seconds = cost.training_flops / rate
        speed = f"{tokens / seconds / 1000:,.0f} k"
        yield (
            f"`{name}`",
            f"{cost.parameters:,}",
            power(tokens),
            power(cost.training_flops),
            speed,
            f"{seconds / 3600:.2f}",
        )


@figure
def paper_flops_shares() -> str:
    """Of the FLOPs in table 2 of Vaswani et al. 2017: 3.3e18 and 2.3e19."""
    flops = (expected_cost(read_recipe(name)).training_flops for name in ("transformer-base", "transformer-big"))
    return " and ".join(percent(ours / theirs) for ours, theirs in zip(flops, (3.3e18, 2.3e19), strict=True))


def _slide_costs() -> list[SlideCost]:
    return [slide_cost(tokens, price_per_hour=3.0) for tokens in (10**11, 10**12)]


@table("| slide's formula | regard")
def slide_question() -> Iterator[Row]:
    answers = _slide_costs()
    first, cost, slide = answers[0], answers[0].cost, slide_parameters()
    yield "parameters", f"{slide:,}", f"{cost.parameters:,}"
    yield "weights at 2 bytes", f"{si_prefixed(2 * slide)}B", f"{si_prefixed(2 * cost.parameters)}B"
    yield "training FLOPs, one token", power(6 * slide), power(3 * cost.flops_per_token[1])
    for one in answers:
        name = f"training FLOPs, {power(one.tokens)} tokens"
        yield name, power(one.training_flops_by_slide_parameters), power(one.training_flops)
    yield "FLOPs of the first generated token", power(2 * slide), power(first.first_token_flops)
    yield "FLOPs of a generated token at the end of the window", "–", power(first.last_token_flops)
    yield "FLOPs of a full window as the prompt", power(2 * slide * 32_768), power(first.prompt_flops)
    yield "KV cache of a full window", "–", f"{si_prefixed(first.kv_cache_bytes)}B"


@table("workload | H200 hours | cost")
def slide_money() -> Iterator[Row]:
    answers = _slide_costs()
    for one in answers:
        yield f"training on {power(one.tokens)} tokens", f"{one.training_hours:,.0f}", f"{one.training_price:,.0f}"
    for count, name in ((1, "one sequence at a time"), (64, "batches of 64")):
        hours = 1e6 * answers[0].token_seconds(count) / 3600
        money = f"{answers[0].million_tokens_price(count):,.0f}"
        yield f"a million generated tokens at the end of the window, {name}", f"{hours:,.1f}", money


@figure
def slide_attention_in_training() -> str:
    return percent(_slide_costs()[0].cost.attention_fraction)


@figure
def slide_attention_in_last_token() -> str:
    first = _slide_costs()[0]
    return percent((first.last_token_flops - first.first_token_flops) / first.last_token_flops)


@table("change | MFLOP per token | attention's share | µs per token | relative FLOPs | relative time")
def cost_on_cpu() -> Iterator[Row]:
    for one in cases("cost-cpu"):
        yield (
            one["case"],
            f"{one['training_flops_a_token'] / 1e6:.1f}",
            percent(one["attention_fraction"]),
            f"{one['microseconds_a_token']:,.0f}",
            f"{one['flops_beside']:.2f}",
            f"{one['time_beside']:.2f}",
        )


@figure
def cpu_gflops_range() -> str:
    rates = [one["gflops_a_second"] for one in cases("cost-cpu")]
    return f"{min(rates):.0f} and {max(rates):.0f} GFLOP/s"


@table("model and batch, on one H200 | measured | estimated | error")
def memory_on_gpu() -> Iterator[Row]:
    for one in cases("cost-gpu"):
        if one["case"].startswith("peak memory in "):
            sizes = (f"{one[key] / 1e9:.2f} GB" for key in ("seen_bytes", "estimated_bytes"))
            name = (
                one["case"].removeprefix("peak memory in ").replace("fast form", "fused").replace("plain form", "plain")
            )
            yield name, *sizes, f"{100 * (one['ratio'] - 1):+.1f}%"
