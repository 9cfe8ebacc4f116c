"""What a head is worth is how the measure changes when it is off, on examples of every task."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from regard import UserError
from regard.look.attentions import attention_at
from regard.look.development import development_set, mean_loss
from regard.look.opening import open_subject
from regard.look.switch import mean_outputs, switched_off
from regard.look.wire import Switched, WorthRequest
from regard.look.worth import head_worths, worth_of_heads
from regard.score import score_translations
from tests.look.support import LABELS, TREES, classifier, every_task, parser, reader, saved, writer
from tests.model.small_models import language_model

PAIRS = ["the old cat\ta mouse", "a mouse and a cat\tthe sea, the sun", "red sun\tdog"]
LINES = {
    "translation": PAIRS,
    "translation by a language model": PAIRS,
    "language": ["the old man sat by the sea", "a mouse and a cat"],
    "parsing": list(TREES),
    "filling": ["the old man sat by the sea", "a mouse and a cat"],
    "labelling": ["a big sea\tgood", "the old dog\tbad"],
    "tagging": ["the/good cat/bad slept/so-so", "a/good mouse/bad"],
}
tasks = pytest.mark.parametrize("task", list(LINES))


@tasks
@pytest.mark.parametrize("how", ["zero", "mean"])
def test_every_head_has_its_worth(task: str, how) -> None:
    subject = every_task()[task]
    worth = worth_of_heads(subject, WorthRequest(how=how, measure="loss", lines=LINES[task]))
    assert worth.sentences == len(LINES[task])
    places = [(one.side, layer, head) for one in subject.summary().attention for layer in range(2) for head in range(4)]
    assert [(one.side, one.layer, one.head) for one in worth.heads] == places
    assert all(one.change == pytest.approx(one.value - worth.whole) for one in worth.heads)
    assert any(abs(one.change) > 1e-4 for one in worth.heads)


@tasks
def test_the_loss_does_not_depend_on_which_examples_go_together(task: str) -> None:
    """Padded in one batch, or each alone: the mean over all that is asked for."""
    subject = every_task()[task]
    examples = development_set(subject, LINES[task], None).examples
    counts = [int((one.wanted != -100).sum()) for one in examples]
    alone = [mean_loss(subject, [one]) for one in examples]
    mean = sum(loss * count for loss, count in zip(alone, counts, strict=True)) / sum(counts)
    assert mean_loss(subject, examples) == pytest.approx(mean, rel=1e-5)


def test_a_translators_loss_is_that_of_its_own_scores() -> None:
    subject = writer()
    translator = subject.translator  # type: ignore[attr-defined]
    scores = translator.score(*zip(*(line.split("\t") for line in PAIRS), strict=True))
    flat = [gain for row in scores for gain in row]
    loss = mean_loss(subject, development_set(subject, PAIRS, None).examples)
    assert loss == pytest.approx(-sum(flat) / len(flat), rel=1e-9)


def test_so_is_that_of_a_language_model_that_translates() -> None:
    subject = writer(language_model(), translates=True)
    translator = subject.translator  # type: ignore[attr-defined]
    scores = translator.score(*zip(*(line.split("\t") for line in PAIRS), strict=True))
    flat = [gain for row in scores for gain in row]
    loss = mean_loss(subject, development_set(subject, PAIRS, None).examples)
    assert loss == pytest.approx(-sum(flat) / len(flat), rel=1e-9)


def test_a_language_models_loss_is_that_of_each_next_token() -> None:
    subject = writer(language_model())
    text = LINES["language"][0]
    ids = torch.tensor([[1, *subject.read_by.tokenizer.encode(text)]])
    with torch.no_grad():
        logits = subject.model(ids[:, :-1])[0]
    loss = mean_loss(subject, development_set(subject, [text], None).examples)
    assert loss == pytest.approx(float(functional.cross_entropy(logits, ids[0, 1:])))


def test_a_labellers_loss_is_that_of_its_labels() -> None:
    subject = reader({"kind": "classify", "labels": LABELS})
    chances = dict(subject.labeller.label(["a big sea"])[0])  # type: ignore[attr-defined]
    loss = mean_loss(subject, development_set(subject, ["a big sea\tbad"], None).examples)
    assert loss == pytest.approx(-math.log(chances["bad"]), rel=1e-5)


def test_a_worth_is_the_loss_of_the_model_with_the_head_off() -> None:
    subject = writer()
    request = WorthRequest(how="zero", measure="loss", lines=PAIRS)
    worth = worth_of_heads(subject, request)
    examples = development_set(subject, PAIRS, None).examples
    assert worth.whole == pytest.approx(mean_loss(subject, examples))
    for one in (worth.heads[1], worth.heads[-1]):
        with switched_off(subject.model, [Switched(side=one.side, layer=one.layer, head=one.head, how="zero")]):
            assert one.value == pytest.approx(mean_loss(subject, examples))


def test_means_are_taken_over_the_whole_set_without_padding() -> None:
    subject = writer()
    from regard.look.development import each_alone

    examples = development_set(subject, PAIRS, None).examples
    kept: list[torch.Tensor] = []
    attention = attention_at(subject.model, "encoder", 1)
    hook = attention.output.register_forward_pre_hook(lambda module, given: kept.append(given[0][0]))
    with mean_outputs(subject.model) as means:
        each_alone(subject, examples)
    hook.remove()
    assert [len(one) for one in kept] == [len(one.source or ()) + 1 for one in examples]
    torch.testing.assert_close(means["encoder", 1], torch.cat(kept).mean(dim=0).double())


def test_bleu_is_that_of_the_translations_of_the_changed_model() -> None:
    subject = writer(dtype=torch.float32)
    translator = subject.translator  # type: ignore[attr-defined]
    sources = [line.split("\t")[0] for line in PAIRS]
    outputs = [best.text for best, *_ in translator.translate_sentences(sources)]
    lines = [f"{source}\t{output} the sea and" for source, output in zip(sources, outputs, strict=True)]
    worth = worth_of_heads(subject, WorthRequest(how="zero", measure="bleu", lines=lines))
    references = [line.split("\t")[1] for line in lines]
    assert worth.whole == pytest.approx(score_translations(outputs, references).bleu)
    one = worth.heads[5]
    with switched_off(subject.model, [Switched(side=one.side, layer=one.layer, head=one.head, how="zero")]):
        changed = [best.text for best, *_ in translator.translate_sentences(sources)]
    assert one.value == pytest.approx(score_translations(changed, references).bleu)


def test_it_is_told_bit_by_bit() -> None:
    told = list(head_worths(writer(), WorthRequest(how="zero", measure="loss", lines=PAIRS)))
    assert [(count, len(worth.heads)) for count, worth in told] == [(24, done) for done in range(25)]


def test_bleu_is_for_translators() -> None:
    with pytest.raises(UserError, match="BLEU is for translations"):
        worth_of_heads(every_task()["language"], WorthRequest(how="zero", measure="bleu", lines=["a cat"]))


@pytest.mark.parametrize(
    ("task", "line", "sentence"),
    [
        ("translation", "no pair here", "is no pair; write the sentence, a tab, and its translation"),
        ("parsing", "the cat", "stands outside of any bracket"),
        ("labelling", "a big sea", "has no label; write the text, a tab, and its label"),
        ("labelling", "a big sea\twhat", "The label 'what' is not among those of this model"),
        ("tagging", "the/good cat", "has a word without its tag"),
        ("pictures", "a.png", "Pictures cannot be given as lines"),
    ],
)
def test_a_line_that_says_nothing_is_refused(task: str, line: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        development_set(every_task()[task], [line], None)


def test_no_lines_at_all_are_refused() -> None:
    with pytest.raises(UserError, match="nothing to judge the model by"):
        development_set(every_task()["language"], ["", "  "], None)


def test_a_model_without_a_recipe_needs_lines() -> None:
    with pytest.raises(UserError, match="are not on this machine; give some, one a line, each with a tab"):
        development_set(writer(), None, None)


def test_the_pairs_that_a_run_has_held_out_are_taken(tmp_path: Path) -> None:
    from regard.task.translation_recipe import HELD_OUT

    folder = saved(tmp_path / "run", writer(dtype=torch.float32))
    pairs = [dict(zip(("source", "target"), line.split("\t"), strict=True)) for line in PAIRS]
    (folder / HELD_OUT).write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")
    subject = open_subject(folder)
    assert len(development_set(subject, None, folder).examples) == 3


def test_the_model_that_ships_is_judged_by_what_ships(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    subject = open_subject("en-tr")
    development = development_set(subject, None, subject.folder)
    assert len(development.examples) == len(development.pairs) == 100


def test_a_parser_and_a_classifier_are_judged_by_their_recipes(tmp_path: Path) -> None:
    """Files that the recipe names and that are there."""
    from tests.task.small_pictures import write_recipe

    recipe = write_recipe(tmp_path / "pictures")
    subject = classifier(channels=1, image=4, classes=("left", "right", "top"))
    development = development_set(subject, None, _with_recipe(recipe))
    assert len(development.examples) == 20
    assert mean_loss(subject, development.examples) > 0

    (tmp_path / "dev.txt").write_text("\n".join(TREES) + "\n")
    (tmp_path / "recipe.toml").write_text(
        'description = "small"\ntask = "parsing"\n[data]\ntrain = [{ path = "none.txt" }]\n'
        'valid = { path = "dev.txt" }\n[train]\nsteps = 1\ntokens = 100\n'
        '[train.schedule]\nkind = "constant"\nrate = 0.01\nwarmup = 0\n'
    )
    assert len(development_set(parser(), None, tmp_path).examples) == 2


def _with_recipe(recipe: Path) -> Path:
    recipe.rename(recipe.with_name("recipe.toml"))
    return recipe.parent
