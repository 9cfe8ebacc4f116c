"""`regard cost`."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from regard.cost import HARDWARE
from regard.model import (
    CAUSAL_MODELS,
    SEQ2SEQ_MODELS,
    LanguageModelConfig,
    count_parameters,
    read_any_config,
    transformer_base,
)
from regard.model.before.ngram.model import estimate_ngrams
from regard.run import load_model, save_model
from regard.task.recipe_io import read_recipe
from regard.task.run import expected_cost
from tests.task.small import command


def json_report(*args: Any) -> dict[str, Any]:
    done = command("cost", *args, "--json")
    assert (done.code, done.out.count("\n")) == (0, 1), done.err
    return json.loads(done.out)


def test_table_contains_every_number() -> None:
    done = command("cost", "transformer-base", "--hardware", "h200", "--price", 3)
    assert (done.code, done.err) == (0, "")
    estimate, formulas, by_length = done.out.split("\n\n")
    names = [line.split("  ")[0].strip() or line.strip().split("  ")[0] for line in estimate.splitlines()[1:]]
    assert names == [
        "parameters",
        "embeddings",
        "everything else",
        "micro-batch",
        "forward, per token",
        "forward and backward, per token",
        "attention at this length",
        "generated token, with KV cache",
        "KV cache, per token",
        "weights",
        "gradients",
        "optimizer state",
        "activations",
        "temporaries",
        "gradient copy for graph capture",
        "cuBLAS workspaces",
        "peak memory per process",
        "training",
        "time",
        "device hours",
        "price",
    ]
    assert "63,045,632" in done.out
    assert "at 3 an hour" in done.out
    assert [line.strip().split("  ")[0] for line in formulas.splitlines()] == [
        "sizes",
        "forward, source",
        "forward, target",
        "order of a layer",
        "parameters",
        "decoding state, float32",
    ]
    assert "72·d² + 24·d·f + d·|T| + 72·d + 12·f = 63,045,632" in formulas
    assert [line.split()[0] for line in by_length.splitlines()] == ["tokens", "10", "100", "1,000", "10,000"]


@pytest.mark.parametrize(("hardware", "precision"), [("h200", "bfloat16"), ("cpu-2-cores", "float32")])
def test_automatic_precision_is_that_of_the_hardware(hardware: str, precision: str) -> None:
    report = json_report("transformer-base", "--hardware", hardware)
    given = json_report("transformer-base", "--hardware", hardware, "--set", f"train.precision={precision}")
    assert (report["precision"], report["minutes"]) == (precision, given["minutes"])


def test_json_equals_the_library() -> None:
    report = json_report("transformer-base", "--hardware", "h200", "--price", 2)
    cost, machine = expected_cost(read_recipe("transformer-base")), HARDWARE["h200"]
    assert (
        report["parameters"] == cost.parameters == report["embedding_parameters"] + report["non_embedding_parameters"]
    )
    assert report["training_flops"] == cost.training_flops
    assert report["flops"]["training_target_token"] == 3 * cost.flops_per_token[1]
    parts = ("weights", "gradients", "optimizer", "activations", "temporaries", "graph_capture", "workspaces")
    assert (
        report["bytes"]["peak"]
        == sum(report["bytes"][part] for part in parts)
        == cost.peak_bytes(machine, cuda_graphs=True)
    )
    assert report["minutes"] == list(cost.minutes(machine, cuda_graphs=True))
    assert report["device_hours"] == pytest.approx([minutes / 60 for minutes in report["minutes"]])
    assert report["price"] == pytest.approx([2 * hours for hours in report["device_hours"]])


def test_sliding_window_bounds_the_cache() -> None:
    settings = ("transformer-base", "--hardware", "h200", "--set", "model.decoder.attention.pattern=sliding(64)")
    assert json_report(*settings)["kv_cache_tokens"] == 64
    assert "kB (target, at most 64)" in command("cost", *settings).out
    assert json_report("transformer-base", "--hardware", "h200")["kv_cache_tokens"] is None


def test_mixture_of_experts_and_latent_attention(tmp_path: Path) -> None:
    """The KV cache has 2 · (8 + 4) latent values of 4 bytes per token."""
    stack = {
        "layers": 2,
        "attention": {"kind": "latent", "heads": 4, "kv_latent": 8, "rope_head_dim": 4},
        "feed_forward": {"kind": "moe", "hidden": 32, "experts": 16, "top_k": 2},
    }
    values = {"kind": "language-model", "vocab_size": 50, "width": 16, "position": {"kind": "rotary"}, "decoder": stack}
    path = tmp_path / "model.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    report = json_report(path, "--hardware", "h200", "--length", 16)
    config = LanguageModelConfig.read(values)
    assert report["parameters"] == count_parameters(config.build())
    numbers = 2 * (8 + 4)
    assert report["bytes"]["kv_cache_target_token"] == numbers * (4 if report["precision"] == "float32" else 2)
    # Each token is routed to 2 of 16 experts, so it takes far fewer than 2 FLOPs per parameter.
    assert report["flops"]["generated_token"] < report["parameters"]


def test_price_is_optional() -> None:
    assert "price" not in json_report("quick", "--hardware", "h200")
    assert json_report("quick", "--hardware", "h200", "--price", 0)["price"] == [0, 0]


def test_processes_share_the_work() -> None:
    one, four = (json_report("transformer-base", "--hardware", "h200", "--processes", count) for count in (1, 4))
    assert four["minutes"][0] < one["minutes"][0]
    assert four["device_hours"][0] == pytest.approx(4 * four["minutes"][0] / 60)
    assert four["device_hours"][0] > one["device_hours"][0]
    assert four["training_flops"] == one["training_flops"]
    theirs, own = (report["bytes"]["activations"] + report["bytes"]["temporaries"] for report in (four, one))
    assert theirs < own / 3


def test_fsdp_needs_less_memory() -> None:
    args = ("transformer-big", "--hardware", "h200", "--processes", 4)
    ddp, fsdp = (json_report(*args, "--set", f"train.parallel.kind={kind}") for kind in ("ddp", "fsdp"))
    assert fsdp["bytes"]["optimizer"] == ddp["bytes"]["optimizer"] // 4


def test_activation_checkpointing_trades_memory_for_flops() -> None:
    args = ("transformer-base", "--hardware", "h200")
    once, twice = (
        json_report(*args, "--set", f"train.activation_checkpointing={value}") for value in ("false", "true")
    )
    assert (once["activation_checkpointing"], twice["activation_checkpointing"]) == (False, True)
    assert twice["bytes"]["activations"] < once["bytes"]["activations"] / 2
    assert twice["bytes"]["peak"] < once["bytes"]["peak"]
    for name in ("training_step", "training_source_token", "training_target_token"):
        assert once["flops"][name] < twice["flops"][name] < 4 / 3 * once["flops"][name]
    assert twice["flops"]["forward_target_token"] == once["flops"]["forward_target_token"]
    assert once["training_flops"] < twice["training_flops"] == twice["steps"] * twice["flops"]["training_step"]
    assert once["minutes"][0] < twice["minutes"][0]
    assert "with activation checkpointing" in command("cost", *args, "--set", "train.activation_checkpointing=true").out


def test_activation_checkpointing_excludes_cuda_graphs() -> None:
    args = (
        "quick",
        "--hardware",
        "h200",
        "--set",
        "model.decoder.residual=false",
        "--set",
        "model.decoder.dropout=0.1",
    )
    once, twice = (
        json_report(*args, "--set", f"train.activation_checkpointing={value}") for value in ("false", "true")
    )
    assert once["bytes"]["workspaces"] == 3 * twice["bytes"]["workspaces"]
    assert once["bytes"]["graph_capture"] > twice["bytes"]["graph_capture"] == 0


def test_activation_checkpointing_is_advised_if_it_is_enough() -> None:
    args = ("transformer-big", "--hardware", "t4", "--length", 32)
    advice = json_report(*args)["advice"]
    assert "or train.activation_checkpointing to true, which needs about " in advice
    assert json_report(*args, "--set", "train.activation_checkpointing=true")["advice"] is None


def test_pretrained_model() -> None:
    assert json_report("en-tr", "--hardware", "h200")["parameters"] == count_parameters(load_model("en-tr").model)


def test_folder_without_a_recipe_has_no_training_time(tmp_path: Path) -> None:
    config = LanguageModelConfig.read(
        {"vocab_size": 50, "width": 32, "decoder": {"layers": 1, "attention": {"heads": 2}}}
    )
    save_model(config.build(), tmp_path / "model")
    report = json_report(tmp_path / "model", "--hardware", "t4")
    assert report["parameters"] == count_parameters(config.build())
    assert (report["source_length"], report["target_length"]) == (0, 1024)
    assert "minutes" not in report
    assert "time" not in command("cost", tmp_path / "model", "--hardware", "t4").out
    assert json_report(tmp_path / "model", "--hardware", "t4", "--tokens", 1e6)["steps"] == 244


@pytest.mark.parametrize("ending", ["json", "toml"])
def test_model_config_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"base.{ending}"
    text = 'kind = "encoder-decoder"\nvocab_size = 37000\n'
    path.write_text(text if ending == "toml" else json.dumps(transformer_base(37_000).plain()), encoding="utf-8")
    report = json_report(path, "--hardware", "h200", "--length", 10, "--batch", 1000)
    assert report["embedding_parameters"] == 37_000 * 512
    assert (report["batch_size"], report["source_length"], report["target_length"]) == (100, 10, 10)


def test_overrides_apply_to_recipes_and_configs(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text('kind = "language-model"\nvocab_size = 10\n', encoding="utf-8")
    one, two = (json_report(path, "--hardware", "h200", *args) for args in ((), ("--set", "width=256")))
    assert two["parameters"] < one["parameters"]
    assert json_report("quick", "--hardware", "h200", "--set", "train.steps=700")["steps"] == 700


def test_length_and_batch_options() -> None:
    report = json_report("quick", "--hardware", "h200", "--length", 50, "--batch", 500)
    assert (report["batch_size"], report["target_length"]) == (10, 50)


def test_length_is_at_most_the_batch() -> None:
    assert (
        json_report("quick", "--hardware", "h200", "--length", 5000)["target_length"]
        == read_recipe("quick").train.batch_tokens
    )


@pytest.mark.parametrize("name", ["digits", "fashion-mnist", "brown-fill", "gum-tags"])
def test_encoder_recipes_have_no_cache(name: str) -> None:
    report, recipe = json_report(name, "--hardware", "h200"), read_recipe(name)
    cost = expected_cost(recipe)
    assert report["parameters"] == cost.parameters == count_parameters(recipe.expected_model_config.build())
    assert report["training_flops"] == cost.training_flops == recipe.train.steps * report["flops"]["training_step"]
    assert report["source_length"] == report["flops"]["forward_source_token"] == 0
    assert report["batch_size"] * report["target_length"] <= recipe.train.batch_tokens
    assert (report["kv_cache_tokens"], report["flops"]["generated_token"]) == (None, None)
    assert (report["bytes"]["kv_cache_target_token"], report["bytes"]["kv_cache_source_token"]) == (None, None)
    done = command("cost", name, "--hardware", "h200")
    assert (done.code, done.err) == (0, "")
    assert "cache" not in done.out
    assert "(target)" not in done.out


def test_masked_tokens_scale_with_the_length() -> None:
    recipe = read_recipe("brown-fill")
    long, short = (json_report("brown-fill", "--hardware", "h200", "--length", length) for length in (256, 64))
    assert long["predicted_tokens"] == recipe.expected_workload().predicted_tokens
    assert short["predicted_tokens"] == long["predicted_tokens"] / 4
    assert (long["batch_size"], short["batch_size"]) == (64, 256)


def test_encoder_configs(tmp_path: Path) -> None:
    for name, text, tokens in (
        ("encoder", 'kind = "encoder"\nvocab_size = 50\nwidth = 32\nhead = { kind = "masked_lm" }\n', 25),
        ("vision", 'kind = "vision"\nimage_size = 28\npatch_size = 7\nwidth = 32\n', 17),
    ):
        path = tmp_path / f"{name}.toml"
        path.write_text(text + "encoder = { layers = 1, attention = { heads = 2 } }\n", encoding="utf-8")
        report = json_report(path, "--hardware", "h200", "--batch", 170)
        config = read_any_config(tomllib.loads(path.read_text(encoding="utf-8")))
        assert report["parameters"] == count_parameters(config.build())
        assert (report["batch_size"], report["target_length"]) == (170 // tokens, tokens)
        assert "minutes" not in report


def test_default_hardware_is_this_machine() -> None:
    report = json_report("quick", "--device", "cpu")
    assert report["hardware"] == "this cpu"
    assert report["bytes"]["workspaces"] == report["bytes"]["graph_capture"] == 0


def test_advice_goes_to_standard_error() -> None:
    done = command("cost", "transformer-big", "--hardware", "t4", "--batch", 100_000)
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert "set train.batch_tokens to" in done.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("quick", "--hardware", "abacus"), "--hardware abacus: expected one of h200"),
        (("quick", "--hardware", "h200", "--price=-3"), "at least 0; found -3"),
        (("quick", "--hardware", "h200", "--price", "nan"), "at least 0; found nan"),
        (("quick", "--processes", "0"), "--processes 0: expected a number of at least 1"),
        (("quick", "--length", "0"), "--length 0"),
        (("quick", "--batch=-5"), "--batch -5"),
        (("quick", "--tokens", "nan"), "--tokens nan"),
        (("digits", "--length", "9"), "--length is for texts; an image of 8 × 8 has 4 tokens"),
        (("digits", "--batch", "3"), "--batch 3: a single image has 4 tokens"),
        (("qick",), "did you mean quick"),
        (("missing.toml",), "missing.toml"),
        (("missing.json",), "missing.json"),
        (("empty",), "is not a run folder"),
        (("broken.json",), "cannot be read"),
        (("list.json",), "there is no model of kind None"),
        (("strange.toml",), "there is no model of kind 'abacus'"),
    ],
)
def test_wrong_options_are_refused(
    args: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    (tmp_path / "strange.toml").write_text('kind = "abacus"', encoding="utf-8")
    done = command("cost", *args)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert message in done.err


# Formulas


@pytest.mark.parametrize("kind", [kind for kind in SEQ2SEQ_MODELS if kind != "dnn1"])
def test_formulas_of_every_kind_of_translation_model(kind: str) -> None:
    """Their values for a row are those of the estimate. (DNN1 takes a smaller vocabulary than the recipe's.)"""
    report = json_report("quick", "--hardware", "h200", "--set", f'model={{ kind = "{kind}" }}')
    formulas, flops = report["formulas"], report["flops"]
    assert formulas["parameters"]["count"] == report["parameters"]
    for side in ("source", "target"):
        counted = report[f"{side}_length"] * flops[f"forward_{side}_token"]
        assert formulas[f"forward_{side}"]["flops"] == pytest.approx(counted, rel=1e-12)
    assert report["ngram_table"] is None
    assert report["by_length"][0]["length"] == 10


@pytest.mark.parametrize("kind", [kind for kind in CAUSAL_MODELS if kind != "ngram"])
def test_formulas_of_every_kind_of_language_model(kind: str) -> None:
    report = json_report("quick-lm", "--hardware", "h200", "--length", 64, "--set", f'model={{ kind = "{kind}" }}')
    formulas, by_length = report["formulas"], report["by_length"]
    assert formulas["parameters"]["count"] == report["parameters"]
    assert formulas["forward_target"]["flops"] == pytest.approx(64 * report["flops"]["forward_target_token"], rel=1e-12)
    grows = by_length[-1]["state_bytes"] > by_length[0]["state_bytes"]
    assert grows == ("n" in formulas["state"]["formula"]) == (kind == "language-model")


def test_ngrams_multiply_nothing() -> None:
    done = command("cost", "quick-ngram")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == "no parameters and no multiplications: a table that is counted, not trained"
    assert "nothing is multiplied" in done.out
    assert "gradients" not in done.out
    report = json_report("quick-ngram", "--set", "model.order=2")
    assert report["ngram_table"]["full"] == "|T|²"
    assert report["ngram_table"]["full_log10"] == pytest.approx(2 * math.log10(report["formulas"]["sizes"]["|T|"]))
    assert report["ngram_table"]["entries"] is None


def test_estimated_ngrams_stand_beside_the_full_table(tmp_path: Path) -> None:
    model = estimate_ngrams([[3, 4, 5, 3, 4], [4, 3]], order=3, vocab_size=6)
    save_model(model, tmp_path / "model")
    table = json_report(tmp_path / "model")["ngram_table"]
    assert (table["full"], table["entries"]) == ("|T|³", 6 + sum(model.config.entries))
    shown = command("cost", tmp_path / "model").out
    assert "|T|³ = 216 probabilities, after 2 tokens" in shown
    assert f"{table['entries']} entries" in shown


def test_lengths_end_where_the_model_s_positions_end() -> None:
    report = json_report("quick", "--hardware", "h200", "--set", 'model={ kind = "context", max_length = 128 }')
    assert [row["length"] for row in report["by_length"]] == [10, 100]
    assert json_report("digits", "--hardware", "h200")["by_length"] == []


def test_model_without_a_formula_is_counted_at_each_length() -> None:
    args = ("quick-lm", "--hardware", "h200", "--set", "model.decoder.attention.pattern=sliding(16)")
    report, shown = json_report(*args), command("cost", *args).out
    assert report["formulas"] is None
    assert "no closed form" in shown
    (short, *_, long) = report["by_length"]
    assert long["flops_per_token"] < 2 * short["flops_per_token"]
    assert long["state_bytes"] < 2 * short["state_bytes"]
