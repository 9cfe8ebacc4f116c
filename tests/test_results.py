"""Figures in the pages are those of the results that stand beside them, and the results meet what is asked."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from regard.attention import HeadsConfig
from regard.cost import Work, estimate
from regard.model import FeedForwardConfig, LanguageModelConfig, StackConfig
from regard.run import find, read_facts
from regard.task import read_recipe, shipped_recipes
from regard.task.recipe import MEASURES

ROOT = Path(__file__).parent.parent
SEEDS = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def cases(name: str) -> list[dict[str, Any]]:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["cases"]


def starting(name: str, words: str) -> list[dict[str, Any]]:
    found = [case for case in cases(name) if case["case"].startswith(words)]
    assert found
    return found


def test_attend_adds_at_most_five_percent_to_sdpa_and_the_page_says_how_much() -> None:
    full, causal = starting("attention-cpu", "attend over SDPA")
    assert min(full["ratio"], causal["ratio"]) >= 1 / 1.05
    assert f"SDPA takes {full['ratio']:.2f} and {causal['ratio']:.2f} times as long" in PAGE


def test_a_window_pays_on_a_cpu_too_and_the_page_says_how_much() -> None:
    (case,) = starting("attention-cpu", "causal window 256 over full causal SDPA")
    assert case["ratio"] > 2
    wanted = (
        f"{case['ours']:.0f} ms, against {case['peer']:.0f} ms for full causal SDPA: {case['ratio']:.1f} times as fast"
    )
    assert wanted in PAGE


def test_a_window_is_at_least_six_times_as_fast_and_the_page_says_how_much() -> None:
    (case,) = starting("attention-gpu", "causal window 512 over full causal SDPA")
    assert case["ratio"] >= 6
    assert f"{case['ours']:.1f} ms, against {case['peer']:.1f} ms" in PAGE
    assert f"(cuDNN): {case['ratio']:.1f} times as fast" in PAGE
    assert f"the ratio is {case['ratio_call_by_call']:.1f}:" in PAGE


def test_memory_of_a_window_is_linear_and_the_page_says_how_much() -> None:
    sizes = [case for case in starting("attention-gpu", "causal window 512, 8") if "peak_bytes" in case]
    assert [case["length"] for case in sizes] == [4096, 8192, 16_384, 32_768, 65_536]
    tokens = [case["peak_bytes_a_token"] for case in sizes]
    assert max(tokens) / min(tokens) < 1.1
    assert f"{tokens[0] / 1e3:.1f} to {tokens[-1] / 1e3:.1f} kB a token" in PAGE


def test_the_page_says_from_where_flex_pays() -> None:
    ratios = [f"{case['ratio']:.1f}" for case in starting("attention-gpu", "flex over dense mask, causal window 128")]
    assert f"{ratios[0]}, {ratios[1]} and {ratios[2]} times as fast" in PAGE


def test_every_check_on_the_gpu_passed() -> None:
    checks = [case for case in cases("attention-gpu") if "passed" in case]
    assert len(checks) >= 64
    assert all(case["passed"] for case in checks)


def listed(losses: list[float]) -> str:
    return ", ".join(f"{loss:.2f}" for loss in losses)


def test_the_losses_of_pre_and_post_norm_on_the_page_are_the_measured_ones() -> None:
    for case in starting("seeds-cpu", "copy at"):
        name = case["case"].removeprefix("copy at ").replace(" steps", "")
        assert f"| {name} | {listed(case['pre'])} | {listed(case['post'])} |" in SEEDS


def test_the_gradients_by_depth_on_the_page_are_the_measured_ones() -> None:
    shallow, deep, deepest = starting("seeds-cpu", "gradient of the first layer")
    kept = [ratio for case in (shallow, deep, deepest) for ratio in case["with_residuals"]]
    assert f"first layer's gradient is {min(kept):.1f} to {max(kept):.1f} times the last layer's" in SEEDS
    medians = [case["without_residuals_median"] for case in (shallow, deep, deepest)]
    assert f"it is {medians[0]:.1f} times at 6 layers, {medians[1]:.2f} at 24 and {medians[2]:.3f} at 96" in SEEDS


def test_the_spread_and_the_likeness_of_words_on_the_page_are_the_measured_ones() -> None:
    (alike,) = starting("seeds-cpu", "mean cosine between words")
    assert f"is {alike['without_residuals']:.2f}, with them {alike['with_residuals']:.2f}" in SEEDS
    (spread,) = starting("seeds-cpu", "standard deviation of scaled scores")
    lowest, highest = (bound(spread["widths"].values()) for bound in (min, max))
    assert f"between {lowest:.3f} and {highest:.3f} for d from 16 to 1024" in SEEDS


RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_every_try_on_multi30k_is_on_the_page() -> None:
    for case in cases("tries-multi30k-en-de"):
        assert f"| {case['case']} | {case['scores']['valid']['bleu']:.2f} | {case['valid_loss']:.3f} |" in RESULTS


def test_every_try_on_the_digits_is_on_the_page_and_the_best_of_three_seeds_is_the_recipe() -> None:
    tries: dict[str, list[dict[str, Any]]] = {}
    for case in cases("tries-digits"):
        tries.setdefault(case["case"].rpartition(", seed ")[0], []).append(case)
    means = {}
    for name, runs in tries.items():
        assert len({run["seed"] for run in runs}) == len(runs)
        accuracy, loss = (
            statistics.mean(values)
            for values in ([run["scores"]["valid"]["accuracy"] for run in runs], [run["valid_loss"] for run in runs])
        )
        assert f"| {name} | {accuracy:.1f} | {loss:.3f} | {len(runs)} |" in RESULTS, name
        assert all(f"{run['scores']['valid']['items']} pictures" in RESULTS for run in runs)
        if len(runs) == 3:
            means[name] = accuracy
    best = max(means, key=lambda name: means[name])
    assert best == "patches of 4 × 4, width 128, hidden width 256"
    recipe = read_recipe("digits")
    settings = recipe.settings.plain()
    assert (settings["patch"], settings["width"], settings["encoder"]["feed_forward"]["hidden"]) == (4, 128, 256)


def test_every_try_on_shakespeare_is_on_the_page_and_the_recipe_is_one_of_the_best_two() -> None:
    usual = {"model.decoder.dropout": "0.2", "train.schedule.rate": "0.001", "train.optimiser.decay": "0.1"}
    names = ("model.decoder.dropout", "model.decoder.attention.dropout", "train.schedule.rate", "train.optimiser.decay")
    tries = {}
    for case in cases("tries-shakespeare"):
        if case["case"] == "consistency 1":
            continue  # that version of the task took no notice of it
        changes = usual | dict(change.split("=") for change in case["changes"])
        line = " | ".join((*(changes[name] for name in names), f"{int(changes['train.steps']):,}"))
        found = [each for each in RESULTS.splitlines() if each.startswith(f"| {line} |")]
        assert any(each.endswith(f"| {case['valid_loss']:.3f} |") for each in found), line
        assert f"{case['scores']['valid']['characters']:,} characters" in RESULTS
        tries[line] = case["valid_loss"]
    settings = read_recipe("shakespeare").plain()
    decoder, train = settings["model"]["decoder"], settings["train"]
    rates = decoder["dropout"], decoder["attention"]["dropout"], train["schedule"]["rate"], train["optimiser"]["decay"]
    assert " | ".join((*map(str, rates), f"{train['steps']:,}")) in sorted(tries, key=lambda line: tries[line])[:2]


def test_every_try_on_tatoeba_is_on_the_page() -> None:
    for case in cases("tries-tatoeba-en-tr"):
        valid = case["scores"]["valid"]
        assert f"| {case['case']} | {valid['bleu']:.2f} | {valid['chrf']:.2f} | {case['valid_loss']:.3f} |" in RESULTS


def test_every_try_on_fashion_is_on_the_page_and_the_best_is_the_recipe() -> None:
    tries = cases("tries-fashion-mnist")
    for case in tries:
        valid = case["scores"]["valid"]
        assert f"| {case['case']} | {valid['accuracy']:.1f} | {case['valid_loss']:.3f} |" in RESULTS
        assert f"{valid['items']:,} pictures, with one seed" in RESULTS
    best = max(tries, key=lambda case: case["scores"]["valid"]["accuracy"])
    assert best["case"] == "patches of 4, all mixed, none erased, 15,000 steps"
    recipe = read_recipe("fashion-mnist")
    settings = recipe.plain()
    assert (settings["model"]["patch"], settings["train"]["steps"], settings["train"]["tokens"]) == (4, 15_000, 25_600)
    assert (settings["augment"]["mixed"], settings["augment"]["erase"]) == (1.0, 0.0)


def test_every_try_on_gum_is_on_the_page() -> None:
    for case in cases("tries-gum-parse"):
        valid = case["scores"]["valid"]
        figures = f"{valid['f1']:.1f} | {valid['tagging']:.1f} | {case['valid_loss']:.3f}"
        assert f"| {case['case']} | {figures} |" in RESULTS
        assert f"{valid['sentences']:,} sentences, with one seed" in RESULTS


def test_the_page_has_the_expectations_of_every_measured_recipe() -> None:
    for one in shipped_recipes():
        expect = one.recipe.expect
        lines = [line for line in RESULTS.splitlines() if line.startswith(f"| `{one.name}` |")]
        if expect is None or not expect.measured:
            assert not lines, one.name
            continue
        for score, line in zip(expect.scores.values(), lines, strict=True):
            told = str(score)
            if score.bleu is not None:
                bleu = f"{score.bleu}" if score.spread is None else f"{score.bleu} ± {score.spread}"
                told = f"{bleu} | {score.chrf}"
            wanted = f"| {told} | {expect.seeds} | {expect.minutes:g} | {expect.hardware} |"
            assert line.endswith(wanted), one.name


def test_recipes_expect_what_was_measured() -> None:
    measured = sorted((ROOT / "benchmarks" / "results").glob("translation-*.json"))
    assert measured
    for path in measured:
        (summary,) = starting(path.stem, "summary")
        expect = read_recipe(path.stem.removeprefix("translation-")).expect
        assert expect is not None
        assert expect.seeds == len(summary["seeds"])
        assert expect.minutes == pytest.approx(summary["slowest_seconds"] / 60, abs=0.06)
        for name, score in expect.scores.items():
            assert (score.bleu, score.chrf) == (round(summary["bleu"][name], 1), round(summary["chrf"][name], 1))
            assert score.spread is None or score.spread == round(summary["spread"][name], 1)


TASKS = sorted((ROOT / "benchmarks" / "results").glob("task-*.json"))


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_recipes_of_other_tasks_expect_what_was_measured(path: Path) -> None:
    (summary,) = starting(path.stem, "summary")
    expect = read_recipe(path.stem.removeprefix("task-")).expect
    assert expect is not None
    assert expect.measured
    assert expect.seeds == len(summary["seeds"])
    assert expect.minutes == pytest.approx(summary["slowest_seconds"] / 60, abs=0.06)
    for name, score in expect.scores.items():
        for measure, value in score.numbers.items():
            assert value == round(summary[measure][name], MEASURES[measure][1])
        first = next(iter(score.numbers))
        assert first == summary["spread_of"]
        assert score.spread is None or score.spread == round(summary["spread"][name], MEASURES[first][1] + 1)


def test_shakespeare_is_learned_in_less_than_half_the_time() -> None:
    page = " ".join(RESULTS.split())
    *runs, summary = cases("shakespeare-time")
    times = [run["seconds"] for run in runs]
    assert summary["ratio"] >= 2
    assert summary["final_loss"] < 1.45
    said = f"after {summary['seconds']:.0f} s ({min(times):.0f} to {max(times):.0f} by seed); nanoGPT took"
    assert said in page
    ends = max(run["curve"][-1][1] for run in runs)
    assert f"At the end, after {ends:.0f} s at most, the loss is {summary['final_loss']:.3f};" in page


def test_shakespeare_is_below_what_is_asked_at_the_size_of_its_peer() -> None:
    *runs, summary = cases("task-shakespeare")
    assert summary["seeds"] == [1, 2, 3]
    assert summary["loss"]["valid"] < 1.45
    assert all(run["parameters"] <= 10_800_000 for run in runs)
    assert f"nanoGPT's model ({runs[0]['parameters']:,} parameters)" in RESULTS


def test_pieces_of_clothing_are_told_apart_by_94_in_a_hundred_within_five_minutes() -> None:
    *runs, summary = cases("task-fashion-mnist")
    assert summary["seeds"] == [1, 2, 3]
    assert summary["accuracy"]["test"] >= 94
    assert summary["slowest_seconds"] <= 300
    assert all(run["parameters"] <= 3_000_000 for run in runs)
    page = " ".join(RESULTS.split())
    assert f"a plain vision Transformer of {runs[0]['parameters']:,} parameters" in page
    assert f"ended within {summary['slowest_seconds'] / 60:.1f} minutes side by side" in page


def test_the_page_says_how_long_tagging_takes_alone() -> None:
    (alone,) = starting("alone-gum-tags", "ours")
    (beside,) = starting("task-gum-tags", "summary")
    assert alone["seconds"] < beside["slowest_seconds"]
    assert f"`gum-tags` took {alone['seconds'] / 60:.1f} minutes in a run alone" in RESULTS


def test_an_encoder_that_has_filled_gaps_tags_better_and_the_page_says_how_well() -> None:
    *runs, summary = cases("tags-from-brown-fill")
    assert all(run["changes"][0].startswith("init_from=") for run in runs)
    (plain,) = starting("task-gum-tags", "summary")
    assert summary["accuracy"]["test"] > plain["accuracy"]["test"] + 1
    said = f"tags {summary['accuracy']['test']:.1f} ± {summary['spread']['test']:.2f} % of the words right"
    assert said in " ".join(RESULTS.split())


def test_more_trees_make_a_better_parser_and_all_of_its_trees_are_whole() -> None:
    page = " ".join(RESULTS.split())
    (few,), (many,) = (starting(f"task-{name}", "summary") for name in ("ptb-sample-parse", "ptb-sample-parse-more"))
    assert few["seeds"] == many["seeds"] == [1, 2, 3]
    assert many["f1"]["test"] > few["f1"]["test"] + 10
    assert f"That makes {many['f1']['test']:.1f} of {few['f1']['test']:.1f}." in page
    own, added = cases("overlap-ptb-sample-parse-more")
    seen = (
        f"Of the {own['sentences']} test sentences {added['seen']} are among GUM's and {own['seen']} among the sample's"
    )
    assert seen in page
    assert "gum" in added["case"]
    written = cases("parsing-ptb-sample-parse-more-cuda")
    assert {case["case"] for case in written} == {"test", "valid", "train", "drawn by chance", "odd"}
    assert all(case["share"] == 1 and case["sentences"] > 10 for case in written)
    assert f"It reads {written[0]['sentences_a_second']:.0f} sentences of the test part a second on one H200" in page


def test_a_plain_language_model_translates_and_the_page_says_how_well() -> None:
    page = " ".join(RESULTS.split())
    (*pairs, both), (*runs, alone) = (cases(f"translation-multi30k-en-de{name}") for name in ("", "-lm"))
    assert alone["seeds"] == [1, 2, 3]
    behind = [both["bleu"][part] - alone["bleu"][part] for part in ("test_2016", "test_2017")]
    assert f"within {behind[0]:.1f} BLEU on one test set and {behind[1]:.1f} on the other" in page
    sizes = [run["parameters"] / 1e6 for run in (runs[0], pairs[0])]
    assert f"of {sizes[0]:.1f} million parameters (the encoder–decoder has {sizes[1]:.1f} million)" in page
    assert {run["beside"] for run in runs} == {5}


FILLING = (ROOT / "docs" / "filling.md").read_text(encoding="utf-8")


def of_three_seeds(words: str) -> list[dict[str, Any]]:
    return [starting(f"filling-brown-{seed}", words)[0] for seed in (1, 2, 3)]


def test_to_see_both_sides_helps_to_find_a_word_and_the_page_says_how_much() -> None:
    for words, said in (("hidden words, all", "of all kinds"), ("hidden words, made", "made of letters")):
        found = of_three_seeds(words)
        figures = []
        for way in ("filler", "left_to_right"):
            scores = [case[way]["accuracy"] for case in found]
            figures.append(f"{statistics.mean(scores):.1f} ± {statistics.stdev(scores):.2f} %")
        for case in found:
            assert case["filler"]["interval"][0] > case["left_to_right"]["interval"][1]
            assert case["left_to_right"]["interval"][0] > case["most_frequent"]["interval"][1]
            assert {f"{size / 1e6:.1f}" for size in case["parameters"].values()} == {"7.2"}
        (often,) = {case["most_frequent"]["accuracy"] for case in found}
        assert f"| {found[0]['hidden']:,} {said} | {' | '.join(figures)} | {often} % |" in FILLING


def test_banks_part_by_meaning_and_the_page_says_how_far() -> None:
    rows = {"layer 0": "the table of words", "layer 1": "after 1 layer", "layer 3": "after 3 layers"}
    for layer, said in (rows | {"last layer": "after all 6"}).items():
        found = of_three_seeds(f"banks, {layer}")
        river, money, across = (statistics.mean(case[name] for case in found) for name in ("first", "second", "across"))
        assert f"| {said} | {river:.2f} | {money:.2f} | {across:.2f} |" in FILLING
        assert all(case["static"] == 1 for case in found)
    assert min(river, money) > across + 0.05
    assert f"another river's is {river:.2f}, with one for money {across:.2f}" in SEEDS


@pytest.mark.parametrize("recipe", ["gum-parse", "ptb-sample-parse"])
def test_every_tree_is_whole_and_the_page_says_how_fast_they_are_written(recipe: str) -> None:
    on_gpu, on_cpu = (cases(f"parsing-{recipe}-{device}") for device in ("cuda", "cpu"))
    assert {case["case"] for case in on_gpu} == {"test", "valid", "train", "drawn by chance", "odd"}
    assert all(case["share"] == 1 and case["sentences"] > 10 for case in [*on_gpu, *on_cpu])
    test, test_on_cpu = on_gpu[0], on_cpu[0]
    assert test["case"] == test_on_cpu["case"] == "test"
    speeds = [f"{case['sentences_a_second']:.0f}" for case in (test, test_on_cpu)]
    page = " ".join(RESULTS.split())
    said = {
        "gum-parse": f"{speeds[0]} sentences of its test part a second on one H200 and {speeds[1]} on two CPU cores",
        "ptb-sample-parse": f"`ptb-sample-parse`, whose sentences are longer, {speeds[0]} and {speeds[1]}.",
    }
    assert said[recipe] in page
    *runs, _ = cases(f"task-{recipe}")
    assert all(run["scores"]["test"]["failed"] == 0 for run in runs)
    assert all(f"{run['parameters'] / 1e6:.1f} million parameters" in page for run in runs)


def test_a_small_gpt2_was_stopped_went_on_and_learned() -> None:
    (case,) = cases("gpt2")
    losses = {int(step): loss for step, loss in case["losses"].items()}
    assert case["stopped_at"] < case["ended_at"] == max(losses) == 100
    assert list(losses) == sorted(losses)
    assert case["sample"].startswith("The jury said ")
    page = " ".join(RESULTS.split())
    assert f"{case['tokens_per_second']:,.0f} tokens a second by the loop's own account" in page
    assert f"falls from {losses[5]:.2f} over the first 5 steps to {losses[100]:.2f} over the last" in page


def test_shakespeare_on_a_cpu_is_below_what_was_published() -> None:
    (summary,) = starting("task-shakespeare-cpu", "summary")
    assert len(summary["seeds"]) == 3
    assert summary["loss"]["valid"] < 1.88


def test_digits_are_told_apart_by_97_in_a_hundred_and_the_page_says_of_how_many() -> None:
    *runs, summary = cases("task-digits")
    assert summary["seeds"] == [1, 2, 3]
    assert summary["accuracy"]["test"] >= 97
    assert summary["slowest_seconds"] <= 90
    for run in runs:
        assert f"`digits` | test, {run['scores']['test']['items']} pictures" in RESULTS
        assert f"`digits` is a vision Transformer of {run['parameters']:,} parameters" in RESULTS


def test_the_model_that_ships_reaches_what_its_recipe_expects() -> None:
    origin = read_facts(find("en-tr"))["origin"]
    expect = read_recipe("tatoeba-en-tr").expect
    assert expect is not None
    score = origin["scores"]["test"]
    assert (round(score["bleu"], 1), round(score["chrf"], 1)) == (
        expect.scores["test"].bleu,
        expect.scores["test"].chrf,
    )
    assert score["bleu"] >= 44
    assert score["chrf"] >= 68


def test_the_page_has_the_scores_of_the_peer() -> None:
    (run,) = starting("peer-tatoeba-en-tr", "torch.nn.Transformer")
    (ours,) = starting("translation-tatoeba-en-tr", "ours")
    assert run["parameters"] == ours["parameters"]
    assert f"gave {run['scores']['test']['bleu']:.1f} BLEU and {run['scores']['test']['chrf']:.1f} chrF" in RESULTS


def test_the_page_says_what_another_run_with_the_same_seed_gave() -> None:
    (run,) = starting("again-tatoeba-en-fr", "ours")
    score = run["scores"]["test"]
    assert f"with the same seed and a later version gave {score['bleu']:.1f} and {score['chrf']:.1f};" in RESULTS


def test_multi30k_is_above_what_was_published() -> None:
    (summary,) = starting("translation-multi30k-en-de", "summary")
    assert summary["bleu"]["test_2016"] > 41.02
    assert summary["slowest_seconds"] <= 240
    assert all(run["non_embedding"] <= 6_000_000 for run in starting("translation-multi30k-en-de", "ours"))


def test_multi30k_reaches_the_same_with_faster_steps() -> None:
    (first,) = starting("translation-multi30k-en-de", "summary")
    for name, seeds, words in (
        ("again-multi30k-en-de", [1, 2, 3], "whose steps are faster, gave"),
        ("again-multi30k-en-de-more", [4, 5, 6], "and with three other seeds"),
    ):
        (later,) = starting(name, "summary")
        scores, spreads = later["bleu"], later["spread"]
        each = [f"{scores[part]:.1f} ± {spreads[part]:.1f}" for part in ("test_2016", "test_2017")]
        assert f"{words} {each[0]} and {each[1]}" in " ".join(RESULTS.split())
        assert later["seeds"] == seeds
        for part, spread in spreads.items():
            # Twice the standard error of a difference of two means of three.
            assert abs(first["bleu"][part] - scores[part]) <= 2 * ((spread**2 + first["spread"][part] ** 2) / 3) ** 0.5


def test_quick_reaches_the_same_with_steps_that_take_less_memory() -> None:
    (first,), (later,) = (starting(f"{name}-quick", "summary") for name in ("translation", "again"))
    score, spread = later["bleu"]["test"], later["spread"]["test"]
    assert later["seeds"] == first["seeds"]
    assert f"whose steps take less memory, gave {score:.1f} ± {spread:.1f}." in " ".join(RESULTS.split())
    assert abs(first["bleu"]["test"] - score) <= 2 * ((spread**2 + first["spread"]["test"] ** 2) / 3) ** 0.5


def test_a_recorded_pass_gives_the_same_losses() -> None:
    assert all(case["passed"] for case in cases("capture-gpu"))


def test_the_memory_of_reading_and_tokenising_on_the_page_is_the_measured_one_and_flat() -> None:
    labels = {
        "reading pairs with a filter": "reading and filtering",
        "learning a tokenizer from 200,000 pairs": "learning a tokenizer from the first 200,000 pairs",
        "tokenising into a store": "tokenising into a store on disk",
        "2,000 batches from the store": "planning and drawing batches",
        "reading pairs without duplicates": "dropping duplicates, where asked",
    }
    for name, label in labels.items():
        (case,) = starting("data-cpu", f"memory, {name}")
        small, large = (case[size]["peak_anonymous_mb"] for size in ("tenth", "whole"))
        assert f"| {label} | {small:.0f} | {large:.0f} |" in RESULTS
        assert large < 1.05 * small or "batches" in name or "duplicates" in name


def test_tokenising_and_batching_keep_up_with_training_by_the_factors_on_the_page() -> None:
    (tokenising,) = starting("data-cpu", "speed, tokenising, threads: 2")
    (batching,) = starting("data-cpu", "speed, batching, threads: 1")
    assert min(tokenising["over_training"], batching["over_training"]) > 10
    assert f"second, {tokenising['over_training']:.0f} times what training" in RESULTS
    assert f"batches is {batching['over_training']:,.0f} times as fast as that training" in RESULTS


def test_padding_on_the_page_is_the_measured_one() -> None:
    for tokens in (4096, 8192):
        (few, some, many) = starting("data-cpu", f"padding, {tokens} tokens")
        shares = " | ".join(f"{100 * case['padding']:.1f} %" for case in (few, some, many))
        assert f"| {tokens:,} | {shares} |" in RESULTS
        assert many["padding"] < 0.06


def test_the_speed_of_training_on_a_gpu_is_the_measured_one() -> None:
    page = " ".join(RESULTS.split())
    (base,) = starting("train-gpu", "base")
    (europarl,) = starting("train-gpu", "real Europarl")
    (multi30k,) = starting("train-gpu", "real Multi30k")
    (gpt2,) = starting("train-gpu", "GPT-2")
    for case, least in ((base, 1.6), (europarl, 2.5), (multi30k, 2.5), (gpt2, 1.15)):
        assert f"| {case['ours']:,.0f} | {case['peer']:,.0f} | {case['ratio']:.2f} |" in page
        assert case["ratio"] >= least
    assert gpt2["gigabytes"] < gpt2["peer_gigabytes"]
    (gradients,) = starting("train-gpu", "gradients of GPT-2")
    assert gradients["passed"]
    assert f"({100 * gradients['ours']:.1f} and {100 * gradients['peer']:.1f} % off)" in page
    assert f"of which ours is {gpt2['ratio_to_nanogpt_elsewhere']:.2f} times" in page
    spent = gpt2["milliseconds_by_kernel"]
    products = sum(each for name, each in spent.items() if any(part in name for part in ("nvjet", "gemm", "splitK")))
    attention = sum(each for name, each in spent.items() if "cudnn" in name)
    assert f"take {products:.0f} of the {32_768e3 / gpt2['ours']:.0f} ms of a step" in page
    assert f"its attention (cuDNN's) takes {attention:.0f}." in page
    (start,) = starting("train-gpu", "start-up")
    assert f"{start['seconds_cold']:.0f} s with nothing compiled, and {start['seconds_warm']:.0f} s with" in page
    assert start["seconds_cold"] <= 45
    assert start["seconds_warm"] <= 15
    for case in (base, europarl, multi30k, gpt2):
        assert case["gigabytes"] < case["peer_gigabytes"]
        assert f"{case['gigabytes']:.1f} GiB" in page
        assert f"{case['peer_gigabytes']:.1f} GiB" in page
    assert (
        f"it takes {base['seconds_to_the_third_step']:.0f} s with kernels to compile, "
        f"{base['peer_seconds_to_the_third_step']:.0f} s with the compiled peer" in page
    )
    assert base["seconds_to_the_third_step"] < 45
    lost = [case["share_lost_to_data"] for case in (europarl, multi30k)]
    assert max(lost) < 0.02
    assert f"costs {100 * lost[0]:.1f} % of the time on Europarl and {100 * lost[1]:.1f} % on Multi30k" in page
    busy = [case["share_waiting_for_data"] for case in (europarl, multi30k)]
    assert f"The host spends {100 * busy[0]:.1f} % and {100 * busy[1]:.1f} % of its time" in page
    empty = [case["padding"] for case in (europarl, multi30k)]
    assert f"{100 * empty[0]:.1f} % of the cells of these Europarl batches and {100 * empty[1]:.1f} % of Multi" in page


def test_shares_of_the_peak_on_a_gpu_are_those_of_the_measured_speed() -> None:
    page = " ".join(RESULTS.split())
    (rate,), (base,), (gpt2,) = (starting("train-gpu", name) for name in ("large products", "base", "GPT-2"))
    stack = StackConfig(layers=12, attention=HeadsConfig(heads=12), feed_forward=FeedForwardConfig(hidden=3072))
    texts = LanguageModelConfig(vocabulary=50_304, width=768, decoder=stack)
    _, operations = estimate(texts, Work(1, 1024), precision="bf16").training_flops_per_token
    shares = [gpt2[whose] * operations / rate["operations_a_second"] for whose in ("ours", "peer")]
    assert f"GPT-2 {100 * shares[0]:.0f} % (the peer {100 * shares[1]:.0f} %)" in page
    shares = [base[f"{whose}share_of_peak"] for whose in ("", "peer_")]
    assert f"{100 * shares[0]:.0f} % of the rate of large products (the peer {100 * shares[1]:.0f} %)" in page


def test_the_speed_of_training_on_a_cpu_is_the_measured_one() -> None:
    peers = {"`torch.nn.Transformer`": "torch.nn.Transformer", "Hugging Face Marian": "Hugging Face Marian"}
    for peer, ending in peers.items():
        (case,) = [case for case in cases("train-cpu") if case["case"].endswith(ending)]
        shares = " | ".join(f"{100 * case[f'{whose}share_of_peak']:.0f} %" for whose in ("", "peer_"))
        memory = " | ".join(f"{case[f'{whose}megabytes']:.0f} MB" for whose in ("", "peer_"))
        line = f"| {peer} | {case['ours']:,.0f} | {case['peer']:,.0f} | {case['ratio']:.2f} | {shares} | {memory} |"
        assert line in RESULTS
        assert case["ratio"] >= 1.3
        assert case["megabytes"] < case["peer_megabytes"]
        assert f"medians of {case['rounds']}. " in RESULTS


def test_the_fast_path_learns_as_the_plain_one_does() -> None:
    (case,) = starting("curves-cuda", "multi30k-en-de, 300 steps")
    assert case["passed"]
    assert len(case["seeds"]) == 3
    losses = case["loss_of_the_last_50_steps"]
    said = (
        f"{losses['plain']:.4f} and {losses['fast']:.4f}; they differ by {abs(case['difference']):.4f} with a standard"
    )
    assert said in " ".join(RESULTS.split())
    assert f"error of {case['standard_error']:.3f}" in RESULTS


def test_the_speed_of_decoding_on_the_page_is_the_measured_one() -> None:
    for case in cases("decode-cpu"):
        if "ratio" in case and "mixed" not in case["case"]:
            line = f"| {case['case']} | {case['ours']:,.0f} | {case['peer']:,.0f} | {case['ratio']:.2f} |"
            assert line in RESULTS, line
            assert case["ratio"] >= (2.0 if "Hugging Face" in case["case"] else 1.0)


def test_the_floors_of_decoding_on_the_page_are_the_measured_ones() -> None:
    floors = [case for case in cases("decode-cpu") if case["case"].endswith(", floor")]
    assert len(floors) == 4
    for case in floors:
        shares = " | ".join(f"{100 * case[name]:.0f} %" for name in ("share", "reading", "stepping", "choosing"))
        line = f"| {case['case'][:-7]} | {case['by_bytes']:,.0f} | {case['by_operations']:,.0f} | {shares} |"
        assert line in RESULTS, line


def test_the_speed_of_decoding_on_a_gpu_is_the_measured_one() -> None:
    measured = [case for case in cases("decode-gpu") if "ratio" in case]
    assert len(measured) == 8
    for case in measured:
        name = case["case"].removesuffix(", bf16, Hugging Face generate")
        assert f"| {name} | {case['ours']:,.0f} | {case['peer']:,.0f} | {case['ratio']:.1f} |" in RESULTS
        assert case["ratio"] >= 10
        floors = " | ".join(f"{1e3 * case['floor_milliseconds'][by]:.0f}" for by in ("bytes", "operations", "launches"))
        assert f"| {name} | {1e3 * case['milliseconds_a_step']:.0f} | {case['kernels_a_step']} | {floors} |" in RESULTS
    compared = [case for case in cases("decode-gpu") if "passed" in case]
    assert all(case["passed"] and case["float32_from_plain"]["tokens"] == 0 for case in compared)
    greedy, beams, gpt2 = (100 * case["bf16_from_float32"]["tokens"] for case in compared)
    assert f"{greedy:.1f} % of the tokens differ from float32's with greedy search, {beams:.1f} % with 4" in RESULTS
    assert f"{gpt2:.1f} % of GPT-2's" in RESULTS


def test_a_mixed_load_is_right_and_as_fast_as_the_page_says() -> None:
    (case,) = [case for case in cases("decode-cpu") if "mixed" in case["case"]]
    assert case["share_equal"] == 1.0
    assert case["ratio"] >= 0.7
    first, _, last = case["resident_bytes_by_third"]
    assert last < 1.15 * first
    assert f"{case['ours']:,.0f} tokens a second, {case['ratio']:.2f} times the rate" in RESULTS


DECODING = (ROOT / "docs" / "decoding.md").read_text(encoding="utf-8")


def test_what_a_shortlist_costs_and_saves_on_the_page_is_the_measured_one() -> None:
    (learning,), (alone,), (batch,) = (starting("shortlist-en-tr", name) for name in ("learning", "a sent", "a batch"))
    assert f"Learning from {learning['pairs']:,} pairs took {learning['seconds']:.0f} seconds" in DECODING
    assert f"tokens {100 * alone['references']:.1f} % are on the list" in DECODING
    assert f"mean of the batches | 8,000 | {batch['words']:,.0f} |" in DECODING
    assert f"a sentence alone, mean | 8,000 | {alone['words']:.0f} |" in DECODING
    (greedy,), (beams,) = (starting("shortlist-en-tr", name) for name in ("1 beams", "5 beams"))
    for name, case in (("5 beams", beams), ("greedy", greedy)):
        assert f"| BLEU, {name} | {case['whole']['bleu']:.2f} | {case['shortlist']['bleu']:.2f} |" in DECODING
    assert f"| {100 * beams['same_outputs']:.1f} %; {100 * greedy['same_outputs']:.1f} % |" in DECODING


def test_what_int8_costs_on_the_page_is_the_measured_one_and_at_most_a_third_of_a_point() -> None:
    labels = {
        "en-tr": "| `en-tr` | 1,000 lines of Tatoeba |",
        "multi30k-en-de on test_2016": "| `multi30k-en-de`, seed 3 | test 2016 |",
        "multi30k-en-de on test_2017": "| `multi30k-en-de`, seed 3 | test 2017 |",
    }
    for name, label in labels.items():
        (case,) = starting("quantised-en-tr" if name == "en-tr" else "quantised-multi30k-en-de", name)
        whole, rounded = case["bleu"]["float32"], case["bleu"]["int8"]
        assert whole - rounded <= 0.3
        assert f"{label} {whole:.2f} | {rounded:.2f} | {100 * case['share_changed']:.1f} % |" in DECODING


def test_a_million_lines_take_no_more_memory_than_a_tenth_of_them() -> None:
    few, many = cases("lines-cpu")
    assert (few["lines"], many["lines"]) == (few["written"], many["written"]) == (100_000, 1_000_000)
    assert many["peak_bytes"] < 1.05 * few["peak_bytes"]
    peaks = [f"{case['peak_bytes'] / 1e6:.0f} MB" for case in (many, few)]
    assert f"took {peaks[0]} at their peak, a hundred thousand\n{peaks[1]}" in DECODING


def test_the_page_says_what_heads_cost_at_long_context() -> None:
    found = cases("long-context-gpu")
    kinds = list(dict.fromkeys(case["case"].rpartition(", ")[0] for case in found))
    assert len(kinds) == 3
    for kind in kinds:
        lines = [case for case in found if case["case"].rpartition(", ")[0] == kind]
        assert [case["length"] for case in lines] == [4096, 16_384, 32_768]
        steps = " | ".join(f"{case['device_seconds_a_step'] * 1e3:.1f}" for case in lines)
        last = lines[-1]
        rates = f"{last['rows'] / last['device_seconds_a_step']:,.0f} | {last['tokens_per_second']:,.0f}"
        assert f"| {kind} | {last['bytes_per_token']:,.0f} | {steps} | {rates} |" in RESULTS
    plain, grouped, latent = (
        next(case for case in found if case["case"].startswith(kind) and case["length"] == 32_768) for kind in kinds
    )
    assert f"keep {plain['bytes_per_token'] / latent['bytes_per_token']:.1f} times less than plain ones" in RESULTS
    more = grouped["bytes_per_token"] / latent["bytes_per_token"]
    assert f"keep {more:.1f} times as much" in " ".join(RESULTS.split())
    assert latent["device_seconds_a_step"] < plain["device_seconds_a_step"] / 2
    seconds = {(case["case"].partition(",")[0], case["length"]): case["device_seconds_a_step"] for case in found}
    assert seconds["latent", 4096] > seconds["plain", 4096]
    assert seconds["latent", 16_384] < seconds["plain", 16_384]
    assert all(seconds["grouped", length] < seconds["latent", length] for length in (4096, 16_384, 32_768))


def test_a_hundred_thousand_tokens_behind_a_window_take_no_more_memory_than_ten_thousand() -> None:
    (case,) = cases("long-context-ring-gpu")
    early, late = case["after"]["10000"], case["after"]["100000"]
    assert case["constant"]
    assert (early["cache_bytes"], early["allocated"]) == (late["cache_bytes"], late["allocated"])
    assert f"{late['cache_bytes']:,} bytes after 10,000 and after 100,000" in " ".join(RESULTS.split())


def test_the_page_says_what_it_looks_at_and_which_word_it_becomes() -> None:
    page = (ROOT / "docs" / "look.md").read_text(encoding="utf-8")
    tired, wide = cases("animal")
    for case in (tired, wide):
        chances = case["log_probabilities"]
        figures = f"{chances['il']:.2f} | {chances['elle']:.2f}"
        assert f"| … because it was {case['case'].split('it was ')[1]} | {case['output']} | {figures} |" in page
        assert chances["elle"] > chances["il"]
    for one, other in zip(tired["heads"], wide["heads"], strict=True):
        weights = [dict(each["row"])[word] for each in (one, other) for word in ("animal", "street")]
        figures = " | ".join(f"{weight:.2f}" for weight in weights)
        line = f"| {one['layer'] + 1} | {one['head'] + 1} | {figures} |"
        if max(weights) >= 0.1:
            assert (weights[0] > weights[1]) == (weights[2] > weights[3])  # none changes its mind
        assert (line in page) == (max(weights) >= 0.1)
