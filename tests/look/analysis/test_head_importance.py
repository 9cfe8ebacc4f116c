"""Head importance is the change of the metric when the head is ablated, for every task."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from regard import UserError
from regard.look.analysis.attention_maps import find_attention
from regard.look.analysis.dev_set import load_dev_set, mean_loss, run_unpadded
from regard.look.analysis.head_ablation import ablate_heads, mean_outputs
from regard.look.analysis.head_importance import measure_head_importance, measure_heads
from regard.look.models.auto import load_traced_model
from regard.look.models.traced_model import IGNORE
from regard.look.schema import AblatedHead, HeadImportanceRequest
from regard.score import score_translations
from tests.look.support import (
    LABELS,
    TREES,
    autoregressive_model,
    classifier,
    encoder_model,
    parser,
    save_run,
    task_models,
)
from tests.model.small_models import language_model

PAIRS = ["the old cat\ta mouse", "a mouse and a cat\tthe sea, the sun", "red sun\tdog"]
LINES = {
    "translation": PAIRS,
    "translation by a language model": PAIRS,
    "language-modeling": ["the old man sat by the sea", "a mouse and a cat"],
    "parsing": list(TREES),
    "masked-lm": ["the old man sat by the sea", "a mouse and a cat"],
    "text-classification": ["a big sea\tgood", "the old dog\tbad"],
    "token-classification": ["the/good cat/bad slept/so-so", "a/good mouse/bad"],
}
each_task = pytest.mark.parametrize("task", list(LINES))


@each_task
@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_every_head_is_measured(task: str, ablation) -> None:
    traced_model = task_models()[task]
    importance = measure_head_importance(
        traced_model, HeadImportanceRequest(ablation=ablation, metric="loss", lines=LINES[task])
    )
    assert importance.examples == len(LINES[task])
    heads = [
        (one.attention_type, layer, head)
        for one in traced_model.summary().attention
        for layer in range(2)
        for head in range(4)
    ]
    assert [(one.attention_type, one.layer, one.head) for one in importance.heads] == heads
    assert all(one.change == pytest.approx(one.value - importance.baseline) for one in importance.heads)
    assert any(abs(one.change) > 1e-4 for one in importance.heads)


@each_task
def test_loss_does_not_depend_on_batching(task: str) -> None:
    """Padded in one batch or one by one: the mean over all labels."""
    traced_model = task_models()[task]
    examples = load_dev_set(traced_model, LINES[task], None).examples
    counts = [int((one.labels != IGNORE).sum()) for one in examples]
    losses = [mean_loss(traced_model, [one]) for one in examples]
    mean = sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)
    assert mean_loss(traced_model, examples) == pytest.approx(mean, rel=1e-5)


def test_loss_of_a_translator_is_that_of_its_scores() -> None:
    traced_model = autoregressive_model()
    translator = traced_model.pipeline  # type: ignore[attr-defined]
    scores = translator.score(*zip(*(line.split("\t") for line in PAIRS), strict=True))
    logprobs = [logprob for row in scores for logprob in row]
    loss = mean_loss(traced_model, load_dev_set(traced_model, PAIRS, None).examples)
    assert loss == pytest.approx(-sum(logprobs) / len(logprobs), rel=1e-9)


def test_loss_of_a_translating_language_model_is_that_of_its_scores() -> None:
    traced_model = autoregressive_model(language_model(), translates=True)
    translator = traced_model.pipeline  # type: ignore[attr-defined]
    scores = translator.score(*zip(*(line.split("\t") for line in PAIRS), strict=True))
    logprobs = [logprob for row in scores for logprob in row]
    loss = mean_loss(traced_model, load_dev_set(traced_model, PAIRS, None).examples)
    assert loss == pytest.approx(-sum(logprobs) / len(logprobs), rel=1e-9)


def test_loss_of_a_language_model_is_next_token_cross_entropy() -> None:
    traced_model = autoregressive_model(language_model())
    text = LINES["language-modeling"][0]
    ids = torch.tensor([[1, *traced_model.source_detokenizer.tokenizer.encode(text)]])
    with torch.no_grad():
        logits = traced_model.model(ids[:, :-1])[0]
    loss = mean_loss(traced_model, load_dev_set(traced_model, [text], None).examples)
    assert loss == pytest.approx(float(functional.cross_entropy(logits, ids[0, 1:])))


def test_loss_of_a_classifier_is_that_of_its_labels() -> None:
    traced_model = encoder_model({"kind": "classification", "labels": LABELS})
    probabilities = dict(traced_model.pipeline.classify(["a big sea"])[0])  # type: ignore[attr-defined]
    loss = mean_loss(traced_model, load_dev_set(traced_model, ["a big sea\tbad"], None).examples)
    assert loss == pytest.approx(-math.log(probabilities["bad"]), rel=1e-5)


def test_importance_is_the_loss_with_the_head_ablated() -> None:
    traced_model = autoregressive_model()
    request = HeadImportanceRequest(ablation="zero", metric="loss", lines=PAIRS)
    importance = measure_head_importance(traced_model, request)
    examples = load_dev_set(traced_model, PAIRS, None).examples
    assert importance.baseline == pytest.approx(mean_loss(traced_model, examples))
    for one in (importance.heads[1], importance.heads[-1]):
        with ablate_heads(
            traced_model.model,
            [AblatedHead(attention_type=one.attention_type, layer=one.layer, head=one.head, ablation="zero")],
        ):
            assert one.value == pytest.approx(mean_loss(traced_model, examples))


def test_means_are_over_the_dev_set_without_padding() -> None:
    traced_model = autoregressive_model()
    examples = load_dev_set(traced_model, PAIRS, None).examples
    outputs: list[torch.Tensor] = []
    attention = find_attention(traced_model.model, "encoder", 1)
    hook = attention.o_proj.register_forward_pre_hook(lambda module, given: outputs.append(given[0][0]))
    with mean_outputs(traced_model.model) as means:
        run_unpadded(traced_model, examples)
    hook.remove()
    assert [len(each) for each in outputs] == [len(one.source or ()) + 1 for one in examples]
    torch.testing.assert_close(means["encoder", 1], torch.cat(outputs).mean(dim=0).double())


def test_bleu_is_that_of_the_ablated_models_translations() -> None:
    traced_model = autoregressive_model(dtype=torch.float32)
    translator = traced_model.pipeline  # type: ignore[attr-defined]
    sources = [line.split("\t")[0] for line in PAIRS]
    outputs = [best.text for best, *_ in translator.translate_sentences(sources)]
    lines = [f"{source}\t{output} the sea and" for source, output in zip(sources, outputs, strict=True)]
    importance = measure_head_importance(
        traced_model, HeadImportanceRequest(ablation="zero", metric="bleu", lines=lines)
    )
    references = [line.split("\t")[1] for line in lines]
    assert importance.baseline == pytest.approx(score_translations(outputs, references).bleu)
    one = importance.heads[5]
    with ablate_heads(
        traced_model.model,
        [AblatedHead(attention_type=one.attention_type, layer=one.layer, head=one.head, ablation="zero")],
    ):
        changed = [best.text for best, *_ in translator.translate_sentences(sources)]
    assert one.value == pytest.approx(score_translations(changed, references).bleu)


def test_results_are_yielded_head_by_head() -> None:
    results = list(
        measure_heads(autoregressive_model(), HeadImportanceRequest(ablation="zero", metric="loss", lines=PAIRS))
    )
    assert [(count, len(importance.heads)) for count, importance in results] == [(24, done) for done in range(25)]


def test_bleu_is_refused_for_other_tasks() -> None:
    with pytest.raises(UserError, match="'bleu' is not a metric of this model; use loss"):
        measure_head_importance(
            task_models()["language-modeling"], HeadImportanceRequest(ablation="zero", metric="bleu", lines=["a cat"])
        )


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("translation", "no pair here", "is not a pair; write the sentence, a tab, and its translation"),
        ("parsing", "the cat", "outside of any bracket"),
        ("text-classification", "a big sea", "has no label; write the text, a tab, and its label"),
        ("text-classification", "a big sea\twhat", "'what' is not a label of this model"),
        ("token-classification", "the/good cat", "has a word without a tag"),
        ("image-classification", "a.png", "Images cannot be given as lines"),
    ],
)
def test_invalid_line_is_refused(task: str, line: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_dev_set(task_models()[task], [line], None)


def test_empty_dev_set_is_refused() -> None:
    with pytest.raises(UserError, match="The dev set is empty"):
        load_dev_set(task_models()["language-modeling"], ["", "  "], None)


def test_model_without_a_recipe_needs_lines() -> None:
    with pytest.raises(UserError, match=r"not on this machine; give lines \(sentence, tab, translation\)"):
        load_dev_set(autoregressive_model(), None, None)


def test_held_out_pairs_of_the_run_are_used(tmp_path: Path) -> None:
    from regard.task.held_out import HELD_OUT

    folder = save_run(tmp_path / "run", autoregressive_model(dtype=torch.float32))
    pairs = [dict(zip(("source", "target"), line.split("\t"), strict=True)) for line in PAIRS]
    (folder / HELD_OUT).write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")
    traced_model = load_traced_model(folder)
    assert len(load_dev_set(traced_model, None, folder).examples) == 3


def test_pretrained_model_uses_data_that_ships(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    traced_model = load_traced_model("en-tr")
    dev_set = load_dev_set(traced_model, None, traced_model.folder)
    assert len(dev_set.examples) == len(dev_set.items) == 100


def test_validation_data_of_the_recipe_is_used(tmp_path: Path) -> None:
    from tests.task.small_images import write_recipe

    recipe = write_recipe(tmp_path / "images")
    traced_model = classifier(channels=1, image_size=4, classes=("left", "right", "top"))
    dev_set = load_dev_set(traced_model, None, _with_recipe(recipe))
    assert len(dev_set.examples) == 20
    assert mean_loss(traced_model, dev_set.examples) > 0

    (tmp_path / "dev.txt").write_text("\n".join(TREES) + "\n")
    (tmp_path / "recipe.toml").write_text(
        'description = "small"\ntask = "parsing"\n[data]\ntrain = [{ path = "none.txt" }]\n'
        'valid = { path = "dev.txt" }\n[train]\nsteps = 1\nbatch_tokens = 100\n'
        '[train.schedule]\nkind = "constant"\nlr = 0.01\nwarmup_steps = 0\n'
    )
    assert len(load_dev_set(parser(), None, tmp_path).examples) == 2


def _with_recipe(recipe: Path) -> Path:
    recipe.rename(recipe.with_name("recipe.toml"))
    return recipe.parent
