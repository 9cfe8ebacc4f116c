"""`regard cost` as a person meets it."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from regard.cost import HARDWARE
from regard.model import LanguageModelConfig, count_parameters, read_any_config, transformer_base
from regard.run import load, save
from regard.task import read_recipe
from regard.task.training import likely_cost
from tests.task.small import command


def facts(*words: Any) -> dict[str, Any]:
    done = command("cost", *words, "--json")
    assert (done.code, done.out.count("\n")) == (0, 1), done.err
    return json.loads(done.out)


def test_the_table_names_every_number() -> None:
    done = command("cost", "transformer-base", "--hardware", "h200", "--price", 3)
    assert (done.code, done.err) == (0, "")
    names = [line.split("  ")[0].strip() or line.strip().split("  ")[0] for line in done.out.splitlines()[1:]]
    assert names == [
        "parameters",
        "tables of word vectors",
        "everything else",
        "micro-batch",
        "a token, forward",
        "a token, forward and backward",
        "attention's share at this length",
        "a token written with the cache",
        "cache, for each token",
        "weights",
        "gradients",
        "optimiser",
        "activations",
        "loss and gradients on their way",
        "gradients kept aside to record",
        "set aside by the library",
        "peak memory of a process",
        "training",
        "time",
        "device hours",
        "money",
    ]
    assert "63,045,632" in done.out
    assert "at 3 an hour" in done.out


def test_json_holds_the_same_as_the_library() -> None:
    found = facts("transformer-base", "--hardware", "h200", "--price", 2)
    cost, machine = likely_cost(read_recipe("transformer-base")), HARDWARE["h200"]
    assert found["parameters"] == cost.parameters == found["embedding_parameters"] + found["other_parameters"]
    assert found["training_flops"] == cost.total_flops
    assert found["flops"]["training_target_token"] == 3 * cost.flops_per_token[1]
    parts = ("weights", "gradients", "optimiser", "activations", "loss", "recording", "workspaces")
    assert found["bytes"]["peak"] == sum(found["bytes"][part] for part in parts) == cost.peak(machine, captured=True)
    assert found["minutes"] == list(cost.minutes(machine, captured=True))
    assert found["device_hours"] == pytest.approx([minutes / 60 for minutes in found["minutes"]])
    assert found["money"] == pytest.approx([2 * hours for hours in found["device_hours"]])


def test_the_cache_of_a_window_has_a_bound() -> None:
    settings = ("transformer-base", "--hardware", "h200", "--set", "model.decoder.attention.pattern=sliding(64)")
    assert facts(*settings)["cache_tokens"] == 64
    assert "kB (target, at most 64)" in command("cost", *settings).out
    assert facts("transformer-base", "--hardware", "h200")["cache_tokens"] is None


def test_experts_and_latents_are_counted(tmp_path: Path) -> None:
    """Settings that are no recipe's; a cache of latents takes 2 · (8 + 4) numbers of 4 bytes a token."""
    stack = {
        "layers": 2,
        "attention": {"kind": "latent", "heads": 4, "latent": 8, "rotary_width": 4},
        "feed_forward": {"kind": "experts", "hidden": 32, "experts": 16, "active": 2},
    }
    values = {"kind": "language-model", "vocabulary": 50, "width": 16, "position": {"kind": "rotary"}, "decoder": stack}
    path = tmp_path / "model.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    found = facts(path, "--hardware", "h200", "--length", 16)
    config = LanguageModelConfig.read(values)
    assert found["parameters"] == count_parameters(config.build())
    numbers = 2 * (8 + 4)
    assert found["bytes"]["cache_target_token"] == numbers * (4 if found["precision"] == "fp32" else 2)
    # Of 16 experts a token meets 2, so that it takes far fewer than 2 FLOPs for each parameter.
    assert found["flops"]["generated_token"] < found["parameters"]


def test_without_a_price_there_is_no_money() -> None:
    assert "money" not in facts("quick", "--hardware", "h200")
    assert facts("quick", "--hardware", "h200", "--price", 0)["money"] == [0, 0]


def test_processes_share_the_work_and_their_hours_add_up() -> None:
    one, four = (facts("transformer-base", "--hardware", "h200", "--processes", count) for count in (1, 4))
    assert four["minutes"][0] < one["minutes"][0]
    assert four["device_hours"][0] == pytest.approx(4 * four["minutes"][0] / 60)
    assert four["device_hours"][0] > one["device_hours"][0]
    assert four["training_flops"] == one["training_flops"]
    theirs, own = (found["bytes"]["activations"] + found["bytes"]["loss"] for found in (four, one))
    assert theirs < own / 3


def test_weights_shared_out_by_a_recipe_take_less() -> None:
    words = ("transformer-big", "--hardware", "h200", "--processes", 4)
    ddp, fsdp = (facts(*words, "--set", f"train.parallel.kind={kind}") for kind in ("ddp", "fsdp"))
    assert fsdp["bytes"]["optimiser"] == ddp["bytes"]["optimiser"] // 4


def test_a_recipe_that_recomputes_takes_less_memory_and_more_work() -> None:
    words = ("transformer-base", "--hardware", "h200")
    once, twice = (facts(*words, "--set", f"train.recompute={value}") for value in ("false", "true"))
    assert (once["recompute"], twice["recompute"]) == (False, True)
    assert twice["bytes"]["activations"] < once["bytes"]["activations"] / 2
    assert twice["bytes"]["peak"] < once["bytes"]["peak"]
    for name in ("training_step", "training_source_token", "training_target_token"):
        assert once["flops"][name] < twice["flops"][name] < 4 / 3 * once["flops"][name]
    assert twice["flops"]["forward_target_token"] == once["flops"]["forward_target_token"]
    assert once["training_flops"] < twice["training_flops"] == twice["steps"] * twice["flops"]["training_step"]
    assert once["minutes"][0] < twice["minutes"][0]
    assert "layers computed again" in command("cost", *words, "--set", "train.recompute=true").out


def test_what_cannot_be_recomputed_in_a_recording_is_not_recorded() -> None:
    words = ("quick", "--hardware", "h200", "--set", "model.decoder.order=none", "--set", "model.decoder.dropout=0.1")
    once, twice = (facts(*words, "--set", f"train.recompute={value}") for value in ("false", "true"))
    assert once["bytes"]["workspaces"] == 3 * twice["bytes"]["workspaces"]
    assert once["bytes"]["recording"] > twice["bytes"]["recording"] == 0


def test_recomputing_is_advised_where_it_is_enough() -> None:
    words = ("transformer-big", "--hardware", "t4", "--length", 32)
    advice = facts(*words)["advice"]
    assert "or train.recompute to true, which takes about " in advice
    assert facts(*words, "--set", "train.recompute=true")["advice"] is None


def test_a_model_that_ships_is_counted_as_it_is() -> None:
    assert facts("en-tr", "--hardware", "h200")["parameters"] == count_parameters(load("en-tr").model)


def test_a_folder_without_a_recipe_says_all_but_the_length_of_training(tmp_path: Path) -> None:
    config = LanguageModelConfig.read(
        {"vocabulary": 50, "width": 32, "decoder": {"layers": 1, "attention": {"heads": 2}}}
    )
    save(config.build(), tmp_path / "model")
    found = facts(tmp_path / "model", "--hardware", "t4")
    assert found["parameters"] == count_parameters(config.build())
    assert (found["source_length"], found["target_length"]) == (0, 1024)
    assert "minutes" not in found
    assert "time" not in command("cost", tmp_path / "model", "--hardware", "t4").out
    assert facts(tmp_path / "model", "--hardware", "t4", "--tokens", 1e6)["steps"] == 244


@pytest.mark.parametrize("ending", ["json", "toml"])
def test_a_file_of_settings_is_a_model(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"base.{ending}"
    text = 'kind = "encoder-decoder"\nvocabulary = 37000\n'
    path.write_text(text if ending == "toml" else json.dumps(transformer_base(37_000).plain()), encoding="utf-8")
    found = facts(path, "--hardware", "h200", "--length", 10, "--batch", 1000)
    assert found["embedding_parameters"] == 37_000 * 512
    assert (found["rows"], found["source_length"], found["target_length"]) == (100, 10, 10)


def test_changes_reach_recipes_and_settings(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text('kind = "language-model"\nvocabulary = 10\n', encoding="utf-8")
    one, two = (facts(path, "--hardware", "h200", *words) for words in ((), ("--set", "width=256")))
    assert two["parameters"] < one["parameters"]
    assert facts("quick", "--hardware", "h200", "--set", "train.steps=700")["steps"] == 700


def test_length_and_batch_of_a_recipe_can_be_changed() -> None:
    found = facts("quick", "--hardware", "h200", "--length", 50, "--batch", 500)
    assert (found["rows"], found["target_length"]) == (10, 50)


def test_a_length_above_the_batch_is_cut_to_it() -> None:
    assert facts("quick", "--hardware", "h200", "--length", 5000)["target_length"] == read_recipe("quick").train.tokens


@pytest.mark.parametrize("name", ["digits", "fashion-mnist", "brown-fill", "gum-tags"])
def test_a_recipe_for_a_model_that_reads_is_counted_and_has_no_cache(name: str) -> None:
    found, recipe = facts(name, "--hardware", "h200"), read_recipe(name)
    cost = likely_cost(recipe)
    assert found["parameters"] == cost.parameters == count_parameters(recipe.settings.build())
    assert found["training_flops"] == cost.total_flops == recipe.train.steps * found["flops"]["training_step"]
    assert found["source_length"] == found["flops"]["forward_source_token"] == 0
    assert found["rows"] * found["target_length"] <= recipe.train.tokens
    assert (found["cache_tokens"], found["flops"]["generated_token"]) == (None, None)
    assert (found["bytes"]["cache_target_token"], found["bytes"]["cache_source_token"]) == (None, None)
    done = command("cost", name, "--hardware", "h200")
    assert (done.code, done.err) == (0, "")
    assert "cache" not in done.out
    assert "(target)" not in done.out


def test_gaps_are_asked_of_as_many_words_of_shorter_rows() -> None:
    recipe = read_recipe("brown-fill")
    long, short = (facts("brown-fill", "--hardware", "h200", "--length", length) for length in (256, 64))
    assert long["asked"] == recipe.likely_work().asked
    assert short["asked"] == long["asked"] / 4
    assert (long["rows"], short["rows"]) == (64, 256)


def test_settings_of_models_that_read_are_counted(tmp_path: Path) -> None:
    for name, text, tokens in (
        ("encoder", 'kind = "encoder"\nvocabulary = 50\nwidth = 32\nhead = { kind = "fill" }\n', 25),
        ("vision", 'kind = "vision"\nimage = 28\npatch = 7\nwidth = 32\n', 17),
    ):
        path = tmp_path / f"{name}.toml"
        path.write_text(text + "encoder = { layers = 1, attention = { heads = 2 } }\n", encoding="utf-8")
        found = facts(path, "--hardware", "h200", "--batch", 170)
        config = read_any_config(tomllib.loads(path.read_text(encoding="utf-8")))
        assert found["parameters"] == count_parameters(config.build())
        assert (found["rows"], found["target_length"]) == (170 // tokens, tokens)
        assert "minutes" not in found


def test_this_machine_is_taken_where_none_is_named() -> None:
    found = facts("quick", "--device", "cpu")
    assert found["hardware"] == "this cpu"
    assert found["bytes"]["workspaces"] == found["bytes"]["recording"] == 0


def test_what_does_not_fit_is_said_on_standard_error() -> None:
    done = command("cost", "transformer-big", "--hardware", "t4", "--batch", 100_000)
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert "set train.tokens to" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("quick", "--hardware", "abacus"), "known hardware is h200"),
        (("quick", "--hardware", "h200", "--price=-3"), "at least 0; found -3"),
        (("quick", "--hardware", "h200", "--price", "nan"), "at least 0; found nan"),
        (("quick", "--processes", "0"), "--processes 0: expected a number of at least 1"),
        (("quick", "--length", "0"), "--length 0"),
        (("quick", "--batch=-5"), "--batch -5"),
        (("quick", "--tokens", "nan"), "--tokens nan"),
        (("digits", "--length", "9"), "--length is for texts; a picture of 8 × 8 has 4 tokens"),
        (("digits", "--batch", "3"), "--batch 3: one picture alone has 4 tokens"),
        (("qick",), "did you mean quick"),
        (("missing.toml",), "there is no such recipe"),
        (("missing.json",), "there is no such file"),
        (("empty",), "is not a run folder"),
        (("broken.json",), "cannot be read"),
        (("list.json",), "there is no model of kind None"),
        (("strange.toml",), "there is no model of kind 'abacus'"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    (tmp_path / "strange.toml").write_text('kind = "abacus"', encoding="utf-8")
    done = command("cost", *words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert said in done.err
