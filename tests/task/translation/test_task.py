"""Translators that are not the paper's: latent attention with sliding windows and experts, and a language model."""

from pathlib import Path

import pytest
import torch

import regard
from regard import UserError
from regard.attention import MultiHeadConfig
from regard.data.batching.token_batches import Batch
from regard.decode import DecodeConfig
from regard.model import LanguageModel, LanguageModelConfig, StackConfig
from regard.run import save_model
from regard.score import TranslationScore
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from regard.task.seq2seq import prompt_and_target
from regard.task.translation.pipeline import Translator
from regard.task.translation.task import TranslationTask
from regard.train.distributed.process_group import SINGLE_PROCESS
from regard.train.loss import cross_entropy
from tests.task.small import pairs, quick_runs, small_tokenizer, write_recipe_file, write_table

LATENT = (
    '{kind = "latent", heads = 2, kv_latent = 8, head_dim = 4, rope_head_dim = 4, value_head_dim = 6, pattern = "%s"}'
)
EXPERTS = '{kind = "moe", hidden = 16, experts = 4, top_k = 2, shared_experts = 1, activation = "swiglu"}'
STACK = '{layers = 2, norm_position = "pre", norm = {kind = "rms"}, attention = %s, feed_forward = %s}'
CHANGES = (
    f"model.encoder={STACK % (LATENT % 'sliding(5)', EXPERTS)}",
    f"model.decoder={STACK % (LATENT % 'sliding(4) | global(1)', EXPERTS)}",
    'model.position={kind = "rotary"}',
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("mixture")
    data = {"train": [{"path": str(write_table(base / "train.tsv", pairs(60)))}]}
    recipe = write_recipe_file(base / "mixture.toml", data, *CHANGES)
    with quick_runs(base / "cache"):
        train(read_recipe(recipe), base / "run")
    return base / "run"


def test_training_changes_every_weight(folder: Path) -> None:
    translator = Translator.load(folder)
    torch.manual_seed(1)
    fresh = translator.seq2seq_model.config.build().state_dict()
    trained = translator.model.state_dict()
    unchanged = [name for name, weight in trained.items() if name in fresh and torch.equal(weight, fresh[name])]
    assert not [name for name in unchanged if not name.endswith("expert_bias")], unchanged


def test_cached_decoding_equals_uncached(folder: Path) -> None:
    """The cache is a rolling cache of latents as long as the window; without one, every step sees the full prefix."""
    translator = Translator.load(folder)
    model = translator.seq2seq_model.double().eval()
    torch.manual_seed(3)
    source, target = (torch.randint(3, model.config.vocab_size, (2, length)) for length in (7, 15))
    lengths = torch.tensor([7, 4])
    with torch.no_grad():
        uncached = model(source, target, source_lengths=lengths)
        cache = model.start(source, 15, lengths)
        steps = [model.step(target[:, step : step + 1], cache)[0][:, 0] for step in range(15)]
    torch.testing.assert_close(torch.stack(steps, dim=1), uncached)


def test_beam_search_translates(folder: Path) -> None:
    assert Translator.load(folder).translate("red cat", beam_size=3)


# A language model as a translator

LANGUAGE_MODEL = (
    'model={kind = "language-model", width = 16, position = {kind = "rotary"}, decoder = {layers = 1, attention = '
    "{heads = 2}, feed_forward = {hidden = 32}}}",
    "tokenizer.shared=true",
)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("language_model")
    data = {"train": [{"path": str(write_table(base / "train.tsv", pairs(60)))}]}
    recipe = write_recipe_file(base / "language-model.toml", data, *LANGUAGE_MODEL)
    with quick_runs(base / "cache"):
        train(read_recipe(recipe), base / "run")
    return base / "run"


def test_language_model_translates_its_prompt(language_model: Path) -> None:
    translator = regard.load(language_model)
    assert isinstance(translator, Translator)
    assert isinstance(translator.model, LanguageModel)
    text = translator.target_tokenizer
    ids = [*text.encode("red cat"), text.eos, text.bos]
    expected: list[int] = []
    for _ in range(8):  # uncached greedy search
        with torch.no_grad():
            expected.append(int(translator.model(torch.tensor([ids + expected]))[0, -1].argmax()))
        if expected[-1] == text.eos:
            break
    greedy = translator.search(1).updated({"max_repeats": 0})
    ((best, *_),) = translator.translate_sentences(["red cat"], greedy)
    assert [*best.tokens, text.eos][: len(expected)] == expected


def test_loss_of_a_language_model_is_that_of_the_target_after_source_eos_and_bos(language_model: Path) -> None:
    translator = Translator.load(language_model)
    model, text = translator.model, translator.target_tokenizer
    assert text.eos is not None
    (steps,) = translator.score(["red cat"], ["rot Katze"])
    source, target = [*text.encode("red cat"), text.eos], [*text.encode("rot Katze"), text.eos]
    sides = (torch.tensor([source + [0] * 3, [0] * (len(source) + 3)]), torch.tensor([target, [0] * len(target)]))
    lengths = (torch.tensor([len(source), 0]), torch.tensor([len(target), 0]))
    batch = Batch(sides, lengths, torch.tensor([0, -1]), (len(source), len(target)), 0, 0)
    with torch.no_grad():
        tokens, targets, target_lengths = prompt_and_target(batch, text.bos)
        loss = cross_entropy(model(tokens, lengths=target_lengths), targets, target_lengths)
    assert int(loss.count) == len(target)
    assert float(loss.nll) == pytest.approx(-sum(steps), rel=1e-5)


def test_language_model_needs_a_shared_vocabulary(tmp_path: Path) -> None:
    data = {"train": [{"path": "train.tsv"}]}
    with pytest.raises(UserError, match=r"model\.kind: "):
        read_recipe(write_recipe_file(tmp_path / "x.toml", data, LANGUAGE_MODEL[0], "tokenizer.shared=false"))


def test_language_model_of_another_task_is_not_a_translator(tmp_path: Path) -> None:
    model = LanguageModelConfig(
        vocab_size=8, width=8, decoder=StackConfig(layers=1, attention=MultiHeadConfig(heads=2))
    )
    save_model(model.build(), tmp_path / "model", tokenizer=small_tokenizer().tokenizer)
    with pytest.raises(UserError, match="`regard generate`"):
        Translator.load(tmp_path / "model")


def test_validation_is_greedy_search_with_the_limits_of_the_recipe(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["max_length_ratio=1.5", "max_length_offset=7", "min_length=3", "no_repeat_ngram_size=4"]
    overrides = [f"decode.{each}" for each in (*settings, "max_repeats=9", "beam_size=4", "beam_groups=2")]
    used: list[DecodeConfig] = []

    def score(self: TranslationTask, pairs: object, decode: DecodeConfig) -> TranslationScore:
        used.append(decode)
        return TranslationScore(0.0, 0.0, "", "", 1)

    monkeypatch.setattr(TranslationTask, "score", score)
    recipe = read_recipe(folder, overrides)
    with quick_runs(tmp_path / "cache"):
        task = recipe.build_task(folder, lambda message: None, SINGLE_PROCESS)
        task.evaluate()
    limits = {"max_length_ratio": 1.5, "max_length_offset": 7, "min_length": 3, "no_repeat_ngram_size": 4}
    assert used == [DecodeConfig(beam_size=1, max_repeats=9, **limits)]
