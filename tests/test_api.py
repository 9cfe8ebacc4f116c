"""The public API: complete, typed, fast to import, and documented in docs/api.md."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from scripts import api_docs

import regard
from tests.task.small import pairs, quick_runs, write_aligned, write_recipe_file, write_table


def test_dir_lists_exactly_the_public_names() -> None:
    assert dir(regard) == sorted(regard.__all__)
    assert all(getattr(regard, name) is not None for name in regard.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = regard.nothing


def test_import_does_not_import_torch() -> None:
    code = "import sys, regard; print('torch' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_types_ship_with_the_package() -> None:
    assert (Path(regard.__file__).parent / "py.typed").is_file()


def test_api_page_is_up_to_date() -> None:
    page = api_docs.PAGE.read_text(encoding="utf-8")
    assert page == api_docs.render(), "run `python scripts/api_docs.py`"


class RecordingCallback(regard.Callback):
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.steps: list[int] = []

    def log(self, message: str) -> None:
        self.messages.append(message)

    def on_train_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps.append(step)


def test_train_and_evaluate_a_recipe(tmp_path: Path) -> None:
    write_table(tmp_path / "pairs.tsv", pairs(20))
    write_table(tmp_path / "mine.tsv", pairs(10, seed=2))
    data = {"train": [{"path": "pairs.tsv"}], "test": {"same": {"path": "pairs.tsv"}}}
    recipe = write_recipe_file(tmp_path / "small.toml", data)
    first, second = RecordingCallback(), RecordingCallback()
    with quick_runs(tmp_path / "cache"):
        result = regard.train(recipe, out=tmp_path / "run", overrides=["train.steps=2"], callbacks=[first, second])
        assert regard.evaluate(tmp_path / "run")["same"] == result.scores["same"]
        assert isinstance(regard.load(tmp_path / "run"), regard.Translator)
        mine = regard.train(recipe, data=tmp_path / "mine.tsv", out=tmp_path / "mine", overrides=["train.steps=1"])
    assert mine.folder == tmp_path / "mine"
    assert first.messages == second.messages != []
    assert first.steps == [1, 2]
    assert repr(result).startswith(f"RunResult({str(result.folder)!r}, same: BLEU ")
    with pytest.raises(regard.UserError, match="change the Recipe object"):
        regard.train(regard.read_recipe(recipe), overrides=["train.steps=2"])


def test_train_on_two_files_with_settings_as_a_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The files are those of the command, and paths may be strings; the result goes on to a translator."""
    source, target = write_aligned(tmp_path, pairs(20))
    recipe = write_recipe_file(tmp_path / "small.toml", {"train": [{"path": "nowhere.tsv"}]})
    monkeypatch.chdir(tmp_path)
    with quick_runs(tmp_path / "cache"):
        result = regard.train(
            str(recipe),
            source=source.name,
            target=str(target),
            overrides={"train.steps": 2, "decode": {"beam_size": 1}, "train.schedule.lr": 0.02},
            callbacks=[regard.PrinterCallback()],
        )
    printed = capsys.readouterr().out
    assert "\nTraining on 19 examples" in printed
    assert "\nstep 2: loss " in printed
    assert result.folder == Path("runs/small")
    made = regard.read_recipe("runs/small")
    assert (made.train.steps, made.train.schedule.lr) == (2, 0.02)
    translator = result.load()
    assert translator.decode.beam_size == 1
    assert translator.translate(["red cat", "sun"]) == [translator.translate(text) for text in ("red cat", "sun")]
    assert repr(translator).startswith("Translator('small', ")


def test_overrides_of_both_forms_give_the_same_recipe() -> None:
    settings = {
        "train.steps": 20,
        "model.width": 64,
        "train.schedule": {"kind": "constant", "lr": 0.1, "warmup_steps": 3},
    }
    strings = ["train.steps=20", "model.width=64", 'train.schedule={kind = "constant", lr = 0.1, warmup_steps = 3}']
    assert regard.read_recipe("quick", settings) == regard.read_recipe("quick", strings)
    with pytest.raises(regard.UserError, match=r"train\.step: unknown key; did you mean 'steps'"):
        regard.read_recipe("quick", {"train.step": 20})


@pytest.mark.parametrize(("given", "part"), [
    ({"source": "a.en"}, "source and target belong together"),
    ({"pairs": "a.tsv", "target": "a.de"}, "pairs and source/target"),
    ({"pairs": "a.tsv", "data": "b.tsv"}, "give one of them"),
    ({"device": "tpu"}, "device tpu"),
])  # fmt: skip
def test_contradictory_arguments_of_train_are_refused(given: dict[str, str], part: str, tmp_path: Path) -> None:
    with pytest.raises(regard.UserError, match=part):
        regard.train("quick", out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_unknown_keywords_name_the_nearest() -> None:
    with pytest.raises(TypeError, match="'override'; did you mean 'overrides'"):
        regard.train("quick", override={})
    with pytest.raises(TypeError, match="'beamsize'; did you mean 'beam_size'"):
        regard.evaluate("en-tr", beamsize=3)  # type: ignore[call-arg]


def test_recipes_are_those_that_ship() -> None:
    assert {"quick", "shakespeare-cpu"} <= {recipe.name for recipe in regard.recipes()}
    assert repr(regard.read_recipe("quick")).startswith("TranslationRecipe(name='quick', task='translation', ")


def test_load_selects_a_device() -> None:
    assert regard.load("en-tr", device="auto").model.device.type in ("cpu", "cuda", "mps")
    with pytest.raises(regard.UserError, match="device tpu"):
        regard.load("en-tr", device="tpu")


def test_load_sets_precision_and_kernels(tmp_path: Path) -> None:
    translator = regard.load("en-tr", dtype="float32", fused=False)
    assert (translator.backend.precision, translator.backend.fused) == ("float32", False)
    with pytest.raises(regard.UserError, match="bfloat16 is for CUDA"):
        regard.load("en-tr", dtype="bfloat16")
    with pytest.raises(regard.UserError, match="dtype: found 'int4'"):
        regard.load("en-tr", dtype="int4")
    model = regard.VisionTransformerConfig(
        image_size=8, patch_size=4, width=8, encoder={"layers": 1, "attention": {"heads": 1}}
    )
    with pytest.raises(regard.UserError, match="dtype and fused are for models that generate"):
        regard.load(regard.save_model(model.build(), tmp_path / "images"), dtype="int8")
