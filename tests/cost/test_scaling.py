"""Every figure of docs/scaling.md is computed here again, or stands in a results file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from regard.attention import HeadsConfig, LatentConfig, RotaryConfig
from regard.attention.kinds import AnyAttention
from regard.cost import HARDWARE, Cost, Work, estimate, workspace_bytes
from regard.cost.slide import Answer, answer, slide_model, slide_parameters
from regard.cost.words import between, short
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig, read_config, transformer_base
from regard.task import read_recipe
from regard.task.training import likely_cost
from tests.cost.test_estimate import PIECES, measured_peak
from tests.model.small_models import SAMPLES
from tests.task.small import command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
H200 = HARDWARE["h200"]
TRAINED = json.loads((ROOT / "benchmarks" / "results" / "train-gpu.json").read_text(encoding="utf-8"))["cases"]
BASE = next(case for case in TRAINED if case["case"].startswith("base"))


def power(number: float) -> str:
    """1.29e+23 → 1.29 · 10²³."""
    digits, exponent = f"{number:.2e}".split("e+")
    return f"{digits} · 10{''.join('⁰¹²³⁴⁵⁶⁷⁸⁹'[int(digit)] for digit in str(int(exponent)))}"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def language_model(width: int, layers: int, pattern: str = "full", vocabulary: int = 50_304) -> LanguageModelConfig:
    stack = StackConfig(
        layers=layers,
        attention=HeadsConfig(heads=width // 64, pattern=pattern),
        feed_forward=FeedForwardConfig(hidden=4 * width),
        dropout=0.0,
    )
    return LanguageModelConfig(vocabulary=vocabulary, width=width, decoder=stack)


def length_rows() -> list[str]:
    rows = []
    for length in (128, 1024, 8192, 32_768, 131_072):
        full, window = (
            estimate(language_model(768, 12, pattern), Work(1, length), precision="bf16")
            for pattern in ("full", "sliding(512)")
        )
        rows.append(
            row(
                f"{length:,}",
                *(
                    cell
                    for cost in (full, window)
                    for cell in (f"{short(3 * cost.flops_per_token[1])}FLOP", f"{100 * cost.attention_share:.0f} %")
                ),
                f"{short(length * full.cache_bytes_per_token[0])}B",
            )
        )
    return rows


CACHED: dict[str, AnyAttention] = {
    "12, each with its own keys and values": HeadsConfig(heads=12),
    "12 in 4 groups": HeadsConfig(heads=12, key_heads=4),
    "12 that share a latent of 128 and a turned key of 32": LatentConfig(heads=12, latent=128, rotary_width=32),
    "12 with their own, in a window of 512": HeadsConfig(heads=12, pattern="sliding(512)"),
}


def cache_rows() -> list[str]:
    rows = []
    for name, heads in CACHED.items():
        stack = language_model(768, 12).decoder.model_copy(update={"attention": heads})
        config = LanguageModelConfig(vocabulary=50_304, width=768, decoder=stack, position=RotaryConfig())
        cost = estimate(config, Work(1, 131_072), precision="bf16")
        rows.append(row(name, f"{short(cost.cache_bytes_per_token[0])}B", f"{short(cost.cache_bytes())}B"))
    return rows


def sized(name: str, cost: Cost) -> str:
    least = -(-cost.lasting_bytes // H200.memory)
    return row(
        name,
        f"{short(cost.parameters)}".strip(),
        f"{short(3 * cost.flops_per_token[1])}FLOP",
        f"{100 * cost.attention_share:.1f} %",
        f"{short(cost.lasting_bytes)}B",
        str(least),
        f"{short(cost.cache_bytes_per_token[0])}B",
    )


SIZES = ((256, 4), (768, 12), (768, 24), (1536, 12), (2048, 24), (4096, 32))


def size_rows() -> list[str]:
    costs = {
        f"{width:,} × {layers}": estimate(language_model(width, layers), Work(1, 1024), precision="bf16")
        for width, layers in SIZES
    }
    costs["12,288 × 96 (the slide)"] = estimate(slide_model(), Work(1, 1024), precision="bf16")
    return [sized(name, cost) for name, cost in costs.items()]


def process_rows() -> list[str]:
    likely = likely_cost(read_recipe("transformer-base"))
    rows = []
    for processes in (1, 2, 4, 8, 16, 32):
        cost = estimate(likely.config, likely.work, precision="bf16", processes=processes)
        low, high = cost.minutes(H200, captured=processes == 1)
        hours = between(processes * low / 60, processes * high / 60)
        rows.append(
            row(
                str(processes),
                f"{low:.0f}–{high:.0f}",
                hours,
                f"{short(cost.activations_bytes + cost.loss_bytes)}B",
                f"{short(cost.lasting_bytes)}B",
            )
        )
    return rows


def paper_rows() -> list[str]:
    """At the FLOP/s that was measured with the base model, 32,768 words, at length 32."""
    measured = estimate(transformer_base(32_768), Work(768, 32, 32), precision="bf16")
    rate = BASE["ours"] * measured.flops_per_step / (768 * 32)
    rows = []
    for name in ("transformer-base", "transformer-big"):
        cost = likely_cost(read_recipe(name))
        words = cost.work.rows * cost.work.target * cost.work.steps
        seconds = cost.total_flops / rate
        rows.append(
            row(
                f"`{name}`",
                f"{cost.parameters:,}",
                power(words),
                power(cost.total_flops),
                f"{words / seconds / 1000:,.0f} k",
                f"{seconds / 3600:.2f}",
            )
        )
    return rows


def slide_rows(answers: list[Answer]) -> list[str]:
    first, _ = answers
    cost = first.cost
    return [
        row("parameters", f"{slide_parameters():,}", f"{cost.parameters:,}"),
        row("weights at 2 bytes", f"{short(2 * slide_parameters())}B", f"{short(2 * cost.parameters)}B"),
        row(
            "training, a token",
            f"{power(6 * slide_parameters())}",
            f"{power(3 * cost.flops_per_token[1])}",
        ),
        *(
            row(
                f"training, {power(one.tokens)} tokens",
                power(one.training_flops_by_the_slide),
                power(one.training_flops),
            )
            for one in answers
        ),
        row("a generated token, the first", power(2 * slide_parameters()), power(first.first_token_flops)),
        row("a generated token, at the end of the window", "–", power(first.last_token_flops)),
        row("reading a full window", power(2 * slide_parameters() * 32_768), power(first.prompt_flops)),
        row("cache of a full window", "–", f"{short(first.cache_bytes)}B"),
    ]


def money_rows(answers: list[Answer]) -> list[str]:
    rows = [
        row(f"training on {power(one.tokens)} tokens", f"{one.training_hours:,.0f}", f"{one.training_money:,.0f}")
        for one in answers
    ]
    for count in (1, 64):
        hours = 1e6 * answers[0].token_seconds(count) / 3600
        name = "one text at a time" if count == 1 else f"{count} texts side by side"
        money = f"{answers[0].million_tokens_money(count):,.0f}"
        rows.append(row(f"a million tokens at the end of the window, {name}", f"{hours:,.1f}", money))
    return rows


def cases() -> list[dict[str, Any]]:
    return json.loads((ROOT / "benchmarks" / "results" / "cost-cpu.json").read_text(encoding="utf-8"))["cases"]


def measured_rows() -> list[str]:
    return [
        row(
            case["case"],
            f"{case['training_flops_a_token'] / 1e6:.1f}",
            f"{100 * case['attention_share']:.0f} %",
            f"{case['microseconds_a_token']:,.0f}",
            f"{case['flops_beside']:.2f}",
            f"{case['time_beside']:.2f}",
        )
        for case in cases()
    ]


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    return [answer(tokens, price=3.0) for tokens in (10**11, 10**12)]


def test_the_page_knows_how_many_samples_there_are() -> None:
    assert set(re.findall(r"(\d+) sample", PAGE)) == {str(sum(map(len, SAMPLES.values())))}


def test_the_measured_rate_is_on_the_page() -> None:
    assert f"{BASE['ours']:,.0f} target tokens a second on one H200" in " ".join(PAGE.split())


@pytest.mark.parametrize("table", [length_rows, cache_rows, size_rows, process_rows, paper_rows, measured_rows])
def test_the_page_has_every_row_of_a_table(table: Any) -> None:
    for wanted in table():
        assert wanted in PAGE, wanted


def test_the_page_answers_the_slide(answers: list[Answer]) -> None:
    for wanted in slide_rows(answers) + money_rows(answers):
        assert wanted in PAGE, wanted


def test_time_of_a_token_follows_its_flops_as_far_as_the_page_says() -> None:
    rates = [case["gflops_a_second"] for case in cases()]
    assert f"between {min(rates):.0f} and {max(rates):.0f} GFLOP/s" in PAGE
    deep = [case["time_beside"] / case["flops_beside"] for case in cases() if case["case"] in ("layers 8", "layers 16")]
    assert max(deep) < 1.1
    assert min(deep) > 0.9


def test_the_slide_s_config_on_the_page_is_the_slide_s_model(tmp_path: Path) -> None:
    text = PAGE.split("```json\n")[1].split("```")[0]
    assert read_config(json.loads(text)).plain() == slide_model().plain()
    (tmp_path / "slide.json").write_text(text, encoding="utf-8")
    done = command(
        "cost", tmp_path / "slide.json", "--length", 32768, "--tokens", "1e11", "--hardware", "h200", "--json"
    )
    facts = json.loads(done.out)
    assert facts["parameters"] == 175_567_429_632
    assert facts["training_flops"] == pytest.approx(1.287e23, rel=1e-3)
    assert "not even one row" in facts["advice"]


def test_what_the_page_says_of_attention_in_the_slide_s_model_holds(answers: list[Answer]) -> None:
    first = answers[0]
    assert round(100 * first.cost.attention_share) == 18
    assert round(100 * (first.last_token_flops - first.first_token_flops) / first.last_token_flops) == 31
    assert re.search(r"18 % of training, and 31 % of the last\s+token", PAGE)


def test_what_the_page_says_of_the_paper_s_table_holds() -> None:
    """Table 2 of Vaswani et al. 2017: 3.3e18 and 2.3e19."""
    flops = [likely_cost(read_recipe(name)).total_flops for name in ("transformer-base", "transformer-big")]
    assert [round(100 * own / theirs) for own, theirs in zip(flops, (3.3e18, 2.3e19), strict=True)] == [29, 42]
    assert re.search(r"is 29 % and\s+42 % of that", PAGE)


def test_what_has_no_precision_is_as_large_as_the_page_says() -> None:
    beyond = []
    for precision in ("bf16", "fp32"):
        work = Work(768, 32, 32)
        cost = estimate(transformer_base(32_768), work, precision=precision, form="plain", loss="kernel")
        beyond.append(measured_peak(precision) - cost.memory + cost.gradients_bytes)
    assert [f"{one / 1e9:.2f}" for one in beyond] == ["2.35", "2.35"]
    assert abs(beyond[0] - beyond[1]) < 1e5
    aside = PIECES * H200.workspace
    assert (f"{aside / 1e9:.2f}", f"{(beyond[0] - aside) / 1e9:.2f}") == ("2.21", "0.14")


def test_recording_sets_as_much_aside_as_the_page_says() -> None:
    aside = workspace_bytes(H200, captured=True)
    assert (aside, f"{aside / 1e9:.1f}") == (6 * 2**25, "0.2")
    assert "6 times 32 MiB, or 0.2 GB" in PAGE


def test_the_page_names_the_points_the_memory_was_checked_on() -> None:
    for precision in ("bf16", "fp32"):
        seen = measured_peak(precision)
        work = Work(768, 32, 32)
        cost = estimate(transformer_base(32_768), work, precision=precision, form="plain", loss="rows")
        peak = cost.memory + PIECES * H200.workspace
        assert row(precision, f"{short(seen)}B", f"{short(peak)}B", f"{100 * (peak / seen - 1):+.1f} %") in PAGE


if __name__ == "__main__":
    both = [answer(tokens, price=3.0) for tokens in (10**11, 10**12)]
    tables = [
        length_rows(),
        cache_rows(),
        size_rows(),
        process_rows(),
        paper_rows(),
        slide_rows(both),
        money_rows(both),
    ]
    print("\n\n".join("\n".join(table) for table in [*tables, measured_rows()]))


def test_memory_on_a_gpu_is_estimated_within_a_tenth() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "cost-gpu.json").read_text(encoding="utf-8"))["cases"]
    assert all(case["passed"] for case in measured)
    peaks = [case for case in measured if case["case"].startswith("peak memory in ")]
    assert len(peaks) == 8
    for case in peaks:
        seen, said = (f"{case[name] / 1e9:.2f} GB" for name in ("seen_bytes", "estimated_bytes"))
        name, off = case["case"].removeprefix("peak memory in "), 100 * (case["ratio"] - 1)
        assert row(name, seen, said, f"{off:+.1f} %") in PAGE
        assert abs(off) < 10
