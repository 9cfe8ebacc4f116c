"""Translators that nobody thinks of first: latent heads, a window and experts together, and a plain language model."""

from pathlib import Path

import pytest
import torch

import regard
from regard import UserError
from regard.attention import HeadsConfig
from regard.data.batch import Batch
from regard.model import LanguageModel, LanguageModelConfig, StackConfig
from regard.run import save
from regard.task import Translator, load_translator, read_recipe, train
from regard.task.prompts import continued
from regard.train.loss import word_loss
from tests.task.small import pairs, quick_runs, small_tokenizer, write_recipe_file, write_table

LATENT = '{kind = "latent", heads = 2, latent = 8, head_width = 4, rotary_width = 4, value_width = 6, pattern = "%s"}'
EXPERTS = '{kind = "experts", hidden = 16, experts = 4, active = 2, shared = 1, activation = "swiglu"}'
STACK = '{layers = 2, order = "pre", norm = {kind = "rms"}, attention = %s, feed_forward = %s}'
CHANGES = (
    f"model.encoder={STACK % (LATENT % 'sliding(5)', EXPERTS)}",
    f"model.decoder={STACK % (LATENT % 'sliding(4) | global(1)', EXPERTS)}",
    'model.position={kind = "rotary"}',
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mixture")
    data = {"train": [{"path": str(write_table(place / "train.tsv", pairs(60)))}]}
    recipe = write_recipe_file(place / "mixture.toml", data, *CHANGES)
    with quick_runs(place / "cache"):
        train(read_recipe(recipe), place / "run")
    return place / "run"


def test_it_trains_and_every_weight_moves(folder: Path) -> None:
    translator = load_translator(folder)
    torch.manual_seed(1)
    fresh = translator.translating.config.build().state_dict()
    trained = translator.model.state_dict()
    still = [name for name, weight in trained.items() if name in fresh and torch.equal(weight, fresh[name])]
    assert not [name for name in still if not name.endswith("correction")], still


def test_it_decodes_alike_with_and_without_a_cache(folder: Path) -> None:
    """Behind a cache latents stand in rings as long as the window; without one every step reads all anew."""
    translator = load_translator(folder)
    model = translator.translating.double().eval()
    torch.manual_seed(3)
    source, target = (torch.randint(3, model.config.vocabulary, (2, length)) for length in (7, 15))
    lengths = torch.tensor([7, 4])
    with torch.no_grad():
        whole = model(source, target, source_lengths=lengths)
        cache = model.start(source, 15, lengths)
        steps = [model.step(target[:, at : at + 1], cache)[0][:, 0] for at in range(15)]
    torch.testing.assert_close(torch.stack(steps, dim=1), whole)


def test_it_translates_with_beams(folder: Path) -> None:
    assert load_translator(folder).translate("red cat", beams=3)


# A language model that translates.

WRITER = (
    'model={kind = "language-model", width = 16, position = {kind = "rotary"}, decoder = {layers = 1, attention = '
    "{heads = 2}, feed_forward = {hidden = 32}}}",
    "tokenizer.shared=true",
)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("writer")
    data = {"train": [{"path": str(write_table(place / "train.tsv", pairs(60)))}]}
    recipe = write_recipe_file(place / "writer.toml", data, *WRITER)
    with quick_runs(place / "cache"):
        train(read_recipe(recipe), place / "run")
    return place / "run"


def test_a_plain_language_model_translates_what_it_is_prompted_with(writer: Path) -> None:
    translator = regard.load(writer)
    assert isinstance(translator, Translator)
    assert isinstance(translator.model, LanguageModel)
    text = translator.target_text
    ids = [*text.encode("red cat"), text.end, text.start]
    wanted = []
    for _ in range(8):  # greedy search by hand, all anew for every word
        with torch.no_grad():
            wanted.append(int(translator.model(torch.tensor([ids + wanted]))[0, -1].argmax()))
        if wanted[-1] == text.end:
            break
    ((found, *_),) = translator.translate_sentences(["red cat"], translator.search(1))
    assert [*found.tokens, text.end][: len(wanted)] == wanted


def test_its_loss_is_that_of_the_target_behind_source_end_and_start(writer: Path) -> None:
    translator = load_translator(writer)
    model, text = translator.model, translator.target_text
    assert text.end is not None
    (steps,) = translator.score(["red cat"], ["rot Katze"])
    source, target = [*text.encode("red cat"), text.end], [*text.encode("rot Katze"), text.end]
    sides = (torch.tensor([source + [0] * 3, [0] * (len(source) + 3)]), torch.tensor([target, [0] * len(target)]))
    lengths = (torch.tensor([len(source), 0]), torch.tensor([len(target), 0]))
    batch = Batch(sides, lengths, torch.tensor([0, -1]), (len(source), len(target)), 0, 0)
    with torch.no_grad():
        tokens, wanted, real = continued(batch, text.start)
        loss = word_loss(model(tokens, lengths=real), wanted, real)
    assert int(loss.count) == len(target)
    assert float(loss.plain) == pytest.approx(-sum(steps), rel=1e-5)


def test_two_vocabularies_are_refused_for_it(tmp_path: Path) -> None:
    data = {"train": [{"path": "train.tsv"}]}
    with pytest.raises(UserError, match=r"model\.kind: a language model reads what it writes"):
        read_recipe(write_recipe_file(tmp_path / "x.toml", data, WRITER[0], "tokenizer.shared=false"))


def test_another_language_model_is_no_translator(tmp_path: Path) -> None:
    model = LanguageModelConfig(vocabulary=8, width=8, decoder=StackConfig(layers=1, attention=HeadsConfig(heads=2)))
    save(model.build(), tmp_path / "model", tokenizer=small_tokenizer().tokenizer)
    with pytest.raises(UserError, match="use `regard generate` with it"):
        load_translator(tmp_path / "model")
