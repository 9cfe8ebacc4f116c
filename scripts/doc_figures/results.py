"""Tables and figures of measured results: scores of recipes, settings that were compared, speed and memory."""

import statistics
from collections.abc import Iterator
from typing import Any

from doc_figures.markers import case, cases, figure, table
from regard.task.recipe_io import shipped_recipes

Row = tuple[object, ...]

_COUNTED = {"sentences": "sentences", "items": "items", "asked": "masked tokens", "tokens": "tokens"}
_SENTENCES = {"quick": 500, "europarl-en-de": 2000}
"""The number of test sentences of recipes whose results file lacks it, unless it is 1,000."""


def percent(fraction: float, digits: int = 0) -> str:
    return f"{100 * fraction:.{digits}f}%"


def whole(number: float) -> str:
    return f"{number:,.0f}"


def mean_std(values: list[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits + 1}f}"


# --- scores of recipes


@table("recipe | test set | BLEU | chrF | seeds | minutes | hardware")
def translation_recipes() -> Iterator[Row]:
    for shipped in shipped_recipes():
        expect = shipped.recipe.expect
        if expect is None or not expect.measured:
            continue
        for name, score in expect.scores.items():
            if score.bleu is not None:
                bleu = f"{score.bleu}" if score.std is None else f"{score.bleu} ± {score.std}"
                test_set = f"{name.replace('_', ' ')}, {_SENTENCES.get(shipped.name, 1000):,} sentences"
                yield (f"`{shipped.name}`", test_set, bleu, score.chrf, *_how(expect))


@table("recipe | test set | score | seeds | minutes | hardware")
def task_recipes() -> Iterator[Row]:
    for shipped in shipped_recipes():
        expect = shipped.recipe.expect
        if expect is None or not expect.measured:
            continue
        for name, score in expect.scores.items():
            if score.bleu is None and score.spearman is None:  # word vectors have a table of their own
                measured = cases(f"task-{shipped.name}")[0]["scores"][name]
                counted, unit = next((measured[key], unit) for key, unit in _COUNTED.items() if key in measured)
                yield (f"`{shipped.name}`", f"{name}, {counted:,} {unit}", score, *_how(expect))


def _how(expect: Any) -> Row:
    return expect.seeds, f"{expect.minutes:g}", expect.hardware


@table("recipe | version | seeds | BLEU")
def repeated_recipes() -> Iterator[Row]:
    runs = {
        "quick": [("the recipe's", "translation-quick"), ("later, with less memory a step", "again-quick")],
        "multi30k-en-de": [
            ("the recipe's", "translation-multi30k-en-de"),
            ("later, with faster steps", "again-multi30k-en-de"),
            ("later, other seeds", "again-multi30k-en-de-more"),
        ],
    }
    for recipe, versions in runs.items():
        for version, name in versions:
            summary = case(name, "summary")
            scores = (f"{summary['bleu'][part]:.1f} ± {summary['spread'][part]:.1f}" for part in summary["bleu"])
            yield f"`{recipe}`", version, ", ".join(map(str, summary["seeds"])), ", ".join(scores)
    for version, name in (("the recipe's", "translation-tatoeba-en-fr"), ("later", "again-tatoeba-en-fr")):
        run = case(name, "ours")
        yield "`tatoeba-en-fr`", version, run["seed"], f"{run['scores']['test']['bleu']:.1f}"


@table("model | parameters | test 2016 | test 2017")
def encoder_decoder_and_language_model() -> Iterator[Row]:
    for name, recipe in (("encoder–decoder", "multi30k-en-de"), ("language model", "multi30k-en-de-lm")):
        *runs, summary = cases(f"translation-{recipe}")
        scores = (f"{summary['bleu'][part]:.1f} ± {summary['spread'][part]:.1f}" for part in summary["bleu"])
        yield f"{name} (`{recipe}`)", f"{runs[0]['parameters']:,}", *scores


@table("model | BLEU | chrF | parameters")
def peer_on_tatoeba() -> Iterator[Row]:
    ours, peer = case("translation-tatoeba-en-tr", "ours"), case("peer-tatoeba-en-tr", "torch.nn.Transformer")
    for name, run in (("regard", ours), ("`torch.nn.Transformer`", peer)):
        score = run["scores"]["test"]
        yield name, f"{score['bleu']:.1f}", f"{score['chrf']:.1f}", f"{run['parameters']:,}"


@table(
    "training data | F1 | test sentences seen in training | "
    "sentences per second, H200 | sentences per second, 2 CPU cores"
)
def parsers() -> Iterator[Row]:
    seen_own, seen_gum = (one["seen"] for one in cases("overlap-ptb-sample-parse-more"))
    rows = {
        "gum-parse": ("GUM", "–"),
        "ptb-sample-parse": ("Penn Treebank sample", "–"),
        "ptb-sample-parse-more": ("sample twice, GUM once", f"{seen_own} of the sample's, {seen_gum} of GUM's"),
    }
    for recipe, (data, seen) in rows.items():
        summary = case(f"task-{recipe}", "summary")
        f1 = f"{summary['f1']['test']:.1f} ± {summary['spread']['test']:.2f}"
        on_gpu = whole(case(f"parsing-{recipe}-cuda", "test")["sentences_a_second"])
        on_cpu = "–" if recipe.endswith("more") else whole(case(f"parsing-{recipe}-cpu", "test")["sentences_a_second"])
        yield f"{data} (`{recipe}`)", f1, seen, on_gpu, on_cpu


@table("initialization of `gum-tags` | accuracy")
def pretraining_for_tagging() -> Iterator[Row]:
    for name, file in (("random", "task-gum-tags"), ("`brown-fill`", "tags-from-brown-fill")):
        summary = case(file, "summary")
        yield name, f"{summary['accuracy']['test']:.1f} ± {summary['spread']['test']:.2f}%"


@figure
def gum_tags_minutes_alone() -> str:
    return f"{case('alone-gum-tags', 'ours')['seconds'] / 60:.1f}"


@table("run | tokens per second | training loss, steps 1–5 | training loss, steps 96–100")
def gpt2_run() -> Iterator[Row]:
    (run,) = cases("gpt2")
    yield run["case"], whole(run["tokens_per_second"]), f"{run['losses']['5']:.2f}", f"{run['losses']['100']:.2f}"


@table("seconds to a validation loss of 1.4697 | by seed | seconds in all | final loss")
def shakespeare_time() -> Iterator[Row]:
    *runs, summary = cases("shakespeare-time")
    seeds = ", ".join(f"{run['seconds']:.0f}" for run in runs)
    longest = max(run["curve"][-1][1] for run in runs)
    yield f"{summary['seconds']:.0f}", seeds, f"{longest:.0f}", f"{summary['final_loss']:.3f}"


# --- settings that were compared


@table("settings | validation BLEU | validation loss")
def settings_multi30k() -> Iterator[Row]:
    for one in cases("tries-multi30k-en-de"):
        yield _settings(one["case"]), f"{one['scores']['valid']['bleu']:.2f}", f"{one['valid_loss']:.3f}"


@table("settings | validation BLEU | validation chrF | validation loss")
def settings_tatoeba() -> Iterator[Row]:
    for one in cases("tries-tatoeba-en-tr"):
        score = one["scores"]["valid"]
        yield _settings(one["case"]), f"{score['bleu']:.2f}", f"{score['chrf']:.2f}", f"{one['valid_loss']:.3f}"


@table("dropout | attention dropout | learning rate | weight decay | steps | other settings | validation loss")
def settings_shakespeare() -> Iterator[Row]:
    keys = (
        "model.decoder.dropout",
        "model.decoder.attention.dropout",
        "train.schedule.lr",
        "train.optimizer.weight_decay",
    )
    usual = dict(zip(keys, ("0.2", "0.2", "0.001", "0.1"), strict=True))
    rows = []
    for one in cases("tries-shakespeare"):
        if one["case"] == "consistency 1":
            continue  # that version did not read the setting
        changes = usual | dict(change.split("=") for change in one["changes"])
        ema = changes.get("train.ema_decay", "0.99") != "0.99"
        other = [
            *(["feed-forward dropout 0.3, embedding dropout 0.1"] if "model.embedding.dropout" in changes else []),
            *(["Muon"] if changes.get("train.optimizer.kind") == "muon" else []),
            *([f"EMA decay {changes['train.ema_decay']}"] if ema else []),
        ]
        rows.append((one["valid_loss"], [*(changes[key] for key in keys), whole(int(changes["train.steps"]))], other))
    for loss, values, other in sorted(rows, key=lambda row: -row[0]):
        yield *values, ", ".join(other) or "–", f"{loss:.3f}"


@table("settings | validation accuracy | validation loss | seeds")
def settings_digits() -> Iterator[Row]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in cases("tries-digits"):
        groups.setdefault(one["case"].rpartition(", seed ")[0], []).append(one)
    rows = []
    for name, runs in groups.items():
        accuracy = statistics.mean(run["scores"]["valid"]["accuracy"] for run in runs)
        loss = statistics.mean(run["valid_loss"] for run in runs)
        rows.append((accuracy, (_settings(name), f"{accuracy:.1f}", f"{loss:.3f}", len(runs))))
    for _, row in sorted(rows, key=lambda each: each[0]):
        yield row


@table("settings | validation accuracy | validation loss")
def settings_fashion_mnist() -> Iterator[Row]:
    for one in cases("tries-fashion-mnist"):
        yield _settings(one["case"]), f"{one['scores']['valid']['accuracy']:.1f}", f"{one['valid_loss']:.3f}"


@table("settings | validation F1 | tagging accuracy | validation loss")
def settings_gum() -> Iterator[Row]:
    for one in cases("tries-gum-parse"):
        score = one["scores"]["valid"]
        yield _settings(one["case"]), f"{score['f1']:.1f}", f"{score['tagging']:.1f}", f"{one['valid_loss']:.3f}"


def _settings(name: str) -> str:
    """The name of a case, in the current terms of the recipes."""
    for old, new in (
        ("regularized dropout", "R-Drop"),
        ("consistency", "R-Drop, α ="),
        ("not moved", "no random crop"),
        ("moved", "random crop"),
        ("hidden width", "hidden size"),
        (", decay", ", weight decay"),
        ("rate 0", "learning rate 0"),
        ("as it is", "the first recipe"),
        ("all mixed, none erased", "mixup or CutMix on every image, no erasing"),
        ("nothing mixed, half erased", "no mixup or CutMix, erasing on half of the images"),
    ):
        name = name.replace(old, new)
    return name


# --- training speed


@table("workload | peer | regard | peer's | ratio | memory | peer's memory | of peak FLOP/s | peer's")
def training_speed_gpu() -> Iterator[Row]:
    rows = {
        "base": ("base model, 768 pairs of 32 tokens", "`torch.nn.Transformer`, compiled with its loss"),
        "real Europarl": ("base model, batches of Europarl", "Hugging Face Marian, its collator and `Trainer`"),
        "real Multi30k": ("base model, batches of Multi30k", "Hugging Face Marian, its collator and `Trainer`"),
        "GPT-2": ("GPT-2 124M, 32 texts of 1,024 tokens", "the same model in plain PyTorch, compiled, as in nanoGPT"),
    }
    for start, (work, peer) in rows.items():
        one = case("train-gpu", start)
        speed = (whole(one["ours"]), whole(one["peer"]), f"{one['ratio']:.2f}")
        memory = (f"{one['gigabytes']:.1f} GiB", f"{one['peer_gigabytes']:.1f} GiB")
        yield (work, peer, *speed, *memory, *_shares_of_peak(start, one))


def _shares_of_peak(start: str, one: dict[str, Any]) -> Row:
    if "share_of_peak" in one:
        return percent(one["share_of_peak"]), percent(one["peer_share_of_peak"])
    if start != "GPT-2":
        return "–", "–"
    from regard.attention import MultiHeadConfig
    from regard.cost import TrainingSetup, Workload, estimate
    from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig

    stack = StackConfig(layers=12, attention=MultiHeadConfig(heads=12), feed_forward=FeedForwardConfig(hidden=3072))
    model = LanguageModelConfig(vocab_size=50_304, width=768, decoder=stack)
    _, flops = estimate(model, Workload(1, 1024), TrainingSetup("bfloat16")).training_flops_per_token
    peak = case("train-gpu", "large products")["operations_a_second"]
    return percent(one["ours"] * flops / peak), percent(one["peer"] * flops / peak)


@table("startup | regard | compiled peer")
def startup_seconds() -> Iterator[Row]:
    base, start = case("train-gpu", "base"), case("train-gpu", "start-up")
    third = (f"{base[f'{whose}seconds_to_the_third_step']:.0f} s" for whose in ("", "peer_"))
    yield "from building the base model to its third step, nothing compiled yet", *third
    yield "from starting Python to the first step, nothing compiled yet", f"{start['seconds_cold']:.0f} s", "–"
    yield "from starting Python to the first step, kernels in the cache", f"{start['seconds_warm']:.0f} s", "–"


@table("batches of | time lost to the input pipeline | host time spent on batches | padding")
def input_pipeline() -> Iterator[Row]:
    for start in ("real Europarl", "real Multi30k"):
        one = case("train-gpu", start)
        shares = (percent(one[key], 1) for key in ("share_lost_to_data", "share_waiting_for_data", "padding"))
        yield start.removeprefix("real "), *shares


@figure
def gpt2_matmul_milliseconds() -> str:
    kernels = case("train-gpu", "GPT-2")["milliseconds_by_kernel"]
    return whole(sum(each for name, each in kernels.items() if any(n in name for n in ("nvjet", "gemm", "splitK"))))


@figure
def gpt2_attention_milliseconds() -> str:
    kernels = case("train-gpu", "GPT-2")["milliseconds_by_kernel"]
    return whole(sum(each for name, each in kernels.items() if "cudnn" in name))


@figure
def gpt2_step_milliseconds() -> str:
    return whole(32_768e3 / case("train-gpu", "GPT-2")["ours"])


@figure
def nanogpt_ratio() -> str:
    return f"{case('train-gpu', 'GPT-2')['ratio_to_nanogpt_elsewhere']:.2f}"


@figure
def base_tokens_per_second() -> str:
    return whole(case("train-gpu", "base")["ours"])


@figure
def base_share_of_peak() -> str:
    return percent(case("train-gpu", "base")["share_of_peak"])


@table("peer | regard | peer's | ratio | of peak FLOP/s | peer's | memory | peer's")
def training_speed_cpu() -> Iterator[Row]:
    for one in cases("train-cpu"):
        peer = one["case"].rpartition(", ")[2]
        shares = (percent(one[f"{whose}share_of_peak"]) for whose in ("", "peer_"))
        memory = (f"{one[f'{whose}megabytes']:.0f} MB" for whose in ("", "peer_"))
        name = f"`{peer}`" if peer.startswith("torch") else peer
        yield name, whole(one["ours"]), whole(one["peer"]), f"{one['ratio']:.2f}", *shares, *memory


@table("comparison | plain, float32 | fused, bfloat16 | difference | standard error")
def loss_curves() -> Iterator[Row]:
    one = case("curves-cuda", "multi30k-en-de, 300 steps")
    losses = one["loss_of_the_last_50_steps"]
    row = (f"{losses['plain']:.4f}", f"{losses['fast']:.4f}", f"{abs(one['difference']):.4f}")
    yield "mean training loss of the last 50 of 300 steps, 3 seeds", *row, f"{one['standard_error']:.3f}"
    gradients = case("train-gpu", "gradients of GPT-2")
    off = (percent(gradients["peer"], 2), percent(gradients["ours"], 2))
    yield "GPT-2: relative error of bfloat16 gradients to float32 (plain, fused)", *off, "–", "–"


# --- decoding speed


@table("workload and peer | regard | peer's | ratio")
def decoding_speed_cpu() -> Iterator[Row]:
    for one in cases("decode-cpu"):
        if "ratio" in one and "mixed" not in one["case"]:
            yield one["case"], whole(one["ours"]), whole(one["peer"]), f"{one['ratio']:.2f}"


@table("workload | bandwidth limit | compute limit | reached | encoding | decoder steps | search")
def decoding_limits_cpu() -> Iterator[Row]:
    for one in cases("decode-cpu"):
        if one["case"].endswith(", floor"):
            shares = (percent(one[key]) for key in ("share", "reading", "stepping", "choosing"))
            yield one["case"].removesuffix(", floor"), whole(one["by_bytes"]), whole(one["by_operations"]), *shares


@table("requests | tokens per second | relative to the same work sorted offline | results equal")
def mixed_load() -> Iterator[Row]:
    (one,) = [one for one in cases("decode-cpu") if "mixed" in one["case"]]
    yield "2,000", whole(one["ours"]), f"{one['ratio']:.2f}", percent(one["share_equal"])


def _decoding_on_gpu() -> list[tuple[str, dict[str, Any]]]:
    found = [one for one in cases("decode-gpu") if "ratio" in one]
    return [(one["case"].removesuffix(", bf16, Hugging Face generate"), one) for one in found]


@table("workload | regard | Hugging Face `generate` | ratio")
def decoding_speed_gpu() -> Iterator[Row]:
    for name, one in _decoding_on_gpu():
        yield name, whole(one["ours"]), whole(one["peer"]), f"{one['ratio']:.1f}"


@table(
    "workload | step | kernels | bandwidth limit | compute limit | launch limit | matmuls | attention | adds and norms "
    "| top-k | other"
)
def decoding_step_gpu() -> Iterator[Row]:
    kinds = ("products", "attention", "sums and norms", "the greatest scores", "the rest")
    for name, one in _decoding_on_gpu():
        limits = (whole(1e3 * one["floor_milliseconds"][by]) for by in ("bytes", "operations", "launches"))
        spent = (whole(one["microseconds_by_kind"][kind]) for kind in kinds)
        yield name, whole(1e3 * one["milliseconds_a_step"]), one["kernels_a_step"], *limits, *spent


@table("workload | float32, fused and plain | bfloat16 and float32")
def decoding_differences_gpu() -> Iterator[Row]:
    for one in cases("decode-gpu"):
        if "passed" in one:
            differences = (one[key]["tokens"] for key in ("float32_from_plain", "bf16_from_float32"))
            yield one["case"].removesuffix(": what differs"), *(percent(share, 1) for share in differences)


@table("attention | cache bytes per token | 4,096 | 16,384 | 32,768 | tokens per second, device time | wall clock")
def long_contexts() -> Iterator[Row]:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for one in cases("long-context-gpu"):
        kinds.setdefault(one["case"].rpartition(", ")[0], []).append(one)
    for kind, rows in kinds.items():
        steps = (f"{one['device_seconds_a_step'] * 1e3:.1f}" for one in rows)
        last = rows[-1]
        rates = (whole(last["rows"] / last["device_seconds_a_step"]), whole(last["tokens_per_second"]))
        yield _attention(kind), whole(last["bytes_per_token"]), *steps, *rates


def _attention(kind: str) -> str:
    return {"plain": "multi-head", "latent": "multi-head latent (MLA)"}.get(
        kind, "grouped-query, 4 query heads per key head"
    )


@table("tokens generated | cache bytes")
def rolling_cache() -> Iterator[Row]:
    (one,) = cases("long-context-ring-gpu")
    for after, sizes in one["after"].items():
        if after in ("10000", "100000"):
            yield f"{int(after):,}", f"{sizes['cache_bytes']:,}"


# --- data


@table("stage | 200 MB | 2 GB")
def data_memory() -> Iterator[Row]:
    labels = {
        "reading pairs with a filter": "reading and filtering pairs",
        "learning a tokenizer from 200,000 pairs": "training a tokenizer on the first 200,000 pairs",
        "tokenizing into a store": "tokenizing into a token store on disk",
        "2,000 batches from the store": "planning and drawing batches",
        "reading pairs without duplicates": "dropping duplicates, where enabled",
    }
    for name, label in labels.items():
        one = case("data-cpu", f"memory, {name}")
        yield label, *(f"{one[size]['peak_anonymous_mb']:.0f}" for size in ("tenth", "whole"))


@table(
    "stage | target tokens per second | relative to training on the same CPU | relative to the base model on an H200"
)
def data_speed() -> Iterator[Row]:
    for start, label in (
        ("speed, tokenizing, threads: 2", "tokenizing, 2 threads"),
        ("speed, batching, threads: 1", "batching"),
    ):
        one = case("data-cpu", start)
        factors = (f"{one['over_training']:,.0f} ×", f"{one['over_h200']:.1f} ×")
        yield label, whole(one["target_tokens_per_second"]), *factors


@table("batch_tokens | 16 buckets | 24 buckets | 32 buckets")
def padding() -> Iterator[Row]:
    for tokens in (4096, 8192):
        shares = (one["padding"] for one in cases("data-cpu") if one["case"].startswith(f"padding, {tokens} tokens"))
        yield f"{tokens:,}", *(percent(share, 1) for share in shares)


# --- attention, decoding, masked tokens, the lecture's examples


@table("workload | regard | full causal SDPA | ratio")
def attention_speed() -> Iterator[Row]:
    for one in cases("attention-cpu"):
        if one["case"].startswith("attend over SDPA"):
            name = one["case"].removeprefix("attend over SDPA, ")
            yield f"`attend` and the SDPA call it ends in, CPU: {name}", "–", "–", f"{one['ratio']:.2f}"
    for file, where in (("attention-cpu", "2-core CPU"), ("attention-gpu", "H200")):
        for one in cases(file):
            if one["case"].startswith("causal window") and "over full causal SDPA" in one["case"] and "ratio" in one:
                name = one["case"].replace(" over full causal SDPA", "")
                yield f"{name}, {where}", f"{one['ours']:.1f} ms", f"{one['peer']:.1f} ms", f"{one['ratio']:.1f}"


@table("length | peak memory per token, causal window of 512")
def window_memory() -> Iterator[Row]:
    for one in cases("attention-gpu"):
        if one["case"].startswith("causal window 512, 8") and "peak_bytes" in one:
            yield f"{one['length']:,}", f"{one['peak_bytes_a_token'] / 1e3:.1f} kB"


@table("length | FlexAttention relative to a dense mask")
def flex_threshold() -> Iterator[Row]:
    for one in cases("attention-gpu"):
        if one["case"].startswith("flex over dense mask, causal window 128"):
            yield f"{one['length']:,}", f"{one['ratio']:.1f} × as fast"


@table("| full vocabulary | shortlist")
def shortlist() -> Iterator[Row]:
    alone, batch = (case("shortlist-en-tr", start) for start in ("a sent", "a batch"))
    greedy, beam = (case("shortlist-en-tr", start) for start in ("1 beams", "5 beams"))
    yield "tokens scored, one sentence, mean", "8,000", whole(alone["words"])
    yield "tokens scored, batches, mean", "8,000", whole(batch["words"])
    for name, one in (("beam 5", beam), ("greedy", greedy)):
        yield f"BLEU, {name}", f"{one['whole']['bleu']:.2f}", f"{one['shortlist']['bleu']:.2f}"
        yield f"identical translations, {name}", "–", percent(one["same_outputs"], 1)
    yield "reference tokens on the list", "–", percent(alone["references"], 1)


@figure
def shortlist_seconds() -> str:
    return whole(case("shortlist-en-tr", "learning")["seconds"])


@figure
def shortlist_pairs() -> str:
    return whole(case("shortlist-en-tr", "learning")["pairs"])


@table("model | test set | BLEU, float32 | BLEU, int8 | outputs that differ")
def int8_quality() -> Iterator[Row]:
    rows = (
        ("quantized-en-tr", "en-tr", "`en-tr`", "1,000 sentences of Tatoeba"),
        ("quantized-multi30k-en-de", "multi30k-en-de on test_2016", "`multi30k-en-de`, seed 3", "test 2016"),
        ("quantized-multi30k-en-de", "multi30k-en-de on test_2017", "`multi30k-en-de`, seed 3", "test 2017"),
    )
    for file, start, model, test_set in rows:
        one = case(file, start)
        scores = (f"{one['bleu'][dtype]:.2f}" for dtype in ("float32", "int8"))
        yield model, test_set, *scores, percent(one["share_changed"], 1)


@table("test set of `tatoeba-en-tr` | BLEU, `tatoeba-en-tr` | BLEU, `tatoeba-en-tr-case` (`en-tr`)")
def letter_case() -> Iterator[Row]:
    before, after = cases("letter-case-tatoeba-en-tr")
    for kind, name in (
        ("as is", "as it is"),
        ("lowercase", "in lower case"),
        ("drop_final_punctuation", "without final punctuation"),
        ("uppercase", "in capitals"),
        ("uppercase, drop_final_punctuation", "in capitals, without final punctuation"),
    ):
        yield name, f"{before['bleu'][kind]:.1f}", f"{after['bleu'][kind]:.1f}"


@table("lines | peak memory | lines per second")
def translation_memory() -> Iterator[Row]:
    for one in cases("lines-cpu"):
        yield f"{one['lines']:,}", f"{one['peak_bytes'] / 1e6:.0f} MB", whole(one["lines_a_second"])


@table("work and busy process | fraction of the idle speed | with spinning threads | idle speed relative to spinning")
def busy_neighbor() -> Iterator[Row]:
    for one in cases("busy-neighbor"):
        yield one["case"], f"{one['ratio']:.2f}", f"{one['spinning']:.2f}", f"{one['idle_ratio']:.2f}"


def _three_seeds(start: str) -> list[dict[str, Any]]:
    return [case(f"filling-brown-{seed}", start) for seed in (1, 2, 3)]


@table("masked words | masked language model | left-to-right language model | most frequent word")
def masked_words() -> Iterator[Row]:
    for start, label in (("hidden words, all", "of all kinds"), ("hidden words, made", "made of letters")):
        found = _three_seeds(start)
        models = (mean_std([one[model]["accuracy"] for one in found], 1) for model in ("filler", "left_to_right"))
        frequent = found[0]["most_frequent"]["accuracy"]
        yield f"{found[0]['hidden']:,} {label}", *(f"{score}%" for score in models), f"{frequent}%"


@table("vectors of *bank* | river and river | money and money | river and money")
def senses_of_bank() -> Iterator[Row]:
    layers = {
        "layer 0": "embedding table",
        "layer 1": "layer 1",
        "layer 3": "layer 3",
        "last layer": "layer 6, the last",
    }
    for layer, label in layers.items():
        found = _three_seeds(f"banks, {layer}")
        yield label, *(f"{statistics.mean(one[key] for one in found):.2f}" for key in ("first", "second", "across"))


@table("sentence | translation | log-probability of *il* | of *elle*")
def animal_outputs() -> Iterator[Row]:
    for one in cases("animal"):
        scores = one["log_probabilities"]
        ending = one["case"].split("it was ")[1]
        yield f"… because it was {ending}", one["output"], f"{scores['il']:.2f}", f"{scores['elle']:.2f}"


@table("layer | head | tired: *animal* | tired: *street* | wide: *animal* | wide: *street*")
def animal_heads() -> Iterator[Row]:
    tired, wide = cases("animal")
    for one, other in zip(tired["heads"], wide["heads"], strict=True):
        weights = [dict(each["row"])[word] for each in (one, other) for word in ("animal", "street")]
        if max(weights) >= 0.1:
            yield one["layer"] + 1, one["head"] + 1, *(f"{weight:.2f}" for weight in weights)


@table("model | pre-norm, 3 seeds | post-norm, 3 seeds")
def norm_position() -> Iterator[Row]:
    for one in cases("seeds-cpu"):
        if one["case"].startswith("copy at"):
            losses = (", ".join(f"{loss:.2f}" for loss in one[order]) for order in ("pre", "post"))
            yield one["case"].removeprefix("copy at "), *losses


@table("layers | with residual connections | without (median)")
def gradient_by_depth() -> Iterator[Row]:
    for one in cases("seeds-cpu"):
        if one["case"].startswith("gradient of the first layer"):
            kept = one["with_residuals"]
            yield one["layers"], f"{min(kept):.1f} to {max(kept):.1f}", f"{one['without_residuals_median']:.3g}"


@figure
def cosine_without_residuals() -> str:
    return f"{case('seeds-cpu', 'mean cosine between words')['without_residuals']:.2f}"


@figure
def cosine_with_residuals() -> str:
    return f"{case('seeds-cpu', 'mean cosine between words')['with_residuals']:.2f}"


@figure
def score_std_range() -> str:
    widths = case("seeds-cpu", "standard deviation of scaled scores")["widths"].values()
    return f"{min(widths):.3f} and {max(widths):.3f}"
